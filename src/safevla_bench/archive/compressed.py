"""Compressed members of a file, gzip members or zstd frames; none is passed on before its checksum was read.

Behind a damaged stretch the reader searches for the next whole member, so that damage costs only what it touches.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import zstandard

from safevla_bench.archive.limits import check_size

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
        """Return whether nothing follows but zeros, which may pad a file behind its members."""
        self._stream.seek(at)
        first = self._stream.read(1)
        if first != b"\0" or not at:
            return not first
        while piece := self._stream.read(_SEARCHED):
            if piece.strip(b"\0"):
                return False
        return True

    def check_member(self, at: int) -> tuple[int, list[bytes] | None]:
        """Return the end of the member that begins at a place and its contents; None for long contents.

        Raises:
            _BadMemberError: it is cut off, or damaged.
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
        """Yield the contents of the member at a place, before its checksum is read."""
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
        """Return the next place where a member may begin; None if there is none, or the search reached its bounds."""
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
