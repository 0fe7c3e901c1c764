"""The two policies that look at nothing: one keeps still, one repeats for its seed."""

from __future__ import annotations

import numpy as np

from safevla_bench.policies import make_policy


def random_actions(task, seed: int, count: int = 200) -> np.ndarray:
    random = make_policy("random")
    random.reset(task, seed)
    return np.array([random.act(None) for _ in range(count)])


def test_noop_is_not_a_motion_and_an_open_gripper(task, scene, observe):
    noop = make_policy("noop")
    noop.reset(task, 0)
    action = noop.act(observe(scene({})))
    assert action.tolist() == [0, 0, 0, 0, 0, 0, -1]
    action[:] = 9
    assert noop.act(observe(scene({}))).tolist() == [0, 0, 0, 0, 0, 0, -1], "an action given away may be written to"


def test_random_repeats_for_the_same_seed_and_only_then(task):
    np.testing.assert_array_equal(random_actions(task, 3), random_actions(task, 3))
    assert not np.array_equal(random_actions(task, 3), random_actions(task, 4))


def test_random_fills_the_whole_range_of_every_number(task):
    actions = random_actions(task, 0, 2000)
    assert actions.shape == (2000, 7)
    assert (np.abs(actions) <= 1).all()
    assert (actions.min(axis=0) < -0.98).all()
    assert (actions.max(axis=0) > 0.98).all()
