"""Printed numbers: exact, halves away from zero."""

from __future__ import annotations

import json
import math
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.text import (
    NO_VALUE,
    append_unit,
    describe_lookalikes,
    display_unit,
    escape_controls,
    escape_json,
    escape_surrogates,
    format_against_limit,
    format_compact,
    format_fixed,
    format_interval,
    format_percent,
    format_significant,
    get_logger,
    is_visible,
    learn_secret,
    load_json,
    matches_pattern,
    wrap_line,
    wrap_text,
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


def test_small_lengths_are_shown_in_millimeters_and_degrees_close_up():
    assert display_unit("m", 0.005) == ("mm", 1000)
    assert display_unit("m", 0.5) == ("m", 1)
    assert append_unit("15", "°") == "15°"
    assert append_unit("200", "N") == "200\N{NO-BREAK SPACE}N"
    assert append_unit("1", "") == "1"


def test_round_numbers_lose_what_binary_fractions_add():
    assert [format_compact(v) for v in (0.1 + 0.2, 5.000000000000001, 200.0, -20.0)] == ["0.3", "5", "200", "-20"]


def test_spans_are_scaled_exactly():
    assert format_interval(0.125, 1.0, digits=1, scale=100) == "12.5–100.0"


@pytest.mark.parametrize("write", [format_significant, format_compact, lambda value: format_fixed(value, 2)])
def test_a_number_without_a_value_is_written_and_never_raises(write):
    assert [write(value) for value in (math.inf, -math.inf, math.nan)] == ["∞", "-∞", "—"]
    assert format_against_limit(math.inf, 2.0) == "∞"
    assert format_interval(1.0, math.inf, 1) == "1.0–∞"


# Characters that cannot be seen, lone surrogates, names that look alike


@given(st.text(max_size=40))
def test_escaped_text_is_visible_and_json_with_every_character_seen_holds_the_same(text):
    escaped = escape_controls(text)
    assert all(is_visible(character) for character in escaped)
    assert escape_controls(escaped) == escaped
    whole = escape_surrogates(text)
    shown = escape_json(json.dumps([whole], ensure_ascii=False).encode())
    assert json.loads(shown) == [whole]
    assert all(is_visible(character) for character in shown.decode())


@pytest.mark.parametrize(
    "character", ["\u034f", "\u115f", "\u2800", "\u3164", "\ufe0f", "\U000e0101", "\x9b", "\u202e"]
)
def test_a_character_without_ink_is_escaped_wherever_it_stands(character):
    assert escape_controls(f"a{character}b") == f"a{character.encode('unicode_escape').decode()}b"


def test_letters_marks_and_spaces_stay():
    text = "\u03c00.5 \u2013 nai\u0308ve \u65b9\u7b56 5\u00a0mm"
    assert escape_controls(text) == text


@pytest.mark.parametrize("text", ['"\\ud800"', '{"a": ["\\udfff"]}', '{"\\ud800x": 1}'])
def test_json_with_half_a_surrogate_pair_is_refused(text):
    with pytest.raises(ValueError, match="half a surrogate"):
        load_json(text.encode())
    assert load_json(b'"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"


@pytest.mark.parametrize(
    ("name", "other"),
    [("mine", "min\u0435"), ("a b", "a\u00a0b"), ("a b", "a  b "), ("\u00e9", "e\u0301"), ("a\u202e", "a\\u202e")],
)
def test_names_that_look_alike_are_told_by_their_code_points(name, other):
    (sentence,) = describe_lookalikes("policies", [name, other, "another"])
    assert ascii(other) in sentence
    assert not describe_lookalikes("policies", ["pi0", "pi0.5", "\u03c00", "pi0"])


def test_log_messages_hold_no_control_and_no_secret(caplog):
    learn_secret("hunter2-long")
    get_logger("safevla_bench.test").warning("%s: %s", "\x1b[31mframe\u2800", "hunter2-long")
    assert caplog.messages == ["\\x1b[31mframe\\u2800: ***"]


# Lines of a terminal


def test_a_line_is_wrapped_between_words_and_a_command_stays_whole(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    step = "Next: what each number means, and more: safevla tables runs/a --which all --format md"
    assert wrap_text(step).split("\n") == [
        "Next: what each number means, and more:",
        "safevla tables runs/a --which all --format md",
    ]
    assert wrap_text("  some words that are wrapped by `safevla eval --until`, indented").split("\n") == [
        "  some words that are wrapped by",
        "  `safevla eval --until`, indented",
    ]


def test_nothing_is_wrapped_off_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert wrap_text("many words " * 20) == "many words " * 20


@given(st.text("ab `safevl\u304a", max_size=60), st.integers(1, 30))
def test_wrapping_loses_no_word(line, width):
    assert "".join("".join(wrap_line(line, width)).split()) == "".join(line.split())


@pytest.mark.parametrize("part", ["a", " ", "`", "` ", "safevla a", "(safevla "])
def test_a_line_of_any_length_is_wrapped_in_linear_time(part):
    assert wrap_line("x" + part * 60_000, 20)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("cup[0]", {"cup[0]"}),
        ("cup?", {"cup?"}),
        ("cup*", {"cup[0]", "cup0", "cup?", "cup[]"}),
        ("*]", {"cup[0]", "cup[]", "Cup[0]"}),
    ],
)
def test_only_an_asterisk_stands_for_other_letters(pattern: str, names: set[str]) -> None:
    assert {name for name in ("cup[0]", "cup0", "cup?", "cup[]", "Cup[0]") if matches_pattern(name, pattern)} == names
