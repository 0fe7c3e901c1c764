"""How often against how badly: violation rate and mean depth of each specification and policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from safevla_bench import provenance_marks
from safevla_bench.report.figures.label_layout import Box, place
from safevla_bench.report.figures.sheet import Entry, episodes, grid, nothing, sheet
from safevla_bench.report.figures.style import INK, MUTED, SMALL, WIDTH_IN, colour, marker, styled, width_pt
from safevla_bench.report.tables import UNNAMED
from safevla_bench.scores import INACTIVE, Scores


@dataclass(frozen=True, slots=True)
class Point:
    """One specification that a policy violated: indices of both, rate in percent of n, mean depth where violated."""

    series: int
    spec: int
    n: int
    rate: float
    depth: float


@dataclass(frozen=True, slots=True)
class Severity:
    """What the figure shows; `kept` counts pairs without a violation, `inactive` those that do not apply."""

    policies: tuple[str, ...]
    specs: tuple[str, ...]
    """Those that some policy violated."""
    points: tuple[Point, ...]
    kept: int
    inactive: int
    remarks: tuple[str, ...] = ()


def severity(scores: Scores) -> Severity:
    """Rates over the counted episodes in which a specification of the safe tier applies, depths over the violating."""
    names = [policy or UNNAMED for policy in scores.policy]
    policies = tuple(dict.fromkeys(names))
    members = [scores.counted & np.array([name == policy for name in names]) for policy in policies]
    broken = [int(k) for k in scores.scored if scores.violated[k, scores.counted].any()]
    pairs = [(int(k), series) for k in scores.scored for series in range(len(policies))]
    points = [_point(scores, k, members[series], series, broken) for k, series in pairs]
    inactive = sum(not (scores.state[k, members[series]] != INACTIVE).any() for k, series in pairs)
    there = tuple(point for point in points if point is not None)
    return Severity(
        policies=policies,
        specs=tuple(scores.specs[k].spec_id for k in broken),
        points=there,
        kept=len(pairs) - len(there) - inactive,
        inactive=inactive,
        remarks=provenance_marks.warning(scores),
    )


def _point(scores: Scores, column: int, mine: NDArray[np.bool_], series: int, broken: Sequence[int]) -> Point | None:
    applies = mine & (scores.state[column] != INACTIVE)
    violated = mine & scores.violated[column]
    if not violated.any():
        return None
    n = int(applies.sum())
    depth = float(scores.depth[column, violated].mean())
    return Point(series, broken.index(column), n, 100 * int(violated.sum()) / n, depth)


_LEFT, _RIGHT, _BELOW, _HIGH = 0.42, 0.1, 0.38, 2.3
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TOP = 1.06


def draw(value: Severity) -> Figure:
    """The figure: the marker is the policy, the letter beside it the specification."""
    with styled():
        key = [Entry(name, k) for k, name in enumerate(value.policies)]
        key += [Entry(name, 0, _letter(k), marked=False) for k, name in enumerate(value.specs)]
        made = sheet(
            "Violations: how often against how badly",
            _HIGH + _BELOW,
            notes=_notes(value),
            key=key if value.points else (),
        )
        wide = WIDTH_IN - _LEFT - _RIGHT
        axes = made.panel(_LEFT, _BELOW, wide, _HIGH)
        if not value.points:
            nothing(axes, "No limit was broken." if value.kept else "No specification was judged.")
            return made.figure
        most = _most(value)
        axes.set_xlim(0, most)
        axes.set_ylim(0, _TOP)
        grid(axes)
        spots = [(72 * wide * p.rate / most, 72 * _HIGH * p.depth / _TOP) for p in value.points]
        sizes = [(width_pt(_letter(p.spec), SMALL) + 2.0, SMALL * 1.3) for p in value.points]
        marks = [Box(x - 2.5, y - 2.5, x + 2.5, y + 2.5) for x, y in spots]
        boxes = place(spots, sizes, Box(1, 1, 72 * wide - 1, 72 * _HIGH - 1), over=marks, reach=200.0)
        for k, point in enumerate(value.points):
            axes.plot([point.rate], [point.depth], color=colour(point.series), marker=marker(point.series),
                      markersize=5, markeredgecolor="white", markeredgewidth=0.5, linestyle="none", zorder=3,
                      clip_on=False)  # fmt: skip
            if boxes is not None:
                _label(axes, _letter(point.spec), boxes[k], spots[k], (most / (72 * wide), _TOP / (72 * _HIGH)))
        axes.set_xlabel("Violating episodes (% of those where it applies)")
        axes.set_ylabel("Mean depth of the violations (0 to 1)")
        return made.figure


def _letter(index: int) -> str:
    return _LETTERS[index] if index < len(_LETTERS) else str(index + 1)


def _label(axes: Axes, text: str, box: Box, spot: tuple[float, float], scale: tuple[float, float]) -> None:
    x, y = scale[0] * (box.left + box.right) / 2, scale[1] * (box.bottom + box.top) / 2
    near = (min(max(spot[0], box.left), box.right), min(max(spot[1], box.bottom), box.top))
    if abs(near[0] - spot[0]) + abs(near[1] - spot[1]) > 7.0:
        axes.plot([scale[0] * spot[0], scale[0] * near[0]], [scale[1] * spot[1], scale[1] * near[1]], color=MUTED,
                  linewidth=0.4, zorder=1.5)  # fmt: skip
    axes.text(x, y, text, fontsize=SMALL, color=INK, ha="center", va="center", zorder=5)


def _most(value: Severity) -> float:
    highest = max(point.rate for point in value.points)
    return min(105.0, 10.0 * (highest // 10 + 1) + 2)


def _notes(value: Severity) -> list[str]:
    told = []
    if counts := [point.n for point in value.points]:
        told.append(f"A marker is one specification and policy, over the {episodes(counts)} where it applies.")
        told.append("Depth 1: the excess over the limit is as large as its severe magnitude.")
    if value.points or value.kept:
        lacking = f"{value.kept} pairs without a violation, {value.inactive} where the specification never applies"
        told.append(f"Not drawn: {lacking}.")
    return [*told, *value.remarks]
