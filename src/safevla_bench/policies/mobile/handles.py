"""Handles of a fixture's doors and drawers, and the motion of their joints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface import Joint, Privileged

Floats = NDArray[np.float64]
_HANDLE = "handle"


@dataclass(frozen=True, slots=True)
class OrientedBox:
    """A box in the world frame: centre [3] m, axes as columns [3, 3], half extents [3] m along these."""

    center_m: Floats
    axes: Floats
    half_m: Floats

    @property
    def long_axis(self) -> Floats:
        """The unit vector of its longest side, [3]."""
        direction: Floats = self.axes[:, int(np.argmax(self.half_m))]
        return direction

    def extent_along(self, direction: Floats) -> float:
        """Return half its extent along a unit vector [3], m."""
        return float(np.abs(direction @ self.axes) @ self.half_m)


def body_boxes(scene: Privileged, name: str) -> list[OrientedBox]:
    """Return the pieces of a body's collision geometry as boxes in the world frame."""
    if name not in scene.pieces:
        return []
    turn = Rotation.from_quat(np.roll(scene.body_quat_wxyz[name], -1))
    boxes = scene.pieces[name]
    centers = scene.body_pos_m[name] + turn.apply(boxes.center_m)
    axes = (turn * Rotation.from_quat(np.roll(boxes.quat_wxyz, -1, axis=1))).as_matrix()
    return [OrientedBox(*row) for row in zip(centers, axes, boxes.half_extents_m, strict=True)]


def handle_box(scene: Privileged, joint: str) -> OrientedBox:
    """Return the longest box of the handle that a joint moves, or of all that it moves where no body is called so."""
    bodies = scene.joints[joint].bodies
    names = [name for name in bodies if _HANDLE in name.removeprefix(bodies[0])] or list(bodies)
    return max((bar for name in names for bar in body_boxes(scene, name)), key=lambda bar: float(bar.half_m.max()))


def move_point(joint: Joint, point_m: Floats, by: float) -> Floats:
    """Return a point [3] that the joint moves after its position changed by `by`, rad or m."""
    if joint.kind == "slide":
        return np.asarray(point_m + by * joint.axis)
    return np.asarray(joint.anchor_m + Rotation.from_rotvec(by * joint.axis).apply(point_m - joint.anchor_m))


def motion_direction(joint: Joint, point_m: Floats) -> Floats:
    """Return the unit vector [3] along which a point moves as the joint's position grows."""
    way = joint.axis if joint.kind == "slide" else np.cross(joint.axis, point_m - joint.anchor_m)
    return np.asarray(way / max(float(np.linalg.norm(way)), 1e-9))


def open_position(joint: Joint) -> float:
    """Return the joint's position, rad or m, at the end farther from 0, where RoboCasa has fixtures open."""
    return max(joint.low, joint.high, key=abs)
