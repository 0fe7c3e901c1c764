"""Intervals and tests that hold however often one looks, and whenever one stops.

All rest on one martingale. For values x in [0, 1] with mean m, and any q in (0, 1), the factor

    x q / m + (1 - x) (1 - q) / (1 - m)

is not negative and has mean 1: a coin's likelihood ratio of q to m, interpolated between tails and heads. The product
over episodes, averaged over a prior of q, is W_n(m), a non-negative martingale that starts at 1. By Ville's inequality
it reaches 1/α with probability at most α, at any time at all. The m for which W_n(m) < 1/α are therefore a confidence
sequence. For zeros and ones and Jeffreys' prior it is the beta-binomial one (H. Robbins, Annals of Mathematical
Statistics 41 (1970) 1397-1409); for graded values see I. Waudby-Smith and A. Ramdas, Journal of the Royal Statistical
Society B 86 (2024) 1-27.

Tasks may differ. Let m be the mean over tasks of their own means m_k, and let every task have had as many episodes.
For each q the mean of a round's product is the product of m_k q / m + (1 - m_k) (1 - q) / (1 - m), which is at most 1:
their arithmetic mean is 1, and a geometric mean is no greater. Looks must therefore come after whole rounds, each with
as many episodes of every task; then W is a supermartingale and the bound holds.

W_n is log-convex in m and at most 1 at the mean of the values, so that the set is an interval around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.intervals import CONFIDENCE, Interval

Floats = NDArray[np.float64]
_NODES = 512
_EDGE = 1e-12
_DIGITS = 9


def sequential_interval(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the confidence sequence's interval of the mean of values [n] in [0, 1]; None if n is zero.

    With probability `confidence` the intervals of all n hold the mean at once.

    >>> import numpy as np
    >>> interval = sequential_interval(np.ones(40))
    >>> round(interval.low, 2), round(interval.high, 2)
    (0.87, 1.0)
    """
    if len(values) == 0:
        return None
    points, counts = np.unique(values, return_counts=True)
    mean, level = float(counts @ points) / len(values), -log(1 - confidence)

    def excess(supposed: float) -> float:
        return _log_wealth(points, counts, supposed) - level

    inner = min(max(mean, _EDGE), 1 - _EDGE)
    low = 0.0 if mean <= _EDGE else _find_end(excess, _EDGE, inner)
    high = 1.0 if mean >= 1 - _EDGE else _find_end(excess, 1 - _EDGE, inner)
    return Interval(round(low, _DIGITS), round(high, _DIGITS))


def _log_wealth(points: Floats, counts: NDArray[np.int64], supposed: float) -> float:
    shares = _prior_nodes()
    factors = np.outer(points, shares / supposed) + np.outer(1 - points, (1 - shares) / (1 - supposed))
    logs = counts @ np.log(factors)
    greatest = float(logs.max())
    return greatest + log(float(np.exp(logs - greatest).mean()))


@lru_cache(maxsize=1)
def _prior_nodes() -> Floats:
    nodes: Floats = np.sin(np.pi * (np.arange(_NODES) + 0.5) / (2 * _NODES)) ** 2
    nodes.flags.writeable = False
    return nodes


def _find_end(excess: Callable[[float], float], outer: float, mean: float) -> float:
    from scipy.optimize import brentq

    if excess(outer) <= 0:
        return outer
    return float(brentq(excess, outer, mean, xtol=1e-12))


Steps = Sequence[Sequence[int]]
"""Sizes of the steps of each round, positive; a step adds its size to the sum, or nothing."""


@dataclass(frozen=True, slots=True)
class SequentialLook:
    """A look at a sum of at most `total`: at `low` or below, or at `high` or above, the test ends."""

    gained: int
    total: int
    low: int
    high: int
    side: int
    """1 if the sum was too great for the rate at this look or before, -1 if too small, 0 if the test goes on."""


def sequential_look(
    steps: Steps, gained: Sequence[int], rate: float, shares: Sequence[float], confidence: float = CONFIDENCE
) -> SequentialLook:
    """Return the last look at the test of a rate with a planned number of looks, each of which may end it.

    Up to a look the test may spend, on each side, its error times the squared share of the planned steps that were made
    (K. Kim and D. L. DeMets, Biometrika 74 (1987) 149-154). The limits are the nearest sums that keep to it, by
    recursion over the distribution of the sums that no earlier look has ended: the error is exact for any steps.

    Args:
        steps: sizes of the steps of each round so far.
        gained: sum of those steps of each round that were gained, [K].
        rate: chance of each step to be gained, under the hypothesis.
        shares: of the planned steps that were made by each look, rising to 1, [K or more].
        confidence: 1 - the error of both sides together over all planned looks.
    """
    look = SequentialLook(0, 0, -1, 1, 0)
    for (low, high), sizes, gain in zip(sum_limits(steps, rate, shares, confidence), steps, gained, strict=True):
        reached = look.gained + gain
        side = look.side or (reached >= high) - (reached <= low)
        look = SequentialLook(reached, look.total + sum(sizes), low, high, side)
    return look


def sum_limits(
    steps: Steps, rate: float, shares: Sequence[float], confidence: float = CONFIDENCE
) -> Iterator[tuple[int, int]]:
    """Yield for each round the greatest sum that is too small for the rate, and the least that is too great.

    They are -1, and one more than the greatest sum, where no sum is. Arguments as of `sequential_look`.
    """
    chances, spent = np.ones(1), np.zeros(2)
    for sizes, share in zip(steps, shares, strict=False):
        for size, count in sorted(Counter(sizes).items()):
            chances = np.convolve(chances, _sum_chances(size, count, rate))
        tails = np.cumsum([chances, chances[::-1]], axis=1)
        budget = (1 - confidence) / 2 * share**2 - spent + 1e-15
        below, above = (tails <= budget[:, None]).sum(axis=1).tolist()
        yield below - 1, len(chances) - above
        spent += [chances[:below].sum(), chances[len(chances) - above :].sum()]
        chances[:below] = chances[len(chances) - above :] = 0.0


@lru_cache(maxsize=1024)
def _sum_chances(size: int, count: int, rate: float) -> NDArray[np.float64]:
    from scipy.stats import binom

    chances = np.zeros(size * count + 1)
    chances[::size] = binom.pmf(np.arange(count + 1), count, rate)
    chances.flags.writeable = False
    return chances
