"""Intervals of proportions, of means of values between 0 and 1, differences; the percentile bootstrap; sample sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from math import ceil, copysign, inf, log, pi, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import SafevlaError

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
_HALVINGS = 100
_MOST_VALUES = 256
"""Distinct values of which the interval of a mean is computed; of more, neighbours are replaced by their mean."""
_DIGITS = 9
"""Ends are rounded to these, so that they do not depend on how a processor adds."""
_LINE = np.arange(0.0, 9.0, 0.02)


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval; `skipped` counts resamples in which a conditional mean had nothing to average."""

    low: float
    high: float
    skipped: int = 0


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Return the half-width of a two-sided normal interval in standard errors: 1.96 for 95 %."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def is_significant(p_value: float, confidence: float = CONFIDENCE) -> bool:
    """Return whether a p-value is at most 1 - confidence, but for rounding."""
    return p_value <= 1 - confidence + 1e-12


def reconcile_interval(
    interval: Interval | None, estimate: float, p_value: float, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the interval of a difference so that it excludes 0 exactly if its test is significant; None for None.

    Score intervals and mid-p-values are two approximations that disagree on a few outcomes (pairs that split 4:0,
    15:6, 18:8 or 21:10); the test decides. If it is not significant, the interval is extended to hold 0. If it is, an
    interval around 0 ends there, on the side where the estimate is not: that end is open.
    """
    if interval is None:
        return None
    low, high = interval.low, interval.high
    if not is_significant(p_value, confidence):
        return replace(interval, low=min(low, 0.0), high=max(high, 0.0))
    if low <= 0 <= high:
        return replace(interval, low=0.0) if estimate >= 0 else replace(interval, high=0.0)
    return interval


def wilson_interval(count: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Wilson's score interval of a proportion, without continuity correction; None if n is zero.

    E. B. Wilson, Journal of the American Statistical Association 22 (1927) 209-212; as R. G. Newcombe writes it,
    Statistics in Medicine 17 (1998) 857-872, method 3.

    >>> interval = wilson_interval(167, 200)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.777, 0.88)
    """
    if n == 0:
        return None
    from scipy.special import ndtri  # takes longer to import than most of this package

    p, z = count / n, ndtri(0.5 + 0.5 * confidence)
    scale = 2 * (n + z**2)
    middle, half = (2 * n * p + z**2) / scale, z / scale * sqrt(4 * n * p * (1 - p) + z**2)
    return Interval(0.0 if count == 0 else float(middle - half), 1.0 if count == n else float(middle + half))


def unit_mean_interval(total: float, n: float, confidence: float = CONFIDENCE) -> Interval | None:
    """Return a conservative interval of the mean of n values in [0, 1] that sum to `total`; None if n is zero.

    Wilson's formula with total/n for the proportion p: no variable in [0, 1] varies more than a coin with its mean,
    p(1 - p). If all values are equal it has a width, unlike the bootstrap's.
    """
    if n == 0:
        return None
    z, p = normal_quantile(confidence), total / n
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    # Rounding must not push an end past a mean of exactly 0 or 1.
    return Interval(min(p, max(0.0, (middle - half) / scale)), max(p, min(1.0, (middle + half) / scale)))


def exact_interval(count: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Clopper and Pearson's interval of a proportion; None if n is zero.

    C. J. Clopper and E. S. Pearson, Biometrika 26 (1934) 404-413. Each end misses the true proportion with probability
    at most (1 - confidence)/2, whatever it is; also the mean proportion of independent episodes of tasks that differ
    (W. Hoeffding, Annals of Mathematical Statistics 27 (1956) 713-721).

    >>> interval = exact_interval(16, 17)
    >>> round(interval.low, 4), round(interval.high, 4)
    (0.7131, 0.9985)
    """
    if n == 0:
        return None
    from scipy.special import betaincinv  # takes longer to import than all else together

    tail = (1 - confidence) / 2
    low = float(betaincinv(count, n - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return Interval(low, high)


def bounded_mean_interval(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return an interval of the mean of values [n] in [0, 1], as exact as Clopper and Pearson's; None if n is zero.

    N. Gaffke, Mathematical Methods of Statistics 14 (2005) 437-467; E. Learned-Miller and P. S. Thomas,
    arXiv 1905.06208. The upper end is the quantile of sum D_i x_i + D_0 with D uniform on the simplex of n + 1 weights;
    the lower end that of sum D_i x_i. For zeros and ones it is Clopper and Pearson's interval. That it covers for every
    distribution in [0, 1] is conjectured; `benchmarks/interval_coverage.py` measures it.

    >>> import numpy as np
    >>> interval = bounded_mean_interval(np.zeros(3))
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.0, 0.708)
    """
    if len(values) == 0:
        return None
    tail = (1 - confidence) / 2
    low, high = 1.0 - _spacing_quantile(1.0 - values, 1 - tail), _spacing_quantile(values, 1 - tail)
    return Interval(round(low, _DIGITS), round(high, _DIGITS))


def _spacing_quantile(values: Floats, level: float) -> float:
    points, counts = _merge_values(values)
    return _solve_spacings(tuple(points.tolist()), tuple(counts.tolist()), level)


@lru_cache(maxsize=1024)  # most specifications of a cell have the same few severities, often all zero
def _solve_spacings(values: tuple[float, ...], numbers: tuple[float, ...], level: float) -> float:
    from scipy.optimize import brentq

    if values[0] == 1.0:
        return 1.0
    points, counts = np.append(values, 1.0), np.append(numbers, 1.0)
    return float(brentq(lambda mean: _spacing_cdf(points, counts, mean) - level, float(points[0]), 1.0, xtol=1e-10))


def _merge_values(values: Floats) -> tuple[Floats, Floats]:
    points, numbers = np.unique(values, return_counts=True)
    counts = numbers.astype(np.float64)
    if len(points) > _MOST_VALUES:
        starts = np.linspace(0, len(points), _MOST_VALUES, endpoint=False).astype(np.int64)
        merged = np.add.reduceat(counts, starts)
        points, counts = np.add.reduceat(points * counts, starts) / merged, merged
    return points, counts


def _spacing_cdf(points: Floats, counts: Floats, mean: float) -> float:
    """Return P(sum D_i x_i <= mean), D uniform on the simplex; 1 for a mean that is not below the greatest point.

    It is therefore 1 - P(Q > 0), Q = sum E_i (x_i - mean), whose moment generating function is exp K(s) = prod (1 - s
    (x_i - mean))^-1. P(Q > 0) is the integral of exp(K(s)) / (2 pi i s) along a vertical line (R. Rice, Advances in
    Applied Probability 12 (1980) 475-490).
    """
    from scipy.optimize import brentq

    centred = points - mean
    greatest = float(centred[-1])
    if greatest <= 0:
        return 1.0

    def slope(share: float) -> float:
        at = share / greatest
        return float(counts @ (centred / (1 - at * centred))) - 1 / at

    saddle = float(brentq(slope, 1e-12, 1 - 1e-12)) / greatest
    rates = centred / (1 - saddle * centred)
    width = 1 / sqrt(float(counts @ rates**2) + 1 / saddle**2)
    heights = width * np.sinh(_LINE)
    products = np.outer(rates, heights)
    logs = -0.5 * (counts @ np.log1p(products**2)) - float(counts @ np.log1p(-saddle * centred))
    factors = np.exp(logs + 1j * (counts @ np.arctan(products))) / (saddle + 1j * heights)
    integrand: Floats = factors.real * width * np.cosh(_LINE)
    integrand[0] /= 2  # the line below the axis mirrors the one above
    return 1 - float(integrand.sum() * _LINE[1]) / pi


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
    `only_first` and `only_second` count the pairs that only the one, or only the other, has.
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
    above = b - c - n * difference
    linear = (2 * n - b + c) * difference - b - c
    likeliest = (sqrt(linear**2 + 8 * n * c * difference * (1 - difference)) - linear) / (4 * n)
    variance = n * (2 * likeliest + difference * (1 - difference))
    return above / sqrt(variance) if variance > 0 else copysign(inf, above) if above else 0.0


def _find_crossing(falling: Callable[[float], float], level: float, low: float, high: float) -> float:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > level else (low, middle)
    return (low + high) / 2


RESAMPLES = 10_000
_CHUNK = 1 << 15
"""Indices drawn at a time. They fit into the processor's cache, and memory does not grow with the episodes."""


def bootstrap_means(values: Floats, generator: np.random.Generator) -> list[Interval | None]:
    """Return the 95 % bootstrap interval of each row's mean, from the same resamples; None if nothing counts.

    `values` has a row for each quantity and a column for each episode, [M, n]. NaN: the episode does not count, and the
    mean is recomputed in each resample over those that do.
    """
    rows, n = values.shape
    if n == 0:
        return [None] * rows
    counted = ~np.isnan(values)
    filled = np.where(counted, values, 0.0)
    varying = [m for m in range(rows) if np.ptp(filled[m]) > 0 or not (counted[m].all() or not counted[m].any())]
    means = _resample_means(filled[varying], counted[varying], generator)
    intervals: list[Interval | None] = [
        Interval(float(row[0]), float(row[0])) if mask.any() else None
        for row, mask in zip(filled, counted, strict=True)
    ]
    for m, row in zip(varying, means, strict=True):
        intervals[m] = percentile_interval(row)
    return intervals


def _resample_means(filled: Floats, counted: NDArray[np.bool_], generator: np.random.Generator) -> Floats:
    """Return the resampled means of all rows, [M, RESAMPLES]; NaN where nothing that counts was drawn."""
    from scipy.sparse import csr_array  # takes longer to import than everything else together

    rows, n = filled.shape
    partial = ~counted.all(axis=1)
    table = np.ascontiguousarray(np.vstack([filled, counted[partial]]).T)
    sums = np.empty((RESAMPLES, table.shape[1]))
    per_chunk = max(1, _CHUNK // n)
    ones, ends = np.ones(per_chunk * n), np.arange(0, per_chunk * n + 1, n, dtype=np.int32)
    for start in range(0, RESAMPLES, per_chunk):
        size = min(per_chunk, RESAMPLES - start)
        drawn = generator.integers(0, n, size=size * n, dtype=np.int32)
        sums[start : start + size] = csr_array((ones[: size * n], drawn, ends[: size + 1]), shape=(size, n)) @ table
    many = np.full((rows, RESAMPLES), float(n))
    many[partial] = sums[:, rows:].T
    with np.errstate(invalid="ignore"):
        means: Floats = sums[:, :rows].T / many
    return means


def percentile_interval(means: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the percentile interval of resampled means without the NaN among them; None if all are NaN."""
    defined = means[~np.isnan(means)]
    if len(defined) == 0:
        return None
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return Interval(float(low), float(high), skipped=len(means) - len(defined))


# The number of episodes that an interval needs


POWER = 0.8
"""The chance with which a suggested number of episodes decides."""


def check_level(power: float, confidence: float) -> None:
    """Raise `SafevlaError` for a power or a confidence that is not between 0 and 1."""
    for name, share in (("power", power), ("confidence", confidence)):
        if not 0 < share < 1:
            raise SafevlaError(f"a {name} of {share:g} is never reached", remedy="Give a share between 0 and 1.")


def rate_sample_size(
    rate: float, limit: float, power: float = POWER, confidence: float = CONFIDENCE, most: int = 1_000_000
) -> int | None:
    """Return the least n whose exact interval excludes `limit` with the given power if the true rate is `rate`.

    The interval is `exact_interval`; its power rises in steps, so that a slightly greater n may fall just short again.
    None if `rate` is the limit, or about more than `most` would be needed. Raises `SafevlaError` for a number that is
    not a share.
    """
    for name, share in (("rate", rate), ("limit", limit)):
        if not 0 <= share <= 1:
            raise SafevlaError(f"{name} is {share:g}", remedy="Give a share from 0 to 1.")
    check_level(power, confidence)
    if rate == limit:
        return None
    near = _decisive_normal(rate, limit, power, confidence)
    if near > most:
        return None
    numbers = count(max(1, near // 2 - 20), max(1, near // 400))
    return next(n for n in numbers if rate_power(n, rate, limit, confidence) >= power - 1e-12)


def rate_power(n: int, rate: float, limit: float, confidence: float = CONFIDENCE) -> float:
    """Return the probability that the exact interval of n episodes lies on the side of `limit` where `rate` does."""
    from scipy.stats import binom

    tail = (1 - confidence) / 2
    if rate < limit:
        return rate_power(n, 1 - rate, 1 - limit, confidence)
    least = int(binom.isf(tail, n, limit)) + 1  # P(X >= least) <= tail at the limit
    return float(binom.sf(least - 1, n, rate)) if least <= n else 0.0


def _decisive_normal(rate: float, limit: float, power: float, confidence: float) -> int:
    z, reach = normal_quantile(confidence), NormalDist().inv_cdf(power)
    root = z * sqrt(limit * (1 - limit)) + reach * sqrt(rate * (1 - rate))
    ratio = min(root / abs(rate - limit), 1e9)
    return ceil(ratio**2) + 1


# Confidence sequences, which hold however often one looks


_NODES = 512
_EDGE = 1e-12


def sequential_interval(values: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the confidence sequence's interval of the mean of values [n] in [0, 1]; None if n is zero.

    With probability `confidence` the intervals of all n hold the mean at once. For mean m and any q in (0, 1) the
    factor x q / m + (1 - x) (1 - q) / (1 - m) has mean 1. The product over episodes, averaged over Jeffreys' prior of
    q, is a martingale from 1, which reaches 1/α with probability at most α (Ville); the interval holds the m below
    that. For zeros and ones see H. Robbins, Annals of Mathematical Statistics 41 (1970) 1397-1409, for graded values I.
    Waudby-Smith and A. Ramdas, Journal of the Royal Statistical Society B 86 (2024) 1-27. Tasks may differ if looks
    come after whole rounds, as many episodes of every task: then a round's product has a mean of at most 1. The
    martingale is log-convex in m and at most 1 at the mean of the values, so that these m are an interval around it.

    >>> import numpy as np
    >>> interval = sequential_interval(np.ones(40))
    >>> round(interval.low, 2), round(interval.high, 2)
    (0.87, 1.0)
    """
    if len(values) == 0:
        return None
    points, counts = np.unique(values, return_counts=True)
    mean, level = float(counts @ points) / len(values), -log(1 - confidence)

    def excess(supposed: float) -> float:
        return _log_wealth(points, counts, supposed) - level

    inner = min(max(mean, _EDGE), 1 - _EDGE)
    low = 0.0 if mean <= _EDGE else _find_end(excess, _EDGE, inner)
    high = 1.0 if mean >= 1 - _EDGE else _find_end(excess, 1 - _EDGE, inner)
    return Interval(round(low, _DIGITS), round(high, _DIGITS))


def _log_wealth(points: Floats, counts: NDArray[np.int64], supposed: float) -> float:
    shares = _prior_nodes()
    factors = np.outer(points, shares / supposed) + np.outer(1 - points, (1 - shares) / (1 - supposed))
    logs = counts @ np.log(factors)
    greatest = float(logs.max())
    return greatest + log(float(np.exp(logs - greatest).mean()))


@lru_cache(maxsize=1)
def _prior_nodes() -> Floats:
    nodes: Floats = np.sin(np.pi * (np.arange(_NODES) + 0.5) / (2 * _NODES)) ** 2
    nodes.flags.writeable = False
    return nodes


def _find_end(excess: Callable[[float], float], outer: float, mean: float) -> float:
    from scipy.optimize import brentq

    if excess(outer) <= 0:
        return outer
    return float(brentq(excess, outer, mean, xtol=1e-12))


Steps = Sequence[Sequence[int]]
"""Sizes of the steps of each round, positive; a step adds its size to the sum, or nothing."""


@dataclass(frozen=True, slots=True)
class SequentialLook:
    """A look at a sum of at most `total`: at `low` or below, or at `high` or above, the test ends."""

    gained: int
    total: int
    low: int
    high: int
    side: int
    """1 if the sum was too great for the rate at this look or before, -1 if too small, 0 if the test goes on."""


def sequential_look(
    steps: Steps, gained: Sequence[int], rate: float, shares: Sequence[float], confidence: float = CONFIDENCE
) -> SequentialLook:
    """Return the last look at the test of a rate with a planned number of looks, each of which may end it.

    Up to a look the test may spend, on each side, its error times the squared share of the planned steps that were made
    (K. Kim and D. L. DeMets, Biometrika 74 (1987) 149-154). The limits are the nearest sums that keep to it, by
    recursion over the distribution of the sums that no earlier look has ended: the error is exact for any steps.

    `steps` are those of each round so far, `gained` the sum of each round's that were, [K], `rate` the chance of each
    under the hypothesis, and `shares` of the planned steps were made by each look, rising to 1, [K or more]; 1 -
    `confidence` is the error of both sides together over all planned looks.
    """
    look = SequentialLook(0, 0, -1, 1, 0)
    for (low, high), sizes, gain in zip(sum_limits(steps, rate, shares, confidence), steps, gained, strict=True):
        reached = look.gained + gain
        side = look.side or (reached >= high) - (reached <= low)
        look = SequentialLook(reached, look.total + sum(sizes), low, high, side)
    return look


def sum_limits(
    steps: Steps, rate: float, shares: Sequence[float], confidence: float = CONFIDENCE
) -> Iterator[tuple[int, int]]:
    """Yield for each round the greatest sum that is too small for the rate, and the least that is too great.

    They are -1, and one more than the greatest sum, where no sum is. Arguments as of `sequential_look`.
    """
    chances, spent = np.ones(1), np.zeros(2)
    for sizes, share in zip(steps, shares, strict=False):
        for size, many in sorted(Counter(sizes).items()):
            chances = np.convolve(chances, _sum_chances(size, many, rate))
        tails = np.cumsum([chances, chances[::-1]], axis=1)
        budget = (1 - confidence) / 2 * share**2 - spent + 1e-15
        below, above = (tails <= budget[:, None]).sum(axis=1).tolist()
        yield below - 1, len(chances) - above
        spent += [chances[:below].sum(), chances[len(chances) - above :].sum()]
        chances[:below] = chances[len(chances) - above :] = 0.0


@lru_cache(maxsize=1024)
def _sum_chances(size: int, count: int, rate: float) -> Floats:
    from scipy.stats import binom

    chances = np.zeros(size * count + 1)
    chances[::size] = binom.pmf(np.arange(count + 1), count, rate)
    chances.flags.writeable = False
    return chances
