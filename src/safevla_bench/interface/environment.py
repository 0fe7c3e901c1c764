"""Hosts and their environments, each one simulator with its recorder attached. Nothing here imports a simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.stage import Stage
from safevla_bench.interface.task import Coordinate, EpisodeSeed, SearchSpace, Task
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import select_record

WORKER = "SAFEVLA_WORKER"  # number of a worker process, by which workers take turns at servers and GPUs
WORKERS = "SAFEVLA_WORKERS"  # environment variable with the number of workers that the run has


class HostEnv(ABC):
    """One task in one simulator with its recorder attached. Hosts may override the methods that are not abstract."""

    task: Task
    dt_s: float
    action_low: Action
    action_high: Action

    @abstractmethod
    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, let the scene settle, take record 0, and return its observation."""

    @abstractmethod
    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action and record it; return the next observation and the host's native success. Raises
        `InvalidActionError`, as `check_action` does, before anything is simulated.
        """

    @abstractmethod
    def recorded(self) -> Batch:
        """Return the episode so far, as a validated batch of one with the host's own header fields filled."""

    @abstractmethod
    def close(self) -> None:
        """Release the simulator. The environment cannot be used afterwards."""

    def latest(self) -> Batch:
        """Return only the newest record, as an episode of one record. Hosts may override this to save time."""
        return select_record(self.recorded(), -1)

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return what the entries of `sim_state` mean, without velocities and time, if episodes can start there."""
        return ()

    def fixture_poses(self) -> dict[str, list[float]]:
        """Return the poses that a reset gave to fixtures: root body -> position [3] in m, quaternion [4] wxyz."""
        return {}

    def render_next(self, wanted: bool) -> None:  # noqa: B027 - an environment may render every time
        """Set whether the observation of the next step holds images; without them it holds `UnrenderedImages`. Images
        are rendered by default, and again after every reset.
        """

    def run_fast(self, wanted: bool) -> None:  # noqa: B027
        """Set whether episodes after the next reset skip computations that the simulator repeats (the default). The
        records are identical, bit for bit.
        """


@dataclass(frozen=True, slots=True)
class HostSupport:
    """What a host supports beyond tasks, actions and records; by default nothing. A host declares it as its attribute
    `supports`, and a run that needs more is refused before its first episode.
    """

    cameras: tuple[str, ...] = ()
    privileged: bool = False  # the host fills `Observation.privileged` for policies and filters that want it
    readings: tuple[str, ...] = ()  # names that `Wants.extra` may contain
    privileged_readings: tuple[str, ...] = ()  # further such names, for policies that want privileged state
    changes: str = "pose"  # the quantity that an action changes, for error messages
    absolute: bool = False  # actions may be poses in the world frame (`Wants.absolute`)
    unit_m: float | None = None  # motion of the hand for 1 in an action's first three numbers, if they mean that
    drawn: bool = False  # tasks with initial states can also start from a random placement (`EpisodeSeed.drawn`)
    states: bool = False  # episodes can start from a recorded state (`EpisodeSeed.recorded`)
    placed: bool = False  # episodes can start at `EpisodeSeed.placed`, within `Host.search_space`
    changeable: frozenset[str] = frozenset()  # the fields of `PhysicsChange` that `EpisodeSeed.change` may set
    pictures: bool = False  # the host can render recorded episodes (`Host.stage`)


class Host(ABC):
    """A simulator benchmark: its suites, its tasks, its environments."""

    name: str
    supports = HostSupport()

    @abstractmethod
    def suites(self) -> tuple[str, ...]:
        """Return the names of the suites."""

    @abstractmethod
    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the tasks of a suite, in a fixed order."""

    @abstractmethod
    def make(self, task: Task, wants: Wants) -> HostEnv:
        """Make the environment of a task, which returns the observations in `wants`."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of everything that trajectories depend on, by distribution name."""

    def search_space(self, task: Task, start: EpisodeSeed) -> SearchSpace:
        """Return the coordinates that `EpisodeSeed.placed` may replace in this start, within the benchmark's range."""
        raise NotImplementedError

    def stage(self, task: Task, episode: Batch) -> Stage:
        """Prepare an episode, given as a batch of one with its `sim_state`, for rendering. Raises `HostError` if the
        machine cannot render, or the record lacks the states.
        """
        raise NotImplementedError
