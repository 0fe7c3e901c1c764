"""The sheet of a figure: title and panels, laid out by matplotlib's constrained layout, over notes and a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from safevla_bench.judging.rates import Rate
from safevla_bench.judging.scores import Scores
from safevla_bench.report.figures import style
from safevla_bench.report.figures.style import MUTED, SMALL, TITLE, count_characters, wrap_text
from safevla_bench.report.tables.table import UNNAMED

_MARGIN_IN = 0.06
_MARK_IN = 0.28
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


def make_sheet(title: str, body_in: float) -> Figure:
    """Return a new figure under its title, with some `body_in` inches of height for panels.

    The page that is drawn for sets the width, and may leave the title out.
    """
    page = style.PAGE.get()
    figure = Figure(figsize=(page.width_in, body_in), layout="constrained")
    if page.titled:
        heading = wrap_text(title, page.width_in - 2 * _MARGIN_IN, 1.1 * TITLE)
        figure.suptitle(heading, x=_MARGIN_IN / page.width_in, ha="left", weight="bold")
    return figure


def finish_sheet(figure: Figure, notes: Sequence[str] = (), key: Sequence[KeyEntry] = ()) -> Figure:
    """Return the figure with notes and key below, laid out once and for all, to a hundred-thousandth of its size.

    Each further draw would move its panels by a hair, and what was drawn before in the process moves them by less.
    """
    width_in, height_in = figure.get_size_inches().tolist()
    if notes or key:
        room_in = width_in - 2 * _MARGIN_IN
        labels = [wrap_text(f"{entry.sign}  {entry.name}".strip(), room_in - _MARK_IN, SMALL) for entry in key]
        widest = max((len(line) for label in labels for line in label.split("\n")), default=1)
        foot = figure.legend(
            handles=[_make_handle(entry, label) for entry, label in zip(key, labels, strict=True)],
            title="\n".join(wrap_text(note, room_in, SMALL) for note in notes),
            title_fontproperties={"size": SMALL},
            alignment="left",
            loc="outside lower left",
            ncols=max(1, min(3, len(key), count_characters(room_in, SMALL) // (widest + 7))),
        )
        foot.get_title().set_color(MUTED)
        figure.set_size_inches(width_in, height_in + foot.get_window_extent().height / figure.dpi + _MARGIN_IN)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = np.round(axes.get_position().bounds, 5).tolist()
        axes.set_position((left, bottom, width, height))
    if heading := figure._suptitle:  # type: ignore[attr-defined]
        x, y = np.round(heading.get_position(), 5).tolist()
        heading.set_position((x, y))
    return figure


def _make_handle(entry: KeyEntry, label: str) -> Line2D:
    return Line2D(
        [],
        [],
        color=entry.colour or style.series_colour(entry.series),
        linestyle=("-" if entry.solid else style.series_dash(entry.series)) if entry.lined else "none",
        marker=style.series_marker(entry.series) if entry.marked else "none",
        markersize=4.5,
        label=label,
    )


def draw_empty(axes: Axes, reason: str) -> None:
    """Draw the reason in the middle of an empty panel, without ticks and frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_facecolor(style.TINT)
    text = wrap_text(reason, style.PAGE.get().width_in / 2 - 0.4)
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
    """Return a figure with a panel for each of `titles`, two abreast, some `high_in` inches high, filled by
    `draw(axes, index)`; without any it says `empty`.

    `across` and `upward` label the axes of all panels; without `upward` each panel has ticks of its own.
    """
    count, columns = len(titles), min(len(titles), 2) or 1
    rows = -(-count // columns) or 1
    width_in = style.PAGE.get().width_in
    heads = [wrap_text(head, (width_in - 0.5) / columns - 0.1) for head in titles]
    head_in = 0.12 * max((head.count("\n") for head in heads), default=0)
    figure = make_sheet(title, rows * (high_in + 0.2 + head_in) + 0.55)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[max(count, 1) :]:
        axes.remove()
    if not titles:
        draw_empty(grid[0], empty)
        return finish_sheet(figure, notes, key)
    for k, head in enumerate(heads):
        draw(grid[k], k)
        grid[k].tick_params(labelbottom=k + columns >= count, labelleft=not upward or k % columns == 0)
        grid[k].set_title(head)
        if k + columns >= count:
            grid[k].set_xlabel(wrap_text(across, (width_in - 0.5) / columns))
        if k % columns == 0:
            grid[k].set_ylabel(wrap_text(upward, high_in + 0.2))
    return finish_sheet(figure, notes, key)


def percent_band(rates: Sequence[Rate]) -> NDArray[np.float64]:
    """Return value, low and high end of each rate in percent, [3, n]; NaN where it is unknown."""
    ends = [(nan,) * 3 if rate.value is None else (rate.value, *(rate.ci or (0.0, 1.0))) for rate in rates]
    return 100 * np.array(ends).T


def judged_by_policy(scores: Scores) -> dict[str, NDArray[np.bool_]]:
    """Return policy -> whether each episode is a judged one of it, [E], in order of first appearance."""
    names = np.array([policy or UNNAMED for policy in scores.policy], dtype=object)
    return {name: scores.is_judged & (names == name) for name in dict.fromkeys(names.tolist())}


def series_signs(names: Sequence[str], room_in: float) -> tuple[tuple[str, ...], bool]:
    """Return the sign of each name in a panel, names or else numbers, and whether a key must explain it."""
    shown = tuple(map(style.drawable_text, names))
    if all(len(name) <= count_characters(room_in) for name in shown):
        return shown, False
    return tuple(str(k + 1) for k in range(len(names))), True


def format_episode_range(counts: Sequence[int]) -> str:
    """Return the number of episodes, with the least and the most if they differ: "40 to 200 episodes"."""
    least, most = min(counts), max(counts)
    range_text = str(least) if least == most else f"{least} to {most}"
    return f"{range_text} episode{'' if most == 1 else 's'}"
