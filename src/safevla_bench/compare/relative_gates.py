"""Gates relative to another run: limits on the difference from it, on the same episodes.

Pairs are those of a comparison, and the interval is that of these tasks: a benchmark is run again. Episodes without a
value enter at their worst and at their best, unless they are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import NormalDist

import msgspec
import numpy as np

from safevla_bench.compare.comparison import require_one_simulator
from safevla_bench.compare.difference import ComparisonOptions, Difference, paired_difference
from safevla_bench.compare.pairs import PairedResults, pair_episodes
from safevla_bench.compare.policy_results import PolicyResults, comparison_warnings
from safevla_bench.errors import RunError
from safevla_bench.judging.gates import (
    POWER,
    Gate,
    GateOutcome,
    GateReport,
    GateScope,
    judge_ends,
    require_valid,
)
from safevla_bench.judging.rates import SAFETY
from safevla_bench.statistics.intervals import CONFIDENCE, normal_quantile
from safevla_bench.text import format_fixed


def check_against(
    results: Sequence[PolicyResults],
    baselines: Sequence[PolicyResults],
    gates: Sequence[Gate],
    *,
    per: GateScope = "policy",
    confidence: float | None = CONFIDENCE,
    sequential: bool = False,
    lost: Sequence[str] = (),
    allow_crashed: bool = False,
) -> GateReport:
    """Check the differences of policies from a baseline against gates that name it.

    Each policy is held against the baseline's of its name, else against the only one.

    Args:
        results: the policies that are gated.
        baselines: the policies of the other run, which planned the same episodes.
        gates: at least one, each with a `baseline`.
        per: judge each policy with its suites pooled, or each suite apart.
        confidence: of the intervals that decide, all together; None = the point estimate decides.
        sequential: use intervals that hold however often one looks; needs a confidence.
        lost: further gaps in either run, each as one sentence.
        allow_crashed: leave out episodes without a value, and pass over what is in `lost`.

    Raises:
        SafevlaError: what `check_gates` raises.
        RunError: no baseline for a policy, other episodes, or another simulator.
    """
    require_valid(gates, confidence, sequential)
    scopes = [scope for result in results for scope in _split_suites(result, _find_baseline(result, baselines), per)]
    decisions = len(scopes) * len(gates)
    each = None if confidence is None else 1 - (1 - confidence) / decisions
    options = ComparisonOptions(confidence=each or CONFIDENCE, sequential=sequential)
    outcomes = [_decide(pairs, suite, gate, options, each, allow_crashed) for pairs, suite in scopes for gate in gates]
    warnings = (line for pairs, _ in scopes for line in comparison_warnings(pairs.results, 0, paired=True))
    return GateReport.of_outcomes(
        outcomes,
        () if allow_crashed else lost,
        per=per,
        confidence=confidence,
        each_confidence=each,
        sequential=sequential,
        notes=tuple(_describe_rule(gates[0].baseline, each, decisions, sequential)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _find_baseline(result: PolicyResults, baselines: Sequence[PolicyResults]) -> PolicyResults:
    named = [baseline for baseline in baselines if baseline.name == result.name] or list(baselines)
    if len(named) != 1:
        names = ", ".join(baseline.name for baseline in baselines) or "none"
        remedy = f"It has {names}. Name the policy as there: {names.partition(',')[0]}=RUN."
        raise RunError(f"the baseline has no policy {result.name!r}, and not one alone", remedy=remedy)
    return named[0]


def _split_suites(
    result: PolicyResults, baseline: PolicyResults, per: GateScope
) -> Iterator[tuple[PairedResults, str | None]]:
    both = (result, baseline)
    require_one_simulator(both)
    try:
        pairs = pair_episodes(both)
    except RunError as error:
        remedy = "Roll out the baseline's tasks, initial states and seeds under its protocol."
        raise RunError(f"the run cannot be paired with the baseline: {error.problem}", remedy=remedy) from None
    suites = list(dict.fromkeys(key.suite for key in pairs.keys)) if per == "cell" else [None]
    for suite in suites:
        yield pairs.select_suite(suite), suite


def _decide(
    pairs: PairedResults,
    suite: str | None,
    gate: Gate,
    options: ComparisonOptions,
    each: float | None,
    allow_crashed: bool,
) -> GateOutcome:
    """Return the outcome of a gate, by the point estimate where `each` is None, else by the whole interval."""
    names = (pairs.results[0].name, pairs.results[1].name)

    def measure(fill: tuple[float, float] | None = None) -> Difference:
        return paired_difference(names, pairs.state_means((0, 1), gate.metric, fill), gate.metric, options)

    known = measure()
    unknown = 0 if allow_crashed else pairs.count_unknown([0, 1], gate.metric)
    ends = [measure(fill) for fill in ((0.0, 1.0), (1.0, 0.0))] if unknown else [known, known]
    bounds = [_find_ends(item, each) for item in ends]
    stopped = gate.metric != SAFETY.key and any(result.suites_stopped_on_violation for result in pairs.results)
    outcome = GateOutcome(
        policy=names[0], suite=suite, gate=gate, verdict="undecided", reason="no pair has a value of both",
        n=known.pairs or 0, unknown=unknown, value=None if stopped else known.difference,
    )  # fmt: skip
    if stopped:
        return msgspec.structs.replace(outcome, reason="a violation stopped episodes: only Safety is known")
    if bounds[0] is None or bounds[1] is None:
        return outcome
    low, high = bounds[0][0], bounds[1][1]
    verdict = judge_ends(gate, low, high)
    reason = "point estimate, no confidence" if each is None else "whole interval"
    needed = None
    if verdict == "undecided":
        needed = None if each is None or unknown else _plan_pairs(pairs, gate, known.difference or 0.0, each)
        reason = _describe_doubt(known, unknown, needed)
    ci = None if each is None else (low, high)
    return msgspec.structs.replace(outcome, verdict=verdict, reason=reason, ci=ci, n_needed=needed)


def _find_ends(item: Difference, each: float | None) -> tuple[float, float] | None:
    if each is None and item.difference is not None:
        return item.difference, item.difference
    return item.ci


def _describe_doubt(known: Difference, unknown: int, needed: int | None) -> str:
    if unknown:
        return f"unknown in {unknown} episodes; --allow-crashed gates the others"
    if needed is None:
        return "the difference lies at the limit, so that no number of episodes would tell"
    value = format_fixed(known.difference or 0.0, 3)
    return f"{known.pairs} pairs cannot tell; about {needed} would with a chance of 80 % if {value} were the true one"


def _plan_pairs(pairs: PairedResults, gate: Gate, difference: float, confidence: float) -> int | None:
    """Return about how many pairs would decide: by the normal distribution, at least as many as equal ones need."""
    gap = abs(difference - gate.limit)
    if gap == 0:
        return None
    states = pairs.state_means((0, 1), gate.metric)
    z = normal_quantile(confidence)
    reach = z + NormalDist().inv_cdf(POWER)
    return ceil(max(reach**2 * float(np.var(states.first - states.second)) / gap**2, z**2 * (1 - gap) / gap))


def _describe_rule(baseline: str, each: float | None, decisions: int, sequential: bool) -> Iterator[str]:
    yield f"Values are differences from {baseline} on the same episodes, on these tasks."
    if each is None:
        yield "Point estimates decide, without confidence: chance alone may pass or fail a gate."
    elif decisions > 1:
        yield f"{decisions} intervals: each at {100 * each:.4g} %, so that all hold together (Bonferroni)."
    if sequential:
        yield "Sequential: the intervals hold however often you check, and whenever you stop."
