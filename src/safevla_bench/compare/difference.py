"""The difference of two policies in one metric, with tests for the compared tasks and for similar tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from safevla_bench.compare.pairs import PairedResults, number_distinct
from safevla_bench.compare.policy_results import PolicyResults, TaskKey
from safevla_bench.errors import SafevlaError
from safevla_bench.judging.rates import COMPARED, METRICS, Bounds, Metric, StartMeans
from safevla_bench.statistics import intervals, significance
from safevla_bench.text import count_noun
from safevla_recorder.episode import Bools, Floats, Ints

_TIE = 1e-12  # smaller numbers count as 0, because they may be rounding errors
# The score test needs this many episodes per policy and task, unless all policies and tasks have equally many.
_LEAST_EPISODES = 3
# The score test is not used if the ratio of the policies' numbers of episodes varies by a larger factor among tasks.
# Example: policy A has 3 and 300 episodes in two tasks, and policy B has 300 and 3.
# If the success rate of both policies is 97 %, the test errs in 13 % of such comparisons.
_MAX_RATIO_SPREAD = 16


class ComparisonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a comparison. If `allow_crashed` is true, verdicts ignore episodes without a value."""

    metrics: tuple[str, ...] = COMPARED
    confidence: float = intervals.CONFIDENCE
    allow_crashed: bool = False

    def __post_init__(self) -> None:
        # Raises `SafevlaError` unless the confidence is between 0 and 1.
        if not 0 < self.confidence < 1:
            remedy = "Use a fraction between 0 and 1, such as 0.95. On the command line, use a percentage, such as 95."
            raise SafevlaError(f"invalid confidence {self.confidence:g}", remedy=remedy)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first policy's value minus the second's in one metric, with the answers to two questions.

    `p_value`, `ci` and `better` answer the question about the same tasks: would equal policies differ so much if these
    tasks were run again? Fields with `by_task` in their names answer the question about similar tasks: would equal
    policies differ so much on other tasks of the same kind? The second verdict requires that the first is clear.
    For each question, the family-wise error over all pairs of policies is 1 - confidence. `only_first` counts the pairs
    in which only the first policy has the outcome; null for means, unpaired episodes, or several episodes per state.
    """

    first: str
    second: str
    difference: float | None = None
    """Mean difference over initial states of equal weight; if episodes are not paired, over tasks of equal weight."""
    ci: Bounds | None = None
    excludes_zero: bool = False  # True if `p_value` is significant; then 0 is not in `ci`, even if an end of `ci` is 0
    ci_by_task: Bounds | None = None
    pairs: int | None = None
    """Number of pairs in which both policies finished and have a value; null if episodes are not paired."""
    unknown: int = 0  # number of planned episodes of both policies that crashed, were cut short or have no verdict
    extremes: Bounds | None = None
    """The smallest and largest difference that unknown values allow. Null without unknown values, and for P[U|S]."""
    p_at_extremes: float | None = None
    """The larger p-value of the `extremes`; 1 if an extreme and `difference` differ in sign. Null if all is known."""
    p_by_task_at_extremes: float | None = None  # like `p_at_extremes`, but from the tests for similar tasks
    tipping: int | None = None
    """The largest number k of unknown outcomes of the better policy that may be bad without changing the verdict,
    whichever k outcomes are bad. Unknown outcomes of the worse policy count as good. The error level is divided by
    the number of pairs of policies. Null if the verdict changes even for k = 0, or if k was not computed."""
    tasks: int = 0  # number of tasks that both policies ran
    only_first: int | None = None
    only_second: int | None = None
    test: str
    p_value: float | None = None
    p_by_task: float | None = None  # p-value for similar tasks; null if there is only one task
    p_adjusted: float | None = None
    """`p_value`, adjusted for the number of pairs of policies that are compared in this metric and suite."""
    p_by_task_adjusted: float | None = None  # the larger of `p_adjusted` and the adjusted `p_by_task`
    better: str | None = None  # the policy that is significantly better on the same tasks; null = neither policy
    better_by_task: str | None = None  # the policy that is significantly better for similar tasks
    undecided: bool = False
    """True if the known values show a better policy on the same tasks, but unknown values could change this."""
    undecided_by_task: bool = False  # like `undecided`, but about similar tasks
    no_verdict: str = ""  # reason why no p-value permits a verdict on the same tasks; "" = a verdict is possible
    tasks_needed: int | None = None
    """The smallest number of tasks with which `p_by_task` can be significant; null if there are enough tasks."""
    identical: bool = False  # True if both policies have the same value in every pair
    leave_one_out: Bounds | None = None  # smallest and largest difference that results if one task is left out
    depends_on: str | None = None
    """A task that decides the result: without it, the difference changes its sign or is no longer significant."""


class TaskSample(NamedTuple):
    """One policy's values of one metric in one task, [n], and the mean value for each start."""

    values: Floats
    by_start: StartMeans


TaskValues = Mapping[TaskKey, TaskSample]


def values_by_task(results: PolicyResults, metric: str, fill: float | None = None) -> TaskValues:
    """Return task -> the values of a metric in a policy's episodes. Tasks are in order of first appearance.

    `fill` replaces each unknown value, and each value of a lost episode. If `fill` is None, unknown values and tasks
    without a known value are left out.
    """
    # For each episode: the value (NaN if unknown), the task as (suite, task), and the number of the initial state
    values, tasks, starts = METRICS[metric].values(results), results.tasks, results.starts
    if fill is not None:
        values = np.concatenate([np.where(np.isnan(values), fill, values), np.full(len(results.lost), fill)])
        tasks += results.lost_tasks
        # Numbers of known starts are not negative, so these numbers give each lost episode a separate start.
        starts = np.append(starts, -1 - np.arange(len(results.lost)))
    indices_by_task: dict[TaskKey, list[int]] = {}
    for k in np.flatnonzero(~np.isnan(values)).tolist():
        indices_by_task.setdefault(tasks[k], []).append(k)
    return {
        task: TaskSample(values[indices], StartMeans.of(values[indices], starts[indices]))
        for task, indices in indices_by_task.items()
    }


Names = Sequence[tuple[str, str]]
TestOfRows = Callable[[Ints, Bools], significance.MeanTest]
"""A function that tests `Q` pairs of policies. Arguments: the pairs' indices, and a mask of the used tasks, [Q, K]."""


def paired_difference(
    names: tuple[str, str],
    parts: Sequence[PairedResults],
    pair: tuple[int, int],
    metric: str,
    options: ComparisonOptions,
    fill: tuple[float, float] | None = None,
) -> Difference:
    """Return the difference of the two policies with the indices `pair`, over the initial states of all `parts`.
    `fill` is a pair of values that replace the unknown values of the first and the second policy; None = leave out.
    """
    # `gaps` of each part: the first policy's value minus the second's in each initial state, [1, states].
    # `single_by_part`: whether each policy has just one episode per state, [1] for each part.
    gaps, single_by_part = zip(*(part.state_gaps(np.array([pair]), metric, fill) for part in parts), strict=True)
    # Tasks are numbered across all parts; `places` are the indices of the states' tasks.
    numbered_tasks = (part.tasks for part in parts)
    # `number_distinct` returns the distinct tasks and, for each state, the index of the state's task among these.
    tasks, places = number_distinct(tasks[place] for tasks, places in numbered_tasks for place in places)
    has_single = np.logical_and.reduce(single_by_part)
    return paired_differences([names], np.hstack(gaps), places, tasks, has_single, metric, options)[0]


def paired_differences(
    names: Names,
    gaps: Floats,
    places: Ints,
    tasks: Sequence[TaskKey],
    is_single: Bools,
    metric: str,
    options: ComparisonOptions,
) -> list[Difference]:
    """Return the differences of `R` pairs of policies over initial states. A state's value is the mean over its seeds.

    Rates with one episode per state use McNemar's mid-p test and Tango's interval; both lead to the same verdict. Rates
    with several episodes per state use sign flips of the pairs, and leave `only_first` and `only_second` null. VSI uses
    Gaffke's interval and the corresponding test. `ci_by_task` and `p_by_task` need at least two tasks. Without a state,
    there is no difference and no p-value.

    `gaps`, [R, N], is the first policy's value minus the second's in each state; NaN if either is unknown. `places`,
    [N], is the index in `tasks` of each state's task. `is_single`, [R]: whether a state has one episode per policy.
    """
    # Unknown gaps count as 0 in sums, and are not counted in `sizes`.
    is_known, filled = ~np.isnan(gaps), np.nan_to_num(gaps)
    # [N, K]: 1 if the state belongs to the task, else 0
    in_task = np.equal.outer(places, np.arange(len(tasks))).astype(np.float64)
    # For each pair of policies and task, [R, K]: the sum of gaps, and the number of states.
    # `won` and `lost` count the states in which the first policy has the larger or the smaller value.
    sums, sizes, won, lost = (by_state @ in_task for by_state in (filled, is_known, filled > 0, filled < 0))
    is_rate, counts = bool(METRICS[metric].unit), [won, lost, sizes]  # counts of states by task, [R, K] each
    # McNemar's test counts wins and losses, so it needs differences that are all -1, 0 or 1.
    is_whole = np.logical_and(is_rate, np.isin(filled, (-1.0, 0.0, 1.0)).all(axis=1))

    def test(rows: Ints, kept: Bools) -> significance.MeanTest:
        # Tests the pairs of policies with the indices `rows`, each on the tasks that the mask `kept` [rows, K] selects.
        kept_gaps = np.where(kept[:, places], gaps[rows], np.nan)
        if not is_rate:
            return significance.paired_mean_test(kept_gaps, options.confidence)
        whole_rows = np.flatnonzero(is_whole[rows])
        first, second, n = (
            (by_task[rows[whole_rows]] * kept[whole_rows]).sum(axis=1).astype(np.int64) for by_task in counts
        )
        # Rows whose gaps are all -1, 0 or 1 use McNemar's test. All other rows use sign flips.
        return _join_groups(
            (whole_rows, lambda _: significance.mcnemar_test(first, second, n, options.confidence)),
            (
                np.flatnonzero(~is_whole[rows]),
                _test_each_row(
                    lambda k: significance.flip_pair_means(kept_gaps[k][~np.isnan(kept_gaps[k])], options.confidence)
                ),
            ),
        )

    measured = []
    for k, (first_name, second_name) in enumerate(names):
        won_n, lost_n, pair_n = (int(by_task[k].sum()) for by_task in counts)
        if not pair_n:
            missing = "none: no pair has values of both policies"
            measured.append(Difference(first=first_name, second=second_name, test=missing, pairs=0))
            continue
        # Wins and losses are numbers of episodes only if each state has one episode per policy.
        has_counts = is_rate and bool(is_single[k])
        rate_test = "McNemar, mid-p" if has_counts else "sign flips"
        # `_test_tasks` adds the difference, the interval and the p-values.
        measured.append(
            Difference(
                first=first_name,
                second=second_name,
                test=rate_test if is_rate else "Gaffke",
                pairs=pair_n,
                only_first=won_n if has_counts else None,
                only_second=lost_n if has_counts else None,
                identical=not filled[k].any(),
            )
        )
    return _test_tasks(measured, tasks, (sums, sizes), test, options)


def _test_each_row(test: Callable[[int], significance.MeanTest]) -> Callable[[Ints], significance.MeanTest]:
    # Turns a function that tests one row, given the row's index, into a function that tests several rows.
    # A row is a pair of policies.
    return lambda rows: significance.join_tests([test(k) for k in rows.tolist()])


def _join_groups(*groups: tuple[Ints, Callable[[Ints], significance.MeanTest]]) -> significance.MeanTest:
    # Joins the results of all groups in the order of the rows. A row is a pair of policies.
    # Each group consists of row indices and a function that tests these rows.
    # The function takes the indices, and returns a test with one p-value and one interval for each row.
    tested = [(rows, test(rows)) for rows, test in groups if len(rows)]
    order = np.argsort(np.concatenate([rows for rows, _ in tested] or [np.zeros(0, dtype=np.int64)]))
    joined = significance.join_tests([result for _, result in tested])

    def find_interval() -> intervals.Interval:
        # `order` puts the rows of the joined tests back in the order of the pairs of policies.
        # `low` and `high` are arrays with one end per row.
        ends = joined.interval or _NO_INTERVAL  # joined tests always have an interval
        return intervals.make_interval(np.asarray(ends.low)[order], np.asarray(ends.high)[order])

    return significance.MeanTest(joined.p_value[order], find_interval)


def unpaired_differences(
    names: Names,
    sides: tuple[Sequence[TaskValues], Sequence[TaskValues]],
    tasks: Sequence[TaskKey],
    metric: str,
    options: ComparisonOptions,
) -> tuple[list[Difference], Floats]:
    """Return the differences of `R` pairs of policies, and the differences in each of `K` tasks, [R, K]. Episodes count
    as independent. All tasks that both policies ran have equal weight. The difference in any other task is 0.

    Rates use the stratified score test and its interval. On a single task, they use Barnard's test and Newcombe's
    interval; both lead to the same verdict. For VSI, for rates with several episodes per start, and for very unequal
    numbers of episodes, Gaffke's intervals of the two means are combined (MOVER). `ci_by_task` and `p_by_task`, for
    similar tasks, need at least two tasks. Without a common task, there is no difference and no p-value, and `test`
    says why. `sides` has two members: the values of the first policy of each pair, and the values of the second policy.
    """
    # Several pairs share a policy, so compute the sums of each policy only once. Equal ids mean the same values.
    sums_by_id = {id(values): _sum_by_task(values, tasks) for side in sides for values in side}
    # For the first and the second policy of each pair: three arrays [R, K], with one item per task.
    # The arrays are the sum of values, the number of values, and whether several values have the same start.
    (first_sums, first_sizes, first_clustered), (second_sums, second_sizes, second_clustered) = (
        (np.array(column) for column in zip(*(sums_by_id[id(values)] for values in side), strict=True))
        for side in sides
    )
    is_shared = (first_sizes > 0) & (second_sizes > 0)
    # The first policy's mean minus the second's in each task, [R, K]
    gaps = np.where(is_shared, first_sums / np.maximum(first_sizes, 1) - second_sums / np.maximum(second_sizes, 1), 0.0)
    is_rate = bool(METRICS[metric].unit)
    # The score test is not valid if the ratio of the policies' numbers of episodes varies much between tasks.
    size_ratios = np.where(is_shared, first_sizes / np.maximum(second_sizes, 1), np.nan)
    is_even = ~(np.fmax.reduce(size_ratios, axis=1) > _MAX_RATIO_SPREAD * np.fmin.reduce(size_ratios, axis=1))
    # [R]: True if the values are counts of independent episodes, so that tests of counts apply
    has_counts = is_rate & is_even & ~((first_clustered | second_clustered) & is_shared).any(axis=1)
    bounded_means = _BoundedMeans(tasks)

    def test(rows: Ints, kept: Bools) -> significance.MeanTest:
        # Tests the pairs of policies in `rows`, each with the tasks that `kept` [pairs, tasks] selects.
        # Rates of one task use Barnard's exact test, and rates of several tasks a score test.
        # All other values use Gaffke's intervals.
        kept_n = kept.sum(axis=1)
        # Four arrays [pairs, tasks]: sums and counts of the first policy's values, then of the second policy's values.
        counts = [np.where(kept, by_task[rows], 0) for by_task in (first_sums, first_sizes, second_sums, second_sizes)]

        def test_single_task(k: int) -> significance.MeanTest:
            # Tests row `k`, in which only one task is kept, so that each sum over tasks is this task's number.
            first_sum, first_size, second_sum, second_size = (int(by_task[k].sum()) for by_task in counts)
            return significance.barnard_test(first_sum, first_size, second_sum, second_size, options.confidence)

        def test_bounded(chosen: Ints) -> significance.MeanTest:
            # `chosen` are indices into `rows`. `sides` contains both policies' values by task for each pair.
            pairs = [(sides[0][k], sides[1][k]) for k in rows[chosen].tolist()]
            return bounded_means.test(
                pairs, kept[chosen], options.confidence, only_side=not (kept == is_shared[rows]).all()
            )

        is_counted = has_counts[rows]
        return _join_groups(
            (np.flatnonzero(is_counted & (kept_n == 1)), _test_each_row(test_single_task)),
            (
                np.flatnonzero(is_counted & (kept_n != 1)),
                lambda chosen: significance.score_difference(
                    counts[0][chosen], counts[1][chosen], counts[2][chosen], counts[3][chosen], options.confidence
                ),
            ),
            (np.flatnonzero(~is_counted), test_bounded),
        )

    measured = []
    for k, (first_name, second_name) in enumerate(names):
        shared = np.flatnonzero(is_shared[k])  # indices of tasks
        missing = "no task has values of both policies" if sides[0][k] and sides[1][k] else "one policy has no value"
        count_test = _SCORE_TEST if len(shared) > 1 else "Barnard, exact"
        test_name = count_test if has_counts[k] else "Gaffke, MOVER"
        # For each policy: the sum of values and the number of values in each shared task
        totals = (first_sums[k, shared], first_sizes[k, shared]), (second_sums[k, shared], second_sizes[k, shared])
        # `_test_tasks` adds the difference, the interval and the p-values.
        measured.append(
            Difference(
                first=first_name,
                second=second_name,
                test=test_name if len(shared) else f"none: {missing}",
                no_verdict=_find_obstacle(
                    (first_name, second_name), [tasks[task] for task in shared.tolist()], totals, METRICS[metric]
                ),
            )
        )
    return _test_tasks(measured, tasks, (gaps, is_shared.astype(np.float64)), test, options), gaps


_SCORE_TEST = "stratified score test (Miettinen and Nurminen)"


def _sum_by_task(values: TaskValues, tasks: Sequence[TaskKey]) -> tuple[Floats, Ints, Bools]:
    # Returns three arrays [K] for one policy's values in each task: sum, number, and whether some values share a start.
    # Tasks without a value get 0, 0 and False.
    samples = [values.get(task) for task in tasks]
    return (
        np.array([0.0 if sample is None else sample.values.sum() for sample in samples]),
        np.array([0 if sample is None else len(sample.values) for sample in samples], dtype=np.int64),
        np.array([sample is not None and sample.by_start.is_clustered for sample in samples], dtype=np.bool_),
    )


def _test_tasks(
    measured: Sequence[Difference],
    tasks: Sequence[TaskKey],
    parts: tuple[Floats, Floats],
    test: TestOfRows,
    options: ComparisonOptions,
) -> list[Difference]:
    """Return `measured` (differences of `R` pairs of policies) with three kinds of results added: on the same tasks,
    on these tasks with each task left out in turn, and for similar tasks. `parts` are the sum of values and the
    weight of each of `K` tasks, both [R, K]. Tasks of weight 0 are ignored. Pairs without any weight get no results.
    """
    # `test(rows, kept)` tests the pairs of policies with the indices `rows`, each on the tasks in the mask `kept`.
    # Indices of the pairs of policies in which at least one task has a weight above 0
    rows = np.flatnonzero(parts[1].any(axis=1))
    if not len(rows):
        return list(measured)
    sums, weights = (part[rows] for part in parts)
    # A difference is the weighted mean of the tasks' values: the sum of sums divided by the sum of weights.
    is_used, total_sum, total_weight = weights > 0, sums.sum(axis=1, keepdims=True), weights.sum(axis=1, keepdims=True)
    tested, task_counts = test(rows, is_used), is_used.sum(axis=1)
    estimates = _drop_rounding(total_sum / total_weight)[:, 0]
    # [R]: True if the difference is significant
    is_shown = intervals.is_significant(tested.p_value, options.confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        # estimates for each of `R` pairs of policies if each of `K` tasks in turn is left out, [R, K]
        without = _drop_rounding((total_sum - sums) / (total_weight - weights))
        without = np.where(is_used & (task_counts > 1)[:, None], without, np.nan)
    lowest, highest = np.fmin.reduce(without, axis=1), np.fmax.reduce(without, axis=1)
    # `order` sorts the tasks by the estimate without the task, times the sign of the estimate over all tasks.
    # Leaving out the first task in `order` reduces the size of the estimate most, or reverses its sign.
    order = np.argsort(np.round(without * estimates[:, None], 12), axis=1, kind="stable")
    changes_sign = (lowest * highest <= 0) | (np.sign(lowest) != np.sign(estimates))
    loses_significance = np.zeros_like(is_used)
    # Each significant difference is tested again without each of its tasks in turn.
    retested, left_out = np.nonzero(is_used & (is_shown & ~changes_sign & (task_counts > 1))[:, None])
    if len(retested):
        is_kept = is_used[retested]
        is_kept[np.arange(len(retested)), left_out] = False
        p_without = test(rows[retested], is_kept).p_value
        loses_significance[retested, left_out] = ~intervals.is_significant(p_without, options.confidence)
    is_decisive = np.take_along_axis(loses_significance, order, axis=1)
    # If leaving out some task changes the sign, leaving out the first task in `order` (column 0) changes it.
    is_decisive[:, 0] |= changes_sign & (task_counts > 1)
    # The task whose removal changes the sign or makes the difference insignificant; -1 = no such task
    decisive_task = np.where(
        is_decisive.any(axis=1) & (estimates != 0), order[np.arange(len(rows)), is_decisive.argmax(axis=1)], -1
    )
    interval = tested.interval or _NO_INTERVAL
    low, high = (np.broadcast_to(end, len(rows)) for end in (interval.low, interval.high))
    # The test for similar tasks flips the signs of the tasks' values.
    p_by_task, low_by_task, high_by_task = _flip_tasks(sums, weights, options.confidence)
    completed = list(measured)
    for k, row in enumerate(rows.tolist()):
        has_several_tasks = task_counts[k] > 1
        completed[row] = replace(
            measured[row],
            tasks=int(task_counts[k]),
            difference=float(estimates[k]),
            ci=distinct_bounds(intervals.Interval(low[k], high[k])),
            p_value=float(tested.p_value[k]),
            excludes_zero=bool(is_shown[k]),
            ci_by_task=distinct_bounds(intervals.Interval(low_by_task[k], high_by_task[k])),
            p_by_task=float(p_by_task[k]) if has_several_tasks else None,
            leave_one_out=(float(lowest[k]), float(highest[k])) if has_several_tasks else None,
            depends_on="/".join(tasks[decisive_task[k]]) if decisive_task[k] >= 0 else None,
        )
    return completed


def _drop_rounding(values: Floats) -> Floats:
    # Returns the values, with 0 in place of values that differ from 0 only by rounding errors.
    return np.where(np.abs(values) < _TIE, 0.0, values)


_NO_INTERVAL = intervals.Interval(np.nan, np.nan)


def _flip_tasks(sums: Floats, weights: Floats, confidence: float) -> Floats:
    """Return the p-values and both ends of the intervals for similar tasks, [3, R]; NaN for fewer than two tasks."""
    # Pairs of policies with the same tasks are tested together.
    # `sums` and `weights` [R, K] are the tasks' sums of values and weights; a task of weight 0 is not used.
    results = np.full((3, len(sums)), np.nan)
    masks, mask_indices = np.unique(weights > 0, axis=0, return_inverse=True)
    for k, mask in enumerate(masks):
        rows = np.flatnonzero(mask_indices.ravel() == k)  # the shape of `mask_indices` depends on NumPy's version
        if mask.sum() > 1:
            task_sums, task_weights = (side[np.ix_(rows, mask)] for side in (sums, weights))
            test = significance.flip_task_means(task_sums / task_weights, task_weights, confidence)
            interval = test.interval or _NO_INTERVAL
            results[0, rows], results[1, rows], results[2, rows] = test.p_value, interval.low, interval.high
    return results


def _find_obstacle(
    names: tuple[str, str], tasks: Sequence[TaskKey], totals: Sequence[tuple[Floats, Ints]], metric: Metric
) -> str:
    """Return why a verdict on the same tasks is impossible: a rate's numbers of values are unequal and too small,
    or the means over episodes do not show the difference that the means over tasks show. Return "" without a reason.
    """
    # `totals` contains two arrays [K] for each policy: the sum of values and the number of values in each task.
    if len(tasks) < 2:
        return ""
    # `least` is the smallest number of values of either policy in any task.
    is_uneven = len({size for _, sizes in totals for size in sizes.tolist()}) > 1
    least, task, name = min(
        (int(size), "/".join(task), name)
        for name, (_, sizes) in zip(names, totals, strict=True)
        for size, task in zip(sizes, tasks, strict=True)
    )
    if metric.unit and is_uneven and least < _LEAST_EPISODES:
        return (
            "with unequal numbers of values in policies or tasks, each number must be at least "
            f"{_LEAST_EPISODES}: {name} has {count_noun(least, 'value')} in task {task}"
        )
    # For each policy, the mean over all episodes, in which tasks with more episodes have more weight
    pooled = [float(sums.sum() / sizes.sum()) for sums, sizes in totals]
    # The difference of the policies if all tasks have equal weight
    mean = float((totals[0][0] / totals[0][1] - totals[1][0] / totals[1][1]).mean())
    # The pooled difference is 0 or has the other sign.
    if abs(mean) > _TIE and (pooled[0] - pooled[1]) * mean <= _TIE * abs(mean):
        values = [f"{metric.format(value)}{' %' if metric.unit else ''}" for value in pooled]
        relation = (
            "the values pooled over episodes are equal"
            if abs(pooled[0] - pooled[1]) <= _TIE
            else "the values pooled over episodes have the reverse order"
        )
        return f"the means over tasks differ, but {relation} ({values[0]} and {values[1]})"
    return ""


def add_extremes(difference: Difference, extremes: Sequence[Difference], unknown: int) -> Difference:
    """Return the difference with the possible effects of the outcomes of `unknown` episodes (at least one episode).

    `extremes` holds the smallest and the largest difference that the unknown values allow. For the metric P[U|S],
    `extremes` is empty, because neither difference can be computed; then there is no verdict.
    """
    known_ends = [extreme.difference for extreme in extremes if extreme.difference is not None]
    # A product above 0 means that both differences have the same sign.
    has_same_sign = all((extreme.difference or 0.0) * (difference.difference or 0.0) > 0 for extreme in extremes)

    def find_greatest(p_values: Iterable[float | None]) -> float:
        # Returns the greatest of the p-values. A missing p-value counts as 1.
        # Returns 1 if an extreme does not have the sign of the difference, or if there are no extremes.
        return max((1.0 if p is None else p for p in p_values), default=1.0) if has_same_sign else 1.0

    return replace(
        difference,
        unknown=unknown,
        extremes=(known_ends[0], known_ends[1]) if len(known_ends) == 2 else None,
        p_at_extremes=find_greatest(extreme.p_value for extreme in extremes),
        p_by_task_at_extremes=find_greatest(extreme.p_by_task for extreme in extremes),
    )


def is_better(units: Sequence[significance.Unit], confidence: float, *, paired: bool) -> bool:
    """Return whether a policy is significantly better than another. A unit is an initial state or a task, with five
    counts: the policy's good outcomes, unknown outcomes and episodes, and the other's good outcomes and episodes.
    """
    # If `paired`, the units are initial states, otherwise tasks.
    # The number of unknown outcomes is not needed, because `good` includes the unknown outcomes assumed to be good.
    good, _, n, other_good, other_n = np.array(units).T
    # The policy's share of good episodes minus that of the other policy, in each unit
    gaps = good / n - other_good / other_n
    if not paired and len(units) == 1:
        tested = significance.barnard_test(int(good[0]), int(n[0]), int(other_good[0]), int(other_n[0]), confidence)
    elif not paired:
        tested = significance.score_difference(
            good, n.astype(np.int64), other_good, other_n.astype(np.int64), confidence
        )
    elif np.isin(gaps, (-1.0, 0.0, 1.0)).all():
        tested = significance.mcnemar_test(int((gaps > 0).sum()), int((gaps < 0).sum()), len(gaps), confidence)
    else:
        tested = significance.flip_pair_means(gaps, confidence)
    return bool(gaps.mean() > 0 and intervals.is_significant(tested.p_value, confidence))


_QUANTILES = np.linspace(0.0, 4.4, 23)  # normal quantiles that determine the levels of the intervals


class _BoundedMeans:
    """Gaffke's intervals of means over tasks of equal weight, and MOVER intervals of the differences of two means."""

    def __init__(self, tasks: Sequence[TaskKey]) -> None:
        # `_known` is a cache of arrays [3, levels], with one interval of the mean for each level of confidence.
        # The rows are the mean itself (repeated), its distance from the lower end, and its distance from the upper end.
        # Keys of `_known` consist of the id of a policy's values, the mask of kept tasks as bytes, and `only_side`.
        self._tasks, self._known = tasks, dict[tuple[int, bytes, bool], Floats]()

    def test(
        self, pairs: Sequence[tuple[TaskValues, TaskValues]], kept: Bools, confidence: float, *, only_side: bool
    ) -> significance.MeanTest:
        """Return the test of `Q` pairs of policies, each over the tasks that the mask `kept`, [Q, K], selects.

        The p-value is the error level at which the interval just reaches 0. It is interpolated between the intervals of
        24 levels. If `only_side`, the p-value is a rough value on the correct side of 1 - confidence.
        """
        z = intervals.normal_quantile(confidence)
        # A quantile z of the normal distribution determines the level of an interval: 1.96 gives 95 %.
        quantiles = np.array([z]) if only_side else np.unique(np.append(_QUANTILES, z))
        # Each policy's mean is needed once for each set of tasks, even if several pairs share the policy.
        keys, wanted = [], dict[tuple[int, bytes], tuple[TaskValues, Bools]]()
        for pair, mask in zip(pairs, kept, strict=True):
            keys.append([(id(values), mask.tobytes()) for values in pair])
            wanted |= {key: (values, mask) for key, values in zip(keys[-1], pair, strict=True)}
        self._measure(wanted, quantiles, only_side=only_side)
        # Shape [3, pairs, levels]: each policy's mean, and its distances from the lower and upper end of each interval.
        first, second = (
            np.array([self._known[*key, only_side] for key in column]).transpose(1, 0, 2)
            for column in zip(*keys, strict=True)
        )
        estimates = (first[0] - second[0])[:, 0]
        # Distances of each difference from both ends of its intervals have the shape [pairs, levels].
        # The inner end of an interval is the end that is nearer to 0.
        all_reaches = np.hypot(first[1], second[2]), np.hypot(first[2], second[1])
        inner_reaches, index = np.where(estimates[:, None] > 0, *all_reaches), int(np.searchsorted(quantiles, z))
        distances = np.abs(estimates)
        # the quantile at which the inner end of each interval reaches 0, interpolated
        crossings = np.array([np.interp(*pair, quantiles) for pair in zip(distances, inner_reaches, strict=True)])
        is_shown, level = inner_reaches[:, index] < distances, 1 - confidence
        p_values = np.array([2 * NormalDist().cdf(-quantile) for quantile in crossings])
        ends = intervals.make_interval(estimates - all_reaches[0][:, index], estimates + all_reaches[1][:, index])
        p_values = np.where(is_shown, np.minimum(p_values, level), np.maximum(p_values, level + 1e-9))
        return significance.MeanTest(p_values, lambda: ends)

    def _measure(
        self, wanted: Mapping[tuple[int, bytes], tuple[TaskValues, Bools]], quantiles: Floats, *, only_side: bool
    ) -> None:
        # Measures the means in `wanted` that the cache `_known` lacks, and adds them to the cache.
        # `wanted` maps a key to a pair: a policy's values by task, and the mask of kept tasks.
        # `quantiles` determine the levels of the intervals. `only_side` is part of the cache's keys.
        # The arrays have a row for each policy, mask and level. NaN pads the rows to equal length.
        new = {key: item for key, item in wanted.items() if (*key, only_side) not in self._known}
        kept_samples = [
            [values[task] for task, is_kept in zip(self._tasks, mask, strict=True) if is_kept]
            for values, mask in new.values()
        ]
        sizes = [sum(len(sample.by_start.means) for sample in samples) for samples in kept_samples]
        # Mean value in each initial state, and the state's weight. Tasks have equal weight.
        means, weights = np.full((2, len(new), max(sizes, default=0)), np.nan)
        for k, samples in enumerate(kept_samples):
            means[k, : sizes[k]] = np.concatenate([sample.by_start.means for sample in samples])
            weights[k, : sizes[k]] = np.concatenate([sample.by_start.shares for sample in samples]) / len(samples)
        levels = np.array([2 * NormalDist().cdf(quantile) - 1 for quantile in quantiles])
        means, weights = (np.repeat(array, len(quantiles), axis=0) for array in (means, weights))
        low, high = (
            end.reshape(-1, len(quantiles))
            for end in intervals.bounded_mean_ends(means, np.tile(levels, len(new)), weights)
        )
        for k, (key, samples) in enumerate(zip(new, kept_samples, strict=True)):
            # The mean over tasks of the means over episodes
            mean = float(np.mean([sample.values.mean() for sample in samples]))
            self._known[*key, only_side] = np.array([np.full(len(quantiles), mean), mean - low[k], high[k] - mean])


def least_tasks(confidence: float) -> int:
    """Return the least number of tasks with which a sign-flip test can be significant: 6 at a confidence of 95 %."""
    # With k tasks there are 2^k flips of signs, and the smallest two-sided p-value is 2 / 2^k.
    level = 1 - confidence + 1e-12  # 1e-12 absorbs rounding errors
    return next(k for k in count(2) if 2.0 ** (1 - k) <= level)


def distinct_bounds(interval: intervals.Interval | None) -> Bounds | None:
    """Return an interval's ends; None if they are missing or equal, because values without spread prove nothing."""
    if interval is None or interval.low == interval.high or np.isnan(interval.low):
        return None
    return float(interval.low), float(interval.high)
