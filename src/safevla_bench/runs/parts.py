"""A complete run: its records in the order of the plan, so many a file, the tables, and run.json last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from safevla_bench import archive
from safevla_bench.archive import jsonl, parquet, zstd_frames
from safevla_bench.errors import RecordError
from safevla_bench.files import write_atomically
from safevla_bench.runs.folder import ARCHIVE, RUN, EpisodeRow, archive_parts, dump, write_episodes
from safevla_bench.runs.journal import SUFFIX
from safevla_bench.runs.manifest import write_manifest
from safevla_bench.trajectory import Batch, concatenate, select

EPISODES_A_PART = 200
"""Records in one file of the archive; a part is put together in memory."""
JSONL, PARQUET = "jsonl", "parquet"
FORMS: Mapping[str, str] = {JSONL: SUFFIX, PARQUET: parquet.SUFFIX}
"""The forms that the archive of a run can have, with their suffixes."""


def write_run(
    folder: Path, description: Mapping[str, object], rows: Sequence[EpisodeRow], records: Iterable[bytes | Batch]
) -> None:
    """Write everything that a complete run holds, run.json last; what is there already is written over.

    Args:
        folder: the run folder.
        description: what run.json is to hold; `archive` names the archive's form.
        rows: every planned episode.
        records: the episodes that left one, as compressed frames of JSON or as batches of one.
    """
    parts = list(_archive(folder, records, FORMS[str(description.get("archive", JSONL))]))
    for stale in set(archive_parts(folder)) - set(parts):
        stale.unlink()
    write_episodes(folder, rows)
    write_manifest(folder, parts, len(rows))
    write_atomically(folder / RUN, dump({**description, "complete": True}))


def records(folder: Path) -> Iterator[bytes | Batch]:
    """The records of a complete run as `write_run` takes them, in order; `RecordError` where one cannot be read."""
    for part in archive_parts(folder):
        if part.name.endswith(SUFFIX):
            yield from zstd_frames.frames(part)
        else:
            yield from _episodes(part)


def _episodes(part: Path) -> Iterator[Batch]:
    for read in archive.read([part]):
        if isinstance(read, RecordError):
            raise read
        for index in range(len(read)):
            yield select(read, [index])


def _archive(folder: Path, records: Iterable[bytes | Batch], suffix: str) -> Iterator[Path]:
    (folder / ARCHIVE).mkdir(exist_ok=True)
    left, number = iter(records), 0
    while together := list(islice(left, EPISODES_A_PART)):
        path = folder / ARCHIVE / f"part-{number:05d}{suffix}"
        write_atomically(path, _content(together, suffix))
        yield path
        number += 1


def _content(together: Sequence[bytes | Batch], suffix: str) -> bytes:
    if suffix == SUFFIX:
        return b"".join(framed(one) for one in together)
    return parquet.encode(concatenate([opened(one) for one in together]))


def framed(record: bytes | Batch) -> bytes:
    """A record as a compressed frame of JSON."""
    return record if isinstance(record, bytes) else jsonl.member(record, 0, SUFFIX)


def opened(record: bytes | Batch) -> Batch:
    """A record as a batch of one."""
    return jsonl.from_member(record, SUFFIX) if isinstance(record, bytes) else record
