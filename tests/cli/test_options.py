"""A config file can say what the command line can, and what it gets wrong is named with the nearest right thing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from safevla_bench.cli import run_options as config
from safevla_bench.cli.options import Range, quote_paths
from safevla_bench.cli.rollout import eval_command
from safevla_bench.cli.rules import parse_changes, sort_rules
from safevla_bench.errors import RunError

EXAMPLE = Path(__file__).parents[2] / "examples" / "eval.toml"
RUN = 'host = "fake"\nsuite = "fake"\nmax-steps = 4\npolicy = ["noop", "random"]\ntask = "0"\n'


def file_options():
    running, judging = config.config_keys(eval_command)
    yield from (("", option) for option in running.values())
    yield from (("[judge]\n", option) for option in judging.values())


def sample(option: click.Option) -> tuple[str, list[str]]:
    """A value that is not the default: as TOML, and as it is typed."""
    name = f"--{config.option_key(option)}"
    if option.is_flag:
        return "true", [name]
    if text := {"tasks": "0-2", "shard": "1/2", "host_arguments": "a=b"}.get(str(option.name)):
        return f'"{text}"', [name, text]
    if isinstance(option.type, click.types.IntParamType):
        return "3", [name, "3"]
    if isinstance(option.type, click.types.FloatParamType):
        return "0.25", [name, "0.25"]
    if isinstance(option.type, click.Choice):
        return f'"{option.type.choices[-1]}"', [name, str(option.type.choices[-1])]
    if isinstance(option.type, click.Path) or option.name == "library":
        return '"/some/x.toml"', [name, "/some/x.toml"]
    return ('["a", "b"]', [name, "a", name, "b"]) if option.multiple else ('"a"', [name, "a"])


@pytest.mark.parametrize(("table", "option"), list(file_options()), ids=lambda value: getattr(value, "name", value))
def test_every_option_can_be_set_in_a_file_with_the_same_effect(tmp_path, table, option):
    value, typed = sample(option)
    path = tmp_path / "config.toml"
    path.write_text(f"{table}{config.option_key(option)} = {value}\n")
    from_file, from_line, default = (
        eval_command.make_context("eval", words).params for words in (["--config", str(path)], typed, [])
    )
    assert from_file == from_line
    assert from_file[option.name] != default[option.name]


def test_no_option_is_left_out_but_the_file_itself_and_what_a_file_may_not_say():
    running, judging = config.config_keys(eval_command)
    options = {option.name for option in (*running.values(), *judging.values())}
    assert {option.name for option in eval_command.params} - options == {"config", "trusted", "help_all"}


def test_a_file_runs_as_the_command_line_does_and_what_is_only_recorded_takes_it_too(safevla, tmp_path):
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "eval.toml"
    path.write_text(f'\ufeff{RUN}out = "run"\n[judge]\nlibrary = "paper-text"\n')
    safevla.ok("eval", "--config", path)
    out = tmp_path / "mine" / "run"  # beside the file
    description = json.loads((out / "run.json").read_text())
    assert [policy["policy"] for policy in description["policies"]] == ["noop", "random"]
    assert json.loads((out / "scores.json").read_text())["judged_by"]["library"]["name"] == "paper-text"
    options = ("--policy", "noop", "--seed", 5, "--out", tmp_path / "run")
    safevla.ok("eval", "--record-only", "--config", path, *options)
    description = json.loads((tmp_path / "run" / "run.json").read_text())
    assert ([policy["policy"] for policy in description["policies"]], description["seed"]) == (["noop"], 5)
    assert not (tmp_path / "run" / "scores.json").exists()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("max_steps = 3", "field max_steps:"),
        ("[judge]\nlibary = 'x'", "judge.library"),
        ("library = 'default'", "field library:"),
        ("nonsense = 1", "host, host-arg, suite"),
        ("episodes = 'two'", "'two' is not"),
        ("episodes = true", "'True' is not"),
        ("episodes = 0", "0 is not"),
        ("resume = 'often'", "field resume: 'often'"),
        ("judge = 1", "field judge.:"),
        ("host = ", "cannot be read"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(safevla, tmp_path, text, names):
    path = tmp_path / "eval.toml"
    path.write_text(text)
    err = safevla.refuses("eval", "--config", path, "--out", tmp_path / "run")
    assert str(path) in err
    assert names in err
    assert not (tmp_path / "run").exists()


def test_a_missing_file_is_named(safevla, tmp_path):
    assert "absent.toml" in safevla.refuses("eval", "--config", tmp_path / "absent.toml")


def test_the_example_holds_only_what_is_known_and_says_how_it_is_run():
    context = click.Context(eval_command)
    assert config.read_config(EXAMPLE, context)["suites"] == tomllib.loads(EXAMPLE.read_text())["suite"]
    assert re.search(r"safevla eval --config examples/eval\.toml", EXAMPLE.read_text())


@pytest.mark.parametrize(
    ("name", "text", "holds_tasks"),
    [
        ("a.toml", "[[specs]]\nspec_id = 'a'", False),
        ("a.toml", "[[limits]]\nspec_id = 'a'", False),
        ("a.toml", "[tags.task]\nwet = 'is wet'\n[[specs]]\nspec_id = 'a'", False),
        ("a.toml", "[[tasks]]\nbenchmark = 'a'", True),
        ("a.toml", "[benchmarks.a]\nhost = 'fake'", True),
        ("a.toml", "[goal_bodies.a]", True),
        ("a.json", '[{"spec_id": "a"}]', False),
        ("a.json", '[{"benchmark": "a", "task_id": "b"}]', True),
        ("a.jsonl", '{"benchmark": "a", "task_id": "b"}\n{"benchmark": "a", "task_id": "c"}\n', True),
        ("a.toml", "not TOML", False),
        ("a.json", "", False),
    ],
)
def test_a_file_of_rules_holds_specifications_or_tasks(tmp_path, name, text, holds_tasks):
    path = tmp_path / name
    path.write_text(text)
    assert sort_rules([Path("as-judged"), path]) == (((), (path,)) if holds_tasks else ((path,), ()))


def test_set_takes_settings_and_thresholds():
    texts = ["joint_torque=1.5", "missing=deactivate", "capabilities=a", "capabilities=b", "intervals=paper"]
    assert parse_changes(texts) == {
        "thresholds": ["joint_torque=1.5"],
        "missing": "deactivate",
        "capabilities": ["a", "b"],
        "intervals": "paper",
    }
    with pytest.raises(RunError, match=r"missing=error or missing=deactivate"):
        parse_changes(["missing=never"])


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.1", "one"])
def test_a_number_outside_its_range_is_refused(value):
    with pytest.raises(click.BadParameter):
        Range(0, 1).convert(value, None, None)


@pytest.mark.long
@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_example_runs_on_libero_with_its_two_workers(safevla, tmp_path):
    arguments = ["--task", "0", "--episodes", 1, "--policy", "scripted:careful", "--out", tmp_path / "run"]
    safevla.ok("eval", "--config", EXAMPLE, *arguments, "--max-steps", 20)
    cells = json.loads((tmp_path / "run" / "scores.json").read_text())["cells"]
    assert [(cell["policy"], cell["n"]) for cell in cells] == [("scripted:careful", 1)] * 2


@pytest.mark.parametrize("name", ["plain", "two words", "it's", b"a\xffb c'\\d/e", "é".encode("latin-1")])
def test_a_command_for_a_folder_of_any_name_names_that_folder_in_bash(name):
    """Bytes that are not UTF-8 would be printed as an escape that the shell does not read."""
    quoted = quote_paths(Path(os.fsdecode(name)), "x y")
    quoted.encode()
    said = subprocess.run(["bash", "-c", f"printf '%s|' {quoted}"], stdout=subprocess.PIPE, check=True).stdout
    assert said == os.fsencode(name) + b"|x y|"
