"""The steps of a pick and place, as values: where the hand should be now, and when the next phase begins."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Observation, Privileged
from safevla_bench.policies.scripted import shapes
from safevla_bench.policies.scripted.grasp import OPEN_M, Grasp, grasps
from safevla_bench.policies.scripted.plan import Placement, destination, middle
from safevla_bench.policies.scripted.rotation import turn_left, yaw_of
from safevla_bench.policies.scripted.style import Style

Floats = NDArray[np.float64]

CLOSED_M = 0.0
_AT_M = 0.006
_NEAR_M = 0.012
_FACING_RAD = 0.06
_LOST_M = 0.03
_MOVED_M = 0.005
_UP_M = 0.10


class Phase(Enum):
    """In this order, and from the last to the next object."""

    APPROACH = auto()
    DESCEND = auto()
    CLOSE = auto()
    LIFT = auto()
    CARRY = auto()
    LOWER = auto()
    OPEN = auto()
    RETREAT = auto()
    DONE = auto()


PATIENCE = {
    Phase.APPROACH: 80, Phase.DESCEND: 30, Phase.LIFT: 30, Phase.CARRY: 100, Phase.LOWER: 40, Phase.RETREAT: 20,
}  # fmt: skip
"""Steps after which a phase is over even if the hand is not where it should be: something is in its way."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where the hand should be: place_m [3], yaw, the fingers' distance from the middle, and how fast to get there."""

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    speed: float


@dataclass(frozen=True, slots=True)
class Way:
    """A straight way seen from above: places_m [K, 2], and how high the rest of it from each place must be, [K]."""

    places_m: Floats
    height_m: Floats

    def height_from(self, here_m: Floats) -> float:
        """How high to be at the place nearest to [2]."""
        return float(self.height_m[np.argmin(np.linalg.norm(self.places_m - here_m, axis=1))])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one placement has come; what is decided when a phase begins stays until it ends.

    `goal_m` [3] is where the phase ends, `way` how to get there over what stands between, `hold_m` [3] the middle of the
    held object as seen from the grip site, `seen_m` [3] where it was when its grasp was chosen.
    """

    task: Placement
    phase: Phase
    grasp: Grasp
    goal_m: Floats
    way: Way
    steps: int = 0
    attempt: int = 0
    hold_m: Floats | None = None
    seen_m: Floats = field(default_factory=lambda: np.zeros(3))

    @property
    def overdue(self) -> bool:
        return self.steps >= PATIENCE.get(self.phase, 10**9)


def begin(task: Placement, seen: Observation, scene: Privileged, style: Style, attempt: int = 0) -> Progress:
    """Choose a grasp, the next best at each further attempt, and the way to it."""
    obstacles = shapes.all_but(scene, frozenset({task.body}))
    choices = grasps(scene, task.body, obstacles, yaw_of(seen.eef_quat_wxyz), style.clearance_m)
    grasp = choices[attempt % len(choices)]
    goal = grasp.place_m + [0.0, 0.0, style.hover_m]
    everything = shapes.all_but(scene, frozenset())
    way = _way(shapes.gripper(grasp.yaw_rad, OPEN_M), seen.eef_pos_m, goal, everything, style)
    return Progress(task, Phase.APPROACH, grasp, goal, way, attempt=attempt, seen_m=middle(scene, task.body))


def _way(rig: shapes.Prisms, start: Floats, end: Floats, obstacles: shapes.Prisms, style: Style) -> Way:
    """The straight way for a rig, its clearance kept to all obstacles; never lower than its end."""
    places = shapes.along(start[:2], end[:2])
    floor = shapes.lowest(rig, places, obstacles, style.clearance_m, style.clearance_m)
    rest = np.maximum.accumulate(np.maximum(floor, end[2])[::-1])[::-1]
    return Way(places, rest)


def wanted(progress: Progress, seen: Observation, style: Style) -> Wanted:
    """What the present phase asks of the hand."""
    grasp, here = progress.grasp, seen.eef_pos_m
    match progress.phase:
        case Phase.APPROACH:
            return Wanted(_over(progress, here, style), grasp.yaw_rad, grasp.aperture_m, style.cruise)
        case Phase.CARRY:
            return Wanted(_over(progress, here, style), grasp.yaw_rad, CLOSED_M, style.cruise)
        case Phase.DESCEND:
            return Wanted(progress.goal_m, grasp.yaw_rad, grasp.aperture_m, style.final)
        case Phase.CLOSE | Phase.LIFT | Phase.LOWER:
            return Wanted(progress.goal_m, grasp.yaw_rad, CLOSED_M, style.final)
        case Phase.OPEN | Phase.RETREAT | Phase.DONE:
            return Wanted(progress.goal_m, grasp.yaw_rad, OPEN_M, style.final)


def _over(progress: Progress, here: Floats, style: Style) -> Floats:
    """Up until the height of the way is reached, then across, then down to the goal."""
    goal, height = progress.goal_m, progress.way.height_from(here[:2])
    if np.linalg.norm(goal[:2] - here[:2]) < style.corner_m:
        return goal
    if here[2] < height - style.corner_m:
        return np.array([*here[:2], height])
    return np.array([*goal[:2], height])


def advance(progress: Progress, seen: Observation, scene: Privileged, style: Style) -> Progress:
    """The progress after one more step: the same phase, or the next with its decisions made."""
    if not (_finished(progress, seen, style) or progress.overdue):
        return replace(progress, steps=progress.steps + 1)
    if progress.phase is Phase.APPROACH and _moved(progress, scene):
        return begin(progress.task, seen, scene, style, progress.attempt)
    if progress.phase in (Phase.LIFT, Phase.CARRY) and _lost(progress, seen, scene):
        return begin(progress.task, seen, scene, style, progress.attempt + 1)
    return _next(progress, seen, scene, style)


def _finished(progress: Progress, seen: Observation, style: Style) -> bool:
    left = progress.goal_m - seen.eef_pos_m
    off = float(np.linalg.norm(left))
    match progress.phase:
        case Phase.CLOSE | Phase.OPEN:
            return progress.steps >= style.dwell_steps
        case Phase.APPROACH:
            turn = float(np.linalg.norm(turn_left(seen.eef_quat_wxyz, progress.grasp.yaw_rad)))
            return off < style.corner_m and turn < _FACING_RAD
        case Phase.CARRY:
            return off < style.corner_m
        case Phase.DONE:
            return False
        case _:
            return abs(left[2]) < _AT_M and off < _NEAR_M


def _moved(progress: Progress, scene: Privileged) -> bool:
    gone = middle(scene, progress.task.body) - progress.seen_m
    return bool(np.linalg.norm(gone) > _MOVED_M)


def _lost(progress: Progress, seen: Observation, scene: Privileged) -> bool:
    held = middle(scene, progress.task.body) - seen.eef_pos_m
    return progress.hold_m is None or bool(np.linalg.norm(held - progress.hold_m) > _LOST_M)


def _next(progress: Progress, seen: Observation, scene: Privileged, style: Style) -> Progress:
    here = seen.eef_pos_m
    match progress.phase:
        case Phase.APPROACH:
            return _enter(progress, Phase.DESCEND, progress.grasp.place_m)
        case Phase.DESCEND:
            return _enter(progress, Phase.CLOSE, here if progress.overdue else progress.goal_m)
        case Phase.CLOSE:
            lifted = _enter(progress, Phase.LIFT, here + [0.0, 0.0, style.lift_m])
            return replace(lifted, hold_m=middle(scene, progress.task.body) - here)
        case Phase.LIFT:
            return _carry(progress, seen, scene, style)
        case Phase.CARRY:
            return _enter(progress, Phase.LOWER, _release(progress, seen, scene, style))
        case Phase.LOWER:
            return _enter(progress, Phase.OPEN, here)
        case Phase.OPEN:
            return _enter(progress, Phase.RETREAT, here + [0.0, 0.0, _UP_M])
        case _:
            return _enter(progress, Phase.DONE, here)


def _enter(progress: Progress, phase: Phase, goal: Floats) -> Progress:
    return replace(progress, phase=phase, goal_m=np.array(goal), steps=0)


def _rig(progress: Progress, seen: Observation, scene: Privileged) -> shapes.Prisms:
    """The hand with what it holds, seen from the grip site."""
    hand = shapes.gripper(progress.grasp.yaw_rad, progress.grasp.aperture_m)
    return shapes.joined(hand, shapes.body(scene, progress.task.body).hull().shifted(-seen.eef_pos_m))


def _carry(progress: Progress, seen: Observation, scene: Privileged, style: Style) -> Progress:
    here, rig = seen.eef_pos_m, _rig(progress, seen, scene)
    obstacles = shapes.all_but(scene, frozenset({progress.task.body}))
    goal = _release(progress, seen, scene, style) + [0.0, 0.0, style.hover_m]
    return replace(_enter(progress, Phase.CARRY, goal), way=_way(rig, here, goal, obstacles, style))


def _release(progress: Progress, seen: Observation, scene: Privileged, style: Style) -> Floats:
    """Where the grip site is when the object is let go, [3]: over its place, as low as what is there allows."""
    body = progress.task.body
    hold = middle(scene, body) - seen.eef_pos_m
    spot = destination(scene, progress.task) - hold[:2]
    obstacles = shapes.all_but(scene, frozenset({body}))
    floor = shapes.lowest(_rig(progress, seen, scene), spot[None], obstacles, 0.0, style.release_m)
    height = float(floor[0]) if np.isfinite(floor[0]) else float(seen.eef_pos_m[2])
    return np.array([*spot, height])
