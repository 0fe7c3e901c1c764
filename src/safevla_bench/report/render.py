"""Tables as plain text for terminals and as Markdown. Neither colours nor moves anything; both are quiet in a pipe."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

from safevla_bench.inert import inert
from safevla_bench.report.tables import Cell, Column, Table

_GAP = 2
_NARROWEST = 12
_UNBOUNDED = 10_000


def text(table: Table, width: int | None = None) -> str:
    """The table in aligned columns, details below their values.

    Args:
        table: what to print.
        width: columns of the terminal, asked of it by default. Names are wrapped to fit in it, down to 12 columns;
            numbers are never cut, so that a table of many numbers may be wider.
    """
    bound = shutil.get_terminal_size((100, 24)).columns if width is None else width
    grid = [[_lines(cell) for cell in row] for row in table.rows]
    heads = [[inert(column.name)] for column in table.columns]
    widths = _widths(table.columns, [heads, *grid], bound)
    body = [_printed(row, table.columns, widths) for row in [heads, *grid]]
    rule = "  ".join("-" * width for width in widths)
    gaps = "\n" if any(len(cell) > 1 for row in grid for cell in row) else ""
    lines = [inert(table.title), "", body[0], rule, *(row + gaps for row in body[1:])]
    return "\n".join([*lines, *([] if gaps else [""]), *(inert(note) for note in table.notes)]).rstrip() + "\n"


def _lines(cell: Cell) -> list[str]:
    return [inert(part) for part in (cell.text, cell.detail) if part] or [""]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Sequence[str]]], bound: int) -> list[int]:
    """As wide as the widest line; where that is too wide the widest column of names gives way, one by one."""
    natural = [max(cell_len(line) for row in rows for line in row[k]) for k in range(len(columns))]
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


def markdown(table: Table) -> str:
    """The table as GitHub's Markdown, details in brackets after their values."""
    heads = [_escaped(column.name) for column in table.columns]
    marks = ["---:" if column.numeric else ":---" for column in table.columns]
    rows = [[_inline(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in [heads, marks, *rows]]
    notes = [part for note in table.notes for part in ("", _escaped(note))]
    return "\n".join([f"**{_escaped(table.title)}**", "", *lines, *notes]) + "\n"


def _inline(cell: Cell) -> str:
    shown = _escaped(cell.text)
    shown = f"**{shown}**" if cell.emphasis == "best" and shown else shown
    return f"{shown} ({_escaped(cell.detail)})" if cell.detail else shown


def _escaped(part: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_[]<>|~#&$" else c for c in inert(part))
