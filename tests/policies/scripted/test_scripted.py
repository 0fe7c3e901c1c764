"""The script on the host without a simulator: it advances, it repeats, it looks and does not touch."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from safevla_bench.errors import PolicyError
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.policies import make_policy
from safevla_bench.policies.scripted import ScriptedPolicy
from safevla_bench.policies.scripted.motion import STYLES

TABLE = {"bowl": ([0, 0, 0.03], [0.05, 0.05, 0.03]), "plate": ([0.1, 0.2, 0], [0.07, 0.07, 0.01])}
SPECS = [f"scripted:{name}" for name in STYLES]


@cache
def episode(spec: str, task: int = 0):
    """Success and actions of one episode, which a reset and another episode do not change."""
    host, policy = FakeHost(), make_policy(spec)
    chosen = host.tasks("fake")[task]
    env = host.make(chosen, policy.wants)
    runs = []
    for _ in range(2):
        observation = env.reset(EpisodeSeed(0, 7, 0))
        policy.reset(chosen, 0)
        actions, success = [], False
        while len(actions) < 100 and not success:
            actions.append(policy.act(observation))
            observation, success = env.step(actions[-1])
        runs.append(np.array(actions))
    np.testing.assert_array_equal(*runs)
    return success, runs[0]


@pytest.mark.parametrize("spec", SPECS)
def test_the_block_reaches_the_tray(spec):
    assert episode(spec)[0]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("task", [0, 1])
def test_every_action_is_within_bounds(spec, task):
    actions = episode(spec, task)[1]
    assert np.isfinite(actions).all()
    assert (np.abs(actions) <= 1).all()


def test_styles_are_one_policy_and_differ_only_in_clearances_and_speeds():
    careful, hasty = (make_policy(spec) for spec in SPECS)
    assert type(careful) is type(hasty) is ScriptedPolicy
    assert careful.wants == hasty.wants
    assert vars(careful) | {"style": None, "mobile_style": None} == vars(hasty) | {"style": None, "mobile_style": None}
    names = {field.name for field in fields(careful.style)}
    assert names == {
        "clearance_m", "corner_m", "hover_m", "lift_m", "release_m", "cruise", "final", "dwell_steps",
    }  # fmt: skip
    assert all(isinstance(getattr(careful.style, name), float | int) for name in names)


def test_privileged_state_is_asked_for_and_its_lack_is_an_error(scene, observe, task):
    careful = make_policy("scripted:careful")
    assert careful.wants.privileged
    assert not careful.wants.cameras
    careful.reset(task, 0)
    with pytest.raises(PolicyError, match="privileged"):
        careful.act(replace(observe(scene({})), privileged=None))


@pytest.mark.parametrize("goal", [(), (("open", "drawer"),), (("turnon", "stove"), ("on", "stove", "table"))])
def test_with_nothing_to_place_the_arm_holds_still(goal, scene, observe, task):
    policy = make_policy("scripted:careful")
    policy.reset(task, 0)
    observation = observe(scene({"bowl": ([0, 0, 0.03], [0.05, 0.05, 0.03])}, goal=goal))
    assert all(policy.act(observation).tolist() == [0, 0, 0, 0, 0, 0, -1] for _ in range(3))


def test_a_hand_that_gets_nowhere_tries_on_and_never_raises(scene, observe, task):
    policy = make_policy("scripted:careful")
    policy.reset(task, 0)
    observation = observe(scene(TABLE, goal=[("on", "bowl", "plate")]))
    actions = np.array([policy.act(observation) for _ in range(400)])
    assert np.isfinite(actions).all()
    is_closing = actions[:, 6] > 0
    (again,) = np.flatnonzero(is_closing[1:] & ~is_closing[:-1])[:1] + 1
    assert not np.array_equal(actions[again], actions[0]), "another grasp"
