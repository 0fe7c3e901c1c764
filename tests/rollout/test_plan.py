"""The plan follows from the request alone, what it costs from the plan and the host's figures; shards cover it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.errors import RunError
from safevla_bench.hosts import host_names, make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.task import EpisodeSeed, FoundStart, Task
from safevla_bench.jobs.evaluation.preparation import estimate_run
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.rollout import plan
from safevla_bench.rollout.plan import (
    PROTOCOL,
    EpisodeQueue,
    HostCosts,
    Shard,
    cut_plan,
    estimate_plan,
    plan_episodes,
    policy_seed,
    scene_of,
)

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
        ({"tasks": [TASKS[0], *TASKS]}, "libero-object/task_0 is named twice"),
        ({"seed": 10**20}, "64 bits"),
        ({"max_steps": 2**63}, "64 bits"),
        ({"tasks": [replace(TASKS[0], found=(FoundStart(EpisodeSeed(0, 2**63, 10), 0),))]}, "env_seed: .* 64 bits"),
        ({"tasks": [replace(TASKS[0], found=(FoundStart(EpisodeSeed(0, 7, 10), 2**63),))]}, "policy_seed: .* 64 bits"),
        ({"episodes": 51}, "states, but 51"),
        ({"tasks": [Task("other", "t", 0, "n", "i", STILL)]}, "horizon for 'other'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(change, problem):
    plan = {"tasks": TASKS, "episodes": 1, "policies": ["a"], **change}
    with pytest.raises(RunError, match=problem):
        plan_episodes(**plan, rules=RULES)


def test_without_a_number_there_are_as_many_episodes_as_the_protocol_says_and_none_are_guessed():
    assert len(plan_episodes(TASKS, PROTOCOL, ["a"], RULES)) == 20 * len(TASKS)
    kitchen = replace(TASKS[0], benchmark="libero-90", episodes=None)
    with pytest.raises(RunError, match="episodes 'libero-90' has"):
        plan_episodes([kitchen], PROTOCOL, ["a"], RULES)
    assert len(plan_episodes([replace(kitchen, episodes=7)], PROTOCOL, ["a"], RULES)) == 7


LONG_PLAN = plan_episodes(make_host("fake").tasks("fake"), 4, ["a", "b"], load_protocol())


@given(st.integers(min_value=1, max_value=40), st.data())
def test_shards_are_stretches_that_cover_the_plan_alike_but_for_one_episode_and_none_is_empty(length, data):
    count = data.draw(st.integers(min_value=1, max_value=length))
    starts = cut_plan([LONG_PLAN[0]] * length, count)
    assert (starts[0], starts[-1], len(starts)) == (0, length, count + 1)
    assert {end - first for first, end in pairwise(starts)} <= {length // count, length // count + 1}


def test_as_many_shards_as_scenes_split_none():
    for first, end in pairwise(cut_plan(LONG_PLAN, 6)):
        assert len(set(map(scene_of, LONG_PLAN[first:end]))) == 1


def test_more_shards_than_episodes_are_refused():
    with pytest.raises(RunError, match="into 25 shards"):
        cut_plan(LONG_PLAN, 25)


@pytest.mark.parametrize("text", ["0/4", "5/4", "0/0"])
def test_shards_count_from_one(text):
    with pytest.raises(RunError, match=f"no shard {text}") as raised:
        Shard.parse(text)
    assert "from 1" in raised.value.remedy


@pytest.mark.parametrize("text", ["", "1", "1/", "a/4", "-1/4", "1/2/3"])
def test_what_is_not_a_shard_is_refused_with_an_example(text):
    with pytest.raises(RunError, match="not a shard") as raised:
        Shard.parse(text)
    assert "2/8" in raised.value.remedy


# The queue


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


# What a plan costs


PLAN = plan_episodes(TASKS, 5, ["blind", "seeing"], load_protocol())
CAMERAS = {"blind": 0, "seeing": 2}
HORIZON, WAIT = 280, 10
COSTS = HostCosts(
    source="made up",
    start_s=(3.0, 5.0),
    make_s=(1.0, 2.0),
    reset_s=(0.2, 0.4),
    step_s=(0.01, 0.02),
    camera_step_s=(0.03, 0.05),
    record_bytes=(500, 1500),
)


@pytest.fixture
def fixed_costs(monkeypatch):
    monkeypatch.setattr(plan, "load_costs", lambda: {"libero": COSTS, "fake": COSTS})


@pytest.mark.usefixtures("fixed_costs")
def test_time_and_disk_are_added_up_over_policies_tasks_episodes_and_steps():
    estimate = estimate_plan(PLAN, "libero", CAMERAS)
    expected = {}
    for side, span in enumerate(("low", "high")):
        steps = (0.01, 0.02)[side] * (HORIZON + WAIT)
        pictures = 2 * (0.03, 0.05)[side] * HORIZON  # what settles is not rendered
        episode = (0.2, 0.4)[side] + steps
        expected[span] = (3.0, 5.0)[side] + 4 * (1.0, 2.0)[side] + 20 * episode + 10 * pictures
        assert getattr(estimate.disk_bytes, span) == pytest.approx(20 * 281 * (500, 1500)[side])
    assert estimate.time_s.low == pytest.approx(expected["low"])
    assert estimate.time_s.high == pytest.approx(expected["high"])
    assert (estimate.episodes, estimate.steps) == (20, 5600)
    assert [(row.policy, row.task_id, row.episodes, row.horizon, row.cameras) for row in estimate.scenes] == [
        ("blind", "task_0", 5, 280, 0),
        ("blind", "task_3", 5, 280, 0),
        ("seeing", "task_0", 5, 280, 2),
        ("seeing", "task_3", 5, 280, 2),
    ]


@pytest.mark.usefixtures("fixed_costs")
def test_pictures_are_counted_where_they_are_looked_at():
    often, seldom = (estimate_plan(PLAN, "libero", CAMERAS, look_intervals={"seeing": count}) for count in (1, 50))
    looks = 280, 6  # of 280 steps those at 0, 50, ..., 250
    assert often.time_s.high - seldom.time_s.high == pytest.approx(10 * 2 * 0.05 * (looks[0] - looks[1]))
    assert often.time_s == estimate_plan(PLAN, "libero", CAMERAS).time_s


@pytest.mark.usefixtures("fixed_costs")
def test_a_plan_s_policy_looks_as_often_as_it_asks_its_server():
    request = Request(host="fake", suites=("fake",), tasks=(0,), policies=("openpi:h",), episodes=1, max_steps=11)
    often, seldom = (estimate_run(replace(request, arguments={"replan": count})).time_s.high for count in "15")
    assert often - seldom == pytest.approx(2 * 0.05 * (11 - 3))


@pytest.mark.usefixtures("fixed_costs")
def test_workers_divide_the_episodes_and_the_scenes_and_not_the_start_or_the_disk():
    alone, four, many = (estimate_plan(PLAN, "libero", CAMERAS, workers) for workers in (1, 4, 1000))
    start, setup = 5.0, 4 * 2.0
    episodes = alone.time_s.high - start - setup
    assert four.time_s.high == pytest.approx(start + (setup + episodes) / 4)
    assert four.disk_bytes == alone.disk_bytes
    assert many.time_s.high == pytest.approx(start + setup / 4 + episodes / 20), "each worker makes one of four scenes"


@pytest.mark.usefixtures("fixed_costs")
def test_a_host_without_figures_has_no_estimate():
    estimate = estimate_plan(PLAN, "unheard-of", CAMERAS)
    assert (estimate.time_s, estimate.disk_bytes, estimate.episodes) == (None, None, 20)


def test_every_figure_is_of_a_known_host_and_runs_from_low_to_high():
    for name, costs in plan.load_costs().items():
        assert name in host_names()
        ranges = [costs.start_s, costs.make_s, costs.reset_s, costs.step_s, costs.camera_step_s, costs.record_bytes]
        assert all(0 <= low <= high for low, high in ranges)
