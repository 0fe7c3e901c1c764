"""Moves of PandaOmron as generators: each yields actions [12], is sent observations, and returns the last one.

A script goes from move to move, as `seen = yield from drive_base(seen, ...)`. A move ends where it arrived, or after a
number of steps: something is then in its way. Styles, careful and hasty, differ in clearances and speeds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Action, Observation, Privileged


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileStyle:
    """Clearances in metres; speeds as a share of the largest command of the base or the arm."""

    room_m: float  # how far the base backs away from a counter before it turns or drives along it
    over_m: float  # height over the highest thing near at which an object is carried
    release_m: float  # height over the support at which an object is let go
    drive: float  # speed of the base
    push: float  # speed of the base while the hand pushes something
    cruise: float  # speed of the hand in the air
    touch: float  # speed of the hand towards what it is to touch
    dwell_steps: int  # steps given to the fingers to close or to open


CAREFUL = MobileStyle(
    room_m=0.5, over_m=0.12, release_m=0.02, drive=0.7, push=0.6, cruise=0.6, touch=0.2, dwell_steps=15
)
HASTY = MobileStyle(room_m=0.05, over_m=0.02, release_m=0.06, drive=1.0, push=1.0, cruise=1.0, touch=1.0, dwell_steps=8)

STYLES: Mapping[str, MobileStyle] = MappingProxyType({"careful": CAREFUL, "hasty": HASTY})


Floats = NDArray[np.float64]
Move = Generator[Action, Observation, Observation]
"""Yields actions [12], is sent the observation after each, and returns the last observation."""
RemainingTurn = Callable[[Observation], Floats]
"""Of an observation, the rotation vector [3], rad, world frame, by which the hand is still to turn."""
TargetPoint = Callable[[Observation], Floats | None]
"""Of an observation, the point [3], m, world frame, for the hand; None if it has arrived."""

OPEN, CLOSE = -1.0, 1.0
"""The gripper's number of an action."""
_BASE_MODE, _ARM_MODE = 1.0, -1.0
_DRIVE_GAIN, _YAW_GAIN, _REACH_GAIN, _TURN_GAIN = 8.0, 5.0, 20.0, 1.0
_UNIT_RAD = 0.5
"""Rotation of the hand that an action of 1 commands."""
_TURN_SHARE = 0.3
"""Of the speed of a motion: the wrist is weak."""
_FACING_RAD = 0.05
_ARRIVED_M = 0.04
_STOPPED_STEPS, _STOPPED_M = 8, 0.006
"""A hand that came less far in so many steps, at full speed, has met something."""
_STUCK_STEPS, _STUCK_M = 20, 0.004
"""So has a base; the turn counts as far as its radians say."""


def read_scene(seen: Observation) -> Privileged:
    """Return the privileged state of an observation, which every script needs."""
    assert seen.privileged is not None
    return seen.privileged


def box_axes(scene: Privileged, name: str) -> Floats:
    """Return the axes of a body's box as columns, [3, 3], world frame."""
    matrix: Floats = Rotation.from_quat(np.roll(scene.body_quat_wxyz[name], -1)).as_matrix()
    return matrix


def box_center(scene: Privileged, name: str) -> Floats:
    """Return the centre of a body's box, [3] m, world frame."""
    return np.asarray(scene.body_pos_m[name] + box_axes(scene, name) @ scene.center_m[name])


def base_yaw(seen: Observation) -> float:
    """Return the yaw of the base, rad in the world frame; `AssertionError` if the robot has no base."""
    assert seen.base_quat_wxyz is not None
    return float(Rotation.from_quat(np.roll(seen.base_quat_wxyz, -1)).as_euler("xyz")[2])


def yaw_direction(yaw_rad: float) -> Floats:
    """Return the horizontal unit vector of a yaw, [2]."""
    return np.array([np.cos(yaw_rad), np.sin(yaw_rad)])


def base_position(seen: Observation) -> Floats:
    """Return the horizontal position of the base, [2] m in the world frame."""
    assert seen.base_pos_m is not None
    return seen.base_pos_m[:2]


def drive_base(
    seen: Observation,
    place_m: Floats,
    yaw_rad: float,
    speed: float,
    grip: float = OPEN,
    max_steps: int = 150,
    insist: bool = False,
) -> Move:
    """Yield actions that drive the base to `place_m` [2] and turn it to `yaw_rad`, the arm held as it is.

    `speed` is a share of the largest command. The move ends within 4 cm and 0.05 rad, after `max_steps`, or if
    something stops the base, unless `insist`: it may slip past.
    """
    before = [seen]
    for _ in range(max_steps):
        yaw = base_yaw(seen)
        offset = place_m - base_position(seen)
        turn = (yaw_rad - yaw + np.pi) % (2 * np.pi) - np.pi
        if np.linalg.norm(offset) < _ARRIVED_M and abs(turn) < _FACING_RAD:
            break
        if not insist and len(before) > _STUCK_STEPS:
            then = before[-_STUCK_STEPS]
            moved = np.linalg.norm(base_position(seen) - base_position(then))
            if moved < _STUCK_M and abs(yaw - base_yaw(then)) < _STUCK_M:
                break
        before.append(seen)
        along = _limit_length(
            np.array([offset @ yaw_direction(yaw), offset @ yaw_direction(yaw + np.pi / 2)]) * _DRIVE_GAIN, speed
        )
        wheels = [*along, np.clip(_YAW_GAIN * turn, -speed, speed)]
        seen = yield np.array([0.0] * 6 + [grip, *wheels, 0.0, _BASE_MODE])
    return seen


def move_hand(
    seen: Observation,
    place_m: Floats,
    speed: float,
    grip: float = OPEN,
    turn: RemainingTurn | None = None,
    near_m: float = 0.012,
    max_steps: int = 60,
) -> Move:
    """Yield actions that move the hand to `place_m` [3] in the world, turned by `turn` (None = no turn).

    The move ends within `near_m` and 0.1 rad, after `max_steps` / `speed` steps, or if something stops the hand.
    """
    before = [seen.eef_pos_m] * _STOPPED_STEPS
    for step in range(round(max_steps / max(speed, 0.1))):
        offset = place_m - seen.eef_pos_m
        remaining = turn(seen) if turn else np.zeros(3)
        if np.linalg.norm(offset) < near_m and np.linalg.norm(remaining) < 2 * _FACING_RAD:
            break
        resting = np.linalg.norm(seen.eef_pos_m - before[-_STOPPED_STEPS]) < _STOPPED_M * speed
        if step > 2 * _STOPPED_STEPS and resting and np.linalg.norm(remaining) < 4 * _FACING_RAD:
            break
        before.append(seen.eef_pos_m)
        seen = yield _reach_action(seen, offset, remaining, speed, grip)
    return seen


def follow_point(
    seen: Observation,
    whither: TargetPoint,
    speed: float,
    grip: float = CLOSE,
    turn: RemainingTurn | None = None,
    max_steps: int = 60,
) -> Move:
    """Move the hand after the point [3] of `whither`, until that is None, or for `max_steps` / `speed` steps."""
    for _ in range(round(max_steps / max(speed, 0.1))):
        place = whither(seen)
        if place is None:
            break
        remaining = turn(seen) if turn else np.zeros(3)
        seen = yield _reach_action(seen, place - seen.eef_pos_m, remaining, speed, grip)
    return seen


def hold_still(seen: Observation, steps: int, grip: float) -> Move:
    """Keep hand and base still for a number of steps, with the command `grip` to the fingers."""
    for _ in range(steps):
        seen = yield _reach_action(seen, np.zeros(3), np.zeros(3), 0.0, grip)
    return seen


def turn_to_face(seen: Observation, forward: Floats, across: Floats) -> RemainingTurn:
    """Return a function of later observations: the turn until the hand points along `forward` [3], unit.

    Its fingers then open along `across` [3], unit and at right angles, or along its opposite, whichever is nearer now.
    """
    facings = [
        Rotation.from_matrix(np.stack([np.cross(side, forward), side, forward], axis=1)) for side in (across, -across)
    ]
    facing = min(facings, key=lambda rotation: float((rotation * _hand_rotation(seen).inv()).magnitude()))

    def remaining_turn(now: Observation) -> Floats:
        vector: Floats = (facing * _hand_rotation(now).inv()).as_rotvec()
        return vector

    return remaining_turn


def _hand_rotation(seen: Observation) -> Rotation:
    return Rotation.from_quat(np.roll(seen.eef_quat_wxyz, -1))


def _reach_action(seen: Observation, offset: Floats, remaining: Floats, speed: float, grip: float) -> Action:
    move = _limit_length(_REACH_GAIN * offset, speed)
    turn = _limit_length(_TURN_GAIN * remaining / _UNIT_RAD, _TURN_SHARE * speed)
    to_base = Rotation.from_euler("z", -base_yaw(seen))
    return np.array([*to_base.apply(move), *to_base.apply(turn), grip, 0.0, 0.0, 0.0, 0.0, _ARM_MODE])


def _limit_length(vector: Floats, length: float) -> Floats:
    return vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9))
