"""The ranking of the policies of one table by Safety, their rank by SR, and the letters of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from safevla_bench.statistics.tests import letter_display
from safevla_bench.text import NO_VALUE, format_fixed, format_interval

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
        """Return percent with one decimal, or a dash where there is no value."""
        return NO_VALUE if self.percent is None else format_fixed(self.percent, 1)

    @property
    def detail(self) -> str:
        """Return the interval as text; where there is no value or no interval, `missing_reason`, which may be empty."""
        return (
            format_interval(*self.interval, digits=1)
            if self.percent is not None and self.interval
            else self.missing_reason
        )

    @property
    def position(self) -> str:
        """Return percent with two decimals, the place of the point on a strip of 0 to 100; 0 without a value."""
        return format_fixed(self.percent or 0, 2)

    @property
    def interval_start(self) -> str:
        """Return the low end of the interval in percent; 0 without an interval."""
        return format_fixed(self.interval[0], 2) if self.interval else "0"

    @property
    def interval_length(self) -> str:
        """Return the length of the interval in percent; 0 without an interval."""
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
    """Return the entries ranked by Safety, the safest first; those without a rank at the end, by Safety too."""
    competing = [k for k, entry in enumerate(entries) if entry.ranked and entry.safety.percent is not None]
    order = sorted(competing, key=lambda k: -_exact_percent(entries[k].safety))
    by_safety, by_sr = _rank_labels(entries, competing, "safety"), _rank_labels(entries, competing, "sr")
    letters = _letters_by_place(order, separated)
    rest = sorted(
        (k for k in range(len(entries)) if k not in competing), key=lambda k: -_exact_percent(entries[k].safety)
    )
    return (
        *(RankedEntry(entries[k], by_safety[k], by_sr.get(k, ""), letters.get(k, "")) for k in order),
        *(RankedEntry(entries[k]) for k in rest),
    )


def _exact_percent(share: Proportion) -> Fraction:
    return Fraction(-1) if share.percent is None else share.percent


def _rank_labels(entries: Sequence[RankingEntry], competing: Sequence[int], metric: str) -> Mapping[int, str]:
    values = {k: getattr(entries[k], metric).percent for k in competing}
    known_values = {k: value for k, value in values.items() if value is not None}
    above = {k: sum(other > value for other in known_values.values()) for k, value in known_values.items()}
    ties = list(above.values())
    return {k: f"{rank + 1}{'=' if ties.count(rank) > 1 else ''}" for k, rank in above.items()}


def _letters_by_place(order: Sequence[int], separated: SeparatedPairs | None) -> Mapping[int, str]:
    if separated is None or len(order) < 2:
        return {}
    place = {k: rank for rank, k in enumerate(order)}
    pairs = {(place[i], place[j]) for i, j in separated if i in place and j in place}
    return dict(zip(order, letter_display(len(order), pairs), strict=True))


def disjoint_pairs(entries: Sequence[RankingEntry]) -> SeparatedPairs | None:
    """Return the pairs of entries whose intervals of Safety do not overlap; None if a ranked entry has no interval.

    The rule is cautious: a test may tell two entries apart whose intervals overlap a little.
    """
    ends = [entry.safety.interval for entry in entries]
    if any(entry.ranked and entry.safety.percent is not None and entry.safety.interval is None for entry in entries):
        return None
    return {
        (i, j)
        for i, first in enumerate(ends)
        for j, second in enumerate(ends)
        if i < j and first and second and (first[1] < second[0] or second[1] < first[0])
    }
