"""Data never chooses code: what names a policy, a plug-in or a module, who may name it, and what is done about it."""

from __future__ import annotations

import ast
import contextlib
import json
import shlex
import shutil
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import msgspec
import pytest

import safevla_bench
from safevla_bench import hosts, plugins, policies
from safevla_bench.cli import run_command_line
from safevla_bench.errors import RegistryError, RunError
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import registered_request, roll_out
from safevla_bench.judging.registration import RegisteredPolicy, read_registration
from safevla_bench.tasks.bddl import parse_bddl

PLAN = ("--host", "fake", "--suite", "fake", "--task", "0", "--max-steps", "3")
USER, OWN, GUARD = "named by the user", "a name in our own code", "guarded: what a file names is refused or is data"
INSTALLED = "an installed host's, by its name alone, without arguments"
PREPARED = "after `prepare_run` has guarded the request"

PLACES = {
    # Factories of policies and hosts
    (
        "jobs/evaluation/preparation.py",
        "make_policy",
    ): GUARD,  # run.json, registrations, --config; a dry run makes a stand-in
    ("jobs/evaluation/rollouts.py", "make_policy"): PREPARED,  # servers that a run has asked, once more at its end
    ("policies/__init__.py", "make_policy"): OWN,  # that stand-in
    ("policies/__init__.py", "make_entry_policy"): GUARD,  # servers of the paper's entries
    ("jobs/evaluation/request.py", "make_policy"): USER,  # `replay:` alone, of --policy
    ("jobs/evaluation/request.py", "make_host"): GUARD,
    ("jobs/evaluation/preparation.py", "make_host"): GUARD,
    ("jobs/evaluation/results.py", "make_host"): GUARD,
    ("rollout/worker.py", "make_policy"): PREPARED,
    ("rollout/worker.py", "make_host"): PREPARED,
    ("rollout/ray.py", "make_host"): PREPARED,
    ("jobs/evaluation/preparation.py", "WorkerSpec"): PREPARED,
    ("jobs/physics.py", "WorkerSpec"): PREPARED,  # what `ReplaySetting.read` let pass, as for verify --replay
    ("cli/protocols.py", "make_policy"): USER,  # serve
    ("jobs/doctor/server.py", "make_policy"): USER,
    ("jobs/doctor/selftest.py", "make_host"): USER,
    ("jobs/doctor/__init__.py", "make_host"): USER,
    ("rollout/gym.py", "make_host"): USER,
    ("jobs/verify/replays.py", "make_host"): GUARD,  # verify --replay, with the arguments in run.json
    ("cli/pictures.py", "make_host"): INSTALLED,
    ("jobs/evaluation/outputs.py", "make_host"): INSTALLED,  # show --html
    ("training/export.py", "make_host"): INSTALLED,  # export --cameras
    # Tags of hosts
    ("jobs/evaluation/judgement.py", "registry_files"): INSTALLED,
    ("jobs/doctor/__init__.py", "registry_files"): USER,
    ("jobs/doctor/selftest.py", "registry_files"): USER,
    ("rollout/gym.py", "registry_files"): USER,
    # Imports by name
    ("__init__.py", "import_module"): OWN,
    ("cli/__init__.py", "import_module"): OWN,
    ("judging/scores.py", "import_module"): OWN,
    ("rollout/ray.py", "import_module"): OWN,
    ("hosts/mujoco/renderer.py", "import_module"): OWN,
    ("hosts/robocasa/install.py", "import_module"): OWN,
    ("policies/python.py", "import_module"): GUARD,  # the policy `python:`
    ("policies/lerobot.py", "from_pretrained"): GUARD,  # processors of a checkpoint name classes
    # The one loader of plug-ins
    ("plugins.py", "entry_points"): GUARD,
    ("plugins.py", "load"): GUARD,
}
"""Every place of the package that makes code of a name -> who names it, or how a file is kept from it.

What is not here reads files and makes no code of a name in them: merge, score, gate, board, compare, open, tables,
libraries, registries, mappings of logs, protocols and dialects (a name of ours, never a path), submissions, model
cards. The inputs of action.yml are the workflow's, which is the user's.
"""


def called_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def test_every_place_that_makes_code_of_a_name_is_known_and_says_how_files_are_kept_from_it():
    root, names = Path(safevla_bench.__file__).parent, {name for _, name in PLACES}
    places = {
        (path.relative_to(root).as_posix(), name)
        for path in root.rglob("*.py")
        for name in called_names(ast.parse(path.read_text()))
        if name in names and (name != "load" or path.name == "plugins.py")
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
    description = json.loads(Path("run/run.json").read_text())
    description["policies"][0].update(call)
    Path("run/run.json").write_text(json.dumps(description))
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
def test_a_call_that_a_file_names_is_named_and_not_made(folder, capsys, mode, file, options):
    assert run_command_line(["eval", *mode, *options]) == 2
    err = capsys.readouterr().err
    assert f"{file}: it names what is not data" in err
    assert "python:os:system(command='touch mark')" in err
    assert f"--trust {file}" in err
    assert not (folder / "mark").exists()


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
@pytest.mark.parametrize(("file", "options"), WAYS)
def test_a_dry_run_calls_nothing_and_says_what_it_would_call(folder, capsys, mode, file, options):
    assert run_command_line(["eval", *mode, *options, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert "at most" in printed.out
    assert f"would call python:os:system(command='touch mark'); only with --trust {file}" in printed.err
    assert not (folder / "mark").exists()


def test_a_dry_run_of_the_command_line_s_own_call_calls_nothing_either(folder, capsys):
    call = ("--policy", "python:os:system", "--policy-arg", "command=touch mark")
    assert run_command_line(["eval", *PLAN, *call, "--dry-run", "--freeze", "f.json"]) == 0
    assert "would call python:os:system" in capsys.readouterr().err
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


def test_a_config_file_cannot_vouch_for_itself(folder, capsys):
    (folder / "c.toml").write_text('trust = ["c.toml"]\n' + (folder / "c.toml").read_text())
    assert run_command_line(["eval", "--config", "c.toml", "--out", "new"]) == 2
    assert "no such key" in capsys.readouterr().err


def test_a_request_of_a_file_is_not_trusted_in_python_either(folder):
    with pytest.raises(RunError, match="names what is not data"):
        roll_out(Request.from_run(folder / "run"), folder / "new")
    with pytest.raises(RunError, match="names what is not data"):
        roll_out(registered_request(read_registration(folder / "r.json")), folder / "new")
    assert not (folder / "mark").exists()


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
    assert "names what is not data" not in capsys.readouterr().err


def test_a_key_is_not_sent_to_a_server_that_a_file_names(monkeypatch):
    monkeypatch.delenv("SAFEVLA_API_KEY", raising=False)
    assert policies.describe_call("openpi:ws://far:8000") is None
    assert "sent your key" in policies.describe_call("openpi:ws://far:8000", {"key_file": "/home/me/key"})
    monkeypatch.setenv("SAFEVLA_API_KEY", "secret")
    assert "sent your key" in policies.describe_call("openpi:ws://far:8000")
    assert policies.describe_call("replay:runs/mine") is None


def test_arguments_of_a_plug_in_host_are_the_user_s_and_its_name_alone_is_not_code(monkeypatch, tmp_path):
    calls = []
    point = EntryPoint(name="plug", value="host:make", group=hosts.GROUP)
    vars(point).update(dist=type("Distribution", (), {"name": "theirs"}))
    monkeypatch.setattr(plugins, "entry_points", lambda **named: [point])
    monkeypatch.setattr(EntryPoint, "load", lambda entry: lambda **arguments: calls.append(arguments))
    hosts.make_host("plug", named_by=tmp_path)
    hosts.make_host("plug", {"assets": "x"})
    with pytest.raises(RunError, match=r"host plug\(assets='x'\)"):
        hosts.make_host("plug", {"assets": "x"}, named_by=tmp_path)
    assert calls == [{}, {"assets": "x"}]
    assert hosts.make_host("plug") is None


@pytest.mark.parametrize("angle", ["__import__", "[1for[exit]in[[0]]]", "np.f2py.os", "9**9**9"])
def test_an_angle_of_a_task_file_is_a_number_since_libero_evaluates_it(angle):
    text = "(define (problem p) (:regions (r (:target t) (:yaw_rotation (({} 0.0))))) (:goal (And (On a b))))"
    assert parse_bddl(text.format("-3.1e-2")).goal
    with pytest.raises(RegistryError, match="is not a number"):
        parse_bddl(text.format(angle))
