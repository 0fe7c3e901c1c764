"""Tests with a planned number of looks, each of which may end them: exact limits of a sum after each round.

Up to a look the test may spend, on each side, its error times the squared share of the planned steps that were made
(K. Kim and D. L. DeMets, Biometrika 74 (1987) 149-154). This boundary is about that of S. K. Wang and A. A. Tsiatis
(Biometrics 43 (1987) 193-199) with Δ = 0.25. The limits are the nearest sums that keep to it, by recursion over the
distribution of the sums that no earlier look has ended, so that the error is exact for any number of steps.

Tasks may differ, if every round holds as many steps of each: a sum of unequal chances is no more spread than a sum of
equal ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.intervals import CONFIDENCE

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
    """Return the last look at the test of a rate.

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
