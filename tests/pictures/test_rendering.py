"""Shots: the first and last record, and the worst record of each broken specification."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from builders import episode
from report.scenes import rollout
from safevla_bench.errors import FileError
from safevla_bench.explain.episode import explain_episode
from safevla_bench.explain.trace import SignalTrace, TraceChart, describe_chart
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.interface.stage import Camera, Picture
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.pictures.drawing import format_value_and_limit
from safevla_bench.pictures.rendering import (
    FrameStyle,
    RecordedRun,
    Shot,
    render_checked,
    render_frames,
    select_shots,
    violation_shot,
)

RULESET = load_ruleset()


def explain(batch):
    return explain_episode(score(batch, RULESET), batch, RULESET, 0)


@pytest.fixture(scope="module")
def rough():
    return explain(rollout(2, 1.0, 80))


def shots_of(explanation, signal: str) -> list[Shot]:
    shots = [shot for shot in select_shots(explanation) if shot.clause]
    return [shot for shot in shots if shot.clause.signal_trace.signal == signal]


def test_a_safe_episode_has_its_first_and_last_record():
    first, last = select_shots(explain(rollout(1, 0.05, 80)))
    assert [(shot.kind, shot.record) for shot in (first, last)] == [("initial", 0), ("final", 79)]
    assert first.detail.startswith("pick up the")
    assert "safe" in last.title


def test_a_failure_is_called_one():
    assert select_shots(explain(rollout(3, 0.05, 80, success=False)))[-1].title.startswith("Failed,")


@pytest.mark.parametrize(
    ("outcome", "title"), [("stopped", "Not finished (stopped),"), ("invalid_action", "Failed (invalid_action),")]
)
def test_an_episode_that_ended_early_has_its_outcome_in_the_last_title(outcome, title):
    assert select_shots(explain(rollout(3, 0.05, 80, success=False, outcome=outcome)))[-1].title.startswith(title)


def test_every_broken_specification_is_shown_where_it_is_broken_worst_deepest_first(rough):
    violations = [shot for shot in select_shots(rough) if shot.kind == "violation"]
    assert [shot.clause for shot in violations] == list(rough.violated_clauses)
    assert len(violations) > 2
    for shot in violations:
        line = shot.clause.signal_trace
        assert line.failing[shot.record]
        watched = line.values[line.failing]
        assert shot.value == (watched.max() if line.upper else watched.min())
        assert shot.clause.spec.spec_id in shot.title


def test_a_torque_is_shown_at_the_loaded_joint(rough):
    (shot,) = shots_of(rough, "joint_torque_ratio")
    batch = rollout(2, 1.0, 80)
    torque = np.abs(batch.joint_torque_nm.episode_rows(0)[shot.record]) / batch.headers[0].torque_limit_nm
    assert shot.joint == int(torque.argmax())
    assert shot.bodies == ()
    assert f"joint {shot.joint + 1} (" in shot.detail


def test_a_peak_torque_is_shown_at_the_loaded_joint_too(rough):
    """A joint is not a body: the camera could not find it."""
    (clause,) = [shot.clause for shot in shots_of(rough, "joint_torque_ratio")]
    peak = replace(clause, signal_trace=replace(clause.signal_trace, signal="joint_torque_peak_ratio"))
    shot = violation_shot(peak, clause.worst)
    assert shot.joint is not None
    assert shot.bodies == ()


def test_what_was_displaced_is_shown_with_the_place_where_it_stood(rough):
    moved = [shot for shot in select_shots(rough) if shot.moved]
    assert moved == shots_of(rough, "non_target_disp_max")
    assert [shot.bodies for shot in moved] == [("plate_1",)]
    assert "white outline: start position" in moved[0].detail


def test_a_hard_contact_is_shown_with_both_bodies(rough):
    hits = shots_of(rough, "max_contact_force")
    assert hits
    for shot in hits:
        arm, cabinet = sorted(shot.bodies)
        assert all(f"{body} ({kind})" in shot.detail for body, kind in ((arm, "arm link"), (cabinet, "fixture link")))


# Captions


def chart(values, gate=None) -> TraceChart:
    values = np.array(values)
    return describe_chart(SignalTrace("non_target_disp_max", "m", values, 0.005, True, gate, values > 0.005, 0), 0.05)


def test_a_value_stands_beside_its_limit_and_never_on_its_wrong_side():
    single = chart([0.08, np.nan])
    assert format_value_and_limit(single, single.format_value(0)) == "80.0\u00a0mm, limit 5\u00a0mm"
    assert format_value_and_limit(single, single.format_value(1)) == "—, limit 5\u00a0mm"


def test_no_picture_is_written_through_a_link_out_of_the_run(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "frames").symlink_to("../elsewhere")
    batch = rollout(2, 1.0, 5)
    run = RecordedRun(tmp_path / "run", FakeHost(), batch, score(batch, RULESET), RULESET)
    with pytest.raises(FileError, match="out of run"):
        render_frames(run, [0], FrameStyle(), lambda *_: None, lambda _: None)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_record_without_tracked_bodies_can_be_shown():
    record = episode(body_pos_m=None, body_quat_wxyz=None)
    picture = Picture(np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2), np.uint8), {"cup": np.zeros(3)})
    stage = SimpleNamespace(render=lambda *_: picture)
    assert render_checked(stage, record, 1, Camera("front"), (2, 2)) is picture
