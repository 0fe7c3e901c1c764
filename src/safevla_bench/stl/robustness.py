"""Robustness of a formula over many episodes at once, in discrete time with space robustness.

A predicate's margin is bound - s or s - bound, in the unit of the signal (paper Section 3.1, Appendix C.1); `<` and
`<=` have one margin. Not flips the sign, and is the minimum, or the maximum, `a -> b` is max(-a, b), G the minimum, F
the maximum over a window, and until is max over t' of min(right(t'), min of left over [t, t')). Windows count seconds
from each record, multiples of the control step, and are clipped at the end of the episode; over no record G is +inf,
F and U are -inf. Boolean signals are crisp: +inf or -inf. NaN is an error, never a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from safevla_bench.stl.evaluation import either, evaluate, folded, margin, margins, negated, number, positive, steps
from safevla_bench.stl.formula import (
    Always,
    And,
    Compare,
    Expression,
    Formula,
    Implies,
    Signal,
    Window,
    bounded_windows,
    signals,
    walk,
)
from safevla_bench.stl.ragged import MAX, MIN, Bools, Floats, Ints, first_true, fold_ranges, is_crisp
from safevla_bench.stl.trace import Trace

__all__ = ["Clause", "Trace", "Verdict", "clause_of", "judge", "robustness", "trajectory_robustness"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a formula says of E episodes."""

    rho: Floats
    """Robustness at record 0, [E]; violated iff negative."""
    extreme: Floats
    """Worst raw signal value in the window while the gate is open, [E]: the maximum under an upper bound, the minimum
    under a lower one. NaN where the gate never opens, and for formulas other than G(predicate), G(gate -> predicate).
    """
    first_violation: Ints
    """Record of the first violation, [E], -1 = none: under a root G the first record whose margin is negative, under
    a conjunction the earliest of its violated parts, else 0."""


@np.errstate(all="ignore")  # what overflows or divides by zero is found and reported as an error below
def robustness(formula: Formula, trace: Trace) -> Floats:
    """Robustness at record 0 of each episode, [E].

    Raises:
        SignalError: The trace lacks a signal, or one has the wrong kind or is NaN, or arithmetic leaves the numbers.
        FormulaError: A window bound is no multiple of an episode's control step, or `threshold` was not substituted.
    """
    rho = np.empty(len(trace))
    for episodes, part in alike(formula, trace):
        clause = clause_of(formula)
        rho[episodes] = _measure(clause, part).rho if clause else margins(evaluate(formula, part, at_start=True))
    return rho


@np.errstate(all="ignore")
def trajectory_robustness(formula: Formula, trace: Trace) -> Floats:
    """Robustness at every record, [N]. Raises as `robustness` does."""
    rho = np.empty(trace.starts[-1])
    for episodes, part in alike(formula, trace):
        rho[trace.rows(episodes)] = margins(evaluate(formula, part, at_start=False))
    return rho


@np.errstate(all="ignore")
def judge(formula: Formula, trace: Trace) -> Verdict:
    """Robustness, worst signal value and first violation of each episode. Raises as `robustness` does."""
    verdict = Verdict(np.empty(len(trace)), np.empty(len(trace)), np.empty(len(trace), np.int64))
    for episodes, part in alike(formula, trace):
        if part is trace:
            return _judge(formula, trace)
        mine = _judge(formula, part)
        verdict.rho[episodes] = mine.rho
        verdict.extreme[episodes] = mine.extreme
        verdict.first_violation[episodes] = mine.first_violation
    return verdict


def alike(formula: Formula, trace: Trace) -> Iterator[tuple[Ints, Trace]]:
    """The episodes of one control step each, if the formula counts steps at all; else all of them."""
    if not bounded_windows(formula) or bool(np.all(trace.dt_s == trace.dt_s[:1])):
        yield from [(np.arange(len(trace)), trace)] if len(trace) else []
        return
    for name in signals(formula) & trace.signals.keys():
        trace.reject_nan(trace.signals[name], name)  # while episodes bear the caller's numbers
    for dt_s in np.unique(trace.dt_s):
        episodes = np.flatnonzero(trace.dt_s == dt_s)
        yield episodes, trace.select(episodes)


def _judge(formula: Formula, trace: Trace) -> Verdict:
    clause = clause_of(formula)
    if clause:
        return _measure(clause, trace).verdict(trace)
    unknown = np.full(len(trace), np.nan)
    match formula:
        case And(left, right):
            mine, other = _judge(left, trace), _judge(right, trace)
            return Verdict(
                np.minimum(mine.rho, other.rho), unknown, _earlier(mine.first_violation, other.first_violation)
            )
        case Always(window, child):
            values = evaluate(child, trace, at_start=False)
            rho = margins(folded(values, MIN, window, trace, at_start=True))
            lo, hi = trace.ragged.bounds(*steps(window, trace))
            return Verdict(rho, unknown, _since_start(first_true(positive(negated(values)), lo, hi), trace))
        case _:
            rho = margins(evaluate(formula, trace, at_start=True))
            return Verdict(rho, unknown, np.where(rho < 0, 0, -1))


def _earlier(one: Ints, other: Ints) -> Ints:
    both = (one >= 0) & (other >= 0)
    return np.where(both, np.minimum(one, other), np.maximum(one, other))


def _since_start(rows: Ints, trace: Trace) -> Ints:
    return np.where(rows < 0, -1, rows - trace.starts[:-1])


# Clauses: G(s < bound) and G(gate -> s < bound), and the like under >, which are nearly all that is ever judged.


@dataclass(frozen=True, slots=True)
class Clause:
    """G(signal below or above a bound), perhaps behind a gate: its worst signal value decides its margin."""

    window: Window
    gate: Formula | None
    predicate: Compare
    signal: str
    bound: float
    upper: bool


def clause_of(formula: Formula) -> Clause | None:
    """The formula as a clause, None where it has another shape."""
    match formula:
        case Always(window, Implies(gate, Compare() as predicate)):
            return _one_sided(window, gate, predicate)
        case Always(window, Compare() as predicate):
            return _one_sided(window, None, predicate)
        case _:
            return None


def _one_sided(window: Window, gate: Formula | None, predicate: Compare) -> Clause | None:
    below = predicate.operator in ("<", "<=")
    match predicate:
        case Compare(_, Signal(name), bound) if not _reads(bound):
            return Clause(window, gate, predicate, name, float(number(bound, None)), below)
        case Compare(_, bound, Signal(name)) if not _reads(bound):
            return Clause(window, gate, predicate, name, float(number(bound, None)), not below)
        case _:
            return None


def _reads(expression: Expression) -> bool:
    return any(isinstance(node, Signal) for node in walk(expression))


@dataclass(frozen=True, slots=True)
class _Measured:
    """A clause over a trace: rho [E], extreme [E], and what `first_violation` needs."""

    clause: Clause
    rho: Floats
    extreme: Floats
    opened: Bools | None
    lo: Ints
    hi: Ints

    def verdict(self, trace: Trace) -> Verdict:
        """Violations are looked for in the episodes that have one, which are few as a rule."""
        first, violated = np.full(len(trace), -1), np.flatnonzero(self.rho < 0)
        rows = trace.rows(violated)
        values = trace.numeric(self.clause.signal).take(rows)
        failing = values > self.clause.bound if self.clause.upper else values < self.clause.bound
        if self.opened is not None:
            failing &= self.opened.take(rows)
        begun = np.cumsum(trace.ragged.lengths[violated]) - trace.ragged.lengths[violated]
        shift = begun - trace.starts[violated]
        found = first_true(failing, self.lo[violated] + shift, self.hi[violated] + shift)
        first[violated] = np.where(found < 0, -1, found - begun)
        return Verdict(self.rho, self.extreme, first)


def _measure(clause: Clause, trace: Trace) -> _Measured:
    """The worst value first, and the margin of that one value.

    Rounding is monotone, so the margin of the worst value is, bit for bit, the worst margin: no array of margins.
    """
    gate = None if clause.gate is None else evaluate(clause.gate, trace, at_start=False)
    opened = None if gate is None else positive(gate)
    lo, hi = trace.ragged.bounds(*steps(clause.window, trace))
    worst = _worst(clause, opened, lo, hi, trace)
    if gate is None or is_crisp(gate):
        least = clause.bound - worst if clause.upper else worst - clause.bound
        rho = np.where(np.isnan(worst), np.inf, least + 0.0)
    else:  # a numeric gate has a margin of its own
        rho = margins(fold_ranges(either(negated(gate), margin(clause.predicate, trace)), MIN, lo, hi))
    return _Measured(clause, rho, worst, opened, lo, hi)


def _worst(clause: Clause, opened: Bools | None, lo: Ints, hi: Ints, trace: Trace) -> Floats:
    """The worst value over the records [lo, hi) where the gate is open, NaN where there is none, [E].

    The records are cut into pieces that are open or closed throughout, and inside or outside a window where open. One
    `reduceat` serves all pieces and, as every record is in one, finds every NaN.
    """
    values, fold = trace.numeric(clause.signal), MAX if clause.upper else MIN
    cuts = _cuts(opened, lo, hi, trace)
    pieces = fold.ufunc.reduceat(values, cuts)
    if np.isnan(pieces.max(initial=-np.inf)):
        trace.reject_nan(values, clause.signal)
    if opened is not None:
        kept = opened[cuts]
        cuts, pieces = cuts[kept], pieces[kept]
    if cuts is not lo:
        pieces = fold_ranges(pieces, fold, np.searchsorted(cuts, lo), np.searchsorted(cuts, hi))
    return np.where(pieces == fold.over_nothing, np.nan, pieces)


def _cuts(opened: Bools | None, lo: Ints, hi: Ints, trace: Trace) -> Ints:
    """Record 0, where the gate opens or closes, and where a window starts or ends under an open gate."""
    if opened is None and np.array_equal(lo, trace.starts[:-1]) and np.array_equal(hi, trace.starts[1:]):
        return lo
    edges = np.concatenate([lo, hi])
    edges = edges[edges < trace.starts[-1]]
    if opened is None:
        first = np.zeros(trace.starts[-1], np.bool_)
        first[edges] = True
    else:
        first = np.empty(trace.starts[-1], np.bool_)
        np.not_equal(opened[1:], opened[:-1], out=first[1:])
        first[edges[opened[edges]]] = True
    first[0] = True
    return np.flatnonzero(first)
