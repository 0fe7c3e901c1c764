"""Results of one policy of one source: what a comparison needs of its episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.scores import Scores, collect_versions
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.trajectory.header import EpisodeKey, Header
from safevla_bench.trajectory.marks import Kitchen
from safevla_recorder.simulator_versions import physics_versions

UNNAMED = "(unnamed)"
TaskKey = tuple[str, str]
"""Suite and task."""


@dataclass(frozen=True)
class PolicyResults:
    """One policy's episodes that can tell something, [n].

    `lost` are the others: crashed, stopped before any violation, or without their record.
    """

    name: str
    source: str
    headers: tuple[Header, ...]
    success: NDArray[np.bool_]
    unsafe: NDArray[np.bool_]
    vsi: NDArray[np.float64]
    is_counted: NDArray[np.bool_]
    """True where the episode ran to its end; elsewhere `success` means nothing."""
    is_judged: NDArray[np.bool_]
    """True where there is a verdict; elsewhere safety is unknown."""
    stopped_on_violation: NDArray[np.bool_]
    """True where a violation stopped the episode: it leaves all but Safety of its suite unknown."""
    lost: tuple[AbsentEpisode, ...] = ()
    left_out: tuple[str, ...] = ()
    """Episodes of the source that are not among these, each kind as one sentence."""
    protocol: Mapping[str, object] | None = None
    privileged: bool = False
    standin_suites: tuple[str, ...] = ()
    """The suites that were simulated with stand-ins for the host's own assets."""
    earlier_resets: Mapping[EpisodeKey, int] = field(default_factory=dict)
    """The resets before an episode's own since its environment was seeded; none of those that are not here."""
    kitchens: Mapping[EpisodeKey, Kitchen] = field(default_factory=dict)
    """What fixes the start of each RoboCasa episode that says it."""
    left_out_clauses: tuple[str, ...] = ()
    """The lines on clauses that were left out of these episodes, on request or because no log holds what they need."""

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def tasks(self) -> list[TaskKey]:
        """Suite and task of each episode, [n]."""
        return [(header.benchmark, header.task_id) for header in self.headers]

    @property
    def versions(self) -> dict[str, str]:
        """Package -> the version that the records name; several versions are sorted and joined with `and`."""
        versions = collect_versions(header.versions or {} for header in self.headers)
        return {package: " and ".join(numbers) for package, numbers in versions.items()}

    @property
    def simulator_by_suite(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Suite -> package -> the versions that decided the physics of its episodes."""
        suites = dict.fromkeys(header.benchmark for header in self.headers)
        return {
            suite: collect_versions(
                physics_versions(header.versions) for header in self.headers if header.benchmark == suite
            )
            for suite in suites
        }

    @property
    def suites_without_verdict(self) -> list[str]:
        """The suites in which no specification reached a verdict, so that safety there is unknown."""
        judged_suites = self._suites_of(self.is_judged)
        return [suite for suite in self._suites_of(np.ones(len(self), dtype=np.bool_)) if suite not in judged_suites]

    @property
    def suites_stopped_on_violation(self) -> list[str]:
        """The suites in which a violation stopped an episode, so that only Safety is known there."""
        return self._suites_of(self.stopped_on_violation)

    @property
    def lost_tasks(self) -> list[TaskKey]:
        """Suite and task of each lost episode."""
        return [(episode.benchmark, episode.task_id) for episode in self.lost]

    def _suites_of(self, selected: NDArray[np.bool_]) -> list[str]:
        return list(dict.fromkeys(self.headers[k].benchmark for k in np.flatnonzero(selected)))

    def select_suite(self, suite: str | None) -> PolicyResults:
        """Return the results of one suite, lost episodes included; None = all."""
        if suite is None:
            return self
        index = np.array([e for e, header in enumerate(self.headers) if header.benchmark == suite], dtype=np.int64)
        lost = tuple(episode for episode in self.lost if episode.benchmark == suite)
        return replace(self.select_episodes(index), lost=lost)

    def select_episodes(self, index: NDArray[np.int64]) -> PolicyResults:
        """Return the results of the episodes at these indices, in this order.

        Lost episodes and marks stay as they are.
        """
        return replace(
            self,
            headers=tuple(self.headers[k] for k in index),
            **{name: getattr(self, name)[index] for name in _EPISODE_ARRAYS},
        )


_EPISODE_ARRAYS = ("success", "unsafe", "vsi", "is_counted", "is_judged", "stopped_on_violation")


def split_by_policy(
    scores: Scores,
    headers: Sequence[Header],
    source: str = "",
    *,
    protocol: Mapping[str, object] | None = None,
    privileged: Sequence[str | None] = (),
    left_out: Sequence[str] = (),
) -> list[PolicyResults]:
    """Split the scores of one source by policy, in order of first appearance; policies with lost episodes alone last.

    Episodes without a policy make the result `(unnamed)`. `earlier_resets` and `kitchens` are left empty.

    Args:
        scores: the verdicts, [E].
        headers: of the same episodes, in the same order, [E].
        source: where they come from, to tell two of one name apart.
        protocol: how the run folder's episodes were started and ended.
        privileged: the policies that saw state which no real robot has.
        left_out: episodes that are not among the scores, each kind as one sentence without its full stop.
    """
    return [
        replace(
            _select_policy(scores, headers, policy),
            source=source,
            protocol=protocol,
            privileged=policy in privileged,
            left_out=tuple(left_out),
        )
        for policy in dict.fromkeys([*scores.policy, *(episode.policy for episode in scores.absent)])
    ]


def _select_policy(scores: Scores, headers: Sequence[Header], policy: str | None) -> PolicyResults:
    of_policy = np.array([name == policy for name in scores.policy], dtype=np.bool_)
    can_tell = scores.is_counted | scores.is_judged
    index = np.flatnonzero(of_policy & can_tell)
    stopped = [_stopped_episode(headers[e]) for e in np.flatnonzero(of_policy & ~can_tell).tolist()]
    own = scores.select_episodes(index)
    return PolicyResults(
        name=policy or UNNAMED,
        source="",
        headers=tuple(headers[e] for e in index.tolist()),
        success=own.success,
        unsafe=own.unsafe,
        vsi=own.vsi,
        is_counted=own.is_counted,
        is_judged=own.is_judged,
        stopped_on_violation=own.is_stopped_on_violation,
        lost=(*(episode for episode in scores.absent if episode.policy == policy), *stopped),
        standin_suites=own.standin_suites,
        left_out_clauses=(*provenance_marks.warn_of_left_out(own), *provenance_marks.warn_of_logs(own)),
    )


def _stopped_episode(header: Header) -> AbsentEpisode:
    """Return, as an absent episode, an episode that has a record but did not run to its end and has no verdict."""
    return AbsentEpisode(
        episode_id=header.episode_id,
        benchmark=header.benchmark,
        task_id=header.task_id,
        policy=header.policy,
        outcome=header.outcome_label,
        init_state_index=header.init_state_index,
        seed=header.seed,
    )


def join_sources(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Join the sources of a policy where they have no suite in common, such as its runs on two hosts.

    All sources of a policy stay apart if any two share a suite, lost episodes included, or protocols differ. Policies
    stand in order of first appearance.
    """
    by_name: dict[str, list[PolicyResults]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    return [result for group in by_name.values() for result in ([_join_results(group)] if _can_join(group) else group)]


def _can_join(results: Sequence[PolicyResults]) -> bool:
    suites = [{suite for suite, _ in (*result.tasks, *result.lost_tasks)} for result in results]
    same_protocol = all(result.protocol == results[0].protocol for result in results)
    return same_protocol and sum(map(len, suites)) == len(set().union(*suites))


def _join_results(results: Sequence[PolicyResults]) -> PolicyResults:
    """Return the results of several sources of one policy as one; the first's where there is one source."""
    if len(results) == 1:
        return results[0]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(result, name) for result in results]) for name in _EPISODE_ARRAYS
    }
    return replace(
        results[0],
        source=", ".join(result.source for result in results),
        headers=tuple(header for result in results for header in result.headers),
        **arrays,
        lost=tuple(lost for result in results for lost in result.lost),
        privileged=any(result.privileged for result in results),
        standin_suites=tuple(suite for result in results for suite in result.standin_suites),
        earlier_resets={key: count for result in results for key, count in result.earlier_resets.items()},
        kitchens={key: kitchen for result in results for key, kitchen in result.kitchens.items()},
        left_out_clauses=tuple(line for result in results for line in result.left_out_clauses),
    )


def make_names_unique(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Return the results with unique names: an equal name becomes `NAME (SOURCE)`, and if that is not unique `... #K`.

    K is the place among all results, from 1. Unique names stay.
    """
    with_sources = _use_longer_names(results, [f"{result.name} ({result.source})" for result in results])
    return _use_longer_names(with_sources, [f"{result.name} #{k}" for k, result in enumerate(with_sources, 1)])


def _use_longer_names(results: Sequence[PolicyResults], longer: Sequence[str]) -> list[PolicyResults]:
    counts = Counter(result.name for result in results)
    return [
        replace(result, name=name) if counts[result.name] > 1 else result
        for result, name in zip(results, longer, strict=True)
    ]


# Starts of RoboCasa episodes


_Start = tuple[int | None, int | None]
"""Index of the initial state, and seed of the environment."""


def name_kitchens(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Return the results with an index and an environment seed for each episode whose record fixes its kitchen.

    An episode that has an index stays; that of a loop of somebody's own has none. Where a rollout of that task began in
    the same kitchen, the episode takes the rollout's index and seed. Elsewhere the kitchen's seed stands for both, so
    that two loops can be paired.
    """
    names = {
        (header.benchmark, header.task_id, kitchen): (header.init_state_index, header.env_seed)
        for result in results
        for header in result.headers
        if header.init_state_index is not None and (kitchen := result.kitchens.get(header.key)) is not None
    }
    return [
        replace(
            result,
            headers=tuple(_name_start(header, result.kitchens.get(header.key), names) for header in result.headers),
        )
        for result in results
    ]


def _name_start(header: Header, kitchen: Kitchen | None, names: Mapping[tuple[str, str, Kitchen], _Start]) -> Header:
    if header.init_state_index is not None or kitchen is None:
        return header
    index, env_seed = names.get((header.benchmark, header.task_id, kitchen), (kitchen.seed, kitchen.seed))
    return msgspec.structs.replace(header, init_state_index=index, env_seed=env_seed)
