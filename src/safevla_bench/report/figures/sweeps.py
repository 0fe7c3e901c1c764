"""What a threshold does to a rate: curves over a sweep, with Wilson bands, and the registered anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from safevla_bench.report.figures.sheet import Entry, grid, nothing, sheet
from safevla_bench.report.figures.style import INK, MUTED, SMALL, WIDTH_IN, colour, dash, marker, styled


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy, or one cell: a rate and its interval, in percent, at each threshold."""

    label: str
    n: int
    rate: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the figure shows: a rate, such as Safety, over thresholds in rising order."""

    rate: str
    threshold: str
    """What is swept, with its unit, such as "limit on displacement (mm)"."""
    thresholds: tuple[float, ...]
    curves: tuple[Curve, ...]
    anchors: tuple[tuple[float, str], ...] = ()
    """Thresholds that the library registers, with what they are called."""
    logarithmic: bool = False


_LEFT, _RIGHT, _BELOW, _HIGH, _ABOVE = 0.42, 0.14, 0.38, 2.0, 0.16


def draw(value: Sweep) -> Figure:
    """The figure: a line and a marker a curve, a pale band for its interval, dotted lines at the anchors."""
    with styled():
        key = [Entry(f"{curve.label} (n = {curve.n})", k, lined=True) for k, curve in enumerate(value.curves)]
        notes = ["Bands: 95 % Wilson intervals." + (" Dotted: registered thresholds." if value.anchors else "")]
        shown = value.curves and value.thresholds
        made = sheet(
            f"{value.rate} against the threshold", _HIGH + _ABOVE + _BELOW, notes=notes, key=key if shown else ()
        )
        axes = made.panel(_LEFT, _BELOW, WIDTH_IN - _LEFT - _RIGHT, _HIGH)
        if not shown:
            nothing(axes, "There is nothing to sweep.")
            return made.figure
        if value.logarithmic:
            axes.set_xscale("log")
        for k, curve in enumerate(value.curves):
            axes.fill_between(value.thresholds, curve.low, curve.high, color=colour(k), alpha=0.13, linewidth=0)
            axes.plot(value.thresholds, curve.rate, color=colour(k), linestyle=dash(k), linewidth=1.2, marker=marker(k),
                      markersize=3.5, markevery=_every(len(value.thresholds), k), markeredgecolor="white",
                      markeredgewidth=0.3, clip_on=False, zorder=3)  # fmt: skip
        grid(axes)
        if len(value.thresholds) > 1:
            axes.set_xlim(value.thresholds[0], value.thresholds[-1])
        axes.set_ylim(0, 100)
        for at, name in _apart(value):
            axes.axvline(at, color=INK, linewidth=0.7, linestyle=(0, (1, 1.5)), zorder=2)
            axes.annotate(name, (at, 1.0), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
                          fontsize=SMALL, color=MUTED, ha="center", va="bottom", annotation_clip=False)  # fmt: skip
        axes.set_xlabel(value.threshold[:1].upper() + value.threshold[1:])
        axes.set_ylabel(f"{value.rate} (% of episodes)")
        return made.figure


def _every(count: int, series: int) -> tuple[int, int]:
    """Which thresholds bear a marker: about seven a curve, at other places for other curves."""
    step = max(1, count // 7)
    return (series % step, step)


def _apart(value: Sweep) -> Sequence[tuple[float, str]]:
    """The anchors within the sweep."""
    return [anchor for anchor in value.anchors if value.thresholds[0] <= anchor[0] <= value.thresholds[-1]]
