"""The policy that follows the script: it asks where the hand should be and steers it there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Action, Observation, Policy, Privileged, Task, Wants
from safevla_bench.policies.actions import CLOSE, OPEN, STILL
from safevla_bench.policies.scripted import phases, waypoint_phases
from safevla_bench.policies.scripted.grasp import graspable
from safevla_bench.policies.scripted.phases import CLOSED_M
from safevla_bench.policies.scripted.plan import Deed, missing
from safevla_bench.policies.scripted.plan import Task as Todo
from safevla_bench.policies.scripted.rotation import leaning, turn_left
from safevla_bench.policies.scripted.style import Style
from safevla_bench.policies.scripted.waypoint import Wanted

GAIN_PER_M = (8.0, 10.0)
"""Of a proportional controller, at no speed and what full speed adds: what must not overshoot is asked for slowly."""
TURN_GAIN = 0.8
LEANING_RAD, LEAN_SHARE = 0.35, 0.27
"""A hand that leans further turns at this share of the speed: the wrist alone does it, and its torque is limited."""
UNIT_RAD = 0.5
"""Rotation that an action of 1 commands."""
_FINGER_TOLERANCE_M = 0.003
_PAUSE_STEPS = 10
"""How long a placed object is left alone before the script looks whether it is where it should be."""


State = phases.Progress | waypoint_phases.Sweep


class Scripted:
    """The script in one style; the seed changes nothing, for nothing is drawn."""

    wants = Wants(privileged=True)

    def __init__(self, style: Style, mobile: Policy | None = None) -> None:
        self.style, self._mobile = style, mobile
        self._progress: State | None = None

    def reset(self, task: Task, seed: int) -> None:
        """Forget the last episode."""
        self._progress = None
        if self._mobile:
            self._mobile.reset(task, seed)

    def act(self, observation: Observation) -> Action:
        """[7]; still where there is nothing to do, or nothing that the script can do.

        Raises:
            PolicyError: the observation has no privileged state.
        """
        if self._mobile and observation.base_pos_m is not None:
            return self._mobile.act(observation)
        scene = observation.privileged
        if scene is None:
            raise PolicyError("policy 'scripted' needs privileged state", remedy="Use a host that gives it.")
        self._progress = follow(self._progress, observation, scene, self.style)
        if self._progress is None:
            return STILL.copy()
        return steer(_wanted(self._progress, observation, self.style), observation)

    def close(self) -> None:
        """Nothing to free."""


def follow(progress: State | None, seen: Observation, scene: Privileged, style: Style) -> State | None:
    """The script's next state: the task at hand one step on, or the next one; None where there is none."""
    if progress is not None and not _over(progress):
        return _advance(progress, seen, scene, style)
    for task in missing(scene):
        tried = progress.attempt + 1 if progress is not None and progress.task == task else 0
        begun = _begin(task, seen, scene, style, tried)
        if begun is not None:
            return begun
    return progress


def _begin(task: Todo, seen: Observation, scene: Privileged, style: Style, attempt: int) -> State | None:
    if isinstance(task, Deed):
        return waypoint_phases.begin(task, seen, scene, style, attempt)
    return phases.begin(task, seen, scene, style, attempt) if graspable(scene, task.body) else None


def _advance(progress: State, seen: Observation, scene: Privileged, style: Style) -> State:
    if isinstance(progress, waypoint_phases.Sweep):
        return waypoint_phases.advance(progress, seen)
    return phases.advance(progress, seen, scene, style)


def _over(progress: State) -> bool:
    if isinstance(progress, waypoint_phases.Sweep):
        return progress.done
    return progress.phase is phases.Phase.DONE and progress.steps >= _PAUSE_STEPS


def _wanted(progress: State, seen: Observation, style: Style) -> Wanted:
    if isinstance(progress, waypoint_phases.Sweep):
        return waypoint_phases.wanted(progress, seen, style)
    return phases.wanted(progress, seen, style)


def steer(target: Wanted, seen: Observation) -> Action:
    """The action [7] that moves the hand towards `target`: proportional, no longer than its speed allows."""
    gain = GAIN_PER_M[0] + target.speed * GAIN_PER_M[1]
    move = gain * (target.place_m - seen.eef_pos_m)
    length = float(np.linalg.norm(move))
    move = move * min(1.0, target.speed / length) if length > 0 else move
    leans = any(target.lean) or leaning(seen.eef_quat_wxyz) > LEANING_RAD
    most = target.speed * (LEAN_SHARE if leans else 1.0)
    left = turn_left(seen.eef_quat_wxyz, target.yaw_rad, target.lean)
    turn = np.clip(TURN_GAIN * left / UNIT_RAD, -most, most)
    return np.concatenate([move, turn, [_fingers(target.aperture_m, seen.gripper_qpos)]])


def _fingers(aperture_m: float, gripper_qpos: NDArray[np.float64]) -> float:
    """Close or open until the fingers are as far apart as wanted; closing goes on, for that is what holds."""
    if aperture_m == CLOSED_M:
        return CLOSE
    off = float(np.abs(gripper_qpos).mean()) - aperture_m
    if abs(off) <= _FINGER_TOLERANCE_M:
        return 0.0
    return CLOSE if off > 0 else OPEN
