"""A complete run: its records in the order of the plan, cut into files, the tables, and run.json last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from safevla_bench import archive
from safevla_bench.archive import parquet
from safevla_bench.errors import RecordError
from safevla_bench.files import write_atomically
from safevla_bench.runs.folder import ARCHIVE, RUN, EpisodeRow, archive_parts, dump_json, write_episodes
from safevla_bench.runs.manifest import write_manifest
from safevla_bench.trajectory import Batch, select_episodes

EPISODES_A_PART = 200
"""Records in one file of the archive."""
JSONL, PARQUET = "jsonl", "parquet"
FORMS: Mapping[str, str] = {PARQUET: parquet.SUFFIX, JSONL: ".jsonl.zst"}
"""The forms that the archive of a run can have, with their suffixes."""


def write_run(
    folder: Path, description: Mapping[str, object], rows: Sequence[EpisodeRow], records: Iterable[Batch]
) -> None:
    """Write everything that a complete run holds, run.json last; what is there already is written over.

    Args:
        folder: the run folder.
        description: what run.json is to hold; `archive` names the archive's form.
        rows: every planned episode.
        records: the episodes that left a record, as batches of one, in plan order.
    """
    parts = list(_write_parts(folder, records, FORMS[str(description.get("archive", PARQUET))]))
    for stale in set(archive_parts(folder)) - set(parts):
        stale.unlink()
    write_episodes(folder, rows)
    write_manifest(folder, parts, len(rows))
    write_atomically(folder / RUN, dump_json({**description, "complete": True}))


def read_records(folder: Path) -> Iterator[Batch]:
    """Yield the records of a complete run as batches of one, in order; `RecordError` where one cannot be read."""
    for batch in archive.read_episodes(archive_parts(folder)):
        if isinstance(batch, RecordError):
            raise batch
        for index in range(len(batch)):
            yield select_episodes(batch, [index])


def _write_parts(folder: Path, records: Iterable[Batch], suffix: str) -> Iterator[Path]:
    (folder / ARCHIVE).mkdir(exist_ok=True)
    remaining = iter(records)
    for number, first in enumerate(remaining):
        path = folder / ARCHIVE / f"part-{number:05d}{suffix}"
        archive.write_batches(path, chain([first], islice(remaining, EPISODES_A_PART - 1)))
        yield path
