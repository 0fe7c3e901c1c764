"""The values of a formula's parts, on all records at once.

Values are margins, float64, or crisp truths, bool: a formula of Boolean signals alone is never turned into numbers,
and `gate -> predicate` is one selection.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from safevla_bench.errors import FormulaError, SignalError
from safevla_bench.stl.formula import (
    Always,
    And,
    Arithmetic,
    BooleanSignal,
    Call,
    Compare,
    Eventually,
    Expression,
    Formula,
    Implies,
    Negate,
    Not,
    Number,
    Or,
    Signal,
    Threshold,
    Truth,
    Until,
    Window,
    expression_text,
    number_text,
    to_text,
)
from safevla_bench.stl.ragged import MAX, MIN, Bools, Floats, Fold, Values, fold_ranges, is_crisp
from safevla_bench.stl.trace import Trace

STEP_TOLERANCE = 1e-9
"""How far a window bound may be from a multiple of the control step, in control steps."""


def evaluate(formula: Formula, trace: Trace, *, at_start: bool) -> Values:
    """The value at record 0 of each episode, [E], or at every record, [N]. All episodes have one control step."""
    match formula:
        case Not(child):
            return negated(evaluate(child, trace, at_start=at_start))
        case And(left, right):
            return both(evaluate(left, trace, at_start=at_start), evaluate(right, trace, at_start=at_start))
        case Or(left, right):
            return either(evaluate(left, trace, at_start=at_start), evaluate(right, trace, at_start=at_start))
        case Implies(left, right):
            gate = negated(evaluate(left, trace, at_start=at_start))
            return either(gate, evaluate(right, trace, at_start=at_start))
        case Always(window, child):
            return folded(evaluate(child, trace, at_start=False), MIN, window, trace, at_start)
        case Eventually(window, child):
            return folded(evaluate(child, trace, at_start=False), MAX, window, trace, at_start)
        case Until(window, left, right):
            hold, reach = evaluate(left, trace, at_start=False), evaluate(right, trace, at_start=False)
            values = _until(hold, reach, window, trace)
        case Compare():
            values = margin(formula, trace)
        case BooleanSignal(name):
            values = trace.boolean(name)
        case Truth(value):
            values = np.full(trace.starts[-1], value)
    return values[trace.starts[:-1]] if at_start else values


def folded(values: Values, fold: Fold, window: Window, trace: Trace, at_start: bool) -> Values:
    """The minimum or maximum over the window from record 0, [E], or from every record, [N]."""
    first, last = steps(window, trace)
    if at_start:
        return fold_ranges(values, fold, *trace.ragged.bounds(first, last))
    if last is None:
        return trace.ragged.onwards(values, fold, first)
    return trace.ragged.window(values, fold, first, last)


def _until(hold: Values, reach: Values, window: Window, trace: Trace) -> Values:
    if hold.dtype != reach.dtype:
        hold, reach = margins(hold), margins(reach)
    first, last = steps(window, trace)
    return trace.ragged.until(hold, reach, first, trace.ragged.longest - 1 if last is None else last)


def steps(window: Window, trace: Trace) -> tuple[int, int | None]:
    """The window in control steps; its end None at the horizon."""
    first = _multiple(window.start_s, trace)
    return first, None if window.end_s is None else _multiple(window.end_s, trace)


def _multiple(bound_s: float, trace: Trace) -> int:
    dt_s = float(trace.dt_s[0])
    count = min(bound_s / dt_s, 1e18)  # beyond any episode, and still an integer
    if not abs(count - round(count)) <= STEP_TOLERANCE:
        nearest = number_text(round(count) * dt_s)
        raise FormulaError(
            f"the window bound {number_text(bound_s)} s is no multiple of the control step dt = {number_text(dt_s)} s",
            remedy=f"the nearest multiple is {nearest} s",
        )
    return min(round(count), trace.ragged.longest)


# Connectives. A crisp operand decides where it can, and leaves the other as it is where it cannot.


def negated(values: Values) -> Values:
    """Not."""
    return np.logical_not(values) if is_crisp(values) else np.negative(values)


def both(left: Values, right: Values) -> Values:
    """And."""
    if left.dtype == right.dtype:
        return np.asarray(np.minimum(left, right))
    crisp, rest = (left, right) if is_crisp(left) else (right, left)
    return np.where(crisp, rest, -np.inf)


def either(left: Values, right: Values) -> Values:
    """Or."""
    if left.dtype == right.dtype:
        return np.asarray(np.maximum(left, right))
    crisp, rest = (left, right) if is_crisp(left) else (right, left)
    return np.where(crisp, np.inf, rest)


def positive(values: Values) -> Bools:
    """Where the margin is above zero; where a crisp value is true."""
    return values if is_crisp(values) else np.greater(values, 0)


def margins(values: Values) -> Floats:
    """Crisp truths as infinite margins, and no negative zero."""
    return np.where(values, np.inf, -np.inf) if is_crisp(values) else values + 0.0


# Atoms


def number(expression: Expression, trace: Trace | None) -> Floats | np.float64:
    """The expression at every record, [N], or one number if it reads no signal (`trace` None)."""
    match expression:
        case Signal(name):
            assert trace is not None
            values = trace.numeric(name)
            trace.reject_nan(values, name)
            return values
        case Number(value):
            return np.float64(value)
        case Threshold():
            raise FormulaError("the placeholder `threshold` has no value", remedy="substitute a number for it first")
        case Negate(child):
            return -number(child, trace)
        case Arithmetic(operator, left, right):
            result: Floats = _OPERATORS[operator](number(left, trace), number(right, trace))
            if not np.isfinite(result).all():
                raise SignalError(f"`{expression_text(expression)}` divides by zero or overflows")
            return result
        case Call("abs", (argument,)):
            return np.abs(number(argument, trace))
        case Call(function, arguments):
            fold = np.minimum if function == "min" else np.maximum
            return functools.reduce(fold, (number(argument, trace) for argument in arguments))


_OPERATORS: Mapping[str, np.ufunc] = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


def margin(predicate: Compare, trace: Trace) -> Floats:
    """How far a comparison is from turning over at every record, [N], in the unit of its sides."""
    left, right = number(predicate.left, trace), number(predicate.right, trace)
    apart = right - left if predicate.operator in ("<", "<=") else left - right
    values = np.broadcast_to(apart, trace.starts[-1])
    trace.reject_nan(values, f"the margin of `{to_text(predicate)}`")
    return values
