"""Policies on the same initial state: how each episode ended, and two of them drawn on common scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from safevla_bench.explain.episode import SpecTrace, trace_specs
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE, STATES, VACUOUS, Scores
from safevla_bench.report.charts import PlotArea, Sparkline, common_area, draw_sparkline
from safevla_bench.report.episode_details import format_verdict
from safevla_bench.report.episode_table import EpisodeEntry
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.trajectory.header import Header

MOST_DRAWN = 24
"""Number of initial states that are drawn, those where the policies differ most."""

StateKey = tuple[str, str, int, int | None]
"""Suite, task, initial state, seed."""


@dataclass(frozen=True, slots=True)
class ClauseSide:
    """One policy's side of a specification; without a verdict it has no sparkline, but the reason."""

    verdict: str
    violated: bool
    spark: Sparkline | None


@dataclass(frozen=True, slots=True)
class ClausePair:
    """One specification on both sides."""

    spec_id: str
    sides: tuple[ClauseSide, ClauseSide]


@dataclass(frozen=True, slots=True)
class SharedState:
    """One initial state: the episodes that started from it, and two of them drawn, the furthest apart in severity."""

    label: str
    entries: tuple[EpisodeEntry, ...]
    drawn_pair: tuple[EpisodeEntry, EpisodeEntry] | None = None
    clause_pairs: tuple[ClausePair, ...] = ()


def find_shared_states(
    scores: Scores, batch: Batch | None, ruleset: Ruleset, entries: Sequence[EpisodeEntry], places: Sequence[int | None]
) -> list[SharedState]:
    """Return the initial states that several policies started from, the most different outcomes first.

    [] without records. Two episodes and their clauses are drawn for the first `MOST_DRAWN` states alone.

    `places`: index of each episode in the batch, [E]; None for an episode that is not in it.
    """
    if batch is None:
        return []
    states = _rank_states(scores, [None if place is None else batch.headers[place] for place in places])
    shared_states = []
    for rank, (state, members) in enumerate(states.items()):
        state_entries = tuple(entries[k] for k in members)
        if rank >= MOST_DRAWN:
            shared_states.append(SharedState(_format_state(state), state_entries))
            continue
        i, j = _extreme_pair(scores, members)
        clause_pairs = _pair_clauses(scores, batch, ruleset, places, i, j)
        shared_states.append(SharedState(_format_state(state), state_entries, (entries[i], entries[j]), clause_pairs))
    return shared_states


def paired_indices(scores: Scores, headers: Sequence[Header]) -> list[int]:
    """Return the indices in the scores of the episodes that `find_shared_states` draws, two for each drawn state.

    `headers` are those of the episodes of `scores`, in their order.
    """
    states = list(_rank_states(scores, headers).values())[:MOST_DRAWN]
    return [k for members in states for k in _extreme_pair(scores, members)]


def _rank_states(scores: Scores, headers: Sequence[Header | None]) -> Mapping[StateKey, list[int]]:
    states = {state: ks for state, ks in _group_by_state(headers).items() if len({scores.policy[k] for k in ks}) > 1}
    return {
        state: states[state] for state in sorted(states, key=lambda state: -_state_difference(scores, states[state]))
    }


def _group_by_state(headers: Sequence[Header | None]) -> Mapping[StateKey, list[int]]:
    states: dict[StateKey, list[int]] = {}
    for k, header in enumerate(headers):
        if header is not None and header.init_state_index is not None:
            states.setdefault((header.benchmark, header.task_id, header.init_state_index, header.seed), []).append(k)
    return states


def _format_state(state: StateKey) -> str:
    suite, task, index, seed = state
    return f"{suite} / {task}, state {index}" + ("" if seed is None else f", seed {seed}")


def _state_difference(scores: Scores, members: Sequence[int]) -> float:
    verdicts = len({scores.verdict(k) for k in members})
    successes = len(set(scores.success[members].tolist()))
    vsi = np.nan_to_num(scores.vsi[members])
    return 4.0 * verdicts + 2.0 * successes + float(vsi.max() - vsi.min())


def _extreme_pair(scores: Scores, members: Sequence[int]) -> tuple[int, int]:
    """Return the least severe episode and the most severe of another policy, in rising order; unknown counts as 0."""
    ranked = sorted(members, key=lambda k: (float(np.nan_to_num(scores.vsi[k])), bool(scores.success[k]), k))
    least = ranked[0]
    most = next(k for k in reversed(ranked) if scores.policy[k] != scores.policy[least])
    return (least, most) if least < most else (most, least)


def _pair_clauses(
    scores: Scores, batch: Batch, ruleset: Ruleset, places: Sequence[int | None], i: int, j: int
) -> tuple[ClausePair, ...]:
    """Return every scored specification that at least one of episodes `i` and `j` has a verdict on, violated first."""
    traces_by_side = [_traces_by_spec(scores, batch, ruleset, places[k], k) for k in (i, j)]
    clause_pairs = []
    for k in scores.scored_columns:
        spec_id = scores.specs[k].spec_id
        traces = [traces_of_side[spec_id] for traces_of_side in traces_by_side if spec_id in traces_of_side]
        if traces:
            area = common_area([spec_trace.chart for spec_trace in traces])
            first, second = (
                _clause_side(scores, int(k), episode, traces_of_side.get(spec_id), area)
                for episode, traces_of_side in zip((i, j), traces_by_side, strict=True)
            )
            clause_pairs.append(ClausePair(spec_id, (first, second)))
    return tuple(sorted(clause_pairs, key=lambda pair: not any(side.violated for side in pair.sides)))


def _traces_by_spec(
    scores: Scores, batch: Batch, ruleset: Ruleset, place: int | None, episode: int
) -> Mapping[str, SpecTrace]:
    assert place is not None
    return {
        spec_trace.spec.spec_id: spec_trace
        for spec_trace in trace_specs(scores, episode, select_episodes(batch, [place]), ruleset)
    }


def _clause_side(scores: Scores, k: int, episode: int, spec_trace: SpecTrace | None, area: PlotArea) -> ClauseSide:
    if spec_trace is None or scores.state[k, episode] != ACTIVE:
        state = int(scores.state[k, episode])
        why = "" if state == VACUOUS else f": {scores.reasons[int(scores.reason[k, episode])]}"
        return ClauseSide(STATES[state] + why, False, None)
    return ClauseSide(
        format_verdict(scores, k, episode), bool(scores.is_violated[k, episode]), draw_sparkline(spec_trace.chart, area)
    )
