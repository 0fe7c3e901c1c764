"""An explained episode as text for a terminal: no colour, nothing that moves, no line wider than asked."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from rich.cells import cell_len

from safevla_bench import provenance_marks
from safevla_bench.explain.contributors import Involved
from safevla_bench.explain.episode import Clause, Explanation, Moment
from safevla_bench.explain.trace import Exhibit
from safevla_bench.report import render
from safevla_bench.report.braille_plot import plot
from safevla_bench.report.episode_list import EpisodeRow
from safevla_bench.report.sections import ending
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.text.numbers import NONE, apart, fixed, short, significant, unit_text, with_unit
from safevla_bench.text.sanitize import inert

_LABEL = 14
"""Columns for the names of facts."""


def text(told: Explanation, *, every: bool = False, width: int | None = None) -> str:
    """The explanation: broken clauses with their plots, or else the one that came nearest; then the rest.

    Args:
        told: what to print.
        every: plot the clauses that hold, too.
        width: columns of the terminal, asked of it by default.
    """
    bound = shutil.get_terminal_size((100, 24)).columns if width is None else width
    plotted = told.clauses if every else told.violated or told.kept[:1]
    parts = [_heading(told, bound), *(_told(clause, bound) for clause in plotted)]
    rest = () if every else told.kept if told.violated else told.kept[1:]
    parts += [render.text(_kept(rest), bound).splitlines()] if rest else []
    unjudged = _unjudged(told)
    parts += [render.text(unjudged, bound).splitlines()] if unjudged.rows else []
    broken = [spec_id for spec_id, one in told.score.diagnostics.items() if one.violated]
    parts += [_wrapped(f"Also broken, outside every score: {', '.join(broken)}", bound)] if broken else []
    return "\n\n".join("\n".join(part).rstrip() for part in parts) + "\n"


def _heading(told: Explanation, width: int) -> list[str]:
    row, duration_s = told.score, (told.records - 1) * told.dt_s
    judged = f"{len(told.violated)} of {len(told.clauses)} judged specifications broken"
    facts = [
        ending(row.success, row.safe, row.outcome),
        judged if told.clauses else "no specification reached a verdict",
        f"VSI {fixed(row.vsi, 3) if row.vsi == row.vsi else NONE}",
        f"{told.records} records, {fixed(duration_s, 2)} s",
    ]
    lines = [
        f"{told.number}. {row.episode_id}",
        f"{row.policy or UNNAMED} · {row.benchmark} {row.task_id}",
        *([told.instruction] if told.instruction else []),
        " · ".join(facts),
        *provenance_marks.sentence({(row.policy, row.benchmark): row.standin_assets}),
    ]
    return [part for line in lines for part in _wrapped(line, width)]


def _told(clause: Clause, width: int) -> list[str]:
    one = clause.exhibit
    unit, scale = unit_text(one.line.unit, one.line.limit)
    limit = f"{'below' if one.line.upper else 'above'} {with_unit(short(one.line.limit * scale), unit)}"
    depth = f"; depth {NONE if one.depth != one.depth else fixed(one.depth, 3)}" if one.violated else ""
    facts = [
        *([("first broken", _at(clause, clause.first))] if clause.first else []),
        ("worst" if one.violated else "nearest", _at(clause, clause.worst)),
        ("limit", f"{limit}; margin {_margin(one)}{depth}"),
    ]
    told = [*_wrapped(one.formula, width - 2), *_wrapped(f"{one.line.signal}: {one.meaning}", width - 2)]
    told += [line for name, fact in facts for line in _labelled(name, fact, width - 2)]
    head = _wrapped(f"{'BROKEN' if one.violated else 'KEPT'}  {one.spec.spec_id}", width)
    return [*head, *(f"  {line}".rstrip() for line in [*told, "", *plot(one, width - 2)])]


def _labelled(name: str, fact: str, width: int) -> list[str]:
    lines = _wrapped(fact, width - _LABEL)
    return [f"{label:<{_LABEL}}{line}" for label, line in zip([name, *[""] * len(lines)], lines, strict=False)]


def _at(clause: Clause, moment: Moment) -> str:
    behind = f"; {_bodies(moment.involved)}" if moment.involved else ""
    return f"{fixed(moment.time_s, 2)} s (step {moment.step}): {_value(clause, moment)}{behind}"


def _value(clause: Clause, moment: Moment) -> str:
    line = clause.exhibit.line
    unit, scale = unit_text(line.unit, line.limit)
    return NONE if moment.value is None else with_unit(apart(moment.value * scale, line.limit * scale), unit)


def _bodies(behind: Involved) -> str:
    amount = f" ({behind.amount})" if behind.amount else ""
    return f"{behind.what} {' and '.join(behind.names)}{amount}"


def _margin(one: Exhibit) -> str:
    unit, scale = unit_text(one.spec.unit, one.spec.threshold)
    return with_unit(significant(one.rho * scale), unit)


def _wrapped(line: str, width: int) -> list[str]:
    """Broken at spaces; within a word only where it is wider than the line."""
    found: list[str] = []
    for word in inert(line).split(" "):
        together = f"{found[-1]} {word}" if found else word
        if found and cell_len(together) <= width:
            found[-1] = together
        else:
            found += render.wrap(word, width)
    return found


def _kept(clauses: Sequence[Clause]) -> Table:
    columns = (
        Column("Specification", numeric=False),
        Column("Nearest"),
        Column("Limit"),
        Column("Margin"),
        Column("At"),
    )
    return Table("Kept", columns, tuple(_kept_row(clause) for clause in clauses))


def _kept_row(clause: Clause) -> tuple[Cell, ...]:
    one = clause.exhibit
    unit, scale = unit_text(one.line.unit, one.line.limit)
    return (
        Cell(one.spec.spec_id),
        Cell(_value(clause, clause.worst), clause.worst.value),
        Cell(with_unit(short(one.line.limit * scale), unit), one.line.limit),
        Cell(_margin(one), one.rho),
        Cell(f"{fixed(clause.worst.time_s, 2)} s", clause.worst.time_s),
    )


def _unjudged(told: Explanation) -> Table:
    """Scored specifications without a verdict, and why."""
    found = [*(("vacuous", *one) for one in told.vacuous.items())]
    found += [("inactive", *one) for one in told.score.inactive_specs.items()]
    columns = tuple(Column(name, numeric=False) for name in ("Specification", "State", "Why"))
    return Table("Not judged", columns, tuple((Cell(spec_id), Cell(state), Cell(why)) for state, spec_id, why in found))


def lost(row: EpisodeRow) -> str:
    """What is known of an episode that left no record."""
    lines = [
        f"{row.number}. {row.episode_id}",
        f"{row.policy or UNNAMED} · {row.benchmark} {row.task_id}",
        f"{row.outcome}: it left no record, and is in no rate",
        *(row.reason or "no reason recorded").strip().splitlines(),
    ]
    return "".join(f"{inert(line)}\n" for line in lines)
