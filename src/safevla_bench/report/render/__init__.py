"""The templates of all HTML pages, and the conversion of tables to text, Markdown, CSV, LaTeX, JSON and HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
from markupsafe import Markup

from safevla_bench.errors import require_choice
from safevla_bench.report.render.latex import render_latex
from safevla_bench.report.render.text import render_csv, render_markdown, render_text
from safevla_bench.report.tables.table import Table, group_spans
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import escape_controls, shorten_name

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def template_environment() -> Environment:
    """Return the jinja2 environment of the page templates, created once. The environment escapes control characters and
    HTML in every string. Rendering a template raises jinja2's `UndefinedError` for a name that is not passed.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("safevla_bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Texts of the class `Markup`, a subclass of `str`, are already escaped.
        finalize=lambda value: escape_controls(value) if type(value) is str else value,
    )
    environment.filters["breakable"] = _breakable_name
    environment.filters["shorten_name"] = shorten_name
    environment.filters["describe_reason"] = describe_reason
    environment.filters["spans"] = group_spans
    return environment


@lru_cache(maxsize=1 << 14)
def _breakable_name(name: str) -> Markup:
    # Return the name as HTML with optional line breaks (`<wbr>`); markup in the name is escaped.
    # A line may break after _ / : or -, and before a letter that follows a dot, but never before a percent sign.
    parts = re.split(r"(?<=[_/:-])|(?<=\.)(?=[A-Za-z])", escape_controls(name).replace(" %", "\u00a0%"))
    return Markup("<wbr>").join(parts)


PLAYER_SCRIPTS = ("player/three.min.js", "player/replay3d.js")
"""Script files for 3-D replays, in the order in which they run: three.js (with its license) and the player."""


@cache
def read_template(name: str) -> str:
    """Return the text of a file; `name` is its path in `report/templates`, such as `player/three.min.js`."""
    return resources.files("safevla_bench.report").joinpath("templates", *name.split("/")).read_text(encoding="utf-8")


def content_security_policy(style: str, *scripts: str) -> str:
    """Return a Content-Security-Policy that allows only this style sheet, these scripts and images in `data:` URIs.
    Empty scripts are ignored; if all are empty, no script may run.
    """
    # Browsers then ignore any style or script whose SHA-256 digest is not listed.
    styles = f"style-src '{_source_digest(style)}';"
    digests = " ".join(f"'{_source_digest(script)}'" for script in scripts if script)
    allowed = f" script-src {digests};" if digests else ""
    return f"default-src 'none'; {styles}{allowed} img-src data:; base-uri 'none'; form-action 'none'"


def _source_digest(text: str) -> str:
    # Return a source expression of a Content-Security-Policy: `sha256-` and the digest in base64.
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# Tables


TableFormat = Literal["text", "md", "csv", "tex", "json", "html"]
_RENDERERS = {"text": render_text, "md": render_markdown, "csv": render_csv, "tex": render_latex}


def render_tables(tables: Sequence[Table], form: TableFormat) -> str:
    """Return the tables in one format as one text. If tables share a note, only the first shows it. If all tables share
    a remark on simulators or rules, only the last shows it (except in LaTeX). JSON keeps all notes.
    """
    require_choice("format", form, get_args(TableFormat))
    if form == "json":
        return render_json(tables)
    # In LaTeX, tables are floats, which may be far apart, so each table keeps its remarks.
    tables = list(_drop_repeated_notes(tables, merge_remarks=form != "tex"))
    if form == "html":
        return render_html(tables)
    return "\n".join(_RENDERERS[form](table) for table in tables)


def _drop_repeated_notes(tables: Sequence[Table], *, merge_remarks: bool) -> Iterator[Table]:
    # Yield the tables without repeated notes and remarks. A note is kept only in the first table that has it.
    # If `merge_remarks`, a remark on simulators or rules that is common to all tables is kept only in the last table.
    earlier_notes = set[str]()
    common_remarks = set.intersection(*(set(table.remarks) for table in tables)) if merge_remarks else set[str]()
    only_in_last = {remark for remark in common_remarks if remark.startswith(("Simulated with ", "Judged by "))}
    for number, table in enumerate(tables, 1):
        notes = tuple(note for note in table.notes if note not in earlier_notes)
        is_last = number == len(tables)
        yield replace(table, notes=notes, remarks=tuple(r for r in table.remarks if is_last or r not in only_in_last))
        earlier_notes.update(table.notes)


_COLUMN_KEYS = ("name", "numeric", "meaning", "group")


def render_json(tables: Sequence[Table]) -> str:
    """Return the tables as a JSON list, with all fields of every cell."""
    documents = msgspec.to_builtins(list(tables))
    for document in documents:
        # A column also has a field `value`, which is None in a finished table.
        document["columns"] = [{key: column[key] for key in _COLUMN_KEYS} for column in document["columns"]]
    return json.dumps(documents, indent=2) + "\n"


def render_html(tables: Sequence[Table], title: str = "Safety tables") -> str:
    """Return the tables as one self-contained HTML page in the report's style, without scripts or requests."""
    style = read_template("page.css")
    return (
        template_environment()
        .get_template("tables.html")
        .render(title=title, policy=content_security_policy(style), style=Markup(style), tables=tables)
    )
