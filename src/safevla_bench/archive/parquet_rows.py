"""Rows of the Parquet form as episodes: each list is checked before it is taken for an array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench.archive import extra_fields
from safevla_bench.archive.arrays import check, read_cover
from safevla_bench.archive.parquet_columns import BODIES, HEADER, REALS
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory import Batch, ContactList, Recording, from_recording

Row = Mapping[str, Any]
"""Column -> Arrow scalar, by the schema in `columns`."""
SAID = (*HEADER.names, "bodies", "records")
"""Columns that hold one value, or one small table, an episode."""
_REMEDY_NULL = "Leave a family out where it was not recorded; only impulse_ns and gripped_body may be null within one."
_REMEDY_WIDTH = "Write the same numbers, in the same order, in every step."
_LAST = {"eef_pos_m": 3, "eef_quat_wxyz": 4, "body_pos_m": 3, "body_quat_wxyz": 4}


def decode(row: Row) -> Batch:
    """One episode from its row.

    Raises `RecordError` naming episode, step, field and remedy; the caller adds file and row.
    """
    try:
        given = _recording(row)
        check(given)
        return from_recording(given)
    except RecordError as error:
        raise error.at(Place(episode=_episode(row))) from None
    except UnicodeDecodeError as error:
        problem = f"a text is not UTF-8 at byte {error.start}"
        raise RecordError(problem, remedy="Write texts in UTF-8.", place=Place(episode=_episode(row))) from None


def _episode(row: Row) -> str | None:
    try:
        name: str | None = row["episode_id"].as_py()
    except UnicodeDecodeError:
        return None
    return name


def _refuse(problem: str, remedy: str, field: str, step: int | None = None) -> NoReturn:
    raise RecordError(problem, remedy=remedy, place=Place(field=field, step=step))


def said(row: Mapping[str, Any]) -> dict[str, object]:
    """What a row says once, as the values of a cover; `row` holds its columns as plain values."""
    given = {n: row[n] for n in HEADER.names if n in row and (row[n] is not None or n == "target_object")}
    if "versions" in given:
        given["versions"] = _object(given["versions"], "versions")
    bodies = [((body or {}).get("name"), (body or {}).get("role")) for body in row["bodies"] or ()]
    return {**given, "body_roles": _object(bodies, "bodies"), "records": row["records"]}


def _recording(row: Row) -> Recording:
    first = read_cover(said({name: row[name].as_py() for name in SAID if name in row}))
    contacts = _contacts(row, first.records)
    text = row["extra"].as_py() if "extra" in row else None
    host_fields = (
        extra_fields.from_text(text.encode(), first.records, len(contacts.record) if contacts else 0) if text else {}
    )
    return Recording(
        header=first.header,
        roles=first.body_roles,
        records=first.records,
        pos_bodies=_places(row, "body_pos_m"),
        quat_bodies=_places(row, "body_quat_wxyz"),
        contacts=contacts,
        gripper_contact=_truths(row),
        gripped=_gripped(row),
        extra=host_fields,
        **{name: _numbers(row, name, depth) for name, depth in REALS.items()},
    )


def _object(pairs: list[tuple[Any, Any]], field: str) -> dict[str, object]:
    """Pairs of name and value as an object; refused where a name is null or repeated."""
    found = dict(pairs)
    if len(found) != len(pairs) or None in found:
        _refuse("a name is null or repeated", "Name each once.", field)
    return found


def _list(row: Row, name: str) -> pa.Array | None:
    """The list of a row, None where the column is absent or null."""
    return row[name].values if name in row and row[name].is_valid else None


def _whole(values: pa.Array, name: str) -> pa.Array:
    if values.null_count:
        _refuse("a value is null", _REMEDY_NULL, name)
    return values


def _array(values: pa.Array, name: str) -> NDArray[Any]:
    found: NDArray[Any] = _whole(values, name).to_numpy(zero_copy_only=False)
    return found


def _numbers(row: Row, name: str, depth: int) -> NDArray[np.float64] | None:
    """A family of numbers, [n, …]; each step holds lists of one shape."""
    values = _list(row, name)
    if values is None:
        return None
    shape = [len(values)]
    for _ in range(depth):
        lengths = _array(_whole(values, name).value_lengths(), name)
        odd = np.flatnonzero(lengths != lengths[0]) if len(lengths) else lengths
        if len(odd):
            step = int(odd[0]) // max(1, len(lengths) // shape[0])
            _refuse(f"{lengths[odd[0]]} values, {lengths[0]} in step 0", _REMEDY_WIDTH, name, step)
        shape.append(int(lengths[0]) if len(lengths) else _LAST.get(name, 0))
        values = values.flatten()
    return _array(values, name).reshape(shape)


def _places(row: Row, family: str) -> list[int]:
    name = BODIES[family]
    values = _list(row, name)
    if (values is None) != (_list(row, family) is None):
        _refuse(f"{family} and {name} go together", "Write both, or neither.", family)
    return [] if values is None else [int(place) for place in _array(values, name)]


def _truths(row: Row) -> NDArray[np.bool_] | None:
    values = _list(row, "gripper_contact")
    return None if values is None else _array(values, "gripper_contact")


def _gripped(row: Row) -> NDArray[np.int64] | None:
    """Places of what is gripped, -1 where null; a place below zero is none."""
    values = _list(row, "gripped_body")
    if values is None:
        return None
    if np.any(values.drop_null().to_numpy() < 0):
        _refuse("a place is negative", "Write a place in bodies, or null where nothing is held.", "gripped_body")
    return np.asarray(values.fill_null(-1).to_numpy(), dtype=np.int64)


def _contacts(row: Row, records: int) -> ContactList | None:
    steps = _list(row, "contacts")
    if steps is None:
        return None
    if len(steps) != records:
        _refuse(f"{len(steps)} steps, expected {records}", "Write a list for each step, empty where none.", "contacts")
    counts = _array(_whole(steps, "contacts").value_lengths(), "contacts")
    a, b, force, impulse = _whole(steps.flatten(), "contacts").flatten()
    known = impulse.drop_null().to_numpy()
    if np.isnan(known).any():
        _refuse("nan is not a finite number", "Write null where it was not recorded.", "contacts.impulse_ns")
    return ContactList(
        record=np.repeat(np.arange(records), counts),
        a=_array(a, "contacts.a").astype(np.int64),
        b=_array(b, "contacts.b").astype(np.int64),
        force_n=_array(force, "contacts.force_n"),
        impulse_ns=np.asarray(impulse.fill_null(np.nan).to_numpy(), dtype=np.float64),
    )
