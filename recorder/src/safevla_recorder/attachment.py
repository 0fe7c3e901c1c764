"""An environment of somebody else's making: what recording asks of it, the hooks that report its events, and episodes
cut from these in somebody's own loop, as `safevla eval` would record them.
"""

from __future__ import annotations

import copy
import importlib.metadata
import logging
import traceback
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterable, Iterator, Optional, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from safevla_recorder.episode import (
    EARLIER_SEED,
    FIXTURES,
    Action,
    Recording,
    add_costs,
    add_header_field,
    check_recorded_numbers,
    encode_episode,
)
from safevla_recorder.errors import HostError, RunError, SafevlaError
from safevla_recorder.mujoco.hook import Undo, wrap_method
from safevla_recorder.mujoco.recorder import Recorder

_log = logging.getLogger(__name__)
Layer = TypeVar("Layer")
_INNER = ("_env", "env", "unwrapped")
"""Attributes in which wrappers, such as LeRobot's or gymnasium's, keep the environment they wrap."""
_MAX_LAYERS = 16


@dataclass(frozen=True)
class TaskLabel:
    """The names under which a task's episodes are recorded."""

    benchmark: str
    task_id: str
    instruction: str


class RecordableEnv(ABC):
    """One robosuite environment of somebody else's making, nothing of it hooked yet."""

    host: str
    embodiment: str
    wait_steps: int
    """Settling steps that loops around this simulator usually make."""
    action_size: int

    def __init__(self, env: Any, task: TaskLabel, versions: dict[str, str]) -> None:
        """Keep robosuite's environment; raises `HostError` if it is being recorded already."""
        if hasattr(vars(env).get("step"), "__wrapped__"):
            raise HostError("the environment is being recorded already", remedy="Record it once.")
        self._env, self.task, self.versions = env, task, versions

    @abstractmethod
    def set_init_states(self, init_states: ArrayLike) -> None:
        """Take these as the task's initial states, [count, state], unchecked, or a single one; a state of another width
        never matches. Raises `HostError` if the simulator has none.
        """

    @abstractmethod
    def subscribe(self, cutter: EpisodeCutter) -> Undo:
        """Report what happens from now on to `cutter`; return what takes the hooks off."""

    @abstractmethod
    def start_recorder(self) -> tuple[Recorder, Undo]:
        """Return a recorder of the present model, attached, with record 0 taken, and what detaches it.

        Warns of the fastest object if one still moves. Raises `HostError` if the model cannot be recorded.
        """

    @abstractmethod
    def fixture_roots(self) -> list[str]:
        """Return the names of the root bodies of the present model's fixtures."""

    @abstractmethod
    def is_still(self, action: Action) -> bool:
        """Return whether the action [A] leaves the arm where it is, as settling actions do; the gripper may move."""

    @abstractmethod
    def target_object(self) -> str | None:
        """Return the goal's first target; None if it has none."""

    def instruction(self) -> str:
        """Return the present episode's instruction."""
        return self.task.instruction

    def header_fields(self) -> dict[str, object]:
        """Return the host-specific fields of the header of an episode."""
        return {}

    def fixture_poses(self) -> dict[str, list[float]]:
        """Return where a reset has put the fixtures: root body -> position [3] in m, quaternion [4] wxyz."""
        bodies = [(name, self._env.sim.model._model.body(name)) for name in self.fixture_roots()]
        return {name: [*body.pos.tolist(), *body.quat.tolist()] for name, body in bodies}

    def build_header(
        self, recorder: Recorder, *, success: bool, env_seed: int | None, index: int | None
    ) -> dict[str, object]:
        """Return the header as the host's own rollouts write it, without what only they know of the start."""
        return episode_header(
            replace(self.task, instruction=self.instruction()),
            success=success,
            env_seed=env_seed,
            index=index,
            dt=float(self._env.control_timestep),
            target_object=self.target_object(),
            embodiment=self.embodiment,
            versions=dict(self.versions),
            dropped_pairs=recorder.dropped_pairs(),
        )


def episode_header(
    task: TaskLabel, *, success: bool, env_seed: int | None, index: int | None, **fields: object
) -> dict[str, object]:
    """Return an episode's header; `index` is that of the initial state, None = unknown.

    `fields` are the other `HEADER_FIELDS`: `dt` [s], `target_object`, `embodiment`, `versions`, `dropped_pairs`.
    `episode_id` is benchmark/task_id/init_NNN, or `init_unknown` without an index.
    """
    start = "unknown" if index is None else f"{index:03d}"
    return {
        "episode_id": f"{task.benchmark}/{task.task_id}/init_{start}",
        "benchmark": task.benchmark,
        "task_id": task.task_id,
        "instruction": task.instruction,
        "success": success,
        "env_seed": env_seed,
        "init_state_index": index,
        **fields,
    }


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the named distributions that are installed, and of safevla-bench, else of
    safevla-recorder.
    """
    versions: dict[str, str] = {}
    for name in (*names, "safevla-bench"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    if "safevla-bench" not in versions:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions["safevla-recorder"] = importlib.metadata.version("safevla-recorder")
    return versions


def find_layer(env: object, kind: type[Layer]) -> Layer | None:
    """Return the outermost object of that type in `env`: `env` itself, or one that it wraps; None if there is none."""
    return next((layer for layer in _env_layers(env, kind) if isinstance(layer, kind)), None)


def _env_layers(env: object, kind: type) -> Iterator[object]:
    """Yield `env`, then what it wraps, outside in: attributes of `_INNER`, and any of type `kind`."""
    seen: list[object] = []
    waiting = [env]
    while waiting and len(seen) < _MAX_LAYERS:
        layer = waiting.pop(0)
        if layer is None or any(layer is earlier for earlier in seen):
            continue
        seen.append(layer)
        yield layer
        waiting += [getattr(layer, name, None) for name in _INNER]
        waiting += [value for value in getattr(layer, "__dict__", {}).values() if isinstance(value, kind)]


def subscribe_steps(env: Any, cutter: EpisodeCutter, is_success: Callable[[Any], bool]) -> list[Undo]:
    """Report steps and the close of robosuite's environment to `cutter`; return two functions that end this.

    `is_success` reads the native success from a step's result. A close is reported before it happens, as an
    interruption.
    """

    def step(original: Any, action: object) -> object:
        cutter.before_step(action)
        try:
            result = original(action)
        except BaseException as error:
            cutter.on_error(error)
            raise
        info = result[-1]
        cutter.after_step(is_success(result), info.get("cost") if isinstance(info, dict) else None)
        return result

    def close(original: Any, *args: object, **kwargs: object) -> object:
        cutter.on_interruption()
        return original(*args, **kwargs)

    return [wrap_method(env, "step", step), wrap_method(env, "close", close)]


# Episodes cut from what happens to an environment in somebody's own loop


@dataclass(frozen=True)
class LoopRules:
    """Facts about a loop that only its owner knows; None = unknown, and it stays so in the record."""

    policy: str
    wait_steps: int
    horizon: int | None = None
    seed: int | None = None
    privileged: bool = False
    worker: str | None = None
    """The name of this process among several; it goes into the episodes' ids."""


@dataclass(frozen=True)
class RecordedRow:
    """One row of a run's table of episodes; None = unknown. `reason` holds the traceback of a crash."""

    episode_id: str
    policy: str
    benchmark: str
    task_id: str
    episode: int
    init_state_index: int | None
    env_seed: int | None
    seed: int | None
    policy_seed: int | None
    horizon: int | None
    outcome: str = ""
    steps: int = 0
    reason: str | None = None


KeepEpisode = Callable[[RecordedRow, Optional[bytes]], None]


@dataclass
class _RunningEpisode:
    row: RecordedRow
    """Without outcome, steps and reason, which the episode's end gives."""
    recorder: Recorder
    detach: Undo
    fixtures: dict[str, list[float]]
    """Where fixtures stand, if no seed and initial state tell; else empty."""
    earlier_seed: dict[str, int]
    """The seed of an earlier reset and the resets since, if this one has none of its own; else empty."""
    steps: int = 0
    costs: list[object] = field(default_factory=list)


class EpisodeCutter:
    """Cuts episodes from the events of one environment, and hands each to `keep` as soon as it has ended.

    `next_number` gives the number of the next episode of this task. What `keep` raises goes on to the loop.
    """

    def __init__(self, env: RecordableEnv, rules: LoopRules, next_number: Callable[[], int], keep: KeepEpisode) -> None:
        """Begin as after a reset without a seed. `refusal` becomes the error of a loop that moved the arm while
        settling.
        """
        self._env, self._rules, self._next_number, self._keep = env, rules, next_number, keep
        self._running: _RunningEpisode | None = None
        self._is_over = False  # between an episode's end and the next reset, steps belong to no episode
        self._waited = 0
        self._new_seed: int | None = None  # since the last reset
        self._env_seed: int | None = None  # of the last reset
        self._last_seed: int | None = None  # given at any time
        self._resets = 0  # since then
        self._index: int | None = None
        self._action: Action | None = None
        self.refusal: RunError | None = None

    def on_seed(self, seed: int) -> None:
        """Keep the seed for the next reset only, as the generator then goes on; count resets from 0 again."""
        self._new_seed = self._last_seed = seed
        self._resets = 0

    def on_interruption(self) -> None:
        """End the running episode, if any, before a reset, another state or the close: as `stopped` if it is short of a
        given horizon, else as `timeout`.
        """
        if self._running is None:
            return
        steps, horizon = self._running.steps, self._rules.horizon
        if horizon is None or steps >= horizon:
            self._end_episode("timeout")
        else:
            self._end_episode("stopped", f"ended without success after {steps} of {horizon} steps")

    def stop(self, reason: str) -> None:
        """End the running episode, if any, as `stopped`, with `reason` in its row."""
        if self._running is not None:
            self._end_episode("stopped", reason)

    def on_reset(self) -> None:
        """Start settling again after a reset, with the seed given since the reset before and no initial state. Must not
        raise: LIBERO's own reset would swallow it and try again.
        """
        self._is_over, self._waited, self._index = False, 0, None
        self._env_seed, self._new_seed = self._new_seed, None
        self._resets += 1

    def on_state_set(self, init_state_index: int | None) -> None:
        """Start settling again, from the initial state of that index; None = another state. The reset's seed stays."""
        self._is_over, self._waited, self._index = False, 0, init_state_index

    def before_step(self, action: object) -> None:
        """Take record 0 before the first step after settling; end the episode (`invalid_action`) at an unusable action.
        Does nothing between an episode's end and the next reset or state set.

        Raises `RunError`, kept in `refusal` too, for a settling step that moves the arm, `HostError` for a model that
        cannot be recorded, and `ValueError` or `TypeError` for an action that is not an array of real numbers.
        """
        if self._is_over:
            return
        if np.iscomplexobj(np.asarray(action)):
            raise TypeError("an action of complex numbers")
        numbers = np.array(action, dtype=np.float64)  # before the simulator gets its hands on it
        if self._waited < self._rules.wait_steps:
            self._require_still(numbers)
            return
        if self._running is None:
            self._begin_episode(numbers)
        size = self._env.action_size
        if numbers.shape != (size,):
            self._end_episode("invalid_action", f"an action of shape {numbers.shape}; it takes {size} numbers")
        elif not np.isfinite(numbers).all():
            self._end_episode("invalid_action", f"the action {numbers.tolist()} is not finite")
        self._action = numbers

    def after_step(self, success: bool, cost: object = None) -> None:
        """Count a settling step, or record the control step with its `cost`, as `add_costs` takes it. Success and the
        horizon end the episode, and so does a simulation that cannot be recorded any further, as crashed.
        """
        if self._is_over:
            return
        running = self._running
        if running is None:
            self._waited += 1
            return
        assert self._action is not None
        try:
            running.recorder.record_step(self._action)
        except SafevlaError as error:  # it diverged; the loop goes on as it would have, without this episode
            self._crash_episode(str(error))
            return
        running.steps += 1
        running.costs.append(copy.copy(cost))
        if success:
            self._end_episode("success")
        elif running.steps == self._rules.horizon:
            self._end_episode("timeout")

    def on_error(self, error: BaseException) -> None:
        """End the running episode, if any: as `crashed` with the traceback; else as `stopped`."""
        if self._running is None:
            return
        if isinstance(error, Exception):
            self._crash_episode("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        else:
            self.stop(f"interrupted by {type(error).__name__}")

    def _require_still(self, action: Action) -> None:
        if self._env.is_still(action):
            return
        number, announced = self._waited + 1, self._rules.wait_steps
        problem = f"step {number} after the reset moves the arm, but the first {announced} steps should settle"
        remedy = f"Pass record(..., wait_steps={self._waited}), or how many still steps your loop makes first."
        self.refusal = RunError(problem, remedy=remedy)
        raise self.refusal

    def _begin_episode(self, action: Action) -> None:
        if self._env.is_still(action):
            problem = "%s: the first step after %d settling steps is a still one too and counts as the policy's; "
            remedy = "if your loop settles for longer, pass record(..., wait_steps=N)"
            _log.warning(problem + remedy, self._env.task.task_id, self._rules.wait_steps)
        recorder, detach = self._env.start_recorder()
        fixtures = self._env.fixture_poses() if self._env_seed is None or self._index is None else {}
        earlier_seed = {}
        if self._env_seed is None and self._last_seed is not None and self._resets:
            earlier_seed = {"seed": self._last_seed, "earlier_resets": self._resets - 1}
        self._running = _RunningEpisode(self._begin_row(), recorder, detach, fixtures, earlier_seed)
        self._env_seed = None  # another state set without a reset would not start from this seed

    def _begin_row(self) -> RecordedRow:
        task, rules, number = self._env.task, self._rules, self._next_number()
        place = "" if rules.worker is None else f"worker_{rules.worker}/"
        return RecordedRow(
            episode_id=f"{rules.policy}/{task.benchmark}/{task.task_id}/{place}ep_{number:03d}",
            policy=rules.policy,
            benchmark=task.benchmark,
            task_id=task.task_id,
            episode=number,
            init_state_index=self._index,
            env_seed=self._env_seed,
            seed=rules.seed,
            policy_seed=None,
            horizon=rules.horizon,
        )

    def _end_episode(self, outcome: str, reason: str | None = None) -> None:
        """Hand over the episode's row and bytes; `crashed` without bytes if its records cannot be trusted."""
        running = self._detach_recorder()
        try:
            content = encode_episode(self._build_recording(running, outcome))
        except (SafevlaError, ValueError) as error:  # ValueError: text that UTF-8 cannot encode
            outcome, reason, content = "crashed", str(error), None
        self._keep(replace(running.row, outcome=outcome, steps=running.steps, reason=reason), content)

    def _build_recording(self, running: _RunningEpisode, outcome: str) -> Recording:
        """Return the records under a full header; raises `SafevlaError` if they cannot be trusted or decoded."""
        row, success = running.row, outcome == "success"
        header = {
            **self._env.build_header(
                running.recorder, success=success, env_seed=row.env_seed, index=row.init_state_index
            ),
            "episode_id": row.episode_id,
            "policy": row.policy,
            "seed": row.seed,
            "horizon": row.horizon,
            "outcome": outcome,
        }
        recording = add_costs(running.recorder.build_recording(header), running.costs)
        check_recorded_numbers(recording)
        marks = {FIXTURES: running.fixtures, EARLIER_SEED: running.earlier_seed, "privileged": self._rules.privileged}
        fields = {**self._env.header_fields(), **{name: value for name, value in marks.items() if value}}
        for name, value in fields.items():
            recording = replace(recording, extra=add_header_field(recording.extra, name, value))
        return recording

    def _crash_episode(self, reason: str) -> None:
        running = self._detach_recorder()
        _log.warning("%s crashed: %s", running.row.episode_id, reason.strip().splitlines()[-1])
        self._keep(replace(running.row, outcome="crashed", steps=running.steps, reason=reason), None)

    def _detach_recorder(self) -> _RunningEpisode:
        assert self._running is not None
        running, self._running, self._is_over = self._running, None, True
        running.detach()
        return running
