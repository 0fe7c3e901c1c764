"""Pairs of episodes: the same suite, task, initial state and seed under several policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from safevla_bench.compare.policy_results import PolicyResults
from safevla_bench.errors import RunError
from safevla_bench.scores import AbsentEpisode
from safevla_bench.trajectory import Header
from safevla_recorder.simulator_versions import physics_versions

_MOST_SHOWN = 5
_UNKNOWN = "unknown"
_UNPAIRED = "Or pass --unpaired, which takes the episodes as independent and needs more of them."


class PairKey(NamedTuple):
    """Key by which episodes of different policies are paired."""

    suite: str
    task_id: str
    init_state_index: int
    seed: int | None

    def __str__(self) -> str:
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.suite}/{self.task_id} state {self.init_state_index}{seed}"


@dataclass(frozen=True)
class PairedResults:
    """Results of policies on the same episodes in the same order; `left_out` pairs were lost for some policy."""

    results: tuple[PolicyResults, ...]
    keys: tuple[PairKey, ...]
    left_out: tuple[PairKey, ...]


def pair_episodes(results: Sequence[PolicyResults], *, across_seeds: bool = False) -> PairedResults:
    """Return the episodes that all policies finished, in the order of the first; lost pairs are left out and counted.

    Args:
        results: with names that differ.
        across_seeds: pair by suite, task and initial state alone.

    Raises:
        RunError: what makes them no pairs: initial states that were not recorded, an episode twice, episodes that one
            ran and another did not, another environment seed, horizon or protocol.
    """
    indices = [_index_by_key(episode, across_seeds) for episode in results]
    lost = [{_absent_key(episode, across_seeds) for episode in result.lost} - {None} for result in results]
    planned = [{*index, *lost_keys} for index, lost_keys in zip(indices, lost, strict=True)]
    _require_same_episodes(results, planned)
    order = [key for key in indices[0] if all(key in index for index in indices)]
    chosen = tuple(
        episode.select_episodes(np.array([index[key] for key in order], dtype=np.int64))
        for episode, index in zip(results, indices, strict=True)
    )
    _require_same_starts(chosen, order)
    finished = set(order)
    left_out = {key for keys in planned for key in keys if key is not None} - finished
    return PairedResults(chosen, tuple(order), tuple(_sort_keys(left_out)))


def _index_by_key(result: PolicyResults, across_seeds: bool) -> dict[PairKey, int]:
    unknown = [header.episode_id for header in result.headers if header.init_state_index is None]
    if unknown:
        problem = f"{_count_episodes(unknown)} of {result.name} do not say from which initial state they started"
        remedy = f"Record init_state_index (and seed), so that episodes can be paired. {_UNPAIRED}"
        raise RunError(f"{problem}: {_list_first(unknown)}", remedy=remedy)
    index: dict[PairKey, int] = {}
    for e, header in enumerate(result.headers):
        key = _pair_key(header, across_seeds)
        if key in index:
            problem = f"{result.name} has {key} twice: {result.headers[index[key]].episode_id} and {header.episode_id}"
            raise RunError(problem, remedy=f"Give repetitions different seeds. {_UNPAIRED}")
        index[key] = e
    return index


def _pair_key(episode: Header | AbsentEpisode, across_seeds: bool) -> PairKey:
    assert episode.init_state_index is not None
    return PairKey(episode.benchmark, episode.task_id, episode.init_state_index, None if across_seeds else episode.seed)


def _absent_key(episode: AbsentEpisode, across_seeds: bool) -> PairKey | None:
    return None if episode.init_state_index is None else _pair_key(episode, across_seeds)


def _require_same_episodes(results: Sequence[PolicyResults], planned: Sequence[set[PairKey | None]]) -> None:
    all_keys = {key for keys in planned for key in keys if key is not None}
    lines = [
        f"{result.name} lacks {_count_episodes(absent)} that another ran: "
        f"{_list_first([str(key) for key in _sort_keys(absent)])}"
        for result, keys in zip(results, planned, strict=True)
        if (absent := all_keys - keys)
    ]
    if lines:
        remedy = f"Roll out all policies on the same tasks, initial states and seed; or see --across-seeds. {_UNPAIRED}"
        raise RunError("these are not the same episodes:\n  " + "\n  ".join(lines), remedy=remedy)


def _sort_keys(keys: Iterable[PairKey]) -> list[PairKey]:
    return sorted(keys, key=lambda key: (*key[:3], -1 if key.seed is None else key.seed))


def _require_same_starts(results: Sequence[PolicyResults], keys: Sequence[PairKey]) -> None:
    first = results[0]
    for other in results[1:]:
        for name in ("env_seed", "horizon"):
            values = [[getattr(header, name) for header in result.headers] for result in (first, other)]
            differing = [f"{key} ({x} and {y})" for key, x, y in zip(keys, *values, strict=True) if x != y]
            if differing:
                episodes = f"{_count_episodes(differing)}: {_list_first(differing)}"
                problem = f"{first.name} and {other.name} differ in {name} in {episodes}"
                raise RunError(problem, remedy=f"Roll both out under one protocol. {_UNPAIRED}")
        _require_same_protocol(first, other)


def _require_same_protocol(first: PolicyResults, other: PolicyResults) -> None:
    protocol, other_protocol = first.protocol, other.protocol
    if protocol is None or other_protocol is None or protocol == other_protocol:
        return
    names = sorted(name for name in {*protocol, *other_protocol} if protocol.get(name) != other_protocol.get(name))
    problem = f"{first.name} and {other.name} were run under different protocols: {', '.join(names)} differ"
    raise RunError(problem, remedy=f"Roll both out under one protocol. {_UNPAIRED}")


def differing_versions(results: Sequence[PolicyResults]) -> dict[str, list[str]]:
    """Return the programs of which the policies' records name different versions, with each version.

    Those that decide the physics are left to `provenance_marks.find_mixtures`, unless some policy names none.
    """
    named = [result.versions for result in results]
    versions_by_name = {
        name: [versions.get(name, _UNKNOWN) for versions in named]
        for name in dict.fromkeys(name for versions in named for name in versions)
    }
    return {
        name: versions
        for name, versions in versions_by_name.items()
        if len(set(versions)) > 1 and (_UNKNOWN in versions or not physics_versions({name: ""}))
    }


def _count_episodes(episodes: Sequence[object] | set[PairKey]) -> str:
    return f"{len(episodes)} episode{'' if len(episodes) == 1 else 's'}"


def _list_first(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_SHOWN
    return ", ".join(texts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def number_tasks(headers: Iterable[Header]) -> Mapping[tuple[str, str], int]:
    """Number the tasks in order of first appearance."""
    return {task: k for k, task in enumerate(dict.fromkeys((header.benchmark, header.task_id) for header in headers))}
