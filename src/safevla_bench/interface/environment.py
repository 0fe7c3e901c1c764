"""Base classes of hosts and of their environments (a simulator with a recorder attached). Imports no simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.stage import Stage
from safevla_bench.interface.task import Coordinate, EpisodeSeed, SearchSpace, Task
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import select_record

WORKER = "SAFEVLA_WORKER"  # environment variable: index of this worker, which selects its server and GPU
WORKERS = "SAFEVLA_WORKERS"  # environment variable: the number of workers of the run


class HostEnv(ABC):
    """One task in one simulator with its recorder attached. Hosts may override methods that are not abstract."""

    task: Task
    dt_s: float
    action_low: Action
    action_high: Action

    @abstractmethod
    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode as `seed` defines. Let the scene settle, take record 0, and return the first observation."""

    @abstractmethod
    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action [A] and record it; return the next observation and whether the host reports success. Raises
        `InvalidActionError`, before simulating, for an action that `check_action` refuses: wrong size or not finite.
        """

    @abstractmethod
    def recorded(self) -> Batch:
        """Return the episode up to now (N + 1 records after N steps) as a validated one-episode batch with a header."""

    @abstractmethod
    def close(self) -> None:
        """Release the simulator. The environment cannot be used afterwards."""

    def latest(self) -> Batch:
        """Return the newest record as a one-episode batch with one record. Hosts may override this to save time."""
        # The index -1 selects the last record.
        # `select_record` leaves out actions, simulator state and almost all host-specific fields.
        return select_record(self.recorded(), -1)

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return which entries of `sim_state`, the simulator's flat state, are positions and rotations, by name."""
        # () = the state is not described.
        return ()  # hosts that declare `HostSupport.states` must override this method

    def fixture_poses(self) -> dict[str, list[float]]:
        """Return root body -> pose for each fixture: position [3] in m, quaternion [4]. Only resets change poses."""
        # The list has 7 numbers: the position, then the quaternion with w first. By default, there are no fixtures.
        return {}

    def render_next(self, wanted: bool) -> None:  # noqa: B027 - an environment may always render
        """Set whether the next step renders images. If not, its observation holds `UnrenderedImages`, which only raise
        errors. The setting is valid for this step only: later steps and all resets render images by default.
        """

    def run_fast(self, wanted: bool) -> None:  # noqa: B027
        """Set whether episodes after the next reset skip redundant computations; records stay equal."""
        # If this method is never called, episodes skip redundant computations.


@dataclass(frozen=True, slots=True)
class HostSupport:
    """The optional abilities of a host; by default, it has none. A host declares them in its attribute `supports`. A
    run that needs an undeclared ability is refused before its first episode.
    """

    cameras: tuple[str, ...] = ()
    privileged: bool = False  # the host fills `Observation.privileged` for policies and filters that want it
    readings: tuple[str, ...] = ()  # names of extra observations that `Wants.extra` may contain
    privileged_readings: tuple[str, ...] = ()  # `Wants.extra` may contain these names only with `Wants.privileged`
    changes: str = "pose"  # the quantity that an action changes, such as `position`; for error messages
    absolute: bool = False  # actions may be poses in the world frame (`Wants.absolute`)
    unit_m: float | None = None  # hand motion [m] per unit of an action's first three numbers; None = undefined
    drawn: bool = False  # tasks with initial states can also start from a random placement (`EpisodeSeed.drawn`)
    states: bool = False  # episodes can start from a recorded state (`EpisodeSeed.recorded`)
    placed: bool = False  # episodes can start with objects at `EpisodeSeed.placed`, within `Host.search_space`
    changeable: frozenset[str] = frozenset()  # the fields of `PhysicsChange` that `EpisodeSeed.change` may set
    pictures: bool = False  # the host can render recorded episodes (`Host.stage`)


class Host(ABC):
    """A simulator benchmark: its suites, tasks and environments."""

    name: str
    supports = HostSupport()

    @abstractmethod
    def suites(self) -> tuple[str, ...]:
        """Return the names of the suites, which are the host's lists of tasks, such as `libero-goal`."""

    @abstractmethod
    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the tasks of a suite, in a fixed order. Raise `HostError`, which lists suites, for an unknown one."""

    @abstractmethod
    def make(self, task: Task, wants: Wants) -> HostEnv:
        """Make a task's environment, whose observations have what `wants` requests; `HostError` if not possible."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of all packages that trajectories depend on, by distribution name."""

    def search_space(self, task: Task, start: EpisodeSeed) -> SearchSpace:
        """List the coordinates of `start` that `EpisodeSeed.placed` may replace, and the range of each coordinate."""
        raise NotImplementedError  # called only for hosts that declare `HostSupport.placed`

    def stage(self, task: Task, episode: Batch) -> Stage:
        """Prepare a recorded episode for rendering. `episode` is a one-episode batch that includes `sim_state`. Raises
        `HostError` if the machine cannot render or the record has no `sim_state`.
        """
        raise NotImplementedError  # called only for hosts that declare `HostSupport.pictures`
