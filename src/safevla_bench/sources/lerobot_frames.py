"""The frames of LeRobot datasets of version 3, and 2, episode by episode.

meta/info.json                   `codebase_version`; a folder with this file is a dataset
meta/tasks.parquet | .jsonl      task_index -> instruction
data/chunk-NNN/*.parquet         a row a frame: episode_index, frame_index, task_index, and a column a feature;
                                 the frames of an episode follow each other, perhaps over several files
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from safevla_bench.archive.parquet_guard import read_batches, read_table
from safevla_bench.archive.record_schema import MAX_RECORDS
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import read_input

Floats = NDArray[np.float64]
INFO = Path("meta", "info.json")
MAX_NUMBERS = 1 << 25
"""Numbers of one episode, 256 MiB: an hour of 90 numbers at 100 Hz."""
_KEYS = ("episode_index", "frame_index", "task_index")
_REMEDY = "Download the whole dataset again, its data and not only meta; version 3 is read."


@contextmanager
def translated_errors(path: Path, remedy: str) -> Iterator[None]:
    """Raise `RecordError` naming the file for whatever its readers raise for damage."""
    place = Place(file=str(path))
    try:
        yield
    except RecordError as error:
        raise error.with_place(place) from None
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, pa.ArrowException) as error:
        problem = f"cannot be read: {' '.join(str(error).split())}"
        raise RecordError(problem, remedy=remedy, place=place) from None


def read_episodes(folder: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the frames of each episode in their order: a table of the keys and `columns`.

    Raises `DamageError` where a file cannot be read, also if an episode that began before may go on in it, and where
    there are no files or the frames of an episode are scattered or too many.
    """
    files = sorted(folder.glob("data/chunk-*/*.parquet"))
    if not files:
        raise RecordError("there are no episodes", remedy=_REMEDY, place=Place(file=str(folder)))
    episode: list[pa.Table] = []
    last, rows, size = -1, 0, 0
    for path in files:
        try:
            with translated_errors(path, _REMEDY):
                for number, part in _split_file(path, [*dict.fromkeys([*_KEYS, *columns])]):
                    if number < last:
                        raise RecordError("the frames of its episodes are not one after the other", remedy=_REMEDY)
                    if number > last and episode:
                        yield _join_frames(episode)
                        episode, rows, size = [], 0, 0
                    last, rows, size = number, rows + part.num_rows, size + part.nbytes
                    if rows > MAX_RECORDS or size > 8 * MAX_NUMBERS:
                        raise RecordError("the frames are more than an episode may hold", remedy=_REMEDY)
                    episode.append(part)
        except RecordError as error:
            raise DamageError(error.problem, remedy=error.remedy, place=error.place) from None
    if episode:
        yield _join_frames(episode)


def _split_file(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the index of an episode and some of its frames, for each stretch of a file's rows."""
    for batch in read_batches(path, columns):
        for name in _KEYS:
            if batch[name].null_count or not pa.types.is_integer(batch[name].type):
                problem = f"the column {name!r} holds {batch[name].type}, or nothing in places"
                raise RecordError(problem, remedy=_REMEDY)
        table, index = pa.Table.from_batches([batch]), batch["episode_index"].to_numpy()
        ends = [0, *(np.flatnonzero(np.diff(index)) + 1).tolist(), len(index)]
        yield from ((int(index[first]), table.slice(first, end - first)) for first, end in pairwise(ends) if end)


def _join_frames(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).sort_by("frame_index")


def episode_name(frames: pa.Table) -> str:
    """Return the name of the episode that frames are of, by its index."""
    return f"episode_{frames['episode_index'][0].as_py():06d}"


def feature_matrix(frames: pa.Table, feature: str, size: int = 1) -> Floats:
    """Return a feature's numbers, [n, k], NaN where a frame has none; k is `size` where no frame has any.

    Raises `ValueError` if frames have different counts of numbers, these are not numbers, or n · k is too much.
    """
    column = frames[feature].combine_chunks()
    kind, is_known = column.type, column.is_valid()
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64).reshape(len(column), 1)
    counts = pc.unique(pc.list_value_length(column.filter(is_known))).to_pylist()
    if len(counts) > 1:
        raise ValueError(f"{feature!r} has {min(counts)} numbers in some frames and {max(counts)} in others")
    width = counts[0] if counts else size
    if len(column) * width > MAX_NUMBERS:
        raise ValueError(f"{feature!r} has more than {MAX_NUMBERS} numbers")
    rows = np.full((len(column), width), np.nan)
    flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=np.float64)
    rows[is_known.to_numpy(zero_copy_only=False)] = flat.reshape(-1, width)
    return rows


def read_instructions(folder: Path) -> dict[int, str]:
    """Return index -> text of each task of a dataset.

    Raises `RecordError`, which names the row, for a file that is missing or of another form.
    """
    table = folder / "meta" / "tasks.parquet"
    path = table if table.is_file() else folder / "meta" / "tasks.jsonl"
    instructions = {}
    with translated_errors(path, _REMEDY):
        content = read_input(path)
        if path == table:
            rows = read_table(content).to_pylist()
        else:
            rows = [json.loads(line) for line in content.decode("utf-8").splitlines() if line.strip()]
        for number, row in enumerate(rows, 1):
            texts = [value for value in row.values() if isinstance(value, str)] if isinstance(row, dict) else []
            if not texts or not isinstance(row.get("task_index"), int):
                raise RecordError(f"row {number} lacks a whole number `task_index`, or a text", remedy=_REMEDY)
            instructions[row["task_index"]] = texts[0]
    return instructions
