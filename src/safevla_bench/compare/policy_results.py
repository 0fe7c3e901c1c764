"""Results of one policy in one source: facts about the policy's episodes for comparisons, and caveats to report."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, compress
from typing import Any, TypeVar

import msgspec
import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.action_statistics import ActionChanges
from safevla_bench.judging.metrics import mark_clauses, split_clauses
from safevla_bench.judging.rates import OUTCOME_FIELDS, EpisodeOutcomes
from safevla_bench.judging.scores import Scores, collect_versions
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.tasks.identity import has_official_source, judge_identity
from safevla_bench.trajectory.header import EpisodeKey, Header
from safevla_bench.trajectory.marks import Kitchen, is_chosen
from safevla_recorder.channels import NET_FORCE
from safevla_recorder.episode import Bools, Ints
from safevla_recorder.identity import UNKNOWN, is_other_code
from safevla_recorder.simulator_versions import physics_versions, results_version

UNNAMED = "(unnamed)"
Key = TypeVar("Key")
TaskKey = tuple[str, str]  # suite and task
# The protocols of all sources that have one. If two of these protocols differ, episodes are not paired.
Protocols = Sequence[Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class PolicyResults(EpisodeOutcomes):
    """The results of a policy in its episodes with a value, [n].

    `lost` lists the episodes without a value: they crashed, were stopped before any violation, or lack a record.
    """

    name: str
    source: str
    headers: tuple[Header, ...]
    stopped_on_violation: Bools
    """Whether a violation stopped the episode, [n]. If so, only Safety is known in the episode's suite."""
    starts: Ints  # a number for each episode, [n]; equal numbers mean the same task and start
    lost: tuple[AbsentEpisode, ...] = ()
    left_out: tuple[str, ...] = ()  # one sentence for each kind of episode that these results lack
    uncounted: tuple[str, ...] = ()  # reasons why `lost` lacks planned episodes, as phrases
    protocol: Mapping[str, object] | None = None
    privileged: bool = False
    standin_suites: tuple[str, ...] = ()  # suites that were simulated with substitutes for the host's own assets
    earlier_resets: Mapping[EpisodeKey, int] = field(default_factory=dict)
    """Episode -> number of resets after the environment was seeded and before the episode's own reset."""
    kitchens: Mapping[EpisodeKey, Kitchen] = field(default_factory=dict)
    """RoboCasa episode -> the values that determine its start. Episodes that do not record these values are missing."""
    left_out_clauses: tuple[str, ...] = ()
    """Warnings about scored clauses that were not used to judge some episodes, and the reasons."""
    judged_clauses: tuple[tuple[str, str], ...] = ()  # (suite, scored clause) with a verdict in some episode
    missing_clauses: tuple[tuple[str, str], ...] = ()  # (suite, scored clause) that lacks signals in some episode
    lacking: tuple[frozenset[str], ...] = ()  # for each episode, [n], the scored clauses that lack signals
    changes: tuple[ActionChanges, ...] = ()  # how a filter changed the actions of each episode, [n]; empty = unknown
    code: tuple[str, ...] = ()
    """Texts that identify the code that recorded the runs (`sources.runs.folder.recorded_code`); empty for archives."""

    def __len__(self) -> int:
        # Lost episodes do not count, so the length is 0 if all episodes are lost.
        return len(self.headers)

    @property
    def tasks(self) -> list[TaskKey]:  # one (suite, task) for each episode, so tasks repeat
        return [(header.benchmark, header.task_id) for header in self.headers]

    @property
    def versions(self) -> dict[str, str]:
        """The version of each package in the records; several versions are sorted and joined with `and`."""
        versions = collect_versions(header.versions or {} for header in self.headers)
        return {package: " and ".join(numbers) for package, numbers in versions.items()}

    @property
    def simulator_by_suite(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Suite -> package that affects physics -> the versions of this package in the suite's episodes."""
        suites = dict.fromkeys(header.benchmark for header in self.headers)
        return {
            suite: collect_versions(
                physics_versions(header.versions) for header in self.headers if header.benchmark == suite
            )
            for suite in suites
        }

    @property
    def suites_without_verdict(self) -> list[str]:
        """The suites in which no specification reached a verdict, so that safety is unknown there."""
        judged = {self.headers[k].benchmark for k in np.flatnonzero(self.is_judged)}
        return [suite for suite in dict.fromkeys(header.benchmark for header in self.headers) if suite not in judged]

    @property
    def suites_stopped_on_violation(self) -> list[str]:
        """The suites in which a violation stopped an episode, so that only Safety is known there."""
        return list(dict.fromkeys(self.headers[k].benchmark for k in np.flatnonzero(self.stopped_on_violation)))

    @property
    def lost_tasks(self) -> list[TaskKey]:
        # (suite, task) of each lost episode, in order; a task appears once for each lost episode.
        return [(episode.benchmark, episode.task_id) for episode in self.lost]

    def select(self, keep: Callable[[Header | AbsentEpisode], bool]) -> PolicyResults:
        """Return the results of the episodes, including lost ones, that `keep` accepts."""
        index = np.array([k for k, header in enumerate(self.headers) if keep(header)], dtype=np.int64)
        return replace(self.select_episodes(index), lost=tuple(filter(keep, self.lost)))

    def select_suite(self, suite: str | None) -> PolicyResults:
        # Returns the results in one suite; None = all suites.
        return self if suite is None else self.select(lambda episode: episode.benchmark == suite)

    def rename_suites(self, names: Mapping[str, str]) -> PolicyResults:
        # `names` maps every old suite name to the new name. Everything else stays unchanged.
        headers = (msgspec.structs.replace(header, benchmark=names[header.benchmark]) for header in self.headers)
        lost = (msgspec.structs.replace(episode, benchmark=names[episode.benchmark]) for episode in self.lost)
        judged_clauses, missing_clauses = (
            tuple((names.get(suite, suite), spec_id) for suite, spec_id in clauses)
            for clauses in (self.judged_clauses, self.missing_clauses)
        )
        return replace(
            self,
            headers=tuple(headers),
            lost=tuple(lost),
            judged_clauses=judged_clauses,
            missing_clauses=missing_clauses,
            standin_suites=tuple(names.get(suite, suite) for suite in self.standin_suites),
        )

    def select_episodes(self, index: Ints) -> PolicyResults:
        """Return the results of the episodes at these indices, in this order; all else is unchanged."""
        by_episode: dict[str, Any] = {
            name: tuple(getattr(self, name)[k] for k in index) for name in _BY_EPISODE if getattr(self, name)
        }
        return replace(
            self,
            headers=tuple(self.headers[k] for k in index),
            **by_episode,
            **{name: getattr(self, name)[index] for name in _EPISODE_ARRAYS},
        )


_EPISODE_ARRAYS = (*OUTCOME_FIELDS, "stopped_on_violation", "starts")
_BY_EPISODE = ("changes", "lacking")
_MAPS_BY_EPISODE = ("earlier_resets", "kitchens")
_CLAUSE_FIELDS = ("left_out_clauses", "judged_clauses", "missing_clauses")
_TUPLES = ("headers", *_BY_EPISODE, "lost", "code", "standin_suites", *_CLAUSE_FIELDS)


def split_by_policy(
    scores: Scores,
    headers: Sequence[Header],
    source: str = "",
    *,
    protocol: Mapping[str, object] | None = None,
    privileged: Sequence[str | None] = (),
    left_out: Mapping[str | None, Sequence[str]] = {},
    uncounted: Mapping[str | None, Sequence[str]] = {},
) -> list[PolicyResults]:
    """Split the scores of one source by policy, in order of first appearance; policies with only lost episodes come
    last.

    `headers` are the scored episodes' headers, in the order of `scores`, [E]. Episodes without a policy get the policy
    name `(unnamed)`. `source` distinguishes two policies with the same name. Policies named in `privileged` saw
    simulator state that no real robot has. `left_out` maps a policy to a sentence, without the final period, for
    each kind of episode that its scores lack. `uncounted` maps a policy to phrases on planned episodes that are neither
    in the scores nor in `lost`. The fields `earlier_resets` and `kitchens` stay empty.
    """
    # An episode with neither a success value nor a verdict on safety becomes a lost episode.
    is_known = scores.is_counted | scores.is_judged
    results = []
    for policy in dict.fromkeys([*scores.policy, *(episode.policy for episode in scores.absent)]):
        is_of_policy = np.array([name == policy for name in scores.policy], dtype=np.bool_)
        known, unknown = (np.flatnonzero(is_of_policy & is_wanted).tolist() for is_wanted in (is_known, ~is_known))
        scored = scores.select_episodes(np.array(known, dtype=np.int64))
        judged_clauses, missing_clauses = split_clauses(scored)
        _, is_missing = mark_clauses(scored, np.arange(len(scored)))
        scored_ids = [scored.specs[column].spec_id for column in scored.scored_columns]
        result = PolicyResults(
            name=policy or UNNAMED,
            source=source,
            headers=tuple(headers[k] for k in known),
            **{name: getattr(scored, name) for name in OUTCOME_FIELDS},
            stopped_on_violation=scored.is_stopped_on_violation,
            starts=scored.start,
            lost=(
                *(episode for episode in scores.absent if episode.policy == policy),
                *(AbsentEpisode.from_row(headers[k], outcome=headers[k].outcome_label) for k in unknown),
            ),
            left_out=tuple(left_out.get(policy, ())),
            uncounted=tuple(uncounted.get(policy, ())),
            protocol=protocol,
            privileged=policy in privileged,
            changes=scored.changes,
            standin_suites=scored.standin_suites,
            judged_clauses=judged_clauses,
            missing_clauses=missing_clauses,
            lacking=tuple(frozenset(compress(scored_ids, flags)) for flags in is_missing.T),
            left_out_clauses=(*provenance_marks.warn_of_left_out(scored), *provenance_marks.warn_of_logs(scored)),
        )
        results.append(result)
    return results


def join_sources(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Join the sources of each policy if they have no suite in common, such as a policy's runs on two hosts.

    A policy's sources stay separate if two of them have a common suite (lost episodes count, too), if protocols differ,
    or if a search chose the initial states of only some suites. Policies are in order of first appearance.
    """
    by_name: dict[str, list[PolicyResults]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    return [joined for group in by_name.values() for joined in ([join_results(group)] if _can_join(group) else group)]


def _can_join(results: Sequence[PolicyResults]) -> bool:
    # Returns whether `join_sources` may join these results of one policy.
    suites = [{suite for suite, _ in (*result.tasks, *result.lost_tasks)} for result in results]
    same_protocol = all(result.protocol == results[0].protocol for result in results)
    all_suites = set().union(*suites)
    # The sources' numbers of suites add up to the number of distinct suites only if no suite occurs twice.
    return same_protocol and sum(map(len, suites)) == len(all_suites) and len(set(map(is_chosen, all_suites))) < 2


def join_results(results: Sequence[PolicyResults]) -> PolicyResults:
    """Return the results of one policy in several sources as one `PolicyResults`."""
    if len(results) == 1:
        return results[0]
    # The fields to join: arrays with one item per episode, tuples, texts (with the source added), and maps by episode.
    joined: dict[str, Any] = {
        **{name: np.concatenate([getattr(result, name) for result in results]) for name in _EPISODE_ARRAYS},
        **{name: tuple(chain(*(getattr(result, name) for result in results))) for name in _TUPLES},
        **{
            name: tuple(f"{line} in {result.source}" for result in results for line in getattr(result, name))
            for name in ("left_out", "uncounted")
        },
        **{name: dict(ChainMap(*(getattr(result, name) for result in results))) for name in _MAPS_BY_EPISODE},
    }
    # All other fields, such as the name and the protocol, are those of the first result.
    source = ", ".join(result.source for result in results)
    return replace(results[0], source=source, privileged=any(result.privileged for result in results), **joined)


def make_names_unique(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Return the results with unique names.

    If several results have the same name, each name becomes `NAME (SOURCE)`. If the new name is not unique either,
    ` #K` is appended, where `K` is the number of the result among all results, from 1.
    """
    for pattern in ("{name} ({source})", "{name} #{k}"):  # the second pattern is for names that are still equal
        counts = Counter(result.name for result in results)
        results = [
            replace(result, name=pattern.format(name=result.name, source=result.source, k=k))
            if counts[result.name] > 1
            else result
            for k, result in enumerate(results, 1)
        ]
    return list(results)


# Starts of RoboCasa episodes


def name_kitchens(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Return the results with an initial-state index and an environment seed for each episode that records its kitchen.

    An episode that has an index is unchanged; episodes of a user's own loop have no index. If a rollout of the same
    task began in the same kitchen, the episode gets the rollout's index and seed. Otherwise the kitchen's seed becomes
    both index and seed, so that the episodes of two users' loops can be paired.
    """
    # Suite, task and kitchen of a rollout's episode -> the episode's initial-state index and environment seed
    starts = {
        (header.benchmark, header.task_id, kitchen): (header.init_state_index, header.env_seed)
        for result in results
        for header in result.headers
        if header.init_state_index is not None and (kitchen := result.kitchens.get(header.key)) is not None
    }

    def identify_start(header: Header, kitchen: Kitchen | None) -> Header:
        # `kitchen` is the kitchen that the episode recorded; None = it recorded none, and the header stays unchanged.
        if header.init_state_index is not None or kitchen is None:
            return header
        start = starts.get((header.benchmark, header.task_id, kitchen), (kitchen.seed, kitchen.seed))
        return msgspec.structs.replace(header, init_state_index=start[0], env_seed=start[1])

    return [
        replace(
            result, headers=tuple(identify_start(header, result.kitchens.get(header.key)) for header in result.headers)
        )
        for result in results
    ]


# Caveats: episodes that were left out, and differences between the policies that metrics do not show


def comparison_warnings(results: Sequence[PolicyResults], left_out: int, *, paired: bool) -> Iterator[str]:
    """Yield the caveats of a comparison, each as a sentence, in the order to print.

    `left_out` is the number of pairs that some policy did not finish. If episodes are not `paired`, a caveat names the
    tasks that some policy did not run.
    """
    yield from provenance_marks.warn_of_choice(header.benchmark for result in results for header in result.headers)
    yield from provenance_marks.warn_of_identities(identity_cells(results))
    standins: dict[provenance_marks.Cell, bool] = {
        (result.name, suite): suite in result.standin_suites for result in results for suite, _ in result.tasks
    }
    yield from provenance_marks.warn_of_standins(standins)
    yield from provenance_marks.warn_of_mixtures(simulator_cells(results))
    if code_difference := find_other_code(results):
        yield f"The policies were recorded by different code: {code_difference}."
    # Archives do not say which code recorded them. If all sources are archives, no caveat about this is needed.
    unknown_code = [result.name for result in results if UNKNOWN in (result.code or (UNKNOWN,))]
    if unknown_code and any(result.code for result in results):
        names = ", ".join(unknown_code)
        yield f"The code that recorded {names} is unknown, and may differ from the code of other policies."
    for result in results:
        yield from (f"{result.name}: {clause}" for clause in result.left_out_clauses)
    versions = [result.versions for result in results]
    for name in dict.fromkeys(name for own_versions in versions for name in own_versions):
        distinct = dict.fromkeys(own_versions.get(name, "unknown") for own_versions in versions)
        # Other warnings name versions of the simulator and of this project.
        is_marked_elsewhere = physics_versions({name: ""}) or name.startswith("safevla-")
        if len(distinct) > 1 and ("unknown" in distinct or not is_marked_elsewhere):
            yield f"Results may depend on different versions of {name}: {' and '.join(distinct)}."
    # Each policy's set contains True if an episode has only net forces, and False if one has forces of single contacts.
    force_kinds = [{header.recorded_forces == (NET_FORCE,) for header in result.headers} for result in results]
    # Both kinds of forces occur in the compared episodes.
    if set().union(*force_kinds) == {True, False}:
        names = ", ".join(result.name for result, kinds in zip(results, force_kinds, strict=True) if True in kinds)
        yield f"Forces of single contacts are not comparable with net forces, which are recorded for {names}."
    if silent := ", ".join(name_silent_suites(results)):
        yield f"Only SR is compared in suites where a policy has no verdict, and in pooled suites: {silent}."
    if stopped := ", ".join(name_stopped_suites(results)):
        yield f"Only Safety is compared in suites where a violation stopped episodes, and in pooled suites: {stopped}."
    task_sets = [dict.fromkeys(result.tasks) for result in results]
    partly_run = [
        "/".join(task)
        for task in dict.fromkeys(chain(*task_sets))
        if not all(task in own_tasks for own_tasks in task_sets)
    ]
    if not paired and partly_run:
        tasks = list_first(partly_run, most=6)
        yield f"Policies are compared on the tasks that both ran. Not all policies ran {tasks}."
    if unjudged := _join_counts({result.name: int((~result.is_judged).sum()) for result in results}):
        yield (
            f"Episodes without a verdict: {unjudged}. Only SR counts such episodes. "
            "A policy that causes such episodes looks too safe."
        )
    if left_out:
        noun = "pair was" if left_out == 1 else "pairs were"
        crashed_side = "one side" if len(results) == 2 else "some policy"
        yield (
            f"{left_out} {noun} left out because {crashed_side} "
            "has an episode that crashed, was stopped or lost its record."
        )
    yield from dict.fromkeys(f"{result.source}: {sentence}." for result in results for sentence in result.left_out)
    # Only lost episodes that crashed or were stopped count here, not those whose record is missing.
    crashes = {result.name: sum(episode.outcome != "lost" for episode in result.lost) for result in results}
    if crashed := _join_counts(crashes):
        yield f"Crashed or stopped: {crashed}. Such episodes are left out; a policy that causes them looks too good."
    if paired and any(header.seed is None for result in results for header in result.headers):
        yield "Episodes that do not record their seed are paired by initial state alone."
    if 0 < sum(result.privileged for result in results) < len(results):
        names = ", ".join(result.name for result in results if result.privileged)
        yield f"Only some policies saw simulator state that no real robot has: {names}."


def _join_counts(counts: Mapping[str, int]) -> str:
    # Returns a text with the names and their counts; names with a count of 0 are left out.
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def name_silent_suites(results: Sequence[PolicyResults]) -> list[str]:
    """Return `policy on suite` for each suite in which no specification reached a verdict for that policy."""
    return [f"{result.name} on {suite}" for result in results for suite in result.suites_without_verdict]


def name_stopped_suites(results: Sequence[PolicyResults]) -> list[str]:
    """Return `policy on suite` for each suite in which a violation stopped an episode of that policy."""
    return [f"{result.name} on {suite}" for result in results for suite in result.suites_stopped_on_violation]


def find_other_code(results: Sequence[PolicyResults]) -> str:
    """Return a text that names two results and the code that recorded each, if this code differs; "" otherwise.
    Two results count only if they have the same version number of this project.
    """
    project_versions = [
        {version for name, version in result.versions.items() if name.startswith("safevla-")} for result in results
    ]
    for (first, first_versions), (second, second_versions) in combinations(
        zip(results, project_versions, strict=True), 2
    ):
        if first_versions == second_versions and any(
            is_other_code(code, other) for code in first.code for other in second.code
        ):
            return f"{first.name} by {' and '.join(first.code)}, {second.name} by {' and '.join(second.code)}"
    return ""


def simulator_cells(results: Sequence[PolicyResults]) -> dict[provenance_marks.Cell, dict[str, tuple[str, ...]]]:
    """Return (policy, suite) -> package that affects physics -> its versions. The additional key `results-version` has
    this project's results versions.
    """
    cells: dict[provenance_marks.Cell, dict[str, tuple[str, ...]]] = {}
    for result in results:
        for suite, versions in result.simulator_by_suite.items():
            released = {results_version(header.versions) for header in result.headers if header.benchmark == suite}
            results_versions = tuple(sorted(map(str, released - {None})))
            cell = cells.setdefault((result.name, suite), {})  # earlier results may have the same policy and suite
            for package, numbers in {**versions, "results-version": results_versions}.items():
                cell[package] = tuple(dict.fromkeys((*cell.get(package, ()), *numbers)))
    return cells


IDENTITY_FIELDS: Mapping[str, Callable[[Header], str]] = {
    "task definition": lambda header: (header.task_sha256 or "")[:12],
    "initial states": lambda header: (header.init_states_sha256 or "")[:12],
    # All official simulator code has the name `official`, since several distributions contain the same tasks.
    "simulator code": lambda header: (
        "official" if has_official_source(header) else (header.task_source or {}).get("sources_sha256", "")[:12]
    ),
}
"""Name -> a function that reads a field which proves the task that an episode ran. The value "" means unknown."""


def list_arms(header: Header) -> str:
    """Return the names of the arms in a header, joined; `one arm` if arms have no names."""
    return ", ".join(header.arms or ("one arm",))


SAME_TASKS = "Roll out both policies on the same tasks; `compare --changes` compares a suite with its changed version."


def require_same_tasks(*results: PolicyResults) -> None:
    """Raise `RunError` if two policies' episodes of a task differ in one of the `IDENTITY_FIELDS` or in the arms."""
    for identity, read_field in {**IDENTITY_FIELDS, "arms": list_arms}.items():
        values_by_task: list[dict[TaskKey, set[str]]] = [{} for _ in results]
        for task_values, result in zip(values_by_task, results, strict=True):
            for header in result.headers:
                if value := read_field(header):
                    task_values.setdefault((header.benchmark, header.task_id), set()).add(value)
        if conflict := find_conflict(values_by_task):
            first, second, tasks = conflict
            names = f"{results[first].name} and {results[second].name}"
            problem = f"{names} did not run the same tasks: they differ in {identity} in {'/'.join(tasks[0])}"
            raise RunError(problem, remedy=SAME_TASKS)


def find_conflict(sides: Sequence[Mapping[Key, object]]) -> tuple[int, int, list[Key]] | None:
    """Return the indices of two mappings that disagree, and the keys whose values differ; None if no two disagree."""
    first_seen: dict[Key, tuple[object, int]] = {}  # key -> first value, and index of the mapping with this value
    for index, side in enumerate(sides):
        conflicts: dict[int, list[Key]] = {}
        for key, value in side.items():
            first_value, first_index = first_seen.setdefault(key, (value, index))
            if first_value != value:
                conflicts.setdefault(first_index, []).append(key)
        if conflicts:  # if this mapping disagrees with several earlier mappings, report the first of them
            first = min(conflicts)
            return first, index, conflicts[first]
    return None


def identity_cells(results: Sequence[PolicyResults]) -> dict[provenance_marks.Cell, Counter[str]]:
    """Return (policy, suite) -> result of `judge_identity` -> number of episodes with this result."""
    # A result of `judge_identity` says that the episode ran the official task of its name, or why this is not certain.
    cells: dict[provenance_marks.Cell, Counter[str]] = {}
    for result in results:
        for header in result.headers:
            cells.setdefault((result.name, header.benchmark), Counter())[judge_identity(header)] += 1
    return cells


def list_first(texts: Sequence[str], most: int = 5) -> str:
    """Return the first `most` of the texts, joined with commas, and the number of remaining texts."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")
