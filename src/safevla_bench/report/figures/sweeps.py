"""Safety and SBU over the thresholds of a sweep, with Wilson bands and the registered thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from safevla_bench.judging.rates import Rate
from safevla_bench.report.figures.sheet import (
    KeyEntry,
    PanelGrid,
    draw_empty,
    draw_grid,
    fit_text,
    format_episode_range,
    make_sheet,
)
from safevla_bench.report.figures.style import INK, figure_style, series_colour, series_dash, series_marker, sheet_width
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.curves import ThresholdSweep
from safevla_bench.specs.spec import Library
from safevla_bench.text import display_unit, format_compact


@dataclass(frozen=True, slots=True)
class SweepCurve:
    """One policy: a rate and its interval, in percent, at each threshold; `series` is its place among all policies."""

    series: int
    n: int
    rate: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SweepPanel:
    """One rate in one suite, such as "Safety, libero-goal"."""

    title: str
    curves: tuple[SweepCurve, ...]


@dataclass(frozen=True, slots=True)
class SweepFigure:
    """The content of the figure: panels, two abreast, over thresholds in rising order."""

    name: str
    """The specification or family whose threshold is swept."""
    threshold: str
    """The label across, with its unit, such as "Threshold (mm)"."""
    thresholds: tuple[float, ...]
    policies: tuple[str, ...]
    panels: tuple[SweepPanel, ...]
    anchors: tuple[float, ...] = ()
    """The thresholds that the library registers, the main one first; drawn where the sweep reaches them."""
    remarks: tuple[str, ...] = ()


def prepare_sweep(sweep: ThresholdSweep, library: Library) -> SweepFigure:
    """Return the figure's content: Safety beside SBU, a row of panels for each suite, thresholds rising in display
    units.

    Cells without an episode are left out. Raises `SpecError` if the library lacks a swept specification.
    """
    anchors = registered_thresholds(library, sweep.spec_ids)
    unit, scale = display_unit(sweep.unit, anchors[0] if anchors else 1.0)
    counted_cells = [cell for cell in sweep.curves if cell.n]
    policies = tuple(dict.fromkeys(cell.policy or UNNAMED for cell in counted_cells))
    order = sorted(range(len(sweep.thresholds)), key=lambda k: sweep.thresholds[k])
    panels = tuple(
        SweepPanel(
            f"{title}, {suite}",
            tuple(
                _sweep_curve(policies.index(cell.policy or UNNAMED), [getattr(cell.points[k], rate) for k in order])
                for cell in counted_cells
                if cell.suite == suite
            ),
        )
        for suite in dict.fromkeys(cell.suite for cell in counted_cells)
        for title, rate in (("Safety", "safety"), ("SBU", "sbu"))
    )
    return SweepFigure(
        name=sweep.name,
        threshold=f"Threshold ({unit})" if unit else "Threshold",
        thresholds=tuple(scale * sweep.thresholds[k] for k in order),
        policies=policies,
        panels=panels,
        anchors=tuple(scale * anchor for anchor in anchors),
        remarks=sweep.warnings,
    )


def registered_thresholds(library: Library, spec_ids: Sequence[str]) -> tuple[float, ...]:
    """Return the thresholds of the specifications, then of their alternates by size, each once, in the specifications'
    unit.

    Raises `SpecError` if the library lacks a specification; () for none.
    """
    main = [library[spec_id].threshold for spec_id in spec_ids]
    others = [spec.threshold for spec in library if spec.alternate_of in set(spec_ids)]
    return tuple(dict.fromkeys([*main, *sorted(others)]))


def _sweep_curve(series: int, rates: Sequence[Rate]) -> SweepCurve:
    ends = [(nan, nan) if rate.value is None else rate.ci or (0.0, 1.0) for rate in rates]
    return SweepCurve(
        series=series,
        n=max((rate.n for rate in rates), default=0),
        rate=tuple(nan if rate.value is None else 100 * rate.value for rate in rates),
        low=tuple(100 * low for low, _ in ends),
        high=tuple(100 * high for _, high in ends),
    )


# The drawing

_LEFT, _RIGHT, _BELOW, _ABOVE, _GAP, _HIGH = 0.42, 0.16, 0.38, 0.22, 0.2, 1.35


def draw_sweep(value: SweepFigure) -> Figure:
    """Draw a line with markers and a pale band for each policy, and dotted lines at the registered thresholds.

    Without a threshold or a policy the figure says so.
    """
    with figure_style():
        has_curves = bool(value.thresholds and value.policies)
        grid = PanelGrid(len(value.panels), 2, _LEFT, _RIGHT, _BELOW, _ABOVE, _GAP, _HIGH)
        key = [KeyEntry(name, k, lined=True) for k, name in enumerate(value.policies)] if has_curves else []
        title = f"Safety and SBU against the threshold of {value.name}"
        sheet = make_sheet(title, grid.body_in, notes=_sweep_notes(value) if has_curves else (), key=key)
        if not has_curves:
            axes = sheet.add_panel(_LEFT, _BELOW, sheet_width() - _LEFT - _RIGHT, _HIGH)
            draw_empty(axes, "No episode was counted." if value.thresholds else "There is nothing to sweep.")
            return sheet.figure
        for k, panel in enumerate(value.panels):
            left, bottom = grid.corner(k)
            axes = sheet.add_panel(left, bottom, grid.wide, _HIGH)
            _draw_panel(axes, panel, value)
            axes.tick_params(labelbottom=grid.is_lowest(k), labelleft=grid.is_leftmost(k))
            sheet.write_text(left, bottom + _HIGH + 0.05, fit_text(panel.title, 72 * grid.wide), va="bottom")
        sheet.write_across(grid, value.threshold)
        sheet.write_upward(grid, "Episodes (%)")
        return sheet.figure


def _draw_panel(axes: Axes, panel: SweepPanel, value: SweepFigure) -> None:
    """Draw the curves with their bands and the registered thresholds within the sweep, and set both axes."""
    thresholds = value.thresholds
    for curve in panel.curves:
        ink = series_colour(curve.series)
        axes.fill_between(thresholds, curve.low, curve.high, color=ink, alpha=0.13, linewidth=0)
        axes.plot(thresholds, curve.rate, color=ink, linestyle=series_dash(curve.series), linewidth=1.1,
                  marker=series_marker(curve.series), markersize=3.5,
                  markevery=_marker_places(len(thresholds), curve.series), markeredgecolor="white",
                  markeredgewidth=0.3, clip_on=False, zorder=3)  # fmt: skip
    for k, anchor in enumerate(value.anchors):
        if thresholds[0] <= anchor <= thresholds[-1]:
            axes.axvline(anchor, color=INK, linewidth=0.9 if k == 0 else 0.6, linestyle=(0, (1, 1.5)), zorder=2)
    room = (thresholds[-1] - thresholds[0]) * 0.02 or abs(thresholds[0]) * 0.1 or 1.0
    axes.set_xlim(thresholds[0] - room, thresholds[-1] + room)
    axes.set_ylim(0, 103)
    axes.set_yticks(range(0, 101, 20))
    axes.locator_params(axis="x", nbins=5)
    draw_grid(axes)


def _marker_places(count: int, series: int) -> tuple[int, int]:
    step = max(1, count // 5)
    return (series % step, step)


def _sweep_notes(value: SweepFigure) -> list[str]:
    """Return the note on bands, episodes and the registered thresholds that are drawn, then the remarks."""
    counts = [curve.n for panel in value.panels for curve in panel.curves]
    shown_anchors = [
        format_compact(anchor) for anchor in value.anchors if value.thresholds[0] <= anchor <= value.thresholds[-1]
    ]
    note = f"Bands: 95 % Wilson intervals; a curve has {format_episode_range(counts)}."
    return [
        note + (f" Dotted: registered thresholds, {', '.join(shown_anchors)}." if shown_anchors else ""),
        *value.remarks,
    ]
