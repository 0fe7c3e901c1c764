"""The wire of a policy server whose kind nobody names: openpi, vla-eval, gr00t or openvla, by what answers there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

from safevla_bench.errors import PolicyError, ServerLostError, ServerUnreachableError
from safevla_bench.policies.servers.endpoint import KEY
from safevla_bench.policies.servers.http_exchange import exchange, is_harness
from safevla_bench.policies.servers.openvla import parse_operation

WIRES: Mapping[str, str] = {
    "openpi": "websocket, MessagePack",
    "vla-eval": "websocket, MessagePack of vla-evaluation-harness",
    "gr00t": "ZeroMQ, MessagePack",
    "openvla": "HTTP, JSON of json_numpy",
}
"""The policies that are asked over a network, and what goes over it."""
_SCHEMES = ("ws", "wss", "tcp", "http", "https")
_REMEDY = "Write its address as HOST:PORT or URL, or with its kind before it, such as openpi:ws://HOST:8000."
_UNREACHABLE = "Start the server, or look at its address."
_ANSWER_S = 5.0
_GREETING_S = 0.5
"""Seconds for ZeroMQ's greeting, which its servers send unasked; those of HTTP wait for a request."""


def resolve_server(server: str, key: str | None = None) -> str:
    """Return the policy, KIND:URL, that asks a server.

    Args:
        server: KIND:ADDRESS of a client here, a URL, or HOST:PORT; without a kind, what answers there tells it.
        key: the server's.

    Raises:
        ServerUnreachableError: nothing answers.
        PolicyError: the text is no address, or what answers is no policy server that is known.
    """
    if server.partition(":")[0] in WIRES:
        return server
    split = urlsplit(server if "://" in server else f"//{server}")
    try:
        port = split.port
    except ValueError:
        port = None
    if not split.hostname or port is None or split.scheme not in ("", *_SCHEMES) or split.username is not None:
        shown = server if "@" not in server else "what was given"
        raise PolicyError(f"{shown} is not the address of a server", remedy=_REMEDY)
    if split.scheme == "tcp" or (split.scheme not in ("wss", "https") and speaks_zeromq(split.hostname, port)):
        return f"gr00t:tcp://{split.netloc}"
    suffix = "s" if split.scheme in ("wss", "https") else ""
    kind = _identify_http(f"http{suffix}://{split.netloc}", key)
    return f"{kind}:{'http' if kind == 'openvla' else 'ws'}{suffix}://{split.netloc}"


def other_kind(spec: str, key: str | None = None) -> str | None:
    """Return the policy KIND:URL that would ask the server of `KIND:ADDRESS`, where that is of another kind; else None.

    None, too, where nothing answers there or the answer is unknown. Asks the server.
    """
    kind, _, address = spec.partition(":")
    try:
        actual = resolve_server(address.partition("://")[2] or address, key)
    except PolicyError:
        return None
    return None if actual.partition(":")[0] == kind else actual


def _identify_http(address: str, key: str | None) -> str:
    """Return the kind of a server, `openvla`, `vla-eval` or `openpi`, by its answer to a GET of `/openapi.json`.

    Raises `ServerUnreachableError` where nothing answers by HTTP, and `PolicyError` where the server wants another key
    or is of no known kind.
    """
    try:
        status, content = exchange(address, "GET", "/openapi.json", _ANSWER_S, key=key)
    except ServerLostError as error:
        raise ServerUnreachableError(error.problem, remedy=_UNREACHABLE) from None
    if status in (401, 403):
        problem = f"the policy server {address} {'refuses this key' if key else 'wants a key'} (HTTP {status})"
        raise PolicyError(problem, remedy=f"Put its key into the environment variable {KEY}, or pass key_file=FILE.")
    if parse_operation(content) is not None:
        return "openvla"
    if is_harness(address):
        return "vla-eval"
    if status == HTTPStatus.UPGRADE_REQUIRED:
        return "openpi"
    problem = f"{address} answers with HTTP {status}, as no policy server that is known does"
    raise PolicyError(problem, remedy=f"Is it the port of the server? {_REMEDY}")


def speaks_zeromq(host: str, port: int) -> bool:
    """Return whether a server greets as ZeroMQ's do: ten bytes, the first 0xFF, the last 0x7F.

    Raises `ServerUnreachableError` where nothing takes a connection.
    """
    try:
        with socket.create_connection((host, port), _ANSWER_S) as probe:
            probe.settimeout(_GREETING_S)
            try:
                greeting = probe.recv(10)
            except TimeoutError:
                return False
            return greeting[:1] == b"\xff" and greeting[9:10] in (b"\x7f", b"")
    except OSError as error:
        reason = "connection refused" if isinstance(error, ConnectionRefusedError) else str(error)
        problem = f"nothing answers at {host}:{port}: {reason}"
        raise ServerUnreachableError(problem, remedy=_UNREACHABLE) from None
