"""LeRobot datasets of version 3 as logs: features at a constant rate. Videos are not read.

Read at huggingface/lerobot, commit 7427f31, src/lerobot/datasets/{utils,io_utils,dataset_writer}.py: `meta/info.json`
holds `codebase_version`, `fps`, `robot_type`, and of each of its `features` the dtype, shape and names.

The action of a frame is taken after its observation, so it belongs to the record after it. The last leads nowhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from safevla_bench.archive.record_schema import REMEDY_LARGE, refuse_field
from safevla_bench.errors import Place, RecordError
from safevla_bench.files import read_input
from safevla_bench.sources import lerobot_frames
from safevla_bench.sources.lerobot_frames import INFO, MAX_NUMBERS, episode_name, feature_matrix, read_instructions
from safevla_bench.sources.logs.records import Columns, LoggedEpisode, LogMapping, PoseColumns, Series, are_known
from safevla_bench.text import escape_controls

_COUNTERS = ("episode_index", "frame_index", "task_index", "timestamp", "index")
_SUCCESS = "next.success"
_LARGEST_INFO = 1 << 24
_MOST_SIZE = 1 << 16
_REMEDY = "Download the whole dataset again; version 3 is read, and lerobot converts older ones."


@dataclass(frozen=True)
class Dataset:
    """A dataset's description: its folder, frames a second, and features."""

    folder: Path
    fps: float
    robot: str | None
    features: Mapping[str, Mapping[str, Any]]

    def describe_features(self) -> str:
        """Return the features that hold numbers, with shapes and names, as text; "none" if there are none."""
        rows = [
            f"{name} {feature.get('shape')}" + (f" of {', '.join(names)}" if (names := feature_names(feature)) else "")
            for name, feature in self.features.items()
            if feature.get("dtype") not in ("video", "image", "string") and name not in _COUNTERS
        ]
        return escape_controls("; ".join(rows)) or "none"


def open_dataset(folder: Path) -> Dataset:
    """Return the description of a dataset.

    Raises `RecordError` if `meta/info.json` cannot be read or is of another version.
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
    robot = info.get("robot_type")
    return Dataset(folder, fps, robot if isinstance(robot, str) else None, features)


def _is_feature(feature: object) -> bool:
    shape = feature.get("shape", []) if isinstance(feature, dict) else None
    return isinstance(shape, list) and all(type(size) is int and 0 <= size < 1 << 20 for size in shape)


def read_episodes(
    dataset: Dataset, mapping: LogMapping, wanted: Collection[int] | None = None
) -> Iterator[LoggedEpisode | RecordError]:
    """Yield the episodes in order, or those at the places `wanted`, from 0; a `RecordError` in place of a bad one.

    Raises `RecordError` if the mapping names what there is not, and `DamageError` at a file that cannot be read.
    """
    picks = {name: _pick_columns(dataset, name, columns) for name, columns in mapping.sources.items()}
    success = mapping.episode.success if isinstance(mapping.episode.success, str) else None
    if success is not None:
        _require_feature(dataset, success, "episode.success")
    success = success or (_SUCCESS if _SUCCESS in dataset.features else None)
    features = {pick.feature for pick in picks.values()} | {success}
    instructions = read_instructions(dataset.folder)
    columns = ["timestamp", *sorted(filter(None, features))]
    for place, frames in enumerate(lerobot_frames.read_episodes(dataset.folder, columns)):
        if wanted is None or place in wanted:
            try:
                yield _read_episode(dataset, mapping, picks, frames, instructions, success)
            except (RecordError, ValueError, TypeError, LookupError, pa.ArrowException) as error:
                where = Place(file=str(dataset.folder), episode=episode_name(frames))
                yield RecordError(f"cannot be read: {error}", remedy=_REMEDY, place=where)


def _read_episode(
    dataset: Dataset,
    mapping: LogMapping,
    picks: Mapping[str, _Pick],
    frames: pa.Table,
    instructions: Mapping[int, str],
    success: str | None,
) -> LoggedEpisode:
    """Return one episode of frames.

    Time [s] is `frame_index` over fps where the stamps agree with that to 1 % of a frame, else the stamps.
    """
    if frames.num_rows * sum(len(pick.index) for pick in picks.values()) > MAX_NUMBERS:
        raise ValueError(f"more than {MAX_NUMBERS} numbers are mapped. {REMEDY_LARGE}")
    frame = frames["frame_index"].to_numpy()
    stamps = feature_matrix(frames, "timestamp")[:, 0]
    even = np.abs(stamps * dataset.fps - frame).max() < 1e-2
    last = np.array([np.nan]) if success is None else feature_matrix(frames, success)[-1]
    return LoggedEpisode(
        name=episode_name(frames),
        file=str(dataset.folder),
        time_s=frame / dataset.fps if even else stamps,
        dt_s=1.0 / dataset.fps,
        series={part: _read_series(frames, pick, mapping.sources[part]) for part, pick in picks.items()},
        instruction=instructions.get(frames["task_index"][0].as_py()),
        success=None if np.isnan(last).any() else bool(last.any()),
        embodiment=dataset.robot,
    )


def _read_series(frames: pa.Table, pick: _Pick, columns: Columns | PoseColumns) -> Series:
    """Return the picked numbers of each frame, scaled unless they are a pose, and whether they are known, [n].

    Numbers that are not finite and a quaternion of zeros are not known.
    """
    values = feature_matrix(frames, pick.feature, pick.size)[:, pick.index]
    return Series(values * columns.scale if isinstance(columns, Columns) else values, are_known(values, columns))


@dataclass(frozen=True)
class _Pick:
    """A feature, how many numbers it has, and the places of those that are taken."""

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
