"""Which record a verdict hangs on: where in time a formula found its robustness."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from safevla_bench.stl.evaluation import evaluate, margins, steps
from safevla_bench.stl.formula import Always, And, Eventually, Formula, Implies, Not, Or, Until
from safevla_bench.stl.ragged import Floats, Ints, Values
from safevla_bench.stl.robustness import alike
from safevla_bench.stl.trace import Trace


def deciding(formula: Formula, trace: Trace) -> Ints:
    """The record that decides each episode's robustness, counted from the episode's first; -1 = none, [E].

    Under a root G it is the record of the window with the smallest margin, under F the one with the greatest, under
    `a U b` the one at which `b` comes true by the greatest margin. Not has the record of its child; `and`, `or` and
    `->` that of the side whose value they take. Where no temporal operator stands, it is record 0. The earliest record
    and the left side win ties. None decides where the window lies wholly beyond the end.

    Raises:
        SignalError: as `robustness` does.
        FormulaError: as `robustness` does.
    """
    found = np.empty(len(trace), np.int64)
    for episodes, part in alike(formula, trace):
        row = _row(formula, part)
        found[episodes] = np.where(row < 0, -1, row - part.starts[:-1])
    return found


@np.errstate(all="ignore")  # as in robustness: what overflows is found and reported as an error
def _row(formula: Formula, trace: Trace) -> Ints:
    """The deciding row among all records, -1 = none, [E]."""
    match formula:
        case Not(child):
            return _row(child, trace)
        case And(left, right):
            return np.where(_now(left, trace) <= _now(right, trace), _row(left, trace), _row(right, trace))
        case Or(left, right):
            return np.where(_now(left, trace) >= _now(right, trace), _row(left, trace), _row(right, trace))
        case Implies(left, right):
            return np.where(-_now(left, trace) >= _now(right, trace), _row(left, trace), _row(right, trace))
        case Always(window, child):
            values = evaluate(child, trace, at_start=False)
            return _over(trace, *trace.ragged.bounds(*steps(window, trace)), lambda _, lo, hi: values[lo:hi].argmin())
        case Eventually(window, child):
            values = evaluate(child, trace, at_start=False)
            return _over(trace, *trace.ragged.bounds(*steps(window, trace)), lambda _, lo, hi: values[lo:hi].argmax())
        case Until(window, left, right):
            hold, reach = (margins(evaluate(side, trace, at_start=False)) for side in (left, right))
            bounds = trace.ragged.bounds(*steps(window, trace))
            return _over(trace, *bounds, lambda start, lo, hi: _reached(hold, reach, start, lo, hi).argmax())
        case _:
            return trace.starts[:-1]


def _now(formula: Formula, trace: Trace) -> Floats:
    return margins(evaluate(formula, trace, at_start=True))


def _over(trace: Trace, lo: Ints, hi: Ints, place: Callable[[int, int, int], np.integer]) -> Ints:
    """The row at `place` (counted from lo) of each episode's window [lo, hi), -1 where it is empty, [E]."""
    windows = zip(trace.starts[:-1], lo, hi, strict=True)
    return np.array([a + place(start, a, b) if a < b else -1 for start, a, b in windows], dtype=np.int64)


def _reached(hold: Values, reach: Values, start: int, lo: int, hi: int) -> Values:
    """min(reach[t], min of hold over [start, t)) for t in [lo, hi)."""
    held = np.minimum.accumulate(np.concatenate([[np.inf], hold[start : hi - 1]]))
    return np.asarray(np.minimum(reach[lo:hi], held[lo - start :]))
