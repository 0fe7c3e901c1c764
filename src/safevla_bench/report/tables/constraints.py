"""Violated limits: rates by specification (paper Tables 7, 8), and the composition of SBU (10, 11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from safevla_bench.metrics import Rate, SpecSummary, Summary, has_verdict
from safevla_bench.report.tables.cells import Roster, torque_note, why_no_safety
from safevla_bench.report.tables.table import (
    WILSON,
    Cell,
    Column,
    Table,
    add_notes,
    count_cell,
    dash_cell,
    lost_cells,
    lost_columns,
    lost_kinds,
    lost_notes,
    rate_cell,
    table_file_name,
)
from safevla_bench.text.numbers import NO_VALUE, format_fixed

_NAMING = (Column("Policy", numeric=False), Column("Suite", numeric=False), Column("n"))


def constraint_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Tabulate the share of episodes that violate each scored specification, one row a policy × suite.

    The denominator is all episodes of the cell, as in the paper. Where a specification is inactive in every episode
    there is a dash, never a zero.
    """
    specs = {spec.spec_id: spec.axis for cell in cells for spec in cell.specs if spec.tier == "safe"}
    lost_names = lost_kinds(cells)
    columns = [Column(spec, group=axis.replace("_", " ").capitalize()) for spec, axis in specs.items()]
    rows = tuple(
        (
            *_name_cells(cell, roster),
            _unsafe_cell(cell),
            *_violation_rates(cell, specs),
            *lost_cells([cell], lost_names),
        )
        for cell in cells
    )
    unsafe = Column("Unsafe %", meaning="episodes that violate any of them")
    name = table_file_name("violations", title)
    table = Table(
        f"Violation rates by specification{': ' if title else ''}{title}",
        (*_NAMING, unsafe, *columns, *lost_columns(lost_names)),
        rows,
        name=name,
    )
    rate_note = (
        "In %, of all episodes of the cell. An episode may violate several, so that the rates do not add up to Unsafe."
    )
    notes = lost_notes(lost_names, cells)
    return add_notes(table, WILSON, rate_note, torque_note(cells), *notes, dash=_INACTIVE)


_INACTIVE = (
    f"{NO_VALUE} without a reason below it: inactive. The specification applies to no episode there, or its signal is "
    "not measured; it is never a zero."
)


def _name_cells(cell: Summary, roster: Roster) -> tuple[Cell, ...]:
    return roster.summary_cell(cell), Cell(cell.suite or NO_VALUE), count_cell(cell.n)


def _unsafe_cell(cell: Summary) -> Cell:
    if not has_verdict(cell):
        return dash_cell(why_no_safety(cell))
    safety = cell.rates["safety"]
    return rate_cell(Rate.of(safety.n - safety.count, safety.n), n=cell.n)


def _violation_rates(cell: Summary, specs: Iterable[str]) -> Iterator[Cell]:
    spec_summaries = {spec.spec_id: spec for spec in cell.specs}
    for name in specs:
        yield _violation_rate_cell(spec_summaries[name], cell.n)


def _violation_rate_cell(spec: SpecSummary, n: int) -> Cell:
    if not spec.active:
        return dash_cell()
    return dash_cell("vacuous") if spec.vacuous == spec.active else rate_cell(spec.violations, n=n)


def composition_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Tabulate what the unsafe successes of each cell violated; specifications without one have no row.

    An unsafe success counts once for each specification that it violates; shares are of all these violations in the
    cell and add up to 100 %.
    """
    columns = (
        *_NAMING,
        Column("Unsafe successes"),
        Column("SBU %", meaning="succeeded but unsafe, of all judged episodes"),
        Column("Specification", numeric=False),
        Column("Violations", meaning="in unsafe successes"),
        Column("Share %", meaning="of the cell's violations"),
    )
    rows = tuple(row for cell in cells for row in _composition_rows(cell, roster))
    name = table_file_name("composition", title)
    table = Table(f"What unsafe successes violate{': ' if title else ''}{title}", columns, rows, name=name)
    return add_notes(table, "An unsafe success counts once for each specification that it violates.")


def _composition_rows(cell: Summary, roster: Roster) -> Iterator[tuple[Cell, ...]]:
    if not has_verdict(cell):
        yield (*_name_cells(cell, roster), dash_cell(why_no_safety(cell)), *[dash_cell()] * 4)
        return
    head = (*_name_cells(cell, roster), count_cell(cell.success_unsafe), rate_cell(cell.rates["sbu"], n=cell.n))
    fired = [spec for spec in cell.specs if spec.tier == "safe" and spec.unsafe_success]
    total = sum(spec.unsafe_success for spec in fired)
    for spec in sorted(fired, key=lambda spec: -spec.unsafe_success):
        share = Fraction(100 * spec.unsafe_success, total)
        yield (*head, Cell(spec.spec_id), count_cell(spec.unsafe_success), Cell(format_fixed(share, 0), float(share)))
    if not fired:
        yield (*head, dash_cell("no unsafe success"), count_cell(0), dash_cell())
