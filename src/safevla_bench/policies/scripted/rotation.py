"""Orientations of a hand that points straight down, and the turn that brings a hand there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

Floats = NDArray[np.float64]

UPRIGHT = (0.0, 0.0, 0.0)
_DOWN = Rotation.from_quat([1.0, 0.0, 0.0, 0.0])
"""The hand's z axis points down and its y axis, along which the fingers open, to -y of the world."""


def to_rotation(quat_wxyz: Floats) -> Rotation:
    """Return one rotation of a quaternion [4], or a stack of [N, 4]."""
    return Rotation.from_quat(np.roll(quat_wxyz, -1, axis=-1))


def rotation_axes(quat_wxyz: Floats) -> Floats:
    """Return the rotated frame's axes as columns, [3, 3] of [4], or [N, 3, 3] of [N, 4]."""
    matrix: Floats = to_rotation(quat_wxyz).as_matrix()
    return matrix


def downward_hand(yaw_rad: float) -> Rotation:
    """Return the rotation of a hand pointing down, turned by `yaw_rad` about the world's z axis."""
    return Rotation.from_rotvec([0.0, 0.0, yaw_rad]) * _DOWN


def lean_angle(quat_wxyz: Floats) -> float:
    """Return the angle between the hand's direction and straight down, rad."""
    return float(np.arccos(np.clip(-rotation_axes(quat_wxyz)[2, 2], -1.0, 1.0)))


def nearest_yaw(quat_wxyz: Floats) -> float:
    """Return the yaw, rad in (-pi, pi], of the downward hand nearest to this orientation."""
    opening = rotation_axes(quat_wxyz)[:, 1]
    return float(np.arctan2(opening[0], -opening[1]))


def yaw_to_open_along(direction: Floats, near_rad: float = 0.0) -> float:
    """Return the yaw, rad, at which the fingers open along `direction` [2]; of the two, the nearer to `near_rad`."""
    yaw = float(np.arctan2(direction[0], -direction[1]))
    return near_rad + (yaw - near_rad + np.pi / 2) % np.pi - np.pi / 2


def remaining_turn(quat_wxyz: Floats, yaw_rad: float, lean: tuple[float, float, float] = UPRIGHT) -> Floats:
    """Return the rotation vector [3], rad, world frame, from an orientation to the leaning hand of a yaw."""
    vector: Floats = (Rotation.from_rotvec(lean) * downward_hand(yaw_rad) * to_rotation(quat_wxyz).inv()).as_rotvec()
    return vector
