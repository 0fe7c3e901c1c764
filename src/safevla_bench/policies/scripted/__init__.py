"""`scripted:careful` and `scripted:hasty`: a fixed script for the goal, from privileged state.

The goal's predicates give subgoals, one after another (`plan`). An object is carried: its size says how to hold it, the
shapes of everything how low the path may be (`geometry`), and both where the hand should be now (`placement`). A part
of a fixture is pushed, pulled or turned by a stroke of the hand through waypoints. The script reads no
specification and no threshold. A robot that drives has scripts of its own (`kitchen`).

It cannot reach a place under a roof, such as a microwave's inside, because an object is held from above; nor hold what
is both wide and flat, such as a plate, because the fingers fit nowhere. It then reaches the other subgoals and holds
still.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Action, Observation, Privileged, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.scripted import geometry, kitchen, placement, plan
from safevla_bench.policies.scripted.geometry import Floats, nearest_yaw
from safevla_bench.policies.scripted.placement import Arm, HandTarget, Move
from safevla_bench.policies.scripted.plan import Door, Drawer, FixtureGoal, Knob, Style, Subgoal, rotate_planar


def make(arg: str | None) -> ScriptedPolicy:
    """Return the policy in the style that follows the colon; `PolicyError` without a style, or for an unknown one."""
    if arg is None or arg not in plan.STYLES:
        problem = "policy 'scripted' needs a style" if arg is None else f"policy 'scripted' has no style {arg!r}"
        raise PolicyError(problem, remedy=f"Write one of: {', '.join(f'scripted:{name}' for name in plan.STYLES)}.")
    return ScriptedPolicy(plan.STYLES[arg], kitchen.STYLES[arg])


class ScriptedPolicy:
    """A policy that follows the goal's script in one style; it draws nothing, so the seed changes nothing."""

    wants = Wants(privileged=True)

    def __init__(self, style: Style, mobile_style: kitchen.MobileStyle) -> None:
        self.style, self.mobile_style = style, mobile_style
        self._script: Move | None = None
        self._still: tuple[float, ...] = placement.STILL

    def reset(self, task: Task, seed: int) -> None:
        self._script, self._still = None, task.still

    def act(self, observation: Observation) -> Action:
        """Return the next action, [7], or [12] of a robot that drives.

        Raises `PolicyError` for an observation without privileged state.
        """
        if observation.privileged is None:
            raise PolicyError("policy 'scripted' needs privileged state", remedy="Use a host that gives it.")
        if self._script is not None:
            return self._script.send(observation)
        if observation.base_pos_m is None:
            self._script = follow_goal(observation, self.style)
        else:
            self._script = kitchen.follow_goal(observation, self.mobile_style, self._still)
        return next(self._script)

    def close(self) -> None:
        """Nothing to free."""


def follow_goal(seen: Observation, style: Style) -> Move:
    """Reach one subgoal after another, and then hold the hand at its last target, or still if none could be begun.

    A subgoal that is over and not reached is begun again as a further attempt.
    """
    arm = Arm(seen, style)
    tried: Subgoal | None = None
    attempt = 0
    while True:
        for subgoal in plan.remaining_subgoals(arm.scene):
            if isinstance(subgoal, FixtureGoal):
                waypoints = plan_stroke(arm.scene, subgoal, nearest_yaw(arm.seen.eef_quat_wxyz), style)
                if not waypoints:
                    continue
                yield from follow_waypoints(arm, waypoints)
            elif placement.is_graspable(arm.scene, subgoal.body):
                attempt = yield from placement.place_object(arm, subgoal, attempt + 1 if subgoal == tried else 0)
            else:
                continue
            tried = subgoal
            break
        else:
            yield from arm.keep_target()


# Strokes that move knobs, doors and drawers: waypoints through which the hand goes one after another. The fingers are
# closed but where a handle is held. A hand that leans has its fingers ahead of its wrist.


_ON_RAD = 1.5
"""Angle of the hand's path round a knob; it lags and slips, and a knob is on long before."""
_STEP_RAD = 0.15
_KNOB_REACH = 0.9
"""Place at which a knob's bar is pushed, as a share of its length from the axis."""
_DOOR_REACH = 1.5
"""Place at which a door is pushed, in halves of its panel from the hinge."""
_ROOM_M = 0.012
"""Between the fingers and what they will push, when they come down beside it."""
_FINGER_M = 0.013
"""Half the thickness of the closed fingers, across the direction in which they open."""
_TIP_M = 0.010
"""Distance of the fingertips below the grip site."""
_OVERLAP_M = 0.02
"""Depth of the fingertips below the top of what they push."""
LEAN_RAD, LEVEL_RAD = 0.8, 1.4
"""Lean of the hand to push a handle, its own edge behind the fingertips, and to hold one from the front."""
PULLED_M = {"open": 0.17, "ajar": 0.135}
"""Travel of a drawn drawer: all the way, or so that an object beside it stays within reach from above."""
_HIGH_M = 0.12
"""Over its start before a handle: room for the hand to lean."""
_BACK_M = 0.06
"""In front of a handle, before it is taken and after it is let go."""
_PAST_M = 0.015
"""Travel beyond closed of a pushed drawer or door: the arm gives way."""
_AT_M, _FACING_RAD = 0.012, 0.1
_TIMEOUT_STEPS, _FIRST_TIMEOUT_STEPS = 45, 90
"""Steps after which the hand goes on to the next waypoint even if something is in its way."""
_UP_M = 0.06


def turn_knob(scene: Privileged, knob: Knob, yaw_rad: float, style: Style) -> tuple[HandTarget, ...]:
    """Return waypoints that push an end of the knob's bar round its axis, counter-clockwise, the hand turning too."""
    bar = knob.bar.hull()
    width = bar.reach_m[0] + bar.reach_m[0, geometry.OPPOSITE]
    across = geometry.DIRECTIONS[int(np.argmin(width))]
    side = across if across @ rotate_planar(placement.ARM_M - knob.axis_m, -np.pi / 2) > 0 else -across
    long = rotate_planar(side, -np.pi / 2)
    end_m, half = float(bar.reach_m[0, geometry.nearest_direction(long)] - long @ knob.axis_m), float(width.min()) / 2
    yaw = geometry.yaw_to_open_along(long, yaw_rad)
    start = knob.axis_m + _KNOB_REACH * end_m * long - (half + _FINGER_M + _ROOM_M) * side
    rig, around = geometry.hand_prisms(yaw, placement.CLOSED_M), geometry.obstacles_except(scene)
    height = float(geometry.lowest_heights(rig, start[None, :2], around, 0.0, 0.003)[0])
    angles = np.arange(0.0, _ON_RAD, 2 * _STEP_RAD)
    arm = start - knob.axis_m
    places = [np.array([*(knob.axis_m + rotate_planar(arm, angle)), height]) for angle in angles]
    round_ = [HandTarget(*goal, placement.CLOSED_M, style.final) for goal in zip(places, yaw + angles, strict=True)]
    return (_hover_above(round_[0], style), *round_)


def shut_door(scene: Privileged, door: Door, yaw_rad: float, style: Style) -> tuple[HandTarget, ...]:
    """Return waypoints that push the panel's far half round its hinge, a little beyond shut."""
    middle, half = geometry.planar_extent(door.panel)
    arm = _DOOR_REACH * (middle - door.hinge_m)
    ahead = rotate_planar(arm / np.linalg.norm(arm), np.copysign(np.pi / 2, door.shut_rad))
    thick = abs(float(half @ np.abs(ahead)))
    start = door.hinge_m + arm - (thick + _FINGER_M + 0.02) * ahead
    yaw = geometry.yaw_to_open_along(arm, yaw_rad)
    height = float(door.panel.top_m.max()) - _OVERLAP_M + _TIP_M
    past = np.copysign(4 * _PAST_M / np.linalg.norm(arm), door.shut_rad)
    count = 2 + int(abs(door.shut_rad) / _STEP_RAD)
    angles = np.linspace(0.0, door.shut_rad + past, count)
    places = [np.array([*(door.hinge_m + rotate_planar(start - door.hinge_m, angle)), height]) for angle in angles]
    round_ = [HandTarget(place, yaw, placement.CLOSED_M, style.final) for place in places]
    return (_hover_above(round_[0], style), *round_)


def push_drawer(drawer: Drawer, yaw_rad: float, style: Style) -> tuple[HandTarget, ...]:
    """Return waypoints that push the drawer by its handle, the fingers ahead, until it is shut, and back half way."""
    inward = -drawer.outward
    yaw = geometry.yaw_to_open_along(rotate_planar(inward, np.pi / 2), yaw_rad)
    middle, half = geometry.planar_extent(drawer.handle)
    tip = np.array([*(middle + half * drawer.outward), float(drawer.handle.low_m[0] + drawer.handle.top_m[0]) / 2])
    handle = tip + _TIP_M * np.array([*(np.sin(LEAN_RAD) * drawer.outward), np.cos(LEAN_RAD)])
    off = handle - [*(0.02 * inward), 0.0]
    end = handle + [*((drawer.out_m + _PAST_M) * inward), 0.0]
    lean = _lean_vector(inward, LEAN_RAD)
    start = HandTarget(off, yaw, placement.CLOSED_M, style.final, lean)
    return (
        replace(start, place_m=off + [0.0, 0.0, _HIGH_M], speed=style.cruise),
        start,
        *(replace(start, place_m=off + share * (end - off)) for share in (0.25, 0.5, 0.75, 1.0, 0.5)),
    )


def pull_drawer(drawer: Drawer, out_m: float, yaw_rad: float, style: Style) -> tuple[HandTarget, ...]:
    """Return waypoints that take the handle, a finger above and a finger below, pull to `out_m`, and let go."""
    inward = -drawer.outward
    yaw = geometry.yaw_to_open_along(inward, yaw_rad)
    middle = geometry.planar_extent(drawer.handle)[0]
    hold = np.array([*middle, float(drawer.handle.low_m[0] + drawer.handle.top_m[0]) / 2])
    back = np.array([*(_BACK_M * drawer.outward), 0.0])
    pull = np.array([*((out_m - drawer.out_m) * drawer.outward), 0.0])
    ahead = HandTarget(hold + back, yaw, placement.OPEN_M, style.cruise, _lean_vector(inward, LEVEL_RAD))
    taken = replace(ahead, place_m=hold, speed=style.final)
    held = replace(taken, aperture_m=placement.CLOSED_M)
    pulled = replace(held, place_m=hold + pull, speed=max(style.final, 0.6 * style.cruise))
    return (
        replace(ahead, place_m=hold + back + [0.0, 0.0, _HIGH_M]),
        ahead,
        taken,
        replace(held, wait_steps=style.dwell_steps),
        pulled,
        replace(taken, place_m=hold + pull, wait_steps=style.dwell_steps),
        replace(ahead, place_m=hold + pull + back),
    )


def _lean_vector(towards: Floats, angle_rad: float) -> tuple[float, float, float]:
    return (float(angle_rad * towards[1]), float(-angle_rad * towards[0]), 0.0)


def _hover_above(target: HandTarget, style: Style) -> HandTarget:
    return replace(target, place_m=target.place_m + [0.0, 0.0, style.hover_m], speed=style.cruise)


def plan_stroke(scene: Privileged, goal: FixtureGoal, yaw_rad: float, style: Style) -> tuple[HandTarget, ...]:
    """Return the waypoints to a fixture's goal; () if the scene does not show the fixture, or the kind is unknown."""
    match plan.find_fixture(scene, goal):
        case Knob() as knob:
            return turn_knob(scene, knob, yaw_rad, style)
        case Door() as door:
            return shut_door(scene, door, yaw_rad, style)
        case Drawer() as drawer if goal.kind == "close":
            return push_drawer(drawer, yaw_rad, style)
        case Drawer() as drawer:
            return pull_drawer(drawer, PULLED_M[goal.kind], yaw_rad, style)
        case _:
            return ()


def follow_waypoints(arm: Arm, waypoints: tuple[HandTarget, ...]) -> Move:
    """Go over everything to the first waypoint, from there to each, and up from the last, whatever the orientation."""
    first, last = waypoints[0], waypoints[-1]
    rig, everything = geometry.hand_prisms(first.yaw_rad, placement.OPEN_M), geometry.obstacles_except(arm.scene)
    path = arm.plan_path(rig, first.place_m, everything)
    yield from arm.reach(first, _FIRST_TIMEOUT_STEPS, _AT_M, turn_rad=_FACING_RAD, path=path)
    for waypoint in waypoints[1:]:
        yield from arm.reach(waypoint, _TIMEOUT_STEPS, _AT_M, turn_rad=_FACING_RAD)
    up_m = last.place_m + [0.0, 0.0, _UP_M]
    yield from arm.reach(HandTarget(up_m, last.yaw_rad, last.aperture_m, arm.style.cruise), _TIMEOUT_STEPS, _AT_M)
    yield from arm.keep_target()
