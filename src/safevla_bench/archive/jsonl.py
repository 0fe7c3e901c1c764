"""JSON Lines: one episode a line, plain or compressed (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`); `.json` is one episode.

Each episode is a compressed member of its own, so that a file can be appended to, and what a crash cuts off is the last
episode only. No member is passed on before its checksum was read; what is behind damage is not read. No time and no
name enters the compressed bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import zstandard

from safevla_bench.archive.json_text import decode_json, encode_json
from safevla_bench.archive.record_schema import (
    MAX_BAD_LINES,
    REMEDY_BROKEN,
    REMEDY_LARGE,
    EpisodeSelection,
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
MAX_BLANK_LINES = 1 << 20
_REMEDY = "Is this an archive of episodes, a line each?"


def read_jsonl(path: Path, selection: EpisodeSelection) -> Iterator[Batch | RecordError]:
    """Yield the episodes of one file in order, each a batch of one, or the error of its line in its place.

    Blank lines and episodes that are not selected are skipped. Raises `OSError` if the file cannot be read;
    `DamageError` if a compressed member is damaged, a line is too long, or too many are bad or blank; the rest is not
    read.
    """
    last, bad = "", 0
    try:
        with open_input(path) as stream:
            separator = b"" if path.name.endswith(WHOLE) else b"\n"
            for number, line in enumerate(_split_lines(_read_pieces(stream, path.name), separator), 1):
                if line.isspace() or not selection.next_wanted():
                    continue
                try:
                    batch = decode_json(line)
                except RecordError as error:
                    bad += 1
                    if bad > MAX_BAD_LINES:
                        problem = f"more than {MAX_BAD_LINES} lines are bad; the rest is not read"
                        raise RecordError(problem, remedy=_REMEDY) from None
                    yield error.with_place(Place(file=str(path), line=number))
                else:
                    last = f" (the last episode before it: {escape_controls(batch.headers[0].episode_id)!r})"
                    yield batch
    except _BadMemberError as error:
        raise DamageError(f"{error}{last}", remedy=REMEDY_BROKEN, place=Place(file=str(path))) from None
    except RecordError as error:
        place = error.place.fill_from(Place(file=str(path)))
        raise DamageError(error.problem, remedy=error.remedy, place=place) from None


def encode_member(batch: Batch, index: int, suffix: str) -> bytes:
    """Return the bytes that append one episode to a file of that suffix: a line, compressed on its own.

    Raises `RecordError` if the episode is larger than readers accept.
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


def _split_lines(pieces: Iterable[bytes], separator: bytes) -> Iterator[bytes]:
    """Yield the lines, each with its separator, of a text in pieces; all of the text if `separator` is empty."""
    begun: list[bytes] = []
    number = 1
    size = blank = 0
    for piece in pieces:
        first, *rest = piece.split(separator) if separator else [piece]
        begun.append(first)
        size += len(first)
        for line in rest:
            blank += size == 0
            yield b"".join([*begun, separator])
            begun, number, size = [line], number + 1, len(line)
        try:
            check_size(size, "the line")
            if blank > MAX_BLANK_LINES:
                raise RecordError(f"more than {MAX_BLANK_LINES} lines are empty", remedy=REMEDY_LARGE)
        except RecordError as error:
            raise error.with_place(Place(line=number)) from None
    if any(begun):
        yield b"".join(begun)


def _read_pieces(stream: IO[bytes], name: str) -> Iterator[bytes]:
    compression = _COMPRESSIONS.get(Path(name).suffix)
    if compression is None:
        yield from iter(partial(stream.read, _PIECE), b"")
        return
    at = 0
    while not _is_at_end(stream, at):
        end, contents = _check_member(stream, at, compression)
        yield from contents or (piece for piece, _ in _read_member(stream, at, compression))
        at = end


# Compressed members: gzip members or zstd frames


_MAX_BUFFERED = 1 << 26
"""Bytes of a member that are buffered until its checksum was read. A longer member is read twice."""
_Compression = tuple[int, Callable[[], Any]]
"""The bytes to read at a time, which give some 8 MiB at most, and what makes a decompressor of one member."""
_COMPRESSIONS: Mapping[str, _Compression] = {
    # zlib makes at most 1032 bytes of one, zstd 128 KiB of a block of 4 bytes.
    ".gz": (1 << 13, lambda: zlib.decompressobj(wbits=31)),
    ".zst": (1 << 8, lambda: zstandard.ZstdDecompressor().decompressobj()),
}


class _BadMemberError(Exception):
    """A member is cut off or damaged."""


def _is_at_end(stream: IO[bytes], at: int) -> bool:
    stream.seek(at)
    first = stream.read(1)
    if first != b"\0" or not at:
        return not first
    return not any(piece.strip(b"\0") for piece in iter(partial(stream.read, _PIECE), b""))  # padding


def _check_member(stream: IO[bytes], at: int, compression: _Compression) -> tuple[int, list[bytes]]:
    contents: list[bytes] = []
    end = size = line = 0
    for piece, behind in _read_member(stream, at, compression):
        end = behind
        size += len(piece)
        newline = piece.rfind(b"\n")
        line = line + len(piece) if newline < 0 else len(piece) - newline - 1
        check_size(line, "the line")
        contents.append(piece)
        if size > _MAX_BUFFERED:
            contents.clear()
    return end, contents


def _read_member(stream: IO[bytes], at: int, compression: _Compression) -> Iterator[tuple[bytes, int]]:
    size, decompressor = compression
    member, why = decompressor(), "the file ends within it"
    stream.seek(at)
    try:
        while piece := stream.read(size):
            yield member.decompress(piece), stream.tell() - len(member.unused_data)
            if member.eof:
                return
    except (zlib.error, zstandard.ZstdError) as error:
        why = str(error)
    raise _BadMemberError(f"nothing can be decompressed from byte {at} to the file's end: {why}")
