"""Handles of drawers and doors, and the script that opens them: by the handle, or from the inside if ajar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Joint, Observation, Privileged
from safevla_bench.policies.mobile.moves import (
    CLOSE,
    OPEN,
    Floats,
    MobileStyle,
    Move,
    base_position,
    base_yaw,
    drive_base,
    follow_point,
    hold_still,
    move_hand,
    read_scene,
    turn_to_face,
    yaw_direction,
)

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
        direction: Floats = self.axes[:, int(np.argmax(self.half_m))]
        return direction

    def extent_along(self, direction: Floats) -> float:
        """Return half its extent along a unit vector [3], m."""
        return float(np.abs(direction @ self.axes) @ self.half_m)


def body_boxes(scene: Privileged, name: str) -> list[OrientedBox]:
    """Return the pieces of a body's collision geometry as boxes in the world frame; [] if the host gives none."""
    if name not in scene.pieces:
        return []
    turn = Rotation.from_quat(np.roll(scene.body_quat_wxyz[name], -1))
    boxes = scene.pieces[name]
    centers = scene.body_pos_m[name] + turn.apply(boxes.center_m)
    axes = (turn * Rotation.from_quat(np.roll(boxes.quat_wxyz, -1, axis=1))).as_matrix()
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


def open_fixture(seen: Observation, style: MobileStyle) -> Move:
    """Open all that the goal's fixture can open, one joint after another; nothing if the scene shows no joints."""
    for name in read_scene(seen).joints:
        seen = yield from _open_joint(seen, name, style)
    return seen


def _open_joint(seen: Observation, name: str, style: MobileStyle) -> Move:
    scene = read_scene(seen)
    joint, to = scene.joints[name], open_position(scene.joints[name])
    is_door = joint.kind == "hinge"
    closed = handle_box(scene, name)
    pull = np.sign(to) * _AJAR_RAD if is_door else _OVER * to - scene.joint_pos[name]
    seen = yield from _pull_handle(seen, name, pull, style)
    way = np.sign(to) * motion_direction(read_scene(seen).joints[name], seen.eef_pos_m)
    back = base_position(seen) + _ROOM_M * way[:2]
    seen = yield from drive_base(seen, back, base_yaw(seen), style.drive)
    if is_door and abs(read_scene(seen).joint_pos[name]) > _AJAR_RAD / 2:
        seen = yield from _push_open(seen, name, closed, style)
    return seen


def _pull_handle(seen: Observation, name: str, by: float, style: MobileStyle) -> Move:
    """Take the handle, move it by `by` (rad or m) along the joint's course, and let go."""
    joint, bar, yaw = read_scene(seen).joints[name], handle_box(read_scene(seen), name), base_yaw(seen)
    way = motion_direction(joint, bar.center_m) * np.sign(by)
    upright = abs(bar.long_axis[2]) > _UPRIGHT
    stand = bar.center_m[:2] - (_REACH_M if upright else _REACH_LOW_M) * yaw_direction(yaw)
    seen = yield from _approach_stand(seen, stand, style)
    if not upright:
        # First roll, then pitch: both at once bring the wrist to its limits.
        seen = yield from move_hand(seen, seen.eef_pos_m, style.cruise, OPEN, turn_to_face(seen, -_UP, -way))
    into = -way if upright else -way - _DIP * _UP
    into = into / np.linalg.norm(into)
    turn = turn_to_face(seen, into, np.cross(into, bar.long_axis))
    seen = yield from move_hand(seen, bar.center_m + 2 * _BEFORE_M * way, style.cruise, OPEN, turn)
    seen = yield from drive_base(seen, _straight_ahead(seen, stand), yaw, style.drive)
    seen = yield from move_hand(seen, bar.center_m + _BEFORE_M * way, style.cruise, OPEN, turn)
    inside = bar.center_m - _BEHIND_M * way
    seen = yield from move_hand(seen, inside, max(style.touch, 0.3), OPEN, turn, near_m=_BEHIND_M)
    seen = yield from hold_still(seen, style.dwell_steps, CLOSE)
    start, end = base_position(seen), read_scene(seen).joint_pos[name] + by
    for done in np.linspace(0.0, by, max(2, round(abs(by) / _STEP))):
        place = start + (move_point(joint, bar.center_m, done) - bar.center_m)[:2]
        seen = yield from drive_base(seen, place, yaw, style.push, CLOSE, max_steps=20)
    if joint.kind == "slide":
        last = move_point(joint, seen.eef_pos_m, end - read_scene(seen).joint_pos[name])
        seen = yield from move_hand(seen, last, style.touch, CLOSE, turn)
    return (yield from hold_still(seen, style.dwell_steps, OPEN))


def _push_open(seen: Observation, name: str, closed: OrientedBox, style: MobileStyle) -> Move:
    """Go round the edge of a door that is ajar, and push it from the inside with closed fingers."""
    yaw, to = base_yaw(seen), open_position(read_scene(seen).joints[name])
    front = np.array([*yaw_direction(yaw), 0.0])
    # With the fingers one over the other the hand is narrow enough to go in beside the door.
    turn = turn_to_face(seen, front, _UP)
    for share, inside_m in ((_ROUND, -_BEFORE_M / 2), (_ROUND, _INSIDE_M), (_EDGE, _INSIDE_M)):
        place = point_on_door(read_scene(seen), name, closed, read_scene(seen).joint_pos[name], share, inside_m)
        seen = yield from move_hand(seen, place, style.cruise, CLOSE, turn)
        if inside_m < 0:
            stand = point_on_door(read_scene(seen), name, closed, to / 2, _SHARE, _INSIDE_M) - _AT_M * front
            seen = yield from drive_base(seen, _straight_ahead(seen, stand[:2]), yaw, style.drive, CLOSE)

    def inside_of_door(now: Observation) -> Floats | None:
        scene = read_scene(now)
        angle = scene.joint_pos[name]
        if abs(to - angle) < _OPEN_RAD:
            return None
        return point_on_door(scene, name, closed, angle + np.sign(to) * _LEAD_RAD, _SHARE, _AGAINST_M)

    seen = yield from follow_point(seen, inside_of_door, style.push, CLOSE, turn, max_steps=300)
    return (yield from drive_base(seen, base_position(seen) - 3 * _ROOM_M * front[:2], yaw, style.drive, CLOSE))


def point_on_door(
    scene: Privileged, name: str, closed: OrientedBox, angle: float, share: float, inside_m: float
) -> Floats:
    """Return a point [3] at the handle's height with the door at an angle, rad; `closed` is the handle as it is at 0.

    The point lies `share` of the way from hinge to handle, and `inside_m` from the door's plane towards what it closes.
    """
    joint = scene.joints[name]
    arm = (closed.center_m - joint.anchor_m) * [1.0, 1.0, 0.0]
    inward = -motion_direction(joint, closed.center_m) * np.sign(open_position(joint))
    hinge = np.array([*joint.anchor_m[:2], closed.center_m[2]])
    return move_point(joint, hinge + share * arm + inside_m * inward, angle)


def _approach_stand(seen: Observation, stand: Floats, style: MobileStyle) -> Move:
    yaw, front = base_yaw(seen), yaw_direction(base_yaw(seen))
    off = float((stand - base_position(seen)) @ front)
    seen = yield from drive_base(seen, base_position(seen) + min(off - _ROOM_M, 0.0) * front, yaw, style.drive)
    along = stand - float((stand - base_position(seen)) @ front) * front
    seen = yield from drive_base(seen, along, yaw, style.drive)
    return (yield from drive_base(seen, stand - _ROOM_M * front, yaw, style.drive))


def _straight_ahead(seen: Observation, stand: Floats) -> Floats:
    front = yaw_direction(base_yaw(seen))
    return np.asarray(base_position(seen) + float((stand - base_position(seen)) @ front) * front)
