"""Tables of single episodes: their list, the explanation of one, and answers to an ad-hoc formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from safevla_bench.explain.episode import ClauseExplanation, Explanation, Moment
from safevla_bench.explain.query import Answer
from safevla_bench.explain.trace import SpecTrace
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.scores import NO_VERDICT
from safevla_bench.report.episode_list import EpisodeListRow
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table
from safevla_bench.report.tables.violations import format_kinds
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.stl.formula import Formula, format_formula
from safevla_bench.text import (
    NO_VALUE,
    append_unit,
    display_unit,
    format_against_limit,
    format_compact,
    format_fixed,
    format_significant,
)


def episode_list_table(rows: Sequence[EpisodeListRow], total: int, *, spec_id: str | None = None) -> Table:
    """Return the table of the selected rows of the episode list.

    There is a column of policies if the rows are of several, and one of bodies if any row was searched for bodies.

    Args:
        rows: the selected rows.
        total: the number of all episodes.
        spec_id: the only specification that the rows are about.
    """
    with_policy = len({row.policy for row in rows}) > 1
    with_bodies = any(row.violating_bodies is not None for row in rows)
    columns = (
        Column("#"),
        Column("Episode", numeric=False),
        *([Column("Policy", numeric=False)] if with_policy else []),
        Column("Outcome", numeric=False),
        Column("Safe", numeric=False),
        Column("VSI"),
        *([] if spec_id else [Column("Worst specification", numeric=False)]),
        Column("Margin"),
        Column("First violation", numeric=False),
        *([Column("Bodies", numeric=False)] if with_bodies else []),
    )
    title = f"{len(rows)} of {total} episodes" + (f", judged by {spec_id} alone" if spec_id else "")
    cells = tuple(tuple(_episode_cells(row, with_policy, with_bodies, spec_id)) for row in rows)
    notes = (*([_count_kinds(rows)] if with_bodies else []), *(f"{row.number}: {row.why}" for row in rows if row.why))
    return Table(title, columns, cells, notes, remarks=provenance_marks.warn_of_episodes(rows))


def _count_kinds(rows: Sequence[EpisodeListRow]) -> str:
    counts = Counter(format_kinds(kinds) for row in rows for kinds in row.body_kinds)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{kind} {count}" for kind, count in ranked) or "none"
    return f"Episodes by the kind of a violating body, or of a pair in contact: {listed}."


def _episode_cells(row: EpisodeListRow, with_policy: bool, with_bodies: bool, spec_id: str | None) -> Iterable[Cell]:
    """Yield the cells of an episode's row; a `spec_id` leaves out the column of the worst specification."""
    yield Cell(str(row.number), row.number)
    yield Cell(row.episode_id)
    if with_policy:
        yield Cell(row.policy or UNNAMED)
    yield Cell(row.outcome)
    yield Cell(_format_safe(row))
    yield Cell(NO_VALUE if row.vsi is None else format_fixed(row.vsi, 3), row.vsi)
    if spec_id is None:
        yield Cell(row.spec or NO_VALUE)
    yield Cell(_format_margin(row), row.rho)
    yield Cell(_format_time_and_step(row))
    if with_bodies:
        yield Cell(_format_bodies(row))


def _format_safe(row: EpisodeListRow) -> str:
    if row.success is None:  # it left no record
        return NO_VALUE
    return NO_VERDICT if row.safe is None else "yes" if row.safe else "no"


def _format_margin(row: EpisodeListRow) -> str:
    if row.rho is None or row.threshold is None or row.unit is None:
        return NO_VALUE
    unit, scale = display_unit(row.unit, row.threshold)
    return append_unit(format_significant(row.rho * scale), unit)


def _format_bodies(row: EpisodeListRow) -> str:
    named = [
        " – ".join(f"{body} ({kind})" for body, kind in zip(violation.bodies, violation.kinds, strict=True))
        for violation in row.violating_bodies or ()
    ]
    return ", ".join(dict.fromkeys(named)) or NO_VALUE


def _format_time_and_step(row: EpisodeListRow) -> str:
    if row.first_violation_s is None:
        return NO_VALUE
    return f"{format_fixed(row.first_violation_s, 2)} s, step {row.first_violation_step}"


def kept_clause_table(clauses: Sequence[ClauseExplanation]) -> Table:
    """Return the table of clauses that hold: value nearest to the limit, limit, margin, and time of that value [s]."""
    columns = (
        Column("Specification", numeric=False),
        Column("Nearest"),
        Column("Limit"),
        Column("Margin"),
        Column("At"),
    )
    return Table("Kept", columns, tuple(_kept_clause_row(clause) for clause in clauses))


def _kept_clause_row(clause: ClauseExplanation) -> tuple[Cell, ...]:
    """Return the row of a clause: texts in display units, the values behind them in the clause's own unit."""
    spec_trace, signal_trace = clause.spec_trace, clause.spec_trace.signal_trace
    unit, scale = display_unit(signal_trace.unit, signal_trace.limit)
    return (
        Cell(spec_trace.spec.spec_id),
        Cell(format_moment_value(clause, clause.worst), clause.worst.value),
        Cell(append_unit(format_compact(signal_trace.limit * scale), unit), signal_trace.limit),
        Cell(format_margin(spec_trace), spec_trace.rho),
        Cell(f"{format_fixed(clause.worst.time_s, 2)} s", clause.worst.time_s),
    )


def unjudged_table(explanation: Explanation) -> Table:
    """Return the table of scored specifications without a verdict, vacuous ones first, and why."""
    unjudged = [*(("vacuous", *item) for item in explanation.vacuous.items())]
    unjudged += [("inactive", *item) for item in explanation.score.inactive_specs.items()]
    columns = tuple(Column(name, numeric=False) for name in ("Specification", "State", "Why"))
    rows = tuple((Cell(spec_id), Cell(state), Cell(why)) for state, spec_id, why in unjudged)
    return Table("Not judged", columns, rows)


def format_moment_value(clause: ClauseExplanation, moment: Moment) -> str:
    """Return the signal's value in one record with its unit; a dash where it is not finite."""
    if moment.value is None:
        return NO_VALUE
    limit = clause.spec_trace.signal_trace.limit
    unit, scale = display_unit(clause.spec_trace.signal_trace.unit, limit)
    return append_unit(format_against_limit(moment.value * scale, limit * scale), unit)


def format_margin(spec_trace: SpecTrace) -> str:
    """Return the robustness of a specification with its unit; a dash where a Boolean signal decided its violation."""
    if spec_trace.cause:
        return NO_VALUE
    unit, scale = display_unit(spec_trace.spec.unit, spec_trace.spec.threshold)
    return append_unit(format_significant(spec_trace.rho * scale), unit)


def format_cause(spec_trace: SpecTrace) -> str:
    """Return which part of the formula decided a violation without a margin, and when; empty for any other verdict."""
    if spec_trace.cause is None:
        return ""
    step = spec_trace.cause.step
    when = f"{format_fixed(step * spec_trace.dt_s, 2)} s (step {step})"
    return f"{spec_trace.cause.formula} is false at {when}: a Boolean signal, so there is no margin"


def answer_table(formula: Formula, answers: Sequence[Answer]) -> Table:
    """Return the table of the answers to a formula, a row per answer, with the count of each verdict below.

    There is a column of policies if the answers are of several.
    """
    with_policy = len({answer.policy for answer in answers}) > 1
    columns = (
        Column("#"),
        Column("Episode", numeric=False),
        *([Column("Policy", numeric=False)] if with_policy else []),
        Column("Verdict", numeric=False),
        Column("ρ"),
        Column("Decided at", numeric=False),
        Column("Signals there, or why not", numeric=False),
    )
    verdicts = [answer.verdict for answer in answers]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    rows = tuple(tuple(_answer_cells(answer, with_policy)) for answer in answers)
    notes = (f"{len(answers)} episodes: {counts}",)
    return Table(format_formula(formula), columns, rows, notes, remarks=provenance_marks.warn_of_episodes(answers))


def _answer_cells(answer: Answer, with_policy: bool) -> Iterator[Cell]:
    """Yield the cells of an answer's row: verdict, robustness, when it was decided, and signals there or the reason."""
    yield Cell(str(answer.number), answer.number)
    yield Cell(answer.episode_id)
    if with_policy:
        yield Cell(answer.policy or UNNAMED)
    yield Cell(answer.verdict)
    yield Cell(_format_rho(answer), answer.rho)
    decided_at = NO_VALUE if answer.time_s is None else f"{format_fixed(answer.time_s, 2)} s, step {answer.step}"
    yield Cell(decided_at, answer.time_s)
    yield Cell(answer.reason or ", ".join(_format_signal(name, value) for name, value in answer.signals.items()))


def _format_rho(answer: Answer) -> str:
    if answer.rho is not None:
        return format_significant(answer.rho, 4)
    return {"satisfied": "+∞", "violated": "-∞", "vacuous": "+∞"}.get(answer.verdict, NO_VALUE)


def _format_signal(name: str, value: float | bool | None) -> str:
    if value is None or isinstance(value, bool):
        return f"{name} {NO_VALUE if value is None else str(value).lower()}"
    unit, scale = display_unit(SIGNALS[name].unit, value)
    return f"{name} {append_unit(format_significant(value * scale), unit)}"
