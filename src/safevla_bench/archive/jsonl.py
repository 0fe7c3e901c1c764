"""JSON Lines: one episode a line, plain or compressed (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`); `.json` is one episode.

Each episode is a compressed member of its own, so that a file can be appended to, and what a crash cuts off is the last
episode only. No time and no name enters the compressed bytes.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO

import zstandard

from safevla_bench.archive.compressed import COMPRESSIONS, Damage, contents
from safevla_bench.archive.json_decoder import decode
from safevla_bench.archive.json_encoder import encode
from safevla_bench.archive.limits import MAX_BAD_LINES, REMEDY_BROKEN, check_blank, check_size, check_values
from safevla_bench.archive.selection import Sieve
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.text.sanitize import inert
from safevla_bench.trajectory import Batch

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
WHOLE = ".json"
"""One episode over as many lines as it likes; read, never appended to."""
_ZSTD_LEVEL = 9
_PIECE = 1 << 20
_REMEDY = "Is this an archive of episodes, a line each?"


def read(path: Path, sieve: Sieve) -> Iterator[Batch | RecordError]:
    """The episodes of one file in order, each a batch of one, or the error of its line.

    A damaged stretch is one `DamageError`, and what lies behind it is read; its lines have no number.
    """
    last, bad = None, 0
    for number, line in _lines(path):
        if isinstance(line, Damage):
            yield _damaged(path, line, last)
        elif not line.isspace() and sieve.take():
            found = _decoded(line, Place(file=str(path), line=number))
            if isinstance(found, Batch):
                last = found.headers[0].episode_id
            else:
                bad += 1
                if bad > MAX_BAD_LINES:
                    problem = f"more than {MAX_BAD_LINES} lines are bad; the rest is not read"
                    raise DamageError(problem, remedy=_REMEDY, place=Place(file=str(path)))
            yield found


def _decoded(line: bytes, place: Place) -> Batch | RecordError:
    try:
        return decode(line)
    except RecordError as error:
        return error.at(place)


def _damaged(path: Path, damage: Damage, last: str | None) -> DamageError:
    behind = f" (the last episode before it: {inert(last)!r})" if last is not None else ""
    return DamageError(f"{damage}{behind}", remedy=REMEDY_BROKEN, place=Place(file=str(path)))


def member(batch: Batch, index: int, suffix: str) -> bytes:
    """The bytes that append one episode to a file of that suffix."""
    line = encode(batch, index)
    check_size(len(line), "the episode")
    check_values(line)
    return line if suffix == WHOLE else _COMPRESS[suffix](line)


def from_member(content: bytes, suffix: str) -> Batch:
    """The episode of bytes that `member` made; `DamageError` where they are cut off or damaged."""
    whole: list[bytes] = []
    for _, found in _split(_pieces(BytesIO(content), suffix), separator=b""):
        if isinstance(found, Damage):
            raise DamageError(str(found), remedy=REMEDY_BROKEN)
        whole.append(found)
    return decode(b"".join(whole))


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda line: line,
    ".jsonl.gz": lambda line: gzip.compress(line, mtime=0),
    ".jsonl.zst": lambda line: zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(line),
}


def _lines(path: Path) -> Iterator[tuple[int | None, bytes | Damage]]:
    """The lines of a file with their numbers, decompressed, and the damage between them.

    Raises:
        DamageError: a line is too long, or there are too many empty ones; nobody knows what was behind.
    """
    with path.open("rb") as stream:
        whole = path.name.endswith(WHOLE)
        try:
            yield from _split(_pieces(stream, path.name), separator=b"" if whole else b"\n")
        except RecordError as error:
            problem, remedy = error.problem, error.remedy
            raise DamageError(problem, remedy=remedy, place=error.place.within(Place(file=str(path)))) from None


def _pieces(stream: IO[bytes], name: str) -> Iterator[bytes | Damage]:
    """The contents of a file in pieces, none of them large whatever the compressed bytes say."""
    for suffix, compression in COMPRESSIONS.items():
        if name.endswith(suffix):
            yield from contents(stream, compression)
            return
    while piece := stream.read(_PIECE):
        yield piece


def _split(pieces: Iterable[bytes | Damage], separator: bytes) -> Iterator[tuple[int | None, bytes | Damage]]:
    """The lines of a text that comes in pieces; all of it as one where there is no separator.

    A line that damage cuts off is part of the damage; behind damage nobody knows the number of a line.
    """
    begun: list[bytes] = []
    number: int | None = 1
    size = blank = 0
    for piece in pieces:
        if isinstance(piece, Damage):
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
            check_blank(blank)
        except RecordError as error:
            raise error.at(Place(line=number)) from None
    if any(begun):
        yield number, b"".join(begun)
