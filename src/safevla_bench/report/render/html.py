"""Tables as one self-contained HTML page: no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from safevla_bench.report.html import content_security_policy, environment, style
from safevla_bench.report.tables import Table


def html(tables: Sequence[Table], title: str = "Safety tables") -> str:
    """The tables below each other, in the report's own style; all text from records is escaped."""
    sheet = style()
    return (
        environment()
        .get_template("tables.html")
        .render(title=title, policy=content_security_policy(sheet), style=Markup(sheet), tables=tables)
    )
