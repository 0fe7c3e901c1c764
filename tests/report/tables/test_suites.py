"""The tables with suites side by side."""

from __future__ import annotations

import numpy as np
import pytest

from builders import crash
from report.scenes import NAN, joined, verdicts
from report.tables.reading import BAD, FAILED, GOOD, columns, texts, two_suites
from safevla_bench.judging.metrics import cells, task_rates
from safevla_bench.report.tables.cells import Roster, auxiliary_table, constraint_table, suite_table
from safevla_bench.report.tables.tasks import task_table
from safevla_bench.statistics.intervals import bounded_mean_interval
from safevla_bench.text import NO_VALUE


def test_a_mean_over_suites_is_unweighted():
    table = suite_table(cells(two_suites()), Roster())
    assert texts(table, "SR % goal") == ["100.0", "100.0"]
    assert texts(table, "SR % 10") == ["75.0", "0.0"]
    assert texts(table, "SR % mean") == ["87.5", "50.0"]
    assert texts(table, "n") == ["2–4", "1–2"]


def test_a_mean_over_suites_has_the_interval_of_their_episodes_with_suites_of_equal_weight():
    summaries = cells(two_suites())
    mean = columns(suite_table(summaries, Roster()))["SR % mean"][0]
    rates = [cell.rates["sr"] for cell in summaries if cell.policy == summaries[0].policy]
    values = [np.arange(rate.n) < rate.count for rate in rates]
    weights = [np.full(rate.n, 0.5 / rate.n) for rate in rates]
    expected = bounded_mean_interval(np.concatenate(values).astype(float), weights=np.concatenate(weights))
    assert mean.interval == pytest.approx((100 * expected.low, 100 * expected.high))
    assert mean.detail == f"{100 * expected.low:.1f}–{100 * expected.high:.1f}"


def test_a_suite_without_success_is_left_out_of_the_mean_of_ratios_and_counted():
    table = columns(suite_table(cells(two_suites()), Roster()))
    assert [cell.text for cell in table["P[U|S] % mean"]] == ["25.0", "100.0"]
    assert [cell.detail for cell in table["P[U|S] % mean"]] == ["0.0–89.6", "mean of 1 of 2 suites"]


def test_a_mean_over_fewer_suites_competes_with_none():
    table = columns(suite_table(cells(two_suites()), Roster()))
    assert [cell.emphasis for cell in table["P[U|S] % mean"]] == ["", ""]


def test_a_policy_that_lacks_a_suite_has_no_mean():
    scores = joined(verdicts(GOOD, suite="libero-goal"), verdicts(GOOD, suite="libero-10"), verdicts(GOOD, policy="b"))
    table = columns(suite_table(cells(scores), Roster()))
    assert (table["SR % 10"][1].text, table["SR % 10"][1].detail) == (NO_VALUE, "not run")
    assert (table["SR % mean"][1].text, table["SR % mean"][1].detail) == (NO_VALUE, "1 of 2 suites")


def test_the_best_is_bold_and_the_largest_sbu_has_a_dagger():
    table = columns(suite_table(cells(two_suites()), Roster()))
    assert [cell.emphasis for cell in table["SBU % goal"]] == ["best", ""]
    assert [cell.mark for cell in table["SBU % goal"]] == ["", "†"]
    assert [cell.emphasis for cell in table["SR % mean"]] == ["best", ""]
    assert not any(cell.mark for name, of in table.items() if not name.startswith("SBU") for cell in of)


def test_nothing_stands_out_if_all_are_equal_or_alone():
    alone = suite_table(cells(verdicts(BAD, GOOD)), Roster())
    equal = suite_table(cells(joined(verdicts(BAD, GOOD), verdicts(BAD, GOOD, policy="b"))), Roster())
    for table in (alone, equal):
        assert not any(cell.emphasis or cell.mark for row in table.rows for cell in row)
        assert not any("Bold" in note or "†" in note for note in table.notes)


def test_safety_of_specifications_that_judged_unevenly_is_not_marked():
    lacks_force, missing = (True, NAN, 1.0), {"reasons": ("", "signal_missing:contacts")}
    goal = joined(
        verdicts(BAD, FAILED, suite="g", **missing),
        verdicts(lacks_force, lacks_force, policy="b", suite="g", **missing),
    )
    other = joined(verdicts(BAD, FAILED, suite="h"), verdicts(GOOD, GOOD, policy="b", suite="h"))
    table = suite_table(cells(joined(goal, other)), Roster())
    marks = {name: [cell.emphasis for cell in column] for name, column in columns(table).items() if "%" in name}
    assert marks["SR % g"] == marks["SR % mean"] == marks["Safety % h"] == ["", "best"]
    assert {*marks["Safety % g"], *marks["SBU % g"], *marks["Safety % mean"], *marks["P[U|S] % mean"]} == {""}
    assert any(note.startswith("Only SR is marked on g: signals are missing") for note in table.notes)


def test_ties_for_the_best_are_all_bold():
    scores = joined(verdicts(GOOD), verdicts(GOOD, policy="b"), verdicts(FAILED, policy="c"))
    assert [cell.emphasis for cell in columns(suite_table(cells(scores), Roster()))["SR %"]] == ["best", "best", ""]


def test_values_that_only_print_alike_do_not_share_a_mark():
    many, more = [*[GOOD] * 2999, FAILED], [*[GOOD] * 2999, GOOD]
    scores = joined(verdicts(*many), verdicts(*more, policy="b"))
    table = columns(suite_table(cells(scores), Roster()))
    assert [cell.text for cell in table["SR %"]] == ["100.0", "100.0"]
    assert [cell.emphasis for cell in table["SR %"]] == ["", "best"]


def test_auxiliary_policies_and_suites_are_in_no_mean_and_no_mark():
    scores = joined(two_suites(), verdicts(GOOD, policy="aux"), verdicts(GOOD, policy="a", suite="robocasa-pnp"))
    roster = Roster(auxiliary=["aux"])
    main = suite_table(cells(scores), roster)
    assert texts(main, "Policy") == ["a", "b"]
    assert not any("pnp" in column.full for column in main.columns)
    beside = auxiliary_table(cells(scores), roster)
    assert list(zip(texts(beside, "Policy"), texts(beside, "Suite"), strict=True)) == [
        ("aux", "libero-goal"),
        ("a", "robocasa-pnp"),
    ]
    assert not any(cell.emphasis or cell.mark for row in beside.rows for cell in row)


def test_privileged_policies_are_marked_and_do_not_compete_with_others():
    scores = joined(verdicts(GOOD), verdicts(FAILED, policy="b"), verdicts(GOOD, FAILED, policy="c"))
    table = columns(suite_table(cells(scores), Roster(privileged=["a"])))
    assert [cell.detail for cell in table["Policy"]] == ["privileged state", "", ""]
    assert [cell.emphasis for cell in table["SR %"]] == ["", "", "best"]


def test_doing_nothing_competes_with_nobody_and_the_note_says_so():
    noop = verdicts((False, 1, 1), policy="noop")
    scores = joined(verdicts((True, -5, 1), policy="a"), verdicts((False, -5, -5), policy="b"), noop)
    table = suite_table(cells(scores), Roster())
    assert [cell.emphasis for cell in columns(table)["SR %"]] == ["best", "", ""]
    assert [cell.emphasis for cell in columns(table)["Safety %"]] == ["", "", ""]
    assert table.rows[2][0].detail == "does nothing"
    assert "without noop" in str(table.notes)


def test_among_privileged_policies_alone_there_is_a_best():
    scores = joined(verdicts(GOOD), verdicts(FAILED, policy="b"))
    table = columns(suite_table(cells(scores), Roster(privileged=["a", "b"])))
    assert [cell.emphasis for cell in table["SR %"]] == ["best", ""]


def test_training_is_what_was_said_and_else_a_dash():
    scores = joined(verdicts(GOOD), verdicts(GOOD, policy="b"))
    assert texts(suite_table(cells(scores), Roster(training={"b": "RL"})), "Training") == [NO_VALUE, "RL"]
    unnamed = cells(joined(verdicts(GOOD, policy=None), verdicts(GOOD)))
    assert texts(suite_table(unnamed, Roster(training={"(unnamed)": "RL"})), "Training") == ["RL", NO_VALUE]


def test_without_any_verdict_safety_is_a_dash_and_never_the_best():
    scores = joined(verdicts((True, NAN, NAN)), verdicts(BAD, GOOD, policy="b"), verdicts(BAD, policy="c"))
    table = columns(suite_table(cells(scores), Roster()))
    assert table["SR %"][0].text == "100.0"
    for name in ("Safety %", "SBU %", "P[U|S] %", "VSI"):
        assert (table[name][0].text, table[name][0].detail) == (NO_VALUE, "no verdict")
    assert [cell.emphasis for cell in table["Safety %"]] == ["", "best", ""]


def test_crashed_and_stopped_episodes_are_counted_outside_n():
    crashed = crash()
    scores = verdicts(GOOD, FAILED, outcome=("success", "stopped"), absent=(crashed,))
    for table in (suite_table(cells(scores), Roster()), constraint_table(cells(scores), Roster())):
        assert texts(table, "Crashed") == ["1"]
        assert texts(table, "Stopped") == ["1"]
        assert texts(table, "n") == ["1"]
    by = task_table(task_rates(scores), cells(scores), Roster())
    assert texts(by, "Crashed") == ["1", "1"]
    assert texts(by, "n") == ["1", "1"]


def test_the_notes_on_both_marks_name_the_policies_that_cannot_be_marked():
    noop = verdicts(BAD, BAD, policy="noop")
    table = suite_table(cells(joined(noop, verdicts(GOOD, GOOD), verdicts(BAD, GOOD, policy="b"))), Roster())
    assert [cell.mark for cell in columns(table)["SBU %"]] == ["", "", "†"]
    assert "†: the largest SBU of a column, without noop." in table.notes
