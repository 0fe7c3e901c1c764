"""Formulas as values: what they read, their text, and what is not a formula at all."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.errors import FormulaError
from safevla_bench.stl.formula import (
    BooleanSignal,
    Formula,
    Implies,
    Number,
    NumericSignal,
    Window,
    bounded_windows,
    conditions,
    format_formula,
    has_placeholder,
    is_boolean_only,
    is_plain,
    judged_once,
    make_plain,
    rename_signals,
    signal_names,
    signed_constant,
    substitute_threshold,
    walk_nodes,
)
from safevla_bench.stl.parser import parse_formula
from stl.strategies import expressions, formulas


@given(formulas(expressions(threshold=True, any_number=True)))
def test_the_canonical_text_reads_back_to_an_equal_formula(formula: Formula) -> None:
    again = parse_formula(format_formula(formula))
    assert again == formula
    assert hash(again) == hash(formula)
    assert format_formula(again) == format_formula(formula)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("G[0,T](grip -> held_object_slip > -threshold)", "G[0,T](grip -> held_object_slip > -threshold)"),
        ("always x<3&&y>2||!p=>q", "G[0,T](x < 3) and y > 2 or !p -> q"),
        ("(x < 1 and y < 2) U[0:1.5] F p", "(x < 1 and y < 2) U[0,1.5] (F[0,T](p))"),
        ("a - (b - c) * -(2) < 1e3", "a - (b - c) * -2 < 1000"),
        ("x / (5 cm) * 2 < -(2 m) + 3 m/s - (1 s - y)", "x / (0.05 m) * 2 < -(2 m) + (3 m/s) - (1 s - y)"),
        ("(p -> q) -> p W[1,T] (q or p)", "(p -> q) -> p W[1,T] (q or p)"),
        ("d('a', \"G\", 'b c', -1.0) < 1", 'd(a, "G", "b c", -1) < 1'),
    ],
)
def test_the_canonical_text_is_the_papers_notation(text: str, canonical: str) -> None:
    assert format_formula(parse_formula(text)) == canonical


def test_signals_are_those_of_gates_and_predicates_alike() -> None:
    assert signal_names(parse_formula("G((grip or a > 0) -> b - -c < 1) and F d U e")) == {"grip", *"abcde"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("G(p -> q)", True),
        ("true", True),
        ("G(p -> x < 1)", False),
        ("x < 1 -> p", True),
        ("p and F(x < 1)", False),
        ("p U x < 1", False),
        ("x < 1 W p", False),
    ],
)
def test_boolean_only_means_no_numeric_atom(text: str, expected: bool) -> None:
    assert is_boolean_only(parse_formula(text)) is expected


@given(formulas(expressions(threshold=True)), st.floats(0, 1e6) | st.just(-0.02))
def test_substitution_leaves_no_placeholder_and_nothing_else_changed(formula: Formula, threshold: float) -> None:
    filled = substitute_threshold(formula, threshold)
    assert not has_placeholder(filled)
    assert signal_names(filled) == signal_names(formula)
    assert filled == (formula if not has_placeholder(formula) else filled)
    assert parse_formula(format_formula(filled)) == filled


def test_substitution_puts_the_number_where_the_placeholder_stood() -> None:
    assert substitute_threshold(parse_formula("G(p -> x > -threshold)"), 0.02) == parse_formula("G(p -> x > -0.02)")
    assert substitute_threshold(parse_formula("threshold - x < 2 * threshold"), 3.0) == parse_formula("3 - x < 2 * 3")


def test_windows_that_need_the_control_step() -> None:
    assert bounded_windows(parse_formula("G(F[0,T](x < 1))")) == ()
    assert bounded_windows(parse_formula("G(F[1,T](x < 1 U[0,2] p))")) == (Window(1.0), Window(0.0, 2.0))


@pytest.mark.parametrize("window", [(-1.0, 2.0), (2.0, 1.0), (float("nan"), None), (0.0, float("inf"))])
def test_a_window_runs_forward_from_now(window: tuple[float, float | None]) -> None:
    with pytest.raises(FormulaError, match="window"):
        Window(*window)
    assert Window(2.0, 2.0).end_s == Window(2.0).start_s == 2.0


@pytest.mark.parametrize("value", [-1.0, -0.0, float("inf"), float("nan")])
def test_a_literal_is_finite_and_not_negative(value: float) -> None:
    with pytest.raises(FormulaError, match="literal"):
        Number(value)


@pytest.mark.parametrize("value", [2.5, -2.5, 0.0, -0.0])
def test_a_constant_may_have_either_sign(value: float) -> None:
    assert parse_formula(f"{value!r} < x").left == signed_constant(value)


def test_an_implication_is_plain_once_it_is_made_so() -> None:
    formula = parse_formula("G(p -> !(x < 1 -> q))")
    plain = make_plain(formula)
    assert (is_plain(formula), is_plain(plain), is_plain(parse_formula("p and q"))) == (False, True, False)
    assert [node.plain for node in walk_nodes(plain) if isinstance(node, Implies)] == [True, True]
    assert not is_boolean_only(plain)
    assert is_boolean_only(formula)


def test_the_margin_of_the_right_side_of_a_crisp_until_does_not_count() -> None:
    until = parse_formula("p U x < 1")
    crisp = dataclasses.replace(until, crisp=True)
    assert [is_boolean_only(part) for part in (until, crisp)] == [False, True]
    implies = parse_formula("x < 1 -> p")
    assert [list(conditions(part)) for part in (until, crisp, implies, make_plain(implies))] == [
        [],
        [until.right],
        [implies.left],
        [],
    ]


def test_only_numeric_signals_are_renamed() -> None:
    formula = parse_formula("G(p -> x < x + y)")
    assert rename_signals(formula, {"x": "z", "p": "q"}) == parse_formula("G(p -> z < z + y)")


def test_nodes_are_walked_parents_first_and_left_to_right() -> None:
    nodes = walk_nodes(parse_formula("x < 1 -> G(p U q)"))
    assert [node.name for node in nodes if isinstance(node, NumericSignal | BooleanSignal)] == ["x", "p", "q"]


def test_formulas_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse_formula("p and q").left = parse_formula("q")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("true", []),
        ("x < 3", ["x < 3"]),
        ("true and F[0,T](x < 3)", []),
        ("p and q and G[0,T](x < 3)", ["p and q"]),
        ("G[0,T](x < 3) and F[0,T](p or x < 1)", []),
        ("p U[0,T] q or !p", ["!p"]),
        ("G[0,T](x < 3)", []),
        ("x < 3 and G[0,T](y < 2)", ["x < 3"]),
        ("!(x < 3 or y < 2) -> F[0,T](y < 2)", ["!(x < 3 or y < 2)"]),
    ],
)
def test_parts_outside_temporal_operators_are_judged_in_record_0_only(text: str, parts: list[str]) -> None:
    assert list(map(format_formula, judged_once(parse_formula(text)))) == parts
