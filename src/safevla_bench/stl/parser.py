"""Text to formula.

The grammar (`grammar.lark`) is LALR(1) and reads formulas and arithmetic alike; the builder below then gives every part
its type, so that an error can say which of the two it expected, and at which column.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from typing import TypeGuard, cast

from lark import Lark, Token, Transformer_NonRecursive, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from safevla_bench.errors import FormulaError
from safevla_bench.stl.formula import (
    Always,
    And,
    Arithmetic,
    BooleanSignal,
    Call,
    Compare,
    Comparison,
    Eventually,
    Expression,
    Formula,
    Function,
    Implies,
    Negate,
    Node,
    Not,
    Number,
    Operator,
    Or,
    Signal,
    Threshold,
    Truth,
    Until,
    Window,
)

MAX_DEPTH = 200
"""The deepest formula read, each operator of a chain `a and b and c` being one level; as many parentheses may nest."""


def parse(text: str, signals: Mapping[str, bool] | None = None) -> Formula:
    """The formula that `text` states.

    Args:
        text: Signal temporal logic, for example ``G[0,T](grip -> held_object_slip > -threshold)``.
        signals: The known signals, True where Boolean. Without it every name is known: Boolean where a formula
            stands, numeric where arithmetic does.

    Raises:
        FormulaError: The text is no formula, names an unknown signal, uses a Boolean signal as a number or the
            reverse, or nests deeper than `MAX_DEPTH`. `column` counts characters from 1.

    >>> import safevla_bench as sb
    >>> sb.parse("G[0,2.5](speed < 1)")  # doctest: +ELLIPSIS
    Always(window=Window(start_s=0.0, end_s=2.5), child=Compare(operator='<', left=..., right=...))
    >>> sb.parse("G[0,T](speed < )")
    Traceback (most recent call last):
    ...
    safevla_bench.errors.FormulaError: column 16: ')' is not expected here
      a signal, a number or a parenthesis is due
    """
    builder = _Builder(signals)
    try:
        tree = _lark().parse(text)
        return builder.formula(builder.transform(tree))
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    except VisitError as error:
        # Lark wraps what a builder's method raises; only ours are meant for the user.
        raise error.orig_exc from None


@functools.cache
def _lark() -> Lark:
    grammar = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    # The basic lexer reads `a andb` as two names; a contextual one would see `a and b`.
    return Lark(grammar, parser="lalr", lexer="basic", maybe_placeholders=True)


@dataclass(frozen=True, slots=True)
class _Part:
    """A node and the column where it starts. A bare name is a `Signal` until its place makes it Boolean."""

    node: Node
    column: int
    depth: int = 1
    parentheses: int = 0

    def __post_init__(self) -> None:
        if max(self.depth, self.parentheses) > MAX_DEPTH:
            raise _error(self.column, f"the formula nests deeper than {MAX_DEPTH}", "split it into several")


def _column(token: Token) -> int:
    assert token.start_pos is not None  # as every token read from a text has one
    return token.start_pos + 1


def _error(column: int, problem: str, remedy: str | None = None) -> FormulaError:
    return FormulaError(f"column {column}: {problem}", column=column, remedy=remedy)


@v_args(inline=True)
class _Builder(Transformer_NonRecursive[Token, _Part]):
    """Makes a part of each grammar rule, bottom up and without recursion."""

    def __init__(self, signals: Mapping[str, bool] | None) -> None:
        super().__init__()
        self._signals = signals

    # Atoms

    def number(self, token: Token) -> _Part:
        return _Part(Number(_finite(token)), _column(token))

    def name(self, token: Token) -> _Part:
        if self._signals is not None and token not in self._signals:
            raise _error(_column(token), f"unknown signal {str(token)!r}", _known(token, self._signals))
        return _Part(Signal(str(token)), _column(token))

    def threshold(self, token: Token) -> _Part:
        return _Part(Threshold(), _column(token))

    def truth(self, token: Token) -> _Part:
        return _Part(Truth(token == "true"), _column(token))

    # Arithmetic

    def minus(self, sign: Token, child: _Part) -> _Part:
        return self._part(Negate(self.expression(child)), _column(sign), child)

    def arithmetic(self, left: _Part, sign: Token, right: _Part) -> _Part:
        operator = cast(Operator, str(sign))
        return self._part(Arithmetic(operator, self.expression(left), self.expression(right)), left.column, left, right)

    def call(self, name: Token, *arguments: _Part) -> _Part:
        expressions = tuple(self.expression(argument) for argument in arguments)
        try:
            node = Call(cast(Function, str(name)), expressions)
        except FormulaError as error:
            raise _error(_column(name), error.problem) from None
        return self._part(node, _column(name), *arguments)

    # Formulas

    def compare(self, left: _Part, sign: Token, right: _Part) -> _Part:
        operator = cast(Comparison, str(sign))
        return self._part(Compare(operator, self.expression(left), self.expression(right)), left.column, left, right)

    def negation(self, child: _Part) -> _Part:
        return self._part(Not(self.formula(child)), child.column, child)

    def both(self, left: _Part, right: _Part) -> _Part:
        return self._part(And(self.formula(left), self.formula(right)), left.column, left, right)

    def either(self, left: _Part, right: _Part) -> _Part:
        return self._part(Or(self.formula(left), self.formula(right)), left.column, left, right)

    def implies(self, left: _Part, right: _Part) -> _Part:
        return self._part(Implies(self.formula(left), self.formula(right)), left.column, left, right)

    def always(self, window: Window | None, child: _Part) -> _Part:
        return self._part(Always(window or Window(), self.formula(child)), child.column, child)

    def eventually(self, window: Window | None, child: _Part) -> _Part:
        return self._part(Eventually(window or Window(), self.formula(child)), child.column, child)

    def until(self, left: _Part, window: Window | None, right: _Part) -> _Part:
        node = Until(window or Window(), self.formula(left), self.formula(right))
        return self._part(node, left.column, left, right)

    def window(self, start: Token, end: Token) -> Window:
        try:
            return Window(_finite(start), None if end == "T" else _finite(end))
        except FormulaError as error:
            if error.column is not None:
                raise
            raise _error(_column(start), error.problem, error.remedy) from None

    def group(self, part: _Part) -> _Part:
        return _Part(part.node, part.column, part.depth, part.parentheses + 1)

    def start(self, part: _Part) -> _Part:
        return part

    # Types

    def formula(self, part: _Part) -> Formula:
        """The part where a truth value is due; a bare name becomes a Boolean signal."""
        if isinstance(part.node, Signal):
            name = part.node.name
            if self._signals is not None and not self._signals[name]:
                raise _error(part.column, f"{name!r} is numeric, and a formula is due here", _comparing(name))
            return BooleanSignal(name)
        if _is_expression(part.node):
            raise _error(part.column, "a number stands where a formula is due", _comparing("signal"))
        return cast(Formula, part.node)

    def expression(self, part: _Part) -> Expression:
        """The part where a number is due."""
        if not _is_expression(part.node):
            raise _error(part.column, "a formula stands where a number is due", "comparisons do not chain or add up")
        if isinstance(part.node, Signal) and self._signals is not None and self._signals[part.node.name]:
            name = part.node.name
            numeric = sorted(known for known, boolean in self._signals.items() if not boolean)
            remedy = f"use it as a formula by itself; numeric signals: {', '.join(numeric) or 'none'}"
            raise _error(part.column, f"{name!r} is Boolean, and a number is due here", remedy)
        return part.node

    @staticmethod
    def _part(node: Node, column: int, *parts: _Part) -> _Part:
        depth, parentheses = max(part.depth for part in parts), max(part.parentheses for part in parts)
        return _Part(node, column, depth + 1, parentheses)


def _is_expression(node: Node) -> TypeGuard[Expression]:
    return isinstance(node, Signal | Number | Threshold | Negate | Arithmetic | Call)


def _finite(token: Token) -> float:
    value = float(token)
    if not math.isfinite(value):
        raise _error(_column(token), f"{_short(str(token))} is too large a number")
    return value


def _comparing(name: str) -> str:
    return f"compare it, as in {name} < 1"


def _known(name: str, signals: Mapping[str, bool]) -> str:
    close = get_close_matches(name, signals, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}known signals: {', '.join(sorted(signals)) or 'none'}"


def _syntax_error(text: str, error: UnexpectedInput) -> FormulaError:
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        return _error(_column(error.token), f"{_short(str(error.token))!r} is not expected here", _due(error))
    if isinstance(error, UnexpectedCharacters):
        place = cast(int, error.pos_in_stream)
        known = "operators: ! and or -> < <= > >= + - * / G F U"
        return _error(place + 1, f"{text[place]!r} has no meaning here", known)
    problem = "the formula ends too early" if text.strip() else "the formula is empty"
    return _error(len(text) + 1, problem, _due(error))


def _due(error: UnexpectedInput) -> str:
    """What could stand at the place of a syntax error, in words."""
    due: set[str] = getattr(error, "expected", None) or set()
    if "NAME" in due:
        return "a signal, a number or a parenthesis is due"
    if "HORIZON" in due:
        return "the end of the window is due: seconds, or T for the end of the episode"
    if due == {"NUMBER"}:
        return "the start of the window is due, in seconds"
    if "COMPARISON" in due or "$END" in due:
        return "an operator or the end is due; comparisons do not chain: write a < x and x < b"
    return "a window is [a,b], and every parenthesis is closed"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
