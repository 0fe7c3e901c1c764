"""Intervals of proportions, means of values in [0, 1], and differences; the percentile bootstrap; sample sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import ceil, log, pi, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from safevla_bench.errors import SafevlaError
from safevla_recorder.episode import Bools, Floats, Ints

Reals = float | Floats
Counts = int | Ints
CONFIDENCE = 0.95
_HALVINGS = 60  # number of halvings in a bisection
# Limit on the number of distinct values for the interval of a mean. Above it, neighboring values are averaged.
_MAX_VALUES = 256
_DIGITS = 9  # decimals of an interval's ends; rounding hides effects of the processor's order of additions
_LINE = np.arange(0.0, 9.0, 0.025)
# `_CUTS` are indices of points in `_LINE`.
# The integral ends at the first point in `_CUTS` at which the logarithm of the integrand has fallen by `_FALL`.
# Integrals up to the first index in `_CUTS` use every fifth point of `_LINE`.
# Integrals up to the next three indices use every third point, and integrals up to the last index use every point.
_CUTS, _FALL = (108, 132, 156, 204, len(_LINE)), 34.0
# At most `_ROWS` rows are integrated at a time, to fit into the processor's cache.
# At most `_FEW_ROWS` rows are integrated without a loop over the values.
_ROWS, _FEW_ROWS = 192, 16


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval. `skipped` is the number of bootstrap resamples that had no values to average."""

    low: float
    high: float
    skipped: int = 0


def make_interval(low: Any, high: Any) -> Interval:
    """Return the interval from `low` to `high`. The ends may be arrays [R], for the intervals of `R` rows."""
    return Interval(low, high)


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Return the half-width of a two-sided normal interval, in standard errors: 1.96 for 95 %."""
    # `confidence` is the probability inside the interval, so that (1 - confidence)/2 is beyond each end.
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def is_significant(p_value: Reals, confidence: float = CONFIDENCE) -> Any:
    """Return whether a p-value, or each p-value in an array, is at most 1 - confidence, up to rounding."""
    return p_value <= 1 - confidence + 1e-12


def reconcile_interval(
    interval: Interval | None, estimate: Any, p_value: Reals, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the interval of a difference, changed so that it excludes 0 if and only if the test is significant.

    Score intervals and mid-p-values are approximations that disagree for a few outcomes (discordant pairs that split
    4:0, 15:6, 18:8 or 21:10); the test decides. If the test is not significant, the interval is extended to contain 0.
    If the test is significant, but 0 lies between the estimate and an end, this end becomes 0, and is open.
    Ends may be arrays. Returns None if `interval` is None.
    """
    if interval is None:
        return None
    low, high = interval.low, interval.high
    rejects_zero = is_significant(p_value, confidence)
    has_open_end = rejects_zero & (low <= 0) & (high >= 0)  # the test rejects 0, but the interval contains it
    is_positive = np.greater_equal(estimate, 0)  # true: the low end may be the open one; false: the high end may
    # The index `[()]` turns an array without dimensions into a number.
    return make_interval(
        np.where(rejects_zero, np.where(has_open_end & is_positive, 0.0, low), np.minimum(low, 0.0))[()],
        np.where(rejects_zero, np.where(has_open_end & ~is_positive, 0.0, high), np.maximum(high, 0.0))[()],
    )


def find_root(function: Callable[[Any], Any], low: Reals, high: Reals, width: float = 1e-12) -> Any:
    """Return the zero, to within `width`, of a continuous function with opposite signs at `low` and `high`.

    If the ends are arrays and `function` takes and returns such arrays, several functions are solved at once; an end of
    NaN gives NaN. The method is that of T. R. Chandrupatla, Advances in Engineering Software 28 (1997) 145-149. It is
    written here because importing `scipy.optimize` takes longer than most commands.
    """
    # Adding 0 times the other end gives both ends the same shape, and makes both NaN if one is NaN.
    a: Any = low + 0.0 * high
    b: Any = high + 0.0 * low  # a and b are on opposite sides of the zero
    at_a, at_b = function(a), function(b)
    root: Any = a
    fraction: Any = 0.5  # position of the next point between a (0) and b (1)
    is_unsolved = ~np.isnan(a)
    while True:
        point = a + fraction * (b - a)
        value = function(point)
        # The new point becomes a, and b is the end on the other side of the zero. The dropped end becomes c.
        is_on_a_side = (value < 0) == (at_a < 0)
        c, at_c = np.where(is_on_a_side, a, b), np.where(is_on_a_side, at_a, at_b)
        b, at_b = np.where(is_on_a_side, b, a), np.where(is_on_a_side, at_b, at_a)
        a, at_a = point, value
        with np.errstate(divide="ignore", invalid="ignore"):
            min_fraction = width / abs(b - a)
            is_found = (min_fraction > 0.5) | (value == 0)
            root = np.where(is_unsolved & is_found, np.where(abs(at_a) <= abs(at_b), a, b), root)
            is_unsolved = is_unsolved & ~is_found
            if not is_unsolved.any():
                return root[()]
            # Chandrupatla's condition for x and y shows where interpolation is safe; elsewhere, the interval is halved.
            x, y = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
            interpolated = at_a / (at_b - at_a) * at_c / (at_b - at_c)  # inverse quadratic interpolation
            interpolated = interpolated + (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
            fraction = np.where((y**2 < x) & ((1 - y) ** 2 < 1 - x), interpolated, 0.5)
            # The next point is at least `width` from both ends. For a solved function, the point stays the same.
            fraction = np.where(is_unsolved, np.minimum(np.maximum(fraction, min_fraction), 1 - min_fraction), 0.0)[()]


def binomial_pmf(counts: Ints, n: int | Ints, rate: float) -> Floats:
    """Return the binomial probabilities of `counts` successes in n trials. Importing `scipy.stats` would be slow."""
    from scipy.special import gammaln, xlog1py, xlogy

    # `rate` is the probability of success in a trial. Logarithms prevent an overflow of the binomial coefficients.
    logs = gammaln(n + 1) - gammaln(counts + 1) - gammaln(n - counts + 1)
    return np.asarray(np.exp(logs + xlogy(counts, rate) + xlog1py(n - counts, -rate)), dtype=np.float64)


def wilson_interval(count: float, n: float, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Wilson's score interval of a proportion, without continuity correction; None if n is zero.

    E. B. Wilson, Journal of the American Statistical Association 22 (1927) 209-212; in the form of R. G. Newcombe,
    Statistics in Medicine 17 (1998) 857-872, method 3. `count` may also be the sum of n values in [0, 1]; the interval
    is then conservative: among variables in [0, 1] with a given mean, a Bernoulli variable has the largest variance.

    >>> interval = wilson_interval(167, 200)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.777, 0.88)
    """
    if n == 0:
        return None
    from scipy.special import ndtri  # loads slowly

    p, z = count / n, ndtri(0.5 + 0.5 * confidence)  # z is the half-width of a normal interval, in standard errors
    scale = 2 * (n + z**2)
    middle, half = (2 * n * p + z**2) / scale, z / scale * sqrt(max(0.0, 4 * n * p * (1 - p)) + z**2)
    # Rounding must not move an end across the proportion p, or away from 0 or 1.
    low = 0.0 if count == 0 else min(p, float(middle - half))
    high = 1.0 if count == n else max(p, float(middle + half))
    return Interval(low, high)


def exact_interval(count: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Clopper and Pearson's interval of a proportion; None if n is zero.

    C. J. Clopper and E. S. Pearson, Biometrika 26 (1934) 404-413. Each end misses the true proportion with probability
    at most (1 - confidence)/2. The interval also holds for the mean proportion of independent episodes of different
    tasks (W. Hoeffding, Annals of Mathematical Statistics 27 (1956) 713-721).

    >>> interval = exact_interval(16, 17)
    >>> round(interval.low, 4), round(interval.high, 4)
    (0.7131, 0.9985)
    """
    if n == 0:
        return None
    from scipy.special import betaincinv  # loads slowly

    tail = (1 - confidence) / 2
    low = float(betaincinv(count, n - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return Interval(low, high)


def bounded_mean_interval(
    values: Floats, confidence: float = CONFIDENCE, weights: Floats | None = None
) -> Interval | None:
    """Return Gaffke's interval of the mean of values in [0, 1], [n]; None if n is zero.

    N. Gaffke, Mathematical Methods of Statistics 14 (2005) 437-467; E. Learned-Miller and P. S. Thomas, arXiv
    1905.06208. The upper end is the quantile (1 + confidence)/2 of sum D_i x_i + D_0, with D uniform on the simplex of
    n + 1 weights; the lower end is the quantile (1 - confidence)/2 of sum D_i x_i. For zeros and ones the interval is
    Clopper and Pearson's. It is a conjecture that the interval covers the mean of every distribution in [0, 1];
    `benchmarks/interval_coverage.py` measures the coverage.

    `weights` [n] sum to 1 (None = equal weights) and are for clusters of different sizes, such as starts. For the upper
    end, each value is multiplied by n times its weight, and the products are bounded by n times the largest weight. For
    the lower end, the same is done with 1 - value.

    >>> import numpy as np
    >>> interval = bounded_mean_interval(np.zeros(3))
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.0, 0.708)
    """
    n = len(values)
    if n == 0:
        return None
    scales = np.ones(n) if weights is None else n * weights
    largest_scale, level = float(scales.max()), (1 + confidence) / 2  # `level` is the upper end's quantile
    upper_ends = []
    # The upper end for the values 1 - x is 1 minus the lower end for the values x.
    for side in (1 - values, values):
        points, counts = _merge_values(scales / largest_scale * side)  # distinct values from 0 to 1, and their counts
        upper_end = largest_scale * _solve_one_row(tuple(points.tolist()), tuple(counts.tolist()), level)
        upper_ends.append(min(1.0, round(upper_end, _DIGITS)))
    return Interval(round(1 - upper_ends[0], _DIGITS), upper_ends[1])


def bounded_mean_ends(
    rows: Floats, confidence: Reals = CONFIDENCE, weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return both ends, [R] each, of the `bounded_mean_interval` of each row of values [R, n]. NaN values are ignored.

    `weights` [R, n] sum to 1 in each row; `confidence` may have a value for each row, [R].
    """
    # `levels` are the quantiles at the upper ends. `places` are the indices of the rows' results.
    levels, places = (1 + np.asarray(confidence)) / 2, np.arange(len(rows))
    if weights is None:  # equal rows have equal results, so each distinct row is computed once
        rows, levels, places = _distinct_rows(rows, levels)
        scales = np.ones_like(rows)
    else:
        scales = (~np.isnan(rows)).sum(axis=1, keepdims=True) * weights
    largest_scales = np.fmax.reduce(scales, axis=1, keepdims=True)
    upper_ends = []
    # The upper end for the values 1 - x is 1 minus the lower end for the values x.
    for side in (1 - rows, rows):
        points, counts = _merge_rows(scales / largest_scales * side)
        upper_end = largest_scales[:, 0] * _solve_spacings(points, counts, levels)
        upper_ends.append(np.minimum(1.0, np.round(upper_end, _DIGITS))[places])
    return np.round(1 - upper_ends[0], _DIGITS), upper_ends[1]


def mean_p_values(rows: Floats, mean: float) -> Floats:
    """Test for each row of values in [0, 1], [R, n], whether the values have the mean `mean`. Return the two-sided
    p-values: 1 minus the confidence at which `bounded_mean_interval` ends at `mean`. NaN values are ignored.
    """
    rows, means, places = _distinct_rows(rows, np.asarray(mean))  # `places` maps rows to distinct rows
    # Each end of the interval is a quantile of a random sum.
    # `p_below` is the probability that the lower end's sum is below `mean`.
    # `p_above` is the probability that the upper end's sum is above `mean`.
    # The smaller probability is half of the p-value.
    p_below = 1 - _spacing_cdf(*_merge_rows(1 - rows), 1 - means)
    p_above = 1 - _spacing_cdf(*_merge_rows(rows), means)
    return np.asarray(np.minimum(1.0, 2 * np.maximum(0.0, np.minimum(p_below, p_above))))[places]


def _distinct_rows(rows: Floats, parameters: Floats) -> tuple[Floats, Floats, Ints]:
    """Pair sorted rows with their parameters. Return the `K` distinct pairs, [K, n] and [K], and each row's index among
    the pairs. With many policies, many rows are equal, which saves time. `parameters` is one number or [R].
    """
    keys = np.column_stack([np.sort(rows, axis=1), np.broadcast_to(parameters, len(rows))])  # [R, n + 1]
    index_of_key: dict[bytes, int] = {}
    places = [index_of_key.setdefault(key.tobytes(), len(index_of_key)) for key in keys]
    firsts = np.unique(places, return_index=True)[1]  # index of the first row of each distinct pair, [K]
    return keys[firsts, :-1], keys[firsts, -1], np.array(places, dtype=np.int64)


def _merge_rows(rows: Floats) -> tuple[Floats, Floats]:
    """Return points and their counts, [R, M] each. After a first point 1, the row's values follow, sorted by count."""
    # `rows` [R, n] has values from 0 to 1; NaN values are left out. The first point, 1, is an added value with count 1.
    # Values of 1 form a second point at 1. Rows with fewer distinct values are filled with points of count 0.
    # In this order, columns at the end contain only values that occur once. `_integrate` is faster for such columns.
    merged = [_merge_values(row[~np.isnan(row)]) for row in rows]
    points = np.ones((len(rows), 1 + max((len(values) for values, _ in merged), default=0)))
    counts = np.zeros_like(points)
    counts[:, 0] = 1.0
    for k, (values, value_counts) in enumerate(merged):
        order = np.argsort(-value_counts, kind="stable")
        points[k, 1 : 1 + len(values)], counts[k, 1 : 1 + len(values)] = values[order], value_counts[order]
    return points, counts


@lru_cache(maxsize=4096)  # many specifications share the same few severities
def _solve_one_row(values: tuple[float, ...], value_counts: tuple[float, ...], level: float) -> float:
    # Returns the result of `_solve_spacings` for one row.
    # The result is the quantile `level` of a random weighted mean of the values and an added value of 1.
    # The arguments are tuples, so that the results can be cached.
    points, counts = np.array([[1.0, *values]]), np.array([[1.0, *value_counts]])
    return float(_solve_spacings(points, counts, level)[0])


def _solve_spacings(points: Floats, counts: Floats, level: Reals) -> Floats:
    """Find the means at which `_spacing_cdf` is `level`, by secant steps. The error is at most about 1e-11."""
    # `points` and `counts`, [R, M] each, are those of `_merge_rows`.
    # The random sum D_i x_i has weights D_i that are uniform on the simplex.
    # Returns for each row the sum's quantile `level`, [R].
    from scipy.special import betaincinv, ndtri

    # `spreads` are the standard deviations of sum D_i x_i. Probabilities are compared as normal quantiles.
    totals = counts.sum(axis=1)
    goals = np.broadcast_to(ndtri(level), len(points))  # the normal quantile of each row's `level`, [R]
    means = (counts * points).sum(axis=1) / totals
    spreads = np.sqrt((counts * (points - means[:, None]) ** 2).sum(axis=1) / totals / (totals + 1))
    low, high = np.where(counts > 0, points, 1.0).min(axis=1), np.ones(len(points))  # bounds of the solution
    # The first estimate is the quantile of a normal distribution, but not too close to `low` or `high`.
    solutions: Floats = np.clip(means + goals * spreads, low + (1 - low) / 64, 1 - (1 - low) / 64)
    # If only one distinct value is below 1, the total weight of the values 1 has a beta distribution.
    has_one_below = ((points < 1) & (counts > 0)).sum(axis=1) == 1
    count_of_ones = (counts * (points == 1)).sum(axis=1)
    beta_quantiles = betaincinv(count_of_ones, totals - count_of_ones, level)
    solutions[has_one_below] = (low + (1 - low) * beta_quantiles)[has_one_below]
    previous, previous_value = solutions - spreads, np.full(len(points), np.nan)
    rows = np.flatnonzero((low < 1.0) & ~has_one_below)  # the rows without a solution so far
    while len(rows):
        probabilities = np.clip(_spacing_cdf(points[rows], counts[rows], solutions[rows]), 1e-15, 1 - 1e-15)
        value, point = ndtri(probabilities) - goals[rows], solutions[rows]
        low[rows], high[rows] = np.where(value < 0, point, low[rows]), np.where(value < 0, high[rows], point)
        # The first step assumes that the normal quantile rises by 1 within one spread.
        rises = np.where(np.isnan(previous_value[rows]), 1.0, value - previous_value[rows])
        # If the rise is 0, a step of 2 is tried. It leads outside of [low, high], so the interval is bisected instead.
        change = point - previous[rows]
        next_point = point - np.divide(value * change, rises, where=rises != 0, out=np.full(len(rows), 2.0))
        is_inside = (next_point >= low[rows]) & (next_point <= high[rows])
        solutions[rows] = np.where(is_inside, next_point, (low[rows] + high[rows]) / 2)
        previous[rows], previous_value[rows] = point, value
        rows = rows[np.abs(solutions[rows] - point) > 1e-11]
    return solutions


def _merge_values(values: Floats) -> tuple[Floats, Floats]:
    # Returns the distinct values, sorted, and their counts.
    # If there are more than `_MAX_VALUES` distinct values, neighboring values are replaced by their mean.
    points, numbers = np.unique(values, return_counts=True)
    counts = numbers.astype(np.float64)
    if len(points) > _MAX_VALUES:  # average groups of neighboring values
        group_starts = np.linspace(0, len(points), _MAX_VALUES, endpoint=False).astype(np.int64)
        merged_counts = np.add.reduceat(counts, group_starts)
        points, counts = np.add.reduceat(points * counts, group_starts) / merged_counts, merged_counts
    return points, counts


def _spacing_cdf(points: Floats, counts: Floats, means: Floats) -> Floats:
    """Return P(sum D_i x_i <= mean) of each row, with D uniform on the simplex; 1 for a mean of 1 or more.

    The values x are `points` [R, M], of which the first is 1; each value occurs as often as `counts` says. With
    independent exponential E_i and Q = sum E_i (x_i - mean), the probability is 1 - P(Q > 0). The moment generating
    function of Q is exp K(s) = prod (1 - s (x_i - mean))^-1, and P(Q > 0) is the integral of exp(K(s)) / (2 pi i s)
    along a vertical line (R. Rice, Advances in Applied Probability 12 (1980) 475-490).
    """
    probabilities = (means >= 1).astype(np.float64)
    # If a row's mean is not between the smallest and the largest value, the probability is 0 or 1.
    inner_rows = np.flatnonzero((means < 1) & (means > np.where(counts > 0, points, 1.0).min(axis=1)))
    points, counts = points[inner_rows], counts[inner_rows]
    centered = points - means[inner_rows, None]  # x_i - mean
    # The vertical line of the integral passes through the saddle s > 0 that minimizes exp(K(s)) / s on the real axis.
    # `rates` are (x_i - mean) / (1 - s (x_i - mean)). `widths` are the scales on which the integrand falls.
    saddles = _find_saddles(centered, counts)
    rates = centered / (1 - saddles[:, None] * centered)
    widths = 1 / np.sqrt((counts * rates**2).sum(axis=1) + 1 / saddles**2)
    # `heights` are the logarithms of the integrand at the saddles.
    # `falls` are the decreases of the logarithm from the saddle to each cut.
    heights = -(counts * np.log1p(-saddles[:, None] * centered)).sum(axis=1)
    cut_points = np.sinh(_LINE[list(_CUTS[:-1])]) * widths[:, None]
    falls = 0.5 * (counts[:, None] @ np.log1p((rates[:, :, None] * cut_points[:, None]) ** 2))[:, 0]
    # Index in `_CUTS` of the point at which each row's integral ends. Rows with the same end are integrated together.
    cut_indices = (falls < _FALL).sum(axis=1)
    for cut in np.unique(cut_indices):
        step = (5, 3, 3, 3, 1)[cut]  # use every fifth, every third, or every point of `_LINE`
        line = _LINE[: _CUTS[cut] : step]
        rows = np.flatnonzero(cut_indices == cut)
        for chunk in np.array_split(rows, len(rows) // _ROWS + 1):
            tails = _integrate(rates[chunk], counts[chunk], saddles[chunk], widths[chunk], heights[chunk], line)
            probabilities[inner_rows[chunk]] = 1 - tails
    return probabilities


def _find_saddles(centered: Floats, counts: Floats) -> Floats:
    """Return the s that minimizes K(s) - log s, by damped Newton steps, because this function is self-concordant."""
    # K(s) = -sum counts_i log(1 - s c_i) with the centered values c, [R, M], of which the first is the largest.
    # Returns one s for each row, [R]. Each s is between 0 and 1 / c_0.
    saddles: Floats = np.minimum(0.5 / centered[:, 0], 1 / np.sqrt((counts * centered**2).sum(axis=1)))
    for _ in range(50):
        rates = centered / (1 - saddles[:, None] * centered)
        steps = 1 / saddles - (counts * rates).sum(axis=1)
        curvatures = 1 / saddles**2 + (counts * rates**2).sum(axis=1)
        decrements = np.abs(steps) / np.sqrt(curvatures)  # the Newton decrement, which is small near the minimum
        saddles = saddles + steps / curvatures / (1 + decrements)
        if decrements.max(initial=0.0) < 0.01:
            break
    return saddles


def _integrate(rates: Floats, counts: Floats, saddles: Floats, widths: Floats, heights: Floats, line: Floats) -> Floats:
    """Return P(Q > 0) of each row: the integral in `_spacing_cdf` along the vertical line through the row's saddle."""
    # `rates` and `counts` are [R, M].
    # The arrays `saddles`, `widths` and `heights` (logarithms of the integrand at the saddle) are [R].
    # `line` are the evenly spaced points t of the integral; the imaginary part of s is width * sinh(t).
    ordinates = widths[:, None] * np.sinh(line)
    # Factors of values that occur once are multiplied as complex numbers, without logarithms and arctangents.
    is_single = (counts <= 1).all(axis=0) & (len(rates) > _FEW_ROWS)
    # All other factors are represented by the logarithm of the product's magnitude and by the product's angle.
    scaled, repeats = rates[:, ~is_single, None] * ordinates[:, None], counts[:, None, ~is_single]
    logs = heights[:, None] - 0.5 * (repeats @ np.log1p(scaled**2))[:, 0]
    angles = (repeats @ np.arctan(scaled))[:, 0]
    # Divide the product by s = saddle + i ordinate; cosh(t) is the derivative of sinh(t).
    scale = np.exp(logs) * (widths[:, None] * np.cosh(line)) / (saddles[:, None] ** 2 + ordinates**2)
    real, imaginary = np.cos(angles), np.sin(angles)
    real, imaginary = (
        scale * (real * saddles[:, None] + imaginary * ordinates),
        scale * (imaginary * saddles[:, None] - real * ordinates),
    )
    for rate in (rates * counts)[:, is_single].T[:, :, None]:  # (real + i imaginary) / (1 - i factor)
        factor = rate * ordinates
        inverse_norm = 1 / (1 + factor * factor)
        real, imaginary = (real - factor * imaginary) * inverse_norm, (imaginary + factor * real) * inverse_norm
    real[:, 0] /= 2  # trapezoidal rule for the upper half; the lower half is its mirror image
    return np.asarray(real.sum(axis=1) * line[1] / pi)


def mean_rate_interval(counts: Sequence[int], sizes: Sequence[int], confidence: float = CONFIDENCE) -> Interval | None:
    """Return an interval of the unweighted mean of several rates, such as those of suites; None if a size is 0.

    Episodes are independent. A single rate has Wilson's interval. With equal `sizes`, the interval is Clopper and
    Pearson's for the sum of `counts`; it also holds for rates that differ (Hoeffding 1956). With unequal `sizes`, it is
    the `bounded_mean_interval` of the episodes, weighted so that each rate has the same weight.
    """
    if len(sizes) == 1:
        return wilson_interval(counts[0], sizes[0], confidence)
    if not sizes or 0 in sizes:
        return None
    if len(set(sizes)) == 1:
        return exact_interval(sum(counts), sum(sizes), confidence)
    values = np.concatenate([np.repeat([1.0, 0.0], [k, n - k]) for k, n in zip(counts, sizes, strict=True)])
    weights = np.concatenate([np.full(n, 1 / (n * len(sizes))) for n in sizes])
    return bounded_mean_interval(values, confidence, weights)


def median_interval(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the exact interval of the median of values [n]. Both ends are in `values`. Return None if n is too small.

    E. L. Lehmann and H. J. M. D'Abrera, Nonparametrics (1975), section 4.5. 95 % confidence needs at least six values.
    """
    from scipy.special import bdtr

    n, tail = len(values), (1 - confidence) / 2
    outside_count = int((bdtr(np.arange(n), n, 0.5) <= tail).sum())  # number of values beyond each end, plus 1
    if outside_count == 0:
        return None
    ordered = np.sort(values)
    return Interval(float(ordered[outside_count - 1]), float(ordered[n - outside_count]))


def geometric_interval(trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the exact interval of a success rate, given the number of trials up to and including the first success.

    The number of trials has a geometric distribution. If the true rate is the upper end, at least `trials` are needed
    with probability (1 - confidence)/2. If it is the lower end, at most `trials` are needed with the same probability.
    """
    tail = (1 - confidence) / 2
    low = 1 - (1 - tail) ** (1 / trials)
    high = 1 - tail ** (1 / (trials - 1)) if trials > 1 else 1.0
    return Interval(low, high)


def combine_intervals(estimates: Sequence[tuple[float, Interval]], weights: Sequence[float]) -> Interval:
    """Return an interval of a weighted sum of independent estimates, from the estimates and their intervals (MOVER).

    With Wilson's intervals and weights 1 and -1, this is Newcombe's interval. R. G. Newcombe, Statistics in Medicine
    17 (1998) 873-890, method 10; G. Y. Zou and A. Donner, Statistics in Medicine 27 (2008) 1693-1702.

    >>> rates = [(0.835, wilson_interval(167, 200)), (0.695, wilson_interval(139, 200))]
    >>> interval = combine_intervals(rates, (0.5, 0.5))
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.721, 0.802)
    """
    # A term is a weighted estimate with both ends of its weighted interval.
    # The ends are sorted, because a negative weight swaps them.
    terms = [(w * p, *sorted((w * ends.low, w * ends.high))) for (p, ends), w in zip(estimates, weights, strict=True)]
    total = sum(term for term, _, _ in terms)
    below = sqrt(sum((term - low) ** 2 for term, low, _ in terms))
    above = sqrt(sum((term - high) ** 2 for term, _, high in terms))
    return Interval(total - below, total + above)


def tango_interval(
    only_first: Counts, only_second: Counts, n: Counts, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return Tango's score interval of the difference of two proportions over the same n pairs; None if n is zero.

    T. Tango, Statistics in Medicine 17 (1998) 891-908: the interval contains all differences that a score test does not
    reject. The score uses the maximum-likelihood estimate of the probability that only the second succeeds. If no pair
    differs, the interval is ± z²/(n + z²). `only_first` and `only_second` are the numbers of pairs in which only the
    first or only the second member succeeds. If these counts are arrays [R], the ends are arrays, too.
    """
    if not np.all(n):
        return None
    z = normal_quantile(confidence)
    low = _tango_lower_end(only_first, only_second, n, z)
    high = -_tango_lower_end(only_second, only_first, n, z) + 0.0  # turns -0.0 into 0.0
    return Interval(low, high)


def _tango_lower_end(only_first: Counts, only_second: Counts, n: Counts, z: float) -> Any:
    # Returns the lower end of `tango_interval`: the difference at which the score is z, by bisection.
    # The score falls as the difference rises.
    # In `only_first` of n pairs, only the first member succeeds; in `only_second`, only the second member.
    low: Any = -1.0
    high: Any = (only_first - only_second) / n
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_above = _tango_score(only_first, only_second, n, middle) > z
        low, high = np.where(is_above, middle, low), np.where(is_above, high, middle)
    return ((low + high) / 2)[()]


def _tango_score(only_first: Counts, only_second: Counts, n: Counts, difference: Any) -> Any:
    # Returns the score of the hypothesis that the proportions differ by `difference`.
    # The score is the observed difference minus `difference`, divided by the standard deviation.
    # The result is 0 for 0/0, and infinity with the sign of x for x/0.
    excess = only_first - only_second - n * difference
    # `likeliest_rate` is the maximum-likelihood probability that only the second succeeds, the root of a quadratic.
    linear = (2 * n - only_first + only_second) * difference - only_first - only_second
    likeliest_rate = (np.sqrt(linear**2 + 8 * n * only_second * difference * (1 - difference)) - linear) / (4 * n)
    variance = n * (2 * likeliest_rate + difference * (1 - difference))
    with np.errstate(divide="ignore", invalid="ignore"):
        score_without_variance = np.where(excess == 0, 0.0, np.copysign(np.inf, excess))
        return np.where(variance > 0, excess / np.sqrt(np.maximum(variance, 0.0)), score_without_variance)


RESAMPLES = 10_000
_CHUNK = 1 << 15  # number of indices drawn at a time; they fit into the processor's cache


def bootstrap_means(values: Floats, generator: np.random.Generator) -> list[Interval | None]:
    """Return the 95 % bootstrap interval of the mean of each row of `values` [M, n], or None for a row of NaN. A column
    is an episode, and all rows share the resamples. The mean of a resample ignores NaN values.
    """
    rows, n = values.shape  # numbers of rows and of episodes
    if n == 0:
        return [None] * rows
    is_counted = ~np.isnan(values)
    filled = np.where(is_counted, values, 0.0)  # NaN adds 0 to sums
    # Resample only rows that contain different values or NaN. In any other row, all resamples have the same mean.
    has_gaps = is_counted.any(axis=1) & ~is_counted.all(axis=1)
    varying_rows = np.flatnonzero((np.ptp(filled, axis=1) > 0) | has_gaps)
    means = _resample_means(filled[varying_rows], is_counted[varying_rows], generator)
    # In any other row, all values are equal, so both ends are this value. A row of NaN has no interval.
    intervals: list[Interval | None] = [
        Interval(float(row[0]), float(row[0])) if row_counted.any() else None
        for row, row_counted in zip(filled, is_counted, strict=True)
    ]
    for k, resampled_means in zip(varying_rows.tolist(), means, strict=True):
        intervals[k] = percentile_interval(resampled_means)
    return intervals


def _resample_means(filled: Floats, is_counted: Bools, generator: np.random.Generator) -> Floats:
    # Returns the mean of each row's counted values in each resample, [M, RESAMPLES]; NaN if there is none.
    # `filled` [M, n] has 0 where `is_counted` [M, n] is false. A resample is n random episodes with replacement.
    from scipy.sparse import csr_array  # loads slowly

    rows, n = filled.shape
    has_missing = ~is_counted.all(axis=1)
    # The table's columns are the values of all rows, then `is_counted` for each row with missing values.
    table = np.ascontiguousarray(np.vstack([filled, is_counted[has_missing]]).T)
    sums = np.empty((RESAMPLES, table.shape[1]))
    per_chunk = max(1, _CHUNK // n)  # number of resamples that are drawn at a time
    ones, row_ends = np.ones(per_chunk * n), np.arange(0, per_chunk * n + 1, n, dtype=np.int32)
    for start in range(0, RESAMPLES, per_chunk):
        samples = min(per_chunk, RESAMPLES - start)
        indices = generator.integers(0, n, size=samples * n, dtype=np.int32)
        # A row of the sparse matrix counts how often a resample contains each episode.
        sums[start : start + samples] = (
            csr_array((ones[: samples * n], indices, row_ends[: samples + 1]), shape=(samples, n)) @ table
        )
    # Number of counted values of each row in each resample.
    value_counts = np.full((rows, RESAMPLES), float(n))
    value_counts[has_missing] = sums[:, rows:].T
    with np.errstate(invalid="ignore"):
        means: Floats = sums[:, :rows].T / value_counts
    return means


def percentile_interval(means: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the percentile interval of resampled means, ignoring NaN; None if all means are NaN."""
    defined = means[~np.isnan(means)]
    if len(defined) == 0:
        return None
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    # A resample without values has the mean NaN.
    return Interval(float(low), float(high), skipped=len(means) - len(defined))


# Sample sizes of intervals


POWER = 0.8  # probability that a suggested number of episodes leads to a verdict


def check_level(power: float, confidence: float) -> None:
    """Raise `SafevlaError` for a power or a confidence that is not between 0 and 1."""
    for name, share in (("power", power), ("confidence", confidence)):
        if not 0 < share < 1:
            raise SafevlaError(f"a {name} of {share:g} is impossible", remedy="Use a fraction between 0 and 1.")


def rate_sample_size(
    rate: float, limit: float, power: float = POWER, confidence: float = CONFIDENCE, most: int = 1_000_000
) -> int | None:
    """Return the smallest n for which `exact_interval` excludes `limit` with probability `power` at a true `rate`.

    An n above 800 may be 0.5 % too large. For a slightly larger n, the probability may be just below `power`. Returns
    None if `rate` is the limit, or if n exceeds about `most`. Raises `SafevlaError` for a number not from 0 to 1.
    """
    for name, share in (("rate", rate), ("limit", limit)):
        if not 0 <= share <= 1:
            raise SafevlaError(f"{name} is {share:g}, but it must be from 0 to 1", remedy="Use a fraction from 0 to 1.")
    check_level(power, confidence)
    if rate == limit:
        return None
    approximate_n = _approximate_size(rate, limit, power, confidence)
    if approximate_n > most:
        return None
    # The search starts far below the approximate size, which may be too large.
    first_n, step = max(1, approximate_n // 2 - 20), max(1, approximate_n // 400)
    candidates = count(first_n, step)  # a large size is searched in steps of 0.25 %, to save time
    return next(n for n in candidates if rate_power(n, rate, limit, confidence) >= power - 1e-12)


def rate_power(n: int, rate: float, limit: float, confidence: float = CONFIDENCE) -> float:
    """Return the probability that the exact interval of n episodes lies on the same side of `limit` as the rate."""
    from scipy.special import bdtrc

    tail = (1 - confidence) / 2
    if rate < limit:  # count failures instead of successes
        return rate_power(n, 1 - rate, 1 - limit, confidence)
    # X is the number of successes in n episodes. `bdtrc` gives P(X > k).
    # The interval lies above `limit` if X is at least `least`.
    upper = bdtrc(np.arange(n), n, limit)  # P(X > k) for k = 0, …, n - 1, if the true rate is the limit
    least = int((upper > tail).sum()) + 1  # P(X >= least) <= tail if the true rate is the limit
    return float(bdtrc(least - 1, n, rate)) if least <= n else 0.0


def _approximate_size(rate: float, limit: float, power: float, confidence: float) -> int:
    # Returns the number of episodes for which an interval excludes `limit` with probability `power` at the true `rate`.
    # The number is a normal approximation.
    z_confidence, z_power = normal_quantile(confidence), NormalDist().inv_cdf(power)
    deviation = z_confidence * sqrt(limit * (1 - limit)) + z_power * sqrt(rate * (1 - rate))
    ratio = min(deviation / abs(rate - limit), 1e9)  # `ceil` raises an error for infinity
    return ceil(ratio**2) + 1


# Confidence sequences, which stay valid even if the data are examined many times


_NODES = 512  # number of quantiles that represent the prior
_EDGE = 1e-12  # smallest distance of a supposed mean from 0 and from 1


def sequential_interval(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of the mean of values [n] in [0, 1] by a confidence sequence; None if n is zero.

    With probability `confidence`, the intervals after 1, 2, 3, … values all contain the mean. If the mean is m, then
    for any q in (0, 1) the factor x q / m + (1 - x) (1 - q) / (1 - m) of a value x has the mean 1. The product of the
    factors, averaged over Jeffreys' prior of q, is a martingale that starts at 1 and reaches 1/α at any time with
    probability at most α (Ville). The interval contains every m for which the product is below 1/α. Sources: for
    zeros and ones, H. Robbins, Annals of Mathematical Statistics 41 (1970) 1397-1409; for graded values, I.
    Waudby-Smith and A. Ramdas, Journal of the Royal Statistical Society B 86 (2024) 1-27. Tasks may have different
    means if the data are only examined after whole rounds, with equally many episodes of every task: the product of a
    round then has a mean of at most 1. The martingale is log-convex in m, and at most 1 if m is the mean of the values.
    Therefore, the set of all m with a product below 1/α is an interval around the mean of the values.

    >>> import numpy as np
    >>> interval = sequential_interval(np.ones(40))
    >>> round(interval.low, 2), round(interval.high, 2)
    (0.87, 1.0)
    """
    if len(values) == 0:
        return None
    points, counts = np.unique(values, return_counts=True)
    mean, log_limit = float(counts @ points) / len(values), -log(1 - confidence)

    def excess(supposed_mean: float) -> float:
        # The supposed mean is rejected if the result is positive. The result is zero at each end of the interval.
        return _log_wealth(points, counts, supposed_mean) - log_limit

    inner_mean = min(max(mean, _EDGE), 1 - _EDGE)  # `_log_wealth` divides by the mean and by 1 minus the mean
    low = 0.0 if mean <= _EDGE else _find_interval_end(excess, _EDGE, inner_mean)
    high = 1.0 if mean >= 1 - _EDGE else _find_interval_end(excess, 1 - _EDGE, inner_mean)
    return Interval(round(float(low), _DIGITS), round(float(high), _DIGITS))


def _log_wealth(points: Floats, counts: Ints, supposed_mean: float) -> float:
    # Returns the logarithm of the averaged product that `sequential_interval` describes, for m = `supposed_mean`.
    # `points` are the distinct values from 0 to 1, and `counts` are the numbers of their occurrences.
    # The product is that of the factors x q / m + (1 - x) (1 - q) / (1 - m) of all values x.
    # The product is averaged over `rates`, the quantiles q.
    rates = _prior_nodes()
    factors = np.outer(points, rates / supposed_mean) + np.outer(1 - points, (1 - rates) / (1 - supposed_mean))
    logs = counts @ np.log(factors)
    greatest = float(logs.max())  # subtracting the maximum prevents an overflow of exp
    return greatest + log(float(np.exp(logs - greatest).mean()))


@lru_cache(maxsize=1)
def _prior_nodes() -> Floats:
    # Returns `_NODES` quantiles of Jeffreys' prior of a rate, Beta(1/2, 1/2), at evenly spaced probabilities.
    nodes: Floats = np.sin(np.pi * (np.arange(_NODES) + 0.5) / (2 * _NODES)) ** 2
    nodes.flags.writeable = False
    return nodes


def _find_interval_end(excess: Callable[[float], float], outer: float, mean: float) -> float:
    # Returns the zero of `excess` between `outer` and `mean`; `outer` if the interval reaches `outer`.
    # `excess` is positive for means outside of the interval.
    return outer if excess(outer) <= 0 else find_root(excess, outer, mean)


Steps = Sequence[Sequence[int]]  # the positive step sizes of each round; each step adds its size or 0 to the sum


@dataclass(frozen=True, slots=True)
class SequentialLook:
    """An interim look at the sum `gained`, whose maximum is `total`. A sum <= `low` or >= `high` ends the test."""

    gained: int
    total: int
    low: int
    high: int
    side: int
    """1 if the sum was too large for the rate at this look or before, -1 if too small, 0 if the test continues."""


def sequential_look(
    steps: Steps, gained: Sequence[int], rate: float, shares: Sequence[float], confidence: float = CONFIDENCE
) -> SequentialLook:
    """Return the last look of a sequential test of a rate; each of the planned looks may end the test.

    After a share s of the planned steps, each side of the test may have spent half of the error times s² (K. Kim
    and D. L. DeMets, Biometrika 74 (1987) 149-154). The limits are as tight as this error allows. They follow from the
    probability of reaching each sum without an end at an earlier look. The probability is computed recursively, so that
    the error is exact for any steps.

    `steps` are the sizes of each round's steps so far, and `gained` [K] sums those of the successful steps. `rate` is
    the probability of success of each step under the hypothesis. `shares` [K or more] are the shares of the planned
    steps that are made before each look; they rise to 1. 1 - `confidence` is the error of both sides over all looks.
    """
    # A step adds its size to the sum if it succeeds.
    # `side` is 1 if a sum was too large for `rate`, -1 if too small, and 0 while the test continues.
    # The initial values are those before the first round.
    look = SequentialLook(gained=0, total=0, low=-1, high=1, side=0)
    for (low, high), sizes, gain in zip(sum_limits(steps, rate, shares, confidence), steps, gained, strict=True):
        total_gained = look.gained + gain
        new_side = int(total_gained >= high) - int(total_gained <= low)
        side = look.side or new_side  # keeps the decision of the look at which the test ended
        look = SequentialLook(total_gained, look.total + sum(sizes), low, high, side)
    return look


def sum_limits(
    steps: Steps, rate: float, shares: Sequence[float], confidence: float = CONFIDENCE
) -> Iterator[tuple[int, int]]:
    """Yield for each round the largest sum that is too small for `rate`, and the smallest sum that is too large for it.

    If no sum is too small, the first value is -1. If no sum is too large, the second value is 1 + the largest possible
    sum. `sequential_look` describes the arguments.
    """
    # `chances` are the probabilities of reaching each sum without an end of the test at an earlier look.
    # `spent` is the error probability of the looks so far, for sums that are too small and for sums that are too large.
    chances, spent = np.ones(1), np.zeros(2)
    for sizes, share in zip(steps, shares, strict=False):  # `shares` may also cover later looks
        for size, repeats in sorted(Counter(sizes).items()):  # add the successful steps of this round to the sums
            chances = np.convolve(chances, _scaled_binomial_pmf(size, repeats, rate))
        tail_errors = np.cumsum([chances, chances[::-1]], axis=1)  # P(the k + 1 smallest or largest sums)
        # The error probability that this look may still spend on each side; 1e-15 allows for rounding.
        budget = (1 - confidence) / 2 * share**2 - spent + 1e-15
        # How many of the smallest and of the largest sums end the test at this look.
        below_count, above_count = (tail_errors <= budget[:, None]).sum(axis=1).tolist()
        yield below_count - 1, len(chances) - above_count
        spent += [chances[:below_count].sum(), chances[len(chances) - above_count :].sum()]
        chances[:below_count] = chances[len(chances) - above_count :] = 0.0  # these sums end the test


@lru_cache(maxsize=1024)
def _scaled_binomial_pmf(size: int, count: int, rate: float) -> Floats:
    # Returns the probability of each sum from 0 to size·count.
    # Each of `count` steps succeeds with the probability `rate`, and a success adds `size` to the sum.
    chances = np.zeros(size * count + 1)
    chances[::size] = binomial_pmf(np.arange(count + 1), count, rate)
    chances.flags.writeable = False
    return chances
