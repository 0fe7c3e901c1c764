"""Tables as values."""

from __future__ import annotations

import pytest

from builders import crash
from report.scenes import joined, verdicts
from report.tables.reading import BAD, GOOD, two_suites
from safevla_bench.judging.metrics import cells, task_rates
from safevla_bench.report.render import render_tables
from safevla_bench.report.tables.cells import Roster, constraint_table, suite_table
from safevla_bench.report.tables.columns import drop_intervals, has_column, select_columns
from safevla_bench.report.tables.table import Column, tabulate, text_column
from safevla_bench.report.tables.tasks import task_table
from safevla_bench.text import NO_VALUE


@pytest.mark.parametrize("build", [suite_table, constraint_table])
def test_without_intervals_the_values_and_reasons_stay(build):
    full = build(cells(two_suites()), Roster())
    bare = drop_intervals(full)
    assert [[cell.text for cell in row] for row in bare.rows] == [[cell.text for cell in row] for row in full.rows]
    assert not any(cell.interval for row in bare.rows for cell in row)
    assert not any("interval" in note for note in bare.notes)


def headings(table):
    return [column.full for column in table.columns]


def test_columns_stand_in_the_order_asked_for_and_policy_stays():
    table = suite_table(cells(two_suites()), Roster())
    chosen = select_columns(table, ["safety", "SR mean"])
    assert headings(chosen) == ["Policy", "Safety % goal", "Safety % 10", "Safety % mean", "SR % mean"]
    where = [headings(table).index(name) for name in headings(chosen)]
    assert chosen.rows == tuple(tuple(row[k] for k in where) for row in table.rows)


@pytest.mark.parametrize("name", ["SR", "sr %", "SR % mean", "mean", "n"])
def test_a_column_is_found_by_its_name_its_group_and_both(name):
    table = suite_table(cells(two_suites()), Roster())
    assert has_column(table, name)
    assert not has_column(table, f"{name}x")
    assert set(headings(select_columns(table, [name]))) < set(headings(table))


def test_suite_and_task_stay_so_that_rows_are_told_apart():
    scores = two_suites()
    chosen = select_columns(task_table(task_rates(scores), cells(scores), Roster()), ["SR"])
    assert headings(chosen) == ["Policy", "Suite", "Task", "SR %"]


def test_counts_of_lost_episodes_cannot_be_left_out():
    scores = verdicts(GOOD, BAD, absent=(crash(),))
    table = select_columns(suite_table(cells(scores), Roster()), ["SR"])
    assert headings(table) == ["Policy", "Suite", "SR %", "Crashed"]


@pytest.mark.parametrize("form", ["text", "md", "csv", "tex", "json", "html"])
def test_the_only_suite_stands_in_every_form(form):
    table = suite_table(cells(joined(verdicts(GOOD, suite="libero-goal"))), Roster(), "LIBERO")
    assert "libero-goal" in render_tables([table], form).replace("<wbr>", "")


def test_tabulate_makes_a_row_of_each_item_and_leaves_out_columns_that_are_none():
    columns = (text_column("Name", str), None, Column("n", "its size", len), Column("None", value=lambda _: NO_VALUE))
    table = tabulate("Words", ["a", "bc"], *columns, notes=("", "Two."), dash="A dash.")
    assert [column.name for column in table.columns] == ["Name", "n", "None"]
    assert [[cell.text for cell in row] for row in table.rows] == [["a", "1", "—"], ["bc", "2", "—"]]
    assert [row[1].value for row in table.rows] == [1, 2]
    assert table.notes == ("Two.", "A dash.")
