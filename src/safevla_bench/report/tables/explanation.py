"""Tables of an explained episode: the clauses that hold, and the specifications without a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from safevla_bench.explain.episode import ClauseExplanation, Explanation, Moment
from safevla_bench.explain.trace import SpecTrace
from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.text.numbers import (
    NO_VALUE,
    append_unit,
    display_unit,
    format_against_limit,
    format_compact,
    format_fixed,
    format_significant,
)


def kept_clause_table(clauses: Sequence[ClauseExplanation]) -> Table:
    """Tabulate clauses that hold: the nearest value, the limit, the margin and the time."""
    columns = (
        Column("Specification", numeric=False),
        Column("Nearest"),
        Column("Limit"),
        Column("Margin"),
        Column("At"),
    )
    return Table("Kept", columns, tuple(_kept_clause_row(clause) for clause in clauses))


def _kept_clause_row(clause: ClauseExplanation) -> tuple[Cell, ...]:
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
    """Tabulate scored specifications without a verdict, and why."""
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
    """Return the margin of a specification with its unit."""
    unit, scale = display_unit(spec_trace.spec.unit, spec_trace.spec.threshold)
    return append_unit(format_significant(spec_trace.rho * scale), unit)
