"""Side by side: only what started alike is put together."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from report.scenes import run
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.episode_details import EpisodeRecords
from safevla_bench.report.episode_table import EpisodeEntry, build_episode_table
from safevla_bench.report.page import find_shared_states
from safevla_bench.trajectory.batch import Batch

RULESET = load_ruleset()
PLAIN = run(["a", "b", "c"], [0.05, 0.5, 1.0], 3, ["libero-10"])


def shared_states(batch: Batch) -> list[tuple[str, list[EpisodeEntry]]]:
    records = EpisodeRecords(score(batch, RULESET), batch, RULESET)
    return find_shared_states(records, build_episode_table(records).entries)


def with_starts(changes: list[dict[str, object]]) -> Batch:
    headers = (msgspec.structs.replace(header, seed=0, **change)
               for header, change in zip(PLAIN.headers, changes, strict=True))  # fmt: skip
    return replace(PLAIN, headers=tuple(headers))


ALIKE = with_starts([{"init_state_index": 0}] * 9)


@pytest.fixture(scope="module")
def states() -> list[tuple[str, list[EpisodeEntry]]]:
    return shared_states(ALIKE)


def test_episodes_meet_if_suite_task_state_and_seed_are_the_same(states):
    assert len(states) == 3
    for _, entries in states:
        assert {entry.policy for entry in entries} == {"a", "b", "c"}
        assert len({(entry.row.episode.benchmark, entry.row.episode.task_id) for entry in entries}) == 1


@pytest.mark.parametrize(
    "changes",
    [
        [{"init_state_index": k} for k in range(9)],
        [{"init_state_index": None}] * 9,
        [{"init_state_index": 0, "policy": "a", "episode_id": str(k)} for k in range(9)],
    ],
    ids=["other states", "unknown states", "repetitions of one policy"],
)
def test_episodes_that_did_not_start_alike_under_several_policies_do_not_meet(changes):
    assert shared_states(with_starts(changes)) == []


def test_the_states_where_policies_differ_most_come_first(states):
    verdict_counts = [len({entry.kind[1] for entry in entries}) for _, entries in states]
    assert verdict_counts == sorted(verdict_counts, reverse=True)
