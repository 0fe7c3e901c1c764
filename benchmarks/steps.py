"""How fast a control step without cameras is beside the simulator's own: python benchmarks/steps.py [--host HOST]

HOST is libero, robosuite or robocasa, each in its own environment. Two environments of one task take the same actions
from the same state, one of them stepped by the simulator's own code alone, neither recorded; they go through the same
bits. They step in turn, the first of each pair changing. The figure is the median over the pairs of the ratio of CPU
times.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from ratio import Row, cpu_seconds

from safevla_bench.hosts import make_host
from safevla_bench.hosts.mujoco.environment import RobosuiteEnv
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed

TASKS = {
    "libero": (("libero-spatial", 0), ("libero-object", 2), ("libero-goal", 0), ("libero-10", 0)),
    "robosuite": (("robosuite", 1), ("robosuite", 5), ("robosuite", 10)),
    "robocasa": (("robocasa-365", 0), ("robocasa-365", 5)),
}
TARGETS = {"libero": 0.6, "robosuite": 0.7, "robocasa": 0.7}


def begin(host: str, suite: str, index: int, *, fast: bool) -> RobosuiteEnv:
    made = make_host(host)
    env = made.make(made.tasks(suite)[index], Wants())
    env.run_fast(fast)
    env.reset(EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10))
    env._stop_recording()
    return env


def ratios(host: str, suite: str, index: int, steps: int) -> list[float]:
    """Of each pair; half of the actions press the hand onto what is there."""
    full, fast = (begin(host, suite, index, fast=fast) for fast in (False, True))
    actions = np.random.default_rng(5).uniform(-0.5, 0.5, (steps, len(full.still)))
    actions[: steps // 2, 2] -= 0.5
    pairs = []
    for step, action in enumerate(actions):
        times = {}
        for env in (full, fast) if step % 2 else (fast, full):
            times[env] = cpu_seconds(lambda env=env, action=action: env._advance(action.copy()))
        pairs.append(times[fast] / times[full])
        same = [env._model_and_data()[1].qacc_warmstart.tobytes() for env in (full, fast)]
        assert same[0] == same[1], "the two came apart"
    full.close()
    fast.close()
    return pairs


def rows(host: str = "libero", steps: int = 100) -> Iterator[Row]:
    found = [np.median(ratios(host, suite, index, steps)) for suite, index in TASKS[host]]
    span = f"{min(found):.2f} to {max(found):.2f} over {len(found)} tasks"
    what = f"a control step without cameras, {host} : the simulator's own"
    yield Row(what, float(np.median(found)), TARGETS[host], measured=span)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--host", choices=TASKS, default="libero")
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    for row in rows(chosen.host, chosen.steps):
        print(f"{row.what}: {row.ratio:.2f} (target {row.target}); {row.measured}")


if __name__ == "__main__":
    main()
