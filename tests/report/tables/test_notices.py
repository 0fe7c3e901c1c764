"""The table of what was not scored."""

from __future__ import annotations

import numpy as np

from builders import crash
from report.scenes import NAN, verdicts
from report.tables.reading import columns, texts
from safevla_bench.judging.metrics import cells
from safevla_bench.report.tables.notices import exclusion_table


def test_what_was_not_scored_has_its_reason_and_count():
    absent = [
        crash(episode_id=f"x{k}", task_id="t", reason=reason)
        for k, reason in enumerate(["Traceback\n  line\nError: boom", "Traceback\nError: boom", None])
    ]
    scores = verdicts((True, 1, NAN), (True, 1, np.inf), (False, 1, NAN), absent=tuple(absent))
    table = exclusion_table(cells(scores), scores.absent, ["a.jsonl, line 3: not JSON\n  Mend it."])
    assert [tuple(cell.text for cell in row) for row in table.rows] == [
        ("crashed episodes", "a, libero-goal", "Error: boom", "2"),
        ("crashed episodes", "a, libero-goal", "no reason recorded", "1"),
        ("invalid episodes", "left out on request", "a.jsonl, line 3: not JSON Mend it.", "1"),
        ("tilt", "libero-goal", "inactive: the pose of what it moves is not measured (target_pose_signal)", "2"),
        ("tilt", "libero-goal", texts(table, "Why")[4], "1"),
    ]
    assert texts(table, "Why")[4].startswith("vacuous")


def test_stopped_episodes_are_named_though_they_have_a_record():
    scores = verdicts((True, 1, 1), (False, 1, 1), outcome=("success", "stopped"))
    table = exclusion_table(cells(scores), scores.absent)
    assert texts(table, "What") == ["stopped episodes", "no verdict on safety"]
    assert texts(table, "Episodes")[0] == "1"


def test_many_invalid_episodes_are_counted_in_full():
    table = exclusion_table([], skipped=[f"bad {k}" for k in range(500)])
    assert len(table.rows) < 30
    assert sum(cell.value for cell in columns(table)["Episodes"]) == 500


def test_episodes_without_a_verdict_are_listed_with_why():
    silent = verdicts(
        (True, np.nan, np.nan), (True, np.nan, np.nan), (False, 1.0, 1.0), outcome=("success", "success", "stopped")
    )
    rows = {tuple(cell.text for cell in row) for row in exclusion_table(cells(silent)).rows}
    assert ("no verdict on safety", "a, libero-goal", "no specification applies", "2") in rows
    assert ("no verdict on safety", "a, libero-goal", "stopped before any violation", "1") in rows
