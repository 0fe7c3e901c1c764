"""Removal of secrets from text that is printed, logged or written.

The secrets of this process are the one thing here that is kept between calls.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_MIN_CHARACTERS = 4
"""Length of the shortest secret that is redacted; a shorter one would match inside ordinary words."""
_URL_USER = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_URL_QUERY = re.compile(r"(://[^\s'\"?#]*[?#])[^\s'\"]+")
_secrets: set[str] = set()


def learn_secret(secret: str) -> None:
    """Register a secret, so that `redact_secrets` hides it from now on."""
    if len(secret) >= _MIN_CHARACTERS:
        _secrets.add(secret)


def redact_secrets(text: str) -> str:
    """Return the text with learnt secrets, and users, queries and fragments of addresses, replaced by `HIDDEN`."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL_QUERY.sub(rf"\1{HIDDEN}", _URL_USER.sub(HIDDEN, text))
