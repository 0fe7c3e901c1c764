"""Tasks, the starts of their episodes, and changes of their physics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a suite. `index` counts from 0 in the suite's own order, `name` is the host's own name."""

    benchmark: str
    task_id: str
    index: int
    name: str
    instruction: str
    still: tuple[float, ...]  # moves nothing and opens the gripper, in the host's units; as long as every action
    init_states: int | None = None  # fixed initial states that the host ships; None = drawn from the seed
    horizon: int | None = None  # the host's own limit in policy steps, unless a protocol sets one
    episodes: int | None = None  # number of episodes that the benchmark runs; None if it does not say
    arms: tuple[str, ...] = ()  # names of several arms, in the order of records and observations
    label: str = ""  # suite name that records use instead of `benchmark`, if a search chose the starts
    found: tuple[FoundStart, ...] = ()  # the starts, one per episode; () = as the protocol says

    @property
    def suite(self) -> str:
        """The suite name in records: `label`, else `benchmark`."""
        return self.label or self.benchmark


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """A recorded episode to replay: its name, its length and its start. `state` is a flat simulator state to start
    from, [S], as in the host's records (`sim_state`); None = use `index` and the seed. Such a state lacks two things:
    the poses of `fixtures`, root body -> position [3] in meters and quaternion [4], w first; and the gripper's last
    command, which the host infers.
    """

    episode: str
    source: str
    steps: int
    state: tuple[float, ...] | None = None
    fixtures: tuple[tuple[str, tuple[float, ...]], ...] = ()
    ending: str = "timeout"  # outcome if the actions run out without success; `stopped` if the recording ended early
    actions: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """The actions to replay, [steps, A]; None if the policy has them."""
    path: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """Positions of targets and hand at the first records, [n, bodies, 3] in m; the replay ends where it deviates."""


@dataclass(frozen=True, slots=True)
class PhysicsChange:
    """Changes of the host's physics from record 0 on; settling is as recorded. The default changes nothing. Factors
    multiply the host's own value.
    """

    time_step: float = 1.0
    """Factor of the physics time step. A control step keeps its duration: it has the nearest whole number of substeps,
    and the time step follows from that. Controllers run once per substep, as before."""
    iterations: float = 1.0  # factor of the maximum number of solver iterations; the tolerance is divided by its square
    softness: float = 1.0  # factor of the contacts' time constant, and of the difference between their impedance and 1
    friction: float = 1.0
    shift_m: float = 0.0  # of free bodies at record 0, horizontally, each in a direction drawn from the seeds
    apart: tuple[str, str] | None = None  # two bodies, by recorded name, whose contacts are disabled
    without: str | None = None  # a body that touches nothing and does not move

    @property
    def changed(self) -> frozenset[str]:
        """Names of the fields that differ from the default."""
        return frozenset(part.name for part in fields(self) if getattr(self, part.name) != part.default)


VARIATIONS: Mapping[str, PhysicsChange] = {  # in the order in which they are replayed
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


@dataclass(frozen=True, slots=True)
class EpisodeSeed:
    """The values that fix an episode's start: the index of the initial state and the environment's seed. If `recorded`
    has a state, that is the start, and the index counts the recorded episodes.
    """

    init_state_index: int
    env_seed: int
    wait_steps: int  # settling steps before record 0, not counted in the horizon
    wait_action: tuple[float, ...] | None = None  # in the host's units; None = no motion, and the gripper open
    rest_steps: int = 0
    earlier_resets: int | None = None
    """Number of resets since the environment was made and seeded, before this one; None = it is seeded before this one.

    Set for replays of recordings whose environment was seeded only once; hosts whose scenes do not depend on it ignore
    it.
    """
    drawn: bool = False  # ignore initial states: the reset places objects at random, by `env_seed` and the index
    recorded: RecordedEpisode | None = None
    placed: tuple[tuple[str, float], ...] = ()  # coordinates [m] of `SearchSpace` that replace the initial ones
    change: PhysicsChange | None = None  # from record 0 on, within `HostSupport.changeable`; None = as it is


@dataclass(frozen=True, slots=True)
class FoundStart:
    """A start that a search found, the seed of the policy's randomness, and the instruction if changed."""

    start: EpisodeSeed
    policy_seed: int
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Ranges of the starts of a task's objects: coordinates, [d] each, such as `plate_1.x`, in the world frame [m]. The
    space is the box from `low` to `high`, without the points at which two objects are too close. A search may also vary
    the instruction and the policy's seed.
    """

    names: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    apart_m: tuple[tuple[str, str, float], ...] = ()  # two objects and the least horizontal distance of centers
    own: tuple[tuple[float, ...], ...] = ()  # the benchmark's own starts, [d] each
    wordings: tuple[str, ...] = ()  # instructions to choose from; () = the task's own
    policy_seeds: int = 1  # number of policy seeds to choose from, counted from the policy's own one


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The meaning of some entries of a flat simulator state: `state[first : first + size]`. A `position` is [3], or a
    slider's [1], in m; a `rotation` is a quaternion [4] wxyz, or a hinge's angle [1] in rad.
    """

    name: str
    kind: Literal["position", "rotation"]
    first: int
    size: int
