"""What a comparison says, first: sentences on the primary metric, then a block; and which policy to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from msgspec.structs import replace

from safevla_bench.compare.comparison import Comparison, MetricComparison, PolicyStanding, SuiteComparison
from safevla_bench.compare.decisions import Selection
from safevla_bench.compare.difference import Difference
from safevla_bench.compare.perturbation import Intervention
from safevla_bench.judging.gates import Gate, GateOutcome
from safevla_bench.judging.rates import CLEAN, COMPARED, METRICS, SAFETY, SBU, SR, VSI, Bounds, Metric
from safevla_bench.report.tables.comparison import format_level, verdict_cell
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.statistics.intervals import is_significant
from safevla_bench.text import (
    NO_VALUE,
    count_noun,
    format_compact,
    format_fixed,
    format_interval,
    shorten_name,
    shorten_names,
)

SHOWN = (SAFETY.key, SR.key, CLEAN.key, VSI.key)
"""The metrics of the block, if all are compared."""
_MOST_NAMED = 3
"""Pairs of policies that a sentence names; more are counted."""
_HERE, _LIKE_THESE = "on these tasks", "for tasks like these"
Evidence = Literal["", "shown", "undecided"]
"""What tells policies apart; `undecided` if episodes without a value could change that."""


def describe_comparison(comparison: Comparison) -> str:
    """Return what the comparison says of its primary metric, pooled: on these tasks, and on tasks like these.

    Without a metric that is known over all suites, of the first suite that has one.
    """
    scope = _lead_scope(comparison)
    compared = _lead_metric(scope)
    names = shorten_names(comparison.policies)
    items = [_rename(item, names) for item in compared.differences]
    metric = METRICS[compared.metric]
    if len(items) == 1:
        verdicts = _pair_sentences(items[0], metric, comparison)
    else:
        verdicts = _several_sentences(items, metric, len(comparison.policies))
    effects = [_describe_intervention(item, names[item.policy]) for item in comparison.interventions]
    sentences = [*verdicts, *_caveats(items, metric, comparison), *effects]
    if not compared.primary:
        sentences = [f"In {scope.suite} alone:", *sentences, "There is no primary verdict over all suites."]
    return " ".join(sentences)


def _describe_intervention(item: Intervention, name: str) -> str:
    made = f" ({item.violations_made} new)" if item.violations_made else ""
    gained = f" ({item.successes_gained} gained)" if item.successes_gained else ""
    return (
        f"With {name}, {len(item.saved)} of {count_noun(item.violations, 'violation')} gone{made}, "
        f"{len(item.spoiled)} of {count_noun(item.successes, 'success', 'es')} lost{gained}; "
        f"clean successes: {item.clean[0]} without the filter, {item.clean[1]} with it, of {item.pairs}."
    )


def _lead_scope(comparison: Comparison) -> SuiteComparison:
    return next(scope for scope in (comparison.scopes[-1], *comparison.scopes) if scope.metrics)


def _lead_metric(scope: SuiteComparison) -> MetricComparison:
    return next((compared for compared in scope.metrics if compared.metric == SAFETY.key), scope.metrics[0])


def _rename(item: Difference, names: Mapping[str, str]) -> Difference:
    better = item.better and names[item.better]
    return replace(item, first=names[item.first], second=names[item.second], better=better)


# Two policies


def _pair_sentences(item: Difference, metric: Metric, comparison: Comparison) -> Iterator[str]:
    here = _evidence_here(item, comparison)
    decided: Evidence = "shown" if item.better else "undecided" if item.undecided else ""
    size, both = partial(_size, item, metric, comparison), f"{metric.label} of {item.first} and {item.second}"
    if item.difference is None or item.p_value is None:
        yield f"{both} cannot be compared: {item.test.removeprefix('none: ')}."
    elif item.identical:
        yield f"{both} is the same in each of {_count_pairs(item, comparison)}."
    elif item.is_by_task and decided and here != "shown":
        yield _claim_sentence(item, metric, decided, _LIKE_THESE, size(item.deciding_ci))
    elif here:
        yield _claim_sentence(item, metric, here, _HERE, size(item.ci))
        if item.is_by_task:
            yield _task_sentence(item, metric)
    else:
        whose = f"{item.first} and {item.second}"
        yield f"No difference in {metric.label} is established between {whose}: {size(item.ci, is_open=True)}."
        yield from _few_task_sentence([item])


def _evidence_here(item: Difference, comparison: Comparison) -> Evidence:
    """Return what these tasks show of two policies, whatever they say of tasks like these."""
    if not item.is_by_task:
        return "shown" if item.better else "undecided" if item.undecided else ""
    if not item.difference or item.p_value is None or not is_significant(item.p_value, comparison.confidence):
        return ""
    worst = 0.0 if comparison.allow_crashed else item.p_value_at_extremes or 0.0
    return "shown" if is_significant(worst, comparison.confidence) else "undecided"


def _claim_sentence(item: Difference, metric: Metric, evidence: Evidence, where: str, size: str) -> str:
    claim = f"{_claim(item, metric)} {where}: {size}."
    return claim if evidence == "shown" else f"Undecided whether {claim} {_doubt([item])}."


def _claim(item: Difference, metric: Metric) -> str:
    better, worse = _order(item, metric)
    if metric is SBU:
        return f"{better} has less SBU than {worse}"
    return f"{better} is {metric.praise} than {worse}{'' if metric is SAFETY else f' in {metric.label}'}"


def _doubt(items: Sequence[Difference]) -> str:
    return f"{_count_unknown(items)} could change that (see --allow-crashed)"


def _count_unknown(items: Sequence[Difference]) -> str:
    unknown = [item.unknown for item in items]
    return f"{'up to ' if min(unknown) < max(unknown) else ''}{count_noun(max(unknown), 'episode')} without a value"


def _task_sentence(item: Difference, metric: Metric) -> str:
    """Return what is known of tasks like these, after a sentence on these tasks."""
    span = _span(item.deciding_ci, item, metric)
    interval = f" ({span})" if span else ""
    if item.tasks_needed:
        return f"Not established {_LIKE_THESE}: {item.tasks} tasks, {item.tasks_needed} needed."
    if item.better:
        return f"The same holds {_LIKE_THESE}{interval}."
    if item.undecided:
        return f"Undecided {_LIKE_THESE}{interval}: {_doubt([item])}."
    return f"Not established {_LIKE_THESE} (p {_format_p(item.p_by_task)})."


def _few_task_sentence(items: Sequence[Difference]) -> Iterator[str]:
    if few := [item for item in items if item.tasks_needed]:
        most = max(item.tasks for item in few)
        yield f"{_LIKE_THESE.capitalize()} it takes {few[0].tasks_needed} tasks; there are {most}."


def _order(item: Difference, metric: Metric) -> tuple[str, str]:
    return (item.first, item.second) if _is_first_better(item, metric) else (item.second, item.first)


def _is_first_better(item: Difference, metric: Metric) -> bool:
    difference = item.difference or 0.0
    return difference >= 0 if metric.better == "high" else difference <= 0


def _size(
    item: Difference, metric: Metric, comparison: Comparison, ends: Bounds | None, *, is_open: bool = False
) -> str:
    """Return how large a difference is, with its interval; and how many pairs one policy alone has, if known."""
    better, worse = _order(item, metric)
    amount = f"{metric.format(abs(item.difference or 0.0))}{' points' if metric.unit else ''}"
    span = _span(ends, item, metric)
    if item.only_first is None or item.only_second is None or item.pairs is None:
        whose = f" for {better}" if is_open and item.difference else ""
        return f"{amount}{whose}{', ' if span else ''}{span}"
    mine, theirs = item.only_first, item.only_second
    if _is_first_better(item, metric) != (metric.better == "high"):
        mine, theirs = theirs, mine
    pairs = f"{mine} of {_count_pairs(item, comparison)}"
    counts = f"{pairs} for {better}, {theirs} for {worse}" if is_open else f"{pairs} against {theirs}"
    return f"{counts} ({amount}{', ' if span else ''}{span})"


def _count_pairs(item: Difference, comparison: Comparison) -> str:
    return count_noun(item.pairs or 0, "initial state" if comparison.across_seeds else "pair")


def _span(ends: Bounds | None, item: Difference, metric: Metric, pattern: str = "{end} for {name}") -> str:
    """Return an interval of the difference, counted to the better policy's side; "" without one.

    Where it holds 0, `pattern` says at each end whose side that is.
    """
    if ends is None:
        return ""
    better, worse = _order(item, metric)
    counted = ends if _is_first_better(item, metric) == (metric.better == "high") else (-ends[1], -ends[0])
    texts = [metric.format(abs(end)) for end in counted]
    if counted[0] < 0:
        names = [worse if end < 0 else better for end in counted]
        texts = [pattern.format(end=text, name=name) for text, name in zip(texts, names, strict=True)]
    return " to ".join(texts)


def _format_p(value: float | None) -> str:
    return NO_VALUE if value is None else "below 0.001" if value < 0.001 else format_fixed(value, 3)


# Several policies, and what holds for two as well


def _several_sentences(items: Sequence[Difference], metric: Metric, policies: int) -> Iterator[str]:
    established = [item for item in items if item.better]
    if not established:
        yield f"No two of {policies} policies are shown to differ in {metric.label}."
    elif len(established) > _MOST_NAMED:
        yield f"{len(established)} of {len(items)} pairs of policies differ in {metric.label}."
    else:
        where = [_LIKE_THESE if item.is_by_task else _HERE for item in established]
        claims = [f"{_claim(item, metric)} {place}" for item, place in zip(established, where, strict=True)]
        yield f"Established: {'; '.join(claims)}."
    if undecided := [item for item in items if item.undecided]:
        yield f"Undecided: {_name_pairs(undecided)}; {_doubt(undecided)}."
    yield from _few_task_sentence(items)
    if gaps := [item for item in items if item.difference is None]:
        yield f"Not compared in {metric.label}: {_name_pairs(gaps)}."


def _name_pairs(items: Sequence[Difference]) -> str:
    names = [f"{item.first} and {item.second}" for item in items]
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} pairs of policies"


def _caveats(items: Sequence[Difference], metric: Metric, comparison: Comparison) -> Iterator[str]:
    if metric is SBU:
        yield "SBU also falls where fewer episodes succeed: read it beside SR."
    is_told = any(item.better or item.undecided or _evidence_here(item, comparison) for item in items)
    if any(item.unknown for item in items) and (comparison.allow_crashed or not is_told):
        yield f"Left out: {_count_unknown(items)}{' (--allow-crashed)' if comparison.allow_crashed else ''}."


# The block


def scope_tables(comparison: Comparison) -> list[Table]:
    """Return a block in all metrics for each suite, and last for all pooled."""
    return [_scope_table(comparison, scope, scope.metrics) for scope in comparison.scopes if scope.metrics]


def answer_table(comparison: Comparison, notes: Sequence[str] = ()) -> Table:
    """Return the block below the sentence, in the scope that it is of: Safety, SR, clean success and VSI."""
    scope = _lead_scope(comparison)
    by_key = {metric.metric: metric for metric in scope.metrics}
    compared = [by_key[key] for key in SHOWN] if len(by_key) == len(COMPARED) else [*scope.metrics]
    lead = _lead_metric(scope)
    rest = "; the others are exploratory" if len(scope.metrics) > 1 else ""
    which = f"The primary verdict is {METRICS[lead.metric].label}'s{rest}" if lead.primary else "All are exploratory"
    level = f"Intervals and verdicts: {format_level(comparison)}. {which}."
    return _scope_table(comparison, scope, compared, (level, *notes))


def _scope_table(
    comparison: Comparison, scope: SuiteComparison, compared: Sequence[MetricComparison], notes: Sequence[str] = ()
) -> Table:
    """Return two policies side by side, a row for each metric; several in a row each, with letters of the first one."""
    title, lead = _title(comparison, scope), _lead_metric(scope)
    if len(comparison.policies) == 2:
        return tabulate(title, compared, _pair_columns(comparison), notes=notes)
    has_letters = any(standing.letters for standing in lead.standings)
    columns = (
        text_column("Policy", lambda policy: policy),
        *(Column(METRICS[row.metric].heading, value=partial(_standing_cell, row)) for row in compared),
        text_column("Letters", lambda policy: _find_standing(lead, policy).letters) if has_letters else None,
    )
    shared = f"Policies that share a letter are not shown to differ in {METRICS[lead.metric].label}."
    picked = "Best and worst are picked after the fact: letters allow for that, values and their intervals do not."
    return tabulate(title, comparison.policies, columns, notes=(*notes, shared if has_letters else "", picked))


def _pair_columns(comparison: Comparison) -> tuple[Column, ...]:
    first, second = comparison.policies
    return (
        text_column("", lambda row: METRICS[row.metric].heading),
        text_column(f"A {first}", lambda row: _standing_cell(row, first)),
        text_column(f"B {second}", lambda row: _standing_cell(row, second)),
        text_column("better by", _difference_cell),
        text_column("established", lambda row: _verdict_cell(row, comparison)),
    )


def _title(comparison: Comparison, scope: SuiteComparison) -> str:
    where = f"{len(comparison.scopes) - 1} suites" if scope.suite is None else scope.suite
    if scope.pairs is None:
        pairs = "Independent episodes"
    elif comparison.across_seeds:
        pairs = count_noun(scope.pairs, "initial state")
    else:
        pairs = f"{count_noun(scope.pairs, 'pair')} of episodes"
    mark = ", across physics versions" if comparison.across_versions else ""
    return f"{pairs} of {count_noun(scope.tasks, 'task')} in {where}{mark}"


def _find_standing(compared: MetricComparison, policy: str) -> PolicyStanding:
    return next(standing for standing in compared.standings if standing.policy == policy)


def _standing_cell(compared: MetricComparison, policy: str) -> Cell:
    standing, metric = _find_standing(compared, policy), METRICS[compared.metric]
    if standing.value is None:
        return Cell(NO_VALUE)
    ends = f" ({format_interval(*standing.ci, metric.digits, metric.scale)})" if standing.ci else f" (n {standing.n})"
    return Cell(f"{metric.format(standing.value)}{ends}")


def _difference_cell(compared: MetricComparison) -> Cell:
    item, metric = _call_sides(compared.differences[0]), METRICS[compared.metric]
    if item.difference is None:
        return Cell(NO_VALUE)
    span = _span(item.ci, item, metric, "{name} {end}")
    amount = f"{_order(item, metric)[0]} {metric.format(abs(item.difference))}" if item.difference else "equal"
    return Cell(f"{amount}{f' ({span})' if span else ''}")


def _call_sides(item: Difference) -> Difference:
    return _rename(item, {item.first: "A", item.second: "B"})


def _verdict_cell(compared: MetricComparison, comparison: Comparison) -> Cell:
    """Return the verdict that decides; before it what these tasks show, where it says less."""
    item, metric = _call_sides(compared.differences[0]), METRICS[compared.metric]
    cell = verdict_cell(compared.differences[0], metric, exploratory=not compared.primary)
    here = _evidence_here(item, comparison)
    if not item.is_by_task or not here or item.better or (item.undecided and here == "undecided"):
        return cell
    side = f"{_order(item, metric)[0]} {metric.praise}" if here == "shown" else here
    exploratory = "" if compared.primary or here != "shown" else ", exploratory"
    rest = "" if cell.text == "no" else f"; {'else ' if item.undecided else ''}{cell.text}"
    return Cell(f"{side} on these tasks{exploratory}{rest}")


# Which policy to take


_WORDS = {"passed": "established", "failed": "excluded", "undecided": "not established"}


def describe_selection(selection: Selection) -> str:
    """Return the choice with its corrected intervals, what it hangs on, and how it stands to the runner-up."""
    metric, first = METRICS[selection.metric], selection.candidates[0]
    conditions = [_describe_condition(row) for row in first.conditions]
    if selection.chosen is None:
        rule = " and ".join(gate.name for gate in selection.conditions) or f"{metric.label} known"
        nearest = "; ".join(conditions) or "no value"
        return f"No policy has {rule}. {shorten_name(first.policy)} comes nearest: {nearest}."
    if selection.comparison:
        runner_up = describe_comparison(selection.comparison)
    elif selection.unpaired:
        runner_up = f"The runner-up cannot be compared: {selection.unpaired}."
    else:
        runner_up = "There is no runner-up: no other estimate satisfies what was asked."
    facts = "; ".join([_with_interval(metric, first.value), *conditions])
    return f"Take {shorten_name(first.policy)}: {facts}. {runner_up}"


def _with_interval(metric: Metric, row: GateOutcome) -> str:
    if row.value is None:
        return f"{metric.label} not known"
    unit = f" {metric.unit}" if metric.unit else ""
    ends = f" ({format_interval(*row.ci, metric.digits, metric.scale)})" if row.ci else ""
    return f"{metric.label} {metric.format(row.value)}{unit}{ends}"


def _describe_condition(row: GateOutcome) -> str:
    assert row.gate is not None
    return f"{_with_interval(METRICS[row.gate.metric], row)}: {_describe_limit(row.gate)} is {_WORDS[row.verdict]}"


def _describe_limit(gate: Gate) -> str:
    return f"{'at least' if gate.bound == 'min' else 'at most'} {format_compact(gate.limit)}"


def describe_next(selection: Selection) -> str:
    """Return what more episodes would settle, and the command for the whole comparison."""
    first, steps = selection.candidates[0], []
    if selection.chosen is not None:
        steps += [
            f"{count_noun(row.n_needed, 'episode')} would establish {_describe_limit(row.gate)} if "
            f"{METRICS[row.gate.metric].label} were as measured"
            for row in first.conditions
            if row.gate is not None and row.n_needed is not None
        ]
        if selection.episodes is not None:
            steps.append(f"{count_noun(selection.episodes, 'episode')} of each task would tell it from the runner-up")
    settled = f"With a chance of 80 %: {'; '.join(steps)}. " if steps else ""
    return f"{settled}Next: safevla compare shows each pair of policies."


def selection_table(selection: Selection, notes: tuple[str, ...] = ()) -> Table:
    """Return the candidates, the best first, each with its intervals and the verdict on each condition."""
    metric = METRICS[selection.metric]
    columns = [
        text_column("Policy", lambda row: Cell(row.policy, mark="*" * (row.policy == selection.chosen))),
        Column("n", value=lambda row: row.value.n),
        Column(metric.heading, value=lambda row: _value_cell(row.value, metric)),
    ]
    columns += [column for k, gate in enumerate(selection.conditions) for column in _condition_columns(k, gate)]
    together = (
        f"All intervals hold together at {format_compact(100 * selection.confidence)} % on these tasks, whichever "
        f"policy is taken: each is exact at {format_compact(round(100 * selection.each_confidence, 2))} %."
    )
    return tabulate("Candidates, the best first", selection.candidates, columns, notes=(together, *notes))


def _condition_columns(k: int, gate: Gate) -> tuple[Column, Column]:
    metric = METRICS[gate.metric]
    return (
        Column(metric.heading, value=lambda row: _value_cell(row.conditions[k], metric)),
        text_column(_describe_limit(gate), lambda row: _WORDS[row.conditions[k].verdict]),
    )


def _value_cell(row: GateOutcome, metric: Metric) -> Cell:
    if row.value is None or row.ci is None:
        return Cell(NO_VALUE)
    return Cell.estimate(row.value, row.ci, metric.digits, metric.scale)
