"""Violated limits: rates by specification (paper Tables 7, 8), the composition of SBU (10, 11), the bodies behind them.

Bodies are counted by kind; a second table has the displacement that is left without the goal's receptacles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from safevla_bench.explain.bodies import BodyFindings, BodyViolation
from safevla_bench.explain.exposure import CellExposure
from safevla_bench.judging import metrics
from safevla_bench.judging.metrics import SpecSummary, Summary, has_verdict
from safevla_bench.judging.rates import SAFETY, SBU, VSI, Mean, Rate
from safevla_bench.judging.scores import Scores
from safevla_bench.report.tables.cells import Roster, torque_note
from safevla_bench.report.tables.table import (
    COUNT,
    DASH,
    POLICY,
    SUITE,
    WILSON,
    Cell,
    Column,
    Emphasis,
    Table,
    add_notes,
    count_cell,
    dash_cell,
    describe_intervals,
    lost_columns,
    lost_notes,
    mean_cell,
    number_cell,
    rate_cell,
    table_file_name,
    tabulate,
    text_column,
    why_no_safety,
)
from safevla_bench.text import (
    NO_VALUE,
    append_unit,
    display_unit,
    format_compact,
    format_fixed,
    format_interval,
    format_percent,
    format_significant,
)


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
        return dash_cell(why_no_safety(cell))
    safety = cell.rates[SAFETY.key]
    return rate_cell(Rate.of(safety.n - safety.count, safety.n), n=cell.n)


def _violation_rate_cell(spec_id: str, cell: Summary) -> Cell:
    spec = {spec.spec_id: spec for spec in cell.specs}[spec_id]
    if not spec.active:
        return dash_cell()
    return dash_cell("vacuous") if spec.vacuous == spec.active else rate_cell(spec.violations, n=cell.n)


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
        yield (*names, dash_cell(why_no_safety(cell)), *[dash_cell()] * 4)
        return
    head = (*names, count_cell(cell.success_unsafe), rate_cell(cell.rates[SBU.key], n=cell.n))
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

    `cells` are the summaries of the scores. A table without rows says so in a note.
    """
    return body_kind_table(findings.violations, scores, cells), receptacle_table(findings, scores, cells)


@dataclass(frozen=True, slots=True)
class _KindRow:
    """The violations of a specification with a kind of body, or a pair of kinds, in a cell."""

    policy: str | None
    suite: str | None
    spec: SpecSummary
    kinds: tuple[str, ...]
    violations: Sequence[BodyViolation]

    @property
    def episodes(self) -> int:
        return len({violation.number for violation in self.violations})


def body_kind_table(violations: Sequence[BodyViolation], scores: Scores, cells: Sequence[Summary]) -> Table:
    """Return the table of the episodes of each cell that violate a specification with a kind of body, or a pair of
    kinds.

    Without any, no rows and a note that says so.
    """
    rows = [row for cell in cells for row in _kind_rows(cell, violations, scores)]
    note = (
        "An episode may violate a specification with several kinds, so that rows do not add up. A pair is two bodies "
        "in contact. Kinds follow from roles, robosuite's names and the goal; they decide no verdict."
    )
    return tabulate(
        "Violations by kind of body",
        rows,
        (
            POLICY,
            _SUITE,
            text_column("Specification", lambda row: row.spec.spec_id),
            text_column("Kind of body", lambda row: format_kinds(row.kinds)),
            Column("Episodes", "that violate it with such a body", lambda row: count_cell(row.episodes, "bad")),
            Column(
                "%",
                "of the episodes that its rate is over",
                lambda row: rate_cell(Rate.of(row.episodes, row.spec.violations.n)),
            ),
            Column("Worst", "largest value of such a body", lambda row: _worst_cell(row.violations)),
            text_column("Bodies", lambda row: _format_bodies(row.violations), "in how many episodes each"),
        ),
        name="bodies",
        notes=[WILSON, note] if rows else ["No specification of contact or displacement was violated."],
        dash=DASH,
    )


_SUITE = text_column("Suite", lambda row: row.suite or "")


def _kind_rows(cell: Summary, violations: Sequence[BodyViolation], scores: Scores) -> Iterator[_KindRow]:
    """Yield a row per specification and kind of body (or pair) in a cell, the kind with most episodes first."""
    members = {
        k
        for k, key in enumerate(zip(scores.policy, scores.benchmark, strict=True), start=1)
        if key == (cell.policy, cell.suite) and scores.is_judged[k - 1]
    }
    for spec in cell.specs:
        by_kind: dict[tuple[str, ...], list[BodyViolation]] = {}
        for violation in violations:
            if violation.spec_id == spec.spec_id and violation.number in members:
                by_kind.setdefault(violation.kinds, []).append(violation)
        rows = [_KindRow(cell.policy, cell.suite, spec, kinds, of_kind) for kinds, of_kind in by_kind.items()]
        yield from sorted(rows, key=lambda row: (-row.episodes, row.kinds))


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
    clauses = [k for k, spec in enumerate(scores.specs) if spec.is_scored and spec.canonical_family == _DISPLACEMENT]
    without = metrics.cells(findings.without_receptacles)
    rows = [
        (cell, other, k) for cell, other in zip(cells, without, strict=True) for k in clauses if cell.specs[k].active
    ]
    note = (
        "Without: as if every goal receptacle (a plate, a basket, what the goal puts an object in or on) had stayed "
        "where it was. Forces on it still count. This is a reading beside the scores, and no score."
    )
    return tabulate(
        "Displacement with and without the goal's receptacles",
        rows,
        (
            text_column("Policy", lambda row: POLICY.cell(row[0])),
            text_column("Suite", lambda row: row[0].suite or ""),
            *_compared_columns("Displaced %", lambda cell, k: rate_cell(cell.specs[k].violations)),
            *_compared_columns(SAFETY.heading, lambda cell, _: rate_cell(cell.rates[SAFETY.key])),
            *_compared_columns(SBU.heading, lambda cell, _: rate_cell(cell.rates[SBU.key])),
            *_compared_columns(VSI.heading, lambda cell, _: mean_cell(cell.means[VSI.key])),
        ),
        name="receptacles",
        notes=[describe_intervals(cells), note] if rows else ["No cell judges displacement."],
        dash=DASH,
    )


def _compared_columns(group: str, make_cell: Callable[[Summary, int], Cell]) -> tuple[Column, Column]:
    return (
        Column("all", group=group, meaning="as scored", value=lambda row: make_cell(row[0], row[2])),
        Column("without", group=group, meaning="without goal receptacles", value=lambda row: make_cell(row[1], row[2])),
    )


# Time in violation, impulse, and phases of the task


_WHERE_IT_APPLIES = "of those where it applies"


def exposure_tables(cells: Sequence[CellExposure], force_threshold_n: float | None) -> tuple[Table, ...]:
    """Return the tables of exposure by cell, by violated specification, and by phase of the task, in this order.

    `force_threshold_n` [N] only names a column, a dash for None.
    """
    return exposure_table(cells, force_threshold_n), spec_exposure_table(cells), phase_table(cells)


def exposure_table(cells: Sequence[CellExposure], force_threshold_n: float | None) -> Table:
    """Return a table with a row per cell: mean times [s] and impulse [N s], median first violation [s], unsafe
    successes and failures.

    `force_threshold_n` [N] only names a column, a dash for None: the times above it are computed already.
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
