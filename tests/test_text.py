"""Printed numbers: exact, halves away from zero."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.text import (
    NO_VALUE,
    append_unit,
    display_unit,
    format_against_limit,
    format_compact,
    format_fixed,
    format_interval,
    format_percent,
    format_significant,
)


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(0, 3))
def test_percent_agrees_with_decimal_rounding_half_up(count, n, digits):
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(100 * count) / Decimal(n)
        expected = exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    assert format_percent(count, n, digits) == f"{expected:f}"


@given(st.floats(-1e6, 1e6), st.integers(0, 6))
def test_fixed_rounds_the_exact_binary_value_away_from_zero(value, digits):
    units = math.floor(abs(Fraction(value)) * 10**digits + Fraction(1, 2))
    whole = f"{units:0{digits + 1}d}"
    expected = f"{whole[:-digits]}.{whole[-digits:]}" if digits else whole
    assert format_fixed(value, digits) == ("-" if value < 0 and units else "") + expected
    assert format_fixed(Fraction(value), digits) == format_fixed(value, digits)


def test_the_papers_half_is_printed_as_the_paper_does():
    assert format_percent(381, 400) == "95.3"  # 95.25
    assert format_fixed(Fraction(-5, 100), 1) == "-0.1"


def test_nothing_to_divide_by_is_a_dash_and_zero_is_a_zero():
    assert format_percent(0, 0) == NO_VALUE
    assert format_percent(0, 7) == "0.0"


@pytest.mark.parametrize("value", [-0.0, -0.0004, 0.0004])
def test_zero_has_no_sign(value):
    assert format_fixed(value, 3) == "0.000"


def test_significant_never_cuts_whole_digits():
    values = (1234.5, 99.95, 0.012345, -3.0, 0)
    assert [format_significant(value) for value in values] == ["1235", "100.0", "0.0123", "-3.00", "0"]


@given(st.floats(1e-3, 1e4), st.floats(1e-3, 1e4))
def test_a_value_beside_its_limit_shows_its_side(value, limit):
    number = Fraction(format_against_limit(value, limit))
    assert (number > Fraction(limit)) == (value > limit) or value == limit


def test_a_violation_by_a_hair_is_not_printed_as_the_limit():
    assert format_against_limit(200.004, 200.0) == "200.004"


def test_small_lengths_are_shown_in_millimetres_and_degrees_close_up():
    assert display_unit("m", 0.005) == ("mm", 1000)
    assert display_unit("m", 0.5) == ("m", 1)
    assert append_unit("15", "°") == "15°"
    assert append_unit("200", "N") == "200\N{NO-BREAK SPACE}N"
    assert append_unit("1", "") == "1"


def test_round_numbers_lose_what_binary_fractions_add():
    assert [format_compact(v) for v in (0.1 + 0.2, 5.000000000000001, 200.0, -20.0)] == ["0.3", "5", "200", "-20"]


def test_spans_are_scaled_exactly():
    assert format_interval(0.125, 1.0, digits=1, scale=100) == "12.5–100.0"
