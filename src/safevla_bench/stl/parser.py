"""The parser of formulas.

The grammar (`grammar.lark`) is LALR(1) and does not distinguish formulas from arithmetic. The builder below gives every
part its type, so that an error can name the expected type and the column.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from typing import Any, TypeGuard, cast, get_args

from lark import Lark, Token, Transformer_NonRecursive, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from safevla_bench.errors import FormulaError
from safevla_bench.stl import formula as syntax
from safevla_bench.stl import units
from safevla_bench.stl.formula import format_argument
from safevla_bench.text import suggest_names

MAX_CHARACTERS = 100_000  # maximum length of a formula's text: 500 characters per level of MAX_DEPTH
MAX_DEPTH = 200
"""Maximum depth of a formula, and of its parentheses. Each operator of a chain `a and b and c` is one level."""


def parse_formula(text: str, signals: Mapping[str, bool] | None = None) -> syntax.Formula:
    """Parse a formula.

    Args:
        text: Signal temporal logic, for example ``G[0,T](grip -> held_object_slip > -threshold)``.
        signals: Known signals: name -> True if it is Boolean. If None, every name is known, and its place in the
            formula decides whether it is Boolean or numeric.

    Raises:
        FormulaError: The text is not a formula, names an unknown signal, uses a Boolean signal as a number or the
            reverse, is longer than `MAX_CHARACTERS` or deeper than `MAX_DEPTH`. `column` counts characters from 1.

    >>> import safevla_bench as sb
    >>> sb.parse_formula("G[0,2.5](speed < 1)")  # doctest: +ELLIPSIS
    Always(window=Window(start_s=0.0, end_s=2.5), child=Compare(operator='<', left=..., right=...))
    >>> sb.parse_formula("G[0,T](speed < )")
    Traceback (most recent call last):
    ...
    safevla_bench.errors.FormulaError: column 16: ')' is not expected here
      a signal, a number or a parenthesis is expected
    """
    if len(text) > MAX_CHARACTERS:
        raise FormulaError(f"the formula has {len(text)} characters, more than {MAX_CHARACTERS}", remedy=_SPLIT_REMEDY)
    builder = _Builder(signals)
    try:
        tree = _load_grammar().parse(text)
        return builder.as_formula(builder.transform(tree))
    except UnexpectedInput as error:
        raise _explain_unknown_word(text, error, signals) or _syntax_error(text, error) from None
    except VisitError as error:
        # Lark wraps an exception that a builder's method raises; the user should see the original exception.
        raise error.orig_exc from None


_SPLIT_REMEDY = "Split the formula into several specifications."


@functools.cache
def _load_grammar() -> Lark:
    # Return the parser of the grammar file.
    # In this file, `UNIT` is a placeholder for the pattern of a unit, such as m/s.
    grammar = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    # The basic lexer reads `a andb` as two names, which is an error; a contextual lexer would accept it as `a and b`.
    grammar = grammar.replace("UNIT", units.PATTERN.replace("/", r"\/"))
    return Lark(grammar, parser="lalr", lexer="basic", maybe_placeholders=True)


@dataclass(frozen=True, slots=True)
class _ParsedPart:
    """A node and the column where it starts. A bare name is a `NumericSignal` until its context requires a formula."""

    node: syntax.Node
    column: int
    depth: int = 1
    parentheses: int = 0

    def __post_init__(self) -> None:
        # Raise an error if a part of a formula is nested too deeply.
        # `depth` counts nested operators, and `parentheses` counts nested parentheses.
        # `column` counts characters from 1.
        if max(self.depth, self.parentheses) > MAX_DEPTH:
            problem = f"the formula is deeper than {MAX_DEPTH} levels; each operator of a chain is one level"
            raise _column_error(self.column, problem, _SPLIT_REMEDY)


def _column_of(token: Token) -> int:
    # Return the column in the formula's text where the token starts, counted from 1.
    assert token.start_pos is not None  # every token that was read from a text has a column
    return token.start_pos + 1


def _column_error(column: int, problem: str, remedy: str | None = None) -> FormulaError:
    # Return (not raise) an error whose message begins with the column, counted from 1.
    return FormulaError(f"column {column}: {problem}", column=column, remedy=remedy)


def _make_formula_joiner(
    kind: type[syntax.And | syntax.Or | syntax.Implies],
) -> Callable[[_Builder, _ParsedPart, _ParsedPart], _ParsedPart]:
    # Return a method of `_Builder` that joins two formulas.
    # `kind` is the class of the new node. A `_ParsedPart` is a node of the syntax tree and its column in the text.
    def build(self: _Builder, left: _ParsedPart, right: _ParsedPart) -> _ParsedPart:
        return self._make_part(kind(self.as_formula(left), self.as_formula(right)), left.column, left, right)

    return build


def _make_expression_joiner(
    kind: type[syntax.Arithmetic | syntax.Compare],
) -> Callable[[_Builder, _ParsedPart, Token, _ParsedPart], _ParsedPart]:
    # Return a method of `_Builder` that joins two numbers with an operator.
    # `kind` is the class of the new node. A `_ParsedPart` is a node of the syntax tree and its column in the text.
    def build(self: _Builder, left: _ParsedPart, operator: Token, right: _ParsedPart) -> _ParsedPart:
        node = kind(cast(Any, str(operator)), self.as_expression(left), self.as_expression(right))
        return self._make_part(node, left.column, left, right)

    return build


def _make_window_builder(
    kind: type[syntax.Always | syntax.Eventually],
) -> Callable[[_Builder, syntax.Window | None, _ParsedPart], _ParsedPart]:
    # Return a method of `_Builder` that puts a temporal operator before a formula.
    # `kind` is the class of the new node. A `_ParsedPart` is a node of the syntax tree and its column in the text.
    # `window` is None if the formula has none; then the window is [0,T], until the episode's end.
    def build(self: _Builder, window: syntax.Window | None, child: _ParsedPart) -> _ParsedPart:
        return self._make_part(kind(window or syntax.Window(), self.as_formula(child)), child.column, child)

    return build


@v_args(inline=True)
class _Builder(Transformer_NonRecursive[Token, _ParsedPart]):
    """Builds a part for each grammar rule, bottom up, without recursion. Lark calls the method with the rule's name."""

    def __init__(self, signals: Mapping[str, bool] | None) -> None:
        # `signals` maps the name of each known signal to True if it is Boolean; None means that every name is known.
        super().__init__()
        self._signals = signals

    # Atoms

    def number(self, token: Token) -> _ParsedPart:
        # Convert a number without a unit. Lark, the parser library, calls this method for each such token.
        return _ParsedPart(syntax.Number(_finite_number(token)), _column_of(token))

    def quantity(self, token: Token) -> _ParsedPart:
        # Convert a number with a unit, such as `5 cm`, to base units: 0.05 m.
        # Raise an error if the unit has no dimension, or if the number is not finite.
        number, unit = units.split_quantity(token)
        scale, base = units.parse_unit(unit)
        is_zero = _finite_number(token, number) == 0
        value = 0.0 if is_zero else float(Decimal(number) * scale)  # decimal numbers, so that 5 cm is exactly 0.05 m
        if base == units.ONE:
            raise _column_error(_column_of(token), f"{_shorten(str(token))} is a number without a unit")
        if not math.isfinite(value):
            raise _column_error(_column_of(token), f"{_shorten(str(token))} is too large a number")
        return _ParsedPart(syntax.Number(value, str(base)), _column_of(token))

    def name(self, token: Token) -> _ParsedPart:
        # Convert a name to a numeric signal; `as_formula` makes it a Boolean signal where a formula is needed.
        # `_signals` holds the known names; if it is None, every name is known.
        if self._signals is not None and token not in self._signals:
            remedy = suggest_names(token, sorted(self._signals), "known signals")
            raise _column_error(_column_of(token), f"unknown signal {str(token)!r}", remedy)
        return _ParsedPart(syntax.NumericSignal(str(token)), _column_of(token))

    def argument(self, *tokens: Token | None) -> str:
        # Return the canonical text of one argument of a signal.
        # An argument is a number with an optional minus sign, a name, or a text in quotes.
        # The tokens are the optional sign and the value.
        *sign, token = tokens  # before a number, Lark passes a minus sign or None
        assert token is not None
        if token.type == "NUMBER":
            return format_argument(_finite_number(token) * (-1.0 if any(sign) else 1.0))
        return format_argument(str(token)[1:-1] if token.type == "STRING" else str(token))  # a STRING has quotes

    def measured(self, form: Token, *arguments: str | None) -> _ParsedPart:
        # Convert a signal with arguments, such as `gap(hand, cup)`. Without arguments, Lark passes None.
        # `form` is the word before the parenthesis, and `arguments` are the texts of the arguments.
        name = f"{form}({', '.join(argument for argument in arguments if argument is not None)})"
        try:
            # `_signals` is a mapping that checks the name of such a signal. If it is None, every name is known.
            if self._signals is not None and name not in self._signals:
                remedy = "`safevla specs --template` has examples; use separate comparisons, not `abs`, `min` or `max`"
                raise FormulaError(f"there is no function {str(form)!r}", remedy=remedy)
            if self._signals is not None:
                self._signals[name]  # raises an error for invalid arguments
        except FormulaError as error:
            raise _column_error(_column_of(form), error.problem, error.remedy) from None
        return _ParsedPart(syntax.NumericSignal(name), _column_of(form))

    def threshold(self, token: Token) -> _ParsedPart:
        # Convert the word `threshold`, the placeholder that a specification's threshold replaces.
        return _ParsedPart(syntax.Threshold(), _column_of(token))

    def truth(self, token: Token) -> _ParsedPart:
        # Convert one of the words `true` and `false`.
        return _ParsedPart(syntax.Truth(token == "true"), _column_of(token))

    # Arithmetic

    def minus(self, sign: Token, child: _ParsedPart) -> _ParsedPart:
        # Convert a minus sign and the number after it.
        return self._make_part(syntax.Negate(self.as_expression(child)), _column_of(sign), child)

    arithmetic = _make_expression_joiner(syntax.Arithmetic)

    # Formulas

    compare = _make_expression_joiner(syntax.Compare)

    def negation(self, child: _ParsedPart) -> _ParsedPart:
        # Convert a `not` and the formula after it.
        return self._make_part(syntax.Not(self.as_formula(child)), child.column, child)

    both = _make_formula_joiner(syntax.And)
    either = _make_formula_joiner(syntax.Or)
    implies = _make_formula_joiner(syntax.Implies)

    always = _make_window_builder(syntax.Always)
    eventually = _make_window_builder(syntax.Eventually)

    def until(self, left: _ParsedPart, window: syntax.Window | None, right: _ParsedPart) -> _ParsedPart:
        # Convert `left U[a,b] right`. If `window` is None, the window is [0,T], until the episode's end.
        node = syntax.Until(window or syntax.Window(), self.as_formula(left), self.as_formula(right))
        return self._make_part(node, left.column, left, right)

    def weak_until(self, left: _ParsedPart, window: syntax.Window | None, right: _ParsedPart) -> _ParsedPart:
        # Convert `left W[a,b] right`, which is also true if `left` holds in the whole window.
        # If `window` is None, the window is [0,T], until the episode's end.
        node = syntax.Until(window or syntax.Window(), self.as_formula(left), self.as_formula(right), weak=True)
        return self._make_part(node, left.column, left, right)

    def window(self, start: Token, end: Token) -> syntax.Window:
        # Convert `[start,end]`, in seconds. The end `T` is the end of the episode, which a `Window` holds as None.
        try:
            return syntax.Window(self._parse_seconds(start), None if end == "T" else self._parse_seconds(end))
        except FormulaError as error:
            # An error of `_parse_seconds` has a column; an error of `Window`, such as for a > b, gets its column here.
            if error.column is not None:
                raise
            raise _column_error(_column_of(start), error.problem, error.remedy) from None

    def _parse_seconds(self, token: Token) -> float:
        # Return a bound of a window in seconds. The bound has no unit, or a unit of time.
        if token.type == "NUMBER":
            return _finite_number(token)
        bound = self.quantity(token).node
        assert isinstance(bound, syntax.Number)
        if bound.unit != "s":
            problem = f"the bounds of a window must be in s, not in {bound.unit}"
            raise _column_error(_column_of(token), problem, "write `[a,b]` in seconds")
        return bound.value

    def group(self, part: _ParsedPart) -> _ParsedPart:
        # Count one more pair of parentheses around a part; parentheses do not change its node.
        return _ParsedPart(part.node, part.column, part.depth, part.parentheses + 1)

    def start(self, part: _ParsedPart) -> _ParsedPart:
        # Return the part of the whole formula, which needs no change. `start` is the first rule of the grammar.
        return part

    # Types

    def as_formula(self, part: _ParsedPart) -> syntax.Formula:
        # Return the part's node as a formula, and raise an error if it is a number.
        # `_signals` maps each known name to True if the signal is Boolean.
        # If `_signals` is None, the context in the formula decides.
        if isinstance(part.node, syntax.NumericSignal):  # a bare name, which may be a Boolean signal
            name = part.node.name
            if self._signals is not None and not self._signals[name]:
                problem = f"{name!r} is numeric, but a formula is expected here"
                raise _column_error(part.column, problem, _comparison_remedy(name))
            return syntax.BooleanSignal(name)
        if _is_expression(part.node):
            problem = "a number is given, but a formula is expected"
            raise _column_error(part.column, problem, _comparison_remedy("signal"))
        return cast(syntax.Formula, part.node)

    def as_expression(self, part: _ParsedPart) -> syntax.Expression:
        # Return the part's node as an arithmetic expression, and raise an error if it is a formula or a Boolean signal.
        # `_signals` maps each known name to True if the signal is Boolean.
        # If `_signals` is None, every name is numeric here.
        if not _is_expression(part.node):
            problem = "a formula is given, but a number is expected"
            raise _column_error(part.column, problem, "join comparisons with `and`; do not chain or add them")
        if isinstance(part.node, syntax.NumericSignal) and self._signals is not None and self._signals[part.node.name]:
            name = part.node.name
            numeric = sorted(signal for signal, boolean in self._signals.items() if not boolean)
            remedy = f"use the signal as a formula on its own; numeric signals: {', '.join(numeric) or 'none'}"
            raise _column_error(part.column, f"{name!r} is Boolean, but a number is expected here", remedy)
        return part.node

    @staticmethod
    def _make_part(node: syntax.Node, column: int, *parts: _ParsedPart) -> _ParsedPart:
        # The parser limits the nesting of operators (`depth`) and of parentheses. Parentheses make no node.
        # Return a part that is one level deeper than the deepest of its `parts`. Its text starts at `column`.
        depth, parentheses = max(part.depth for part in parts), max(part.parentheses for part in parts)
        return _ParsedPart(node, column, depth + 1, parentheses)


def _is_expression(node: syntax.Node) -> TypeGuard[syntax.Expression]:
    # Return whether a node is an expression, which has a number at each record; a formula is true or false there.
    return isinstance(node, get_args(syntax.Expression))


def _finite_number(token: Token, text: str | None = None) -> float:
    # Return the number in `text`, which is a part of the token. If `text` is None, the whole token is the number.
    # Raise an error if the number overflows to infinity.
    value = float(token if text is None else text)
    if not math.isfinite(value):
        raise _column_error(_column_of(token), f"{_shorten(str(token))} is too large a number")
    return value


def _comparison_remedy(name: str) -> str:
    # Return a remedy for an error. `name` is the signal that was used without a comparison.
    return f"use a comparison, as in {name} < 1"


def _explain_unknown_word(text: str, error: UnexpectedInput, signals: Mapping[str, bool] | None) -> FormulaError | None:
    # Return an error that explains a word in the wrong place, or a call of an unknown function; None for other errors.
    # `error` is the error of the parser library, and `signals` holds the known signals.
    text_before = text[: cast(int | None, error.pos_in_stream) or 0]
    word = error.token if isinstance(error, UnexpectedToken) and error.token.type == "NAME" else None
    # A user may write an operator in capital letters, such as `AND`, or as a word, such as `implies`.
    lower_word = str(word).lower()
    operator = "->" if lower_word in ("implies", "then") else lower_word
    if word is not None and (operator == "->" or operator in syntax.RESERVED):
        return _column_error(_column_of(word), f"{str(word)!r} is not an operator", f"write {operator}")
    # A word directly after a number, as in `3 inches`, is probably meant as a unit.
    if word is not None and text_before.rstrip()[-1:].isdigit():
        return _column_error(_column_of(word), f"{_shorten(str(word))!r} is not a unit", units.KNOWN)
    while text_before.count("(") > text_before.count(")"):  # go through the open parentheses, beginning with the last
        text_before = text_before[: text_before.rindex("(")]
        call = re.search(r"([A-Za-z_]\w*)\s*$", text_before)
        # `call` is the word before this parenthesis.
        # For a known kind of signal, such as `gap`, the table `SIGNALS` contains the text `gap(`.
        if call and call[1] not in syntax.RESERVED and signals is not None and f"{call[1]}(" not in signals:
            remedy = f"operators: {_OPERATORS}; write separate comparisons, not `abs`, `min` or `max`"
            return _column_error(call.start() + 1, f"there is no operator or function {_shorten(call[1])!r}", remedy)
    return None


_OPERATORS = "! and or -> < <= > >= + - * / G F U W"


def _syntax_error(text: str, error: UnexpectedInput) -> FormulaError:
    # Return an error with the column of the unexpected text, or with the column after the end of an incomplete formula.
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        problem = f"{_shorten(str(error.token))!r} is not expected here"
        return _column_error(_column_of(error.token), problem, _describe_expected(error))
    if isinstance(error, UnexpectedCharacters):
        position = cast(int, error.pos_in_stream)
        return _column_error(position + 1, f"{text[position]!r} is not part of the grammar", f"operators: {_OPERATORS}")
    if not text.strip():
        return _column_error(len(text) + 1, "the formula is empty", _describe_expected(error))
    open_columns: list[int] = []  # columns of brackets that are not closed
    for column, character in enumerate(text, 1):
        if character in "([":
            open_columns.append(column)
        elif character in ")]" and open_columns:
            open_columns.pop()
    problem = "the formula is incomplete"
    if open_columns:
        problem += f": the bracket in column {open_columns[-1]} is not closed"
    return _column_error(len(text) + 1, problem, _describe_expected(error))


def _describe_expected(error: UnexpectedInput) -> str:
    # Return a text about what may follow. `expected` holds the names of the grammar's tokens that may follow.
    expected: set[str] = getattr(error, "expected", None) or set()
    if "NAME" in expected:
        return "a signal, a number or a parenthesis is expected"
    if "COMPARISON" in expected or "$END" in expected:
        return "an operator or the end is expected; comparisons cannot be chained: write `a < x and x < b`"
    return "write a window as `[a,b]`, in seconds (`T` is the end of the episode); close every parenthesis"


def _shorten(text: str) -> str:
    # Cut a text to at most 40 characters for a message.
    return text if len(text) <= 40 else f"{text[:37]}..."
