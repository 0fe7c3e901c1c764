"""`openpi:ws://HOST:8000`: the policy behind an openpi server, or behind any that speaks its protocol.

Websocket frames of MessagePack: the server greets with its metadata, each request is a map of the observation, each
reply a map with `actions` [H, A]. A text frame is the traceback of what went wrong in the server. starVLA's servers
speak the same, greet with an `env` of their own, answer under `data`, and send an error as a map (0ed0aad
deployment/model_server/tools/websocket_policy_server.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from safevla_bench.errors import PolicyError, ServerRefusedError
from safevla_bench.interface.policy import Observation
from safevla_bench.policies.servers.client import client_factory
from safevla_bench.policies.servers.connection import WebsocketModel
from safevla_bench.policies.servers.dialects import NONE, Dialect, Reply
from safevla_bench.policies.servers.endpoint import Endpoint, Greeting, sanitize_greeting


class OpenpiModel(WebsocketModel):
    """A model behind an openpi server; `unnorm_key` names the statistics by which starVLA's server scales actions."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        key = arguments.get("unnorm_key")
        super().__init__(endpoint, dialect if key is None else dialect.add_fixed("unnorm_key", key), arguments)

    def ask_arguments(self) -> Mapping[str, str]:
        with suppress(ServerRefusedError):  # also for what it asks for
            self._connect()
        self.close()
        served, chunk = _parse_served(self.greeting), self.greeting.get("action_chunk_size")
        asked = {"replan": str(chunk)} if isinstance(chunk, int) else {}
        return served.arguments(self.dialect) if served else asked

    def query(self, observation: Observation) -> Reply:
        self.send(self.dialect.build_request(observation))
        reply = self.receive_map()
        if reply.get("ok") is False:
            raise self.server_error(reply.get("error"))
        return reply

    def _greet(self) -> None:
        self.greeting = sanitize_greeting(self.receive_map(), self.key)
        if served := _parse_served(self.greeting):
            served.require_images(self.dialect)


class _ServedGreeting(msgspec.Struct, frozen=True):
    """The part of the greeting of `safevla serve` that a client follows."""

    version: str = msgspec.field(name="safevla-bench")
    cameras: dict[str, str]
    """By the key of the request."""
    image_size: tuple[int, int]
    replan: str | None = None

    def arguments(self, dialect: Dialect) -> dict[str, str]:
        """Return what it asks for as the client's arguments; the cameras if they have a place in the dialect."""
        keys = _image_keys(dialect)
        cameras = ",".join(self.cameras.get(key, NONE) for key in keys) if {*self.cameras} <= {*keys} else ""
        size = self._format_size() if self.cameras else ""
        asked = {"cameras": cameras, "image_size": size, "replan": self.replan or ""}
        return {name: value for name, value in asked.items() if value}

    def require_images(self, dialect: Dialect) -> None:
        """Raise `PolicyError` for an image that is not sent, or is of another size."""
        missing = [f"{key!r} ({self.cameras[key]})" for key in self.cameras if key not in _image_keys(dialect)]
        if missing or (self.cameras and self.image_size != dialect.inference.image_size):
            wanted = missing[0] if missing else f"images of {self._format_size()} pixels"
            remedy = "Leave --policy-arg cameras, image_size and dialect out: the server says what it wants."
            raise PolicyError(f"the served policy wants {wanted}, which is not sent", remedy=remedy)

    def _format_size(self) -> str:
        return "x".join(map(str, dict.fromkeys(self.image_size)))


def _image_keys(dialect: Dialect) -> list[str]:
    return [field.place for field in dialect.fields if field.camera]


def _parse_served(greeting: Greeting) -> _ServedGreeting | None:
    try:
        return msgspec.convert(greeting, _ServedGreeting)
    except msgspec.ValidationError:
        return None


make = client_factory("openpi", OpenpiModel)
