"""Tables of exposure: how long, how hard, when, and in which phase limits were broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from safevla_bench.explain.exposure import CellExposure
from safevla_bench.judging.rates import Mean, Rate
from safevla_bench.report.tables.table import (
    POLICY,
    SUITE,
    Cell,
    Column,
    Emphasis,
    Table,
    number_cell,
    tabulate,
    text_column,
)
from safevla_bench.text import NO_VALUE, format_compact, format_fixed, format_interval, format_percent

_WHERE_IT_APPLIES = "of those where it applies"


def exposure_tables(cells: Sequence[CellExposure], force_threshold_n: float | None) -> tuple[Table, ...]:
    """Return the tables of exposure by cell, by violated specification, and by phase of the task, in this order.

    `force_threshold_n` [N] only names a column, a dash for None.
    """
    return exposure_table(cells, force_threshold_n), spec_exposure_table(cells), phase_table(cells)


def exposure_table(cells: Sequence[CellExposure], force_threshold_n: float | None) -> Table:
    """Return a table with a row per cell: mean times and impulse, median first violation, unsafe successes and
    failures.
    """
    threshold_text = NO_VALUE if force_threshold_n is None else f"{format_compact(force_threshold_n)} N"
    above = Column(
        f"Above {threshold_text}",
        "seconds an episode with a contact above",
        lambda row: _mean_seconds_cell(row.above_force_s, row.n),
    )
    notes = (
        "A record counts as one control step. What was pushed away stays in violation until it is put back. The "
        "impulse is that of whole control steps, not only what exceeds the threshold.",
        "Below each mean its 95 % interval, percentile bootstrap of episodes.",
    )
    columns = (*_EXPOSURE[:4], above, *_EXPOSURE[4:])
    return tabulate("Beyond the four numbers", cells, columns, notes=notes, name="exposure")


_EXPOSURE = (
    POLICY,
    SUITE,
    Column("n", "episodes counted", lambda row: row.n),
    Column("In violation", "seconds an episode, of any limit", lambda row: _mean_seconds_cell(row.violation_s, row.n)),
    Column(
        "Impulse there",
        "N s an episode, of the contacts above",
        lambda row: _mean_seconds_cell(row.above_impulse_ns, row.n),
    ),
    Column(
        "First violation", "seconds, median of unsafe episodes", lambda row: number_cell(row.first_s, 2, "none unsafe")
    ),
    Column("Unsafe successes", "of all successes", lambda row: _fraction_cell(row.unsafe_successes, "no success")),
    Column("Unsafe failures", "of all failures", lambda row: _fraction_cell(row.unsafe_failures, "no failure")),
)


@dataclass(frozen=True, slots=True)
class _Part:
    """A specification, or a phase, of a cell."""

    policy: str | None
    suite: str
    of: Any


def spec_exposure_table(cells: Sequence[CellExposure]) -> Table:
    """Return a table with a row per cell and specification that some episode of the cell violated.

    Without any, no rows and a note that says so.
    """
    parts = [_Part(cell.policy, cell.suite, spec) for cell in cells for spec in cell.specs]
    rows = [part for part in parts if part.of.in_successes.count + part.of.in_failures.count]
    notes = () if rows else ("No specification was violated.",)
    title = "Violations in time, and in successes and failures apart"
    return tabulate(title, rows, _SPEC_EXPOSURE, notes=notes, name="exposure-specs")


_SPEC_EXPOSURE = (
    POLICY,
    SUITE,
    text_column("Specification", lambda row: row.of.spec_id),
    Column(
        "In violation",
        "seconds an episode in which it was judged",
        lambda row: _mean_seconds_cell(row.of.violation_s, row.of.violation_s.n),
    ),
    Column(
        "First violation", "seconds, median of those that violate it", lambda row: number_cell(row.of.first_s, 2, "")
    ),
    Column("in successes", _WHERE_IT_APPLIES, lambda row: _fraction_cell(row.of.in_successes, "no success")),
    Column("in failures", _WHERE_IT_APPLIES, lambda row: _fraction_cell(row.of.in_failures, "no failure")),
)


def phase_table(cells: Sequence[CellExposure]) -> Table:
    """Return a table with a row per cell and phase of the task; cells whose tasks hold nothing have no row."""
    lacking, total = sum(cell.n - cell.phased for cell in cells), sum(cell.n for cell in cells)
    left_out = f"Left out: {lacking} of {total} episodes; the task holds nothing, or the record lacks the grip."
    rows = [_Part(cell.policy, cell.suite, phase) for cell in cells for phase in cell.phases]
    notes = (
        "Before grasp: until the first grip. Transport: gripped and more than 5 cm above its start. After release: "
        "from the last grip on. Handling: the rest between the first grip and the last.",
        left_out if lacking else "",
    )
    return tabulate("Violations by phase of the task", rows, _PHASES, notes=notes, name="phases")


def _violation_cell(row: _Part) -> Cell:
    return number_cell(row.of.violation_s, 2, emphasis=_bad(row.of.violation_s))


def _bad(number: float) -> Emphasis:
    return "bad" if number else ""


_PHASES = (
    POLICY,
    SUITE,
    text_column("Phase", lambda row: row.of.phase),
    Column("Time", "seconds, all episodes", lambda row: number_cell(row.of.total_s, 1)),
    Column(
        "In violation",
        "seconds of any limit",
        lambda row: number_cell(row.of.violation_s, 2, emphasis=_bad(row.of.violation_s)),
    ),
    Column("Share %", "of the time of the phase", lambda row: _time_share_cell(row.of.violation_s, row.of.total_s)),
    Column("Begin here", "episodes whose first violation lies in the phase", lambda row: row.of.first_violations),
)


def _mean_seconds_cell(mean: Mean, n: int) -> Cell:
    if mean.value is None:
        return Cell(NO_VALUE, detail="not recorded" if n else "no episode")
    interval = format_interval(*mean.ci, digits=2) if mean.ci and mean.n > 1 else ""
    notes = ["one episode" if mean.n == 1 else interval, f"n = {mean.n}" if mean.n < n else ""]
    return Cell(format_fixed(mean.value, 2), mean.value, ", ".join(filter(None, notes)))


def _fraction_cell(rate: Rate, why_none: str) -> Cell:
    if not rate.n:
        return Cell(NO_VALUE, detail=why_none)
    share = f"{format_percent(rate.count, rate.n)} %"
    return Cell(f"{rate.count}/{rate.n}", rate.value, share, _bad(rate.count))


def _time_share_cell(violation_s: float, phase_s: float) -> Cell:
    if not phase_s:
        return Cell(NO_VALUE, detail="no time in it")
    return number_cell(100 * violation_s / phase_s, 1)
