"""The working state of an unfinished run, in `.partial/` of its folder: what survives a kill at any instant.

records.jsonl.zst   the records of finished episodes, a frame each, in the order in which they ended
journal.jsonl       a line a finished episode: its row in the table of episodes, and where its frame lies

A frame is on the disk before its line is; what follows the last whole line is not part of the run, and the next writer
cuts it off. A later line of the same episode replaces the earlier one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from safevla_bench.archive import jsonl
from safevla_bench.archive.limits import REMEDY_BROKEN
from safevla_bench.archive.selection import Sieve
from safevla_bench.errors import Place, RecordError, RunError
from safevla_bench.files import write_all
from safevla_bench.runs.folder import EpisodeRow, Latency, described
from safevla_bench.trajectory import Batch

PARTIAL = ".partial"
JOURNAL, RECORDS = "journal.jsonl", "records.jsonl.zst"
SUFFIX = ".jsonl.zst"


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line: the episode's place in the plan, its row, and its frame's place in the records (no bytes: no record)."""

    index: int
    row: EpisodeRow
    offset: Annotated[int, Meta(ge=0)]
    length: Annotated[int, Meta(ge=0)]
    latency: Latency | None = None
    greeting: Mapping[str, object] | None = None
    """What the policy or its server said of itself."""


class Journal:
    """The working state, opened by the one process that adds to it."""

    def __init__(self, folder: Path) -> None:
        """Open the working state of a run folder, made where it is missing, and cut off what a kill left half done."""
        place = folder / PARTIAL
        place.mkdir(exist_ok=True)
        read, whole = _read(place)
        self.entries = {entry.index: entry for entry in read}
        self._frames = _opened(place / RECORDS, max((one.offset + one.length for one in read), default=0))
        try:
            self._lines = _opened(place / JOURNAL, whole)
        except BaseException:
            self._frames.close()
            raise

    def append(
        self,
        index: int,
        row: EpisodeRow,
        frame: bytes | None,
        latency: Latency | None = None,
        greeting: Mapping[str, object] | None = None,
    ) -> None:
        """Keep a finished episode for good; `frame` is its compressed record, None where it left none."""
        offset, length = self._frames.tell(), len(frame or b"")
        if frame:
            _write(self._frames, frame)
        entry = Entry(index=index, row=row, offset=offset, length=length, latency=latency, greeting=greeting)
        _write(self._lines, msgspec.json.encode(entry) + b"\n")
        self.entries[index] = entry

    def frame(self, entry: Entry) -> bytes:
        """The compressed record of an entry that has one."""
        return os.pread(self._frames.fileno(), entry.length, entry.offset)

    def close(self) -> None:
        self._lines.close()
        self._frames.close()


def exists(folder: Path) -> bool:
    """Whether a run folder holds a working state."""
    return (folder / PARTIAL).is_dir()


def finished(folder: Path) -> list[Entry]:
    """The episodes that an unfinished run has finished, in plan order; `RunError` where the journal is damaged."""
    read, _ = _read(folder / PARTIAL)
    latest = {entry.index: entry for entry in read}
    return [latest[index] for index in sorted(latest)]


def progress(folder: Path) -> tuple[int, int]:
    """How many episodes of a run folder are done, and how many are planned."""
    description = described(folder)
    planned = description.get("planned")
    done = planned if description.get("complete") else len(finished(folder)) if exists(folder) else 0
    return (done, planned) if isinstance(done, int) and isinstance(planned, int) else (0, 0)


class Snapshot:
    """The finished episodes of an unfinished run as they are now, in plan order.

    The records stay open, so that they can be read whatever becomes of the run: they are only ever added to, and a
    completed run removes the file's name, not what is held open.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `FileNotFoundError` where the working state is gone."""
        self._file: int | None = None
        self._path = folder / PARTIAL / RECORDS
        self.entries = finished(folder)
        if any(entry.length for entry in self.entries):
            self._file = os.open(self._path, os.O_RDONLY)

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Batch | RecordError]:
        """The records, or those at the places that are wanted, or the error in a record's place."""
        sieve = Sieve(wanted)
        for entry in self.entries:
            if not entry.length or not sieve.take():
                continue
            try:
                yield jsonl.from_member(self._frame(entry), SUFFIX)
            except RecordError as error:
                yield error.at(Place(file=str(self._path), episode=entry.row.episode_id))

    def _frame(self, entry: Entry) -> bytes:
        """The bytes of an entry's record; asked for only where they are, as a length may be a stranger's."""
        assert self._file is not None
        if entry.offset + entry.length > os.fstat(self._file).st_size:
            raise RecordError("the file ends before the record", remedy=REMEDY_BROKEN)
        return os.pread(self._file, entry.length, entry.offset)


def _read(place: Path) -> tuple[list[Entry], int]:
    """The entries, and the length of the journal up to the end of the last whole line."""
    path = place / JOURNAL
    text = path.read_bytes() if path.exists() else b""
    whole = text.rfind(b"\n") + 1
    try:
        return [msgspec.json.decode(line, type=Entry) for line in text[:whole].splitlines()], whole
    except (msgspec.DecodeError, RecursionError) as error:
        remedy = f"Start the run anew. {place / RECORDS} can be read as an archive of what it had done."
        raise RunError(f"the journal is damaged: {error}", remedy=remedy, place=Place(file=str(path))) from None


def _opened(path: Path, length: int) -> IO[bytes]:
    """A file to append to, cut to a length. Unbuffered: what is not written is not believed to be."""
    stream = path.open("a+b", buffering=0)
    if stream.seek(0, os.SEEK_END) < length:
        stream.close()
        problem = "is shorter than the journal says"
        raise RunError(problem, remedy="Restore the file, or start the run anew.", place=Place(file=str(path)))
    stream.truncate(length)
    stream.seek(length)
    return stream


def _write(stream: IO[bytes], content: bytes) -> None:
    write_all(stream.fileno(), content)
    os.fsync(stream.fileno())
