"""Parquet archives (`.parquet`): one row per episode, with nested lists; the columns are those of `parquet_rows`.

A row group holds few episodes and is read as a unit, so that archives of any size can be streamed. The data are
compressed with zstd, and pages have checksums. The same episodes always give the same bytes with one pyarrow version.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.archive import parquet_rows
from safevla_bench.archive.parquet_guard import open_parquet
from safevla_bench.archive.record_schema import REMEDY_BROKEN, EpisodeSelection, find_place, refuse_field
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import open_input
from safevla_bench.memory import limit_memory
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes
from safevla_recorder.channels import NUMERIC, REAL

T = TypeVar("T")
SUFFIX = ".parquet"
_GROUP_EPISODES, _GROUP_BYTES = 32, 1 << 26
_ID_COLUMN = "episode_id"
_REQUIRED = (_ID_COLUMN, "benchmark", "task_id", "success", "dt", "target_object", "bodies", "records")
_REMEDY_COLUMNS = "Write the same columns as `safevla convert`; put host-specific fields into `extra`, as JSON."


def write_parquet(stream: IO[bytes], batches: Iterable[Batch]) -> None:
    """Write the episodes of batches as a `.parquet` file into an empty stream open for reading and writing. Only one
    row group at a time is in memory. The file is rewritten if an episode has a rare channel that has no column yet.
    """
    rare: frozenset[str] = frozenset()  # names of the rare channels that have a column in the file
    writer = _open_writer(stream, rare)
    try:
        for group in _group_episodes(batches):  # the episodes of one row group, as batches of one
            batch = concatenate_batches(group)
            batch_channels = parquet_rows.rare_channels(batch)
            if not batch_channels <= rare:
                rare |= batch_channels
                writer.close()
                writer = _rewrite_with_columns(stream, rare)
            writer.write_table(parquet_rows.to_table(batch, parquet_rows.table_schema(rare)))
    finally:
        writer.close()


def _open_writer(stream: IO[bytes], rare: frozenset[str]) -> pq.ParquetWriter:
    # Returns a writer of row groups with the columns of all usual channels and of the rare channels named in `rare`.
    schema = parquet_rows.table_schema(rare)
    # pyarrow's path of a column has one `.list.element` for each level of nested lists.
    real_columns = [
        f"{spec.name}{'.list.element' * parquet_rows.LIST_DEPTHS[spec.name]}"
        for spec in NUMERIC
        if spec.name in schema.names and spec.dtype == REAL
    ]
    has_geometry = parquet_rows.GEOMETRY in rare
    return pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        use_dictionary=[parquet_rows.GEOMETRY] if has_geometry else False,  # many episodes have the same text
        use_byte_stream_split=real_columns,
        write_statistics=not has_geometry,
        write_page_checksum=True,
        store_schema=False,
    )


def _rewrite_with_columns(stream: IO[bytes], rare: frozenset[str]) -> pq.ParquetWriter:
    # Reads the finished file in `stream`, and writes it again with columns for all rare channels named in `rare`.
    # A column is null for an episode that lacks the channel. Returns a writer that can append row groups.
    with TemporaryFile() as copy:
        stream.seek(0)
        shutil.copyfileobj(stream, copy)
        stream.seek(0)
        stream.truncate()
        writer = _open_writer(stream, rare)
        copy.seek(0)
        with pq.ParquetFile(copy) as written:
            for group_index in range(written.num_row_groups):
                batches = [parquet_rows.decode_rows(rows) for rows in written.read_row_group(group_index).to_batches()]
                writer.write_table(parquet_rows.to_table(concatenate_batches(batches), parquet_rows.table_schema(rare)))
    return writer


def _group_episodes(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    # Yields for each row group the list of its episodes, as batches of one.
    # A group has at most `_GROUP_EPISODES` episodes and `_GROUP_BYTES` bytes, or one larger episode.
    group: list[Batch] = []
    total_bytes = 0
    for episode in (select_episodes(batch, [index]) for batch in batches for index in range(len(batch))):
        size_bytes = parquet_rows.to_table(episode).nbytes  # without compression
        if group and (len(group) == _GROUP_EPISODES or total_bytes + size_bytes > _GROUP_BYTES):
            yield group
            group, total_bytes = [], 0
        group.append(episode)
        total_bytes += size_bytes
    if group:
        yield group


def count_rows(path: Path) -> list[int]:
    """Return the number of rows of each row group, or [] if the file cannot be read."""
    # A file is unreadable if it cannot be opened, is damaged, or has missing, repeated, unknown or mistyped columns.
    with suppress(RecordError, *_DAMAGED), open_parquet(path) as (file, row_counts):
        _check_columns(file.schema_arrow)
        return row_counts
    return []


def read_parquet(path: Path, selection: EpisodeSelection) -> Iterator[Batch | RecordError]:
    """Yield the episodes of one file in order: one batch per row group, or one batch per row if the group has an
    invalid row. All episodes of a group are yielded if one of them is selected; other groups are not read. The error of
    an invalid row has the row's number, from 1, as `line`. For a damaged group or file, a `DamageError` is yielded.
    Raises `OSError` if the file cannot be opened, and `DamageError` for a Git LFS pointer.
    """
    # `selection` counts episodes; `next_wanted(N)` returns a list of the selected episodes among the next N.
    place = Place(file=str(path))
    open_input(path).close()  # raises `OSError`, or `DamageError` for a Git LFS pointer
    try:
        with open_parquet(path) as (file, row_counts):
            _check_columns(file.schema_arrow)
            first_rows = list(accumulate(row_counts, initial=1))  # number of each group's first row
            # `wanted` has the numbers of the row groups with a selected episode; each call reads one of these groups.
            wanted = [number for number, row_count in enumerate(row_counts) if selection.next_wanted(row_count)]
            calls = [partial(_load_group, path, file, number, row_counts[number]) for number in wanted]
            with closing(_read_ahead(calls)) as groups_read:  # ends the reading thread before the file is closed
                for number, group in zip(wanted, groups_read, strict=True):
                    first, row_count = first_rows[number], row_counts[number]
                    # `group` has the rows of row group `number`, or an error if the group cannot be read.
                    if isinstance(group, RecordError):
                        problem = f"rows {first} to {first + row_count - 1}: {group.problem}"
                        yield DamageError(problem, episodes=row_count, remedy=group.remedy, place=place)
                    else:
                        yield from _decode_group(path, first, group)
    except RecordError as error:
        yield DamageError(error.problem, remedy=error.remedy, place=error.place.fill_from(place))
    except _DAMAGED as error:
        yield DamageError(_describe_damage(error), remedy=REMEDY_BROKEN, place=place)


_DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError)  # errors that pyarrow raises for a damaged file


def _describe_damage(error: Exception) -> str:
    # Returns an error of pyarrow or the system as a message of one line.
    return f"cannot be read: {' '.join(str(error).split())}"


def _read_ahead(calls: Sequence[Callable[[], T]]) -> Generator[T]:
    # Yields the results of the calls, in order; a thread makes the next call while the current result is in use.
    with ThreadPoolExecutor(1) as thread:
        waiting: deque[Future[T]] = deque()  # results that were not yielded yet, at most two
        for call in calls:
            waiting.append(thread.submit(call))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _load_group(path: Path, file: pq.ParquetFile, number: int, row_count: int) -> list[pa.RecordBatch] | RecordError:
    # Returns the rows of row group `number`, in one or more pieces. `path` names the file in errors.
    # Returns an error if the group is damaged, needs too much memory or does not have `row_count` rows.
    try:
        with limit_memory(path):
            # pyarrow's threads would abort the process when they run out of memory.
            table = file.read_row_group(number, use_threads=False)
        if table.num_rows != row_count:
            problem = f"the row group has {table.num_rows} rows, but the footer says {row_count}"
            raise RecordError(problem, remedy=REMEDY_BROKEN)
        batches: list[pa.RecordBatch] = table.to_batches()
    except RecordError as error:
        return error
    except _DAMAGED as error:
        return RecordError(_describe_damage(error), remedy=REMEDY_BROKEN)
    return batches


def _decode_group(path: Path, first: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Batch | RecordError]:
    # Yields the episodes in the rows of `batches`, with one row per episode.
    # Errors name the row number in the file, from 1. `first` is this number for the first row of `batches`.
    for rows in batches:
        try:
            batch = parquet_rows.decode_rows(rows)
        except RecordError:  # a row is invalid, but this error does not say which
            yield from _decode_one_by_one(path, first, rows)
        else:
            yield batch
        first += rows.num_rows


def _decode_one_by_one(path: Path, first: int, rows: pa.RecordBatch) -> Iterator[Batch | RecordError]:
    # Yields each row as a batch of one, or an error with the row's number. The first row has the number `first`.
    for row in range(rows.num_rows):
        try:
            yield parquet_rows.decode_rows(rows.slice(row, 1))
        except RecordError as error:
            place = find_place({name: _read_text(rows, name, row) for name in (_ID_COLUMN, "policy")})
            yield error.with_place(place.fill_from(Place(file=str(path), line=first + row)))


def _read_text(rows: pa.RecordBatch, name: str, row: int) -> object:
    # Returns the text of column `name` in row number `row` (from 0) of `rows`.
    # Returns None if there is no such column, and if the text is null or not UTF-8.
    with suppress(UnicodeDecodeError, KeyError):
        return rows.column(name)[row].as_py()
    return None


def _check_columns(schema: pa.Schema) -> None:
    # Raises `RecordError` for a missing, repeated or unknown column, or for a column of the wrong type.
    for name in _REQUIRED:
        if name not in schema.names:
            refuse_field(f"the column {name!r} is missing", _REMEDY_COLUMNS, name)
    schema_types = {field.name: field.type for field in parquet_rows.SCHEMA}
    for field in schema:
        expected = schema_types.get(field.name, "no such column")  # a text, which differs from every type
        if schema.names.count(field.name) > 1:
            refuse_field("the column is repeated", _REMEDY_COLUMNS, field.name)
        # Some columns had another type in older files, which is also accepted.
        if field.type not in (expected, parquet_rows.FORMER_TYPES.get(field.name)):
            refuse_field(f"the column has the type {field.type}, expected {expected}", _REMEDY_COLUMNS, field.name)
