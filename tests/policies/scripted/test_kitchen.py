"""Handles, courses and shelves: geometry on kitchens made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Boxes, Joint, Observation, Privileged
from safevla_bench.policies.scripted.kitchen import (
    body_boxes,
    find_shelves,
    grasp_point,
    handle_box,
    motion_direction,
    move_point,
    open_position,
    point_on_door,
)
from safevla_bench.policies.scripted.mobile import CAREFUL, MobileRobot

NUMBER = st.floats(-2.0, 2.0)
POINT = st.tuples(NUMBER, NUMBER, NUMBER).map(np.array)
AXIS = POINT.filter(lambda vector: np.linalg.norm(vector) > 0.1).map(lambda vector: vector / np.linalg.norm(vector))
KINDS = ("hinge", "slide")


def joint(kind="hinge", axis=(0.0, 0.0, 1.0), anchor=(0.0, 0.0, 1.5), low=-1.57, high=0.0, bodies=("door", "grip")):
    return Joint(kind=kind, axis=np.array(axis), anchor_m=np.array(anchor), low=low, high=high, bodies=bodies)


def boxes(*given) -> Boxes:
    """From (centre, half extents), with the body's axes."""
    centers, halves = (np.array(vector, dtype=float) for vector in zip(*given, strict=True))
    return Boxes(center_m=centers, half_extents_m=halves, quat_wxyz=np.tile([1.0, 0, 0, 0], (len(given), 1)))


def kitchen(pieces: dict[str, Boxes], turned: Rotation | None = None, **given) -> Privileged:
    quat = np.roll((turned or Rotation.identity()).as_quat(), 1)
    nothing = {"half_extents_m": {}, "center_m": {}, "joint_pos": {}, "sites_m": {}, "goal": (("open", "cab"),)}
    where = {name: np.array([1.0, 2.0, 0.5]) for name in pieces}
    turns = dict.fromkeys(pieces, quat)
    return Privileged(
        body_pos_m=where, body_quat_wxyz=turns, pieces=pieces, movable=frozenset(), **(nothing | given)
    )  # fmt: skip


@given(POINT, AXIS, POINT, st.floats(-1.5, 1.5), st.sampled_from(KINDS))
def test_what_a_joint_carries_comes_back(anchor, axis, point, by, kind):
    moving = joint(kind, axis, anchor)
    np.testing.assert_allclose(move_point(moving, move_point(moving, point, by), -by), point, atol=1e-9)


@given(POINT, AXIS, POINT, st.floats(-1.5, 1.5))
def test_a_hinge_keeps_a_point_as_far_from_its_axis_and_as_high_along_it(anchor, axis, point, by):
    off, after = point - anchor, move_point(joint("hinge", axis, anchor), point, by) - anchor
    assert np.linalg.norm(after) == pytest.approx(np.linalg.norm(off), abs=1e-9)
    assert after @ axis == pytest.approx(off @ axis, abs=1e-9)


@given(POINT, AXIS, POINT, st.sampled_from(KINDS))
def test_the_course_is_the_direction_in_which_a_point_is_carried(anchor, axis, point, kind):
    moving = joint(kind, axis, anchor)
    step = move_point(moving, point, 1e-6) - point
    if np.linalg.norm(step) > 1e-8:
        np.testing.assert_allclose(motion_direction(moving, point), step / np.linalg.norm(step), atol=1e-3)


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


def test_a_handle_s_name_counts_only_beyond_that_of_the_body_that_moves():
    pieces = {"handle_drawer": boxes(([0, 0, 0], [0.3, 0.2, 0.1])), "front": boxes(([0, 0, 0], [0.4, 0.01, 0.1]))}
    scene = kitchen(pieces, joints={"slide": joint("slide", bodies=("handle_drawer", "front"))})
    assert handle_box(scene, "slide").half_m.max() == 0.4


@pytest.mark.parametrize(("low", "high", "end"), [(-1.57, 0.0, -1.57), (0.0, 1.57, 1.57), (-0.6, 0.0, -0.6)])
def test_open_is_the_end_that_is_farther_from_0(low, high, end):
    assert open_position(joint(low=low, high=high)) == end


def test_the_inside_of_a_door_is_the_side_that_it_covers_however_far_it_is_open():
    """A door hinged at x = 0 that reaches to x = 0.4 in front of a cabinet behind it, at greater y."""
    (closed,) = body_boxes(kitchen({"grip": boxes(([-0.6, -2.0, 1.0], [0.01, 0.01, 0.1]))}), "grip")
    scene = kitchen({}, joints={"hinge": joint()}, joint_pos={"hinge": 0.0})
    np.testing.assert_allclose(point_on_door(scene, "hinge", closed, 0.0, 1.0, 0.05), [0.4, 0.05, 1.5], atol=1e-9)
    wide = point_on_door(scene, "hinge", closed, -np.pi / 2, 0.5, 0.05)
    np.testing.assert_allclose(wide, [0.05, -0.2, 1.5], atol=1e-9)


def cup(half_m: float) -> tuple[MobileRobot, np.ndarray]:
    """A ring of four walls with a floor, and a robot that faces it along x."""
    walls = [([0, half_m, 0], [half_m, 0.004, 0.05]), ([half_m, 0, 0], [0.004, half_m, 0.05])]
    walls += [([0, -half_m, 0], [half_m, 0.004, 0.05]), ([-half_m, 0, 0], [0.004, half_m, 0.05])]
    floor = ([0, 0, -0.05], [half_m, half_m, 0.004])
    half, middle = np.array([half_m, half_m, 0.05]), np.array([1.0, 2.0, 0.5])
    scene = kitchen({"cup": boxes(floor, *walls)}, half_extents_m={"cup": half}, center_m={"cup": np.zeros(3)})
    still = np.array([1.0, 0, 0, 0])
    pose = {"base_pos_m": np.zeros(3), "base_quat_wxyz": still, "eef_pos_m": np.zeros(3), "eef_quat_wxyz": still}
    seen = Observation(instruction="", gripper_qpos=np.zeros(2), privileged=scene, **pose)
    return MobileRobot(seen, CAREFUL), middle


def test_a_narrow_object_is_held_around_its_middle_and_a_wide_one_by_a_wall_at_its_side():
    robot, middle = cup(0.03)
    np.testing.assert_allclose(grasp_point(robot, "cup"), middle)
    robot, middle = cup(0.06)
    np.testing.assert_allclose(np.abs(grasp_point(robot, "cup") - middle), [0, 0.06, 0], atol=1e-12)


def test_shelves_are_the_flat_boards_of_a_fixture_from_low_to_high():
    walls, floor = ([0.2, 0, 0.4], [0.01, 0.2, 0.4]), ([0, 0, 0], [0.2, 0.2, 0.01])
    ledge, above = ([0, 0, 0.2], [0.2, 0.02, 0.01]), ([0, 0, 0.3], [0.2, 0.2, 0.01])
    pieces = {"cab_main": boxes(above, walls, ledge), "cab_level": boxes(floor), "other": boxes(floor)}
    boards = find_shelves(kitchen(pieces), "cab")
    np.testing.assert_allclose([board.center_m[2] for board in boards], [0.5, 0.8])
