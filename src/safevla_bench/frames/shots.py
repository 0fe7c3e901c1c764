"""What to show of an episode: its first record, the worst record of each broken specification, its last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from safevla_bench.inert import inert
from safevla_bench.report.evidence import Line
from safevla_bench.report.explaining import Clause, Explanation
from safevla_bench.report.numbers import apart, fixed, short, unit_text, with_unit

_TORQUE, _MARGIN = "joint_torque_ratio", "margin"


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture to take.

    `bodies` are to be looked at, `joint` is the loaded joint's index where the clause is about torque; `title` and
    `detail` are the lines of its caption.
    """

    kind: Literal["initial", "violation", "final"]
    record: int
    title: str
    detail: str
    bodies: tuple[str, ...] = ()
    joint: int | None = None
    clause: Clause | None = None


def shots(told: Explanation) -> tuple[Shot, ...]:
    """The initial state, every violation, deepest first, and the final state."""
    last = told.records - 1
    task = told.instruction or told.score.task_id
    ended = "Succeeded" if told.score.success else f"Failed ({told.score.outcome})"
    verdict = "safe" if told.score.safe else f"unsafe: {_count(len(told.violated))} broken"
    return (
        Shot("initial", 0, "Initial state", inert(task)),
        *(violation(clause) for clause in told.violated),
        Shot("final", last, f"{ended}, {inert(verdict)}", f"Final state, {_at(last, last * told.dt_s)}"),
    )


def _count(broken: int) -> str:
    return "1 specification" if broken == 1 else f"{broken} specifications"


def violation(clause: Clause) -> Shot:
    """The record in which a specification is broken worst."""
    worst = clause.worst
    behind = worst.involved
    names = behind.names if behind else ()
    joint = int(names[0].removeprefix("joint ")) - 1 if clause.exhibit.line.signal == _TORQUE and names else None
    amount = f" ({behind.amount})" if behind and joint is not None else ""  # of others it is the value itself
    who = [f"{behind.what} {' and '.join(names)}{amount}"] if behind else []
    return Shot(
        kind="violation",
        record=worst.step,
        title=f"{inert(clause.exhibit.spec.spec_id)}: {reading(clause.exhibit.line, worst.value)}",
        detail=inert("; ".join([*who, _at(worst.step, worst.time_s)])),
        bodies=() if joint is not None else names,
        joint=joint,
        clause=clause,
    )


def reading(line: Line, value: float | None) -> str:
    """A signal's value against its limit, such as `288 N, limit 200 N`."""
    unit, scale = unit_text(line.unit, line.limit)
    limit = with_unit(short(line.limit * scale), unit)
    shown = "—" if value is None else with_unit(apart(value * scale, line.limit * scale), unit)
    return f"margin {shown}" if line.signal == _MARGIN else f"{shown}, limit {limit}"


def _at(record: int, time_s: float) -> str:
    return f"step {record} ({fixed(time_s, 2)} s)"
