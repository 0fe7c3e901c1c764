"""Printed numbers: rounded from exact values, halves away from zero. A missing number is a dash, never a zero."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction

NO_VALUE = "—"
_MAX_DECIMALS = 9
_EXACT = Context(prec=1100, rounding=ROUND_HALF_UP)
"""Enough digits for any float. ROUND_HALF_UP of `decimal` rounds halves away from zero."""


def format_fixed(value: Fraction | float, digits: int) -> str:
    """Return a number with `digits` decimals, rounded from its exact value, halves away from zero.

    >>> format_fixed(Fraction(381, 4), 1), format_fixed(-0.0001, 3)
    ('95.3', '0.000')
    """
    if isinstance(value, float):  # exact too, and ten times as fast as Fraction
        text = f"{_EXACT.quantize(Decimal(value), Decimal(1).scaleb(-digits)):f}"
        return text.removeprefix("-") if not text.strip("-0.") else text
    exact = Fraction(value)
    units = math.floor(abs(exact) * 10**digits + Fraction(1, 2))
    whole, part = divmod(units, 10**digits)
    sign = "-" if exact < 0 and units else ""
    return f"{sign}{whole}.{part:0{digits}d}" if digits else f"{sign}{whole}"


def format_percent(count: int, n: int, digits: int = 1) -> str:
    """Return the proportion `count / n` in percent, without the percent sign; a dash if `n` is 0."""
    return format_fixed(Fraction(100 * count, n), digits) if n else NO_VALUE


def format_interval(low: float, high: float, digits: int, scale: int = 1) -> str:
    """Return an interval as `low–high`, both multiplied by `scale`."""
    return f"{format_fixed(Fraction(low) * scale, digits)}–{format_fixed(Fraction(high) * scale, digits)}"


def format_significant(value: float, figures: int = 3) -> str:
    """Return a measured value with `figures` significant figures and no exponent; integer digits are never cut.

    A magnitude below half a unit of the ninth decimal, such as the residue of a subtraction, becomes 0.
    """
    text = "0" if value == 0 else format_fixed(value, _decimals_for(value, figures))
    return text if text.strip("-0.") else "0"


def _decimals_for(value: float, figures: int) -> int:
    return min(_MAX_DECIMALS, max(0, figures - 1 - math.floor(math.log10(abs(value)))))


def format_compact(value: float) -> str:
    """Return a round number, such as a limit or a tick, without trailing zeros and binary rounding residue."""
    text = format_fixed(round(value, 9), 6)
    return text.rstrip("0").removesuffix(".")


def format_against_limit(value: float, limit: float) -> str:
    """Return a measured value with as many significant figures, at least three, as show its side of the limit."""
    for figures in range(3, 16):
        text = format_significant(value, figures)
        if value == limit or Fraction(text) != Fraction(limit):
            return text
    return repr(value)


_DISPLAY = {"deg": "°", "1": "", "m/s^2": "m/s²", "m/s^3": "m/s³"}


def display_unit(unit: str, limit: float) -> tuple[str, int]:
    """Return the unit's symbol for display and the factor for its values: mm and 1000 for metres below 0.1 m, else 1.

    `limit` is the amount whose size decides; 0 stays in metres.
    """
    if unit == "m" and 0 < abs(limit) < 0.1:
        return "mm", 1000
    return _DISPLAY.get(unit, unit), 1


def append_unit(text: str, unit: str) -> str:
    """Return a number and its unit, joined by a no-break space; the degree sign follows without a space."""
    return f"{text}{unit}" if unit == "°" else f"{text}\N{NO-BREAK SPACE}{unit}".rstrip()
