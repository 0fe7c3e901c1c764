"""Data never chooses code: what names a policy, a plug-in or a module, who may name it, and what is done about it."""

from __future__ import annotations

import ast
import contextlib
import io
import pickle
import shlex
import shutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import safevla_bench
import safevla_recorder
from folders import change_description
from safevla_bench import archive, hosts, plugins, policies
from safevla_bench.archive import jsonl, npz, parquet
from safevla_bench.cli import run_command_line
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import registered_request, roll_out
from safevla_bench.judging.registration import RegisteredPolicy, read_registration
from safevla_bench.sources.runs.folder import read_description

PLAN = ("--host", "fake", "--suite", "fake", "--task", "0", "--max-steps", "3")
USER, OWN, GUARD = "named by the user", "a name in our own code", "guarded: what a file names is refused or is data"
INSTALLED = "an installed host's, by its name alone, without arguments"
PREPARED = "after `prepare_run` has guarded the request"

SOURCES = (Path(safevla_bench.__file__).parent, Path(safevla_recorder.__file__).parent)

PLACES = {
    # Factories of policies and hosts
    (
        "jobs/evaluation/preparation.py",
        "make_policy",
    ): GUARD,  # run.json, registrations, --config; a dry run makes a stand-in
    ("policies/__init__.py", "make_policy"): OWN,  # that stand-in
    ("policies/__init__.py", "make_entry_policy"): GUARD,  # servers of the paper's entries
    ("jobs/evaluation/request.py", "make_policy"): USER,  # `replay:` alone, of --policy
    ("hosts/__init__.py", "make_host"): OWN,  # the suites of our hosts
    ("jobs/evaluation/request.py", "make_host"): GUARD,
    ("jobs/evaluation/preparation.py", "make_host"): GUARD,
    ("jobs/evaluation/results.py", "make_host"): GUARD,
    (
        "rollout/scheduler.py",
        "make_policy",
    ): PREPARED,  # in a worker, and for servers that a run asks again at its end
    ("rollout/scheduler.py", "make_host"): PREPARED,
    ("rollout/ray.py", "make_host"): PREPARED,
    ("jobs/evaluation/preparation.py", "WorkerSpec"): PREPARED,
    ("jobs/physics.py", "WorkerSpec"): PREPARED,  # what `ReplaySetting.read` let pass, as for verify --replay
    ("cli/check.py", "make_policy"): USER,  # serve
    ("jobs/doctor/server.py", "make_policy"): USER,
    ("jobs/doctor/machine.py", "make_host"): USER,
    ("jobs/doctor/__init__.py", "make_host"): USER,
    ("rollout/gym.py", "make_host"): USER,
    ("jobs/verify/replays.py", "make_host"): GUARD,  # verify --replay, with the arguments in run.json
    ("cli/inspect.py", "make_host"): INSTALLED,
    ("training/export.py", "make_host"): INSTALLED,  # export --cameras
    # Tags of hosts
    ("jobs/evaluation/judgement.py", "registry_files"): INSTALLED,
    ("jobs/doctor/__init__.py", "registry_files"): USER,
    ("jobs/doctor/machine.py", "registry_files"): USER,
    ("rollout/gym.py", "registry_files"): USER,
    # Imports by name
    ("__init__.py", "import_module"): OWN,
    ("cli/__init__.py", "import_module"): OWN,
    ("cli/completion.py", "import_module"): OWN,
    ("publishing/tracking.py", "import_module"): OWN,
    ("rollout/ray.py", "import_module"): OWN,
    ("hosts/mujoco/renderer.py", "import_module"): OWN,
    ("hosts/robocasa/host.py", "import_module"): OWN,
    ("policies/python.py", "import_module"): GUARD,  # the policy `python:`
    ("policies/python.py", "from_pretrained"): GUARD,  # processors of a checkpoint name classes
    # The one loader of plug-ins
    ("plugins.py", "entry_points"): GUARD,
    ("plugins.py", "load"): GUARD,
}
"""Every place of the package that makes code of a name -> who names it, or how a file is kept from it.

What is not here reads files and makes no code of a name in them: merge, score, gate, board, compare, open, tables,
libraries, registries, mappings of logs, protocols and dialects (a name of ours, never a path), submissions, model
cards. The inputs of action.yml are the workflow's, which is the user's.
"""


@cache
def sources():
    """Path -> the imported modules and the calls, by dotted name, of each source file of both packages."""
    paths = [(folder, path) for folder in SOURCES for path in sorted(folder.rglob("*.py"))]
    trees = {path.relative_to(folder.parent).as_posix(): ast.parse(path.read_text()) for folder, path in paths}
    return {name: imports_and_calls(tree) for name, tree in trees.items()}


def imports_and_calls(tree):
    modules, calls = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module.partition(".")[0], node.module}
        elif isinstance(node, ast.Call):
            calls.append((dotted_name(node.func), node))
    return modules, calls


def dotted_name(node):
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return getattr(node, "id", "")


def test_every_place_that_makes_code_of_a_name_is_known_and_says_how_files_are_kept_from_it():
    names = {name for _, name in PLACES}
    places = {
        (path.removeprefix("safevla_bench/"), name)
        for path, (_, calls) in sources().items()
        for name in (called.rpartition(".")[2] for called, _ in calls)
        if name in names and path.startswith("safevla_bench/") and (name != "load" or path.endswith("/plugins.py"))
    }
    assert places == set(PLACES)


def test_each_policy_of_ours_is_data_or_code():
    """What is new counts as code until it is put among the others."""
    own = [entry.name for entry in entry_points(group=policies.GROUP) if entry.dist.name == plugins.OWN_DISTRIBUTION]
    assert {name for name in own if policies.runs_code(name)} == {"lerobot", "python"}
    assert policies.runs_code("a-plug-in")
    assert not policies.runs_code("pi0.5@libero")


# Each way from a file to code


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with a run and a registration that name a call, which would leave `mark` behind."""
    folder = tmp_path_factory.mktemp("template")
    with contextlib.chdir(folder):
        write_call_files()
    return folder


def write_call_files() -> None:
    call = {"spec": "python:os:system", "arguments": {"command": "touch mark"}}
    assert run_command_line(["eval", *PLAN, "--policy", "noop", "--out", "run"]) == 0
    assert run_command_line(["eval", *PLAN, "--policy", "noop", "--dry-run", "--freeze", "r.json"]) == 0
    (policy,) = read_description(Path("run"))["policies"]
    change_description(Path("run"), policies=[{**policy, **call}], complete=False)  # of a finished run nothing is made
    frozen = read_registration(Path("r.json"))
    Path("r.json").write_bytes(
        msgspec.structs.replace(frozen, policies=(RegisteredPolicy(policy="noop", **call),)).encode()
    )
    table = f'policy = "{call["spec"]}"\npolicy-arg = ["command=touch mark"]\nhost = "fake"\nsuite = "fake"\ntask = "0"'
    Path("c.toml").write_text(table)


@pytest.fixture
def folder(template, tmp_path, monkeypatch):
    copy = shutil.copytree(template, tmp_path / "copy")
    monkeypatch.chdir(copy)
    return copy


WAYS = [
    ("run/run.json", ("--resume", "--out", "run")),
    (
        "run/run.json",
        ("--resume", "--retry-crashed", "--out", "run", "--policy", "noop=python:os:system"),
    ),  # its argument is the file's
    ("r.json", ("--registered", "r.json", "--out", "new")),
    ("c.toml", ("--config", "c.toml", "--out", "new")),
]


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
@pytest.mark.parametrize(("file", "options"), WAYS)
def test_a_call_that_a_file_names_is_named_and_not_made(folder, safevla, mode, file, options):
    err = safevla.refuses("eval", *mode, *options)
    assert f"{file}: the file is not trusted" in err
    assert "python:os:system(command='touch mark')" in err
    assert f"--trust {file}" in err
    assert not (folder / "mark").exists()


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
@pytest.mark.parametrize(("file", "options"), WAYS)
def test_a_dry_run_calls_nothing_and_says_what_it_would_call(folder, safevla, mode, file, options):
    code, out, err = safevla("eval", *mode, *options, "--dry-run")
    assert (code, "at most" in out) == (0, True)
    assert f"pass --trust {file}" in err
    assert not (folder / "mark").exists()


def test_a_dry_run_of_the_command_line_s_own_call_calls_nothing_either(folder, safevla):
    call = ("--policy", "python:os:system", "--policy-arg", "command=touch mark")
    code, _, err = safevla("eval", *PLAN, *call, "--dry-run", "--freeze", "f.json")
    assert (code, "would use python:os:system" in err) == (0, True)
    assert not (folder / "mark").exists()


@pytest.mark.parametrize(("file", "options"), WAYS)
def test_a_file_that_the_user_trusts_may_call(folder, file, options):
    run_command_line(["eval", *options, "--trust", file.removesuffix("/run.json")])
    assert (folder / "mark").exists()
    (folder / "mark").unlink()
    (folder / "other").write_text("")
    run_command_line(["eval", *options, "--trust", "other"])
    assert not (folder / "mark").exists()


def test_the_same_call_on_the_command_line_is_made(folder):
    call = ("--policy", "noop=python:os:system", "--policy-arg", "command=touch mark")
    run_command_line(["eval", "--resume", "--out", "run", *call])
    assert (folder / "mark").exists()


def test_a_config_file_cannot_vouch_for_itself(folder, safevla):
    (folder / "c.toml").write_text('trust = ["c.toml"]\n' + (folder / "c.toml").read_text())
    assert "unknown key" in safevla.refuses("eval", "--config", "c.toml", "--out", "new")


def test_a_request_of_a_file_is_not_trusted_in_python_either(folder):
    with pytest.raises(RunError, match="is not trusted"):
        roll_out(Request.from_run(folder / "run"), folder / "new")
    with pytest.raises(RunError, match="is not trusted"):
        roll_out(registered_request(read_registration(folder / "r.json")), folder / "new")
    assert not (folder / "mark").exists()


# Each way from a file to other files

TASKS = "theirs/tasks"
FILES = f"the task files at {TASKS}"


@pytest.fixture
def run(folder):
    """A run whose run.json names task files; its host takes no path, so that a trusted one is refused by the host."""
    change_description(Path("run"), suites=[TASKS], policies=[{"policy": "noop", "arguments": {}}], complete=True)
    return "run"


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "--resume", "--retry-crashed", "--out", "run"),
        ("eval", "--resume", "--record-only", "--out", "run"),
        ("eval", "--resume", "--dry-run", "--out", "run"),
        ("verify", "run", "--replay", "1", "--rules", "as-judged"),
        ("verify", "run", "--audit", "1:7", "--rules", "as-judged"),
        ("board", "run", "--audit", "1:7", "--out", "site"),
        ("sensitivity", "run", "--physics"),
        ("show", "run", ":1", "--without", "contact:gripper,cup"),
        ("frames", "run"),
        ("export", "run", "--format", "lerobot", "--cameras", "front", "--out", "new"),
    ],
)
def test_task_files_that_a_run_names_are_used_only_with_trust(run, safevla, command):
    change_description(Path(run), complete=command[0] != "eval")
    _, out, err = safevla(*command)
    assert FILES in out + err
    assert "with --trust run/run.json" in " ".join((out + err).split())
    for trusted in ("run", "run/run.json"):
        _, out, err = safevla(*command, "--trust", trusted)
        assert FILES not in out + err
        assert f"no suite '{TASKS}'" in out + err
    assert FILES in "".join(safevla(*command, "--trust", "r.json")[1:])


def test_a_path_that_the_user_types_needs_no_trust(run, safevla):
    for options in (("--resume", "--out", "run"), ("--host", "fake", "--policy", "noop", "--out", "new")):
        assert "no suite 'my/tasks'" in safevla.refuses("eval", "--suite", "my/tasks", *options)


def test_task_files_that_found_starts_name_are_used_only_with_trust(folder, safevla):
    """Whether the user names the found starts, or a run.json does, which is then the file to trust."""
    found = {"schema_version": 1, "name": "n", "host": "fake", "host_arguments": {}, "suite": TASKS, "tasks": (),
             "protocol": "safevla-bench", "policy": "noop", "objective": "o", "method": "m", "seed": 0,
             "starts": ()}  # fmt: skip
    (folder / "f.json").write_bytes(msgspec.json.encode(found))
    typed = ("eval", "--suite", "found:f.json", "--policy", "noop", "--out", "new")
    err = safevla.refuses(*typed)
    assert FILES in err
    assert f"with --trust {folder / 'f.json'}" in err
    assert "has no suite" in safevla.refuses(*typed, "--trust", "f.json")
    change_description(Path("run"), found={"file": "f.json"}, policies=[{"policy": "noop", "arguments": {}}])
    again = ("eval", "--resume", "--retry-crashed", "--out", "run")
    assert "starts in f.json" in safevla.refuses(*again)
    assert "has no suite" in safevla.refuses(*again, "--trust", "run")


def test_task_files_that_a_recording_names_are_used_only_with_trust(folder, safevla):
    """A replay without --suite takes the suites of the recording."""
    assert run_command_line(["eval", *PLAN, "--policy", "noop", "--out", "own"]) == 0
    assert run_command_line(["convert", "own", "x.jsonl"]) == 0
    recorded = Path("x.jsonl").read_text().replace('"benchmark":"fake"', f'"benchmark":"{TASKS}"')
    Path("x.jsonl").write_text(recorded)
    replay = ("eval", "--host", "fake", "--policy", "replay:x.jsonl", "--out", "new")
    err = safevla.refuses(*replay)
    assert "x.jsonl: the file is not trusted" in err
    assert FILES in err
    assert f"no suite '{TASKS}'" in safevla.refuses(*replay, "--trust", "x.jsonl")
    assert f"no suite '{TASKS}'" in safevla.refuses(*replay, "--suite", TASKS)


@pytest.mark.parametrize("line", [f'suite = "{TASKS}"\npolicy = "noop"', 'suite = "fake"\npolicy = "replay:far.hdf5"'])
def test_files_that_a_config_file_names_are_used_only_with_trust(folder, safevla, line):
    (folder / "c.toml").write_text(f'host = "fake"\n{line}\n')
    assert "c.toml: the file is not trusted" in safevla.refuses("eval", "--config", "c.toml", "--out", "new")
    assert "is not trusted" not in safevla.refuses("eval", "--config", "c.toml", "--out", "new", "--trust", "c.toml")
    typed = ("--suite", "fake", "--policy", "noop", "--task", "0", "--episodes", "1", "--max-steps", "2")
    safevla.ok("eval", "--config", "c.toml", *typed, "--out", "typed")


def test_a_folder_named_like_a_suite_is_not_taken_for_task_files(folder):
    for name in ("fake", "mine"):
        Path(name).mkdir()
    assert hosts.describe_suite("fake", "fake") is None
    assert hosts.describe_suite("fake", "other") is None
    assert hosts.describe_suite("fake", "mine").endswith("at mine")


def test_every_place_that_asks_a_host_for_a_suite_s_tasks_is_known():
    asked = {path.removeprefix("safevla_bench/") for path, (_, calls) in sources().items()
             for called, _ in calls if called.endswith(".tasks")}  # fmt: skip
    assert asked == {
        "hosts/__init__.py",  # `list_tasks`, the guard
        "hosts/conformance/base.py",
        "hosts/conformance/optional_rules.py",
        "jobs/doctor/machine.py",  # the host's first suite
        "jobs/search/__init__.py",  # a suite's name, of --wordings
        "rollout/gym.py",  # the user's
    }


POLICY = """
from safevla_bench.errors import ServerLostError
class Policy:
    def act(self, observation):
        raise ServerLostError("gone", remedy="Start it.")
"""


def test_the_command_that_goes_on_with_a_run_of_one_s_own_trusts_it(folder, capsys):
    (folder / "lost.py").write_text(POLICY)
    run_command_line(["eval", "--record-only", *PLAN, "--policy", "python:lost:Policy", "--out", "mine"])
    (command,) = [line.strip() for line in capsys.readouterr().err.splitlines() if line.startswith("  safevla")]
    assert "--trust mine/run.json" in command
    run_command_line(shlex.split(command)[1:])
    assert "code or files" not in capsys.readouterr().err


def test_a_key_is_not_sent_to_a_server_that_a_file_names(monkeypatch):
    monkeypatch.delenv("SAFEVLA_API_KEY", raising=False)
    assert policies.describe_call("openpi:ws://far:8000") is None
    assert "receive your key" in policies.describe_call("openpi:ws://far:8000", {"key_file": "/home/me/key"})
    monkeypatch.setenv("SAFEVLA_API_KEY", "secret")
    assert "receive your key" in policies.describe_call("openpi:ws://far:8000")
    assert policies.describe_call("scripted:careful") is None


def test_arguments_of_a_plug_in_host_are_the_user_s_and_its_name_alone_is_not_code(monkeypatch, tmp_path):
    calls = []
    point = EntryPoint(name="plug", value="host:make", group=hosts.GROUP)
    vars(point).update(dist=type("Distribution", (), {"name": "theirs"}))
    monkeypatch.setattr(plugins, "entry_points", lambda **_: [point])
    monkeypatch.setattr(EntryPoint, "load", lambda entry: lambda **arguments: calls.append(arguments))
    hosts.make_host("plug", named_by=tmp_path)
    hosts.make_host("plug", {"assets": "x"})
    with pytest.raises(RunError, match=r"host plug\(assets='x'\)"):
        hosts.make_host("plug", {"assets": "x"}, named_by=tmp_path)
    assert calls == [{}, {"assets": "x"}]
    assert hosts.make_host("plug") is None


# Nothing that comes from outside is unpickled, evaluated or executed: by what the source says, and by what it does

UNPICKLING = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
LOADING = {"torch.load", "yaml.load", "yaml.unsafe_load", "pandas.read_pickle", "pd.read_pickle", "np.fromregex"}
OWN_PROCESSES = {"safevla_bench/rollout/scheduler.py", "safevla_bench/jobs/evaluation/parallel.py"}
"""A command and its workers are the same program, and no other process has their pipe."""


def test_no_module_imports_what_unpickles():
    assert {name: unpicklers for name, (modules, _) in sources().items() if (unpicklers := UNPICKLING & modules)} == {}


def test_objects_go_over_pipes_between_our_own_processes_only():
    """Two modules open no pipe: they say when a process ends, and which has started this one."""
    harmless = {"multiprocessing.util", "multiprocessing.process"}
    used = {name: {module for module in modules if "multiprocessing" in module}
            for name, (modules, _) in sources().items()}  # fmt: skip
    assert {name for name in used if used[name] and not used[name] - {"multiprocessing"} & harmless} <= OWN_PROCESSES


def test_no_source_evaluates_text_or_loads_objects_and_numpy_is_told_that_nothing_is_pickled():
    checked = 0
    for name, (_, calls) in sources().items():
        for called, call in calls:
            assert called not in ("eval", "exec", "compile", "__import__"), f"{name}:{call.lineno}"
            assert called not in LOADING, f"{name}:{call.lineno}"
            if called in ("np.load", "np.save", "np.savez", "np.lib.format.write_array"):
                options = {option.arg: ast.unparse(option.value) for option in call.keywords}
                assert options.get("allow_pickle") == "False", f"{name}:{call.lineno}"
                checked += 1
    assert checked >= 3


class Trap:
    """Fails the test as soon as it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


TRAP = pickle.dumps(Trap())


@pytest.mark.parametrize("suffix", [*jsonl.SUFFIXES, jsonl.WHOLE, npz.SUFFIX, parquet.SUFFIX])
def test_a_pickle_under_the_name_of_an_archive_is_refused(tmp_path, suffix):
    for content in (TRAP, b"\x80\x05" + TRAP, npy()):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(content)
        with pytest.raises(SafevlaError):
            archive.open_archive(path)


def npy():
    sink = io.BytesIO()
    np.save(sink, np.array([Trap()], dtype=object), allow_pickle=True)
    return sink.getvalue()


def test_a_pickle_within_parquet_stays_bytes(tmp_path):
    pq.write_table(pa.table({"episode_id": pa.array([TRAP])}), tmp_path / "x.parquet")
    with pytest.raises(SafevlaError):
        archive.open_archive(tmp_path / "x.parquet")
