"""`openpi:ws://HOST:8000`: the policy behind an openpi server, or behind any that speaks its protocol.

Websocket frames of MessagePack: the server greets with its metadata, each request is a map of the observation, each
reply a map with `actions` [H, A]. A text frame is the traceback of what went wrong in the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import ServedModel, client_factory
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.dialects import Dialect, Reply
from safevla_bench.policies.servers.endpoint import redact_key, sanitize_greeting


class OpenpiModel(ServedModel):
    """A model behind an openpi server."""

    def __init__(self, socket: connection.WebsocketClient, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._socket = socket
        self._is_fresh = False
        """Whether the connection was made by `connect` and no episode has used it."""

    def connect(self, task: Task) -> None:
        self._is_fresh = False
        self.begin(task, 0)
        self._is_fresh = True

    def begin(self, task: Task, seed: int) -> None:
        """Connect anew, read the server's greeting, and set `greeting`; raises what `ServedModel.begin` raises.

        The connection of a `connect` just before is used. Servers take a connection for an episode, and a server that
        was restarted is found again.
        """
        is_fresh, self._is_fresh = self._is_fresh, False
        if is_fresh and self._socket.is_open:
            return
        with connection.guard_handshake(self._socket.close):
            self._socket.open()
            greeting = self._read_map(self._socket.receive())
            self.greeting = sanitize_greeting(greeting, self._socket.key)
            _check_image_size(greeting, self.dialect.view.size)

    def query(self, observation: Observation) -> Reply:
        self._socket.send(OPENPI.pack(self.dialect.build_request(observation)))
        return self._read_map(self._socket.receive())

    def close(self) -> None:
        self._socket.close()

    def _read_map(self, frame: bytes | str) -> dict[str, object]:
        if isinstance(frame, str):  # the server's traceback
            self._socket.close()
            raise connection.server_error(self._socket.address, redact_key(frame, self._socket.key))
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


make = client_factory("openpi", lambda endpoint, dialect, _: OpenpiModel(connection.WebsocketClient(endpoint), dialect))
