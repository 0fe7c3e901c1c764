"""Violations of each policy: rates by kind as a heat map (Figure 2, right), and rate against mean depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.scores import INACTIVE, Scores
from safevla_bench.report.figures.sheet import (
    KeyEntry,
    PanelScale,
    Sheet,
    draw_empty,
    draw_grid,
    format_episode_range,
    judged_by_policy,
    make_sheet,
    series_signs,
)
from safevla_bench.report.figures.style import (
    INK,
    MUTED,
    SMALL,
    TINT,
    figure_style,
    series_colour,
    series_marker,
    sheet_width,
    text_width_pt,
)
from safevla_bench.report.tables.table import policy_name
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
        active = {spec.axis for spec in cell.specs if spec.active and spec.tier == "safe" and cell.judged}
        rates = tuple(cell.axes.get(axis) if axis in active else None for axis in axes)
        blocks.setdefault(cell.suite or "", []).append(
            PolicyViolationRow(policies.index(policy_name(cell)), cell.judged, rates)
        )
    suite_blocks = tuple((suite, tuple(rows)) for suite, rows in blocks.items())
    return Families(policies, axes, suite_blocks, provenance_marks.warn_of_cells(cells))


_ROW, _HEAD, _BLOCK, _COUNT = 0.19, 0.3, 0.2, 0.36


@figure_style()
def draw_families(value: Families) -> Figure:
    """Draw the heat map: the shade of a cell and its number are the rate in percent. Without a row it says so."""
    texts, numbered = series_signs(value.policies, 95)
    rows = sum(len(rows) for _, rows in value.blocks)
    body = _HEAD + rows * _ROW + len(value.blocks) * _BLOCK if rows else 0.8
    key = [KeyEntry(name, k, texts[k], marked=False) for k, name in enumerate(value.policies)] if numbered else []
    rates = [rate.value for _, block in value.blocks for row in block for rate in row.rates if rate]
    highest = max((100 * rate for rate in rates if rate is not None), default=0.0)
    scale_end = max(10, int(-(-highest // 10) * 10))
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
    """The content of the figure, and how many pairs are not drawn: not violated, not applicable, without a depth."""

    policies: tuple[str, ...]
    specs: tuple[str, ...]
    """Specifications that at least one policy violated."""
    points: tuple[SeverityPoint, ...]
    unviolated: int
    inactive: int
    no_depth: int = 0
    remarks: tuple[str, ...] = ()


def compute_severity(scores: Scores) -> Severity:
    """Return rates in percent of the judged episodes in which a specification of the safe tier applies, and mean depths
    (0 to 1) of those that violate it.
    """
    by_policy = judged_by_policy(scores)
    members = list(by_policy.values())
    broken = [int(k) for k in scores.scored_columns if scores.is_violated[k, scores.is_judged].any()]
    pairs = [(int(k), series) for k in scores.scored_columns for series in range(len(members))]
    points = [_severity_point(scores, k, members[series], series, broken) for k, series in pairs]
    inactive = sum(not (scores.state[k, members[series]] != INACTIVE).any() for k, series in pairs)
    violated_points = [point for point in points if point is not None]
    drawn_points = tuple(point for point in violated_points if not isnan(point.depth))
    return Severity(
        policies=tuple(by_policy),
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


@figure_style()
def draw_severity(value: Severity) -> Figure:
    """Draw a marker for each policy and violated specification, with its letter beside it if all find a place."""
    letters = [_LETTERS[k] if k < len(_LETTERS) else str(k + 1) for k in range(len(value.specs))]
    key = [KeyEntry(name, k) for k, name in enumerate(value.policies)]
    key += [KeyEntry(name, 0, letters[k], marked=False) for k, name in enumerate(value.specs)]
    title, notes = "Violations: how often against how badly", _severity_notes(value)
    sheet = make_sheet(title, _HIGH + _BELOW, notes=notes, key=key if value.points else ())
    wide = sheet_width() - _LEFT - _RIGHT
    axes = sheet.add_panel(_LEFT, _BELOW, wide, _HIGH)
    if not value.points:
        reason = "No limit was broken." if value.unviolated else "No specification was judged."
        draw_empty(axes, "No violation has a depth." if value.no_depth else reason)
        return sheet.figure
    rate_end = min(105.0, 10.0 * (max(point.rate for point in value.points) // 10 + 1) + 2)
    axes.set_xlim(0, rate_end)
    axes.set_ylim(0, _TOP)
    draw_grid(axes)
    scale = PanelScale(wide, _HIGH, 0, rate_end, 0, _TOP)
    spots = [scale.to_points(point.rate, point.depth) for point in value.points]
    sizes = [(text_width_pt(letters[point.spec], SMALL) + 2.0, SMALL * 1.3) for point in value.points]
    boxes = scale.place_labels(spots, sizes, mark_pt=5.0, reach=200.0)
    for k, point in enumerate(value.points):
        axes.plot([point.rate], [point.depth], color=series_colour(point.series), marker=series_marker(point.series),
                  markersize=5, markeredgecolor="white", markeredgewidth=0.5, linestyle="none", zorder=3,
                  clip_on=False)  # fmt: skip
        if boxes is not None:
            scale.draw_label(axes, letters[point.spec], boxes[k], spots[k])
    axes.set_xlabel("Violating episodes (% of those where it applies)")
    axes.set_ylabel("Mean depth of the violations (0 to 1)")
    return sheet.figure


def _severity_notes(value: Severity) -> list[str]:
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
