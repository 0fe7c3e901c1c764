"""Tables: which counts stand where, and dashes that never stand for zero."""

from __future__ import annotations

import numpy as np

from report.scenes import NAN, joined, verdicts
from safevla_bench.metrics import aggregate, cells
from safevla_bench.report.tables import Table, main, unscored, violations
from safevla_bench.scores import Absent
from safevla_bench.text.numbers import NONE


def column(table: Table, name: str) -> list[str]:
    k = [one.name for one in table.columns].index(name)
    return [row[k].text for row in table.rows]


def test_headline_numbers_are_the_counts_in_percent():
    scores = verdicts((True, 1, 1), (True, -50, 1), (False, 1, 1), (False, -500, 1))
    table = main(cells(scores), aggregate(scores))
    assert [column(table, name) for name in ("n", "SR %", "Safety %", "SBU %", "P[U|S] %")] == [
        ["4"],
        ["50.0"],
        ["50.0"],
        ["25.0"],
        ["50.0"],
    ]
    assert column(table, "VSI") == ["0.275"]  # (0.1 + 1.0) / 4
    assert column(table, "VSI|U") == ["0.550"]


def test_each_value_has_its_interval_below_it():
    (row,) = main(cells(verdicts(*[(True, 1, 1)] * 167, *[(False, 1, 1)] * 33))).rows
    assert row[3].text == "83.5"
    assert row[3].detail == "77.7–88.0"


def test_without_a_success_the_conditional_rate_is_a_dash_with_its_reason():
    (row,) = main(cells(verdicts((False, -5, 1), (False, 1, 1)))).rows
    assert (row[6].text, row[6].detail) == (NONE, "no success")


def test_without_an_unsafe_episode_the_conditional_severity_is_a_dash():
    (row,) = main(cells(verdicts((True, 1, 1)))).rows
    assert (row[5].text, row[8].text, row[8].detail) == ("0.0", NONE, "none unsafe")


def test_one_episode_has_no_bootstrap_interval():
    (row,) = main(cells(verdicts((True, -50, 1)))).rows
    assert row[7].detail == "one episode"


def test_several_cells_are_followed_by_all_pooled():
    scores = joined(verdicts((True, 1, 1)), verdicts((False, -1, 1), (True, 1, 1), policy="b"))
    table = main(cells(scores), aggregate(scores))
    assert column(table, "Policy") == ["a", "b", "All, pooled"]
    assert column(table, "n") == ["1", "2", "3"]


def test_lost_episodes_have_a_column_only_where_there_are_any():
    gone = Absent(episode_id="x", benchmark="libero-goal", task_id="t", policy="a", outcome="crashed")
    assert "Crashed" not in [one.name for one in main(cells(verdicts((True, 1, 1)))).columns]
    table = main(cells(verdicts((True, 1, 1), absent=(gone,))))
    assert column(table, "Crashed") == ["1"]
    assert column(table, "n") == ["1"]


def test_a_cell_of_crashes_alone_has_dashes_everywhere():
    gone = Absent(episode_id="x", benchmark="libero-goal", task_id="t", policy="a", outcome="crashed")
    (row,) = main(cells(verdicts(absent=(gone,)))).rows
    assert [cell.text for cell in row] == ["a", "libero-goal", "0", *[NONE] * 6, "1"]


def test_a_cell_in_which_nothing_reached_a_verdict_is_not_safe_but_unknown():
    table = main(cells(verdicts((True, NAN, NAN), (False, NAN, np.inf))))
    assert column(table, "SR %") == ["50.0"]
    for name in ("Safety %", "SBU %", "P[U|S] %", "VSI", "VSI|U"):
        assert column(table, name) == [NONE]
    assert {cell.detail for cell in table.rows[0]} >= {"no verdict"}


def test_privileged_policies_are_marked():
    rows = main(cells(joined(verdicts((True, 1, 1)), verdicts((True, 1, 1), policy="b"))), privileged={"b"}).rows
    assert [row[0].detail for row in rows] == ["", "privileged state"]


def test_violations_are_counted_over_all_and_over_active_episodes():
    table = violations(cells(verdicts((True, -5, -1), (False, 1, NAN), (True, 1, NAN), (True, 1, np.inf))))
    assert column(table, "Specification") == ["force", "tilt"]
    assert column(table, "Violated") == ["1/4", "1/4"]
    assert column(table, "of active") == ["1/4", "1/2"]
    assert column(table, "in successes") == ["1", "1"]
    assert column(table, "Vacuous") == ["0", "1"]
    assert column(table, "Inactive") == ["0", "2"]


def test_a_specification_inactive_everywhere_is_a_dash_and_never_zero():
    table = violations(cells(verdicts((True, 1, NAN), (True, 1, NAN))))
    tilt = table.rows[1]
    assert [cell.text for cell in tilt] == ["tilt", *[NONE] * 5, "0", "2"]
    assert tilt[1].detail == "inactive"
    assert all(cell.value is None for cell in tilt[1:6])
    assert table.rows[0][1].text == "0/2"


def test_a_specification_vacuous_everywhere_is_a_dash_too():
    tilt = violations(cells(verdicts((True, 1, np.inf)))).rows[1]
    assert (tilt[1].text, tilt[1].detail) == (NONE, "vacuous")


def test_diagnostics_have_a_table_of_their_own():
    found = cells(verdicts((True, 1, 1)))
    assert column(violations(found, scored=False), "Specification") == ["speed"]


def test_dashes_are_explained_where_there_are_any():
    assert not any(NONE in note for note in main(cells(verdicts((True, -1, 1)))).notes)
    assert any(NONE in note for note in main(cells(verdicts((True, 1, 1)))).notes)


def test_what_was_not_scored_has_its_reason_and_count():
    gone = [
        Absent(episode_id=f"x{k}", benchmark="libero-goal", task_id="t", policy="a", outcome="crashed", reason=reason)
        for k, reason in enumerate(["Traceback\n  line\nError: boom", "Traceback\nError: boom", None])
    ]
    scores = verdicts((True, 1, NAN), (True, 1, np.inf), (False, 1, NAN), absent=tuple(gone))
    table = unscored(cells(scores), scores.absent, ["a.jsonl, line 3: not JSON\n  Mend it."])
    assert [tuple(cell.text for cell in row) for row in table.rows] == [
        ("crashed episodes", "a, libero-goal", "Error: boom", "2"),
        ("crashed episodes", "a, libero-goal", "no reason recorded", "1"),
        ("invalid episode", "left out on request", "a.jsonl, line 3: not JSON Mend it.", "1"),
        ("tilt", "libero-goal", "inactive: needs target_pose_signal", "2"),
        ("tilt", "libero-goal", table.rows[4][2].text, "1"),
    ]
    assert table.rows[4][2].text.startswith("vacuous")


def test_stopped_episodes_are_named_though_they_have_a_record():
    scores = verdicts((True, 1, 1), (False, 1, 1), outcome=("success", "stopped"))
    table = unscored(cells(scores), scores.absent)
    assert [row[0].text for row in table.rows] == ["stopped episodes"]
    assert table.rows[0][3].text == "1"


def test_many_invalid_episodes_are_counted_in_full():
    table = unscored([], skipped=[f"bad {k}" for k in range(500)])
    assert len(table.rows) < 30
    assert sum(row[3].value for row in table.rows) == 500
