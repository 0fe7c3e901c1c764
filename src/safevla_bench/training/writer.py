"""A LeRobot dataset of version 3.0, written episode by episode with pyarrow alone; memory holds one episode.

    meta/info.json                              features, counts, frames a second
    meta/tasks.parquet                          task_index, with the instruction as pandas' index
    meta/episodes/chunk-000/file-000.parquet    a row an episode: where its frames are, its statistics, its labels
    meta/stats.json                             statistics of all frames
    data/chunk-000/file-000.parquet             a row a frame, a row group an episode

Features are the columns of its frames: a number alone is a scalar, numbers are a list of fixed size, a picture is the
bytes of its file. Source: huggingface/lerobot at 7427f31, `src/lerobot/datasets/` (dataset_writer, dataset_metadata,
io_utils, feature_utils, compute_stats).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from safevla_bench.errors import Place, RunError
from safevla_bench.files import make_folder, translated_errors

_VERSION = "v3.0"
_FILE_MB, _FILES_A_CHUNK = 100, 1000
_ROWS_A_GROUP = 100
"""Rows of meta/episodes that are written at once: each has some two hundred columns."""
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_EPISODES = "meta/episodes/chunk-000/file-000.parquet"
_IMAGE = "image"
_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_PICTURE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
Statistics = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of the frames; `shape` is that of one frame's value, (1,) a number alone."""

    dtype: str
    shape: tuple[int, ...] = (1,)
    names: tuple[str, ...] | None = None
    is_summarized: bool = True
    """False where values may be unknown, which are NaN and have no statistics."""

    def to_document(self) -> dict[str, object]:
        """Return the feature as info.json has it."""
        return {"dtype": self.dtype, "shape": list(self.shape), "names": list(self.names) if self.names else None}

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of its column: a number or truth, a list of fixed size of these, or the struct of a picture."""
        if self.dtype == _IMAGE:
            return _PICTURE_TYPE
        number = pa.bool_() if self.dtype == "bool" else pa.from_numpy_dtype(self.dtype)
        return number if self.shape == (1,) else pa.list_(number, self.shape[0])


_COUNTED: Mapping[str, Feature] = {
    "timestamp": Feature("float32"),
    "frame_index": Feature("int64"),
    "episode_index": Feature("int64"),
    "index": Feature("int64"),
    "task_index": Feature("int64"),
}
"""The features that every dataset of LeRobot has, which are counted here."""


def image_feature(size: tuple[int, int]) -> Feature:
    """Return the feature of a camera of some height and width in pixels."""
    return Feature(_IMAGE, (*size, 3), ("height", "width", "channels"))


def build_column(feature: Feature, values: NDArray[Any] | Sequence[bytes]) -> pa.Array:
    """Return the column of an episode: numbers [n] or [n, width], or the files of n pictures as bytes without path.

    Numbers are converted to the feature's dtype, such as float64 to float32.
    """
    if feature.dtype == _IMAGE:
        return pa.array([{"bytes": picture, "path": None} for picture in values], _PICTURE_TYPE)
    numbers = np.asarray(values, dtype=feature.dtype)
    if feature.shape == (1,):
        return pa.array(numbers.reshape(-1), feature.arrow_type)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), feature.shape[0]).cast(feature.arrow_type)


def summarize_numbers(values: NDArray[Any]) -> Statistics:
    """Return the statistics of an episode's values, [n] or [n, width]; arrays of [width]."""
    numbers = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    return _summarize(numbers, len(values), (numbers.shape[1],))


def summarize_pixels(pictures: NDArray[np.uint8]) -> Statistics:
    """Return the statistics of an episode's pictures, [n, H, W, 3], for each colour between 0 and 1; [3, 1, 1]."""
    return _summarize(pictures.reshape(-1, 3) / 255.0, len(pictures), (3, 1, 1))


def _summarize(rows: NDArray[np.float64], count: int, shape: tuple[int, ...]) -> Statistics:
    values: Statistics = {
        "min": rows.min(axis=0),
        "max": rows.max(axis=0),
        "mean": rows.mean(axis=0),
        "std": rows.std(axis=0),
        **dict(zip(_QUANTILES, np.quantile(rows, list(_QUANTILES.values()), axis=0), strict=True)),
    }
    return {**{name: value.reshape(shape) for name, value in values.items()}, "count": np.array([count])}


def join_statistics(former: Statistics | None, latter: Statistics) -> Statistics:
    """Return the statistics of both as LeRobot joins them; `latter` itself if `former` is None.

    Joined statistics are exact but for quantiles: the lesser of the two up to the median, the greater above it.
    """
    if former is None:
        return latter
    counts = former["count"], latter["count"]
    total = counts[0] + counts[1]
    weights = [count[0] / total[0] for count in counts]
    mean = weights[0] * former["mean"] + weights[1] * latter["mean"]
    spread = sum(
        weight * (part["std"] ** 2 + (part["mean"] - mean) ** 2)
        for weight, part in zip(weights, (former, latter), strict=True)
    )
    joined: Statistics = {
        "min": np.minimum(former["min"], latter["min"]),
        "max": np.maximum(former["max"], latter["max"]),
        "mean": mean,
        "std": np.sqrt(spread),
    }
    for name, share in _QUANTILES.items():
        joined[name] = (np.minimum if share <= 0.5 else np.maximum)(former[name], latter[name])
    return {**joined, "count": total}


@contextmanager
def new_dataset(
    folder: Path, features: Mapping[str, Feature], *, fps: int, robot: str | None
) -> Iterator[DatasetWriter]:
    """Yield the writer of a dataset, whose folder appears when it is whole, and not at all if something is raised.

    `fps` are frames a second; `robot` is LeRobot's `robot_type`, None = unknown. Raises `RunError` if the folder is in
    use, and `FileError` if it cannot be written.
    """
    require_free(folder)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    with translated_errors(folder):
        try:
            (beside / _EPISODES).parent.mkdir(parents=True, exist_ok=True)
            writer = DatasetWriter(beside, features, fps, robot)
            yield writer
            writer.finish()
            if folder.is_dir():
                folder.rmdir()
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def require_free(folder: Path) -> None:
    """Raise `RunError` unless nothing is at `folder`, or an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError("something is there already", remedy="Name a new folder.", place=Place(file=str(folder)))


class DatasetWriter:
    """Writes episodes of the given features; `new_dataset` makes it and finishes it.

    `schema` and `row_schema` are the columns of frames and, after an episode, of meta/episodes.
    """

    def __init__(self, folder: Path, features: Mapping[str, Feature], fps: int, robot: str | None) -> None:
        self._folder, self._fps, self._robot = folder, fps, robot
        self._features = {**features, **_COUNTED}
        self.schema = pa.schema([(name, feature.arrow_type) for name, feature in self._features.items()])
        self._tasks: dict[str, int] = {}
        self._stats: dict[str, Statistics] = {}
        self.episodes = self.frames = self._file = 0
        self._frames_writer: pq.ParquetWriter | None = None
        self._rows_writer: pq.ParquetWriter | None = None
        self._rows: list[pa.Table] = []
        self.row_schema = pa.schema([])

    def add_episode(
        self,
        task: str,
        columns: Mapping[str, NDArray[Any] | Sequence[bytes]],
        picture_stats: Mapping[str, Statistics],
        labels: Mapping[str, pa.Scalar],
    ) -> None:
        """Write an episode's frames, and keep its row of meta/episodes, which is written with others or by `finish`.

        Args:
            task: its instruction.
            columns: the values of every feature, row after row, [n, …] each; of a camera the files of its pictures.
                Columns of no feature are left out; LeRobot's counters are added.
            picture_stats: the statistics of each camera's pixels.
            labels: further columns of its row, of the same types in every episode.
        """
        length = len(next(iter(columns.values())))
        chunk, file = divmod(self._file, _FILES_A_CHUNK)
        counted = self._count_frames(length, self._tasks.setdefault(task, len(self._tasks)))
        values = {**columns, **counted}
        stats = {
            name: picture_stats[name] if feature.dtype == _IMAGE else summarize_numbers(np.asarray(values[name]))
            for name, feature in self._features.items()
            if feature.is_summarized
        }
        table = pa.table(
            [build_column(feature, values[name]) for name, feature in self._features.items()], schema=self.schema
        )
        path = self._folder / _DATA.format(chunk_index=chunk, file_index=file)
        if self._frames_writer is None:
            make_folder(path.parent)
            self._frames_writer = pq.ParquetWriter(path, self.schema, compression="snappy")
        self._frames_writer.write_table(table, row_group_size=length)
        row = {
            "episode_index": pa.scalar(self.episodes),
            "tasks": pa.scalar([task]),
            "length": pa.scalar(length),
            "data/chunk_index": pa.scalar(chunk),
            "data/file_index": pa.scalar(file),
            "dataset_from_index": pa.scalar(self.frames),
            "dataset_to_index": pa.scalar(self.frames + length),
            "meta/episodes/chunk_index": pa.scalar(0),
            "meta/episodes/file_index": pa.scalar(0),
            **labels,
        }
        for name, of_feature in stats.items():
            row |= {f"stats/{name}/{key}": pa.scalar(value.tolist()) for key, value in of_feature.items()}
        self._rows.append(pa.table({name: pa.array([value.as_py()], value.type) for name, value in row.items()}))
        self.row_schema = self._rows[-1].schema
        if len(self._rows) == _ROWS_A_GROUP:
            self._flush_rows()
        for name, of_feature in stats.items():
            self._stats[name] = join_statistics(self._stats.get(name), of_feature)
        self.episodes += 1
        self.frames += length
        if path.stat().st_size >= _FILE_MB * 2**20:
            self._frames_writer.close()
            self._frames_writer, self._file = None, self._file + 1

    def _count_frames(self, length: int, task_index: int) -> dict[str, NDArray[Any]]:
        step = np.arange(length)
        return {
            "timestamp": step / self._fps,
            "frame_index": step,
            "episode_index": np.full(length, self.episodes),
            "index": self.frames + step,
            "task_index": np.full(length, task_index),
        }

    def _flush_rows(self) -> None:
        if self._rows:
            table = pa.concat_tables(self._rows)
            if self._rows_writer is None:
                self._rows_writer = pq.ParquetWriter(self._folder / _EPISODES, table.schema, compression="snappy")
            self._rows_writer.write_table(table)
            self._rows.clear()

    def write_file(self, name: str, content: bytes) -> None:
        """Write a further file, such as README.md, under the dataset's folder; a file of that name is replaced."""
        make_folder((self._folder / name).parent)
        (self._folder / name).write_bytes(content)

    def finish(self) -> None:
        """Write the rows kept, close the files, and write meta/tasks.parquet, meta/stats.json and meta/info.json."""
        self._flush_rows()
        for writer in (self._frames_writer, self._rows_writer):
            if writer is not None:
                writer.close()
        pq.write_table(_task_table(self._tasks), self._folder / "meta" / "tasks.parquet")
        stats = {name: {key: value.tolist() for key, value in own.items()} for name, own in self._stats.items()}
        self.write_file("meta/stats.json", _encode_json(stats))
        self.write_file("meta/info.json", _encode_json(self._describe()))

    def _describe(self) -> dict[str, object]:
        return {
            "codebase_version": _VERSION,
            "robot_type": self._robot,
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_A_CHUNK,
            "data_files_size_in_mb": _FILE_MB,
            "video_files_size_in_mb": _FILE_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": _DATA,
            "video_path": None,
            "features": {name: feature.to_document() for name, feature in self._features.items()},
        }


def _task_table(tasks: Mapping[str, int]) -> pa.Table:
    table = pa.table({"task_index": pa.array(tasks.values(), pa.int64()), "task": pa.array(tasks, pa.string())})
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_kind, "metadata": None}
        for name, kind, numpy_kind in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def _encode_json(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, indent=4, ensure_ascii=False, allow_nan=False) + "\n").encode()
