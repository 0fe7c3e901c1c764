"""Foreign text made safe: without control characters, for terminals and pages, and without secrets, wherever it goes.

Names may come from a stranger's file. Learning and redacting secrets is the recorder's: one process has one set of
them.
"""

from __future__ import annotations

import re
import unicodedata

from safevla_recorder.errors import HIDDEN, learn_secret, redact_secrets

__all__ = [
    "HIDDEN",
    "MAX_CHARACTERS",
    "escape_controls",
    "is_secret_name",
    "learn_secret",
    "redact_secrets",
    "shorten_name",
]

_NAMES = re.compile(
    r"(^|[_.-])(api[_-]?key|auth|authorization|cookie|credentials?|passw(or)?d|secret|token)$", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Return whether an argument of this name holds a secret: `api_key`, `hf_token` or `password`, not `key_file`."""
    return _NAMES.search(name) is not None


MAX_CHARACTERS = 160
_TAIL_CHARACTERS = 36


def escape_controls(text: str) -> str:
    """Return the text with every character that is not visible replaced by its escape sequence.

    Escaped are controls, bidirectional overrides and other format characters, line separators, lone surrogates and
    unassigned code points. Spaces of any width stay.
    """
    return text if text.isprintable() else "".join(c if _is_visible(c) else _escape_character(c) for c in text)


def _is_visible(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape_character(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def shorten_name(name: str, longest: int = MAX_CHARACTERS) -> str:
    """Return the name; if it is longer than `longest` characters, its beginning and its end.

    >>> shorten_name("a" * 200, 50)
    'aaaaaaaaaaa … aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
    """
    return name if len(name) <= longest else f"{name[: longest - _TAIL_CHARACTERS - 3]} … {name[-_TAIL_CHARACTERS:]}"
