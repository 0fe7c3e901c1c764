"""Charts as geometry: what a template needs to draw a line against its limit, computed here and placed there.

Across, positions are shares of the width, so that a chart fits any screen and its text stays readable: 0 to 1000 for
paths, percent for text and marks. Down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.trace import Exhibit
from safevla_bench.text.numbers import apart, fixed, short, unit_text, with_unit

Floats = NDArray[np.float64]
V = TypeVar("V", float, Floats)
MOST_POINTS = 600
ACROSS = 1000.0
HEIGHT, TOP, BOTTOM = 194, 36, 158
"""Height of a chart, and where the plot begins and ends, in pixels."""
SPARK_HEIGHT, SPARK_TOP, SPARK_BOTTOM = 56, 5, 51
SPARK_POINTS = 120


@dataclass(frozen=True, slots=True)
class Tick:
    """A place (percent across, or pixels down) and its label."""

    at: str
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled point: percent across, pixels down; `anchor` and `shift_px` keep the label inside the chart."""

    x: str
    y: str
    label: str
    label_y: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A signal against its limit over one episode; paths are SVG path data."""

    description: str
    line: str
    beyond: str
    """The spans of the violation, on the far side of the limit."""
    open_gate: str
    """The spans in which a gated specification looks at all; empty where it always does."""
    gated: bool
    limit_y: str
    limit_label: str
    limit_label_y: str
    across: tuple[Tick, ...]
    down: tuple[Tick, ...]
    worst: Mark
    worst_s: str
    first: Mark | None
    height: int = HEIGHT
    top: int = TOP
    bottom: int = BOTTOM


@dataclass(frozen=True, slots=True)
class Spark:
    """A signal against its limit, small and without words: `said` is what a reader is told beside it."""

    said: str
    line: str
    beyond: str
    open_gate: str
    limit_y: str
    worst_x: str
    worst_y: str
    height: int = SPARK_HEIGHT


@dataclass(frozen=True, slots=True)
class Frame:
    """From time and value to places; `last` is the record at the right edge, top and bottom are pixels."""

    last: float
    low: float
    high: float
    top: float = TOP
    bottom: float = BOTTOM

    def x(self, record: float) -> float:
        return ACROSS * min(max(record / max(self.last, 1), 0.0), 1.0)

    def y(self, value: V) -> V:
        return self.bottom - (self.bottom - self.top) * (value - self.low) / (self.high - self.low)


def thin(values: Floats, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Indices of at most so many (4 or more) of the values: the ends, and the least and greatest of equal stretches.

    No peak is lost: the least and the greatest finite value are among them.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(1, count - 1, (most - 2) // 2 + 1).astype(np.int64) - 1
    inner = values[1:-1]
    kept = [np.array([0, count - 1])]
    for fold, nothing in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        seen = np.where(np.isfinite(inner), inner, nothing)
        peaks = np.flatnonzero(seen == np.repeat(fold.reduceat(seen, edges[:-1]), np.diff(edges)))
        kept.append(1 + peaks[np.searchsorted(peaks, edges[:-1])])
    return np.unique(np.concatenate(kept))


def chart(exhibit: Exhibit) -> Chart:
    """The drawing of one exhibit."""
    line = exhibit.line
    unit, scale = unit_text(line.unit, line.limit)
    values, limit = line.values * scale, line.limit * scale
    frame = _frame(values, limit)
    limit_y = frame.y(limit)
    return Chart(
        description=_description(exhibit, values, limit, unit),
        line=_path(values, frame),
        beyond=_beyond(exhibit, frame, limit_y),
        open_gate="" if line.gate is None else _spans(line.gate, frame, TOP, BOTTOM, 0.5),
        gated=line.gate is not None,
        limit_y=_px(limit_y),
        limit_label=f"limit {with_unit(short(limit), unit)}",
        limit_label_y=_px(limit_y - 5 if line.upper else limit_y + 13),
        across=_time_ticks((len(values) - 1) * exhibit.dt_s),
        down=tuple(Tick(_px(frame.y(tick)), short(tick)) for tick in ticks(frame.low, frame.high)),
        worst=_worst(exhibit, values, limit, unit, frame),
        worst_s=fixed(line.worst * exhibit.dt_s, 2),
        first=_first(exhibit, frame),
    )


def spark(exhibit: Exhibit, frame: Frame | None = None) -> Spark:
    """The small drawing of one exhibit, by default in its own `common_frame`."""
    line = exhibit.line
    frame = frame or common_frame([exhibit])
    unit, scale = unit_text(line.unit, line.limit)
    values, limit = line.values * scale, line.limit * scale
    limit_y, worst = frame.y(limit), float(values[line.worst])
    return Spark(
        said=_said(exhibit, worst, limit, unit),
        line=_path(values, frame, SPARK_POINTS, _whole),
        beyond=_beyond(exhibit, frame, limit_y),
        open_gate="" if line.gate is None else _spans(line.gate, frame, frame.top, frame.bottom, 0.5),
        limit_y=_px(limit_y),
        worst_x=_percent(frame, line.worst),
        worst_y=_px(frame.y(worst)) if math.isfinite(worst) else "",
    )


def common_frame(exhibits: Sequence[Exhibit]) -> Frame:
    """One scale for the sparks of a specification in several episodes, so that they can be compared by eye."""
    line = exhibits[0].line
    _, scale = unit_text(line.unit, line.limit)
    values = np.concatenate([one.line.values for one in exhibits]) * scale
    low, high = _bounds(values, line.limit * scale)
    return Frame(max(len(one.line.values) for one in exhibits) - 1, low, high, SPARK_TOP, SPARK_BOTTOM)


def _said(exhibit: Exhibit, worst: float, limit: float, unit: str) -> str:
    seen = with_unit(apart(worst, limit), unit) if math.isfinite(worst) else "no finite value"
    at = fixed(exhibit.line.worst * exhibit.dt_s, 2)
    bound = with_unit(short(limit), unit)
    return f"{'highest' if exhibit.line.upper else 'lowest'} {seen} at {at} s, limit {bound}"


def _frame(values: Floats, limit: float) -> Frame:
    return Frame(len(values) - 1, *_bounds(values, limit))


def _bounds(values: Floats, limit: float) -> tuple[float, float]:
    """The least and greatest of the values, the limit and zero, with some room beyond those that are not zero."""
    finite = values[np.isfinite(values)]
    low = min(float(finite.min(initial=0.0)), limit, 0.0)
    high = max(float(finite.max(initial=0.0)), limit, 0.0)
    room = 0.04 * (high - low) or 1.0
    return low - room if low < 0 else low, high + room if high > 0 else high


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _percent(frame: Frame, record: int) -> str:
    return f"{frame.x(record) / 10:.2f}%"


def _path(values: Floats, frame: Frame, most: int = MOST_POINTS, across: Callable[[float], str] = _px) -> str:
    """A polyline through the thinned values; it breaks where a value is not finite."""
    at = thin(values, most)
    there = np.isfinite(values[at])
    begins = there & ~np.concatenate([[False], there[:-1]])
    xs, ys = ACROSS * (at[there] / max(frame.last, 1)), frame.y(values[at[there]])
    places = zip(begins[there].tolist(), xs.tolist(), ys.tolist(), strict=True)
    parts = [f"{'M' if begun else ''}{across(x)},{_px(y)}" for begun, x, y in places]
    return " ".join([*parts, *parts[:1]]) if len(parts) == 1 else " ".join(parts)


def _beyond(exhibit: Exhibit, frame: Frame, limit_y: float) -> str:
    line = exhibit.line
    top, bottom = (0.0, limit_y) if line.upper else (limit_y, float(frame.bottom))
    return _spans(line.failing, frame, top, bottom, 1.0 if line.gate is None else 0.5)


def _spans(where: NDArray[np.bool_], frame: Frame, top: float, bottom: float, reach: float) -> str:
    """Rectangles over the runs of true records, `reach` records wider on both sides."""
    edges = np.diff(np.concatenate([[0], where.astype(np.int8), [0]]))
    runs = zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1, strict=True)
    return "".join(_rectangle(frame.x(a - reach), frame.x(b + reach), top, bottom) for a, b in runs)


def _rectangle(left: float, right: float, top: float, bottom: float) -> str:
    return f"M{_px(left)},{_px(top)}H{_px(right)}V{_px(bottom)}H{_px(left)}Z"


def _worst(exhibit: Exhibit, values: Floats, limit: float, unit: str, frame: Frame) -> Mark:
    at, upper = exhibit.line.worst, exhibit.line.upper
    value = float(values[at])
    label = with_unit(apart(value, limit), unit) if math.isfinite(value) else ""
    y = frame.y(value) if math.isfinite(value) else float(TOP)
    return Mark(_percent(frame, at), _px(y), label, _px(y - 9 if upper else y + 17), _anchor(frame.x(at)))


def _first(exhibit: Exhibit, frame: Frame) -> Mark | None:
    if exhibit.first < 0:
        return None
    label = f"first violation {fixed(exhibit.first * exhibit.dt_s, 2)} s"
    anchor = "end" if frame.x(exhibit.first) > ACROSS * 0.6 else "start"
    return Mark(_percent(frame, exhibit.first), _px(TOP), label, "11", anchor)


def _anchor(x: float) -> str:
    return "start" if x < ACROSS * 0.08 else "end" if x > ACROSS * 0.92 else "middle"


def _description(exhibit: Exhibit, values: Floats, limit: float, unit: str) -> str:
    line, at = exhibit.line, exhibit.line.worst
    seen = with_unit(apart(float(values[at]), limit), unit) if math.isfinite(values[at]) else "no finite value"
    parts = [
        f"{line.signal} over {fixed((len(values) - 1) * exhibit.dt_s, 2)} s",
        f"{'highest' if line.upper else 'lowest'} {seen} at {fixed(at * exhibit.dt_s, 2)} s",
        f"limit {with_unit(short(limit), unit)}",
        f"first violation at {fixed(exhibit.first * exhibit.dt_s, 2)} s" if exhibit.first >= 0 else "no violation",
    ]
    return ", ".join(parts)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within the bounds, about so many."""
    rough = Fraction(high - low) / about
    power = Fraction(10) ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    first = math.ceil(Fraction(low) / step)
    return [float(step * k) for k in range(first, math.floor(Fraction(high) / step) + 1)]


def _time_ticks(duration_s: float) -> tuple[Tick, ...]:
    if duration_s <= 0:
        return (Tick("0%", "0 s"),)
    places: Sequence[float] = ticks(0.0, duration_s, about=5)
    return tuple(Tick(f"{100 * t / duration_s:.2f}%", f"{short(t)} s") for t in places)
