"""Policies compared in SR, Safety and the metrics between them: differences, verdicts, and letters for indistinct ones.

One verdict is primary: Safety over all suites. All others are exploratory. Only the pairs of policies within one
metric of one scope are adjusted for their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    interval_bounds,
    least_tasks,
    paired_difference,
    sum_tasks,
    unpaired_difference,
    values_by_task,
)
from safevla_bench.compare.pairs import PairedResults, pair_episodes
from safevla_bench.compare.perturbation import Intervention, list_interventions
from safevla_bench.errors import RunError
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.rates import BOUNDED, CLEAN, METRICS, SAFETY, SBU, SR, Bounds
from safevla_bench.statistics.intervals import bounded_mean_interval, is_significant, wilson_interval
from safevla_bench.statistics.tests import holm_adjust, letter_display, mean_rate_interval

Compared = TypeVar("Compared")


class PolicyStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one metric: its value over the n episodes that can tell, with its interval.

    Independent episodes: the mean over the tasks that all policies ran. `letters`: policies of one suite that share a
    letter are not told apart; empty where two were compared.
    """

    policy: str
    n: int
    value: float | None
    ci: Bounds | None
    letters: str = ""


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one scope. Verdicts are exploratory unless it is the primary one."""

    metric: str
    standings: tuple[PolicyStanding, ...]
    differences: tuple[Difference, ...]
    primary: bool = False


class SuiteComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One suite, or all pooled (suite null): pairs that all finished (null where unpaired), others, tasks, metrics.

    Where a policy has a suite without any verdict, SR is the only metric; where a violation stopped an episode, Safety.
    """

    suite: str | None
    pairs: int | None
    left_out: int
    tasks: int
    """Tasks that are compared."""
    metrics: tuple[MetricComparison, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Policies compared with each other."""

    policies: tuple[str, ...]
    paired: bool
    confidence: float
    allow_crashed: bool = False
    """Verdicts leave out episodes without a value, whatever these could change."""
    across_seeds: bool = False
    """Pairs are initial states, each with the mean of its seeds."""
    scopes: tuple[SuiteComparison, ...]
    across_versions: tuple[str, ...] = ()
    """The suites and packages of which episodes name several physics versions; empty = one simulator."""
    warnings: tuple[str, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    """What filters did, beside the same episodes without them; of paired episodes alone."""


def compare_policies(
    results: Sequence[policy_results.PolicyResults],
    options: ComparisonOptions | None = None,
    *,
    paired: bool = True,
    across_seeds: bool = False,
    across_versions: bool = False,
) -> Comparison:
    """Compare two policies or several, with names that differ, in each suite and over all suites pooled.

    Args:
        results: of at least two policies.
        options: metrics, confidence; None = the defaults.
        paired: compare episode by episode; else as independent samples, each two policies on the tasks that both ran.
        across_seeds: pair initial states whatever the seeds of their episodes, which may be several.
        across_versions: compare episodes of several physics versions too, and mark the comparison.

    Raises `RunError` if they cannot be compared: nothing in common, nothing known, several simulators, or, where
    paired, what `pair_episodes` raises; `KeyError` for a metric that is not in `METRICS`.
    """
    options = options or ComparisonOptions()
    _require_comparable(results, paired=paired)
    if not across_versions:
        require_one_simulator(results)
    pairs = pair_episodes(results, across_seeds=across_seeds) if paired else None
    if pairs and not pairs.mark_finished().any():
        raise RunError("no pair was finished on both sides", remedy="Roll out the lost episodes again.")
    scopes = [_compare_scope(scope, options) for scope in _split_scopes(results, pairs)]
    if not any(scope.metrics for scope in scopes):
        raise _nothing_comparable(results)
    return Comparison(
        policies=tuple(result.name for result in results),
        paired=paired,
        confidence=options.confidence,
        allow_crashed=options.allow_crashed,
        across_seeds=paired and across_seeds,
        scopes=tuple(_decide_verdicts(scopes, options)),
        across_versions=tuple(provenance_marks.find_mixtures(policy_results.simulator_cells(results))),
        warnings=tuple(policy_results.comparison_warnings(results, scopes[-1].left_out, paired=paired)),
        interventions=tuple(list_interventions(pairs)) if pairs else (),
    )


def compare_where_possible(
    results: Sequence[policy_results.PolicyResults],
    options: ComparisonOptions | None = None,
    *,
    protocols: Sequence[Mapping[str, object]] = (),
) -> tuple[Comparison, str]:
    """Return the comparison of paired episodes and "", else that of independent episodes and why they are not paired.

    Episodes of several physics versions are compared too, and marked. If any of the sources' `protocols` differ,
    episodes are not paired. Raises `RunError` if the policies cannot be compared as independent episodes either.
    """
    return pair_where_possible(
        lambda paired: compare_policies(results, options, paired=paired, across_versions=True), protocols
    )


def pair_where_possible(
    compare: Callable[[bool], Compared], protocols: Sequence[Mapping[str, object]]
) -> tuple[Compared, str]:
    """Return `compare(paired)`, and why episodes are not paired; "" where they are."""
    if any(protocol != protocols[0] for protocol in protocols):
        return compare(False), "the sources were run under different protocols"
    try:
        return compare(True), ""
    except RunError as error:
        unpaired = error.problem
    return compare(False), unpaired


def require_one_simulator(results: Sequence[policy_results.PolicyResults]) -> None:
    """Raise `RunError` if a suite was simulated with several physics versions."""
    if mixtures := provenance_marks.find_mixtures(policy_results.simulator_cells(results)):
        remedy = "Roll all out with one simulator. `safevla compare --across-versions` compares, and marks it."
        raise RunError(f"the episodes are of several physics versions: {'; '.join(mixtures)}", remedy=remedy)


def _require_comparable(results: Sequence[policy_results.PolicyResults], *, paired: bool) -> None:
    """Raise `RunError` for fewer than two policies, one without episodes, and, unpaired, without a common task."""
    if len(results) < 2:
        names = ", ".join(result.name for result in results) or "none"
        remedy = "Name two sources, or one that holds several policies."
        raise RunError(f"there is one policy to compare: {names}", remedy=remedy)
    for result in results:
        if not len(result):
            remedy = "Leave it out, or roll it out again."
            raise RunError(f"no episode of {result.name} was scored", remedy=remedy)
    if not paired and not any({*mine.tasks} & {*theirs.tasks} for mine, theirs in combinations(results, 2)):
        remedy = "Roll them out on the same tasks: a difference between tasks is none between policies."
        raise RunError("no task was run by two of the policies", remedy=remedy)


def _nothing_comparable(results: Sequence[policy_results.PolicyResults]) -> RunError:
    if silent := policy_results.name_silent_suites(results):
        remedy = "Compare SR, or record what the specifications need: `safevla score` says what that is."
        return RunError(f"no specification reached a verdict for {', '.join(silent)}", remedy=remedy)
    problem = f"a violation stopped episodes of {', '.join(policy_results.name_stopped_suites(results))}"
    return RunError(problem, remedy="Compare Safety, or roll out without --stop-on-violation.")


# One suite, or all


@dataclass(frozen=True)
class _Scope:
    """The results of one suite, or of all where it is None, and their pairs; None = independent episodes."""

    suite: str | None
    members: tuple[policy_results.PolicyResults, ...]
    pairs: PairedResults | None

    @cached_property
    def shared_tasks(self) -> list[policy_results.TaskKey]:
        """The tasks that every policy ran, or planned where episodes are paired."""
        if self.pairs:
            return list(dict.fromkeys((key.suite, key.task_id) for key in self.pairs.keys))
        first, *others = [dict.fromkeys(result.tasks) for result in self.members]
        return [task for task in first if all(task in tasks for tasks in others)]

    def difference(
        self, i: int, j: int, metric: str, options: ComparisonOptions, fill: tuple[float, float] | None = None
    ) -> Difference:
        """Return the difference of policies i and j in their known values, or with `fill` for each one's unknown."""
        first, second = self.members[i], self.members[j]
        if self.pairs:
            states = self.pairs.state_means((i, j), metric, fill)
            return paired_difference((first.name, second.name), states, metric, options)
        low, high = fill or (None, None)
        mine, theirs = values_by_task(first, metric, low), values_by_task(second, metric, high)
        return unpaired_difference((first.name, second.name), mine, theirs, metric, options)

    def count_unknown(self, i: int, j: int, metric: str) -> int:
        """Return how many episodes of policies i and j, in tasks that both ran, have no value of the metric."""
        if self.pairs:
            return self.pairs.count_unknown([i, j], metric)
        first, second = self.members[i], self.members[j]
        shared, unknown = {*first.tasks} & {*second.tasks}, [*first.lost_tasks, *second.lost_tasks]
        for member in (first, second):
            values = METRICS[metric].values(member)
            unknown += [task for task, value in zip(member.tasks, values, strict=True) if np.isnan(value)]
        return sum(task in shared for task in unknown)


def _split_scopes(results: Sequence[policy_results.PolicyResults], pairs: PairedResults | None) -> list[_Scope]:
    if pairs:
        suites = list(dict.fromkeys(key.suite for key in pairs.keys))
    else:
        tasks = [dict.fromkeys(result.tasks) for result in results]
        shared = {task for mine, theirs in combinations(tasks, 2) for task in mine if task in theirs}
        suites = list(dict.fromkeys(suite for mine in tasks for suite, name in mine if (suite, name) in shared))
    return [
        _Scope(suite, tuple(result.select_suite(suite) for result in results), pairs and pairs.select_suite(suite))
        for suite in [*suites, *([None] if len(suites) > 1 else [])]
    ]


def _compare_scope(scope: _Scope, options: ComparisonOptions) -> SuiteComparison:
    """Return the comparison of one scope in each metric that all its policies know.

    SR is left out where a violation stopped an episode, Safety where a suite has no verdict, the others in either case.
    """
    judged = not any(result.suites_without_verdict for result in scope.members)
    ran = not any(result.suites_stopped_on_violation for result in scope.members)
    is_known = {metric: judged and ran for metric in options.metrics} | {SR.key: ran, SAFETY.key: judged}
    finished = scope.pairs.mark_finished() if scope.pairs else None
    return SuiteComparison(
        suite=scope.suite,
        pairs=scope.pairs.count_pairs(finished) if scope.pairs and finished is not None else None,
        left_out=0 if finished is None else int((~finished).sum()),
        tasks=len(scope.shared_tasks),
        metrics=tuple(_compare_metric(scope, name, options) for name in options.metrics if is_known[name]),
    )


def _compare_metric(scope: _Scope, metric: str, options: ComparisonOptions) -> MetricComparison:
    numbers = range(len(scope.members))
    standings = (
        [_episode_standing(scope.pairs, k, metric, options) for k in numbers]
        if scope.pairs
        else _task_standings(scope, metric, options)
    )
    differences = (_compare_two(scope, i, j, metric, options) for i, j in combinations(numbers, 2))
    return MetricComparison(metric=metric, standings=tuple(standings), differences=tuple(differences))


def _compare_two(scope: _Scope, i: int, j: int, metric: str, options: ComparisonOptions) -> Difference:
    """Return the difference of policies i and j, with what episodes without a value could make of it.

    Of P[U|S] it is not known which episodes count: those without a value of clean success have none either.
    """
    difference = scope.difference(i, j, metric, options)
    unknown = scope.count_unknown(i, j, metric if metric in BOUNDED else CLEAN.key)
    if not unknown:
        return difference
    fills = ((0.0, 1.0), (1.0, 0.0)) if metric in BOUNDED else ()
    return add_extremes(difference, [scope.difference(i, j, metric, options, fill) for fill in fills], unknown)


def _episode_standing(pairs: PairedResults, k: int, metric: str, options: ComparisonOptions) -> PolicyStanding:
    """Return policy k's value and interval over initial states, each with the mean of its episodes."""
    states = pairs.state_means((k, 1 - k if len(pairs.results) == 2 else k), metric)
    n, total = len(states.first), float(states.first.sum())
    if METRICS[metric].unit and states.is_single:
        interval = wilson_interval(int(total), n, options.confidence)
    else:
        interval = bounded_mean_interval(states.first, options.confidence)
    value = total / n if n else None
    return PolicyStanding(policy=pairs.results[k].name, n=n, value=value, ci=interval_bounds(interval))


def _task_standings(scope: _Scope, metric: str, options: ComparisonOptions) -> Iterator[PolicyStanding]:
    """Yield each policy's mean over the tasks of which all have a value, each of equal weight; None without such."""
    by_policy = [values_by_task(member, metric) for member in scope.members]
    shared = [task for task in scope.shared_tasks if all(task in values for values in by_policy)]
    for member, values in zip(scope.members, by_policy, strict=True):
        totals, sizes = sum_tasks(values, shared)
        if not METRICS[metric].unit and len(shared) == 1:
            interval = bounded_mean_interval(values[shared[0]], options.confidence)
        else:
            interval = mean_rate_interval(totals, sizes, options.confidence)
        mean = float((totals / sizes).mean()) if shared else None
        yield PolicyStanding(policy=member.name, n=int(sizes.sum()), value=mean, ci=interval_bounds(interval))


# Verdicts


def _decide_verdicts(scopes: Sequence[SuiteComparison], options: ComparisonOptions) -> Iterator[SuiteComparison]:
    last = scopes[-1].metrics
    primary = next((metric for metric in last if metric.metric == SAFETY.key), last[0] if last else None)
    for scope in scopes:
        decided = [replace(_decide_metric(metric, options), primary=metric is primary) for metric in scope.metrics]
        yield replace(scope, metrics=tuple(map(_add_letters, decided)))


def _decide_metric(metric: MetricComparison, options: ComparisonOptions) -> MetricComparison:
    """Return the metric with its differences decided; their p-values are adjusted together (Holm)."""
    tested = [item for item in metric.differences if item.deciding_p is not None]
    measured = [item.deciding_p or 0.0 for item in tested]
    worst = [max(p, 0.0 if options.allow_crashed else item.p_at_extremes or 0.0)
             for p, item in zip(measured, tested, strict=True)]  # fmt: skip
    least = least_tasks(options.confidence, len(tested))
    decided = {
        (item.first, item.second): _decide_difference(item, metric.metric, p, worst_p, least, options)
        for item, p, worst_p in zip(tested, holm_adjust(measured), holm_adjust(worst), strict=True)
    }
    differences = tuple(decided.get((item.first, item.second), item) for item in metric.differences)
    return replace(metric, differences=differences)


def _decide_difference(
    item: Difference, metric: str, p: float, worst_p: float, least: int, options: ComparisonOptions
) -> Difference:
    """Return the difference with its adjusted p-value and the better policy, or why it has no verdict."""
    item = replace(item, p_adjusted=p)
    if item.is_by_task and item.tasks < least:
        return replace(item, tasks_needed=least)
    if not item.difference or not is_significant(p, options.confidence):
        return item
    if not is_significant(worst_p, options.confidence):
        return replace(item, undecided=True)
    is_first = (item.difference > 0) == (METRICS[metric].better == "high")
    return replace(item, better=item.first if is_first else item.second)


def _add_letters(metric: MetricComparison) -> MetricComparison:
    """Return the metric with letters in its standings, a for the best; unchanged with fewer than three policies.

    SBU alone has none: it is not a merit, as who never succeeds has none of it.
    """
    if len(metric.standings) < 3 or metric.metric == SBU.key:
        return metric
    values = {standing.policy: standing.value for standing in metric.standings if standing.value is not None}
    order = sorted(values, key=values.__getitem__, reverse=METRICS[metric.metric].better == "high")
    rank_of = {policy: rank for rank, policy in enumerate(order)}
    distinct = {(rank_of[item.first], rank_of[item.second]) for item in metric.differences if item.better}
    letters = dict(zip(order, letter_display(len(order), distinct), strict=True))
    standings = tuple(replace(standing, letters=letters.get(standing.policy, "")) for standing in metric.standings)
    return replace(metric, standings=standings)
