"""The tables with one row a cell."""

from __future__ import annotations

import numpy as np

from builders import crash
from report.scenes import NAN, joined, verdicts
from safevla_bench.judging.metrics import aggregate, cells
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.report.tables.table import Table
from safevla_bench.report.tables.violations import violation_table
from safevla_bench.text import NO_VALUE


def column(table: Table, name: str) -> list[str]:
    k = [column_of_table.name for column_of_table in table.columns].index(name)
    return [row[k].text for row in table.rows]


def test_headline_numbers_are_the_counts_in_percent():
    scores = verdicts((True, 1, 1), (True, -50, 1), (False, 1, 1), (False, -500, 1))
    table = headline_table(cells(scores), aggregate(scores))
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
    (row,) = headline_table(cells(verdicts(*[(True, 1, 1)] * 167, *[(False, 1, 1)] * 33))).rows
    assert row[3].text == "83.5"
    assert row[3].detail == "77.7–88.0"


def test_without_a_success_the_conditional_rate_is_a_dash_with_its_reason():
    (row,) = headline_table(cells(verdicts((False, -5, 1), (False, 1, 1)))).rows
    assert (row[6].text, row[6].detail) == (NO_VALUE, "no success")


def test_without_an_unsafe_episode_the_conditional_severity_is_a_dash():
    (row,) = headline_table(cells(verdicts((True, 1, 1)))).rows
    assert (row[5].text, row[8].text, row[8].detail) == ("0.0", NO_VALUE, "none unsafe")


def test_one_episode_has_no_bootstrap_interval():
    (row,) = headline_table(cells(verdicts((True, -50, 1)))).rows
    assert row[7].detail == "one episode"


def test_the_suites_of_one_policy_are_pooled_and_policies_never():
    first, episodes = verdicts((True, 1, 1)), [(False, -1, 1), (True, 1, 1)]
    suites = joined(first, verdicts(*episodes, suite="libero-10"))
    table = headline_table(cells(suites), aggregate(suites))
    assert (column(table, "Policy"), column(table, "n")) == (["a", "a", "All, pooled"], ["1", "2", "3"])
    policies = joined(first, verdicts(*episodes, policy="b"))
    assert column(headline_table(cells(policies), aggregate(policies)), "Policy") == ["a", "b"]


def test_lost_episodes_have_a_column_only_if_there_are_any():
    assert "Crashed" not in [
        column_of_table.name for column_of_table in headline_table(cells(verdicts((True, 1, 1)))).columns
    ]
    table = headline_table(cells(verdicts((True, 1, 1), absent=(crash(task_id="t"),))))
    assert column(table, "Crashed") == ["1"]
    assert column(table, "n") == ["1"]


def test_a_cell_of_crashes_alone_has_dashes_everywhere():
    (row,) = headline_table(cells(verdicts(absent=(crash(task_id="t"),)))).rows
    assert [cell.text for cell in row] == ["a", "libero-goal", "0", *[NO_VALUE] * 6, "1"]


def test_a_cell_without_any_verdict_is_not_safe_but_unknown():
    table = headline_table(cells(verdicts((True, NAN, NAN), (False, NAN, np.inf))))
    assert column(table, "SR %") == ["50.0"]
    for name in ("Safety %", "SBU %", "P[U|S] %", "VSI", "VSI|U"):
        assert column(table, name) == [NO_VALUE]
    assert {cell.detail for cell in table.rows[0]} >= {"no verdict"}


def test_privileged_policies_are_marked():
    rows = headline_table(
        cells(joined(verdicts((True, 1, 1)), verdicts((True, 1, 1), policy="b"))), privileged={"b"}
    ).rows
    assert [row[0].detail for row in rows] == ["", "privileged state"]


def test_violations_are_counted_over_all_and_over_active_episodes():
    table = violation_table(cells(verdicts((True, -5, -1), (False, 1, NAN), (True, 1, NAN), (True, 1, np.inf))))
    assert column(table, "Specification") == ["force", "tilt"]
    assert column(table, "Violated") == ["1/4", "1/4"]
    assert column(table, "of active") == ["1/4", "1/2"]
    assert column(table, "in successes") == ["1", "1"]
    assert column(table, "Vacuous") == ["0", "1"]
    assert column(table, "Inactive") == ["0", "2"]


def test_a_specification_inactive_everywhere_is_a_dash_and_never_zero():
    table = violation_table(cells(verdicts((True, 1, NAN), (True, 1, NAN))))
    tilt = table.rows[1]
    assert [cell.text for cell in tilt] == ["tilt", *[NO_VALUE] * 5, "0", "2"]
    assert tilt[1].detail == "inactive"
    assert all(cell.value is None for cell in tilt[1:6])
    assert table.rows[0][1].text == "0/2"


def test_a_specification_vacuous_everywhere_is_a_dash_too():
    tilt = violation_table(cells(verdicts((True, 1, np.inf)))).rows[1]
    assert (tilt[1].text, tilt[1].detail) == (NO_VALUE, "vacuous")


def test_diagnostics_have_a_table_of_their_own():
    summaries = cells(verdicts((True, 1, 1)))
    assert column(violation_table(summaries, scored=False), "Specification") == ["speed"]


def test_dashes_are_explained_if_there_are_any():
    assert not any(NO_VALUE in note for note in headline_table(cells(verdicts((True, -1, 1)))).notes)
    assert any(NO_VALUE in note for note in headline_table(cells(verdicts((True, 1, 1)))).notes)
