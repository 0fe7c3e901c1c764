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
from safevla_bench.policies.chunking import Chunked, replanning
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers import endpoint as addresses
from safevla_bench.policies.servers.codecs import GR00T
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.policies.servers.dialect_choice import spoken
from safevla_bench.policies.servers.metadata import Greeting, fit
from safevla_bench.policies.servers.openpi import failed

if TYPE_CHECKING:
    import zmq

PORT = 5555
_FAILED = b"ERROR"
"""What a server of another kind of message answers with, such as GR00T N1's, which pickles."""
_NO_RESET = "Unknown endpoint: reset"


class Requests:
    """A socket that asks one server at a time; it is made anew after a timeout, for it could not ask again."""

    def __init__(self, servers: Sequence[str], patience: addresses.Patience, token: str | None = None) -> None:
        self.address = servers[0]
        self._servers, self._patience, self._token = tuple(servers), patience, token
        self._socket: zmq.SyncSocket | None = None

    def open(self) -> None:
        """Find the first server of the list that answers a ping.

        Raises `ServerUnreachableError`, and `PolicyError` where one answers with an error, such as a wrong token.
        """
        self.close()
        share = self._patience.connect_s / len(self._servers)
        for address in self._servers:
            self.address = address
            try:
                self.call("ping", timeout_s=share)
            except ServerLostError:
                continue
            return
        tried = [f"{address}: no answer to a ping" for address in self._servers]
        raise connection.unreachable(tried, self._patience.connect_s)

    def call(self, endpoint: str, data: Mapping[str, object] | None = None, timeout_s: float | None = None) -> object:
        """What the endpoint answers.

        Raises `ServerLostError` where nothing comes in time, `PolicyError` for an answer that is an error.
        """
        import zmq

        request = {"endpoint": endpoint, **({} if data is None else {"data": data})}
        message = GR00T.pack({**request, **({"api_token": self._token} if self._token else {})})
        seconds = self._patience.answer_s if timeout_s is None else timeout_s
        socket = self._socket or self._connected()
        socket.setsockopt(zmq.RCVTIMEO, math.ceil(1000 * seconds))
        socket.setsockopt(zmq.SNDTIMEO, math.ceil(1000 * seconds))
        try:
            socket.send(message)
            reply = socket.recv()
            several = socket.getsockopt(zmq.RCVMORE)
        except zmq.Again:
            self.close()
            large = f"a reply of more than {connection.MAX_REPLY_BYTES // 2**20} MiB is not taken"
            remedy = f"A server that is slow needs --policy-arg timeout_s=SECONDS; {large}; is it still running?"
            problem = f"the policy server {self.address} gave no answer for {seconds:g} s"
            raise ServerLostError(problem, remedy=remedy) from None
        except zmq.ZMQError as error:
            self.close()
            raise ServerLostError(f"the policy server {self.address}: {error}", remedy="Start it again.") from None
        if several:
            self.close()
            problem = f"the policy server {self.address} sent a message of several parts"
            raise PolicyError(problem, remedy="GR00T's servers send one: is it one?")
        if reply == _FAILED:
            self.close()
            problem = f"the policy server {self.address} cannot read what it was sent"
            raise PolicyError(problem, remedy="GR00T's servers before MessagePack pickle, which is not spoken: update.")
        answer = GR00T.unpack(reply)
        if isinstance(answer, dict) and "error" in answer:
            self.close()
            raise failed(self.address, addresses.without(str(answer["error"]), self._token))
        return answer

    def described(self, *, bare: bool) -> Greeting:
        """What the server says of itself; nothing but how it is asked, where it does not."""
        asked = {"get_action": "the observation alone" if bare else "observation and options"}
        try:
            said = self.call("get_modality_config")
        except ServerLostError:
            raise
        except PolicyError:
            return asked
        return fit({**asked, "modality_config": said}, self._token)

    def close(self) -> None:
        """Close the socket, if there is one; a message that waits in it is dropped."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close(linger=0)

    def _connected(self) -> zmq.SyncSocket:
        import zmq

        socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, connection.MAX_REPLY_BYTES)
        socket.connect(self.address)
        self._socket = socket
        return socket


class Gr00t:
    """A model behind a GR00T server."""

    def __init__(self, requests: Requests, dialect: Dialect) -> None:
        self.wants = dialect.wants
        self.greeting: Greeting = {}
        """What the server says of itself, fit for a record: its modalities, which name no checkpoint."""
        self._requests, self._dialect = requests, dialect
        self._bare = False

    def begin(self, task: Task, seed: int) -> None:
        """Find the server, and have it forget the last episode.

        Raises `ServerUnreachableError`, and `ServerRefusedError` where one answers with an error.
        """
        with connection.greeted(self._requests.close):
            self._requests.open()
            self._bare = not self._reset()
            self.greeting = self._requests.described(bare=self._bare)

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """[H, A]; raises what `Requests.call` raises, and `InvalidActionError`."""
        request = self._dialect.request(observation)
        data = request if self._bare else {"observation": request, "options": None}
        answer = action = self._requests.call("get_action", data)
        if not self._bare:
            action = answer[0] if isinstance(answer, list) and answer else None
        if not isinstance(action, dict):
            problem = f"the server {self._requests.address} answered with a {type(answer).__name__}"
            raise PolicyError(problem, remedy="GR00T's servers answer [action, info], N1.5's an action: is it one?")
        return self._dialect.actions(action)

    def close(self) -> None:
        self._requests.close()

    def _reset(self) -> bool:
        """Whether the server knows of a reset; N1.5's does not."""
        try:
            self._requests.call("reset", {"options": None})
        except ServerLostError:
            raise
        except PolicyError as error:
            if _NO_RESET not in error.problem:
                raise
            return False
        return True


def make(
    arg: str | None,
    replan: str | None = None,
    dialect: str = "gr00t-libero",
    cameras: str | None = None,
    image_size: str | None = None,
    connect_timeout_s: str | None = None,
    timeout_s: str | None = None,
    key_env: str | None = None,
    key_file: str | None = None,
) -> Chunked:
    """The client; the arguments are those of `openpi`, the key is GR00T's `api_token`."""
    connection.client_of("zmq", "gr00t")
    servers = addresses.addresses(arg, "gr00t", ("tcp",), PORT)
    speech = spoken(dialect, "gr00t", cameras, image_size)
    patience = addresses.patience(connect_timeout_s, timeout_s)
    requests = Requests(servers, patience, addresses.key(key_env, key_file))
    return Chunked(Gr00t(requests, speech), replanning(replan, speech.replan), speech)
