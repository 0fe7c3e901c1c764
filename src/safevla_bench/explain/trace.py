"""What a record says about a specification: the signal against its limit over time; and which episodes to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals, stl
from safevla_bench.explain.contributors import Involved, involved
from safevla_bench.scores import ACTIVE, Scores, SpecColumn, null
from safevla_bench.signals import Reading
from safevla_bench.specs import Library, Spec
from safevla_bench.stl.evaluation import evaluate, number, positive
from safevla_bench.stl.formula import Compare, Expression, Formula, Implies, Signal, walk
from safevla_bench.trajectory import Batch

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Line:
    """One value a record against a limit: values [n], gate [n] or None, failing [n]; `upper` = the limit is a ceiling.

    `failing` marks the records that break the specification, `worst` is the record nearest to, or furthest beyond, the
    limit while the gate is open.
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
class Exhibit:
    """One specification in one episode."""

    spec: SpecColumn
    formula: str
    meaning: str
    dt_s: float
    line: Line
    rho: float
    depth: float
    violated: bool
    first: int
    """First violating record, -1 = none."""
    involved: Involved | None


def worst(scores: Scores, most: int = 6) -> list[int]:
    """The episodes to look at: unsafe ones, deepest first, ties by the smallest margin; cells take turns.

    Where no episode is unsafe: those that came nearest to a limit.
    """
    unsafe = scores.counted & ~scores.safe
    pool = np.flatnonzero(unsafe if unsafe.any() else scores.counted & (scores.worst >= 0))
    deepest = sorted((int(k) for k in pool), key=lambda k: _badness(scores, k))
    turn: dict[int, int] = {}
    seen: dict[tuple[str | None, str], int] = {}
    for k in deepest:
        cell = (scores.policy[k], scores.benchmark[k])
        turn[k] = seen[cell] = seen.get(cell, -1) + 1
    chosen = sorted(deepest, key=lambda k: turn[k])[:most]
    return sorted(chosen, key=lambda k: _badness(scores, k))


def ranked(scores: Scores) -> list[int]:
    """All episodes, deepest violations first, ties by the smallest margin."""
    return sorted(range(len(scores)), key=lambda k: _badness(scores, k))


def _badness(scores: Scores, episode: int) -> tuple[float, float, int]:
    column = int(scores.worst[episode])
    margin = float(scores.rho[column, episode]) / scores.specs[column].threshold if column >= 0 else np.inf
    return -(null(scores.vsi[episode]) or 0.0), margin, episode


def exhibits(scores: Scores, episode: int, record: Batch | Reading, library: Library) -> list[Exhibit]:
    """Every scored specification that reached a verdict in the episode: the violated first, deepest first.

    `record` is the episode as a batch of one.
    """
    reading = record if isinstance(record, Reading) else Reading(record)
    columns = [int(k) for k in scores.scored if scores.state[k, episode] == ACTIVE]
    found = [
        _exhibit(scores, episode, k, reading, library[scores.specs[k].spec_id])
        for k in columns
        if scores.specs[k].spec_id in library
    ]
    return sorted(found, key=lambda one: (not one.violated, -np.nan_to_num(one.depth), one.rho / one.spec.threshold))


def _exhibit(scores: Scores, episode: int, column: int, reading: Reading, spec: Spec) -> Exhibit:
    line = trace_line(spec.formula, reading)
    known = signals.SIGNALS.get(line.signal)
    return Exhibit(
        spec=scores.specs[column],
        formula=stl.to_text(spec.formula),
        meaning=known.meaning if known else "Margin of the formula: below zero it is violated.",
        dt_s=float(reading.batch.dt_s[0]),
        line=line,
        rho=float(scores.rho[column, episode]),
        depth=float(scores.depth[column, episode]),
        violated=bool(scores.violated[column, episode]),
        first=int(scores.first[column, episode]),
        involved=involved(reading, line.signal, line.worst),
    )


def trace_line(formula: Formula, reading: Reading) -> Line:
    """The signal and limit of G(signal < limit) and G(gate -> signal < limit); of other formulas the margin over time.

    `reading` holds one episode.
    """
    batch = reading.batch
    trace = stl.Trace(signals.derive(reading, stl.signals(formula)), batch.starts, batch.dt_s)
    if isinstance(formula, stl.Always):
        inside = _inside(formula.window, trace)
        gate, predicate = _gated(formula.child)
        sides = _sides(predicate)
        if sides is not None:
            name, limit, upper = sides
            opened = None if gate is None else positive(evaluate(gate, trace, at_start=False))
            return _against(name, trace.numeric(name), float(number(limit, None)), upper, opened, inside)
        return _margin(formula.child, trace, inside)
    return _margin(formula, trace, np.ones(len(batch.gripper_contact), dtype=np.bool_))


def _inside(window: stl.Window, trace: stl.Trace) -> Bools:
    time_s = np.arange(trace.starts[-1]) * trace.dt_s[0]
    slack = trace.dt_s[0] / 2
    end_s = np.inf if window.end_s is None else window.end_s
    return np.asarray((time_s > window.start_s - slack) & (time_s < end_s + slack))


def _gated(child: Formula) -> tuple[Formula | None, Formula]:
    return (child.left, child.right) if isinstance(child, Implies) else (None, child)


def _sides(predicate: Formula) -> tuple[str, Expression, bool] | None:
    """Signal, limit and whether the limit is a ceiling, of a comparison of one signal with a constant."""
    if not isinstance(predicate, Compare):
        return None
    below = predicate.operator in ("<", "<=")
    match predicate.left, predicate.right:
        case Signal(name), limit if not _reads(limit):
            return name, limit, below
        case limit, Signal(name) if not _reads(limit):
            return name, limit, not below
    return None


def _reads(expression: Expression) -> bool:
    return any(isinstance(node, Signal) for node in walk(expression))


def _against(name: str, values: Floats, limit: float, upper: bool, gate: Bools | None, inside: Bools) -> Line:
    watched = inside if gate is None else inside & gate
    beyond = values > limit if upper else values < limit
    return Line(
        signal=name,
        unit=signals.SIGNALS[name].unit,
        values=values,
        limit=limit,
        upper=upper,
        gate=None if gate is None and inside.all() else watched,
        failing=watched & beyond,
        worst=_furthest(values if upper else -values, watched),
    )


def _margin(formula: Formula, trace: stl.Trace, inside: Bools) -> Line:
    """The formula's margin in every record; crisp truths as +1 and -1."""
    margin = stl.trajectory_robustness(formula, trace)
    values = np.clip(margin, -1.0, 1.0) if np.isinf(margin).all() else margin
    failing = inside & (values < 0)
    return Line("margin", "", values, 0.0, False, None if inside.all() else inside, failing, _furthest(-values, inside))


def _furthest(values: Floats, watched: Bools) -> int:
    return int(np.where(watched & ~np.isnan(values), values, -np.inf).argmax())
