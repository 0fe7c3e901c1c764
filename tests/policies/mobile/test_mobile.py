"""Scripts for a mobile robot, on a caricature of one: a point base and a point hand that go where they are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.errors import PolicyError
from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Boxes, Joint, Observation, Privileged
from safevla_bench.policies import make_policy
from safevla_bench.policies.mobile.doors import open_fixture
from safevla_bench.policies.mobile.moves import (
    CLOSE,
    OPEN,
    STYLES,
    base_yaw,
    drive_base,
    follow_point,
    move_hand,
    turn_to_face,
)

UNIT_M = 0.05


def scene(**given) -> Privileged:
    nothing = {"body_pos_m": {}, "body_quat_wxyz": {}, "half_extents_m": {}, "center_m": {}, "joint_pos": {}}
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
    yaw = base_yaw(now)
    turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    if action[11] > 0:
        way = np.array([*(turn @ action[7:9]), 0.0]) * UNIT_M
        after = yaw + action[9] * UNIT_M
        quat = np.array([np.cos(after / 2), 0, 0, np.sin(after / 2)])
        return replace(now, base_pos_m=now.base_pos_m + way, eef_pos_m=now.eef_pos_m + way, base_quat_wxyz=quat)
    way = np.array([*(turn @ action[:2]), action[2]]) * UNIT_M
    return replace(now, eef_pos_m=now.eef_pos_m + way)


def played(move, now: Observation, most: int = 1000) -> tuple[Observation, list[np.ndarray]]:
    actions: list[np.ndarray] = []
    try:
        actions.append(next(move))
        while len(actions) < most:
            now = moved(now, actions[-1])
            actions.append(move.send(now))
    except StopIteration as end:
        return end.value, actions
    raise AssertionError("the move does not end")


@pytest.mark.parametrize("yaw", [0.0, 2.0, -3.0])
def test_the_base_arrives_where_it_is_driven_whatever_way_it_faces(yaw):
    start = seen(yaw=yaw)
    end, actions = played(drive_base(start, np.array([0.6, -0.4]), 1.0, speed=0.5), start)
    assert np.linalg.norm(end.base_pos_m[:2] - [0.6, -0.4]) < 0.05
    assert abs(base_yaw(end) - 1.0) < 0.06
    assert all(np.abs(action[7:10]).max() <= 0.5 and not action[:6].any() for action in actions)


@pytest.mark.parametrize("yaw", [0.0, 2.0])
def test_the_hand_arrives_where_it_reaches_in_world_axes(yaw):
    start = seen(yaw=yaw)
    end, actions = played(move_hand(start, np.array([0.5, 0.2, 1.0]), speed=0.4), start)
    assert np.linalg.norm(end.eef_pos_m - [0.5, 0.2, 1.0]) < 0.02
    assert all(np.linalg.norm(action[:3]) <= 0.4 + 1e-9 and not action[7:11].any() for action in actions)


def test_a_hand_that_is_stopped_gives_up_before_its_patience_ends():
    move = move_hand(seen(), np.array([2.0, 0.0, 1.3]), speed=0.5)
    actions = [next(move)]
    while len(actions) < 100:
        try:
            actions.append(move.send(seen()))
        except StopIteration:
            break
    assert len(actions) < 40


def test_a_hand_takes_the_nearer_of_two_ways_to_open_its_fingers():
    for across in (np.array([0.0, 1.0, 0.0]), np.array([0.0, -1.0, 0.0])):
        left = turn_to_face(seen(), np.array([0.0, 0.0, -1.0]), across)
        assert np.linalg.norm(left(seen())) < 1e-6


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


def drawer() -> Privileged:
    """A drawer straight ahead whose handle lies at a metre, opening towards the robot."""
    slide = Joint(
        kind="slide", axis=np.array([1.0, 0, 0]), anchor_m=np.zeros(3), low=-0.6, high=0.0, bodies=("box", "box_handle")
    )
    bar = Boxes(
        center_m=np.zeros((1, 3)), half_extents_m=np.array([[0.01, 0.06, 0.01]]), quat_wxyz=np.array([[1.0, 0, 0, 0]])
    )
    return scene(
        goal=(("open", "stack"),),
        joints={"slide": slide},
        joint_pos={"slide": 0.0},
        body_pos_m={"box_handle": np.array([1.0, 0.2, 0.8])},
        body_quat_wxyz={"box_handle": np.array([1.0, 0, 0, 0])},
        pieces={"box_handle": bar},
    )


@pytest.mark.parametrize("style", ["careful", "hasty"])
def test_opening_closes_the_fingers_at_the_handle_and_then_drives_back(style):
    now = seen(drawer())
    _, actions = played(open_fixture(now, STYLES[style]), now)
    grips = [action[6] for action in actions]
    first, last = grips.index(CLOSE), len(grips) - 1 - grips[::-1].index(CLOSE)
    held = np.array(actions[first : last + 1])
    assert (held[:, 6] == CLOSE).all()
    pulled = held[held[:, 11] > 0][:, 7].sum() + held[held[:, 11] < 0][:, 0].sum()
    assert pulled * UNIT_M < -0.5
    assert grips[-1] == OPEN


@pytest.mark.parametrize("style", ["careful", "hasty"])
def test_no_script_asks_for_more_than_the_robot_takes(style):
    now = seen(drawer(), yaw=0.3)
    far = replace(now, eef_pos_m=np.array([-3.0, 2.0, 0.1]), eef_quat_wxyz=np.array([0.5, 0.5, -0.5, 0.5]))
    for start in (now, far):
        _, actions = played(open_fixture(start, STYLES[style]), start, most=3000)
        assert np.abs(actions).max() <= 1.0


def test_a_base_that_is_stopped_gives_up_unless_it_insists():
    def steps(insist: bool) -> int:
        move = drive_base(seen(), np.array([2.0, 0.0]), 0.0, speed=0.5, insist=insist)
        next(move)
        for count in range(1, 200):
            try:
                move.send(seen())
            except StopIteration:
                return count
        raise AssertionError("the move does not end")

    assert steps(insist=False) < 30
    assert steps(insist=True) == 150


def test_a_hand_follows_until_there_is_nowhere_to_go():
    goal = np.array([0.5, 0.2, 1.2])

    def whither(now: Observation) -> np.ndarray | None:
        return None if np.linalg.norm(now.eef_pos_m - goal) < 0.02 else goal

    end, actions = played(follow_point(seen(), whither, speed=0.5), seen())
    assert np.linalg.norm(end.eef_pos_m - goal) < 0.02
    assert {action[6] for action in actions} == {CLOSE}
