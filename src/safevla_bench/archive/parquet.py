"""Parquet (`.parquet`): one row an episode, nested lists, zstd; the columns are those of `columns`.

Row groups hold few episodes and are read one at a time, so that an archive of any size streams. Pages carry checksums.
Same episodes and same version of pyarrow, same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.archive import parquet_batch
from safevla_bench.archive.limits import REMEDY_BROKEN, check_size
from safevla_bench.archive.parquet_columns import REALS, SCHEMA, table
from safevla_bench.archive.parquet_guard import RowGroup, check, row_groups
from safevla_bench.archive.parquet_rows import decode
from safevla_bench.archive.selection import Sieve
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.trajectory import Batch, concatenate, select

SUFFIX = ".parquet"
_GROUP_EPISODES, _GROUP_BYTES = 32, 1 << 26
_NAME = "episode_id"
_REQUIRED = (_NAME, "benchmark", "task_id", "success", "dt", "target_object", "bodies", "records")
_REMEDY_COLUMNS = "`safevla convert` shows how the columns should be; host-specific fields go into `extra`, as JSON."


def encode(batch: Batch) -> bytes:
    """All episodes of a batch as the bytes of a `.parquet` file."""
    stream = BytesIO()
    write(stream, [batch])
    return stream.getvalue()


def write(stream: IO[bytes], batches: Iterable[Batch]) -> None:
    """All episodes, which come some at a time, as a `.parquet` file; no more than a row group is held.

    The stream can be read too.
    """
    reals = [f"{name}{'.list.element' * (depth + 1)}" for name, depth in REALS.items()]
    options = {"use_dictionary": False, "use_byte_stream_split": reals, "write_page_checksum": True}
    with pq.ParquetWriter(stream, SCHEMA, compression="zstd", store_schema=False, **options) as writer:
        for group in _groups(batches):
            writer.write_table(table(concatenate(group)))
    check(stream)  # what is written can be read


def _groups(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """The episodes that share a row group: a few, and not many bytes, so that a reader need not hold more at once."""
    group: list[Batch] = []
    total = 0
    for episode in (select(batch, [e]) for batch in batches for e in range(len(batch))):
        size = table(episode).nbytes
        check_size(size, "the episode")
        if group and (len(group) == _GROUP_EPISODES or total + size > _GROUP_BYTES):
            yield group
            group, total = [], 0
        group.append(episode)
        total += size
    if group:
        yield group


def read(path: Path, sieve: Sieve) -> Iterator[Batch | RecordError]:
    """The episodes of one file in order, a batch a row group; of a group that is not valid as a whole, row by row.
    A group without a wanted episode is not read.

    An invalid row is its error, whose `line` counts rows from 1. A damaged group costs its own episodes, each of which
    is an error by name where the names can be read.
    """
    place = Place(file=str(path))
    with path.open("rb") as stream:
        try:
            groups_there, end = row_groups(stream)
            # pyarrow opens the file by itself: threads of its own that call Python abort the process at its end.
            with pa.OSFile(str(path)) as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
                _check_columns(file.schema_arrow)
                if file.num_row_groups != len(groups_there):
                    raise RecordError("the footer contradicts itself", remedy=REMEDY_BROKEN)
                first = 1
                for number, group in enumerate(groups_there):
                    if sieve.take(group.rows):
                        yield from _group(path, stream, file, group, number, end, first)
                    first += group.rows
        except RecordError as error:
            yield DamageError(error.problem, remedy=error.remedy, place=error.place.within(place))
        except _DAMAGED as error:
            yield DamageError(f"cannot be read: {_line(error)}", remedy=REMEDY_BROKEN, place=place)


_DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What pyarrow raises for a damaged file, OSError among it."""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _group(
    path: Path, stream: IO[bytes], file: pq.ParquetFile, group: RowGroup, number: int, end: int, first: int
) -> Iterator[Batch | RecordError]:
    """The episodes of one row group, whose first row has this number."""
    try:
        group.check(stream, end)
        batches = file.read_row_group(number).to_batches()
    except (RecordError, *_DAMAGED) as error:
        known = error if isinstance(error, RecordError) else RecordError(_line(error), remedy=REMEDY_BROKEN)
        known.problem = f"rows {first} to {first + group.rows - 1} cannot be read: {known.problem}"
        yield from _lost(path, file, group, number, known)
        return
    for rows in batches:
        try:
            yield parquet_batch.decode(rows)
        except parquet_batch.Odd:
            yield from _one_by_one(path, first, rows)
        first += rows.num_rows


def _lost(path: Path, file: pq.ParquetFile, group: RowGroup, number: int, why: RecordError) -> Iterator[DamageError]:
    """What a damaged row group costs: its episodes by name, where their names can be read."""
    try:
        names = file.read_row_group(number, columns=[_NAME]).column(_NAME).to_pylist()
    except _DAMAGED:
        names = []
    if len(names) != group.rows or None in names:
        yield DamageError(why.problem, episodes=group.rows, remedy=why.remedy, place=Place(file=str(path)))
        return
    for name in names:
        yield DamageError(why.problem, remedy=why.remedy, place=Place(file=str(path), episode=name))


def _one_by_one(path: Path, first: int, rows: pa.RecordBatch) -> Iterator[Batch | RecordError]:
    for k in range(rows.num_rows):
        try:
            yield decode({name: rows.column(name)[k] for name in rows.schema.names})
        except RecordError as error:
            yield error.at(Place(file=str(path), line=first + k))


def _check_columns(schema: pa.Schema) -> None:
    for name in _REQUIRED:
        if name not in schema.names:
            _refuse(f"the column {name!r} is missing", _REMEDY_COLUMNS, name)
    for field in schema:
        if schema.names.count(field.name) > 1:
            _refuse(f"the column {field.name!r} is repeated", "Keep one of the two.", field.name)
        if field.name not in SCHEMA.names:
            _refuse(f"{field.name!r} is no column of a record", _REMEDY_COLUMNS, field.name)
        if field.type != SCHEMA.field(field.name).type:
            expected = SCHEMA.field(field.name).type
            _refuse(f"the column has the type {field.type}, expected {expected}", _REMEDY_COLUMNS, field.name)


def _refuse(problem: str, remedy: str, field: str) -> NoReturn:
    raise RecordError(problem, remedy=remedy, place=Place(field=field))
