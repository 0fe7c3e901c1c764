"""One row a cell: the headline numbers, and how often each specification was violated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from safevla_bench import provenance_marks
from safevla_bench.metrics import SpecSummary, Summary, judged
from safevla_bench.report.tables.table import (
    INTERVALS,
    Cell,
    Column,
    Table,
    count,
    lost,
    lost_cells,
    lost_columns,
    mean,
    none,
    policy_name,
    proportion,
    with_notes,
)
from safevla_bench.text.numbers import NONE

LOST = "Crashed and stopped episodes are outside n, in no rate."

_HEADLINE = (
    Column("n", meaning="episodes counted"),
    Column("SR %", meaning="success rate"),
    Column("Safety %", meaning="share of episodes that break no limit"),
    Column("SBU %", meaning="succeeded but unsafe, of all episodes"),
    Column("P[U|S] %", meaning="unsafe, of the successes"),
    Column("VSI", meaning="mean severity of the worst violation, 0 to 1"),
    Column("VSI|U", meaning="the same over unsafe episodes only"),
)


def main(
    cells: Sequence[Summary],
    aggregate: Summary | None = None,
    *,
    privileged: Collection[str | None] = (),
) -> Table:
    """The headline numbers, one row a policy × suite, and all episodes pooled where there are several cells.

    Args:
        cells: one summary a row.
        aggregate: all episodes pooled.
        privileged: the policies that used simulator state no real robot has; their rows say so.
    """
    pooled = [aggregate] if aggregate is not None and len(cells) > 1 else []
    gone = lost(cells)
    columns = (Column("Policy", numeric=False), Column("Suite", numeric=False), *_HEADLINE)
    rows = [(*_names(cell, privileged), *_headline(cell), *lost_cells([cell], gone)) for cell in cells]
    for one in pooled:
        names = Cell("All, pooled", emphasis="total"), Cell("", detail=_assets(one))
        rows.append((*names, *_headline(one), *lost_cells([one], gone)))
    table = Table("Headline numbers", (*columns, *lost_columns(gone)), tuple(rows), name="headline")
    return replace(with_notes(table, INTERVALS, LOST if gone else ""), remarks=provenance_marks.of_cells(cells))


def _names(cell: Summary, privileged: Collection[str | None]) -> tuple[Cell, Cell]:
    detail = "privileged state" if cell.policy in privileged else ""
    return Cell(policy_name(cell), detail=detail), Cell(cell.suite or NONE, detail=_assets(cell))


def _assets(cell: Summary) -> str:
    return provenance_marks.STANDIN if cell.standin_assets else ""


def _headline(cell: Summary) -> tuple[Cell, ...]:
    """The numbers of a cell; where no specification reached a verdict, only its success is known."""
    no_episode = "" if cell.n else "no episode"
    if cell.n and not judged(cell):
        return (count(cell.n), proportion(cell.rates["sr"]), *[none("no verdict")] * 5)
    return (
        count(cell.n),
        proportion(cell.rates["sr"], no_episode),
        proportion(cell.rates["safety"], no_episode),
        proportion(cell.rates["sbu"], no_episode),
        proportion(cell.rates["p_unsafe_given_success"], no_episode or "no success"),
        mean(cell.means["vsi"], no_episode),
        mean(cell.means["vsi_given_unsafe"], no_episode or "none unsafe"),
    )


def violations(cells: Sequence[Summary], *, scored: bool = True) -> Table:
    """How often each specification was violated; one row a cell and specification.

    A specification that is inactive in every episode of a cell has dashes: it was not judged there.

    Args:
        cells: the summaries; with a single one the columns that name it are left out.
        scored: the safe tier; else diagnostics and alternate tiers, which enter no headline number.
    """
    several = len(cells) > 1
    naming = (Column("Policy", numeric=False), Column("Suite", numeric=False)) if several else ()
    rows = tuple(
        (*(_names(cell, ()) if several else ()), *_violation(cell, spec))
        for cell in cells
        for spec in cell.specs
        if (spec.tier == "safe") == scored
    )
    title = "Violations by specification" if scored else "Diagnostics and alternate limits, outside every score"
    table = Table(title, (*naming, *_VIOLATION), rows, name="violations-by-cell" if scored else "diagnostics")
    return with_notes(table, "An episode counts once for each specification that it violates.")


_VIOLATION = (
    Column("Specification", numeric=False),
    Column("Violated", meaning="episodes of all in the cell"),
    Column("% of all", meaning="with 95 % Wilson interval"),
    Column("of active", meaning="of the episodes where it applies"),
    Column("in successes", meaning="violations in successful episodes"),
    Column("Depth", meaning="mean normalised depth where it applies, 0 to 1"),
    Column("Vacuous", meaning="applies, but its condition never arose"),
    Column("Inactive", meaning="does not apply, or was not measured"),
)


def _violation(cell: Summary, spec: SpecSummary) -> tuple[Cell, ...]:
    inactive = sum(spec.inactive.values())
    outside = (count(spec.vacuous), count(inactive))
    if not spec.active:
        return (Cell(spec.spec_id), none("inactive" if inactive else "no episode"), *[none()] * 4, *outside)
    if spec.vacuous == spec.active:
        return (Cell(spec.spec_id), none("vacuous"), *[none()] * 4, *outside)
    broken = spec.violations.count
    return (
        Cell(spec.spec_id),
        Cell(f"{broken}/{cell.n}", broken, emphasis="bad" if broken else ""),
        proportion(spec.violations),
        Cell(f"{broken}/{spec.active}", broken),
        count(spec.unsafe_success),
        mean(spec.nsv, "ungraded"),
        *outside,
    )
