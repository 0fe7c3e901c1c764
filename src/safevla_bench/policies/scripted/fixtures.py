"""Drawers, doors and knobs: which part of a fixture moves, how far it has come, and which way it would move on.

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

from safevla_bench.interface import Privileged
from safevla_bench.policies.scripted import shapes
from safevla_bench.policies.scripted.rotation import axes

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drawer:
    """`outward` [2]: the unit vector along which it opens; `out_m`: how far it is out; `handle`: its foremost piece."""

    body: str
    outward: Floats
    out_m: float
    handle: shapes.Prisms


@dataclass(frozen=True, slots=True)
class Door:
    """`hinge_m` [2]; `panel`: its widest piece; `shut_rad`: the turn, counter-clockwise, that shuts it."""

    body: str
    hinge_m: Floats
    panel: shapes.Prisms
    shut_rad: float


@dataclass(frozen=True, slots=True)
class Knob:
    """`axis_m` [2]; `bar`: what sticks up to be turned; `turned_rad`: how far it is on."""

    body: str
    axis_m: Floats
    bar: shapes.Prisms
    turned_rad: float


def parts(scene: Privileged, name: str) -> tuple[str, ...]:
    """The bodies of the fixture that a goal names, by itself or by one of its regions, the largest first."""
    fixed = [body for body in scene.half_extents_m if body not in scene.movable]
    fixture = max((_shared(f"{name}_", body) for body in fixed), key=len, default="").rpartition("_")[0]
    own = [body for body in fixed if fixture and body.startswith(f"{fixture}_")]
    return tuple(sorted(own, key=lambda body: (-float(np.prod(scene.half_extents_m[body])), body)))


def joint(scene: Privileged, name: str) -> float | None:
    """Position of the fixture's joint whose name is most like a goal's name; None where the fixture has none."""
    fixture = max((_shared(f"{name}_", body) for body in parts(scene, name)), key=len, default="").rpartition("_")[0]
    own = sorted(key for key in scene.joint_pos if fixture and key.startswith(f"{fixture}_"))
    return scene.joint_pos[max(own, key=lambda key: len(_shared(key, name)))] if own else None


def drawer(scene: Privileged, region: str) -> Drawer | None:
    """The drawer around a region; None where no part but the largest is around it."""
    position = joint(scene, region)
    if region not in scene.sites_m or position is None:
        return None
    around = [body for body in parts(scene, region)[1:] if inside(scene, body, scene.sites_m[region])]
    if not around:
        return None
    outline = shapes.body(scene, around[-1])
    off = shapes.extent(outline)[0] - scene.sites_m[region][:2]
    outward = np.where(np.abs(off) == np.abs(off).max(), np.sign(off), 0.0)
    return Drawer(around[-1], outward, abs(position), _foremost(outline, outward))


def door(scene: Privileged, name: str) -> Door | None:
    """The door of a fixture of two parts; None for other fixtures."""
    position, own = joint(scene, name), parts(scene, name)
    if position is None or len(own) != 2:
        return None
    rest, body = own
    hinge, panel = scene.body_pos_m[body][:2], _widest(shapes.body(scene, body))
    middle, target = shapes.extent(panel)[0], shapes.extent(shapes.body(scene, rest))[0]
    turns = (position, -position)
    ends = [float(np.linalg.norm(turned(middle - hinge, turn) + hinge - target)) for turn in turns]
    return Door(body, np.array(hinge), panel, turns[int(np.argmin(ends))])


def knob(scene: Privileged, name: str) -> Knob | None:
    """The knob of a fixture, its smallest part; None where the fixture has no joint."""
    position, own = joint(scene, name), parts(scene, name)
    if position is None or not own:
        return None
    outline = shapes.body(scene, own[-1])
    high = outline.top_m > outline.top_m.max() - (outline.top_m.max() - outline.low_m.min()) / 4
    return Knob(own[-1], np.array(scene.body_pos_m[own[-1]][:2]), shapes.some(outline, high), position)


def _shared(one: str, other: str) -> str:
    """What two names begin with."""
    return "".join(left for left, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def turned(vector: Floats, angle_rad: float) -> Floats:
    """[2] turned counter-clockwise."""
    return np.asarray(Rotation.from_rotvec([0.0, 0.0, angle_rad]).apply([*vector, 0.0])[:2])


def _foremost(outline: shapes.Prisms, outward: Floats) -> shapes.Prisms:
    reach = outline.reach_m[:, shapes.nearest(outward)]
    return shapes.some(outline, reach == reach.max())


def _widest(outline: shapes.Prisms) -> shapes.Prisms:
    size = (outline.top_m - outline.low_m) * (outline.reach_m + outline.reach_m[:, shapes.OPPOSITE]).max(axis=1)
    return shapes.some(outline, size == size.max())


def inside(scene: Privileged, body: str, point_m: Floats) -> bool:
    """Whether a point [3] is inside a body's box."""
    turn = axes(scene.body_quat_wxyz[body])
    local = turn.T @ (point_m - scene.body_pos_m[body]) - scene.center_m[body]
    return bool((np.abs(local) <= scene.half_extents_m[body]).all())
