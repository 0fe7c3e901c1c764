"""The script that puts an object onto the lowest shelf of an open cabinet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Observation, Privileged
from safevla_bench.policies.mobile.handles import Bar, bars
from safevla_bench.policies.mobile.moves import CLOSE, OPEN, Move, ahead, base, drive, facing, heading, hold, reach
from safevla_bench.policies.mobile.style import Style

Floats = NDArray[np.float64]
_UP = np.array([0.0, 0.0, 1.0])
# What counts as a board: half its thickness and half its depth. How far the base stands before the shelf, backs away
# to turn the hand and to leave, and how far behind the edge the object comes.
_FLAT_M, _DEEP_M = 0.03, 0.1
_REACH_M, _ROOM_M, _LEAVE_M, _IN_M = 0.70, 0.30, 0.40, 0.02


def shelves(scene: Privileged, fixture: str) -> list[Bar]:
    """The horizontal boards of a fixture from low to high."""
    found = [bar for name in scene.pieces if name.startswith(fixture) for bar in bars(scene, name)]
    flat = [bar for bar in found if bar.reach(_UP) < _FLAT_M and np.sort(bar.half_m)[1] > _DEEP_M]
    return sorted(flat, key=lambda bar: float(bar.center_m[2]))


def shelve(seen: Observation, name: str, fixture: str, style: Style) -> Move:
    """With the object in hand: away from the counter, level the hand, in between the doors, let go, and out."""
    assert seen.privileged is not None
    scene, yaw = seen.privileged, heading(seen)
    front = np.array([*ahead(yaw), 0.0])
    floor, roof = shelves(scene, fixture)[:2]
    size = float(scene.half_extents_m[name].max())
    edge = floor.center_m - floor.reach(front) * front
    low = floor.center_m[2] + floor.reach(_UP) + size + style.release_m
    high = min(low, float(roof.center_m[2] + floor.center_m[2]) / 2)
    goal = np.array([*(edge + (_IN_M + size) * front)[:2], high])
    level = facing(seen, front, np.cross(_UP, front))
    stand = (goal - _REACH_M * front)[:2]
    seen = yield from drive(seen, base(seen) - _ROOM_M * front[:2], yaw, style.drive, CLOSE)
    seen = yield from drive(seen, stand - _ROOM_M * front[:2], yaw, style.drive, CLOSE)
    seen = yield from reach(seen, goal - _ROOM_M * front, style.cruise, CLOSE, level, patience=90)
    seen = yield from drive(seen, stand, yaw, style.drive, CLOSE)
    seen = yield from reach(seen, goal, max(style.touch, 0.3), CLOSE, level)
    seen = yield from hold(seen, style.dwell_steps, OPEN)
    return (yield from drive(seen, base(seen) - _LEAVE_M * front[:2], yaw, style.drive))
