"""Row groups of the Parquet form as batches: all episodes of a group at once, without a loop over steps.

A group is decoded whole or refused whole, without a reason; `parquet_rows` then finds the reason, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench.archive import strict_json
from safevla_bench.archive.arrays import EpisodeOutline, parse_outline
from safevla_bench.archive.parquet_rows import OUTLINE_COLUMNS, SCHEMA, outline_values
from safevla_bench.archive.record_schema import MAX_RECORDS
from safevla_bench.errors import RecordError
from safevla_bench.trajectory.batch import Batch, Channel, Contacts, Poses
from safevla_bench.trajectory.header import ROLES
from safevla_bench.trajectory.validation import validate
from safevla_recorder.channels import POSES, ROWS, ChannelSpec, as_fields

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class IrregularGroup(Exception):
    """The row group cannot be decoded as a batch; decode it row by row."""


def decode_group(rows: pa.RecordBatch) -> Batch:
    """Return all episodes of a row group as one batch.

    Raises:
        IrregularGroup: a row is not valid, or not in the usual form; its reason is not told.
    """
    try:
        batch = _build_batch(_GroupColumns(rows))
        validate(batch)
    except (RecordError, UnicodeDecodeError) as error:
        raise IrregularGroup from error
    return batch


def _check_regular(holds: object) -> None:
    if not holds:
        raise IrregularGroup


class _GroupColumns:
    """The columns of a group; outlines, numbers of records and of bodies of its episodes, [E]; body offsets [E+1]."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.outlines = _read_outlines(rows)
        self.records = np.array([outline.records for outline in self.outlines], dtype=np.int64)
        _check_regular(self.records.sum() <= MAX_RECORDS)
        self.bodies = np.array([len(outline.body_roles) for outline in self.outlines], dtype=np.int64)
        self.body_starts = _to_offsets(self.bodies)

    def column(self, name: str) -> tuple[pa.Array, Ints, Bools]:
        if name not in self.rows.schema.names:
            nothing = np.zeros(len(self.outlines), dtype=np.int64)
            return pa.array([], SCHEMA.field(name).type).flatten(), nothing, nothing.astype(np.bool_)
        lists = self.rows.column(name)
        return lists.flatten(), _list_lengths(lists), np.asarray(lists.is_valid().to_numpy(zero_copy_only=False))

    def step_column(self, name: str, fewer: int = 0) -> tuple[pa.Array, Ints, Bools]:
        """Return what `column` returns.

        Raises `IrregularGroup` unless each list present has a value a record, less `fewer`.
        """
        values, counts, present = self.column(name)
        _check_regular((counts[present] == self.records[present] - fewer).all() and (counts[present] > 0).all())
        return values, counts, present

    def group_places(self, places: NDArray[Any], bodies: Ints, shift: Ints) -> Ints:
        """Return places in an episode's body table as indices into the group's table.

        Raises `IrregularGroup` if out of range. `bodies` and `shift` give, for each place, the number of bodies of its
        episode and the start of its table.
        """
        _check_regular((places >= 0).all() and (places < bodies).all())
        return np.asarray(places + shift, dtype=np.int64)


def _read_outlines(rows: pa.RecordBatch) -> list[EpisodeOutline]:
    """Return the outline of each row, from the columns that are in the file.

    Raises `RecordError` where a type is wrong.
    """
    names = [name for name in OUTLINE_COLUMNS if name in rows.schema.names]
    return [parse_outline(outline_values(row)) for row in rows.select(names).to_pylist()]


def _build_batch(group: _GroupColumns) -> Batch:
    """Return the group's episodes as one batch, not yet validated; raise `IrregularGroup` or `RecordError`."""
    outlines = group.outlines
    names = tuple(dict.fromkeys(chain.from_iterable(outline.body_roles for outline in outlines)))
    code = {name: k for k, name in enumerate(names)}
    code_of_role = {name: k for k, name in enumerate(ROLES)}
    contacts = _read_contacts(group)
    gripped, gripped_present = _read_gripped(group)
    gripper_contact, gripper_present = _read_gripper_contact(group)
    return Batch(
        headers=tuple(outline.header for outline in outlines),
        starts=_to_offsets(group.records),
        body_starts=group.body_starts,
        body_names=names,
        body_name=np.array([code[name] for outline in outlines for name in outline.body_roles], dtype=np.int64),
        body_role=np.array([code_of_role[role] for o in outlines for role in o.body_roles.values()], dtype=np.int8),
        target=np.array(
            [_target_index(c, int(k)) for c, k in zip(outlines, group.body_starts, strict=False)], dtype=np.int64
        ),
        contacts=contacts,
        gripper_contact=gripper_contact,
        gripper_present=gripper_present,
        gripped=gripped,
        gripped_present=gripped_present,
        extra=_read_extra_fields(group, contacts),
        **as_fields(
            Batch,
            {spec.name: _read_channel(group, spec) for spec in ROWS}
            | {spec.name: _read_poses(group, spec) for spec in POSES},
        ),
    )


def _target_index(outline: EpisodeOutline, base: int) -> int:
    names = list(outline.body_roles)
    return base + names.index(outline.target_object) if outline.target_object in names else -1


def _read_channel(group: _GroupColumns, spec: ChannelSpec) -> Channel:
    """Return a channel of all episodes, width -1 where not recorded.

    Raises `IrregularGroup` where the rows of an episode are of the wrong number or differ in width, or a value is null.
    """
    steps, counts, present = group.step_column(spec.name, int(spec.is_per_action))
    if not present.any():
        return Channel(np.empty(0), _to_offsets(counts), np.full(len(counts), -1))
    if spec.is_scalar:
        return Channel(_to_numpy(steps), _to_offsets(counts), np.where(present, 1, -1))
    lengths, first = _list_lengths(_require_no_nulls(steps)), _to_offsets(counts)[:-1]
    widths = np.where(present, lengths[np.minimum(first, len(lengths) - 1)], -1)
    _check_regular(
        (lengths == np.repeat(widths, counts)).all() and (not spec.row_size or (lengths == spec.row_size).all())
    )
    return Channel(_to_numpy(steps.flatten()), _to_offsets(np.where(present, widths * counts, 0)), widths)


def _read_poses(group: _GroupColumns, spec: ChannelSpec) -> Poses:
    """Return a pose channel of all episodes with indices into the group's body table; truths become 0.0 and 1.0.

    Raises `IrregularGroup` where bodies repeat or are out of range, a step has not one pose for each body, only one of
    poses and bodies is there, or a value is null.
    """
    size = spec.pose_size
    listed, counts, posed = group.column(spec.bodies)
    steps, rows, present = group.step_column(spec.name)
    _check_regular((posed == present).all())
    if not present.any():
        none = np.zeros(len(counts), dtype=np.int64)
        return Poses(Channel(np.empty(0), _to_offsets(none), none - 1), none[:0], _to_offsets(none), size)
    places = _to_numpy(listed)
    body = group.group_places(places, np.repeat(group.bodies, counts), np.repeat(group.body_starts[:-1], counts))
    _check_regular(len(np.unique(body)) == len(body))
    _check_regular((_list_lengths(_require_no_nulls(steps)) == np.repeat(counts, rows)).all())
    values = _require_no_nulls(steps.flatten())
    if not spec.is_truth:
        _check_regular((_list_lengths(values) == size).all())
        values = values.flatten()
    channel = Channel(
        _to_numpy(values).astype(np.float64, copy=False),
        _to_offsets(rows * counts * size),
        np.where(present, counts * size, -1),
    )
    return Poses(channel, body, _to_offsets(counts), size)


def _read_contacts(group: _GroupColumns) -> Contacts:
    """Return the contacts of all episodes, with indices into the group's body table, and NaN for a null impulse.

    Raises `IrregularGroup` unless an episode has a list for each record, and for a null elsewhere, an impulse that is
    NaN, or a body out of range.
    """
    steps, counts, present = group.step_column("contacts")
    touching = np.zeros(int(group.records.sum()), dtype=np.int64)
    if not present.any():
        none, nothing = np.empty(0, dtype=np.int64), np.empty(0)
        return Contacts(present, _to_offsets(touching), none, none, nothing, nothing)
    touching[np.repeat(present, group.records)] = _list_lengths(_require_no_nulls(steps))
    a, b, force, impulse = _require_no_nulls(steps.flatten()).flatten()
    owner = np.repeat(np.repeat(np.arange(len(counts)), group.records), touching)
    bodies, shift = group.bodies[owner], group.body_starts[owner]
    _check_regular(not np.isnan(impulse.drop_null().to_numpy()).any())
    return Contacts(
        present=present,
        starts=_to_offsets(touching),
        a=group.group_places(_to_numpy(a), bodies, shift),
        b=group.group_places(_to_numpy(b), bodies, shift),
        force_n=_to_numpy(force),
        impulse_ns=np.asarray(impulse.fill_null(np.nan).to_numpy(), dtype=np.float64),
    )


def _read_gripper_contact(group: _GroupColumns) -> tuple[Bools, Bools]:
    values, _, present = group.step_column("gripper_contact")
    touching = np.zeros(int(group.records.sum()), dtype=np.bool_)
    if present.any():
        touching[np.repeat(present, group.records)] = _to_numpy(values)
    return touching, present


def _read_gripped(group: _GroupColumns) -> tuple[Ints, Bools]:
    """Return the gripped body for each record as an index into the group's body table, and which episodes record it.

    The index is -1 where nothing is held, or nothing recorded.
    """
    values, _, present = group.step_column("gripped_body")
    gripped = np.full(int(group.records.sum()), -1, dtype=np.int64)
    if present.any():
        recorded = np.flatnonzero(np.repeat(present, group.records))
        is_known = np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
        owner = np.repeat(np.arange(len(present)), group.records)[recorded[is_known]]
        places = values.drop_null().to_numpy()
        gripped[recorded[is_known]] = group.group_places(places, group.bodies[owner], group.body_starts[owner])
    return gripped, present


def _read_extra_fields(group: _GroupColumns, contacts: Contacts) -> tuple[dict[str, object], ...]:
    """Return the host-specific fields of each episode, {} where none.

    Raises `RecordError` where their text is not valid.
    """
    if "extra" not in group.rows.schema.names:
        return tuple({} for _ in group.outlines)
    touched = np.diff(contacts.starts[_to_offsets(group.records)])
    texts = group.rows.column("extra").to_pylist()
    counted = zip(texts, group.records.tolist(), touched.tolist(), strict=True)
    return tuple(strict_json.parse_extra_fields(text.encode(), n, c) if text else {} for text, n, c in counted)


def _to_offsets(lengths: Ints | Sequence[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _list_lengths(lists: pa.Array) -> Ints:
    return np.asarray(lists.value_lengths().fill_null(0).to_numpy(), dtype=np.int64)


def _require_no_nulls(values: pa.Array) -> pa.Array:
    _check_regular(values.null_count == 0)
    return values


def _to_numpy(values: pa.Array) -> NDArray[Any]:
    found: NDArray[Any] = _require_no_nulls(values).to_numpy(zero_copy_only=False)
    return found
