"""A signal against its limit in Braille dots for a terminal: two dots across and four down in each character."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from safevla_bench.explain.trace import SpecTrace
from safevla_bench.text.numbers import append_unit, display_unit, format_compact, format_fixed, format_significant

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROWS = 8
MOST_COLUMNS = 100
FEWEST_COLUMNS = 10
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""What each dot adds to the Braille pattern U+2800, [down, across]."""
_LIMIT, _OPEN, _BROKEN = "╌", "━", "▲"


def plot_signal(spec_trace: SpecTrace, width: int) -> list[str]:
    """Return the lines of the plot, none wider than `width` where that is 40 or more.

    Below the time axis lie the spans in which the condition is open, for a specification that has one, and the records
    that break the limit, if any do. No peak is lost, however many records share a column.
    """
    signal_trace = spec_trace.signal_trace
    unit, scale = display_unit(signal_trace.unit, signal_trace.limit)
    values, limit = signal_trace.values * scale, signal_trace.limit * scale
    low, high = _value_bounds(values, limit)
    limit_row = int(_vertical_dots(np.array([limit]), low, high)[0]) // 4
    labels = {
        0: format_significant(high),
        ROWS - 1: format_significant(low),
        limit_row: f"limit {append_unit(format_compact(limit), unit)}",
    }
    strips = [("open", _OPEN, signal_trace.gate)] if signal_trace.gate is not None else []
    strips += [("broken", _BROKEN, signal_trace.failing)] if signal_trace.failing.any() else []
    gutter = max(cell_len(text) for text in [*labels.values(), *(name for name, _, _ in strips)])
    columns = max(FEWEST_COLUMNS, min(width - gutter - 2, MOST_COLUMNS))
    plot_rows = [
        f"{labels.get(k, ''):>{gutter}} {'┤' if k in labels else '│'}{_draw_limit(row) if k == limit_row else row}"
        for k, row in enumerate(_braille_rows(_polyline_dots(_vertical_dots(values, low, high), columns)))
    ]
    strip_rows = [f"{name:>{gutter}} │{_flag_strip(flags, mark, columns)}" for name, mark, flags in strips]
    end = f"{format_fixed((len(values) - 1) * spec_trace.dt_s, 2)} s"
    axis = [f"{'':>{gutter}} └{'─' * columns}", f"{'':>{gutter}}  0 s{end:>{columns - 3}}"]
    return [row.rstrip() for row in [*plot_rows, *strip_rows, *axis]]


def _value_bounds(values: Floats, limit: float) -> tuple[float, float]:
    """Return the least and greatest of the finite values, the limit and zero; never equal."""
    finite = values[np.isfinite(values)]
    low, high = min(float(finite.min(initial=0.0)), limit, 0.0), max(float(finite.max(initial=0.0)), limit, 0.0)
    return low, high if high > low else low + 1.0


def _vertical_dots(values: Floats, low: float, high: float) -> Floats:
    """Return dots from the top, 0 to 4·ROWS - 1; NaN where a value is not finite."""
    share = (high - values) / (high - low) * (4 * ROWS - 1)
    return np.where(np.isfinite(share), np.rint(share), np.nan)


def _polyline_dots(down: Floats, columns: int) -> Bools:
    """Return the polyline through the records, spread over 2·columns dots; [4·ROWS, 2·columns]."""
    count = 2 * columns
    across = _horizontal_dots(len(down), count)
    place = np.arange(count)
    before, after = np.interp(place - 0.5, across, down), np.interp(place + 0.5, across, down)
    top, bottom = np.fmin(before, after), np.fmax(before, after)
    column = np.rint(across).astype(np.int64)
    np.fmin.at(top, column, down)
    np.fmax.at(bottom, column, down)
    row = np.arange(4 * ROWS)[:, None]
    drawn: Bools = (row >= np.rint(top)) & (row <= np.rint(bottom))
    return drawn


def _horizontal_dots(records: int, count: int) -> Floats:
    """Return the place of each record among `count` dots, from the first to the last."""
    return np.linspace(0.0, count - 1.0, records)


def _braille_rows(dots: Bools) -> list[str]:
    """Return the characters of [4·rows, 2·columns] dots; a space where a character has no dot."""
    rows, columns = dots.shape[0] // 4, dots.shape[1] // 2
    cells = dots.reshape(rows, 4, columns, 2).transpose(0, 2, 1, 3)
    patterns = (cells * _BITS).sum(axis=(2, 3))
    return ["".join(chr(0x2800 + int(bits)) if bits else " " for bits in row) for row in patterns]


def _draw_limit(row: str) -> str:
    return row.replace(" ", _LIMIT)


def _flag_strip(flags: Bools, mark: str, columns: int) -> str:
    """Mark each column that holds a flagged record, or whose nearest record is flagged."""
    column = np.rint(_horizontal_dots(len(flags), 2 * columns)).astype(np.int64) // 2
    nearest = np.rint((2 * np.arange(columns) + 0.5) / (2 * columns - 1) * (len(flags) - 1)).astype(np.int64)
    columns_marked = flags[nearest]
    np.logical_or.at(columns_marked, column, flags)
    return "".join(mark if is_marked else " " for is_marked in columns_marked)
