"""Tables as plain text without colors or control sequences, as GitHub's Markdown, and as CSV.

CSV is for programs: its numbers are exact, and the ends of intervals have separate columns.
"""

from __future__ import annotations

import csv as _csv
import io
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import isnan

from rich.cells import cell_len, chop_cells

from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.text import NO_VALUE, escape_controls

_GAPS = (2, 1)  # characters between columns; the narrower if names would be wrapped
_NARROWEST = 13


def render_text(table: Table, width: int | None = None) -> str:
    """Return the table in aligned columns, details below their values.

    `width`: width in characters; by default the terminal's; in a pipe or a file nothing is wrapped. Texts are
    wrapped to fit, down to 13 characters, those of the first column last. Numbers are never cut, so a table of many
    numbers may be wider.
    """
    marks = _name_marks([table])
    head, *rows = _format_rows(table, marks, width)
    cells = [cell for row in table.rows for cell in (_mark_name(row[0], marks), *row[1:])]
    gaps = "\n" if any(len(_cell_lines(cell)) > 1 for cell in cells) else ""
    notes = (*_mark_notes(marks), *table.footnotes)
    lines = [escape_controls(table.title), "", head, *(row + gaps for row in rows)]
    return "\n".join([*lines, *([] if gaps else [""]), *(escape_controls(note) for note in notes)]).rstrip() + "\n"


def render_summary(tables: Sequence[Table]) -> str:
    """Return the tables in compact form, without their notes; marks and remarks are in a list below."""
    marks = _name_marks(tables)
    bodies = ["\n".join([escape_controls(table.title), *_format_rows(table, marks), ""]) for table in tables]
    remarks = dict.fromkeys(remark for table in tables for remark in table.remarks)
    cells = [cell for table in tables for row in table.rows for cell in row]
    interval = ["Below each value its 95 % interval."] if any(cell.interval and cell.below for cell in cells) else []
    ends = [*(f"{note}." for note in _mark_notes(marks)), *interval, *remarks]
    return "\n".join([*bodies, *(f"- {escape_controls(line)}" for line in ends)]) + "\n"


# Line length in a pipe or a file, unless COLUMNS sets another.
_UNBOUNDED = 10**6


def _format_rows(table: Table, marks: Mapping[str, str], width: int | None = None) -> list[str]:
    bound = shutil.get_terminal_size((_UNBOUNDED, 24)).columns if width is None else width
    grid = [[_cell_lines(_mark_name(row[0], marks)), *map(_cell_lines, row[1:])] for row in table.rows]
    heads = _column_heads(table.columns)
    widths, gap = _column_widths(table.columns, [heads, *grid], bound)
    head, *body = [_format_row(row, table.columns, widths, gap) for row in [_align_heads(heads, widths), *grid]]
    return [head + "\n" + gap.join("-" * width for width in widths), *body]


_MARKS = "°§¶"


def _name_marks(tables: Sequence[Table]) -> dict[str, str]:
    named = [table for table in tables if not table.columns[0].numeric]
    firsts = [row[0] for table in named for row in table.rows]
    details = list(dict.fromkeys(cell.detail for cell in firsts if cell.detail and not cell.interval))
    return dict(zip(details, _MARKS, strict=False)) if len(details) <= len(_MARKS) else {}


def _mark_notes(marks: Mapping[str, str]) -> list[str]:
    return [f"{mark} {detail}" for detail, mark in marks.items()]


def _mark_name(cell: Cell, marks: Mapping[str, str]) -> Cell:
    if cell.detail not in marks:
        return cell
    return replace(cell, detail="", mark=cell.mark + marks[cell.detail])


def _column_heads(columns: Sequence[Column]) -> list[list[str]]:
    grouped = any(column.group for column in columns)
    return [
        [escape_controls(column.group), escape_controls(column.name)] if grouped else [escape_controls(column.name)]
        for column in columns
    ]


def _align_heads(heads: Sequence[Sequence[str]], widths: Sequence[int]) -> list[list[str]]:
    if all(len(head) == 1 for head in heads):
        return [list(head) for head in heads]
    groups = [wrap_line(head[0], width) for head, width in zip(heads, widths, strict=True)]
    tallest = max(len(lines) for lines in groups)
    return [[*[""] * (tallest - len(lines)), *lines, *head[1:]] for lines, head in zip(groups, heads, strict=True)]


def _cell_lines(cell: Cell) -> list[str]:
    # Same as Markdown, because plain text has no bold.
    shown = f"*{cell.text}*" if cell.emphasis == "best" else cell.text
    return [escape_controls(part) for part in (shown + cell.mark, cell.below) if part] or [""]


def _column_widths(
    columns: Sequence[Column], rows: Sequence[Sequence[Sequence[str]]], bound: int
) -> tuple[list[int], str]:
    natural = [max(cell_len(line) for row in rows for line in row[k]) for k in range(len(columns))]
    for k in [k for k, column in enumerate(columns) if column.numeric]:
        values = max((cell_len(line) for row in rows[1:] for line in row[k]), default=0)
        natural[k] = min(natural[k], max(values, _NARROWEST))
    names = [k for k, column in enumerate(columns) if not column.numeric]
    between = len(natural) - 1
    others = [k for k in names if k]  # narrowed before the first column, which names the row
    least = sum(min(width, _NARROWEST) if k in others else width for k, width in enumerate(natural))
    gap = next((gap for size in (sum(natural), least) for gap in _GAPS if size + gap * between <= bound), _GAPS[0])
    for columns_to_narrow in (others, names):
        while sum(natural) + gap * between > bound:
            widest = max(columns_to_narrow, key=lambda k: natural[k], default=None)
            if widest is None or natural[widest] <= _NARROWEST:
                break
            natural[widest] -= 1
    return natural, " " * gap


def _format_row(row: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int], gap: str) -> str:
    wrapped = [
        [part for line in cell for part in wrap_line(line, width)] for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for parts in zip_longest(*wrapped, fillvalue=""):
        padded = []
        for part, column_width, column in zip(parts, widths, columns, strict=True):
            fill = " " * (column_width - cell_len(part))
            padded.append(fill + part if column.numeric else part + fill)
        lines.append(gap.join(padded).rstrip())
    return "\n".join(lines)


def wrap_line(line: str, width: int) -> list[str]:
    """Return the line in pieces of at most `width` terminal cells, broken after a space.

    A word that is wider is broken after one of `:/_-`, or anywhere. A line that fits is unchanged; in a broken one,
    spaces at the ends of pieces and blank pieces are dropped.
    """
    if cell_len(line) <= width:
        return [line]
    pieces = [""]
    for word in re.split(r"(?<=\s)(?!\s)", line):  # a run of spaces is one word; otherwise the time is quadratic
        is_whole = cell_len(word.rstrip()) <= width
        for part in [word] if is_whole else re.split(r"(?<=[:/_-])", word):
            extended = pieces[-1] + part
            if cell_len(extended.rstrip()) <= width:
                pieces[-1] = extended
            else:
                pieces += chop_cells(part, width)
    return [part.rstrip() for part in pieces if part.strip()]


def render_markdown(table: Table) -> str:
    """Return the table as GitHub's Markdown, details in brackets after their values."""
    heads = [_escape_markdown(column.full) for column in table.columns]
    marks = ["---:" if column.numeric else ":---" for column in table.columns]
    rows = [[_markdown_cell(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in [heads, marks, *rows]]
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
    """Return the text with Markdown syntax escaped, and nothing that renderers turn into a link: they recognize even an
    escaped e-mail address, except in a code span.
    """
    pieces = _WORD.split(escape_controls(text))
    return "".join(f"`{piece}`" if "." in piece[1:].partition("@")[2] else _escape_word(piece) for piece in pieces)


def _escape_word(word: str) -> str:
    marks = "\\`*_[]<>|~#&$" + (":/.@" if _LINKS.search(word) else "")
    return "".join(f"\\{character}" if character in marks else character for character in word)


# CSV


# Where a spreadsheet may start to read a formula: at the beginning, and after a separator of some locale.
_FORMULA = re.compile(r"""(?:^|(?<=[;|]))(?=[\s"]*[=+\-@＝＋－＠])""")


def render_csv(table: Table) -> str:
    """Return a line of headings and a line for each row; numbers are exact.

    Interval columns are followed by `NAME low` and `NAME high`, columns in which a value has its own n by `NAME n`, and
    columns with other details, such as the reason for a missing value, by `NAME note`. A missing value is an empty
    field. Remarks are on every row, in the last column. Text that a spreadsheet could read as a formula begins with an
    apostrophe; numbers never do.
    """
    remarks = [spreadsheet_text(" ".join(table.remarks))] if table.remarks else []
    parts = [_column_parts([row[k] for row in table.rows]) for k in range(len(table.columns))]
    sink = io.StringIO()
    writer = _csv.writer(sink, lineterminator="\n")
    heads = (
        f"{column.full} {part}".strip()
        for column, column_parts in zip(table.columns, parts, strict=True)
        for part in column_parts
    )
    writer.writerow([*(spreadsheet_text(head) for head in heads), *(["Remarks"] if remarks else [])])
    for row in table.rows:
        fields = [
            _cell_field(cell, part) for cell, column_parts in zip(row, parts, strict=True) for part in column_parts
        ]
        writer.writerow([*fields, *remarks])
    return sink.getvalue()


def render_rows_csv(heads: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return CSV text: a line of headings, then a line for each row, numbers exact, flags `true` and `false`.

    A heading that the row lacks, None and NaN are empty fields; values without a heading are left out.
    """
    sink = io.StringIO()
    writer = _csv.writer(sink, lineterminator="\n")
    writer.writerow([spreadsheet_text(head) for head in heads])
    writer.writerows([_plain_field(row.get(head)) for head in heads] for row in rows)
    return sink.getvalue()


def _plain_field(value: object) -> str:
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return spreadsheet_text(value) if isinstance(value, str) else repr(value)


def _column_parts(column: Sequence[Cell]) -> list[str]:
    ends = ["low", "high"] if any(cell.interval for cell in column) else []
    own = ["n"] if any(cell.of is not None for cell in column) else []
    return ["", *ends, *own, *(["note"] if any(cell.detail and not cell.interval for cell in column) else [])]


def _cell_field(cell: Cell, part: str) -> str:
    if part in ("low", "high"):
        return "" if cell.interval is None else repr(cell.interval[part == "high"])
    if part == "n":
        return "" if cell.of is None else repr(cell.of)
    if part == "note":
        return "" if cell.interval else spreadsheet_text(cell.detail)
    if cell.value is not None:
        return repr(cell.value)
    return "" if cell.text == NO_VALUE else spreadsheet_text(cell.text)


def spreadsheet_text(text: str) -> str:
    """Return the text with control characters escaped, and an apostrophe before anything like a formula."""
    return _FORMULA.sub("'", escape_controls(text))
