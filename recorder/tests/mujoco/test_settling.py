"""When the objects of a scene are at rest, on a ball that is thrown."""

from __future__ import annotations

import pytest

import mujoco
from safevla_recorder.mujoco.recorder import settling_steps, warn_if_moving

BALL = """<mujoco><option timestep="0.01"/><worldbody><geom type="plane" size="5 5 1"/>
<body name="ball" pos="0 0 0.1"><freejoint/><geom size="0.1" mass="1"/></body></worldbody></mujoco>"""
STEP = 5
"""Physics steps in a control step of 0.05 s."""


def throw_ball(up_m_s: float) -> tuple[mujoco.MjModel, mujoco.MjData, dict[str, int]]:
    model = mujoco.MjModel.from_xml_string(BALL)
    data = mujoco.MjData(model)
    data.qvel[2] = up_m_s
    mujoco.mj_forward(model, data)
    return model, data, {"ball": model.body("ball").id}


def test_a_thrown_ball_is_not_at_rest_at_the_top_of_its_flight():
    model, data, objects = throw_ball(9.81 * 0.1 + 0.01)  # so that it is slow after the second control step, in the air
    slow = []
    for _ in settling_steps(model, data, objects, 0, 4):
        mujoco.mj_step(model, data, STEP)
        slow.append(abs(data.qvel[2]) < 0.05)
    assert slow == [False, True, False, False]


def test_a_scene_without_objects_is_at_rest(caplog):
    model, data, _ = throw_ball(1.0)
    assert len(list(settling_steps(model, data, {}, 0, 9))) == 2
    warn_if_moving(model, data, {}, "empty")
    assert caplog.records == []


@pytest.mark.parametrize(("height_m", "is_warned"), [(0.5, True), (0.08, True), (0.0999, False)])
def test_a_ball_that_will_fall_or_jump_is_warned_of_although_it_does_not_move_yet(height_m, is_warned, caplog):
    """LIBERO's initial states hold objects in the air; a loop without settling begins there."""
    model, data, objects = throw_ball(0.0)
    data.qpos[2] = height_m  # the radius is 0.1 m
    mujoco.mj_forward(model, data)
    warn_if_moving(model, data, objects, "balls")
    assert ("ball hangs in the air or overlaps" in caplog.text) == is_warned


@pytest.mark.parametrize(
    ("up_m_s", "wait_steps", "rest_steps", "expected"),
    [(0.0, 0, 100, 2), (0.0, 5, 100, 5), (5.0, 5, 0, 5), (5.0, 3, 4, 7)],
)
def test_settling_is_as_many_steps_as_asked_for_then_until_things_rest(up_m_s, wait_steps, rest_steps, expected):
    model, data, objects = throw_ball(up_m_s)
    steps = 0
    for _ in settling_steps(model, data, objects, wait_steps, rest_steps):
        mujoco.mj_step(model, data, STEP)
        steps += 1
    assert steps == expected


def test_a_thrown_ball_has_landed_after_settling_that_had_enough_steps():
    model, data, objects = throw_ball(2.0)
    for _ in settling_steps(model, data, objects, 0, 200):
        mujoco.mj_step(model, data, STEP)
    assert abs(data.qvel[2]) < 0.05
    assert 0.4 < data.time < 200 * 0.05, "2 * 2.0 / 9.81 s in the air, and at rest before the steps ran out"


@pytest.mark.parametrize(("up_m_s", "is_warned"), [(0.04, False), (0.06, True)])
def test_objects_that_move_when_an_episode_begins_are_reported(up_m_s, is_warned, caplog):
    warn_if_moving(*throw_ball(up_m_s), "throwing")
    assert ("0.06 m/s" in caplog.text) == is_warned


def test_the_speed_of_an_object_that_slides_is_that_of_its_own_joints(caplog):
    """A plate on two slides, before an arm that turns fast."""
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody>
        <body name="plate"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/><geom size="0.1"/></body>
        <body name="arm" pos="1 0 0"><joint axis="0 0 1"/><geom size="0.1"/></body>
        </worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    data.qvel[2] = 5.0
    warn_if_moving(model, data, {"plate": model.body("plate").id}, "sliding")
    assert caplog.text == ""
    for data.qvel[:2] in ((0.03, 0.04), (0.06, 0.08)):
        warn_if_moving(model, data, {"plate": model.body("plate").id}, "sliding")
    assert ["plate still moves" in record.getMessage() for record in caplog.records] == [True]
