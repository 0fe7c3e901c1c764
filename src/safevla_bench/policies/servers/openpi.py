"""`openpi:ws://HOST:8000`: the policy behind an openpi server, or behind any that speaks its protocol.

Websocket frames of MessagePack: the server greets with its metadata, each request is a map of the observation, each
reply a map with `actions` [H, A]. A text frame is the traceback of what went wrong in the server. starVLA's servers
speak the same, greet with an `env` of their own, answer under `data`, and send an error as a map (0ed0aad
deployment/model_server/tools/websocket_policy_server.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import msgspec

from safevla_bench.errors import PolicyError, ServerRefusedError
from safevla_bench.interface.policy import Observation
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import client_factory
from safevla_bench.policies.servers.dialects import (
    NONE,
    Dialect,
    Reply,
    RequestEntry,
    dialects_of,
    load_dialect_file,
)
from safevla_bench.policies.servers.endpoint import Endpoint, Greeting, sanitize_greeting


class OpenpiModel(connection.WebsocketModel):
    """A model behind an openpi server; `unnorm_key` names the statistics by which starVLA's server scales actions."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        """Raise `PolicyError` for an `unnorm_key` of another server than starVLA's."""
        unnorm_key = arguments.get("unnorm_key")
        if unnorm_key is not None:
            if not load_dialect_file(dialect.name).greets:
                problem = f"unnorm_key is for starVLA's servers, and {dialect.name!r} is the dialect of others"
                raise PolicyError(problem, remedy="Pass --policy-arg dialect=starvla-libero, or leave it out.")
            dialect = replace(dialect, fields=(*dialect.fields, RequestEntry(("unnorm_key",), fixed=unnorm_key)))
        super().__init__(endpoint, dialect, arguments)

    def ask_arguments(self) -> Mapping[str, str]:
        with suppress(ServerRefusedError):  # also for what it asks for
            self._connect()
        self.close()
        served, chunk = _parse_served(self.greeting), self.greeting.get("action_chunk_size")
        asked = {"replan": str(chunk)} if isinstance(chunk, int) else {}
        return served.arguments(self.dialect) if served else asked

    def query(self, observation: Observation) -> Reply:
        reply = self.ask(self.dialect.build_request(observation))
        if reply.get("ok") is False:
            raise self.server_error(reply.get("error"))
        return reply

    def _greet(self) -> None:
        self.greeting = sanitize_greeting(self.receive_map(), self._socket.key)
        if served := _parse_served(self.greeting):
            served.require_images(self.dialect)
        files = {name: load_dialect_file(name).greets for name in dialects_of("openpi")}
        fitting = [name for name, env in files.items() if env and env == self.greeting.get("env")]
        if fitting and self.dialect.name not in fitting:
            problem = f"the server {self._socket.address} is a {files[fitting[0]]}, not one of {self.dialect.name!r}"
            raise PolicyError(problem, remedy=f"Pass --policy-arg dialect={' or '.join(fitting)}.")


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
        fits = {*self.cameras} <= {*keys}
        cameras = {"cameras": ",".join(self.cameras.get(key, NONE) for key in keys)} if fits else {}
        size = {"image_size": self._format_size()} if self.cameras else {}
        return {**cameras, **size, **({"replan": self.replan} if self.replan else {})}

    def require_images(self, dialect: Dialect) -> None:
        """Raise `PolicyError` for an image that is not sent, or is of another size."""
        missing = [key for key in self.cameras if key not in _image_keys(dialect)]
        if missing:
            problem = f"the served policy wants {missing[0]!r} ({self.cameras[missing[0]]}), which is not sent"
            raise PolicyError(
                problem, remedy="Leave --policy-arg cameras and dialect out: the server says what it wants."
            )
        if self.cameras and self.image_size != dialect.view.size:
            size = self._format_size()
            problem = f"the served policy wants images of {size} pixels"
            raise PolicyError(problem, remedy=f"Leave --policy-arg image_size out, or pass image_size={size}.")

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
