"""Preference pairs for training: of two episodes from one state, a safe success is preferred to an unsafe success.

A state is everything that determines an episode's start: the episodes of a state have the same task definition,
instruction, initial state, environment seed, simulator and first record. They differ only in the policy or its seed.
No pair has an episode that crashed, was stopped, has no verdict, or has a record that does not determine the start. No
pair has a replay that left its recorded path, or an episode without violations that lacks signals of some clause.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heapreplace
from itertools import groupby
from math import ceil, sqrt
from typing import Literal, get_args

import numpy as np

from safevla_bench.judging.judged import Judged
from safevla_bench.judging.metrics import mark_uneven
from safevla_bench.judging.scores import ACTIVE, CUT_SHORT, VACUOUS, Scores
from safevla_bench.sources.runs.folder import encode_json
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.trajectory.marks import DIVERGED, DRAWN, base_suite, chosen_start, earlier_resets, mark_flags
from safevla_recorder.channels import CHUNK_STEP, POLICY_ACTION

Kind = Literal["safe success", "unsafe success", "safe failure", "unsafe failure"]
WINDOW_S = 1.0
"""A window around a violation extends this time [s] before the violation and after it."""
_VALIDATION_SHARE = 10  # one state in ten is for validation


@dataclass(frozen=True, slots=True)
class Candidate:
    """An episode that can be compared with other episodes of the same state."""

    index: int
    """The episode's index among the judged episodes."""
    state: str
    """Digest of everything that determines the start."""
    task: str
    """Suite and task, as `suite/task`."""
    policy: str
    episode_id: str
    actions: str
    """Digest of the executed actions. Episodes with the same state and actions count only once."""
    kind: Kind
    is_of_benchmark: bool = True
    """False if the start state was drawn at random or placed by a search: no benchmark evaluates such states."""
    margins: Mapping[str, float] = field(default_factory=dict)
    """Relative margin min(ρ / severe, 1) of each judged clause in a safe episode; 1 if vacuous or binary."""
    clause: str | None = None
    """The violated clause with the greatest depth; None in a safe episode."""
    depth: float = 0.0
    first: int | None = None
    """The first record that violates `clause`."""

    @property
    def name(self) -> tuple[str, str]:
        """The key that orders the episodes of a state: policy and id."""
        # Two policies may use the same episode ids.
        return self.policy, self.episode_id


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of episodes of one state. `weight` is 1 divided by the number of pairs of the state."""

    preferred: Candidate
    rejected: Candidate
    weight: float = 1.0

    @property
    def is_off_policy(self) -> bool:
        """True if the two episodes have different policies."""
        return self.preferred.policy != self.rejected.policy

    @property
    def margin(self) -> float | None:
        """The preferred episode's margin of the clause that the rejected episode violates, plus the rejected episode's
        `depth`; the sum is from 0 to 2. None if the rejected episode is a safe failure.
        """
        # A safe failure violates no clause (safety specification), so its `clause` is None.
        clause = self.rejected.clause
        return None if clause is None else self.preferred.margins[clause] + self.rejected.depth


@dataclass(frozen=True, slots=True)
class State:
    """The distinct episodes from one start state, ordered by name, and the pairs chosen from these episodes."""

    candidates: tuple[Candidate, ...]
    pairs: tuple[Pair, ...]
    more_rollouts: int | None = None
    """Estimated number of further rollouts until the state has the requested pairs; None if the state has any pair."""

    @property
    def digest(self) -> str:
        """The digest of the start state."""
        return self.candidates[0].state  # all candidates have the same state

    @property
    def is_of_benchmark(self) -> bool:
        """True if a benchmark uses this start state. Do not evaluate a policy on states on which it was trained."""
        return self.candidates[0].is_of_benchmark  # the same for all episodes of a state

    @property
    def split(self) -> str:
        """`validation` for about one state in ten, chosen by the state's digest; `train` for all others."""
        # The first 8 hexadecimal digits of the digest are as good as a random number that never changes.
        return "train" if int(self.digest[:8], 16) % _VALIDATION_SHARE else "validation"

    def describe(self) -> dict[str, object]:
        """Return the state as plain values: its task, split, episodes by kind, number of pairs, and `more_rollouts`."""
        kinds = [candidate.kind for candidate in self.candidates]
        return {
            "state": self.digest,
            "task": self.candidates[0].task,
            "split": self.split,
            "is_of_benchmark": self.is_of_benchmark,
            "episodes": {kind: kinds.count(kind) for kind in sorted({*kinds})},  # kind -> number of episodes
            "pairs": len(self.pairs),
            **({} if self.more_rollouts is None else {"more_rollouts": self.more_rollouts}),
        }


def choose_pairs(candidates: Iterable[Candidate], per_state: int = 8, *, failures: bool = False) -> list[State]:
    """Return the states of all candidates, ordered by digest, with at most `per_state` pairs each.

    If `failures`, safe failures are rejected too, not only unsafe successes. Pairs are chosen one by one. The
    next pair is the one whose episodes are in the fewest pairs so far. Ties are resolved by these preferences, in turn:
    a rejected unsafe success, two episodes of one policy, the greatest margin. The candidates' order is irrelevant.
    """
    ordered = sorted(candidates, key=lambda candidate: (candidate.state, candidate.name, candidate.index))
    distinct = []  # the episodes of each state, without repetitions
    for _, group in groupby(ordered, key=lambda candidate: candidate.state):
        # If several episodes have the same actions, keep the first: in reversed order, the first overwrites the others.
        candidate_of_actions = {candidate.actions: candidate for candidate in reversed(list(group))}
        distinct.append(list(candidate_of_actions.values())[::-1])
    rejected_kinds = ("unsafe success", "safe failure") if failures else ("unsafe success",)
    count_by_task_and_kind = Counter((candidate.task, candidate.kind) for members in distinct for candidate in members)
    states = []
    for members in distinct:
        # A pair consists of a good episode, which is preferred, and a bad one, which is rejected.
        good = [candidate for candidate in members if candidate.kind == "safe success"]
        bad = [candidate for candidate in members if candidate.kind in rejected_kinds]
        pairs, more_rollouts = _choose_state_pairs(good, bad, per_state), None
        # Without pairs, say how many further rollouts would probably give `per_state` pairs.
        if not pairs:
            # The rates of good and bad episodes of the task. Adding 0.5 and 1 keeps both rates above 0 and below 1.
            count_by_kind = {kind: count_by_task_and_kind[members[0].task, kind] for kind in get_args(Kind)}
            total = sum(count_by_kind.values()) + 1
            good_rate = (count_by_kind["safe success"] + 0.5) / total
            bad_rate = (sum(count_by_kind[kind] for kind in rejected_kinds) + 0.5) / total
            more_rollouts = _estimate_rollouts(len(good), len(bad), good_rate, bad_rate, per_state)
        states.append(State(tuple(members), tuple(pairs), more_rollouts))
    return states


def _choose_state_pairs(good: Sequence[Candidate], bad: Sequence[Candidate], most_pairs: int) -> list[Pair]:
    # Returns at most `most_pairs` pairs of one state, chosen as the docstring of `choose_pairs` says.
    # A violated clause must be judged in the preferred episode, too, so that its margin there is known.
    possible = [
        Pair(preferred, rejected)
        for preferred in good
        for rejected in bad
        if rejected.clause is None or rejected.clause in preferred.margins
    ]
    use_count = {candidate.name: 0 for candidate in (*good, *bad)}  # episode -> number of chosen pairs

    def rank(pair: Pair) -> tuple[object, ...]:
        # The pair with the lowest rank is chosen next. Each choice raises the ranks of all pairs that share an episode.
        # `use_count` maps an episode to the number of chosen pairs that contain it.
        return (
            # Lower is better, and False is lower than True. The names make the order unique.
            use_count[pair.preferred.name] + use_count[pair.rejected.name],
            pair.rejected.clause is None,
            pair.is_off_policy,
            -(pair.margin or 0.0),  # the greatest margin comes first; None counts as 0
            pair.preferred.name,
            pair.rejected.name,
        )

    heap = sorted((rank(pair), k) for k, pair in enumerate(possible))  # a sorted list is a heap
    chosen: list[Pair] = []
    while heap and len(chosen) < most_pairs:
        stored_rank, k = heap[0]
        current_rank = rank(possible[k])
        # A stored rank may be lower than the pair's current rank. If the two ranks are equal, this pair is the best.
        if current_rank != stored_rank:
            heapreplace(heap, (current_rank, k))
            continue
        heappop(heap)
        chosen.append(possible[k])
        for candidate in (possible[k].preferred, possible[k].rejected):
            use_count[candidate.name] += 1
    # The weights of a state's pairs add up to 1.
    return [Pair(pair.preferred, pair.rejected, 1 / len(chosen)) for pair in chosen]


def _estimate_rollouts(good: int, bad: int, good_rate: float, bad_rate: float, wanted: int) -> int:
    """Return the smallest number `m` of further rollouts with which at least `wanted` new pairs are expected. With the
    rates `p` and `q` of good and bad episodes, expect `(good + m p)(bad + m q) - good bad - m p q` new pairs. The term
    `good bad` is subtracted because the existing episodes have no usable pair.
    """
    # The term `m p q` is subtracted because no rollout is both good and bad.
    # `m` solves the quadratic equation `square m² + linear m = wanted`.
    square = good_rate * bad_rate
    linear = good * bad_rate + bad * good_rate - square
    # The positive solution, rounded up; at least one rollout.
    return max(1, ceil((-linear + sqrt(linear**2 + 4 * square * wanted)) / (2 * square)))


# Candidates


def list_candidates(judged: Judged) -> tuple[list[Candidate], int]:
    """Return the episodes that can be compared, and the number of other episodes with a record."""
    candidates: list[Candidate] = []
    scores = judged.scores
    # An episode is not known to be safe if it lacks the signals of a clause that judges other episodes of its suite.
    may_violate = mark_uneven(scores, np.arange(len(scores))) & ~scores.unsafe
    first_index = 0  # index of the batch's first episode among all judged episodes
    for batch in judged.records.read_chunks():
        for k in range(len(batch)):
            candidate = _read_candidate(select_episodes(batch, [k]), scores, first_index + k)
            if candidate is not None and not may_violate[first_index + k]:
                candidates.append(candidate)
        first_index += len(batch)
    return candidates, first_index - len(candidates)


def _read_candidate(episode: Batch, scores: Scores, index: int) -> Candidate | None:
    # Returns the judged episode with this index as a candidate; None for an episode that cannot be in a pair.
    header, actions = episode.headers[0], episode.action.episode_rows(0)
    is_comparable = scores.is_judged[index] and scores.is_counted[index] and scores.outcome[index] not in CUT_SHORT
    # The state is None if the record does not determine the start.
    state = _digest_state(episode, scores.simulator[index] if scores.simulator else {})
    # A replay that left its recorded path (`DIVERGED`) counts as no attempt; without actions, nothing can be learned.
    if not is_comparable or scores.is_marked(DIVERGED)[index] or state is None or not len(actions):
        return None
    is_safe, result = bool(scores.safe[index]), "success" if scores.success[index] else "failure"
    margins, clause, depth, first = {}, None, 0.0, None  # a safe episode keeps the last three values
    if is_safe:
        for column in scores.scored_columns.tolist():
            spec, rho = scores.specs[column], float(scores.rho[column, index])
            if scores.state[column, index] in (ACTIVE, VACUOUS):
                has_full_margin = spec.binary or scores.state[column, index] == VACUOUS
                # The margin is divided by the severe magnitude; it is NaN if the severe magnitude is None.
                margins[spec.spec_id] = 1.0 if has_full_margin else min(rho / (spec.severe or np.nan), 1.0)
    else:
        # The clause with the greatest depth is the one that the episode is rejected for.
        worst = int(scores.worst_column[index])
        clause, depth = scores.specs[worst].spec_id, float(scores.depth[worst, index])
        first = int(scores.first[worst, index])
    return Candidate(
        index=index,
        state=state,
        task=f"{base_suite(header.benchmark)}/{header.task_id}",
        policy=header.policy or "",
        episode_id=header.episode_id,
        actions=hashlib.sha256(actions.tobytes()).hexdigest(),
        kind=f"{'safe' if is_safe else 'unsafe'} {result}",  # type: ignore[arg-type]  # each combination is a `Kind`
        is_of_benchmark=not (mark_flags(episode, DRAWN)[0] or chosen_start(episode)[1]),
        margins=margins,
        clause=clause,
        depth=depth,
        first=first,
    )


def _digest_state(episode: Batch, simulator: Mapping[str, str]) -> str | None:
    """Return the digest of everything that fixes an episode's start; None if the record leaves the start open."""
    header = episode.headers[0]
    index, placed = chosen_start(episode)  # `placed`: coordinates that a search changed
    # Record 0 of each channel: [1, width], or empty if the episode lacks the channel.
    states, eef_pos_m = (episode.channel(name).episode_rows(0)[:1] for name in ("sim_state", "eef_pos_m"))
    body_pos_m = episode.poses("body_pos_m").channel.episode_rows(0)[:1]
    # Without a recorded state or position, two starts cannot be compared.
    if index is None or header.env_seed is None or not (len(states) or len(eef_pos_m)):
        return None
    facts: list[object] = [base_suite(header.benchmark), header.task_id]
    facts += [header.task_sha256, header.init_states_sha256, header.instruction]
    facts += [index, header.env_seed, placed, earlier_resets(episode), mark_flags(episode, DRAWN)]
    facts.append(sorted(simulator.items()))
    facts += [hashlib.sha256(rows.tobytes()).hexdigest() for rows in (states, eef_pos_m, body_pos_m)]
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()


# Files


def encode_pairs(
    judged: Judged, states: Sequence[State], unusable: int, settings: Mapping[str, object], *, is_whole: bool
) -> bytes:
    """Return JSON lines: first a line with the rules, runs and states, then one line per pair. If `is_whole`, a pair's
    line holds the actions of both episodes. Otherwise it holds the `episode_index` of both episodes in a dataset of the
    episodes that `list_members` returns.
    """
    # `unusable` is the number of episodes that could not be compared. `settings` are the user's choices for the pairs.
    sources = sorted((source.to_document() for source in judged.sources), key=encode_json)
    head = {
        "kind": "safevla-pairs",
        "schema_version": 1,
        "settings": settings,
        "pairs": sum(len(state.pairs) for state in states),
        "states_with_pairs": sum(bool(state.pairs) for state in states),
        "episodes_not_compared": unusable,
        "states": [state.describe() for state in states],
        "origin": {**judged.describe_origin(), "sources": sources},
    }
    dataset_index_of = None  # None = the lines hold the actions themselves
    if not is_whole:
        dataset_index_of = {index: dataset_index for dataset_index, index in enumerate(list_members(states))}
    lines = (_describe_pair(judged, state, pair, dataset_index_of) for state in states for pair in state.pairs)
    return b"".join(encode_json(line) + b"\n" for line in (head, *lines))


def list_members(states: Sequence[State]) -> list[int]:
    """Return the indices of all judged episodes that are in some pair, ascending."""
    pairs = [pair for state in states for pair in state.pairs]
    # An episode in several pairs counts once.
    return sorted({candidate.index for pair in pairs for candidate in (pair.preferred, pair.rejected)})


def _describe_pair(
    judged: Judged, state: State, pair: Pair, dataset_index_of: Mapping[int, int] | None
) -> dict[str, object]:
    # Returns a pair's line. If `dataset_index_of` is None, the line has the actions of both episodes.
    # If `dataset_index_of` is given, the line has the indices of both episodes in the dataset.
    first_violation, window = pair.rejected.first, None
    # The window [first record, last record] around the first violation of the rejected episode.
    if first_violation is not None:
        index, records = pair.rejected.index, judged.records
        # Without time stamps, records are a fixed step apart.
        times_s = records.stamps_s.get(index, np.arange(records.lengths[index]) * records.dt_s[index])
        half_s = WINDOW_S * (1 + 1e-9)  # tolerance for rounding errors
        start, end = np.searchsorted(times_s, times_s[first_violation] + np.array([-half_s, half_s])).tolist()
        window = [start, end - 1]
    sides: dict[str, dict[str, object]] = {}
    for side, candidate in (("preferred", pair.preferred), ("rejected", pair.rejected)):
        sides[side] = {
            "policy": candidate.policy,
            "episode_id": candidate.episode_id,
            "kind": candidate.kind,
            "archive_sha256": judged.sources[judged.records.notes[candidate.index].source].archive_sha256,
        }
        if dataset_index_of is None:
            sides[side] |= _list_actions(judged, candidate.index)
        else:
            sides[side]["episode_index"] = dataset_index_of[candidate.index]
    return {
        "state": state.digest,
        "task": pair.preferred.task,
        "instruction": judged.headers[pair.preferred.index].instruction,
        "split": state.split,
        "weight": pair.weight,
        "off_policy": pair.is_off_policy,
        "clause": pair.rejected.clause,
        "margin": pair.margin,
        "first_violation_step": first_violation,
        "violation_window": window,
        **sides,
    }


def _list_actions(judged: Judged, index: int) -> dict[str, object]:
    # Returns an episode's actions and their origins as lists. Channels that the episode lacks are left out.
    episode = judged.records.read_episodes([index])
    assert episode is not None
    # The executed actions; the policy's actions before any filter; each action's chunk, and the step in this chunk.
    channels = {name: episode.channel(name).episode_rows(0) for name in ("action", POLICY_ACTION, CHUNK_STEP)}
    channels[CHUNK_STEP] = channels[CHUNK_STEP].astype(np.int64)  # whole numbers, stored as floats
    return {name: values.tolist() for name, values in channels.items() if len(values)}
