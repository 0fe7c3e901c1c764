"""JSON Lines: one episode a line, plain or compressed (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`); `.json` is one episode.

Each episode is a compressed member of its own, so that a file can be appended to, and what a crash cuts off is the last
episode only. No time and no name enters the compressed bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO

import zstandard

from safevla_bench.archive.decoding import decode
from safevla_bench.archive.encoding import encode
from safevla_bench.archive.limits import REMEDY_BROKEN, check_size
from safevla_bench.archive.sieve import Sieve
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory import Batch

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
WHOLE = ".json"
"""One episode over as many lines as it likes; read, never appended to."""
_ZSTD_LEVEL = 9
_PIECE = 1 << 20
_ZSTD_PIECE = 1 << 8
"""Compressed bytes at a time: at most some 8 MiB when decompressed, as a block of 4 bytes can stand for 128 KiB."""


def read(path: Path, sieve: Sieve) -> Iterator[Batch | RecordError]:
    """The episodes of one file in order, each a batch of one, or the error of its line."""
    for number, line in enumerate(_lines(path), start=1):
        if line.isspace() or not sieve.take():
            continue
        try:
            yield decode(line)
        except RecordError as error:
            yield error.at(Place(file=str(path), line=number))


def member(batch: Batch, index: int, suffix: str) -> bytes:
    """The bytes that append one episode to a file of that suffix."""
    line = encode(batch, index)
    check_size(len(line), "the episode")
    return line if suffix == WHOLE else _COMPRESS[suffix](line)


def from_member(content: bytes, suffix: str) -> Batch:
    """The episode of bytes that `member` made; `RecordError` where they are cut off or damaged."""
    try:
        return decode(b"".join(_split(_pieces(BytesIO(content), suffix), separator=b"")))
    except (zlib.error, EOFError, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise RecordError(f"cannot be decompressed: {error}", remedy=REMEDY_BROKEN) from None


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda line: line,
    ".jsonl.gz": lambda line: gzip.compress(line, mtime=0),
    ".jsonl.zst": lambda line: zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(line),
}


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed; `RecordError` where it is cut off or damaged, or a line is too long."""
    try:
        with path.open("rb") as stream:
            whole = path.name.endswith(WHOLE)
            yield from _split(_pieces(stream, path.name), separator=b"" if whole else b"\n")
    except (zlib.error, EOFError, gzip.BadGzipFile, zstandard.ZstdError) as error:
        problem = f"cannot be decompressed: {error}"
        raise RecordError(problem, remedy=REMEDY_BROKEN, place=Place(file=str(path))) from None
    except RecordError as error:
        raise error.at(Place(file=str(path))) from None


def _pieces(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """The contents of a file in pieces, none of them large whatever the compressed bytes say."""
    if name.endswith(".zst"):
        yield from _frames(stream)
        return
    plain = gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream
    while piece := plain.read(_PIECE):
        yield piece


def _frames(stream: IO[bytes]) -> Iterator[bytes]:
    """The contents of all zstd frames, in pieces; `EOFError` where the last one is incomplete.

    The last piece of a frame is held back until its checksum has been read: a record's line ends in it.
    """
    frame, held = None, b""
    while piece := stream.read(_ZSTD_PIECE):
        while piece:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            if out := frame.decompress(piece):
                yield held
                held = out
            piece = b""
            if frame.eof:
                yield held
                piece, frame, held = frame.unused_data, None, b""
    if frame:
        raise EOFError("the last frame is incomplete")


def _split(pieces: Iterable[bytes], separator: bytes) -> Iterator[bytes]:
    """The lines of a text that comes in pieces; all of it as one where there is no separator."""
    begun: list[bytes] = []
    number, size = 1, 0
    for piece in pieces:
        first, *rest = piece.split(separator) if separator else [piece]
        begun.append(first)
        size += len(first)
        for line in rest:
            yield b"".join(begun) + separator
            begun, number, size = [line], number + 1, len(line)
        try:
            check_size(size, "the line")
        except RecordError as error:
            raise error.at(Place(line=number)) from None
    if any(begun):
        yield b"".join(begun)
