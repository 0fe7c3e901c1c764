"""The turn that points a hand down, and how low a hand may go: never into what stands there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Boxes
from safevla_bench.policies.scripted import motion
from safevla_bench.policies.scripted.motion import (
    TURN_GAIN,
    downward_hand,
    nearest_yaw,
    remaining_turn,
    rotation_axes,
    yaw_to_open_along,
)

ANGLES = st.floats(-3.1, 3.1)
VECTORS = st.tuples(*[st.floats(-1.7, 1.7)] * 3)


def wxyz(rotation: Rotation) -> np.ndarray:
    return np.roll(rotation.as_quat(), 1)


@given(VECTORS, ANGLES)
def test_turning_by_what_is_left_arrives(vector, yaw):
    start = Rotation.from_rotvec(vector)
    arrived = Rotation.from_rotvec(remaining_turn(wxyz(start), yaw)) * start
    np.testing.assert_allclose(arrived.as_matrix(), downward_hand(yaw).as_matrix(), atol=1e-9)


@given(VECTORS, ANGLES)
def test_the_proportional_term_never_adds_to_the_error(vector, yaw):
    start = Rotation.from_rotvec(vector)
    error = remaining_turn(wxyz(start), yaw)
    after = remaining_turn(wxyz(Rotation.from_rotvec(TURN_GAIN * error) * start), yaw)
    assert np.linalg.norm(after) <= (1 - TURN_GAIN) * np.linalg.norm(error) + 1e-6


@given(ANGLES)
def test_the_yaw_of_a_downward_hand_is_the_yaw_it_was_made_with(yaw):
    assert abs(nearest_yaw(wxyz(downward_hand(yaw))) - yaw) < 1e-9


@given(ANGLES, ANGLES)
def test_fingers_open_along_the_direction_asked_for_with_the_least_turn(direction, near):
    along = np.array([np.cos(direction), np.sin(direction)])
    yaw = yaw_to_open_along(along, near)
    opening = rotation_axes(wxyz(downward_hand(yaw)))[:, 1]
    assert abs(abs(opening[:2] @ along) - 1) < 1e-9
    assert abs(yaw - near) <= np.pi / 2 + 1e-9


NEAR, FAR = np.array([[0.0, 0.0]]), np.array([[1.0, 0.0]])
WALLS = Boxes(
    center_m=np.array([[0.1, 0, 0], [-0.1, 0, 0], [0, 0.1, 0], [0, -0.1, 0], [0, 0, -0.05]], dtype=np.float64),
    half_extents_m=np.array([[0.01, 0.1, 0.06]] * 2 + [[0.1, 0.01, 0.06]] * 2 + [[0.1, 0.1, 0.01]]),
    quat_wxyz=np.tile([1.0, 0, 0, 0], (5, 1)),
)
FINGER = motion.prisms_around(
    np.array([[[x, y, z] for x in (-0.01, 0.01) for y in (-0.01, 0.01) for z in (0, 0.1)]]).reshape(1, 8, 3)
)


@pytest.fixture
def box(scene):
    return motion.body_prisms(scene({"box": ([0, 0, 0.05], [0.03, 0.03, 0.05])}), "box")


def test_over_a_body_a_finger_stays_above_its_top_by_the_clearance(box):
    assert motion.lowest_heights(FINGER, NEAR, box, 0.0, 0.02) == pytest.approx([0.12])


@given(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2), st.floats(0, 0.05), st.floats(0, 0.05), st.floats(-3, 3))
def test_more_clearance_never_lets_the_hand_lower(x, y, less, more, yaw):
    corners = np.array([[[a, b, c] for a in (-0.03, 0.03) for b in (-0.05, 0.05) for c in (0, 0.1)]])
    rig, obstacle, place = (
        motion.hand_prisms(yaw, 0.02),
        motion.prisms_around(corners.reshape(1, 8, 3)),
        np.array([[x, y]]),
    )
    tight, wide = sorted((less, more))
    low, high = (motion.lowest_heights(rig, place, obstacle, margin, margin)[0] for margin in (tight, wide))
    assert low <= high


@given(st.floats(-0.1, 0.1), st.floats(-0.1, 0.1), st.floats(-3, 3))
def test_a_place_and_a_scene_that_move_together_ask_the_same_height(x, y, yaw):
    corners = np.array([[[a, b, c] for a in (-0.03, 0.03) for b in (-0.05, 0.05) for c in (0, 0.1)]]).reshape(1, 8, 3)
    obstacle, rig = motion.prisms_around(corners), motion.hand_prisms(yaw, 0.02)
    move = np.array([x, y, 0.0])
    here = motion.lowest_heights(rig, NEAR, obstacle, 0.01, 0.01)
    there = motion.lowest_heights(rig, NEAR + move[:2], obstacle.shift_by(move), 0.01, 0.01)
    np.testing.assert_allclose(here, there)


def test_pieces_show_that_a_drawer_is_hollow_which_its_box_hides(scene):
    boxes = {"drawer": ([0, 0, 0], [0.11, 0.11, 0.06])}
    hull, hollow = (
        motion.body_prisms(scene(boxes), "drawer"),
        motion.body_prisms(scene(boxes, pieces={"drawer": WALLS}), "drawer"),
    )
    assert motion.lowest_heights(FINGER, NEAR, hull, 0.005, 0.0) == pytest.approx([0.06])
    assert motion.lowest_heights(FINGER, NEAR, hollow, 0.005, 0.0) == pytest.approx([-0.04])


def test_a_turned_body_is_as_wide_as_it_is_along_each_direction(scene):
    quarter = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]
    turned = motion.body_prisms(scene({"box": ([0, 0, 0], [0.1, 0.02, 0.02])}, turned={"box": quarter}), "box")
    reach = turned.reach_m[0]
    assert reach[[0, 18]] == pytest.approx([0.02, 0.1])


def test_nothing_above_asks_for_no_move(box):
    held = motion.prisms_around(
        np.array([[[x, y, z] for x in (-0.05, 0.05) for y in (-0.05, 0.05) for z in (0, 0.2)]]).reshape(1, 8, 3)
    )
    np.testing.assert_array_equal(motion.out_from_under(held, box, 0.01), [0, 0])


def test_after_the_move_from_under_a_lid_nothing_hangs_over(scene):
    lid = motion.body_prisms(scene({"lid": ([0.1, 0, 0.15], [0.08, 0.2, 0.01])}), "lid")
    held = motion.body_prisms(scene({"bowl": ([0, 0, 0.05], [0.05, 0.05, 0.05])}), "bowl")
    move = motion.out_from_under(held, lid, 0.01)
    assert move == pytest.approx([-0.04, 0])
    np.testing.assert_allclose(motion.out_from_under(held.shift_by(np.array([*move, 0])), lid, 0.0099), [0, 0])
