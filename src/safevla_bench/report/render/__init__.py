"""Tables in any form that is asked for: text, Markdown, CSV, LaTeX, JSON and HTML.

Marks and emphasis are in the table; a form only shows them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import msgspec
from markupsafe import Markup

from safevla_bench.report.html import content_security_policy, page_style, template_environment
from safevla_bench.report.render.latex import render_latex
from safevla_bench.report.render.text import render_csv, render_markdown, render_text, wrap_line
from safevla_bench.report.tables import Table

TableFormat = Literal["text", "md", "csv", "tex", "json", "html"]
_RENDERERS = {"text": render_text, "md": render_markdown, "csv": render_csv, "tex": render_latex}

__all__ = [
    "TableFormat",
    "render_csv",
    "render_html",
    "render_json",
    "render_latex",
    "render_markdown",
    "render_tables",
    "render_text",
    "wrap_line",
]


def render_tables(tables: Sequence[Table], form: TableFormat) -> str:
    """Return the tables in one form, below each other where there are several."""
    if form == "json":
        return render_json(tables)
    if form == "html":
        return render_html(tables)
    return "\n".join(_RENDERERS[form](table) for table in tables)


def render_json(tables: Sequence[Table]) -> str:
    """Return the tables as a JSON list: text, value, interval, detail, emphasis, mark and own n (`of`) of every cell.

    All characters but ASCII are escaped, so that no name from a record acts on a terminal.
    """
    return json.dumps(msgspec.to_builtins(list(tables)), indent=2) + "\n"


def render_html(tables: Sequence[Table], title: str = "Safety tables") -> str:
    """Return one self-contained HTML page: the report's own style, no script, nothing fetched.

    All text from records is escaped.
    """
    sheet = page_style()
    return (
        template_environment()
        .get_template("tables.html")
        .render(title=title, policy=content_security_policy(sheet), style=Markup(sheet), tables=tables)
    )
