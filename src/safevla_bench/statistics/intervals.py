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


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Return the half-width of a two-sided normal interval in standard errors: 1.96 for 95 %."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson_interval(count: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Wilson's score interval of a proportion, without continuity correction; None if n is zero.

    >>> interval = wilson_interval(167, 200)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.777, 0.88)
    """
    if n == 0:
        return None
    from scipy.stats import binomtest  # takes longer to import than all else together

    limits = binomtest(count, n).proportion_ci(confidence, method="wilson")
    return Interval(float(limits.low), float(limits.high))


def unit_mean_interval(total: float, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Return a conservative interval of the mean of n values in [0, 1] that sum to `total`; None if n is zero.

    Wilson's formula with total/n in place of a proportion p. No variable in [0, 1] has more variance than a coin with
    its mean, p(1 - p). The interval is therefore too wide rather than too narrow. Unlike the bootstrap's it has a width
    if all values are equal.
    """
    if n == 0:
        return None
    z, p = normal_quantile(confidence), total / n
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    # Rounding must not push an end past a mean of exactly 0 or 1.
    return Interval(min(p, max(0.0, (middle - half) / scale)), max(p, min(1.0, (middle + half) / scale)))


def newcombe_interval(count: int, n: int, other: int, m: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Newcombe's hybrid score interval of count/n - other/m for independent samples; None if one is empty.

    R. G. Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10: the distances from each proportion to its
    Wilson limits, squared and added.
    """
    mine, theirs = wilson_interval(count, n, confidence), wilson_interval(other, m, confidence)
    if mine is None or theirs is None:
        return None
    p, q = count / n, other / m
    below = sqrt((p - mine.low) ** 2 + (theirs.high - q) ** 2)
    above = sqrt((mine.high - p) ** 2 + (q - theirs.low) ** 2)
    return Interval(p - q - below, p - q + above)


def rate_mean_interval(rates: Sequence[tuple[float, Interval]]) -> Interval | None:
    """Return an interval of the unweighted mean of independent proportions, from theirs; None if there are none.

    G. Y. Zou and A. Donner, Statistics in Medicine 27 (2008) 1693-1702 (MOVER), of which Newcombe's interval is the
    case of a difference: the distances from each proportion to its limits, squared, added, and divided by their number.

    >>> interval = rate_mean_interval([(0.835, wilson_interval(167, 200)), (0.695, wilson_interval(139, 200))])
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.721, 0.802)
    """
    if not rates:
        return None
    k, mean = len(rates), sum(p for p, _ in rates) / len(rates)
    below = sqrt(sum((p - limits.low) ** 2 for p, limits in rates)) / k
    above = sqrt(sum((limits.high - p) ** 2 for p, limits in rates)) / k
    return Interval(mean - below, mean + above)


def tango_interval(only_first: int, only_second: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Tango's score interval of the difference of two proportions over the same n pairs; None if n is zero.

    T. Tango, Statistics in Medicine 17 (1998) 891-908: all differences that a score test does not reject, the chance of
    a pair won by the second at its likeliest value under each. If no pair differs it is ± z²/(n + z²).

    Args:
        only_first: pairs that only the first has.
        only_second: pairs that only the second has.
        n: all pairs.
        confidence: of the two-sided interval.
    """
    if n == 0:
        return None
    z, observed = normal_quantile(confidence), (only_first - only_second) / n

    def score(difference: float) -> float:
        return _tango_score(only_first, only_second, n, difference)

    low = _find_crossing(score, z, -1.0, observed)
    high = _find_crossing(score, -z, observed, 1.0)
    return Interval(low, high)


def _tango_score(b: int, c: int, n: int, difference: float) -> float:
    """Return the number of standard errors by which the observed difference exceeds a supposed one."""
    above = b - c - n * difference
    linear = (2 * n - b + c) * difference - b - c
    likeliest = (sqrt(linear**2 + 8 * n * c * difference * (1 - difference)) - linear) / (4 * n)
    variance = n * (2 * likeliest + difference * (1 - difference))
    return above / sqrt(variance) if variance > 0 else copysign(inf, above) if above else 0.0


def _find_crossing(falling: Callable[[float], float], level: float, low: float, high: float) -> float:
    """Return the point in [low, high] at which a falling function passes a level, or the nearer end if it does not."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > level else (low, middle)
    return (low + high) / 2
