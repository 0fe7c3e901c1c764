"""What a comparison says, first: a sentence on the primary metric, then a block with SR and clean success."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from safevla_bench.compare.comparison import Comparison, MetricComparison, PolicyStanding
from safevla_bench.compare.difference import Difference
from safevla_bench.judging.rates import CLEAN, COMPARED, METRICS, SAFETY, SR, Bounds, Metric
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.statistics.intervals import is_significant
from safevla_bench.text import NO_VALUE, format_fixed, format_interval

SHOWN = (SAFETY.key, SR.key, CLEAN.key)
"""The metrics of the block, if all are compared."""
_MOST_NAMED = 3
"""Pairs of policies that the sentence names; more are counted."""


def describe_comparison(comparison: Comparison) -> str:
    """Return what the comparison says of its primary metric, pooled: on these tasks, and on tasks like these."""
    compared = _primary(comparison)
    metric, differences = METRICS[compared.metric], compared.differences
    if len(comparison.policies) == 2:
        exploratory = [] if compared.primary else ["This verdict is exploratory: the primary one is Safety's."]
        return " ".join([*_pair_sentences(differences[0], metric, comparison), *exploratory])
    shown = [f"{item.better} {metric.praise} than {_other(item)}" for item in differences if item.better]
    if not shown:
        few = next((item for item in differences if item.tasks_needed), None)
        needed = f" It takes {few.tasks_needed} tasks; these are {few.tasks}." if few else ""
        return f"No two of {len(comparison.policies)} policies are shown to differ in {metric.label}.{needed}"
    by_task = comparison.scopes[-1].tasks > 1 and not comparison.sequential
    where = "for tasks like these" if by_task else "on these tasks"
    if len(shown) > _MOST_NAMED:
        return (
            f"{len(shown)} of {len(differences)} pairs of policies differ in {metric.label}, {where}; see the letters."
        )
    return f"Established {where}: {', '.join(shown)}."


def _primary(comparison: Comparison) -> MetricComparison:
    metrics = comparison.scopes[-1].metrics or next(scope.metrics for scope in comparison.scopes if scope.metrics)
    return next((compared for compared in metrics if compared.primary), metrics[0])


def _other(difference: Difference) -> str:
    return difference.second if difference.better == difference.first else difference.first


def _pair_sentences(difference: Difference, metric: Metric, comparison: Comparison) -> Iterator[str]:
    first, second = difference.first, difference.second
    if difference.difference is None or difference.p_value is None:
        yield f"{metric.label} of {first} and {second} cannot be compared: one has no value."
        return
    if difference.identical:
        yield f"{metric.label} of {first} and {second} is the same in each of {difference.pairs} pairs."
        return
    better, worse = _order(difference, metric)
    size = _size(difference, metric, better)
    if not is_significant(difference.p_value, comparison.confidence):
        yield f"No difference in {metric.label} is established between {first} and {second}: {size}."
    else:
        yield f"{better} is {metric.praise} than {worse} on these tasks: {size}."
        yield from _task_sentence(difference, metric, better)
    if difference.undecided:
        episodes = f"{difference.unknown} episode{'' if difference.unknown == 1 else 's'}"
        yield f"Undecided all the same: {episodes} without a value could change that (--allow-crashed leaves them out)."
    if comparison.margin is not None and difference.margin is not None:
        yield _margin_sentence(difference, f"{100 * comparison.margin:g} points")


def _margin_sentence(difference: Difference, margin: str) -> str:
    first, second = difference.first, difference.second
    return {
        "equivalent": f"Equivalent: neither is worse by {margin}.",
        "first not worse": f"{first} is not worse than {second} by {margin}.",
        "second not worse": f"{second} is not worse than {first} by {margin}.",
        "open": f"Whether one is worse by {margin} is open.",
    }[difference.margin or "open"]


def _task_sentence(difference: Difference, metric: Metric, better: str) -> Iterator[str]:
    if not difference.is_by_task:
        return
    if difference.tasks_needed:
        yield f"Not established for tasks like these: {difference.tasks} tasks, {difference.tasks_needed} needed."
    elif difference.better or difference.undecided:
        span = _span(difference.ci_by_task, difference, metric, better)
        yield f"The same holds for tasks like these{f' ({span})' if span else ''}."
    else:
        yield f"Not established for tasks like these (p {_format_p(difference.p_by_task)})."


def _order(difference: Difference, metric: Metric) -> tuple[str, str]:
    """Return the two policies, the better first; by name where they are equal."""
    is_first = (difference.difference or 0.0) >= 0 if metric.better == "high" else (difference.difference or 0.0) <= 0
    return (difference.first, difference.second) if is_first else (difference.second, difference.first)


def _size(difference: Difference, metric: Metric, better: str) -> str:
    """Return how large a difference is, with its interval; and how many pairs one policy alone has, if known."""
    points = " points" if metric.unit else ""
    amount = f"{metric.format(abs(difference.difference or 0.0))}{points}"
    span = _span(difference.ci, difference, metric, better)
    counts = (difference.only_first, difference.only_second)
    if None in counts or difference.pairs is None:
        return f"{amount}, {span}" if span else amount
    mine, theirs = counts if (better == difference.first) == (metric.better == "high") else counts[::-1]
    return f"{mine} of {difference.pairs} pairs against {theirs} ({amount}{', ' if span else ''}{span})"


def _span(ends: Bounds | None, difference: Difference, metric: Metric, better: str) -> str:
    """Return an interval of the difference, counted to the better policy's side; "" without one."""
    if ends is None:
        return ""
    low, high = ends if (better == difference.first) == (metric.better == "high") else (-ends[1], -ends[0])
    text = f"{metric.format(low + 0.0)} to {metric.format(high + 0.0)}"
    return text.replace("-", "\N{MINUS SIGN}")


def _format_p(value: float | None) -> str:
    return NO_VALUE if value is None else "below 0.001" if value < 0.001 else format_fixed(value, 3)


def answer_table(comparison: Comparison, notes: Sequence[str] = ()) -> Table:
    """Return the block below the sentence, over all suites: Safety, SR and clean success, with the verdicts.

    Two policies stand side by side, a row for each metric; several in a row each, with their letters.
    """
    asked = comparison.scopes[-1].metrics or (_primary(comparison),)
    by_key = {metric.metric: metric for metric in asked}
    compared = [by_key[key] for key in SHOWN] if len(asked) == len(COMPARED) else [*asked]
    if len(comparison.policies) == 2:
        return tabulate(_title(comparison), compared, _pair_columns(comparison), notes=notes)
    primary = _primary(comparison)
    columns = (
        text_column("Policy", lambda policy: policy),
        *(Column(METRICS[row.metric].heading, value=partial(_standing_cell, row)) for row in compared),
        text_column("Letters", lambda policy: _find_standing(primary, policy).letters),
    )
    notes = (*notes, "Policies that share a letter are not shown to differ.")
    return tabulate(_title(comparison), comparison.policies, columns, notes=notes)


def _pair_columns(comparison: Comparison) -> tuple[Column, ...]:
    first, second = comparison.policies
    return (
        text_column("", lambda row: METRICS[row.metric].heading),
        text_column(f"A {first}", lambda row: _standing_cell(row, first)),
        text_column(f"B {second}", lambda row: _standing_cell(row, second)),
        text_column("better by", lambda row: _difference_cell(row, first)),
        text_column("established", lambda row: _verdict_cell(row, comparison)),
    )


def _title(comparison: Comparison) -> str:
    pooled = comparison.scopes[-1]
    suites = len(comparison.scopes) - 1 if pooled.suite is None else 1
    episodes = f"{pooled.pairs} pairs of episodes" if pooled.pairs is not None else "Independent episodes"
    where = f"{suites} suites" if suites > 1 else "one suite"
    tasks = f"{pooled.tasks} task{'' if pooled.tasks == 1 else 's'}"
    mark = ", across physics versions" if comparison.across_versions else ""
    return f"{episodes} of {tasks} in {where}{mark}"


def _find_standing(compared: MetricComparison, policy: str) -> PolicyStanding:
    return next(standing for standing in compared.standings if standing.policy == policy)


def _standing_cell(compared: MetricComparison, policy: str) -> Cell:
    standing, metric = _find_standing(compared, policy), METRICS[compared.metric]
    if standing.value is None:
        return Cell(NO_VALUE)
    ends = f" ({format_interval(*standing.ci, metric.digits, metric.scale)})" if standing.ci else f" (n {standing.n})"
    return Cell(f"{metric.format(standing.value)}{ends}")


def _difference_cell(compared: MetricComparison, first: str) -> Cell:
    difference, metric = compared.differences[0], METRICS[compared.metric]
    if not difference.difference:
        return Cell(NO_VALUE if difference.difference is None else "equal")
    better, _ = _order(difference, metric)
    span = _span(difference.ci, difference, metric, better)
    side = "A" if better == first else "B"
    return Cell(f"{side} {metric.format(abs(difference.difference))}{f' ({span})' if span else ''}")


def _verdict_cell(compared: MetricComparison, comparison: Comparison) -> Cell:
    difference, metric = compared.differences[0], METRICS[compared.metric]
    if difference.difference is None or difference.p_value is None:
        return Cell(NO_VALUE)
    if difference.identical or difference.undecided:
        return Cell("identical" if difference.identical else "undecided")
    better, _ = _order(difference, metric)
    side = f"{'A' if better == comparison.policies[0] else 'B'} {metric.praise}"
    if difference.better:
        return Cell(side, emphasis="total")
    if difference.is_by_task and is_significant(difference.p_value, comparison.confidence):
        return Cell(f"{side}, on these tasks")
    return Cell("no")
