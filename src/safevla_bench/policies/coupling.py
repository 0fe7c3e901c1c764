"""Coupling of a policy to the simulator: filters that change its actions, and delays of its answers.

A filter receives the observation, the policy's action [A] and the episode's status, and returns the action to execute.
The filter wraps the environment, so the control loop, the policy and the policy's timing do not change. The record
holds the executed actions as `action`, and the policy's actions as `policy_action` if the filter changed any.

With a delay, the simulation continues while the policy computes. The arm executes the rest of the policy's last chunk,
and then holds still. When the rest of the chunk lasts no longer than the delay, the policy is called with the current
observation. The answer arrives after the delay. If n actions of the last chunk were executed in the meantime, the first
n actions of the answer are skipped, but at least one of its actions is executed.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import InvalidActionError, PolicyError
from safevla_bench.interface import policy as interface
from safevla_bench.interface.environment import HostEnv, HostSupport
from safevla_bench.interface.policy import Action, Boxes, Observation, Policy, Privileged, Wants
from safevla_bench.interface.task import Coordinate, EpisodeSeed, Task
from safevla_bench.judging.monitor import EpisodeStanding, Monitor
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.plugins import format_call, refuse_secrets
from safevla_bench.policies.python import make_object
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import DELAY, PRIVILEGED
from safevla_bench.trajectory.single_episode import add_rows
from safevla_recorder.channels import POLICY_ACTION
from safevla_recorder.episode import Floats, add_header_mark

MEASURED = "measured"
_PYTHON = "python"
_PROJECTIONS, _TOUCHING_M = 30, 1e-9  # iterations of `measure_gaps`; boxes closer than `_TOUCHING_M` touch
_SYNTAX = "Write `python:module:Class` or `python:module:Class:KEY=VALUE`; the class needs `filter(observation, ...)`."


class FilterBase:
    """Base class of filters, with all optional attributes. A filter without this base needs only a method `filter`."""

    privileged: ClassVar[bool] = False  # whether the filter reads `observation.privileged`; if so, records are marked
    reads_margins: ClassVar[bool] = True  # if false, `filter` gets None as its argument `monitor`
    takes_poses: ClassVar[bool] = True  # whether the filter can change actions that are poses in the world frame

    def reset(self, task: Task, seed: int) -> None:
        """Prepare for an episode; `seed` is the environment's seed."""
        # By default, there is nothing to prepare.

    def filter(self, observation: Observation, action: Action, monitor: EpisodeStanding) -> Action:
        """Return the action to execute, [A], within the host's bounds; return `action` for no change. `monitor.margins`
        holds the newest record's margins as fractions of the limits: 0 at the limit, negative beyond it.
        """
        # By default, the action is unchanged. `monitor` is None if `reads_margins` is false.
        return action


class Identity(FilterBase):
    """A filter that changes no action."""

    reads_margins = False


class _MotionFilter(FilterBase):
    """Base class of filters that change only motion: the numbers that are 0 in the action for holding still."""

    takes_poses = False
    _still: Action

    def reset(self, task: Task, seed: int) -> None:
        # Store the host's action for holding still, [A]. Its zeros are at the indices that command motion.
        self._still = np.array(task.still)


@dataclass
class SpeedCap(_MotionFilter):
    """A filter that scales the motion so that no number's absolute value exceeds `share`. The direction is kept."""

    reads_margins = False
    share: float = 0.5

    def filter(self, observation: Observation, action: Action, monitor: EpisodeStanding) -> Action:
        # Return the action with its motion scaled, so that no number of the motion exceeds `share` in absolute value.
        # `monitor` is None, because this filter reads no margins.
        is_motion = self._still == 0  # other numbers, such as the gripper's command, are not scaled
        largest = float(np.abs(action[is_motion]).max(initial=0.0))  # 0 if no number commands motion
        return np.where(is_motion, action * (self.share / largest), action) if largest > self.share else action


@dataclass
class StopNearLimit(_MotionFilter):
    """A filter that stops the arm, but not the gripper, while the margin to a limit is below `share` of the limit."""

    share: float = 0.1

    def filter(self, observation: Observation, action: Action, monitor: EpisodeStanding) -> Action:
        # Return the action without motion while a specification's margin is below `share` of its limit.
        # `limit_use` is 1 minus the newest record's smallest margin. A margin is a fraction of its limit.
        return hold(self._still, action) if monitor.limit_use > 1 - self.share else action


@dataclass
class DistanceBarrier(_MotionFilter):
    """A control barrier function that keeps the hand away from bystanders: movable bodies that are not in the goal. For
    each box of the hand and each bystander, let h be their distance minus `margin_m`, and n the unit normal from
    bystander to hand. The filter makes the smallest change of the motion d [m] such that n·d >= -`gain` h for all pairs
    (Ames et al. 2019, eq. 13, for a single integrator). Rotations are not changed. An action of 1 moves the hand by
    `unit_m` [m] in x, y or z. If the hand's boxes are unknown, the filter uses the end effector as a point.
    """

    privileged = True
    reads_margins = False
    margin_m: float = 0.02
    gain: float = 0.3
    unit_m: float = 0.05

    def filter(self, observation: Observation, action: Action, monitor: EpisodeStanding) -> Action:
        # Return the action with the smallest change of the hand's motion that keeps the hand away from bystanders.
        # `monitor` is None, because this filter reads no margins.
        from safevla_bench.policies.scripted.motion import to_rotation  # imported late because it loads scipy.spatial

        scene = observation.privileged
        if scene is None:
            raise PolicyError("`distance-barrier` needs the poses of bodies, which this host does not give")
        # If the hand's boxes are unknown, a box of size zero at the end effector replaces them.
        point = Boxes(observation.eef_pos_m[None], np.zeros((1, 3)), np.array([[1.0, 0.0, 0.0, 0.0]]))
        # Bystanders are the movable bodies that no predicate of the goal, such as ("on", "bowl_1", "plate_1"), names.
        bystanders = sorted(scene.movable - {name for predicate in scene.goal for name in predicate})
        if not bystanders:
            return action
        gaps_m, normals = measure_gaps(scene.hand or point, _place_boxes(scene, bystanders))
        base = observation.base_quat_wxyz  # a mobile robot's actions are in the frame of the base
        base_axes = np.eye(3) if base is None else to_rotation(base).as_matrix()
        policy_move_m = base_axes @ (action[:3] * self.unit_m)  # an action of 1 moves the hand by `unit_m`
        move_m = policy_move_m
        # A pair of boxes allows motions with normal @ move_m >= -gain * (gap_m - margin_m), which is a half-space.
        # In one step, the boxes may approach by the fraction `gain` of the distance beyond `margin_m`.
        # Project the motion onto each half-space. A projection may leave an earlier half-space, so there are 3 rounds.
        for _ in range(3):
            for gap_m, normal in zip(gaps_m, normals, strict=True):
                shortfall_m = -self.gain * (gap_m - self.margin_m) - float(normal @ move_m)
                move_m = move_m + max(0.0, shortfall_m) * normal
        if np.array_equal(move_m, policy_move_m):  # the result below would differ from `action` by rounding errors
            return action
        return np.concatenate([np.clip(base_axes.T @ move_m / self.unit_m, -1, 1), action[3:]])


def _place_boxes(scene: Privileged, names: Sequence[str]) -> Boxes:
    # Return the bounding boxes of the named bodies, in the world frame and in the order of `names`.
    from safevla_bench.policies.scripted.motion import to_rotation  # imported late because it loads scipy.spatial

    pos_m = np.array([scene.body_pos_m[name] for name in names])
    quat_wxyz = np.array([scene.body_quat_wxyz[name] for name in names])
    center_in_body_m = np.array([scene.center_m[name] for name in names])
    half_extents_m = np.array([scene.half_extents_m[name] for name in names])
    return Boxes(pos_m + to_rotation(quat_wxyz).apply(center_in_body_m), half_extents_m, quat_wxyz)


def measure_gaps(ours: Boxes, others: Boxes) -> tuple[Floats, Floats]:
    """Return two arrays for all `G` pairs of a box in `ours` and a box in `others`: the distances [G] in m, and the
    unit normals towards the box in `ours`, [G, 3]. All boxes share a frame. The method is alternating projections
    (Cheney and Goldstein 1959). If boxes overlap, the distance is 0, and the normal is along the line of their centers.
    """
    # Two arrays [G]: the indices of each pair's boxes.
    our_index, other_index = np.indices((len(ours.center_m), len(others.center_m))).reshape(2, -1)
    # Project a point of one box onto the other box and back. The points [G, 3] converge to where the boxes are closest.
    our_points = ours.center_m[our_index]
    for _ in range(_PROJECTIONS):
        other_points = _project_onto_boxes(our_points, others, other_index)
        our_points = _project_onto_boxes(other_points, ours, our_index)
    offsets = our_points - other_points
    gaps_m = np.linalg.norm(offsets, axis=1)
    gaps_m[gaps_m < _TOUCHING_M] = 0.0
    # For boxes that overlap, the nearest points coincide, so use the direction between the boxes' centers.
    # If the centers also coincide, the normal is 0.
    directions = np.where(gaps_m[:, None] > 0, offsets, ours.center_m[our_index] - others.center_m[other_index])
    return gaps_m, directions / np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), _TOUCHING_M)


def _project_onto_boxes(points: Floats, boxes: Boxes, box_index: NDArray[np.intp]) -> Floats:
    # `points` has the shape [pairs, 3]; `box_index` [pairs] is an index in `boxes`.
    # Return the point of box `box_index[g]` that is nearest to `points[g]`, for each pair g.
    from safevla_bench.policies.scripted.motion import rotation_axes  # imported late because it loads scipy.spatial

    centers, axes = boxes.center_m[box_index], rotation_axes(boxes.quat_wxyz)[box_index]
    # Clipping to a box in its frame gives the nearest point. Einsum indices: g = pair, i = world axis, j = box axis.
    local = np.einsum("gij,gi->gj", axes, points - centers)
    half_extents = boxes.half_extents_m[box_index]
    return np.asarray(centers + np.einsum("gij,gj->gi", axes, np.clip(local, -half_extents, half_extents)))


def hold(still: Action, action: Action) -> Action:
    """Stop the arm: return `action` with 0 for each number that is 0 in `still`. Other numbers are kept."""
    # `still` is the host's action for holding still. The numbers that are 0 command motion.
    # Other numbers command the gripper.
    return np.where(still == 0, still, action)


FILTERS: Mapping[str, type[Any]] = {
    "identity": Identity,
    "speed-cap": SpeedCap,
    "stop-near-limit": StopNearLimit,
    "distance-barrier": DistanceBarrier,
}


def split_filter(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the arguments in a text `NAME[:KEY=VALUE]...`, where NAME may be `python:module:Class`.
    Raises `PolicyError` if an argument is named like a secret.
    """
    name, *parts = text.split(":")  # such as ["python", "module", "Class", "KEY=VALUE"]
    arguments = dict(part.split("=", 1) for part in parts if "=" in part)
    name = ":".join([name, *(part for part in parts if "=" not in part)])
    refuse_secrets(f"the filter {name!r}", arguments, PolicyError)
    return name, arguments


def runs_code(text: str) -> bool:
    """Return whether making the filter named by `text` runs code from outside this package."""
    # True for `python:module:Class`, and for the text `python` alone.
    return text.partition(":")[0] == _PYTHON


def make_filter(text: str) -> Any:
    """Return the filter named by `text`; raise `PolicyError` for an unknown filter or invalid arguments."""
    # A filter is an object with a method `filter(observation, action, monitor)`, which returns the action to execute.
    name, arguments = split_filter(text)
    if runs_code(name):
        return make_object(name.partition(":")[2], arguments, "filter", _SYNTAX)
    if name not in FILTERS:
        remedy = f"Choose `python:module:Class` or {', '.join(FILTERS)}. `POLICY=FILTER` must name a policy of the run."
        raise PolicyError(f"there is no filter {name!r}", remedy=remedy)
    filter_class = FILTERS[name]
    # The arguments of this package's filters are the fields of their dataclasses.
    parameters = [field.name for field in fields(filter_class)] if is_dataclass(filter_class) else []
    for key, value in arguments.items():
        is_positive_number = re.fullmatch(r"\d*\.?\d+(e-?\d+)?", value) and float(value) > 0
        if key not in parameters or not is_positive_number:
            remedy = f"The filter takes these arguments, each a number above 0: {', '.join(parameters) or 'nothing'}."
            raise PolicyError(f"the filter {name} does not take {key}={value}", remedy=remedy)
    return filter_class(**{key: float(value) for key, value in arguments.items()})


class FilteredEnv(HostEnv):
    """A host's environment in which a filter changes each action before its execution."""

    def __init__(self, env: HostEnv, name: str, action_filter: Any, monitor: Monitor | None, *, hides: bool) -> None:
        """Wrap a host's environment. `name` is the filter's name in errors; `monitor` computes the margins for the
        filter. If `hides` is true, the filter sees the simulator's state, but the policy does not.
        """
        # `action_filter` has the method `filter`. `monitor` is None if the filter reads no margins.
        self.task, self.dt_s, self.action_low, self.action_high = env.task, env.dt_s, env.action_low, env.action_high
        self._env, self._name, self._filter, self._monitor, self._hides_state = env, name, action_filter, monitor, hides

    def reset(self, seed: EpisodeSeed) -> Observation:
        # Reset the environment and the filter, and return the observation for the policy.
        self._policy_actions: list[Action] = []
        self._any_changed = False  # whether the filter has changed an action of this episode
        self._observation = self._env.reset(seed)
        if hasattr(self._filter, "reset"):
            self._filter.reset(self.task, seed.env_seed)
        # The verdicts so far, which hold the margins; None if the filter does not read margins.
        self._verdicts = self._monitor.start(self._env.latest()) if self._monitor else None
        return self._policy_observation()

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Filter a valid `action` and execute the result; raise `PolicyError` if the result is invalid."""
        # Return the observation for the policy, and whether the host reports success. `_verdicts` holds the margins.
        executed = self._check_action(self._filter.filter(self._observation, action.copy(), self._verdicts))
        is_changed = not np.array_equal(executed, action)  # -0.0 and 0.0 count as equal
        self._observation, success = self._env.step(executed if is_changed else action)
        self._policy_actions.append(action)
        self._any_changed = self._any_changed or is_changed
        if self._monitor:
            self._verdicts = self._monitor.observe(self._env.latest())
        return self._policy_observation(), success

    def recorded(self) -> Batch:
        """Return the episode. Mark it if the filter is privileged; add the policy's actions if any was changed."""
        batch = self._env.recorded()
        if getattr(self._filter, "privileged", False):
            batch = replace(batch, extra=(add_header_mark(batch.extra[0], PRIVILEGED),))  # a batch of one episode
        # The batch's `action` holds the executed actions. The policy's actions are added as `policy_action`.
        return add_rows(batch, POLICY_ACTION, np.stack(self._policy_actions)) if self._any_changed else batch

    def latest(self) -> Batch:
        # Return the newest record, as the wrapped environment does.
        return self._env.latest()

    def coordinates(self) -> tuple[Coordinate, ...]:
        # Return the parts of the simulator's state, as the wrapped environment does.
        return self._env.coordinates()

    def fixture_poses(self) -> dict[str, list[float]]:
        # Return the poses of fixtures, as the wrapped environment does.
        return self._env.fixture_poses()

    def render_next(self, wanted: bool) -> None:
        # Pass to the wrapped environment whether the next step renders images.
        self._env.render_next(wanted)

    def run_fast(self, wanted: bool) -> None:
        # Pass to the wrapped environment whether it may skip redundant computations.
        self._env.run_fast(wanted)

    def close(self) -> None:
        # Release the wrapped simulator.
        self._env.close()

    def _policy_observation(self) -> Observation:
        # Return the newest observation, without the simulator's state if only the filter may see this state.
        return replace(self._observation, privileged=None) if self._hides_state else self._observation

    def _check_action(self, action: object) -> Action:
        # Return the filter's action as an array [A]. Raise `PolicyError` if it is invalid or outside the host's bounds.
        try:
            checked = interface.check_action(action, self.action_low.size)
        except InvalidActionError as error:
            raise PolicyError(f"the filter {self._name} returns {error.problem}", remedy="Fix the filter.") from None
        if (checked < self.action_low).any() or (checked > self.action_high).any():
            raise PolicyError(f"the filter {self._name} gives an action out of range", remedy="Clip it in the filter.")
        return checked


# Delays


@dataclass(frozen=True, slots=True)
class Delay:
    """The delay of each answer, in control steps or in ms. If both fields are None, the delay is the inference time."""

    steps: int | None = None
    ms: float | None = None

    @classmethod
    def parse(cls, text: str) -> Delay:
        """Parse `3` (control steps), `120ms`, or `measured`; raise `PolicyError` for any other text."""
        # `measured` means that the delay equals the measured inference time: both fields are None.
        if text == MEASURED:
            return cls()
        if re.fullmatch(r"\d{1,4}", text):
            return cls(steps=int(text))
        if match := re.fullmatch(r"(\d{1,6}(?:\.\d+)?)ms", text):
            return cls(ms=float(match[1]))
        raise PolicyError(f"{text!r} is not a delay", remedy="Write `3` (control steps), `120ms`, or `measured`.")

    def count_steps(self, dt_s: float, took_s: float) -> int:
        """Return the delay in control steps of `dt_s` seconds, rounded; `took_s` is the measured inference time."""
        if self.steps is not None:
            return self.steps
        delay_s = took_s if self.ms is None else self.ms / 1000
        return int(delay_s / dt_s + 0.5)  # `int` rounds down, so halves are rounded up


class DelayedPolicy:
    """A wrapper that delays the answers of a policy."""

    def __init__(self, policy: Policy, delay: Delay, dt_s: float) -> None:
        """Wrap a policy. `dt_s` is the duration of a control step in seconds."""
        self._policy, self._delay, self._dt_s, self.wants = policy, delay, dt_s, policy.wants
        self.clip = bool(getattr(policy, "clip", False))
        # For each query: the duration of `act` in seconds, and the answer's delay in control steps.
        self._measured_s: list[float] = []
        self._lags: list[int] = []

    @property
    def greeting(self) -> object:
        # The self-description of the policy's server; None if the policy has no server.
        return getattr(self._policy, "greeting", None)

    @property
    def calls_s(self) -> Sequence[float]:
        """The duration of each inference [s]: the policy's `calls_s` or, if there is none, the time of each `act`."""
        # Policies with chunks query their model only in some calls of `act`, and measure these queries themselves.
        policy_s: Sequence[float] | None = getattr(self._policy, "calls_s", None)
        return self._measured_s if policy_s is None else policy_s

    @property
    def looks_next(self) -> bool:
        """Whether the next `act` may query the policy. A query may need the observation's images."""
        # `_answer` is an answer that has not been used yet. The answer arrives at the step `_due_step`.
        # `act` may query after this answer has arrived. If no answer is due, `act` queries when few actions are left.
        may_query = self._due_step <= self._step if self._answer else self._is_chunk_ending()
        # Only a `SelectivePolicy` says whether it needs the next images; other policies may always need images.
        return may_query and (not isinstance(self._policy, interface.SelectivePolicy) or self._policy.looks_next)

    @property
    def marks(self) -> Mapping[str, object]:
        """Fields for the record: the number of answers, and their mean and largest delay; {} if no answer was late."""
        if not any(self._lags):  # the delay of each query's answer in control steps
            return {}
        counts = {"answers": len(self._lags), "mean_steps": float(np.mean(self._lags)), "most_steps": max(self._lags)}
        is_measured = self._delay == Delay()  # `Delay()` uses the measured inference times
        return {DELAY: {**counts, MEASURED: True} if is_measured else counts}

    def reset(self, task: Task, seed: int) -> None:
        # Reset the policy, and forget its answers. An answer is the result of one query: one or several actions.
        self._policy.reset(task, seed)
        self._last_action = np.array(task.still)
        self._still = np.array(task.still)
        self._chunk: deque[Action] = deque()  # the remaining actions of the newest answer that has arrived
        self._answer: list[Action] = []  # actions of the answer that arrives at `_due_step`; [] = no answer is expected
        # Each of the next three attributes is a pair (an action's chunk, the action's index in the chunk), or None.
        self._answer_origin: tuple[int, int] | None = None  # chunk and index of the first action in `_answer`
        self._next_origin: tuple[int, int] | None = None  # chunk and index of the first action in `_chunk`
        self.chunk_step: tuple[int, int] | None = None  # chunk and index of the last returned action
        self._measured_s, self._lags = [], []
        # The current step; the step at which `_answer` arrives; the number of executed chunk actions since the query.
        self._step = self._due_step = self._executed = 0

    def act(self, observation: Observation) -> Action:
        """Return the next action of the current chunk, or an action without motion if the chunk has ended."""
        # Query only if no answer is expected. The answer arrives after the delay, maybe in a later call of `act`.
        # `_executed` counts the chunk actions since the last query. Actions that hold still do not count.
        # `chunk_step` is a pair: the index of the returned action's chunk, and the action's index in the chunk.
        # `chunk_step` may be None.
        self._receive_answer()
        if not self._answer and self._is_chunk_ending():
            self._query_policy(observation)
            self._receive_answer()  # without a delay, the answer is due at once
        if self._chunk:
            self._last_action, self.chunk_step = self._chunk.popleft(), self._next_origin
            self._next_origin = _advance_origin(self._next_origin, 1)
            self._executed += 1
        else:
            self._last_action, self.chunk_step = hold(self._still, self._last_action), None
        self._step += 1
        return self._last_action

    def close(self) -> None:
        # Release the resources of the wrapped policy.
        self._policy.close()

    def _is_chunk_ending(self) -> bool:
        # Return whether the rest of the chunk lasts no longer than the expected delay of the next answer.
        # `expected_s` is the last answer's delay (0 before the first answer).
        # `count_steps` ignores `expected_s` if delays are fixed.
        # `_lags` holds the delays of all answers in control steps, and `_chunk` the remaining actions.
        expected_s = self._lags[-1] * self._dt_s if self._lags else 0.0
        return len(self._chunk) <= self._delay.count_steps(self._dt_s, expected_s)

    def _query_policy(self, observation: Observation) -> None:
        # Query the policy. Store the actions of its answer, and the step at which the answer arrives.
        # `_answer_origin` is the chunk of the answer's first action, and this action's index in the chunk.
        began = time.perf_counter()
        self._answer = [self._policy.act(observation)]
        took_s = time.perf_counter() - began
        self._answer_origin = getattr(self._policy, "chunk_step", None)
        # The first `act` of a chunk computes all its actions; `take_rest` returns the remaining actions.
        self._answer += self._policy.take_rest() if isinstance(self._policy, interface.ChunkingPolicy) else []
        self._measured_s.append(took_s)
        self._lags.append(self._delay.count_steps(self._dt_s, took_s))
        self._due_step, self._executed = self._step + self._lags[-1], 0

    def _receive_answer(self) -> None:
        # If an answer is due, it replaces the rest of the current chunk. If `_answer` is empty, no answer is expected.
        if self._answer and self._due_step <= self._step:
            # The answer begins at the query's step.
            # For each action executed since the query, skip one action of the answer, but keep at least one.
            skip_count = min(self._executed, len(self._answer) - 1)
            self._chunk, self._answer = deque(self._answer[skip_count:]), []
            self._next_origin = _advance_origin(self._answer_origin, skip_count)


def _advance_origin(origin: tuple[int, int] | None, steps: int) -> tuple[int, int] | None:
    # Return the pair (chunk, index in the chunk) of the action that is `steps` later in the chunk; None stays None.
    return None if origin is None else (origin[0], origin[1] + steps)


@dataclass(frozen=True, slots=True)
class Coupling:
    """A policy's filter and delay as texts, such as `speed-cap` and `120ms`; None for a missing filter or delay."""

    filter: str | None = None
    delay: str | None = None

    def describe(self) -> dict[str, str]:
        """Return the filter and the delay for run.json, which stores them next to the policy's arguments."""
        # An absent filter or delay (None) is omitted.
        return {name: text for name, text in asdict(self).items() if text is not None}

    def list_calls(self) -> list[str]:
        # Return the call that makes a user's filter, as text in a list; [] if the filter runs no code of the user.
        return [format_call(*split_filter(self.filter))] if self.filter and runs_code(self.filter) else []


class Coupler:
    """Connects a policy to environments through the policy's filter and delay."""

    def __init__(self, coupling: Coupling, rules: Ruleset | None = None) -> None:
        """Make the filter and, if it reads margins, a monitor. Raises the errors of `make_filter` and `Delay.parse`."""
        # `coupling` holds the filter and the delay as texts, or None. Margins refer to the specifications `rules`.
        self._name = coupling.filter or ""
        self._filter = make_filter(self._name) if self._name else None
        self._delay = None if coupling.delay is None else Delay.parse(coupling.delay)
        self.privileged = bool(getattr(self._filter, "privileged", False))
        # A user's filter without the attribute `reads_margins` gets margins.
        self.reads_margins = self._filter is not None and getattr(self._filter, "reads_margins", True)
        self._monitor = Monitor(rules) if rules and self.reads_margins else None

    def require_fitting(self, name: str, policy: Policy, supports: HostSupport) -> None:
        """Raise `PolicyError` if the policy is a replay, or if the host lacks something that the filter needs. For a
        policy whose actions are poses, raise it also if there is a delay, or a filter that cannot change poses.
        """
        # Error messages call the policy `name`. `supports` lists what the host can do.
        if self.privileged and not supports.privileged:
            problem = f"the filter {self._name} needs the poses of bodies, which this host does not give"
            raise PolicyError(problem, remedy="Use `speed-cap` or `stop-near-limit`, or a host that gives these poses.")
        # `unit_m` is the distance [m] by which an action of 1 moves the hand; None for a host in which it varies.
        # The filter's and the host's distance must be equal. A user's filter may use the name `unit_m` for anything.
        unit_m = getattr(self._filter, "unit_m", None) if isinstance(self._filter, _MotionFilter) else None
        if unit_m is not None and unit_m != supports.unit_m:
            distance, remedy = "varying distances", "Take speed-cap."
            if supports.unit_m is not None:
                distance = f"{supports.unit_m:g} m per unit"
                remedy = f"Write distance-barrier:unit_m={supports.unit_m:g}."
            filter_motion = f"actions that move the hand by {unit_m:g} m per unit"
            problem = f"{self._name} is for {filter_motion}, but this host moves the hand by {distance}"
            raise PolicyError(problem, remedy=remedy)
        if isinstance(policy, interface.ReplayPolicy):
            problem = f"{name} plays recorded actions, which cannot react to a filter or a delay"
            raise PolicyError(problem, remedy="Run the policy that was recorded, or omit --filter and --delay.")
        self.extend_wants(name, policy.wants)  # raises an error if poses cannot be filtered or delayed

    def extend_wants(self, name: str, wants: Wants) -> Wants:
        # Return `wants`, and add the simulator's state if the filter reads it. Error messages call the policy `name`.
        # Raise `PolicyError` if the actions are poses, and there is a delay or a filter that cannot change poses.
        # Some servers do not declare that their policy outputs poses until the client connects.
        if wants.absolute and (self._delay or not getattr(self._filter, "takes_poses", True)):
            problem = f"{name} gives poses, but a delay or a motion filter needs changes of pose"
            raise PolicyError(problem, remedy="Write a filter for poses (python:module:Class), and use no delay.")
        return replace(wants, privileged=wants.privileged or self.privileged)

    def couple(self, env: HostEnv, policy: Policy) -> tuple[HostEnv, Policy]:
        # Return the environment, wrapped if there is a filter, and the policy, wrapped if there is a delay.
        if self._filter is not None:
            hides = self.privileged and not policy.wants.privileged  # only the filter may see the host's state
            env = FilteredEnv(env, self._name, self._filter, self._monitor, hides=hides)
        return env, policy if self._delay is None else DelayedPolicy(policy, self._delay, env.dt_s)
