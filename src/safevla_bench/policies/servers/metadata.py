"""What a policy server says of itself when it is met, made fit for a run's record: bounded, and without secrets.

It is a stranger's word, kept so that runs against different checkpoints can be told apart where their servers say
which they serve. Nothing is judged by it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from safevla_bench.policies.servers.endpoint import without
from safevla_bench.text.redaction import HIDDEN, names_a_secret, redacted

Greeting = Mapping[str, object]
MOST_BYTES = 4096
"""Of the greeting as JSON; of a longer one those entries are kept that fit, and the digest of all."""
_ENTRIES, _LETTERS, _DEPTH = 64, 200, 5


def fit(said: object, secret: str | None = None) -> dict[str, object]:
    """A server's words as plain JSON; the values of keys that name a secret, and the client's own key, are hidden.

    Arrays become their type and shape. What is no map is nothing that a server says of itself: an empty one.
    """
    if not isinstance(said, Mapping):
        return {}
    plain = _map(said, secret, 0)
    whole = msgspec.json.encode(plain)
    return plain if len(whole) <= MOST_BYTES else _shortened(plain, whole)


def _shortened(plain: Mapping[str, object], whole: bytes) -> dict[str, object]:
    kept: dict[str, object] = {"sha256 of all": hashlib.sha256(whole).hexdigest()}
    for key, value in plain.items():
        if len(msgspec.json.encode({**kept, key: value})) <= MOST_BYTES:
            kept[key] = value
    return kept


def _map(said: Mapping[object, object], secret: str | None, depth: int) -> dict[str, object]:
    named = ((_text(str(key), secret), value) for key, value in list(said.items())[:_ENTRIES])
    return {key: HIDDEN if names_a_secret(key) else _plain(value, secret, depth + 1) for key, value in named}


def _plain(value: object, secret: str | None, depth: int) -> object:
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) < 2**63 else str(value)[:_LETTERS]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, np.generic):
        return _plain(value.item(), secret, depth)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return _nested(value, secret, depth) if depth < _DEPTH else "..."
    return _text(str(value), secret)


def _nested(value: Mapping[object, object] | Sequence[object], secret: str | None, depth: int) -> object:
    if isinstance(value, Mapping):
        return _map(value, secret, depth)
    return [_plain(one, secret, depth + 1) for one in value[:_ENTRIES]]


def _text(text: str, secret: str | None) -> str:
    told = redacted(without(text, secret))
    return told if len(told) <= _LETTERS else f"{told[:_LETTERS]}..."
