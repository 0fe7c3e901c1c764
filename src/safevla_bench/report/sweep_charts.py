"""Curves of a sweep and bars of differences as geometry, for the page.

Across, positions are thousandths of the width for paths and percent for marks; down, they are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from safevla_bench.compare import Comparison, Difference
from safevla_bench.report.tables import UNNAMED
from safevla_bench.sensitivity import Curve, Sweep
from safevla_bench.text.numbers import fixed, short, significant, unit_text, with_unit

HEIGHT, TOP, BOTTOM = 132, 8, 112
SERIES = 8
"""Colours there are; after that they begin again, with other dashes."""
MOST_BANDS = 3
"""With more policies than this their bands would hide one another, and are left out."""
_NAMES = {"sr": "SR", "safety": "Safety", "sbu": "SBU"}


@dataclass(frozen=True, slots=True)
class Line:
    """One policy's Safety over the thresholds, and its 95 % band; `style` is its colour and dash."""

    style: str
    path: str
    band: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Safety in one suite while the threshold of one specification moves, on a logarithmic axis."""

    spec_id: str
    suite: str
    lines: tuple[Line, ...]
    low: str
    default: str
    high: str
    said: str
    """The ends of each curve, in words."""
    height: int = HEIGHT
    top: int = TOP
    bottom: int = BOTTOM


def panels(sweeps: Sequence[Sweep], policies: Sequence[str]) -> dict[str, list[Panel]]:
    """Suite -> a panel for each sweep that has an episode there; `policies` number the series."""
    suites = dict.fromkeys(curve.suite for sweep in sweeps for curve in sweep.curves if curve.n)
    return {suite: [_panel(sweep, suite, policies) for sweep in sweeps] for suite in suites}


def _panel(sweep: Sweep, suite: str, policies: Sequence[str]) -> Panel:
    curves = [curve for curve in sweep.curves if curve.suite == suite and curve.n]
    unit, scale = unit_text(sweep.unit, sweep.default)
    low, high = sweep.thresholds[0], sweep.thresholds[-1]
    return Panel(
        spec_id=sweep.name,
        suite=suite,
        lines=tuple(
            _line(curve, sweep.thresholds, policies.index(curve.policy or UNNAMED), len(policies) <= MOST_BANDS)
            for curve in curves
        ),
        low=short(float(significant(low * scale))),
        default=with_unit(short(sweep.default * scale), unit),
        high=short(float(significant(high * scale))),
        said="; ".join(_said(curve) for curve in curves),
    )


def _line(curve: Curve, thresholds: Sequence[float], series: int, banded: bool) -> Line:
    across = [f"{1000 * _share(value, thresholds):.0f}" for value in thresholds]
    rates = [100 * (point.safety.value or 0.0) for point in curve.points]
    spans = [point.safety.ci or (0.0, 1.0) for point in curve.points]
    upper = [f"{x},{_down(100 * high)}" for x, (_, high) in zip(across, spans, strict=True)]
    lower = [f"{x},{_down(100 * low)}" for x, (low, _) in zip(across, spans, strict=True)]
    return Line(
        style=style(series),
        path="M" + " ".join(f"{x},{_down(rate)}" for x, rate in zip(across, rates, strict=True)),
        band="M" + " ".join([*upper, *reversed(lower)]) + "Z" if banded else "",
    )


def style(series: int) -> str:
    """The classes of a series."""
    return f"s{series % SERIES}" + (f" d{min(series // SERIES, 2)}" if series >= SERIES else "")


def _share(value: float, thresholds: Sequence[float]) -> float:
    low, high = math.log(thresholds[0]), math.log(thresholds[-1])
    return (math.log(value) - low) / (high - low)


def _down(percent: float) -> str:
    return f"{BOTTOM - (BOTTOM - TOP) * percent / 100:.1f}".removesuffix(".0")


def _said(curve: Curve) -> str:
    first, last = (curve.points[k].safety.value or 0.0 for k in (0, -1))
    return f"{curve.policy or UNNAMED} {fixed(100 * first, 1)} % to {fixed(100 * last, 1)} %"


@dataclass(frozen=True, slots=True)
class Bar:
    """A difference and its interval on a strip from -100 to 100 points, in percent across."""

    name: str
    where: str
    kind: str
    at: str
    low: str
    length: str
    value: str
    told: str


def bars(found: Comparison) -> list[Bar]:
    """Of two policies the differences in SR, Safety and SBU, in each suite and pooled; of several Safety, pooled."""
    return list(_of_two(found) if len(found.policies) == 2 else _of_several(found))


def _of_two(found: Comparison) -> Iterator[Bar]:
    for scope in found.scopes:
        where = "all, pooled" if scope.suite is None else scope.suite
        for metric in (one for one in scope.metrics if one.metric in _NAMES):
            yield from _bar(metric.differences[0], _NAMES[metric.metric], where, metric.metric, found.confidence)


def _of_several(found: Comparison) -> Iterator[Bar]:
    for metric in (one for one in found.scopes[-1].metrics if one.metric == "safety"):
        for one in metric.differences:
            yield from _bar(one, one.first, f"minus {one.second}", "safety", found.confidence)


def _bar(one: Difference, name: str, where: str, kind: str, confidence: float) -> Iterator[Bar]:
    """The bar; none where nothing is known. With several policies the p value is the one adjusted for that."""
    if one.difference is None or one.ci is None:
        return
    low, high = one.ci
    p_value = one.p_value if one.p_holm is None else one.p_holm
    clear = p_value is not None and p_value <= 1 - confidence + 1e-12
    yield Bar(
        name=name,
        where=where,
        kind=kind,
        at=fixed(50 + 50 * one.difference, 2),
        low=fixed(50 + 50 * low, 2),
        length=fixed(50 * (high - low), 2),
        value=f"{_points(one.difference)} points, {_points(low)} to {_points(high)}",
        told=("told apart" if clear else "not told apart") + _p(p_value),
    )


def _points(share: float) -> str:
    return fixed(100 * share, 1).replace("-", "\N{MINUS SIGN}")


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return (
        " (p\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}0.001)"
        if value < 0.001
        else f" (p\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{fixed(value, 3)})"
    )
