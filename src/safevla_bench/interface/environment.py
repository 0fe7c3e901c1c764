"""Hosts and their environments, each one simulator with its recorder attached. Nothing here imports a simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.stage import Stage
from safevla_bench.interface.task import Coordinate, EpisodeSeed, SearchSpace, Task
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import select_record

WORKER = "SAFEVLA_WORKER"
"""The environment variable that holds the number of a worker process. Workers take servers and GPUs in turn."""


class HostEnv(ABC):
    """One task in one simulator with its recorder attached. Methods that are not abstract are a host's to add."""

    task: Task
    dt_s: float
    action_low: Action
    action_high: Action

    @abstractmethod
    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, let the scene settle, record record 0, and return its observation."""

    @abstractmethod
    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action and record it; return the next observation and the host's native success. Raises
        `InvalidActionError` as `check_action` does, before anything is simulated.
        """

    @abstractmethod
    def recorded(self) -> Batch:
        """Return the episode so far, as a validated batch of one with the host's own header fields filled."""

    @abstractmethod
    def close(self) -> None:
        """Free the simulator; the environment is not used again."""

    def latest(self) -> Batch:
        """Return the newest record alone, as a batch of one episode of one record; a host may do so at a lower cost."""
        return select_record(self.recorded(), -1)

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of the present `sim_state`, if episodes start from recorded states; velocities and the
        time are left out.
        """
        return ()

    def fixture_poses(self) -> dict[str, list[float]]:
        """Return where a reset has put fixtures: root body -> position [3] in m, quaternion [4] wxyz."""
        return {}

    def render_next(self, wanted: bool) -> None:  # noqa: B027 - rendering each time is right, too
        """Say whether the observation of the next step, and of that alone, is to hold images, else `UnrenderedImages`.
        Without a call, and after every reset, images are rendered.
        """

    def run_fast(self, wanted: bool) -> None:  # noqa: B027
        """Say whether episodes from the next reset on are to leave out what the simulator repeats; the default is yes.
        The records are the same, bit for bit.
        """


@dataclass(frozen=True, slots=True)
class HostSupport:
    """What a host supports beyond tasks, actions and records; the default is nothing. A host declares it as its
    attribute `supports`. A run that needs more is refused before its first episode.
    """

    cameras: tuple[str, ...] = ()
    privileged: bool = False
    """It fills `Observation.privileged` for a policy or filter that wants it."""
    readings: tuple[str, ...] = ()
    """Names that `Wants.extra` may have."""
    privileged_readings: tuple[str, ...] = ()
    """The same, for policies that want privileged state."""
    changes: str = "pose"
    """The quantity that an action changes, for error messages."""
    absolute: bool = False
    """Actions may be poses in the world frame (`Wants.absolute`)."""
    unit_m: float | None = None
    """Motion of the hand that 1 in an action's first three numbers commands; None = they command another quantity."""
    drawn: bool = False
    """A task with initial states also starts where a reset places things by chance (`EpisodeSeed.drawn`)."""
    states: bool = False
    """Episodes start from a recorded state (`EpisodeSeed.recorded`)."""
    placed: bool = False
    """Episodes start at `EpisodeSeed.placed`, within `Host.search_space`."""
    changeable: frozenset[str] = frozenset()
    """The fields of `PhysicsChange` that `EpisodeSeed.change` may set."""
    pictures: bool = False
    """It renders recorded episodes: `Host.stage`."""


class Host(ABC):
    """A simulator benchmark: its suites, its tasks, its environments."""

    name: str
    supports = HostSupport()

    @abstractmethod
    def suites(self) -> tuple[str, ...]:
        """Return the names of the suites."""

    @abstractmethod
    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the tasks of a suite in their fixed order."""

    @abstractmethod
    def make(self, task: Task, wants: Wants) -> HostEnv:
        """Make the environment of a task, with the observations that are wanted."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of everything that the trajectory depends on, by distribution name."""

    def search_space(self, task: Task, start: EpisodeSeed) -> SearchSpace:
        """Return where the objects of a task may start, within what its benchmark draws from; for `placed`. Its
        coordinates will replace those of this start.
        """
        raise NotImplementedError

    def stage(self, task: Task, episode: Batch) -> Stage:
        """Set up an episode, a batch of one with its `sim_state`, to be rendered; for `pictures`. Raises `HostError` if
        nothing can be rendered here, or the record lacks the states.
        """
        raise NotImplementedError
