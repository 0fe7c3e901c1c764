"""Edges of the semantics, verdicts and errors; test_laws and test_rtamt compare with the definitions at large."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import ArrayLike

from safevla_bench.errors import FormulaError, SignalError
from safevla_bench.stl.evaluation import group_by_step, violating_records
from safevla_bench.stl.formula import (
    Always,
    Not,
    Or,
    Truth,
    Until,
    Window,
    always_form,
    make_plain,
    substitute_threshold,
)
from safevla_bench.stl.parser import parse_formula
from safevla_bench.stl.robustness import (
    hangs_on_empty_window,
    judge_formula,
    robustness,
    settle_unknown,
    trajectory_robustness,
)
from safevla_bench.stl.trace import Trace
from stl.oracle import KNOWN, FormulaSource, literal_trajectory, random_trace

INF = float("inf")
NAN = float("nan")


def trace_of(*lengths: int, dt_s: ArrayLike = 1.0, **signals: ArrayLike) -> Trace:
    """Episodes one after the other; one episode if no lengths are given."""
    arrays = {name: np.asarray(values) for name, values in signals.items()}
    arrays = {name: values if values.dtype == np.bool_ else values.astype(float) for name, values in arrays.items()}
    sizes = lengths or (len(next(iter(arrays.values()))),)
    return Trace(arrays, np.concatenate([[0], np.cumsum(sizes)]), np.full(len(sizes), dt_s))


@pytest.mark.parametrize("widest", [2, 9, 40])
def test_until_with_wide_and_narrow_windows_is_what_its_definition_says(widest: int) -> None:
    rng = np.random.default_rng(widest)
    source = FormulaSource(rng, 0.05, widest=widest)
    trace = random_trace(rng, 0.05, [1, 2, 7, 16, 17, 33])
    for _ in range(15):
        formula = Until(source.window(), source.formula(0), source.formula(0))
        assert np.array_equal(trajectory_robustness(formula, trace), literal_trajectory(formula, trace))


def test_episodes_of_different_control_steps_are_each_judged_by_their_own() -> None:
    rng = np.random.default_rng(5)
    trace = random_trace(rng, 0.1, [5, 1, 9, 12, 30, 2])
    trace = Trace(trace.signals, trace.starts, np.array([0.1, 0.05, 0.2, 0.1, 0.05, 0.2]))
    for _ in range(60):
        formula = FormulaSource(rng, 0.2, widest=3).formula(2)
        alone = [trace.select_episodes(np.array([episode])) for episode in range(len(trace))]
        expected = np.concatenate([trajectory_robustness(formula, part) for part in alone])
        assert np.array_equal(trajectory_robustness(formula, trace), expected)
        assert np.array_equal(expected, literal_trajectory(formula, trace))
        assert np.array_equal(robustness(formula, trace), expected[trace.starts[:-1]])
        verdicts, verdict = [judge_formula(formula, part) for part in alone], judge_formula(formula, trace)
        for field in ("rho", "extreme", "first_violation"):
            together = np.concatenate([getattr(part, field) for part in verdicts])
            assert np.array_equal(getattr(verdict, field), together, equal_nan=True)


@pytest.mark.parametrize(
    ("text", "stamps", "groups"),
    [
        ("G(x < 1)", None, [[0, 1, 2, 3]]),
        ("G[0,T](x < 1) and F p", None, [[0, 1, 2, 3]]),
        ("G[0,0.2](x < 1)", None, [[1, 3], [0], [2]]),
        ("G[1,T](x < 1)", [NAN, 0.0, NAN, 0.0], [[0], [2], [1, 3]]),
        ("G[1,T](x < 1)", [0.0] * 4, [[0, 1, 2, 3]]),
    ],
)
def test_episodes_are_grouped_by_the_control_step_if_windows_count_steps(
    text: str, stamps: list[float] | None, groups: list[list[int]]
) -> None:
    trace = trace_of(1, 1, 1, 1, dt_s=[0.1, 0.05, 0.2, 0.05], x=[0.0] * 4, p=[True] * 4)
    if stamps is not None:
        trace = Trace(trace.signals, trace.starts, trace.dt_s, time_s=np.array(stamps))
    found = list(group_by_step(parse_formula(text), trace))
    assert [episodes.tolist() for episodes, _ in found] == groups
    assert [group.dt_s.tolist() for _, group in found] == [trace.dt_s[episodes].tolist() for episodes in groups]
    assert [group.time_s is not None for _, group in found] == [
        stamps is not None and not np.isnan(stamps[episodes[0]]) for episodes in groups
    ]


@pytest.mark.parametrize(
    ("text", "rho", "first"),
    [
        ("F[0,0.6](x > 0)", [2.0, 3.0], [-1, -1]),
        ("G[0.4,1](x < 1)", [-1.0, -2.0], [2, 1]),
        ("G[0.25,T](p -> x < 2)", [-1.0, -1.0], [3, 1]),
        ("G[0.4,1](F[0,1](x > 4))", [-2.0, -1.0], [2, 1]),
    ],
)
def test_a_window_from_record_0_holds_the_records_whose_stamps_lie_in_it(
    text: str, rho: list[float], first: list[int]
) -> None:
    trace = trace_of(4, 2, x=[0, 1, 2, 3, 1, 3], p=[True, False, True, True, True, True])
    stamped = Trace(trace.signals, trace.starts, trace.dt_s, time_s=np.array([0.0, 0.3, 0.5, 2.0, 7.0, 7.4]))
    verdict = judge_formula(parse_formula(text), stamped)
    assert robustness(parse_formula(text), stamped).tolist() == verdict.rho.tolist()
    assert (verdict.rho.tolist(), verdict.first_violation.tolist()) == (rho, first)


@pytest.mark.parametrize(("late_s", "first"), [(3e-10, 2), (1e-9, -1)])
def test_a_stamp_misses_a_bound_by_at_most_a_billionth_of_a_step(late_s: float, first: int) -> None:
    """A billionth of the median step of 0.5 s is 5e-10 s."""
    trace = trace_of(3, x=[0, 0, 3])
    stamped = Trace(trace.signals, trace.starts, trace.dt_s, time_s=np.array([0.0, 0.5, 1.0 + late_s]))
    assert judge_formula(parse_formula("G[0,1](x < 1)"), stamped).first_violation.tolist() == [first]


SAME_AS_G = [
    "!F[0,T](x >= 2)",
    "not not G(x < 2)",
    "!(false or F(x > 2))",
    "!(true -> F(x > 2))",
    "!(true U x > 2)",
    "true -> G(x < 2)",
    "G(G(x < 2))",
    "G[0,T](!F(x > 2 and true))",
    "G(x < 2) or false",
    "true and G(x < 2)",
    "(x < 2) W false",
    "!(F(x > 2) or F(x > 7))",
]


@pytest.mark.parametrize("text", SAME_AS_G)
def test_a_formula_that_means_g_has_its_first_violation_and_margin(text: str) -> None:
    trace = trace_of(4, 3, x=[0, 1, 3, 5, 1, 1, 0])
    verdict = judge_formula(parse_formula(text), trace)
    assert (verdict.rho.tolist(), verdict.first_violation.tolist()) == ([-3.0, 1.0], [2, -1])
    violating = violating_records(parse_formula(text), trace)
    assert violating is not None
    assert np.flatnonzero(violating).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("!(p -> F(x > 2))", 2),  # p and G(x <= 2)
        ("!(q -> F(x > 2))", 0),  # q and G(x <= 2), and q fails in record 0
        ("G(x < 4 and G[0.2,T](x < 1))", 2),
        ("G[0.1,T](G[0.1,T](x < 2))", 1),  # two starts do not merge: from record 1 on, the inner G fails
        ("p -> G(x < 2)", 0),  # a condition of record 0, about the whole
    ],
)
def test_another_formula_is_violated_where_its_parts_are(text: str, first: int) -> None:
    trace = trace_of(x=[0, 1, 3, 5], p=[True] * 4, q=[False] * 4, dt_s=0.1)
    assert judge_formula(parse_formula(text), trace).first_violation.tolist() == [first]


def test_the_form_with_g_has_the_same_margins() -> None:
    rng = np.random.default_rng(11)
    trace = random_trace(rng, 0.05, [1, 2, 7, 16])
    for _ in range(400):
        formula = FormulaSource(rng, 0.05).formula(3)
        formula = [formula, Not(formula), Or(formula, Truth(False)), Always(Window(), formula)][rng.integers(4)]
        normal = always_form(formula)
        assert always_form(normal) == normal
        rho = robustness(formula, trace)
        assert rho.tobytes() == robustness(normal, trace).tobytes() == judge_formula(formula, trace).rho.tobytes()
        assert np.array_equal(rho < 0, judge_formula(formula, trace).first_violation >= 0)


OFF = [("0.07", "0.05"), ("0.09", "0.1"), ("0.0500001", "0.05"), ("0.0499999", "0.05"), ("1e-3", "0")]


@pytest.mark.parametrize(("bound", "nearest"), OFF)
def test_a_window_off_the_control_step_is_refused_with_both_numbers(bound: str, nearest: str) -> None:
    """Above a multiple and below one alike; the remedy is the nearest."""
    says = rf"{float(bound)!r} s is not a multiple of the control step dt = 0\.05 s\n.*nearest multiple is {nearest} s"
    with pytest.raises(FormulaError, match=says):
        robustness(parse_formula(f"F[{bound},1] p"), trace_of(p=[True], dt_s=0.05))


@pytest.mark.parametrize(("bound", "dt_s"), [("0.15", 0.05), ("0.3", 0.1), ("0.6", 0.2), ("0.35", 0.05), ("2", 1 / 3)])
def test_rounding_of_a_multiple_is_not_refused(bound: str, dt_s: float) -> None:
    steps = round(float(bound) / dt_s)
    trace = trace_of(x=np.arange(10), dt_s=dt_s)
    assert robustness(parse_formula(f"F[{bound},{bound}](x > 0)"), trace).tolist() == [steps]


def test_an_unbounded_formula_needs_no_control_step() -> None:
    assert robustness(parse_formula("G(x < 3)"), trace_of(x=[1.0], dt_s=0.0333)).tolist() == [2.0]


# Verdicts

VALUES = [1.0, 5.0, 2.0, 7.0, -3.0, 4.0]
GATE = np.array([True, False, True, False, False, True])


@pytest.mark.parametrize(
    ("text", "rho", "extreme", "first"),
    [
        ("G(x < 6)", -1.0, 7.0, 3),
        ("G(x < 5)", -2.0, 7.0, 3),  # at the limit in record 1
        ("G(x > 1)", -4.0, -3.0, 4),
        ("G(x + 0 < 5)", -2.0, NAN, 3),
        ("G(x <= 7)", 0.0, 7.0, -1),
        ("G(x > -3)", 0.0, -3.0, -1),
        ("G(x >= 0)", -3.0, -3.0, 4),
        ("G(6 > x)", -1.0, 7.0, 3),
        ("G(0 < x)", -3.0, -3.0, 4),
        ("G(x < -2)", -9.0, 7.0, 0),
        ("G(x > -(2 - 1))", -2.0, -3.0, 4),
        ("G[0,2](x < 4)", -1.0, 5.0, 1),
        ("G[2,3](x < 4)", -3.0, 7.0, 3),
        ("G[2,T](x < 1)", -6.0, 7.0, 2),
        ("G[8,9](x < 4)", INF, NAN, -1),
        ("G(p -> x < 3)", -1.0, 4.0, 5),
        ("G(p -> x < 5)", 1.0, 4.0, -1),
        ("G(p -> x > 3)", -2.0, 1.0, 0),
        ("G(!p -> 4 > x)", -3.0, 7.0, 1),
        ("G[1,4](p -> x < 1)", -1.0, 2.0, 2),
        ("G[3,4](p -> x < 1)", INF, NAN, -1),
        ("G(false -> x < 1)", INF, NAN, -1),
        # A numeric gate is open or closed, and no margin is its own.
        ("G((p and y > 0) -> x < 1)", -3.0, 4.0, 5),
        ("G((y > 0.5) -> x < 3)", -4.0, 7.0, 1),
        ("G((y > 3) -> x < 3)", INF, NAN, -1),
        ("G((y >= 1) -> x < 3)", INF, NAN, -1),  # at the limit it has no margin above zero, as in plain STL
        # Other shapes have no single worst value.
        ("G(x + 0 < 6)", -1.0, NAN, 3),
        ("G(x < y)", -6.0, NAN, 0),
        ("G(x < y + 1)", -5.0, NAN, 1),
        ("G(1 + y > x)", -5.0, NAN, 1),
        ("G(x < 6 and p)", -INF, NAN, 1),
        ("G(F[0,1](x > 5))", -1.0, NAN, 4),
        ("G p", -INF, NAN, 1),
        ("G(!p or x < 3)", -1.0, NAN, 5),
        ("G(x < 6) and G(p -> x > 3)", -2.0, NAN, 0),
        ("G(p -> x > 3) and G(x < 6)", -2.0, NAN, 0),
        ("G(x < 6) and G(p -> x < 3)", -1.0, NAN, 3),
        ("G(x < 9) and G(p -> x < 3)", -1.0, NAN, 5),
        ("G(x < 9) and G(x > -9)", 2.0, NAN, -1),
        ("F(x > 9)", -2.0, NAN, 0),
        ("x < 0", -1.0, NAN, 0),
        ("!G(x < 9)", -2.0, NAN, 0),
        ("x > 0", 1.0, NAN, -1),
        ("x < 1", 0.0, NAN, -1),
        ("F(x > 7)", 0.0, NAN, -1),
    ],
)
def test_robustness_worst_value_and_first_violation(text: str, rho: float, extreme: float, first: int) -> None:
    trace = trace_of(x=VALUES, y=[0, 1, 0, 1, 0, 1], p=GATE)
    # A neighbor on either side shows that nothing leaks from one episode into the next.
    batch = trace_of(1, 6, 2, x=[99, *VALUES, -99, 99], y=[9, 0, 1, 0, 1, 0, 1, 9, 9], p=[True, *GATE, True, True])
    for verdict, place in (
        (judge_formula(parse_formula(text), trace), 0),
        (judge_formula(parse_formula(text), batch), 1),
    ):
        assert verdict.rho[place] == rho
        assert np.array_equal(verdict.extreme[place], extreme, equal_nan=True)
        assert verdict.first_violation[place] == first


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_no_verdict_is_a_negative_zero(zero: float) -> None:
    trace = trace_of(x=[zero, zero])
    for text in ("G(x < 0)", "G(x > 0)", "G(0 < -x)", "!(x < 0)", "F(!(x < 0))"):
        assert not np.signbit(robustness(parse_formula(text), trace))[0]
        assert not np.signbit(trajectory_robustness(parse_formula(text), trace)).any()


def test_no_episodes_no_verdicts() -> None:
    empty = Trace({"x": np.empty(0), "p": np.empty(0, np.bool_)}, np.array([0]), np.empty(0))
    for text in ("G(x < 1)", "G(p -> x < 1)", "F[1,2] p", "p U q"):
        assert judge_formula(parse_formula(text), empty).rho.shape == (0,)
        assert trajectory_robustness(parse_formula(text), empty).shape == (0,)


# Errors


@pytest.mark.parametrize(
    "text",
    [
        "G(x < 3)",
        "G(p -> x < 3)",
        "G(!p -> x < 3)",
        "G(false -> x < 3)",
        "G[0,1](x < 3)",
        "G[1,1](x < 3)",
        "F(x < 3)",
        "x < 3",
        "G(x + 1 < 3)",
        "G(p or x < 3)",
        "x < 3 U p",
    ],
)
def test_nan_is_an_error_wherever_it_is(text: str) -> None:
    """Also behind a closed gate and outside the window: nobody knows what the signal was."""
    for place, where in ((0, "record 0 of episode 0"), (3, "record 1 of episode 1"), (5, "record 3 of episode 1")):
        values = np.arange(6.0)
        values[place] = NAN
        trace = trace_of(2, 4, x=values, p=[True, False] * 3)
        for judged in (robustness, trajectory_robustness, judge_formula):
            with pytest.raises(SignalError, match=rf"NaN.* {where}"):
                judged(parse_formula(text), trace)
        other = trace.select_episodes(np.array([place >= 2, place < 2]))
        assert np.isfinite(robustness(parse_formula("G(x < 3)"), other)).all()


@pytest.mark.parametrize(
    ("text", "rho", "first", "settled"),
    [
        ("G(x < y)", 1.0, -1, 1.0),
        ("G(x > 2)", -2.0, 0, -2.0),
        ("G(x < 2)", 2.0, -1, 2.0),
        ("G(x - y < 0)", 1.0, -1, 1.0),
        ("G(!(x > 2))", 2.0, -1, 2.0),
        ("G[1,1](x < 2)", INF, -1, INF),  # nothing is measured there: vacuous
        ("G(x > 2 -> z < 2)", INF, -1, INF),  # ... nor does a condition hold
        ("G(x < 2 -> z < 2)", 1.0, -1, 1.0),
        ("F(x > 1)", INF, -1, None),  # ... and it is no witness
        ("F(x < 1)", INF, -1, 1.0),
        ("z < 4 U x > 1", 3.0, -1, None),
    ],
)
def test_a_comparison_with_an_infinite_value_is_left_out(
    text: str, rho: float, first: int, settled: float | None
) -> None:
    trace = trace_of(x=[0.0, INF], y=[1.0, INF], z=[1.0, 3.0])
    verdict = judge_formula(parse_formula(text), trace)
    assert (verdict.rho.tolist(), verdict.first_violation.tolist()) == ([rho], [first])
    margin, is_silent = settle_unknown(parse_formula(text), trace, verdict.rho)
    assert is_silent.tolist() == [settled is None]
    assert settled is None or margin.tolist() == [settled]


def test_a_signal_that_is_always_infinite_measures_nothing() -> None:
    for text in ("G(x < 2)", "G(p -> x < 2)"):
        verdict = judge_formula(parse_formula(text), trace_of(x=[INF, INF], p=[True, True]))
        assert (verdict.rho.tolist(), verdict.first_violation.tolist()) == ([INF], [-1])
        assert np.isnan(verdict.extreme).all()


def test_the_margin_of_a_numeric_gate_counts_if_the_implication_is_plain() -> None:
    trace = trace_of(2, 2, x=[3, 5, 0, 3], y=[0.5, -1, 2, 0.25])
    formula = parse_formula("G(y > 0 -> x < 1)")
    assert robustness(formula, trace).tolist() == [-2.0, -2.0]
    assert robustness(make_plain(formula), trace).tolist() == [-0.5, -0.25]


def test_nan_in_a_signal_that_is_not_read_is_not_an_error() -> None:
    assert robustness(parse_formula("G(x < 3)"), trace_of(x=[1.0], y=[NAN])).tolist() == [2.0]


def test_nan_among_episodes_of_several_control_steps_is_named_by_the_callers_number() -> None:
    trace = Trace({"x": np.array([0.0, NAN])}, np.array([0, 1, 2]), np.array([0.1, 0.05]))
    with pytest.raises(SignalError, match="episode 1"):
        robustness(parse_formula("G[0,0.1](x < 3)"), trace)


@pytest.mark.parametrize("text", ["G(1 / x < 3)", "G(x / x < 3)", "G(x * 1e308 * 1e308 < 3)", "G(x < 1 / 0)"])
def test_arithmetic_that_leaves_the_numbers_is_an_error(text: str) -> None:
    with pytest.raises(SignalError, match="zero or overflows"):
        robustness(parse_formula(text), trace_of(x=[2.0, 0.0]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("G(speed < 1)", "signal 'speed'"),
        ("G(x)", "'x' is numeric"),
        ("G(p < 1)", "'p' holds bool"),
        ("G(p + 1 < 1)", "'p' holds bool"),
    ],
)
def test_a_signal_that_is_missing_or_of_the_other_kind_is_an_error(text: str, says: str) -> None:
    with pytest.raises(SignalError, match=says):
        robustness(parse_formula(text), trace_of(x=[1.0], p=[True]))


def test_a_missing_signal_is_an_error_that_lists_those_of_the_trace() -> None:
    for signals, listed in (({"y": [1.0], "x": [1.0]}, ": x, y$"), ({}, ": none$")):
        arrays = {name: np.array(values) for name, values in signals.items()}
        with pytest.raises(SignalError, match=listed):
            robustness(parse_formula("G(speed < 1)"), Trace(arrays, np.array([0, 1]), np.ones(1)))


@pytest.mark.parametrize("text", ["G(x < threshold)", "F(x + threshold < 1)"])
def test_a_threshold_must_be_substituted_first(text: str) -> None:
    trace = trace_of(x=[1.0])
    with pytest.raises(FormulaError, match="`threshold` has"):
        robustness(parse_formula(text), trace)
    assert np.isfinite(robustness(substitute_threshold(parse_formula(text), 2.0), trace)).all()


@pytest.mark.parametrize(
    ("starts", "dt_s", "says"),
    [
        ([0, 2, 2, 3], [1.0] * 3, "without records"),
        ([0, 2, 1, 3], [1.0] * 3, "without records"),
        ([1, 3], [1.0], "offsets"),
        ([0, 3], [1.0] * 2, "offsets"),
        ([0, 2], [1.0], r"shape \(3,\)"),
    ],
)
def test_a_trace_that_does_not_fit_together_is_refused(starts: list[int], dt_s: list[float], says: str) -> None:
    with pytest.raises(SignalError, match=says):
        Trace({"x": np.zeros(3)}, np.array(starts), np.array(dt_s))


def test_episodes_are_selected_by_mask_or_by_index() -> None:
    trace = random_trace(np.random.default_rng(2), 0.1, [3, 1, 4])
    chosen = trace.select_episodes(np.array([True, False, True]))
    assert chosen.starts.tolist() == [0, 3, 7]
    for name in KNOWN:
        expected = np.concatenate([trace.signals[name][:3], trace.signals[name][4:]])
        assert np.array_equal(chosen.signals[name], expected)
    turned = trace.select_episodes(np.array([2, 0]))
    assert np.array_equal(turned.signals["x"], np.concatenate([trace.signals["x"][4:], trace.signals["x"][:3]]))
    assert len(trace.select_episodes(np.zeros(3, np.bool_))) == 0
    assert trace.select_episodes(np.ones(3, np.bool_)) is trace.select_episodes(np.arange(3)) is trace
    assert trace.select_episodes(np.array([0, 1])).starts.tolist() == [0, 3, 4]


def test_selected_episodes_keep_their_stamps_and_what_is_known_of_them() -> None:
    x, is_unknown = np.array([NAN, 1.0, 2.0, NAN, 4.0]), np.array([True, False, False, False, True])
    trace = Trace({"x": x}, np.array([0, 1, 3, 5]), np.array([0.1, 0.2, 0.3]), {"x": is_unknown},
                  np.arange(5.0), {"x": np.array([True, False, False])})  # fmt: skip
    turned = trace.select_episodes(np.array([2, 0]))
    assert (turned.dt_s.tolist(), turned.starts.tolist()) == ([0.3, 0.1], [0, 2, 3])
    assert turned.unknown["x"].tolist() == [False, True, True]
    assert turned.time_s is not None
    assert turned.time_s.tolist() == [3.0, 4.0, 0.0]
    assert turned.rounding(["x", "y"]).tolist() == [1e-9, 1e-4]
    assert turned.rounding(["y"]).tolist() == [1e-9, 1e-9]
    assert trace.record_rows(np.array([2, 0])).tolist() == [3, 4, 0]
    assert trace.record_rows(np.array([], np.int64)).tolist() == []
    assert trace.is_undefined("x").tolist() == [False, False, True]
    assert Trace({"x": x}, trace.starts, trace.dt_s).is_undefined("x").tolist() == [True, False, True]


@pytest.mark.parametrize(
    "text", ["G[0,T](x < 2.5)", "G[3,T](x > -2.5)", "G[0,T](p -> x < 1.5)", "G[2,400](p -> x > -2)"]
)
def test_more_records_than_a_cache_holds_are_judged_as_each_episode_alone(text):
    """By a loop over the episodes that cuts each one's window and asks numpy for its extreme and its first violation.

    One episode is longer than two blocks of the cache, some are a single record, and about half are violated.
    """
    generator = np.random.default_rng(3)
    lengths = [*generator.integers(1, 900, 150).tolist(), 150_000, *[1] * 40, *generator.integers(1, 900, 150).tolist()]
    count = sum(lengths)
    x, p = generator.normal(size=count), np.repeat(generator.uniform(size=count // 20 + 1) < 0.4, 20)[:count]
    bound, upper = float(text.split()[-1].rstrip(")")), "<" in text
    window = slice(int(text[2]), None if "T" in text else 401)
    verdict = judge_formula(parse_formula(text), trace_of(*lengths, x=x, p=p))
    starts = np.cumsum([0, *lengths])
    for e, (a, b) in enumerate(pairwise(starts.tolist())):
        watched = p[a:b].copy() if "p" in text else np.ones(b - a, dtype=np.bool_)
        watched[: window.start], watched[b - a if window.stop is None else window.stop :] = False, False
        margins = (bound - x[a:b] if upper else x[a:b] - bound)[watched]
        failing = np.flatnonzero(watched & ((x[a:b] > bound) if upper else (x[a:b] < bound)))
        assert verdict.rho[e] == margins.min(initial=INF)
        assert verdict.first_violation[e] == (failing[0] if len(failing) else -1)


@pytest.mark.parametrize("row", [0, 70_000, 199_999])
def test_a_nan_is_found_wherever_it_lies_among_many_records(row):
    x, p = np.zeros(200_000), np.arange(200_000) % 50 < 20
    x[row] = NAN
    trace = trace_of(*[2000] * 100, x=x, p=p)
    for text in ("G(x < 1)", "G(p -> x < 1)"):
        with pytest.raises(SignalError, match=f"record {row % 2000} of episode {row // 2000} "):
            judge_formula(parse_formula(text), trace)


@pytest.mark.parametrize(("known", "is_silent"), [([False, True], False), ([False, False], True)])
def test_a_binary_rule_is_decided_where_a_record_is_known(known: list[bool], is_silent: bool) -> None:
    """Its margin is +inf whether or not any record was known, so the margin cannot say which."""
    trace = trace_of(p=[False, False])
    trace = Trace(trace.signals, trace.starts, trace.dt_s, unknown={"p": ~np.array(known)})
    formula = parse_formula("G[0,T](!p)")
    assert settle_unknown(formula, trace, np.array([INF]), binary=True)[1].tolist() == [is_silent]


@pytest.mark.parametrize(
    ("text", "hangs"),
    [
        ("G[2,2](x < 0)", True),
        ("F[2,2](x < 0)", True),
        ("G[2,2](x < 0) or x >= 0", False),  # a margin of 0 holds in either reading
        ("F[2,2](x < 0) or x >= 0", False),
        ("G[0,0](x < 0)", False),
    ],
)
def test_a_verdict_hangs_on_an_empty_window_if_the_other_reading_changes_it(text: str, hangs: bool) -> None:
    assert hangs_on_empty_window(parse_formula(text), trace_of(x=[0.0])).tolist() == [hangs]


@pytest.mark.parametrize(("single", "rounding"), [(False, 1e-9), (True, 1e-4)])
def test_a_value_equals_a_limit_within_the_rounding_of_its_storage(single: bool, rounding: float) -> None:
    for factor, is_equal in ((0.9, True), (1.1, False)):
        trace = trace_of(x=[3.0 * (1 + factor * rounding)])
        trace = Trace(trace.signals, trace.starts, trace.dt_s, single={"x": np.array([single])})
        for text in ("G(x < 3)", "G(x + 0 < 3)", "F(x < 3)"):
            assert (judge_formula(parse_formula(text), trace).rho[0] == 0) == is_equal


def test_a_bound_may_differ_from_a_multiple_of_the_control_step_by_rounding_alone() -> None:
    trace = trace_of(x=[1.0, 2.0])
    assert robustness(parse_formula(f"F[{1 + 0.9e-9!r},{1 + 0.9e-9!r}](x > 0)"), trace).tolist() == [2.0]
    with pytest.raises(FormulaError, match="not a multiple"):
        robustness(parse_formula(f"F[{1 + 1.2e-9!r},2](x > 0)"), trace)
