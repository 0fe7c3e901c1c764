"""Answers to an ad-hoc formula as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from safevla_bench import provenance_marks, signals, stl
from safevla_bench.explain.query import Answer
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table
from safevla_bench.text.numbers import NO_VALUE, append_unit, display_unit, format_fixed, format_significant


def answer_table(formula: stl.Formula, answers: Sequence[Answer]) -> Table:
    """Tabulate the answers, with the count of each verdict below."""
    with_policy = len({answer.policy for answer in answers}) > 1
    columns = (
        Column("#"),
        Column("Episode", numeric=False),
        *([Column("Policy", numeric=False)] if with_policy else []),
        Column("Verdict", numeric=False),
        Column("ρ"),
        Column("Decided at", numeric=False),
        Column("Signals there, or why not", numeric=False),
    )
    verdicts = [answer.verdict for answer in answers]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    rows = tuple(tuple(_answer_cells(answer, with_policy)) for answer in answers)
    notes = (f"{len(answers)} episodes: {counts}",)
    return Table(stl.format_formula(formula), columns, rows, notes, remarks=provenance_marks.warn_of_episodes(answers))


def _answer_cells(answer: Answer, with_policy: bool) -> Iterator[Cell]:
    yield Cell(str(answer.number), answer.number)
    yield Cell(answer.episode_id)
    if with_policy:
        yield Cell(answer.policy or UNNAMED)
    yield Cell(answer.verdict)
    yield Cell(_format_rho(answer), answer.rho)
    decided_at = NO_VALUE if answer.time_s is None else f"{format_fixed(answer.time_s, 2)} s, step {answer.step}"
    yield Cell(decided_at, answer.time_s)
    yield Cell(answer.reason or ", ".join(_format_signal(name, value) for name, value in answer.signals.items()))


def _format_rho(answer: Answer) -> str:
    if answer.rho is not None:
        return format_significant(answer.rho, 4)
    return {"satisfied": "+∞", "violated": "-∞", "vacuous": "+∞"}.get(answer.verdict, NO_VALUE)


def _format_signal(name: str, value: float | bool | None) -> str:
    if value is None or isinstance(value, bool):
        return f"{name} {NO_VALUE if value is None else str(value).lower()}"
    unit, scale = display_unit(signals.SIGNALS[name].unit, value)
    return f"{name} {append_unit(format_significant(value * scale), unit)}"
