"""The syntax of signal temporal logic: frozen values, and questions about them.

Two kinds of node: an `Expression` is a number at each record, a `Formula` is true or false there, by a margin.
Formulas compare by value, so that `parse(to_text(formula)) == formula`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from safevla_bench.errors import FormulaError

Comparison: TypeAlias = Literal["<", "<=", ">", ">="]
Operator: TypeAlias = Literal["+", "-", "*", "/"]
Function: TypeAlias = Literal["abs", "min", "max"]


@dataclass(frozen=True, slots=True)
class Signal:
    """A numeric signal."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A literal, finite and not negative; `constant` makes one of any sign."""

    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or math.copysign(1.0, self.value) < 0:
            raise FormulaError(f"{self.value} is no literal", remedy="literals are finite and not negative")


@dataclass(frozen=True, slots=True)
class Threshold:
    """The placeholder that a specification's threshold replaces."""


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus."""

    child: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left operator right`."""

    operator: Operator
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """abs of one argument; min or max of two or more."""

    function: Function
    arguments: tuple[Expression, ...]

    def __post_init__(self) -> None:
        count = len(self.arguments)
        if (count != 1) if self.function == "abs" else (count < 2):
            wanted = "one argument" if self.function == "abs" else "two arguments or more"
            raise FormulaError(f"{self.function} takes {wanted}, not {count}")


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds from now, both ends included; `end_s` None = the end of the episode."""

    start_s: float = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        end = self.start_s if self.end_s is None else self.end_s
        if not (0 <= self.start_s <= end < math.inf):
            raise FormulaError(
                f"the window {window_text(self)} is not one", remedy="a window [a,b] has 0 <= a <= b, in seconds"
            )


@dataclass(frozen=True, slots=True)
class Compare:
    """A margin: right - left for `<` and `<=`, left - right for `>` and `>=`."""

    operator: Comparison
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class BooleanSignal:
    """A Boolean signal: plus or minus infinity."""

    name: str


@dataclass(frozen=True, slots=True)
class Truth:
    """`true` or `false`."""

    value: bool


@dataclass(frozen=True, slots=True)
class Not:
    """The margin with its sign flipped."""

    child: Formula


@dataclass(frozen=True, slots=True)
class And:
    """The smaller margin."""

    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class Or:
    """The greater margin."""

    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class Implies:
    """max(-left, right)."""

    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class Always:
    """The smallest margin of the child in the window; +inf where the window holds no record."""

    window: Window
    child: Formula


@dataclass(frozen=True, slots=True)
class Eventually:
    """The greatest margin of the child in the window; -inf where the window holds no record."""

    window: Window
    child: Formula


@dataclass(frozen=True, slots=True)
class Until:
    """`right` comes true in the window, and `left` holds from now until just before that record."""

    window: Window
    left: Formula
    right: Formula


Expression: TypeAlias = Signal | Number | Threshold | Negate | Arithmetic | Call
Formula: TypeAlias = Compare | BooleanSignal | Truth | Not | And | Or | Implies | Always | Eventually | Until
Node: TypeAlias = Expression | Formula


def children(node: Node) -> tuple[Node, ...]:
    """The direct parts of a node, left to right."""
    match node:
        case Negate(child) | Not(child) | Always(_, child) | Eventually(_, child):
            return (child,)
        case Call(_, arguments):
            return arguments
        case Compare(_, left, right) | Arithmetic(_, left, right) | Until(_, left, right):
            return (left, right)
        case And(left, right) | Or(left, right) | Implies(left, right):
            return (left, right)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Every node, parents first."""
    pending = [node]
    while pending:
        here = pending.pop()
        yield here
        pending.extend(reversed(children(here)))


def signals(formula: Formula) -> frozenset[str]:
    """The names of all signals that a formula reads."""
    return frozenset(node.name for node in walk(formula) if isinstance(node, Signal | BooleanSignal))


def boolean_only(formula: Formula) -> bool:
    """Whether no atom is numeric, so that the robustness can only be infinite."""
    return not any(isinstance(node, Compare) for node in walk(formula))


def holds_placeholder(formula: Formula) -> bool:
    """Whether `threshold` still stands in the formula."""
    return any(isinstance(node, Threshold) for node in walk(formula))


def bounded_windows(formula: Formula) -> tuple[Window, ...]:
    """The windows that name a time other than 0 and the horizon: they need the control step."""
    every = (node.window for node in walk(formula) if isinstance(node, Always | Eventually | Until))
    return tuple(window for window in every if window != Window())


def constant(value: float) -> Expression:
    """The expression of a finite number of either sign."""
    return Number(value) if math.copysign(1.0, value) > 0 else Negate(Number(-value))


def substitute(formula: Formula, threshold: float) -> Formula:
    """The formula with `threshold` replaced by a number."""
    value = constant(threshold)

    def within(node: Formula) -> Formula:
        match node:
            case Compare(operator, left, right):
                return Compare(operator, _replaced(left, value), _replaced(right, value))
            case Not(child):
                return Not(within(child))
            case Always(window, child):
                return Always(window, within(child))
            case Eventually(window, child):
                return Eventually(window, within(child))
            case Until(window, left, right):
                return Until(window, within(left), within(right))
            case And(left, right) | Or(left, right) | Implies(left, right):
                return type(node)(within(left), within(right))
            case _:
                return node

    return within(formula)


def _replaced(node: Expression, value: Expression) -> Expression:
    match node:
        case Threshold():
            return value
        case Negate(child):
            return Negate(_replaced(child, value))
        case Arithmetic(operator, left, right):
            return Arithmetic(operator, _replaced(left, value), _replaced(right, value))
        case Call(function, arguments):
            return Call(function, tuple(_replaced(argument, value) for argument in arguments))
        case _:
            return node


def to_text(formula: Formula) -> str:
    """The canonical text, which `parse` reads back to an equal formula."""
    return _text(formula)[0]


def expression_text(expression: Expression) -> str:
    """The canonical text of arithmetic."""
    return _text(expression)[0]


# How tightly an operator binds, as in the grammar; a looser part is put in parentheses.
_IMPLIES, _OR, _AND, _UNTIL, _PREFIX, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = range(10)


def _text(node: Node) -> tuple[str, int]:
    match node:
        case Signal(name) | BooleanSignal(name):
            return name, _ATOM
        case Number(value):
            return number_text(value), _ATOM
        case Threshold():
            return "threshold", _ATOM
        case Truth(value):
            return ("true" if value else "false"), _ATOM
        case Call(function, arguments):
            return f"{function}({', '.join(_text(argument)[0] for argument in arguments)})", _ATOM
        case Negate(child):
            return f"-{_part(child, _UNARY)}", _UNARY
        case Arithmetic(operator, left, right):
            level = _SUM if operator in "+-" else _PRODUCT
            return f"{_part(left, level)} {operator} {_part(right, level + 1)}", level
        case Compare(operator, left, right):
            return f"{_part(left, _SUM)} {operator} {_part(right, _SUM)}", _COMPARE
        case Not(child):
            return f"!{_part(child, _ATOM)}", _PREFIX
        case Always(window, child):
            return f"G{window_text(window)}({_text(child)[0]})", _PREFIX
        case Eventually(window, child):
            return f"F{window_text(window)}({_text(child)[0]})", _PREFIX
        case Until(window, left, right):
            return f"{_part(left, _ATOM)} U{window_text(window)} {_part(right, _ATOM)}", _UNTIL
        case And(left, right):
            return f"{_part(left, _AND)} and {_part(right, _UNTIL)}", _AND
        case Or(left, right):
            return f"{_part(left, _OR)} or {_part(right, _AND)}", _OR
        case Implies(left, right):
            return f"{_part(left, _OR)} -> {_part(right, _IMPLIES)}", _IMPLIES


def _part(node: Node, loosest: int) -> str:
    text, level = _text(node)
    return text if level >= loosest else f"({text})"


def number_text(value: float) -> str:
    """The shortest text that reads back to the same float."""
    return repr(float(value)).removesuffix(".0")


def window_text(window: Window) -> str:
    """`[a,b]`, with T for the horizon."""
    end = "T" if window.end_s is None else number_text(window.end_s)
    return f"[{number_text(window.start_s)},{end}]"
