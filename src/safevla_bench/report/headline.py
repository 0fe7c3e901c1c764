"""The headline of a report: whether the policies are safe, and how certain the answer is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from safevla_bench.compare.comparison import Comparison
from safevla_bench.compare.difference import Difference
from safevla_bench.judging.metrics import NOOP, Summary, describe_clean_bound, describe_unjudged, has_verdict
from safevla_bench.judging.rates import SAFETY, SR, UNSAFE_SUCCESS, Metric, Rate
from safevla_bench.judging.scores import NO_VERDICT, Scores
from safevla_bench.report.tables.columns import policy_name
from safevla_bench.report.tables.comparison_answer import describe_comparison
from safevla_bench.text import NO_VALUE, count_noun, format_fixed, format_percent, shorten_name, shorten_names


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence that says whether the policies are safe, and supporting sentences."""

    answer: str
    support: tuple[str, ...] = ()


def build_headline(
    cells: Sequence[Summary], aggregate: Summary, comparison: Comparison | None = None, *, mixture: str = ""
) -> Headline:
    """Return the headline, with Safety and its interval. If no episode has a verdict, the headline says so.

    Args:
        cells: one summary for each policy × suite.
        aggregate: the summary of all episodes.
        comparison: described for two policies other than `noop`. If it has no verdict on Safety, no policy is ranked.
        mixture: the sentence that `describe_mixture` returns.
    """
    lost_sentences = [
        f"Crashed episodes, excluded from every rate: {aggregate.crashed}." if aggregate.crashed else "",
        f"Stopped episodes, excluded from SR: {aggregate.stopped}." if aggregate.stopped else "",
    ]
    # Without any verdict, the answer says why Safety is unknown.
    if not has_verdict(aggregate):
        reason = "no episode was scored" if aggregate.outcomes else "there are no episodes"
        # If episodes ran but have no verdict, the reasons for this replace the text above.
        if aggregate.unjudged:
            reason = f"{NO_VERDICT} in {describe_unjudged(aggregate.no_verdict)}"
        return Headline(f"Safety is not known: {reason}.", tuple(filter(None, lost_sentences)))
    # Shortened name of each policy -> its Safety over all suites.
    all_rates = _pool_by_policy(cells, SAFETY)
    # The policy noop is left out unless it is the only policy.
    rates = {name: rate for name, rate in all_rates.items() if name != NOOP} or all_rates
    noun = "judged episode" if any(cell.unjudged for cell in cells) else "episode"
    if len(rates) > 1:
        # The comparison may have no verdict on Safety.
        # For example, there is no verdict if means over tasks rank the policies differently.
        is_ranked = not any(result.no_verdict for result in _safety_differences(comparison))
        answer = _several_policies_answer(rates, noun, is_ranked=is_ranked)
    else:
        is_cell_unjudged = any(cell.unjudged and not has_verdict(cell) for cell in cells)
        ((name, safety),) = rates.items()  # the only policy and its rate
        # Name the policy if other policies or suites were run, too, but have no part in this rate.
        of_policy = f" of {name}" if is_cell_unjudged or len(all_rates) > 1 else ""
        answer = _single_policy_answer(safety, of_policy, noun)
    # Wide intervals, from few episodes, get a warning.
    has_wide_interval = any(rate.ci is not None and rate.ci[1] - rate.ci[0] > _WIDE_INTERVAL for rate in rates.values())
    # A sentence that does not apply is empty, and is removed below.
    support = [
        *_exclusion_sentences(cells),
        mixture if len(rates) > 1 else "",
        _difference_sentence(comparison),
        _unsafe_success_sentence(cells),
        _WIDE_INTERVAL_SENTENCE if has_wide_interval else "",
        *lost_sentences,
    ]
    return Headline(answer, tuple(filter(None, support)))


_WIDE_INTERVAL = 0.3  # intervals wider than this share get a warning; 0.3 is 30 points
_WIDE_INTERVAL_SENTENCE = (
    "Some 95 % intervals are wider than 30 points: run more episodes before you rely on these numbers."
)


def _exclusion_sentences(cells: Sequence[Summary]) -> Iterator[str]:
    # Yield up to two sentences on cells (policy × suite).
    # One sentence is on episodes without a verdict, the other on episodes that a violation stopped.
    # `no_verdict` maps each reason to its number of episodes, and `unjudged` is the sum of these numbers.
    names = [f"{shorten_name(policy_name(cell))} on {shorten_name(cell.suite or NO_VALUE)}" for cell in cells]
    named_cells = list(zip(names, cells, strict=True))
    if unjudged := [f"{name}: {describe_unjudged(cell.no_verdict)}" for name, cell in named_cells if cell.unjudged]:
        yield f"Without a verdict, so not in safety rates: {', '.join(unjudged)}."
    if stopped := [f"{name} ({cell.stopped_on_violation})" for name, cell in named_cells if cell.stopped_on_violation]:
        yield f"A violation stopped episodes of {', '.join(stopped)}: their SR, SBU, P[U|S] and VSI are unknown."


# The report mentions different mixtures of tasks if they can change Safety by at least this fraction (0.01 = 1 point).
_LEAST_MIXTURE_GAP = 0.01


def describe_mixture(scores: Scores) -> str:
    """Return a warning if policies (without noop) ran different tasks, or the same tasks in different proportions; else
    "". Proportions alone can change Safety by at most half the sum of the absolute differences of the proportions.
    """
    # Policy -> number of judged episodes of each (suite, task). Tasks without a judged episode have the count 0.
    # So the keys are all tasks that the policy ran. The counts are the tasks' weights in the policy's Safety.
    judged_counts: dict[str | None, Counter[tuple[str, str]]] = {}
    rows = [*zip(scores.policy, scores.benchmark, scores.task_id, scores.is_judged, strict=True)]
    rows += [(episode.policy, episode.benchmark, episode.task_id, False) for episode in scores.absent]
    for policy, suite, task, is_judged in rows:
        if policy != NOOP:
            judged_counts.setdefault(policy, Counter())[suite, task] += int(is_judged)
    if len({frozenset(counts) for counts in judged_counts.values()}) > 1:
        return "The policies did not run the same tasks: these numbers do not rank the policies."
    # For each policy with a verdict: the shares of the tasks, in the same order for all policies.
    shares = [
        np.array([counts[task] for task in sorted(counts)]) / counts.total()
        for counts in judged_counts.values()
        if counts.total()
    ]
    largest_gap = max((float(abs(first - second).sum()) / 2 for first, second in combinations(shares, 2)), default=0.0)
    if largest_gap < _LEAST_MIXTURE_GAP:
        return ""
    return (
        "These numbers do not rank the policies, because their episodes are distributed differently over the tasks. "
        f"This alone can change Safety by up to {format_fixed(100 * largest_gap, 1)} points."
    )


def _pool_by_policy(cells: Sequence[Summary], metric: Metric) -> dict[str, Rate]:
    # Return shortened name of a policy -> the policy's rate in one metric.
    # The rate is over all cells (policy × suite) with a verdict.
    rates_by_policy: dict[str, list[Rate]] = {}
    for cell in cells:
        if has_verdict(cell):
            rates_by_policy.setdefault(policy_name(cell), []).append(cell.rates[metric.key])
    short_names = shorten_names(rates_by_policy)
    return {short_names[name]: Rate.pool(rates) for name, rates in rates_by_policy.items()}


def _single_policy_answer(safety: Rate, of_policy: str, noun: str) -> str:
    # Return the answer for one policy. `count` of the `n` episodes are safe.
    # `of_policy` is " of NAME" or "", and `noun` is "episode" or "judged episode".
    # Episodes with the same initial state are not independent, so the bound counts initial states (`starts`).
    unsafe, episodes = safety.n - safety.count, count_noun(safety.n, noun)
    episodes += f" from {count_noun(safety.starts, 'start')}" if safety.starts else ""
    if not unsafe:
        bound = describe_clean_bound(safety.starts or safety.n)
        return f"No safety limit was broken in {episodes}{of_policy}; given this sample size, {bound}."
    return (
        f"No: {unsafe} of {episodes}{of_policy} broke a safety limit; Safety is {_format_rate(safety)}, "
        f"with a 95 % interval from {_format_ci(safety)} %."
    )


def _safety_differences(comparison: Comparison | None) -> list[Difference]:
    # Return the differences in Safety over all suites (the last scope); [] if Safety is not compared.
    metrics = comparison.scopes[-1].metrics if comparison else ()
    return [result for metric in metrics if metric.metric == SAFETY.key for result in metric.differences]


def _several_policies_answer(rates: dict[str, Rate], noun: str, *, is_ranked: bool) -> str:
    # Return the answer for at least two policies; `rates` maps each to its Safety: `count` of `n` episodes are safe.
    # `is_ranked` is false if the comparison cannot say which policy is safer; then no policy is called best.
    violating_count = sum(rate.count < rate.n for rate in rates.values())
    violating = f"{violating_count or 'None'} of {len(rates)} policies"
    if not violating_count:
        episodes = count_noun(sum(rate.n for rate in rates.values()), noun)
        # Bounds count initial states: `starts` is set if there are fewer initial states than episodes.
        counts = {name: rate.starts or rate.n for name, rate in rates.items()}
        weakest = min(counts, key=lambda name: counts[name])
        bound = describe_clean_bound(counts[weakest])
        return f"{violating} broke a safety limit in {episodes}; {weakest} has the weakest bound: {bound}."
    ranked = sorted(rates, key=lambda name: -(rates[name].value or 0.0))
    best, last = ranked[0], ranked[-1]
    # If the rates look equal, or must not be ranked, list the rates of all policies.
    if not is_ranked or _format_rate(rates[best]) == _format_rate(rates[last]):
        all_rates = ", ".join(f"{name} {_format_rate(rate)} ({_format_ci(rate)})" for name, rate in rates.items())
        return f"{violating} broke safety limits; Safety: {all_rates}."
    return (
        f"{violating} broke safety limits; Safety ranges from {_format_rate(rates[last])} "
        f"({_format_ci(rates[last])}) for {last} to {_format_rate(rates[best])} ({_format_ci(rates[best])}) for {best}."
    )


def _unsafe_success_sentence(cells: Sequence[Summary]) -> str:
    # Return a sentence on the share of successes that were unsafe.
    # Return "" if the share is unknown for any cell (policy × suite), or if no cell has a verdict.
    judged = [cell for cell in cells if has_verdict(cell)]
    if not judged or any(cell.rates[UNSAFE_SUCCESS.key].unknown for cell in judged):
        return ""
    known_rates = {name: rate for name, rate in _pool_by_policy(judged, UNSAFE_SUCCESS).items() if rate.n}
    if not known_rates:
        # If episodes succeeded, but none of these has a verdict, there is nothing to say.
        return "" if any(cell.rates[SR.key].count for cell in judged) else "No episode succeeded."
    successes = count_noun(sum(rate.n for rate in known_rates.values()), "success", "es")
    if not any(rate.count for rate in known_rates.values()):
        return f"None of {successes} was unsafe."
    if len(known_rates) == 1:
        (rate,) = known_rates.values()
        return f"{rate.count} of {successes} ({_format_rate(rate)}) were unsafe."
    parts = [f"{rate.count} of {rate.n} ({_format_rate(rate)}) of {name}" for name, rate in known_rates.items()]
    return f"Unsafe successes: {', '.join(parts)}."


def _difference_sentence(comparison: Comparison | None) -> str:
    # Return the result of comparing two policies; "" unless Safety of exactly two policies was tested.
    # The policy `noop` does nothing, so a comparison with it says little.
    if comparison is None or len(comparison.policies) != 2 or NOOP in comparison.policies:
        return ""
    has_p_value = any(result.p_value is not None for result in _safety_differences(comparison))
    return describe_comparison(comparison) if has_p_value else ""


def _format_rate(rate: Rate) -> str:
    # Return the rate in percent, such as `87.5 %`. The space before the percent sign does not break a line.
    return f"{format_percent(rate.count, rate.n)}\N{NO-BREAK SPACE}%"


def _format_ci(rate: Rate) -> str:
    # Return the interval in percent, such as `81.2 to 93.0`; "" without an interval.
    return " to ".join(format_fixed(100 * end, 1) for end in rate.ci) if rate.ci else ""
