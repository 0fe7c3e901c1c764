"""Hypothesis strategies for formulas and traces; windows are multiples of `DT_S`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

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
    Threshold,
    Truth,
    Until,
    Window,
)
from safevla_bench.stl.trace import Trace
from stl.oracle import BOOLEAN, NUMERIC

DT_S = 0.05


@st.composite
def windows(draw: st.DrawFn) -> Window:
    first = draw(st.integers(0, 6))
    last = draw(st.none() | st.integers(first, first + 6))
    return Window(first * DT_S, None if last is None else last * DT_S)


def expressions(*, threshold: bool = False, any_number: bool = False) -> st.SearchStrategy[Expression]:
    values = (
        st.floats(0, allow_infinity=False, allow_nan=False) if any_number else st.integers(0, 20).map(lambda n: n / 4)
    )
    numbers = values.filter(lambda value: np.signbit(value) == 0).map(Number)
    leaves = st.sampled_from(NUMERIC).map(NumericSignal) | numbers
    if threshold:
        leaves |= st.just(Threshold())

    def grown(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        operators = st.sampled_from("+-*/") if any_number else st.sampled_from("+-*")
        return st.builds(Negate, parts) | st.builds(Arithmetic, operators, parts, parts)

    return st.recursive(leaves, grown, max_leaves=4)


def formulas(numbers: st.SearchStrategy[Expression] | None = None, *, crisp: bool = True) -> st.SearchStrategy[Formula]:
    sides = expressions() if numbers is None else numbers
    leaves: st.SearchStrategy[Formula] = st.builds(Compare, st.sampled_from(["<", "<=", ">", ">="]), sides, sides)
    if crisp:
        leaves |= st.sampled_from(BOOLEAN).map(BooleanSignal) | st.booleans().map(Truth)

    def grown(parts: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
        return (
            st.builds(Not, parts)
            | st.builds(And, parts, parts)
            | st.builds(Or, parts, parts)
            | st.builds(Implies, parts, parts)
            | st.builds(Always, windows(), parts)
            | st.builds(Eventually, windows(), parts)
            | st.builds(Until, windows(), parts, parts, st.booleans())
        )

    return st.recursive(leaves, grown, max_leaves=5)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    n = sum(lengths)
    numeric = {name: draw(st.lists(st.integers(-20, 20), min_size=n, max_size=n)) for name in NUMERIC}
    crisp = {name: draw(st.lists(st.booleans(), min_size=n, max_size=n)) for name in BOOLEAN}
    signals = {name: np.array(values) / 4 for name, values in numeric.items()}
    signals |= {name: np.array(values, np.bool_) for name, values in crisp.items()}
    return Trace(signals, np.concatenate([[0], np.cumsum(lengths)]), np.full(len(lengths), DT_S))


@st.composite
def stamped_traces(draw: st.DrawFn) -> Trace:
    """Traces with uneven stamps, some on the bounds of windows, with gaps; an episode may have none."""
    trace = draw(traces())
    steps = st.sampled_from([0.25, 0.5, 1.0, 1.0, 1.5, 4.0]).map(lambda part: part * DT_S)
    stamps = [
        np.cumsum(draw(st.lists(steps, min_size=n, max_size=n))) if draw(st.integers(0, 3)) else np.full(n, np.nan)
        for n in trace.lengths.tolist()
    ]
    return replace(trace, time_s=np.concatenate(stamps))
