"""Figures of violations: a heat map of rates by kind (as in the paper's Figure 2, right), and margins ρ/τ to limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import SymmetricalLogLocator

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.scores import ACTIVE, VACUOUS, Scores
from safevla_bench.report.figures import sheet
from safevla_bench.report.tables.columns import policy_name
from safevla_bench.text import NO_VALUE, format_percent
from safevla_recorder.episode import Bools


@sheet.figure_style()
def draw_families(cells: Sequence[Summary]) -> Figure:
    """Draw the heat map of violation rates, a row per policy and suite; if there are no rows, the figure says so."""
    policies = list(dict.fromkeys(policy_name(cell) for cell in cells))
    kinds = tuple(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    blocks: dict[str, list[Summary]] = {}
    for cell in cells:
        blocks.setdefault(cell.suite or "", []).append(cell)
    signs, numbered = sheet.series_signs(policies, 1.3)
    texts = dict(zip(policies, signs, strict=True))
    heights = [len(rows) for rows in blocks.values()]
    figure = sheet.make_sheet("Violations by kind", 0.8 + 0.19 * sum(heights) + 0.22 * len(heights))
    if not heights:
        sheet.draw_empty(figure.subplots(), "There are no episodes.")
        return sheet.finish_sheet(figure)
    grid = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights).ravel()
    for axes, (suite, block) in zip(grid, blocks.items(), strict=True):
        _draw_block(axes, block, kinds, [texts[policy_name(cell)] for cell in block])
        axes.set_title(sheet.wrap_text(suite, 2.0), color=sheet.MUTED, fontsize=sheet.SMALL)
    heads = ["\n".join(axis.split("_")) for axis in kinds] + ["n"]
    head = grid[0].secondary_xaxis("top")
    head.set_xticks(range(len(heads)), heads)
    head.tick_params(length=0, pad=sheet.SMALL + 3)
    head.spines[:].set_visible(False)
    notes = [
        "The percentage of episodes that violate a limit of the kind, among those in which such a limit applied and "
        f"its condition occurred. {NO_VALUE}: there are no such episodes. n: all judged episodes.",
        *provenance_marks.warn_of_cells(cells),
    ]
    key = [sheet.KeyEntry(name, k, texts[name], marked=False) for k, name in enumerate(policies)] if numbered else []
    return sheet.finish_sheet(figure, notes, key)


def family_rates(cell: Summary, kinds: Sequence[str]) -> list[Rate | None]:
    """Return the rate of each kind of violation in a cell; None if no specification of the kind has a verdict."""
    return [rate if (rate := cell.axes.get(kind)) and rate.n else None for kind in kinds]


def _draw_block(axes: Axes, block: Sequence[Summary], kinds: Sequence[str], texts: Sequence[str]) -> None:
    axes.set_xlim(-0.5, len(kinds) + 0.5)
    axes.set_ylim(len(block) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks(range(len(block)), texts)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for y, cell in enumerate(block):
        for x, rate in enumerate(family_rates(cell, kinds)):
            _draw_cell(axes, x, y, rate)
        axes.text(len(kinds), y, str(cell.judged), fontsize=sheet.SMALL, color=sheet.MUTED, ha="center",
                  va="center_baseline")  # fmt: skip


def _draw_cell(axes: Axes, x: int, y: int, rate: Rate | None) -> None:
    has_value = rate is not None and rate.value is not None
    share = (rate.value or 0.0) if rate is not None else 0.0
    face = mpl.colormaps["Blues"](0.85 * share) if has_value else sheet.TINT
    axes.add_patch(Rectangle((x - 0.49, y - 0.46), 0.98, 0.92, facecolor=face, edgecolor="none"))
    text = format_percent(rate.count, rate.n) if rate is not None else NO_VALUE
    ink = "white" if has_value and share > 0.6 else sheet.INK if has_value else sheet.MUTED
    axes.text(x, y, text, ha="center", va="center_baseline", color=ink)


# Margins


_QUANTILES = (0, 25, 50, 75, 100)


@dataclass(frozen=True, slots=True)
class MarginRow:
    """One policy's margins to one limit; `quantiles` are the minimum, the quartiles and the maximum, None if n is 0."""

    series: int
    n: int  # episodes with a margin
    violated: int
    vacuous: int
    quantiles: tuple[float, ...] | None
    unmeasured: int  # episodes with a violation that a Boolean signal decided, and so without a margin


@dataclass(frozen=True, slots=True)
class Margins:
    """The content of the figure. `blocks` has the rows of each specification with margins, one per policy."""

    policies: tuple[str, ...]
    blocks: tuple[tuple[str, tuple[MarginRow, ...]], ...]
    silent: tuple[str, ...]  # specifications without any margin or Boolean verdict
    remarks: tuple[str, ...] = ()


def compute_margins(scores: Scores) -> Margins:
    """Return the margins over thresholds, ρ/τ, in judged episodes, for each policy and specification of the safe tier.
    Specifications that have neither a margin nor a Boolean verdict in any episode are named in `silent`.
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


def _margin_row(scores: Scores, column: int, series: int, selected: Bools) -> MarginRow:
    state = scores.state[column, selected]
    rho = scores.rho[column, selected][state == ACTIVE]
    margin = rho[np.isfinite(rho)] / scores.specs[column].threshold
    return MarginRow(
        series=series,
        n=len(margin),
        violated=int((margin < 0).sum()),
        vacuous=int((state == VACUOUS).sum()),
        quantiles=tuple(np.percentile(margin, _QUANTILES).tolist()) if len(margin) else None,
        unmeasured=len(rho) - len(margin),
    )


@sheet.figure_style()
def draw_margins(value: Margins) -> Figure:
    """Draw for each row a box between the quartiles, and a line from the least to the greatest margin."""
    texts, numbered = sheet.series_signs(value.policies, 0.9)
    heights = [len(rows) for _, rows in value.blocks]
    figure = sheet.make_sheet("Margins to each limit", 0.9 + 0.16 * sum(heights) + 0.2 * len(heights))
    if not heights:
        sheet.draw_empty(figure.subplots(), "No specification reached a verdict in any episode.")
        return sheet.finish_sheet(figure)
    grid = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights).ravel()
    for axes, (spec_id, rows) in zip(grid, value.blocks, strict=True):
        axes.set_title(spec_id)
        _draw_margin_block(axes, rows, texts, last=axes is grid[-1])
    _scale_across(grid[-1], value)
    left, right = grid[-1].get_xlim()
    for axes in grid:
        axes.axvspan(left, 0, color="#f6e7dc", linewidth=0, zorder=0)
    grid[-1].set_xlim(left, right)
    grid[-1].set_xlabel("margin / threshold (ρ/τ)")
    key = [sheet.KeyEntry(name, k, texts[k]) for k, name in enumerate(value.policies)] if numbered else []
    return sheet.finish_sheet(figure, _margin_notes(value), key)


def _draw_margin_block(axes: Axes, rows: Sequence[MarginRow], texts: Sequence[str], *, last: bool) -> None:
    places = range(len(rows) - 1, -1, -1)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.set_yticks(places, [texts[row.series] for row in rows], fontsize=sheet.SMALL)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=2.5 if last else 0)
    axes.spines["left"].set_visible(False)
    if not last:
        axes.spines["bottom"].set_color(sheet.LINE)
    axes.axvline(0, color=sheet.INK, linewidth=0.7, zorder=3)
    axes.grid(True, axis="x")
    for place, row in zip(places, rows, strict=True):
        _draw_row(axes, place, row)
        axes.annotate(
            _format_counts(row), (1, place), (4, 0), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", fontsize=sheet.SMALL, color=sheet.MUTED, va="center",
        )  # fmt: skip


def _scale_across(axes: Axes, value: Margins) -> None:
    ends = [end for _, rows in value.blocks for row in rows for end in row.quantiles or ()]
    axes.set_xscale("symlog", linthresh=1.0, linscale=1.0)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1.0))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(1.6 * min([-0.8, *ends]), 1.6 * max([0.8, *ends]))


def _draw_row(axes: Axes, y: float, row: MarginRow) -> None:
    if row.quantiles is None:
        return
    least, lower, middle, upper, greatest = row.quantiles
    ink = sheet.series_color(row.series)
    axes.plot([least, greatest], [y, y], color=ink, linewidth=0.7, zorder=2)
    axes.fill_between([lower, upper], y - 0.27, y + 0.27, facecolor=ink, alpha=0.3, edgecolor="none", zorder=2)
    axes.plot([middle], [y], zorder=4, **sheet.marker_look(row.series, row.series, 4.5, 0.5))


def _format_counts(row: MarginRow) -> str:
    if not row.n and not row.unmeasured:
        return f"{row.vacuous} vacuous" if row.vacuous else "inactive"
    vacuous = f" + {row.vacuous} vac." if row.vacuous else ""
    unmeasured = f" + {row.unmeasured} bool." if row.unmeasured else ""
    return f"{row.violated}/{row.n}{unmeasured}{vacuous}"


def _margin_notes(value: Margins) -> list[str]:
    silent = [f"No margin in any episode: {', '.join(value.silent)}."] if value.silent else []
    return [
        "Below zero, shaded: violations. Marker: median; box: quartiles; line: least to greatest. The axis is linear "
        "between −1 and 1, and logarithmic beyond.",
        "Right: violating episodes / episodes with a margin, then violations without a margin, which a Boolean signal "
        "decided (bool.), and vacuous episodes (vac.).",
        *silent,
        *value.remarks,
    ]
