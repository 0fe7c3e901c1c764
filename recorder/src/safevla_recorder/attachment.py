"""Recording of an environment that a user's own script made. Hooks report the environment's events to an
`EpisodeCutter`, which turns the events into episodes in the format of `safevla eval`.
"""

from __future__ import annotations

import copy
import ctypes
import importlib.metadata
import math
import threading
import traceback
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from itertools import product
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from safevla_recorder import episode
from safevla_recorder.episode import Action, EpisodeArrays, EpisodeRow, Floats
from safevla_recorder.errors import HostError, RunError, SafevlaError, find_exception, get_logger, is_from_signal
from safevla_recorder.identity import TaskIdentity
from safevla_recorder.mujoco.hook import Undo, hook_call, undo_all, wrap_method
from safevla_recorder.mujoco.recorder import Recorder, unstable_steps
from safevla_recorder.version import __version__

_log = get_logger(__name__)
Layer = TypeVar("Layer")
# Attributes in which wrappers, such as LeRobot's or gymnasium's, store the wrapped environment.
_INNER_ATTRIBUTES = ("_env", "env", "unwrapped")
_MAX_LAYERS = 16
_class_lock = threading.RLock()  # held while methods of classes are replaced, so that threads take turns


@dataclass(frozen=True)
class TaskLabel:
    """The names under which a task's episodes are recorded."""

    benchmark: str
    task_id: str
    instruction: str


class RecordableEnv(ABC):
    """A robosuite environment made by the user's script, before any hook is attached."""

    host: str
    embodiment: str
    wait_steps: int  # number of settling steps in this simulator's usual evaluation loops
    action_size: int
    identity = TaskIdentity()
    unstable_steps = 0  # how often MuJoCo reset an unstable state before the initial state was set

    def __init__(self, env: Any, task: TaskLabel, versions: dict[str, str]) -> None:
        # `env` is robosuite's environment. Its episodes are recorded under the names in `task`.
        # `versions` maps distributions, such as mujoco, to their versions.
        self._env, self.task, self.versions = env, task, versions

    @abstractmethod
    def set_init_states(self, init_states: ArrayLike) -> None:
        """Set the task's initial states, [count, state] or [state]. Raises `HostError` if the simulator has none."""
        # A state's length is not checked; a state with a wrong length matches no state of the simulator.

    @abstractmethod
    def subscribe(self, cutter: EpisodeCutter) -> Undo:
        """Add hooks that report events to `cutter`, which forms episodes. Return a function that removes the hooks."""

    @abstractmethod
    def start_recorder(self) -> tuple[Recorder, Undo]:
        """Attach a recorder to the current model and take record 0, the settled state. Return the recorder, and a
        function that detaches it. Warns if objects still move, and names the fastest one. Raises `HostError` if the
        model cannot be recorded, or if MuJoCo has reset an unstable simulation (see `self.unstable_steps`).
        """

    @property
    def is_recorded(self) -> bool:
        """True if a recording already uses this environment; a safety monitor does not count as a recording."""
        # A recording replaces the instance's `step` by a function with the attribute `is_recording`.
        return getattr(vars(self._env).get("step"), "is_recording", False)

    def count_unstable_steps(self) -> int:
        """Return how often MuJoCo has reset the simulation because it was unstable; 0 if `env` has no simulation."""
        data = self._mujoco_data()
        return 0 if data is None else unstable_steps(data)

    def copy_positions(self) -> Floats | None:
        """Return a copy of the simulation's positions and velocities; None if `env` has no simulation."""
        data = self._mujoco_data()
        return None if data is None else np.concatenate([data.qpos, data.qvel])

    def _mujoco_data(self) -> Any:
        # Return MuJoCo's own `MjData`; None if `env` has no simulation.
        return getattr(getattr(getattr(self._env, "sim", None), "data", None), "_data", None)

    @abstractmethod
    def fixture_roots(self) -> list[str]:
        """Return the names of the root bodies of the current model's fixtures."""

    @abstractmethod
    def is_still(self, action: Action) -> bool:
        """Return whether the action [A] leaves the arm where it is, as in settling; the gripper may move."""

    @abstractmethod
    def target_object(self) -> str | None:
        """Return the name of the first target object of the goal; None if the goal has no target."""

    def instruction(self) -> str:
        """Return the current episode's instruction."""
        return self.task.instruction

    def header_fields(self) -> dict[str, object]:
        """Return the host-specific fields for an episode's header."""
        # By default, there are no such fields; the subclass for a simulator may add some.
        return {}

    @property
    def has_soft_resets(self) -> bool:
        """True if a reset keeps the old simulation; seed and initial state then do not determine an episode's start."""
        return getattr(self._env, "hard_reset", True) is False

    def read_simulation(self) -> dict[str, object]:
        """Return the facts about robosuite's environment that the function `read_simulation` collects."""
        # The facts: whether there is an offscreen renderer, whether a reset makes a new simulation, OpenBLAS's kernels.
        return read_simulation(self._env)

    def fixture_poses(self) -> dict[str, list[float]]:
        """Return the poses of the fixtures' root bodies after the last reset, by name of the body."""
        # Seven numbers for each body, relative to its parent: position [3] in m, quaternion [4] wxyz.
        return read_poses(self._env, self.fixture_roots())

    def build_header(
        self, recorder: Recorder, *, success: bool, env_seed: int | None, index: int | None
    ) -> dict[str, object]:
        """Return the header that `safevla eval` would write, without the facts that only `safevla eval` knows."""
        # `recorder` contains the episode's records.
        # `env_seed` is the seed of the reset before the episode (None = unknown).
        # `index` is the index of the initial state (None = unknown). `self.task` gives the names of the episodes.
        # `self.identity` contains the hashes of the task's definition and of the simulator's code.
        return episode_header(
            replace(self.task, instruction=self.instruction()),
            success=success,
            env_seed=env_seed,
            index=index,
            dt=_control_step_s(self._env, recorder),
            target_object=self.target_object(),
            embodiment=self.embodiment,
            versions=dict(self.versions),
            dropped_pairs=recorder.dropped_pairs(),
            **self.identity.header_fields(),
        )


def _control_step_s(env: Any, recorder: Recorder) -> float:
    # Return the simulated time of a control step in s; raise `HostError` if the recorded steps have different lengths.
    # Before the first step, return the time that follows from robosuite's and MuJoCo's timesteps.
    # robosuite rounds the number of substeps down: at 30 Hz, 16 substeps of 2 ms take 32 ms.
    nominal_s, substep_s = float(env.control_timestep), getattr(env, "model_timestep", None)
    shortest_s, longest_s = recorder.step_range_s()
    if not shortest_s:
        shortest_s = longest_s = nominal_s
        if substep_s:
            count = int(nominal_s / substep_s)
            with suppress(AttributeError):  # the environment is not robosuite's
                substep_s = env.sim.model.opt.timestep  # a script may have changed it
            shortest_s = longest_s = count * float(substep_s)
    if not math.isclose(shortest_s, longest_s, rel_tol=1e-9):
        problem = f"control steps of {shortest_s:g} s and {longest_s:g} s are in one episode"
        raise HostError(problem, remedy="Make all substeps in env.step, and change its rate only between episodes.")
    is_nominal = math.isclose(shortest_s, nominal_s, rel_tol=1e-9)  # the substeps take exactly one control step
    return nominal_s if is_nominal or not shortest_s else shortest_s


def episode_header(
    task: TaskLabel, *, success: bool, env_seed: int | None, index: int | None, **fields: object
) -> dict[str, object]:
    """Return an episode's header. `index` is the index of the initial state; None = unknown.

    `fields` are the other `HEADER_FIELDS`: `dt` [s], `target_object`, `embodiment`, `versions`, `dropped_pairs`.
    `episode_id` is `BENCHMARK/TASK_ID/init_NNN`. If the index is unknown, the last part is `init_unknown`.
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


def read_poses(env: Any, names: Iterable[str]) -> dict[str, list[float]]:
    """Return, by name, each body's pose relative to its parent: position [3] in m, then quaternion [4] wxyz."""
    bodies = [(name, env.sim.model._model.body(name)) for name in names]
    return {name: [*body.pos.tolist(), *body.quat.tolist()] for name, body in bodies}


def read_simulation(env: object) -> dict[str, object]:
    """Return facts about robosuite's environment: whether it has an offscreen renderer, whether a reset makes a new
    simulation (`hard_reset`), and the processor kernels of NumPy's OpenBLAS. Unknown facts are left out.
    """
    flags = {
        "offscreen_renderer": getattr(env, "has_offscreen_renderer", None),
        "hard_reset": getattr(env, "hard_reset", None),
    }
    known: dict[str, object] = {name: value for name, value in flags.items() if isinstance(value, bool)}
    kernel = openblas_kernel()
    return known if kernel is None else {**known, "openblas_kernel": kernel}


@lru_cache(maxsize=None)
def openblas_kernel() -> str | None:
    """Return the name of the kernels that NumPy's OpenBLAS chose for this processor, such as `SkylakeX`. Return None if
    the name cannot be read, for example because NumPy's wheel contains neither OpenBLAS nor scipy-openblas.
    """
    numpy_folder = Path(np.__file__).parent
    for library_path in [*numpy_folder.parent.glob("numpy.libs/*openblas*"), *numpy_folder.glob(".dylibs/*openblas*")]:
        with suppress(OSError):
            library = ctypes.CDLL(str(library_path))  # returns the library that NumPy has already loaded
            # Prefixes and suffixes of the names of the library's functions differ between NumPy wheels.
            for prefix, suffix in product(("", "scipy_"), ("", "64_")):
                get_core_name = getattr(library, f"{prefix}openblas_get_corename{suffix}", None)
                if get_core_name is not None:
                    get_core_name.restype = ctypes.c_char_p
                    core_name: bytes | None = get_core_name()
                    return core_name.decode("ascii", "replace") if core_name else None
    return None


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages in `names` and of this project's package, by name."""
    # This project's package is safevla-bench or, if that is not installed, safevla-recorder.
    versions: dict[str, str] = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    for name in ("safevla-bench", "safevla-recorder"):
        with suppress(importlib.metadata.PackageNotFoundError):
            # Metadata of an editable installation may name an old version, so only check that the package is installed.
            importlib.metadata.version(name)
            return {**versions, name: __version__}
    return versions


def find_layer(env: object, kind: type[Layer]) -> Layer | None:
    """Return the outermost object of type `kind` among `env` and its inner objects; None = no object has this type."""
    return next((layer for layer in _env_layers(env, kind) if isinstance(layer, kind)), None)


def _env_layers(env: object, kind: type) -> Iterator[object]:
    """Yield `env` and its inner objects, outermost first. At most `_MAX_LAYERS` objects are visited."""
    # An inner object is an attribute whose name is in `_INNER_ATTRIBUTES`, or whose value is of type `kind`.
    seen: list[object] = []
    to_visit = [env]
    while to_visit and len(seen) < _MAX_LAYERS:
        layer = to_visit.pop(0)
        # Compare by identity, because an environment may define `==` in its own way.
        if layer is None or any(layer is earlier for earlier in seen):
            continue
        seen.append(layer)
        yield layer
        to_visit += [_read_attribute(layer, name) for name in _INNER_ATTRIBUTES]
        to_visit += [value for value in getattr(layer, "__dict__", {}).values() if isinstance(value, kind)]


def _read_attribute(layer: object, name: str, default: object = None) -> object:
    # Return an attribute's value, or `default` if reading the attribute raises an error.
    try:
        return getattr(layer, name, default)
    except Exception:  # a property may raise any exception
        return default


def is_unmade(env: object) -> bool:
    """Return whether `env` is probably a wrapper that makes its inner environment at the first reset."""
    if _read_attribute(env, "reset") is None:  # an object without `reset` is not a wrapper
        return False
    absent = object()  # distinguishes a missing attribute from an attribute with the value None
    layers = _env_layers(env, type(None))  # only None is of this type, so only names identify inner objects
    # Before a wrapper makes its inner environment, the wrapper's attribute for this environment is None.
    return any(_read_attribute(layer, name, absent) is None for layer in layers for name in _INNER_ATTRIBUTES)


@contextmanager
def watch_construction(kinds: Sequence[type], on_made: Callable[[object], None]) -> Iterator[None]:
    """Call `on_made` with each new instance of a class in `kinds`, or of a subclass, during the `with` block."""
    # The call follows the `__init__` of the class in `kinds`; the `__init__` of a subclass may still be running.
    # Instances that other threads make meanwhile belong to other environments, and are left out.
    thread = threading.get_ident()

    # The result of `__init__` is None. All arguments of `__init__` except the new instance are ignored.
    def after_init(_: object, instance: object, *__: object, **___: object) -> None:
        if threading.get_ident() == thread:
            on_made(instance)

    with _class_lock:
        hooks = [hook_call(kind, "__init__", after=after_init) for kind in kinds]
    try:
        yield
    finally:
        with _class_lock:
            undo_all(hooks)


def hook_state_setters(
    env: Any, cutter: EpisodeCutter, hooks: list[Undo], find_index: Callable[[Any], int | None]
) -> None:
    """Report to `cutter` the states that the user's script sets in robosuite's current simulation. Refills `hooks`."""
    # `find_index` returns the index of a state among the initial states; None = unknown.
    # A reset may make a new simulation, and sets states itself.
    # So undo the hooks before a reset, and call this function after the reset.

    def after_set_state(_: object, *args: Any, **kwargs: Any) -> None:
        with cutter.guard():
            cutter.on_state_set(find_index([*args, *kwargs.values()][0]))

    undo_all(hooks)
    if env.sim is not None:  # None before a kitchen's first reset
        # The first method takes a state as robosuite's own object, the second method as a flat array.
        for method in ("set_state", "set_state_from_flattened"):
            hooks.append(hook_call(env.sim, method, cutter.on_interruption, after_set_state))


def subscribe_steps(env: Any, cutter: EpisodeCutter, is_success: Callable[[Any], bool]) -> list[Undo]:
    """Report each step and the closing of robosuite's environment to `cutter`. Return functions that remove the hooks.

    `is_success` returns whether a step's result reports the simulator's own success. Immediately before the
    environment is closed, a hook reports an interruption.
    """
    # `cutter` turns the reported events into recorded episodes.

    def step(original: Any, *args: Any, **kwargs: Any) -> object:
        # Replaces the environment's `step`: calls the `original` method, and reports its action, result or error.
        cutter.before_step(args[0] if args else kwargs.get("action"))
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            cutter.on_error(error)
            raise
        with cutter.guard():  # errors of recording do not reach the user's loop
            info = result[-1]  # robosuite's dict of further facts about the step
            cutter.after_step(is_success(result), info.get("cost") if isinstance(info, dict) else None)
        return result

    def before_close() -> None:
        cutter.on_interruption()
        cutter.is_closed = True

    hooks = [wrap_method(env, "step", step), hook_call(env, "close", before_close)]
    env.step.is_recording = True  # `is_recorded` reads this attribute; later hooks on `step` copy the attribute
    return hooks


# How the events of an environment in a user's own loop become episodes


@dataclass(frozen=True)
class LoopRules:
    """Facts that only the author of a loop knows; None means that a fact is unknown."""

    policy: str
    wait_steps: int
    horizon: int | None = None
    seed: int | None = None
    privileged: bool = False
    worker: str | None = None  # name of this process in the episodes' ids, if several processes record


KeepEpisode = Callable[[EpisodeRow, Optional[bytes]], None]


@dataclass
class _RunningEpisode:
    row: EpisodeRow  # outcome, steps and reason are filled in when the episode ends
    recorder: Recorder
    detach: Undo
    fixtures: dict[str, list[float]] | None  # poses of fixtures; None if the seed and initial state determine them
    earlier_seed: dict[str, int]
    """The last seed, and the number of resets between it and this episode's reset; empty if this reset had a seed."""
    states_set: int  # number of initial states that were set since the last reset
    steps: int = 0
    costs: list[object] = field(default_factory=list)


def _run_guarded(method: Callable[..., None]) -> Callable[..., None]:
    # A decorator for methods of `EpisodeCutter`: run the method inside `guard`. If the method raises an error,
    # `guard` drops the running episode and warns, so that the error does not reach the user's loop.
    @wraps(method)
    def call_guarded(self: EpisodeCutter, *args: object, **kwargs: object) -> None:
        with self.guard():
            method(self, *args, **kwargs)

    return call_guarded


class EpisodeCutter:
    """Turns the events of one environment into episodes, and passes each episode to `keep` as soon as it ends.

    `take_number` counts an episode of this task and returns its number. An error in recording does not reach the user's
    loop: the current episode is lost, and a warning gives the reason. `lost` counts such errors. `is_closed` is true
    when the environment is being closed or was closed.
    """

    def __init__(self, env: RecordableEnv, rules: LoopRules, take_number: Callable[[], int], keep: KeepEpisode) -> None:
        # `rules` contains facts about the user's loop. `take_number` counts an episode and returns its number (from 0).
        # `keep` receives each ended episode's row and the bytes of its file (None = no file).
        self._env, self._rules, self._take_number, self._keep = env, rules, take_number, keep
        self._running: _RunningEpisode | None = None
        self._awaits_reset = False  # True from an episode's end to the next reset or new state
        self._settling_steps = 0  # number of settling steps since the last reset
        self._pending_seed: int | None = None  # seed that the next reset will use
        self._env_seed: int | None = None  # seed used by the last reset
        self._last_seed: int | None = None  # the last seed that `on_seed` received
        self._resets_since_seed = 0  # number of resets since `on_seed` was called
        self._init_state_index: int | None = None
        self._states_set = 0  # number of initial states that were set since the last reset
        # Positions after the last reset, new state or settling step; None in an episode.
        self._start: Floats | None = None
        self._current_action: Action | None = None
        self._ended_at_horizon = False  # whether the last episode ended as a timeout at the horizon
        self._warned_reasons: set[str] = set()
        self.lost = 0  # number of errors that `guard` caught, even if no episode was running
        self.is_closed = False
        self.owner: object = None  # an object that this `EpisodeCutter` keeps alive

    @property
    def is_running(self) -> bool:
        """True if an episode has begun and not ended."""
        return self._running is not None

    @contextmanager
    def guard(self) -> Iterator[None]:
        """If the block raises an error, keep only the episode's row (`crashed`). Re-raise an error of a signal."""
        # Any other error leads to a warning, once for each reason; the user's loop continues.
        try:
            yield
        except BaseException as error:  # recording may fail in many ways, such as on a full disk or by Ctrl+C
            running, self._running = self._running, None  # `running` is the dropped episode; None = no episode ran
            self._awaits_reset = True  # further steps are not recorded until the next reset or new state
            self.lost += 1
            reason = str(error) if isinstance(error, SafevlaError) else f"{type(error).__name__}: {error}"
            if running is not None:
                with suppress(Exception):
                    running.detach()  # `detach` removes the recorder's hooks
                with suppress(Exception):  # store only the episode's row, without a record
                    self._keep(replace(running.row, outcome="crashed", steps=running.steps, reason=reason), None)
            if not isinstance(error, Exception) or is_from_signal(error):
                raise
            if reason not in self._warned_reasons:  # warn only once for each reason
                self._warned_reasons.add(reason)
                with suppress(Exception):  # the log or stderr may be closed
                    _log.warning("an episode of %s is not recorded: %s", self._env.task.task_id, reason)

    @_run_guarded
    def on_seed(self, seed: object) -> None:
        """Store the seed for the next reset, and count resets from 0 again. Resets without a new seed continue the same
        random sequence. A seed that is not an integer, such as None or an array, is recorded as unknown.
        """
        self._pending_seed = self._last_seed = int(seed) if isinstance(seed, (int, np.integer)) else None
        self._resets_since_seed = 0

    @_run_guarded
    def forget_seed(self) -> None:
        """Record the seed of the next reset as unknown, because numbers were drawn since the seed was set."""
        self._pending_seed = None

    @_run_guarded
    def on_interruption(self) -> None:
        """End the running episode, if any, because the loop resets or closes the environment, or sets a state. If the
        horizon is known and the episode is shorter, the outcome is `stopped`. Otherwise, it is `timeout`.
        """
        if self._running is None:
            return
        # The loop gives up after `horizon` steps. If `horizon` is None (unknown), assume that the loop gave up.
        steps, horizon = self._running.steps, self._rules.horizon
        if horizon is None or steps >= horizon:
            self._end_episode("timeout")
        else:
            self._end_episode("stopped", f"ended without success after {steps} of {horizon} steps")

    @_run_guarded
    def stop(self, reason: str) -> None:
        """End the running episode, if any, as `stopped`, with `reason` in its row of the run's table."""
        if self._running is not None:
            self._end_episode("stopped", reason)

    @_run_guarded
    def on_reset(self) -> None:
        """After a reset, count settling steps from 0. The reset used the stored seed, and set no initial state."""
        # `unstable_steps` counts MuJoCo's own resets of unstable states; a reset of the environment sets it to 0.
        self._awaits_reset = self._ended_at_horizon = False
        self._settling_steps = self._env.unstable_steps = self._states_set = 0
        self._init_state_index = None
        self._env_seed, self._pending_seed = self._pending_seed, None
        self._resets_since_seed += 1
        self._start = self._env.copy_positions()

    @_run_guarded
    def on_state_set(self, init_state_index: int | None) -> None:
        """Count settling steps from 0 after an initial state was set. Store its index (None = unknown)."""
        self._awaits_reset = self._ended_at_horizon = False
        self._settling_steps = 0
        self._states_set += 1
        self._init_state_index = init_state_index
        # MuJoCo's earlier resets of unstable states do not affect the new state; only later resets are errors.
        self._env.unstable_steps = self._env.count_unstable_steps()
        self._start = self._env.copy_positions()

    @_run_guarded
    def before_step(self, action: object) -> None:
        """Begin an episode with record 0 if settling is over and no episode runs. End it as `invalid_action` if the
        action is unusable. Do nothing between an episode's end and the next reset or new state. The episode is lost
        if a settling step moves the arm, or if the model cannot be recorded.
        """
        if self._awaits_reset:
            self._warn_of_longer_loop()
            return
        if self._start is not None:
            positions, self._start = self._start, None
            if not np.array_equal(positions, self._env.copy_positions()):  # type: ignore[arg-type]  # may be None
                self._init_state_index = self._env_seed = None  # the script has moved a body or the robot
        # Only built-in values (such as lists) and values with a dtype (such as arrays and tensors) are accepted.
        if type(action).__module__ != "builtins" and not hasattr(action, "dtype"):
            raise TypeError(f"the action has the type {type(action).__name__}; pass an array")
        if np.iscomplexobj(np.asarray(action)):
            raise TypeError("the action has complex numbers")
        action_copy = np.array(action, dtype=np.float64)  # copy: the simulator may modify the action in place
        if self._settling_steps < self._rules.wait_steps:  # the environment still settles after a reset
            self._require_still(action_copy)
            return
        if self._running is None:
            self._begin_episode(action_copy)
        if self._running is None:  # the model cannot be recorded
            return
        action_size = self._env.action_size
        if action_copy.shape != (action_size,):
            problem = f"the action needs {action_size} numbers, but its shape is {action_copy.shape}"
            self._end_episode("invalid_action", problem)
        elif not np.isfinite(action_copy).all():
            self._end_episode("invalid_action", f"the action {action_copy.tolist()} is not finite")
        self._current_action = action_copy  # `after_step` records this action

    @_run_guarded
    def after_step(self, success: bool, cost: object = None) -> None:
        """Count a finished step as a settling step, or record it with its `cost` (see `add_costs`). Success or the
        horizon ends the episode. If the simulation can no longer be recorded, the episode ends as `crashed`.
        """
        # `success` is whether the simulator reports success, and `cost` is the step's reported cost; None = no cost.
        if self._awaits_reset:  # between two episodes, steps are not recorded
            return
        running = self._running
        if running is None:
            self._settling_steps += 1
            self._start = self._env.copy_positions()
            return
        assert self._current_action is not None
        try:
            running.recorder.record_step(self._current_action)
        except SafevlaError as error:  # the simulation diverged; the loop continues without this episode
            self._end_as_crashed(str(error))
            return
        running.steps += 1
        running.costs.append(copy.copy(cost))  # copy: the simulator may modify the cost in place
        if success:
            self._end_episode("success")
        elif running.steps == self._rules.horizon:
            self._end_episode("timeout")
            self._ended_at_horizon = True

    @_run_guarded
    def on_error(self, error: BaseException) -> None:
        """End any running episode. An `Exception` gives the outcome `crashed`, any other error `stopped`."""
        if self._running is None:
            return
        if isinstance(error, Exception):
            self._end_as_crashed("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        else:
            self.stop(f"interrupted by {type(error).__name__}")

    def _warn_of_longer_loop(self) -> None:
        # Warn once if the loop goes on after the horizon, because a later success is not recorded.
        if self._ended_at_horizon and "horizon" not in self._warned_reasons:
            self._warned_reasons.add("horizon")
            message = (
                "%s: the loop goes on after the horizon of %d steps, where the episode is recorded as a timeout;\n"
                "  pass the loop's own limit, record(..., horizon=N), which counts every step of the simulator"
            )
            _log.warning(message, self._env.task.task_id, self._rules.horizon)

    def _require_still(self, action: Action) -> None:
        # Raise an error if the action of a settling step moves the arm, which shows that `wait_steps` is wrong.
        if self._env.is_still(action):
            return
        planned, done = self._rules.wait_steps, self._settling_steps
        problem = f"the first {planned} steps after a reset must not move the arm, but step {done + 1} moves it"
        remedy = f"Pass your loop's number of settling steps after a reset, such as record(..., wait_steps={done})."
        raise RunError(problem, remedy=remedy)

    def _begin_episode(self, action: Action) -> None:
        # Begin an episode: attach a recorder, which takes record 0.
        # The episode's first `action` is checked, not recorded.
        # If the model cannot be recorded, no episode runs; only a row with the outcome `crashed` is kept.
        if self._env.is_still(action):
            message = (
                "%s: the first step after %d settling steps does not move the arm, but is recorded as a policy step;"
                "  if your loop settles for longer, pass record(..., wait_steps=N)"
            )
            _log.warning(message, self._env.task.task_id, self._rules.wait_steps)
        try:
            recorder, detach = self._env.start_recorder()
        except SafevlaError as error:
            self._awaits_reset = True  # no episode begins before the next reset or new state
            self._keep_crashed_row(self._begin_row(), 0, str(error))  # the episode crashed after 0 steps
            return
        earlier_seed = {}
        # Without a seed, this reset continued the random sequence of the last seed.
        if self._env_seed is None and self._last_seed is not None and self._resets_since_seed:
            # The number `earlier_resets` does not include this episode's own reset.
            earlier_seed = {"seed": self._last_seed, "earlier_resets": self._resets_since_seed - 1}
        # Record the fixtures' poses unless the seed and the initial state determine them.
        can_fixtures_vary = self._env_seed is None or self._init_state_index is None or self._env.has_soft_resets
        try:
            fixtures = self._env.fixture_poses() if can_fixtures_vary else None
            row = self._begin_row()
        except BaseException:
            detach()  # no episode is running, so no end of an episode would call `detach`
            raise
        # `detach` removes the recorder's hooks; `_states_set` counts the initial states set since the last reset.
        self._running = _RunningEpisode(row, recorder, detach, fixtures, earlier_seed, self._states_set)
        self._env_seed = None  # the next episode has a seed only after another reset with a seed

    def _begin_row(self) -> EpisodeRow:
        # Count a new episode and return its row; outcome and steps are filled in when it ends.
        # `rules.worker` is the name of this process if several processes record; the name is part of the episode's id.
        task, rules, episode_number = self._env.task, self._rules, self._take_number()
        worker_folder = "" if rules.worker is None else f"worker_{rules.worker}/"
        return EpisodeRow(
            episode_id=f"{rules.policy}/{task.benchmark}/{task.task_id}/{worker_folder}ep_{episode_number:03d}",
            policy=rules.policy,
            benchmark=task.benchmark,
            task_id=task.task_id,
            episode=episode_number,
            init_state_index=self._init_state_index,
            env_seed=self._env_seed,
            seed=rules.seed,
            policy_seed=None,
            horizon=rules.horizon,
            outcome="",
            steps=0,
        )

    def _end_episode(self, outcome: str, reason: str | None = None) -> None:
        # End the running episode, and pass its row and its encoded record (`content`) to `_keep`.
        # `reason` says why the episode was stopped, or why an action is invalid.
        # If the record is invalid or cannot be encoded, only its row is kept, with the outcome `crashed`.
        running = self._pop_running_episode()
        try:
            content = episode.encode_episode(self._build_recording(running, outcome))
        except (SafevlaError, ValueError) as error:  # ValueError: UTF-8 cannot encode a text
            outcome, reason, content = "crashed", str(error), None
        self._keep(replace(running.row, outcome=outcome, steps=running.steps, reason=reason), content)

    def _build_recording(self, running: _RunningEpisode, outcome: str) -> EpisodeArrays:
        # Return the record of an ended episode: the recorder's arrays, the header, and facts about the user's loop.
        # Raise an error if a recorded number is not valid.
        row, is_success = running.row, outcome == "success"
        env_header = self._env.build_header(
            running.recorder, success=is_success, env_seed=row.env_seed, index=row.init_state_index
        )
        header = {
            **env_header,
            "episode_id": row.episode_id,
            "policy": row.policy,
            "seed": row.seed,
            "horizon": row.horizon,
            "outcome": outcome,
        }
        recording = episode.add_costs(running.recorder.build_recording(header), running.costs)
        episode.check_recorded_numbers(recording)
        # Further header fields by name. A `privileged` policy sees simulator state that no real robot has.
        loop_fields = {
            episode.EARLIER_SEED: running.earlier_seed,
            "privileged": self._rules.privileged,
            episode.STATES_SET: running.states_set if running.states_set > 1 else None,
            episode.SIMULATION: self._env.read_simulation(),
        }
        # Leave out empty fields. Keep an empty `fixtures`, which means that the scene has no fixtures.
        known_loop_fields = {name: value for name, value in loop_fields.items() if value}
        if running.fixtures is not None:
            known_loop_fields[episode.FIXTURES] = running.fixtures
        for name, value in {**self._env.header_fields(), **known_loop_fields}.items():
            recording = replace(recording, extra=episode.add_header_field(recording.extra, name, value))
        return recording

    def _end_as_crashed(self, reason: str) -> None:
        # End the running episode as `crashed`. Keep only its row. `reason` is an error message or a traceback.
        running = self._pop_running_episode()
        self._keep_crashed_row(running.row, running.steps, reason)

    def _keep_crashed_row(self, row: EpisodeRow, steps: int, reason: str) -> None:
        # Log that an episode crashed after `steps` steps. Pass its row to `_keep`, with None instead of a record.
        # The row stores the whole `reason`.
        # If `reason` is a traceback, only the exception's line and remedy are logged.
        log_reason = reason
        if "Traceback (most recent call last)" in reason:  # a reason without a traceback is a short message
            exception_line, remedy = find_exception(reason)
            log_reason = f"{exception_line}\n  {remedy}" if remedy else exception_line
        _log.warning("%s crashed: %s", row.episode_id, log_reason)
        self._keep(replace(row, outcome="crashed", steps=steps, reason=reason), None)

    def _pop_running_episode(self) -> _RunningEpisode:
        # Return the running episode after it has ended: no episode runs, and the recorder's hooks are removed.
        # Further steps are not recorded until the next reset or new state.
        assert self._running is not None
        running, self._running = self._running, None
        self._awaits_reset = True
        running.detach()
        return running
