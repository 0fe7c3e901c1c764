"""One episode explained: what it broke or came nearest to, when, which bodies, by how much; and what was not judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from safevla_bench import signals, stl
from safevla_bench.explain.contributors import Involved, involved
from safevla_bench.explain.trace import Exhibit, exhibits
from safevla_bench.scores import EpisodeScore, Scores, null
from safevla_bench.signals import Reading
from safevla_bench.specs import Library, Spec
from safevla_bench.trajectory import Batch, select


@dataclass(frozen=True, slots=True)
class Moment:
    """A record: its step, its time, the signal's value there (None where not finite), who stands behind it."""

    step: int
    time_s: float
    value: float | None
    involved: Involved | None


@dataclass(frozen=True, slots=True)
class Clause:
    """One specification that reached a verdict; `first` is the first record that breaks it, None where it holds."""

    exhibit: Exhibit
    first: Moment | None
    worst: Moment


@dataclass(frozen=True, slots=True)
class Explanation:
    """One episode: the judge's row, the scored clauses that reached a verdict, worst first, why others are vacuous."""

    number: int
    """Its place in the source, from 1."""
    score: EpisodeScore
    instruction: str | None
    records: int
    dt_s: float
    clauses: tuple[Clause, ...]
    vacuous: Mapping[str, str]

    @property
    def violated(self) -> tuple[Clause, ...]:
        """The broken clauses, deepest first."""
        return tuple(clause for clause in self.clauses if clause.exhibit.violated)

    @property
    def kept(self) -> tuple[Clause, ...]:
        """The clauses that hold, the nearest to its limit first."""
        return tuple(clause for clause in self.clauses if not clause.exhibit.violated)


def explanation(scores: Scores, batch: Batch, library: Library, index: int, place: int | None = None) -> Explanation:
    """All about one episode.

    Args:
        scores: the verdicts on `batch`, in its order.
        batch: the records.
        library: what they were judged by.
        index: the episode, from 0.
        place: where its record is in `batch`, where that has another order.
    """
    record = select(batch, [index if place is None else place])
    reading = Reading(record)
    row = scores.episode(index)
    return Explanation(
        number=index + 1,
        score=row,
        instruction=record.headers[0].instruction,
        records=int(record.starts[-1]),
        dt_s=float(record.dt_s[0]),
        clauses=tuple(_clause(one, reading) for one in exhibits(scores, index, reading, library)),
        vacuous=why_vacuous(row.vacuous_specs, library, reading),
    )


def why_vacuous(spec_ids: Iterable[str], library: Library, reading: Reading) -> dict[str, str]:
    """Why each of the specifications says nothing of the only episode of a reading."""
    return {spec_id: _why_vacuous(library[spec_id], reading) for spec_id in spec_ids}


def _clause(exhibit: Exhibit, reading: Reading) -> Clause:
    first = None if exhibit.first < 0 else _moment(exhibit, reading, exhibit.first)
    return Clause(exhibit, first, _moment(exhibit, reading, exhibit.line.worst))


def _moment(exhibit: Exhibit, reading: Reading, step: int) -> Moment:
    value = float(exhibit.line.values[step])
    behind = involved(reading, exhibit.line.signal, step)
    return Moment(step, step * exhibit.dt_s, value if np.isfinite(value) else None, behind)


def _why_vacuous(spec: Spec, reading: Reading) -> str:
    values = signals.derive(reading, spec.signals)
    undefined = [name for name, of in values.items() if of.dtype != np.bool_ and np.isnan(of[0])]
    if undefined:
        return f"nothing to measure for {', '.join(undefined)}: no such body, or too few records"
    match spec.formula:
        case stl.Always(_, stl.Implies(gate, _)):
            return f"its condition never arose: {stl.to_text(gate)}"
    return "it holds by no margin"


def document(told: Explanation) -> dict[str, object]:
    """The explanation in plain values: the row of scores.json, and what lies behind it."""
    return {
        "number": told.number,
        **msgspec.to_builtins(told.score),
        "instruction": told.instruction,
        "records": told.records,
        "dt_s": told.dt_s,
        "clauses": [_clause_document(clause) for clause in told.clauses],
        "vacuous_because": dict(told.vacuous),
    }


def _clause_document(clause: Clause) -> dict[str, object]:
    one = clause.exhibit
    return {
        "spec_id": one.spec.spec_id,
        "formula": one.formula,
        "signal": one.line.signal,
        "meaning": one.meaning,
        "unit": one.line.unit,
        "limit": one.line.limit,
        "bound": "upper" if one.line.upper else "lower",
        "violated": one.violated,
        "rho": one.rho,
        "depth": null(one.depth),
        "first_violation": clause.first and msgspec.to_builtins(clause.first),
        "worst": msgspec.to_builtins(clause.worst),
    }
