"""Agreement with Sentil, a second independent monitor, written in another language.

It agrees on every formula of numeric signals, windows included. It differs, and the tests below say so, where a window
is no multiple of the control step (it takes the records whose times lie in the window; we refuse), where a formula
names a Boolean signal (it knows numbers only), and on infinite signals (it refuses them).
"""

from __future__ import annotations

import numpy as np
import pytest
import sentil

from safevla_bench.errors import FormulaError
from safevla_bench.stl.formula import Formula, format_formula
from safevla_bench.stl.parser import parse
from safevla_bench.stl.robustness import trajectory_robustness
from safevla_bench.stl.trace import Trace
from stl.oracle import NUMERIC, FormulaSource, random_trace


def sentil_trajectory(formula: Formula, trace: Trace) -> np.ndarray:
    text = format_formula(formula).replace("!", "not ").replace(",T]", ",1000]")  # no trace here lasts 1000 s
    times = np.arange(trace.starts[-1]) * trace.dt_s[0]
    return sentil.Formula.parse(text).robustness_signal(
        sentil.Trace(times, {name: trace.signals[name] for name in NUMERIC})
    )


@pytest.mark.parametrize("dt_s", [1.0, 0.05, 0.1])
def test_sentil_agrees_at_every_record(dt_s: float) -> None:
    rng = np.random.default_rng(3)
    verdicts = []
    for _ in range(400):
        formula = FormulaSource(rng, dt_s, crisp=False).formula(int(rng.integers(1, 5)))
        trace = random_trace(rng, dt_s, [int(rng.integers(1, 20))])
        theirs = sentil_trajectory(formula, trace)
        assert np.array_equal(trajectory_robustness(formula, trace), theirs), format_formula(formula)
        verdicts.append(theirs[0] >= 0)
    assert 0.3 <= np.mean(verdicts) <= 0.7


def test_sentil_takes_a_window_between_records_and_we_refuse_it() -> None:
    trace = random_trace(np.random.default_rng(0), 0.1, [8])
    formula = parse("F[0.15,0.25](x > 0)")
    assert sentil_trajectory(formula, trace)[0] == trace.signals["x"][2]
    with pytest.raises(FormulaError, match=r"0\.15 s is no multiple of the control step dt = 0\.1 s"):
        trajectory_robustness(formula, trace)


def test_sentil_does_not_read_boolean_signals() -> None:
    with pytest.raises(sentil.ParseError):
        sentil.Formula.parse("always(p -> x < 1)")


def test_sentil_refuses_infinite_signals_and_we_take_them() -> None:
    with pytest.raises(sentil.EvaluationError):
        sentil.Trace([0.0, 1.0], {"x": [0.0, np.inf]})
    trace = Trace({"x": np.array([0.0, np.inf])}, np.array([0, 2]), np.array([1.0]))
    assert trajectory_robustness(parse("G(x < 1)"), trace).tolist() == [-np.inf, -np.inf]
