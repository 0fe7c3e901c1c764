"""A selection in words and as a table: which policy to take, what is established of it, and what would tell more."""

from __future__ import annotations

from collections.abc import Iterator

from safevla_bench.compare.selection import Candidate, Selection
from safevla_bench.judging.gates import Gate, GateOutcome
from safevla_bench.judging.rates import METRICS, Metric
from safevla_bench.report.tables.comparison_answer import describe_comparison
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.text import NO_VALUE, count_noun, format_compact, format_interval, shorten_name

_WORDS = {"passed": "established", "failed": "excluded", "undecided": "not established"}


def describe_selection(selection: Selection) -> str:
    """Return the choice with its corrected intervals, what it hangs on, and how it stands to the runner-up."""
    return " ".join(_sentences(selection))


def _sentences(selection: Selection) -> Iterator[str]:
    metric, first = METRICS[selection.metric], selection.candidates[0]
    conditions = "; ".join(_describe_condition(row) for row in first.conditions)
    if selection.chosen is None:
        rule = " and ".join(gate.name for gate in selection.conditions) or f"{metric.label} known"
        yield f"No policy has {rule}. {shorten_name(first.policy)} comes nearest: {conditions or 'no value'}."
        return
    facts = "; ".join(filter(None, (_with_interval(metric, first.value), conditions)))
    yield f"Take {shorten_name(first.policy)}: {facts}."
    for rival in _better_but_unmet(selection):
        name, value = shorten_name(rival.policy), _with_interval(metric, rival.value)
        unmet = "; ".join(_describe_condition(row) for row in rival.conditions if row.verdict != "passed")
        yield f"{name} has more ({value}) and is passed over, though not excluded: {unmet}."
    if selection.comparison:
        yield describe_comparison(selection.comparison)
    elif selection.unpaired:
        yield f"The runner-up cannot be compared: {selection.unpaired}."
    else:
        yield "There is no runner-up: no other estimate satisfies what was asked."


def _better_but_unmet(selection: Selection) -> list[Candidate]:
    """Return the policies with a greater estimate whose conditions fail by estimates, but not by whole intervals."""
    most = selection.candidates[0].value.value or 0.0
    return [
        candidate
        for candidate in selection.candidates
        if not candidate.is_met
        and (candidate.value.value or 0.0) > most
        and all(row.verdict != "failed" for row in candidate.conditions)
    ]


def _with_interval(metric: Metric, row: GateOutcome) -> str:
    if row.value is None:
        return f"{metric.label} not known"
    unit = f" {metric.unit}" if metric.unit else ""
    ends = f" ({format_interval(*row.ci, metric.digits, metric.scale)})" if row.ci else ""
    return f"{metric.label} {metric.format(row.value)}{unit}{ends}"


def _describe_condition(row: GateOutcome) -> str:
    assert row.gate is not None
    verdict = "is established" if row.verdict == "passed" else f"is {_WORDS[row.verdict]}"
    return f"{_with_interval(METRICS[row.gate.metric], row)}: {_describe_limit(row.gate)} {verdict}"


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
    ends = format_interval(*row.ci, metric.digits, metric.scale)
    return Cell(f"{metric.format(row.value)} ({ends})", metric.scale * row.value)
