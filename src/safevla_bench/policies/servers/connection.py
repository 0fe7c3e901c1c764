"""One websocket to one of several policy servers, with limits on time and size, and the base of models behind it."""

from __future__ import annotations

import logging
import socket
import textwrap
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from safevla_bench.errors import PolicyError, ServerLostError, ServerRefusedError, ServerUnreachableError
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers.client import KINDS, ChunkModel
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.dialects import Dialect
from safevla_bench.policies.servers.endpoint import KEY, Endpoint, redact_key

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

MAX_CHARACTERS, MAX_LINE_CHARACTERS = 20_000, 500
"""Characters that are kept of a server's error message, and of its last line."""
MAX_REPLY_BYTES = 64 * 2**20
"""The largest message that is taken from a server; a chunk of actions has a few kilobytes."""
_PAUSE_S = 0.2
_TOO_BIG = 1009  # the websocket protocol's code
_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.CRITICAL)  # the library below writes every header, and so the key, at DEBUG; its errors are ours


class WebsocketClient:
    """A websocket connection, made anew by every `open`; no compression, no proxy."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.address, self.key = endpoint.addresses[0], endpoint.key
        self._endpoint = endpoint
        self._connection: ClientConnection | None = None
        self._held = ExitStack()

    def open(self) -> None:
        """Connect to the first server of the list that answers; a former connection is closed.

        Raises `ServerUnreachableError` if none answers in the time to connect, and `PolicyError` if a server answers,
        but takes no websocket or not this key.
        """
        self.close()
        self.address = find_server(self._endpoint, self._try_connect)

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`; a connection that the server has ended counts until it is used."""
        return self._connection is not None

    def send(self, message: bytes) -> None:
        """Send one message; raises as `receive` does, and `PolicyError` if it is too large for the server."""
        from websockets.exceptions import ConnectionClosed

        try:
            self._require_connection().send(message)
        except (ConnectionClosed, OSError) as error:
            raise self._closed_error(error) from None

    def receive(self) -> bytes | str:
        """Return the next message: bytes, or text.

        Raises `ServerLostError` if the server closes or gives no answer in time, and `PolicyError` if there is no
        connection or the message is too large.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            return self._require_connection().recv(timeout=self._endpoint.answer_s)
        except (TimeoutError, AssertionError):  # websockets asserts the order of pieces that a timeout put back
            self._hang_up()
            raise silent_error(self.address, self._endpoint.answer_s) from None
        except (ConnectionClosed, OSError) as error:
            raise self._closed_error(error) from None

    def close(self) -> None:
        self._connection = None
        self._held.close()

    def _require_connection(self) -> ClientConnection:
        if self._connection is None:
            raise PolicyError("the policy was asked before an episode began", remedy="Call reset first.")
        return self._connection

    def _try_connect(self, address: str, until: float) -> str | None:
        """Connect to one server by a monotonic time; return None, or the reason why it could not be reached."""
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        split = urlsplit(address)
        left_s = max(until - time.monotonic(), _PAUSE_S)
        try:
            self._connection = self._held.enter_context(
                connect(
                    address,
                    sock=socket.create_connection((split.hostname or "", split.port or 0), left_s),  # no redirect then
                    additional_headers={"Authorization": f"Api-Key {self.key}"} if self.key else {},
                    compression=None,
                    proxy=None,
                    open_timeout=left_s,
                    close_timeout=1.0,
                    ping_interval=None,  # a server that compiles its model answers no pings
                    max_size=MAX_REPLY_BYTES,
                    logger=_LOG,
                )
            )
        except (InvalidStatus, ValueError) as error:  # ValueError: a redirect, by the library's newer versions
            answer = error if isinstance(error, InvalidStatus) else error.__cause__
            if not isinstance(answer, InvalidStatus):
                return f"{address}: {_describe_cause(error)}"
            status = answer.response.status_code
            if status >= 500:  # something in front of a server that is not up
                return f"{address}: HTTP {status}"
            problem = f"{address} answers, but takes no websocket (HTTP {status})"
            refusal = PolicyError(problem, remedy="Is it the address and port of the policy server?")
            raise refused_error(address, status, self.key) or refusal from None
        except (OSError, EOFError, TimeoutError, WebSocketException, AssertionError) as error:
            # A stranger's noise before the handshake breaks an assertion in websockets 17, or is no handshake.
            return f"{address}: {_describe_cause(error)}"
        return None

    def _closed_error(self, error: Exception) -> PolicyError:
        """Close the connection and return the error: a message was too large for a side, or the server is gone."""
        sent, received = (getattr(getattr(error, side, None), "code", None) for side in ("sent", "rcvd"))
        if _TOO_BIG not in (sent, received):
            self._hang_up()
            problem = f"the policy server {self.address} closed the connection ({_describe_cause(error)})"
            return ServerLostError(problem, remedy="Its own messages say why; start it again.")
        self.close()
        if getattr(error, "rcvd_then_sent", False):
            return too_large_error(self.address)
        problem = f"the server {self.address} sent a message of more than {MAX_REPLY_BYTES // 2**20} MiB"
        remedy = "A reply holds one chunk of actions; have it send nothing else."
        return PolicyError(f"{problem}, or of too many pieces", remedy=remedy)

    def _hang_up(self) -> None:
        """Close the connection to a server that may not answer the closing handshake."""
        if self._connection is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._connection.socket, socket.SHUT_RDWR)  # the plain socket's, under TLS too
        self.close()


class WebsocketModel(ChunkModel):
    """A model behind a websocket. Servers take a connection for an episode, and answer each message with a map."""

    kind = "openpi"
    codec = OPENPI

    def __init__(self, endpoint: Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        super().__init__(dialect)
        self._socket = WebsocketClient(endpoint)
        self._is_fresh = False
        """Whether the connection was made by `connect` and no episode has used it."""

    def connect(self, task: Task) -> None:
        self._is_fresh = False  # a lost server leaves it so
        self._connect()
        self._is_fresh = True

    def begin(self, task: Task, seed: int) -> None:
        """Begin an episode on the connection of a `connect` just before, else anew: a server may have been restarted.

        Raises what `ChunkModel.begin` raises.
        """
        is_fresh, self._is_fresh = self._is_fresh, False
        if not (is_fresh and self._socket.is_open):
            self._connect()

    def _connect(self) -> None:
        with guard_handshake(self._socket.close):
            self._socket.open()
            self._greet()

    @abstractmethod
    def _greet(self) -> None:
        """Exchange greetings over a new connection; sets `greeting`."""

    def ask(self, message: object) -> dict[str, object]:
        """Send a message and return the answer; raises what `receive_map` raises."""
        self._socket.send(self.codec.pack(message))
        return self.receive_map()

    def receive_map(self) -> dict[str, object]:
        """Return the next message; raises as `WebsocketClient.receive`, and for a text, the server's traceback."""
        frame = self._socket.receive()
        if isinstance(frame, str):
            self.close()
            raise self.server_error(frame)
        message = self.codec.unpack(frame)
        if not isinstance(message, dict):
            problem = f"the server {self._socket.address} sent a {type(message).__name__} where a map belongs"
            raise PolicyError(problem, remedy=f"Is it {KINDS[self.kind].about}?")
        return message

    def server_error(self, reason: object) -> PolicyError:
        """Return the error for the server's own reason, its text or a map with its `message`."""
        text = reason.get("message", reason) if isinstance(reason, Mapping) else reason
        return server_error(self._socket.address, str(text), self._socket.key)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def guard_handshake(close: Callable[[], object]) -> Iterator[None]:
    """Close the connection and raise `ServerRefusedError` for a `PolicyError` that would return in every episode."""
    try:
        yield
    except ServerLostError:
        raise
    except PolicyError as error:
        close()
        raise ServerRefusedError(error.problem, remedy=error.remedy, place=error.place) from None


def _describe_cause(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, AssertionError):
        return "the answer is not a websocket server's"
    return str(error) or type(error).__name__


def find_server(endpoint: Endpoint, attempt: Callable[[str, float], str | None]) -> str:
    """Return the first server of the list that answers; the list is tried again and again for the time to connect.

    `attempt` tries an address until a monotonic time and returns None, or the reason why it does not answer. Raises
    `ServerUnreachableError` if none answers, and what `attempt` raises.
    """
    until = time.monotonic() + endpoint.connect_s
    while True:
        problems = []
        for address in endpoint.addresses:
            problem = attempt(address, until)
            if problem is None:
                return address
            problems.append(problem)
        if time.monotonic() + _PAUSE_S >= until:
            remedy = "Start the server, look at its address, or wait longer for it: --policy-arg connect_timeout_s=300."
            answers = f"no policy server answers within {endpoint.connect_s:g} s ({'; '.join(problems)})"
            raise ServerUnreachableError(answers, remedy=remedy)
        time.sleep(_PAUSE_S)


def silent_error(address: str, seconds: float) -> ServerLostError:
    """Return the error for a server that answers nothing within `seconds`."""
    remedy = "A server that is slow needs --policy-arg timeout_s=SECONDS; is it still running?"
    return ServerLostError(f"the policy server {address} gave no answer for {seconds:g} s", remedy=remedy)


def refused_error(address: str, status: int, key: str | None) -> PolicyError | None:
    """Return the error for an HTTP status that refuses a key or sends elsewhere; None for another status."""
    if status in (401, 403):
        problem = f"the policy server {address} {'refuses this key' if key else 'wants a key'} (HTTP {status})"
        return PolicyError(problem, remedy=f"Put its key into the environment variable {KEY}, or pass key_file=FILE.")
    if 300 <= status < 400:
        problem = f"{address} sends elsewhere (HTTP {status}), which is not followed"
        return PolicyError(problem, remedy="Give the address of the policy server itself.")
    return None


def too_large_error(address: str) -> PolicyError:
    """Return the error for a message of ours that a server refuses for its size."""
    problem = f"the server {address} refuses a message as large as ours"
    return PolicyError(problem, remedy="Send smaller images (--policy-arg image_size=N), or raise its limit.")


def server_error(address: str, text: str, key: str | None) -> PolicyError:
    """Return the error for a server's failure: its last line first, then all of it, or the end of it."""
    text = redact_key(text, key)
    shown = text[-MAX_CHARACTERS:].strip()
    lines = shown.splitlines() or ["no reason given"]
    problem = f"the policy server {address} failed: {lines[-1].strip()[:MAX_LINE_CHARACTERS]}"
    cut = f"... ({len(text) - MAX_CHARACTERS:,} characters before)\n" if len(text) > MAX_CHARACTERS else ""
    details = f"\n{textwrap.indent(cut + shown, '    ')}" if len(lines) > 1 or cut else ""
    return PolicyError(problem + details, remedy="Mend it there; what was sent is in docs/servers.md.")
