"""Who runs what next: each episode once, and an environment kept as long as there is work for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.hosts import host
from safevla_bench.rollout import plan, protocol
from safevla_bench.rollout.queue import Shares, scene

TASKS = host("fake").tasks("fake")
EPISODES = plan(TASKS, 3, ["a", "b"], protocol())


def test_one_worker_takes_them_in_the_order_of_the_plan():
    shares, own, taken = Shares(EPISODES), None, []
    while planned := shares.take(own, []):
        taken.append(planned)
        own = scene(planned)
    assert taken == list(EPISODES)
    assert not shares


def test_a_worker_stays_at_its_scene_then_goes_where_nobody_is_then_helps_where_most_is_left():
    shares = Shares(EPISODES[:6])  # two scenes of three
    one = shares.take(None, [])
    other = shares.take(None, [scene(one)])
    assert (one, other) == (EPISODES[0], EPISODES[3])
    assert [shares.take(scene(one), [scene(other)]) for _ in range(2)] == list(EPISODES[1:3])
    assert shares.take(scene(one), [scene(other)]) == EPISODES[4]


def test_an_episode_given_back_comes_first_in_its_scene():
    shares = Shares(EPISODES[:3])
    lost = shares.take(None, [])
    shares.give_back(lost)
    assert shares.take(scene(lost), []) == lost


@given(st.lists(st.integers(min_value=0, max_value=3), min_size=30, max_size=30))
def test_whoever_asks_next_every_episode_is_taken_exactly_once(turns):
    shares, taken = Shares(EPISODES), []
    at: dict[int, object] = {}
    for worker in turns:
        planned = shares.take(at.get(worker), [one for other, one in at.items() if other != worker])
        if planned:
            taken.append(planned)
            at[worker] = scene(planned)
    assert len(taken) == len(EPISODES)
    assert {one.episode_id for one in taken} == {one.episode_id for one in EPISODES}
