"""Text from records made harmless to terminals and pages: names may come from a stranger's file."""

from __future__ import annotations

import unicodedata

LONGEST = 160
_END = 36


def inert(text: str) -> str:
    """The text with every character that acts instead of being seen written as its escape.

    These are controls, bidirectional overrides and other formats, line separators, lone surrogates and code points
    without a meaning; spaces of any width stay.
    """
    return text if text.isprintable() else "".join(c if _seen(c) else _escaped(c) for c in text)


def _seen(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def clipped(name: str, longest: int = LONGEST) -> str:
    """The name; its beginning and its end where it is longer than any should be.

    >>> clipped("a" * 200, 50)
    'aaaaaaaaaaa … aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
    """
    return name if len(name) <= longest else f"{name[: longest - _END - 3]} … {name[-_END:]}"
