"""The difference of two policies in one metric, with its intervals and a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from safevla_bench import statistics
from safevla_bench.statistics import CONFIDENCE, Interval

Bounds = tuple[float, float]
ProportionTest = Literal["barnard", "boschloo"]
METRICS = ("sr", "safety", "sbu", "vsi")


class ComparisonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a comparison; `test` is the one for independent proportions."""

    metrics: tuple[str, ...] = METRICS
    confidence: float = CONFIDENCE
    seed: int = 0
    test: ProportionTest = "barnard"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """First minus second in one metric, and the p-value of so large a difference between equal policies.

    The four counts are of pairs, null for means and for independent episodes. `p_holm` is adjusted over all pairs of
    policies of this scope and metric.
    """

    first: str
    second: str
    difference: float | None
    ci: Bounds | None
    ci_by_task: Bounds | None
    both: int | None = None
    only_first: int | None = None
    only_second: int | None = None
    neither: int | None = None
    test: str
    p_value: float | None
    p_holm: float | None = None
    identical: bool = False
    """Every pair has the same value on both sides."""


@dataclass(frozen=True)
class PairedSample:
    """Two samples of one metric: the values of two policies and the tasks of their episodes, [n] and [m]."""

    first: str
    second: str
    first_values: NDArray[np.float64]
    second_values: NDArray[np.float64]
    first_tasks: NDArray[np.int64]
    second_tasks: NDArray[np.int64]
    metric: str


def paired_difference(sample: PairedSample, options: ComparisonOptions) -> Difference:
    """Compare pair by pair: McNemar's exact test and Tango's interval; for means sign flips and the bootstrap."""
    differences = sample.first_values - sample.second_values
    n = len(differences)
    if n == 0:
        return _empty_difference(sample, "none: no pair")
    identical = bool((differences == 0).all())
    ci_by_task = task_interval(differences[None], sample.first_tasks, options, lambda means: means[0])
    if sample.metric == "vsi":
        resampled = statistics.resampled_means(differences[None], bootstrap_generator(options))[0]
        return replace(
            _empty_difference(sample, "sign flips"),
            difference=float(differences.mean()),
            ci=interval_bounds(statistics.percentile_interval(resampled, options.confidence)),
            ci_by_task=ci_by_task,
            p_value=statistics.sign_flip_p(differences, bootstrap_generator(options)),
            identical=identical,
        )
    only_first, only_second = int((differences > 0).sum()), int((differences < 0).sum())
    both = int((sample.first_values * sample.second_values).sum())
    return replace(
        _empty_difference(sample, "McNemar, exact"),
        difference=(only_first - only_second) / n,
        ci=interval_bounds(statistics.tango_interval(only_first, only_second, n, options.confidence)),
        ci_by_task=ci_by_task,
        both=both,
        only_first=only_first,
        only_second=only_second,
        neither=n - both - only_first - only_second,
        p_value=statistics.mcnemar_p(only_first, only_second),
        identical=identical,
    )


def unpaired_difference(sample: PairedSample, options: ComparisonOptions) -> Difference:
    """Compare independent samples: Barnard's or Boschloo's test and Newcombe's interval; for means permutations."""
    n, m = len(sample.first_values), len(sample.second_values)
    if not n or not m:
        return _empty_difference(sample, "none: no episode")
    difference, ci_by_task = (
        float(sample.first_values.mean() - sample.second_values.mean()),
        _interval_of_two(sample, options),
    )
    if sample.metric == "vsi":
        generator = bootstrap_generator(options)
        means, other_means = (
            statistics.resampled_means(values[None], generator)[0]
            for values in (sample.first_values, sample.second_values)
        )
        return replace(
            _empty_difference(sample, "permutation"),
            difference=difference,
            ci=interval_bounds(statistics.percentile_interval(means - other_means, options.confidence)),
            ci_by_task=ci_by_task,
            p_value=statistics.permutation_p(sample.first_values, sample.second_values, bootstrap_generator(options)),
        )
    count, other_count = int(sample.first_values.sum()), int(sample.second_values.sum())
    name, test = _PROPORTION_TESTS[options.test]
    return replace(
        _empty_difference(sample, name),
        difference=difference,
        ci=interval_bounds(statistics.newcombe_interval(count, n, other_count, m, options.confidence)),
        ci_by_task=ci_by_task,
        p_value=test(count, n, other_count, m),
    )


_PROPORTION_TESTS: Mapping[str, tuple[str, Callable[[int, int, int, int], float]]] = {
    "barnard": ("Barnard, exact", statistics.barnard_p),
    "boschloo": ("Boschloo, exact", statistics.boschloo_p),
}


def _empty_difference(sample: PairedSample, test: str) -> Difference:
    return Difference(
        first=sample.first, second=sample.second, difference=None, ci=None, ci_by_task=None, test=test, p_value=None
    )


def _interval_of_two(sample: PairedSample, options: ComparisonOptions) -> Bounds | None:
    """Resample whole tasks for both samples at once, as they are the same tasks."""
    n, m = len(sample.first_values), len(sample.second_values)
    rows = np.full((2, n + m), np.nan)
    rows[0, :n], rows[1, n:] = sample.first_values, sample.second_values
    return task_interval(
        rows, np.concatenate([sample.first_tasks, sample.second_tasks]), options, lambda means: means[0] - means[1]
    )


def task_interval(
    rows: NDArray[np.float64],
    tasks: NDArray[np.int64],
    options: ComparisonOptions,
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> Bounds | None:
    """Return the interval over resamples of whole tasks, whose episodes resemble each other; None for one task.

    Args:
        rows: [M, n], NaN = does not count.
        tasks: [n], a number for each column's task.
        options: confidence and seed.
        statistic: from the rows' means in each resample, [M, R], to what the interval is of, [R].
    """
    names, task_numbers = np.unique(tasks, return_inverse=True)
    if len(names) < 2:
        return None
    means = statistics.resampled_cluster_means(rows, task_numbers, bootstrap_generator(options))
    return interval_bounds(statistics.percentile_interval(statistic(means), options.confidence))


def bootstrap_generator(options: ComparisonOptions) -> np.random.Generator:
    """Return a fresh generator, so that no number depends on which others are computed."""
    return np.random.Generator(np.random.PCG64(options.seed))


def interval_bounds(interval: Interval | None) -> Bounds | None:
    """Return the two ends of an interval; None where resamples never varied, as that is no evidence of certainty."""
    return None if interval is None or interval.low == interval.high else (interval.low, interval.high)
