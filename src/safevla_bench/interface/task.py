"""Tasks, the starts of their episodes, and changes of the physics there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a suite: `index` counts from 0 in the suite's own order, `name` is the host's own name."""

    benchmark: str
    task_id: str
    index: int
    name: str
    instruction: str
    still: tuple[float, ...]
    """The action, in the host's units, that moves nothing and opens the gripper; it is as long as every action."""
    init_states: int | None = None
    """Number of fixed initial states that the host ships for it; None = drawn from the seed."""
    horizon: int | None = None
    """The host's own limit in policy steps; a protocol's goes first."""
    episodes: int | None = None
    """Number of episodes that its benchmark runs of it; None if it does not say."""
    label: str = ""
    """The suite that records name in the place of `benchmark`, if its starts were chosen by a search."""
    found: tuple[FoundStart, ...] = ()
    """The starts of its episodes, one each; () = as the protocol says."""

    @property
    def suite(self) -> str:
        """The suite that records name: `label`, else `benchmark`."""
        return self.label or self.benchmark


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """A recorded episode that is played again: its name, its length and its start. `state` is a flat simulator state to
    start from, [S], as the host's records have it (`sim_state`); None = the initial state of the index and seed beside
    it. What such a state does not hold: `fixtures`, root body -> position [3] in metres and quaternion [4], w first;
    and where the gripper was commanded to go, which the host infers.
    """

    episode: str
    source: str
    steps: int
    state: tuple[float, ...] | None = None
    fixtures: tuple[tuple[str, tuple[float, ...]], ...] = ()
    ending: str = "timeout"
    """The outcome if the actions run out without success; `stopped` if the recording was broken off."""
    actions: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """What is played, [steps, A], if the policy does not know it."""
    path: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """Where targets and hand were at the first records, [n, bodies, 3] in m: the replay ends where it leaves this."""


@dataclass(frozen=True, slots=True)
class PhysicsChange:
    """Physics that differ from the host's own from record 0 on; settling is as recorded. The default changes nothing.
    Factors are of the host's own value.
    """

    time_step: float = 1.0
    """Of the physics time step. A control step lasts as long as before: it has the nearest whole number of substeps,
    and the time step is what that gives. Controllers run once a substep, as before."""
    iterations: float = 1.0
    """Of the greatest number of solver iterations; the tolerance is divided by its square."""
    softness: float = 1.0
    """Of the contacts' time constant, and of the share that their impedance leaves to 1."""
    friction: float = 1.0
    shift_m: float = 0.0
    """How far things that fly free are moved in the plane at record 0, each in a direction drawn from the seeds."""
    apart: tuple[str, str] | None = None
    """Two bodies, by recorded name, that pass through each other."""
    without: str | None = None
    """A body that touches nothing and stays where it is."""

    @property
    def changed(self) -> frozenset[str]:
        """Names of the fields that change something."""
        return frozenset(part.name for part in fields(self) if getattr(self, part.name) != part.default)


VARIATIONS: Mapping[str, PhysicsChange] = {
    "half-step": PhysicsChange(time_step=0.5),
    "double-step": PhysicsChange(time_step=2.0),
    "few-iterations": PhysicsChange(iterations=0.1),
    "many-iterations": PhysicsChange(iterations=10.0),
    "soft": PhysicsChange(softness=2.0),
    "stiff": PhysicsChange(softness=0.5),
    "low-friction": PhysicsChange(friction=0.9),
    "high-friction": PhysicsChange(friction=1.1),
    "shifted": PhysicsChange(shift_m=1e-4),
}
"""Name -> change, in the order in which they are replayed."""


@dataclass(frozen=True, slots=True)
class EpisodeSeed:
    """The values that fix an episode's start: the initial state's index and the environment's seed. Or the state that
    `recorded` holds; then the index counts the recorded episodes and no initial state is used.
    """

    init_state_index: int
    env_seed: int
    wait_steps: int
    """Settling steps before record 0; not counted in the horizon."""
    wait_action: tuple[float, ...] | None = None
    """The action of those steps, in the host's units; None = the host's own: no motion, and the gripper open."""
    rest_steps: int = 0
    earlier_resets: int | None = None
    """Resets of an environment since it was made and seeded, before this one; None = it is seeded before this one.

    For recordings of others whose environments are seeded once; a host whose scenes do not depend on it ignores it.
    """
    drawn: bool = False
    """Leave the task's initial states aside: the reset places things by chance, by `env_seed` and the index."""
    recorded: RecordedEpisode | None = None
    placed: tuple[tuple[str, float], ...] = ()
    """Coordinates [m] of the host's `SearchSpace`, by name, that replace those of the initial state."""
    change: PhysicsChange | None = None
    """Physics from record 0 on, within `HostSupport.changeable`; None = the host's own."""


@dataclass(frozen=True, slots=True)
class FoundStart:
    """A start that a search found, the seed of the policy's randomness there, and the words if not the task's own."""

    start: EpisodeSeed
    policy_seed: int
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Where a task's objects may start: coordinates, [d] each, such as `plate_1.x`, in the world frame [m]. It is the
    box from `low` to `high`, without the points at which two objects are too near each other. A search may add what is
    no place: the wording, and the policy's seed.
    """

    names: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    apart_m: tuple[tuple[str, str, float], ...] = ()
    """Two objects, and the horizontal distance of their centres that is to be exceeded; both have an x and a y."""
    own: tuple[tuple[float, ...], ...] = ()
    """The benchmark's own starts, [d] each."""
    wordings: tuple[str, ...] = ()
    """Instructions to choose from; () = the task's own."""
    policy_seeds: int = 1
    """How many seeds of the policy's randomness there are to choose from, from its own one on."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The meaning of some numbers of a flat simulator state: `state[first : first + size]`. A `position` is [3], or a
    slider's [1], in m; a `rotation` a quaternion [4] wxyz, or a hinge's angle [1] in rad.
    """

    name: str
    kind: Literal["position", "rotation"]
    first: int
    size: int
