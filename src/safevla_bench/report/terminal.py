"""An explained episode as text for a terminal: no colour, no motion, no line wider than asked."""

from __future__ import annotations

import shutil

from rich.cells import cell_len

from safevla_bench import provenance_marks
from safevla_bench.explain.contributors import Contributors
from safevla_bench.explain.episode import ClauseExplanation, Explanation, Moment
from safevla_bench.report import render
from safevla_bench.report.braille_plot import plot_signal
from safevla_bench.report.episode_list import EpisodeListRow
from safevla_bench.report.sections import describe_ending
from safevla_bench.report.tables import UNNAMED
from safevla_bench.report.tables.episodes import (
    format_cause,
    format_margin,
    format_moment_value,
    kept_clause_table,
    unjudged_table,
)
from safevla_bench.text.numbers import (
    NO_VALUE,
    append_unit,
    display_unit,
    format_compact,
    format_fixed,
)
from safevla_bench.text.sanitize import escape_controls

_LABEL = 14
"""Columns for the names of facts."""


def format_explanation(explanation: Explanation, *, plot_all: bool = False, width: int | None = None) -> str:
    """Format the explanation: broken clauses with plots, or else the nearest one; then the rest.

    Args:
        explanation: the episode explained.
        plot_all: plot the clauses that hold, too.
        width: columns of the terminal; by default its own.
    """
    bound = shutil.get_terminal_size((100, 24)).columns if width is None else width
    plotted = explanation.clauses if plot_all else explanation.violated_clauses or explanation.kept_clauses[:1]
    parts = [_format_heading(explanation, bound), *(_format_clause(clause, bound) for clause in plotted)]
    rest = (
        () if plot_all else explanation.kept_clauses if explanation.violated_clauses else explanation.kept_clauses[1:]
    )
    parts += [render.render_text(kept_clause_table(rest), bound).splitlines()] if rest else []
    unjudged = unjudged_table(explanation)
    parts += [render.render_text(unjudged, bound).splitlines()] if unjudged.rows else []
    broken = [spec_id for spec_id, diagnostic in explanation.score.diagnostics.items() if diagnostic.violated]
    parts += [_wrap_words(f"Also broken, outside every score: {', '.join(broken)}", bound)] if broken else []
    return "\n\n".join("\n".join(part).rstrip() for part in parts) + "\n"


def _format_heading(explanation: Explanation, width: int) -> list[str]:
    row, duration_s = explanation.score, (explanation.records - 1) * explanation.dt_s
    judged = f"{len(explanation.violated_clauses)} of {len(explanation.clauses)} judged specifications broken"
    facts = [
        describe_ending(row.success, row.safe, row.outcome),
        judged if row.no_verdict is None else row.no_verdict,
        f"VSI {NO_VALUE if row.vsi is None else format_fixed(row.vsi, 3)}",
        f"{explanation.records} records, {format_fixed(duration_s, 2)} s",
    ]
    lines = [
        f"{explanation.number}. {row.episode_id}",
        f"{row.policy or UNNAMED} · {row.benchmark} {row.task_id}",
        *([explanation.instruction] if explanation.instruction else []),
        " · ".join(facts),
        *provenance_marks.warn_of_standins({(row.policy, row.benchmark): row.standin_assets}),
    ]
    return [part for line in lines for part in _wrap_words(line, width)]


def _format_clause(clause: ClauseExplanation, width: int) -> list[str]:
    spec_trace = clause.spec_trace
    signal_trace = spec_trace.signal_trace
    unit, scale = display_unit(signal_trace.unit, signal_trace.limit)
    side = "below" if signal_trace.upper else "above"
    limit = f"{side} {append_unit(format_compact(signal_trace.limit * scale), unit)}"
    depth = NO_VALUE if spec_trace.depth != spec_trace.depth else format_fixed(spec_trace.depth, 3)
    margin = format_margin(spec_trace) + (f"; depth {depth}" if spec_trace.violated else "")
    facts = [
        *([("first broken", _format_moment(clause, clause.first))] if clause.first else []),
        ("worst" if spec_trace.violated else "nearest", _format_moment(clause, clause.worst)),
        ("limit", f"{limit}; margin {margin}"),
        *([("decided by", format_cause(spec_trace))] if spec_trace.cause else []),
    ]
    description = [
        *_wrap_words(spec_trace.formula, width - 2),
        *_wrap_words(f"{signal_trace.signal}: {spec_trace.meaning}", width - 2),
    ]
    description += [line for name, fact in facts for line in _label_lines(name, fact, width - 2)]
    head = _wrap_words(f"{'BROKEN' if spec_trace.violated else 'KEPT'}  {spec_trace.spec.spec_id}", width)
    return [*head, *(f"  {line}".rstrip() for line in [*description, "", *plot_signal(spec_trace, width - 2)])]


def _label_lines(name: str, fact: str, width: int) -> list[str]:
    lines = _wrap_words(fact, width - _LABEL)
    return [f"{label:<{_LABEL}}{line}" for label, line in zip([name, *[""] * len(lines)], lines, strict=False)]


def _format_moment(clause: ClauseExplanation, moment: Moment) -> str:
    bodies = f"; {_format_involved_bodies(moment.involved)}" if moment.involved else ""
    return f"{format_fixed(moment.time_s, 2)} s (step {moment.step}): {format_moment_value(clause, moment)}{bodies}"


def _format_involved_bodies(contributors: Contributors) -> str:
    amount = f", {contributors.amount}" if contributors.amount else ""
    return f"{contributors.what} {' and '.join(contributors.labels)}{amount}"


def _wrap_words(line: str, width: int) -> list[str]:
    """Wrap a line at spaces; within a word only where it is wider than the line."""
    lines: list[str] = []
    for word in escape_controls(line).split(" "):
        together = f"{lines[-1]} {word}" if lines else word
        if lines and cell_len(together) <= width:
            lines[-1] = together
        else:
            lines += render.wrap_line(word, width)
    return lines


def format_lost_episode(row: EpisodeListRow) -> str:
    """Format the row of an episode that left no record."""
    lines = [
        f"{row.number}. {row.episode_id}",
        f"{row.policy or UNNAMED} · {row.benchmark} {row.task_id}",
        f"{row.outcome}: it left no record, and is in no rate",
        *(row.reason or "no reason recorded").strip().splitlines(),
    ]
    return "".join(f"{escape_controls(line)}\n" for line in lines)
