"""`openpi:ws://HOST:8000`: the policy behind an openpi server, or behind any that speaks its protocol.

Websocket frames of MessagePack: the server greets with its metadata, each request is a map of the observation, each
reply a map with `actions` [H, A]. A text frame is the traceback of what went wrong in the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import client_factory
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.dialects import Reply
from safevla_bench.policies.servers.endpoint import redact_key, sanitize_greeting


class OpenpiModel(connection.WebsocketModel):
    """A model behind an openpi server."""

    def query(self, observation: Observation) -> Reply:
        self._socket.send(OPENPI.pack(self.dialect.build_request(observation)))
        return self._receive_map()

    def _greet(self) -> None:
        greeting = self._receive_map()
        self.greeting = sanitize_greeting(greeting, self._socket.key)
        _check_image_size(greeting, self.dialect.view.size)

    def _receive_map(self) -> dict[str, object]:
        frame = self._socket.receive()
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
