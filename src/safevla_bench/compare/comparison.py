"""Differences of policies in SR, Safety, SBU and VSI, with intervals, tests, and letters for indistinct policies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import provenance_marks, statistics
from safevla_bench.compare.difference import (
    METRICS,
    Bounds,
    ComparisonOptions,
    Difference,
    PairedSample,
    bootstrap_generator,
    interval_bounds,
    paired_difference,
    task_interval,
    unpaired_difference,
)
from safevla_bench.compare.pairs import differing_versions, number_tasks, pair_episodes
from safevla_bench.compare.policy_results import PolicyResults
from safevla_bench.errors import RunError

HIGHER_IS_BETTER = {"sr": True, "safety": True, "sbu": False, "vsi": False}


class PolicyStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one metric: its value over the n episodes that can tell, the plain interval, the one over tasks.

    `letters`: policies of one suite that share a letter do not differ significantly; empty where two were compared.
    """

    policy: str
    n: int
    count: int | None
    value: float | None
    ci: Bounds | None
    ci_by_task: Bounds | None
    letters: str = ""


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one scope; `q` is Cochran's test that all policies are equal, where there are several."""

    metric: str
    standings: tuple[PolicyStanding, ...]
    differences: tuple[Difference, ...]
    q: float | None = None
    q_p_value: float | None = None


class SuiteComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One suite, or all pooled (suite null): pairs counted (null where unpaired), pairs left out, tasks, metrics.

    Where a policy has a suite without any verdict, SR is the only metric; where a violation stopped an episode, Safety.
    """

    suite: str | None
    pairs: int | None
    left_out: int
    tasks: int
    metrics: tuple[MetricComparison, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Policies compared with each other; `identical` lists those that agree in every metric on every pair."""

    policies: tuple[str, ...]
    paired: bool
    confidence: float
    seed: int
    scopes: tuple[SuiteComparison, ...]
    identical: tuple[tuple[str, str], ...] = ()
    across_versions: tuple[str, ...] = ()
    """The suites and packages of which episodes name several physics versions; empty = one simulator."""
    warnings: tuple[str, ...] = ()


def compare_policies(
    results: Sequence[PolicyResults],
    options: ComparisonOptions | None = None,
    *,
    paired: bool = True,
    across_seeds: bool = False,
    across_versions: bool = False,
) -> Comparison:
    """Compare two policies or several, in each suite and over all suites pooled.

    Args:
        results: at least two, with names that differ (see `named_apart`).
        options: metrics, confidence, seed of the bootstrap, test.
        paired: compare episode by episode; else as independent samples.
        across_seeds: pair episodes of one initial state whatever their seeds.
        across_versions: compare episodes of several physics versions too, and mark the comparison.

    Raises:
        RunError: fewer than two policies, one without an episode, a suite simulated with several physics versions, no
            metric with a verdict, and, where paired, what `pair_episodes` raises.
    """
    options = options or ComparisonOptions()
    _require_comparable(results)
    mixtures = provenance_marks.find_mixtures(_simulator_cells(results))
    if mixtures and not across_versions:
        remedy = "Roll all out with one simulator. --across-versions compares nonetheless, and marks the comparison."
        raise RunError(f"the episodes are of several physics versions: {'; '.join(mixtures)}", remedy=remedy)
    pairs = pair_episodes(results, across_seeds=across_seeds) if paired else None
    chosen = pairs.results if pairs else tuple(results)
    if pairs and not pairs.keys:
        raise RunError("no pair was finished on both sides", remedy="Roll out the lost episodes again.")
    left_out = [key.suite for key in pairs.left_out] if pairs else []
    suites = list(dict.fromkeys([header.benchmark for result in chosen for header in result.headers] + left_out))
    scopes = [_compare_suite(chosen, suite, left_out.count(suite), options, paired) for suite in suites]
    if len(suites) > 1:
        scopes.append(_compare_suite(chosen, None, len(left_out), options, paired))
    if not any(scope.metrics for scope in scopes):
        raise _nothing_comparable(results)
    return Comparison(
        policies=tuple(result.name for result in chosen),
        paired=paired,
        confidence=options.confidence,
        seed=options.seed,
        scopes=tuple(scopes),
        identical=_identical_pairs(chosen) if paired else (),
        across_versions=tuple(mixtures),
        warnings=tuple(_comparison_warnings(results, len(left_out))),
    )


def _require_comparable(results: Sequence[PolicyResults]) -> None:
    if len(results) < 2:
        names = ", ".join(result.name for result in results) or "none"
        remedy = "Name two sources, or one that holds several policies."
        raise RunError(f"there is one policy to compare: {names}", remedy=remedy)
    for result in results:
        if not len(result):
            remedy = "Leave it out, or roll it out again."
            raise RunError(f"no episode of {result.name} was scored", remedy=remedy)


def _nothing_comparable(results: Sequence[PolicyResults]) -> RunError:
    if silent := _suites_without_verdict(results):
        remedy = "Compare SR, or record what the specifications need: `safevla score` says what that is."
        return RunError(f"no specification reached a verdict for {', '.join(silent)}", remedy=remedy)
    problem = f"a violation stopped episodes of {', '.join(_suites_stopped_on_violation(results))}"
    return RunError(problem, remedy="Compare Safety, or roll out without --stop-on-violation.")


def _identical_pairs(chosen: Sequence[PolicyResults]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (first.name, second.name)
        for first, second in combinations(chosen, 2)
        if not first.suites_without_verdict
        and not second.suites_without_verdict
        and not first.suites_stopped_on_violation
        and not second.suites_stopped_on_violation
        and all(
            np.array_equal(first.metric_values(metric), second.metric_values(metric), equal_nan=True)
            for metric in METRICS
        )
    )


def _comparison_warnings(results: Sequence[PolicyResults], left_out: int) -> list[str]:
    warnings = list(provenance_marks.warn_of_standins(_standin_cells(results)))
    warnings += provenance_marks.warn_of_mixtures(_simulator_cells(results))
    warnings += [f"{result.name}: {line}" for result in results for line in result.left_out_clauses]
    warnings += [
        f"Versions differ: {name} {' and '.join(dict.fromkeys(versions))}; simulators may not agree between versions."
        for name, versions in differing_versions(results).items()
    ]
    if silent := _suites_without_verdict(results):
        pairs = ", ".join(silent)
        warnings.append(
            f"No specification reached a verdict for {pairs}: only SR is compared there, and over all suites."
        )
    if stopped := _suites_stopped_on_violation(results):
        warnings.append(
            f"A violation stopped episodes of {', '.join(stopped)}: only Safety is compared there, and over all suites."
        )
    unjudged = {result.name: len(result) - int(result.is_judged.sum()) for result in results}
    if any(unjudged.values()):
        counts = ", ".join(f"{name} {count}" for name, count in unjudged.items() if count)
        warnings.append(
            f"Episodes without a verdict: {counts}. Safety, SBU and VSI leave them out; where a policy causes that, it "
            "is flattered."
        )
    if left_out:
        noun = "pair was" if left_out == 1 else "pairs were"
        warnings.append(f"{left_out} {noun} left out: one side {_describe_loss(results)} there.")
    warnings += dict.fromkeys(f"{result.source}: {sentence}." for result in results for sentence in result.left_out)
    lost_counts = {result.name: sum(episode.outcome != "lost" for episode in result.lost) for result in results}
    lost = [f"{name} {count}" for name, count in lost_counts.items() if count]
    if lost:
        warnings.append(
            f"Crashed or stopped: {', '.join(lost)}. Where a policy causes that, leaving it out flatters it."
        )
    if any(header.seed is None for result in results for header in result.headers):
        warnings.append("Some episodes do not record their seed; they are paired by initial state alone.")
    if 0 < sum(result.privileged for result in results) < len(results):
        names = ", ".join(result.name for result in results if result.privileged)
        warnings.append(f"{names} saw simulator state that no real robot has; the others did not.")
    return warnings


def _suites_without_verdict(results: Sequence[PolicyResults]) -> list[str]:
    return [f"{result.name} on {suite}" for result in results for suite in result.suites_without_verdict]


def _suites_stopped_on_violation(results: Sequence[PolicyResults]) -> list[str]:
    return [f"{result.name} on {suite}" for result in results for suite in result.suites_stopped_on_violation]


def _standin_cells(results: Sequence[PolicyResults]) -> dict[provenance_marks.Cell, bool]:
    """Return by policy and suite whether the episodes were simulated with stand-in assets."""
    return {
        (result.name, header.benchmark): header.benchmark in result.standin_suites
        for result in results
        for header in result.headers
    }


def _simulator_cells(results: Sequence[PolicyResults]) -> dict[provenance_marks.Cell, dict[str, tuple[str, ...]]]:
    """Return by policy and suite the versions that decided the physics."""
    return {
        (result.name, suite): versions for result in results for suite, versions in result.simulator_by_suite.items()
    }


def _describe_loss(results: Sequence[PolicyResults]) -> str:
    damaged = any(episode.outcome == "lost" for result in results for episode in result.lost)
    return "crashed, was stopped, or lost its record" if damaged else "crashed or was stopped"


def _compare_suite(
    chosen: Sequence[PolicyResults], suite: str | None, left_out: int, options: ComparisonOptions, paired: bool
) -> SuiteComparison:
    members = [_select_suite(result, suite) for result in chosen]
    judged = not any(result.suites_without_verdict for result in members)
    ran = not any(result.suites_stopped_on_violation for result in members)
    known = {"sr": ran, "safety": judged, "sbu": judged and ran, "vsi": judged and ran}
    task_numbers = number_tasks(header for result in members for header in result.headers)
    clusters = [
        np.array([task_numbers[header.benchmark, header.task_id] for header in result.headers], dtype=np.int64)
        for result in members
    ]
    return SuiteComparison(
        suite=suite,
        pairs=len(members[0]) if paired else None,
        left_out=left_out,
        tasks=len(task_numbers),
        metrics=tuple(
            _compare_metric(members, clusters, name, options, paired) for name in options.metrics if known[name]
        ),
    )


def _select_suite(result: PolicyResults, suite: str | None) -> PolicyResults:
    return result.select_episodes(
        np.array([e for e, header in enumerate(result.headers) if suite in (None, header.benchmark)], dtype=np.int64)
    )


def _compare_metric(
    members: Sequence[PolicyResults],
    clusters: Sequence[NDArray[np.int64]],
    name: str,
    options: ComparisonOptions,
    paired: bool,
) -> MetricComparison:
    all_values = [item.metric_values(name) for item in members]
    known = [~np.isnan(value) for value in all_values]
    if paired:
        known = [np.logical_and.reduce(known)] * len(members)
    values = [value[kept] for value, kept in zip(all_values, known, strict=True)]
    clusters = [cluster[kept] for cluster, kept in zip(clusters, known, strict=True)]
    pairs = list(combinations(range(len(members)), 2))
    measure_difference = paired_difference if paired else unpaired_difference
    differences = [
        measure_difference(
            PairedSample(members[i].name, members[j].name, values[i], values[j], clusters[i], clusters[j], name),
            options,
        )
        for i, j in pairs
    ]
    several = len(members) > 2
    standings = [
        _policy_standing(item.name, value, task, name, options)
        for item, value, task in zip(members, values, clusters, strict=True)
    ]
    if not several:
        return MetricComparison(metric=name, standings=tuple(standings), differences=tuple(differences))
    adjusted = statistics.holm_adjust([1.0 if item.p_value is None else item.p_value for item in differences])
    distinct = {indices for indices, p in zip(pairs, adjusted, strict=True) if p <= 1 - options.confidence + 1e-12}
    q = statistics.cochran_q(np.array(values, dtype=np.bool_).T) if paired and name != "vsi" else None
    return MetricComparison(
        metric=name,
        standings=_assign_letters(standings, distinct, HIGHER_IS_BETTER[name]),
        differences=tuple(
            msgspec.structs.replace(item, p_holm=None if item.p_value is None else p)
            for item, p in zip(differences, adjusted, strict=True)
        ),
        q=None if q is None else q.statistic,
        q_p_value=None if q is None else q.p_value,
    )


def _assign_letters(
    standings: Sequence[PolicyStanding], distinct: set[tuple[int, int]], higher: bool
) -> tuple[PolicyStanding, ...]:
    """Assign letters from the best policy on; a policy without an episode gets none."""
    with_value = [k for k, standing in enumerate(standings) if standing.value is not None]
    order = sorted(with_value, key=lambda k: (standings[k].value or 0.0) * (-1 if higher else 1))
    rank_of = {k: rank for rank, k in enumerate(order)}
    distinct_ranks = {(rank_of[i], rank_of[j]) for i, j in distinct if i in rank_of and j in rank_of}
    letters = dict(zip(order, statistics.letter_display(len(order), distinct_ranks), strict=True))
    return tuple(msgspec.structs.replace(standing, letters=letters.get(k, "")) for k, standing in enumerate(standings))


def _policy_standing(
    policy: str, values: NDArray[np.float64], task: NDArray[np.int64], metric: str, options: ComparisonOptions
) -> PolicyStanding:
    n, total = len(values), float(values.sum())
    interval: statistics.Interval | None
    if metric != "vsi":
        interval = statistics.wilson_interval(int(total), n, options.confidence)
    elif n:
        means = statistics.resampled_means(values[None], bootstrap_generator(options))[0]
        interval = statistics.percentile_interval(means, options.confidence)
    else:  # a suite that only the others ran
        interval = None
    return PolicyStanding(
        policy=policy,
        n=n,
        count=None if metric == "vsi" else int(total),
        value=total / n if n else None,
        ci=interval_bounds(interval),
        ci_by_task=task_interval(values[None], task, options, lambda means: means[0]),
    )
