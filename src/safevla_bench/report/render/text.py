"""Tables as plain text for terminals. Nothing colours or moves, so that it is quiet in a pipe."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

from safevla_bench.report.tables import Cell, Column, Table
from safevla_bench.text.sanitize import inert

_GAP = 2
_NARROWEST = 13
_UNBOUNDED = 10_000


def text(table: Table, width: int | None = None) -> str:
    """The table in aligned columns, details below their values.

    Args:
        table: what to print.
        width: columns of the terminal, asked of it by default. Names are wrapped to fit in it, down to 13 columns;
            numbers are never cut, so that a table of many numbers may be wider.
    """
    bound = shutil.get_terminal_size((100, 24)).columns if width is None else width
    grid = [[_lines(cell) for cell in row] for row in table.rows]
    heads = _heads(table.columns)
    widths = _widths(table.columns, [heads, *grid], bound)
    body = [_printed(row, table.columns, widths) for row in [_level(heads, widths), *grid]]
    rule = "  ".join("-" * width for width in widths)
    gaps = "\n" if any(len(cell) > 1 for row in grid for cell in row) else ""
    lines = [inert(table.title), "", body[0], rule, *(row + gaps for row in body[1:])]
    return "\n".join([*lines, *([] if gaps else [""]), *(inert(note) for note in table.said)]).rstrip() + "\n"


def _heads(columns: Sequence[Column]) -> list[list[str]]:
    """Headings, with their groups above where there are any."""
    grouped = any(column.group for column in columns)
    return [[inert(column.group), inert(column.name)] if grouped else [inert(column.name)] for column in columns]


def _level(heads: Sequence[Sequence[str]], widths: Sequence[int]) -> list[list[str]]:
    """The headings broken into lines, so that all names below a group begin at the same height."""
    if all(len(head) == 1 for head in heads):
        return [list(head) for head in heads]
    groups = [wrap(head[0], width) for head, width in zip(heads, widths, strict=True)]
    tallest = max(len(lines) for lines in groups)
    return [[*[""] * (tallest - len(lines)), *lines, *head[1:]] for lines, head in zip(groups, heads, strict=True)]


def _lines(cell: Cell) -> list[str]:
    # As in Markdown: plain text has no bold.
    shown = f"*{cell.text}*" if cell.emphasis == "best" else cell.text
    return [inert(part) for part in (shown + cell.mark, cell.detail) if part] or [""]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Sequence[str]]], bound: int) -> list[int]:
    """As wide as the widest line; where that is too wide the widest column of names gives way, one by one.

    Long headings of numbers (the first row) are wrapped.
    """
    natural = [max(cell_len(line) for row in rows for line in row[k]) for k in range(len(columns))]
    for k in [k for k, column in enumerate(columns) if column.numeric]:
        values = max((cell_len(line) for row in rows[1:] for line in row[k]), default=0)
        natural[k] = min(natural[k], max(values, _NARROWEST))
    names = [k for k, column in enumerate(columns) if not column.numeric]
    while sum(natural) + _GAP * (len(natural) - 1) > bound:
        widest = max(names, key=lambda k: natural[k], default=None)
        if widest is None or natural[widest] <= _NARROWEST:
            break
        natural[widest] -= 1
    return natural


def _printed(row: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int]) -> str:
    wrapped = [[part for line in cell for part in wrap(line, width)] for cell, width in zip(row, widths, strict=True)]
    lines = []
    for parts in zip_longest(*wrapped, fillvalue=""):
        padded = [_pad(part, w, c.numeric) for part, w, c in zip(parts, widths, columns, strict=True)]
        lines.append((" " * _GAP).join(padded).rstrip())
    return "\n".join(lines)


def wrap(line: str, width: int) -> list[str]:
    """Broken after a space or a mark that parts names where there is one, else anywhere."""
    if cell_len(line) <= width:
        return [line]
    found = [""]
    for word in re.split(r"(?<=[\s:/_-])", line):
        together = found[-1] + word
        if cell_len(together.rstrip()) <= width:
            found[-1] = together
        else:
            found += chop_cells(word, width)
    return [part.rstrip() for part in found if part.strip()]


def _pad(part: str, width: int, right: bool) -> str:
    fill = " " * (width - cell_len(part))
    return fill + part if right else part + fill
