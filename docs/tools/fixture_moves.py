"""Moves of fixtures that the built-in scripts no longer make: turn a stove's knob, push in a drawer, grasp by a piece.

For `docs/tools/phases.py`, which needs policies that finish composite tasks of LIBERO. A stroke is a list of waypoints
of the hand; a hand that leans has its fingers ahead of its wrist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Action, Observation, Privileged
from safevla_bench.policies.scripted import ScriptedPolicy, kitchen, motion, placement
from safevla_bench.policies.scripted.motion import (
    CLOSED_M,
    DIRECTIONS,
    OPPOSITE,
    Arm,
    Floats,
    HandTarget,
    Prisms,
    Style,
)

ON_RAD, STEP_RAD = 1.5, 0.3
LEAN_RAD = 0.8
FINGER_M, ROOM_M, TIP_M = 0.013, 0.012, 0.010  # half the closed fingers; distance from the knob; tips below the site
OUT_M, PAST_M, HIGH_M, UP_M = 0.16, 0.015, 0.12, 0.06
AT_M, FACING_RAD = 0.012, 0.1
FIRST_STEPS, NEXT_STEPS = 90, 45
LEAN_SHARE = 0.5  # of the speed of turning, while the hand leans
ATTEMPTS = 3


class FixtureMoves(ScriptedPolicy):
    """The script of one style for goals that also turn a knob or close a drawer."""

    def __init__(self, style: str) -> None:
        super().__init__(motion.STYLES[style], kitchen.STYLES[style])

    def act(self, observation: Observation) -> Action:
        """Return the next action, [7]."""
        assert observation.privileged is not None
        if self._script is not None:
            return self._script.send(observation)
        self._script = follow_goal(observation, self.style)
        return next(self._script)


def follow_goal(seen: Observation, style: Style) -> motion.Move:
    """Turn on, place, close, in this order; then hold the hand at its last target."""
    arm = Arm(seen, style)
    goals = sorted(arm.scene.goal, key=lambda goal: ("turnon", "on", "in", "close").index(goal[0]))
    for verb, name, *place in goals:
        if verb == "turnon":
            yield from follow(arm, turn_knob(arm.scene, name, motion.nearest_yaw(arm.seen.eef_quat_wxyz), style))
        elif verb == "close":
            yield from follow(arm, push_drawer(arm.scene, name, motion.nearest_yaw(arm.seen.eef_quat_wxyz), style))
        else:
            attempt = -1
            while attempt < ATTEMPTS and not is_placed(arm.scene, name, place[0]):
                attempt = yield from placement.place_object(arm, placement.Placement(name, place[0]), attempt + 1)
    while True:
        yield from arm.keep_target()


def is_placed(scene: Privileged, body: str, place: str) -> bool:
    """Return whether an object's middle is at its place, seen from above."""
    offset = motion.box_center(scene, body)[:2] - placement.target_point(scene, place)
    return bool(np.linalg.norm(offset) < 0.05)


# Grasps of an object's pieces, such as a wall or a handle


def rank_grasps(
    scene: Privileged, name: str, obstacles: Prisms, yaw_rad: float, clearance_m: float
) -> tuple[placement.Grasp, ...]:
    """Return the grasps of a body, and those of its pieces if all of the body itself are too shallow."""
    ranked = rank_box_grasps(scene, name, obstacles, yaw_rad, clearance_m)
    if any(grasp.blocked_m[0] <= placement.DEPTH_M - placement.LEAST_DEPTH_M for grasp in ranked):
        return ranked
    itself = motion.body_prisms(scene, name) if name in scene.pieces else motion.NOTHING
    raised = (
        placement._raise_to_fit(grasp, itself, obstacles, clearance_m) for grasp in piece_grasps(scene, name, yaw_rad)
    )
    return tuple(sorted([*ranked, *raised], key=lambda grasp: placement._grasp_cost(grasp, yaw_rad)))


def piece_grasps(scene: Privileged, name: str, yaw_rad: float) -> Iterator[placement.Grasp]:
    """Yield the grasps of a body's pieces that fit between the fingers."""
    boxes, turn, home = scene.pieces[name], motion.box_axes(scene, name), scene.body_pos_m[name]
    middle = motion.box_center(scene, name)
    for local, half, quat in zip(boxes.center_m, boxes.half_extents_m, boxes.quat_wxyz, strict=True):
        axes = turn @ motion.rotation_axes(quat)
        up = int(np.argmax(np.abs(axes[2])))
        center, flat = home + turn @ local, [axis for axis in range(3) if axis != up]
        sides = [axes[:, axis] * half[axis] for axis in flat]
        for k in (0, 1):
            if half[flat[k]] <= placement.WIDEST_HALF_M and 2 * half[up] >= 0.017:
                for grasp in placement._side_grasps(center, sides[k], sides[1 - k], float(half[up]), yaw_rad):
                    off = float(np.linalg.norm((grasp.place_m - middle)[:2]))
                    yield replace(grasp, off_m=grasp.off_m + off)


rank_box_grasps = placement.rank_grasps
placement.rank_grasps = rank_grasps


# Strokes


@dataclass(frozen=True, slots=True)
class Waypoint:
    """A target of the hand, and its lean [3], a rotation vector on top of the downward hand."""

    target: HandTarget
    lean: Floats


def turn_knob(scene: Privileged, fixture: str, yaw_rad: float, style: Style) -> list[Waypoint]:
    """Return waypoints that push an end of the knob's bar round its axis, counter-clockwise, the hand turning too."""
    body = min(own_bodies(scene, fixture), key=lambda name: float(np.prod(scene.half_extents_m[name])))
    outline, axis = motion.body_prisms(scene, body), scene.body_pos_m[body][:2]
    top, low = float(outline.top_m.max()), float(outline.low_m.min())
    bar = select(outline, outline.top_m > top - (top - low) / 4).hull()
    width = bar.reach_m[0] + bar.reach_m[0, OPPOSITE]
    across = DIRECTIONS[int(np.argmin(width))]
    side = across if across @ turned(placement.ARM_M - axis, -np.pi / 2) > 0 else -across
    long = turned(side, -np.pi / 2)
    end, half = float(reach(bar, long) - long @ axis), float(width.min()) / 2
    yaw = motion.yaw_to_open_along(long, yaw_rad)
    arm = 0.9 * end * long - (half + FINGER_M + ROOM_M) * side
    rig, around = motion.hand_prisms(yaw, CLOSED_M), motion.obstacles_except(scene)
    height = float(motion.lowest_heights(rig, (axis + arm)[None], around, 0.0, 0.003)[0])
    angles = np.arange(0.0, ON_RAD, STEP_RAD)
    places = [np.array([*(axis + turned(arm, angle)), height]) for angle in angles]
    targets = [HandTarget(place, yaw + a, CLOSED_M, style.final) for place, a in zip(places, angles, strict=True)]
    above = replace(targets[0], place_m=places[0] + [0.0, 0.0, style.hover_m], speed=style.cruise)
    return [Waypoint(target, np.zeros(3)) for target in (above, *targets)]


def push_drawer(scene: Privileged, region: str, yaw_rad: float, style: Style) -> list[Waypoint]:
    """Return waypoints that push a drawer by its handle, the fingers ahead, until it is shut, and back half way."""
    site = scene.sites_m[region]
    around = [name for name in own_bodies(scene, region) if is_inside(scene, name, site)]
    outline = motion.body_prisms(scene, min(around, key=lambda name: float(np.prod(scene.half_extents_m[name]))))
    off = np.array([(reach(outline, unit) - reach(outline, -unit)) / 2 for unit in np.eye(2)]) - site[:2]
    outward = np.where(np.abs(off) == np.abs(off).max(), np.sign(off), 0.0)
    ends = outline.reach_m[:, int(np.argmax(DIRECTIONS @ outward))]
    handle = select(outline, ends == ends.max())
    tip = np.array([*(site[:2] - (site[:2] @ outward) * outward), float(handle.low_m[0] + handle.top_m[0]) / 2])
    tip[:2] += reach(handle, outward) * outward
    tip += TIP_M * np.array([*(np.sin(LEAN_RAD) * outward), np.cos(LEAN_RAD)])
    inward = -outward
    start, end = tip - [*(0.02 * inward), 0.0], tip + [*((OUT_M + PAST_M) * inward), 0.0]
    lean = LEAN_RAD * np.array([inward[1], -inward[0], 0.0])
    yaw = motion.yaw_to_open_along(turned(inward, np.pi / 2), yaw_rad)
    targets = [HandTarget(start + share * (end - start), yaw, CLOSED_M, style.final) for share in SHARES]
    above = replace(targets[0], place_m=start + [0.0, 0.0, HIGH_M], speed=style.cruise)
    return [Waypoint(target, lean) for target in (above, *targets)]


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 0.5)


def follow(arm: Arm, waypoints: list[Waypoint]) -> motion.Move:
    """Go over everything to the first waypoint, from there to each, and up from the last."""
    first, last = waypoints[0], waypoints[-1]
    path = arm.plan_path(motion.hand_prisms(first.target.yaw_rad, motion.OPEN_M), first.target.place_m,
                         motion.obstacles_except(arm.scene))  # fmt: skip
    yield from reach_leaning(arm, first, FIRST_STEPS, path)
    for waypoint in waypoints[1:]:
        yield from reach_leaning(arm, waypoint, NEXT_STEPS)
    up = replace(last.target, place_m=last.target.place_m + [0.0, 0.0, UP_M], speed=arm.style.cruise)
    yield from reach_leaning(arm, Waypoint(up, last.lean), NEXT_STEPS)
    yield from reach_leaning(arm, Waypoint(up, np.zeros(3)), NEXT_STEPS)


def reach_leaning(arm: Arm, waypoint: Waypoint, most_steps: int, path: motion.ClearPath | None = None) -> motion.Move:
    """Move the hand to a waypoint, like `Arm.reach`."""
    goal = arm.target = waypoint.target
    for _ in range(most_steps):
        place = path.next_point(goal.place_m, arm.hand_m) if path else goal.place_m
        action = motion.steer_hand(replace(goal, place_m=place), arm.seen)
        wanted = Rotation.from_rotvec(waypoint.lean) * motion.downward_hand(goal.yaw_rad)
        turn = (wanted * motion.to_rotation(arm.seen.eef_quat_wxyz).inv()).as_rotvec()
        most = goal.speed * LEAN_SHARE
        action[3:6] = np.clip(motion.TURN_GAIN * turn / motion.UNIT_RAD, -most, most)
        arm.seen = yield action
        if np.linalg.norm(goal.place_m - arm.hand_m) < AT_M and np.linalg.norm(turn) < FACING_RAD:
            return


# Shapes


def own_bodies(scene: Privileged, name: str) -> Iterator[str]:
    """Return the bodies of the fixture that a goal names, by itself or by a region."""
    stem = "_".join(name.split("_")[: 1 + next(k for k, word in enumerate(name.split("_")) if word.isdigit())])
    return (body for body in scene.half_extents_m if body not in scene.movable and body.startswith(f"{stem}_"))


def is_inside(scene: Privileged, body: str, point_m: Floats) -> bool:
    """Return whether a point is inside a body's box."""
    local = motion.box_axes(scene, body).T @ (point_m - scene.body_pos_m[body]) - scene.center_m[body]
    return bool((np.abs(local) <= scene.half_extents_m[body]).all())


def turned(vector: Floats, angle_rad: float) -> Floats:
    """Return a vector [2] rotated counter-clockwise."""
    return np.asarray(Rotation.from_rotvec([0.0, 0.0, angle_rad]).apply([*vector, 0.0])[:2])


def select(outline: Prisms, chosen: np.ndarray) -> Prisms:
    """Return the prisms where the mask is true."""
    return Prisms(outline.reach_m[chosen], outline.low_m[chosen], outline.top_m[chosen])


def reach(outline: Prisms, unit: Floats) -> float:
    """Return how far prisms extend along a unit vector [2]."""
    return float(outline.reach_m[:, int(np.argmax(DIRECTIONS @ unit))].max())
