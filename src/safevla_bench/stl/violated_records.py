"""At which records a formula is violated: how long a violation lasts, not only whether there is one."""

from __future__ import annotations

import numpy as np

from safevla_bench.stl.evaluation import evaluate, negated, positive, steps
from safevla_bench.stl.formula import Always, And, Formula
from safevla_bench.stl.ragged import Bools
from safevla_bench.stl.robustness import alike
from safevla_bench.stl.trace import Trace


def violating(formula: Formula, trace: Trace) -> Bools | None:
    """The records at which a G fails, or any G of a conjunction of them, [N]; None for any other formula.

    Under G the margin of each record within the window says by itself whether that record violates; no such thing can
    be said of a single record under F or U. An episode is violated iff one of its records is, and `judge` finds the
    first of them.

    Raises:
        SignalError: as `robustness` does.
        FormulaError: as `robustness` does.
    """
    if not _says_of_records(formula):
        return None
    found = np.zeros(trace.starts[-1], np.bool_)
    for episodes, part in alike(formula, trace):
        found[trace.rows(episodes)] = _failing(formula, part)
    return found


def _says_of_records(formula: Formula) -> bool:
    if isinstance(formula, And):
        return _says_of_records(formula.left) and _says_of_records(formula.right)
    return isinstance(formula, Always)


@np.errstate(all="ignore")  # as in robustness: what overflows is found and reported as an error
def _failing(formula: Formula, trace: Trace) -> Bools:
    match formula:
        case And(left, right):
            return _failing(left, trace) | _failing(right, trace)
        case Always(window, child):
            lo, hi = trace.ragged.bounds(*steps(window, trace))
            row = np.arange(trace.starts[-1])
            episode = trace.ragged.episode_of
            fails = positive(negated(evaluate(child, trace, at_start=False)))
            return np.asarray(fails & (row >= lo[episode]) & (row < hi[episode]))
        case _:
            raise AssertionError(formula)
