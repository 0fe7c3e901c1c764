"""Two policies in one metric: their difference, its intervals, and a test."""

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

Pair = tuple[float, float]
Test = Literal["barnard", "boschloo"]
METRICS = ("sr", "safety", "sbu", "vsi")


class How(msgspec.Struct, frozen=True, kw_only=True):
    """How to compare; `test` is the one for independent proportions."""

    metrics: tuple[str, ...] = METRICS
    confidence: float = CONFIDENCE
    seed: int = 0
    test: Test = "barnard"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """First minus second in one metric, and how likely so large a difference is between equals.

    The four counts are of pairs, null for means and for independent episodes. `p_holm` is adjusted over all pairs of
    policies of this scope and metric.
    """

    first: str
    second: str
    difference: float | None
    ci: Pair | None
    ci_by_task: Pair | None
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
class Duel:
    """Two policies in one metric: their values and the tasks of their episodes, [n] and [m]."""

    first: str
    second: str
    mine: NDArray[np.float64]
    theirs: NDArray[np.float64]
    my_tasks: NDArray[np.int64]
    their_tasks: NDArray[np.int64]
    metric: str


def paired_difference(duel: Duel, how: How) -> Difference:
    """Pair by pair: McNemar's exact test and Tango's interval; for means sign flips, and the bootstrap of pairs."""
    apart = duel.mine - duel.theirs
    n = len(apart)
    if n == 0:
        return _unknown(duel, "none: no pair")
    identical = bool((apart == 0).all())
    clustered = by_task(apart[None], duel.my_tasks, how, lambda means: means[0])
    if duel.metric == "vsi":
        resampled = statistics.resampled_means(apart[None], generator(how))[0]
        return replace(
            _unknown(duel, "sign flips"),
            difference=float(apart.mean()),
            ci=ends(statistics.percentiles(resampled, how.confidence)),
            ci_by_task=clustered,
            p_value=statistics.sign_flip_p(apart, generator(how)),
            identical=identical,
        )
    only_first, only_second = int((apart > 0).sum()), int((apart < 0).sum())
    both = int((duel.mine * duel.theirs).sum())
    return replace(
        _unknown(duel, "McNemar, exact"),
        difference=(only_first - only_second) / n,
        ci=ends(statistics.tango(only_first, only_second, n, how.confidence)),
        ci_by_task=clustered,
        both=both,
        only_first=only_first,
        only_second=only_second,
        neither=n - both - only_first - only_second,
        p_value=statistics.mcnemar(only_first, only_second),
        identical=identical,
    )


def unpaired_difference(duel: Duel, how: How) -> Difference:
    """As independent samples: Barnard's or Boschloo's test and Newcombe's interval; for means a permutation test."""
    n, m = len(duel.mine), len(duel.theirs)
    if not n or not m:
        return _unknown(duel, "none: no episode")
    difference, clustered = float(duel.mine.mean() - duel.theirs.mean()), _two_by_task(duel, how)
    if duel.metric == "vsi":
        source = generator(how)
        mine, theirs = (statistics.resampled_means(one[None], source)[0] for one in (duel.mine, duel.theirs))
        return replace(
            _unknown(duel, "permutation"),
            difference=difference,
            ci=ends(statistics.percentiles(mine - theirs, how.confidence)),
            ci_by_task=clustered,
            p_value=statistics.permutation_p(duel.mine, duel.theirs, generator(how)),
        )
    count, other = int(duel.mine.sum()), int(duel.theirs.sum())
    name, test = _TESTS[how.test]
    return replace(
        _unknown(duel, name),
        difference=difference,
        ci=ends(statistics.newcombe(count, n, other, m, how.confidence)),
        ci_by_task=clustered,
        p_value=test(count, n, other, m),
    )


_TESTS: Mapping[str, tuple[str, Callable[[int, int, int, int], float]]] = {
    "barnard": ("Barnard, exact", statistics.barnard),
    "boschloo": ("Boschloo, exact", statistics.boschloo),
}


def _unknown(duel: Duel, test: str) -> Difference:
    return Difference(
        first=duel.first, second=duel.second, difference=None, ci=None, ci_by_task=None, test=test, p_value=None
    )


def _two_by_task(duel: Duel, how: How) -> Pair | None:
    """Whole tasks drawn for both at once: they are the same tasks."""
    n, m = len(duel.mine), len(duel.theirs)
    rows = np.full((2, n + m), np.nan)
    rows[0, :n], rows[1, n:] = duel.mine, duel.theirs
    return by_task(rows, np.concatenate([duel.my_tasks, duel.their_tasks]), how, lambda means: means[0] - means[1])


def by_task(
    rows: NDArray[np.float64],
    task: NDArray[np.int64],
    how: How,
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> Pair | None:
    """The interval over resamples of whole tasks, of which those within one resemble each other; None for one task.

    Args:
        rows: [M, n], NaN = does not count.
        task: [n], a number for each column's task.
        how: confidence and seed.
        statistic: from the rows' means in each resample, [M, R], to what the interval is of, [R].
    """
    names, numbered = np.unique(task, return_inverse=True)
    if len(names) < 2:
        return None
    means = statistics.resampled_cluster_means(rows, numbered, generator(how))
    return ends(statistics.percentiles(statistic(means), how.confidence))


def generator(how: How) -> np.random.Generator:
    """A fresh source, so that no number depends on which others are asked for."""
    return np.random.Generator(np.random.PCG64(how.seed))


def ends(interval: Interval | None) -> Pair | None:
    """An interval as its two ends; None where resamples never varied, as that is no evidence of certainty."""
    return None if interval is None or interval.low == interval.high else (interval.low, interval.high)
