"""NumPy archives (`.npz`): one episode a file, plain arrays only, nothing pickled.

`header` and `extra` are JSON texts as UTF-8 bytes; `header` holds all that an episode says once, `body_roles`, the
number of `records` and the names of the other `arrays`, so that one that was lost does not look as if never recorded.
Arrays have the names, shapes and units of the record; bodies are places in `body_roles`:

    eef_pos_m [n,3]  eef_quat_wxyz [n,4]  joint_torque_nm [n,J]  gripper_contact [n]  action [n-1,A]  sim_state [n,S]
    body_pos_m [n,P,3] of pos_bodies [P]    body_quat_wxyz [n,Q,4] of quat_bodies [Q]
    gripped_body [n], -1 = nothing    contacts.step, .a, .b, .force_n, .impulse_ns [C], impulse_ns NaN = not recorded

A family that was not recorded has no array. The zip holds no time of day: same episode, same bytes.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from safevla_bench import npy
from safevla_bench.archive import extra_fields
from safevla_bench.archive.arrays import check, cover, read_cover, recording
from safevla_bench.archive.limits import REMEDY_BROKEN, check_size
from safevla_bench.archive.selection import Sieve
from safevla_bench.archive.strict_json import episode_of, parse
from safevla_bench.errors import DamageError, Place, RecordError
from safevla_bench.trajectory import Batch, ContactList, Recording, from_recording

SUFFIX = ".npz"
Arrays = Mapping[str, NDArray[Any]]
_NPY_HEADERS = 1 << 13
"""More than what NumPy writes before the numbers of all arrays."""
_MIDNIGHT = (1980, 1, 1, 0, 0, 0)
_TEXT, _REAL, _PLACES, _TRUTH = (np.dtype(code) for code in ("|u1", "<f8", "<i8", "|b1"))
_REALS = ("eef_pos_m", "eef_quat_wxyz", "body_pos_m", "body_quat_wxyz", "joint_torque_nm", "action", "sim_state")
_CONTACTS = {"step": _PLACES, "a": _PLACES, "b": _PLACES, "force_n": _REAL, "impulse_ns": _REAL}
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "header": _TEXT,
    **dict.fromkeys(_REALS, _REAL),
    "pos_bodies": _PLACES,
    "quat_bodies": _PLACES,
    **{f"contacts.{column}": dtype for column, dtype in _CONTACTS.items()},
    "gripper_contact": _TRUTH,
    "gripped_body": _PLACES,
    "extra": _TEXT,
}
"""Every array there may be, in the order of the file."""


def encode(batch: Batch, index: int = 0) -> bytes:
    """One episode of a batch as the bytes of an `.npz` file."""
    sink = io.BytesIO()
    arrays = _arrays(batch, index)
    check_size(sum(array.nbytes for array in arrays.values()) + _NPY_HEADERS, "the episode")
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, dtype in _DTYPES.items():
            if name in arrays:
                member = zipfile.ZipInfo(f"{name}.npy", _MIDNIGHT)
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, _npy(np.ascontiguousarray(arrays[name], dtype=dtype)))
    return sink.getvalue()


def _npy(array: NDArray[Any]) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array(sink, array, version=(1, 0), allow_pickle=False)
    return sink.getvalue()


def _arrays(batch: Batch, index: int) -> dict[str, NDArray[Any]]:
    given = recording(batch, index)
    optional: dict[str, object] = {name: getattr(given, name) for name in _REALS}
    optional |= {"gripper_contact": given.gripper_contact, "gripped_body": given.gripped}
    optional["pos_bodies"] = given.pos_bodies if given.body_pos_m is not None else None
    optional["quat_bodies"] = given.quat_bodies if given.body_quat_wxyz is not None else None
    if given.contacts:
        optional |= {f"contacts.{column}": getattr(given.contacts, _attribute(column)) for column in _CONTACTS}
    optional["extra"] = _text(extra_fields.to_text(given.extra)) if given.extra else None
    arrays = {name: np.asarray(value) for name, value in optional.items() if value is not None}
    said = {**cover(batch, index), "arrays": sorted(arrays)}
    return {"header": _text(json.dumps(said, ensure_ascii=False, allow_nan=False)), **arrays}


def _attribute(column: str) -> str:
    return "record" if column == "step" else column


def _text(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def read(path: Path, sieve: Sieve) -> Iterator[Batch | RecordError]:
    """The episode of one file, or the error of it."""
    if not sieve.take():
        return
    place = Place(file=str(path))
    with path.open("rb") as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                yield _decode({name: _array(archive, member, name) for name, member in _members(archive).items()})
        except RecordError as error:
            yield error.at(place)
        except _DAMAGED as error:
            yield DamageError(f"cannot be read: {error}", episodes=1, remedy=REMEDY_BROKEN, place=place)


_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, struct.error, NotImplementedError, ValueError)
"""What zipfile raises for a damaged file: OSError where it is sent to a place that there is none of."""


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The arrays of a file, by name; refused where they are repeated, unknown, encrypted or too large together."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in members:
            _refuse(f"the array {name!r} is repeated", "Write each array once.", name)
        if name not in _DTYPES:
            _refuse(f"{name!r} is no array of a record", "Put host-specific fields into `extra`, as JSON.", name)
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            _refuse("encrypted, or compressed in an unusual way", "Write it with numpy.savez_compressed.", name)
        members[name] = member
    check_size(sum(member.file_size for member in members.values()), "the file")
    return members


def _refuse(problem: str, remedy: str, field: str) -> NoReturn:
    raise RecordError(problem, remedy=remedy, place=Place(field=field))


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    """One array. Its size is checked against its bytes, so that a header cannot ask for memory that nothing fills."""
    content = archive.read(member)
    head = npy.head(content)
    if not head:
        _refuse("not a plain array of NumPy", "Write it with numpy.savez.", name)
    if head.descr != _DTYPES[name].str:
        _refuse(f"the type is {head.descr}, expected {_DTYPES[name].str}", f"Write it as {_DTYPES[name].name}.", name)
    held = len(content) - head.end
    if math.prod(head.shape) * _DTYPES[name].itemsize != held:
        _refuse(f"the shape {list(head.shape)} does not fit {held} bytes", REMEDY_BROKEN, name)
    flat = np.frombuffer(content, dtype=_DTYPES[name], offset=head.end)
    return flat.reshape(head.shape, order="F" if head.order == "F" else "C")


def _decode(arrays: Arrays) -> Batch:
    tree = parse(_bytes(arrays, "header"))
    try:
        given = _recording(arrays, tree)
        check(given)
        return from_recording(given)
    except RecordError as error:
        raise error.at(Place(episode=episode_of(tree))) from None


def _bytes(arrays: Arrays, name: str) -> bytes:
    if name not in arrays:
        _refuse(f"the array {name!r} is missing", "Write it: the header as JSON, in UTF-8 bytes.", name)
    return arrays[name].tobytes()


def _recording(arrays: Arrays, tree: Mapping[str, object]) -> Recording:
    _check_complete(arrays, tree.get("arrays"))
    first = read_cover({name: value for name, value in tree.items() if name != "arrays"})
    contacts = _contacts(arrays)
    count = len(contacts.record) if contacts else 0
    return Recording(
        header=first.header,
        roles=first.body_roles,
        records=first.records,
        pos_bodies=_bodies(arrays, "body_pos_m", "pos_bodies"),
        quat_bodies=_bodies(arrays, "body_quat_wxyz", "quat_bodies"),
        contacts=contacts,
        gripper_contact=_truths(arrays),
        gripped=arrays.get("gripped_body"),
        extra=extra_fields.from_text(_bytes(arrays, "extra"), first.records, count) if "extra" in arrays else {},
        **{name: arrays.get(name) for name in _REALS},
    )


def _check_complete(arrays: Arrays, named: object) -> None:
    there = sorted(arrays.keys() - {"header"})
    if named != there:
        _refuse(f"the file holds {', '.join(there)}, the header names others", REMEDY_BROKEN, "header.arrays")


def _bodies(arrays: Arrays, family: str, name: str) -> list[int]:
    if (family in arrays) != (name in arrays):
        _refuse(f"{family} and {name} go together", "Write both, or neither.", family)
    places = arrays.get(name, np.empty(0, dtype=_PLACES))
    if places.ndim != 1:
        _refuse(f"the shape is {list(places.shape)}, expected one number a body", "Write places in body_roles.", name)
    return [int(place) for place in places]


def _truths(arrays: Arrays) -> NDArray[np.bool_] | None:
    """A byte that is neither 0 nor 1 is no truth value, though NumPy takes it for one."""
    given = arrays.get("gripper_contact")
    if given is not None and given.size and given.view(np.uint8).max() > 1:
        _refuse("a byte is neither 0 nor 1", "Write the array as bool.", "gripper_contact")
    return given


def _contacts(arrays: Arrays) -> ContactList | None:
    columns = {_attribute(column): arrays.get(f"contacts.{column}") for column in _CONTACTS}
    lacking = [column for column, values in columns.items() if values is None]
    if len(lacking) == len(columns):
        return None
    if lacking:
        name = "step" if lacking[0] == "record" else lacking[0]
        _refuse(f"contacts.{name} is missing", "Write all columns of the contacts, or none.", "contacts")
    found = {column: values for column, values in columns.items() if values is not None}
    if any(values.ndim != 1 for values in found.values()):
        _refuse("a column is no list of numbers", "Write one value a contact.", "contacts")
    found["impulse_ns"] = np.where(np.isnan(found["impulse_ns"]), np.nan, found["impulse_ns"])  # one NaN in all forms
    return ContactList(**found)
