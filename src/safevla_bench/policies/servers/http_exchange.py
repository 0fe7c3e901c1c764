"""One HTTP request to a policy server, bounded in time and size: no proxy, no redirect, a connection of its own.

Servers of this kind close a connection that is idle for five seconds, which a simulator may take between two requests.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from safevla_bench.errors import PolicyError, ServerLostError

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
    split = urlsplit(address)
    kind = http.client.HTTPSConnection if split.scheme in ("https", "wss") else http.client.HTTPConnection
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
        what = f"gave no answer for {seconds:.3g} s" if is_late else _describe_cause(error)
        remedy = "Its own messages say why; start it again. One that is slow needs --policy-arg timeout_s=SECONDS."
        raise ServerLostError(f"the policy server {address} {what}", remedy=remedy) from None
    finally:
        asked.close()
    if len(content) > MAX_REPLY_BYTES:
        problem = f"the server {address} sent an answer of more than {MAX_REPLY_BYTES // 2**20} MiB"
        raise PolicyError(problem, remedy="A reply holds one chunk of actions; have it send nothing else.")
    return answer.status, content


def is_harness(address: str) -> bool:
    """Return whether a model server of vla-evaluation-harness answers there: it has a page `/config` beside its socket.

    Its `_make_process_request` (src/vla_eval/model_servers/serve.py at e1ee9ad) says what the page holds.
    """
    with suppress(PolicyError):
        _, content = exchange(address, "GET", "/config", _CONFIG_S)
        return b'"applied"' in content and b'"config"' in content
    return False


@contextmanager
def _hang_up_after(connection: socket.socket, seconds: float, over: threading.Event) -> Iterator[None]:
    """Set `over` and shut the connection down when the block takes longer than `seconds`.

    A server that sends a byte now and then would hold up every read anew.
    """

    def hang_up() -> None:
        """Set `over` and shut the connection down in both directions; an error in that is ignored."""
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
    """Return what a server did instead of answering, as the end of a sentence that begins with its name."""
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        return "answered with something that is no HTTP"
    return f"closed the connection ({str(error)[:200] or type(error).__name__})"
