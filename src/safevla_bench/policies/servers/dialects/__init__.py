"""Dialects as data: `*.toml` here. Each names its release: the protocol whose project the model belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Wants
from safevla_bench.policies.servers.dialect import STATES, Dialect, Field, Part, View
from safevla_bench.protocols import Inference, protocol

__all__ = ["DialectFile", "dialect", "file", "names", "values"]

ALL = ("all",)
"""A request's state that is the protocol's whole vector."""


class RequestField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the request: a camera's image, state parts (`all` = the protocol's), or the instruction."""

    path: tuple[str, ...]
    camera: str | None = None
    state: tuple[str, ...] = ()
    text: Literal["instruction"] | None = None
    dtype: Literal["float32", "float64"] = "float64"
    axes: int = 0


class ReplyPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One array of the reply, in the order of the host's action."""

    path: tuple[str, ...]
    width: int


class DialectFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says; `switches` are the columns of the action that are converted as the protocol's gripper is."""

    about: str
    release: str
    transport: str
    request: tuple[RequestField, ...]
    reply: tuple[ReplyPart, ...]
    switches: tuple[int, ...] = (6,)


def names() -> tuple[str, ...]:
    """The dialects that ship with the package, sorted."""
    found = (path.name for path in resources.files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


@cache
def file(name: str) -> DialectFile:
    """What the file of a dialect says.

    Raises:
        PolicyError: there is none of that name; lists those there are.
    """
    if name not in names():
        raise PolicyError(f"there is no dialect {name!r}", remedy=f"Dialects: {', '.join(names())}.")
    return msgspec.toml.decode(resources.files(__package__).joinpath(f"{name}.toml").read_bytes(), type=DialectFile)


@cache
def dialect(name: str) -> Dialect:
    """A dialect by its name, with the images, states and gripper of its release.

    Those belong to a model and its server, whatever protocol says how episodes start and end.

    Raises:
        PolicyError: there is no such dialect.
    """
    held = file(name)
    how = protocol(held.release).inference
    assert how is not None, f"the release {held.release} of the dialect {name} has no inference"
    return Dialect(
        name=name,
        wants=Wants(cameras=tuple(one.camera for one in held.request if one.camera), image_size=how.render),
        view=_view(how),
        fields=tuple(_fields(held, how)),
        parts=tuple(Part(part.path, part.width) for part in held.reply),
        switches=tuple((column, how.gripper) for column in held.switches),
        replan=how.replan if isinstance(how.replan, int) else None,
        clip=how.clip,
        release=held.release,
    )


def _view(how: Inference) -> View:
    crop = None if how.crop == 1 else how.crop
    return View(flip=how.flip, jpeg=how.jpeg, size=how.image_size, resize=how.resize, crop=crop)


def _fields(held: DialectFile, how: Inference) -> Iterator[Field]:
    for one in held.request:
        state = how.state if one.state == ALL else one.state
        assert set(state) <= set(STATES), state
        yield Field(one.path, one.camera, state, one.dtype, one.axes)


def values(made: Dialect) -> Mapping[str, object]:
    """All that a dialect says, for a run's description."""
    view = made.view
    return {
        "name": made.name,
        "release": made.release,
        "render": made.wants.image_size,
        "flip": view.flip,
        "jpeg": view.jpeg,
        "image_size": view.size,
        "resize": view.resize,
        "crop": view.crop,
        "request": {"/".join(field.path): _told(field) for field in made.fields},
        "reply": {"/".join(part.path): part.width for part in made.parts},
        "switches": {str(column): how for column, how in made.switches},
        "replan": made.replan,
        "clip": made.clip,
    }


def _told(field: Field) -> str:
    """What fills an entry of the request, in words."""
    axes = f", {field.axes} leading axes" if field.axes else ""
    if field.state:
        return f"{' + '.join(field.state)} ({field.dtype}{axes})"
    return f"{field.camera or 'instruction'}{axes}"
