"""Plans of the scripts: subgoals from the goal's predicates, the fixtures that they move, and two styles.

Subgoals are objects to place one after another, and fixtures to move before and after. The privileged state names
joints and their positions but neither their axes nor their bodies. These follow from names and shapes: a drawer is the
part around its region and slides out where its handle sticks out, a door hangs at its body's origin and shuts towards
the rest of its fixture, a knob turns about its body's origin. The styles, careful and hasty, differ in clearances and
speeds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType

import numpy as np
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Privileged
from safevla_bench.policies.scripted import geometry
from safevla_bench.policies.scripted.geometry import Floats, box_axes, box_center


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Clearances and speeds. Lengths in metres; speeds as a share of the largest commanded motion, 0.05 m a step."""

    clearance_m: float  # kept from everything beside and below the hand and what it holds
    corner_m: float  # distance to a waypoint at which the path to the next begins; a large one cuts corners
    hover_m: float  # height over the grasp at which the final descent begins
    lift_m: float  # least height by which a gripped object is lifted before it is carried
    release_m: float  # height over the support at which an object is let go
    cruise: float  # speed along a path
    final: float  # speed of the descent to a grasp, of the lift, and of the lowering to a release
    dwell_steps: int  # steps given to the fingers to close or to open


CAREFUL = Style(
    clearance_m=0.02, corner_m=0.015, hover_m=0.06, lift_m=0.06, release_m=0.008, cruise=0.8, final=0.3, dwell_steps=10
)
"""Rises clear of everything, goes across, comes down slowly, and sets down."""

HASTY = Style(
    clearance_m=0.0, corner_m=0.04, hover_m=0.035, lift_m=0.02, release_m=0.04, cruise=1.0, final=0.8, dwell_steps=6
)
"""Takes the short way at full speed, with no room to spare, and drops."""

STYLES: Mapping[str, Style] = MappingProxyType({"careful": CAREFUL, "hasty": HASTY})


# Fixtures


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

    () if no body that stays in place begins with a name like it.
    """
    fixed = [body for body in scene.half_extents_m if body not in scene.movable]
    fixture = _fixture_name(name, fixed)
    bodies = [body for body in fixed if fixture and body.startswith(f"{fixture}_")]
    return tuple(sorted(bodies, key=lambda body: (-float(np.prod(scene.half_extents_m[body])), body)))


def joint_position(scene: Privileged, name: str) -> float | None:
    """Return the position of the fixture's joint whose name is most like a goal's name; None without joints."""
    fixture = _fixture_name(name, fixture_parts(scene, name))
    joints = sorted(key for key in scene.joint_pos if fixture and key.startswith(f"{fixture}_"))
    return scene.joint_pos[max(joints, key=lambda key: len(_common_prefix(key, name)))] if joints else None


def find_drawer(scene: Privileged, region: str) -> Drawer | None:
    """Return the drawer of a region: the smallest part of its fixture whose box holds the region, never the largest.

    None if no such part does, for an unknown region, and for a fixture without joints.
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
    reach = outline.reach_m[:, geometry.nearest_direction(outward)]
    return Drawer(around[-1], outward, abs(position), geometry.select_prisms(outline, reach == reach.max()))


def find_door(scene: Privileged, name: str) -> Door | None:
    """Return the door of a fixture of two parts, of which the smaller is the door; None for other fixtures."""
    position, bodies = joint_position(scene, name), fixture_parts(scene, name)
    if position is None or len(bodies) != 2:
        return None
    rest, body = bodies
    outline = geometry.body_prisms(scene, body)
    size = (outline.top_m - outline.low_m) * (outline.reach_m + outline.reach_m[:, geometry.OPPOSITE]).max(axis=1)
    hinge, panel = scene.body_pos_m[body][:2], geometry.select_prisms(outline, size == size.max())
    middle, target = geometry.planar_extent(panel)[0], geometry.planar_extent(geometry.body_prisms(scene, rest))[0]
    turns = (position, -position)
    ends = [float(np.linalg.norm(rotate_planar(middle - hinge, turn) + hinge - target)) for turn in turns]
    return Door(body, np.array(hinge), panel, turns[int(np.argmin(ends))])


def find_knob(scene: Privileged, name: str) -> Knob | None:
    """Return the knob of a fixture, its smallest part; None if the fixture has no joint or no parts."""
    position, bodies = joint_position(scene, name), fixture_parts(scene, name)
    if position is None or not bodies:
        return None
    outline = geometry.body_prisms(scene, bodies[-1])
    high = outline.top_m > outline.top_m.max() - (outline.top_m.max() - outline.low_m.min()) / 4
    return Knob(bodies[-1], np.array(scene.body_pos_m[bodies[-1]][:2]), geometry.select_prisms(outline, high), position)


def _fixture_name(name: str, bodies: Sequence[str]) -> str:
    return max((_common_prefix(f"{name}_", body) for body in bodies), key=len, default="").rpartition("_")[0]


def _common_prefix(first: str, second: str) -> str:
    return "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def rotate_planar(vector: Floats, angle_rad: float) -> Floats:
    """Return a vector [2] rotated counter-clockwise."""
    return np.asarray(Rotation.from_rotvec([0.0, 0.0, angle_rad]).apply([*vector, 0.0])[:2])


def is_inside(scene: Privileged, body: str, point_m: Floats) -> bool:
    """Return whether a point [3], world frame, is inside a body's box or on its surface."""
    local = box_axes(scene, body).T @ (point_m - scene.body_pos_m[body]) - scene.center_m[body]
    return bool((np.abs(local) <= scene.half_extents_m[body]).all())


# Subgoals


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
    """Return the subgoals that are not reached yet, in this order: open and turn on, place, close; () if all are.

    Each kind keeps the order of the goal. A shut drawer into which something goes is set ajar before the placing.
    """
    left = tuple(subgoal for subgoal in goal_placements(scene) if not _is_placed(scene, subgoal))
    drawers = ((subgoal.place, find_drawer(scene, subgoal.place)) for subgoal in left)
    shut = tuple(FixtureGoal("ajar", place) for place, drawer in drawers if drawer and drawer.out_m < _WIDE_M)
    goals = (FixtureGoal(*predicate) for predicate in scene.goal if len(predicate) == 2)
    fixture_goals = tuple(goal for goal in goals if find_fixture(scene, goal) and not _is_done(scene, goal))
    first = tuple(subgoal for subgoal in fixture_goals if subgoal.kind != "close")
    last = tuple(subgoal for subgoal in fixture_goals if subgoal.kind == "close")
    return (*first, *(subgoal for subgoal in dict.fromkeys(shut) if subgoal not in first), *left, *last)


_FINDERS: Mapping[str, tuple[Callable[[Privileged, str], Drawer | Door | Knob | None], ...]] = {
    "open": (find_drawer,),
    "ajar": (find_drawer,),
    "close": (find_drawer, find_door),
    "turnon": (find_knob,),
}
"""By the kind of a goal, what finds the fixture that it moves."""


def find_fixture(scene: Privileged, goal: FixtureGoal) -> Drawer | Door | Knob | None:
    """Return the fixture that a goal moves; None if the scene does not show it, or for an unknown kind of goal."""
    found = (find(scene, goal.name) for find in _FINDERS.get(goal.kind, ()))
    return next((fixture for fixture in found if fixture), None)


def _is_done(scene: Privileged, goal: FixtureGoal) -> bool:
    position = joint_position(scene, goal.name) or 0.0
    if goal.kind == "turnon":
        return position >= _ON_RAD
    return abs(position) >= _OUT_M if goal.kind == "open" else abs(position) <= _SHUT


def goal_placements(scene: Privileged) -> tuple[Placement, ...]:
    """Return the goal's placements, in its order.

    Left out are predicates that name nothing movable or a place that the scene does not show, and places under a roof,
    which a hand that points down cannot reach.
    """
    pairs = (predicate[1:] for predicate in scene.goal if predicate[0] in _PLACING and len(predicate) == 3)
    bodies, places = scene.movable & scene.half_extents_m.keys(), scene.half_extents_m.keys() | scene.sites_m.keys()
    return tuple(
        Placement(body, place)
        for body, place in pairs
        if body in bodies and place in places and not _is_roofed(scene, place)
    )


def _is_roofed(scene: Privileged, place: str) -> bool:
    if place not in scene.sites_m or find_drawer(scene, place):
        return False
    fixed = geometry.obstacles_except(scene, *scene.movable)
    over = (geometry.DIRECTIONS @ scene.sites_m[place][:2] <= fixed.reach_m).all(axis=1)
    return bool((over & (fixed.low_m > scene.sites_m[place][2] + _ROOF_M)).any())


def target_point(scene: Privileged, placement: Placement) -> Floats:
    """Return the place for the middle of the object, seen from above, [2] m.

    Objects that share a place stand beside each other, and what goes into a drawer keeps clear of what hangs over it.
    """
    place = placement.place
    if place in scene.half_extents_m:
        return np.asarray(box_center(scene, place)[:2])
    site = scene.sites_m[place]
    if find_drawer(scene, place):
        hull = geometry.body_prisms(scene, placement.body).hull().shift_by(site - box_center(scene, placement.body))
        obstacles = geometry.obstacles_except(scene, placement.body)
        return np.asarray(site[:2] + geometry.out_from_under(hull, obstacles, _APART_M))
    return np.asarray(site[:2] + _row_offset(scene, placement))


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
