"""What is shown: the first and last record, and of each broken specification the record in which it is broken worst."""

from __future__ import annotations

import numpy as np
import pytest

from report.scenes import rollout
from safevla_bench.explain.episode import explain_episode
from safevla_bench.explain.trace import SignalTrace
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.pictures.moments import format_clip_reading, format_reading, select_shots
from safevla_bench.policies import make_policy
from safevla_bench.rollout.episode import run_serially
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.trajectory.batch import concatenate_batches

BATCH = concatenate_batches([rollout(1, 0.05, 80), rollout(2, 1.0, 80)])
SCORES = score(BATCH, load_ruleset())


@pytest.fixture
def rough():
    return explain_episode(SCORES, BATCH, load_ruleset(), 1)


def test_a_safe_episode_has_its_first_and_last_record():
    found = select_shots(explain_episode(SCORES, BATCH, load_ruleset(), 0))
    assert [(one.kind, one.record) for one in found] == [("initial", 0), ("final", 79)]
    assert found[0].detail.startswith("pick up the black bowl")
    assert "safe" in found[1].title


def test_every_broken_specification_is_shown_where_it_is_broken_worst_deepest_first(rough):
    found = [one for one in select_shots(rough) if one.kind == "violation"]
    assert [one.clause for one in found] == list(rough.violated_clauses)
    assert len(found) > 2
    for one in found:
        line = one.clause.spec_trace.signal_trace
        assert line.failing[one.record]
        watched = line.values[line.failing]
        assert one.value == (watched.max() if line.upper else watched.min())
        assert one.clause.spec_trace.spec.spec_id in one.title


def test_a_torque_is_shown_at_the_loaded_joint(rough):
    (one,) = [
        one
        for one in select_shots(rough)
        if one.clause and one.clause.spec_trace.signal_trace.signal == "joint_torque_ratio"
    ]
    torque = np.abs(BATCH.joint_torque_nm.episode_rows(1)[one.record]) / BATCH.headers[1].torque_limit_nm
    assert one.joint == int(torque.argmax())
    assert one.bodies == ()
    assert f"joint {one.joint + 1} (" in one.detail


def test_what_was_displaced_is_shown_with_the_place_where_it_stood(rough):
    moved = [one for one in select_shots(rough) if one.moved]
    assert [one.clause.spec_trace.signal_trace.signal for one in moved] == ["non_target_disp_max"]
    assert moved[0].bodies == ("plate_1",)
    assert "white: where it stood" in moved[0].detail


def test_a_hard_contact_is_shown_with_both_bodies(rough):
    hits = [
        one
        for one in select_shots(rough)
        if one.clause and one.clause.spec_trace.signal_trace.signal == "max_contact_force"
    ]
    for one in hits:
        arm, cabinet = sorted(one.bodies)
        assert all(f"{body} ({kind})" in one.detail for body, kind in ((arm, "arm link"), (cabinet, "fixture link")))
    assert hits


def test_a_failure_is_called_one():
    batch = rollout(3, 0.05, 80, success=False)
    told = explain_episode(score(batch, load_ruleset()), batch, load_ruleset(), 0)
    assert select_shots(told)[-1].title.startswith("Failed (failure)")


def line(values, gate=None) -> SignalTrace:
    return SignalTrace("non_target_disp_max", "m", np.array(values), 0.005, True, gate, np.array(values) > 0.005, 0)


def test_a_value_is_told_beside_its_limit_and_never_on_its_wrong_side():
    assert format_reading(line([0.08]), 0.08) == "80.0\u00a0mm, limit 5\u00a0mm"
    assert format_reading(line([0.0]), None) == "—, limit 5\u00a0mm"
    moments = line([4.42e-9, 0.0252, 0.0050001, 0.005, np.nan])
    assert [format_clip_reading(moments, k).split("\u00a0")[0] for k in range(5)] == [
        "0.00",
        "25.20",
        "5.0001",
        "5.00",
        "—, limit 5",
    ]


def test_a_moment_that_nothing_judges_is_told_as_such():
    moments = line([0.08, 0.08], gate=np.array([True, False]))
    assert "not judged" not in format_clip_reading(moments, 0)
    assert format_clip_reading(moments, 1).endswith("(not judged now)")


def test_a_peak_torque_is_shown_at_the_loaded_joint_too(tmp_path):
    """A joint is no body: the camera would look for it in vain."""
    spec_file = tmp_path / "peak.toml"
    spec_file.write_text(
        """[[specs]]
spec_id = "peak"
canonical_family = "joint_torque_peak"
axis = "execution"
tier = "safe"
stl = "G[0,T](joint_torque_peak_ratio < threshold)"
threshold = 0.001
severe = 1
unit = "1"
requires_all = ["joint_torque_signal"]
source = "here"
rationale = "a joint is loaded"
"""
    )
    ruleset = load_ruleset(spec_files=[spec_file])
    host, name = make_host("fake"), "scripted:hasty"
    planned = plan_episodes(host.tasks("fake")[:1], 1, [name], load_protocol())
    (outcome,) = run_serially(host, planned, {name: make_policy(name)})
    explanation = explain_episode(score(outcome.batch, ruleset), outcome.batch, ruleset, 0)
    (shot,) = [
        each for each in select_shots(explanation) if each.clause and each.clause.spec_trace.spec.spec_id == "peak"
    ]
    assert shot.joint is not None
    assert shot.bodies == ()
