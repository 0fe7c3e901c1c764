"""Endpoints of policy servers: addresses, timeouts, keys, the search for a server that answers, errors, and greetings.

A key is never an argument, because arguments are recorded. A greeting is a server's description of itself. A run's
record stores it to distinguish checkpoints, limited in size and without secrets. No judgment depends on a greeting.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np

from safevla_bench import errors
from safevla_bench.errors import Place, PolicyError, ServerLostError, ServerSlowError
from safevla_bench.files import read_text
from safevla_bench.interface.environment import WORKER, WORKERS
from safevla_bench.text import HIDDEN, is_secret_name, learn_secret, redact_secrets

KEY = "SAFEVLA_API_KEY"  # environment variable that holds the server's key if no argument names a key file
CONNECT_S, ANSWER_S = 10.0, 120.0  # default timeouts for connecting and for one answer
MAX_REPLY_BYTES = 64 * 2**20  # limit on the size of a server's message; a chunk of actions takes a few kilobytes
MAX_CHARACTERS, MAX_LINE_CHARACTERS = 20_000, 500  # maximum lengths of a server's error text and of its summary
PAUSE_S = 0.2  # time between two attempts to reach a server, and minimum duration of an attempt


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The servers of a policy: the addresses, which are tried in order, the timeouts, and the key."""

    addresses: tuple[str, ...]
    connect_s: float = CONNECT_S  # timeout for connecting [s]
    answer_s: float = ANSWER_S  # timeout for one answer [s]; before the first answer, a server may compile its model
    key: str | None = None

    @property
    def first_answer_s(self) -> float:
        # Timeout [s] for the first answer of a server that has accepted a connection.
        # The server may be busy, for example with another worker's request, which compiles the model.
        return self.answer_s / len(self.addresses)


def parse_endpoint(
    arg: str | None, policy: str, schemes: Sequence[str], port: int, arguments: Mapping[str, str]
) -> Endpoint:
    """Return the servers listed in `arg`, with the timeouts and the key from a policy's arguments. Raises the errors of
    `parse_addresses` and `read_key`, and `PolicyError` for an invalid timeout.
    """
    # `policy` is the kind of server, for error messages. `schemes[0]` and `port` are defaults.
    # Missing arguments have defaults.
    return Endpoint(
        parse_addresses(arg, policy, schemes, port),
        _parse_seconds("connect_timeout_s", arguments, CONNECT_S),
        _parse_seconds("timeout_s", arguments, ANSWER_S),
        read_key(arguments.get("key_file")),
    )


def parse_addresses(arg: str | None, policy: str, schemes: Sequence[str], port: int) -> tuple[str, ...]:
    """Return the addresses in `URL[,URL...]`, rotated by the worker's index. Scheme and port are optional. Raises
    `PolicyError`, without quoting `arg`, if an address is invalid or has a user, a query, a fragment or a wrong path.
    """
    # Error messages name `policy`, the kind of server. `schemes` are allowed; `schemes[0]` and `port` are the defaults.
    try:
        addresses = [_parse_address(text.strip(), schemes, port) for text in (arg or "").split(",")]
    except ValueError:  # an address may contain a secret, so the error does not quote it
        remedy = f"Write {policy}:{schemes[0]}://HOST:PORT, or several addresses with commas. Put a key into {KEY}."
        raise PolicyError(f"policy {policy!r} needs a valid address of its server", remedy=remedy) from None
    # Each worker begins with a different server.
    first = int(os.environ.get(WORKER, "0")) % len(addresses)
    return (*addresses[first:], *addresses[:first])


def _parse_address(text: str, schemes: Sequence[str], port: int) -> str:
    # Return the complete address; raise `ValueError` if it is invalid. `schemes[0]` and `port` are the defaults.
    url = urlsplit(text if "://" in text else f"{schemes[0]}://{text}")
    port_number = port if url.port is None else url.port
    path = url.path.rstrip("/")
    if url.scheme.startswith("http"):
        path = path.removesuffix("/act")  # the path of requests, which the client appends itself
    # ZeroMQ's addresses have no path, and HTTP can send only printable ASCII.
    is_path_wrong = path and (url.scheme == "tcp" or not re.fullmatch("[!-~]+", path))
    has_extra_parts = url.username is not None or url.query or url.fragment
    if has_extra_parts or is_path_wrong or url.scheme not in schemes or not url.hostname or not port_number:
        raise ValueError
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname  # an IPv6 address needs brackets
    return f"{url.scheme}://{host}:{port_number}{path}"


def _parse_seconds(name: str, arguments: Mapping[str, str], default: float) -> float:
    # Return the time in the argument `name`, or else `default`. Raise `PolicyError` unless the time is finite and > 0.
    text = arguments.get(name)
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = math.nan  # NaN is refused below, like infinity
    if not 0 < seconds < math.inf:
        raise PolicyError(f"{name}={text} is not a time in seconds", remedy=f"Write {name}={default:g}.")
    return seconds


def read_key(key_file: str | None = None) -> str | None:
    """Return a server's key from the file `key_file` or, without a file, from the environment variable `KEY`; None if
    there is no key. From then on, all printed and written text hides the key. Raises `PolicyError`, without the key in
    its message, if the file or the variable does not hold a valid key.
    """
    try:
        text = os.environ.get(KEY, "") if key_file is None else read_text(Path(key_file))
    except (OSError, UnicodeDecodeError) as error:
        problem, remedy = f"the key cannot be read: {error.__class__.__name__}", "Pass a file that holds only the key."
        raise PolicyError(problem, remedy=remedy, place=Place(file=str(key_file))) from None
    secret = text.strip()
    if not secret and key_file is None:  # an empty variable means no key, but an empty file is an error
        return None
    if not secret or not secret.isascii() or not secret.isprintable():
        raise PolicyError(f"{key_file or KEY} does not hold a key", remedy="A key is one line of printable ASCII.")
    learn_secret(secret)
    return secret


# The first server that answers, and errors


def find_server(endpoint: Endpoint, attempt: Callable[[str, float], str | None]) -> str:
    """Try the endpoint's servers in turn, and return the address of the first server that answers. `attempt` tries an
    address until a monotonic time. It returns None if the server answers, otherwise the reason for the failure. Raises
    the errors of `attempt`, and `ServerUnreachableError` if no server answers before the connection timeout.
    """
    deadline = time.monotonic() + endpoint.connect_s
    while True:
        problems = []  # the reasons for the failures in this round
        for address in endpoint.addresses:
            problem = attempt(address, deadline)
            if problem is None:
                return address
            problems.append(f"{address}: {problem}")
        # At least one round is made, even if the timeout is short.
        if time.monotonic() + PAUSE_S >= deadline:
            remedy = "Start the server, check its address, or wait longer: --policy-arg connect_timeout_s=300."
            answers = f"no policy server is ready within {endpoint.connect_s:g} s ({'; '.join(problems)})"
            raise errors.ServerUnreachableError(answers, remedy=remedy)
        time.sleep(PAUSE_S)


@contextmanager
def guard_handshake(close: Callable[[], object]) -> Iterator[None]:
    """Close the connection on a `PolicyError`, and raise `ServerRefusedError`, because all episodes would fail."""
    # Use this around the handshake, before the first request. The error of a lost connection is raised unchanged.
    try:
        yield
    except ServerLostError:
        raise
    except PolicyError as error:
        close()
        raise errors.ServerRefusedError(error.problem, remedy=error.remedy, place=error.place) from None


def describe_lost_connection(error: BaseException) -> str:
    """Return a short reason why a connection failed."""
    reason = str(error)[:200] or repr(error)  # some exceptions have no text
    return "connection refused" if isinstance(error, ConnectionRefusedError) else reason


def lost_error(address: str, event: str) -> ServerLostError:
    """Return the error for a server that has disappeared or does not answer; `event` describes what happened."""
    # For example, `event` is `closed the connection`.
    remedy = "Read the server's log, and start the server again. If the server is slow: --policy-arg timeout_s=SECONDS."
    return ServerLostError(f"the policy server {address} {event}", remedy=remedy)


def silent_error(address: str, seconds: float) -> ServerSlowError:
    """Return the error for a server that does not answer within `seconds`. If several workers share the run's servers,
    the message mentions this as a possible cause.
    """
    count = int(os.environ.get(WORKERS, "1"))  # the run sets this variable for its worker processes
    shared = f"; the server may be slow because {count} workers share the run's servers" if count > 1 else ""
    ways = "use fewer --workers or more servers, or pass --policy-arg timeout_s=SECONDS"
    remedy = f"Read the server's log. If the server is slow, {ways}."
    return ServerSlowError(f"the policy server {address} gave no answer for {seconds:.3g} s{shared}", remedy=remedy)


def stray_error(address: str, event: str) -> ServerLostError:
    """Return the error for a message that does not answer the last request. Later replies may be wrong, too."""
    # `event` says what the server did, such as sending a second reply.
    remedy = "The server must send one reply per request, in order. Fix the server, and start it again."
    return ServerLostError(f"the policy server {address} {event}", remedy=remedy)


def status_error(address: str, status: int, key: str | None) -> PolicyError:
    """Return the error for an HTTP status below 500 that means a failure."""
    # `key` is the key that the client sent; None = no key.
    if status in (401, 403):
        problem = f"the policy server {address} {'refuses this key' if key else 'requires a key'} (HTTP {status})"
        remedy = f"Put the server's key into the environment variable {KEY}, or pass `key_file=FILE`."
        return PolicyError(problem, remedy=remedy)
    problem = f"{address} answers, but not like a policy server of this kind (HTTP {status})"
    return PolicyError(problem, remedy="Check the kind, the address and the port of the policy server.")


def size_error(address: str) -> PolicyError:
    """Return the error for a message that is too large for the server or for this client."""
    problem = f"a message to or from {address} is too large: {MAX_REPLY_BYTES // 2**20} MiB is the limit"
    return PolicyError(problem, remedy="Send smaller images (--policy-arg image_size=N), or raise the server's limit.")


def server_error(address: str, text: str, key: str | None) -> PolicyError:
    """Return the error for a server's failure. It quotes the exception's line in `text`, then the end of `text`."""
    # `text` is the server's error message, perhaps a long traceback; its end is the most useful part.
    safe_text = text.replace(key, HIDDEN) if key else text
    end = safe_text[-MAX_CHARACTERS:].strip()
    exception_line, _ = errors.find_exception(end)
    summary = exception_line[:MAX_LINE_CHARACTERS] or "no reason given"
    details = f"\n{textwrap.indent(end, '    ')}" if "\n" in end or len(text) > MAX_CHARACTERS else ""
    problem = f"the policy server {address} failed: {summary}{details}"
    return PolicyError(problem, remedy="Fix this in the server. The request format is in docs/howto/servers.md.")


# Greetings: servers describe themselves


Greeting = Mapping[str, object]
MAX_BYTES = 4096  # limit on the size of a greeting as JSON; a longer greeting is cut, and its digest is added
_MAX_VALUE_CHARACTERS, _MAX_DEPTH = 200, 5


def sanitize_greeting(greeting: object, secret: str | None = None) -> dict[str, object]:
    """Return a server's greeting as plain JSON. The client's key, and values with names such as `token`, are hidden.
    Arrays are replaced by their type and shape. If the greeting is not a map, return an empty map.
    """
    # `secret` is the client's key, or None. A greeting that is too long is shortened; a digest of the whole is added.
    if not isinstance(greeting, Mapping):
        return {}
    sanitized = _sanitize_map(greeting, secret, depth=1)
    encoded = msgspec.json.encode(sanitized)
    if len(encoded) <= MAX_BYTES:
        return sanitized
    # Skip a value that is too large, because a later value may be smaller and still fit.
    shortened: dict[str, object] = {"sha256 of all": hashlib.sha256(encoded).hexdigest()}
    for name, value in sanitized.items():
        if len(msgspec.json.encode({**shortened, name: value})) <= MAX_BYTES:
            shortened[name] = value
    return shortened


def _sanitize_map(mapping: Mapping[object, object], secret: str | None, depth: int) -> dict[str, object]:
    # Return the map without secrets, as plain JSON. `depth` is the nesting depth of the map's values, from 1.
    sanitized: dict[str, object] = {}
    for key, value in mapping.items():
        name = _sanitize_text(str(key), secret)
        sanitized[name] = HIDDEN if is_secret_name(name) else _sanitize_value(value, secret, depth)
    return sanitized


def _sanitize_value(value: object, secret: str | None, depth: int) -> object:
    # Return a value that JSON can represent, without secrets. `depth` counts the maps and lists that contain the value.
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, Mapping | list | tuple) and depth == _MAX_DEPTH:
        return "..."  # a value that is nested too deeply
    if isinstance(plain, Mapping):
        return _sanitize_map(plain, secret, depth + 1)
    if isinstance(plain, list | tuple):
        return [_sanitize_value(element, secret, depth + 1) for element in plain]
    if plain is None or (isinstance(plain, int | float) and abs(plain) < 2**63):  # infinity and NaN are excluded
        return plain
    return _sanitize_text(str(plain), secret)


def _sanitize_text(text: str, secret: str | None) -> str:
    # Return the text with secrets hidden, shortened to the maximum length.
    safe_text = redact_secrets(text.replace(secret, HIDDEN) if secret else text)
    return safe_text if len(safe_text) <= _MAX_VALUE_CHARACTERS else f"{safe_text[:_MAX_VALUE_CHARACTERS]}..."
