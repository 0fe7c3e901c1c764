"""The percentile bootstrap of means over episodes (paper Appendix E), and over tasks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.intervals import CONFIDENCE, Interval

RESAMPLES = 10_000
_CHUNK = 1 << 15
"""Indices drawn at a time. They fit into the processor's cache, and memory does not grow with the episodes."""


def bootstrap_means(
    values: NDArray[np.float64],
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> list[Interval | None]:
    """Return percentile bootstrap intervals of means over episodes, from the same resamples for every row.

    Returns:
        One interval per row, None where no episode counts.
    """
    rows, n = values.shape
    if n == 0:
        return [None] * rows
    counted = ~np.isnan(values)
    filled = np.where(counted, values, 0.0)
    varying = [m for m in range(rows) if np.ptp(filled[m]) > 0 or not (counted[m].all() or not counted[m].any())]
    means = _resample_means(filled[varying], counted[varying], generator, resamples)
    intervals = {m: percentile_interval(means[k], confidence) for k, m in enumerate(varying)}
    return [intervals[m] if m in intervals else _constant_interval(filled[m], counted[m]) for m in range(rows)]


def resampled_means(
    values: NDArray[np.float64], generator: np.random.Generator, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Return the mean of each row of `values` [M, n] in each resample of its columns, [M, resamples].

    A NaN does not count; a mean is NaN where nothing that counts was drawn. There must be at least one column.
    """
    counted = ~np.isnan(values)
    return _resample_means(np.where(counted, values, 0.0), counted, generator, resamples)


def _resample_means(
    filled: NDArray[np.float64], counted: NDArray[np.bool_], generator: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """Return the resampled means of all rows, [M, resamples]; NaN where nothing that counts was drawn."""
    from scipy.sparse import csr_array  # takes longer to import than everything else together

    rows, n = filled.shape
    partial = ~counted.all(axis=1)
    table = np.ascontiguousarray(np.vstack([filled, counted[partial]]).T)
    sums = np.empty((resamples, table.shape[1]))
    per_chunk = max(1, _CHUNK // n)
    ones, ends = np.ones(per_chunk * n), np.arange(0, per_chunk * n + 1, n, dtype=np.int32)
    for start in range(0, resamples, per_chunk):
        size = min(per_chunk, resamples - start)
        drawn = generator.integers(0, n, size=size * n, dtype=np.int32)
        sums[start : start + size] = csr_array((ones[: size * n], drawn, ends[: size + 1]), shape=(size, n)) @ table
    many = np.full((rows, resamples), float(n))
    many[partial] = sums[:, rows:].T
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = sums[:, :rows].T / many
    return means


def percentile_interval(means: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the percentile interval of resampled means without the NaN among them; None if all are NaN."""
    defined = means[~np.isnan(means)]
    if len(defined) == 0:
        return None
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return Interval(float(low), float(high), skipped=len(means) - len(defined))


def _constant_interval(filled: NDArray[np.float64], counted: NDArray[np.bool_]) -> Interval | None:
    return Interval(float(filled[0]), float(filled[0])) if counted.any() else None
