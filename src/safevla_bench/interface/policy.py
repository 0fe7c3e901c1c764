"""Policies: what they want, observe and answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError, InvalidActionError, PolicyError
from safevla_bench.interface.task import Coordinate, EpisodeSeed, Task
from safevla_bench.trajectory.batch import Batch

Action = NDArray[np.float64]


CONTROLLER_POSITION, CONTROLLER_ROTATION = "controller_pos", "controller_rotation"
"""Readings of LIBERO's: the pose that its controller computes with, position [3] in m and rotation [9] by rows, in the
world frame; it is older than the observed one by a physics step."""


@dataclass(frozen=True, slots=True)
class Wants:
    """Observations that a policy wants beyond proprioception. Nothing is rendered that no policy wants."""

    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    """Height and width in pixels."""
    privileged: bool = False
    """Simulator state that no real robot has; every report marks a policy that uses it."""
    as_rendered: bool = True
    """LIBERO without cameras computes what its resets compute with a renderer; False is for replays of loops without
    one."""
    absolute: bool = False
    """Actions are poses in the world frame, position [3] in m and axis-angle [3] in rad, and not changes of pose."""
    extra: tuple[str, ...] = ()
    """Further readings under `Observation.extra` that are made only if they are asked for, such as `joint_pos`."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The pieces of one body's collision geometry, such as a drawer's walls, as G boxes in one frame, the body's own.
    center_m [G, 3], half_extents_m [G, 3] along each box's own axes, quat_wxyz [G, 4] of those axes.
    """

    center_m: NDArray[np.float64]
    half_extents_m: NDArray[np.float64]
    quat_wxyz: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Privileged:
    """Ground truth of the scene in the world frame, metres and unit wxyz quaternions; arrays are read-only.
    `half_extents_m` is half the size of the body's collision geometry along its own axes, `center_m` the centre of that
    box in the body frame. `goal` holds the task's goal predicates as the host writes them, each a tuple such as `("on",
    "akita_black_bowl_1", "plate_1")`; `sites_m` the positions of goal regions.
    """

    body_pos_m: Mapping[str, NDArray[np.float64]]
    body_quat_wxyz: Mapping[str, NDArray[np.float64]]
    half_extents_m: Mapping[str, NDArray[np.float64]]
    center_m: Mapping[str, NDArray[np.float64]]
    sites_m: Mapping[str, NDArray[np.float64]]
    goal: tuple[tuple[str, ...], ...]
    movable: frozenset[str]
    pieces: Mapping[str, Boxes] = field(default_factory=dict)
    """Pieces of a body's collision geometry, for bodies of more than one piece; a host may leave it empty."""
    hand: Boxes | None = None
    """Pieces of the hand and its fingers as they are now, in the world frame; None if the host does not know them."""


class UnrenderedImages(Mapping[str, NDArray[np.uint8]]):
    """Images that were not rendered: nobody was to look at them. Reading one is a `PolicyError`."""

    def __init__(self, cameras: Sequence[str]) -> None:
        self._cameras = tuple(cameras)

    def __getitem__(self, name: str) -> NDArray[np.uint8]:
        if name not in self._cameras:
            raise KeyError(name)
        problem = f"{name} was not rendered: the policy had said that it would not look at it"
        raise PolicyError(problem, remedy="Its `looks_next` is to be true where its next action needs the images.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._cameras)

    def __len__(self) -> int:
        return len(self._cameras)


@dataclass(frozen=True, slots=True)
class Observation:
    """A policy's observation before each action. eef_pos_m [3] world frame; eef_quat_wxyz [4]; gripper_qpos [G] finger
    joint positions in metres; images: camera -> uint8 [H, W, 3], upright, RGB. base_pos_m [3] and base_quat_wxyz [4],
    world frame, of robots that drive. `extra` has further readings, such as `joint_pos` and `joint_vel` of the arm [J].
    """

    instruction: str
    eef_pos_m: NDArray[np.float64]
    eef_quat_wxyz: NDArray[np.float64]
    gripper_qpos: NDArray[np.float64]
    images: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    privileged: Privileged | None = None
    base_pos_m: NDArray[np.float64] | None = None
    base_quat_wxyz: NDArray[np.float64] | None = None
    extra: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@runtime_checkable
class Policy(Protocol):
    """One policy, asked once a control step. `reset` comes before each episode with a seed for its randomness."""

    wants: Wants

    def reset(self, task: Task, seed: int) -> None:
        """Prepare for an episode of the task; `seed` is for the policy's own randomness."""

    def act(self, observation: Observation) -> Action:
        """Return the action, [A], in the host's units."""

    def close(self) -> None:
        """Free what the policy holds, such as a connection; the policy is not asked again."""


@runtime_checkable
class SelectivePolicy(Protocol):
    """A property that a policy offers beside `Policy` if it does not look at every observation's images."""

    @property
    def looks_next(self) -> bool:
        """True if the next `act` looks at the images of its observation."""


@runtime_checkable
class ChunkingPolicy(Protocol):
    """A method that a policy offers beside `Policy` if it computes several actions at a time."""

    def take_rest(self) -> Sequence[Action]:
        """Return, and forget, the actions that it would carry out before it looks at another observation."""


@runtime_checkable
class RemotePolicy(Protocol):
    """Methods that a policy offers beside `Policy` if a server answers for it."""

    @property
    def env_seed(self) -> int | None:
        """The simulator's seed that the server asks for, if any."""

    def connect(self, task: Task) -> None:
        """Reach the server before an environment is made, and learn from it what to observe; `wants` may change."""


@runtime_checkable
class SelectiveTaskPolicy(Protocol):
    """A method that a policy offers beside `Policy` if it cannot act in every task."""

    def require_task(self, task: Task) -> None:
        """Raise `PolicyError` if it cannot act in the task; called before a run, too."""


@runtime_checkable
class CuedPolicy(Protocol):
    """A method that a policy offers beside `Policy` if it plays what an episode's start holds."""

    def cue(self, start: EpisodeSeed) -> None:
        """Choose the recorded episode that the next `reset` begins."""


@runtime_checkable
class ReplayPolicy(CuedPolicy, Protocol):
    """Methods that a policy offers beside `Policy` if it plays recorded episodes."""

    description: Mapping[str, object]
    """Facts for the run's description, such as a digest of the recording."""

    def match(self, task: Task, start: EpisodeSeed) -> EpisodeSeed:
        """Return the start of the recorded episode that stands for a planned start; `PolicyError` if none fits."""

    def recorded_episodes(self, task: Task) -> tuple[int, ...]:
        """Return the numbers of a task's recorded episodes: their initial states, else 0, 1 and so on."""

    def add_divergence(self, played: Batch, coordinates: Sequence[Coordinate], last: Observation) -> Batch:
        """Return the record with its divergence from the recording under `replay` in its header. `coordinates` say what
        the numbers of its simulator states mean; `last` is the observation after the last action.
        """


_REMEDY = "Correct the policy's output."


def to_real_numbers(values: object) -> NDArray[np.float64]:
    """Return integers and floats as float64, of any shape. Raises `InvalidActionError`, with the dtype, for any other
    kind: Booleans, text, dates, records, objects, complex numbers and masked arrays, also within lists; `TypeError` or
    `ValueError` for what is not an array.
    """
    parts = [values, *values] if isinstance(values, list | tuple) else [values]
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise InvalidActionError("an action in a masked array, whose masked numbers are unknown", remedy=_REMEDY)
    given = np.asarray(values)
    kinds = set(map(type, np.array(values, dtype=object).flat)) if len(parts) > 1 else set()
    if kinds & {bool, np.bool_}:  # NumPy makes floats of Booleans among floats
        given = given.astype(bool)
    is_bfloat = given.dtype.kind == "V" and given.dtype.type is not np.void  # JAX's, of which NumPy knows no kind
    if given.dtype.kind not in "iuf" and not is_bfloat:
        problem = f"an action of dtype {given.dtype}, where integers or floats belong"
        raise InvalidActionError(problem, remedy=_REMEDY)
    return given.astype(np.float64)


def check_action(action: object, size: int, meaning: str = "") -> Action:
    """Return an action as float64 [size], before anything is simulated. Raises `InvalidActionError`, with the `meaning`
    of the numbers, if it is not an array of `size` finite real numbers.
    """
    remedy = _REMEDY
    if action is None:
        raise InvalidActionError(f"None in place of an action, where the host takes {(size,)}", remedy=remedy)
    try:
        numbers = to_real_numbers(action)
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
    """Raise `HostError`, with all that `host` offers, if a policy asks for a reading that is not offered."""
    unknown = [name for name in wants.extra if name not in offered]
    if unknown:
        remedy = f"It has: {', '.join(offered)}." if offered else "Use a policy that needs none."
        raise HostError(f"{host} has no reading {unknown[0]!r}", remedy=remedy)
