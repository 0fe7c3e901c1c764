"""Dialects of policy servers: an observation becomes a request, a reply becomes the host's actions.

A `Dialect` is a frozen value made from data (`dialects/*.toml` and a protocol); it holds no state and no connection, so
that every transport can use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ReplyError
from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.policies.servers import image_transforms

Request = dict[str, object]
"""Keys to uint8 images, float arrays, texts, lists of texts, or a nested request."""
Reply = Mapping[str, object]
_REMEDY = "Serve the checkpoint that the dialect is for, or choose the dialect of this server: safevla protocols."
_KEYS, _LETTERS = 12, 60
"""Of a reply that are shown in an error."""


@dataclass(frozen=True, slots=True)
class CameraView:
    """The preparation of a camera's image, in this order: flip, JPEG, resize, crop."""

    flip: str
    jpeg: bool
    size: tuple[int, int]
    resize: str
    crop: float | None

    def __call__(self, image: image_transforms.Image) -> image_transforms.Image:
        """Return the prepared picture, uint8 [*size, 3], of an upright image [H, W, 3].

        Raises `PolicyError` for an image of another size where the protocol does not resize.
        """
        shown = image_transforms.flip_image(image, self.flip)
        if self.jpeg:
            shown = image_transforms.pass_through_jpeg(shown)
        resized = image_transforms.resize_picture(shown, self.size, self.resize)
        return resized if self.crop is None else image_transforms.crop_center(resized, self.crop)


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One entry of the request: its path, and the camera, the state parts, the fixed text or the instruction in it.

    `axes` counts the leading axes of length 1, which stand for a batch or for time; a text inside them is in as many
    lists. `asked` is the parameter by which a server asks for the entry; None = it is always sent.
    """

    path: tuple[str, ...]
    camera: str | None = None
    state: tuple[str, ...] = ()
    dtype: str = "float64"
    axes: int = 0
    asked: str | None = None
    fixed: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyArray:
    """One array of the reply, [H, width], perhaps with leading axes of length 1; [H] where the width is 1."""

    path: tuple[str, ...]
    width: int


@dataclass(frozen=True, slots=True)
class Dialect:
    """One server's request and reply.

    `replan` is how many actions of a reply are carried out before the next request; None = all of them.
    """

    name: str
    wants: Wants
    view: CameraView
    fields: tuple[RequestEntry, ...]
    parts: tuple[ReplyArray, ...]
    """Arrays whose columns, one after another, are the host's action."""
    switches: tuple[tuple[int, str], ...]
    """Columns of the host's action that are −1 or +1, as the gripper's, and how they are made from the reply's."""
    replan: int | None
    clip: bool
    release: str = "unknown"
    """The protocol that says how this dialect shows images and states and what its gripper means."""
    sessions: bool = False
    """Whether the server keeps a memory by session, which the first request of an episode has it reset."""

    def build_request(self, observation: Observation) -> Request:
        """Return the request.

        Raises `PolicyError` where the host does not show a state that the policy needs, or an image is of another size
        than is sent and is not to be resized.
        """
        request: Request = {}
        for field in self.fields:
            inner = request
            for key in field.path[:-1]:
                inner = inner.setdefault(key, {})  # type: ignore[assignment]
            inner[field.path[-1]] = self._entry_value(field, observation)
        return request

    def _entry_value(self, field: RequestEntry, observation: Observation) -> object:
        """Return what an entry of the request holds: the prepared image, the state parts in a row, or the text.

        Each has `field.axes` leading axes. Raises `PolicyError` as `build_request` does.
        """
        if field.camera is not None:
            image = self.view(observation.images[field.camera])
            return image[(np.newaxis,) * field.axes]
        if field.state:
            row = np.concatenate([_state_part(name, observation) for name in field.state])
            return row.astype(field.dtype)[(np.newaxis,) * field.axes]
        return _nest_text(observation.instruction if field.fixed is None else field.fixed, field.axes)

    def read_actions(self, reply: Reply) -> NDArray[np.float64]:
        """Return the host's actions, [H, A] with H ≥ 1; numbers that are not finite are left to whoever acts on them.

        Raises `ReplyError` for a reply without the arrays of `parts`, or with arrays of another shape or of different
        numbers of steps; the error says what came.
        """
        try:
            rows = [_reply_rows(reply, part) for part in self.parts]
        except ReplyError as error:
            problem = f"{error.problem} ({self.name}); it holds {describe_reply(reply)}"
            raise ReplyError(problem, remedy=_REMEDY) from None
        if len({len(row) for row in rows}) > 1:
            counts = ", ".join(f"{'/'.join(part.path)} {len(row)}" for part, row in zip(self.parts, rows, strict=True))
            raise ReplyError(f"the parts of the reply differ in steps: {counts}", remedy=_REMEDY)
        return image_transforms.convert_switches(np.concatenate(rows, axis=1), dict(self.switches))


def describe_reply(reply: Reply) -> str:
    """Return the keys of a reply with the shapes of their arrays, shortened."""
    return ", ".join(describe_entries(reply)) or "nothing"


def describe_entries(message: Mapping[str, object]) -> list[str]:
    """Return a description of each of the first 12 keys of a request or reply, and how many more there are."""
    shown = [f"{str(key)[:_LETTERS]!r} {_describe_value(value)}" for key, value in list(message.items())[:_KEYS]]
    return [*shown, f"and {len(message) - _KEYS} more"] if len(message) > _KEYS else shown


def _describe_value(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(_describe_inner(str(key), inner) for key, inner in list(value.items())[:_KEYS])}}}"
    if isinstance(value, list) and value:
        return f"{len(value)} x {_describe_value(value[0])}"
    return type(value).__name__


def _describe_inner(key: str, value: object) -> str:
    return f"{key[:_LETTERS]} {_describe_value(value)}" if isinstance(value, np.ndarray) else key[:_LETTERS]


def _nest_text(text: str, axes: int) -> object:
    return [_nest_text(text, axes - 1)] if axes else text


def _reply_rows(reply: Reply, part: ReplyArray) -> NDArray[np.float64]:
    """Return one array of the reply, [H, width] with H ≥ 1, without its leading axes of length 1.

    Raises `ReplyError` where the reply has no such key, no numbers there, or numbers of another shape.
    """
    where = "/".join(part.path)
    value: object = reply
    for key in part.path:
        if not isinstance(value, Mapping) or key not in value:
            raise ReplyError(f"the reply has no {where!r}")
        value = value[key]
    array = _parse_numbers(value, where)
    shape = array.shape
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 1:
        array = array[:, np.newaxis] if part.width == 1 else array[np.newaxis]
    if array.ndim != 2 or not len(array) or array.shape[1] != part.width:
        raise ReplyError(f"{where!r} of the reply has the shape {shape}, not [steps, {part.width}]")
    return array


def _parse_numbers(value: object, where: str) -> NDArray[np.float64]:
    try:
        if np.iscomplexobj(np.asarray(value)):
            raise TypeError("complex numbers")
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ReplyError(f"{where!r} of the reply is no array of numbers") from None


def _state_part(name: str, observation: Observation) -> NDArray[np.float64]:
    """Return one part of the state by its name in `STATES`, [n].

    Raises `PolicyError` where the host does not show it.
    """
    try:
        return STATES[name](observation)
    except TypeError:  # a pose of a base where the robot has none
        problem = f"the policy needs {name}, which this host does not show"
        raise PolicyError(problem, remedy="Choose the entry or dialect for this host.") from None


def _pose_in_base(observation: Observation) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the end effector's position and wxyz orientation in the frame of the mobile base.

    Of q and −q the quaternion with w ≥ 0, as robosuite's `mat2quat` gives RoboCasa's `base_to_eef_quat`. Raises
    `TypeError` where the robot has no mobile base.
    """
    if observation.base_pos_m is None or observation.base_quat_wxyz is None:
        raise TypeError
    back = observation.base_quat_wxyz * [1, -1, -1, -1]
    moved = np.concatenate([[0.0], observation.eef_pos_m - observation.base_pos_m])
    place = _multiply_quaternions(_multiply_quaternions(back, moved), observation.base_quat_wxyz)[1:]
    turned = _multiply_quaternions(back, observation.eef_quat_wxyz)
    return place, _shortest_quaternion(turned)


def _shortest_quaternion(quat_wxyz: NDArray[np.float64]) -> NDArray[np.float64]:
    return -quat_wxyz if quat_wxyz[0] < 0 else quat_wxyz


_ROOT_HALF = float(np.sqrt(0.5))
_HAND_TO_SITE_WXYZ = np.array([_ROOT_HALF, 0.0, 0.0, -_ROOT_HALF])
"""The grip site's axes in the hand's: robosuite 1.4 models/assets/grippers/panda_gripper.xml, body right_gripper."""


def _single(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return array.astype(np.float32).astype(np.float64)


def _site_axis_angle(observation: Observation) -> NDArray[np.float64]:
    site = _multiply_quaternions(observation.eef_quat_wxyz, _HAND_TO_SITE_WXYZ)
    return _single(image_transforms.to_axis_angle(_shortest_quaternion(site)))


def _multiply_quaternions(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    w, v = p[0] * q[0] - p[1:] @ q[1:], p[0] * q[1:] + q[0] * p[1:] + np.cross(p[1:], q[1:])
    return np.concatenate([[w], v])


def _require_pose(array: NDArray[np.float64] | None) -> NDArray[np.float64]:
    if array is None:
        raise TypeError
    return array


STATES: Mapping[str, Callable[[Observation], NDArray[np.float64]]] = {
    "eef_pos": lambda seen: seen.eef_pos_m,
    "eef_x": lambda seen: seen.eef_pos_m[0:1],
    "eef_y": lambda seen: seen.eef_pos_m[1:2],
    "eef_z": lambda seen: seen.eef_pos_m[2:3],
    "eef_axis_angle": lambda seen: image_transforms.to_axis_angle(seen.eef_quat_wxyz),
    "eef_axis_angle_single": lambda seen: _single(image_transforms.to_axis_angle(seen.eef_quat_wxyz)),
    "eef_axis_angle_shortest": lambda seen: _single(
        image_transforms.to_axis_angle(_shortest_quaternion(seen.eef_quat_wxyz))
    ),
    "site_axis_angle_shortest": _site_axis_angle,
    "eef_axis_angle_x": lambda seen: image_transforms.to_axis_angle(seen.eef_quat_wxyz)[0:1],
    "eef_axis_angle_y": lambda seen: image_transforms.to_axis_angle(seen.eef_quat_wxyz)[1:2],
    "eef_axis_angle_z": lambda seen: image_transforms.to_axis_angle(seen.eef_quat_wxyz)[2:3],
    "eef_quat_xyzw": lambda seen: seen.eef_quat_wxyz[[1, 2, 3, 0]],
    "gripper_qpos": lambda seen: seen.gripper_qpos,
    "eef_pos_in_base": lambda seen: _pose_in_base(seen)[0],
    "eef_quat_xyzw_in_base": lambda seen: _pose_in_base(seen)[1][[1, 2, 3, 0]],
    "base_pos": lambda seen: _require_pose(seen.base_pos_m),
    "base_quat_xyzw": lambda seen: _require_pose(seen.base_quat_wxyz)[[1, 2, 3, 0]],
}
"""Parts of a state by name, each [n], in the observation's units."""
