"""How near each policy comes to each limit: margins ρ/τ, below zero where the limit is broken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from safevla_bench import provenance_marks
from safevla_bench.report.figures.sheet import Entry, nothing, sheet, signs
from safevla_bench.report.figures.style import INK, LINE, MUTED, SMALL, WIDTH_IN, colour, marker, styled, width_pt
from safevla_bench.report.tables import UNNAMED
from safevla_bench.scores import ACTIVE, VACUOUS, Scores

MOST_DOTS = 40
"""Up to so many episodes are drawn one by one."""
_QUANTILES = (0, 25, 50, 75, 100)


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one specification: least, quartiles and greatest margin; None where none was reached."""

    series: int
    n: int
    """Episodes with a margin."""
    violated: int
    vacuous: int
    inactive: int
    quantiles: tuple[float, ...] | None
    dots: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Margins:
    """What the figure shows: a block of rows for each specification that applies somewhere."""

    policies: tuple[str, ...]
    blocks: tuple[tuple[str, tuple[Row, ...]], ...]
    silent: tuple[str, ...]
    """Specifications that reached a margin nowhere."""
    remarks: tuple[str, ...] = ()


def margins(scores: Scores) -> Margins:
    """Margins over thresholds of the counted episodes, by specification of the safe tier and policy."""
    names = [policy or UNNAMED for policy in scores.policy]
    policies = tuple(dict.fromkeys(names))
    members = [scores.counted & np.array([name == policy for name in names]) for policy in policies]
    blocks, silent = [], []
    for column in scores.scored:
        rows = tuple(_row(scores, int(column), k, mine) for k, mine in enumerate(members))
        if any(row.n for row in rows):
            blocks.append((scores.specs[column].spec_id, rows))
        else:
            silent.append(scores.specs[column].spec_id)
    return Margins(policies, tuple(blocks), tuple(silent), provenance_marks.warning(scores))


def _row(scores: Scores, column: int, series: int, mine: NDArray[np.bool_]) -> Row:
    state = scores.state[column, mine]
    margin = scores.rho[column, mine][state == ACTIVE] / scores.specs[column].threshold
    found = tuple(np.percentile(margin, _QUANTILES).tolist()) if len(margin) else None
    return Row(
        series=series,
        n=len(margin),
        violated=int((margin < 0).sum()),
        vacuous=int((state == VACUOUS).sum()),
        inactive=int((state != ACTIVE).sum() - (state == VACUOUS).sum()),
        quantiles=found,
        dots=tuple(np.sort(margin).tolist()) if len(margin) <= MOST_DOTS else (),
    )


_ROW, _TITLE, _GAP, _BELOW, _COUNT = 0.16, 0.17, 0.06, 0.4, 0.82


def draw(value: Margins) -> Figure:
    """The figure: boxes from quartile to quartile, lines from the least to the greatest, dots where there are few."""
    with styled():
        texts, numbered = signs(value.policies, 62)
        high = sum(_TITLE + len(rows) * _ROW + _GAP for _, rows in value.blocks) + _BELOW if value.blocks else 0.8
        key = [Entry(name, k, texts[k]) for k, name in enumerate(value.policies)] if numbered else []
        made = sheet("Margins to each limit", high, notes=_notes(value), key=key)
        if not value.blocks:
            nothing(made.panel(0.1, 0, WIDTH_IN - 0.2, high), "No specification reached a verdict in any episode.")
            return made.figure
        left = 0.16 + max(width_pt(text) for text in texts) / 72
        low, most = _limits(value)
        top = high
        for k, (spec_id, rows) in enumerate(value.blocks):
            tall = len(rows) * _ROW
            made.write(0.06, top - _TITLE / 2, spec_id, va="center")
            axes = made.panel(left, top - _TITLE - tall, WIDTH_IN - left - _COUNT, tall)
            _scaled(axes, low, most, len(rows), last=k == len(value.blocks) - 1)
            for place, row in enumerate(rows):
                y = top - _TITLE - (place + 0.5) * _ROW
                made.write(left - 0.06, y, texts[row.series], SMALL, ha="right", va="center_baseline")
                made.write(WIDTH_IN - _COUNT + 0.06, y, _count(row), SMALL, color=MUTED, va="center_baseline")
                _draw_row(axes, len(rows) - 1 - place, row)
            top -= _TITLE + tall + _GAP
        middle = left + (WIDTH_IN - left - _COUNT) / 2
        made.write(middle, 0.02, "margin / threshold (ρ/τ)", ha="center", va="bottom")
        return made.figure


def _limits(value: Margins) -> tuple[float, float]:
    ends = [row.quantiles for _, rows in value.blocks for row in rows if row.quantiles]
    return min(-0.25, *(end[0] for end in ends)), max(1.0, *(end[-1] for end in ends))


_FAR = 2.0
"""Margins beyond this many thresholds need a logarithm to be seen beside the others."""


def _scaled(axes: Axes, low: float, most: float, rows: int, *, last: bool) -> None:
    far = low < -_FAR or most > _FAR
    if far:
        axes.set_xscale("symlog", linthresh=1.0, linscale=1.0)
        decades = [10**k for k in range(1, 10)]
        ticks = [-tick for tick in reversed(decades) if tick <= -1.3 * low] + [-1, 0, 1]
        ticks += [tick for tick in decades if tick <= most]
        if len(ticks) > 6:
            ticks = [tick for tick in ticks if tick in (-1, 0, 1) or len(str(abs(tick))) % 2 == 0]
        axes.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(low * 1.6 if low < -1 else -1.3, max(1.3, most * 1.6 if most > 1 else 1.3))
    else:
        room = 0.05 * (most - low)
        axes.set_xlim(low - room, most + room)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.axvspan(axes.get_xlim()[0], 0, color="#f6e7dc", linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.7, zorder=3)
    axes.set_axisbelow(True)
    axes.grid(True, axis="x")
    axes.tick_params(axis="x", labelbottom=last, length=2.5 if last else 0)
    if not last:
        axes.spines["bottom"].set_color(LINE)


def _draw_row(axes: Axes, y: float, row: Row) -> None:
    if row.quantiles is None:
        return
    least, lower, middle, upper, greatest = row.quantiles
    ink = colour(row.series)
    axes.plot([least, greatest], [y, y], color=ink, linewidth=0.7, zorder=2)
    axes.fill_between([lower, upper], y - 0.27, y + 0.27, facecolor=ink, alpha=0.3, edgecolor="none", zorder=2)
    axes.plot(row.dots, [y] * len(row.dots), color=ink, marker="|", markersize=4, markeredgewidth=0.6,
              linestyle="none", zorder=3)  # fmt: skip
    axes.plot([middle], [y], color=ink, marker=marker(row.series), markersize=4.5, markeredgecolor="white",
              markeredgewidth=0.5, zorder=4, clip_on=False)  # fmt: skip


def _count(row: Row) -> str:
    if not row.n:
        return f"{row.vacuous} vacuous" if row.vacuous else "inactive"
    vacuous = f" + {row.vacuous} vac." if row.vacuous else ""
    return f"{row.violated}/{row.n}{vacuous}"


def _notes(value: Margins) -> list[str]:
    if not value.blocks:
        return []
    told = ["Below zero, shaded: the limit is broken. Marker: median; box: quartiles; line: least to greatest.",
            "Right: violating episodes / episodes with a margin, and vacuous ones (vac.)."]  # fmt: skip
    low, most = _limits(value)
    if low < -_FAR or most > _FAR:
        told.append("Linear between −1 and 1, logarithmic beyond.")
    if value.silent:
        told.append(f"No margin anywhere: {', '.join(value.silent)}.")
    return [*told, *value.remarks]
