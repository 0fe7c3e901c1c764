"""Figures of curves: Safety and SBU over thresholds, metrics over a series of runs, violations over time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from safevla_bench.compare.series import NUMBERS, SeriesComparison, SeriesCurve
from safevla_bench.explain.exposure import ANY_LIMIT, VIOLATED, CellOnset, SpecOnset
from safevla_bench.judging.rates import SAFETY, SBU, Metric, Rate
from safevla_bench.report.figures import sheet
from safevla_bench.report.tables.columns import name_method
from safevla_bench.report.tables.series import has_bootstrap
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.curves import ThresholdSweep
from safevla_bench.specs.spec import Library
from safevla_bench.text import display_unit, format_compact
from safevla_recorder.episode import Floats


@sheet.figure_style()
def draw_sweep(sweep: ThresholdSweep, library: Library) -> Figure:
    """Draw Safety and SBU over the threshold. Each suite has a row of panels. Each policy with episodes has a line with
    a 95 % band. Dotted lines mark the library's thresholds. If no episode is counted, the figure says so. Raises
    `SpecError` if the library lacks a specification of the sweep.
    """
    library_thresholds = list(dict.fromkeys(library[spec_id].threshold for spec_id in sweep.spec_ids))
    # Thresholds are shown in a unit that suits their size, such as mm instead of m; `scale` converts them.
    unit, scale = display_unit(sweep.unit, library_thresholds[0])
    thresholds = [scale * value for value in sweep.thresholds]
    # The library's thresholds within the range of the axis get dotted lines.
    marked_thresholds = [
        scale * value for value in library_thresholds if sweep.thresholds[0] <= value <= sweep.thresholds[-1]
    ]
    counted_curves = [curve for curve in sweep.curves if curve.n]
    policies = list(dict.fromkeys(curve.policy or UNNAMED for curve in counted_curves))
    # Each panel consists of a title and curves. Each curve consists of the index of a policy and a rate per threshold.
    # A curve in `counted_curves` contains a point for each threshold, with the rates of one policy on one suite.
    # Without counted episodes, there are no panels, and `draw_panels` shows the text `empty`.
    panels: list[tuple[str, list[tuple[int, list[Rate]]]]] = []
    for suite in dict.fromkeys(curve.suite for curve in counted_curves):
        suite_curves = [(policies.index(c.policy or UNNAMED), c.points) for c in counted_curves if c.suite == suite]
        for metric in (SAFETY, SBU):
            curves = [(k, [getattr(point, metric.key) for point in points]) for k, points in suite_curves]
            panels.append((f"{metric.label}, {suite}", curves))
    notes: list[str] = []
    if panels:
        counts = [max(rate.n for rate in rates) for _, curves in panels for _, rates in curves]
        method = name_method(rate for _, curves in panels for _, rates in curves for rate in rates)
        note = f"Bands: 95 % intervals ({method}); sample size of each curve: {sheet.format_episode_range(counts)}."
        if marked_thresholds:
            note += f" Dotted: the library's threshold, {', '.join(map(format_compact, marked_thresholds))}."
        notes = [note, *sweep.warnings]
    return sheet.draw_panels(
        f"Safety and SBU against the threshold of {sweep.name}",
        1.35,  # height of a panel [inches]
        [title for title, _ in panels],
        lambda axes, k: _draw_sweep_panel(axes, thresholds, panels[k][1], marked_thresholds),
        across=f"Threshold ({unit})" if unit else "Threshold",
        upward="Episodes (%)",
        empty="No episode was counted.",
        notes=notes,
        key=[sheet.KeyEntry(name, k, lined=True) for k, name in enumerate(policies)],
    )


def _draw_sweep_panel(
    axes: Axes,
    thresholds: Sequence[float],
    curves: Sequence[tuple[int, Sequence[Rate]]],
    marked_thresholds: Sequence[float],
) -> None:
    # Draw a line with a band for each curve, and a dotted vertical line at each of `marked_thresholds`.
    # Each of `curves` consists of the index of a policy and of the policy's rates, one for each threshold.
    # Only every few points have a marker.
    # The first marker of each curve is at a different point, so that the markers of identical curves stay visible.
    marker_step = max(1, len(thresholds) // 5)
    for series_index, rates in curves:
        # The band is the 95 % interval of each rate.
        value, low, high = sheet.percent_band(rates)
        axes.fill_between(thresholds, low, high, color=sheet.series_color(series_index), alpha=0.13, linewidth=0)
        line_style = {"linestyle": sheet.series_dash(series_index), "linewidth": 1.1}
        style = sheet.marker_look(series_index, series_index, size=3.5, edge=0.3) | line_style
        axes.plot(thresholds, value, markevery=(series_index % marker_step, marker_step), zorder=3, **style)
    for threshold in marked_thresholds:
        axes.axvline(threshold, color=sheet.INK, linewidth=0.9, linestyle=(0, (1, 1.5)), zorder=2)
    # Free space at both ends of the axis: 2 % of the range.
    # With a single threshold: 10 % of this threshold, or 1 if the threshold is 0.
    room = (thresholds[-1] - thresholds[0]) * 0.02 or abs(thresholds[0]) * 0.1 or 1.0
    axes.set_xlim(thresholds[0] - room, thresholds[-1] + room)
    axes.set_ylim(0, 103)
    axes.set_yticks(range(0, 101, 20))
    axes.locator_params(axis="x", nbins=5)
    axes.grid(True)


# Metrics over a series of runs

# Free space at each end of the axis, as a fraction of the range of labels.
_ROOM_SHARE = 0.07
# Horizontal distance between the markers of adjacent series at the same label [points].
_SHIFT_PT = 2.2


@sheet.figure_style()
def draw_series(compared: SeriesComparison, across: str = "") -> Figure:
    """Draw SR, Safety, SBU and VSI of each suite. Each run has a marker and an interval; thin lines connect the runs.
    `across` names the quantity on the axis, such as "Training steps". If there are no runs, the figure says so.
    """
    # The label of a run is the number in its name, such as the training steps of a checkpoint.
    labels = sorted({point.label for curve in compared.curves for point in curve.points})
    # A panel for each suite (None = all suites pooled) and each of the four metrics; no panel if there are no runs.
    panels = [(suite, metric) for suite in compared.suites for metric in NUMBERS if labels]
    titles = [f"{metric.label} ({metric.unit})" if metric.unit else metric.label for _, metric in panels]
    if len(compared.suites) > 1:
        titles = [f"{title}, {suite or 'all suites'}" for title, (suite, _) in zip(titles, panels, strict=True)]
    # A single series needs no legend.
    needs_key = panels and len(compared.series) > 1
    return sheet.draw_panels(
        "Success and safety along the series",
        1.15,  # height of a panel [inches]
        titles,
        lambda axes, k: _draw_series_panel(axes, compared, *panels[k], (labels[0], labels[-1])),
        across=across or "Number in the run's name",
        empty="No episode was counted.",
        notes=[_series_note(compared)] if panels else (),
        key=[sheet.KeyEntry(name, k, lined=True) for k, name in enumerate(compared.series)] if needs_key else (),
    )


def _draw_series_panel(
    axes: Axes, compared: SeriesComparison, suite: str | None, metric: Metric, label_range: tuple[float, float]
) -> None:
    # Draw a metric of one suite (None = all suites pooled), a curve per series.
    # A label is the number in a run's name; `label_range` is the smallest and the largest label.
    # `metric.scale` is 100 for rates in percent, else 1.
    full_scale = float(metric.scale)
    first_label, last_label = label_range
    # The list draws all curves; `any` alone would stop at the first curve with a known value.
    has_values = [_draw_curve(axes, curve, metric, compared.series) for curve in compared.select_suite(suite)]
    if not any(has_values):
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", va="center")
    room = _ROOM_SHARE * (last_label - first_label) or 1.0  # with only one label, the free space is 1
    axes.set_xlim(first_label - room, last_label + room)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(lambda number, _: format_label(number))
    axes.set_ylim(0, 1.03 * full_scale)
    # Ticks at every fifth of the scale: 0 to 100 % for rates, 0 to 1 for VSI.
    axes.set_yticks([full_scale * k / 5 for k in range(6)], [format_compact(full_scale * k / 5) for k in range(6)])
    axes.grid(True)


def format_label(label: float) -> str:
    """Return a number as a tick label, in thousands (k) or millions (M) if that needs at most one decimal."""
    for factor, sign in ((1e6, "M"), (1e3, "k")):
        scaled = label / factor
        if abs(scaled) >= 1 and round(scaled, 1) == scaled:
            return f"{format_compact(scaled)}{sign}"
    return format_compact(label)


def _draw_curve(axes: Axes, curve: SeriesCurve, metric: Metric, names: Sequence[str]) -> bool:
    # Draw one series; `names` are the names of all series. Return whether any value of the curve is known.
    # A point is a run: its label (the number in the run's name), and the value and interval (`ci`) of each metric.
    series_index = names.index(curve.series)
    # The markers of all series are side by side, symmetric about the label. 72 points are an inch.
    shift_in = (series_index - (len(names) - 1) / 2) * _SHIFT_PT / 72
    shifted = axes.transData + ScaledTranslation(shift_in, 0, axes.figure.dpi_scale_trans)
    plot = partial(axes.plot, color=sheet.series_color(series_index), transform=shifted, clip_on=False)
    known_points = []  # (label, value, interval); if there is no interval, both ends equal the value
    for point in curve.points:
        number = point.numbers[metric]
        if number.value is not None:
            known_points.append((point.label, number.value, number.ci or (number.value, number.value)))
    labels, values = [label for label, *_ in known_points], [metric.scale * value for _, value, _ in known_points]
    plot(labels, values, linestyle=sheet.series_dash(series_index), linewidth=0.7, alpha=0.55, zorder=2)
    for label, _, ci in known_points:
        bar_ends = [metric.scale * end for end in ci]
        plot([label] * 2, bar_ends, linewidth=1.1, solid_capstyle="butt", zorder=3)
    axes.plot(labels, values, transform=shifted, zorder=4, **sheet.marker_look(series_index, series_index, 3.8, 0.3))
    return bool(known_points)


def _series_note(compared: SeriesComparison) -> str:
    # Return the note below the figure: the methods of the intervals, and the sample sizes.
    points = [point for curve in compared.curves for point in curve.points]
    # VSI has bootstrap intervals or distribution-free intervals, as chosen when the runs were compared.
    has_bootstrap_interval = any(has_bootstrap(point) for point in points)
    vsi_method = "percentile bootstrap for VSI" if has_bootstrap_interval else "distribution-free intervals for VSI"
    episodes = sheet.format_episode_range([point.n for point in points])
    method = name_method(number for point in points for number in point.numbers.values() if isinstance(number, Rate))
    note = f"Bars: 95 % intervals of each run alone ({method}; {vsi_method}). Sample size of each run: {episodes}."
    return f"{note} Lines only guide the eye: nothing was measured between two runs."


# Onset: the cumulative share of episodes with a violation, over the time in the episode

_ANY_LIMIT_COLOR = "#a9afb6"


def onset_steps(onset: SpecOnset) -> Floats:
    """Return the k points at which the share of episodes with a violation rises, [4, k]. The rows are the time [s], the
    share [%], and the lower and upper end of the share's interval [%]. `ANY_LIMIT` also has a point at time 0.
    """
    incidence, share = onset.incidence, onset.incidence.shares[VIOLATED]
    # -1 is put before the shares, which are at least 0, so that the first point (time 0) counts as a rise.
    rises = np.diff(share, prepend=-1.0 if onset.spec_id == ANY_LIMIT else 0.0) > 0
    return np.array([incidence.times, 100 * share, 100 * incidence.low, 100 * incidence.high])[:, rises]


@sheet.figure_style()
def draw_onset(cells: Sequence[CellOnset], remarks: Sequence[str] = ()) -> Figure:
    """Draw a panel for each policy and suite: a line for each violated specification; a line and band for any limit."""
    # A cell is one policy on one suite. Its `specs` are the results for each specification; the last is for any limit.
    # `onset_steps` is empty if no episode violates the specification.
    violated = [
        onset for cell in cells for onset in cell.specs if onset.spec_id != ANY_LIMIT and onset_steps(onset).size
    ]
    names = list(dict.fromkeys(onset.spec_id for onset in violated))
    # The last item of `specs` is `ANY_LIMIT`.
    # Row 3 (the last) of `onset_steps` is the upper end of the share's interval [%].
    highest_share = max((onset_steps(cell.specs[-1])[3, -1] for cell in cells), default=0.0)
    share_end = min(100.0, 10.0 * (highest_share // 10 + 1))  # the next multiple of 10
    key = [sheet.KeyEntry(name, k, lined=True, marked=False) for k, name in enumerate(names)]
    key.append(sheet.KeyEntry(ANY_LIMIT, series=0, lined=True, marked=False, color=_ANY_LIMIT_COLOR))
    share_note = (
        "Share of episodes that have violated a limit so far, among the judged episodes in which the limit applies."
    )
    method = name_method(cell.specs[-1].incidence for cell in cells)
    band_note = f"Band: pointwise 95 % interval of the share for any limit ({method})."
    return sheet.draw_panels(
        "When violations begin",
        # The height of a panel [inches]; a single row of (at most two) panels is taller.
        1.8 if len(cells) <= 2 else 1.05,
        [f"{cell.policy or UNNAMED}, {cell.suite} (n = {cell.specs[-1].incidence.n})" for cell in cells],
        lambda axes, k: _draw_onset_panel(axes, cells[k], names, share_end),
        across="Time in the episode (s)",
        upward="Episodes that have violated (%)",
        empty="No episode was counted.",
        notes=[share_note, band_note, *remarks] if cells else (),
        key=key if cells else (),
    )


def _draw_onset_panel(axes: Axes, cell: CellOnset, names: Sequence[str], share_end: float) -> None:
    # Draw one policy on one suite. `names` are the violated specifications of all panels; the colors depend on `names`.
    # `share_end` is the top of the vertical axis in percent, a multiple of 10.
    axes.set_xlim(0, cell.end_s or 1.0)
    axes.set_ylim(0, share_end * 1.03)
    # The vertical axis has about five ticks.
    tick_step = 20
    if share_end <= 50:
        tick_step = 10 if share_end > 20 else 5
    axes.set_yticks(range(0, int(share_end) + 1, tick_step))
    axes.grid(True)
    for onset in cell.specs:
        times_s, *shares = onset_steps(onset)  # `shares` are three rows: share, lower and upper end of its interval
        if not times_s.size:  # no violation
            continue
        step_times_s = [0.0, *times_s, cell.end_s]
        # The curve starts with the share 0 at time 0, and keeps its last value until the end.
        share, low, high = ([0.0, *row, row[-1]] for row in shares)
        if onset.spec_id == ANY_LIMIT:
            axes.fill_between(step_times_s, low, high, step="post", color=_ANY_LIMIT_COLOR, alpha=0.25, linewidth=0)
            axes.step(step_times_s, share, where="post", color=_ANY_LIMIT_COLOR, linewidth=1.6, zorder=2)
        else:
            series_index = names.index(onset.spec_id)
            ink, dash = sheet.series_color(series_index), sheet.series_dash(series_index)
            axes.step(step_times_s, share, where="post", color=ink, linestyle=dash, linewidth=1.1, zorder=3)
    # The last item of `specs` is for any limit.
    if not cell.specs[-1].incidence.shares[VIOLATED].any():
        axes.text(0.5, 0.5, "no violation", transform=axes.transAxes, ha="center", va="center")
