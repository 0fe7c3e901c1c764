"""JSON Lines (`.jsonl`, or compressed `.jsonl.gz`, `.jsonl.zst`), one episode per line; a `.json` file has one episode.

In a compressed file, each episode is a separate member (gzip) or frame (zstd). This permits appending episodes, and a
crash damages only the last episode. A member's data are used only after its checksum was verified; data after a damaged
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
_ZSTD_LEVEL = 9  # compression level of new files
_PIECE_BYTES = 1 << 20  # bytes per read of an uncompressed file
MAX_BLANK_LINES = 1 << 20  # a small compressed file may contain so many empty lines that it takes too long to read
MAX_DOUBTS = 10  # limit on the number of fields per file that warnings name
_REMEDY = "Check that this is an archive with one episode per line."


def read_jsonl(path: Path, selection: record_schema.EpisodeSelection) -> Iterator[Batch | RecordError]:
    """Yield for each line of one file, in order, a batch of one episode, or an error if the line is invalid.
    Blank lines and episodes that are not selected are skipped. Raises `OSError` if the file cannot be read. Raises
    `DamageError` for a Git LFS pointer, and if a compressed member is damaged or too many lines are bad or blank; the
    rest of the file is skipped.
    """
    # `selection` counts the episodes of all files that are read, and selects the wanted ones.
    bad_count = blank_count = 0
    warned_fields: set[str] = set()
    try:
        with open_input(path) as stream:
            separator = b"" if path.name.endswith(WHOLE) else b"\n"
            for number, line in enumerate(_split_lines(_read_pieces(stream, path.name), separator), 1):
                if line.isspace():
                    blank_count += 1
                    if blank_count > MAX_BLANK_LINES:
                        problem = f"more than {MAX_BLANK_LINES} lines are empty"
                        raise RecordError(problem, remedy=_REMEDY, place=Place(line=number))
                    continue
                if not selection.next_wanted():  # an empty list: the next episode is not selected
                    continue
                try:
                    batch = decode_json(line)
                except RecordError as error:
                    bad_count += 1
                    if bad_count > record_schema.MAX_BAD_LINES:
                        problem = f"more than {record_schema.MAX_BAD_LINES} lines are bad; the rest is not read"
                        raise RecordError(problem, remedy=_REMEDY) from None
                    yield error.with_place(Place(file=str(path), line=number))
                    continue
                # Warn about values that seem wrong, once for each field. The episode is valid, so it is yielded.
                for field, doubt in list_doubts(batch):
                    if field not in warned_fields and len(warned_fields) < MAX_DOUBTS:
                        warned_fields.add(field)
                        warn_once(str(path), f"line {number}, and perhaps other lines: {doubt}")
                yield batch
    except RecordError as error:
        # Errors of single lines were yielded above. This error concerns the rest of the file.
        place = error.place.fill_from(Place(file=str(path)))
        raise DamageError(error.problem, remedy=error.remedy, place=place) from None


def encode_member(batch: Batch, index: int, suffix: str) -> bytes:
    """Return one episode as a line of JSON, compressed if the file's suffix requires compression."""
    line = encode_json(batch, index)
    # `WHOLE` is the suffix of an uncompressed file with a single episode; `_COMPRESS` has all other suffixes.
    return line if suffix == WHOLE else _COMPRESS[suffix](line)


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda line: line,
    ".jsonl.gz": lambda line: gzip.compress(line, mtime=0),
    ".jsonl.zst": lambda line: zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(line),
}


def _split_lines(pieces: Iterable[bytes], separator: bytes) -> Iterator[bytes]:
    # Yields each line with its separator, which the last line may lack. Without a separator, the file is one line.
    # `pieces` are successive parts of the file, of any sizes.
    line_pieces: list[bytes] = []  # the parts of the current line that were read so far
    for piece in pieces:
        first, *rest = piece.split(separator) if separator else [piece]
        line_pieces.append(first)
        for line in rest:
            yield b"".join([*line_pieces, separator])
            line_pieces = [line]
    if any(line_pieces):
        yield b"".join(line_pieces)


def _read_pieces(stream: IO[bytes], name: str) -> Iterator[bytes]:
    # Yields the content of the file `name` in pieces of any sizes, decompressed if the suffix is `.gz` or `.zst`.
    # `compression` is a pair: the number of bytes per read, and a function that makes a decompressor.
    compression = _COMPRESSIONS.get(Path(name).suffix)
    if compression is None:
        yield from iter(partial(stream.read, _PIECE_BYTES), b"")  # up to the file's end
    else:
        yield from _read_members(stream, *compression)


# A file is read in small pieces because zlib can expand 1 byte to 1032 bytes, and zstd 4 bytes to 128 KiB.
_COMPRESSIONS: Mapping[str, tuple[int, Callable[[], Any]]] = {  # suffix -> bytes per read, decompressor factory
    ".gz": (1 << 13, lambda: zlib.decompressobj(wbits=31)),
    ".zst": (1 << 8, lambda: zstandard.ZstdDecompressor().decompressobj()),
}


def _read_members(stream: IO[bytes], read_bytes: int, new_member: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the data of gzip members or zstd frames with verified checksums; ignore zero bytes at the file's end."""
    # Raises `RecordError` if a member is damaged or cut off.
    # `read_bytes` is the size of each read from the stream. `new_member()` returns a decompressor for one member.
    # `unread` holds bytes that were read but not decompressed; `member_start` is the member's position in the file.
    unread, member_start = stream.read(read_bytes), 0
    # After the first member, bytes that are all zero are padding, not a member.
    while unread and (member_start == 0 or unread.strip(b"\0")):
        member, pieces = new_member(), list[bytes]()
        try:
            while not member.eof:
                if not unread:
                    raise zlib.error("the file ends inside a compressed member")
                pieces.append(member.decompress(unread))
                # Data after the end of this member belong to the next member.
                unread = member.unused_data if member.eof else stream.read(read_bytes)
        except (zlib.error, zstandard.ZstdError) as error:
            problem = f"the data from byte {member_start} to the file's end cannot be decompressed: {error}"
            raise RecordError(problem, remedy=record_schema.REMEDY_BROKEN) from None
        yield from pieces  # the decompressor has verified the member's checksum
        member_start = stream.tell() - len(unread)
        unread = unread or stream.read(read_bytes)


# Lossless conversion of one episode to JSON text and back


def encode_json(batch: Batch, index: int = 0) -> bytes:
    """Return one episode of a batch as a line of JSON in UTF-8, with its newline. Header fields that are None are
    omitted, except `target_object`, which is written as null.
    """
    recording = to_recording(batch, index)
    header = {name: value for name, value in recording.header.items() if value is not None or name == "target_object"}
    host_fields = _encode_extra(recording, "header")
    line = {**header, "body_roles": recording.roles, "steps": list(_encode_steps(recording)), **host_fields}
    return escape_json(msgspec.json.encode(line)) + b"\n"


def _encode_extra(recording: EpisodeArrays, level: str, index: int | None = None) -> dict[str, msgspec.Raw]:
    # Returns the host-specific fields of the header or, with `index`, of a step or contact, each as JSON text.
    # `level` is "header", "steps" or "contacts"; `index` is the number of the step or contact in the episode, from 0.
    fields: Any = recording.extra.get(level, {})
    if index is not None:
        fields = fields.get(str(index), {})
    return {name: msgspec.Raw(json.dumps(value, allow_nan=False).encode()) for name, value in fields.items()}


def _encode_steps(recording: EpisodeArrays) -> Iterable[dict[str, object]]:
    # Yields one JSON object per record, with the field `t`, the recorded fields and the host-specific fields.
    fields = list(_field_values(recording))  # (name, values) of each field; one value per record, UNSET = absent
    for t in range(recording.records):
        step = {name: values[t] for name, values in fields if values[t] is not UNSET}
        yield {"t": t, **step, **_encode_extra(recording, "steps", t)}


def _field_values(recording: EpisodeArrays) -> Iterable[tuple[str, Sequence[object]]]:
    """Yield the name of each recorded field, and its values by record. Action fields come last, UNSET in record 0."""
    names = list(recording.roles)  # names of the bodies; other arrays hold indices into this list
    # A `spec` describes a channel. For a pose channel, `spec.bodies` is the name of the list of body indices.
    arrays = {spec: recording.channel(spec.name) for spec in channels.NUMERIC}
    # Only recorded channels: each channel's array as nested lists, with one item per record or per action.
    rows = {spec: values.tolist() for spec, values in arrays.items() if values is not None}
    for spec in rows:
        if not (spec.is_pose or spec.is_per_action or spec.is_grip):
            yield spec.name, rows[spec]
    for spec in channels.POSES:
        if spec in rows:
            # In JSON, a record's poses are an object that maps the name of a body to its pose.
            posed_names = [names[body] for body in getattr(recording, spec.bodies)]
            yield spec.name, [dict(zip(posed_names, row, strict=True)) for row in rows[spec]]
    if recording.contacts is not None:
        yield "contacts", _contact_lists(recording, recording.contacts, names)
    for spec in rows:
        if spec.is_grip:  # `gripper_contact` has Booleans; `gripped_body` has indices of bodies
            yield spec.name, rows[spec] if spec.is_truth else [_gripped_names(names, row) for row in rows[spec]]
    for spec in rows:
        if spec.is_per_action:
            yield spec.name, [UNSET, *rows[spec]]


def _gripped_names(names: Sequence[str], row: int | list[int]) -> object:
    # Returns the name of the gripped body (None = no body), or a list of names for several arms.
    # `row` is an index into `names` (-1 = no body), or a list with one index per arm.
    if isinstance(row, list):  # one index per arm
        return [_gripped_names(names, index) for index in row]
    return names[row] if row >= 0 else None


def _contact_lists(recording: EpisodeArrays, contacts: ContactList, names: Sequence[str]) -> list[list[object]]:
    # Returns one list per record: its contacts as JSON objects, with the names of both bodies and the measured numbers.
    # A number that is NaN was not measured, and is left out. `names` has the names of the bodies by index.
    lists: list[list[object]] = [[] for _ in range(recording.records)]
    recorded = channels.recorded_forces(recording.header.get("forces"))  # a subset of `force_n` and `net_force_n`
    # Without a recorded `force_n`, the column `force_n` only repeats `net_force_n`.
    measured = {name: getattr(contacts, name) for name in _MEASURED if name != "force_n" or name in recorded}
    for index, record in enumerate(contacts.record.tolist()):  # the index of each contact's record
        contact: dict[str, object] = {"a": names[contacts.a[index]], "b": names[contacts.b[index]]}
        contact |= {name: float(values[index]) for name, values in measured.items() if not np.isnan(values[index])}
        lists[record].append({**contact, **_encode_extra(recording, "contacts", index)})
    return lists


_HEADER_FIELDS = Header.__struct_fields__
# Fields that must be in every step or in none.
_FIELDS = tuple(
    spec.name
    for spec in channels.CHANNELS
    if spec.name not in ("gripped_body", *channels.OF_CONTACTS) and not spec.is_per_action
)
# Fields of a contact whose values are numbers.
_MEASURED = ("force_n", channels.NET_FORCE, "impulse_ns", channels.NET_IMPULSE)


def decode_json(line: bytes) -> Batch:
    """Parse the JSON text of one episode to a batch of one. Raises a `RecordError` with a remedy and, if known,
    the episode, the step and the field; the caller adds file and line.
    """
    tree = record_schema.parse_json(line)
    try:
        # An episode of a robot with several arms has the key `arms`.
        # Each field of the arms is a flat list: all values of the first arm, then those of the next arm.
        kind = record_schema.Trajectory if tree.get("arms") is None else record_schema.ArmsTrajectory
        trajectory = record_schema.convert_tree(tree, kind)  # checks the types of all fields
        return _build_batch(trajectory, record_schema.collect_extra_fields(tree))
    except RecordError as error:
        raise error.with_place(record_schema.find_place(tree)) from None


# Limits for the distance from the origin, the control step, and the difference of a norm from 1.
# `OFF_RATE` limits the ratio of dt and the median interval of time stamps.
# A value beyond its limit may have a wrong unit.
FAR_M, LONG_S, OFF_NORM, OFF_RATE = 100.0, 1.0, 0.1, 5.0


def list_doubts(batch: Batch) -> Iterator[tuple[str, str]]:
    """Yield the name of each field whose unit, norm or name seems wrong, and the reason. The batch has one episode."""
    dt_s = float(batch.dt_s[0])
    if dt_s > LONG_S:
        yield "dt", f"the control step may be in milliseconds: dt is {dt_s:g} s"
    stamps = batch.channel("time_s").episode_rows(0).ravel()  # empty if no time stamps were recorded
    if len(stamps) > 1:
        interval = float(np.median(np.diff(stamps)))
        if not dt_s / OFF_RATE < interval < dt_s * OFF_RATE:
            yield "time_s", f"time_s may not be in seconds: its median interval is {interval:g}, but dt is {dt_s:g} s"
    # Positions should be in meters and near the origin, and quaternions should have the norm 1.
    for spec in channels.NUMERIC:
        is_position = spec.name.endswith("pos_m")
        if not is_position and not spec.is_rotation:
            continue
        norms = np.linalg.norm(_known_vectors(batch, spec), axis=1)
        if is_position and (norms > FAR_M).any():
            farthest = f"its distance from the origin reaches {norms.max():.4g} m"
            yield spec.name, f"{spec.name} may be in millimeters: {farthest}"
        if spec.is_rotation and (np.abs(norms - 1.0) > OFF_NORM).any():
            worst_norm = norms[np.abs(norms - 1.0).argmax()]
            yield spec.name, f"{spec.name} has a norm of {worst_norm:.3g} instead of 1"
    if batch.extra[0]:  # unknown fields; some may be misspelled names of the schema's fields
        yield from record_schema.list_misspelt(batch.extra[0], _find_absent_fields(batch))


def _known_vectors(batch: Batch, spec: channels.ChannelSpec) -> NDArray[np.float64]:
    # Returns a channel's vectors, [count, row_size], without invalid poses. The batch has one episode.
    if not spec.is_pose:
        return batch.numbers(spec).episode_rows(0).reshape(-1, spec.row_size)
    # `bodies` has the indices of the P bodies, and `rows` the values by record and body, [n, P, size].
    bodies, rows = batch.poses(spec.name).episode_poses(0)
    # `validity_bodies` are the V bodies whose tracking can fail. `valid` is 1.0 for a known pose, else 0.0, [n, V, 1].
    validity_bodies, valid = batch.poses("pose_valid").episode_poses(0)
    is_known = np.ones(rows.shape[:2], dtype=np.bool_)  # [n, P]
    for column, body in enumerate(validity_bodies):
        if body in bodies:
            is_known[:, bodies == body] = valid[:, column] > 0
    return rows[is_known]


def _find_absent_fields(batch: Batch) -> dict[str, frozenset[str]]:
    # Returns the schema's fields that the batch's only episode lacks, grouped by level: header, steps, contacts.
    absent = {
        "header": [name for name in _HEADER_FIELDS if getattr(batch.headers[0], name) is None],
        "steps": [spec.name for spec in channels.NUMERIC if not batch.numbers(spec).present[0]],
        "contacts": [name for name in _MEASURED if np.isnan(getattr(batch.contacts, name)).all()],
    }
    if not batch.contacts.present[0]:
        absent["steps"].append("contacts")
    return {level: frozenset(names) for level, names in absent.items()}


def _build_batch(trajectory: record_schema.Trajectory, host_fields: Mapping[str, object]) -> Batch:
    # Converts a parsed episode and its host-specific fields to a batch of one, and checks it.
    steps = trajectory.steps
    is_present = {name: _is_in_every_step(steps, name) for name in _FIELDS}  # whether each channel was recorded
    for t, step in enumerate(steps):
        if step.t != t:
            raise RecordError(f"t is {step.t}, expected {t}", remedy=_REMEDY_T, place=Place(step=t, field="t"))
    index_by_body = {name: index for index, name in enumerate(trajectory.body_roles)}  # other arrays store the index
    arrays: dict[str, Any] = {}  # maps the name of a recorded channel, or of its list of bodies, to values
    for spec in channels.POSES:
        if is_present[spec.name]:
            arrays[spec.bodies], arrays[spec.name] = _read_poses(steps, spec, index_by_body)
    for spec in channels.ROWS:
        # `is_present` does not cover channels of actions; `_read_rows` returns None if these were not recorded.
        if is_present.get(spec.name, spec.is_per_action):
            arrays[spec.name] = _read_rows(steps, spec)
    if any(step.gripped_body is not UNSET for step in steps):
        arrays["gripped_body"] = _read_gripped(steps, index_by_body)
    recording = EpisodeArrays(
        header={name: getattr(trajectory, name) for name in _HEADER_FIELDS},
        roles=trajectory.body_roles,
        records=len(steps),
        contacts=_read_contacts(steps, index_by_body) if is_present["contacts"] else None,
        extra=host_fields,
        **channels.as_fields(EpisodeArrays, arrays),
    )
    return from_recording(recording)


_REMEDY_T = "Number the steps 0, 1, 2, … in order; N actions give N + 1 steps."
_REMEDY_FIELD = "Write the field in all steps or in no step; leave it out if it was not always measured."
_REMEDY_ROLE = "List every body of a contact or pose in body_roles, as robot, target, bystander or furniture."


def _is_in_every_step(steps: Sequence[record_schema.Step], name: str, first_step: int = 0) -> bool:
    # Returns True if all steps from `first_step` on have the field, and False if none of these steps has the field.
    # Raises `RecordError` if only some of these steps have the field.
    is_present = [getattr(step, name) is not UNSET for step in steps[first_step:]]
    if any(is_present) and not all(is_present):
        index = is_present.index(not is_present[0])
        verb, t = "appears at" if is_present[index] else "is missing from", first_step + index
        raise RecordError(f"{name} {verb} step {t}", remedy=_REMEDY_FIELD, place=Place(step=t, field=name))
    return all(is_present)


def _read_rows(steps: Sequence[record_schema.Step], spec: channels.ChannelSpec) -> NDArray[Any] | None:
    """Return the rows of a channel. Return None if the channel has a row per action and no actions were recorded."""
    # The result has the shape [rows] for a single value per row, else [rows, width].
    # There is one row per step; if the channel has a row per action, the first step has no row.
    first_step = 0
    if spec.is_per_action:
        first_step = 1  # no action led to record 0
        if getattr(steps[0], spec.name) is not UNSET:
            remedy = "Record 0 is the state before any action; write an action into the record that it led to."
            raise RecordError(f"record 0 has an {spec.name}", remedy=remedy, place=Place(step=0, field=spec.name))
        if len(steps) == 1 or not _is_in_every_step(steps, spec.name, first_step):
            return None
    rows = [getattr(step, spec.name) for step in steps[first_step:]]
    if not isinstance(rows[0], Sequence):
        return np.array(rows, dtype=spec.dtype)
    return _build_matrix(rows, spec.name, first_step).astype(spec.dtype, copy=False)


def _build_matrix(rows: Sequence[Sequence[float]], name: str, first_step: int) -> NDArray[np.float64]:
    # Returns rows of equal length as a matrix [rows, width]. Raises `RecordError` if the rows differ in length.
    # The first row belongs to step `first_step`, and `name` is the field's name for the error.
    width = len(rows[0])
    for t, row in enumerate(rows, first_step):
        if len(row) != width:
            problem = f"{len(row)} numbers, but {width} in step {first_step}"
            raise RecordError(problem, remedy=_REMEDY_WIDTH, place=Place(step=t, field=name))
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)


_REMEDY_WIDTH = "Every step needs the same number of values, in the same order."


def _index_of_body(name: str, index_by_body: Mapping[str, int], t: int, field: str) -> int:
    # Returns the body's index in `body_roles`. Raises `RecordError` for an unlisted body, with step `t` and the field.
    if name not in index_by_body:
        raise RecordError(f"{name!r} has no role", remedy=_REMEDY_ROLE, place=Place(step=t, field=field))
    return index_by_body[name]


def _read_poses(
    steps: Sequence[record_schema.Step], spec: channels.ChannelSpec, index_by_body: Mapping[str, int]
) -> tuple[list[int], NDArray[Any]]:
    # Returns the indices of the P bodies of a pose channel, and the channel's values, [n, P, size] or [n, P].
    # All steps must have the same bodies. The result has the bodies in the order of the first step.
    # `index_by_body` maps a body's name to its index in `body_roles`.
    field = spec.name
    body_names = list(getattr(steps[0], field))
    for t, step in enumerate(steps):
        difference = getattr(step, field).keys() ^ set(body_names)  # bodies only in step `t` or only in step 0
        if difference:
            remedy = "A field with poses must have the same bodies in every step."
            place = Place(step=t, field=f"{field}.{min(difference)}")
            raise RecordError("the body is in only some steps", remedy=remedy, place=place)
    rows = [[getattr(step, field)[body] for body in body_names] for step in steps]
    bodies = [_index_of_body(body, index_by_body, 0, f"{field}.{body}") for body in body_names]
    shape = (len(steps), len(body_names), spec.pose_size)[: len(spec.shape)]  # `pose_valid` has no third axis
    return bodies, np.array(rows, dtype=spec.dtype).reshape(shape)


def _read_contacts(steps: Sequence[record_schema.Step], index_by_body: Mapping[str, int]) -> ContactList:
    # Returns the contacts of all steps as columns, with one item per contact. Numbers that are absent become NaN.
    # Raises `RecordError` for a contact without a force, or with a body that has no role.
    # `index_by_body` maps a body's name to its index in `body_roles`.
    # Each tuple has the step's number, the contact's number within the step, and the contact.
    flat_contacts = [
        (t, number, contact) for t, step in enumerate(steps) for number, contact in enumerate(step.contacts)
    ]
    measured: dict[str, NDArray[Any]] = {}
    for name in _MEASURED:
        values = [getattr(contact, name) for _, _, contact in flat_contacts]
        measured[name] = np.array([np.nan if value is UNSET else value for value in values], np.float64)
    lacks_force = np.isnan(measured["force_n"])
    # If only the net force of a contact is recorded, clauses judge the net force.
    measured["force_n"][lacks_force] = measured[channels.NET_FORCE][lacks_force]
    for index in np.flatnonzero(np.isnan(measured["force_n"])):
        t, number, contact = flat_contacts[index]
        # A force that the text gives as NaN is refused later.
        if contact.force_n is UNSET and contact.net_force_n is UNSET:
            place = Place(step=t, field=f"contacts[{number}].force_n")
            raise RecordError("the contact has no force", remedy="Write `force_n` or `net_force_n` [N].", place=place)
    bodies: dict[str, NDArray[Any]] = {}
    for name in ("a", "b"):
        indices = [
            _index_of_body(getattr(contact, name), index_by_body, t, f"contacts[{number}].{name}")
            for t, number, contact in flat_contacts
        ]
        bodies[name] = np.array(indices, dtype=np.int64)
    return ContactList(record=np.array([t for t, _, _ in flat_contacts], dtype=np.int64), **bodies, **measured)


def _read_gripped(steps: Sequence[record_schema.Step], index_by_body: Mapping[str, int]) -> NDArray[np.int64]:
    # Returns the index of the gripped body in each step, [n], or for several arms [n, arms]; -1 = no body.
    # For one arm, the step's field `gripped_body` is a body's name, None (no body) or UNSET (absent).
    # For several arms, the field is UNSET or a list with a name or None for each arm.
    rows = [step.gripped_body for step in steps]
    arm_count = max((len(row) for row in rows if isinstance(row, list)), default=0)
    if not arm_count:  # the field has one name per step
        return np.array([_index_of_gripped(name, index_by_body, t) for t, name in enumerate(rows)])
    filled_rows = [[None] * arm_count if row is UNSET else row for row in rows]
    indices = [[_index_of_gripped(name, index_by_body, t) for name in row] for t, row in enumerate(filled_rows)]
    return _build_matrix(indices, "gripped_body", 0).astype(np.int64)


def _index_of_gripped(name: object, index_by_body: Mapping[str, int], t: int) -> int:
    # Returns the index of the gripped body in `body_roles`.
    # Returns -1 if the name is None (nothing is gripped) or UNSET (step `t` lacks the field).
    return _index_of_body(name, index_by_body, t, "gripped_body") if isinstance(name, str) else -1
