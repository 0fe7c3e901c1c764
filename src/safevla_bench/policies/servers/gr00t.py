"""`gr00t:HOST:5555`: the policy behind a GR00T server, asked over ZeroMQ.

One request, one reply, both maps of MessagePack: an endpoint's name with its data goes out, `[action, info]` comes
back, or `{"error": text}`. Cameras, states and actions have a key each ("modality"). The servers of GR00T N1.5, which
have no endpoint `reset`, take the observation alone as the data and answer with the action alone. How arrays are packed
follows from the server's description of its modalities, and whether keys are nested from its answer to flat ones.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import connection, modalities
from safevla_bench.policies.servers.client import ClientKind, Endpoint, client_factory
from safevla_bench.policies.servers.codecs import GR00T, Codec
from safevla_bench.policies.servers.dialect import Dialect, Reply
from safevla_bench.policies.servers.dialects import read_reply
from safevla_bench.policies.servers.endpoint import Greeting, Timeouts, redact_key, sanitize_greeting
from safevla_bench.policies.servers.openpi import server_error

if TYPE_CHECKING:
    import zmq

_FAILED = b"ERROR"
"""The answer of a server of another kind of message, such as GR00T N1's, which pickles."""
_NO_RESET = "Unknown endpoint: reset"
_HEARTBEAT_S, _SILENT_S = 5.0, 20.0
"""Seconds between two heartbeats, and without an answer to any. ZeroMQ's own thread in the server answers them while
its model computes or compiles; a process that is stopped, or a machine that is gone, does not."""
_PAUSE_S = 0.2


class RequestSocket:
    """A ZeroMQ socket that asks one server at a time. After a timeout it is made anew: it could not ask again.

    A monitor beside the socket tells when the connection ends; the socket alone would wait for its reply in silence.
    """

    def __init__(self, servers: Sequence[str], timeouts: Timeouts, token: str | None = None) -> None:
        """Keep addresses and token; nothing is connected before the first request."""
        self.address = servers[0]
        self.codec: Codec = GR00T
        self.token = token
        self._servers, self._timeouts = tuple(servers), timeouts
        self._socket: zmq.SyncSocket | None = None
        self._monitor: zmq.SyncSocket | None = None

    def open(self) -> None:
        """Find the first server of the list that answers a ping; each gets an equal share of the time to connect.

        Raises `ServerUnreachableError` where none does, and `PolicyError` where one answers with an error, such as that
        of a wrong token.
        """
        self.close()
        share = self._timeouts.connect_s / len(self._servers)
        for address in self._servers:
            self.address = address
            if self._answers_ping(time.monotonic() + share):
                return
        tried = [f"{address}: no answer to a ping" for address in self._servers]
        raise connection.unreachable_error(tried, self._timeouts.connect_s)

    def _answers_ping(self, until: float) -> bool:
        """Return whether the server answers a ping before the monotonic time `until`; pings again until then.

        Something in front of a server that starts may hang up meanwhile. Raises `PolicyError` where the answer is an
        error.
        """
        while (left_s := until - time.monotonic()) > 0:
            try:
                self.call("ping", timeout_s=left_s)
            except ServerLostError:
                time.sleep(min(_PAUSE_S, max(until - time.monotonic(), 0)))
            else:
                return True
        return False

    def call(self, endpoint: str, data: Mapping[str, object] | None = None, timeout_s: float | None = None) -> object:
        """Ask an endpoint and return its answer; connects where there is no connection.

        Raises `ServerLostError` where nothing comes in time, `PolicyError` for an answer that is an error or cannot be
        read.
        """
        request = {"endpoint": endpoint, **({} if data is None else {"data": data})}
        message = self.codec.pack({**request, **({"api_token": self.token} if self.token else {})})
        reply = self._exchange(message, self._timeouts.answer_s if timeout_s is None else timeout_s)
        if reply == _FAILED:
            self.close()
            problem = f"the policy server {self.address} cannot read what it was sent"
            raise PolicyError(problem, remedy="GR00T's servers before MessagePack pickle, which is not spoken: update.")
        answer = self.codec.unpack(reply)
        if isinstance(answer, dict) and "error" in answer:
            self.close()
            raise server_error(self.address, redact_key(str(answer["error"]), self.token))
        return answer

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        """Send one message and return the reply, a message of one part; connects where there is no connection.

        Raises `ServerLostError` where the server is silent for `seconds` or goes, `PolicyError` for a reply of several
        parts; the socket is closed then.
        """
        import zmq

        socket = self._socket or self._connect()
        until = time.monotonic() + seconds
        try:
            socket.setsockopt(zmq.SNDTIMEO, round(1000 * seconds))
            socket.send(message)
            self._await_reply(socket, until, seconds)
            reply = socket.recv(zmq.NOBLOCK)
            has_more_parts = socket.getsockopt(zmq.RCVMORE)
        except zmq.Again:
            raise self._silent_error(seconds) from None
        except zmq.ZMQError as error:
            self.close()
            raise ServerLostError(f"the policy server {self.address}: {error}", remedy="Start it again.") from None
        if has_more_parts:
            self.close()
            problem = f"the policy server {self.address} sent a message of several parts"
            raise PolicyError(problem, remedy="GR00T's servers send one: is it one?")
        return reply

    def _await_reply(self, socket: zmq.SyncSocket, until: float, seconds: float) -> None:
        """Return when the reply is there; raise `ServerLostError` where the connection ends or the time is over."""
        import zmq

        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        events = dict(poller.poll(max(0, round(1000 * (until - time.monotonic())))))
        if socket in events:
            return
        if not events:
            raise self._silent_error(seconds)
        self.close()
        large = f"a reply of more than {connection.MAX_REPLY_BYTES // 2**20} MiB is not taken"
        problem = f"the policy server {self.address} closed the connection, or answers no heartbeat"
        raise ServerLostError(problem, remedy=f"Its own messages say why; start it again ({large}).")

    def _silent_error(self, seconds: float) -> ServerLostError:
        self.close()
        remedy = "A server that is slow needs --policy-arg timeout_s=SECONDS; is it still running?"
        return ServerLostError(f"the policy server {self.address} gave no answer for {seconds:g} s", remedy=remedy)

    def describe_modalities(self) -> object:
        """Return the server's description of its modalities, and from now on pack arrays as it does.

        None where it answers with an error. Raises `ServerLostError` where it goes or stays silent.
        """
        try:
            config = self.call("get_modality_config")
        except ServerLostError:
            raise
        except PolicyError:
            return None
        self.codec = modalities.choose_codec(config)
        return config

    def close(self) -> None:
        """Close the socket, if there is one; a message that waits in it is dropped."""
        socket, monitor, self._socket, self._monitor = self._socket, self._monitor, None, None
        if socket is not None and monitor is not None:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    def _connect(self) -> zmq.SyncSocket:
        """Return a new socket to the present server with its monitor, and keep both; waits for nothing."""
        import zmq

        socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, connection.MAX_REPLY_BYTES)
        socket.setsockopt(zmq.HEARTBEAT_IVL, round(1000 * _HEARTBEAT_S))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(1000 * _SILENT_S))
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(self.address)
        self._socket = socket
        return socket


class Gr00tModel:
    """A model behind a GR00T server."""

    def __init__(self, requests: RequestSocket, dialect: Dialect) -> None:
        """Keep the socket and the dialect, and draw a session's name; nothing is connected before `begin`."""
        self.wants, self.dialect = dialect.wants, dialect
        self.greeting: Greeting = {}
        """The server's description of itself, sanitized for a record: its modalities, which name no checkpoint."""
        self._requests = requests
        self._bare = False
        self._session = f"safevla-{uuid.uuid4().hex[:12]}"  # another client of the server has another
        self._is_first = True
        self._nested = False
        """Whether the server takes nested requests; the first action tells."""

    def connect(self, task: Task) -> None:
        """Find a server that fits, before an environment is made; raises what `begin` raises."""
        self.begin(task, 0)

    def begin(self, task: Task, seed: int) -> None:
        """Find the server, have it forget the last episode, and see that the dialect fits its modalities.

        Sets `greeting`. Raises `ServerUnreachableError`, `ServerLostError` where the server goes or stays silent after
        its first answer, and `ServerRefusedError` where one answers with an error or does not fit.
        """
        self._is_first = True
        with connection.guard_handshake(self._requests.close):
            self._requests.open()
            self._bare = not self._supports_reset()
            config = self._requests.describe_modalities()
            described = {} if config is None else {"modality_config": config}
            form = "the observation alone" if self._bare else "observation and options"
            self.greeting = sanitize_greeting({"get_action": form, **described}, self._requests.token)
            modalities.check_modalities(modalities.parse_modalities(config), self.dialect)

    def query(self, observation: Observation) -> Reply:
        """Return the server's action, with flat keys.

        Where the server's error says that it takes requests of the other form, nested or flat, asks once more in that
        form and keeps to it. Raises what `RequestSocket.call` raises, and `PolicyError` for an observation that is not
        what the dialect sends and for an answer of another form.
        """
        request = self.dialect.build_request(observation)
        try:
            return self._request_action(request)
        except ServerLostError:
            raise
        except PolicyError as error:
            if not modalities.wants_other_form(error.problem, nested=self._nested):
                raise
            self._nested = not self._nested
            return self._request_action(request)

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return actions, [H, A]. Raises what `query` raises, and `ReplyError` for actions that are not read."""
        return read_reply(self.dialect, self.query(observation))

    def _request_action(self, request: dict[str, object]) -> Reply:
        """Return the action that the server answers, with flat keys.

        Raises `PolicyError` for an answer of another form.
        """
        observation = modalities.nest_request(request) if self._nested else request
        call_input = observation if self._bare else {"observation": observation, "options": self._options()}
        answer = action = self._requests.call("get_action", call_input)
        if not self._bare:
            action = answer[0] if isinstance(answer, list) and answer else None
        if not isinstance(action, dict):
            problem = f"the server {self._requests.address} answered with a {type(answer).__name__}"
            raise PolicyError(problem, remedy="GR00T's servers answer [action, info], N1.5's an action: is it one?")
        self._is_first = False
        return modalities.flatten_reply(action) if self._nested else action

    def _options(self) -> dict[str, object] | None:
        if not self.dialect.sessions:
            return None
        return {"reset_memory": [self._is_first], "session_ids": [self._session]}

    def close(self) -> None:
        """Close the socket."""
        self._requests.close()

    def _supports_reset(self) -> bool:
        """Reset the server and return True; False where it has no endpoint `reset`, as N1.5's.

        Raises what `RequestSocket.call` raises for any other answer or silence.
        """
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
