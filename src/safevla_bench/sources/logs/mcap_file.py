"""MCAP files as episodes, one a file: messages of ROS 2 (CDR) or JSON, each topic at its own rate.

A record is a message of the clock's topic. Every other topic has its last message at or before that instant, never a
value between two. The pose of a body is known at a record only if a message of it came since the record before, because
a pose that is held would seem to rest and then to jump; other topics hold for twice their period.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard

from safevla_bench.archive.record_schema import MAX_EPISODE_BYTES, REMEDY_LARGE, Budget, refuse_field
from safevla_bench.errors import RecordError
from safevla_bench.files import open_input
from safevla_bench.plugins import install_command
from safevla_bench.sources.logs.records import (
    MAX_NUMBERS,
    Columns,
    Floats,
    LoggedEpisode,
    LogMapping,
    PoseColumns,
    Series,
    are_known,
    translated_errors,
    warn_once,
)
from safevla_bench.text import escape_controls

SUFFIX = ".mcap"
_MAX_MESSAGE_BYTES, _MAX_CHUNK_BYTES, _MAX_FILE_BYTES = 1 << 20, 1 << 26, 1 << 36
"""A message that is decoded, or the description of its type; a record or chunk, decompressed; all chunks of a file."""
_MAX_MESSAGES = 10_000_000
_MAX_NAMES_BYTES, _NAME_BYTES = 1 << 26, 1 << 10
"""All descriptions of types and topics together; what each counts for beside its text."""
_MOST_FRAMES, _LONGEST_FRAME = 8, 200
_SAMPLE_NUMBERS = 16
"""Numbers that a message counts for beside its own."""
_CLOCKS_APART_S = 1.0
_HELD_PERIODS = 2.0
_POSES = ("", "pose", "pose.pose", "transform")
"""Where a message keeps its pose: geometry_msgs/Pose, PoseStamped, PoseWithCovarianceStamped or Odometry, and
TransformStamped."""
_NUMBERS = ("effort", "data", "value", "position")
"""Where a message keeps its numbers unless `field` says it: JointState's efforts, Float64MultiArray's data."""
_EMPTY_ARRAY = re.compile(rb"^\s*[\w/<=]+\[[ \t]*[^\]\s1-9][^\]1-9]*\]", re.MULTILINE)
"""Of a definition in ROS's language, such as `Point[0] points`."""
_REMEDY = "The file is cut off or damaged: `mcap recover` repairs it; copy it again."


class Sample(NamedTuple):
    """A message of one part of the mapping: the log's time, its header's (NaN without one), its numbers, its frame."""

    log_s: float
    header_s: float
    row: list[float]
    frame: str | None


def read_file(path: Path, mapping: LogMapping) -> LoggedEpisode:
    """Return the episode of one file, which is read once, a chunk at a time.

    Raises `RecordError` if the reader is not installed, the file is damaged or too large, messages are in an encoding
    that is not read, what the mapping names is not there, or the clock has fewer than two instants.
    """
    samples: dict[str, list[Sample]] = {part: [] for part in mapping.sources}
    topics: dict[str, str] = {}
    budget = Budget(MAX_NUMBERS, "numbers in an episode")
    with translated_errors(path, _REMEDY, *_damage_errors()):
        for topic, log_s, message in _read_messages(path, {part.source for part in mapping.sources.values()}, topics):
            for part, columns in mapping.sources.items():
                if columns.source == topic:
                    for sample in _take_samples(message, part, columns, log_s):
                        budget.spend(len(sample.row) + _SAMPLE_NUMBERS)
                        samples[part].append(sample)
    for part, columns in mapping.sources.items():
        if columns.source not in topics:
            refuse_field(f"there is no topic {columns.source!r}", f"The file has: {_list_topics(topics)}.", part)
        widths = dict.fromkeys(len(sample.row) for sample in samples[part])
        if not widths:
            remedy = "Leave it out of the mapping; of transforms, `frame` names the child frame."
            raise RecordError(f"no message of {part} could be taken", remedy=remedy)
        if len(widths) > 1:
            problem = f"messages have {' and '.join(map(str, widths))} numbers"
            refuse_field(problem, "Choose joints by name.", part)
    frames = {sample.frame for taken in samples.values() for sample in taken if sample.frame}
    if len(frames) > 1:
        named = ", ".join(sorted(frames)[:_MOST_FRAMES])
        warn_once(str(path), f"poses are in different frames: {named}; all must be in one that rests")
    return _align(path, mapping, samples)


def describe_topics(path: Path) -> str:
    """Return the topics of a file with the types of their messages, as text for a message; "none" if there are none.

    Raises `RecordError` if the reader is not installed, or the file is damaged or too large.
    """
    topics: dict[str, str] = {}
    with translated_errors(path, _REMEDY, *_damage_errors()):
        for _ in _read_messages(path, (), topics):
            pass
    return _list_topics(topics)


def _list_topics(topics: Mapping[str, str]) -> str:
    return escape_controls("; ".join(f"{topic} ({kind})" for topic, kind in sorted(topics.items()))) or "none"


def _damage_errors() -> tuple[type[Exception], ...]:
    """Return what mcap, its decoders and decompressors raise for damage; raise `RecordError` without mcap."""
    try:
        from mcap.exceptions import McapError
    except ImportError:
        raise RecordError("MCAP's library is missing", remedy=install_command("mcap")) from None
    return McapError, zstandard.ZstdError, struct.error, EOFError, AttributeError, ArithmeticError, MemoryError


def _read_records(path: Path) -> Iterator[Any]:
    """Yield the records of a file in its order, those in chunks too; checksums are compared.

    One record or chunk is in memory at a time. Without a comparison, a bit that turned over would be a number that
    nobody measured.
    """
    from mcap.records import Chunk
    from mcap.stream_reader import StreamReader, breakup_chunk

    budget = Budget(_MAX_FILE_BYTES, "bytes in all chunks together")
    with open_input(path) as file:
        reader = StreamReader(file, emit_chunks=True, validate_crcs=True, record_size_limit=_MAX_CHUNK_BYTES)
        for record in reader.records:
            if isinstance(record, Chunk):
                budget.spend(_checked_chunk_size(record))
                yield from breakup_chunk(record, validate_crc=True)
            else:
                yield record


def _checked_chunk_size(chunk: Any) -> int:
    """Return the bytes that a chunk decompresses to at most: as its compression says, which its own record may not."""
    size = int(chunk.uncompressed_size)
    if chunk.compression == "zstd":
        content = zstandard.get_frame_parameters(chunk.data).content_size
        size = size if content == zstandard.CONTENTSIZE_UNKNOWN else max(size, content)
    elif chunk.compression:
        remedy = "`mcap compress --compression zstd` writes it anew."
        raise RecordError(f"chunks are compressed with {chunk.compression!r}", remedy=remedy)
    if size > _MAX_CHUNK_BYTES:
        problem = f"a chunk decompresses to more than {_MAX_CHUNK_BYTES >> 20} MiB"
        raise RecordError(problem, remedy=REMEDY_LARGE)
    return size


def _read_messages(path: Path, wanted: Collection[str], topics: dict[str, str]) -> Iterator[tuple[str, float, Any]]:
    """Yield topic, log time [s] and decoded message of the wanted topics, in the order of the file."""
    from mcap.records import Channel, Message, Schema

    schemas: dict[int, Any] = {}
    channels: dict[int, Any] = {}
    decoders: dict[int, Callable[[bytes], Any]] = {}
    messages, names = Budget(_MAX_MESSAGES, "messages"), Budget(_MAX_NAMES_BYTES, "bytes of topics and types")
    size = Budget(MAX_EPISODE_BYTES, "bytes in the messages that are mapped")
    for record in _read_records(path):
        if isinstance(record, Message):
            messages.spend(1)
            channel = channels[record.channel_id]
            if channel.topic in wanted:
                _check_message_size(len(record.data), channel.topic)
                size.spend(len(record.data))
                if channel.id not in decoders:
                    decoders[channel.id] = _find_decoder(schemas.get(channel.schema_id), channel)
                yield channel.topic, record.log_time / 1e9, decoders[channel.id](record.data)
        elif isinstance(record, Schema):
            _check_message_size(len(record.data), record.name)
            names.spend(_NAME_BYTES + len(record.data))
            schemas[record.id] = record
        elif isinstance(record, Channel):
            names.spend(_NAME_BYTES + len(record.topic))
            record.metadata.clear()
            channels[record.id] = record
            schema = schemas.get(record.schema_id)
            topics[record.topic] = f"{schema.name if schema else 'no type'}, {record.message_encoding}"


def _check_message_size(size: int, name: str) -> None:
    if size > _MAX_MESSAGE_BYTES:
        problem = f"{name!r} has more than {_MAX_MESSAGE_BYTES >> 10} KiB"
        raise RecordError(problem, remedy="Map a topic of poses or numbers.")


def _find_decoder(schema: Any, channel: Any) -> Callable[[bytes], Any]:
    from mcap_ros2.decoder import DecoderFactory

    if channel.message_encoding == "json":
        return json.loads
    if schema is not None and channel.message_encoding == "cdr" and _EMPTY_ARRAY.search(schema.data):
        raise ValueError("a type has arrays of no length, of which no bytes make any number")
    decoder: Callable[[bytes], Any] | None = DecoderFactory().decoder_for(channel.message_encoding, schema)
    if decoder is None:
        problem = f"the messages of {channel.topic!r} are {channel.message_encoding!r}, which nothing here decodes"
        raise RecordError(problem, remedy="CDR of ROS 2 and JSON are read.")
    return decoder


def _take_samples(message: Any, part: str, columns: Columns | PoseColumns, log_s: float) -> Iterator[Sample]:
    """Yield the sample of a message; of transforms, one for each of the frame that is mapped."""
    transforms, is_pose = _get(message, "transforms"), isinstance(columns, PoseColumns)
    frame = columns.frame if isinstance(columns, PoseColumns) else None
    for inner in [message] if transforms is None else transforms:
        if transforms is None or _get(inner, "child_frame_id") == frame:
            row = _pose_row(inner, columns) if isinstance(columns, PoseColumns) else _number_row(inner, columns, part)
            if not row:
                fields = inner if isinstance(inner, Mapping) else getattr(inner, "__slots__", None) or vars(inner)
                remedy = f"Say with `field` where it is. The message has: {', '.join(map(str, fields))}."
                refuse_field(f"a message has no {'pose' if is_pose else 'such numbers'}", remedy, part)
            parent = _get(inner, "header.frame_id") or _get(inner, "frame_id") if is_pose else None
            yield Sample(log_s, _stamp_s(inner), row, str(parent)[:_LONGEST_FRAME] if parent else None)


def _get(message: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        message = message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)
        if message is None:
            return None
    return message


def _stamp_s(message: Any) -> float:
    stamp = _get(message, "header.stamp") or _get(message, "timestamp")
    try:
        nanoseconds = _get(stamp, "nanosec") or _get(stamp, "nsec") or 0
        return float(_get(stamp, "sec")) + float(nanoseconds) * 1e-9 or np.nan
    except (TypeError, ValueError):
        return np.nan


def _pose_row(message: Any, columns: PoseColumns) -> list[float]:
    """Return x, y, z and, where there is an orientation, w, x, y, z; [] without a pose."""
    for path in _POSES if columns.field is None else (columns.field,):
        pose = _get(message, path)
        for place, turn in (("position", "orientation"), ("translation", "rotation")):
            if _get(pose, f"{place}.x") is not None:
                names = [f"{place}.{axis}" for axis in "xyz"]
                names += [f"{turn}.{axis}" for axis in "wxyz"] if _get(pose, f"{turn}.w") is not None else []
                return [float(_get(pose, name)) for name in names]
    return []


def _number_row(message: Any, columns: Columns, part: str) -> list[float]:
    """Return the chosen numbers of a message, each times `columns.scale`; [] where none are there."""
    paths = _NUMBERS if columns.field is None else (columns.field,)
    values = next((value for path in paths if (value := _get(message, path)) is not None), ())
    numbers = [values] if isinstance(values, bool | int | float) else list(values)
    names = list(_get(message, "name") or ()) if columns.names is not None else []
    if numbers and names and len(names) != len(numbers):
        remedy = f"It has {len(names)} names and {len(numbers)} numbers; choose by place with `index`."
        refuse_field("names and numbers differ in count", remedy, part)
    try:
        if columns.names is not None:
            numbers = [numbers[names.index(name)] for name in columns.names] if numbers else []
        elif columns.index is not None:
            numbers = [numbers[k] for k in columns.index] if numbers else []
        return [float(value) * columns.scale for value in numbers]
    except (LookupError, TypeError, ValueError) as error:
        remedy = f"Its names are: {', '.join(map(str, names)) or 'none'}. Numbers count from 0 to {len(numbers) - 1}."
        refuse_field(f"a message lacks a number that is mapped: {error}", remedy, part)


def _align(path: Path, mapping: LogMapping, samples: Mapping[str, Sequence[Sample]]) -> LoggedEpisode:
    """Return the episode on the instants of the clock's messages, with the last message of every part at each."""
    times = {part: _sample_times(taken) for part, taken in samples.items()}
    rows = {part: np.array([sample.row for sample in taken]) for part, taken in samples.items()}
    clock = _choose_clock(mapping)
    instants = np.unique(times[clock])
    if len(instants) < len(times[clock]):
        warn_once(str(path), f"{len(times[clock]) - len(instants)} messages of the clock have a time that was there")
    if len(instants) < 2:
        remedy = "Choose another topic with `clock` under [episode]."
        raise RecordError("the clock's topic has fewer than two messages", remedy=remedy)
    if len(instants) * sum(values.shape[1] for values in rows.values()) > MAX_NUMBERS:
        problem = f"more than {MAX_NUMBERS} numbers, held at each instant of the clock"
        raise RecordError(problem, remedy=REMEDY_LARGE)
    series = {part: _hold(part, values, times[part], instants, mapping) for part, values in rows.items()}
    dt_s = float(np.median(np.diff(instants)))
    return LoggedEpisode(name=path.stem, file=str(path), time_s=instants - instants[0], dt_s=dt_s, series=series)


def _choose_clock(mapping: LogMapping) -> str:
    asked, parts = mapping.episode.clock, mapping.sources
    if asked is None:
        return "eef" if "eef" in parts else next(iter(parts))
    for part, columns in parts.items():
        if columns.source == asked:
            return part
    remedy = f"Mapped are: {', '.join(sorted({columns.source for columns in parts.values()}))}."
    raise RecordError(f"the clock {asked!r} is no topic that is mapped", remedy=remedy)


def _sample_times(taken: Sequence[Sample]) -> Floats:
    """Return the time of each message of a part [s]: its header's if all have one within 1 s of the log's."""
    log_s, header_s = (np.array([getattr(sample, name) for sample in taken]) for name in ("log_s", "header_s"))
    return header_s if np.abs(header_s - log_s).max() <= _CLOCKS_APART_S else log_s  # NaN without a header


def _hold(part: str, rows: Floats, times: Floats, instants: Floats, mapping: LogMapping) -> Series:
    """Return a part's last message at or before each instant, and whether its numbers are known there, [n].

    Not known are instants before the first message, numbers that are not finite, and quaternions of zeros. A body needs
    a message since the record before, and another part holds for two periods.
    """
    order = np.argsort(times, kind="stable")
    rows, stamps = rows[order], times[order]
    last = np.searchsorted(stamps, instants, side="right") - 1
    values = rows[np.maximum(last, 0)]
    if part.startswith("bodies."):
        holds = np.diff(last, prepend=-1) > 0  # a message of its own since the record before
    else:
        period = float(np.median(np.diff(stamps))) if len(stamps) > 1 else np.inf
        holds = instants - stamps[np.maximum(last, 0)] <= _HELD_PERIODS * period
    return Series(values, np.asarray((last >= 0) & holds & are_known(values, mapping.sources[part])))
