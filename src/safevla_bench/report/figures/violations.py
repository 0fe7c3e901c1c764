"""Violations of each policy: rates by kind as a heat map (Figure 2, right), and rate against mean depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.scores import INACTIVE, Scores
from safevla_bench.report.figures import sheet, style
from safevla_bench.report.tables.columns import policy_name
from safevla_bench.text import NO_VALUE, format_percent


@style.figure_style()
def draw_families(cells: Sequence[Summary]) -> Figure:
    """Draw the heat map, suites as blocks of rows: the shade of a cell and its number are the rate in percent.

    Rates are over all judged episodes of a policy and suite. Without a row the figure says so.
    """
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
    rates = [rate.value for cell in cells for rate in family_rates(cell, kinds) if rate]
    highest = max((100 * rate for rate in rates if rate is not None), default=0.0)
    scale_end = max(10, int(-(-highest // 10) * 10))
    grid = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights).ravel()
    for axes, (suite, block) in zip(grid, blocks.items(), strict=True):
        _draw_block(axes, block, kinds, [texts[policy_name(cell)] for cell in block], scale_end)
        axes.set_title(style.wrap_text(suite, 2.0), color=style.MUTED, fontsize=style.SMALL)
    heads = ["\n".join(axis.split("_")) for axis in kinds] + ["n"]
    head = grid[0].secondary_xaxis("top")
    head.set_xticks(range(len(heads)), heads)
    head.tick_params(length=0, pad=style.SMALL + 3)
    head.spines[:].set_visible(False)
    notes = [
        "Share of the judged episodes of a row that violate any active limit of the kind, in percent; shade: "
        f"0 to {scale_end} %. {NO_VALUE}: no such limit applies.",
        *provenance_marks.warn_of_cells(cells),
    ]
    key = [sheet.KeyEntry(name, k, texts[name], marked=False) for k, name in enumerate(policies)] if numbered else []
    return sheet.finish_sheet(figure, notes, key)


def family_rates(cell: Summary, kinds: Sequence[str]) -> list[Rate | None]:
    """Return the rate of each kind of violation of a cell; None where no specification of the kind was active."""
    active = {spec.axis for spec in cell.specs if spec.active and spec.tier == "safe" and cell.judged}
    return [cell.axes.get(kind) if kind in active else None for kind in kinds]


def _draw_block(
    axes: Axes, block: Sequence[Summary], kinds: Sequence[str], texts: Sequence[str], scale_end: int
) -> None:
    axes.set_xlim(-0.5, len(kinds) + 0.5)
    axes.set_ylim(len(block) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks(range(len(block)), texts)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for y, cell in enumerate(block):
        for x, rate in enumerate(family_rates(cell, kinds)):
            _draw_cell(axes, x, y, rate, scale_end)
        axes.text(len(kinds), y, str(cell.judged), fontsize=style.SMALL, color=style.MUTED, ha="center",
                  va="center_baseline")  # fmt: skip


def _draw_cell(axes: Axes, x: int, y: int, rate: Rate | None, scale_end: int) -> None:
    has_value = rate is not None and rate.value is not None
    share = 100 * (rate.value or 0.0) / scale_end if rate is not None else 0.0
    face = mpl.colormaps["Blues"](0.85 * share) if has_value else style.TINT
    axes.add_patch(Rectangle((x - 0.49, y - 0.46), 0.98, 0.92, facecolor=face, edgecolor="none"))
    text = format_percent(rate.count, rate.n) if rate is not None else NO_VALUE
    ink = "white" if has_value and share > 0.6 else style.INK if has_value else style.MUTED
    axes.text(x, y, text, ha="center", va="center_baseline", color=ink)


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
    """The content of the figure."""

    policies: tuple[str, ...]
    specs: tuple[str, ...]
    """Specifications that at least one policy violated."""
    points: tuple[SeverityPoint, ...]
    judged: int
    """Judged episodes."""
    no_depth: int = 0
    """Pairs of policy and violated specification without a depth, which are not drawn."""
    remarks: tuple[str, ...] = ()


def compute_severity(scores: Scores) -> Severity:
    """Return rates in percent of the judged episodes in which a specification of the safe tier applies, and mean depths
    (0 to 1) of those that violate it.
    """
    by_policy = sheet.judged_by_policy(scores)
    broken = [int(k) for k in scores.scored_columns if scores.is_violated[k, scores.is_judged].any()]
    points = []
    for spec, column in enumerate(broken):
        for series, selected in enumerate(by_policy.values()):
            n = int((selected & (scores.state[column] != INACTIVE)).sum())
            violated = selected & scores.is_violated[column]
            if violated.any():
                depth = float(scores.depth[column, violated].mean())
                points.append(SeverityPoint(series, spec, n, 100 * int(violated.sum()) / n, depth))
    return Severity(
        policies=tuple(by_policy),
        specs=tuple(scores.specs[k].spec_id for k in broken),
        points=tuple(point for point in points if not isnan(point.depth)),
        judged=int(scores.is_judged.sum()),
        no_depth=sum(isnan(point.depth) for point in points),
        remarks=provenance_marks.warn_of_scores(scores),
    )


@style.figure_style()
def draw_severity(value: Severity) -> Figure:
    """Draw a marker for each policy and violated specification: the colour of the one, the shape of the other."""
    key = [sheet.KeyEntry(name, k, marked=False, lined=True, solid=True) for k, name in enumerate(value.policies)]
    key += [sheet.KeyEntry(name, k, colour=style.MUTED) for k, name in enumerate(value.specs)]
    figure = sheet.make_sheet("Violations: how often against how badly", 3.0)
    axes, notes = figure.subplots(), _severity_notes(value)
    if not value.points:
        reason = "No limit was broken." if value.judged else "No specification was judged."
        sheet.draw_empty(axes, "No violation has a depth." if value.no_depth else reason)
        return sheet.finish_sheet(figure, notes)
    axes.set_xlim(0, min(105.0, 10.0 * (max(point.rate for point in value.points) // 10 + 1) + 2))
    axes.set_ylim(0, 1.06)
    axes.grid(True)
    for point in value.points:
        axes.plot([point.rate], [point.depth], zorder=3, **style.marker_look(point.series, point.spec, 5.0, 0.5))
    axes.set_xlabel("Violating episodes (% of those where it applies)")
    axes.set_ylabel("Mean depth of the violations (0 to 1)")
    return sheet.finish_sheet(figure, notes, key)


def _severity_notes(value: Severity) -> list[str]:
    notes = []
    if counts := [point.n for point in value.points]:
        episodes = sheet.format_episode_range(counts)
        notes.append(
            f"A marker is one specification (shape) and policy (colour), over the {episodes} where it applies."
        )
        notes.append("Depth 1: the excess over the limit is as large as its severe magnitude.")
    if value.no_depth:
        notes.append(f"{value.no_depth} violated without a severe magnitude, not drawn.")
    return [*notes, *value.remarks]
