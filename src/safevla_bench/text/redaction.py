"""Secret-free text for everything that is printed, logged or written.

Learning and redacting is the recorder's: one process has one set of secrets.
"""

from __future__ import annotations

import re

from safevla_recorder.redaction import HIDDEN, learn_secret, redact_secrets

__all__ = ["HIDDEN", "is_secret_name", "learn_secret", "redact_secrets"]

_NAMES = re.compile(
    r"(^|[_.-])(api[_-]?key|auth|authorization|cookie|credentials?|passw(or)?d|secret|token)$", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Return whether an argument of this name holds a secret: `api_key`, `hf_token` or `password`, not `key_file`."""
    return _NAMES.search(name) is not None
