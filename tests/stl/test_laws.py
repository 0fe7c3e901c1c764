"""Laws of the logic, for every formula and trace."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.stl.formula import (
    Always,
    And,
    BooleanSignal,
    Compare,
    Comparison,
    Eventually,
    Expression,
    Formula,
    Implies,
    Not,
    NumericSignal,
    Or,
    Threshold,
    Truth,
    Until,
    Window,
    bounded_windows,
    format_formula,
    reverse_empty_windows,
    substitute_threshold,
    walk_nodes,
)
from safevla_bench.stl.robustness import hangs_on_empty_window, judge_formula, robustness, trajectory_robustness
from safevla_bench.stl.trace import Trace
from stl.oracle import episodes_of, literal_rho, literal_trajectory
from stl.strategies import expressions, formulas, traces, windows

ALWAYS = Window()


def same(formula: Formula, other: Formula, trace: Trace) -> bool:
    return np.array_equal(trajectory_robustness(formula, trace), trajectory_robustness(other, trace))


@given(formulas(), traces())
def test_every_formula_means_what_the_definitions_say(formula: Formula, trace: Trace) -> None:
    assert np.array_equal(trajectory_robustness(formula, trace), literal_trajectory(formula, trace))


@given(formulas(), traces())
def test_the_verdict_is_the_trajectory_at_record_0(formula: Formula, trace: Trace) -> None:
    first = trajectory_robustness(formula, trace)[trace.starts[:-1]]
    assert np.array_equal(robustness(formula, trace), first)
    assert np.array_equal(judge_formula(formula, trace).rho, first)


@given(formulas(), formulas(), traces())
def test_de_morgan(formula: Formula, other: Formula, trace: Trace) -> None:
    assert same(Not(And(formula, other)), Or(Not(formula), Not(other)), trace)
    assert same(Not(Or(formula, other)), And(Not(formula), Not(other)), trace)


@given(windows(), formulas(), traces())
def test_always_is_never_the_contrary(window: Window, formula: Formula, trace: Trace) -> None:
    assert same(Always(window, formula), Not(Eventually(window, Not(formula))), trace)


@given(windows(), formulas(), traces())
def test_eventually_is_until_with_nothing_to_hold(window: Window, formula: Formula, trace: Trace) -> None:
    assert same(Eventually(window, formula), Until(window, Truth(True), formula), trace)


@given(formulas(), formulas(), traces())
def test_until_unfolds_one_record_at_a_time(hold: Formula, reach: Formula, trace: Trace) -> None:
    """a U b = b or (a and next(a U b)), with next false at the end."""
    until = trajectory_robustness(Until(ALWAYS, hold, reach), trace)
    now, next_ = trajectory_robustness(reach, trace), np.append(until[1:], -np.inf)
    next_[trace.starts[1:] - 1] = -np.inf
    assert np.array_equal(until, np.maximum(now, np.minimum(trajectory_robustness(hold, trace), next_)))


@given(windows(), windows(), formulas(), traces())
def test_windows_within_windows_add_up(inner: Window, outer: Window, formula: Formula, trace: Trace) -> None:
    end = None if inner.end_s is None or outer.end_s is None else inner.end_s + outer.end_s
    added = Window(inner.start_s + outer.start_s, end)
    assert same(Eventually(outer, Eventually(inner, formula)), Eventually(added, formula), trace)


@given(expressions(), st.sampled_from(["<", "<="]), st.integers(0, 20), st.integers(0, 20), traces())
def test_a_larger_threshold_never_lowers_an_upper_bounds_margin(
    expression: Expression, operator: Comparison, numerator: int, other: int, trace: Trace
) -> None:
    clause = Always(ALWAYS, Compare(operator, expression, Threshold()))
    tight, loose = (robustness(substitute_threshold(clause, value / 4), trace) for value in sorted([numerator, other]))
    assert np.all(tight <= loose)
    assert np.allclose(loose - tight, abs(numerator - other) / 4, rtol=0, atol=1e-9)


@given(formulas(crisp=False), traces())
def test_a_nonzero_sign_is_the_truth_of_the_formula(formula: Formula, trace: Trace) -> None:
    """Soundness: margins decide as the comparisons themselves do, where no margin is zero."""
    rho = robustness(formula, trace)
    crisp = robustness(_with_truths(formula), _truth_signals(formula, trace))
    decided = rho != 0
    assert np.array_equal(np.sign(rho[decided]), np.sign(crisp[decided]))


def _with_truths(formula: Formula) -> Formula:
    match formula:
        case Compare():
            return BooleanSignal(format_formula(formula))
        case Not(child) | Always(_, child) | Eventually(_, child):
            return replace(formula, child=_with_truths(child))
        case And(left, right) | Or(left, right) | Implies(left, right) | Until(_, left, right):
            return replace(formula, left=_with_truths(left), right=_with_truths(right))
        case _:
            return formula


def _truth_signals(formula: Formula, trace: Trace) -> Trace:
    atoms = [node for node in walk_nodes(formula) if isinstance(node, Compare)]
    truths = {format_formula(atom): trajectory_robustness(atom, trace) >= 0 for atom in atoms}
    return Trace(truths, trace.starts, trace.dt_s)


@given(formulas(), traces(), st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(formula: Formula, trace: Trace, random: Random) -> None:
    order = np.array(random.sample(range(len(trace)), len(trace)))
    assert np.array_equal(robustness(formula, trace.select_episodes(order)), robustness(formula, trace)[order])


@given(st.sampled_from(["<", "<=", ">", ">="]), st.booleans(), formulas(), windows(), traces())
def test_a_clause_by_its_worst_value_is_bit_for_bit_the_worst_margin(
    operator: Comparison, mirrored: bool, gate: Formula, window: Window, trace: Trace
) -> None:
    """G(gate -> s < bound) is judged from max(s); here from the margins, with values that round."""
    signals = {name: values / 3 if values.dtype != np.bool_ else values for name, values in trace.signals.items()}
    trace = Trace(signals, trace.starts, trace.dt_s)
    sides = (Threshold(), NumericSignal("x")) if mirrored else (NumericSignal("x"), Threshold())
    for predicate in (Compare(operator, *sides), Implies(gate, Compare(operator, *sides))):
        clause = substitute_threshold(Always(window, predicate), 0.1)
        rho = robustness(clause, trace)
        assert rho.tobytes() == trajectory_robustness(clause, trace)[trace.starts[:-1]].tobytes()
        assert rho.tobytes() == robustness(Not(Not(clause)), trace).tobytes()


# Windows that hold no record


@given(formulas(), traces())
def test_reversed_windows_are_the_definitions_with_empty_windows_read_the_other_way(
    formula: Formula, trace: Trace
) -> None:
    rho = robustness(reverse_empty_windows(formula), trace)
    expected = [literal_rho(formula, episode, float(trace.dt_s[0]), 0, -math.inf) for episode in episodes_of(trace)]
    assert rho.tolist() == expected


@given(formulas(), traces())
def test_a_formula_whose_windows_all_begin_at_once_hangs_on_none_of_them(formula: Formula, trace: Trace) -> None:
    if all(window.start_s == 0 for window in bounded_windows(formula)):
        assert reverse_empty_windows(formula) == formula
        assert not hangs_on_empty_window(formula, trace).any()


@given(formulas(), traces())
def test_a_verdict_and_its_negation_hang_on_a_window_together(formula: Formula, trace: Trace) -> None:
    """A margin of exactly zero satisfies both, so that it is left out."""
    decided = (robustness(formula, trace) != 0) & (robustness(reverse_empty_windows(formula), trace) != 0)
    hanging, negated = (hangs_on_empty_window(part, trace) for part in (formula, Not(formula)))
    assert np.array_equal(hanging[decided], negated[decided])


@given(formulas(), formulas(), traces())
def test_no_conjunct_takes_back_a_violation_that_the_other_decides(
    formula: Formula, other: Formula, trace: Trace
) -> None:
    """A decided violation is never turned into no verdict."""
    decided = (robustness(formula, trace) < 0) & ~hangs_on_empty_window(formula, trace)
    conjunction = And(formula, other)
    assert (robustness(conjunction, trace)[decided] < 0).all()
    assert not hangs_on_empty_window(conjunction, trace)[decided].any()
