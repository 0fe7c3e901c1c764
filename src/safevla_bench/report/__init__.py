"""Reports: tables as values, their text and Markdown, and one self-contained page."""

from safevla_bench.report.page import render_page
from safevla_bench.report.render import render_markdown, render_text
from safevla_bench.report.tables import Cell, Column, Table, exclusion_table, headline_table, violation_table

__all__ = [
    "Cell",
    "Column",
    "Table",
    "exclusion_table",
    "headline_table",
    "render_markdown",
    "render_page",
    "render_text",
    "violation_table",
]
