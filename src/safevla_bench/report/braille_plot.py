"""A signal against its limit, drawn in Braille dots for a terminal: two across and four down in each character."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from safevla_bench.explain.trace import Exhibit
from safevla_bench.text.numbers import fixed, short, significant, unit_text, with_unit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROWS = 8
MOST_COLUMNS = 100
FEWEST_COLUMNS = 10
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""What each dot adds to the Braille pattern U+2800, [down, across]."""
_LIMIT, _OPEN, _BROKEN = "╌", "━", "▲"


def plot(exhibit: Exhibit, width: int) -> list[str]:
    """The lines of the drawing, none wider than `width` where that is 40 or more.

    Below the time axis lie the spans in which the condition is open, for a specification that has one, and the records
    that break the limit, if any do. No peak is lost, however many records share a column.
    """
    line = exhibit.line
    unit, scale = unit_text(line.unit, line.limit)
    values, limit = line.values * scale, line.limit * scale
    low, high = _bounds(values, limit)
    limit_row = int(_down(np.array([limit]), low, high)[0]) // 4
    labels = {0: significant(high), ROWS - 1: significant(low), limit_row: f"limit {with_unit(short(limit), unit)}"}
    strips = [("open", _OPEN, line.gate)] if line.gate is not None else []
    strips += [("broken", _BROKEN, line.failing)] if line.failing.any() else []
    gutter = max(cell_len(text) for text in [*labels.values(), *(name for name, _, _ in strips)])
    columns = max(FEWEST_COLUMNS, min(width - gutter - 2, MOST_COLUMNS))
    drawn = [
        f"{labels.get(k, ''):>{gutter}} {'┤' if k in labels else '│'}{_ruled(row) if k == limit_row else row}"
        for k, row in enumerate(_braille(_dots(_down(values, low, high), columns)))
    ]
    marked = [f"{name:>{gutter}} │{_strip(flags, mark, columns)}" for name, mark, flags in strips]
    end = f"{fixed((len(values) - 1) * exhibit.dt_s, 2)} s"
    axis = [f"{'':>{gutter}} └{'─' * columns}", f"{'':>{gutter}}  0 s{end:>{columns - 3}}"]
    return [row.rstrip() for row in [*drawn, *marked, *axis]]


def _bounds(values: Floats, limit: float) -> tuple[float, float]:
    """The least and greatest of the finite values, the limit and zero; apart from one another."""
    finite = values[np.isfinite(values)]
    low, high = min(float(finite.min(initial=0.0)), limit, 0.0), max(float(finite.max(initial=0.0)), limit, 0.0)
    return low, high if high > low else low + 1.0


def _down(values: Floats, low: float, high: float) -> Floats:
    """Dots from the top, 0 to 4·ROWS - 1; NaN where a value is not finite."""
    share = (high - values) / (high - low) * (4 * ROWS - 1)
    return np.where(np.isfinite(share), np.rint(share), np.nan)


def _dots(down: Floats, columns: int) -> Bools:
    """The polyline through the records, spread over 2·columns dots; [4·ROWS, 2·columns]."""
    count = 2 * columns
    across = _across(len(down), count)
    place = np.arange(count)
    before, after = np.interp(place - 0.5, across, down), np.interp(place + 0.5, across, down)
    top, bottom = np.fmin(before, after), np.fmax(before, after)
    column = np.rint(across).astype(np.int64)
    np.fmin.at(top, column, down)
    np.fmax.at(bottom, column, down)
    row = np.arange(4 * ROWS)[:, None]
    drawn: Bools = (row >= np.rint(top)) & (row <= np.rint(bottom))
    return drawn


def _across(records: int, count: int) -> Floats:
    """Where each record lies among so many dots, from the first to the last."""
    return np.linspace(0.0, count - 1.0, records)


def _braille(dots: Bools) -> list[str]:
    """The characters of [4·rows, 2·columns] dots; a space where there is none."""
    rows, columns = dots.shape[0] // 4, dots.shape[1] // 2
    cells = dots.reshape(rows, 4, columns, 2).transpose(0, 2, 1, 3)
    patterns = (cells * _BITS).sum(axis=(2, 3))
    return ["".join(chr(0x2800 + int(bits)) if bits else " " for bits in row) for row in patterns]


def _ruled(row: str) -> str:
    return row.replace(" ", _LIMIT)


def _strip(flags: Bools, mark: str, columns: int) -> str:
    """A mark in each column that has a flagged record, or that one is next to."""
    column = np.rint(_across(len(flags), 2 * columns)).astype(np.int64) // 2
    nearest = np.rint((2 * np.arange(columns) + 0.5) / (2 * columns - 1) * (len(flags) - 1)).astype(np.int64)
    marked = flags[nearest]
    np.logical_or.at(marked, column, flags)
    return "".join(mark if one else " " for one in marked)
