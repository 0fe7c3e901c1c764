"""Policies beside each other on the same initial state: how each ended there, and two of them on common scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from safevla_bench.explain.trace import Exhibit, exhibits
from safevla_bench.report.charts import Spark, common_frame, spark
from safevla_bench.report.episode_table import Entry, verdict
from safevla_bench.scores import ACTIVE, STATES, VACUOUS, Scores
from safevla_bench.specs import Library
from safevla_bench.trajectory import Batch, Header, select

MOST_DRAWN = 24
"""So many initial states are drawn, those where the policies differ most."""

State = tuple[str, str, int, int | None]
"""Suite, task, initial state, seed."""


@dataclass(frozen=True, slots=True)
class Half:
    """One policy's side of a specification; no spark where it reached no verdict, and why."""

    verdict: str
    violated: bool
    spark: Spark | None


@dataclass(frozen=True, slots=True)
class Match:
    """One specification on both sides."""

    spec_id: str
    halves: tuple[Half, Half]


@dataclass(frozen=True, slots=True)
class Meeting:
    """One initial state: the episodes that started from it, and two of them drawn, the furthest apart in severity."""

    place: str
    entries: tuple[Entry, ...]
    two: tuple[Entry, Entry] | None = None
    matches: tuple[Match, ...] = ()


def meetings(
    scores: Scores, batch: Batch | None, library: Library, entries: Sequence[Entry], at: Sequence[int | None]
) -> list[Meeting]:
    """The initial states that several policies started from, those where they differ most first.

    Args:
        scores: the verdicts.
        batch: their records; without them nothing says where an episode started.
        library: the specifications.
        entries: the register's lines, in the order of the scores.
        at: where each episode is in the batch, [E].
    """
    if batch is None:
        return []
    states = _ordered(scores, [None if place is None else batch.headers[place] for place in at])
    found = []
    for rank, (state, members) in enumerate(states.items()):
        shown = tuple(entries[k] for k in members)
        if rank >= MOST_DRAWN:
            found.append(Meeting(_place(state), shown))
            continue
        i, j = _furthest(scores, members)
        found.append(
            Meeting(_place(state), shown, (entries[i], entries[j]), _matches(scores, batch, library, at, i, j))
        )
    return found


def paired(scores: Scores, headers: Sequence[Header]) -> list[int]:
    """The episodes that `meetings` draws; `headers` are those of the episodes of `scores`."""
    states = list(_ordered(scores, headers).values())[:MOST_DRAWN]
    return [k for members in states for k in _furthest(scores, members)]


def _ordered(scores: Scores, headers: Sequence[Header | None]) -> Mapping[State, list[int]]:
    """The initial states that several policies started from, with their episodes; the most different first."""
    states = {state: ks for state, ks in _states(headers).items() if len({scores.policy[k] for k in ks}) > 1}
    return {state: states[state] for state in sorted(states, key=lambda state: -_apart(scores, states[state]))}


def _states(headers: Sequence[Header | None]) -> Mapping[State, list[int]]:
    found: dict[State, list[int]] = {}
    for k, header in enumerate(headers):
        if header is not None and header.init_state_index is not None:
            found.setdefault((header.benchmark, header.task_id, header.init_state_index, header.seed), []).append(k)
    return found


def _place(state: State) -> str:
    suite, task, index, seed = state
    return f"{suite} / {task}, state {index}" + ("" if seed is None else f", seed {seed}")


def _apart(scores: Scores, members: Sequence[int]) -> float:
    """How much episodes of one state differ: unlike verdicts before unlike successes before unlike severities."""
    verdicts, successes = (len(set(one[members].tolist())) for one in (scores.safe, scores.success))
    vsi = np.nan_to_num(scores.vsi[members])
    return 4.0 * verdicts + 2.0 * successes + float(vsi.max() - vsi.min())


def _furthest(scores: Scores, members: Sequence[int]) -> tuple[int, int]:
    """The least and the most severe, of two policies, in the order of the sources."""
    ranked = sorted(members, key=lambda k: (float(np.nan_to_num(scores.vsi[k])), bool(scores.success[k]), k))
    least = ranked[0]
    most = next(k for k in reversed(ranked) if scores.policy[k] != scores.policy[least])
    return (least, most) if least < most else (most, least)


def _matches(
    scores: Scores, batch: Batch, library: Library, at: Sequence[int | None], i: int, j: int
) -> tuple[Match, ...]:
    """Every scored specification that reached a verdict on some side, on common scales; the violated ones first."""
    seen = [_drawn(scores, batch, library, at[k], k) for k in (i, j)]
    found = []
    for k in scores.scored:
        spec_id = scores.specs[k].spec_id
        there = [one[spec_id] for one in seen if spec_id in one]
        if there:
            frame = common_frame(there)
            halves = [
                _half(
                    scores,
                    int(k),
                    episode,
                    one.get(spec_id),
                    None if spec_id not in one else spark(one[spec_id], frame),
                )
                for episode, one in zip((i, j), seen, strict=True)
            ]
            found.append(Match(spec_id, (halves[0], halves[1])))
    return tuple(sorted(found, key=lambda one: not any(half.violated for half in one.halves)))


def _drawn(scores: Scores, batch: Batch, library: Library, place: int | None, episode: int) -> Mapping[str, Exhibit]:
    assert place is not None
    return {one.spec.spec_id: one for one in exhibits(scores, episode, select(batch, [place]), library)}


def _half(scores: Scores, k: int, episode: int, one: Exhibit | None, drawn: Spark | None) -> Half:
    if one is None or scores.state[k, episode] != ACTIVE:
        state = int(scores.state[k, episode])
        why = "" if state == VACUOUS else f": {scores.reasons[int(scores.reason[k, episode])]}"
        return Half(STATES[state] + why, False, None)
    return Half(verdict(scores, k, episode), bool(scores.violated[k, episode]), drawn)
