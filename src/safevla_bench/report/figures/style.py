"""The style of all figures: settings that no user setting changes, colours for colour-blind readers, and sizes.

Every series has a colour and a marker or line of its own, so that no reader depends on colour. Text is DejaVu Sans,
which comes with matplotlib; characters that it lacks are shown as U+FFFD.
Labels are placed beside their points by pure geometry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.spines import Spine
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from numpy.typing import NDArray

from safevla_bench.text import escape_controls, shorten_name

_MAX_CHARACTERS = 300
"""Longest text that is drawn: a name may have any length, and each character is measured."""
BODY, SMALL = 7.0, 6.0
"""Sizes of text in points."""
_TICK_PT = 2.5
INK, MUTED, LINE, TINT = "#1b1e22", "#596069", "#c9ced4", "#f0f1f3"
# Okabe and Ito's palette with a grey in place of its yellow, too pale on white; neighbours differ in lightness.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#D55E00", "#8C8C8C")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1)),
    (0, (5, 1.2, 1, 1.2)),
    (0, (2, 1)),
    (0, (7, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (1, 2.5)),
)
_ENVIRONMENT_SETTINGS = ("backend", "interactive", "toolbar", "timezone", "docstring", "webagg", "tk", "date.epoch",
                         "figure.raise", "figure.max_open", "savefig.directory", "keymap", "animation",
                         "macosx")  # fmt: skip
_STYLE_SETTINGS: Mapping[str, object] = {
    "font.family": ["DejaVu Sans"],
    "font.size": BODY,
    "text.parse_math": False,  # a name may hold a dollar sign
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": BODY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": BODY,
    "ytick.labelsize": BODY,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": _TICK_PT,
    "ytick.major.size": _TICK_PT,
    "grid.color": LINE,
    "grid.linewidth": 0.4,
    "hatch.linewidth": 0.4,
    "svg.fonttype": "path",
    "svg.hashsalt": "safevla-bench",
    "pdf.fonttype": 42,
    "savefig.dpi": 300,
}


@dataclass(frozen=True, slots=True)
class Page:
    """The place of a figure in a paper: width in inches, size of text in points, and whether there is a title.

    The default is a column of a two-column paper.
    """

    width_in: float = 3.5
    font_pt: float = BODY
    titled: bool = True

    @property
    def scale(self) -> float:
        """Return the factor between text of this page and text as figures are drawn."""
        return self.font_pt / BODY

    @property
    def is_too_narrow(self) -> bool:
        """Return whether figures do not fit: their panels need as much width as 17 ems of text."""
        return self.width_in / self.scale < NARROWEST_IN


NARROWEST_IN = 2.8
"""The least width of a figure with text of 7 points."""
COLUMN = Page()
_PAGE: ContextVar[Page] = ContextVar("page", default=COLUMN)


@contextmanager
def drawing_page(page: Page) -> Iterator[None]:
    """Within the context, draw for the page: sheets are as wide as the page, measured with text of 7 points."""
    token = _PAGE.set(page)
    try:
        yield
    finally:
        _PAGE.reset(token)


def sheet_width() -> float:
    """Return the width of a sheet in inches, with text of 7 points."""
    return _PAGE.get().width_in / _PAGE.get().scale


def line_room_pt(room_in: float) -> float:
    """Return the room of a line in points; a little less where text is scaled: hinted letters do not scale exactly."""
    return 72 * room_in * (1.0 if _PAGE.get().scale == 1.0 else 0.97)


def is_titled() -> bool:
    """Return whether sheets have titles."""
    return _PAGE.get().titled


def scale_figure(figure: Figure, scale: float) -> None:
    """Multiply the size of the figure, its text, lines and marks by `scale`, in place; 1 changes nothing."""
    if scale == 1.0:
        return
    figure.set_size_inches(*(scale * figure.get_size_inches()))
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.labelpad *= scale
            length = axis.get_tick_params().get("length", _TICK_PT)
            axis.set_tick_params(labelsize=scale * BODY, length=scale * length, width=scale * 0.6, pad=scale * 3.5,
                                 grid_linewidth=scale * 0.4)  # fmt: skip
    ticks = {part for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for part in axis.get_ticklabels()}
    lines = {part for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_major_ticks()
             for part in (tick.tick1line, tick.tick2line, tick.gridline)}  # fmt: skip
    for part in figure.findobj():
        if isinstance(part, Text) and part not in ticks:
            part.set_fontsize(scale * float(part.get_fontsize()))
        elif isinstance(part, Line2D) and part not in lines:
            part.set_linewidth(scale * part.get_linewidth())
            part.set_markersize(scale * part.get_markersize())
            part.set_markeredgewidth(scale * part.get_markeredgewidth())
        elif isinstance(part, Patch | Spine):
            part.set_linewidth(scale * part.get_linewidth())


@cache
def _rc_settings() -> Mapping[Any, Any]:
    defaults = {
        name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith(_ENVIRONMENT_SETTINGS)
    }
    return {**defaults, **_STYLE_SETTINGS}


@contextmanager
def figure_style() -> Iterator[None]:
    """Context for drawing and saving: matplotlib's defaults and this style; the user's settings return afterwards."""
    with mpl.rc_context(dict(_rc_settings())):
        yield


def series_colour(index: int) -> str:
    """Return the colour of the series at an index; the 8 colours repeat."""
    return COLOURS[index % len(COLOURS)]


def series_marker(index: int) -> str:
    """Return the marker of the series at an index; with the colour it is unique among forty."""
    return MARKERS[index % len(MARKERS)]


def series_dash(index: int) -> Dash:
    """Return the line style of the series at an index; the 8 styles repeat."""
    return DASHES[index % len(DASHES)]


def drawable_text(text: str) -> str:
    """Return at most 300 characters, controls escaped and glyphs that the font lacks as U+FFFD."""
    return "".join(
        c if ord(c) in _font_glyphs() else "\N{REPLACEMENT CHARACTER}"
        for c in shorten_name(escape_controls(text), _MAX_CHARACTERS)
    )


@cache
def _font_glyphs() -> frozenset[int]:
    font = font_manager.get_font(font_manager.findfont(FontProperties(family="DejaVu Sans")))
    return frozenset(font.get_charmap())


@cache
def text_width_pt(text: str, size: float = BODY, weight: str = "normal") -> float:
    """Return the width of a text in points (1/72 inch), set in DejaVu Sans of `size` points; kept once measured."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def wrap_text(text: str, width: float, size: float = BODY, weight: str = "normal") -> list[str]:
    """Return lines no wider than `width` points, broken between words and parts of names, else anywhere.

    Spaces at the ends of lines are dropped; a text without a character is one empty line.
    """
    lines = [""]
    for part in _break_parts(text):
        if text_width_pt((lines[-1] + part).rstrip(), size, weight) <= width:
            lines[-1] += part
            continue
        lines += [""] if lines[-1] else []
        for character in part:
            if lines[-1] and text_width_pt(lines[-1] + character, size, weight) > width:
                lines.append("")
            lines[-1] += character
    return [line.rstrip() for line in lines]


def _break_parts(text: str) -> list[str]:
    parts = [""]
    for character in text:
        parts[-1] += character
        if character in " _/-:,":
            parts.append("")
    return [part for part in parts if part]


# Labels beside their points, without overlaps: geometry in points of 1/72 inch


Floats = NDArray[np.float64]
_SIXTEENTHS = (0, 8, 2, 14, 6, 10, 4, 12, 1, 15, 7, 9, 3, 13, 5, 11)
_DIRECTIONS = tuple((math.cos(k * math.pi / 8), math.sin(k * math.pi / 8)) for k in _SIXTEENTHS)
"""Sixteen directions around a point: right and left first, where text reads best."""
_STEP_PT = 2.0
_MIN_DISTANCE_PT = 4.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: left, bottom, right, top."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Return whether the two boxes share area."""
        left_or_right = self.right <= other.left or other.right <= self.left
        above_or_below = self.top <= other.bottom or other.top <= self.bottom
        return not (left_or_right or above_or_below)


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    within: Box,
    *,
    over: Sequence[Box] = (),
    avoid: Sequence[Box] = (),
    reach: float,
) -> list[Box] | None:
    """Return a box near each point, inside `within`, on no other and none of `over`; None if one finds no place.

    Places are tried in rings around each point up to `reach`, the nearest first, points in crowds first; those that
    leave the boxes of `avoid` free are preferred. All in points of 1/72 inch; `sizes` are width and height.
    """
    occupied = [*over]
    boxes: dict[int, Box] = {}
    for k in _crowding_order(points):
        box = _best_box(points[k], sizes[k], within, occupied, avoid, reach)
        if box is None:
            return None
        boxes[k] = box
        occupied.append(box)
    return [boxes[k] for k in range(len(points))]


def _crowding_order(points: Sequence[tuple[float, float]]) -> list[int]:
    nearness = [sum(1.0 / (1.0 + math.dist(point, other)) for other in points) for point in points]
    return sorted(range(len(points)), key=lambda k: (-round(nearness[k], 9), k))


def _best_box(
    point: tuple[float, float],
    size: tuple[float, float],
    within: Box,
    occupied: Sequence[Box],
    avoid: Sequence[Box],
    reach: float,
) -> Box | None:
    """Return the free place of a label nearest to its point, 6 points farther over a box of `avoid`; else None."""
    centres, far = _candidate_centres(point, size, reach)
    half = np.array(size) / 2.0
    low, high = centres - half, centres + half
    inside = (low >= (within.left, within.bottom)).all(axis=1) & (high <= (within.right, within.top)).all(axis=1)
    free = inside & (_overlap_counts(low, high, occupied) == 0)
    if not free.any():
        return None
    cost = np.where(free, far + 6.0 * _overlap_counts(low, high, avoid), np.inf)
    best = int(cost.argmin())
    return Box(float(low[best, 0]), float(low[best, 1]), float(high[best, 0]), float(high[best, 1]))


def _candidate_centres(point: tuple[float, float], size: tuple[float, float], reach: float) -> tuple[Floats, Floats]:
    distances = np.arange(_MIN_DISTANCE_PT, max(reach, _MIN_DISTANCE_PT) + _STEP_PT / 2, _STEP_PT)
    directions = np.array(_DIRECTIONS)
    offsets = directions * (np.array(size) / 2.0)
    centres = np.array(point) + distances[:, None, None] * directions + offsets
    return centres.reshape(-1, 2), np.repeat(distances, len(directions))


def _overlap_counts(low: Floats, high: Floats, boxes: Sequence[Box]) -> NDArray[np.int64]:
    counts = np.zeros(len(low), dtype=np.int64)
    for box in boxes:
        counts += (low[:, 0] < box.right) & (high[:, 0] > box.left) & (low[:, 1] < box.top) & (high[:, 1] > box.bottom)
    return counts
