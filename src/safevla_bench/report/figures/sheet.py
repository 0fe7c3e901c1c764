"""The sheet of a figure: title, panels, notes and a key, laid out in inches from measured text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from safevla_bench.judging.scores import Scores
from safevla_bench.report.figures.style import (
    BODY,
    INK,
    MUTED,
    SMALL,
    TINT,
    Box,
    drawable_text,
    is_titled,
    line_room_pt,
    place_labels,
    series_colour,
    series_dash,
    series_marker,
    sheet_width,
    text_width_pt,
    wrap_text,
)
from safevla_bench.report.tables.table import UNNAMED

_MARGIN_IN = 0.06
_LEADING = 1.3
_TITLE_SIZE = 8.0
_MARK_IN = 0.24
"""Width of the mark of a key's entry."""
_KEY_SIZE = 6.6
"""Text size that gives the line spacing of the key."""
_TIE_DISTANCE_PT = 7.0
"""Labels farther than this from their marker are tied to it by a line."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One line of the key: a name with the mark and the line of its series; `sign` stands for it in the panels."""

    name: str
    series: int
    sign: str = ""
    marked: bool = True
    lined: bool = False
    solid: bool = False
    """True if the line is solid, not the dash of the series."""
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure and the area for its panels, in inches from the left and the bottom."""

    figure: Figure
    bottom_in: float
    width_in: float

    def add_panel(self, left_in: float, bottom_in: float, width_in: float, height_in: float) -> Axes:
        """Return new axes at a place in inches from the lower left corner of the body."""
        high = self.figure.get_figheight()
        place = (
            left_in / self.width_in,
            (self.bottom_in + bottom_in) / high,
            width_in / self.width_in,
            height_in / high,
        )
        return self.figure.add_axes(place)

    def write_text(self, x_in: float, y_in: float, text: str, size: float = BODY, **how: object) -> None:
        """Write text at a place in inches from the lower left corner of the body; `how` goes to matplotlib."""
        x, y = x_in / self.width_in, (self.bottom_in + y_in) / self.figure.get_figheight()
        self.figure.text(x, y, drawable_text(text), fontsize=size, **how)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class PanelGrid:
    """Places of `count` equal panels, two abreast if there are several, in inches from the lower left of the body.

    `left`, `right` and `below` are the margins of all panels, `above` the room for the title of each, `gap` the room
    between columns, `high` the height of a panel.
    """

    count: int
    left: float
    right: float
    below: float
    above: float
    gap: float
    high: float
    title_gap: float = 0.05

    @property
    def columns(self) -> int:
        """Return the number of columns, 1 or 2."""
        return min(self.count, 2) or 1

    @property
    def rows(self) -> int:
        """Return the number of rows, at least 1."""
        return -(-self.count // self.columns) or 1

    @property
    def wide(self) -> float:
        """Return the width of a panel [in]."""
        return (sheet_width() - self.left - self.right - self.gap * (self.columns - 1)) / self.columns

    @property
    def body_in(self) -> float:
        """Return the height of all panels with their titles and the margin below [in]."""
        return self.rows * (self.high + self.above) + self.below

    def corner(self, index: int) -> tuple[float, float]:
        """Return left and bottom of the panel at an index, from 0 at the top left, row by row [in]."""
        row, column = divmod(index, self.columns)
        bottom = self.below + (self.rows - 1 - row) * (self.high + self.above)
        return self.left + column * (self.wide + self.gap), bottom

    def is_lowest(self, index: int) -> bool:
        """Return whether no panel stands below this one."""
        return index + self.columns >= self.count

    def is_leftmost(self, index: int) -> bool:
        """Return whether no panel stands left of this one."""
        return index % self.columns == 0


def make_sheet(title: str, body_in: float, *, notes: Sequence[str] = (), key: Sequence[KeyEntry] = ()) -> Sheet:
    """Return a sheet with title, notes and key drawn, and an empty body of `body_in` inches in height for panels.

    Body, title, notes and key add up to the sheet's height. The page that is drawn for sets the width, and may leave
    the title out.
    """
    room_pt = line_room_pt(sheet_width() - 2 * _MARGIN_IN)
    heading = wrap_text(drawable_text(title), room_pt, _TITLE_SIZE, "bold") if is_titled() else []
    note_lines = [line for note in notes for line in wrap_text(drawable_text(note), room_pt, SMALL)]
    key_texts = [drawable_text(f"{entry.sign}  {entry.name}" if entry.sign else entry.name) for entry in key]
    key_lines = [wrap_text(text, room_pt - 72 * _MARK_IN, SMALL) for text in key_texts]
    head_in = len(heading) * _line_height(_TITLE_SIZE) + (0.06 if heading else 0)
    note_in = len(note_lines) * _line_height(SMALL)
    widest = max((text_width_pt(line, SMALL) for lines in key_lines for line in lines), default=0.0) + 72 * _MARK_IN + 6
    columns = max(1, min(3, len(key), int(room_pt // widest)))
    key_in = sum(_row_heights(key_lines, columns))
    bottom = _MARGIN_IN + note_in + (0.04 if key else 0) + key_in + 0.06
    height = bottom + body_in + head_in + _MARGIN_IN
    sheet = Sheet(Figure(figsize=(sheet_width(), height)), bottom, sheet_width())
    _write_lines(sheet, heading, height - _MARGIN_IN, _TITLE_SIZE, weight="bold", color=INK)
    _write_lines(sheet, note_lines, _MARGIN_IN + note_in, SMALL, color=MUTED)
    _draw_key(sheet, key, key_lines, columns, _MARGIN_IN + note_in + 0.04 + key_in)
    return sheet


def _line_height(size: float) -> float:
    return size * _LEADING / 72


def _write_lines(sheet: Sheet, lines: Sequence[str], top_in: float, size: float, **how: object) -> None:
    for k, line in enumerate(lines):
        sheet.write_text(
            _MARGIN_IN, top_in - k * _line_height(size) - sheet.bottom_in, line, size, va="top", ha="left", **how
        )


def _row_heights(key_lines: Sequence[Sequence[str]], columns: int) -> list[float]:
    rows = [key_lines[k : k + columns] for k in range(0, len(key_lines), columns)]
    return [max(len(lines) for lines in row) * _line_height(_KEY_SIZE) for row in rows]


def _draw_key(
    sheet: Sheet, key: Sequence[KeyEntry], key_lines: Sequence[Sequence[str]], columns: int, top_in: float
) -> None:
    heights = _row_heights(key_lines, columns)
    wide = (sheet_width() - 2 * _MARGIN_IN) / columns
    for k, (entry, lines) in enumerate(zip(key, key_lines, strict=True)):
        row, column = divmod(k, columns)
        left, top = _MARGIN_IN + column * wide, top_in - sum(heights[:row])
        _draw_mark(sheet, entry, left + _MARK_IN / 2 - 0.02, top - _line_height(_KEY_SIZE) / 2)
        for number, line in enumerate(lines):
            y = top - (number + 0.5) * _line_height(_KEY_SIZE) - sheet.bottom_in
            sheet.write_text(left + _MARK_IN, y, line, SMALL, va="center_baseline")


def _draw_mark(sheet: Sheet, entry: KeyEntry, x_in: float, y_in: float) -> None:
    ink = entry.colour or series_colour(entry.series)
    width, height = sheet.width_in, sheet.figure.get_figheight()
    half = 0.09 if entry.lined else 0.0
    line = Line2D(
        [(x_in - half) / width, (x_in + half) / width] if entry.lined else [x_in / width],
        [y_in / height] * (2 if entry.lined else 1),
        color=ink,
        linestyle=("-" if entry.solid else series_dash(entry.series)) if entry.lined else "none",
        linewidth=1.2,
        transform=sheet.figure.transFigure,
    )
    sheet.figure.add_artist(line)
    if entry.marked:
        spot = Line2D([x_in / width], [y_in / height], color=ink, marker=series_marker(entry.series), markersize=4.5,
                      linestyle="none", transform=sheet.figure.transFigure)  # fmt: skip
        sheet.figure.add_artist(spot)


@dataclass(frozen=True, slots=True)
class PanelScale:
    """Size of a panel in inches, and the ends of its axes."""

    wide: float
    high: float
    left: float
    right: float
    bottom: float
    top: float

    def to_points(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a value in points of 1/72 inch from the panel's lower left corner."""
        x_pt = 72 * self.wide * (x - self.left) / (self.right - self.left)
        return x_pt, 72 * self.high * (y - self.bottom) / (self.top - self.bottom)

    def to_values(self, x_pt: float, y_pt: float) -> tuple[float, float]:
        """Return the value at a place: the inverse of `to_points`."""
        x = self.left + x_pt * (self.right - self.left) / (72 * self.wide)
        return x, self.bottom + y_pt * (self.top - self.bottom) / (72 * self.high)

    def place_labels(
        self,
        spots: Sequence[tuple[float, float]],
        sizes: Sequence[tuple[float, float]],
        mark_pt: float,
        reach: float,
        bars: Sequence[Box] = (),
    ) -> list[Box] | None:
        """Return the boxes of labels beside marks at `spots` of `mark_pt`, off their `bars` if possible; all in points.

        None if a label finds no place within `reach`.
        """
        half = mark_pt / 2
        marks = [Box(x - half, y - half, x + half, y + half) for x, y in spots]
        inside = Box(1, 1, 72 * self.wide - 1, 72 * self.high - 1)
        return place_labels(spots, sizes, inside, over=marks, avoid=bars, reach=reach)

    def draw_label(self, axes: Axes, text: str, box: Box, spot: tuple[float, float]) -> None:
        """Draw a label in its box, tied to its mark at `spot` by a line if it is far away; both in points."""
        near = (min(max(spot[0], box.left), box.right), min(max(spot[1], box.bottom), box.top))
        if abs(near[0] - spot[0]) + abs(near[1] - spot[1]) > _TIE_DISTANCE_PT:
            xs, ys = zip(self.to_values(*spot), self.to_values(*near), strict=True)
            axes.plot(xs, ys, color=MUTED, linewidth=0.4, zorder=1.5)
        middle = self.to_values((box.left + box.right) / 2, (box.bottom + box.top) / 2)
        axes.text(*middle, text, fontsize=SMALL, color=INK, ha="center", va="center", zorder=5)


def draw_empty(axes: Axes, reason: str) -> None:
    """Draw the reason in the middle of an empty panel, without ticks and frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_facecolor(TINT)
    lines = wrap_text(drawable_text(reason), 72 * axes.get_position().width * sheet_width() * 0.9)
    axes.text(0.5, 0.5, "\n".join(lines), transform=axes.transAxes, ha="center", va="center", color=MUTED)


def draw_panels(
    title: str,
    grid: PanelGrid,
    titles: Sequence[str],
    draw: Callable[[Axes, int], None],
    *,
    across: str,
    upward: str = "",
    empty: str,
    notes: Sequence[str] = (),
    key: Sequence[KeyEntry] = (),
) -> Figure:
    """Return a sheet with a panel for each of `titles`, filled by `draw(axes, index)`; without any it says `empty`.

    `across` and `upward` label the axes of all panels; without `upward` each panel has ticks of its own.
    """
    sheet = make_sheet(title, grid.body_in, notes=notes, key=key)
    if not titles:
        draw_empty(sheet.add_panel(grid.left, grid.below, grid.wide, grid.high), empty)
        return sheet.figure
    for k, panel_title in enumerate(titles):
        left, bottom = grid.corner(k)
        axes = sheet.add_panel(left, bottom, grid.wide, grid.high)
        draw(axes, k)
        axes.tick_params(labelbottom=grid.is_lowest(k), labelleft=not upward or grid.is_leftmost(k))
        shown = fit_text(panel_title, 72 * grid.wide)
        sheet.write_text(left, bottom + grid.high + grid.title_gap, shown, va="bottom")
    middle = (sheet_width() + grid.left - grid.right) / 2
    sheet.write_text(middle, 0.02, fit_text(across, 72 * (sheet_width() - 0.2)), ha="center", va="bottom")
    if upward:
        middle = grid.below + (grid.rows * (grid.high + grid.above) - grid.above) / 2
        sheet.write_text(0.1, middle, upward, rotation=90, ha="center", va="center")
    return sheet.figure


def draw_grid(axes: Axes) -> None:
    """Draw pale grid lines behind everything else."""
    axes.set_axisbelow(True)
    axes.grid(True)


def judged_by_policy(scores: Scores) -> dict[str, NDArray[np.bool_]]:
    """Return policy -> whether each episode is a judged one of it, [E], in order of first appearance."""
    names = np.array([policy or UNNAMED for policy in scores.policy], dtype=object)
    return {name: scores.is_judged & (names == name) for name in dict.fromkeys(names.tolist())}


def series_signs(names: Sequence[str], room_pt: float) -> tuple[tuple[str, ...], bool]:
    """Return the sign of each name in a panel, names or else numbers, and whether a key must explain it."""
    if all(text_width_pt(drawable_text(name)) <= room_pt for name in names):
        return tuple(drawable_text(name) for name in names), False
    return tuple(str(k + 1) for k in range(len(names))), True


def format_episode_range(counts: Sequence[int]) -> str:
    """Return the number of episodes, with the least and the most if they differ: "40 to 200 episodes"."""
    least, most = min(counts), max(counts)
    range_text = str(least) if least == most else f"{least} to {most}"
    return f"{range_text} episode{'' if most == 1 else 's'}"


def fit_text(text: str, room_pt: float) -> str:
    """Return the text, cut with an ellipsis and made drawable if it is wider than `room_pt` points."""
    if text_width_pt(drawable_text(text)) <= room_pt:
        return text
    text = drawable_text(text)
    while text and text_width_pt(drawable_text(text) + "…") > room_pt:
        text = text[:-1]
    return text + "…"
