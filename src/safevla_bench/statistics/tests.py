"""Tests of differences: McNemar's exact and Barnard's, adjustment for several verdicts, and letters.

Barnard's test of two independent proportions rejects, in each row of the table of outcomes, what lies outside two
thresholds. The probability of that is a sum of binomial probabilities of the row times two binomial tails. The p-value
is its supremum over the common proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray


def holm_adjust(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p-values, in the order given: at level α, any false rejection has probability at most α.

    S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.

    >>> holm_adjust([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = largest
    return tuple(adjusted)


def letter_display(count: int, distinct: Collection[tuple[int, int]]) -> tuple[str, ...]:
    """Return the compact letter display: policies that share a letter are not significantly different.

    `distinct` holds the pairs of their numbers, below `count`, that a test separates. There is a letter for each
    maximal set without such a pair.

    >>> letter_display(3, {(0, 2)})
    ('a', 'ab', 'b')
    """
    different = {frozenset(pair) for pair in distinct}
    near = {k: {j for j in range(count) if j != k and frozenset((j, k)) not in different} for k in range(count)}
    groups = sorted(sorted(group) for group in _maximal_cliques(set(), set(range(count)), set(), near))
    letters = [chr(ord("a") + g) if g < 26 else f"({g + 1})" for g in range(len(groups))]
    return tuple("".join(letters[g] for g, group in enumerate(groups) if k in group) for k in range(count))


def _maximal_cliques(chosen: set[int], open_: set[int], done: set[int], near: dict[int, set[int]]) -> list[set[int]]:
    if not open_ and not done:
        return [chosen]
    pivot = max(open_ | done, key=lambda k: len(near[k] & open_))
    cliques = []
    for k in sorted(open_ - near[pivot]):
        cliques += _maximal_cliques(chosen | {k}, open_ & near[k], done & near[k], near)
        open_, done = open_ - {k}, done | {k}
    return cliques


# Two independent proportions


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


def _barnard_region(count: int, n: int, other: int, m: int) -> tuple[Ints, Ints]:
    """Return the outcomes (x, y) of n and m at least as extreme as the observed, by row x: two arrays [n + 1].

    Extreme is y up to the first array's (-1 = none) and from the second array's on (m + 1 = none). The squared
    statistic is (xm - yn)² / (s (n + m - s)) up to a constant, with s = x + y.
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


def _supremum(region: tuple[Ints, Ints], n: int, m: int) -> float:
    """Return the greatest probability of a region over the common proportion, at most 1."""

    def probability(proportion: float) -> float:
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
    best = 0.0
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, 13)
        values = np.array([probability(p) for p in grid.tolist()])
        k = int(values.argmax())
        best = max(best, float(values[k]))
        low, high = float(grid[max(0, k - 1)]), float(grid[min(12, k + 1)])
    return best


def _region_probability(region: tuple[Ints, Ints], n: int, m: int, proportion: float) -> float:
    """Return the probability of a region for one common proportion: the sum of P(X = x) (P(Y <= low) + P(Y >=
    high)).
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
