"""Wires of policy servers: one HTTP request, and the kind of a server that nobody names, by what answers there.

A request is bounded in time and size, with no proxy, no redirect, and a connection of its own: servers of this kind
close a connection that is idle for five seconds, which a simulator may take between two requests.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from safevla_bench.errors import PolicyError, ServerLostError, ServerUnreachableError
from safevla_bench.policies.servers.endpoint import KEY

MAX_REPLY_BYTES = 4 * 2**20
"""The largest answer that is taken; a chunk of actions has a few kilobytes."""
_LEAST_S = 0.2
_CONFIG_S = 2.0


def exchange(
    address: str, method: str, path: str, seconds: float, body: bytes | None = None, key: str | None = None
) -> tuple[int, bytes]:
    """Return the status and the content of one answer.

    Args:
        address: the server's URL; that of a websocket has its HTTP beside it.
        method: GET or POST.
        path: of the page.
        seconds: for all of it.
        body: JSON to send.
        key: the server's, in the header `Authorization`.

    Raises:
        ServerLostError: nothing answers, or not in time, or no HTTP.
        PolicyError: the answer is too large.
    """
    seconds = max(seconds, _LEAST_S)
    asked = _make_connection(address, seconds)
    headers = {"Connection": "close", "Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Api-Key {key}"
    over = threading.Event()
    try:
        asked.connect()
        with _hang_up_after(asked.sock, seconds, over):
            asked.request(method, path, body, headers)
            answer = asked.getresponse()
            content = answer.read(MAX_REPLY_BYTES + 1)
        if over.is_set() or (answer.length and len(content) <= MAX_REPLY_BYTES):
            raise http.client.IncompleteRead(content, answer.length)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: headers that cannot be read
        is_late = over.is_set() or isinstance(error, TimeoutError)
        raise _lost_error(
            address, f"gave no answer for {seconds:.3g} s" if is_late else _describe_cause(error)
        ) from None
    finally:
        asked.close()
    if len(content) > MAX_REPLY_BYTES:
        problem = f"the server {address} sent an answer of more than {MAX_REPLY_BYTES // 2**20} MiB"
        raise PolicyError(problem, remedy="A reply holds one chunk of actions; have it send nothing else.")
    return answer.status, content


def _make_connection(address: str, seconds: float) -> http.client.HTTPConnection:
    split = urlsplit(address)
    kind = http.client.HTTPSConnection if split.scheme in ("https", "wss") else http.client.HTTPConnection
    return kind(split.hostname or "", split.port, timeout=seconds)


def _lost_error(address: str, event: str) -> ServerLostError:
    remedy = "Its own messages say why; start it again. One that is slow needs --policy-arg timeout_s=SECONDS."
    return ServerLostError(f"the policy server {address} {event}", remedy=remedy)


@contextmanager
def _hang_up_after(connection: socket.socket, seconds: float, over: threading.Event) -> Iterator[None]:
    """Set `over` and shut the connection down when the block takes longer than `seconds`.

    A server that sends a byte now and then would hold up every read anew.
    """

    def hang_up() -> None:
        over.set()
        with suppress(OSError):
            socket.socket.shutdown(
                connection, socket.SHUT_RDWR
            )  # the plain socket's: that of TLS breaks a read under way

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _describe_cause(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        return "answered with something that is no HTTP"
    return f"closed the connection ({str(error)[:200] or type(error).__name__})"


# The kind of a server


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
        server: KIND:ADDRESS of a client here, which is returned as it is; or a URL or HOST:PORT, where what answers
            tells the kind.
        key: the server's.

    Raises:
        ServerUnreachableError: nothing answers.
        PolicyError: the text is no address, or what answers is no policy server that is known, or wants another key.
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
    if split.scheme == "tcp" or (split.scheme not in ("wss", "https") and _speaks_zeromq(split.hostname, port)):
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


def is_harness(address: str) -> bool:
    """Return whether a model server of vla-evaluation-harness answers at an address; False where nothing does in 2 s.

    Such a server has a page `/config` beside its socket. Its `_make_process_request`
    (src/vla_eval/model_servers/serve.py at e1ee9ad) says what the page holds.
    """
    with suppress(PolicyError):
        _, content = exchange(address, "GET", "/config", _CONFIG_S)
        return b'"applied"' in content and b'"config"' in content
    return False


def parse_operation(description: bytes) -> str | None:
    """Return the function behind `/act` by a server's `/openapi.json`; None where it is not described.

    FastAPI calls the operation of a function NAME at POST /act NAME_act_post.
    """
    try:
        content = msgspec.json.decode(description)
        operation = content["paths"]["/act"]["post"]["operationId"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return None
    return operation.removesuffix("_act_post")[:100] if isinstance(operation, str) else None


def _speaks_zeromq(host: str, port: int) -> bool:
    """Return whether a server greets unasked as ZeroMQ's do: the first byte 0xFF, the tenth 0x7F or not there yet.

    Raises `ServerUnreachableError` where nothing takes a connection, or it is broken off.
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
