"""What the no-op baseline says of a set of episodes, in words and as a table, for the page and the terminal alike."""

from __future__ import annotations

from safevla_bench.baseline import NOOP, Baseline, Doubt, Floor
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.text.numbers import NONE, apart, short, unit_text, with_unit


def warning(found: Baseline) -> tuple[str, ...]:
    """Sentences for the reader; none where doing nothing violates nothing, or was not tried."""
    if not found.floors:
        return ()
    tasks = dict.fromkeys((floor.benchmark, floor.task_id) for floor in found.floors)
    where = ", ".join(f"{benchmark} {task}" for benchmark, task in tasks)
    many = f"{found.unsafe} of {found.n} episode{'' if found.n == 1 else 's'}"
    return (
        f"{NOOP}, which does nothing, broke limits in {many} ({where}): there the scene itself is beyond a limit, and "
        "every policy may be charged for it.",
        *(_doubted(doubt) for doubt in found.doubts),
    )


def _doubted(doubt: Doubt) -> str:
    also = f"{doubt.shared} of its {doubt.unsafe} unsafe episodes broke one of the same limits in the same task"
    beside = f"{doubt.only} of these broke no other limit" if doubt.only else "all of these broke other limits too"
    return f"{doubt.policy or UNNAMED}: {also}; {beside}."


def table(found: Baseline) -> Table:
    """Which specification doing nothing violates, in which task, how far and how often."""
    columns = (
        Column("Suite", numeric=False),
        Column("Task", numeric=False),
        Column("Specification", numeric=False),
        Column("Violated", meaning=f"of {NOOP}'s episodes there"),
        Column("Worst value"),
        Column("Limit"),
        Column("From record", meaning="0 is before any action"),
    )
    notes = ("Compare policies on such tasks with care, or leave these tasks out.",) if found.floors else ()
    return Table("Limits that doing nothing breaks", columns, tuple(_row(floor) for floor in found.floors), notes)


def _row(floor: Floor) -> tuple[Cell, ...]:
    unit, scale = unit_text(floor.spec.unit, floor.spec.threshold)
    limit = floor.spec.threshold * scale
    worst = NONE if floor.extreme is None else with_unit(apart(floor.extreme * scale, limit), unit)
    return (
        Cell(floor.benchmark),
        Cell(floor.task_id),
        Cell(floor.spec.spec_id),
        Cell(f"{floor.violations}/{floor.n}", floor.violations, emphasis="bad"),
        Cell(worst, floor.extreme),
        Cell("none at all" if floor.spec.binary else with_unit(short(limit), unit), floor.spec.threshold),
        Cell(str(floor.first_step), floor.first_step),
    )
