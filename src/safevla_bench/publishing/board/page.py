"""The page of one policy as a value, with its file name, and the sources, protocols and versions of its episodes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from safevla_bench.judging.judged import JudgedSource
from safevla_bench.report.tables.table import Table
from safevla_bench.text import NO_VALUE
from safevla_bench.trajectory.header import Header

PAGES, REPORTS = "policies", "reports"
PAGE_NAME = re.compile(r"(?:[a-z0-9-]+-)?[0-9a-f]{12}\.html")
"""Matches the names that `file_name` makes, and no others."""
_MAX_PLAIN_LENGTH = 40
_RUN_KIND, _PUBLISHED_KIND = "run", "published"
"""A policy of a user's run is not the published one of that name."""


def file_name(kind: str, policy: str) -> str:
    """Return a file name: the plain characters of the policy's name, and a digest of the whole name.

    It holds no separator and one dot. Two names never collide, even where case does not count. It does not depend on
    the other policies of the board.

    >>> file_name("run", "../pi0.5")
    'pi0-5-b16f5d9922c5.html'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", policy.lower()).strip("-")[:_MAX_PLAIN_LENGTH].strip("-")
    digest = hashlib.sha256(f"{kind}\0{policy}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain}-{digest}.html" if plain else f"{digest}.html"


def run_page_path(policy: str | None) -> str:
    """Return the path in the site of the page of a policy of a user's runs; None: of records that name no policy."""
    return f"{PAGES}/{_run_file_name(policy)}"


def report_path(policy: str | None) -> str:
    """Return the path in the site of the report of a policy of a user's runs; None: of records that name no policy."""
    return f"{REPORTS}/{_run_file_name(policy)}"


def published_page_path(policy: str) -> str:
    """Return the path in the site of the page of a published policy."""
    return f"{PAGES}/{file_name(_PUBLISHED_KIND, policy)}"


def _run_file_name(policy: str | None) -> str:
    return file_name(_RUN_KIND, policy) if policy is not None else file_name("unnamed run", "")


PolicyName = str | None


def select_sources(sources: Iterable[JudgedSource], policy: PolicyName) -> list[JudgedSource]:
    """Return the sources that name the policy, or name none."""
    return [source for source in sources if policy in source.policies or not source.policies]


def protocols_by_policy(sources: Iterable[JudgedSource]) -> dict[PolicyName, Mapping[str, object]]:
    """Return the protocol of each policy's run; of a policy that ran under several, all of them by number, from "0".

    Policies without a protocol are left out.
    """
    by_policy: dict[PolicyName, list[Mapping[str, object]]] = {}
    for source in sources:
        for policy in source.policies:
            listed, protocol = by_policy.setdefault(policy, []), source.protocol
            listed += [protocol] if protocol is not None and protocol not in listed else []
    return {
        policy: listed[0] if len(listed) == 1 else {str(k): protocol for k, protocol in enumerate(listed)}
        for policy, listed in by_policy.items()
        if listed
    }


def package_versions(headers: Iterable[Header], policy: PolicyName) -> dict[str, list[str]]:
    """Return package -> versions that the headers of a policy's records name, in order of appearance; {} if
    none does.
    """
    versions_by_package: dict[str, dict[str, None]] = {}
    for header in headers:
        for package, version in (header.versions or {}).items() if header.policy == policy else ():
            versions_by_package.setdefault(package, {})[version] = None
    return {package: list(versions) for package, versions in versions_by_package.items()}


def flatten_values(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, text) for each value of nested mappings and lists, in their order; indices are names too.

    A list without mappings or lists is one value, joined by commas. None, "" and an empty list are dashes, booleans yes
    and no. An empty mapping yields nothing.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten_values(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for k, inner in enumerate(value):
            yield from flatten_values(inner, f"{name}.{k}")
    elif isinstance(value, list | tuple):
        yield name, ", ".join(str(item) for item in value) or NO_VALUE
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    else:
        yield name, NO_VALUE if value is None or value == "" else str(value)


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
