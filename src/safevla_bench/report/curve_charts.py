"""Charts of the page as geometry: curves of a sweep, numbers along a series of runs, bars of differences.

Across, positions are thousandths of the width for paths and percent for marks; down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from safevla_bench.compare.comparison import Comparison
from safevla_bench.compare.difference import Difference
from safevla_bench.compare.series import NUMBERS, SeriesComparison, SeriesCurve
from safevla_bench.explain.exposure import ANY_LIMIT, VIOLATED, CellOnset, Incidence
from safevla_bench.judging.rates import SAFETY, SBU, SR, Metric, Rate
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.curves import ThresholdSweep
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
    marks: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CurveChart:
    """A number against a threshold, the numbers of runs or time; `description` has the values in words."""

    title: str
    against: str
    lines: tuple[ChartLine, ...]
    top_value: float
    """The value at the upper edge; the lower one is 0."""
    ticks: tuple[tuple[str, float], ...]
    """Text and place of each tick, in percent."""
    description: str
    marked_at: str = ""
    """The place of a vertical line, in percent."""
    height: int = HEIGHT

    @property
    def grid(self) -> list[tuple[str, str]]:
        """Text and place of each line across, in pixels from the top."""
        return [(format_compact(self.top_value * share), _format_down(share)) for share in (1.0, 0.5, 0.0)]


def series_style(series: int) -> str:
    """Return the CSS classes of a series: `s0` to `s7` for its colour, from index 8 on `d1` or `d2` for its dash."""
    return f"s{series % SERIES}" + (f" d{min(series // SERIES, 2)}" if series >= SERIES else "")


def _format_down(share: float) -> str:
    return f"{BOTTOM - (BOTTOM - TOP) * share:z.1f}".removesuffix(".0")


_Place = tuple[float, float, float, float]
"""A place across, and a value with the ends of its interval, all as shares."""


def _curve(style: str, places: Iterable[_Place], *, banded: bool) -> ChartLine:
    """Return a curve with its band; both have gaps where the value is NaN."""
    path = band = ""
    for is_unknown, stretch in groupby(places, lambda place: math.isnan(place[1])):
        if not is_unknown:
            known = [(f"{1000 * x:.0f}", *map(_format_down, ends)) for x, *ends in stretch]
            points, lower, upper = ([f"{place[0]},{place[k]}" for place in known] for k in (1, 2, 3))
            path += f"M{' '.join(points)}{'h4' if len(points) == 1 else ''}"
            band += f"M{' '.join([*upper, *reversed(lower)])}Z"
    return ChartLine(style, path, band if banded else "")


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
    first, last = math.log(sweep.thresholds[0]), math.log(sweep.thresholds[-1])
    across = [(math.log(value) - first) / (last - first) for value in sweep.thresholds]
    return CurveChart(
        title=sweep.name,
        against=f"the threshold, {low} to {high}",
        lines=tuple(
            _curve(
                series_style(policies.index(curve.policy or UNNAMED)),
                [(x, *_rate_ends(point.safety)) for x, point in zip(across, curve.points, strict=True)],
                banded=len(policies) <= MOST_BANDS,
            )
            for curve in curves
        ),
        top_value=100,
        ticks=((low, 0), (default, 50), (high, 100)),
        marked_at="50",
        description="; ".join(
            f"{curve.policy or UNNAMED} {' to '.join(_format_safety(curve.points[k].safety) for k in (0, -1))}"
            for curve in curves
        ),
    )


def _rate_ends(rate: Rate) -> tuple[float, float, float]:
    return (math.nan,) * 3 if rate.value is None else (rate.value, *(rate.ci or (0.0, 1.0)))


def _format_safety(rate: Rate) -> str:
    return "unknown" if rate.value is None else f"{SAFETY.format(rate.value)} %"


# Series of runs

POOLED = "all suites"
_LOG_SPAN = 50
"""From this ratio of the greatest number to the least on, the axis is logarithmic."""
_TICK_ROOM = 0.18
"""Least distance of two ticks, as a share of the width."""
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
    """The numbers of all runs, rising, which every panel shows across; `series_axis` makes it."""

    labels: tuple[float, ...]

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
            if min(self.share(label) - self.share(chosen[-1]), 1 - self.share(label)) >= _TICK_ROOM:
                chosen.append(label)
        return (*chosen, *self.labels[1:][-1:])


def series_axis(curves: Sequence[SeriesCurve]) -> SeriesAxis:
    """Return the axis of some curves."""
    return SeriesAxis(tuple(sorted({point.label for curve in curves for point in curve.points})))


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
    axis, top = series_axis(compared.curves), float(metric.scale)
    marked_curves = [(curve, curve_marks(curve, metric)) for curve in curves]
    lines = []
    for curve, marks in marked_curves:
        series = compared.series.index(curve.series)
        aside = _DODGE * (series - (len(compared.series) - 1) / 2)
        places = [
            (_place(axis, mark.label) + aside, *(value / top for value in (mark.value, mark.low, mark.high)))
            for mark in marks
        ]
        path = _curve("", places, banded=False).path if len(places) > 1 else ""
        shown = ((format_fixed(100 * x, 2), *map(_format_down, ends)) for x, *ends in places)
        lines.append(ChartLine(series_style(series), path, marks=tuple(shown)))
    return CurveChart(
        title=panel_title(metric),
        against="the number in the run's name",
        lines=tuple(lines),
        top_value=top,
        ticks=tuple((format_label(tick), round(100 * _place(axis, tick), 2)) for tick in axis.ticks),
        description="; ".join(_describe_marks(curve, marks) for curve, marks in marked_curves),
    )


def _place(axis: SeriesAxis, label: float) -> float:
    return _ROOM + (1 - 2 * _ROOM) * axis.share(label)


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
    across = [k / _ONSET_POINTS for k in range(_ONSET_POINTS + 1)]
    steps = [found.at(end_s * share) for share in across]
    return CurveChart(
        title=f"{cell.policy or UNNAMED}, {cell.suite}",
        against="time",
        lines=tuple(
            _curve(
                series_style(end),
                zip(across, shares[steps], found.low[steps], found.high[steps], strict=True),
                banded=end == VIOLATED,
            )
            for end, shares in enumerate(found.shares)
        ),
        top_value=100,
        ticks=tuple((f"{format_compact(round(share * end_s, 1))} s", 100 * share) for share in (0, 0.5, 1)),
        description=", ".join(
            f"{name} {format_fixed(100 * float(row[-1]), 1)} %"
            for name, row in zip(ONSET_ENDS, found.shares, strict=True)
        ),
    )


# Differences


@dataclass(frozen=True, slots=True)
class DifferenceBar:
    """A difference and its interval, as shares, on a strip from -1 to 1."""

    name: str
    where: str
    kind: str
    middle: float
    low: float
    high: float
    words: str


def draw_bars(comparison: Comparison) -> list[DifferenceBar]:
    """Return the known differences of SR, Safety and SBU by suite for two policies; of pooled Safety for several.

    Differences that are not known have no bar.
    """
    is_pair = len(comparison.policies) == 2
    labels = {metric.key: metric.label for metric in ((SR, SAFETY, SBU) if is_pair else (SAFETY,))}
    return [
        DifferenceBar(
            labels[metric.metric] if is_pair else difference.first,
            (scope.suite or "all, pooled") if is_pair else f"minus {difference.second}",
            metric.metric,
            difference.difference,
            *difference.ci,
            _describe_difference(difference),
        )
        for scope in (comparison.scopes if is_pair else comparison.scopes[-1:])
        for metric in scope.metrics
        if metric.metric in labels
        for difference in metric.differences
        if difference.difference is not None and difference.ci is not None
    ]


def _describe_difference(difference: Difference) -> str:
    middle, low, high = (format_points(share or 0.0) for share in (difference.difference, *(difference.ci or ())))
    verdict = "undecided" if difference.undecided else "not told apart" if difference.better is None else "told apart"
    return f"{middle} points, {low} to {high}: {verdict}{' by task' if difference.tasks > 1 else ''}"


def format_points(share: float) -> str:
    """Return a difference of shares in percentage points, with a minus sign."""
    return format_fixed(100 * share, 1).replace("-", "\N{MINUS SIGN}")
