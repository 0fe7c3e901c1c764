"""One websocket to one of several policy servers, with limits on time and size."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from safevla_bench.errors import PolicyError, ServerLostError, ServerRefusedError, ServerUnreachableError
from safevla_bench.plugins import install_command
from safevla_bench.policies.servers.endpoint import KEY, Timeouts
from safevla_bench.policies.servers.wires import is_harness

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

MAX_REPLY_BYTES = 64 * 2**20
"""The largest message that is taken from a server; a chunk of actions has a few kilobytes."""
_PAUSE_S = 0.2
_TOO_BIG = 1009
"""The websocket protocol's code for a message that is too large."""
_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.CRITICAL)  # the library below writes every header, and so the key, at DEBUG; its errors are ours


class WebsocketClient:
    """A websocket connection, made anew by every `open`; no compression, no proxy.

    Raises `ServerLostError` where a server closes or stays silent.
    """

    def __init__(self, addresses: Sequence[str], timeouts: Timeouts, key: str | None = None) -> None:
        """Keep addresses and key; nothing is connected before `open`."""
        self.address = addresses[0]
        self._addresses, self._timeouts = tuple(addresses), timeouts
        self._headers = {"Authorization": f"Api-Key {key}"} if key else {}
        self._connection: ClientConnection | None = None
        self._held = ExitStack()

    def open(self) -> None:
        """Connect to the first server of the list that answers; a former connection is closed.

        The list is tried again and again for the time to connect. Raises `ServerUnreachableError` where none answers by
        then, and `PolicyError` where a server answers, but takes no websocket or not this key.
        """
        self.close()
        until = time.monotonic() + self._timeouts.connect_s
        while True:
            problems = [self._try_connect(address, until) for address in self._addresses if self._connection is None]
            if self._connection is not None:
                return
            if time.monotonic() + _PAUSE_S >= until:
                raise unreachable_error([problem for problem in problems if problem], self._timeouts.connect_s)
            time.sleep(_PAUSE_S)

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`; a connection that the server has ended counts until it is used."""
        return self._connection is not None

    def send(self, message: bytes) -> None:
        """Send one message.

        Raises `ServerLostError` where the connection has ended, and `PolicyError` where there was none or the message
        is too large for the server.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            self._require_connection().send(message)
        except (ConnectionClosed, OSError) as error:
            raise self._closed_error(error) from None

    def receive_greeting(self) -> bytes | str:
        """Return the first message of a server that greets.

        Raises what `receive` raises, and `PolicyError` where a model server of vla-evaluation-harness is there, which
        waits to be greeted itself. A server that is busy with others may take its time.
        """
        from websockets.exceptions import ConnectionClosed

        with suppress(TimeoutError, ConnectionClosed, OSError):
            return self._require_connection().recv(timeout=min(self._timeouts.connect_s, self._timeouts.answer_s))
        if self._connection is not None and is_harness(self.address):
            self.close()
            problem = f"the server {self.address} is a model server of vla-evaluation-harness, and no openpi server"
            raise PolicyError(problem, remedy=f"Ask it as --policy vla-eval:{self.address}")
        return self.receive()

    def receive(self) -> bytes | str:
        """Return the next message: bytes, or text.

        Raises `ServerLostError` where the server closes or gives no answer in time, and `PolicyError` where there is no
        connection or the message is too large.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            return self._require_connection().recv(timeout=self._timeouts.answer_s)
        except (TimeoutError, AssertionError):  # websockets asserts the order of pieces that a timeout put back
            remedy = "A server that is slow needs --policy-arg timeout_s=SECONDS; is it still running?"
            raise self._lost_error(f"gave no answer for {self._timeouts.answer_s:g} s", remedy) from None
        except (ConnectionClosed, OSError) as error:
            raise self._closed_error(error) from None

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._connection = None
        self._held.close()

    def _require_connection(self) -> ClientConnection:
        if self._connection is None:
            raise PolicyError("the policy was asked before an episode began", remedy="Call reset first.")
        return self._connection

    def _try_connect(self, address: str, until: float) -> str | None:
        """Connect to one server; return None, or the reason why it could not be reached.

        Raises `PolicyError` where it answers and refuses: HTTP below 500.
        """
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        left_s = max(until - time.monotonic(), _PAUSE_S)
        try:
            self._connection = self._held.enter_context(
                connect(
                    address,
                    sock=_connect_socket(address, left_s),  # with a socket given, no redirect is followed
                    additional_headers=self._headers,
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
            raise _refused_error(address, status, keyed=bool(self._headers)) from None
        except (OSError, EOFError, TimeoutError, WebSocketException, AssertionError) as error:
            # A stranger's noise before the handshake breaks an assertion in websockets 17, or is no handshake.
            return f"{address}: {_describe_cause(error)}"
        self.address = address
        return None

    def _closed_error(self, error: Exception) -> PolicyError:
        """Close the connection and return the error: a message was too large for a side, or the server is gone."""
        sent, received = (getattr(getattr(error, side, None), "code", None) for side in ("sent", "rcvd"))
        if _TOO_BIG not in (sent, received):
            return self._lost_error(f"closed the connection ({_describe_cause(error)})")
        self.close()
        if getattr(error, "rcvd_then_sent", False):
            problem = f"the server {self.address} refuses a message as large as ours"
            return PolicyError(problem, remedy="Send smaller images (--policy-arg image_size=N), or raise its limit.")
        problem = f"the server {self.address} sent a message of more than {MAX_REPLY_BYTES // 2**20} MiB"
        remedy = "A reply holds one chunk of actions; have it send nothing else."
        return PolicyError(f"{problem}, or of too many pieces", remedy=remedy)

    def _lost_error(self, what: str, remedy: str | None = None) -> ServerLostError:
        if self._connection is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._connection.socket, socket.SHUT_RDWR)  # the plain socket's, under TLS too
        self.close()
        return ServerLostError(
            f"the policy server {self.address} {what}", remedy=remedy or "Its own messages say why; start it again."
        )


@contextmanager
def guard_handshake(close: Callable[[], object]) -> Iterator[None]:
    """Turn every `PolicyError` but `ServerLostError` into `ServerRefusedError`, and close the connection.

    An error in the first exchange with a server would return in every episode.
    """
    try:
        yield
    except ServerLostError:
        raise
    except PolicyError as error:
        close()
        raise ServerRefusedError(error.problem, remedy=error.remedy, place=error.place) from None


def _connect_socket(address: str, timeout_s: float) -> socket.socket:
    split = urlsplit(address)
    return socket.create_connection((split.hostname or "", split.port or 0), timeout_s)


def require_library(library: str, extra: str) -> None:
    """Raise `PolicyError` where the library that a client needs is not installed."""
    from importlib.util import find_spec

    if find_spec(library) is None:
        remedy = f"Install it: {install_command(extra)}"
        raise PolicyError(f"this policy needs the package {library}, which is not installed", remedy=remedy)


def _describe_cause(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, AssertionError):
        return "the answer is not a websocket server's"
    return str(error) or type(error).__name__


def unreachable_error(problems: Sequence[str], seconds: float) -> ServerUnreachableError:
    """Return the error where no server of a list answers within `seconds`; `problems` has a reason for each."""
    remedy = "Start the server, look at its address, or wait longer for it: --policy-arg connect_timeout_s=300."
    return ServerUnreachableError(
        f"no policy server answers within {seconds:g} s ({'; '.join(problems)})", remedy=remedy
    )


def _refused_error(address: str, status: int, *, keyed: bool) -> PolicyError:
    if status in (401, 403):
        problem = f"the policy server {address} {'refuses this key' if keyed else 'wants a key'} (HTTP {status})"
        return PolicyError(problem, remedy=f"Put its key into the environment variable {KEY}, or pass key_file=FILE.")
    if 300 <= status < 400:
        problem = f"{address} sends elsewhere (HTTP {status}), which is not followed"
        return PolicyError(problem, remedy="Give the address of the policy server itself.")
    problem = f"{address} answers, but takes no websocket (HTTP {status})"
    return PolicyError(problem, remedy="Is it the address and port of the policy server?")
