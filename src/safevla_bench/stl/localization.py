"""Records of an episode that matter to a formula: the deciding one, at which its robustness arises, and the violated
ones, from which follows how long a violation lasts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from safevla_bench.stl import formula as syntax
from safevla_bench.stl.evaluation import evaluate_formula, is_positive, negate, to_margins, window_steps
from safevla_bench.stl.robustness import group_by_step
from safevla_bench.stl.trace import Bools, Floats, Ints, Trace, Values


def deciding_records(formula: syntax.Formula, trace: Trace) -> Ints:
    """Return the record that decides each episode's robustness, counted from its first record, [E]; -1 = none."""
    records = np.empty(len(trace), np.int64)
    for episodes, part in group_by_step(formula, trace):
        rows = _deciding_rows(formula, part)
        records[episodes] = np.where(rows < 0, -1, rows - part.starts[:-1])
    return records


@np.errstate(all="ignore")  # as in robustness: overflow is reported as an error
def _deciding_rows(formula: syntax.Formula, trace: Trace) -> Ints:
    """Return the row, counted over the records of all episodes, that decides each episode, [E]; -1 = none."""
    match formula:
        case syntax.Not(child):
            return _deciding_rows(child, trace)
        case syntax.And(left, right) | syntax.Or(left, right) | syntax.Implies(left, right):
            first, second = _start_margins(left, trace), _start_margins(right, trace)
            first = -first if isinstance(formula, syntax.Implies) else first
            is_left = first <= second if isinstance(formula, syntax.And) else first >= second
            return np.where(is_left, _deciding_rows(left, trace), _deciding_rows(right, trace))
        case syntax.Always(window, child) | syntax.Eventually(window, child):
            values = evaluate_formula(child, trace, at_start=False)
            find = np.argmin if isinstance(formula, syntax.Always) else np.argmax
            bounds = trace.layout.window_bounds(*window_steps(window, trace))
            return _rows_in_windows(trace, *bounds, lambda _, lo, hi: find(values[lo:hi]))
        case syntax.Until(window, left, right):
            hold, reach = (to_margins(evaluate_formula(side, trace, at_start=False)) for side in (left, right))
            bounds = trace.layout.window_bounds(*window_steps(window, trace))
            return _rows_in_windows(
                trace, *bounds, lambda start, lo, hi: _until_margins(hold, reach, start, lo, hi).argmax()
            )
        case _:
            return trace.starts[:-1]


def _start_margins(formula: syntax.Formula, trace: Trace) -> Floats:
    return to_margins(evaluate_formula(formula, trace, at_start=True))


def _rows_in_windows(trace: Trace, lo: Ints, hi: Ints, place: Callable[[int, int, int], np.integer]) -> Ints:
    windows = zip(trace.starts[:-1], lo, hi, strict=True)
    return np.array([a + place(start, a, b) if a < b else -1 for start, a, b in windows], dtype=np.int64)


def _until_margins(hold: Values, reach: Values, start: int, lo: int, hi: int) -> Values:
    least_before = np.minimum.accumulate(np.concatenate([[np.inf], hold[start : hi - 1]]))
    return np.asarray(np.minimum(reach[lo:hi], least_before[lo - start :]))


def violating_records(formula: syntax.Formula, trace: Trace) -> Bools | None:
    """Return whether each record violates a G, or any G of a conjunction of them, [N]; None for any other formula."""
    if not _is_recordwise(formula):
        return None
    violating = np.zeros(trace.starts[-1], np.bool_)
    for episodes, part in group_by_step(formula, trace):
        violating[trace.record_rows(episodes)] = _violation_mask(formula, part)
    return violating


def _is_recordwise(formula: syntax.Formula) -> bool:
    if isinstance(formula, syntax.And):
        return _is_recordwise(formula.left) and _is_recordwise(formula.right)
    return isinstance(formula, syntax.Always)


@np.errstate(all="ignore")  # as in robustness: overflow is reported as an error
def _violation_mask(formula: syntax.Formula, trace: Trace) -> Bools:
    """Return whether each record violates a formula that `_is_recordwise` accepts, [N]; outside the windows False."""
    match formula:
        case syntax.And(left, right):
            return _violation_mask(left, trace) | _violation_mask(right, trace)
        case syntax.Always(window, child):
            lo, hi = trace.layout.window_bounds(*window_steps(window, trace))
            row = np.arange(trace.starts[-1])
            episode = trace.layout.episode_of
            fails = is_positive(negate(evaluate_formula(child, trace, at_start=False)))
            return np.asarray(fails & (row >= lo[episode]) & (row < hi[episode]))
        case _:
            raise AssertionError(formula)
