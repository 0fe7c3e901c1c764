"""Intervals of proportions and of their differences, from counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import copysign, inf, sqrt
from statistics import NormalDist

CONFIDENCE = 0.95
_HALVINGS = 100


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval; `skipped` counts resamples in which a conditional mean had nothing to average."""

    low: float
    high: float
    skipped: int = 0


def quantile(confidence: float = CONFIDENCE) -> float:
    """Standard errors to either side of a two-sided interval: 1.96 for 95 %."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson(count: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Wilson's score interval of a proportion, without continuity correction; None where n is zero.

    >>> interval = wilson(167, 200)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.777, 0.88)
    """
    if n == 0:
        return None
    from scipy.stats import binomtest  # takes longer to import than all else together

    found = binomtest(count, n).proportion_ci(confidence, method="wilson")
    return Interval(float(found.low), float(found.high))


def mean_of_unit(total: float, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """A cautious interval of the mean of n values in [0, 1] that sum to `total`; None where n is zero.

    Wilson's formula with total/n in place of a proportion p. No variable in [0, 1] varies more than a coin with its
    mean, p(1 - p), so that the interval is too wide rather than too narrow; and unlike the bootstrap's it has a width
    where all values are alike.
    """
    if n == 0:
        return None
    z, p = quantile(confidence), total / n
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    # Rounding must not push an end past a mean of exactly 0 or 1.
    return Interval(min(p, max(0.0, (middle - half) / scale)), max(p, min(1.0, (middle + half) / scale)))


def newcombe(count: int, n: int, other: int, m: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Newcombe's hybrid score interval of count/n - other/m for independent samples; None where one is empty.

    R. G. Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10: the distances from each proportion to its
    Wilson limits, squared and added.
    """
    mine, theirs = wilson(count, n, confidence), wilson(other, m, confidence)
    if mine is None or theirs is None:
        return None
    p, q = count / n, other / m
    below = sqrt((p - mine.low) ** 2 + (theirs.high - q) ** 2)
    above = sqrt((mine.high - p) ** 2 + (q - theirs.low) ** 2)
    return Interval(p - q - below, p - q + above)


def mean_of_rates(rates: Sequence[tuple[float, Interval]]) -> Interval | None:
    """An interval of the unweighted mean of independent proportions, from the interval of each; None of none.

    G. Y. Zou and A. Donner, Statistics in Medicine 27 (2008) 1693-1702 (MOVER), of which Newcombe's interval is the
    case of a difference: the distances from each proportion to its limits, squared, added, and divided by their number.

    >>> interval = mean_of_rates([(0.835, wilson(167, 200)), (0.695, wilson(139, 200))])
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.721, 0.802)
    """
    if not rates:
        return None
    k, mean = len(rates), sum(p for p, _ in rates) / len(rates)
    below = sqrt(sum((p - one.low) ** 2 for p, one in rates)) / k
    above = sqrt(sum((one.high - p) ** 2 for p, one in rates)) / k
    return Interval(mean - below, mean + above)


def tango(only_first: int, only_second: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Tango's score interval of the difference of two proportions over the same n pairs; None where n is zero.

    T. Tango, Statistics in Medicine 17 (1998) 891-908: all differences that a score test does not reject, the chance of
    a pair won by the second at its likeliest value under each. Where no pair differs it is ± z²/(n + z²).

    Args:
        only_first: pairs that only the first has.
        only_second: pairs that only the second has.
        n: all pairs.
        confidence: of the two-sided interval.
    """
    if n == 0:
        return None
    z, observed = quantile(confidence), (only_first - only_second) / n

    def score(difference: float) -> float:
        return _tango_score(only_first, only_second, n, difference)

    low = _crossing(score, z, -1.0, observed)
    high = _crossing(score, -z, observed, 1.0)
    return Interval(low, high)


def _tango_score(b: int, c: int, n: int, difference: float) -> float:
    """How many standard errors the observed difference lies above a supposed one."""
    above = b - c - n * difference
    linear = (2 * n - b + c) * difference - b - c
    likeliest = (sqrt(linear**2 + 8 * n * c * difference * (1 - difference)) - linear) / (4 * n)
    variance = n * (2 * likeliest + difference * (1 - difference))
    return above / sqrt(variance) if variance > 0 else copysign(inf, above) if above else 0.0


def _crossing(falling: Callable[[float], float], level: float, low: float, high: float) -> float:
    """Where a falling function passes a level between low and high; the end on its side where it does not."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > level else (low, middle)
    return (low + high) / 2
