"""Reading a table by the names of its columns."""

from __future__ import annotations

from safevla_bench.report.tables.table import Cell, Table


def columns(table: Table) -> dict[str, list[Cell]]:
    """The cells of each column, by its full name."""
    return {column.full: [row[k] for row in table.rows] for k, column in enumerate(table.columns)}


def texts(table: Table, name: str) -> list[str]:
    """The texts of a column."""
    return [cell.text for cell in columns(table)[name]]
