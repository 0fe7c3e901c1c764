"""What a case shows: the right episodes, the verdict's own records, the right bodies."""

from __future__ import annotations

import numpy as np
import pytest

from builders import episode
from report.scenes import BOWL, NAN, joined, rollout, run, verdicts
from safevla_bench.explain.bodies import find_contributors
from safevla_bench.explain.episode import SpecTrace, select_unsafe_successes, select_worst, trace_specs
from safevla_bench.explain.trace import SignalTrace, trace_formula
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.charts import draw_chart
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.specs.loader import library
from safevla_bench.stl.parser import parse
from safevla_bench.trajectory.batch import select_episodes

RULESET = load_ruleset()
KNOWN = {name: one.boolean for name, one in SIGNALS.items()}


def test_the_deepest_violations_come_first_and_ties_by_the_smallest_margin():
    scores = verdicts((True, -10, 1), (True, -900, 1), (True, 5, 1), (False, -600, 1), (True, 1, -20))
    assert select_worst(scores) == [1, 3, 4, 0]


def test_cells_take_turns_so_that_one_bad_policy_does_not_hide_the_others():
    rough, calm = verdicts(*[(True, -900, 1)] * 10), verdicts((True, -1, 1), (True, 1, 1), policy="b")
    assert 10 in select_worst(joined(rough, calm), max_count=6)
    assert len(select_worst(joined(rough, calm), max_count=6)) == 6


def test_unsafe_successes_are_neither_safe_nor_failures_and_the_broken_specifications_take_turns():
    scores = verdicts((True, -400, 1), (True, -300, 1), (True, 1, -3), (False, -500, 1), (True, 1, 1))
    assert select_unsafe_successes(scores, 2) == [0, 2]
    assert select_unsafe_successes(scores, 9) == [0, 1, 2]
    assert select_unsafe_successes(verdicts((True, 1, 1), (False, -1, 1)), 4) == []


def test_a_stopped_episode_is_evidence_of_what_it_violated_and_of_nothing_else():
    assert select_worst(verdicts((True, -9, 1), (False, -9, 1), outcome=("success", "stopped"))) == [0, 1]
    assert select_worst(verdicts((True, 9, 1), (False, 2, 1), outcome=("success", "stopped"))) == [0]


def test_without_a_violation_the_closest_calls_are_shown():
    assert select_worst(verdicts((True, 100, 10), (True, 3, 10), (True, NAN, NAN)), max_count=2) == [1, 0]


@pytest.fixture(scope="module")
def rough():
    batch = run(["a"], [1.0], 10, ["libero-10"])
    return batch, score(batch, RULESET)


def test_failing_records_begin_where_the_verdict_says_and_end_in_its_extreme(rough):
    batch, scores = rough
    seen = set()
    for k in range(len(batch)):
        for spec_trace in trace_specs(scores, k, select_episodes(batch, [k]), RULESET):
            column = scores.specs.index(spec_trace.spec)
            failing = np.flatnonzero(spec_trace.signal_trace.failing)
            assert (failing[0] if len(failing) else -1) == spec_trace.first
            assert bool(len(failing)) == spec_trace.violated
            assert spec_trace.signal_trace.values[spec_trace.signal_trace.worst] == scores.extreme[column, k]
            seen.add((spec_trace.spec.spec_id, spec_trace.violated))
    assert {name for name, violated in seen if violated} >= {
        "max_contact_force_under_200N",
        "non_target_max_disp_5mm",
        "stable_grasp_maintained_2cm",
    }


def test_violated_specifications_come_before_kept_ones(rough):
    batch, scores = rough
    spec_traces = trace_specs(scores, 1, select_episodes(batch, [1]), RULESET)
    assert [spec_trace.violated for spec_trace in spec_traces] == sorted(
        [spec_trace.violated for spec_trace in spec_traces], reverse=True
    )


def test_the_bodies_behind_a_violation_are_named(rough):
    batch, scores = rough
    k = max(range(len(batch)), key=lambda k: scores.is_violated[:, k].sum())
    contributors = {
        spec_trace.signal_trace.signal: spec_trace.involved
        for spec_trace in trace_specs(scores, k, select_episodes(batch, [k]), RULESET)
    }
    force, push = contributors["max_contact_force"], contributors["non_target_disp_max"]
    assert set(force.names) == {"robot0_link7", "wooden_cabinet_1_cabinet_top"}
    assert push.names == ("plate_1",)
    assert push.amount.endswith("mm")
    assert contributors["joint_torque_ratio"].names[0].startswith("joint ")
    assert contributors["held_object_slip"].names == ("akita_black_bowl_1",)


def test_a_torque_peak_names_the_joint_and_its_peak_not_the_torque_at_the_end_of_the_step():
    peak = np.tile([1.0, 1, 1, 1, 36, 1, 1], (12, 1))
    reading = RecordFields(episode(further={"joint_torque_peak_nm": peak}))
    contributors = find_contributors(reading, "joint_torque_peak_ratio", 3, RULESET.registry)
    assert (contributors.names, contributors.amount) == (("joint 5",), "36.0 of 12.0\xa0N·m")


@pytest.mark.parametrize("name", ["default", "paper-text", "paper-as-run"])
def test_every_specification_of_the_libraries_can_be_drawn(name):
    reading = RecordFields(rollout(3, 1.0))
    for spec in library(name).specs:
        chart = draw_chart(exhibit_of(trace_formula(spec.formula, reading)))
        assert chart.line.startswith("M"), spec.spec_id
        assert chart.worst.label, spec.spec_id


def exhibit_of(line: SignalTrace) -> SpecTrace:
    spec = verdicts().specs[0]
    return SpecTrace(spec, "", "", 0.05, line, 1.0, 0.0, False, -1, None)


def line(text: str, n: int = 60):
    return trace_formula(parse(text, KNOWN), RecordFields(rollout(3, 1.0, n)))


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


def test_a_signal_that_names_no_bodies_has_none_involved(rough):
    trace = trace_formula(parse("G[0,T](eef_speed < 0.01)", KNOWN), RecordFields(rollout(3)))
    assert trace.unit == "m/s"


def test_the_held_object_is_the_one_in_the_gripper():
    assert rollout(0).gripped.max() == BOWL
