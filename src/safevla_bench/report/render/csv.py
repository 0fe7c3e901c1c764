"""Tables as CSV for programs: exact numbers, and the ends of intervals in columns of their own."""

from __future__ import annotations

import csv as _csv
import io
from collections.abc import Sequence

from safevla_bench.report.tables import Cell, Table
from safevla_bench.text.numbers import NO_VALUE
from safevla_bench.text.sanitize import escape_controls

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def render_csv(table: Table) -> str:
    """Return a line of headings and a line for each row; numbers are exact and in the unit of their heading.

    A column with intervals is followed by `NAME low` and `NAME high`, one with other details, such as the reason of a
    missing value, by `NAME note`. A missing value is an empty field. Remarks are on every row, in a last column. Text
    that a spreadsheet would take for a formula begins with an apostrophe; numbers never do.
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


def _column_parts(column: Sequence[Cell]) -> list[str]:
    """Return the parts that a column is written as: its values, the ends of intervals and notes."""
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
    return spreadsheet_text(_plain_text(cell)) if cell.value is None else repr(cell.value)


def _plain_text(cell: Cell) -> str:
    return "" if cell.text == NO_VALUE else cell.text


def spreadsheet_text(text: str) -> str:
    """Return the text with control characters escaped, after an apostrophe if it would be taken for a formula."""
    return f"'{escape_controls(text)}" if text.startswith(_FORMULA_STARTS) else escape_controls(text)
