"""Readings of the paper: which verdicts each changes, cell by cell and policy by policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from safevla_bench.judging.rates import SAFETY, Rate
from safevla_bench.report.tables.columns import rate_cell
from safevla_bench.report.tables.sensitivity import (
    CELL_COLUMNS,
    MOST_NAMED,
    RATE_COLUMNS,
    SAME_SR,
    CellPoint,
    pool_safety,
)
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.sensitivity.readings import PROSE_DEPTH, ReadingComparison, VerdictChanges


@dataclass(frozen=True, slots=True)
class _ReadingPoint(CellPoint):
    """One cell under one reading."""

    changes: VerdictChanges


def reading_table(comparison: ReadingComparison) -> Table:
    """Return the table of a row per cell and reading, with the verdicts that differ from those of the first reading."""
    return tabulate(
        "Readings of the paper",
        [
            _ReadingPoint(cell, Cell(name), point.rates, point.changes)
            for cell in comparison.cells
            for name, point in zip(comparison.readings, cell.points, strict=True)
        ],
        (
            *CELL_COLUMNS,
            text_column("Reading", lambda row: row.head),
            *_CHANGED,
            *RATE_COLUMNS,
            _DIFFERENCES,
        ),
        notes=(
            f"Changes are from {comparison.readings[0]}. {PROSE_DEPTH.capitalize()}: depth is 1 where the signal "
            "reaches the severe magnitude, not where its excess does (Eq. 1); no verdict depends on it.",
            SAME_SR.replace("thresholds", "the reading"),
        ),
        remarks=comparison.warnings,
        name="readings",
    )


def _changed_cell(changes: VerdictChanges) -> Cell:
    lost = changes.changed - changes.to_unsafe - changes.to_safe
    return Cell(str(changes.changed), changes.changed, f"{lost} to no verdict" if lost else "")


def _format_differences(changes: VerdictChanges) -> str:
    return ", ".join(f"{spec_id} {'+' if n > 0 else '−'}{abs(n)}" for spec_id, n in changes.violations.items())


_CHANGED = (
    Column("all", "verdicts", lambda row: _changed_cell(row.changes), group="Changed"),
    Column("to unsafe", "verdicts", lambda row: row.changes.to_unsafe, group="Changed"),
    Column("to safe", "verdicts", lambda row: row.changes.to_safe, group="Changed"),
)
_DIFFERENCES = text_column(
    "Violations more or fewer", lambda row: _format_differences(row.changes), "episodes, by specification"
)


@dataclass(frozen=True, slots=True)
class _PooledReading:
    """One policy under one reading, its suites pooled."""

    policy: str
    reading: str
    safety: Rate
    changes: VerdictChanges


def _pool_readings(comparison: ReadingComparison) -> list[_PooledReading]:
    """Return a row for each policy and reading but prose depth, which changes no verdict."""
    rates = pool_safety((cell.policy, [point.rates.safety for point in cell.points]) for cell in comparison.cells)
    return [
        _PooledReading(policy, name, of_policy[k], _add_changes(comparison, policy, k))
        for policy, of_policy in rates.items()
        for k, name in enumerate(comparison.readings)
        if not name.endswith(PROSE_DEPTH)
    ]


def _add_changes(comparison: ReadingComparison, policy: str, reading: int) -> VerdictChanges:
    parts = [cell.points[reading].changes for cell in comparison.cells if (cell.policy or UNNAMED) == policy]
    violations = Counter[str]()
    for part in parts:
        violations.update(part.violations)
    return VerdictChanges(
        changed=sum(part.changed for part in parts),
        to_unsafe=sum(part.to_unsafe for part in parts),
        to_safe=sum(part.to_safe for part in parts),
        violations={name: count for name, count in violations.items() if count},
    )


def describe_readings(comparison: ReadingComparison) -> str:
    """Return under which readings verdicts change, and where Safety of each policy goes."""
    rows, (first, *_) = _pool_readings(comparison), comparison.readings
    changed = Counter[str]()
    for row in rows:
        changed[row.reading] += row.changes.changed
    counts = [f"{count} under {name}" for name, count in changed.items() if count]
    total = sum(cell.n for cell in comparison.cells)
    if not counts:
        return f"No reading of the paper changes one of {total} verdicts."
    moved = [f"{policy} {', '.join(ends)}" for policy, ends in _group_moves(rows).items() if ends]
    more = f"; and {len(moved) - MOST_NAMED} more" if len(moved) > MOST_NAMED else ""
    answer = f"Of {total} verdicts {' and '.join(counts)} differ from {first}."
    return f"{answer} Safety: {'; '.join(moved[:MOST_NAMED])}{more}." if moved else answer


def _group_moves(rows: Sequence[_PooledReading]) -> dict[str, list[str]]:
    """Return policy -> its Safety under the first reading, then under those that change it, alike ones together."""
    moves: dict[str, list[str]] = {}
    for policy in dict.fromkeys(row.policy for row in rows):
        readings: dict[str, list[str]] = {}
        for row in (row for row in rows if row.policy == policy and row.safety.value is not None):
            readings.setdefault(f"{SAFETY.format(row.safety.value or 0.0)} %", []).append(row.reading)
        if len(readings) > 1:
            moves[policy] = [f"{value} ({', '.join(names)})" for value, names in readings.items()]
    return moves


def reading_summary_table(comparison: ReadingComparison) -> Table:
    """Return the table of a row per policy and reading that changes a verdict, all suites pooled, with Safety."""
    first, rows = comparison.readings[0], _pool_readings(comparison)
    return tabulate(
        "Readings of the paper, all suites pooled",
        [row for row in rows if row.reading == first or row.changes.changed],
        (
            text_column("Policy", lambda row: row.policy),
            text_column("Reading", lambda row: row.reading),
            Column("n", value=lambda row: row.safety.n),
            Column(SAFETY.heading, value=lambda row: rate_cell(row.safety)),
            *_CHANGED,
            _DIFFERENCES,
        ),
        notes=(f"Changes are from {first}. Readings that change no verdict of a policy are left out.",),
        remarks=comparison.warnings,
        name="readings",
    )
