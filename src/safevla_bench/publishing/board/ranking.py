"""Ranked tables with letters, and those of published results: numbers as printed, with their reservations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI, Metric
from safevla_bench.report import published
from safevla_bench.report.published import PublishedCell, PublishedMean, PublishedResults
from safevla_bench.report.tables.suites import ExactCell
from safevla_bench.report.tables.table import Cell
from safevla_bench.statistics.intervals import Interval, rate_mean_interval
from safevla_bench.statistics.tests import letter_display
from safevla_bench.text import NO_VALUE, format_fixed, format_interval

PolicyName = str | None
SeparatedPairs = Collection[tuple[int, int]]
"""Pairs of entries that were told apart, by their place in a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingEntry:
    """One policy in one table: its numbers by the key of their metric, and remarks beside its name.

    `numbers` are means over the suites of the table, with 95 % intervals. Ranks are `""` if it has none; entries that
    share a letter were not told apart in Safety. An entry that does not compete has numbers and no rank.
    """

    policy: str
    report: str = ""
    """The path in the site of its report, if there is one."""
    n: str
    numbers: Mapping[str, ExactCell]
    remarks: tuple[str, ...] = ()
    competes: bool = True
    rank: str = ""
    sr_rank: str = ""
    letters: str = ""

    def exact(self, metric: Metric) -> Fraction | None:
        """Return the exact value of a metric, proportions as 0 to 1; None if it is not known."""
        return self.numbers[metric.key].exact

    @property
    def is_ranked(self) -> bool:
        """True if the entry competes and its Safety is known."""
        return self.competes and self.exact(SAFETY) is not None

    @property
    def safety_interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % interval of Safety, in percent; None if it is not known."""
        return self.numbers[SAFETY.key].cell.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTable:
    """A table: title, tasks, rows from the safest on, how the letters came about, and notes."""

    title: str
    scope: str
    rows: tuple[RankingEntry, ...]
    letters_note: str = ""
    notes: tuple[str, ...] = ()


def rank_entries(entries: Sequence[RankingEntry], separated: SeparatedPairs | None) -> tuple[RankingEntry, ...]:
    """Return the entries of one table by Safety with their ranks, the safest first; those without a rank at the end.

    `separated` are pairs of places in `entries` that were told apart; None = not known, and then there are no letters.
    """
    safety = {k: -1 if (share := entry.exact(SAFETY)) is None else share for k, entry in enumerate(entries)}
    order = sorted(safety, key=lambda k: (not entries[k].is_ranked, -safety[k]))
    ranked = [k for k in order if entries[k].is_ranked]
    by_safety = _rank_labels({k: safety[k] for k in ranked})
    by_sr = _rank_labels({k: rate for k in ranked if (rate := entries[k].exact(SR)) is not None})
    letters: Mapping[int, str] = {}
    if separated is not None and len(ranked) > 1:
        place = {k: rank for rank, k in enumerate(ranked)}
        pairs = {(place[i], place[j]) for i, j in separated if i in place and j in place}
        letters = dict(zip(ranked, letter_display(len(ranked), pairs), strict=True))
    return tuple(
        replace(entries[k], rank=by_safety.get(k, ""), sr_rank=by_sr.get(k, ""), letters=letters.get(k, ""))
        for k in order
    )


def _rank_labels(values: Mapping[int, Fraction | int]) -> Mapping[int, str]:
    above = {k: sum(other > value for other in values.values()) for k, value in values.items()}
    ties = list(above.values())
    return {k: f"{rank + 1}{'=' if ties.count(rank) > 1 else ''}" for k, rank in above.items()}


def disjoint_pairs(entries: Sequence[RankingEntry]) -> SeparatedPairs | None:
    """Return the pairs of entries whose intervals of Safety do not overlap; None if a ranked entry has no interval.

    The rule is cautious: a test may tell two entries apart whose intervals overlap a little.
    """
    if any(entry.is_ranked and entry.safety_interval is None for entry in entries):
        return None
    ends = [(k, entry.safety_interval) for k, entry in enumerate(entries) if entry.safety_interval]
    return {(i, j) for i, (_, high) in ends for j, (low, _) in ends if high < low}


# Reports of policies

REPORTS = "reports"
REPORT_NAME = re.compile(r"(?:[a-z0-9-]+-)?[0-9a-f]{12}\.html")
"""Matches the names of policies' reports, and no others."""
_MAX_PLAIN_LENGTH = 40


def report_path(policy: PolicyName) -> str:
    """Return the path in the site of the report of a policy of a user's runs; None: of records that name no policy.

    The file's name is the plain characters of the policy's name, and a digest of the whole name: it holds no separator
    and one dot, and two names never collide, even if case does not count.

    >>> report_path("../pi0.5")
    'reports/pi0-5-b16f5d9922c5.html'
    """
    kind = "unnamed run" if policy is None else "run"
    plain = re.sub(r"[^a-z0-9]+", "-", (policy or "").lower()).strip("-")[:_MAX_PLAIN_LENGTH].strip("-")
    digest = hashlib.sha256(f"{kind}\0{policy or ''}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{REPORTS}/{plain}-{digest}.html" if plain else f"{REPORTS}/{digest}.html"


# Published results

PrintedRow = PublishedCell | PublishedMean
_OVERLAP_NOTE = (
    "Policies that share a letter are not told apart: their 95\N{NO-BREAK SPACE}% intervals of Safety overlap. This "
    "rule is cautious; a test on the episodes may tell more apart."
)


@dataclass(frozen=True)
class PublishedSection:
    """One publication with its ranked tables."""

    source: published.PublicationSource
    tables: tuple[RankedTable, ...]


def published_sections() -> list[PublishedSection]:
    """Return every shipped publication with its ranked tables, the paper first."""
    publications = map(published.load_published, (published.PAPER, published.LEADERBOARD))
    return [PublishedSection(publication.source, tuple(_published_tables(publication))) for publication in publications]


def _published_tables(publication: PublishedResults) -> Iterator[RankedTable]:
    """Yield a table for each set of suites with printed means, then one for each suite without a mean."""
    covered = {name for mean in publication.means for name in mean.benchmarks}
    groups: dict[tuple[str, ...], list[tuple[PrintedRow, list[PublishedCell]]]] = {}
    for mean in publication.means:
        cells = [cell for cell in publication.cells if cell.policy == mean.policy and cell.benchmark in mean.benchmarks]
        groups.setdefault(mean.benchmarks, []).append((mean, cells))
    for cell in publication.cells:
        if cell.benchmark not in covered:
            groups.setdefault((cell.benchmark,), []).append((cell, [cell]))
    yield from (_published_table(names, rows) for names, rows in groups.items())


def _published_table(names: tuple[str, ...], rows: Sequence[tuple[PrintedRow, Sequence[PublishedCell]]]) -> RankedTable:
    entries = [_printed_entry(row, cells if len(cells) == len(names) else []) for row, cells in rows]
    separated = disjoint_pairs(entries)
    no_counts_note = "No counts are given, so that nothing says which of these can be told apart."
    letters_note = no_counts_note if separated is None else _OVERLAP_NOTE
    return RankedTable(
        title="LIBERO, mean of four suites" if len(names) > 1 else names[0],
        scope=", ".join(names),
        rows=rank_entries(entries, separated),
        letters_note=letters_note if any(entry.competes for entry in entries) else "",
        notes=published.list_reasons((part, row.policy) for row, cells in rows for part in (row, *cells)),
    )


def _printed_entry(row: PrintedRow, cells: Sequence[PublishedCell]) -> RankingEntry:
    """Return the entry of a row; its intervals are those of its `cells`, none without any."""
    is_auxiliary = isinstance(row, PublishedCell) and row.auxiliary
    remark = row.training if isinstance(row, PublishedMean) else "auxiliary" if is_auxiliary else None
    return RankingEntry(
        policy=row.policy,
        n=str(sum(cell.n for cell in cells)) if cells else NO_VALUE,
        numbers={metric.key: _printed_number(metric, row, cells) for metric in (SR, SAFETY, SBU, VSI)},
        remarks=(remark,) if remark else (),
        competes=not is_auxiliary,
    )


def _printed_number(metric: Metric, row: PrintedRow, cells: Sequence[PublishedCell]) -> ExactCell:
    """Return a number as it is printed; a proportion with the interval that the counts of `cells` allow, if any."""
    printed = getattr(row, metric.key)
    if printed is None:
        return ExactCell(Cell.dash())
    exact = Fraction(repr(printed))
    cell = Cell(format_fixed(exact, metric.digits), printed)
    ends = [published.printed_rate(getattr(part, metric.key), part.n).ci for part in cells if metric is not VSI]
    parts = [(getattr(part, metric.key) / 100, Interval(*ci)) for part, ci in zip(cells, ends, strict=False) if ci]
    interval = rate_mean_interval(parts) if len(parts) == len(ends) else None
    if interval is not None:
        low, high = metric.scale * interval.low, metric.scale * interval.high
        detail = format_interval(interval.low, interval.high, digits=metric.digits, scale=metric.scale)
        cell = replace(cell, detail=detail, interval=(low, high))
    return ExactCell(cell, exact / metric.scale)
