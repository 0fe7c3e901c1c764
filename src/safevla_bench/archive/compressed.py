"""The compressed members of a file: a gzip member or a zstd frame, given to nobody before its checksum was read.

Behind a damaged stretch the next member that is whole is looked for, so that damage costs what it touches.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import zstandard

from safevla_bench.archive.limits import check_size

_HELD = 1 << 26
"""Bytes of a member that are kept until its checksum was read; of a longer one nothing is, and it is read again."""
_SEARCHED = 1 << 20
_MOST_TRIES, _MOST_WASTED = 1000, 1 << 32
"""Bounds of the search behind damage, in a file: places tried, and bytes decompressed for nothing."""


@dataclass(frozen=True)
class Compression:
    """How members begin and are decompressed, and how many compressed bytes at a time give some 8 MiB at most."""

    magic: bytes
    piece: int
    opened: Callable[[], Any]


COMPRESSIONS: Mapping[str, Compression] = {
    # zlib makes at most 1032 bytes of one, zstd 128 KiB of a block of 4 bytes.
    ".gz": Compression(b"\x1f\x8b\x08", 1 << 13, lambda: zlib.decompressobj(wbits=31)),
    ".zst": Compression(zstandard.FRAME_HEADER, 1 << 8, lambda: zstandard.ZstdDecompressor().decompressobj()),
}


@dataclass(frozen=True)
class Damage:
    """A stretch of a file that holds no whole member."""

    begin: int
    """Its first byte."""
    end: int | None
    """The first byte behind it; None = it reaches to the file's end."""
    why: str

    def __str__(self) -> str:
        behind = "the file's end" if self.end is None else f"byte {self.end}"
        return f"nothing can be decompressed from byte {self.begin} to {behind}: {self.why}"


class _BadMember(Exception):
    """What begins at a place is no whole member."""


def contents(stream: IO[bytes], compression: Compression) -> Iterator[bytes | Damage]:
    """What the members of a file hold, in pieces, and the damage between them.

    Raises:
        RecordError: a line is longer than an episode may be.
    """
    reading = _Reading(stream, compression)
    at: int | None = 0
    damaged: tuple[int, str] | None = None
    while at is not None and not reading.ended(at):
        try:
            end, held = reading.checked(at)
        except _BadMember as error:
            damaged = damaged or (at, str(error))
            at = reading.following(at)
            continue
        if damaged:
            yield Damage(damaged[0], at, damaged[1])
            damaged = None
        yield from reading.pieces(at) if held is None else held
        at = end
    if damaged:
        yield Damage(damaged[0], None, damaged[1])


class _Reading:
    """A file that is being read, and how much more may be spent on what is no member."""

    def __init__(self, stream: IO[bytes], compression: Compression) -> None:
        self._stream, self._compression = stream, compression
        self._tries = self._wasted = 0

    def ended(self, at: int) -> bool:
        """Whether nothing is left but the zeros that may pad a file behind its members."""
        self._stream.seek(at)
        first = self._stream.read(1)
        if first != b"\0" or not at:
            return not first
        while piece := self._stream.read(_SEARCHED):
            if piece.strip(b"\0"):
                return False
        return True

    def checked(self, at: int) -> tuple[int, list[bytes] | None]:
        """Where the member ends that begins there, and what it holds, None where that is much.

        Raises:
            _BadMember: it is cut off, or damaged.
            RecordError: one of its lines is longer than an episode may be.
        """
        held: list[bytes] | None = []
        size = line = 0
        try:
            for piece in self.pieces(at):
                size += len(piece)
                newline = piece.rfind(b"\n")
                line = line + len(piece) if newline < 0 else len(piece) - newline - 1
                check_size(line, "the line")
                if held is not None:
                    held.append(piece)
                held = held if size <= _HELD else None
        except _BadMember:
            self._wasted += size
            raise
        return self._end, held

    def pieces(self, at: int) -> Iterator[bytes]:
        """What the member there holds, before its checksum is read."""
        member = self._compression.opened()
        self._stream.seek(at)
        while piece := self._stream.read(self._compression.piece):
            try:
                out = member.decompress(piece)
            except (zlib.error, zstandard.ZstdError) as error:
                raise _BadMember(str(error)) from None
            if out:
                yield out
            if member.eof:
                self._end = self._stream.tell() - len(member.unused_data)
                return
        raise _BadMember("the file ends within it")

    def following(self, at: int) -> int | None:
        """Where another member seems to begin; None where none does, or enough was tried."""
        self._tries += 1
        if self._tries > _MOST_TRIES or self._wasted > _MOST_WASTED:
            return None
        magic = self._compression.magic
        at, tail = at + 1, b""
        self._stream.seek(at)
        while piece := self._stream.read(_SEARCHED):
            found = (tail + piece).find(magic)
            if found >= 0:
                return at - len(tail) + found
            at += len(piece)
            tail = (tail + piece)[1 - len(magic) :]
        return None
