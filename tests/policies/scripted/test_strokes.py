"""A stroke goes through its waypoints in order, waits where it should, and goes on where something is in its way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.policies import make_policy
from safevla_bench.policies.scripted import strokes
from safevla_bench.policies.scripted.geometry import Rotation, downward_hand, lean_angle
from safevla_bench.policies.scripted.plan import CAREFUL, FixtureGoal

BOXES = {
    "cabinet_1_base": ([0, 0.3, 0.1], [0.12, 0.1, 0.1]),
    "cabinet_1_top": ([0, 0.28, 0.15], [0.1, 0.11, 0.03]),
}
GOAL = FixtureGoal("open", "cabinet_1_top_region")


@pytest.fixture
def shown(scene, seen):
    setting = scene(BOXES, [("open", GOAL.name)], movable=(), sites={GOAL.name: [0, 0.3, 0.15]})
    return seen(replace(setting, joint_pos={"cabinet_1_top_level": 0.0}))


def obeyed(shown, wanted):
    """What is seen once the hand is where it was wanted."""
    turn = (Rotation.from_rotvec(wanted.lean) * downward_hand(wanted.yaw_rad)).as_quat()
    return replace(shown, eef_pos_m=wanted.place_m, eef_quat_wxyz=np.roll(turn, 1))


def test_a_hand_that_obeys_goes_through_every_knot_and_ends_upright(shown):
    state, seen, visited = strokes.begin_stroke(GOAL, shown, shown.privileged, CAREFUL), shown, []
    while not state.is_over and len(visited) < 200:
        visited.append(state.index)
        seen = obeyed(seen, state.target(seen, CAREFUL))
        state = state.advance(seen, seen.privileged, CAREFUL)
    assert visited == sorted(visited)
    assert set(visited) == set(range(len(state.waypoints)))
    assert lean_angle(seen.eef_quat_wxyz) == pytest.approx(0.0, abs=1e-6)


def test_the_fingers_are_given_time_to_close(shown):
    state = strokes.begin_stroke(GOAL, shown, shown.privileged, CAREFUL)
    closing = next(k for k, waypoint in enumerate(state.waypoints) if waypoint.wait_steps)
    state = replace(state, index=closing)
    there = obeyed(shown, state.target(shown, CAREFUL))
    steps = 0
    while state.index == closing:
        state, steps = state.advance(there, there.privileged, CAREFUL), steps + 1
    assert steps == CAREFUL.dwell_steps + 1


def test_a_hand_that_gets_nowhere_is_through_all_the_same(shown):
    state, steps = strokes.begin_stroke(GOAL, shown, shown.privileged, CAREFUL), 0
    while not state.is_over and steps < 1000:
        state, steps = state.advance(shown, shown.privileged, CAREFUL), steps + 1
    assert state.is_over


def test_what_moves_nothing_the_scene_shows_is_not_begun(shown):
    assert strokes.begin_stroke(FixtureGoal("turnon", "stove_1"), shown, shown.privileged, CAREFUL) is None


@pytest.mark.parametrize("style", ["careful", "hasty"])
def test_a_goal_to_open_moves_the_arm_within_bounds_and_is_tried_again(shown, style, task):
    acting = make_policy(f"scripted:{style}")
    acting.reset(task, 0)
    actions = np.array([acting.act(shown) for _ in range(700)])
    assert (np.abs(actions) <= 1).all()
    assert np.abs(actions[0, :3]).max() > 0
    assert acting._progress.attempt > 0
