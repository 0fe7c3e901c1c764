"""Unknown values: the best and the worst reading enclose every possible one, and say when there is no verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.errors import Place, SignalError
from safevla_bench.stl.formula import Formula
from safevla_bench.stl.parser import parse_formula
from safevla_bench.stl.robustness import (
    count_condition,
    hangs_on_empty_window,
    robustness,
    settle_unknown,
    trajectory_robustness,
)
from safevla_bench.stl.trace import Trace
from stl.oracle import BOOLEAN, KNOWN, NUMERIC
from stl.strategies import formulas, traces

INF, NAN = float("inf"), float("nan")


@given(formulas(), traces(), st.data())
def test_the_readings_of_unknown_values_enclose_every_possible_one(formula: Formula, trace: Trace, data) -> None:
    count = int(trace.starts[-1])
    flags = st.lists(st.booleans(), min_size=count, max_size=count).map(np.array)
    unknown = {name: data.draw(flags) for name in (*NUMERIC, *BOOLEAN)}
    above, is_free = (np.array(data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))) for _ in "ab")
    true, shown = dict(trace.signals), dict(trace.signals)
    for name in NUMERIC:  # the true value is the recorded one or a larger one, or any if that is NaN
        true[name] = trace.signals[name] + np.where(unknown[name], above / 4, 0.0)
        shown[name] = np.where(unknown[name] & (is_free > 4), NAN, trace.signals[name])
    for name in BOOLEAN:
        true[name] = trace.signals[name] ^ (unknown[name] & (above > 4))
    hidden = replace(trace, signals=shown, unknown=unknown)
    best, worst = (trajectory_robustness(formula, hidden, best=best) for best in (True, False))
    possible = trajectory_robustness(formula, replace(trace, signals=true))
    assert (best >= possible).all()
    assert (possible >= worst).all()
    assert np.array_equal(best[trace.starts[:-1]], robustness(formula, hidden))


@pytest.mark.parametrize(
    ("text", "best", "worst"),
    [
        ("x < 2", -1, -INF),
        ("2 >= x", -1, -INF),
        ("x > 2", INF, 1),
        ("2 <= x", INF, 1),
        ("!(x < 2)", INF, 1),
        ("x < 1 + 1", -1, -INF),
        ("x < z", INF, -INF),
        ("z > x", INF, -INF),
        ("x + 0 < 2", INF, -INF),
        ("y < 2", INF, -INF),
        ("y > 2", INF, -INF),
        ("y + 1 < 2", INF, -INF),
        ("1 - y < 2", INF, -INF),
        ("y < x", INF, -INF),
        ("z < 2", 1, 1),
        ("p", INF, -INF),
        ("!p", INF, -INF),
        ("p or z < 2", INF, 1),
    ],
)
def test_an_unknown_value_is_at_least_the_recorded_one(text: str, best: float, worst: float) -> None:
    signals = {"x": np.array([3.0]), "y": np.array([NAN]), "z": np.array([1.0]), "p": np.array([False])}
    unknown = {name: np.array([True]) for name in ("x", "y", "p")}
    trace = Trace(signals, np.array([0, 1]), np.array([1.0]), unknown)
    formula = parse_formula(text, KNOWN)
    assert [trajectory_robustness(formula, trace, best=each).tolist() for each in (True, False)] == [[best], [worst]]


@pytest.mark.parametrize(
    ("text", "x", "settled"),
    [
        ("G(x < 2)", [1, NAN], 1),  # the other record was judged
        ("G(x < 2)", [3, NAN], -1),
        ("G(x < 2)", [NAN, NAN], None),
        ("!F(x > 2)", [1, NAN], 1),
        ("F(x < 2)", [3, NAN], None),  # the unknown record may be the witness
        ("F(x < 2)", [1, NAN], 1),
        ("F(x < 2)", [2, NAN], 0),
        ("!G(x > 2)", [3, NAN], None),
        ("!G(x > 2)", [1, NAN], 1),
        ("G(x < 2) and F(x < 9)", [5, NAN], -3),
        ("G(x < 2) and F(x < 1)", [1, NAN], None),
        ("F(x < 0) or G(x < 2)", [1, NAN], None),
        ("F(x > 4) -> G(x < 2)", [1, NAN], None),
        ("G(x > 4) -> G(x < 2)", [1, NAN], INF),
        ("G(x > 4) -> F(x > 2)", [5, NAN], 3),
        ("G(x < 5) -> F(x > 2)", [1, NAN], None),
        ("G[0,0](x < 5) -> G(x < 2)", [1, NAN], None),
        ("x < 2 U x > 4", [1, NAN], None),
        ("G[0,0](x < 2)", [1, NAN], 1),
    ],
)
def test_a_formula_is_silent_if_a_single_unknown_record_could_decide_it(
    text: str, x: list[float], settled: float | None
) -> None:
    values = np.array(x, dtype=np.float64)
    trace = Trace({"x": values}, np.array([0, 2]), np.array([1.0]), {"x": np.isnan(values)})
    formula = parse_formula(text, KNOWN)
    margin, is_silent = settle_unknown(formula, trace, robustness(formula, trace))
    assert is_silent.tolist() == [settled is None]
    assert settled is None or margin.tolist() == [settled]


@pytest.mark.parametrize(
    ("text", "x", "settled"),
    [
        ("F(x < 2)", [3, 1.5], None),
        ("F(x < 2)", [3, 2], None),  # at the limit in the best reading
        ("x < 5 -> F(x < 2)", [3, 1.5], None),
        ("p -> F(x < 2)", [3, 1.5], None),
        ("F(x < 2)", [3, 2.5], -0.5),
        ("G(x < 4)", [3, 1.5], 1),
    ],
)
def test_a_lower_bound_of_an_unknown_value_is_no_witness(text: str, x: list[float], settled: float | None) -> None:
    signals = {"x": np.array(x, np.float64), "p": np.ones(2, np.bool_)}
    trace = Trace(signals, np.array([0, 2]), np.array([1.0]), {"x": np.array([False, True])})
    formula = parse_formula(text, KNOWN)
    margin, is_silent = settle_unknown(formula, trace, robustness(formula, trace))
    assert is_silent.tolist() == [settled is None]
    assert settled is None or margin.tolist() == [settled]


@pytest.mark.parametrize("text", ["G(x < 2)", "F(x < 2)", "G(x + 1 < 2)", "G[0,1](x < 2)", "G(x < 2 -> x < 3)"])
def test_a_nan_that_is_not_marked_as_unknown_is_an_error_beside_one_that_is(text: str) -> None:
    """Also if the episodes have several control steps, so that each is judged by itself."""
    values, formula = np.array([NAN, 1.0, 1.0, 1.0]), parse_formula(text)
    trace = Trace({"x": values}, np.array([0, 2, 4]), np.array([1.0, 0.5]), {"x": np.isnan(values)})
    assert (robustness(formula, trace) >= 0).all()
    hidden = replace(trace, signals={"x": np.array([NAN, 1.0, 1.0, NAN])})
    with pytest.raises(SignalError, match="NaN") as caught:
        robustness(formula, hidden)
    assert caught.value.place == Place(step=1)


@pytest.mark.parametrize("text", ["G(x + y < 9)", "G(x < y)", "F(y - x < 9)", "!(x < 1 - y)"])
def test_a_nan_is_an_error_though_the_other_side_is_unknown_or_infinite(text: str) -> None:
    y, is_unknown = np.array([INF, 1.0, NAN]), np.array([False, False, True])
    for row in range(3):
        x = np.zeros(3)
        x[row] = NAN
        with pytest.raises(SignalError, match=": x is not") as caught:
            robustness(parse_formula(text), Trace({"x": x, "y": y}, np.array([0, 3]), np.ones(1), {"y": is_unknown}))
        assert caught.value.place == Place(step=row)


@pytest.mark.parametrize(
    ("text", "is_silent"),
    [
        ("G[0,T](!p)", [False, False, True]),
        ("G[0,0](!p)", [False, True, True]),
        ("G[1,1](!p)", [True, False, True]),
        ("!p", [False, True, True]),
        ("F[0,T](!p)", [False, False, True]),
        ("G[0,T](!p) and G[0,T](!p)", [True, True, True]),
        ("G[0,T](p -> q)", [False, False, True]),
    ],
)
def test_a_binary_rule_is_decided_by_a_known_record_in_the_window_of_its_root(text: str, is_silent: list[bool]) -> None:
    unknown = np.array([False, True, True, False, True, True])
    signals = {name: np.zeros(6, np.bool_) for name in "pq"}
    trace = Trace(signals, np.array([0, 2, 4, 6]), np.ones(3), {"p": unknown})
    margin, silent = settle_unknown(parse_formula(text), trace, np.full(3, INF), binary=True)
    assert silent.tolist() == is_silent
    assert (margin[~silent] == INF).all()


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("G(p -> x < 1)", [(2, 3), (1, 2)]),
        ("G[1,2](p -> x < 1)", [(1, 2), (0, 1)]),
        ("G[1,T](p -> x < 1)", [(1, 2), (0, 1)]),
        ("G(p -> x > 1 -> q)", [(1, 3), (1, 2)]),
        ("G(x > 2 -> q)", [(0, 3), (1, 2)]),
        ("p -> x < 1", [(1, 1), (1, 1)]),
        ("G(q -> p)", [(1, 3), (0, 2)]),  # of which some are unknown
        ("G(y > 0 -> p)", [(1, 3), (1, 2)]),
        ("G(y < 9 -> p)", [(2, 3), (1, 2)]),
        ("G((x > 3 -> !p) -> q)", [(3, 3), (1, 2)]),  # in a record with p, x is 3
        ("G(x < 1)", None),
        ("G(p -> x < 1) and G p", None),
    ],
)
def test_a_condition_counts_in_the_records_of_the_window_in_which_it_is_known_to_hold(
    text: str, counts: list[tuple[int, int]] | None
) -> None:
    signals = {
        "p": np.array([True, True, False, True, False]),
        "q": np.array([True, True, False, True, False]),
        "x": np.array([0.0, 2.0, 0.0, 3.0, 0.0]),
        "y": np.array([1.0, NAN, -1.0, 1.0, NAN]),
    }
    unknown = {"q": np.array([True, False, False, True, True]), "y": np.isnan(signals["y"])}
    trace = Trace(signals, np.array([0, 3, 5]), np.array([1.0, 1.0]), unknown)
    held = count_condition(parse_formula(text, KNOWN), trace)
    assert (held is None) == (counts is None)
    assert held is None or list(zip(*(part.tolist() for part in held), strict=True)) == counts


@pytest.mark.parametrize(
    ("text", "hangs"),
    [
        ("G[2,3](x < 1)", [True, True]),
        ("F[2,3](x < 1)", [True, True]),
        ("G[1,3](x < 1)", [False, True]),
        ("G[0,3](x < 1)", [False, False]),
        ("G[2,3](x < 1) and G(x < -1)", [False, False]),
        ("G[2,3](x < 1) or G(x < 1)", [False, False]),
    ],
)
def test_a_window_beyond_the_end_decides_if_the_other_reading_has_another_verdict(text: str, hangs: list[bool]) -> None:
    trace = Trace({"x": np.zeros(4)}, np.array([0, 2, 4]), np.array([1.0, 0.5]))
    assert hangs_on_empty_window(parse_formula(text), trace).tolist() == hangs
