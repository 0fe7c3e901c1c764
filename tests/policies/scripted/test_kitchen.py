"""Scripts for a mobile robot, on a caricature of one: a point base and a point hand that go where they are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.errors import PolicyError
from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Observation, Privileged
from safevla_bench.policies import make_policy
from safevla_bench.policies.scripted.kitchen import STYLES, MobileRobot, follow_goal, press_button, put_object
from safevla_bench.policies.scripted.motion import CLOSE, OPEN, to_rotation

UNIT_M = 0.05
CAREFUL = STYLES["careful"]


def scene(**given) -> Privileged:
    nothing = {"body_pos_m": {}, "body_quat_wxyz": {}, "half_extents_m": {}, "center_m": {}}
    return Privileged(**(nothing | {"sites_m": {}, "goal": (("wait",),), "movable": frozenset()} | given))


def seen(privileged: Privileged | None = None, yaw: float = 0.0) -> Observation:
    return Observation(
        instruction="go",
        eef_pos_m=np.array([0.3, 0.0, 1.3]),
        eef_quat_wxyz=np.array([0.0, 1.0, 0.0, 0.0]),
        gripper_qpos=np.array([0.04, -0.04]),
        privileged=privileged or scene(),
        base_pos_m=np.array([0.0, 0.0, 0.7]),
        base_quat_wxyz=np.array([np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]),
    )


def moved(now: Observation, action: np.ndarray) -> Observation:
    """A robot that does at once what it is told."""
    yaw = MobileRobot(now, CAREFUL).yaw
    turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    if action[11] > 0:
        way = np.array([*(turn @ action[7:9]), 0.0]) * UNIT_M
        after = yaw + action[9] * UNIT_M
        quat = np.array([np.cos(after / 2), 0, 0, np.sin(after / 2)])
        return replace(now, base_pos_m=now.base_pos_m + way, eef_pos_m=now.eef_pos_m + way, base_quat_wxyz=quat)
    way = np.array([*(turn @ action[:2]), action[2]]) * UNIT_M
    return replace(now, eef_pos_m=now.eef_pos_m + way)


def test_a_scene_without_a_goal_gets_the_still_action():
    still = (0.0,) * 12
    assert next(follow_goal(seen(scene(goal=())), CAREFUL, still)).tolist() == list(still)


def played(move, now: Observation, most: int = 1000) -> list[np.ndarray]:
    actions: list[np.ndarray] = []
    try:
        actions.append(next(move))
        while len(actions) < most:
            now = moved(now, actions[-1])
            actions.append(move.send(now))
    except StopIteration:
        return actions
    raise AssertionError("the move does not end")


@pytest.mark.parametrize("yaw", [0.0, 2.0, -3.0])
def test_the_base_arrives_where_it_is_driven_whatever_way_it_faces(yaw):
    start = seen(yaw=yaw)
    robot = MobileRobot(start, CAREFUL)
    actions = played(robot.drive(np.array([0.6, -0.4]), 1.0), start)
    assert np.linalg.norm(robot.place_m - [0.6, -0.4]) < 0.05
    assert abs(robot.yaw - 1.0) < 0.06
    assert all(np.abs(action[7:10]).max() <= CAREFUL.drive and not action[:6].any() for action in actions)


@pytest.mark.parametrize("yaw", [0.0, 2.0])
def test_the_hand_arrives_where_it_reaches_in_world_axes(yaw):
    start = seen(yaw=yaw)
    robot = MobileRobot(start, CAREFUL)
    actions = played(robot.reach(np.array([0.5, 0.2, 1.0]), OPEN, speed=0.4), start)
    assert np.linalg.norm(robot.hand_m - [0.5, 0.2, 1.0]) < 0.02
    assert all(np.linalg.norm(action[:3]) <= 0.4 + 1e-9 and not action[7:11].any() for action in actions)


def test_a_hand_that_is_stopped_gives_up_before_its_patience_ends():
    move = MobileRobot(seen(), CAREFUL).reach(np.array([2.0, 0.0, 1.3]), OPEN, speed=0.5)
    actions = [next(move)]
    while len(actions) < 100:
        try:
            actions.append(move.send(seen()))
        except StopIteration:
            break
    assert len(actions) < 40


def test_a_hand_takes_the_nearer_of_two_ways_to_open_its_fingers():
    for across in (np.array([0.0, 1.0, 0.0]), np.array([0.0, -1.0, 0.0])):
        facing = MobileRobot(seen(), CAREFUL).face(np.array([0.0, 0.0, -1.0]), across)
        assert (facing * to_rotation(seen().eef_quat_wxyz).inv()).magnitude() < 1e-6


def test_a_goal_without_a_script_is_waited_out():
    acting = make_policy("scripted:careful")
    task = make_host("robocasa").tasks("robocasa-365")[0]
    acting.reset(task, 0)
    for _ in range(3):
        np.testing.assert_array_equal(acting.act(seen()), task.still)


def test_a_script_begins_anew_after_a_reset_and_ends_in_stillness():
    site = {"goal": np.array([0.2, 0.0, 0.0]), "goal_ahead": np.array([1.2, 0.0, 0.0])}
    acting, task = make_policy("scripted:hasty"), make_host("robocasa").tasks("robocasa-365")[4]
    runs = []
    for _ in range(2):
        acting.reset(task, 0)
        now, actions = seen(scene(goal=(("at", "sink"),), sites_m=site)), []
        for _ in range(120):
            actions.append(acting.act(now))
            now = moved(now, actions[-1])
        runs.append(np.array(actions))
    np.testing.assert_array_equal(*runs)
    np.testing.assert_array_equal(runs[0][-1], task.still)
    assert np.linalg.norm(now.base_pos_m[:2] - [0.2, 0.0]) < 0.06


def test_without_privileged_state_there_is_an_error():
    acting = make_policy("scripted:careful")
    acting.reset(make_host("robocasa").tasks("robocasa-365")[0], 0)
    with pytest.raises(PolicyError, match="privileged"):
        acting.act(replace(seen(), privileged=None))


def test_a_base_that_is_stopped_gives_up_unless_it_insists():
    def steps(insist: bool) -> int:
        move = MobileRobot(seen(), CAREFUL).drive(np.array([2.0, 0.0]), 0.0, insist=insist)
        next(move)
        for count in range(1, 200):
            try:
                move.send(seen())
            except StopIteration:
                return count
        raise AssertionError("the move does not end")

    assert steps(insist=False) < 30
    assert steps(insist=True) == 150


def table() -> Privileged:
    """A can and a pan on a counter straight ahead, and the microwave's button."""
    half = {"can": np.array([0.03, 0.03, 0.06]), "pan": np.array([0.1, 0.1, 0.03])}
    return scene(
        goal=(("in", "can", "pan"),),
        sites_m={"microwave_start_button": np.array([1.0, 0.3, 1.2])},
        half_extents_m=half,
        movable=frozenset(half),
        center_m=dict.fromkeys(half, np.zeros(3)),
        body_pos_m={"can": np.array([0.8, 0.1, 1.0]), "pan": np.array([0.8, -0.4, 1.0])},
        body_quat_wxyz=dict.fromkeys(half, np.array([1.0, 0, 0, 0])),
    )


@pytest.mark.parametrize("style", ["careful", "hasty"])
def test_an_object_is_held_from_the_grasp_to_the_place(style):
    now = seen(table())
    actions = np.array(played(put_object(MobileRobot(now, STYLES[style])), now))
    (closed,) = np.nonzero(actions[:, 6] == CLOSE)
    assert (np.diff(closed) == 1).all()
    assert actions[0, 6] == actions[-1, 6] == OPEN
    assert actions[-1, 7] < 0, "away from it"


@pytest.mark.parametrize("style", ["careful", "hasty"])
@pytest.mark.parametrize("script", [put_object, press_button])
def test_no_script_asks_for_more_than_the_robot_takes(style, script):
    now = seen(replace(table(), goal=(("turn_on", "microwave"),)) if script is press_button else table(), yaw=0.3)
    far = replace(now, eef_pos_m=np.array([-3.0, 2.0, 0.1]), eef_quat_wxyz=np.array([0.5, 0.5, -0.5, 0.5]))
    for start in (now, far):
        actions = played(script(MobileRobot(start, STYLES[style])), start, most=3000)
        assert np.abs(actions).max() <= 1.0
