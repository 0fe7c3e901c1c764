"""The common layout of all figures: a title, panels in matplotlib's constrained layout, and then notes and a legend.

The user's settings of matplotlib do not change the style. Series differ in color and also in marker or line style, so
that no reader depends on color. The font is DejaVu Sans (from matplotlib), with system fonts for missing letters.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import font_manager, rcParams
from matplotlib import style as mpl_style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from safevla_bench.judging.rates import Rate
from safevla_bench.text import escape_controls, shorten_name
from safevla_recorder.episode import Floats

_log = logging.getLogger(__name__)
# Maximum number of characters of a text; a longer text is shortened.
_MAX_CHARACTERS = 300
BODY, SMALL, TITLE = 7.0, 6.0, 8.0  # text sizes in points
INK, MUTED, LINE, TINT = "#1b1e22", "#596069", "#c9ced4", "#f0f1f3"
# Okabe and Ito's palette, with gray instead of yellow (too pale on white). Adjacent colors differ in lightness.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#D55E00", "#8C8C8C")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
_DASH_LENGTHS = ((4, 1.5), (1, 1), (5, 1.2, 1, 1.2), (2, 1), (7, 2), (3, 1, 1, 1, 1, 1), (1, 2.5))
DASHES: tuple[Dash, ...] = ("-", *((0, lengths) for lengths in _DASH_LENGTHS))
_STYLE = Path(__file__).with_name("sheet.mplstyle")  # the matplotlib style of all figures


@dataclass(frozen=True, slots=True)
class Page:
    """The options of a figure that depend on where it is printed."""

    width_in: float = 3.5  # width in inches; the default is the width of a column
    titled: bool = True  # whether the figure has a title
    remarks: Sequence[str] = ()  # sentences below the figure's notes


NARROWEST_IN = 2.8  # minimum width of a figure [inches], because the text of its panels is 17 ems wide
COLUMN = Page()
PAGE: ContextVar[Page] = ContextVar("page", default=COLUMN)  # the page for which figures are drawn


@contextmanager
def figure_style() -> Iterator[None]:
    """Use matplotlib's defaults and the figures' style within the context; then restore the user's settings."""
    with mpl_style.context(["default", _STYLE]):
        yield


def series_color(index: int) -> str:
    """Return the color of the series with this index; the 8 colors repeat."""
    return COLORS[index % len(COLORS)]


def series_marker(index: int) -> str:
    """Return the marker of the series with this index; pairs of color and marker repeat only after 40 series."""
    return MARKERS[index % len(MARKERS)]


def series_dash(index: int) -> Dash:
    """Return the line style of the series with this index; the 8 styles repeat."""
    return DASHES[index % len(DASHES)]


def marker_look(color: int, shape: int, size: float, edge: float) -> dict[str, Any]:
    """Return arguments of `Axes.plot` for markers with white edges and no line; `size` and `edge` are in points."""
    # `color` and `shape` are the indices of the series in `COLORS` and in `MARKERS`; `edge` is the width of the edge.
    return {
        "color": series_color(color),
        "marker": series_marker(shape),
        "markersize": size,
        "markeredgecolor": "white",
        "markeredgewidth": edge,
        "linestyle": "none",
        "clip_on": False,
    }


def drawable_text(text: str) -> str:
    """Return at most 300 characters of the text, with control characters escaped. Add system fonts to the current style
    if the text needs them. Characters that no font has become U+FFFD, and one warning is logged for the text.
    """
    shown = shorten_name(escape_controls(text), _MAX_CHARACTERS)
    family_of = {character: _find_family(character) for character in shown}  # None = no font has the character
    missing = sorted(character for character, family in family_of.items() if family is None)
    if missing:
        _warn_undrawable(shown, "".join(missing))
    # matplotlib tries the font families of the current style (`rcParams`) in order, so the new families come last.
    further_families = sorted({family for family in family_of.values() if family} - {*rcParams["font.family"]})
    if further_families:
        rcParams["font.family"] = [*rcParams["font.family"], *further_families]
    return "".join(character if family_of[character] else "\N{REPLACEMENT CHARACTER}" for character in shown)


@cache
def _warn_undrawable(text: str, missing: str) -> None:
    # Log a warning; the cache suppresses the same warning for the same text.
    problem = f"no font of this system has {missing!r}, so part of the name is not drawn"
    _log.warning("warning: figures: %r: %s. Install a font with these characters.", text, problem)


@cache
def _find_family(character: str) -> str | None:
    # Return a font family that has a character: DejaVu Sans if possible, else a system font; None if no font has it.
    # Fonts whose names begin with `_BOXES` are skipped, because they draw a box for every character.
    entries = [entry for entry in font_manager.fontManager.ttflist if entry.style == "normal"]
    # DejaVu Sans and then the normal weight, 400, sort first, because False is less than True.
    fonts = sorted((entry.name != _FAMILY, entry.weight != 400, entry.name, entry.fname) for entry in entries)
    for *_, name, path in fonts:
        if not name.startswith(_BOXES) and ord(character) in _font_code_points(path):
            return name
    return None


@cache
def _font_code_points(path: str) -> frozenset[int]:
    # Return the code points of all characters in a font file; an empty set if the file cannot be read.
    try:
        return frozenset(font_manager.get_font(path).get_charmap())
    except (OSError, RuntimeError):  # matplotlib cannot read this system font
        return frozenset()


# The font family of text.
# A font whose name begins with `_BOXES` draws a box for every character.
_FAMILY, _BOXES = "DejaVu Sans", "Last Resort"


def wrap_text(text: str, room_in: float, size: float = BODY) -> str:
    """Return the drawable text, wrapped to at most `room_in` inches, assuming letters of average width."""
    return textwrap.fill(drawable_text(text), count_characters(room_in, size), break_on_hyphens=True)


def count_characters(room_in: float, size: float = BODY) -> int:
    """Return how many characters of average text fit into a width. Their mean width in DejaVu Sans is 0.57 em."""
    # An inch has 72 points. An em is the text's `size` in points.
    return max(1, int(72 * room_in / (0.57 * size)))


# The layout of a figure

_MARGIN_IN = 0.06
# Width of the marker in an entry of the legend, including the gap after the marker.
_MARK_IN = 0.28


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """An entry of the legend: a name with the marker and line of its series. `sign` replaces the name in the panels."""

    name: str
    series: int
    sign: str = ""
    marked: bool = True
    lined: bool = False
    solid: bool = False  # draw a solid line instead of the series' dash
    color: str | None = None


def make_sheet(title: str, body_in: float) -> Figure:
    """Return a figure with about `body_in` inches of height for panels, and with a title if the page has titles."""
    page = PAGE.get()
    figure = Figure(figsize=(page.width_in, body_in), layout="constrained")
    if page.titled:
        # The title is bold, so its letters are wider than average; a larger size accounts for this.
        wrapped_title = wrap_text(title, page.width_in - 2 * _MARGIN_IN, 1.1 * TITLE)
        figure.suptitle(wrapped_title, x=_MARGIN_IN / page.width_in, ha="left", weight="bold")
    return figure


def finish_sheet(figure: Figure, notes: Sequence[str] = (), key: Sequence[KeyEntry] = ()) -> Figure:
    """Add the notes and the legend below the panels, fix the layout, and return the figure. Positions are rounded to
    1e-5 of the figure's size, because other figures drawn by the same process may shift panels slightly.
    """
    width_in, height_in = figure.get_size_inches().tolist()
    # The notes and the entries are one matplotlib legend: the notes are its title.
    # `key` contains the entries of the legend; remarks of the page follow the notes.
    notes = (*notes, *PAGE.get().remarks)
    if notes or key:
        room_in = width_in - 2 * _MARGIN_IN
        # If an entry has a sign (the short label used in the panels), the entry begins with the sign.
        labels = [wrap_text(f"{entry.sign}  {entry.name}".strip(), room_in - _MARK_IN, SMALL) for entry in key]
        longest_label = max((len(line) for label in labels for line in label.split("\n")), default=1)
        legend = figure.legend(
            handles=[_make_legend_handle(entry, label) for entry, label in zip(key, labels, strict=True)],
            title="\n".join(wrap_text(note, room_in, SMALL) for note in notes),
            title_fontproperties={"size": SMALL},
            alignment="left",
            loc="outside lower left",
            # An entry also needs room for its marker, about 7 characters wide.
            ncols=max(1, min(3, len(key), count_characters(room_in, SMALL) // (longest_label + 7))),
        )
        legend.get_title().set_color(MUTED)
        # The figure grows by the height of the legend, so that the panels keep their heights.
        figure.set_size_inches(width_in, height_in + legend.get_window_extent().height / figure.dpi + _MARGIN_IN)
    # Compute the layout, then switch it off, so that the rounded positions stay.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = np.round(axes.get_position().bounds, 5).tolist()
        axes.set_position((left, bottom, width, height))
    # matplotlib has no public attribute for the object of the figure's title.
    if heading := figure._suptitle:  # type: ignore[attr-defined]
        heading.set_position(np.round(heading.get_position(), 5).tolist())
    return figure


def _make_legend_handle(entry: KeyEntry, label: str) -> Line2D:
    # Return the line and marker that represent a series in the legend; `label` is the wrapped text next to them.
    # `entry.series` is the series' index. It determines color, line style and marker, unless the entry sets these.
    # The line has no points (empty lists), because it is not drawn in a panel.
    line_style: Dash = "-" if entry.solid else series_dash(entry.series)
    return Line2D(
        [],
        [],
        color=entry.color or series_color(entry.series),
        linestyle=line_style if entry.lined else "none",
        marker=series_marker(entry.series) if entry.marked else "none",
        markersize=4.5,
        label=label,
    )


def draw_empty(axes: Axes, reason: str) -> None:
    """Write the reason why a panel is empty into the panel, and remove the ticks and the frame of the panel."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_facecolor(TINT)
    # The panel may be as narrow as half of the page.
    text = wrap_text(reason, PAGE.get().width_in / 2 - 0.4)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def draw_panels(
    title: str,
    high_in: float,
    titles: Sequence[str],
    draw: Callable[[Axes, int], None],
    *,
    across: str,
    upward: str = "",
    empty: str,
    notes: Sequence[str] = (),
    key: Sequence[KeyEntry] = (),
) -> Figure:
    """Return a figure with a panel for each of `titles`, two panels per row, each about `high_in` inches high.
    `draw(axes, index)` fills a panel; without titles, the figure shows the text `empty`. `across` and `upward` label
    the horizontal and the vertical axes; without `upward`, each panel has its own vertical ticks.
    """
    # The constants below are the room for headings, ticks and axis labels, in inches.
    count, columns = len(titles), min(len(titles), 2) or 1
    rows = -(-count // columns) or 1  # the quotient, rounded up
    width_in = PAGE.get().width_in
    headings = [wrap_text(heading, (width_in - 0.5) / columns - 0.1) for heading in titles]
    extra_heading_in = 0.12 * max((heading.count("\n") for heading in headings), default=0)
    figure = make_sheet(title, rows * (high_in + 0.2 + extra_heading_in) + 0.55)
    panel_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panel_axes[max(count, 1) :]:  # the last row may have only one panel
        axes.remove()
    if not titles:
        draw_empty(panel_axes[0], empty)
        return finish_sheet(figure, notes, key)
    for k, (axes, heading) in enumerate(zip(panel_axes, headings, strict=False)):
        # A panel is lowest if no panel is below it in its column.
        is_lowest, is_leftmost = k + columns >= count, k % columns == 0
        draw(axes, k)
        # With `upward`, the panels of a row share their vertical ticks, which only the left panel shows.
        axes.tick_params(labelbottom=is_lowest, labelleft=not upward or is_leftmost)
        axes.set_title(heading)
        if is_lowest:
            axes.set_xlabel(wrap_text(across, (width_in - 0.5) / columns))
        if is_leftmost:
            axes.set_ylabel(wrap_text(upward, high_in + 0.2))
    return finish_sheet(figure, notes, key)


def percent_band(rates: Sequence[Rate]) -> Floats:
    """Return the values, lower ends and upper ends of n rates in percent, [3, n]; NaN if unknown."""
    # `ci` is a rate's interval, from 0 to 1. A rate with a value but no interval gets the widest interval, (0, 1).
    rows = [(nan, nan, nan) if rate.value is None else (rate.value, *(rate.ci or (0.0, 1.0))) for rate in rates]
    return 100 * np.array(rows).T


def series_signs(names: Sequence[str], room_in: float) -> tuple[tuple[str, ...], bool]:
    """Return the labels (the names if each fits into `room_in` inches, else numbers), and whether they are numbers."""
    shown = tuple(map(drawable_text, names))
    if all(len(name) <= count_characters(room_in) for name in shown):
        return shown, False
    return tuple(str(k + 1) for k in range(len(names))), True


def format_episode_range(counts: Sequence[int]) -> str:
    """Return the numbers of episodes as text, as a range if they differ: "40 to 200 episodes"."""
    least, most = min(counts), max(counts)
    range_text = str(least) if least == most else f"{least} to {most}"
    return f"{range_text} episode{'' if most == 1 else 's'}"
