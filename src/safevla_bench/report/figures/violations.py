"""Violations of each policy: rates by kind as a heat map (Figure 2, right), and rate against mean depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.scores import INACTIVE, Scores
from safevla_bench.report.figures.sheet import (
    KeyEntry,
    Sheet,
    draw_empty,
    draw_grid,
    format_episode_range,
    make_sheet,
    series_signs,
)
from safevla_bench.report.figures.style import (
    INK,
    MUTED,
    SMALL,
    TINT,
    Box,
    figure_style,
    place_labels,
    series_colour,
    series_marker,
    sheet_width,
    text_width_pt,
)
from safevla_bench.report.tables.table import UNNAMED, policy_name
from safevla_bench.text import NO_VALUE, format_percent


@dataclass(frozen=True, slots=True)
class PolicyViolationRow:
    """One policy in one suite; a rate is None where no specification of the axis was active."""

    series: int
    n: int
    rates: tuple[Rate | None, ...]


@dataclass(frozen=True, slots=True)
class Families:
    """The content of the figure: the axes are columns, suites are blocks of rows."""

    policies: tuple[str, ...]
    axes: tuple[str, ...]
    blocks: tuple[tuple[str, tuple[PolicyViolationRow, ...]], ...]
    remarks: tuple[str, ...] = ()


def compute_families(cells: Sequence[Summary]) -> Families:
    """Return violation rates by axis, over all judged episodes of a cell; suites in order of first appearance."""
    policies = tuple(dict.fromkeys(policy_name(cell) for cell in cells))
    axes = tuple(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    blocks: dict[str, list[PolicyViolationRow]] = {}
    for cell in cells:
        rates = tuple(_axis_rate(cell, axis) for axis in axes)
        blocks.setdefault(cell.suite or "", []).append(
            PolicyViolationRow(policies.index(policy_name(cell)), cell.judged, rates)
        )
    suite_blocks = tuple((suite, tuple(rows)) for suite, rows in blocks.items())
    return Families(policies, axes, suite_blocks, provenance_marks.warn_of_cells(cells))


def _axis_rate(cell: Summary, axis: str) -> Rate | None:
    active = any(spec.active for spec in cell.specs if spec.axis == axis and spec.tier == "safe")
    return cell.axes.get(axis) if active and cell.judged else None


_ROW, _HEAD, _BLOCK, _COUNT = 0.19, 0.3, 0.2, 0.36


def draw_families(value: Families) -> Figure:
    """Draw the heat map: the shade of a cell and its number are the rate in percent. Without a row it says so."""
    with figure_style():
        texts, numbered = series_signs(value.policies, 95)
        rows = sum(len(rows) for _, rows in value.blocks)
        body = _HEAD + rows * _ROW + len(value.blocks) * _BLOCK if rows else 0.8
        key = [KeyEntry(name, k, texts[k], marked=False) for k, name in enumerate(value.policies)] if numbered else []
        scale_end = _scale_end(value)
        notes = [f"Share of the judged episodes of a row that violate any active limit of the kind, in percent; shade: "
                 f"0 to {scale_end} %. {NO_VALUE}: no such limit applies.", *value.remarks]  # fmt: skip
        sheet = make_sheet("Violations by kind", body, notes=notes if rows else (), key=key)
        if not rows:
            draw_empty(sheet.add_panel(0.1, 0, sheet_width() - 0.2, body), "There are no episodes.")
            return sheet.figure
        left = 0.1 + max(text_width_pt(text) for text in texts) / 72 + 0.06
        wide = sheet_width() - left - _COUNT
        axes = sheet.add_panel(left, 0, wide, body)
        axes.set_axis_off()
        axes.set_xlim(0, wide)
        axes.set_ylim(0, body)
        step = wide / max(len(value.axes), 1)
        _write_heads(sheet, value.axes, left, step, body)
        top = body - _HEAD
        for suite, block in value.blocks:
            sheet.write_text(0.06, top - _BLOCK / 2 - 0.02, suite, SMALL, color=MUTED, va="center")
            top -= _BLOCK
            for row in block:
                _write_row(sheet, row, texts[row.series], left, top)
                for k, rate in enumerate(row.rates):
                    _draw_cell(axes, k * step, top - _ROW, step, rate, scale_end)
                top -= _ROW
        return sheet.figure


def _write_heads(sheet: Sheet, kinds: Sequence[str], left: float, step: float, body: float) -> None:
    for k, kind in enumerate(kinds):
        words = kind.split("_")
        for line, word in enumerate(words):
            y = body - _HEAD / 2 + (len(words) / 2 - line - 0.5) * 0.125
            sheet.write_text(left + (k + 0.5) * step, y, word, ha="center", va="center_baseline")
    x = sheet_width() - _COUNT + 0.3
    sheet.write_text(x, body - _HEAD / 2, "n", color=MUTED, ha="right", va="center_baseline")


def _write_row(sheet: Sheet, row: PolicyViolationRow, sign: str, left: float, top: float) -> None:
    y = top - _ROW / 2
    sheet.write_text(left - 0.06, y, sign, ha="right", va="center_baseline")
    x = sheet_width() - _COUNT + 0.3
    sheet.write_text(x, y, str(row.n), SMALL, color=MUTED, ha="right", va="center_baseline")


def _scale_end(value: Families) -> int:
    rates = [rate.value for _, rows in value.blocks for row in rows for rate in row.rates if rate]
    highest = max((100 * rate for rate in rates if rate is not None), default=0.0)
    return max(10, int(-(-highest // 10) * 10))


def _draw_cell(axes: mpl.axes.Axes, x: float, y: float, step: float, rate: Rate | None, scale_end: int) -> None:
    has_value = rate is not None and rate.value is not None
    share = 100 * (rate.value or 0.0) / scale_end if rate is not None else 0.0
    face = mpl.colormaps["Blues"](0.85 * share) if has_value else TINT
    axes.add_patch(Rectangle((x + 0.01, y + 0.01), step - 0.02, _ROW - 0.02, facecolor=face, edgecolor="none"))
    text = format_percent(rate.count, rate.n) if rate is not None else NO_VALUE
    ink = "white" if has_value and share > 0.6 else INK if has_value else MUTED
    axes.text(x + step / 2, y + _ROW / 2, text, ha="center", va="center_baseline", color=ink)


# How often and how badly


@dataclass(frozen=True, slots=True)
class SeverityPoint:
    """One specification that a policy violated: indices of both, rate in percent of n, mean depth of the violations."""

    series: int
    spec: int
    n: int
    rate: float
    depth: float


@dataclass(frozen=True, slots=True)
class Severity:
    """The content of the figure; `unviolated` counts pairs without a violation, `inactive` those that do not apply.

    `no_depth` counts pairs whose violations have no depth, as their specification has no severe magnitude.
    """

    policies: tuple[str, ...]
    specs: tuple[str, ...]
    """Specifications that at least one policy violated."""
    points: tuple[SeverityPoint, ...]
    unviolated: int
    inactive: int
    no_depth: int = 0
    remarks: tuple[str, ...] = ()


def compute_severity(scores: Scores) -> Severity:
    """Return rates over the judged episodes in which a specification applies, and mean depths over the violating ones.

    Specifications are those of the safe tier.
    """
    names = [policy or UNNAMED for policy in scores.policy]
    policies = tuple(dict.fromkeys(names))
    members = [scores.is_judged & np.array([name == policy for name in names]) for policy in policies]
    broken = [int(k) for k in scores.scored_columns if scores.is_violated[k, scores.is_judged].any()]
    pairs = [(int(k), series) for k in scores.scored_columns for series in range(len(policies))]
    points = [_severity_point(scores, k, members[series], series, broken) for k, series in pairs]
    inactive = sum(not (scores.state[k, members[series]] != INACTIVE).any() for k, series in pairs)
    violated_points = [point for point in points if point is not None]
    drawn_points = tuple(point for point in violated_points if not isnan(point.depth))
    return Severity(
        policies=policies,
        specs=tuple(scores.specs[k].spec_id for k in broken),
        points=drawn_points,
        unviolated=len(pairs) - len(violated_points) - inactive,
        inactive=inactive,
        no_depth=len(violated_points) - len(drawn_points),
        remarks=provenance_marks.warn_of_scores(scores),
    )


def _severity_point(
    scores: Scores, column: int, selected: NDArray[np.bool_], series: int, broken: Sequence[int]
) -> SeverityPoint | None:
    applies = selected & (scores.state[column] != INACTIVE)
    violated = selected & scores.is_violated[column]
    if not violated.any():
        return None
    n = int(applies.sum())
    depth = float(scores.depth[column, violated].mean())
    return SeverityPoint(series, broken.index(column), n, 100 * int(violated.sum()) / n, depth)


_LEFT, _RIGHT, _BELOW, _HIGH = 0.42, 0.1, 0.38, 2.3
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TOP = 1.06


def draw_severity(value: Severity) -> Figure:
    """Draw a marker for each policy and violated specification, with the specification's letter beside it.

    The letters are left out if one of them finds no place. Without a point the figure says so.
    """
    with figure_style():
        key = [KeyEntry(name, k) for k, name in enumerate(value.policies)]
        key += [KeyEntry(name, 0, _spec_letter(k), marked=False) for k, name in enumerate(value.specs)]
        title, notes = "Violations: how often against how badly", _severity_notes(value)
        sheet = make_sheet(title, _HIGH + _BELOW, notes=notes, key=key if value.points else ())
        wide = sheet_width() - _LEFT - _RIGHT
        axes = sheet.add_panel(_LEFT, _BELOW, wide, _HIGH)
        if not value.points:
            draw_empty(axes, _empty_severity_text(value))
            return sheet.figure
        rate_end = _rate_end(value)
        axes.set_xlim(0, rate_end)
        axes.set_ylim(0, _TOP)
        draw_grid(axes)
        spots = [(72 * wide * point.rate / rate_end, 72 * _HIGH * point.depth / _TOP) for point in value.points]
        sizes = [(text_width_pt(_spec_letter(point.spec), SMALL) + 2.0, SMALL * 1.3) for point in value.points]
        marks = [Box(x - 2.5, y - 2.5, x + 2.5, y + 2.5) for x, y in spots]
        boxes = place_labels(spots, sizes, Box(1, 1, 72 * wide - 1, 72 * _HIGH - 1), over=marks, reach=200.0)
        for k, point in enumerate(value.points):
            axes.plot([point.rate], [point.depth], color=series_colour(point.series),
                      marker=series_marker(point.series), markersize=5, markeredgecolor="white",
                      markeredgewidth=0.5, linestyle="none", zorder=3, clip_on=False)  # fmt: skip
            if boxes is not None:
                scale = (rate_end / (72 * wide), _TOP / (72 * _HIGH))
                _draw_label(axes, _spec_letter(point.spec), boxes[k], spots[k], scale)
        axes.set_xlabel("Violating episodes (% of those where it applies)")
        axes.set_ylabel("Mean depth of the violations (0 to 1)")
        return sheet.figure


def _empty_severity_text(value: Severity) -> str:
    if value.no_depth:
        return "No violation has a depth."
    return "No limit was broken." if value.unviolated else "No specification was judged."


def _spec_letter(index: int) -> str:
    return _LETTERS[index] if index < len(_LETTERS) else str(index + 1)


def _draw_label(axes: Axes, text: str, box: Box, spot: tuple[float, float], scale: tuple[float, float]) -> None:
    x, y = scale[0] * (box.left + box.right) / 2, scale[1] * (box.bottom + box.top) / 2
    near = (min(max(spot[0], box.left), box.right), min(max(spot[1], box.bottom), box.top))
    if abs(near[0] - spot[0]) + abs(near[1] - spot[1]) > 7.0:
        axes.plot([scale[0] * spot[0], scale[0] * near[0]], [scale[1] * spot[1], scale[1] * near[1]], color=MUTED,
                  linewidth=0.4, zorder=1.5)  # fmt: skip
    axes.text(x, y, text, fontsize=SMALL, color=INK, ha="center", va="center", zorder=5)


def _rate_end(value: Severity) -> float:
    highest = max(point.rate for point in value.points)
    return min(105.0, 10.0 * (highest // 10 + 1) + 2)


def _severity_notes(value: Severity) -> list[str]:
    """Return the notes below the figure: what a marker and depth 1 mean, and how many pairs are not drawn."""
    notes = []
    if counts := [point.n for point in value.points]:
        notes.append(
            f"A marker is one specification and policy, over the {format_episode_range(counts)} where it applies."
        )
        notes.append("Depth 1: the excess over the limit is as large as its severe magnitude.")
    if value.points or value.unviolated or value.no_depth:
        omitted = (
            f"{value.unviolated} pairs without a violation, {value.inactive} where the specification never applies"
        )
        omitted += f", {value.no_depth} violated without a severe magnitude" if value.no_depth else ""
        notes.append(f"Not drawn: {omitted}.")
    return [*notes, *value.remarks]
