"""Moves of PandaOmron as generators: each yields actions [12] and is sent observations.

A move ends where it arrived, or after a number of steps: something is then in its way. Styles, careful and hasty,
differ in clearances and speeds alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Observation, Privileged
from safevla_bench.policies.scripted.arm import Move
from safevla_bench.policies.scripted.geometry import OPEN, Floats, read_scene, to_rotation


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


class MobileRobot:
    """The robot as its last observation `seen` shows it; a move begins there and keeps it up to date."""

    def __init__(self, seen: Observation, style: MobileStyle) -> None:
        self.seen, self.style = seen, style

    @property
    def scene(self) -> Privileged:
        """The privileged state."""
        return read_scene(self.seen)

    @property
    def place_m(self) -> Floats:
        """The horizontal position of the base in the world frame, [2]."""
        assert self.seen.base_pos_m is not None
        return self.seen.base_pos_m[:2]

    @property
    def yaw(self) -> float:
        """The yaw of the base in the world frame, rad."""
        assert self.seen.base_quat_wxyz is not None
        return float(to_rotation(self.seen.base_quat_wxyz).as_euler("xyz")[2])

    @property
    def front(self) -> Floats:
        """The unit vector ahead of the base, [3]."""
        return np.array([*yaw_direction(self.yaw), 0.0])

    @property
    def hand_m(self) -> Floats:
        """The position of the hand in the world frame, [3]."""
        return self.seen.eef_pos_m

    def face(self, forward: Floats, across: Floats) -> Rotation:
        """Return the orientation of a hand that points along `forward` [3], a unit vector.

        Its fingers open along `across` [3], unit and at right angles, or along its opposite, whichever is nearer now.
        """
        facings = [
            Rotation.from_matrix(np.stack([np.cross(side, forward), side, forward], axis=1))
            for side in (across, -across)
        ]
        hand = to_rotation(self.seen.eef_quat_wxyz)
        return min(facings, key=lambda facing: float((facing * hand.inv()).magnitude()))

    def drive(
        self,
        place_m: Floats,
        yaw_rad: float | None = None,
        grip: float = OPEN,
        *,
        speed: float | None = None,
        max_steps: int = 150,
        insist: bool = False,
    ) -> Move:
        """Drive the base to `place_m` [2] and turn it to `yaw_rad`, as it is for None, the arm held as it is.

        `speed` is a share of the largest command; None = the style's. The move ends within 4 cm and 0.05 rad, after
        `max_steps`, or if something stops the base, unless `insist`: it may slip past.
        """
        aim, most = self.yaw if yaw_rad is None else yaw_rad, self.style.drive if speed is None else speed
        before = [(self.place_m, self.yaw)]
        for _ in range(max_steps):
            yaw, offset = self.yaw, place_m - self.place_m
            turn = (aim - yaw + np.pi) % (2 * np.pi) - np.pi
            if np.linalg.norm(offset) < _ARRIVED_M and abs(turn) < _FACING_RAD:
                break
            if not insist and len(before) > _STUCK_STEPS:
                then_m, then_yaw = before[-_STUCK_STEPS]
                if np.linalg.norm(self.place_m - then_m) < _STUCK_M and abs(yaw - then_yaw) < _STUCK_M:
                    break
            before.append((self.place_m, yaw))
            along = np.array([offset @ yaw_direction(yaw), offset @ yaw_direction(yaw + np.pi / 2)])
            wheels = [*_limit_length(along * _DRIVE_GAIN, most), np.clip(_YAW_GAIN * turn, -most, most)]
            self.seen = yield np.array([0.0] * 6 + [grip, *wheels, 0.0, _BASE_MODE])

    def back_off(self, by_m: float, grip: float = OPEN, *, insist: bool = False) -> Move:
        """Drive straight back by `by_m`."""
        return self.drive(self.place_m - by_m * self.front[:2], grip=grip, insist=insist)

    def reach(
        self,
        place_m: Floats,
        grip: float,
        turn: Rotation | None = None,
        *,
        speed: float | None = None,
        near_m: float = 0.012,
        max_steps: int = 60,
    ) -> Move:
        """Move the hand to `place_m` [3] in the world, turned to `turn` (None = no turn).

        The move ends within `near_m` and 0.1 rad, after `max_steps` / `speed` steps, or if something stops the hand.
        """
        most = self.style.cruise if speed is None else speed
        before = [self.hand_m] * _STOPPED_STEPS
        for step in range(round(max_steps / max(most, 0.1))):
            turn_rad = np.linalg.norm(self._remaining_turn(turn))
            if np.linalg.norm(place_m - self.hand_m) < near_m and turn_rad < 2 * _FACING_RAD:
                break
            resting = np.linalg.norm(self.hand_m - before[-_STOPPED_STEPS]) < _STOPPED_M * most
            if step > 2 * _STOPPED_STEPS and resting and turn_rad < 4 * _FACING_RAD:
                break
            before.append(self.hand_m)
            yield from self.step_hand(place_m, grip, turn, most)

    def hold_still(self, grip: float) -> Move:
        """Keep hand and base still for as long as the style gives the fingers, with the command `grip` to them."""
        for _ in range(self.style.dwell_steps):
            yield from self.step_hand(self.hand_m, grip, None, 0.0)

    def step_hand(self, place_m: Floats, grip: float, turn: Rotation | None, speed: float) -> Move:
        """Move the hand towards `place_m` [3] for one step."""
        move = _limit_length(_REACH_GAIN * (place_m - self.hand_m), speed)
        rotation = _limit_length(_TURN_GAIN * self._remaining_turn(turn) / _UNIT_RAD, _TURN_SHARE * speed)
        to_base = Rotation.from_euler("z", -self.yaw)
        arm = [*to_base.apply(move), *to_base.apply(rotation)]
        self.seen = yield np.array([*arm, grip, 0.0, 0.0, 0.0, 0.0, _ARM_MODE])

    def _remaining_turn(self, facing: Rotation | None) -> Floats:
        if facing is None:
            return np.zeros(3)
        return np.asarray((facing * to_rotation(self.seen.eef_quat_wxyz).inv()).as_rotvec())


def yaw_direction(yaw_rad: float) -> Floats:
    """Return the horizontal unit vector of a yaw, [2]."""
    return np.array([np.cos(yaw_rad), np.sin(yaw_rad)])


def _limit_length(vector: Floats, length: float) -> Floats:
    return vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9))
