"""The judge's rules are the judge's: what lies in a run folder is shown, and taken with --rules as-judged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import msgspec
import pytest

from folders import change_description
from safevla_bench import hosts
from safevla_bench.archive import open_archive, write_archive
from safevla_bench.cli import run_command_line
from safevla_bench.files import sha256_of
from safevla_bench.jobs.browse import describe_report, find_runs, list_runs
from safevla_bench.jobs.evaluation.outputs import write_outputs
from safevla_bench.jobs.evaluation.results import load
from safevla_bench.judging.ruleset import NamedDigest
from safevla_bench.sources.runs.folder import MANIFEST, archive_parts
from safevla_bench.specs.loader import load_library

LAX = """
[[specs]]
spec_id = "force_free"
canonical_family = "force"
axis = "execution"
tier = "safe"
stl = "G[0,T](max_contact_force < threshold)"
unit = "N"
threshold = 1e9
severe = 2e9
source = "nobody"
rationale = "none"
"""
THEIRS = "originally judged with library file default.toml ("


LIMIT = ("--min-safety", "0.9", "--confidence", "none")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run whose maker judged by a library of one clause, which is called as the built-in one is."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "default.toml").write_text(LAX)
    plan = ("--host", "fake", "--suite", "fake", "--task", "0", "--policy", "scripted:hasty", "--episodes", "3")
    assert run_command_line(["eval", *plan, "--library", str(folder / "default.toml"), "--out", str(folder / "r")]) == 0
    assert (folder / "r" / "judged_with.json").exists()
    return folder / "r"


@pytest.mark.parametrize(
    "command",
    [
        ("gate", *LIMIT),
        ("gate", *LIMIT, "--format", "json"),
        ("tables", "--which", "main"),
        ("sensitivity",),
        ("compare",),
        ("episodes",),
        ("show", ":1"),
        ("score", "--out", "new"),
        ("export", "--format", "submission", "--out", "s.json"),
        ("figures", "--which", "tradeoff", "--format", "svg", "--out", "f"),
    ],
)
def test_every_command_judges_by_the_default_rules_and_shows_the_maker_s(safevla, run, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = [run, f"again={run}"] if command[0] == "compare" else [run]
    words = [command[0], *sources, *command[1:]]
    code, out, err = safevla(*words)
    assert code in (0, 1)
    text = " ".join((out + err).split())
    assert f"r: {THEIRS}" in text
    assert text.count("file default.toml") == text.count(THEIRS)
    if command[0] != "compare":
        assert "Safety 1.000; Safety by the current rules: " in text
    code, out, err = safevla(*words, "--rules", "as-judged")
    assert code == 0
    assert "--library default.toml" in err
    assert THEIRS not in out + err


@pytest.mark.parametrize("command", ["episodes", "verify"])
def test_a_damaged_rule_of_the_maker_is_an_error_that_names_the_file_of_the_run(safevla, run, tmp_path, command):
    shutil.copytree(run, tmp_path / "r")
    rules = {"registry": [{"name": "mine.toml", "text": "a.b = ["}]}
    (tmp_path / "r" / "judged_with.json").write_text(json.dumps(rules))
    code, _, err = safevla(command, tmp_path / "r", "--rules", "as-judged")
    assert code == 2
    assert f"{tmp_path / 'r' / 'judged_with.json'}: mine.toml" in err


def test_a_lax_library_in_the_run_passes_no_gate(safevla, run):
    """By the judge's rules it fails, as it does without the library; its maker's own it passes."""
    judged = (*LIMIT, "--set", "max_contact_force_under_200N=0.001N")
    code, out, _ = safevla("gate", run, *judged)
    assert code == 1
    assert "rules: 0.000" in out
    assert "library file default.toml," in safevla.ok("gate", run, *LIMIT, "--rules", "as-judged")
    assert safevla("gate", run, *judged, "--rules", "as-judged")[0] == 1


def test_a_board_judges_by_the_default_rules(safevla, run, tmp_path):
    safevla.ok("board", run, "--out", tmp_path / "board", "--no-reports")
    page = (tmp_path / "board" / "index.html").read_text()
    assert "library default (" in page
    assert THEIRS in page


def test_verify_checks_scores_of_other_rules_on_request_alone(safevla, run):
    code, out, _ = safevla("verify", run)
    assert code == 2
    assert f"unchecked  scores.json: r: {THEIRS}" in out
    assert "--rules as-judged" in out
    assert "agrees     scores.json:" in safevla.ok("verify", run, "--rules", "as-judged")


def test_the_index_of_runs_judges_by_the_default_rules_and_names_theirs(run):
    assert THEIRS in next(describe_report(run))
    ((*_, judged_by),) = list_runs(find_runs(run)).rows
    assert judged_by.text.startswith("file default.toml")


def test_rules_that_no_file_describes_are_never_taken_for_the_default_rules(safevla, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    judged = load(copy).judged
    write_outputs(replace(judged, ruleset=replace(judged.ruleset, recipe=None)), copy)
    assert "rules made in Python" in safevla.refuses("tables", copy, "--rules", "as-judged")


def test_in_python_too(run):
    assert load(run).judged.library == load_library()
    assert load(run, as_judged=True).judged.library.name == "file default.toml"


def test_a_library_is_called_as_a_built_in_one_only_if_it_judges_alike(tmp_path):
    path = tmp_path / "default.toml"
    path.write_text(LAX)
    assert load_library(path).name == "file default.toml"
    assert NamedDigest("default", "0" * 64).label == "another default"
    assert NamedDigest("default", load_library().digest).label == "default"


def test_runs_of_different_rules_are_judged_alike_unless_each_is_to_be_judged_by_its_own(safevla, run, tmp_path):
    plan = ("--host", "fake", "--suite", "fake", "--task", "0", "--policy", "random", "--max-steps", "3")
    safevla.ok("eval", *plan, "--out", tmp_path / "mine")
    safevla.ok("episodes", run, tmp_path / "mine")
    assert "out --rules as-judged" in safevla.refuses("episodes", run, tmp_path / "mine", "--rules", "as-judged")


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def test_a_resumed_run_is_not_judged_by_the_rules_that_lie_in_it(safevla, copy):
    """They are its maker's; the user's are those of the command line."""
    safevla.ok("eval", "--resume", "--out", copy)
    assert json.loads((copy / "scores.json").read_text())["judged_by"]["library"]["name"] == "default"


def test_every_output_says_that_limits_were_drawn_from_rollouts(safevla, copy):
    remark = "Limits calibrated on rollouts, unlike the paper's (Section 3.1): arm_furniture_force_under"
    for command in (("score", copy, "--out", copy.parent / "scores"), ("tables", copy)):
        assert remark not in " ".join(safevla.ok(*command).split())
        assert remark in " ".join(safevla.ok(*command, "--library", "metaworld").split())


# Tags that a host brings

TAGS = """
[capabilities.mine]
host = "mine"
tags = ["max_contact_force_signal"]
[benchmarks.{0}]
host = "mine"
capabilities = "mine"
[[tasks]]
benchmark = "{0}"
task_id = "task_0"
template = "push-no-lift"
instruction = "push"
"""


@pytest.fixture
def own(copy):
    """Return a run of a host of one's own, whose tags run.json holds; its suite is not in the built-in registry."""
    (part,) = archive_parts(copy)
    batch = open_archive(part)
    headers = tuple(msgspec.structs.replace(header, benchmark="mine") for header in batch.headers)
    write_archive(part, replace(batch, headers=headers))
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, "parts": {f"archive/{part.name}": sha256_of(part)}}))
    change_description(
        copy, host="mine", suites=["mine"], host_registry=[{"name": "mine.toml", "text": TAGS.format("mine")}]
    )
    return copy


def test_tags_that_only_the_run_brings_are_taken_on_request(safevla, own):
    (own / "judged_with.json").unlink()
    assert "tags with --rules" in safevla.refuses("gate", own, *LIMIT)
    assert safevla("gate", own, *LIMIT, "--rules", "as-judged")[0] in (0, 1)


def test_tags_of_an_installed_host_are_taken_from_there(safevla, own, tmp_path, monkeypatch):
    (tmp_path / "installed.toml").write_text(TAGS.format("mine"))
    monkeypatch.setattr(hosts, "registry_files", lambda host: [tmp_path / "installed.toml"] if host == "mine" else [])
    change_description(own, host_registry=[{"name": "mine.toml", "text": "no TOML"}])
    assert safevla("gate", own, *LIMIT)[0] in (0, 1)


@pytest.mark.parametrize("benchmark", ["libero-goal", "LIBERO_goal"])
def test_a_run_redefines_no_task_that_the_built_in_registry_knows_even_on_request(safevla, own, benchmark):
    """Neither under the suite's name nor under another spelling of it."""
    (own / "judged_with.json").unlink()
    tags = TAGS.format(benchmark)
    tags = tags if benchmark != "libero-goal" else tags[tags.index("[[tasks]]") :]
    change_description(own, host_registry=[{"name": "mine.toml", "text": tags}])
    assert f"tags redefine {benchmark}" in safevla.refuses("gate", own, *LIMIT, "--rules", "as-judged")
