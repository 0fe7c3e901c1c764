"""The construction that the clients of policy servers share, from the texts of `--policy-arg`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.chunking import ChunkedPolicy, ChunkModel, parse_replan
from safevla_bench.policies.servers.connection import require_library
from safevla_bench.policies.servers.dialect import Dialect, Reply
from safevla_bench.policies.servers.dialects import choose_dialect
from safevla_bench.policies.servers.endpoint import Greeting, Timeouts, parse_addresses, parse_timeouts, read_key


@dataclass(frozen=True, slots=True)
class ClientKind:
    """One kind of policy server: the policy's name, what the client needs, and its defaults.

    `library` is the package that the client imports, `extra` the optional dependency that installs it.
    """

    policy: str
    library: str
    extra: str
    schemes: tuple[str, ...]
    port: int
    dialect: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The servers of a policy: addresses to try in their order, how long to wait for them, and their key."""

    addresses: tuple[str, ...]
    timeouts: Timeouts
    key: str | None


class ServedModel(ChunkModel, Protocol):
    """A model behind a server, of whatever kind: `ChunkedPolicy.model` of every client here."""

    dialect: Dialect
    """The form of requests and replies."""
    greeting: Greeting
    """The server's description of itself, sanitized."""

    def connect(self, task: Task) -> None:
        """Reach the server and see that the dialect fits it, as `begin` does, before an environment is made."""
        ...

    def query(self, observation: Observation) -> Reply:
        """Return the server's reply to an observation, as it came."""
        ...


def client_factory(
    kind: ClientKind, make_model: Callable[[Endpoint, Dialect], ServedModel]
) -> Callable[..., ChunkedPolicy]:
    """Return the factory of a kind of client, whose keyword parameters are the policy's arguments.

    Args:
        kind: the kind of server; a dialect of another kind is refused.
        make_model: makes the model behind an endpoint that is asked in a dialect.
    """

    def make(
        arg: str | None,
        replan: str | None = None,
        dialect: str = kind.dialect,
        cameras: str | None = None,
        image_size: str | None = None,
        connect_timeout_s: str | None = None,
        timeout_s: str | None = None,
        key_env: str | None = None,
        key_file: str | None = None,
    ) -> ChunkedPolicy:
        """Return a client's policy; nothing is connected yet.

        Args:
            arg: the addresses, URL[,URL...].
            replan: how many actions of a chunk are carried out; `all`, or the dialect's number.
            dialect: what requests and replies hold.
            cameras: put in the places of the dialect's own, in their order.
            image_size: pixels of the side of the images that are sent.
            connect_timeout_s: how long to try to connect.
            timeout_s: how long to wait for one answer.
            key_env: the environment variable that holds the server's key.
            key_file: the file that holds the server's key.

        Raises:
            PolicyError: an argument is wrong, or the library is not installed.
        """
        require_library(kind.library, kind.extra)
        servers = parse_addresses(arg, kind.policy, kind.schemes, kind.port)
        endpoint = Endpoint(servers, parse_timeouts(connect_timeout_s, timeout_s), read_key(key_env, key_file))
        spoken = choose_dialect(dialect, kind.policy, cameras, image_size)
        return ChunkedPolicy(make_model(endpoint, spoken), parse_replan(replan, spoken.replan), spoken)

    return make
