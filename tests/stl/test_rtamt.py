"""Agreement with RTAMT, an independent monitor, in its offline discrete-time mode.

Found by reading its interpreter (0.4.10) and confirmed here: its until is half-open, its windows are clipped at the end
of the trace and an empty one gives +inf (always) or -inf (eventually, until), as ours. Mapped, because it differs:

- a window is counted in sampling periods, so `[a,b]` seconds become records; `[a,T]` ends at the longest episode;
- it has no Boolean signal: one becomes `signal >= 0` with values of plus and minus infinity;
- it has no unary minus on a signal: `-x` becomes `0 - x`;
- its `evaluate` fails on a trace of one record, so its visitor is asked directly;
- its grammar reads `->` and `until` from the left, ours from the right, so formulas are handed over as trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import rtamt
from rtamt.semantics.enumerations.comp_oper import StlComparisonOperator
from rtamt.semantics.interval.interval import Interval
from rtamt.semantics.stl.discrete_time.offline.interpreter import StlDiscreteTimeOfflineInterpreter
from rtamt.syntax.ast.parser.stl.specification_parser import StlAst
from rtamt.syntax.node.abstract_node import AbstractNode
from rtamt.syntax.node.arithmetic.addition import Addition
from rtamt.syntax.node.arithmetic.multiplication import Multiplication
from rtamt.syntax.node.arithmetic.subtraction import Subtraction
from rtamt.syntax.node.ltl import always, conjunction, constant, disjunction, eventually, implies, neg, predicate, until
from rtamt.syntax.node.ltl.variable import Variable
from rtamt.syntax.node.stl.timed_always import TimedAlways
from rtamt.syntax.node.stl.timed_eventually import TimedEventually
from rtamt.syntax.node.stl.timed_until import TimedUntil

from safevla_bench.stl import evaluation
from safevla_bench.stl.formula import (
    Always,
    And,
    Arithmetic,
    BooleanSignal,
    Compare,
    Eventually,
    Expression,
    Formula,
    Implies,
    Negate,
    Not,
    Number,
    NumericSignal,
    Or,
    Until,
    Window,
    bounded_windows,
    format_formula,
    make_plain,
    walk_nodes,
)
from safevla_bench.stl.parser import parse_formula
from safevla_bench.stl.robustness import trajectory_robustness
from safevla_bench.stl.trace import Trace
from stl.oracle import NUMERIC, FormulaSource, episodes_of, nesting, random_trace

COUNT = 5000
OPERATORS = {"<": "LESS", "<=": "LEQ", ">": "GREATER", ">=": "GEQ"}
ARITHMETIC = {"+": Addition, "-": Subtraction, "*": Multiplication}
TEMPORAL = {
    Always: (always.Always, TimedAlways),
    Eventually: (eventually.Eventually, TimedEventually),
    Until: (until.Until, TimedUntil),
}


def rtamt_tree(formula: Formula, dt_s: float, longest: int) -> AbstractNode:
    def of(part: Formula) -> AbstractNode:
        return rtamt_tree(part, dt_s, longest)

    def temporal(kind: type, window: Window, *parts: AbstractNode) -> AbstractNode:
        untimed, timed = TEMPORAL[kind]
        if window == Window():
            return untimed(*parts)
        first = round(window.start_s / dt_s)
        last = max(first, longest) if window.end_s is None else round(window.end_s / dt_s)
        return timed(*parts, Interval(Fraction(first), Fraction(last), "s", "s"))

    match formula:
        case Compare(operator, left, right):
            sign = StlComparisonOperator[OPERATORS[operator]]
            return predicate.Predicate(rtamt_number(left), rtamt_number(right), sign)
        case BooleanSignal(name):
            return predicate.Predicate(
                Variable(name, iotype="input"), constant.Constant(0.0), StlComparisonOperator.GEQ
            )
        case Not(child):
            return neg.Neg(of(child))
        case And(left, right):
            return conjunction.Conjunction(of(left), of(right))
        case Or(left, right):
            return disjunction.Disjunction(of(left), of(right))
        case Implies(left, right):
            return implies.Implies(of(left), of(right))
        case Always(window, child) | Eventually(window, child):
            return temporal(type(formula), window, of(child))
        case Until(window, left, right, weak):
            until_node = temporal(Until, window, of(left), of(right))
            kept = Always(Window(0.0, window.end_s), left)
            return disjunction.Disjunction(until_node, of(kept)) if weak else until_node
        case _:
            raise AssertionError(formula)


def rtamt_number(expression: Expression) -> AbstractNode:
    match expression:
        case NumericSignal(name):
            return Variable(name, iotype="input")
        case Number(value):
            return constant.Constant(value)
        case Negate(child):
            return Subtraction(constant.Constant(0.0), rtamt_number(child))
        case Arithmetic(operator, left, right):
            return ARITHMETIC[operator](rtamt_number(left), rtamt_number(right))
        case _:
            raise AssertionError(expression)


def rtamt_trajectory(formula: Formula, trace: Trace) -> np.ndarray:
    tree = StlAst()
    tree.specs = [rtamt_tree(formula, float(trace.dt_s[0]), int(np.diff(trace.starts).max()))]
    interpreter = StlDiscreteTimeOfflineInterpreter()
    interpreter.set_ast(tree)
    parts = []
    for episode in episodes_of(trace):
        dataset = {name: list(episode[name]) for name in NUMERIC}
        crisp = [name for name, values in trace.signals.items() if values.dtype == np.bool_]
        dataset |= {name: [np.inf if held else -np.inf for held in episode[name]] for name in crisp}
        interpreter.set_variable_to_ast_from_dataset(dataset)
        (rho,) = interpreter.visitAst(tree, len(dataset["x"]))
        assert len(rho) == len(dataset["x"])
        parts.extend(rho)
    return np.array(parts, np.float64)


def with_truths(formula: Formula, trace: Trace, positive: bool = True) -> tuple[Formula, Trace]:
    """Every condition as a Boolean signal, whose truth is the sign of what RTAMT says of the condition itself."""

    def truth(part: Formula, trace: Trace, strict: bool) -> tuple[Formula, Trace]:
        rho = rtamt_trajectory(part, trace)
        name = f"condition_{len(trace.signals)}"
        holds = rho > 0 if strict else rho >= 0
        return BooleanSignal(name), replace(trace, signals={**trace.signals, name: holds})

    match formula:
        case Implies(left, right):
            condition, trace = with_truths(left, trace, not positive)
            condition, trace = truth(condition, trace, positive)
            right, trace = with_truths(right, trace, positive)
            return Implies(condition, right), trace
        case Until(window, left, right, weak, crisp):
            left, trace = with_truths(left, trace, positive)
            right, trace = with_truths(right, trace, positive)
            if crisp:
                right, trace = truth(right, trace, not positive)
            return Until(window, left, right, weak), trace
        case And(left, right) | Or(left, right):
            left, trace = with_truths(left, trace, positive)
            right, trace = with_truths(right, trace, positive)
            return type(formula)(left, right), trace
        case Not(child):
            child, trace = with_truths(child, trace, not positive)
            return Not(child), trace
        case Always(window, child) | Eventually(window, child):
            child, trace = with_truths(child, trace, positive)
            return type(formula)(window, child), trace
        case _:
            return formula, trace


@dataclass(frozen=True)
class Case:
    formula: Formula
    trace: Trace
    plain: np.ndarray
    """What RTAMT says at every record of max(-a, b) for `a -> b`: its sign is ours."""
    expected: np.ndarray
    """What RTAMT says at every record with conditions as Boolean signals."""


def make_cases(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(20240519)
    for _ in range(count):
        dt_s = float(rng.choice([0.02, 0.05, 0.1, 1 / 3, 1.0]))
        formula = FormulaSource(rng, dt_s).formula(int(rng.integers(1, 5)))
        trace = random_trace(rng, dt_s, rng.choice([1, 2, 3, 5, 8, 13, 21], size=3).tolist())
        yield Case(formula, trace, rtamt_trajectory(formula, trace), rtamt_trajectory(*with_truths(formula, trace)))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(make_cases(COUNT))


def disagreements(cases: list[Case]) -> int:
    return sum(differs(case) for case in cases)


def differs(case: Case) -> bool:
    """Whether the robustness is another; reading beyond the trace counts."""
    try:
        return not np.array_equal(trajectory_robustness(case.formula, case.trace), case.expected)
    except IndexError:
        return True


def test_the_cases_are_hard_enough_to_tell_engines_apart(cases: list[Case]) -> None:
    at_start = np.concatenate([case.expected[case.trace.starts[:-1]] for case in cases])
    demanding = [bool(bounded_windows(case.formula)) or nesting(case.formula) >= 3 for case in cases]
    assert len(cases) >= 3000
    assert len({format_formula(case.formula) for case in cases}) >= 3000
    assert np.mean(demanding) >= 0.5
    assert 0.3 <= np.mean(at_start >= 0) <= 0.7
    assert np.mean(np.isfinite(at_start)) >= 0.5
    assert sum(any(isinstance(node, Until) for node in walk_nodes(case.formula)) for case in cases) >= 300


def test_rtamt_agrees_at_every_record_of_every_episode(cases: list[Case]) -> None:
    wrong = [
        format_formula(case.formula)
        for case in cases
        if not np.array_equal(trajectory_robustness(case.formula, case.trace), case.expected)
    ]
    assert wrong == []


def test_every_verdict_is_that_of_plain_stl(cases: list[Case]) -> None:
    wrong = [
        format_formula(case.formula)
        for case in cases
        if not np.array_equal(trajectory_robustness(case.formula, case.trace) >= 0, case.plain >= 0)
    ]
    assert wrong == []
    assert sum(not np.array_equal(case.plain, case.expected) for case in cases) >= 100


def widened(formula: Formula, by_s: float) -> Formula:
    """The formula with the end of its first bounded window one control step later."""
    if isinstance(formula, Always | Eventually | Until) and formula.window.end_s is not None:
        return replace(formula, window=Window(formula.window.start_s, formula.window.end_s + by_s))
    for field in ("left", "right", "child"):
        part = getattr(formula, field, None)
        if part is not None and not isinstance(formula, Compare) and (other := widened(part, by_s)) != part:
            return replace(formula, **{field: other})
    return formula


def test_a_window_one_step_too_wide_is_caught(cases: list[Case]) -> None:
    mutants = [replace(case, formula=widened(case.formula, float(case.trace.dt_s[0]))) for case in cases]
    mutants = [mutant for mutant, case in zip(mutants, cases, strict=True) if mutant.formula != case.formula]
    assert len(mutants) >= 1000
    assert disagreements(mutants) >= 0.3 * len(mutants)


def off_by_one(original: Callable[..., Any], place: int) -> Callable[..., Any]:
    def wrong(*arguments: Any) -> Any:
        return original(*(value + 1 if index == place else value for index, value in enumerate(arguments)))

    return wrong


@pytest.mark.parametrize(
    ("home", "routine", "place"),
    [
        (evaluation, "fold_spans", 2),
        (evaluation, "fold_spans", 3),
        (evaluation, "fold_until", 2),
        (evaluation, "fold_until", 3),
        (evaluation, "_clip_steps", 2),
    ],
    ids=["window-start", "window-end", "until-start", "until-end", "step-rows"],
)
def test_an_off_by_one_in_a_window_routine_is_caught(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch, home: Any, routine: str, place: int
) -> None:
    some = cases[:500]
    assert disagreements(some) == 0
    monkeypatch.setattr(home, routine, off_by_one(getattr(home, routine), place))
    assert disagreements(some) >= 5


@pytest.mark.parametrize(
    "text",
    [
        "always(eventually[0,2](x > 1))",
        "(x > 0) until[1,3] (y < 2)",
        "not (x > 1) and y < 2 or z > 0",
        "x > 1 or y < 2 -> z > 0",
        "always[0:4](x + y * z - 2 < 3)",
        "x > 5 and y < 2 until z > 3",
    ],
)
def test_rtamts_own_reading_of_a_text_gives_the_same(text: str) -> None:
    """Precedence: not, then until, then and, or, and -> last. Implications are read as RTAMT reads them."""
    trace = random_trace(np.random.default_rng(7), 1.0, [9])
    specification = rtamt.StlDiscreteTimeSpecification()
    for name in NUMERIC:
        specification.declare_var(name, "float")
    specification.spec = text
    specification.parse()
    dataset = {name: trace.signals[name].tolist() for name in NUMERIC} | {"time": list(range(9))}
    theirs = [rho for _, rho in specification.evaluate(dataset)]
    assert trajectory_robustness(make_plain(parse_formula(text)), trace).tolist() == theirs
