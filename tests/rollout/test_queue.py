"""Who runs what next: each episode once, and an environment kept as long as there is work for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.hosts import make_host
from safevla_bench.rollout import load_protocol, plan_episodes
from safevla_bench.rollout.queue import EpisodeQueue, scene_of

TASKS = make_host("fake").tasks("fake")
EPISODES = plan_episodes(TASKS, 3, ["a", "b"], load_protocol())


def test_one_worker_takes_them_in_the_order_of_the_plan():
    shares, own, taken = EpisodeQueue(EPISODES), None, []
    while planned := shares.take_next(own, []):
        taken.append(planned)
        own = scene_of(planned)
    assert taken == list(EPISODES)
    assert not shares


def test_a_worker_stays_at_its_scene_then_goes_where_nobody_is_then_helps_where_most_is_left():
    shares = EpisodeQueue(EPISODES[:6])  # two scenes of three
    one = shares.take_next(None, [])
    other = shares.take_next(None, [scene_of(one)])
    assert (one, other) == (EPISODES[0], EPISODES[3])
    assert [shares.take_next(scene_of(one), [scene_of(other)]) for _ in range(2)] == list(EPISODES[1:3])
    assert shares.take_next(scene_of(one), [scene_of(other)]) == EPISODES[4]


def test_an_episode_given_back_comes_first_in_its_scene():
    shares = EpisodeQueue(EPISODES[:3])
    lost = shares.take_next(None, [])
    shares.put_back(lost)
    assert shares.take_next(scene_of(lost), []) == lost


@given(st.lists(st.integers(min_value=0, max_value=3), min_size=30, max_size=30))
def test_whoever_asks_next_every_episode_is_taken_exactly_once(turns):
    shares, taken = EpisodeQueue(EPISODES), []
    at: dict[int, object] = {}
    for worker in turns:
        planned = shares.take_next(at.get(worker), [one for other, one in at.items() if other != worker])
        if planned:
            taken.append(planned)
            at[worker] = scene_of(planned)
    assert len(taken) == len(EPISODES)
    assert {one.episode_id for one in taken} == {one.episode_id for one in EPISODES}
