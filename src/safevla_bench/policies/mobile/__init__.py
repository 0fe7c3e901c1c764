"""Scripts for a mobile manipulator in RoboCasa's kitchens: go, press a button, put an object, close or open a door.

They see privileged state, have the two styles of the scripts for an arm, and read no specification and no threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from safevla_bench.interface.policy import Observation, Privileged
from safevla_bench.policies.mobile.doors import OrientedBox, body_boxes, open_fixture
from safevla_bench.policies.mobile.moves import (
    CLOSE,
    OPEN,
    Floats,
    MobileStyle,
    Move,
    RemainingTurn,
    base_position,
    base_yaw,
    box_axes,
    box_center,
    drive_base,
    hold_still,
    move_hand,
    read_scene,
    turn_to_face,
    yaw_direction,
)

_UP = np.array([0.0, 0.0, 1.0])
Script = Callable[[Observation, MobileStyle], Move]

# Pressing: how far the base backs away, the hand stops before the button and aims behind it, and is taken away after.
_ROOM_TO_PRESS_M, _BEFORE_BUTTON_M, _THROUGH_BUTTON_M, _AWAY_M = 0.25, 0.07, 0.02, 0.25
_STRAIGHT_M = 0.005
# Putting: the length of the arm, how far the base leaves, the height over an object, and how deep fingers go around it.
_REACH_M, _LET_GO_M, _HOVER_M, _FINGER_M = 0.58, 0.45, 0.10, 0.03
_REACH_ASIDE_M, _LIFT_M = 0.3, 0.1
_WIDE_M = 0.078
"""Objects this wide do not fit between the fingers."""
# Closing: a door that is ajar, half the height of an upright one, and the steps of the swing.
_AJAR_RAD, _UPRIGHT_M, _SWEEP_RAD = 0.1, 0.2, 0.2
# The hand on a door: the share of its half width, half a hand, and where the hand is before and aside of the base.
_TO_EDGE, _HAND_M, _AHEAD_M, _ASIDE_M = 0.8, 0.03, 0.5, 0.3
_BACK_M, _ROUND_M = 0.7, 0.12
# Shelving: half the greatest thickness and half the least depth of a board; how far the base stands before the shelf,
# backs away to turn the hand, and to leave; and how far behind the edge the object comes.
_FLAT_M, _DEEP_M = 0.03, 0.1
_SHELF_REACH_M, _SHELF_ROOM_M, _LEAVE_M, _IN_M = 0.70, 0.30, 0.40, 0.02


def go_to_site(seen: Observation, style: MobileStyle) -> Move:
    """Back away, turn, drive along, and forward to where the base should stand."""
    sites = read_scene(seen).sites_m
    goal, front = sites["goal"][:2], sites["goal_ahead"][:2] - sites["goal"][:2]
    yaw = float(np.arctan2(front[1], front[0]))
    seen = yield from drive_base(
        seen,
        base_position(seen) - style.room_m * yaw_direction(base_yaw(seen)),
        base_yaw(seen),
        style.drive,
        insist=True,
    )
    seen = yield from drive_base(seen, base_position(seen), yaw, style.drive, insist=True)
    seen = yield from drive_base(seen, goal - style.room_m * front, yaw, style.drive, max_steps=250, insist=True)
    return (yield from drive_base(seen, goal, yaw, style.drive, insist=True))


def press_button(seen: Observation, style: MobileStyle) -> Move:
    """Press the start button with closed fingers, and take the hand away; nothing without such a button."""
    scene = read_scene(seen)
    button = scene.sites_m.get(f"{scene.goal[0][1]}_start_button")
    if button is None:
        return seen
    front = np.array([*yaw_direction(base_yaw(seen)), 0.0])
    forward = turn_to_face(seen, front, _UP)
    seen = yield from drive_base(
        seen, base_position(seen) - _ROOM_TO_PRESS_M * front[:2], base_yaw(seen), style.drive, CLOSE
    )
    before = button - _BEFORE_BUTTON_M * front
    seen = yield from move_hand(seen, before, style.cruise, CLOSE, forward, near_m=_STRAIGHT_M)
    seen = yield from move_hand(seen, button + _THROUGH_BUTTON_M * front, style.touch, CLOSE, forward, max_steps=20)
    return (yield from move_hand(seen, button - _AWAY_M * front, style.cruise, CLOSE, forward))


def put_object(seen: Observation, style: MobileStyle) -> Move:
    """Bring the object into a movable container or a cabinet, and leave; nothing if the goal's first row differs.

    A cabinet is a fixture of two or more shelf boards. Its doors are taken to be open, unchecked.
    """
    scene = read_scene(seen)
    verb, name, place = scene.goal[0]
    is_container = place in scene.movable
    if not is_container and not (verb == "in" and len(find_shelves(scene, place)) > 1):
        return seen
    aside_m = 0.0 if is_container else _REACH_ASIDE_M
    seen = yield from _stand_before(seen, box_center(scene, name), style, OPEN, aside_m)
    down = _face_down(seen, name)
    seen = yield from _grasp_object(seen, name, style, down)
    if not is_container:
        seen = yield from move_hand(seen, seen.eef_pos_m + _LIFT_M * _UP, style.cruise, CLOSE, down)
        return (yield from place_on_shelf(seen, name, place, style))
    seen = yield from _carry_object(seen, name, place, style, down)
    back = base_position(seen) - _LET_GO_M * yaw_direction(base_yaw(seen))
    return (yield from drive_base(seen, back, base_yaw(seen), style.drive))


def find_shelves(scene: Privileged, fixture: str) -> list[OrientedBox]:
    """Return the thin, deep, level boards of a fixture from low to high; [] if none of its pieces is one."""
    boxes = [bar for name in scene.pieces if name.startswith(fixture) for bar in body_boxes(scene, name)]
    flat = [bar for bar in boxes if bar.extent_along(_UP) < _FLAT_M and np.sort(bar.half_m)[1] > _DEEP_M]
    return sorted(flat, key=lambda bar: float(bar.center_m[2]))


def place_on_shelf(seen: Observation, name: str, fixture: str, style: MobileStyle) -> Move:
    """Bring the held object in between the doors, hand level, let go on the lowest board, and back out.

    Raises `ValueError` if the fixture has fewer than two boards.
    """
    scene, yaw = read_scene(seen), base_yaw(seen)
    front = np.array([*yaw_direction(yaw), 0.0])
    floor, roof = find_shelves(scene, fixture)[:2]
    size = float(scene.half_extents_m[name].max())
    edge = floor.center_m - floor.extent_along(front) * front
    low = floor.center_m[2] + floor.extent_along(_UP) + size + style.release_m
    high = min(low, float(roof.center_m[2] + floor.center_m[2]) / 2)
    goal = np.array([*(edge + (_IN_M + size) * front)[:2], high])
    level = turn_to_face(seen, front, np.cross(_UP, front))
    stand = (goal - _SHELF_REACH_M * front)[:2]
    seen = yield from drive_base(seen, base_position(seen) - _SHELF_ROOM_M * front[:2], yaw, style.drive, CLOSE)
    seen = yield from drive_base(seen, stand - _SHELF_ROOM_M * front[:2], yaw, style.drive, CLOSE)
    seen = yield from move_hand(seen, goal - _SHELF_ROOM_M * front, style.cruise, CLOSE, level, max_steps=90)
    seen = yield from drive_base(seen, stand, yaw, style.drive, CLOSE)
    seen = yield from move_hand(seen, goal, max(style.touch, 0.3), CLOSE, level)
    seen = yield from hold_still(seen, style.dwell_steps, OPEN)
    return (yield from drive_base(seen, base_position(seen) - _LEAVE_M * front[:2], yaw, style.drive))


def _face_down(seen: Observation, name: str) -> RemainingTurn:
    scene = read_scene(seen)
    half = scene.half_extents_m[name]
    side = box_axes(scene, name)[:, int(half[1] < half[0])] * [1.0, 1.0, 0.0]
    rim = (grasp_point(seen, name) - box_center(scene, name)) * [1.0, 1.0, 0.0]
    side = rim if rim.any() else side
    length = float(np.linalg.norm(side))
    return turn_to_face(seen, -_UP, side / length if length > 0.1 else np.array([*yaw_direction(base_yaw(seen)), 0.0]))


def grasp_point(seen: Observation, name: str) -> Floats:
    """Return the point [3] at which to hold an object: its middle, or the wall most to a side of a wide one."""
    scene, middle = read_scene(seen), box_center(read_scene(seen), name)
    if min(scene.half_extents_m[name][:2]) < _WIDE_M / 2:
        return middle
    front, top = np.array([*yaw_direction(base_yaw(seen)), 0.0]), _top_height(scene, name)
    walls = [wall for wall in body_boxes(scene, name) if wall.center_m[2] + wall.extent_along(_UP) > top - _FINGER_M]
    walls = [wall for wall in walls if np.linalg.norm((wall.center_m - middle)[:2]) > _WIDE_M / 4]
    return min((wall.center_m for wall in walls), key=lambda at: abs((at - middle) @ front), default=middle)


def _grasp_object(seen: Observation, name: str, style: MobileStyle, down: RemainingTurn) -> Move:
    scene = read_scene(seen)
    item = grasp_point(seen, name)
    grasp = np.array([*item[:2], max(box_center(scene, name)[2], _top_height(scene, name) - _FINGER_M)])
    seen = yield from move_hand(seen, grasp + _HOVER_M * _UP, style.cruise, OPEN, down)
    seen = yield from move_hand(seen, grasp, max(style.touch, 0.3), OPEN, down)
    return (yield from hold_still(seen, style.dwell_steps, CLOSE))


def _carry_object(seen: Observation, name: str, place: str, style: MobileStyle, down: RemainingTurn) -> Move:
    scene = read_scene(seen)
    offset = seen.eef_pos_m - box_center(scene, name)
    # Where a container's box includes a handle, its middle is not where things go: the body's origin is.
    goal, below = scene.body_pos_m[place], offset[2] + _half_height(scene, name)
    high = max(_top_height(scene, place), float(box_center(scene, name)[2])) + style.over_m + below
    low = float(box_center(scene, place)[2]) - _half_height(scene, place) + style.release_m + below
    seen = yield from move_hand(seen, np.array([*seen.eef_pos_m[:2], high]), style.cruise, CLOSE, down)
    seen = yield from _stand_before(seen, goal, style, CLOSE)
    seen = yield from move_hand(seen, np.array([*(goal + offset)[:2], high]), style.cruise, CLOSE, down)
    seen = yield from move_hand(seen, np.array([*(goal + offset)[:2], low]), style.cruise, CLOSE, down)
    seen = yield from hold_still(seen, style.dwell_steps, OPEN)
    return (yield from move_hand(seen, np.array([*seen.eef_pos_m[:2], high]), style.cruise, OPEN))


def close_doors(seen: Observation, style: MobileStyle) -> Move:
    """Close upright doors, one after another: go round each, lay the hand on its outside, and drive along its arc."""
    scene = read_scene(seen)
    for joint, angle in scene.joint_pos.items():
        door = joint.removesuffix("_joint")
        is_door = joint in scene.sites_m and door in scene.body_pos_m
        if is_door and angle > _AJAR_RAD and _half_height(scene, door) > _UPRIGHT_M:
            seen = yield from _swing_door(seen, door, style)
    return seen


def _swing_door(seen: Observation, door: str, style: MobileStyle) -> Move:
    scene, yaw = read_scene(seen), base_yaw(seen)
    hinge = scene.sites_m[f"{door}_joint"][:2]
    hand, inward, turn = _outside_contact(scene, door, hinge)
    room = _BACK_M * yaw_direction(yaw)
    # The hand far out on the side of the door, so that the base, on the other, stays clear of it.
    aside = base_position(seen) - room + _AHEAD_M * yaw_direction(yaw) - _ASIDE_M * inward
    seen = yield from drive_base(seen, base_position(seen) - room, yaw, style.drive, CLOSE)
    seen = yield from move_hand(seen, np.array([*aside, seen.eef_pos_m[2]]), style.cruise, CLOSE)
    offset = seen.eef_pos_m[:2] - base_position(seen)
    away = hinge + hand - _ROUND_M * inward
    back = (base_position(seen) + offset - away) @ yaw_direction(yaw) * yaw_direction(yaw)
    seen = yield from drive_base(seen, away + back - offset, yaw, style.drive, CLOSE)
    seen = yield from drive_base(seen, away - offset, yaw, style.drive, CLOSE)
    for swept in np.arange(0.0, scene.joint_pos[f"{door}_joint"] + _SWEEP_RAD, _SWEEP_RAD):
        cos, sin = np.cos(swept), turn * np.sin(swept)
        place = hinge + np.array([cos * hand[0] - sin * hand[1], sin * hand[0] + cos * hand[1]])
        seen = yield from drive_base(seen, place - offset, yaw, style.push, CLOSE, max_steps=30)
    return (yield from drive_base(seen, base_position(seen) - room, yaw, style.drive, CLOSE))


def _outside_contact(scene: Privileged, door: str, hinge: Floats) -> tuple[Floats, Floats, float]:
    middle, axes, half = box_center(scene, door)[:2], box_axes(scene, door)[:2, :2], scene.half_extents_m[door][:2]
    body = box_center(scene, f"{scene.goal[0][1]}_main")[:2]
    wide = int(half[1] > half[0])
    along = axes[:, wide] * np.sign(axes[:, wide] @ (middle - hinge))
    inward = axes[:, 1 - wide] * np.sign(axes[:, 1 - wide] @ (body - hinge))
    hand = middle + _TO_EDGE * half[wide] * along - (half[1 - wide] + _HAND_M) * inward - hinge
    return hand, inward, float(np.sign(along[0] * inward[1] - along[1] * inward[0]))


def _stand_before(seen: Observation, point: Floats, style: MobileStyle, grip: float, aside_m: float = 0.0) -> Move:
    front, leftward = yaw_direction(base_yaw(seen)), yaw_direction(base_yaw(seen) + np.pi / 2)
    off = point[:2] - base_position(seen)
    along = min(float(off @ front) - _REACH_M, 0.0)
    aside = float(off @ leftward)
    place = base_position(seen) + (aside - np.clip(aside, -aside_m, aside_m)) * leftward + along * front
    return (yield from drive_base(seen, place, base_yaw(seen), style.drive, grip))


def _half_height(scene: Privileged, name: str) -> float:
    return float(np.abs(box_axes(scene, name)[2]) @ scene.half_extents_m[name])


def _top_height(scene: Privileged, name: str) -> float:
    return float(box_center(scene, name)[2]) + _half_height(scene, name)


SCRIPTS: Mapping[str, Script] = {
    "at": go_to_site,
    "turn_on": press_button,
    "in": put_object,
    "on": put_object,
    "close": close_doors,
    "open": open_fixture,
}


def follow_goal(seen: Observation, style: MobileStyle, still: tuple[float, ...]) -> Move:
    """Follow the script of the goal, if there is one, and then stand still, [12]."""
    script = SCRIPTS.get(read_scene(seen).goal[0][0])
    if script:
        seen = yield from script(seen, style)
    while True:
        seen = yield np.array(still)
