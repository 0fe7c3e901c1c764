"""Going through knots one after another, as values like those of `phases`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Observation, Privileged
from safevla_bench.policies.scripted import shapes
from safevla_bench.policies.scripted.clearance import Way, way, waypoint
from safevla_bench.policies.scripted.plan import Deed
from safevla_bench.policies.scripted.rotation import UPRIGHT, turn_left, yaw_of
from safevla_bench.policies.scripted.strokes import OPEN_M, Knot, stroke
from safevla_bench.policies.scripted.style import Style
from safevla_bench.policies.scripted.waypoint import Wanted

Floats = NDArray[np.float64]

_AT_M, _FACING_RAD = 0.012, 0.1
_PATIENCE, _FIRST_PATIENCE = 45, 90
"""Steps after which the hand goes on to the next knot even if something is in its way."""
_UP_M = 0.06


@dataclass(frozen=True, slots=True)
class Sweep:
    """How far one stroke has come: the knot that is headed for, and `over`, the way to the first."""

    task: Deed
    knots: tuple[Knot, ...]
    over: Way
    knot: int = 0
    steps: int = 0
    attempt: int = 0

    @property
    def done(self) -> bool:
        return self.knot == len(self.knots)


def begin(task: Deed, seen: Observation, scene: Privileged, style: Style, attempt: int = 0) -> Sweep | None:
    """The stroke that does what is asked, with a last knot clear above its end; None where there is none."""
    knots = stroke(scene, task, yaw_of(seen.eef_quat_wxyz), style)
    if not knots:
        return None
    first, last = knots[0], knots[-1]
    rig = shapes.gripper(first.yaw_rad, OPEN_M)
    over = way(rig, seen.eef_pos_m, first.place_m, shapes.all_but(scene, frozenset()), style)
    away = replace(last, place_m=last.place_m + [0.0, 0.0, _UP_M], lean=UPRIGHT, wait_steps=0, free=True)
    return Sweep(task, (*knots, away), over, attempt=attempt)


def wanted(sweep: Sweep, seen: Observation, style: Style) -> Wanted:
    """What the present knot asks of the hand; at the end it stays where it is."""
    knot = sweep.knots[min(sweep.knot, len(sweep.knots) - 1)]
    there = waypoint(sweep.over, knot.place_m, seen.eef_pos_m, style.corner_m) if sweep.knot == 0 else knot.place_m
    held = max(style.final, 0.6 * style.cruise)
    speed = style.cruise if knot.free else held if knot.held else style.final
    return Wanted(there, knot.yaw_rad, knot.aperture_m, speed, knot.lean)


def advance(sweep: Sweep, seen: Observation) -> Sweep:
    """The sweep after one more step."""
    if sweep.done:
        return replace(sweep, steps=sweep.steps + 1)
    knot = sweep.knots[sweep.knot]
    last = sweep.knot == len(sweep.knots) - 1
    late = sweep.steps >= (_PATIENCE if sweep.knot else _FIRST_PATIENCE)
    if late or (_there(knot, seen, turned=not last) and sweep.steps >= knot.wait_steps):
        return replace(sweep, knot=sweep.knot + 1, steps=0)
    return replace(sweep, steps=sweep.steps + 1)


def _there(knot: Knot, seen: Observation, turned: bool) -> bool:
    """Whether the hand is at the knot and, if `turned`, faces as it asks."""
    left = float(np.linalg.norm(turn_left(seen.eef_quat_wxyz, knot.yaw_rad, knot.lean)))
    return bool(np.linalg.norm(knot.place_m - seen.eef_pos_m) < _AT_M and (left < _FACING_RAD or not turned))
