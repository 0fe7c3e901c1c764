"""Tables as plain text without colors or control sequences, as GitHub's Markdown, and as CSV.

CSV is for programs: its numbers are exact, and the ends of intervals have separate columns.
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

_GAPS = (2, 1)  # spaces between columns: 1 instead of 2 where this avoids wrapping
_HEAD_WIDTH = 13  # maximum width of a heading above numbers, in characters; longer headings are wrapped


def render_text(table: Table, width: int | None = None) -> str:
    """Return the table in aligned columns, with details below their values.

    `width` is the maximum width in characters, by default the terminal's; output to a pipe or file is not wrapped. In a
    table that is too wide, texts are wrapped between words. A table that is still too wide is split into several, which
    all begin with the text columns that identify the rows. Only a long word or number makes a line wider than `width`.
    """
    marks = _name_marks([table])
    cells = [cell for row in table.rows for cell in (_mark_name(row[0], marks), *row[1:])]
    gaps = "\n" if any(len(_cell_lines(cell)) > 1 for cell in cells) else ""
    parts = [[head, *(row + gaps for row in rows)] for head, *rows in _format_parts(table, marks, width)]
    notes = [wrap_text(escape_controls(note)) for note in (*_mark_notes(marks), *table.footnotes)]
    end = [] if gaps else [""]
    lines = [wrap_text(escape_controls(table.title)), "", *(line for part in parts for line in (*part, *end))]
    return "\n".join([*lines, *notes]).rstrip() + "\n"


def render_summary(tables: Sequence[Table]) -> str:
    """Return the tables in compact form, without notes; the list at the end explains marks and contains the remarks."""
    marks = _name_marks(tables)
    bodies: list[str] = []
    for table in tables:
        bodies.append(wrap_text(escape_controls(table.title)))
        bodies += [line for part in _format_parts(table, marks) for line in (*part, "")]
    remarks = dict.fromkeys(remark for table in tables for remark in table.remarks)
    cells = [cell for table in tables for row in table.rows for cell in row]
    interval = ["Below each value is its 95 % interval."] if any(cell.interval and cell.below for cell in cells) else []
    ends = [*(f"{note}." for note in _mark_notes(marks)), *interval, *remarks]
    return "\n".join([*bodies, *(wrap_text(f"- {escape_controls(line)}") for line in ends)]) + "\n"


def _format_parts(table: Table, marks: Mapping[str, str], width: int | None = None) -> Iterator[list[str]]:
    bound = terminal_width() if width is None else width
    grid = [[_cell_lines(_mark_name(row[0], marks)), *map(_cell_lines, row[1:])] for row in table.rows]
    heads = _column_heads(table.columns)
    natural, least = _column_widths(table.columns, heads, grid)
    for chosen in _divide_columns(table.columns, grid, least, bound):
        columns = [table.columns[k] for k in chosen]
        widths, gap = _fit_widths([natural[k] for k in chosen], [least[k] for k in chosen], bound)
        shown = [_align_heads([heads[k] for k in chosen], widths), *([row[k] for k in chosen] for row in grid)]
        head, *body = [_format_row(row, columns, widths, gap) for row in shown]
        yield [head + "\n" + gap.join("-" * width for width in widths), *body]


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
    heads = [[column.group, column.name] if grouped else [column.name] for column in columns]
    return [[*map(escape_controls, head)] for head in heads]


def _align_heads(heads: Sequence[Sequence[str]], widths: Sequence[int]) -> list[list[str]]:
    if all(len(head) == 1 for head in heads):
        return [list(head) for head in heads]
    groups = [wrap_line(head[0], width) for head, width in zip(heads, widths, strict=True)]
    tallest = max(len(lines) for lines in groups)
    return [[*[""] * (tallest - len(lines)), *lines, *head[1:]] for lines, head in zip(groups, heads, strict=True)]


def _cell_lines(cell: Cell) -> list[str]:
    # Plain text has no bold, so the best value is between asterisks, as in Markdown.
    shown = f"*{cell.text}*" if cell.emphasis == "best" else cell.text
    return [escape_controls(part) for part in (shown + cell.mark, cell.below) if part] or [""]


def _column_widths(
    columns: Sequence[Column], heads: Sequence[Sequence[str]], rows: Sequence[Sequence[Sequence[str]]]
) -> tuple[list[int], list[int]]:
    """Return each column's width without wrapping, and its least width without splitting a word or a number."""
    natural, least = [], []
    for k, column in enumerate(columns):
        values = [line for row in rows for line in row[k]]
        texts, whole = (heads[k], values) if column.numeric else ([*heads[k], *values], [])
        words = [word.rstrip() for line in texts for word in split_words(line)]
        longest = max(map(cell_len, texts))
        least.append(max(map(cell_len, ("", *words, *whole))))
        natural.append(max(least[k], min(longest, _HEAD_WIDTH)) if column.numeric else longest)
    return natural, least


def _divide_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[Sequence[str]]], least: Sequence[int], bound: int
) -> Iterator[list[int]]:
    texts = [k for k, column in enumerate(columns) if not column.numeric]
    keys = (texts[:count] for count in range(1, len(texts) + 1))
    distinct = (key for key in keys if len({str([row[k] for k in key]) for row in rows}) == len(rows))
    key = next(distinct, texts[:1] or [0])
    while len(key) > 1 and 2 * sum(least[k] + 1 for k in key) > bound:
        key.pop()
    part = [*key]
    for k in sorted({*range(len(columns))} - {*key}):
        if len(part) > len(key) and sum(least[c] + 1 for c in part) + least[k] > bound:
            yield sorted(part)
            part = [*key]
        part.append(k)
    yield sorted(part)


def _fit_widths(natural: Sequence[int], least: Sequence[int], bound: int) -> tuple[list[int], str]:
    widths, between = [*natural], len(natural) - 1
    gap = next((gap for size in (sum(natural), sum(least)) for gap in _GAPS if size + gap * between <= bound), _GAPS[1])
    while sum(widths) + gap * between > bound:
        wider = [k for k, width in enumerate(widths) if width > least[k]]
        if not wider:
            break
        widths[max(wider, key=widths.__getitem__)] -= 1
    return widths, " " * gap


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


def render_markdown(table: Table) -> str:
    """Return the table in GitHub's Markdown, with details in parentheses after their values."""
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
    """Return the text with Markdown syntax escaped, so that it also contains no link. What looks like an e-mail address
    becomes a code span, because renderers turn even an escaped address into a link.
    """
    pieces = _WORD.split(escape_controls(text))
    return "".join(f"`{piece}`" if "." in piece[1:].partition("@")[2] else _escape_word(piece) for piece in pieces)


def _escape_word(word: str) -> str:
    marks = "\\`*_[]<>|~#&$" + (":/.@" if _LINKS.search(word) else "")
    return "".join(f"\\{character}" if character in marks else character for character in word)


# CSV


# Where a spreadsheet may read a formula: at the beginning of a field, and after separators of fields in some locales.
_FORMULA = re.compile(r"""(?:^|(?<=[;|]))(?=[\s"]*[=+\-@＝＋－＠])""")


def render_csv(table: Table) -> str:
    """Return CSV text: a line of headings and a line for each row, with exact numbers.

    `NAME low` and `NAME high` follow a column with intervals. `NAME n` follows a column in which a value has another n
    than its row. `NAME note` follows a column with other details, such as reasons for missing values. A missing value
    is an empty field. Remarks are on every row, in the last column. Text that a spreadsheet could read as a formula
    begins with an apostrophe; numbers never do.
    """
    remarks = [spreadsheet_text(" ".join(table.remarks))] if table.remarks else []
    columns = [(k, part) for k in range(len(table.columns)) for part in _column_parts([row[k] for row in table.rows])]
    heads = [spreadsheet_text(f"{table.columns[k].full} {part}".strip()) for k, part in columns]
    rows = ([*(_cell_field(row[k], part) for k, part in columns), *remarks] for row in table.rows)
    return _write_csv([[*heads, *(["Remarks"] if remarks else [])], *rows])


def _write_csv(rows: Iterable[Sequence[str]]) -> str:
    sink = io.StringIO()
    _csv.writer(sink, lineterminator="\n").writerows(rows)
    return sink.getvalue()


def render_rows_csv(heads: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return CSV text: a line of headings, then a line for each row, with exact numbers and flags `true` and `false`.
    A field is empty if the row lacks the heading or has None or NaN. Values without a heading are left out.
    """
    fields = ([_plain_field(row.get(head)) for head in heads] for row in rows)
    return _write_csv([[spreadsheet_text(head) for head in heads], *fields])


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
    """Return the text with control characters escaped, and with an apostrophe before text that looks like a formula."""
    return _FORMULA.sub("'", escape_controls(text))
