"""Sanitised text for terminals and pages: names may come from a stranger's file."""

from __future__ import annotations

import unicodedata

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
