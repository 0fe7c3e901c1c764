"""A served policy's rollout against openpi's own loop: python benchmarks/rollout.py [--replan 5 10 50] [--json FILE]

Both drive LIBERO-Spatial 0 with two cameras of 256 pixels, the same server and the same actions, from the same initial
states, turn and turn about in one process. The first is the loop of openpi's examples/libero/main.py (15a9616) written
anew on LIBERO's public interface: it renders and resizes both images at every step. The second is `safevla eval`
without judging: it renders what is looked at, and records the episode. The figure is the ratio of their wall times;
seconds are of this machine and moment.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from safevla_bench.evaluate import Request, roll_out
from safevla_bench.hosts import make_host
from safevla_bench.hosts.libero import install, tasks
from safevla_bench.interface import Wants
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.image_transforms import resize_padded, to_axis_angle

TARGETS = {5: 0.35, 50: 0.2}
"""Of the ratio, by the actions that are carried out of each reply; with pictures rendered on the CPU."""
SUITE, CAMERAS, CHUNK, WAIT_STEPS, SEED = "libero-spatial", ("agentview", "robot0_eye_in_hand"), 50, 10, 7
STILL = np.array([0.0] * 6 + [-1.0])


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
    from websockets.sync.client import connect

    task = make_host("libero").tasks(SUITE)[0]
    env = install.make_control_env(str(tasks.bddl_file(task)), Wants(CAMERAS, (256, 256)))
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
                images = [
                    resize_padded(np.ascontiguousarray(raw[f"{camera}_image"][::-1, ::-1]), (224, 224))
                    for camera in CAMERAS
                ]
                if not plan:
                    turn = to_axis_angle(raw["robot0_eef_quat"][[3, 0, 1, 2]])
                    state = np.concatenate([raw["robot0_eef_pos"], turn, raw["robot0_gripper_qpos"]])
                    request = {"observation/image": images[0], "observation/wrist_image": images[1]}
                    server.send(OPENPI.pack({**request, "observation/state": state, "prompt": str(task.instruction)}))
                    plan.extend(OPENPI.unpack(server.recv())["actions"][:replan])
                raw, _, done, _ = env.step(plan.popleft())
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


def wall_seconds(run: Callable[[int, int, int, int], None], *arguments: int) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def compare(port: int, replan: int, episodes: int, steps: int, rounds: int) -> dict[str, float]:
    """Return the median ratio of ours to upstream's, and the median seconds of both."""
    pairs = [
        [wall_seconds(run, port, replan, episodes, steps) for run in (run_own, run_upstream_loop)]
        for _ in range(rounds)
    ]
    return {
        "replan": replan,
        "ratio": statistics.median(own / upstream for own, upstream in pairs),
        "own_s": statistics.median(own for own, _ in pairs),
        "upstream_s": statistics.median(upstream for _, upstream in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replan", type=int, nargs="+", default=[5, 10, 50])
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=answer, args=(there,), daemon=True)
    server.start()
    port = here.recv()
    rows = [compare(port, replan, asked.episodes, asked.steps, asked.rounds) for replan in asked.replan]
    server.terminate()
    for row in rows:
        target = f" (target {TARGETS[row['replan']]})" if row["replan"] in TARGETS else ""
        seconds = f"{row['own_s']:.1f} s against {row['upstream_s']:.1f} s"
        print(f"replan {row['replan']:2}: {row['ratio']:.2f} of openpi's loop{target}; {seconds}")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
