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

from safevla_bench.archive import groups
from safevla_bench.archive.columns import REALS, SCHEMA, table
from safevla_bench.archive.limits import REMEDY_BROKEN, check_size
from safevla_bench.archive.rows import decode
from safevla_bench.archive.sieve import Sieve
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory import Batch, concatenate, select

SUFFIX = ".parquet"
_GROUP_EPISODES, _GROUP_BYTES = 32, 1 << 26
_REQUIRED = ("episode_id", "benchmark", "task_id", "success", "dt", "target_object", "bodies", "records")
_REMEDY_COLUMNS = "`safevla convert` shows how the columns should be; host-specific fields go into `extra`, as JSON."


def encode(batch: Batch) -> bytes:
    """All episodes of a batch as the bytes of a `.parquet` file."""
    stream = BytesIO()
    write(stream, [batch])
    return stream.getvalue()


def write(stream: IO[bytes], batches: Iterable[Batch]) -> None:
    """All episodes, which come some at a time, as a `.parquet` file; no more than a row group is held."""
    reals = [f"{name}{'.list.element' * (depth + 1)}" for name, depth in REALS.items()]
    options = {"use_dictionary": False, "use_byte_stream_split": reals, "write_page_checksum": True}
    with pq.ParquetWriter(stream, SCHEMA, compression="zstd", store_schema=False, **options) as writer:
        for group in _groups(batches):
            writer.write_table(table(concatenate(group)))


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

    An invalid row is its error, whose `line` counts rows from 1.
    """
    with path.open("rb") as stream:
        try:
            for first, rows in _groups_of(stream, sieve):
                try:
                    yield groups.decode(rows)
                except groups.Odd:
                    yield from _one_by_one(path, first, rows)
        except RecordError as error:
            yield error.at(Place(file=str(path)))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # OSError: pyarrow's word for a damaged file
            problem = " ".join(str(error).split())
            yield RecordError(f"cannot be read: {problem}", remedy=REMEDY_BROKEN, place=Place(file=str(path)))


def _one_by_one(path: Path, first: int, rows: pa.RecordBatch) -> Iterator[Batch | RecordError]:
    for k in range(rows.num_rows):
        try:
            yield decode({name: rows.column(name)[k] for name in rows.schema.names})
        except RecordError as error:
            yield error.at(Place(file=str(path), line=first + k))


def _groups_of(stream: IO[bytes], sieve: Sieve) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The row groups of a file, each with its first row's number.

    What the file says of single columns is not asked: pyarrow aborts where that is damaged.
    """
    first = 1
    with pq.ParquetFile(stream, page_checksum_verification=True) as file:
        _check_columns(file.schema_arrow)
        for group in range(file.num_row_groups):
            stated = file.metadata.row_group(group)
            if not sieve.take(stated.num_rows):
                first += stated.num_rows
                continue
            check_size(stated.total_byte_size, "a row group")
            for rows in file.read_row_group(group).to_batches():
                yield first, rows
                first += rows.num_rows


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
