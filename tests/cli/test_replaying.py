"""Commands: replays tell how far they went, stopping is counted, results of others are read as far as they go."""

from __future__ import annotations

import json

import pytest

FAKE = ["--host", "fake", "--suite", "fake", "--task", "0", "--episodes", 2, "--max-steps", 8]


@pytest.fixture
def recorded(safevla, tmp_path):
    safevla.ok("eval", "--record-only", *FAKE, "--policy", "random", "--out", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
def test_a_replay_prints_what_was_played_and_how_far_it_went(safevla, tmp_path, recorded, mode):
    out = safevla.ok("eval", *mode, *FAKE, "--policy", f"replay:{recorded}", "--out", tmp_path / "again")
    assert "Replays" in out
    assert out.count("every bit") == 2
    assert "initial state" in out


def test_a_recording_that_does_not_fit_is_a_mistake_and_leaves_no_folder(safevla, tmp_path, recorded):
    arguments = ["--host", "fake", "--suite", "fake", "--task", "1", "--policy", f"replay:{recorded}"]
    code, _, err = safevla("eval", *arguments, "--out", tmp_path / "again")
    assert (code, (tmp_path / "again").exists()) == (2, False)
    assert "holds the episodes fake/task_0 0" in err


def test_a_dry_run_of_a_replay_plans_its_recorded_length(safevla, recorded):
    arguments = ["--host", "fake", "--suite", "fake", "--task", "0", "--episodes", 2, "--policy", f"replay:{recorded}"]
    assert "at most 16" in safevla.ok("eval", "--record-only", *arguments, "--dry-run")


def test_stopped_episodes_are_counted_and_a_run_goes_on_by_the_same_rule(safevla, tmp_path):
    arguments = [*FAKE, "--policy", "noop", "--stop-on-violation"]
    out = safevla.ok("eval", *arguments, "--out", tmp_path / "run")
    assert "0 episodes" in out
    rule = json.loads((tmp_path / "run" / "run.json").read_text())["stop_on_violation"]
    assert rule["library"] == "default"
    safevla.ok("eval", "--resume", "--out", tmp_path / "run")
    assert "stop_on_violation.library" in safevla.refuses(
        "eval", "--resume", "--library", "paper-text", "--out", tmp_path / "run"
    )


def test_results_of_others_are_printed_as_rates_and_what_was_not_recorded(safevla, tmp_path):
    tasks = [{"task_group": "libero_goal", "task_id": 3, "metrics": {"successes": [True, False]}}]
    file = tmp_path / "eval_info.json"
    file.write_text(json.dumps({"per_task": tasks}))
    out = safevla.ok("score", file)
    assert "50.0" in out
    assert "not recorded" in out
    (table,) = safevla.json("score", file)
    assert [cell["value"] for cell in table["rows"][0][-3:]] == [None, None, None]
    assert "nothing to judge" in safevla.refuses("score", file, "--out", tmp_path / "scored")
    for command in (("episodes", file), ("convert", file, tmp_path / "a.parquet"), ("tables", file)):
        assert "prints the success" in safevla.refuses(*command)
