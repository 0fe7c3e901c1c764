"""`vla-eval:ws://HOST:8000`: a model server of vla-evaluation-harness.

Websocket frames of MessagePack, each a map of `type`, `payload`, `seq` and `timestamp`. The client greets with `hello`,
says `episode_start` and `episode_end`, and sends an `observation` for each `action`; the server itself plays chunks.
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.interface import Observation, Task
from safevla_bench.policies.chunking import Chunked
from safevla_bench.policies.servers import connection, endpoint
from safevla_bench.policies.servers.codecs import VLA_EVAL
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.policies.servers.dialect_choice import spoken
from safevla_bench.policies.servers.metadata import Greeting, fit
from safevla_bench.policies.servers.openpi import failed
from safevla_bench.policies.servers.vla_eval_check import granted
from safevla_bench.version import __version__

PORT = 8000
DIALECT = "vla-eval-libero"
PROTOCOL = 1
"""The version of the harness's protocol that this client speaks."""


class VlaEval:
    """A model behind a server of the harness."""

    def __init__(
        self, socket: connection.Socket, dialect: Dialect, key: str | None = None, *, chosen: bool = True
    ) -> None:
        self.wants = dialect.wants
        self._socket, self._dialect, self._key, self._chosen = socket, dialect, key, chosen
        self.greeting: Greeting = {}
        """What the server says of itself, fit for a record."""
        self._seq = 0
        self._playing = False

    def begin(self, task: Task, seed: int) -> None:
        """Connect anew, greet, and announce the episode.

        Raises:
            ServerUnreachableError: no server answers.
            ServerRefusedError: what answers is none of the harness, or asks for what the dialect does not send.
        """
        self._end()
        with connection.greeted(self._socket.close):
            self._greet()
        described = {"name": task.instruction, "suite": task.benchmark, "task_id": task.index}
        self._say("episode_start", {"task": described})
        self._playing = True

    def _greet(self) -> None:
        self._socket.open()
        self._seq = 0
        hello = self._say("hello", {"harness_version": f"safevla-bench {__version__}", "protocol_version": PROTOCOL})
        greeting = self._answer(hello, "hello")
        self.greeting = fit(greeting, self._key)
        granted(greeting, self._dialect, chosen=self._chosen)

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """[1, A]; raises what `openpi`'s client raises."""
        return self._dialect.actions(
            self._answer(self._say("observation", self._dialect.request(observation)), "action")
        )

    def close(self) -> None:
        self._end()
        self._socket.close()

    def _end(self) -> None:
        """Say that the episode is over; a server that is gone need not know."""
        playing, self._playing = self._playing, False
        if playing:
            with suppress(PolicyError):
                self._say("episode_end", {})

    def _say(self, kind: str, payload: object) -> int:
        self._seq += 1
        said = {"type": kind, "payload": payload, "seq": self._seq, "timestamp": time.time()}
        self._socket.send(VLA_EVAL.pack(said))
        return self._seq

    def _answer(self, seq: int, kind: str) -> dict[str, object]:
        """The payload of the answer to message `seq`."""
        frame = self._socket.receive()
        message = VLA_EVAL.unpack(frame) if isinstance(frame, bytes) else None
        if not isinstance(message, dict) or not isinstance(message.get("payload"), dict):
            problem = f"the server {self._socket.address} sent what is no message of vla-evaluation-harness"
            raise PolicyError(problem, remedy="Is it one of its model servers?")
        payload: dict[str, object] = message["payload"]
        if message.get("type") == "error":
            raise failed(self._socket.address, endpoint.without(str(payload.get("error", payload)), self._key))
        if message.get("type") != kind or message.get("seq") != seq:
            self._socket.close()
            got = f"{message.get('type')} {message.get('seq')}"
            problem = f"the server {self._socket.address} sent {got} where {kind} {seq} was to come"
            raise ServerLostError(problem, remedy="Two clients may share one connection; start the server again.")
        return payload


def make(
    arg: str | None,
    dialect: str | None = None,
    cameras: str | None = None,
    image_size: str | None = None,
    connect_timeout_s: str | None = None,
    timeout_s: str | None = None,
    key_env: str | None = None,
    key_file: str | None = None,
) -> Chunked:
    """The client; the arguments are those of `openpi`, without `replan`: the server decides.

    Without a `dialect`, `vla-eval-libero` is spoken where the server asks for no other.
    """
    connection.client_of("websockets", "openpi")
    servers = endpoint.addresses(arg, "vla-eval", ("ws", "wss"), PORT)
    secret = endpoint.key(key_env, key_file)
    socket = connection.Socket(servers, endpoint.patience(connect_timeout_s, timeout_s), secret)
    speech = spoken(dialect or DIALECT, "vla-eval", cameras, image_size)
    return Chunked(VlaEval(socket, speech, secret, chosen=dialect is not None), None, speech)
