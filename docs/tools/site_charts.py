"""Charts of the site as inline SVG: a signal against its limit. Colors come from site.css, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.trace import SignalTrace
from safevla_bench.text import append_unit, display_unit, format_compact

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 190, 96, 14, 150


def draw_signal(trace: SignalTrace, dt_s: float, title: str) -> str:
    """Return an SVG of one signal over an episode: its line, its limit, what breaks it, and when its gate is open."""
    unit, scale = display_unit(trace.unit, trace.limit)
    limit = trace.limit * scale
    bound = max(1.0, 2 * abs(limit))  # where a Boolean decides, margins are infinite
    values = np.nan_to_num(np.asarray(trace.values, dtype=float) * scale, posinf=bound, neginf=-bound)
    low, high = min(0.0, limit, values.min()), max(0.0, limit, values.max())
    high = high + (high - low) * 0.08 or 1.0

    def across(record: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * record / max(len(values) - 1, 1)

    def down(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    points = " ".join(f"{across(k):.1f},{down(value):.1f}" for k, value in enumerate(values))
    parts = [f'<div class="chart">\n<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title>']
    for first, last in _spans(trace.failing):
        begin, end = across(first - 0.5), across(last + 0.5)
        parts.append(
            f'<rect class="broken" x="{begin:.1f}" y="{TOP}" width="{end - begin:.1f}" height="{BOTTOM - TOP}"/>'
        )
    for first, last in _spans(trace.gate) if trace.gate is not None else ():
        begin, end = across(first), across(last)
        parts.append(
            f'<rect class="gate" x="{begin:.1f}" y="{BOTTOM + 3}" width="{max(end - begin, 2):.1f}" height="5"/>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{BOTTOM}" x2="{WIDTH - 8}" y2="{BOTTOM}"/>')
    parts.append(f'<line class="limit" x1="{LEFT}" y1="{down(limit):.1f}" x2="{WIDTH - 8}" y2="{down(limit):.1f}"/>')
    parts.append(f'<polyline class="line" points="{points}"/>')
    worst = trace.worst
    if 0 <= worst < len(values):
        parts.append(f'<circle class="worst" cx="{across(worst):.1f}" cy="{down(values[worst]):.1f}" r="4"/>')
    labels = [(limit, f"limit {append_unit(format_compact(limit), unit)}")]
    peak = values[worst] if 0 <= worst < len(values) else 0.0
    if abs(down(peak) - down(limit)) > 16:
        labels.append((peak, append_unit(format_compact(round(peak, 1)), unit)))
    parts += [
        f'<text x="{LEFT - 6}" y="{down(value) + 4:.1f}" text-anchor="end">{text}</text>' for value, text in labels
    ]
    seconds = (len(values) - 1) * dt_s
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 12}">0 s</text>')
    if trace.gate is not None:
        parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">bar: the condition holds</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="{HEIGHT - 12}" text-anchor="end">{seconds:.2f} s</text></svg>\n</div>')
    return "".join(parts)


def _spans(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield first and last place of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(flags, dtype=int), [0]])))
    yield from ((int(first), int(last) - 1) for first, last in edges.reshape(-1, 2))
