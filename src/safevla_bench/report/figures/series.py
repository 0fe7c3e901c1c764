"""SR, Safety, SBU and VSI of the runs of a series, such as checkpoints, against the numbers in their names."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from safevla_bench.compare.series import SeriesComparison
from safevla_bench.report.figures.sheet import (
    KeyEntry,
    PanelGrid,
    draw_empty,
    draw_grid,
    fit_text,
    format_episode_range,
    make_sheet,
)
from safevla_bench.report.figures.style import figure_style, series_colour, series_dash, series_marker, sheet_width
from safevla_bench.report.series_charts import PANELS, POOLED, SeriesAxis, SeriesMark, curve_marks, format_label
from safevla_bench.text import format_compact

LABEL = "Number in the run's name"
"""What stands below the figure where nobody says what the numbers are."""


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """The runs of one series, by rising label; `series` is its place among all."""

    series: int
    marks: tuple[SeriesMark, ...]


@dataclass(frozen=True, slots=True)
class SeriesPanel:
    """One number in one suite, such as "Safety (%), libero-goal"; `top` is the end of its axis."""

    title: str
    top: float
    lines: tuple[SeriesLine, ...]


@dataclass(frozen=True, slots=True)
class SeriesFigure:
    """The content of the figure: four panels a suite, two abreast."""

    across: str
    axis: SeriesAxis
    series: tuple[str, ...]
    panels: tuple[SeriesPanel, ...]
    counts: tuple[int, ...]
    """Episodes of each run."""
    bootstrap: bool = False


def prepare_series(compared: SeriesComparison, across: str = "") -> SeriesFigure:
    """Return the figure's content; `across` says what the numbers are, such as "Training steps", by default `LABEL`."""
    points = [point for curve in compared.curves for point in curve.points]
    several = len(compared.suites) > 1
    return SeriesFigure(
        across=across or LABEL,
        axis=SeriesAxis.of_curves(compared.curves),
        series=compared.series,
        panels=tuple(
            SeriesPanel(f"{title}{f', {suite or POOLED}' if several else ''}", top, _panel_lines(compared, suite, name))
            for suite in compared.suites
            for title, name, top in PANELS
        ),
        counts=tuple(point.n for point in points),
        bootstrap=any(point.vsi.bootstrap for point in points),
    )


def _panel_lines(compared: SeriesComparison, suite: str | None, name: str) -> tuple[SeriesLine, ...]:
    return tuple(
        SeriesLine(compared.series.index(curve.series), curve_marks(curve, name))
        for curve in compared.select_suite(suite)
    )


# The drawing

_LEFT, _RIGHT, _BELOW, _ABOVE, _GAP, _HIGH = 0.34, 0.18, 0.38, 0.24, 0.36, 1.15
_ROOM = 0.07
"""Free share of the axis on either side."""
_DODGE_PT = 2.2
"""Distance between the marks of neighbouring series at the same number."""


def draw_series(value: SeriesFigure) -> Figure:
    """Draw a marker with its interval for each run; thin lines only lead the eye from run to run.

    Without a run the figure says so.
    """
    with figure_style():
        has_marks = bool(value.axis.labels)
        grid = PanelGrid(len(value.panels), 2, _LEFT, _RIGHT, _BELOW, _ABOVE, _GAP, _HIGH)
        several = len(value.series) > 1
        key = [KeyEntry(name, k, lined=True) for k, name in enumerate(value.series)] if has_marks and several else []
        sheet = make_sheet(
            "Success and safety along the series",
            grid.body_in,
            notes=_series_notes(value) if has_marks else (),
            key=key,
        )
        if not has_marks:
            axes = sheet.add_panel(_LEFT, _BELOW, sheet_width() - _LEFT - _RIGHT, _HIGH)
            draw_empty(axes, "No episode was counted.")
            return sheet.figure
        for k, panel in enumerate(value.panels):
            left, bottom = grid.corner(k)
            axes = sheet.add_panel(left, bottom, grid.wide, _HIGH)
            _draw_panel(axes, panel, value)
            axes.tick_params(labelbottom=grid.is_lowest(k))
            sheet.write_text(left, bottom + _HIGH + 0.06, fit_text(panel.title, 72 * grid.wide), va="bottom")
        across = value.across + (" (logarithmic)" if value.axis.is_logarithmic else "")
        sheet.write_across(grid, fit_text(across, 72 * (sheet_width() - 0.2)))
        return sheet.figure


def _draw_panel(axes: Axes, panel: SeriesPanel, value: SeriesFigure) -> None:
    """Draw the lines of a panel and set both axes; without any mark the panel says `not known`."""
    for line in panel.lines:
        if line.marks:
            _draw_line(axes, line, len(value.series))
    if not any(line.marks for line in panel.lines):
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", va="center")
    _scale_across(axes, value.axis)
    axes.set_ylim(0, 1.03 * panel.top)
    axes.set_yticks([panel.top * k / 5 for k in range(6)], [format_compact(panel.top * k / 5) for k in range(6)])
    draw_grid(axes)


def _draw_line(axes: Axes, line: SeriesLine, count: int) -> None:
    """Draw one series: a thin line, an interval and a marker per run, set aside from its neighbours among `count`
    series.
    """
    ink = series_colour(line.series)
    aside = ScaledTranslation((line.series - (count - 1) / 2) * _DODGE_PT / 72, 0, axes.figure.dpi_scale_trans)
    place = axes.transData + aside
    labels, values = [mark.label for mark in line.marks], [mark.value for mark in line.marks]
    axes.plot(labels, values, color=ink, linestyle=series_dash(line.series), linewidth=0.7, alpha=0.55,
              transform=place, clip_on=False, zorder=2)  # fmt: skip
    for mark in line.marks:
        axes.plot([mark.label] * 2, [mark.low, mark.high], color=ink, linewidth=1.1, solid_capstyle="butt",
                  transform=place, clip_on=False, zorder=3)  # fmt: skip
    axes.plot(labels, values, color=ink, linestyle="none", marker=series_marker(line.series), markersize=3.8,
              markeredgecolor="white", markeredgewidth=0.3, transform=place, clip_on=False, zorder=4)  # fmt: skip


def _scale_across(axes: Axes, axis: SeriesAxis) -> None:
    """Set the horizontal axis: as wide as the numbers and a margin, with its ticks."""
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


def _series_notes(value: SeriesFigure) -> list[str]:
    kind = "percentile bootstrap for VSI" if value.bootstrap else "for VSI one that holds for any severities"
    note = f"Bars: 95 % intervals of each run alone (Wilson; {kind}); a run has {format_episode_range(value.counts)}."
    return [f"{note} Lines lead the eye: nothing between two runs was measured."]
