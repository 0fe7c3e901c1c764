"""A complete run: its records in the order of the plan, cut into parts, the tables, and run.json last.

The manifest lists the parts, and the sha256 that each was written with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from safevla_bench import archive
from safevla_bench.archive import parquet
from safevla_bench.errors import Place, RecordError, RunError
from safevla_bench.files import sha256_of, write_atomically
from safevla_bench.runs.folder import ARCHIVE, MANIFEST, RUN, EpisodeRow, archive_parts, dump_json, write_episodes
from safevla_bench.trajectory import SCHEMA_VERSION, Batch, select_episodes

_REMEDY = "Copy the folder anew from where it was made, or roll it out again."


def write_manifest(folder: Path, parts: Sequence[Path], episodes: int) -> None:
    """Write the digests of an archive's parts, which are on the disk, and how many episodes were planned."""
    digests = {_part_name(part): sha256_of(part) for part in parts}
    write_atomically(
        folder / MANIFEST, dump_json({"schema_version": SCHEMA_VERSION, "parts": digests, "episodes": episodes})
    )


def read_digests(folder: Path) -> Mapping[str, str]:
    """Return the sha256 of each part by its name, such as `archive/part-00000.parquet`.

    Raises:
        RunError: there is no manifest that can be read.
    """
    place = Place(file=str(folder / MANIFEST))
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"cannot be read: {error}", remedy=_REMEDY, place=place) from None
    listed = manifest.get("parts") if isinstance(manifest, dict) else None
    if not isinstance(listed, dict):
        raise RunError("names no parts of an archive", remedy=_REMEDY, place=place)
    return {str(name): str(written) for name, written in listed.items()}


def listed_parts(folder: Path) -> list[Path]:
    """Return the parts that exist and those that the manifest names, in order."""
    try:
        names = read_digests(folder)
    except RunError:
        names = {}
    return sorted({*archive_parts(folder), *(folder / ARCHIVE / Path(name).name for name in names)})


def changed_parts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the parts that are not as they were written, each with the problem; raises as `read_digests` does."""
    written, existing = read_digests(folder), {_part_name(part): part for part in archive_parts(folder)}
    for name, expected in written.items():
        if name not in existing:
            yield name, f"is missing; {MANIFEST} names it"
        elif (now := sha256_of(existing[name])) != expected:
            yield name, f"was changed since it was written: its sha256 is {now}, {MANIFEST} says {expected}"
    yield from ((name, f"is not in {MANIFEST}") for name in existing if name not in written)


def _part_name(part: Path) -> str:
    return f"{ARCHIVE}/{part.name}"


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
