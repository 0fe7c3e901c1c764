"""Records of one loop around real LIBERO, and their comparison with those that another interpreter made.

python libero_records.py record FOLDER
python libero_records.py compare FOLDER OTHER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from safevla_recorder import record

STILL = [0.0] * 6 + [-1.0]
TASKS = (("libero_goal", 8), ("libero_10", 9))
EPISODES, STEPS = 2, 60
OWN = "versions"
"""The field of a header in which records of two environments may differ."""


def record_tasks(out):
    """Record some episodes of random actions in `out`."""
    from libero.libero import get_libero_path
    from libero.libero.benchmark import get_benchmark
    from libero.libero.envs.env_wrapper import ControlEnv

    for suite, number in TASKS:
        benchmark = get_benchmark(suite)()
        task = benchmark.get_task(number)
        bddl_file = Path(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
        env = ControlEnv(bddl_file_name=str(bddl_file), has_offscreen_renderer=False, use_camera_obs=False)
        env.env.object_property_initializers.clear()
        with record(env, policy="random", out=out, seed=0, horizon=STEPS):
            for index in range(EPISODES):
                env.seed(7)
                env.reset()
                env.set_init_state(benchmark.get_task_init_states(number)[index])
                for action in [*[STILL] * 10, *np.random.default_rng(index).uniform(-1, 1, (STEPS, 7)).tolist()]:
                    env.step(action)
        env.close()


def find_differences(folder, other):
    """Yield what differs between the records of two folders, bit by bit."""
    names = [sorted(path.name for path in (root / "raw").iterdir()) for root in (folder, other)]
    if names[0] != names[1]:
        yield "the folders hold {} and {}".format(*names)
        return
    for name in names[0]:
        if name.endswith(".json"):
            if (folder / "raw" / name).read_text() != (other / "raw" / name).read_text():
                yield name
            continue
        with np.load(str(folder / "raw" / name)) as ours, np.load(str(other / "raw" / name)) as theirs:
            yield from (f"{name}: {difference}" for difference in compare_arrays(dict(ours), dict(theirs)))


def compare_arrays(ours, theirs):
    """Yield the names of arrays and header fields that differ."""
    if sorted(ours) != sorted(theirs):
        yield "arrays"
        return
    headers = [json.loads(arrays.pop("header").tobytes().decode()) for arrays in (ours, theirs)]
    yield from (field for field in sorted(headers[0]) if field != OWN and headers[0][field] != headers[1].get(field))
    for name, array in ours.items():
        same_kind = array.dtype == theirs[name].dtype and array.shape == theirs[name].shape
        if not (same_kind and array.tobytes() == theirs[name].tobytes()):
            yield name


def main():
    command, folder, *other = sys.argv[1:]
    if command == "record":
        record_tasks(Path(folder))
        return
    differences = list(find_differences(Path(folder), Path(other[0])))
    print("\n".join(differences) or "the records are equal, bit for bit")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
