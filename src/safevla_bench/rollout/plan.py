"""The plan of a run (a list of `PlannedEpisode` from a protocol and the user's choices), its shards, and its cost.

A shard is a section of the plan that is run separately, into its own run folder. Time and disk space are estimated
from measurements of each host (`costs.toml`).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby, product
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from safevla_bench.errors import Place, RunError
from safevla_bench.files import read_shipped
from safevla_bench.hosts.protocols import SERVER_SEED, EvaluationProtocol
from safevla_bench.interface.policy import Policy, RemotePolicy, ReplayPolicy
from safevla_bench.interface.task import EpisodeSeed, FoundStart, Task
from safevla_bench.sources.runs.folder import name_episode

PROTOCOL: Final = "protocol"
RECORDED: Final = "recorded"
Episodes = int | Literal["protocol", "recorded"] | None
RecordedEpisodes = Mapping[tuple[str, Task], Sequence[int]]  # maps (policy, task) to the indices of recorded episodes


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """One episode to run."""

    episode_id: str
    policy: str
    task: Task
    episode: int
    start: EpisodeSeed
    seed: int  # the user's seed
    policy_seed: int
    horizon: int
    stop_at_success: bool = True
    seed_from_server: bool = False  # whether the policy's server may replace the environment's seed
    round: int = 0  # episodes with a lower round start first; all rounds are 0 if the run cannot stop early

    @property
    def state(self) -> int:
        """The index of the initial state or chosen start, by which episodes of different policies are paired."""
        # A task has a label only if the start states were chosen. Then each episode of the task has a separate start.
        return self.episode if self.task.label else self.start.init_state_index


def plan_episodes(
    tasks: Sequence[Task],
    episodes: Episodes,
    policies: Sequence[str],
    rules: EvaluationProtocol,
    *,
    seed: int = 0,
    max_steps: int | None = None,
    recorded: RecordedEpisodes | None = None,
) -> tuple[PlannedEpisode, ...]:
    """Return the planned episodes of each policy under the protocol `rules`, ordered by policy, task and episode.

    `episodes` sets the number of episodes per task: an integer; None = the benchmark's number; `protocol` = the
    protocol's number or, without one, the benchmark's. With `protocol`, a task has one episode if the benchmark has one
    initial state and one episode. `recorded`, if given, lists the episode numbers to plan for each policy and task.

    Raises `RunError` if there is nothing to run, if a policy or task is named twice, or if an initial state does not
    exist. Also raises `RunError` if a number of episodes or a horizon is unknown, or a number does not fit in 64 bits.
    """
    _check_plan(tasks, episodes, policies, rules, is_recorded=recorded is not None)
    plan = []
    for policy, task in product(policies, tasks):
        # Indices of the episodes to plan. `found` has the start states that a search found, one for each episode.
        indices = (
            range(_count_episodes(task, episodes, rules)) if recorded is None else recorded.get((policy, task), ())
        )
        for episode in indices:
            found_start = task.found[episode] if task.found else _plan_start(task, episode, rules, seed)
            planned = PlannedEpisode(
                episode_id=name_episode(policy, f"{task.suite}/{task.task_id}", episode),
                policy=policy,
                task=task if found_start.instruction is None else replace(task, instruction=found_start.instruction),
                episode=episode,
                start=found_start.start,
                seed=seed,
                policy_seed=found_start.policy_seed,
                horizon=_task_horizon(task, rules, max_steps),
                stop_at_success=rules.stop_at_success,
                # With a rule such as `7 or server`, the policy's server may choose the seed, except for found starts.
                seed_from_server=not task.found and str(rules.env_seed).endswith(SERVER_SEED),
            )
            _require_64_bits(planned)
            plan.append(planned)
    return tuple(plan)


def _require_64_bits(planned: PlannedEpisode) -> None:
    # Raise `RunError` for a larger integer, because the tables of a run store integers in 64 bits.
    for dataclass_value in (planned, planned.start):
        for field in fields(dataclass_value):
            value = getattr(dataclass_value, field.name)
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                remedy = "Use a seed or number from -2^63 to 2^63 - 1."
                place = Place(episode=planned.episode_id, field=field.name)
                raise RunError(f"the number {value} does not fit into 64 bits", remedy=remedy, place=place)


def _plan_start(task: Task, episode: int, rules: EvaluationProtocol, seed: int) -> FoundStart:
    # Returns the initial state and the policy's seed that the protocol gives to an episode.
    # Do not call this for tasks with found starts, because a found start already has its initial state and seed.
    # With the rule `episode % count`, episodes beyond the number of initial states begin again with state 0.
    # `drawn`: the reset places objects at random. `rest_steps` are further settling steps until the objects rest.
    # `earlier_resets`: resets since the environment's only seeding; None = seeded for each episode.
    state_count = task.init_states if rules.init_state == "episode % count" else None
    start = EpisodeSeed(
        init_state_index=episode % state_count if state_count else episode,
        env_seed=_env_seed(task, episode, rules, seed),
        wait_steps=rules.suite_wait_steps(task.benchmark),
        wait_action=None if rules.wait_action == "still" else tuple(rules.wait_action),
        rest_steps=rules.rest_steps,
        drawn=rules.init_state == "drawn",
        earlier_resets=episode if rules.resets else None,
    )
    # The rule is `sha256` or a number, to which the user's seed is added.
    own_policy_seed = policy_seed(seed, task, episode) if rules.policy_seed == "sha256" else rules.policy_seed + seed
    return FoundStart(start, own_policy_seed)


def apply_server_seed(planned: PlannedEpisode, policy: Policy) -> PlannedEpisode:
    """Return the episode with the environment seed that the policy's server requests, if the protocol permits this."""
    requested = policy.env_seed if isinstance(policy, RemotePolicy) else None
    if requested is None or not planned.seed_from_server:
        return planned
    return replace(planned, start=replace(planned.start, env_seed=requested))


def match_recording(planned: PlannedEpisode, policy: Policy, max_steps: int | None = None) -> PlannedEpisode:
    """Return the episode as planned or, for a replay, as recorded. Raises `PolicyError` if no recording fits."""
    if not isinstance(policy, ReplayPolicy):
        return planned
    # `max_steps` is the user's limit on the number of steps; None = replay the whole recording.
    start = policy.match(planned.task, planned.start)
    steps = start.recorded.steps if start.recorded else planned.horizon
    return replace(planned, start=start, horizon=steps if max_steps is None else min(steps, max_steps))


def policy_seed(seed: int, task: Task, episode: int) -> int:
    """Return a 32-bit seed derived from `seed`, suite, task and episode: the same for all policies and machines."""
    hashed_text = f"{seed}/{task.benchmark}/{task.task_id}/{episode}"
    return int.from_bytes(hashlib.sha256(hashed_text.encode()).digest()[:4], "big")


def _env_seed(task: Task, episode: int, rules: EvaluationProtocol, seed: int) -> int:
    # Returns the environment's seed. The rule `env_seed` is a number, `sha256`, `N or server` or `N + episode`.
    if isinstance(rules.env_seed, int):
        return rules.env_seed
    if rules.env_seed == "sha256":
        return policy_seed(seed, task, episode)
    if rules.env_seed.endswith(SERVER_SEED):
        return int(rules.env_seed.removesuffix(SERVER_SEED))  # a server may replace the seed, see `apply_server_seed`
    return int(rules.env_seed.partition("+")[0]) + episode


def _count_episodes(task: Task, episodes: Episodes, rules: EvaluationProtocol) -> int:
    # Returns the number of a task's episodes; `plan_episodes` describes `episodes`.
    if task.found:
        # Each found start state is used once.
        return min(len(task.found), episodes) if isinstance(episodes, int) else len(task.found)
    if isinstance(episodes, int):
        return episodes
    if episodes is None:
        return task.episodes or 1
    if task.episodes == task.init_states == 1:  # the benchmark has one initial state and runs it once
        return 1
    count = rules.suite_trials(task.benchmark) or task.episodes
    if count is None:
        problem = f"neither the protocol {rules.name!r} nor the host says how many episodes {task.benchmark!r} has"
        raise RunError(problem, remedy="Pass --episodes N.")
    return count


def _check_plan(
    tasks: Sequence[Task], episodes: Episodes, policies: Sequence[str], rules: EvaluationProtocol, *, is_recorded: bool
) -> None:
    # Raises the errors of `plan_episodes`, except for an unknown horizon and for numbers beyond 64 bits.
    if not tasks or not policies or (isinstance(episodes, int) and episodes < 1):
        raise RunError("there is nothing to run", remedy="Give at least one task, one policy and one episode.")
    repeated = sorted({policy for policy in policies if policies.count(policy) > 1})
    if repeated:
        raise RunError(f"the policy {repeated[0]!r} is named twice", remedy="Name each policy once.")
    names = [f"{task.suite}/{task.task_id}" for task in tasks]
    if len(set(names)) < len(names):
        repeated = [name for name in names if names.count(name) > 1]
        remedy = "Name each suite and each task once; two names may mean the same suite."
        raise RunError(f"the task {repeated[0]} is named twice", remedy=remedy)
    if is_recorded:
        return  # the recording determines the episodes
    for task in tasks:
        count = _count_episodes(task, episodes, rules)
        # With the rule `episode`, each episode needs its own initial state. Other rules repeat or draw states.
        state_count = None if task.found or rules.init_state != "episode" else task.init_states
        if state_count is not None and count > state_count:
            problem = f"{task.benchmark} {task.task_id} has {state_count} initial states, but {count} are requested"
            raise RunError(problem, remedy=f"Pass --episodes {state_count} or fewer.")


def _task_horizon(task: Task, rules: EvaluationProtocol, max_steps: int | None) -> int:
    # Returns the maximum number of steps. The user's number `max_steps` has priority (None = not given).
    # Without `max_steps`, the protocol's number for the suite is used, or else the host's number for the task.
    if max_steps is not None:
        return max_steps
    horizon = rules.suite_horizon(task.benchmark) or task.horizon
    if horizon is None:
        suites = ", ".join(rules.horizons) or "none"
        problem = f"the protocol {rules.name!r} has no horizon for {task.benchmark!r}, only for {suites}"
        raise RunError(problem, remedy="Pass --max-steps N.")
    return horizon


@dataclass(frozen=True, slots=True)
class Shard:
    """A section of a plan: section `number`, from 1, of `count` sections."""

    number: int
    count: int

    def __post_init__(self) -> None:
        # The text of a shard, such as `2/8`, comes from `__str__`.
        if not 1 <= self.number <= self.count:
            raise RunError(f"there is no shard {self}", remedy="Shards are numbered from 1, such as `1/8` to `8/8`.")

    def __str__(self) -> str:
        # Return text such as `2/8`, which `parse` reads.
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard from a text such as `2/8`. Raises `RunError` if the text names no shard."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal()):
            raise RunError(f"--shard {text!r} is not a shard", remedy="Write `number/count`, such as `2/8`.")
        return cls(int(number), int(count))


def cut_plan(episodes: Sequence[PlannedEpisode], count: int) -> list[int]:
    """Return the start of each shard, then the plan's length, [count + 1]. Raises `RunError` for too many shards."""
    if count > len(episodes):
        remedy = f"Use {len(episodes)} shards or fewer."
        raise RunError(f"{len(episodes)} episodes cannot be cut into {count} shards", remedy=remedy)
    # Shard k begins at item k - 1 of the result and ends before item k. The lengths of shards differ by at most one.
    return [len(episodes) * number // count for number in range(count + 1)]


Scene = tuple[str, Task]  # the policy and the task for which an environment is made


def scene_of(planned: PlannedEpisode) -> Scene:
    """Return the policy and the task of an episode."""
    # Episodes with the same policy and task can run in the same environment.
    return planned.policy, planned.task


class EpisodeQueue:
    """The episodes not yet started, grouped by policy and task in the plan's order. The earliest round goes first."""

    def __init__(self, episodes: Sequence[PlannedEpisode] = ()) -> None:
        self._queues: dict[Scene, deque[PlannedEpisode]] = {}  # a scene is a pair of a policy and a task
        self.add(episodes)

    def add(self, episodes: Sequence[PlannedEpisode]) -> None:
        # Append the episodes, each to the queue of its scene (policy and task).
        for planned in episodes:
            self._queues.setdefault(scene_of(planned), deque()).append(planned)

    def __bool__(self) -> bool:
        # True if any episode is left. The queues of finished scenes stay, but are empty.
        return any(self._queues.values())

    def take_next(self, own: Scene | None, others: Collection[Scene]) -> PlannedEpisode | None:
        """Remove and return the next episode for a worker, from the earliest round; None if none is left. Prefer `own`,
        the scene of the worker's environment; then the first scene that is not in `others`, the scenes of the other
        workers; then the scene with the most episodes left.
        """
        # Scene -> round of its next episode.
        rounds = {scene: episodes[0].round for scene, episodes in self._queues.items() if episodes}
        if not rounds:
            return None
        open_scenes = [scene for scene, round_number in rounds.items() if round_number == min(rounds.values())]
        if own not in open_scenes:  # the worker must make a new environment
            free = [scene for scene in open_scenes if scene not in others]
            own = free[0] if free else max(open_scenes, key=lambda scene: len(self._queues[scene]))
        return self._queues[own].popleft()

    def put_back(self, planned: PlannedEpisode) -> None:
        """Put an episode that must be rerun at the front of the queue of its policy and task."""
        self._queues.setdefault(scene_of(planned), deque()).appendleft(planned)


# Cost of a plan


NO_INTERVALS: Mapping[str, int] = MappingProxyType({})


class CostRange(NamedTuple):
    """The lower and the upper bound of an estimated quantity."""

    low: float
    high: float


class HostCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of one host, each as lowest and highest value; `costs.toml` explains the fields."""

    source: str
    start_s: tuple[float, float]
    make_s: tuple[float, float]
    reset_s: tuple[float, float]
    step_s: tuple[float, float]
    camera_step_s: tuple[float, float]
    record_bytes: tuple[float, float]


@dataclass(frozen=True, slots=True)
class ScenePlan:
    """The episodes of one policy and task."""

    policy: str
    suite: str
    task_id: str
    episodes: int
    horizon: int
    cameras: int | None  # number of cameras; None = known only when the policy runs, estimated as 0 to 2


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """Estimated cost of a plan, if all episodes last their full horizon. Time and disk space are None if the host has
    no measurements. `time_s` excludes the policies' time, and assumes one core per worker and equally shared work.
    """

    scenes: tuple[ScenePlan, ...]
    workers: int
    time_s: CostRange | None
    disk_bytes: CostRange | None
    source: str | None

    @property
    def episodes(self) -> int:
        # The number of planned episodes.
        return sum(scene.episodes for scene in self.scenes)

    @property
    def steps(self) -> int:
        """Number of control steps if every episode lasts its full horizon."""
        # A scene has the number of episodes of one policy and task, and their horizon in control steps.
        return sum(scene.episodes * scene.horizon for scene in self.scenes)


def load_costs() -> dict[str, HostCosts]:
    """Return host -> measurements, from the shipped `costs.toml`."""
    return read_shipped(__package__, "costs.toml", dict[str, HostCosts])


def estimate_plan(
    episodes: Sequence[PlannedEpisode],
    host: str,
    cameras: Mapping[str, int | None],
    workers: int = 1,
    look_intervals: Mapping[str, int] = NO_INTERVALS,
) -> RunEstimate:
    """Return the estimated cost of the episodes. `cameras` has the number of cameras for each policy; None = unknown.
    For each policy that executes several actions per reply, `look_intervals` has the steps between observations.
    More workers than episodes do not reduce the time.
    """
    # The plan is ordered by policy and task, so the episodes of a scene are adjacent.
    scenes = []
    for (policy, task), group in groupby(episodes, key=scene_of):
        block = list(group)
        scenes.append(ScenePlan(policy, task.benchmark, task.task_id, len(block), block[0].horizon, cameras[policy]))
    costs = load_costs().get(host)
    if costs is None:
        # Without measurements of the host, time and disk space are unknown.
        return RunEstimate(tuple(scenes), workers, None, None, None)
    wait_steps = episodes[0].start.wait_steps if episodes else 0  # an approximation: other suites may settle longer
    active_workers = max(1, min(workers, len(episodes)))
    # Each estimate is an array [lowest, highest]. `run_s` is the time of all episodes, without making environments.
    run_s = np.array(costs.reset_s) * len(episodes)
    run_s += np.array(costs.step_s) * sum(scene.episodes * (scene.horizon + wait_steps) for scene in scenes)
    # Number of rendered observations in each scene: one at step 0, then one per interval of the policy.
    looks = (scene.episodes * (1 + (scene.horizon - 1) // look_intervals.get(scene.policy, 1)) for scene in scenes)
    # An unknown number of cameras is estimated as 0 to 2. `pictures` has the least and the greatest number of pictures.
    camera_ranges = ((0, 2) if scene.cameras is None else (scene.cameras, scene.cameras) for scene in scenes)
    pictures = sum(np.array(camera_range) * count for camera_range, count in zip(camera_ranges, looks, strict=True))
    run_s += np.array(costs.camera_step_s) * pictures
    make_s = np.array(costs.make_s) * len(scenes)
    # A worker has at least one scene, and makes an environment for each scene. All workers start at the same time.
    time_s = np.array(costs.start_s) + make_s / max(1, min(active_workers, len(scenes))) + run_s / active_workers
    # An episode of N steps has N + 1 records.
    disk_bytes = np.array(costs.record_bytes) * sum(scene.episodes * (scene.horizon + 1) for scene in scenes)
    time_range, disk_range = CostRange(*time_s.tolist()), CostRange(*disk_bytes.tolist())
    return RunEstimate(tuple(scenes), workers, time_range, disk_range, costs.source)
