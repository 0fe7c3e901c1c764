"""Any table in the form that is asked for; marks and emphasis are in the table, forms only show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from safevla_bench.report.render.csv import csv
from safevla_bench.report.render.html import html
from safevla_bench.report.render.json import json
from safevla_bench.report.render.latex import tex
from safevla_bench.report.render.markdown import markdown
from safevla_bench.report.render.text import text, wrap
from safevla_bench.report.tables import Table

Form = Literal["text", "md", "csv", "tex", "json", "html"]
_ONE = {"text": text, "md": markdown, "csv": csv, "tex": tex}

__all__ = ["Form", "csv", "html", "json", "markdown", "rendered", "tex", "text", "wrap"]


def rendered(tables: Sequence[Table], form: Form) -> str:
    """Tables in a form, below each other where there are several."""
    if form == "json":
        return json(tables)
    if form == "html":
        return html(tables)
    return "\n".join(_ONE[form](table) for table in tables)
