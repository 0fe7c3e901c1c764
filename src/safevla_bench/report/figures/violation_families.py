"""Violation rates of each policy by kind of violation, as a heat map (Figure 2, right)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from safevla_bench import provenance_marks
from safevla_bench.metrics import Rate, Summary
from safevla_bench.report.figures.sheet import KeyEntry, Sheet, draw_empty, make_sheet, series_signs
from safevla_bench.report.figures.style import INK, MUTED, SMALL, TINT, WIDTH_IN, figure_style, text_width_pt
from safevla_bench.report.tables import policy_name
from safevla_bench.text.numbers import NO_VALUE, format_percent


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
    """Return violation rates by axis, over all judged episodes of a cell."""
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
    """Draw the heat map: the shade of a cell and its number are the rate in percent."""
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
            draw_empty(sheet.add_panel(0.1, 0, WIDTH_IN - 0.2, body), "There are no episodes.")
            return sheet.figure
        left = 0.1 + max(text_width_pt(text) for text in texts) / 72 + 0.06
        wide = WIDTH_IN - left - _COUNT
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
    """Write the kinds of violation above the columns, one word a line, and `n` above the counts."""
    for k, kind in enumerate(kinds):
        words = kind.split("_")
        for line, word in enumerate(words):
            y = body - _HEAD / 2 + (len(words) / 2 - line - 0.5) * 0.125
            sheet.write_text(left + (k + 0.5) * step, y, word, ha="center", va="center_baseline")
    x = WIDTH_IN - _COUNT + 0.3
    sheet.write_text(x, body - _HEAD / 2, "n", color=MUTED, ha="right", va="center_baseline")


def _write_row(sheet: Sheet, row: PolicyViolationRow, sign: str, left: float, top: float) -> None:
    y = top - _ROW / 2
    sheet.write_text(left - 0.06, y, sign, ha="right", va="center_baseline")
    x = WIDTH_IN - _COUNT + 0.3
    sheet.write_text(x, y, str(row.n), SMALL, color=MUTED, ha="right", va="center_baseline")


def _scale_end(value: Families) -> int:
    """Return the end of the colour scale in percent, a multiple of ten."""
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
