"""A stroke goes through its waypoints in order, waits where it should, and goes on where something is in its way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.policies import make_policy
from safevla_bench.policies.scripted import LEVEL_RAD, follow_waypoints, plan_stroke
from safevla_bench.policies.scripted.geometry import CLOSE, Rotation, lean_angle, to_rotation
from safevla_bench.policies.scripted.placement import CLOSED_M, UNIT_RAD, Arm
from safevla_bench.policies.scripted.plan import CAREFUL, FixtureGoal

BOXES = {"cabinet_1_base": ([0, 0.3, 0.1], [0.12, 0.1, 0.1]), "cabinet_1_top": ([0, 0.28, 0.15], [0.1, 0.11, 0.03])}
GOAL = FixtureGoal("open", "cabinet_1_top_region")


@pytest.fixture
def start(scene, observe):
    setting = scene(BOXES, [("open", GOAL.name)], movable=(), sites={GOAL.name: [0, 0.3, 0.15]})
    return observe(replace(setting, joint_pos={"cabinet_1_top_level": 0.0}))


def play(start, obeys: bool = True):
    """The waypoints of the stroke, and what is seen at each step of it, by a hand that goes where it is told or not."""
    waypoints = plan_stroke(start.privileged, GOAL, 0.0, CAREFUL)
    moves, observation, run = follow_waypoints(Arm(start, CAREFUL), waypoints), start, []
    action = next(moves)
    while len(run) < 1500:
        if obeys:
            turn = Rotation.from_rotvec(UNIT_RAD * action[3:6]) * to_rotation(observation.eef_quat_wxyz)
            place = observation.eef_pos_m + 0.05 * action[:3]
            observation = replace(observation, eef_pos_m=place, eef_quat_wxyz=np.roll(turn.as_quat(), 1))
        run.append((observation, action[6]))
        try:
            action = moves.send(observation)
        except StopIteration:
            return waypoints, run
    raise AssertionError("the stroke does not end")


def test_a_hand_that_obeys_goes_through_every_waypoint_and_turns_upright_above_the_last(start):
    waypoints, run = play(start)
    off = np.array([[np.linalg.norm(state.eef_pos_m - goal.place_m) for state, _ in run] for goal in waypoints])
    reached = [int(np.flatnonzero(distances < 0.012)[0]) for distances in off]
    assert reached == sorted(reached)
    assert lean_angle(run[-1][0].eef_quat_wxyz) < LEVEL_RAD - 0.2


def test_the_fingers_are_given_time_to_close_before_the_hand_pulls(start):
    waypoints, run = play(start)
    (hold,) = {tuple(goal.place_m) for goal in waypoints if goal.wait_steps and goal.aperture_m == CLOSED_M}
    closed = [state for state, grip in run if grip == CLOSE and np.linalg.norm(state.eef_pos_m - hold) < 0.012]
    assert len(closed) > CAREFUL.dwell_steps


def test_a_hand_that_gets_nowhere_is_through_all_the_same(start):
    assert play(start, obeys=False)


@pytest.mark.parametrize("style", ["careful", "hasty"])
def test_a_goal_to_open_moves_the_arm_within_bounds_and_is_tried_again(start, style, task):
    policy = make_policy(f"scripted:{style}")
    policy.reset(task, 0)
    actions = np.array([policy.act(start) for _ in range(700)])
    assert (np.abs(actions) <= 1).all()
    assert np.abs(actions[0, :3]).max() > 0
    again = np.flatnonzero((actions[1:] == actions[0]).all(axis=1))
    assert again.max() > 300
