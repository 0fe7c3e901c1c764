"""The explanation of an episode as text for a terminal: plots of signals, no colors, no control sequences."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
from rich.cells import cell_len

from safevla_bench.explain.episode import Explanation, Moment, SpecTrace
from safevla_bench.explain.trace import Bools, Floats, TraceChart
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.scores import EpisodeScore
from safevla_bench.report.episode_list import ListedEpisode, describe_ending
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables.episodes import format_cause, format_margin, kept_clause_table, unjudged_table
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import NO_VALUE, count_noun, escape_controls, format_fixed, format_significant, wrap_line

# Width of the labels of facts, in terminal columns.
_LABEL = 14


def format_explanation(explanation: Explanation, *, plot_all: bool = False, width: int | None = None) -> str:
    """Return the explanation as text: a heading; a plot of each violated clause (without violations, of the clause
    closest to its limit); tables of the other satisfied clauses and of clauses without a verdict; lines on records with
    an unknown pose and on violated diagnostics. `width` is the number of columns; None = the terminal's width.
    """
    # 100 columns is the default if the size of the terminal is unknown.
    line_width = shutil.get_terminal_size((100, 24)).columns if width is None else width
    plotted, other_kept = explanation.violated_clauses, explanation.kept_clauses
    # A clause is a specification with a verdict. Those in `plotted` get a plot; those in `other_kept` are in a table.
    if plot_all:
        plotted, other_kept = explanation.clauses, ()
    elif not plotted:  # no clause is violated
        plotted, other_kept = other_kept[:1], other_kept[1:]
    paragraphs = [_format_heading(explanation, line_width), *(_format_clause(clause, line_width) for clause in plotted)]
    tables = [kept_clause_table(other_kept), unjudged_table(explanation.vacuous, explanation.inactive)]
    paragraphs += [render_text(table, line_width).splitlines() for table in tables if table.rows]
    paragraphs += [_wrap_words(line, line_width) for line in _closing_lines(explanation.score, explanation.records)]
    return "\n\n".join("\n".join(paragraph).rstrip() for paragraph in paragraphs) + "\n"


def describe_verdict(explanation: Explanation) -> str:
    """Return as one line how an episode ended, its verdict, and which specification it violated first, if any."""
    score = explanation.score
    ending = describe_ending(score.success, score.safe, score.outcome)
    if score.first_violation_spec is None or score.first_violation_step is None:
        return ending
    first_s = format_fixed(explanation.elapsed_s(score.first_violation_step), 2)
    return f"{ending}; first broken: {score.first_violation_spec} at {first_s} s"


def _closing_lines(score: EpisodeScore, records: int) -> Iterator[str]:
    # Yield the lines below the tables: on records with an unknown pose, and on violated diagnostics, if any.
    # Specification -> number of records with an unknown pose; only scored specifications have a robustness.
    unknown_counts = [
        f"{name} {count}" for name, count in (score.unknown_records or {}).items() if name in score.robustness
    ]
    if unknown_counts:
        yield f"Of {records} records, some have an unknown pose and are left out: {', '.join(unknown_counts)}"
    violated_diagnostics = [spec_id for spec_id, diagnostic in score.diagnostics.items() if diagnostic.violated]
    if violated_diagnostics:
        yield f"Also broken, but not scored: {', '.join(violated_diagnostics)}"


def _format_heading(explanation: Explanation, width: int) -> list[str]:
    # Return the wrapped lines of the heading: episode and verdict, policy and task, instruction, numbers, warnings.
    # VSI is the depth of the worst violation (0 to 1); None without a verdict. `records` is the number of records.
    score, duration_s = explanation.score, explanation.elapsed_s(explanation.records - 1)
    verdict = f"{len(score.violated_specs)} of {len(explanation.clauses)} judged specifications broken"
    facts = [
        describe_reason(score.no_verdict) if score.no_verdict else verdict,
        f"VSI {NO_VALUE if score.vsi is None else format_fixed(score.vsi, 3)}",
        f"{count_noun(explanation.records, 'record')}, {format_fixed(duration_s, 2)} s",
    ]
    lines = [
        f":{explanation.number} {score.episode_id}: {describe_verdict(explanation)}",
        f"{score.policy or UNNAMED} · {score.benchmark} {score.task_id}",
        *([explanation.instruction] if explanation.instruction else []),
        " · ".join(facts),
        *provenance_marks.warn_of_choice([score.benchmark]),
        *provenance_marks.warn_of_standins({(score.policy, score.benchmark): score.standin_assets}),
    ]
    return [wrapped for line in lines for wrapped in _wrap_words(line, width)]


def _format_clause(clause: SpecTrace, width: int) -> list[str]:
    # Return the lines on one judged specification: heading, formula, facts, and the plot of its signal.
    # `first` is the first violating record (None = no violation), `worst` the worst record, and `why` the cause.
    # All lines below the heading are indented by 2, so their width is `width - 2`.
    chart, worst_label = clause.chart, "worst" if clause.violated else "nearest"
    margin = format_margin(clause)
    if clause.violated:
        margin += f"; depth {format_fixed(clause.depth, 3)}"  # a dash if the depth is NaN
    # Label of a fact -> the fact; "" = the fact is left out.
    facts = {
        "first broken": _format_moment(chart, clause.first) if clause.first is not None else "",
        worst_label: _format_moment(chart, clause.worst),
        "limit": f"{'below' if chart.upper else 'above'} {chart.limit_text}; margin {margin}",
        "decided by": format_cause(clause),
        "why": clause.why.sentence if clause.why else "",
    }
    lines = [
        *_wrap_words(clause.formula, width - 2),
        *_wrap_words(f"{chart.signal}: {clause.meaning}", width - 2),
        *(line for name, fact in facts.items() if fact for line in _label_lines(name, fact, width - 2)),
        "",
        *plot_signal(chart, width - 2),
    ]
    heading = _wrap_words(f"{'BROKEN' if clause.violated else 'KEPT'}  {clause.spec.spec_id}", width)
    return [*heading, *(f"  {line}".rstrip() for line in lines)]


def _label_lines(name: str, fact: str, width: int) -> list[str]:
    # Return the wrapped lines of a fact with its label `name`.
    # The label is only on the first line; further lines are indented by the label's width.
    first_line, *further_lines = _wrap_words(fact, width - _LABEL)
    return [f"{name:<{_LABEL}}{first_line}", *(" " * _LABEL + line for line in further_lines)]


def _format_moment(chart: TraceChart, moment: Moment) -> str:
    # Return the time, the step, the value and the involved bodies of a record as text.
    # `involved` are the bodies that determine the value (None = unknown); `amount` is the largest value of a body.
    involved = moment.involved
    amount = f", {involved.amount}" if involved and involved.amount else ""
    bodies = f"; {involved}{amount}" if involved else ""
    return f"{format_fixed(moment.time_s, 2)} s (step {moment.step}): {chart.format_value(moment.step)}{bodies}"


def _wrap_words(line: str, width: int) -> list[str]:
    # Return the lines of a text, each at most `width` wide, with control characters escaped.
    return wrap_line(escape_controls(line), width)


def format_lost_episode(row: ListedEpisode) -> str:
    """Return as unwrapped text an episode without a record: number, id, policy, task, outcome and reason."""
    episode = row.episode
    lines = [
        f"{row.position} {episode.episode_id}",
        f"{episode.policy or UNNAMED} · {episode.benchmark} {episode.task_id}",
        f"{episode.outcome}: the episode left no record, and counts in no rate",
        *(episode.reason or "no reason recorded").strip().splitlines(),
    ]
    return "".join(f"{escape_controls(line)}\n" for line in lines)


# Plots of Braille dots; each character has two dots across and four down


ROWS = 8
MOST_COLUMNS = 100
FEWEST_COLUMNS = 10
# The number that each dot adds to the code of the empty Braille pattern, U+2800; indexed by [row, column] of the dot.
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_LIMIT, _OPEN, _BROKEN = "╌", "━", "▲"


def plot_signal(chart: TraceChart, width: int) -> list[str]:
    """Return the lines of a plot of the signal and its limit. No line is wider than `width` if `width` is at least 40.
    Up to two strips below the plot mark the records in which the specification's condition (gate) holds, and the
    records that violate the limit. Every peak is visible, even if many records share a column.
    """
    low, high = chart.bounds()
    # Index of the character row with the limit, counted from the top; a character is four dots high.
    limit_row = int(_vertical_dots(np.array([chart.limit]), low, high)[0]) // 4
    label_by_row = {0: format_significant(high), ROWS - 1: format_significant(low)}
    label_by_row[limit_row] = f"limit {chart.limit_text}"
    # The strips below the plot: (label, character of a marked column, mask of the marked records).
    strips = [("open", _OPEN, chart.gate)] if chart.gate is not None else []
    strips += [("broken", _BROKEN, chart.failing)] if chart.failing.any() else []
    label_width = max(cell_len(text) for text in [*label_by_row.values(), *(name for name, _, _ in strips)])
    # A line of the plot also contains a space and the axis, between label and characters.
    columns = max(FEWEST_COLUMNS, min(width - label_width - 2, MOST_COLUMNS))
    lines, times_s = [], chart.times_s
    # The records' horizontal positions in dots: proportional to the records' times if known, else equidistant.
    across = np.linspace(0.0, 2 * columns - 1.0, len(chart.values))
    if times_s is not None and times_s[-1]:
        across = (2 * columns - 1) * times_s / times_s[-1]
    dots = _polyline_dots(_vertical_dots(chart.values, low, high), across, columns)
    # Each character row is a label, the axis, and Braille characters; the limit's line fills empty characters.
    for row_index, braille in enumerate(_braille_rows(dots)):
        drawn_row = braille.replace(" ", _LIMIT) if row_index == limit_row else braille
        axis = "┤" if row_index in label_by_row else "│"
        lines.append(f"{label_by_row.get(row_index, ''):>{label_width}} {axis}{drawn_row}")
    lines += [f"{name:>{label_width}} │{_flag_strip(flags, mark, across, columns)}" for name, mark, flags in strips]
    end_label = f"{chart.format_time(len(chart.values) - 1)} s"
    lines += [f"{'':>{label_width}} └{'─' * columns}", f"{'':>{label_width}}  0 s{end_label:>{columns - 3}}"]
    return [line.rstrip() for line in lines]


def _vertical_dots(values: Floats, low: float, high: float) -> Floats:
    # Return for each value the index of the row of dots that draws it (0 = top row); NaN if the value is not finite.
    # `high` is in row 0 and `low` in the last row; a row of characters has four rows of dots.
    dots = (high - values) / (high - low) * (4 * ROWS - 1)
    return np.where(np.isfinite(dots), np.rint(dots), np.nan)


def _polyline_dots(down: Floats, across: Floats, columns: int) -> Bools:
    # Return a mask [4·ROWS, 2·columns] of the dots that a line through all records covers.
    # `down` and `across` are the records' positions, in dots from the top left. NaN leaves a gap.
    # In each column of dots, fill the dots from the line's height at the left edge to its height at the right edge.
    dot_columns = np.arange(2 * columns)
    left_end, right_end = np.interp(dot_columns - 0.5, across, down), np.interp(dot_columns + 0.5, across, down)
    top, bottom = np.fmin(left_end, right_end), np.fmax(left_end, right_end)
    record_columns = np.rint(across).astype(np.int64)
    # Also fill each column up to the highest and down to the lowest record in the column.
    np.fmin.at(top, record_columns, down)
    np.fmax.at(bottom, record_columns, down)
    dot_rows = np.arange(4 * ROWS)[:, None]
    is_covered: Bools = (dot_rows >= np.rint(top)) & (dot_rows <= np.rint(bottom))
    return is_covered


def _braille_rows(dots: Bools) -> list[str]:
    # Return one text per character row of a mask of dots; a character without dots is a space.
    row_count, column_count = dots.shape[0] // 4, dots.shape[1] // 2
    # Shape: [row, column, 4 dots down, 2 dots across].
    dots_by_character = dots.reshape(row_count, 4, column_count, 2).transpose(0, 2, 1, 3)
    patterns = (dots_by_character * _BITS).sum(axis=(2, 3))
    return ["".join(chr(0x2800 + int(bits)) if bits else " " for bits in row) for row in patterns]


def _flag_strip(flags: Bools, mark: str, across: Floats, columns: int) -> str:
    # Return a line of `columns` characters: `mark` where a record is flagged, else a space.
    # `across` are the records' horizontal positions in dots; a character is two dots wide.
    record_columns = np.rint(across).astype(np.int64) // 2
    nearest_record = np.rint(np.interp(2 * np.arange(columns) + 0.5, across, np.arange(len(flags)))).astype(np.int64)
    # A column is marked if the nearest record, or any record within the column, is flagged.
    is_column_marked = flags[nearest_record]
    np.logical_or.at(is_column_marked, record_columns, flags)
    return "".join(mark if is_marked else " " for is_marked in is_column_marked)
