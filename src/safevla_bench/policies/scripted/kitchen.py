"""Scripts for a mobile manipulator in RoboCasa's kitchens: go, press a button, put an object, close or open a door.

They see privileged state, have the two styles of the scripts for an arm, and read no specification and no threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Joint, Observation, Privileged
from safevla_bench.policies.scripted.arm import Move
from safevla_bench.policies.scripted.geometry import CLOSE, OPEN, Floats, box_axes, box_center, to_rotation
from safevla_bench.policies.scripted.mobile import MobileRobot, MobileStyle, yaw_direction

_UP = np.array([0.0, 0.0, 1.0])
_LEVEL = np.array([1.0, 1.0, 0.0])
_LEAST_TOUCH = 0.3
"""Speed of the hand towards what it closes around, or brings in, at least."""

# Pressing: how far the base backs away, the hand stops before the button and aims behind it, and is taken away after.
_ROOM_TO_PRESS_M, _BEFORE_BUTTON_M, _THROUGH_BUTTON_M, _AWAY_M = 0.25, 0.07, 0.02, 0.25
_STRAIGHT_M = 0.005
# Putting: the length of the arm, how far the base leaves, the height over an object, and how deep fingers go around it.
_ARM_M, _LET_GO_M, _HOVER_M, _FINGER_M = 0.58, 0.45, 0.10, 0.03
_ARM_ASIDE_M, _LIFT_M = 0.3, 0.1
_WIDE_M = 0.078
"""Objects this wide do not fit between the fingers."""
# Closing: a door that is ajar, half the height of an upright one, and the steps of the swing.
_CLOSED_RAD, _UPRIGHT_M, _SWEEP_RAD = 0.1, 0.2, 0.2
# The hand on a door: the share of its half width, half a hand, and where the hand is before and aside of the base.
_TO_EDGE, _HAND_M, _AHEAD_M, _ASIDE_M = 0.8, 0.03, 0.5, 0.3
_BACK_M, _ROUND_M = 0.7, 0.12
# Shelving: half the greatest thickness and half the least depth of a board; how far the base stands before the shelf,
# backs away to turn the hand, and to leave; and how far behind the edge the object comes.
_FLAT_M, _DEEP_M = 0.03, 0.1
_SHELF_REACH_M, _SHELF_ROOM_M, _LEAVE_M, _IN_M = 0.70, 0.30, 0.40, 0.02


def go_to_site(robot: MobileRobot) -> Move:
    """Back away, turn, drive along, and forward to where the base should stand."""
    sites, room_m = robot.scene.sites_m, robot.style.room_m
    goal, front = sites["goal"][:2], sites["goal_ahead"][:2] - sites["goal"][:2]
    yaw = float(np.arctan2(front[1], front[0]))
    yield from robot.back_off(room_m, insist=True)
    yield from robot.drive(robot.place_m, yaw, insist=True)
    yield from robot.drive(goal - room_m * front, yaw, max_steps=250, insist=True)
    yield from robot.drive(goal, yaw, insist=True)


def press_button(robot: MobileRobot) -> Move:
    """Press the start button with closed fingers, and take the hand away; nothing without such a button."""
    button = robot.scene.sites_m.get(f"{robot.scene.goal[0][1]}_start_button")
    if button is None:
        return
    front = robot.front
    forward = robot.face(front, _UP)
    yield from robot.back_off(_ROOM_TO_PRESS_M, CLOSE)
    yield from robot.reach(button - _BEFORE_BUTTON_M * front, CLOSE, forward, near_m=_STRAIGHT_M)
    through = button + _THROUGH_BUTTON_M * front
    yield from robot.reach(through, CLOSE, forward, speed=robot.style.touch, max_steps=20)
    yield from robot.reach(button - _AWAY_M * front, CLOSE, forward)


def put_object(robot: MobileRobot) -> Move:
    """Bring the object into a movable container or a cabinet, and leave; nothing if the goal's first row differs.

    A cabinet is a fixture of two or more shelf boards. Its doors are taken to be open, unchecked.
    """
    scene = robot.scene
    verb, name, place = scene.goal[0]
    is_container = place in scene.movable
    if not is_container and not (verb == "in" and len(find_shelves(scene, place)) > 1):
        return
    yield from _stand_before(robot, box_center(scene, name), OPEN, 0.0 if is_container else _ARM_ASIDE_M)
    down = _face_down(robot, name)
    yield from _grasp_object(robot, name, down)
    if is_container:
        yield from _carry_object(robot, name, place, down)
        yield from robot.back_off(_LET_GO_M)
    else:
        yield from robot.reach(robot.hand_m + _LIFT_M * _UP, CLOSE, down)
        yield from _place_on_shelf(robot, name, place)


def find_shelves(scene: Privileged, fixture: str) -> list[OrientedBox]:
    """Return the thin, deep, level boards of a fixture from low to high; [] if none of its pieces is one."""
    boxes = [bar for name in scene.pieces if name.startswith(fixture) for bar in body_boxes(scene, name)]
    flat = [bar for bar in boxes if bar.extent_along(_UP) < _FLAT_M and np.sort(bar.half_m)[1] > _DEEP_M]
    return sorted(flat, key=lambda bar: float(bar.center_m[2]))


def _place_on_shelf(robot: MobileRobot, name: str, fixture: str) -> Move:
    """Bring the held object in between the doors, hand level, let go on the lowest board, and back out."""
    yaw, front = robot.yaw, robot.front
    floor, roof = find_shelves(robot.scene, fixture)[:2]
    size = float(robot.scene.half_extents_m[name].max())
    edge = floor.center_m - floor.extent_along(front) * front
    low = floor.center_m[2] + floor.extent_along(_UP) + size + robot.style.release_m
    high = min(low, float(roof.center_m[2] + floor.center_m[2]) / 2)
    goal = np.array([*(edge + (_IN_M + size) * front)[:2], high])
    level = robot.face(front, np.cross(_UP, front))
    stand = (goal - _SHELF_REACH_M * front)[:2]
    yield from robot.back_off(_SHELF_ROOM_M, CLOSE)
    yield from robot.drive(stand - _SHELF_ROOM_M * front[:2], yaw, CLOSE)
    yield from robot.reach(goal - _SHELF_ROOM_M * front, CLOSE, level, max_steps=90)
    yield from robot.drive(stand, yaw, CLOSE)
    yield from robot.reach(goal, CLOSE, level, speed=max(robot.style.touch, _LEAST_TOUCH))
    yield from robot.hold_still(OPEN)
    yield from robot.drive(robot.place_m - _LEAVE_M * front[:2], yaw)


def _face_down(robot: MobileRobot, name: str) -> Rotation:
    half = robot.scene.half_extents_m[name]
    side = box_axes(robot.scene, name)[:, int(half[1] < half[0])] * _LEVEL
    rim = (grasp_point(robot, name) - box_center(robot.scene, name)) * _LEVEL
    side = rim if rim.any() else side
    length = float(np.linalg.norm(side))
    return robot.face(-_UP, side / length if length > 0.1 else robot.front)


def grasp_point(robot: MobileRobot, name: str) -> Floats:
    """Return the point [3] at which to hold an object: its middle, or the wall most to a side of a wide one."""
    scene, middle = robot.scene, box_center(robot.scene, name)
    if min(scene.half_extents_m[name][:2]) < _WIDE_M / 2:
        return middle
    front, top = robot.front, _top_height(scene, name)
    walls = [wall for wall in body_boxes(scene, name) if wall.center_m[2] + wall.extent_along(_UP) > top - _FINGER_M]
    walls = [wall for wall in walls if np.linalg.norm((wall.center_m - middle)[:2]) > _WIDE_M / 4]
    return min((wall.center_m for wall in walls), key=lambda at: abs((at - middle) @ front), default=middle)


def _grasp_object(robot: MobileRobot, name: str, down: Rotation) -> Move:
    item = grasp_point(robot, name)
    height = max(box_center(robot.scene, name)[2], _top_height(robot.scene, name) - _FINGER_M)
    grasp = np.array([*item[:2], height])
    yield from robot.reach(grasp + _HOVER_M * _UP, OPEN, down)
    yield from robot.reach(grasp, OPEN, down, speed=max(robot.style.touch, _LEAST_TOUCH))
    yield from robot.hold_still(CLOSE)


def _carry_object(robot: MobileRobot, name: str, place: str, down: Rotation) -> Move:
    scene, style = robot.scene, robot.style
    offset = robot.hand_m - box_center(scene, name)
    # Where a container's box includes a handle, its middle is not where things go: the body's origin is.
    goal, below = scene.body_pos_m[place], offset[2] + _half_height(scene, name)
    high = max(_top_height(scene, place), float(box_center(scene, name)[2])) + style.over_m + below
    low = float(box_center(scene, place)[2]) - _half_height(scene, place) + style.release_m + below
    yield from robot.reach(np.array([*robot.hand_m[:2], high]), CLOSE, down)
    yield from _stand_before(robot, goal, CLOSE)
    yield from robot.reach(np.array([*(goal + offset)[:2], high]), CLOSE, down)
    yield from robot.reach(np.array([*(goal + offset)[:2], low]), CLOSE, down)
    yield from robot.hold_still(OPEN)
    yield from robot.reach(np.array([*robot.hand_m[:2], high]), OPEN)


def close_doors(robot: MobileRobot) -> Move:
    """Close upright doors, one after another: go round each, lay the hand on its outside, and drive along its arc."""
    scene = robot.scene
    for joint, angle in scene.joint_pos.items():
        door = joint.removesuffix("_joint")
        is_door = joint in scene.sites_m and door in scene.body_pos_m
        if is_door and angle > _CLOSED_RAD and _half_height(scene, door) > _UPRIGHT_M:
            yield from _swing_door(robot, door)


def _swing_door(robot: MobileRobot, door: str) -> Move:
    scene, yaw, ahead = robot.scene, robot.yaw, robot.front[:2]
    hinge = scene.sites_m[f"{door}_joint"][:2]
    hand, inward, turn = _outside_contact(scene, door, hinge)
    room = _BACK_M * ahead
    # The hand far out on the side of the door, so that the base, on the other, stays clear of it.
    aside = robot.place_m - room + _AHEAD_M * ahead - _ASIDE_M * inward
    yield from robot.drive(robot.place_m - room, yaw, CLOSE)
    yield from robot.reach(np.array([*aside, robot.hand_m[2]]), CLOSE)
    offset = robot.hand_m[:2] - robot.place_m
    away = hinge + hand - _ROUND_M * inward
    back = (robot.place_m + offset - away) @ ahead * ahead
    yield from robot.drive(away + back - offset, yaw, CLOSE)
    yield from robot.drive(away - offset, yaw, CLOSE)
    for swept in np.arange(0.0, scene.joint_pos[f"{door}_joint"] + _SWEEP_RAD, _SWEEP_RAD):
        cos, sin = np.cos(swept), turn * np.sin(swept)
        place = hinge + np.array([cos * hand[0] - sin * hand[1], sin * hand[0] + cos * hand[1]])
        yield from robot.drive(place - offset, yaw, CLOSE, speed=robot.style.push, max_steps=30)
    yield from robot.drive(robot.place_m - room, yaw, CLOSE)


def _outside_contact(scene: Privileged, door: str, hinge: Floats) -> tuple[Floats, Floats, float]:
    middle, axes, half = box_center(scene, door)[:2], box_axes(scene, door)[:2, :2], scene.half_extents_m[door][:2]
    body = box_center(scene, f"{scene.goal[0][1]}_main")[:2]
    wide = int(half[1] > half[0])
    along = axes[:, wide] * np.sign(axes[:, wide] @ (middle - hinge))
    inward = axes[:, 1 - wide] * np.sign(axes[:, 1 - wide] @ (body - hinge))
    hand = middle + _TO_EDGE * half[wide] * along - (half[1 - wide] + _HAND_M) * inward - hinge
    return hand, inward, float(np.sign(along[0] * inward[1] - along[1] * inward[0]))


def _stand_before(robot: MobileRobot, point: Floats, grip: float, aside_m: float = 0.0) -> Move:
    ahead, leftward = robot.front[:2], yaw_direction(robot.yaw + np.pi / 2)
    off = point[:2] - robot.place_m
    along = min(float(off @ ahead) - _ARM_M, 0.0)
    aside = float(off @ leftward)
    place = robot.place_m + (aside - np.clip(aside, -aside_m, aside_m)) * leftward + along * ahead
    return robot.drive(place, grip=grip)


def _half_height(scene: Privileged, name: str) -> float:
    return float(np.abs(box_axes(scene, name)[2]) @ scene.half_extents_m[name])


def _top_height(scene: Privileged, name: str) -> float:
    return float(box_center(scene, name)[2]) + _half_height(scene, name)


# Handles of drawers and doors, and the script that opens them: by the handle, or from the inside if ajar


_HANDLE = "handle"


@dataclass(frozen=True, slots=True)
class OrientedBox:
    """A box in the world frame: centre [3] m, axes as columns [3, 3], half extents [3] m along these."""

    center_m: Floats
    axes: Floats
    half_m: Floats

    @property
    def long_axis(self) -> Floats:
        """The unit vector of its longest side, [3]."""
        return np.asarray(self.axes[:, int(np.argmax(self.half_m))])

    def extent_along(self, direction: Floats) -> float:
        """Return half its extent along a unit vector [3], m."""
        return float(np.abs(direction @ self.axes) @ self.half_m)


def body_boxes(scene: Privileged, name: str) -> list[OrientedBox]:
    """Return the pieces of a body's collision geometry as boxes in the world frame; [] if the host gives none."""
    if name not in scene.pieces:
        return []
    boxes, turn = scene.pieces[name], to_rotation(scene.body_quat_wxyz[name])
    centers = scene.body_pos_m[name] + turn.apply(boxes.center_m)
    axes = (turn * to_rotation(boxes.quat_wxyz)).as_matrix()
    return [OrientedBox(*row) for row in zip(centers, axes, boxes.half_extents_m, strict=True)]


def handle_box(scene: Privileged, joint: str) -> OrientedBox:
    """Return the longest box of the handle that a joint moves, or of all that it moves if no body is called so.

    Raises `ValueError` if none of these has pieces.
    """
    bodies = scene.joints[joint].bodies
    names = [name for name in bodies if _HANDLE in name.removeprefix(bodies[0])] or list(bodies)
    return max((bar for name in names for bar in body_boxes(scene, name)), key=lambda bar: float(bar.half_m.max()))


def move_point(joint: Joint, point_m: Floats, by: float) -> Floats:
    """Return a point [3] that the joint moves after its position changed by `by`, rad or m."""
    if joint.kind == "slide":
        return np.asarray(point_m + by * joint.axis)
    return np.asarray(joint.anchor_m + Rotation.from_rotvec(by * joint.axis).apply(point_m - joint.anchor_m))


def motion_direction(joint: Joint, point_m: Floats) -> Floats:
    """Return the unit vector [3] along which a point moves as the joint's position grows."""
    way = joint.axis if joint.kind == "slide" else np.cross(joint.axis, point_m - joint.anchor_m)
    return np.asarray(way / max(float(np.linalg.norm(way)), 1e-9))


def open_position(joint: Joint) -> float:
    """Return the joint's position, rad or m, at the end farther from 0, where RoboCasa has fixtures open."""
    return max(joint.low, joint.high, key=abs)


# How far the base stands from an upright handle and from a lying one, which hang lower; how far it backs away; and how
# much the hand dips towards the latter, which it could not reach level.
_REACH_M, _REACH_LOW_M, _ROOM_M, _DIP = 0.65, 0.82, 0.15, 0.3
_UPRIGHT = 0.5
# The hand stops before the handle, then takes it a little behind its middle; the base follows the course in steps.
_BEFORE_M, _BEHIND_M, _STEP = 0.10, 0.005, 0.05
# Pulling goes on past the end, a door only until it is ajar; then it is pushed, beside its middle, from the inside.
_OVER, _AJAR_RAD, _INSIDE_M, _AGAINST_M, _SHARE, _EDGE, _ROUND = 1.05, 0.6, 0.07, 0.02, 0.8, 0.9, 1.3
_LEAD_RAD, _OPEN_RAD, _PUSH_STEPS = 0.3, 0.03, 300
_AT_M = 0.6


def open_fixture(robot: MobileRobot) -> Move:
    """Open all that the goal's fixture can open, one joint after another; nothing if the scene shows no joints."""
    for name, joint in robot.scene.joints.items():
        to, is_door, closed = open_position(joint), joint.kind == "hinge", handle_box(robot.scene, name)
        pull = np.sign(to) * _AJAR_RAD if is_door else _OVER * to - robot.scene.joint_pos[name]
        yield from _pull_handle(robot, name, pull)
        way = np.sign(to) * motion_direction(robot.scene.joints[name], robot.hand_m)
        yield from robot.drive(robot.place_m + _ROOM_M * way[:2])
        if is_door and abs(robot.scene.joint_pos[name]) > _AJAR_RAD / 2:
            yield from _push_open(robot, name, closed)


def _pull_handle(robot: MobileRobot, name: str, by: float) -> Move:
    """Take the handle, move it by `by` (rad or m) along the joint's course, and let go."""
    style, joint, bar, yaw = robot.style, robot.scene.joints[name], handle_box(robot.scene, name), robot.yaw
    way = motion_direction(joint, bar.center_m) * np.sign(by)
    upright = abs(bar.long_axis[2]) > _UPRIGHT
    stand = bar.center_m[:2] - (_REACH_M if upright else _REACH_LOW_M) * robot.front[:2]
    yield from _approach_stand(robot, stand)
    if not upright:
        # First roll, then pitch: both at once bring the wrist to its limits.
        yield from robot.reach(robot.hand_m, OPEN, robot.face(-_UP, -way))
    into = -way if upright else -way - _DIP * _UP
    into = into / np.linalg.norm(into)
    turn = robot.face(into, np.cross(into, bar.long_axis))
    yield from robot.reach(bar.center_m + 2 * _BEFORE_M * way, OPEN, turn)
    yield from robot.drive(_straight_ahead(robot, stand), yaw)
    yield from robot.reach(bar.center_m + _BEFORE_M * way, OPEN, turn)
    inside = bar.center_m - _BEHIND_M * way
    yield from robot.reach(inside, OPEN, turn, speed=max(style.touch, _LEAST_TOUCH), near_m=_BEHIND_M)
    yield from robot.hold_still(CLOSE)
    start, end = robot.place_m, robot.scene.joint_pos[name] + by
    for done in np.linspace(0.0, by, max(2, round(abs(by) / _STEP))):
        place = start + (move_point(joint, bar.center_m, done) - bar.center_m)[:2]
        yield from robot.drive(place, yaw, CLOSE, speed=style.push, max_steps=20)
    if joint.kind == "slide":
        last = move_point(joint, robot.hand_m, end - robot.scene.joint_pos[name])
        yield from robot.reach(last, CLOSE, turn, speed=style.touch)
    yield from robot.hold_still(OPEN)


def _push_open(robot: MobileRobot, name: str, closed: OrientedBox) -> Move:
    """Go round the edge of a door that is ajar, and push it from the inside with closed fingers."""
    yaw, to, front = robot.yaw, open_position(robot.scene.joints[name]), robot.front
    # With the fingers one over the other the hand is narrow enough to go in beside the door.
    turn = robot.face(front, _UP)
    for share, inside_m in ((_ROUND, -_BEFORE_M / 2), (_ROUND, _INSIDE_M), (_EDGE, _INSIDE_M)):
        place = point_on_door(robot.scene, name, closed, robot.scene.joint_pos[name], share, inside_m)
        yield from robot.reach(place, CLOSE, turn)
        if inside_m < 0:
            stand = point_on_door(robot.scene, name, closed, to / 2, _SHARE, _INSIDE_M) - _AT_M * front
            yield from robot.drive(_straight_ahead(robot, stand[:2]), yaw, CLOSE)
    for _ in range(round(_PUSH_STEPS / robot.style.push)):
        angle = robot.scene.joint_pos[name]
        if abs(to - angle) < _OPEN_RAD:
            break
        inside = point_on_door(robot.scene, name, closed, angle + np.sign(to) * _LEAD_RAD, _SHARE, _AGAINST_M)
        yield from robot.step_hand(inside, CLOSE, turn, robot.style.push)
    yield from robot.drive(robot.place_m - 3 * _ROOM_M * front[:2], yaw, CLOSE)


def point_on_door(
    scene: Privileged, name: str, closed: OrientedBox, angle: float, share: float, inside_m: float
) -> Floats:
    """Return a point [3] at the handle's height with the door at an angle, rad; `closed` is the handle as it is at 0.

    The point lies `share` of the way from hinge to handle, and `inside_m` from the door's plane towards what it closes.
    """
    joint = scene.joints[name]
    arm = (closed.center_m - joint.anchor_m) * _LEVEL
    inward = -motion_direction(joint, closed.center_m) * np.sign(open_position(joint))
    hinge = np.array([*joint.anchor_m[:2], closed.center_m[2]])
    return move_point(joint, hinge + share * arm + inside_m * inward, angle)


def _approach_stand(robot: MobileRobot, stand: Floats) -> Move:
    yaw, ahead = robot.yaw, robot.front[:2]
    off = float((stand - robot.place_m) @ ahead)
    yield from robot.drive(robot.place_m + min(off - _ROOM_M, 0.0) * ahead, yaw)
    yield from robot.drive(stand - float((stand - robot.place_m) @ ahead) * ahead, yaw)
    yield from robot.drive(stand - _ROOM_M * ahead, yaw)


def _straight_ahead(robot: MobileRobot, stand: Floats) -> Floats:
    ahead = robot.front[:2]
    return np.asarray(robot.place_m + float((stand - robot.place_m) @ ahead) * ahead)


SCRIPTS: Mapping[str, Callable[[MobileRobot], Move]] = {
    "at": go_to_site,
    "turn_on": press_button,
    "in": put_object,
    "on": put_object,
    "close": close_doors,
    "open": open_fixture,
}


def follow_goal(seen: Observation, style: MobileStyle, still: tuple[float, ...]) -> Move:
    """Follow the script of the goal, if there is one, and then stand still, [12]."""
    robot = MobileRobot(seen, style)
    script = SCRIPTS.get(robot.scene.goal[0][0])
    if script:
        yield from script(robot)
    while True:
        yield np.array(still)
