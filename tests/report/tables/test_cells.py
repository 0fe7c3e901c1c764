"""The tables with one row a cell."""

from __future__ import annotations

import numpy as np

from builders import crash, episode
from report.scenes import NAN, joined, verdicts
from report.tables.reading import BAD, GOOD, columns, texts
from safevla_bench.judging.metrics import aggregate, cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import INACTIVE
from safevla_bench.judging.scoring import score
from safevla_bench.report.tables.cells import (
    LIBERO_TORQUE_NOTE,
    Roster,
    composition_table,
    constraint_table,
    headline_table,
    severity_table,
    violation_table,
)
from safevla_bench.text import NO_VALUE
from safevla_bench.trajectory.marks import STOPPED_ON_VIOLATION


def test_headline_numbers_are_the_counts_in_percent():
    scores = verdicts((True, 1, 1), (True, -50, 1), (False, 1, 1), (False, -500, 1))
    table = headline_table(cells(scores), aggregate(scores))
    assert [texts(table, name) for name in ("n", "SR %", "Safety %", "SBU %")] == [["4"], ["50.0"], ["50.0"], ["25.0"]]
    assert texts(table, "VSI") == ["0.275"]  # (0.1 + 1.0) / 4
    shares = severity_table(cells(scores), Roster())
    assert [texts(shares, name) for name in ("P[U|S] %", "VSI|U")] == [["50.0"], ["0.550"]]


def test_each_value_has_its_interval_below_it():
    table = headline_table(cells(verdicts(*[(True, 1, 1)] * 167, *[(False, 1, 1)] * 33)))
    assert [(cell.text, cell.detail) for cell in columns(table)["SR %"]] == [("83.5", "77.7–88.0")]


def test_without_a_success_the_conditional_rate_is_a_dash_with_its_reason():
    table = severity_table(cells(verdicts((False, -5, 1), (False, 1, 1))), Roster())
    assert [(cell.text, cell.detail) for cell in columns(table)["P[U|S] %"]] == [(NO_VALUE, "no success")]


def test_without_an_unsafe_episode_the_conditional_severity_is_a_dash():
    table = severity_table(cells(verdicts((True, 1, 1))), Roster())
    assert texts(table, "P[U|S] %") == ["0.0"]
    assert [(cell.text, cell.detail) for cell in columns(table)["VSI|U"]] == [(NO_VALUE, "none unsafe")]


def test_one_episode_has_no_bootstrap_interval():
    table = headline_table(cells(verdicts((True, -50, 1))))
    assert [cell.detail for cell in columns(table)["VSI"]] == ["one episode"]


def test_the_suites_of_one_policy_are_pooled_and_policies_never():
    first, episodes = verdicts((True, 1, 1)), [(False, -1, 1), (True, 1, 1)]
    suites = joined(first, verdicts(*episodes, suite="libero-10"))
    table = headline_table(cells(suites), aggregate(suites))
    assert (texts(table, "Policy"), texts(table, "n")) == (["a", "a", "All, pooled"], ["1", "2", "3"])
    policies = joined(first, verdicts(*episodes, policy="b"))
    assert texts(headline_table(cells(policies), aggregate(policies)), "Policy") == ["a", "b"]


def test_lost_episodes_have_a_column_only_if_there_are_any():
    assert "Crashed" not in [
        column_of_table.name for column_of_table in headline_table(cells(verdicts((True, 1, 1)))).columns
    ]
    table = headline_table(cells(verdicts((True, 1, 1), absent=(crash(task_id="t"),))))
    assert texts(table, "Crashed") == ["1"]
    assert texts(table, "n") == ["1"]


def test_a_cell_of_crashes_alone_has_dashes_everywhere():
    (row,) = headline_table(cells(verdicts(absent=(crash(task_id="t"),)))).rows
    assert [cell.text for cell in row] == ["a", "libero-goal", "0", *[NO_VALUE] * 4, "1"]


def test_a_cell_without_any_verdict_is_not_safe_but_unknown():
    table = headline_table(cells(verdicts((True, NAN, NAN), (False, NAN, np.inf))))
    assert texts(table, "SR %") == ["50.0"]
    for name in ("Safety %", "SBU %", "VSI"):
        assert texts(table, name) == [NO_VALUE]
    assert {cell.detail for cell in table.rows[0]} >= {"no verdict"}


def test_privileged_policies_are_marked():
    rows = headline_table(
        cells(joined(verdicts((True, 1, 1)), verdicts((True, 1, 1), policy="b"))), privileged={"b"}
    ).rows
    assert [row[0].detail for row in rows] == ["", "privileged state"]


def test_violations_are_counted_over_all_and_over_active_episodes():
    table = violation_table(*cells(verdicts((True, -5, -1), (False, 1, NAN), (True, 1, NAN), (True, 1, np.inf))))
    assert texts(table, "Specification") == ["force", "tilt"]
    assert texts(table, "Violated") == ["1/4", "1/4"]
    assert texts(table, "of active") == ["1/4", "1/2"]
    assert texts(table, "in successes") == ["1", "1"]
    assert texts(table, "Vacuous") == ["0", "1"]
    assert texts(table, "Inactive") == ["0", "2"]


def test_a_specification_inactive_everywhere_is_a_dash_and_never_zero():
    table = violation_table(*cells(verdicts((True, 1, NAN), (True, 1, NAN))))
    tilt = table.rows[1]
    assert [cell.text for cell in tilt] == ["tilt", *[NO_VALUE] * 5, "0", "2"]
    assert tilt[1].detail == "inactive"
    assert all(cell.value is None for cell in tilt[1:6])
    assert table.rows[0][1].text == "0/2"


def test_a_specification_vacuous_everywhere_is_a_dash_too():
    tilt = violation_table(*cells(verdicts((True, 1, np.inf)))).rows[1]
    assert (tilt[1].text, tilt[1].detail) == (NO_VALUE, "vacuous")


def test_diagnostics_have_a_table_of_their_own():
    summaries = cells(verdicts((True, 1, 1)))
    assert texts(violation_table(*summaries, scored=False), "Specification") == ["speed"]


def test_dashes_are_explained_if_there_are_any():
    assert not any(NO_VALUE in note for note in severity_table(cells(verdicts((True, -1, 1))), Roster()).notes)
    assert any(NO_VALUE in note for note in severity_table(cells(verdicts((True, 1, 1))), Roster()).notes)


def test_the_note_names_the_episodes_that_rates_are_of():
    """An episode without a verdict is in no rate, and the note speaks of judged ones."""
    scores = verdicts((True, -5, 1), (True, np.inf, np.inf))
    (cell,) = cells(scores)
    assert (cell.n, cell.judged) == (2, 1)
    table = constraint_table([cell], Roster())
    assert texts(table, "Scene interaction force") == ["100.0"]
    assert any("judged episodes" in note for note in table.notes)


def test_a_rate_is_over_judged_episodes_and_inactive_is_a_dash():
    scores = joined(
        verdicts((True, -5, NAN), (True, 1, -1)),
        verdicts((True, 1, NAN), policy="b"),
        verdicts((True, 1, np.inf), policy="c"),
    )
    table = columns(constraint_table(cells(scores), Roster()))
    assert [cell.text for cell in table["Scene interaction force"]] == ["50.0", "0.0", "0.0"]
    tilt = table["Object handling tilt"]
    assert [cell.text for cell in tilt] == ["50.0", NO_VALUE, NO_VALUE]
    assert [cell.detail for cell in tilt][1:] == ["", "vacuous"]
    assert [cell.value for cell in tilt][1:] == [None, None]
    assert not any("speed" in name for name in table)


def test_shares_are_of_the_violations_of_unsafe_successes():
    scores = verdicts((True, -5, -1), (True, -5, 1), (True, 1, -1), (False, -5, -1), (True, 1, 1), (True, -5, 1))
    table = composition_table(cells(scores), Roster())
    assert texts(table, "Specification") == ["force", "tilt"]
    assert texts(table, "Violations") == ["3", "2"]
    assert texts(table, "Share %") == ["60", "40"]
    assert texts(table, "Unsafe successes") == ["4", "4"]


def test_unsafe_successes_are_unknown_if_a_violation_stopped_an_episode():
    stopped = {"marks": {STOPPED_ON_VIOLATION: np.array([False, True])}, "outcome": ("success", "stopped")}
    table = composition_table(cells(verdicts(GOOD, (False, -5, 1), **stopped)), Roster())
    (row,) = table.rows
    assert [(cell.text, cell.detail) for cell in row[3:]] == [(NO_VALUE, "1 stopped"), *[(NO_VALUE, "")] * 4]


def test_a_specification_that_never_fired_is_left_out():
    table = composition_table(cells(verdicts(BAD, (False, 1, -1))), Roster())
    assert texts(table, "Specification") == ["force"]


def test_tables_of_libero_say_which_joint_can_exceed_its_limit_where_torques_are_judged():
    """A rate of joint_torque there is one of joint 5 alone; the actuators of the others stop before."""
    judged = score(episode(), load_ruleset())
    assert LIBERO_TORQUE_NOTE in constraint_table(cells(judged), Roster()).notes
    without = score(episode(joint_torque_nm=None), load_ruleset(missing="deactivate"))
    elsewhere = joined(verdicts((True, 1, 1)))
    for scores in (without, elsewhere):
        assert LIBERO_TORQUE_NOTE not in constraint_table(cells(scores), Roster()).notes


def test_records_without_torque_peaks_are_judged_and_the_diagnostic_says_what_is_missing():
    scores = score(episode(), load_ruleset())
    k = [spec.spec_id for spec in scores.specs].index("joint_torque_peak")
    assert scores.state[k].tolist() == [INACTIVE]
    assert scores.reasons[scores.reason[k, 0]] == "signal_missing:joint_torque_peak_nm"
    beyond = np.tile([1.0, 1, 1, 1, 13, 1, 1], (12, 1))
    peaked = score(episode(further={"joint_torque_peak_nm": beyond}), load_ruleset()).episode(0)
    assert peaked.diagnostics["joint_torque_peak"].violated
    assert peaked.safe
    assert "joint_torque_peak" not in peaked.robustness
