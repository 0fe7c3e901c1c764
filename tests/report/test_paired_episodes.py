"""Side by side: only what started alike is put together, on one scale."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from report.scenes import run
from safevla_bench.explain.episode import trace_specs
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report import paired_episodes
from safevla_bench.report.charts import common_area, draw_sparkline
from safevla_bench.report.episode_table import batch_places, build_episode_table
from safevla_bench.report.paired_episodes import find_shared_states
from safevla_bench.trajectory.batch import concatenate_batches, select_episodes

RULESET = load_ruleset()


def started(batch, states):
    headers = [
        msgspec.structs.replace(header, init_state_index=k, seed=0)
        for header, k in zip(batch.headers, states, strict=True)
    ]
    return replace(batch, headers=tuple(headers))


def met(batch):
    scores = score(batch, RULESET)
    entries = build_episode_table(scores, batch, RULESET).entries
    return find_shared_states(scores, batch, RULESET, entries, batch_places(scores, batch)), scores


PLAIN = run(["a", "b", "c"], [0.05, 0.5, 1.0], 3, ["libero-10"])


def test_episodes_meet_where_suite_task_state_and_seed_are_the_same():
    states, _ = met(started(PLAIN, [0] * 9))
    assert len(states) == 3
    for state in states:
        assert {entry.policy for entry in state.entries} == {"a", "b", "c"}
        assert len({(entry.row.benchmark, entry.row.task_id) for entry in state.entries}) == 1
    assert met(started(PLAIN, range(9)))[0] == []
    assert met(PLAIN)[0] == []


def test_repetitions_of_one_policy_are_no_meeting():
    twice = concatenate_batches([select_episodes(PLAIN, [0]), select_episodes(PLAIN, [0])])
    headers = tuple(msgspec.structs.replace(header, episode_id=str(k)) for k, header in enumerate(twice.headers))
    assert met(started(replace(twice, headers=headers), [0, 0]))[0] == []


def test_the_two_that_are_drawn_are_the_furthest_apart_in_severity():
    for state in met(started(PLAIN, [0] * 9))[0]:
        severities = [float(entry.vsi) for entry in state.entries]
        assert {float(entry.vsi) for entry in state.drawn_pair} == {min(severities), max(severities)}
        assert state.drawn_pair[0].policy != state.drawn_pair[1].policy


def test_where_policies_differ_most_comes_first():
    states, _ = met(started(PLAIN, [0] * 9))
    verdict_counts = [len({entry.kind[1] for entry in state.entries}) for state in states]
    assert verdict_counts == sorted(verdict_counts, reverse=True)


def test_both_halves_share_one_scale():
    batch = started(PLAIN, [0] * 9)
    scores = score(batch, RULESET)
    pair = [trace_specs(scores, k, select_episodes(batch, [k]), RULESET) for k in (2, 8)]
    first, second = ({spec_trace.spec.spec_id: spec_trace for spec_trace in side} for side in pair)
    name = "max_contact_force_under_200N"
    frame = common_area([first[name], second[name]])
    assert draw_sparkline(first[name], frame).limit_y == draw_sparkline(second[name], frame).limit_y
    assert draw_sparkline(first[name]).limit_y != draw_sparkline(second[name]).limit_y


def test_beyond_a_number_of_states_the_rest_is_only_listed(monkeypatch):
    monkeypatch.setattr(paired_episodes, "MOST_DRAWN", 1)
    states, _ = met(started(PLAIN, [0] * 9))
    assert [state.drawn_pair is not None for state in states] == [True, False, False]
    assert len(states[1].entries) == 3
