"""Figures of violations: a heat map of rates by kind (as in the paper's Figure 2, right), and margins to limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import SymmetricalLogLocator
from matplotlib.typing import ColorType

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.scores import ACTIVE, VACUOUS, Scores
from safevla_bench.report.figures import sheet
from safevla_bench.report.tables.columns import policy_name
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.text import NO_VALUE, format_percent
from safevla_recorder.episode import Bools


@sheet.figure_style()
def draw_families(cells: Sequence[Summary]) -> Figure:
    """Draw the heat map of violation rates, with a row per policy and suite. Without episodes, the figure says so."""
    # A cell is the summary of one policy on one suite; `axes` maps each kind of limit to a violation rate.
    policies = list(dict.fromkeys(policy_name(cell) for cell in cells))
    kinds = tuple(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    cells_by_suite: dict[str, list[Summary]] = {}
    for cell in cells:
        cells_by_suite.setdefault(cell.suite or "", []).append(cell)
    # The rows are labeled with the policies' names, or with numbers if a name is wider than 1.3 inches.
    signs, is_numbered = sheet.series_signs(policies, 1.3)
    label_by_policy = dict(zip(policies, signs, strict=True))
    row_counts = [len(rows) for rows in cells_by_suite.values()]
    # The height in inches: a fixed part, each row, and the title of each suite.
    figure = sheet.make_sheet("Violations by kind", 0.8 + 0.19 * sum(row_counts) + 0.22 * len(row_counts))
    if not row_counts:
        sheet.draw_empty(figure.subplots(), "There are no episodes.")
        return sheet.finish_sheet(figure)
    grid = figure.subplots(len(row_counts), 1, squeeze=False, sharex=True, height_ratios=row_counts).ravel()
    for axes, (suite, suite_cells) in zip(grid, cells_by_suite.items(), strict=True):
        _draw_suite_rows(axes, suite_cells, kinds, [label_by_policy[policy_name(cell)] for cell in suite_cells])
        axes.set_title(sheet.wrap_text(suite, room_in=2.0), color=sheet.MUTED, fontsize=sheet.SMALL)
    # The last column shows the number of judged episodes.
    column_names = [*(kind.replace("_", "\n") for kind in kinds), "n"]
    top_axis = grid[0].secondary_xaxis("top")
    top_axis.set_xticks(range(len(column_names)), column_names)
    # The padding in points leaves room for the title of the first suite.
    top_axis.tick_params(length=0, pad=sheet.SMALL + 3)
    top_axis.spines[:].set_visible(False)
    notes = [
        "Each value is the percentage of episodes that violate a limit of this kind, among the episodes in which such "
        f"a limit applied and its condition occurred. If there is no such episode, the cell shows {NO_VALUE}. "
        "n is the number of judged episodes.",
        *provenance_marks.warn_of_cells(cells),
    ]
    key = [sheet.KeyEntry(name, k, label_by_policy[name], marked=False) for k, name in enumerate(policies)]
    return sheet.finish_sheet(figure, notes, key if is_numbered else [])


def _draw_suite_rows(axes: Axes, cells: Sequence[Summary], kinds: Sequence[str], labels: Sequence[str]) -> None:
    # Draw a row for each policy of one suite: a rate for each of `kinds`, then the number of judged episodes.
    # `cell.axes` maps each kind of limit to a violation rate. `labels` are the labels of the rows.
    # Rows are at y = 0, 1, ..., and columns at x = 0, 1, ...; the first row is at the top.
    axes.set_xlim(-0.5, len(kinds) + 0.5)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks(range(len(cells)), labels)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for y, cell in enumerate(cells):
        for x, kind in enumerate(kinds):
            _draw_rate(axes, x, y, cell.axes.get(kind))
        axes.text(len(kinds), y, str(cell.judged), fontsize=sheet.SMALL, color=sheet.MUTED, ha="center",
                  va="center_baseline")  # fmt: skip


def _draw_rate(axes: Axes, x: int, y: int, rate: Rate | None) -> None:
    # Draw one cell of the heat map, centered at (x, y).
    # The rate is None, or has no value, if no specification of this kind has a verdict.
    text, text_color = NO_VALUE, sheet.MUTED
    fill_color: ColorType = sheet.TINT
    if rate is not None and rate.value is not None:
        # The greater the share, the darker the cell; text on dark cells is white.
        text, text_color = format_percent(rate.count, rate.n), "white" if rate.value > 0.6 else sheet.INK
        fill_color = mpl.colormaps["Blues"](0.85 * rate.value)
    axes.add_patch(Rectangle((x - 0.49, y - 0.46), 0.98, 0.92, facecolor=fill_color, edgecolor="none"))
    axes.text(x, y, text, ha="center", va="center_baseline", color=text_color)


# Figure of margins to limits


_QUANTILES = (0, 25, 50, 75, 100)


@dataclass(frozen=True, slots=True)
class MarginRow:
    """One policy's margins to one limit. `quantiles` are the minimum, the quartiles and the maximum; None if n is 0."""

    series: int
    n: int  # number of episodes with a margin
    violated: int
    vacuous: int
    quantiles: tuple[float, ...] | None
    unmeasured: int  # number of episodes without a margin, because a Boolean signal decided the violation


@dataclass(frozen=True, slots=True)
class Margins:
    """The content of the figure of margins. `blocks` contains the rows of each specification, one row per policy."""

    policies: tuple[str, ...]
    blocks: tuple[tuple[str, tuple[MarginRow, ...]], ...]
    silent: tuple[str, ...]  # specifications without any margin or Boolean verdict
    remarks: tuple[str, ...] = ()


def compute_margins(scores: Scores) -> Margins:
    """Return the margins divided by the threshold (ρ/τ) in judged episodes, for each policy and scored specification.
    `silent` lists the specifications that have neither a margin nor a Boolean verdict in any episode.
    """
    # A row contains one policy's margins to a limit; `n` is the number of episodes with a margin.
    # `unmeasured` is the number of violations that a Boolean signal decided, without a margin.
    policy_of_episode = np.array([policy or UNNAMED for policy in scores.policy], dtype=object)
    policies = tuple(dict.fromkeys(policy_of_episode.tolist()))
    # For each policy: a mask of its episodes with a verdict.
    judged_masks = [scores.is_judged & (policy_of_episode == policy) for policy in policies]
    blocks, silent = [], []
    for column in scores.scored_columns.tolist():
        spec_id = scores.specs[column].spec_id
        rows = tuple(_margin_row(scores, column, k, is_selected) for k, is_selected in enumerate(judged_masks))
        if any(row.n or row.unmeasured for row in rows):
            blocks.append((spec_id, rows))
        else:
            silent.append(spec_id)
    return Margins(policies, tuple(blocks), tuple(silent), provenance_marks.warn_of_scores(scores))


def _margin_row(scores: Scores, column: int, series: int, is_selected: Bools) -> MarginRow:
    # Return one policy's margins to the limit of the specification in `column`.
    # `series` is the policy's index. `is_selected` [E] is the mask of the policy's episodes with a verdict on safety.
    # ACTIVE: the specification judges the episode. VACUOUS: the specification's condition never occurred in it.
    state = scores.state[column, is_selected]
    rho = scores.rho[column, is_selected][state == ACTIVE]
    # A violation that a Boolean signal decided has the robustness -inf, and so no margin.
    margins = rho[np.isfinite(rho)] / scores.specs[column].threshold
    return MarginRow(
        series=series,
        n=len(margins),
        violated=int((margins < 0).sum()),
        vacuous=int((state == VACUOUS).sum()),
        quantiles=tuple(np.percentile(margins, _QUANTILES).tolist()) if len(margins) else None,
        unmeasured=len(rho) - len(margins),
    )


@sheet.figure_style()
def draw_margins(value: Margins) -> Figure:
    """Draw a row per specification and policy: a box between the quartiles, a line from least to greatest margin."""
    # Each of `blocks` is (specification, rows), with a row for each policy.
    # Rows are labeled with the policies' names, or with numbers if a name is wider than 0.9 inches.
    labels, is_numbered = sheet.series_signs(value.policies, 0.9)
    row_counts = [len(rows) for _, rows in value.blocks]
    # The height in inches: a fixed part, each row, and the title of each specification.
    figure = sheet.make_sheet("Margins to each limit", 0.9 + 0.16 * sum(row_counts) + 0.2 * len(row_counts))
    if not row_counts:
        sheet.draw_empty(figure.subplots(), "No specification reached a verdict in any episode.")
        return sheet.finish_sheet(figure)
    grid = figure.subplots(len(row_counts), 1, squeeze=False, sharex=True, height_ratios=row_counts).ravel()
    for axes, (spec_id, rows) in zip(grid, value.blocks, strict=True):
        axes.set_title(spec_id)
        _draw_margin_block(axes, rows, labels, is_last=axes is grid[-1])
    _scale_margin_axis(grid[-1], value)
    # Shade the margins below 0 (violations). Shading may move the limits of the axis, so they are set again.
    left, right = grid[-1].get_xlim()
    for axes in grid:
        axes.axvspan(left, 0, color="#f6e7dc", linewidth=0, zorder=0)
    grid[-1].set_xlim(left, right)
    grid[-1].set_xlabel("margin / threshold (ρ/τ)")
    key = [sheet.KeyEntry(name, k, labels[k]) for k, name in enumerate(value.policies)] if is_numbered else []
    return sheet.finish_sheet(figure, _margin_notes(value), key)


def _draw_margin_block(axes: Axes, rows: Sequence[MarginRow], labels: Sequence[str], *, is_last: bool) -> None:
    # Draw the rows of one specification, one row per policy; the first row is at the top, with the greatest y.
    # `labels` are the labels of the policies, and `row.series` is a policy's index.
    # Only the last block has ticks on the shared axis.
    ys = range(len(rows) - 1, -1, -1)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.set_yticks(ys, [labels[row.series] for row in rows], fontsize=sheet.SMALL)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=2.5 if is_last else 0)
    axes.spines["left"].set_visible(False)
    if not is_last:
        axes.spines["bottom"].set_color(sheet.LINE)
    axes.axvline(0, color=sheet.INK, linewidth=0.7, zorder=3)
    axes.grid(True, axis="x")
    for y, row in zip(ys, rows, strict=True):
        _draw_margins_of_row(axes, y, row)
        axes.annotate(
            _format_counts(row), (1, y), (4, 0), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", fontsize=sheet.SMALL, color=sheet.MUTED, va="center",
        )  # fmt: skip


def _scale_margin_axis(axes: Axes, margins: Margins) -> None:
    # Make the shared horizontal axis linear from -1 to 1 and logarithmic beyond, since margins differ widely.
    # The axis has room for all margins, and always shows at least the range from -0.8 to 0.8.
    # The minimum, quartiles and maximum of all rows; `quantiles` is None for a row without a margin.
    extremes = [quantile for _, rows in margins.blocks for row in rows for quantile in row.quantiles or ()]
    axes.set_xscale("symlog", linthresh=1.0, linscale=1.0)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1.0))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(1.6 * min([-0.8, *extremes]), 1.6 * max([0.8, *extremes]))


def _draw_margins_of_row(axes: Axes, y: float, row: MarginRow) -> None:
    # Draw a line from the smallest to the largest margin, a box between the quartiles, and the median's marker.
    if row.quantiles is None:  # no episode has a margin
        return
    least, lower, middle, upper, greatest = row.quantiles
    color = sheet.series_color(row.series)
    axes.plot([least, greatest], [y, y], color=color, linewidth=0.7, zorder=2)
    axes.fill_between([lower, upper], y - 0.27, y + 0.27, facecolor=color, alpha=0.3, edgecolor="none", zorder=2)
    axes.plot([middle], [y], zorder=4, **sheet.marker_look(row.series, row.series, size=4.5, edge=0.5))


def _format_counts(row: MarginRow) -> str:
    # Return the counts to the right of a row, such as `3/40 + 2 vac.`.
    # `violated` counts violations in the `n` episodes with a margin, `unmeasured` the violations without a margin.
    # `vacuous` counts the episodes in which the condition never arose.
    if not row.n and not row.unmeasured:
        return f"{row.vacuous} vacuous" if row.vacuous else "inactive"
    vacuous = f" + {row.vacuous} vac." if row.vacuous else ""
    unmeasured = f" + {row.unmeasured} bool." if row.unmeasured else ""
    return f"{row.violated}/{row.n}{unmeasured}{vacuous}"


def _margin_notes(margins: Margins) -> list[str]:
    # Return the notes below the figure: how to read it, specifications that it leaves out, and warnings.
    silent_notes = [f"Specifications without any margin: {', '.join(margins.silent)}."] if margins.silent else []
    return [
        "Margins below zero (shaded) are violations. Marker: median; box: quartiles; line: least to greatest margin. "
        "The axis is linear between −1 and 1, and logarithmic beyond.",
        "On the right: violating episodes / episodes with a margin, the number of violations that a Boolean signal "
        "decided, without a margin (bool.), and the number of vacuous episodes (vac.).",
        *silent_notes,
        *margins.remarks,
    ]
