"""What the tests of the STL engine compare it with: the definitions, read literally, and random material."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from safevla_bench.stl.formula import (
    Always,
    And,
    Arithmetic,
    BooleanSignal,
    Compare,
    Eventually,
    Expression,
    Formula,
    Implies,
    Negate,
    Not,
    Number,
    NumericSignal,
    Or,
    Truth,
    Until,
    Window,
    child_nodes,
    signed_constant,
)
from safevla_bench.stl.trace import Trace

NUMERIC = ("x", "y", "z")
BOOLEAN = ("p", "q")
KNOWN = {**dict.fromkeys(NUMERIC, False), **dict.fromkeys(BOOLEAN, True)}

Episode = Mapping[str, Sequence[float]]


Known = dict[tuple[int, int, bool], float]
"""Part of a formula, record, polarity -> its robustness, where it was asked for before."""


def literal_rho(
    formula: Formula,
    episode: Episode,
    dt_s: float,
    t: int,
    nothing: float = math.inf,
    known: Known | None = None,
    stamps: Sequence[float] | None = None,
    positive: bool = True,
) -> float:
    """The robustness of one episode at record t, by the definitions, one record after the other.

    Over no record G is `nothing`, F and U are its negation. With `stamps` a window holds the records in it. Under an
    odd number of negations it is not `positive`.
    """
    length = len(next(iter(episode.values())))
    known = {} if known is None else known

    def at(part: Formula, when: int, polarity: bool = positive) -> float:
        key = id(part), when, polarity
        if key not in known:
            known[key] = literal_rho(part, episode, dt_s, when, nothing, known, stamps, polarity)
        return known[key]

    def covered(window: Window) -> Sequence[int]:
        if stamps is not None:
            end = math.inf if window.end_s is None else window.end_s
            near = 1e-9 * float(np.median(np.diff(stamps))) if length > 1 else 0.0
            return [k for k in range(t, length) if window.start_s - near <= stamps[k] - stamps[t] <= end + near]
        first = t + round(window.start_s / dt_s)
        last = length - 1 if window.end_s is None else min(length - 1, t + round(window.end_s / dt_s))
        return range(first, last + 1)

    match formula:
        case Compare(operator, left, right):
            low, high = literal_number(left, episode, t), literal_number(right, episode, t)
            difference = 0.0 if math.isclose(low, high, rel_tol=1e-9) else high - low
            return difference if operator in ("<", "<=") else -difference
        case BooleanSignal(name):
            return math.inf if episode[name][t] else -math.inf
        case Truth(value):
            return math.inf if value else -math.inf
        case Not(child):
            return -at(child, t, not positive)
        case And(left, right):
            return min(at(left, t), at(right, t))
        case Or(left, right):
            return max(at(left, t), at(right, t))
        case Implies(left, right, plain=True):
            return max(-at(left, t, not positive), at(right, t))
        case Implies(left, right):
            condition = at(left, t, not positive)
            return at(right, t) if condition > 0 or (condition == 0 and not positive) else math.inf
        case Always(window, child):
            return min((at(child, when) for when in covered(window)), default=nothing)
        case Eventually(window, child):
            return max((at(child, when) for when in covered(window)), default=-nothing)
        case Until(window, left, right, weak, crisp):

            def reach(when: int) -> float:
                margin = at(right, when)
                holds = margin > 0 or (margin == 0 and positive)
                return (math.inf if holds else -math.inf) if crisp else margin

            values = [min([reach(when), *(at(left, k) for k in range(t, when))]) for when in covered(window)]
            if weak:  # or the left side holds from now to the end of the window
                values.append(min(at(left, when) for when in covered(Window(0.0, window.end_s))))
            return max(values if covered(window) else [*values, -nothing])


def literal_number(expression: Expression, episode: Episode, t: int) -> float:
    def of(part: Expression) -> float:
        return literal_number(part, episode, t)

    match expression:
        case NumericSignal(name):
            return float(episode[name][t])
        case Number(value):
            return value
        case Negate(child):
            return -of(child)
        case Arithmetic("+", left, right):
            return of(left) + of(right)
        case Arithmetic("-", left, right):
            return of(left) - of(right)
        case Arithmetic("*", left, right):
            return of(left) * of(right)
        case Arithmetic("/", left, right):
            return of(left) / of(right)
        case _:
            raise AssertionError(expression)


def episodes_of(trace: Trace) -> list[Episode]:
    pairs = zip(trace.starts[:-1], trace.starts[1:], strict=True)
    return [{name: values[lo:hi].tolist() for name, values in trace.signals.items()} for lo, hi in pairs]


def literal_trajectory(formula: Formula, trace: Trace) -> np.ndarray:
    rho: list[float] = []
    times = trace.dt_s if trace.time_s is None else np.split(trace.time_s, trace.starts[1:-1])
    for episode, dt_s, times_s in zip(episodes_of(trace), trace.dt_s.tolist(), times, strict=True):
        known: Known = {}
        stamps = None if trace.time_s is None or np.isnan(times_s[0]) else times_s.tolist()
        rho += [literal_rho(formula, episode, dt_s, t, known=known, stamps=stamps) for t in range(len(episode["x"]))]
    return np.array(rho)


def random_trace(rng: np.random.Generator, dt_s: float, lengths: Sequence[int]) -> Trace:
    """Quarter-integer signals around zero, so that margins tie, vanish and are exact; Boolean ones in runs."""
    n = sum(lengths)
    numeric = {name: rng.integers(-20, 21, n) / 4 for name in NUMERIC}
    crisp = {name: np.repeat(rng.random(n) < 0.5, rng.integers(1, 5, n))[:n] for name in BOOLEAN}
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Trace({**numeric, **crisp}, starts, np.full(len(lengths), dt_s))


class FormulaSource:
    """Random formulas whose windows are multiples of `dt_s`."""

    def __init__(self, rng: np.random.Generator, dt_s: float, *, crisp: bool = True, widest: int = 6) -> None:
        self.rng, self.dt_s, self.crisp, self.widest = rng, dt_s, crisp, widest

    def formula(self, depth: int) -> Formula:
        if depth == 0:
            return self._atom()
        match int(self.rng.integers(8)):
            case 0:
                return Not(self.formula(depth - 1))
            case 1:
                return And(self.formula(depth - 1), self._shallower(depth))
            case 2:
                return Or(self._shallower(depth), self.formula(depth - 1))
            case 3:
                return Implies(self._shallower(depth), self.formula(depth - 1))
            case 4 | 5:
                return Always(self.window(), self.formula(depth - 1))
            case 6:
                return Eventually(self.window(), self.formula(depth - 1))
            case _:
                weak, crisp = self.rng.random(2) < 0.3
                return Until(self.window(), self._shallower(depth), self.formula(depth - 1), bool(weak), bool(crisp))

    def _shallower(self, depth: int) -> Formula:
        return self.formula(int(self.rng.integers(depth)))

    def _atom(self) -> Formula:
        if self.crisp and self.rng.random() < 0.25:
            return BooleanSignal(str(self.rng.choice(BOOLEAN)))
        operator = self.rng.choice(["<", "<=", ">", ">="]).item()
        return Compare(operator, self._expression(), signed_constant(int(self.rng.integers(-8, 9)) / 4))

    def _expression(self) -> Expression:
        signal = NumericSignal(str(self.rng.choice(NUMERIC)))
        match int(self.rng.integers(8)):
            case 0:
                return Arithmetic(
                    self.rng.choice(["+", "-", "*"]).item(), signal, NumericSignal(str(self.rng.choice(NUMERIC)))
                )
            case 1:
                return Negate(signal)
            case _:
                return signal

    def window(self) -> Window:
        first = int(self.rng.integers(self.widest)) if self.rng.random() < 0.5 else 0
        match int(self.rng.integers(4)):
            case 0:
                return Window()
            case 1:
                return Window(first * self.dt_s, None)
            case _:
                return Window(first * self.dt_s, (first + int(self.rng.integers(self.widest + 1))) * self.dt_s)


def nesting(formula: Formula) -> int:
    """Operators from the root to the deepest atom."""
    parts = () if isinstance(formula, Compare) else child_nodes(formula)
    return 1 + max(map(nesting, parts)) if parts else 0
