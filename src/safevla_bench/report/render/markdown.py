"""Tables as GitHub's Markdown."""

from __future__ import annotations

from safevla_bench.report.tables import Cell, Table
from safevla_bench.text.sanitize import escape_controls


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
    return f"{shown} ({_escape_markdown(cell.detail)})" if cell.detail else shown


def _escape_markdown(text: str) -> str:
    return "".join(
        f"\\{character}" if character in "\\`*_[]<>|~#&$" else character for character in escape_controls(text)
    )
