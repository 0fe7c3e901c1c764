"""Readers of Parquet files from untrusted sources.

Callers must use `limit_memory`, because a few bytes of a page may encode any number of values. Column statistics are
never read, because reading contradictory statistics (`metadata.row_group(0).column(0)`) aborts the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.archive.record_schema import REMEDY_BROKEN, REMEDY_LARGE
from safevla_bench.errors import RecordError
from safevla_bench.files import open_input

MAX_TABLE_BYTES = 1 << 27  # maximum size of a table that is read at once, such as an episodes.parquet of 400,000 rows
BATCH_ROWS = 1 << 16


@contextmanager
def open_parquet(path: Path) -> Iterator[tuple[pq.ParquetFile, list[int]]]:
    """Yield the opened file and the number of rows of each row group. Raises the errors of pyarrow."""
    open_input(path).close()  # raises an error for a missing file, a pipe, a folder or a Git LFS pointer
    # pyarrow must open the file itself: pyarrow threads that read a Python file object abort the process at exit.
    with pa.OSFile(os.fsencode(path)) as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
        yield file, [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


def read_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, at most `BATCH_ROWS` at a time. Raises `RecordError` if a column is missing or a text
    is not UTF-8, and the errors of pyarrow.
    """
    with _translated_text_errors(), open_parquet(path) as (file, row_counts):
        for name in columns or ():  # names of the columns to read; None = all columns
            if name not in file.schema_arrow.names:
                remedy = f"Write the file again with the columns {', '.join(columns or ())}."
                raise RecordError(f"there is no column {name!r}", remedy=remedy)
        for number in range(len(row_counts)):
            yield from file.iter_batches(BATCH_ROWS, row_groups=[number], columns=columns, use_threads=False)


def read_table(content: bytes, most_bytes: int = MAX_TABLE_BYTES) -> pa.Table:
    """Return the table in a Parquet file's bytes. Raises `RecordError` if the table needs more than `most_bytes`, and
    pyarrow's errors. No pyarrow threads are used, because they abort the process at exit if they hold Python bytes.
    """
    options = {"pre_buffer": False, "page_checksum_verification": True}
    # With `pre_buffer`, pyarrow would read in threads even if `use_threads` is false.
    with _translated_text_errors(), pq.ParquetFile(pa.BufferReader(content), **options) as file:
        table = file.read(use_threads=False)
    if table.nbytes > most_bytes:
        raise RecordError(f"the table takes more than {most_bytes >> 20} MiB", remedy=REMEDY_LARGE)
    return table


@contextmanager
def _translated_text_errors() -> Iterator[None]:
    # If a text in the `with` block is not UTF-8, raises a `RecordError` instead of the `UnicodeDecodeError`.
    try:
        yield
    except UnicodeDecodeError as error:
        raise RecordError(f"a name or text is not UTF-8: {error}", remedy=REMEDY_BROKEN) from None
