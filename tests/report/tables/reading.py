"""Verdicts that several tables are made of, and reading a table by the names of its columns."""

from __future__ import annotations

from report.scenes import joined, verdicts
from safevla_bench.report.tables.table import Cell, Table

GOOD, BAD, FAILED = (True, 1, 1), (True, -5, 1), (False, 1, 1)


def two_suites():
    return joined(
        verdicts(GOOD, BAD, suite="libero-goal"),
        verdicts(GOOD, GOOD, GOOD, FAILED, suite="libero-10"),
        verdicts(BAD, BAD, policy="b", suite="libero-goal"),
        verdicts(FAILED, policy="b", suite="libero-10"),
    )


def columns(table: Table) -> dict[str, list[Cell]]:
    """The cells of each column, by its full name."""
    return {column.full: [row[k] for row in table.rows] for k, column in enumerate(table.columns)}


def texts(table: Table, name: str) -> list[str]:
    """The texts of a column."""
    return [cell.text for cell in columns(table)[name]]
