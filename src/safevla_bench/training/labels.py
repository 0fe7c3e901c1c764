"""Safety labels of records for training: the result of each clause for each record, and its cost.

Labels match `Monitor`, except that undecidable records (a lost pose) are labeled unknown; `Monitor` skips them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals
from safevla_bench.judging.monitor import recordwise_part
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE, CUT_SHORT, INACTIVE, UNCOUNTED, Scores, SpecColumn
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
    worst: NDArray[np.float64]
    """Smallest margin, divided by the clause's severe magnitude, of the clauses that are judged in the record, clipped
    to −1 to 1, [N]. A binary clause counts 1 or −1, a formula over several records minus its depth where it is first
    violated. NaN if no clause is judged in the record, or a lost pose leaves the smallest open."""
    clause_cost: NDArray[np.float64]
    """1 if the record violates the clause, else 0, [N, C]; NaN if unknown, if the clause is inactive, and in an episode
    that was cut off."""

    def select_records(self, first: int, end: int) -> RecordLabels:
        """Return the labels of records first to end - 1."""
        return RecordLabels(**{field.name: getattr(self, field.name)[first:end] for field in fields(self)})

    def weigh_records(self, temperature: float) -> NDArray[np.float64]:
        """Return exp(`worst` / temperature), [N]; NaN if unknown."""
        return np.exp(self.worst / temperature)

    def costs_to_go(self, discount: float) -> NDArray[np.float64]:
        """Return, for records of one episode, the sum of `clause_cost` from each record on, [N, C]; the cost k records
        later is multiplied by discount**k. NaN if it, or a later one, is unknown.
        """
        costs = self.clause_cost.copy()
        for k in range(len(costs) - 2, -1, -1):
            costs[k] += discount * costs[k + 1]
        return costs

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
    record_fields, columns = ruleset.read_fields(batch), [int(k) for k in scores.scored_columns]
    records, episode = int(batch.starts[-1]), batch.episode_of_record
    margin = np.full((records, len(columns)), np.nan)
    violating = np.zeros((records, len(columns)), dtype=np.bool_)
    severity = np.where((scores.state[columns] == ACTIVE).any(axis=0), 0.0, np.nan)[episode]
    is_open = np.zeros(records, dtype=np.bool_)
    worst = np.full(records, np.inf)
    is_cut = np.array([outcome in (*UNCOUNTED, *CUT_SHORT) for outcome in scores.outcome], dtype=np.bool_)
    clause_cost = np.where((scores.state[columns] == INACTIVE) | is_cut, np.nan, 0.0)[:, episode].T
    for place, k in enumerate(columns):
        spec = ruleset.library[scores.specs[k].spec_id]
        active = scores.state[k] == ACTIVE
        part = recordwise_part(spec.formula)
        if part is None:
            newly = active & (scores.first[k] >= 0)
            violating[(batch.starts[:-1] + scores.first[k])[newly], place] = True
            depth = scores.depth[k][episode]
            relative = np.where(violating[:, place], -depth, np.nan)
        else:
            views = record_fields.views(signal_names(part))
            of_arms = [_record_margins(view, part, np.flatnonzero(active)) for view in views]
            margins, undecided = map(np.array, zip(*of_arms, strict=True))
            least, some_open = np.fmin.reduce(margins), undecided.any(axis=0)
            is_open |= some_open
            margin[:, place] = np.where(some_open & (least >= 0), np.nan, least)
            clause_cost[some_open & ~(least < 0), place] = np.nan
            relative = np.sign(margin[:, place]) if spec.binary else margin[:, place] / (spec.severe or np.nan)
            violating[:, place] = margin[:, place] < 0
            depth = violation_depth(spec, margin[:, place])
        severity = np.where(violating[:, place], np.fmax(severity, depth), severity)
        worst = np.fmin(worst, relative)
    clause_cost += violating
    worst = np.where(np.isposinf(worst) | (is_open & (worst > -1)), np.nan, np.clip(worst, -1, 1))
    severity[is_open & ~violating.any(axis=1)] = np.nan
    return RecordLabels(margin, violating, severity, worst, clause_cost)


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
