"""JSON Lines: one episode a line, plain or compressed (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`); `.json` is one episode.

Each episode is a compressed member of its own, so that a file can be appended to, and what a crash cuts off is the last
episode only. No time and no name enters the compressed bytes.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import zstandard

from safevla_bench.archive.compressed import COMPRESSIONS, DamagedStretch, decompress_members
from safevla_bench.archive.json_text import decode_json, encode_json
from safevla_bench.archive.limits import (
    MAX_BAD_LINES,
    REMEDY_BROKEN,
    EpisodeSelection,
    check_blank_lines,
    check_size,
    check_values,
)
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.text.sanitize import escape_controls
from safevla_bench.trajectory import Batch

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
WHOLE = ".json"
"""One episode over as many lines as it likes; read, never appended to."""
_ZSTD_LEVEL = 9
_PIECE = 1 << 20
_REMEDY = "Is this an archive of episodes, a line each?"


def read_jsonl(path: Path, selection: EpisodeSelection) -> Iterator[Batch | RecordError]:
    """Yield the episodes of one file in order, each a batch of one, or the error of its line.

    A damaged stretch is one `DamageError`. The lines behind it are read; they have no number.
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
    """Return the bytes that append one episode to a file of that suffix."""
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
    """Yield the decompressed lines of a file with their numbers, and the damage between them.

    Raises:
        DamageError: a line is too long, or there are too many empty ones; the rest is unknown.
    """
    with path.open("rb") as stream:
        is_one_episode = path.name.endswith(WHOLE)
        try:
            yield from _split_lines(_read_pieces(stream, path.name), separator=b"" if is_one_episode else b"\n")
        except RecordError as error:
            problem, remedy = error.problem, error.remedy
            raise DamageError(problem, remedy=remedy, place=error.place.fill_from(Place(file=str(path)))) from None


def _read_pieces(stream: IO[bytes], name: str) -> Iterator[bytes | DamagedStretch]:
    """Yield the contents of a file in pieces, none of them large whatever the compressed bytes state."""
    for suffix, compression in COMPRESSIONS.items():
        if name.endswith(suffix):
            yield from decompress_members(stream, compression)
            return
    while piece := stream.read(_PIECE):
        yield piece


def _split_lines(
    pieces: Iterable[bytes | DamagedStretch], separator: bytes
) -> Iterator[tuple[int | None, bytes | DamagedStretch]]:
    """Yield the lines of a text that comes in pieces, with their numbers; all of it as one if `separator` is empty.

    A line that damage cuts off is part of the damage. Behind damage the number of a line is unknown: None.
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
