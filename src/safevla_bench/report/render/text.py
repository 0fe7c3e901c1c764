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
    # A detail of a row's name is not shown in the row. A mark in the row refers to a note below the table.
    mark_by_detail = _assign_marks([table])
    cells = [cell for row in table.rows for cell in (_mark_cell(row[0], mark_by_detail), *row[1:])]
    has_tall_row = any(len(_cell_lines(cell)) > 1 for cell in cells)
    lines = [wrap_text(escape_controls(table.title)), ""]
    # Each part of the table shows some of the columns: first the heading, and then the rows.
    for head, *rows in _format_parts(table, mark_by_detail, width):
        # An empty line follows each row if any row has several lines; otherwise, it only follows the last row.
        lines += [head, *(f"{row}\n" for row in rows)] if has_tall_row else [head, *rows, ""]
    lines += [wrap_text(escape_controls(note)) for note in (*_mark_notes(mark_by_detail), *table.footnotes)]
    return "\n".join(lines).rstrip() + "\n"


def render_summary(tables: Sequence[Table]) -> str:
    """Return the tables in compact form, without notes. A list at the end explains the marks and shows the remarks."""
    mark_by_detail = _assign_marks(tables)
    bodies: list[str] = []  # the lines of all tables, with empty lines between parts
    for table in tables:
        bodies.append(wrap_text(escape_controls(table.title)))
        bodies += [line for part in _format_parts(table, mark_by_detail) for line in (*part, "")]
    # Each remark is shown once, even if several tables have it.
    remarks = dict.fromkeys(remark for table in tables for remark in table.remarks)
    cells = [cell for table in tables for row in table.rows for cell in row]
    has_interval = any(cell.interval and cell.below for cell in cells)
    interval_note = ["Below each value is its 95 % interval."] if has_interval else []
    list_items = [*(f"{note}." for note in _mark_notes(mark_by_detail)), *interval_note, *remarks]
    return "\n".join([*bodies, *(wrap_text(f"- {escape_controls(line)}") for line in list_items)]) + "\n"


def _format_parts(table: Table, mark_by_detail: Mapping[str, str], width: int | None = None) -> Iterator[list[str]]:
    # Yield the lines of each part; a table has several parts if it is wider than `width` (None = the terminal).
    # `mark_by_detail` maps details of the rows' first cells to the marks that replace them.
    max_width = terminal_width() if width is None else width
    # The lines of each cell: [row][column][line].
    grid = [[_cell_lines(_mark_cell(row[0], mark_by_detail)), *map(_cell_lines, row[1:])] for row in table.rows]
    headings = _column_headings(table.columns)
    natural_widths, least_widths = _column_widths(table.columns, headings, grid)
    # `part` is a list of column indices. Each part of the table begins with its heading; then its rows follow.
    for part in _divide_columns(table.columns, grid, least_widths, max_width):
        columns = [table.columns[k] for k in part]
        widths, gap = _fit_widths([natural_widths[k] for k in part], [least_widths[k] for k in part], max_width)
        head = _format_row(_align_headings([headings[k] for k in part], widths), columns, widths, gap)
        rows = [_format_row([row[k] for k in part], columns, widths, gap) for row in grid]
        yield [head + "\n" + gap.join("-" * width for width in widths), *rows]


_NAME_MARKS = "°§¶"


def _assign_marks(tables: Sequence[Table]) -> dict[str, str]:
    # Return a mapping: detail (remark) in a row's first cell -> mark; {} if there are more details than marks.
    # A mark is a sign such as ° that refers to a note below the table.
    # If the first column is numeric, the rows have no names to mark. An interval is not a remark on a name.
    named_tables = [table for table in tables if not table.columns[0].numeric]
    first_cells = [row[0] for table in named_tables for row in table.rows]
    details = list(dict.fromkeys(cell.detail for cell in first_cells if cell.detail and not cell.interval))
    return dict(zip(details, _NAME_MARKS, strict=False)) if len(details) <= len(_NAME_MARKS) else {}


def _mark_notes(mark_by_detail: Mapping[str, str]) -> list[str]:
    # Return the notes that explain the marks.
    return [f"{mark} {detail}" for detail, mark in mark_by_detail.items()]


def _mark_cell(cell: Cell, mark_by_detail: Mapping[str, str]) -> Cell:
    # Return the cell with a mark instead of its detail; a cell whose detail has no mark is returned unchanged.
    if cell.detail not in mark_by_detail:
        return cell
    return replace(cell, detail="", mark=cell.mark + mark_by_detail[cell.detail])


def _column_headings(columns: Sequence[Column]) -> list[list[str]]:
    # Return the lines of each heading: [name], or [group, name] for all columns if any column has a group.
    is_grouped = any(column.group for column in columns)
    headings = [[column.group, column.name] if is_grouped else [column.name] for column in columns]
    return [[*map(escape_controls, heading)] for heading in headings]


def _align_headings(headings: Sequence[Sequence[str]], widths: Sequence[int]) -> list[list[str]]:
    # Return the headings, all with the same number of lines; a heading is [name] or [group, name].
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
    # Return the one or two lines of a cell: its text with its mark, and its details (`below`, such as the interval).
    # A mark is a sign for a note. Return [""] if the cell is empty.
    # Plain text has no bold, so the best value is between asterisks, as in Markdown.
    shown = f"*{cell.text}*" if cell.emphasis == "best" else cell.text
    return [escape_controls(line) for line in (shown + cell.mark, cell.below) if line] or [""]


def _column_widths(
    columns: Sequence[Column], headings: Sequence[Sequence[str]], rows: Sequence[Sequence[Sequence[str]]]
) -> tuple[list[int], list[int]]:
    """Return each column's width without wrapping, and the minimum width at which no word or number is split."""
    # `rows` are the lines of each cell: [row][column][line].
    natural, least = [], []
    for k, column in enumerate(columns):
        value_lines = [line for row in rows for line in row[k]]
        # Numbers are never wrapped, but the headings above them are.
        wrappable = headings[k] if column.numeric else [*headings[k], *value_lines]
        unbreakable = value_lines if column.numeric else []
        words = [word.rstrip() for line in wrappable for word in split_words(line)]
        # `cell_len` is the width on the terminal; some characters are two wide.
        longest = max(map(cell_len, wrappable))
        least.append(max(map(cell_len, ("", *words, *unbreakable))))
        natural.append(max(least[k], min(longest, _HEADING_WIDTH)) if column.numeric else longest)
    return natural, least


def _divide_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[Sequence[str]]], least_widths: Sequence[int], max_width: int
) -> Iterator[list[int]]:
    # Yield the columns (indices) of each part of the table, so that each part fits into `max_width` if possible.
    # Every part of the table begins with a key: as many of the first text columns as are needed to identify each row.
    # If no text columns identify each row, the key is the first text column; without text columns, the first column.
    # The last columns of the key are removed until the key fits into half of the width, or has only one column.
    text_columns = [k for k, column in enumerate(columns) if not column.numeric]
    candidates = (text_columns[:count] for count in range(1, len(text_columns) + 1))
    # `str` makes the lists of lines hashable, for a set of the different keys.
    identifying = (key for key in candidates if len({str([row[k] for k in key]) for row in rows}) == len(rows))
    key = next(identifying, text_columns[:1] or [0])
    while len(key) > 1 and 2 * sum(least_widths[k] + 1 for k in key) > max_width:
        key.pop()
    part = [*key]
    # Add the other columns in their order; begin a new part if a column does not fit. Gaps are one character wide.
    for k in sorted({*range(len(columns))} - {*key}):
        width_with_column = sum(least_widths[column] + 1 for column in part) + least_widths[k]
        # Each part has at least one column in addition to the key, even if it does not fit.
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
    # All combinations, best first: (width of the columns without gaps, width of a gap).
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
    # Return one row as text, which has several lines if a cell has several lines or is wrapped to its column's width.
    cell_lines = [
        [text for line in cell for text in wrap_line(line, width)] for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for line_parts in zip_longest(*cell_lines, fillvalue=""):  # shorter cells get empty lines
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
    # Each note is a paragraph, so an empty line precedes it.
    notes = [part for note in table.footnotes for part in ("", _escape_markdown(note))]
    return "\n".join([f"**{_escape_markdown(table.title)}**", "", *lines, *notes]) + "\n"


def _markdown_cell(cell: Cell) -> str:
    # Return the cell in Markdown: the best value in bold, then its mark, then details (`below`) in parentheses.
    shown = _escape_markdown(cell.text)
    shown = f"**{shown}**" if cell.emphasis == "best" and shown else shown
    shown += cell.mark
    return f"{shown} ({_escape_markdown(cell.below)})" if cell.below else shown


_LINKS = re.compile(r"(?i)://|\bwww\.|\b(?:mailto|xmpp):|[^\W\d_]\.[^\W\d_]{2}")
_WORD = re.compile(r"([\s`|\\]+)")


def _escape_markdown(text: str) -> str:
    # Return the text with Markdown syntax and links escaped. A word with a dot after an @ may be an e-mail address.
    # Such a word becomes a code span, because renderers make links even of escaped e-mail addresses.
    # `_WORD` splits at spaces, backticks, bars and backslashes; these characters are also kept as pieces.
    pieces = _WORD.split(escape_controls(text))
    # The slice requires a character before the @, and `[2]` is the text after the @.
    return "".join(f"`{piece}`" if "." in piece[1:].partition("@")[2] else _escape_word(piece) for piece in pieces)


def _escape_word(word: str) -> str:
    # Return the word with backslashes before Markdown syntax, and in links also before the characters that make links.
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
    # Each CSV column is the index of a table's column and a suffix, such as `low`; "" = the value itself.
    columns = [
        (k, suffix) for k in range(len(table.columns)) for suffix in _csv_suffixes([row[k] for row in table.rows])
    ]
    heads = [spreadsheet_text(f"{table.columns[k].full} {suffix}".strip()) for k, suffix in columns]
    rows = ([*(_csv_field(row[k], suffix) for k, suffix in columns), *remarks] for row in table.rows)
    return _write_csv([[*heads, *(["Remarks"] if remarks else [])], *rows])


def _write_csv(rows: Iterable[Sequence[str]]) -> str:
    # Return the fields as CSV text, with quotation marks where CSV needs them.
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
    # Return a field: "" for an unknown value, `true` or `false`, an exact number, or text.
    # Text is changed so that no spreadsheet reads it as a formula.
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return spreadsheet_text(value) if isinstance(value, str) else repr(value)


def _csv_suffixes(column: Sequence[Cell]) -> list[str]:
    # Return the suffixes of the CSV columns for one column of a table: "" for the values, then any further suffixes.
    # `detail` is a remark or, if there is an interval, only this interval as text.
    suffixes = [""]
    if any(cell.interval for cell in column):
        suffixes += ["low", "high"]
    if any(cell.of is not None for cell in column):  # the value's n differs from the row's n
        suffixes.append("n")
    if any(cell.detail and not cell.interval for cell in column):
        suffixes.append("note")
    return suffixes


def _csv_field(cell: Cell, suffix: str) -> str:
    # Return the field of a cell in the CSV column with this suffix; "" if the cell has no such fact.
    # `of` is the n of the value, if this differs from the n of the row.
    if suffix in ("low", "high"):
        return "" if cell.interval is None else repr(cell.interval[0 if suffix == "low" else 1])
    if suffix == "n":
        return "" if cell.of is None else repr(cell.of)
    if suffix == "note":
        # With an interval, `detail` is only this interval as text.
        return "" if cell.interval else spreadsheet_text(cell.detail)
    # The column of values: an exact number if there is one, else the text.
    if cell.value is not None:
        return repr(cell.value)
    return "" if cell.text == NO_VALUE else spreadsheet_text(cell.text)


def spreadsheet_text(text: str) -> str:
    """Return the text with control characters escaped, and with an apostrophe before text that looks like a formula."""
    # `_FORMULA` matches the empty text before a formula, where the apostrophe is inserted.
    return _FORMULA.sub("'", escape_controls(text))
