"""Decisions from comparisons: rankings under other thresholds, choice of a policy, and limits relative to a baseline.

The chosen policy is the best in one metric among the policies that satisfy the conditions. The intervals of all
candidates and metrics hold simultaneously (exact intervals with Bonferroni's correction). Therefore, the intervals of
the chosen policy are valid. The chosen policy is compared with the second-best policy by the ordinary test, which
needs no adjustment for the number of candidates (S. Gutmann and Z. Maymin, Annals of Statistics 15 (1987) 456-461;
K. Hung and W. Fithian, Annals of Statistics 47 (2019) 758-782).

A baseline is another run. A gate limits the difference of a policy from the baseline on the same episodes. The interval
is for the tasks that were run, not for similar tasks, since the same benchmark is run again. Unless ignored, an
episode without a value counts as the worst case for one end of the interval and as the best case for the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from math import inf

import msgspec
import numpy as np

from safevla_bench.compare.comparison import (
    Comparison,
    compare_policies,
    compare_where_possible,
    pair_where_possible,
    require_one_simulator,
)
from safevla_bench.compare.difference import ComparisonOptions, Difference, paired_difference
from safevla_bench.compare.pairs import PairedResults, pair_episodes
from safevla_bench.compare.policy_results import (
    UNNAMED,
    PolicyResults,
    Protocols,
    comparison_warnings,
    list_first,
    require_same_tasks,
    split_by_policy,
)
from safevla_bench.compare.sample_size import LEAST_DIFFERENCE, SampleSizeRequest, plan_sample_size
from safevla_bench.errors import RunError
from safevla_bench.judging.gates import (
    Gate,
    GateOutcome,
    GateReport,
    GateScope,
    check_gates,
    describe_confidence,
    describe_ignored,
    judge_ends,
    mark_doubtful,
    mention_left_out,
    require_valid,
)
from safevla_bench.judging.metrics import describe_uneven
from safevla_bench.judging.rates import METRICS, SAFETY, SR, GateMetric
from safevla_bench.judging.scores import Scores
from safevla_bench.sensitivity.curves import Rescore, ThresholdVariant, apply_variant
from safevla_bench.specs.spec import Library
from safevla_bench.statistics.intervals import CONFIDENCE
from safevla_bench.trajectory.header import Header


class VariantRanking(msgspec.Struct, frozen=True, kw_only=True):
    """The ranking of policies under one variant of the thresholds, safest first, and the difference of each pair."""

    variant: str
    order: tuple[str, ...]  # policies of equal Safety keep the order of the first variant
    differences: tuple[Difference, ...]
    reversed: tuple[tuple[str, str], ...]
    """Pairs of policies whose difference is significant under both the first variant and this one, but with opposite
    signs. The first policy of a pair is safer under the first variant, and the second policy under this variant."""


class RankingSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """The ranking by Safety over all suites under each variant; the first variant is the reference."""

    variants: tuple[VariantRanking, ...]
    paired: bool
    confidence: float
    unpaired: str = ""  # the reason why episodes are not paired; "" if they are paired

    @property
    def changes(self) -> tuple[VariantRanking, ...]:
        """The variants under which the order of two policies is significantly reversed, compared to the reference."""
        return tuple(ranking for ranking in self.variants if ranking.reversed)


_BY_SAFETY = ComparisonOptions(metrics=(SAFETY.key,))


def rank_under_variants(
    scores: Scores,
    headers: Sequence[Header],
    library: Library,
    variants: Sequence[ThresholdVariant],
    rescore: Rescore | None = None,
    protocols: Protocols = (),
    uncounted: Mapping[str | None, Sequence[str]] = {},
) -> RankingSensitivity | None:
    """Return the ranking of the policies by Safety over all suites, under each variant of the thresholds.

    Return None if there is no variant, or if the policies cannot be ranked under some variant: there is only one
    policy, a policy has no Safety over all suites, or no two policies have a common task. Policies without an episode
    are left out. Episodes are paired under every variant or under none, so that only the thresholds differ; `unpaired`
    says why they are not paired.

    Args:
        scores: the verdicts, [E].
        headers: the headers of the episodes in `scores`, in the same order, [E].
        library: the specifications that judged the scores.
        variants: the variants of the thresholds; the first is the reference.
        rescore: a function that judges the same records with another library; needed if the recorded extremes of the
            signals do not determine the verdicts under a variant.
        protocols: the protocols of the sources that have one; if any differ, episodes are not paired.
        uncounted: policy -> phrases on planned episodes that are missing in the scores; such a policy gets no verdict.

    Raises the same errors as `apply_variant`.
    """
    try:
        scores_by_variant = [apply_variant(scores, library, variant, rescore) for variant in variants]
        results_by_variant = [
            [result for result in split_by_policy(variant_scores, headers, uncounted=uncounted) if len(result)]
            for variant_scores in scores_by_variant
        ]
        compare = partial(compare_policies, options=_BY_SAFETY, across_versions=True)
        comparisons, unpaired = pair_where_possible(
            lambda paired: [compare(results, paired=paired) for results in results_by_variant], protocols
        )
    except RunError:
        return None
    # The last scope of a comparison covers all suites. A standing is one policy's value in a metric.
    safety_by_variant = [
        metric
        for comparison in comparisons
        for metric in comparison.scopes[-1].metrics
        if all(standing.value is not None for standing in metric.standings)
    ]
    # Not every variant has the same policies, or some policy has no Safety under some variant.
    if len({comparison.policies for comparison in comparisons}) != 1 or len(safety_by_variant) < len(comparisons):
        return None
    reference_better = {(item.first, item.second): item.better for item in safety_by_variant[0].differences}
    # At first, policies of equal Safety keep the order in which they were given.
    order, rankings = comparisons[0].policies, []
    for variant, metric in zip(variants, safety_by_variant, strict=True):
        # All values are known here, so `or 0.0` only removes None from the type.
        safety_of = {standing.policy: standing.value or 0.0 for standing in metric.standings}
        new_order = tuple(sorted(order, key=safety_of.__getitem__, reverse=True))
        differences = metric.differences
        better_pairs = [(reference_better[item.first, item.second], item.better) for item in differences if item.better]
        # A pair is reversed if one policy is significantly better under the reference, and the other under the variant.
        reversed_pairs = tuple(
            (reference_policy, variant_policy)
            for reference_policy, variant_policy in better_pairs
            if reference_policy not in (None, variant_policy)
        )
        rankings.append(
            VariantRanking(variant=variant.name, order=new_order, differences=differences, reversed=reversed_pairs)
        )
        order = rankings[0].order  # `sorted` keeps this order for policies of equal Safety
    return RankingSensitivity(
        variants=tuple(rankings), paired=not unpaired, confidence=_BY_SAFETY.confidence, unpaired=unpaired
    )


# Choice of a policy


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that may be chosen, with its results for the metric to maximize and for each condition."""

    policy: str
    value: GateOutcome
    conditions: tuple[GateOutcome, ...]

    @property
    def is_met(self) -> bool:
        """True if the estimates satisfy all conditions. Estimates count an unknown outcome as the worst case."""
        # `value` is the outcome for the metric to maximize. Each of `conditions` is the outcome of one condition.
        # `worst` is the estimate; None = unknown.
        return self.value.worst is not None and all(
            row.gate is not None and row.worst is not None and row.gate.is_satisfied(row.worst)
            for row in self.conditions
        )

    @property
    def is_established(self) -> bool:
        """True if the whole interval of each condition's metric satisfies the condition."""
        return all(row.verdict == "passed" for row in self.conditions)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates, best first, and the name of the chosen one (None if no estimates satisfy all conditions).

    `comparison` compares the chosen policy with the runner-up, the next best policy whose estimates satisfy all
    conditions; null if there is no runner-up, or if the two cannot be compared. `unpaired` says why episodes of the two
    policies are not paired. `episodes` is the number of episodes per task and policy with which the difference would be
    significant with 80 % probability, if the true rates equal the measured rates.
    """

    metric: GateMetric
    conditions: tuple[Gate, ...]
    confidence: float  # confidence with which all intervals hold simultaneously
    each_confidence: float
    candidates: tuple[Contender, ...]
    chosen: str | None
    is_established: bool  # True if the intervals establish all conditions for the chosen policy
    comparison: Comparison | None = None
    unpaired: str = ""
    episodes: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_shown(self) -> bool:
        """True if all conditions are established or, without conditions, the chosen policy is significantly better."""
        if self.conditions or self.comparison is None:
            return bool(self.conditions) and self.is_established
        # The last scope covers all tasks. There is one metric, and one difference: that of the two best policies.
        return self.comparison.scopes[-1].metrics[0].differences[0].better == self.chosen


def select_policy(
    scores: Scores,
    headers: Sequence[Header],
    results: Sequence[PolicyResults],
    metric: GateMetric,
    conditions: Sequence[Gate] = (),
    protocols: Protocols = (),
    lost: Sequence[str] = (),
) -> Selection:
    """Choose the policy with the greatest `metric` among the policies whose estimates satisfy the conditions.

    Estimates count every unknown outcome as the worst case. Among equal policies, the policy that satisfies the first
    condition by the largest margin wins, and then the policy that comes first in the scores.

    Args:
        scores: the verdicts of all policies.
        headers: the headers of the episodes in `scores`, in the same order.
        results: the results of each policy in these episodes.
        metric: the metric to maximize; a higher value must be better.
        conditions: limits on metrics.
        protocols: the protocols of the sources that have one; if any differ, episodes are not paired.
        lost: further gaps in the scores, such as an interrupted run; with any gap, no condition is established.

    Raises `RunError` for fewer than two policies, policies with the same name, or policies that ran different tasks.
    """
    _require_candidates(results)
    # The first gate only gives the value of `metric`; its limit of 0 is always satisfied.
    gates = [Gate(metric, "min", 0.0), *conditions]
    checked = check_gates(scores, gates, states=[header.init_state_index for header in headers])
    needs_verdict = [METRICS[gate.metric].needs_verdict for gate in gates]
    uneven = describe_uneven((result.judged_clauses, result.missing_clauses) for result in results)
    # Missing episodes might change any gate that passed.
    # Missing verdicts might change a gate that passed if the gate's metric needs verdicts.
    reasons = ["; ".join([*lost, uneven] if needed and uneven else lost) for needed in needs_verdict]
    lost = [*lost, uneven] if uneven and any(needs_verdict) else lost
    # One outcome for each combination of policy and gate.
    outcomes = [
        msgspec.structs.replace(outcome, verdict="undecided", reason=reason)
        if reason and outcome.verdict == "passed"
        else outcome
        for outcome, reason in zip(checked.outcomes, cycle(reasons), strict=False)
    ]
    # Each policy has one outcome for the metric, followed by one outcome for each condition.
    candidates = []
    for k in range(0, len(outcomes), len(gates)):
        value, *condition_outcomes = outcomes[k : k + len(gates)]
        candidates.append(Contender(policy=value.policy or UNNAMED, value=value, conditions=tuple(condition_outcomes)))
    candidates.sort(key=_sort_key)
    best_two = [candidate for candidate in candidates if candidate.is_met][:2]
    selection = Selection(
        metric=metric,
        conditions=tuple(conditions),
        confidence=CONFIDENCE,
        each_confidence=checked.each_confidence or CONFIDENCE,
        candidates=tuple(candidates),
        chosen=best_two[0].policy if best_two else None,
        is_established=bool(best_two) and best_two[0].is_established and not lost,
        warnings=(*(f"{gap}." for gap in lost), *checked.warnings),
    )
    return _compare_best(selection, best_two, results, protocols) if len(best_two) > 1 else selection


def _require_candidates(results: Sequence[PolicyResults]) -> None:
    # Raises `RunError` unless there are at least two policies, all with different names.
    # Also raises `RunError` unless all policies planned the same tasks, and ran the same versions of these tasks.
    if len(results) < 2:
        names = ", ".join(result.name for result in results) or "none"
        remedy = "Name the runs of at least two policies."
        raise RunError(f"a choice needs at least two policies, but there is only: {names}", remedy=remedy)
    name, count = Counter(result.name for result in results).most_common(1)[0]
    if count > 1:
        raise RunError(f"{count} policies have the name {name}", remedy="Name a policy by `NAME=SOURCE`.")
    first, first_tasks = results[0], {*results[0].tasks, *results[0].lost_tasks}
    for other in results[1:]:
        if differing := sorted(first_tasks ^ {*other.tasks, *other.lost_tasks}):
            listed = list_first([f"{suite}/{task}" for suite, task in differing])
            problem = f"{first.name} and {other.name} did not run the same tasks: {listed}"
            remedy = "Roll out both policies on the same tasks: on harder tasks, a good policy looks bad."
            raise RunError(problem, remedy=remedy)
    require_same_tasks(*results)


def _sort_key(candidate: Contender) -> tuple[bool, float, float]:
    # Candidates that satisfy the conditions come first, sorted by value.
    # Candidates that violate a condition follow, sorted by their distance from the first condition's limit.
    # `slack` is the distance from the first condition's limit, positive if the condition is satisfied.
    slack = 0.0
    if candidate.conditions:
        condition = candidate.conditions[0]
        assert condition.gate is not None
        sign = 1 if condition.gate.bound == "min" else -1
        slack = -inf if condition.worst is None else (condition.worst - condition.gate.limit) * sign
    value = candidate.value.worst
    # False sorts before True, and a negated number puts larger numbers first.
    if candidate.is_met:
        return False, -(value or 0.0), -slack
    return True, -slack, -(value or 0.0)


def _compare_best(
    selection: Selection, best: Sequence[Contender], results: Sequence[PolicyResults], protocols: Protocols
) -> Selection:
    # Returns the selection with the comparison of the two best candidates, or with the reason for no comparison.
    # If the comparison shows no better policy, adds how many episodes would be enough, unless this is unknown.
    by_name = {result.name: result for result in results}
    options = ComparisonOptions(metrics=(selection.metric,), confidence=selection.confidence)
    try:
        pair = [by_name[candidate.policy] for candidate in best]
        comparison, unpaired = compare_where_possible(pair, options, protocols=protocols)
    except RunError as error:
        return msgspec.structs.replace(selection, unpaired=error.problem)
    difference = comparison.scopes[-1].metrics[0].differences[0]  # over all tasks, in the only metric
    episodes = None
    if not difference.better and not difference.no_verdict:
        baseline_rate = max(candidate.value.value or 0.0 for candidate in best)
        episodes = _plan_episodes(difference, baseline_rate, options)
    return msgspec.structs.replace(selection, comparison=comparison, unpaired=unpaired, episodes=episodes)


def _plan_episodes(measured: Difference, baseline_rate: float, options: ComparisonOptions) -> int | None:
    # Returns the number of episodes per task that detects the measured difference.
    # Returns None if the difference is too small, if the counts of pairs are unknown, or if no number is enough.
    # `only_first` and `only_second` count the pairs in which only one policy has the metric's outcome; None = unknown.
    rate_difference = abs(measured.difference or 0.0)
    if (
        rate_difference < LEAST_DIFFERENCE
        or measured.pairs is None
        or measured.only_first is None
        or measured.only_second is None
    ):
        return None
    request = SampleSizeRequest(
        difference=rate_difference,
        baseline=baseline_rate,
        discordant=max(rate_difference, (measured.only_first + measured.only_second) / measured.pairs),
        tasks=measured.tasks,
        confidence=options.confidence,
    )
    return plan_sample_size(request).episodes


# Gates relative to a baseline run


def check_against(
    results: Sequence[PolicyResults],
    baselines: Sequence[PolicyResults],
    gates: Sequence[Gate],
    *,
    per: GateScope = "policy",
    confidence: float | None = CONFIDENCE,
    lost: Sequence[str] = (),
    allow_crashed: bool = False,
) -> GateReport:
    """Check gates that name a baseline: limits on the differences of policies from this baseline.

    Each policy is compared with the baseline's policy of the same name, or with the baseline's only policy.

    Args:
        results: the policies to gate.
        baselines: the policies of the baseline run, which planned the same episodes.
        gates: at least one, each with a `baseline`.
        per: whether to judge each policy over all its suites pooled ("policy"), or in each suite separately ("cell").
        confidence: joint confidence of the intervals; None = the point estimate decides.
        lost: sentences about further episodes that are missing in either run.
        allow_crashed: leave out episodes without a value, and ignore `lost`.

    Raises the same errors as `check_gates`, and `RunError` if there is no baseline, or if the baseline has other
    episodes or another simulator.
    """
    require_valid(gates, confidence)
    scopes = [
        scope for result in results for scope in _pair_with_baseline(result, _choose_baseline(result, baselines), per)
    ]
    decisions = len(scopes) * len(gates)
    each_confidence = None if confidence is None else 1 - (1 - confidence) / decisions
    options = ComparisonOptions(confidence=each_confidence or CONFIDENCE)
    outcomes = [
        mention_left_out(
            _decide_gate(pairs, suite, gate, options, each_confidence, allow_crashed),
            pairs.count_unknown([0, 1], gate.metric) if allow_crashed else 0,
        )
        for all_pairs, suite in scopes
        for gate in gates
        for pairs in [_drop_doubtful(all_pairs, gate.metric)]
    ]
    warnings = (text for pairs, _ in scopes for text in comparison_warnings(pairs.results, left_out=0, paired=True))
    return GateReport.of_outcomes(
        outcomes,
        () if allow_crashed else lost,
        per=per,
        confidence=confidence,
        each_confidence=each_confidence,
        notes=(
            f"Values hold only for these tasks. They are differences from {gates[0].baseline} on the same episodes.",
            *describe_confidence(each_confidence, decisions),
            *describe_ignored(lost if allow_crashed else ()),
        ),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _choose_baseline(result: PolicyResults, baselines: Sequence[PolicyResults]) -> PolicyResults:
    # Returns the baseline's policy of the same name, or its only policy. Raises `RunError` if there is neither.
    # A baseline policy of the same name has precedence, however many policies the baseline has.
    candidates = [baseline for baseline in baselines if baseline.name == result.name] or list(baselines)
    if len(candidates) != 1:
        if not baselines:
            raise RunError("the baseline has no episodes", remedy="Name a baseline with recorded episodes.")
        names = ", ".join(baseline.name for baseline in baselines)
        remedy = f"The baseline has {names}. Give your run one of these names: {names.partition(',')[0]}=RUN."
        raise RunError(f"the baseline has several policies, but not {result.name!r}", remedy=remedy)
    return candidates[0]


def _pair_with_baseline(
    result: PolicyResults, baseline: PolicyResults, per: GateScope
) -> Iterator[tuple[PairedResults, str | None]]:
    # Pairs the episodes of a policy with the episodes of its baseline.
    # If `per` is "cell", yields the pairs of each suite, and the suite's name.
    # Otherwise, yields the pairs of all suites, and None.
    results = (result, baseline)
    require_one_simulator(results)
    try:
        pairs = pair_episodes(results)
    except RunError as error:
        remedy = "Roll out the baseline's tasks, initial states and seeds, under the baseline's protocol."
        raise RunError(f"the run cannot be paired with the baseline: {error.problem}", remedy=remedy) from None
    suites = list(dict.fromkeys(key.suite for key in pairs.keys)) if per == "cell" else [None]
    for suite in suites:
        yield pairs.select_suite(suite), suite


def _drop_doubtful(pairs: PairedResults, metric: GateMetric) -> PairedResults:
    # Returns the pairs without doubtful verdicts. In an episode with a doubtful verdict, the metric's value is unknown.
    # A verdict is doubtful if the episode lacks the signals of a clause, and this clause could change the value.
    # Only a clause counts that judged at least one episode of the suite, whichever policy ran the episode.
    judged = {clause for result in pairs.results for clause in result.judged_clauses}

    def drop(result: PolicyResults) -> PolicyResults:
        episodes = zip(result.headers, result.lacking or [frozenset[str]()] * len(result), strict=True)
        uneven = [any((header.benchmark, spec_id) in judged for spec_id in lacking) for header, lacking in episodes]
        return replace(result, is_judged=result.is_judged & ~mark_doubtful(result, np.array(uneven, np.bool_), metric))

    return replace(pairs, results=tuple(map(drop, pairs.results))) if METRICS[metric].needs_verdict else pairs


def _decide_gate(
    pairs: PairedResults,
    suite: str | None,
    gate: Gate,
    options: ComparisonOptions,
    each_confidence: float | None,
    allow_crashed: bool,
) -> GateOutcome:
    # Returns the gate's outcome for the first policy of the pairs. The second policy is the baseline.
    # `each_confidence` is the confidence of this gate's interval; None = the point estimate decides.
    # If `allow_crashed`, unknown values are left out.
    names = (pairs.results[0].name, pairs.results[1].name)

    def measure(fill: tuple[float, float] | None = None) -> Difference:
        # Returns the gate's difference. `fill` replaces unknown values of each policy; None leaves them out.
        return paired_difference(names, [pairs], (0, 1), gate.metric, options, fill)

    measured = measure()
    unknown_n = 0 if allow_crashed else pairs.count_unknown([0, 1], gate.metric)
    # The smallest and the largest difference that unknown values allow. Without unknown values, both are `measured`.
    extremes = [measure(fill) for fill in ((0.0, 1.0), (1.0, 0.0))] if unknown_n else [measured, measured]
    bounds = [extreme.ci for extreme in extremes]
    if each_confidence is None:
        # Without a confidence, both ends of an interval are the point estimate.
        estimates = [extreme.difference for extreme in extremes]
        bounds = [None if estimate is None else (estimate, estimate) for estimate in estimates]
    # Only stopped episodes of the gate's suite matter; a suite of None means all suites.
    stopped_suites = {name for result in pairs.results for name in result.suites_stopped_on_violation}
    stopped = gate.metric != SAFETY.key and bool(stopped_suites if suite is None else suite in stopped_suites)
    # A difference that is the same in all initial states has no interval, because values without spread prove nothing.
    same = "the difference is the same in all initial states, which gives no interval"
    reason = same if measured.pairs else "no pair has values of both runs"
    reason = "violations ended episodes early: only Safety is known" if stopped else reason
    outcome = GateOutcome(
        policy=names[0], suite=suite, gate=gate, verdict="undecided", reason=reason, n=measured.pairs or 0,
        unknown=unknown_n, value=None if stopped else measured.difference,
    )  # fmt: skip
    if stopped or bounds[0] is None or bounds[1] is None:
        return outcome
    # The lower end is from the interval of the smallest possible difference, the upper end from that of the largest.
    low, high = bounds[0][0], bounds[1][1]
    verdict = judge_ends(gate, low, high)
    reason = "decided by the point estimate" if each_confidence is None else "whole interval"
    if verdict == "undecided":
        # If a scored clause judged only some episodes, all metrics except SR may be unknown in the other episodes.
        uneven = describe_uneven(((result.judged_clauses, result.missing_clauses) for result in pairs.results), suite)
        cause = f" ({uneven})" if uneven and gate.metric != SR.key else ""
        unknown_reason = f"unknown in {unknown_n} episodes{cause}; --allow-crashed leaves out episodes without a value"
        reason = unknown_reason if unknown_n else f"{measured.pairs} pairs are too few to decide"
    ci = None if each_confidence is None else (low, high)
    return msgspec.structs.replace(outcome, verdict=verdict, reason=reason, ci=ci)
