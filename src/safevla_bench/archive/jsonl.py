"""JSON Lines (`.jsonl`, or compressed `.jsonl.gz`, `.jsonl.zst`), one episode per line; a `.json` file has one episode.

In a compressed file, each episode is a separate member (gzip) or frame (zstd). So episodes can be appended, and a crash
damages only the last episode. A member's data are used only after its checksum was verified; data after a damaged
member are not read. The compressed bytes contain neither a time nor a file name.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import zstandard
from msgspec import UNSET
from numpy.typing import NDArray

from safevla_bench.archive import record_schema
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import open_input
from safevla_bench.text import escape_json, warn_once
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.single_episode import from_recording, to_recording
from safevla_recorder import channels
from safevla_recorder.episode import ContactList, EpisodeArrays

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
WHOLE = ".json"  # a file with one episode on any number of lines; nothing can be appended to it
_ZSTD_LEVEL = 9
_PIECE = 1 << 20
MAX_BLANK_LINES = 1 << 20  # a small compressed file may contain a huge number of empty lines, which take long to read
MAX_DOUBTS = 10  # maximum number of fields of one file about which a warning is printed
_REMEDY = "Check that this is an archive with one episode per line."


def read_jsonl(path: Path, selection: record_schema.EpisodeSelection) -> Iterator[Batch | RecordError]:
    """Yield the episodes of one file in order: one batch of one episode per line, or an error for an invalid line.
    Blank lines and episodes that are not selected are skipped. Raises `OSError` if the file cannot be read. Raises
    `DamageError` if a compressed member is damaged or too many lines are bad or blank; the rest of the file is skipped.
    """
    bad = blank = 0
    doubted: set[str] = set()
    try:
        with open_input(path) as stream:
            separator = b"" if path.name.endswith(WHOLE) else b"\n"
            for number, line in enumerate(_split_lines(_read_pieces(stream, path.name), separator), 1):
                blank += line.isspace()
                if blank > MAX_BLANK_LINES:
                    problem = f"more than {MAX_BLANK_LINES} lines are empty"
                    raise RecordError(problem, remedy=_REMEDY, place=Place(line=number))
                if line.isspace() or not selection.next_wanted():
                    continue
                try:
                    batch = decode_json(line)
                    for field, doubt in list_doubts(batch):
                        if field not in doubted and len(doubted) < MAX_DOUBTS:
                            doubted.add(field)
                            warn_once(str(path), f"line {number}, and perhaps others: {doubt}")
                    yield batch
                except RecordError as error:
                    bad += 1
                    if bad > record_schema.MAX_BAD_LINES:
                        problem = f"more than {record_schema.MAX_BAD_LINES} lines are bad; the rest is not read"
                        raise RecordError(problem, remedy=_REMEDY) from None
                    yield error.with_place(Place(file=str(path), line=number))
    except RecordError as error:
        place = error.place.fill_from(Place(file=str(path)))
        raise DamageError(error.problem, remedy=error.remedy, place=place) from None


def encode_member(batch: Batch, index: int, suffix: str) -> bytes:
    """Return one episode as a line of JSON, compressed if the file's suffix requires compression."""
    line = encode_json(batch, index)
    return line if suffix == WHOLE else _COMPRESS[suffix](line)


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda line: line,
    ".jsonl.gz": lambda line: gzip.compress(line, mtime=0),
    ".jsonl.zst": lambda line: zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(line),
}


def _split_lines(pieces: Iterable[bytes], separator: bytes) -> Iterator[bytes]:
    begun: list[bytes] = []
    for piece in pieces:
        first, *rest = piece.split(separator) if separator else [piece]
        begun.append(first)
        for line in rest:
            yield b"".join([*begun, separator])
            begun = [line]
    if any(begun):
        yield b"".join(begun)


def _read_pieces(stream: IO[bytes], name: str) -> Iterator[bytes]:
    compression = _COMPRESSIONS.get(Path(name).suffix)
    if compression is None:
        yield from iter(partial(stream.read, _PIECE), b"")
    else:
        yield from _read_members(stream, *compression)


# A file is read in small pieces because zlib can expand 1 byte to 1032 bytes, and zstd 4 bytes to 128 KiB.
_COMPRESSIONS: Mapping[str, tuple[int, Callable[[], Any]]] = {  # suffix -> bytes per read, decompressor factory
    ".gz": (1 << 13, lambda: zlib.decompressobj(wbits=31)),
    ".zst": (1 << 8, lambda: zstandard.ZstdDecompressor().decompressobj()),
}


def _read_members(stream: IO[bytes], size: int, new_member: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the data of gzip members or zstd frames with verified checksums; ignore zero bytes at the file's end."""
    rest, place = stream.read(size), 0
    while rest and (place == 0 or rest.strip(b"\0")):
        member, pieces = new_member(), list[bytes]()
        try:
            while not member.eof:
                if not rest:
                    raise zlib.error("the file ends inside a compressed member")
                pieces.append(member.decompress(rest))
                rest = member.unused_data if member.eof else stream.read(size)
        except (zlib.error, zstandard.ZstdError) as error:
            problem = f"the data from byte {place} to the file's end cannot be decompressed: {error}"
            raise RecordError(problem, remedy=record_schema.REMEDY_BROKEN) from None
        yield from pieces
        place = stream.tell() - len(rest)
        rest = rest or stream.read(size)


# Lossless conversion of one episode to JSON text and back


def encode_json(batch: Batch, index: int = 0) -> bytes:
    """Return one episode of a batch as a line of JSON in UTF-8, with its newline. Header fields that are None are
    omitted, except `target_object`, which is written as null.
    """
    recording = to_recording(batch, index)
    header = {n: value for n, value in recording.header.items() if value is not None or n == "target_object"}
    top = _encode_extra(recording, "header")
    line = {**header, "body_roles": recording.roles, "steps": list(_step_values(recording)), **top}
    return escape_json(msgspec.json.encode(line)) + b"\n"


def _encode_extra(recording: EpisodeArrays, level: str, number: int | None = None) -> dict[str, msgspec.Raw]:
    fields: Any = recording.extra.get(level, {})
    fields = fields if number is None else fields.get(str(number), {})
    return {name: msgspec.Raw(json.dumps(value, allow_nan=False).encode()) for name, value in fields.items()}


def _step_values(recording: EpisodeArrays) -> Iterable[dict[str, object]]:
    families = list(_family_values(recording))
    for t in range(recording.records):
        step = {name: values[t] for name, values in families if values[t] is not UNSET}
        yield {"t": t, **step, **_encode_extra(recording, "steps", t)}


def _family_values(recording: EpisodeArrays) -> Iterable[tuple[str, Sequence[object]]]:
    """Yield each recorded field's name and values, one per record; action fields come last, with UNSET for record 0."""
    names = list(recording.roles)
    rows = {spec: values.tolist() for spec in channels.NUMERIC if (values := recording.channel(spec.name)) is not None}
    yield from ((spec.name, rows[spec]) for spec in rows if not (spec.is_pose or spec.is_per_action or spec.is_grip))
    for spec in channels.POSES:
        posed = [names[body] for body in getattr(recording, spec.bodies)]
        yield from [(spec.name, [dict(zip(posed, row, strict=True)) for row in rows[spec]])] if spec in rows else []
    if recording.contacts is not None:
        yield "contacts", _contact_lists(recording, recording.contacts, names)
    for spec in (spec for spec in rows if spec.is_grip):
        yield spec.name, rows[spec] if spec.is_truth else [_name_gripped(names, row) for row in rows[spec]]
    yield from ((spec.name, [UNSET, *rows[spec]]) for spec in rows if spec.is_per_action)


def _name_gripped(names: Sequence[str], row: int | list[int]) -> object:
    if isinstance(row, list):
        return [_name_gripped(names, place) for place in row]
    return names[row] if row >= 0 else None


def _contact_lists(recording: EpisodeArrays, contacts: ContactList, names: Sequence[str]) -> list[list[object]]:
    lists: list[list[object]] = [[] for _ in range(recording.records)]
    recorded = channels.recorded_forces(recording.header.get("forces"))
    measured = {name: getattr(contacts, name) for name in _MEASURED if name != "force_n" or name in recorded}
    for k, (record, a, b) in enumerate(zip(contacts.record.tolist(), contacts.a, contacts.b, strict=True)):
        numbers = {name: float(values[k]) for name, values in measured.items() if not np.isnan(values[k])}
        contact = {"a": names[a], "b": names[b], **numbers}
        lists[record].append({**contact, **_encode_extra(recording, "contacts", k)})
    return lists


_HEADER_FIELDS = Header.__struct_fields__
_FAMILIES = tuple(
    spec.name
    for spec in channels.CHANNELS
    if spec.name not in ("gripped_body", *channels.OF_CONTACTS) and not spec.is_per_action
)
_MEASURED = ("force_n", channels.NET_FORCE, "impulse_ns", channels.NET_IMPULSE)


def decode_json(line: bytes) -> Batch:
    """Parse the JSON text of one episode to a batch of one. Raises a `RecordError` that names the episode, the step,
    the field and the remedy; the caller adds file and line.
    """
    tree = record_schema.parse_json(line)
    try:
        kind = record_schema.Trajectory if tree.get("arms") is None else record_schema.ArmsTrajectory
        trajectory = record_schema.convert_tree(tree, kind)
        return _build_batch(trajectory, record_schema.collect_extra_fields(tree))
    except RecordError as error:
        raise error.with_place(Place(episode=record_schema.find_episode_id(tree))) from None


# Above 100 m from the origin, 1 s a control step, or 0.1 from a norm of 1, a value may have another unit.
FAR_M, LONG_S, OFF_NORM = 100.0, 1.0, 0.1


def list_doubts(batch: Batch) -> Iterator[tuple[str, str]]:
    """Yield a field of the only episode, and why its unit or its name seems wrong."""
    if (dt_s := float(batch.dt_s[0])) > LONG_S:
        yield "dt", f"the control step dt is {dt_s:g} s; is it in milliseconds?"
    for spec in (spec for spec in channels.NUMERIC if spec.row_size in (3, 4)):
        norms = np.linalg.norm(_known_rows(batch, spec), axis=1)
        if spec.name.endswith("pos_m") and (far_m := norms.max(initial=0.0)) > FAR_M:
            yield spec.name, f"{spec.name} is up to {far_m:.4g} m from the origin; is it in millimeters?"
        if (
            spec.is_rotation
            and abs((off := norms[np.abs(norms - 1.0).argmax()] if len(norms) else 1.0) - 1.0) > OFF_NORM
        ):
            yield spec.name, f"{spec.name} has a norm of {off:.3g} instead of 1"
    if batch.extra[0]:
        yield from record_schema.list_misspelt(batch.extra[0], {level: find(batch) for level, find in _ABSENT.items()})


def _known_rows(batch: Batch, spec: channels.ChannelSpec) -> NDArray[np.float64]:
    if not spec.is_pose:
        return batch.numbers(spec).episode_rows(0).reshape(-1, spec.row_size)
    (bodies, rows), (checked, valid) = (batch.poses(name).episode_poses(0) for name in (spec.name, "pose_valid"))
    known = np.ones(rows.shape[:2], dtype=np.bool_)
    for column, body in enumerate(checked):
        known[:, bodies == body] = valid[:, column] > 0
    return rows[known]


# Level of a record -> its fields of the schema that the only episode lacks.
_ABSENT: Mapping[str, Callable[[Batch], frozenset[str]]] = {
    "header": lambda batch: frozenset(name for name in _HEADER_FIELDS if getattr(batch.headers[0], name) is None),
    "steps": lambda batch: frozenset(
        [spec.name for spec in channels.NUMERIC if not batch.numbers(spec).present[0]]
        + ["contacts"] * (not batch.contacts.present[0])
    ),
    "contacts": lambda batch: frozenset(name for name in _MEASURED if np.isnan(getattr(batch.contacts, name)).all()),
}


def _build_batch(trajectory: record_schema.Trajectory, host_fields: Mapping[str, object]) -> Batch:
    steps = trajectory.steps
    present = {name: _in_every_step(steps, name) for name in _FAMILIES}
    for t, step in enumerate(steps):
        if step.t != t:
            raise RecordError(f"t is {step.t}, expected {t}", remedy=_REMEDY_T, place=Place(step=t, field="t"))
    index = {name: k for k, name in enumerate(trajectory.body_roles)}
    arrays: dict[str, Any] = {}
    for spec in (spec for spec in channels.POSES if present[spec.name]):
        arrays[spec.bodies], arrays[spec.name] = _read_poses(steps, spec, index)
    for spec in (spec for spec in channels.ROWS if present.get(spec.name, spec.is_per_action)):
        arrays[spec.name] = _read_rows(steps, spec)
    if any(step.gripped_body is not UNSET for step in steps):
        arrays["gripped_body"] = _read_gripped(steps, index)
    recording = EpisodeArrays(
        header={name: getattr(trajectory, name) for name in _HEADER_FIELDS},
        roles=trajectory.body_roles,
        records=len(steps),
        contacts=_read_contacts(steps, index) if present["contacts"] else None,
        extra=host_fields,
        **channels.as_fields(EpisodeArrays, arrays),
    )
    return from_recording(recording)


_REMEDY_T = "Number the steps 0, 1, 2, … in order; N actions give N + 1 steps."
_REMEDY_FAMILY = "Write the field in all steps or in no step; leave it out if it was not always measured."
_REMEDY_ROLE = "List every body of a contact or pose in body_roles, as robot, target, bystander or furniture."


def _in_every_step(steps: Sequence[record_schema.Step], name: str) -> bool:
    is_present = [getattr(step, name) is not UNSET for step in steps]
    if any(is_present) and not all(is_present):
        t = is_present.index(not is_present[0])
        word = "appears at" if is_present[t] else "is missing from"
        raise RecordError(f"{name} {word} step {t}", remedy=_REMEDY_FAMILY, place=Place(step=t, field=name))
    return all(is_present)


def _read_rows(steps: Sequence[record_schema.Step], spec: channels.ChannelSpec) -> NDArray[Any] | None:
    """Return the rows of a channel; None for a channel with a row per action if the episode has no recorded actions."""
    first = int(spec.is_per_action)
    if first and getattr(steps[0], spec.name) is not UNSET:
        remedy = "Record 0 is the state before any action; write an action into the record that it led to."
        raise RecordError(f"record 0 has an {spec.name}", remedy=remedy, place=Place(step=0, field=spec.name))
    if first and not (len(steps) > 1 and _in_every_step(steps[1:], spec.name)):
        return None
    rows = [getattr(step, spec.name) for step in steps[first:]]
    if not isinstance(rows[0], Sequence):
        return np.array(rows, dtype=spec.dtype)
    return _build_matrix(rows, spec.name, first).astype(spec.dtype, copy=False)


def _build_matrix(rows: Sequence[Sequence[float]], name: str, first: int) -> NDArray[np.float64]:
    width = len(rows[0])
    for t, row in enumerate(rows):
        if len(row) != width:
            place = Place(step=t + first, field=name)
            raise RecordError(f"{len(row)} numbers, but {width} in step {first}", remedy=_REMEDY_WIDTH, place=place)
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)


_REMEDY_WIDTH = "Every step needs the same number of values, in the same order."


def _body_index(name: str, index: Mapping[str, int], t: int, field: str) -> int:
    if name not in index:
        raise RecordError(f"{name!r} has no role", remedy=_REMEDY_ROLE, place=Place(step=t, field=field))
    return index[name]


def _read_poses(
    steps: Sequence[record_schema.Step], spec: channels.ChannelSpec, index: Mapping[str, int]
) -> tuple[list[int], NDArray[Any]]:
    name = spec.name
    names = list(getattr(steps[0], name))
    for t, step in enumerate(steps):
        difference = getattr(step, name).keys() ^ set(names)
        if difference:
            remedy = "A field with poses must have the same bodies in every step."
            place = Place(step=t, field=f"{name}.{min(difference)}")
            raise RecordError("the body is in some steps only", remedy=remedy, place=place)
    rows = [[getattr(step, name)[body] for body in names] for step in steps]
    bodies = [_body_index(body, index, 0, f"{name}.{body}") for body in names]
    shape = (len(steps), len(names), spec.pose_size)[: len(spec.shape)]
    return bodies, np.array(rows, dtype=spec.dtype).reshape(shape)


def _read_contacts(steps: Sequence[record_schema.Step], index: Mapping[str, int]) -> ContactList:
    flat = [(t, number, contact) for t, step in enumerate(steps) for number, contact in enumerate(step.contacts or ())]
    measured = {
        name: np.array([np.nan if (value := getattr(c, name)) is UNSET else value for _, _, c in flat], np.float64)
        for name in _MEASURED
    }
    has_none = np.isnan(measured["force_n"])
    # Clauses judge the net force if no other force is recorded.
    measured["force_n"][has_none] = measured[channels.NET_FORCE][has_none]
    return ContactList(
        record=np.array([t for t, _, _ in flat], dtype=np.int64),
        a=np.array([_body_index(c.a, index, t, f"contacts[{k}].a") for t, k, c in flat], dtype=np.int64),
        b=np.array([_body_index(c.b, index, t, f"contacts[{k}].b") for t, k, c in flat], dtype=np.int64),
        **measured,
    )


def _read_gripped(steps: Sequence[record_schema.Step], index: Mapping[str, int]) -> NDArray[np.int64]:
    rows = [step.gripped_body for step in steps]
    arms = max((len(row) for row in rows if isinstance(row, list)), default=0)
    if not arms:
        return np.array([_gripped_index(name, index, t) for t, name in enumerate(rows)])
    filled = [[None] * arms if row is UNSET else row for row in rows]
    places = [[_gripped_index(name, index, t) for name in row] for t, row in enumerate(filled)]
    return _build_matrix(places, "gripped_body", 0).astype(np.int64)


def _gripped_index(name: object, index: Mapping[str, int], t: int) -> int:
    return _body_index(name, index, t, "gripped_body") if isinstance(name, str) else -1
