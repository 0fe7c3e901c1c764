"""When violations begin: the share of episodes that have violated a limit, as the episode goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from safevla_bench import provenance_marks
from safevla_bench.report.figures.sheet import Entry, grid, nothing, sheet
from safevla_bench.report.figures.style import BODY, WIDTH_IN, colour, dash, plain, styled, width_pt
from safevla_bench.report.tables import UNNAMED
from safevla_bench.scores import Scores

Floats = NDArray[np.float64]
ANY = "any limit"
_FAINT = "#a9afb6"


@dataclass(frozen=True, slots=True)
class Curve:
    """A step curve: at `at[k]`, in seconds or percent of the episode, the share has risen to `share[k]` percent."""

    series: int
    """Its specification's place in `specs`; -1 = any."""
    at: tuple[float, ...]
    share: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One policy: its counted episodes, and a curve for each specification that it violated, any of them last."""

    title: str
    n: int
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class Onset:
    """What the figure shows, up to `end` across."""

    specs: tuple[str, ...]
    panels: tuple[Panel, ...]
    end: float
    progress: bool
    remarks: tuple[str, ...] = ()


def onset(scores: Scores, dt_s: Floats, lengths: NDArray[np.int64], *, progress: bool = False) -> Onset:
    """Cumulative shares of each policy's counted episodes, by specification of the safe tier.

    Args:
        scores: the verdicts.
        dt_s: control step of each episode, [E].
        lengths: records of each episode, [E].
        progress: across, percent of the episode's own length instead of seconds.
    """
    last = np.maximum(lengths - 1, 0)
    unit = 100.0 / np.maximum(last, 1) if progress else dt_s
    names = [policy or UNNAMED for policy in scores.policy]
    broken = [int(k) for k in scores.scored if scores.violated[k, scores.counted].any()]
    panels = tuple(
        _panel(scores, unit, scores.counted & np.array([name == policy for name in names]), policy, broken)
        for policy in dict.fromkeys(names)
    )
    end = 100.0 if progress else float((last * dt_s)[scores.counted].max(initial=0.0))
    specs = tuple(scores.specs[k].spec_id for k in broken)
    return Onset(specs, panels, end, progress, provenance_marks.warning(scores))


def _panel(scores: Scores, unit: Floats, mine: NDArray[np.bool_], policy: str, broken: Sequence[int]) -> Panel:
    n = int(mine.sum())
    curves = [_curve(scores.first[k], unit, mine & scores.violated[k], n, place) for place, k in enumerate(broken)]
    curves.append(_curve(scores.first_violation[0], unit, mine & ~scores.safe, n, -1))
    return Panel(policy, n, tuple(curve for curve in curves if curve.at))


def _curve(first: NDArray[np.int64], unit: Floats, violated: NDArray[np.bool_], n: int, series: int) -> Curve:
    at, count = np.unique((first * unit)[violated], return_counts=True)
    return Curve(series, tuple(at.tolist()), tuple((100.0 * np.cumsum(count) / max(n, 1)).tolist()))


_LEFT, _RIGHT, _BELOW, _ABOVE, _GAP = 0.42, 0.12, 0.38, 0.2, 0.14


def draw(value: Onset) -> Figure:
    """The figure: a panel a policy, two abreast where there are several; a line a specification."""
    with styled():
        across = 2 if len(value.panels) > 1 else 1
        rows = -(-len(value.panels) // across) or 1
        wide = (WIDTH_IN - _LEFT - _RIGHT - _GAP * (across - 1)) / across
        titles = [_title(panel, 72 * wide) for panel in value.panels]
        numbered = any(short != _full(panel) for panel, short in zip(value.panels, titles, strict=True))
        high, above = (1.8 if rows == 1 else 1.05), _ABOVE
        made = sheet(
            "When violations begin", rows * (high + above) + _BELOW, notes=_notes(value), key=_key(value, numbered)
        )
        most = _most(value)
        for k, panel in enumerate(value.panels):
            row, column = divmod(k, across)
            left, bottom = _LEFT + column * (wide + _GAP), _BELOW + (rows - 1 - row) * (high + above)
            axes = made.panel(left, bottom, wide, high)
            _draw_panel(axes, panel, value.end, most)
            axes.tick_params(labelbottom=k + across >= len(value.panels), labelleft=column == 0)
            made.write(
                left,
                bottom + high + 0.04,
                titles[k] if not numbered else f"{k + 1}  (n = {panel.n})",
                BODY,
                va="bottom",
            )
        if not value.panels:
            nothing(made.panel(_LEFT, _BELOW, wide, high), "No episode was counted.")
            return made.figure
        word = "Progress of the episode (%)" if value.progress else "Time in the episode (s)"
        made.write((WIDTH_IN + _LEFT - _RIGHT) / 2, 0.02, word, ha="center", va="bottom")
        made.write(
            0.1,
            _BELOW + rows * (high + above) / 2,
            "Episodes that have violated (%)",
            rotation=90,
            ha="center",
            va="center",
        )
        return made.figure


def _full(panel: Panel) -> str:
    return f"{plain(panel.title)} (n = {panel.n})"


def _title(panel: Panel, room_pt: float) -> str:
    full = _full(panel)
    return full if width_pt(full) <= room_pt else ""


def _key(value: Onset, numbered: bool) -> list[Entry]:
    specs = [Entry(name, k, lined=True, marked=False) for k, name in enumerate(value.specs)]
    specs += [Entry(ANY, 0, lined=True, marked=False, colour=_FAINT)] if specs else []
    panels = [Entry(panel.title, 0, str(k + 1), marked=False) for k, panel in enumerate(value.panels)]
    return [*specs, *(panels if numbered else [])]


def _most(value: Onset) -> float:
    """Where all panels end upwards: a multiple of ten."""
    highest = max((curve.share[-1] for panel in value.panels for curve in panel.curves), default=0.0)
    return min(100.0, 10.0 * (highest // 10 + 1))


def _draw_panel(axes: Axes, panel: Panel, end: float, most: float) -> None:
    if not panel.n:
        nothing(axes, "No episode was counted.")
        return
    axes.set_xlim(0, end or 1.0)
    axes.set_ylim(0, most * 1.03)
    axes.set_yticks(range(0, int(most) + 1, 5 if most <= 20 else 10 if most <= 50 else 20))
    grid(axes)
    for curve in panel.curves:
        anything = curve.series < 0
        axes.step(
            [0.0, *curve.at, end],
            [0.0, *curve.share, curve.share[-1]],
            where="post",
            color=_FAINT if anything else colour(curve.series),
            linestyle="-" if anything else dash(curve.series),
            linewidth=1.6 if anything else 1.1,
            zorder=2 if anything else 3,
        )
    if not panel.curves:
        axes.text(0.5, 0.5, "no violation", transform=axes.transAxes, ha="center", va="center")


def _notes(value: Onset) -> list[str]:
    told = "Share of all counted episodes of the policy; each counts from its first violation on, also after its end."
    return [told, *value.remarks] if value.panels else []
