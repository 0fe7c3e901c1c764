"""Intervals: Wilson for proportions, the percentile bootstrap for means (paper Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 10_000
_CHUNK = 1 << 20
"""Indices drawn at a time, so that memory does not grow with the number of episodes."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval; `skipped` counts resamples in which a conditional mean had nothing to average."""

    low: float
    high: float
    skipped: int = 0


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


def bootstrap_means(
    values: NDArray[np.float64],
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> list[Interval | None]:
    """Percentile bootstrap intervals of means over episodes, from the same resamples for every row.

    Args:
        values: [M, n], one row a quantity, one column an episode; NaN = the episode does not count in that mean,
            which is then recomputed in each resample over the episodes that do.
        generator: the source of the resamples; its state decides the result.
        resamples: how many times the n episodes are drawn with replacement.
        confidence: of the two-sided interval, linear percentiles.

    Returns:
        One interval a row; None where no episode counts.
    """
    rows, n = values.shape
    if n == 0:
        return [None] * rows
    counted = ~np.isnan(values)
    filled = np.where(counted, values, 0.0)
    varying = [m for m in range(rows) if np.ptp(filled[m]) > 0 or not (counted[m].all() or not counted[m].any())]
    means = np.empty((len(varying), resamples))
    per_chunk = max(1, _CHUNK // n)
    for start in range(0, resamples, per_chunk):
        size = min(per_chunk, resamples - start)
        drawn = generator.integers(0, n, size=(size, n))
        for k, m in enumerate(varying):
            means[k, start : start + size] = _means(filled[m], counted[m], drawn)
    found = {m: _percentiles(means[k], confidence) for k, m in enumerate(varying)}
    return [found[m] if m in found else _constant(filled[m], counted[m]) for m in range(rows)]


def _means(filled: NDArray[np.float64], counted: NDArray[np.bool_], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    many = np.full(len(drawn), drawn.shape[1]) if counted.all() else counted[drawn].sum(axis=1)
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = filled[drawn].sum(axis=1) / many
    return means


def _percentiles(means: NDArray[np.float64], confidence: float) -> Interval | None:
    there = means[~np.isnan(means)]
    if len(there) == 0:
        return None
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(there, [tail, 100 - tail])
    return Interval(float(low), float(high), skipped=len(means) - len(there))


def _constant(filled: NDArray[np.float64], counted: NDArray[np.bool_]) -> Interval | None:
    return Interval(float(filled[0]), float(filled[0])) if counted.any() else None
