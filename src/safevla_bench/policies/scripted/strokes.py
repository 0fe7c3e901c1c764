"""Strokes that move knobs, doors and drawers: waypoints through which the hand goes one after another.

The fingers are closed but where a handle is held. A hand that leans has its fingers ahead of its wrist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from safevla_bench.interface.policy import Observation, Privileged
from safevla_bench.policies.scripted import geometry
from safevla_bench.policies.scripted.geometry import Floats
from safevla_bench.policies.scripted.placement import (
    ARM_M,
    CLOSED_M,
    OPEN_M,
    ClearPath,
    HandTarget,
    next_point,
    plan_path,
)
from safevla_bench.policies.scripted.plan import (
    Door,
    Drawer,
    FixtureGoal,
    Knob,
    Style,
    find_fixture,
    rotate_planar,
)

_ON_RAD = 1.5
"""Angle of the hand's path round a knob; it lags and slips, and a knob is on long before."""
_STEP_RAD = 0.15
_KNOB_REACH = 0.9
"""Place at which a knob's bar is pushed, as a share of its length from the axis."""
_DOOR_REACH = 1.5
"""Place at which a door is pushed, in halves of its panel from the hinge."""
_ROOM_M = 0.012
"""Between the fingers and what they will push, when they come down beside it."""
_FINGER_M = 0.013
"""Half the thickness of the closed fingers, across the direction in which they open."""
_TIP_M = 0.010
"""Distance of the fingertips below the grip site."""
_OVERLAP_M = 0.02
"""Depth of the fingertips below the top of what they push."""
LEAN_RAD, LEVEL_RAD = 0.8, 1.4
"""Lean of the hand to push a handle, its own edge behind the fingertips, and to hold one from the front."""
PULLED_M = {"open": 0.17, "ajar": 0.135}
"""Travel of a drawn drawer: all the way, or so that an object beside it stays within reach from above."""
_HIGH_M = 0.12
"""Over its start before a handle: room for the hand to lean."""
_BACK_M = 0.06
"""In front of a handle, before it is taken and after it is let go."""
_PAST_M = 0.015
"""Travel beyond closed of a pushed drawer or door: the arm gives way."""
_AT_M, _FACING_RAD = 0.012, 0.1
_TIMEOUT_STEPS, _FIRST_TIMEOUT_STEPS = 45, 90
"""Steps after which the hand goes on to the next waypoint even if something is in its way."""
_UP_M = 0.06


@dataclass(frozen=True, slots=True)
class Waypoint:
    """A waypoint of the hand: place_m [3] of the grip site; yaw; the fingers; lean [3], a rotation vector on top.

    `free`: nothing is near, so the hand goes there at cruising speed; `held`: it draws what it holds, a little slower.
    It stays for `wait_steps` at least.
    """

    place_m: Floats
    yaw_rad: float
    aperture_m: float = CLOSED_M
    lean: tuple[float, float, float] = geometry.UPRIGHT
    wait_steps: int = 0
    free: bool = False
    held: bool = False

    def is_reached(self, seen: Observation, turned: bool) -> bool:
        """Return whether the hand is there and, if asked for, `turned` as it should be."""
        angle = float(np.linalg.norm(geometry.remaining_turn(seen.eef_quat_wxyz, self.yaw_rad, self.lean)))
        return bool(np.linalg.norm(self.place_m - seen.eef_pos_m) < _AT_M and (angle < _FACING_RAD or not turned))


def turn_knob(scene: Privileged, knob: Knob, yaw_rad: float, style: Style) -> tuple[Waypoint, ...]:
    """Return waypoints that push an end of the knob's bar round its axis, counter-clockwise, the hand turning too."""
    bar = knob.bar.hull()
    width = bar.reach_m[0] + bar.reach_m[0, geometry.OPPOSITE]
    across = geometry.DIRECTIONS[int(np.argmin(width))]
    side = across if across @ rotate_planar(ARM_M - knob.axis_m, -np.pi / 2) > 0 else -across
    long = rotate_planar(side, -np.pi / 2)
    reach, half = float(bar.reach_m[0, geometry.nearest_direction(long)] - long @ knob.axis_m), float(width.min()) / 2
    yaw = geometry.yaw_to_open_along(long, yaw_rad)
    start = knob.axis_m + _KNOB_REACH * reach * long - (half + _FINGER_M + _ROOM_M) * side
    rig, around = geometry.hand_prisms(yaw, CLOSED_M), geometry.obstacles_except(scene, frozenset())
    height = float(geometry.lowest_heights(rig, start[None, :2], around, 0.0, 0.003)[0])
    angles = np.arange(0.0, _ON_RAD, 2 * _STEP_RAD)
    arm = start - knob.axis_m
    round_ = [Waypoint(np.array([*(knob.axis_m + rotate_planar(arm, angle)), height]), yaw + angle) for angle in angles]
    return (_hover_above(round_[0], style), *round_)


def shut_door(scene: Privileged, door: Door, yaw_rad: float, style: Style) -> tuple[Waypoint, ...]:
    """Return waypoints that push the panel's far half round its hinge, a little beyond shut."""
    middle, half = geometry.planar_extent(door.panel)
    arm = _DOOR_REACH * (middle - door.hinge_m)
    ahead = rotate_planar(arm / np.linalg.norm(arm), np.copysign(np.pi / 2, door.shut_rad))
    thick = abs(float(half @ np.abs(ahead)))
    start = door.hinge_m + arm - (thick + _FINGER_M + 0.02) * ahead
    yaw = geometry.yaw_to_open_along(arm, yaw_rad)
    height = float(door.panel.top_m.max()) - _OVERLAP_M + _TIP_M
    past = np.copysign(4 * _PAST_M / np.linalg.norm(arm), door.shut_rad)
    count = 2 + int(abs(door.shut_rad) / _STEP_RAD)
    round_ = [
        Waypoint(np.array([*(door.hinge_m + rotate_planar(start - door.hinge_m, angle)), height]), yaw)
        for angle in np.linspace(0.0, door.shut_rad + past, count)
    ]
    return (_hover_above(round_[0], style), *round_)


def push_drawer(drawer: Drawer, yaw_rad: float) -> tuple[Waypoint, ...]:
    """Return waypoints that push the drawer by its handle, the fingers ahead, until it is shut, and back half way."""
    inward = -drawer.outward
    yaw = geometry.yaw_to_open_along(rotate_planar(inward, np.pi / 2), yaw_rad)
    middle, half = geometry.planar_extent(drawer.handle)
    tip = np.array([*(middle + half * drawer.outward), float(drawer.handle.low_m[0] + drawer.handle.top_m[0]) / 2])
    handle = tip + _TIP_M * np.array([*(np.sin(LEAN_RAD) * drawer.outward), np.cos(LEAN_RAD)])
    off = handle - [*(0.02 * inward), 0.0]
    end = handle + [*((drawer.out_m + _PAST_M) * inward), 0.0]
    lean = _lean_vector(inward, LEAN_RAD)
    return (
        Waypoint(off + [0.0, 0.0, _HIGH_M], yaw, lean=lean, free=True),
        Waypoint(off, yaw, lean=lean),
        *(Waypoint(off + share * (end - off), yaw, lean=lean) for share in (0.25, 0.5, 0.75, 1.0)),
        Waypoint(off + 0.5 * (end - off), yaw, lean=lean),
    )


def pull_drawer(drawer: Drawer, out_m: float, yaw_rad: float, style: Style) -> tuple[Waypoint, ...]:
    """Return waypoints that take the handle, a finger above and a finger below, pull to `out_m`, and let go."""
    inward = -drawer.outward
    yaw = geometry.yaw_to_open_along(inward, yaw_rad)
    middle = geometry.planar_extent(drawer.handle)[0]
    hold = np.array([*middle, float(drawer.handle.low_m[0] + drawer.handle.top_m[0]) / 2])
    back, pull = (
        np.array([*(_BACK_M * drawer.outward), 0.0]),
        np.array([*((out_m - drawer.out_m) * drawer.outward), 0.0]),
    )
    lean = _lean_vector(inward, LEVEL_RAD)
    return (
        Waypoint(hold + back + [0.0, 0.0, _HIGH_M], yaw, OPEN_M, lean, free=True),
        Waypoint(hold + back, yaw, OPEN_M, lean, free=True),
        Waypoint(hold, yaw, OPEN_M, lean),
        Waypoint(hold, yaw, CLOSED_M, lean, style.dwell_steps),
        Waypoint(hold + pull, yaw, CLOSED_M, lean, held=True),
        Waypoint(hold + pull, yaw, OPEN_M, lean, style.dwell_steps),
        Waypoint(hold + pull + back, yaw, OPEN_M, lean, free=True),
    )


def _lean_vector(towards: Floats, angle_rad: float) -> tuple[float, float, float]:
    return (float(angle_rad * towards[1]), float(-angle_rad * towards[0]), 0.0)


def _hover_above(waypoint: Waypoint, style: Style) -> Waypoint:
    return Waypoint(waypoint.place_m + [0.0, 0.0, style.hover_m], waypoint.yaw_rad, waypoint.aperture_m, free=True)


def plan_stroke(scene: Privileged, goal: FixtureGoal, yaw_rad: float, style: Style) -> tuple[Waypoint, ...]:
    """Return the waypoints to a fixture's goal; () if the scene does not show the fixture, or the kind is unknown."""
    match find_fixture(scene, goal):
        case Knob() as knob:
            return turn_knob(scene, knob, yaw_rad, style)
        case Door() as door:
            return shut_door(scene, door, yaw_rad, style)
        case Drawer() as drawer if goal.kind == "close":
            return push_drawer(drawer, yaw_rad)
        case Drawer() as drawer:
            return pull_drawer(drawer, PULLED_M[goal.kind], yaw_rad, style)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class StrokeProgress:
    """The progress of one stroke: the index of the present waypoint, and `path`, which leads to the first."""

    subgoal: FixtureGoal
    waypoints: tuple[Waypoint, ...]
    path: ClearPath
    index: int = 0
    steps: int = 0
    attempt: int = 0

    @property
    def is_over(self) -> bool:
        """True if the hand is done with the last waypoint: it has reached it, or its time was up."""
        return self.index == len(self.waypoints)

    def target(self, seen: Observation, style: Style) -> HandTarget:
        """Return the hand's target at the present waypoint; once all are done, the last."""
        waypoint = self.waypoints[min(self.index, len(self.waypoints) - 1)]
        point = waypoint.place_m
        if self.index == 0:
            point = next_point(self.path, point, seen.eef_pos_m, style.corner_m)
        held_speed = max(style.final, 0.6 * style.cruise)
        speed = style.cruise if waypoint.free else held_speed if waypoint.held else style.final
        return HandTarget(point, waypoint.yaw_rad, waypoint.aperture_m, speed, waypoint.lean)

    def advance(self, seen: Observation, scene: Privileged, style: Style) -> StrokeProgress:
        """Return the progress after one more step: at the next waypoint if this one is reached or its time is up.

        The last waypoint needs no orientation.
        """
        if self.is_over:
            return replace(self, steps=self.steps + 1)
        waypoint = self.waypoints[self.index]
        last = self.index == len(self.waypoints) - 1
        late = self.steps >= (_TIMEOUT_STEPS if self.index else _FIRST_TIMEOUT_STEPS)
        if late or (waypoint.is_reached(seen, turned=not last) and self.steps >= waypoint.wait_steps):
            return replace(self, index=self.index + 1, steps=0)
        return replace(self, steps=self.steps + 1)


def begin_stroke(
    goal: FixtureGoal, seen: Observation, scene: Privileged, style: Style, attempt: int = 0
) -> StrokeProgress | None:
    """Return the start of the stroke to a fixture's goal, with a last waypoint above its end; None without a plan."""
    waypoints = plan_stroke(scene, goal, geometry.nearest_yaw(seen.eef_quat_wxyz), style)
    if not waypoints:
        return None
    first, last = waypoints[0], waypoints[-1]
    rig = geometry.hand_prisms(first.yaw_rad, OPEN_M)
    path = plan_path(rig, seen.eef_pos_m, first.place_m, geometry.obstacles_except(scene, frozenset()), style)
    away = replace(last, place_m=last.place_m + [0.0, 0.0, _UP_M], lean=geometry.UPRIGHT, wait_steps=0, free=True)
    return StrokeProgress(goal, (*waypoints, away), path, attempt=attempt)
