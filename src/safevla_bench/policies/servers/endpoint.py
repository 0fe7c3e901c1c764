"""Where policy servers are, how long to wait for them, and the key that they want: from arguments and environment.

A key is never an argument: arguments are recorded. It is in an environment variable or in a file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from safevla_bench.errors import Place, PolicyError
from safevla_bench.text.redaction import HIDDEN, learn

KEY = "SAFEVLA_API_KEY"
"""The environment variable that holds a server's key, unless an argument names another."""
WORKER = "SAFEVLA_WORKER"
"""The environment variable that holds the number of a worker process (see rollout/devices)."""
CONNECT_S, ANSWER_S = 10.0, 120.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to try to connect, and to wait for one answer (a server may compile its model for the first)."""

    connect_s: float = CONNECT_S
    answer_s: float = ANSWER_S


def addresses(arg: str | None, policy: str, schemes: Sequence[str], port: int) -> tuple[str, ...]:
    """The servers of `URL[,URL...]`, beginning with this worker's; the scheme and the port may be left out.

    Raises `PolicyError` for what is no address, and for one that holds a password.
    """
    if not arg:
        example = f"{policy}:{schemes[0]}://127.0.0.1:{port}"
        raise PolicyError(f"policy {policy!r} needs the address of its server", remedy=f"Write {example}.")
    found = tuple(_address(one.strip(), policy, schemes, port) for one in arg.split(","))
    first = int(os.environ.get(WORKER, "0")) % len(found)
    return found[first:] + found[:first]


def _address(text: str, policy: str, schemes: Sequence[str], port: int) -> str:
    try:
        split = urlsplit(text if "://" in text else f"{schemes[0]}://{text}")
    except ValueError:
        split = SplitResult("", "", "", "", "")
    if split.username is not None or split.query or split.fragment:
        # The text is not repeated: what stands there may be a secret.
        problem = f"an address of policy {policy!r} holds more than a server: a user, a query or a fragment"
        raise PolicyError(problem, remedy=f"Put a key into the environment variable {KEY}, or pass key_file=FILE.")
    if split.scheme not in schemes or not split.hostname or not _port(split, port):
        remedy = f"Write {schemes[0]}://HOST:PORT, several with commas between them."
        raise PolicyError(f"policy {policy!r}: {text!r} is no address of a server", remedy=remedy)
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    return f"{split.scheme}://{host}:{_port(split, port)}{split.path.rstrip('/')}"


def _port(split: SplitResult, default: int) -> int | None:
    try:
        return default if split.port is None else split.port or None
    except ValueError:
        return None


def patience(connect_timeout_s: str | None, timeout_s: str | None) -> Patience:
    """From two arguments; raises `PolicyError` for what is no time."""
    return Patience(
        _seconds("connect_timeout_s", connect_timeout_s, CONNECT_S), _seconds("timeout_s", timeout_s, ANSWER_S)
    )


def _seconds(name: str, text: str | None, default: float) -> float:
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise PolicyError(f"{name}={text} is no time in seconds", remedy=f"Write {name}={default:g}.")
    return seconds


def key(key_env: str | None = None, key_file: str | None = None) -> str | None:
    """A server's key from the file or the environment variable; None where there is none.

    Raises `PolicyError` where what was named does not hold one; no message ever holds the key.
    """
    if key_file is not None:
        return _key_of(Path(key_file))
    found = os.environ.get(key_env or KEY, "").strip()
    if key_env and not found:
        remedy = f"Set it before, or pass key_file=FILE; without key_env it is read from {KEY}."
        raise PolicyError(f"the environment variable {key_env!r} holds no key", remedy=remedy)
    return _learnt(found, key_env or KEY) if found else None


def _key_of(path: Path) -> str:
    try:
        found = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(
            f"the key cannot be read: {error.__class__.__name__}",
            remedy="Name a file that holds the key alone.",
            place=Place(file=str(path)),
        ) from None
    if not found:
        raise PolicyError("the file holds no key", remedy="Write the key into it.", place=Place(file=str(path)))
    return _learnt(found, str(path))


def _learnt(found: str, source: str) -> str:
    """A key, that from now on is hidden wherever text is printed or written."""
    if not found.isascii() or not found.isprintable():
        raise PolicyError(f"what {source} holds is no key", remedy="A key is one line of printable ASCII.")
    learn(found)
    return found


def without(text: str, secret: str | None) -> str:
    """A server's words without the key, should it repeat it."""
    return text.replace(secret, HIDDEN) if secret else text
