"""Tests of differences between two or several policies, on the same episodes or on independent ones.

Sign flips are exact where paired differences are symmetric about zero under the hypothesis. Re-labelling is exact where
the two distributions are equal under it. Where only their means are, the studentized statistic keeps its level as
episodes grow, whatever the variances; that of plain means does not.

Barnard's and Boschloo's tests of two independent proportions reject, in each row of the table of outcomes, what lies
outside two thresholds. The probability of that is a sum of binomial probabilities of the row times two binomial tails.
The p-value is its supremum over the common proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.bootstrap import RESAMPLES


@dataclass(frozen=True, slots=True)
class CochranQ:
    """Cochran's statistic and its p-value."""

    statistic: float
    p_value: float


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p-value of McNemar's test that a fair coin splits the differing pairs; 1 without any.

    >>> mcnemar_p(1, 7)
    0.0703125
    """
    if only_first + only_second == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(only_first, only_first + only_second).pvalue)


def cochran_q(outcomes: NDArray[np.bool_]) -> CochranQ:
    """Return Cochran's Q test that k policies have one success probability: outcomes [n, k], one row per episode.

    W. G. Cochran, Biometrika 37 (1950) 256-266; chi-squared with k - 1 degrees of freedom, which holds where a few tens
    of rows differ. 0 and p = 1 where no row differs.
    """
    from scipy.stats import chi2

    k = outcomes.shape[1]
    columns, rows = outcomes.sum(axis=0), outcomes.sum(axis=1)
    spread = int((rows * (k - rows)).sum())
    if spread == 0:
        return CochranQ(0.0, 1.0)
    statistic = (k - 1) * float(k * (columns**2).sum() - columns.sum() ** 2) / spread
    return CochranQ(statistic, float(chi2.sf(statistic, k - 1)))


def holm_adjust(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p-values, in the order given.

    Rejecting those at most α makes any false rejection at all with probability at most α.

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

    There is one letter for each maximal set without a significant difference.

    Args:
        count: number of policies, in the order in which letters are given.
        distinct: pairs of their numbers that a test told apart.

    >>> letter_display(3, {(0, 2)})
    ('a', 'ab', 'b')
    """
    different = {frozenset(pair) for pair in distinct}
    near = {k: {j for j in range(count) if j != k and frozenset((j, k)) not in different} for k in range(count)}
    groups = sorted(sorted(group) for group in _maximal_cliques(set(), set(range(count)), set(), near))
    return tuple("".join(_group_letter(g) for g, group in enumerate(groups) if k in group) for k in range(count))


def _maximal_cliques(chosen: set[int], open_: set[int], done: set[int], near: dict[int, set[int]]) -> list[set[int]]:
    """Return all maximal sets of mutually near numbers (Bron and Kerbosch, with a pivot) that hold `chosen`.

    Numbers of `open_` may join, those of `done` were tried before; both are near all of `chosen`. `near` is left as is.
    """
    if not open_ and not done:
        return [chosen]
    pivot = max(open_ | done, key=lambda k: len(near[k] & open_))
    cliques = []
    for k in sorted(open_ - near[pivot]):
        cliques += _maximal_cliques(chosen | {k}, open_ & near[k], done & near[k], near)
        open_, done = open_ - {k}, done | {k}
    return cliques


def _group_letter(number: int) -> str:
    """Return the letter of a group: a to z, then (27), (28) and so on."""
    return chr(ord("a") + number) if number < 26 else f"({number + 1})"


_EXACT = 12
"""Greatest number of differing pairs for which all sign patterns are tried."""
_CHUNK = 1 << 20
_TOLERANCE = 1e-12
"""Sums nearer than this are equal: they differ only by the order of addition."""


def sign_flip_p(differences: NDArray[np.float64], generator: np.random.Generator, tries: int = RESAMPLES) -> float:
    """Return the two-sided p-value of the hypothesis that paired differences [n] centre on zero.

    It is the share of random signs that give a sum at least as large. Exact if at most 12 differ from zero, else from
    random signs, with the observed ones counted in. 1 if none differs.
    """
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    observed = abs(float(nonzero.sum())) - _TOLERANCE
    if len(nonzero) <= _EXACT:
        bits = np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero)) & 1
        return float((np.abs((2 * bits - 1) @ nonzero) >= observed).mean())
    extreme, per_chunk = 0, max(1, _CHUNK // len(nonzero))
    for start in range(0, tries, per_chunk):
        signs = generator.integers(0, 2, size=(min(per_chunk, tries - start), len(nonzero)), dtype=np.int8)
        extreme += int((np.abs((2.0 * signs - 1.0) @ nonzero) >= observed).sum())
    return (extreme + 1) / (tries + 1)


def permutation_p(
    values: NDArray[np.float64],
    others: NDArray[np.float64],
    generator: np.random.Generator,
    tries: int = RESAMPLES,
) -> float:
    """Return the two-sided p-value of the hypothesis that two independent samples, [n] and [m], have one mean.

    It is the share of random re-labellings with a Welch statistic (the difference of means in its standard errors) at
    least as large; the observed labels are counted in. A. Janssen, Statistics and Probability Letters 36 (1997) 9-21;
    E. Chung and J. P. Romano, Annals of Statistics 41 (2013) 484-507.
    """
    pooled, n = np.concatenate([values, others]), len(values)
    pooled = pooled - pooled.mean()
    observed = float(_welch_statistics(pooled[None], n)[0]) * (1 - _TOLERANCE)
    extreme, per_chunk = 0, max(1, _CHUNK // len(pooled))
    for start in range(0, tries, per_chunk):
        rows = np.tile(pooled, (min(per_chunk, tries - start), 1))
        extreme += int((_welch_statistics(generator.permuted(rows, axis=1), n) >= observed).sum())
    return (extreme + 1) / (tries + 1)


def _welch_statistics(rows: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return |difference of means| in standard errors of the first n against the rest of each row, [R].

    Infinite where both sides are constant and differ, 0 where they are equal.
    """
    first, second = rows[:, :n], rows[:, n:]
    difference = np.abs(first.mean(axis=1) - second.mean(axis=1))
    variance = first.var(axis=1) / max(1, n - 1) + second.var(axis=1) / max(1, second.shape[1] - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = difference / np.sqrt(variance)
    return np.where(difference <= _TOLERANCE, 0.0, statistics)


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
