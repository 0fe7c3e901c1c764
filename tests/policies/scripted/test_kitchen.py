"""Scripts for a mobile robot, on a caricature of one: a point base and a point hand that go where they are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from safevla_bench.errors import PolicyError
from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Boxes, Joint, Observation, Privileged
from safevla_bench.policies import make_policy
from safevla_bench.policies.scripted.geometry import CLOSE, OPEN, to_rotation
from safevla_bench.policies.scripted.kitchen import (
    STYLES,
    MobileRobot,
    body_boxes,
    grasp_point,
    handle_box,
    open_drawers,
)

UNIT_M = 0.05
CAREFUL = STYLES["careful"]


def scene(**fields) -> Privileged:
    nothing = {"body_pos_m": {}, "body_quat_wxyz": {}, "half_extents_m": {}, "center_m": {}, "joint_pos": {}}
    return Privileged(**(nothing | {"sites_m": {}, "goal": (("wait",),), "movable": frozenset()} | fields))


def observe(privileged: Privileged | None = None, yaw: float = 0.0) -> Observation:
    return Observation(
        instruction="go",
        eef_pos_m=np.array([0.3, 0.0, 1.3]),
        eef_quat_wxyz=np.array([0.0, 1.0, 0.0, 0.0]),
        gripper_qpos=np.array([0.04, -0.04]),
        privileged=privileged or scene(),
        base_pos_m=np.array([0.0, 0.0, 0.7]),
        base_quat_wxyz=np.array([np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]),
    )


def move_robot(now: Observation, action: np.ndarray) -> Observation:
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


def play(move, now: Observation, most: int = 1000) -> list[np.ndarray]:
    actions: list[np.ndarray] = []
    try:
        actions.append(next(move))
        while len(actions) < most:
            now = move_robot(now, actions[-1])
            actions.append(move.send(now))
    except StopIteration:
        return actions
    raise AssertionError("the move does not end")


@pytest.mark.parametrize("yaw", [0.0, 2.0, -3.0])
def test_the_base_arrives_where_it_is_driven_whatever_way_it_faces(yaw):
    start = observe(yaw=yaw)
    robot = MobileRobot(start, CAREFUL)
    actions = play(robot.drive(np.array([0.6, -0.4]), 1.0, speed=0.5), start)
    assert np.linalg.norm(robot.place_m - [0.6, -0.4]) < 0.05
    assert abs(robot.yaw - 1.0) < 0.06
    assert all(np.abs(action[7:10]).max() <= 0.5 and not action[:6].any() for action in actions)


@pytest.mark.parametrize("yaw", [0.0, 2.0])
def test_the_hand_arrives_where_it_reaches_in_world_axes(yaw):
    start = observe(yaw=yaw)
    robot = MobileRobot(start, CAREFUL)
    actions = play(robot.reach(np.array([0.5, 0.2, 1.0]), OPEN, speed=0.4), start)
    assert np.linalg.norm(robot.hand_m - [0.5, 0.2, 1.0]) < 0.02
    assert all(np.linalg.norm(action[:3]) <= 0.4 + 1e-9 and not action[7:11].any() for action in actions)


def test_a_hand_that_is_stopped_gives_up_before_its_patience_ends():
    move = MobileRobot(observe(), CAREFUL).reach(np.array([2.0, 0.0, 1.3]), OPEN, speed=0.5)
    actions = [next(move)]
    while len(actions) < 100:
        try:
            actions.append(move.send(observe()))
        except StopIteration:
            break
    assert len(actions) < 40


def test_a_hand_takes_the_nearer_of_two_ways_to_open_its_fingers():
    for across in (np.array([0.0, 1.0, 0.0]), np.array([0.0, -1.0, 0.0])):
        facing = MobileRobot(observe(), CAREFUL).face(np.array([0.0, 0.0, -1.0]), across)
        assert (facing * to_rotation(observe().eef_quat_wxyz).inv()).magnitude() < 1e-6


def test_a_goal_without_a_script_is_waited_out():
    policy = make_policy("scripted:careful")
    task = make_host("robocasa").tasks("robocasa-365")[0]
    policy.reset(task, 0)
    for _ in range(3):
        np.testing.assert_array_equal(policy.act(observe()), task.still)


def test_a_script_begins_anew_after_a_reset_and_ends_in_stillness():
    site = {"goal": np.array([0.2, 0.0, 0.0]), "goal_ahead": np.array([1.2, 0.0, 0.0])}
    policy, task = make_policy("scripted:hasty"), make_host("robocasa").tasks("robocasa-365")[4]
    runs = []
    for _ in range(2):
        policy.reset(task, 0)
        now, actions = observe(scene(goal=(("at", "sink"),), sites_m=site)), []
        for _ in range(120):
            actions.append(policy.act(now))
            now = move_robot(now, actions[-1])
        runs.append(np.array(actions))
    np.testing.assert_array_equal(*runs)
    np.testing.assert_array_equal(runs[0][-1], task.still)
    assert np.linalg.norm(now.base_pos_m[:2] - [0.2, 0.0]) < 0.06


def test_without_privileged_state_there_is_an_error():
    policy = make_policy("scripted:careful")
    policy.reset(make_host("robocasa").tasks("robocasa-365")[0], 0)
    with pytest.raises(PolicyError, match="privileged"):
        policy.act(replace(observe(), privileged=None))


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
    now = observe(drawer())
    actions = play(open_drawers(MobileRobot(now, STYLES[style])), now)
    grips = [action[6] for action in actions]
    first, last = grips.index(CLOSE), len(grips) - 1 - grips[::-1].index(CLOSE)
    pull = np.array(actions[first : last + 1])
    assert (pull[:, 6] == CLOSE).all()
    pulled = pull[pull[:, 11] > 0][:, 7].sum() + pull[pull[:, 11] < 0][:, 0].sum()
    assert pulled * UNIT_M < -0.5
    assert grips[-1] == OPEN


@pytest.mark.parametrize("style", ["careful", "hasty"])
def test_no_script_asks_for_more_than_the_robot_takes(style):
    now = observe(drawer(), yaw=0.3)
    far = replace(now, eef_pos_m=np.array([-3.0, 2.0, 0.1]), eef_quat_wxyz=np.array([0.5, 0.5, -0.5, 0.5]))
    for start in (now, far):
        actions = play(open_drawers(MobileRobot(start, STYLES[style])), start, most=3000)
        assert np.abs(actions).max() <= 1.0


def test_a_base_that_is_stopped_gives_up_unless_it_insists():
    def steps(insist: bool) -> int:
        move = MobileRobot(observe(), CAREFUL).drive(np.array([2.0, 0.0]), 0.0, speed=0.5, insist=insist)
        next(move)
        for count in range(1, 200):
            try:
                move.send(observe())
            except StopIteration:
                return count
        raise AssertionError("the move does not end")

    assert steps(insist=False) < 30
    assert steps(insist=True) == 150


# Handles and grasps


def joint(kind="hinge", axis=(0.0, 0.0, 1.0), anchor=(0.0, 0.0, 1.5), low=-1.57, high=0.0, bodies=("door", "grip")):
    return Joint(kind=kind, axis=np.array(axis), anchor_m=np.array(anchor), low=low, high=high, bodies=bodies)


def boxes(*pieces) -> Boxes:
    """From (centre, half extents), with the body's axes."""
    centers, halves = (np.array(vector, dtype=float) for vector in zip(*pieces, strict=True))
    return Boxes(center_m=centers, half_extents_m=halves, quat_wxyz=np.tile([1.0, 0, 0, 0], (len(pieces), 1)))


def kitchen(pieces: dict[str, Boxes], turned: Rotation | None = None, **fields) -> Privileged:
    quat = np.roll((turned or Rotation.identity()).as_quat(), 1)
    nothing = {"half_extents_m": {}, "center_m": {}, "joint_pos": {}, "sites_m": {}, "goal": (("open", "cab"),)}
    where = {name: np.array([1.0, 2.0, 0.5]) for name in pieces}
    turns = dict.fromkeys(pieces, quat)
    return Privileged(
        body_pos_m=where, body_quat_wxyz=turns, pieces=pieces, movable=frozenset(), **(nothing | fields)
    )  # fmt: skip


def test_bars_stand_where_their_body_does_and_turn_with_it():
    turned = Rotation.from_euler("z", 90, degrees=True)
    (bar,) = body_boxes(kitchen({"grip": boxes(([0.2, 0, 0], [0.1, 0.01, 0.02]))}, turned), "grip")
    np.testing.assert_allclose(bar.center_m, [1.0, 2.2, 0.5], atol=1e-12)
    np.testing.assert_allclose(np.abs(bar.long_axis), [0, 1, 0], atol=1e-12)
    assert bar.extent_along(np.array([0.0, 1.0, 0.0])) == pytest.approx(0.1)


def test_a_handle_is_the_longest_bar_of_what_is_called_so_else_of_all_that_moves():
    mount, grip, panel = (
        ([0, 0, 0.1], [0.01, 0.02, 0.01]),
        ([0, 0, 0], [0.01, 0.01, 0.1]),
        ([0, 0, 0], [0.3, 0.01, 0.4]),
    )
    pieces = {"cab_door": boxes(panel), "cab_door_handle_main": boxes(mount, grip)}
    doors = {"hinge": joint(bodies=("cab_door", "cab_door_handle_main")), "plain": joint(bodies=("cab_door",))}
    scene = kitchen(pieces, joints=doors)
    assert handle_box(scene, "hinge").half_m.max() == 0.1
    assert handle_box(scene, "plain").half_m.max() == 0.4


def cup(half_m: float) -> tuple[MobileRobot, np.ndarray]:
    """A ring of four walls with a floor, and a robot that faces it along x."""
    walls = [([0, half_m, 0], [half_m, 0.004, 0.05]), ([half_m, 0, 0], [0.004, half_m, 0.05])]
    walls += [([0, -half_m, 0], [half_m, 0.004, 0.05]), ([-half_m, 0, 0], [0.004, half_m, 0.05])]
    floor = ([0, 0, -0.05], [half_m, half_m, 0.004])
    half, middle = np.array([half_m, half_m, 0.05]), np.array([1.0, 2.0, 0.5])
    scene = kitchen({"cup": boxes(floor, *walls)}, half_extents_m={"cup": half}, center_m={"cup": np.zeros(3)})
    still = np.array([1.0, 0, 0, 0])
    pose = {"base_pos_m": np.zeros(3), "base_quat_wxyz": still, "eef_pos_m": np.zeros(3), "eef_quat_wxyz": still}
    observation = Observation(instruction="", gripper_qpos=np.zeros(2), privileged=scene, **pose)
    return MobileRobot(observation, CAREFUL), middle


def test_a_narrow_object_is_held_around_its_middle_and_a_wide_one_by_a_wall_at_its_side():
    robot, middle = cup(0.03)
    np.testing.assert_allclose(grasp_point(robot, "cup"), middle)
    robot, middle = cup(0.06)
    np.testing.assert_allclose(np.abs(grasp_point(robot, "cup") - middle), [0, 0.06, 0], atol=1e-12)
