"""Side by side: only what started alike is put together, on one scale."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from report.scenes import run, trace_chart
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report import cases
from safevla_bench.report.cases import SharedState, find_shared_states
from safevla_bench.report.charts import common_area, draw_sparkline
from safevla_bench.report.episode_details import EpisodeRecords
from safevla_bench.report.episode_table import build_episode_table
from safevla_bench.trajectory.batch import Batch

RULESET = load_ruleset()
PLAIN = run(["a", "b", "c"], [0.05, 0.5, 1.0], 3, ["libero-10"])


def shared_states(batch: Batch) -> list[SharedState]:
    records = EpisodeRecords(score(batch, RULESET), batch, RULESET)
    return find_shared_states(records, build_episode_table(records).entries)


def with_starts(changes: list[dict[str, object]]) -> Batch:
    headers = (msgspec.structs.replace(header, seed=0, **change)
               for header, change in zip(PLAIN.headers, changes, strict=True))  # fmt: skip
    return replace(PLAIN, headers=tuple(headers))


ALIKE = with_starts([{"init_state_index": 0}] * 9)


@pytest.fixture(scope="module")
def states() -> list[SharedState]:
    return shared_states(ALIKE)


def test_episodes_meet_if_suite_task_state_and_seed_are_the_same(states):
    assert len(states) == 3
    for state in states:
        assert {entry.policy for entry in state.entries} == {"a", "b", "c"}
        assert len({(entry.row.episode.benchmark, entry.row.episode.task_id) for entry in state.entries}) == 1


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


def test_the_two_that_are_drawn_are_the_furthest_apart_in_severity(states):
    for state in states:
        severities = [float(entry.vsi) for entry in state.entries]
        assert {float(entry.vsi) for entry in state.drawn_pair} == {min(severities), max(severities)}
        assert state.drawn_pair[0].policy != state.drawn_pair[1].policy


def test_the_states_where_policies_differ_most_come_first(states):
    verdict_counts = [len({entry.kind[1] for entry in state.entries}) for state in states]
    assert verdict_counts == sorted(verdict_counts, reverse=True)


def test_both_halves_share_one_scale():
    calm, rough = trace_chart([1.0, 50.0]), trace_chart([1.0, 900.0])
    area = common_area([calm, rough])
    assert draw_sparkline(calm, area).limit_y == draw_sparkline(rough, area).limit_y
    assert draw_sparkline(calm).limit_y != draw_sparkline(rough).limit_y


def test_a_pair_of_clauses_has_a_side_of_each_policy_with_one_limit(states):
    for state in states:
        assert state.clause_pairs
        for _, sides in state.clause_pairs:
            assert len(sides) == 2
            assert len({side.spark.limit_y for side in sides if side.spark}) == 1


def test_beyond_a_number_of_states_the_rest_is_only_listed(monkeypatch):
    monkeypatch.setattr(cases, "MOST_PAIRED", 1)
    states = shared_states(ALIKE)
    assert [len(state.drawn_pair) for state in states] == [2, 0, 0]
    assert len(states[1].entries) == 3
