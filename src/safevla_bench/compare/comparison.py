"""Comparison of policies in SR, Safety and related metrics: differences, verdicts, and ranges of ranks.

The verdict on Safety over all suites is primary; all other verdicts are exploratory. A scope is one suite, or all
suites pooled. Each pair of policies gets two p-values: one for the tasks that were run, and one for other tasks like
these (see `Difference`). Within one scope and metric, p-values are adjusted for the number of pairs of policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from safevla_bench.compare import policy_results
from safevla_bench.compare.difference import (
    ComparisonOptions,
    Difference,
    add_extremes,
    distinct_bounds,
    is_better,
    least_tasks,
    paired_differences,
    unpaired_differences,
    values_by_task,
)
from safevla_bench.compare.pairs import PairedResults, pair_episodes
from safevla_bench.compare.perturbation import Intervention, list_interventions
from safevla_bench.compare.policy_results import PolicyResults, Protocols
from safevla_bench.errors import RunError
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import describe_uneven
from safevla_bench.judging.rates import BOUNDED, CLEAN, METRICS, SAFETY, SBU, SR, Bounds
from safevla_bench.statistics.intervals import bounded_mean_interval, is_significant, wilson_interval
from safevla_bench.statistics.significance import find_tipping_point, holm_adjust, max_t_adjust
from safevla_bench.text import count_noun
from safevla_recorder.episode import Floats, Ints

Compared = TypeVar("Compared")


class PolicyStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's value in one metric, with its interval, over the n episodes in which the metric is defined.

    If episodes are not paired, only tasks in which all policies have a value are counted. `ranks` are the best rank (1
    plus the number of policies shown to be better) and the worst rank (the number of all policies minus the number
    shown to be worse). `ranks` are null for two policies, and for the metric SBU.
    """

    policy: str
    n: int
    value: float | None
    ci: Bounds | None
    ranks: tuple[int, int] | None = None


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison in one metric. `primary` is true if the verdicts are primary, false if they are exploratory."""

    metric: str
    standings: tuple[PolicyStanding, ...]
    differences: tuple[Difference, ...]
    primary: bool = False


class SuiteComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison in one suite, or in all suites pooled (`suite` is null).

    `pairs` is the number of episodes (or initial states) that all policies finished; null if episodes are not paired.
    `left_out` is the number of episodes that some policy did not finish. If a policy has no verdict in a suite, only SR
    is compared. If a violation stopped an episode, only Safety is compared.
    """

    suite: str | None
    pairs: int | None
    left_out: int
    tasks: int  # number of tasks compared
    metrics: tuple[MetricComparison, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of two or more policies with each other."""

    policies: tuple[str, ...]
    paired: bool
    confidence: float
    allow_crashed: bool = False  # True if verdicts ignore episodes without a value
    across_seeds: bool = False  # True if initial states are paired, with mean values over seeds
    scopes: tuple[SuiteComparison, ...]
    across_versions: tuple[str, ...] = ()
    """A text for each suite whose episodes have several versions of a package. It names the suite and the package."""
    warnings: tuple[str, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    """The effect of each action filter, compared with unfiltered episodes. Empty if episodes are not paired."""


def compare_policies(
    results: Sequence[PolicyResults],
    options: ComparisonOptions | None = None,
    *,
    paired: bool = True,
    across_seeds: bool = False,
    across_versions: bool = False,
) -> Comparison:
    """Compare two or more policies with different names, in each suite and over all suites pooled.

    Args:
        results: the results of at least two policies.
        options: the metrics, the confidence, and whether crashed episodes are ignored; None = the defaults.
        paired: whether to compare policies episode by episode. If not, the episodes of two policies count as
            independent samples of the tasks that both ran.
        across_seeds: pair initial states regardless of seeds; an initial state may have episodes with several seeds.
        across_versions: also compare episodes that have different physics versions, or were recorded by different code
            under one version number of this project. Such a comparison is marked.

    Raises `RunError` if the policies cannot be compared: no common task, no value, several simulators, different code.
    If `paired`, raises the errors of `pair_episodes` too. Raises `KeyError` for a metric that is not in `METRICS`.
    """
    options = options or ComparisonOptions()
    _require_comparable(results, paired=paired)
    if not across_versions:
        require_one_simulator(results)
        require_same_code(results)
    pairs = pair_episodes(results, across_seeds=across_seeds) if paired else None
    # `mark_finished` has one flag for each planned episode: whether all policies finished it.
    if pairs and not pairs.mark_finished().any():
        raise RunError("no episode was finished by all policies", remedy="Roll out the lost episodes again.")
    scopes = [_compare_scope(scope, options) for scope in _split_scopes(results, pairs)]
    if not any(scope.metrics for scope in scopes):
        raise _nothing_comparable_error(results)
    return Comparison(
        policies=tuple(result.name for result in results),
        paired=paired,
        confidence=options.confidence,
        allow_crashed=options.allow_crashed,
        across_seeds=paired and across_seeds,
        scopes=tuple(_mark_primary(scopes)),
        across_versions=tuple(provenance_marks.find_mixtures(policy_results.simulator_cells(results))),
        warnings=tuple(policy_results.comparison_warnings(results, scopes[-1].left_out, paired=paired)),
        interventions=tuple(list_interventions(pairs)) if pairs else (),
    )


def compare_where_possible(
    results: Sequence[PolicyResults], options: ComparisonOptions | None = None, *, protocols: Protocols = ()
) -> tuple[Comparison, str]:
    """Compare paired episodes if possible, else independent episodes. Also return why episodes are not paired, or "".

    Episodes are not paired if any two of the sources' `protocols` differ. Episodes with different physics versions are
    compared, and the comparison is marked. Raises `RunError` if no comparison is possible.
    """
    compare = partial(compare_policies, results, options, across_versions=True)
    return pair_where_possible(lambda paired: compare(paired=paired), protocols)


def pair_where_possible(compare: Callable[[bool], Compared], protocols: Protocols) -> tuple[Compared, str]:
    """Return `compare(True)` and "" if episodes can be paired; otherwise, `compare(False)` and the reason."""
    # The argument of `compare` is whether episodes are paired.
    # Without protocols (an empty sequence), `any` is false.
    if any(protocol != protocols[0] for protocol in protocols):
        return compare(False), "the sources were run under different protocols"
    try:
        return compare(True), ""
    except RunError as error:
        reason = error.problem
    # This call is outside of the `except` block, so that the traceback of an error here does not show the first error.
    return compare(False), reason


def require_one_simulator(results: Sequence[PolicyResults]) -> None:
    """Raise `RunError` if the episodes of a suite were simulated with several physics versions."""
    if mixtures := provenance_marks.find_mixtures(policy_results.simulator_cells(results)):
        remedy = "Roll out all policies with one simulator version. To compare them anyway, use `--across versions`."
        raise RunError(f"the episodes have several physics versions: {'; '.join(mixtures)}", remedy=remedy)


def require_same_code(results: Sequence[PolicyResults]) -> None:
    """Raise `RunError` if two policies with the same version number of this project were recorded by different code."""
    if code_difference := policy_results.find_other_code(results):
        remedy = "Roll out both policies with the same code."
        raise RunError(
            f"two policies were recorded by different code: {code_difference}",
            remedy=f"{remedy} To compare the policies anyway, use `safevla compare --across versions`.",
        )


def _require_comparable(results: Sequence[PolicyResults], *, paired: bool) -> None:
    # Raises `RunError` for fewer than two policies, and for a policy without scored episodes.
    # If episodes are not paired, also raises `RunError` if tasks of the same name differ, or if no task is common.
    if len(results) < 2:
        names = ", ".join(result.name for result in results) or "none"
        remedy = "Name two sources, or one source that holds several policies."
        raise RunError(f"a comparison needs at least two policies, but there is only: {names}", remedy=remedy)
    for result in results:
        if not len(result):
            remedy = "Leave this policy out, or roll it out again."
            raise RunError(f"no episode of {result.name} was scored", remedy=remedy)
    if not paired:
        policy_results.require_same_tasks(*results)
    # For paired episodes, `pair_episodes` checks that there are common tasks.
    if not paired and not any({*mine.tasks} & {*theirs.tasks} for mine, theirs in combinations(results, 2)):
        remedy = "Roll out all policies on the same tasks; with different tasks, the tasks may explain a difference."
        raise RunError("no two policies ran a common task", remedy=remedy)


def _nothing_comparable_error(results: Sequence[PolicyResults]) -> RunError:
    # Returns the error for results in which no metric can be compared.
    if silent := policy_results.name_silent_suites(results):
        remedy = "Compare SR, or record the fields that the specifications need; `safevla score` lists these."
        return RunError(f"no specification reached a verdict for {', '.join(silent)}", remedy=remedy)
    problem = f"violations ended episodes early: {', '.join(policy_results.name_stopped_suites(results))}"
    return RunError(problem, remedy="Compare Safety, or roll out without --stop-on-violation.")


# Comparison in one suite, or in all suites pooled


@dataclass(frozen=True)
class _Measured:
    """Differences of `R` pairs of policies: in total; by task, [R, K]; for paired rates, by initial state, [R, N]."""

    differences: list[Difference]
    by_task: Floats
    by_state: Floats | None


@dataclass(frozen=True)
class _SuiteResults:
    """The policies' results in one suite (`suite` None = all suites). If `pairs` is None, episodes are independent."""

    suite: str | None
    members: tuple[PolicyResults, ...]
    pairs: PairedResults | None

    @cached_property
    def shared_tasks(self) -> list[policy_results.TaskKey]:
        # the tasks that all policies ran
        if self.pairs:
            return list(dict.fromkeys((key.suite, key.task_id) for key in self.pairs.keys))
        first, *others = [dict.fromkeys(result.tasks) for result in self.members]
        return [task for task in first if all(task in tasks for tasks in others)]

    def measure(
        self, index_pairs: Ints, metric: str, options: ComparisonOptions, fill: tuple[float, float] | None = None
    ) -> _Measured:
        """Return the differences of `R` pairs of policies with the indices `index_pairs`, [R, 2]. `fill` is a pair
        of values that replace the unknown values of the two policies. If `fill` is None, unknown values are left out.
        """
        # The result also contains the differences by task, [R, tasks].
        # For rates of paired episodes, the result also contains the differences by initial state.
        # Metrics with a unit (%) are rates.
        names = [(self.members[first].name, self.members[second].name) for first, second in index_pairs.tolist()]
        if self.pairs:
            gaps, is_single = self.pairs.state_gaps(index_pairs, metric, fill)
            tasks, places = self.pairs.tasks  # `places` are the indices of the states' tasks
            differences = paired_differences(names, gaps, places, tasks, is_single, metric, options)
            known_gaps = np.nan_to_num(gaps)  # an unknown difference counts as 0, so it does not change a sum
            by_task = known_gaps @ np.equal.outer(places, np.arange(len(tasks))).astype(np.float64)
            return _Measured(differences, by_task, known_gaps if METRICS[metric].unit else None)
        # Without paired episodes, each policy's values are read separately, with the fill value for this policy.
        fills = fill or (None, None)
        # Maps each fill value to the values of all policies, with unknown values replaced by the fill value.
        by_fill = {value: [values_by_task(member, metric, value) for member in self.members] for value in {*fills}}
        first_values, second_values = (
            [by_fill[value][k] for k in policies] for policies, value in zip(index_pairs.T.tolist(), fills, strict=True)
        )
        return _Measured(
            *unpaired_differences(names, (first_values, second_values), self._planned_tasks, metric, options), None
        )

    def find_obstacle(self, pair: Ints, metric: str, *, allow_crashed: bool) -> str:
        """Return why the two policies with the indices `pair` get no verdict in a metric; "" if one is possible.

        One reason is that scored clauses did not judge every episode, because some episodes lack signals. The other is
        that some planned episodes are not compared and not counted as unknown; `allow_crashed` ignores this reason.
        """
        members = [self.members[policy] for policy in pair]
        uneven = describe_uneven(((member.judged_clauses, member.missing_clauses) for member in members), self.suite)
        if uneven and metric != SR.key:
            return uneven
        if allow_crashed:
            return ""
        reasons = []
        for member in members:
            reasons += [f"{member.name}: {reason}" for reason in member.uncounted]
            # A lost episode without an initial state cannot be paired, so it is not counted as unknown.
            unpaired_count = sum(episode.init_state_index is None for episode in member.lost) if self.pairs else 0
            if unpaired_count:
                reasons.append(f"{member.name}: {count_noun(unpaired_count, 'lost episode')} without an initial state")
        return "; ".join(reasons)

    @cached_property
    def _planned_tasks(self) -> list[policy_results.TaskKey]:
        # Returns (suite, task) of each task with at least one episode of any policy, including lost episodes.
        return sorted({task for member in self.members for task in (*member.tasks, *member.lost_tasks)})

    def count_unknown(self, index_pairs: Ints, metric: str) -> Ints:
        # For each of `R` pairs of policies, returns the number of planned episodes without a value, [R].
        if self.pairs:
            unknown = np.array([self.pairs.count_unknown([policy], metric) for policy in range(len(self.members))])
            return np.asarray(unknown[index_pairs].sum(axis=1))
        # Row 0 counts all episodes by policy and task. Row 1 counts the episodes without a value in the same way.
        # The result leaves out tasks that only one policy planned.
        counts = np.zeros((2, len(self.members), len(self._planned_tasks)), dtype=np.int64)
        task_index = {task: k for k, task in enumerate(self._planned_tasks)}
        for policy, member in enumerate(self.members):
            is_unknown = [*np.isnan(METRICS[metric].values(member)).tolist(), *(True for _ in member.lost)]
            for task, is_missing in zip([*member.tasks, *member.lost_tasks], is_unknown, strict=True):
                counts[:, policy, task_index[task]] += (1, is_missing)
        first_policy, second_policy = index_pairs.T
        is_shared = (counts[0, first_policy] > 0) & (counts[0, second_policy] > 0)
        return np.asarray((is_shared * (counts[1, first_policy] + counts[1, second_policy])).sum(axis=1))


def _split_scopes(results: Sequence[PolicyResults], pairs: PairedResults | None) -> list[_SuiteResults]:
    # Returns the results in each suite in which policies can be compared and, with several suites, in all suites.
    # If `pairs` is None, episodes are not paired. A suite then needs a task that at least two policies ran.
    if pairs:
        suites = list(dict.fromkeys(key.suite for key in pairs.keys))
    else:
        task_sets = [dict.fromkeys(result.tasks) for result in results]
        shared = {task for first, second in combinations(task_sets, 2) for task in first if task in second}
        suites = list(dict.fromkeys(task[0] for tasks in task_sets for task in tasks if task in shared))
    scopes: list[str | None] = [*suites, None] if len(suites) > 1 else [*suites]  # None = all suites
    return [
        _SuiteResults(
            suite, tuple(result.select_suite(suite) for result in results), pairs and pairs.select_suite(suite)
        )
        for suite in scopes
    ]


def _compare_scope(scope: _SuiteResults, options: ComparisonOptions) -> SuiteComparison:
    """Compare the policies in each metric that is known for all of them. SR is unknown if a violation stopped an
    episode. Safety is unknown if a suite has no verdict. In either case, all other metrics are unknown.
    """
    judged = not any(result.suites_without_verdict for result in scope.members)
    ran_to_end = not any(result.suites_stopped_on_violation for result in scope.members)
    # Other metrics need both a verdict on safety and an episode that ran to its end.
    is_known = {metric: judged and ran_to_end for metric in options.metrics} | {SR.key: ran_to_end, SAFETY.key: judged}
    finished = scope.pairs.mark_finished() if scope.pairs else None
    return SuiteComparison(
        suite=scope.suite,
        pairs=scope.pairs.count_pairs(finished) if scope.pairs and finished is not None else None,
        left_out=0 if finished is None else int((~finished).sum()),
        tasks=len(scope.shared_tasks),
        metrics=tuple(_compare_metric(scope, metric, options) for metric in options.metrics if is_known[metric]),
    )


def _compare_metric(scope: _SuiteResults, metric: str, options: ComparisonOptions) -> MetricComparison:
    # Returns the values of all policies in one metric, and the difference and the verdict of each pair of policies.
    # `scope` contains the policies' results in one suite, or in all suites.
    policies = range(len(scope.members))
    # A standing is one policy's own value and interval.
    standings = (
        [_episode_standing(scope.pairs, k, metric, options) for k in policies]
        if scope.pairs
        else _task_standings(scope, metric, options)
    )
    pairs = np.array(list(combinations(policies, 2)))  # [R, 2]
    measured = scope.measure(pairs, metric, options)
    # `BOUNDED` contains all metrics except P[U|S]. A value in P[U|S] is unknown if success or safety is unknown.
    unknown = scope.count_unknown(pairs, metric if metric in BOUNDED else CLEAN.key)
    # P[U|S], the share of unsafe episodes among successes, has no extremes: an unknown outcome may be a failure.
    # For other metrics, a fill is a pair of values that replace unknown values of the first and the second policy.
    # The fill (0, 1) gives the smallest possible difference.
    fills = ((0.0, 1.0), (1.0, 0.0)) if metric in BOUNDED and unknown.any() else ()
    extremes = [scope.measure(pairs, metric, options, fill) for fill in fills]
    differences = [
        add_extremes(difference, [extreme.differences[k] for extreme in extremes], count) if count else difference
        for k, (difference, count) in enumerate(zip(measured.differences, unknown.tolist(), strict=True))
    ]
    # One list of p-values for the known values, and one for each extreme.
    adjusted = [_adjust_p_values(assumption, differences) for assumption in (measured, *extremes)]
    decided = [
        _decide_verdict(
            difference,
            metric,
            [p_values[k] for p_values in adjusted],
            options,
            # If values are identical, only unevenly judged clauses prevent the verdict; missing episodes do not.
            partial(scope.find_obstacle, pairs[k], metric, allow_crashed=options.allow_crashed or difference.identical),
        )
        for k, difference in enumerate(differences)
    ]
    if metric in BOUNDED and METRICS[metric].unit:  # the metric is a rate, because means have no unit
        corrected = replace(options, confidence=1 - (1 - options.confidence) / len(pairs))  # Bonferroni
        undecided = [k for k, difference in enumerate(decided) if difference.undecided]
        for k in undecided[:_MAX_TIPPING_POINTS]:
            tipping = _find_tipping(scope, tuple(pairs[k]), decided[k], metric, corrected)
            decided[k] = replace(decided[k], tipping=tipping)
    return _add_rank_ranges(MetricComparison(metric=metric, standings=tuple(standings), differences=tuple(decided)))


_MAX_TIPPING_POINTS = 10  # limit on the number of pairs of policies whose tipping points are computed


def _episode_standing(pairs: PairedResults, policy: int, metric: str, options: ComparisonOptions) -> PolicyStanding:
    # Returns the value and the interval of the policy with the index `policy`.
    # If there are only two policies, an initial state counts only if both policies have a value in it.
    # With more policies, `other` is the policy itself, so that no initial state is left out.
    other = 1 - policy if len(pairs.results) == 2 else policy
    means, is_single = pairs.state_means((policy, other), metric)
    is_counted = bool(METRICS[metric].unit) and is_single  # the metric is a rate, and each state has one episode
    # The function's `values` and `means` are both the means per start. None gives all starts equal weight.
    return _make_standing(pairs.results[policy].name, means, means, None, options, is_counted=is_counted)


def _make_standing(
    policy: str, values: Floats, means: Floats, weights: Floats | None, options: ComparisonOptions, *, is_counted: bool
) -> PolicyStanding:
    """Return a policy's value and interval from its `values`, [n]. If `is_counted`, `values` are 0 or 1, and the
    interval is Wilson's. Otherwise, the interval is that of the weighted mean of `means`, one mean per start.
    """
    # `weights` contains one weight for each start; None = equal weights.
    n, value_sum = len(values), float(values.sum())
    if is_counted:
        interval = wilson_interval(value_sum, n, options.confidence)
    else:
        interval = bounded_mean_interval(means, options.confidence, weights)
    return PolicyStanding(policy=policy, n=n, value=value_sum / n if n else None, ci=distinct_bounds(interval))


def _task_standings(scope: _SuiteResults, metric: str, options: ComparisonOptions) -> Iterator[PolicyStanding]:
    """Yield each policy's value and interval. Only tasks in which all policies have a value are counted."""
    by_policy = [values_by_task(member, metric) for member in scope.members]
    shared = [task for task in scope.shared_tasks if all(task in values for values in by_policy)]
    # A sample contains a policy's values in one task. `by_start.means` are the mean values of the initial states.
    # `by_start.shares` are the states' shares of the number of values. `is_clustered`: some state has several values.
    for member, values in zip(scope.members, by_policy, strict=True):
        samples = [values[task] for task in shared]
        pooled = np.concatenate([np.zeros(0), *(sample.values for sample in samples)])
        means = np.concatenate([np.zeros(0), *(sample.by_start.means for sample in samples)])
        weights = np.concatenate([np.zeros(0), *(sample.by_start.shares * len(sample.values) for sample in samples)])
        is_counted = bool(METRICS[metric].unit) and not any(sample.by_start.is_clustered for sample in samples)
        yield _make_standing(member.name, pooled, means, weights / max(1, len(pooled)), options, is_counted=is_counted)


# Verdicts


def _mark_primary(scopes: Sequence[SuiteComparison]) -> Iterator[SuiteComparison]:
    # Yields the scopes: each suite and, if there are several suites, all suites pooled.
    # One metric of the last scope is primary: Safety or, if Safety is not compared, the first metric.
    last = scopes[-1].metrics  # the metrics of all suites pooled, or of the only suite
    primary = next((metric for metric in last if metric.metric == SAFETY.key), last[0] if last else None)
    for scope in scopes:
        yield replace(scope, metrics=tuple(replace(metric, primary=metric is primary) for metric in scope.metrics))


_PValues = list[tuple[float, float]]


def _adjust_p_values(measured: _Measured, known_differences: Sequence[Difference]) -> _PValues:
    """Return two adjusted p-values for each pair of policies: for the same tasks, and for similar tasks. A pair without
    a p-value gets 1 and is ignored in the adjustment. `max_t_adjust` adjusts the p-values for similar tasks, and the
    p-values of rates of paired episodes. Holm's rule adjusts all other p-values.
    """
    # `measured` may contain assumed values for unknown outcomes.
    # A pair whose known values give no difference is ignored.
    # `by_task` contains each pair's differences by task, and `by_state` those by initial state.
    # `by_state` is None except for rates of paired episodes.
    # One row for each pair of policies: the p-value for the same tasks, and the p-value for similar tasks.
    columns = [[difference.p_value, difference.p_by_task] for difference in measured.differences]
    # The conversion to floats turns a missing p-value (None) into NaN.
    p_values, p_by_task = np.nan_to_num(np.array(columns, dtype=np.float64), nan=1.0).T
    is_tested = [
        difference.p_value is not None and known.pairs != 0 and known.difference is not None
        for difference, known in zip(measured.differences, known_differences, strict=True)
    ]
    tested = np.flatnonzero(is_tested)
    adjusted, adjusted_by_task = np.ones(len(known_differences)), np.ones(len(known_differences))
    adjusted[tested], adjusted_by_task[tested] = p_values[tested], p_by_task[tested]
    if len(tested) > 1:
        by_state = measured.by_state
        p_joint = holm_adjust(p_values[tested].tolist()) if by_state is None else max_t_adjust(by_state[tested])
        adjusted[tested] = np.maximum(p_values[tested], p_joint)
        adjusted_by_task[tested] = np.maximum(p_by_task[tested], max_t_adjust(measured.by_task[tested]))
    return list(zip(adjusted.tolist(), np.maximum(adjusted, adjusted_by_task).tolist(), strict=True))


def _decide_verdict(
    difference: Difference,
    metric: str,
    p_values: _PValues,
    options: ComparisonOptions,
    find_obstacle: Callable[[], str],
) -> Difference:
    """Return the difference with its adjusted p-values and, if the verdict is clear, the better policy. The first item
    of `p_values` is for the known values. If a value is unknown, two more items are for the extremes (`add_extremes`).
    If the difference is significant or the values are identical, `find_obstacle` is called; if it returns a reason,
    there is no verdict.
    """
    # Each item of `p_values` is a pair: the adjusted p-value for the same tasks, and that for similar tasks.
    if difference.p_value is None:
        return difference
    (adjusted, adjusted_by_task), *at_extremes = p_values
    difference = replace(difference, p_adjusted=adjusted)
    if difference.p_by_task is not None:
        least_count = least_tasks(options.confidence)
        tasks_needed = least_count if difference.tasks < least_count else None
        difference = replace(difference, p_by_task_adjusted=adjusted_by_task, tasks_needed=tasks_needed)
    is_clear = difference.identical or (difference.difference and is_significant(adjusted, options.confidence))
    if difference.no_verdict or not is_clear:
        return difference
    if obstacle := find_obstacle():
        return replace(difference, no_verdict=obstacle)
    if not difference.difference:
        return difference
    # A verdict is robust if the difference stays significant for all possible values of unknown outcomes.
    worst_cases = ((difference.p_at_extremes, difference.p_by_task_at_extremes), *at_extremes)
    greatest_p = [max(p_value or 0.0 for p_value in column) for column in zip(*worst_cases, strict=True)]
    is_robust, is_robust_by_task = (
        options.allow_crashed or not difference.unknown or is_significant(p_value, options.confidence)
        for p_value in greatest_p
    )
    if not is_robust:
        return replace(difference, undecided=True)
    is_first_better = (difference.difference > 0) == (METRICS[metric].better == "high")
    better = difference.first if is_first_better else difference.second
    difference = replace(difference, better=better)
    is_shown_by_task = difference.p_by_task is not None and is_significant(adjusted_by_task, options.confidence)
    if difference.tasks_needed or not is_shown_by_task:
        return difference
    if not is_robust_by_task:
        return replace(difference, undecided_by_task=True)
    return replace(difference, better_by_task=better)


def _find_tipping(
    scope: _SuiteResults, pair: tuple[int, int], difference: Difference, metric: str, options: ComparisonOptions
) -> int | None:
    """Return how many unknown outcomes of the better policy may be bad, whichever they are, with the same verdict."""
    # Returns None if the verdict changes even without bad episodes, or if unpaired episodes have the same start.
    # `leading` is the policy that the known values show to be better. Unknown outcomes count as good at first.
    best = 1.0 if METRICS[metric].better == "high" else 0.0
    is_first_leading = ((difference.difference or 0.0) > 0) == (best == 1.0)
    leading, trailing = pair if is_first_leading else pair[::-1]
    if scope.pairs:
        return find_tipping_point(
            scope.pairs.count_outcomes((leading, trailing), metric, best),
            lambda units: is_better(units, options.confidence, paired=True),
        )
    known_values, filled_values, other_values = (
        values_by_task(scope.members[policy], metric, fill)
        for policy, fill in ((leading, None), (leading, best), (trailing, best))
    )
    shared = sorted({*filled_values} & {*other_values})
    if any(side[task].by_start.is_clustered for side in (filled_values, other_values) for task in shared):
        return None
    units = []  # for each task, the five counts that `is_better` describes
    for task in shared:
        values, trailing_values = filled_values[task].values, other_values[task].values
        known_n = len(known_values[task].values) if task in known_values else 0
        # In `values`, each episode without a known outcome has the best value.
        best_n, trailing_best_n = (values == best).sum(), (trailing_values == best).sum()
        units.append((best_n, len(values) - known_n, len(values), trailing_best_n, len(trailing_values)))
    return find_tipping_point(units, lambda units: is_better(units, options.confidence, paired=False))


def _add_rank_ranges(comparison: MetricComparison) -> MetricComparison:
    """Return the comparison with each policy's best and worst rank. Fewer than three policies get no ranks. SBU gives
    no ranks, because a policy that never succeeds has the best SBU, 0.
    """
    if len(comparison.standings) < 3 or comparison.metric == SBU.key:
        return comparison
    policies = [standing.policy for standing in comparison.standings if standing.value is not None]
    ranks = rank_ranges(policies, comparison.differences)
    standings = tuple(replace(standing, ranks=ranks.get(standing.policy)) for standing in comparison.standings)
    return replace(comparison, standings=standings)


def rank_ranges(policies: Sequence[str], differences: Iterable[Difference]) -> dict[str, tuple[int, int]]:
    """Map each policy to its best and worst possible rank, given the verdicts on all pairs for the same tasks."""
    # At first, each policy can have any rank. Each verdict then excludes one rank for each of the two policies.
    ranks = {policy: [1, len(policies)] for policy in policies}
    for difference in differences:
        better, first, second = difference.better, difference.first, difference.second
        if better and first in ranks and second in ranks:
            # The worse policy's best rank grows by one; the better policy's worst rank falls by one.
            ranks[second if better == first else first][0] += 1
            ranks[better][1] -= 1
    return {policy: (best, worst) for policy, (best, worst) in ranks.items()}
