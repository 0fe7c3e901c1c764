"""`gr00t:HOST:5555`: the policy behind a GR00T server, asked over ZeroMQ.

One request, one reply, both maps of MessagePack: an endpoint's name with its data goes out, `[action, info]` comes
back, or `{"error": text}`. Cameras, states and actions have a key each ("modality"). The servers of GR00T N1.5, which
have no endpoint `reset`, take the observation alone as the data and answer with the action alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.interface import Observation, Task
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import ClientKind, Endpoint, client_factory
from safevla_bench.policies.servers.codecs import GR00T
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.policies.servers.endpoint import Timeouts, redact_key
from safevla_bench.policies.servers.metadata import Greeting, sanitize_greeting
from safevla_bench.policies.servers.openpi import server_error

if TYPE_CHECKING:
    import zmq

_FAILED = b"ERROR"
"""The answer of a server of another kind of message, such as GR00T N1's, which pickles."""
_NO_RESET = "Unknown endpoint: reset"


class RequestSocket:
    """A ZeroMQ socket that asks one server at a time. After a timeout it is made anew: it could not ask again."""

    def __init__(self, servers: Sequence[str], timeouts: Timeouts, token: str | None = None) -> None:
        self.address = servers[0]
        self._servers, self._timeouts, self._token = tuple(servers), timeouts, token
        self._socket: zmq.SyncSocket | None = None

    def open(self) -> None:
        """Find the first server of the list that answers a ping.

        Raises `ServerUnreachableError`, and `PolicyError` where one answers with an error, such as a wrong token.
        """
        self.close()
        share = self._timeouts.connect_s / len(self._servers)
        for address in self._servers:
            self.address = address
            try:
                self.call("ping", timeout_s=share)
            except ServerLostError:
                continue
            return
        tried = [f"{address}: no answer to a ping" for address in self._servers]
        raise connection.unreachable_error(tried, self._timeouts.connect_s)

    def call(self, endpoint: str, data: Mapping[str, object] | None = None, timeout_s: float | None = None) -> object:
        """Ask an endpoint and return its answer.

        Raises `ServerLostError` where nothing comes in time, `PolicyError` for an answer that is an error.
        """
        request = {"endpoint": endpoint, **({} if data is None else {"data": data})}
        message = GR00T.pack({**request, **({"api_token": self._token} if self._token else {})})
        reply = self._exchange(message, self._timeouts.answer_s if timeout_s is None else timeout_s)
        if reply == _FAILED:
            self.close()
            problem = f"the policy server {self.address} cannot read what it was sent"
            raise PolicyError(problem, remedy="GR00T's servers before MessagePack pickle, which is not spoken: update.")
        answer = GR00T.unpack(reply)
        if isinstance(answer, dict) and "error" in answer:
            self.close()
            raise server_error(self.address, redact_key(str(answer["error"]), self._token))
        return answer

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        """Send one message and return the reply, a message of one part."""
        import zmq

        socket = self._socket or self._connect()
        socket.setsockopt(zmq.RCVTIMEO, math.ceil(1000 * seconds))
        socket.setsockopt(zmq.SNDTIMEO, math.ceil(1000 * seconds))
        try:
            socket.send(message)
            reply = socket.recv()
            has_more_parts = socket.getsockopt(zmq.RCVMORE)
        except zmq.Again:
            self.close()
            large = f"a reply of more than {connection.MAX_REPLY_BYTES // 2**20} MiB is not taken"
            remedy = f"A server that is slow needs --policy-arg timeout_s=SECONDS; {large}; is it still running?"
            problem = f"the policy server {self.address} gave no answer for {seconds:g} s"
            raise ServerLostError(problem, remedy=remedy) from None
        except zmq.ZMQError as error:
            self.close()
            raise ServerLostError(f"the policy server {self.address}: {error}", remedy="Start it again.") from None
        if has_more_parts:
            self.close()
            problem = f"the policy server {self.address} sent a message of several parts"
            raise PolicyError(problem, remedy="GR00T's servers send one: is it one?")
        return reply

    def describe_server(self, *, bare: bool) -> Greeting:
        """Return the server's description of itself, or only how it is asked where it gives none."""
        summary = {"get_action": "the observation alone" if bare else "observation and options"}
        try:
            config = self.call("get_modality_config")
        except ServerLostError:
            raise
        except PolicyError:
            return summary
        return sanitize_greeting({**summary, "modality_config": config}, self._token)

    def close(self) -> None:
        """Close the socket, if there is one; a message that waits in it is dropped."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close(linger=0)

    def _connect(self) -> zmq.SyncSocket:
        import zmq

        socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, connection.MAX_REPLY_BYTES)
        socket.connect(self.address)
        self._socket = socket
        return socket


class Gr00tModel:
    """A model behind a GR00T server."""

    def __init__(self, requests: RequestSocket, dialect: Dialect) -> None:
        self.wants = dialect.wants
        self.greeting: Greeting = {}
        """The server's description of itself, sanitized for a record: its modalities, which name no checkpoint."""
        self._requests, self._dialect = requests, dialect
        self._bare = False

    def begin(self, task: Task, seed: int) -> None:
        """Find the server, and have it forget the last episode.

        Raises `ServerUnreachableError`, and `ServerRefusedError` where one answers with an error.
        """
        with connection.guard_handshake(self._requests.close):
            self._requests.open()
            self._bare = not self._supports_reset()
            self.greeting = self._requests.describe_server(bare=self._bare)

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return actions, [H, A]. Raises what `RequestSocket.call` raises, and `InvalidActionError`."""
        request = self._dialect.build_request(observation)
        data = request if self._bare else {"observation": request, "options": None}
        answer = action = self._requests.call("get_action", data)
        if not self._bare:
            action = answer[0] if isinstance(answer, list) and answer else None
        if not isinstance(action, dict):
            problem = f"the server {self._requests.address} answered with a {type(answer).__name__}"
            raise PolicyError(problem, remedy="GR00T's servers answer [action, info], N1.5's an action: is it one?")
        return self._dialect.read_actions(action)

    def close(self) -> None:
        self._requests.close()

    def _supports_reset(self) -> bool:
        """Return whether the server has the endpoint `reset`; N1.5's does not."""
        try:
            self._requests.call("reset", {"options": None})
        except ServerLostError:
            raise
        except PolicyError as error:
            if _NO_RESET not in error.problem:
                raise
            return False
        return True


def _make_model(endpoint: Endpoint, dialect: Dialect) -> Gr00tModel:
    return Gr00tModel(RequestSocket(endpoint.addresses, endpoint.timeouts, endpoint.key), dialect)


make = client_factory(
    ClientKind("gr00t", library="zmq", extra="gr00t", schemes=("tcp",), port=5555, dialect="gr00t-libero"),
    _make_model,
)
"""Makes the client; its key is GR00T's `api_token`."""
