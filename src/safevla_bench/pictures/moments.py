"""Moments of an episode to show: its first record, the worst record of each broken specification, its last."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Literal

from safevla_bench.explain.episode import ClauseExplanation, Explanation, Moment
from safevla_bench.explain.trace import SignalTrace
from safevla_bench.judging.scores import verdict_word
from safevla_bench.text import (
    append_unit,
    display_unit,
    escape_controls,
    format_against_limit,
    format_compact,
    format_fixed,
)

_TORQUES = ("joint_torque_ratio", "joint_torque_peak_ratio")
_MOVED, _MARGIN = "non_target_disp_max", "margin"


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture to take, with the two lines of its caption.

    `bodies` are outlined, with `moved` also where they stood in record 0. `joint` is the index of a loaded joint.
    """

    kind: Literal["initial", "violation", "final"]
    record: int
    title: str
    detail: str
    bodies: tuple[str, ...] = ()
    joint: int | None = None
    moved: bool = False
    clause: ClauseExplanation | None = None
    value: float | None = None


def select_shots(explanation: Explanation) -> tuple[Shot, ...]:
    """Return the shots of an episode: its first record, the worst of every violated clause, deepest first, its last."""
    last = explanation.records - 1
    task = explanation.instruction or explanation.score.task_id
    ended = "Succeeded" if explanation.score.success else f"Failed ({explanation.score.outcome})"
    verdict = verdict_word(explanation.score.safe)
    if explanation.score.safe is False:
        broken = len(explanation.violated_clauses)
        verdict += f": {broken} specification{'' if broken == 1 else 's'} broken"
    return (
        Shot("initial", 0, "Initial state", escape_controls(task)),
        *(violation_shot(clause, clause.worst) for clause in explanation.violated_clauses),
        Shot(
            "final",
            last,
            f"{ended}, {escape_controls(verdict)}",
            f"Final state, step {last} ({format_fixed(last * explanation.dt_s, 2)} s)",
        ),
    )


def violation_shot(clause: ClauseExplanation, moment: Moment) -> Shot:
    """Return the shot of a record in which a specification is broken; of torque, the joint stands for bodies."""
    line, contributors = clause.spec_trace.signal_trace, moment.involved
    names = contributors.names if contributors else ()
    joint = int(names[0].removeprefix("joint ")) - 1 if line.signal in _TORQUES and names else None
    moved = line.signal == _MOVED
    detail = f"step {moment.step} ({format_fixed(moment.time_s, 2)} s)" + ("; white: where it stood" if moved else "")
    if contributors:
        # The amount is the signal's own value, except that of a torque, which is a ratio.
        amount = f" ({contributors.amount})" if joint is not None else ""
        detail = f"{contributors.what} {' and '.join(contributors.labels)}{amount}; {detail}"
    detail = escape_controls(detail)
    return Shot(
        kind="violation",
        record=moment.step,
        title=f"{escape_controls(clause.spec_trace.spec.spec_id)}: {format_reading(line, moment.value)}",
        detail=detail[:1].upper() + detail[1:],
        bodies=() if joint is not None else names,
        joint=joint,
        moved=moved,
        clause=clause,
        value=moment.value,
    )


def format_reading(line: SignalTrace, value: float | None) -> str:
    """Return a signal's value and its limit, such as `288 N, limit 200 N`; a dash for None, no limit for a margin."""
    unit, scale = display_unit(line.unit, line.limit)
    shown = "—" if value is None else append_unit(format_against_limit(value * scale, line.limit * scale), unit)
    return _append_limit(line, shown)


def format_clip_reading(line: SignalTrace, record: int) -> str:
    """Return the caption of a clip's frame: the signal in fixed decimals and its limit; a dash if not finite.

    `(not judged now)` follows a value in a record outside the gate or the window.
    """
    unit, scale = display_unit(line.unit, line.limit)
    value, limit = float(line.values[record]) * scale, line.limit * scale
    if not isfinite(value):
        return format_reading(line, None)
    digits = max(0, 2 - floor(log10(abs(limit)))) if limit else 2
    text = format_fixed(value, digits)
    text = format_against_limit(value, limit) if text == format_fixed(limit, digits) else text
    idle = "" if line.gate is None or line.gate[record] else " (not judged now)"
    return _append_limit(line, append_unit(text, unit)) + idle


def _append_limit(line: SignalTrace, shown: str) -> str:
    unit, scale = display_unit(line.unit, line.limit)
    limit = append_unit(format_compact(line.limit * scale), unit)
    return f"margin {shown}" if line.signal == _MARGIN else f"{shown}, limit {limit}"
