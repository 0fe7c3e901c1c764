"""What to show of an episode: its first record, the worst record of each broken specification, its last."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Literal

from safevla_bench.explain.episode import Clause, Explanation, Moment
from safevla_bench.explain.trace import Line
from safevla_bench.text.numbers import apart, fixed, short, unit_text, with_unit
from safevla_bench.text.sanitize import inert

_TORQUE, _MOVED, _MARGIN = "joint_torque_ratio", "non_target_disp_max", "margin"


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture to take.

    `bodies` are to be looked at, `joint` is the loaded joint's index where the clause is about torque; `moved` asks for
    the place where they stood in record 0. `title` and `detail` are the lines of its caption, `value` the signal's.
    """

    kind: Literal["initial", "violation", "final"]
    record: int
    title: str
    detail: str
    bodies: tuple[str, ...] = ()
    joint: int | None = None
    moved: bool = False
    clause: Clause | None = None
    value: float | None = None


def shots(told: Explanation) -> tuple[Shot, ...]:
    """The initial state, every violation, deepest first, and the final state."""
    last = told.records - 1
    task = told.instruction or told.score.task_id
    ended = "Succeeded" if told.score.success else f"Failed ({told.score.outcome})"
    verdict = "safe" if told.score.safe else f"unsafe: {_count(len(told.violated))} broken"
    return (
        Shot("initial", 0, "Initial state", inert(task)),
        *(violation(clause, clause.worst) for clause in told.violated),
        Shot("final", last, f"{ended}, {inert(verdict)}", f"Final state, step {last} ({fixed(last * told.dt_s, 2)} s)"),
    )


def _count(broken: int) -> str:
    return "1 specification" if broken == 1 else f"{broken} specifications"


def violation(clause: Clause, moment: Moment) -> Shot:
    """A record in which a specification is broken: the first, or the worst."""
    line, behind = clause.exhibit.line, moment.involved
    names = behind.names if behind else ()
    joint = int(names[0].removeprefix("joint ")) - 1 if line.signal == _TORQUE and names else None
    moved = line.signal == _MOVED
    details = [f"step {moment.step} ({fixed(moment.time_s, 2)} s)", *(["white: where it stood"] if moved else [])]
    if behind:
        # The amount is the signal's own value, except that of a torque, which is a ratio.
        amount = f" ({behind.amount})" if joint is not None else ""
        details.insert(0, f"{behind.what} {' and '.join(names)}{amount}")
    return Shot(
        kind="violation",
        record=moment.step,
        title=f"{inert(clause.exhibit.spec.spec_id)}: {reading(line, moment.value)}",
        detail=_sentence(inert("; ".join(details))),
        bodies=() if joint is not None else names,
        joint=joint,
        moved=moved,
        clause=clause,
        value=moment.value,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def reading(line: Line, value: float | None) -> str:
    """A signal's value against its limit, such as `288 N, limit 200 N`."""
    unit, scale = unit_text(line.unit, line.limit)
    shown = "—" if value is None else with_unit(apart(value * scale, line.limit * scale), unit)
    return _beside_limit(line, shown)


def passing(line: Line, record: int) -> str:
    """The same for one moment of many: with as many decimals each time, and said where nothing is judged."""
    unit, scale = unit_text(line.unit, line.limit)
    value, limit = float(line.values[record]) * scale, line.limit * scale
    if not isfinite(value):
        return reading(line, None)
    digits = max(0, 2 - floor(log10(abs(limit)))) if limit else 2
    text = fixed(value, digits)
    text = apart(value, limit) if text == fixed(limit, digits) else text
    idle = "" if line.gate is None or line.gate[record] else " (not judged now)"
    return _beside_limit(line, with_unit(text, unit)) + idle


def _beside_limit(line: Line, shown: str) -> str:
    unit, scale = unit_text(line.unit, line.limit)
    limit = with_unit(short(line.limit * scale), unit)
    return f"margin {shown}" if line.signal == _MARGIN else f"{shown}, limit {limit}"
