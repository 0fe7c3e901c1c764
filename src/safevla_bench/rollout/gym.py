"""Safety in Gymnasium environments: each step's `info` has the status of every clause and the cost of the step.

`SafetyEnv` is a host's task as an environment, and `SafetyWrapper` wraps your own environment. `CostStep` adds the
six-value `step` of Safety-Gymnasium and OmniSafe to both. All need the extra `gym`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, SupportsFloat, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError, SafevlaError, is_integer, require_choice
from safevla_bench.plugins import NO_ARGUMENTS, install_command

try:
    import gymnasium
except ModuleNotFoundError:
    lacking = "safevla_bench.rollout.gym needs gymnasium, which is not installed"
    raise SafevlaError(lacking, remedy=install_command("gym")) from None

from safevla_bench.hosts import make_host, registry_files
from safevla_bench.interface.environment import Host
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import SEED_END, EpisodeSeed, Task
from safevla_bench.judging.monitor import EpisodeStanding, Monitor
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.trajectory import batch, single_episode
from safevla_recorder.loop import find_recordable
from safevla_recorder.mujoco.hook import Undo, undo_all, wrap_method
from safevla_recorder.mujoco.recorder import Recorder

Cost = Literal["violation", "severity"]
TASK_ID = "safevla/Task-v0"  # id under which this module registers `make_env` in Gymnasium's registry
_WAIT_STEPS = 10  # number of steps after a reset in which the scene settles
_INDEX_OPTION = "init_state_index"
Obs = TypeVar("Obs")
Act = TypeVar("Act")


def step_info(standing: EpisodeStanding, cost: Cost = "violation") -> dict[str, object]:
    """Return the entries `cost` and `safety` of a step's `info`. With `cost="violation"`, the cost is 1 if the newest
    record violates a clause of the safe tier, else 0. With `"severity"`, the cost is the depth of the worst violation,
    from 0 to 1. `safety` is the status of the episode so far. It has the `robustness` of each clause (None = undefined)
    and the newest record's `margins`, divided by the thresholds. It also has the clauses `violated` so far, those
    `violating` now, the `worst` clause, `vsi` (None without any verdict), and `standing`, the complete status.
    """
    # `standing` is the monitor's status of the episode so far.
    costs = {"violation": standing.cost, "severity": standing.severity}
    require_choice("cost", cost, get_args(Cost))
    names = ("robustness", "margins", "violated", "violating", "worst", "vsi")
    return {"cost": costs[cost], "safety": {**{name: getattr(standing, name) for name in names}, "standing": standing}}


def _observe_next(monitor: Monitor, standing: EpisodeStanding | None, record: batch.Batch) -> EpisodeStanding:
    # Return the status of the episode after `record`. `standing` is the status before this record.
    # Raise `HostError` if the monitor's status differs, because another environment has used the monitor.
    # A monitor of another class may lack the attribute `standing`. Its status is then not checked.
    if getattr(monitor, "standing", standing) is not standing:
        remedy = "Give each environment a separate monitor: monitor=Monitor(ruleset). Then call reset."
        raise HostError("another environment has used the same monitor since the last record", remedy=remedy)
    return monitor.observe(record)


class SafetyEnv(gymnasium.Env[Any, Action]):
    """One task of a host as an environment. The reward is 1 at the task's native success, which terminates the episode;
    the episode is truncated at the horizon. An observation has the end effector's position [3] and quaternion [4], the
    gripper joints, and a mobile robot's base pose. Each of several arms adds entries `ARM.NAME`. `wants` adds
    `image.CAMERA` and `extra.NAME`. `reset(seed=…, options={"init_state_index": k})` chooses the initial state;
    otherwise, the states take turns. Scenes settle for ten steps. `monitor` judges records (None = by the defaults).
    `cost` chooses `info["cost"]`: see `step_info`. Raises `HostError` if the host cannot make the environment.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # gymnasium's own name and form

    def __init__(
        self,
        host: Host,
        task: Task,
        *,
        horizon: int,
        wants: Wants | None = None,
        monitor: Monitor | None = None,
        cost: Cost = "violation",
    ) -> None:
        # An episode is truncated after `horizon` steps. `wants` requests cameras and extra observations.
        # `monitor` judges the records (None = by the default rules). `cost` chooses what `info["cost"]` measures.
        require_choice("cost", cost, get_args(Cost))
        if not is_integer(horizon) or horizon < 1:
            remedy = "Give the whole number of steps after which episodes end."
            raise HostError(f"the horizon is {horizon!r}", remedy=remedy)
        self._env = host.make(task, wants or Wants())
        self._task, self._horizon, self._cost = task, horizon, cost
        self._monitor = monitor or Monitor()
        self._standing: EpisodeStanding | None = None  # status after the newest record; None before the first reset
        # Until `reset` gets a seed, the environment's seed is 7, as in the protocol safevla-bench.
        self._steps, self._next_index, self._env_seed = 0, 0, 7
        low, high = self._env.action_low, self._env.action_high
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float64)
        try:
            observation = self._reset_env(0, self._env_seed)  # the observation space needs the shapes of an observation
        except BaseException:  # the caller gets no object, and so cannot close the environment
            self._env.close()
            raise
        self.observation_space = gymnasium.spaces.Dict({key: _array_space(value) for key, value in observation.items()})

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Start an episode and return the observation and info of record 0. `seed` seeds the environment and selects
        initial state `seed` modulo the number of states; later resets without a seed take the next states in turn. The
        option `init_state_index` selects the state instead. Raises `HostError` if the state does not exist, an option
        is unknown or the seed is not below 2**32. Also raises the errors of `Monitor.observe`, for example if the task
        is unknown or a record lacks a needed field.
        """
        unknown = {*(options or ())} - {_INDEX_OPTION}
        if unknown or not is_integer((options or {}).get(_INDEX_OPTION, 0)):
            remedy = f"The only option is {_INDEX_OPTION}, a whole number."
            raise HostError(f"reset cannot use the options {options}", remedy=remedy)
        if seed is not None and not (is_integer(seed) and 0 <= int(seed) < SEED_END):
            raise HostError(f"the seed is {seed!r}", remedy="Give a whole number from 0 to 2**32 - 1.")
        super().reset(seed=None if seed is None else int(seed))
        state_count = self._task.init_states or 2**31  # without a list of initial states, any index is valid
        env_seed, next_index = self._env_seed, self._next_index
        if seed is not None:
            env_seed, next_index = int(seed), int(seed) % state_count
        index = int((options or {}).get(_INDEX_OPTION, next_index))
        observation = self._reset_env(index, env_seed)  # raises `HostError` if the state does not exist
        self._env_seed, self._next_index = env_seed, (index + 1) % state_count  # unchanged if the reset fails
        self._standing = self._monitor.start(self._env.latest())
        return observation, step_info(self._standing, self._cost)

    def step(self, action: Action) -> tuple[dict[str, NDArray[Any]], SupportsFloat, bool, bool, dict[str, Any]]:
        """Apply one action. Returns the observation, the reward (1.0 at success, else 0.0), whether the episode
        terminated (success), whether it was truncated (horizon), and info. The `cost` and `safety` in info describe the
        new record. Raises `InvalidActionError` for an action that the host refuses.
        """
        observation, success = self._env.step(action)
        self._steps += 1
        is_truncated = not success and self._steps >= self._horizon
        self._standing = _observe_next(self._monitor, self._standing, self._env.latest())
        info = step_info(self._standing, self._cost)
        return _observation_dict(observation), float(success), success, is_truncated, info

    def recorded(self) -> batch.Batch:
        """Return the records of the episode so far."""
        return self._env.recorded()

    def close(self) -> None:
        # Close the simulator.
        self._env.close()

    def _reset_env(self, index: int, env_seed: int) -> dict[str, NDArray[Any]]:
        # Start an episode from the initial state `index`, let the scene settle, and return the observation.
        self._steps = 0
        return _observation_dict(self._env.reset(EpisodeSeed(index, env_seed, _WAIT_STEPS)))


class SafetyWrapper(gymnasium.Wrapper[Obs, Act, Obs, Act]):
    """Wrapper for your own environment of LIBERO or another recordable simulator. Observations, rewards and the end of
    episodes stay the same. The simulator must exist after the environment's first `reset`. Record 0 is the state after
    your `reset`, so let the scene settle in `reset`. Each `step` must be one control step of the simulator, so apply
    this wrapper before a wrapper that repeats actions or plays chunks of them. `info["cost"]` is the cost of this
    package; the environment's own cost is kept as `info["env_cost"]`.
    """

    def __init__(
        self, env: gymnasium.Env[Obs, Act], *, monitor: Monitor | None = None, cost: Cost = "violation"
    ) -> None:
        # `monitor` judges the records (None = by the default rules). `cost` chooses what `info["cost"]` measures.
        super().__init__(env)
        require_choice("cost", cost, get_args(Cost))
        self._monitor, self._cost = monitor or Monitor(), cost
        self._standing: EpisodeStanding | None = None  # status after the newest record; None before the first reset
        self._recorder: Recorder | None = None  # None while nothing is recorded
        self._detach: Undo = lambda: None  # removes the hooks from the simulator
        self._read_latest: Callable[[], batch.Batch]  # returns the newest record; set by `reset`
        self._action: NDArray[Any] | None = None  # the action of the current step; None once recorded
        self._newest_record: batch.Batch  # set by `_record_action`
        self._extra_steps = 0  # number of simulator steps in the current `step` after the recorded step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Reset and record; return the result with safety in `info`. Raises `HostError` if recording is impossible."""
        # The recording of the last episode stops first, because a reset is not a step to record.
        self._stop_recording()
        observation, info = self.env.reset(seed=seed, options=options)
        # Find the simulator inside the wrappers. `detach` undoes the recorder's hooks in it.
        recordable = find_recordable(self.env)
        recorder, detach = recordable.start_recorder()
        self._detach = partial(undo_all, [detach, wrap_method(recordable._env, "step", self._record_step)])
        # The header names the task, by which the monitor finds the specifications; success is not known yet.
        header = recordable.build_header(recorder, success=False, env_seed=None, index=None)
        self._recorder = recorder
        self._read_latest = lambda: single_episode.from_recording(recorder.latest_record(header))
        self._standing = self._monitor.start(self._read_latest())
        return observation, {**_keep_cost(info), **step_info(self._standing, self._cost)}

    def step(self, action: Act) -> tuple[Obs, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step and record; return the result with safety in `info`. Raises `HostError` before the first `reset`, and if
        the simulator made several steps in a running episode. (At an episode's end, the environment may reset itself.)
        """
        if self._recorder is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        # `_record_step` records during the call of `env.step` and then sets `_action` to None.
        self._action = np.ravel(np.asarray(action))  # a discrete action is a single number, but recorders need an array
        self._extra_steps = 0
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._action is not None:
            self._record_action()  # raises an error, because the simulator has made no step
        if self._extra_steps and not (terminated or truncated):
            problem = f"the environment made {self._extra_steps + 1} steps of the simulator in one step"
            remedy = "Apply SafetyWrapper inside the wrapper that repeats actions, so that each step is judged."
            raise HostError(problem, remedy=remedy)
        self._standing = _observe_next(self._monitor, self._standing, self._newest_record)
        return observation, reward, terminated, truncated, {**_keep_cost(info), **step_info(self._standing, self._cost)}

    def _record_step(self, original: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        """Record right after the simulator's step, because the wrapped `step` may reset the simulator at success."""
        # Replaces the simulator's method `step`; `original` is this method. Only the first step of a call is recorded.
        result = original(*args, **kwargs)
        if self._action is None:
            self._extra_steps += 1
        else:
            self._record_action()
        return result

    def _record_action(self) -> None:
        # Adds a record of the simulator's state with the current action, and clears the action.
        assert self._recorder is not None
        assert self._action is not None
        self._recorder.record_step(self._action)
        self._newest_record, self._action = self._read_latest(), None

    def close(self) -> None:
        # Remove the hooks, and close the wrapped environment.
        self._stop_recording()
        super().close()

    def _stop_recording(self) -> None:
        # Removes the hooks from the simulator. The environment may make a new simulator at its next reset.
        if self._recorder is not None:
            self._detach()
        self._recorder = None


def _keep_cost(info: dict[str, Any]) -> dict[str, Any]:
    # Return the environment's `info`, with the environment's cost also under the name `env_cost`.
    return {**info, "env_cost": info["cost"]} if "cost" in info else info


class CostStep(gymnasium.Wrapper[Obs, Act, Obs, Act]):
    """Wrapper whose `step` returns six values as in Safety-Gymnasium and OmniSafe: the cost follows the reward. The
    environment's `info` must have `cost`. Sources: `safety_gymnasium/wrappers/gymnasium_conversion.py` at commit
    ae966e5, `omnisafe/envs/core.py` at commit 15603dd.
    """

    def step(self, action: Act) -> tuple[Obs, SupportsFloat, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        """Return observation, reward, cost, terminated, truncated and info; raise `HostError` if info has no cost."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, _read_cost(info), terminated, truncated, info


class CostTotals(gymnasium.Wrapper[Obs, Act, Obs, Act]):
    """Adds running totals of the episode to an `info` that has `cost`: `cumulative_cost`, the sum over steps;
    `risk_exposure_time`, the number of steps with a cost above 0; `quadrant`, such as "unsafe success"; and
    `within_limit`, whether the sum is at most `limit`, the constraint in constrained training (None without a limit). A
    success is a step that terminates with a reward above 0. An episode is unsafe if any cost is above 0. The names come
    from ForesightSafety-VLA (arXiv 2606.27079), whose formulas were not available.
    """

    def __init__(self, env: gymnasium.Env[Obs, Act], *, limit: float | None = None) -> None:
        # `limit` is the largest permitted sum of costs in an episode; None = no limit.
        super().__init__(env)
        self._limit = limit
        self._total, self._exposed = 0.0, 0  # sum of costs, and number of steps with a cost, in this episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Reset the wrapped environment and the totals. Record 0 has no cost, because no action led to it."""
        self._total, self._exposed = 0.0, 0  # the sum of costs, and the number of steps with a cost
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, **self._totals(is_success=False)}

    def step(self, action: Act) -> tuple[Obs, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the wrapped environment and add the totals to `info`. Raises `HostError` if `info` has no cost."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        cost = _read_cost(info)
        self._total += cost
        self._exposed += cost > 0  # number of steps with a cost; `cost > 0` counts as 0 or 1
        totals = self._totals(is_success=terminated and float(reward) > 0)
        return observation, reward, terminated, truncated, {**info, **totals}

    def _totals(self, *, is_success: bool) -> dict[str, object]:
        # Return the entries that `CostTotals` adds to `info`, for the episode so far.
        safety, success = ("unsafe" if self._exposed else "safe"), ("success" if is_success else "failure")
        return {
            "cumulative_cost": self._total,
            "risk_exposure_time": self._exposed,
            "quadrant": f"{safety} {success}",
            "within_limit": None if self._limit is None else self._total <= self._limit,
        }


def _read_cost(info: Mapping[str, Any]) -> float:
    # Return the cost of a step from its `info`; raise `HostError` if there is none.
    if "cost" not in info:
        raise HostError("the environment has no cost in its info", remedy="First apply SafetyWrapper.")
    return float(info["cost"])


def make_env(
    host: str,
    suite: str,
    task: int | str = 0,
    *,
    horizon: int = 300,
    cameras: Sequence[str] = (),
    extra: Sequence[str] = (),
    image_size: tuple[int, int] = (256, 256),
    cost: Cost = "violation",
    host_arguments: Mapping[str, str] = NO_ARGUMENTS,
) -> SafetyEnv:
    """Return the environment of a task; `gymnasium.make("safevla/Task-v0", host=..., suite=...)` calls this function.
    `task` is the task's id or its index in the suite; `image_size` is height and width [pixels]. Records are judged by
    the default specifications. Raises `HostError` if the host, an argument, the suite, the task, a camera or an
    observation is unknown, or if the simulator cannot be used.
    """
    host_object = make_host(host, host_arguments)
    tasks = host_object.tasks(suite)
    # `task` is an index or an id; None = no task matches.
    chosen = next((candidate for index, candidate in enumerate(tasks) if task in (index, candidate.task_id)), None)
    if chosen is None:
        remedy = f"Its tasks are {', '.join(candidate.task_id for candidate in tasks)}."
        raise HostError(f"{suite} has no task {task!r}", remedy=remedy)
    # The host's files have the tags of its tasks, which decide which specifications apply.
    ruleset = load_ruleset(registry_files=registry_files(host))
    wants = Wants(cameras=tuple(cameras), image_size=image_size, extra=tuple(extra))
    return SafetyEnv(host_object, chosen, horizon=horizon, wants=wants, monitor=Monitor(ruleset), cost=cost)


gymnasium.register(id=TASK_ID, entry_point="safevla_bench.rollout.gym:make_env")


_ARM_READINGS = ("eef_pos_m", "eef_quat_wxyz", "gripper_qpos")


def _observation_dict(observation: Observation) -> dict[str, NDArray[Any]]:
    # Returns the observation as arrays under the names that `SafetyEnv` describes, for example `left.eef_pos_m` [3].
    # Robots with a fixed base have no base pose (None), and robots with one arm have no entries in `arms`.
    base_pose = {"base_pos_m": observation.base_pos_m, "base_quat_wxyz": observation.base_quat_wxyz}
    return {
        **{name: getattr(observation, name) for name in _ARM_READINGS},
        **{name: pose for name, pose in base_pose.items() if pose is not None},
        **{
            f"{arm}.{name}": getattr(readings, name)
            for arm, readings in observation.arms.items()
            for name in _ARM_READINGS
        },
        **{f"image.{camera}": image for camera, image in observation.images.items()},
        **{f"extra.{name}": np.asarray(value, dtype=np.float64) for name, value in observation.extra.items()},
    }


def _array_space(value: NDArray[Any]) -> gymnasium.spaces.Box:
    # Return the space of observations with the shape of `value`.
    # Images have the type uint8; all other arrays are measurements without bounds.
    if value.dtype == np.uint8:
        return gymnasium.spaces.Box(0, 255, value.shape, np.uint8)
    return gymnasium.spaces.Box(-np.inf, np.inf, value.shape, np.float64)
