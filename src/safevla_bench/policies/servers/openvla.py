"""Policies behind HTTP servers that answer a POST to `/act`, in JSON with arrays encoded by json_numpy.

`openvla:http://HOST:8000` is the server of OpenVLA or OpenVLA-OFT, `vla-scripts/deploy.py` of each project. OpenVLA
answers with one action [7], OFT with a list of actions; both with the text "error" if the model raised.

`xvla:http://HOST:8010` is X-VLA's server, `deploy.py`. A request has images and the pose as texts of json_numpy. A
reply has `action`, rows of 20 numbers of which one arm uses ten, or HTTP 400 if the model raised.

A request has a time and size limit, no proxy, no redirect, and its own connection: servers of this kind close a
connection that is idle for five seconds, and a simulator may take longer between two requests.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ReplyError, ServerLostError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import KINDS, RemoteModel, client_factory
from safevla_bench.policies.servers import endpoint as servers
from safevla_bench.policies.servers.codecs import OPENVLA, XVLA
from safevla_bench.policies.servers.dialects import Dialect, Reply

NO_STATISTICS = "none"  # as `unnorm_key`: send none


class HttpModel(RemoteModel):
    """A model behind HTTP servers that answer POSTs to `/act` in JSON and do not describe themselves."""

    kind, codec = "openvla", OPENVLA

    def _greet(self) -> None: ...

    def ask(self, request: Mapping[str, object]) -> object:
        """Return the answer to a request; raise `ReplyError` for an unusable one, and as `ChunkModel.query` does."""
        body = self.codec.pack(request)
        status, content = exchange(self.address, "POST", "/act", self._endpoint.answer_s, body, self.key)
        text = content[-servers.MAX_CHARACTERS :].decode(errors="replace")
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise servers.size_error(self.address)
        if status >= 500:
            raise self.server_error(text or f"HTTP {status}")
        if status != HTTPStatus.OK:
            error = servers.server_error(f"{self.address}/act", f"HTTP {status}: {text}", self.key)
            raise ReplyError(error.problem, remedy=f"Is it {KINDS[self.kind].about}? Its own log says more.")
        return self.codec.unpack(content)

    def _try_connect(self, address: str, until: float) -> str | None:
        try:
            status, _ = exchange(address, "GET", "/openapi.json", until - time.monotonic(), key=self.key)
        except ServerLostError as error:
            return error.problem
        if 300 <= status < 500 and status != HTTPStatus.NOT_FOUND:
            raise servers.status_error(address, status, self.key)
        return f"HTTP {status}" if status >= 500 else None  # a proxy in front of a server that is not running


def exchange(
    address: str, method: str, path: str, seconds: float, body: bytes | None = None, key: str | None = None
) -> tuple[int, bytes]:
    """Return the status and the content of one answer to `body` (JSON), within `seconds` in total. `address` is the
    server's URL, `method` GET or POST, `key` the server's, sent as `Authorization`. Raises `ServerLostError` without an
    HTTP answer in time, and `PolicyError` if it is too large.
    """
    seconds, split = max(seconds, servers.PAUSE_S), urlsplit(address)
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    asked = kind(split.hostname or "", split.port, timeout=seconds)
    headers = {"Connection": "close", "Content-Type": "application/json"}
    over = threading.Event()

    def hang_up() -> None:
        over.set()
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # the plain socket's: TLS shutdown breaks a read in progress

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    try:
        asked.connect()
        sock = asked.sock
        timer.start()
        asked.request(method, path, body, {**headers, "Authorization": f"Api-Key {key}"} if key else headers)
        answer = asked.getresponse()
        content = answer.read(servers.MAX_REPLY_BYTES + 1)
        if over.is_set() or (answer.length and len(content) <= servers.MAX_REPLY_BYTES):
            raise http.client.IncompleteRead(content, answer.length)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: unreadable headers
        if over.is_set() or isinstance(error, TimeoutError):
            raise servers.silent_error(address, seconds) from None
        raise servers.lost_error(address, f"closed the connection ({servers.describe_cause(error)})") from None
    finally:
        timer.cancel()
        asked.close()
    if len(content) > servers.MAX_REPLY_BYTES:
        raise servers.size_error(address)
    return answer.status, content


class OpenvlaModel(HttpModel):
    """A model behind such a server. The argument `unnorm_key` names the statistics by which OpenVLA's server scales
    actions; by default the suite's, as in OpenVLA's evaluation; `none` = the model's only ones.
    """

    def __init__(self, endpoint: servers.Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        """Raise `PolicyError` for an `unnorm_key` with a server other than OpenVLA's."""
        super().__init__(endpoint, dialect, arguments)
        self._own_dialect, self._statistics = dialect, arguments.get("unnorm_key")
        self._is_own = dialect.name == KINDS["openvla"].dialect
        if self._statistics is not None and not self._is_own:
            problem = f"unnorm_key is for OpenVLA's server, and {dialect.name!r} is the dialect of another"
            raise PolicyError(problem, remedy="Start the server of OpenVLA-OFT with --unnorm_key.")

    def begin(self, task: Task, seed: int) -> None:
        """Connect and choose the statistics of the task's suite; raises the errors of `ChunkModel.begin`."""
        super().begin(task, seed)
        unnorm_key = self._statistics or task.benchmark.replace("-", "_")
        if self._is_own and unnorm_key != NO_STATISTICS:
            self.dialect = self._own_dialect.add_fixed("unnorm_key", unnorm_key)

    def query(self, observation: Observation) -> Reply:
        """Return the server's reply, an action or a list of them under `actions`; raises as `ChunkModel.query`."""
        reply = self.ask(self.dialect.build_request(observation))
        if isinstance(reply, str):
            problem = self.server_error(f"answers {reply[:200]!r}: its model raised").problem
            remedy = (
                "Its own log has the traceback. If its model has no such statistics, pass --policy-arg unnorm_key="
                f"NAME of its dataset_statistics.json, such as libero_spatial_no_noops, or {NO_STATISTICS}."
            )
            raise ReplyError(problem, remedy=remedy)
        return reply if isinstance(reply, dict) else {"actions": reply}


_POSE = 9  # numbers of `proprio`, a position and a rotation, replaced by the last row of a reply


class XvlaModel(HttpModel):
    """A model behind an X-VLA server; the request carries the previous chunk's target pose."""

    kind, codec = "xvla", XVLA
    _end: NDArray[np.float64] | None = None

    def begin(self, task: Task, seed: int) -> None:
        self._end = None
        super().begin(task, seed)

    def query(self, observation: Observation) -> Reply:
        request = self.dialect.build_request(observation)
        if self._end is not None:
            request["proprio"] = np.concatenate([self._end, np.asarray(request["proprio"])[_POSE:]])
        answer = self.ask(request)
        reply = answer if isinstance(answer, dict) else {"answer": answer}
        with suppress(ReplyError):  # `infer` raises it
            self._end = self.dialect.file.reply[0].read_rows(reply)[-1, :_POSE]
        return reply


make = client_factory("openvla", OpenvlaModel)
make_xvla = client_factory("xvla", XvlaModel)
