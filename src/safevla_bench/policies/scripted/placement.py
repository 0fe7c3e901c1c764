"""A pick and place: grasps of an object, and its phases as values, each with the target of the hand and its end.

An object is grasped across its narrow side, or at the rim if it is wider than the fingers open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import product

import numpy as np

from safevla_bench.interface.policy import Observation, Privileged
from safevla_bench.policies.mobile.moves import box_center
from safevla_bench.policies.scripted import geometry
from safevla_bench.policies.scripted.geometry import Floats
from safevla_bench.policies.scripted.plan import Placement, Style, target_point

WIDEST_HALF_M = 0.036
"""Half of the widest object that fits between the open fingers with a little room."""
OPEN_M = 0.039
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
    turn, half = geometry.rotation_axes(scene.body_quat_wxyz[name]), scene.half_extents_m[name]
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
    """Return the grasps of a body's box: across each side that fits between the fingers, else at the rim."""
    turn = geometry.rotation_axes(scene.body_quat_wxyz[name])
    half = scene.half_extents_m[name]
    center = scene.body_pos_m[name] + turn @ scene.center_m[name]
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
    """Yield grasps across each narrow piece of a body, such as a handle."""
    boxes = scene.pieces.get(name)
    if boxes is None:
        return
    turn, home = geometry.rotation_axes(scene.body_quat_wxyz[name]), scene.body_pos_m[name]
    middle = home + turn @ scene.center_m[name]
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


# Phases


CLOSED_M = 0.0
_AT_M, _NEAR_M = 0.006, 0.012
"""Distances at which a goal is reached, in height and altogether."""
_FACING_RAD = 0.06
_MOVED_M = 0.005
"""A target that has moved further since its grasp was chosen gets a new one: some topple as the episode begins."""
_LOST_M = 0.03
"""A held object that is so much further from the hand than it was has been dropped."""
_OFF_THE_GROUND_M = 0.004
_UP_M = 0.10
_PAUSE_STEPS = 10


class Phase(Enum):
    """In this order, and from the last to the next object."""

    APPROACH = auto()
    DESCEND = auto()
    CLOSE = auto()
    PULL = auto()
    LIFT = auto()
    CARRY = auto()
    LOWER = auto()
    OPEN = auto()
    RETREAT = auto()
    DONE = auto()


TIMEOUT_STEPS = {
    Phase.APPROACH: 80, Phase.DESCEND: 30, Phase.PULL: 20, Phase.LIFT: 30, Phase.CARRY: 100, Phase.LOWER: 40,
    Phase.RETREAT: 20,
}  # fmt: skip
"""Steps after which a phase is over even if the hand is not at its target: something is in its way."""


@dataclass(frozen=True, slots=True)
class HandTarget:
    """A target of the hand: place_m [3], yaw, the fingers' distance from the middle, and the speed to get there.

    `lean` [3] is a rotation vector in the world frame that is applied to the downward hand after its yaw.
    """

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    speed: float
    lean: tuple[float, float, float] = geometry.UPRIGHT


@dataclass(frozen=True, slots=True)
class ClearPath:
    """A straight path seen from above: places_m [K, 2], and the height that its rest needs from each place, [K]."""

    places_m: Floats
    height_m: Floats

    def height_from(self, here_m: Floats) -> float:
        """Return the height, m, that the rest of the path needs from its place nearest to `here_m` [2]."""
        return float(self.height_m[np.argmin(np.linalg.norm(self.places_m - here_m, axis=1))])


def plan_path(
    rig: geometry.Prisms, start_m: Floats, end_m: Floats, obstacles: geometry.Prisms, style: Style
) -> ClearPath:
    """Return the straight path of a rig from [3] to [3] over all obstacles by the style's clearance."""
    places = geometry.line_points(start_m[:2], end_m[:2])
    floor = geometry.lowest_heights(rig, places, obstacles, style.clearance_m, style.clearance_m)
    rest = np.maximum.accumulate(np.maximum(floor, end_m[2])[::-1])[::-1]
    return ClearPath(places, rest)


def next_point(over: ClearPath, goal_m: Floats, here_m: Floats, corner_m: float) -> Floats:
    """Return the point to head for now, [3]: up until the path is clear, then across, then down; corners cut."""
    height = over.height_from(here_m[:2])
    if np.linalg.norm(goal_m[:2] - here_m[:2]) < corner_m:
        return goal_m
    if here_m[2] < height - corner_m:
        return np.array([*here_m[:2], height])
    return np.array([*goal_m[:2], height])


@dataclass(frozen=True, slots=True)
class PlacementProgress:
    """The progress of one placement; decisions made when a phase begins stay until it ends.

    `goal_m` [3] is where the phase ends, `path` leads there over all obstacles, `seen_m` [3] the middle of the object
    when its grasp was chosen, `hold_m` its distance from the grip site when the fingers had closed.
    """

    subgoal: Placement
    phase: Phase
    grasp: Grasp
    goal_m: Floats
    path: ClearPath
    seen_m: Floats
    hold_m: float = 0.0
    steps: int = 0
    attempt: int = 0

    @property
    def is_overdue(self) -> bool:
        """True if the phase has taken as many steps as it may."""
        return self.steps >= TIMEOUT_STEPS.get(self.phase, 10**9)

    @property
    def is_over(self) -> bool:
        """True if the object was let go, and left alone long enough to look whether it is where it should be."""
        return self.phase is Phase.DONE and self.steps >= _PAUSE_STEPS

    def target(self, seen: Observation, style: Style) -> HandTarget:
        """Return the hand's target in the present phase; paths are followed in APPROACH and CARRY only."""
        match self.phase:
            case Phase.APPROACH | Phase.DESCEND:
                aperture = self.grasp.aperture_m
            case Phase.OPEN | Phase.RETREAT | Phase.DONE:
                aperture = OPEN_M
            case _:
                aperture = CLOSED_M
        if self.phase not in (Phase.APPROACH, Phase.CARRY):
            return HandTarget(self.goal_m, self.grasp.yaw_rad, aperture, style.final)
        point = next_point(self.path, self.goal_m, seen.eef_pos_m, style.corner_m)
        return HandTarget(point, self.grasp.yaw_rad, aperture, style.cruise)

    def advance(self, seen: Observation, scene: Privileged, style: Style) -> PlacementProgress:
        """Return the progress after one more step: the same phase, or the next with its decisions made.

        An object that has moved before the descent gets a new grasp; a dropped object begins a further attempt.
        """
        if not (self._is_finished(seen, style) or self.is_overdue):
            return replace(self, steps=self.steps + 1)
        gone = np.linalg.norm(box_center(scene, self.subgoal.body) - self.seen_m)
        if self.phase is Phase.APPROACH and gone > _MOVED_M:
            return begin_placement(self.subgoal, seen, scene, style, self.attempt)
        if self.phase in (Phase.LIFT, Phase.CARRY) and self.hand_distance(seen, scene) > self.hold_m + _LOST_M:
            return begin_placement(self.subgoal, seen, scene, style, self.attempt + 1)
        return _next_phase(self, seen, scene, style)

    def hand_distance(self, seen: Observation, scene: Privileged) -> float:
        """Return the distance of the object's middle from the grip site, m."""
        return float(np.linalg.norm(box_center(scene, self.subgoal.body) - seen.eef_pos_m))

    def _is_finished(self, seen: Observation, style: Style) -> bool:
        """Return whether the hand has reached its goal, or the fingers their steps; never in DONE."""
        offset = self.goal_m - seen.eef_pos_m
        off = float(np.linalg.norm(offset))
        match self.phase:
            case Phase.CLOSE | Phase.OPEN:
                return self.steps >= style.dwell_steps
            case Phase.APPROACH:
                turn = float(np.linalg.norm(geometry.remaining_turn(seen.eef_quat_wxyz, self.grasp.yaw_rad)))
                return off < style.corner_m and turn < _FACING_RAD
            case Phase.CARRY:
                return off < style.corner_m
            case Phase.PULL:
                return off < _AT_M
            case Phase.DONE:
                return False
            case _:
                return abs(offset[2]) < _AT_M and off < _NEAR_M


def begin_placement(
    placement: Placement, seen: Observation, scene: Privileged, style: Style, attempt: int = 0
) -> PlacementProgress:
    """Return the start of APPROACH: a grasp, and the path to above it.

    The grasp is the best at attempt 0, the next best at each further attempt, and after the last the best again.
    """
    obstacles = geometry.obstacles_except(scene, frozenset({placement.body}))
    choices = rank_grasps(scene, placement.body, obstacles, geometry.nearest_yaw(seen.eef_quat_wxyz), style.clearance_m)
    grasp = choices[attempt % len(choices)]
    goal = grasp.place_m + [0.0, 0.0, style.hover_m]
    everything = geometry.obstacles_except(scene, frozenset())
    path = plan_path(geometry.hand_prisms(grasp.yaw_rad, OPEN_M), seen.eef_pos_m, goal, everything, style)
    return PlacementProgress(
        placement, Phase.APPROACH, grasp, goal, path, box_center(scene, placement.body), attempt=attempt
    )


def _next_phase(progress: PlacementProgress, seen: Observation, scene: Privileged, style: Style) -> PlacementProgress:
    hand_m = seen.eef_pos_m
    match progress.phase:
        case Phase.APPROACH:
            return _enter_phase(progress, Phase.DESCEND, progress.grasp.place_m)
        case Phase.DESCEND:
            return _enter_phase(progress, Phase.CLOSE, hand_m if progress.is_overdue else progress.goal_m)
        case Phase.CLOSE:
            body = progress.subgoal.body
            around = geometry.obstacles_except(scene, frozenset({body}))
            move = geometry.out_from_under(geometry.body_prisms(scene, body).hull(), around, style.clearance_m / 2)
            pulled = _enter_phase(progress, Phase.PULL, hand_m + [*move, _OFF_THE_GROUND_M])
            return replace(pulled, hold_m=progress.hand_distance(seen, scene))
        case Phase.PULL:
            return _enter_phase(progress, Phase.LIFT, hand_m + [0.0, 0.0, style.lift_m])
        case Phase.LIFT:
            obstacles = geometry.obstacles_except(scene, frozenset({progress.subgoal.body}))
            goal = _release_point(progress, seen, scene, style) + [0.0, 0.0, style.hover_m]
            path = plan_path(_loaded_hand(progress, seen, scene), hand_m, goal, obstacles, style)
            return replace(_enter_phase(progress, Phase.CARRY, goal), path=path)
        case Phase.CARRY:
            return _enter_phase(progress, Phase.LOWER, _release_point(progress, seen, scene, style))
        case Phase.LOWER:
            return _enter_phase(progress, Phase.OPEN, hand_m)
        case Phase.OPEN:
            return _enter_phase(progress, Phase.RETREAT, hand_m + [0.0, 0.0, _UP_M])
        case _:
            return _enter_phase(progress, Phase.DONE, hand_m)


def _enter_phase(progress: PlacementProgress, phase: Phase, goal: Floats) -> PlacementProgress:
    return replace(progress, phase=phase, goal_m=np.array(goal), steps=0)


def _loaded_hand(progress: PlacementProgress, seen: Observation, scene: Privileged) -> geometry.Prisms:
    hand = geometry.hand_prisms(progress.grasp.yaw_rad, progress.grasp.aperture_m)
    return geometry.concatenate_prisms(
        hand, geometry.body_prisms(scene, progress.subgoal.body).hull().shift_by(-seen.eef_pos_m)
    )


def _release_point(progress: PlacementProgress, seen: Observation, scene: Privileged, style: Style) -> Floats:
    body = progress.subgoal.body
    hold = box_center(scene, body) - seen.eef_pos_m
    spot = target_point(scene, progress.subgoal) - hold[:2]
    obstacles = geometry.obstacles_except(scene, frozenset({body}))
    floor = geometry.lowest_heights(_loaded_hand(progress, seen, scene), spot[None], obstacles, 0.0, style.release_m)
    height = float(floor[0]) if np.isfinite(floor[0]) else float(seen.eef_pos_m[2])
    return np.array([*spot, height])
