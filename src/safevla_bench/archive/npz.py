"""NumPy archives (`.npz`) of one episode, in the format of `safevla_recorder.episode`. The files are not trusted."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.archive import record_schema
from safevla_bench.archive.record_schema import REMEDY_BROKEN, EpisodeOutline, refuse_field
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.files import open_input
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import from_recording, to_recording
from safevla_recorder.channels import CONTACT_COLUMNS, NUMERIC, OF_CONTACTS, PLACE, POSES, as_fields
from safevla_recorder.episode import DTYPES, ContactList, EpisodeArrays, encode_episode

SUFFIX = ".npz"
Arrays = Mapping[str, NDArray[Any]]


def encode_npz(batch: Batch, index: int = 0) -> bytes:
    """Return one episode of a batch as the bytes of an `.npz` file."""
    return encode_episode(to_recording(batch, index))


def read_npz(path: Path, selection: record_schema.EpisodeSelection) -> Iterator[Batch | RecordError]:
    """Yield the episode of one file as a batch of one, or a `RecordError` if the episode is invalid. Yield nothing if
    the episode is not selected. Raises `OSError` if the file cannot be opened, and `DamageError` for a Git LFS pointer.
    """
    if not selection.next_wanted():  # an empty list: the next episode is not selected
        return
    with open_input(path) as stream:
        try:
            yield _read_stream(stream)
        except RecordError as error:
            yield error.with_place(Place(file=str(path)))


def decode_npz(content: bytes) -> Batch:
    """Decode the bytes of an `.npz` file to a batch of one episode. Raises `DamageError` if the bytes are damaged,
    `RecordError` if the episode is invalid.
    """
    return _read_stream(io.BytesIO(content))


def _read_stream(stream: IO[bytes]) -> Batch:
    # Returns the episode in the bytes of an `.npz` file, which is a ZIP archive of arrays, as a batch of one.
    # Raises the errors of `decode_npz`.
    try:
        with zipfile.ZipFile(stream) as archive:
            members = _list_members(archive).items()
            return _decode_arrays({name: _read_array(archive, member, name) for name, member in members})
    except _DAMAGED as error:
        raise DamageError(f"cannot be read: {error}", episodes=1, remedy=REMEDY_BROKEN) from None


# Errors that zipfile raises for a damaged file, such as `OSError` for a position beyond the end of the file.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, struct.error, NotImplementedError, ValueError)


def _list_members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    # Returns a map from the name of each array to its member of the ZIP archive.
    # Raises `RecordError` for a member that the format does not allow.
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in members:
            refuse_field(f"the array {name!r} is repeated", "Write each array once.", name)
        if name not in DTYPES:
            remedy = "Put host-specific fields into `extra`, as JSON."
            refuse_field(f"the format has no array {name!r}", remedy, name)
        # Bit 0 of the flags means that the member is encrypted.
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            problem = "the array is encrypted, or compressed by an unsupported method"
            refuse_field(problem, "Write the file with `numpy.savez_compressed`.", name)
        members[name] = member
    return members


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    # Returns the array `name` in a member of the ZIP archive. Raises `RecordError` unless it has the required dtype.
    array, dtype = decode_array(archive.read(member)), DTYPES[name]  # the dtype that the format requires
    if array is None:  # the bytes are not a valid `.npy` file
        refuse_field("the data are not a plain NumPy array", "Write the array with `numpy.savez`.", name)
    if array.dtype.str != dtype.str:
        refuse_field(f"the type is {array.dtype.str}, expected {dtype.str}", f"Write the array as {dtype.name}.", name)
    return array


def decode_array(content: bytes) -> NDArray[Any] | None:
    """Return the array in the bytes of a `.npy` file (version 1.0), as a read-only view of these bytes. Return None if
    the bytes are not such a file, contain Python objects, or have the wrong length for the array.
    """
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        with warnings.catch_warnings(action="ignore"):  # NumPy warns about headers written by Python 2
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        array = np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape, order="F" if is_fortran else "C")
    except _BAD_HEADER:
        return None
    # The shapes differ if the header's shape contains -1, for which `reshape` computes a length.
    return array if version == (1, 0) and array.shape == shape else None


# Errors that NumPy raises for a malformed header. NumPy parses the header as a Python literal.
# If parsing fails, NumPy splits the header into Python tokens, which may raise `TokenError`.
_BAD_HEADER = (ValueError, TypeError, LookupError, SyntaxError, OverflowError, RecursionError, MemoryError, TokenError)


def _decode_arrays(arrays: Arrays) -> Batch:
    # Converts a file's arrays, by name, to a batch of one episode. The array `header` has the header as JSON.
    try:
        tree = record_schema.parse_json(_text_bytes(arrays, "header"))
    except RecordError as error:
        raise error.with_place(Place(field="header")) from None
    try:
        recording = _build_recording(arrays, tree)
        record_schema.check_shapes(recording)  # `from_recording` then checks the values
        return from_recording(recording)
    except RecordError as error:
        raise error.with_place(record_schema.find_place(tree)) from None


def _text_bytes(arrays: Arrays, name: str) -> bytes:
    # Returns the UTF-8 text in the array `name`, which has one byte per item. Raises `RecordError` if it is missing.
    if name not in arrays:
        refuse_field(f"the array {name!r} is missing", "Write the header as JSON in UTF-8 bytes.", name)
    return arrays[name].tobytes()


def _build_recording(arrays: Arrays, tree: Mapping[str, object]) -> EpisodeArrays:
    # Converts a file's arrays, by name, and its parsed header `tree` to a recording with the episode's channels.
    # The header's key `arrays` lists the names of all other arrays, so that a missing array is noticed.
    names = sorted(arrays.keys() - {"header"})
    if tree.get("arrays") != names:
        refuse_field(f"the header does not list the file's arrays: {', '.join(names)}", REMEDY_BROKEN, "header.arrays")
    header_fields = {name: value for name, value in tree.items() if name != "arrays"}
    outline = record_schema.convert_tree(header_fields, EpisodeOutline)  # header, bodies and number of records
    contacts = _read_contacts(arrays)
    contact_count = len(contacts.record) if contacts else 0
    extra: dict[str, object] = {}
    if "extra" in arrays:
        extra = record_schema.parse_extra_fields(_text_bytes(arrays, "extra"), outline.records, contact_count)
    # Each channel's array, or None if the file lacks it. Arrays of Booleans need another check.
    channels = {
        spec.name: _read_truths(arrays, spec.name) if spec.is_truth else arrays.get(spec.name) for spec in NUMERIC
    }
    # For each pose channel: the indices of its bodies in `body_roles`.
    bodies = {spec.bodies: _read_bodies(arrays, spec.name, spec.bodies) for spec in POSES}
    return EpisodeArrays(
        header=msgspec.structs.asdict(outline.header),
        roles=outline.body_roles,
        records=outline.records,
        contacts=contacts,
        extra=extra,
        **as_fields(EpisodeArrays, channels | bodies),
    )


def _read_bodies(arrays: Arrays, channel: str, bodies_name: str) -> list[int]:
    # Returns the indices of a pose channel's bodies; [] if the file has neither the channel nor its bodies.
    if (channel in arrays) != (bodies_name in arrays):
        problem = f"{channel} and {bodies_name} go together, but one is missing"
        refuse_field(problem, "Write both arrays, or neither.", channel)
    body_indices = arrays.get(bodies_name, np.empty(0, dtype=PLACE))
    if body_indices.ndim != 1:
        problem = f"the shape is {list(body_indices.shape)}, but one index per body is expected"
        refuse_field(problem, "Write each body as its index in `body_roles`.", bodies_name)
    return [int(index) for index in body_indices]


def _read_truths(arrays: Arrays, name: str) -> NDArray[np.bool_] | None:
    # Returns an array of Booleans; None if the file lacks it. Raises `RecordError` for a byte other than 0 and 1.
    truths = arrays.get(name)
    if truths is not None and truths.size and truths.view(np.uint8).max() > 1:
        refuse_field("a Boolean is stored as a byte other than 0 or 1", "Write the array as `bool`.", name)
    return truths


def _read_contacts(arrays: Arrays) -> ContactList | None:
    # Returns the contacts from the arrays `contacts.step`, `contacts.a` and so on, which have one item per contact.
    # Numbers that were not recorded are NaN. Returns None if the file has no contacts.
    # `OF_CONTACTS` names the columns that may be missing.
    columns = {name: arrays[f"contacts.{name}"] for name in CONTACT_COLUMNS if f"contacts.{name}" in arrays}
    if not columns:
        return None
    for name in CONTACT_COLUMNS:
        if name not in columns and name not in OF_CONTACTS:
            refuse_field(f"contacts.{name} is missing", "Write all columns of the contacts, or none.", "contacts")
    if any(values.ndim != 1 for values in columns.values()):
        refuse_field("a column is not a list of numbers", "Write one value per contact.", "contacts")
    for name in ("force_n", "impulse_ns", *OF_CONTACTS):
        values = columns.get(name, np.full_like(columns["force_n"], np.nan))
        columns[name] = np.where(np.isnan(values), np.nan, values)  # all NaNs get the same bits
    records = columns.pop("step")  # index of each contact's record
    return ContactList(record=records, **columns)
