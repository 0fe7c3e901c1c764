"""The policy that follows the script: it asks where the hand should be and steers it there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Action, Observation, Policy, Privileged, Task, Wants
from safevla_bench.policies.actions import CLOSE, OPEN, STILL
from safevla_bench.policies.scripted.phases import CLOSED_M, Phase, Progress, Wanted, advance, begin, wanted
from safevla_bench.policies.scripted.plan import missing
from safevla_bench.policies.scripted.rotation import turn_left
from safevla_bench.policies.scripted.style import Style

GAIN_PER_M = (8.0, 10.0)
"""Of a proportional controller, at no speed and what full speed adds: what must not overshoot is asked for slowly."""
TURN_GAIN = 0.8
UNIT_RAD = 0.5
"""Rotation that an action of 1 commands."""
_FINGER_TOLERANCE_M = 0.003
_PAUSE_STEPS = 10
"""How long a placed object is left alone before the script looks whether it is where it should be."""


class Scripted:
    """Pick and place in one style; the seed changes nothing, for nothing is drawn."""

    wants = Wants(privileged=True)

    def __init__(self, style: Style, mobile: Policy | None = None) -> None:
        self.style, self._mobile = style, mobile
        self._progress: Progress | None = None

    def reset(self, task: Task, seed: int) -> None:
        """Forget the last episode."""
        self._progress = None
        if self._mobile:
            self._mobile.reset(task, seed)

    def act(self, observation: Observation) -> Action:
        """[7]; still where there is nothing to place.

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
        return steer(wanted(self._progress, observation, self.style), observation)

    def close(self) -> None:
        """Nothing to free."""


def follow(progress: Progress | None, seen: Observation, scene: Privileged, style: Style) -> Progress | None:
    """The script's next state: the placement at hand one step on, or the next one; None where there is none."""
    if progress is not None and (progress.phase is not Phase.DONE or progress.steps < _PAUSE_STEPS):
        return advance(progress, seen, scene, style)
    left = missing(scene)
    if not left:
        return progress
    tried = progress.attempt + 1 if progress is not None and progress.task == left[0] else 0
    return begin(left[0], seen, scene, style, tried)


def steer(target: Wanted, seen: Observation) -> Action:
    """The action [7] that moves the hand towards `target`: proportional, no longer than its speed allows."""
    gain = GAIN_PER_M[0] + target.speed * GAIN_PER_M[1]
    move = gain * (target.place_m - seen.eef_pos_m)
    length = float(np.linalg.norm(move))
    move = move * min(1.0, target.speed / length) if length > 0 else move
    turn = np.clip(TURN_GAIN * turn_left(seen.eef_quat_wxyz, target.yaw_rad) / UNIT_RAD, -target.speed, target.speed)
    return np.concatenate([move, turn, [_fingers(target.aperture_m, seen.gripper_qpos)]])


def _fingers(aperture_m: float, gripper_qpos: NDArray[np.float64]) -> float:
    """Close or open until the fingers are as far apart as wanted; closing goes on, for that is what holds."""
    if aperture_m == CLOSED_M:
        return CLOSE
    off = float(np.abs(gripper_qpos).mean()) - aperture_m
    if abs(off) <= _FINGER_TOLERANCE_M:
        return 0.0
    return CLOSE if off > 0 else OPEN
