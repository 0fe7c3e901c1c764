"""Tables as GitHub's Markdown."""

from __future__ import annotations

from safevla_bench.report.tables import Cell, Table
from safevla_bench.text.sanitize import inert


def markdown(table: Table) -> str:
    """The table as GitHub's Markdown, details in brackets after their values."""
    heads = [_escaped(column.full) for column in table.columns]
    marks = ["---:" if column.numeric else ":---" for column in table.columns]
    rows = [[_inline(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in [heads, marks, *rows]]
    notes = [part for note in table.said for part in ("", _escaped(note))]
    return "\n".join([f"**{_escaped(table.title)}**", "", *lines, *notes]) + "\n"


def _inline(cell: Cell) -> str:
    shown = _escaped(cell.text)
    shown = f"**{shown}**" if cell.emphasis == "best" and shown else shown
    shown += cell.mark
    return f"{shown} ({_escaped(cell.detail)})" if cell.detail else shown


def _escaped(part: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_[]<>|~#&$" else c for c in inert(part))
