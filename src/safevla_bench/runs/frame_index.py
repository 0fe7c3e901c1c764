"""The pictures of a run folder and their index, `frames/index.json`: what each shows, of which episode."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from safevla_bench.errors import Place, RunError
from safevla_bench.files import write_atomically
from safevla_bench.runs.folder import dump_json

FRAMES, INDEX = "frames", "index.json"
Kind = Literal["initial", "violation", "final", "clip"]
_SLUG = 60


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One picture or clip of one episode; spec, value and threshold are None where it shows no violation."""

    episode_id: str
    policy: str | None
    kind: Kind
    record: int
    """The record shown; of a clip, the one that it is about."""
    time_s: float
    caption: str
    """One sentence for people: what is to be seen."""
    spec: str | None = None
    value: float | None = None
    threshold: float | None = None
    unit: str | None = None
    bodies: tuple[str, ...] = ()
    """The bodies to look at, in contact or displaced."""
    success: bool
    camera: str
    width: int
    height: int
    file: str
    """Beside the index: a bare file name."""


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = 1
    frames: tuple[Frame, ...] = ()


def read_frames(folder: Path) -> tuple[Frame, ...]:
    """Return the frames of a run folder, in order; none where there is no index.

    Raises:
        RunError: the index cannot be read, or names a file that is not beside it.
    """
    path = folder / FRAMES / INDEX
    if not path.exists():
        return ()
    place = Place(file=str(path))
    try:
        frames = msgspec.json.decode(path.read_bytes(), type=_Index).frames
    except (msgspec.DecodeError, RecursionError, OSError) as error:
        remedy = "Remove the folder and make the frames anew: safevla frames RUN."
        raise RunError(f"cannot be read: {error}", remedy=remedy, place=place) from None
    for frame in frames:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", frame.file):
            raise RunError(f"{frame.file!r} is no file name of a frame", remedy="Remove the folder.", place=place)
    return frames


def write_frames(folder: Path, frames: Iterable[Frame]) -> Path:
    """Write the index into a run folder's `frames`, which exists; returns its path."""
    path = folder / FRAMES / INDEX
    write_atomically(path, dump_json(_Index(frames=tuple(frames))))
    return path


def frame_stem(policy: str | None, episode_id: str) -> str:
    """Return the stem of the files of an episode's frames: legible letters of its id, and a unique digest."""
    legible = re.sub(r"[^a-z0-9]+", "-", episode_id.lower())[-_SLUG:].strip("-")
    digest = hashlib.sha256(f"{policy!r}/{episode_id}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return "-".join(part for part in (legible, digest) if part)
