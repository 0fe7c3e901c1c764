"""The plan follows from the request alone; its shards and its queue hand out every episode exactly once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.errors import RunError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.task import Task
from safevla_bench.rollout.plan import EpisodeQueue, Shard, cut_plan, plan_episodes, policy_seed, scene_of

STILL = (0.0,) * 6 + (-1.0,)

TASKS = [Task("libero-object", f"task_{k}", k, f"name {k}", "do it", STILL, 50) for k in (0, 3)]
RULES = load_protocol()


def test_the_preset_has_the_published_values():
    assert (RULES.wait_steps, RULES.rest_steps, RULES.env_seed, RULES.stop_at_success) == (10, 0, 7, True)
    horizons = {suite: RULES.horizons[f"libero-{suite}"] for suite in ("spatial", "object", "goal", "10")}
    assert horizons == {"spatial": 220, "object": 280, "goal": 300, "10": 520}


def test_under_openpi_s_protocol_the_resets_of_a_task_s_earlier_episodes_are_made_again():
    planned = plan_episodes(TASKS, 3, ["a"], load_protocol("openpi"))
    assert [episode.start.earlier_resets for episode in planned] == [0, 1, 2, 0, 1, 2]
    assert {episode.start.env_seed for episode in planned} == {7}
    assert {episode.start.earlier_resets for episode in plan_episodes(TASKS, 3, ["a"], RULES)} == {None}


def test_a_suite_settles_as_its_own_benchmark_does():
    kitchen = Task("robocasa-365", "OpenDrawer", 0, "OpenDrawer", "open the drawer", STILL, None, 100)
    settled = plan_episodes([TASKS[0], kitchen], 1, ["a"], RULES)
    assert [episode.start.wait_steps for episode in settled] == [10, 0]
    assert {episode.start.rest_steps for episode in settled} == {0}


def test_every_policy_meets_the_same_episodes_in_the_same_order():
    episodes = plan_episodes(TASKS, 2, ["a", "b"], RULES)
    assert [planned.episode_id for planned in episodes[:4]] == [
        "a/libero-object/task_0/ep_000",
        "a/libero-object/task_0/ep_001",
        "a/libero-object/task_3/ep_000",
        "a/libero-object/task_3/ep_001",
    ]
    starts = [(planned.task, planned.start, planned.policy_seed, planned.horizon) for planned in episodes]
    assert starts[:4] == starts[4:]
    assert [planned.start.init_state_index for planned in episodes[:4]] == [0, 1, 0, 1]
    assert {planned.horizon for planned in episodes} == {280}
    assert len({planned.episode_id for planned in episodes}) == 8


def test_the_policy_seed_differs_by_seed_task_and_episode():
    seeds = {policy_seed(seed, task, episode) for seed in (0, 1) for task in TASKS for episode in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert policy_seed(0, TASKS[0], 0) == 0x4C422602  # printf 0/libero-object/task_0/0 | sha256sum


def test_max_steps_overrides_the_horizon():
    assert {planned.horizon for planned in plan_episodes(TASKS, 1, ["a"], RULES, max_steps=5)} == {5}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tasks": []}, "nothing to run"),
        ({"policies": []}, "nothing to run"),
        ({"policies": ["a", "a"]}, "named twice"),
        ({"episodes": 51}, "50 initial states, 51 are asked for"),
        ({"tasks": [Task("other", "t", 0, "n", "i", STILL)]}, "no horizon for 'other'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(change, problem):
    plan = {"tasks": TASKS, "episodes": 1, "policies": ["a"], **change}
    with pytest.raises(RunError, match=problem):
        plan_episodes(**plan, rules=RULES)


LONG_PLAN = plan_episodes(make_host("fake").tasks("fake"), 4, ["a", "b"], load_protocol())
HORIZONS = st.lists(st.integers(min_value=1, max_value=900), min_size=1, max_size=40)


def with_horizons(horizons):
    return [replace(LONG_PLAN[0], horizon=horizon) for horizon in horizons]


@given(HORIZONS, st.data())
def test_shards_are_stretches_that_cover_the_plan_and_none_is_empty(horizons, data):
    count = data.draw(st.integers(min_value=1, max_value=len(horizons)))
    starts = cut_plan(with_horizons(horizons), count)
    assert (starts[0], starts[-1], len(starts)) == (0, len(horizons), count + 1)
    assert all(first < end for first, end in pairwise(starts))


@given(HORIZONS, st.data())
def test_a_shard_is_longer_than_its_part_by_one_episode_at_most_if_episodes_are_alike(horizons, data):
    count = data.draw(st.integers(min_value=1, max_value=len(horizons)))
    lengths = [300 + horizon for horizon in horizons]
    parts = [sum(lengths[first:end]) for first, end in pairwise(cut_plan(with_horizons(lengths), count))]
    if len(lengths) >= 4 * count:  # else a shard of one may be all there is to give
        assert max(abs(part - sum(lengths) / count) for part in parts) <= max(lengths)


def test_as_many_shards_as_scenes_split_none():
    for first, end in pairwise(cut_plan(LONG_PLAN, 6)):
        assert len(set(map(scene_of, LONG_PLAN[first:end]))) == 1


def test_more_shards_than_episodes_are_refused():
    with pytest.raises(RunError, match="24 episodes cannot be cut into 25 shards"):
        cut_plan(LONG_PLAN, 25)


@pytest.mark.parametrize("text", ["0/4", "5/4", "0/0"])
def test_shards_count_from_one(text):
    with pytest.raises(RunError, match=f"no shard {text}") as raised:
        Shard.parse(text)
    assert "from 1" in raised.value.remedy


@pytest.mark.parametrize("text", ["", "1", "1/", "a/4", "-1/4", "1/2/3"])
def test_what_is_not_a_shard_is_refused_with_an_example(text):
    with pytest.raises(RunError, match="is no shard") as raised:
        Shard.parse(text)
    assert "2/8" in raised.value.remedy


FAKE_TASKS = make_host("fake").tasks("fake")
FAKE_EPISODES = plan_episodes(FAKE_TASKS, 3, ["a", "b"], load_protocol())


def test_one_worker_takes_them_in_the_order_of_the_plan():
    shares, scene, episodes = EpisodeQueue(FAKE_EPISODES), None, []
    while planned := shares.take_next(scene, []):
        episodes.append(planned)
        scene = scene_of(planned)
    assert episodes == list(FAKE_EPISODES)
    assert not shares


def test_a_worker_stays_at_its_scene_then_goes_where_nobody_is_then_helps_where_most_is_left():
    shares = EpisodeQueue(FAKE_EPISODES[:6])  # two scenes of three
    planned = shares.take_next(None, [])
    other = shares.take_next(None, [scene_of(planned)])
    assert (planned, other) == (FAKE_EPISODES[0], FAKE_EPISODES[3])
    assert [shares.take_next(scene_of(planned), [scene_of(other)]) for _ in range(2)] == list(FAKE_EPISODES[1:3])
    assert shares.take_next(scene_of(planned), [scene_of(other)]) == FAKE_EPISODES[4]


def test_an_episode_given_back_comes_first_in_its_scene():
    shares = EpisodeQueue(FAKE_EPISODES[:3])
    episode = shares.take_next(None, [])
    shares.put_back(episode)
    assert shares.take_next(scene_of(episode), []) == episode


@given(st.lists(st.integers(min_value=0, max_value=3), min_size=30, max_size=30))
def test_whoever_asks_next_every_episode_is_taken_exactly_once(turns):
    shares, episodes = EpisodeQueue(FAKE_EPISODES), []
    at: dict[int, object] = {}
    for worker in turns:
        planned = shares.take_next(at.get(worker), [scene for other, scene in at.items() if other != worker])
        if planned:
            episodes.append(planned)
            at[worker] = scene_of(planned)
    assert len(episodes) == len(FAKE_EPISODES)
    assert {planned.episode_id for planned in episodes} == {planned.episode_id for planned in FAKE_EPISODES}
