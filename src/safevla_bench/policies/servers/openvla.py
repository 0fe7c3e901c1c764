"""`openvla:http://HOST:8000`: OpenVLA's or OpenVLA-OFT's own server, `vla-scripts/deploy.py` of each project.

One POST to `/act` for a reply, JSON with arrays as json_numpy packs them. OpenVLA answers with one action [7], OFT with
a list of them, both with the text "error" where the model raised. The two servers differ in their requests; the
operation of `/act` in the server's `/openapi.json` has the name of the function that answers, which tells them apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ReplyError, ServerLostError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.chunking import ChunkedPolicy
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import ClientKind, Endpoint, client_factory
from safevla_bench.policies.servers.codecs import OPENVLA
from safevla_bench.policies.servers.dialect import Dialect, Reply, RequestEntry
from safevla_bench.policies.servers.dialects import read_reply
from safevla_bench.policies.servers.endpoint import KEY, Greeting, Timeouts, redact_key
from safevla_bench.policies.servers.openpi import server_error
from safevla_bench.policies.servers.wires import exchange, parse_operation

DIALECTS: Mapping[str, str] = {
    "predict_action": "openvla-rest-libero",
    "get_server_action": "openvla-oft-rest-libero",
}
"""The function behind `/act` in a server's file, and the dialect of that server."""
NO_STATISTICS = "none"
"""In the place of `unnorm_key`: none is sent."""
_KIND = ClientKind(
    "openvla", library="http", extra="", schemes=("http", "https"), port=8000, dialect="openvla-rest-libero"
)
_PAUSE_S = 0.2


class HttpClient:
    """HTTP requests to the first of several servers that answers."""

    def __init__(self, addresses: Sequence[str], timeouts: Timeouts, key: str | None = None) -> None:
        """Keep addresses and key; the first server counts until `open` finds another."""
        self.address = addresses[0]
        self.key = key
        self._addresses, self._timeouts = tuple(addresses), timeouts

    def open(self) -> str | None:
        """Find a server and return the name of the function that answers `/act`; None where it describes none.

        Raises `ServerUnreachableError`, and `PolicyError` where something answers that takes no such requests.
        """
        until = time.monotonic() + self._timeouts.connect_s
        while True:
            problems = []
            for address in self._addresses:
                try:
                    status, content = exchange(address, "GET", "/openapi.json", until - time.monotonic(), key=self.key)
                except ServerLostError as error:
                    problems.append(error.problem)
                    continue
                if status < 500:
                    self.address = address
                    self._check_status(status, content)
                    return parse_operation(content)
                problems.append(f"{address}: HTTP {status}")  # something in front of a server that is not up
            if time.monotonic() + _PAUSE_S >= until:
                raise connection.unreachable_error(problems, self._timeouts.connect_s)
            time.sleep(_PAUSE_S)

    def post(self, body: bytes) -> bytes:
        """Post JSON to `/act` and return the answer.

        Raises `ServerLostError` where the server closes or stays silent, `PolicyError` where it fails, `ReplyError` for
        any other answer than a reply.
        """
        status, content = exchange(self.address, "POST", "/act", self._timeouts.answer_s, body, self.key)
        if status != HTTPStatus.NOT_FOUND:
            self._check_status(status, content)
        if status != HTTPStatus.OK:
            reason = redact_key(_shorten(content), self.key)
            problem = f"{self.address}/act answers with HTTP {status}: {reason or 'no reason given'}"
            raise ReplyError(problem, remedy="Is it the server of OpenVLA or OpenVLA-OFT (vla-scripts/deploy.py)?")
        return content

    def _check_status(self, status: int, content: bytes) -> None:
        """Raise `PolicyError` for a status that is no answer: 401, 403, 3xx, 413, 426, or 500 and more."""
        if status in (401, 403):
            problem = f"the policy server {self.address} {'refuses this key' if self.key else 'wants a key'}"
            remedy = f"Put its key into the environment variable {KEY}, or pass key_file=FILE."
            raise PolicyError(f"{problem} (HTTP {status})", remedy=remedy)
        if 300 <= status < 400:
            problem = f"{self.address} sends elsewhere (HTTP {status}), which is not followed"
            raise PolicyError(problem, remedy="Give the address of the policy server itself.")
        if status == HTTPStatus.UPGRADE_REQUIRED:
            host = urlsplit(self.address).netloc
            remedy = f"Ask it as --policy openpi:ws://{host} or --policy vla-eval:ws://{host}."
            raise PolicyError(f"the server {self.address} speaks websockets, and not OpenVLA's REST", remedy=remedy)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            problem = f"the server {self.address} refuses a message as large as ours"
            raise PolicyError(problem, remedy="Send smaller images (--policy-arg image_size=N), or raise its limit.")
        if status >= 500:
            raise server_error(self.address, redact_key(_shorten(content) or f"HTTP {status}", self.key))


def _shorten(content: bytes) -> str:
    return content[:500].decode(errors="replace").strip()


class OpenvlaModel:
    """A model behind such a server.

    `unnorm_key` names the statistics by which OpenVLA's server scales actions; None = the suite's, as OpenVLA's own
    evaluation has it, `none` = the model's only ones.
    """

    def __init__(self, client: HttpClient, dialect: Dialect, unnorm_key: str | None = None) -> None:
        """Keep client and dialect; nothing is asked before `connect` or `begin`."""
        self.wants, self.dialect = dialect.wants, dialect
        self.greeting: Greeting = {}
        """The function that answers, where the server describes it; it names no checkpoint."""
        self._client, self._statistics = client, unnorm_key

    def connect(self, task: Task) -> None:
        """Reach the server as `begin` does, before an environment is made. Raises as `begin` does."""
        self.begin(task, 0)

    def begin(self, task: Task, seed: int) -> None:
        """Reach the server, check that the dialect is its own, and choose the statistics of the task's suite.

        Sets `greeting`. The server keeps nothing of an episode, so that `seed` is not used.

        Raises:
            ServerUnreachableError: no server answers.
            ServerRefusedError: what answers is of another kind, or the dialect is the other server's.
        """
        with connection.guard_handshake(lambda: None):
            operation = self._client.open()
            self.greeting = {} if operation is None else {"act": operation}
            fitting = DIALECTS.get(operation or "", self.dialect.name)
            if fitting != self.dialect.name:
                problem = f"the server {self._client.address} answers by {operation}, as that of {fitting} does"
                remedy = f"Pass --policy-arg dialect={fitting}."
                raise PolicyError(f"{problem}, and not by the dialect {self.dialect.name!r}", remedy=remedy)
        self._name_statistics(self._statistics or task.benchmark.replace("-", "_"))

    def _name_statistics(self, unnorm_key: str) -> None:
        fields = tuple(field for field in self.dialect.fields if field.fixed is None)
        if self.dialect.name == _KIND.dialect and unnorm_key != NO_STATISTICS:
            fields = (*fields, RequestEntry(("unnorm_key",), fixed=unnorm_key))
        self.dialect = replace(self.dialect, fields=fields)

    def query(self, observation: Observation) -> Reply:
        """Return the server's reply; an action or a list of them is its `actions`.

        Raises what `HttpClient.post` raises, `ReplyError` where the model failed, and `PolicyError` for an answer that
        cannot be read or an observation that is not what the dialect sends.
        """
        request = self.dialect.build_request(observation)
        reply = OPENVLA.unpack(self._client.post(OPENVLA.pack(request)))
        if isinstance(reply, str):
            reason = redact_key(_shorten(reply.encode()), self._client.key)
            problem = f"the server {self._client.address} answers {reason!r}: its model raised"
            raise ReplyError(problem, remedy=_failure_remedy(request.get("unnorm_key")))
        return reply if isinstance(reply, dict) else {"actions": reply}

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return actions, [H, A]. Raises what `query` raises, and `ReplyError` for another reply."""
        return read_reply(self.dialect, self.query(observation))

    def close(self) -> None:
        """Nothing is kept open."""


def _failure_remedy(unnorm_key: object) -> str:
    if unnorm_key is None:
        return "Its own log holds the traceback; what was sent is in docs/servers.md."
    return (
        f"Its own log holds the traceback. Where its model has no statistics {unnorm_key!r}, pass --policy-arg "
        f"unnorm_key={unnorm_key}_no_noops, the name in dataset_statistics.json, or {NO_STATISTICS}."
    )


def make(
    arg: str | None,
    replan: str | None = None,
    dialect: str = _KIND.dialect,
    cameras: str | None = None,
    image_size: str | None = None,
    connect_timeout_s: str | None = None,
    timeout_s: str | None = None,
    key_env: str | None = None,
    key_file: str | None = None,
    unnorm_key: str | None = None,
) -> ChunkedPolicy:
    """Make the client; the arguments are those of `openpi`, and `unnorm_key`, see `OpenvlaModel`.

    Raises:
        PolicyError: an argument is wrong.
    """
    if unnorm_key is not None and dialect != _KIND.dialect:
        problem = f"unnorm_key is for OpenVLA's server, and {dialect!r} is the dialect of another"
        raise PolicyError(problem, remedy="Start the server of OpenVLA-OFT with --unnorm_key.")

    def make_model(endpoint: Endpoint, spoken: Dialect) -> OpenvlaModel:
        return OpenvlaModel(HttpClient(endpoint.addresses, endpoint.timeouts, endpoint.key), spoken, unnorm_key)

    arguments = (replan, dialect, cameras, image_size, connect_timeout_s, timeout_s, key_env, key_file)
    return client_factory(_KIND, make_model)(arg, *arguments)
