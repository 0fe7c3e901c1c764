"""Numbers as they are printed: from exact values, halves away from zero; a dash where there is none, never a zero."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction

NONE = "—"
_MOST_DIGITS = 9
_EXACT = Context(prec=1100, rounding=ROUND_HALF_UP)
"""Digits enough for any float; its half up is away from zero."""


def fixed(value: Fraction | float, digits: int) -> str:
    """A number with so many decimals, rounded from its exact value, halves away from zero.

    >>> fixed(Fraction(381, 4), 1), fixed(-0.0001, 3)
    ('95.3', '0.000')
    """
    if isinstance(value, float):  # exact too, and ten times as fast as fractions
        text = f"{_EXACT.quantize(Decimal(value), Decimal(1).scaleb(-digits)):f}"
        return text.removeprefix("-") if not text.strip("-0.") else text
    exact = Fraction(value)
    units = math.floor(abs(exact) * 10**digits + Fraction(1, 2))
    whole, part = divmod(units, 10**digits)
    sign = "-" if exact < 0 and units else ""
    return f"{sign}{whole}.{part:0{digits}d}" if digits else f"{sign}{whole}"


def percent(count: int, n: int, digits: int = 1) -> str:
    """A proportion in percent, without the sign; a dash where there is nothing to divide by."""
    return fixed(Fraction(100 * count, n), digits) if n else NONE


def span(low: float, high: float, digits: int, scale: int = 1) -> str:
    """The two ends of an interval."""
    return f"{fixed(Fraction(low) * scale, digits)}–{fixed(Fraction(high) * scale, digits)}"


def significant(value: float, figures: int = 3) -> str:
    """A measured value with so many significant figures and no exponent; whole digits are never cut.

    What is less than half a unit of the ninth decimal, such as the dust of a subtraction, is 0.
    """
    text = "0" if value == 0 else fixed(value, _decimals(value, figures))
    return text if text.strip("-0.") else "0"


def _decimals(value: float, figures: int) -> int:
    return min(_MOST_DIGITS, max(0, figures - 1 - math.floor(math.log10(abs(value)))))


def short(value: float) -> str:
    """A round number, such as a limit or a tick, without trailing zeros and without what binary fractions add."""
    text = fixed(round(value, 9), 6)
    return text.rstrip("0").removesuffix(".")


def apart(value: float, limit: float) -> str:
    """A measured value beside its limit: with as many digits as it takes to see on which side it lies."""
    for figures in range(3, 16):
        text = significant(value, figures)
        if value == limit or Fraction(text) != Fraction(limit):
            return text
    return repr(value)


_DISPLAY = {"deg": "°", "1": "", "m/s^2": "m/s²", "m/s^3": "m/s³"}


def unit_text(unit: str, limit: float) -> tuple[str, int]:
    """How a unit is shown, and by what its values are multiplied: metres as millimetres where the limit is small."""
    if unit == "m" and 0 < abs(limit) < 0.1:
        return "mm", 1000
    return _DISPLAY.get(unit, unit), 1


def with_unit(text: str, unit: str) -> str:
    """A number and its unit, apart by a no-break space; the degree sign stands close."""
    return f"{text}{unit}" if unit == "°" else f"{text}\N{NO-BREAK SPACE}{unit}".rstrip()
