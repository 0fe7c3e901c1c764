"""What to run follows from the request, and from nothing else."""

from __future__ import annotations

import pytest

from safevla_bench.errors import RunError
from safevla_bench.interface import Task
from safevla_bench.rollout.plan import load_protocol, plan_episodes, policy_seed

TASKS = [Task("libero-object", f"task_{k}", k, f"name {k}", "do it", 50) for k in (0, 3)]
RULES = load_protocol()


def test_the_preset_has_the_published_values():
    assert (RULES.wait_steps, RULES.rest_steps, RULES.env_seed, RULES.stop_at_success) == (10, 20, 7, True)
    horizons = {suite: RULES.horizons[f"libero-{suite}"] for suite in ("spatial", "object", "goal", "10")}
    assert horizons == {"spatial": 220, "object": 280, "goal": 300, "10": 520}


def test_every_policy_meets_the_same_episodes_in_the_same_order():
    episodes = plan_episodes(TASKS, 2, ["a", "b"], RULES)
    assert [one.episode_id for one in episodes[:4]] == [
        "a/libero-object/task_0/ep_000",
        "a/libero-object/task_0/ep_001",
        "a/libero-object/task_3/ep_000",
        "a/libero-object/task_3/ep_001",
    ]
    starts = [(one.task, one.start, one.policy_seed, one.horizon) for one in episodes]
    assert starts[:4] == starts[4:]
    assert [one.start.init_state_index for one in episodes[:4]] == [0, 1, 0, 1]
    assert {one.horizon for one in episodes} == {280}
    assert len({one.episode_id for one in episodes}) == 8


def test_the_policy_seed_differs_by_seed_task_and_episode():
    seeds = {policy_seed(seed, task, episode) for seed in (0, 1) for task in TASKS for episode in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert policy_seed(0, TASKS[0], 0) == 0x4C422602  # printf 0/libero-object/task_0/0 | sha256sum


def test_max_steps_overrides_the_horizon():
    assert {one.horizon for one in plan_episodes(TASKS, 1, ["a"], RULES, max_steps=5)} == {5}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tasks": []}, "nothing to run"),
        ({"policies": []}, "nothing to run"),
        ({"policies": ["a", "a"]}, "named twice"),
        ({"episodes": 51}, "50 initial states, 51 are asked for"),
        ({"tasks": [Task("other", "t", 0, "n", "i")]}, "no horizon for 'other'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(change, problem):
    wanted = {"tasks": TASKS, "episodes": 1, "policies": ["a"], **change}
    with pytest.raises(RunError, match=problem):
        plan_episodes(**wanted, rules=RULES)
