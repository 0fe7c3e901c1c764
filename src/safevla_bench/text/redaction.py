"""Text without secrets, for everything that is printed, logged or written.

Which keys this process was given is known to it alone, so that is the one thing here that is kept between calls.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_SHORTEST = 4
"""Letters of a key that is looked for; a shorter one would be found in every word."""
_USER = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_QUERY = re.compile(r"(://[^\s'\"?#]*[?#])[^\s'\"]+")
_NAMES = re.compile(
    r"(^|[_.-])(api[_-]?key|auth|authorization|cookie|credentials?|passw(or)?d|secret|token)$", re.IGNORECASE
)
_learnt: set[str] = set()


def learn(secret: str) -> None:
    """Never let this be seen in what `redacted` gives."""
    if len(secret) >= _SHORTEST:
        _learnt.add(secret)


def redacted(text: str) -> str:
    """The text without the keys that were learnt, and without users, queries and fragments of addresses."""
    for secret in sorted(_learnt, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(HIDDEN, text))


def names_a_secret(name: str) -> bool:
    """Whether an argument of this name would hold a secret, as `api_key`, `hf_token` or `password`, not `key_file`."""
    return _NAMES.search(name) is not None
