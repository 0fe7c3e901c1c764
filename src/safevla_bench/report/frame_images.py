"""Frames of run folders as data URIs for the page, up to a size limit."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from safevla_bench.runs import FRAMES, RUN, Frame, read_frames

MOST_BYTES = 3_000_000
"""Size of all frames in a page [bytes of base64]."""
_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}

EpisodeKey = tuple[str | None, str]
"""Policy and episode id."""


@dataclass(frozen=True, slots=True)
class FrameImage:
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
    """Images by episode; `left_out` of them did not fit or are clips, and lie in the run's `frames` only."""

    images: Mapping[EpisodeKey, tuple[FrameImage, ...]] = field(default_factory=dict)
    left_out: int = 0

    def of_episode(self, policy: str | None, episode_id: str) -> tuple[FrameImage, ...]:
        """Return the images of one episode."""
        return self.images.get((policy, episode_id), ())


def collect_images(paths: Iterable[Path], most_bytes: int = MOST_BYTES) -> Album:
    """Collect the frames of the run folders among the sources, in the order of their indices, while they fit.

    Raises:
        RunError: an index cannot be read.
    """
    images: dict[EpisodeKey, list[FrameImage]] = {}
    left_out, room = 0, most_bytes
    for folder in (path for path in paths if (path / RUN).exists()):
        for frame in read_frames(folder):
            image = _load_image(folder, frame, room)
            if image is None:
                left_out += 1
                continue
            room -= len(image.source)
            images.setdefault((frame.policy, frame.episode_id), []).append(image)
    return Album({key: tuple(_sort_images(episode_images)) for key, episode_images in images.items()}, left_out)


def _load_image(folder: Path, frame: Frame, room: int) -> FrameImage | None:
    """Return the image; None if it is of another type, missing or too large."""
    path = folder / FRAMES / frame.file
    kind = _TYPES.get(path.suffix)
    if kind is None or not path.is_file() or path.stat().st_size * 4 / 3 > room:
        return None
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return FrameImage(frame.kind, frame.caption, frame.success, frame.width, frame.height, source)


def _sort_images(images: Sequence[FrameImage]) -> list[FrameImage]:
    """Sort images: the initial state, then violations, then the final state."""
    order = ("initial", "violation", "final")
    return sorted(images, key=lambda image: order.index(image.kind) if image.kind in order else len(order))
