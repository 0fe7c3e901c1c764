"""Planning of evaluations: the number of episodes that show a difference, and the width of intervals."""

from __future__ import annotations

from itertools import count
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.intervals import CONFIDENCE, normal_quantile, unit_mean_interval

POWER = 0.8


def half_width(rate: float, n: int, confidence: float = CONFIDENCE) -> float:
    """Return half the width of Wilson's interval if a share `rate` of n episodes counts."""
    interval = unit_mean_interval(rate * n, n, confidence)
    return float("inf") if interval is None else (interval.high - interval.low) / 2


def unpaired_sample_size(first: float, second: float, power: float = POWER, confidence: float = CONFIDENCE) -> int:
    """Return the independent episodes per policy that distinguish two rates with the given power.

    J. L. Fleiss, Statistical Methods for Rates and Proportions, two-sided z test of two proportions without continuity
    correction.
    """
    mean, difference = (first + second) / 2, abs(first - second)
    z, reach = normal_quantile(confidence), NormalDist().inv_cdf(power)
    spread = first * (1 - first) + second * (1 - second)
    return ceil(((z * sqrt(2 * mean * (1 - mean)) + reach * sqrt(spread)) / difference) ** 2)


def paired_sample_size(
    difference: float, discordant: float, power: float = POWER, confidence: float = CONFIDENCE
) -> int:
    """Return the pairs of episodes with which McNemar's exact test distinguishes two rates with the given power.

    It is the smallest n near the normal approximation whose exact power reaches it. The power rises in steps, so a
    slightly larger n may fall just short again.

    Args:
        difference: of the two rates.
        discordant: share of pairs in which the policies differ, at least |difference|.
        power: chance to find the difference.
        confidence: 1 - the test's level.
    """
    z, reach = normal_quantile(confidence), NormalDist().inv_cdf(power)
    root = z * sqrt(discordant) + reach * sqrt(max(0.0, discordant - difference**2))
    near = ceil((root / difference) ** 2)
    start = max(1, int(0.95 * near) - 5)
    step = max(1, near // 400)
    return next(n for n in count(start, step) if paired_power(n, difference, discordant, confidence) >= power)


def paired_power(n: int, difference: float, discordant: float, confidence: float = CONFIDENCE) -> float:
    """Return the power of McNemar's exact test over n pairs. It is exact, by summing over all outcomes.

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
