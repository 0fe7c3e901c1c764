"""Evaluate a formula and its parts on all records at once, and find the records that decide or violate the formula.

Values are margins (float64) or Booleans (bool). The values of a formula with only Boolean signals stay Booleans, and
`gate -> predicate` selects the predicate's margins at the records where the gate is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from safevla_bench.errors import FormulaError, SignalError
from safevla_bench.stl import formula as syntax
from safevla_bench.stl.trace import (
    MAX,
    MIN,
    Bools,
    Floats,
    Fold,
    Ints,
    Trace,
    Values,
    are_boolean,
    fold_ranges,
    fold_spans,
    fold_until,
    subtract,
)

STEP_TOLERANCE = 1e-9
"""Maximum distance of a window bound from a multiple of the control step, or from a time stamp, in control steps."""


def evaluate_formula(
    formula: syntax.Formula, trace: Trace, *, at_start: bool, best: bool = True, positive: bool = True
) -> Values:
    """Return the formula's value at record 0 of each episode, [E], if `at_start`, else at every record, [N]. Values are
    margins, or Booleans if all atoms are Boolean. Either all episodes have time stamps, or none has and all have the
    same control step. Where signals are unknown, the value is the largest possible one if `best`, else the smallest.
    `positive` is False if the formula is inside an odd number of negations. Raises the same errors as `robustness`.
    """
    # `formula` is the root of a syntax tree.
    # `trace` holds the signals of E episodes, one after the other, in arrays [N].
    # A negative margin means that the formula is false.

    def evaluate(part: syntax.Formula, *, at_start: bool = at_start, negated: bool = False) -> Values:
        # A negation swaps `best` and `positive` with their opposites.
        return evaluate_formula(part, trace, at_start=at_start, best=best != negated, positive=positive != negated)

    match formula:
        case syntax.Not(child):
            return negate(evaluate(child, negated=True))
        case syntax.And(left, right):
            return conjunction(evaluate(left), evaluate(right))
        case syntax.Or(left, right):
            return disjunction(evaluate(left), evaluate(right))
        case syntax.Implies(left, right):
            condition = evaluate(left, negated=True)
            if not formula.plain:  # the condition counts only as true or false
                # A margin of exactly zero counts in favor of the whole formula.
                condition = is_true(condition, strict=positive)
            return disjunction(negate(condition), evaluate(right))
        case syntax.Always(window, child) | syntax.Eventually(window, child):
            fold = MIN if isinstance(formula, syntax.Always) else MAX
            return evaluate_window(evaluate(child, at_start=False), fold, window, trace, at_start)
        case syntax.Until(window, left, right):
            hold, reach = evaluate(left, at_start=False), evaluate(right, at_start=False)
            # If the formula is crisp, the right side counts only as true or false, so its margin does not matter.
            if formula.crisp:
                reach = is_true(reach, strict=not positive)
            if hold.dtype != reach.dtype:
                # `fold_until` needs two arrays of the same type.
                hold, reach = to_margins(hold), to_margins(reach)
            values = fold_until(hold, reach, *_window_rows(window, trace))
            # A weak `until` is also true if the left side holds until the end of the window.
            if formula.weak:
                whole_window = syntax.Window(0.0, window.end_s)
                values = disjunction(values, evaluate_window(hold, MIN, whole_window, trace, at_start=False))
        case syntax.Compare():
            values = predicate_margin(formula, trace, best=best)
        case syntax.BooleanSignal(name):
            values = trace.boolean_signal(name)
            if name in trace.unknown:  # the best value is True, and the worst is False
                values = values | trace.unknown[name] if best else values & ~trace.unknown[name]
        case syntax.Truth(value):
            values = np.full(trace.starts[-1], value)
    # All cases that reach this line have values at every record, [N].
    return values[trace.starts[:-1]] if at_start else values


def evaluate_window(values: Values, fold: Fold, window: syntax.Window, trace: Trace, at_start: bool) -> Values:
    """Return the minimum or maximum (`fold`) of `values` [N] over the window from record 0, [E], if `at_start`, else
    from every record, [N]. An empty window gives the neutral value: +inf or True for MIN, -inf or False for MAX.
    """
    # `start_rows` and `_window_rows` return the first row of each window, and the row after the window's last row.
    if at_start:
        return fold_ranges(values, fold, *start_rows(window, trace))
    return fold_spans(values, fold, *_window_rows(window, trace))


def start_rows(window: syntax.Window, trace: Trace) -> tuple[Ints, Ints]:
    """Return the rows [lo, hi) of the window from the first record of each episode; lo and hi are [E], and equal if the
    window is empty. Without time stamps, raises `FormulaError` if a bound is not a multiple of the control step.
    """
    # `trace.starts` [E + 1] holds the first row of each episode and, at its end, the number of all rows.
    if not _uses_time_stamps(window, trace):
        return _clip_steps(window, trace, trace.starts[:-1], trace.starts[1:])
    lo, hi = _window_rows(window, trace)
    return lo[trace.starts[:-1]], hi[trace.starts[:-1]]


def _window_rows(window: syntax.Window, trace: Trace) -> tuple[Ints, Ints]:
    # Return the rows [lo, hi) of the window from each record; lo and hi are [N].
    # `trace.starts` [E + 1] holds the first row of each episode and, at its end, the number of all rows.
    # At first, `lo` is each record's row, and `hi` is the end of the record's episode.
    lo, hi = np.arange(trace.starts[-1]), np.repeat(trace.starts[1:], trace.lengths)
    if not _uses_time_stamps(window, trace):
        return _clip_steps(window, trace, lo, hi)
    assert trace.time_s is not None
    for first, end in pairwise(trace.starts.tolist()):
        stamps_s = trace.time_s[first:end]
        # The slack keeps records whose time stamps miss a bound of the window by a rounding error.
        slack_s = STEP_TOLERANCE * float(np.median(np.diff(stamps_s))) if end - first > 1 else 0.0
        slack_s = max(slack_s, 2 * float(np.spacing(np.abs(stamps_s).max())))  # time stamps are rounded to float64
        window_lo = first + np.searchsorted(stamps_s, stamps_s + (window.start_s - slack_s))
        # The slack never adds a record that is before a window's starting record.
        lo[first:end] = np.maximum(lo[first:end], window_lo)
        # Without an end, the window lasts until the episode's end, which `hi` holds already.
        if window.end_s is not None:
            hi[first:end] = first + np.searchsorted(stamps_s, stamps_s + (window.end_s + slack_s), side="right")
    return lo, hi


def _uses_time_stamps(window: syntax.Window, trace: Trace) -> bool:
    # Return whether time stamps decide which records are in the window. The window [0,T] needs no times.
    # `Window()` is [0,T], from the record to the episode's end.
    return trace.time_s is not None and window != syntax.Window()


def _clip_steps(window: syntax.Window, trace: Trace, rows: Ints, ends: Ints) -> tuple[Ints, Ints]:
    # Return the rows [lo, hi) of the windows that begin at `rows`, clipped at the episodes' ends.
    # `ends` holds the row after the last row of each window's episode.
    # The window's bounds are in seconds after the record in `rows`. Convert them to numbers of control steps.
    lo = np.minimum(rows + _step_count(window.start_s, trace), ends)
    if window.end_s is None:
        return lo, ends
    # The window [a,b] includes its end, but [lo, hi) excludes `hi`, so `hi` is one row later.
    return lo, np.minimum(rows + _step_count(window.end_s, trace) + 1, ends)


def _step_count(bound_s: float, trace: Trace) -> int:
    # Return the number of control steps in `bound_s` seconds, but at most the longest episode's number of records.
    # Raise `FormulaError` if the bound is not a multiple of the control step.
    # All episodes have the same control step, except where the bound is 0 and the step does not matter.
    dt_s = float(trace.dt_s[0])
    count = min(bound_s / dt_s, 1e18)  # 1e18 exceeds the steps of any episode, but can be rounded to an integer
    if not abs(count - round(count)) <= STEP_TOLERANCE:
        nearest = syntax.format_number(round(count) * dt_s)
        step = f"the control step dt = {syntax.format_number(dt_s)} s"
        problem = f"the window bound {syntax.format_number(bound_s)} s is not a multiple of {step}"
        raise FormulaError(problem, remedy=f"the nearest multiple is {nearest} s")
    return min(round(count), int(trace.lengths.max(initial=0)))


# Connectives. A Boolean counts as the margin +inf (True) or -inf (False) if the other operand is a margin.


def negate(values: Values) -> Values:
    """Return `not` of Booleans, or margins with the sign flipped."""
    return np.logical_not(values) if are_boolean(values) else np.negative(values)


def conjunction(left: Values, right: Values) -> Values:
    """Return the smaller margin, or `and` of Booleans. With one Boolean, return the margin if it is True, else -inf."""
    if left.dtype == right.dtype:
        return np.asarray(np.minimum(left, right))
    booleans, margins = (left, right) if are_boolean(left) else (right, left)
    return np.where(booleans, margins, -np.inf)


def disjunction(left: Values, right: Values) -> Values:
    """Return the larger margin, or `or` of Booleans. With one Boolean, return +inf if it is True, else the margin."""
    if left.dtype == right.dtype:
        return np.asarray(np.maximum(left, right))
    booleans, margins = (left, right) if are_boolean(left) else (right, left)
    return np.where(booleans, np.inf, margins)


def is_positive(values: Values) -> Bools:
    """Return whether each margin is above zero; Booleans are unchanged."""
    return is_true(values, strict=True)


def is_true(values: Values, *, strict: bool) -> Bools:
    """Return whether each margin is at least zero, or above zero if `strict`. Booleans are unchanged."""
    if are_boolean(values):
        return values
    return np.greater(values, 0) if strict else np.greater_equal(values, 0)


def to_margins(values: Values) -> Floats:
    """Convert values to margins: Booleans become infinite, and negative zero becomes zero."""
    return np.where(values, np.inf, -np.inf) if are_boolean(values) else values + 0.0


# Atoms


def reads_signal(expression: syntax.Expression) -> bool:
    """Return whether an expression reads any signal."""
    return any(isinstance(node, syntax.NumericSignal) for node in syntax.walk_nodes(expression))


def evaluate_expression(expression: syntax.Expression, trace: Trace | None) -> Floats | np.float64:
    """Return the expression's value at every record, [N], with NaN where a signal is unknown. An expression without
    signals needs no `trace`, and its value is a single number. Raises `SignalError` if a known value is NaN, or if
    arithmetic divides by zero or overflows. Raises `FormulaError` if `threshold` was not substituted.
    """
    # `trace.unknown` maps a signal to a mask [N] of the records at which its value is unknown.
    match expression:
        case syntax.NumericSignal(name):
            assert trace is not None
            values = trace.numeric_signal(name)
            if name in trace.unknown:
                unknown = trace.unknown[name]
                trace.reject_nan(np.where(unknown, 0.0, values), name)
                return np.where(unknown, np.nan, values)
            trace.reject_nan(values, name)
            return values
        case syntax.Number(value):
            return np.float64(value)
        case syntax.Threshold():
            raise FormulaError("the placeholder `threshold` has no value", remedy="substitute a number for `threshold`")
        case syntax.Negate(child):
            return -evaluate_expression(child, trace)
        case syntax.Arithmetic(operator, left, right):
            first, second = evaluate_expression(left, trace), evaluate_expression(right, trace)
            result: Floats = _OPERATORS[operator](first, second)
            is_unmeasured = np.isinf(first) | np.isinf(second)  # a signal is infinite if it has nothing to measure
            if not (np.isfinite(result) | is_unmeasured | np.isnan(first) | np.isnan(second)).all():  # NaN: unknown
                problem = f"`{syntax.format_expression(expression)}` divides by zero or overflows"
                raise SignalError(problem, remedy="write `a < c * b` instead of `a / b < c`")
            return np.where(is_unmeasured, np.inf, result) if is_unmeasured.any() else result


_OPERATORS: Mapping[str, np.ufunc] = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


def predicate_margin(predicate: syntax.Compare, trace: Trace, *, best: bool = True) -> Floats:
    """Return the margin of a comparison at every record, [N], in the unit of its sides; 0 if the sides are equal up to
    rounding. For an unknown value, return the largest possible margin if `best`, else the smallest. Raises the same
    errors as `evaluate_expression`, and `SignalError` if a known margin is NaN.
    """
    # `by_episode` [E] is the relative difference up to which two numbers count as equal. It is larger for float32.
    # `trace.single` maps a signal to the episodes that store the signal as float32.
    left, right = evaluate_expression(predicate.left, trace), evaluate_expression(predicate.right, trace)
    names = syntax.signal_names(predicate)
    by_episode = trace.rounding(names)
    # Without signals that were stored as float32, all episodes have the same rounding.
    rounding = np.repeat(by_episode, trace.lengths) if trace.single else by_episode[:1]
    greater, less = (right, left) if predicate.operator in ("<", "<=") else (left, right)
    # The difference is a single number if neither side reads a signal.
    values = np.broadcast_to(subtract(greater, less, rounding), trace.starts[-1])
    # A signal is infinite if it has nothing to measure, so the comparison has no margin there.
    is_unmeasured = np.isinf(left) | np.isinf(right)
    if is_unmeasured.any():
        values = np.where(is_unmeasured, np.inf if best else -np.inf, values)
    if trace.unknown and not trace.unknown.keys().isdisjoint(names):
        return np.where(np.isnan(values), _unknown_margin(predicate, trace, best, rounding), values)
    trace.reject_nan(values, f"the margin of `{syntax.format_formula(predicate)}`")
    return values


def _unknown_margin(predicate: syntax.Compare, trace: Trace, best: bool, rounding: Floats) -> Floats | float:
    # Return the largest (`best`) or smallest margin at each record, or one number for all records.
    # Only a lower bound of the unknown signal is known.
    # The lower bound limits the best margin of `signal < bound`, and the worst margin of `bound < signal`.
    # `trace.least_values` gives these lower bounds, [N]; -inf if nothing is known.
    # The comparison requires that the first side is smaller than the second.
    smaller, greater = predicate.left, predicate.right
    if predicate.operator in (">", ">="):
        smaller, greater = greater, smaller
    match smaller, greater:
        case syntax.NumericSignal(name), bound if best and not reads_signal(bound):
            return subtract(evaluate_expression(bound, trace=None), trace.least_values(name), rounding)
        case bound, syntax.NumericSignal(name) if not best and not reads_signal(bound):
            return subtract(trace.least_values(name), evaluate_expression(bound, trace=None), rounding)
    return np.inf if best else -np.inf


# Records that decide or violate a formula


def group_by_step(formula: syntax.Formula, trace: Trace) -> Iterator[tuple[Ints, Trace]]:
    """Yield the episodes in groups with the same control step: the ascending indices and the trace of each group. The
    shortest step comes first, and the episodes with time stamps come last. A formula without a bounded window counts no
    steps, so all episodes are one group. Without episodes, yield nothing. May raise `SignalError` if a signal is NaN.
    """
    steps_s = trace.dt_s
    if trace.time_s is not None:  # infinity marks the episodes with time stamps, whose steps do not matter
        steps_s = np.where(np.isnan(trace.time_s[trace.starts[:-1]]), steps_s, np.inf)
    # `steps_s[:1]` is empty without episodes, where `steps_s[0]` would raise an error.
    if not syntax.bounded_windows(formula) or bool(np.all(steps_s == steps_s[:1])):
        if len(trace):
            yield np.arange(len(trace)), _drop_partial_stamps(trace, steps_s)
        return
    for name in (syntax.signal_names(formula) & trace.signals.keys()) - trace.unknown.keys():
        trace.reject_nan(trace.signals[name], name)  # errors must give the episode's index in `trace`, not in a group
    for step_s in np.unique(steps_s):
        # `episodes` are the indices of the episodes with this control step.
        episodes = np.flatnonzero(steps_s == step_s)
        yield episodes, _drop_partial_stamps(trace.select_episodes(episodes), steps_s[episodes])


def _drop_partial_stamps(trace: Trace, steps_s: Floats) -> Trace:
    # Return the trace, without time stamps if some episode lacks them. `steps_s` is infinite for episodes with stamps.
    # `steps_s` [E] has the control steps of all other episodes.
    return trace if trace.time_s is None or np.isinf(steps_s).all() else replace(trace, time_s=None)


def deciding_records(formula: syntax.Formula, trace: Trace) -> Ints:
    """Return the index of the record that decides the robustness of each episode, [E]; -1 if the window starts after
    the episode's end. For a root G, the record with the smallest margin in the window decides; for F, the largest
    margin; for `a U b`, the record at which `b` becomes true with the largest margin. `not` takes the record of its
    child. `and`, `or` and `->` take the record of the side with the resulting value. Without temporal operators, record
    0 decides. In a tie, the earliest record and the left side win. Raises the same errors as `robustness`.
    """
    # G is `always`, F is `eventually`, and U is `until`.
    records = np.empty(len(trace), np.int64)
    for episodes, group in group_by_step(formula, trace):
        rows = _deciding_rows(formula, group)
        # Convert rows of the group's trace to record indices that begin at 0 in each episode.
        records[episodes] = np.where(rows < 0, -1, rows - group.starts[:-1])
    return records


@np.errstate(all="ignore")  # overflow is reported as an error, as in `robustness`
def _deciding_rows(formula: syntax.Formula, trace: Trace, positive: bool = True) -> Ints:
    # Return for each episode the trace row of the record that decides the formula, [E]; -1 if no record decides.
    # `positive` is False inside an odd number of negations.

    def margins(part: syntax.Formula, *, at_start: bool = False) -> Floats:
        # Return the margins of a part of the formula: [E] at the episodes' first records if `at_start`, else [N].
        return to_margins(evaluate_formula(part, trace, at_start=at_start, positive=positive))

    match formula:
        case syntax.Not(child):
            return _deciding_rows(child, trace, not positive)
        case syntax.Implies(left, right):
            # `left -> false` is true exactly where `left` is false.
            first = margins(replace(formula, right=syntax.Truth(False)), at_start=True)
            # The side with the larger margin decides.
            is_left = first >= margins(right, at_start=True)
            return np.where(is_left, _deciding_rows(left, trace, not positive), _deciding_rows(right, trace, positive))
        case syntax.And(left, right) | syntax.Or(left, right):
            first, second = margins(left, at_start=True), margins(right, at_start=True)
            # The smaller margin decides an `and`, and the larger one an `or`.
            is_left = first <= second if isinstance(formula, syntax.And) else first >= second
            return np.where(is_left, _deciding_rows(left, trace, positive), _deciding_rows(right, trace, positive))
        case syntax.Always(window, child) | syntax.Eventually(window, child):
            values = margins(child)
            # The record with the smallest margin of the window decides a G; the one with the largest decides an F.
            find = np.argmin if isinstance(formula, syntax.Always) else np.argmax
            # The arguments are the first row of an episode and the rows [lo, hi) of its window.
            # The result is an offset from `lo`.
            bounds = start_rows(window, trace)
            return _find_rows_in_windows(trace, *bounds, lambda _, lo, hi: find(values[lo:hi]))
        case syntax.Until(window, left, right, weak, crisp):
            # `hold` and `reach` are the margins [N] of the sides of `left U right`.
            # If `crisp`, the right side is true or false, without a margin. At exactly 0, `strict` makes it false.
            # The record that gives the largest margin in `_until_margins` decides.
            reach = evaluate_formula(right, trace, at_start=False, positive=positive)
            hold, reach = margins(left), to_margins(is_true(reach, strict=not positive) if crisp else reach)
            rows = _find_rows_in_windows(
                trace, *start_rows(window, trace), lambda *rows: _until_margins(hold, reach, *rows).argmax()
            )
            if weak:
                # If a weak `until` has the margin of `G left`, the record that decides `G left` decides this `until`.
                lasting = syntax.Always(syntax.Window(0.0, window.end_s), left)
                is_lasting = margins(lasting, at_start=True) > margins(replace(formula, weak=False), at_start=True)
                rows = np.where(is_lasting, _deciding_rows(lasting, trace, positive), rows)
            return rows
        case _:
            # Without a temporal operator, the first record of each episode decides.
            return trace.starts[:-1]


def _find_rows_in_windows(trace: Trace, lo: Ints, hi: Ints, find_offset: Callable[[int, int, int], np.integer]) -> Ints:
    # Return one row of each episode's window [lo, hi); -1 for an empty window.
    # `find_offset` gets the episode's first row, `lo` and `hi`. It returns the offset of the chosen row from `lo`.
    windows = zip(trace.starts[:-1], lo, hi, strict=True)  # (start, a, b): the episode's first row, the window [a, b)
    return np.array([a + find_offset(start, a, b) if a < b else -1 for start, a, b in windows], dtype=np.int64)


def _until_margins(hold: Values, reach: Values, start: int, lo: int, hi: int) -> Values:
    # For each row of [lo, hi), return the minimum of `reach` at the row and `hold` at all earlier rows from `start`.
    # `hold` and `reach` are the margins [N] of the sides of an `until`.
    # From the row `start` (<= lo), `hold` must be true until `reach` becomes true.
    # The result has hi - lo values: the margin if `reach` becomes true at this row.
    # The item `least_before[i]` is the minimum of `hold` over the first i rows from `start`.
    least_before = np.minimum.accumulate(np.concatenate([[np.inf], hold[start : hi - 1]]))
    return np.asarray(np.minimum(reach[lo:hi], least_before[lo - start :]))


def violating_records(formula: syntax.Formula, trace: Trace) -> Bools | None:
    """Return whether each record violates a formula whose `always_form` is a `G` or a conjunction of `G`, [N]. Return
    None for any other formula, because no single record violates `F` or `U`. An episode violates a conjunction of `G`
    if and only if one of its records does; `judge_formula` finds the first one. Raises the same errors as `robustness`.
    """
    # G is `always`, F is `eventually`, and U is `until`. `always_form` replaces other operators by G where possible.
    formula = syntax.always_form(formula)
    if not _is_recordwise(formula):
        return None
    violating = np.zeros(trace.starts[-1], np.bool_)
    for episodes, group in group_by_step(formula, trace):
        violating[trace.record_rows(episodes)] = _violation_mask(formula, group)
    return violating


def _is_recordwise(formula: syntax.Formula) -> bool:
    # Return whether the formula is a `G` or a conjunction of `G`.
    # A `G` is violated if a single record of its window violates it.
    if isinstance(formula, syntax.And):
        return _is_recordwise(formula.left) and _is_recordwise(formula.right)
    return isinstance(formula, syntax.Always)


@np.errstate(all="ignore")  # overflow is reported as an error, as in `robustness`
def _violation_mask(formula: syntax.Formula, trace: Trace) -> Bools:
    # Return the result of `violating_records`, for one control step and a formula that `_is_recordwise` accepts.
    # The result is True at each record that violates the formula, [N].
    match formula:
        case syntax.And(left, right):
            return _violation_mask(left, trace) | _violation_mask(right, trace)
        case syntax.Always(window, child):
            # The rows [lo, hi) of each episode's window, [E], are then repeated for each record of the episode, [N].
            lo, hi = start_rows(window, trace)
            rows, lo, hi = np.arange(trace.starts[-1]), np.repeat(lo, trace.lengths), np.repeat(hi, trace.lengths)
            # A margin of zero is not a violation. Only records in the window from record 0 can violate the formula.
            fails = is_positive(negate(evaluate_formula(child, trace, at_start=False)))
            return np.asarray(fails & (rows >= lo) & (rows < hi))
        case _:
            raise AssertionError(formula)
