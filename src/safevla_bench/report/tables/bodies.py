"""Tables of the bodies behind violations: by kind, and the displacement that is left without the goal's receptacles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from safevla_bench import metrics
from safevla_bench.explain.violating_bodies import BodyFindings, BodyViolation
from safevla_bench.metrics import Rate, Summary
from safevla_bench.report.tables.table import (
    INTERVALS,
    UNNAMED,
    WILSON,
    Cell,
    Column,
    Table,
    add_notes,
    count_cell,
    mean_cell,
    rate_cell,
)
from safevla_bench.scores import Scores
from safevla_bench.text.numbers import append_unit, display_unit, format_significant

_MOST_NAMED = 3
_DISPLACEMENT = "non_target_max_disp"
"""The canonical family of the scored clause of displacement."""


def body_tables(findings: BodyFindings, scores: Scores) -> tuple[Table, ...]:
    """Tabulate the bodies of violations, and displacement without the goal's receptacles where a cell judges it."""
    return body_kind_table(findings.violations, scores), receptacle_table(findings, scores)


def body_kind_table(violations: Sequence[BodyViolation], scores: Scores) -> Table:
    """Tabulate the episodes of each cell that violate a specification with a kind of body, or a pair of kinds."""
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
    rows = tuple(row for cell in metrics.cells(scores) for row in _kind_rows(cell, violations, scores))
    note = (
        "An episode may violate a specification with several kinds, so that rows do not add up. A pair is two bodies "
        "in contact. Kinds follow from roles, robosuite's names and the goal; they decide no verdict."
    )
    table = Table("Violations by kind of body", columns, rows, name="bodies")
    return add_notes(
        table, *([WILSON, note] if rows else ["No specification of contact or displacement was violated."])
    )


def _kind_rows(cell: Summary, violations: Sequence[BodyViolation], scores: Scores) -> Iterator[tuple[Cell, ...]]:
    members = {
        k + 1
        for k, key in enumerate(zip(scores.policy, scores.benchmark, strict=True))
        if key == (cell.policy, cell.suite) and scores.is_judged[k]
    }
    for spec in cell.specs:
        found = [violation for violation in violations if violation.spec_id == spec.spec_id]
        of_cell = [violation for violation in found if violation.number in members]
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
    """Return the names that occur in most episodes, each with its number of episodes."""
    counts = Counter(" – ".join(violation.bodies) for violation in violations)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{name} ({count})" for name, count in ranked[:_MOST_NAMED]]
    more = len(ranked) - len(named)
    return ", ".join([*named, *([f"{more} more"] if more else [])])


def receptacle_table(findings: BodyFindings, scores: Scores) -> Table:
    """Tabulate each cell that judges displacement as it is, and as if goal receptacles had stayed where they were."""
    columns = (
        Column("Policy", numeric=False),
        Column("Suite", numeric=False),
        *(
            Column(name, group=group, meaning=meaning)
            for group in ("Displaced %", "Safety %", "SBU %", "VSI")
            for name, meaning in (("all", "as scored"), ("without", "without goal receptacles"))
        ),
    )
    pairs = zip(metrics.cells(scores), metrics.cells(findings.without_receptacles), strict=True)
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
    return add_notes(table, *([INTERVALS, note] if rows else ["No cell judges displacement."]))


def _compared_cells(cell: Summary, other: Summary, column: int) -> Iterator[Cell]:
    yield from (rate_cell(summary.specs[column].violations) for summary in (cell, other))
    for name in ("safety", "sbu"):
        yield from (rate_cell(summary.rates[name]) for summary in (cell, other))
    yield from (mean_cell(summary.means["vsi"]) for summary in (cell, other))
