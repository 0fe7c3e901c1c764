"""A formula asked of episodes: its robustness, the verdict and the record that decides it; no tags, no library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from safevla_bench import provenance_marks, signals, stl
from safevla_bench.errors import FormulaError
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.scores import Absent
from safevla_bench.stl.formula import bounded_windows
from safevla_bench.text.numbers import NONE, fixed, significant, unit_text, with_unit
from safevla_bench.trajectory import STANDIN, Batch, marks

Verdict = Literal["satisfied", "violated", "vacuous", "no verdict", "undefined", "signal missing", "no record"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a formula says of one episode.

    `rho` is None where there is no verdict and where it is infinite: under `vacuous`, and where Boolean signals alone
    decide. `step` is the record that `stl.deciding` names, and `signals` holds what the formula reads there.
    """

    number: int
    """Its place in the sources, from 1; episodes without a record come last."""
    episode_id: str
    policy: str | None
    verdict: Verdict
    rho: float | None = None
    step: int | None = None
    time_s: float | None = None
    signals: dict[str, float | bool | None] = {}
    reason: str | None = None
    """Why there is no verdict, or why it is vacuous."""
    benchmark: str = ""
    standin_assets: bool | None = None
    """Whether it was simulated with stand-ins for the host's own assets; None where it left no record."""


def formula(text: str) -> stl.Formula:
    """The formula of a text, over the signals that there are.

    Raises:
        FormulaError: as `stl.parse` does, and where the placeholder `threshold` stands in it.
    """
    found = stl.parse(text, {name: signal.boolean for name, signal in signals.SIGNALS.items()})
    if stl.holds_placeholder(found):
        raise FormulaError("`threshold` stands for a number here", remedy="write the number in its place")
    return found


def ask(asked: stl.Formula, batch: Batch, absent: Sequence[Absent] = ()) -> list[Answer]:
    """One answer an episode, in order; then one for each episode without a record.

    Raises:
        FormulaError: a window bound is no multiple of an episode's control step.
        SignalError: arithmetic leaves the numbers.
    """
    reading = signals.Reading(batch)
    trace = stl.Trace(signals.derive(reading, stl.signals(asked)), batch.starts, batch.dt_s)
    silent = {**_undefined(trace, batch), **_missing(reading, stl.signals(asked))}
    judged = np.array([k for k in range(len(batch)) if k not in silent], dtype=np.int64)
    part = trace.select(judged)
    verdicts = zip(judged.tolist(), stl.robustness(asked, part), stl.deciding(asked, part), strict=True)
    found = {k: _answer(asked, trace, batch, k, float(rho), int(step)) for k, rho, step in verdicts}
    told = [
        msgspec.structs.replace(found.get(k) or silent[k], benchmark=header.benchmark, standin_assets=mark)
        for k, (header, mark) in enumerate(zip(batch.headers, marks(batch, STANDIN), strict=True))
    ]
    return [*told, *gone(absent, len(batch))]


def ask_chunks(asked: stl.Formula, chunks: Iterable[Batch]) -> list[Answer]:
    """`ask` of episodes that come some at a time, each chunk forgotten once it has answered."""
    found: list[Answer] = []
    for batch in chunks:
        before = len(found)
        found += [msgspec.structs.replace(one, number=before + one.number) for one in ask(asked, batch)]
    return found


def _undefined(trace: stl.Trace, batch: Batch) -> dict[int, Answer]:
    """The episodes in which a signal has nothing to measure: it is NaN from record 0 on."""
    names: dict[int, list[str]] = {}
    for name, values in trace.signals.items():
        for k in () if values.dtype == np.bool_ else np.flatnonzero(np.isnan(values[trace.starts[:-1]])).tolist():
            names.setdefault(k, []).append(name)
    why = "nothing to measure: no such body, or too few records"
    return {k: _unanswered(batch, k, "undefined", f"{', '.join(of)}: {why}") for k, of in names.items()}


def _missing(reading: signals.Reading, names: frozenset[str]) -> dict[int, Answer]:
    """The episodes whose records lack a field that the signals read."""
    fields: dict[int, list[str]] = {}
    for field, lacking in signals.missing(reading, names).items():
        for k in np.flatnonzero(lacking).tolist():
            fields.setdefault(k, []).append(field)
    return {
        k: _unanswered(reading.batch, k, "signal missing", f"not recorded: {', '.join(of)}") for k, of in fields.items()
    }


def _unanswered(batch: Batch, index: int, verdict: Verdict, reason: str) -> Answer:
    header = batch.headers[index]
    return Answer(number=index + 1, episode_id=header.episode_id, policy=header.policy, verdict=verdict, reason=reason)


def _answer(asked: stl.Formula, trace: stl.Trace, batch: Batch, index: int, rho: float, step: int) -> Answer:
    verdict, reason = _verdict(asked, rho)
    header = batch.headers[index]
    decided = step >= 0 and verdict in ("satisfied", "violated")
    row = int(trace.starts[index]) + step
    return Answer(
        number=index + 1,
        episode_id=header.episode_id,
        policy=header.policy,
        verdict=verdict,
        rho=rho if math.isfinite(rho) else None,
        step=step if decided else None,
        time_s=step * header.dt if decided else None,
        signals={name: _plain(values[row]) for name, values in sorted(trace.signals.items())} if decided else {},
        reason=reason,
    )


def _verdict(asked: stl.Formula, rho: float) -> tuple[Verdict, str | None]:
    """What a robustness means; an infinite one of a formula that compares numbers needs a word."""
    if math.isfinite(rho) or stl.boolean_only(asked):
        return ("satisfied" if rho >= 0 else "violated"), None
    if rho > 0:
        return "vacuous", "it holds by no margin: no number was compared where it counts"
    if any(window.start_s > 0 for window in bounded_windows(asked)):
        return "no verdict", "a window lies beyond the end of the episode"
    return "violated", None


def _plain(value: np.float64 | np.bool_) -> float | bool | None:
    if isinstance(value, np.bool_):
        return bool(value)
    return float(value) if math.isfinite(value) else None


def gone(absent: Sequence[Absent], before: int) -> list[Answer]:
    """What is said of episodes without a record, which come after so many others."""
    return [
        Answer(
            number=number,
            episode_id=one.episode_id,
            policy=one.policy,
            verdict="no record",
            reason=one.outcome,
            benchmark=one.benchmark,
        )
        for number, one in enumerate(absent, start=before + 1)
    ]


def table(asked: stl.Formula, answers: Sequence[Answer]) -> Table:
    """The answers as a table, the counts of each verdict below."""
    named = len({one.policy for one in answers}) > 1
    columns = (
        Column("#"),
        Column("Episode", numeric=False),
        *([Column("Policy", numeric=False)] if named else []),
        Column("Verdict", numeric=False),
        Column("ρ"),
        Column("Decided at", numeric=False),
        Column("Signals there, or why not", numeric=False),
    )
    verdicts = [one.verdict for one in answers]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    rows = tuple(tuple(_cells(one, named)) for one in answers)
    notes = (f"{len(answers)} episodes: {counts}",)
    return Table(stl.to_text(asked), columns, rows, notes, remarks=provenance_marks.of_episodes(answers))


def _cells(one: Answer, named: bool) -> Iterator[Cell]:
    yield Cell(str(one.number), one.number)
    yield Cell(one.episode_id)
    if named:
        yield Cell(one.policy or UNNAMED)
    yield Cell(one.verdict)
    yield Cell(_rho(one), one.rho)
    yield Cell(NONE if one.time_s is None else f"{fixed(one.time_s, 2)} s, step {one.step}", one.time_s)
    yield Cell(one.reason or ", ".join(_reading(name, value) for name, value in one.signals.items()))


def _rho(one: Answer) -> str:
    if one.rho is not None:
        return significant(one.rho, 4)
    return {"satisfied": "+∞", "violated": "-∞", "vacuous": "+∞"}.get(one.verdict, NONE)


def _reading(name: str, value: float | bool | None) -> str:
    if value is None or isinstance(value, bool):
        return f"{name} {NONE if value is None else str(value).lower()}"
    unit, scale = unit_text(signals.SIGNALS[name].unit, value)
    return f"{name} {with_unit(significant(value * scale), unit)}"
