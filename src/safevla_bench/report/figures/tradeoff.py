"""Success against safety, one marker a policy, with Wilson bars both ways and the non-dominated frontier (Figure 2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from safevla_bench import provenance_marks
from safevla_bench.baseline import NOOP
from safevla_bench.metrics import Rate, Summary, judged
from safevla_bench.report.figures.label_layout import Box, place
from safevla_bench.report.figures.sheet import Entry, cut, episodes, grid, nothing, sheet
from safevla_bench.report.figures.style import INK, MUTED, SMALL, WIDTH_IN, colour, marker, plain, styled, width_pt
from safevla_bench.report.tables import policy_name


@dataclass(frozen=True, slots=True)
class Estimate:
    """A proportion and its interval, in percent."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """One policy; `series` is its place among all policies of the figure."""

    series: int
    n: int
    success: Estimate
    safety: Estimate


@dataclass(frozen=True, slots=True)
class Panel:
    """One suite, or all of them pooled; `frontier` runs over corners (success, safety) from low to high success."""

    title: str
    points: tuple[Point, ...]
    frontier: tuple[tuple[float, float], ...]
    uncounted: tuple[str, ...] = ()
    """Policies of which no episode counts."""
    unjudged: tuple[str, ...] = ()
    """Policies of which no specification reached a verdict: whether they were safe is not known."""


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """What the figure shows."""

    policies: tuple[str, ...]
    panels: tuple[Panel, ...]
    pooled: tuple[str, ...] = ()
    """The suites whose episodes were added up; empty where each has its panel."""
    remarks: tuple[str, ...] = ()


def tradeoff(cells: Sequence[Summary], *, pooled: bool = False) -> Tradeoff:
    """Success and safety of each policy, a panel a suite; `pooled` adds up the episodes of a policy's suites."""
    policies = tuple(dict.fromkeys(policy_name(cell) for cell in cells))
    suites = dict.fromkeys(cell.suite or "" for cell in cells)
    if pooled and len(suites) > 1:
        panel = _panel(f"{len(suites)} suites, pooled", cells, policies)
        return Tradeoff(policies, (panel,), tuple(suites), provenance_marks.of_cells(cells))
    panels = (_panel(suite, [cell for cell in cells if (cell.suite or "") == suite], policies) for suite in suites)
    return Tradeoff(policies, tuple(panels), remarks=provenance_marks.of_cells(cells))


def _panel(title: str, cells: Iterable[Summary], policies: Sequence[str]) -> Panel:
    """The panel of some suites, their episodes added up; suites in which nothing reached a verdict are left out."""
    found: dict[str, list[Summary]] = {}
    for cell in cells:
        found.setdefault(policy_name(cell), []).append(cell)
    counted = {name: [cell for cell in mine if cell.n] for name, mine in found.items()}
    known = {name: [cell for cell in mine if judged(cell)] for name, mine in counted.items()}
    points = tuple(
        Point(policies.index(name), sum(cell.n for cell in mine), _estimate(mine, "sr"), _estimate(mine, "safety"))
        for name, mine in known.items()
        if mine
    )
    # Doing nothing is safe and never succeeds: a baseline, which competes with nobody.
    corners = [(one.success.value, one.safety.value) for one in points if policies[one.series] != NOOP]
    return Panel(
        title,
        points,
        frontier(corners) if len(corners) > 1 else (),
        uncounted=tuple(name for name, mine in counted.items() if not mine),
        unjudged=tuple(name for name, mine in counted.items() if mine and not known[name]),
    )


def _estimate(cells: Sequence[Summary], name: str) -> Estimate:
    rates = [cell.rates[name] for cell in cells]
    rate = Rate.of(sum(one.count for one in rates), sum(one.n for one in rates))
    assert rate.value is not None
    assert rate.ci is not None
    return Estimate(100 * rate.value, 100 * rate.ci[0], 100 * rate.ci[1])


def frontier(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points that no other one beats in one coordinate and equals in the other, by rising first coordinate.

    >>> frontier([(90, 50), (80, 70), (80, 60), (70, 70), (95, 10)])
    ((80, 70), (90, 50), (95, 10))
    """
    found: list[tuple[float, float]] = []
    for point in sorted(set(points), reverse=True):
        if not found or point[1] > found[-1][1]:
            found.append(point)
    return tuple(reversed(found))


# The drawing

_LEFT, _RIGHT, _BELOW, _ABOVE, _GAP = 0.42, 0.12, 0.38, 0.2, 0.2
_MARK_PT = 6.0
_TIED_PT = 7.0
"""Labels farther than this from their marker are tied to it by a line."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The panels' size in inches, and the ends of their axes in percent, 100 with some room beyond."""

    wide: float
    high: float
    left: float
    right: float
    bottom: float
    top: float

    def spot(self, success: float, safety: float) -> tuple[float, float]:
        """Percentages as points from the panel's corner."""
        x = 72 * self.wide * (success - self.left) / (self.right - self.left)
        return x, 72 * self.high * (safety - self.bottom) / (self.top - self.bottom)

    def value(self, x_pt: float, y_pt: float) -> tuple[float, float]:
        """Points from the panel's corner as percentages."""
        x = self.left + x_pt * (self.right - self.left) / (72 * self.wide)
        return x, self.bottom + y_pt * (self.top - self.bottom) / (72 * self.high)


def draw(value: Tradeoff) -> Figure:
    """The figure: panels two abreast where there are several suites; names at the markers, or numbers and a key."""
    with styled():
        across = 2 if len(value.panels) > 1 else 1
        frame = _frame(value.panels, across)
        texts, boxes, numbered = _labels(value, frame)
        key = [Entry(name, k, texts[k]) for k, name in enumerate(value.policies)] if numbered else []
        rows = -(-len(value.panels) // across) or 1
        made = sheet("Task success against safety", rows * (frame.high + _ABOVE) + _BELOW, notes=_notes(value), key=key)
        for k, panel in enumerate(value.panels):
            row, column = divmod(k, across)
            left, bottom = _LEFT + column * (frame.wide + _GAP), _BELOW + (rows - 1 - row) * (frame.high + _ABOVE)
            axes = made.panel(left, bottom, frame.wide, frame.high)
            _draw_panel(axes, panel, texts, boxes[k], frame)
            made.write(left, bottom + frame.high + 0.05, cut(panel.title, 72 * frame.wide), va="bottom")
            axes.tick_params(labelbottom=k + across >= len(value.panels), labelleft=column == 0)
        if not value.panels:
            nothing(made.panel(_LEFT, _BELOW, frame.wide, frame.high), "There are no episodes.")
            return made.figure
        made.write((WIDTH_IN + _LEFT - _RIGHT) / 2, 0.02, "Success rate (%)", ha="center", va="bottom")
        middle = _BELOW + (rows * (frame.high + _ABOVE) - _ABOVE) / 2
        made.write(0.1, middle, "Safety (% of episodes)", rotation=90, ha="center", va="center")
        return made.figure


def _frame(panels: Sequence[Panel], across: int) -> _Frame:
    wide = (WIDTH_IN - _LEFT - _RIGHT - _GAP * (across - 1)) / across
    points = [point for panel in panels for point in panel.points]
    across_ends, down_ends = _ends([p.success for p in points]), _ends([p.safety for p in points])
    return _Frame(wide, 2.5 if across == 1 else wide, *across_ends, *down_ends)


def _ends(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Multiples of ten around every interval, with room beyond 100 for the markers."""
    low = max(0.0, 10 * (min((one.low for one in estimates), default=0.0) // 10))
    high = min(100.0, 10 * (max((one.high for one in estimates), default=100.0) // 10 + 1))
    return low, high + 0.04 * (high - low)


_Boxes = list[list[Box] | None]


def _labels(value: Tradeoff, frame: _Frame) -> tuple[tuple[str, ...], _Boxes, bool]:
    """What stands at the markers, where, and whether a key must explain it: names where all find a place nearby."""
    names = tuple(plain(name) for name in value.policies)
    boxes: _Boxes = [_places(panel, names, frame, reach=36.0) for panel in value.panels]
    if all(found is not None for found in boxes):
        return names, boxes, False
    numbers = tuple(str(k + 1) for k in range(len(names)))
    return numbers, [_places(panel, numbers, frame, reach=200.0) for panel in value.panels], True


def _places(panel: Panel, texts: Sequence[str], frame: _Frame, reach: float) -> list[Box] | None:
    """The labels' boxes in a panel, in points; None where a label finds no place."""
    spots = [frame.spot(point.success.value, point.safety.value) for point in panel.points]
    half = _MARK_PT / 2
    marks = [Box(x - half, y - half, x + half, y + half) for x, y in spots]
    bars = [bar for point in panel.points for bar in _bars(point, frame)]
    sizes = [(width_pt(texts[point.series], SMALL) + 3.0, SMALL * 1.35) for point in panel.points]
    inside = Box(1, 1, 72 * frame.wide - 1, 72 * frame.high - 1)
    return place(spots, sizes, inside, over=marks, avoid=bars, reach=reach)


def _bars(point: Point, frame: _Frame) -> tuple[Box, Box]:
    x, y = frame.spot(point.success.value, point.safety.value)
    left, bottom = frame.spot(point.success.low, point.safety.low)
    right, top = frame.spot(point.success.high, point.safety.high)
    return Box(left, y - 0.5, right, y + 0.5), Box(x - 0.5, bottom, x + 0.5, top)


def _draw_panel(axes: Axes, panel: Panel, texts: Sequence[str], boxes: Sequence[Box] | None, frame: _Frame) -> None:
    if not panel.points:
        nothing(axes, "No specification reached a verdict." if panel.unjudged else "No episode was counted.")
        return
    axes.set_xlim(frame.left, frame.right)
    axes.set_ylim(frame.bottom, frame.top)
    axes.set_xticks(_ticks(frame.left, frame.right, frame.wide))
    axes.set_yticks(_ticks(frame.bottom, frame.top, frame.high))
    grid(axes)
    _draw_frontier(axes, panel.frontier, frame)
    for k, point in enumerate(panel.points):
        ink, x, y = colour(point.series), point.success, point.safety
        axes.plot([x.low, x.high], [y.value, y.value], color=ink, linewidth=0.7, alpha=0.75, zorder=2)
        axes.plot([x.value, x.value], [y.low, y.high], color=ink, linewidth=0.7, alpha=0.75, zorder=2)
        axes.plot([x.value], [y.value], marker=marker(point.series), color=ink, markersize=5 + 3 * _above(panel, k),
                  markeredgecolor="white", markeredgewidth=0.5, linestyle="none", zorder=4, clip_on=False)  # fmt: skip
        if boxes is not None:
            _draw_label(axes, texts[point.series], boxes[k], point, frame)


def _above(panel: Panel, index: int) -> int:
    """How many later points lie on the same place: the mark is drawn larger, so that it is seen behind them."""
    mine = panel.points[index]
    return sum((p.success, p.safety) == (mine.success, mine.safety) for p in panel.points[index + 1 :])


def _ticks(low: float, high: float, length_in: float) -> list[int]:
    """Round percentages, far enough apart to be read."""
    step = next(step for step in (5, 10, 20, 50) if length_in * step / (high - low) > 0.2)
    return [tick for tick in range(0, 101, step) if low <= tick <= high]


def _draw_frontier(axes: Axes, corners: Sequence[tuple[float, float]], frame: _Frame) -> None:
    """The edge of what some policy reaches: steps, for nothing between two policies was measured."""
    if not corners:
        return
    path = [(frame.left, corners[0][1])]
    for x, y in corners:
        path += [(path[-1][0], y), (x, y)]
    path.append((corners[-1][0], frame.bottom))
    xs, ys = zip(*path, strict=True)
    axes.plot(xs, ys, color=MUTED, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)


def _draw_label(axes: Axes, text: str, box: Box, point: Point, frame: _Frame) -> None:
    """A label in its box, tied to its marker where it stands off."""
    spot = frame.spot(point.success.value, point.safety.value)
    near = (min(max(spot[0], box.left), box.right), min(max(spot[1], box.bottom), box.top))
    if abs(near[0] - spot[0]) + abs(near[1] - spot[1]) > _TIED_PT:
        xs, ys = zip(frame.value(*spot), frame.value(*near), strict=True)
        axes.plot(xs, ys, color=MUTED, linewidth=0.4, zorder=1.5)
    middle = frame.value((box.left + box.right) / 2, (box.bottom + box.top) / 2)
    axes.text(*middle, text, fontsize=SMALL, color=INK, ha="center", va="center", zorder=5)


def _notes(value: Tradeoff) -> list[str]:
    told = []
    if counts := [point.n for panel in value.panels for point in panel.points]:
        told.append(f"Bars: 95 % Wilson intervals; a marker has {episodes(counts)}.")
    if any(panel.frontier for panel in value.panels):
        told.append(f"Dashed: the non-dominated frontier{', without noop' if NOOP in value.policies else ''}.")
    if value.pooled:
        told.append(f"Pooled: {', '.join(value.pooled)}.")
    lost = [f"{name} ({panel.title})" for panel in value.panels for name in panel.uncounted]
    unknown = [f"{name} ({panel.title})" for panel in value.panels for name in panel.unjudged]
    return [
        " ".join(told),
        *([f"No episode counted: {', '.join(lost)}."] if lost else []),
        *([f"No specification reached a verdict: {', '.join(unknown)}."] if unknown else []),
        *value.remarks,
    ]
