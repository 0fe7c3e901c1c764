"""Hosts and their environments, each one simulator with its recorder attached. Nothing here imports a simulator."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Coordinate, EpisodeSeed, SearchSpace, Task
from safevla_bench.trajectory.batch import Batch


class HostEnv(Protocol):
    """One task in one simulator with its recorder attached."""

    task: Task
    dt_s: float
    action_low: Action
    action_high: Action

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, let the scene settle, record record 0, and return its observation."""

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action and record it; return the next observation and the host's native success.

        Raises `InvalidActionError` as `check_action` does, before anything is simulated.
        """

    def recorded(self) -> Batch:
        """Return the episode so far, as a validated batch of one with the host's own header fields filled."""

    def close(self) -> None:
        """Free the simulator; the environment is not used again."""


@runtime_checkable
class Coordinated(Protocol):
    """A method that an environment offers beside `HostEnv` if it starts from recorded states, to compare these."""

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of the present `sim_state`; velocities and the time are left out."""


@runtime_checkable
class Watchable(Protocol):
    """A method that an environment may offer beside `HostEnv`, to observe each step at a low cost."""

    def latest(self) -> Batch:
        """Return the newest record alone, as a batch of one episode of one record."""


@runtime_checkable
class SelectiveEnv(Protocol):
    """A method that an environment may offer beside `HostEnv`, to render only what is looked at."""

    def render_next(self, wanted: bool) -> None:
        """Say whether the observation of the next step, and of that alone, is to hold images, else `UnrenderedImages`.

        Without a call, and after every reset, images are rendered.
        """


@runtime_checkable
class FastEnv(Protocol):
    """A method that an environment offers beside `HostEnv` if it steps faster than the simulator's own code does."""

    def run_fast(self, wanted: bool) -> None:
        """Say whether episodes from the next reset on are to leave out what the simulator repeats; the default is yes.

        The records are the same, bit for bit.
        """


class Host(Protocol):
    """A simulator benchmark: its suites, its tasks, its environments."""

    name: str

    def suites(self) -> tuple[str, ...]:
        """Return the names of the suites."""

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the tasks of a suite in their fixed order."""

    def make(self, task: Task, wants: Wants) -> HostEnv:
        """Make the environment of a task, with the observations that are wanted."""

    def versions(self) -> dict[str, str]:
        """Return the versions of everything that the trajectory depends on, by distribution name."""


@runtime_checkable
class SearchableHost(Protocol):
    """A method that a host offers beside `Host` if its environments start at `EpisodeSeed.placed`."""

    def search_space(self, task: Task, start: EpisodeSeed) -> SearchSpace:
        """Return where the objects of a task may start, within what its benchmark draws from.

        Its coordinates will replace those of this start.
        """


@runtime_checkable
class VaryingHost(Protocol):
    """A host whose environments start an episode under the `PhysicsChange` that its seed holds."""

    changeable: frozenset[str]
    """The fields of a change that they follow; a seed with others is not to be given to them."""
