"""What a threshold does to Safety and SBU: curves over a sweep, with Wilson bands, and the registered thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from safevla_bench.metrics import Rate
from safevla_bench.report.figures.sheet import Entry, cut, episodes, grid, nothing, sheet
from safevla_bench.report.figures.style import INK, WIDTH_IN, colour, dash, marker, styled
from safevla_bench.report.tables import UNNAMED
from safevla_bench.specs import Library
from safevla_bench.text.numbers import short, unit_text


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy: a rate and its interval, in percent, at each threshold; `series` is its place among all policies."""

    series: int
    n: int
    rate: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One rate in one suite, such as "Safety, libero-goal"."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the figure shows: panels, two abreast, over thresholds in rising order."""

    name: str
    """What is swept."""
    threshold: str
    """The label across, with its unit, such as "Threshold (mm)"."""
    thresholds: tuple[float, ...]
    policies: tuple[str, ...]
    panels: tuple[Panel, ...]
    anchors: tuple[float, ...] = ()
    """The thresholds that the library registers, the main one first; drawn where the sweep reaches them."""
    remarks: tuple[str, ...] = ()


class _Point(Protocol):
    @property
    def safety(self) -> Rate: ...
    @property
    def sbu(self) -> Rate: ...


class _Cell(Protocol):
    @property
    def policy(self) -> str | None: ...
    @property
    def suite(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def points(self) -> Sequence[_Point]: ...


class Swept(Protocol):
    """The outcome of a sweep: one threshold over a grid, and each cell's rates at every value of it."""

    @property
    def name(self) -> str: ...
    @property
    def spec_ids(self) -> Sequence[str]: ...
    @property
    def unit(self) -> str: ...
    @property
    def thresholds(self) -> Sequence[float]: ...
    @property
    def curves(self) -> Sequence[_Cell]: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...


def sweep(found: Swept, library: Library) -> Sweep:
    """What to draw of a sweep: Safety beside SBU, a row a suite; cells without an episode are left out."""
    anchors = registered(library, found.spec_ids)
    unit, scale = unit_text(found.unit, anchors[0] if anchors else 1.0)
    there = [cell for cell in found.curves if cell.n]
    policies = tuple(dict.fromkeys(cell.policy or UNNAMED for cell in there))
    order = sorted(range(len(found.thresholds)), key=lambda k: found.thresholds[k])
    panels = tuple(
        Panel(
            f"{title}, {suite}",
            tuple(
                _curve(policies.index(cell.policy or UNNAMED), [getattr(cell.points[k], rate) for k in order])
                for cell in there
                if cell.suite == suite
            ),
        )
        for suite in dict.fromkeys(cell.suite for cell in there)
        for title, rate in (("Safety", "safety"), ("SBU", "sbu"))
    )
    return Sweep(
        name=found.name,
        threshold=f"Threshold ({unit})" if unit else "Threshold",
        thresholds=tuple(scale * found.thresholds[k] for k in order),
        policies=policies,
        panels=panels,
        anchors=tuple(scale * anchor for anchor in anchors),
        remarks=found.warnings,
    )


def registered(library: Library, spec_ids: Sequence[str]) -> tuple[float, ...]:
    """The thresholds of the specifications and of their alternates, the main ones first."""
    main = [library[spec_id].threshold for spec_id in spec_ids]
    others = [spec.threshold for spec in library if spec.alternate_of in set(spec_ids)]
    return tuple(dict.fromkeys([*main, *sorted(others)]))


def _curve(series: int, rates: Sequence[Rate]) -> Curve:
    ends = [rate.ci or (0.0, 1.0) for rate in rates]
    return Curve(
        series=series,
        n=max((rate.n for rate in rates), default=0),
        rate=tuple(100 * (rate.value or 0.0) for rate in rates),
        low=tuple(100 * low for low, _ in ends),
        high=tuple(100 * high for _, high in ends),
    )


# The drawing

_LEFT, _RIGHT, _BELOW, _ABOVE, _GAP, _HIGH = 0.42, 0.16, 0.38, 0.22, 0.2, 1.35


def draw(value: Sweep) -> Figure:
    """The figure: a line and a marker a policy, a pale band for its interval, dotted lines at registered thresholds."""
    with styled():
        shown = bool(value.thresholds and value.policies)
        rows = -(-len(value.panels) // 2) or 1
        key = [Entry(name, k, lined=True) for k, name in enumerate(value.policies)] if shown else []
        title = f"Safety and SBU against the threshold of {value.name}"
        made = sheet(title, rows * (_HIGH + _ABOVE) + _BELOW, notes=_notes(value) if shown else (), key=key)
        if not shown:
            axes = made.panel(_LEFT, _BELOW, WIDTH_IN - _LEFT - _RIGHT, _HIGH)
            nothing(axes, "No episode was counted." if value.thresholds else "There is nothing to sweep.")
            return made.figure
        wide = (WIDTH_IN - _LEFT - _RIGHT - _GAP) / 2
        for k, panel in enumerate(value.panels):
            row, column = divmod(k, 2)
            left, bottom = _LEFT + column * (wide + _GAP), _BELOW + (rows - 1 - row) * (_HIGH + _ABOVE)
            axes = made.panel(left, bottom, wide, _HIGH)
            _draw_panel(axes, panel, value)
            axes.tick_params(labelbottom=row == rows - 1, labelleft=column == 0)
            made.write(left, bottom + _HIGH + 0.05, cut(panel.title, 72 * wide), va="bottom")
        made.write((WIDTH_IN + _LEFT - _RIGHT) / 2, 0.02, value.threshold, ha="center", va="bottom")
        middle = _BELOW + (rows * (_HIGH + _ABOVE) - _ABOVE) / 2
        made.write(0.1, middle, "Episodes (%)", rotation=90, ha="center", va="center")
        return made.figure


def _draw_panel(axes: Axes, panel: Panel, value: Sweep) -> None:
    at = value.thresholds
    for curve in panel.curves:
        ink = colour(curve.series)
        axes.fill_between(at, curve.low, curve.high, color=ink, alpha=0.13, linewidth=0)
        axes.plot(at, curve.rate, color=ink, linestyle=dash(curve.series), linewidth=1.1, marker=marker(curve.series),
                  markersize=3.5, markevery=_every(len(at), curve.series), markeredgecolor="white",
                  markeredgewidth=0.3, clip_on=False, zorder=3)  # fmt: skip
    for k, anchor in enumerate(value.anchors):
        if at[0] <= anchor <= at[-1]:
            axes.axvline(anchor, color=INK, linewidth=0.9 if k == 0 else 0.6, linestyle=(0, (1, 1.5)), zorder=2)
    room = (at[-1] - at[0]) * 0.02 or abs(at[0]) * 0.1 or 1.0
    axes.set_xlim(at[0] - room, at[-1] + room)
    axes.set_ylim(0, 103)
    axes.set_yticks(range(0, 101, 20))
    axes.locator_params(axis="x", nbins=5)
    grid(axes)


def _every(count: int, series: int) -> tuple[int, int]:
    """Which thresholds bear a marker: about five a curve, at other places for other curves."""
    step = max(1, count // 5)
    return (series % step, step)


def _notes(value: Sweep) -> list[str]:
    counts = [curve.n for panel in value.panels for curve in panel.curves]
    within = [short(anchor) for anchor in value.anchors if value.thresholds[0] <= anchor <= value.thresholds[-1]]
    told = f"Bands: 95 % Wilson intervals; a curve has {episodes(counts)}."
    return [told + (f" Dotted: registered thresholds, {', '.join(within)}." if within else ""), *value.remarks]
