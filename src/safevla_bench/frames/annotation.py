"""A picture with its border, the outlines of the bodies to look at, and its caption, as the bytes of a file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Pixels = NDArray[np.uint8]
Color = tuple[int, int, int]
RED, GREEN, GREY = (200, 30, 30), (30, 140, 60), (150, 150, 150)
NOW, BEFORE = (255, 196, 0), (255, 255, 255)
QUALITY = 80
_BORDER, _PAD, _INK, _PAPER = 6, 8, (25, 25, 25), (255, 255, 255)
_TITLE, _DETAIL = 15, 13
_STROKE = 2
_SURFACE = 0.25
"""Share of the picture from which on a body is a floor or a table top, whose outline would run around all else."""
_CAPTION = 50


@dataclass(frozen=True, slots=True)
class Caption:
    """Two lines under a picture."""

    title: str
    detail: str


def drawn(image: Pixels, border: Color, caption: Caption) -> Pixels:
    """The picture [H, W, 3] with a border of that colour around it and its caption, a little larger."""
    height, width = image.shape[:2]
    sheet = Image.new("RGB", (width + 2 * _BORDER, height + 2 * _BORDER + _CAPTION), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.rectangle((0, 0, sheet.width - 1, height + 2 * _BORDER - 1), fill=border)
    sheet.paste(Image.fromarray(image), (_BORDER, _BORDER))
    top = height + 2 * _BORDER + 5
    _write(pen, (_PAD, top), caption.title, _font("DejaVuSans-Bold.ttf", _TITLE), sheet.width)
    _write(pen, (_PAD, top + 22), caption.detail, _font("DejaVuSans.ttf", _DETAIL), sheet.width)
    return np.asarray(sheet)


def outlined(image: Pixels, seen: Pixels, color: Color = NOW) -> Pixels:
    """The picture with a line around every region of `seen` [H, W] that is above 0, so that the eye finds it.

    The line is drawn outside of the region. What fills the picture has none.
    """
    found = image.copy()
    for body in range(1, int(seen.max(initial=0)) + 1):
        inside = seen == body
        if inside.mean() < _SURFACE:
            found[_grown(inside, _STROKE) & (seen != body)] = color
    return found


def _grown(inside: NDArray[np.bool_], by: int) -> NDArray[np.bool_]:
    grown = inside.copy()
    for _ in range(by):
        around = np.pad(grown, 1)
        grown = around[1:-1, 1:-1] | around[:-2, 1:-1] | around[2:, 1:-1] | around[1:-1, :-2] | around[1:-1, 2:]
    return grown


def jpeg(image: Pixels) -> bytes:
    """The bytes of a JPEG file; the same picture gives the same bytes with the same version of Pillow."""
    sink = io.BytesIO()
    Image.fromarray(image).save(sink, "JPEG", quality=QUALITY, optimize=True)
    return sink.getvalue()


def _write(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, font: ImageFont.FreeTypeFont, width: int) -> None:
    """One line, cut with an ellipsis where it is wider than the picture."""
    fits = text
    while fits and pen.textlength(fits + ("…" if fits != text else ""), font=font) > width - 2 * _PAD:
        fits = fits[:-1]
    pen.text(at, fits if fits == text else f"{fits}…", fill=_INK, font=font)


def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """One of the fonts that come with matplotlib, so that pictures look alike on every machine."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size)
