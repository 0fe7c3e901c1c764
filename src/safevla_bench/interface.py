"""What a host, its environment and a policy are: the protocols that the rollout loop knows.

A `Host` names suites and tasks and makes environments. A `HostEnv` is one simulator with its
recorder attached. A `Policy` turns an `Observation` into an action. Nothing here imports a simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from safevla_bench.trajectory import Batch

Action = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a suite: `index` counts from 0 in the suite's own order, `name` is the host's own name."""

    benchmark: str
    task_id: str
    index: int
    name: str
    instruction: str
    init_states: int | None = None
    """How many fixed initial states the host ships for it; None = drawn from the seed."""
    horizon: int | None = None
    """The host's own limit in policy steps; a protocol's goes first."""
    episodes: int = 1
    """How many episodes its benchmark runs of it."""
    still: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
    """The action, in the host's units, that moves nothing and opens the gripper; it is as long as every action."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What a policy asks to see beyond proprioception. Nothing is rendered that no policy wants."""

    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    """Height and width in pixels."""
    privileged: bool = False
    """Simulator state that no real robot has; every report marks a policy that uses it."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The pieces of one body's collision geometry, such as a drawer's walls, as G boxes in the body frame.

    center_m [G, 3], half_extents_m [G, 3] along each box's own axes, quat_wxyz [G, 4] of those axes.
    """

    center_m: NDArray[np.float64]
    half_extents_m: NDArray[np.float64]
    quat_wxyz: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Privileged:
    """Ground truth of the scene in the world frame, metres and unit wxyz quaternions; arrays are read-only.

    `half_extents_m` is half the size of the body's collision geometry along its own axes, `center_m` the
    centre of that box in the body frame. `goal` holds the task's goal predicates as the host writes them, each a
    tuple such as `("on", "akita_black_bowl_1", "plate_1")`; `sites_m` the positions of goal regions.
    """

    body_pos_m: Mapping[str, NDArray[np.float64]]
    body_quat_wxyz: Mapping[str, NDArray[np.float64]]
    half_extents_m: Mapping[str, NDArray[np.float64]]
    center_m: Mapping[str, NDArray[np.float64]]
    joint_pos: Mapping[str, float]
    """Positions of the fixtures' joints by name, rad or m."""
    sites_m: Mapping[str, NDArray[np.float64]]
    goal: tuple[tuple[str, ...], ...]
    movable: frozenset[str]
    """The bodies with a free joint."""
    pieces: Mapping[str, Boxes] = field(default_factory=dict)
    """What a body's box is made of, for bodies of more than one piece; a host may leave it empty."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy sees before each action.

    eef_pos_m [3] world frame; eef_quat_wxyz [4]; gripper_qpos [G] finger joint positions in metres;
    images: camera -> uint8 [H, W, 3], upright, RGB. base_pos_m [3] and base_quat_wxyz [4], world frame, are there for
    robots that drive.
    """

    instruction: str
    eef_pos_m: NDArray[np.float64]
    eef_quat_wxyz: NDArray[np.float64]
    gripper_qpos: NDArray[np.float64]
    images: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    privileged: Privileged | None = None
    base_pos_m: NDArray[np.float64] | None = None
    base_quat_wxyz: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded episode that is played again: which, for how many steps, and where it starts.

    `state` is a flat simulator state to start from, [S], as the host's records have it (`sim_state`); None = the
    initial state of the index and seed beside it. What such a state does not hold: `fixtures`, root body -> position
    [3] in metres and quaternion [4], w first; and what the gripper was told before, which is taken to be what the
    `first_action` tells it, if anything.
    """

    episode: str
    """Its name in `source`."""
    source: str
    steps: int
    state: tuple[float, ...] | None = None
    first_action: tuple[float, ...] = ()
    fixtures: tuple[tuple[str, tuple[float, ...]], ...] = ()
    ending: str = "timeout"
    """The outcome where the actions run out without success; `stopped` where the recording was broken off."""


@dataclass(frozen=True, slots=True)
class EpisodeSeed:
    """All that fixes an episode's start: the initial state's index and the environment's seed.

    Or the state that `recorded` holds; then the index counts the recorded episodes and no initial state is used.
    """

    init_state_index: int
    env_seed: int
    wait_steps: int
    """Settling steps before record 0; not counted in the horizon."""
    wait_action: tuple[float, ...] | None = None
    """The action of those steps, in the host's units; None = the host's own: no motion, and the gripper open."""
    rest_steps: int = 0
    """How many more are taken at most, until every object is at rest."""
    drawn: bool = False
    """Leave the task's initial states aside: the reset places things by chance, by `env_seed` and the index."""
    recorded: Recorded | None = None


@runtime_checkable
class Policy(Protocol):
    """One policy, asked once a control step. `reset` comes before each episode with a seed for its randomness."""

    wants: Wants

    def reset(self, task: Task, seed: int) -> None: ...

    def act(self, observation: Observation) -> Action:
        """Return the action, [A], in the host's units."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Replaying(Protocol):
    """What a policy that plays recorded episodes offers beside `Policy`."""

    described: Mapping[str, object]
    """What a run keeps of it, such as a digest of the recording."""

    def match(self, task: Task, start: EpisodeSeed) -> EpisodeSeed:
        """The start of the recorded episode for a planned one; raises `PolicyError` where none fits."""
        ...

    def cue(self, start: EpisodeSeed) -> None:
        """Said before `reset`: which recorded episode comes."""
        ...

    def compared(self, played: Batch, coordinates: Sequence[Coordinate]) -> Batch:
        """The record of what came of it, with how far it went from the recording under `replay` in its header."""
        ...


class HostEnv(Protocol):
    """One task in one simulator with its recorder attached."""

    task: Task
    dt_s: float
    action_low: Action
    action_high: Action

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, settle, record record 0."""
        ...

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action, record it; returns what follows and the host's native success."""
        ...

    def recorded(self) -> Batch:
        """The episode so far, as a validated batch of one with the host's own header fields filled."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Coordinate:
    """What some numbers of a flat simulator state are: `state[first : first + size]`.

    Of `position` [3] or a slider's [1] in m, of `rotation` a quaternion [4] wxyz or a hinge's angle [1] in rad.
    """

    name: str
    kind: Literal["position", "rotation"]
    first: int
    size: int


@runtime_checkable
class Coordinated(Protocol):
    """What an environment offers beside `HostEnv` if it starts from recorded states: they can then be compared, too."""

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Of the present `sim_state`; velocities and the time are left out."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """What an environment may offer beside `HostEnv`, so that watching each step does not cost the whole record."""

    def latest(self) -> Batch:
        """The newest record alone, as a batch of one episode of one record."""
        ...


class Host(Protocol):
    """A simulator benchmark: its suites, its tasks, its environments."""

    name: str

    def suites(self) -> tuple[str, ...]: ...

    def tasks(self, suite: str) -> tuple[Task, ...]: ...

    def make(self, task: Task, wants: Wants) -> HostEnv: ...

    def versions(self) -> dict[str, str]:
        """Versions of everything that the trajectory depends on, by distribution name."""
        ...


CLOSE_UP = "close-up"


@dataclass(frozen=True, slots=True)
class Camera:
    """Where a picture is taken from: one of the host's own cameras by its name, or a free one.

    A free camera looks at `lookat_m` (world frame) from `distance_m` away; `azimuth_deg` is the direction it looks in,
    counted from +x to +y, and `elevation_deg` is negative where it looks down.
    """

    name: str
    lookat_m: tuple[float, float, float] | None = None
    distance_m: float = 1.0
    azimuth_deg: float = 0.0
    elevation_deg: float = 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """What a camera sees of one record.

    image [H, W, 3] upright, RGB; `seen` [H, W] is 0, or i + 1 where body i of those asked for is seen;
    `body_pos_m` has the position [3] of every tracked body as it stands in the picture, world frame.
    """

    image: NDArray[np.uint8]
    seen: NDArray[np.uint8]
    body_pos_m: Mapping[str, NDArray[np.float64]]


class Stage(Protocol):
    """One recorded episode set up again to be looked at; nothing is simulated.

    `arm` names the body that each joint of the arm moves, base first.
    """

    arm: tuple[str, ...]

    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> Camera:
        """The camera for a picture of so many pixels (height, width) that shows these bodies in that record.

        It is the host's default camera where that shows them well, or where there are none; else one close up.
        """
        ...

    def render(self, record: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()) -> Picture: ...

    def close(self) -> None: ...


@runtime_checkable
class StagingHost(Protocol):
    """A host that can show what it recorded."""

    def stage(self, task: Task, episode: Batch) -> Stage:
        """Set up an episode, a batch of one with its `sim_state`.

        Raises:
            HostError: nothing can be rendered here, or the record lacks what it takes.
        """
        ...
