"""Protocols of hosts, environments and policies that the rollout loop uses, and the values that they exchange.

A `Host` names suites and tasks and makes environments. A `HostEnv` is one simulator with its
recorder attached. A `Policy` turns an `Observation` into an action. Nothing here imports a simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError, InvalidActionError, PolicyError
from safevla_bench.trajectory.batch import Batch

Action = NDArray[np.float64]
Reading = NDArray[np.float64] | NDArray[np.float32]
"""One of `Observation.extra`; depths are of single precision."""


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
    episodes: int = 1
    """Number of episodes that its benchmark runs of it."""
    unusable: str | None = None
    """The reason why no environment of it can be made here; None where one can, as far as is known."""


@dataclass(frozen=True, slots=True)
class Wants:
    """Observations that a policy wants beyond proprioception. Nothing is rendered that no policy wants."""

    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    """Height and width in pixels."""
    privileged: bool = False
    """Simulator state that no real robot has; every report marks a policy that uses it."""
    absolute: bool = False
    """Actions are poses in the world frame, position [3] in m and axis-angle [3] in rad, and not changes of pose."""
    extra: tuple[str, ...] = ()
    """Further readings under `Observation.extra` that are made only where they are asked for, such as `joint_pos`."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The pieces of one body's collision geometry, such as a drawer's walls, as G boxes in the body frame.

    center_m [G, 3], half_extents_m [G, 3] along each box's own axes, quat_wxyz [G, 4] of those axes.
    """

    center_m: NDArray[np.float64]
    half_extents_m: NDArray[np.float64]
    quat_wxyz: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Joint:
    """One joint of a fixture as it is now, in the world frame.

    `axis` [3] is the unit vector along which a slide's bodies move, or about which a hinge's turn to the left, as the
    position grows from `low` to `high` (m or rad); `anchor_m` [3] is a point on a hinge's axis. `bodies` are what it
    moves, its own body first.
    """

    kind: Literal["hinge", "slide"]
    axis: NDArray[np.float64]
    anchor_m: NDArray[np.float64]
    low: float
    high: float
    bodies: tuple[str, ...]


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
    """Pieces of a body's collision geometry, for bodies of more than one piece; a host may leave it empty."""
    joints: Mapping[str, Joint] = field(default_factory=dict)
    """Joints of the fixture that the goal moves, by the names of `joint_pos`; a host may leave it empty."""


class UnrenderedImages(Mapping[str, NDArray[np.uint8]]):
    """Images of an observation that were not rendered: nobody was to look at them. Reading one is a `PolicyError`."""

    def __init__(self, cameras: Sequence[str]) -> None:
        """Take the names of the cameras, which `iter` and `len` still give."""
        self._cameras = tuple(cameras)

    def __getitem__(self, camera: str) -> NDArray[np.uint8]:
        """Raise `PolicyError` for every name, whether it is a camera's or not."""
        problem = f"the image of {camera} was not rendered: the policy had said that it would not look at it"
        raise PolicyError(problem, remedy="Its `looks_next` is to be true where its next action needs the images.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._cameras)

    def __len__(self) -> int:
        return len(self._cameras)


class PartialReadings(Mapping[str, Reading]):
    """Further readings of an observation for which no camera was rendered. Reading a depth is a `PolicyError`."""

    def __init__(self, made: Mapping[str, Reading], unrendered: Sequence[str]) -> None:
        """Take the readings that were made and the names of those that were not rendered."""
        self._made, self._unrendered = dict(made), tuple(unrendered)

    def __getitem__(self, name: str) -> Reading:
        """Return a reading that was made.

        Raises `PolicyError` if it was not rendered, `KeyError` if there is none of that name.
        """
        if name not in self._unrendered:
            return self._made[name]
        problem = f"the reading {name} was not rendered: the policy had said that it would not look at it"
        raise PolicyError(problem, remedy="Its `looks_next` is to be true where its next action needs the depth.")

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the readings that were made, then of those that were not rendered."""
        return iter((*self._made, *self._unrendered))

    def __len__(self) -> int:
        return len(self._made) + len(self._unrendered)


@dataclass(frozen=True, slots=True)
class Observation:
    """A policy's observation before each action.

    eef_pos_m [3] world frame; eef_quat_wxyz [4]; gripper_qpos [G] finger joint positions in metres;
    images: camera -> uint8 [H, W, 3], upright, RGB. base_pos_m [3] and base_quat_wxyz [4], world frame, are there for
    robots that drive.

    `extra` has a host's own readings by name: a vector of its own, and of what `Wants.extra` asks for those that it
    has: `joint_pos` and `joint_vel` of the arm [J]; of a wanted camera `depth/NAME`, float32 [H, W], upright,
    metres along the axis of view, `intrinsics/NAME` [3, 3] in pixels, and `extrinsics/NAME` [4, 4], from the camera's
    frame (x right, y down, z forward) to the world.
    """

    instruction: str
    eef_pos_m: NDArray[np.float64]
    eef_quat_wxyz: NDArray[np.float64]
    gripper_qpos: NDArray[np.float64]
    images: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    privileged: Privileged | None = None
    base_pos_m: NDArray[np.float64] | None = None
    base_quat_wxyz: NDArray[np.float64] | None = None
    extra: Mapping[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """A recorded episode that is played again: its name, its length and its start.

    `state` is a flat simulator state to start from, [S], as the host's records have it (`sim_state`); None = the
    initial state of the index and seed beside it. What such a state does not hold: `fixtures`, root body -> position
    [3] in metres and quaternion [4], w first; and where the gripper was told to go, which the host infers.
    """

    episode: str
    """Its name in `source`."""
    source: str
    steps: int
    state: tuple[float, ...] | None = None
    fixtures: tuple[tuple[str, tuple[float, ...]], ...] = ()
    told: Mapping[str, object] = field(default_factory=dict, hash=False)
    """What the record says of its scene: its header's field under the host's name, where that fixes the start."""
    ending: str = "timeout"
    """The outcome where the actions run out without success; `stopped` where the recording was broken off."""


@dataclass(frozen=True, slots=True)
class EpisodeSeed:
    """The values that fix an episode's start: the initial state's index and the environment's seed.

    Or the state that `recorded` holds; then the index counts the recorded episodes and no initial state is used.
    """

    init_state_index: int
    env_seed: int
    wait_steps: int
    """Settling steps before record 0; not counted in the horizon."""
    wait_action: tuple[float, ...] | None = None
    """The action of those steps, in the host's units; None = the host's own: no motion, and the gripper open."""
    rest_steps: int = 0
    """Largest number of further steps, until every object is at rest."""
    earlier_resets: int | None = None
    """Resets of an environment since it was made and seeded, before this one; None = it is seeded before this one.

    For recordings of others whose environments are seeded once; a host whose scenes do not depend on it ignores it.
    """
    drawn: bool = False
    """Leave the task's initial states aside: the reset places things by chance, by `env_seed` and the index."""
    recorded: RecordedEpisode | None = None


@runtime_checkable
class Policy(Protocol):
    """One policy, asked once a control step. `reset` comes before each episode with a seed for its randomness."""

    wants: Wants

    def reset(self, task: Task, seed: int) -> None:
        """Prepare for an episode of the task; `seed` is for the policy's own randomness."""
        ...

    def act(self, observation: Observation) -> Action:
        """Return the action, [A], in the host's units."""
        ...

    def close(self) -> None:
        """Free what the policy holds, such as a connection; the policy is not asked again."""
        ...


@runtime_checkable
class SelectivePolicy(Protocol):
    """A property that a policy offers beside `Policy` if it does not look at every observation's images."""

    @property
    def looks_next(self) -> bool:
        """True if the next `act` looks at the images of its observation."""
        ...


@runtime_checkable
class RemotePolicy(Protocol):
    """Methods that a policy offers beside `Policy` if a server answers for it."""

    @property
    def env_seed(self) -> int | None:
        """The simulator's seed that the server asks for; None where it asks for none."""
        ...

    def connect(self, task: Task) -> None:
        """Reach the server before an environment is made, and learn from it what to observe; `wants` may change."""
        ...


@runtime_checkable
class ReplayPolicy(Protocol):
    """Methods that a policy offers beside `Policy` if it plays recorded episodes."""

    description: Mapping[str, object]
    """Facts for the run's description, such as a digest of the recording."""

    def match(self, task: Task, start: EpisodeSeed) -> EpisodeSeed:
        """Return the start of the recorded episode that stands for a planned start.

        Raises `PolicyError` where none fits.
        """
        ...

    def recorded_episodes(self, task: Task) -> tuple[int, ...]:
        """Return the numbers of a task's recorded episodes: their initial states, else 0, 1 and so on."""
        ...

    def cue(self, start: EpisodeSeed) -> None:
        """Choose the recorded episode that the next `reset` begins."""
        ...

    def add_divergence(self, played: Batch, coordinates: Sequence[Coordinate], last: Observation) -> Batch:
        """Return the record with its divergence from the recording under `replay` in its header.

        `coordinates` say what the numbers of its simulator states mean; `last` is the observation after the last
        action.
        """
        ...


def check_action(action: object, size: int, meaning: str = "") -> Action:
    """Return an action as float64 [size], before anything is simulated.

    Args:
        action: what a policy gave.
        size: how many numbers the host takes.
        meaning: of these numbers, for the error.

    Raises:
        InvalidActionError: it is no array of real numbers, has another shape, or holds a number that is not finite.
    """
    remedy = "Mend the policy's output."
    if action is None:
        raise InvalidActionError(f"None in place of an action, where the host takes {(size,)}", remedy=remedy)
    try:
        given = np.asarray(action)
        if np.iscomplexobj(given):
            raise InvalidActionError("an action of complex numbers, of which NumPy would keep half", remedy=remedy)
        numbers = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidActionError(f"a {type(action).__name__} that is no array of numbers", remedy=remedy) from None
    if numbers.shape != (size,):
        problem = f"an action of shape {numbers.shape}, where the host takes {(size,)}"
        raise InvalidActionError(problem, remedy=f"Give {size} numbers: {meaning}." if meaning else remedy)
    if not np.isfinite(numbers).all():
        place = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise InvalidActionError(f"number {place} of the action is {numbers[place]}, not finite", remedy=remedy)
    return numbers


def check_extra(wants: Wants, offered: Sequence[str], host: str) -> None:
    """Raise `HostError` if a policy asks for a reading that is not offered.

    The message names the first such reading, and all that `host` offers.
    """
    unknown = [name for name in wants.extra if name not in offered]
    if unknown:
        remedy = f"It has: {', '.join(offered)}." if offered else "Use a policy that needs none."
        raise HostError(f"{host} has no reading {unknown[0]!r}", remedy=remedy)


class HostEnv(Protocol):
    """One task in one simulator with its recorder attached."""

    task: Task
    dt_s: float
    action_low: Action
    action_high: Action

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, let the scene settle, record record 0, and return its observation."""
        ...

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action and record it. Return the next observation and the host's native success.

        Raises:
            InvalidActionError: `check_action` refuses the action; nothing has been simulated.
        """
        ...

    def recorded(self) -> Batch:
        """Return the episode so far, as a validated batch of one with the host's own header fields filled."""
        ...

    def close(self) -> None:
        """Free the simulator; the environment is not used again."""
        ...


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The meaning of some numbers of a flat simulator state: `state[first : first + size]`.

    Of `position` [3] or a slider's [1] in m, of `rotation` a quaternion [4] wxyz or a hinge's angle [1] in rad.
    """

    name: str
    kind: Literal["position", "rotation"]
    first: int
    size: int


@runtime_checkable
class Coordinated(Protocol):
    """A method that an environment offers beside `HostEnv` if it starts from recorded states, to compare these."""

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of the present `sim_state`; velocities and the time are left out."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """A method that an environment may offer beside `HostEnv`, to observe each step at a low cost."""

    def latest(self) -> Batch:
        """Return the newest record alone, as a batch of one episode of one record."""
        ...


@runtime_checkable
class SelectiveEnv(Protocol):
    """A method that an environment may offer beside `HostEnv`, to render only what is looked at."""

    def render_next(self, wanted: bool) -> None:
        """Say whether the observation of the next step, and of that alone, is to hold images.

        Without a call, and after every reset, images are rendered. An observation without images has
        `UnrenderedImages`.
        """
        ...


class Host(Protocol):
    """A simulator benchmark: its suites, its tasks, its environments."""

    name: str

    def suites(self) -> tuple[str, ...]:
        """Return the names of the suites."""
        ...

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the tasks of a suite in their fixed order."""
        ...

    def make(self, task: Task, wants: Wants) -> HostEnv:
        """Make the environment of a task, with the observations that are wanted."""
        ...

    def versions(self) -> dict[str, str]:
        """Return the versions of everything that the trajectory depends on, by distribution name."""
        ...


CLOSE_UP = "close-up"


@dataclass(frozen=True, slots=True)
class Camera:
    """The viewpoint of a picture: one of the host's own cameras by its name, or a free one.

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
    """A camera's picture of one record.

    image [H, W, 3] upright, RGB; `seen` [H, W] is 0, or i + 1 where body i of those asked for is seen;
    `body_pos_m` has the position [3] of every tracked body as it stands in the picture, world frame.
    """

    image: NDArray[np.uint8]
    seen: NDArray[np.uint8]
    body_pos_m: Mapping[str, NDArray[np.float64]]


class Stage(Protocol):
    """One recorded episode set up again for rendering; nothing is simulated.

    `arm` names the body that each joint of the arm moves, base first. A stage may have `further_cameras`, the names of
    the cameras that a video of the episode shows beside the default one.
    """

    arm: tuple[str, ...]

    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> Camera:
        """Return the camera for a picture of `size` pixels (height, width) that shows these bodies in that record.

        It is the host's default camera where that shows them well, or where there are none; else one close up.
        """
        ...

    def render(self, record: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()) -> Picture:
        """Return the picture of a record, [height, width, 3].

        In `seen`, each of `bodies` has its place in that list plus 1. A camera without `lookat_m` whose name the host
        does not have raises `KeyError`, which lists the names there are.
        """
        ...

    def close(self) -> None:
        """Free the renderer."""
        ...


@runtime_checkable
class ObservingStage(Protocol):
    """A method that a stage may offer beside `Stage`, for data sets: what a policy would have been shown."""

    def observe(self, record: int) -> Observation | None:
        """Return the observation of a record without images; its pose is the one that `render` shows.

        None where the host cannot tell from its record what the policy observed.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TriangleMesh:
    """A surface: corners [V, 3] in metres, triangles [F, 3] of their indices, colours [V, 3] as uint8 or None."""

    corners_m: NDArray[np.float64]
    triangles: NDArray[np.int64]
    colors: NDArray[np.uint8] | None = None


ShapeKind = Literal["plane", "box", "sphere", "ellipsoid", "capsule", "cylinder", "mesh"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Something to be seen that is fixed to one part of a scene, at a place in that part's frame.

    `size_m` as MuJoCo has it: half extents of boxes, planes (z is unused) and ellipsoids; radius first and half the
    length second of capsules and cylinders, along z. A plane faces +z. A mesh has its own size. Colours multiply.
    """

    kind: ShapeKind
    part: int
    size_m: tuple[float, float, float]
    pos_m: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]
    rgba: tuple[float, float, float, float]
    mesh: int | None = None


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """A camera in the world: it looks along its -z, with y up; `fovy_deg` is the angle of the picture's height."""

    name: str
    pos_m: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]
    fovy_deg: float


@dataclass(frozen=True, slots=True, eq=False)
class SceneGeometry:
    """The look of a scene, apart from the places of its parts; `view` is the host's usual camera at record 0.

    `parts` names the recorded body that each part belongs to; several parts may have one name. `stand_ins` has the
    parts that are shown for a body with no shape of its own, such as the finger for its pad.
    """

    parts: tuple[str, ...]
    stand_ins: Mapping[str, tuple[int, ...]]
    shapes: tuple[Shape, ...]
    meshes: tuple[TriangleMesh, ...]
    view: Viewpoint


@dataclass(frozen=True, slots=True)
class Touch:
    """The touch of two recorded bodies in a state: a point [m] and the direction from `a` to `b`, world frame."""

    a: str
    b: str
    point_m: tuple[float, float, float]
    normal: tuple[float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class ScenePose:
    """The poses of a scene's parts in one record, [P, 3] m and [P, 4] wxyz, world frame, and the bodies that touch.

    `body_pos_m` as in `Picture`.
    """

    part_pos_m: NDArray[np.float64]
    part_quat_wxyz: NDArray[np.float64]
    touches: tuple[Touch, ...]
    body_pos_m: Mapping[str, NDArray[np.float64]]


@runtime_checkable
class GeometricStage(Protocol):
    """Methods that a stage may offer beside `Stage`, for replays in three dimensions."""

    def geometry(self) -> SceneGeometry:
        """Return the look of the scene."""
        ...

    def pose(self, record: int) -> ScenePose:
        """Return the poses of the scene's parts in a record."""
        ...


@runtime_checkable
class StagingHost(Protocol):
    """A host that can render its recorded episodes."""

    def stage(self, task: Task, episode: Batch) -> Stage:
        """Set up an episode, a batch of one with its `sim_state`.

        Raises:
            HostError: nothing can be rendered here, or the record lacks the states.
        """
        ...
