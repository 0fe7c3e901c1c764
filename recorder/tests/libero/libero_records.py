"""Records of one loop around real LIBERO, and their comparison with those that another interpreter made.

python libero_records.py record FOLDER
python libero_records.py compare FOLDER OTHER
python libero_records.py vector FOLDER     a worker of LIBERO's SubprocVectorEnv and one environment alone, compared
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np

from safevla_recorder import record, record_until_closed

STILL = [0.0] * 6 + [-1.0]
TASKS = (("libero_goal", 8), ("libero_10", 9))
EPISODES, STEPS = 2, 60
OWN = "versions"
"""The field of a header in which records of two environments may differ."""


def make_env(suite, number):
    """Return the environment of a task."""
    from libero.libero import get_libero_path
    from libero.libero.benchmark import get_benchmark
    from libero.libero.envs.env_wrapper import ControlEnv

    task = get_benchmark(suite)().get_task(number)
    bddl_file = Path(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
    return ControlEnv(bddl_file_name=str(bddl_file), has_offscreen_renderer=False, use_camera_obs=False)


def make_recorded(out, worker):
    """Return the environment of the first task as a vector's factory makes it."""
    return record_until_closed(make_env(*TASKS[0]), "random", out, worker=worker, seed=0)


def record_vector(out):
    """Record two episodes in two workers of LIBERO's vector, and the same ones in an environment alone."""
    from libero.libero.envs.venv import SubprocVectorEnv

    moves = [*[STILL] * 10, *np.random.default_rng(0).uniform(-1, 1, (STEPS // 6, 7)).tolist()]
    vector = SubprocVectorEnv([partial(make_recorded, out / "vector", worker) for worker in range(2)])
    alone = make_env(*TASKS[0])
    with record(alone, policy="random", out=out / "alone", seed=0):
        for _ in range(EPISODES):
            for env, count in ((vector, 2), (alone, None)):
                env.seed(7)
                env.reset()
                for move in moves:
                    env.step(np.array([move] * count) if count else move)
    vector.close()
    alone.close()
    return out / "vector" / "worker_0", out / "alone"


def record_tasks(out):
    """Record some episodes of random actions in `out`."""
    from libero.libero.benchmark import get_benchmark

    for suite, number in TASKS:
        benchmark, env = get_benchmark(suite)(), make_env(suite, number)
        env.env.object_property_initializers.clear()
        with record(env, policy="random", out=out, seed=0, horizon=STEPS):
            for index in range(EPISODES):
                env.seed(7)
                env.reset()
                env.set_init_state(benchmark.get_task_init_states(number)[index])
                for action in [*[STILL] * 10, *np.random.default_rng(index).uniform(-1, 1, (STEPS, 7)).tolist()]:
                    env.step(action)
        env.close()


def find_differences(folder, second_folder, names=()):
    """Yield what differs between the records of two folders, bit by bit; fields of the header in `names` may."""
    files = [sorted(path.name for path in (root / "raw").iterdir()) for root in (folder, second_folder)]
    if files[0] != files[1]:
        yield "the folders hold {} and {}".format(*files)
        return
    for name in files[0]:
        if name.endswith(".json"):
            rows = [json.loads((root / "raw" / name).read_text()) for root in (folder, second_folder)]
            if any(rows[0][field] != rows[1][field] for field in rows[0] if field not in names):
                yield name
            continue
        with np.load(str(folder / "raw" / name)) as own, np.load(str(second_folder / "raw" / name)) as second:
            yield from (f"{name}: {difference}" for difference in compare_arrays(dict(own), dict(second), names))


def compare_arrays(own, second, names=()):
    """Yield the names of arrays and header fields that differ."""
    if sorted(own) != sorted(second):
        yield "arrays"
        return
    headers = [json.loads(arrays.pop("header").tobytes().decode()) for arrays in (own, second)]
    yield from (
        field
        for field in sorted(headers[0])
        if field not in (OWN, *names) and headers[0][field] != headers[1].get(field)
    )
    for name, array in own.items():
        same_kind = array.dtype == second[name].dtype and array.shape == second[name].shape
        if not (same_kind and array.tobytes() == second[name].tobytes()):
            yield name


def main():
    command, folder, *second = sys.argv[1:]
    if command == "record":
        record_tasks(Path(folder))
        return
    folders = record_vector(Path(folder)) if command == "vector" else (Path(folder), Path(second[0]))
    named_by_worker = [] if command == "compare" else ["episode_id"]
    differences = list(find_differences(*folders, names=named_by_worker))
    print("\n".join(differences) or "the records are equal, bit for bit")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
