"""An arm that stands still and the moves of its hand, as generators; grasps of an object, and its pick and place.

An object is grasped across its narrow side, or at the rim if it is wider than the fingers open.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface.policy import Action, Observation, Privileged
from safevla_bench.policies.scripted import geometry
from safevla_bench.policies.scripted.geometry import CLOSE, OPEN, Floats, box_axes, box_center
from safevla_bench.policies.scripted.plan import Placement, Style, target_point

STILL = (*[0.0] * 6, OPEN)
Move = Generator[Action, Observation, None]
"""Yields actions, and is sent the observation after each."""
OPEN_M, CLOSED_M = 0.039, 0.0
"""Distance of each finger from the middle."""
GAIN_PER_M = (8.0, 10.0)
"""Of a proportional controller, at no speed and what full speed adds: what must not overshoot is asked for slowly."""
TURN_GAIN = 0.8
LEANING_RAD, LEAN_SHARE = 0.35, 0.27
"""A hand that leans further turns at this share of the speed: the wrist alone does it, and its torque is limited."""
UNIT_RAD = 0.5
"""Rotation that an action of 1 commands."""
_FINGER_TOLERANCE_M = 0.003


@dataclass(frozen=True, slots=True)
class HandTarget:
    """A target of the hand: place_m [3], yaw, the fingers' distance from the middle, and the speed to get there.

    `lean` [3] is a rotation vector in the world frame that is applied to the downward hand after its yaw. The hand
    stays for `wait_steps` at least.
    """

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    speed: float
    lean: tuple[float, float, float] = geometry.UPRIGHT
    wait_steps: int = 0


@dataclass(frozen=True, slots=True)
class ClearPath:
    """A straight path seen from above: places_m [K, 2], and the height that its rest needs from each place, [K].

    `corner_m` is the distance to a corner at which the path to the next begins.
    """

    places_m: Floats
    height_m: Floats
    corner_m: float

    def next_point(self, goal_m: Floats, here_m: Floats) -> Floats:
        """Return the point to head for now, [3]: up until the path is clear, then across, then down; corners cut."""
        nearest = np.argmin(np.linalg.norm(self.places_m - here_m[:2], axis=1))
        height = float(self.height_m[nearest])
        if np.linalg.norm(goal_m[:2] - here_m[:2]) < self.corner_m:
            return goal_m
        if here_m[2] < height - self.corner_m:
            return np.array([*here_m[:2], height])
        return np.array([*goal_m[:2], height])


class Arm:
    """An arm as its last observation `seen` shows it, and the last target of its hand.

    A move yields actions [7] and is sent observations; it begins at `seen` and keeps it up to date.
    """

    def __init__(self, seen: Observation, style: Style) -> None:
        self.seen, self.style = seen, style
        self.target: HandTarget | None = None

    @property
    def scene(self) -> Privileged:
        """The privileged state."""
        return geometry.read_scene(self.seen)

    @property
    def hand_m(self) -> Floats:
        """The position of the hand in the world frame, [3]."""
        return self.seen.eef_pos_m

    def plan_path(self, rig: geometry.Prisms, end_m: Floats, obstacles: geometry.Prisms) -> ClearPath:
        """Return the straight path of a rig from the hand to [3] over all obstacles by the style's clearance."""
        clearance_m = self.style.clearance_m
        places = geometry.line_points(self.hand_m[:2], end_m[:2])
        floor = geometry.lowest_heights(rig, places, obstacles, clearance_m, clearance_m)
        rest = np.maximum.accumulate(np.maximum(floor, end_m[2])[::-1])[::-1]
        return ClearPath(places, rest, self.style.corner_m)

    def reach(
        self,
        target: HandTarget,
        most_steps: int,
        near_m: float,
        *,
        height_m: float = np.inf,
        turn_rad: float = np.inf,
        path: ClearPath | None = None,
    ) -> Generator[Action, Observation, bool]:
        """Move the hand to a target, along a path if there is one; return whether time was up.

        The move ends nearer than `near_m`, `height_m` above or below, and `turn_rad`; or after `most_steps` and one,
        even if the hand is not at its target: something is in its way.
        """
        self.target = target
        for step in range(most_steps + 1):
            point = path.next_point(target.place_m, self.hand_m) if path else target.place_m
            self.seen = yield steer_hand(replace(target, place_m=point), self.seen)
            gap = target.place_m - self.hand_m
            turn = geometry.remaining_turn(self.seen.eef_quat_wxyz, target.yaw_rad, target.lean)
            is_near = np.linalg.norm(gap) < near_m and abs(gap[2]) < height_m
            if is_near and np.linalg.norm(turn) < turn_rad and step >= target.wait_steps:
                break
        return step == most_steps

    def keep_target(self) -> Move:
        """Move the hand for one step towards its last target; if there was none, hold still."""
        self.seen = yield np.array(STILL) if self.target is None else steer_hand(self.target, self.seen)


def steer_hand(target: HandTarget, seen: Observation) -> Action:
    """Return the action [7] that moves the hand towards `target`: proportional, no longer than its speed allows."""
    gain = GAIN_PER_M[0] + target.speed * GAIN_PER_M[1]
    move = gain * (target.place_m - seen.eef_pos_m)
    length = float(np.linalg.norm(move))
    move = move * min(1.0, target.speed / length) if length > 0 else move
    leans = any(target.lean) or geometry.lean_angle(seen.eef_quat_wxyz) > LEANING_RAD
    most = target.speed * (LEAN_SHARE if leans else 1.0)
    remaining = geometry.remaining_turn(seen.eef_quat_wxyz, target.yaw_rad, target.lean)
    turn = np.clip(TURN_GAIN * remaining / UNIT_RAD, -most, most)
    return np.concatenate([move, turn, [_finger_command(target.aperture_m, seen.gripper_qpos)]])


def _finger_command(aperture_m: float, gripper_qpos: NDArray[np.float64]) -> float:
    if aperture_m == CLOSED_M:
        return CLOSE
    off = float(np.abs(gripper_qpos).mean()) - aperture_m
    if abs(off) <= _FINGER_TOLERANCE_M:
        return 0.0
    return CLOSE if off > 0 else OPEN


# Grasps


WIDEST_HALF_M = 0.036
"""Half of the widest object that fits between the open fingers with a little room."""
DEPTH_M = 0.026
"""How far below an object's top the middle of the fingertips goes; the hand itself begins 31 mm above it."""
LEAST_DEPTH_M = 0.010
LEAST_HEIGHT_M = 0.012
"""Above an object's bottom, so that the fingertips stay off what it stands on."""
ROOM_M = 0.014
"""Between an object's side and each finger before they close."""
RIM_INSET_M = 0.005
RIM_APERTURE_M = 0.018
RIM_ANGLES = 24
ARM_M: Floats = np.array([-0.65, 0.0])
"""Where LIBERO's arms stand, seen from above, within a few centimetres in every scene."""
COMFORTABLE_REACH_M = 0.60
"""Beyond it a high hand straightens the elbow, which locks at its limit."""
SHIFTS = (0.0, -0.25, 0.25, -0.5, 0.5)
"""Offsets of grasps along an object's length from its middle, in halves of the length."""
SKEWS_RAD = (0.0, -0.26, 0.26)
"""Turns of the fingers against an object's sides; closing aligns it."""


@dataclass(frozen=True, slots=True)
class Grasp:
    """place_m [3] of the grip site, world frame; yaw of the downward hand; each finger's distance from the middle.

    `blocked_m`: how far its surroundings keep it above the height that is best, at a quarter of the clearance
    and at all of it. `off_m`: how far it is from the object's middle or rim, along the object.
    """

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    blocked_m: tuple[float, float] = (0.0, 0.0)
    off_m: float = 0.0


def is_graspable(scene: Privileged, name: str) -> bool:
    """Return whether the fingers fit around a body or hold its rim; False for a body that is both wide and flat."""
    turn, half = box_axes(scene, name), scene.half_extents_m[name]
    up = int(np.argmax(np.abs(turn[2])))
    narrow = bool((np.delete(half, up) <= WIDEST_HALF_M).any())
    return narrow or bool(2 * half[up] - LEAST_HEIGHT_M >= LEAST_DEPTH_M)


def rank_grasps(
    scene: Privileged, name: str, obstacles: geometry.Prisms, yaw_rad: float, clearance_m: float
) -> tuple[Grasp, ...]:
    """Return every grasp of a body, the best first, raised as far as `obstacles` demand; each at a yaw near `yaw_rad`.

    Grasps of its pieces are among them only if every grasp of its box is too shallow.
    """
    itself = (
        geometry.body_prisms(scene, name) if name in scene.pieces else geometry.NOTHING
    )  # its box does not show what is hollow
    choices = [_raise_to_fit(grasp, itself, obstacles, clearance_m) for grasp in _box_grasps(scene, name, yaw_rad)]
    if all(_is_too_shallow(grasp) for grasp in choices):
        choices += [
            _raise_to_fit(grasp, itself, obstacles, clearance_m) for grasp in _piece_grasps(scene, name, yaw_rad)
        ]
    return tuple(sorted(choices, key=lambda grasp: _grasp_cost(grasp, yaw_rad)))


def _grasp_cost(grasp: Grasp, yaw_rad: float) -> float:
    tight, wide = grasp.blocked_m
    turn = abs(grasp.yaw_rad - yaw_rad) / np.pi
    reach = max(0.0, float(np.linalg.norm(grasp.place_m[:2] - ARM_M)) - COMFORTABLE_REACH_M) / 0.05
    return tight / 0.005 + min(wide / 0.05, 1.0) + turn + reach + grasp.off_m / 0.02 + 100.0 * _is_too_shallow(grasp)


def _is_too_shallow(grasp: Grasp) -> bool:
    return grasp.blocked_m[0] > DEPTH_M - LEAST_DEPTH_M


def _raise_to_fit(grasp: Grasp, itself: geometry.Prisms, obstacles: geometry.Prisms, clearance_m: float) -> Grasp:
    best = float(grasp.place_m[2])
    rig, place = geometry.hand_prisms(grasp.yaw_rad, grasp.aperture_m), grasp.place_m[None, :2]
    inside = geometry.lowest_heights(rig, place, itself, 0.0, 0.0)[0]

    def raise_m(clearance: float) -> float:
        around = geometry.lowest_heights(rig, place, obstacles, clearance, min(clearance, 0.006))
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
    yaw = geometry.yaw_to_open_along(side[:2], yaw_rad)
    half, half_length = float(np.linalg.norm(side)), float(np.linalg.norm(length))
    for share, skew in product(SHIFTS, SKEWS_RAD):
        place = np.array([*(center + share * length)[:2], height])
        aperture = min(OPEN_M, half + half_length * abs(np.sin(skew)) + ROOM_M)
        yield Grasp(place, yaw + skew, aperture, off_m=half_length * (abs(share) + abs(skew)))


def _piece_grasps(scene: Privileged, name: str, yaw_rad: float) -> Iterator[Grasp]:
    boxes = scene.pieces.get(name)
    if boxes is None:
        return
    turn, home, middle = box_axes(scene, name), scene.body_pos_m[name], box_center(scene, name)
    for local, half, quat in zip(boxes.center_m, boxes.half_extents_m, boxes.quat_wxyz, strict=True):
        piece_axes = turn @ geometry.rotation_axes(quat)
        up = int(np.argmax(np.abs(piece_axes[2])))
        center, flat = home + turn @ local, [axis for axis in range(3) if axis != up]
        sides = [piece_axes[:, axis] * half[axis] for axis in flat]
        for k in (0, 1):
            if half[flat[k]] <= WIDEST_HALF_M and 2 * half[up] >= LEAST_HEIGHT_M + LEAST_DEPTH_M / 2:
                for grasp in _side_grasps(center, sides[k], sides[1 - k], float(half[up]), yaw_rad):
                    yield replace(grasp, off_m=grasp.off_m + float(np.linalg.norm((grasp.place_m - middle)[:2])))


def _rim_grasps(
    center: Floats, upward: Floats, sides: list[Floats], half_height: float, yaw_rad: float
) -> Iterator[Grasp]:
    depth = min(DEPTH_M, 2 * half_height - LEAST_HEIGHT_M)
    inward = [side * (1 - RIM_INSET_M / np.linalg.norm(side)) for side in sides]
    for angle in np.arange(RIM_ANGLES) * 2 * np.pi / RIM_ANGLES:
        outward = inward[0] * np.cos(angle) + inward[1] * np.sin(angle)
        place = center + outward + (half_height - depth) * upward
        yield Grasp(place, geometry.yaw_to_open_along(outward[:2], yaw_rad), RIM_APERTURE_M)


# Moves


_AT_M, _NEAR_M = 0.006, 0.012
"""Distances at which a target is reached, in height and altogether."""
_FACING_RAD = 0.06
_MOVED_M = 0.005
"""An object that has moved further since its grasp was chosen gets a new one: some topple as the episode begins."""
_LOST_M = 0.03
"""A held object that is so much further from the hand than it was has been dropped."""
_OFF_THE_GROUND_M = 0.004
_UP_M = 0.10
_PAUSE_STEPS = 10
_APPROACH_STEPS, _DESCEND_STEPS, _PULL_STEPS, _LIFT_STEPS, _CARRY_STEPS, _LOWER_STEPS, _RETREAT_STEPS = (
    80, 30, 20, 30, 100, 40, 20
)  # fmt: skip
"""Steps after which a move is over even if the hand is not at its target: something is in its way."""


def place_object(arm: Arm, placement: Placement, attempt: int) -> Generator[Action, Observation, int]:
    """Bring an object to its place; return the last attempt.

    The grasp is the best at attempt 0, the next best at each further attempt, and after the last the best again. An
    object that has moved before the descent gets a new grasp; a dropped object begins a further attempt. In the end the
    object is left alone long enough to look whether it is where it should be.
    """
    body, style = placement.body, arm.style
    while True:
        grasp, middle = _choose_grasp(arm, body, attempt), box_center(arm.scene, body)
        above = HandTarget(grasp.place_m + [0.0, 0.0, style.hover_m], grasp.yaw_rad, grasp.aperture_m, style.cruise)
        rig = geometry.hand_prisms(grasp.yaw_rad, OPEN_M)
        path = arm.plan_path(rig, above.place_m, geometry.obstacles_except(arm.scene))
        yield from arm.reach(above, _APPROACH_STEPS, style.corner_m, turn_rad=_FACING_RAD, path=path)
        if np.linalg.norm(box_center(arm.scene, body) - middle) > _MOVED_M:
            continue
        held, most_m = yield from _lift_object(arm, body, replace(above, place_m=grasp.place_m, speed=style.final))
        if _hand_distance(arm, body) <= most_m:
            goal = _release_point(arm, placement, grasp) + [0.0, 0.0, style.hover_m]
            path = arm.plan_path(_loaded_hand(arm, body, grasp), goal, geometry.obstacles_except(arm.scene, body))
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


def _choose_grasp(arm: Arm, body: str, attempt: int) -> Grasp:
    others, yaw_rad = geometry.obstacles_except(arm.scene, body), geometry.nearest_yaw(arm.seen.eef_quat_wxyz)
    choices = rank_grasps(arm.scene, body, others, yaw_rad, arm.style.clearance_m)
    return choices[attempt % len(choices)]


def _lift_object(arm: Arm, body: str, target: HandTarget) -> Generator[Action, Observation, tuple[HandTarget, float]]:
    """Descend, close, draw the object out from under what hangs over it, and lift it.

    Returns the target of the hand, and the distance from the object, m, beyond which it has been dropped.
    """
    is_late = yield from arm.reach(target, _DESCEND_STEPS, _NEAR_M, height_m=_AT_M)
    held = replace(target, place_m=arm.hand_m if is_late else target.place_m, aperture_m=CLOSED_M)
    yield from arm.reach(held, arm.style.dwell_steps, 0.0)
    most_m = _hand_distance(arm, body) + _LOST_M
    hull, around = geometry.body_prisms(arm.scene, body).hull(), geometry.obstacles_except(arm.scene, body)
    move = geometry.out_from_under(hull, around, arm.style.clearance_m / 2)
    yield from arm.reach(replace(held, place_m=arm.hand_m + [*move, _OFF_THE_GROUND_M]), _PULL_STEPS, _AT_M)
    lifted = replace(held, place_m=arm.hand_m + [0.0, 0.0, arm.style.lift_m])
    yield from arm.reach(lifted, _LIFT_STEPS, _NEAR_M, height_m=_AT_M)
    return lifted, most_m


def _hand_distance(arm: Arm, body: str) -> float:
    return float(np.linalg.norm(box_center(arm.scene, body) - arm.hand_m))


def _loaded_hand(arm: Arm, body: str, grasp: Grasp) -> geometry.Prisms:
    load = geometry.body_prisms(arm.scene, body).hull().shift_by(-arm.hand_m)
    return geometry.concatenate_prisms(geometry.hand_prisms(grasp.yaw_rad, grasp.aperture_m), load)


def _release_point(arm: Arm, placement: Placement, grasp: Grasp) -> Floats:
    body = placement.body
    spot = target_point(arm.scene, placement) - (box_center(arm.scene, body) - arm.hand_m)[:2]
    others = geometry.obstacles_except(arm.scene, body)
    floor = geometry.lowest_heights(_loaded_hand(arm, body, grasp), spot[None], others, 0.0, arm.style.release_m)
    return np.array([*spot, float(floor[0]) if np.isfinite(floor[0]) else float(arm.hand_m[2])])
