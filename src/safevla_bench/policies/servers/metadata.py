"""Descriptions that policy servers give of themselves, for a run's record: bounded, and without secrets.

They are not trusted. They are kept so that runs against different checkpoints can be told apart where the servers name
them. Nothing is judged by them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from safevla_bench.policies.servers.endpoint import redact_key
from safevla_bench.text.sanitize import HIDDEN, is_secret_name, redact_secrets

Greeting = Mapping[str, object]
MAX_BYTES = 4096
"""Of the greeting as JSON; of a longer one those entries are kept that fit, and the digest of all."""
_ENTRIES, _LETTERS, _DEPTH = 64, 200, 5


def sanitize_greeting(greeting: object, secret: str | None = None) -> dict[str, object]:
    """Return a server's description as plain JSON; values under secret names, and the client's own key, are hidden.

    Arrays become their type and shape. A description that is no map becomes an empty one.
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
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return _sanitize_nested(value, secret, depth) if depth < _DEPTH else "..."
    return _sanitize_text(str(value), secret)


def _sanitize_nested(value: Mapping[object, object] | Sequence[object], secret: str | None, depth: int) -> object:
    if isinstance(value, Mapping):
        return _sanitize_map(value, secret, depth)
    return [_sanitize_value(item, secret, depth + 1) for item in value[:_ENTRIES]]


def _sanitize_text(text: str, secret: str | None) -> str:
    shown = redact_secrets(redact_key(text, secret))
    return shown if len(shown) <= _LETTERS else f"{shown[:_LETTERS]}..."
