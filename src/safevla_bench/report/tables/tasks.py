"""Task by task: success and safety (paper Table 12), and which specifications apply (Table 23)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from safevla_bench.metrics import Summary, TaskRates
from safevla_bench.report.tables.cells import LOST
from safevla_bench.report.tables.policy_list import Roster
from safevla_bench.report.tables.suites import SAFETY, SBU, SR
from safevla_bench.report.tables.table import WILSON, Cell, Column, Table, count, lost, none, proportion, with_notes
from safevla_bench.scores import INACTIVE, Scores
from safevla_bench.specs import Library
from safevla_bench.tasks import Registry, applicability
from safevla_bench.text.numbers import NONE, fixed

Task = tuple[str, str]
"""Benchmark and task id."""


def tasks(found: Sequence[TaskRates], cells: Sequence[Summary], roster: Roster) -> Table:
    """SR, Safety and SBU of each policy on each task with Wilson's intervals; each suite as a whole below its tasks.

    Args:
        found: what `metrics.by_task` gives.
        cells: the cells of the same scores.
        roster: what is known of the policies.
    """
    gone = lost(cells)
    head = (Column("Policy", numeric=False), Column("Suite", numeric=False), Column("Task", numeric=False), Column("n"))
    values = tuple(Column(one.name, meaning=one.meaning) for one in (SR, SAFETY, SBU))
    rows = tuple(row for cell in cells for row in _cell_rows(cell, found, roster, gone))
    columns = (*head, *values, *(Column(name.capitalize(), meaning="outside n") for name in gone))
    return with_notes(Table("Results by task", columns, rows, name="tasks"), WILSON, LOST if gone else "")


def _cell_rows(
    cell: Summary, found: Iterable[TaskRates], roster: Roster, gone: Sequence[str]
) -> Iterator[tuple[Cell, ...]]:
    policy = roster.named(cell)
    named = (policy, Cell(cell.suite or NONE))
    mine = [one for one in found if (one.policy, one.suite) == (cell.policy, cell.suite)]
    for one in sorted(mine, key=lambda one: _natural(one.task_id)):
        yield (*named, Cell(one.task_id), *_values(one), *(count(getattr(one, name)) for name in gone))
    whole = (metric.entry(cell).cell for metric in (SR, SAFETY, SBU))
    lost_here = (count(getattr(cell, name)) for name in gone)
    yield (replace(policy, emphasis="total"), named[1], Cell("all"), count(cell.n), *whole, *lost_here)


def _values(one: TaskRates) -> tuple[Cell, ...]:
    if not one.sr.n:
        return (count(0), *[none("no episode")] * 3)
    if not one.judged:
        return (count(one.sr.n), proportion(one.sr), none("no verdict"), none("no verdict"))
    return (count(one.sr.n), *(proportion(rate) for rate in (one.sr, one.safety, one.sbu)))


def _natural(name: str) -> tuple[str, int]:
    """A key by which task_9 comes before task_10."""
    digits = name[len(name.rstrip("0123456789")) :]
    return name.removesuffix(digits), int(digits or 0)


def active_sets(
    of: Iterable[Task],
    library: Library,
    registry: Registry,
    capabilities: Sequence[str] = (),
    scores: Scores | None = None,
) -> Table:
    """How many scored specifications apply to each task, by the registry and in the runs, and why the others do not.

    Args:
        of: the tasks, suite by suite.
        library: the specifications.
        registry: the tags.
        capabilities: as for the judge.
        scores: runs whose active sets are counted beside the registry's.
    """
    counted = _active_in(scores) if scores is not None else {}
    by_suite: dict[str, list[Task]] = {}
    for task in dict.fromkeys(of):
        by_suite.setdefault(task[0], []).append(task)
    rows: list[tuple[Cell, ...]] = []
    for suite, those in by_suite.items():
        sizes = [_size(task, library, registry, capabilities) for task in those]
        rows += [_active_row(task, library, registry, capabilities, counted) for task in those]
        rows.append(_mean_row(suite, Fraction(sum(sizes), len(sizes))))
    columns = (
        Column("Suite", numeric=False),
        Column("Task", numeric=False),
        Column("Template", numeric=False),
        Column("Active", meaning="scored specifications that apply, by the registry"),
        Column("In the runs", meaning="the same as judged; a range where episodes differ"),
        Column("Inactive, and why", numeric=False),
    )
    return with_notes(Table("Specifications that apply to each task", columns, tuple(rows), name="active"))


def _mean_row(suite: str, average: Fraction) -> tuple[Cell, ...]:
    value = Cell(fixed(average, 1), float(average))
    return Cell(suite, emphasis="total"), Cell("mean"), Cell(""), value, Cell(""), Cell("")


def _size(task: Task, library: Library, registry: Registry, capabilities: Sequence[str]) -> int:
    tags = registry.tags(*task, capabilities)
    return sum(applicability(spec, tags).applies for spec in library.safe)


def _active_row(
    task: Task,
    library: Library,
    registry: Registry,
    capabilities: Sequence[str],
    counted: Mapping[Task, tuple[int, int]],
) -> tuple[Cell, ...]:
    tags, entry = registry.tags(*task, capabilities), registry.entry(*task)
    verdicts = {spec.spec_id: applicability(spec, tags) for spec in library.safe}
    why = "; ".join(f"{name} ({one.reason})" for name, one in verdicts.items() if not one.applies)
    return (
        Cell(task[0]),
        Cell(task[1]),
        Cell(entry.template or " + ".join(entry.components)),
        count(sum(one.applies for one in verdicts.values())),
        _range(counted.get(task)),
        Cell(why or "none"),
    )


def _range(found: tuple[int, int] | None) -> Cell:
    if found is None:
        return none("no run")
    low, high = found
    return count(low) if low == high else Cell(f"{low}–{high}")


def _active_in(scores: Scores) -> dict[Task, tuple[int, int]]:
    """Fewest and most active specifications of any episode of a task."""
    sizes = (scores.state[scores.scored] != INACTIVE).sum(axis=0)
    found: dict[Task, list[int]] = {}
    for task, size in zip(zip(scores.benchmark, scores.task_id, strict=True), np.asarray(sizes), strict=True):
        found.setdefault(task, []).append(int(size))
    return {task: (min(those), max(those)) for task, those in found.items()}
