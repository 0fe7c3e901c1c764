"""What the applicability registry removes: violations in successes with it and without (paper Section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.metrics import Rate
from safevla_bench.report.tables.table import Cell, Column, Table, count, none, proportion, with_notes
from safevla_bench.scores import ACTIVE, INACTIVE, Scores

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same episodes judged with and without the registry, and the template of each."""

    on: Scores
    off: Scores
    template: NDArray[np.str_]

    def successes(self, template: str | None) -> Bools:
        """Successful episodes in n, of one template or of all; [E]."""
        mine = self.on.success & self.on.counted
        return mine if template is None else mine & (self.template == template)


def ablation(on: Scores, off: Scores, templates: Mapping[tuple[str, str], str]) -> Table:
    """Violations in successful episodes by template and specification, with the registry and without.

    Without, every specification is judged whose signals the record holds. Only pairs that some success violates without
    the registry have a row. Diagnostics have one where the registry removes something, and tilt in the body's frame
    stands beside tilt in the world's, which took its place; the rows "any scored" leave them out.

    Args:
        on: the verdicts with the registry.
        off: the verdicts of the same episodes without.
        templates: the template of each (benchmark, task).
    """
    assert on.episode_id == off.episode_id
    named = [templates[task] for task in zip(on.benchmark, on.task_id, strict=True)]
    pair = _Pair(on, off, np.array(named, dtype=np.str_))
    rows = []
    for template in [*dict.fromkeys(named), None]:
        rows += [_row(pair, template, k) for k in range(len(on.specs)) if _shown(pair, template, k)]
        rows.append(_any(pair, template))
    table = Table("What the applicability registry removes", _COLUMNS, tuple(rows), name="applicability")
    return with_notes(table, "In successful episodes only.", _unmeasured(off))


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
"""Clauses that a scored one took the place of when the registry came (paper Section 3.2)."""


def _shown(pair: _Pair, template: str | None, column: int) -> bool:
    """Scored, or affected by the registry, or the clause that the scored one replaced; and violated at all."""
    spec, broken = pair.on.specs[column], pair.off.violated[column] & pair.successes(template)
    removed = broken & (pair.on.state[column] == INACTIVE)
    told = spec.scored or removed.any() or spec.canonical_family in _REPLACED
    return bool(broken.any() and told and spec.tier != "alternate")


def _row(pair: _Pair, template: str | None, column: int) -> tuple[Cell, ...]:
    mine = pair.successes(template)
    spec = pair.on.specs[column]
    removed = pair.off.violated[column] & (pair.on.state[column] == INACTIVE) & mine
    why = "; ".join(dict.fromkeys(pair.on.reasons[k] for k in pair.on.reason[column, removed]))
    counted = _counts(pair.on.violated[column], pair.off.violated[column], mine)
    return (_named(template), Cell(spec.spec_id), Cell(spec.tier), *counted, count(int(removed.sum())), Cell(why))


def _any(pair: _Pair, template: str | None) -> tuple[Cell, ...]:
    """Unsafe successes: those that violate any scored specification."""
    mine = pair.successes(template)
    removed = int((pair.on.safe & ~pair.off.safe & mine).sum())
    counted = _counts(~pair.on.safe, ~pair.off.safe, mine)
    return (_named(template, total=True), Cell("any scored"), Cell("safe"), *counted, count(removed), Cell(""))


def _named(template: str | None, total: bool = False) -> Cell:
    return Cell("all" if template is None else template, emphasis="total" if total else "")


def _counts(on: Bools, off: Bools, mine: Bools) -> tuple[Cell, ...]:
    n = int(mine.sum())
    cells = [count(n)]
    for violated in (on, off):
        broken = int((violated & mine).sum())
        cells += [count(broken), proportion(Rate.of(broken, n)) if n else none("no success")]
    return tuple(cells)


def _unmeasured(off: Scores) -> str:
    """Scored specifications that reach no verdict anywhere even without tags."""
    silent = [off.specs[k].spec_id for k in off.scored if not (off.state[k] == ACTIVE).any()]
    return (
        f"Not judged even without tags, for want of signals or of a condition: {', '.join(silent)}." if silent else ""
    )
