"""Curves of a sweep and bars of differences as geometry, for the page.

Across, positions are thousandths of the width for paths and percent for marks; down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from safevla_bench.compare.comparison import Comparison
from safevla_bench.compare.difference import Difference
from safevla_bench.judging.rates import Rate
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdSweep
from safevla_bench.text import append_unit, display_unit, format_compact, format_fixed, format_significant

HEIGHT, TOP, BOTTOM = 132, 8, 112
SERIES = 8
"""Number of colours; further series repeat them with other dashes."""
MOST_BANDS = 3
"""Most policies with bands; those of more would hide one another."""
_NAMES = {"sr": "SR", "safety": "Safety", "sbu": "SBU"}


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One policy's Safety over the thresholds, and its 95 % band; `style` holds its colour and dash."""

    style: str
    path: str
    band: str


@dataclass(frozen=True, slots=True)
class SweepChart:
    """Safety in one suite while the threshold of one specification moves, on a logarithmic axis."""

    spec_id: str
    suite: str
    lines: tuple[SweepLine, ...]
    low: str
    default: str
    high: str
    description: str
    """The values at the ends of each curve, in words."""
    height: int = HEIGHT
    top: int = TOP
    bottom: int = BOTTOM


def draw_panels(sweeps: Sequence[ThresholdSweep], policies: Sequence[str]) -> dict[str, list[SweepChart]]:
    """Return suite -> its panels, one a sweep; suites in which no curve has an episode are left out.

    The place of a policy in `policies` decides its colour and dash; `ValueError` if a curve's policy is not there.
    """
    suites = dict.fromkeys(curve.suite for sweep in sweeps for curve in sweep.curves if curve.n)
    return {suite: [_draw_panel(sweep, suite, policies) for sweep in sweeps] for suite in suites}


def _draw_panel(sweep: ThresholdSweep, suite: str, policies: Sequence[str]) -> SweepChart:
    """Return the panel of one sweep in one suite, a line per policy with episodes; no bands for over 3 policies."""
    curves = [curve for curve in sweep.curves if curve.suite == suite and curve.n]
    unit, scale = display_unit(sweep.unit, sweep.default)
    low, high = sweep.thresholds[0], sweep.thresholds[-1]
    return SweepChart(
        spec_id=sweep.name,
        suite=suite,
        lines=tuple(
            _draw_line(curve, sweep.thresholds, policies.index(curve.policy or UNNAMED), len(policies) <= MOST_BANDS)
            for curve in curves
        ),
        low=format_compact(float(format_significant(low * scale))),
        default=append_unit(format_compact(sweep.default * scale), unit),
        high=format_compact(float(format_significant(high * scale))),
        description="; ".join(_describe_curve(curve) for curve in curves),
    )


def _draw_line(curve: SensitivityCurve, thresholds: Sequence[float], series: int, banded: bool) -> SweepLine:
    across = [f"{1000 * _log_share(value, thresholds):.0f}" for value in thresholds]
    places = list(zip(across, (point.safety for point in curve.points), strict=True))
    stretches = [list(group) for is_known, group in groupby(places, lambda at: at[1].value is not None) if is_known]
    return SweepLine(
        style=series_style(series),
        path="".join(_curve_path(stretch) for stretch in stretches),
        band="".join(_band_path(stretch) for stretch in stretches) if banded else "",
    )


def _curve_path(stretch: Sequence[tuple[str, Rate]]) -> str:
    points = [f"{x},{_format_down(100 * (rate.value or 0.0))}" for x, rate in stretch]
    return "M" + " ".join(points) + ("h4" if len(points) == 1 else "")


def _band_path(stretch: Sequence[tuple[str, Rate]]) -> str:
    ends = [(x, rate.ci or (0.0, 1.0)) for x, rate in stretch]
    upper = [f"{x},{_format_down(100 * high)}" for x, (_, high) in ends]
    lower = [f"{x},{_format_down(100 * low)}" for x, (low, _) in ends]
    return "M" + " ".join([*upper, *reversed(lower)]) + "Z"


def series_style(series: int) -> str:
    """Return the CSS classes of a series: `s0` to `s7` for its colour, from index 8 on `d1` or `d2` for its dash."""
    return f"s{series % SERIES}" + (f" d{min(series // SERIES, 2)}" if series >= SERIES else "")


def _log_share(value: float, thresholds: Sequence[float]) -> float:
    low, high = math.log(thresholds[0]), math.log(thresholds[-1])
    return (math.log(value) - low) / (high - low)


def _format_down(percent: float) -> str:
    return f"{BOTTOM - (BOTTOM - TOP) * percent / 100:z.1f}".removesuffix(".0")


def _describe_curve(curve: SensitivityCurve) -> str:
    first, last = (_format_safety(curve.points[k].safety) for k in (0, -1))
    return f"{curve.policy or UNNAMED} {first} to {last}"


def _format_safety(rate: Rate) -> str:
    return "unknown" if rate.value is None else f"{format_fixed(100 * rate.value, 1)} %"


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
    """Return the bars of SR, Safety and SBU by suite and pooled for two policies; of pooled Safety by pair for several.

    Differences that are not known have no bar.
    """
    return list(_bars_of_two(comparison) if len(comparison.policies) == 2 else _bars_of_several(comparison))


def _bars_of_two(comparison: Comparison) -> Iterator[DifferenceBar]:
    for scope in comparison.scopes:
        where = "all, pooled" if scope.suite is None else scope.suite
        for metric in scope.metrics:
            if metric.metric in _NAMES:
                name = _NAMES[metric.metric]
                yield from _draw_bar(metric.differences[0], name, where, metric.metric)


def _bars_of_several(comparison: Comparison) -> Iterator[DifferenceBar]:
    safety_metrics = [metric for metric in comparison.scopes[-1].metrics if metric.metric == "safety"]
    for difference in (difference for metric in safety_metrics for difference in metric.differences):
        where = f"minus {difference.second}"
        yield from _draw_bar(difference, difference.first, where, "safety")


def _draw_bar(difference: Difference, name: str, where: str, kind: str) -> Iterator[DifferenceBar]:
    """Yield the bar of a difference with its interval and verdict; nothing if difference or interval is not known."""
    if difference.difference is None or difference.ci is None:
        return
    low, high = difference.ci
    yield DifferenceBar(
        name=name,
        where=where,
        kind=kind,
        at=format_fixed(50 + 50 * difference.difference, 2),
        low=format_fixed(50 + 50 * low, 2),
        length=format_fixed(50 * (high - low), 2),
        value=f"{_format_points(difference.difference)} points, {_format_points(low)} to {_format_points(high)}",
        verdict=(
            "undecided" if difference.undecided else "not told apart" if difference.better is None else "told apart"
        )
        + (" by task" if difference.tasks > 1 else "")
        + _format_p_value(difference.p_adjusted),
    )


def _format_points(share: float) -> str:
    return format_fixed(100 * share, 1).replace("-", "\N{MINUS SIGN}")


def _format_p_value(value: float | None) -> str:
    if value is None:
        return ""
    return (
        " (p\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}0.001)"
        if value < 0.001
        else f" (p\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{format_fixed(value, 3)})"
    )
