"""Runs of a series as geometry: their places across, which the figure shares, and charts for the page.

On the page, positions across are percent for marks and thousandths for lines; down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from safevla_bench.compare.series import SeriesComparison, SeriesCurve, SeriesPoint
from safevla_bench.report.sweep_charts import BOTTOM, HEIGHT, TOP, series_style
from safevla_bench.text import format_compact, format_fixed

PANELS = (("SR (%)", "sr", 100.0), ("Safety (%)", "safety", 100.0), ("SBU (%)", "sbu", 100.0), ("VSI", "vsi", 1.0))
"""Title, name and greatest value of each panel."""
POOLED = "all suites"
_LOG_SPAN = 50
"""From this ratio of the greatest number to the least on, the axis is logarithmic."""
_CHARACTER, _SPACE = 0.055, 0.05
"""Room of a tick's character, and between two ticks, as shares of the panel's width."""


@dataclass(frozen=True, slots=True)
class SeriesMark:
    """One run in one panel: its number across, its value and 95 % interval."""

    label: float
    value: float
    low: float
    high: float


def curve_marks(curve: SeriesCurve, name: str) -> tuple[SeriesMark, ...]:
    """Return a mark for each run in which the number `name` (sr, safety, sbu, vsi) is known; rates in percent.

    A value without an interval is its own interval.
    """
    scale = 1.0 if name == "vsi" else 100.0
    estimates = [(point, getattr(point, name)) for point in curve.points]
    return tuple(
        _make_mark(point, number.value, number.ci, scale) for point, number in estimates if number.value is not None
    )


def _make_mark(point: SeriesPoint, value: float, ends: tuple[float, float] | None, scale: float) -> SeriesMark:
    low, high = ends or (value, value)
    return SeriesMark(point.label, scale * value, scale * low, scale * high)


@dataclass(frozen=True, slots=True)
class SeriesAxis:
    """The numbers of all runs, rising, which every panel shows across."""

    labels: tuple[float, ...]

    @classmethod
    def of_curves(cls, curves: Sequence[SeriesCurve]) -> SeriesAxis:
        """Return the axis of some curves."""
        return cls(tuple(sorted({point.label for curve in curves for point in curve.points})))

    @property
    def is_logarithmic(self) -> bool:
        """True if the numbers are positive and lie so far apart that a linear axis would press the first together."""
        return bool(self.labels) and self.labels[0] > 0 and self.labels[-1] >= _LOG_SPAN * self.labels[0]

    def share(self, label: float) -> float:
        """Return the place of a number from 0, the first, to 1, the last; 0.5 where all numbers are equal."""
        first, last = (self._place(end) for end in (self.labels[0], self.labels[-1]))
        return (self._place(label) - first) / (last - first) if last > first else 0.5

    def _place(self, label: float) -> float:
        return math.log(label) if self.is_logarithmic else label

    @property
    def ticks(self) -> tuple[float, ...]:
        """The numbers to write below: the first, the last, and those between that have room; () without runs."""
        chosen = list(self.labels[:1])
        for label in self.labels[1:-1]:
            if self._has_room(chosen[-1], label) and self._has_room(label, self.labels[-1]):
                chosen.append(label)
        return (*chosen, *self.labels[1:][-1:])

    def _has_room(self, left: float, right: float) -> bool:
        text = (len(format_label(left)) + len(format_label(right))) / 2 * _CHARACTER
        return self.share(right) - self.share(left) >= text + _SPACE


def format_label(label: float) -> str:
    """Return a number as a tick shows it: thousands as k, millions as M, where one decimal is exact.

    >>> format_label(20000.0), format_label(1500000.0), format_label(0.5), format_label(1234.0)
    ('20k', '1.5M', '0.5', '1234')
    """
    for factor, sign in ((1e6, "M"), (1e3, "k")):
        scaled = label / factor
        if abs(scaled) >= 1 and round(scaled, 1) == scaled:
            return f"{format_compact(scaled)}{sign}"
    return format_compact(label)


# Charts of the page

_ROOM = 0.06
"""Free share of a chart's width on either side, for the marks at the ends."""
_DODGE = 0.018
"""Distance between the marks of neighbouring series at the same number, as a share of the width."""


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A run's mark: its place across in percent, and its value and interval down."""

    at: str
    down: str
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One series: its colour and dash, the path from run to run, and the marks."""

    style: str
    path: str
    marks: tuple[ChartMark, ...]


@dataclass(frozen=True, slots=True)
class SeriesChart:
    """One number of one suite against the numbers of the runs, with grid lines and ticks."""

    title: str
    lines: tuple[ChartLine, ...]
    grid: tuple[tuple[str, str], ...]
    """Text and place, in pixels."""
    ticks: tuple[tuple[str, str], ...]
    """Text and place, in percent."""
    description: str
    """The values in words."""
    height: int = HEIGHT
    top: int = TOP
    bottom: int = BOTTOM


def draw_series_charts(compared: SeriesComparison) -> dict[str, list[SeriesChart]]:
    """Return suite -> its charts of SR, Safety, SBU and VSI.

    Where some series has several suites, the last key is `all suites`: their episodes pooled.
    """
    return {
        suite or POOLED: [_draw_chart(compared, compared.select_suite(suite), *panel) for panel in PANELS]
        for suite in compared.suites
    }


def _draw_chart(
    compared: SeriesComparison, curves: Sequence[SeriesCurve], title: str, name: str, top: float
) -> SeriesChart:
    """Return a chart of the number `name` of these curves, from 0 to `top`; the axis across is that of all suites."""
    axis = SeriesAxis.of_curves(compared.curves)
    marked_curves = [(curve, curve_marks(curve, name)) for curve in curves]
    halves = (top, top / 2, 0.0)
    return SeriesChart(
        title=title,
        lines=tuple(_draw_line(axis, compared.series, curve, marks, top) for curve, marks in marked_curves),
        grid=tuple((format_compact(value), _format_down(value, top)) for value in halves),
        ticks=tuple((format_label(tick), format_fixed(100 * _place(axis, tick), 2)) for tick in axis.ticks),
        description="; ".join(_describe_marks(curve, marks) for curve, marks in marked_curves),
    )


def _draw_line(
    axis: SeriesAxis, names: Sequence[str], curve: SeriesCurve, marks: Sequence[SeriesMark], top: float
) -> ChartLine:
    """Return one series as line and marks, moved a little sideways by its place among the series `names`.

    The path is "" for fewer than two runs; `top` is the value at the top of the chart.
    """
    series = names.index(curve.series)
    shares = [_place(axis, mark.label) + _DODGE * (series - (len(names) - 1) / 2) for mark in marks]
    downs = [_format_down(mark.value, top) for mark in marks]
    places = [f"{format_fixed(1000 * share, 1)},{down}" for share, down in zip(shares, downs, strict=True)]
    return ChartLine(
        style=series_style(series),
        path=f"M{' '.join(places)}" if len(places) > 1 else "",
        marks=tuple(
            ChartMark(
                at=format_fixed(100 * share, 2),
                down=down,
                low=_format_down(mark.low, top),
                high=_format_down(mark.high, top),
            )
            for mark, share, down in zip(marks, shares, downs, strict=True)
        ),
    )


def _place(axis: SeriesAxis, label: float) -> float:
    return _ROOM + (1 - 2 * _ROOM) * axis.share(label)


def _format_down(value: float, top: float) -> str:
    return format_fixed(BOTTOM - (BOTTOM - TOP) * value / top, 1)


def _describe_marks(curve: SeriesCurve, marks: Sequence[SeriesMark]) -> str:
    values = ", ".join(f"{format_compact(round(mark.value, 3))} at {format_compact(mark.label)}" for mark in marks)
    return f"{curve.series or 'runs'}: {values or 'not known'}"
