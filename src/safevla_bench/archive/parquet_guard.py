"""What a Parquet file says of its size, page by page, checked before pyarrow makes anything of it.

A page may stand for any number of values in a few bytes, and pyarrow believes what a file says of itself: it makes room
for all of them, and aborts the process over some descriptions that contradict themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from safevla_bench.archive.limits import REMEDY_BROKEN, REMEDY_LARGE, check_size
from safevla_bench.archive.thrift import Malformed, Reader, Value
from safevla_bench.errors import RecordError

MAX_FOOTER_BYTES = 1 << 26
"""The description of some 400,000 episodes."""
FREE_VALUES = 1 << 23
"""Values of a row group beyond one a byte: what is null, empty or the same again takes next to nothing."""
_MAGIC = b"PAR1"
_HEAD, _LONGEST_HEAD = 1 << 12, 1 << 20
"""Bytes of a page that are read for its header at first, and at most."""
_VALUE_BYTES = 8
"""What a value is taken for, be it a number, a null or an empty list."""
_BYTE_ARRAY, _DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 6, 2, 7
_DATA_HEADERS = {0: 5, 3: 8}
"""Types of pages with values, and the field of the page's header that describes them."""


@dataclass(frozen=True)
class RowGroup:
    """A row group as the footer states it; what it comes to is checked by `check`."""

    rows: int
    chunks: tuple[dict[int, Value], ...]
    """The metadata of its columns."""

    def check(self, stream: IO[bytes], end: int) -> None:
        """Refuse a group that holds more than an episode may, before it is read.

        Args:
            stream: the file.
            end: where its data end.

        Raises:
            RecordError: it is too large, or its pages are not as the footer says.
        """
        size = values = 0
        for chunk in self.chunks:
            for held, stands_for in _pages(stream, end, chunk):
                size, values = size + held, values + stands_for
                check_size(size + values * _VALUE_BYTES, "a row group")
                if values > size + FREE_VALUES:
                    raise RecordError(f"{values} values are said to stand in {size} bytes", remedy=REMEDY_LARGE)


def check(stream: IO[bytes]) -> None:
    """Refuse a file of which a row group holds more than an episode may; raises what `row_groups` does."""
    groups, end = row_groups(stream)
    for group in groups:
        group.check(stream, end)


def row_groups(stream: IO[bytes]) -> tuple[list[RowGroup], int]:
    """The row groups of a file, and where its data end; `RecordError` where it does not describe itself in full."""
    end = stream.seek(0, 2)
    stream.seek(max(0, end - 8))
    tail = stream.read(8)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or size > end - 12:
        raise _broken("there is no footer at the file's end")
    if size > MAX_FOOTER_BYTES:
        raise RecordError(f"the footer has more than {MAX_FOOTER_BYTES >> 20} MiB", remedy="Write several files.")
    stream.seek(end - 8 - size)
    try:
        stated = _structs(Reader(stream.read(size)).struct().get(4))
        return [_row_group(one) for one in stated], end - 8 - size
    except Malformed as error:
        raise _broken(f"the footer is no description of a file: {error}") from None


def _row_group(stated: dict[int, Value]) -> RowGroup:
    chunks = tuple(_struct(chunk.get(3)) for chunk in _structs(stated.get(1)))
    rows = _size(stated, 3)
    if any(_size(chunk, 5) < rows for chunk in chunks):
        raise Malformed("a column has fewer values than there are rows")
    return RowGroup(rows, chunks)


def _pages(stream: IO[bytes], end: int, chunk: dict[int, Value]) -> Iterator[tuple[int, int]]:
    """Each page of a column: the bytes that it holds, texts written out, and the values that it stands for."""
    try:
        text, stated, dictionary, seen = chunk.get(1) == _BYTE_ARRAY, _size(chunk, 5), 0, 0
        place = _size(chunk, 9)
        place = min(place, _size(chunk, 11) or place) if 11 in chunk else place
        while seen < stated:
            head, place = _head(stream, place, end)
            if head.get(1) == _DICTIONARY_PAGE:
                dictionary = _size(head, 2)
                yield dictionary, 0
            elif head.get(1) in _DATA_HEADERS:
                values, encoding = _data(head)
                seen += values
                if text and encoding == _DELTA_BYTE_ARRAY:
                    raise RecordError("texts are written as differences", remedy="Write them in plain encoding.")
                yield _size(head, 2) + (values * dictionary if text else 0), values
        if seen != stated:
            raise Malformed("the pages hold more values than the column")
    except Malformed as error:
        raise _broken(f"the pages of a column are not as the footer says: {error}") from None


def _data(head: dict[int, Value]) -> tuple[int, int]:
    """How many values a page has, and their encoding."""
    kind = _size(head, 1)
    described = _struct(head.get(_DATA_HEADERS[kind]))
    return _size(described, 1), _size(described, 2 if kind == 0 else 4)


def _head(stream: IO[bytes], place: int, end: int) -> tuple[dict[int, Value], int]:
    """The header of the page at a place, and where the next page is."""
    for most in (_HEAD, _LONGEST_HEAD):
        stream.seek(place)
        reader = Reader(stream.read(min(most, max(0, end - place))))
        try:
            head = reader.struct()
        except Malformed:
            continue
        following = place + reader.place + _size(head, 3)
        if following > end:
            raise Malformed("a page lies beyond the data")
        return head, following
    raise Malformed("there is no page where one should be")


def _size(described: dict[int, Value], field: int) -> int:
    found = described.get(field)
    if not isinstance(found, int) or found < 0:
        raise Malformed("a size is missing or negative")
    return found


def _struct(value: Value | None) -> dict[int, Value]:
    if not isinstance(value, dict):
        raise Malformed("a part is missing")
    return value


def _structs(value: Value | None) -> list[dict[int, Value]]:
    if not isinstance(value, list):
        raise Malformed("a part is missing")
    return [_struct(one) for one in value]


def _broken(problem: str) -> RecordError:
    return RecordError(problem, remedy=REMEDY_BROKEN)
