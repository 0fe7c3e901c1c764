"""An environment of somebody else's making: what recording asks of it, and the hooks that report its events."""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, TypeVar

from numpy.typing import ArrayLike

from safevla_recorder.episode import Action
from safevla_recorder.errors import HostError
from safevla_recorder.mujoco.hook import Undo, wrap_method
from safevla_recorder.mujoco.recorder import Recorder

if TYPE_CHECKING:
    from safevla_recorder.episode_cutter import EpisodeCutter

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
    """Return the versions of the named distributions that are installed, and of the recorder. It goes by safevla-bench,
    whose version equals its own, or by safevla-recorder if that is not installed.
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
    """Yield `env`, then what it wraps, outside in: attributes of `_INNER`, and any of type `kind`; 16 objects at
    most.
    """
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

    `is_success` reads the native success from a step's result, whose last value is `info`. A close is reported before
    it happens, as an interruption. An exception of a step is reported and raised again.
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
