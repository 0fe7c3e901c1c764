"""`openvla:http://HOST:8000`: OpenVLA's or OpenVLA-OFT's own server, `vla-scripts/deploy.py` of each project.

One POST to `/act` for a reply, JSON with arrays as json_numpy packs them. OpenVLA answers with one action [7], OFT with
a list of them, both with the text "error" if the model raised. The two servers differ in their requests; the operation
of `/act` in the server's `/openapi.json` has the name of the function that answers, which the dialect must fit.

A request is bounded in time and size, with no proxy, no redirect, and a connection of its own: servers of this kind
close a connection that is idle for five seconds, which a simulator may take between two requests.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from safevla_bench.errors import PolicyError, ReplyError, ServerLostError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import KINDS, ChunkModel, client_factory
from safevla_bench.policies.servers.codecs import OPENVLA
from safevla_bench.policies.servers.dialects import Dialect, Reply, RequestEntry
from safevla_bench.policies.servers.endpoint import Endpoint, redact_key

DIALECTS: Mapping[str, str] = {
    "predict_action": "openvla-rest-libero",
    "get_server_action": "openvla-oft-rest-libero",
}
"""The function behind `/act` in a server's file, and the dialect of that server."""
NO_STATISTICS = "none"
"""In the place of `unnorm_key`: none is sent."""
MAX_REPLY_BYTES = 4 * 2**20
"""The largest answer that is taken; a chunk of actions has a few kilobytes."""
_LEAST_S = 0.2


def exchange(
    address: str, method: str, path: str, seconds: float, body: bytes | None = None, key: str | None = None
) -> tuple[int, bytes]:
    """Return the status and the content of one answer to `body` (JSON), within `seconds` for all of it.

    `address` is the server's URL, `method` GET or POST, `key` the server's, sent as `Authorization`. Raises
    `ServerLostError` if nothing answers, or not in time, or no HTTP, and `PolicyError` for too large an answer.
    """
    seconds = max(seconds, _LEAST_S)
    split = urlsplit(address)
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    asked = kind(split.hostname or "", split.port, timeout=seconds)
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
        event = f"gave no answer for {seconds:.3g} s" if is_late else _describe_cause(error)
        remedy = "Its own messages say why; start it again. One that is slow needs --policy-arg timeout_s=SECONDS."
        raise ServerLostError(f"the policy server {address} {event}", remedy=remedy) from None
    finally:
        asked.close()
    if len(content) > MAX_REPLY_BYTES:
        problem = f"the server {address} sent an answer of more than {MAX_REPLY_BYTES // 2**20} MiB"
        raise PolicyError(problem, remedy="A reply holds one chunk of actions; have it send nothing else.")
    return answer.status, content


@contextmanager
def _hang_up_after(connection: socket.socket, seconds: float, over: threading.Event) -> Iterator[None]:
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


def parse_operation(description: bytes) -> str | None:
    """Return the function behind `/act` by a server's `/openapi.json`; None if it is not described.

    FastAPI calls the operation of a function NAME at POST /act NAME_act_post.
    """
    try:
        content = msgspec.json.decode(description)
        operation = content["paths"]["/act"]["post"]["operationId"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return None
    return operation.removesuffix("_act_post")[:100] if isinstance(operation, str) else None


class HttpClient:
    """HTTP requests to the first of several servers that answers."""

    def __init__(self, endpoint: Endpoint, kind: str) -> None:
        self.address, self.key, self._about = endpoint.addresses[0], endpoint.key, KINDS[kind].about
        self._endpoint = endpoint
        self._description = b""

    def open(self) -> str | None:
        """Find a server and return the name of the function that answers `/act`; None if it describes none.

        Raises `ServerUnreachableError`, and `PolicyError` if something answers that takes no such requests.
        """
        self.address = connection.find_server(self._endpoint, self._try_connect)
        return parse_operation(self._description)

    def _try_connect(self, address: str, until: float) -> str | None:
        try:
            status, content = exchange(address, "GET", "/openapi.json", until - time.monotonic(), key=self.key)
        except ServerLostError as error:
            return error.problem
        if status >= 500:  # something in front of a server that is not up
            return f"{address}: HTTP {status}"
        self._check_status(address, status, content)
        self._description = content
        return None

    def post(self, body: bytes) -> bytes:
        """Post JSON to `/act` and return the answer.

        Raises `ServerLostError` if the server closes or stays silent, `PolicyError` if it fails, and `ReplyError` for
        any other answer than a reply.
        """
        status, content = exchange(self.address, "POST", "/act", self._endpoint.answer_s, body, self.key)
        if status != HTTPStatus.NOT_FOUND:
            self._check_status(self.address, status, content)
        if status != HTTPStatus.OK:
            reason = redact_key(_shorten(content), self.key)
            problem = f"{self.address}/act answers with HTTP {status}: {reason or 'no reason given'}"
            raise ReplyError(problem, remedy=f"Is it {self._about}? Its own log says more.")
        return content

    def _check_status(self, address: str, status: int, content: bytes) -> None:
        refusal = connection.refused_error(address, status, self.key)
        if refusal:
            raise refusal
        if status == HTTPStatus.UPGRADE_REQUIRED:
            host = urlsplit(address).netloc
            remedy = f"Ask it as --policy openpi:ws://{host} or --policy vla-eval:ws://{host}."
            raise PolicyError(f"the server {address} speaks websockets, and is not {self._about}", remedy=remedy)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise connection.too_large_error(address)
        if status >= 500:
            raise connection.server_error(address, _shorten(content) or f"HTTP {status}", self.key)


def _shorten(content: bytes) -> str:
    return content[:500].decode(errors="replace").strip()


class OpenvlaModel(ChunkModel):
    """A model behind such a server; its greeting names the function that answers, and no checkpoint.

    The argument `unnorm_key` names the statistics by which OpenVLA's server scales actions; without it the suite's, as
    OpenVLA's own evaluation has it; `none` = the model's only ones.
    """

    def __init__(self, endpoint: Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        """Raise `PolicyError` for an `unnorm_key` of another server than OpenVLA's."""
        super().__init__(dialect)
        self._client, self._statistics = HttpClient(endpoint, "openvla"), arguments.get("unnorm_key")
        self._is_own = dialect.name == KINDS["openvla"].dialect
        if self._statistics is not None and not self._is_own:
            problem = f"unnorm_key is for OpenVLA's server, and {dialect.name!r} is the dialect of another"
            raise PolicyError(problem, remedy="Start the server of OpenVLA-OFT with --unnorm_key.")

    def begin(self, task: Task, seed: int) -> None:
        """Reach the server, check that the dialect is its own, and choose the statistics of the task's suite.

        Raises what `ChunkModel.begin` raises.
        """
        with connection.guard_handshake(lambda: None):
            operation = self._client.open()
            self.greeting = {} if operation is None else {"act": operation}
            fitting = DIALECTS.get(operation or "", self.dialect.name)
            if fitting != self.dialect.name:
                problem = f"the server {self._client.address} answers by {operation}, as that of {fitting} does"
                remedy = f"Pass --policy-arg dialect={fitting}."
                raise PolicyError(f"{problem}, and not by the dialect {self.dialect.name!r}", remedy=remedy)
        unnorm_key = self._statistics or task.benchmark.replace("-", "_")
        fields = tuple(field for field in self.dialect.fields if field.fixed is None)
        if self._is_own and unnorm_key != NO_STATISTICS:
            fields = (*fields, RequestEntry(("unnorm_key",), fixed=unnorm_key))
        self.dialect = replace(self.dialect, fields=fields)

    def query(self, observation: Observation) -> Reply:
        """Return the server's reply; an action or a list of them is its `actions`. Raises as `ChunkModel.query`."""
        request = self.dialect.build_request(observation)
        reply = OPENVLA.unpack(self._client.post(OPENVLA.pack(request)))
        if isinstance(reply, str):
            reason = redact_key(_shorten(reply.encode()), self._client.key)
            problem = f"the server {self._client.address} answers {reason!r}: its model raised"
            raise ReplyError(problem, remedy=_failure_remedy(request.get("unnorm_key")))
        return reply if isinstance(reply, dict) else {"actions": reply}


def _failure_remedy(unnorm_key: object) -> str:
    if unnorm_key is None:
        return "Its own log holds the traceback; what was sent is in docs/servers.md."
    return (
        f"Its own log holds the traceback. Where its model has no statistics {unnorm_key!r}, pass --policy-arg "
        f"unnorm_key={unnorm_key}_no_noops, the name in dataset_statistics.json, or {NO_STATISTICS}."
    )


make = client_factory("openvla", OpenvlaModel)
