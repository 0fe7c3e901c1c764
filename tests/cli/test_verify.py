"""`safevla verify`: what it prints and its exit codes."""

from __future__ import annotations

import json
import re

import pytest

from folders import change_description, drop_episodes, reseal


@pytest.fixture
def run(safevla, tmp_path):
    folder = tmp_path / "run"
    safevla("eval", "--host", "fake", "--suite", "fake", "--policy", "noop", "--max-steps", 3, "--out", folder)
    return folder


def test_a_run_that_agrees_exits_0_and_says_so_at_the_end(safevla, run):
    lines = safevla.ok("verify", run, "--replay", 1).splitlines()
    assert lines[0].startswith("Everything that was checked agrees.")
    assert lines[-1] == f"Next: safevla open {run}"
    assert safevla.ok("verify", run).splitlines()[-1].endswith(f": safevla verify {run} --replay 3")
    out = safevla.ok("verify", run, "--audit", 1)
    part = re.findall(r"--audit (\d+:\d+)", out)[-1]
    assert safevla.ok("verify", run, "--audit", part) == out
    assert safevla.ok("verify", run, "--audit", 1) != out, "another number is drawn"


def test_a_run_that_differs_exits_1_and_json_says_where(safevla, run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["parts"]["\x1b[2Jarchive"] = "0"
    (run / "manifest.json").write_text(json.dumps(manifest))
    code, out, _ = safevla("verify", run)
    assert (code, "\x1b" in out) == (1, False)
    (run / "manifest.json").unlink()
    code, out, _ = safevla("verify", run, "--format", "json")
    document = json.loads(out)
    assert (code, document["agrees"]) == (1, False)
    differing = [finding["check"] for finding in document["findings"] if finding["verdict"] == "differs"]
    assert differing == ["archive parts"]


def test_what_cannot_be_read_exits_2(safevla, tmp_path):
    assert "not a run folder" in safevla.refuses("verify", tmp_path)


def test_a_replay_that_was_asked_for_and_cannot_be_made_exits_2(safevla, run):
    change_description(run, host="elsewhere")
    reseal(run)
    safevla("score", run, "--out", run)
    code, out, _ = safevla("verify", run, "--replay", 1)
    assert code == 2
    assert "could not be" in out.splitlines()[0]
    safevla.ok("verify", run)


def test_a_run_without_some_planned_episodes_passes_nothing(safevla, tmp_path):
    run = tmp_path / "dropped"
    plan = "--host fake --suite fake --task 0 --episodes 3 --policy noop --max-steps 3"
    safevla("eval", "--record-only", *plan.split(), "--out", run)
    drop_episodes(run, {"noop/fake/task_0/ep_001"})
    safevla.ok("score", run, "--out", run)
    assert safevla("verify", run)[0] == 1
    assert safevla("gate", run, "--min-safety", 0)[0] == 3
    safevla.ok("gate", run, "--min-safety", 0, "--allow-crashed")
    safevla.ok("export", run, "--format", "submission", "--out", tmp_path / "submission.json")
    assert json.loads((tmp_path / "submission.json").read_bytes())["complete"] is False
    safevla.ok("board", run, "--out", tmp_path / "board")
    assert "1 planned episode missing from the run" in (tmp_path / "board" / "index.html").read_text()
