"""Units of literals, of margins, and what to write instead of a mixture; tests/judging judges rules with units."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from safevla_bench.errors import FormulaError
from safevla_bench.stl.formula import Until, format_formula, walk_nodes
from safevla_bench.stl.parser import parse_formula
from safevla_bench.stl.units import check_units, is_unit, parse_unit, spell_units

UNIT_OF = {"x": "m", "y": "m", "v": "m/s", "f": "N", "n": "1"}.__getitem__


@pytest.mark.parametrize(
    ("text", "scale", "unit"),
    [
        ("", "1", "1"),
        ("1", "1", "1"),
        (" cm ", "0.01", "m"),
        ("N m", "1", "N m"),
        ("N·m", "1", "N m"),
        ("m/s^2", "1", "m/s^2"),
        ("m/s/s", "1", "m/s^2"),
        ("mm²", "0.000001", "m^2"),
        ("s³", "1", "s^3"),
        ("km / ms", "1000000", "m/s"),
        ("1/s", "1", "1/s"),
        ("Hz", "1", "1/s"),
        ("kg", "1", "N s^2/m"),
        ("°/s", "1", "deg/s"),
    ],
)
def test_a_unit_is_a_factor_and_a_product_of_base_units(text: str, scale: str, unit: str) -> None:
    factor, powers = parse_unit(text)
    assert (factor, str(powers)) == (Decimal(scale), unit)
    assert parse_unit(unit) == (Decimal(1), powers)


@pytest.mark.parametrize("text", ["furlong", "m^0", "m^10", "m//s", "m/", "/s", "2 m", "m^²"])
def test_what_is_not_a_unit_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(FormulaError, match="not a unit") as refused:
        parse_unit(text)
    assert "kN" in (refused.value.remedy or "")
    assert not is_unit(text)


@pytest.mark.parametrize(
    ("text", "threshold", "unit"),
    [
        ("true", None, None),
        ("p", None, None),
        ("x < 1", None, "m"),
        ("1 < -x", None, "m"),
        ("-x < 1 cm", None, "m"),
        ("n < 1", None, "1"),
        ("2 * 3 < 1", None, "1"),
        ("x * v < 1", None, "m^2/s"),
        ("x / v < 1", None, "s"),
        ("2 / x < 1", None, "1/m"),
        ("x * 2 + 1 < y - 1", None, "m"),
        ("threshold < 1", None, "1"),
        ("threshold < 1", "m/s", "m/s"),
        ("threshold < x", "m", "m"),
        ("threshold * x < y", "1", "m"),
        ("x * threshold < 1", None, "m"),
        ("p and x < 1", None, "m"),
        ("x < 1 or p", None, "m"),
        ("x < 1 and y < 2", None, "m"),
        ("G(v < 1 -> x < 1)", None, "m"),
        ("(x < 1 and v < 1) -> f < 1", None, "N"),
        ("(x < 1 and v < 1 and p) -> f < 1", None, "N"),
        ("(p and x < 1 or v < 1) -> p", None, None),
        ("x < 1 U p", None, "m"),
        ("p U v < 1", None, "m/s"),
        ("x < 1 U v < 1", None, "m"),
        ("!F(x < 1 W v < 1)", None, "m"),
    ],
)
def test_a_margin_has_the_unit_of_what_decides_it(text: str, threshold: str | None, unit: str | None) -> None:
    found = check_units(parse_formula(text), UNIT_OF, threshold)[1]
    assert (None if found is None else str(found)) == unit


@pytest.mark.parametrize(
    ("text", "is_crisp"),
    [
        ("x < 1 U y < 1", False),
        ("x < 1 U p", False),
        ("p U x < 1", False),
        ("x < 1 U v < 1", True),
        ("x < 1 U (v < 1 or y < 1)", True),
        ("G(!(p and x < 1 W v < 1)) or y < 1", True),
        ("(x < 1 U v < 1) -> f < 1", True),
    ],
)
def test_an_until_is_crisp_if_its_sides_have_different_units(text: str, is_crisp: bool) -> None:
    formula = parse_formula(text)
    checked = check_units(formula, UNIT_OF)[0]
    assert [node.crisp for node in walk_nodes(checked) if isinstance(node, Until)] == [is_crisp]
    assert format_formula(checked) == format_formula(formula)
    assert is_crisp or checked == formula


@pytest.mark.parametrize(
    ("text", "verb", "units"),
    [
        ("x < v", "compares", ("m", "m/s")),
        ("x < 1 N", "compares", ("m", "N")),
        ("x + v < 1", "adds", ("m", "m/s")),
        ("n < 2 * (f - x)", "adds", ("N", "m")),
        ("x < v -> p", "compares", ("m", "m/s")),
        ("p U x < v", "compares", ("m", "m/s")),
        ("threshold * x < x * y", "compares", ("m", "m^2")),
    ],
)
def test_numbers_of_different_units_are_neither_compared_nor_added(
    text: str, verb: str, units: tuple[str, str]
) -> None:
    with pytest.raises(FormulaError, match=f"{verb} {re.escape(units[0])} with {re.escape(units[1])}:"):
        check_units(parse_formula(text), UNIT_OF)


def test_a_threshold_with_a_unit_is_no_literal() -> None:
    for text, unit in (("threshold < x", "s"), ("threshold * x < y", "s")):
        with pytest.raises(FormulaError, match="compares"):
            check_units(parse_formula(text), UNIT_OF, unit)


@pytest.mark.parametrize(("unit", "base"), [("mm", "m"), ("km/s", "m/s"), ("kN", "N")])
def test_a_threshold_in_a_unit_with_a_factor_is_refused(unit: str, base: str) -> None:
    with pytest.raises(FormulaError, match=f"`threshold` is '{unit}', but formulas use '{base}'"):
        check_units(parse_formula("x < threshold"), lambda _: base, unit)


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        (
            "x < 1 and v < 2",
            ["x < 1 -> v < 2", "!(x < 1 -> !(v < 2))", "x / (1 m) < 1 and v / (2 m/s) < 1"],
        ),
        (
            "x < 1 and v > 2",
            ["x < 1 -> v < 2", "!(x < 1 -> !(v > 2))", "x / (1 m) < 1 and v / (2 m/s) > 1"],
        ),
        (
            "x < threshold and v >= 2",
            [
                "v >= 2 -> x < threshold",
                "!(v >= 2 -> !(x < threshold))",
                "x / (1 m) < threshold and v / (2 m/s) >= 1",
            ],
        ),
        (
            "x <= threshold and n >= 3",
            ["n >= 3 -> x <= threshold", "!(n >= 3 -> !(x <= threshold))", "x / (1 m) <= threshold and n >= 3"],
        ),
        (
            "n < 3 and v >= 2",
            ["n < 3 -> v <= 2", "!(n < 3 -> !(v >= 2))", "n < 3 and v / (2 m/s) >= 1"],
        ),
        (
            "x < y and G(v > 3)",
            ["!(x < y -> !(G(v > 3)))", "x / (1 m) < y / (1 m) and G(v / (3 m/s) > 1)"],
        ),
        ("x < 1 or v > 2", ["!(x < 1) -> v > 2", "x / (1 m) < 1 or v / (2 m/s) > 1"]),
        ("x < threshold or v < 2", ["!(v < 2) -> x < threshold", "x / (1 m) < threshold or v / (2 m/s) < 1"]),
    ],
)
def test_a_mixture_is_refused_with_formulas_that_have_one_unit(text: str, rewritten: list[str]) -> None:
    for whole in (text, f"!({text})", f"({text}) U x < 1", f"p U ({text})"):
        with pytest.raises(FormulaError, match="no common margin") as refused:
            check_units(parse_formula(whole), UNIT_OF)
        written = re.findall("`([^`]*)`", refused.value.remedy or "")
        assert [parse_formula(part) for part in written] == [parse_formula(part) for part in rewritten]
        for part in written:
            check_units(parse_formula(part), UNIT_OF)
    decided, of_unit = re.findall(r"`([^`]*)` \[([^]]*)\]", refused.value.problem)
    assert all(str(check_units(parse_formula(part), UNIT_OF)[1]) == unit for part, unit in (decided, of_unit))


def test_a_difference_from_the_threshold_is_not_normalized() -> None:
    with pytest.raises(FormulaError) as refused:
        check_units(parse_formula("x - threshold < 0 and v < 1"), UNIT_OF)
    assert "normalize" not in (refused.value.remedy or "")


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("x < 0 and v < 1", "x / (1 m) < 0 and v / (1 m/s) < 1"),
        ("0.5 < x and v < 1", "0.5 < x / (1 m) and v / (1 m/s) < 1"),
        ("5 cm < x and v < 1", "0.05 < x / (1 m) and v / (1 m/s) < 1"),
        ("x < 2 * threshold and v < 1", "x / (1 m) < 2 * threshold and v / (1 m/s) < 1"),
        ("x < -5 and v < 1", "x / (1 m) < -5 and v / (1 m/s) < 1"),
        ("x < 2 * 3 and v < 1", "x / (1 m) < 2 * 3 and v / (1 m/s) < 1"),
    ],
)
def test_a_limit_that_is_zero_on_the_left_or_a_multiple_of_the_threshold_is_normalized(text, normalized) -> None:
    with pytest.raises(FormulaError) as refused:
        check_units(parse_formula(text), UNIT_OF)
    written = re.findall("`([^`]*)`", refused.value.remedy or "")[-1]
    assert parse_formula(written) == parse_formula(normalized)
    check_units(parse_formula(written), UNIT_OF)


def test_the_parts_that_a_refusal_names_are_those_of_the_two_units() -> None:
    with pytest.raises(FormulaError) as refused:
        check_units(parse_formula("(n < 1 -> x < 1) and y < 2 and G(f < 1 -> v < 3)"), UNIT_OF)
    assert re.findall(r"`([^`]*)` \[([^]]*)\]", refused.value.problem) == [("x < 1", "m"), ("v < 3", "m/s")]


@pytest.mark.parametrize("text", ["5 Hz", "5 1/s", "5 s/m/s", "2 1/s^2", "3 deg/rad/m", "0.1 ms/N"])
def test_a_literal_with_any_unit_is_written_as_it_is_read(text: str) -> None:
    formula = parse_formula(f"x < {text}")
    assert parse_formula(format_formula(formula)) == formula


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("x < 1 and n < 2", "x < 1 m and n < 2"),
        ("-(x - 0.5) < 2 * v * 3 s + 1", "-(x - 0.5 m) < 2 * v * 3 s + 1 m"),
        ("G(v < 5 cm/s -> 2 * x < 1)", "G(v < 0.05 m/s -> 2 * x < 1 m)"),
        ("p U 1 < 2", "p U 1 < 2"),
    ],
)
def test_units_are_spelled_after_literals_that_are_compared_or_added(text: str, spelled: str) -> None:
    assert spell_units(parse_formula(text), UNIT_OF) == parse_formula(spelled)
