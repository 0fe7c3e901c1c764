"""Which records violate a formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from safevla_bench.stl import Trace, judge_formula, parse, violating_records
from safevla_bench.stl.formula import Always, And, Window
from stl.strategies import formulas, traces

KNOWN = {"x": False, "held": True}


def two_episodes() -> Trace:
    x = np.array([0.0, 3.0, 1.0, 5.0, 0.0, 9.0, 0.0])
    held = np.array([1, 0, 1, 1, 1, 1, 0], dtype=np.bool_)
    return Trace({"x": x, "held": held}, np.array([0, 4, 7]), np.array([0.1, 0.1]))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("G[0,T](x < 2)", [1, 3, 5]),
        ("G[0,T](x > 2)", [0, 2, 4, 6]),
        ("G[0,T](x < 5)", [5]),
        ("G[0,T](held -> x < 2)", [3, 5]),
        ("G[0,0.1](x < 2)", [1, 5]),
        ("G[0.2,0.3](x < 2)", [3]),
        ("G[0,T](held)", [1, 6]),
        ("G[0,T](x < 4) and G[0,T](held)", [1, 3, 5, 6]),
        ("G[0,T](F[0,0.1](x < 2))", [3]),
    ],
)
def test_each_record_is_asked_by_itself(text, rows):
    assert np.flatnonzero(violating_records(parse(text, KNOWN), two_episodes())).tolist() == rows


@pytest.mark.parametrize("text", ["F[0,T](x < 2)", "x < 2", "G[0,T](x < 2) and F[0,T](held)", "not G[0,T](x < 2)"])
def test_nothing_is_said_of_records_where_a_formula_speaks_of_the_whole(text):
    assert violating_records(parse(text, KNOWN), two_episodes()) is None


@given(formulas(), formulas(), traces())
def test_an_episode_is_violated_iff_one_of_its_records_is_and_the_first_of_them_is_the_one_judged(left, right, trace):
    for asked in (
        Always(Window(0.0, None), left),
        And(Always(Window(0.0, None), left), Always(Window(0.0, None), right)),
    ):
        found, verdict = violating_records(asked, trace), judge_formula(asked, trace)
        assert found is not None
        for k, (start, end) in enumerate(zip(trace.starts[:-1], trace.starts[1:], strict=True)):
            rows = np.flatnonzero(found[start:end])
            assert bool(len(rows)) == bool(verdict.rho[k] < 0)
            assert (rows[0] if len(rows) else -1) == verdict.first_violation[k]
