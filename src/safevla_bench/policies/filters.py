"""Action filters: what changes a policy's action before the simulator gets it.

A filter sees the observation, the policy's action [A] and the standing of the episode, and returns the action that is
executed. It wraps the environment, so that the loop, the policy and its timing are as without it. The record holds what
was executed as `action`, and the policy's own as `policy_action` where any action was changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import InvalidActionError, PolicyError
from safevla_bench.interface.environment import Coordinated, HostEnv, SelectiveEnv
from safevla_bench.interface.policy import Action, Boxes, Observation, Privileged, check_action
from safevla_bench.interface.task import Coordinate, EpisodeSeed, Task
from safevla_bench.judging.monitor import EpisodeStanding, Monitor, newest_record
from safevla_bench.policies.python import make_object
from safevla_bench.policies.scripted.geometry import rotation_axes, to_rotation
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import PRIVILEGED
from safevla_bench.trajectory.single_episode import add_rows
from safevla_recorder.channels import POLICY_ACTION
from safevla_recorder.episode import add_header_mark

Floats = NDArray[np.float64]
_PYTHON = "python"
_PROJECTIONS, _TOUCHING_M = 30, 1e-9
_FORM = "Write python:module:Class, or python:module:Class:KEY=VALUE, of a class with filter(observation, ...)."


class ActionFilter(Protocol):
    """A filter; the attributes and `reset` of `FilterBase` are optional."""

    def filter(self, observation: Observation, action: Action, monitor: EpisodeStanding) -> Action:
        """Return the action to execute, [A], within the host's bounds; `action` itself to leave it.

        `monitor.margins` are those of the newest record over their limits: 0 at the limit, negative beyond it.
        """


class FilterBase:
    """What a filter may say of itself, with the values that one without it has."""

    privileged: ClassVar[bool] = False
    """It reads `observation.privileged`; records and outputs mark its policy as privileged."""
    reads_margins: ClassVar[bool] = True
    """It reads the monitor; else it is given None and nothing is judged while the episode runs."""
    takes_poses: ClassVar[bool] = True
    """It can change actions that are poses in the world."""

    def reset(self, task: Task, seed: int) -> None:
        """Prepare for an episode; `seed` is the environment's."""


class Identity(FilterBase):
    """Leaves every action as it is."""

    reads_margins = False

    def filter(self, observation: Observation, action: Action, monitor: object) -> Action:
        return action


class _OfMotion(FilterBase):
    """A filter that must know which numbers of an action move: those that are 0 where nothing moves."""

    takes_poses = False
    _still: Action

    def reset(self, task: Task, seed: int) -> None:
        self._still = np.array(task.still)


@dataclass
class SpeedCap(_OfMotion):
    """Shrinks a motion, its direction kept, until no number of it is larger than `share` of full scale."""

    reads_margins = False
    share: float = 0.5

    def filter(self, observation: Observation, action: Action, monitor: object) -> Action:
        moves = self._still == 0
        largest = float(np.abs(action[moves]).max(initial=0.0))
        return np.where(moves, action * (self.share / largest), action) if largest > self.share else action


@dataclass
class StopNearLimit(_OfMotion):
    """Holds while the newest record leaves less than `share` of any limit; the gripper stays the policy's."""

    share: float = 0.1

    def filter(self, observation: Observation, action: Action, monitor: EpisodeStanding) -> Action:
        return hold(self._still, action) if monitor.limit_use > 1 - self.share else action


@dataclass
class DistanceBarrier(_OfMotion):
    """A control barrier function on the boxes of the hand and of bystanders: movable bodies not in the goal.

    Of h = distance of a piece of the hand to a bystander - `margin_m`, the least change of the motion d [m] with
    n·d >= -`gain` h for the normal n from bystander to hand of each pair (Ames et al. 2019, eq. 13, for a single
    integrator). Turns are left alone. `unit_m` is what 1 stands for in x, y and z. On a host that does not give the
    hand's boxes, the end effector is a point.
    """

    privileged = True
    reads_margins = False
    margin_m: float = 0.02
    gain: float = 0.3
    unit_m: float = 0.05

    def filter(self, observation: Observation, action: Action, monitor: object) -> Action:
        truth = observation.privileged
        if truth is None:
            raise PolicyError("distance-barrier needs the poses of bodies, which this host does not give")
        hand = truth.hand or Boxes(observation.eef_pos_m[None], np.zeros((1, 3)), np.array([[1.0, 0.0, 0.0, 0.0]]))
        bystanders = sorted(truth.movable - {name for predicate in truth.goal for name in predicate})
        if not bystanders:
            return action
        gaps_m, normals = measure_gaps(hand, _place_boxes(truth, bystanders))
        move = before = action[:3] * self.unit_m
        for _ in range(3):  # cyclic projections on the half-spaces
            for gap_m, normal in zip(gaps_m, normals, strict=True):
                lack = -self.gain * (gap_m - self.margin_m) - float(normal @ move)
                move = move + max(0.0, lack) * normal
        if np.array_equal(move, before):
            return action
        return np.concatenate([np.clip(move / self.unit_m, -1, 1), action[3:]])


def _place_boxes(truth: Privileged, names: Sequence[str]) -> Boxes:
    """Return the boxes of bodies, one or more, in the world frame."""
    center_m, half_extents_m, quat_wxyz, pos_m = (
        np.array([field[name] for name in names])
        for field in (truth.center_m, truth.half_extents_m, truth.body_quat_wxyz, truth.body_pos_m)
    )
    return Boxes(pos_m + to_rotation(quat_wxyz).apply(center_m), half_extents_m, quat_wxyz)


def measure_gaps(ours: Boxes, others: Boxes) -> tuple[Floats, Floats]:
    """Return for each pair of boxes of two sets, in one frame, their distance [m] and its unit normal towards ours.

    [G], [G, 3], by alternating projections between the two convex sets (Cheney and Goldstein 1959). Boxes that overlap
    have the distance 0 and the direction of their centres.
    """
    mine, theirs = (index.ravel() for index in np.indices((len(ours.center_m), len(others.center_m))))
    point = ours.center_m[mine]
    for _ in range(_PROJECTIONS):
        nearest = _project(point, others, theirs)
        point = _project(nearest, ours, mine)
    apart = point - nearest
    gaps_m = np.linalg.norm(apart, axis=1)
    gaps_m[gaps_m < _TOUCHING_M] = 0.0
    towards = np.where(gaps_m[:, None] > 0, apart, ours.center_m[mine] - others.center_m[theirs])
    return gaps_m, towards / np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), _TOUCHING_M)


def _project(points: Floats, boxes: Boxes, chosen: NDArray[np.intp]) -> Floats:
    centers, turns = boxes.center_m[chosen], rotation_axes(boxes.quat_wxyz)[chosen]
    local = np.einsum("gij,gi->gj", turns, points - centers)
    halves = boxes.half_extents_m[chosen]
    nearest: Floats = centers + np.einsum("gij,gj->gi", turns, np.clip(local, -halves, halves))
    return nearest


def hold(still: Action, action: Action) -> Action:
    """Return the action that moves nothing; numbers that are not 0 in the still action, such as the gripper's, stay."""
    return np.where(still == 0, still, action)


FILTERS: Mapping[str, type[Any]] = {
    "identity": Identity,
    "speed-cap": SpeedCap,
    "stop-near-limit": StopNearLimit,
    "distance-barrier": DistanceBarrier,
}


def split_filter(text: str) -> tuple[str, dict[str, str]]:
    """Return name and arguments of `NAME[:KEY=VALUE]...`, where NAME may be `python:module:Class`."""
    name, *parts = text.split(":")
    pairs = [part.partition("=") for part in parts if "=" in part]
    return ":".join([name, *(part for part in parts if "=" not in part)]), {key: value for key, _, value in pairs}


def runs_code(text: str) -> bool:
    """Return whether making the filter runs code that is not ours."""
    return text.partition(":")[0] == _PYTHON


def make_filter(text: str) -> Any:
    """Return the filter of a text; raises `PolicyError` for an unknown one, and for wrong arguments."""
    name, arguments = split_filter(text)
    if runs_code(name):
        return make_object(name.partition(":")[2], arguments, "filter", _FORM)
    if name not in FILTERS:
        remedy = f"There are {', '.join(FILTERS)}, and python:module:Class; POLICY=FILTER is for a policy of the run."
        raise PolicyError(f"there is no filter {name!r}", remedy=remedy)
    made = FILTERS[name]
    known = [field.name for field in fields(made)] if is_dataclass(made) else []
    numbers = {key: _read_number(name, key, value, known) for key, value in arguments.items()}
    return made(**numbers)


def _read_number(name: str, key: str, text: str, known: list[str]) -> float:
    if key not in known:
        raise PolicyError(f"the filter {name} has no {key!r}", remedy=f"It has {', '.join(known) or 'no arguments'}.")
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not 0 < number < np.inf:
        raise PolicyError(f"{key}={text} of the filter {name} is not a number above 0", remedy="Write such a number.")
    return number


class FilteredEnv:
    """An environment behind a filter: what it is asked to do goes through the filter first."""

    def __init__(self, env: HostEnv, name: str, action_filter: Any, monitor: Monitor | None, *, hides: bool) -> None:
        """Wrap an environment.

        Args:
            env: the host's.
            name: of the filter, in errors.
            action_filter: an `ActionFilter`.
            monitor: gives the filter its margins; None for a filter that reads none.
            hides: the policy does not want simulator state that only the filter reads.
        """
        self.task, self.dt_s, self.action_low, self.action_high = env.task, env.dt_s, env.action_low, env.action_high
        self._env, self._name, self._filter, self._monitor, self._hides = env, name, action_filter, monitor, hides

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Begin an episode of environment and filter; the monitor begins with record 0."""
        self._own: list[Action] = []
        self._has_changed = False
        self._seen = self._env.reset(seed)
        if hasattr(self._filter, "reset"):
            self._filter.reset(self.task, seed.env_seed)
        self._standing = self._monitor.start(newest_record(self._env)) if self._monitor else None
        return self._show()

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Execute what the filter makes of a valid action; `PolicyError` for a filter that gives an invalid one."""
        executed = self._check(self._filter.filter(self._seen, action.copy(), self._standing))
        is_changed = not np.array_equal(executed, action)
        self._seen, success = self._env.step(executed if is_changed else action)
        self._own.append(action)
        self._has_changed |= is_changed
        if self._monitor:
            self._standing = self._monitor.observe(newest_record(self._env))
        return self._show(), success

    def recorded(self) -> Batch:
        """Return the record of what was executed, with the policy's own actions if any was changed."""
        batch = self._env.recorded()
        if getattr(self._filter, "privileged", False):
            batch = replace(batch, extra=(add_header_mark(batch.extra[0], PRIVILEGED),))
        return add_rows(batch, POLICY_ACTION, np.stack(self._own)) if self._has_changed else batch

    def latest(self) -> Batch:
        """Return the newest record alone."""
        return newest_record(self._env)

    def coordinates(self) -> tuple[Coordinate, ...]:
        return self._env.coordinates() if isinstance(self._env, Coordinated) else ()

    def render_next(self, wanted: bool) -> None:
        if isinstance(self._env, SelectiveEnv):
            self._env.render_next(wanted)

    def close(self) -> None:
        self._env.close()

    def _show(self) -> Observation:
        return replace(self._seen, privileged=None) if self._hides else self._seen

    def _check(self, action: object) -> Action:
        try:
            checked = check_action(action, self.action_low.size)
        except InvalidActionError as error:
            raise PolicyError(f"the filter {self._name} gives {error.problem}", remedy="Mend the filter.") from None
        if (checked < self.action_low).any() or (checked > self.action_high).any():
            raise PolicyError(f"the filter {self._name} gives an action out of range", remedy="Clip it there.")
        return checked
