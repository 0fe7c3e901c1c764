"""The zstd frames of a file as they are, an episode each: found by the sizes of their blocks, not decompressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import zstandard

from safevla_bench.archive.limits import REMEDY_BROKEN
from safevla_bench.errors import Place, RecordError

_LONGEST_HEADER, _BLOCK_HEADER, _CHECKSUM = 18, 3, 4
"""Bytes."""
_RUN_LENGTH = 1
"""A block of this type is one byte, whatever size it stands for."""


def frames(path: Path) -> Iterator[bytes]:
    """The frames of a file, in order; `RecordError` where it ends within one or holds something else."""
    content = path.read_bytes()
    start = 0
    while start < len(content):
        try:
            end = _end(content, start)
        except (zstandard.ZstdError, EOFError) as error:
            place = Place(file=str(path))
            raise RecordError(f"no whole zstd frame: {error}", remedy=REMEDY_BROKEN, place=place) from None
        yield content[start:end]
        start = end


def _end(content: bytes, start: int) -> int:
    """Where the frame that starts there ends (RFC 8878, section 3.1.1)."""
    header = content[start : start + _LONGEST_HEADER]
    place = start + zstandard.frame_header_size(header)
    last = False
    while not last and place < len(content):
        block = int.from_bytes(content[place : place + _BLOCK_HEADER], "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        place += _BLOCK_HEADER + (1 if kind == _RUN_LENGTH else size)
    place += _CHECKSUM if zstandard.get_frame_parameters(header).has_checksum else 0
    if not last or place > len(content):
        raise EOFError("the file ends within it")
    return place
