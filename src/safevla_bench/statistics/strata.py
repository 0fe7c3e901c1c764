"""Tests and intervals over tasks: differences on these tasks, each a stratum, and on tasks like these.

The first question repeats the same tasks: episodes are compared within each task, and tasks weigh alike. The second
draws other tasks: the mean difference of each task is one observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.bootstrap import RESAMPLES
from safevla_bench.statistics.intervals import CONFIDENCE, Interval, normal_quantile, unit_mean_interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_EXACT_TASKS = 13
"""Greatest number of tasks of which all subsets are tried."""
_TOLERANCE = 1e-12
"""Sums nearer than this are equal: they differ only by the order of addition."""


@dataclass(frozen=True, slots=True)
class FlippedMeans:
    """The outcome of flipping the signs of task differences: a two-sided p-value and the interval that agrees with it.

    `interval` is None where so few tasks exclude no difference at all: at 95 % fewer than six.
    """

    p_value: float
    interval: Interval | None


def flip_task_means(
    differences: Floats,
    weights: Floats,
    generator: np.random.Generator,
    confidence: float = CONFIDENCE,
    tries: int = RESAMPLES,
) -> FlippedMeans:
    """Test that the differences of tasks like these centre on zero, and return their centre's interval.

    A difference θ fits if the sum of the differences from it, each with its sign or the other, is as often beyond the
    observed sum as not. The differences that fit lie between two of the means of all subsets of the tasks (J. A.
    Hartigan, Journal of the American Statistical Association 64 (1969) 1303-1317). Exact up to 13 tasks, else from
    random subsets.

    Args:
        differences: mean difference of each task, [K].
        weights: of the tasks in the mean, positive, [K].
        generator: the source of random subsets.
        confidence: of the interval.
        tries: number of random subsets.
    """
    k = len(differences)
    if k <= _EXACT_TASKS:
        subsets = (np.arange(1, 2**k)[:, None] >> np.arange(k) & 1).astype(np.float64)
    else:
        subsets = generator.integers(0, 2, size=(tries, k), dtype=np.int8).astype(np.float64)
        subsets = subsets[subsets.any(axis=1)]
    means = (subsets @ (weights * differences)) / (subsets @ weights)
    means[np.abs(means) <= _TOLERANCE] = 0.0
    means.sort()
    total = len(means) + 1  # the observed signs, which flip no task
    below, above = int((means <= 0).sum()) + 1, int((means >= 0).sum()) + 1
    p_value = min(1.0, 2 * min(below, above) / total)
    # A difference is excluded as too small or too large where at most this many subsets are beyond it.
    beyond = int((1 - confidence) / 2 * total + _TOLERANCE) - 1
    interval = None if beyond < 0 else Interval(float(means[beyond]), float(means[-1 - beyond]))
    return FlippedMeans(p_value, interval)


def mcnemar_mid_p(only_first: int, only_second: int) -> float:
    """Return the two-sided mid-p-value of McNemar's test: half of the observed outcome's probability counts.

    0.5 where no pair differs.

    M. W. Fagerland, S. Lydersen and P. Laake, BMC Medical Research Methodology 13 (2013) 91: it hardly ever exceeds its
    level, and finds more than the exact test.

    >>> round(mcnemar_mid_p(1, 7), 7)
    0.0390625
    """
    from scipy.stats import binom

    n, fewer = only_first + only_second, min(only_first, only_second)
    if only_first == only_second:
        return 1.0 - float(binom.pmf(fewer, n, 0.5)) / 2
    return float(2 * binom.cdf(fewer, n, 0.5) - binom.pmf(fewer, n, 0.5))


def cmh_p(counts: Ints, sizes: Ints, others: Ints, other_sizes: Ints, *, mid: bool = False) -> float:
    """Return the exact two-sided p-value of the Cochran-Mantel-Haenszel test over strata such as tasks.

    It supposes that no stratum has a difference. Given how many episodes count in each stratum, the first policy's
    share of them is hypergeometric, and the sum over strata is known exactly. Outcomes no likelier than the observed
    one are beyond it. With one stratum it is Fisher's exact test.

    Args:
        counts: the first policy's episodes that count, [K].
        sizes: all its episodes, [K].
        others: the second policy's that count, [K].
        other_sizes: all its episodes, [K].
        mid: let half of the outcomes as likely as the observed one count.
    """
    from scipy.stats import hypergeom

    chances, offset = np.ones(1), 0
    for count, n, other, m in zip(counts, sizes, others, other_sizes, strict=True):
        total = int(count + other)
        low, high = max(0, total - int(m)), min(int(n), total)
        chances = np.convolve(chances, hypergeom.pmf(np.arange(low, high + 1), n + m, total, n))
        offset += low
    observed = chances[int(np.sum(counts)) - offset]
    alike = np.isclose(chances, observed, rtol=1e-9, atol=0)
    beyond = float(chances[(chances < observed) & ~alike].sum())
    return min(1.0, beyond + float(chances[alike].sum()) * (0.5 if mid else 1.0))


def mean_rate_interval(totals: Floats, sizes: Ints, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of the unweighted mean of rates over strata, such as tasks; None if there are none.

    The spread of each stratum is taken at the rate that one more success and one more failure would give, as A. Agresti
    and B. Caffo do (The American Statistician 54 (2000) 280-288): a rate of 0 or 1 has a spread too. One stratum has
    Wilson's interval. Values in [0, 1] vary no more than a rate of their mean, so that sums of those do.

    Args:
        totals: counts, or sums of values in [0, 1], [K].
        sizes: episodes of each stratum, positive, [K].
        confidence: of the two-sided interval.
    """
    if len(sizes) < 2:
        return unit_mean_interval(float(totals.sum()), int(sizes.sum()), confidence)
    mean = float((totals / sizes).mean())
    half = normal_quantile(confidence) * sqrt(_mean_rate_variance(totals, sizes))
    return Interval(max(0.0, mean - half), min(1.0, mean + half))


def mean_rate_difference_interval(
    totals: Floats, sizes: Ints, others: Floats, other_sizes: Ints, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the interval of the difference of two policies' mean rates over the same strata; None if there are none.

    As `mean_rate_interval`; one stratum has Newcombe's interval.
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
    """Return the squared standard error of the mean rate, each rate taken as (total + 1) / (size + 2)."""
    rates = (totals + 1) / (sizes + 2)
    return float((rates * (1 - rates) / sizes).sum()) / len(sizes) ** 2


def task_permutation_p(
    values: Sequence[Floats], others: Sequence[Floats], generator: np.random.Generator, tries: int = RESAMPLES
) -> float:
    """Return the two-sided p-value of the hypothesis that two policies' values have one distribution in each task.

    The labels of the policies are drawn anew within each task. The statistic is the mean over tasks of the differences
    of means, in its standard errors, so that unequal spreads do not look like a difference. The observed labels are
    counted in.

    Args:
        values: the first policy's values of each task, K arrays.
        others: the second policy's, of the same tasks.
        generator: the source of the labels.
        tries: number of random labellings.
    """
    sums, variances = np.zeros(tries + 1), np.zeros(tries + 1)
    for first, second in zip(values, others, strict=True):
        n = len(first)
        rows = np.tile(np.concatenate([first, second]), (tries + 1, 1))
        rows[1:] = generator.permuted(rows[1:], axis=1)
        sums += rows[:, :n].mean(axis=1) - rows[:, n:].mean(axis=1)
        variances += _mean_variance(rows[:, :n]) + _mean_variance(rows[:, n:])
    spreads = np.sqrt(variances)
    if not (spreads > _TOLERANCE).any():  # one episode a task and policy: no spread is known
        spreads[:] = 1.0
    statistics = np.abs(np.divide(sums, spreads, out=np.full(len(sums), np.inf), where=spreads > _TOLERANCE))
    statistics[np.abs(sums) <= _TOLERANCE] = 0.0
    return float((statistics >= statistics[0] * (1 - 1e-9)).sum()) / (tries + 1)


def _mean_variance(rows: Floats) -> Floats:
    """Return the squared standard error of each row's mean, [R]; 0 for rows of one value, whose spread is unknown."""
    n = rows.shape[1]
    variance: Floats = rows.var(axis=1, ddof=1) / n if n > 1 else np.zeros(len(rows))
    return variance


def resampled_task_means(
    totals: Floats, sizes: Floats, suites: Ints, generator: np.random.Generator, resamples: int = RESAMPLES
) -> Floats:
    """Return the mean of each row in each resample of whole tasks, drawn within their suites.

    Args:
        totals: sum of the values of each row and task, [M, K].
        sizes: how many they are, [M, K].
        suites: number of each task's suite, [K]; every resample has as many tasks of each suite.
        generator: the source of the resamples.
        resamples: number of resamples.

    Returns:
        [M, resamples]; NaN where the drawn tasks hold nothing.
    """
    drawn = np.empty((resamples, len(suites)), dtype=np.int64)
    for suite in np.unique(suites):
        members = np.flatnonzero(suites == suite)
        drawn[:, members] = generator.choice(members, size=(resamples, len(members)))
    with np.errstate(invalid="ignore"):
        means: Floats = totals[:, drawn].sum(axis=2) / sizes[:, drawn].sum(axis=2)
    return means
