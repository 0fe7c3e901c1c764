"""Laws of the logic, for every formula and trace."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import cast

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from safevla_bench.errors import FormulaError
from safevla_bench.stl.formula import (
    Always,
    And,
    Arithmetic,
    BooleanSignal,
    Compare,
    Comparison,
    Eventually,
    Expression,
    Formula,
    Implies,
    Node,
    Not,
    Number,
    NumericSignal,
    Or,
    Threshold,
    Truth,
    Until,
    Window,
    bounded_windows,
    conditions,
    cut_off_readings,
    format_formula,
    is_boolean_only,
    make_plain,
    map_children,
    map_predicates,
    reverse_empty_windows,
    substitute_threshold,
    walk_nodes,
)
from safevla_bench.stl.robustness import hangs_on_empty_window, judge_formula, robustness, trajectory_robustness
from safevla_bench.stl.trace import Trace, subtract
from safevla_bench.stl.units import check_units
from stl.oracle import episodes_of, literal_rho, literal_trajectory
from stl.strategies import expressions, formulas, stamped_traces, traces, windows

ALWAYS = Window()
DUE = Window(0.0, 1.0)


def same(formula: Formula, other: Formula, trace: Trace) -> bool:
    return np.array_equal(trajectory_robustness(formula, trace), trajectory_robustness(other, trace))


@given(formulas(), traces())
def test_every_formula_means_what_the_definitions_say(formula: Formula, trace: Trace) -> None:
    assert np.array_equal(trajectory_robustness(formula, trace), literal_trajectory(formula, trace))


@given(formulas(), stamped_traces())
def test_a_window_on_uneven_stamps_holds_the_records_whose_stamps_lie_in_it(formula: Formula, trace: Trace) -> None:
    assert np.array_equal(trajectory_robustness(formula, trace), literal_trajectory(formula, trace))


@given(formulas(), traces(), st.sampled_from([0.0, 3.0, 1.7e9]))
def test_even_stamps_change_no_bit(formula: Formula, trace: Trace, start: float) -> None:
    ticks = np.concatenate([np.arange(n) for n in trace.lengths])
    stamped = replace(trace, time_s=start + trace.dt_s[0] * ticks)
    assert np.array_equal(trajectory_robustness(formula, stamped), trajectory_robustness(formula, trace))
    for field in ("rho", "extreme", "first_violation"):
        values = [getattr(judge_formula(formula, part), field) for part in (trace, stamped)]
        assert np.array_equal(*values, equal_nan=True)


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
    assume(all(trajectory_robustness(atom, trace).all() for atom in walk_nodes(formula) if isinstance(atom, Compare)))
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


# Conditions and units


@given(formulas(), formulas(), st.booleans(), traces())
def test_a_margin_depends_on_a_condition_only_through_its_truth(
    condition: Formula, other: Formula, is_negated: bool, trace: Trace
) -> None:
    rho = trajectory_robustness(condition if is_negated else Not(condition), trace)
    holds = rho >= 0 if is_negated else rho < 0
    with_truth = replace(trace, signals={**trace.signals, "holds": holds})
    clause, crisp = Implies(condition, other), Implies(BooleanSignal("holds"), other)
    if is_negated:
        clause, crisp = Not(clause), Not(crisp)
    assert np.array_equal(trajectory_robustness(clause, trace), trajectory_robustness(crisp, with_truth))


@given(formulas(), traces())
def test_every_verdict_is_that_of_implications_read_as_disjunctions(formula: Formula, trace: Trace) -> None:
    plain = trajectory_robustness(make_plain(formula), trace)
    assert np.array_equal(trajectory_robustness(formula, trace) >= 0, plain >= 0)
    if all(map(is_boolean_only, conditions(formula))):
        assert trajectory_robustness(formula, trace).tobytes() == plain.tobytes()


@given(formulas(), formulas(), windows(), traces())
def test_weak_until_is_until_or_always(hold: Formula, reach: Formula, window: Window, trace: Trace) -> None:
    kept = Always(Window(0.0, window.end_s), hold)
    assert same(Until(window, hold, reach, weak=True), Or(Until(window, hold, reach), kept), trace)


UNIT_OF = {"x": "m", "y": "m", "z": "m/s"}


@given(formulas(), st.sampled_from([0.25, 8.0, 1024.0]), traces())
def test_scaling_the_units_scales_the_margins_of_a_sound_formula(formula: Formula, factor: float, trace: Trace) -> None:
    """Meters and meters per second become smaller by powers of two, so that nothing rounds."""
    try:
        checked, _ = check_units(formula, UNIT_OF.__getitem__)
    except FormulaError:
        return
    signals = {name: values * factor if name in UNIT_OF else values for name, values in trace.signals.items()}
    by = {"m": factor, "m/s": factor}
    scaled = replace(trace, signals=signals)
    rho = trajectory_robustness(checked, trace)
    if any(isinstance(node, Arithmetic) and node.operator in "*/" for node in walk_nodes(formula)):
        return
    enlarged = map_predicates(checked, lambda predicate: cast(Compare, scale_literals(predicate, by["m"])))
    assert np.array_equal(trajectory_robustness(enlarged, scaled), rho * factor, equal_nan=True)


def scale_literals(node: Node, factor: float) -> Node:
    if isinstance(node, Number):
        return Number(node.value * factor)
    return map_children(node, lambda part: scale_literals(part, factor))


# Equality up to rounding


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.sampled_from([1e-9, 1e-4]))
def test_a_difference_is_zero_exactly_where_math_isclose_says_so(value: float, limit: float, rounding: float) -> None:
    assume(not (math.isinf(value) and value == limit))  # not a number: an error of the judge
    with np.errstate(all="ignore"):
        difference = float(subtract(value, limit, rounding))
        expected = 0.0 if math.isclose(value, limit, rel_tol=rounding) else value - limit
    assert difference == expected


@given(st.floats(-1e3, 1e3), st.floats(-2e-4, 2e-4), st.sampled_from([1e-9, 1e-4]))
def test_a_difference_near_the_edge_of_rounding_is_as_math_isclose_says(
    limit: float, relative: float, rounding: float
) -> None:
    value = limit * (1 + relative)
    expected = 0.0 if math.isclose(value, limit, rel_tol=rounding) else value - limit
    assert float(subtract(value, limit, rounding)) == expected


def test_numbers_whose_difference_is_just_the_rounding_are_equal() -> None:
    assert math.isclose(1.0, 0.5, rel_tol=0.5)
    assert [float(subtract(*pair, 0.5)) for pair in ((1.0, 0.5), (0.5, 1.0), (1.0, 0.4375))] == [0.0, 0.0, 0.5625]


def test_long_series_are_subtracted_in_blocks_to_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    values = np.where(rng.random(200_000) < 0.5, 0.3, rng.random(200_000)) + rng.choice([0.0, 1e-17, 1e-5], 200_000)
    for limit, rounding in ((0.3, 1e-9), (rng.permutation(values), rng.choice([1e-9, 1e-4], 200_000))):
        limits, roundings = np.broadcast_to(limit, values.shape), np.broadcast_to(rounding, values.shape)
        pieces = [
            subtract(*part, r) for *part, r in zip(*(np.split(a, 20) for a in (values, limits, roundings)), strict=True)
        ]
        assert subtract(values, limit, rounding).tobytes() == np.concatenate(pieces).tobytes()


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


# Obligations that the end of an episode cuts off


def temporal_nodes(formula: Formula) -> list[Always | Eventually | Until]:
    return [node for node in walk_nodes(formula) if isinstance(node, Always | Eventually | Until)]


@given(formulas(), traces())
def test_what_the_end_cuts_off_can_only_be_kept_or_broken_and_nothing_else_is_read_anew(
    formula: Formula, trace: Trace
) -> None:
    kept, broken = cut_off_readings(formula)
    rho, best, worst = (trajectory_robustness(part, trace) for part in (formula, kept, broken))
    assert (best >= rho).all()
    assert (rho >= worst).all()
    rights = [node.right for node in walk_nodes(formula) if isinstance(node, Implies)]
    if all(node.window.end_s is None for right in rights for node in temporal_nodes(right)):
        assert (kept, broken) == (formula, formula)


@given(formulas(), traces(), st.integers(1, 12))
def test_an_obligation_that_is_decided_stays_so_whatever_comes_later(
    obligation: Formula, trace: Trace, length: int
) -> None:
    gates = [node.left for node in walk_nodes(obligation) if isinstance(node, Implies)]
    assume(all(node.window.end_s is not None for node in temporal_nodes(obligation)))
    assume(not any(temporal_nodes(gate) for gate in gates))  # a condition is read as far as the episode goes
    whole = int(trace.starts[1])
    kept, broken = cut_off_readings(Implies(Truth(True), obligation))
    for end in (min(length, whole), whole):
        signals = {name: values[:end] for name, values in trace.signals.items()}
        part = Trace(signals, np.array([0, end]), trace.dt_s[:1])
        margins = (robustness(kept, part)[0], robustness(broken, part)[0])
        verdict = "broken" if margins[0] < 0 else "kept" if margins[1] >= 0 else "open"
        if end < whole:
            early = verdict
    if length < whole:
        assert early in (verdict, "open")


def test_a_response_that_is_not_due_yet_is_open_and_one_that_was_due_is_not() -> None:
    rule = Implies(BooleanSignal("p"), Eventually(Window(0.0, 1.0), BooleanSignal("q")))
    kept, broken = cut_off_readings(Always(ALWAYS, rule))

    def judge(p: str, q: str) -> str:
        signals = {name: np.array([letter == "1" for letter in word]) for name, word in (("p", p), ("q", q))}
        trace = Trace(signals, np.array([0, len(p)]), np.array([0.5]))
        best, worst = robustness(kept, trace)[0], robustness(broken, trace)[0]
        return "broken" if best < 0 else "kept" if worst >= 0 else "open"

    assert judge("010", "000") == "open"  # due at record 3
    assert judge("0100", "0000") == "broken"
    assert judge("0100", "0001") == "kept"
    assert judge("001", "001") == "kept"
    assert judge("1001", "0000") == "broken"  # for every end of the second one


@pytest.mark.parametrize(
    ("obligation", "r", "q", "expected"),
    [
        (Not(Eventually(DUE, BooleanSignal("q"))), "11", "00", "open"),
        (Not(Eventually(DUE, BooleanSignal("q"))), "111", "000", "kept"),
        (Not(Eventually(DUE, BooleanSignal("q"))), "11", "01", "broken"),
        *((Until(DUE, BooleanSignal("r"), BooleanSignal("q"), weak), "11", "00", "open") for weak in (False, True)),
        *((Until(DUE, BooleanSignal("r"), BooleanSignal("q"), weak), "01", "00", "broken") for weak in (False, True)),
        *((Until(DUE, BooleanSignal("r"), BooleanSignal("q"), weak), "11", "01", "kept") for weak in (False, True)),
        (Until(DUE, BooleanSignal("r"), BooleanSignal("q")), "111", "000", "broken"),
        (Until(DUE, BooleanSignal("r"), BooleanSignal("q"), weak=True), "111", "000", "kept"),
    ],
)
def test_an_obligation_is_open_only_while_later_records_can_decide_it(
    obligation: Formula, r: str, q: str, expected: str
) -> None:
    signals = {name: np.array([letter == "1" for letter in word]) for name, word in (("r", r), ("q", q))}
    trace = Trace(signals, np.array([0, len(r)]), np.array([0.5]))
    kept, broken = (robustness(part, trace)[0] for part in cut_off_readings(Implies(Truth(True), obligation)))
    assert ("broken" if kept < 0 else "kept" if broken >= 0 else "open") == expected
