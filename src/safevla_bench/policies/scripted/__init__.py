"""`scripted:careful` and `scripted:hasty`: a fixed script for the goal, from privileged state.

The goal's predicates give subgoals, one after another (`plan`). An object is carried: its size says how to hold it, the
shapes of everything how low the path may be (`geometry`), and both where the hand should be now (`placement`). A part
of a fixture is pushed, pulled or turned by a stroke of the hand through waypoints (`strokes`). The script reads no
specification and no threshold.

It cannot reach a place under a roof, such as a microwave's inside, because an object is held from above; nor hold what
is both wide and flat, such as a plate, because the fingers fit nowhere. It then reaches the other subgoals and holds
still.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Action, Observation, Policy, Privileged, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies import mobile
from safevla_bench.policies.mobile import moves
from safevla_bench.policies.mobile.moves import CLOSE, OPEN
from safevla_bench.policies.scripted import placement, strokes
from safevla_bench.policies.scripted.geometry import lean_angle, remaining_turn
from safevla_bench.policies.scripted.placement import CLOSED_M, HandTarget, is_graspable
from safevla_bench.policies.scripted.plan import STYLES, FixtureGoal, Style, remaining_subgoals


def make(arg: str | None) -> ScriptedPolicy:
    """Return the policy in the style that follows the colon; `PolicyError` without a style, or for an unknown one."""
    if arg is None or arg not in STYLES:
        problem = "policy 'scripted' needs a style" if arg is None else f"policy 'scripted' has no style {arg!r}"
        raise PolicyError(problem, remedy=f"Write one of: {', '.join(f'scripted:{name}' for name in STYLES)}.")
    return ScriptedPolicy(STYLES[arg], mobile.MobilePolicy(moves.STYLES[arg]))


STILL: Action = np.array([0.0] * 6 + [OPEN])
STILL.flags.writeable = False
GAIN_PER_M = (8.0, 10.0)
"""Of a proportional controller, at no speed and what full speed adds: what must not overshoot is asked for slowly."""
TURN_GAIN = 0.8
LEANING_RAD, LEAN_SHARE = 0.35, 0.27
"""A hand that leans further turns at this share of the speed: the wrist alone does it, and its torque is limited."""
UNIT_RAD = 0.5
"""Rotation that an action of 1 commands."""
_FINGER_TOLERANCE_M = 0.003


ScriptState = placement.PlacementProgress | strokes.StrokeProgress


class ScriptedPolicy:
    """A policy that follows the script in one style; it draws nothing, so the seed changes nothing."""

    wants = Wants(privileged=True)

    def __init__(self, style: Style, mobile: Policy | None = None) -> None:
        """Take a style, and the policy that acts in this one's place if the robot drives."""
        self.style, self._mobile = style, mobile
        self._progress: ScriptState | None = None

    def reset(self, task: Task, seed: int) -> None:
        """Forget the last episode."""
        self._progress = None
        if self._mobile:
            self._mobile.reset(task, seed)

    def act(self, observation: Observation) -> Action:
        """Return the next action, [7]; the still action if the script could not begin any subgoal.

        After the last subgoal the hand is held at its last target. A robot that drives gets `mobile`'s action, [12].
        Raises `PolicyError` for an observation without privileged state.
        """
        if self._mobile and observation.base_pos_m is not None:
            return self._mobile.act(observation)
        scene = observation.privileged
        if scene is None:
            raise PolicyError("policy 'scripted' needs privileged state", remedy="Use a host that gives it.")
        self._progress = advance_script(self._progress, observation, scene, self.style)
        if self._progress is None:
            return STILL.copy()
        return steer_hand(self._progress.target(observation, self.style), observation)

    def close(self) -> None:
        """Nothing to free."""


def advance_script(
    progress: ScriptState | None, seen: Observation, scene: Privileged, style: Style
) -> ScriptState | None:
    """Return the script's next state: the present subgoal a step on, the next that can be begun, or the last again.

    A subgoal that is over and not reached is begun again as a further attempt.
    """
    if progress is not None and not progress.is_over:
        return progress.advance(seen, scene, style)
    for subgoal in remaining_subgoals(scene):
        attempt = progress.attempt + 1 if progress is not None and progress.subgoal == subgoal else 0
        state: ScriptState | None = None
        if isinstance(subgoal, FixtureGoal):
            state = strokes.begin_stroke(subgoal, seen, scene, style, attempt)
        elif is_graspable(scene, subgoal.body):
            state = placement.begin_placement(subgoal, seen, scene, style, attempt)
        if state is not None:
            return state
    return progress


def steer_hand(target: HandTarget, seen: Observation) -> Action:
    """Return the action [7] that moves the hand towards `target`: proportional, no longer than its speed allows."""
    gain = GAIN_PER_M[0] + target.speed * GAIN_PER_M[1]
    move = gain * (target.place_m - seen.eef_pos_m)
    length = float(np.linalg.norm(move))
    move = move * min(1.0, target.speed / length) if length > 0 else move
    leans = any(target.lean) or lean_angle(seen.eef_quat_wxyz) > LEANING_RAD
    most = target.speed * (LEAN_SHARE if leans else 1.0)
    remaining = remaining_turn(seen.eef_quat_wxyz, target.yaw_rad, target.lean)
    turn = np.clip(TURN_GAIN * remaining / UNIT_RAD, -most, most)
    return np.concatenate([move, turn, [_finger_command(target.aperture_m, seen.gripper_qpos)]])


def _finger_command(aperture_m: float, gripper_qpos: NDArray[np.float64]) -> float:
    if aperture_m == CLOSED_M:
        return CLOSE
    off = float(np.abs(gripper_qpos).mean()) - aperture_m
    if abs(off) <= _FINGER_TOLERANCE_M:
        return 0.0
    return CLOSE if off > 0 else OPEN
