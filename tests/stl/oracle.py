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


Known = dict[tuple[int, int], float]
"""Part of a formula, record -> its robustness, where it was asked for before."""


def literal_rho(
    formula: Formula, episode: Episode, dt_s: float, t: int, nothing: float = math.inf, known: Known | None = None
) -> float:
    """The robustness of one episode at record t, by the definitions, one record after the other.

    Over no record G is `nothing`, F and U are its negation.
    """
    length = len(next(iter(episode.values())))
    known = {} if known is None else known

    def at(part: Formula, when: int) -> float:
        if (id(part), when) not in known:
            known[id(part), when] = literal_rho(part, episode, dt_s, when, nothing, known)
        return known[id(part), when]

    def covered(window: Window) -> range:
        first = t + round(window.start_s / dt_s)
        last = length - 1 if window.end_s is None else min(length - 1, t + round(window.end_s / dt_s))
        return range(first, last + 1)

    match formula:
        case Compare(operator, left, right):
            difference = literal_number(right, episode, t) - literal_number(left, episode, t)
            return difference if operator in ("<", "<=") else -difference
        case BooleanSignal(name):
            return math.inf if episode[name][t] else -math.inf
        case Truth(value):
            return math.inf if value else -math.inf
        case Not(child):
            return -at(child, t)
        case And(left, right):
            return min(at(left, t), at(right, t))
        case Or(left, right):
            return max(at(left, t), at(right, t))
        case Implies(left, right):
            return max(-at(left, t), at(right, t))
        case Always(window, child):
            return min((at(child, when) for when in covered(window)), default=nothing)
        case Eventually(window, child):
            return max((at(child, when) for when in covered(window)), default=-nothing)
        case Until(window, left, right):
            reached = (
                min([at(right, when), *(at(left, before) for before in range(t, when))]) for when in covered(window)
            )
            return max(reached, default=-nothing)


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
    for episode, dt_s in zip(episodes_of(trace), trace.dt_s.tolist(), strict=True):
        known: Known = {}
        rho += [literal_rho(formula, episode, dt_s, t, known=known) for t in range(len(episode["x"]))]
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
                return Until(self.window(), self._shallower(depth), self.formula(depth - 1))

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
