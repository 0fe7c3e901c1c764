"""LeRobot datasets of version 3 as episodes: frames of features in Parquet, at a constant rate.

Read at huggingface/lerobot, commit 7427f31, src/lerobot/datasets/{utils,io_utils,dataset_writer}.py:

    meta/info.json                     `codebase_version`, `fps`, `robot_type`, `features`: dtype, shape, names of each
    meta/tasks.parquet                 task_index -> instruction, which is the table's index
    data/chunk-NNN/file-NNN.parquet    a row a frame: a column a feature, `timestamp`, `episode_index`, `frame_index`,
                                       `task_index`; videos lie elsewhere and are not read

The action of a frame is taken after its observation, so it belongs to the record after it. The last leads nowhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from safevla_bench.archive.parquet_guard import read_batches
from safevla_bench.archive.record_schema import MAX_RECORDS, REMEDY_LARGE, refuse_field
from safevla_bench.errors import Place, RecordError
from safevla_bench.files import read_input
from safevla_bench.sources.foreign.demonstrations import INFO, is_list, read_instructions, stack_lists
from safevla_bench.sources.logs.mapping import Columns, LogMapping, PoseColumns
from safevla_bench.sources.logs.records import MAX_NUMBERS, Floats, LoggedEpisode, Series, are_known
from safevla_bench.text import escape_controls

_KEYS = ("episode_index", "frame_index", "task_index", "timestamp")
_SUCCESS = "next.success"
_LARGEST_INFO = 1 << 24
_MOST_SIZE = 1 << 16
_REMEDY = "Download the whole dataset again; version 3 is read, and lerobot converts older ones."


@dataclass(frozen=True)
class Dataset:
    """A dataset's description: its folder, frames a second, features and files."""

    folder: Path
    fps: float
    robot: str | None
    features: Mapping[str, Mapping[str, Any]]
    files: tuple[Path, ...]

    def describe_features(self) -> str:
        """Return the features that hold numbers, with shapes and names, as text; "none" if there are none."""
        rows = [
            f"{name} {feature.get('shape')}" + (f" of {', '.join(names)}" if (names := feature_names(feature)) else "")
            for name, feature in self.features.items()
            if feature.get("dtype") not in ("video", "image", "string") and name not in (*_KEYS, "index")
        ]
        return escape_controls("; ".join(rows)) or "none"


def open_dataset(folder: Path) -> Dataset:
    """Return the description of a dataset.

    Raises `RecordError`: `meta/info.json` cannot be read, is of another version, or there is not a frame.
    """
    path = folder / INFO
    try:
        info = json.loads(read_input(path, _LARGEST_INFO))
        version, fps, features = str(info["codebase_version"]), float(info["fps"]), dict(info["features"])
        if not (0 < fps < 1e6 and all(map(_is_feature, features.values()))):
            raise ValueError("fps or features are of another form")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        cause = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise RecordError(f"cannot be read: {cause}", remedy=_REMEDY, place=Place(file=str(path))) from None
    if not version.startswith("v3"):
        remedy = f"Convert it with python -m lerobot.scripts.convert_dataset_v21_to_v30; {INFO} says {version}."
        raise RecordError("a LeRobot dataset of another version than 3", remedy=remedy, place=Place(file=str(path)))
    files = tuple(sorted(folder.glob("data/chunk-*/*.parquet")))
    if not files:
        remedy = "Episodes are in data/chunk-000/file-000.parquet and on; download the data, not only meta."
        raise RecordError("there are no episodes", remedy=remedy, place=Place(file=str(folder)))
    robot = info.get("robot_type")
    return Dataset(folder, fps, robot if isinstance(robot, str) else None, features, files)


def _is_feature(feature: object) -> bool:
    shape = feature.get("shape", []) if isinstance(feature, dict) else None
    return isinstance(shape, list) and all(type(size) is int and 0 <= size < 1 << 20 for size in shape)


def read_episodes(
    dataset: Dataset, mapping: LogMapping, wanted: Collection[int] | None = None
) -> Iterator[LoggedEpisode | RecordError]:
    """Yield the episodes in order, or those at the places `wanted`, from 0; a `RecordError` in place of a bad one.

    Episodes of a file that cannot be read have no places. Raises `RecordError` if the mapping names what there is not.
    """
    picks = {name: _pick_columns(dataset, name, columns) for name, columns in mapping.sources.items()}
    success = mapping.episode.success if isinstance(mapping.episode.success, str) else None
    if success is not None:
        _require_feature(dataset, success, "episode.success")
    success = success or (_SUCCESS if _SUCCESS in dataset.features else None)
    valid = {body.valid for body in mapping.sources.values() if isinstance(body, PoseColumns) and body.valid}
    columns = [*dict.fromkeys([*_KEYS, *(pick.feature for pick in picks.values()), *valid])]
    columns += [success] if success and success not in columns else []
    try:
        instructions = dict(read_instructions(dataset.folder))
    except RecordError:
        instructions = {}
    place = 0
    for table in _read_tables(dataset, columns):
        if isinstance(table, RecordError):
            yield table
            continue
        for frames in _split_episodes(table):
            if wanted is None or place in wanted:
                yield _read_episode(dataset, mapping, picks, frames, instructions, success)
            place += 1


def _read_tables(dataset: Dataset, columns: list[str]) -> Iterator[pa.Table | RecordError]:
    """Yield the frames, each table with whole episodes, as an episode may begin in one file and end in the next.

    A file that cannot be read, or an episode too large, yields an error in its place.
    """
    gathered: list[pa.Table] = []  # of the last episode so far, after its first batch
    last, rows, size = -1, 0, 0
    for path in dataset.files:
        try:
            for batch in read_batches(path, columns):
                table = pa.Table.from_batches([batch])
                _check_keys(table)
                indices = pc.min_max(table["episode_index"]).as_py()
                if not len(batch):
                    continue
                if indices["min"] < last:
                    raise RecordError("the frames of its episodes are not one after the other", remedy=_REMEDY)
                gathered.append(table)
                rows, size = rows + len(batch), size + batch.nbytes
                if rows > MAX_RECORDS or size > 8 * MAX_NUMBERS:
                    raise RecordError("the frames are more than an episode may hold", remedy=_REMEDY)
                if indices["max"] > last:
                    whole, last = pa.concat_tables(gathered), indices["max"]
                    gathered = [whole.filter(pc.equal(whole["episode_index"], last))]
                    rows, size = gathered[0].num_rows, gathered[0].nbytes
                    yield whole.filter(pc.less(whole["episode_index"], last))
        except (RecordError, OSError, pa.ArrowException) as error:
            yield from _describe_loss(path, error, gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.concat_tables(gathered)


def _describe_loss(path: Path, error: Exception, gathered: Sequence[pa.Table]) -> Iterator[RecordError]:
    place = Place(file=str(path))
    text = " ".join(str(error).split())
    read_error = RecordError(f"cannot be read: {text}", remedy=_REMEDY, place=place)
    yield error.with_place(place) if isinstance(error, RecordError) else read_error
    if gathered:
        name = _episode_name(gathered[0])
        problem = "it may go on in a file that cannot be read, so that its end is unknown"
        yield RecordError(problem, remedy=_REMEDY, place=Place(file=str(path), episode=name))


def _episode_name(frames: pa.Table) -> str:
    return f"episode_{frames['episode_index'][0].as_py():06d}"


def _check_keys(table: pa.Table) -> None:
    for name in _KEYS:
        column = table[name]
        is_right = pa.types.is_floating if name == "timestamp" else pa.types.is_integer
        if column.null_count or not is_right(column.type):
            raise RecordError(f"the column {name!r} holds {column.type}, or nothing in places", remedy=_REMEDY)


def _split_episodes(table: pa.Table) -> Iterator[pa.Table]:
    if not table.num_rows:
        return
    ordered = table.sort_by([("episode_index", "ascending"), ("frame_index", "ascending")])
    _, first = np.unique(ordered["episode_index"].to_numpy(), return_index=True)
    for begin, end in zip(first, [*first[1:], ordered.num_rows], strict=True):
        yield ordered.slice(int(begin), int(end - begin))


def _read_episode(
    dataset: Dataset,
    mapping: LogMapping,
    picks: Mapping[str, _Pick],
    frames: pa.Table,
    instructions: Mapping[int, str],
    success: str | None,
) -> LoggedEpisode | RecordError:
    """Return one episode of frames, or the error with its place if its numbers cannot be read.

    Time [s] is `frame_index` over fps where the stamps agree with that to 1 % of a frame, else the stamps.
    """
    name = _episode_name(frames)
    place = Place(file=str(dataset.folder), episode=name)
    if frames.num_rows * sum(len(pick.index) for pick in picks.values()) > MAX_NUMBERS:
        return RecordError(f"more than {MAX_NUMBERS} numbers are mapped", remedy=REMEDY_LARGE, place=place)
    try:
        frame = frames["frame_index"].to_numpy()
        stamps = np.asarray(frames["timestamp"].to_numpy(), dtype=np.float64)
        even = np.abs(stamps * dataset.fps - frame).max() < 1e-2
        last = np.array([np.nan]) if success is None else _feature_matrix(frames, success)[-1]
        series = {part: _read_series(frames, pick, mapping.sources[part]) for part, pick in picks.items()}
        return LoggedEpisode(
            name=name,
            file=str(dataset.folder),
            time_s=frame / dataset.fps if even else stamps,
            dt_s=1.0 / dataset.fps,
            series=series,
            instruction=instructions.get(int(frames["task_index"][0].as_py())),
            success=None if np.isnan(last).any() else bool(last.any()),
            embodiment=dataset.robot,
        )
    except (ValueError, TypeError, LookupError, pa.ArrowException) as error:
        return RecordError(f"cannot be read: {error}", remedy=_REMEDY, place=place)


def _read_series(frames: pa.Table, pick: _Pick, columns: Columns | PoseColumns) -> Series:
    """Return the picked numbers of each frame, scaled unless they are a pose, and whether they are known, [n].

    Numbers that are not finite, a quaternion of zeros, and frames that the `valid` feature denies are not known.
    """
    values = _feature_matrix(frames, pick.feature, pick.size)[:, pick.index]
    is_known = are_known(values, columns)
    if isinstance(columns, Columns):
        return Series(values * columns.scale, is_known)
    if columns.valid:
        is_known &= np.nan_to_num(_feature_matrix(frames, columns.valid), nan=0.0).all(axis=1)  # no value: not said
    return Series(values, is_known)


def _feature_matrix(frames: pa.Table, feature: str, size: int = 1) -> Floats:
    """Return a feature's numbers, [n, k], NaN where a frame has none; k is `size` where no frame has any."""
    column = frames[feature].combine_chunks()
    if is_list(column.type):
        return stack_lists(column, feature, size)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64).reshape(len(column), 1)


@dataclass(frozen=True)
class _Pick:
    """A feature, how many numbers it has, and the places of those that are taken from it."""

    feature: str
    size: int
    index: list[int]


def feature_names(feature: Mapping[str, Any]) -> list[str]:
    """Return the names of a feature's numbers; [] if there are none. LeRobot writes a list, or a dictionary of one.

    Of a dictionary of several entries these are its keys.
    """
    names = feature.get("names")
    if isinstance(names, dict):
        names = next(iter(names.values()), None) if len(names) == 1 else list(names)
    return [str(name) for name in names] if isinstance(names, list) else []


def _require_feature(dataset: Dataset, name: str, key: str) -> Mapping[str, Any]:
    if name not in dataset.features:
        refuse_field(f"there is no feature {name!r}", f"The dataset has: {dataset.describe_features()}.", key)
    return dataset.features[name]


def _pick_columns(dataset: Dataset, part: str, columns: Columns | PoseColumns) -> _Pick:
    """Return the feature and the places of its numbers that a part of the mapping takes."""
    feature = _require_feature(dataset, columns.source, part)
    size, names = math.prod(feature.get("shape") or [1]), feature_names(feature)
    if size > _MOST_SIZE:
        refuse_field(f"{columns.source!r} has {size} numbers a frame", "Map a feature of fewer numbers.", part)
    if isinstance(columns, PoseColumns):
        if columns.valid:
            _require_feature(dataset, columns.valid, part)
        index = _pose_places(columns, names, size)
    elif columns.names is not None:
        unknown = [name for name in columns.names if name not in names]
        if unknown:
            remedy = f"Its names are: {', '.join(names) or 'none; give index'}."
            refuse_field(f"{columns.source!r} has nothing called {unknown[0]!r}", remedy, part)
        index = [names.index(name) for name in columns.names]
    else:
        index = list(columns.index) if columns.index is not None else list(range(size))
    if not index or min(index) < 0 or max(index) >= size:
        remedy = f"Give position = [x, y, z], or index, within 0 to {size - 1}. Its names are: {', '.join(names)}."
        refuse_field(f"{columns.source!r} has {size} numbers", remedy, part)
    return _Pick(columns.source, size, index)


def _pose_places(columns: PoseColumns, names: list[str], size: int) -> list[int]:
    """Return the places of x, y, z and, where there is an orientation, w, x, y, z, in that order.

    Places not given in the mapping are found by names that end in x, y, z and qw, qx, qy, qz, each there once; else the
    position is the first three, and the quaternion of a feature of seven numbers is the rest.
    """
    last = [name.rpartition(".")[2].rpartition("_")[2] for name in names]
    position = list(columns.position or ())
    if not position:
        position = [last.index(axis) for axis in "xyz"] if all(last.count(axis) == 1 for axis in "xyz") else [0, 1, 2]
    if columns.quaternion is not None:
        quaternion = list(columns.quaternion)
    elif all(last.count(f"q{axis}") == 1 for axis in "wxyz"):
        return position + [last.index(f"q{axis}") for axis in "wxyz"]
    else:
        rest = [*range(position[-1] + 1, position[-1] + 5)]
        quaternion = rest if size == 7 and rest[-1] < size else []
    if columns.quaternion_order == "xyzw":
        quaternion = quaternion[3:] + quaternion[:3]
    return position + quaternion
