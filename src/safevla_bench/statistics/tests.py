"""Tests of differences, of one task and over tasks; adjustment for several verdicts, and letters.

Over tasks there are two questions. The first repeats the same tasks: episodes are compared within each task, and tasks
weigh alike. The second draws other tasks: the mean difference of each task is one observation.

All p-values but Barnard's are mid-p-values: half of the observed outcome's own probability counts. They are twice the
smaller one-sided one, but for random labels, which are two-sided. They hardly ever exceed their level, and find more
than exact ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.intervals import (
    CONFIDENCE,
    RESAMPLES,
    Interval,
    is_significant,
    normal_quantile,
    unit_mean_interval,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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


_TIE = 1e-9
"""Statistics that differ by less, relatively, are equal: the difference is rounding."""
_POINTS = 256
_WINDOW_SD = 9.0
_REFINEMENTS = 5


def barnard_p(count: int, n: int, other: int, m: int) -> float:
    """Return Barnard's two-sided p-value of count/n and other/m, with the z statistic of pooled variance.

    The test rejects, in each row of the table of outcomes, what lies outside two thresholds. The probability of that is
    a sum of binomial probabilities of the row times two binomial tails; the p-value is its supremum over the common
    proportion.
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


# Tests and intervals over tasks


_EXACT_TERMS = 13
_GRID = 1 << 15
_TOLERANCE = 1e-12
"""Sums nearer than this are equal: they differ only by the order of addition."""


@dataclass(frozen=True, slots=True)
class MeanTest:
    """A two-sided mid-p-value of the hypothesis that a mean difference is zero, and the interval of the same test.

    The interval holds the differences that the test does not reject. It excludes 0 exactly where the p-value is
    significant; an end of 0 is then an open one. None where no difference can be excluded.
    """

    p_value: float
    interval: Interval | None


def flip_task_means(differences: Floats, weights: Floats, confidence: float = CONFIDENCE) -> MeanTest:
    """Test that the differences of tasks like these centre on zero, and return their centre's interval.

    `differences` are the mean ones of the tasks, from -1 to 1, and `weights` positive, [K] each. The interval is None
    where the exact test rejects nothing whatever the data: at 95 % with fewer than six tasks.
    """
    flipped = _flip_signs(differences, weights, confidence)
    return flipped if is_significant(2.0 ** (1 - len(differences)), confidence) else replace(flipped, interval=None)


def flip_pair_means(differences: Floats, confidence: float = CONFIDENCE) -> MeanTest:
    """Test that the differences of pairs centre on zero, each from -1 to 1, [n], and return their centre's interval.

    For differences of -1, 0 and 1 the p-value is that of `mcnemar_mid_p`. An end is -1 or 1 where nothing is excluded.
    """
    return _flip_signs(differences, np.ones(len(differences)), confidence)


def _flip_signs(differences: Floats, weights: Floats, confidence: float) -> MeanTest:
    """Return the test that weighted differences [K], with random signs, centre on zero, and its interval in [-1, 1].

    The interval holds the centres that the flips do not reject (J. A. Hartigan, Journal of the American Statistical
    Association 64 (1969) 1303-1317).
    """
    share_below = _count_subsets(differences, weights)
    digits, halvings = (9, 34) if len(differences) <= _EXACT_TERMS else (5, 20)

    def find_end(is_beyond: Callable[[float], bool], side: float) -> float:
        outer, inner = (0.0, -side) if is_beyond(0.0) else (side, 0.0)
        for _ in range(halvings):
            middle = (outer + inner) / 2
            outer, inner = (middle, inner) if is_beyond(middle) else (outer, middle)
        return round((outer + inner) / 2, digits) + 0.0

    low = find_end(lambda centre: is_significant(2 * share_below(centre), confidence), -1.0)
    high = find_end(lambda centre: is_significant(2 * (1 - share_below(centre)), confidence), 1.0)
    share = share_below(0.0)
    return MeanTest(min(1.0, 2 * min(share, 1 - share)), Interval(low, high))


def _count_subsets(differences: Floats, weights: Floats) -> Callable[[float], float]:
    if len(differences) > _EXACT_TERMS:
        return lambda centre: _sum_on_grid(weights * (differences - centre))
    subsets, scaled = _list_subsets(len(differences)), weights / weights.max(initial=1.0)
    sums, sizes = subsets @ (scaled * differences), subsets @ scaled

    def share_below(centre: float) -> float:
        gaps = sums - centre * sizes
        return float((gaps < -_TOLERANCE).mean() + (np.abs(gaps) <= _TOLERANCE).mean() / 2)

    return share_below


@lru_cache(maxsize=4)
def _list_subsets(count: int) -> Floats:
    subsets: Floats = (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(np.float64)
    subsets.flags.writeable = False
    return subsets


def _sum_on_grid(terms: Floats) -> float:
    """Return the share of all subsets of the terms [K] with a sum below zero; those with a sum of zero count half."""
    magnitudes = np.abs(terms)
    total = float(magnitudes.sum())
    is_whole = total <= _GRID and float(np.abs(terms - np.rint(terms)).max()) < 1e-9
    steps = np.rint(magnitudes) if is_whole else magnitudes * (_GRID / (total or 1.0))
    rounded = np.rint(steps).astype(np.int64)
    errors = rounded - steps
    observed = float(steps[terms < 0].sum() + errors.sum() / 2)  # rounding moves the mean of all sums by as much
    slack = min(float(np.abs(errors).sum()) / 2, 3 * float(np.linalg.norm(errors))) + 1e-6
    chances = np.zeros(max(0, int(observed + slack)) + 1)
    chances[0] = 1.0
    for step, many in zip(*np.unique(rounded[rounded > 0], return_counts=True), strict=True):
        summed = np.zeros_like(chances)
        for drawn, chance in _draw_heads(int(many)):
            summed[drawn * step :] += chance * chances[: max(0, len(chances) - drawn * step)]
        chances = summed
    below = max(0, ceil(observed - slack))
    return float(chances[:below].sum() + chances[below:].sum() / 2)


@lru_cache(maxsize=256)
def _draw_heads(coins: int) -> list[tuple[int, float]]:
    from scipy.stats import binom

    chances = binom.pmf(np.arange(coins + 1), coins, 0.5)
    return [(int(k), float(chances[k])) for k in np.flatnonzero(chances > 1e-17)]


def mcnemar_mid_p(only_first: int, only_second: int) -> float:
    """Return the two-sided mid-p-value of McNemar's test that a fair coin splits the pairs that differ; 1 without any.

    M. W. Fagerland, S. Lydersen and P. Laake, BMC Medical Research Methodology 13 (2013) 91: it hardly ever exceeds its
    level, and finds more than the exact test.

    >>> round(mcnemar_mid_p(1, 7), 7)
    0.0390625
    """
    from scipy.stats import binom

    n, fewer = only_first + only_second, min(only_first, only_second)
    return min(1.0, float(2 * binom.cdf(fewer, n, 0.5) - binom.pmf(fewer, n, 0.5)))


def cmh_mid_p(counts: Ints, sizes: Ints, others: Ints, other_sizes: Ints) -> float:
    """Return the two-sided mid-p-value of the Cochran-Mantel-Haenszel test over strata such as tasks.

    `counts` of `sizes` episodes count for the first policy, `others` of `other_sizes` for the second, [K] each. Under
    the hypothesis that no stratum has a difference, the first policy's count in each is hypergeometric given the total.
    1 if all episodes of each stratum are alike.
    """
    from scipy.stats import hypergeom

    chances, offset = np.ones(1), 0
    for count, n, other, m in zip(counts, sizes, others, other_sizes, strict=True):
        total = int(count + other)
        low, high = max(0, total - int(m)), min(int(n), total)
        chances = np.convolve(chances, hypergeom.pmf(np.arange(low, high + 1), n + m, total, n))
        offset += low
    observed = int(np.sum(counts)) - offset
    fewer, more = chances[:observed].sum(), chances[observed + 1 :].sum()
    return min(1.0, float(2 * min(fewer, more) + chances[observed]))


def mean_rate_interval(totals: Floats, sizes: Ints, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of the unweighted mean of rates over strata, such as tasks; None if there are none.

    `totals` are counts, or sums of values in [0, 1], of `sizes` episodes, [K] each. The spread of each stratum is taken
    at the rate with one more success and one more failure, after A. Agresti and B. Caffo (The American Statistician 54
    (2000) 280-288), so that a rate of 0 or 1 has one too. One stratum has Wilson's interval.
    """
    if len(sizes) < 2:
        return unit_mean_interval(float(totals.sum()), int(sizes.sum()), confidence)
    mean = float((totals / sizes).mean())
    half = normal_quantile(confidence) * sqrt(_mean_rate_variance(totals, sizes))
    return Interval(max(0.0, mean - half), min(1.0, mean + half))


def mean_rate_difference_interval(
    totals: Floats, sizes: Ints, others: Floats, other_sizes: Ints, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the interval of the difference of two policies' mean rates over the same strata; None without strata.

    Arguments as of `mean_rate_interval`, [K] each. One stratum has the hybrid score interval of R. G. Newcombe,
    Statistics in Medicine 17 (1998) 873-890, method 10: distances to Wilson's limits, squared and added.
    """
    mine, theirs = (
        mean_rate_interval(totals, sizes, confidence),
        mean_rate_interval(others, other_sizes, confidence),
    )
    if mine is None or theirs is None:
        return None
    p, q = float((totals / sizes).mean()), float((others / other_sizes).mean())
    if len(sizes) > 1:
        variance = _mean_rate_variance(totals, sizes) + _mean_rate_variance(others, other_sizes)
        half = normal_quantile(confidence) * sqrt(variance)
        return Interval(max(-1.0, p - q - half), min(1.0, p - q + half))
    below = sqrt((p - mine.low) ** 2 + (theirs.high - q) ** 2)
    above = sqrt((mine.high - p) ** 2 + (q - theirs.low) ** 2)
    return Interval(p - q - below, p - q + above)


def _mean_rate_variance(totals: Floats, sizes: Ints) -> float:
    rates = (totals + 1) / (sizes + 2)
    return float((rates * (1 - rates) / sizes).sum()) / len(sizes) ** 2


def permute_task_means(
    values: Sequence[Floats],
    others: Sequence[Floats],
    generator: np.random.Generator,
    confidence: float = CONFIDENCE,
    tries: int = RESAMPLES,
) -> MeanTest:
    """Test that two policies' values have one distribution in each task; the interval is that of their difference.

    The policies' labels are drawn anew within each task; the observed labels count too. The statistic is the mean over
    tasks of the differences of means, in its standard errors. The interval holds the shifts of all the first policy's
    values that the same labels do not reject. `values` and `others` are from 0 to 1, an array for each of the tasks.
    """
    moments: Floats = np.zeros((5, tries + 1))
    for first, second in zip(values, others, strict=True):
        moments += _draw_labels(first, second, generator, tries)
    estimate = float(moments[0, 0]) / len(values)

    def is_beyond(shift: float) -> bool:
        return is_significant(_shifted_p(moments, shift), confidence)

    def find_end(outer: float) -> float:
        inner = estimate
        if min(outer, inner) < 0.0 < max(outer, inner):
            outer, inner = (0.0, inner) if is_beyond(0.0) else (outer, 0.0)
        for _ in range(_HALVINGS):
            middle = (outer + inner) / 2
            outer, inner = (middle, inner) if is_beyond(middle) else (outer, middle)
        return round((outer + inner) / 2, 5) + 0.0

    return MeanTest(_shifted_p(moments, 0.0), Interval(find_end(-1.0), find_end(1.0)))


_HALVINGS = 20


def _draw_labels(first: Floats, second: Floats, generator: np.random.Generator, tries: int) -> Floats:
    n = len(first)
    places = np.tile(np.arange(n + len(second), dtype=np.int32), (tries + 1, 1))
    places[1:] = generator.permuted(places[1:], axis=1)
    drawn, marks = np.concatenate([first, second])[places], places < n
    moments = np.zeros((5, tries + 1))
    for sign, side in ((1, slice(None, n)), (-1, slice(n, None))):
        value, mark = drawn[:, side], marks[:, side]
        size, mean, share = value.shape[1], value.mean(axis=1), mark.mean(axis=1)
        moments[:2] += sign * np.array([mean, share])
        if size > 1:
            value = value - mean[:, None]
            squares, products = np.einsum("ij,ij->i", value, value), np.einsum("ij,ij->i", value, mark)
            moments[2:] += np.array([squares, products, size * share * (1 - share)]) / (size * (size - 1))
    return moments


def _shifted_p(moments: Floats, shift: float) -> float:
    """Return the mid-p-value of the hypothesis that the first policy's values are greater by `shift` in every task."""
    sums = np.abs(moments[0] - shift * moments[1])
    spreads = np.sqrt(np.maximum(0.0, moments[2] - 2 * shift * moments[3] + shift**2 * moments[4]))
    if not (spreads > _TOLERANCE).any():  # one episode a task and policy: no spread is known
        spreads[:] = 1.0
    statistics = np.divide(sums, spreads, out=np.full(len(sums), np.inf), where=spreads > _TOLERANCE)
    statistics[sums <= _TOLERANCE] = 0.0
    if statistics[0] == 0:
        return 1.0
    alike = (statistics == statistics[0]) | np.isclose(statistics, statistics[0], rtol=1e-9, atol=0)
    return float(((statistics > statistics[0]) & ~alike).mean() + alike.mean() / 2)
