"""Violated limits, by specification: rates (paper Tables 7, 8), counts, and the composition of SBU (10, 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from safevla_bench.judging.metrics import SpecSummary, Summary, has_verdict
from safevla_bench.judging.rates import SAFETY, SBU, Rate
from safevla_bench.report.tables.cells import Roster, suite_cell, torque_note
from safevla_bench.report.tables.columns import (
    COUNT,
    DASH,
    SUITE,
    WILSON,
    lost_columns,
    lost_notes,
    mean_cell,
    policy_name,
    rate_cell,
    why_no_safety,
)
from safevla_bench.report.tables.table import Cell, Column, Table, add_notes, table_file_name, tabulate, text_column
from safevla_bench.text import NO_VALUE, format_fixed


@dataclass(frozen=True, slots=True)
class _SpecRow:
    """A specification in a cell."""

    cell: Summary
    spec: SpecSummary


def constraint_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Return the table of the share of episodes that violate each scored specification, a row per policy × suite.

    The denominator is all judged episodes of the cell, as in the paper. Where a specification is inactive in every
    episode there is a dash, never a zero. All cells must have the same specifications; else `KeyError`. `title`, the
    group of suites, is in the table's title and file name.
    """
    specs = {spec.spec_id: spec.axis for cell in cells for spec in cell.specs if spec.tier == "safe"}
    return tabulate(
        f"Violation rates by specification{': ' if title else ''}{title}",
        cells,
        (
            roster.policy_column(),
            SUITE,
            COUNT,
            Column("Unsafe %", "episodes that violate any of them", _unsafe_cell),
            *(
                Column(spec_id, group=axis.replace("_", " ").capitalize(), value=partial(_violation_rate_cell, spec_id))
                for spec_id, axis in specs.items()
            ),
            *lost_columns(cells),
        ),
        name=table_file_name("violations", title),
        notes=(
            WILSON,
            "In %, of the judged episodes of the cell. An episode may violate several, so that the rates do not add up "
            "to Unsafe.",
            torque_note(cells),
            *lost_notes(cells),
        ),
        dash=f"{NO_VALUE} without a reason below it: inactive. The specification applies to no episode there, or its "
        "signal is not measured; it is never a zero.",
    )


def _unsafe_cell(cell: Summary) -> Cell:
    if not has_verdict(cell):
        return Cell.dash(why_no_safety(cell))
    safety = cell.rates[SAFETY.key]
    return rate_cell(Rate.of(safety.n - safety.count, safety.n), n=cell.n)


def _violation_rate_cell(spec_id: str, cell: Summary) -> Cell:
    spec = {spec.spec_id: spec for spec in cell.specs}[spec_id]
    if not spec.active:
        return Cell.dash()
    return Cell.dash("vacuous") if spec.vacuous == spec.active else rate_cell(spec.violations, n=cell.n)


def violation_table(cells: Sequence[Summary], *, scored: bool = True) -> Table:
    """Return the table of the violations of each specification, a row per cell and specification.

    A specification that is inactive, vacuous or without a verdict in every episode of a cell has dashes there. With a
    single cell the columns that name it are left out. `scored`: the safe tier; else diagnostics and alternate tiers,
    which enter no headline number.
    """
    names = (
        text_column("Policy", lambda row: policy_name(row.cell)),
        text_column("Suite", lambda row: suite_cell(row.cell)),
    )
    stopped = any(cell.stopped_on_violation for cell in cells)
    return tabulate(
        "Violations by specification" if scored else "Diagnostics and alternate limits, outside every score",
        [_SpecRow(cell, spec) for cell in cells for spec in cell.specs if (spec.tier == "safe") == scored],
        (
            *(names if len(cells) > 1 else ()),
            text_column("Specification", lambda row: row.spec.spec_id),
            Column("Violated", "of the judged episodes in the cell", _violated_cell),
            Column("% of all", "with 95 % Wilson interval", _judged(lambda spec: rate_cell(spec.violations))),
            Column("of active", "of the episodes where it applies", _judged(_active_cell)),
            Column("in successes", "violations in successful episodes", _judged(lambda spec: spec.unsafe_success)),
            Column(
                "Depth",
                "mean normalised depth where it applies, 0 to 1",
                _judged(lambda spec: mean_cell(spec.nsv, "ungraded")),
            ),
            Column("Vacuous", "applies, but its condition never arose", lambda row: row.spec.vacuous),
            Column("Inactive", "does not apply, or was not measured", lambda row: sum(row.spec.inactive.values())),
        ),
        notes=(
            "An episode counts once for each specification that it violates.",
            "A violation stopped some episodes: what they would have violated later is not known." if stopped else "",
        ),
        dash=DASH,
        name="violations-by-cell" if scored else "diagnostics",
    )


def _judged(make_cell: Callable[[SpecSummary], Cell | int]) -> Callable[[_SpecRow], Cell | int]:
    return lambda row: Cell.dash() if _why_unjudged(row) else make_cell(row.spec)


def _violated_cell(row: _SpecRow) -> Cell:
    if why := _why_unjudged(row):
        return Cell.dash(why)
    broken = row.spec.violations.count
    return Cell(f"{broken}/{row.spec.violations.n}", broken, emphasis="bad" if broken else "")


def _active_cell(spec: SpecSummary) -> Cell:
    return Cell(f"{spec.violations.count}/{spec.violations_when_active.n}", spec.violations.count)


def _why_unjudged(row: _SpecRow) -> str:
    """Return why there is no verdict: inactive in all episodes, vacuous in all where it applies, or not judged."""
    spec = row.spec
    if not spec.active:
        return "inactive" if spec.inactive else "no episode"
    if spec.vacuous == spec.active:
        return "vacuous"
    return "" if spec.violations.n else why_no_safety(row.cell)


def composition_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Return the table of what the unsafe successes of each cell violated; specifications without a violation have no
    row.

    An unsafe success counts once for each specification that it violates; shares are of all these violations in the
    cell and add up to 100 %. A cell without an unsafe success or a verdict has one row of dashes. `title` is as in
    `constraint_table`.
    """
    columns = (
        *(text_column(name) for name in ("Policy", "Suite")),
        Column("n"),
        Column("Unsafe successes"),
        Column(SBU.heading, SBU.meaning),
        text_column("Specification"),
        Column("Violations", "in unsafe successes"),
        Column("Share %", "of the cell's violations"),
    )
    rows = tuple(row for cell in cells for row in _composition_rows(cell, roster))
    heading = f"What unsafe successes violate{': ' if title else ''}{title}"
    table = Table(heading, columns, rows, name=table_file_name("composition", title))
    return add_notes(table, "An unsafe success counts once for each specification that it violates.", dash=DASH)


def _composition_rows(cell: Summary, roster: Roster) -> Iterator[tuple[Cell, ...]]:
    """Yield a row per specification that unsafe successes violate, the most frequent first; one of dashes if none."""
    names = tuple(column.cell(cell) for column in (roster.policy_column(), SUITE, COUNT))
    if not has_verdict(cell):
        yield (*names, Cell.dash(why_no_safety(cell)), *[Cell.dash()] * 4)
        return
    head = (*names, Cell.count(cell.success_unsafe), rate_cell(cell.rates[SBU.key], n=cell.n))
    fired = [spec for spec in cell.specs if spec.tier == "safe" and spec.unsafe_success]
    total = sum(spec.unsafe_success for spec in fired)
    for spec in sorted(fired, key=lambda spec: -spec.unsafe_success):
        share = Fraction(100 * spec.unsafe_success, total)
        yield (*head, Cell(spec.spec_id), Cell.count(spec.unsafe_success), Cell(format_fixed(share, 0), float(share)))
    if not fired:
        yield (*head, Cell.dash("no unsafe success"), Cell.count(0), Cell.dash())
