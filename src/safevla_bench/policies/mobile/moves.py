"""Moves of PandaOmron as generators: each yields actions [12], is sent what follows, and returns the last it was sent.

So a script is a function that goes from move to move, as `seen = yield from drive(seen, ...)`. A move ends where it
arrived, or out of patience: something is then in its way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface import Action, Observation
from safevla_bench.policies.actions import CLOSE, OPEN

Floats = NDArray[np.float64]
Move = Generator[Action, Observation, Observation]
Turn = Callable[[Observation], Floats]
"""What rotation vector [3], rad, world frame, is left to turn the hand."""
Whither = Callable[[Observation], Floats | None]
"""Where the hand should be [3], m, world frame, or None where it has arrived."""

_BASE_MODE, _ARM_MODE = 1.0, -1.0
_DRIVE_GAIN, _YAW_GAIN, _REACH_GAIN, _TURN_GAIN = 8.0, 5.0, 20.0, 1.0
_UNIT_RAD = 0.5
"""Rotation of the hand that an action of 1 commands."""
_TURN_SHARE = 0.3
"""Of the speed of a motion: the wrist is weak."""
_FACING_RAD = 0.05
_THERE_M = 0.04
_STOPPED_STEPS, _STOPPED_M = 8, 0.006
"""A hand that came less far in so many steps, at full speed, has met something."""
_STUCK_STEPS, _STUCK_M = 20, 0.004
"""So has a base; the turn counts as far as its radians say."""


def heading(seen: Observation) -> float:
    """The yaw of the base, rad."""
    assert seen.base_quat_wxyz is not None
    return float(Rotation.from_quat(np.roll(seen.base_quat_wxyz, -1)).as_euler("xyz")[2])


def ahead(yaw_rad: float) -> Floats:
    """The horizontal direction of a yaw, [2]."""
    return np.array([np.cos(yaw_rad), np.sin(yaw_rad)])


def base(seen: Observation) -> Floats:
    """Where the base stands, [2]."""
    assert seen.base_pos_m is not None
    return seen.base_pos_m[:2]


def drive(
    seen: Observation,
    place_m: Floats,
    yaw_rad: float,
    speed: float,
    grip: float = OPEN,
    patience: int = 150,
    insist: bool = False,
) -> Move:
    """Drive the base to [2] and turn it, the arm held as it is.

    It ends early where the base is stopped by something, unless it insists: it may slip past.
    """
    before = [seen]
    for _ in range(patience):
        yaw = heading(seen)
        left = place_m - base(seen)
        turn = (yaw_rad - yaw + np.pi) % (2 * np.pi) - np.pi
        if np.linalg.norm(left) < _THERE_M and abs(turn) < _FACING_RAD:
            break
        if not insist and len(before) > _STUCK_STEPS and _still(before[-_STUCK_STEPS], seen):
            break
        before.append(seen)
        along = _limited(np.array([left @ ahead(yaw), left @ ahead(yaw + np.pi / 2)]) * _DRIVE_GAIN, speed)
        wheels = [*along, np.clip(_YAW_GAIN * turn, -speed, speed)]
        seen = yield np.array([0.0] * 6 + [grip, *wheels, 0.0, _BASE_MODE])
    return seen


def _still(then: Observation, now: Observation) -> bool:
    """Whether the base has hardly moved."""
    return bool(np.linalg.norm(base(now) - base(then)) < _STUCK_M and abs(heading(now) - heading(then)) < _STUCK_M)


def reach(
    seen: Observation,
    place_m: Floats,
    speed: float,
    grip: float = OPEN,
    turn: Turn | None = None,
    near_m: float = 0.012,
    patience: int = 60,
) -> Move:
    """Move the hand to [3] in the world and turn it by what `turn` says is left, the base standing still.

    It ends early where the hand is stopped by something.
    """
    before = [seen.eef_pos_m] * _STOPPED_STEPS
    for step in range(round(patience / max(speed, 0.1))):
        left = place_m - seen.eef_pos_m
        rest = turn(seen) if turn else np.zeros(3)
        if np.linalg.norm(left) < near_m and np.linalg.norm(rest) < 2 * _FACING_RAD:
            break
        resting = np.linalg.norm(seen.eef_pos_m - before[-_STOPPED_STEPS]) < _STOPPED_M * speed
        if step > 2 * _STOPPED_STEPS and resting and np.linalg.norm(rest) < 4 * _FACING_RAD:
            break
        before.append(seen.eef_pos_m)
        turning = _limited(_TURN_GAIN * rest / _UNIT_RAD, _TURN_SHARE * speed)
        seen = yield _arm(seen, _limited(_REACH_GAIN * left, speed), turning, grip)
    return seen


def follow(
    seen: Observation, whither: Whither, speed: float, grip: float = CLOSE, turn: Turn | None = None, patience: int = 60
) -> Move:
    """Move the hand after a point [3] that is asked for anew at each step, until there is none."""
    for _ in range(round(patience / max(speed, 0.1))):
        place = whither(seen)
        if place is None:
            break
        turning = _limited(_TURN_GAIN * (turn(seen) if turn else np.zeros(3)) / _UNIT_RAD, _TURN_SHARE * speed)
        seen = yield _arm(seen, _limited(_REACH_GAIN * (place - seen.eef_pos_m), speed), turning, grip)
    return seen


def hold(seen: Observation, steps: int, grip: float) -> Move:
    """Keep still while the fingers close or open."""
    for _ in range(steps):
        seen = yield _arm(seen, np.zeros(3), np.zeros(3), grip)
    return seen


def facing(seen: Observation, forward: Floats, across: Floats) -> Turn:
    """Turn the hand until it points along [3] with its fingers opening along `across` [3], whichever way is nearer."""
    wanted = [
        Rotation.from_matrix(np.stack([np.cross(side, forward), side, forward], axis=1)) for side in (across, -across)
    ]
    nearest = min(wanted, key=lambda one: float((one * _hand(seen).inv()).magnitude()))

    def left(seen: Observation) -> Floats:
        vector: Floats = (nearest * _hand(seen).inv()).as_rotvec()
        return vector

    return left


def _hand(seen: Observation) -> Rotation:
    return Rotation.from_quat(np.roll(seen.eef_quat_wxyz, -1))


def _arm(seen: Observation, move: Floats, turn: Floats, grip: float) -> Action:
    """The arm's action for a motion in world axes, in units of the largest command."""
    to_base = Rotation.from_euler("z", -heading(seen))
    return np.array([*to_base.apply(move), *to_base.apply(turn), grip, 0.0, 0.0, 0.0, 0.0, _ARM_MODE])


def _limited(vector: Floats, length: float) -> Floats:
    return vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9))


__all__ = [
    "CLOSE",
    "OPEN",
    "Move",
    "Turn",
    "Whither",
    "ahead",
    "base",
    "drive",
    "facing",
    "follow",
    "heading",
    "hold",
    "reach",
]
