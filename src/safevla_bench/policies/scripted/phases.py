"""Phases of a pick and place, as values: the target of the hand now, and when the next phase begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np

from safevla_bench.interface.policy import Observation, Privileged
from safevla_bench.policies.mobile.moves import box_center
from safevla_bench.policies.scripted import geometry
from safevla_bench.policies.scripted.geometry import Floats
from safevla_bench.policies.scripted.grasp import OPEN_M, Grasp, rank_grasps
from safevla_bench.policies.scripted.plan import Placement, Style, target_point

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
