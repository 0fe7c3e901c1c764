"""Policy servers: addresses, timeouts and keys, from arguments and environment, and what they say of themselves.

A key is never an argument, since arguments are recorded. Descriptions of servers go into a run's record, bounded and
without secrets, to distinguish checkpoints; nothing is judged by them.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec
import numpy as np

from safevla_bench.errors import Place, PolicyError
from safevla_bench.text import HIDDEN, is_secret_name, learn_secret, redact_secrets

KEY = "SAFEVLA_API_KEY"
"""The environment variable that holds a server's key, unless an argument names a file."""
WORKER = "SAFEVLA_WORKER"
"""The environment variable that holds the number of a worker process: each begins at another of several servers."""
CONNECT_S, ANSWER_S = 10.0, 120.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The servers of a policy: addresses to try in their order, how long to wait for them, and their key."""

    addresses: tuple[str, ...]
    connect_s: float = CONNECT_S
    """To try to connect."""
    answer_s: float = ANSWER_S
    """To wait for one answer; a server may compile its model for the first."""
    key: str | None = None


def parse_endpoint(
    arg: str | None, policy: str, schemes: Sequence[str], port: int, arguments: Mapping[str, str]
) -> Endpoint:
    """Return the servers of `arg`, with the times and the key that a policy's arguments give.

    Raises what `parse_addresses` and `read_key` raise, and `PolicyError` for a time that is none.
    """
    return Endpoint(
        parse_addresses(arg, policy, schemes, port),
        _parse_seconds("connect_timeout_s", arguments, CONNECT_S),
        _parse_seconds("timeout_s", arguments, ANSWER_S),
        read_key(arguments.get("key_file")),
    )


def parse_addresses(arg: str | None, policy: str, schemes: Sequence[str], port: int) -> tuple[str, ...]:
    """Return the servers of `URL[,URL...]`, beginning with this worker's; the scheme and the port may be left out.

    Raises `PolicyError` for other texts, and for an address with a user, a query or a fragment.
    """
    if not arg:
        example = f"{policy}:{schemes[0]}://127.0.0.1:{port}"
        raise PolicyError(f"policy {policy!r} needs the address of its server", remedy=f"Write {example}.")
    servers = tuple(_parse_address(text.strip(), policy, schemes, port) for text in arg.split(","))
    first = int(os.environ.get(WORKER, "0")) % len(servers)
    return servers[first:] + servers[:first]


def _parse_address(text: str, policy: str, schemes: Sequence[str], port: int) -> str:
    try:
        split = urlsplit(text if "://" in text else f"{schemes[0]}://{text}")
    except ValueError:
        split = SplitResult("", "", "", "", "")
    if split.username is not None or split.query or split.fragment:
        # The text is not repeated: what stands there may be a secret.
        problem = f"an address of policy {policy!r} holds more than a server: a user, a query or a fragment"
        raise PolicyError(problem, remedy=f"Put a key into the environment variable {KEY}, or pass key_file=FILE.")
    if split.scheme not in schemes or not split.hostname or not _parse_port(split, port):
        remedy = f"Write {schemes[0]}://HOST:PORT, several with commas between them."
        raise PolicyError(f"policy {policy!r}: {text!r} is not the address of a server", remedy=remedy)
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    return f"{split.scheme}://{host}:{_parse_port(split, port)}{split.path.rstrip('/')}"


def _parse_port(split: SplitResult, default: int) -> int | None:
    try:
        return default if split.port is None else split.port or None
    except ValueError:
        return None


def _parse_seconds(name: str, arguments: Mapping[str, str], default: float) -> float:
    text = arguments.get(name)
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise PolicyError(f"{name}={text} is not a time in seconds", remedy=f"Write {name}={default:g}.")
    return seconds


def read_key(key_file: str | None = None) -> str | None:
    """Return a server's key from the file, or else the environment variable `KEY`; None if neither is named or set.

    From now on the key is hidden wherever text is printed or written. Raises `PolicyError`, without the key, if the
    named place does not hold one.
    """
    try:
        secret = (os.environ.get(KEY, "") if key_file is None else Path(key_file).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        problem, remedy = f"the key cannot be read: {error.__class__.__name__}", "Name a file that holds the key alone."
        raise PolicyError(problem, remedy=remedy, place=Place(file=str(key_file))) from None
    if not secret and key_file is None:
        return None
    if not secret or not secret.isascii() or not secret.isprintable():
        raise PolicyError(f"{key_file or KEY} does not hold a key", remedy="A key is one line of printable ASCII.")
    learn_secret(secret)
    return secret


def redact_key(text: str, secret: str | None) -> str:
    """Return a server's text with every occurrence of the key hidden; the text itself for no key."""
    return text.replace(secret, HIDDEN) if secret else text


# What servers say of themselves


Greeting = Mapping[str, object]
MAX_BYTES = 4096
"""Of the greeting as JSON; of a longer one those entries are kept that fit, and the digest of all."""
_ENTRIES, _LETTERS, _DEPTH = 64, 200, 5


def sanitize_greeting(greeting: object, secret: str | None = None) -> dict[str, object]:
    """Return a server's description as plain JSON; values under secret names, and the client's own key, are hidden.

    Arrays become their type and shape; what is not a map becomes an empty one.
    """
    if not isinstance(greeting, Mapping):
        return {}
    plain = _sanitize_map(greeting, secret, 0)
    encoded = msgspec.json.encode(plain)
    return plain if len(encoded) <= MAX_BYTES else _drop_entries(plain, encoded)


def _drop_entries(plain: Mapping[str, object], encoded: bytes) -> dict[str, object]:
    entries: dict[str, object] = {"sha256 of all": hashlib.sha256(encoded).hexdigest()}
    for key, value in plain.items():
        if len(msgspec.json.encode({**entries, key: value})) <= MAX_BYTES:
            entries[key] = value
    return entries


def _sanitize_map(mapping: Mapping[object, object], secret: str | None, depth: int) -> dict[str, object]:
    items = ((_sanitize_text(str(key), secret), value) for key, value in list(mapping.items())[:_ENTRIES])
    return {key: HIDDEN if is_secret_name(key) else _sanitize_value(value, secret, depth + 1) for key, value in items}


def _sanitize_value(value: object, secret: str | None, depth: int) -> object:
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) < 2**63 else str(value)[:_LETTERS]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, np.generic):
        return _sanitize_value(value.item(), secret, depth)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        return _sanitize_text(str(value), secret)
    if depth == _DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return _sanitize_map(value, secret, depth)
    return [_sanitize_value(item, secret, depth + 1) for item in value[:_ENTRIES]]


def _sanitize_text(text: str, secret: str | None) -> str:
    shown = redact_secrets(redact_key(text, secret))
    return shown if len(shown) <= _LETTERS else f"{shown[:_LETTERS]}..."
