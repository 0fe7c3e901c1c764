"""Placement of objects as the goal's predicates require: objects to place, their grasps, and the arm's moves.

An object is grasped across its narrow side, or at the rim if it is too wide to fit between the open fingers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from safevla_bench.interface.policy import Action, Observation, Privileged
from safevla_bench.policies.scripted import motion
from safevla_bench.policies.scripted.motion import CLOSED_M, OPEN_M, Arm, Floats, HandTarget, box_axes, box_center

# Goals


@dataclass(frozen=True, slots=True)
class Placement:
    """The task of moving `body` to `place`, which is a body or a goal region."""

    body: str
    place: str


_PLACING = ("on", "in")
_THERE_M = 0.03  # an object closer than this to its place, seen from above, counts as placed
_ROOF_M = 0.03  # a body at least this far above the middle of a region is the region's roof, not its floor


def placements_left(scene: Privileged) -> tuple[Placement, ...]:
    """Return the goal's unfinished placements, in order. Omits predicates without a movable body, predicates with a
    place that the scene does not show, objects that the fingers cannot hold, and places under a roof, which a downward
    hand cannot reach.
    """
    pairs = (predicate[1:] for predicate in scene.goal if predicate[0] in _PLACING and len(predicate) == 3)
    bodies, places = scene.movable & scene.half_extents_m.keys(), scene.half_extents_m.keys() | scene.sites_m.keys()
    return tuple(
        Placement(body, place)
        for body, place in pairs
        if body in bodies and place in places and not _is_roofed(scene, place) and is_graspable(scene, body)
        if np.linalg.norm(box_center(scene, body)[:2] - target_point(scene, place)) >= _THERE_M
    )


def _is_roofed(scene: Privileged, place: str) -> bool:
    if place not in scene.sites_m:
        return False
    fixed = motion.obstacles_except(scene, *scene.movable)
    over = (motion.DIRECTIONS @ scene.sites_m[place][:2] <= fixed.reach_m).all(axis=1)
    return bool((over & (fixed.low_m > scene.sites_m[place][2] + _ROOF_M)).any())


def target_point(scene: Privileged, place: str) -> Floats:
    """Return the horizontal position [2] m to which the middle of an object must be moved."""
    return np.asarray((box_center(scene, place) if place in scene.half_extents_m else scene.sites_m[place])[:2])


# Grasps


WIDEST_HALF_M = 0.036  # half the width of the widest object that fits between the open fingers with clearance
DEPTH_M = 0.026  # depth of the fingertips' middle below an object's top; the palm then stays above the top
LEAST_DEPTH_M = 0.010
LEAST_HEIGHT_M = 0.012  # height of a grasp above an object's bottom, so that the fingertips do not touch its support
ROOM_M = 0.014  # distance of each finger from an object's side before the fingers close
RIM_INSET_M = 0.005
RIM_APERTURE_M = 0.018
RIM_ANGLES = 24
ARM_M: Floats = np.array([-0.65, 0.0])  # position of the arm's base in LIBERO's scenes; varies by a few centimeters
COMFORTABLE_REACH_M = 0.60  # beyond this distance, a high hand stretches the elbow to its joint limit
SHIFTS = (0.0, -0.25, 0.25, -0.5, 0.5)  # shifts of a grasp along an object, as shares of half its length
SKEWS_RAD = (0.0, -0.26, 0.26)  # yaws of the fingers relative to an object's sides; closing fingers align the object


@dataclass(frozen=True, slots=True)
class Grasp:
    """A grasp: position `place_m` [3] of the grip site in the world frame, yaw of the downward hand, and distance
    `aperture_m` of each finger from the middle. `blocked_m`: by how much obstacles raise the hand, for a quarter of the
    clearance and for the full clearance. `off_m`: deviation from a central, straight grasp, as a length.
    """

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    blocked_m: tuple[float, float] = (0.0, 0.0)
    off_m: float = 0.0


def is_graspable(scene: Privileged, name: str) -> bool:
    """Return whether the fingers fit around a body or can hold its rim; for a wide, flat body, neither is possible."""
    turn, half = box_axes(scene, name), scene.half_extents_m[name]
    up = int(np.argmax(np.abs(turn[2])))
    narrow = bool((np.delete(half, up) <= WIDEST_HALF_M).any())
    return narrow or bool(2 * half[up] - LEAST_HEIGHT_M >= LEAST_DEPTH_M)


def rank_grasps(
    scene: Privileged, name: str, obstacles: motion.Prisms, yaw_rad: float, clearance_m: float
) -> tuple[Grasp, ...]:
    """Return all grasps of a body, best first. Each has a yaw near `yaw_rad`, and is raised until it is clear of
    `obstacles` and of the body's own pieces, since the body's box does not show hollows.
    """
    itself = motion.body_prisms(scene, name) if name in scene.pieces else motion.NOTHING
    choices = [_raise_to_fit(grasp, itself, obstacles, clearance_m) for grasp in _box_grasps(scene, name, yaw_rad)]
    return tuple(sorted(choices, key=lambda grasp: _grasp_cost(grasp, yaw_rad)))


def _grasp_cost(grasp: Grasp, yaw_rad: float) -> float:
    tight, wide = grasp.blocked_m
    is_too_shallow = tight > DEPTH_M - LEAST_DEPTH_M
    turn = abs(grasp.yaw_rad - yaw_rad) / np.pi
    reach = max(0.0, float(np.linalg.norm(grasp.place_m[:2] - ARM_M)) - COMFORTABLE_REACH_M) / 0.05
    return tight / 0.005 + min(wide / 0.05, 1.0) + turn + reach + grasp.off_m / 0.02 + 100.0 * is_too_shallow


def _raise_to_fit(grasp: Grasp, itself: motion.Prisms, obstacles: motion.Prisms, clearance_m: float) -> Grasp:
    best = float(grasp.place_m[2])
    rig, place = motion.hand_prisms(grasp.yaw_rad, grasp.aperture_m), grasp.place_m[None, :2]
    inside = motion.lowest_heights(rig, place, itself, 0.0, 0.0)[0]

    def raise_m(clearance: float) -> float:
        around = motion.lowest_heights(rig, place, obstacles, clearance, min(clearance, 0.006))
        return max(0.0, float(max(around[0], inside)) - best)

    tight, wide = raise_m(clearance_m / 4), raise_m(clearance_m)
    return replace(grasp, place_m=grasp.place_m + [0.0, 0.0, tight], blocked_m=(tight, wide))


def _box_grasps(scene: Privileged, name: str, yaw_rad: float) -> list[Grasp]:
    turn, half, center = box_axes(scene, name), scene.half_extents_m[name], box_center(scene, name)
    up = int(np.argmax(np.abs(turn[2])))
    flat = [axis for axis in range(3) if axis != up]
    sides = [turn[:, axis] * half[axis] for axis in flat]
    upward = turn[:, up] * np.sign(turn[2, up])
    narrow = [k for k in (0, 1) if half[flat[k]] <= WIDEST_HALF_M]
    if narrow:
        return [grasp for k in narrow for grasp in _side_grasps(center, sides[k], sides[1 - k], half[up], yaw_rad)]
    return list(_rim_grasps(center, upward, sides, float(half[up]), yaw_rad))


def _side_grasps(center: Floats, side: Floats, length: Floats, half_height: float, yaw_rad: float) -> Iterator[Grasp]:
    height = max(center[2] + half_height - DEPTH_M, center[2] - half_height + LEAST_HEIGHT_M)
    yaw = motion.yaw_to_open_along(side[:2], yaw_rad)
    half, half_length = float(np.linalg.norm(side)), float(np.linalg.norm(length))
    for share, skew in product(SHIFTS, SKEWS_RAD):
        place = np.array([*(center + share * length)[:2], height])
        aperture = min(OPEN_M, half + half_length * abs(np.sin(skew)) + ROOM_M)
        yield Grasp(place, yaw + skew, aperture, off_m=half_length * (abs(share) + abs(skew)))


def _rim_grasps(
    center: Floats, upward: Floats, sides: list[Floats], half_height: float, yaw_rad: float
) -> Iterator[Grasp]:
    depth = min(DEPTH_M, 2 * half_height - LEAST_HEIGHT_M)
    inward = [side * (1 - RIM_INSET_M / np.linalg.norm(side)) for side in sides]
    for angle in np.arange(RIM_ANGLES) * 2 * np.pi / RIM_ANGLES:
        outward = inward[0] * np.cos(angle) + inward[1] * np.sin(angle)
        place = center + outward + (half_height - depth) * upward
        yield Grasp(place, motion.yaw_to_open_along(outward[:2], yaw_rad), RIM_APERTURE_M)


# Moves


_AT_M, _NEAR_M = 0.006, 0.012  # within these vertical and total distances, a target counts as reached
_FACING_RAD = 0.06
_MOVED_M = 0.005  # if the object has moved more than this, a new grasp is chosen; some objects topple at first
_LOST_M = 0.03  # a held object counts as dropped if its distance from the hand grew by more than this
_OFF_THE_GROUND_M = 0.004
_UP_M = 0.10
_PAUSE_STEPS = 10
_APPROACH_STEPS, _DESCEND_STEPS, _PULL_STEPS, _LIFT_STEPS, _CARRY_STEPS, _LOWER_STEPS, _RETREAT_STEPS = (
    80, 30, 20, 30, 100, 40, 20
)  # fmt: skip
"""The maximum steps of each kind of move, after which a blocked move ends without reaching its target."""


def place_object(arm: Arm, placement: Placement, attempt: int) -> Generator[Action, Observation, int]:
    """Bring an object to its place, and return the number of the last attempt. Attempt 0 uses the best grasp. Each
    further attempt uses the next best grasp; after the last grasp, the best one follows again. If the object moves
    before the descent, a new grasp is chosen; if it is dropped, a further attempt begins. At the end, the hand pauses,
    so that the caller can check whether the object is in its place.
    """
    body, style = placement.body, arm.style
    while True:
        others, yaw_rad = motion.obstacles_except(arm.scene, body), motion.nearest_yaw(arm.seen.eef_quat_wxyz)
        grasps = rank_grasps(arm.scene, body, others, yaw_rad, style.clearance_m)
        grasp, middle = grasps[attempt % len(grasps)], box_center(arm.scene, body)
        above = HandTarget(grasp.place_m + [0.0, 0.0, style.hover_m], grasp.yaw_rad, grasp.aperture_m, style.cruise)
        rig = motion.hand_prisms(grasp.yaw_rad, OPEN_M)
        path = arm.plan_path(rig, above.place_m, motion.obstacles_except(arm.scene))
        yield from arm.reach(above, _APPROACH_STEPS, style.corner_m, turn_rad=_FACING_RAD, path=path)
        if np.linalg.norm(box_center(arm.scene, body) - middle) > _MOVED_M:
            continue
        held, most_m = yield from _lift_object(arm, body, replace(above, place_m=grasp.place_m, speed=style.final))
        if _hand_distance(arm, body) <= most_m:
            goal = _release_point(arm, placement, grasp) + [0.0, 0.0, style.hover_m]
            path = arm.plan_path(_loaded_hand(arm, body, grasp), goal, motion.obstacles_except(arm.scene, body))
            carried = replace(held, place_m=goal, speed=style.cruise)
            yield from arm.reach(carried, _CARRY_STEPS, style.corner_m, path=path)
        if _hand_distance(arm, body) <= most_m:
            break
        attempt += 1
    lowered = replace(held, place_m=_release_point(arm, placement, grasp))
    yield from arm.reach(lowered, _LOWER_STEPS, _NEAR_M, height_m=_AT_M)
    let_go = replace(held, place_m=arm.hand_m, aperture_m=OPEN_M)
    yield from arm.reach(let_go, style.dwell_steps, 0.0)
    away = replace(let_go, place_m=arm.hand_m + [0.0, 0.0, _UP_M])
    yield from arm.reach(away, _RETREAT_STEPS, _NEAR_M, height_m=_AT_M)
    yield from arm.reach(replace(let_go, place_m=arm.hand_m), _PAUSE_STEPS, 0.0)
    return attempt


def _lift_object(arm: Arm, body: str, target: HandTarget) -> Generator[Action, Observation, tuple[HandTarget, float]]:
    is_late = yield from arm.reach(target, _DESCEND_STEPS, _NEAR_M, height_m=_AT_M)
    held = replace(target, place_m=arm.hand_m if is_late else target.place_m, aperture_m=CLOSED_M)
    yield from arm.reach(held, arm.style.dwell_steps, 0.0)
    most_m = _hand_distance(arm, body) + _LOST_M
    hull, around = motion.body_prisms(arm.scene, body).hull(), motion.obstacles_except(arm.scene, body)
    move = motion.out_from_under(hull, around, arm.style.clearance_m / 2)
    yield from arm.reach(replace(held, place_m=arm.hand_m + [*move, _OFF_THE_GROUND_M]), _PULL_STEPS, _AT_M)
    lifted = replace(held, place_m=arm.hand_m + [0.0, 0.0, arm.style.lift_m])
    yield from arm.reach(lifted, _LIFT_STEPS, _NEAR_M, height_m=_AT_M)
    return lifted, most_m


def _hand_distance(arm: Arm, body: str) -> float:
    return float(np.linalg.norm(box_center(arm.scene, body) - arm.hand_m))


def _loaded_hand(arm: Arm, body: str, grasp: Grasp) -> motion.Prisms:
    load = motion.body_prisms(arm.scene, body).hull().shift_by(-arm.hand_m)
    return motion.concatenate_prisms(motion.hand_prisms(grasp.yaw_rad, grasp.aperture_m), load)


def _release_point(arm: Arm, placement: Placement, grasp: Grasp) -> Floats:
    body = placement.body
    spot = target_point(arm.scene, placement.place) - (box_center(arm.scene, body) - arm.hand_m)[:2]
    others = motion.obstacles_except(arm.scene, body)
    floor = motion.lowest_heights(_loaded_hand(arm, body, grasp), spot[None], others, 0.0, arm.style.release_m)
    return np.array([*spot, float(floor[0]) if np.isfinite(floor[0]) else float(arm.hand_m[2])])
