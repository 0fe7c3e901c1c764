"""Dialects as data: `*.toml` here. Each names its release: the protocol whose project the model belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ReplyError
from safevla_bench.hosts.protocols import Inference, load_protocol
from safevla_bench.interface.policy import Wants
from safevla_bench.policies.servers.dialect import STATES, CameraView, Dialect, Reply, ReplyArray, RequestEntry

ALL = ("all",)
"""A request's state that is the protocol's whole vector."""
NONE = "none"
"""In the place of a camera whose image is not sent."""
LARGEST = 4096


class RequestField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the request: a camera's image, state parts (`all` = the protocol's), or the instruction."""

    path: tuple[str, ...]
    camera: str | None = None
    state: tuple[str, ...] = ()
    text: Literal["instruction"] | None = None
    dtype: Literal["float32", "float64"] = "float64"
    axes: int = 0
    asked: str | None = None
    """The server's parameter that asks for it; None = it is always sent."""


class ReplyPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One array of the reply, in the order of the host's action."""

    path: tuple[str, ...]
    width: int


class DialectFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file.

    `switches` are the action's columns that are converted as the protocol's gripper is; `sessions` says that the server
    keeps a memory by session, `server_crops` that it crops the images itself, which are then sent uncropped.
    """

    about: str
    release: str
    transport: str
    request: tuple[RequestField, ...]
    reply: tuple[ReplyPart, ...]
    switches: tuple[int, ...] = (6,)
    sessions: bool = False
    server_crops: bool = False


def dialect_names() -> tuple[str, ...]:
    """Return the names of the dialects that ship with the package, sorted."""
    files = (path.name for path in resources.files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


@cache
def load_dialect_file(name: str) -> DialectFile:
    """Return the content of a dialect's file.

    Raises:
        PolicyError: there is none of that name; lists those there are.
    """
    if name not in dialect_names():
        raise PolicyError(f"there is no dialect {name!r}", remedy=f"Dialects: {', '.join(dialect_names())}.")
    return msgspec.toml.decode(resources.files(__package__).joinpath(f"{name}.toml").read_bytes(), type=DialectFile)


@cache
def load_dialect(name: str) -> Dialect:
    """Return a dialect by its name, with the images, states and gripper of its release.

    Those belong to a model and its server, whatever protocol says how episodes start and end.

    Raises:
        PolicyError: there is no such dialect.
    """
    content = load_dialect_file(name)
    inference = load_protocol(content.release).inference
    assert inference is not None, f"the release {content.release} of the dialect {name} has no inference"
    return Dialect(
        name=name,
        wants=Wants(
            cameras=tuple(field.camera for field in content.request if field.camera), image_size=inference.render
        ),
        view=_camera_view(inference, crops=not content.server_crops),
        fields=tuple(_request_entries(content, inference)),
        parts=tuple(ReplyArray(part.path, part.width) for part in content.reply),
        switches=tuple((column, inference.gripper) for column in content.switches),
        replan=inference.replan if isinstance(inference.replan, int) else None,
        clip=inference.clip,
        release=content.release,
        sessions=content.sessions,
    )


def choose_dialect(name: str, transport: str, cameras: str | None = None, image_size: str | None = None) -> Dialect:
    """Return the dialect of that name; `cameras` replace its own, in their order.

    `image_size` has images rendered and sent as squares of so many pixels instead of the dialect's size.

    Raises:
        PolicyError: there is no such dialect, it is another kind of server's, or the cameras or the size do not fit.
    """
    if load_dialect_file(name).transport != transport:
        fitting = [candidate for candidate in dialect_names() if load_dialect_file(candidate).transport == transport]
        problem = f"the dialect {name!r} is for servers of {load_dialect_file(name).transport}, not of {transport}"
        raise PolicyError(problem, remedy=f"Dialects for it: {', '.join(fitting)}.")
    chosen = load_dialect(name)
    chosen = chosen if cameras is None else _with_cameras(chosen, cameras.split(","))
    return chosen if image_size is None else _with_image_size(chosen, image_size)


def read_reply(dialect: Dialect, reply: Reply) -> NDArray[np.float64]:
    """Return a reply's actions, [H, A]; the error for another reply names the dialect that could read it.

    Raises `ReplyError` as `Dialect.read_actions` does.
    """
    try:
        return dialect.read_actions(reply)
    except ReplyError as error:
        transport = load_dialect_file(dialect.name).transport
        rivals = [rival for rival in dialect_names() if load_dialect_file(rival).transport == transport]
        fitting = [rival for rival in rivals if _can_read(load_dialect(rival), reply)]
        remedy = f"{' or '.join(f'--policy-arg dialect={rival}' for rival in fitting)} reads it." if fitting else None
        raise ReplyError(error.problem, remedy=remedy or error.remedy) from None


def _can_read(dialect: Dialect, reply: Reply) -> bool:
    try:
        dialect.read_actions(reply)
    except ReplyError:
        return False
    return True


def _with_image_size(dialect: Dialect, text: str) -> Dialect:
    """Return the dialect with images rendered and sent as squares of `text` pixels.

    Raises `PolicyError` unless 1 to 4096.
    """
    if not text.isdecimal() or not 0 < int(text) <= LARGEST:
        raise PolicyError(f"image_size={text} is not a number of pixels", remedy=f"Write one from 1 to {LARGEST}.")
    size = (int(text), int(text))
    return replace(dialect, view=replace(dialect.view, size=size), wants=replace(dialect.wants, image_size=size))


def _with_cameras(dialect: Dialect, cameras: list[str]) -> Dialect:
    """Return the dialect with these cameras in the places of its own; entries of a camera named `none` are left out.

    Raises `PolicyError` where they are not as many as its own, or all are `none`.
    """
    defaults = dialect.wants.cameras
    if len(cameras) != len(defaults) or set(cameras) <= {NONE}:
        problem = f"cameras={','.join(cameras)} does not fit the dialect {dialect.name!r}, which shows {len(defaults)}"
        raise PolicyError(
            problem, remedy=f"Name as many, `{NONE}` for one that is not sent: cameras={','.join(defaults)}."
        )
    replacements = dict(zip(defaults, cameras, strict=True))
    fields_sent = [entry for entry in dialect.fields if replacements.get(entry.camera or "") != NONE]
    fields = tuple(
        replace(entry, camera=replacements[entry.camera]) if entry.camera else entry for entry in fields_sent
    )
    wants = replace(dialect.wants, cameras=tuple(entry for entry in cameras if entry != NONE))
    return replace(dialect, fields=fields, wants=wants)


def _camera_view(inference: Inference, *, crops: bool) -> CameraView:
    crop = inference.crop if crops and inference.crop != 1 else None
    return CameraView(
        flip=inference.flip, jpeg=inference.jpeg, size=inference.image_size, resize=inference.resize, crop=crop
    )


def _request_entries(content: DialectFile, inference: Inference) -> Iterator[RequestEntry]:
    for field in content.request:
        state = inference.state if field.state == ALL else field.state
        assert set(state) <= set(STATES), state
        yield RequestEntry(field.path, field.camera, state, field.dtype, field.axes, field.asked)


def dialect_values(dialect: Dialect) -> Mapping[str, object]:
    """Return all values of a dialect, for a run's description."""
    view = dialect.view
    return {
        "name": dialect.name,
        "release": dialect.release,
        "render": dialect.wants.image_size,
        "flip": view.flip,
        "jpeg": view.jpeg,
        "image_size": view.size,
        "resize": view.resize,
        "crop": view.crop,
        "request": {"/".join(field.path): _describe_entry(field) for field in dialect.fields},
        "reply": {"/".join(part.path): part.width for part in dialect.parts},
        "switches": {str(column): how for column, how in dialect.switches},
        "replan": dialect.replan,
        "clip": dialect.clip,
        **({"sessions": True} if dialect.sessions else {}),
    }


def _describe_entry(field: RequestEntry) -> str:
    axes = f", {field.axes} leading axes" if field.axes else ""
    where = f", where the server asks for {field.asked}" if field.asked else ""
    if field.state:
        return f"{' + '.join(field.state)} ({field.dtype}{axes}){where}"
    return f"{field.camera or 'instruction'}{axes}{where}"
