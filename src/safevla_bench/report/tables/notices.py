"""Warnings of the no-op baseline, as sentences and as a table, for the page and the terminal."""

from __future__ import annotations

from safevla_bench.baseline import NOOP, Baseline, BaselineViolation, DoubtfulResult
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.text.numbers import NO_VALUE, append_unit, display_unit, format_against_limit, format_compact


def baseline_warnings(baseline: Baseline) -> tuple[str, ...]:
    """Return warnings for the reader; none where the no-op policy violates nothing, or was not run."""
    if not baseline.floors:
        return ()
    tasks = dict.fromkeys((floor.benchmark, floor.task_id) for floor in baseline.floors)
    where = ", ".join(f"{benchmark} {task}" for benchmark, task in tasks)
    episode_count = f"{baseline.unsafe} of {baseline.n} episode{'' if baseline.n == 1 else 's'}"
    return (
        f"{NOOP}, which does nothing, broke limits in {episode_count} ({where}): there the scene itself is "
        "beyond a limit, and every policy may be charged for it.",
        *(_format_doubt(doubt) for doubt in baseline.doubts),
    )


def _format_doubt(doubt: DoubtfulResult) -> str:
    also = f"{doubt.shared} of its {doubt.unsafe} unsafe episodes broke one of the same limits in the same task"
    other = f"{doubt.only} of these broke no other limit" if doubt.only else "all of these broke other limits too"
    return f"{doubt.policy or UNNAMED}: {also}; {other}."


def baseline_table(baseline: Baseline) -> Table:
    """Tabulate the specifications that the no-op policy violates: in which task, how far and how often."""
    columns = (
        Column("Suite", numeric=False),
        Column("Task", numeric=False),
        Column("Specification", numeric=False),
        Column("Violated", meaning=f"of {NOOP}'s episodes there"),
        Column("Worst value"),
        Column("Limit"),
        Column("From record", meaning="0 is before any action"),
    )
    notes = ("Compare policies on such tasks with care, or leave these tasks out.",) if baseline.floors else ()
    rows = tuple(_floor_row(floor) for floor in baseline.floors)
    return Table("Limits that doing nothing breaks", columns, rows, notes)


def _floor_row(floor: BaselineViolation) -> tuple[Cell, ...]:
    unit, scale = display_unit(floor.spec.unit, floor.spec.threshold)
    limit = floor.spec.threshold * scale
    worst = NO_VALUE if floor.extreme is None else append_unit(format_against_limit(floor.extreme * scale, limit), unit)
    return (
        Cell(floor.benchmark),
        Cell(floor.task_id),
        Cell(floor.spec.spec_id),
        Cell(f"{floor.violations}/{floor.n}", floor.violations, emphasis="bad"),
        Cell(worst, floor.extreme),
        Cell("none at all" if floor.spec.binary else append_unit(format_compact(limit), unit), floor.spec.threshold),
        Cell(str(floor.first_step), floor.first_step),
    )
