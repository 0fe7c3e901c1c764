"""The steps of a pick and place, as values: where the hand should be now, and when the next phase begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Observation, Privileged
from safevla_bench.policies.scripted import shapes
from safevla_bench.policies.scripted.clearance import Way, way, waypoint
from safevla_bench.policies.scripted.grasp import OPEN_M, Grasp, grasps
from safevla_bench.policies.scripted.plan import Placement, destination, middle
from safevla_bench.policies.scripted.rotation import turn_left, yaw_of
from safevla_bench.policies.scripted.style import Style
from safevla_bench.policies.scripted.waypoint import Wanted

Floats = NDArray[np.float64]

CLOSED_M = 0.0
_AT_M, _NEAR_M = 0.006, 0.012
"""How near to a goal counts as there, in height and altogether."""
_FACING_RAD = 0.06
_MOVED_M = 0.005
"""A target that has moved further since its grasp was chosen gets a new one: some topple as the episode begins."""
_LOST_M = 0.03
"""A held object that is so much further from the hand than it was has been dropped."""
_OFF_THE_GROUND_M = 0.004
_UP_M = 0.10


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


PATIENCE = {
    Phase.APPROACH: 80, Phase.DESCEND: 30, Phase.PULL: 20, Phase.LIFT: 30, Phase.CARRY: 100, Phase.LOWER: 40,
    Phase.RETREAT: 20,
}  # fmt: skip
"""Steps after which a phase is over even if the hand is not where it should be: something is in its way."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one placement has come; what is decided when a phase begins stays until it ends.

    `goal_m` [3] is where the phase ends, `way` how to get there over what stands between, `seen_m` [3] where the middle
    of the object was when its grasp was chosen, `hold_m` how far it was from the grip site when the fingers had closed.
    """

    task: Placement
    phase: Phase
    grasp: Grasp
    goal_m: Floats
    way: Way
    seen_m: Floats
    hold_m: float = 0.0
    steps: int = 0
    attempt: int = 0

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
    over = way(shapes.gripper(grasp.yaw_rad, OPEN_M), seen.eef_pos_m, goal, everything, style)
    return Progress(task, Phase.APPROACH, grasp, goal, over, middle(scene, task.body), attempt=attempt)


def wanted(progress: Progress, seen: Observation, style: Style) -> Wanted:
    """What the present phase asks of the hand."""
    grasp = progress.grasp
    there = waypoint(progress.way, progress.goal_m, seen.eef_pos_m, style.corner_m)
    match progress.phase:
        case Phase.APPROACH:
            return Wanted(there, grasp.yaw_rad, grasp.aperture_m, style.cruise)
        case Phase.CARRY:
            return Wanted(there, grasp.yaw_rad, CLOSED_M, style.cruise)
        case Phase.DESCEND:
            return Wanted(progress.goal_m, grasp.yaw_rad, grasp.aperture_m, style.final)
        case Phase.CLOSE | Phase.PULL | Phase.LIFT | Phase.LOWER:
            return Wanted(progress.goal_m, grasp.yaw_rad, CLOSED_M, style.final)
        case Phase.OPEN | Phase.RETREAT | Phase.DONE:
            return Wanted(progress.goal_m, grasp.yaw_rad, OPEN_M, style.final)


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
        case Phase.PULL:
            return off < _AT_M
        case Phase.DONE:
            return False
        case _:
            return abs(left[2]) < _AT_M and off < _NEAR_M


def _moved(progress: Progress, scene: Privileged) -> bool:
    gone = middle(scene, progress.task.body) - progress.seen_m
    return bool(np.linalg.norm(gone) > _MOVED_M)


def _lost(progress: Progress, seen: Observation, scene: Privileged) -> bool:
    return _away(progress, seen, scene) > progress.hold_m + _LOST_M


def _away(progress: Progress, seen: Observation, scene: Privileged) -> float:
    """How far the middle of the object is from the grip site, m."""
    return float(np.linalg.norm(middle(scene, progress.task.body) - seen.eef_pos_m))


def _next(progress: Progress, seen: Observation, scene: Privileged, style: Style) -> Progress:
    here = seen.eef_pos_m
    match progress.phase:
        case Phase.APPROACH:
            return _enter(progress, Phase.DESCEND, progress.grasp.place_m)
        case Phase.DESCEND:
            return _enter(progress, Phase.CLOSE, here if progress.overdue else progress.goal_m)
        case Phase.CLOSE:
            return replace(_pull(progress, here, scene, style), hold_m=_away(progress, seen, scene))
        case Phase.PULL:
            return _enter(progress, Phase.LIFT, here + [0.0, 0.0, style.lift_m])
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


def _pull(progress: Progress, here: Floats, scene: Privileged, style: Style) -> Progress:
    """Out from under whatever hangs over the object, such as the cabinet over an open drawer."""
    body = progress.task.body
    around = shapes.all_but(scene, frozenset({body}))
    move = shapes.out_from_under(shapes.body(scene, body).hull(), around, style.clearance_m / 2)
    return _enter(progress, Phase.PULL, here + [*move, _OFF_THE_GROUND_M])


def _rig(progress: Progress, seen: Observation, scene: Privileged) -> shapes.Prisms:
    """The hand with what it holds, seen from the grip site."""
    hand = shapes.gripper(progress.grasp.yaw_rad, progress.grasp.aperture_m)
    return shapes.joined(hand, shapes.body(scene, progress.task.body).hull().shifted(-seen.eef_pos_m))


def _carry(progress: Progress, seen: Observation, scene: Privileged, style: Style) -> Progress:
    here, rig = seen.eef_pos_m, _rig(progress, seen, scene)
    obstacles = shapes.all_but(scene, frozenset({progress.task.body}))
    goal = _release(progress, seen, scene, style) + [0.0, 0.0, style.hover_m]
    return replace(_enter(progress, Phase.CARRY, goal), way=way(rig, here, goal, obstacles, style))


def _release(progress: Progress, seen: Observation, scene: Privileged, style: Style) -> Floats:
    """Where the grip site is when the object is let go, [3]: over its place, as low as what is there allows."""
    body = progress.task.body
    hold = middle(scene, body) - seen.eef_pos_m
    spot = destination(scene, progress.task) - hold[:2]
    obstacles = shapes.all_but(scene, frozenset({body}))
    floor = shapes.lowest(_rig(progress, seen, scene), spot[None], obstacles, 0.0, style.release_m)
    height = float(floor[0]) if np.isfinite(floor[0]) else float(seen.eef_pos_m[2])
    return np.array([*spot, height])
