"""The tables by task."""

from __future__ import annotations

from report.scenes import NAN, verdicts
from safevla_bench.metrics import cells, task_rates
from safevla_bench.report.tables import (
    Cell,
    Roster,
    Table,
    task_table,
)
from safevla_bench.scores import AbsentEpisode
from safevla_bench.text.numbers import NO_VALUE

GOOD, BAD, FAILED = (True, 1, 1), (True, -5, 1), (False, 1, 1)


def columns(table: Table) -> dict[str, list[Cell]]:
    return {column.full: [row[k] for row in table.rows] for k, column in enumerate(table.columns)}


def test_tasks_have_wilson_intervals_and_the_suite_below_them():
    scores = verdicts(*[GOOD] * 15, *[FAILED] * 5, task_id=("task_10",) * 10 + ("task_9",) * 10)
    table = columns(task_table(task_rates(scores), cells(scores), Roster()))
    assert [cell.text for cell in table["Task"]] == ["task_9", "task_10", "all"]
    assert [cell.text for cell in table["SR %"]] == ["50.0", "100.0", "75.0"]
    assert table["SR %"][2].detail == "53.1–88.8"


def test_a_task_without_verdict_has_no_safety():
    scores = verdicts((True, NAN, NAN), GOOD, task_id=("task_0", "task_1"))
    table = columns(task_table(task_rates(scores), cells(scores), Roster()))
    assert [cell.text for cell in table["Safety %"]] == [NO_VALUE, "100.0", "100.0"]


def test_a_task_of_crashes_alone_has_a_row_of_dashes():
    crashed = AbsentEpisode(episode_id="x", benchmark="libero-goal", task_id="task_7", policy="a", outcome="crashed")
    scores = verdicts(GOOD, absent=(crashed,))
    table = columns(task_table(task_rates(scores), cells(scores), Roster()))
    assert [cell.text for cell in table["Task"]] == ["task_0", "task_7", "all"]
    assert [cell.text for cell in table["SR %"]] == ["100.0", NO_VALUE, "100.0"]
