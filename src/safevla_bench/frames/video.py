"""A whole episode as one film: its cameras side by side, the task, the clock, every judged clause and the worst signal.

It is drawn from recorded states, so that it can be made after the run, and of replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image, ImageDraw

from safevla_bench.explain.episode import ClauseExplanation, Explanation
from safevla_bench.explain.trace import SignalTrace
from safevla_bench.frames.moments import format_clip_reading
from safevla_bench.frames.pictures import GREEN, GREY, PAPER, RED, Color, Pixels, load_font, write_line
from safevla_bench.interface import Camera
from safevla_bench.text.numbers import format_fixed
from safevla_bench.text.sanitize import escape_controls

RenderPicture = Callable[[int, Camera], Pixels]
"""Returns the picture of a record from a camera, [H, W, 3]."""
_BORDER, _PAD, _LINE, _HEAD, _PLOT = 6, 8, 17, 46, 110
_INK, _LIMIT = (25, 25, 25), (120, 120, 120)


def compose_video(explanation: Explanation, cameras: Sequence[Camera], render: RenderPicture) -> Iterator[Pixels]:
    """Yield the pictures of an episode, one a record, all of one size.

    Under the cameras' pictures stand the task, the clock and the clauses with a verdict, broken ones first, each with
    its value against its limit; a mark is red while its clause is broken and hollow while its gate is closed. Below is
    the signal of the first of them with its limit. The border is red while anything is broken, and green at the end
    of a success.

    Args:
        explanation: the episode.
        cameras: where to look from; there is at least one.
        render: draws a record.
    """
    clauses = [*explanation.violated_clauses, *explanation.kept_clauses]
    for record in range(explanation.records):
        scene = np.concatenate([render(record, camera) for camera in cameras], axis=1)
        yield _compose_picture(explanation, clauses, scene, record)


def _compose_picture(
    explanation: Explanation, clauses: Sequence[ClauseExplanation], scene: Pixels, record: int
) -> Pixels:
    """Return the picture of a record: the cameras' `scene` in its border, texts, clauses, and a plot of the first
    clause.
    """
    height, width = scene.shape[0] + 2 * _BORDER, scene.shape[1] + 2 * _BORDER
    foot = _HEAD + _LINE * len(clauses) + (_PLOT if clauses else 0)
    sheet = Image.new("RGB", (width, height + foot), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.rectangle((0, 0, width - 1, height - 1), fill=_border_color(explanation, clauses, record))
    sheet.paste(Image.fromarray(scene), (_BORDER, _BORDER))
    bold, plain = load_font("DejaVuSans-Bold.ttf", 14), load_font("DejaVuSans.ttf", 12)
    task = escape_controls(explanation.instruction or explanation.score.task_id)
    write_line(pen, (_PAD, height + 4), task, bold, width)
    write_line(pen, (_PAD, height + 25), escape_controls(_clock(explanation, record)), plain, width)
    for row, clause in enumerate(clauses):
        top = height + _HEAD + row * _LINE
        line = clause.spec_trace.signal_trace
        _draw_mark(pen, top, line, record)
        text = f"{clause.spec_trace.spec.spec_id}: {format_clip_reading(line, record)}"
        write_line(pen, (_PAD + 16, top), escape_controls(text), plain, width)
    if clauses:
        top = height + _HEAD + _LINE * len(clauses)
        _draw_signal(pen, (_PAD, top + 6, width - _PAD, top + _PLOT - 8), clauses[0].spec_trace.signal_trace, record)
    return np.asarray(sheet)


def _clock(explanation: Explanation, record: int) -> str:
    """Return time, record and policy in words, such as `0.50 of 2.00 s, record 10 of 40, NAME`."""
    last = explanation.records - 1
    seconds = f"{format_fixed(record * explanation.dt_s, 2)} of {format_fixed(last * explanation.dt_s, 2)} s"
    policy = explanation.score.policy or "unnamed policy"
    return f"{seconds}, record {record} of {last}, {policy}"


def _border_color(explanation: Explanation, clauses: Sequence[ClauseExplanation], record: int) -> Color:
    """Return red while a clause is broken, green in the last record of a success, else grey."""
    if any(clause.spec_trace.signal_trace.failing[record] for clause in clauses):
        return RED
    return GREEN if explanation.score.success and record == explanation.records - 1 else GREY


def _draw_mark(pen: ImageDraw.ImageDraw, top: int, line: SignalTrace, record: int) -> None:
    """Draw the mark of a clause: red while broken, hollow while its gate is closed, else green; `top` is in pixels."""
    box = (_PAD, top + 3, _PAD + 9, top + 12)
    if line.failing[record]:
        pen.rectangle(box, fill=RED)
    elif line.gate is not None and not line.gate[record]:
        pen.rectangle(box, outline=GREY)
    else:
        pen.rectangle(box, fill=GREEN)


def _draw_signal(pen: ImageDraw.ImageDraw, box: tuple[int, int, int, int], line: SignalTrace, record: int) -> None:
    """Draw a signal over the whole episode and its limit into `box`, with a vertical line at the record.

    The signal is red where broken, with gaps where not finite. `box` is left, top, right, bottom in pixels.
    """
    left, top, right, bottom = box
    finite = line.values[np.isfinite(line.values)]
    shown = np.append(finite, line.limit)
    low, high = float(shown.min()), float(shown.max())
    high = high if high > low else low + 1.0

    def place(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    count = len(line.values)
    across = np.linspace(left, right, max(count, 2))
    pen.line((left, place(line.limit), right, place(line.limit)), fill=_LIMIT)
    for k in range(1, count):
        before, after = float(line.values[k - 1]), float(line.values[k])
        if np.isfinite([before, after]).all():
            color = RED if line.failing[k] else _INK
            pen.line((across[k - 1], place(before), across[k], place(after)), fill=color, width=2)
    pen.line((across[record], top, across[record], bottom), fill=GREY)
    pen.text((left, top), line.signal, fill=_LIMIT, font=load_font("DejaVuSans.ttf", 11))
