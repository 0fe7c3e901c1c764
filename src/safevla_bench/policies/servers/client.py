"""The kinds of policy servers, the base of the models behind them, and the factory of their clients."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.plugins import install_command
from safevla_bench.policies.chunking import ChunkedPolicy, parse_replan
from safevla_bench.policies.servers import dialects
from safevla_bench.policies.servers.dialects import Dialect, Reply
from safevla_bench.policies.servers.endpoint import Endpoint, Greeting, parse_addresses, parse_timeouts, read_key

_SHARED = ("dialect", "cameras", "image_size", "connect_timeout_s", "timeout_s", "key_env", "key_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKind:
    """One kind of policy server, `KIND:URL[,URL...]` as a policy."""

    name: str
    about: str
    wire: str
    dialect: str
    """The dialect of a client that is given none."""
    schemes: tuple[str, ...]
    """Of an address; the first where it names none."""
    port: int
    library: str
    extra: str = ""
    arguments: tuple[str, ...] = ("replan",)
    """Of its client, beyond those of every client."""

    @property
    def example(self) -> str:
        """The policy with an address of a server."""
        return f"{self.name}:{self.schemes[0]}://HOST:{self.port}"


KINDS: Mapping[str, ClientKind] = {
    kind.name: kind
    for kind in (
        ClientKind(
            name="openpi",
            about="openpi's websocket server, and whatever speaks its protocol",
            wire="websocket, MessagePack",
            dialect="openpi-libero",
            schemes=("ws", "wss"),
            port=8000,
            library="websockets",
            extra="openpi",
        ),
        ClientKind(
            name="vla-eval",
            about="a model server of vla-evaluation-harness, which plays chunks itself",
            wire="websocket, MessagePack of vla-evaluation-harness",
            dialect="vla-eval-libero",
            schemes=("ws", "wss"),
            port=8000,
            library="websockets",
            extra="openpi",
            arguments=("params",),
        ),
        ClientKind(
            name="gr00t",
            about="GR00T's ZeroMQ server: N1.5, and N1.6 and later",
            wire="ZeroMQ, MessagePack",
            dialect="gr00t-libero",
            schemes=("tcp",),
            port=5555,
            library="zmq",
            extra="gr00t",
        ),
        ClientKind(
            name="openvla",
            about="OpenVLA's or OpenVLA-OFT's own server, vla-scripts/deploy.py",
            wire="HTTP, JSON of json_numpy",
            dialect="openvla-rest-libero",
            schemes=("http", "https"),
            port=8000,
            library="http",
            arguments=("replan", "unnorm_key"),
        ),
    )
}


class ServedModel(ABC):
    """A model behind a server: the `ChunkedPolicy.model` of every client here."""

    dialect: Dialect
    greeting: Greeting
    """The server's description of itself, sanitized for a record."""

    def __init__(self, dialect: Dialect) -> None:
        """Keep the dialect; nothing is connected before `connect` or `begin`."""
        self.dialect, self.wants, self.greeting = dialect, dialect.wants, {}

    @abstractmethod
    def connect(self, task: Task) -> None:
        """Reach the server and see that the dialect fits it, as `begin` does, before an environment is made."""

    @abstractmethod
    def begin(self, task: Task, seed: int) -> None:
        """Reach the server and begin an episode; sets `greeting`.

        Raises:
            ServerUnreachableError: no server answers.
            ServerLostError: a server answers and then goes or stays silent.
            ServerRefusedError: what answers is of another kind, or wants another key or dialect.
        """

    @abstractmethod
    def query(self, observation: Observation) -> Reply:
        """Return the server's reply to an observation, as it came.

        Raises `ServerLostError` if the server goes or stays silent, and `PolicyError` if it fails, its reply cannot be
        read, or the observation is not what the dialect sends.
        """

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return actions, [H, A]; raises what `query` raises, and `ReplyError` for actions that cannot be read."""
        return dialects.read_reply(self.dialect, self.query(observation))

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def client_factory(
    name: str, make_model: Callable[[Endpoint, Dialect, Mapping[str, str]], ServedModel]
) -> Callable[..., ChunkedPolicy]:
    """Return the factory of a kind of client, whose keyword parameters, all text, are the policy's arguments.

    `make_model` gets the endpoint, the dialect, and all arguments that were given.
    """
    kind = KINDS[name]

    def make(arg: str | None, **arguments: str | None) -> ChunkedPolicy:
        given = {key: value for key, value in arguments.items() if value is not None}
        require_library(kind.library, kind.extra)
        endpoint = Endpoint(
            parse_addresses(arg, kind.name, kind.schemes, kind.port),
            parse_timeouts(given.get("connect_timeout_s"), given.get("timeout_s")),
            read_key(given.get("key_env"), given.get("key_file")),
        )
        dialect = dialects.choose_dialect(
            given.get("dialect", kind.dialect), kind.name, given.get("cameras"), given.get("image_size")
        )
        replan = parse_replan(given.get("replan"), dialect.replan) if "replan" in kind.arguments else None
        return ChunkedPolicy(make_model(endpoint, dialect, given), replan, dialect)

    names = sorted({*_SHARED, *kind.arguments}, key=("replan", *_SHARED, *kind.arguments).index)
    parameters = (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names)
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("arg", inspect.Parameter.POSITIONAL_ONLY), *parameters]
    )
    return make


def require_library(library: str, extra: str) -> None:
    """Raise `PolicyError` if the library that a client needs is not installed."""
    if find_spec(library) is None:
        remedy = f"Install it: {install_command(extra)}"
        raise PolicyError(f"this policy needs the package {library}, which is not installed", remedy=remedy)
