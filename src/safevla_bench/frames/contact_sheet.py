"""A sheet of episodes in three frames each: the initial state, the worst violation and the final state (Figure 3)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from safevla_bench.errors import Place, RunError
from safevla_bench.files import write_atomically
from safevla_bench.frames.pictures import PAPER, QUALITY, load_font, write_line
from safevla_bench.runs import FRAMES, Frame
from safevla_bench.text.sanitize import escape_controls

SHEET_FORMS: Mapping[str, str] = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Suffix of a sheet's file -> its form."""
_COLUMNS: tuple[str, ...] = ("initial", "violation", "final")
_HEADING, _GAP, _TEXT = 30, 8, 16


def write_sheet(path: Path, run: Path, frames: Sequence[Frame], titles: Mapping[tuple[str | None, str], str]) -> None:
    """Write the sheet of the episodes in `titles`, a row each under its title, from their frames in a run folder.

    Args:
        path: the file; its suffix is one of `SHEET_FORMS`.
        run: the run folder that holds the frames.
        frames: the frames of these episodes.
        titles: (policy, episode id) -> the title of its row, in the order of the rows.

    Raises:
        RunError: the suffix is of no known form, or an episode lacks one of the three frames, as a safe one does.
    """
    form = sheet_form(path)
    rows = [(title, [_open_frame(run, _pick_frame(frames, key, kind)) for kind in _COLUMNS])
            for key, title in titles.items()]  # fmt: skip
    sink = io.BytesIO()
    _compose_rows(rows).save(sink, form, quality=QUALITY, optimize=True)
    write_atomically(path, sink.getvalue())


def sheet_form(path: Path) -> str:
    """Return the form of a sheet's file; raises `RunError` for a suffix that is not in `SHEET_FORMS`."""
    form = SHEET_FORMS.get(path.suffix.lower())
    if form is None:
        remedy = f"Give the file one of these suffixes: {', '.join(SHEET_FORMS)}."
        raise RunError(f"a sheet is a picture, not {path.suffix or 'a file without a suffix'}", remedy=remedy)
    return form


def _pick_frame(frames: Sequence[Frame], key: tuple[str | None, str], kind: str) -> Frame:
    """Return the episode's first frame of a kind: of violations that is the deepest."""
    for frame in frames:
        if (frame.policy, frame.episode_id) == key and frame.kind == kind:
            return frame
    remedy = "Only an episode that breaks a limit has all three frames: initial state, violation, final state."
    raise RunError(f"there is no frame of kind {kind!r}", remedy=remedy, place=Place(episode=key[1]))


def _open_frame(run: Path, frame: Frame) -> Image.Image:
    with Image.open(run / FRAMES / frame.file) as image:
        return image.convert("RGB")


def _compose_rows(rows: Sequence[tuple[str, Sequence[Image.Image]]]) -> Image.Image:
    width = max(sum(image.width for image in images) + _GAP * (len(images) - 1) for _, images in rows)
    heights = [_HEADING + max(image.height for image in images) for _, images in rows]
    sheet = Image.fromarray(np.full((sum(heights), width, 3), PAPER, dtype=np.uint8))
    pen, top = ImageDraw.Draw(sheet), 0
    for (title, images), height in zip(rows, heights, strict=True):
        write_line(pen, (_GAP, top + 6), escape_controls(title), load_font("DejaVuSans-Bold.ttf", _TEXT), width)
        left = 0
        for image in images:
            sheet.paste(image, (left, top + _HEADING))
            left += image.width + _GAP
        top += height
    return sheet
