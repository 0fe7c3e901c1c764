"""Policy servers on loopback, strict about what they are sent: the other side of the clients' tests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import zmq
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import ChunkedPolicy
from safevla_bench.policies.servers.codecs import GR00T, OPENPI, OPENVLA, VLA_EVAL, Codec

TASK = Task("libero-spatial", "task_0", 0, "place", "put it there", (0.0,) * 6 + (-1.0,), 1)


def observe(**changed: object) -> Observation:
    """What a host shows: two cameras of noise, a hand turned by half a turn."""
    generator = np.random.default_rng(0)
    images = {
        camera: generator.integers(0, 256, (256, 256, 3), dtype=np.uint8)
        for camera in ("agentview", "robot0_eye_in_hand")
    }
    half = np.array([0.0, 1.0, 0.0, 0.0])
    return replace(Observation("put it there", np.arange(3.0), half, np.array([0.04, -0.04]), images), **changed)


def client(kind: str, url: str, **arguments: str) -> ChunkedPolicy:
    """A client's policy that does not wait long for a server."""
    return make_policy(f"{kind}:{url}", {"connect_timeout_s": "0.5", "timeout_s": "5", **arguments})


@contextmanager
def playing(kind: str, url: str, **arguments: str) -> Iterator[ChunkedPolicy]:
    """A client's policy in an episode of `TASK`."""
    with closing(client(kind, url, **arguments)) as policy:
        policy.reset(TASK, 0)
        yield policy


OPENPI_REQUEST = {
    "observation/image": ("|u1", (224, 224, 3)),
    "observation/wrist_image": ("|u1", (224, 224, 3)),
    "observation/state": ("<f8", (8,)),
    "prompt": str,
}
VLA_EVAL_REQUEST = {"images": {"agentview": ("|u1", (256, 256, 3))}, "task_description": str}
GR00T_KEYS = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
GR00T_NESTED = {
    "video": {"image": ("|u1", (1, 1, 256, 256, 3)), "wrist_image": ("|u1", (1, 1, 256, 256, 3))},
    "state": {key: ("<f4", (1, 1, 2 if key == "gripper" else 1)) for key in GR00T_KEYS},
    "language": {"annotation.human.action.task_description": list},
}
GR00T_REQUEST = {
    key if part == "language" else f"{part}.{key}": kind
    for part, keys in GR00T_NESTED.items()
    for key, kind in keys.items()
}
OPENVLA_REQUEST = {"image": ("|u1", (224, 224, 3)), "instruction": str, "unnorm_key": str}
OFT_REQUEST = {
    "full_image": ("|u1", (224, 224, 3)),
    "wrist_image": ("|u1", (224, 224, 3)),
    "state": ("<f8", (8,)),
    "instruction": str,
}


def demand(message: object, expected: object, where: str = "") -> None:
    """Refuse what has other keys, types, dtypes or shapes."""
    if isinstance(expected, dict):
        assert isinstance(message, dict), f"{where} is no map"
        assert set(message) == set(expected), f"{where} has {sorted(message)}"
        for key, inner in expected.items():
            demand(message[key], inner, f"{where}/{key}")
    elif isinstance(expected, tuple):
        assert isinstance(message, np.ndarray), f"{where} is no array"
        assert (message.dtype.str, message.shape) == expected, f"{where} is {message.dtype.str} {message.shape}"
    else:
        assert isinstance(message, expected), f"{where} is {type(message).__name__}"


class Websockets:
    """A server whose connections a function handles; counts them, and can be killed with all of them."""

    def __init__(self, handle: Callable, port: int = 0, **options: object) -> None:
        self.headers: list[str | None] = []
        self.open: list[object] = []
        self._handle = handle
        self.server = serve(self._connected, "127.0.0.1", port, compression=None, max_size=None, **options)
        self.port = self.server.socket.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def _connected(self, connection: object) -> None:
        self.headers.append(connection.request.headers.get("Authorization"))
        self.open.append(connection)
        try:
            self._handle(connection)
        except ConnectionClosed:
            return

    def close(self) -> None:
        """As a process dies: no goodbye."""
        self.server.shutdown()
        for connection in self.open:
            connection.close_socket()
        self._thread.join()


def websockets(handle: Callable, port: int = 0, **options: object) -> closing[Websockets]:
    return closing(Websockets(handle, port, **options))


def openpi(answer: Callable[[dict, int], object], expected: object = OPENPI_REQUEST) -> Callable:
    """Handles a connection as openpi's server does: metadata, then an answer (a message, or text) to each request."""

    def handle(connection: object) -> None:
        connection.send(OPENPI.pack({"model": "stub"}))
        for number, frame in enumerate(connection):
            request = OPENPI.unpack(frame)
            try:
                demand(request, expected)
                reply = answer(request, number)
            except AssertionError as error:
                reply = f"Traceback (most recent call last):\n  in the stub\nAssertionError: {error}\n"
            if isinstance(reply, str):
                connection.send(reply)
                connection.close(1011)
                return
            connection.send(reply if isinstance(reply, bytes) else OPENPI.pack(reply))

    return handle


def chunk(count: int, first: float = 0.0) -> dict[str, object]:
    """A reply of `count` actions that differ."""
    return {"actions": np.linspace(first, first + 0.5, count)[:, None] * np.ones(7), "server_timing": {"infer_ms": 1.0}}


def vla_eval(answer: Callable[[dict, int], dict], log: list[dict]) -> Callable:
    """Handles a connection as a model server of vla-evaluation-harness does; logs what it was sent."""

    def handle(connection: object) -> None:
        number = 0
        for frame in connection:
            message = VLA_EVAL.unpack(frame)
            log.append(message)
            assert set(message) == {"type", "payload", "seq", "timestamp"}
            if message["type"] == "hello":
                reply = {**message, "payload": {"model_server": "stub", "capabilities": {}}}
            elif message["type"] == "observation":
                reply = {**message, "type": "action", **answer(message["payload"], number)}
                number += 1
            else:
                continue
            connection.send(VLA_EVAL.pack(reply))

    return handle


class Gr00tServer:
    """A REP socket that answers as GR00T's policy server does, until it is closed; `b""` from `answer` hangs up."""

    def __init__(
        self,
        answer: Callable[[str, dict], object],
        token: str | None = None,
        codec: Codec = GR00T,
        mark: bytes = b"",
        url: str = "tcp://127.0.0.1:*",
    ) -> None:
        self.calls: list[str] = []
        self._answer, self._token, self._codec, self._mark = answer, token, codec, mark
        self._socket = zmq.Context.instance().socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        while True:
            try:
                self._socket.bind(url)
                break
            except zmq.ZMQError:  # ZeroMQ may still be closing the socket that had this address
                time.sleep(0.02)
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._running = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._running:
            if not self._socket.poll(20):
                continue
            message = self._socket.recv()
            request = self._codec.unpack(message)
            self.calls.append(request["endpoint"])
            reply = self._answer_to(request)
            if request["endpoint"] == "get_action" and self._mark not in message:
                reply = {"error": f"Video key 'image' must be a numpy array: no {self._mark!r} came"}
            if reply == b"":
                self._socket.close(linger=0)
                return
            while reply is None and self._running:  # it has fallen silent
                threading.Event().wait(0.02)
            if reply is not None:
                self._socket.send(reply if isinstance(reply, bytes) else self._codec.pack(reply))

    def _answer_to(self, request: dict) -> object:
        if request.get("api_token") != self._token:
            return {"error": "Unauthorized: Invalid API token"}
        try:
            return self._answer(request["endpoint"], request.get("data", {}))
        except AssertionError as error:
            return {"error": str(error)}

    def close(self) -> None:
        self._running = False
        self._thread.join()
        self._socket.close(linger=0)


def gr00t(answer: Callable[[str, dict], object], *arguments: Any, **settings: Any) -> closing[Gr00tServer]:
    return closing(Gr00tServer(answer, *arguments, **settings))


def gr00t_modalities(
    mark: str = "__ModalityConfig_class__", frames: int = 1, **changed: list[str]
) -> dict[str, object]:
    """What `get_modality_config` answers for GR00T's embodiment libero_sim, under the mark of a wire."""
    keys = {
        "video": ["image", "wrist_image"],
        "state": list(GR00T_KEYS),
        "action": list(GR00T_KEYS),
        "language": ["annotation.human.action.task_description"],
        **changed,
    }
    deltas = {name: [*range(frames if name == "video" else 1)] for name in keys}
    content = {name: {"modality_keys": keys[name], "delta_indices": deltas[name]} for name in keys}
    return {name: {mark: True, "as_json": value} for name, value in content.items()}


def gr00t_action(count: int, value: float = 0.0) -> list[object]:
    return [{f"action.{key}": np.full((1, count, 1), value, dtype=np.float32) for key in GR00T_KEYS}, {}]


Page = tuple[int, bytes]
"""A status and a content."""


class HttpServer:
    """Pages over HTTP on loopback; `answer` is given the method, the path and the body of each request."""

    def __init__(self, answer: Callable[[str, str, bytes], Page]) -> None:
        self.headers: list[str | None] = []
        headers = self.headers

        class Handler(BaseHTTPRequestHandler):
            def respond(self) -> None:
                headers.append(self.headers["Authorization"])
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                status, content = answer(self.command, self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = respond  # noqa: N815  (the names that the library calls)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def http_server(answer: Callable[[str, str, bytes], Page]) -> closing[HttpServer]:
    return closing(HttpServer(answer))


def openvla(
    answer: Callable[[dict, int], object], expected: object = OPENVLA_REQUEST
) -> Callable[[str, str, bytes], Page]:
    """Answers as the server of OpenVLA does, or by the other request that of OFT; its errors are texts."""
    count = iter(range(10**6))

    def respond(method: str, path: str, body: bytes) -> Page:
        if (method, path) == ("GET", "/openapi.json"):
            return 200, b"{}"
        if (method, path) != ("POST", "/act"):
            return 404, b'{"detail":"Not Found"}'
        request = OPENVLA.unpack(body)
        try:
            demand(request, expected)
            reply = answer(request, next(count))
        except AssertionError as error:
            return 500, f"AssertionError: {error}".encode()
        return 200, OPENVLA.pack(reply)

    return respond


# Servers that mean ill


@contextmanager
def raw(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A TCP server that is handed each connection; its address as host:port. The event says that the test is over."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=handle, args=(connection,), daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                talk(connection, over)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)


def drip(connection: socket.socket, over: threading.Event, content: bytes, pause_s: float = 0.02) -> None:
    """A byte at a time, for as long as somebody listens."""
    for byte in content:
        connection.sendall(bytes([byte]))
        if over.wait(pause_s):
            return
