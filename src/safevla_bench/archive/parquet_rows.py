"""The columns of the Parquet form, and its rows as episodes.

Batches become Arrow tables, one row an episode, without a loop over steps. Columns carry the names, types and units of
the record: the header's fields, `bodies` (name and role), the number of `records`, and the families as nested lists
over the steps. Null = not recorded. Bodies elsewhere are places in `bodies`, counted from 0; `pos_bodies`,
`quat_bodies` and `valid_bodies` say whose poses, or truths, a step lists. `extra` holds host-specific fields as JSON.
Columns of rare channels are in a file only where an episode has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench.archive import strict_json
from safevla_bench.archive.arrays import check_shapes, parse_outline
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory.batch import Batch, Channel, Poses
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.channels import NUMERIC, POSES, ROWS, ChannelSpec, as_fields
from safevla_recorder.episode import ContactList, Recording

LIST_DEPTHS: Mapping[str, int] = {spec.name: len(spec.shape) for spec in NUMERIC}
"""Channels of numbers, and the levels of their nested lists."""
BODIES: Mapping[str, str] = {spec.name: spec.bodies for spec in POSES}
"""Channels of poses, and the columns of their bodies."""
_CONTACT = pa.struct([("a", pa.int32()), ("b", pa.int32()), ("force_n", pa.float64()), ("impulse_ns", pa.float64())])


def _nest_list(kind: pa.DataType, depth: int) -> pa.DataType:
    return kind if depth == 0 else pa.list_(_nest_list(kind, depth - 1))


def _value_type(spec: ChannelSpec) -> pa.DataType:
    return pa.bool_() if spec.is_truth else pa.float64()


HEADER = pa.schema(
    [
        ("schema_version", pa.int64()),
        ("episode_id", pa.string()),
        ("benchmark", pa.string()),
        ("task_id", pa.string()),
        ("success", pa.bool_()),
        ("dt", pa.float64()),
        ("target_object", pa.string()),
        ("joint_torque_limit_nm", pa.list_(pa.float64())),
        ("policy", pa.string()),
        ("instruction", pa.string()),
        ("seed", pa.int64()),
        ("env_seed", pa.int64()),
        ("init_state_index", pa.int64()),
        ("horizon", pa.int64()),
        ("outcome", pa.string()),
        ("embodiment", pa.string()),
        ("versions", pa.map_(pa.string(), pa.string())),
        ("dropped_pairs", _nest_list(pa.string(), 2)),
    ]
)
SCHEMA = pa.schema(
    [
        *HEADER,
        pa.field("bodies", pa.list_(pa.struct([("name", pa.string()), ("role", pa.string())]))),
        pa.field("records", pa.int64()),
        *(pa.field(spec.name, _nest_list(_value_type(spec), LIST_DEPTHS[spec.name])) for spec in NUMERIC),
        *(pa.field(name, pa.list_(pa.int32())) for name in BODIES.values()),
        pa.field("contacts", _nest_list(_CONTACT, 2)),
        pa.field("gripper_contact", pa.list_(pa.bool_())),
        pa.field("gripped_body", pa.list_(pa.int32())),
        pa.field("extra", pa.string()),
    ]
)
RARE: Mapping[str, frozenset[str]] = {
    spec.name: frozenset([spec.name, spec.bodies] if spec.is_pose else [spec.name]) for spec in NUMERIC if spec.is_rare
}
"""Rare channel -> its columns, which a file has only if one of its episodes has the channel."""
_Ints = NDArray[np.int64]


def rare_channels(batch: Batch) -> frozenset[str]:
    """Return the names of the rare channels (the keys of `RARE`) that at least one episode of the batch has."""
    poses = {spec.name for spec in POSES}
    return frozenset(
        name for name in RARE if (batch.poses(name).channel if name in poses else batch.channel(name)).present.any()
    )


def table_schema(rare: frozenset[str]) -> pa.Schema:
    """Return the columns of a file whose episodes have these rare channels: `SCHEMA` without those of the others."""
    left_out = frozenset().union(*(columns for name, columns in RARE.items() if name not in rare))
    return pa.schema([field for field in SCHEMA if field.name not in left_out])


def to_table(batch: Batch, schema: pa.Schema | None = None) -> pa.Table:
    """Return all episodes of a batch as a table, a row each, with the columns of `schema`.

    Without a schema the columns of rare channels are there only if an episode has the channel.
    """
    columns: dict[str, pa.Array] = {name: _header_column(batch, name) for name in HEADER.names}
    columns["bodies"] = _body_column(batch)
    columns["records"] = pa.array(batch.lengths)
    for spec in ROWS:
        columns[spec.name] = _row_column(batch.channel(spec.name), spec, batch.lengths - spec.is_per_action)
    for spec in POSES:
        columns[spec.name] = _pose_column(batch.poses(spec.name), spec, batch.lengths)
        columns[spec.bodies] = _posed_body_column(batch, batch.poses(spec.name))
    columns["contacts"] = _contact_column(batch)
    columns["gripper_contact"] = _record_column(batch, pa.array(batch.gripper_contact), batch.gripper_present)
    columns["gripped_body"] = _gripped_column(batch)
    columns["extra"] = pa.array(
        [strict_json.format_extra_fields(extra) if extra else None for extra in batch.extra], pa.string()
    )
    schema = schema or table_schema(rare_channels(batch))
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _header_column(batch: Batch, name: str) -> pa.Array:
    values = [getattr(header, name) for header in batch.headers]
    if name == "versions":
        values = [None if versions is None else list(versions.items()) for versions in values]
    return pa.array(values, HEADER.field(name).type)


def _body_column(batch: Batch) -> pa.Array:
    rows = [[{"name": n, "role": r} for n, r in batch.body_roles(e).items()] for e in range(len(batch))]
    return pa.array(rows, SCHEMA.field("bodies").type)


def _list_array(values: pa.Array, lengths: _Ints, present: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return values cut into consecutive lists of these lengths; null where not present (None: all are).

    Raises `pa.ArrowInvalid` for more than 2³¹ values.
    """
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=None if present is None else pa.array(~present))


def _row_column(channel: Channel, spec: ChannelSpec, steps: _Ints) -> pa.Array:
    rows = np.where(channel.present, steps, 0)
    if spec.is_scalar:
        return _list_array(pa.array(channel.values), rows, channel.present)
    width = np.repeat(np.maximum(channel.width, 0), rows)
    return _list_array(_list_array(pa.array(channel.values), width), rows, channel.present)


def _pose_column(poses: Poses, spec: ChannelSpec, steps: _Ints) -> pa.Array:
    rows = np.where(poses.present, steps, 0)
    bodies = np.repeat(np.diff(poses.body_starts), rows)
    if spec.is_truth:
        values = pa.array(poses.channel.values.astype(np.bool_))
    else:
        values = _list_array(pa.array(poses.channel.values), np.full(int(bodies.sum()), poses.size))
    return _list_array(_list_array(values, bodies), rows, poses.present)


def _posed_body_column(batch: Batch, poses: Poses) -> pa.Array:
    counts = np.diff(poses.body_starts)
    places = poses.body - np.repeat(batch.body_starts[:-1], counts)
    return _list_array(pa.array(places, pa.int32()), counts, poses.present)


def _contact_column(batch: Batch) -> pa.Array:
    """Return the contacts as a column: a list a record of structs, with null impulses where unknown.

    An episode that recorded no contacts is null; bodies are places in the episode's body table.
    """
    contacts, recorded = batch.contacts, np.repeat(batch.contacts.present, batch.lengths)
    counts = np.diff(contacts.starts)
    base = np.repeat(np.repeat(batch.body_starts[:-1], batch.lengths), counts)
    unknown = np.isnan(contacts.impulse_ns)
    columns = [
        pa.array(contacts.a - base, pa.int32()),
        pa.array(contacts.b - base, pa.int32()),
        pa.array(contacts.force_n),
        pa.array(contacts.impulse_ns, mask=unknown),
    ]
    touching = pa.StructArray.from_arrays(columns, fields=list(_CONTACT))
    return _list_array(
        _list_array(touching, counts[recorded]), np.where(contacts.present, batch.lengths, 0), contacts.present
    )


def _record_column(batch: Batch, per_record: pa.Array, present: NDArray[np.bool_]) -> pa.Array:
    recorded = per_record.filter(pa.array(np.repeat(present, batch.lengths)))
    return _list_array(recorded, np.where(present, batch.lengths, 0), present)


def _gripped_column(batch: Batch) -> pa.Array:
    base = np.repeat(batch.body_starts[:-1], batch.lengths)
    places = pa.array(batch.gripped - base, pa.int32(), mask=batch.gripped < 0)
    return _record_column(batch, places, batch.gripped_present)


# Rows as episodes: each list is checked before it becomes an array


Row = Mapping[str, Any]
"""Column -> Arrow scalar, by `SCHEMA`."""
OUTLINE_COLUMNS = (*HEADER.names, "bodies", "records")
"""Columns with one value, or one small table, for each episode."""
_REMEDY_NULL = "Leave a family out where it was not recorded; only impulse_ns and gripped_body may be null within one."
_REMEDY_WIDTH = "Write the same numbers, in the same order, in every step."


def decode_row(row: Row) -> Batch:
    """Return one episode, a batch of one, from its row.

    Raises `RecordError` naming episode, step, field and remedy; the caller adds file and row.
    """
    try:
        recording = _build_recording(row)
        check_shapes(recording)
        return from_recording(recording)
    except RecordError as error:
        raise error.with_place(Place(episode=_episode_id(row))) from None
    except UnicodeDecodeError as error:
        problem = f"a text is not UTF-8 at byte {error.start}"
        raise RecordError(problem, remedy="Write texts in UTF-8.", place=Place(episode=_episode_id(row))) from None


def _episode_id(row: Row) -> str | None:
    try:
        name: str | None = row["episode_id"].as_py()
    except UnicodeDecodeError:
        return None
    return name


def _refuse_column(problem: str, remedy: str, field: str, step: int | None = None) -> NoReturn:
    raise RecordError(problem, remedy=remedy, place=Place(field=field, step=step))


def outline_values(row: Mapping[str, Any]) -> dict[str, object]:
    """Return the values of an outline from a row whose columns are plain values; null fields are left out.

    `target_object` stays, even if null. Raises `RecordError` where a name of a body or a version is null or repeated.
    """
    fields = {n: row[n] for n in HEADER.names if n in row and (row[n] is not None or n == "target_object")}
    if "versions" in fields:
        fields["versions"] = _unique_pairs(fields["versions"], "versions")
    bodies = [((body or {}).get("name"), (body or {}).get("role")) for body in row["bodies"] or ()]
    return {**fields, "body_roles": _unique_pairs(bodies, "bodies"), "records": row["records"]}


def _build_recording(row: Row) -> Recording:
    """Return the recording of a row, its shapes not yet checked.

    Raises `RecordError` at the first column that is wrong.
    """
    first = parse_outline(outline_values({name: row[name].as_py() for name in OUTLINE_COLUMNS if name in row}))
    contacts = _read_contacts(row, first.records)
    text = row["extra"].as_py() if "extra" in row else None
    host_fields = (
        strict_json.parse_extra_fields(text.encode(), first.records, len(contacts.record) if contacts else 0)
        if text
        else {}
    )
    return Recording(
        header=msgspec.structs.asdict(first.header),
        roles=first.body_roles,
        records=first.records,
        contacts=contacts,
        gripper_contact=_read_gripper_contact(row),
        gripped=_read_gripped(row),
        extra=host_fields,
        **as_fields(
            Recording,
            {spec.bodies: _read_places(row, spec.name) for spec in POSES}
            | {spec.name: _read_numbers(row, spec) for spec in NUMERIC},
        ),
    )


def _unique_pairs(pairs: list[tuple[Any, Any]], field: str) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs) or None in table:
        _refuse_column("a name is null or repeated", "Name each once.", field)
    return table


def _row_list(row: Row, name: str) -> pa.Array | None:
    return row[name].values if name in row and row[name].is_valid else None


def _require_no_nulls(values: pa.Array, name: str) -> pa.Array:
    if values.null_count:
        _refuse_column("a value is null", _REMEDY_NULL, name)
    return values


def _to_numpy(values: pa.Array, name: str) -> NDArray[Any]:
    array: NDArray[Any] = _require_no_nulls(values, name).to_numpy(zero_copy_only=False)
    return array


def _read_numbers(row: Row, spec: ChannelSpec) -> NDArray[Any] | None:
    """Return a channel of numbers as an array [steps, …]; None if not recorded.

    Raises `RecordError` where a value is null, or lists within the steps differ in length.
    """
    name, depth = spec.name, LIST_DEPTHS[spec.name]
    values = _row_list(row, name)
    if values is None:
        return None
    shape = [len(values)]
    for _ in range(depth - 1):
        lengths = _to_numpy(_require_no_nulls(values, name).value_lengths(), name)
        odd = np.flatnonzero(lengths != lengths[0]) if len(lengths) else lengths
        if len(odd):
            step = int(odd[0]) // max(1, len(lengths) // shape[0])
            _refuse_column(f"{lengths[odd[0]]} values, {lengths[0]} in step 0", _REMEDY_WIDTH, name, step)
        shape.append(int(lengths[0]) if len(lengths) else spec.row_size)
        values = values.flatten()
    return _to_numpy(values, name).reshape(shape)


def _read_places(row: Row, family: str) -> list[int]:
    """Return the places of the bodies of a pose channel in `bodies`, [] where the channel is not recorded.

    Raises `RecordError` where only one of poses and bodies is there, or a place is null.
    """
    name = BODIES[family]
    values = _row_list(row, name)
    if (values is None) != (_row_list(row, family) is None):
        _refuse_column(f"{family} and {name} go together", "Write both, or neither.", family)
    return [] if values is None else [int(place) for place in _to_numpy(values, name)]


def _read_gripper_contact(row: Row) -> NDArray[np.bool_] | None:
    """Return whether the gripper has contact in each step; None if not recorded. Raises `RecordError` for a null."""
    values = _row_list(row, "gripper_contact")
    return None if values is None else _to_numpy(values, "gripper_contact")


def _read_gripped(row: Row) -> NDArray[np.int64] | None:
    """Return the places of the gripped bodies, -1 where null; None if not recorded.

    Raises `RecordError` for a place below 0.
    """
    values = _row_list(row, "gripped_body")
    if values is None:
        return None
    if np.any(values.drop_null().to_numpy() < 0):
        _refuse_column("a place is negative", "Write a place in bodies, or null where nothing is held.", "gripped_body")
    return np.asarray(values.fill_null(-1).to_numpy(), dtype=np.int64)


def _read_contacts(row: Row, records: int) -> ContactList | None:
    """Return the contacts of a row, NaN for a null impulse; None if not recorded.

    Raises `RecordError` unless there is a list a record, and where a value is null, or an impulse NaN.
    """
    steps = _row_list(row, "contacts")
    if steps is None:
        return None
    if len(steps) != records:
        _refuse_column(
            f"{len(steps)} steps, expected {records}", "Write a list for each step, empty where none.", "contacts"
        )
    counts = _to_numpy(_require_no_nulls(steps, "contacts").value_lengths(), "contacts")
    a, b, force, impulse = _require_no_nulls(steps.flatten(), "contacts").flatten()
    impulses = impulse.drop_null().to_numpy()
    if np.isnan(impulses).any():
        _refuse_column("nan is not a finite number", "Write null where it was not recorded.", "contacts.impulse_ns")
    return ContactList(
        record=np.repeat(np.arange(records), counts),
        a=_to_numpy(a, "contacts.a").astype(np.int64),
        b=_to_numpy(b, "contacts.b").astype(np.int64),
        force_n=_to_numpy(force, "contacts.force_n"),
        impulse_ns=np.asarray(impulse.fill_null(np.nan).to_numpy(), dtype=np.float64),
    )
