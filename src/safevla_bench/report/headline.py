"""The headline of a report: is it safe, and how certain is that?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from safevla_bench.compare.comparison import Comparison
from safevla_bench.judging.baseline import NOOP
from safevla_bench.judging.metrics import Summary, describe_clean_bound, describe_unjudged, has_verdict
from safevla_bench.judging.rates import SAFETY, SR, UNSAFE_SUCCESS, Rate
from safevla_bench.judging.scores import NO_VERDICT, Scores
from safevla_bench.report.curve_charts import format_points
from safevla_bench.report.tables.comparison_answer import describe_comparison
from safevla_bench.report.tables.table import policy_name
from safevla_bench.text import NO_VALUE, format_fixed, format_percent, shorten_name


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence that answers, and sentences that support it."""

    answer: str
    support: tuple[str, ...] = ()


def build_headline(
    cells: Sequence[Summary],
    aggregate: Summary,
    comparison: Comparison | None = None,
    *,
    mixture: str = "",
) -> Headline:
    """Return the summary of safety in words, with its interval; `mixture` is the sentence of `describe_mixture`."""
    lost = (
        f"Outside every rate: {aggregate.crashed} crashed." if aggregate.crashed else "",
        f"Outside SR: {aggregate.stopped} stopped." if aggregate.stopped else "",
    )
    if not has_verdict(aggregate):
        reason = "no episode was scored" if aggregate.outcomes else "there are no episodes"
        if aggregate.unjudged:
            reason = f"{NO_VERDICT} in {describe_unjudged(aggregate.no_verdict)}"
        return Headline(f"It cannot be said: {reason}.", tuple(filter(None, lost)))
    all_rates = _safety_by_policy(cells)
    rates = {name: rate for name, rate in all_rates.items() if name != NOOP} or all_rates
    silent = any(cell.unjudged and not has_verdict(cell) for cell in cells)
    whose = f" of {next(iter(rates))}" if silent or len(rates) < len(all_rates) else ""
    noun = "judged episode" if any(cell.unjudged for cell in cells) else "episode"
    answer = (
        _several_policies_answer(rates, noun)
        if len(rates) > 1
        else _single_policy_answer(next(iter(rates.values())), whose, noun)
    )
    unjudged = [f"{_cell_name(cell)}: {describe_unjudged(cell.no_verdict)}" for cell in cells if cell.unjudged]
    stopped = [f"{_cell_name(cell)} ({cell.stopped_on_violation})" for cell in cells if cell.stopped_on_violation]
    is_wide = any(rate.ci is not None and rate.ci[1] - rate.ci[0] > _WIDE for rate in rates.values())
    support = (
        f"No verdict, and so in no rate of safety: {', '.join(unjudged)}." if unjudged else "",
        f"A violation stopped episodes of {', '.join(stopped)}: SR, SBU, P[U|S] and VSI are not known there."
        if stopped
        else "",
        mixture if len(rates) > 1 else "",
        _difference_sentence(comparison),
        _unsafe_success_sentence(cells),
        "Some intervals are wider than 30 points: run more episodes before you rely on these numbers."
        if is_wide
        else "",
        *lost,
    )
    return Headline(answer, tuple(filter(None, support)))


_WIDE = 0.3
"""Width from which an interval is called wide, as a share."""
_LEAST_GAP = 0.01
"""Difference of Safety that mixtures of tasks may make before it is said, as a share."""


def describe_mixture(scores: Scores) -> str:
    """Return the sentence on policies that ran other tasks than others, or the same in other proportions; else "".

    The policy that does nothing is left aside. The proportions are those of judged episodes. Half the sum of their
    differences is the greatest difference in Safety that two policies could show by them alone.
    """
    tasks: dict[str | None, set[tuple[str, str]]] = {}
    judged: dict[str | None, Counter[tuple[str, str]]] = {}
    rows = [*zip(scores.policy, scores.benchmark, scores.task_id, scores.is_judged, strict=True)]
    for policy, suite, task, has_safety in [
        *rows,
        *((lost.policy, lost.benchmark, lost.task_id, False) for lost in scores.absent),
    ]:
        if policy != NOOP:
            tasks.setdefault(policy, set()).add((suite, task))
            judged.setdefault(policy, Counter())[suite, task] += int(has_safety)
    if len({frozenset(of_policy) for of_policy in tasks.values()}) > 1:
        return "They did not run the same tasks: these numbers do not rank them."
    shares = [
        np.array([counts[task] for task in sorted(counts)]) / counts.total()
        for counts in judged.values()
        if counts.total()
    ]
    gap = max((float(abs(mine - theirs).sum()) / 2 for mine, theirs in combinations(shares, 2)), default=0.0)
    if gap < _LEAST_GAP:
        return ""
    return (
        f"Their episodes are spread otherwise over the tasks, which alone may make {format_points(gap)} points: these "
        "numbers do not rank them."
    )


def _safety_by_policy(cells: Sequence[Summary]) -> dict[str, Rate]:
    rates: dict[str, Rate] = {}
    for cell in (cell for cell in cells if has_verdict(cell)):
        name = policy_name(cell)
        before = rates.get(name, Rate.of(0, 0))
        cell_rate = cell.rates[SAFETY.key]
        rates[name] = Rate.of(before.count + cell_rate.count, before.n + cell_rate.n)
    short_names = {shorten_name(name): rate for name, rate in rates.items()}
    return short_names if len(short_names) == len(rates) else rates


def _cell_name(cell: Summary) -> str:
    return f"{shorten_name(policy_name(cell))} on {shorten_name(cell.suite or NO_VALUE)}"


def _single_policy_answer(safety: Rate, whose: str, noun: str) -> str:
    unsafe, episodes = safety.n - safety.count, _count_noun(safety.n, noun)
    if not unsafe:
        return f"No safety limit was broken in {episodes}{whose}; with this many, {describe_clean_bound(safety.n)}."
    return (
        f"No: {unsafe} of {episodes}{whose} broke a safety limit; Safety is {_format_rate(safety)}, "
        f"with a 95 % interval from {_format_ci(safety)} %."
    )


def _several_policies_answer(rates: dict[str, Rate], noun: str) -> str:
    broke = {name: rate for name, rate in rates.items() if rate.count < rate.n}
    if not broke:
        who = _all_or_none_phrase("None", len(rates))
        episodes = _count_noun(sum(rate.n for rate in rates.values()), noun)
        least = min(rates, key=lambda name: rates[name].n)
        bound = describe_clean_bound(rates[least].n)
        return f"{who} broke a safety limit in {episodes}; for {least}, with this many, {bound}."
    ranked = sorted(rates, key=lambda name: -(rates[name].value or 0.0))
    best, last = ranked[0], ranked[-1]
    who = f"{len(broke)} of {len(rates)} policies"
    if len(broke) == len(rates):
        who = _all_or_none_phrase("All", len(rates))
    return (
        f"{who} broke safety limits; Safety runs from {_format_rate(rates[last])} "
        f"({_format_ci(rates[last])}) for {last} to {_format_rate(rates[best])} ({_format_ci(rates[best])}) for {best}."
    )


def _all_or_none_phrase(word: Literal["All", "None"], count: int) -> str:
    if count == 2:
        return "Both policies" if word == "All" else "Neither policy"
    return f"{word} {'of the ' if word == 'None' else ''}{count} policies"


def _unsafe_success_sentence(cells: Sequence[Summary]) -> str:
    """Return how many successes were unsafe, by policy; "" without a verdict, or if a cell does not know the number."""
    judged = [cell for cell in cells if has_verdict(cell)]
    by_policy: dict[str, list[Rate]] = {}
    for cell in judged:
        by_policy.setdefault(policy_name(cell), []).append(cell.rates[UNSAFE_SUCCESS.key])
    if not judged or any(rate.unknown for rates in by_policy.values() for rate in rates):
        return ""
    sums = {
        shorten_name(name): Rate.of(sum(rate.count for rate in rates), sum(rate.n for rate in rates))
        for name, rates in by_policy.items()
    }
    known = {name: rate for name, rate in sums.items() if rate.n}
    if not known:
        return "" if any(cell.rates[SR.key].count for cell in judged) else "No episode succeeded."
    successes = _count_noun(sum(rate.n for rate in known.values()), "success", "es")
    if not any(rate.count for rate in known.values()):
        return f"None of the {successes} was unsafe."
    if len(known) == 1:
        (rate,) = known.values()
        return f"{rate.count} of {successes} ({_format_rate(rate)}) came about unsafely."
    parts = [f"{rate.count} of {rate.n} ({_format_rate(rate)}) of {name}" for name, rate in known.items()]
    return f"Successes that came about unsafely: {', '.join(parts)}."


def _difference_sentence(comparison: Comparison | None) -> str:
    """Return what is known of the difference of two policies other than `noop`; "" if Safety cannot be compared."""
    if comparison is None or len(comparison.policies) != 2 or NOOP in comparison.policies:
        return ""
    safety = [metric for metric in comparison.scopes[-1].metrics if metric.metric == SAFETY.key]
    return describe_comparison(comparison) if safety and safety[0].differences[0].p_value is not None else ""


def _format_rate(rate: Rate) -> str:
    return f"{format_percent(rate.count, rate.n)}\N{NO-BREAK SPACE}%"


def _format_ci(rate: Rate) -> str:
    return " to ".join(format_fixed(100 * end, 1) for end in rate.ci) if rate.ci else ""


def _count_noun(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{'' if count == 1 else plural}"
