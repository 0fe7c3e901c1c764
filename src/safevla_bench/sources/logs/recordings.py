"""Recordings of ROS and Foxglove: which files form one recording, and in which order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import read_input
from safevla_bench.sources.logs.containers import Topics, damage_errors, read_messages, storage_suffix
from safevla_bench.sources.logs.mappings import translated_errors
from safevla_bench.text import escape_controls, warn_once

METADATA = "metadata.yaml"
_SPLIT_GAP_NS = 500_000_000  # maximum time between successive numbered files of one recording
_MOST_NAMED = 8
DAMAGE_REMEDY = (
    "The file is cut off or damaged: copy it again, or try `mcap recover`, `ros2 bag reindex` or `rosbag reindex`."
)


@dataclass(frozen=True)
class Recording:
    """The files of one recording in order, and the ROS distribution that wrote them (None = unknown)."""

    name: str
    parts: tuple[Path, ...]
    ros_distro: str | None = None


def find_recordings(path: Path) -> tuple[Recording, ...]:
    """Return the recordings at a path: a file, a rosbag2 folder, or a folder of files and of rosbag2 folders. Return ()
    if there are none. Raises `RecordError` if a part of a recording is missing, or if two have the same name.
    """
    if path.is_file():
        return (Recording(_stem(path), (path,)),) if storage_suffix(path) else ()
    if not path.is_dir():
        return ()
    if (path / METADATA).is_file():
        return (_read_rosbag2(path),)
    folders = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)]
    bags = [folder for folder in folders if (folder / METADATA).is_file()]
    # Read files in the folder itself, then the bags in subfolders. Warn of a subfolder without metadata.
    all_recordings = (*_join_split_files(_list_parts(path)), *map(_read_rosbag2, bags))
    unread = [folder.name for folder in folders if folder not in bags and _list_parts(folder)] if all_recordings else []
    if unread:
        problem = f"the recordings in {', '.join(unread[:_MOST_NAMED])} are not read, since there is no {METADATA}"
        warn_once(str(path), f"{problem}; name each of these folders to read them")
    counts = Counter(recording.name for recording in all_recordings)
    repeated = [recording for recording in all_recordings if counts[recording.name] > 1]
    if repeated:
        # A rosbag2 recording has the name of its folder.
        first_parts = [recording.parts[0] for recording in repeated]
        paths = [part.parent if part.parent in bags else part for part in first_parts]
        listed = escape_controls(", ".join(map(str, paths[:_MOST_NAMED])))
        problem = f"several recordings are named {repeated[0].name!r}, but this name is the episode_id"
        remedy = f"Rename all but one, or move copies to another folder: {listed}."
        raise RecordError(problem, remedy=remedy, place=Place(file=str(path), field="episode_id"))
    return all_recordings


def _list_parts(folder: Path) -> list[Path]:
    # Returns the files of recordings in a folder, sorted by recording and number.
    return sorted((path for path in folder.iterdir() if path.is_file() and storage_suffix(path)), key=_part_key)


def _stem(path: Path) -> str:
    # Returns a file's name without the suffixes for format and compression, such as `run_0` for `run_0.db3.zstd`.
    return path.name.rpartition(str(storage_suffix(path)))[0]


def _part_key(path: Path) -> tuple[str, int, str]:
    # Sort key of a file: (recording, number, file name). The number of NAME_3 is 3; -1 = no number in the name.
    # Numbers are compared as integers, so that 10 comes after 9.
    recording, _, number = _stem(path).rpartition("_")
    if number.isdecimal():
        return recording, int(number), path.name
    return _stem(path), -1, path.name


def _read_rosbag2(folder: Path) -> Recording:
    # Returns the recording in a folder of rosbag2: the files that metadata.yaml lists, sorted by number.
    # Adds files of the recording that metadata.yaml does not list. Raises `DamageError` if listed files are missing.
    place = Place(file=str(folder / METADATA))
    present_parts = _list_parts(folder)
    info: dict[str, Any] = {}
    try:
        from ruamel.yaml import YAML

        tree = YAML(typ="safe", pure=True).load(read_input(folder / METADATA, 1 << 22))
        info = {**tree["rosbag2_bagfile_information"]}
        listed_names = [PurePosixPath(name).name for name in info["relative_file_paths"]]
    except Exception as error:  # without valid metadata, use the names of the files
        listed_names = []
        problem = f"cannot be used ({type(error).__name__}); the recording's files are joined by their numbers"
        warn_once(str(place.file), problem)
    # The metadata may name a compressed file without its suffix `.zstd`.
    part_by_name = {path.stem: path for path in present_parts} | {path.name: path for path in present_parts}
    if missing := [name for name in listed_names if name not in part_by_name]:
        named = escape_controls(", ".join(missing[:_MOST_NAMED]))
        raise DamageError(f"parts of the recording are missing: {named}", remedy="Copy the whole folder.", place=place)
    parts = [part_by_name[name] for name in dict.fromkeys(listed_names)]
    # True if the listed files have the same name, up to their numbers.
    is_numbered = len({_part_key(path)[0] for path in parts}) == 1
    if is_numbered and parts != sorted(parts, key=_part_key):
        problem = "lists the recording's files in an order that differs from their numbers; the numbers are used"
        warn_once(str(place.file), problem)
    # If the metadata lists no parts, all files belong to the recording.
    unlisted_parts = [
        path for path in present_parts if path not in parts and (not parts or _are_of_one_recording(parts[0], path))
    ]
    if unlisted_parts and parts:
        named = ", ".join(path.name for path in unlisted_parts[:_MOST_NAMED])
        warn_once(str(place.file), f"does not list {named}, which belongs to the recording")
    if ignored := [path.name for path in present_parts if path not in (*parts, *unlisted_parts)]:
        named = ", ".join(ignored[:_MOST_NAMED])
        warn_once(str(place.file), f"does not list {named}, which is not read; name this file to read it")
    if is_numbered or not listed_names:  # keep the metadata's order of files with different names
        parts = sorted((*parts, *unlisted_parts), key=_part_key)
    if not listed_names and len({storage_suffix(path) for path in parts}) > 1:
        raise RecordError("the files have several formats", remedy="Keep only one recording's files.", place=place)
    distro: object = info.get("ros_distro")
    return Recording(folder.resolve().name, tuple(parts), distro if isinstance(distro, str) and distro else None)


def _are_of_one_recording(one: Path, other: Path) -> bool:
    # Returns whether both files are numbered, and agree in format and in the name before the number.
    (stem, number, _), (other_stem, other_number, _) = _part_key(one), _part_key(other)
    are_numbered = number >= 0 and other_number >= 0
    return storage_suffix(one) == storage_suffix(other) and stem == other_stem and are_numbered


def _join_split_files(files: Sequence[Path]) -> Iterator[Recording]:
    # Yields a recording for each file, or for several numbered files that follow each other. `files` must be sorted.
    parts: list[Path] = []
    for path in (*files, None):  # the final None completes the last recording
        if path is not None and parts and _is_continuation(parts[-1], path):
            parts.append(path)
            continue
        if len(parts) > 1:
            problem = f"{parts[0].name} to {parts[-1].name} follow each other, so they are read as one recording"
            warn_once(str(parts[0].parent), problem)
        if parts:
            # `_part_key(...)[0]` is the common name of joined files, without numbers.
            yield Recording(_stem(parts[0]) if len(parts) == 1 else _part_key(parts[0])[0], tuple(parts))
        parts = [path] if path is not None else []


def _is_continuation(before: Path, after: Path) -> bool:
    # Returns whether the file `after` continues the recording in the file `before`.
    # In a rosbag2 folder, a file continues a recording if it has the next number.
    # A later numbered file continues any recording if the file begins at most 0.5 s after the recording ends.
    stem, number, _ = _part_key(before)
    if not _are_of_one_recording(before, after) or _part_key(after)[1] <= number:
        return False
    # rosbag2 names its files FOLDER_0, FOLDER_1 and so on.
    if stem == before.parent.resolve().name and _part_key(after)[1] == number + 1:
        return True
    try:
        # Outside a rosbag2 folder, two files are one recording if the second begins when the first ends.
        first, second = scan_topics((before,)), scan_topics((after,))
    except RecordError:  # ignore: reading the messages later raises the error again
        return False
    if first.first_ns is None or second.first_ns is None:  # a file without messages
        return False
    return 0 <= second.first_ns - first.last_ns <= _SPLIT_GAP_NS


def scan_topics(parts: Sequence[Path]) -> Topics:
    """Return the topics of the files of a recording, and the times of its first and last message. Raises `RecordError`
    if the reader is not installed, or a file is damaged or too large.
    """
    # Read all messages for their times. No message is kept, since no topic is wanted.
    topics = Topics(())
    for path in parts:
        with translated_errors(path, DAMAGE_REMEDY, *damage_errors()):
            for _ in read_messages(path, topics):
                pass
    return topics
