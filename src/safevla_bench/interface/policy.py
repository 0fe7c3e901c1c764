"""Policies: what they request, observe and return."""

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
"""Names of two extra observations of LIBERO: the end effector's position [3] in m and rotation matrix [9], row by row,
in the world frame, as used by the arm's controller. Both are one physics step behind the observed pose."""


@dataclass(frozen=True, slots=True)
class Wants:
    """Observations that a policy wants in addition to proprioception. A host renders only the cameras in `cameras`."""

    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    """Height and width in pixels."""
    privileged: bool = False
    """Whether the policy wants simulator state that no real robot has. Every report marks such policies."""
    as_rendered: bool = True
    """Whether LIBERO's resets without cameras give the same results as resets with a renderer; False for replays of
    recordings that were made without a renderer."""
    absolute: bool = False
    """Whether actions are poses (world frame, position [3] in m, axis-angle [3] in rad) instead of changes of pose."""
    extra: tuple[str, ...] = ()
    """Requested keys of `Observation.extra`, such as `joint_pos`, that hosts compute only on request."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The collision geometry of one body, such as a drawer's walls, as `G` boxes. `center_m` [G, 3] and `quat_wxyz`
    [G, 4] are each box's pose in the body's frame; `half_extents_m` [G, 3] is half the box's size along each axis.
    """

    center_m: NDArray[np.float64]
    half_extents_m: NDArray[np.float64]
    quat_wxyz: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Privileged:
    """Ground truth of the scene in the world frame, in meters and unit wxyz quaternions; arrays are read-only.
    `half_extents_m` and `center_m` describe the bounding box of a body's collision geometry: half its size along the
    body's axes, and its center in the body frame. `goal` holds the host's goal predicates for the task, such as `("on",
    "akita_black_bowl_1", "plate_1")`; `sites_m` holds the positions of goal regions.
    """

    body_pos_m: Mapping[str, NDArray[np.float64]]
    body_quat_wxyz: Mapping[str, NDArray[np.float64]]
    half_extents_m: Mapping[str, NDArray[np.float64]]
    center_m: Mapping[str, NDArray[np.float64]]
    sites_m: Mapping[str, NDArray[np.float64]]
    goal: tuple[tuple[str, ...], ...]
    movable: frozenset[str]
    pieces: Mapping[str, Boxes] = field(default_factory=dict)  # maps a body to its boxes; may be empty
    hand: Boxes | None = None  # hand and fingers in their current pose, world frame; None = unknown


class UnrenderedImages(Mapping[str, NDArray[np.uint8]]):
    """Placeholder for images that were not rendered. Reading an image raises `PolicyError`."""

    def __init__(self, cameras: Sequence[str]) -> None:
        # `cameras` are the names of the cameras whose images were not rendered.
        self._cameras = tuple(cameras)

    def __getitem__(self, name: str) -> NDArray[np.uint8]:
        # An unknown camera raises a `KeyError` as in a dict, so that `in` and `get` also work for unknown names.
        if name not in self._cameras:
            raise KeyError(name)
        problem = f"{name} was not rendered, because the policy's `looks_next` was false"
        raise PolicyError(problem, remedy="Set `looks_next` to true if the next action needs the images.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._cameras)

    def __len__(self) -> int:
        return len(self._cameras)


@dataclass(frozen=True, slots=True)
class ArmObservation:
    """One arm: `eef_pos_m` [3] and `eef_quat_wxyz` [4] in the world frame; `gripper_qpos` [G], finger joints [m]."""

    eef_pos_m: NDArray[np.float64]
    eef_quat_wxyz: NDArray[np.float64]
    gripper_qpos: NDArray[np.float64]


def join_arms(arms: Sequence[ArmObservation]) -> ArmObservation:
    """Return the arms' values, concatenated in the order of `arms`, for the fields of `Observation`."""
    # For n arms, the result has positions [3n] in m, quaternions [4n] wxyz, and all finger joints' positions.
    return ArmObservation(
        eef_pos_m=np.concatenate([arm.eef_pos_m for arm in arms]),
        eef_quat_wxyz=np.concatenate([arm.eef_quat_wxyz for arm in arms]),
        gripper_qpos=np.concatenate([arm.gripper_qpos for arm in arms]),
    )


@dataclass(frozen=True, slots=True)
class Observation:
    """A policy's observation before each action. `eef_pos_m` [3] and `eef_quat_wxyz` [4], world frame; `gripper_qpos`
    [G], finger joint positions in m; `images` maps cameras to uint8 [H, W, 3], upright, RGB; `base_pos_m` [3] and
    `base_quat_wxyz` [4], a mobile base's pose, world frame. `extra` has other values, such as `joint_pos` [J].

    With several arms, `arms` maps names to the arms' observations, and the other fields concatenate the arms' values.
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
    arms: Mapping[str, ArmObservation] = field(default_factory=dict)


@runtime_checkable
class Policy(Protocol):
    """A policy, queried once per control step. `reset` precedes each episode and seeds the policy's randomness."""

    wants: Wants

    def reset(self, task: Task, seed: int) -> None:
        """Prepare for a new, independent episode of the task. `seed` seeds the policy's random numbers."""

    def act(self, observation: Observation) -> Action:
        """Return the action to execute for one control step after this observation: [A], in the host's units."""

    def close(self) -> None:
        """Release resources, such as a connection. The policy cannot be used afterwards."""


@runtime_checkable
class SelectivePolicy(Protocol):
    """Optional property of a policy that ignores the images of some observations."""

    @property
    def looks_next(self) -> bool:
        """True if the next `act` reads the images of its observation."""


@runtime_checkable
class ChunkingPolicy(Protocol):
    """Optional method of a policy that computes several actions at a time. These actions are called a chunk."""

    def take_rest(self) -> Sequence[Action]:
        """Return the computed actions that `act` has not returned yet, and discard these actions."""


@runtime_checkable
class RemotePolicy(Protocol):
    """Optional methods of a policy that queries a server."""

    @property
    def env_seed(self) -> int | None:
        """The simulator seed that the server requests; None if it requests no seed."""

    def connect(self, task: Task) -> None:
        """Connect to the server before an environment is made. Add to `wants` what the server needs to observe."""


@runtime_checkable
class SelectiveTaskPolicy(Protocol):
    """Optional method of a policy that cannot act in every task."""

    def require_task(self, task: Task) -> None:
        """Raise `PolicyError` if the policy cannot act in the task. The method is also called before a run."""


@runtime_checkable
class CuedPolicy(Protocol):
    """Optional method of a policy whose actions come from the recording that `EpisodeSeed.recorded` names."""

    def cue(self, start: EpisodeSeed) -> None:
        """Select the recorded episode that `start.recorded` names. After the next `reset`, the policy plays it."""


@runtime_checkable
class ReplayPolicy(CuedPolicy, Protocol):
    """Optional methods of a policy that replays recorded episodes."""

    description: Mapping[str, object]  # facts for the description of the run, such as a digest of the recording

    def match(self, task: Task, start: EpisodeSeed) -> EpisodeSeed:
        """Return the start of the recorded episode that matches the planned `start`. `PolicyError` if none matches."""

    def recorded_episodes(self, task: Task) -> tuple[int, ...]:
        """Return the numbers of a task's recorded episodes: indices of initial states or, if unknown, 0, 1, 2, ..."""

    def add_divergence(self, played: Batch, coordinates: Sequence[Coordinate], last: Observation) -> Batch:
        """Return the record `played` with a header field `replay`, which describes differences from the recording.
        `coordinates` describe the record's simulator states; `last` is the observation after the last action.
        """


_REMEDY = "Correct the policy's output."


def to_real_numbers(values: object) -> NDArray[np.float64]:
    """Convert integers and floats of any shape to float64. Raises `InvalidActionError` with the dtype for all other
    kinds, even inside lists: Booleans, text, dates, records, objects, complex numbers and masked arrays. Raises
    `TypeError` or `ValueError` for values that are not arrays.
    """
    # NumPy would drop the masks of masked arrays in a list, so each element is checked.
    candidates = [values, *values] if isinstance(values, list | tuple) else [values]
    if any(isinstance(candidate, np.ma.MaskedArray) for candidate in candidates):
        problem = "an action in a masked array, whose masked elements have undefined values"
        raise InvalidActionError(problem, remedy=_REMEDY)
    array = np.asarray(values)
    # NumPy converts Booleans in a list of floats to floats.
    # Therefore, a list that contains Booleans is converted to Booleans, which the check below refuses.
    if isinstance(values, list | tuple):
        element_types = {type(element) for element in np.array(values, dtype=object).flat}
        if element_types & {bool, np.bool_}:
            array = array.astype(bool)
    is_bfloat = array.dtype.kind == "V" and array.dtype.type is not np.void  # the kind of JAX's bfloat16 is V
    if array.dtype.kind not in "iuf" and not is_bfloat:  # signed integers, unsigned integers, floats
        problem = f"an action of dtype {array.dtype}; expected integers or floats"
        raise InvalidActionError(problem, remedy=_REMEDY)
    return array.astype(np.float64)


def check_action(action: object, size: int, meaning: str = "") -> Action:
    """Return an action as float64 [size]; hosts call this before they simulate. Raises `InvalidActionError` unless the
    action is an array of `size` finite real numbers. `meaning` describes the numbers for the error message.
    """
    # A list or tuple of `size` numbers counts as an array.
    if action is None:
        raise InvalidActionError(f"None instead of an action; expected {(size,)}", remedy=_REMEDY)
    try:
        numbers = to_real_numbers(action)
    except (TypeError, ValueError):
        problem = f"an action of type {type(action).__name__}, which is not an array of numbers"
        raise InvalidActionError(problem, remedy=_REMEDY) from None
    if numbers.shape != (size,):
        problem = f"an action of shape {numbers.shape}, but the host takes the shape {(size,)}"
        raise InvalidActionError(problem, remedy=f"Give {size} numbers: {meaning}." if meaning else _REMEDY)
    if not np.isfinite(numbers).all():
        index = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise InvalidActionError(f"an action that is not finite: {numbers[index]} at index {index}", remedy=_REMEDY)
    return numbers


def check_extra(wants: Wants, offered: Sequence[str], host: str) -> None:
    """Raise `HostError` if `wants.extra` has a name that is not among the extra observations `offered` by the host."""
    # The message names the host, `host`. It also lists `offered`, unless `offered` is empty.
    unknown = [name for name in wants.extra if name not in offered]
    if unknown:
        remedy = "Use a policy that does not need this observation."
        if offered:
            remedy = f"Extra observations of this host: {', '.join(offered)}."
        raise HostError(f"{host} has no extra observation {unknown[0]!r}", remedy=remedy)
