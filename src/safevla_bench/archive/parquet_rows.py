"""Conversion of batches to and from Arrow tables with the columns of the Parquet format; one row is one episode.

The columns are the header's fields, `bodies` (names and roles), `records` (the number of records), and the channels. A
channel is a nested list over the steps, in the channel's unit. Null means not recorded. Other columns refer to a body
by its index in `bodies`, from 0; `pos_bodies`, `quat_bodies` and `valid_bodies` list the bodies of a channel's rows.
With several arms, a grip channel is one flat list: all arms of record 0, then all arms of record 1, and so on. Maps of
texts are lists of pairs (`key`, `value`); older files have Arrow maps. `extra` holds host-specific fields as JSON. A
file has a column for a rare channel only if an episode of the file has the channel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench.archive import record_schema
from safevla_bench.archive.record_schema import EpisodeOutline, check_places, convert_tree, refuse_field
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
    # Returns the type of nested lists, `depth` levels deep, whose innermost items have the type `kind`.
    return kind if depth == 0 else pa.list_(_nest_list(kind, depth - 1))


def _channel_field(spec: channels.ChannelSpec) -> pa.Field:
    # Returns the column of a channel: one list level for each axis of the channel's array.
    return pa.field(spec.name, _nest_list(_VALUE_TYPES[spec.dtype], LIST_DEPTHS[spec.name]))


def list_pairs(value: pa.DataType) -> pa.DataType:
    """Return the type of a column of named values: a list of pairs; Hugging Face's `datasets` cannot read maps."""
    return pa.list_(pa.struct([("key", pa.string()), ("value", value)]))


def pair_values(values: Mapping[str, object]) -> list[dict[str, object]]:
    """Return a mapping as the list of pairs that a column of the type `list_pairs` stores."""
    return [{"key": key, "value": value} for key, value in values.items()]


_TEXT_MAPS = ("versions", "task_source", "arm_bodies")  # header fields that map texts to texts
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
"""Rare header field that has the same text in many episodes. A row group stores each distinct text only once."""
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
# Channels that have a column in a file only if an episode of the file has the channel.
_RARE = [spec for spec in channels.NUMERIC if spec.is_rare]


def rare_channels(batch: Batch) -> frozenset[str]:
    """Return the names of the rare channels that at least one episode of the batch has."""
    # The result also has the names of rare columns of contacts and of rare header fields.
    # A file has the column of a rare field only if an episode of the file has this field.
    rare = [spec.name for spec in _RARE if batch.numbers(spec).present.any()]
    rare += [name for name in channels.OF_CONTACTS if _has_contact_column(batch, name).any()]
    rare += [name for name in RARE_FIELDS if any(getattr(header, name) is not None for header in batch.headers)]
    return frozenset(rare)


def table_schema(rare: frozenset[str]) -> pa.Schema:
    """Return the columns of `SCHEMA`, omitting each rare channel that is not in `rare`."""
    # `SCHEMA` has all columns. `rare` names rare channels, rare columns of contacts and rare header fields.
    absent = [spec for spec in _RARE if spec.name not in rare]
    # A pose channel also has a column for its bodies. For other channels, `spec.bodies` is "", which names no column.
    left_out = {spec.name for spec in absent} | {spec.bodies for spec in absent}
    left_out |= {*channels.OF_CONTACTS, *RARE_FIELDS} - rare
    return pa.schema([field for field in SCHEMA if field.name not in left_out])


def to_table(batch: Batch, schema: pa.Schema | None = None) -> pa.Table:
    """Return all episodes of a batch as a table, one row each, with the columns of `schema`. Without a schema, the
    table has the column of a rare channel only if an episode has the channel.
    """
    columns: dict[str, pa.Array] = {name: _header_column(batch, name) for name in HEADER.names}
    # For each episode: the names and roles of its bodies.
    bodies = [
        [{"name": name, "role": role} for name, role in batch.body_roles(episode).items()]
        for episode in range(len(batch))
    ]
    columns["bodies"] = pa.array(bodies, SCHEMA.field("bodies").type)
    columns["records"] = pa.array(batch.lengths)
    # A channel with a row per action has one row fewer than the episode has records (True is 1, and False is 0).
    for spec in channels.ROWS:
        columns[spec.name] = _row_column(batch.channel(spec.name), spec, batch.lengths - spec.is_per_action)
    for spec in channels.POSES:
        poses = batch.poses(spec.name)
        body_counts = np.diff(poses.body_starts)
        # In tables, each episode's bodies are numbered from 0. `poses.body` numbers the bodies of the whole batch.
        body_indices = pa.array(poses.body - np.repeat(batch.body_starts[:-1], body_counts), pa.int32())
        columns[spec.name] = _pose_column(poses, spec, batch.lengths)
        columns[spec.bodies] = _list_array(body_indices, body_counts, poses.present)
    columns |= _contact_columns(batch)
    texts = [json.dumps(extra, ensure_ascii=False, allow_nan=False) if extra else None for extra in batch.extra]
    columns["extra"] = pa.array(texts, pa.string())
    schema = schema or table_schema(rare_channels(batch))
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _header_column(batch: Batch, name: str) -> pa.Array:
    # Returns the column of the header field `name`, with one value per episode; null = None.
    values = [getattr(header, name) for header in batch.headers]
    if name in _TEXT_MAPS:
        values = [None if value is None else pair_values(value) for value in values]
    return pa.array(values, HEADER.field(name).type)


def _list_array(values: pa.Array, lengths: Ints, present: Bools | None = None) -> pa.Array:
    # Returns the values, split into successive lists of the given lengths.
    # A list is null if `present` is False for it. If `present` is None, all lists are present.
    offsets = pa.array(offsets_of(lengths), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=None if present is None else pa.array(~present))


def _to_arrow(values: NDArray[np.float64], spec: channels.ChannelSpec) -> pa.Array:
    # Converts a channel's numbers to the type of its column. Indices of bodies become null if they are -1 (no body).
    is_null = values < 0 if spec.dtype == channels.PLACE else None
    return pa.array(values.astype(spec.dtype, copy=False), _VALUE_TYPES[spec.dtype], mask=is_null)


def _row_column(channel: Channel, spec: channels.ChannelSpec, steps: Ints) -> pa.Array:
    # Returns the column of a channel: for each episode a list of rows, or null if the episode lacks the channel.
    # A row is a list of numbers. `steps` [E] has each episode's number of rows if the episode has the channel.
    row_counts = np.where(channel.present, steps, 0)  # number of rows per episode
    widths = np.maximum(channel.width, 0)  # numbers per row; an absent channel has the width -1
    values = _to_arrow(channel.values, spec)
    if spec.is_scalar:  # a row has one number per arm; the rows of an episode form a single flat list
        return _list_array(values, row_counts * widths, channel.present)
    return _list_array(_list_array(values, np.repeat(widths, row_counts)), row_counts, channel.present)


def _pose_column(poses: Poses, spec: channels.ChannelSpec, steps: Ints) -> pa.Array:
    # Returns the column of a pose channel: for each episode, nested lists by step and body; null = not recorded.
    # A body's item is a list of numbers or, for `pose_valid`, a single value. `steps` [E] has the episodes' lengths.
    row_counts = np.where(poses.present, steps, 0)  # number of recorded steps per episode
    body_counts = np.repeat(np.diff(poses.body_starts), row_counts)  # number of bodies in each recorded step
    values = _to_arrow(poses.channel.values, spec)
    if spec.row_size:
        values = _list_array(values, np.full(int(body_counts.sum()), poses.size))
    return _list_array(_list_array(values, body_counts), row_counts, poses.present)


def _has_contact_column(batch: Batch, name: str) -> Bools:
    # Returns whether each episode's contacts have numbers in this column, [E]. For net forces, the header decides.
    if name == channels.NET_FORCE:
        is_recorded = np.array([name in header.recorded_forces for header in batch.headers], dtype=np.bool_)
        return batch.contacts.present & is_recorded
    # The number of known values before each contact. An episode in which this count rises has a known value.
    # `contacts.starts` maps a record to its first contact, and `batch.starts` maps an episode to its first record.
    known_starts = offsets_of((~np.isnan(getattr(batch.contacts, name))).astype(np.int64))
    return np.diff(known_starts[batch.contacts.starts][batch.starts]) > 0


def _contact_columns(batch: Batch) -> dict[str, pa.Array]:
    # Returns the column `contacts` and the columns `OF_CONTACTS`, by name.
    # The row of an episode is a list with one item per record, which is the list of the record's contacts.
    contacts, contact_counts = batch.contacts, np.diff(batch.contacts.starts)  # number of contacts per record
    # The index, in the batch, of the first body of each contact's episode. Tables number each episode's bodies from 0.
    first_body = np.repeat(np.repeat(batch.body_starts[:-1], batch.lengths), contact_counts)
    columns = [
        pa.array(contacts.a - first_body, pa.int32()),
        pa.array(contacts.b - first_body, pa.int32()),
        pa.array(contacts.force_n),
        pa.array(contacts.impulse_ns, mask=np.isnan(contacts.impulse_ns)),
    ]
    # Maps a column to two arrays: the values of contacts, and a mask of the episodes that have this column.
    flat_columns = {"contacts": (pa.StructArray.from_arrays(columns, fields=list(_CONTACT)), contacts.present)}
    for name in channels.OF_CONTACTS:
        present = _has_contact_column(batch, name)
        # Repeat each episode's Boolean for each of its records, then each record's Boolean for each of its contacts.
        values = getattr(contacts, name)[np.repeat(np.repeat(present, batch.lengths), contact_counts)]
        flat_columns[name] = pa.array(values, mask=np.isnan(values)), present
    # Split each column into a list per record, and these lists into a list per episode.
    list_columns = {}
    for name, (values, present) in flat_columns.items():
        step_lists = _list_array(values, contact_counts[np.repeat(present, batch.lengths)])
        list_columns[name] = _list_array(step_lists, np.where(present, batch.lengths, 0), present)
    return list_columns


# Decoding of all rows of a group at once; errors do not name the invalid row


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
    validate(batch)  # raises `RecordError`
    return batch


class _Columns:
    """The columns of `E` rows, with each row's `EpisodeOutline` and its numbers of records, bodies and arms."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        # `outlines` have each row's header, roles of bodies, and number of records.
        # `records`, `bodies` and `arms` [E] are the numbers of records, bodies and arms in each row.
        # `body_starts` [E + 1] has the index of each row's first body in the batch.
        self.rows = rows
        names = [name for name in OUTLINE_COLUMNS if name in rows.schema.names and _must_be_read(rows, name)]
        self.outlines = [convert_tree(_outline_values(row), EpisodeOutline) for row in rows.select(names).to_pylist()]
        self.records = np.array([outline.records for outline in self.outlines], dtype=np.int64)
        self.bodies = np.array([len(outline.body_roles) for outline in self.outlines], dtype=np.int64)
        self.arms = np.array([outline.arm_count for outline in self.outlines], dtype=np.int64)
        self.body_starts = offsets_of(self.bodies)

    def lists(self, name: str) -> tuple[pa.Array, Ints, Bools]:
        """Return a column's flat items, the length [E] of each row's list, and whether the list is present [E]."""
        if name not in self.rows.schema.names:  # no row has the column
            zeros = np.zeros(len(self.outlines), dtype=np.int64)
            return pa.array([], SCHEMA.field(name).type).flatten(), zeros, zeros.astype(np.bool_)
        lists = self.rows.column(name)
        return lists.flatten(), _list_lengths(lists), np.asarray(lists.is_valid().to_numpy(zero_copy_only=False))


def _must_be_read(rows: pa.RecordBatch, name: str) -> bool:
    # Returns whether a column must be read: false only for an optional column that is null in all rows.
    return name not in _OPTIONAL or rows.column(name).null_count < rows.num_rows


_OPTIONAL = {*HEADER.names} - {"target_object"}  # columns in which null means that the field is absent


def _outline_values(row: Mapping[str, Any]) -> dict[str, object]:
    # Returns the fields of an `EpisodeOutline`: those of the header, `body_roles` and `records`.
    # `row` has one row's values in the columns `OUTLINE_COLUMNS`. An optional field that is null is left out.
    fields = {name: value for name, value in row.items() if value is not None or name not in _OPTIONAL}
    for name in _TEXT_MAPS:
        if name in fields:
            fields[name] = _read_pairs(fields[name], "key", "value", name)
    bodies, records = fields.pop("bodies"), fields.pop("records")
    return {**fields, "body_roles": _read_pairs(bodies or (), "name", "role", "bodies"), "records": records}


def _read_pairs(pairs: Sequence[Any], key: str, value: str, column: str) -> dict[str, object]:
    # Returns the pairs as a dictionary. Each pair is a dictionary with two fields, or None (null).
    # The arguments `key` and `value` are the names of these two fields. `column` names the column in errors.
    contents: dict[str, object] = {}
    for pair in pairs:
        # In older files, a pair is a tuple.
        # A pair that is null gets the name None, which is then refused.
        name, content = pair if isinstance(pair, tuple) else ((pair or {}).get(key), (pair or {}).get(value))
        if name is None or name in contents:
            refuse_field("a name is null or repeated", "Write each name once.", column)
        contents[name] = content
    return contents


def _build_batch(columns: _Columns) -> Batch:
    # Builds a batch of all rows. The batch's body table lists the bodies of all episodes.
    # A row's indices of bodies are converted to indices in this table.
    outlines = columns.outlines  # each row's header, bodies and number of records
    names = tuple(dict.fromkeys(chain.from_iterable(outline.body_roles for outline in outlines)))
    name_index = {name: index for index, name in enumerate(names)}
    roles = [ROLES.index(role) for outline in outlines for role in outline.body_roles.values()]
    contacts = _read_contacts(columns)
    return Batch(
        headers=tuple(outline.header for outline in outlines),
        starts=offsets_of(columns.records),
        body_starts=columns.body_starts,
        body_names=names,
        body_name=np.array([name_index[name] for outline in outlines for name in outline.body_roles], dtype=np.int64),
        body_role=np.array(roles, dtype=np.int8),
        target=np.array(list(map(_find_target, outlines, columns.body_starts.tolist())), dtype=np.int64),
        contacts=contacts,
        extra=_read_extra_fields(columns, contacts),
        **batch_channels(
            lambda spec: _read_channel(columns, spec, columns.bodies), lambda spec: _read_poses(columns, spec)
        ),
    )


def _find_target(outline: EpisodeOutline, first_body: int) -> int:
    # Returns the index of an episode's target in the batch's body table; -1 = no target.
    # `first_body` is the index of the episode's first body in this table.
    names = list(outline.body_roles)
    return first_body + names.index(outline.target_object) if outline.target_object in names else -1


def _read_channel(columns: _Columns, spec: channels.ChannelSpec, bodies: Ints) -> Channel:
    """Return a channel of all episodes; `bodies` [E] = number of bodies in each row. Booleans become 0.0 or 1.0."""
    # Each row of `columns` is an episode. For a pose channel, `bodies` counts only bodies with poses in this channel.
    if spec.name not in columns.rows.schema.names:
        return absent_channel(len(bodies))
    values, counts, present = columns.lists(spec.name)  # items of all steps; steps per row; which rows have the column
    arms = columns.arms if spec.per_arm else np.ones_like(counts)
    # Flatten one list level after the other. `item_counts` [E] has each episode's number of items at the current level.
    item_counts, axis_sizes = counts, [counts]
    for _ in range(LIST_DEPTHS[spec.name] - 1):
        widths = _common_lengths(values, item_counts, counts, spec)
        item_counts, values = item_counts * widths, values.flatten()
        axis_sizes.append(widths)
    # For each row with the channel, a column: numbers of records, bodies and arms, then the sizes of the array's axes.
    row_facts = np.stack([columns.records, bodies, arms, *axis_sizes])[:, present]
    # Each distinct shape is checked once.
    for records, body_count, arm_count, *sizes in dict.fromkeys(zip(*row_facts.tolist(), strict=True)):
        # The flat list of a grip channel becomes one row of arms per record.
        if spec.is_scalar and arm_count > 1 and sizes[0] % arm_count == 0:
            sizes = [sizes[0] // arm_count, arm_count]
        record_schema.check_shape(spec, sizes, records, body_count, arm_count)
    if spec.dtype == channels.PLACE:
        filled: NDArray[Any] = _fill_places(values, np.repeat(columns.bodies, counts), spec.name)
    else:
        filled = _to_numpy(values, spec.name)
    # Numbers per record: the product of the sizes of all axes after the first, or one number per arm.
    width = np.prod(axis_sizes[1:], axis=0, dtype=np.int64) if len(axis_sizes) > 1 else arms
    return Channel(filled.astype(np.float64, copy=False), offsets_of(item_counts), np.where(present, width, -1))


def _common_lengths(lists: pa.Array, item_counts: Ints, step_counts: Ints, spec: channels.ChannelSpec) -> Ints:
    """Return the common length of each episode's lists, [E]; `spec.row_size` for an episode without lists."""
    # `lists` has the lists of all episodes. `item_counts` [E] has each episode's number of lists.
    # `step_counts` [E] has each episode's number of steps, to name the step in an error.
    # Raises `RecordError` if an episode has lists of different lengths.
    lengths, starts = _list_lengths(_require_no_nulls(lists, spec.name)), offsets_of(item_counts)
    widths = np.full(len(item_counts), spec.row_size)
    widths[item_counts > 0] = lengths[starts[:-1][item_counts > 0]]  # the length of the episode's first list
    differing = np.flatnonzero(lengths != np.repeat(widths, item_counts))
    if len(differing):
        episode = int(np.searchsorted(starts, differing[0], side="right")) - 1
        # Step of the first list with a different length: the list's index divided by the number of lists per step.
        step = int(differing[0] - starts[episode]) // (int(item_counts[episode]) // int(step_counts[episode]))
        refuse_field(f"{lengths[differing[0]]} values, but {widths[episode]} in step 0", _REMEDY_WIDTH, spec.name, step)
    return widths


def _read_poses(columns: _Columns, spec: channels.ChannelSpec) -> Poses:
    # Returns a pose channel of all episodes, with checked indices of bodies.
    # The bodies' indices of all rows in one list; the number of bodies by row, [E]; which rows have the column, [E].
    listed_bodies, body_counts, has_bodies = columns.lists(spec.bodies)
    _, _, present = columns.lists(spec.name)
    if (has_bodies != present).any():
        problem = f"{spec.name} and {spec.bodies} go together, but one is missing"
        refuse_field(problem, "Write both columns, or neither.", spec.name)
    body_indices, starts = _to_numpy(listed_bodies, spec.bodies).astype(np.int64), offsets_of(body_counts)
    for episode in np.flatnonzero(present):
        episode_bodies = body_indices[starts[episode] : starts[episode + 1]].tolist()
        record_schema.check_posed_bodies(episode_bodies, int(columns.bodies[episode]), spec.bodies)
    # Each row numbers its bodies from 0. The batch's body table numbers the bodies of all episodes.
    body = body_indices + np.repeat(columns.body_starts[:-1], body_counts)
    return Poses(_read_channel(columns, spec, body_counts), body, starts, spec.pose_size)


def _read_contacts(columns: _Columns) -> Contacts:
    # Returns the contacts of all episodes. Raises `RecordError` for a wrong number of steps, a null or a wrong index.
    # `steps` has the list of contacts of each step, for all rows. `step_counts` and `present` have one item per row.
    steps, step_counts, present = columns.lists("contacts")
    for episode in np.flatnonzero(present & (step_counts != columns.records)):
        remedy = "Write a list of contacts for each step; the list may be empty."
        refuse_field(f"{step_counts[episode]} steps, expected {columns.records[episode]}", remedy, "contacts")
    contact_counts = np.zeros(int(columns.records.sum()), dtype=np.int64)  # one count per record of the batch
    contact_counts[np.repeat(present, columns.records)] = _list_lengths(_require_no_nulls(steps, "contacts"))
    a, b, force, impulse = _require_no_nulls(steps.flatten(), "contacts").flatten()
    _refuse_nan(impulse, "contacts.impulse_ns")
    episode_of_contact = np.repeat(np.repeat(np.arange(len(step_counts)), columns.records), contact_counts)
    # For each contact: its episode's number of bodies, and the index of its episode's first body in the batch.
    bodies, first_body = columns.bodies[episode_of_contact], columns.body_starts[episode_of_contact]
    body_a = _to_numpy(a, "contacts.a").astype(np.int64)
    body_b = _to_numpy(b, "contacts.b").astype(np.int64)
    check_places(body_a, 0, bodies, "contacts.a")
    check_places(body_b, 0, bodies, "contacts.b")
    return Contacts(
        present=present,
        starts=offsets_of(contact_counts),
        a=body_a + first_body,
        b=body_b + first_body,
        force_n=_to_numpy(force, "contacts.force_n"),
        impulse_ns=_fill_nulls(impulse, np.nan).astype(np.float64),
        **{name: _read_contact_column(columns, name, contact_counts) for name in channels.OF_CONTACTS},
    )


def _read_contact_column(columns: _Columns, name: str, contact_counts: Ints) -> NDArray[np.float64]:
    """Return one number per contact, NaN if an episode lacks the column; `contact_counts` has a count per record."""
    # `steps` has a list of numbers for each step, in the rows that have the column.
    steps, step_counts, present = columns.lists(name)
    is_recorded = np.repeat(present, columns.records)  # one Boolean per record
    is_same_count = (step_counts[present] == columns.records[present]).all() and np.array_equal(
        _list_lengths(_require_no_nulls(steps, name)), contact_counts[is_recorded]
    )
    if not is_same_count:
        problem = "the number of values differs from the number of contacts"
        refuse_field(problem, "Write one value for each contact.", name)
    values, numbers = steps.flatten(), np.full(int(contact_counts.sum()), np.nan)
    if name == channels.NET_IMPULSE:  # only the net impulse may be null
        _refuse_nan(values, name)
        filled = _fill_nulls(values, np.nan)
    else:
        filled = _to_numpy(values, name)
    numbers[np.repeat(is_recorded, contact_counts)] = filled
    return numbers


def _refuse_nan(values: pa.Array, name: str) -> None:
    # Raises `RecordError` if a value of the column `name` is NaN; null is allowed.
    if np.isnan(values.drop_null().to_numpy()).any():
        refuse_field("nan is not a finite number", "Write `null` for an unrecorded value.", name)


def _fill_places(places: pa.Array, bodies: Ints, name: str) -> Ints:
    # Returns indices of bodies, with -1 for null. `bodies` has, for each index, the number of bodies of its episode.
    # Raises `RecordError` for an index that is negative, or too large for its episode. `name` is the channel's name.
    if (places.drop_null().to_numpy() < 0).any():
        refuse_field("an index is negative", "Write the held body's index in `bodies`, or `null` without one.", name)
    filled: Ints = _fill_nulls(places, -1).astype(np.int64)
    check_places(filled, -1, bodies, name)
    return filled


def _read_extra_fields(columns: _Columns, contacts: Contacts) -> tuple[dict[str, object], ...]:
    # Returns the host-specific fields of each episode, parsed from JSON; {} for an episode without such fields.
    if "extra" not in columns.rows.schema.names:
        return tuple({} for _ in columns.outlines)
    contact_counts = np.diff(contacts.starts[offsets_of(columns.records)]).tolist()  # one count per episode
    texts = columns.rows.column("extra").to_pylist()
    return tuple(
        record_schema.parse_extra_fields(text.encode(), record_count, contact_count) if text else {}
        for text, record_count, contact_count in zip(texts, columns.records.tolist(), contact_counts, strict=True)
    )


def _list_lengths(lists: pa.Array) -> Ints:
    # Returns the length of each list, 0 for null.
    return _fill_nulls(lists.value_lengths(), 0).astype(np.int64)


def _fill_nulls(values: pa.Array, value: float) -> NDArray[Any]:
    # Returns numbers as an array with `value` in place of nulls. `to_numpy` first converts nulls to NaN.
    # If there are nulls, the array is of floats.
    # `fill_null` would make pyarrow import all of pandas, which counts against the memory limit.
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array if not values.null_count else np.where(np.isnan(array), value, array)


def _require_no_nulls(values: pa.Array, name: str) -> pa.Array:
    # Returns the values of the column `name` unchanged. Raises `RecordError` if one of them is null.
    if values.null_count:
        refuse_field("a value is null", _REMEDY_NULL, name)
    return values


def _to_numpy(values: pa.Array, name: str) -> NDArray[Any]:
    # Returns the flat values of the column `name` as an array. Raises `RecordError` if one of them is null.
    array: NDArray[Any] = _require_no_nulls(values, name).to_numpy(zero_copy_only=False)
    return array
