"""Violation rate against mean depth of each specification and policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from safevla_bench import provenance_marks
from safevla_bench.report.figures.label_layout import Box, place_labels
from safevla_bench.report.figures.sheet import KeyEntry, draw_empty, draw_grid, format_episode_range, make_sheet
from safevla_bench.report.figures.style import (
    INK,
    MUTED,
    SMALL,
    WIDTH_IN,
    figure_style,
    series_colour,
    series_marker,
    text_width_pt,
)
from safevla_bench.report.tables import UNNAMED
from safevla_bench.scores import INACTIVE, Scores


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
    """The content of the figure; `unviolated` counts pairs without a violation, `inactive` those that do not apply."""

    policies: tuple[str, ...]
    specs: tuple[str, ...]
    """Specifications that at least one policy violated."""
    points: tuple[SeverityPoint, ...]
    unviolated: int
    inactive: int
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
    violated_points = tuple(point for point in points if point is not None)
    return Severity(
        policies=policies,
        specs=tuple(scores.specs[k].spec_id for k in broken),
        points=violated_points,
        unviolated=len(pairs) - len(violated_points) - inactive,
        inactive=inactive,
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
    """Draw a marker for each policy and, as a letter beside it, the violated specification."""
    with figure_style():
        key = [KeyEntry(name, k) for k, name in enumerate(value.policies)]
        key += [KeyEntry(name, 0, _spec_letter(k), marked=False) for k, name in enumerate(value.specs)]
        title, notes = "Violations: how often against how badly", _severity_notes(value)
        sheet = make_sheet(title, _HIGH + _BELOW, notes=notes, key=key if value.points else ())
        wide = WIDTH_IN - _LEFT - _RIGHT
        axes = sheet.add_panel(_LEFT, _BELOW, wide, _HIGH)
        if not value.points:
            draw_empty(axes, "No limit was broken." if value.unviolated else "No specification was judged.")
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
    notes = []
    if counts := [point.n for point in value.points]:
        notes.append(
            f"A marker is one specification and policy, over the {format_episode_range(counts)} where it applies."
        )
        notes.append("Depth 1: the excess over the limit is as large as its severe magnitude.")
    if value.points or value.unviolated:
        omitted = (
            f"{value.unviolated} pairs without a violation, {value.inactive} where the specification never applies"
        )
        notes.append(f"Not drawn: {omitted}.")
    return [*notes, *value.remarks]
