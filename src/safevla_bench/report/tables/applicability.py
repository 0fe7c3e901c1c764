"""The effect of the applicability registry: violations in successes with it and without (paper Section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.metrics import Rate
from safevla_bench.report.tables.table import Cell, Column, Table, add_notes, count_cell, dash_cell, rate_cell
from safevla_bench.scores import ACTIVE, INACTIVE, Scores

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _JudgedPair:
    """The same episodes judged with and without the registry, and the template of each."""

    on: Scores
    off: Scores
    template: NDArray[np.str_]

    def successes(self, template: str | None) -> Bools:
        """Return the successful judged episodes, of one template or of all; [E]."""
        successes = self.on.success & self.on.is_counted & self.on.is_judged
        return successes if template is None else successes & (self.template == template)


def applicability_table(on: Scores, off: Scores, templates: Mapping[tuple[str, str], str]) -> Table:
    """Tabulate violations in successes by template and specification, with the registry and without.

    Without the registry, every specification whose signals the record holds is judged. A pair of template and
    specification has a row if a success violates it without the registry. Diagnostics have a row where the registry
    removes a violation. Tilt in the body's frame stands beside tilt in the world's frame, which replaced it. The rows
    "any scored" leave both out.

    Args:
        on: the verdicts with the registry.
        off: the verdicts of the same episodes without.
        templates: the template of each (benchmark, task).
    """
    assert on.episode_id == off.episode_id
    template_names = [templates[task] for task in zip(on.benchmark, on.task_id, strict=True)]
    pair = _JudgedPair(on, off, np.array(template_names, dtype=np.str_))
    rows = []
    for template in [*dict.fromkeys(template_names), None]:
        rows += [_spec_row(pair, template, k) for k in range(len(on.specs)) if _has_row(pair, template, k)]
        rows.append(_any_spec_row(pair, template))
    table = Table("What the applicability registry removes", _COLUMNS, tuple(rows), name="applicability")
    return add_notes(table, "In successful episodes only.", _unjudged_note(off))


_COLUMNS = (
    Column("Template", numeric=False),
    Column("Specification", numeric=False),
    Column("Tier", numeric=False),
    Column("Successes"),
    Column("With the registry", meaning="successes that violate it"),
    Column("With %"),
    Column("Without", meaning="the same as if there were no tags"),
    Column("Without %"),
    Column("Removed", meaning="violations where it does not apply"),
    Column("Why it does not apply", numeric=False),
)


_REPLACED = ("held_object_tilt_body",)
"""Clauses that a scored one replaced when the registry was introduced (paper Section 3.2)."""


def _has_row(pair: _JudgedPair, template: str | None, column: int) -> bool:
    """True if the clause is violated and is scored, affected by the registry, or replaced by a scored one."""
    spec, broken = pair.on.specs[column], pair.off.is_violated[column] & pair.successes(template)
    removed = broken & (pair.on.state[column] == INACTIVE)
    is_relevant = spec.is_scored or removed.any() or spec.canonical_family in _REPLACED
    return bool(broken.any() and is_relevant and spec.tier != "alternate")


def _spec_row(pair: _JudgedPair, template: str | None, column: int) -> tuple[Cell, ...]:
    successes = pair.successes(template)
    spec = pair.on.specs[column]
    removed = pair.off.is_violated[column] & (pair.on.state[column] == INACTIVE) & successes
    why = "; ".join(dict.fromkeys(pair.on.reasons[k] for k in pair.on.reason[column, removed]))
    counted = _count_cells(pair.on.is_violated[column], pair.off.is_violated[column], successes)
    return (
        _template_cell(template),
        Cell(spec.spec_id),
        Cell(spec.tier),
        *counted,
        count_cell(int(removed.sum())),
        Cell(why),
    )


def _any_spec_row(pair: _JudgedPair, template: str | None) -> tuple[Cell, ...]:
    """Return the row of unsafe successes: those that violate any scored specification."""
    successes = pair.successes(template)
    removed = int((pair.on.safe & pair.off.unsafe & successes).sum())
    counted = _count_cells(pair.on.unsafe, pair.off.unsafe, successes)
    return (
        _template_cell(template, total=True),
        Cell("any scored"),
        Cell("safe"),
        *counted,
        count_cell(removed),
        Cell(""),
    )


def _template_cell(template: str | None, total: bool = False) -> Cell:
    return Cell("all" if template is None else template, emphasis="total" if total else "")


def _count_cells(on: Bools, off: Bools, successes: Bools) -> tuple[Cell, ...]:
    n = int(successes.sum())
    cells = [count_cell(n)]
    for violated in (on, off):
        broken = int((violated & successes).sum())
        cells += [count_cell(broken), rate_cell(Rate.of(broken, n)) if n else dash_cell("no success")]
    return tuple(cells)


def _unjudged_note(off: Scores) -> str:
    """Name the scored specifications without a verdict in any episode even without tags."""
    silent = [off.specs[k].spec_id for k in off.scored_columns if not (off.state[k] == ACTIVE).any()]
    return (
        f"Not judged even without tags, for want of signals or of a condition: {', '.join(silent)}." if silent else ""
    )
