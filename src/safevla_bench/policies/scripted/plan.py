"""What to do, from the goal's predicates: one object to one place after another, and what moves before and after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Privileged
from safevla_bench.policies.scripted import shapes
from safevla_bench.policies.scripted.fixtures import door, drawer, inside, joint, knob
from safevla_bench.policies.scripted.rotation import axes

Floats = NDArray[np.float64]

_PLACING = ("on", "in")
NEAR_M = 0.03
"""An object whose middle is within this of its place, seen from above, is taken to be there."""
_APART_M = 0.01
"""Between objects that share a place."""
_OUT_M, _WIDE_M = 0.145, 0.10
"""How far an open drawer is out, and how far it must be to put something in."""
_ROOF_M = 0.03
"""What hangs so far over the middle of a region is a roof and not its floor."""
_ON_RAD = 0.55
_SHUT = 0.0005
"""Of a joint's position, rad or m: further out is not shut."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Bring `body` to `place`, a body or a goal region."""

    body: str
    place: str


@dataclass(frozen=True, slots=True)
class Deed:
    """Move a fixture: `kind` is the goal's own word, open, close or turnon, or ajar; `name` the fixture or a region."""

    kind: str
    name: str


Task = Placement | Deed


def missing(scene: Privileged) -> tuple[Task, ...]:
    """What is still to do, in this order: open and turn on, place, close.

    Each kind keeps the order of the goal. A drawer into which something goes is opened first.
    """
    left = tuple(one for one in placements(scene) if not _there(scene, one))
    shut = tuple(Deed("ajar", one.place) for one in left if _closed_drawer(scene, one.place))
    deeds = tuple(one for one in _deeds(scene) if not _done(scene, one))
    first = tuple(one for one in deeds if one.kind != "close")
    last = tuple(one for one in deeds if one.kind == "close")
    return (*first, *(one for one in dict.fromkeys(shut) if one not in first), *left, *last)


def _deeds(scene: Privileged) -> tuple[Deed, ...]:
    named = (Deed(*predicate) for predicate in scene.goal if len(predicate) == 2)
    return tuple(one for one in named if _shown(scene, one))


def _shown(scene: Privileged, deed: Deed) -> bool:
    """Whether the scene has what is to be moved."""
    match deed.kind:
        case "open":
            return drawer(scene, deed.name) is not None
        case "close":
            return (drawer(scene, deed.name) or door(scene, deed.name)) is not None
        case "turnon":
            return knob(scene, deed.name) is not None
        case _:
            return False


def _done(scene: Privileged, deed: Deed) -> bool:
    position = joint(scene, deed.name) or 0.0
    match deed.kind:
        case "open":
            return abs(position) >= _OUT_M
        case "turnon":
            return position >= _ON_RAD
        case _:
            return abs(position) <= _SHUT


def _closed_drawer(scene: Privileged, place: str) -> bool:
    found = drawer(scene, place)
    return found is not None and found.out_m < _WIDE_M


def placements(scene: Privileged) -> tuple[Placement, ...]:
    """The goal's placements, in its order.

    Predicates of another kind, those that name nothing movable or a place that the scene does not show, and places
    under a roof, which a hand that points down cannot reach, are left out.
    """
    named = (predicate[1:] for predicate in scene.goal if predicate[0] in _PLACING and len(predicate) == 3)
    return tuple(Placement(*pair) for pair in named if _possible(scene, *pair))


def _possible(scene: Privileged, body: str, place: str) -> bool:
    return body in scene.movable and body in scene.half_extents_m and _known(scene, place) and not _roofed(scene, place)


def _known(scene: Privileged, place: str) -> bool:
    return place in scene.half_extents_m or place in scene.sites_m


def middle(scene: Privileged, name: str) -> Floats:
    """Centre [3] of a body's box, world frame."""
    return np.asarray(scene.body_pos_m[name] + axes(scene.body_quat_wxyz[name]) @ scene.center_m[name])


def _roofed(scene: Privileged, place: str) -> bool:
    """Whether something that stays hangs over a region."""
    if place not in scene.sites_m or drawer(scene, place):
        return False
    fixed = shapes.all_but(scene, scene.movable)
    over = (shapes.DIRECTIONS @ scene.sites_m[place][:2] <= fixed.reach_m).all(axis=1)
    return bool((over & (fixed.low_m > scene.sites_m[place][2] + _ROOF_M)).any())


def destination(scene: Privileged, placement: Placement) -> Floats:
    """Where the middle of the object belongs, seen from above, [2].

    The middle of the place; objects that share one stand beside each other, and what goes into a drawer keeps
    clear of what hangs over it.
    """
    place = placement.place
    if place in scene.half_extents_m:
        return np.asarray(middle(scene, place)[:2])
    site = scene.sites_m[place]
    if drawer(scene, place):
        return np.asarray(site[:2] + _from_under(scene, placement, site))
    return np.asarray(site[:2] + _beside(scene, placement))


def _from_under(scene: Privileged, placement: Placement, site_m: Floats) -> Floats:
    held = shapes.body(scene, placement.body).hull().shifted(site_m - middle(scene, placement.body))
    return shapes.out_from_under(held, shapes.all_but(scene, frozenset({placement.body})), _APART_M)


def _beside(scene: Privileged, placement: Placement) -> Floats:
    """The move [2] from the middle of a place on which several objects stand in a row along their narrow side."""
    goals = (predicate for predicate in scene.goal if predicate[0] == "on")
    sharing = [predicate[1] for predicate in goals if predicate[2:] == (placement.place,)]
    if len(sharing) < 2 or placement.body not in sharing:
        return np.zeros(2)
    half = shapes.extent(shapes.body(scene, placement.body))[1]
    narrow = np.eye(2)[int(np.argmin(half))]
    rank = sharing.index(placement.body) - (len(sharing) - 1) / 2
    return np.asarray(rank * (2 * half.min() + _APART_M) * narrow)


def _there(scene: Privileged, one: Placement) -> bool:
    found = drawer(scene, one.place)
    if found:
        return inside(scene, found.body, middle(scene, one.body))
    return bool(np.linalg.norm(middle(scene, one.body)[:2] - destination(scene, one)) < NEAR_M)
