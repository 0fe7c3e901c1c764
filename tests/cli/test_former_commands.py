"""The command line is small: groups of commands, former names that still work, and one word for one thing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from safevla_bench import cli
from safevla_bench.cli.sections import FORMER_COMMANDS

DEMO = Path("src/safevla_bench/jobs/demo.parquet")
FORMULA = "G[0,T](max_contact_force < 200)"


def test_there_are_at_most_24_commands_in_six_groups(safevla):
    assert list(cli.GROUPS) == ["Run", "Judge", "Compare", "Publish", "Reference", "Data"]
    assert len(cli.COMMANDS) == sum(map(len, cli.GROUPS.values())) <= 24
    out = safevla("--help")[1]
    places = [out.index(f"\n{group}:\n") for group in cli.GROUPS]
    assert places == sorted(places)


def test_no_former_name_is_shown_or_suggested(safevla):
    assert FORMER_COMMANDS.keys().isdisjoint(cli.COMMANDS)
    out = safevla("--help")[1]
    assert not any(f"\n  {name} " in out for name in FORMER_COMMANDS)


@pytest.mark.parametrize(
    ("former", "today"),
    [
        (("stl", FORMULA, "DEMO"), ("show", "DEMO", "--formula", FORMULA)),
        (("stl", "--format", "json", FORMULA, "DEMO"), ("show", "DEMO", "--format", "json", "--formula", FORMULA)),
        (("stl", "--skip-invalid", FORMULA, "DEMO"), ("show", "DEMO", "--skip-invalid", "--formula", FORMULA)),
        (("samplesize", "--detect", "5"), ("compare", "--plan", "5")),
        (
            ("samplesize", "--detect=5", "--tasks", "9", "--confidence", "90"),
            ("compare", "--plan", "5", "--task-count", "9", "--confidence", "90"),
        ),
        (("entries",), ("protocols", "--entries")),
        (("entries", "pi0@libero", "--format", "json"), ("protocols", "--entries", "pi0@libero", "--format", "json")),
        (("tags", "propose", "--bddl", "BDDL"), ("tasks", "--propose", "BDDL")),
        (("tags", "propose", "--bddl=BDDL", "--format", "toml"), ("tasks", "--propose", "BDDL")),
        (("tags", "propose", "--bddl", "BDDL", "--format=json"), ("tasks", "--propose", "BDDL", "--format", "json")),
        (("tags", "propose"), ("tasks", "--propose")),
        (("schema",), ("validate", "--schema")),
        (("import", "RESULTS"), ("score", "RESULTS")),
        (("import", "RESULTS", "--format", "json"), ("score", "RESULTS", "--format", "json")),
        (("stl",), ("show",)),
    ],
)
def test_a_former_name_does_what_the_new_one_does_and_says_so(safevla, tmp_path, former, today):
    (tmp_path / "eval_info.json").write_text('{"per_episode": [{"success": true}, {"success": false}]}')
    (tmp_path / "a.bddl").write_text(
        "(define (problem P) (:language put it there) (:objects bowl_1 - akita_black_bowl plate_1 - plate)\n"
        "(:goal (And (On bowl_1 plate_1))))"
    )
    places = {"DEMO": DEMO, "RESULTS": tmp_path / "eval_info.json", "BDDL": tmp_path / "a.bddl"}

    def run(words):
        return safevla(*(str(places.get(word, word)).replace("=BDDL", f"={places['BDDL']}") for word in words))

    code, out, err = run(former)
    assert err.startswith(f"note: `safevla {former[0]}` is `safevla {today[0]}")
    assert (code, out, err.partition("\n")[2]) == run(today)


@pytest.mark.parametrize("out", [("--out", "PAGE"), ("--out=PAGE",)])
def test_the_former_report_writes_the_page_alone(safevla, tmp_path, out):
    code, printed, _ = safevla("report", DEMO, *(word.replace("PAGE", str(tmp_path / "page")) for word in out))
    assert (code, printed) == (0, f"Report: {tmp_path / 'page'}\n")
    safevla("score", DEMO, "--out", tmp_path / "scores")
    assert (tmp_path / "page").read_bytes() == (tmp_path / "scores" / "report.html").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name != "scores"] == ["page"]


def test_former_spellings_of_options_mean_the_same_and_are_not_shown(safevla):
    asked = ("--host", "fake", "--suite", "fake", "--policy", "noop", "--dry-run")
    shown = safevla("eval", *asked, "--task", "0,2")
    assert shown[0] == 0
    for spelled in (("--tasks", "0,2"), ("--tasks=0,2",), ("--task", "task_0,task_2")):
        assert safevla("eval", *asked, *spelled) == shown
    assert safevla("tasks", "--benchmark", "fake") == safevla("tasks", "--suite", "fake")
    assert safevla("episodes", DEMO, "--salvage") == safevla("episodes", DEMO, "--skip-invalid")
    for command, former in (("eval", "--tasks"), ("tasks", "--benchmark"), ("episodes", "--salvage")):
        assert former not in safevla(command, "--help")[1]


@pytest.mark.parametrize("command", ["score", "compare", "gate", "tables", "show"])
def test_shared_options_stand_in_sections_of_their_own(safevla, command):
    """The options of judging stand below `Judging` and nothing else does; Ray's below `Ray`."""
    sections = safevla(command, "--help")[1].split("\n\n")
    judging = next(part for part in sections if part.startswith("Judging:"))
    own = next(part for part in sections if part.startswith("Options:"))
    assert "--library" in judging
    assert "--format" in own
    assert "--library" not in own
    assert "--engine" not in own


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run folder on the fake host."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    asked = ["--host", "fake", "--suite", "fake", "--task", "0", "--policy", "noop", "--max-steps", "5"]
    assert cli.run_command_line(["rollout", *asked, "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("command", "made"),
    [
        (("score",), "report.html"),
        (("figures", "--which", "tradeoff", "--format", "svg"), "figures/tradeoff.svg"),
        (("export", "--format", "submission"), "submission.json"),
        (("export", "--format", "safevla-csv"), "safevla.csv"),
        (("board", "--no-reports"), "board/index.html"),
    ],
)
def test_what_is_made_of_one_run_folder_lies_in_it_unless_out_says_otherwise(safevla, run, command, made):
    code, out, err = safevla(command[0], run, *command[1:])
    assert (code, err) == (0, "")
    assert str(run) in out
    assert (run / made).is_file()
    code, _, err = safevla(command[0], run, DEMO, *command[1:])
    assert code == 2
    assert err.startswith("error: missing option '--out'. It may be left out where one run folder is given")


def test_a_source_that_does_not_exist_is_named_and_not_a_missing_out(safevla, tmp_path):
    for source in (tmp_path / "tpyo", f"mine={tmp_path / 'tpyo'}"):
        code, _, err = safevla("score", source)
        assert code == 2
        assert err.startswith(f"error: {tmp_path / 'tpyo'}: there is no such file or folder")


def test_a_task_is_named_by_its_index_too(safevla):
    by_index, by_name = (
        json.loads(safevla("episodes", DEMO, "--task", name, "--format", "json")[1]) for name in ("0", "task_0")
    )
    assert by_index == by_name
    assert by_index


def test_an_option_of_planning_without_a_plan_is_refused(safevla):
    code, _, err = safevla("compare", DEMO, "--power", "0.9")
    assert code == 2
    assert "--power is for a plan: pass --plan POINTS" in err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("show", DEMO, "--formula", FORMULA, "--library", "paper-text"), "--library is for an episode that is judged"),
        (("show", DEMO, "--formula", FORMULA, "--set", "joint_torque=2"), "--set is for an episode that is judged"),
        (("show", DEMO, "--formula", FORMULA, "--all"), "--all is for an episode that is judged"),
        (("compare", DEMO, "--plan", "5"), "takes no SOURCE"),
        (("validate", DEMO, "--schema"), "takes no SOURCE"),
        (("score", DEMO, "--report", "page.html", "--out", "scores"), "--report writes the page alone"),
        (("tasks", "--propose", "a.bddl", "--suite", "fake"), "--propose reads task files alone"),
        (("protocols", "--entries", "a", "b"), "name one entry"),
    ],
)
def test_what_does_not_go_together_is_refused(safevla, command, says):
    code, _, err = safevla(*command)
    assert code == 2
    assert says in err


def test_the_shell_completes_commands_without_importing_them():
    """As bash asks: a slow import would be felt at every press of the key."""
    script = (
        "import sys; from safevla_bench import cli\n"
        "try: cli.run_command_line([])\n"
        "finally: print('LOADED', sorted(one for one in ('numpy', 'matplotlib', 'pyarrow') if one in sys.modules))"
    )
    environment = {"_SAFEVLA_COMPLETE": "bash_complete", "COMP_WORDS": "safevla sc", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["plain,score", "LOADED []"]


def test_the_shell_completes_options_by_the_names_of_today():
    from click.shell_completion import BashComplete

    names = {item.value for item in BashComplete(cli.safevla, {}, "safevla", "").get_completions(["eval"], "--ta")}
    assert names == {"--task"}
    assert isinstance(cli.safevla, click.Group)
