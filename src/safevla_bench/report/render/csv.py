"""Tables as CSV, for programs: exact numbers, and the ends of intervals in columns of their own."""

from __future__ import annotations

import csv as _csv
import io
from collections.abc import Sequence

from safevla_bench.report.tables import Cell, Table
from safevla_bench.text.numbers import NONE
from safevla_bench.text.sanitize import inert

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv(table: Table) -> str:
    """One line of headings and one a row; a number is exact and in the unit of its heading.

    Where a column has intervals, `NAME low` and `NAME high` follow it, and where it has other details, such as why
    there is no value, `NAME note`. What has no value is empty. Remarks are on every row, in a last column. Text that a
    spreadsheet would take for a formula begins with an apostrophe; numbers are left alone.
    """
    remarks = [harmless(" ".join(table.remarks))] if table.remarks else []
    parts = [_parts([row[k] for row in table.rows]) for k in range(len(table.columns))]
    sink = io.StringIO()
    writer = _csv.writer(sink, lineterminator="\n")
    heads = (f"{column.full} {part}".strip() for column, of in zip(table.columns, parts, strict=True) for part in of)
    writer.writerow([*(harmless(head) for head in heads), *(["Remarks"] if remarks else [])])
    for row in table.rows:
        fields = [_field(cell, part) for cell, of in zip(row, parts, strict=True) for part in of]
        writer.writerow([*fields, *remarks])
    return sink.getvalue()


def _parts(column: Sequence[Cell]) -> list[str]:
    """What a column is written as: its values, and what else its cells have."""
    ends = ["low", "high"] if any(cell.interval for cell in column) else []
    return ["", *ends, *(["note"] if any(cell.detail and not cell.interval for cell in column) else [])]


def _field(cell: Cell, part: str) -> str:
    if part in ("low", "high"):
        return "" if cell.interval is None else repr(cell.interval[part == "high"])
    if part == "note":
        return "" if cell.interval else harmless(cell.detail)
    return harmless(_plain(cell)) if cell.value is None else repr(cell.value)


def _plain(cell: Cell) -> str:
    return "" if cell.text == NONE else cell.text


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{inert(text)}" if text.startswith(_FORMULA) else inert(text)
