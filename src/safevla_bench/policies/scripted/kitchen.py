"""Scripts for the robot PandaOmron in RoboCasa's kitchens: drive to a site, press a button, place an object.

The scripts use privileged state, and read neither specifications nor thresholds. Each move is a generator that yields
actions [12] and receives observations. A move ends when the base or hand arrives, is blocked, or has used its maximum
number of steps. The styles careful and hasty differ only in clearances and speeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Observation, Privileged
from safevla_bench.policies.scripted.motion import CLOSE, OPEN, Floats, Move, Mover, box_axes, box_center, to_rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileStyle:
    """A script's clearances in meters, and its speeds as fractions of the largest command of the base or the arm."""

    room_m: float  # the base first backs away from a counter by this distance, then turns or drives along it
    over_m: float  # minimum height of a carried object's bottom above the container's top
    release_m: float  # height above the support at which an object is released
    drive: float  # speed of the base
    cruise: float  # speed of the hand in free space
    touch: float  # speed of the hand before contact
    dwell_steps: int  # steps for the fingers to close or open


CAREFUL = MobileStyle(room_m=0.5, over_m=0.12, release_m=0.02, drive=0.7, cruise=0.6, touch=0.2, dwell_steps=15)
HASTY = MobileStyle(room_m=0.05, over_m=0.02, release_m=0.06, drive=1.0, cruise=1.0, touch=1.0, dwell_steps=8)

STYLES: Mapping[str, MobileStyle] = {"careful": CAREFUL, "hasty": HASTY}


_BASE_MODE, _ARM_MODE = 1.0, -1.0  # the last number of an action decides which part of the robot moves
_DRIVE_GAIN, _YAW_GAIN, _REACH_GAIN, _TURN_GAIN = 8.0, 5.0, 20.0, 1.0
_UNIT_RAD = 0.5  # the angle [rad] by which an action of 1 rotates the hand
_TURN_SHARE = 0.3  # limit on the rotation command, as a fraction of the hand's speed; the wrist is weak
_FACING_RAD = 0.05
_ARRIVED_M = 0.04
_STOPPED_STEPS, _STOPPED_M = 8, 0.006  # a hand is blocked if it moves < _STOPPED_M * speed in _STOPPED_STEPS
_STUCK_STEPS, _STUCK_M = 20, 0.004  # a base is stuck if it moves less than _STUCK_M [m, rad] in _STUCK_STEPS


class MobileRobot(Mover):
    """A robot with an arm on a mobile base."""

    def __init__(self, seen: Observation, style: MobileStyle) -> None:
        # `seen` is the newest observation, which each move updates; `style` holds speeds and clearances.
        self.seen, self.style = seen, style

    @property
    def place_m(self) -> Floats:
        """The horizontal position of the base in the world frame, [2] m."""
        assert self.seen.base_pos_m is not None
        return self.seen.base_pos_m[:2]

    @property
    def yaw(self) -> float:
        """The yaw of the base in the world frame [rad]."""
        assert self.seen.base_quat_wxyz is not None
        return float(to_rotation(self.seen.base_quat_wxyz).as_euler("xyz")[2])

    @property
    def front(self) -> Floats:
        """The unit vector in the base's forward direction, world frame, [3]."""
        return np.array([*yaw_direction(self.yaw), 0.0])

    def face(self, forward: Floats, across: Floats) -> Rotation:
        """Return the orientation of a hand that points along `forward` [3] and opens its fingers along `across` [3],
        two perpendicular unit vectors. Two orientations do this; return the one closer to the current orientation.
        """
        orientations = [  # the columns are the hand's x, y and z axes; the fingers open along y
            Rotation.from_matrix(np.stack([np.cross(opening, forward), opening, forward], axis=1))
            for opening in (across, -across)
        ]
        hand = to_rotation(self.seen.eef_quat_wxyz)
        # The magnitude of a rotation is its angle. Here, it is the angle from the hand's current orientation.
        return min(orientations, key=lambda orientation: float((orientation * hand.inv()).magnitude()))

    def drive(
        self,
        place_m: Floats,
        yaw_rad: float | None = None,
        grip: float = OPEN,
        *,
        max_steps: int = 150,
        insist: bool = False,
    ) -> Move:
        """Drive the base to `place_m` [2] and turn it to `yaw_rad` (None = keep the yaw), with the arm held still. The
        move ends within 4 cm and 0.05 rad of this target, after `max_steps`, or if an obstacle stops the base. If
        `insist` is true, a stopped base continues to push, because it may slip past the obstacle.
        """
        # Yields actions [12], and receives observations. `grip` is the gripper's command, `OPEN` or `CLOSE`.
        target_yaw, limit = self.yaw if yaw_rad is None else yaw_rad, self.style.drive
        past_poses = [(self.place_m, self.yaw)]
        for _ in range(max_steps):
            yaw, offset_m = self.yaw, place_m - self.place_m
            turn_rad = (target_yaw - yaw + np.pi) % (2 * np.pi) - np.pi  # the remaining turn, in [-pi, pi)
            if np.linalg.norm(offset_m) < _ARRIVED_M and abs(turn_rad) < _FACING_RAD:
                break
            if not insist and len(past_poses) > _STUCK_STEPS:
                earlier_m, earlier_yaw = past_poses[-_STUCK_STEPS]
                # The base is stopped if it has hardly moved. `_STUCK_M` also limits the yaw's change, in radians.
                if np.linalg.norm(self.place_m - earlier_m) < _STUCK_M and abs(yaw - earlier_yaw) < _STUCK_M:
                    break
            past_poses.append((self.place_m, yaw))
            # The command's x and y are in the frame of the base: forward and to the left.
            offset_in_base = np.array([offset_m @ yaw_direction(yaw), offset_m @ yaw_direction(yaw + np.pi / 2)])
            base = [*_limit_length(offset_in_base * _DRIVE_GAIN, limit), np.clip(_YAW_GAIN * turn_rad, -limit, limit)]
            # action: hand [0:6], gripper [6], base [7:10], torso [10], mode [11]
            self.seen = yield np.array([0.0] * 6 + [grip, *base, 0.0, _BASE_MODE])

    def back_off(self, by_m: float, grip: float = OPEN, *, insist: bool = False) -> Move:
        # Drive the base straight back by `by_m` meters. `grip` and `insist` mean the same as in `drive`.
        return self.drive(self.place_m - by_m * self.front[:2], grip=grip, insist=insist)

    def reach(
        self,
        place_m: Floats,
        grip: float,
        turn: Rotation | None = None,
        *,
        speed: float | None = None,
        near_m: float = 0.012,
        max_steps: int = 60,
    ) -> Move:
        """Move the hand to `place_m` [3] in the world frame and to the orientation `turn` (None = no turn). The move
        ends within `near_m` and 0.1 rad of the target, after `max_steps` / `speed` steps, or if the hand is blocked.
        """
        # `grip` is the gripper's command, `OPEN` or `CLOSE`; `speed` (None = `style.cruise`): 1 is full speed.
        max_speed = self.style.cruise if speed is None else speed
        past_hand_m = [self.hand_m] * _STOPPED_STEPS  # padded, so that index -_STOPPED_STEPS always exists
        for step in range(round(max_steps / max(max_speed, 0.1))):  # a slower move may take more steps
            turn_rad = np.linalg.norm(self._remaining_turn_rad(turn))
            if np.linalg.norm(place_m - self.hand_m) < near_m and turn_rad < 2 * _FACING_RAD:
                break
            is_resting = np.linalg.norm(self.hand_m - past_hand_m[-_STOPPED_STEPS]) < _STOPPED_M * max_speed
            # A hand that has just started, or is still turning, is not blocked, even if its position does not change.
            if step > 2 * _STOPPED_STEPS and is_resting and turn_rad < 4 * _FACING_RAD:
                break
            past_hand_m.append(self.hand_m)
            yield from self.step_hand(place_m, grip, turn, max_speed)

    def hold_still(self, grip: float) -> Move:
        """Hold hand and base still for `style.dwell_steps` steps, while the fingers follow the command `grip`."""
        for _ in range(self.style.dwell_steps):
            yield from self.step_hand(self.hand_m, grip, turn=None, speed=0.0)  # the target is the current position

    def step_hand(self, place_m: Floats, grip: float, turn: Rotation | None, speed: float) -> Move:
        # Yield one action, which moves the hand toward `place_m` [3] and the orientation `turn` (None = no turn).
        # The base stays. `speed` limits the command; 1 is full speed.
        move_command = _limit_length(_REACH_GAIN * (place_m - self.hand_m), speed)
        turn_command = _limit_length(_TURN_GAIN * self._remaining_turn_rad(turn) / _UNIT_RAD, _TURN_SHARE * speed)
        to_base = Rotation.from_euler("z", -self.yaw)  # commands for the hand are in the frame of the base
        arm_command = [*to_base.apply(move_command), *to_base.apply(turn_command)]
        # action: hand [0:6], gripper [6], base [7:10], torso [10], mode [11]
        self.seen = yield np.array([*arm_command, grip, 0.0, 0.0, 0.0, 0.0, _ARM_MODE])

    def _remaining_turn_rad(self, goal: Rotation | None) -> Floats:
        # Return the rotation vector from the hand's orientation to `goal`, [3], world frame; zeros if `goal` is None.
        if goal is None:
            return np.zeros(3)
        return np.asarray((goal * to_rotation(self.seen.eef_quat_wxyz).inv()).as_rotvec())


def yaw_direction(yaw_rad: float) -> Floats:
    """Return the horizontal unit vector [2] that points in the direction `yaw_rad`."""
    return np.array([np.cos(yaw_rad), np.sin(yaw_rad)])


def _limit_length(vector: Floats, max_length: float) -> Floats:
    # Return the vector, shortened to `max_length` if it is longer; 1e-9 avoids a division by zero.
    return vector * min(1.0, max_length / max(float(np.linalg.norm(vector)), 1e-9))


# Scripts


_UP = np.array([0.0, 0.0, 1.0])
_HORIZONTAL = np.array([1.0, 1.0, 0.0])  # a product with this array has no vertical part
_MIN_GRASP_SPEED = 0.3  # minimum speed of the hand when it descends to grasp an object

# Before the hand presses a button, the base drives back by _ROOM_TO_PRESS_M.
# The hand starts _BEFORE_BUTTON_M before the button, aims _BEHIND_BUTTON_M behind it, and retracts by _RETRACT_M.
_ROOM_TO_PRESS_M, _BEFORE_BUTTON_M, _BEHIND_BUTTON_M, _RETRACT_M = 0.25, 0.07, 0.02, 0.25
_PRESS_START_NEAR_M = 0.005  # the press begins when the hand is this close to its start point
# To place an object, the base stops _ARM_LENGTH_M before the object or container, and finally drives back _RETREAT_M.
# The hand descends from _HOVER_M above the grasp; the fingertips reach _FINGER_DEPTH_M below the object's top.
_ARM_LENGTH_M, _RETREAT_M, _HOVER_M, _FINGER_DEPTH_M = 0.58, 0.45, 0.10, 0.03


def go_to_site(robot: MobileRobot) -> Move:
    """Drive back, turn the base to the goal's yaw, drive to a point in front of the goal, then drive to the goal."""
    # A base that is stopped by an obstacle continues to push (`insist`). `room_m` is the style's distance to counters.
    sites, room_m = robot.scene.sites_m, robot.style.room_m
    # The site `goal_ahead` is 1 m from `goal`, in the direction that the robot must face.
    goal, ahead = sites["goal"][:2], sites["goal_ahead"][:2] - sites["goal"][:2]
    yaw = float(np.arctan2(ahead[1], ahead[0]))
    yield from robot.back_off(room_m, insist=True)
    yield from robot.drive(robot.place_m, yaw, insist=True)  # turn in place
    yield from robot.drive(goal - room_m * ahead, yaw, max_steps=250, insist=True)
    yield from robot.drive(goal, yaw, insist=True)


def press_button(robot: MobileRobot) -> Move:
    """Press the start button with closed fingers, then retract the hand; do nothing if the scene shows no button."""
    # The goal's first predicate is ("turn_on", APPLIANCE).
    button = robot.scene.sites_m.get(f"{robot.scene.goal[0][1]}_start_button")
    if button is None:
        return
    front = robot.front  # a horizontal unit vector [3]; the button is pressed in this direction
    facing_button = robot.face(front, _UP)
    yield from robot.back_off(_ROOM_TO_PRESS_M, CLOSE)
    yield from robot.reach(button - _BEFORE_BUTTON_M * front, CLOSE, facing_button, near_m=_PRESS_START_NEAR_M)
    # A target behind the button makes the hand press. The target is never reached, so the number of steps is small.
    behind_button = button + _BEHIND_BUTTON_M * front
    yield from robot.reach(behind_button, CLOSE, facing_button, speed=robot.style.touch, max_steps=20)
    yield from robot.reach(button - _RETRACT_M * front, CLOSE, facing_button)


def put_object(robot: MobileRobot) -> Move:
    """Put the goal's object into or onto its container, then drive back; do nothing if the container is not movable."""
    # The goal's first predicate is ("in" or "on", BODY, CONTAINER).
    _, body, container = robot.scene.goal[0]
    if container not in robot.scene.movable:
        return
    yield from _drive_in_front_of(robot, box_center(robot.scene, body), OPEN)
    half_m = robot.scene.half_extents_m[body]  # half the size along the axes of the body's box
    narrower_axis = 1 if half_m[1] < half_m[0] else 0  # index of the box axis, x or y, along which the fingers open
    opening = box_axes(robot.scene, body)[:, narrower_axis] * _HORIZONTAL
    opening_length = float(np.linalg.norm(opening))  # almost 0 if the axis is almost vertical
    facing_down = robot.face(-_UP, opening / opening_length if opening_length > 0.1 else robot.front)
    center_m = box_center(robot.scene, body)
    # Grasp the object at its center or, if this is higher, `_FINGER_DEPTH_M` below its top.
    grasp_m = np.array([*center_m[:2], max(center_m[2], _top_height(robot.scene, body) - _FINGER_DEPTH_M)])
    yield from robot.reach(grasp_m + _HOVER_M * _UP, OPEN, facing_down)
    yield from robot.reach(grasp_m, OPEN, facing_down, speed=max(robot.style.touch, _MIN_GRASP_SPEED))
    yield from robot.hold_still(CLOSE)
    yield from _carry_object(robot, body, container, facing_down)
    yield from robot.back_off(_RETREAT_M)


def _carry_object(robot: MobileRobot, body: str, container: str, facing_down: Rotation) -> Move:
    # Lift the gripped object `body`, bring it above the body `container`, lower it, and release it.
    # `facing_down` is the hand's orientation.
    scene, style = robot.scene, robot.style
    hand_offset_m = robot.hand_m - box_center(scene, body)  # stays the same while the object is held
    # The target is the body's origin, not the middle of the container's box, because the box may include a handle.
    goal_m, grip_height_m = scene.body_pos_m[container], hand_offset_m[2] + _half_height(scene, body)
    # The hand carries at the height `high_m`, releases at `low_m`, and is `grip_height_m` above the object's bottom.
    high_m = max(_top_height(scene, container), float(box_center(scene, body)[2])) + style.over_m + grip_height_m
    low_m = float(box_center(scene, container)[2]) - _half_height(scene, container) + style.release_m + grip_height_m
    yield from robot.reach(np.array([*robot.hand_m[:2], high_m]), CLOSE, facing_down)
    yield from _drive_in_front_of(robot, goal_m, CLOSE)
    yield from robot.reach(np.array([*(goal_m + hand_offset_m)[:2], high_m]), CLOSE, facing_down)
    yield from robot.reach(np.array([*(goal_m + hand_offset_m)[:2], low_m]), CLOSE, facing_down)
    yield from robot.hold_still(OPEN)
    yield from robot.reach(np.array([*robot.hand_m[:2], high_m]), OPEN)


def _drive_in_front_of(robot: MobileRobot, point_m: Floats, grip: float) -> Move:
    # Drive the base, without a turn, until `point_m` is straight ahead and at least `_ARM_LENGTH_M` away.
    # `ahead` and `leftward` are horizontal unit vectors [2] in the world frame.
    ahead, leftward = robot.front[:2], yaw_direction(robot.yaw + np.pi / 2)
    offset_m = point_m[:2] - robot.place_m
    # The base moves sideways and backwards, never forwards.
    ahead_m = min(float(offset_m @ ahead) - _ARM_LENGTH_M, 0.0)
    return robot.drive(robot.place_m + float(offset_m @ leftward) * leftward + ahead_m * ahead, grip=grip)


def _half_height(scene: Privileged, body: str) -> float:
    # Return half the vertical extent [m] of a body's box, which may be tilted.
    # Row 2 contains the z components of the axes.
    return float(np.abs(box_axes(scene, body)[2]) @ scene.half_extents_m[body])


def _top_height(scene: Privileged, body: str) -> float:
    # Return the height of the top of a body's box in the world frame [m].
    return float(box_center(scene, body)[2]) + _half_height(scene, body)


SCRIPTS: Mapping[str, Callable[[MobileRobot], Move]] = {
    "at": go_to_site,
    "turn_on": press_button,
    "in": put_object,
    "on": put_object,
}


def follow_goal(seen: Observation, style: MobileStyle, still: tuple[float, ...]) -> Move:
    """Follow the script of the goal's first predicate, if there is one, then yield the action `still` [12] forever."""
    robot = MobileRobot(seen, style)
    # A predicate is (NAME, ARGUMENT, ...), such as ("turn_on", APPLIANCE); `SCRIPTS` maps its name to a script.
    goal = robot.scene.goal
    script = SCRIPTS.get(goal[0][0]) if goal else None
    if script:
        yield from script(robot)
    while True:
        yield np.array(still)
