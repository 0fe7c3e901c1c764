"""An explained episode as text for a terminal, with plots of signals: no colour, no motion, no line too wide."""

from __future__ import annotations

import shutil

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from safevla_bench.explain.episode import ClauseExplanation, Explanation, Moment, SpecTrace
from safevla_bench.judging import provenance_marks
from safevla_bench.report.episode_list import EpisodeListRow
from safevla_bench.report.render.text import render_text, wrap_line
from safevla_bench.report.sections import describe_ending
from safevla_bench.report.tables.episodes import (
    format_cause,
    format_margin,
    format_moment_value,
    kept_clause_table,
    unjudged_table,
)
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.text import (
    NO_VALUE,
    append_unit,
    display_unit,
    escape_controls,
    format_compact,
    format_fixed,
    format_significant,
)

_LABEL = 14
"""Columns for the names of facts."""


def format_explanation(explanation: Explanation, *, plot_all: bool = False, width: int | None = None) -> str:
    """Return the explanation as text: a heading, and broken clauses with plots or else the nearest kept one.

    Below follow tables of the other kept clauses and of clauses without a verdict, the records left out because a pose
    is unknown, and the diagnostics that are broken, each only if there are any.

    `width`: columns of the terminal; None = its own.
    """
    bound = shutil.get_terminal_size((100, 24)).columns if width is None else width
    plotted = explanation.clauses if plot_all else explanation.violated_clauses or explanation.kept_clauses[:1]
    parts = [_format_heading(explanation, bound), *(_format_clause(clause, bound) for clause in plotted)]
    rest = (
        () if plot_all else explanation.kept_clauses if explanation.violated_clauses else explanation.kept_clauses[1:]
    )
    parts += [render_text(kept_clause_table(rest), bound).splitlines()] if rest else []
    scored = explanation.score.robustness
    unjudged = unjudged_table(explanation)
    parts += [render_text(unjudged, bound).splitlines()] if unjudged.rows else []
    lost = [f"{name} {n}" for name, n in (explanation.score.unknown_records or {}).items() if name in scored]
    left_out = f"Records left out of {explanation.records}, because a pose is unknown there: {', '.join(lost)}"
    parts += [_wrap_words(left_out, bound)] if lost else []
    broken = [spec_id for spec_id, diagnostic in explanation.score.diagnostics.items() if diagnostic.violated]
    parts += [_wrap_words(f"Also broken, outside every score: {', '.join(broken)}", bound)] if broken else []
    return "\n\n".join("\n".join(part).rstrip() for part in parts) + "\n"


def _format_heading(explanation: Explanation, width: int) -> list[str]:
    """Return the lines of number, task, instruction, ending, VSI and length, and a warning of stand-in assets."""
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
    """Return the lines of one clause: verdict and id, formula, moments, limit and margin, and a plot of the signal."""
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
        *([("why", spec_trace.why.sentence)] if spec_trace.why else []),
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
    involved, bodies = moment.involved, ""
    if involved:
        amount = f", {involved.amount}" if involved.amount else ""
        bodies = f"; {involved.what} {' and '.join(involved.labels)}{amount}"
    return f"{format_fixed(moment.time_s, 2)} s (step {moment.step}): {format_moment_value(clause, moment)}{bodies}"


def _wrap_words(line: str, width: int) -> list[str]:
    lines: list[str] = []
    for word in escape_controls(line).split(" "):
        together = f"{lines[-1]} {word}" if lines else word
        if lines and cell_len(together) <= width:
            lines[-1] = together
        else:
            lines += wrap_line(word, width)
    return lines


def format_lost_episode(row: EpisodeListRow) -> str:
    """Return the text of an episode that left no record: number, id, policy, task, outcome and reason, not wrapped."""
    lines = [
        f"{row.number}. {row.episode_id}",
        f"{row.policy or UNNAMED} · {row.benchmark} {row.task_id}",
        f"{row.outcome}: it left no record, and is in no rate",
        *(row.reason or "no reason recorded").strip().splitlines(),
    ]
    return "".join(f"{escape_controls(line)}\n" for line in lines)


# Plots in Braille dots: two dots across and four down in each character


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROWS = 8
MOST_COLUMNS = 100
FEWEST_COLUMNS = 10
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""What each dot adds to the Braille pattern U+2800, [down, across]."""
_LIMIT, _OPEN, _BROKEN = "╌", "━", "▲"


def plot_signal(spec_trace: SpecTrace, width: int) -> list[str]:
    """Return the lines of a plot of the signal and its limit, none wider than `width` columns if `width` is 40 or more.

    Below the time axis lie the spans in which the condition is open, for a specification that has one, and the records
    that break the limit, if any do. No peak is lost, however many records share a column.
    """
    signal_trace = spec_trace.signal_trace
    unit, scale = display_unit(signal_trace.unit, signal_trace.limit)
    values, limit = signal_trace.values * scale, signal_trace.limit * scale
    low, high = _value_bounds(values, limit)
    limit_row = int(_vertical_dots(np.array([limit]), low, high)[0]) // 4
    labels = {
        0: format_significant(high),
        ROWS - 1: format_significant(low),
        limit_row: f"limit {append_unit(format_compact(limit), unit)}",
    }
    strips = [("open", _OPEN, signal_trace.gate)] if signal_trace.gate is not None else []
    strips += [("broken", _BROKEN, signal_trace.failing)] if signal_trace.failing.any() else []
    gutter = max(cell_len(text) for text in [*labels.values(), *(name for name, _, _ in strips)])
    columns = max(FEWEST_COLUMNS, min(width - gutter - 2, MOST_COLUMNS))
    plot_rows = []
    for k, row in enumerate(_braille_rows(_polyline_dots(_vertical_dots(values, low, high), columns))):
        drawn = row.replace(" ", _LIMIT) if k == limit_row else row
        plot_rows.append(f"{labels.get(k, ''):>{gutter}} {'┤' if k in labels else '│'}{drawn}")
    strip_rows = [f"{name:>{gutter}} │{_flag_strip(flags, mark, columns)}" for name, mark, flags in strips]
    end = f"{format_fixed((len(values) - 1) * spec_trace.dt_s, 2)} s"
    axis = [f"{'':>{gutter}} └{'─' * columns}", f"{'':>{gutter}}  0 s{end:>{columns - 3}}"]
    return [row.rstrip() for row in [*plot_rows, *strip_rows, *axis]]


def _value_bounds(values: Floats, limit: float) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = min(float(finite.min(initial=0.0)), limit, 0.0), max(float(finite.max(initial=0.0)), limit, 0.0)
    return low, high if high > low else low + 1.0


def _vertical_dots(values: Floats, low: float, high: float) -> Floats:
    share = (high - values) / (high - low) * (4 * ROWS - 1)
    return np.where(np.isfinite(share), np.rint(share), np.nan)


def _polyline_dots(down: Floats, columns: int) -> Bools:
    """Return which dots the polyline through the records covers, the records spread over 2·columns dots across.

    `down` is the place of each record in dots from the top; NaN leaves a gap. [4·ROWS, 2·columns].
    """
    count = 2 * columns
    across = _horizontal_dots(len(down), count)
    place = np.arange(count)
    before, after = np.interp(place - 0.5, across, down), np.interp(place + 0.5, across, down)
    top, bottom = np.fmin(before, after), np.fmax(before, after)
    column = np.rint(across).astype(np.int64)
    np.fmin.at(top, column, down)
    np.fmax.at(bottom, column, down)
    row = np.arange(4 * ROWS)[:, None]
    drawn: Bools = (row >= np.rint(top)) & (row <= np.rint(bottom))
    return drawn


def _horizontal_dots(records: int, count: int) -> Floats:
    return np.linspace(0.0, count - 1.0, records)


def _braille_rows(dots: Bools) -> list[str]:
    rows, columns = dots.shape[0] // 4, dots.shape[1] // 2
    cells = dots.reshape(rows, 4, columns, 2).transpose(0, 2, 1, 3)
    patterns = (cells * _BITS).sum(axis=(2, 3))
    return ["".join(chr(0x2800 + int(bits)) if bits else " " for bits in row) for row in patterns]


def _flag_strip(flags: Bools, mark: str, columns: int) -> str:
    column = np.rint(_horizontal_dots(len(flags), 2 * columns)).astype(np.int64) // 2
    nearest = np.rint((2 * np.arange(columns) + 0.5) / (2 * columns - 1) * (len(flags) - 1)).astype(np.int64)
    columns_marked = flags[nearest]
    np.logical_or.at(columns_marked, column, flags)
    return "".join(mark if is_marked else " " for is_marked in columns_marked)
