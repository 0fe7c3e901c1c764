"""JSON Lines: one episode a line, plain or compressed (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`); `.json` is one episode.

Each episode is a compressed member of its own, so that a file can be appended to, and what a crash cuts off is the last
episode only. No member is passed on before its checksum was read. Behind a damaged stretch the reader searches for the
next whole member, so that damage costs only what it touches. No time and no name enters the compressed bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from safevla_bench.archive.json_text import decode_json, encode_json
from safevla_bench.archive.record_schema import (
    MAX_BAD_LINES,
    REMEDY_BROKEN,
    EpisodeSelection,
    check_blank_lines,
    check_size,
    check_values,
)
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import open_input
from safevla_bench.text import escape_controls
from safevla_bench.trajectory.batch import Batch

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
WHOLE = ".json"
"""One episode over as many lines as it likes; read, never appended to."""
_ZSTD_LEVEL = 9
_PIECE = 1 << 20
_REMEDY = "Is this an archive of episodes, a line each?"


def read_jsonl(path: Path, selection: EpisodeSelection) -> Iterator[Batch | RecordError]:
    """Yield the episodes of one file in order, each a batch of one, or the error of its line in its place.

    Blank lines and episodes that are not selected are skipped. A damaged stretch is one `DamageError`; the lines behind
    it are read, and have no number. Raises `OSError` where the file cannot be read, and `DamageError` where a line is
    too long, or too many are bad or blank; the rest is not read.
    """
    last, bad = None, 0
    for number, line in _read_lines(path):
        if isinstance(line, DamagedStretch):
            yield _damage_error(path, line, last)
        elif not line.isspace() and selection.next_wanted():
            result = _decode_line(line, Place(file=str(path), line=number))
            if isinstance(result, Batch):
                last = result.headers[0].episode_id
            else:
                bad += 1
                if bad > MAX_BAD_LINES:
                    problem = f"more than {MAX_BAD_LINES} lines are bad; the rest is not read"
                    raise DamageError(problem, remedy=_REMEDY, place=Place(file=str(path)))
            yield result


def _decode_line(line: bytes, place: Place) -> Batch | RecordError:
    try:
        return decode_json(line)
    except RecordError as error:
        return error.with_place(place)


def _damage_error(path: Path, damage: DamagedStretch, last: str | None) -> DamageError:
    behind = f" (the last episode before it: {escape_controls(last)!r})" if last is not None else ""
    return DamageError(f"{damage}{behind}", remedy=REMEDY_BROKEN, place=Place(file=str(path)))


def encode_member(batch: Batch, index: int, suffix: str) -> bytes:
    """Return the bytes that append one episode to a file of that suffix: a line, compressed on its own.

    Raises `RecordError` where the episode is larger than readers accept.
    """
    line = encode_json(batch, index)
    check_size(len(line), "the episode")
    check_values(line)
    return line if suffix == WHOLE else _COMPRESS[suffix](line)


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda line: line,
    ".jsonl.gz": lambda line: gzip.compress(line, mtime=0),
    ".jsonl.zst": lambda line: zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(line),
}


def _read_lines(path: Path) -> Iterator[tuple[int | None, bytes | DamagedStretch]]:
    """Yield (number, line) for each decompressed line of a file, counted from 1, and (None, stretch) for each damage.

    A `.json` file is a single line. Line numbers behind damage are None.

    Raises:
        DamageError: a line is too long, or there are too many empty ones; the rest is unknown.
        OSError: the file cannot be read.
    """
    with open_input(path) as stream:
        is_one_episode = path.name.endswith(WHOLE)
        try:
            yield from _split_lines(_read_pieces(stream, path.name), separator=b"" if is_one_episode else b"\n")
        except RecordError as error:
            problem, remedy = error.problem, error.remedy
            raise DamageError(problem, remedy=remedy, place=error.place.fill_from(Place(file=str(path)))) from None


def _read_pieces(stream: IO[bytes], name: str) -> Iterator[bytes | DamagedStretch]:
    """Yield the contents of a file in pieces, none of them large whatever the compressed bytes state.

    The suffix of `name` tells the compression, if any. Raises as `decompress_members` does.
    """
    for suffix, compression in COMPRESSIONS.items():
        if name.endswith(suffix):
            yield from decompress_members(stream, compression)
            return
    while piece := stream.read(_PIECE):
        yield piece


def _split_lines(
    pieces: Iterable[bytes | DamagedStretch], separator: bytes
) -> Iterator[tuple[int | None, bytes | DamagedStretch]]:
    """Yield (number, line with its separator) of a text that comes in pieces; all of the text if `separator` is empty.

    Damage is yielded as (None, stretch); a line that damage cuts off is dropped with it, and later numbers are None.
    Raises `RecordError` where a line is too long, or too many are empty.
    """
    begun: list[bytes] = []
    number: int | None = 1
    size = blank = 0
    for piece in pieces:
        if isinstance(piece, DamagedStretch):
            begun, size, number = [], 0, None
            yield None, piece
            continue
        first, *rest = piece.split(separator) if separator else [piece]
        begun.append(first)
        size += len(first)
        for line in rest:
            blank += size == 0
            yield number, b"".join([*begun, separator])
            begun, number, size = [line], None if number is None else number + 1, len(line)
        try:
            check_size(size, "the line")
            check_blank_lines(blank)
        except RecordError as error:
            raise error.with_place(Place(line=number)) from None
    if any(begun):
        yield number, b"".join(begun)


# Compressed members: gzip members or zstd frames


_MAX_BUFFERED = 1 << 26
"""Bytes of a member that are buffered until its checksum was read. A longer member is read twice."""
_SEARCHED = 1 << 20
_MOST_TRIES, _MOST_WASTED = 1000, 1 << 32
"""Bounds of the search behind damage, in a file: places tried, and bytes decompressed for nothing."""


@dataclass(frozen=True)
class Compression:
    """A form of compression: its magic bytes, its decompressor, and the bytes to read at a time.

    `piece` compressed bytes give some 8 MiB at most.
    """

    magic: bytes
    piece: int
    opened: Callable[[], Any]


COMPRESSIONS: Mapping[str, Compression] = {
    # zlib makes at most 1032 bytes of one, zstd 128 KiB of a block of 4 bytes.
    ".gz": Compression(b"\x1f\x8b\x08", 1 << 13, lambda: zlib.decompressobj(wbits=31)),
    ".zst": Compression(zstandard.FRAME_HEADER, 1 << 8, lambda: zstandard.ZstdDecompressor().decompressobj()),
}


@dataclass(frozen=True)
class DamagedStretch:
    """A stretch of a file without a whole member."""

    begin: int
    """Its first byte."""
    end: int | None
    """The first byte behind it; None = it reaches to the file's end."""
    why: str

    def __str__(self) -> str:
        behind = "the file's end" if self.end is None else f"byte {self.end}"
        return f"nothing can be decompressed from byte {self.begin} to {behind}: {self.why}"


class _BadMemberError(Exception):
    """No whole member begins at a place."""


def decompress_members(stream: IO[bytes], compression: Compression) -> Iterator[bytes | DamagedStretch]:
    """Yield the decompressed contents of a file's members in pieces, and the damaged stretches between them.

    Raises:
        RecordError: a line is longer than an episode may be.
    """
    reading = _MemberReader(stream, compression)
    at: int | None = 0
    damaged: tuple[int, str] | None = None
    while at is not None and not reading.is_at_end(at):
        try:
            end, contents = reading.check_member(at)
        except _BadMemberError as error:
            damaged = damaged or (at, str(error))
            at = reading.find_next_member(at)
            continue
        if damaged:
            yield DamagedStretch(damaged[0], at, damaged[1])
            damaged = None
        yield from reading.read_pieces(at) if contents is None else contents
        at = end
    if damaged:
        yield DamagedStretch(damaged[0], None, damaged[1])


class _MemberReader:
    """Reader of a file's members; counts the tries and bytes that it spends on damage."""

    def __init__(self, stream: IO[bytes], compression: Compression) -> None:
        self._stream, self._compression = stream, compression
        self._tries = self._wasted = 0

    def is_at_end(self, at: int) -> bool:
        self._stream.seek(at)
        first = self._stream.read(1)
        if first != b"\0" or not at:
            return not first
        while piece := self._stream.read(_SEARCHED):
            if piece.strip(b"\0"):
                return False
        return True

    def check_member(self, at: int) -> tuple[int, list[bytes] | None]:
        """Decompress the member that begins at byte `at`.

        Return its end and its contents, None in place of long contents.

        Raises:
            _BadMemberError: the member is cut off, or damaged.
            RecordError: one of its lines is longer than an episode may be.
        """
        buffered: list[bytes] | None = []
        size = line = 0
        try:
            for piece in self.read_pieces(at):
                size += len(piece)
                newline = piece.rfind(b"\n")
                line = line + len(piece) if newline < 0 else len(piece) - newline - 1
                check_size(line, "the line")
                if buffered is not None:
                    buffered.append(piece)
                buffered = buffered if size <= _MAX_BUFFERED else None
        except _BadMemberError:
            self._wasted += size
            raise
        return self._end, buffered

    def read_pieces(self, at: int) -> Iterator[bytes]:
        """Yield the contents of the member at byte `at` in pieces, before its checksum is read, and note where it ends.

        Raises `_BadMemberError` where the member is cut off or damaged, maybe after some pieces.
        """
        member = self._compression.opened()
        self._stream.seek(at)
        while piece := self._stream.read(self._compression.piece):
            try:
                out = member.decompress(piece)
            except (zlib.error, zstandard.ZstdError) as error:
                raise _BadMemberError(str(error)) from None
            if out:
                yield out
            if member.eof:
                self._end = self._stream.tell() - len(member.unused_data)
                return
        raise _BadMemberError("the file ends within it")

    def find_next_member(self, at: int) -> int | None:
        """Return the next byte behind `at` with the magic bytes of a member.

        None if there is none, or the bounds are reached. Each call counts as a try.
        """
        self._tries += 1
        if self._tries > _MOST_TRIES or self._wasted > _MOST_WASTED:
            return None
        magic = self._compression.magic
        at, tail = at + 1, b""
        self._stream.seek(at)
        while piece := self._stream.read(_SEARCHED):
            offset = (tail + piece).find(magic)
            if offset >= 0:
                return at - len(tail) + offset
            at += len(piece)
            tail = (tail + piece)[1 - len(magic) :]
        return None
