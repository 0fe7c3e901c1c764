"""Charts of the page as geometry: curves of a sweep, ends of episodes over time, bars of differences.

Across, positions are thousandths of the width for paths and percent for marks; down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from safevla_bench.compare.comparison import Comparison
from safevla_bench.compare.difference import Difference
from safevla_bench.explain.exposure import ANY_LIMIT, VIOLATED, CellOnset, Incidence
from safevla_bench.judging.rates import SAFETY, SBU, SR, Rate
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
    """One policy or end: its colour and dash, its path and its band."""

    style: str
    path: str
    band: str = ""


@dataclass(frozen=True, slots=True)
class CurveChart:
    """Shares of episodes against a threshold or time; `description` has the values in words."""

    title: str
    against: str
    lines: tuple[ChartLine, ...]
    ticks: tuple[tuple[str, float], ...]
    """Text and place of each tick, in percent."""
    description: str
    marked_at: str = ""
    """The place of a vertical line, in percent."""
    height: int = HEIGHT

    @property
    def grid(self) -> list[tuple[str, str]]:
        """Percent and place of each line across, in pixels from the top."""
        return [(f"{100 * share:.0f}", _format_down(share)) for share in (1.0, 0.5, 0.0)]


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
