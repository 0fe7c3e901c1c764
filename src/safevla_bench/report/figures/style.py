"""The style of all figures: settings that no user setting changes, colours for colour-blind readers, and sizes.

Every series has a colour and a marker or line of its own, so that no reader depends on colour. Text is DejaVu Sans,
which comes with matplotlib; characters that it lacks are shown as U+FFFD.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from matplotlib import font_manager
from matplotlib import style as mpl_style
from matplotlib.font_manager import FontProperties

from safevla_bench.text import escape_controls, shorten_name

_MAX_CHARACTERS = 300
"""Longest text that is drawn: a name may have any length."""
BODY, SMALL, TITLE = 7.0, 6.0, 8.0
"""Sizes of text in points."""
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
_SETTINGS: Mapping[str, object] = {
    "font.family": ["DejaVu Sans"],
    "text.parse_math": False,  # a name may hold a dollar sign
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "legend.frameon": False,
    "legend.borderpad": 0.0,
    "legend.borderaxespad": 0.7,
    "legend.labelspacing": 0.35,
    "legend.handlelength": 2.2,
    "legend.handletextpad": 0.6,
    "legend.columnspacing": 1.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "safevla-bench",
    "pdf.fonttype": 42,
    "savefig.dpi": 300,
    "font.size": BODY,
    "axes.titlesize": BODY,
    "axes.titlepad": 4.0,
    "axes.labelsize": BODY,
    "axes.labelpad": 3.0,
    "xtick.labelsize": BODY,
    "ytick.labelsize": BODY,
    "figure.labelsize": BODY,
    "figure.titlesize": TITLE,
    "legend.fontsize": SMALL,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 3.0,
    "ytick.major.pad": 3.0,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 5.0,
    "figure.constrained_layout.w_pad": 0.04,
    "figure.constrained_layout.h_pad": 0.04,
}


@dataclass(frozen=True, slots=True)
class Page:
    """The place of a figure in a paper: width in inches, by default a column of two, and whether there is a title."""

    width_in: float = 3.5
    titled: bool = True


NARROWEST_IN = 2.8
"""The least width of a figure: its panels need 17 ems of text."""
COLUMN = Page()
PAGE: ContextVar[Page] = ContextVar("page", default=COLUMN)
"""The page that is drawn for."""


@contextmanager
def figure_style() -> Iterator[None]:
    """Context for drawing and saving: matplotlib's defaults and this style; the user's settings return afterwards."""
    with mpl_style.context(["default", dict(_SETTINGS)]):
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


def marker_look(colour: int, shape: int, size: float, edge: float) -> dict[str, Any]:
    """Return how `Axes.plot` draws markers alone: in a series' colour and shape, with white edges; sizes in points."""
    return {
        "color": series_colour(colour),
        "marker": series_marker(shape),
        "markersize": size,
        "markeredgecolor": "white",
        "markeredgewidth": edge,
        "linestyle": "none",
        "clip_on": False,
    }


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


def wrap_text(text: str, room_in: float, size: float = BODY) -> str:
    """Return the text as it can be drawn, in lines of at most `room_in` inches of ordinary letters."""
    return textwrap.fill(drawable_text(text), count_characters(room_in, size), break_on_hyphens=True)


def count_characters(room_in: float, size: float = BODY) -> int:
    """Return how many characters of an ordinary text fit into a room; those of DejaVu Sans are 0.57 em wide."""
    return max(1, int(72 * room_in / (0.57 * size)))
