"""Where to take hold of an object: across its narrow side, or at the rim where it is wider than the fingers open."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Privileged
from safevla_bench.policies.scripted.rotation import axes, yaw_to_open_along
from safevla_bench.policies.scripted.shapes import Prisms, gripper, lowest

Floats = NDArray[np.float64]

WIDEST_HALF_M = 0.036
"""Half of the widest object that fits between the open fingers with a little room."""
OPEN_M = 0.039
DEPTH_M = 0.026
"""How far below an object's top the fingertips' middle goes; the hand itself begins 31 mm above it."""
LEAST_DEPTH_M = 0.010
LEAST_HEIGHT_M = 0.012
"""Above an object's bottom, so that the fingertips stay off what it stands on."""
RIM_INSET_M = 0.004
RIM_APERTURE_M = 0.025
ROOM_M = 0.014
"""Between an object's side and each finger before they close."""
RIM_ANGLES = 24


@dataclass(frozen=True, slots=True)
class Grasp:
    """place_m [3] of the grip site, world frame; yaw of the downward hand; each finger's distance from the middle."""

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    blocked_m: float = 0.0
    """By how much its surroundings keep it above the height that is best."""


def grasps(scene: Privileged, name: str, obstacles: Prisms, yaw_rad: float, clearance_m: float) -> tuple[Grasp, ...]:
    """Every way to take hold of a body, the best first: least blocked, then least turning from `yaw_rad`."""
    found = [_fitted(grasp, obstacles, clearance_m) for grasp in _candidates(scene, name, yaw_rad)]
    return tuple(sorted(found, key=lambda grasp: _cost(grasp, yaw_rad)))


def _cost(grasp: Grasp, yaw_rad: float) -> float:
    """A centimetre less depth weighs as much as a half turn; what cannot hold comes last."""
    hopeless = grasp.blocked_m > DEPTH_M - LEAST_DEPTH_M
    return grasp.blocked_m / 0.01 + abs(grasp.yaw_rad - yaw_rad) / np.pi + 100.0 * hopeless


def _fitted(grasp: Grasp, obstacles: Prisms, clearance_m: float) -> Grasp:
    """The grasp, raised as far as what stands around it demands."""
    rig = gripper(grasp.yaw_rad, grasp.aperture_m)
    floor = float(lowest(rig, grasp.place_m[None, :2], obstacles, clearance_m, min(clearance_m, 0.004))[0])
    height = max(float(grasp.place_m[2]), floor)
    blocked = height - float(grasp.place_m[2])
    return replace(grasp, place_m=np.array([*grasp.place_m[:2], height]), blocked_m=blocked)


def _candidates(scene: Privileged, name: str, yaw_rad: float) -> list[Grasp]:
    turn = axes(scene.body_quat_wxyz[name])
    half = scene.half_extents_m[name]
    center = scene.body_pos_m[name] + turn @ scene.center_m[name]
    up = int(np.argmax(np.abs(turn[2])))
    flat = [axis for axis in range(3) if axis != up]
    narrow = [axis for axis in flat if half[axis] <= WIDEST_HALF_M]
    if narrow:
        return [_across(center, turn[:, axis], float(half[axis]), float(half[up]), yaw_rad) for axis in narrow]
    rise = turn[:, up] * np.sign(turn[2, up]) * half[up]
    sides = turn[:, flat] * (half[flat] - RIM_INSET_M)
    angles = np.arange(RIM_ANGLES) * 2 * np.pi / RIM_ANGLES
    return [_at_rim(center + rise, sides @ [np.cos(angle), np.sin(angle)], half[up], yaw_rad) for angle in angles]


def _across(center: Floats, axis: Floats, half: float, half_height: float, yaw_rad: float) -> Grasp:
    height = max(center[2] + half_height - DEPTH_M, center[2] - half_height + LEAST_HEIGHT_M)
    yaw = yaw_to_open_along(axis[:2], yaw_rad)
    return Grasp(np.array([*center[:2], height]), yaw, min(OPEN_M, half + ROOM_M))


def _at_rim(middle: Floats, outward: Floats, half_height: float, yaw_rad: float) -> Grasp:
    depth = min(DEPTH_M, 2 * half_height - LEAST_HEIGHT_M)
    place = middle + outward - np.array([0.0, 0.0, depth])
    return Grasp(place, yaw_to_open_along(outward[:2], yaw_rad), RIM_APERTURE_M)
