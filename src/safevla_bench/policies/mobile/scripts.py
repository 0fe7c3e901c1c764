"""What to do for each goal, from privileged state: go, press a button, put an object somewhere, close or open a door.

A script reads no specification and no threshold; it ends, and the robot stands still from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface import Observation, Privileged
from safevla_bench.policies.mobile.handles import bars
from safevla_bench.policies.mobile.moves import (
    CLOSE,
    OPEN,
    Move,
    Turn,
    ahead,
    base,
    drive,
    facing,
    heading,
    hold,
    reach,
)
from safevla_bench.policies.mobile.opening import open_up
from safevla_bench.policies.mobile.shelving import shelve, shelves
from safevla_bench.policies.mobile.style import Style

Floats = NDArray[np.float64]
_UP = np.array([0.0, 0.0, 1.0])
Script = Callable[[Observation, Style], Move]

# Pressing: how far the base backs away, the hand stops before the button and aims behind it, and is taken away after.
_ROOM_TO_PRESS_M, _BEFORE_BUTTON_M, _THROUGH_BUTTON_M, _AWAY_M = 0.25, 0.07, 0.02, 0.25
_STRAIGHT_M = 0.005
# Putting: the length of the arm, how far the base leaves, the height over an object, and how deep fingers go around it.
_REACH_M, _LET_GO_M, _HOVER_M, _FINGER_M = 0.58, 0.45, 0.10, 0.03
_REACH_ASIDE_M, _LIFT_M = 0.3, 0.1
_WIDE_M = 0.078
"""What the fingers do not get around."""
# Closing: a door that is ajar, half the height of an upright one, and the steps of the swing.
_AJAR_RAD, _UPRIGHT_M, _SWEEP_RAD = 0.1, 0.2, 0.2
# The hand on a door: the share of its half width, half a hand, and where the hand is before and aside of the base.
_TO_EDGE, _HAND_M, _AHEAD_M, _ASIDE_M = 0.8, 0.03, 0.5, 0.3
_BACK_M, _ROUND_M = 0.7, 0.12


def go(seen: Observation, style: Style) -> Move:
    """Back away, turn, drive along, and forward to where the base should stand."""
    sites = _scene(seen).sites_m
    goal, front = sites["goal"][:2], sites["goal_ahead"][:2] - sites["goal"][:2]
    yaw = float(np.arctan2(front[1], front[0]))
    seen = yield from drive(
        seen, base(seen) - style.room_m * ahead(heading(seen)), heading(seen), style.drive, insist=True
    )
    seen = yield from drive(seen, base(seen), yaw, style.drive, insist=True)
    seen = yield from drive(seen, goal - style.room_m * front, yaw, style.drive, patience=250, insist=True)
    return (yield from drive(seen, goal, yaw, style.drive, insist=True))


def press(seen: Observation, style: Style) -> Move:
    """Press the start button with closed fingers, and take the hand away; nothing where there is no such button."""
    scene = _scene(seen)
    button = scene.sites_m.get(f"{scene.goal[0][1]}_start_button")
    if button is None:
        return seen
    front = np.array([*ahead(heading(seen)), 0.0])
    forward = facing(seen, front, _UP)
    seen = yield from drive(seen, base(seen) - _ROOM_TO_PRESS_M * front[:2], heading(seen), style.drive, CLOSE)
    before = button - _BEFORE_BUTTON_M * front
    seen = yield from reach(seen, before, style.cruise, CLOSE, forward, near_m=_STRAIGHT_M)
    seen = yield from reach(seen, button + _THROUGH_BUTTON_M * front, style.touch, CLOSE, forward, patience=20)
    return (yield from reach(seen, button - _AWAY_M * front, style.cruise, CLOSE, forward))


def put(seen: Observation, style: Style) -> Move:
    """Bring the object into a container or an open cabinet and leave; nothing where it goes elsewhere."""
    scene = _scene(seen)
    verb, name, place = scene.goal[0]
    if place in scene.movable:
        return (yield from _put_down(seen, name, place, style))
    if verb == "in" and len(shelves(scene, place)) > 1:
        return (yield from _put_up(seen, name, place, style))
    return seen


def _put_down(seen: Observation, name: str, place: str, style: Style) -> Move:
    seen = yield from _stand_before(seen, _middle(_scene(seen), name), style, OPEN)
    down = _down_on(seen, name)
    seen = yield from _take(seen, name, style, down)
    seen = yield from _bring(seen, name, place, style, down)
    return (yield from drive(seen, base(seen) - _LET_GO_M * ahead(heading(seen)), heading(seen), style.drive))


def _put_up(seen: Observation, name: str, place: str, style: Style) -> Move:
    """Reach aside for the object, for doors that stand open leave the base little room to go along."""
    seen = yield from _stand_before(seen, _middle(_scene(seen), name), style, OPEN, _REACH_ASIDE_M)
    down = _down_on(seen, name)
    seen = yield from _take(seen, name, style, down)
    seen = yield from reach(seen, seen.eef_pos_m + _LIFT_M * _UP, style.cruise, CLOSE, down)
    return (yield from shelve(seen, name, place, style))


def _down_on(seen: Observation, name: str) -> Turn:
    """Point down with the fingers opening across the object's narrow side."""
    scene = _scene(seen)
    half = scene.half_extents_m[name]
    side = _axes(scene, name)[:, int(half[1] < half[0])] * [1.0, 1.0, 0.0]
    rim = (grasped_at(seen, name) - _middle(scene, name)) * [1.0, 1.0, 0.0]
    side = rim if rim.any() else side
    length = float(np.linalg.norm(side))
    return facing(seen, -_UP, side / length if length > 0.1 else np.array([*ahead(heading(seen)), 0.0]))


def grasped_at(seen: Observation, name: str) -> Floats:
    """Where to hold an object: its middle, or where that is too wide for the fingers, the wall most to a side."""
    scene, middle = _scene(seen), _middle(_scene(seen), name)
    if min(scene.half_extents_m[name][:2]) < _WIDE_M / 2:
        return middle
    front, top = np.array([*ahead(heading(seen)), 0.0]), _top(scene, name)
    walls = [one for one in bars(scene, name) if one.center_m[2] + one.reach(_UP) > top - _FINGER_M]
    walls = [one for one in walls if np.linalg.norm((one.center_m - middle)[:2]) > _WIDE_M / 4]
    return min((one.center_m for one in walls), key=lambda at: abs((at - middle) @ front), default=middle)


def _take(seen: Observation, name: str, style: Style, down: Turn) -> Move:
    scene = _scene(seen)
    item = grasped_at(seen, name)
    grasp = np.array([*item[:2], max(_middle(scene, name)[2], _top(scene, name) - _FINGER_M)])
    seen = yield from reach(seen, grasp + _HOVER_M * _UP, style.cruise, OPEN, down)
    seen = yield from reach(seen, grasp, max(style.touch, 0.3), OPEN, down)
    return (yield from hold(seen, style.dwell_steps, CLOSE))


def _bring(seen: Observation, name: str, place: str, style: Style, down: Turn) -> Move:
    scene = _scene(seen)
    held = seen.eef_pos_m - _middle(scene, name)
    # Where a container's box includes a handle, its middle is not where things go: the body's origin is.
    goal, below = scene.body_pos_m[place], held[2] + _height(scene, name)
    high = max(_top(scene, place), float(_middle(scene, name)[2])) + style.over_m + below
    low = float(_middle(scene, place)[2]) - _height(scene, place) + style.release_m + below
    seen = yield from reach(seen, np.array([*seen.eef_pos_m[:2], high]), style.cruise, CLOSE, down)
    seen = yield from _stand_before(seen, goal, style, CLOSE)
    seen = yield from reach(seen, np.array([*(goal + held)[:2], high]), style.cruise, CLOSE, down)
    seen = yield from reach(seen, np.array([*(goal + held)[:2], low]), style.cruise, CLOSE, down)
    seen = yield from hold(seen, style.dwell_steps, OPEN)
    return (yield from reach(seen, np.array([*seen.eef_pos_m[:2], high]), style.cruise, OPEN))


def shut(seen: Observation, style: Style) -> Move:
    """Close upright doors, one after another: go round each, lay the hand on its outside, and drive along its arc."""
    scene = _scene(seen)
    for joint, angle in scene.joint_pos.items():
        door = joint.removesuffix("_joint")
        known = joint in scene.sites_m and door in scene.body_pos_m
        if known and angle > _AJAR_RAD and _height(scene, door) > _UPRIGHT_M:
            seen = yield from _swing(seen, door, style)
    return seen


def _swing(seen: Observation, door: str, style: Style) -> Move:
    scene, yaw = _scene(seen), heading(seen)
    hinge = scene.sites_m[f"{door}_joint"][:2]
    hand, inward, turn = _outside(scene, door, hinge)
    room = _BACK_M * ahead(yaw)
    # The hand far out on the side of the door, so that the base, on the other, stays clear of it.
    aside = base(seen) - room + _AHEAD_M * ahead(yaw) - _ASIDE_M * inward
    seen = yield from drive(seen, base(seen) - room, yaw, style.drive, CLOSE)
    seen = yield from reach(seen, np.array([*aside, seen.eef_pos_m[2]]), style.cruise, CLOSE)
    held = seen.eef_pos_m[:2] - base(seen)
    away = hinge + hand - _ROUND_M * inward
    back = (base(seen) + held - away) @ ahead(yaw) * ahead(yaw)
    seen = yield from drive(seen, away + back - held, yaw, style.drive, CLOSE)
    seen = yield from drive(seen, away - held, yaw, style.drive, CLOSE)
    for swept in np.arange(0.0, scene.joint_pos[f"{door}_joint"] + _SWEEP_RAD, _SWEEP_RAD):
        cos, sin = np.cos(swept), turn * np.sin(swept)
        place = hinge + np.array([cos * hand[0] - sin * hand[1], sin * hand[0] + cos * hand[1]])
        seen = yield from drive(seen, place - held, yaw, style.push, CLOSE, patience=30)
    return (yield from drive(seen, base(seen) - room, yaw, style.drive, CLOSE))


def _outside(scene: Privileged, door: str, hinge: Floats) -> tuple[Floats, Floats, float]:
    """Where the hand lies on a door's outside, from the hinge [2]; the way it closes [2]; and +1 where that is left."""
    middle, axes, half = _middle(scene, door)[:2], _axes(scene, door)[:2, :2], scene.half_extents_m[door][:2]
    body = _middle(scene, f"{scene.goal[0][1]}_main")[:2]
    wide = int(half[1] > half[0])
    along = axes[:, wide] * np.sign(axes[:, wide] @ (middle - hinge))
    inward = axes[:, 1 - wide] * np.sign(axes[:, 1 - wide] @ (body - hinge))
    hand = middle + _TO_EDGE * half[wide] * along - (half[1 - wide] + _HAND_M) * inward - hinge
    return hand, inward, float(np.sign(along[0] * inward[1] - along[1] * inward[0]))


def _stand_before(seen: Observation, point: Floats, style: Style, grip: float, aside_m: float = 0.0) -> Move:
    """Drive along and back, never nearer to the counter than now, until the point is at arm's length.

    Along no farther than brings it within `aside_m` to a side.
    """
    front, left = ahead(heading(seen)), ahead(heading(seen) + np.pi / 2)
    off = point[:2] - base(seen)
    along = min(float(off @ front) - _REACH_M, 0.0)
    aside = float(off @ left)
    place = base(seen) + (aside - np.clip(aside, -aside_m, aside_m)) * left + along * front
    return (yield from drive(seen, place, heading(seen), style.drive, grip))


def _middle(scene: Privileged, name: str) -> Floats:
    """The centre of a body's box, [3]."""
    return scene.body_pos_m[name] + _axes(scene, name) @ scene.center_m[name]


def _height(scene: Privileged, name: str) -> float:
    """Half of how high a body's box is as it lies."""
    return float(np.abs(_axes(scene, name)[2]) @ scene.half_extents_m[name])


def _top(scene: Privileged, name: str) -> float:
    """How high a body reaches."""
    return float(_middle(scene, name)[2]) + _height(scene, name)


def _axes(scene: Privileged, name: str) -> Floats:
    """The body's axes as columns, [3, 3]."""
    matrix: Floats = Rotation.from_quat(np.roll(scene.body_quat_wxyz[name], -1)).as_matrix()
    return matrix


def _scene(seen: Observation) -> Privileged:
    assert seen.privileged is not None
    return seen.privileged


SCRIPTS: Mapping[str, Script] = {"at": go, "turn_on": press, "in": put, "on": put, "close": shut, "open": open_up}
"""By the verb of the goal."""
