"""Tasks, the initial states of their episodes, and changes of their physics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a suite. `index` counts from 0 in the suite's order; `name` is the task's name in the host."""

    benchmark: str
    task_id: str
    index: int
    name: str
    instruction: str
    still: tuple[float, ...]  # action [A] that moves nothing and opens the gripper, in the host's units
    init_states: int | None = None  # number of the host's fixed initial states; None if the seed draws them
    horizon: int | None = None  # the host's limit in policy steps; the limit of a protocol has priority
    episodes: int | None = None  # number of episodes that the benchmark runs; None if it defines none
    arms: tuple[str, ...] = ()  # names of the arms, in the order of records and observations; () = one arm
    label: str = ""  # if a search chose the initial states, records use this suite name
    found: tuple[FoundStart, ...] = ()  # starts that a search found, one per episode; () = as in the protocol

    @property
    def suite(self) -> str:
        """The suite's name in records: `label` for initial states that a search chose, otherwise `benchmark`."""
        return self.label or self.benchmark


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """A recorded episode to replay: its name, number of steps and start. `state` [S] is the flat simulator state at the
    start, as in the host's records (`sim_state`); None = `EpisodeSeed` determines the start by its index and seed. A
    state lacks the poses of fixtures. They are in `fixtures`: root body -> position [3] in meters and quaternion [4], w
    first. A state also lacks the gripper's last command, which the host infers.
    """

    episode: str
    source: str
    steps: int
    state: tuple[float, ...] | None = None
    fixtures: tuple[tuple[str, tuple[float, ...]], ...] = ()
    ending: str = "timeout"  # outcome if no action led to success; `stopped` if the recording ended early
    actions: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """The actions to replay, [steps, A]; None if the policy itself has them."""
    path: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """Target and hand positions in the first n records, [n, bodies, 3] in m. A replay ends if it deviates from them."""


@dataclass(frozen=True, slots=True)
class PhysicsChange:
    """Changes of the host's physics from record 0 on. Settling before record 0 uses the unchanged physics. The default
    changes nothing. Factors multiply the host's values.
    """

    time_step: float = 1.0
    """Factor that multiplies the physics time step. The duration of a control step stays the same. Its number of
    substeps is rounded, and determines the actual time step. Controllers still run once per substep."""
    # Factor of the maximum number of solver iterations. The solver's tolerance is divided by the factor's square.
    iterations: float = 1.0
    softness: float = 1.0  # factor of the contacts' time constant, and of 1 minus their impedance
    friction: float = 1.0  # factor of the friction coefficients
    shift_m: float = 0.0  # horizontal shift of each free body at record 0, in a direction drawn from the seeds
    apart: tuple[str, str] | None = None  # recorded names of two bodies whose mutual contacts are disabled
    without: str | None = None  # name of a body that cannot move, and whose contacts are disabled

    @property
    def changed(self) -> frozenset[str]:
        """Names of the fields that differ from the default."""
        return frozenset(entry.name for entry in fields(self) if getattr(self, entry.name) != entry.default)


VARIATIONS: Mapping[str, PhysicsChange] = {  # in the order in which replays use the changes
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


SEED_END = 2**32  # seeds must be smaller than this number, because simulators seed NumPy's global generator


@dataclass(frozen=True, slots=True)
class EpisodeSeed:
    """The values that determine an episode's start, mainly the index of the initial state and the environment's seed.
    If `recorded` has a state, the episode starts from that state, and the index is the number of the recorded episode.
    """

    init_state_index: int
    env_seed: int
    wait_steps: int  # settling steps before record 0, not counted in the horizon
    wait_action: tuple[float, ...] | None = None  # settling action in the host's units; None = `Task.still`
    rest_steps: int = 0  # maximum number of further settling steps, which end when the objects rest
    earlier_resets: int | None = None
    """Number of resets between the environment's only seeding and this reset, for replays of recordings whose
    environment was seeded only once. None = seed the environment before this reset. Some hosts ignore this number,
    because their scenes do not depend on earlier resets.
    """
    drawn: bool = False  # whether the reset places objects at random, by `env_seed` and the index
    recorded: RecordedEpisode | None = None
    placed: tuple[tuple[str, float], ...] = ()  # coordinate in `SearchSpace.names` -> its value [m]
    change: PhysicsChange | None = None  # physics from record 0 on, within `HostSupport.changeable`; None = unchanged


@dataclass(frozen=True, slots=True)
class FoundStart:
    """A start that a search found: the episode's seed, the policy's seed, and the instruction if it was changed."""

    start: EpisodeSeed
    policy_seed: int
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The initial states that a search may choose for a task's objects. `names` are d coordinates, such as `plate_1.x`,
    in the world frame [m]. The space is the box from `low` to `high`, [d] each, without points at which two objects are
    too close. A search may also vary the instruction and the policy's seed.
    """

    names: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    apart_m: tuple[tuple[str, str, float], ...] = ()  # two objects and the minimum horizontal distance of their centers
    own: tuple[tuple[float, ...], ...] = ()  # the benchmark's initial states: d coordinates each
    wordings: tuple[str, ...] = ()  # instructions to choose from; () = the task's instruction
    policy_seeds: int = 1  # number of consecutive policy seeds to choose from; the first is the policy's usual one


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A named part of a flat simulator state: the entries `first` to `first + size - 1`. A `position` [m] has 3
    entries, or 1 for a slide joint. A `rotation` is a quaternion wxyz with 4 entries, or the angle [rad] of a hinge.
    """

    name: str
    kind: Literal["position", "rotation"]
    first: int
    size: int
