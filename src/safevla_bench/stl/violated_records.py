"""The records at which a formula is violated, from which follows how long a violation lasts."""

from __future__ import annotations

import numpy as np

from safevla_bench.stl.evaluation import evaluate_formula, is_positive, negate, window_steps
from safevla_bench.stl.formula import Always, And, Formula
from safevla_bench.stl.ragged import Bools
from safevla_bench.stl.robustness import group_by_step
from safevla_bench.stl.trace import Trace


def violating_records(formula: Formula, trace: Trace) -> Bools | None:
    """Return whether each record violates a G, or any G of a conjunction of them, [N]; None for any other formula.

    Under G the margin of each record within the window decides whether that record violates. Under F or U a single
    record decides nothing. An episode is violated iff one of its records is, and `judge_formula` finds the first.

    Raises:
        SignalError: as `robustness` does.
        FormulaError: as `robustness` does.
    """
    if not _is_recordwise(formula):
        return None
    violating = np.zeros(trace.starts[-1], np.bool_)
    for episodes, part in group_by_step(formula, trace):
        violating[trace.record_rows(episodes)] = _violation_mask(formula, part)
    return violating


def _is_recordwise(formula: Formula) -> bool:
    if isinstance(formula, And):
        return _is_recordwise(formula.left) and _is_recordwise(formula.right)
    return isinstance(formula, Always)


@np.errstate(all="ignore")  # as in robustness: overflow is reported as an error
def _violation_mask(formula: Formula, trace: Trace) -> Bools:
    match formula:
        case And(left, right):
            return _violation_mask(left, trace) | _violation_mask(right, trace)
        case Always(window, child):
            lo, hi = trace.layout.window_bounds(*window_steps(window, trace))
            row = np.arange(trace.starts[-1])
            episode = trace.layout.episode_of
            fails = is_positive(negate(evaluate_formula(child, trace, at_start=False)))
            return np.asarray(fails & (row >= lo[episode]) & (row < hi[episode]))
        case _:
            raise AssertionError(formula)
