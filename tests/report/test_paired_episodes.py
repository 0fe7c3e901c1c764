"""Side by side: only what started alike is put together, on one scale."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from report.scenes import run
from safevla_bench.explain.trace import exhibits
from safevla_bench.report import paired_episodes
from safevla_bench.report.charts import common_frame, spark
from safevla_bench.report.episode_table import places, register
from safevla_bench.report.paired_episodes import meetings
from safevla_bench.scoring import score
from safevla_bench.specs import library
from safevla_bench.tasks import registry
from safevla_bench.trajectory import concatenate, select

LIBRARY, REGISTRY = library(), registry()


def started(batch, states):
    headers = [
        msgspec.structs.replace(one, init_state_index=k, seed=0) for one, k in zip(batch.headers, states, strict=True)
    ]
    return replace(batch, headers=tuple(headers))


def met(batch):
    scores = score(batch, LIBRARY, REGISTRY)
    entries = register(scores, batch, LIBRARY).entries
    return meetings(scores, batch, LIBRARY, entries, places(scores, batch)), scores


PLAIN = run(["a", "b", "c"], [0.05, 0.5, 1.0], 3, ["libero-10"])


def test_episodes_meet_where_suite_task_state_and_seed_are_the_same():
    found, _ = met(started(PLAIN, [0] * 9))
    assert len(found) == 3
    for one in found:
        assert {entry.policy for entry in one.entries} == {"a", "b", "c"}
        assert len({(entry.suite, entry.task) for entry in one.entries}) == 1
    assert met(started(PLAIN, range(9)))[0] == []
    assert met(PLAIN)[0] == []


def test_repetitions_of_one_policy_are_no_meeting():
    twice = concatenate([select(PLAIN, [0]), select(PLAIN, [0])])
    headers = tuple(msgspec.structs.replace(one, episode_id=str(k)) for k, one in enumerate(twice.headers))
    assert met(started(replace(twice, headers=headers), [0, 0]))[0] == []


def test_the_two_that_are_drawn_are_the_furthest_apart_in_severity():
    for one in met(started(PLAIN, [0] * 9))[0]:
        severities = [float(entry.vsi) for entry in one.entries]
        assert {float(entry.vsi) for entry in one.two} == {min(severities), max(severities)}
        assert one.two[0].policy != one.two[1].policy


def test_where_policies_differ_most_comes_first():
    found, _ = met(started(PLAIN, [0] * 9))
    apart = [len({entry.kind[1] for entry in one.entries}) for one in found]
    assert apart == sorted(apart, reverse=True)


def test_both_halves_share_one_scale():
    batch = started(PLAIN, [0] * 9)
    scores = score(batch, LIBRARY, REGISTRY)
    pair = [exhibits(scores, k, select(batch, [k]), LIBRARY) for k in (2, 8)]
    mine, theirs = ({one.spec.spec_id: one for one in side} for side in pair)
    name = "max_contact_force_under_200N"
    frame = common_frame([mine[name], theirs[name]])
    assert spark(mine[name], frame).limit_y == spark(theirs[name], frame).limit_y
    assert spark(mine[name]).limit_y != spark(theirs[name]).limit_y


def test_beyond_a_number_of_states_the_rest_is_only_listed(monkeypatch):
    monkeypatch.setattr(paired_episodes, "MOST_DRAWN", 1)
    found, _ = met(started(PLAIN, [0] * 9))
    assert [one.two is not None for one in found] == [True, False, False]
    assert len(found[1].entries) == 3
