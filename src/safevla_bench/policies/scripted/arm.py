"""An arm that stands still, in one of two styles, and the moves of its hand, as generators.

The styles, careful and hasty, differ in clearances and speeds alone.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface.policy import Action, Observation, Privileged
from safevla_bench.policies.scripted import geometry
from safevla_bench.policies.scripted.geometry import CLOSE, OPEN, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Clearances and speeds. Lengths in metres; speeds as a share of the largest commanded motion, 0.05 m a step."""

    clearance_m: float  # kept from everything beside and below the hand and what it holds
    corner_m: float  # distance to a waypoint at which the path to the next begins; a large one cuts corners
    hover_m: float  # height over the grasp at which the final descent begins
    lift_m: float  # least height by which a gripped object is lifted before it is carried
    release_m: float  # height over the support at which an object is let go
    cruise: float  # speed along a path
    final: float  # speed of the descent to a grasp, of the lift, and of the lowering to a release
    dwell_steps: int  # steps given to the fingers to close or to open


CAREFUL = Style(
    clearance_m=0.02, corner_m=0.015, hover_m=0.06, lift_m=0.06, release_m=0.008, cruise=0.8, final=0.3, dwell_steps=10
)
"""Rises clear of everything, goes across, comes down slowly, and sets down."""

HASTY = Style(
    clearance_m=0.0, corner_m=0.04, hover_m=0.035, lift_m=0.02, release_m=0.04, cruise=1.0, final=0.8, dwell_steps=6
)
"""Takes the short way at full speed, with no room to spare, and drops."""

STYLES: Mapping[str, Style] = MappingProxyType({"careful": CAREFUL, "hasty": HASTY})


STILL = (*[0.0] * 6, OPEN)
Move = Generator[Action, Observation, None]
"""Yields actions, and is sent the observation after each."""
OPEN_M, CLOSED_M = 0.039, 0.0
"""Distance of each finger from the middle."""
GAIN_PER_M = (8.0, 10.0)
"""Of a proportional controller, at no speed and what full speed adds: what must not overshoot is asked for slowly."""
TURN_GAIN = 0.8
UNIT_RAD = 0.5
"""Rotation that an action of 1 commands."""
_FINGER_TOLERANCE_M = 0.003


@dataclass(frozen=True, slots=True)
class HandTarget:
    """A target of the hand: place_m [3], yaw, the fingers' distance from the middle, and the speed to get there."""

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    speed: float


@dataclass(frozen=True, slots=True)
class ClearPath:
    """A straight path seen from above: places_m [K, 2], and the height that its rest needs from each place, [K].

    `corner_m` is the distance to a corner at which the path to the next begins.
    """

    places_m: Floats
    height_m: Floats
    corner_m: float

    def next_point(self, goal_m: Floats, here_m: Floats) -> Floats:
        """Return the point to head for now, [3]: up until the path is clear, then across, then down; corners cut."""
        nearest = np.argmin(np.linalg.norm(self.places_m - here_m[:2], axis=1))
        height = float(self.height_m[nearest])
        if np.linalg.norm(goal_m[:2] - here_m[:2]) < self.corner_m:
            return goal_m
        if here_m[2] < height - self.corner_m:
            return np.array([*here_m[:2], height])
        return np.array([*goal_m[:2], height])


class Arm:
    """An arm as its last observation `seen` shows it, and the last target of its hand.

    A move yields actions [7] and is sent observations; it begins at `seen` and keeps it up to date.
    """

    def __init__(self, seen: Observation, style: Style) -> None:
        self.seen, self.style = seen, style
        self.target: HandTarget | None = None

    @property
    def scene(self) -> Privileged:
        """The privileged state."""
        return geometry.read_scene(self.seen)

    @property
    def hand_m(self) -> Floats:
        """The position of the hand in the world frame, [3]."""
        return self.seen.eef_pos_m

    def plan_path(self, rig: geometry.Prisms, end_m: Floats, obstacles: geometry.Prisms) -> ClearPath:
        """Return the straight path of a rig from the hand to [3] over all obstacles by the style's clearance."""
        clearance_m = self.style.clearance_m
        places = geometry.line_points(self.hand_m[:2], end_m[:2])
        floor = geometry.lowest_heights(rig, places, obstacles, clearance_m, clearance_m)
        rest = np.maximum.accumulate(np.maximum(floor, end_m[2])[::-1])[::-1]
        return ClearPath(places, rest, self.style.corner_m)

    def reach(
        self,
        target: HandTarget,
        most_steps: int,
        near_m: float,
        *,
        height_m: float = np.inf,
        turn_rad: float = np.inf,
        path: ClearPath | None = None,
    ) -> Generator[Action, Observation, bool]:
        """Move the hand to a target, along a path if there is one; return whether time was up.

        The move ends nearer than `near_m`, `height_m` above or below, and `turn_rad`; or after `most_steps` and one,
        even if the hand is not at its target: something is in its way.
        """
        self.target = target
        for step in range(most_steps + 1):
            point = path.next_point(target.place_m, self.hand_m) if path else target.place_m
            self.seen = yield steer_hand(replace(target, place_m=point), self.seen)
            gap = target.place_m - self.hand_m
            turn = geometry.remaining_turn(self.seen.eef_quat_wxyz, target.yaw_rad)
            if np.linalg.norm(gap) < near_m and abs(gap[2]) < height_m and np.linalg.norm(turn) < turn_rad:
                return step == most_steps
        return True

    def keep_target(self) -> Move:
        """Move the hand for one step towards its last target; if there was none, hold still."""
        self.seen = yield np.array(STILL) if self.target is None else steer_hand(self.target, self.seen)


def steer_hand(target: HandTarget, seen: Observation) -> Action:
    """Return the action [7] that moves the hand towards `target`: proportional, no longer than its speed allows."""
    gain = GAIN_PER_M[0] + target.speed * GAIN_PER_M[1]
    move = gain * (target.place_m - seen.eef_pos_m)
    length = float(np.linalg.norm(move))
    move = move * min(1.0, target.speed / length) if length > 0 else move
    remaining = geometry.remaining_turn(seen.eef_quat_wxyz, target.yaw_rad)
    turn = np.clip(TURN_GAIN * remaining / UNIT_RAD, -target.speed, target.speed)
    return np.concatenate([move, turn, [_finger_command(target.aperture_m, seen.gripper_qpos)]])


def _finger_command(aperture_m: float, gripper_qpos: NDArray[np.float64]) -> float:
    if aperture_m == CLOSED_M:
        return CLOSE
    off = float(np.abs(gripper_qpos).mean()) - aperture_m
    if abs(off) <= _FINGER_TOLERANCE_M:
        return 0.0
    return CLOSE if off > 0 else OPEN
