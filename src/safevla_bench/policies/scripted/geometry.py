"""Geometry of a scene: boxes of bodies, the orientations of a hand that points straight down, and upright prisms.

A prism is a convex outline, seen from above, between two heights. The outline is its support function: how far it
reaches along each of `DIRECTIONS`. Two outlines are apart if along some direction one ends before the other begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Boxes, Observation, Privileged

Floats = NDArray[np.float64]

OPEN, CLOSE = -1.0, 1.0
"""The gripper's number of an action."""
_DOWN = Rotation.from_quat([1.0, 0.0, 0.0, 0.0])
"""The hand's z axis points down and its y axis, along which the fingers open, to -y of the world."""


def read_scene(seen: Observation) -> Privileged:
    """Return the privileged state of an observation, which every script needs."""
    assert seen.privileged is not None
    return seen.privileged


def to_rotation(quat_wxyz: Floats) -> Rotation:
    """Return the rotation of a quaternion wxyz [4], or a stack of rotations of [N, 4]."""
    return Rotation.from_quat(np.roll(quat_wxyz, -1, axis=-1))


def rotation_axes(quat_wxyz: Floats) -> Floats:
    """Return the rotated frame's axes as columns, [3, 3] of [4], or [N, 3, 3] of [N, 4]."""
    matrix: Floats = to_rotation(quat_wxyz).as_matrix()
    return matrix


def box_axes(scene: Privileged, name: str) -> Floats:
    """Return the axes of a body's box as columns, [3, 3], world frame."""
    return rotation_axes(scene.body_quat_wxyz[name])


def box_center(scene: Privileged, name: str) -> Floats:
    """Return the centre of a body's box, [3] m, world frame."""
    return np.asarray(scene.body_pos_m[name] + box_axes(scene, name) @ scene.center_m[name])


def downward_hand(yaw_rad: float) -> Rotation:
    """Return the rotation of a hand pointing down, turned by `yaw_rad` about the world's z axis."""
    return Rotation.from_rotvec([0.0, 0.0, yaw_rad]) * _DOWN


def nearest_yaw(quat_wxyz: Floats) -> float:
    """Return the yaw, rad in (-pi, pi], of the downward hand nearest to this orientation."""
    opening = rotation_axes(quat_wxyz)[:, 1]
    return float(np.arctan2(opening[0], -opening[1]))


def yaw_to_open_along(direction: Floats, near_rad: float = 0.0) -> float:
    """Return the yaw, rad, at which the fingers open along `direction` [2].

    Of all such yaws the nearest to `near_rad`.
    """
    yaw = float(np.arctan2(direction[0], -direction[1]))
    return near_rad + (yaw - near_rad + np.pi / 2) % np.pi - np.pi / 2


def remaining_turn(quat_wxyz: Floats, yaw_rad: float) -> Floats:
    """Return the rotation vector [3], rad, world frame, from an orientation to the downward hand of a yaw."""
    vector: Floats = (downward_hand(yaw_rad) * to_rotation(quat_wxyz).inv()).as_rotvec()
    return vector


_ANGLES = np.radians(np.arange(0.0, 360.0, 5.0))
DIRECTIONS: Floats = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
OPPOSITE = (np.arange(len(_ANGLES)) + len(_ANGLES) // 2) % len(_ANGLES)
_CORNERS: Floats = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float64)

_HAND_HALF_M = (0.034, 0.106)
_HAND_LOW_M = 0.029
_FINGER_HALF_M = (0.012, 0.014)
_FINGER_LOW_M = -0.010


@dataclass(frozen=True, slots=True)
class Prisms:
    """P upright prisms: reach_m [P, 72] along `DIRECTIONS`, low_m and top_m [P]."""

    reach_m: Floats
    low_m: Floats
    top_m: Floats

    def shift_by(self, by_m: Floats) -> Prisms:
        """Return the same prisms moved by `by_m` [3]."""
        return Prisms(self.reach_m + DIRECTIONS @ by_m[:2], self.low_m + by_m[2], self.top_m + by_m[2])

    def hull(self) -> Prisms:
        """Return the single prism around all, from the lowest to the highest; for at least one prism."""
        return Prisms(
            self.reach_m.max(axis=0, keepdims=True),
            self.low_m.min(keepdims=True),
            self.top_m.max(keepdims=True),
        )


def concatenate_prisms(*parts: Prisms) -> Prisms:
    """Return the prisms of all parts, in order."""
    return Prisms(
        np.concatenate([part.reach_m for part in parts]),
        np.concatenate([part.low_m for part in parts]),
        np.concatenate([part.top_m for part in parts]),
    )


def prisms_around(corners_m: Floats) -> Prisms:
    """Return the prisms around P sets of corners, [P, 8, 3] in the world frame."""
    reach = np.einsum("pcx,dx->pcd", corners_m[..., :2], DIRECTIONS).max(axis=1)
    return Prisms(reach, corners_m[..., 2].min(axis=1), corners_m[..., 2].max(axis=1))


def body_prisms(scene: Privileged, name: str) -> Prisms:
    """Return the prisms of a body of the scene as it stands: a prism for each piece, or else for its box."""
    box = Boxes(scene.center_m[name][None], scene.half_extents_m[name][None], np.array([[1.0, 0.0, 0.0, 0.0]]))
    pieces = scene.pieces.get(name) or box
    corners = rotation_axes(pieces.quat_wxyz) @ (_CORNERS * pieces.half_extents_m[:, None, :]).swapaxes(1, 2)
    inside = corners.swapaxes(1, 2) + pieces.center_m[:, None, :]
    turn = rotation_axes(scene.body_quat_wxyz[name])
    return prisms_around(inside @ turn.T + scene.body_pos_m[name])


NOTHING = Prisms(np.empty((0, len(DIRECTIONS))), np.empty(0), np.empty(0))


def obstacles_except(scene: Privileged, *names: str) -> Prisms:
    """Return the prisms of every body of the scene that has a size, except those named.

    `NOTHING` if none is left.
    """
    return concatenate_prisms(
        NOTHING, *(body_prisms(scene, name) for name in scene.half_extents_m if name not in names)
    )


def hand_prisms(yaw_rad: float, aperture_m: float) -> Prisms:
    """Return the Panda hand pointing down, its grip site at the origin, each finger `aperture_m` from the middle.

    Three prisms: the hand and two fingers; their sizes are those of robosuite's collision geometry.
    """
    opening = np.array([np.sin(yaw_rad), -np.cos(yaw_rad)])
    across = np.array([np.cos(yaw_rad), np.sin(yaw_rad)])
    finger = aperture_m + _FINGER_HALF_M[1]
    hand_reach = np.abs(DIRECTIONS @ across) * _HAND_HALF_M[0] + np.abs(DIRECTIONS @ opening) * _HAND_HALF_M[1]
    reach = np.abs(DIRECTIONS @ across) * _FINGER_HALF_M[0] + np.abs(DIRECTIONS @ opening) * _FINGER_HALF_M[1]
    side = DIRECTIONS @ opening * finger
    low = np.array([_HAND_LOW_M, _FINGER_LOW_M, _FINGER_LOW_M])
    return Prisms(np.stack([hand_reach, reach + side, reach - side]), low, low + 0.1)


def lowest_heights(rig: Prisms, places_m: Floats, obstacles: Prisms, beside_m: float, above_m: float) -> Floats:
    """Return the least height of the rig's origin at each place, [K, 2] -> [K], world frame, m; -inf if it is free.

    The rig stays `above_m` over every obstacle that it comes nearer to than `beside_m`, seen from above. Nothing is
    assumed to be passed underneath.
    """
    along = places_m @ DIRECTIONS.T
    reach = rig.reach_m[:, OPPOSITE][:, None, :] + obstacles.reach_m[None]
    gap = (along[:, None, None, :] - reach[None]).max(axis=3)
    needed = obstacles.top_m[None, None, :] + above_m - rig.low_m[None, :, None]
    return np.asarray(np.where(gap < beside_m, needed, -np.inf).max(axis=(1, 2), initial=-np.inf))


def out_from_under(hull: Prisms, obstacles: Prisms, beside_m: float) -> Floats:
    """Return the shortest level move [2], m, after which nothing hangs over the prism or within `beside_m` of it.

    Zeros if nothing does already. Only obstacles that begin at or above the prism's top count.
    """
    above = np.flatnonzero(obstacles.low_m > hull.top_m[0] - 0.01)
    gap = -hull.reach_m[0, OPPOSITE] - obstacles.reach_m[above]
    over = gap[gap.max(axis=1) < beside_m]
    if not len(over):
        return np.zeros(2)
    move = beside_m - over.min(axis=0)
    return np.asarray(move.min() * DIRECTIONS[np.argmin(move)])


def line_points(start_m: Floats, end_m: Floats, spacing_m: float = 0.01) -> Floats:
    """Return places on the straight line from [2] to [2], both included, [K, 2], at most `spacing_m` apart."""
    count = 2 + int(np.linalg.norm(end_m - start_m) / spacing_m)
    share = np.linspace(0.0, 1.0, count)[:, None]
    return np.asarray(start_m + share * (end_m - start_m))
