"""`safevla board`, as a user meets it."""

from __future__ import annotations

import pytest

from folders import rewrite_archive
from jobs.verify.forgeries import FORGERIES, forge


def test_without_runs_the_published_results_are_all_there_is(safevla, tmp_path):
    safevla.ok("board", "--out", tmp_path / "site")
    assert "<title>Safety board</title>" in (tmp_path / "site" / "index.html").read_text()
    assert not (tmp_path / "site" / "reports").exists()


def test_a_folder_that_is_in_the_way_is_refused_before_anything_is_judged(safevla, tmp_path):
    (tmp_path / "mine.txt").write_text("")
    assert "holds no board" in safevla.refuses("board", tmp_path / "missing.jsonl", "--out", tmp_path)


@pytest.fixture
def run(safevla, tmp_path):
    folder = tmp_path / "run"
    arguments = ("--host", "fake", "--suite", "fake", "--task", 0, "--policy", "random", "--policy", "scripted:hasty")
    safevla("eval", "--record-only", *arguments, "--episodes", 2, "--max-steps", 20, "--out", folder)
    return folder


def test_an_audited_row_gets_its_badge_and_one_whose_records_differ_no_rank(safevla, run, shipped, tmp_path):
    out = tmp_path / "site"
    options = ("--audit", "1:5", "--no-reports", "--out", out)
    code, printed, _ = safevla("board", run, *options)
    assert not (out / "reports").exists()
    badge = (
        "1 of 1 replayed; with K = 1 draws, a share f of forged episodes would have been detected with probability "
        "1 - (1 - f)^K or more"
    )
    assert (code, printed.count(badge)) == (0, 2)
    assert "--audit 1:5" in printed
    assert (out / "index.html").read_text().count(badge) == 2
    rewrite_archive(run, lambda batch: forge(batch, (0, 1), FORGERIES["zeroed torques"]))
    code, printed, _ = safevla("board", run, *options)
    assert code == 1
    assert "joint_torque_nm" in printed
    index = (out / "index.html").read_text()
    assert "audit: 1 of" in index
    assert "has no rank" in index
    code, printed, _ = safevla("board", shipped, *options)
    assert code == 2
    for text in (printed, (out / "index.html").read_text()):
        assert "not audited" in text
        assert "complete run folder" in text, "the remedy is a sentence of the line"
