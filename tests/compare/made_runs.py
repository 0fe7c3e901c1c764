"""Made-up verdicts of policies on the same episodes, and their headers."""

from __future__ import annotations

import numpy as np

from report.scenes import verdicts
from safevla_bench.trajectory.header import Header


def drawn(name, success, safe, *, tasks=10, first=0, **changes):
    """Scores of a policy from who succeeds and who is safe, episodes in turn over the tasks."""
    places = [(first + k % tasks, k // tasks) for k in range(len(success))]
    return verdicts(
        *[(bool(won), 1.0 if is_safe else -250.0, 1.0) for won, is_safe in zip(success, safe, strict=True)],
        policy=name,
        **changes,
        episode_id=tuple(f"{task}/{state}" for task, state in places),
        task_id=tuple(f"task_{task}" for task, _ in places),
    )


def policy(name, successes, safe, n=100, **changes):
    return drawn(name, np.arange(n) < successes, np.arange(n)[::-1] < safe, **changes)


def run_headers(scores, seed=0):
    return [
        Header(episode_id=name, benchmark=scores.benchmark[k], task_id=scores.task_id[k], policy=scores.policy[k],
               success=bool(scores.success[k]), dt=0.05, env_seed=7, seed=seed, target_object="bowl",
               init_state_index=int(name.split("/")[1]))
        for k, name in enumerate(scores.episode_id)
    ]  # fmt: skip
