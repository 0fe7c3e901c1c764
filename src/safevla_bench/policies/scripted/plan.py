"""What to do, from the goal's predicates: one object to one place after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Privileged
from safevla_bench.policies.scripted.rotation import axes

Floats = NDArray[np.float64]

_PLACING = ("on", "in")
NEAR_M = 0.03
"""An object whose middle is within this of its place, seen from above, is taken to be there."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Bring `body` to `place`, a body or a goal region."""

    body: str
    place: str


def placements(scene: Privileged) -> tuple[Placement, ...]:
    """The goal's placements, in its order.

    Predicates of another kind (open, close, turn on) and those that name nothing movable or a place
    that the scene does not show are left out: this policy does not act on them.
    """
    named = (predicate[1:] for predicate in scene.goal if predicate[0] in _PLACING and len(predicate) == 3)
    return tuple(Placement(*pair) for pair in named if _possible(scene, *pair))


def _possible(scene: Privileged, body: str, place: str) -> bool:
    return body in scene.movable and body in scene.half_extents_m and _known(scene, place)


def _known(scene: Privileged, place: str) -> bool:
    return place in scene.half_extents_m or place in scene.sites_m


def middle(scene: Privileged, name: str) -> Floats:
    """Centre [3] of a body's box, world frame."""
    return np.asarray(scene.body_pos_m[name] + axes(scene.body_quat_wxyz[name]) @ scene.center_m[name])


def destination(scene: Privileged, placement: Placement) -> Floats:
    """Where the middle of the object belongs, seen from above, [2]."""
    place = placement.place
    point = middle(scene, place) if place in scene.half_extents_m else scene.sites_m[place]
    return np.asarray(point[:2])


def missing(scene: Privileged) -> tuple[Placement, ...]:
    """The placements whose object is not near its place yet."""
    return tuple(one for one in placements(scene) if not _there(scene, one))


def _there(scene: Privileged, one: Placement) -> bool:
    return bool(np.linalg.norm(middle(scene, one.body)[:2] - destination(scene, one)) < NEAR_M)
