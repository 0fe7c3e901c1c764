"""The sentence a report leads with: is it safe, and how sure are we?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safevla_bench.baseline import NOOP
from safevla_bench.compare import Comparison
from safevla_bench.metrics import Rate, Summary, judged
from safevla_bench.report.tables import policy_name
from safevla_bench.text.numbers import NONE, fixed, percent
from safevla_bench.text.sanitize import clipped


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence that answers, and sentences that support it."""

    answer: str
    support: tuple[str, ...] = ()


def headline(cells: Sequence[Summary], aggregate: Summary, comparison: Comparison | None = None) -> Headline:
    """What the summaries say about safety, in words and with the interval that goes with them.

    Args:
        cells: policy × suite.
        aggregate: all of them.
        comparison: of the policies, where there are several: whether their difference can be told.
    """
    if not aggregate.n:
        return Headline(f"It cannot be said: {_nothing(aggregate)}.", _lost(aggregate))
    if not judged(aggregate):
        many = _count(aggregate.n, "episode")
        return Headline(f"It cannot be said: no specification reached a verdict in {many}.", _lost(aggregate))
    every = _by_policy(cells)
    rates = _acting(every)
    unjudged = [cell for cell in cells if cell.n and not judged(cell)]
    whose = f" of {next(iter(rates))}" if unjudged or len(rates) < len(every) else ""
    answer = _several(rates) if len(rates) > 1 else _single(next(iter(rates.values())), whose)
    return Headline(
        answer, (*_silent(unjudged), *_apart(comparison), *_successes(cells), *_uncertainty(rates), *_lost(aggregate))
    )


def _nothing(aggregate: Summary) -> str:
    return "no episode was scored" if aggregate.outcomes else "there are no episodes"


def _by_policy(cells: Sequence[Summary]) -> dict[str, Rate]:
    """Safety of each policy over all its suites, from the counts; without cells in which nothing reached a verdict."""
    found: dict[str, Rate] = {}
    for cell in (cell for cell in cells if cell.n and judged(cell)):
        name = clipped(policy_name(cell))
        before = found.get(name, Rate.of(0, 0))
        mine = cell.rates["safety"]
        found[name] = Rate.of(before.count + mine.count, before.n + mine.n)
    return found


def _acting(rates: dict[str, Rate]) -> dict[str, Rate]:
    """Without the policy that does nothing, where others act: it is a baseline and competes with nobody."""
    return {name: rate for name, rate in rates.items() if name != NOOP} or rates


def _silent(unjudged: Sequence[Summary]) -> tuple[str, ...]:
    names = [
        f"{clipped(policy_name(cell))} on {clipped(cell.suite or NONE)} ({_count(cell.n, 'episode')})"
        for cell in unjudged
    ]
    return (f"No specification reached a verdict for {', '.join(names)}: no number here counts them.",) if names else ()


def _single(safety: Rate, whose: str) -> str:
    unsafe = safety.n - safety.count
    if not unsafe:
        return f"No safety limit was broken in {_count(safety.n, 'episode')}{whose}; {_at_most(safety)}."
    return (
        f"No: {unsafe} of {_count(safety.n, 'episode')}{whose} broke a safety limit; Safety is {_percent(safety)}, "
        f"with a 95 % interval from {_span(safety)} %."
    )


def _at_most(safety: Rate) -> str:
    low = 0.0 if safety.ci is None else safety.ci[0]
    most = f"{fixed(100 * (1 - low), 1)}\N{NO-BREAK SPACE}%"
    return f"with this many, up to {most} unsafe ones remain plausible (95 % interval)"


def _several(rates: dict[str, Rate]) -> str:
    broke = {name: rate for name, rate in rates.items() if rate.count < rate.n}
    if not broke:
        least = min(rates, key=lambda name: rates[name].n)
        many = _count(sum(rate.n for rate in rates.values()), "episode")
        return f"{_all('None', len(rates))} broke a safety limit in {many}; for {least}, {_at_most(rates[least])}."
    ranked = sorted(rates, key=lambda name: -(rates[name].value or 0.0))
    best, last = ranked[0], ranked[-1]
    who = _all("All", len(rates)) if len(broke) == len(rates) else f"{len(broke)} of {len(rates)} policies"
    return (
        f"{who} broke safety limits; Safety runs from {_percent(rates[last])} "
        f"({_span(rates[last])}) for {last} to {_percent(rates[best])} ({_span(rates[best])}) for {best}."
    )


def _all(word: str, count: int) -> str:
    if count == 2:
        return "Both policies" if word == "All" else "Neither policy"
    return f"{word} {'of the ' if word == 'None' else ''}{count} policies"


def _successes(cells: Sequence[Summary]) -> tuple[str, ...]:
    rates = [cell.rates["p_unsafe_given_success"] for cell in cells if judged(cell)]
    unsafe = Rate.of(sum(rate.count for rate in rates), sum(rate.n for rate in rates))
    if not rates:
        return ()
    if not unsafe.n:
        return ("No episode succeeded.",)
    if not unsafe.count:
        return (f"None of the {_count(unsafe.n, 'success', 'es')} was unsafe.",)
    return (f"{unsafe.count} of {_count(unsafe.n, 'success', 'es')} ({_percent(unsafe)}) came about unsafely.",)


def _apart(comparison: Comparison | None) -> tuple[str, ...]:
    """Whether two policies' Safety, over all suites, can be told apart."""
    if comparison is None or len(comparison.policies) != 2 or NOOP in comparison.policies:
        return ()
    found = [one for one in comparison.scopes[-1].metrics if one.metric == "safety"]
    if not found:  # some cell has no verdict
        return ()
    (one,) = found[0].differences
    if one.difference is None or one.ci is None or one.p_value is None:
        return ()
    pairs = comparison.scopes[-1].pairs
    where = f"On the same {_count(pairs or 0, 'episode')}" if comparison.paired else "On independent episodes"
    better, other = (one.first, one.second) if one.difference >= 0 else (one.second, one.first)
    low, high = one.ci if one.difference >= 0 else (-one.ci[1], -one.ci[0])
    points, span = _points(abs(one.difference)), f"{_points(low)} to {_points(high)}"
    if one.p_value <= 1 - comparison.confidence + 1e-12:
        return (f"{where} {clipped(better)} is {points} points safer than {clipped(other)} ({span}).",)
    return (f"{where} a difference of {points} points ({span}) does not tell {clipped(better)} from {clipped(other)}.",)


def _points(share: float) -> str:
    return fixed(100 * share, 1).replace("-", "\N{MINUS SIGN}")


_WIDE = 0.3
"""An interval wider than this share is called wide."""


def _uncertainty(rates: dict[str, Rate]) -> tuple[str, ...]:
    if all(rate.ci is None or rate.ci[1] - rate.ci[0] <= _WIDE for rate in rates.values()):
        return ()
    return ("Some intervals are wider than 30 points: run more episodes before you rely on these numbers.",)


def _lost(aggregate: Summary) -> tuple[str, ...]:
    counts = (("crashed", aggregate.crashed), ("stopped", aggregate.stopped))
    named = [f"{count} {name}" for name, count in counts if count]
    return (f"Outside every rate: {' and '.join(named)}.",) if named else ()


def _percent(rate: Rate) -> str:
    return f"{percent(rate.count, rate.n)}\N{NO-BREAK SPACE}%"


def _span(rate: Rate) -> str:
    return " to ".join(fixed(100 * end, 1) for end in rate.ci) if rate.ci else ""


def _count(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{'' if count == 1 else plural}"
