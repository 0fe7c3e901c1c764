"""One episode between a `Batch` and plain arrays: what the binary forms store, and how far a stranger's is trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from safevla_bench.archive.limits import MAX_RECORDS
from safevla_bench.archive.record_schema import Role
from safevla_bench.archive.strict_json import mistyped
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory import Batch, Channel, ContactList, Header, Poses, Recording

_HEADER_FIELDS = Header.__struct_fields__


class Cover(Header, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a binary form says of an episode before its arrays: the header, the bodies, the number of records."""

    body_roles: dict[str, Role]
    records: Annotated[int, Meta(ge=1, le=MAX_RECORDS)]

    @property
    def header(self) -> Header:
        """The header alone."""
        return Header(**{name: getattr(self, name) for name in _HEADER_FIELDS})


def cover(batch: Batch, index: int) -> dict[str, object]:
    """The cover of one episode as plain values; optional fields that are not given are left out."""
    header = msgspec.structs.asdict(batch.headers[index])
    given = {name: value for name, value in header.items() if value is not None or name == "target_object"}
    return {**given, "body_roles": batch.bodies(index), "records": int(batch.lengths[index])}


def read_cover(tree: Mapping[str, object]) -> Cover:
    """The cover of plain values; `RecordError` where a type is wrong."""
    try:
        return msgspec.convert(tree, Cover)
    except msgspec.ValidationError as error:
        raise mistyped(error, tree) from None


def recording(batch: Batch, index: int) -> Recording:
    """One episode of a batch as plain arrays: what `from_recording` turns into the same bits."""
    first, last = int(batch.starts[index]), int(batch.starts[index + 1])
    records, base = last - first, int(batch.body_starts[index])
    pos_bodies, body_pos = _poses(batch.body_pos_m, index, records, base)
    quat_bodies, body_quat = _poses(batch.body_quat_wxyz, index, records, base)
    gripped = batch.gripped[first:last]
    return Recording(
        header=batch.headers[index],
        roles=batch.bodies(index),
        records=records,
        eef_pos_m=_rows(batch.eef_pos_m, index, records),
        eef_quat_wxyz=_rows(batch.eef_quat_wxyz, index, records),
        pos_bodies=pos_bodies,
        body_pos_m=body_pos,
        quat_bodies=quat_bodies,
        body_quat_wxyz=body_quat,
        contacts=_contacts(batch, index) if batch.contacts.present[index] else None,
        joint_torque_nm=_rows(batch.joint_torque_nm, index, records),
        gripper_contact=batch.gripper_contact[first:last] if batch.gripper_present[index] else None,
        gripped=np.where(gripped >= 0, gripped - base, -1) if batch.gripped_present[index] else None,
        action=_rows(batch.action, index, records - 1),
        sim_state=_rows(batch.sim_state, index, records),
        extra=batch.extra[index],
    )


def _rows(channel: Channel, index: int, rows: int) -> NDArray[np.float64] | None:
    width = int(channel.width[index])
    return None if width < 0 else channel.episode(index).reshape(rows, width)


def _poses(poses: Poses, index: int, records: int, base: int) -> tuple[list[int], NDArray[np.float64] | None]:
    if not poses.present[index]:
        return [], None
    body, rows = poses.episode(index)
    return (body - base).tolist(), rows.reshape(records, len(body), poses.size)


def _contacts(batch: Batch, index: int) -> ContactList:
    contacts, base = batch.contacts, int(batch.body_starts[index])
    starts = contacts.starts[batch.starts[index] : batch.starts[index + 1] + 1]
    own = slice(int(starts[0]), int(starts[-1]))
    return ContactList(
        record=np.repeat(np.arange(len(starts) - 1), np.diff(starts)),
        a=contacts.a[own] - base,
        b=contacts.b[own] - base,
        force_n=contacts.force_n[own],
        impulse_ns=contacts.impulse_ns[own],
    )


def check(given: Recording) -> None:
    """Refuse arrays that do not fit together, before anything is computed from them; values are judged afterwards.

    Raises `RecordError` naming the field.
    """
    for problem, field in _misfits(given):
        remedy = "Write each family once a record, bodies by their place in body_roles, counted from 0."
        raise RecordError(problem, remedy=remedy, place=Place(episode=given.header.episode_id, field=field))


_SHAPES: Mapping[str, tuple[str | int, ...]] = {
    "eef_pos_m": ("n", 3),
    "eef_quat_wxyz": ("n", 4),
    "body_pos_m": ("n", "pos_bodies", 3),
    "body_quat_wxyz": ("n", "quat_bodies", 4),
    "joint_torque_nm": ("n", "any"),
    "gripper_contact": ("n",),
    "gripped": ("n",),
    "action": ("n-1", "any"),
    "sim_state": ("n", "any"),
}


def _misfits(given: Recording) -> Iterator[tuple[str, str]]:
    sizes = {"n": given.records, "n-1": given.records - 1}
    sizes |= {"pos_bodies": len(given.pos_bodies), "quat_bodies": len(given.quat_bodies)}
    for name, symbols in _SHAPES.items():
        array: NDArray[Any] | None = getattr(given, name)
        if array is not None and not _fits(array.shape, symbols, sizes):
            expected = [sizes.get(one, one) if isinstance(one, str) else one for one in symbols]
            yield f"the shape is {list(array.shape)}, expected [{', '.join(map(str, expected))}]", name
    if given.action is not None and given.records == 1:
        yield "a single record has no action", "action"
    for name in ("pos_bodies", "quat_bodies"):
        yield from _foreign(np.asarray(getattr(given, name), dtype=np.int64), 0, len(given.roles), name)
        if len(set(getattr(given, name))) != len(getattr(given, name)):
            yield "a body is repeated", name
    if given.gripped is not None:
        yield from _foreign(given.gripped, -1, len(given.roles), "gripped_body")
    if given.contacts is not None:
        yield from _contact_misfits(given.contacts, given.records, len(given.roles))


def _fits(shape: tuple[int, ...], symbols: tuple[str | int, ...], sizes: Mapping[str, int]) -> bool:
    wanted = [sizes.get(one) if isinstance(one, str) else one for one in symbols]
    return len(shape) == len(wanted) and all(w is None or w == s for w, s in zip(wanted, shape, strict=True))


def _contact_misfits(contacts: ContactList, records: int, bodies: int) -> Iterator[tuple[str, str]]:
    columns = (contacts.record, contacts.a, contacts.b, contacts.force_n, contacts.impulse_ns)
    if any(column.shape != (len(contacts.record),) for column in columns):
        yield "the columns differ in length", "contacts"
        return
    yield from _foreign(contacts.record, 0, records, "contacts.step")
    yield from _foreign(contacts.a, 0, bodies, "contacts.a")
    yield from _foreign(contacts.b, 0, bodies, "contacts.b")
    if np.any(np.diff(contacts.record) < 0):
        yield "the contacts are not in the order of their steps", "contacts.step"


def _foreign(places: NDArray[np.int64], low: int, end: int, field: str) -> Iterator[tuple[str, str]]:
    bad = places[(places < low) | (places >= end)]
    if len(bad):
        yield f"{int(bad[0])} is not between {low} and {end - 1}", field
