"""Safety and SBU over the thresholds of a sweep, and four numbers along a series of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from safevla_bench.compare.series import NUMBERS, SeriesComparison, SeriesCurve
from safevla_bench.judging.rates import SAFETY, SBU, Metric, Rate
from safevla_bench.report.curve_charts import POOLED, SeriesAxis, curve_marks, format_label, panel_title
from safevla_bench.report.figures.sheet import KeyEntry, PanelGrid, draw_grid, draw_panels, format_episode_range
from safevla_bench.report.figures.style import INK, figure_style, series_colour, series_dash, series_marker
from safevla_bench.report.tables.series import has_bootstrap
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.curves import ThresholdSweep
from safevla_bench.specs.spec import Library
from safevla_bench.text import display_unit, format_compact


@figure_style()
def draw_sweep(sweep: ThresholdSweep, library: Library) -> Figure:
    """Draw Safety beside SBU, a row for each suite: a line with a 95 % Wilson band for each policy with episodes.

    Thresholds rise, in the unit that reads best; dotted lines stand at those that the library registers. Without an
    episode or a threshold the figure says so. Raises `SpecError` if the library lacks a swept specification.
    """
    anchors = _registered_thresholds(library, sweep.spec_ids)
    unit, scale = display_unit(sweep.unit, anchors[0] if anchors else 1.0)
    order = sorted(range(len(sweep.thresholds)), key=lambda k: sweep.thresholds[k])
    thresholds = [scale * sweep.thresholds[k] for k in order]
    counted = [cell for cell in sweep.curves if cell.n and thresholds]
    policies = list(dict.fromkeys(cell.policy or UNNAMED for cell in counted))
    suites = dict.fromkeys(cell.suite for cell in counted)
    panels = [
        (f"{metric.label}, {suite}", [
            (policies.index(cell.policy or UNNAMED), [getattr(cell.points[k], metric.key) for k in order])
            for cell in counted
            if cell.suite == suite
        ])
        for suite in suites
        for metric in (SAFETY, SBU)
    ]  # fmt: skip
    shown_anchors = {
        scale * x: 0.6 if k else 0.9
        for k, x in enumerate(anchors)
        if thresholds and thresholds[0] <= scale * x <= thresholds[-1]
    }
    counts = [max(rate.n for rate in rates) for _, curves in panels for _, rates in curves]
    return draw_panels(
        f"Safety and SBU against the threshold of {sweep.name}",
        PanelGrid(len(panels), left=0.42, right=0.16, below=0.38, above=0.22, gap=0.2, high=1.35),
        [title for title, _ in panels],
        lambda axes, k: _draw_sweep_panel(axes, thresholds, panels[k][1], shown_anchors),
        across=f"Threshold ({unit})" if unit else "Threshold",
        upward="Episodes (%)",
        empty="No episode was counted." if thresholds else "There is nothing to sweep.",
        notes=_sweep_notes(counts, shown_anchors, sweep.warnings) if panels else (),
        key=[KeyEntry(name, k, lined=True) for k, name in enumerate(policies)],
    )


def _registered_thresholds(library: Library, spec_ids: Sequence[str]) -> list[float]:
    main = [library[spec_id].threshold for spec_id in spec_ids]
    others = [spec.threshold for spec in library if spec.alternate_of in set(spec_ids)]
    return list(dict.fromkeys([*main, *sorted(others)]))


def percent_band(rates: Sequence[Rate]) -> NDArray[np.float64]:
    """Return value, low and high end of each rate in percent, [3, n]; NaN where it is unknown."""
    ends = [(nan,) * 3 if rate.value is None else (rate.value, *(rate.ci or (0.0, 1.0))) for rate in rates]
    return 100 * np.array(ends).T


def _draw_sweep_panel(
    axes: Axes, thresholds: Sequence[float], curves: Sequence[tuple[int, Sequence[Rate]]], anchors: dict[float, float]
) -> None:
    """Draw the curves (place of the policy, rates), and the registered thresholds with their line widths [pt]."""
    step = max(1, len(thresholds) // 5)
    for series, rates in curves:
        ink, (value, low, high) = series_colour(series), percent_band(rates)
        axes.fill_between(thresholds, low, high, color=ink, alpha=0.13, linewidth=0)
        axes.plot(thresholds, value, color=ink, linestyle=series_dash(series), linewidth=1.1,
                  marker=series_marker(series), markersize=3.5, markevery=(series % step, step),
                  markeredgecolor="white", markeredgewidth=0.3, clip_on=False, zorder=3)  # fmt: skip
    for anchor, width in anchors.items():
        axes.axvline(anchor, color=INK, linewidth=width, linestyle=(0, (1, 1.5)), zorder=2)
    room = (thresholds[-1] - thresholds[0]) * 0.02 or abs(thresholds[0]) * 0.1 or 1.0
    axes.set_xlim(thresholds[0] - room, thresholds[-1] + room)
    axes.set_ylim(0, 103)
    axes.set_yticks(range(0, 101, 20))
    axes.locator_params(axis="x", nbins=5)
    draw_grid(axes)


def _sweep_notes(counts: Sequence[int], anchors: Iterable[float], warnings: Sequence[str]) -> list[str]:
    note = f"Bands: 95 % Wilson intervals; a curve has {format_episode_range(counts)}."
    registered = ", ".join(format_compact(anchor) for anchor in anchors)
    return [note + (f" Dotted: registered thresholds, {registered}." if registered else ""), *warnings]


# Along a series

_ROOM = 0.07
"""Free share of the axis on either side."""
_DODGE_PT = 2.2
"""Distance between the marks of neighbouring series at the same number."""


@figure_style()
def draw_series(compared: SeriesComparison, across: str = "") -> Figure:
    """Draw SR, Safety, SBU and VSI of each suite: a marker with its interval for each run, thin lines between.

    `across` says what the numbers are, such as "Training steps". Without a run the figure says so.
    """
    axis, several_suites = SeriesAxis.of_curves(compared.curves), len(compared.suites) > 1
    panels = [
        (panel_title(metric) + (f", {suite or POOLED}" if several_suites else ""), compared.select_suite(suite), metric)
        for suite in compared.suites
        for metric in NUMBERS
        if axis.labels
    ]
    across = (across or "Number in the run's name") + (" (logarithmic)" if axis.is_logarithmic else "")
    several = panels and len(compared.series) > 1
    return draw_panels(
        "Success and safety along the series",
        PanelGrid(len(panels), left=0.34, right=0.18, below=0.38, above=0.24, gap=0.36, high=1.15, title_gap=0.06),
        [title for title, *_ in panels],
        lambda axes, k: _draw_series_panel(axes, axis, compared.series, *panels[k][1:]),
        across=across,
        empty="No episode was counted.",
        notes=[_series_note(compared)] if panels else (),
        key=[KeyEntry(name, k, lined=True) for k, name in enumerate(compared.series)] if several else (),
    )


def _draw_series_panel(
    axes: Axes, axis: SeriesAxis, names: Sequence[str], curves: Sequence[SeriesCurve], metric: Metric
) -> None:
    """Draw a metric of each run of the curves; without any value the panel says `not known`."""
    marked, top = [_draw_curve(axes, curve, metric, names) for curve in curves], float(metric.scale)
    if not any(marked):
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", va="center")
    first, last = axis.labels[0], axis.labels[-1]
    if axis.is_logarithmic:
        axes.set_xscale("log")
        margin = (last / first) ** _ROOM
        axes.set_xlim(first / margin, last * margin)
    else:
        room = _ROOM * (last - first) or 1.0
        axes.set_xlim(first - room, last + room)
    axes.set_xticks(axis.ticks, [format_label(tick) for tick in axis.ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.03 * top)
    axes.set_yticks([top * k / 5 for k in range(6)], [format_compact(top * k / 5) for k in range(6)])
    draw_grid(axes)


def _draw_curve(axes: Axes, curve: SeriesCurve, metric: Metric, names: Sequence[str]) -> bool:
    """Draw one series, set aside from its neighbours; return whether any of its runs has the metric."""
    marks, series = curve_marks(curve, metric), names.index(curve.series)
    ink = series_colour(series)
    aside = ScaledTranslation((series - (len(names) - 1) / 2) * _DODGE_PT / 72, 0, axes.figure.dpi_scale_trans)
    plot = partial(axes.plot, color=ink, transform=axes.transData + aside, clip_on=False)
    labels, values = [mark.label for mark in marks], [mark.value for mark in marks]
    if marks:
        plot(labels, values, linestyle=series_dash(series), linewidth=0.7, alpha=0.55, zorder=2)
        for mark in marks:
            plot([mark.label] * 2, [mark.low, mark.high], linewidth=1.1, solid_capstyle="butt", zorder=3)
        plot(labels, values, linestyle="none", marker=series_marker(series), markersize=3.8,
             markeredgecolor="white", markeredgewidth=0.3, zorder=4)  # fmt: skip
    return bool(marks)


def _series_note(compared: SeriesComparison) -> str:
    points = [point for curve in compared.curves for point in curve.points]
    bootstrap = any(has_bootstrap(point) for point in points)
    kind = "percentile bootstrap for VSI" if bootstrap else "for VSI one that holds for any severities"
    episodes = format_episode_range([point.n for point in points])
    note = f"Bars: 95 % intervals of each run alone (Wilson; {kind}); a run has {episodes}."
    return f"{note} Lines lead the eye: nothing between two runs was measured."
