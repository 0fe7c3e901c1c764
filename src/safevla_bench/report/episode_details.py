"""Details of one listed episode: its verdicts with sparklines, what was not judged, and its phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals
from safevla_bench.explain.bodies import Contributors
from safevla_bench.explain.episode import SpecTrace, trace_specs, vacuous_reasons
from safevla_bench.explain.exposure import PHASES
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE, INACTIVE, VACUOUS, Scores, nan_to_none
from safevla_bench.report.charts import Sparkline, draw_sparkline
from safevla_bench.report.episode_list import EpisodeListRow
from safevla_bench.report.tables.episodes import format_cause
from safevla_bench.text import append_unit, display_unit, format_fixed, format_significant
from safevla_bench.trajectory.batch import Batch, select_episodes

_AT_ONCE = 50
"""Episodes whose signals are computed together: one array operation for many, at a bounded memory."""


@dataclass(frozen=True, slots=True)
class ClauseVerdict:
    """One specification's verdict on one episode; no sparkline where its signal is not drawn."""

    spec_id: str
    verdict: str
    violated: bool
    spark: Sparkline | None = None
    contributors: str = ""
    why: str = ""
    """How its violation came about."""


@dataclass(frozen=True, slots=True)
class UnjudgedSpec:
    """A specification without a verdict in an episode, and why."""

    spec_id: str
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A run of records in one phase, in thousandths of the episode."""

    phase: int
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class PhaseStrip:
    """The phases of one episode as a strip, and the time spent in each."""

    spans: tuple[PhaseSpan, ...]
    durations: tuple[tuple[int, str, str], ...]
    """Number of the phase, its name, its time."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence from the records of one episode: traces by specification, and why others are vacuous."""

    spec_traces: Mapping[str, SpecTrace]
    vacuous: Mapping[str, str]


def gather_evidence(
    scores: Scores, batch: Batch, ruleset: Ruleset, drawn: Mapping[int, int]
) -> Iterator[tuple[int, Evidence]]:
    """Yield (index in the scores, evidence) of each episode of `drawn`, in its order.

    `drawn` maps the index of an episode in the scores to its index in the batch. Signals are computed for `_AT_ONCE`
    episodes together.
    """
    chosen = list(drawn)
    for start in range(0, len(chosen), _AT_ONCE):
        part = chosen[start : start + _AT_ONCE]
        reading = ruleset.read_fields(select_episodes(batch, [drawn[k] for k in part]))
        active = [scores.specs[k].spec_id for k in scores.scored_columns if (scores.state[k, part] == ACTIVE).any()]
        names = {name for spec_id in active if spec_id in ruleset.library for name in ruleset.library[spec_id].signals}
        signals.derive_signals(reading, names)
        for place, k in enumerate(part):
            episode_reading = reading.select_episode(place)
            spec_traces = trace_specs(scores, k, episode_reading, ruleset)
            by_spec = {spec_trace.spec.spec_id: spec_trace for spec_trace in spec_traces}
            yield (
                k,
                Evidence(by_spec, vacuous_reasons(scores.specs_in_state(VACUOUS, k), ruleset.library, episode_reading)),
            )


def describe_verdicts(scores: Scores, row: EpisodeListRow, evidence: Evidence | None) -> dict[str, Any]:
    """Return the fields `clauses` and `unjudged` of an episode's entry; {} for an episode that left no record.

    Without evidence no clause has a sparkline, and vacuous specifications have a general reason.
    """
    if row.success is None:
        return {}
    episode = row.number - 1
    unexplained = dict.fromkeys(scores.specs_in_state(VACUOUS, episode), "what it guards never came about")
    vacuous = evidence.vacuous if evidence else unexplained
    unjudged = [UnjudgedSpec(spec_id, "vacuous", why) for spec_id, why in vacuous.items()]
    unjudged += [
        UnjudgedSpec(spec_id, "inactive", why) for spec_id, why in scores.specs_in_state(INACTIVE, episode).items()
    ]
    return {"clauses": tuple(_clause_verdicts(scores, episode, evidence)), "unjudged": tuple(unjudged)}


def _clause_verdicts(scores: Scores, episode: int, evidence: Evidence | None) -> Iterator[ClauseVerdict]:
    """Yield the verdict of every scored specification that has one: violated first, deepest first."""
    spec_traces = evidence.spec_traces if evidence else {}
    columns = [int(k) for k in scores.scored_columns if scores.state[k, episode] == ACTIVE]
    for k in sorted(columns, key=lambda k: _severity_order(scores, k, episode)):
        spec, spec_trace = scores.specs[k], spec_traces.get(scores.specs[k].spec_id)
        yield ClauseVerdict(
            spec.spec_id,
            format_verdict(scores, k, episode),
            bool(scores.is_violated[k, episode]),
            drawn := draw_sparkline(spec_trace.chart) if spec_trace else None,
            _describe_cause(spec_trace, drawn) if spec_trace and drawn else "",
            spec_trace.why.sentence if spec_trace and spec_trace.why else "",
        )


def _describe_cause(spec_trace: SpecTrace, drawn: Sparkline) -> str:
    if spec_trace.cause:
        return format_cause(spec_trace)
    return format_contributors(spec_trace.involved, drawn.caption) if spec_trace.involved else ""


def _severity_order(scores: Scores, k: int, episode: int) -> tuple[bool, float, float]:
    depth = nan_to_none(scores.depth[k, episode]) or 0.0
    return not scores.is_violated[k, episode], -depth, float(scores.rho[k, episode]) / scores.specs[k].threshold


def format_verdict(scores: Scores, k: int, episode: int) -> str:
    """Return the verdict of the specification in column `k` in words: `violated by 88 N, depth 0.44` or `kept by 12 N`.

    There is no margin for a Boolean specification or where it is infinite, and no depth where that is unknown.
    """
    spec, rho, depth = scores.specs[k], float(scores.rho[k, episode]), float(scores.depth[k, episode])
    unit, scale = display_unit(spec.unit, spec.threshold)
    margin = "" if spec.binary or np.isinf(rho) else f" by {append_unit(format_significant(abs(rho) * scale), unit)}"
    if not scores.is_violated[k, episode]:
        return f"kept{margin}"
    return f"violated{margin}" + ("" if np.isnan(depth) else f", depth {format_fixed(depth, 2)}")


def format_contributors(contributors: Contributors, caption: str) -> str:
    """Return the bodies behind a value in words, with the amount unless `caption` contains it."""
    amount = f", {contributors.amount}" if contributors.amount not in caption else ""
    return f"{contributors.what}: {' and '.join(contributors.labels)}{amount}"


def describe_record(batch: Batch | None, place: int | None, phase: NDArray[np.int8] | None) -> dict[str, Any]:
    """Return the fields `instruction`, `facts` and `phases` of an episode's entry; {} without its record.

    `place` is the index of the episode in the batch; `phase` the phase of each of its records, None = not shown.
    """
    if batch is None or place is None:
        return {}
    header, count = batch.headers[place], int(batch.starts[place + 1] - batch.starts[place])
    facts = [
        *([f"initial state {header.init_state_index}"] if header.init_state_index is not None else []),
        *([f"seed {header.seed}"] if header.seed is not None else []),
        f"{count} records, {format_fixed((count - 1) * header.dt, 2)} s",
    ]
    return {
        "instruction": header.instruction or "",
        "facts": ", ".join(facts),
        "phases": None if phase is None else _phase_strip(phase, header.dt),
    }


def _phase_strip(phase: NDArray[np.int8], dt_s: float) -> PhaseStrip | None:
    """Return the phases of an episode as runs of equal phase, and the seconds in each phase that occurs."""
    if (phase < 0).any():
        return None
    starts = np.concatenate([[0], np.flatnonzero(np.diff(phase)) + 1, [len(phase)]])
    spans = [
        PhaseSpan(int(phase[a]), f"{1000 * a / len(phase):.0f}", f"{1000 * (b - a) / len(phase):.0f}")
        for a, b in pairwise(starts.tolist())
    ]
    record_counts = [int((phase == k).sum()) for k in range(len(PHASES))]
    durations = tuple(
        (k, name, f"{format_fixed(record_counts[k] * dt_s, 2)} s") for k, name in enumerate(PHASES) if record_counts[k]
    )
    return PhaseStrip(tuple(spans), durations)
