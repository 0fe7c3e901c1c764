"""The conditions of a policy's episodes. They determine the policy's table on a board, and whether it is ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import or_
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
# Names of protocol values that `Conditions.rules` omits: they do not affect episodes, or another field contains them.
_EXCLUDED_RULES = ("trials", "horizons", "simulator", "wait_steps_by_suite")


class Conditions(NamedTuple):
    """The conditions of a policy's episodes in a suite, as text. Only policies with equal conditions share a table."""

    horizon: str
    env_seed: str
    wait_steps: str
    protocol: str
    rules: str  # the protocol's other values that affect episodes, as JSON

    def __str__(self) -> str:
        # Returns the conditions as text for a note below a table. `rules` are left out, because they are long.
        start = f"environment seed {self.env_seed}, settling steps {self.wait_steps}"
        return f"horizon {self.horizon}, {start}, protocol {self.protocol}"


def read_conditions(judged: Judged) -> dict[tuple[PolicyName, str], Conditions]:
    """Return a mapping from policy and suite to the conditions of the policy's episodes in that suite."""
    # Sets of values for each (policy, suite), from all sources and all suites with equal tasks.
    # `_iterate_policies` yields one note for each recorded episode, with the episode's header.
    values: dict[tuple[PolicyName, str], tuple[set[Any], ...]] = {}
    for source, policy, notes, _ in _iterate_policies(judged):
        for suite in dict.fromkeys(note.header.benchmark for note in notes):
            official_name = judged.ruleset.registry.canonical_suite(suite)
            headers = [note.header for note in notes if note.header.benchmark == suite]
            protocol = source.protocol or {}  # the rules by which a run's episodes start and end; {} if unknown
            # Settling steps before record 0: a number, or a list of several numbers. Suites may differ in this number.
            steps_by_suite, wait_steps = protocol.get("wait_steps_by_suite"), protocol.get("wait_steps")
            if isinstance(steps_by_suite, Mapping):
                wait_steps = steps_by_suite.get(suite, wait_steps)
            # One set of values for each field of `Conditions`, except that there are two sets for `env_seed`.
            # The two sets for `env_seed` are the episodes' seeds, and the protocol's rule for seeds.
            new_values = (
                {header.horizon for header in headers},
                {header.env_seed for header in headers},
                {str(protocol.get("env_seed", "of each episode"))},
                {*(wait_steps or [None])} if isinstance(wait_steps, list) else {wait_steps},
                {str(protocol.get("name", "not recorded"))},
                {_encode({name: value for name, value in protocol.items() if name not in _EXCLUDED_RULES})},
            )
            cell = policy, official_name
            values[cell] = tuple(map(or_, values.get(cell, new_values), new_values))  # or_: the union of two sets
    conditions = {}
    for cell, (horizons, seeds, seed_rules, *others) in values.items():
        shown_seeds = seeds if len(seeds) == 1 else seed_rules  # a common seed, or the rule if seeds differ
        conditions[cell] = Conditions(*map(_join_values, (horizons, shown_seeds, *others)))
    return conditions


def _join_values(values: set[Any]) -> str:
    # Returns a text such as `10 and unknown`; None is an unknown value.
    return " and ".join(sorted("unknown" if value is None else str(value) for value in values))


def _encode(value: object) -> str:
    # Returns a value as JSON with sorted keys, so that equal values give equal texts.
    return msgspec.json.encode(value, order="sorted").decode()


def find_disqualified(judged: Judged) -> dict[PolicyName, str]:
    """Return policy -> reason why the policy has no rank: an official suite with changed starts or protocol."""
    reasons: dict[PolicyName, dict[str, None]] = {}  # the inner dictionary is a set of reasons that keeps their order
    for source, policy, notes, absent in _iterate_policies(judged):
        # Each note contains facts about one recorded episode; `absent` lists the episodes without a record.
        # Only suites with the name of an official suite matter.
        official = [note for note in notes if find_official_name(note.header.benchmark)]
        if not official:
            continue
        changed_values = preset_differences(source.protocol or {})
        if changed_values:
            reason = f"values of its protocol differ from the preset ({', '.join(changed_values)})"
        # A replay starts where its recorded episodes started, even if other starts were planned.
        elif _is_replay(source, policy) or not _has_planned_starts(source.protocol or {}, official, absent):
            reason = "its starts are not the official ones"
        else:
            continue
        reasons.setdefault(policy, {})[reason] = None
    return {policy: f"not ranked: {' and '.join(texts)}" for policy, texts in reasons.items()}


def refuse_ranks(judged: Judged, cells: Iterable[Summary]) -> dict[str, str]:
    """Return policy -> reason for each policy in the `cells` that has no rank on an official suite."""
    # Each cell contains the numbers of a policy on a suite. The key of a policy without a name is "".
    reasons = find_disqualified(judged)
    refused = [cell.policy for cell in cells if cell.policy in reasons and find_official_name(cell.suite or "")]
    return {policy or "": reasons[policy] for policy in refused}


def _iterate_policies(
    judged: Judged,
) -> Iterator[tuple[JudgedSource, PolicyName, list[EpisodeNote], list[AbsentEpisode]]]:
    # Yields (source, policy, recorded episodes, episodes without a record) for each policy of each source.
    # Policies without a recorded episode are left out.
    for source, (records, indices) in zip(judged.sources, judged.records.by_source(), strict=True):
        notes = [judged.records.notes[k] for k in indices]
        for policy in dict.fromkeys(note.header.policy for note in notes):
            policy_notes = [note for note in notes if note.header.policy == policy]
            yield source, policy, policy_notes, [episode for episode in records.absent if episode.policy == policy]


def _is_replay(source: JudgedSource, policy: PolicyName) -> bool:
    # Returns whether the policy replays recorded actions, according to run.json.
    # A row of run.json describes one policy. `policy_names` maps recorded names to new names.
    rows, names = policy_rows(source.description), source.policy_names
    row_of_policy = {names.get(row["policy"], row["policy"]): row for row in rows}
    row = row_of_policy.get(policy or "", {})
    return str(row.get("spec") or row.get("policy") or "").startswith("replay:")


def _has_planned_starts(
    protocol: Mapping[str, object], notes: Sequence[EpisodeNote], absent: Sequence[AbsentEpisode]
) -> bool:
    # Returns whether each task's episodes begin at the starts that the protocol's rule plans for them.
    # `notes` are the recorded episodes, and `absent` the planned episodes without a record.
    # A start is the index of an initial state.
    rule = protocol.get("init_state", "episode")
    allowed_marks = {DRAWN} if rule == "drawn" else set()
    if any(set(note.start_marks) - allowed_marks for note in notes):  # the suite does not define starts of this kind
        return False
    # (suite, task, seed) -> number of episodes for each start
    starts: dict[tuple[str, str, int | None], Counter[int | None]] = {}
    planned: list[Header | AbsentEpisode] = [*(note.header for note in notes), *absent]
    for episode in planned:
        key = episode.benchmark, episode.task_id, episode.seed
        starts.setdefault(key, Counter())[episode.init_state_index] += 1
    # For each task and seed, the starts must be 0, 1, 2, ..., or these numbers modulo the number of initial states.
    for (benchmark, task_id, _), episodes_by_start in starts.items():
        suite = official_suites().get(find_official_name(benchmark) or "")
        task = suite.tasks.get(task_id) if suite else None
        start_count = task.init_states if task and rule == "episode % count" else None
        episode_numbers = range(sum(episodes_by_start.values()))
        if episodes_by_start != Counter(k % start_count if start_count else k for k in episode_numbers):
            return False
    return True
