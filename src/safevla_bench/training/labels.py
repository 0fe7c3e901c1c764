"""Safety labels of records for training: the result of each clause for each record, and its cost.

Labels match `Monitor`, except that undecidable records (a lost pose) are labeled unknown; `Monitor` skips them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals
from safevla_bench.judging.monitor import recordwise_part
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE, Scores, SpecColumn
from safevla_bench.judging.scoring import violation_depth
from safevla_bench.signals.signal import RecordFields
from safevla_bench.stl.formula import Formula, signal_names
from safevla_bench.stl.robustness import trajectory_robustness
from safevla_bench.trajectory.batch import Batch

HOLDS, VIOLATED, UNKNOWN = 1, 0, -1
"""Values of `safe` for a record: no clause is violated in it, one is, or unknown.

Unknown are the records of an episode in which no clause has a verdict, and those at which a body is lost, if a clause
may be violated but none is known to be.
"""


@dataclass(frozen=True, slots=True)
class RecordLabels:
    """Labels of N records by the C scored specifications, in library order."""

    margin: NDArray[np.float64]
    """Margin of each clause in each record, in its own unit, negative if violated, [N, C].

    NaN if there is none: the clause does not apply, its gate is closed, the formula spans several records, or a lost
    pose leaves open whether it is violated. If it is certainly violated, this is the smallest magnitude of the
    violation.
    """
    violating: NDArray[np.bool_]
    """Whether the record violates the clause, [N, C]; of a formula over several records, the first such record."""
    severity: NDArray[np.float64]
    """Depth of the worst violation of the record, 0 to 1, [N]; NaN if unknown, as in `UNKNOWN`."""

    def select_records(self, first: int, end: int) -> RecordLabels:
        """Return the labels of records first to end - 1."""
        return RecordLabels(self.margin[first:end], self.violating[first:end], self.severity[first:end])

    @property
    def cost(self) -> NDArray[np.float64]:
        """1 if the record violates any clause, else 0, [N]; NaN if unknown."""
        return np.where(np.isnan(self.severity), np.nan, self.violating.any(axis=1))

    @property
    def safe(self) -> NDArray[np.int8]:
        """`HOLDS` (1), `VIOLATED` (0) or `UNKNOWN` (-1) of each record, [N]."""
        decided = np.where(self.violating.any(axis=1), VIOLATED, HOLDS)
        return np.where(np.isnan(self.severity), UNKNOWN, decided).astype(np.int8)


def scored_specs(scores: Scores) -> tuple[SpecColumn, ...]:
    """Return the specifications of the safe tier, in library order."""
    return tuple(scores.specs[k] for k in scores.scored_columns)


def label_records(batch: Batch, scores: Scores, ruleset: Ruleset) -> RecordLabels:
    """Return the labels of every record of a batch; `scores` holds the verdicts on its episodes, in its order."""
    why = "labels and costs of records are known record by record, and ends of phases are not"
    ruleset.require_whole(why, "Leave it out for labels, and for gates on cost.")
    fields, columns = ruleset.read_fields(batch), [int(k) for k in scores.scored_columns]
    records, episode = int(batch.starts[-1]), batch.episode_of_record
    margin = np.full((records, len(columns)), np.nan)
    violating = np.zeros((records, len(columns)), dtype=np.bool_)
    severity = np.where((scores.state[columns] == ACTIVE).any(axis=0), 0.0, np.nan)[episode]
    is_open = np.zeros(records, dtype=np.bool_)
    for place, k in enumerate(columns):
        spec = ruleset.library[scores.specs[k].spec_id]
        active = scores.state[k] == ACTIVE
        part = recordwise_part(spec.formula)
        if part is None:
            newly = active & (scores.first[k] >= 0)
            violating[(batch.starts[:-1] + scores.first[k])[newly], place] = True
            depth = scores.depth[k][episode]
        else:
            views = fields.views(signal_names(part))
            of_arms = [_record_margins(view, part, np.flatnonzero(active)) for view in views]
            margins, undecided = map(np.array, zip(*of_arms, strict=True))
            least = np.fmin.reduce(margins)
            is_open |= undecided.any(axis=0)
            margin[:, place] = np.where(undecided.any(axis=0) & (least >= 0), np.nan, least)
            violating[:, place] = margin[:, place] < 0
            depth = violation_depth(spec, margin[:, place])
        severity = np.where(violating[:, place], np.fmax(severity, depth), severity)
    severity[is_open & ~violating.any(axis=1)] = np.nan
    return RecordLabels(margin, violating, severity)


def _record_margins(
    fields: RecordFields, part: Formula, active: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the margin of each record, and whether a lost pose leaves open if the record violates the clause."""
    margins = np.full(int(fields.batch.starts[-1]), np.nan)
    undecided = np.zeros(len(margins), dtype=np.bool_)
    if len(active):
        all_episodes = signals.build_trace(fields, signal_names(part))
        trace, rows = all_episodes.select_episodes(active), all_episodes.record_rows(active)
        values = trajectory_robustness(part, trace)
        if trace.unknown:
            undecided[rows] = (values >= 0) & (trajectory_robustness(part, trace, best=False) < 0)
        margins[rows] = np.where(np.isposinf(values) | undecided[rows], np.nan, values)
    return margins, undecided
