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
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import ClientKind, Endpoint, client_factory
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.dialect import Dialect, Reply
from safevla_bench.policies.servers.dialects import read_reply
from safevla_bench.policies.servers.endpoint import Greeting, redact_key, sanitize_greeting

MAX_CHARACTERS, MAX_LINE_CHARACTERS = 20_000, 500
"""Characters that are kept of a server's error message, and of its last line."""


class OpenpiModel:
    """A model behind a server; the dialect says what a request holds and what a reply means."""

    def __init__(self, socket: connection.WebsocketClient, dialect: Dialect, key: str | None = None) -> None:
        """Keep connection and dialect; nothing is connected before `connect` or `begin`."""
        self.wants, self.dialect = dialect.wants, dialect
        self.greeting: Greeting = {}
        """The server's description of itself, sanitized for a record."""
        self._socket, self._key = socket, key
        self._is_fresh = False
        """Whether the connection was made by `connect` and no episode has used it."""

    def connect(self, task: Task) -> None:
        """Reach the server for the first episode, before an environment is made; raises what `begin` raises."""
        self._is_fresh = False
        self.begin(task, 0)
        self._is_fresh = True

    def begin(self, task: Task, seed: int) -> None:
        """Connect anew, read the server's greeting, and set `greeting`.

        The connection of a `connect` just before is used. Servers take a connection for an episode, and a server that
        was restarted is found again.

        Raises:
            ServerUnreachableError: no server answers.
            ServerLostError: a server takes the connection, and closes it or does not greet in time.
            ServerRefusedError: what answers is no openpi server, wants another key, or serves images of another size.
        """
        is_fresh, self._is_fresh = self._is_fresh, False
        if is_fresh and self._socket.is_open:
            return
        with connection.guard_handshake(self._socket.close):
            self._socket.open()
            greeting = self._read_map(self._socket.receive_greeting())
            self.greeting = sanitize_greeting(greeting, self._key)
            _check_image_size(greeting, self.dialect.view.size)

    def query(self, observation: Observation) -> Reply:
        """Return the server's reply to an observation.

        Raises:
            ServerLostError: the server went away or stays silent.
            PolicyError: the server failed, with its own traceback; its reply cannot be read; no episode was begun; or
                the observation is not what the dialect sends.
        """
        self._socket.send(OPENPI.pack(self.dialect.build_request(observation)))
        return self._read_map(self._socket.receive())

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return actions, [H, A]. Raises what `query` raises, and `ReplyError` for actions that are not read."""
        return read_reply(self.dialect, self.query(observation))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _read_map(self, frame: bytes | str) -> dict[str, object]:
        """Return the map in a frame.

        Raises `PolicyError` for a text frame, which is the server's traceback (the connection is closed), and for bytes
        that are no map.
        """
        if isinstance(frame, str):
            self._socket.close()
            raise server_error(self._socket.address, redact_key(frame, self._key))
        message = OPENPI.unpack(frame)
        if not isinstance(message, dict):
            problem = f"the server {self._socket.address} sent a {type(message).__name__} where openpi sends a map"
            raise PolicyError(problem, remedy="Is it an openpi server?")
        return message


def _check_image_size(greeting: Mapping[str, object], sent: tuple[int, int]) -> None:
    size = greeting.get("image_size")
    if "safevla-bench" in greeting and greeting.get("cameras") and isinstance(size, list) and size and size != [*sent]:
        problem = f"the served policy wants images of {size[0]} x {size[-1]} pixels"
        raise PolicyError(problem, remedy=f"Pass --policy-arg image_size={size[0]}.")


def server_error(address: str, text: str) -> PolicyError:
    """Return the error for a server's failure: its last line first, then all of it, or the end of it."""
    shown = text[-MAX_CHARACTERS:].strip()
    lines = shown.splitlines() or ["no reason given"]
    problem = f"the policy server {address} failed: {lines[-1].strip()[:MAX_LINE_CHARACTERS]}"
    cut = f"... ({len(text) - MAX_CHARACTERS:,} characters before)\n" if len(text) > MAX_CHARACTERS else ""
    details = f"\n{textwrap.indent(cut + shown, '    ')}" if len(lines) > 1 or cut else ""
    return PolicyError(problem + details, remedy="Mend it there; what was sent is in docs/servers.md.")


def _make_model(endpoint: Endpoint, dialect: Dialect) -> OpenpiModel:
    socket = connection.WebsocketClient(endpoint.addresses, endpoint.timeouts, endpoint.key)
    return OpenpiModel(socket, dialect, endpoint.key)


make = client_factory(
    ClientKind(
        "openpi", library="websockets", extra="openpi", schemes=("ws", "wss"), port=8000, dialect="openpi-libero"
    ),
    _make_model,
)
"""Makes the client."""
