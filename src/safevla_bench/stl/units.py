"""Units of formulas: every margin and every literal has a unit.

A literal written without a unit takes the unit of the value that it is compared with or added to; a literal factor or
divisor is a pure number. Numbers are converted to the base units N, m, s and deg: 5 cm becomes 0.05 m.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import NoReturn, cast

import msgspec

from safevla_bench.errors import FormulaError
from safevla_bench.stl import formula as syntax
from safevla_bench.stl.formula import format_formula

_BASES = ("N", "m", "s", "deg")


@dataclass(frozen=True, slots=True)
class Unit:
    """A product of powers of N, m, s and deg."""

    powers: tuple[int, ...] = (0, 0, 0, 0)

    def times(self, other: Unit, power: int = 1) -> Unit:
        # Return the product of this unit and `other ** power`; a power of -1 divides by `other`.
        # `powers` holds the powers of N, m, s and deg.
        return Unit(tuple(a + power * b for a, b in zip(self.powers, other.powers, strict=True)))

    def __str__(self) -> str:
        # Return the unit's text, such as `N m/s^2`, or `1` for a pure number.
        # `powers` holds the powers of N, m, s and deg.
        pairs = list(zip(_BASES, self.powers, strict=True))
        # 1 -> the factors with positive powers; -1 -> the factors with negative powers, which follow a slash
        factors = {
            sign: [f"{base}^{sign * power}".removesuffix("^1") for base, power in pairs if power * sign > 0]
            for sign in (1, -1)
        }
        return "/".join([" ".join(factors[1]) or "1", *factors[-1]])


ONE = Unit()
_SEVERAL_UNITS = Unit(())  # the unit of a condition with comparisons in several units
_FILE = resources.files(__package__).joinpath("units.toml")
_SYMBOLS = msgspec.toml.decode(_FILE.read_bytes(), type=dict[str, tuple[str, tuple[int, int, int, int]]])
KNOWN = f"units are made of {', '.join(symbol for symbol in _SYMBOLS if symbol != '1')}, such as m/s^2 or N m"
_POWERS = {"": 1, "²": 2, "³": 3}
_SYMBOL_PATTERN = "|".join(sorted(map(re.escape, _SYMBOLS.keys() - {"1"}), key=lambda word: (-len(word), word)))
PATTERN = rf"(?:{_SYMBOL_PATTERN})(?:\^[1-9]|[²³])?(?![A-Za-z0-9_])"  # one factor of the unit after a number
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(.*)", re.DOTALL)


def is_unit(word: str) -> bool:
    """Return whether a word is the symbol of a unit."""
    return word in _SYMBOLS


def split_quantity(text: str) -> tuple[str, str]:
    """Return the number and the unit of a literal such as `0.5 m/s`."""
    match = _QUANTITY.fullmatch(text)
    assert match is not None, text
    return match[1], match[2]


@cache
def parse_unit(text: str) -> tuple[Decimal, Unit]:
    """Parse a unit such as `cm`, `N m`, `m/s^2` or `deg/s` into its factor and its powers of the base units; "" is the
    pure number 1. Raises `FormulaError` for an unknown symbol.
    """
    # The factor converts a number in this unit to base units: `cm` gives 0.01 and m.
    # `_SYMBOLS` maps a symbol to the text of its factor and its powers of N, m, s and deg.
    scale, unit = Decimal(1), ONE
    # The tokens are factors and separators in turn.
    tokens = re.split(r"(\s*/\s*|\s*·\s*|\s+)", text.strip()) if text.strip() else ["1"]
    for separator, factor_text in zip(["", *tokens[1::2]], tokens[::2], strict=True):
        match = re.fullmatch(r"(1|[^0-9\^²³]+)(?:\^([1-9])|([²³]))?", factor_text)
        if match is None or match[1] not in _SYMBOLS:
            raise FormulaError(f"{text!r} is not a unit", remedy=KNOWN)
        power = int(match[2]) if match[2] else _POWERS[match[3] or ""]
        power = -power if "/" in separator else power
        factor, powers = _SYMBOLS[match[1]]
        scale *= Decimal(factor) ** power
        unit = unit.times(Unit(powers), power)
    return scale, unit


def equivalent_symbols(unit: str) -> list[str]:
    """Return the symbols of all other units of the same quantity, such as cm, mm and km for m."""
    # `_SYMBOLS` holds the symbols of all units. `unit_ratio` is None for units of different quantities.
    return [symbol for symbol in _SYMBOLS if symbol != unit and unit_ratio(symbol, unit) is not None]


def unit_ratio(first: str, second: str) -> Fraction | None:
    """Return the first unit divided by the second; None if they differ and one is unknown or of another quantity."""
    # For example, `cm` and `m` give 1/100. The fraction is exact.
    if first == second:
        return Fraction(1)
    with suppress(FormulaError):
        (first_scale, first_unit), (second_scale, second_unit) = parse_unit(first), parse_unit(second)
        if first_unit == second_unit:
            return Fraction(first_scale) / Fraction(second_scale)
    return None


def check_units(
    formula: syntax.Formula, unit_of: Callable[[str], str], threshold: str | None = None
) -> tuple[syntax.Formula, Unit | None]:
    """Check the units of a formula. Return the formula, with `crisp` set in each `Until` that needs it, and the unit of
    the margin (None without a margin). `unit_of` gives the unit of a signal. `threshold` is the unit of the
    placeholder; if it is None, the placeholder has the unit of the other side, like a literal. Raises `FormulaError` if
    numbers of different units are compared or added, or if margins of different units are combined outside a condition.
    """
    # An `Until` is `crisp` if its sides have margins of different units.
    # Then its right side counts only as true or false.
    # `in_condition` is True for a part of a formula that counts only as true or false.
    return _UnitCheck(unit_of, threshold).check_formula(formula, in_condition=False)


def spell_units(formula: syntax.Formula, unit_of: Callable[[str], str]) -> syntax.Formula:
    """Return the formula with the unit written after every literal that is compared or added."""
    # `unit_of` gives the unit of a signal. With `threshold=None`, the placeholder has the unit of the other side.
    check = _UnitCheck(unit_of, threshold=None)

    def spell(part: syntax.Expression, unit: Unit) -> syntax.Expression:
        # Write the unit after each literal of a sum. Factors of products stay pure numbers.
        match part:
            case syntax.Number(value, "") if unit != ONE:
                return syntax.Number(value, str(unit))
            case syntax.Negate() | syntax.Arithmetic("+" | "-"):
                return cast(syntax.Expression, syntax.map_children(part, lambda inner: spell(inner, unit)))
            case _:
                return part

    def spell_sides(predicate: syntax.Compare) -> syntax.Compare:
        # `check_formula` returns the formula and its unit, which is never None for a comparison.
        unit = check.check_formula(predicate, in_condition=False)[1] or ONE
        return cast(syntax.Compare, syntax.map_children(predicate, lambda side: spell(side, unit)))

    return syntax.map_predicates(formula, spell_sides)


@dataclass(frozen=True, slots=True)
class _UnitCheck:
    unit_of: Callable[[str], str]
    threshold: str | None

    def check_formula(self, formula: syntax.Formula, *, in_condition: bool) -> tuple[syntax.Formula, Unit | None]:
        # Return the results of `check_units`. Inside a condition, margins may have different units.
        # The unit is that of the formula's margin, or None without a margin.
        # It is `_SEVERAL_UNITS` for a condition with comparisons of several units.
        # `ONE` is the unit of pure numbers.
        match formula:
            case syntax.Compare(_, left, right):
                return formula, self._find_common_unit(left, right, formula) or ONE
            case syntax.And(left, right) | syntax.Or(left, right):
                (first, first_unit), (second, second_unit) = (
                    self.check_formula(side, in_condition=in_condition) for side in (left, right)
                )
                # If one side has no margin, such as a Boolean signal, the other side gives the unit.
                unit = first_unit if second_unit is None else second_unit
                if first_unit is not None and unit is not None and first_unit != unit:
                    if not in_condition:  # only margins need a common unit
                        self._refuse_mixture(formula, first_unit, unit)
                    unit = _SEVERAL_UNITS
                return type(formula)(first, second), unit
            case syntax.Implies(left, right, plain):
                condition, _ = self.check_formula(left, in_condition=True)
                decisive, unit = self.check_formula(right, in_condition=in_condition)
                return syntax.Implies(condition, decisive, plain), unit
            case syntax.Until(window, left, right, weak):
                hold, hold_unit = self.check_formula(left, in_condition=in_condition)
                reach, unit = self.check_formula(right, in_condition=True)
                crisp = hold_unit is not None and unit is not None and hold_unit != unit  # see `syntax.Until`
                if not crisp and unit == _SEVERAL_UNITS and not in_condition:
                    self.check_formula(right, in_condition=False)  # raises an error that names the units
                return syntax.Until(window, hold, reach, weak, crisp), unit if hold_unit is None else hold_unit
            case syntax.Not(child) | syntax.Always(_, child) | syntax.Eventually(_, child):
                checked, unit = self.check_formula(child, in_condition=in_condition)
                return cast(syntax.Formula, syntax.map_children(formula, lambda _: checked)), unit
            case _:
                return formula, None

    def _find_unit(self, expression: syntax.Expression) -> Unit | None:
        # Return the unit of an expression; None if it consists of literals without units.
        # `unit_of` gives a signal's unit as text. `threshold` is the unit of the placeholder `threshold`, or None.
        match expression:
            case syntax.NumericSignal(name):
                return parse_unit(self.unit_of(name))[1]
            case syntax.Number(_, unit):
                return parse_unit(unit)[1] if unit else None
            case syntax.Threshold():
                return None if self.threshold is None else self._find_threshold_unit(self.threshold)
            case syntax.Negate(child):
                return self._find_unit(child)
            case syntax.Arithmetic("+" | "-", left, right):
                return self._find_common_unit(left, right, expression)
            case syntax.Arithmetic(operator, left, right):
                first, second = self._find_unit(left), self._find_unit(right)
                if first is None and second is None:
                    return None
                # A literal factor without a unit is a pure number. Division subtracts the powers of the units.
                return (first or ONE).times(second or ONE, 1 if operator == "*" else -1)

    def _find_threshold_unit(self, text: str) -> Unit:
        # Return the unit of the placeholder `threshold`.
        # Raise an error for a unit such as mm: the threshold's number replaces the placeholder without a conversion.
        scale, unit = parse_unit(text)
        if scale != 1:
            remedy = f"convert the threshold to {str(unit)!r}, and write this unit"
            raise FormulaError(f"the unit of `threshold` is {text!r}, but formulas use {str(unit)!r}", remedy=remedy)
        return unit

    def _find_common_unit(self, left: syntax.Expression, right: syntax.Expression, parent: syntax.Node) -> Unit | None:
        # Return the unit of both sides; None if neither has one. If units differ, raise an error that quotes `parent`.
        # A side has no unit if it consists of literals without units, which take the unit of the other side.
        first, second = self._find_unit(left), self._find_unit(right)
        if first is not None and second is not None and first != second:
            verb = "compares" if isinstance(parent, syntax.Compare) else "adds"
            sides = f"`{_text(left)}` [{first}], `{_text(right)}` [{second}]"
            problem = f"`{_text(parent)}` {verb} {first} with {second}: {sides}"
            remedy = "write the unit of a literal, such as `(0.5 m/s)`, or divide by a quantity with a unit"
            raise FormulaError(problem, remedy=remedy)
        return second if first is None else first

    def _refuse_mixture(self, formula: syntax.And | syntax.Or, first: Unit, second: Unit) -> NoReturn:
        # Raise an error for sides with different units. Its remedy is a formula that uses one side only as a condition.
        # `first` and `second` are the units of the sides' margins. The remedy may offer up to three formulas.
        left, right = _find_predicate(formula.left, self, first), _find_predicate(formula.right, self, second)
        connective = "and" if isinstance(formula, syntax.And) else "or"
        problem = f"`{_text(left)}` [{first}] {connective} `{_text(right)}` [{second}]"
        problem += " have different units and no common margin"
        condition, decisive = formula.left, formula.right
        if syntax.has_placeholder(condition):  # a threshold belongs to the side with the margin
            condition, decisive = decisive, condition
        # `gated` has the verdict of the formula, but only the margin of `decisive`: `a and b` equals `!(a -> !b)`.
        if isinstance(formula, syntax.And):
            gated: syntax.Formula = syntax.Not(syntax.Implies(condition, syntax.Not(decisive)))
        else:
            gated = syntax.Implies(syntax.Not(condition), decisive)
        # In `normalized`, each comparison is divided by its limit, so that all margins are pure numbers.
        normalized = syntax.map_predicates(
            formula, lambda node: self._normalize(node, self._find_common_unit(node.left, node.right, node))
        )
        comparisons = [node for node in syntax.walk_nodes(normalized) if isinstance(node, syntax.Compare)]
        alternative = ""  # for example, `a - threshold` cannot be normalized
        with suppress(FormulaError):
            if {self._find_common_unit(node.left, node.right, node) for node in comparisons} <= {None, ONE}:
                alternative = f"; or normalize both: `{_text(normalized)}`"
        usual = ""  # the formula that a user most likely means by `and`
        if isinstance(formula, syntax.And) and isinstance(decisive, syntax.Compare):
            meaning = "where the first part holds, both hold"
            # `_UPPER_OPERATORS` maps `>` to `<`, and `>=` to `<=`.
            if decisive.operator in _UPPER_OPERATORS:
                decisive = replace(decisive, operator=_UPPER_OPERATORS[decisive.operator])
                meaning = "the parts never hold together"
            implication = _text(syntax.Implies(condition, decisive))
            usual = f"`{implication}` ({meaning}); to require both at every record, write "
        remedy = f"write one part as a condition: {usual}`{_text(gated)}`{alternative}"
        raise FormulaError(problem, remedy=remedy)

    def _normalize(self, predicate: syntax.Compare, unit: Unit | None) -> syntax.Compare:
        # Divide both sides of a comparison by the limit if it is a positive literal, else by 1 in the limit's unit.
        # `unit` is the unit of both sides; None if neither has one. For None or 1, the comparison stays unchanged.
        left, right = predicate.left, predicate.right
        if unit is None or unit == ONE:
            return predicate
        limit = right.value if isinstance(right, syntax.Number) and right.value > 0 else 1.0
        scale = syntax.Number(limit, str(unit))

        def divide(side: syntax.Expression) -> syntax.Expression:
            if isinstance(side, syntax.Number):
                return syntax.Number(side.value / scale.value)
            has_threshold = any(isinstance(node, syntax.Threshold) for node in syntax.walk_nodes(side))
            # An expression with `threshold`, or of several literals without units, takes its unit from the other side.
            # So do not divide such an expression.
            if self._find_unit(side) is None or has_threshold:
                return side
            return syntax.Arithmetic("/", side, scale)

        return syntax.Compare(predicate.operator, divide(left), divide(right))


_UPPER_OPERATORS: dict[str, syntax.Comparison] = {">": "<", ">=": "<="}


def _text(node: syntax.Node) -> str:
    # Return the text of a formula or of an expression; `format_formula` accepts both, but declares only formulas.
    return format_formula(cast(syntax.Formula, node))


def _find_predicate(formula: syntax.Formula, check: _UnitCheck, unit: Unit) -> syntax.Compare:
    # Return the first comparison whose margin has this unit; `check` finds the unit of a margin.
    predicates = [node for node in syntax.walk_nodes(formula) if isinstance(node, syntax.Compare)]
    return next(node for node in predicates if check.check_formula(node, in_condition=False)[1] == unit)
