"""Text from records made harmless to terminals and pages: names may come from a stranger's file."""

from __future__ import annotations

import unicodedata

_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Controls, formats (bidirectional overrides, joiners), lone surrogates, line and paragraph separators."""


def inert(text: str) -> str:
    """The text with every character that acts instead of being seen written as its escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _ACTIVE else c for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
