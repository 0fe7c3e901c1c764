"""What the grammar accepts, how tightly its operators bind, and errors that point at their column."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from safevla_bench.errors import FormulaError
from safevla_bench.stl.formula import (
    Always,
    BooleanSignal,
    Compare,
    Formula,
    Number,
    NumericSignal,
    Truth,
    Until,
    Window,
    format_formula,
    signal_names,
    substitute_threshold,
)
from safevla_bench.stl.parser import MAX_CHARACTERS, MAX_DEPTH, parse_formula
from safevla_bench.stl.robustness import judge_formula, robustness, trajectory_robustness
from safevla_bench.stl.trace import Trace
from stl.oracle import KNOWN


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("p -> q -> r", "p -> (q -> r)"),
        ("p or q and r", "p or (q and r)"),
        ("p and q or r", "(p and q) or r"),
        ("p and q and r", "(p and q) and r"),
        ("p or q -> r and s", "(p or q) -> (r and s)"),
        ("not p and q", "(not p) and q"),
        ("! x < 3", "!(x < 3)"),
        ("G p and q", "(G p) and q"),
        ("G p U q", "(G p) U q"),
        ("p and q U r", "p and (q U r)"),
        ("p U q U r", "p U (q U r)"),
        ("p U[0,1] !q or r", "(p U[0,1] (!q)) or r"),
        ("G F !p", "G(F(!p))"),
        ("G x + 1 < 3", "G((x + 1) < 3)"),
        ("x - y - z < 1", "(x - y) - z < 1"),
        ("x / y * z < 1", "(x / y) * z < 1"),
        ("x + y * z < 1", "x + (y * z) < 1"),
        ("-x * y < 1", "(-x) * y < 1"),
        ("x < y + 1 -> p", "(x < (y + 1)) -> p"),
        ("((p)) -> ((x) < (3))", "p -> x < 3"),
        # spellings
        ("G p", "always p"),
        ("F p", "eventually p"),
        ("p U q", "p until q"),
        ("!p", "not p"),
        ("p and q", "p & q"),
        ("p and q", "p && q"),
        ("p or q", "p | q"),
        ("p or q", "p || q"),
        ("p -> q", "p => q"),
        ("G[0,2] p", "G [ 0 : 2 ] p"),
        ("G[0,T] p", "G p"),
        ("x<-3", "x < - 3"),
        ("p\n\t->\r\nq", "p -> q"),
        ("x < .5", "x < 0.5"),
        ("x < 5e-1", "x < 0.50"),
    ],
)
def test_precedence_and_spellings(text: str, meaning: str) -> None:
    assert parse_formula(text) == parse_formula(meaning)


def test_names_that_begin_like_words() -> None:
    text = "G(android -> Gx < T_max) and (U2 until Fast) and notp and or_else and max_force < minimum + threshold_n"
    expected = {"android", "Gx", "T_max", "U2", "Fast", "notp", "or_else", "max_force", "minimum", "threshold_n"}
    assert signal_names(parse_formula(text)) == expected


def test_a_bare_name_is_boolean_and_a_compared_one_numeric() -> None:
    assert parse_formula("p") == BooleanSignal("p")
    assert parse_formula("(p) < 2") == Compare("<", NumericSignal("p"), Number(2.0))
    assert parse_formula("true") == Truth(True)
    assert parse_formula("p U[1,T] q") == Until(Window(1.0, None), BooleanSignal("p"), BooleanSignal("q"))
    assert parse_formula("G[0.5,2] p") == Always(Window(0.5, 2.0), BooleanSignal("p"))


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "formula is empty"),
        ("  \n ", 5, "formula is empty"),
        ("x <", 4, "is incomplete"),
        ("G(x < 1", 8, "is incomplete: the bracket in column 2 is not closed"),
        ("G[0,1](x < 1) & (F[0,2", 23, "is incomplete: the bracket in column 19 is not closed"),
        ("x < 1)", 6, r"'\)'"),
        ("x == 3", 3, "'=' is not"),
        ("x != 3", 3, "is not expected|is not part of the grammar"),
        ("1 < x < 2", 7, "cannot be chained"),
        ("(1 < x) < 2", 2, "number is expected"),
        ("x + 1", 1, "formula is expected"),
        ("p -> 3", 6, "formula is expected"),
        ("G[2,1] p", 3, r"\[2,1\] is invalid"),
        ("G[T,T] p", 3, "'T' is not"),
        ("G[-1,2] p", 3, "'-' is not"),
        ("G[0,1e999] p", 5, "too large"),
        ("x < 1e999", 5, "too large"),
        ("x < " + "9" * 400, 5, "too large"),
        ("p andq", 3, "'andq'"),
        ("3x < 1", 2, "'x' is not"),
        ("é < 1", 1, "'é' is not"),
        ("x ٣ < 1", 3, "'٣' is not"),
        ("x\u202e < 1", 2, "of the grammar"),
        ("x < 1; y", 6, "';' is not"),
        ("x\x00 < 1", 2, "of the grammar"),
        ("p and\n and q", 8, "'and'"),
        ("G((p) and", 10, "is incomplete: the bracket in column 2 is not closed"),
        ("(p) and", 8, "the formula is incomplete\n"),
        ("not(x +", 8, "is incomplete: the bracket in column 4 is not closed\n.*a signal, a number"),
        ("G[0", 4, "is incomplete: .*\n.*write a window"),
        ("p q", 3, "'q' is not expected here\n.*an operator or the end"),
        ('d("))", ', 9, "the formula is incomplete\n"),
        # numbers and units
        ("x < 5 m/m", 5, "5 m/m is a number without a unit"),
        ("x < 1e308 km", 5, "1e308 km is too large"),
        ("x < 9e999 m", 5, "9e999 m is too large"),
        ("d(a, 1e999) < 1", 6, "1e999 is too large"),
        ("x < " + "9" * 36 + "e999", 5, "9" * 36 + "e999 is"),
        ("x < " + "9" * 37 + "e999", 5, "9" * 37 + r"\.\.\. is"),
        ("G[0,2 m] p", 5, "must be in s, not in m"),
        ("G[0 m,2] p", 3, "must be in s, not in m"),
        ("G[3 s,1 s] p", 3, r"\[3,1\] is invalid"),
        ("G[1,9e999 s] p", 5, "too large"),
        # words that are none of the grammar
        ("p AND q", 3, "'AND' is not an operator\n.*write and"),
        ("p Then q", 3, "'Then' is not an operator\n.*write ->"),
        ("p implies q", 3, "'implies' is not an operator\n.*write ->"),
        ("p xor q", 3, "'xor' is not expected"),
        ("x < 3 furlongs", 7, "'furlongs' is not a unit\n.*kN"),
        ("x < 3furlongs", 6, "'furlongs' is not a unit"),
        ("3 m p", 5, "'p' is not expected"),
        ("abs(x + 1) < 2", 7, r"'\+' is not expected"),
    ],
)
def test_an_error_names_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(FormulaError, match=says) as caught:
        parse_formula(text)
    assert caught.value.column == column
    assert f"column {column}:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("G(p -> xx < 1)", 8, r"you mean 'x'\?"),
        ("speed < 1", 1, "unknown signal 'speed'"),
        ("G(p < 1)", 3, "'p' is Boolean"),
        ("-(x + p) < 1", 7, "'p' is Boolean"),
        ("p -> x", 6, "x < 1"),
        ("(x)", 2, "'x' is numeric"),
    ],
)
def test_with_known_signals_an_error_lists_them(text: str, column: int, says: str) -> None:
    with pytest.raises(FormulaError, match=says) as caught:
        parse_formula(text, KNOWN)
    assert caught.value.column == column


class Forms(dict[str, bool]):
    """A known signal x, and any of the form d, unless its argument is bad."""

    def __contains__(self, name: object) -> bool:
        return name == "x" or str(name).startswith("d(")

    def __getitem__(self, name: str) -> bool:
        if name == "d(bad)":
            raise FormulaError("no such body", remedy="name another")
        return False


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("x < d(bad)", 5, "no such body\n.*name another"),
        ("x < e(ok)", 5, "there is no function 'e'\n.*not `abs`"),
        ("G(abs(x + 1) < 2)", 3, "there is no operator or function 'abs'\n.*not `abs`"),
        ("always(max((x) + 1) < 2)", 8, "there is no operator or function 'max'"),
        ("x < 1 and abs((x", 11, "there is no operator or function 'abs'"),
        ("G(x < 1) < 2)", 13, r"'\)' is not expected"),
        ("d(x + 1) < 2", 5, r"'\+' is not expected"),
        ("not(x + (1 <", 13, "incomplete"),
    ],
)
def test_a_call_of_no_signal_is_an_error_at_its_name(text: str, column: int, says: str) -> None:
    with pytest.raises(FormulaError, match=says) as caught:
        parse_formula(text, Forms())
    assert caught.value.column == column


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("d(a)", "d(a)"),
        ("d()", "d()"),
        ("d( a,-1.5 ,2e0)", "d(a, -1.5, 2)"),
        ("d('a', \"b c\", 'G')", 'd(a, "b c", "G")'),
    ],
)
def test_a_signal_of_a_form_has_its_canonical_call_as_its_name(text: str, name: str) -> None:
    for known in (None, Forms()):
        assert parse_formula(f"{text} < x", known) == Compare("<", NumericSignal(name), NumericSignal("x"))


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("5 cm", 0.05, "m"),
        ("2e-3 km", 2.0, "m"),
        ("3 N m", 3.0, "N m"),
        (".5 m / s", 0.5, "m/s"),
        ("15°", 15.0, "deg"),
        ("0 m", 0.0, "m"),
    ],
)
def test_a_literal_with_a_unit_is_converted_to_the_base_units(text: str, value: float, unit: str) -> None:
    assert parse_formula(f"x < {text}") == Compare("<", NumericSignal("x"), Number(value, unit))


def test_a_window_may_have_units_of_time() -> None:
    assert parse_formula("G[0 s, 300 ms] p") == parse_formula("G[0,0.3] p")
    assert parse_formula("G[1 s,T] p") == Always(Window(1.0, None), BooleanSignal("p"))


def test_the_remedy_for_a_boolean_in_a_comparison_lists_the_numeric_signals() -> None:
    for known, listed in ((KNOWN, ": x, y, z"), ({"p": True}, ": none")):
        with pytest.raises(FormulaError, match=f"numeric signals{listed}$"):
            parse_formula("p < 1", known)


def test_without_any_known_signal_the_error_says_so() -> None:
    with pytest.raises(FormulaError, match="known signals: none"):
        parse_formula("p", {})


HOSTILE = {
    "parentheses": "(" * 10_000 + "p" + ")" * 10_000,
    "open parentheses": "(" * 10_000,
    "negations": "!" * 10_000 + "p",
    "always": "G " * 5_000 + "p",
    "minus": "-" * 10_000 + "x < 1",
    "conjunction": " and ".join(["p"] * 2_000),
    "implication": " -> ".join(["p"] * 2_000),
    "sum": "+".join(["x"] * 5_000) + " < 1",
    "until": " U ".join(["p"] * 3_000),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_text_is_a_formula_error_and_not_a_crash(text: str) -> None:
    with pytest.raises(FormulaError):
        parse_formula(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * (MAX_DEPTH - 1) + "p" + ")" * (MAX_DEPTH - 1),
        "!" * (MAX_DEPTH - 1) + "p",
        " and ".join(["p"] * MAX_DEPTH),
        "G[0,0] " * (MAX_DEPTH - 1) + "p",
        "-" * (MAX_DEPTH - 2) + "x < threshold",
        " U ".join(["p"] * MAX_DEPTH),
    ],
    ids=["parentheses", "not", "and", "always", "minus", "until"],
)
def test_the_deepest_formula_read_can_also_be_used(text: str) -> None:
    """A formula that parses is never too deep to print, fill, hash or judge."""
    formula = substitute_threshold(parse_formula(text), 1.0)
    assert parse_formula(format_formula(formula)) == formula
    assert hash(formula) == hash(substitute_threshold(parse_formula(text), 1.0))
    assert repr(formula)
    trace = Trace({"p": np.array([True, False]), "x": np.array([0.5, 2.0])}, np.array([0, 2]), np.array([1.0]))
    assert (
        judge_formula(formula, trace).rho[0]
        == robustness(formula, trace)[0]
        == trajectory_robustness(formula, trace)[0]
    )
    with pytest.raises(FormulaError, match=f"deeper than {MAX_DEPTH}"):
        parse_formula(f"!(({text}))")


def test_a_chain_of_a_million_is_refused_for_its_length_before_it_is_parsed(monkeypatch) -> None:
    monkeypatch.setattr("safevla_bench.stl.parser._load_grammar", lambda: pytest.fail("it was parsed"))
    with pytest.raises(FormulaError, match="7999995 characters"):
        parse_formula(" and ".join(["ppp"] * 1_000_000))


def test_a_formula_may_have_as_many_characters_as_the_limit_says() -> None:
    text = "x < 1".ljust(MAX_CHARACTERS)
    assert parse_formula(text) == parse_formula("x < 1")
    with pytest.raises(FormulaError, match="characters"):
        parse_formula(f"{text} ")


def test_a_chain_that_is_too_deep_is_told_that_each_operator_counts() -> None:
    with pytest.raises(FormulaError, match="each operator"):
        parse_formula(" and ".join(["p"] * (MAX_DEPTH + 1)))


def test_a_long_formula_that_is_not_deep_is_read() -> None:
    text = "x < " + "0" * 90_000 + "1"  # quadratic time would take minutes
    assert parse_formula(text) == parse_formula("x < 1")
    assert parse_formula("p" * 10_000) == BooleanSignal("p" * 10_000)


@given(st.text(max_size=60) | st.text("GFU[]()!&|-><=0123456789.eT,: xpq+*/", max_size=60))
@example("G[0,T](x->")
@example("1e")
@example("\ud800")
def test_any_text_is_a_formula_or_a_formula_error(text: str) -> None:
    formula = parsed_or_none(text)
    assert formula is None or parse_formula(format_formula(formula)) == formula


def parsed_or_none(text: str) -> Formula | None:
    try:
        return parse_formula(text)
    except FormulaError as error:
        if error.column is None or not 1 <= error.column <= len(text) + 1:
            raise AssertionError(f"column {error.column} is not in {text!r}") from error
        return None
