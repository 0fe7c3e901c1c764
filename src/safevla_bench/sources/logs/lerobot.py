"""LeRobot datasets: their frames, episode by episode, and those of version 3 as logs. Videos are not read.

meta/info.json                   `codebase_version`, `fps`, `robot_type`; of each of `features` dtype, shape, names
meta/tasks.parquet | .jsonl      task_index -> instruction
data/chunk-NNN/*.parquet         a row a frame: episode_index, frame_index, task_index, and a column a feature;
                                 the frames of an episode follow each other, perhaps over several files

Read at huggingface/lerobot, commit 7427f31, src/lerobot/datasets/{utils,io_utils,dataset_writer}.py. The action of a
frame is taken after its observation, so it belongs to the record after it. The last leads nowhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta

from safevla_bench.archive.parquet_guard import read_batches, read_table
from safevla_bench.archive.record_schema import MAX_RECORDS, REMEDY_LARGE, refuse_field
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import read_input
from safevla_bench.sources.logs import records
from safevla_bench.text import escape_controls

INFO = Path("meta", "info.json")
_KEYS = ("episode_index", "frame_index", "task_index")
_COUNTERS = (*_KEYS, "timestamp", "index")
_SUCCESS = "next.success"
_LARGEST_INFO = 1 << 24
_MOST_SIZE = 1 << 16
_REMEDY = "Download the whole dataset again, its data and not only meta; lerobot converts versions before 3."


def read_frames(folder: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
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
            with records.translated_errors(path, _REMEDY):
                for number, part in _split_file(path, [*dict.fromkeys([*_KEYS, *columns])]):
                    if number < last:
                        raise RecordError("the frames of its episodes are not one after the other", remedy=_REMEDY)
                    if number > last and episode:
                        yield pa.concat_tables(episode).sort_by("frame_index")
                        episode, rows, size = [], 0, 0
                    last, rows, size = number, rows + part.num_rows, size + part.nbytes
                    if rows > MAX_RECORDS or size > 8 * records.MAX_NUMBERS:
                        raise RecordError("the frames are more than an episode may hold", remedy=_REMEDY)
                    episode.append(part)
        except RecordError as error:
            raise DamageError(error.problem, remedy=error.remedy, place=error.place) from None
    if episode:
        yield pa.concat_tables(episode).sort_by("frame_index")


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


def episode_name(frames: pa.Table) -> str:
    """Return the name of the episode that frames are of, by its index."""
    return f"episode_{frames['episode_index'][0].as_py():06d}"


def feature_matrix(frames: pa.Table, feature: str, size: int = 1) -> records.Floats:
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
    if len(column) * width > records.MAX_NUMBERS:
        raise ValueError(f"{feature!r} has more than {records.MAX_NUMBERS} numbers")
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
    with records.translated_errors(path, _REMEDY):
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


# Datasets as logs


class Feature(msgspec.Struct):
    """What a dataset says of a feature."""

    dtype: str = ""
    shape: list[Annotated[int, Meta(ge=0, lt=1 << 20)]] = []
    names: Any = None

    @property
    def size(self) -> int:
        """How many numbers a frame has."""
        return math.prod(self.shape or [1])

    @property
    def number_names(self) -> list[str]:
        """The names of the numbers; [] without any. LeRobot writes a list, or a dictionary of one, or of numbers."""
        names = self.names
        if isinstance(names, dict):
            names = next(iter(names.values()), None) if len(names) == 1 else list(names)
        return [str(name) for name in names] if isinstance(names, list) else []


class Dataset(msgspec.Struct):
    """`meta/info.json`."""

    codebase_version: str
    fps: Annotated[float, Meta(gt=0, lt=1e6)]
    features: dict[str, Feature]
    robot_type: Any = None
    folder: Path = Path()

    def describe_features(self) -> str:
        """Return the features that hold numbers, with shapes and names, as text; "none" if there are none."""
        rows = [
            f"{name} {feature.shape}" + (f" of {', '.join(names)}" if (names := feature.number_names) else "")
            for name, feature in self.features.items()
            if feature.dtype not in ("video", "image", "string") and name not in _COUNTERS
        ]
        return escape_controls("; ".join(rows)) or "none"

    def require_feature(self, name: str, key: str) -> Feature:
        """Return a feature; raise `RecordError` for the mapping's `key` if there is none."""
        if name not in self.features:
            refuse_field(f"there is no feature {name!r}", f"The dataset has: {self.describe_features()}.", key)
        return self.features[name]


def open_dataset(folder: Path) -> Dataset:
    """Return the description of a dataset.

    Raises `RecordError` if `meta/info.json` cannot be read or is of another version.
    """
    path = folder / INFO
    with records.translated_errors(path, _REMEDY):
        dataset = msgspec.convert(json.loads(read_input(path, _LARGEST_INFO)), Dataset, strict=False)
        if not dataset.codebase_version.startswith("v3"):
            remedy = "Convert it with python -m lerobot.scripts.convert_dataset_v21_to_v30."
            raise RecordError(f"{dataset.codebase_version} is another version than 3", remedy=remedy)
    dataset.folder = folder
    return dataset


def read_episodes(
    dataset: Dataset, mapping: records.LogMapping, wanted: Collection[int] | None = None
) -> Iterator[records.LoggedEpisode | RecordError]:
    """Yield the episodes in order, or those at the places `wanted`, from 0; a `RecordError` in place of a bad one.

    Raises `RecordError` if the mapping names what there is not, and `DamageError` at a file that cannot be read.
    """
    picks = {part: _pick_numbers(dataset, part, columns) for part, columns in mapping.sources.items()}
    success = mapping.episode.success if isinstance(mapping.episode.success, str) else None
    if success is not None:
        dataset.require_feature(success, "episode.success")
    success = success or (_SUCCESS if _SUCCESS in dataset.features else None)
    features = {columns.source for columns in mapping.sources.values()} | ({success} if success else set())
    instructions = read_instructions(dataset.folder)
    for place, frames in enumerate(read_frames(dataset.folder, ["timestamp", *sorted(features)])):
        if wanted is None or place in wanted:
            try:
                yield _read_episode(dataset, mapping, picks, frames, instructions, success)
            except (RecordError, ValueError, TypeError, LookupError, pa.ArrowException) as error:
                where = Place(file=str(dataset.folder), episode=episode_name(frames))
                yield RecordError(f"cannot be read: {error}", remedy=_REMEDY, place=where)


def _read_episode(
    dataset: Dataset,
    mapping: records.LogMapping,
    picks: Mapping[str, list[int]],
    frames: pa.Table,
    instructions: Mapping[int, str],
    success: str | None,
) -> records.LoggedEpisode:
    """Return one episode of frames.

    Time [s] is `frame_index` over fps where the stamps agree with that to 1 % of a frame, else the stamps. Numbers that
    are not finite and a quaternion of zeros are not known.
    """
    if frames.num_rows * sum(map(len, picks.values())) > records.MAX_NUMBERS:
        raise ValueError(f"more than {records.MAX_NUMBERS} numbers are mapped. {REMEDY_LARGE}")
    frame = frames["frame_index"].to_numpy()
    stamps = feature_matrix(frames, "timestamp")[:, 0]
    even = np.abs(stamps * dataset.fps - frame).max() < 1e-2
    last = np.array([np.nan]) if success is None else feature_matrix(frames, success)[-1]
    series = {}
    for part, columns in mapping.sources.items():
        values = feature_matrix(frames, columns.source, dataset.features[columns.source].size)[:, picks[part]]
        scaled = values * columns.scale if isinstance(columns, records.Columns) else values
        series[part] = records.Series(scaled, records.are_known(values, columns))
    return records.LoggedEpisode(
        name=episode_name(frames),
        file=str(dataset.folder),
        time_s=frame / dataset.fps if even else stamps,
        dt_s=1.0 / dataset.fps,
        series=series,
        instruction=instructions.get(frames["task_index"][0].as_py()),
        success=None if np.isnan(last).any() else bool(last.any()),
        embodiment=dataset.robot_type if isinstance(dataset.robot_type, str) else None,
    )


def _pick_numbers(dataset: Dataset, part: str, columns: records.Columns | records.PoseColumns) -> list[int]:
    feature = dataset.require_feature(columns.source, part)
    size, names = feature.size, feature.number_names
    if size > _MOST_SIZE:
        refuse_field(f"{columns.source!r} has {size} numbers a frame", "Map a feature of fewer numbers.", part)
    if isinstance(columns, records.PoseColumns):
        index = _pose_places(columns, names, size)
    elif columns.names is not None:
        unknown = [name for name in columns.names if name not in names]
        if unknown:
            remedy = f"Its names are: {', '.join(names) or 'none; give index'}."
            refuse_field(f"{columns.source!r} has nothing called {unknown[0]!r}", remedy, part)
        index = [names.index(name) for name in columns.names]
    else:
        index = list(range(size) if columns.index is None else columns.index)
    if not index or min(index) < 0 or max(index) >= size:
        remedy = f"Give position = [x, y, z], or index, within 0 to {size - 1}. Its names are: {', '.join(names)}."
        refuse_field(f"{columns.source!r} has {size} numbers", remedy, part)
    return index


def _pose_places(columns: records.PoseColumns, names: list[str], size: int) -> list[int]:
    """Return the places of x, y, z and, where there is an orientation, w, x, y, z, in that order.

    Places not given in the mapping are found by names that end in x, y, z and qw, qx, qy, qz, each there once; else the
    position is the first three, and the quaternion of a feature of seven numbers is the rest.
    """
    last = [name.rpartition(".")[2].rpartition("_")[2] for name in names]
    is_named = all(last.count(axis) == 1 for axis in "xyz")
    position = list(columns.position or ([last.index(axis) for axis in "xyz"] if is_named else (0, 1, 2)))
    rest = [*range(position[-1] + 1, position[-1] + 5)]
    if columns.quaternion is not None:
        quaternion = list(columns.quaternion)
    elif all(last.count(f"q{axis}") == 1 for axis in "wxyz"):
        return position + [last.index(f"q{axis}") for axis in "wxyz"]
    else:
        quaternion = rest if size == 7 and rest[-1] < size else []
    return position + (quaternion[3:] + quaternion[:3] if columns.quaternion_order == "xyzw" else quaternion)
