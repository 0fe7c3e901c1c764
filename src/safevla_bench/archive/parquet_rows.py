"""Conversion of batches to and from Arrow tables with the columns of the Parquet format; one row is one episode.

The columns are the header's fields, `bodies` (names and roles), `records` (the number of records), and the channels as
nested lists over the steps, in the units of the channels. Null means not recorded. Other columns refer to a body by its
index in `bodies`, from 0; `pos_bodies`, `quat_bodies` and `valid_bodies` list the bodies of a channel's rows. With
several arms, a grip channel is one flat list: all arms of record 0, then all arms of record 1, and so on. Maps of texts
are lists of pairs (`key`, `value`); older files have Arrow maps. `extra` holds host-specific fields as JSON. A file has
a column for a rare channel only if an episode of the file has the channel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import (
    EpisodeOutline,
    check_places,
    check_posed_bodies,
    check_shape,
    convert_tree,
    parse_extra_fields,
    refuse_field,
)
from safevla_bench.errors import RecordError
from safevla_bench.trajectory.batch import Batch, Channel, Contacts, Poses, absent_channel, batch_channels, offsets_of
from safevla_bench.trajectory.header import ROLES, Header
from safevla_bench.trajectory.single_episode import validate
from safevla_recorder import channels

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
LIST_DEPTHS: Mapping[str, int] = {spec.name: len(spec.shape) for spec in channels.NUMERIC}
_VALUE_TYPES = {channels.REAL: pa.float64(), channels.TRUTH: pa.bool_(), channels.PLACE: pa.int32()}
_CONTACT = pa.struct([("a", pa.int32()), ("b", pa.int32()), ("force_n", pa.float64()), ("impulse_ns", pa.float64())])


def _nest_list(kind: pa.DataType, depth: int) -> pa.DataType:
    return kind if depth == 0 else pa.list_(_nest_list(kind, depth - 1))


def _channel_field(spec: channels.ChannelSpec) -> pa.Field:
    return pa.field(spec.name, _nest_list(_VALUE_TYPES[spec.dtype], LIST_DEPTHS[spec.name]))


def list_pairs(value: pa.DataType) -> pa.DataType:
    """Return the type of a column of named values: a list of pairs, as Hugging Face's `datasets` cannot read maps."""
    return pa.list_(pa.struct([("key", pa.string()), ("value", value)]))


def pair_values(values: Mapping[str, object]) -> list[dict[str, object]]:
    """Return a mapping as the list of pairs that a column of the type `list_pairs` stores."""
    return [{"key": key, "value": value} for key, value in values.items()]


_TEXT_MAPS = ("versions", "task_source", "arm_bodies")
_HEADER_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("schema_version", "seed", "env_seed", "init_state_index", "horizon"), pa.int64()),
    "success": pa.bool_(),
    "dt": pa.float64(),
    "joint_torque_limit_nm": pa.list_(pa.float64()),
    **dict.fromkeys(_TEXT_MAPS, list_pairs(pa.string())),
    "dropped_pairs": _nest_list(pa.string(), 2),
    **dict.fromkeys(("forces", "arms"), pa.list_(pa.string())),
    "arm_joints": pa.list_(pa.int64()),
}
GEOMETRY = "geometry"
"""Rare header field whose text is the same in many episodes: a row group stores each distinct text once."""
RARE_FIELDS = (GEOMETRY, "arms", "arm_joints", "arm_bodies")
"""Header fields that have a column in a file only if an episode of the file has the field."""
HEADER = pa.schema([(name, _HEADER_TYPES.get(name, pa.string())) for name in Header.__struct_fields__])
SCHEMA = pa.schema(
    [
        *HEADER,
        pa.field("bodies", pa.list_(pa.struct([("name", pa.string()), ("role", pa.string())]))),
        pa.field("records", pa.int64()),
        *(_channel_field(spec) for spec in channels.NUMERIC if not spec.is_grip),
        *(pa.field(spec.bodies, pa.list_(pa.int32())) for spec in channels.POSES),
        pa.field("contacts", _nest_list(_CONTACT, 2)),
        *(pa.field(name, _nest_list(pa.float64(), 2)) for name in channels.OF_CONTACTS),
        *(_channel_field(spec) for spec in channels.NUMERIC if spec.is_grip),
        pa.field("extra", pa.string()),
    ]
)
FORMER_TYPES = dict.fromkeys(_TEXT_MAPS, pa.map_(pa.string(), pa.string()))
"""Maps a column's name to the column's type in older files, which can still be read."""
_RARE = [spec for spec in channels.NUMERIC if spec.is_rare]
"""Channels that have a column in a file only if an episode of the file has the channel."""


def rare_channels(batch: Batch) -> frozenset[str]:
    """Return the names of the rare channels that at least one episode of the batch has."""
    rare = {spec.name for spec in _RARE if batch.numbers(spec).present.any()}
    rare |= {name for name in channels.OF_CONTACTS if _has_column(batch, name).any()}
    rare |= {n for n in RARE_FIELDS if any(getattr(header, n) is not None for header in batch.headers)}
    return frozenset(rare)


def table_schema(rare: frozenset[str]) -> pa.Schema:
    """Return `SCHEMA` without the columns of the rare channels that are not in `rare`."""
    left_out = {column for spec in _RARE if spec.name not in rare for column in (spec.name, spec.bodies)}
    left_out |= {*channels.OF_CONTACTS, *RARE_FIELDS} - rare
    return pa.schema([field for field in SCHEMA if field.name not in left_out])


def to_table(batch: Batch, schema: pa.Schema | None = None) -> pa.Table:
    """Return all episodes of a batch as a table, one row each, with the columns of `schema`. Without a schema, the
    table has the column of a rare channel only if an episode has the channel.
    """
    columns: dict[str, pa.Array] = {name: _header_column(batch, name) for name in HEADER.names}
    bodies = [[{"name": n, "role": r} for n, r in batch.body_roles(e).items()] for e in range(len(batch))]
    columns["bodies"] = pa.array(bodies, SCHEMA.field("bodies").type)
    columns["records"] = pa.array(batch.lengths)
    for spec in channels.ROWS:
        columns[spec.name] = _row_column(batch.channel(spec.name), spec, batch.lengths - spec.is_per_action)
    for spec in channels.POSES:
        poses = batch.poses(spec.name)
        counts = np.diff(poses.body_starts)
        places = pa.array(poses.body - np.repeat(batch.body_starts[:-1], counts), pa.int32())
        columns[spec.name] = _pose_column(poses, spec, batch.lengths)
        columns[spec.bodies] = _list_array(places, counts, poses.present)
    columns |= _contact_columns(batch)
    texts = [json.dumps(extra, ensure_ascii=False, allow_nan=False) if extra else None for extra in batch.extra]
    columns["extra"] = pa.array(texts, pa.string())
    schema = schema or table_schema(rare_channels(batch))
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _header_column(batch: Batch, name: str) -> pa.Array:
    values = [getattr(header, name) for header in batch.headers]
    if name in _TEXT_MAPS:
        values = [None if value is None else pair_values(value) for value in values]
    return pa.array(values, HEADER.field(name).type)


def _list_array(values: pa.Array, lengths: Ints, present: Bools | None = None) -> pa.Array:
    offsets = pa.array(offsets_of(lengths), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=None if present is None else pa.array(~present))


def _to_arrow(values: NDArray[np.float64], spec: channels.ChannelSpec) -> pa.Array:
    nothing = values < 0 if spec.dtype == channels.PLACE else None
    return pa.array(values.astype(spec.dtype, copy=False), _VALUE_TYPES[spec.dtype], mask=nothing)


def _row_column(channel: Channel, spec: channels.ChannelSpec, steps: Ints) -> pa.Array:
    rows = np.where(channel.present, steps, 0)
    if spec.is_scalar:  # a row has one number per arm
        return _list_array(_to_arrow(channel.values, spec), rows * np.maximum(channel.width, 0), channel.present)
    width = np.repeat(np.maximum(channel.width, 0), rows)
    return _list_array(_list_array(_to_arrow(channel.values, spec), width), rows, channel.present)


def _pose_column(poses: Poses, spec: channels.ChannelSpec, steps: Ints) -> pa.Array:
    rows = np.where(poses.present, steps, 0)
    bodies = np.repeat(np.diff(poses.body_starts), rows)
    values = _to_arrow(poses.channel.values, spec)
    if spec.row_size:
        values = _list_array(values, np.full(int(bodies.sum()), poses.size))
    return _list_array(_list_array(values, bodies), rows, poses.present)


def _has_column(batch: Batch, name: str) -> Bools:
    if name == channels.NET_FORCE:
        listed = np.array([channels.NET_FORCE in header.recorded_forces for header in batch.headers], dtype=np.bool_)
        return batch.contacts.present & listed
    known = offsets_of((~np.isnan(getattr(batch.contacts, name))).astype(np.int64))
    return np.diff(known[batch.contacts.starts][batch.starts]) > 0


def _contact_columns(batch: Batch) -> dict[str, pa.Array]:
    contacts = batch.contacts
    counts = np.diff(contacts.starts)
    base = np.repeat(np.repeat(batch.body_starts[:-1], batch.lengths), counts)
    columns = [
        pa.array(contacts.a - base, pa.int32()),
        pa.array(contacts.b - base, pa.int32()),
        pa.array(contacts.force_n),
        pa.array(contacts.impulse_ns, mask=np.isnan(contacts.impulse_ns)),
    ]
    listed = {"contacts": (pa.StructArray.from_arrays(columns, fields=list(_CONTACT)), contacts.present)}
    for name in channels.OF_CONTACTS:
        present = _has_column(batch, name)
        values = getattr(contacts, name)[np.repeat(np.repeat(present, batch.lengths), counts)]
        listed[name] = pa.array(values, mask=np.isnan(values)), present
    nested = {}
    for name, (values, present) in listed.items():
        steps = _list_array(values, counts[np.repeat(present, batch.lengths)])
        nested[name] = _list_array(steps, np.where(present, batch.lengths, 0), present)
    return nested


# Decoding of all rows of a group at once. An error does not contain the number of the invalid row.


OUTLINE_COLUMNS = (*HEADER.names, "bodies", "records")
_REMEDY_NULL = "Leave a channel out if it was not recorded; only impulses and gripped_body may contain nulls."
_REMEDY_WIDTH = "Every step needs the same number of values, in the same order."


def decode_rows(rows: pa.RecordBatch) -> Batch:
    """Decode rows, whose columns are a subset of `SCHEMA`, to one batch. Raises `RecordError` if a row is invalid; the
    step and the field in the error are correct only if there is a single row.
    """
    try:
        batch = _build_batch(_Columns(rows))
    except UnicodeDecodeError as error:
        raise RecordError(f"a text is not UTF-8 at byte {error.start}", remedy="Write texts in UTF-8.") from None
    validate(batch)
    return batch


class _Columns:
    """Columns of E rows. For each row: its outline, and its numbers of records, bodies and arms; also body offsets."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        names = [name for name in OUTLINE_COLUMNS if name in rows.schema.names and _has_values(rows, name)]
        self.outlines = [convert_tree(_outline_values(row), EpisodeOutline) for row in rows.select(names).to_pylist()]
        self.records = np.array([outline.records for outline in self.outlines], dtype=np.int64)
        self.bodies = np.array([len(outline.body_roles) for outline in self.outlines], dtype=np.int64)
        self.arms = np.array([outline.arm_count for outline in self.outlines], dtype=np.int64)
        self.body_starts = offsets_of(self.bodies)

    def lists(self, name: str) -> tuple[pa.Array, Ints, Bools]:
        """Return a column's flat items, the length [E] of each row's list, and whether the list is present [E]."""
        if name not in self.rows.schema.names:
            nothing = np.zeros(len(self.outlines), dtype=np.int64)
            return pa.array([], SCHEMA.field(name).type).flatten(), nothing, nothing.astype(np.bool_)
        lists = self.rows.column(name)
        return lists.flatten(), _list_lengths(lists), np.asarray(lists.is_valid().to_numpy(zero_copy_only=False))


def _has_values(rows: pa.RecordBatch, name: str) -> bool:
    return name not in _OPTIONAL or rows.column(name).null_count < rows.num_rows


_OPTIONAL = {*HEADER.names} - {"target_object"}  # columns in which null means that the field is absent


def _outline_values(row: Mapping[str, Any]) -> dict[str, object]:
    fields = {n: row[n] for n in HEADER.names if n in row and (row[n] is not None or n == "target_object")}
    for name in _TEXT_MAPS:
        if name in fields:
            structs = [pair for pair in fields[name] if not isinstance(pair, tuple)]  # pairs are tuples in older files
            pairs = [((pair or {}).get("key"), (pair or {}).get("value")) for pair in structs]
            fields[name] = _unique_pairs(pairs if structs else fields[name], name)
    bodies = [((body or {}).get("name"), (body or {}).get("role")) for body in row["bodies"] or ()]
    return {**fields, "body_roles": _unique_pairs(bodies, "bodies"), "records": row["records"]}


def _unique_pairs(pairs: list[tuple[Any, Any]], field: str) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs) or None in table:
        refuse_field("a name is null or repeated", "Write each name once.", field)
    return table


def _build_batch(columns: _Columns) -> Batch:
    outlines = columns.outlines
    names = tuple(dict.fromkeys(chain.from_iterable(outline.body_roles for outline in outlines)))
    code = {name: k for k, name in enumerate(names)}
    roles = [ROLES.index(role) for outline in outlines for role in outline.body_roles.values()]
    contacts = _read_contacts(columns)
    return Batch(
        headers=tuple(outline.header for outline in outlines),
        starts=offsets_of(columns.records),
        body_starts=columns.body_starts,
        body_names=names,
        body_name=np.array([code[name] for outline in outlines for name in outline.body_roles], dtype=np.int64),
        body_role=np.array(roles, dtype=np.int8),
        target=np.array(list(map(_target_index, outlines, columns.body_starts.tolist())), dtype=np.int64),
        contacts=contacts,
        extra=_read_extra_fields(columns, contacts),
        **batch_channels(
            lambda spec: _read_channel(columns, spec, columns.bodies), lambda spec: _read_poses(columns, spec)
        ),
    )


def _target_index(outline: EpisodeOutline, base: int) -> int:
    names = list(outline.body_roles)
    return base + names.index(outline.target_object) if outline.target_object in names else -1


def _read_channel(columns: _Columns, spec: channels.ChannelSpec, bodies: Ints) -> Channel:
    """Return a channel of all episodes; `bodies` [E] = number of bodies in each row. Booleans become 0.0 or 1.0."""
    if spec.name not in columns.rows.schema.names:
        return absent_channel(len(bodies))
    values, counts, present = columns.lists(spec.name)
    items, shape, arms = counts, [counts], columns.arms if spec.per_arm else np.ones_like(counts)
    for _ in range(LIST_DEPTHS[spec.name] - 1):
        widths = _common_lengths(values, items, counts, spec)
        items, values = items * widths, values.flatten()
        shape.append(widths)
    facts = np.stack([columns.records, bodies, arms, *shape])[:, present]
    for records, count, own_arms, *sizes in dict.fromkeys(zip(*facts.tolist(), strict=True)):
        if spec.is_scalar and own_arms > 1 and sizes[0] % own_arms == 0:
            sizes = [sizes[0] // own_arms, own_arms]
        check_shape(spec, sizes, records, count, own_arms)
    filled: NDArray[Any]
    if spec.dtype == channels.PLACE:
        filled = _fill_places(values, np.repeat(columns.bodies, counts), spec.name)
    else:
        filled = _to_numpy(values, spec.name)
    numbers = filled.astype(np.float64, copy=False)
    width = np.prod(shape[1:], axis=0, dtype=np.int64) if len(shape) > 1 else arms
    return Channel(numbers, offsets_of(items), np.where(present, width, -1))


def _common_lengths(lists: pa.Array, items: Ints, steps: Ints, spec: channels.ChannelSpec) -> Ints:
    """Return the common length of the lists in each episode, [E]; if an episode has no lists, `spec.row_size`."""
    lengths, starts = _list_lengths(_require_no_nulls(lists, spec.name)), offsets_of(items)
    widths = np.full(len(items), spec.row_size)
    widths[items > 0] = lengths[starts[:-1][items > 0]]
    odd = np.flatnonzero(lengths != np.repeat(widths, items))
    if len(odd):
        e = int(np.searchsorted(starts, odd[0], side="right")) - 1
        step = int(odd[0] - starts[e]) // (int(items[e]) // int(steps[e]))
        refuse_field(f"{lengths[odd[0]]} values, but {widths[e]} in step 0", _REMEDY_WIDTH, spec.name, step)
    return widths


def _read_poses(columns: _Columns, spec: channels.ChannelSpec) -> Poses:
    listed, counts, posed = columns.lists(spec.bodies)
    present = columns.lists(spec.name)[2]
    if (posed != present).any():
        refuse_field(
            f"{spec.name} and {spec.bodies} go together, but one is missing",
            "Write both columns, or neither.",
            spec.name,
        )
    places, starts = _to_numpy(listed, spec.bodies).astype(np.int64), offsets_of(counts)
    for e in np.flatnonzero(present):
        check_posed_bodies(places[starts[e] : starts[e + 1]].tolist(), int(columns.bodies[e]), spec.bodies)
    body = places + np.repeat(columns.body_starts[:-1], counts)
    return Poses(_read_channel(columns, spec, counts), body, starts, spec.pose_size)


def _read_contacts(columns: _Columns) -> Contacts:
    steps, counts, present = columns.lists("contacts")
    for e in np.flatnonzero(present & (counts != columns.records)):
        remedy = "Write a list of contacts for each step; the list may be empty."
        refuse_field(f"{counts[e]} steps, expected {columns.records[e]}", remedy, "contacts")
    touching = np.zeros(int(columns.records.sum()), dtype=np.int64)
    touching[np.repeat(present, columns.records)] = _list_lengths(_require_no_nulls(steps, "contacts"))
    a, b, force, impulse = _require_no_nulls(steps.flatten(), "contacts").flatten()
    _refuse_nan(impulse, "contacts.impulse_ns")
    owner = np.repeat(np.repeat(np.arange(len(counts)), columns.records), touching)
    bodies, shift = columns.bodies[owner], columns.body_starts[owner]
    pair = {name: _to_numpy(places, f"contacts.{name}").astype(np.int64) for name, places in (("a", a), ("b", b))}
    for name, places in pair.items():
        check_places(places, 0, bodies, f"contacts.{name}")
    return Contacts(
        present=present,
        starts=offsets_of(touching),
        a=pair["a"] + shift,
        b=pair["b"] + shift,
        force_n=_to_numpy(force, "contacts.force_n"),
        impulse_ns=_fill_nulls(impulse, np.nan).astype(np.float64),
        **{name: _read_contact_column(columns, name, touching) for name in channels.OF_CONTACTS},
    )


def _read_contact_column(columns: _Columns, name: str, touching: Ints) -> NDArray[np.float64]:
    """Return one number per contact, NaN if an episode lacks the column; `touching` is each record's contact count."""
    steps, counts, present = columns.lists(name)
    recorded, has_steps = np.repeat(present, columns.records), (counts[present] == columns.records[present]).all()
    if not has_steps or not np.array_equal(_list_lengths(_require_no_nulls(steps, name)), touching[recorded]):
        refuse_field(
            "the number of values differs from the number of contacts", "Write one value for each contact.", name
        )
    values, numbers = steps.flatten(), np.full(int(touching.sum()), np.nan)
    if name == channels.NET_IMPULSE:
        _refuse_nan(values, name)
    filled = _fill_nulls(values, np.nan) if name == channels.NET_IMPULSE else _to_numpy(values, name)
    numbers[np.repeat(recorded, touching)] = filled
    return numbers


def _refuse_nan(values: pa.Array, name: str) -> None:
    if np.isnan(values.drop_null().to_numpy()).any():
        refuse_field("nan is not a finite number", "Write null for an unrecorded value.", name)


def _fill_places(places: pa.Array, bodies: Ints, name: str) -> Ints:
    if (places.drop_null().to_numpy() < 0).any():
        refuse_field("an index is negative", "Write the held body's index in bodies, or null if no body is held.", name)
    filled: Ints = _fill_nulls(places, -1).astype(np.int64)
    check_places(filled, -1, bodies, name)
    return filled


def _read_extra_fields(columns: _Columns, contacts: Contacts) -> tuple[dict[str, object], ...]:
    if "extra" not in columns.rows.schema.names:
        return tuple({} for _ in columns.outlines)
    touched = np.diff(contacts.starts[offsets_of(columns.records)])
    texts = columns.rows.column("extra").to_pylist()
    counted = zip(texts, columns.records.tolist(), touched.tolist(), strict=True)
    return tuple(parse_extra_fields(text.encode(), n, c) if text else {} for text, n, c in counted)


def _list_lengths(lists: pa.Array) -> Ints:
    return _fill_nulls(lists.value_lengths(), 0).astype(np.int64)


def _fill_nulls(values: pa.Array, value: float) -> NDArray[Any]:
    # `fill_null` would make pyarrow import all of pandas, which counts against the memory limit.
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array if not values.null_count else np.where(np.isnan(array), value, array)


def _require_no_nulls(values: pa.Array, name: str) -> pa.Array:
    if values.null_count:
        refuse_field("a value is null", _REMEDY_NULL, name)
    return values


def _to_numpy(values: pa.Array, name: str) -> NDArray[Any]:
    array: NDArray[Any] = _require_no_nulls(values, name).to_numpy(zero_copy_only=False)
    return array
