"""Safety labels of records for training: what each clause says of each record, and what that costs.

A record's label is what `Monitor` says when that record arrives, so that a data set and the environments of
`safevla_bench.gym` agree. Here whole batches are labelled at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals, stl
from safevla_bench.monitor import recordwise_part
from safevla_bench.ruleset import Ruleset
from safevla_bench.scores import ACTIVE, Scores, SpecColumn
from safevla_bench.specs import Spec
from safevla_bench.trajectory import Batch
from safevla_bench.verdicts import violation_depth

HOLDS, VIOLATED, UNKNOWN = 1, 0, -1
"""What `safe` says of a record: no clause is violated in it, one is, or no clause has a verdict in its episode."""


@dataclass(frozen=True, slots=True)
class RecordLabels:
    """Labels of N records by the C scored specifications, in library order."""

    margin: NDArray[np.float64]
    """Margin of each clause in each record, in its own unit, negative where violated, [N, C].

    NaN where there is none: the clause does not apply, its gate is closed, or the formula spans several records.
    """
    violating: NDArray[np.bool_]
    """Whether the record violates the clause, [N, C]; of a formula over several records, where it first does."""
    severity: NDArray[np.float64]
    """Depth of the worst violation of the record, 0 to 1, [N]; NaN where no clause has a verdict in the episode."""

    def select_records(self, first: int, end: int) -> RecordLabels:
        """Return the labels of records first to end - 1."""
        return RecordLabels(self.margin[first:end], self.violating[first:end], self.severity[first:end])

    @property
    def cost(self) -> NDArray[np.float64]:
        """1 where the record violates any clause, else 0, [N]; NaN where no clause has a verdict in the episode."""
        return np.where(np.isnan(self.severity), np.nan, self.violating.any(axis=1))

    @property
    def safe(self) -> NDArray[np.int8]:
        """`HOLDS`, `VIOLATED` or `UNKNOWN`, [N]."""
        known = np.where(self.violating.any(axis=1), VIOLATED, HOLDS)
        return np.where(np.isnan(self.severity), UNKNOWN, known).astype(np.int8)


def scored_specs(scores: Scores) -> tuple[SpecColumn, ...]:
    """Return the specifications of the safe tier, in library order."""
    return tuple(scores.specs[k] for k in scores.scored_columns)


def label_records(batch: Batch, scores: Scores, ruleset: Ruleset) -> RecordLabels:
    """Return the labels of every record of a batch; `scores` holds the verdicts on its episodes, in its order."""
    fields, columns = signals.RecordFields(batch), [int(k) for k in scores.scored_columns]
    records, episode = int(batch.starts[-1]), batch.episode_of_record
    margin = np.full((records, len(columns)), np.nan)
    violating = np.zeros((records, len(columns)), dtype=np.bool_)
    severity = np.where((scores.state[columns] == ACTIVE).any(axis=0), 0.0, np.nan)[episode]
    for place, k in enumerate(columns):
        spec = ruleset.library[scores.specs[k].spec_id]
        active = scores.state[k] == ACTIVE
        part = recordwise_part(spec.formula)
        if part is None:
            newly = active & (scores.first[k] >= 0)
            violating[(batch.starts[:-1] + scores.first[k])[newly], place] = True
            depth = scores.depth[k][episode]
        else:
            margin[:, place] = _record_margins(fields, part, np.flatnonzero(active))
            violating[:, place] = margin[:, place] < 0
            depth = violation_depth(spec, margin[:, place])
        severity = np.where(violating[:, place], np.fmax(severity, depth), severity)
    return RecordLabels(margin, violating, severity)


def _record_margins(fields: signals.RecordFields, part: stl.Formula, active: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the margin of each record, [N]; NaN in other episodes and where a gate is closed."""
    margins = np.full(int(fields.batch.starts[-1]), np.nan)
    if len(active):
        derived = signals.derive_signals(fields, stl.signal_names(part))
        trace = stl.Trace(derived, fields.batch.starts, fields.batch.dt_s)
        values = stl.trajectory_robustness(part, trace.select_episodes(active))
        margins[trace.record_rows(active)] = np.where(np.isposinf(values), np.nan, values)
    return margins


def describe_clauses(specs: Sequence[SpecColumn], library: Sequence[Spec]) -> list[dict[str, object]]:
    """Return each clause as a data set's file holds it: id, formula, limit, unit, and what it is severe at."""
    formulas = {spec.spec_id: stl.format_formula(spec.formula) for spec in library}
    return [
        {
            "id": spec.spec_id,
            "formula": formulas[spec.spec_id],
            "threshold": spec.threshold,
            "severe": spec.severe,
            "unit": spec.unit,
            "axis": spec.axis,
        }
        for spec in specs
    ]
