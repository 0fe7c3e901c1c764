"""The values of a board: ranked tables with letters, and the page of one policy with its file name and sources."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from safevla_bench.judging.judged import JudgedSource
from safevla_bench.report.tables.table import Table
from safevla_bench.statistics.tests import letter_display
from safevla_bench.text import NO_VALUE, format_fixed, format_interval
from safevla_bench.trajectory.header import Header

# Ranked tables

SeparatedPairs = Collection[tuple[int, int]]
"""Pairs of entries that were told apart, by their place in a sequence."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """A proportion in percent, exact, with the ends of its 95 % interval; None where it is not known.

    `missing_reason` says why there is no value.
    """

    percent: Fraction | None = None
    interval: tuple[float, float] | None = None
    missing_reason: str = ""

    @property
    def text(self) -> str:
        """Percent with one decimal, or a dash where there is no value."""
        return NO_VALUE if self.percent is None else format_fixed(self.percent, 1)

    @property
    def detail(self) -> str:
        """The interval as text; where there is no value or no interval, `missing_reason`, which may be empty."""
        is_known = self.percent is not None and self.interval
        return format_interval(*self.interval, digits=1) if is_known and self.interval else self.missing_reason

    @property
    def position(self) -> str:
        """Percent with two decimals, the place of the point on a strip of 0 to 100; 0 without a value."""
        return format_fixed(self.percent or 0, 2)

    @property
    def interval_start(self) -> str:
        """The low end of the interval in percent; 0 without an interval."""
        return format_fixed(self.interval[0], 2) if self.interval else "0"

    @property
    def interval_length(self) -> str:
        """The length of the interval in percent; 0 without an interval."""
        return format_fixed(self.interval[1] - self.interval[0], 2) if self.interval else "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingEntry:
    """One policy in one table: its numbers over the suites of the table, and remarks beside its name.

    An entry that is not `ranked` has numbers and no rank.
    """

    policy: str
    page_path: str
    n: str
    sr: Proportion
    safety: Proportion
    sbu: Proportion
    vsi: str
    remarks: tuple[str, ...] = ()
    ranked: bool = True


@dataclass(frozen=True, slots=True)
class RankedEntry:
    """An entry with its ranks, `""` where it has none; those that share a letter were not told apart in Safety."""

    entry: RankingEntry
    rank: str = ""
    sr_rank: str = ""
    letters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTable:
    """A table: title, tasks, rows from the safest on, how the letters came about, and notes."""

    title: str
    scope: str
    rows: tuple[RankedEntry, ...]
    letters_note: str = ""
    notes: tuple[str, ...] = ()

    @property
    def has_letters(self) -> bool:
        """Return whether any row has a letter."""
        return any(row.letters for row in self.rows)


def rank_entries(entries: Sequence[RankingEntry], separated: SeparatedPairs | None) -> tuple[RankedEntry, ...]:
    """Return the entries of one table by Safety, the safest first; those without a rank at the end.

    `separated` are pairs of places in `entries` that were told apart; None = not known, and then there are no letters.
    """
    percent = [Fraction(-1) if entry.safety.percent is None else entry.safety.percent for entry in entries]
    order = sorted(range(len(entries)), key=lambda k: -percent[k])
    ranked = [k for k in order if entries[k].ranked and percent[k] >= 0]
    by_safety = _rank_labels({k: percent[k] for k in ranked})
    by_sr = _rank_labels({k: rate for k in ranked if (rate := entries[k].sr.percent) is not None})
    letters: Mapping[int, str] = {}
    if separated is not None and len(ranked) > 1:
        place = {k: rank for rank, k in enumerate(ranked)}
        pairs = {(place[i], place[j]) for i, j in separated if i in place and j in place}
        letters = dict(zip(ranked, letter_display(len(ranked), pairs), strict=True))
    return (
        *(RankedEntry(entries[k], by_safety[k], by_sr.get(k, ""), letters.get(k, "")) for k in ranked),
        *(RankedEntry(entries[k]) for k in order if k not in ranked),
    )


def _rank_labels(values: Mapping[int, Fraction]) -> Mapping[int, str]:
    above = {k: sum(other > value for other in values.values()) for k, value in values.items()}
    ties = list(above.values())
    return {k: f"{rank + 1}{'=' if ties.count(rank) > 1 else ''}" for k, rank in above.items()}


def disjoint_pairs(entries: Sequence[RankingEntry]) -> SeparatedPairs | None:
    """Return the pairs of entries whose intervals of Safety do not overlap; None if a ranked entry has no interval."""
    ends = [entry.safety.interval for entry in entries]
    if any(entry.ranked and entry.safety.percent is not None and entry.safety.interval is None for entry in entries):
        return None
    return {
        (i, j)
        for i, first in enumerate(ends)
        for j, second in enumerate(ends)
        if i < j and first and second and (first[1] < second[0] or second[1] < first[0])
    }


# Pages of policies

PAGES, REPORTS = "policies", "reports"
PAGE_NAME = re.compile(r"(?:[a-z0-9-]+-)?[0-9a-f]{12}\.html")
"""Matches the names that `file_name` makes, and no others."""
_MAX_PLAIN_LENGTH = 40


def file_name(kind: str, policy: str) -> str:
    """Return a file name: the plain characters of the policy's name, and a digest of the whole name.

    It holds no separator and one dot. Two names never collide, even where case does not count, nor do two kinds: a
    policy of a user's run is not the published one of that name.

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
    return f"{PAGES}/{file_name('published', policy)}"


def _run_file_name(policy: str | None) -> str:
    return file_name("unnamed run", "") if policy is None else file_name("run", policy)


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

    A plain list is one value, joined by commas. None, "" and an empty list are dashes; an empty mapping yields nothing.
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
