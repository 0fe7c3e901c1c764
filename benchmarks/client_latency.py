"""What the openpi client adds to a call over loopback: python benchmarks/client_latency.py [--calls N] [--json FILE]

The server answers at once with a chunk of ten actions that it packed before, so that all of a call is the client's and
the connection's own: the request is made from the observation, packed, sent, and its reply read. Two images go with
each request: of 224 pixels as they are sent, and of 256 pixels, which openpi's LIBERO protocol resizes to 224 first.
A policy that does nothing behind `safevla serve` shows what a served policy costs beyond the same one in process.
On a busy machine the median is mostly waiting for a core: the 5th percentile and the client's CPU time are steadier.

Where openpi-client can be imported (packages/openpi-client/src of openpi's repository, and msgpack), its own calls are
timed in turn with ours: both begin with the same two pictures as robosuite gives them, and send the same bytes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies import ask_arguments, make_policy
from safevla_bench.policies.python import adopt_object
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.serve import ServedPolicy, start_server

TARGET_MS = 2.0
"""For the median call with images of 224 pixels."""
SENT, RENDERED = 224, 256
WARM_UP = 20
TASK = Task("benchmark", "task_0", 0, "benchmark", "put the black bowl on the plate", (0.0,) * 7)


def answer(ready: Connection) -> None:
    """A server in a process of its own."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import serve

    reply = OPENPI.pack({"actions": np.zeros((10, 7)), "server_timing": {"infer_ms": 0.0}})

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


class Still:
    wants = Wants(("agentview", "robot0_eye_in_hand"), (SENT, SENT))

    def act(self, observation: Observation) -> np.ndarray:
        return np.zeros(7)


def serve_still(ready: Connection) -> None:
    """`safevla serve` in a process of its own."""
    server = start_server(ServedPolicy("still", lambda: adopt_object("still", Still())), "127.0.0.1", 0)
    ready.send(server.socket.getsockname()[1])
    server.serve_forever()


def observations(cameras: tuple[str, ...], side: int, count: int) -> list[Observation]:
    generator = np.random.default_rng(0)
    images = [
        {camera: generator.integers(0, 256, (side, side, 3), dtype=np.uint8) for camera in cameras}
        for _ in range(count)
    ]
    pose = np.zeros(3), np.array([0.0, 1.0, 0.0, 0.0]), np.array([0.04, -0.04])
    return [Observation(TASK.instruction, *pose, shown) for shown in images]


def measured(port: int, side: int, calls: int) -> dict[str, float]:
    """Milliseconds a call with images of `side` pixels."""
    server, arguments = f"openpi:127.0.0.1:{port}", {"replan": "1"}
    client = make_policy(server, {**ask_arguments(server, arguments), **arguments})
    seen = observations(client.wants.cameras, side, 8)
    client.reset(TASK, 0)
    for number in range(WARM_UP):
        client.act(seen[number % len(seen)])
    cpu = time.process_time()
    for number in range(calls):
        client.act(seen[number % len(seen)])
    cpu = time.process_time() - cpu
    client.close()
    quantiles = 1000 * np.percentile(client.calls_s[WARM_UP:], [5, 50, 95])
    figures = dict(zip(("p5_ms", "p50_ms", "p95_ms"), map(float, quantiles), strict=True))
    return {"image_pixels": side, **figures, "cpu_ms": 1000 * cpu / calls}


def upstream_ratio(port: int, calls: int) -> float:
    """Return the median, over pairs of calls, of our CPU time over that of openpi's own client."""
    from openpi_client import image_tools, websocket_client_policy

    own = make_policy(f"openpi:127.0.0.1:{port}", {"replan": "1"})
    own.reset(TASK, 0)
    upstream = websocket_client_policy.WebsocketClientPolicy("127.0.0.1", port)
    pictures = [seen.images for seen in observations(own.wants.cameras, RENDERED, 8)]
    pose = np.zeros(3), np.array([0.0, 1.0, 0.0, 0.0]), np.array([0.04, -0.04])

    def ask_own(number: int) -> None:
        shown = {camera: np.array(raw[::-1]) for camera, raw in pictures[number % 8].items()}
        own.act(Observation(TASK.instruction, *pose, shown))

    def ask_upstream(number: int) -> None:
        turned = [np.ascontiguousarray(raw[::-1, ::-1]) for raw in pictures[number % 8].values()]
        sent = [image_tools.convert_to_uint8(image_tools.resize_with_pad(image, SENT, SENT)) for image in turned]
        images = {"observation/image": sent[0], "observation/wrist_image": sent[1]}
        upstream.infer({**images, "observation/state": np.zeros(8), "prompt": TASK.instruction})

    pairs = []
    for number in range(WARM_UP + calls):
        turn = (ask_own, ask_upstream) if number % 2 else (ask_upstream, ask_own)
        spent = {ask: cpu_seconds(ask, number) for ask in turn}
        pairs.append(spent[ask_own] / spent[ask_upstream])
    own.close()
    return float(np.median(pairs[WARM_UP:]))


def cpu_seconds(call: Callable[[int], None], number: int) -> float:
    start = time.process_time()
    call(number)
    return time.process_time() - start


@contextmanager
def answering(serve: Callable[[Connection], None] = answer) -> Iterator[int]:
    """The port of a server that runs meanwhile."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def best_round(port: int, rounds: int, calls: int) -> dict[str, float]:
    return min((measured(port, SENT, calls) for _ in range(rounds)), key=lambda one: one["p50_ms"])


def rows(rounds: int = 5, calls: int = 200) -> Iterator[dict[str, object]]:
    """For `speed.Row(**row)`: the least median of several rounds, which other work on the machine disturbs least."""
    with answering() as port:
        best = best_round(port, rounds, calls)
        ratio = upstream_ratio(port, rounds * calls) if find_spec("openpi_client") else None
    what = f"ms that the openpi client adds to a call with two images of {SENT} px"
    yield {"what": what, "ratio": best["p50_ms"], "target": TARGET_MS, "reason": f"CPU {best['cpu_ms']:.2f} ms a call"}
    with answering(serve_still) as port:
        served = best_round(port, rounds, calls)
    what = "ms that safevla serve adds to such a call"
    yield {"what": what, "ratio": served["p50_ms"], "target": TARGET_MS}
    what = f"openpi call with two images of {RENDERED} px : openpi-client's"
    told = "median of pairs of calls" if ratio else "not measured: openpi-client is not installed"
    yield {"what": what, "ratio": ratio, "target": 1.0, "measured": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=1000, help="of each kind (default 1000)")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    chosen = parser.parse_args()
    with answering() as port:
        rows = [measured(port, side, chosen.calls) for side in (SENT, RENDERED)]
        ratio = upstream_ratio(port, chosen.calls) if find_spec("openpi_client") else None
    with answering(serve_still) as port:
        served = measured(port, SENT, chosen.calls)
    print("two images of    p5 ms  p50 ms  p95 ms  CPU ms")
    for one in rows:
        figures = "".join(f"{one[name]:>8.2f}" for name in ("p5_ms", "p50_ms", "p95_ms", "cpu_ms"))
        print(f"{one['image_pixels']:>11} px {figures}")
    for what, one in ((f"{SENT} px", rows[0]), ("safevla serve", served)):
        met = one["p50_ms"] < TARGET_MS
        print(f"target: {what} under {TARGET_MS:g} ms: {one['p50_ms']:.2f}, {'met' if met else 'missed'}")
    print(
        "openpi-client is not installed: not compared" if ratio is None else f"{ratio:.2f} of openpi-client's CPU time"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
