"""Plans of the scripts: subgoals from the goal's predicates, and the styles in which they are carried out.

Subgoals are objects to place one after another, and fixtures to move before and after. The styles, careful and hasty,
differ in clearances and speeds alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface.policy import Privileged
from safevla_bench.policies.scripted import geometry
from safevla_bench.policies.scripted.fixtures import find_door, find_drawer, find_knob, is_inside, joint_position
from safevla_bench.policies.scripted.geometry import rotation_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Clearances and speeds. Lengths in metres; speeds as a share of the largest commanded motion, 0.05 m a step."""

    clearance_m: float
    """Kept from everything beside and below the hand and what it holds."""
    corner_m: float
    """Distance to a waypoint at which the path to the next begins: small turns square corners, large cuts them."""
    hover_m: float
    """Height over the grasp at which the final descent begins."""
    lift_m: float
    """Least height by which a gripped object is lifted before it is carried."""
    release_m: float
    """Height over the support at which an object is let go."""
    cruise: float
    """Speed along a path."""
    final: float
    """Speed of the descent to a grasp, of the lift, and of the lowering to a release."""
    dwell_steps: int
    """Steps given to the fingers to close or to open."""


CAREFUL = Style(
    clearance_m=0.02,
    corner_m=0.015,
    hover_m=0.06,
    lift_m=0.06,
    release_m=0.008,
    cruise=0.8,
    final=0.3,
    dwell_steps=10,
)
"""Rises clear of everything, goes across, comes down slowly, and sets down."""

HASTY = Style(
    clearance_m=0.0,
    corner_m=0.04,
    hover_m=0.035,
    lift_m=0.02,
    release_m=0.04,
    cruise=1.0,
    final=0.8,
    dwell_steps=6,
)
"""Takes the short way at full speed, with no room to spare, and drops."""

STYLES: Mapping[str, Style] = MappingProxyType({"careful": CAREFUL, "hasty": HASTY})


# Subgoals


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
class FixtureGoal:
    """Move a fixture: `kind` is the goal's own word, open, close or turnon, or ajar; `name` the fixture or a region."""

    kind: str
    name: str


Subgoal = Placement | FixtureGoal


def remaining_subgoals(scene: Privileged) -> tuple[Subgoal, ...]:
    """Return the subgoals that are not reached yet, in this order: open and turn on, place, close; () where all are.

    Each kind keeps the order of the goal. A shut drawer into which something goes is set ajar before the placing.
    """
    left = tuple(subgoal for subgoal in goal_placements(scene) if not _is_placed(scene, subgoal))
    shut = tuple(FixtureGoal("ajar", subgoal.place) for subgoal in left if _is_closed_drawer(scene, subgoal.place))
    fixture_goals = tuple(subgoal for subgoal in _fixture_goals(scene) if not _is_done(scene, subgoal))
    first = tuple(subgoal for subgoal in fixture_goals if subgoal.kind != "close")
    last = tuple(subgoal for subgoal in fixture_goals if subgoal.kind == "close")
    return (*first, *(subgoal for subgoal in dict.fromkeys(shut) if subgoal not in first), *left, *last)


def _fixture_goals(scene: Privileged) -> tuple[FixtureGoal, ...]:
    goals = (FixtureGoal(*predicate) for predicate in scene.goal if len(predicate) == 2)
    return tuple(goal for goal in goals if _has_fixture(scene, goal))


def _has_fixture(scene: Privileged, goal: FixtureGoal) -> bool:
    """Return whether the scene shows the fixture that is to be moved; False for an unknown kind."""
    match goal.kind:
        case "open":
            return find_drawer(scene, goal.name) is not None
        case "close":
            return (find_drawer(scene, goal.name) or find_door(scene, goal.name)) is not None
        case "turnon":
            return find_knob(scene, goal.name) is not None
        case _:
            return False


def _is_done(scene: Privileged, goal: FixtureGoal) -> bool:
    position = joint_position(scene, goal.name) or 0.0
    match goal.kind:
        case "open":
            return abs(position) >= _OUT_M
        case "turnon":
            return position >= _ON_RAD
        case _:
            return abs(position) <= _SHUT


def _is_closed_drawer(scene: Privileged, place: str) -> bool:
    candidate = find_drawer(scene, place)
    return candidate is not None and candidate.out_m < _WIDE_M


def goal_placements(scene: Privileged) -> tuple[Placement, ...]:
    """Return the goal's placements, in its order.

    Predicates of another kind, those that name nothing movable or a place that the scene does not show, and places
    under a roof, which a hand that points down cannot reach, are left out.
    """
    pairs = (predicate[1:] for predicate in scene.goal if predicate[0] in _PLACING and len(predicate) == 3)
    return tuple(Placement(*pair) for pair in pairs if _can_place(scene, *pair))


def _can_place(scene: Privileged, body: str, place: str) -> bool:
    return (
        body in scene.movable
        and body in scene.half_extents_m
        and _has_place(scene, place)
        and not _is_roofed(scene, place)
    )


def _has_place(scene: Privileged, place: str) -> bool:
    return place in scene.half_extents_m or place in scene.sites_m


def box_center(scene: Privileged, name: str) -> Floats:
    """Return the centre [3] of a body's box, world frame, m."""
    return np.asarray(scene.body_pos_m[name] + rotation_axes(scene.body_quat_wxyz[name]) @ scene.center_m[name])


def _is_roofed(scene: Privileged, place: str) -> bool:
    if place not in scene.sites_m or find_drawer(scene, place):
        return False
    fixed = geometry.obstacles_except(scene, scene.movable)
    over = (geometry.DIRECTIONS @ scene.sites_m[place][:2] <= fixed.reach_m).all(axis=1)
    return bool((over & (fixed.low_m > scene.sites_m[place][2] + _ROOF_M)).any())


def target_point(scene: Privileged, placement: Placement) -> Floats:
    """Return the place for the middle of the object, seen from above, [2] m.

    The middle of the place; objects that share one stand beside each other, and what goes into a drawer keeps
    clear of what hangs over it.
    """
    place = placement.place
    if place in scene.half_extents_m:
        return np.asarray(box_center(scene, place)[:2])
    site = scene.sites_m[place]
    if find_drawer(scene, place):
        return np.asarray(site[:2] + _move_from_under(scene, placement, site))
    return np.asarray(site[:2] + _row_offset(scene, placement))


def _move_from_under(scene: Privileged, placement: Placement, site_m: Floats) -> Floats:
    hull = geometry.body_prisms(scene, placement.body).hull().shift_by(site_m - box_center(scene, placement.body))
    return geometry.out_from_under(hull, geometry.obstacles_except(scene, frozenset({placement.body})), _APART_M)


def _row_offset(scene: Privileged, placement: Placement) -> Floats:
    goals = (predicate for predicate in scene.goal if predicate[0] == "on")
    sharing = [predicate[1] for predicate in goals if predicate[2:] == (placement.place,)]
    if len(sharing) < 2 or placement.body not in sharing:
        return np.zeros(2)
    half = geometry.planar_extent(geometry.body_prisms(scene, placement.body))[1]
    narrow = np.eye(2)[int(np.argmin(half))]
    rank = sharing.index(placement.body) - (len(sharing) - 1) / 2
    return np.asarray(rank * (2 * half.min() + _APART_M) * narrow)


def _is_placed(scene: Privileged, placement: Placement) -> bool:
    around = find_drawer(scene, placement.place)
    if around:
        return is_inside(scene, around.body, box_center(scene, placement.body))
    return bool(np.linalg.norm(box_center(scene, placement.body)[:2] - target_point(scene, placement)) < NEAR_M)
