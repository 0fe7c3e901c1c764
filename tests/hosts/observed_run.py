"""Runs LIBERO tasks with random actions and writes what the simulator and its numbers came to, step by step.

    python observed_run.py {plain|recorded|meddling} STEPS SUITE:INDEX... > digests.json

`plain` is LIBERO as its users make it, without any of this package in its loop; `recorded` the host; `meddling` the
host with a recorder that changes one velocity by the least amount there is. Each digest covers positions, velocities,
controls, the solver's warm start, observations with object states, reward and done. NumPy's global random state is the
host's to restore after a reset: LIBERO draws from it in resets alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence

import numpy as np

from safevla_bench.hosts.libero import tasks as libero_tasks
from safevla_bench.hosts.libero.host import LiberoHost
from safevla_bench.hosts.libero.tasks import STILL
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_recorder.mujoco.recorder import Recorder

SEED = EpisodeSeed(init_state_index=3, env_seed=7, wait_steps=10)


def digest(env, observation, reward, is_done) -> str:
    data, total = env.sim.data._data, hashlib.sha256()
    arrays = [data.qpos, data.qvel, data.ctrl, data.qacc_warmstart, np.array([data.time])]
    for array in (*arrays, np.float64(reward), np.bool_(is_done)):
        total.update(np.ascontiguousarray(array).tobytes())
    for name in sorted(observation):
        total.update(name.encode() + np.ascontiguousarray(observation[name]).tobytes())
    return total.hexdigest()


def plain(task, actions) -> list[str]:
    from libero.libero.envs.env_wrapper import OffScreenRenderEnv

    env = OffScreenRenderEnv(bddl_file_name=str(libero_tasks.bddl_file(task)), use_camera_obs=False)
    env.env.object_property_initializers.clear()
    env.seed(SEED.env_seed)
    env.env.reset()
    env.set_init_state(libero_tasks.load_init_states(task)[SEED.init_state_index])
    for _ in range(SEED.wait_steps):
        env.step(np.array(STILL))
    digests = [digest(env, *env.step(action)[:3]) for action in actions]
    env.close()
    return digests


def recorded(task, actions) -> list[str]:
    host_env = LiberoHost().make(task, Wants(privileged=True))
    host_env.reset(SEED)
    inner, results = host_env._env, []
    step = inner.step

    def keep_result(action):
        results.append(step(action))
        return results[-1]

    inner.step = keep_result
    digests = []
    for action in actions:
        host_env.step(action)
        digests.append(digest(inner, *results[-1][:3]))
    assert host_env.recorded().lengths.tolist() == [len(actions) + 1]
    host_env.close()
    return digests


def meddle() -> None:
    record_substep = Recorder.record_substep

    def meddling(self):
        record_substep(self)
        self._data.qvel[0] = np.nextafter(self._data.qvel[0], np.inf)

    Recorder.record_substep = meddling


def digests_of(mode: str, names: Sequence[str], steps: int) -> dict[str, list[str]]:
    """Return the digest after each step of each task, given as SUITE:INDEX."""
    run, digests = (plain if mode == "plain" else recorded), {}
    for name in names:
        suite, index = name.split(":")
        task = LiberoHost().tasks(suite)[int(index)]
        digests[name] = run(task, np.random.default_rng(11).uniform(-1, 1, (steps, 7)))
    return digests


def main() -> None:
    mode, steps, *names = sys.argv[1:]
    if mode == "meddling":
        meddle()
    print(json.dumps(digests_of(mode, names, int(steps))))


if __name__ == "__main__":
    main()
