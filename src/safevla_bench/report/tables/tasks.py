"""Tables by task: success and safety (paper Table 12), the specifications that apply (Table 23), and what tags remove.

Violations in successes are counted with the applicability registry and without it (paper Section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from safevla_bench.judging.metrics import Rate, Summary, TaskRates
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE, INACTIVE, NO_VERDICT, Scores
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
from safevla_bench.tasks import check_applicability
from safevla_bench.text import NO_VALUE, format_fixed

Task = tuple[str, str]
"""Benchmark and task id."""


def task_table(task_rates: Sequence[TaskRates], cells: Sequence[Summary], roster: Roster) -> Table:
    """Return the table of SR, Safety and SBU by policy, suite and task with Wilson intervals; each suite's total below.

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
    """Yield the rows of a cell's tasks, task_9 before task_10, then the row `all` of the cell itself."""
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
    digits = name[len(name.rstrip("0123456789")) :]
    return name.removesuffix(digits), int(digits or 0)


def active_spec_table(
    all_tasks: Iterable[Task],
    ruleset: Ruleset,
    scores: Scores | None = None,
) -> Table:
    """Return the table of how many scored specifications apply to each task, by the registry and in the runs.

    Each suite ends in a row with the mean of its tasks by the registry. Raises `UnknownTaskError` or `RegistryError` as
    `Registry.task_tags` does.

    Args:
        all_tasks: the tasks, in the order of the rows within a suite; repeated ones count once.
        ruleset: the specifications and the tags.
        scores: runs whose active sets are counted beside the registry's; without them the cells hold dashes.
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
    """Return the row of a task: template, number of specifications by the registry and in the runs, and the inactive
    ones.
    """
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
    sizes = (scores.state[scores.scored_columns] != INACTIVE).sum(axis=0)
    sizes_by_task: dict[Task, list[int]] = {}
    for task, size in zip(zip(scores.benchmark, scores.task_id, strict=True), np.asarray(sizes), strict=True):
        sizes_by_task.setdefault(task, []).append(int(size))
    return {task: (min(task_sizes), max(task_sizes)) for task, task_sizes in sizes_by_task.items()}


# The effect of the registry


Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _JudgedPair:
    """The same episodes judged with and without the registry, and the template of each."""

    on: Scores
    off: Scores
    template: NDArray[np.str_]

    def successes(self, template: str | None) -> Bools:
        successes = self.on.success & self.on.is_counted & self.on.is_judged
        return successes if template is None else successes & (self.template == template)


def applicability_table(on: Scores, off: Scores, templates: Mapping[tuple[str, str], str]) -> Table:
    """Return the table of violations in successes by template and specification, with the registry and without.

    Without the registry, every specification whose signals the record holds is judged. A pair of template and
    specification has a row if a success violates it without the registry. Diagnostics have a row where the registry
    removes a violation. Tilt in the body's frame stands beside tilt in the world's frame, which replaced it. The rows
    "any scored" leave both out. Both scores must be of the same episodes in the same order.

    Args:
        on: the verdicts with the registry.
        off: the verdicts of the same episodes without.
        templates: the template of each (benchmark, task); `KeyError` if a task has none.
    """
    assert on.episode_id == off.episode_id
    template_names = [templates[task] for task in zip(on.benchmark, on.task_id, strict=True)]
    pair = _JudgedPair(on, off, np.array(template_names, dtype=np.str_))
    rows = []
    for template in [*dict.fromkeys(template_names), None]:
        rows += [_spec_row(pair, template, k) for k in range(len(on.specs)) if _has_row(pair, template, k)]
        rows.append(_any_spec_row(pair, template))
    table = Table("What the applicability registry removes", _COLUMNS, tuple(rows), name="applicability")
    return add_notes(table, "In successful episodes only.", _unjudged_note(off))


_COLUMNS = (
    Column("Template", numeric=False),
    Column("Specification", numeric=False),
    Column("Tier", numeric=False),
    Column("Successes"),
    Column("With the registry", meaning="successes that violate it"),
    Column("With %"),
    Column("Without", meaning="the same as if there were no tags"),
    Column("Without %"),
    Column("Removed", meaning="violations where it does not apply"),
    Column("Why it does not apply", numeric=False),
)


_REPLACED = ("held_object_tilt_body",)
"""Clauses that a scored one replaced when the registry was introduced (paper Section 3.2)."""


def _has_row(pair: _JudgedPair, template: str | None, column: int) -> bool:
    """Return whether successes violate the clause without the registry, and the clause matters to the table.

    A clause matters if it is scored, if the registry removes a violation, or if a scored clause replaced it. Clauses of
    the tier `alternate` never have a row.
    """
    spec, broken = pair.on.specs[column], pair.off.is_violated[column] & pair.successes(template)
    removed = broken & (pair.on.state[column] == INACTIVE)
    is_relevant = spec.is_scored or removed.any() or spec.canonical_family in _REPLACED
    return bool(broken.any() and is_relevant and spec.tier != "alternate")


def _spec_row(pair: _JudgedPair, template: str | None, column: int) -> tuple[Cell, ...]:
    """Return the row of a template (None: all) and the clause in this column of the scores.

    It counts successes: all, those that violate the clause with the registry and without, how many the registry removes
    and why.
    """
    successes = pair.successes(template)
    spec = pair.on.specs[column]
    removed = pair.off.is_violated[column] & (pair.on.state[column] == INACTIVE) & successes
    why = "; ".join(dict.fromkeys(pair.on.reasons[k] for k in pair.on.reason[column, removed]))
    counted = _count_cells(pair.on.is_violated[column], pair.off.is_violated[column], successes)
    return (
        _template_cell(template),
        Cell(spec.spec_id),
        Cell(spec.tier),
        *counted,
        count_cell(int(removed.sum())),
        Cell(why),
    )


def _any_spec_row(pair: _JudgedPair, template: str | None) -> tuple[Cell, ...]:
    """Return the row of unsafe successes: those that violate any scored specification."""
    successes = pair.successes(template)
    removed = int((pair.on.safe & pair.off.unsafe & successes).sum())
    counted = _count_cells(pair.on.unsafe, pair.off.unsafe, successes)
    return (
        _template_cell(template, total=True),
        Cell("any scored"),
        Cell("safe"),
        *counted,
        count_cell(removed),
        Cell(""),
    )


def _template_cell(template: str | None, total: bool = False) -> Cell:
    return Cell("all" if template is None else template, emphasis="total" if total else "")


def _count_cells(on: Bools, off: Bools, successes: Bools) -> tuple[Cell, ...]:
    n = int(successes.sum())
    cells = [count_cell(n)]
    for violated in (on, off):
        broken = int((violated & successes).sum())
        cells += [count_cell(broken), rate_cell(Rate.of(broken, n)) if n else dash_cell("no success")]
    return tuple(cells)


def _unjudged_note(off: Scores) -> str:
    silent = [off.specs[k].spec_id for k in off.scored_columns if not (off.state[k] == ACTIVE).any()]
    return (
        f"Not judged even without tags, for want of signals or of a condition: {', '.join(silent)}." if silent else ""
    )
