"""Reading of LeRobot datasets: the frames of their episodes, and datasets of version 3 as logs. Videos are ignored.

meta/info.json                   `codebase_version`, `fps`, `robot_type`; `features` with dtype, shape and names
meta/tasks.parquet | .jsonl      task_index -> instruction
data/chunk-NNN/*.parquet         one row per frame: episode_index, frame_index, task_index, and one column per feature;
                                 the frames of an episode are consecutive, possibly over several files

The format is defined by huggingface/lerobot, commit 7427f31, src/lerobot/datasets/{utils,io_utils,dataset_writer}.py.
The action of a frame follows the frame's observation and leads to the next frame. No frame follows the last action.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from safevla_bench.archive.parquet_guard import open_parquet, read_batches, read_table
from safevla_bench.archive.record_schema import MAX_RECORDS, REMEDY_LARGE, refuse_field
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import read_input
from safevla_bench.sources.logs import mappings, records
from safevla_bench.sources.logs.names import PoseLayout, decide_forces
from safevla_bench.sources.logs.proposal import FoundSource
from safevla_bench.text import count_noun, escape_controls, explain_mismatch, load_json, warn_once
from safevla_recorder.episode import Floats

INFO, INFO_1 = Path("meta", "info.json"), Path("meta_data", "info.json")  # `INFO_1` is for version 1
_KEY_COLUMNS = ("episode_index", "frame_index", "task_index")
_COUNTERS = (*_KEY_COLUMNS, "timestamp", "index")
SUCCESS, _DONE = "next.success", "next.done"
_NO_NUMBERS = ("video", "image", "string")
_MAX_INFO_BYTES = 1 << 24
_NO_UNIT = ("", "n/a", "na", "none", "null", "-", "1", "unitless", "dimensionless")
_MAX_FEATURE_SIZE = 1 << 16
_MAX_STEPS = 100  # if the median interval of stamps exceeds this many control steps, stamps are not in seconds
_DOWNLOAD = "Download the whole dataset again, with data/ and meta/. If you recorded it, call finalize() at the end."
_WRITTEN = "The dataset differs from LeRobot's format: correct the program that wrote it."
# Commands of lerobot v0.3.2 to v0.6.1 that convert a dataset to the next version.
_TO_3 = (
    "python -m lerobot.scripts.convert_dataset_v21_to_v30 (lerobot 0.5.1 or later; in 0.4.0 to 0.5.0 it is "
    "lerobot.datasets.v30.convert_dataset_v21_to_v30)."
)
_TO_21 = "python -m lerobot.datasets.v21.convert_dataset_v20_to_v21 (lerobot 0.3.3), then with "
_TO_20 = "python -m lerobot.datasets.v2.convert_dataset_v1_to_v2 (lerobot 0.3.3), then with "
_CONVERTERS = {"v1": _TO_20 + _TO_21 + _TO_3, "v2.0": _TO_21 + _TO_3, "v2.1": _TO_3}


class _Totals(msgspec.Struct):
    # The counts in `meta/info.json`.
    total_episodes: int | None = None
    total_frames: int | None = None


def read_frames(folder: Path, columns: Sequence[str]) -> Iterator[pa.Table | DamageError]:
    """Yield for each episode, in order, a table of its frames with the columns `_KEY_COLUMNS` and `columns`. Yield an
    error for an episode that may lack frames. At the end, yield an error if there are fewer episodes or frames than in
    `meta/info.json`. Raises `RecordError` if there are no files. Raises `DamageError` if the frames of an episode are
    not consecutive or too many, or if a file cannot be read; an episode that may continue in it is not yielded.
    """
    # An episode that may continue in several files is collected in `parts`, and yielded when the next episode begins.
    files = sorted(folder.glob("data/chunk-*/*.parquet"))
    if not files:
        raise RecordError("there are no episodes", remedy=_DOWNLOAD, place=Place(file=str(folder)))
    totals = _Totals()
    if (folder / INFO).exists():
        with mappings.translated_errors(folder / INFO, _DOWNLOAD):
            totals = msgspec.convert(load_json(read_input(folder / INFO, _MAX_INFO_BYTES)), _Totals, strict=False)
    # Compare the number of frames in the files with the number in `meta/info.json`.
    footers = [_read_footer(path) for path in files]
    present_count = sum(row_count for row_count, _ in footers)
    missing_count = max(0, (totals.total_frames or 0) - present_count)
    is_whole = totals.total_frames == present_count  # False if the number of frames is unknown
    # The column `index` counts the dataset's frames. A jump of `index` between two episodes shows missing frames.
    checks_ends = missing_count > 0 and "index" in footers[0][1]
    # Datasets may lack the column `_DONE`, which is used only for a warning.
    more = ["index"] * checks_ends + [_DONE] * all(_DONE in names for _, names in footers)
    all_columns = list(dict.fromkeys([*_KEY_COLUMNS, *more, *columns]))
    parts: list[pa.Table] = []  # the frames read so far of the episode with the index `last_index`
    last_index, row_count, size_bytes, episode_count = -1, 0, 0, 0
    for path in files:
        try:
            with mappings.translated_errors(path, _DOWNLOAD):
                for index, frames in _split_by_episode(path, all_columns):
                    if index < last_index:
                        raise RecordError("the frames of an episode are not consecutive", remedy=_WRITTEN)
                    if index > last_index and parts:
                        next_frame = frames["index"][0].as_py() if checks_ends else None
                        yield _join_parts(folder, parts, is_whole, next_frame)
                        parts, row_count, size_bytes = [], 0, 0
                    episode_count += index > last_index  # count an episode at its first block
                    last_index = index
                    row_count += frames.num_rows
                    size_bytes += frames.nbytes
                    if row_count > MAX_RECORDS or size_bytes > 8 * mappings.MAX_NUMBERS:  # 8 bytes per number
                        raise RecordError("the episode has too many frames", remedy=REMEDY_LARGE)
                    parts.append(frames)
        except RecordError as error:
            raise DamageError(error.problem, remedy=error.remedy, place=error.place) from None
    if parts:
        yield _join_parts(folder, parts, is_whole, totals.total_frames if checks_ends else None)
    lost_count = None if totals.total_episodes is None else max(0, totals.total_episodes - episode_count)
    if lost_count or missing_count:
        counts = [f"{lost_count} of {totals.total_episodes} episodes"] if lost_count else []
        counts += [f"{missing_count} of {totals.total_frames} frames"] if missing_count else []
        place = Place(file=str(folder / INFO))
        yield DamageError(
            f"{' and '.join(counts)} are missing in data/", episodes=lost_count, remedy=_DOWNLOAD, place=place
        )


def _join_parts(
    folder: Path, parts: Sequence[pa.Table], is_whole: bool, next_frame: int | None
) -> pa.Table | DamageError:
    # Returns the episode's frames, or an error if frames may be missing. `is_whole`: the dataset has all its frames.
    # `next_frame` is the `index` of the first frame after the episode, which shows whether the episode is cut off.
    place = Place(file=str(folder), episode=episode_name(parts[0]))
    try:
        # Promote the types, since the files may store a feature with different precisions.
        frames = pa.concat_tables(parts, promote_options="permissive").sort_by("frame_index")
    except pa.ArrowException as error:
        problem = f"the files of the episode store a feature as different types: {' '.join(str(error).split())}"
        return DamageError(problem, episodes=1, remedy=_WRITTEN, place=place)
    problem = ""
    frame_indices = frames["frame_index"].to_numpy()
    # If the dataset has all its frames, an episode may skip indices. Otherwise, a skipped index may be a lost frame.
    is_complete = np.diff(frame_indices) > 0 if is_whole else frame_indices == np.arange(len(frame_indices))
    if not is_complete.all():
        problem = "frames are missing or repeated, since frame_index is not 0, 1, 2, …"
    elif next_frame is not None and frames["index"][-1].as_py() + 1 != next_frame:
        problem = "the last frames may be missing"
    return DamageError(problem, episodes=1, remedy=_DOWNLOAD, place=place) if problem else frames


def _read_footer(path: Path) -> tuple[int, list[str]]:
    # Returns a file's number of rows and names of columns.
    # Returns (0, []) if the file cannot be read; `read_frames` reports the error later.
    with suppress(RecordError, OSError, ValueError, pa.ArrowException), open_parquet(path) as (file, row_counts):
        return sum(row_counts), file.schema_arrow.names
    return 0, []


def _split_by_episode(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield (episode index, frames) for each block of consecutive rows of a file that belong to one episode."""
    # Files are read in batches of rows, so an episode may be split into several blocks, even in one file.
    for batch in read_batches(path, columns):
        for name in {*_KEY_COLUMNS, "index"}.intersection(columns):
            if batch[name].null_count or not pa.types.is_integer(batch[name].type):
                problem = f"the column {name!r} holds {batch[name].type}, but must hold integers without missing values"
                raise RecordError(problem, remedy=_WRITTEN)
        table, episode_of_row = pa.Table.from_batches([batch]), batch["episode_index"].to_numpy()
        # Indices of the rows where an episode begins, then the number of rows. If there are no rows, [0, 0] is skipped.
        bounds = [0, *(np.flatnonzero(np.diff(episode_of_row)) + 1).tolist(), len(episode_of_row)]
        for first, end in pairwise(bounds):
            if end:
                yield int(episode_of_row[first]), table.slice(first, end - first)


def episode_name(frames: pa.Table) -> str:
    """Return the name of the episode with these frames, such as `episode_000012`."""
    return f"episode_{frames['episode_index'][0].as_py():06d}"


def feature_matrix(frames: pa.Table, feature: str, size: int = 1) -> Floats:
    """Return the k numbers of a feature in each of n frames, [n, k]. Nested lists are flattened row by row. A frame
    without numbers is NaN. If no frame has numbers, k is `size`. Raises `ValueError` if frames differ in k or have
    values that are not numbers, or if n · k is too large.
    """
    import pyarrow.compute as pc  # slow to import

    column = frames[feature].combine_chunks()
    is_known = column.is_valid()
    numbers, width = column.filter(is_known), 1
    # Each pass removes one level of nested lists.
    # Multiply the width by the length of the lists at this level, which must all have the same length.
    while any(is_type(numbers.type) for is_type in _LIST_KINDS):
        # The distinct lengths of the lists. If there are no lists, use the feature's expected size.
        lengths = pc.unique(pc.list_value_length(numbers)).to_pylist() or [size]
        if len(lengths) > 1 or lengths[0] is None:
            raise ValueError(f"frames differ in the number of values in {feature!r}: {', '.join(map(str, lengths))}")
        width *= lengths[0]
        if len(column) * width > mappings.MAX_NUMBERS:
            raise ValueError(f"{feature!r} has more than {mappings.MAX_NUMBERS} numbers")
        numbers = numbers.flatten()
    if not any(is_type(numbers.type) for is_type in _NUMBER_KINDS):
        raise ValueError(f"{feature!r} holds {numbers.type}, not numbers")
    rows = np.full((len(column), width), np.nan)
    flat = np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)
    # Frames without numbers keep NaN.
    rows[is_known.to_numpy(zero_copy_only=False)] = flat.reshape(-1, width)
    return rows


_LIST_KINDS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_NUMBER_KINDS = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)


def read_instructions(folder: Path) -> dict[int, str]:
    """Return task index -> instruction of a dataset, sorted by index. Raises `RecordError` if the file of tasks is
    missing, or if a row has no integer `task_index` or no text.
    """
    table_path, lines_path = folder / "meta" / "tasks.parquet", folder / "meta" / "tasks.jsonl"
    # Version 3 has a table of tasks; some datasets have lines of JSON instead.
    path = lines_path if lines_path.is_file() and not table_path.is_file() else table_path
    instructions = {}
    with mappings.translated_errors(path, _DOWNLOAD):
        content = read_input(path)
        if path == table_path:
            rows = read_table(content).to_pylist()
        else:
            rows = [load_json(line) for line in content.decode("utf-8").splitlines() if line.strip()]
        for row_number, row in enumerate(rows, 1):
            # The name of the column with the instruction differs between versions of the format, so any text counts.
            texts = [value for value in row.values() if isinstance(value, str)] if isinstance(row, dict) else []
            if not texts or not isinstance(row.get("task_index"), int):
                raise RecordError(f"row {row_number} lacks an integer `task_index` or a text", remedy=_WRITTEN)
            instructions[row["task_index"]] = texts[0]
    return dict(sorted(instructions.items()))


# Datasets as logs


class Feature(msgspec.Struct):
    """The description of a feature (a column) in a dataset."""

    dtype: str = ""
    shape: list[Annotated[int, Meta(ge=0, lt=1 << 20)]] = []
    names: Any = None
    units: Any = None  # not in LeRobot's format; some tools write `units` or `unit`
    unit: Any = None

    @property
    def size(self) -> int:
        # Returns the count of the feature's numbers in a frame; a feature without a shape has one number.
        return math.prod(self.shape or [1])

    @property
    def number_names(self) -> list[str]:
        """The names of the `size` numbers, in order; [] unless every number has a name."""
        names = _flatten_names(self.names, self.size)
        return names if len(names) == self.size else []

    def label_numbers(self, part: str, columns: mappings.AnyColumns) -> list[str]:
        """Return the names of the numbers with their units, as in `x [mm]`; [] if the description gives no units."""
        # Units that do not fit the numbers are an error unless the mapping's table `part`, `columns`, states the unit.
        given, names = self.units or self.unit, self.number_names or [""] * self.size
        if isinstance(given, str):
            given = [given] * self.size
        if isinstance(given, dict) and not given.keys().isdisjoint(names):
            given = [given.get(name, "") for name in names]
        units = ["" if unit.strip().lower() in _NO_UNIT else unit for unit in _flatten_names(given, self.size)]
        if given and len(units) != self.size:
            if columns.states_unit:
                return []
            keys = "`unit` and `angle_unit`" if isinstance(columns, mappings.PoseColumns) else "`scale`"
            remedy = f"In {INFO}, write one unit or a list of {count_noun(self.size, 'unit')}."
            remedy += f" Or write {keys} in the mapping, in [{part}]."
            refuse_field(f"the units {escape_controls(str(given))} do not fit the numbers", remedy, part)
        return [f"{name} [{unit}]" for name, unit in zip(names, units, strict=False)]


def _flatten_names(names: Any, size: int) -> list[str]:
    # Returns the names in `names`: a list, a list of names per matrix axis, or a dictionary of lists or indices.
    # `size` is the count of the feature's numbers. Several lists in a dictionary give names such as `left.x`.
    if isinstance(names, dict):
        if names and all(isinstance(index, int) for index in names.values()):  # name -> index
            return sorted(names, key=lambda name: int(names[name]))
        parts = {key: _flatten_names(part, size) for key, part in names.items()}
        return [name if len(parts) == 1 else f"{key}.{name}" for key, part in parts.items() for name in part]
    if not isinstance(names, list):
        return []
    if names and all(isinstance(part, list) for part in names):
        if math.prod(map(len, names)) == size and len(names) > 1:
            # There is one list of names per axis of the matrix.
            # The full name of a number joins the names on all axes, such as the row's name and the column's name.
            return [".".join(map(str, axis_names)) for axis_names in product(*names)]
        return [name for part in names for name in _flatten_names(part, size)]
    return [str(name) for name in names]


class Dataset(msgspec.Struct):
    """The description of a dataset in `meta/info.json`."""

    codebase_version: str
    fps: Annotated[float, Meta(gt=0, lt=1e6)]
    features: dict[str, Feature]
    robot_type: Any = None
    folder: Path = Path()

    @property
    def robot(self) -> str | None:
        # Returns the robot's name; None = unknown. A `robot_type` that is a list or an object counts as unknown.
        return self.robot_type if isinstance(self.robot_type, str) else None

    def list_sources(self) -> Iterator[FoundSource]:
        # Yields the features that a mapping may assign: numbers, except counters of frames and the success.
        for name, feature in self.features.items():
            if feature.dtype not in _NO_NUMBERS and name not in (*_COUNTERS, SUCCESS):
                yield FoundSource(name, "", feature.number_names, feature.size)  # "" = no message type

    def require_feature(self, name: str, key: str) -> Feature:
        """Return the feature `name`. If there is none, raise `RecordError` at the mapping's key `key`."""
        # The error's remedy lists the existing features.
        if name not in self.features:
            listed = escape_controls("; ".join(source.name for source in self.list_sources()))
            refuse_field(f"there is no feature {name!r}", f"The dataset has: {listed or 'none'}.", key)
        return self.features[name]


def open_dataset(folder: Path) -> Dataset:
    """Return a dataset's description. Raises `RecordError` if `meta/info.json` is unreadable or not version 3."""
    path = folder / INFO
    with mappings.translated_errors(path, _DOWNLOAD):
        tree = load_json(read_input(path, _MAX_INFO_BYTES))
        try:
            dataset = msgspec.convert(tree, Dataset, strict=False)
        except msgspec.ValidationError as error:
            problem, field = explain_mismatch(error)
            place = Place(field=field.removeprefix("$.") or None)
            raise RecordError(f"is not the description of a dataset: {problem}", remedy=_WRITTEN, place=place) from None
        if not dataset.codebase_version.startswith(("v3", "3")):
            raise version_error(dataset.codebase_version)
    dataset.folder = folder
    return dataset


def version_error(version: str) -> RecordError:
    """Return the error for a dataset that is not of version 3. Its remedy has the commands that convert the dataset."""
    # The version may be written with or without a `v`, as in `v2.1` and `2.1`; later formats have no command.
    commands = [command for old, command in _CONVERTERS.items() if f"v{version.lstrip('v')}".startswith(old)]
    remedy = "Version 3 is supported. lerobot 0.4.0 to 0.6.1 write this version."
    if commands:
        remedy = f"Convert it with {commands[0]}"
    problem = f"version {version} of LeRobot's format is not supported; only version 3 is supported"
    return RecordError(problem, remedy=remedy)


def read_episodes(
    dataset: Dataset, mapping: mappings.LogMapping, wanted: Collection[int] | None = None
) -> Iterator[records.LoggedEpisode | RecordError]:
    """Yield the episodes at the indices `wanted` (None = all), in order, and a `RecordError` for each bad episode.
    Raises `RecordError` if the mapping names something that does not exist, and `DamageError` for an unreadable file.
    """
    mappings.refuse_recording_keys(mapping)
    # Name of a part -> which numbers of the part's feature are read: the layout of a pose, or indices.
    picks = {part: _pick_numbers(dataset, part, columns) for part, columns in mapping.sources.items()}
    indices = {part: pick.places if isinstance(pick, PoseLayout) else pick for part, pick in picks.items()}
    mappings.require_own_numbers({part: ([mapping.sources[part].source], numbers) for part, numbers in indices.items()})
    for part, columns in mapping.sources.items():
        if isinstance(columns, mappings.TorqueColumns | mappings.WrenchColumns):
            feature = dataset.features[columns.source]
            names = feature.label_numbers(part, columns) or feature.number_names
            columns.require_scale(part, [names[index] for index in indices[part]] if names else [])
    # The mapping may state the success, or name the feature that records it. By default, `next.success` is read.
    success_source = mapping.episode.success
    if isinstance(success_source, str):
        dataset.require_feature(success_source, "episode.success")
    elif success_source is None and SUCCESS in dataset.features:
        success_source = SUCCESS
    features = {columns.source for columns in mapping.sources.values()}
    features |= {success_source} if isinstance(success_source, str) else set()
    instructions = read_instructions(dataset.folder)
    for index, frames in enumerate(read_frames(dataset.folder, ["timestamp", *sorted(features)])):
        if wanted is None or index in wanted:
            # Yield the error of an episode that may lack frames.
            if isinstance(frames, DamageError):
                yield frames
                continue
            try:
                name = episode_name(frames)
                # An outcome in the mapping overrides the feature.
                needs_success = isinstance(success_source, str) and name not in mapping.episode.outcomes
                success = _read_success(frames, str(success_source)) if needs_success else None
                yield _read_episode(dataset, mapping, picks, frames, instructions, success)
            except RecordError as error:
                yield error.with_place(Place(file=str(dataset.folder), episode=name))
            except (ValueError, TypeError, LookupError, pa.ArrowException) as error:
                location = Place(file=str(dataset.folder), episode=name)
                yield RecordError(f"cannot be read: {error}", remedy=_WRITTEN, place=location)


def _read_success(frames: pa.Table, feature: str) -> bool | None:
    # Returns a feature's value in the last frame; None if null or NaN. Raises `RecordError` unless it is 0 or 1.
    try:
        values = feature_matrix(frames, feature)
        invalid = values[~np.isnan(values) & (values != 0) & (values != 1)]
        problem = f"{feature!r} holds {invalid[0]:g}" if len(invalid) else ""
    except ValueError as error:
        problem = str(error)
    if problem:
        remedy = (
            "Success must be 0 or 1, or a Boolean. Write `success = true`, `success = false` or the name of another "
            "feature under [episode] of the mapping, or `outcomes` for single episodes."
        )
        refuse_field(problem, remedy, feature)
    # Warn about an episode that reached success, and lost it again.
    is_reached = (values == 1).any(axis=1)
    if is_reached.any() and not is_reached[-1]:
        first = int(is_reached.argmax())
        problem = f"{feature!r} is true in frame {first} but not in the last frame, whose value counts"
        warn_once(episode_name(frames), problem)
    return None if np.isnan(values[-1]).any() else bool(values[-1].any())


def _read_episode(
    dataset: Dataset,
    mapping: mappings.LogMapping,
    picks: Mapping[str, PoseLayout | list[int]],
    frames: pa.Table,
    instructions: Mapping[int, str],
    success: bool | None,
) -> records.LoggedEpisode:
    """Return the episode of these frames. Its times [s] are `frame_index` / fps, or the time stamps if they are uneven
    (see `_are_even`). Non-finite numbers, and quaternions of zeros, count as unknown.
    """
    # `picks` maps each part of the record to the layout of the part's pose, or to the indices of the part's numbers.
    # `instructions` maps the index of a task to its text. `success` is None if the frames do not record it.
    mapped_counts = (len(pick.places if isinstance(pick, PoseLayout) else pick) for pick in picks.values())
    if frames.num_rows * sum(mapped_counts) > mappings.MAX_NUMBERS:
        raise ValueError(f"more than {mappings.MAX_NUMBERS} numbers are mapped. {REMEDY_LARGE}")
    frame_index = frames["frame_index"].to_numpy()
    stamps_s = feature_matrix(frames, "timestamp")[:, 0]
    if not np.isfinite(stamps_s).all():
        raise ValueError("'timestamp' has a value that is not a finite number")
    is_even = _are_even(stamps_s, frame_index, dataset.fps)
    step_s = 1 / dataset.fps
    # Median interval of the time stamps, in control steps (1 / fps).
    interval_steps = float(np.median(np.diff(stamps_s))) / step_s if len(stamps_s) > 1 and not is_even else 1.0
    if interval_steps > _MAX_STEPS or (not is_even and (stamps_s == frame_index).all()):
        problem = f"the interval of time stamps is {interval_steps * step_s:.6g}"
        problem += f", but the interval of frames is {step_s:g} s at {dataset.fps:g} Hz"
        raise ValueError(f"{problem}: the stamps are not in seconds")
    skipped = np.diff(frame_index) > 1
    if not is_even and (np.diff(stamps_s)[skipped] < 1.5 * interval_steps * step_s).any():
        problem = "frame_index skips numbers, but the time stamps show no gap there; the time stamps are used"
        warn_once(f"{dataset.folder}: {episode_name(frames)}", problem)
    if not 0.9 < interval_steps < 1.1 and interval_steps > 0:  # an interval of 0 raises an error later
        step_s *= interval_steps
        difference = f"fps is {dataset.fps:g}, but the rate of the time stamps is {1 / step_s:.4g} Hz"
        warn_once(str(dataset.folder), f"{difference}; the time stamps are used")
    if _DONE in frames.column_names and "bool" in str(frames[_DONE].type):
        done = feature_matrix(frames, _DONE)[:, 0] == 1
        if (done[:-1] & ~done[1:]).any():
            problem = f"{_DONE!r} is true in frame {int(done.argmax())} and false later"
            warn_once(f"{dataset.folder}: {episode_name(frames)}", f"{problem}; are these several episodes?")
    tasks = frames["task_index"].unique().to_pylist()  # in the order of the frames
    # These warnings do not name the episode, so that a dataset of many such episodes gives one warning.
    if len(tasks) > 1:
        warn_once(str(dataset.folder), "the frames of some episodes have several tasks, of which the first counts")
    if tasks[0] not in instructions:
        problem = f"task_index {tasks[0]} has no text in meta/tasks, so its episodes count as a separate task"
        warn_once(str(dataset.folder), problem)
    time_base = "frame_index / fps" if is_even else "timestamp"
    series: dict[str, records.Series] = {}
    for part, columns in mapping.sources.items():
        size = dataset.features[columns.source].size
        numbers = feature_matrix(frames, columns.source, size)
        if numbers.shape[1] != size:
            problem = f"{columns.source!r} has {numbers.shape[1]} numbers, but should have {size} according to {INFO}"
            raise ValueError(problem)
        number_names: tuple[str, ...] = ()
        if isinstance(columns, mappings.PoseColumns):
            values = columns.arrange(numbers, cast(PoseLayout, picks[part]), part)
        else:
            indices, names = cast(list[int], picks[part]), dataset.features[columns.source].number_names
            values = numbers[:, indices] * columns.scale
            # Keep the names for checks of joints, except names from the mapping, which have been checked.
            if names and columns.names is None:
                number_names = tuple(names[index] for index in indices)
        is_single = "float" in str(frames[columns.source].type)  # pyarrow calls float32 `float`
        warn = partial(warn_once, f"{dataset.folder}: {episode_name(frames)}, [{part}]")
        if isinstance(columns, mappings.PoseColumns) and "halffloat" in str(frames[columns.source].type):
            warn("positions are stored as float16, in steps of 0.5 mm at 1 m, which make speeds and jerk too large")
        values = records.drop_zero_turns(values, columns, warn)
        known = records.are_known(values, columns)
        if part == "action":
            known[-1:] = True  # the last action may be unknown, since no frame follows it
        series[part] = records.Series(values, known, time_base, is_single=is_single, names=number_names)
    return records.LoggedEpisode(
        name=episode_name(frames),
        file=str(dataset.folder),
        time_s=frame_index / dataset.fps if is_even else stamps_s,
        dt_s=step_s,
        series=series,
        instruction=instructions.get(tasks[0]),
        success=success,
        embodiment=dataset.robot,
    )


def _are_even(stamps_s: Floats, frame_index: NDArray[np.int64], fps: float) -> bool:
    # Returns whether stamps [s] are `frame_index` / fps plus a constant, within 1 % of a frame or the stamps' rounding.
    # Stamps may be rounded to ms or to float32. After 100,000 s, float32 rounds a stamp to 8 ms.
    with np.errstate(over="ignore", invalid="ignore"):  # stamps may be implausibly large
        single = stamps_s.astype(np.float32)
        deviation = np.abs((stamps_s - stamps_s[0]) * fps - (frame_index - frame_index[0])).max()
        rounding_s = np.spacing(np.abs(single).max()) if (single == stamps_s).all() else 0.0
        if np.abs(stamps_s * 1e3 - np.round(stamps_s * 1e3)).max() < 1e-2:
            rounding_s = max(rounding_s, 1e-3)
    return bool(deviation < 1e-2 or deviation <= rounding_s * fps < 1)


def _pick_numbers(dataset: Dataset, part: str, columns: mappings.AnyColumns) -> PoseLayout | list[int]:
    # Returns which numbers of a feature are mapped to `part`: for a pose, a layout; otherwise, indices in order.
    # Raises `RecordError` if the mapping chooses numbers that do not exist, or if the choice is ambiguous.
    # `columns` is the mapping's table for `part`, such as `eef`. The table names a feature of the dataset.
    feature = dataset.require_feature(columns.source, part)
    size, names = feature.size, feature.number_names
    if feature.dtype in _NO_NUMBERS:
        remedy = "Map a feature of numbers or Booleans."
        refuse_field(f"{columns.source!r} holds {feature.dtype}, not numbers", remedy, part)
    if size > _MAX_FEATURE_SIZE:
        refuse_field(f"{columns.source!r} has {size} numbers per frame", "Map a smaller feature.", part)
    if isinstance(columns, mappings.PoseColumns):
        layout = columns.find_numbers(part, names, size, feature.label_numbers(part, columns))
        # `doubt` is a warning about a convention that the names do not state; "" = none.
        if layout.doubt:
            warn_once(str(dataset.folder), f"[{part}] {layout.doubt}")
        return layout
    if columns.names is not None:
        for name in columns.names:
            if names.count(name) != 1:
                remedy = f"The names are: {', '.join(names) or 'none'}. Or write `index`, counted from 0."
                matching = "several numbers" if name in names else "nothing"
                refuse_field(f"{columns.source!r} has {matching} called {name!r}", remedy, part)
        return [names.index(name) for name in columns.names]
    indices = list(range(size) if columns.index is None else columns.index)
    # A wrench has forces and torques; the names show which numbers are the forces.
    if isinstance(columns, mappings.WrenchColumns) and columns.index is None:
        try:
            return decide_forces(names, size)
        except ValueError as question:
            listed = ", ".join(names) or "none"
            remedy = f"Under [{part}], write index = [x, y, z], counted from 0. The names are: {listed}."
            refuse_field(f"{columns.source!r}: {question}", remedy, part)
    if not indices or max(indices) >= size:
        remedy = f"Write an index from 0 to {size - 1}. The names are: {', '.join(names)}."
        refuse_field(f"{columns.source!r} has {size} numbers", remedy, part)
    return indices
