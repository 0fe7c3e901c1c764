"""The command line is small: groups of commands, one word for one thing, and what goes together."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from safevla_bench import cli

DEMO = Path("src/safevla_bench/jobs/demo.parquet")
RUN = ("--host", "fake", "--suite", "fake", "--policy", "noop", "--out", "run")
FORMULA = "G[0,T](max_contact_force < 200)"


def test_there_are_at_most_26_commands_in_six_groups_and_224_options_and_none_is_hidden(safevla):
    assert list(cli.GROUPS) == ["Run", "Judge", "Compare", "Publish", "Reference", "Data"]
    assert len(cli.COMMANDS) == sum(map(len, cli.GROUPS.values())) <= 26
    out = safevla.ok("--help")
    places = [out.index(f"\n{group}:\n") for group in cli.GROUPS]
    assert places == sorted(places)
    commands = [cli.safevla.get_command(click.Context(cli.safevla), name) for name in cli.COMMANDS]
    options = [param for command in commands for param in command.params if isinstance(param, click.Option)]
    options = [option for option in options if option.name != "help_all"]
    assert len(options) <= 224
    assert not [option.name for option in options if option.hidden]


@pytest.mark.parametrize("command", ["score", "compare", "gate", "tables", "show"])
def test_shared_options_stand_in_sections_of_their_own(safevla, command):
    """The options of judging stand below `Judging` and nothing else does."""
    sections = safevla.ok(command, "--help-all").split("\n\n")
    judging = next(part for part in sections if part.startswith("Judging:"))
    own = next(part for part in sections if part.startswith("Options:"))
    assert "--library" in judging
    assert "--format" in own
    assert "--library" not in own
    assert ("--engine" in own) == (command == "score")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_has_at_most_twelve_options_and_says_where_the_others_are(safevla, command):
    context = click.Context(cli.safevla.get_command(click.Context(cli.safevla), command), info_name=command)
    options = [name for names in context.command.option_sections(context, common=True).values() for name in names]
    all_options = [name for names in context.command.option_sections(context).values() for name in names]
    assert 1 <= len(options) <= 12
    assert {name.split()[0] for name in context.command.common} <= {
        spelling.split()[0].rstrip(",") for names, _ in all_options for spelling in names.split(" / ")
    }
    out = safevla.ok(command, "--help")
    assert (f"{len(all_options) - len(options)} more options: " in out) == (len(options) < len(all_options))
    assert all(names.split()[0] in safevla.ok(command, "--help-all") for names, _ in all_options)
    assert max(map(len, out.splitlines())) <= 80


def test_what_judging_options_mean_is_explained_once(safevla):
    out = safevla.ok("help", "judging")
    assert all(name in out for name in ("--library", "--rules", "--set"))
    assert "safevla help judging" in safevla.ok("score", "--help")
    assert "topic is judging" in safevla.refuses("help", "nonsense")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run folder on the fake host."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    arguments = ["--host", "fake", "--suite", "fake", "--task", "0", "--policy", "noop", "--max-steps", "5"]
    assert cli.run_command_line(["eval", "--record-only", *arguments, "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("score",), "report.html"),
        (("figures", "--which", "tradeoff", "--format", "svg"), "figures/tradeoff.svg"),
        (("export", "--format", "submission"), "submission.json"),
        (("export", "--format", "safevla-csv"), "safevla.csv"),
        (("board", "--no-reports"), "board/index.html"),
    ],
)
def test_what_is_made_of_one_run_folder_lies_in_it_unless_out_says_otherwise(safevla, run, command, file):
    code, out, err = safevla(command[0], run, *command[1:])
    assert (code, err) == (0, "")
    assert str(run) in out
    assert (run / file).is_file()
    err = safevla.refuses(command[0], run, DEMO, *command[1:])
    assert "missing option '--out'" in err


def test_a_source_that_does_not_exist_is_named_and_not_a_missing_out(safevla, tmp_path):
    for source in (tmp_path / "tpyo", f"mine={tmp_path / 'tpyo'}"):
        err = safevla.refuses("score", source)
        assert f"{tmp_path / 'tpyo'}: there is" in err  # words: ok


def test_a_task_is_named_by_its_index_too(safevla):
    by_index, by_name = (safevla.json("episodes", DEMO, "--task", name) for name in ("0", "task_0"))
    assert by_index == by_name
    assert by_index


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("show", DEMO, "--formula", FORMULA, "--library", "paper-text"), "--library is for"),
        (("show", DEMO, "--formula", FORMULA, "--set", "joint_torque=2"), "--set is for"),
        (("show", DEMO, "--formula", FORMULA, "--all"), "--all is for"),
        (("compare", DEMO, "--plan", "5"), "takes no SOURCE"),
        (("compare", DEMO, "--assume", "power=0.9"), "plan: pass --plan"),
        (("validate", DEMO, "--schema"), "takes no SOURCE"),
        (("tasks", "--propose", "a.bddl", "--suite", "fake"), "--propose reads only"),
        (("protocols", "--entries", "a", "b"), "name one entry"),
        (("eval", "--freeze", "f.json", *RUN), "pass --dry-run"),
        (("eval", "--engine", "rayon", *RUN), "local, ray, ray:auto"),
    ],
)
def test_what_does_not_go_together_is_refused(safevla, command, message):
    assert message in safevla.refuses(*command)
