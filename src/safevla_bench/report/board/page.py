"""The page of one policy, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from safevla_bench.report.tables import Table


@dataclass(frozen=True, slots=True)
class FigureImage:
    """A figure as a data URI, with a description for readers who do not see it."""

    data_uri: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, paragraphs, tables and an image; `notes` say what makes its numbers incomparable."""

    heading: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    image: FigureImage | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPage:
    """One policy: `path` is the page's place in the site, `report` that of its report if there is one."""

    path: str
    policy: str
    lead: str
    flags: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    report: str | None = None
    provenance: tuple[tuple[str, str], ...] = ()
