"""Safety labels of records for training: the margin and the cost of each clause in each record.

Labels equal the results of `Monitor`, except for records that a lost pose leaves undecided: these are labeled unknown,
while `Monitor` skips them.
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
"""Values of `safe` for a record: no clause is violated, some clause is violated, or unknown.

`safe` is unknown in all records of an episode in which no clause has a verdict. It is also unknown in a record if a
lost pose leaves open whether a clause is violated, and no clause is certainly violated."""


@dataclass(frozen=True, slots=True)
class RecordLabels:
    """Labels of `N` records for `C` clauses, which are the scored specifications in library order."""

    margin: NDArray[np.float64]
    """Margin of each clause in each record, in the clause's unit, negative if violated, [N, C].

    NaN if there is no margin: the clause does not apply, its gate is closed, its formula spans several records, or a
    lost pose leaves open whether it is violated. If a pose is lost but the clause is certainly violated, the margin
    belongs to the smallest possible violation."""
    violating: NDArray[np.bool_]
    """Whether the record violates the clause, [N, C]. For a formula over several records, this is true only in the
    first violating record."""
    severity: NDArray[np.float64]
    """Depth of the record's worst violation, 0 to 1, [N]; NaN if `safe` is `UNKNOWN` (−1)."""
    worst: NDArray[np.float64]
    """The record's smallest relative margin, clipped to −1 to 1, [N]. A relative margin is a clause's margin divided by
    the severe magnitude, or 1 or −1 for a binary clause. A formula over several records has only −depth, in the first
    violating record. NaN if no clause is judged, or if a lost pose leaves open which margin is the smallest."""
    clause_cost: NDArray[np.float64]
    """1 if the record violates the clause, else 0, [N, C]. NaN if unknown, if the clause does not apply to the episode,
    and in an episode that was cut off."""

    def select_records(self, first: int, end: int) -> RecordLabels:
        """Return the labels of the records from `first` to `end` - 1."""
        # Every field has one row per record.
        return RecordLabels(**{field.name: getattr(self, field.name)[first:end] for field in fields(self)})

    def weigh_records(self, temperature: float) -> NDArray[np.float64]:
        """Return exp(`worst` / temperature), [N]; NaN if unknown."""
        # `worst` is the record's smallest margin, from -1 to 1.
        return np.exp(self.worst / temperature)  # above 1 for a positive margin, below 1 for a violation

    def costs_to_go(self, discount: float) -> NDArray[np.float64]:
        """Return the discounted sum of `clause_cost` over each record and all later records of the episode, [N, C].
        The cost `k` records later is multiplied by `discount**k`. NaN if the cost in this or a later record is unknown.
        """
        # All labels must belong to one episode; `select_records` selects its records.
        costs = self.clause_cost.copy()  # the last record has only its own cost
        for k in reversed(range(len(costs) - 1)):  # each sum contains the sum of the next record
            costs[k] += discount * costs[k + 1]
        return costs

    @property
    def cost(self) -> NDArray[np.float64]:
        """1 if the record violates any clause, else 0, [N]; NaN if unknown."""
        # `violating` [N, C] says which clauses each record violates.
        # `severity` [N] is NaN exactly where it is unknown whether the record is safe.
        return np.where(np.isnan(self.severity), np.nan, self.violating.any(axis=1))

    @property
    def safe(self) -> NDArray[np.int8]:
        """`HOLDS` (1), `VIOLATED` (0) or `UNKNOWN` (-1) of each record, [N]."""
        # `violating` [N, C] says which clauses each record violates.
        decided = np.where(self.violating.any(axis=1), VIOLATED, HOLDS)
        # `severity` is NaN exactly where it is unknown whether the record is safe.
        return np.where(np.isnan(self.severity), UNKNOWN, decided).astype(np.int8)


def scored_specs(scores: Scores) -> tuple[SpecColumn, ...]:
    """Return the specifications that count in scores (the safe tier), in library order."""
    return tuple(scores.specs[column] for column in scores.scored_columns)


def label_records(batch: Batch, scores: Scores, ruleset: Ruleset) -> RecordLabels:
    """Return the labels of all records of a batch. `scores` are the verdicts on its episodes, in the batch's order."""
    # Raises an error for rules that judge the phases of a task one by one.
    reason = "labels and costs must be known at each record, but the end of a phase is known only after the episode"
    ruleset.require_whole(reason, "Leave this option out for labels, and for gates on cost.")
    record_fields = ruleset.read_fields(batch)
    columns = [int(column) for column in scores.scored_columns]  # rows of the clauses in arrays [specifications, E]
    record_count, episode_of_record = int(batch.starts[-1]), batch.episode_of_record
    margin = np.full((record_count, len(columns)), np.nan)
    violating = np.zeros((record_count, len(columns)), dtype=np.bool_)
    # Whether any scored specification is judged in an episode, [E].
    is_judged = (scores.state[columns] == ACTIVE).any(axis=0)
    # The values of an episode are repeated for each of its records: [E] becomes [N].
    severity = np.where(is_judged, 0.0, np.nan)[episode_of_record]
    has_open_clause = np.zeros(record_count, dtype=np.bool_)  # True if a lost pose leaves a clause undecided
    worst = np.full(record_count, np.inf)  # infinite until a clause is judged in the record
    is_cut = np.array([outcome in (*UNCOUNTED, *CUT_SHORT) for outcome in scores.outcome], dtype=np.bool_)
    # [clauses, E] becomes [N, clauses]: NaN where the clause does not apply or the episode was cut off.
    clause_cost = np.where((scores.state[columns] == INACTIVE) | is_cut, np.nan, 0.0)[:, episode_of_record].T
    for clause, column in enumerate(columns):
        spec = ruleset.library[scores.specs[column].spec_id]
        is_active = scores.state[column] == ACTIVE
        record_formula = recordwise_part(spec.formula)  # formula of one record; None if the clause spans several
        # For a formula over several records, only the first violating record is known.
        if record_formula is None:
            is_violated = is_active & (scores.first[column] >= 0)  # `first` is -1 without a violation
            first_violating = batch.starts[:-1] + scores.first[column]
            violating[first_violating[is_violated], clause] = True
            depth = scores.depth[column][episode_of_record]
            relative_margin = np.where(violating[:, clause], -depth, np.nan)
        else:
            # A clause on arms is judged for each arm; the least margin counts.
            fields_by_arm = record_fields.views(signal_names(record_formula))
            by_arm = [_record_margins(arm, record_formula, np.flatnonzero(is_active)) for arm in fields_by_arm]
            margins, undecided = map(np.array, zip(*by_arm, strict=True))  # two arrays, [arms, N]
            least_margin, is_open = np.fmin.reduce(margins), undecided.any(axis=0)
            has_open_clause |= is_open
            # A lost pose of one arm does not matter if another arm certainly violates the clause.
            margin[:, clause] = np.where(is_open & (least_margin >= 0), np.nan, least_margin)
            clause_cost[is_open & ~(least_margin < 0), clause] = np.nan  # `~(… < 0)` is also true for NaN
            # Without a severe magnitude, the relative margin is NaN.
            relative_margin = np.sign(margin[:, clause]) if spec.binary else margin[:, clause] / (spec.severe or np.nan)
            violating[:, clause] = margin[:, clause] < 0
            depth = violation_depth(spec, margin[:, clause])
        # `fmax` and `fmin` ignore NaN.
        severity = np.where(violating[:, clause], np.fmax(severity, depth), severity)
        worst = np.fmin(worst, relative_margin)
    clause_cost += violating
    # If a lost pose leaves a clause undecided, the margin of this clause may be below `worst`, unless `worst` is -1.
    is_unknown = np.isposinf(worst) | (has_open_clause & (worst > -1))
    worst = np.where(is_unknown, np.nan, np.clip(worst, -1, 1))
    # If a lost pose leaves a clause undecided, and no clause is certainly violated, the severity is unknown.
    severity[has_open_clause & ~violating.any(axis=1)] = np.nan
    return RecordLabels(margin, violating, severity, worst, clause_cost)


def _record_margins(
    record_fields: RecordFields, record_formula: Formula, active_episodes: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    # Returns two arrays [N]: each record's margin (NaN = none), and whether a lost pose leaves the clause undecided.
    margins = np.full(int(record_fields.batch.starts[-1]), np.nan)
    undecided = np.zeros(len(margins), dtype=np.bool_)
    if len(active_episodes):
        all_episodes = signals.build_trace(record_fields, signal_names(record_formula))
        # `rows` are the indices of the active episodes' records in the batch.
        trace, rows = all_episodes.select_episodes(active_episodes), all_episodes.record_rows(active_episodes)
        best_margins = trajectory_robustness(record_formula, trace)  # one value per record
        # A lost pose may have any value. A clause is undecided if the worst value violates it, but the best does not.
        if trace.unknown:
            worst_margins = trajectory_robustness(record_formula, trace, best=False)
            undecided[rows] = (best_margins >= 0) & (worst_margins < 0)
        # An infinite margin means that the formula says nothing about the record, because a gate is closed.
        margins[rows] = np.where(np.isposinf(best_margins) | undecided[rows], np.nan, best_margins)
    return margins, undecided
