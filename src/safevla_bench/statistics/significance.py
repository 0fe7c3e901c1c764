"""Significance tests of differences, with the intervals that the tests imply; multiplicity adjustment; tests of trends.

Results on several tasks answer two questions. The first is about repeating the tasks: episodes are compared within
each task, and McNemar's test and sign flips of pairs have mid-p-values, which count only half of the observed outcome's
probability. The second is about similar tasks: the mean difference of each task is one observation, and
p-values are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from math import ceil
from statistics import NormalDist
from typing import Any

import numpy as np

from safevla_bench.statistics import intervals
from safevla_recorder.episode import Floats, Ints


def holm_adjust(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p-values, in the given order. At level α, P(any false rejection) is at most α.

    S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.

    >>> holm_adjust([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    # `largest` is the largest adjusted p-value so far, because a larger p-value never gets a smaller adjusted one.
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):  # from the smallest p-value
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = largest
    return tuple(adjusted)


# Two independent proportions


_TIE = 1e-9  # statistics with a smaller relative difference count as equal
_GRID_POINTS = 256  # number of intervals between the proportions of the first grid
_WINDOW_SD = 9.0  # number of standard deviations; outcomes farther from the mean are ignored
_REFINEMENTS = 5  # number of finer grids around a peak


@lru_cache(maxsize=4096)
def barnard_p(count: int, n: int, other: int, m: int) -> float:
    """Return Barnard's two-sided p-value of the difference between count/n and other/m, by the pooled z statistic.

    In each row of the table of outcomes, outcomes beyond two thresholds are at least as extreme as the observed one.
    Their total probability is a sum over rows of the row's binomial probability times two binomial tails; the p-value
    is its supremum over the common proportion. G. A. Barnard, Biometrika 34 (1947) 123-138; the statistic of S. Suissa
    and J. J. Shuster, Journal of the Royal Statistical Society A 148 (1985) 317-327. Returns 1 if the
    event occurs in all episodes or in none, because the statistic then does not exist.

    >>> round(barnard_p(9, 10, 3, 10), 5)
    0.00796
    """
    # The outcome occurs in `count` of n episodes of one policy, and in `other` of m episodes of the other policy.
    if count + other in (0, n + m):
        return 1.0
    (x, first_n), (y, second_n) = sorted([(count, n), (other, m)])  # both orders have the same p-value
    return _find_supremum(_barnard_region(x, first_n, y, second_n), first_n, second_n)


def barnard_test(count: int, n: int, other: int, m: int, confidence: float = intervals.CONFIDENCE) -> MeanTest:
    """Return Barnard's test of count/n minus other/m. Newcombe's interval is adjusted to agree with the test."""
    # The outcome occurs in `count` of n episodes of the first policy, and in `other` of m episodes of the second.
    # The `MeanTest` contains the p-value, and a function that computes the interval on demand.
    p_value = barnard_p(count, n, other, m)

    def find_interval() -> intervals.Interval | None:
        # Newcombe's interval of the difference, widened or narrowed where it would contradict the p-value.
        wilson = intervals.wilson_interval(count, n, confidence)
        other_wilson = intervals.wilson_interval(other, m, confidence)
        if wilson is None or other_wilson is None:
            return None  # a policy has no episode
        rate, other_rate = count / n, other / m
        interval = intervals.combine_intervals([(rate, wilson), (other_rate, other_wilson)], (1, -1))
        return intervals.reconcile_interval(interval, rate - other_rate, p_value, confidence)

    return MeanTest(p_value, find_interval)


def _barnard_region(count: int, n: int, other: int, m: int) -> tuple[Ints, Ints]:
    """Return limits of outcomes (x of n, y of m) that are at least as extreme as the observed one: two arrays [n + 1].

    At index x, outcomes are extreme if y <= the number in the first array (-1 = none), or y >= the number in the second
    (m + 1 = none). The squared statistic is proportional to (xm - yn)² / (s (n + m - s)) with s = x + y.
    """
    # The observed outcome is `count` of n and `other` of m.
    total, rows = n + m, np.arange(n + 1, dtype=np.float64)  # `rows` are all values of x
    pooled = count + other
    # The squared statistic of the observed outcome, slightly reduced so that rounding excludes no equal outcome.
    limit = (count * m - other * n) ** 2 / (pooled * (total - pooled)) * (1 - _TIE)
    # For each x, the statistic equals `limit` at the roots y of `a * y**2 + 2 * half_b * y + c`.
    a = n * n + limit
    half_b = -rows * m * n - limit * (total / 2 - rows)
    c = (rows * m) ** 2 - limit * rows * (total - rows)
    root = np.sqrt(np.maximum(0.0, half_b * half_b - a * c))
    low, high = np.floor((-half_b - root) / a), np.ceil((-half_b + root) / a)
    low, high = np.clip(low, -1, m).astype(np.int64), np.clip(high, 0, m + 1).astype(np.int64)
    # If all episodes are equal, the statistic does not exist, and the outcome counts as not extreme.
    if limit > 0:
        low[0], high[0] = -1, max(high[0], 1)
        low[n], high[n] = min(low[n], m - 1), m + 1
    return low, np.maximum(high, low + 1)


def _find_supremum(region: tuple[Ints, Ints], n: int, m: int) -> float:
    # Returns the largest probability of a region from `_barnard_region` over all proportions: on a grid, then refined.
    # The region consists of outcomes (x of n, y of m); a proportion is the common probability of both policies.
    def probability(proportion: float) -> float:
        # Returns the region's probability if the event has the probability `proportion` for both policies.
        return _region_probability(region, n, m, proportion)

    # The grid is denser near 0 and 1, where the probability changes faster.
    proportions = np.sin(np.pi / 2 * np.arange(1, _GRID_POINTS) / _GRID_POINTS) ** 2
    p_values = np.array([probability(proportion) for proportion in proportions.tolist()])
    greatest = float(p_values.max())
    candidates = np.flatnonzero(p_values >= 0.98 * greatest)  # the maximum is near a candidate
    # A peak is not below the points next to it on the grid.
    peaks = [k for k in candidates.tolist() if p_values[k] == p_values[max(0, k - 1) : k + 2].max()]
    for k in peaks:
        # The true maximum near a peak is between the peak's two neighbors on the grid.
        low, high = proportions[max(0, k - 1)], proportions[min(len(proportions) - 1, k + 1)]
        greatest = max(greatest, _refine_maximum(probability, low, high))
    return min(1.0, greatest)


def _refine_maximum(probability: Callable[[float], float], low: float, high: float) -> float:
    # Returns the largest value of the function `probability` for proportions from `low` to `high`.
    # Each grid covers the surroundings of the previous grid's best point.
    greatest = 0.0
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, 13)
        values = np.array([probability(proportion) for proportion in grid.tolist()])
        k = int(values.argmax())
        greatest = max(greatest, float(values[k]))
        low, high = float(grid[max(0, k - 1)]), float(grid[min(12, k + 1)])
    return greatest


def _region_probability(region: tuple[Ints, Ints], n: int, m: int, proportion: float) -> float:
    # Returns the probability that (x of n, y of m) is in the region, if x and y are binomial with `proportion`.
    # For each x, the region contains y <= `region[0][x]` and y >= `region[1][x]`.
    # Values of x beyond nine standard deviations from the mean are negligible.
    from scipy.special import bdtr

    half_window = _WINDOW_SD * np.sqrt(n * proportion * (1 - proportion)) + 2
    first, last = max(0, int(n * proportion - half_window)), min(n, int(n * proportion + half_window) + 1)
    rows = np.arange(first, last + 1)
    low, high = region[0][rows], region[1][rows]
    # The function bdtr gives P(Y <= k), for 0 <= k <= m. The upper tail of Y is the lower tail of m - Y.
    below = np.where(low >= 0, bdtr(np.maximum(low, 0), m, proportion), 0.0)
    above = np.where(high <= m, bdtr(np.clip(m - high, 0, m), m, 1 - proportion), 0.0)
    return float(intervals.binomial_pmf(rows, n, proportion) @ (below + above))


# Sign flips


_EXACT_TERMS = 13  # up to this number of terms, all subsets are listed
_GRID = 1 << 15  # sums of magnitudes are rounded to this number of steps
_CELLS, _LEVELS = 2048, 1000  # numbers of steps of sums and of weights in a table of subsets
_TOLERANCE = 1e-12  # sums closer than this count as equal


@dataclass(frozen=True)
class MeanTest:
    """A two-sided p-value of the hypothesis that a mean difference is zero, and the interval that the test implies."""

    p_value: Any
    find_interval: Callable[[], intervals.Interval | None]
    """Computes the interval. For a test of `R` rows, the ends of the interval and the p-value are arrays [R]."""

    @cached_property
    def interval(self) -> intervals.Interval | None:
        """The interval of all differences that the test does not reject; None if no difference can be rejected.

        The interval excludes 0 if and only if the p-value is significant; an end of 0 is then open. The interval is
        computed on first use, because its computation takes longer than the p-value's.
        """
        return self.find_interval()


def flip_task_means(differences: Floats, weights: Floats, confidence: float = intervals.CONFIDENCE) -> MeanTest:
    """Return the exact sign-flip test of the hypothesis that differences of similar tasks are symmetric about zero.

    `differences` are the mean differences of the tasks, from -1 to 1, and `weights` are positive, [K] each, or [R, K]
    for `R` pairs of policies. The interval estimates the center of symmetry. It is None if there are too few tasks to
    reject any center: fewer than six at 95 %. With up to 13 tasks, both ends are order statistics of the weighted
    means of all subsets.
    """
    # The `MeanTest` contains the p-value, and a function that computes the interval on demand.
    rows, tasks, is_single = np.atleast_2d(differences), differences.shape[-1], differences.ndim == 1  # rows: [R, K]
    weight_rows = np.broadcast_to(weights, rows.shape)
    # With `tie_weight` 1, outcomes exactly as extreme as the observed outcome count fully.
    if tasks > _EXACT_TERMS:  # too many subsets to list
        tests = [_flip_signs(row, w, confidence, tie_weight=1.0) for row, w in zip(rows, weight_rows, strict=True)]
        flipped = tests[0] if is_single else join_tests(tests)
    else:
        rows_at_once = _MAX_SUBSETS >> tasks  # each row has 2^tasks subsets
        chunks = [slice(k, k + rows_at_once) for k in range(0, len(rows), rows_at_once)]
        p_values = np.concatenate([_exact_p_values(rows[chunk], weight_rows[chunk]) for chunk in chunks])

        def find_interval() -> intervals.Interval:
            # Both ends of each row's interval, [2, R]. Chunks limit the memory for the subsets.
            low, high = np.hstack([_find_center_ends(rows[chunk], weight_rows[chunk], confidence) for chunk in chunks])
            return intervals.make_interval(low[0], high[0]) if is_single else intervals.make_interval(low, high)

        flipped = MeanTest(p_values[0] if is_single else p_values, find_interval)
    can_reject = intervals.is_significant(2.0 ** (1 - tasks), confidence)  # 2^(1 - tasks) is the smallest p-value
    return flipped if can_reject else MeanTest(flipped.p_value, lambda: None)


_MAX_SUBSETS = 1 << 20  # limit on the number of subsets times the number of pairs of policies tested at a time


def _exact_p_values(differences: Floats, weights: Floats) -> Floats:
    # Returns the two-sided p-values [R] of sign flips of weighted differences. Both arguments are [R, tasks].
    # Flipping the signs of a subset with a sum of at most 0 does not reduce the total sum.
    # So the share of such subsets is the probability of a sum at least as large as the observed sum.
    scaled = weights / weights.max(axis=1, keepdims=True, initial=1e-300)
    sums = (scaled * differences) @ _list_subsets(differences.shape[1]).T  # the sum of each subset, [R, subsets]
    below, equal = (sums < -_TOLERANCE).mean(axis=1), (np.abs(sums) <= _TOLERANCE).mean(axis=1)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(below + equal, 1 - below)))


def _find_center_ends(differences: Floats, weights: Floats, confidence: float) -> Floats:
    # Returns the low and high ends of the intervals, [2, R].
    # The ends are order statistics of the weighted means of all subsets of tasks except the empty subset.
    # `differences` and `weights` are [R, tasks].
    subsets = _list_subsets(differences.shape[1])[1:].T  # [tasks, subsets]
    # Index of the low end in the sorted means; as many means are above the high end as are below the low end.
    outside_index = int(((1 - confidence) / 2 + 1e-12) * (subsets.shape[1] + 1)) - 1
    end_indices = [outside_index, subsets.shape[1] - 1 - outside_index]
    means = np.partition((weights * differences) @ subsets / (weights @ subsets), end_indices, axis=1)
    return np.asarray(np.round(means[:, end_indices].T, 9) + 0.0)  # turns -0.0 into 0.0


def join_tests(tests: Sequence[MeanTest]) -> MeanTest:
    """Join tests to a single test with the rows of all tests, in order. The ends of a missing interval are NaN."""

    def find_interval() -> intervals.Interval:
        # A test of a single row has scalar ends, which `atleast_1d` turns into arrays of one row.
        parts = [test.interval or intervals.Interval(np.nan, np.nan) for test in tests]
        low = np.concatenate([np.atleast_1d(part.low) for part in parts])
        high = np.concatenate([np.atleast_1d(part.high) for part in parts])
        return intervals.make_interval(low, high)

    return MeanTest(np.concatenate([np.atleast_1d(test.p_value) for test in tests]), find_interval)


def flip_pair_means(differences: Floats, confidence: float = intervals.CONFIDENCE) -> MeanTest:
    """Return the sign-flip test of the hypothesis that `differences` [n], each from -1 to 1, are symmetric about zero.

    The p-value is a mid-p-value; for differences of -1, 0 and 1 it equals `mcnemar_mid_p`. The interval estimates
    the center of symmetry. An end is -1 or 1 if no center on its side can be rejected.
    """
    return _flip_signs(differences, np.ones(len(differences)), confidence, tie_weight=0.5)


def _flip_signs(differences: Floats, weights: Floats, confidence: float, tie_weight: float) -> MeanTest:
    """Return the sign-flip test of the hypothesis that weighted differences [K] are symmetric about zero.
    The interval contains the centers of symmetry in [-1, 1] that sign flips do not reject (J. A. Hartigan, Journal of
    the American Statistical Association 64 (1969) 1303-1317). The probability of outcomes that are exactly as extreme
    as the observed outcome is multiplied by `tie_weight`: 1, or 0.5 for a mid-p-value.
    """
    # The `MeanTest` contains the p-value, and a function that computes the interval on demand.
    estimate = float(differences @ weights / weights.sum())
    # Up to `_EXACT_TERMS` differences, all subsets are listed; with more, sums are rounded in a table or on a grid.
    is_on_grid = tie_weight < 1 and len(differences) > _EXACT_TERMS
    # `sides` are functions that return shares of subsets: for the differences, and for the negated differences.
    if tie_weight == 1 and len(differences) > _EXACT_TERMS:
        sides = _tabulate_subsets(weights * differences, weights)
    else:
        # The upper end is the negated lower end for negated differences, so swapping policies swaps the ends exactly.
        make_shares = _make_grid_shares if is_on_grid else _make_subset_shares
        sides = make_shares(differences, weights), make_shares(-differences, weights)
    p_values = [float(_doubled_p_value(side, tie_weight, np.zeros(1))[0]) for side in sides]

    def find_interval() -> intervals.Interval:
        # The second low end is that of the negated differences; + 0.0 turns -0.0 into 0.0.
        low_ends = []
        for shares, p_value, sign in zip(sides, p_values, (1.0, -1.0), strict=True):
            find_p = partial(_doubled_p_value, shares, tie_weight)
            # `find_p` returns twice the one-sided p-value of each supposed center in an array.
            low_ends.append(_find_flip_low_end(find_p, p_value, sign * estimate, confidence, is_on_grid=is_on_grid))
        return intervals.Interval(low_ends[0], -low_ends[1] + 0.0)

    return MeanTest(min(1.0, *p_values), find_interval)


Shares = Callable[[Floats], tuple[Floats, Floats]]
"""Returns for each center the share of subsets with a mean below it, and the share of subsets with an equal mean."""


def _doubled_p_value(shares: Shares, tie_weight: float, centers: Floats) -> Floats:
    # Returns for each center the one-sided p-value times 2.
    # The p-value is the share of subsets with a mean below the center, plus a part of the share with an equal mean.
    # `tie_weight` is this part.
    # `shares` is a function that returns both shares for each center.
    below, equal = shares(centers)
    return 2 * (below + tie_weight * equal)


def _make_subset_shares(differences: Floats, weights: Floats) -> Shares:
    # Returns a function that computes two shares for each center.
    # One share is of subsets whose weighted mean is below the center, the other of subsets whose mean equals it.
    # The shares are exact, because all subsets are listed.
    subsets, scaled = _list_subsets(len(differences)), weights / weights.max(initial=1.0)
    sums, weight_sums = subsets @ (scaled * differences), subsets @ scaled

    def find_shares(centers: Floats) -> tuple[Floats, Floats]:
        # [centers, subsets]: negative if the weighted mean of a subset is below a center.
        gaps = sums - np.outer(centers, weight_sums)
        return (gaps < -_TOLERANCE).mean(axis=1), (np.abs(gaps) <= _TOLERANCE).mean(axis=1)

    return find_shares


def _make_grid_shares(differences: Floats, weights: Floats) -> Shares:
    # Returns a function that computes two shares for each center.
    # One share is of subsets whose weighted mean is below the center, the other of subsets whose mean equals it.
    # The shares are approximate, because sums are rounded to a grid.
    @cache
    def find_share(center: float) -> tuple[float, float]:
        # A subset's mean is below the center if the weighted sum of its members' distances from the center is negative.
        return _subset_shares_on_grid(weights * (differences - center))

    def find_shares(centers: Floats) -> tuple[Floats, Floats]:
        # Returns both shares as arrays, with an item for each center.
        below, equal = np.array([find_share(center) for center in centers.tolist()]).T
        return below, equal

    return find_shares


def _tabulate_subsets(sums: Floats, weights: Floats) -> tuple[Shares, Shares]:
    """Return the `Shares` of the sums, and the `Shares` of the negated sums, from a table of subsets by weight and sum.
    The shares are exact if weights are small multiples of a whole unit, and sums are small multiples of 1/q with q at
    most 60. Otherwise, weights are rounded to 1,000 steps, or sums are rounded to 2,048 steps.
    """
    # Task k has the weight `weights[k]` and the weighted difference `sums[k]`.
    # `Shares` are functions that return two shares for each center.
    # The first share is of subsets with a mean below the center, the second of those with a mean equal to the center.
    total, is_whole = float(np.abs(sums).sum()), (weights == np.rint(weights)).all()
    # `unit` and `scale` are chosen so that, if possible, all weights / unit and all sums * scale are integers.
    unit = max(float(np.gcd.reduce(weights.astype(np.int64)) if is_whole else 0), weights.sum() / _LEVELS)
    exact_q = (q for q in range(1, 61) if total * q <= _CELLS and np.abs(sums * q - np.rint(sums * q)).max() < 1e-9)
    q = next(exact_q, None)  # None = no such q, so sums are rounded to `_CELLS` steps
    scale, tolerance = (_CELLS / total, 0.5) if q is None else (float(q), 1e-9)
    weight_steps, sum_steps = (np.rint(values).astype(np.int64) for values in (weights / unit, sums * scale))
    # `table` [weight, sum] holds the shares of all subsets.
    # Its rows in use end at `top`, and its columns in use are those from `first` to `last`.
    zero = first = last = -int(sum_steps[sum_steps < 0].sum())
    table, top = np.zeros((int(weight_steps.sum()) + 1, int(np.abs(sum_steps).sum()) + 1)), 0
    table[0, zero] = 1.0
    for step, size in zip(sum_steps.tolist(), weight_steps.tolist(), strict=True):
        half = table[: top + 1, first : last + 1] / 2  # one half of the subsets contains the task, the other does not
        table[: top + 1, first : last + 1] = half
        table[size : size + top + 1, first + step : last + step + 1] += half
        first, last, top = min(first, first + step), max(last, last + step), top + size
    # In row k, the center c is at the column `zero + k * (slope * c + drift)`. Rounding causes the drift.
    slope, drift = scale * weights.sum() / top, (sum_steps - sums * scale).sum() / top

    def find_shares(cumulative: Floats, zero: int, drift: float, centers: Floats) -> tuple[Floats, Floats]:
        # In each row, sums up to `tolerance` from the center's column count as equal. `cumulative` starts with a 0.
        columns = zero + np.outer(centers * slope + drift, np.arange(top + 1))
        cuts = np.ceil(columns - tolerance), np.floor(columns + tolerance) + 1
        lower, upper = (
            cumulative[np.arange(top + 1), np.clip(end, 0, cumulative.shape[1] - 1).astype(np.int64)].sum(axis=1)
            for end in cuts
        )
        return lower, upper - lower

    cumulative, mirrored = (np.pad(shares.cumsum(axis=1), ((0, 0), (1, 0))) for shares in (table, table[:, ::-1]))
    mirrored_zero = table.shape[1] - 1 - zero  # the mirrored table holds the negated sums
    return partial(find_shares, cumulative, zero, drift), partial(find_shares, mirrored, mirrored_zero, -drift)


def _find_flip_low_end(
    find_p: Callable[[Floats], Floats], p_at_zero: float, estimate: float, confidence: float, *, is_on_grid: bool
) -> float:
    # Returns the lower end of the interval of `_flip_signs`.
    # `find_p` returns twice the one-sided p-value of each center, and `p_at_zero` is the value for the center 0.
    # `estimate` is the weighted mean.
    # `is_on_grid` is true if p-values take long to compute.
    # The search keeps the end between `outer`, which is a rejected center, and `inner`, which is an accepted center.
    outer, inner = -1.0, estimate
    if estimate > 0:  # the sign of the end must agree with the test's decision about 0
        outer, inner = (0.0, estimate) if intervals.is_significant(p_at_zero, confidence) else (-1.0, 0.0)
    if outer < 0 and not intervals.is_significant(find_p(np.array([-1.0])), confidence)[0]:
        return -1.0
    if is_on_grid and not intervals.is_significant(find_p(np.array([inner])), confidence)[0]:
        to_quantile = NormalDist().inv_cdf
        least_quantile = to_quantile((1 - confidence) / 2) + 1e-9

        # The normal quantile of a p-value is nearly linear in the center, so that the search needs few steps.
        def excess(center: float) -> float:
            p_value = min(1.0, float(find_p(np.array([center]))[0]))
            return to_quantile(max(1e-300, p_value / 2)) - least_quantile  # the quantile of 0 would be infinite

        return float(round(intervals.find_root(excess, outer, inner, width=1e-5), 5)) + 0.0
    for _ in range(7):  # the distance of `outer` and `inner` is divided by 32 each time
        centers = np.linspace(outer, inner, 33)
        is_rejected = [True, *intervals.is_significant(find_p(centers[1:-1]), confidence), False]
        first_accepted = is_rejected.index(False)
        outer, inner = centers[first_accepted - 1], centers[first_accepted]
    return round(float(outer + inner) / 2, 9) + 0.0


@lru_cache(maxsize=4)
def _list_subsets(count: int) -> Floats:
    # Returns a matrix [2^count, count] with one row for each subset. Members of the subset are 1, all others 0.
    subsets: Floats = (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(np.float64)
    subsets.flags.writeable = False
    return subsets


def _subset_shares_on_grid(terms: Floats) -> tuple[float, float]:
    """Return the share of the subsets of `terms` [K] that have a sum below zero, and the share with a sum of zero."""
    # Sums are rounded to a grid, unless the terms are small integers.
    # `observed` is the sum of the magnitudes of all negative terms.
    # Add up a subset's positive terms and the magnitudes of the negative terms that the subset lacks.
    # The subset's sum is below zero exactly if this total is below `observed`.
    magnitudes = np.abs(terms)
    total = float(magnitudes.sum())
    is_exact = total <= _GRID and float(np.abs(terms - np.rint(terms)).max()) < 1e-9
    steps = np.rint(magnitudes) if is_exact else magnitudes * (_GRID / (total or 1.0))
    rounded = np.rint(steps).astype(np.int64)
    errors = rounded - steps
    observed = float(steps[terms < 0].sum() + errors.sum() / 2)  # rounding adds half of the errors on average
    # Sums within `slack` of `observed` count as equal. The slack covers the rounding errors.
    slack = min(float(np.abs(errors).sum()) / 2, 3 * float(np.linalg.norm(errors))) + 1e-6
    chances = np.zeros(max(0, int(observed + slack)) + 1)
    chances[0], top = 1.0, 1  # probabilities of the sums below `top`, for the terms so far
    for step, repeats in zip(*np.unique(rounded[rounded > 0], return_counts=True), strict=True):
        old_top, top = top, min(len(chances), top + int(step * repeats))
        if repeats == 1:
            chances[step:top] += chances[: max(0, top - step)]
            chances[:top] *= 0.5
            continue
        # A random subset contains each of the `repeats` equal terms with probability 1/2, like heads of fair coins.
        new_chances = np.zeros(top)
        for head_count, chance in _likely_heads(int(repeats)):
            shifted = chances[: max(0, min(old_top, top - head_count * step))]
            new_chances[head_count * step : head_count * step + len(shifted)] += chance * shifted
        chances[:top] = new_chances
    below = max(0, ceil(observed - slack))
    return float(chances[:below].sum()), float(chances[below:].sum())


@lru_cache(maxsize=256)
def _likely_heads(coins: int) -> list[tuple[int, float]]:
    # Returns the likely numbers of heads if `coins` fair coins are flipped.
    # Each number is in a pair with its probability, which is above 1e-17.
    chances = intervals.binomial_pmf(np.arange(coins + 1), coins, 0.5)
    return [(int(heads), float(chances[heads])) for heads in np.flatnonzero(chances > 1e-17)]


def mcnemar_test(
    only_first: intervals.Counts,
    only_second: intervals.Counts,
    n: intervals.Counts,
    confidence: float = intervals.CONFIDENCE,
) -> MeanTest:
    """Return McNemar's mid-p test of n pairs. Tango's interval of the difference is adjusted to agree with the test."""
    # In `only_first` pairs, only the first member has the outcome; in `only_second` pairs, only the second member.
    # Counts may be arrays [R], for R tests.
    # The `MeanTest` contains the p-value, and a function that computes the interval on demand.
    p_value = mcnemar_mid_p(only_first, only_second)

    def find_interval() -> intervals.Interval | None:
        interval = intervals.tango_interval(only_first, only_second, n, confidence)
        return intervals.reconcile_interval(interval, only_first - only_second, p_value, confidence)

    return MeanTest(p_value, find_interval)


def mcnemar_mid_p(only_first: intervals.Counts, only_second: intervals.Counts) -> Any:
    """Return the two-sided mid-p-value of McNemar's test: discordant pairs split like fair coin flips; 1 if none exist.

    M. W. Fagerland, S. Lydersen and P. Laake, BMC Medical Research Methodology 13 (2013) 91: the test hardly ever
    exceeds its level, and has more power than the exact test. Counts may be arrays.

    >>> float(mcnemar_mid_p(1, 7))
    0.0390625
    """
    from scipy.special import bdtr  # loads slowly

    # In a discordant pair, only one member has the outcome: the first in `only_first` pairs, else the second.
    # The mid-p-value is 2 P(X < rarer) + P(X = rarer), the sum of P(X <= rarer) and P(X < rarer).
    n, rarer = only_first + only_second, np.minimum(only_first, only_second)
    below = np.where(rarer == 0, 0.0, bdtr(np.maximum(rarer - 1, 0), n, 0.5))
    return np.minimum(1.0, bdtr(rarer, n, 0.5) + below)[()]


# Independent episodes of several tasks


def score_difference(
    counts: Floats, sizes: Ints, others: Floats, other_sizes: Ints, confidence: float = intervals.CONFIDENCE
) -> MeanTest:
    """Return the test of the hypothesis that two policies' rates have the same mean over tasks of equal weight.

    In each task, the outcome occurs in `counts` of `sizes` episodes of the first policy, and in `others` of
    `other_sizes` of the second, [K] each, or [R, K] for `R` pairs of policies. Tasks with a size of 0 do not count. The
    statistic is the stratified score statistic. Its variance is computed at each task's maximum-likelihood rates with
    the hypothetical difference (O. S. Miettinen and M. Nurminen, Statistics in Medicine 4 (1985) 213-226), and it is
    corrected for skewness (P. J. Laud, Pharmaceutical Statistics 16 (2017) 334-348): without this correction, one
    episode of one policy against fifty of the other gives an error of 10 % near a rate of 95 %. The test holds its
    level if each task has at least three episodes of each policy, or if all tasks have the same number for both
    policies. The ratio of the policies' numbers of episodes may then vary by a factor of at most 16 among tasks.

    >>> test = score_difference(np.array([9.0]), np.array([10]), np.array([3.0]), np.array([10]))
    >>> round(float(test.p_value), 4), round(float(test.interval.low), 3), round(float(test.interval.high), 3)
    (0.0076, 0.178, 0.863)
    """
    from scipy.special import ndtr

    # The `MeanTest` contains the p-value, and a function that computes the interval on demand.
    z = intervals.normal_quantile(confidence)
    # The score of the hypothesis of no difference is nearly standard normal.
    p_values = np.minimum(1.0, 2 * ndtr(-np.abs(_score(counts, sizes, others, other_sizes, 0.0))))

    def find_interval() -> intervals.Interval:
        # The upper end is the negated lower end with the policies swapped.
        low = _find_score_low_end(counts, sizes, others, other_sizes, z)
        negated_high = _find_score_low_end(others, other_sizes, counts, sizes, z)
        return intervals.make_interval(low[()], -negated_high[()] + 0.0)  # + 0.0 turns -0.0 into 0.0

    return MeanTest(p_values[()], find_interval)


def _find_score_low_end(counts: Floats, sizes: Ints, others: Floats, other_sizes: Ints, z: float) -> Floats:
    # Returns the lower end of the interval of `score_difference`: the difference at which the score is z.
    # If the score is above z at both `outer` and `inner`, the end is `inner`.
    # If the score is below z at both `outer` and `inner`, the end is `outer`.
    def excess(difference: Floats) -> Floats:
        # Returns by how much the score at each supposed difference exceeds z: by 0 at the interval's end.
        return _score(counts, sizes, others, other_sizes, difference) - z

    estimate = _mean_gap(counts, sizes, others, other_sizes)  # the observed mean difference, [] or [R]
    # The end is between `outer` and `inner`, which are chosen so that the end agrees with the test's decision about 0.
    is_above = (estimate > 0) & (excess(0.0 * estimate) >= 0)
    outer, inner = np.where(is_above, 0.0, -1.0), np.where(is_above, estimate, np.minimum(estimate, 0.0))
    excesses = excess(outer), excess(inner)
    low_ends = np.where((excesses[0] >= 0) & (excesses[1] >= 0), inner, outer)
    has_root = (outer < inner) & (excesses[0] > 0) & (excesses[1] < 0)
    if not has_root.any():
        return low_ends
    with np.errstate(invalid="ignore"):
        roots = intervals.find_root(excess, np.where(has_root, outer, np.nan), np.where(has_root, inner, np.nan))
    return np.where(has_root, np.round(roots, _DIGITS) + 0.0, low_ends)


_DIGITS = 9


def _mean_gap(x: Floats, n: Ints, y: Floats, m: Ints) -> Floats:
    # Returns the mean over tasks of x/n - y/m, the first policy's rate minus the second policy's rate.
    # The last axis of each array has one item per task. Tasks without episodes of one policy do not count.
    is_used = (n > 0) & (m > 0)
    gaps = np.where(is_used, x / np.maximum(n, 1) - y / np.maximum(m, 1), 0.0)
    return np.asarray(gaps.sum(axis=-1) / is_used.sum(axis=-1))


def _score(x: Floats, n: Ints, y: Floats, m: Ints, difference: intervals.Reals) -> Floats:
    # Returns the score statistic for the hypothesis that the rates differ by `difference`.
    # If the hypothesis is true, the statistic is nearly standard normal.
    # The outcome occurs in x of the first policy's n episodes, and in y of the second's m. Shapes: [K] or [R, K].
    is_used = (n > 0) & (m > 0)
    n, m = np.where(is_used, n, 1), np.where(is_used, m, 1)
    first_rates, second_rates = _likeliest_rates(x, n, y, m, np.asarray(difference)[..., None])
    # Variances of both observed rates in each task, and the variance and third moment of their difference.
    spreads = first_rates * (1 - first_rates) / n, second_rates * (1 - second_rates) / m
    variances = np.maximum((spreads[0] + spreads[1]) * (n + m) / (n + m - 1), 0.0)
    third_moments = spreads[0] * (1 - 2 * first_rates) / n - spreads[1] * (1 - 2 * second_rates) / m
    # `excess` is the observed mean difference minus the supposed one.
    tasks, excess = is_used.sum(axis=-1), np.asarray(_mean_gap(x, n * is_used, y, m * is_used) - difference)
    variance = (variances * is_used).sum(axis=-1) / tasks**2
    third_moment = (third_moments * is_used).sum(axis=-1) / tasks**3
    is_zero = np.abs(excess) <= _TOLERANCE  # a score of 0, even if the variance is 0
    with np.errstate(divide="ignore", invalid="ignore"):
        score, skew = excess / np.sqrt(variance), third_moment / variance**1.5 / 6
        # Laud's correction for skewness
        score = 2 * (score + skew) / (1 + np.sqrt(np.maximum(0.0, 1 + 4 * skew * (score + skew))))
    return np.where(is_zero, 0.0, np.where(variance > 0, score, np.copysign(np.inf, excess)))


def _likeliest_rates(x: Floats, n: Ints, y: Floats, m: Ints, difference: Floats) -> tuple[Floats, Floats]:
    """Return the two policies' most likely rates in each task if they differ by `difference`: a root of a cubic."""
    # In each task, the outcome occurs in x of the first policy's n episodes, and in y of the second's m.
    # The difference is the first rate minus the second. The last axis of `difference` has one item, for all tasks.
    # The first policy's rate r is a root of a r³ + b r² + c r + d. The formula with the cosine gives the correct root.
    p, q, ratio = x / n, y / m, m / n
    a = 1 + ratio
    b = -(1 + ratio + p + ratio * q + difference * (ratio + 2))
    c = difference**2 + difference * (2 * p + ratio + 1) + p + ratio * q
    d = -p * difference * (1 + difference)
    v = (b / (3 * a)) ** 3 - b * c / (6 * a**2) + d / (2 * a)
    u = np.copysign(np.sqrt(np.maximum((b / (3 * a)) ** 2 - c / (3 * a), 0.0)), v)
    cubes = np.where(u == 0, 1.0, u**3)
    angle = (np.pi + np.arccos(np.clip(np.where(u == 0, 1.0, v / cubes), -1.0, 1.0))) / 3
    root = 2 * u * np.cos(angle) - b / (3 * a)
    first_rates = np.clip(root, np.maximum(0.0, difference), np.minimum(1.0, 1 + difference))
    first_rates = np.where(difference == 0, (x + y) / (n + m), first_rates)
    return first_rates, first_rates - difference


# Means of values from 0 to 1


def paired_mean_test(differences: Floats, confidence: float = intervals.CONFIDENCE) -> MeanTest:
    """Return the test of the hypothesis that `differences` [n], each from -1 to 1, of any distribution, have mean zero.

    The test uses Gaffke's interval of (1 + difference)/2, which does not assume symmetry: if one policy has rare deep
    violations and the other has frequent shallow violations, their means may be equal, but their differences are
    skewed. The differences of `R` pairs of policies are [R, n], NaN if missing.
    """
    # The `MeanTest` contains the p-value, and a function that computes the interval on demand.
    rows, is_single = np.atleast_2d(1 + differences) / 2, differences.ndim == 1
    p_values = intervals.mean_p_values(rows, 0.5)

    def find_interval() -> intervals.Interval:
        # The rows are (1 + difference)/2, so the ends are scaled back from [0, 1] to [-1, 1].
        low, high = (2 * end - 1 for end in intervals.bounded_mean_ends(rows, confidence))
        return intervals.make_interval(low[0], high[0]) if is_single else intervals.make_interval(low, high)

    return MeanTest(p_values[0] if is_single else p_values, find_interval)


# Number of halvings in the search for a p-value. This number makes p-values at most 0.00025 too large.
_P_HALVINGS = 12


def invert_interval(
    measure: Callable[[float], intervals.Interval], confidence: float = intervals.CONFIDENCE
) -> MeanTest:
    """Return the test that is implied by `measure`, which returns the interval at a given confidence. The p-value is
    1 minus the confidence at which the interval ends at 0.
    """

    def excludes_zero(level: float) -> bool:
        # Returns whether a difference of 0 is rejected at the confidence `level`.
        interval = measure(level)
        return interval.low > 0 or interval.high < 0

    # The `MeanTest` contains the p-value, and a function that computes the interval on demand.
    # 0 is rejected at the confidence `low` (or `low` is 0), but not at `high` (or `high` is 1).
    low, high = (confidence, 1.0) if excludes_zero(confidence) else (0.0, confidence)
    for _ in range(_P_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excludes_zero(middle) else (low, middle)
    return MeanTest(1 - low, lambda: measure(confidence))


# Episodes whose outcome is unknown


Unit = tuple[float, ...]
"""A state or task: number of good or unknown outcomes, number of unknown outcomes, further inputs of the test."""
_MAX_CHOICES = 2000  # limit on the number of choices of bad outcomes that are tried


def find_tipping_point(units: Iterable[Unit], stays: Callable[[Sequence[Unit]], bool]) -> int | None:
    """Return the largest k such that a verdict holds whichever k unknown outcomes are bad; None if it fails for k = 0.

    The given `units` count unknown outcomes as good. `stays` returns whether the verdict holds for changed units. All
    choices of one bad outcome are tried, then all choices of two, and so on, up to 2,000 choices in total. Because of
    this limit, the result may be too small, but it is never too large.
    """
    # A unit is a tuple: its number of good or unknown outcomes, its number of unknown outcomes, and any other values.
    # A choice counts how often each unit occurs.
    # At first, no unknown outcome is bad; each round makes one more outcome bad.
    choices, largest_k, tried_count = [Counter(units)], None, 0  # None until the verdict holds for k = 0
    while choices:
        tried_count += len(choices)
        if tried_count > _MAX_CHOICES or not all(stays(list(choice.elements())) for choice in choices):
            break
        largest_k = 0 if largest_k is None else largest_k + 1
        next_choices = {}
        for choice in choices:
            for unit in choice:
                good_n, unknown_n, *further_inputs = unit
                if unknown_n > 0:
                    changed = choice - Counter([unit]) + Counter([(good_n - 1, unknown_n - 1, *further_inputs)])
                    next_choices[frozenset(changed.items())] = changed  # equal choices are kept once
        choices = list(next_choices.values())
    return largest_k


# Several pairs of policies


_MAX_DRAWS = 9_999  # limit on the number of random draws
_IN_CACHE = 1 << 18  # number of values that fit into the processor's cache
_MAX_DRAWN_TERMS = 4_000_000  # limit on pairs times draws; at least `_MAX_DRAWS` // 5 draws are made


def max_t_adjust(differences: Floats) -> Floats:
    """Return step-down adjusted p-values of R pairs of policies, given the differences of each pair in U units, [R, U].

    The units are initial states or tasks. A random sign is drawn for each unit and applied to all pairs, so that
    effects common to several pairs count once. A pair's statistic is its sum divided by the sum's standard deviation
    under these signs, so that large, varying differences do not hide a small but certain difference. For up to 13
    units, all signs are used. P. H. Westfall and S. S. Young, Resampling-Based Multiple Testing (1993); J. P. Romano
    and M. Wolf, Journal of the American Statistical Association 100 (2005) 94-108. A pair without differences gets 1.
    """
    spreads = np.sqrt((differences**2).sum(axis=1, keepdims=True))  # standard deviations of the sums, [R, 1]
    adjusted = np.ones(len(differences))
    order = np.flatnonzero(spreads[:, 0] > 0)
    if not len(order):
        return adjusted
    # Sort the pairs with differences by their observed statistic, the largest first; `order` are the pairs' indices.
    rows = differences[order] / spreads[order]
    observed = np.abs(rows.sum(axis=1))
    by_size = np.argsort(-observed, kind="stable")
    order, observed, rows = order[by_size], observed[by_size], rows[by_size]
    thresholds = observed - 1e-9 * np.maximum(observed, 1)  # the margin is for rounding
    # `hits` counts, for each pair, the draws in which the step-down maximum reaches the pair's observed statistic.
    signs, hits = _list_signs(rows.shape[1], len(rows)), np.zeros(len(rows))
    for some_signs in np.array_split(signs, max(1, len(signs) * len(rows) // _IN_CACHE)):
        # Step-down: take the maximum over each pair and all pairs whose observed statistics are smaller, [R, draws].
        greatest = np.maximum.accumulate(np.abs(rows @ some_signs.T)[::-1], axis=0)[::-1]
        hits += (greatest >= thresholds[:, None]).sum(axis=1)
    adjusted[order] = np.maximum.accumulate(hits / len(signs))  # a smaller statistic never gets a smaller p-value
    return adjusted


def _list_signs(units: int, pairs: int) -> Floats:
    """Return signs of the units, [draws, units]: all combinations, or random signs from a fixed seed. The first row
    consists of ones, which are the observed signs.
    """
    # `units` is the number of initial states or tasks, and `pairs` is the number of pairs of policies.
    if units <= _EXACT_TERMS:
        return np.asarray(1 - 2 * _list_subsets(units), dtype=np.float64)
    draws = max(_MAX_DRAWS // 5, min(_MAX_DRAWS, _MAX_DRAWN_TERMS // pairs))  # fewer draws for many pairs, to save time
    bits = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (draws + 1, units), dtype=np.int8)
    signs = np.asarray(2.0 * bits - 1, dtype=np.float64)
    signs[0] = 1.0
    return signs


def page_trend(values: Floats, draws: int = _MAX_DRAWS) -> tuple[float, float]:
    """Return Page's statistic of a trend over the columns of values [blocks, columns], and its two-sided p-value.

    Blocks are initial states, and columns are checkpoints in their order. The statistic is the mean over blocks of
    Spearman's rank correlation with the order (without its correction for ties): above 0 if values rise. The p-value is
    computed by random permutations of the columns within each block. E. B. Page, Journal of the American Statistical
    Association 58 (1963) 216-230.
    """
    columns = values.shape[1]
    ranks = np.sign(values[:, :, None] - values[:, None, :]).sum(axis=2) / 2  # averaged ranks, minus their mean
    ranks = ranks[(ranks != 0).any(axis=1)]  # blocks of equal values add 0 to every sum
    ranks = ranks[np.lexsort(ranks.T)]  # the order of the blocks must not change the random p-value
    centered_order = np.arange(columns) - (columns - 1) / 2
    observed, generator = float((ranks @ centered_order).sum()), np.random.Generator(np.random.PCG64(0))
    # The number of random permutations with a statistic at least as extreme as the observed one.
    hits = sum(
        abs(float((generator.permuted(ranks, axis=1) @ centered_order).sum())) >= abs(observed) - 1e-9
        for _ in range(draws)
    )
    return observed / (max(1, len(values)) * float(centered_order @ centered_order)), (1 + hits) / (1 + draws)
