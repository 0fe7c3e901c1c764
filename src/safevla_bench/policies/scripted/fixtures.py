"""Drawers, doors and knobs: the moving part of a fixture, its position, and the direction of its motion.

The privileged state names joints and their positions but neither their axes nor their bodies. These follow from names
and shapes: a drawer is the part around its region and slides out where its handle sticks out, a door hangs at
its body's origin and shuts towards the rest of its fixture, a knob turns about its body's origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Privileged
from safevla_bench.policies.scripted import geometry
from safevla_bench.policies.scripted.geometry import rotation_axes

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drawer:
    """`outward` [2]: the unit vector along which it opens; `out_m`: how far it is out; `handle`: its foremost piece."""

    body: str
    outward: Floats
    out_m: float
    handle: geometry.Prisms


@dataclass(frozen=True, slots=True)
class Door:
    """`hinge_m` [2]; `panel`: its widest piece; `shut_rad`: the turn, counter-clockwise, that shuts it."""

    body: str
    hinge_m: Floats
    panel: geometry.Prisms
    shut_rad: float


@dataclass(frozen=True, slots=True)
class Knob:
    """`axis_m` [2]; `bar`: what sticks up to be turned; `turned_rad`: how far it is on."""

    body: str
    axis_m: Floats
    bar: geometry.Prisms
    turned_rad: float


def fixture_parts(scene: Privileged, name: str) -> tuple[str, ...]:
    """Return the bodies of the fixture that a goal names, by itself or by one of its regions, the largest first.

    () where no body that stays in place begins with a name like it.
    """
    fixed = [body for body in scene.half_extents_m if body not in scene.movable]
    fixture = max((_common_prefix(f"{name}_", body) for body in fixed), key=len, default="").rpartition("_")[0]
    bodies = [body for body in fixed if fixture and body.startswith(f"{fixture}_")]
    return tuple(sorted(bodies, key=lambda body: (-float(np.prod(scene.half_extents_m[body])), body)))


def joint_position(scene: Privileged, name: str) -> float | None:
    """Return the position of the fixture's joint whose name is most like a goal's name; None without joints."""
    fixture = max(
        (_common_prefix(f"{name}_", body) for body in fixture_parts(scene, name)), key=len, default=""
    ).rpartition("_")[0]
    joints = sorted(key for key in scene.joint_pos if fixture and key.startswith(f"{fixture}_"))
    return scene.joint_pos[max(joints, key=lambda key: len(_common_prefix(key, name)))] if joints else None


def find_drawer(scene: Privileged, region: str) -> Drawer | None:
    """Return the drawer of a region: the smallest part of its fixture whose box holds the region, never the largest.

    None where no such part does, for an unknown region, and for a fixture without joints.
    """
    position = joint_position(scene, region)
    if region not in scene.sites_m or position is None:
        return None
    around = [body for body in fixture_parts(scene, region)[1:] if is_inside(scene, body, scene.sites_m[region])]
    if not around:
        return None
    outline = geometry.body_prisms(scene, around[-1])
    off = geometry.planar_extent(outline)[0] - scene.sites_m[region][:2]
    outward = np.where(np.abs(off) == np.abs(off).max(), np.sign(off), 0.0)
    return Drawer(around[-1], outward, abs(position), _foremost_piece(outline, outward))


def find_door(scene: Privileged, name: str) -> Door | None:
    """Return the door of a fixture of two parts, of which the smaller is the door; None for other fixtures."""
    position, bodies = joint_position(scene, name), fixture_parts(scene, name)
    if position is None or len(bodies) != 2:
        return None
    rest, body = bodies
    hinge, panel = scene.body_pos_m[body][:2], _widest_piece(geometry.body_prisms(scene, body))
    middle, target = geometry.planar_extent(panel)[0], geometry.planar_extent(geometry.body_prisms(scene, rest))[0]
    turns = (position, -position)
    ends = [float(np.linalg.norm(rotate_planar(middle - hinge, turn) + hinge - target)) for turn in turns]
    return Door(body, np.array(hinge), panel, turns[int(np.argmin(ends))])


def find_knob(scene: Privileged, name: str) -> Knob | None:
    """Return the knob of a fixture, its smallest part; None where the fixture has no joint or no parts."""
    position, bodies = joint_position(scene, name), fixture_parts(scene, name)
    if position is None or not bodies:
        return None
    outline = geometry.body_prisms(scene, bodies[-1])
    high = outline.top_m > outline.top_m.max() - (outline.top_m.max() - outline.low_m.min()) / 4
    return Knob(bodies[-1], np.array(scene.body_pos_m[bodies[-1]][:2]), geometry.select_prisms(outline, high), position)


def _common_prefix(first: str, second: str) -> str:
    return "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def rotate_planar(vector: Floats, angle_rad: float) -> Floats:
    """Return a vector [2] rotated counter-clockwise."""
    return np.asarray(Rotation.from_rotvec([0.0, 0.0, angle_rad]).apply([*vector, 0.0])[:2])


def _foremost_piece(outline: geometry.Prisms, outward: Floats) -> geometry.Prisms:
    reach = outline.reach_m[:, geometry.nearest_direction(outward)]
    return geometry.select_prisms(outline, reach == reach.max())


def _widest_piece(outline: geometry.Prisms) -> geometry.Prisms:
    size = (outline.top_m - outline.low_m) * (outline.reach_m + outline.reach_m[:, geometry.OPPOSITE]).max(axis=1)
    return geometry.select_prisms(outline, size == size.max())


def is_inside(scene: Privileged, body: str, point_m: Floats) -> bool:
    """Return whether a point [3], world frame, is inside a body's box or on its surface."""
    turn = rotation_axes(scene.body_quat_wxyz[body])
    local = turn.T @ (point_m - scene.body_pos_m[body]) - scene.center_m[body]
    return bool((np.abs(local) <= scene.half_extents_m[body]).all())
