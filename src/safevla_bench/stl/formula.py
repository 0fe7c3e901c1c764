"""The syntax of signal temporal logic as immutable values.

There are two kinds of node. An `Expression` has a number at each record. A `Formula` has a margin at each record, which
makes it true or false there. Formulas compare by value: `parse_formula(format_formula(formula)) == formula`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, TypeAlias, cast, get_args

from safevla_bench.errors import FormulaError

Comparison: TypeAlias = Literal["<", "<=", ">", ">="]
Operator: TypeAlias = Literal["+", "-", "*", "/"]


@dataclass(frozen=True, slots=True)
class NumericSignal:
    """A numeric signal."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A literal, finite and not negative; `signed_constant` makes expressions of either sign. `unit` consists of the
    base units of `stl.units`, such as m/s; it is "" for a literal without a unit.
    """

    value: float
    unit: str = ""

    def __post_init__(self) -> None:
        # Raise an error unless the literal's value is finite and not negative; -0.0 counts as negative.
        # Unlike a comparison with 0, `copysign` finds the sign of -0.0.
        if not math.isfinite(self.value) or math.copysign(1.0, self.value) < 0:
            raise FormulaError(f"{self.value} is not a valid literal", remedy="literals must be finite and >= 0")


@dataclass(frozen=True, slots=True)
class Threshold:
    """The placeholder that a specification's threshold replaces."""


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus."""

    child: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A binary operation, `left operator right`."""

    operator: Operator
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Window:
    """A closed window, in seconds from the current record. If `end_s` is None, the window ends with the episode."""

    start_s: float = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        # Raise an error unless 0 <= start_s <= end_s < infinity, in s.
        # If `end_s` is None, the window ends with the episode, and only `start_s` is checked.
        end = self.start_s if self.end_s is None else self.end_s
        if not (0 <= self.start_s <= end < math.inf):
            remedy = "a window [a,b] needs 0 <= a <= b, in seconds"
            raise FormulaError(f"the window {format_window(self)} is invalid", remedy=remedy)


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison. Its margin is right - left for `<` and `<=`, and left - right for `>` and `>=`."""

    operator: Comparison
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class BooleanSignal:
    """A Boolean signal. Its margin is plus or minus infinity."""

    name: str


@dataclass(frozen=True, slots=True)
class Truth:
    """`true` or `false`."""

    value: bool


@dataclass(frozen=True, slots=True)
class Not:
    """Negation: the child's margin with the opposite sign."""

    child: Formula


@dataclass(frozen=True, slots=True)
class _Connective:
    left: Formula
    right: Formula


class And(_Connective):
    """Conjunction: the smaller margin of the two sides."""


class Or(_Connective):
    """Disjunction: the greater margin of the two sides."""


@dataclass(frozen=True, slots=True)
class Implies(_Connective):
    """Implication: the margin of `right` while the condition `left` holds, else +inf. The condition holds if its margin
    is > 0, or >= 0 under an odd number of negations. With `plain`, the margin is max(-left, right), as in the paper.
    """

    plain: bool = False


@dataclass(frozen=True, slots=True)
class _Temporal:
    window: Window
    child: Formula


class Always(_Temporal):
    """The smallest margin of the child in the window; +inf if the window contains no record."""


class Eventually(_Temporal):
    """The largest margin of the child in the window; -inf if the window contains no record."""


@dataclass(frozen=True, slots=True)
class Until:
    """`right` is true at a record in the window, and `left` holds from now until just before that record. With `weak`,
    it is enough that `left` holds from now to the end of the window. With `crisp`, the sides have different units. Then
    the margin of `right` becomes +inf if it is >= 0 (> 0 under an odd number of negations), else -inf.
    """

    window: Window
    left: Formula
    right: Formula
    weak: bool = False
    crisp: bool = False


Expression: TypeAlias = NumericSignal | Number | Threshold | Negate | Arithmetic
Formula: TypeAlias = Compare | BooleanSignal | Truth | Not | And | Or | Implies | Always | Eventually | Until
Node: TypeAlias = Expression | Formula
_FIELD_NAMES: Mapping[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind)) for kind in (*get_args(Expression), *get_args(Formula))
}


def child_nodes(node: Node) -> tuple[Node, ...]:
    """Return the direct children of a node, left to right."""
    # `_FIELD_NAMES` maps each class of nodes to the names of its fields.
    # The other fields, such as names, numbers and windows, are not nodes.
    values = (getattr(node, name) for name in _FIELD_NAMES[type(node)])
    return tuple([value for value in values if type(value) in _FIELD_NAMES])


def walk_nodes(node: Node) -> Iterator[Node]:
    """Yield the node and every node below it, parents first."""
    pending = [node]
    while pending:
        parent = pending.pop()
        yield parent
        # `pop` takes the last node, so the children are appended in reverse to come out left to right.
        pending.extend(reversed(child_nodes(parent)))


def signal_names(formula: Formula) -> frozenset[str]:
    """Return the names of all signals that a formula reads."""
    return frozenset(node.name for node in walk_nodes(formula) if isinstance(node, NumericSignal | BooleanSignal))


def is_boolean_only(formula: Formula) -> bool:
    """Return whether the formula has no margin from a comparison; its robustness is then plus or minus infinity."""
    # The margin of a `plain` implication is max(-left, right).
    # In any other implication, the left side (the condition) counts only as true or false.
    # In a crisp `Until`, the right side counts only as true or false.
    match formula:
        case Compare():
            return False
        # Only the margin of `decisive` matters here; the other side counts only as true or false.
        case Implies(_, decisive, plain=False) | Until(_, decisive, _, crisp=True):
            return is_boolean_only(decisive)
        case _:
            return all(is_boolean_only(cast(Formula, part)) for part in child_nodes(formula))


def conditions(formula: Formula) -> Iterator[Formula]:
    """Yield the parts of a formula whose margins do not matter: conditions, and the right sides of crisp `Until`."""
    # An implication that is not `plain` uses its left side only as true or false.
    # A crisp `Until` has sides with different units. It uses its right side only as true or false.
    for node in walk_nodes(formula):
        match node:
            case Implies(part, _, plain=False) | Until(_, _, part, crisp=True):
                yield part


def judged_once(formula: Formula) -> tuple[Formula, ...]:
    """Return the largest parts that neither contain nor lie inside a temporal operator. Record 0 decides such parts."""
    if isinstance(formula, Always | Eventually | Until | Truth):  # a constant formula needs no record
        return ()
    if not any(isinstance(part, Always | Eventually | Until) for part in walk_nodes(formula)):
        return (formula,)
    # The formula itself contains a temporal operator, so look for such parts in its children.
    return tuple(part for child in child_nodes(formula) for part in judged_once(cast(Formula, child)))


def is_plain(formula: Formula) -> bool:
    """Return whether any implication in the formula has the margin max(-left, right)."""
    # Such an implication has `plain` set.
    # Any other implication has the margin of its right side while its left side holds.
    return any(isinstance(node, Implies) and node.plain for node in walk_nodes(formula))


def make_plain(formula: Formula) -> Formula:
    """Return the formula with the margin max(-left, right) in every implication."""
    # `plain` selects this margin. Otherwise, an implication has the margin of its right side while its left side holds.

    def make_node_plain(node: Node) -> Node:
        changed = map_children(node, make_node_plain)
        return replace(changed, plain=True) if isinstance(changed, Implies) else changed

    return cast(Formula, make_node_plain(formula))


def has_placeholder(formula: Formula) -> bool:
    """Return whether the formula contains the placeholder `threshold`."""
    return any(isinstance(node, Threshold) for node in walk_nodes(formula))


def bounded_windows(formula: Formula) -> tuple[Window, ...]:
    """Return the windows of temporal operators, parents first, except [0,T], which needs no control step."""
    # T is the end of the episode, and `Window()` is [0,T].
    windows = (node.window for node in walk_nodes(formula) if isinstance(node, Always | Eventually | Until))
    return tuple(window for window in windows if window != Window())


def signed_constant(value: float) -> Expression:
    """Return the expression for a finite number, which may be negative. Raises `FormulaError` for NaN and infinity."""
    # A `Number` is never negative, so a negative number (also -0.0) becomes a `Negate` of a `Number`.
    # `Number` raises the error.
    return Number(value) if math.copysign(1.0, value) > 0 else Negate(Number(-value))


def substitute_threshold(formula: Formula, threshold: float) -> Formula:
    """Replace `threshold` by a number; a negative number is a `Negate`. Raises `FormulaError` for NaN and infinity."""
    value = signed_constant(threshold)
    return _replace_nodes(formula, lambda node: value if isinstance(node, Threshold) else None)


def map_predicates(formula: Formula, change: Callable[[Compare], Compare]) -> Formula:
    """Replace every comparison of a formula by the result of `change`; everything else is unchanged."""
    return _replace_nodes(formula, lambda node: change(node) if isinstance(node, Compare) else None)


def rename_signals(formula: Formula, names: Mapping[str, str]) -> Formula:
    """Rename numeric signals of a formula; `names` maps old names to new names."""

    def rename(node: Node) -> Node | None:
        return replace(node, name=names.get(node.name, node.name)) if isinstance(node, NumericSignal) else None

    return _replace_nodes(formula, rename)


def _replace_nodes(formula: Formula, change: Callable[[Node], Node | None]) -> Formula:
    """Replace each node for which `change` returns a replacement. Nodes below a replaced node are not visited."""
    # `change` returns None for a node that stays; then the node's children are visited.

    def visit(node: Node) -> Node:
        return change(node) or map_children(node, visit)

    return cast(Formula, visit(formula))


def map_children(node: Node, change: Callable[[Any], Any]) -> Node:
    """Return the node with `change` applied to each of its direct parts."""
    # `_FIELD_NAMES` maps each class of nodes to its fields, in the constructor's order.
    # Fields such as names, numbers and windows are not nodes and stay unchanged.
    values = [getattr(node, name) for name in _FIELD_NAMES[type(node)]]
    return type(node)(*[change(value) if type(value) in _FIELD_NAMES else value for value in values])


def reverse_empty_windows(formula: Formula) -> Formula:
    """Return a formula that treats empty windows in the opposite way: `G` is -inf, and `F` and `U` are +inf. A window
    [a,b] is empty if `F[a,b](true)` is false; it is never empty if a is 0. The returned formula contains `F[a,b](true)`
    where a window may be empty, and is evaluated by the usual rules.
    """
    # G is `Always`, F is `Eventually`, and U is `Until`. `F[a,b](true)` is true if the window [a,b] contains a record.
    reversed_formula = cast(Formula, map_children(formula, reverse_empty_windows))
    match reversed_formula:
        case Always(window, _) if window.start_s > 0:
            return And(Eventually(window, Truth(True)), reversed_formula)
        case Eventually(window, _) | Until(window) if window.start_s > 0:
            return Or(Not(Eventually(window, Truth(True))), reversed_formula)
        case _:
            return reversed_formula


@cache
def cut_off_readings(formula: Formula) -> tuple[Formula, Formula]:
    """Return two formulas. Obligations that are cut off count as kept in the first, and as broken in the second.

    An obligation is a bounded window on the right side of `->`; the episode cuts it off if no record lies at or after
    its end. Without obligations, both results equal the formula.
    """
    # An example is `a -> F[0,2](b)`.
    # If the episode ends less than 2 s after `a` holds, it is unknown whether `b` would follow.
    return _assume_cut_off(formula, is_kept=True, is_due=False), _assume_cut_off(formula, is_kept=False, is_due=False)


def _assume_cut_off(formula: Formula, is_kept: bool, is_due: bool) -> Formula:
    # Return the formula in which obligations that are cut off count as kept (`is_kept`) or as broken.
    # `is_due` is true on the right side of an implication, where each bounded window is an obligation.
    match formula:
        case Compare() | BooleanSignal() | Truth():
            return formula
        case Not(child):  # a negation turns kept into broken
            return Not(_assume_cut_off(child, not is_kept, is_due))
        case Implies(condition, obligation, plain=False):
            return Implies(condition, _assume_cut_off(obligation, is_kept, is_due=True))
    inner = cast(Formula, map_children(formula, lambda part: _assume_cut_off(part, is_kept, is_due)))
    if not is_due or not isinstance(inner, Always | Eventually | Until) or inner.window.end_s is None:
        return inner
    # From here on, `inner` is an obligation: a `G`, `F`, `U` or weak `U` (`W`) with a bounded window.
    reaches_end = Eventually(Window(inner.window.end_s), Truth(True))  # some record is at or after the window's end
    match inner:
        # On the existing records, a `G` without a violation is kept, and an `F` without a success is broken.
        # So only a `G` that counts as broken, and an `F` that counts as kept, must be changed.
        case Always():
            return inner if is_kept else And(inner, reaches_end)
        case Eventually():
            return Or(inner, Not(reaches_end)) if is_kept else inner
        case Until(window, left, _, weak) if weak != is_kept:
            # Suppose that `left` holds in the whole window.
            # A `U` that counts as kept is then also true if it is cut off.
            # A `W` that counts as broken is then only true if `right` is reached, or if the `W` is not cut off.
            lasting = Always(Window(0.0, window.end_s), left)
            return Or(replace(inner, weak=False), And(lasting, Not(reaches_end) if is_kept else reaches_end))
    return inner


@cache
def always_form(formula: Formula) -> Formula:
    """Return a formula with the same margins, with `G` in place of other operators where that is possible. `!F(a)` and
    `a W false` become `G`, and negations move inward to reach `F`. Constants that change nothing are left out. A `G` to
    the episode's end merges with an enclosing `G`.
    """
    return _move_negation(formula, negated=False)


def _move_negation(formula: Formula, negated: bool) -> Formula:
    # Return `always_form` of the formula, or of its negation.
    # G is `Always`, and F is `Eventually`. If `negated`, `and` becomes `or`, `or` becomes `and`, and `F` becomes `G`.
    # A negated `G` stays `not G`.
    match formula:
        case Truth(value):
            return Truth(value != negated)
        case Not(child):
            return _move_negation(child, not negated)
        case And(left, right) | Or(left, right):
            kind = And if isinstance(formula, And) != negated else Or
            return _join(kind, _move_negation(left, negated), _move_negation(right, negated))
        # A condition that is always true has no effect: the implication equals its right side.
        case Implies(condition, decisive) if _move_negation(condition, negated=False) == Truth(True):
            return _move_negation(decisive, negated)
        # not (a -> b) is (a and not b), where `not (a -> false)` is true exactly where `a` holds.
        case Implies(_, decisive) if negated:
            return _join(And, Not(replace(formula, right=Truth(False))), _move_negation(decisive, negated))
        # A `G` stays a `G`, and a negated `F` becomes a `G` of the negated child.
        case Always(window, child) | Eventually(window, child) if isinstance(formula, Always) != negated:
            moved = _move_negation(child, negated)
            if _has_merging_always(window, moved):
                return _merge_always(window, moved)
            return Always(window, Not(child) if negated else child)
        # `a W false` is `G` of `a` from now to the end of the window.
        case Until(window, left, right, weak=True) if not negated and _move_negation(right, False) == Truth(False):
            return _move_negation(Always(Window(0.0, window.end_s), left), negated)
        # `true U b` is `F(b)`, and its negation becomes a `G`.
        case Until(window, left, right, weak=False) if negated and _move_negation(left, False) == Truth(True):
            return _move_negation(Eventually(window, right), negated)
    return Not(formula) if negated else formula


def _join(kind: type[And | Or], left: Formula, right: Formula) -> Formula:
    # Return the sides joined by a connective. If one side is a constant without effect, return only the other side.
    # `kind` is the class `And` or `Or`.
    neutral = Truth(kind is And)  # true in a conjunction, false in a disjunction
    if left == neutral:
        return right
    return left if right == neutral else kind(left, right)


def _has_merging_always(window: Window, formula: Formula) -> bool:
    # Return whether the formula is a `G`, or a conjunction with a `G`, that merges with an enclosing `G` over `window`.
    # The windows of both `G` must end with the episode.
    # One window must start at 0, so that the merged start is the later start.
    if isinstance(formula, And):
        return _has_merging_always(window, formula.left) or _has_merging_always(window, formula.right)
    if not isinstance(formula, Always) or window.end_s is not None or formula.window.end_s is not None:
        return False
    return 0.0 in (window.start_s, formula.window.start_s)


def _merge_always(window: Window, formula: Formula) -> Formula:
    # Return `G` of the formula over the window, merged with the formula's own `G` if possible.
    # The result starts at the later of the two starts, and ends with the episode.
    if not _has_merging_always(window, formula):
        return Always(window, formula)
    if isinstance(formula, And):
        return And(_merge_always(window, formula.left), _merge_always(window, formula.right))
    assert isinstance(formula, Always)
    return Always(Window(max(window.start_s, formula.window.start_s)), formula.child)


def format_formula(formula: Formula) -> str:
    """Return the canonical text of a formula, which `parse_formula` converts back to an equal formula."""
    return _text_and_level(formula)[0]


def format_expression(expression: Expression) -> str:
    """Return the canonical text of an arithmetic expression."""
    return _text_and_level(expression)[0]


# Levels of the operators as in the grammar, from the loosest to the tightest binding.
# A part is put in parentheses if it binds more loosely than the operator around it allows.
_IMPLIES, _OR, _AND, _UNTIL, _PREFIX, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = range(10)


def _text_and_level(node: Node) -> tuple[str, int]:
    # Return the text of a node, and the level of its outermost operator.
    # The levels are integers; a higher level binds more tightly.
    # Each operand of an operator needs a minimum level, else it is put in parentheses.
    # For example, the right side of `a - b` needs a level above that of `-`.
    match node:
        case NumericSignal(name) | BooleanSignal(name):
            return name, _ATOM
        case Number(value, unit):
            return (f"{format_number(value)} {unit}", _SUM) if unit else (format_number(value), _ATOM)
        case Threshold():
            return "threshold", _ATOM
        case Truth(value):
            return ("true" if value else "false"), _ATOM
        case Negate(child):
            return f"-{_parenthesize(child, _UNARY)}", _UNARY
        case Arithmetic(operator, left, right):
            level = _SUM if operator in "+-" else _PRODUCT
            return f"{_parenthesize(left, level)} {operator} {_parenthesize(right, level + 1)}", level
        case Compare(operator, left, right):
            return f"{_parenthesize(left, _SUM)} {operator} {_parenthesize(right, _SUM)}", _COMPARE
        case Not(child):
            return f"!{_parenthesize(child, _ATOM)}", _PREFIX
        case Always(window, child) | Eventually(window, child):
            letter = "G" if isinstance(node, Always) else "F"
            return f"{letter}{format_window(window)}({_text_and_level(child)[0]})", _PREFIX
        case Until(window, left, right):
            letter = "W" if node.weak else "U"
            return f"{_parenthesize(left, _ATOM)} {letter}{format_window(window)} {_parenthesize(right, _ATOM)}", _UNTIL
        case And(left, right):
            return f"{_parenthesize(left, _AND)} and {_parenthesize(right, _UNTIL)}", _AND
        case Or(left, right):
            return f"{_parenthesize(left, _OR)} or {_parenthesize(right, _AND)}", _OR
        case Implies(left, right):
            return f"{_parenthesize(left, _OR)} -> {_parenthesize(right, _IMPLIES)}", _IMPLIES


def _parenthesize(node: Node, loosest_level: int) -> str:
    # Return the text of a node, in parentheses if its outermost operator binds more loosely than `loosest_level`.
    # Levels are integers; a smaller level binds more loosely.
    text, level = _text_and_level(node)
    return text if level >= loosest_level else f"({text})"


def format_number(value: float) -> str:
    """Return the shortest text that converts back to the same float, without a trailing `.0`."""
    return repr(float(value)).removesuffix(".0")


def format_window(window: Window) -> str:
    """Return the window as `[a,b]`, with `T` for the end of the episode."""
    end = "T" if window.end_s is None else format_number(window.end_s)
    return f"[{format_number(window.start_s)},{end}]"


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_name(text: str) -> bool:
    """Return whether a text can be a name without quotes in a formula."""
    # `RESERVED` holds the words of the grammar, such as `and` and `true`.
    return _NAME.fullmatch(text) is not None and text not in RESERVED


RESERVED = frozenset(
    ("G", "F", "U", "W", "T", "always", "eventually", "until", "not", "and", "or", "true", "false", "threshold")
)
"""Keywords of the grammar, which cannot be names."""


def format_argument(argument: str | float) -> str:
    """Return the text of a signal's argument: a number, a name, or a name in quotes if the grammar needs quotes."""
    if isinstance(argument, float):
        return format_number(argument)
    return argument if is_name(argument) else f'"{argument}"'
