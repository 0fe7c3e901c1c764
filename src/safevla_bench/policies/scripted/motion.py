"""Motion of a robot arm on a fixed base: the scene's geometry, the styles careful and hasty, and the arm's moves.

The styles differ only in clearances and speeds. The geometry consists of the boxes of bodies, the orientations of a
hand that points straight down, and upright prisms.

A prism is a vertical solid between two heights with a convex outline. The outline's support function describes it: how
far it extends along each of `DIRECTIONS`. Two outlines do not overlap if one of the directions separates them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Action, Boxes, Observation, Privileged

Floats = NDArray[np.float64]

OPEN, CLOSE = -1.0, 1.0  # commands of the gripper in an action
# The hand's z axis points down. The fingers open along its y axis, which points along the world's -y.
_DOWN = Rotation.from_quat([1.0, 0.0, 0.0, 0.0])


def to_rotation(quat_wxyz: Floats) -> Rotation:
    """Return the rotation of a quaternion wxyz [4], or the `N` rotations of quaternions [N, 4] as one object."""
    return Rotation.from_quat(np.roll(quat_wxyz, -1, axis=-1))  # SciPy expects xyzw


def rotation_axes(quat_wxyz: Floats) -> Floats:
    """Return the axes of the rotated frame as columns: [3, 3] for a quaternion [4], [N, 3, 3] for [N, 4]."""
    return np.asarray(to_rotation(quat_wxyz).as_matrix())


def box_axes(scene: Privileged, name: str) -> Floats:
    """Return the axes of a body's box as columns, [3, 3], in the world frame."""
    # The box of a body has the orientation of the body.
    return rotation_axes(scene.body_quat_wxyz[name])


def box_center(scene: Privileged, name: str) -> Floats:
    """Return the center of a body's box in the world frame, [3] m."""
    # `center_m` is the center in the body's frame; the box's center and the body's origin may differ.
    return np.asarray(scene.body_pos_m[name] + box_axes(scene, name) @ scene.center_m[name])


def downward_hand(yaw_rad: float) -> Rotation:
    """Return the rotation of a hand that points down and is turned by `yaw_rad` about the world's z axis."""
    return Rotation.from_rotvec([0.0, 0.0, yaw_rad]) * _DOWN  # `_DOWN` is applied first: it points the hand down


def nearest_yaw(quat_wxyz: Floats) -> float:
    """Return the yaw, in (-pi, pi] rad, at which a hand that points down is closest to the orientation `quat_wxyz`."""
    opening = rotation_axes(quat_wxyz)[:, 1]
    # A downward hand opens along (sin yaw, -cos yaw). Find the yaw for the x and y of the current opening direction.
    return float(np.arctan2(opening[0], -opening[1]))


def yaw_to_open_along(direction: Floats, near_rad: float = 0.0) -> float:
    """The fingers open along `direction` [2] at two yaws. Return the one closer to `near_rad` [rad]."""
    yaw = float(np.arctan2(direction[0], -direction[1]))  # a downward hand opens along (sin yaw, -cos yaw)
    # A hand turned by 180 degrees opens along the same line, so a solution within 90 degrees of `near_rad` exists.
    return near_rad + (yaw - near_rad + np.pi / 2) % np.pi - np.pi / 2


def remaining_turn(quat_wxyz: Floats, yaw_rad: float) -> Floats:
    """Return the rotation vector, [3] rad, world frame, from `quat_wxyz` to a downward hand with the yaw `yaw_rad`."""
    return np.asarray((downward_hand(yaw_rad) * to_rotation(quat_wxyz).inv()).as_rotvec())


_ANGLES = np.radians(np.arange(0.0, 360.0, 5.0))
DIRECTIONS: Floats = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
OPPOSITE = (np.arange(len(_ANGLES)) + len(_ANGLES) // 2) % len(_ANGLES)  # index of each direction's opposite
_CORNERS: Floats = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float64)

# For the hand and for a finger: half sizes across and along the opening direction, and the lowest height.
_HAND_HALF_M = (0.034, 0.106)
_HAND_LOW_M = 0.029
_FINGER_HALF_M = (0.012, 0.014)
_FINGER_LOW_M = -0.010


@dataclass(frozen=True, slots=True)
class Prisms:
    """A set of `P` upright prisms: their extents along `DIRECTIONS` [P, 72], bottom heights [P] and top heights [P]."""

    reach_m: Floats
    low_m: Floats
    top_m: Floats

    def shift_by(self, by_m: Floats) -> Prisms:
        # Return the prisms moved by the vector `by_m` [3]. Each extent grows by the part of the move in its direction.
        return Prisms(self.reach_m + DIRECTIONS @ by_m[:2], self.low_m + by_m[2], self.top_m + by_m[2])

    def hull(self) -> Prisms:
        """Return one prism that encloses all prisms of this set, which must not be empty."""
        # The result is a set with one prism.
        low_m, top_m = self.low_m.min(keepdims=True), self.top_m.max(keepdims=True)
        return Prisms(self.reach_m.max(axis=0, keepdims=True), low_m, top_m)


def concatenate_prisms(*parts: Prisms) -> Prisms:
    """Return one set with the prisms of all `parts`, in order."""
    # A prism is a vertical solid with a convex outline between two heights.
    return Prisms(
        np.concatenate([part.reach_m for part in parts]),
        np.concatenate([part.low_m for part in parts]),
        np.concatenate([part.top_m for part in parts]),
    )


def prisms_around(corners_m: Floats) -> Prisms:
    """Return the `P` prisms that enclose `P` sets of 8 corners, [P, 8, 3] in the world frame."""
    # A prism's outline is given by how far it extends along each of the 72 horizontal `DIRECTIONS`.
    # Einsum indices: p = prism, c = corner, d = direction, x = horizontal axis.
    reach_m = np.einsum("pcx,dx->pcd", corners_m[..., :2], DIRECTIONS).max(axis=1)
    return Prisms(reach_m, corners_m[..., 2].min(axis=1), corners_m[..., 2].max(axis=1))


def body_prisms(scene: Privileged, name: str) -> Prisms:
    """Return the prisms of a body in its current pose: one per piece, or one for the box of a body without pieces."""
    # Pieces are the boxes of a body's collision geometry, such as a drawer's walls.
    # The pieces are given in the body's frame. The body's box is aligned with this frame.
    box = Boxes(scene.center_m[name][None], scene.half_extents_m[name][None], np.array([[1.0, 0.0, 0.0, 0.0]]))
    pieces = scene.pieces.get(name) or box
    # [P, 3, 8]: the rotated corners of each piece, relative to the piece's center
    turned_corners_m = rotation_axes(pieces.quat_wxyz) @ (_CORNERS * pieces.half_extents_m[:, None, :]).swapaxes(1, 2)
    corners_in_body_m = turned_corners_m.swapaxes(1, 2) + pieces.center_m[:, None, :]
    body_axes = rotation_axes(scene.body_quat_wxyz[name])
    return prisms_around(corners_in_body_m @ body_axes.T + scene.body_pos_m[name])


NOTHING = Prisms(np.empty((0, len(DIRECTIONS))), np.empty(0), np.empty(0))


def obstacles_except(scene: Privileged, *names: str) -> Prisms:
    """Return the prisms of all bodies that have a known size, except bodies in `names`; `NOTHING` if none remain."""
    # A prism is a vertical solid that encloses a body, or a piece of a body.
    others = (body_prisms(scene, name) for name in scene.half_extents_m if name not in names)
    return concatenate_prisms(NOTHING, *others)


def hand_prisms(yaw_rad: float, aperture_m: float) -> Prisms:
    """Return the prisms of the Panda hand and its two fingers, pointing down with the grip site at the origin. Each
    finger is `aperture_m` from the middle. The sizes are those of robosuite's collision geometry.
    """
    # Horizontal unit vectors: the direction in which the fingers open, and the perpendicular direction.
    opening = np.array([np.sin(yaw_rad), -np.cos(yaw_rad)])
    across = np.array([np.cos(yaw_rad), np.sin(yaw_rad)])
    finger_middle_m = aperture_m + _FINGER_HALF_M[1]
    # Extents along `DIRECTIONS`, [72] m. The extent of a rectangle is the sum of its two half sides' extents.
    hand_m = np.abs(DIRECTIONS @ across) * _HAND_HALF_M[0] + np.abs(DIRECTIONS @ opening) * _HAND_HALF_M[1]
    finger_m = np.abs(DIRECTIONS @ across) * _FINGER_HALF_M[0] + np.abs(DIRECTIONS @ opening) * _FINGER_HALF_M[1]
    shift_m = DIRECTIONS @ opening * finger_middle_m
    low_m = np.array([_HAND_LOW_M, _FINGER_LOW_M, _FINGER_LOW_M])
    # The tops have arbitrary heights, which are not used, because the hand always comes from above.
    return Prisms(np.stack([hand_m, finger_m + shift_m, finger_m - shift_m]), low_m, low_m + 0.1)


def lowest_heights(rig: Prisms, places_m: Floats, obstacles: Prisms, beside_m: float, above_m: float) -> Floats:
    """Return the lowest safe heights of a hand at `K` horizontal places [K, 2]: [K] m in the world frame. A height is
    that of the origin of the hand's prisms `rig`. A height is safe if the hand is at least `above_m` above all
    obstacles within the horizontal distance `beside_m`. At a place without such obstacles, the height is -inf.
    """
    # Each place's coordinate along each of the 72 horizontal directions, [K, 72].
    places_along_m = places_m @ DIRECTIONS.T
    # The shapes of the next three arrays for `R` prisms and `O` obstacles are [R, O, 72], [K, R, O] and [1, R, O].
    # Along each direction, the gap begins where the obstacle ends and ends where the hand begins.
    # The hand begins at its place minus its extent in the opposite direction. `OPPOSITE` gives this direction's index.
    # Two outlines are separate if the gap is positive along any direction, so the largest gap counts.
    joint_reach_m = rig.reach_m[:, OPPOSITE][:, None, :] + obstacles.reach_m[None]
    gap_m = (places_along_m[:, None, None, :] - joint_reach_m[None]).max(axis=3)
    needed_m = obstacles.top_m[None, None, :] + above_m - rig.low_m[None, :, None]
    return np.asarray(np.where(gap_m < beside_m, needed_m, -np.inf).max(axis=(1, 2), initial=-np.inf))


def out_from_under(hull: Prisms, obstacles: Prisms, beside_m: float) -> Floats:
    """Return the shortest move along one of the 72 `DIRECTIONS`, [2] m, that takes the prism `hull` out from under all
    obstacles above it, to a distance of at least `beside_m`, seen from above. Return zeros if no move is needed.
    """
    # An obstacle is above the prism if its bottom is higher than the prism's top.
    above_indices = np.flatnonzero(obstacles.low_m > hull.top_m[0] - 0.01)  # tolerates 1 cm of overlap
    # The gap from each obstacle to the prism along each direction, [obstacles, 72].
    # For each direction, `reach_m` is the extent, and `OPPOSITE` is the index of the opposite direction.
    gap_m = -hull.reach_m[0, OPPOSITE] - obstacles.reach_m[above_indices]
    # If an obstacle's gap is at least `beside_m` along any direction, the obstacle is far enough away. Drop it.
    small_gaps_m = gap_m[gap_m.max(axis=1) < beside_m]
    if not len(small_gaps_m):
        return np.zeros(2)
    # A move along a direction increases the gap in this direction.
    needed_m = beside_m - small_gaps_m.min(axis=0)  # [72]: the move along each direction that clears all obstacles
    return np.asarray(needed_m.min() * DIRECTIONS[np.argmin(needed_m)])


# The arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """A script's clearances in meters, and speeds as fractions of the largest commanded motion, 0.05 m per step."""

    clearance_m: float  # clearance around and below the hand and its load
    corner_m: float  # at this distance from a waypoint, the hand heads for the next; a large distance cuts corners
    hover_m: float  # height above the grasp at which the final descent begins
    lift_m: float  # height to which a gripped object is lifted before it is carried
    release_m: float  # height above the support at which an object is released
    cruise: float  # speed along a path
    final: float  # speed of the descent to a grasp, of the lift, and of the lowering to a release
    dwell_steps: int  # steps for the fingers to close or open


CAREFUL = Style(  # the hand rises above all bodies, moves across, descends slowly, and sets the object down
    clearance_m=0.02, corner_m=0.015, hover_m=0.06, lift_m=0.06, release_m=0.008, cruise=0.8, final=0.3, dwell_steps=10
)

HASTY = Style(  # the hand takes the short path at full speed, without clearance, and drops the object
    clearance_m=0.0, corner_m=0.04, hover_m=0.035, lift_m=0.02, release_m=0.04, cruise=1.0, final=0.8, dwell_steps=6
)

STYLES: Mapping[str, Style] = MappingProxyType({"careful": CAREFUL, "hasty": HASTY})


STILL = (*[0.0] * 6, OPEN)
Move = Generator[Action, Observation, None]  # yields actions, and receives the observation after each action
OPEN_M, CLOSED_M = 0.039, 0.0  # distance of an open or closed finger from the hand's middle
GAIN_PER_M = (8.0, 10.0)  # gain at zero speed, and its increase at full speed; a slow hand overshoots with a high gain
TURN_GAIN = 0.8
UNIT_RAD = 0.5  # the angle [rad] by which an action of 1 rotates the hand
_FINGER_TOLERANCE_M = 0.003  # a finger this close to its target is not moved
_SPACING_M = 0.01  # maximum spacing of the points on a path


@dataclass(frozen=True, slots=True)
class HandTarget:
    """A target of the hand: position [3], yaw, distance of each finger from the hand's middle, and maximum speed."""

    place_m: Floats
    yaw_rad: float
    aperture_m: float
    speed: float


@dataclass(frozen=True, slots=True)
class ClearPath:
    """A path that rises, goes straight across obstacles, and descends. `places_m` [K, 2] are its horizontal points.
    From point `k` on, a hand at the height `height_m[k]` meets no obstacle. The hand cuts corners within `corner_m`.
    """

    places_m: Floats
    height_m: Floats
    corner_m: float

    def next_point(self, goal_m: Floats, hand_m: Floats) -> Floats:
        """Return the next point, [3], to which a hand at `hand_m` moves on its way to `goal_m`."""
        nearest = np.argmin(np.linalg.norm(self.places_m - hand_m[:2], axis=1))
        clear_height_m = float(self.height_m[nearest])
        if np.linalg.norm(goal_m[:2] - hand_m[:2]) < self.corner_m:  # descend
            return goal_m
        if hand_m[2] < clear_height_m - self.corner_m:  # rise
            return np.array([*hand_m[:2], clear_height_m])
        return np.array([*goal_m[:2], clear_height_m])  # go across


class Mover:
    """A robot, with its last observation `seen`. A move starts from this observation and updates it."""

    seen: Observation

    @property
    def scene(self) -> Privileged:
        # Return the simulator's state in the newest observation. `ScriptedPolicy.act` ensures that the state exists.
        assert self.seen.privileged is not None
        return self.seen.privileged

    @property
    def hand_m(self) -> Floats:
        """The position of the hand in the world frame, [3] m."""
        return self.seen.eef_pos_m


class FixedArm(Mover):
    """An arm on a fixed base, with the hand's last target. Moves yield actions [7] and receive observations."""

    def __init__(self, seen: Observation, style: Style) -> None:
        # `seen` is the newest observation, which each move updates; `style` holds speeds and clearances.
        self.seen, self.style = seen, style
        self.target: HandTarget | None = None  # the last target; None before the first move

    def plan_path(self, rig: Prisms, end_m: Floats, obstacles: Prisms) -> ClearPath:
        """Return a path from the hand to `end_m` [3] that keeps the style's clearance between `rig` and `obstacles`."""
        # `rig` are the prisms of the hand and its load around the origin; `obstacles` are in the world frame.
        clearance_m = self.style.clearance_m
        way_m = end_m[:2] - self.hand_m[:2]
        # Points of the horizontal line to the end, [K, 2], with at most `_SPACING_M` between them.
        shares = np.linspace(0.0, 1.0, 2 + int(np.linalg.norm(way_m) / _SPACING_M))[:, None]
        places_m = self.hand_m[:2] + shares * way_m
        lowest_m = lowest_heights(rig, places_m, obstacles, clearance_m, clearance_m)
        # For each point, the greatest height needed from this point to the end: a running maximum, from the end back.
        clear_m = np.maximum.accumulate(np.maximum(lowest_m, end_m[2])[::-1])[::-1]
        return ClearPath(places_m, clear_m, self.style.corner_m)

    def reach(
        self,
        target: HandTarget,
        most_steps: int,
        near_m: float,
        *,
        height_m: float = np.inf,
        turn_rad: float = np.inf,
        path: ClearPath | None = None,
    ) -> Generator[Action, Observation, bool]:
        """Move the hand to a target, along `path` if there is one. Stop after `most_steps` + 1 steps, or when distance,
        vertical distance and angle are below `near_m`, `height_m` and `turn_rad`. Return whether all steps ran.
        """
        # Yields actions [7], and receives observations. If all steps run, the hand is probably blocked.
        self.target = target
        for step in range(most_steps + 1):
            # The intermediate point changes only the position; yaw, fingers and speed are those of the target.
            point_m = path.next_point(target.place_m, self.hand_m) if path else target.place_m
            self.seen = yield steer_hand(replace(target, place_m=point_m), self.seen)
            gap_m = target.place_m - self.hand_m
            remaining_rad = remaining_turn(self.seen.eef_quat_wxyz, target.yaw_rad)
            if np.linalg.norm(gap_m) < near_m and abs(gap_m[2]) < height_m and np.linalg.norm(remaining_rad) < turn_rad:
                return step == most_steps
        return True

    def keep_target(self) -> Move:
        """Move the hand towards its last target for one step; without a target, hold still for one step."""
        self.seen = yield np.array(STILL) if self.target is None else steer_hand(self.target, self.seen)


def steer_hand(target: HandTarget, seen: Observation) -> Action:
    """Return the action [7] towards `target`. The action is proportional to the distance, up to the target's speed."""
    # `GAIN_PER_M` contains the gain at speed 0, and the increase up to speed 1.
    # A slow hand would overshoot with a high gain.
    gain = GAIN_PER_M[0] + target.speed * GAIN_PER_M[1]
    # Commands and speeds have the same unit: 1 is the largest commanded motion.
    move_command = gain * (target.place_m - seen.eef_pos_m)
    length = float(np.linalg.norm(move_command))
    move_command = move_command * min(1.0, target.speed / length) if length > 0 else move_command
    remaining_rad = remaining_turn(seen.eef_quat_wxyz, target.yaw_rad)
    turn_command = np.clip(TURN_GAIN * remaining_rad / UNIT_RAD, -target.speed, target.speed)
    return np.concatenate([move_command, turn_command, [_gripper_command(target.aperture_m, seen.gripper_qpos)]])


def _gripper_command(aperture_m: float, gripper_qpos: NDArray[np.float64]) -> float:
    # Return `CLOSE`, `OPEN`, or 0 (hold still) to move each finger to the distance `aperture_m` from the hand's middle.
    # `gripper_qpos` are the fingers' positions [m]; their signs differ.
    if aperture_m == CLOSED_M:  # also press on an object between the fingers
        return CLOSE
    excess_m = float(np.abs(gripper_qpos).mean()) - aperture_m
    if abs(excess_m) <= _FINGER_TOLERANCE_M:
        return 0.0
    return CLOSE if excess_m > 0 else OPEN
