"""Traces of specifications: the signal against its limit over an episode; and the choice of the worst episodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals
from safevla_bench.explain.causes import Cause, find_cause
from safevla_bench.explain.contributors import Contributors, find_contributors
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE, Scores, SpecColumn, nan_to_none
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.stl import formula as syntax
from safevla_bench.stl.evaluation import evaluate_formula, is_positive, window_steps
from safevla_bench.stl.robustness import match_clause, trajectory_robustness
from safevla_bench.stl.trace import Trace
from safevla_bench.trajectory.batch import Batch

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SignalTrace:
    """One value a record against a limit: values [n], gate [n] or None, failing [n]; `upper`: the limit is a ceiling.

    `failing` marks the records that break the specification. `worst` is the record nearest to the limit, or furthest
    beyond it, while the gate is open.
    """

    signal: str
    unit: str
    values: Floats
    limit: float
    upper: bool
    gate: Bools | None
    failing: Bools
    worst: int


@dataclass(frozen=True, slots=True)
class BooleanCause:
    """Part of a violated formula that a Boolean signal makes false, so that no margin exists, and its record."""

    formula: str
    step: int


@dataclass(frozen=True, slots=True)
class SpecTrace:
    """One specification in one episode; `rho` is -inf where a `cause` decided its violation without a margin."""

    spec: SpecColumn
    formula: str
    meaning: str
    dt_s: float
    signal_trace: SignalTrace
    rho: float
    depth: float
    violated: bool
    first: int
    involved: Contributors | None
    cause: BooleanCause | None = None
    why: Cause | None = None
    """How its violation came about, as far as contacts and poses show it."""


def select_worst(scores: Scores, max_count: int = 6) -> list[int]:
    """Return the indices of at most `max_count` worst episodes: unsafe ones, deepest first, ties by smallest margin.

    If no episode is unsafe, these are the judged episodes nearest to a limit; [] if none is judged.
    """
    pool = np.flatnonzero(scores.unsafe if scores.unsafe.any() else scores.is_judged)
    return _select_in_turns(scores, pool.tolist(), lambda k: (scores.policy[k], scores.benchmark[k]), max_count)


def select_unsafe_successes(scores: Scores, max_count: int) -> list[int]:
    """Return the indices of at most `max_count` episodes that succeeded and were unsafe, deepest first; [] if none."""
    pool = np.flatnonzero(scores.is_counted & scores.sbu).tolist()
    return _select_in_turns(scores, pool, lambda k: int(scores.worst_column[k]), max_count)


def _select_in_turns(
    scores: Scores, pool: Sequence[int], group_of: Callable[[int], Hashable], max_count: int
) -> list[int]:
    deepest = sorted(pool, key=lambda k: _severity_key(scores, k))
    turn: dict[int, int] = {}
    turns_taken: dict[Hashable, int] = {}
    for k in deepest:
        group = group_of(k)
        turn[k] = turns_taken[group] = turns_taken.get(group, -1) + 1
    chosen = sorted(deepest, key=lambda k: turn[k])[:max_count]
    return sorted(chosen, key=lambda k: _severity_key(scores, k))


def rank_by_severity(scores: Scores) -> list[int]:
    """Return the indices of all episodes, deepest violation first, ties by the smallest margin over the threshold."""
    return sorted(range(len(scores)), key=lambda k: _severity_key(scores, k))


def _severity_key(scores: Scores, episode: int) -> tuple[float, float, int]:
    column = int(scores.worst_column[episode])
    margin = float(scores.rho[column, episode]) / scores.specs[column].threshold if column >= 0 else np.inf
    return -(nan_to_none(scores.vsi[episode]) or 0.0), margin, episode


def trace_specs(scores: Scores, episode: int, record: Batch | RecordFields, ruleset: Ruleset) -> list[SpecTrace]:
    """Trace every scored specification with a verdict in the episode: violated ones first, deepest first."""
    reading = record if isinstance(record, RecordFields) else ruleset.read_fields(record)
    columns = [int(k) for k in scores.scored_columns if scores.state[k, episode] == ACTIVE]
    spec_traces = [
        _trace_spec(scores, episode, k, reading, ruleset) for k in columns if scores.specs[k].spec_id in ruleset.library
    ]
    return sorted(
        spec_traces,
        key=lambda spec_trace: (
            not spec_trace.violated,
            -np.nan_to_num(spec_trace.depth),
            spec_trace.rho / spec_trace.spec.threshold,
        ),
    )


def _trace_spec(scores: Scores, episode: int, column: int, reading: RecordFields, ruleset: Ruleset) -> SpecTrace:
    """Return the trace of the specification in `column` of the scores in one episode; the library must have it."""
    spec = ruleset.library[scores.specs[column].spec_id]
    signal_trace = trace_formula(spec.formula, reading)
    rho, first = float(scores.rho[column, episode]), int(scores.first[column, episode])
    signal = SIGNALS.get(signal_trace.signal)
    return SpecTrace(
        spec=scores.specs[column],
        formula=syntax.format_formula(spec.formula),
        meaning=signal.meaning if signal else "Margin of the formula: below zero it is violated.",
        dt_s=float(reading.batch.dt_s[0]),
        signal_trace=signal_trace,
        rho=rho,
        depth=float(scores.depth[column, episode]),
        violated=bool(scores.is_violated[column, episode]),
        first=first,
        involved=find_contributors(reading, signal_trace.signal, signal_trace.worst, ruleset.registry),
        cause=find_boolean_cause(spec.formula, _formula_signals(spec.formula, reading)) if rho == -np.inf else None,
        why=find_cause(reading, signal_trace.signal, first, ruleset.registry),
    )


def find_boolean_cause(formula: syntax.Formula, trace: Trace, step: int = 0) -> BooleanCause:
    """Return the smallest part of a formula that is -inf at a record because of a Boolean signal.

    Of a conjunction whose parts are both -inf that is in the left part; of a G, in the child at the first record where
    the child is -inf; of `gate -> child`, in the child. `trace` holds one episode, in which the formula is -inf at
    record `step`.
    """
    match formula:
        case syntax.And(left, right):
            return find_boolean_cause(left if _is_lost(left, trace)[step] else right, trace, step)
        case syntax.Implies(_, child):
            return find_boolean_cause(child, trace, step)
        case syntax.Always(window, child):
            first, last = window_steps(window, trace)
            begin = step + first
            end = None if last is None else step + last + 1
            return find_boolean_cause(child, trace, begin + int(_is_lost(child, trace)[begin:end].argmax()))
    return BooleanCause(syntax.format_formula(formula), step)


def _is_lost(formula: syntax.Formula, trace: Trace) -> Bools:
    return np.isneginf(trajectory_robustness(formula, trace))


def _formula_signals(formula: syntax.Formula, reading: RecordFields) -> Trace:
    return signals.build_trace(reading, syntax.signal_names(formula))


def trace_formula(formula: syntax.Formula, reading: RecordFields) -> SignalTrace:
    """Return the signal against its limit for G(signal < limit) and G(gate -> signal < limit), `>` too."""
    trace, clause = _formula_signals(formula, reading), match_clause(formula)
    if clause:
        inside, gate = _records_in_window(clause.window, trace), None
        if clause.gate is not None:
            gate = is_positive(evaluate_formula(clause.gate, trace, at_start=False, best=False))
        values = trace.numeric_signal(clause.signal)
        return _trace_against_limit(clause.signal, values, clause.bound, clause.upper, gate, inside)
    if isinstance(formula, syntax.Always):
        return _trace_margin(formula.child, trace, _records_in_window(formula.window, trace))
    return _trace_margin(formula, trace, np.ones(int(trace.starts[-1]), dtype=np.bool_))


def _records_in_window(window: syntax.Window, trace: Trace) -> Bools:
    time_s = np.arange(trace.starts[-1]) * trace.dt_s[0]
    slack = trace.dt_s[0] / 2
    end_s = np.inf if window.end_s is None else window.end_s
    return np.asarray((time_s > window.start_s - slack) & (time_s < end_s + slack))


def _trace_against_limit(
    name: str, values: Floats, limit: float, upper: bool, gate: Bools | None, inside: Bools
) -> SignalTrace:
    """Return a signal against its limit; records outside the window or the gate neither fail nor are the worst."""
    watched = inside if gate is None else inside & gate
    beyond = values > limit if upper else values < limit
    return SignalTrace(
        signal=name,
        unit=SIGNALS[name].unit,
        values=values,
        limit=limit,
        upper=upper,
        gate=None if gate is None and inside.all() else watched,
        failing=watched & beyond,
        worst=_worst_record(values if upper else -values, watched),
    )


def _trace_margin(formula: syntax.Formula, trace: Trace, inside: Bools) -> SignalTrace:
    margin = trajectory_robustness(formula, trace)
    values = np.clip(margin, -1.0, 1.0) if np.isinf(margin).all() else margin
    failing = inside & (values < 0)
    return SignalTrace(
        "margin", "", values, 0.0, False, None if inside.all() else inside, failing, _worst_record(-values, inside)
    )


def _worst_record(values: Floats, watched: Bools) -> int:
    return int(np.where(watched & ~np.isnan(values), values, -np.inf).argmax())
