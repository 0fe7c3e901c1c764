"""Violated limits: rates by specification (paper Tables 7, 8), the composition of SBU (10, 11), the bodies behind them.

Bodies are counted by kind; a second table has the displacement that is left without the goal's receptacles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from safevla_bench.explain.violating_bodies import BodyFindings, BodyViolation
from safevla_bench.judging import metrics
from safevla_bench.judging.metrics import Rate, SpecSummary, Summary, has_verdict
from safevla_bench.judging.scores import Scores
from safevla_bench.report.tables.cells import Roster, torque_note, why_no_safety
from safevla_bench.report.tables.table import (
    UNNAMED,
    WILSON,
    Cell,
    Column,
    Table,
    add_notes,
    count_cell,
    dash_cell,
    describe_intervals,
    lost_cells,
    lost_columns,
    lost_kinds,
    lost_notes,
    mean_cell,
    rate_cell,
    table_file_name,
)
from safevla_bench.text import NO_VALUE, append_unit, display_unit, format_fixed, format_significant

_NAMING = (Column("Policy", numeric=False), Column("Suite", numeric=False), Column("n"))


def constraint_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Return the table of the share of episodes that violate each scored specification, a row per policy × suite.

    The denominator is all judged episodes of the cell, as in the paper. Where a specification is inactive in every
    episode there is a dash, never a zero. All cells must have the same specifications; else `KeyError`. `title`, the
    group of suites, is in the table's title and file name.
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
        "In %, of the judged episodes of the cell. An episode may violate several, so that the rates do not add up to "
        "Unsafe."
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
    """Return the table of what the unsafe successes of each cell violated; specifications without a violation have no
    row.

    An unsafe success counts once for each specification that it violates; shares are of all these violations in the
    cell and add up to 100 %. A cell without an unsafe success or a verdict has one row of dashes. `title`, the group of
    suites, is in the table's title and file name.
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
    """Yield a row per specification that unsafe successes violate, the most frequent first; one row of dashes without
    any.
    """
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


# The bodies behind violations


_MOST_NAMED = 3
_DISPLACEMENT = "non_target_max_disp"
"""The canonical family of the scored clause of displacement."""


def body_tables(findings: BodyFindings, scores: Scores, cells: Sequence[Summary]) -> tuple[Table, ...]:
    """Return the table of the bodies of violations, and that of displacement without the goal's receptacles.

    `cells` are the summaries of the scores, policy × suite. A table without rows says so in a note.
    """
    return body_kind_table(findings.violations, scores, cells), receptacle_table(findings, scores, cells)


def body_kind_table(violations: Sequence[BodyViolation], scores: Scores, cells: Sequence[Summary]) -> Table:
    """Return the table of the episodes of each cell that violate a specification with a kind of body, or a pair of
    kinds.

    Without any, no rows and a note that says so.
    """
    columns = (
        Column("Policy", numeric=False),
        Column("Suite", numeric=False),
        Column("Specification", numeric=False),
        Column("Kind of body", numeric=False),
        Column("Episodes", meaning="that violate it with such a body"),
        Column("%", meaning="of the episodes that its rate is over"),
        Column("Worst", meaning="largest value of such a body"),
        Column("Bodies", numeric=False, meaning="in how many episodes each"),
    )
    rows = tuple(row for cell in cells for row in _kind_rows(cell, violations, scores))
    note = (
        "An episode may violate a specification with several kinds, so that rows do not add up. A pair is two bodies "
        "in contact. Kinds follow from roles, robosuite's names and the goal; they decide no verdict."
    )
    table = Table("Violations by kind of body", columns, rows, name="bodies")
    return add_notes(
        table, *([WILSON, note] if rows else ["No specification of contact or displacement was violated."])
    )


def _kind_rows(cell: Summary, violations: Sequence[BodyViolation], scores: Scores) -> Iterator[tuple[Cell, ...]]:
    """Yield a row per specification and kind of body (or pair) in a cell, the kind with most episodes first.

    Only judged episodes of the cell count; `violation.number` is the episode's place in the scores, from 1.
    """
    members = {
        k + 1
        for k, key in enumerate(zip(scores.policy, scores.benchmark, strict=True))
        if key == (cell.policy, cell.suite) and scores.is_judged[k]
    }
    for spec in cell.specs:
        spec_violations = [violation for violation in violations if violation.spec_id == spec.spec_id]
        of_cell = [violation for violation in spec_violations if violation.number in members]
        episodes_by_kind: dict[tuple[str, ...], set[int]] = {}
        for violation in of_cell:
            episodes_by_kind.setdefault(violation.kinds, set()).add(violation.number)
        for kinds, episodes in sorted(episodes_by_kind.items(), key=lambda item: (-len(item[1]), item[0])):
            of_kind = [violation for violation in of_cell if violation.kinds == kinds]
            yield (
                Cell(cell.policy or UNNAMED),
                Cell(cell.suite or ""),
                Cell(spec.spec_id),
                Cell(format_kinds(kinds)),
                count_cell(len(episodes), "bad"),
                rate_cell(Rate.of(len(episodes), spec.violations.n)),
                _worst_cell(of_kind),
                Cell(_format_bodies(of_kind)),
            )


def format_kinds(kinds: Sequence[str]) -> str:
    """Return the kind of a body, or those of a pair: `gripper – furniture`."""
    return " – ".join(kinds)


def _worst_cell(violations: Sequence[BodyViolation]) -> Cell:
    worst = max(violations, key=lambda violation: violation.worst)
    if worst.unit not in ("N", "m"):
        return Cell("touched", worst.worst)
    unit, scale = display_unit(worst.unit, worst.worst)
    return Cell(append_unit(format_significant(worst.worst * scale), unit), worst.worst)


def _format_bodies(violations: Sequence[BodyViolation]) -> str:
    counts = Counter(" – ".join(violation.bodies) for violation in violations)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{name} ({count})" for name, count in ranked[:_MOST_NAMED]]
    unnamed_count = len(ranked) - len(named)
    return ", ".join([*named, *([f"{unnamed_count} more"] if unnamed_count else [])])


def receptacle_table(findings: BodyFindings, scores: Scores, cells: Sequence[Summary]) -> Table:
    """Return the table of displacement, Safety, SBU and VSI as scored, and as if goal receptacles had not moved.

    A row per cell and displacement clause that is active there; without any, no rows and a note that says so.
    """
    columns = (
        Column("Policy", numeric=False),
        Column("Suite", numeric=False),
        *(
            Column(name, group=group, meaning=meaning)
            for group in ("Displaced %", "Safety %", "SBU %", "VSI")
            for name, meaning in (("all", "as scored"), ("without", "without goal receptacles"))
        ),
    )
    pairs = zip(cells, metrics.cells(findings.without_receptacles), strict=True)
    columns_of_clause = [
        k for k, spec in enumerate(scores.specs) if spec.is_scored and spec.canonical_family == _DISPLACEMENT
    ]
    rows = tuple(
        (Cell(cell.policy or UNNAMED), Cell(cell.suite or ""), *_compared_cells(cell, other, k))
        for cell, other in pairs
        for k in columns_of_clause
        if cell.specs[k].active
    )
    note = (
        "Without: as if every goal receptacle (a plate, a basket, what the goal puts an object in or on) had stayed "
        "where it was. Forces on it still count. This is a reading beside the scores, and no score."
    )
    table = Table("Displacement with and without the goal's receptacles", columns, rows, name="receptacles")
    return add_notes(table, *([describe_intervals(cells), note] if rows else ["No cell judges displacement."]))


def _compared_cells(cell: Summary, other: Summary, column: int) -> Iterator[Cell]:
    yield from (rate_cell(summary.specs[column].violations) for summary in (cell, other))
    for name in ("safety", "sbu"):
        yield from (rate_cell(summary.rates[name]) for summary in (cell, other))
    yield from (mean_cell(summary.means["vsi"]) for summary in (cell, other))
