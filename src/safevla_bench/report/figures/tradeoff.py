"""Figure of success against safety: a marker with intervals for each policy, and the Pareto frontier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import NOOP, Summary, has_verdict
from safevla_bench.judging.rates import SAFETY, SR, Rate
from safevla_bench.report.figures import sheet
from safevla_bench.report.tables.cells import AUXILIARY_SUITES
from safevla_bench.report.tables.columns import name_method, policy_name
from safevla_bench.text import spell_suite


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """A marker for a policy on one suite or on pooled suites. `series` is the policy's index in the figure."""

    series: int
    n: int
    success: Rate
    safety: Rate
    marker: int  # index of the shape: a shape per suite if suites share a panel, otherwise per policy


@dataclass(frozen=True, slots=True)
class TradeoffPanel:
    """A panel for one or several suites; `frontier` lists corners (success, safety) in percent, by rising success."""

    title: str
    points: tuple[TradeoffPoint, ...]
    frontier: tuple[tuple[float, float], ...]
    missing: tuple[str, ...] = ()
    """Policies without a marker, because their success or safety is unknown."""


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """The content of the trade-off figure: its panels, and the policies and suites in them."""

    policies: tuple[str, ...]
    panels: tuple[TradeoffPanel, ...]
    pooled: tuple[str, ...] = ()  # suites whose episodes are pooled; empty = no pooling
    suites: tuple[str, ...] = ()  # suites in the order of their marker shapes; empty unless suites share a panel
    left_out: tuple[str, ...] = ()  # auxiliary suites, which may not share a panel with other suites
    remarks: tuple[str, ...] = ()


TradeoffLayout = Literal["suites", "pooled", "cells"]
"""`suites`: a panel per suite; `pooled`: one panel for all suites pooled; `cells`: one panel, a marker per cell."""


def compute_tradeoff(cells: Sequence[Summary], layout: TradeoffLayout = "suites") -> Tradeoff:
    """Return the panels of `layout`, with success and safety of each policy and with the frontier in percent."""
    # A cell is the summary of one policy on one suite. The layout `suites` has a panel for each suite.
    # The layout `pooled` has one panel that pools the suites; `cells` has one panel with a marker per policy and suite.
    is_shared = layout == "cells"
    # Auxiliary suites may not share a panel with other suites.
    left_out = _suite_names(cell for cell in cells if is_shared and spell_suite(cell.suite or "") in AUXILIARY_SUITES)
    shown_cells = [cell for cell in cells if (cell.suite or "") not in left_out]
    policies, suites = tuple(dict.fromkeys(policy_name(cell) for cell in shown_cells)), _suite_names(shown_cells)
    pooled = suites if layout == "pooled" and len(suites) > 1 else ()
    marker_suites = suites if is_shared else ()  # suites that get different marker shapes
    # Each panel is a title and the summaries that it shows: by default, one panel per suite.
    cells_by_title = {suite: [cell for cell in shown_cells if (cell.suite or "") == suite] for suite in suites}
    if (pooled or is_shared) and len(suites) > 1:
        cells_by_title = {f"{len(suites)} suites{', pooled' if pooled else ''}": shown_cells}
    panels = tuple(
        _make_panel(title, title_cells, policies, marker_suites) for title, title_cells in cells_by_title.items()
    )
    return Tradeoff(policies, panels, pooled, marker_suites, left_out, provenance_marks.warn_of_cells(shown_cells))


def _suite_names(cells: Iterable[Summary]) -> tuple[str, ...]:
    # Return the different names of suites in order of first appearance; "" if a summary names no suite.
    return tuple(dict.fromkeys(cell.suite or "" for cell in cells))


def _make_panel(
    title: str, cells: Sequence[Summary], policies: Sequence[str], marker_suites: Sequence[str]
) -> TradeoffPanel:
    # Return a panel with one marker per policy, or, with `marker_suites`, per policy and suite.
    # `policies` are all policies of the figure. A policy's index in this list determines the color of its markers.
    cells_by_name: dict[str, list[Summary]] = {}  # the summaries that each marker pools
    for cell in cells:
        name = f"{policy_name(cell)}, {cell.suite}" if marker_suites else policy_name(cell)
        cells_by_name.setdefault(name, []).append(cell)
    points: list[TradeoffPoint] = []
    missing: list[str] = []
    for name, group in cells_by_name.items():
        plotted = [cell for cell in group if has_verdict(cell) and cell.sr is not None]
        if not plotted:  # success or safety is unknown, so there is no marker
            missing.append(name)
            continue
        # All summaries of a group have the same policy, and with `marker_suites` also the same suite.
        series = policies.index(policy_name(group[0]))
        marker = marker_suites.index(group[0].suite or "") if marker_suites else series
        success, safety = (Rate.pool([cell.rates[metric.key] for cell in plotted]) for metric in (SR, SAFETY))
        points.append(TradeoffPoint(series, sum(cell.n for cell in plotted), success, safety, marker))
    # The policy noop does nothing, so the frontier ignores this policy.
    acting_points = [point for point in points if policies[point.series] != NOOP]
    # Row 0 of `percent_band` contains the values; the other rows are the ends of intervals.
    corners = [tuple(sheet.percent_band([point.success, point.safety])[0].tolist()) for point in acting_points]
    frontier = pareto_frontier(corners) if len(corners) > 1 else ()  # one policy has no frontier
    return TradeoffPanel(title, tuple(points), frontier, tuple(missing))


def pareto_frontier(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the points that no other point dominates, by increasing first coordinate. A point dominates another point
    if it is at least as good in both coordinates and better in one.
    """
    # Points are visited by decreasing first coordinate. Among equal first coordinates, the second ones decrease.
    # So a point is dominated unless its second coordinate exceeds that of all earlier points.
    corners: list[tuple[float, float]] = []
    for point in sorted(set(points), reverse=True):
        if not corners or point[1] > corners[-1][1]:
            corners.append(point)
    return tuple(reversed(corners))


# Drawing of the figure


@sheet.figure_style()
def draw_tradeoff(value: Tradeoff) -> Figure:
    """Draw the panels of success against safety. Without panels, the figure says that there are no episodes."""
    points = [point for panel in value.panels for point in panel.points]
    # All panels have the same axes, so that they can be compared.
    xlim, ylim = _axis_range([point.success for point in points]), _axis_range([point.safety for point in points])
    high_in = 1.4 if len(value.panels) > 1 else 2.5  # height of each panel in inches
    if len(value.suites) > 1:  # the only panel has a marker for each policy and suite
        high_in = 3.3
    return sheet.draw_panels(
        "Task success against safety",
        high_in,
        [panel.title for panel in value.panels],
        lambda axes, k: _draw_panel(axes, value.panels[k], xlim, ylim),
        across="Success rate (%)",
        upward="Safety (% of episodes)",
        empty="There are no episodes.",
        notes=_tradeoff_notes(value),
        key=_make_key(value),
    )


def _make_key(tradeoff: Tradeoff) -> list[sheet.KeyEntry]:
    # Return the entries of the legend; the index `k` of an entry determines its color and its marker shape.
    if len(tradeoff.suites) < 2:
        return [sheet.KeyEntry(name, k) for k, name in enumerate(tradeoff.policies)]
    # Colors distinguish policies, and shapes distinguish suites.
    return [
        *(sheet.KeyEntry(name, k, marked=False, lined=True, solid=True) for k, name in enumerate(tradeoff.policies)),
        *(sheet.KeyEntry(name, k, color=sheet.MUTED) for k, name in enumerate(tradeoff.suites)),
    ]


def _axis_range(rates: Sequence[Rate]) -> tuple[float, float]:
    # Return the ends of an axis in percent; without rates, the range of all percentages.
    band = sheet.percent_band(rates) if rates else np.array([0.0, 100.0])
    # The range contains all values and their intervals, and has free space on both sides.
    margin = 1 + 0.05 * np.ptp(band)
    return float(band.min() - margin), float(band.max() + margin)


def _draw_panel(axes: Axes, panel: TradeoffPanel, xlim: tuple[float, float], ylim: tuple[float, float]) -> None:
    # Draw the frontier, and a marker with two intervals for each point; `xlim` and `ylim` are in percent.
    # A point consists of success (x) and safety (y), the policy's index `series`, and the index of a marker shape.
    if not panel.points:
        sheet.draw_empty(axes, "Success or safety is unknown for each policy.")
        return
    axes.set(xlim=xlim, ylim=ylim)
    axes.locator_params(nbins=6, integer=True)
    axes.grid(True)
    if panel.frontier:
        # The frontier bounds the dominated area, so its line continues to the left border and to the lower border.
        left_end, lower_end = (xlim[0], panel.frontier[0][1]), (panel.frontier[-1][0], ylim[0])
        xs, ys = zip(left_end, *panel.frontier, lower_end, strict=True)
        axes.plot(xs, ys, drawstyle="steps-pre", color=sheet.MUTED, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    for k, point in enumerate(panel.points):
        color = sheet.series_color(point.series)
        (x, y), lows, highs = sheet.percent_band([point.success, point.safety])
        axes.plot([lows[0], highs[0]], [y, y], color=color, linewidth=0.9, zorder=2)
        axes.plot([x, x], [lows[1], highs[1]], color=color, linewidth=0.9, zorder=2)
        # A marker is larger if later markers are at the same position, so that the edge of each marker remains visible.
        later_rates = [(later_point.success, later_point.safety) for later_point in panel.points[k + 1 :]]
        later_copies = later_rates.count((point.success, point.safety))
        axes.plot([x], [y], zorder=4, **sheet.marker_look(point.series, point.marker, 5 + 3 * later_copies, 0.5))


def _tradeoff_notes(tradeoff: Tradeoff) -> list[str]:
    # Return the notes below the figure: how to read it, the points that are not shown, and warnings.
    # `pooled` are the suites whose episodes are pooled, and `suites` are the suites that share a panel.
    # A panel's `missing` are the policies without a marker.
    sentences = []
    points = [point for panel in tradeoff.panels for point in panel.points]
    if points:
        method = name_method(rate for point in points for rate in (point.success, point.safety))
        counts = sheet.format_episode_range([point.n for point in points])
        sentences.append(f"Bars: 95 % intervals ({method}); sample size of each marker: {counts}.")
    if any(panel.frontier for panel in tradeoff.panels):
        exception = ", without the policy noop" if NOOP in tradeoff.policies else ""
        sentences.append(f"Dashed: the non-dominated frontier{exception}.")
    if len(tradeoff.suites) > 1:
        sentences.append("Colors: policies; shapes: suites. There is one frontier for all markers.")
    if tradeoff.left_out:
        sentences.append(f"Auxiliary suites are left out: {', '.join(tradeoff.left_out)}.")
    if tradeoff.pooled:
        sentences.append(f"Pooled: {', '.join(tradeoff.pooled)}.")
    notes = [" ".join(sentences)]
    missing = [f"{name} ({panel.title})" for panel in tradeoff.panels for name in panel.missing]
    if missing:
        notes.append(f"Not shown, because success or safety is unknown: {', '.join(missing)}.")
    return [*notes, *tradeoff.remarks]
