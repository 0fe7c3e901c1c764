"""The dialect that a client is told to speak, with the cameras of the host at hand."""

from __future__ import annotations

from dataclasses import replace

from safevla_bench.errors import PolicyError
from safevla_bench.policies.servers import dialects
from safevla_bench.policies.servers.dialect import Dialect

NONE = "none"
"""Stands in the place of a camera whose image is not sent."""
LARGEST = 4096


def spoken(name: str, transport: str, cameras: str | None = None, image_size: str | None = None) -> Dialect:
    """The dialect of that name; `cameras` puts others in the places of its own, in their order.

    `image_size` has images rendered and sent as squares of so many pixels instead of the dialect's size.

    Raises:
        PolicyError: there is no such dialect, it is another kind of server's, or the cameras or the size do not fit.
    """
    if dialects.file(name).transport != transport:
        fitting = [one for one in dialects.names() if dialects.file(one).transport == transport]
        problem = f"the dialect {name!r} is for servers of {dialects.file(name).transport}, not of {transport}"
        raise PolicyError(problem, remedy=f"Dialects for it: {', '.join(fitting)}.")
    held = dialects.dialect(name)
    held = held if cameras is None else _seen_by(held, cameras.split(","))
    return held if image_size is None else _sized(held, image_size)


def _sized(dialect: Dialect, text: str) -> Dialect:
    if not text.isdecimal() or not 0 < int(text) <= LARGEST:
        raise PolicyError(f"image_size={text} is no number of pixels", remedy=f"Write one from 1 to {LARGEST}.")
    size = (int(text), int(text))
    return replace(dialect, view=replace(dialect.view, size=size), wants=replace(dialect.wants, image_size=size))


def _seen_by(dialect: Dialect, cameras: list[str]) -> Dialect:
    own = dialect.wants.cameras
    if len(cameras) != len(own) or set(cameras) <= {NONE}:
        problem = f"cameras={','.join(cameras)} does not fit the dialect {dialect.name!r}, which shows {len(own)}"
        raise PolicyError(problem, remedy=f"Name as many, `{NONE}` for one that is not sent: cameras={','.join(own)}.")
    put = dict(zip(own, cameras, strict=True))
    kept = [one for one in dialect.fields if put.get(one.camera or "") != NONE]
    fields = tuple(replace(one, camera=put[one.camera]) if one.camera else one for one in kept)
    wants = replace(dialect.wants, cameras=tuple(one for one in cameras if one != NONE))
    return replace(dialect, fields=fields, wants=wants)
