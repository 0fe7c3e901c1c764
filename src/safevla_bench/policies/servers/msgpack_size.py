"""How many values a MessagePack message holds, told from its bytes before anything is made of them.

A value is one byte on the wire and up to seventy in memory: what a stranger sends is counted before it is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping

_BIN, _EXT, _STR, _ARRAY, _MAP = range(5)
_LENGTHS: Mapping[int, tuple[int, int]] = {
    **{0xC4 + k: (_BIN, 1 << k) for k in range(3)},
    **{0xC7 + k: (_EXT, 1 << k) for k in range(3)},
    **{0xD9 + k: (_STR, 1 << k) for k in range(3)},
    **{0xDC + k: (_ARRAY, 2 << k) for k in range(2)},
    **{0xDE + k: (_MAP, 2 << k) for k in range(2)},
}
"""First byte of a value with its length after it: the kind, and the bytes of the length."""
_FIXED: Mapping[int, int] = {
    **{0xCA: 4, 0xCB: 8},
    **{0xCC + k: 1 << k for k in range(4)},
    **{0xD0 + k: 1 << k for k in range(4)},
    **{0xD4 + k: 1 + (1 << k) for k in range(5)},
}
"""First byte of a value of one length: the bytes after it."""


def more_than(most: int, message: bytes) -> bool:
    """Whether the message holds, or says that it holds, more than `most` values; keys of maps count too.

    A message that ends too early holds what it says.
    """
    at, seen, announced = 0, 0, 1
    while seen < announced <= most and at < len(message):
        seen += 1
        skipped, inside = _sized(message, at)
        at += skipped
        announced += inside
    return announced > most


def _sized(message: bytes, at: int) -> tuple[int, int]:
    """The bytes of a value without those inside it, and how many values are inside it."""
    first = message[at]
    if first < 0x80 or first >= 0xE0:
        return 1, 0
    if first < 0x90:
        return 1, 2 * (first & 0x0F)
    if first < 0xA0:
        return 1, first & 0x0F
    if first < 0xC0:
        return 1 + (first & 0x1F), 0
    if first not in _LENGTHS:
        return 1 + _FIXED.get(first, 0), 0
    kind, width = _LENGTHS[first]
    length = int.from_bytes(message[at + 1 : at + 1 + width], "big")
    if kind in (_ARRAY, _MAP):
        return 1 + width, length * (2 if kind == _MAP else 1)
    return 1 + width + length + (kind == _EXT), 0
