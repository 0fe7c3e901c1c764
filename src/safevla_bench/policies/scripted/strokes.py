"""Knobs, doors and drawers are moved by strokes: knots through which the hand goes one after another.

The fingers are closed but where a handle is held. A hand that leans has its fingers ahead of its wrist.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Privileged
from safevla_bench.policies.scripted import shapes
from safevla_bench.policies.scripted.fixtures import Door, Drawer, Knob, door, drawer, knob, turned
from safevla_bench.policies.scripted.grasp import ARM_M
from safevla_bench.policies.scripted.plan import Deed
from safevla_bench.policies.scripted.rotation import UPRIGHT, yaw_to_open_along
from safevla_bench.policies.scripted.style import Style

Floats = NDArray[np.float64]

CLOSED_M, OPEN_M = 0.0, 0.039
_ON_RAD = 1.5
"""How far the hand goes round a knob; it lags and slips, and a knob is on long before."""
_STEP_RAD = 0.15
_KNOB_REACH = 0.9
"""Where a knob's bar is pushed, as a share of its length from the axis."""
_DOOR_REACH = 1.5
"""Where a door is pushed, in halves of its panel from the hinge."""
_ROOM_M = 0.012
"""Between the fingers and what they will push, when they come down beside it."""
_FINGER_M = 0.013
"""Half the thickness of the closed fingers, across the direction in which they open."""
_TIP_M = 0.010
"""How far the fingertips are below the grip site."""
_OVERLAP_M = 0.02
"""How far the fingertips reach below the top of what they push."""
LEAN_RAD, LEVEL_RAD = 0.8, 1.4
"""How far the hand leans to push a handle, its own edge behind the fingertips, and to hold one from the front."""
PULLED_M = {"open": 0.17, "ajar": 0.135}
"""How far a drawer is drawn: all the way, or so that an object beside it stays within reach from above."""
_HIGH_M = 0.12
"""Over its start before a handle: room for the hand to lean."""
_BACK_M = 0.06
"""In front of a handle, before it is taken and after it is let go."""
_PAST_M = 0.015
"""How much further than closed a drawer or a door is pushed: the arm gives way."""


@dataclass(frozen=True, slots=True)
class Knot:
    """Where the hand should be: place_m [3] of the grip site; yaw; the fingers; lean [3], a rotation vector on top.

    `free`: nothing is near, so the hand goes there at the speed of the way; `held`: it draws what it holds, a little
    slower. It stays for `wait_steps` at least.
    """

    place_m: Floats
    yaw_rad: float
    aperture_m: float = CLOSED_M
    lean: tuple[float, float, float] = UPRIGHT
    wait_steps: int = 0
    free: bool = False
    held: bool = False


def turn_on(scene: Privileged, knob: Knob, yaw_rad: float, style: Style) -> tuple[Knot, ...]:
    """Push one end of the knob's bar round its axis, counter-clockwise, the hand turning with it."""
    bar = knob.bar.hull()
    width = bar.reach_m[0] + bar.reach_m[0, shapes.OPPOSITE]
    across = shapes.DIRECTIONS[int(np.argmin(width))]
    side = across if across @ turned(ARM_M - knob.axis_m, -np.pi / 2) > 0 else -across
    long = turned(side, -np.pi / 2)
    reach, half = float(bar.reach_m[0, shapes.nearest(long)] - long @ knob.axis_m), float(width.min()) / 2
    yaw = yaw_to_open_along(long, yaw_rad)
    start = knob.axis_m + _KNOB_REACH * reach * long - (half + _FINGER_M + _ROOM_M) * side
    height = _floor(scene, start, yaw, 0.003)
    angles = np.arange(0.0, _ON_RAD, 2 * _STEP_RAD)
    arm = start - knob.axis_m
    round_ = [Knot(np.array([*(knob.axis_m + turned(arm, angle)), height]), yaw + angle) for angle in angles]
    return (_above(round_[0], style), *round_)


def shut(scene: Privileged, door: Door, yaw_rad: float, style: Style) -> tuple[Knot, ...]:
    """Push the panel's far half round its hinge."""
    middle, half = shapes.extent(door.panel)
    arm = _DOOR_REACH * (middle - door.hinge_m)
    ahead = turned(arm / np.linalg.norm(arm), np.copysign(np.pi / 2, door.shut_rad))
    thick = abs(float(half @ np.abs(ahead)))
    start = door.hinge_m + arm - (thick + _FINGER_M + 0.02) * ahead
    yaw = yaw_to_open_along(arm, yaw_rad)
    height = float(door.panel.top_m.max()) - _OVERLAP_M + _TIP_M
    past = np.copysign(4 * _PAST_M / np.linalg.norm(arm), door.shut_rad)
    count = 2 + int(abs(door.shut_rad) / _STEP_RAD)
    round_ = [
        Knot(np.array([*(door.hinge_m + turned(start - door.hinge_m, angle)), height]), yaw)
        for angle in np.linspace(0.0, door.shut_rad + past, count)
    ]
    return (_above(round_[0], style), *round_)


def push_in(drawer: Drawer, yaw_rad: float) -> tuple[Knot, ...]:
    """Push the drawer by its handle, the fingers ahead, until it is shut."""
    inward = -drawer.outward
    yaw = yaw_to_open_along(turned(inward, np.pi / 2), yaw_rad)
    handle = _grip(drawer, LEAN_RAD)
    off = handle - [*(0.02 * inward), 0.0]
    end = handle + [*((drawer.out_m + _PAST_M) * inward), 0.0]
    lean = _lean(inward, LEAN_RAD)
    return (
        Knot(off + [0.0, 0.0, _HIGH_M], yaw, lean=lean, free=True),
        Knot(off, yaw, lean=lean),
        *(Knot(off + share * (end - off), yaw, lean=lean) for share in (0.25, 0.5, 0.75, 1.0)),
        Knot(off + 0.5 * (end - off), yaw, lean=lean),
    )


def pull_out(drawer: Drawer, out_m: float, yaw_rad: float, style: Style) -> tuple[Knot, ...]:
    """Take the handle between the fingers, one above and one below, and pull."""
    inward = -drawer.outward
    yaw = yaw_to_open_along(inward, yaw_rad)
    middle = shapes.extent(drawer.handle)[0]
    hold = np.array([*middle, float(drawer.handle.low_m[0] + drawer.handle.top_m[0]) / 2])
    back, pull = (
        np.array([*(_BACK_M * drawer.outward), 0.0]),
        np.array([*((out_m - drawer.out_m) * drawer.outward), 0.0]),
    )
    lean = _lean(inward, LEVEL_RAD)
    return (
        Knot(hold + back + [0.0, 0.0, _HIGH_M], yaw, OPEN_M, lean, free=True),
        Knot(hold + back, yaw, OPEN_M, lean, free=True),
        Knot(hold, yaw, OPEN_M, lean),
        Knot(hold, yaw, CLOSED_M, lean, style.dwell_steps),
        Knot(hold + pull, yaw, CLOSED_M, lean, held=True),
        Knot(hold + pull, yaw, OPEN_M, lean, style.dwell_steps),
        Knot(hold + pull + back, yaw, OPEN_M, lean, free=True),
    )


def _grip(drawer: Drawer, lean_rad: float) -> Floats:
    """The grip site, [3], when the leaning fingertips touch the handle's front."""
    middle, half = shapes.extent(drawer.handle)
    tip = np.array([*(middle + half * drawer.outward), float(drawer.handle.low_m[0] + drawer.handle.top_m[0]) / 2])
    return np.asarray(tip + _TIP_M * np.array([*(np.sin(lean_rad) * drawer.outward), np.cos(lean_rad)]))


def _lean(towards: Floats, angle_rad: float) -> tuple[float, float, float]:
    """The rotation vector that turns a downward hand's fingers towards a level direction."""
    return (float(angle_rad * towards[1]), float(-angle_rad * towards[0]), 0.0)


def _floor(scene: Privileged, place_m: Floats, yaw_rad: float, above_m: float) -> float:
    """How low the hand with closed fingers may come there, over everything."""
    rig, around = shapes.gripper(yaw_rad, CLOSED_M), shapes.all_but(scene, frozenset())
    return float(shapes.lowest(rig, place_m[None, :2], around, 0.0, above_m)[0])


def _above(knot: Knot, style: Style) -> Knot:
    return Knot(knot.place_m + [0.0, 0.0, style.hover_m], knot.yaw_rad, knot.aperture_m, free=True)


def stroke(scene: Privileged, task: Deed, yaw_rad: float, style: Style) -> tuple[Knot, ...]:
    """The knots of what is asked; none where the scene does not show how."""
    match task.kind:
        case "turnon":
            found = knob(scene, task.name)
            return turn_on(scene, found, yaw_rad, style) if found else ()
        case "close":
            slid = drawer(scene, task.name)
            if slid:
                return push_in(slid, yaw_rad)
            hung = door(scene, task.name)
            return shut(scene, hung, yaw_rad, style) if hung else ()
        case "open" | "ajar":
            slid = drawer(scene, task.name)
            return pull_out(slid, PULLED_M[task.kind], yaw_rad, style) if slid else ()
        case _:
            return ()
