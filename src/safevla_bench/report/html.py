"""What pages share: their templates, their style sheet, and the policy that lets nothing else in."""

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
from safevla_bench.text.sanitize import clipped, inert


@cache
def environment() -> Environment:
    """Where the templates of pages are: everything is escaped, and made inert."""
    environment = Environment(
        loader=PackageLoader("safevla_bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: inert(value) if type(value) is str else value,
    )
    environment.filters["parted"] = _parted
    environment.filters["clipped"] = clipped
    environment.filters["spans"] = _spans
    return environment


def _spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Neighbouring columns of the same group: its name and how many they are."""
    return [(group, len(list(those))) for group, those in groupby(columns, key=lambda column: column.group)]


def _parted(name: str) -> Markup:
    """A name that may be broken where its parts meet."""
    return Markup("<wbr>").join(re.split(r"(?<=[_/:-])", inert(name)))


@cache
def style() -> str:
    """The style sheet, our own file."""
    return _own("page.css")


@cache
def script() -> str:
    """The script that sorts and filters episodes, our own file."""
    return _own("page.js")


def _own(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def content_security_policy(style: str, script: str = "") -> str:
    """The Content-Security-Policy: nothing but this style sheet, this script and images in the page itself."""
    runs = f" script-src '{_digest(script)}';" if script else ""
    return f"default-src 'none'; style-src '{_digest(style)}';{runs} img-src data:; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
