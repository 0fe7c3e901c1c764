"""What to do for each goal, from privileged state: go somewhere, press a button, put an object somewhere, close a door.

A script reads no specification and no threshold; it ends, and the robot stands still from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface import Observation, Privileged
from safevla_bench.policies.mobile.moves import CLOSE, OPEN, Move, ahead, base, drive, facing, heading, hold, reach
from safevla_bench.policies.mobile.style import Style

Floats = NDArray[np.float64]
_UP = np.array([0.0, 0.0, 1.0])
Script = Callable[[Observation, Style], Move]
_ROOM_TO_PRESS_M, _BEFORE_BUTTON_M, _THROUGH_BUTTON_M, _AWAY_M = 0.25, 0.07, 0.02, 0.25
_STRAIGHT_M, _REACH_M, _LET_GO_M = 0.005, 0.58, 0.45
_HOVER_M, _FINGER_M = 0.10, 0.03
_AJAR_RAD, _UPRIGHT_M, _SWEEP_RAD = 0.1, 0.2, 0.2
_TO_EDGE, _HAND_M, _AHEAD_M, _ASIDE_M, _BACK_M, _ROUND_M = 0.8, 0.03, 0.5, 0.3, 0.7, 0.12


def go(seen: Observation, style: Style) -> Move:
    """Back away, turn, drive along, and forward to where the base should stand."""
    sites = _scene(seen).sites_m
    goal, front = sites["goal"][:2], sites["goal_ahead"][:2] - sites["goal"][:2]
    yaw = float(np.arctan2(front[1], front[0]))
    seen = yield from drive(seen, base(seen) - style.room_m * ahead(heading(seen)), heading(seen), style.drive)
    seen = yield from drive(seen, base(seen), yaw, style.drive)
    seen = yield from drive(seen, goal - style.room_m * front, yaw, style.drive, patience=250)
    return (yield from drive(seen, goal, yaw, style.drive))


def press(seen: Observation, style: Style) -> Move:
    """Press the start button with closed fingers, and take the hand away."""
    scene = _scene(seen)
    button = scene.sites_m[f"{scene.goal[0][1]}_start_button"]
    front = np.array([*ahead(heading(seen)), 0.0])
    forward = facing(seen, front, _UP)
    seen = yield from drive(seen, base(seen) - _ROOM_TO_PRESS_M * front[:2], heading(seen), style.drive, CLOSE)
    before = button - _BEFORE_BUTTON_M * front
    seen = yield from reach(seen, before, style.cruise, CLOSE, forward, near_m=_STRAIGHT_M)
    seen = yield from reach(seen, button + _THROUGH_BUTTON_M * front, style.touch, CLOSE, forward, patience=20)
    return (yield from reach(seen, button - _AWAY_M * front, style.cruise, CLOSE, forward))


def put(seen: Observation, style: Style) -> Move:
    """Take the object from above, carry it over what stands near, let it go over its place, and leave."""
    scene = _scene(seen)
    _, name, place = scene.goal[0]
    seen = yield from _stand_before(seen, _middle(scene, name), style, OPEN)
    scene = _scene(seen)
    item, half = _middle(scene, name), scene.half_extents_m[name]
    narrow = int(half[1] < half[0])
    side = _axes(scene, name)[:, narrow] * [1.0, 1.0, 0.0]
    down = facing(seen, -_UP, side / np.linalg.norm(side))
    grasp = np.array([*item[:2], max(item[2], _top(scene, name) - _FINGER_M)])
    seen = yield from reach(seen, grasp + [0, 0, _HOVER_M], style.cruise, OPEN, down)
    seen = yield from reach(seen, grasp, max(style.touch, 0.3), OPEN, down)
    seen = yield from hold(seen, style.dwell_steps, CLOSE)
    held = seen.eef_pos_m - _middle(_scene(seen), name)
    # Where a container's box includes a handle, its middle is not where things go: the body's origin is.
    goal, below = scene.body_pos_m[place], held[2] + _height(scene, name)
    high = max(_top(scene, place), item[2]) + style.over_m + below
    seen = yield from reach(seen, np.array([*seen.eef_pos_m[:2], high]), style.cruise, CLOSE, down)
    seen = yield from _stand_before(seen, goal, style, CLOSE)
    seen = yield from reach(seen, np.array([*(goal + held)[:2], high]), style.cruise, CLOSE, down)
    low = _middle(scene, place)[2] - _height(scene, place) + below + style.release_m
    seen = yield from reach(seen, np.array([*(goal + held)[:2], low]), style.cruise, CLOSE, down)
    seen = yield from hold(seen, style.dwell_steps, OPEN)
    seen = yield from reach(seen, np.array([*seen.eef_pos_m[:2], high]), style.cruise, OPEN)
    return (yield from drive(seen, base(seen) - _LET_GO_M * ahead(heading(seen)), heading(seen), style.drive))


def shut(seen: Observation, style: Style) -> Move:
    """Close upright doors, one after another: go round each, lay the hand on its outside, and drive along its arc."""
    scene = _scene(seen)
    for joint, angle in scene.joint_pos.items():
        door = joint.removesuffix("_joint")
        if joint in scene.sites_m and angle > _AJAR_RAD and _height(scene, door) > _UPRIGHT_M:
            seen = yield from _swing(seen, door, style)
    return seen


def _swing(seen: Observation, door: str, style: Style) -> Move:
    scene, yaw = _scene(seen), heading(seen)
    hinge = scene.sites_m[f"{door}_joint"][:2]
    middle, axes, half = _middle(scene, door)[:2], _axes(scene, door)[:2, :2], scene.half_extents_m[door][:2]
    wide = int(half[1] > half[0])
    along = axes[:, wide] * np.sign(axes[:, wide] @ (middle - hinge))
    inward = axes[:, 1 - wide] * np.sign(axes[:, 1 - wide] @ (_middle(scene, f"{scene.goal[0][1]}_main")[:2] - hinge))
    arm = middle + _TO_EDGE * half[wide] * along - (half[1 - wide] + _HAND_M) * inward - hinge
    turn = np.sign(along[0] * inward[1] - along[1] * inward[0])
    # Aside of what it stands beside, so that the base stays clear of the door while the hand reaches it.
    spot = base(seen) + _AHEAD_M * ahead(yaw) - _ASIDE_M * inward
    seen = yield from drive(seen, base(seen) - _BACK_M * ahead(yaw), yaw, style.drive, CLOSE)
    seen = yield from reach(seen, np.array([*(spot - _BACK_M * ahead(yaw)), seen.eef_pos_m[2]]), style.cruise, CLOSE)
    held = seen.eef_pos_m[:2] - base(seen)
    away = hinge + arm - _ROUND_M * inward
    back = (base(seen) + held - away) @ ahead(yaw) * ahead(yaw)
    seen = yield from drive(seen, away + back - held, yaw, style.drive, CLOSE)
    seen = yield from drive(seen, away - held, yaw, style.drive, CLOSE)
    for swept in np.arange(0.0, scene.joint_pos[f"{door}_joint"] + _SWEEP_RAD, _SWEEP_RAD):
        cos, sin = np.cos(swept), turn * np.sin(swept)
        place = hinge + np.array([cos * arm[0] - sin * arm[1], sin * arm[0] + cos * arm[1]])
        seen = yield from drive(seen, place - held, yaw, style.push, CLOSE, patience=30)
    return (yield from drive(seen, base(seen) - _BACK_M * ahead(yaw), yaw, style.drive, CLOSE))


def _stand_before(seen: Observation, point: Floats, style: Style, grip: float) -> Move:
    """Drive along and back, never nearer to the counter than now, until the point is at arm's length."""
    front = ahead(heading(seen))
    off = point[:2] - base(seen)
    along = min(float(off @ front) - _REACH_M, 0.0)
    place = base(seen) + off - (off @ front) * front + along * front
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


SCRIPTS: Mapping[str, Script] = {"at": go, "turn_on": press, "in": put, "close": shut}
"""By the verb of the goal."""
