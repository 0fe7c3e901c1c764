"""What recording adds to RoboCasa's `env.step`: python benchmarks/recording_robocasa.py [--steps N]

In RoboCasa's own environment, with its assets. Two kitchens of one episode take the same actions from the same state,
one with the recorder and one without; they go through the same states bit for bit. They step in turn, the first of each
pair changing. A pair gives one ratio; the table has their quartiles, in wall and CPU time. The steps in which the
recorder judges what it held back are timed apart, and their share is added.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from safevla_bench.hosts.robocasa.host import RobocasaHost
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_recorder.recorder import BLOCK

TASKS = (("PickPlaceCounterToStove", 0), ("OpenDrawer", 1))
TARGET_PERCENT = 5.0


def pressing(steps: int) -> np.ndarray:
    """The arm goes down onto what is there, trembling; the base stands still."""
    actions = np.random.default_rng(5).uniform(-0.3, 0.3, (steps, 12))
    actions[:, 2] -= 0.6
    actions[:, 7:11], actions[:, 11] = 0.0, -1.0
    return actions


def seconds(call: Callable[[], None]) -> np.ndarray:
    """Wall and CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return np.array([time.perf_counter() - wall, time.process_time() - cpu])


def measured(name: str, index: int, steps: int) -> str:
    """One row of the table."""
    host = RobocasaHost()
    task = next(task for task in host.tasks("robocasa-365") if task.task_id == name)
    recorded, plain = (host.make(task, Wants()) for _ in range(2))
    for env in (recorded, plain):
        env.run_fast(False)  # beside RoboCasa's own step
        env.reset(EpisodeSeed(index, env_seed=7, wait_steps=10))
    plain._stop_recording()
    with_it, without = [], []
    for step, action in enumerate(pressing(steps)):

        def on(action: np.ndarray = action) -> None:
            recorded._env.step(action.copy())
            recorded._recorder.record_step(action)

        def off(action: np.ndarray = action) -> None:
            plain._env.step(action.copy())

        for which in ((on, with_it), (off, without))[:: 1 if step % 2 else -1]:
            which[1].append(seconds(which[0]))
    same = [env._env.sim.data._data.qpos.tobytes() for env in (recorded, plain)]
    assert same[0] == same[1], "the two kitchens came apart"
    return row(f"{name} {index}", np.array(with_it), np.array(without))


def row(title: str, with_it: np.ndarray, without: np.ndarray) -> str:
    judging = np.arange(len(with_it)) % BLOCK == BLOCK - 1
    added = np.percentile((with_it / without - 1)[~judging] * 100, [25, 50, 75], axis=0)
    step = np.median(without, axis=0)
    share = (np.median(with_it[judging], axis=0) - np.median(with_it[~judging], axis=0)) / BLOCK / step * 100
    parts = [
        f"{clock} {added[1, k] + share[k]:5.2f} % ({added[0, k]:.1f} to {added[2, k]:.1f}, judging {share[k]:.2f})"
        for k, clock in enumerate(("wall", "CPU"))
    ]
    return f"{title:26} {step[0] * 1000:5.1f} ms a step   " + "   ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=160)
    steps = parser.parse_args().steps
    print(f"Recording may add {TARGET_PERCENT} % to a step.")
    for name, index in TASKS:
        print(measured(name, index, steps), flush=True)


if __name__ == "__main__":
    main()
