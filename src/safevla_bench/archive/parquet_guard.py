"""The guard of Parquet files: the sizes that a file states, page by page, checked before pyarrow reads it.

A page may stand for any number of values in a few bytes, and pyarrow allocates memory for all that a file states. Its
own accessors do not help: `metadata.row_group(0).column(0)` aborts the process over statistics that contradict
themselves, and the headers of pages cannot be asked for. So Thrift's compact protocol, in which Parquet describes
itself, is read here; only the fields that matter become Python values.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.archive.record_schema import REMEDY_BROKEN, REMEDY_LARGE, check_size
from safevla_bench.errors import RecordError
from safevla_bench.files import open_input

MAX_FOOTER_BYTES = 1 << 24
"""The description of some 100,000 episodes; in memory it takes eighty times as much."""
MAX_TABLE_BYTES = 1 << 27
"""A table that is read whole, such as episodes.parquet, as its pages are counted: some 400,000 episodes."""
FREE_VALUES = 1 << 23
"""Values of a row group beyond one a byte: nulls, empty lists and repeated values take next to no bytes."""
BATCH_ROWS = 1 << 16
T = TypeVar("T")
_MAGIC = b"PAR1"
_HEADER_READS = (1 << 9, 1 << 12, 1 << 20)
"""Bytes that are read for a page's header: few at first, more where it is longer."""
_VALUE_BYTES = 8
"""Memory that a value is counted with, be it a number, a null or an empty list."""
_BYTE_ARRAY, _DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 6, 2, 7
_MAX_DICTIONARY_BYTES = 1 << 24
"""A larger dictionary of texts is not looked into; pyarrow writes none of more than 1 MiB."""
_ENTRY_BYTES = 64
"""Memory that an entry of it is counted with, which bounds how many are looked at."""
_CODECS = {0: "", 1: "snappy", 2: "gzip", 6: "zstd"}
"""Codec of a column -> its name in pyarrow, "" for none."""
_DATA_HEADERS = {0: (5, 1, 2), 3: (8, 1, 4)}
"""Type of a page with values -> the field that describes it, and there those of its number of values and encoding."""

Fields = Mapping[int, "Fields"]
"""The fields of a struct to read, by number; those of a field that is itself a struct, or a list of structs."""
Struct = dict[int, Any]
"""The fields that were read: integers, structs and lists of structs; None for a field of any other type."""
_COLUMN: Fields = {1: {}, 4: {}, 5: {}, 9: {}, 11: {}}
_FOOTER: Fields = {4: {1: {3: _COLUMN}, 3: {}}}
_PAGE: Fields = {1: {}, 2: {}, 3: {}, 5: {1: {}, 2: {}}, 8: {1: {}, 4: {}}}


@dataclass(frozen=True)
class RowGroup:
    """A row group as the footer states it; `check_pages` checks what its pages come to."""

    stream: IO[bytes]
    end: int
    """The byte at which the file's data end."""
    rows: int
    columns: tuple[Struct, ...]
    """ColumnMetaData: type (1), codec (4), number of values (5), places of the first data page (9) and dictionary page
    (11)."""

    def check_pages(self) -> int:
        """Return the bytes that the group takes; of pages with values only the headers are read.

        Raises `RecordError` if the bytes are more than an episode may take, or the pages are not as stated, hold far
        more values than bytes, or texts that are written as differences.
        """
        size = values = 0
        for column in self.columns:
            for page_size, page_values in _page_sizes(self.stream, self.end, column):
                size, values = size + page_size, values + page_values
                check_size(size + values * _VALUE_BYTES, "a row group")
                if values > size + FREE_VALUES:
                    raise RecordError(f"{values} values are said to stand in {size} bytes", remedy=REMEDY_LARGE)
        return size + values * _VALUE_BYTES


def check_row_group_sizes(stream: IO[bytes]) -> None:
    """Raise `RecordError` for a file without a valid footer, or with a row group that `check_pages` refuses."""
    for group in _read_row_groups(stream):
        group.check_pages()


@contextmanager
def open_parquet(path: Path) -> Iterator[tuple[pq.ParquetFile, list[RowGroup]]]:
    """Open a file that may be anybody's, with its row groups, each of which is to be checked before it is read.

    Raises `RecordError` if the footer is missing, too large or malformed, and as pyarrow does.
    """
    with open_input(path) as stream:
        groups = _read_row_groups(stream)
        # pyarrow opens the file by itself: threads of its own that call Python abort the process at its end.
        with pa.OSFile(str(path)) as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
            if file.num_row_groups != len(groups):
                raise _broken_file("the footer contradicts itself")
            yield file, groups


def read_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, `BATCH_ROWS` at a time at most; each row group is checked before pyarrow reads it.

    Raises `RecordError` if a group is refused, the file is damaged, or a column is not there; and as pyarrow does.
    """
    with _translated_names(), open_parquet(path) as (file, groups):
        if missing := [name for name in columns or () if name not in file.schema_arrow.names]:
            raise RecordError(f"there is no column {missing[0]!r}")
        for number, group in enumerate(groups):
            group.check_pages()
            yield from file.iter_batches(BATCH_ROWS, row_groups=[number], columns=columns, use_threads=False)


def read_table(content: bytes, most_bytes: int = MAX_TABLE_BYTES) -> pa.Table:
    """Return the table of a Parquet file's bytes, which may be anybody's.

    It is read in this thread: threads of pyarrow's own that still hold Python's bytes abort the process at its end.
    Raises `RecordError` if all row groups together take more than `most_bytes`, or the footer is not true of the pages,
    and as pyarrow does.
    """
    size = 0
    for group in _read_row_groups(io.BytesIO(content)):
        size += group.check_pages()
        if size > most_bytes:
            raise RecordError(f"the table takes more than {most_bytes >> 20} MiB", remedy=REMEDY_LARGE)
    with (
        _translated_names(),
        pq.ParquetFile(pa.BufferReader(content), pre_buffer=False, page_checksum_verification=True) as file,
    ):
        return file.read(use_threads=False)


@contextmanager
def _translated_names() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise _broken_file(f"a name or text is not UTF-8: {error}") from None


def _read_row_groups(stream: IO[bytes]) -> list[RowGroup]:
    end = stream.seek(0, 2)
    stream.seek(max(0, end - 8))
    tail = stream.read(8)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or size > end - 12:
        raise _broken_file("there is no footer at the file's end")
    if size > MAX_FOOTER_BYTES:
        raise RecordError(f"the footer has more than {MAX_FOOTER_BYTES >> 20} MiB", remedy="Write several files.")
    stream.seek(end - 8 - size)
    try:
        footer, _ = read_struct(stream.read(size), _FOOTER)
        return [_row_group(group, stream, end - 8 - size) for group in _part_field(footer, 4, list)]
    except MalformedError as error:
        raise _broken_file(f"the footer is no description of a file: {error}") from None


def _row_group(stated: Struct, stream: IO[bytes], end: int) -> RowGroup:
    columns = tuple(_part_field(column, 3, dict) for column in _part_field(stated, 1, list))
    rows = _size_field(stated, 3)
    if any(_size_field(column, 5) < rows for column in columns):
        raise MalformedError("a column has fewer values than there are rows")
    return RowGroup(stream, end, rows, columns)


def _page_sizes(stream: IO[bytes], end: int, column: Struct) -> Iterator[tuple[int, int]]:
    """Yield (bytes in memory, number of values) for each page of a column, a dictionary page with 0 values.

    Each value that refers to a dictionary of texts is counted with the bytes of its longest entry.
    """
    try:
        is_text, stated, longest, total = column.get(1) == _BYTE_ARRAY, _size_field(column, 5), 0, 0
        place = _size_field(column, 9)
        place = min(place, _size_field(column, 11) or place) if 11 in column else place
        while total < stated:
            header, place = _read_page_header(stream, place, end)
            kind = _size_field(header, 1)
            if kind == _DICTIONARY_PAGE:
                longest, entries = _measure_entries(stream, place, header, column) if is_text else (0, 0)
                yield _size_field(header, 2) + entries * _ENTRY_BYTES, 0
            elif kind in _DATA_HEADERS:
                description, count, encoding = _DATA_HEADERS[kind]
                described = _part_field(header, description, dict)
                values = _size_field(described, count)
                total += values
                if _size_field(described, encoding) == _DELTA_BYTE_ARRAY and is_text:
                    raise RecordError("texts are written as differences", remedy="Write them in plain encoding.")
                yield _size_field(header, 2) + values * longest, values
        if total != stated:
            raise MalformedError("the pages hold more values than the column")
    except (MalformedError, pa.ArrowException, OSError) as error:
        raise _broken_file(f"the pages of a column are not as the footer says: {error}") from None


def _measure_entries(stream: IO[bytes], end: int, header: Struct, column: Struct) -> tuple[int, int]:
    """Return (bytes of the longest text, number of texts) of a dictionary page that ends at byte `end`.

    Of a page that is not looked into the longest text is taken for all of it.
    """
    size, codec = _size_field(header, 2), _CODECS.get(_size_field(column, 4))
    if codec is None or size > _MAX_DICTIONARY_BYTES:
        return size, 0
    stream.seek(end - _size_field(header, 3))
    content = stream.read(_size_field(header, 3))
    if codec:
        content = pa.Codec(codec).decompress(content, size, asbytes=True)
    longest = place = entries = 0
    while place < len(content):
        length = 4 + int.from_bytes(content[place : place + 4], "little")
        longest, place, entries = max(longest, length), place + length, entries + 1
    if place != len(content):
        raise MalformedError("a text ends beyond its dictionary")
    return longest, entries


def _read_page_header(stream: IO[bytes], place: int, end: int) -> tuple[Struct, int]:
    for most in _HEADER_READS:
        stream.seek(place)
        try:
            header, length = read_struct(stream.read(min(most, max(0, end - place))), _PAGE)
        except MalformedError:
            continue
        following = place + length + _size_field(header, 3)
        if following > end:
            raise MalformedError("a page lies beyond the data")
        return header, following
    raise MalformedError("there is no page where one should be")


def _size_field(struct: Struct, field: int) -> int:
    size = struct.get(field)
    if not isinstance(size, int) or size < 0:
        raise MalformedError("a size is missing or negative")
    return size


def _part_field(struct: Struct, field: int, kind: type[T]) -> T:
    value = struct.get(field)
    if not isinstance(value, kind):
        raise MalformedError("a part is missing")
    return value


def _broken_file(problem: str) -> RecordError:
    return RecordError(problem, remedy=REMEDY_BROKEN)


# Thrift's compact protocol


class MalformedError(Exception):
    """The bytes end early, or are not Thrift's compact protocol."""


_MAX_DEPTH = 16
"""Levels of nesting; Parquet's own structs have fewer than ten."""
_MAX_VARINT_BYTES = 10
_TRUTHS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
"""Types by their numbers; true is 1 and false is 2."""


def read_struct(content: bytes, fields: Fields) -> tuple[Struct, int]:
    """Return the wanted fields of the struct at the beginning of `content`, and the byte offset behind the struct.

    Raises `MalformedError` if the bytes end early, or are not a struct.
    """
    try:
        struct, place = _read_struct(content, 0, fields, 0)
    except IndexError:
        raise MalformedError("the bytes end early") from None
    return struct, place


def _read_struct(content: bytes, place: int, fields: Fields, depth: int) -> tuple[Struct, int]:
    """Return the wanted fields of the struct at byte `place`, and the byte offset behind the struct."""
    if depth > _MAX_DEPTH:
        raise MalformedError("nested too deeply")
    struct: Struct = {}
    number = 0
    while head := content[place]:
        place += 1
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:  # the field's number follows in full
            raw, place = _read_varint(content, place)
            number = (raw >> 1) ^ -(raw & 1)
        if kind in _TRUTHS:
            value: Any = 2 - kind
        else:
            value, place = _read_value(content, place, kind, fields.get(number), depth + 1)
        if number in fields:
            struct[number] = value
    return struct, place + 1


def _read_value(content: bytes, place: int, kind: int, fields: Fields | None, depth: int) -> tuple[Any, int]:
    """Return an integer, a struct, or a list of structs at byte `place`, else None, and the byte offset behind it."""
    if kind in _INTEGERS:
        raw, place = _read_varint(content, place)
        return (raw >> 1) ^ -(raw & 1), place
    if kind == _BINARY:
        size, place = _read_varint(content, place)
        return None, place + size
    if kind == _STRUCT:
        return _read_struct(content, place, fields or {}, depth)
    if kind in _LISTS:
        return _read_list(content, place, fields, depth)
    if kind in _TRUTHS or kind == _BYTE:
        return content[place], place + 1
    if kind == _DOUBLE:
        return None, place + 8
    raise MalformedError(f"no type {kind}")


def _read_list(content: bytes, place: int, fields: Fields | None, depth: int) -> tuple[list[Struct] | None, int]:
    """Return the structs of the list at byte `place`, None if it holds others, and the offset behind the list."""
    if depth > _MAX_DEPTH:
        raise MalformedError("nested too deeply")
    head = content[place]
    kind, size, place = head & 15, head >> 4, place + 1
    if size == 15:
        size, place = _read_varint(content, place)
    if size > len(content) - place:  # an element takes a byte at least
        raise MalformedError("a list is longer than the bytes that hold it")
    structs: list[Struct] = []
    for _ in range(size):
        value, place = _read_value(content, place, kind, fields, depth + 1)
        if fields is not None and kind == _STRUCT:
            structs.append(value)
    return structs if len(structs) == size else None, place


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        byte = content[place]
        place += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, place
    raise MalformedError("a number is too long")
