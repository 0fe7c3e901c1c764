"""Placement of objects as the goal's predicates require: the objects to place, their grasps, and the arm's moves.

An object is grasped across its narrow side, or at the rim if it is too wide to fit between the open fingers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from safevla_bench.interface.policy import Action, Observation, Privileged
from safevla_bench.policies.scripted import motion
from safevla_bench.policies.scripted.motion import CLOSED_M, OPEN_M, FixedArm, Floats, HandTarget, box_axes, box_center

# Goals


@dataclass(frozen=True, slots=True)
class Placement:
    """The task of moving `body` to `place`, which is a body or a goal region."""

    body: str
    place: str


_PLACING = ("on", "in")
_PLACED_M = 0.03  # an object closer than this to its place, seen from above, counts as placed
_ROOF_M = 0.03  # a fixture more than this above a region's middle is the region's roof


def placements_left(scene: Privileged) -> tuple[Placement, ...]:
    """Return the goal's unfinished placements, in order. A placement is omitted if its body is not movable or cannot be
    grasped, or if its place is unknown in the scene. Places under a roof are omitted, too.
    """
    # A predicate is, for example, ("on", BODY, PLACE). A place is a body or a goal region (a site).
    pairs = [predicate[1:] for predicate in scene.goal if predicate[0] in _PLACING and len(predicate) == 3]
    bodies, places = scene.movable & scene.half_extents_m.keys(), scene.half_extents_m.keys() | scene.sites_m.keys()
    known = [Placement(body, place) for body, place in pairs if body in bodies and place in places]
    possible = [goal for goal in known if not _is_roofed(scene, goal.place) and is_graspable(scene, goal.body)]
    return tuple(goal for goal in possible if not _is_placed(scene, goal))


def _is_placed(scene: Privileged, placement: Placement) -> bool:
    # Return whether the body is at its place, seen from above. Heights are not compared.
    gap_m = box_center(scene, placement.body)[:2] - target_point(scene, placement.place)
    return bool(np.linalg.norm(gap_m) < _PLACED_M)


def _is_roofed(scene: Privileged, place: str) -> bool:
    # Return whether a fixture is above the goal region `place`. If `place` is a body, return False.
    if place not in scene.sites_m:
        return False
    site_m, fixtures = scene.sites_m[place], motion.obstacles_except(scene, *scene.movable)
    # A point is in a convex outline if, along each direction, the point is within the outline's extent.
    is_in_outline = (motion.DIRECTIONS @ site_m[:2] <= fixtures.reach_m).all(axis=1)  # one Boolean per fixture
    return bool((is_in_outline & (fixtures.low_m > site_m[2] + _ROOF_M)).any())


def target_point(scene: Privileged, place: str) -> Floats:
    """Return the horizontal position [2] m to which the middle of an object must be moved."""
    # `place` is a body, whose box is used, or a goal region, which is a site.
    point_m = box_center(scene, place) if place in scene.half_extents_m else scene.sites_m[place]
    return np.asarray(point_m[:2])


# Grasps


WIDEST_HALF_M = 0.036  # half the width of the widest object that fits between the open fingers with clearance
DEPTH_M = 0.026  # depth of the fingertips' middle below an object's top; the palm stays above the object
LEAST_DEPTH_M = 0.010
LEAST_HEIGHT_M = 0.012  # height of a grasp above an object's bottom; the fingertips stay above the support
ROOM_M = 0.014  # distance of each finger from an object's side before the fingers close
RIM_INSET_M = 0.005
RIM_APERTURE_M = 0.018
RIM_ANGLES = 24
ARM_M: Floats = np.array([-0.65, 0.0])  # approximate position of the arm's base in LIBERO's scenes
COMFORTABLE_REACH_M = 0.60  # beyond this distance from the base, a high hand would stretch the elbow to its limit
SHIFTS = (0.0, -0.25, 0.25, -0.5, 0.5)  # shifts of a grasp along an object, as fractions of half its length
SKEWS_RAD = (0.0, -0.26, 0.26)  # yaws of the fingers relative to an object's sides; closing fingers align the object


@dataclass(frozen=True, slots=True)
class Grasp:
    """A grasp: position `place_m` [3] of the grip site in the world frame, yaw of the downward hand, and distance
    `aperture_m` of each finger from the middle. `blocked_m` are two heights by which obstacles raise the hand: for a
    quarter of the clearance, and for the full clearance. `off_m` is the deviation from a central, straight grasp.
    """

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    blocked_m: tuple[float, float] = (0.0, 0.0)
    off_m: float = 0.0


def is_graspable(scene: Privileged, name: str) -> bool:
    """Return whether the fingers fit around a body or can hold its rim. Neither is possible for a wide, flat body."""
    axes, half_m = box_axes(scene, name), scene.half_extents_m[name]
    up_axis = int(np.argmax(np.abs(axes[2])))  # the box's axis that is closest to vertical
    # The fingers open horizontally, so only the two other axes count.
    has_narrow_side = bool((np.delete(half_m, up_axis) <= WIDEST_HALF_M).any())
    # A rim needs a height at which the fingers are deep enough, but not too close to the support.
    return has_narrow_side or bool(2 * half_m[up_axis] - LEAST_HEIGHT_M >= LEAST_DEPTH_M)


def rank_grasps(
    scene: Privileged, name: str, obstacles: motion.Prisms, yaw_rad: float, clearance_m: float
) -> tuple[Grasp, ...]:
    """Return all grasps of a body, best first. Each grasp has a yaw near `yaw_rad`, and is raised until the hand is
    clear of `obstacles` and of the body's pieces. A body may be hollow, so pieces are used instead of its box.
    """
    # `obstacles` are the prisms of the other bodies; `clearance_m` is the hand's preferred distance from obstacles.
    pieces = motion.body_prisms(scene, name) if name in scene.pieces else motion.NOTHING
    grasps = [_raise_to_fit(grasp, pieces, obstacles, clearance_m) for grasp in _box_grasps(scene, name, yaw_rad)]
    return tuple(sorted(grasps, key=lambda grasp: _grasp_cost(grasp, yaw_rad)))


def _grasp_cost(grasp: Grasp, yaw_rad: float) -> float:
    # Return a sum of penalties. Each divisor below is the amount that costs 1. `yaw_rad` is the hand's yaw.
    # The heights by which obstacles raise the hand, for a quarter of the clearance and for the full clearance.
    tight_m, wide_m = grasp.blocked_m
    # A raised hand grasps less deeply. A grasp that is too shallow costs 100 more, and so comes last.
    is_too_shallow = tight_m > DEPTH_M - LEAST_DEPTH_M
    turn = abs(grasp.yaw_rad - yaw_rad) / np.pi
    # The penalty grows with the distance from the arm's base, because a far hand has little room to move.
    reach = max(0.0, float(np.linalg.norm(grasp.place_m[:2] - ARM_M)) - COMFORTABLE_REACH_M) / 0.05
    # `off_m` grows with the grasp's distance from the object's center, and with its angle to the object's sides.
    return tight_m / 0.005 + min(wide_m / 0.05, 1.0) + turn + reach + grasp.off_m / 0.02 + 100.0 * is_too_shallow


def _raise_to_fit(grasp: Grasp, pieces: motion.Prisms, obstacles: motion.Prisms, clearance_m: float) -> Grasp:
    # Return the grasp, raised until the hand keeps a quarter of the clearance from obstacles.
    # `blocked_m` are two heights by which obstacles raise the hand: for a quarter of the clearance, and for all of it.
    hand, places_m = motion.hand_prisms(grasp.yaw_rad, grasp.aperture_m), grasp.place_m[None, :2]
    # The hand must not enter the pieces of the grasped body, but needs no clearance from the pieces.
    lowest_at_body_m = motion.lowest_heights(hand, places_m, pieces, beside_m=0.0, above_m=0.0)[0]

    def needed_raise_m(side_clearance_m: float) -> float:
        # Return how much [m] the hand must rise to be clear of obstacles within `side_clearance_m`, seen from above.
        above_m = min(side_clearance_m, 0.006)  # above obstacles, a clearance of 6 mm is enough
        lowest_around_m = motion.lowest_heights(hand, places_m, obstacles, side_clearance_m, above_m)[0]
        return max(0.0, float(max(lowest_around_m, lowest_at_body_m)) - float(grasp.place_m[2]))

    tight_m, wide_m = needed_raise_m(clearance_m / 4), needed_raise_m(clearance_m)
    return replace(grasp, place_m=grasp.place_m + [0.0, 0.0, tight_m], blocked_m=(tight_m, wide_m))


def _box_grasps(scene: Privileged, name: str, yaw_rad: float) -> list[Grasp]:
    # Return grasps across the sides of a body's box that fit between the fingers. If no side fits, grasp the rim.
    # The grasps have yaws near `yaw_rad`.
    axes, half, center = box_axes(scene, name), scene.half_extents_m[name], box_center(scene, name)
    up_axis = int(np.argmax(np.abs(axes[2])))  # the box's axis that is closest to vertical
    side_axes = [axis for axis in range(3) if axis != up_axis]
    sides = [axes[:, axis] * half[axis] for axis in side_axes]  # vectors from the center to two adjacent sides
    # A unit vector: the box's axis closest to vertical, pointing up.
    upward = axes[:, up_axis] * np.sign(axes[2, up_axis])
    grasps: list[Grasp] = []
    for k in (0, 1):  # the fingers open along side k; the other side is the object's length
        if half[side_axes[k]] <= WIDEST_HALF_M:
            grasps += _side_grasps(center, sides[k], sides[1 - k], half[up_axis], yaw_rad)
    return grasps or list(_rim_grasps(center, upward, sides, float(half[up_axis]), yaw_rad))


def _side_grasps(center: Floats, side_m: Floats, end_m: Floats, half_height: float, yaw_rad: float) -> Iterator[Grasp]:
    # Yield grasps across a box. `side_m` [3] is the vector from the box's center to a gripped side.
    # `end_m` [3] is the vector from the box's center to one of its ends; `half_height` is in m.
    # The yaws are near `yaw_rad`. A grasp's `off_m` is its deviation from a central, straight grasp.
    # Height of the fingertips' middle: `DEPTH_M` below the top, but above the support under the box.
    height_m = max(center[2] + half_height - DEPTH_M, center[2] - half_height + LEAST_HEIGHT_M)
    yaw = motion.yaw_to_open_along(side_m[:2], yaw_rad)
    half_width_m, half_length_m = float(np.linalg.norm(side_m)), float(np.linalg.norm(end_m))
    # Shift the grasp by a fraction of the box's half length, and turn the fingers by `skew` relative to the side.
    for share, skew in product(SHIFTS, SKEWS_RAD):
        place_m = np.array([*(center + share * end_m)[:2], height_m])
        # Turned fingers need more room.
        aperture_m = min(OPEN_M, half_width_m + half_length_m * abs(np.sin(skew)) + ROOM_M)
        yield Grasp(place_m, yaw + skew, aperture_m, off_m=half_length_m * (abs(share) + abs(skew)))


def _rim_grasps(
    center: Floats, upward: Floats, sides_m: list[Floats], half_height: float, yaw_rad: float
) -> Iterator[Grasp]:
    # Yield grasps of a box's rim, with one finger inside and one outside, and yaws near `yaw_rad`.
    # `upward` is the box's vertical unit vector; `half_height` is in m.
    # `sides_m` are the vectors [3] from the center to two adjacent sides.
    depth_m = min(DEPTH_M, 2 * half_height - LEAST_HEIGHT_M)
    # The grasps lie on an ellipse inscribed in the box, slightly inside the rim.
    inset_sides_m = [side_m * (1 - RIM_INSET_M / np.linalg.norm(side_m)) for side_m in sides_m]
    for angle in np.arange(RIM_ANGLES) * 2 * np.pi / RIM_ANGLES:
        outward_m = inset_sides_m[0] * np.cos(angle) + inset_sides_m[1] * np.sin(angle)
        place_m = center + outward_m + (half_height - depth_m) * upward
        yield Grasp(place_m, motion.yaw_to_open_along(outward_m[:2], yaw_rad), RIM_APERTURE_M)


# Moves


_VERY_NEAR_M, _NEAR_M = 0.006, 0.012  # vertical and total distances at which a target counts as reached
_FACING_RAD = 0.06
_MOVED_M = 0.005  # if the object moves by more than this, choose a new grasp; some objects topple at first
_LOST_M = 0.03  # a held object counts as dropped if its distance from the hand grows by more than this
_OFF_THE_GROUND_M = 0.004  # height to which an object is raised while it is pulled out from under other bodies
_RETREAT_M = 0.10  # the hand rises by this after the release
_PAUSE_STEPS = 10  # steps for a released object to come to rest
# The maximum number of steps of each kind of move, after which even a blocked move ends.
_APPROACH_STEPS, _DESCEND_STEPS, _PULL_STEPS, _LIFT_STEPS = 80, 30, 20, 30
_CARRY_STEPS, _LOWER_STEPS, _RETREAT_STEPS = 100, 40, 20


def place_object(arm: FixedArm, placement: Placement, attempt: int) -> Generator[Action, Observation, int]:
    """Bring an object to its place, and return the number of the last attempt. Attempt 0 uses the best grasp, attempt 1
    the next best, and so on; after the last grasp, the best one follows again. If the object moves before the descent,
    a new grasp is chosen. If the object is dropped, a further attempt begins. At the end, the hand pauses, so that the
    caller can check whether the object is in its place.
    """
    # Yields actions [7], and receives observations. `placement` names the object (`body`) and its place.
    body, style = placement.body, arm.style
    while True:
        obstacles, yaw_rad = motion.obstacles_except(arm.scene, body), motion.nearest_yaw(arm.seen.eef_quat_wxyz)
        grasps = rank_grasps(arm.scene, body, obstacles, yaw_rad, style.clearance_m)
        grasp, center_before = grasps[attempt % len(grasps)], box_center(arm.scene, body)
        # The hand first moves to the target `hover` above the grasp, along a path that is clear of all bodies.
        hover = HandTarget(grasp.place_m + [0.0, 0.0, style.hover_m], grasp.yaw_rad, grasp.aperture_m, style.cruise)
        open_hand = motion.hand_prisms(grasp.yaw_rad, OPEN_M)
        path = arm.plan_path(open_hand, hover.place_m, motion.obstacles_except(arm.scene))
        yield from arm.reach(hover, _APPROACH_STEPS, style.corner_m, turn_rad=_FACING_RAD, path=path)
        if np.linalg.norm(box_center(arm.scene, body) - center_before) > _MOVED_M:  # the grasp no longer fits
            continue
        # `grip` is the hand's target after the lift. Beyond the distance `max_held_m`, the object is out of the hand.
        grip, max_held_m = yield from _lift_object(arm, body, replace(hover, place_m=grasp.place_m, speed=style.final))
        if _hand_distance_m(arm, body) <= max_held_m:  # the object is still in the hand
            goal_m = _release_point(arm, placement, grasp) + [0.0, 0.0, style.hover_m]
            path = arm.plan_path(_hand_with_load(arm, body, grasp), goal_m, motion.obstacles_except(arm.scene, body))
            carry_target = replace(grip, place_m=goal_m, speed=style.cruise)
            yield from arm.reach(carry_target, _CARRY_STEPS, style.corner_m, path=path)
        if _hand_distance_m(arm, body) <= max_held_m:  # the object was not dropped on the way
            break
        attempt += 1
    # Lower the object, open the fingers, retreat upward, and pause.
    lower_target = replace(grip, place_m=_release_point(arm, placement, grasp))
    yield from arm.reach(lower_target, _LOWER_STEPS, _NEAR_M, height_m=_VERY_NEAR_M)
    release_target = replace(grip, place_m=arm.hand_m, aperture_m=OPEN_M)
    # With `near_m=0.0`, all steps run, because the distance is never below 0.
    yield from arm.reach(release_target, style.dwell_steps, near_m=0.0)
    retreat_target = replace(release_target, place_m=arm.hand_m + [0.0, 0.0, _RETREAT_M])
    yield from arm.reach(retreat_target, _RETREAT_STEPS, _NEAR_M, height_m=_VERY_NEAR_M)
    yield from arm.reach(replace(release_target, place_m=arm.hand_m), _PAUSE_STEPS, near_m=0.0)
    return attempt


def _lift_object(
    arm: FixedArm, body: str, target: HandTarget
) -> Generator[Action, Observation, tuple[HandTarget, float]]:
    # Grip the object at `target` and lift the object. Return the hand's last target and a distance [m].
    # The object counts as held if its distance from the hand is at most the returned distance.
    is_blocked = yield from arm.reach(target, _DESCEND_STEPS, _NEAR_M, height_m=_VERY_NEAR_M)
    # A blocked hand closes where it is, instead of pushing on.
    grip = replace(target, place_m=arm.hand_m if is_blocked else target.place_m, aperture_m=CLOSED_M)
    yield from arm.reach(grip, arm.style.dwell_steps, near_m=0.0)  # 0.0 is never reached, so all steps run
    max_held_m = _hand_distance_m(arm, body) + _LOST_M
    hull, obstacles = motion.body_prisms(arm.scene, body).hull(), motion.obstacles_except(arm.scene, body)
    # Before the lift, pull the object out from under bodies above it, such as a shelf.
    pull_m = motion.out_from_under(hull, obstacles, arm.style.clearance_m / 2)
    yield from arm.reach(replace(grip, place_m=arm.hand_m + [*pull_m, _OFF_THE_GROUND_M]), _PULL_STEPS, _VERY_NEAR_M)
    lift_target = replace(grip, place_m=arm.hand_m + [0.0, 0.0, arm.style.lift_m])
    yield from arm.reach(lift_target, _LIFT_STEPS, _NEAR_M, height_m=_VERY_NEAR_M)
    return lift_target, max_held_m


def _hand_distance_m(arm: FixedArm, body: str) -> float:
    # Return the distance [m] of the hand from the center of a body's box.
    return float(np.linalg.norm(box_center(arm.scene, body) - arm.hand_m))


def _hand_with_load(arm: FixedArm, body: str, grasp: Grasp) -> motion.Prisms:
    # Return the prisms (vertical solids) of the hand and of the held object, with the grip site at the origin.
    load = motion.body_prisms(arm.scene, body).hull().shift_by(-arm.hand_m)
    return motion.concatenate_prisms(motion.hand_prisms(grasp.yaw_rad, grasp.aperture_m), load)


def _release_point(arm: FixedArm, placement: Placement, grasp: Grasp) -> Floats:
    # Return the hand's position [3] m for the release. There, the object's middle is above the target.
    body = placement.body
    spot_m = target_point(arm.scene, placement.place) - (box_center(arm.scene, body) - arm.hand_m)[:2]
    others = motion.obstacles_except(arm.scene, body)
    # The load includes the hand, and must be `release_m` above everything below the load.
    load = _hand_with_load(arm, body, grasp)
    lowest_m = motion.lowest_heights(load, spot_m[None], others, beside_m=0.0, above_m=arm.style.release_m)[0]
    return np.array([*spot_m, lowest_m if np.isfinite(lowest_m) else arm.hand_m[2]])  # no support: keep the height
