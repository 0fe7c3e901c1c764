"""Dialects of policy servers. A dialect converts an observation to a request, and a reply to the host's actions.

A `Dialect` is made from a `*.toml` file in this folder, and from the evaluation protocol that the file names as
`release`. A dialect is frozen, and has no state and no connection, so that every transport can use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from PIL import Image as PillowImage

from safevla_bench.errors import PolicyError, ReplyError
from safevla_bench.files import list_shipped, read_shipped
from safevla_bench.hosts.protocols import Flip, Inference, load_protocol
from safevla_bench.interface.policy import Observation, Wants, to_real_numbers
from safevla_bench.policies.servers import transforms

Request = dict[str, object]  # the values are uint8 images, float arrays, texts, lists of texts, or nested requests
Reply = Mapping[str, object]
_REMEDY = "Serve a checkpoint that fits the dialect, or choose the dialect of this server: safevla protocols."
_MAX_KEYS, _MAX_CHARS = 12, 60


class RequestEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the request: its path, and its content, which is an image, a state, a text or a fixed value."""

    path: tuple[str | int, ...]  # keys of maps, and indices of lists: `["examples", 0, "image", 1]`
    camera: str | None = None
    state: tuple[str, ...] = ()  # concatenated parts of the state; `all` means all parts in the protocol
    text: Literal["instruction", "simpler-task"] | None = None  # `simpler-task` is SimplerEnv's name of the task
    dtype: Literal["float32", "float64"] = "float64"
    axes: int = 0  # number of leading axes of length 1, for batch or time; for a text, number of nested lists
    asked: str | None = None  # the server's parameter that requests this entry; None = always sent
    flip: Flip | None = None  # flip of the camera's image; None = the flip in the protocol
    form: Literal["raw", "sine-cosine"] = "raw"  # `sine-cosine` sends the sines of all angles, then their cosines
    fixed: str | bool | int | None = None

    @property
    def place(self) -> str:
        """The entry's path in the request as a single text, such as `examples[0]/image[1]`."""
        # A key of a list is an index (int), a key of a map is a text.
        parts = [f"[{key}]" if isinstance(key, int) else f"/{key}" for key in self.path]
        return "".join(parts).removeprefix("/")


class ReplyArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of the reply, [H, width], possibly with leading axes of length 1. If the width is 1, [H] is also
    accepted. If the path leads through a list of maps, each map contains one row.
    """

    path: tuple[str, ...]
    width: int
    form: Literal["raw", "ee6d", "pose-wxyz", "opening", "base-first", "euler"] = "raw"
    """The conversion from rows of the reply to columns of the action: a name in `transforms.FORMS`."""

    def read_rows(self, reply: Reply) -> NDArray[np.float64]:
        """Return the array's numbers, [H, width] with H ≥ 1; raise `ReplyError` if no array has this shape."""
        # The path leads through maps, or through a list of maps in which each map contains one row.
        path_text = "/".join(self.path)
        value: Any = reply
        for key in self.path:  # follow `key` in a map, or in each map of a list
            maps = value if isinstance(value, list) else [value]
            if not maps or not all(isinstance(entry, Mapping) and key in entry for entry in maps):
                raise ReplyError(f"the reply has no {path_text!r}")
            values = [entry[key] for entry in maps]
            value = values if isinstance(value, list) else values[0]
        array = _parse_numbers(value, path_text)
        shape = array.shape  # the error message states this shape
        while array.ndim > 2 and array.shape[0] == 1:  # drop leading axes for a batch
            array = array[0]
        if array.ndim == 1:  # H rows with one number each, or a single row
            array = array[:, np.newaxis] if self.width == 1 else array[np.newaxis]
        if array.ndim != 2 or not len(array) or array.shape[1] != self.width:
            raise ReplyError(f"{path_text!r} of the reply has the shape {shape}, not [steps, {self.width}]")
        return array


class DialectFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a dialect's file. `server_crops`: the server crops images, so they are sent uncropped. `sessions`:
    the server keeps a separate memory for each session.
    """

    about: str
    release: str  # the protocol that defines this dialect's images, states and gripper
    transport: str
    hosts: dict[str, Literal["upstream", "ours"]]  # host -> who uses the dialect on this host; main host first
    request: tuple[RequestEntry, ...]
    reply: tuple[ReplyArray, ...]  # arrays of a reply; their concatenated columns are the host's action
    switches: tuple[int, ...] = (6,)  # indices of action columns that are converted like the protocol's gripper
    sessions: bool = False
    absolute: bool = False  # whether actions are poses in the world frame, not changes of pose
    server_crops: bool = False
    ensemble: int = 0  # number of replies that are averaged, with a query in each step; 0 = off


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect: the content of its file, and the image processing and gripper convention of the protocol `release`.
    `fields` are the request's entries, with this protocol's state. `replan` is the number of actions of a reply that
    are executed before the next request; None means all actions.
    """

    name: str
    file: DialectFile
    inference: Inference
    wants: Wants
    fields: tuple[RequestEntry, ...]
    replan: int | None

    @property
    def crop(self) -> float | None:
        """The fraction of each image's area that is sent; None if whole images are sent."""
        # If the server crops images itself, images are sent whole.
        return None if self.file.server_crops or self.inference.crop == 1 else self.inference.crop

    @property
    def switches(self) -> dict[int, str]:
        """Maps each action column with values −1 and +1, such as the gripper, to a name in `transforms.SWITCHES`."""
        # The columns are converted as the protocol converts the gripper's command.
        return dict.fromkeys(self.file.switches, self.inference.gripper)

    def add_fixed(self, name: str, value: str) -> Dialect:
        # Return this dialect with one more entry in the request; its value is always the same.
        return replace(self, fields=(*self.fields, RequestEntry((name,), fixed=value)))

    def view(self, image: transforms.Image, flip: Flip | None = None) -> transforms.Image:
        """Convert an upright image [H, W, 3] to the image that is sent: flip, JPEG compression, resizing, crop. Raises
        `PolicyError` if the image does not have the protocol's size and the protocol does not resize images.
        """
        # `flip` is the flip of MuJoCo's rendering that the model expects; None = that of the protocol.
        pixels, size = transforms.flip_image(image, flip or self.inference.flip), self.inference.image_size
        if self.inference.jpeg or pixels.shape[:2] != size:  # otherwise, the pixels stay unchanged
            picture = PillowImage.fromarray(pixels)
            picture = transforms.pass_through_jpeg(picture) if self.inference.jpeg else picture
            pixels = transforms.resize_picture(picture, size, self.inference.resize)
        return pixels if self.crop is None else transforms.crop_center(pixels, self.crop)

    def build_request(self, observation: Observation) -> Request:
        """Return the request; raise `PolicyError` if the host lacks a state, or an image does not fit the protocol."""
        request: Request = {}
        for field in self.fields:
            _set_at_path(request, field.path, self._build_content(field, observation))
        return request

    def _build_content(self, field: RequestEntry, observation: Observation) -> object:
        # Return the value of one entry of the request: an image, an array, a text, or a text inside nested lists.
        leading_axes = (np.newaxis,) * field.axes  # axes of length 1, for batch or time
        if field.fixed is not None:
            return field.fixed
        if field.camera is not None:
            return self.view(observation.images[field.camera], field.flip)[leading_axes]
        if field.state:
            parts = [transforms.state_part(name, observation) for name in field.state]
            numbers = np.concatenate(parts).astype(field.dtype)
            if field.form == "sine-cosine":
                numbers = np.concatenate([np.sin(numbers), np.cos(numbers)])
            return numbers[leading_axes]
        # All other entries are texts. SimplerEnv's models expect the names of its tasks instead of instructions.
        text: object = observation.instruction
        if field.text == "simpler-task":
            text = transforms.SIMPLER_TASKS.get(observation.instruction, observation.instruction)
        for _ in range(field.axes):
            text = [text]
        return text

    def read_actions(self, reply: Reply) -> NDArray[np.float64]:
        """Return the host's actions, [H, A] with H ≥ 1, possibly infinite or NaN. Raises the errors of `read_rows`."""
        # H is the number of actions, for consecutive steps.
        return self.convert_rows(self.read_rows(reply))

    def read_rows(self, reply: Reply) -> list[NDArray[np.float64]]:
        """Return a reply's unconverted arrays, [H, width] each; raise `ReplyError` if one is missing or invalid."""
        try:
            arrays = [reply_array.read_rows(reply) for reply_array in self.file.reply]
        except ReplyError as error:
            content = ", ".join(describe_entries(reply)) or "nothing"
            problem = f"{error.problem} ({self.name}); the reply holds {content}"
            raise ReplyError(problem, remedy=_REMEDY) from None
        # The columns of all arrays together are the actions, so all arrays need the same number of rows.
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) > 1:
            raise ReplyError(f"the reply's arrays differ in their number of steps: {lengths}", remedy=_REMEDY)
        return arrays

    def convert_rows(self, rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Convert the arrays of a reply, as `read_rows` returns them, to the host's actions, [H, A]."""
        # Each array contains columns of the action. The function `FORMS[form]` converts the array.
        # The columns in `switches`, such as the gripper's, have only two values.
        columns = [transforms.FORMS[part.form](array) for part, array in zip(self.file.reply, rows, strict=True)]
        return transforms.convert_switches(np.concatenate(columns, axis=1), self.switches)


def describe_entries(message: Mapping[str, object]) -> list[str]:
    """Describe the first 12 entries of a request or reply, and count the omitted ones."""
    # One text per entry: the key, shortened, and the type of its value.
    shown = [f"{str(key)[:_MAX_CHARS]!r} {_describe_value(value)}" for key, value in list(message.items())[:_MAX_KEYS]]
    return [*shown, f"and {len(message) - _MAX_KEYS} more"] if len(message) > _MAX_KEYS else shown


def _describe_value(value: object) -> str:
    # Return the type of a value in a message: an array's dtype and shape, or a map's entries. Values are not shown.
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(describe_entries(value))}}}"
    if isinstance(value, list) and value:
        return f"{len(value)} x {_describe_value(value[0])}"  # elements usually have the same type
    return type(value).__name__


def _set_at_path(tree: Any, path: Sequence[str | int], value: object) -> None:
    """Put a value into a tree of maps and lists. If an index is beyond a list's end, append to the list."""
    # `path` contains keys of maps (text) and indices of lists (int). Missing maps and lists on the way are created.
    key, rest = path[0], path[1:]
    if isinstance(key, int) and key >= len(tree):
        key = len(tree)
        tree.append(None)
    if not rest:
        tree[key] = value
        return
    # The map or list under `key`. If none exists, create one: a list if the next key is an index, otherwise a map.
    branch = tree[key] if isinstance(key, int) else tree.get(key)
    if branch is None:
        branch = tree[key] = [] if isinstance(rest[0], int) else {}
    _set_at_path(branch, rest, value)


def _parse_numbers(value: object, path_text: str) -> NDArray[np.float64]:
    # Return a value of a reply as an array of numbers. Raise `ReplyError`, which names `path_text`, for other values.
    try:
        if isinstance(value, list | np.ndarray | np.generic | int | float):
            return to_real_numbers(value)
    except (TypeError, ValueError):
        pass  # raise the error below, as for values of other types
    raise ReplyError(f"the reply's {path_text!r} is not an array of numbers")


# Dialects as data


ALL = ("all",)  # a `state` of `ALL` means all parts of the protocol's state
NONE = "none"  # this name in `cameras` omits an image
LARGEST = 4096  # limit on the height and the width of an image in pixels


def dialect_names() -> tuple[str, ...]:
    """Return the names of the dialects that ship with the package, sorted."""
    return list_shipped(__package__)


def dialects_of(transport: str) -> list[str]:
    """Return the names of the dialects for servers of the kind `transport`, sorted."""
    # `transport` is a kind of policy server, such as `openpi`.
    return [name for name in dialect_names() if load_dialect_file(name).transport == transport]


@cache
def load_dialect_file(name: str) -> DialectFile:
    """Return the content of a dialect's file. Raises `PolicyError`, which lists all names, for an unknown name."""
    # The file of the dialect NAME is `NAME.toml` in this package.
    if name not in dialect_names():
        raise PolicyError(f"there is no dialect {name!r}", remedy=f"Dialects: {', '.join(dialect_names())}.")
    return read_shipped(__package__, f"{name}.toml", DialectFile)


@cache
def load_dialect(name: str) -> Dialect:
    """Return a dialect by name, with the images, states and gripper convention of its protocol. The protocol's rules
    for the start and the end of episodes have no effect. Raises `PolicyError` for an unknown name.
    """
    file = load_dialect_file(name)
    inference = load_protocol(file.release).inference
    assert inference is not None, f"the protocol {file.release} of the dialect {name} has no inference settings"
    # Entries whose state is `all` send the whole state that the protocol defines.
    fields = tuple(
        structs.replace(entry, state=inference.state) if entry.state == ALL else entry for entry in file.request
    )
    states = [part for entry in fields for part in entry.state]
    assert all(part in transforms.STATES or part.startswith(transforms.EXTRA) for part in states), states
    wants = Wants(
        cameras=tuple(entry.camera for entry in fields if entry.camera),
        image_size=inference.render,
        extra=tuple(part.removeprefix(transforms.EXTRA) for part in states if part.startswith(transforms.EXTRA)),
        absolute=file.absolute,
    )
    # None = execute all actions of a chunk. A protocol may state a text instead of a number.
    replan = inference.replan if isinstance(inference.replan, int) else None
    return Dialect(name, file, inference, wants, fields, replan)


def choose_dialect(name: str, transport: str, cameras: str | None = None, image_size: str | None = None) -> Dialect:
    """Return a dialect by name. `cameras` replace the dialect's cameras, in order. `image_size`, `N` or HxW, is the
    size in which images are rendered and sent. Raises `PolicyError` if the dialect does not exist or is for another
    kind of server, or if the cameras or the size do not fit.
    """
    # `transport` is the kind of server, such as `openpi`.
    # If `cameras` or `image_size` is None, the dialect's value stays.
    if load_dialect_file(name).transport != transport:
        problem = f"the dialect {name!r} is for servers of {load_dialect_file(name).transport} instead of {transport}"
        raise PolicyError(problem, remedy=f"Choose one of {', '.join(dialects_of(transport))}.")
    chosen = load_dialect(name)
    chosen = chosen if cameras is None else _replace_cameras(chosen, cameras.split(","))
    return chosen if image_size is None else _replace_image_size(chosen, image_size)


def _replace_image_size(dialect: Dialect, text: str) -> Dialect:
    # Return the dialect with images of the size `text`, `N` or `HxW`; raise `PolicyError` for any other text.
    match = re.fullmatch(r"(\d{1,4})(?:x(\d{1,4}))?", text)
    height_width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)  # (0, 0) is refused below
    if not all(0 < side <= LARGEST for side in height_width):
        remedy = f"Write `N` or `HxW` (height, width), each from 1 to {LARGEST}."
        raise PolicyError(f"image_size={text} is not a number of pixels", remedy=remedy)
    inference = structs.replace(dialect.inference, image_size=height_width)
    return replace(dialect, inference=inference, wants=replace(dialect.wants, image_size=height_width))


def _replace_cameras(dialect: Dialect, cameras: list[str]) -> Dialect:
    # Return the dialect with its cameras replaced by `cameras`, in order; the name `NONE` removes an image.
    defaults = dialect.wants.cameras
    if len(cameras) != len(defaults):
        mismatch = f"does not fit the dialect {dialect.name!r}, which shows {len(defaults)} camera(s)"
        remedy = f"Name as many cameras as in cameras={','.join(defaults)}. The name `{NONE}` omits an image."
        raise PolicyError(f"cameras={','.join(cameras)} {mismatch}", remedy=remedy)
    replacements = dict(zip(defaults, cameras, strict=True))
    fields = []
    for entry in dialect.fields:
        camera = replacements[entry.camera] if entry.camera else None  # None: the entry is not an image
        if camera != NONE:  # otherwise, the image is not sent
            fields.append(structs.replace(entry, camera=camera))
    wants = replace(dialect.wants, cameras=tuple(camera for camera in cameras if camera != NONE))
    return replace(dialect, fields=tuple(fields), wants=wants)


def dialect_values(dialect: Dialect) -> Mapping[str, object]:
    """Return the values of a dialect that a run's description stores."""
    inference = dialect.inference
    return {
        "name": dialect.name,
        "release": dialect.file.release,
        "render": dialect.wants.image_size,
        "flip": inference.flip,
        "jpeg": inference.jpeg,
        "image_size": inference.image_size,
        "resize": inference.resize,
        "crop": dialect.crop,
        "request": {field.place: _describe_entry(field) for field in dialect.fields},
        "reply": {"/".join(reply_array.path): reply_array.width for reply_array in dialect.file.reply},
        "switches": {str(column): conversion for column, conversion in dialect.switches.items()},
        "replan": dialect.replan,
        "clip": inference.clip,
        **({"sessions": True} if dialect.file.sessions else {}),
    }


def _describe_entry(field: RequestEntry) -> str:
    # Describe the content of a request's entry: its state, its camera, its text or its fixed value.
    axes = f", {field.axes} leading axes" if field.axes else ""
    condition = f", only if the server asks for {field.asked}" if field.asked else ""
    if field.state:
        form = "" if field.form == "raw" else f", {field.form}"
        return f"{' + '.join(field.state)} ({field.dtype}{axes}{form}){condition}"
    # An entry sets exactly one of camera, text and fixed value.
    content = field.camera or (field.text if field.fixed is None else repr(field.fixed))
    flip = f", flip {field.flip}" if field.flip else ""
    return f"{content}{flip}{axes}{condition}"
