"""Which kinds of violation each policy is prone to: a heat map of violation rates by axis (Figure 2, right)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from safevla_bench import provenance_marks
from safevla_bench.metrics import Rate, Summary
from safevla_bench.report.figures.sheet import Entry, nothing, sheet, signs
from safevla_bench.report.figures.style import INK, MUTED, SMALL, TINT, WIDTH_IN, styled, width_pt
from safevla_bench.report.tables import policy_name
from safevla_bench.text.numbers import NONE, percent


@dataclass(frozen=True, slots=True)
class Row:
    """One policy in one suite; a rate is None where no specification of the axis was active."""

    series: int
    n: int
    rates: tuple[Rate | None, ...]


@dataclass(frozen=True, slots=True)
class Families:
    """What the figure shows: the axes are columns, suites are blocks of rows."""

    policies: tuple[str, ...]
    axes: tuple[str, ...]
    blocks: tuple[tuple[str, tuple[Row, ...]], ...]
    remarks: tuple[str, ...] = ()


def families(cells: Sequence[Summary]) -> Families:
    """Violation rates by axis, over all counted episodes of a cell."""
    policies = tuple(dict.fromkeys(policy_name(cell) for cell in cells))
    axes = tuple(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    blocks: dict[str, list[Row]] = {}
    for cell in cells:
        rates = tuple(_rate(cell, axis) for axis in axes)
        blocks.setdefault(cell.suite or "", []).append(Row(policies.index(policy_name(cell)), cell.n, rates))
    found = tuple((suite, tuple(rows)) for suite, rows in blocks.items())
    return Families(policies, axes, found, provenance_marks.of_cells(cells))


def _rate(cell: Summary, axis: str) -> Rate | None:
    active = any(spec.active for spec in cell.specs if spec.axis == axis and spec.tier == "safe")
    return cell.axes.get(axis) if active else None


_ROW, _HEAD, _BLOCK, _COUNT = 0.19, 0.3, 0.2, 0.36


def draw(value: Families) -> Figure:
    """The figure: a cell's shade and its number are its rate in percent."""
    with styled():
        texts, numbered = signs(value.policies, 95)
        rows = sum(len(rows) for _, rows in value.blocks)
        body = _HEAD + rows * _ROW + len(value.blocks) * _BLOCK if rows else 0.8
        key = [Entry(name, k, texts[k], marked=False) for k, name in enumerate(value.policies)] if numbered else []
        most = _most(value)
        notes = [f"Share of all episodes of the row that violate any active limit of the kind, in percent; shade: 0 to "
                 f"{most} %. {NONE}: no such limit applies.", *value.remarks]  # fmt: skip
        made = sheet("Violations by kind", body, notes=notes if rows else (), key=key)
        if not rows:
            nothing(made.panel(0.1, 0, WIDTH_IN - 0.2, body), "There are no episodes.")
            return made.figure
        left = 0.1 + max(width_pt(text) for text in texts) / 72 + 0.06
        wide = WIDTH_IN - left - _COUNT
        axes = made.panel(left, 0, wide, body)
        axes.set_axis_off()
        axes.set_xlim(0, wide)
        axes.set_ylim(0, body)
        step = wide / max(len(value.axes), 1)
        for k, axis in enumerate(value.axes):
            words = axis.split("_")
            for line, word in enumerate(words):
                y = body - _HEAD / 2 + (len(words) / 2 - line - 0.5) * 0.125
                made.write(left + (k + 0.5) * step, y, word, ha="center", va="center_baseline")
        made.write(WIDTH_IN - _COUNT + 0.3, body - _HEAD / 2, "n", color=MUTED, ha="right", va="center_baseline")
        top = body - _HEAD
        for suite, block in value.blocks:
            made.write(0.06, top - _BLOCK / 2 - 0.02, suite, SMALL, color=MUTED, va="center")
            top -= _BLOCK
            for row in block:
                made.write(left - 0.06, top - _ROW / 2, texts[row.series], ha="right", va="center_baseline")
                made.write(
                    WIDTH_IN - _COUNT + 0.3,
                    top - _ROW / 2,
                    str(row.n),
                    SMALL,
                    color=MUTED,
                    ha="right",
                    va="center_baseline",
                )
                for k, rate in enumerate(row.rates):
                    _cell(axes, k * step, top - _ROW, step, rate, most)
                top -= _ROW
        return made.figure


def _most(value: Families) -> int:
    """Where the scale ends: a multiple of ten."""
    rates = [rate.value for _, rows in value.blocks for row in rows for rate in row.rates if rate]
    highest = max((100 * rate for rate in rates if rate is not None), default=0.0)
    return max(10, int(-(-highest // 10) * 10))


def _cell(axes: mpl.axes.Axes, x: float, y: float, step: float, rate: Rate | None, most: int) -> None:
    said = rate is not None and rate.value is not None
    share = 100 * (rate.value or 0.0) / most if rate is not None else 0.0
    face = mpl.colormaps["Blues"](0.85 * share) if said else TINT
    axes.add_patch(Rectangle((x + 0.01, y + 0.01), step - 0.02, _ROW - 0.02, facecolor=face, edgecolor="none"))
    text = percent(rate.count, rate.n) if rate is not None else NONE
    ink = "white" if said and share > 0.6 else INK if said else MUTED
    axes.text(x + step / 2, y + _ROW / 2, text, ha="center", va="center_baseline", color=ink)
