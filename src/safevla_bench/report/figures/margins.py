"""Margins ρ/τ of each policy to each limit, below zero where the limit is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator
from numpy.typing import NDArray

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.scores import ACTIVE, VACUOUS, Scores
from safevla_bench.report.figures import sheet, style

MAX_DOTS = 40
"""Episodes of a row are drawn one by one if there are no more than this."""
_QUANTILES = (0, 25, 50, 75, 100)


@dataclass(frozen=True, slots=True)
class MarginRow:
    """One policy under one specification: least, quartiles and greatest margin; None without a verdict."""

    series: int
    n: int
    """Episodes with a margin."""
    violated: int
    vacuous: int
    inactive: int
    quantiles: tuple[float, ...] | None
    dots: tuple[float, ...] = ()
    unmeasured: int = 0
    """Episodes in which a Boolean signal decided a violation, so that it has no margin."""


@dataclass(frozen=True, slots=True)
class Margins:
    """The content of the figure: a block of rows for each specification that reached a margin."""

    policies: tuple[str, ...]
    blocks: tuple[tuple[str, tuple[MarginRow, ...]], ...]
    silent: tuple[str, ...]
    """Specifications that reached no margin in any episode."""
    remarks: tuple[str, ...] = ()


def compute_margins(scores: Scores) -> Margins:
    """Return margins over thresholds, ρ/τ, of the judged episodes by specification of the safe tier and policy.

    Specifications without a margin or a Boolean verdict in any episode are named in `silent`.
    """
    members = sheet.judged_by_policy(scores)
    blocks, silent = [], []
    for column in scores.scored_columns:
        rows = tuple(_margin_row(scores, int(column), k, selected) for k, selected in enumerate(members.values()))
        if any(row.n or row.unmeasured for row in rows):
            blocks.append((scores.specs[column].spec_id, rows))
        else:
            silent.append(scores.specs[column].spec_id)
    return Margins(tuple(members), tuple(blocks), tuple(silent), provenance_marks.warn_of_scores(scores))


def _margin_row(scores: Scores, column: int, series: int, selected: NDArray[np.bool_]) -> MarginRow:
    """Return the margins ρ/τ of the selected episodes, one by one for up to 40, and counts of those that have none."""
    state = scores.state[column, selected]
    rho = scores.rho[column, selected][state == ACTIVE]
    margin = rho[np.isfinite(rho)] / scores.specs[column].threshold
    quantiles = tuple(np.percentile(margin, _QUANTILES).tolist()) if len(margin) else None
    return MarginRow(
        series=series,
        n=len(margin),
        violated=int((margin < 0).sum()),
        vacuous=int((state == VACUOUS).sum()),
        inactive=int((state != ACTIVE).sum() - (state == VACUOUS).sum()),
        quantiles=quantiles,
        dots=tuple(np.sort(margin).tolist()) if len(margin) <= MAX_DOTS else (),
        unmeasured=len(rho) - len(margin),
    )


@style.figure_style()
def draw_margins(value: Margins) -> Figure:
    """Draw boxes from quartile to quartile, lines from the least to the greatest, and dots for few margins."""
    texts, numbered = sheet.series_signs(value.policies, 0.9)
    heights = [len(rows) for _, rows in value.blocks]
    figure = sheet.make_sheet("Margins to each limit", 0.9 + 0.16 * sum(heights) + 0.2 * len(heights))
    if not heights:
        sheet.draw_empty(figure.subplots(), "No specification reached a verdict in any episode.")
        return sheet.finish_sheet(figure)
    grid = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights).ravel()
    for axes, (spec_id, rows) in zip(grid, value.blocks, strict=True):
        axes.set_title(spec_id)
        _draw_block(axes, rows, texts, last=axes is grid[-1])
    _scale_across(grid[-1], *_axis_limits(value))
    left, right = grid[-1].get_xlim()
    for axes in grid:
        axes.axvspan(left, 0, color="#f6e7dc", linewidth=0, zorder=0)
    grid[-1].set_xlim(left, right)
    grid[-1].set_xlabel("margin / threshold (ρ/τ)")
    key = [sheet.KeyEntry(name, k, texts[k]) for k, name in enumerate(value.policies)] if numbered else []
    return sheet.finish_sheet(figure, _margin_notes(value), key)


def _draw_block(axes: Axes, rows: Sequence[MarginRow], texts: Sequence[str], *, last: bool) -> None:
    places = range(len(rows) - 1, -1, -1)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.set_yticks(places, [texts[row.series] for row in rows], fontsize=style.SMALL)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=2.5 if last else 0)
    axes.spines["left"].set_visible(False)
    if not last:
        axes.spines["bottom"].set_color(style.LINE)
    axes.axvline(0, color=style.INK, linewidth=0.7, zorder=3)
    axes.grid(True, axis="x")
    for place, row in zip(places, rows, strict=True):
        _draw_row(axes, place, row)
        axes.annotate(
            _format_counts(row), (1, place), (4, 0), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", fontsize=style.SMALL, color=style.MUTED, va="center",
        )  # fmt: skip


def _axis_limits(value: Margins) -> tuple[float, float]:
    ends = [row.quantiles for _, rows in value.blocks for row in rows if row.quantiles]
    lowest = min((quantiles[0] for quantiles in ends), default=0.0)
    return min(-0.25, lowest), max((1.0, *(quantiles[-1] for quantiles in ends)))


_FAR_THRESHOLDS = 2.0
"""Margins beyond this many thresholds put the axis on a logarithmic scale."""


def _scale_across(axes: Axes, low: float, most: float) -> None:
    if low >= -_FAR_THRESHOLDS and most <= _FAR_THRESHOLDS:
        room = 0.05 * (most - low)
        axes.set_xlim(low - room, most + room)
        return
    axes.set_xscale("symlog", linthresh=1.0, linscale=1.0)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1.0))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(low * 1.6 if low < -1 else -1.3, max(1.3, most * 1.6 if most > 1 else 1.3))


def _draw_row(axes: Axes, y: float, row: MarginRow) -> None:
    if row.quantiles is None:
        return
    least, lower, middle, upper, greatest = row.quantiles
    ink = style.series_colour(row.series)
    axes.plot([least, greatest], [y, y], color=ink, linewidth=0.7, zorder=2)
    axes.fill_between([lower, upper], y - 0.27, y + 0.27, facecolor=ink, alpha=0.3, edgecolor="none", zorder=2)
    axes.plot(row.dots, [y] * len(row.dots), color=ink, marker="|", markersize=4,
              markeredgewidth=0.6, linestyle="none", zorder=3)  # fmt: skip
    axes.plot([middle], [y], color=ink, marker=style.series_marker(row.series), markersize=4.5,
              markeredgecolor="white", markeredgewidth=0.5, zorder=4, clip_on=False)  # fmt: skip


def _format_counts(row: MarginRow) -> str:
    if not row.n and not row.unmeasured:
        return f"{row.vacuous} vacuous" if row.vacuous else "inactive"
    vacuous = f" + {row.vacuous} vac." if row.vacuous else ""
    unmeasured = f" + {row.unmeasured} bool." if row.unmeasured else ""
    return f"{row.violated}/{row.n}{unmeasured}{vacuous}"


def _margin_notes(value: Margins) -> list[str]:
    notes = ["Below zero, shaded: the limit is broken. Marker: median; box: quartiles; line: least to greatest.",
            "Right: violating episodes / episodes with a margin, and vacuous ones (vac.)."]  # fmt: skip
    if any(row.unmeasured for _, rows in value.blocks for row in rows):
        notes.append("Violations decided by a Boolean signal have no margin and are counted apart (bool.).")
    low, most = _axis_limits(value)
    if low < -_FAR_THRESHOLDS or most > _FAR_THRESHOLDS:
        notes.append("Linear between −1 and 1, logarithmic beyond.")
    if value.silent:
        notes.append(f"No margin anywhere: {', '.join(value.silent)}.")
    return [*notes, *value.remarks]
