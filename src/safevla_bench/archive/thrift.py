"""Thrift's compact protocol, in which Parquet describes itself, read without trust into plain values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

Value = int | float | bytes | list["Value"] | dict[int, "Value"]
"""A struct is its fields by their numbers; truth values are 1 and 0."""
_DEEPEST = 16
"""Levels of nesting; Parquet's own structs have fewer than ten."""


class Malformed(Exception):
    """The bytes end early, or say what the protocol does not have."""


class Reader:
    """Reads values one after another; `place` is behind the last one."""

    def __init__(self, content: bytes, place: int = 0) -> None:
        self.content, self.place = content, place

    def struct(self, depth: int = 0) -> dict[int, Value]:
        """The struct that begins here."""
        if depth > _DEEPEST:
            raise Malformed("nested too deeply")
        found: dict[int, Value] = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._zigzag()
            found[number] = 2 - kind if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Value:
        if kind in _PLAIN:
            return _PLAIN[kind](self)
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise Malformed(f"no type {kind}")

    def _list(self, depth: int) -> list[Value]:
        head = self._byte()
        kind, size = head & 15, head >> 4
        size = self._varint() if size == 15 else size
        if size > len(self.content) - self.place:  # an element takes a byte at least
            raise Malformed("a list is longer than the bytes that hold it")
        if kind in (_TRUE, _FALSE):
            return [int(self._byte() == _TRUE) for _ in range(size)]
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _byte(self) -> int:
        try:
            byte = self.content[self.place]
        except IndexError:
            raise Malformed("the bytes end early") from None
        self.place += 1
        return byte

    def _varint(self) -> int:
        content, place, result = self.content, self.place, 0
        try:
            for shift in range(0, 70, 7):
                byte = content[place]
                place += 1
                result |= (byte & 127) << shift
                if byte < 128:
                    self.place = place
                    return result
        except IndexError:
            raise Malformed("the bytes end early") from None
        raise Malformed("a number is too long")

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _bytes(self) -> bytes:
        return self._taken(self._varint())

    def _double(self) -> float:
        (number,) = struct.unpack("<d", self._taken(8))
        return float(number)

    def _taken(self, size: int) -> bytes:
        if size > len(self.content) - self.place:
            raise Malformed("the bytes end early")
        self.place += size
        return self.content[self.place - size : self.place]


_TRUE, _FALSE, _LIST, _SET, _STRUCT = 1, 2, 9, 10, 12
_PLAIN: Mapping[int, Callable[[Reader], Value]] = {
    3: Reader._byte,
    4: Reader._zigzag,
    5: Reader._zigzag,
    6: Reader._zigzag,
    7: Reader._double,
    8: Reader._bytes,
}
"""Types by their number: byte, i16, i32, i64, double, binary."""
