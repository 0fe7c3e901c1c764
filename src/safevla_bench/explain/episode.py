"""The explanation of an episode: which specifications are violated or hold, when, by how much, and by which bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np

from safevla_bench import signals
from safevla_bench.explain.bodies import Contributors, find_contributors
from safevla_bench.explain.causes import CauseChain, find_cause
from safevla_bench.explain.trace import Floats, SignalTrace, TraceChart, describe_chart, trace_formula
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE, EpisodeScore, Scores, SpecColumn, finite_or_none, nan_to_none
from safevla_bench.judging.scoring import view_clause
from safevla_bench.signals.signal import DISPLACED, SIGNALS, RecordFields, Signal
from safevla_bench.specs.spec import Library
from safevla_bench.stl import formula as syntax
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.trajectory.batch import Batch, select_episodes


@dataclass(frozen=True, slots=True)
class Moment:
    """One record: index, time, the signal's value (None if not finite), and the bodies that determine this value."""

    step: int
    time_s: float
    value: float | None
    involved: Contributors | None


@dataclass(frozen=True, slots=True)
class SpecTrace:
    """The verdict on one specification, and its signal. If a Boolean signal decided a violation, `rho` is -inf."""

    spec: SpecColumn
    formula: str
    meaning: str
    signal_trace: SignalTrace
    chart: TraceChart
    rho: float
    depth: float
    violated: bool
    first: Moment | None  # the first violating record; None if the specification holds
    worst: Moment
    why: CauseChain | None = None  # the cause of the violation, inferred from contacts and poses
    arm: str = ""  # the arm that decides the verdict; "" for robots with one arm, or if the signal is not about an arm


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explained episode: its scores, its judged clauses from the worst on, and why other clauses have no verdict."""

    number: int
    score: EpisodeScore
    instruction: str | None
    records: int
    dt_s: float
    times_s: Floats | None  # seconds from record 0 to each record; None if successive records are `dt_s` apart
    clauses: tuple[SpecTrace, ...]
    vacuous: Mapping[str, str]  # id of a vacuous specification -> reason
    inactive: Mapping[str, str]  # id of an inactive specification -> reason

    def elapsed_s(self, step: int) -> float:
        """Return the time from record 0 to the record `step` in seconds."""
        # `times_s` are the times of all records; None = records are `dt_s` apart.
        return step * self.dt_s if self.times_s is None else float(self.times_s[step])

    @property
    def violated_clauses(self) -> tuple[SpecTrace, ...]:
        """Return the violated clauses, with the deepest violation first."""
        # `clauses` begins with the violated specifications, which are already sorted.
        return tuple(clause for clause in self.clauses if clause.violated)

    @property
    def kept_clauses(self) -> tuple[SpecTrace, ...]:
        """Return the clauses that hold, in order of increasing ratio of margin to threshold."""
        # `clauses` ends with the satisfied specifications, which are already sorted.
        return tuple(clause for clause in self.clauses if not clause.violated)


def explain_episode(
    scores: Scores, batch: Batch, ruleset: Ruleset, index: int, place: int | None = None
) -> Explanation:
    """Explain the verdicts on one episode. `index` is the episode's index in the scores. `place` is the episode's index
    in the batch (None = the same index). `ruleset` must be the ruleset that judged the episode.
    """
    episode_batch = select_episodes(batch, [index if place is None else place])
    reading = ruleset.read_fields(episode_batch)
    episode_score = scores.episode(index)
    return Explanation(
        number=index + 1,
        score=episode_score,
        instruction=episode_batch.headers[0].instruction,
        records=int(episode_batch.starts[-1]),
        dt_s=float(episode_batch.dt_s[0]),
        times_s=episode_batch.stamps_s.get(0),  # the times of records; None = records are `dt_s` apart
        clauses=tuple(trace_specs(scores, index, reading, ruleset)),
        # Specifications without a verdict: nothing decided a vacuous one, and an inactive one does not apply.
        vacuous=vacuous_reasons(episode_score.vacuous_specs, ruleset.library, reading),
        # The score has a code for the reason; the explanation has a sentence.
        inactive={
            spec_id: describe_reason(why, ruleset.registry, episode_score.benchmark)
            for spec_id, why in episode_score.inactive_specs.items()
        },
    )


def explain_first_violations(chunks: Iterable[Batch], scores: Scores, ruleset: Ruleset) -> dict[int, str]:
    """Return a sentence on the cause of the first violation of each episode, by the episode's number from 1.

    Episodes are left out if they have no violation, if the cause is unknown, or if the library lacks the specification
    that was violated first. `chunks` have the episodes of the scores, in the same order. If several specifications are
    first violated in the same record, `Scores.first_violation` chooses one.
    """
    # For each episode: record of the first violation, column of the violated specification, [E] each; -1 = none.
    steps, columns = scores.first_violation
    sentences: dict[int, str] = {}
    first_episode = 0
    for batch in chunks:
        for index in np.flatnonzero(columns[first_episode : first_episode + len(batch)] >= 0).tolist():
            episode = first_episode + index  # `episode` is the index in the scores, `index` in the batch
            step, spec_id = int(steps[episode]), scores.specs[columns[episode]].spec_id
            if spec_id in ruleset.library:
                spec = ruleset.library[spec_id]
                # The fields with which the specification is judged; then the cause, inferred from contacts and poses.
                reading = view_clause(ruleset.read_fields(select_episodes(batch, [index])), spec, ruleset)
                cause = find_cause(reading, trace_formula(spec.formula, reading).signal, step, ruleset.registry)
                cause = _add_phase(cause, scores, episode, step)
                if cause:
                    sentences[episode + 1] = cause.sentence
        first_episode += len(batch)  # the next batch begins with this episode of the scores
    return sentences


def vacuous_reasons(spec_ids: Iterable[str], library: Library, reading: RecordFields) -> dict[str, str]:
    """Return id -> the reason why this specification is vacuous in the only episode of `reading`."""
    # A specification is vacuous if no value decides it.
    reasons = {}
    for spec_id in spec_ids:
        spec = library[spec_id]
        view = reading.views(spec.signals)[0]  # the first arm, since the specification is vacuous for every arm
        values_by_signal = signals.derive_signals(view, spec.signals).items()
        # An undefined signal is NaN in every record, so the first record shows it.
        undefined = [name for name, values in values_by_signal if values.dtype != np.bool_ and np.isnan(values[0])]
        reason = "no numeric comparison decides the formula"
        if undefined:
            reason = f"nothing to measure (no such body, or too few records): {', '.join(undefined)}"
        # The formula G(condition -> ...) is vacuous if its condition is never true.
        elif isinstance(spec.formula, syntax.Always) and isinstance(spec.formula.child, syntax.Implies):
            reason = f"its condition never arose: {syntax.format_formula(spec.formula.child.left)}"
        reasons[spec_id] = reason
    return reasons


def to_document(explanation: Explanation) -> dict[str, object]:
    """Return the explanation as plain values for JSON: the episode's row in scores.json, and the explained clauses.
    Numbers that are not finite or do not apply are None.
    """
    return {
        "number": explanation.number,
        **msgspec.to_builtins(explanation.score),  # the fields of the row in scores.json
        "instruction": explanation.instruction,
        "records": explanation.records,
        "dt_s": explanation.dt_s,
        "clauses": [_make_clause_document(clause) for clause in explanation.clauses],
        "vacuous_because": dict(explanation.vacuous),
    }


def _make_clause_document(clause: SpecTrace) -> dict[str, object]:
    # Return one clause of an explained episode as plain values. Infinite or undefined numbers are None.
    # `rho` is the robustness, `depth` is the relative size of the violation, and `why` is the cause.
    signal_trace = clause.signal_trace
    return {
        "spec_id": clause.spec.spec_id,
        "formula": clause.formula,
        "signal": signal_trace.signal,
        **({"arm": clause.arm} if clause.arm else {}),
        "meaning": clause.meaning,
        "unit": signal_trace.unit,
        "limit": signal_trace.limit,
        "bound": "upper" if signal_trace.upper else "lower",
        "violated": clause.violated,
        "rho": finite_or_none(clause.rho),
        "why": asdict(clause.why) if clause.why else None,
        "depth": nan_to_none(clause.depth),
        "first_violation": _make_moment_document(clause.first) if clause.first else None,
        "worst": _make_moment_document(clause.worst),
    }


def _make_moment_document(moment: Moment) -> dict[str, Any]:
    # Return a record of an explained episode as plain values: index, time, value and the bodies that determine it.
    # The document leaves out the index of a joint and, for a robot with a single arm, the arms.
    document: dict[str, Any] = msgspec.to_builtins(moment)
    if moment.involved:
        del document["involved"]["joint"]  # `names` has the joint's name
        if not moment.involved.arms:
            del document["involved"]["arms"]
    return document


# Traces of specifications


def trace_specs(scores: Scores, episode: int, record: Batch | RecordFields, ruleset: Ruleset) -> list[SpecTrace]:
    """Return the traces of the scored specifications with a verdict in the episode. Violated specifications come first,
    by decreasing depth; then satisfied ones, by increasing ratio of margin to threshold. Specifications that the
    library lacks are left out. `record` contains only this episode; `episode` is the episode's index in the scores.
    """
    # A trace is a specification's signal in each record, with the limit, the verdict and the cause.
    reading = record if isinstance(record, RecordFields) else ruleset.read_fields(record)
    return [
        _trace_spec(scores, episode, k, reading, ruleset)
        for k in judged_columns(scores, episode)
        if scores.specs[k].spec_id in ruleset.library
    ]


def judged_columns(scores: Scores, episode: int) -> list[int]:
    """Return the columns of the scored specifications with a verdict in an episode, the worst violation first."""

    # A column is the index of a specification in `scores.specs`.
    def severity(column: int) -> tuple[bool, float, float]:
        # Sort key: violated specifications first, then by decreasing depth, then by increasing margin / threshold.
        # False sorts before True. An undefined depth (NaN) counts as 0.
        depth = float(np.nan_to_num(scores.depth[column, episode]))
        margin_ratio = float(scores.rho[column, episode]) / scores.specs[column].threshold
        return not scores.is_violated[column, episode], -depth, margin_ratio

    return sorted((int(k) for k in scores.scored_columns if scores.state[k, episode] == ACTIVE), key=severity)


def _trace_spec(scores: Scores, episode: int, column: int, reading: RecordFields, ruleset: Ruleset) -> SpecTrace:
    # Return the trace of one specification in the only episode of `reading`.
    # `column` and `episode` are the indices of the specification and of the episode in the scores.
    # `rho` is the robustness (negative for a violation). `depth` is the relative size of a violation.
    spec = ruleset.library[scores.specs[column].spec_id]
    reading = view_clause(reading, spec, ruleset)
    batch, signal_trace = reading.batch, trace_formula(spec.formula, reading)
    first = int(scores.first[column, episode])  # the first violating record; -1 = none

    def moment_at(step: int) -> Moment:
        # Return the record `step`: its time, the signal's value (None if not finite), and the bodies that determine it.
        value = finite_or_none(signal_trace.values[step])
        contributors = find_contributors(reading, signal_trace.signal, step, ruleset.registry)
        return Moment(step, batch.elapsed_s(0, step), value, contributors)

    return SpecTrace(
        spec=scores.specs[column],
        formula=syntax.format_formula(spec.formula),
        meaning=_describe_signal(SIGNALS.get(signal_trace.signal), reading),
        signal_trace=signal_trace,
        chart=describe_chart(signal_trace, float(batch.dt_s[0]), first, batch.stamps_s.get(0)),
        rho=float(scores.rho[column, episode]),
        depth=float(scores.depth[column, episode]),
        violated=bool(scores.is_violated[column, episode]),
        first=None if first < 0 else moment_at(first),
        worst=moment_at(signal_trace.worst),
        why=_add_phase(find_cause(reading, signal_trace.signal, first, ruleset.registry), scores, episode, first),
        arm=reading.name_arm(),
    )


def _describe_signal(signal: Signal | None, reading: RecordFields) -> str:
    # Return the meaning of a signal, or of the formula's margin if `signal` is None.
    # With several arms, the text names the arm. The text also says from which record displacements are measured.
    # A displacement (`DISPLACED`) is measured from record 0, or from a phase's first record if only phases are judged.
    if signal is None:
        return "Margin of the formula. The formula is violated if the margin is below zero."
    arm = reading.name_arm()
    if arm:
        return f"{signal.meaning} The arm {arm} decides the verdict; these are the values of this arm."
    if reading.judged is None or signal.bodies is not DISPLACED:
        return signal.meaning
    # `origin` has, for each record, the record from which displacements are measured; `judged` marks judged records.
    first_records = " or ".join(map(str, np.unique(reading.origin[reading.judged]).tolist()))
    return signal.meaning.replace("record 0", f"record {first_records}, the start of judged phases")


def _add_phase(cause: CauseChain | None, scores: Scores, episode: int, step: int) -> CauseChain | None:
    # Return the cause, which may be None. If phases are judged one by one, the cause's sentence gets the phase's name.
    # The phase contains record `step`. `episode` is the episode's index in the scores.
    phases = scores.phases[episode] if scores.phases else None
    name = phases.name_components(step) if phases else ""
    if cause is None or not name:
        return cause
    return replace(cause, sentence=f"{cause.sentence} The phase is {name}.")


# The worst episodes


def select_worst(scores: Scores, max_count: int = 6) -> list[int]:
    """Return the indices of the worst unsafe episodes, at most `max_count`, by decreasing severity. First,
    the worst episode of each cell (policy × benchmark) is chosen, then the second worst, and so on. If no episode is
    unsafe, choose from all judged episodes.
    """
    # A cell has the episodes of one policy on one benchmark. Taking turns keeps one cell from filling the list.
    is_candidate = scores.unsafe if scores.unsafe.any() else scores.is_judged
    candidates = [episode for episode in rank_by_severity(scores) if is_candidate[episode]]
    count_by_cell = Counter[tuple[str | None, str]]()
    rank_in_cell: dict[int, int] = {}
    for episode in candidates:
        cell = scores.policy[episode], scores.benchmark[episode]
        rank_in_cell[episode] = count_by_cell[cell]
        count_by_cell[cell] += 1
    # The sort is stable, so episodes with the same rank in their cells stay in the order of severity.
    chosen = sorted(candidates, key=rank_in_cell.__getitem__)[:max_count]
    return sorted(chosen, key=candidates.index)


def rank_by_severity(scores: Scores) -> list[int]:
    """Return the indices of all episodes by decreasing depth of violation, then by increasing margin / threshold."""
    # The depth is the size of the worst violation in an episode, and the margin belongs to the same specification.
    order: list[int] = np.lexsort(severity_keys(scores)).tolist()
    return order


def severity_keys(scores: Scores) -> Floats:
    """Return the keys that sort episodes by severity with `np.lexsort`, [2, E]: margin / threshold, negative depth."""
    # `worst_column` [E] is the index of the specification with the greatest depth in each episode.
    # The index is -1 without a verdict. `vsi` [E] is the greatest depth; NaN without a verdict.
    if not scores.specs:
        return np.stack([np.full(len(scores), np.inf), np.zeros(len(scores))])
    column, limits = scores.worst_column, np.array([spec.threshold for spec in scores.specs])
    margin = scores.rho[column, np.arange(len(scores))] / limits[column]
    # `lexsort` sorts by its last key first. An episode without a verdict, whose column is negative, comes last.
    return np.stack([np.where(column < 0, np.inf, margin), -np.nan_to_num(scores.vsi)])
