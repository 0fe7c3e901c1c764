"""What `--dry-run` reckons with on LIBERO, and how far off it is: python benchmarks/costs.py [--check] [--cpu]

Without --check it measures two tasks of each suite and prints the table `[libero]`, each figure lowest and highest, to
put in the place of that in src/safevla_bench/rollout/costs.toml; before that a comment for each task. With --check
it runs four commands, each after its own `--dry-run`, and prints the factors between estimates and what then happened.

--cpu takes CPU time in the place of wall time and has one core render: for a machine that other work shares. Wall times
of an idle machine are what the file should hold.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ONE_CORE = {"LP_NUM_THREADS": "0", "OMP_NUM_THREADS": "1"}
TASKS = {"libero-spatial": (0, 7), "libero-object": (0, 5), "libero-goal": (0, 9), "libero-10": (2, 9)}
CAMERAS, SIDE, STEPS, LOOKS = ("agentview", "robot0_eye_in_hand"), 256, 40, 5
CHECKS = (
    ("libero-object", ("--task", "0,1", "--episodes", "3", "--policy", "noop")),
    ("libero-goal", ("--task", "0,9", "--episodes", "4", "--policy", "noop", "--workers", "2")),
    ("libero-spatial", ("--task", "0", "--episodes", "2", "--replan", "5")),
    ("libero-10", ("--task", "2", "--episodes", "2", "--replan", "50")),
)
"""Suites and the rest of a command; `--replan` stands for an openpi server's policy."""

Clock = Callable[[], float]


def measure_task(suite: str, index: int, cameras: tuple[str, ...], clock: Clock) -> dict[str, float]:
    """Return the seconds of one task: making, an episode's reset and record, a step, and a picture."""
    import numpy as np

    from safevla_bench.archive.npz import encode_npz
    from safevla_bench.hosts.libero.host import LiberoHost
    from safevla_bench.interface.policy import Wants
    from safevla_bench.interface.task import EpisodeSeed

    host, seed = LiberoHost(), EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)
    actions = np.random.default_rng(0).uniform(-0.2, 0.2, (STEPS, 7))
    start = clock()
    env = host.make(host.tasks(suite)[index], Wants(cameras, (SIDE, SIDE)))
    env.reset(seed)
    first = clock() - start
    spent: dict[bool, list[float]] = {True: [], False: []}
    for number, action in enumerate(actions):
        looks = bool(cameras) and number % LOOKS == 0
        env.render_next(looks)
        start = clock()
        env.step(action)
        spent[looks].append(clock() - start)
    step = float(np.mean(spent[False]))
    picture = (float(np.mean(spent[True])) - step) / len(cameras) if cameras else 0.0
    start = clock()
    encode_npz(env.recorded())
    record = clock() - start
    start = clock()
    env.reset(seed)
    reset = clock() - start - picture * len(cameras) - step * seed.wait_steps
    make = first - reset - picture * len(cameras) - step * seed.wait_steps
    env.close()
    return {"make_s": make, "reset_s": reset + record, "step_s": step, "camera_step_s": picture}


def measure_start(clock_children: Clock, task: dict[str, float]) -> float:
    """Return the seconds of a command beside its episode: imports, and judging it."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ("--task", "0", "--episodes", "1", "--policy", "noop", "--max-steps", "1", "--out", f"{folder}/run")
        start = clock_children()
        run_command("libero-object", asked)
        return clock_children() - start - task["make_s"] - task["reset_s"] - 11 * task["step_s"]


def run_command(suite: str, words: tuple[str, ...]) -> str:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "safevla_bench",
        "eval",
        "--host",
        "libero",
        "--suite",
        suite,
        *words,
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_costs(clock: Clock, clock_children: Clock) -> dict[str, object]:
    from safevla_bench.rollout.plan import load_costs

    measure_task("libero-object", 0, CAMERAS, clock)  # imports and compiles
    blind, seeing = {}, {}
    for suite, places in TASKS.items():
        for place in places:
            for cameras, rows in (((), blind), (CAMERAS, seeing)):
                row = rows[suite, place] = measure_task(suite, place, cameras, clock)
                figures = ", ".join(f"{name} {value:.3g}" for name, value in row.items())
                print(f"# {suite}/{place}, {len(cameras)} cameras: {figures}", flush=True)
    start = measure_start(clock_children, blind["libero-object", 0])
    measured = f"measured on {os.cpu_count()} cores of {platform.machine()}, rendered on the CPU"
    print(f"""\n[libero]\nsource = "of two tasks of each of LIBERO's suites, {measured}\"""")
    print(f"record_bytes = {[*load_costs()['libero'].record_bytes]}  # not measured here")
    print(f"start_s = {span([start])}")
    for name in ("make_s", "reset_s"):
        print(f"{name} = {span([row[name] for rows in (blind, seeing) for row in rows.values()])}")
    print(f"step_s = {span([row['step_s'] for row in blind.values()])}")
    print(f"camera_step_s = {span([row['camera_step_s'] for row in seeing.values()])}")
    return {"start_s": start, "blind": [*blind.items()], "seeing": [*seeing.items()]}


def span(values: list[float]) -> str:
    low, high = (float(f"{max(0.0, value):.2g}") for value in (min(values), max(values)))
    return f"[{low:g}, {high:g}]"


def print_checks(clock_children: Clock, checks: Sequence[tuple[str, tuple[str, ...]]]) -> list[dict[str, object]]:
    from rollout import serving

    rows = []
    with serving() as port, tempfile.TemporaryDirectory() as folder:
        for number, (suite, words) in enumerate(checks):
            place = words.index("--replan") if "--replan" in words else None
            asked = words
            if place is not None:
                policy = ("--protocol", "openpi", "--policy", f"openpi:127.0.0.1:{port}", "--max-steps", "100")
                asked = (*words[:place], *policy, "--policy-arg", f"replan={words[place + 1]}")
            planned = run_command(suite, (*asked, "--dry-run", "--out", f"{folder}/dry"))
            estimate = next(line.strip() for line in planned.splitlines() if line.strip().startswith("time "))
            middle = seconds_of(estimate)
            start = clock_children()
            run_command(suite, (*asked, "--out", f"{folder}/{number}"))
            spent = clock_children() - start
            factor = max(spent / middle, middle / spent)
            rows.append({"asked": [suite, *words], "estimate_s": middle, "spent_s": spent, "factor": factor})
            print(
                f"{suite} {' '.join(words):<60} {middle:6.1f} s, then {spent:6.1f} s: a factor of {factor:.2f}",
                flush=True,
            )
    return rows


def seconds_of(line: str) -> float:
    """Return the seconds of `time  about 2.5 min (2.0 to 3.0), without ...`."""
    number, unit = line.split("about ")[1].split()[:2]
    return float(number) * {"s": 1.0, "min": 60.0, "h": 3600.0}[unit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare estimates with what happens")
    parser.add_argument("--cpu", action="store_true", help="CPU time on one core")
    parser.add_argument("--json", type=Path, help="write all figures to this file too")
    chosen = parser.parse_args()
    if chosen.cpu and any(os.environ.get(name) != value for name, value in ONE_CORE.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_CORE})
    clocks = (time.process_time, children_cpu) if chosen.cpu else (time.perf_counter, time.perf_counter)
    checks = [check for check in CHECKS if not (chosen.cpu and "--workers" in check[1])]  # cores add up there
    figures = print_checks(clocks[1], checks) if chosen.check else print_costs(*clocks)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
