"""JSON Lines: one episode a line, plain or compressed (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`); `.json` is one episode.

Each episode is a compressed member of its own, so that a file can be appended to, and what a crash cuts off is the last
episode only. No time and no name enters the compressed bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import zstandard

from safevla_bench.archive.decoding import decode
from safevla_bench.archive.encoding import encode
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory import Batch

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
WHOLE = ".json"
"""One episode over as many lines as it likes; read, never appended to."""
_ZSTD_LEVEL = 9
_PIECE = 1 << 20
_REMEDY_BROKEN = "The file is cut off or damaged; make it anew, or copy it again."


def read(path: Path) -> Iterator[Batch | RecordError]:
    """The episodes of one file in order, each a batch of one, or the error of its line."""
    for number, line in enumerate(_lines(path), start=1):
        if line.isspace():
            continue
        try:
            yield decode(line)
        except RecordError as error:
            yield error.at(Place(file=str(path), line=number))


def member(batch: Batch, index: int, suffix: str) -> bytes:
    """The bytes that append one episode to a file of that suffix."""
    return _COMPRESS[suffix](encode(batch, index))


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda line: line,
    ".jsonl.gz": lambda line: gzip.compress(line, mtime=0),
    ".jsonl.zst": lambda line: zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(line),
}


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed; `RecordError` where it is cut off or damaged."""
    place = Place(file=str(path))
    try:
        with path.open("rb") as stream:
            if path.name.endswith(WHOLE):
                yield stream.read()
            elif path.name.endswith(".zst"):
                yield from _split(_frames(stream))
            else:
                yield from gzip.GzipFile(fileobj=stream) if path.name.endswith(".gz") else stream
    except (zlib.error, EOFError, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise RecordError(f"cannot be decompressed: {error}", remedy=_REMEDY_BROKEN, place=place) from None


def _frames(stream: IO[bytes]) -> Iterator[bytes]:
    """The contents of all zstd frames, in pieces; `EOFError` where the last one is incomplete."""
    frame = None
    while piece := stream.read(_PIECE):
        while piece:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(piece)
            piece = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame:
        raise EOFError("the last frame is incomplete")


def _split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a text that comes in pieces."""
    begun: list[bytes] = []
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        begun.append(first)
        for line in rest:
            yield b"".join(begun) + b"\n"
            begun = [line]
    if any(begun):
        yield b"".join(begun)
