"""Shards: every episode in exactly one, of nearly equal length, tasks kept together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.errors import RunError
from safevla_bench.hosts import make_host
from safevla_bench.rollout import Shard, cut_plan, load_protocol, plan_episodes
from safevla_bench.rollout.queue import scene_of

EPISODES = plan_episodes(make_host("fake").tasks("fake"), 4, ["a", "b"], load_protocol())
HORIZONS = st.lists(st.integers(min_value=1, max_value=900), min_size=1, max_size=40)


def lasting(horizons):
    return [replace(EPISODES[0], horizon=horizon) for horizon in horizons]


@given(HORIZONS, st.data())
def test_shards_are_stretches_that_cover_the_plan_and_none_is_empty(horizons, data):
    count = data.draw(st.integers(min_value=1, max_value=len(horizons)))
    begun = cut_plan(lasting(horizons), count)
    assert (begun[0], begun[-1], len(begun)) == (0, len(horizons), count + 1)
    assert all(first < end for first, end in pairwise(begun))


@given(HORIZONS, st.data())
def test_a_shard_is_longer_than_its_part_by_one_episode_at_most_where_episodes_are_alike(horizons, data):
    count = data.draw(st.integers(min_value=1, max_value=len(horizons)))
    alike = [300 + horizon for horizon in horizons]
    parts = [sum(alike[first:end]) for first, end in pairwise(cut_plan(lasting(alike), count))]
    if len(alike) >= 4 * count:  # else a shard of one may be all there is to give
        assert max(abs(part - sum(alike) / count) for part in parts) <= max(alike)


def test_as_many_shards_as_scenes_split_none():
    scenes = [{scene_of(one) for one in EPISODES[first:end]} for first, end in pairwise(cut_plan(EPISODES, 6))]
    assert all(len(them) == 1 for them in scenes)


def test_more_shards_than_episodes_are_refused():
    with pytest.raises(RunError, match="24 episodes cannot be cut into 25 shards"):
        cut_plan(EPISODES, 25)


@pytest.mark.parametrize("text", ["0/4", "5/4", "0/0"])
def test_shards_count_from_one(text):
    with pytest.raises(RunError, match=f"no shard {text}") as raised:
        Shard.parse(text)
    assert "from 1" in raised.value.remedy


@pytest.mark.parametrize("text", ["", "1", "1/", "a/4", "-1/4", "1/2/3"])
def test_what_is_no_shard_is_refused_with_an_example(text):
    with pytest.raises(RunError, match="is no shard") as raised:
        Shard.parse(text)
    assert "2/8" in raised.value.remedy
