"""Which limits were broken: rates by specification (paper Tables 7, 8), and what SBU is made of (10, 11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from safevla_bench.metrics import Rate, SpecSummary, Summary, judged
from safevla_bench.report.tables.cells import LOST
from safevla_bench.report.tables.policy_list import Roster
from safevla_bench.report.tables.table import (
    WILSON,
    Cell,
    Column,
    Table,
    count,
    file_name,
    lost,
    lost_cells,
    lost_columns,
    none,
    proportion,
    with_notes,
)
from safevla_bench.text.numbers import NONE, fixed

_NAMING = (Column("Policy", numeric=False), Column("Suite", numeric=False), Column("n"))


def constraints(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """The share of a cell's episodes that violate each scored specification, one row a policy × suite.

    The denominator is all episodes of the cell, as in the paper. Where a specification is inactive in every episode
    there is a dash, never a zero.
    """
    specs = {spec.spec_id: spec.axis for cell in cells for spec in cell.specs if spec.tier == "safe"}
    gone = lost(cells)
    columns = [Column(spec, group=axis.replace("_", " ").capitalize()) for spec, axis in specs.items()]
    rows = tuple(
        (*_named(cell, roster), _unsafe(cell), *_rates(cell, specs), *lost_cells([cell], gone)) for cell in cells
    )
    unsafe = Column("Unsafe %", meaning="episodes that violate any of them")
    name = file_name("violations", title)
    table = Table(
        f"Violation rates by specification{': ' if title else ''}{title}",
        (*_NAMING, unsafe, *columns, *lost_columns(gone)),
        rows,
        name=name,
    )
    rates = (
        "In %, of all episodes of the cell. An episode may violate several, so that the rates do not add up to Unsafe."
    )
    return with_notes(table, WILSON, rates, LOST if gone else "", dash=_INACTIVE)


_INACTIVE = (
    f"{NONE} without a reason below it: inactive. The specification applies to no episode there, or its signal is not "
    "measured; it is never a zero."
)


def _named(cell: Summary, roster: Roster) -> tuple[Cell, ...]:
    return roster.named(cell), Cell(cell.suite or NONE), count(cell.n)


def _unsafe(cell: Summary) -> Cell:
    if not judged(cell):
        return none("no verdict" if cell.n else "no episode")
    return proportion(Rate.of(cell.success_unsafe + cell.failure_unsafe, cell.n))


def _rates(cell: Summary, specs: Iterable[str]) -> Iterator[Cell]:
    found = {spec.spec_id: spec for spec in cell.specs}
    for name in specs:
        yield _violated(found[name])


def _violated(spec: SpecSummary) -> Cell:
    if not spec.active:
        return none()
    return none("vacuous") if spec.vacuous == spec.active else proportion(spec.violations)


def composition(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """What the unsafe successes of each cell violated; specifications that never did so are left out.

    An unsafe success counts once for each specification that it violates; shares are of all these violations in the
    cell and add up to 100 %.
    """
    columns = (
        *_NAMING,
        Column("Unsafe successes"),
        Column("SBU %", meaning="succeeded but unsafe, of all episodes"),
        Column("Specification", numeric=False),
        Column("Violations", meaning="in unsafe successes"),
        Column("Share %", meaning="of the cell's violations"),
    )
    rows = tuple(row for cell in cells for row in _composed(cell, roster))
    name = file_name("composition", title)
    table = Table(f"What unsafe successes violate{': ' if title else ''}{title}", columns, rows, name=name)
    return with_notes(table, "An unsafe success counts once for each specification that it violates.")


def _composed(cell: Summary, roster: Roster) -> Iterator[tuple[Cell, ...]]:
    if not judged(cell):
        why = "no verdict" if cell.n else "no episode"
        yield (*_named(cell, roster), none(why), none(), none(), none(), none())
        return
    head = (*_named(cell, roster), count(cell.success_unsafe), proportion(cell.rates["sbu"]))
    fired = [spec for spec in cell.specs if spec.tier == "safe" and spec.unsafe_success]
    total = sum(spec.unsafe_success for spec in fired)
    for spec in sorted(fired, key=lambda one: -one.unsafe_success):
        share = Fraction(100 * spec.unsafe_success, total)
        yield (*head, Cell(spec.spec_id), count(spec.unsafe_success), Cell(fixed(share, 0), float(share)))
    if not fired:
        yield (*head, none("no unsafe success"), count(0), none())
