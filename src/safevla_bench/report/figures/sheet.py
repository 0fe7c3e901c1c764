"""The sheet of a figure: title and panels, laid out by matplotlib's constrained layout, over a key and notes.

Lengths are in inches and sizes in points beside text of 7 points; the page that is drawn for scales them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from safevla_bench.judging.rates import Rate
from safevla_bench.judging.scores import Scores
from safevla_bench.report.figures import style
from safevla_bench.report.figures.style import MUTED, SMALL, TITLE, drawable_text, text_width_pt, wrap_text
from safevla_bench.report.tables.table import UNNAMED

_MARGIN_IN = 0.06
_LEADING = 1.3
_MARK_PT = 20.0
"""Width of the mark of a key's entry, with the gap behind it."""


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

    @property
    def text(self) -> str:
        """Return the name behind its sign, as it can be drawn."""
        return drawable_text(f"{self.sign}  {self.name}" if self.sign else self.name)

    def handle(self, label: str) -> Line2D:
        """Return the mark and the line, with the label."""
        dash = "-" if self.solid else style.series_dash(self.series)
        return Line2D(
            [],
            [],
            color=self.colour or style.series_colour(self.series),
            linestyle=dash if self.lined else "none",
            marker=style.series_marker(self.series) if self.marked else "none",
            markersize=style.points(4.5),
            label=label,
        )


def make_sheet(title: str, body_in: float, *, notes: Sequence[str] = (), key: Sequence[KeyEntry] = ()) -> SubFigure:
    """Return the body of a new figure, some `body_in` inches high, for panels; title, notes and key are drawn.

    The page that is drawn for sets the width, and may leave the title out.
    """
    room_pt = room_for_text(sheet_width() - 2 * _MARGIN_IN)
    heading = wrap_text(drawable_text(title), room_pt, TITLE, "bold") if style.current_page().titled else []
    note_lines = [line for note in notes for line in wrap_text(drawable_text(note), room_pt, SMALL)]
    labels = [wrap_text(entry.text, room_pt - _MARK_PT, SMALL) for entry in key]
    columns = _count_columns(labels, room_pt)
    body_in += len(heading) * _line_height(TITLE)
    note_in = len(note_lines) * _line_height(SMALL)
    foot_in = 0.12 + note_in + _key_height(labels, columns)
    figure = Figure(figsize=(style.current_page().width_in, style.points(body_in + foot_in)), layout="constrained")
    parts = GridSpec(2, 1, figure, height_ratios=[body_in, foot_in], hspace=0)
    body, foot = figure.add_subfigure(parts[0]), figure.add_subfigure(parts[1])
    left = _MARGIN_IN / sheet_width()
    if heading:
        body.suptitle("\n".join(heading), x=left, ha="left", weight="bold")
    foot.text(
        left, 0.5 * _MARGIN_IN / foot_in, "\n".join(note_lines), fontsize=style.points(SMALL), color=MUTED,
        linespacing=_LEADING, va="bottom",
    )  # fmt: skip
    if key:
        handles = [entry.handle("\n".join(label)) for entry, label in zip(key, labels, strict=True)]
        foot.legend(handles=handles, loc="upper left", bbox_to_anchor=(left, 1.0), ncols=columns)
    return body


def _line_height(size: float) -> float:
    return size * _LEADING / 72


def _count_columns(labels: Sequence[Sequence[str]], room_pt: float) -> int:
    widest = max((text_width_pt(line, SMALL) for label in labels for line in label), default=0.0)
    return max(1, min(3, len(labels), int(room_pt // (widest + _MARK_PT + 6))))


def _key_height(labels: Sequence[Sequence[str]], columns: int) -> float:
    """Return the height of the highest column of a key [in]; matplotlib fills one column after the other."""
    parts = np.array_split(np.array([len(label) for label in labels]), columns)
    return max(float(part.sum()) for part in parts) * 1.44 * SMALL / 72


def sheet_width() -> float:
    """Return the width of a sheet in inches, with text of 7 points."""
    return style.current_page().width_in / style.current_page().scale


def room_for_text(room_in: float) -> float:
    """Return the room of a line in points; a little less where text is scaled: hinted letters do not scale exactly."""
    return 72 * room_in * (1.0 if style.current_page().scale == 1.0 else 0.97)


def draw_empty(axes: Axes, reason: str) -> None:
    """Draw the reason in the middle of an empty panel, without ticks and frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_facecolor(style.TINT)
    place = axes.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    lines = wrap_text(drawable_text(reason), 72 * (sheet_width() / columns - 0.4))
    axes.text(0.5, 0.5, "\n".join(lines), transform=axes.transAxes, ha="center", va="center", color=MUTED)


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
    """Return a figure with a panel for each of `titles`, two abreast, some `high_in` inches high, filled by
    `draw(axes, index)`; without any it says `empty`.

    `across` and `upward` label the axes of all panels; without `upward` each panel has ticks of its own.
    """
    count, columns = len(titles), min(len(titles), 2) or 1
    rows = -(-count // columns) or 1
    body = make_sheet(title, rows * (high_in + 0.2) + 0.4, notes=notes, key=key)
    grid = body.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[max(count, 1) :]:
        axes.remove()
    if not titles:
        draw_empty(grid[0], empty)
        return lay_out(body)
    for k, panel_title in enumerate(titles):
        draw(grid[k], k)
        grid[k].tick_params(labelbottom=k + columns >= count, labelleft=not upward or k % columns == 0)
        grid[k].set_title(fit_text(panel_title, room_for_text(panel_width(columns))))
    body.supxlabel(fit_text(across, room_for_text(sheet_width() - 0.2)))
    if upward:
        body.supylabel(upward)
    return lay_out(body)


def percent_band(rates: Sequence[Rate]) -> NDArray[np.float64]:
    """Return value, low and high end of each rate in percent, [3, n]; NaN where it is unknown."""
    ends = [(nan,) * 3 if rate.value is None else (rate.value, *(rate.ci or (0.0, 1.0))) for rate in rates]
    return 100 * np.array(ends).T


def lay_out(body: SubFigure) -> Figure:
    """Return the figure of a body, laid out once and for all, to a hundred-thousandth of its size.

    Each further draw would move its panels by a hair, and what was drawn before in the process moves them by less.
    """
    figure = body.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for part in figure.subfigs:
        part.bbox_relative.set_points(np.round(part.bbox_relative.get_points(), 5))
    for axes in figure.axes:
        left, bottom, width, height = np.round(axes.get_position().bounds, 5).tolist()
        axes.set_position((left, bottom, width, height))
    for label in filter(None, (body._suptitle, body._supxlabel, body._supylabel)):  # type: ignore[attr-defined]
        x, y = np.round(label.get_position(), 5).tolist()
        label.set_position((x, y))
    return figure


def panel_width(columns: int) -> float:
    """Return the least width of each of some panels abreast, their ticks' labels left out [in]."""
    return (sheet_width() - 0.5) / columns - 0.1


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
    """Return the text as it can be drawn, cut with an ellipsis if it is wider than `room_pt` points."""
    text = drawable_text(text)
    if text_width_pt(text) <= room_pt:
        return text
    while text and text_width_pt(text + "…") > room_pt:
        text = text[:-1]
    return text + "…"
