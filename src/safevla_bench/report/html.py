"""The frame of all pages: templates, style sheet, script, and a policy that admits nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from safevla_bench.report.tables import Column
from safevla_bench.text.sanitize import escape_controls, shorten_name


@cache
def template_environment() -> Environment:
    """Return the environment of the page templates: every string is escaped, control characters removed."""
    environment = Environment(
        loader=PackageLoader("safevla_bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escape_controls(value) if type(value) is str else value,
    )
    environment.filters["breakable"] = _breakable_name
    environment.filters["shorten_name"] = shorten_name
    environment.filters["spans"] = _group_spans
    return environment


def _group_spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return each run of columns of one group: the group's name and the number of columns."""
    return [(group, len(list(neighbours))) for group, neighbours in groupby(columns, key=lambda column: column.group)]


def _breakable_name(name: str) -> Markup:
    """Return a name with break opportunities after `_`, `/`, `:` and `-`."""
    return Markup("<wbr>").join(re.split(r"(?<=[_/:-])", escape_controls(name)))


@cache
def page_style() -> str:
    """Return the style sheet, a file of this package."""
    return _read_template("page.css")


@cache
def page_script() -> str:
    """Return the script that sorts and filters episodes, a file of this package."""
    return _read_template("page.js")


def _read_template(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def content_security_policy(style: str, script: str = "") -> str:
    """Return a Content-Security-Policy for exactly this style sheet, this script and inline images."""
    styles = f"style-src '{_source_digest(style)}';"
    scripts = f" script-src '{_source_digest(script)}';" if script else ""
    return f"default-src 'none'; {styles}{scripts} img-src data:; base-uri 'none'; form-action 'none'"


def _source_digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
