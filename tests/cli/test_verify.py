"""`safevla verify`: what it prints and its exit codes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from folders import TAGS, change_description, drop_episodes, picture, record_own_loop, reseal


@pytest.fixture
def run(safevla, tmp_path):
    folder = tmp_path / "run"
    safevla("eval", "--host", "fake", "--suite", "fake", "--policy", "noop", "--max-steps", 3, "--out", folder)
    return folder


def test_a_run_that_agrees_exits_0_and_says_so_at_the_end(safevla, run):
    lines = safevla.ok("verify", run, "--replay", 1).splitlines()
    assert lines[0].startswith("Everything")
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
    assert "safevla score" not in safevla("verify", run)[1], "the records differ, so that scoring again is no remedy"


def test_if_only_scores_differ_the_next_step_writes_them_again(safevla, run):
    (run / "scores.json").write_text((run / "scores.json").read_text() + "\n")
    assert "write the scores again: safevla score" in safevla("verify", run)[1]


def test_what_cannot_be_read_exits_2(safevla, tmp_path):
    assert "not a run" in safevla.refuses("verify", tmp_path)


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
    assert "1 planned episode" in (tmp_path / "board" / "index.html").read_text()


@pytest.fixture
def own(safevla, tmp_path):
    """A user's own loop, judged by the rules in a file."""
    (tmp_path / "tags.toml").write_text(TAGS)
    folder = record_own_loop(tmp_path / "own")
    safevla.ok("score", folder, "--rules", tmp_path / "tags.toml")
    return folder


def verify_as_judged(safevla, run):
    """Return exit code and check -> verdict, by the run's own rules."""
    code, out, _ = safevla("verify", run, "--rules", "as-judged", "--format", "json")
    return code, {finding["check"]: finding["verdict"] for finding in json.loads(out)["findings"]}


def test_an_untouched_run_judged_by_other_rules_is_unchecked_and_the_next_step_names_them(safevla, own):
    code, out, _ = safevla("verify", own)
    assert (code, "differs" in out) == (2, False)
    *_, next_step = out.splitlines()
    assert next_step.endswith(f": safevla verify {own} --rules as-judged")
    assert safevla("verify", own, "--library", "paper-text")[0] == 2


def test_tags_that_a_host_brought_which_is_not_here_are_those_of_the_run(safevla, own):
    """As a colleague without that host sees the run."""
    (own / "judged_with.json").unlink()
    change_description(own, host_registry=[{"name": "tags.toml", "text": TAGS}])
    safevla.ok("score", own, "--rules", "as-judged")
    (own / "judged_with.json").unlink(missing_ok=True)
    code, out, _ = safevla("verify", own)
    assert (code, "differs" in out, "--rules as-judged" in out) == (2, False, True)
    assert verify_as_judged(safevla, own)[0] == 0


def test_a_loop_of_ones_own_can_be_verified_completely(safevla, own):
    code, verdicts = verify_as_judged(safevla, own)
    assert code == 0
    assert verdicts["judged archive"] == verdicts["scores.json"] == verdicts["report.html"] == "agrees"
    assert verdicts["archive parts"] == "unchecked"
    assert "--replay" not in safevla.ok("verify", own, "--rules", "as-judged").splitlines()[-1], "it has no host"
    code, out, _ = safevla("verify", own, "--rules", "as-judged", "--replay", 1)
    assert (code, "names no host" in out) == (2, True)


def test_pictures_of_a_loop_of_ones_own_are_not_covered_unless_the_report_holds_them(safevla, own):
    picture(own)
    safevla.ok("score", own, "--rules", "as-judged")
    code, verdicts = verify_as_judged(safevla, own)
    assert (code, verdicts["pictures"], verdicts["report.html"]) == (0, "unchecked", "agrees")
    (own / "frames" / "a.png").unlink()
    assert verify_as_judged(safevla, own)[1]["report.html"] == "differs"


def test_episodes_that_were_added_after_the_scores_are_noticed_and_the_same_rules_judge_them(safevla, own, tmp_path):
    record_own_loop(own, range(3, 5))
    code, out, _ = safevla("verify", own, "--rules", "as-judged")
    assert code == 1
    assert "archive gives 5" in out
    assert "manifest.json: cannot be" not in out
    assert out.splitlines()[-1].endswith(f": safevla score {own} --rules as-judged")
    _, _, err = safevla("open", own, "--no-browser")
    assert "to update the report: safevla score" in err
    assert f"{own} --rules as-judged" in err
    safevla.ok("score", own, "--rules", tmp_path / "tags.toml")
    assert not (own / "experiments").exists(), "the same rules are not an experiment"
    assert "update the report" not in safevla("open", own, "--no-browser")[2]
    scores = own / "scores.json"
    written = scores.read_bytes()
    scores.write_text(json.dumps({name: value for name, value in json.loads(written).items() if name != "sources"}))
    assert "update the report" not in safevla("open", own, "--no-browser")[2], "they do not say what they judged"
    scores.write_bytes(written)
    assert verify_as_judged(safevla, own)[0] == 0


def test_raw_records_that_changed_since_they_were_judged_are_noticed(safevla, own):
    with np.load(own / "raw" / "000001.npz") as arrays:
        np.savez(own / "raw" / "000001.npz", **arrays)
    assert verify_as_judged(safevla, own)[1]["judged archive"] == "differs"


@pytest.mark.parametrize("command", [["verify"], ["merge", "--out", "new"], ["frames"], ["score", "--out", "new"]])
def test_a_folder_that_is_none_or_holds_no_run_is_named_alike_by_all(safevla, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    name, *options = command
    assert "nowhere: there is" in safevla.refuses(name, "nowhere", *options)
    message = safevla.refuses(name, "empty", *options)
    assert ("not a run" in message, "holds run.json" in message) == (True, True)


def test_pictures_of_a_run_judged_by_other_rules_are_followed_by_the_command_with_these(safevla, run):
    safevla.ok("score", run, "--library", "paper-text", "--out", run)
    assert safevla.ok("frames", run).splitlines()[-1] == f"Next: safevla score {run} --rules as-judged"


def test_a_run_without_a_report_is_to_be_judged_next(safevla, tmp_path):
    folder = tmp_path / "run"
    plan = ("--host", "fake", "--suite", "fake", "--episodes", 1, "--policy", "noop")
    safevla("eval", *plan, "--record-only", "--out", folder)
    _, out, _ = safevla("verify", folder, "--replay", 1)
    assert out.splitlines()[-1].startswith("Next: safevla score ")
    safevla.ok("score", folder)
    _, out, _ = safevla("verify", folder, "--replay", 1)
    assert out.splitlines()[-1].startswith("Next: safevla open ")
