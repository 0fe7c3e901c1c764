"""Names short enough to be read, however long a record makes them."""

from __future__ import annotations

LONGEST = 160
_END = 36


def clipped(name: str, longest: int = LONGEST) -> str:
    """The name; its beginning and its end where it is longer than any should be.

    >>> clipped("a" * 200, 50)
    'aaaaaaaaaaa … aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
    """
    return name if len(name) <= longest else f"{name[: longest - _END - 3]} … {name[-_END:]}"
