"""How many episodes it takes to see a difference, and how wide an interval will be."""

from __future__ import annotations

from itertools import count
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.intervals import CONFIDENCE, mean_of_unit, quantile

POWER = 0.8


def half_width(rate: float, n: int, confidence: float = CONFIDENCE) -> float:
    """Half the width of Wilson's interval where a share `rate` of n episodes counts."""
    interval = mean_of_unit(rate * n, n, confidence)
    return float("inf") if interval is None else (interval.high - interval.low) / 2


def unpaired_episodes(first: float, second: float, power: float = POWER, confidence: float = CONFIDENCE) -> int:
    """Episodes of each policy, on independent episodes, to tell two rates apart with the given chance.

    J. L. Fleiss, Statistical Methods for Rates and Proportions, two-sided z test of two proportions without continuity
    correction.
    """
    mean, difference = (first + second) / 2, abs(first - second)
    z, reach = quantile(confidence), NormalDist().inv_cdf(power)
    spread = first * (1 - first) + second * (1 - second)
    return ceil(((z * sqrt(2 * mean * (1 - mean)) + reach * sqrt(spread)) / difference) ** 2)


def paired_episodes(difference: float, discordant: float, power: float = POWER, confidence: float = CONFIDENCE) -> int:
    """Pairs of episodes for McNemar's exact test to tell two rates apart with the given chance.

    The smallest n whose exact power reaches it, near where the normal approximation puts it; that power rises in
    steps, so that a slightly larger n may fall just short again.

    Args:
        difference: of the two rates.
        discordant: share of pairs in which the policies differ, at least |difference|.
        power: chance to find the difference.
        confidence: 1 - the test's level.
    """
    z, reach = quantile(confidence), NormalDist().inv_cdf(power)
    root = z * sqrt(discordant) + reach * sqrt(max(0.0, discordant - difference**2))
    near = ceil((root / difference) ** 2)
    start = max(1, int(0.95 * near) - 5)
    step = max(1, near // 400)
    return next(n for n in count(start, step) if paired_power(n, difference, discordant, confidence) >= power)


def paired_power(n: int, difference: float, discordant: float, confidence: float = CONFIDENCE) -> float:
    """Chance that McNemar's exact test finds a difference over n pairs; exact, by summing over all outcomes.

    The number of discordant pairs is binomial, and so is how many of them the first policy wins.
    """
    from scipy.stats import binom

    share = (discordant + abs(difference)) / (2 * discordant)
    spread = 9 * sqrt(n * discordant * (1 - discordant)) + 9
    low, high = max(0, int(n * discordant - spread)), min(n, int(n * discordant + spread))
    many: NDArray[np.int64] = np.arange(low, high + 1)
    # The largest minority that is still significant among that many; -1 = none is.
    fewest = binom.ppf((1 - confidence) / 2, many, 0.5) - 1
    fewest = np.where(2 * binom.cdf(fewest + 1, many, 0.5) <= 1 - confidence, fewest + 1, fewest)
    rejected = binom.cdf(fewest, many, share) + binom.cdf(fewest, many, 1 - share)
    return float((binom.pmf(many, n, discordant) * rejected).sum())
