"""Row groups of the Parquet form as batches: all episodes of a group at once, without a loop over steps.

Here a group is taken whole or refused whole, without saying what is wrong; `rows` then says it, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench.archive import extra_fields
from safevla_bench.archive.arrays import Cover, read_cover
from safevla_bench.archive.limits import MAX_RECORDS
from safevla_bench.archive.parquet_columns import BODIES, SCHEMA
from safevla_bench.archive.parquet_rows import SAID, said
from safevla_bench.errors import RecordError
from safevla_bench.trajectory import Batch, Channel, Contacts, Poses, validate
from safevla_bench.trajectory.header import ROLES

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Odd(Exception):
    """A row of the group does not fit the others' way of reading."""


def decode(rows: pa.RecordBatch) -> Batch:
    """All episodes of a group as one batch.

    Raises:
        Odd: a row is not valid, or not in the usual form.
    """
    try:
        batch = _batch(_Group(rows))
        validate(batch)
    except (RecordError, UnicodeDecodeError) as error:
        raise Odd from error
    return batch


def _require(holds: object) -> None:
    if not holds:
        raise Odd


class _Group:
    """The columns of a group and what all of them need: covers, offsets of records [E+1] and of bodies [E+1]."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.covers = _covers(rows)
        self.records = np.array([cover.records for cover in self.covers], dtype=np.int64)
        _require(self.records.sum() <= MAX_RECORDS)
        self.bodies = np.array([len(cover.body_roles) for cover in self.covers], dtype=np.int64)
        self.body_starts = _offsets(self.bodies)

    def column(self, name: str) -> tuple[pa.Array, Ints, Bools]:
        """The lists of a column end to end, how long each is [E], and which are there [E]."""
        if name not in self.rows.schema.names:
            nothing = np.zeros(len(self.covers), dtype=np.int64)
            return pa.array([], SCHEMA.field(name).type).flatten(), nothing, nothing.astype(np.bool_)
        lists = self.rows.column(name)
        return lists.flatten(), _lengths(lists), np.asarray(lists.is_valid().to_numpy(zero_copy_only=False))

    def of_steps(self, name: str, fewer: int = 0) -> tuple[pa.Array, Ints, Bools]:
        """A column with a value a record, or one fewer."""
        values, counts, present = self.column(name)
        _require((counts[present] == self.records[present] - fewer).all() and (counts[present] > 0).all())
        return values, counts, present

    def places(self, places: NDArray[Any], bodies: Ints, shift: Ints) -> Ints:
        """Places in an episode's table as indices into the group's; each has so many bodies and starts there."""
        _require((places >= 0).all() and (places < bodies).all())
        return np.asarray(places + shift, dtype=np.int64)


def _covers(rows: pa.RecordBatch) -> list[Cover]:
    names = [name for name in SAID if name in rows.schema.names]
    return [read_cover(said(row)) for row in rows.select(names).to_pylist()]


def _batch(group: _Group) -> Batch:
    covers = group.covers
    names = tuple(dict.fromkeys(chain.from_iterable(cover.body_roles for cover in covers)))
    code, role = {name: k for k, name in enumerate(names)}, {name: k for k, name in enumerate(ROLES)}
    contacts = _contacts(group)
    held, held_present = _gripped(group)
    touching, touching_present = _touching(group)
    return Batch(
        headers=tuple(cover.header for cover in covers),
        starts=_offsets(group.records),
        body_starts=group.body_starts,
        body_names=names,
        body_name=np.array([code[name] for cover in covers for name in cover.body_roles], dtype=np.int64),
        body_role=np.array([role[one] for cover in covers for one in cover.body_roles.values()], dtype=np.int8),
        target=np.array([_target(c, int(k)) for c, k in zip(covers, group.body_starts, strict=False)], dtype=np.int64),
        eef_pos_m=_rows(group, "eef_pos_m", width=3),
        eef_quat_wxyz=_rows(group, "eef_quat_wxyz", width=4),
        body_pos_m=_poses(group, "body_pos_m", 3),
        body_quat_wxyz=_poses(group, "body_quat_wxyz", 4),
        contacts=contacts,
        joint_torque_nm=_rows(group, "joint_torque_nm"),
        gripper_contact=touching,
        gripper_present=touching_present,
        gripped=held,
        gripped_present=held_present,
        action=_rows(group, "action", fewer=1),
        sim_state=_rows(group, "sim_state"),
        extra=_extra(group, contacts),
    )


def _target(cover: Cover, base: int) -> int:
    names = list(cover.body_roles)
    return base + names.index(cover.target_object) if cover.target_object in names else -1


def _rows(group: _Group, name: str, width: int | None = None, fewer: int = 0) -> Channel:
    steps, counts, present = group.of_steps(name, fewer)
    if not present.any():
        return Channel(np.empty(0), _offsets(counts), np.full(len(counts), -1))
    lengths, first = _lengths(_whole(steps)), _offsets(counts)[:-1]
    widths = np.where(present, lengths[np.minimum(first, len(lengths) - 1)], -1)
    _require((lengths == np.repeat(widths, counts)).all() and (width is None or (lengths == width).all()))
    return Channel(_numbers(steps.flatten()), _offsets(np.where(present, widths * counts, 0)), widths)


def _poses(group: _Group, name: str, size: int) -> Poses:
    listed, counts, posed = group.column(BODIES[name])
    steps, rows, present = group.of_steps(name)
    _require((posed == present).all())
    if not present.any():
        none = np.zeros(len(counts), dtype=np.int64)
        return Poses(Channel(np.empty(0), _offsets(none), none - 1), none[:0], _offsets(none), size)
    places = _numbers(listed)
    body = group.places(places, np.repeat(group.bodies, counts), np.repeat(group.body_starts[:-1], counts))
    _require(len(np.unique(body)) == len(body))
    _require((_lengths(_whole(steps)) == np.repeat(counts, rows)).all())
    each = _whole(steps.flatten())
    _require((_lengths(each) == size).all())
    channel = Channel(_numbers(each.flatten()), _offsets(rows * counts * size), np.where(present, counts * size, -1))
    return Poses(channel, body, _offsets(counts), size)


def _contacts(group: _Group) -> Contacts:
    steps, counts, present = group.of_steps("contacts")
    touching = np.zeros(int(group.records.sum()), dtype=np.int64)
    if not present.any():
        none, nothing = np.empty(0, dtype=np.int64), np.empty(0)
        return Contacts(present, _offsets(touching), none, none, nothing, nothing)
    touching[np.repeat(present, group.records)] = _lengths(_whole(steps))
    a, b, force, impulse = _whole(steps.flatten()).flatten()
    owner = np.repeat(np.repeat(np.arange(len(counts)), group.records), touching)
    bodies, shift = group.bodies[owner], group.body_starts[owner]
    _require(not np.isnan(impulse.drop_null().to_numpy()).any())
    return Contacts(
        present=present,
        starts=_offsets(touching),
        a=group.places(_numbers(a), bodies, shift),
        b=group.places(_numbers(b), bodies, shift),
        force_n=_numbers(force),
        impulse_ns=np.asarray(impulse.fill_null(np.nan).to_numpy(), dtype=np.float64),
    )


def _touching(group: _Group) -> tuple[Bools, Bools]:
    values, _, present = group.of_steps("gripper_contact")
    touching = np.zeros(int(group.records.sum()), dtype=np.bool_)
    if present.any():
        touching[np.repeat(present, group.records)] = _numbers(values)
    return touching, present


def _gripped(group: _Group) -> tuple[Ints, Bools]:
    values, _, present = group.of_steps("gripped_body")
    held = np.full(int(group.records.sum()), -1, dtype=np.int64)
    if present.any():
        recorded = np.flatnonzero(np.repeat(present, group.records))
        known = np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
        owner = np.repeat(np.arange(len(present)), group.records)[recorded[known]]
        places = values.drop_null().to_numpy()
        held[recorded[known]] = group.places(places, group.bodies[owner], group.body_starts[owner])
    return held, present


def _extra(group: _Group, contacts: Contacts) -> tuple[dict[str, object], ...]:
    if "extra" not in group.rows.schema.names:
        return tuple({} for _ in group.covers)
    touched = np.diff(contacts.starts[_offsets(group.records)])
    texts = group.rows.column("extra").to_pylist()
    counted = zip(texts, group.records.tolist(), touched.tolist(), strict=True)
    return tuple(extra_fields.from_text(text.encode(), n, c) if text else {} for text, n, c in counted)


def _offsets(lengths: Ints | Sequence[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _lengths(lists: pa.Array) -> Ints:
    """How long each list is, 0 where null."""
    return np.asarray(lists.value_lengths().fill_null(0).to_numpy(), dtype=np.int64)


def _whole(values: pa.Array) -> pa.Array:
    _require(values.null_count == 0)
    return values


def _numbers(values: pa.Array) -> NDArray[Any]:
    found: NDArray[Any] = _whole(values).to_numpy(zero_copy_only=False)
    return found
