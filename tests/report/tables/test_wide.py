"""Tables with suites or specifications side by side: means, marks, dashes, and who takes part in them."""

from __future__ import annotations

import numpy as np
import pytest

from report.scenes import NAN, joined, verdicts
from safevla_bench.metrics import by_task, cells
from safevla_bench.report.tables import (
    Cell,
    Roster,
    Table,
    auxiliary,
    composition,
    constraints,
    severity,
    suites,
    tasks,
    without_intervals,
)
from safevla_bench.scores import Absent
from safevla_bench.text.numbers import NONE

GOOD, BAD, FAILED = (True, 1, 1), (True, -5, 1), (False, 1, 1)


def columns(table: Table) -> dict[str, list[Cell]]:
    return {column.full: [row[k] for row in table.rows] for k, column in enumerate(table.columns)}


def texts(table: Table, name: str) -> list[str]:
    return [cell.text for cell in columns(table)[name]]


def two_suites():
    return joined(
        verdicts(GOOD, BAD, suite="libero-goal"),
        verdicts(GOOD, GOOD, GOOD, FAILED, suite="libero-10"),
        verdicts(BAD, BAD, policy="b", suite="libero-goal"),
        verdicts(FAILED, policy="b", suite="libero-10"),
    )


def test_a_mean_over_suites_is_unweighted():
    table = suites(cells(two_suites()), Roster())
    assert texts(table, "SR % goal") == ["100.0", "100.0"]
    assert texts(table, "SR % 10") == ["75.0", "0.0"]
    assert texts(table, "SR % mean") == ["87.5", "50.0"]
    assert texts(table, "n") == ["2–4", "1–2"]


def test_a_suite_without_success_is_left_out_of_the_mean_of_ratios_and_counted():
    table = columns(severity(cells(two_suites()), Roster()))
    assert [cell.text for cell in table["P[U|S] % mean"]] == ["25.0", "100.0"]
    assert [cell.detail for cell in table["P[U|S] % mean"]] == ["", "of 1 of 2 suites"]
    assert table["P[U|S] % 10"][1].detail == "no success"


def test_a_mean_over_fewer_suites_competes_with_none():
    table = columns(severity(cells(two_suites()), Roster()))
    assert [cell.emphasis for cell in table["P[U|S] % mean"]] == ["", ""]


def test_a_policy_that_lacks_a_suite_has_no_mean():
    scores = joined(verdicts(GOOD, suite="libero-goal"), verdicts(GOOD, suite="libero-10"), verdicts(GOOD, policy="b"))
    table = columns(suites(cells(scores), Roster()))
    assert (table["SR % 10"][1].text, table["SR % 10"][1].detail) == (NONE, "not run")
    assert (table["SR % mean"][1].text, table["SR % mean"][1].detail) == (NONE, "1 of 2 suites")


def test_the_best_is_bold_and_the_largest_sbu_has_a_dagger():
    table = columns(suites(cells(two_suites()), Roster()))
    assert [cell.emphasis for cell in table["SBU % goal"]] == ["best", ""]
    assert [cell.mark for cell in table["SBU % goal"]] == ["", "†"]
    assert [cell.emphasis for cell in table["SR % mean"]] == ["best", ""]
    assert not any(cell.mark for name, of in table.items() if not name.startswith("SBU") for cell in of)


def test_nothing_stands_out_where_all_are_equal_or_alone():
    alone = suites(cells(verdicts(BAD, GOOD)), Roster())
    equal = suites(cells(joined(verdicts(BAD, GOOD), verdicts(BAD, GOOD, policy="b"))), Roster())
    for table in (alone, equal):
        assert not any(cell.emphasis or cell.mark for row in table.rows for cell in row)
        assert not any("Bold" in note or "†" in note for note in table.notes)


def test_ties_for_the_best_are_all_bold():
    scores = joined(verdicts(GOOD), verdicts(GOOD, policy="b"), verdicts(FAILED, policy="c"))
    assert [cell.emphasis for cell in columns(suites(cells(scores), Roster()))["SR %"]] == ["best", "best", ""]


def test_values_that_only_print_alike_do_not_share_a_mark():
    many, more = [*[GOOD] * 2999, FAILED], [*[GOOD] * 2999, GOOD]
    scores = joined(verdicts(*many), verdicts(*more, policy="b"))
    table = columns(suites(cells(scores), Roster()))
    assert [cell.text for cell in table["SR %"]] == ["100.0", "100.0"]
    assert [cell.emphasis for cell in table["SR %"]] == ["", "best"]


def test_auxiliary_policies_and_suites_are_in_no_mean_and_no_mark():
    scores = joined(two_suites(), verdicts(GOOD, policy="aux"), verdicts(GOOD, policy="a", suite="robocasa-pnp"))
    roster = Roster(auxiliary=["aux"])
    main = suites(cells(scores), roster)
    assert texts(main, "Policy") == ["a", "b"]
    assert not any("pnp" in column.full for column in main.columns)
    beside = auxiliary(cells(scores), roster)
    assert list(zip(texts(beside, "Policy"), texts(beside, "Suite"), strict=True)) == [
        ("aux", "libero-goal"),
        ("a", "robocasa-pnp"),
    ]
    assert not any(cell.emphasis or cell.mark for row in beside.rows for cell in row)


def test_privileged_policies_are_marked_and_do_not_compete_with_others():
    scores = joined(verdicts(GOOD), verdicts(FAILED, policy="b"), verdicts(GOOD, FAILED, policy="c"))
    table = columns(suites(cells(scores), Roster(privileged=["a"])))
    assert [cell.detail for cell in table["Policy"]] == ["privileged state", "", ""]
    assert [cell.emphasis for cell in table["SR %"]] == ["", "", "best"]


def test_doing_nothing_competes_with_nobody_and_the_note_says_so():
    noop = verdicts((False, 1, 1), policy="noop")
    scores = joined(verdicts((True, -5, 1), policy="a"), verdicts((False, -5, -5), policy="b"), noop)
    table = suites(cells(scores), Roster())
    assert [cell.emphasis for cell in columns(table)["SR %"]] == ["best", "", ""]
    assert [cell.emphasis for cell in columns(table)["Safety %"]] == ["", "", ""]
    assert table.rows[2][0].detail == "does nothing"
    assert "Bold: the best of a column, without noop." in table.notes


def test_among_privileged_policies_alone_there_is_a_best():
    scores = joined(verdicts(GOOD), verdicts(FAILED, policy="b"))
    table = columns(suites(cells(scores), Roster(privileged=["a", "b"])))
    assert [cell.emphasis for cell in table["SR %"]] == ["best", ""]


def test_training_is_what_was_said_and_else_a_dash():
    scores = joined(verdicts(GOOD), verdicts(GOOD, policy="b"))
    assert texts(suites(cells(scores), Roster(training={"b": "RL"})), "Training") == [NONE, "RL"]


def test_without_any_verdict_safety_is_a_dash_and_never_the_best():
    scores = joined(verdicts((True, NAN, NAN)), verdicts(BAD, GOOD, policy="b"), verdicts(BAD, policy="c"))
    table = columns(suites(cells(scores), Roster()))
    assert table["SR %"][0].text == "100.0"
    for name in ("Safety %", "SBU %", "P[U|S] %", "VSI"):
        assert (table[name][0].text, table[name][0].detail) == (NONE, "no verdict")
    assert [cell.emphasis for cell in table["Safety %"]] == ["", "best", ""]


def test_crashed_and_stopped_episodes_are_counted_outside_n():
    gone = Absent(episode_id="x", benchmark="libero-goal", task_id="task_0", policy="a", outcome="crashed")
    scores = verdicts(GOOD, FAILED, outcome=("success", "stopped"), absent=(gone,))
    for table in (suites(cells(scores), Roster()), constraints(cells(scores), Roster())):
        assert texts(table, "Crashed") == ["1"]
        assert texts(table, "Stopped") == ["1"]
        assert texts(table, "n") == ["1"]
    by = tasks(by_task(scores), cells(scores), Roster())
    assert texts(by, "Crashed") == ["1", "1"]
    assert texts(by, "n") == ["1", "1"]


def test_a_rate_is_over_all_episodes_and_inactive_is_a_dash():
    scores = joined(
        verdicts((True, -5, NAN), (True, 1, -1)),
        verdicts((True, 1, NAN), policy="b"),
        verdicts((True, 1, np.inf), policy="c"),
    )
    table = columns(constraints(cells(scores), Roster()))
    assert [cell.text for cell in table["Scene interaction force"]] == ["50.0", "0.0", "0.0"]
    tilt = table["Object handling tilt"]
    assert [cell.text for cell in tilt] == ["50.0", NONE, NONE]
    assert [cell.detail for cell in tilt][1:] == ["", "vacuous"]
    assert [cell.value for cell in tilt][1:] == [None, None]
    assert not any("speed" in name for name in table)


def test_shares_are_of_the_violations_of_unsafe_successes():
    scores = verdicts((True, -5, -1), (True, -5, 1), (True, 1, -1), (False, -5, -1), (True, 1, 1), (True, -5, 1))
    table = composition(cells(scores), Roster())
    assert texts(table, "Specification") == ["force", "tilt"]
    assert texts(table, "Violations") == ["3", "2"]
    assert texts(table, "Share %") == ["60", "40"]
    assert texts(table, "Unsafe successes") == ["4", "4"]


def test_a_specification_that_never_fired_is_left_out():
    table = composition(cells(verdicts(BAD, (False, 1, -1))), Roster())
    assert texts(table, "Specification") == ["force"]


def test_tasks_have_wilson_intervals_and_the_suite_below_them():
    scores = verdicts(*[GOOD] * 15, *[FAILED] * 5, task_id=("task_10",) * 10 + ("task_9",) * 10)
    table = columns(tasks(by_task(scores), cells(scores), Roster()))
    assert [cell.text for cell in table["Task"]] == ["task_9", "task_10", "all"]
    assert [cell.text for cell in table["SR %"]] == ["50.0", "100.0", "75.0"]
    assert table["SR %"][2].detail == "53.1–88.8"


def test_a_task_without_verdict_has_no_safety():
    scores = verdicts((True, NAN, NAN), GOOD, task_id=("task_0", "task_1"))
    table = columns(tasks(by_task(scores), cells(scores), Roster()))
    assert [cell.text for cell in table["Safety %"]] == [NONE, "100.0", "100.0"]


def test_a_task_of_crashes_alone_has_a_row_of_dashes():
    gone = Absent(episode_id="x", benchmark="libero-goal", task_id="task_7", policy="a", outcome="crashed")
    scores = verdicts(GOOD, absent=(gone,))
    table = columns(tasks(by_task(scores), cells(scores), Roster()))
    assert [cell.text for cell in table["Task"]] == ["task_0", "task_7", "all"]
    assert [cell.text for cell in table["SR %"]] == ["100.0", NONE, "100.0"]


@pytest.mark.parametrize("build", [suites, severity, constraints])
def test_without_intervals_the_values_and_reasons_stay(build):
    full = build(cells(two_suites()), Roster())
    bare = without_intervals(full)
    assert [[cell.text for cell in row] for row in bare.rows] == [[cell.text for cell in row] for row in full.rows]
    assert not any(cell.interval for row in bare.rows for cell in row)
    assert not any("interval" in note for note in bare.notes)
