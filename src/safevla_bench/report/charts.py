"""Charts as geometry: the places of lines, ticks and labels, computed here and put into a template there.

Across, positions are shares of the width, so that a chart fits any screen and its text stays readable: 0 to 1000 for
paths, percent for text and marks. Down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.episode import SpecTrace
from safevla_bench.text import append_unit, display_unit, format_against_limit, format_compact, format_fixed

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
class PointLabel:
    """A labelled point: percent across, pixels down; `anchor` and `label_y` keep the label inside the chart."""

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
    """The spans in which the gate of a specification is open; empty without a gate."""
    gated: bool
    limit_y: str
    limit_label: str
    limit_label_y: str
    across: tuple[Tick, ...]
    down: tuple[Tick, ...]
    worst: PointLabel
    worst_s: str
    first: PointLabel | None
    height: int = HEIGHT
    top: int = TOP
    bottom: int = BOTTOM


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A signal against its limit, small and without text; `caption` is the text beside it."""

    caption: str
    line: str
    beyond: str
    open_gate: str
    limit_y: str
    worst_x: str
    worst_y: str
    height: int = SPARK_HEIGHT


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The map from record and value to places; `last` is the record at the right edge, top and bottom are in pixels."""

    last: float
    low: float
    high: float
    top: float = TOP
    bottom: float = BOTTOM

    def x(self, record: float) -> float:
        """Return the place of a record across, 0 to 1000; records outside the area are put on its edge."""
        return ACROSS * min(max(record / max(self.last, 1), 0.0), 1.0)

    def y(self, value: V) -> V:
        """Return the place of a value, or of each of an array, down, in pixels; not clipped."""
        return self.bottom - (self.bottom - self.top) * (value - self.low) / (self.high - self.low)


def thin_indices(values: Floats, max_points: int = MOST_POINTS) -> NDArray[np.int64]:
    """Return at most `max_points` (4 or more) indices: both ends, and the extremes of equal stretches.

    No peak is lost: the least and the greatest finite value are among them. Up to `max_points` values keep all indices.
    """
    count = len(values)
    if count <= max_points:
        return np.arange(count)
    edges = np.linspace(1, count - 1, (max_points - 2) // 2 + 1).astype(np.int64) - 1
    inner = values[1:-1]
    index_sets = [np.array([0, count - 1])]
    for fold, nothing in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        finite = np.where(np.isfinite(inner), inner, nothing)
        peaks = np.flatnonzero(finite == np.repeat(fold.reduceat(finite, edges[:-1]), np.diff(edges)))
        index_sets.append(1 + peaks[np.searchsorted(peaks, edges[:-1])])
    return np.unique(np.concatenate(index_sets))


def draw_chart(spec_trace: SpecTrace) -> Chart:
    """Return the chart of one specification in one episode."""
    signal_trace = spec_trace.signal_trace
    unit, scale = display_unit(signal_trace.unit, signal_trace.limit)
    values, limit = signal_trace.values * scale, signal_trace.limit * scale
    area = PlotArea(len(values) - 1, *_value_bounds(values, limit))
    limit_y = area.y(limit)
    return Chart(
        description=_describe_chart(spec_trace, values, limit, unit),
        line=_polyline_path(values, area),
        beyond=_violation_path(spec_trace, area, limit_y),
        open_gate="" if signal_trace.gate is None else _rectangles(signal_trace.gate, area, TOP, BOTTOM, 0.5),
        gated=signal_trace.gate is not None,
        limit_y=_format_px(limit_y),
        limit_label=f"limit {append_unit(format_compact(limit), unit)}",
        limit_label_y=_format_px(limit_y - 5 if signal_trace.upper else limit_y + 13),
        across=_time_ticks((len(values) - 1) * spec_trace.dt_s),
        down=tuple(Tick(_format_px(area.y(tick)), format_compact(tick)) for tick in round_ticks(area.low, area.high)),
        worst=_worst_label(spec_trace, values, limit, unit, area),
        worst_s=format_fixed(signal_trace.worst * spec_trace.dt_s, 2),
        first=_first_violation_label(spec_trace, area),
    )


def draw_sparkline(spec_trace: SpecTrace, area: PlotArea | None = None) -> Sparkline:
    """Return the sparkline of one specification in one episode, drawn in `area`, by default the trace's own."""
    signal_trace = spec_trace.signal_trace
    area = area or common_area([spec_trace])
    unit, scale = display_unit(signal_trace.unit, signal_trace.limit)
    values, limit = signal_trace.values * scale, signal_trace.limit * scale
    limit_y, worst = area.y(limit), float(values[signal_trace.worst])
    return Sparkline(
        caption=f"{_describe_worst(spec_trace, worst, limit, unit)}, limit {append_unit(format_compact(limit), unit)}",
        line=_polyline_path(values, area, SPARK_POINTS, across_digits=0),
        beyond=_violation_path(spec_trace, area, limit_y),
        open_gate="" if signal_trace.gate is None else _rectangles(signal_trace.gate, area, area.top, area.bottom, 0.5),
        limit_y=_format_px(limit_y),
        worst_x=_format_across(area, signal_trace.worst),
        worst_y=_format_px(area.y(worst)) if math.isfinite(worst) else "",
    )


def common_area(spec_traces: Sequence[SpecTrace]) -> PlotArea:
    """Return the area of sparklines that fits one specification's traces, at least one, in display units."""
    signal_trace = spec_traces[0].signal_trace
    _, scale = display_unit(signal_trace.unit, signal_trace.limit)
    values = np.concatenate([spec_trace.signal_trace.values for spec_trace in spec_traces]) * scale
    low, high = _value_bounds(values, signal_trace.limit * scale)
    return PlotArea(
        max(len(spec_trace.signal_trace.values) for spec_trace in spec_traces) - 1, low, high, SPARK_TOP, SPARK_BOTTOM
    )


def _describe_worst(spec_trace: SpecTrace, worst: float, limit: float, unit: str) -> str:
    value = append_unit(format_against_limit(worst, limit), unit) if math.isfinite(worst) else "no finite value"
    worst_s = format_fixed(spec_trace.signal_trace.worst * spec_trace.dt_s, 2)
    return f"{'highest' if spec_trace.signal_trace.upper else 'lowest'} {value} at {worst_s} s"


def _value_bounds(values: Floats, limit: float) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low = min(float(finite.min(initial=0.0)), limit, 0.0)
    high = max(float(finite.max(initial=0.0)), limit, 0.0)
    if low == high:
        return 0.0, 1.0
    room = 0.04 * (high - low)
    return low - room if low < 0 else low, high + room if high > 0 else high


def _format_px(value: float) -> str:
    return f"{value:z.1f}".removesuffix(".0")


def _format_across(area: PlotArea, record: int) -> str:
    return f"{area.x(record) / 10:.2f}%"


def _polyline_path(values: Floats, area: PlotArea, max_points: int = MOST_POINTS, across_digits: int = 1) -> str:
    indices = thin_indices(values, max_points)
    is_finite = np.isfinite(values[indices])
    begins = is_finite & ~np.concatenate([[False], is_finite[:-1]])
    xs, ys = ACROSS * (indices[is_finite] / max(area.last, 1)), area.y(values[indices[is_finite]])
    places = zip(begins[is_finite].tolist(), xs.tolist(), ys.tolist(), strict=True)
    parts = [f"{'M' if begun else ''}{x:z.{across_digits}f},{y:z.1f} " for begun, x, y in places]
    path = "".join([*parts, *parts] if len(parts) == 1 else parts)
    return path.replace(".0,", ",").replace(".0 ", " ").removesuffix(" ")


def _violation_path(spec_trace: SpecTrace, area: PlotArea, limit_y: float) -> str:
    signal_trace = spec_trace.signal_trace
    top, bottom = (0.0, limit_y) if signal_trace.upper else (limit_y, float(area.bottom))
    return _rectangles(signal_trace.failing, area, top, bottom, 1.0 if signal_trace.gate is None else 0.5)


def _rectangles(where: NDArray[np.bool_], area: PlotArea, top: float, bottom: float, reach: float) -> str:
    high, low = _format_px(top), _format_px(bottom)
    spans = [(_format_px(area.x(a - reach)), _format_px(area.x(b + reach))) for a, b in true_runs(where)]
    return "".join(f"M{left},{high}H{right}V{low}H{left}Z" for left, right in spans)


def true_runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and last index of each run of True."""
    edges = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _worst_label(spec_trace: SpecTrace, values: Floats, limit: float, unit: str, area: PlotArea) -> PointLabel:
    """Return the point of the worst value with its label; at the top without a label where it is not finite."""
    record, upper = spec_trace.signal_trace.worst, spec_trace.signal_trace.upper
    value = float(values[record])
    label = append_unit(format_against_limit(value, limit), unit) if math.isfinite(value) else ""
    y = area.y(value) if math.isfinite(value) else float(TOP)
    return PointLabel(
        _format_across(area, record),
        _format_px(y),
        label,
        _format_px(y - 9 if upper else y + 17),
        _text_anchor(area.x(record)),
    )


def _first_violation_label(spec_trace: SpecTrace, area: PlotArea) -> PointLabel | None:
    if spec_trace.first < 0:
        return None
    label = f"first violation {format_fixed(spec_trace.first * spec_trace.dt_s, 2)} s"
    anchor = "end" if area.x(spec_trace.first) > ACROSS * 0.6 else "start"
    return PointLabel(_format_across(area, spec_trace.first), _format_px(TOP), label, "11", anchor)


def _text_anchor(x: float) -> str:
    return "start" if x < ACROSS * 0.08 else "end" if x > ACROSS * 0.92 else "middle"


def _describe_chart(spec_trace: SpecTrace, values: Floats, limit: float, unit: str) -> str:
    signal_trace, first_s = spec_trace.signal_trace, format_fixed(spec_trace.first * spec_trace.dt_s, 2)
    parts = [
        f"{signal_trace.signal} over {format_fixed((len(values) - 1) * spec_trace.dt_s, 2)} s",
        _describe_worst(spec_trace, float(values[signal_trace.worst]), limit, unit),
        f"limit {append_unit(format_compact(limit), unit)}",
        f"first violation at {first_s} s" if spec_trace.first >= 0 else "no violation",
    ]
    return ", ".join(parts)


def round_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return about `about` round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`, rising.

    `low` must be less than `high`; else `ValueError`.
    """
    rough = Fraction(high - low) / about
    power = Fraction(10) ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    first = math.ceil(Fraction(low) / step)
    return [float(step * k) for k in range(first, math.floor(Fraction(high) / step) + 1)]


def _time_ticks(duration_s: float) -> tuple[Tick, ...]:
    if duration_s <= 0:
        return (Tick("0%", "0 s"),)
    places: Sequence[float] = round_ticks(0.0, duration_s, about=5)
    return tuple(Tick(f"{100 * t / duration_s:.2f}%", f"{format_compact(t)} s") for t in places)
