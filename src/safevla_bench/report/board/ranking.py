"""Who stands where: the policies of one table ranked by Safety, SR's own rank, and who was not told apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from safevla_bench.statistics import letters
from safevla_bench.text.numbers import NONE, fixed, span

Apart = Collection[tuple[int, int]]
"""Pairs of entries, by their place in a sequence."""


@dataclass(frozen=True, slots=True)
class Share:
    """A proportion in percent, exact, with the ends of its 95 % interval; None where it is not known.

    `why` says why there is no value.
    """

    percent: Fraction | None = None
    interval: tuple[float, float] | None = None
    why: str = ""

    @property
    def text(self) -> str:
        return NONE if self.percent is None else fixed(self.percent, 1)

    @property
    def detail(self) -> str:
        """The interval; where there is no value, the reason."""
        return span(*self.interval, digits=1) if self.percent is not None and self.interval else self.why

    @property
    def at(self) -> str:
        """Where its point lies across a strip of 0 to 100."""
        return fixed(self.percent or 0, 2)

    @property
    def start(self) -> str:
        return fixed(self.interval[0], 2) if self.interval else "0"

    @property
    def length(self) -> str:
        return fixed(self.interval[1] - self.interval[0], 2) if self.interval else "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One policy in one table: its numbers over the suites of the table, and what must be said beside its name.

    An entry that is not `ranked` has its numbers, and no place among the others.
    """

    policy: str
    page: str
    n: str
    sr: Share
    safety: Share
    sbu: Share
    vsi: str
    remarks: tuple[str, ...] = ()
    ranked: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """An entry with its ranks, `""` where it has none; those that share a letter were not told apart in Safety."""

    entry: Entry
    rank: str = ""
    sr_rank: str = ""
    letters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class League:
    """A table: what it is about, its rows from the safest on, how they were told apart, what else must be known."""

    title: str
    scope: str
    standings: tuple[Standing, ...]
    told: str = ""
    notes: tuple[str, ...] = ()

    @property
    def lettered(self) -> bool:
        return any(one.letters for one in self.standings)


def stand(entries: Sequence[Entry], apart: Apart | None) -> tuple[Standing, ...]:
    """The entries ranked by Safety, those without a rank at the end.

    Args:
        entries: of one table.
        apart: the ranked ones that were told apart, by their place in `entries`; None where nothing can be said.
    """
    competing = [k for k, one in enumerate(entries) if one.ranked and one.safety.percent is not None]
    order = sorted(competing, key=lambda k: -_exact(entries[k].safety))
    by_safety, by_sr = _ranks(entries, competing, "safety"), _ranks(entries, competing, "sr")
    given = _letters(order, apart)
    rest = sorted((k for k in range(len(entries)) if k not in competing), key=lambda k: -_exact(entries[k].safety))
    return (
        *(Standing(entries[k], by_safety[k], by_sr.get(k, ""), given.get(k, "")) for k in order),
        *(Standing(entries[k]) for k in rest),
    )


def _exact(share: Share) -> Fraction:
    return Fraction(-1) if share.percent is None else share.percent


def _ranks(entries: Sequence[Entry], competing: Sequence[int], metric: str) -> Mapping[int, str]:
    """Place -> rank; equal values share one, marked with `=`."""
    values = {k: getattr(entries[k], metric).percent for k in competing}
    known = {k: value for k, value in values.items() if value is not None}
    above = {k: sum(other > value for other in known.values()) for k, value in known.items()}
    ties = list(above.values())
    return {k: f"{rank + 1}{'=' if ties.count(rank) > 1 else ''}" for k, rank in above.items()}


def _letters(order: Sequence[int], apart: Apart | None) -> Mapping[int, str]:
    if apart is None or len(order) < 2:
        return {}
    place = {k: rank for rank, k in enumerate(order)}
    pairs = {(place[i], place[j]) for i, j in apart if i in place and j in place}
    return dict(zip(order, letters(len(order), pairs), strict=True))


def not_overlapping(entries: Sequence[Entry]) -> Apart | None:
    """The entries whose intervals of Safety do not overlap; None where one that is ranked has no interval.

    This is a cautious rule: where intervals overlap a little, a test may still tell the two apart.
    """
    ends = [one.safety.interval for one in entries]
    if any(one.ranked and one.safety.percent is not None and one.safety.interval is None for one in entries):
        return None
    return {
        (i, j)
        for i, mine in enumerate(ends)
        for j, theirs in enumerate(ends)
        if i < j and mine and theirs and (mine[1] < theirs[0] or theirs[1] < mine[0])
    }
