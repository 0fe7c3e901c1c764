"""Conversion of tables to plain text without colors or control sequences, to GitHub's Markdown, and to CSV.

CSV is for programs: numbers are exact, and the ends of intervals are in separate columns.
"""

from __future__ import annotations

import csv as _csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import isnan

from rich.cells import cell_len

from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.text import NO_VALUE, escape_controls, split_words, terminal_width, wrap_line, wrap_text

_GAP_WIDTHS = (2, 1)  # spaces between columns: 1 instead of 2 where this avoids wrapping
_HEADING_WIDTH = 13  # maximum width of a heading above numbers, in characters; longer headings are wrapped


def render_text(table: Table, width: int | None = None) -> str:
    """Return the table as text with aligned columns, and with details below the values.

    `width` is the maximum width in characters, by default the terminal's; output to a pipe or file is not wrapped. In a
    table that is too wide, texts are wrapped between words. A table that is still too wide is split into several, which
    all begin with the text columns that identify the rows. Only a long word or number makes a line wider than `width`.
    """
    mark_by_detail = _assign_marks([table])
    cells = [cell for row in table.rows for cell in (_mark_cell(row[0], mark_by_detail), *row[1:])]
    has_tall_row = any(len(_cell_lines(cell)) > 1 for cell in cells)
    lines = [wrap_text(escape_controls(table.title)), ""]
    for head, *rows in _format_parts(table, mark_by_detail, width):
        # An empty line follows each row if any row has several lines; otherwise, it only follows the last row.
        lines += [head, *(f"{row}\n" for row in rows)] if has_tall_row else [head, *rows, ""]
    lines += [wrap_text(escape_controls(note)) for note in (*_mark_notes(mark_by_detail), *table.footnotes)]
    return "\n".join(lines).rstrip() + "\n"


def render_summary(tables: Sequence[Table]) -> str:
    """Return the tables in compact form, without notes. A list at the end explains the marks and has the remarks."""
    mark_by_detail = _assign_marks(tables)
    bodies: list[str] = []
    for table in tables:
        bodies.append(wrap_text(escape_controls(table.title)))
        bodies += [line for part in _format_parts(table, mark_by_detail) for line in (*part, "")]
    remarks = dict.fromkeys(remark for table in tables for remark in table.remarks)
    cells = [cell for table in tables for row in table.rows for cell in row]
    interval_note = (
        ["Below each value is its 95 % interval."] if any(cell.interval and cell.below for cell in cells) else []
    )
    list_items = [*(f"{note}." for note in _mark_notes(mark_by_detail)), *interval_note, *remarks]
    return "\n".join([*bodies, *(wrap_text(f"- {escape_controls(line)}") for line in list_items)]) + "\n"


def _format_parts(table: Table, mark_by_detail: Mapping[str, str], width: int | None = None) -> Iterator[list[str]]:
    max_width = terminal_width() if width is None else width
    # The lines of each cell: [row][column][line].
    grid = [[_cell_lines(_mark_cell(row[0], mark_by_detail)), *map(_cell_lines, row[1:])] for row in table.rows]
    headings = _column_headings(table.columns)
    natural_widths, least_widths = _column_widths(table.columns, headings, grid)
    # Each part of the table has its heading first, and then its rows.
    for part in _divide_columns(table.columns, grid, least_widths, max_width):
        columns = [table.columns[k] for k in part]
        widths, gap = _fit_widths([natural_widths[k] for k in part], [least_widths[k] for k in part], max_width)
        head = _format_row(_align_headings([headings[k] for k in part], widths), columns, widths, gap)
        rows = [_format_row([row[k] for k in part], columns, widths, gap) for row in grid]
        yield [head + "\n" + gap.join("-" * width for width in widths), *rows]


_NAME_MARKS = "°§¶"


def _assign_marks(tables: Sequence[Table]) -> dict[str, str]:
    # Return a mapping from each detail in a row's first cell to its mark; {} if there are more details than marks.
    named_tables = [table for table in tables if not table.columns[0].numeric]
    first_cells = [row[0] for table in named_tables for row in table.rows]
    details = list(dict.fromkeys(cell.detail for cell in first_cells if cell.detail and not cell.interval))
    return dict(zip(details, _NAME_MARKS, strict=False)) if len(details) <= len(_NAME_MARKS) else {}


def _mark_notes(mark_by_detail: Mapping[str, str]) -> list[str]:
    return [f"{mark} {detail}" for detail, mark in mark_by_detail.items()]


def _mark_cell(cell: Cell, mark_by_detail: Mapping[str, str]) -> Cell:
    if cell.detail not in mark_by_detail:
        return cell
    return replace(cell, detail="", mark=cell.mark + mark_by_detail[cell.detail])


def _column_headings(columns: Sequence[Column]) -> list[list[str]]:
    is_grouped = any(column.group for column in columns)
    headings = [[column.group, column.name] if is_grouped else [column.name] for column in columns]
    return [[*map(escape_controls, heading)] for heading in headings]


def _align_headings(headings: Sequence[Sequence[str]], widths: Sequence[int]) -> list[list[str]]:
    if all(len(heading) == 1 for heading in headings):
        return [list(heading) for heading in headings]
    # Wrap the names of groups, and put empty lines above short ones, so that the names of all columns are on one line.
    group_lines = [wrap_line(heading[0], width) for heading, width in zip(headings, widths, strict=True)]
    tallest = max(len(lines) for lines in group_lines)
    return [
        [*[""] * (tallest - len(lines)), *lines, *heading[1:]]
        for lines, heading in zip(group_lines, headings, strict=True)
    ]


def _cell_lines(cell: Cell) -> list[str]:
    # Plain text has no bold, so the best value is between asterisks, as in Markdown.
    shown = f"*{cell.text}*" if cell.emphasis == "best" else cell.text
    return [escape_controls(line) for line in (shown + cell.mark, cell.below) if line] or [""]


def _column_widths(
    columns: Sequence[Column], headings: Sequence[Sequence[str]], rows: Sequence[Sequence[Sequence[str]]]
) -> tuple[list[int], list[int]]:
    """Return each column's width without wrapping, and the minimum width at which no word or number is split."""
    natural, least = [], []
    for k, column in enumerate(columns):
        value_lines = [line for row in rows for line in row[k]]
        # Numbers are never wrapped.
        wrappable, unbreakable = (headings[k], value_lines) if column.numeric else ([*headings[k], *value_lines], [])
        words = [word.rstrip() for line in wrappable for word in split_words(line)]
        longest = max(map(cell_len, wrappable))
        least.append(max(map(cell_len, ("", *words, *unbreakable))))
        natural.append(max(least[k], min(longest, _HEADING_WIDTH)) if column.numeric else longest)
    return natural, least


def _divide_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[Sequence[str]]], least_widths: Sequence[int], max_width: int
) -> Iterator[list[int]]:
    # Every part of the table begins with a key: as many of the first text columns as are needed to identify each row.
    # If no text columns identify each row, the key is the first text column; without text columns, the first column.
    # The key loses its last columns until it takes at most half of the width or has only one column.
    text_columns = [k for k, column in enumerate(columns) if not column.numeric]
    candidates = (text_columns[:count] for count in range(1, len(text_columns) + 1))
    identifying = (key for key in candidates if len({str([row[k] for k in key]) for row in rows}) == len(rows))
    key = next(identifying, text_columns[:1] or [0])
    while len(key) > 1 and 2 * sum(least_widths[k] + 1 for k in key) > max_width:
        key.pop()
    part = [*key]
    for k in sorted({*range(len(columns))} - {*key}):
        width_with_column = sum(least_widths[column] + 1 for column in part) + least_widths[k]
        if len(part) > len(key) and width_with_column > max_width:
            yield sorted(part)
            part = [*key]
        part.append(k)
    yield sorted(part)


def _fit_widths(natural_widths: Sequence[int], least_widths: Sequence[int], max_width: int) -> tuple[list[int], str]:
    # Return the widths of the columns and the gap between them, as spaces.
    # Choose the widest gap with which the columns fit: without wrapping if possible, else at their minimum widths.
    # Then narrow the widest columns until the row fits, or until all columns have their minimum widths.
    widths, gap_count = [*natural_widths], len(natural_widths) - 1
    options = [(total, gap) for total in (sum(natural_widths), sum(least_widths)) for gap in _GAP_WIDTHS]
    fitting_gaps = [gap for total, gap in options if total + gap * gap_count <= max_width]
    gap = fitting_gaps[0] if fitting_gaps else _GAP_WIDTHS[1]
    while sum(widths) + gap * gap_count > max_width:
        shrinkable = [k for k, width in enumerate(widths) if width > least_widths[k]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=widths.__getitem__)] -= 1
    return widths, " " * gap


def _format_row(row: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int], gap: str) -> str:
    cell_lines = [
        [text for line in cell for text in wrap_line(line, width)] for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for line_parts in zip_longest(*cell_lines, fillvalue=""):
        padded = []
        for text, column_width, column in zip(line_parts, widths, columns, strict=True):
            padding = " " * (column_width - cell_len(text))
            padded.append(padding + text if column.numeric else text + padding)
        lines.append(gap.join(padded).rstrip())
    return "\n".join(lines)


def render_markdown(table: Table) -> str:
    """Return the table in GitHub's Markdown, with details in parentheses after their values."""
    headings = [_escape_markdown(column.full) for column in table.columns]
    alignments = ["---:" if column.numeric else ":---" for column in table.columns]
    rows = [[_markdown_cell(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in [headings, alignments, *rows]]
    notes = [part for note in table.footnotes for part in ("", _escape_markdown(note))]
    return "\n".join([f"**{_escape_markdown(table.title)}**", "", *lines, *notes]) + "\n"


def _markdown_cell(cell: Cell) -> str:
    shown = _escape_markdown(cell.text)
    shown = f"**{shown}**" if cell.emphasis == "best" and shown else shown
    shown += cell.mark
    return f"{shown} ({_escape_markdown(cell.below)})" if cell.below else shown


_LINKS = re.compile(r"(?i)://|\bwww\.|\b(?:mailto|xmpp):|[^\W\d_]\.[^\W\d_]{2}")
_WORD = re.compile(r"([\s`|\\]+)")


def _escape_markdown(text: str) -> str:
    # Return the text with Markdown syntax and links escaped. A word with a dot after an @ may be an e-mail address.
    # Such a word becomes a code span, because renderers make links even of escaped e-mail addresses.
    pieces = _WORD.split(escape_controls(text))
    return "".join(f"`{piece}`" if "." in piece[1:].partition("@")[2] else _escape_word(piece) for piece in pieces)


def _escape_word(word: str) -> str:
    special_characters = "\\`*_[]<>|~#&$" + (":/.@" if _LINKS.search(word) else "")
    return "".join(f"\\{character}" if character in special_characters else character for character in word)


# CSV


# A spreadsheet treats a field that begins with these characters as a formula. In some locales, ; or | ends a field.
_FORMULA = re.compile(r"""(?:^|(?<=[;|]))(?=[\s"]*[=+\-@＝＋－＠])""")


def render_csv(table: Table) -> str:
    """Return the table as CSV text: a line of headings, then a line for each row, with exact numbers.

    Further columns may follow a column NAME: `NAME low` and `NAME high` (ends of intervals), `NAME n` (if the n of some
    value differs from the n of its row) and `NAME note` (other details, such as reasons for missing values). A missing
    value is an empty field. Remarks are on every row, in the last column. Text that a spreadsheet could read as a
    formula gets an apostrophe at its beginning; a number never gets one.
    """
    remarks = [spreadsheet_text(" ".join(table.remarks))] if table.remarks else []
    columns = [
        (k, suffix) for k in range(len(table.columns)) for suffix in _csv_suffixes([row[k] for row in table.rows])
    ]
    heads = [spreadsheet_text(f"{table.columns[k].full} {suffix}".strip()) for k, suffix in columns]
    rows = ([*(_csv_field(row[k], suffix) for k, suffix in columns), *remarks] for row in table.rows)
    return _write_csv([[*heads, *(["Remarks"] if remarks else [])], *rows])


def _write_csv(rows: Iterable[Sequence[str]]) -> str:
    sink = io.StringIO()
    _csv.writer(sink, lineterminator="\n").writerows(rows)
    return sink.getvalue()


def render_rows_csv(heads: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return CSV text: a line of headings, then a line for each row. Numbers are exact; flags are `true` or `false`. A
    field is empty if the row has no value for the heading, or None or NaN. Values without a heading are left out.
    """
    fields = ([_csv_value(row.get(head)) for head in heads] for row in rows)
    return _write_csv([[spreadsheet_text(head) for head in heads], *fields])


def _csv_value(value: object) -> str:
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return spreadsheet_text(value) if isinstance(value, str) else repr(value)


def _csv_suffixes(column: Sequence[Cell]) -> list[str]:
    # Return the suffixes of the CSV columns: "" for the column of values, then one for each further column.
    suffixes = [""]
    if any(cell.interval for cell in column):
        suffixes += ["low", "high"]
    if any(cell.of is not None for cell in column):
        suffixes.append("n")
    if any(cell.detail and not cell.interval for cell in column):
        suffixes.append("note")
    return suffixes


def _csv_field(cell: Cell, suffix: str) -> str:
    if suffix in ("low", "high"):
        return "" if cell.interval is None else repr(cell.interval[0 if suffix == "low" else 1])
    if suffix == "n":
        return "" if cell.of is None else repr(cell.of)
    if suffix == "note":
        return "" if cell.interval else spreadsheet_text(cell.detail)
    if cell.value is not None:
        return repr(cell.value)
    return "" if cell.text == NO_VALUE else spreadsheet_text(cell.text)


def spreadsheet_text(text: str) -> str:
    """Return the text with control characters escaped, and with an apostrophe before text that looks like a formula."""
    return _FORMULA.sub("'", escape_controls(text))
