"""Tables by task: success and safety (paper Table 12), and the specifications that apply (Table 23)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from safevla_bench.metrics import Summary, TaskRates
from safevla_bench.report.tables.cells import Roster
from safevla_bench.report.tables.suites import SAFETY, SBU, SR
from safevla_bench.report.tables.table import (
    WILSON,
    Cell,
    Column,
    Table,
    add_notes,
    count_cell,
    dash_cell,
    lost_columns,
    lost_kinds,
    lost_notes,
    rate_cell,
)
from safevla_bench.ruleset import Ruleset
from safevla_bench.scores import INACTIVE, NO_VERDICT, Scores
from safevla_bench.tasks import check_applicability
from safevla_bench.text.numbers import NO_VALUE, format_fixed

Task = tuple[str, str]
"""Benchmark and task id."""


def task_table(task_rates: Sequence[TaskRates], cells: Sequence[Summary], roster: Roster) -> Table:
    """Tabulate SR, Safety and SBU of each policy by task with Wilson intervals; each suite's total below.

    Args:
        task_rates: rates by task, as `metrics.task_rates` returns them.
        cells: the cells of the same scores.
        roster: training kinds and flags of the policies.
    """
    lost_names = lost_kinds(cells)
    head = (Column("Policy", numeric=False), Column("Suite", numeric=False), Column("Task", numeric=False), Column("n"))
    values = tuple(Column(metric.name, meaning=metric.meaning) for metric in (SR, SAFETY, SBU))
    rows = tuple(row for cell in cells for row in _suite_rows(cell, task_rates, roster, lost_names))
    columns = (*head, *values, *lost_columns(lost_names))
    return add_notes(Table("Results by task", columns, rows, name="tasks"), WILSON, *lost_notes(lost_names, cells))


def _suite_rows(
    cell: Summary, task_rates: Iterable[TaskRates], roster: Roster, lost_names: Sequence[str]
) -> Iterator[tuple[Cell, ...]]:
    policy = roster.summary_cell(cell)
    name_cells = (policy, Cell(cell.suite or NO_VALUE))
    suite_tasks = [task for task in task_rates if (task.policy, task.suite) == (cell.policy, cell.suite)]
    for task in sorted(suite_tasks, key=lambda task: _task_number_key(task.task_id)):
        yield (
            *name_cells,
            Cell(task.task_id),
            *_task_cells(task),
            *(count_cell(getattr(task, name)) for name in lost_names),
        )
    suite_values = (metric.exact_cell(cell).cell for metric in (SR, SAFETY, SBU))
    lost_here = (count_cell(getattr(cell, name)) for name in lost_names)
    yield (replace(policy, emphasis="total"), name_cells[1], Cell("all"), count_cell(cell.n), *suite_values, *lost_here)


def _task_cells(task: TaskRates) -> tuple[Cell, ...]:
    no_episode = "" if task.n else "no episode"
    no_verdict = NO_VERDICT if task.n or task.unjudged else no_episode
    safety = rate_cell(task.safety, no_verdict, n=task.n)
    return count_cell(task.n), rate_cell(task.sr, no_episode), safety, rate_cell(task.sbu, no_verdict, n=task.n)


def _task_number_key(name: str) -> tuple[str, int]:
    """Return a sort key that puts task_9 before task_10."""
    digits = name[len(name.rstrip("0123456789")) :]
    return name.removesuffix(digits), int(digits or 0)


def active_spec_table(
    all_tasks: Iterable[Task],
    ruleset: Ruleset,
    scores: Scores | None = None,
) -> Table:
    """Count the scored specifications that apply to each task, by the registry and in the runs.

    Args:
        all_tasks: the tasks, suite by suite.
        ruleset: the specifications and the tags.
        scores: runs whose active sets are counted beside the registry's.
    """
    counted = _active_ranges(scores) if scores is not None else {}
    by_suite: dict[str, list[Task]] = {}
    for task in dict.fromkeys(all_tasks):
        by_suite.setdefault(task[0], []).append(task)
    rows: list[tuple[Cell, ...]] = []
    for suite, suite_tasks in by_suite.items():
        sizes = [_active_count(task, ruleset) for task in suite_tasks]
        rows += [_active_row(task, ruleset, counted) for task in suite_tasks]
        rows.append(_mean_row(suite, Fraction(sum(sizes), len(sizes))))
    columns = (
        Column("Suite", numeric=False),
        Column("Task", numeric=False),
        Column("Template", numeric=False),
        Column("Active", meaning="scored specifications that apply, by the registry"),
        Column("In the runs", meaning="the same as judged; a range where episodes differ"),
        Column("Inactive, and why", numeric=False),
    )
    return add_notes(Table("Specifications that apply to each task", columns, tuple(rows), name="active"))


def _mean_row(suite: str, average: Fraction) -> tuple[Cell, ...]:
    value = Cell(format_fixed(average, 1), float(average))
    return Cell(suite, emphasis="total"), Cell("mean"), Cell(""), value, Cell(""), Cell("")


def _active_count(task: Task, ruleset: Ruleset) -> int:
    tags = ruleset.tags(*task)
    return sum(check_applicability(spec, tags).applies for spec in ruleset.library.safe)


def _active_row(task: Task, ruleset: Ruleset, counted: Mapping[Task, tuple[int, int]]) -> tuple[Cell, ...]:
    tags, entry = ruleset.tags(*task), ruleset.registry.find_entry(*task)
    verdicts = {spec.spec_id: check_applicability(spec, tags) for spec in ruleset.library.safe}
    why = "; ".join(f"{name} ({verdict.reason})" for name, verdict in verdicts.items() if not verdict.applies)
    return (
        Cell(task[0]),
        Cell(task[1]),
        Cell(entry.template or " + ".join(entry.components)),
        count_cell(sum(verdict.applies for verdict in verdicts.values())),
        _range_cell(counted.get(task)),
        Cell(why or "none"),
    )


def _range_cell(ends: tuple[int, int] | None) -> Cell:
    if ends is None:
        return dash_cell("no run")
    low, high = ends
    return count_cell(low) if low == high else Cell(f"{low}–{high}")


def _active_ranges(scores: Scores) -> dict[Task, tuple[int, int]]:
    """Return the fewest and most active specifications of any episode of each task."""
    sizes = (scores.state[scores.scored_columns] != INACTIVE).sum(axis=0)
    sizes_by_task: dict[Task, list[int]] = {}
    for task, size in zip(zip(scores.benchmark, scores.task_id, strict=True), np.asarray(sizes), strict=True):
        sizes_by_task.setdefault(task, []).append(int(size))
    return {task: (min(task_sizes), max(task_sizes)) for task, task_sizes in sizes_by_task.items()}
