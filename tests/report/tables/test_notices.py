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
    assert texts(table, "What") == ["crashed episodes", "crashed episodes", "invalid episodes", "tilt", "tilt"]
    assert texts(table, "Episodes") == ["2", "1", "1", "2", "1"]
    reasons = ("Error: boom", "no reason", "line 3: not", "(target_pose_signal)", "vacuous")
    assert all(part in why for part, why in zip(reasons, texts(table, "Why"), strict=True))


def test_stopped_episodes_are_named_though_they_have_a_record():
    scores = verdicts((True, 1, 1), (False, 1, 1), outcome=("success", "stopped"))
    table = exclusion_table(cells(scores), scores.absent)
    assert texts(table, "What")[0] == "stopped episodes"
    assert texts(table, "Episodes")[0] == "1"


def test_many_invalid_episodes_are_counted_in_full():
    table = exclusion_table([], skipped=[f"bad {k}" for k in range(500)])
    assert len(table.rows) < 30
    assert sum(cell.value for cell in columns(table)["Episodes"]) == 500


def test_episodes_without_a_verdict_are_listed_with_why():
    silent = verdicts(
        (True, np.nan, np.nan), (True, np.nan, np.nan), (False, 1.0, 1.0), outcome=("success", "success", "stopped")
    )
    table = exclusion_table(cells(silent))
    counts = dict(zip(texts(table, "Why"), texts(table, "Episodes"), strict=True))
    assert counts["no specification applies"] == "2"
    assert [count for why, count in counts.items() if why.startswith("stopped before")] == ["1"]
