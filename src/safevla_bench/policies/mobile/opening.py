"""The script that opens drawers and doors: by the handle, and a door that is ajar from its inside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Observation, Privileged
from safevla_bench.policies.mobile.handles import Bar, carried, course, handle, opened
from safevla_bench.policies.mobile.moves import (
    CLOSE,
    OPEN,
    Move,
    Turn,
    Whither,
    ahead,
    base,
    drive,
    facing,
    follow,
    heading,
    hold,
    reach,
)
from safevla_bench.policies.mobile.style import Style

Floats = NDArray[np.float64]
_UP = np.array([0.0, 0.0, 1.0])

# How far the base stands from an upright handle and from a lying one, which hang lower; how far it backs away; and how
# much the hand dips towards the latter, which it could not reach level.
_REACH_M, _REACH_LOW_M, _ROOM_M, _DIP = 0.65, 0.82, 0.15, 0.3
_UPRIGHT = 0.5
# The hand stops before the handle, then takes it a little behind its middle; the base follows the course in steps.
_BEFORE_M, _BEHIND_M, _STEP = 0.10, 0.005, 0.05
# Pulling goes on past the end, a door only until it is ajar; then it is pushed, beside its middle, from the inside.
_OVER, _AJAR_RAD, _INSIDE_M, _AGAINST_M, _SHARE, _EDGE, _ROUND = 1.05, 0.6, 0.07, 0.02, 0.8, 0.9, 1.3
_LEAD_RAD, _OPEN_RAD = 0.3, 0.03
_AT_M = 0.6


def open_up(seen: Observation, style: Style) -> Move:
    """Open all that the goal's fixture can open, one joint after another."""
    for name in _scene(seen).joints:
        seen = yield from (_door if _scene(seen).joints[name].kind == "hinge" else _drawer)(seen, name, style)
    return seen


def _drawer(seen: Observation, name: str, style: Style) -> Move:
    joint, now = _scene(seen).joints[name], _scene(seen).joint_pos[name]
    seen = yield from _pull(seen, name, _OVER * opened(joint) - now, style)
    return (yield from _away(seen, name, np.sign(opened(joint)), style))


def _door(seen: Observation, name: str, style: Style) -> Move:
    """Pull it ajar; where the handle slipped away, leave it."""
    closed, to = handle(_scene(seen), name), opened(_scene(seen).joints[name])
    seen = yield from _pull(seen, name, np.sign(to) * _AJAR_RAD, style)
    seen = yield from _away(seen, name, np.sign(to), style)
    if abs(_scene(seen).joint_pos[name]) > _AJAR_RAD / 2:
        seen = yield from _push_open(seen, name, closed, style)
    return seen


def _pull(seen: Observation, name: str, by: float, style: Style) -> Move:
    """Take the handle and drive along the joint's course; the arm pulls a drawer on where the base has no room."""
    joint, bar, yaw = _scene(seen).joints[name], handle(_scene(seen), name), heading(seen)
    way = course(joint, bar.center_m) * np.sign(by)
    upright = abs(bar.along[2]) > _UPRIGHT
    stand = bar.center_m[:2] - (_REACH_M if upright else _REACH_LOW_M) * ahead(yaw)
    seen = yield from _face(seen, stand, style)
    if not upright:
        # First roll, then pitch: both at once bring the wrist to its limits.
        seen = yield from reach(seen, seen.eef_pos_m, style.cruise, OPEN, facing(seen, -_UP, -way))
    turn = _grip(seen, bar, way)
    seen = yield from reach(seen, bar.center_m + 2 * _BEFORE_M * way, style.cruise, OPEN, turn)
    seen = yield from drive(seen, _nearer(seen, stand), yaw, style.drive)
    seen = yield from reach(seen, bar.center_m + _BEFORE_M * way, style.cruise, OPEN, turn)
    inside = bar.center_m - _BEHIND_M * way
    seen = yield from reach(seen, inside, max(style.touch, 0.3), OPEN, turn, near_m=_BEHIND_M)
    seen = yield from hold(seen, style.dwell_steps, CLOSE)
    start, end = base(seen), _scene(seen).joint_pos[name] + by
    for done in np.linspace(0.0, by, max(2, round(abs(by) / _STEP))):
        place = start + (carried(joint, bar.center_m, done) - bar.center_m)[:2]
        seen = yield from drive(seen, place, yaw, style.push, CLOSE, patience=20)
    if joint.kind == "slide":
        last = carried(joint, seen.eef_pos_m, end - _scene(seen).joint_pos[name])
        seen = yield from reach(seen, last, style.touch, CLOSE, turn)
    return (yield from hold(seen, style.dwell_steps, OPEN))


def _grip(seen: Observation, bar: Bar, way: Floats) -> Turn:
    """Face the handle with the fingers opening across it; dip towards one that lies."""
    into = -way if abs(bar.along[2]) > _UPRIGHT else -way - _DIP * _UP
    into = into / np.linalg.norm(into)
    return facing(seen, into, np.cross(into, bar.along))


def _push_open(seen: Observation, name: str, closed: Bar, style: Style) -> Move:
    """Go round the edge of a door that is ajar, and push it from the inside with closed fingers."""
    yaw, to = heading(seen), opened(_scene(seen).joints[name])
    front = np.array([*ahead(yaw), 0.0])
    # With the fingers one over the other the hand is narrow enough to go in beside the door.
    turn = facing(seen, front, _UP)
    for share, inside_m in ((_ROUND, -_BEFORE_M / 2), (_ROUND, _INSIDE_M), (_EDGE, _INSIDE_M)):
        place = on_door(_scene(seen), name, closed, _scene(seen).joint_pos[name], share, inside_m)
        seen = yield from reach(seen, place, style.cruise, CLOSE, turn)
        if inside_m < 0:
            stand = on_door(_scene(seen), name, closed, to / 2, _SHARE, _INSIDE_M) - _AT_M * front
            seen = yield from drive(seen, _nearer(seen, stand[:2]), yaw, style.drive, CLOSE)
    seen = yield from follow(seen, _before_door(name, closed), style.push, CLOSE, turn, patience=300)
    return (yield from drive(seen, base(seen) - 3 * _ROOM_M * front[:2], yaw, style.drive, CLOSE))


def on_door(scene: Privileged, name: str, closed: Bar, angle: float, share: float, inside_m: float) -> Floats:
    """A point [3] at the handle's height with the door at an angle, rad.

    `share` of the way from hinge to handle, and so far from the door's plane towards what it closes. `closed` is the
    handle as it is at 0.
    """
    joint = scene.joints[name]
    arm = (closed.center_m - joint.anchor_m) * [1.0, 1.0, 0.0]
    inward = -course(joint, closed.center_m) * np.sign(opened(joint))
    hinge = np.array([*joint.anchor_m[:2], closed.center_m[2]])
    return carried(joint, hinge + share * arm + inside_m * inward, angle)


def _before_door(name: str, closed: Bar) -> Whither:
    """Where the inside of the door should be next, until it stands open."""

    def whither(seen: Observation) -> Floats | None:
        scene = _scene(seen)
        angle, to = scene.joint_pos[name], opened(scene.joints[name])
        if abs(to - angle) < _OPEN_RAD:
            return None
        return on_door(scene, name, closed, angle + np.sign(to) * _LEAD_RAD, _SHARE, _AGAINST_M)

    return whither


def _face(seen: Observation, stand: Floats, style: Style) -> Move:
    """Back away, never nearer than now, drive along, and up to a little before where the base should stand."""
    yaw, front = heading(seen), ahead(heading(seen))
    off = float((stand - base(seen)) @ front)
    seen = yield from drive(seen, base(seen) + min(off - _ROOM_M, 0.0) * front, yaw, style.drive)
    along = stand - float((stand - base(seen)) @ front) * front
    seen = yield from drive(seen, along, yaw, style.drive)
    return (yield from drive(seen, stand - _ROOM_M * front, yaw, style.drive))


def _nearer(seen: Observation, stand: Floats) -> Floats:
    """As far ahead as that place [2], without going along."""
    front = ahead(heading(seen))
    return np.asarray(base(seen) + float((stand - base(seen)) @ front) * front)


def _away(seen: Observation, name: str, sign: float, style: Style) -> Move:
    """Off the handle, along the way that it went."""
    way = sign * course(_scene(seen).joints[name], seen.eef_pos_m)
    return (yield from drive(seen, base(seen) + _ROOM_M * way[:2], heading(seen), style.drive))


def _scene(seen: Observation) -> Privileged:
    assert seen.privileged is not None
    return seen.privileged
