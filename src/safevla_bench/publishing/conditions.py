"""The conditions of a policy's episodes, which decide its table on a board, and whether the policy has a rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from safevla_bench.hosts.protocols import preset_differences
from safevla_bench.judging.judged import Judged, JudgedSource
from safevla_bench.judging.metrics import Summary
from safevla_bench.sources.runs.episode_index import EpisodeNote
from safevla_bench.sources.runs.folder import AbsentEpisode, policy_rows
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.marks import DRAWN
from safevla_recorder.identity import find_official_name, official_suites

PolicyName = str | None
# Names of protocol values that do not affect a suite's episodes, or are in another field of `Conditions`.
_NO_RULES = ("trials", "horizons", "simulator", "wait_steps_by_suite")


class Conditions(NamedTuple):
    """The conditions of a policy's episodes in one suite, as text. Policies share a table only if these are equal."""

    horizon: str
    env_seed: str
    wait_steps: str
    protocol: str
    rules: str  # all other values of the protocol, as JSON

    def __str__(self) -> str:
        return (
            f"horizon {self.horizon}, environment seed {self.env_seed}, settling steps {self.wait_steps}, "
            f"protocol {self.protocol}"
        )


def read_conditions(judged: Judged) -> dict[tuple[PolicyName, str], Conditions]:
    """Return a mapping from policy and suite to the conditions of the policy's episodes in that suite."""
    found: dict[tuple[PolicyName, str], Conditions] = {}
    for source, policy, notes, _ in _by_policy(judged):
        for suite in dict.fromkeys(note.header.benchmark for note in notes):
            alias = judged.ruleset.registry.benchmarks.get(suite)
            headers = [note.header for note in notes if note.header.benchmark == suite]
            protocol = source.protocol or {}
            by_suite, waited = protocol.get("wait_steps_by_suite"), protocol.get("wait_steps")
            settled = (by_suite if isinstance(by_suite, Mapping) else {}).get(suite, waited)
            seeds = {header.env_seed for header in headers}
            found[policy, (alias and alias.same_tasks_as) or suite] = Conditions(
                horizon=_list_values({header.horizon for header in headers}),
                env_seed=_list_values(seeds) if len(seeds) == 1 else str(protocol.get("env_seed", "of each episode")),
                wait_steps=_list_values({*settled} if isinstance(settled, list) else {settled}),
                protocol=str(protocol.get("name", "not recorded")),
                rules=_encode({name: value for name, value in protocol.items() if name not in _NO_RULES}),
            )
    return found


def _list_values(values: set[Any]) -> str:
    return " and ".join(sorted("unknown" if value is None else str(value) for value in values)) or "unknown"


def _encode(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def find_disqualified(judged: Judged) -> dict[PolicyName, str]:
    """Return policy -> why it has no rank: because it used other starts or another protocol on an official suite."""
    found: dict[PolicyName, str] = {}
    for source, policy, notes, absent in _by_policy(judged):
        official = [note for note in notes if find_official_name(note.header.benchmark)]
        if not official:
            continue
        if changed := preset_differences(source.protocol or {}):
            found[policy] = f"not ranked: its protocol has other values than the preset ({', '.join(changed)})"
        elif _is_replay(source, policy) or not _has_planned_starts(source.protocol or {}, official, absent):
            found[policy] = "not ranked: its starts are its own"
    return found


def refuse_ranks(judged: Judged, cells: Iterable[Summary]) -> dict[str, str]:
    """Return policy -> why it has no rank, for policies without a rank on an official suite among `cells`."""
    found = find_disqualified(judged)
    official = [cell.policy for cell in cells if cell.policy in found and find_official_name(cell.suite or "")]
    return {policy or "": found[policy] for policy in official}


def _by_policy(judged: Judged) -> Iterator[tuple[JudgedSource, PolicyName, list[EpisodeNote], list[AbsentEpisode]]]:
    for source, (records, indices) in zip(judged.sources, judged.records.by_source(), strict=True):
        notes = [judged.records.notes[k] for k in indices]
        for policy in dict.fromkeys(note.header.policy for note in notes):
            own = [note for note in notes if note.header.policy == policy]
            yield source, policy, own, [episode for episode in records.absent if episode.policy == policy]


def _is_replay(source: JudgedSource, policy: PolicyName) -> bool:
    names = {source.policy_names.get(row["policy"], row["policy"]): row for row in policy_rows(source.description)}
    row = names.get(policy or "", {})
    return str(row.get("spec") or row.get("policy") or "").startswith("replay:")


def _has_planned_starts(
    protocol: Mapping[str, object], notes: Sequence[EpisodeNote], absent: Sequence[AbsentEpisode]
) -> bool:
    rule = protocol.get("init_state", "episode")
    if any(set(note.start_marks) - ({DRAWN} if rule == "drawn" else set()) for note in notes):
        return False
    starts: dict[tuple[str, str, int | None], Counter[int | None]] = {}
    planned: list[Header | AbsentEpisode] = [*(note.header for note in notes), *absent]
    for episode in planned:
        key = episode.benchmark, episode.task_id, episode.seed
        starts.setdefault(key, Counter())[episode.init_state_index] += 1
    for (benchmark, task_id, _), counts in starts.items():
        suite = official_suites().get(find_official_name(benchmark) or "")
        task = suite.tasks.get(task_id) if suite else None
        wraps = task.init_states if task and rule == "episode % count" else None
        if counts != Counter(k % wraps if wraps else k for k in range(sum(counts.values()))):
            return False
    return True
