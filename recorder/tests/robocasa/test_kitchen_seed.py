"""A kitchen's seed is known where its generator has drawn nothing; goals say what is target. Without RoboCasa."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_recorder.errors import HostError
from safevla_recorder.loop import find_recordable
from safevla_recorder.robocasa import (
    _find_goal,
    find_robocasa,
    fresh_seed,
    goal_target,
    known_goals,
    moved_fixture,
    to_plain,
)


@pytest.mark.parametrize("seed", [0, 7, 7001, 2**32, np.int64(5)])
def test_the_seed_of_a_generator_is_known_until_it_draws(seed):
    generator = np.random.default_rng(seed)
    assert fresh_seed(generator) == int(seed)
    generator.random()
    assert fresh_seed(generator) is None


@pytest.mark.parametrize(
    "generator",
    [
        np.random.default_rng(),  # its entropy is the system's, and no 64-bit number
        np.random.default_rng([1, 2]),
        np.random.Generator(np.random.MT19937(7)),  # other numbers than default_rng(7)
    ],
    ids=["unseeded", "sequence", "another"],
)
def test_what_was_not_made_by_default_rng_of_a_number_has_no_seed(generator):
    assert fresh_seed(generator) is None


def test_what_is_put_somewhere_is_the_target_and_otherwise_the_fixture_moves():
    for name, goal in known_goals().items():
        assert (goal_target(goal) is None) or (moved_fixture(goal) is None), name
    assert goal_target(("in", "obj", "container")) == "obj"
    assert moved_fixture(("open", "drawer")) == "drawer"
    assert goal_target(("at", "target_fixture")) is moved_fixture(("at", "target_fixture")) is None
    assert len(known_goals()) == 18


def test_without_robocasa_there_is_no_kitchen_and_the_hosts_are_named():
    assert find_robocasa(object()) is None
    with pytest.raises(HostError, match=r"cannot be recorded") as caught:
        find_recordable(object())
    assert "libero, robocasa" in caught.value.remedy


@pytest.mark.parametrize("goal", ["open", ("open",), (), ("in", 3)])
def test_a_goal_that_is_not_a_verb_with_names_is_refused_with_an_example(goal):
    with pytest.raises(HostError, match="valid goal") as caught:
        _find_goal("OpenDrawer", goal)
    assert 'goal=("open", "drawer")' in caught.value.remedy


def test_plain_values_do_not_depend_on_hash_order_or_addresses():
    first = {"object_cfgs": [{"info": {"groups_containing_sampled_obj": ["b", "a"]}}], "colors": {"red", "blue", 3}}
    other = {"object_cfgs": [{"info": {"groups_containing_sampled_obj": ["a", "b"]}}], "colors": {3, "blue", "red"}}
    assert to_plain(first) == to_plain(other)
    assert to_plain({"order": ["b", "a"]}) == {"order": ["b", "a"]}, "other lists keep their order"
    assert to_plain(object()) == to_plain(object())
