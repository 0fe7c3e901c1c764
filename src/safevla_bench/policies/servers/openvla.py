"""The policies `openvla` and `xvla`, behind HTTP servers that answer POSTs to `/act` with JSON and json_numpy's arrays.

`openvla:http://HOST:8000` is the server of OpenVLA or OpenVLA-OFT, `vla-scripts/deploy.py` of each project. OpenVLA
answers with one action [7], and OFT with a list of actions. Both answer "error" if the model raised an exception.

`xvla:http://HOST:8010` is X-VLA's server, `deploy.py`. In a request, images and the pose are texts of json_numpy. In a
reply, `action` contains rows of 20 numbers, ten per arm. If the model raised an exception, the reply is HTTP 400.

Requests have time and size limits. Proxies and redirects are not used. Each request opens a new connection, because
these servers close a connection after five idle seconds, and a simulator may need longer between two requests.
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

NO_STATISTICS = "none"  # with unnorm_key=none, requests do not contain `unnorm_key`


class HttpModel(RemoteModel):
    """A model behind an HTTP server that answers POSTs to `/act` in JSON and does not describe itself."""

    kind, codec = "openvla", OPENVLA

    def _greet(self) -> None: ...  # do nothing, because OpenVLA's and X-VLA's servers send no greeting

    def ask(self, request: Mapping[str, object]) -> object:
        """Return the answer to a request. Raise `query`'s errors, and `ReplyError` for HTTP 201 to 499 except 413."""
        # The end of an error's text is the most useful part.
        body = self.codec.pack(request)
        status, content = exchange(self.address, "POST", "/act", self._endpoint.answer_s, body, self.key)
        text = content[-servers.MAX_CHARACTERS :].decode(errors="replace")
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise servers.size_error(self.address)
        if status >= 500:
            raise self.server_error(text or f"HTTP {status}")
        if status != HTTPStatus.OK:
            problem = servers.server_error(f"{self.address}/act", f"HTTP {status}: {text}", self.key).problem
            remedy = f"See the server's log. The address, without /act, must belong to {KINDS[self.kind].about}."
            raise ReplyError(problem, remedy=remedy)
        return self.codec.unpack(content)

    def _try_connect(self, address: str, until: float) -> str | None:
        # Request a page that most servers have. Return None if the server is ready, else the reason for the failure.
        # Raise `PolicyError` for a server of another kind, or one that refuses the key. `until` is a monotonic time.
        try:
            status, _ = exchange(address, "GET", "/openapi.json", until - time.monotonic(), key=self.key)
        except ServerLostError as error:
            return error.problem
        if 300 <= status < 500 and status != HTTPStatus.NOT_FOUND:  # 404: the server answers, but lacks this page
            raise servers.status_error(address, status, self.key)
        return f"HTTP {status}" if status >= 500 else None  # 5xx: only a proxy answers


def exchange(
    address: str, method: str, path: str, seconds: float, body: bytes | None = None, key: str | None = None
) -> tuple[int, bytes]:
    """Send one HTTP request with the JSON `body`; return the status and the content of the answer. `address` is the
    server's URL, to which `path` is added; `seconds` limits the time to connect and to exchange; `key` is sent as
    `Authorization`. Raises `ServerLostError` without an answer in time, `PolicyError` for too large an answer.
    """
    seconds, url = max(seconds, servers.PAUSE_S), urlsplit(address)
    connection_type = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = connection_type(url.hostname or "", url.port, timeout=seconds)
    headers = {"Connection": "close", "Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Api-Key {key}"
    expired = threading.Event()
    sock: socket.socket | None = None  # None until the connection is made

    def hang_up() -> None:
        # Abort the request. The connection's timeout limits each read; this limits the time of the whole exchange.
        expired.set()
        with suppress(OSError):
            if sock is not None:
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # closing TLS here would break a read in progress

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    try:
        timer.start()
        connection.connect()
        sock = connection.sock
        if expired.is_set():
            raise TimeoutError
        connection.request(method, url.path + path, body, headers)
        response = connection.getresponse()
        content = response.read(servers.MAX_REPLY_BYTES + 1)  # one more byte, to detect too much content
        # `response.length` is the number of announced bytes not read.
        # If this number is above 0, the content is cut off or too large.
        if expired.is_set() or (response.length and len(content) <= servers.MAX_REPLY_BYTES):
            raise http.client.IncompleteRead(content, response.length)
    except (OSError, http.client.HTTPException, ValueError) as error:  # a ValueError means unreadable headers
        if expired.is_set() or isinstance(error, TimeoutError):
            raise servers.silent_error(address, seconds) from None
        event = f"closed the connection ({servers.describe_lost_connection(error)})"
        raise servers.lost_error(address, event) from None
    finally:
        timer.cancel()
        connection.close()
    if len(content) > servers.MAX_REPLY_BYTES:
        raise servers.size_error(address)
    return response.status, content


class OpenvlaModel(HttpModel):
    """A model behind a server of OpenVLA or OpenVLA-OFT. `unnorm_key` names the statistics by which OpenVLA's server
    scales actions. The default is the suite's name, as in OpenVLA's evaluation. With `none`, requests contain no name.
    """

    def __init__(self, endpoint: servers.Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        """Raise `PolicyError` if `unnorm_key` is given for a server other than OpenVLA's."""
        # `unnorm_key` names the statistics for scaling actions. Only OpenVLA's server reads this name in requests.
        super().__init__(endpoint, dialect, arguments)
        self._base_dialect, self._statistics = dialect, arguments.get("unnorm_key")
        self._is_openvla_server = dialect.name == KINDS["openvla"].dialect
        if self._statistics is not None and not self._is_openvla_server:
            problem = f"unnorm_key is only for the dialect of OpenVLA's server, not for the dialect {dialect.name!r}"
            raise PolicyError(problem, remedy="Start the server of OpenVLA-OFT with --unnorm_key.")

    def begin(self, task: Task, seed: int) -> None:
        """Connect, and choose the statistics for the task's suite; raise the errors of `ChunkModel.begin`."""
        super().begin(task, seed)
        # OpenVLA's statistics are named like the suite, such as `libero_spatial`. `NO_STATISTICS` sends no name.
        unnorm_key = self._statistics or task.benchmark.replace("-", "_")
        if self._is_openvla_server and unnorm_key != NO_STATISTICS:
            self.dialect = self._base_dialect.add_fixed("unnorm_key", unnorm_key)

    def query(self, observation: Observation) -> Reply:
        """Return the server's reply as a map. A reply of another type gets the key `actions`. Raises `ask`'s errors."""
        reply = self.ask(self.dialect.build_request(observation))
        if isinstance(reply, str):  # OpenVLA's servers answer with the text "error" if their model fails
            problem = self.server_error(f"answers {reply[:200]!r}: the model raised an exception").problem
            names = f"NAME from dataset_statistics.json, such as libero_spatial_no_noops, or {NO_STATISTICS}"
            argument = f"If the model lacks the suite's statistics, pass --policy-arg unnorm_key={names}."
            raise ReplyError(problem, remedy=f"The server's log has the traceback. {argument}")
        return reply if isinstance(reply, dict) else {"actions": reply}


# X-VLA
_POSE_SIZE = 9  # number of values of the pose in `proprio`


class XvlaModel(HttpModel):
    """A model behind an X-VLA server. The first request sends the measured pose; others send the last chunk's end."""

    kind, codec = "xvla", XVLA
    _last_target: NDArray[np.float64] | None = None

    def begin(self, task: Task, seed: int) -> None:
        # Begin an episode: its first request sends the measured pose.
        self._last_target = None
        super().begin(task, seed)

    def query(self, observation: Observation) -> Reply:
        # Return the server's reply as a map. A reply of another type gets the key `answer`, and is refused later.
        request = self.dialect.build_request(observation)
        if self._last_target is not None:  # an episode's first request keeps the measured pose
            request["proprio"] = np.concatenate([self._last_target, np.asarray(request["proprio"])[_POSE_SIZE:]])
        answer = self.ask(request)
        reply = answer if isinstance(answer, dict) else {"answer": answer}
        # The next request's pose is the last row of this chunk, as in X-VLA's evaluation.
        with suppress(ReplyError):  # `infer` reads the reply again, and raises the error
            self._last_target = self.dialect.file.reply[0].read_rows(reply)[-1, :_POSE_SIZE]
        return reply


make = client_factory("openvla", OpenvlaModel)
make_xvla = client_factory("xvla", XvlaModel)
