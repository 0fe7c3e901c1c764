"""The frames of run folders as a page can hold them: images as data URIs, no more than fit."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from safevla_bench.runs import FRAMES, RUN, Frame, read_frames

MOST_BYTES = 3_000_000
"""So much of a page may be frames."""
_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}

Key = tuple[str | None, str]
"""Policy and episode id."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One frame in the page."""

    kind: str
    caption: str
    success: bool
    width: int
    height: int
    source: str
    """A data URI."""


@dataclass(frozen=True)
class Album:
    """Pictures by episode; `left_out` of them did not fit or are clips, and lie in the run's `frames` only."""

    pictures: Mapping[Key, tuple[Picture, ...]] = field(default_factory=dict)
    left_out: int = 0

    def of(self, policy: str | None, episode_id: str) -> tuple[Picture, ...]:
        """The pictures of one episode."""
        return self.pictures.get((policy, episode_id), ())


def album(paths: Iterable[Path], most_bytes: int = MOST_BYTES) -> Album:
    """The frames of those sources that are run folders, in the order of their indices, as long as there is room.

    Raises:
        RunError: an index cannot be read.
    """
    found: dict[Key, list[Picture]] = {}
    left_out, room = 0, most_bytes
    for folder in (path for path in paths if (path / RUN).exists()):
        for frame in read_frames(folder):
            picture = _picture(folder, frame, room)
            if picture is None:
                left_out += 1
                continue
            room -= len(picture.source)
            found.setdefault((frame.policy, frame.episode_id), []).append(picture)
    return Album({key: tuple(_in_order(ones)) for key, ones in found.items()}, left_out)


def _picture(folder: Path, frame: Frame, room: int) -> Picture | None:
    """The picture; None where it is no image, is missing or has no room."""
    path = folder / FRAMES / frame.file
    kind = _TYPES.get(path.suffix)
    if kind is None or not path.is_file() or path.stat().st_size * 4 / 3 > room:
        return None
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return Picture(frame.kind, frame.caption, frame.success, frame.width, frame.height, source)


def _in_order(pictures: Sequence[Picture]) -> list[Picture]:
    """The initial state, then violations, then the final state."""
    order = ("initial", "violation", "final")
    return sorted(pictures, key=lambda one: order.index(one.kind) if one.kind in order else len(order))
