"""The page of one policy, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from safevla_bench.report.tables import Table


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as a data URI, and what it shows for those who do not see it."""

    source: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, words, tables and a picture; `notes` say what makes its numbers incomparable."""

    heading: str
    words: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    picture: Picture | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPage:
    """One policy: `path` within the site, `report` beside it where there is one."""

    path: str
    policy: str
    lead: str
    flags: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    report: str | None = None
    provenance: tuple[tuple[str, str], ...] = ()
