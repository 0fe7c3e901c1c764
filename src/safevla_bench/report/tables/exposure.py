"""Tables beyond the four numbers: how long, how hard, when, and in which phase limits were broken."""

from __future__ import annotations

from collections.abc import Sequence

from safevla_bench.exposure import CellExposure, SpecExposure
from safevla_bench.metrics import Mean, Rate
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.text.numbers import NONE, fixed, percent, short, span

_NAMES = (Column("Policy", numeric=False), Column("Suite", numeric=False))


def tables(cells: Sequence[CellExposure], force_threshold_n: float | None) -> tuple[Table, ...]:
    """Exposure of each cell; of each specification that some cell violated; and of each phase of the task."""
    return exposure(cells, force_threshold_n), by_specification(cells), by_phase(cells)


def exposure(cells: Sequence[CellExposure], force_threshold_n: float | None) -> Table:
    """One row a cell: means over its episodes, and unsafe episodes among successes and among failures."""
    limit = NONE if force_threshold_n is None else f"{short(force_threshold_n)} N"
    columns = (
        *_NAMES,
        Column("n", meaning="episodes counted"),
        Column("In violation", meaning="seconds an episode, of any limit"),
        Column(f"Above {limit}", meaning="seconds an episode with a contact above"),
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
    return Table("Beyond the four numbers", columns, tuple(_row(cell) for cell in cells), notes, "exposure")


def _row(cell: CellExposure) -> tuple[Cell, ...]:
    return (
        *_naming(cell),
        Cell(str(cell.n), cell.n),
        _mean(cell.violation_s, cell.n),
        _mean(cell.above_force_s, cell.n),
        _mean(cell.above_impulse_ns, cell.n),
        _seconds(cell.first_s, "none unsafe"),
        _count(cell.unsafe_successes, "no success"),
        _count(cell.unsafe_failures, "no failure"),
    )


def by_specification(cells: Sequence[CellExposure]) -> Table:
    """One row a cell and specification that it violated."""
    columns = (
        *_NAMES,
        Column("Specification", numeric=False),
        Column("In violation", meaning="seconds an episode in which it was judged"),
        Column("First violation", meaning="seconds, median of those that violate it"),
        Column("in successes", meaning="of those where it applies"),
        Column("in failures", meaning="of those where it applies"),
    )
    rows = tuple(_spec_row(cell, spec) for cell in cells for spec in cell.specs if _violated(spec))
    notes = () if rows else ("No specification was violated.",)
    return Table("Violations in time, and in successes and failures apart", columns, rows, notes, "exposure-specs")


def _violated(spec: SpecExposure) -> bool:
    return bool(spec.in_successes.count + spec.in_failures.count)


def _spec_row(cell: CellExposure, spec: SpecExposure) -> tuple[Cell, ...]:
    return (
        *_naming(cell),
        Cell(spec.spec_id),
        _mean(spec.violation_s, spec.violation_s.n),
        _seconds(spec.first_s, ""),
        _count(spec.in_successes, "no success"),
        _count(spec.in_failures, "no failure"),
    )


def by_phase(cells: Sequence[CellExposure]) -> Table:
    """One row a cell and phase; cells whose tasks hold nothing have none."""
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
            *_naming(cell),
            Cell(phase.phase),
            Cell(fixed(phase.total_s, 1), phase.total_s),
            Cell(fixed(phase.violation_s, 2), phase.violation_s, emphasis="bad" if phase.violation_s else ""),
            _share(phase.violation_s, phase.total_s),
            Cell(str(phase.first_violations), phase.first_violations),
        )
        for cell in cells
        for phase in cell.phases
    )
    lacking, whole = sum(cell.n - cell.phased for cell in cells), sum(cell.n for cell in cells)
    notes = [
        "Before grasp: until the first grip. Transport: gripped and more than 5 cm above its start. After release: "
        "from the last grip on. Handling: the rest between the first grip and the last."
    ]
    if lacking:
        notes.append(f"Left out: {lacking} of {whole} episodes; the task holds nothing, or the record lacks the grip.")
    return Table("Violations by phase of the task", columns, rows, tuple(notes), "phases")


def _naming(cell: CellExposure) -> tuple[Cell, Cell]:
    return Cell(cell.policy or UNNAMED), Cell(cell.suite)


def _mean(of: Mean, n: int) -> Cell:
    """A mean with its interval; where it is over fewer than n episodes it says so."""
    if of.value is None or of.ci is None:
        return Cell(NONE, detail="not recorded" if n else "no episode")
    fewer = f", n = {of.n}" if of.n < n else ""
    return Cell(fixed(of.value, 2), of.value, (span(*of.ci, digits=2) if of.n > 1 else "one episode") + fewer)


def _seconds(value: float | None, why_none: str) -> Cell:
    return Cell(NONE, detail=why_none) if value is None else Cell(fixed(value, 2), value)


def _count(rate: Rate, why_none: str) -> Cell:
    if not rate.n:
        return Cell(NONE, detail=why_none)
    return Cell(f"{rate.count}/{rate.n}", rate.value, f"{percent(rate.count, rate.n)} %", "bad" if rate.count else "")


def _share(part: float, whole: float) -> Cell:
    return Cell(fixed(100 * part / whole, 1), part / whole) if whole else Cell(NONE, detail="no time in it")
