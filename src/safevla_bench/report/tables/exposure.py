"""Tables of exposure: how long, how hard, when, and in which phase limits were broken."""

from __future__ import annotations

from collections.abc import Sequence

from safevla_bench.explain.exposure import CellExposure, SpecExposure
from safevla_bench.judging.metrics import Mean, Rate
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table
from safevla_bench.text import NO_VALUE, format_compact, format_fixed, format_interval, format_percent

_NAMES = (Column("Policy", numeric=False), Column("Suite", numeric=False))


def exposure_tables(cells: Sequence[CellExposure], force_threshold_n: float | None) -> tuple[Table, ...]:
    """Return the tables of exposure by cell, by violated specification, and by phase of the task, in this order.

    `force_threshold_n` [N] is as in `exposure_table`.
    """
    return exposure_table(cells, force_threshold_n), spec_exposure_table(cells), phase_table(cells)


def exposure_table(cells: Sequence[CellExposure], force_threshold_n: float | None) -> Table:
    """Return a table with a row per cell: mean times and impulse, median first violation, unsafe successes and
    failures.

    `force_threshold_n` [N] only names a column, a dash for None: the times above it are computed already.
    """
    threshold_text = NO_VALUE if force_threshold_n is None else f"{format_compact(force_threshold_n)} N"
    columns = (
        *_NAMES,
        Column("n", meaning="episodes counted"),
        Column("In violation", meaning="seconds an episode, of any limit"),
        Column(f"Above {threshold_text}", meaning="seconds an episode with a contact above"),
        Column("Impulse there", meaning="N s an episode, of the contacts above"),
        Column("First violation", meaning="seconds, median of unsafe episodes"),
        Column("Unsafe successes", meaning="of all successes"),
        Column("Unsafe failures", meaning="of all failures"),
    )
    notes = (
        "A record counts as one control step. What was pushed away stays in violation until it is put back. The "
        "impulse is that of whole control steps, not only what exceeds the threshold.",
        "Below each mean its 95 % interval, percentile bootstrap of episodes.",
    )
    return Table("Beyond the four numbers", columns, tuple(_exposure_row(cell) for cell in cells), notes, "exposure")


def _exposure_row(cell: CellExposure) -> tuple[Cell, ...]:
    """Return the row of a cell; dashes where nothing is recorded or counted."""
    return (
        *_name_cells(cell),
        Cell(str(cell.n), cell.n),
        _mean_seconds_cell(cell.violation_s, cell.n),
        _mean_seconds_cell(cell.above_force_s, cell.n),
        _mean_seconds_cell(cell.above_impulse_ns, cell.n),
        _seconds_cell(cell.first_s, "none unsafe"),
        _fraction_cell(cell.unsafe_successes, "no success"),
        _fraction_cell(cell.unsafe_failures, "no failure"),
    )


def spec_exposure_table(cells: Sequence[CellExposure]) -> Table:
    """Return a table with a row per cell and specification that some episode of the cell violated.

    Without any, no rows and a note that says so.
    """
    columns = (
        *_NAMES,
        Column("Specification", numeric=False),
        Column("In violation", meaning="seconds an episode in which it was judged"),
        Column("First violation", meaning="seconds, median of those that violate it"),
        Column("in successes", meaning="of those where it applies"),
        Column("in failures", meaning="of those where it applies"),
    )
    rows = tuple(_spec_row(cell, spec) for cell in cells for spec in cell.specs if _has_violation(spec))
    notes = () if rows else ("No specification was violated.",)
    return Table("Violations in time, and in successes and failures apart", columns, rows, notes, "exposure-specs")


def _has_violation(spec: SpecExposure) -> bool:
    return bool(spec.in_successes.count + spec.in_failures.count)


def _spec_row(cell: CellExposure, spec: SpecExposure) -> tuple[Cell, ...]:
    return (
        *_name_cells(cell),
        Cell(spec.spec_id),
        _mean_seconds_cell(spec.violation_s, spec.violation_s.n),
        _seconds_cell(spec.first_s, ""),
        _fraction_cell(spec.in_successes, "no success"),
        _fraction_cell(spec.in_failures, "no failure"),
    )


def phase_table(cells: Sequence[CellExposure]) -> Table:
    """Return a table with a row per cell and phase of the task; cells whose tasks hold nothing have no row."""
    columns = (
        *_NAMES,
        Column("Phase", numeric=False),
        Column("Time", meaning="seconds, all episodes"),
        Column("In violation", meaning="seconds of any limit"),
        Column("Share %", meaning="of the time of the phase"),
        Column("Begin here", meaning="episodes whose first violation lies in the phase"),
    )
    rows = tuple(
        (
            *_name_cells(cell),
            Cell(phase.phase),
            Cell(format_fixed(phase.total_s, 1), phase.total_s),
            Cell(format_fixed(phase.violation_s, 2), phase.violation_s, emphasis="bad" if phase.violation_s else ""),
            _time_share_cell(phase.violation_s, phase.total_s),
            Cell(str(phase.first_violations), phase.first_violations),
        )
        for cell in cells
        for phase in cell.phases
    )
    lacking, total = sum(cell.n - cell.phased for cell in cells), sum(cell.n for cell in cells)
    notes = [
        "Before grasp: until the first grip. Transport: gripped and more than 5 cm above its start. After release: "
        "from the last grip on. Handling: the rest between the first grip and the last."
    ]
    if lacking:
        notes.append(f"Left out: {lacking} of {total} episodes; the task holds nothing, or the record lacks the grip.")
    return Table("Violations by phase of the task", columns, rows, tuple(notes), "phases")


def _name_cells(cell: CellExposure) -> tuple[Cell, Cell]:
    return Cell(cell.policy or UNNAMED), Cell(cell.suite)


def _mean_seconds_cell(mean: Mean, n: int) -> Cell:
    if mean.value is None:
        return Cell(NO_VALUE, detail="not recorded" if n else "no episode")
    interval = format_interval(*mean.ci, digits=2) if mean.ci and mean.n > 1 else ""
    notes = ["one episode" if mean.n == 1 else interval, f"n = {mean.n}" if mean.n < n else ""]
    return Cell(format_fixed(mean.value, 2), mean.value, ", ".join(filter(None, notes)))


def _seconds_cell(value: float | None, why_none: str) -> Cell:
    return Cell(NO_VALUE, detail=why_none) if value is None else Cell(format_fixed(value, 2), value)


def _fraction_cell(rate: Rate, why_none: str) -> Cell:
    if not rate.n:
        return Cell(NO_VALUE, detail=why_none)
    share = f"{format_percent(rate.count, rate.n)} %"
    return Cell(f"{rate.count}/{rate.n}", rate.value, share, "bad" if rate.count else "")


def _time_share_cell(violation_s: float, phase_s: float) -> Cell:
    if not phase_s:
        return Cell(NO_VALUE, detail="no time in it")
    share = 100 * violation_s / phase_s
    return Cell(format_fixed(share, 1), share)
