"""The difference of two policies in one metric: on these tasks, and on tasks like these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from safevla_bench.compare.pairs import StateMeans, number_distinct
from safevla_bench.compare.policy_results import PolicyResults, TaskKey
from safevla_bench.errors import SafevlaError
from safevla_bench.judging.rates import COMPARED, METRICS, Bounds
from safevla_bench.statistics import tests
from safevla_bench.statistics.intervals import CONFIDENCE, Interval, reconcile_interval, tango_interval


class ComparisonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a comparison.

    `allow_crashed`: verdicts stand even if episodes without a value could change them.
    """

    metrics: tuple[str, ...] = COMPARED
    confidence: float = CONFIDENCE
    allow_crashed: bool = False

    def __post_init__(self) -> None:
        """Raise `SafevlaError` if the confidence is not a share."""
        if not 0 < self.confidence < 1:
            remedy = "Give a share between 0 and 1, such as 0.95; on the command line in percent."
            raise SafevlaError(f"no interval has the confidence {self.confidence:g}", remedy=remedy)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """First minus second in one metric, with the answers to two questions.

    `p_value` and `ci` are of these tasks: would equal policies differ so much if the same tasks were run again?
    `p_by_task` and `ci_by_task` are of tasks like these, from the difference of each task. With more than one task the
    second decides. The two counts are of pairs, null for means and for independent episodes.
    """

    first: str
    second: str
    difference: float | None = None
    ci: Bounds | None = None
    ci_by_task: Bounds | None = None
    pairs: int | None = None
    """Pairs that both policies finished and that have a value; null where episodes are independent."""
    unknown: int = 0
    """Planned episodes of the two without a value: crashed, cut short or without a verdict."""
    extremes: Bounds | None = None
    """The difference if every unknown value were the worst for the first, and the best; null if all are known."""
    p_at_extremes: float | None = None
    """The greater p-value that decides at these extremes, 1 if they disagree on the sign; null if all are known."""
    p_value_at_extremes: float | None = None
    """The same of `p_value`."""
    tasks: int = 0
    """Tasks that both ran."""
    only_first: int | None = None
    only_second: int | None = None
    test: str
    p_value: float | None = None
    p_by_task: float | None = None
    """Null with one task."""
    p_adjusted: float | None = None
    """The p-value that decides, adjusted for the pairs of policies that are compared in this metric and scope."""
    better: str | None = None
    """The policy that is told apart as the better one."""
    undecided: bool = False
    """The policies would be told apart, but episodes without a value could change that."""
    tasks_needed: int | None = None
    """The fewest tasks that tell policies apart, if these are fewer: no data then do."""
    identical: bool = False
    """Every pair has the same value on both sides."""

    @property
    def is_by_task(self) -> bool:
        """True if tasks like these decide: with more than one task."""
        return self.tasks > 1

    @property
    def deciding_p(self) -> float | None:
        """`p_by_task` where tasks like these decide, else `p_value`."""
        return self.p_by_task if self.is_by_task else self.p_value

    @property
    def deciding_ci(self) -> Bounds | None:
        """`ci_by_task` where tasks like these decide, else `ci`."""
        return self.ci_by_task if self.is_by_task else self.ci


TaskValues = Mapping[TaskKey, NDArray[np.float64]]
"""One policy's values of one metric, an array for each task."""


def values_by_task(results: PolicyResults, metric: str, fill: float | None = None) -> TaskValues:
    """Return a metric of a policy's episodes, tasks in order of first appearance.

    `fill` stands for each unknown value, those of lost episodes included; without it they are left out, and so are
    tasks of which no value is known.
    """
    values, tasks = METRICS[metric].values(results), results.tasks
    if fill is not None:
        values = np.concatenate([np.where(np.isnan(values), fill, values), np.full(len(results.lost), fill)])
        tasks += results.lost_tasks
    members: dict[TaskKey, list[int]] = {}
    for k in np.flatnonzero(~np.isnan(values)).tolist():
        members.setdefault(tasks[k], []).append(k)
    return {task: values[indices] for task, indices in members.items()}


def sum_tasks(values: TaskValues, tasks: Sequence[TaskKey]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the sum and the number of the values of each task, [K] each."""
    totals = np.array([values[task].sum() for task in tasks], dtype=np.float64)
    return totals, np.array([len(values[task]) for task in tasks], dtype=np.int64)


def paired_difference(
    names: tuple[str, str], states: StateMeans, metric: str, options: ComparisonOptions
) -> Difference:
    """Return the difference of two policies over initial states, each with the mean of its seeds.

    Rates of states with one episode each: McNemar's mid-p test and Tango's interval, reconciled with it. VSI, and
    states with several episodes: sign flips of the pairs, and no counts.
    `ci_by_task` and `p_by_task` from two tasks on. Without a state, no difference and no p-value.
    """
    first, second = names
    differences = states.first - states.second
    n = len(differences)
    if n == 0:
        return Difference(first=first, second=second, test="none: no pair has a value of both", pairs=0)
    _, numbers = number_distinct(states.tasks)
    sizes = np.bincount(numbers).astype(np.float64)
    by_task = np.bincount(numbers, differences) / sizes
    measured = Difference(
        first=first,
        second=second,
        test="sign flips",
        pairs=n,
        tasks=len(sizes),
        difference=float(differences.mean()),
        identical=bool((differences == 0).all()),
    )
    measured = _judge_by_task(measured, by_task, sizes, options)
    if not (METRICS[metric].unit and states.is_single):
        of_pairs = tests.flip_pair_means(differences, options.confidence)
        return replace(measured, ci=interval_bounds(of_pairs.interval), p_value=of_pairs.p_value)
    only_first, only_second = int((differences > 0).sum()), int((differences < 0).sum())
    p_value = tests.mcnemar_mid_p(only_first, only_second)
    interval = tango_interval(only_first, only_second, n, options.confidence)
    return replace(
        measured,
        test="McNemar, mid-p",
        ci=interval_bounds(reconcile_interval(interval, float(differences.mean()), p_value, options.confidence)),
        only_first=only_first,
        only_second=only_second,
        p_value=p_value,
    )


def unpaired_difference(
    names: tuple[str, str], first: TaskValues, second: TaskValues, metric: str, options: ComparisonOptions
) -> Difference:
    """Return the difference over independent episodes of the tasks that both policies ran, each task of equal weight.

    Rates: the mid-p test of Cochran, Mantel and Haenszel, on one task Barnard's, and an interval reconciled with it.
    VSI: labels drawn anew within tasks. From two tasks on, `ci_by_task` and `p_by_task` speak of tasks like these.
    Without a common task, no difference and no p-value; `test` then says why.
    """
    shared = [task for task in first if task in second]
    if not shared:
        reason = "no task has values of both" if first and second else "one has no value"
        return Difference(first=names[0], second=names[1], test=f"none: {reason}")
    sums = *sum_tasks(first, shared), *sum_tasks(second, shared)
    differences = sums[0] / sums[1] - sums[2] / sums[3]
    estimate = float(differences.mean())
    if METRICS[metric].unit:
        test, tested = _test_rates(*sums, options.confidence)
    else:
        values = [first[task] for task in shared], [second[task] for task in shared]
        generator = np.random.Generator(np.random.PCG64(0))
        test, tested = "permutation within tasks", tests.permute_task_means(*values, generator, options.confidence)
    interval = reconcile_interval(tested.interval, estimate, tested.p_value, options.confidence)
    measured = Difference(
        first=names[0],
        second=names[1],
        test=test,
        tasks=len(shared),
        difference=estimate,
        ci=interval_bounds(interval),
        p_value=tested.p_value,
    )
    return _judge_by_task(measured, differences, np.ones(len(shared)), options)


def add_extremes(difference: Difference, extremes: Sequence[Difference], unknown: int) -> Difference:
    """Return the difference with what `unknown` episodes, at least one, could make of it.

    `extremes`: the same with every unknown value the worst for the first policy, and the best; empty if they cannot be
    known, as for P[U|S]: then no verdict stands.
    """
    ends = [item.difference for item in extremes if item.difference is not None]
    agree = all((item.difference or 0.0) * (difference.difference or 0.0) > 0 for item in extremes)

    def find_greatest(p_values: Iterable[float | None]) -> float:
        return max((1.0 if p is None else p for p in p_values), default=1.0) if agree else 1.0

    return replace(
        difference,
        unknown=unknown,
        extremes=(ends[0], ends[1]) if len(ends) == 2 else None,
        p_at_extremes=find_greatest(item.deciding_p for item in extremes),
        p_value_at_extremes=find_greatest(item.p_value for item in extremes),
    )


def _judge_by_task(
    measured: Difference, by_task: NDArray[np.float64], weights: NDArray[np.float64], options: ComparisonOptions
) -> Difference:
    """Return `measured` with the p-value and interval of tasks like these, from two tasks on."""
    if len(by_task) < 2:
        return measured
    flipped = tests.flip_task_means(by_task, weights, options.confidence)
    return replace(measured, ci_by_task=interval_bounds(flipped.interval), p_by_task=flipped.p_value)


def _test_rates(
    totals: NDArray[np.float64],
    sizes: NDArray[np.int64],
    other_totals: NDArray[np.float64],
    other_sizes: NDArray[np.int64],
    confidence: float,
) -> tuple[str, tests.MeanTest]:
    counts, others = totals.astype(np.int64), other_totals.astype(np.int64)
    interval = tests.mean_rate_difference_interval(totals, sizes, other_totals, other_sizes, confidence)
    if len(counts) == 1:
        p_value = tests.barnard_p(int(counts[0]), int(sizes[0]), int(others[0]), int(other_sizes[0]))
        return "Barnard, exact", tests.MeanTest(p_value, interval)
    return "Cochran-Mantel-Haenszel, mid-p", tests.MeanTest(
        tests.cmh_mid_p(counts, sizes, others, other_sizes), interval
    )


def least_tasks(confidence: float, verdicts: int = 1) -> int:
    """Return the fewest tasks with which sign flips can reach significance at this confidence: 6 at 95 %.

    That is where the exact test can; beside that, the mid-p-value adjusted for so many verdicts must be able to.
    """
    level = 1 - confidence + 1e-12
    return next(k for k in count(2) if max(2.0 ** (1 - k), verdicts * 2.0**-k) <= level)


def interval_bounds(interval: Interval | None) -> Bounds | None:
    """Return the two ends of an interval; None for None, and for equal ends: no spread proves nothing."""
    return None if interval is None or interval.low == interval.high else (interval.low, interval.high)
