"""The example's chunks: as good as single actions where one action is a chunk, and of the length that was asked for."""

from __future__ import annotations

import numpy as np
from examples.chunked_planner import Script

from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.policies import make_policy


def test_a_script_in_chunks_of_one_is_the_script_itself():
    host = make_host("fake")
    task = host.tasks("fake")[0]
    env, policies = host.make(task, Wants(privileged=True)), (make_policy("scripted:hasty"), Script(chunk="1"))
    observation = env.reset(EpisodeSeed(0, 0, 0))
    for policy in policies:
        policy.reset(task, 0)
    for _ in range(30):
        alone, chunk = (policy.act(observation) for policy in policies)
        assert np.array_equal(chunk, [alone])
        observation, _ = env.step(alone)


def test_in_a_chunk_the_hand_is_seen_where_the_last_action_would_bring_it():
    host = make_host("fake")
    task = host.tasks("fake")[0]
    observation = host.make(task, Wants(privileged=True)).reset(EpisodeSeed(0, 0, 0))
    script = Script(chunk="8")
    script.reset(task, 0)
    actions = script.act(observation)
    assert actions.shape == (8, 7)
    assert len(np.unique(actions[:, :3], axis=0)) > 1
