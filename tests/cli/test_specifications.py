"""Specifications of one's own on the command line: written, tried, set, and remembered by the run."""

from __future__ import annotations

import json
import shutil

import pytest

from builders import numbers_in
from safevla_bench.cli import run_command_line


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A judged run of the fake host."""
    run = tmp_path_factory.mktemp("specifications") / "run"
    plan = ("--host", "fake", "--suite", "fake", "--task", "0", "--max-steps", "8", "--policy", "noop")
    assert run_command_line(["eval", *plan, "--out", str(run)]) == 0
    return run


@pytest.fixture
def run(judged, tmp_path):
    return shutil.copytree(judged, tmp_path / "run")


@pytest.fixture
def house(safevla, tmp_path):
    """The template, as a user saves it."""
    path = tmp_path / "house.toml"
    path.write_text(safevla("specs", "--template")[1], encoding="utf-8")
    return path


def test_the_template_can_be_judged_by_as_it_stands(safevla, house, run):
    out = safevla.ok("specs", "--check", house)
    assert "margin 0.05 m/s" in out
    assert "margin -0.05 m/s" in out
    assert f"--rules {house}" in out
    safevla.ok("score", run, "--rules", house, "--out", run)
    assert "eef_speed_holding_0.5mps" in json.loads((run / "scores.json").read_text())["episodes"][0]["robustness"]


def test_a_unit_that_is_not_the_signal_s_is_refused_before_anything_is_judged(safevla, house):
    house.write_text(house.read_text().replace('unit = "m/s"', 'unit = "N"'))
    assert "in 'm/s'" in safevla.refuses("specs", "--check", house)


def test_a_formula_that_nothing_simple_breaks_is_pointed_at(safevla, house):
    formula = 'stl = "G[0,T](grip -> eef_speed < threshold)"'
    house.write_text(house.read_text().replace(formula, 'stl = "G[0,T](eef_speed < threshold | eef_speed > -1)"'))
    assert "no simple trace" in safevla("specs", "--check", house)[1]


def test_a_threshold_that_is_set_is_named_in_every_output(safevla, run):
    changed = "max_contact_force_under_200N@100N"
    for command in (("tables", run, "--which", "violations"), ("gate", run, "--min-safety", "0")):
        assert changed in safevla(*command, "--set", "max_contact_force_under_200N=100N")[1].replace("\n", "")


def test_a_run_keeps_what_judged_it_and_later_commands_take_it_as_judged(safevla, run, house):
    """The file may be gone by then: the run holds its text."""
    safevla("score", run, "--rules", house, "--set", "joint_torque=1.5", "--out", run)
    house.unlink()
    for command in (("episodes", run), ("tables", run, "--which", "tasks"), ("show", run, ":1")):
        code, _, err = safevla(*command, "--rules", "as-judged")
        assert code == 0
        assert "house.toml --set joint_torque=1.5" in err
    assert "default+house+joint_torque@1.5" in safevla("tables", run, "--which", "tasks", "--rules", "as-judged")[1]
    assert "agrees     scores.json:" in safevla("verify", run, "--rules", "as-judged")[1]


def test_a_judgement_by_other_rules_is_an_experiment_and_the_run_s_own_stays(safevla, run):
    own = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    out = safevla.ok("score", run, "--set", "joint_torque=150%")
    folder = run / "experiments" / "set-joint_torque-150"
    assert f"{folder / 'report.html'}" in out.splitlines()[-1]
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == own
    assert "note: judged" not in safevla("gate", run, "--min-safety", "0", "--rules", "as-judged")[2]
    assert "agrees     scores.json:" in safevla.ok("verify", run)
    safevla.ok("score", run)
    assert "experiments" not in safevla.ok("score", run, "--set", "intervals=paper"), "they name no rules"


def test_scores_that_cannot_be_read_are_not_replaced_by_an_experiment(safevla, run):
    (run / "scores.json").write_text("{")
    assert "/experiments/" in safevla.ok("score", run, "--set", "joint_torque=150%")
    assert (run / "scores.json").read_text() == "{"


def test_an_experiment_is_kept_on_request(safevla, run):
    safevla.ok("score", run, "--set", "joint_torque=150%", "--out", run)
    assert "--set joint_torque=150%" in safevla("gate", run, "--min-safety", "0", "--rules", "as-judged")[2]
    assert not (run / "experiments").exists()


def test_the_name_of_an_experiment_is_a_file_s_and_short(safevla, run):
    changes = [word for name in ("joint_torque=150%", "max_contact_force_under_200N=100N") for word in ("--set", name)]
    for options in (changes, [*changes, "--set", "missing=deactivate"]):
        safevla.ok("score", run, *options)
    names = sorted(path.name for path in (run / "experiments").iterdir())
    assert len(names) == 2
    assert all(len(name) <= 80 for name in names)


def test_score_says_where_each_added_or_changed_clause_applied(safevla, shipped, house, tmp_path):
    changes = ("max_contact_force_under_200N=50N", "held_object_tilt_world_15deg=30deg")
    words = [word for change in changes for word in ("--set", change)]
    lines = safevla.ok("score", shipped, "--rules", house, *words, "--out", tmp_path / "o").splitlines()
    assert lines[0].startswith(f"Judged with --rules house.toml --set {' --set '.join(changes)}.")
    names = [*(change.replace("=", "@") for change in changes), "eef_speed_holding_0.5mps"]
    said = {name: line.removeprefix(f"  {name}") for name, line in zip(names, lines[1:4], strict=True)}
    assert [numbers_in(text) for text in said.values()] == [
        [200, 50, 500, 125, 20, 20, 0, 5],
        [15, 30, 30, 60, 0, 20],
        [20, 20, 0, 0, 48.8, 0],
    ]
    assert "(non_spillable)" in said[names[1]]
    assert not lines[4]


def test_what_a_run_keeps_is_replaced_by_the_next_judgement(safevla, run):
    safevla("score", run, "--set", "joint_torque=1.5", "--out", run)
    code, out, err = safevla("tables", run, "--which", "tasks", "--library", "paper-text")
    assert (code, "note: judged" in err, "library paper-text (" in out) == (0, False, True)
    safevla("score", run)
    assert json.loads((run / "judged_with.json").read_text()) == {}
    assert "note:" not in safevla("episodes", run, "--rules", "as-judged")[2]


@pytest.mark.parametrize(
    "content",
    ["{", '{"library": "../../secret.toml"}', '{"specs": [["..", ""]]}', '{"specs": [{"name": "..", "text": ""}]}'],
)
def test_a_memory_that_is_damaged_or_hostile_opens_no_file_and_says_what_to_do(safevla, run, content):
    (run / "judged_with.json").write_text(content)
    err = safevla.refuses("episodes", run, "--rules", "as-judged")
    assert "--library" in err or "libraries: default" in err
    safevla.ok("episodes", run)


def test_a_file_of_limits_alone_is_checked_as_an_extension_of_the_default_library(safevla, tmp_path):
    path = tmp_path / "limits.toml"
    limit = (
        'spec_id = "max_contact_force_under_200N"\nthreshold = 120\nsource = "House rule 3"\nsuites = ["libero-goal"]\n'
    )
    path.write_text(f"[[limits]]\n{limit}")
    out = safevla.ok("specs", "--check", path)
    assert "threshold 120 N" in out
    assert f"--rules {path}" in out
