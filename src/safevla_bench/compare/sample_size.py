"""Planning a comparison: how many episodes of each policy, and how precise each policy's own rate will be."""

from __future__ import annotations

import msgspec

from safevla_bench import statistics
from safevla_bench.errors import SafevlaError

_SIZES = (20, 50, 100, 200, 500, 1000, 2000)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to see: a difference of rates from a baseline, as shares, with a power, at a confidence."""

    difference: float
    baseline: float = 0.8
    power: float = 0.8
    confidence: float = statistics.CONFIDENCE
    discordant: float | None = None
    only_paired: bool = False


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """One way to do it: `episodes` of each policy; `discordant` null where they are independent."""

    name: str
    discordant: float | None
    episodes: int
    half_width: float
    """Half the Wilson interval of each policy's own rate at so many episodes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Ways to see the difference between two rates, and the precision of one rate by episodes."""

    rates: tuple[float, float]
    power: float
    confidence: float
    designs: tuple[Design, ...]
    half_widths: dict[int, float]


def plan(wanted: Wanted) -> Plan:
    """Episodes of each policy to tell the two rates apart.

    Raises:
        SafevlaError: the other rate would leave 0 to 1, or fewer pairs differ than the rates do.
    """
    rates = (wanted.baseline, _other(wanted))
    designs = [] if wanted.only_paired else [_unpaired(wanted, *rates)]
    return Plan(
        rates=rates,
        power=wanted.power,
        confidence=wanted.confidence,
        designs=(*designs, *_paired(wanted, *rates)),
        half_widths={n: statistics.half_width(wanted.baseline, n, wanted.confidence) for n in _SIZES},
    )


def _other(wanted: Wanted) -> float:
    """The rate on the side that needs more episodes: towards a half, where rates vary most."""
    sides = (wanted.baseline - wanted.difference, wanted.baseline + wanted.difference)
    there = [one for one in sides if 0 <= one <= 1]
    if not there:
        problem = f"no rate is {100 * wanted.difference:g} points from {100 * wanted.baseline:g} %"
        raise SafevlaError(problem, remedy="Give a smaller --detect or another --baseline.")
    return min(there, key=lambda rate: abs(rate - 0.5))


def _unpaired(wanted: Wanted, first: float, second: float) -> Design:
    episodes = statistics.unpaired_episodes(first, second, wanted.power, wanted.confidence)
    return _design("independent episodes", None, episodes, wanted)


def _paired(wanted: Wanted, first: float, second: float) -> list[Design]:
    """With the given share of pairs that differ; else from unrelated outcomes to as alike as the rates allow."""
    apart = abs(first - second)
    if wanted.discordant is not None:
        if wanted.discordant < apart - 1e-12:
            problem = f"rates {100 * apart:g} points apart differ in at least {apart:g} of the pairs"
            raise SafevlaError(problem, remedy=f"Give --discordant {apart:g} or more.")
        return [_pairs("paired, as given", max(apart, wanted.discordant), apart, wanted)]
    unrelated = first * (1 - second) + second * (1 - first)
    return [
        _pairs("paired, outcomes unrelated", unrelated, apart, wanted),
        _pairs("paired, half as many differ", max(apart, unrelated / 2), apart, wanted),
        _pairs("paired, one side always wins", apart, apart, wanted),
    ]


def _pairs(name: str, discordant: float, apart: float, wanted: Wanted) -> Design:
    episodes = statistics.paired_episodes(apart, discordant, wanted.power, wanted.confidence)
    return _design(name, discordant, episodes, wanted)


def _design(name: str, discordant: float | None, episodes: int, wanted: Wanted) -> Design:
    half = statistics.half_width(wanted.baseline, episodes, wanted.confidence)
    return Design(name=name, discordant=discordant, episodes=episodes, half_width=half)
