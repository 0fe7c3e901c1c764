"""Laws of the turn that points a hand down."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from safevla_bench.policies.scripted.policy import TURN_GAIN
from safevla_bench.policies.scripted.rotation import (
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
    left = remaining_turn(wxyz(start), yaw)
    after = remaining_turn(wxyz(Rotation.from_rotvec(TURN_GAIN * left) * start), yaw)
    assert np.linalg.norm(after) <= (1 - TURN_GAIN) * np.linalg.norm(left) + 1e-6


@given(ANGLES)
def test_the_yaw_of_a_downward_hand_is_the_yaw_it_was_made_with(yaw):
    assert abs(nearest_yaw(wxyz(downward_hand(yaw))) - yaw) < 1e-9


@given(ANGLES, ANGLES)
def test_fingers_open_along_the_direction_asked_for_with_the_least_turn(direction, near):
    wanted = np.array([np.cos(direction), np.sin(direction)])
    yaw = yaw_to_open_along(wanted, near)
    opening = rotation_axes(wxyz(downward_hand(yaw)))[:, 1]
    assert abs(abs(opening[:2] @ wanted) - 1) < 1e-9
    assert abs(yaw - near) <= np.pi / 2 + 1e-9
