"""Geometry of charts of signals: positions of lines, ticks and labels, which an HTML template draws.

Horizontal positions are relative, so that a chart fits any screen while its text stays readable: 0 to 1000 in paths,
percent for text and marks. Vertical positions are pixels from the top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.trace import TraceChart
from safevla_bench.text import format_compact
from safevla_recorder.episode import Bools, Floats, Ints

V = TypeVar("V", float, Floats)
MOST_POINTS = 600
ACROSS = 1000.0
HEIGHT, TOP, BOTTOM = 194, 36, 158  # height of a chart, and top and bottom of its plot, in pixels
SPARK_HEIGHT, SPARK_TOP, SPARK_BOTTOM = 56, 5, 51
SPARK_POINTS = 120
# Free space above the largest value and below the smallest value, as a fraction of the range of values.
_ROOM_SHARE = 0.04


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A chart of a signal and its limit over an episode, without text; `caption` is the text next to the chart. Three
    fields are SVG path data: `line` is the signal, `beyond` marks the area beyond the limit during violations, and
    `open_gate` marks the times when the specification's condition (gate) holds. `open_gate` is "" without a condition.
    """

    caption: str
    line: str
    beyond: str
    open_gate: str
    limit_y: str  # pixels from the top
    worst_x: str  # percent from the left
    worst_y: str  # pixels from the top; "" in a sparkline if the worst value is not finite
    height: int = SPARK_HEIGHT


@dataclass(frozen=True, slots=True)
class Chart(Sparkline):
    """A large chart with text. A tick is (position, label); positions are in percent (`across`) or pixels (`down`).
    `worst_label_y` and `worst_anchor` (the SVG attribute `text-anchor`) keep the label inside the chart.
    """

    limit_label: str = ""
    limit_label_y: str = ""
    across: tuple[tuple[str, str], ...] = ()
    down: tuple[tuple[str, str], ...] = ()
    worst_label: str = ""
    worst_label_y: str = ""
    worst_anchor: str = ""
    worst_s: str = ""


@dataclass(frozen=True, slots=True)
class PlotArea:
    """Converts records and values to positions. `last` is the index of the record at the right edge. `times_s` are the
    times of all records; None = equal intervals. The value `low` is at `bottom`, `high` at `top` [pixels].
    """

    last: int
    times_s: Floats | None
    low: float
    high: float
    top: float = TOP
    bottom: float = BOTTOM

    def x(self, record: float) -> float:
        """Return the horizontal position of a record, 0 to 1000. A record outside the chart is moved to an edge."""
        # `record` is an index, or a position between two records. `share` gives the record's position from 0 to 1.
        return ACROSS * min(max(float(self.share(record)), 0.0), 1.0)

    def share(self, record: NDArray[Any] | float) -> NDArray[Any] | float:
        """Return the horizontal position of a record (or of each record in an array), as a fraction of the width."""
        # `last` is the index of the last record, and `times_s` are the times of all records (None = equal intervals).
        # `max` avoids a division by zero if there is only one record.
        if self.times_s is None or not self.last:
            return record / max(self.last, 1)
        return np.asarray(np.interp(record, np.arange(self.last + 1), self.times_s / self.times_s[-1]))

    def y(self, value: V) -> V:
        """Return the vertical position [pixels] of a value (or of each value in an array); may be outside the chart."""
        # The value `low` is drawn at `bottom` and `high` at `top`; pixels are counted downwards.
        return self.bottom - (self.bottom - self.top) * (value - self.low) / (self.high - self.low)


def thin_indices(values: Floats, max_points: int = MOST_POINTS) -> Ints:
    """Return the indices of at most `max_points` (4 or more) values. If there are more values, keep the first and the
    last value, and the smallest and the largest finite value of each of several equal intervals.
    """
    count = len(values)
    if count <= max_points:
        return np.arange(count)
    # `inner_values` are all values except the first and the last, which are always kept.
    # `edges` are the indices in `inner_values` at which an interval begins or ends.
    # Two points are the ends, and each interval adds two: its minimum and its maximum.
    edges = np.linspace(1, count - 1, (max_points - 2) // 2 + 1).astype(np.int64) - 1
    inner_values = values[1:-1]
    index_sets = [np.array([0, count - 1])]
    for extreme, neutral in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        # A peak is a value that equals the minimum or maximum of its interval. Only each interval's first peak is kept.
        # `neutral` replaces values that are not finite, so that they are not taken as extremes.
        finite = np.where(np.isfinite(inner_values), inner_values, neutral)
        peaks = np.flatnonzero(finite == np.repeat(extreme.reduceat(finite, edges[:-1]), np.diff(edges)))
        # `peaks` is ascending, and `searchsorted` finds the first peak at or after the beginning of each interval.
        first_peaks = peaks[np.searchsorted(peaks, edges[:-1])]
        index_sets.append(first_peaks + 1)  # indices in `values` are greater by 1
    return np.unique(np.concatenate(index_sets))


def draw_chart(chart: TraceChart) -> Chart:
    """Return the chart of one specification in one episode; its caption describes the chart in words."""
    # The area reaches from record 0 to the last record; `bounds` gives the lowest and the highest value to show.
    area = PlotArea(len(chart.values) - 1, chart.times_s, *chart.bounds(_ROOM_SHARE))
    limit_y = area.y(chart.limit)
    return Chart(
        # `_label_worst` replaces `worst_y`, because a large chart marks the worst value even if it is not finite.
        **(_draw_paths(chart, area, MOST_POINTS, across_digits=1) | _label_worst(chart, area)),
        caption=_describe_chart(chart),
        height=HEIGHT,
        limit_label=f"limit {chart.limit_text}",
        # The label is on the forbidden side of the limit: above an upper limit, and below a lower limit.
        limit_label_y=_format_px(limit_y - 5 if chart.upper else limit_y + 13),
        # The ticks depend on the duration in seconds.
        across=_time_ticks(area.last * chart.dt_s if chart.times_s is None else float(chart.times_s[-1])),
        down=tuple((_format_px(area.y(tick)), format_compact(tick)) for tick in round_ticks(area.low, area.high)),
        worst_s=chart.format_time(chart.worst),
    )


def _draw_paths(chart: TraceChart, area: PlotArea, max_points: int, *, across_digits: int) -> dict[str, Any]:
    # Return the fields that a sparkline and a chart have in common, except `caption` and `height`.
    # In `chart`, `failing` marks the violating records, and `gate` the records in which the limit applies (None = all).
    # The line has at most `max_points` points; `across_digits` is the number of decimals of horizontal positions.
    worst_value, limit_y = float(chart.values[chart.worst]), area.y(chart.limit)
    # The forbidden area is above an upper limit, and below a lower limit.
    beyond_ys = (0.0, limit_y) if chart.upper else (limit_y, float(area.bottom))
    # A violation's rectangle extends to the neighboring records.
    # The rectangle extends only halfway to the neighboring records if the specification has a condition (gate).
    margin_records = 1.0 if chart.gate is None else 0.5
    return {
        "line": _polyline_path(chart.values, area, max_points, across_digits),
        "beyond": _rectangle_path(chart.failing, area, *beyond_ys, margin_records),
        "open_gate": "" if chart.gate is None else _rectangle_path(chart.gate, area, area.top, area.bottom, 0.5),
        "limit_y": _format_px(limit_y),
        "worst_x": f"{area.x(chart.worst) / 10:.2f}%",  # `x` is from 0 to 1000
        "worst_y": _format_px(area.y(worst_value)) if math.isfinite(worst_value) else "",
    }


def _describe_chart(chart: TraceChart) -> str:
    # Return the chart in words, for readers who do not see it. `chart.first` is the first violating record, or -1.
    first_text = f"first violation at {chart.format_time(chart.first)} s" if chart.first >= 0 else "no violation"
    span_text = f"{chart.signal} over {chart.format_time(len(chart.values) - 1)} s"
    return f"{span_text}, {chart.describe_worst()}, limit {chart.limit_text}, {first_text}"


def draw_sparkline(chart: TraceChart) -> Sparkline:
    """Return the sparkline (small chart without text) of one specification in one episode."""
    # The area reaches from record 0 to the last record; `bounds` gives the lowest and the highest value to show.
    area = PlotArea(len(chart.values) - 1, chart.times_s, *chart.bounds(_ROOM_SHARE), SPARK_TOP, SPARK_BOTTOM)
    caption = f"{chart.describe_worst()}, limit {chart.limit_text}"
    return Sparkline(caption, **_draw_paths(chart, area, SPARK_POINTS, across_digits=0))


def _format_px(value: float) -> str:
    # Return at most one decimal; `z` avoids the text -0.0.
    return f"{value:z.1f}".removesuffix(".0")


def _polyline_path(values: Floats, area: PlotArea, max_points: int, across_digits: int) -> str:
    # Return the SVG path of a line through the finite values, with a gap at each value that is not finite.
    # `across_digits` is the number of decimals of x; y has one decimal.
    indices = thin_indices(values, max_points)
    shown = indices[np.isfinite(values[indices])]
    # A line is interrupted at each value that is not finite, even if that value was thinned out.
    line_numbers = np.cumsum(~np.isfinite(values))[shown]
    begins_line, ends_line = np.diff(line_numbers, prepend=-1) != 0, np.diff(line_numbers, append=-1) != 0
    xs, ys = ACROSS * np.asarray(area.share(shown)), area.y(values[shown])
    path = ""
    for begins, ends, x, y in zip(begins_line.tolist(), ends_line.tolist(), xs.tolist(), ys.tolist(), strict=True):
        point = f"{x:z.{across_digits}f},{y:z.1f} "
        # A line starts with `M` (SVG).
        # A point between two gaps is repeated, because a line from a point to the same point is visible as a dot.
        path += ("M" if begins else "") + point + (point if begins and ends else "")
    # Without zeros after the decimal point, pages are smaller.
    return path.replace(".0,", ",").replace(".0 ", " ").removesuffix(" ")


def _rectangle_path(flags: Bools, area: PlotArea, top: float, bottom: float, margin_records: float) -> str:
    # Return the SVG path of a rectangle for each run of True flags; `top` and `bottom` are in pixels.
    # Each rectangle is wider than its run by `margin_records` on each side.
    top_px, bottom_px = _format_px(top), _format_px(bottom)
    spans = [
        (_format_px(area.x(first - margin_records)), _format_px(area.x(last + margin_records)))
        for first, last in true_runs(flags)
    ]
    return "".join(f"M{left},{top_px}H{right}V{bottom_px}H{left}Z" for left, right in spans)


def true_runs(flags: Bools) -> list[tuple[int, int]]:
    """Return the first and the last index of each run of consecutive True values."""
    # `changes` is 1 where a run begins, and -1 one position after its end; runs may touch the ends of the array.
    changes = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    firsts, lasts = np.flatnonzero(changes == 1), np.flatnonzero(changes == -1) - 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _label_worst(chart: TraceChart, area: PlotArea) -> dict[str, str]:
    # Return the positions of the mark and the label of the worst value (in record `chart.worst`), as fields of a chart.
    # If the worst value is not finite, the mark is at the top, and the label is empty.
    value, x = float(chart.values[chart.worst]), area.x(chart.worst)
    y = area.y(value) if math.isfinite(value) else float(TOP)
    # Near the edges of the chart, the label begins or ends at the point, so that it stays inside the chart.
    anchor = "middle"
    if x < ACROSS * 0.08:
        anchor = "start"
    elif x > ACROSS * 0.92:
        anchor = "end"
    return {
        "worst_y": _format_px(y),
        "worst_label": chart.format_value(chart.worst, missing=""),
        # The label is above the worst value if the limit is an upper limit, and below the value if it is a lower limit.
        "worst_label_y": _format_px(y - 9 if chart.upper else y + 17),
        "worst_anchor": anchor,
    }


def round_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return about `about` ascending round numbers from `low` to `high`, spaced by 1, 2 or 5 times a power of ten.
    Raises `ValueError` unless `low` is less than `high`.
    """
    # Fractions are exact, so that ticks such as 0.3 have no rounding error.
    least_step = Fraction(high - low) / about
    power_of_ten = Fraction(10) ** math.floor(math.log10(least_step))
    step = min(power_of_ten * k for k in (1, 2, 5, 10) if power_of_ten * k >= least_step)
    first_multiple = math.ceil(Fraction(low) / step)
    return [float(step * k) for k in range(first_multiple, math.floor(Fraction(high) / step) + 1)]


def _time_ticks(duration_s: float) -> tuple[tuple[str, str], ...]:
    # Return (position in % of the width, label) of each tick. A single record has only the tick at 0.
    if duration_s <= 0:
        return (("0%", "0 s"),)
    ticks_s = round_ticks(0.0, duration_s, about=5)
    return tuple((f"{100 * tick_s / duration_s:.2f}%", f"{format_compact(tick_s)} s") for tick_s in ticks_s)
