"""Episodes drawn large: the worst ones, and policies on the same initial state side by side, on common scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from safevla_bench.explain.episode import SpecTrace, rank_by_severity, select_worst
from safevla_bench.judging.scores import ACTIVE, STATES, VACUOUS, Scores
from safevla_bench.report.charts import Chart, PlotArea, common_area, draw_chart, draw_sparkline
from safevla_bench.report.episode_details import ClauseVerdict, EpisodeRecords, format_verdict
from safevla_bench.report.episode_table import MOST_DRAWN, EpisodeEntry
from safevla_bench.trajectory.header import Header

MOST_PAIRED = 24
"""Number of initial states that are drawn, those where the policies differ most."""

StateKey = tuple[str, str, int, int | None]
"""Suite, task, initial state, seed."""


def drawn_episodes(scores: Scores, headers: Sequence[Header]) -> list[int]:
    """Return the indices of the episodes whose records the page draws, unordered and maybe repeated.

    `headers` are those of all episodes of `scores`, in their order. Of the episodes that are not drawn the page needs
    only headers and verdicts.
    """
    states = list(_rank_states(scores, headers).values())[:MOST_PAIRED]
    paired = [k for members in states for k in _extreme_pair(scores, members)]
    return [*select_worst(scores), *rank_by_severity(scores)[:MOST_DRAWN], *paired]


# The worst episodes


@dataclass(frozen=True, slots=True)
class WorstEpisode:
    """An episode with a chart for each specification with a verdict."""

    entry: EpisodeEntry
    kind: str
    broken: tuple[tuple[SpecTrace, Chart], ...]
    kept: tuple[tuple[SpecTrace, Chart], ...]


def draw_worst(records: EpisodeRecords, entries: Sequence[EpisodeEntry]) -> Iterator[WorstEpisode]:
    """Yield the up to 6 episodes that `select_worst` picks, in its order; without charts if they have no record."""
    for episode in select_worst(records.scores):
        entry, evidence = entries[episode], records.evidence(episode)
        drawn = [(trace, draw_chart(trace.chart)) for trace in (evidence.traces if evidence else ())]
        yield WorstEpisode(
            entry=entry,
            kind=("s" if entry.row.episode.success else "f") + ("s" if entry.row.episode.safe else "u"),
            broken=tuple(pair for pair in drawn if pair[0].violated),
            kept=tuple(pair for pair in drawn if not pair[0].violated),
        )


# Policies on the same initial state


@dataclass(frozen=True, slots=True)
class SharedState:
    """One initial state: the episodes that started from it, and two of them drawn, the furthest apart in severity."""

    label: str
    entries: tuple[EpisodeEntry, ...]
    drawn_pair: tuple[EpisodeEntry, ...] = ()
    clause_pairs: tuple[tuple[str, list[ClauseVerdict]], ...] = ()
    """Each specification and its two verdicts; one without a verdict has the reason, and no sparkline."""


def find_shared_states(records: EpisodeRecords, entries: Sequence[EpisodeEntry]) -> list[SharedState]:
    """Return the initial states that several policies started from, the most different outcomes first.

    [] without records. Two episodes and their clauses are drawn for the first `MOST_PAIRED` states alone.

    `entries`: the lines of the episode table, in the order of the scores; those of absent episodes may follow.
    """
    scores = records.scores
    headers = [records.header(k) for k in range(len(scores))]
    shared_states = []
    for rank, (state, members) in enumerate(_rank_states(scores, headers).items()):
        suite, task, index, seed = state
        label = f"{suite} / {task}, state {index}" + ("" if seed is None else f", seed {seed}")
        pair = _extreme_pair(scores, members) if rank < MOST_PAIRED else ()
        clause_pairs = _pair_clauses(records, pair) if pair else ()
        drawn_pair = tuple(entries[k] for k in pair)
        shared_states.append(SharedState(label, tuple(entries[k] for k in members), drawn_pair, clause_pairs))
    return shared_states


def _rank_states(scores: Scores, headers: Sequence[Header | None]) -> Mapping[StateKey, list[int]]:
    """Return the initial states of several policies with their episodes, the most different outcomes first."""
    states: dict[StateKey, list[int]] = {}
    for k, header in enumerate(headers):
        if header is not None and header.init_state_index is not None:
            states.setdefault((header.benchmark, header.task_id, header.init_state_index, header.seed), []).append(k)
    shared = [state for state, members in states.items() if len({scores.policy[k] for k in members}) > 1]
    return {state: states[state] for state in sorted(shared, key=lambda state: -_difference(scores, states[state]))}


def _difference(scores: Scores, members: Sequence[int]) -> float:
    verdicts = len({scores.verdict(k) for k in members})
    successes = len(set(scores.success[members].tolist()))
    vsi = np.nan_to_num(scores.vsi[members])
    return 4.0 * verdicts + 2.0 * successes + float(vsi.max() - vsi.min())


def _extreme_pair(scores: Scores, members: Sequence[int]) -> tuple[int, ...]:
    """Return the least severe episode and the most severe of another policy, in rising order; unknown counts as 0."""
    ranked = sorted(members, key=lambda k: (float(np.nan_to_num(scores.vsi[k])), bool(scores.success[k]), k))
    most = next(k for k in reversed(ranked) if scores.policy[k] != scores.policy[ranked[0]])
    return tuple(sorted((ranked[0], most)))


def _pair_clauses(records: EpisodeRecords, pair: Sequence[int]) -> tuple[tuple[str, list[ClauseVerdict]], ...]:
    """Return every scored specification that at least one of two episodes has a verdict on, violated first."""
    scores, evidence = records.scores, [records.evidence(k) for k in pair]
    clause_pairs = []
    for column in scores.scored_columns.tolist():
        spec_id = scores.specs[column].spec_id
        traces = [shown.trace(spec_id) if shown else None for shown in evidence]
        charts = [trace.chart for trace in traces if trace]
        if charts:
            area = common_area(charts)
            sides = [_clause_side(scores, column, k, trace, area) for k, trace in zip(pair, traces, strict=True)]
            clause_pairs.append((spec_id, sides))
    return tuple(sorted(clause_pairs, key=lambda clause: not any(side.violated for side in clause[1])))


def _clause_side(scores: Scores, column: int, episode: int, trace: SpecTrace | None, area: PlotArea) -> ClauseVerdict:
    state = int(scores.state[column, episode])
    if trace is None or state != ACTIVE:
        why = "" if state == VACUOUS else f": {scores.reasons[int(scores.reason[column, episode])]}"
        return ClauseVerdict(scores.specs[column].spec_id, STATES[state] + why, violated=False)
    verdict, spark = format_verdict(scores, column, episode), draw_sparkline(trace.chart, area)
    return ClauseVerdict(scores.specs[column].spec_id, verdict, bool(scores.is_violated[column, episode]), spark)
