"""JSON Lines: one episode a line, plain or compressed (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`).

Each episode is a compressed member of its own, so that a file can be appended to, and what a crash cuts off is the last
episode only. No time and no name enters the compressed bytes.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import zstandard

from safevla_bench.archive.decoding import decode
from safevla_bench.archive.encoding import encode
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory import Batch

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_ZSTD_LEVEL = 9
_REMEDY_BROKEN = "The file is cut off or damaged; make it anew, or copy it again."


def read(path: Path) -> Iterator[Batch | RecordError]:
    """The episodes of one file in order, each a batch of one, or the error of its line."""
    with _open(path) as stream:
        for number, line in enumerate(_lines(stream, path), start=1):
            if line.isspace():
                continue
            try:
                yield decode(line)
            except RecordError as error:
                error.at(Place(file=str(path), line=number))
                yield error


def member(batch: Batch, index: int, suffix: str) -> bytes:
    """The bytes that append one episode to a file of that suffix."""
    return _COMPRESS[suffix](encode(batch, index))


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda line: line,
    ".jsonl.gz": lambda line: gzip.compress(line, mtime=0),
    ".jsonl.zst": lambda line: zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(line),
}


def _open(path: Path) -> io.BufferedIOBase:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rb")
    if path.name.endswith(".zst"):
        reader = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True, closefd=True)
        return io.BufferedReader(reader)
    return path.open("rb")


def _lines(stream: Iterable[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from stream
    except (zlib.error, EOFError, gzip.BadGzipFile, zstandard.ZstdError) as error:
        place = Place(file=str(path))
        raise RecordError(f"cannot be decompressed: {error}", remedy=_REMEDY_BROKEN, place=place) from None
