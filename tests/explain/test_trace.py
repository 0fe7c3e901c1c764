"""A signal against its limit: which records are watched, and what is drawn of any formula."""

from __future__ import annotations

import numpy as np
import pytest

from report.scenes import rollout
from safevla_bench.explain.trace import SignalTrace, describe_chart, trace_formula
from safevla_bench.report.charts import draw_chart
from safevla_bench.signals import build_trace
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.specs.loader import load_library
from safevla_bench.stl.formula import signal_names
from safevla_bench.stl.parser import parse_formula
from safevla_bench.stl.robustness import judge_formula

KNOWN = {name: signal.boolean for name, signal in SIGNALS.items()}


@pytest.mark.parametrize("name", ["default", "paper-text", "paper-as-run"])
def test_every_specification_of_the_libraries_can_be_drawn(name):
    reading = RecordFields(rollout(3, 1.0))
    for spec in load_library(name).specs:
        chart = draw_chart(describe_chart(trace_formula(spec.formula, reading), 0.05))
        assert chart.line.startswith("M"), spec.spec_id
        assert chart.worst_label, spec.spec_id


def line(text: str, n: int = 60) -> SignalTrace:
    return trace_formula(parse_formula(text, KNOWN), RecordFields(rollout(3, 1.0, n)))


def test_a_limit_on_the_left_is_read_as_one_on_the_right():
    assert line("G[0,T](200 > max_contact_force)").upper
    assert not line("G[0,T](grip -> -0.02 < held_object_slip)").upper


def test_a_bounded_window_looks_at_its_records_only():
    trace = line("G[1,2](max_contact_force < 5)")
    assert trace.gate is not None
    assert list(np.flatnonzero(trace.gate)) == list(range(20, 41))
    assert not trace.failing[:20].any()


@pytest.mark.parametrize(
    "text",
    [
        "!F[0,T](max_contact_force > 5)",
        "(max_contact_force < 5) W false",
        "G[0,T](max_contact_force < 5) and true",
        "true -> G[0,T](max_contact_force < 5)",
    ],
)
def test_the_first_failing_record_of_a_formula_that_means_g_is_its_first_violation(text):
    trace, reading = line(text), RecordFields(rollout(3, 1.0, 60))
    expected = line("G[0,T](max_contact_force < 5)")
    assert expected.failing.any()
    np.testing.assert_array_equal(trace.failing, expected.failing)
    formula = parse_formula(text, KNOWN)
    (first,) = judge_formula(formula, build_trace(reading, signal_names(formula))).first_violation
    assert first == np.flatnonzero(trace.failing)[0]
    assert trace.worst == expected.worst


@pytest.mark.parametrize(
    "text",
    [
        "G[0,T](grip -> F[0,1](target_height > 0.5))",
        "F[0,T](target_height > 0.5)",
        "G[0,T](max_contact_force < 200) and G[0,T](joint_torque_ratio < 1)",
        "G[0,T](target_height < non_target_disp_max + 1)",
        "(!grip) U[0,T] (target_height > 9)",
        "G[0,T](grip -> transport)",
    ],
)
def test_other_formulas_show_their_margin_against_zero(text):
    trace = line(text)
    assert trace.signal == "margin"
    assert (trace.limit, trace.upper) == (0.0, False)
    assert len(trace.values) == len(trace.failing) == 60
