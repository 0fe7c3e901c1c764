"""Unconditional exact tests of two independent proportions: Barnard's and Boschloo's.

Both reject, in each row of the table of outcomes, what lies outside two thresholds. The probability of that is a sum of
binomial probabilities of the row times two binomial tails. The p-value is its supremum over the common proportion.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_TIE = 1e-9
"""Statistics that differ by less, relatively, are equal: the difference is rounding."""
_POINTS = 256
_WINDOW_SD = 9.0
_REFINEMENTS = 5


def barnard_p(count: int, n: int, other: int, m: int) -> float:
    """Return Barnard's two-sided p-value of count/n and other/m, with the z statistic of pooled variance.

    G. A. Barnard, Biometrika 34 (1947) 123-138; the statistic of S. Suissa and J. J. Shuster, Journal of the Royal
    Statistical Society A 148 (1985) 317-327. 1 if all outcomes are equal, for which the statistic does not exist.

    >>> round(barnard_p(9, 10, 3, 10), 5)
    0.00796
    """
    if count + other in (0, n + m):
        return 1.0
    return _supremum(_barnard_region(count, n, other, m), n, m)


def boschloo_p(count: int, n: int, other: int, m: int) -> float:
    """Return Boschloo's two-sided p-value: twice the smaller of the two one-sided ones, at most 1.

    R. D. Boschloo, Statistica Neerlandica 24 (1970) 1-9: Barnard's test with Fisher's one-sided p-value as statistic.
    1 if all outcomes are equal.
    """
    if count + other in (0, n + m):
        return 1.0
    less = _boschloo_one_sided(count, n, other, m)
    greater = _boschloo_one_sided(n - count, n, m - other, m)
    return min(1.0, 2 * min(less, greater))


def _barnard_region(count: int, n: int, other: int, m: int) -> tuple[Ints, Ints]:
    """Return the outcomes (x, y) of n and m at least as extreme as the observed, by row x: two arrays [n + 1].

    Extreme is y up to the first array's (-1 = none) and from the second array's on (m + 1 = none). The squared
    statistic is (xm - yn)² / (s (n + m - s)) up to a constant, with s = x + y. For given x the inequality is quadratic
    in y with a positive leading coefficient: what is extreme lies outside its two roots.
    """
    total, rows = n + m, np.arange(n + 1, dtype=np.float64)
    pooled = count + other
    limit = (count * m - other * n) ** 2 / (pooled * (total - pooled)) * (1 - _TIE)
    a = n * n + limit
    half_b = -rows * m * n - limit * (total / 2 - rows)
    c = (rows * m) ** 2 - limit * rows * (total - rows)
    root = np.sqrt(np.maximum(0.0, half_b * half_b - a * c))
    low, high = np.floor((-half_b - root) / a), np.ceil((-half_b + root) / a)
    low, high = np.clip(low, -1, m).astype(np.int64), np.clip(high, 0, m + 1).astype(np.int64)
    # No outcome is extreme if all are equal: the statistic does not exist there.
    if limit > 0:
        low[0], high[0] = -1, max(high[0], 1)
        low[n], high[n] = min(low[n], m - 1), m + 1
    return low, np.maximum(high, low + 1)


def _boschloo_one_sided(count: int, n: int, other: int, m: int) -> float:
    """Return Boschloo's p-value of the alternative that the first proportion is the smaller one."""
    high = _fisher_thresholds(count, n, other, m)
    return _supremum((np.full(n + 1, -1), high), n, m)


def _fisher_thresholds(count: int, n: int, other: int, m: int) -> Ints:
    """Return per row x the least y for which Fisher's p-value of "first smaller" is at most the observed one, [n + 1].

    Given s = x + y it is the hypergeometric probability of at most x among the first n. It falls with y and rises
    with x, so that the threshold never falls from one row to the next.
    """
    table = _log_factorials(n + m)
    limit = _fisher_p(count, other, n, m, table) * (1 + _TIE)
    thresholds, y = np.empty(n + 1, dtype=np.int64), 0
    for x in range(n + 1):
        while y <= m and _fisher_p(x, y, n, m, table) > limit:
            y += 1
        thresholds[x] = y
    return thresholds


def _fisher_p(x: int, y: int, n: int, m: int, table: Floats) -> float:
    """Return P(X <= x), X the number from the first n if x + y are drawn without replacement from n and m.

    `table` holds log(k!) up to n + m at least.
    """
    s = x + y
    values = np.arange(max(0, s - m), x + 1)
    logs = _log_choose(n, values, table) + _log_choose(m, s - values, table) - _log_choose(n + m, s, table)
    return float(np.exp(logs).sum())


@lru_cache(maxsize=8)
def _log_factorials(greatest: int) -> Floats:
    """Return log(k!) for k up to `greatest`, [greatest + 1]."""
    table: Floats = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, greatest + 1)))])
    table.flags.writeable = False
    return table


def _log_choose(n: int, k: Ints | int, table: Floats) -> Floats:
    """Return log(n choose k) for 0 <= k <= n, an array of the shape of k; `table` holds log(k!) up to n at least."""
    chosen: Floats = table[n] - table[k] - table[n - np.asarray(k)]
    return chosen


def _supremum(region: tuple[Ints, Ints], n: int, m: int) -> float:
    """Return the greatest probability of a region over the common proportion, at most 1.

    The maximum of 256 points that are dense near 0 and 1 as a sine is, then of ever finer points around it. Rows
    further than 9 standard deviations from their mean add less than 1e-18 and are left out.
    """

    def probability(proportion: float) -> float:
        """Return the probability of the region if both proportions are this one."""
        return _region_probability(region, n, m, proportion)

    points = np.sin(np.pi / 2 * np.arange(1, _POINTS) / _POINTS) ** 2
    values = np.array([probability(p) for p in points.tolist()])
    best = float(values.max())
    candidates = np.flatnonzero(values >= 0.98 * best)
    peaks = [k for k in candidates.tolist() if values[k] == values[max(0, k - 1) : k + 2].max()]
    for k in peaks:
        low, high = points[max(0, k - 1)], points[min(len(points) - 1, k + 1)]
        best = max(best, _refine(probability, low, high))
    return min(1.0, best)


def _refine(probability: Callable[[float], float], low: float, high: float) -> float:
    """Return the greatest value between two points, by repeated search on a finer grid."""
    best = 0.0
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, 13)
        values = np.array([probability(p) for p in grid.tolist()])
        k = int(values.argmax())
        best = max(best, float(values[k]))
        low, high = float(grid[max(0, k - 1)]), float(grid[min(12, k + 1)])
    return best


def _region_probability(region: tuple[Ints, Ints], n: int, m: int, proportion: float) -> float:
    """Return the probability of a region for one common proportion: the sum of P(X = x) (P(Y <= low) + P(Y >= high)).

    `region` is as `_barnard_region` returns it. Rows x far from the mean are left out.
    """
    from scipy.special import bdtr
    from scipy.stats import binom

    spread = _WINDOW_SD * np.sqrt(n * proportion * (1 - proportion)) + 2
    first, last = max(0, int(n * proportion - spread)), min(n, int(n * proportion + spread) + 1)
    rows = np.arange(first, last + 1)
    low, high = region[0][rows], region[1][rows]
    # bdtr is P(Y <= k) and wants 0 <= k <= m; the upper tail is the lower one of the complement.
    below = np.where(low >= 0, bdtr(np.maximum(low, 0), m, proportion), 0.0)
    above = np.where(high <= m, bdtr(np.clip(m - high, 0, m), m, 1 - proportion), 0.0)
    return float(binom.pmf(rows, n, proportion) @ (below + above))
