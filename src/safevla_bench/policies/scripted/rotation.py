"""Orientations of a hand that points straight down, and the turn that brings a hand there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

Floats = NDArray[np.float64]

UPRIGHT = (0.0, 0.0, 0.0)
_DOWN = Rotation.from_quat([1.0, 0.0, 0.0, 0.0])
"""The hand's z axis points down and its y axis, along which the fingers open, to -y of the world."""


def rotation(quat_wxyz: Floats) -> Rotation:
    """One rotation of [4], or a stack of [N, 4]."""
    return Rotation.from_quat(np.roll(quat_wxyz, -1, axis=-1))


def axes(quat_wxyz: Floats) -> Floats:
    """The rotated frame's axes as columns, [3, 3] of [4], or [N, 3, 3] of [N, 4]."""
    matrix: Floats = rotation(quat_wxyz).as_matrix()
    return matrix


def downward(yaw_rad: float) -> Rotation:
    """A hand pointing down, turned by `yaw_rad` about the world's z axis."""
    return Rotation.from_rotvec([0.0, 0.0, yaw_rad]) * _DOWN


def leaning(quat_wxyz: Floats) -> float:
    """How far from straight down the hand points, rad."""
    return float(np.arccos(np.clip(-axes(quat_wxyz)[2, 2], -1.0, 1.0)))


def yaw_of(quat_wxyz: Floats) -> float:
    """The yaw, rad in (-pi, pi], of the downward hand nearest to this orientation."""
    opening = axes(quat_wxyz)[:, 1]
    return float(np.arctan2(opening[0], -opening[1]))


def yaw_to_open_along(direction: Floats, near_rad: float = 0.0) -> float:
    """The yaw, rad, at which the fingers open along `direction` [2]; of the two, the nearer to `near_rad`."""
    yaw = float(np.arctan2(direction[0], -direction[1]))
    return near_rad + (yaw - near_rad + np.pi / 2) % np.pi - np.pi / 2


def turn_left(quat_wxyz: Floats, yaw_rad: float, lean: tuple[float, float, float] = UPRIGHT) -> Floats:
    """Rotation vector [3], rad, world frame, from this orientation to the downward hand of that yaw, leaning."""
    vector: Floats = (Rotation.from_rotvec(lean) * downward(yaw_rad) * rotation(quat_wxyz).inv()).as_rotvec()
    return vector
