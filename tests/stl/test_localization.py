"""The deciding record: where the definitions find the robustness; and the records that violate a formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

from safevla_bench.errors import FormulaError
from safevla_bench.stl.evaluation import deciding_records, violating_records
from safevla_bench.stl.formula import (
    Always,
    And,
    Eventually,
    Formula,
    Implies,
    Not,
    Or,
    Truth,
    Until,
    Window,
    walk_nodes,
)
from safevla_bench.stl.parser import parse_formula
from safevla_bench.stl.robustness import judge_formula, robustness
from safevla_bench.stl.trace import Trace
from stl.oracle import Episode, literal_rho
from stl.strategies import DT_S, formulas, traces


def literal(formula: Formula, episode: Episode, length: int) -> int:
    """The deciding record of one episode by the definition, one record after the other."""

    def rho(part: Formula, t: int = 0) -> float:
        return literal_rho(part, episode, DT_S, t)

    def covered(window: Window) -> range:
        last = length - 1 if window.end_s is None else min(length - 1, round(window.end_s / DT_S))
        return range(round(window.start_s / DT_S), last + 1)

    match formula:
        case Not(child):
            return literal(child, episode, length)
        case And(left, right):
            return literal(left if rho(left) <= rho(right) else right, episode, length)
        case Or(left, right):
            return literal(left if rho(left) >= rho(right) else right, episode, length)
        case Implies(left, right):
            return literal(left if -rho(left) >= rho(right) else right, episode, length)
        case Always(window, child):
            return min(covered(window), key=lambda t: rho(child, t), default=-1)
        case Eventually(window, child):
            return max(covered(window), key=lambda t: rho(child, t), default=-1)
        case Until(window, left, right):
            reached = {t: min([rho(right, t), *(rho(left, u) for u in range(t))]) for t in covered(window)}
            return max(reached, key=lambda t: reached[t], default=-1)
    return 0


@given(formulas(), traces())
def test_the_deciding_record_is_the_definition_s(formula: Formula, trace: Trace) -> None:
    assume(not any(isinstance(node, Until) and node.weak for node in walk_nodes(formula)))  # two formulas in one
    expected = []
    for first, end in zip(trace.starts[:-1], trace.starts[1:], strict=True):
        episode = {name: values[first:end].tolist() for name, values in trace.signals.items()}
        expected.append(literal(formula, episode, end - first))
    assert deciding_records(formula, trace).tolist() == expected


@given(traces())
def test_under_g_and_f_the_robustness_is_the_margin_of_the_deciding_record(trace: Trace) -> None:
    for text in ("G[0,T](x < 1)", "F[0,T](x < 1)"):
        formula = parse_formula(text)
        rows = trace.starts[:-1] + deciding_records(formula, trace)
        assert np.array_equal(1 - trace.signals["x"][rows], robustness(formula, trace))


def trace_of(*values: float, dt_s: float = 0.1) -> Trace:
    return Trace({"x": np.array(values, np.float64)}, np.array([0, len(values)]), np.array([dt_s]))


def test_the_earliest_of_equal_records_decides() -> None:
    assert deciding_records(parse_formula("G(x < 1)"), trace_of(0, 5, 2, 5)).tolist() == [1]


def test_a_condition_that_does_not_hold_decides_and_one_that_holds_leaves_it_to_the_other_side() -> None:
    assert deciding_records(parse_formula("F(x > 6) -> G(x > 2)"), trace_of(0, 5)).tolist() == [1]
    assert deciding_records(parse_formula("F(x > 3) -> G(x > 2)"), trace_of(0, 5)).tolist() == [0]


@pytest.mark.parametrize(
    ("text", "y", "record"),
    [
        ("x < 4 W y > 9", [0, 5, 6], 1),  # the left side lasts, and is least in record 1
        ("x < 4 U y > 9", [0, 5, 6], 2),
        ("x < 4 W y > 9", [0, 5, 10], 2),  # a tie, in which the right side wins
        ("x < 4 W[0,0] y > 9", [0, 5, 6], 0),
        ("x < 4 W[2,2] y > 9", [20, 20, 10.5], 2),
        ("!(x < 4 W y > 9)", [0, 5, 6], 1),
        ("!(x < 4 U y > 9)", [0, 5, 6], 2),
    ],
)
def test_the_left_side_of_a_weak_until_decides_if_it_lasts_with_a_larger_margin(
    text: str, y: list[float], record: int
) -> None:
    trace = Trace({"x": np.array([0.0, 3.0, 1.0]), "y": np.array(y, np.float64)}, np.array([0, 3]), np.array([1.0]))
    assert deciding_records(parse_formula(text), trace).tolist() == [record]


@pytest.mark.parametrize(
    ("y", "record", "negated"), [([0, 9.5, 12], 1, 1), ([0, 9, 12], 1, 2), ([0, 8, 12], 2, 2), ([0, 9, 9], 1, 1)]
)
def test_a_crisp_until_is_decided_by_whether_the_right_side_holds(y: list[float], record: int, negated: int) -> None:
    until = replace(parse_formula("x < 4 U y > 9"), crisp=True)
    signals = {"x": np.array([9.0, 0.0, 3.0, 1.0]), "y": np.array([0.0, *y])}
    trace = Trace(signals, np.array([0, 1, 4]), np.array([1.0, 1.0]))
    assert deciding_records(until, trace).tolist() == [0, record]
    if y[-1] > 9:
        assert deciding_records(Not(until), trace).tolist() == [0, negated]
        assert deciding_records(Implies(until, Truth(False)), trace).tolist() == [0, negated]
        assert deciding_records(Not(Not(until)), trace).tolist() == [0, record]


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("G(x < 3) or G(y < 3)", 1),
        ("G(y < 3) or G(x < 3)", 0),
        ("G(x < 3) and G(y < 3)", 1),
        ("F(x > 6) -> G p", 1),  # the condition does not hold, and the other side does
        ("G p -> F(x > 6)", 1),
    ],
)
def test_of_equal_sides_the_left_one_decides(text: str, record: int) -> None:
    signals = {"x": np.array([0.0, 2.0]), "y": np.array([2.0, 0.0]), "p": np.ones(2, np.bool_)}
    assert deciding_records(parse_formula(text), Trace(signals, np.array([0, 2]), np.ones(1))).tolist() == [record]


def test_a_window_beyond_the_end_has_no_deciding_record() -> None:
    assert deciding_records(parse_formula("G[9,T](x < 1)"), trace_of(0, 5)).tolist() == [-1]
    assert deciding_records(parse_formula("F[9,10](x < 1)"), trace_of(0, 5)).tolist() == [-1]


def test_episodes_of_different_control_steps_are_each_decided_by_their_own() -> None:
    trace = Trace({"x": np.array([1.0, 2, 9, 1, 2, 9])}, np.array([0, 3, 6]), np.array([0.1, 0.2]))
    assert deciding_records(parse_formula("G[0,0.2](x < 1)"), trace).tolist() == [2, 1]


def test_a_window_that_is_not_a_multiple_of_the_control_step_is_refused() -> None:
    with pytest.raises(FormulaError, match="not a multiple"):
        deciding_records(parse_formula("G[0,0.15](x < 1)"), trace_of(1, 2))


KNOWN = {"x": False, "held": True}


def two_episodes() -> Trace:
    x = np.array([0.0, 3.0, 1.0, 5.0, 0.0, 9.0, 0.0])
    is_held = np.array([1, 0, 1, 1, 1, 1, 0], dtype=np.bool_)
    return Trace({"x": x, "held": is_held}, np.array([0, 4, 7]), np.array([0.1, 0.1]))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("G[0,T](x < 2)", [1, 3, 5]),
        ("G[0,T](x > 2)", [0, 2, 4, 6]),
        ("G[0,T](x < 5)", [5]),
        ("G[0,T](held -> x < 2)", [3, 5]),
        ("G[0,0.1](x < 2)", [1, 5]),
        ("G[0,0.2](x < 2)", [1, 5]),
        ("G[0.1,0.2](x > 2)", [2, 6]),
        ("G[0.2,0.3](x < 2)", [3]),
        ("G[0,T](held)", [1, 6]),
        ("G[0,T](x < 4) and G[0,T](held)", [1, 3, 5, 6]),
        ("G[0,T](F[0,0.1](x < 2))", [3]),
    ],
)
def test_each_record_is_asked_by_itself(text, rows):
    assert np.flatnonzero(violating_records(parse_formula(text, KNOWN), two_episodes())).tolist() == rows


@pytest.mark.parametrize("text", ["F[0,T](x < 2)", "x < 2", "G[0,T](x < 2) and F[0,T](held)", "not G[0,T](x < 2)"])
def test_nothing_is_said_of_records_where_a_formula_speaks_of_the_whole(text):
    assert violating_records(parse_formula(text, KNOWN), two_episodes()) is None


@given(formulas(), formulas(), traces())
def test_an_episode_is_violated_iff_one_of_its_records_is_and_the_first_of_them_is_the_one_judged(left, right, trace):
    for asked in (
        Always(Window(0.0, None), left),
        And(Always(Window(0.0, None), left), Always(Window(0.0, None), right)),
    ):
        violating, verdict = violating_records(asked, trace), judge_formula(asked, trace)
        assert violating is not None
        for k, (start, end) in enumerate(zip(trace.starts[:-1], trace.starts[1:], strict=True)):
            rows = np.flatnonzero(violating[start:end])
            assert bool(len(rows)) == bool(verdict.rho[k] < 0)
            assert (rows[0] if len(rows) else -1) == verdict.first_violation[k]
