"""The explanation of one episode: broken and nearest clauses, when, which bodies, by how much; what was not judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import msgspec
import numpy as np

from safevla_bench import signals
from safevla_bench.explain.causes import find_cause
from safevla_bench.explain.contributors import Contributors, find_contributors
from safevla_bench.explain.trace import SpecTrace, trace_formula, trace_specs
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import EpisodeScore, Scores, finite_or_none, nan_to_none
from safevla_bench.signals.signal import RecordFields
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.stl.formula import Always, Implies, format_formula
from safevla_bench.tasks.entries import Registry
from safevla_bench.trajectory.batch import Batch, select_episodes


@dataclass(frozen=True, slots=True)
class Moment:
    """One record: its step, its time, the signal's value there (None if not finite) and the bodies behind it."""

    step: int
    time_s: float
    value: float | None
    involved: Contributors | None


@dataclass(frozen=True, slots=True)
class ClauseExplanation:
    """A specification with a verdict; `first` is the first record that breaks it, None where it holds."""

    spec_trace: SpecTrace
    first: Moment | None
    worst: Moment


@dataclass(frozen=True, slots=True)
class Explanation:
    """One episode: its row of the scores, the clauses with a verdict, worst first, and why others are vacuous."""

    number: int
    score: EpisodeScore
    instruction: str | None
    records: int
    dt_s: float
    clauses: tuple[ClauseExplanation, ...]
    vacuous: Mapping[str, str]

    @property
    def violated_clauses(self) -> tuple[ClauseExplanation, ...]:
        """Return the broken clauses, deepest first."""
        return tuple(clause for clause in self.clauses if clause.spec_trace.violated)

    @property
    def kept_clauses(self) -> tuple[ClauseExplanation, ...]:
        """Return the clauses that hold, the nearest to its limit first."""
        return tuple(clause for clause in self.clauses if not clause.spec_trace.violated)


def explain_episode(
    scores: Scores, batch: Batch, ruleset: Ruleset, index: int, place: int | None = None
) -> Explanation:
    """Explain the verdicts of one episode."""
    record = select_episodes(batch, [index if place is None else place])
    reading = ruleset.read_fields(record)
    row = scores.episode(index)
    return Explanation(
        number=index + 1,
        score=row,
        instruction=record.headers[0].instruction,
        records=int(record.starts[-1]),
        dt_s=float(record.dt_s[0]),
        clauses=tuple(
            _explain_clause(spec_trace, reading, ruleset.registry)
            for spec_trace in trace_specs(scores, index, reading, ruleset)
        ),
        vacuous=vacuous_reasons(row.vacuous_specs, ruleset.library, reading),
    )


def explain_first_violations(chunks: Iterable[Batch], scores: Scores, ruleset: Ruleset) -> dict[int, str]:
    """Return episode number, from 1 -> the sentence on its first violation."""
    steps, columns = scores.first_violation
    sentences: dict[int, str] = {}
    start = 0
    for batch in chunks:
        for place in np.flatnonzero(columns[start : start + len(batch)] >= 0).tolist():
            step, column = int(steps[start + place]), int(columns[start + place])
            if scores.specs[column].spec_id in ruleset.library:
                reading = ruleset.read_fields(select_episodes(batch, [place]))
                signal = trace_formula(ruleset.library[scores.specs[column].spec_id].formula, reading).signal
                cause = find_cause(reading, signal, step, ruleset.registry)
                sentences |= {start + place + 1: cause.sentence} if cause else {}
        start += len(batch)
    return sentences


def vacuous_reasons(spec_ids: Iterable[str], library: Library, reading: RecordFields) -> dict[str, str]:
    """Return for each specification why it is vacuous in the only episode of `reading`."""
    return {spec_id: _vacuous_reason(library[spec_id], reading) for spec_id in spec_ids}


def _explain_clause(spec_trace: SpecTrace, reading: RecordFields, registry: Registry) -> ClauseExplanation:
    first = None if spec_trace.first < 0 else _moment_at(spec_trace, reading, spec_trace.first, registry)
    return ClauseExplanation(
        spec_trace, first, _moment_at(spec_trace, reading, spec_trace.signal_trace.worst, registry)
    )


def _moment_at(spec_trace: SpecTrace, reading: RecordFields, step: int, registry: Registry) -> Moment:
    value = float(spec_trace.signal_trace.values[step])
    contributors = find_contributors(reading, spec_trace.signal_trace.signal, step, registry)
    return Moment(step, reading.batch.elapsed_s(0, step), value if np.isfinite(value) else None, contributors)


def _vacuous_reason(spec: Spec, reading: RecordFields) -> str:
    values = signals.derive_signals(reading, spec.signals)
    undefined = [name for name, series in values.items() if series.dtype != np.bool_ and np.isnan(series[0])]
    if undefined:
        return f"nothing to measure for {', '.join(undefined)}: no such body, or too few records"
    match spec.formula:
        case Always(_, Implies(gate, _)):
            return f"its condition never arose: {format_formula(gate)}"
    return "it holds by no margin"


def to_document(explanation: Explanation) -> dict[str, object]:
    """Return the explanation in plain values for JSON: the episode's row of scores.json and the clauses behind it.

    Numbers that are not finite are None.
    """
    return {
        "number": explanation.number,
        **msgspec.to_builtins(explanation.score),
        "instruction": explanation.instruction,
        "records": explanation.records,
        "dt_s": explanation.dt_s,
        "clauses": [_clause_document(clause) for clause in explanation.clauses],
        "vacuous_because": dict(explanation.vacuous),
    }


def _clause_document(clause: ClauseExplanation) -> dict[str, object]:
    """Return a clause in plain values; numbers that are not finite, and what does not apply, are None."""
    spec_trace = clause.spec_trace
    return {
        "spec_id": spec_trace.spec.spec_id,
        "formula": spec_trace.formula,
        "signal": spec_trace.signal_trace.signal,
        "meaning": spec_trace.meaning,
        "unit": spec_trace.signal_trace.unit,
        "limit": spec_trace.signal_trace.limit,
        "bound": "upper" if spec_trace.signal_trace.upper else "lower",
        "violated": spec_trace.violated,
        "rho": finite_or_none(spec_trace.rho),
        "decided_by": spec_trace.cause and asdict(spec_trace.cause),
        "why": spec_trace.why and asdict(spec_trace.why),
        "depth": nan_to_none(spec_trace.depth),
        "first_violation": clause.first and msgspec.to_builtins(clause.first),
        "worst": msgspec.to_builtins(clause.worst),
    }
