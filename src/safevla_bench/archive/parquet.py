"""Parquet archives (`.parquet`): one row an episode, nested lists, zstd; columns as in `parquet_rows`.

Row groups hold few episodes and are read one at a time, so that an archive of any size streams. Pages carry checksums.
Same episodes and same version of pyarrow, same bytes.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, count
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.archive.parquet_guard import RowGroup, check_row_group_sizes, read_row_groups
from safevla_bench.archive.parquet_rows import (
    LIST_DEPTHS,
    SCHEMA,
    decode_rows,
    rare_channels,
    table_schema,
    to_table,
)
from safevla_bench.archive.record_schema import (
    MAX_BAD_LINES,
    REMEDY_BROKEN,
    REMEDY_LARGE,
    EpisodeSelection,
    check_size,
    refuse_field,
)
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import open_input
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes
from safevla_recorder.channels import NUMERIC, REAL

SUFFIX = ".parquet"
_GROUP_EPISODES, _GROUP_BYTES = 32, 1 << 26
_MAX_GROUP_EPISODES = 1 << 16
_NAME = "episode_id"
_REQUIRED = (_NAME, "benchmark", "task_id", "success", "dt", "target_object", "bodies", "records")
_REMEDY_COLUMNS = "`safevla convert` shows how the columns should be; host-specific fields go into `extra`, as JSON."


def write_parquet(stream: IO[bytes], batches: Iterable[Batch]) -> None:
    """Write the episodes of batches as a `.parquet` file into a stream open for reading and writing at its beginning.

    Memory holds no more than a row group. The file is written again where a later episode needs a column of a rare
    channel. Raises `RecordError` if an episode is too large to be read again.
    """
    rare: frozenset[str] = frozenset()
    writer = _open_writer(stream, rare)
    try:
        for group in _group_episodes(batches):
            batch = concatenate_batches(group)
            if not rare_channels(batch) <= rare:
                rare |= rare_channels(batch)
                writer.close()
                writer = _rewrite(stream, rare)
            writer.write_table(to_table(batch, table_schema(rare)))
    finally:
        writer.close()
    check_row_group_sizes(stream)  # what is written can be read


def _open_writer(stream: IO[bytes], rare: frozenset[str]) -> pq.ParquetWriter:
    schema = table_schema(rare)
    numbers = [
        f"{spec.name}{'.list.element' * LIST_DEPTHS[spec.name]}"
        for spec in NUMERIC
        if spec.name in schema.names and spec.dtype == REAL
    ]
    options = {"use_dictionary": False, "use_byte_stream_split": numbers, "write_page_checksum": True}
    return pq.ParquetWriter(stream, schema, compression="zstd", store_schema=False, **options)


def _rewrite(stream: IO[bytes], rare: frozenset[str]) -> pq.ParquetWriter:
    with TemporaryFile() as copy:
        stream.seek(0)
        shutil.copyfileobj(stream, copy)
        stream.seek(0)
        stream.truncate()
        writer = _open_writer(stream, rare)
        copy.seek(0)
        with pq.ParquetFile(copy) as written:
            for number in range(written.num_row_groups):
                batches = [decode_rows(rows) for rows in written.read_row_group(number).to_batches()]
                writer.write_table(to_table(concatenate_batches(batches), table_schema(rare)))
    return writer


def _group_episodes(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    group: list[Batch] = []
    total = 0
    for episode in (select_episodes(batch, [e]) for batch in batches for e in range(len(batch))):
        size = to_table(episode).nbytes
        check_size(size, "the episode")
        if group and (len(group) == _GROUP_EPISODES or total + size > _GROUP_BYTES):
            yield group
            group, total = [], 0
        group.append(episode)
        total += size
    if group:
        yield group


def read_parquet(path: Path, selection: EpisodeSelection) -> Iterator[Batch | RecordError]:
    """Yield the episodes of one file in order, a batch for each row group; row by row where a group is not valid.

    Groups without a selected episode are not read; of others all episodes are yielded. An invalid row is yielded as its
    error, whose `line` counts rows from 1. A damaged group is a `DamageError` for each of its episodes, or a single
    error where their names cannot be read. A damaged file is a single `DamageError`; only a file that cannot be opened
    raises, `OSError`.
    """
    place = Place(file=str(path))
    with open_input(path) as stream:
        try:
            groups, end = read_row_groups(stream)
            # pyarrow opens the file by itself: threads of its own that call Python abort the process at its end.
            with pa.OSFile(str(path)) as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
                _check_columns(file.schema_arrow)
                if file.num_row_groups != len(groups):
                    raise RecordError("the footer contradicts itself", remedy=REMEDY_BROKEN)
                reader = _GroupReader(path, stream, file, end)
                firsts = accumulate((group.rows for group in groups), initial=1)
                placed = map(_PlacedGroup, groups, count(), firsts)
                yield from reader.read_ahead([each for each in placed if selection.next_wanted(each.group.rows)])
        except RecordError as error:
            yield DamageError(error.problem, remedy=error.remedy, place=error.place.fill_from(place))
        except _DAMAGED as error:
            yield DamageError(f"cannot be read: {_one_line_message(error)}", remedy=REMEDY_BROKEN, place=place)


_DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError)


def _one_line_message(error: Exception) -> str:
    return " ".join(str(error).split())


class _PlacedGroup(NamedTuple):
    """A row group of the file, its index, and the number of its first row in the file, from 1."""

    group: RowGroup
    number: int
    first: int


@dataclass(frozen=True)
class _GroupReader:
    """An open file: its path, the stream whose pages are checked, pyarrow's reader, the offset where its data end."""

    path: Path
    stream: IO[bytes]
    file: pq.ParquetFile
    end: int

    def read_ahead(self, groups: Sequence[_PlacedGroup]) -> Iterator[Batch | RecordError]:
        """Yield the episodes of the groups, and errors in place of bad ones, while the next group is read."""
        with ThreadPoolExecutor(1) as thread:
            waiting: deque[tuple[int, Future[Sequence[pa.RecordBatch | DamageError]]]] = deque()
            for placed in groups:
                waiting.append((placed.first, thread.submit(self.read_group, placed)))
                if len(waiting) > 1:
                    yield from self._decode(*waiting.popleft())
            while waiting:
                yield from self._decode(*waiting.popleft())

    def _decode(
        self, first: int, loaded: Future[Sequence[pa.RecordBatch | DamageError]]
    ) -> Iterator[Batch | RecordError]:
        for rows in loaded.result():
            if isinstance(rows, DamageError):
                yield rows
                continue
            try:
                yield decode_rows(rows)
            except RecordError:
                yield from _decode_each(self.path, first, rows)
            first += rows.num_rows

    def read_group(self, placed: _PlacedGroup) -> Sequence[pa.RecordBatch | DamageError]:
        """Return the rows of a group, or the errors of its episodes if it is damaged."""
        group, number, first = placed
        try:
            group.check_pages(self.stream, self.end)
            if group.rows > _MAX_GROUP_EPISODES:
                raise RecordError(f"a row group has more than {_MAX_GROUP_EPISODES} episodes", remedy=REMEDY_LARGE)
            batches: list[pa.RecordBatch] = self.file.read_row_group(number).to_batches()
            return batches
        except RecordError as error:
            reason = error
        except _DAMAGED as error:
            reason = RecordError(_one_line_message(error), remedy=REMEDY_BROKEN)
        reason.problem = f"rows {first} to {first + group.rows - 1} cannot be read: {reason.problem}"
        return self._lost_episodes(placed, reason)

    def _lost_episodes(self, placed: _PlacedGroup, why: RecordError) -> list[DamageError]:
        rows, place, names = placed.group.rows, Place(file=str(self.path)), []
        if rows <= MAX_BAD_LINES:
            with suppress(*_DAMAGED):
                names = self.file.read_row_group(placed.number, columns=[_NAME]).column(_NAME).to_pylist()
        if len(names) != rows or None in names:  # the column of names is damaged too
            return [DamageError(why.problem, episodes=rows, remedy=why.remedy, place=place)]
        return [DamageError(why.problem, remedy=why.remedy, place=replace(place, episode=name)) for name in names]


def _decode_each(path: Path, first: int, rows: pa.RecordBatch) -> Iterator[Batch | RecordError]:
    for k in range(rows.num_rows):
        try:
            yield decode_rows(rows.slice(k, 1))
        except RecordError as error:
            yield error.with_place(Place(file=str(path), line=first + k, episode=_episode_id(rows, k)))


def _episode_id(rows: pa.RecordBatch, row: int) -> str | None:
    try:
        name: str | None = rows.column(_NAME)[row].as_py()
    except UnicodeDecodeError:
        return None
    return name


def _check_columns(schema: pa.Schema) -> None:
    for name in _REQUIRED:
        if name not in schema.names:
            refuse_field(f"the column {name!r} is missing", _REMEDY_COLUMNS, name)
    for field in schema:
        if schema.names.count(field.name) > 1:
            refuse_field(f"the column {field.name!r} is repeated", "Keep one of the two.", field.name)
        if field.name not in SCHEMA.names:
            refuse_field(f"{field.name!r} is no column of a record", _REMEDY_COLUMNS, field.name)
        if field.type != SCHEMA.field(field.name).type:
            expected = SCHEMA.field(field.name).type
            refuse_field(f"the column has the type {field.type}, expected {expected}", _REMEDY_COLUMNS, field.name)
