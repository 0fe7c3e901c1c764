"""Charts of the page as geometry: curves of a sweep, numbers along a series of runs, bars of differences.

Across, positions are thousandths of the width for paths and percent for marks; down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from safevla_bench.compare.comparison import Comparison
from safevla_bench.compare.difference import Difference
from safevla_bench.compare.series import NUMBERS, SeriesComparison, SeriesCurve
from safevla_bench.explain.exposure import ANY_LIMIT, VIOLATED, CellOnset, Incidence
from safevla_bench.judging.rates import SAFETY, SBU, SR, Metric, Rate
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdSweep
from safevla_bench.text import display_unit, format_amount, format_compact, format_fixed, format_significant

HEIGHT, TOP, BOTTOM = 132, 8, 112
SERIES = 8
"""Number of colours; further series repeat them with other dashes."""
MOST_BANDS = 3
"""Most policies with bands; those of more would hide one another."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One policy or series: its colour and dash, its path and band, and its runs' marks.

    A mark is its place across [%], and the places of its value and of both ends of its interval down [px].
    """

    style: str
    path: str
    band: str = ""
    marks: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CurveChart:
    """A number against a threshold or the numbers of runs; `description` has the values in words."""

    title: str
    lines: tuple[ChartLine, ...]
    grid: tuple[tuple[object, object], ...]
    """Text and place of each line across, in pixels from the top."""
    ticks: tuple[tuple[str, str], ...]
    """Text and place of each tick, in percent."""
    description: str
    height: int = HEIGHT
    top: int = TOP
    bottom: int = BOTTOM


def series_style(series: int) -> str:
    """Return the CSS classes of a series: `s0` to `s7` for its colour, from index 8 on `d1` or `d2` for its dash."""
    return f"s{series % SERIES}" + (f" d{min(series // SERIES, 2)}" if series >= SERIES else "")


# Sweeps


def draw_sweep_charts(sweeps: Sequence[ThresholdSweep], policies: Sequence[str]) -> dict[str, list[CurveChart]]:
    """Return suite -> its charts of Safety, one a sweep, on a logarithmic axis; suites without an episode are left out.

    The place of a policy in `policies` decides its colour and dash; `ValueError` if a curve's policy is not there.
    More than 3 policies have no bands.
    """
    suites = dict.fromkeys(curve.suite for sweep in sweeps for curve in sweep.curves if curve.n)
    return {suite: [_draw_sweep(sweep, suite, policies) for sweep in sweeps] for suite in suites}


def _draw_sweep(sweep: ThresholdSweep, suite: str, policies: Sequence[str]) -> CurveChart:
    curves = [curve for curve in sweep.curves if curve.suite == suite and curve.n]
    _, scale = display_unit(sweep.unit, sweep.default)
    low, high = (format_compact(float(format_significant(sweep.thresholds[k] * scale))) for k in (0, -1))
    default = format_amount(sweep.default, sweep.unit, sweep.default, format_compact)
    return CurveChart(
        title=sweep.name,
        lines=tuple(_sweep_line(curve, sweep.thresholds, policies) for curve in curves),
        grid=((100, TOP), (50, (TOP + BOTTOM) / 2), (0, BOTTOM)),
        ticks=((low, "0"), (default, "50%"), (high, "100%")),
        description="; ".join(
            f"{curve.policy or UNNAMED} {' to '.join(_format_safety(curve.points[k].safety) for k in (0, -1))}"
            for curve in curves
        ),
    )


def _sweep_line(curve: SensitivityCurve, thresholds: Sequence[float], policies: Sequence[str]) -> ChartLine:
    """Return one policy's curve; where its rate is unknown, the curve and its band have a gap."""
    first, last = math.log(thresholds[0]), math.log(thresholds[-1])
    across = [f"{1000 * ((math.log(value) - first) / (last - first)):.0f}" for value in thresholds]
    places = zip(across, (point.safety for point in curve.points), strict=True)
    path = band = ""
    for is_known, stretch in groupby(places, lambda place: place[1].value is not None):
        if is_known:
            known = [(x, (rate.value or 0.0, *(rate.ci or (0.0, 1.0)))) for x, rate in stretch]
            points, lower, upper = ([f"{x},{_format_share(ends[k])}" for x, ends in known] for k in range(3))
            path += f"M{' '.join(points)}{'h4' if len(points) == 1 else ''}"
            band += f"M{' '.join([*upper, *reversed(lower)])}Z"
    return ChartLine(
        style=series_style(policies.index(curve.policy or UNNAMED)),
        path=path,
        band=band if len(policies) <= MOST_BANDS else "",
    )


def _format_share(share: float) -> str:
    return f"{BOTTOM - (BOTTOM - TOP) * (100 * share) / 100:z.1f}".removesuffix(".0")


def _format_safety(rate: Rate) -> str:
    return "unknown" if rate.value is None else f"{SAFETY.format(rate.value)} %"


# Series of runs

POOLED = "all suites"
_LOG_SPAN = 50
"""From this ratio of the greatest number to the least on, the axis is logarithmic."""
_CHARACTER, _SPACE = 0.055, 0.05
"""Room of a tick's character, and between two ticks, as shares of the panel's width."""
_ROOM = 0.06
"""Free share of a chart's width on either side, for the marks at the ends."""
_DODGE = 0.018
"""Distance between the marks of neighbouring series at the same number, as a share of the width."""


@dataclass(frozen=True, slots=True)
class SeriesMark:
    """One run in one panel: its number across, its value and 95 % interval."""

    label: float
    value: float
    low: float
    high: float


def panel_title(metric: Metric) -> str:
    """Return the title of a metric's panel: its label, with the unit in parentheses."""
    return f"{metric.label} ({metric.unit})" if metric.unit else metric.label


def curve_marks(curve: SeriesCurve, metric: Metric) -> list[SeriesMark]:
    """Return a mark for each run in which the metric is known, in the unit printed; rates in percent.

    A value without an interval is its own interval.
    """
    marks = []
    for point in curve.points:
        number = point.numbers[metric]
        if number.value is not None:
            low, high = number.ci or (number.value, number.value)
            marks.append(SeriesMark(point.label, *(metric.scale * end for end in (number.value, low, high))))
    return marks


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
        ends = (label, self.labels[0], self.labels[-1])
        place, first, last = (math.log(end) if self.is_logarithmic else end for end in ends)
        return (place - first) / (last - first) if last > first else 0.5

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


def draw_series_charts(compared: SeriesComparison) -> dict[str, list[CurveChart]]:
    """Return suite -> its charts of SR, Safety, SBU and VSI.

    If some series has several suites, the last key is `all suites`: their episodes pooled.
    """
    return {
        suite or POOLED: [_draw_series(compared, compared.select_suite(suite), metric) for metric in NUMBERS]
        for suite in compared.suites
    }


def _draw_series(compared: SeriesComparison, curves: Sequence[SeriesCurve], metric: Metric) -> CurveChart:
    axis, top = SeriesAxis.of_curves(compared.curves), float(metric.scale)
    marked_curves = [(curve, curve_marks(curve, metric)) for curve in curves]
    return CurveChart(
        title=panel_title(metric),
        lines=tuple(_series_line(axis, compared.series, curve, marks, top) for curve, marks in marked_curves),
        grid=tuple((format_compact(value), _format_down(value, top)) for value in (top, top / 2, 0.0)),
        ticks=tuple((format_label(tick), format_fixed(100 * _place(axis, tick), 2)) for tick in axis.ticks),
        description="; ".join(_describe_marks(curve, marks) for curve, marks in marked_curves),
    )


def _series_line(
    axis: SeriesAxis, names: Sequence[str], curve: SeriesCurve, marks: Sequence[SeriesMark], top: float
) -> ChartLine:
    """Return one series, moved a little sideways by its place among `names`; the path is "" for fewer than two runs."""
    series = names.index(curve.series)
    aside = _DODGE * (series - (len(names) - 1) / 2)
    points, placed = [], []
    for mark in marks:
        share = _place(axis, mark.label) + aside
        down, low, high = (_format_down(value, top) for value in (mark.value, mark.low, mark.high))
        points.append(f"{format_fixed(1000 * share, 1)},{down}")
        placed.append((format_fixed(100 * share, 2), down, low, high))
    path = f"M{' '.join(points)}" if len(points) > 1 else ""
    return ChartLine(style=series_style(series), path=path, marks=tuple(placed))


def _place(axis: SeriesAxis, label: float) -> float:
    return _ROOM + (1 - 2 * _ROOM) * axis.share(label)


def _format_down(value: float, top: float) -> str:
    return format_fixed(BOTTOM - (BOTTOM - TOP) * value / top, 1)


def _describe_marks(curve: SeriesCurve, marks: Sequence[SeriesMark]) -> str:
    values = ", ".join(f"{format_compact(round(mark.value, 3))} at {format_compact(mark.label)}" for mark in marks)
    return f"{curve.series or 'runs'}: {values or 'not known'}"


# Time to violation


ONSET_ENDS = (f"violated {ANY_LIMIT}", "ended in success without", "ended in failure without")
"""The lines of a chart of time to violation, as `onset.ENDS`."""
_ONSET_POINTS = 100


def draw_onsets(cells: Sequence[CellOnset]) -> list[CurveChart]:
    """Return the chart of each cell: its episodes by how they have ended up to a time, on one axis of time."""
    end_s = max((cell.end_s for cell in cells), default=0.0)
    return [_draw_onset(cell, cell.specs[-1].incidence, end_s) for cell in cells if end_s]


def _draw_onset(cell: CellOnset, found: Incidence, end_s: float) -> CurveChart:
    steps = [found.at(end_s * k / _ONSET_POINTS) for k in range(_ONSET_POINTS + 1)]
    rows = [[_format_share(float(row[k])) for k in steps] for row in (*found.shares, found.low, found.high)]
    paths = [" ".join(f"{1000 * k // _ONSET_POINTS},{down}" for k, down in enumerate(row)) for row in rows]
    back = " ".join(reversed(paths[-1].split()))
    return CurveChart(
        title=f"{cell.policy or UNNAMED}, {cell.suite}",
        lines=tuple(
            ChartLine(series_style(k), f"M{path}", f"M{paths[-2]} {back}Z" if k == VIOLATED else "")
            for k, path in enumerate(paths[:-2])
        ),
        grid=((100, TOP), (50, (TOP + BOTTOM) / 2), (0, BOTTOM)),
        ticks=tuple((f"{format_compact(round(share * end_s, 1))} s", f"{100 * share:g}") for share in (0, 0.5, 1)),
        description=", ".join(
            f"{name} {format_fixed(100 * float(row[-1]), 1)} %"
            for name, row in zip(ONSET_ENDS, found.shares, strict=True)
        ),
    )


# Differences


@dataclass(frozen=True, slots=True)
class DifferenceBar:
    """A difference and its interval on a strip from -100 to 100 points, in percent across."""

    name: str
    where: str
    kind: str
    at: str
    low: str
    length: str
    value: str
    verdict: str


def draw_bars(comparison: Comparison) -> list[DifferenceBar]:
    """Return the known differences of SR, Safety and SBU by suite for two policies; of pooled Safety for several.

    Differences that are not known have no bar.
    """
    is_pair = len(comparison.policies) == 2
    labels = {metric.key: metric.label for metric in ((SR, SAFETY, SBU) if is_pair else (SAFETY,))}
    return [
        _draw_bar(
            difference,
            labels[metric.metric] if is_pair else difference.first,
            (scope.suite or "all, pooled") if is_pair else f"minus {difference.second}",
            metric.metric,
        )
        for scope in (comparison.scopes if is_pair else comparison.scopes[-1:])
        for metric in scope.metrics
        if metric.metric in labels
        for difference in metric.differences
        if difference.difference is not None and difference.ci is not None
    ]


def _draw_bar(difference: Difference, name: str, where: str, kind: str) -> DifferenceBar:
    middle, (low, high) = difference.difference or 0.0, difference.ci or (0.0, 0.0)
    shown, shown_low, shown_high = (format_points(share) for share in (middle, low, high))
    verdict = "undecided" if difference.undecided else "not told apart" if difference.better is None else "told apart"
    return DifferenceBar(
        name=name,
        where=where,
        kind=kind,
        at=format_fixed(50 + 50 * middle, 2),
        low=format_fixed(50 + 50 * low, 2),
        length=format_fixed(50 * (high - low), 2),
        value=f"{shown} points, {shown_low} to {shown_high}",
        verdict=verdict + (" by task" if difference.tasks > 1 else "") + _format_p_value(difference.p_adjusted),
    )


def format_points(share: float) -> str:
    """Return a difference of shares in percentage points, with a minus sign."""
    return format_fixed(100 * share, 1).replace("-", "\N{MINUS SIGN}")


def _format_p_value(value: float | None) -> str:
    if value is None:
        return ""
    bound = f"=\N{NO-BREAK SPACE}{format_fixed(value, 3)}" if value >= 0.001 else "<\N{NO-BREAK SPACE}0.001"
    return f" (p\N{NO-BREAK SPACE}{bound})"
