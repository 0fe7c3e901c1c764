"""`openpi:ws://HOST:8000`: the policy behind an openpi server, or behind any that speaks its protocol.

Websocket frames of MessagePack: the server greets with its metadata, each request is a map of the observation, each
reply a map with `actions` [H, A]. A text frame is the traceback of what went wrong in the server.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Observation, Task
from safevla_bench.policies.chunking import Chunked, replanning
from safevla_bench.policies.servers import connection, endpoint
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.policies.servers.dialect_choice import spoken
from safevla_bench.policies.servers.metadata import Greeting, fit

PORT = 8000
MOST_TOLD, MOST_OF_LINE = 20_000, 500
"""Characters that are kept of what a server says went wrong, and of its last line."""


class Openpi:
    """A model behind a server; the dialect says what a request holds and what a reply means."""

    def __init__(self, socket: connection.Socket, dialect: Dialect, key: str | None = None) -> None:
        self.wants = dialect.wants
        self.greeting: Greeting = {}
        """What the server says of itself, fit for a record."""
        self._socket, self._dialect, self._key = socket, dialect, key

    def begin(self, task: Task, seed: int) -> None:
        """Connect anew: servers take a connection for an episode, and one that was restarted is found again.

        Raises:
            ServerUnreachableError: no server answers.
            ServerRefusedError: what answers is no openpi server, or wants another key.
        """
        with connection.greeted(self._socket.close):
            self._socket.open()
            greeting = self._received()
            self.greeting = fit(greeting, self._key)
            _sized(greeting, self._dialect.view.size)

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """[H, A]

        Raises:
            ServerLostError: the server went away or stays silent.
            PolicyError: the server failed, with its own traceback; or its reply cannot be read.
            InvalidActionError: the reply holds no actions.
        """
        self._socket.send(OPENPI.pack(self._dialect.request(observation)))
        return self._dialect.actions(self._received())

    def close(self) -> None:
        self._socket.close()

    def _received(self) -> dict[str, object]:
        frame = self._socket.receive()
        if isinstance(frame, str):
            self._socket.close()
            raise failed(self._socket.address, endpoint.without(frame, self._key))
        message = OPENPI.unpack(frame)
        if not isinstance(message, dict):
            problem = f"the server {self._socket.address} sent a {type(message).__name__} where openpi sends a map"
            raise PolicyError(problem, remedy="Is it an openpi server?")
        return message


def _sized(greeting: Mapping[str, object], sent: tuple[int, int]) -> None:
    """Refuse a server of `safevla serve` whose policy wants images of another size; other servers do not tell it."""
    size = greeting.get("image_size")
    if "safevla-bench" in greeting and greeting.get("cameras") and isinstance(size, list) and size != [*sent]:
        problem = f"the served policy wants images of {size[0]} x {size[-1]} pixels"
        raise PolicyError(problem, remedy=f"Pass --policy-arg image_size={size[0]}.")


def failed(address: str, text: str) -> PolicyError:
    """The error for what went wrong in a server: its last line first, then all of it, or the end of it."""
    said = text[-MOST_TOLD:].strip()
    lines = said.splitlines() or ["no reason given"]
    problem = f"the policy server {address} failed: {lines[-1].strip()[:MOST_OF_LINE]}"
    cut = f"... ({len(text) - MOST_TOLD:,} characters before)\n" if len(text) > MOST_TOLD else ""
    whole = f"\n{textwrap.indent(cut + said, '    ')}" if len(lines) > 1 or cut else ""
    return PolicyError(problem + whole, remedy="Mend it there; what was sent is in docs/servers.md.")


def make(
    arg: str | None,
    replan: str | None = None,
    dialect: str = "openpi-libero",
    cameras: str | None = None,
    image_size: str | None = None,
    connect_timeout_s: str | None = None,
    timeout_s: str | None = None,
    key_env: str | None = None,
    key_file: str | None = None,
) -> Chunked:
    """The client; `dialect` says what requests and replies hold, `cameras` puts others in the places of its own."""
    connection.client_of("websockets", "openpi")
    servers = endpoint.addresses(arg, "openpi", ("ws", "wss"), PORT)
    secret = endpoint.key(key_env, key_file)
    socket = connection.Socket(servers, endpoint.patience(connect_timeout_s, timeout_s), secret)
    speech = spoken(dialect, "openpi", cameras, image_size)
    return Chunked(Openpi(socket, speech, secret), replanning(replan, speech.replan), speech)
