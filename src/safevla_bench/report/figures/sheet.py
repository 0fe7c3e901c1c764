"""The sheet that a figure is drawn on: title, panels, notes and a key, laid out in inches from measured text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from safevla_bench.report.figures.style import (
    BODY,
    INK,
    MUTED,
    SMALL,
    TINT,
    WIDTH_IN,
    colour,
    dash,
    marker,
    plain,
    width_pt,
    wrapped,
)

_MARGIN_IN = 0.06
_LEADING = 1.3
_TITLE = 8.0
_MARK_IN = 0.24
"""Room for the mark of a key's entry."""
_KEYED = 6.6
"""The size of text whose lines are as far apart as those of the key."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the key: a name with the mark and the line of its series; `sign` stands for it in the panels."""

    name: str
    series: int
    sign: str = ""
    marked: bool = True
    lined: bool = False
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure, and where its panels go: inches from the left and the bottom."""

    figure: Figure
    bottom_in: float
    top_in: float
    width_in: float

    def panel(self, left_in: float, bottom_in: float, width_in: float, height_in: float) -> Axes:
        """Axes at a place within the body, counted from its lower left corner."""
        high = self.figure.get_figheight()
        place = (
            left_in / self.width_in,
            (self.bottom_in + bottom_in) / high,
            width_in / self.width_in,
            height_in / high,
        )
        return self.figure.add_axes(place)

    def write(self, x_in: float, y_in: float, text: str, size: float = BODY, **how: object) -> None:
        """Text at a place within the body."""
        x, y = x_in / self.width_in, (self.bottom_in + y_in) / self.figure.get_figheight()
        self.figure.text(x, y, plain(text), fontsize=size, **how)  # type: ignore[arg-type]


def sheet(title: str, body_in: float, *, notes: Sequence[str] = (), key: Sequence[Entry] = ()) -> Sheet:
    """A sheet with room for panels of a height; its own height follows from title, notes and key."""
    room_pt = 72 * (WIDTH_IN - 2 * _MARGIN_IN)
    heading = wrapped(plain(title), room_pt, _TITLE, "bold")
    below = [line for note in notes for line in wrapped(plain(note), room_pt, SMALL)]
    keyed = [_key_lines(entry, room_pt) for entry in key]
    head_in, note_in = len(heading) * _line_in(_TITLE) + 0.06, len(below) * _line_in(SMALL)
    columns = _columns(keyed, key, room_pt)
    key_in = sum(_row_heights(keyed, columns))
    height = _MARGIN_IN + note_in + (0.04 if key else 0) + key_in + 0.06 + body_in + head_in + _MARGIN_IN
    made = Sheet(Figure(figsize=(WIDTH_IN, height)), _MARGIN_IN + note_in + (0.04 if key else 0) + key_in + 0.06,
                 height - _MARGIN_IN - head_in, WIDTH_IN)  # fmt: skip
    _lines(made, heading, height - _MARGIN_IN, _TITLE, weight="bold", color=INK)
    _lines(made, below, _MARGIN_IN + note_in, SMALL, color=MUTED)
    _key(made, key, keyed, columns, _MARGIN_IN + note_in + 0.04 + key_in)
    return made


def _line_in(size: float) -> float:
    return size * _LEADING / 72


def _lines(on: Sheet, lines: Sequence[str], top_in: float, size: float, **how: object) -> None:
    for k, line in enumerate(lines):
        on.write(_MARGIN_IN, top_in - k * _line_in(size) - on.bottom_in, line, size, va="top", ha="left", **how)


def _key_lines(entry: Entry, room_pt: float) -> list[str]:
    sign = f"{entry.sign}  " if entry.sign else ""
    return wrapped(plain(sign + entry.name), room_pt - 72 * _MARK_IN, SMALL)


def _columns(keyed: Sequence[Sequence[str]], key: Sequence[Entry], room_pt: float) -> int:
    """As many columns, up to three, as the widest entry leaves room for."""
    widest = max((width_pt(line, SMALL) for lines in keyed for line in lines), default=0.0) + 72 * _MARK_IN + 6
    return max(1, min(3, len(key), int(room_pt // widest))) if keyed else 1


def _row_heights(keyed: Sequence[Sequence[str]], columns: int) -> list[float]:
    rows = [keyed[k : k + columns] for k in range(0, len(keyed), columns)]
    return [max(len(lines) for lines in row) * _line_in(_KEYED) for row in rows]


def _key(on: Sheet, key: Sequence[Entry], keyed: Sequence[Sequence[str]], columns: int, top_in: float) -> None:
    heights = _row_heights(keyed, columns)
    wide = (WIDTH_IN - 2 * _MARGIN_IN) / columns
    for k, (entry, lines) in enumerate(zip(key, keyed, strict=True)):
        row, column = divmod(k, columns)
        left, top = _MARGIN_IN + column * wide, top_in - sum(heights[:row])
        _mark(on, entry, left + _MARK_IN / 2 - 0.02, top - _line_in(_KEYED) / 2)
        for number, line in enumerate(lines):
            y = top - (number + 0.5) * _line_in(_KEYED) - on.bottom_in
            on.write(left + _MARK_IN, y, line, SMALL, va="center_baseline")


def _mark(on: Sheet, entry: Entry, x_in: float, y_in: float) -> None:
    ink = entry.colour or colour(entry.series)
    width, height = on.width_in, on.figure.get_figheight()
    half = 0.09 if entry.lined else 0.0
    line = Line2D(
        [(x_in - half) / width, (x_in + half) / width] if entry.lined else [x_in / width],
        [y_in / height] * (2 if entry.lined else 1),
        color=ink,
        linestyle=dash(entry.series) if entry.lined else "none",
        linewidth=1.2,
        transform=on.figure.transFigure,
    )
    on.figure.add_artist(line)
    if entry.marked:
        spot = Line2D([x_in / width], [y_in / height], color=ink, marker=marker(entry.series), markersize=4.5,
                      linestyle="none", transform=on.figure.transFigure)  # fmt: skip
        on.figure.add_artist(spot)


def nothing(axes: Axes, why: str) -> None:
    """An empty panel that says why it is empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_facecolor(TINT)
    lines = wrapped(plain(why), 72 * axes.get_position().width * WIDTH_IN * 0.9)
    axes.text(0.5, 0.5, "\n".join(lines), transform=axes.transAxes, ha="center", va="center", color=MUTED)


def grid(axes: Axes) -> None:
    """Pale lines behind everything else."""
    axes.set_axisbelow(True)
    axes.grid(True)


def signs(names: Sequence[str], room_pt: float) -> tuple[tuple[str, ...], bool]:
    """What stands for each name in a panel, and whether a key must explain it: numbers where not all names fit."""
    if all(width_pt(plain(name)) <= room_pt for name in names):
        return tuple(plain(name) for name in names), False
    return tuple(str(k + 1) for k in range(len(names))), True


def episodes(counts: Sequence[int]) -> str:
    """How many episodes, from the least to the most where they differ: "1 episode", "40 to 200 episodes"."""
    least, most = min(counts), max(counts)
    many = str(least) if least == most else f"{least} to {most}"
    return f"{many} episode{'' if most == 1 else 's'}"


def cut(text: str, room_pt: float) -> str:
    """As much of a text as there is room for."""
    if width_pt(plain(text)) <= room_pt:
        return text
    text = plain(text)
    while text and width_pt(plain(text) + "…") > room_pt:
        text = text[:-1]
    return text + "…"
