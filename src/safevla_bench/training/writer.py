"""A LeRobot dataset of version 3.0, written episode by episode with only pyarrow; memory holds one episode.

    meta/info.json                              features, counts, frames per second
    meta/tasks.parquet                          task_index, with the instruction as pandas' index
    meta/episodes/chunk-000/file-000.parquet    one row per episode: location of its frames, statistics, labels
    meta/stats.json                             statistics of all frames
    data/chunk-000/file-000.parquet             one row per frame, one row group per episode
    videos/CAMERA/chunk-000/file-000.mp4        one film per episode, instead of pictures

Source: huggingface/lerobot at 7427f31, `src/lerobot/datasets/` (dataset_writer, dataset_metadata, io_utils,
feature_utils, compute_stats).
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from safevla_bench.errors import Place, RunError
from safevla_bench.files import sha256_of, translated_errors
from safevla_bench.pictures.drawing import encode_film
from safevla_bench.text import escape_json

_DATA, _EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
_VIDEO, _CHUNK_SIZE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4", 1000
_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_PICTURE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
Statistics = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class FrameFeature:
    """The type of one column of frames: numbers of a dtype, or pictures (`image`, or `video`, stored in separate
    files). `shape` is the shape of one frame's value; (1,) is a number.
    """

    dtype: str
    shape: tuple[int, ...] = (1,)
    names: tuple[str, ...] | None = None
    is_summarized: bool = True  # False if values may be NaN (unknown); the column then has no statistics

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the column: a number or Boolean, a list of fixed size, or the struct of a picture."""
        # A film (`video`) has no column in the table of frames, so it needs no type.
        if self.dtype == "image":
            return _PICTURE_TYPE
        number = pa.bool_() if self.dtype == "bool" else pa.from_numpy_dtype(self.dtype)
        return number if self.shape == (1,) else pa.list_(number, self.shape[0])


@dataclass(frozen=True, slots=True)
class FrameColumn:
    """A feature and its values in the frames of one episode: numbers [n] or [n, width], or pictures [n, H, W, 3]."""

    feature: FrameFeature
    values: NDArray[Any]

    def to_arrow(self) -> pa.Array:
        """Return the values as an Arrow array of the feature's dtype; pictures become PNG files without a path."""
        if self.feature.dtype == "image":
            files = []
            for picture in self.values:
                stream = io.BytesIO()
                Image.fromarray(picture).save(stream, "PNG", optimize=False)
                files.append({"bytes": stream.getvalue(), "path": None})
            return pa.array(files, _PICTURE_TYPE)
        # The numbers of all frames, one after the other; `width` of them belong to one frame.
        numbers = pa.array(np.asarray(self.values, dtype=self.feature.dtype).reshape(-1))
        width = self.feature.shape[0]
        return numbers if width == 1 else pa.FixedSizeListArray.from_arrays(numbers, width)

    def summarize(self) -> Statistics:
        """Return statistics over all frames: for each number, [width], or for each color (0 to 1), [3, 1, 1]."""
        is_picture = self.feature.dtype in ("image", "video")
        # Adding 0.0 converts Booleans to numbers.
        # One row per frame, or per pixel of a picture; one column per number or color channel.
        samples = self.values.reshape(-1, 3) / 255 if is_picture else self.values.reshape(len(self.values), -1) + 0.0
        quantiles = np.quantile(samples, list(_QUANTILES.values()), axis=0)
        # This calls `samples.min(axis=0)`, `samples.max(axis=0)` and so on.
        values = {name: getattr(samples, name)(axis=0) for name in ("min", "max", "mean", "std")}
        values |= dict(zip(_QUANTILES, quantiles, strict=True))
        # LeRobot stores statistics of pictures as [channel, 1, 1].
        shape = (3, 1, 1) if is_picture else (-1,)
        return {**{name: value.reshape(shape) for name, value in values.items()}, "count": np.array([len(self.values)])}


def join_statistics(former: Statistics, latter: Statistics) -> Statistics:
    """Join the statistics of two sets of frames as LeRobot does. The result is exact except for quantiles. Quantiles up
    to the median become the smaller of the two values, all others the larger value.
    """
    total = former["count"] + latter["count"]
    weighted = [(stats["count"][0] / total[0], stats) for stats in (former, latter)]  # the weights add up to 1
    mean = sum(weight * stats["mean"] for weight, stats in weighted)
    # The joined variance is the weighted mean of the two variances, plus the variance of the two means.
    variance = sum(weight * (stats["std"] ** 2 + (stats["mean"] - mean) ** 2) for weight, stats in weighted)
    # Keep the larger value of `max` and of the quantiles above the median. The next lines replace the other statistics.
    joined = {name: np.maximum(former[name], latter[name]) for name in latter}
    for name in ("min", *(name for name, share in _QUANTILES.items() if share <= 0.5)):
        joined[name] = np.minimum(former[name], latter[name])
    return {**joined, "mean": np.asarray(mean), "std": np.sqrt(variance), "count": total}


@contextmanager
def new_dataset(folder: Path, *, fps: int, robot: str | None) -> Iterator[DatasetWriter]:
    """Yield the writer of a dataset. The folder appears once the dataset is complete, and not at all if an error is
    raised. `fps` are frames per second; `robot` is LeRobot's `robot_type`, None = unknown. Raises `RunError` if the
    path exists and is not an empty folder, and `FileError` if it cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError("the folder already exists", remedy="Name a new folder.", place=Place(file=str(folder)))
    # The files are written into a temporary folder, which gets the name of `folder` at the end.
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.part"
    with translated_errors(folder):
        try:
            for file in (_DATA, _EPISODES):
                (temporary / file).parent.mkdir(parents=True, exist_ok=True)
            writer = DatasetWriter(temporary, fps, robot)
            yield writer
            writer.finish()
            if folder.is_dir():  # the user made this empty folder
                folder.rmdir()
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


class DatasetWriter:
    """A writer of episodes that all have the features of the first episode; `new_dataset` makes and closes it."""

    def __init__(self, folder: Path, fps: int, robot: str | None) -> None:
        # `fps` are frames per second, and `robot` is the robot's name; None = unknown.
        self._folder, self._fps, self._robot = folder, fps, robot
        self._task_index: dict[str, int] = {}  # instruction -> its number in the dataset
        self._statistics: dict[str, Statistics] = {}  # feature -> statistics of all frames so far
        self._episode_rows: list[dict[str, pa.Scalar]] = []  # rows of meta/episodes
        self._frames_writer: pq.ParquetWriter | None = None  # None before the first episode
        self.features: dict[str, FrameFeature] = {}  # {} before the first episode
        self.frames = 0  # number of frames written

    @property
    def episodes(self) -> int:
        """The number of episodes written."""
        return len(self._episode_rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns of frames, known once an episode was added. The metadata of the schema says which columns are
        pictures; the library `datasets` reads them.
        """
        # Films are in separate files, so the table of frames has no column for them.
        in_table = {name: feature for name, feature in self.features.items() if feature.dtype != "video"}
        pictures = {name: {"_type": "Image"} for name, feature in in_table.items() if feature.dtype == "image"}
        # The key and the form of this JSON are those of the library `datasets`.
        metadata = {"huggingface": json.dumps({"info": {"features": pictures}})}
        return pa.schema([(name, feature.arrow_type) for name, feature in in_table.items()], metadata)

    def add_episode(self, task: str, columns: Mapping[str, FrameColumn], labels: Mapping[str, pa.Scalar]) -> None:
        """Write an episode's frames, with LeRobot's counters, and keep its row of meta/episodes, which `finish` writes.
        `task` is the instruction. `labels` are further columns of that row, with the same types in every episode.
        Raises `RunError` if the features of `columns` differ from the first episode's features.
        """
        length = len(next(iter(columns.values())).values)  # number of frames
        task_index = self._task_index.setdefault(task, len(self._task_index))  # a new task gets the next number
        columns = {**columns, **self._counter_columns(length, task_index)}
        features = {name: column.feature for name, column in columns.items()}
        if self.features and features != self.features:
            names = {**self.features, **features}
            differing = ", ".join(name for name in names if self.features.get(name) != features.get(name))
            problem = f"the episode's features differ from those of earlier episodes: {differing}"
            raise RunError(problem, remedy="A dataset has episodes of one robot: export each robot separately.")
        self.features = features
        if self._frames_writer is None:  # the first episode determines the columns of the file
            self._frames_writer = pq.ParquetWriter(self._folder / _DATA, self.schema)
        frames = pa.table([columns[name].to_arrow() for name in self.schema.names], schema=self.schema)
        self._frames_writer.write_table(frames, row_group_size=length)  # one row group per episode
        stats = {name: column.summarize() for name, column in columns.items() if column.feature.is_summarized}
        # Column of a camera -> its pictures [n, H, W, 3].
        films = {name: column.values for name, column in columns.items() if column.feature.dtype == "video"}
        row = {**self._describe_episode(task, length, stats), **self._write_films(films), **labels}
        self._episode_rows.append(row)
        for name, episode_stats in stats.items():
            earlier_stats = self._statistics.get(name)
            self._statistics[name] = join_statistics(earlier_stats, episode_stats) if earlier_stats else episode_stats
        self.frames += length

    def _write_films(self, films: Mapping[str, NDArray[Any]]) -> dict[str, pa.Scalar]:
        # Writes one film for each camera of the current episode. Returns their locations, for the episode's row.
        row: dict[str, object] = {}
        chunk, number = divmod(self.episodes, _CHUNK_SIZE)  # LeRobot's folders hold up to 1000 films each
        for name, pictures in films.items():
            path = self._folder / _VIDEO.format(video_key=name, chunk_index=chunk, file_index=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_film(pictures, Fraction(self._fps)))
            # Each film shows one episode, so it begins at 0.
            seconds = {"from_timestamp": 0.0, "to_timestamp": len(pictures) / self._fps}
            location = {"chunk_index": chunk, "file_index": number, **seconds}
            row |= {f"videos/{name}/{key}": value for key, value in location.items()}
        return {name: pa.scalar(value) for name, value in row.items()}

    def _counter_columns(self, length: int, task_index: int) -> dict[str, FrameColumn]:
        # Returns the columns that LeRobot needs in every dataset; `index` counts the frames of all episodes.
        frame_index = np.arange(length)
        counters = {
            "frame_index": frame_index,
            "episode_index": np.full(length, self.episodes),
            "index": self.frames + frame_index,
            "task_index": np.full(length, task_index),
        }
        # Seconds since the first frame of the episode.
        timestamps = FrameColumn(FrameFeature("float32"), frame_index / self._fps)
        counter_columns = {name: FrameColumn(FrameFeature("int64"), counter) for name, counter in counters.items()}
        return {"timestamp": timestamps, **counter_columns}

    def _describe_episode(self, task: str, length: int, stats: Mapping[str, Statistics]) -> dict[str, pa.Scalar]:
        # Returns the episode's row of meta/episodes, without the labels and the films.
        row: dict[str, object] = {"episode_index": self.episodes, "tasks": [task], "length": length}
        row |= {"dataset_from_index": self.frames, "dataset_to_index": self.frames + length}
        # All frames are in one file, and all rows of meta/episodes, too.
        for folder in ("data", "meta/episodes"):
            row |= {f"{folder}/chunk_index": 0, f"{folder}/file_index": 0}
        for name, feature_stats in stats.items():
            row |= {f"stats/{name}/{key}": value.tolist() for key, value in feature_stats.items()}
        return {name: pa.scalar(value) for name, value in row.items()}

    def close_frames(self) -> str:
        """After the last episode, close the file of frames and return the file's SHA-256."""
        if self._frames_writer is not None:  # None only without episodes
            self._frames_writer.close()
        return sha256_of(self._folder / _DATA)

    def write_file(self, name: str, content: bytes) -> None:
        """Write a further file into the dataset; `name` is its path in the dataset's folder."""
        (self._folder / name).write_bytes(content)

    def finish(self) -> None:
        """Write the files in meta/; call this after `close_frames`, and only if there is an episode."""
        # A column of meta/episodes for each field of the rows. The first row determines its type.
        rows = {
            name: pa.array([row[name] for row in self._episode_rows], first_value.type)
            for name, first_value in self._episode_rows[0].items()
        }
        pq.write_table(pa.table(rows), self._folder / _EPISODES)
        pq.write_table(_task_table(self._task_index), self._folder / "meta" / "tasks.parquet")
        stats = {
            name: {key: value.tolist() for key, value in feature_stats.items()}
            for name, feature_stats in self._statistics.items()
        }
        self.write_file("meta/stats.json", _encode_json(stats))
        self.write_file("meta/info.json", _encode_json(self._describe_dataset()))

    def _describe_dataset(self) -> dict[str, object]:
        # Returns the content of meta/info.json.
        return {
            "codebase_version": "v3.0",
            "robot_type": self._robot,
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self._task_index),
            "chunks_size": _CHUNK_SIZE,
            "data_files_size_in_mb": 100,  # LeRobot's default; our files are not split by size
            "video_files_size_in_mb": 100,
            "fps": self._fps,
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": _VIDEO if len(self.schema) < len(self.features) else None,  # films are not in the schema
            "features": {name: self._describe_feature(feature) for name, feature in self.features.items()},
        }

    def _describe_feature(self, feature: FrameFeature) -> dict[str, object]:
        # Returns a feature's entry in meta/info.json.
        description: dict[str, object] = {"dtype": feature.dtype, "shape": feature.shape, "names": feature.names}
        if feature.dtype != "video":  # only films have further facts
            return description
        height, width, channels = feature.shape
        values = {"height": height, "width": width, "channels": channels, "fps": self._fps, "pix_fmt": "yuv420p"}
        video_facts = {f"video.{name}": value for name, value in values.items()}
        return {**description, "info": {**video_facts, "video.is_depth_map": False, "has_audio": False}}


def _task_table(tasks: Mapping[str, int]) -> pa.Table:
    # Returns the table of instructions, from instruction -> number.
    # Its metadata lets pandas use the column `task` as the index.
    table = pa.table({"task_index": pa.array(tasks.values(), pa.int64()), "task": pa.array(tasks, pa.string())})
    index = {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": [index], "pandas_version": "2.0.0"}
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def _encode_json(document: Mapping[str, object]) -> bytes:
    # Returns JSON, indented as LeRobot writes it. Raises `ValueError` for NaN, which JSON lacks.
    return escape_json((json.dumps(document, indent=4, ensure_ascii=False, allow_nan=False) + "\n").encode())
