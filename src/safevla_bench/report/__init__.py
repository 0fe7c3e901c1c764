"""Reports: tables as values, their text and Markdown, and one self-contained page."""

from safevla_bench.report.page import page
from safevla_bench.report.render import markdown, text
from safevla_bench.report.tables import Cell, Column, Table, main, unscored, violations

__all__ = ["Cell", "Column", "Table", "main", "markdown", "page", "text", "unscored", "violations"]
