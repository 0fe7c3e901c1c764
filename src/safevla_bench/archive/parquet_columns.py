"""The columns of the Parquet form: batches as Arrow tables, one row an episode, without a loop over steps.

Columns carry the names, types and units of the record: the header's fields, `bodies` (name and role), the number of
`records`, and the families as nested lists over the steps. Null = not recorded. Bodies elsewhere are places in
`bodies`, counted from 0; `pos_bodies` and `quat_bodies` say whose poses a step lists. `extra` holds host-specific
fields as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench.archive import extra_fields
from safevla_bench.trajectory import Batch, Channel, Poses
from safevla_recorder.channels import NUMERIC, POSES, ROWS

LIST_DEPTHS: Mapping[str, int] = {spec.name: len(spec.shape) for spec in NUMERIC}
"""Channels of numbers, and the levels of their nested lists."""
BODIES: Mapping[str, str] = {spec.name: spec.bodies for spec in POSES}
"""Channels of poses, and the columns of their bodies."""
_CONTACT = pa.struct([("a", pa.int32()), ("b", pa.int32()), ("force_n", pa.float64()), ("impulse_ns", pa.float64())])


def _nest_list(kind: pa.DataType, depth: int) -> pa.DataType:
    return kind if depth == 0 else pa.list_(_nest_list(kind, depth - 1))


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
        *(pa.field(name, _nest_list(pa.float64(), depth)) for name, depth in LIST_DEPTHS.items()),
        *(pa.field(name, pa.list_(pa.int32())) for name in BODIES.values()),
        pa.field("contacts", _nest_list(_CONTACT, 2)),
        pa.field("gripper_contact", pa.list_(pa.bool_())),
        pa.field("gripped_body", pa.list_(pa.int32())),
        pa.field("extra", pa.string()),
    ]
)
_Ints = NDArray[np.int64]


def to_table(batch: Batch) -> pa.Table:
    """Return all episodes of a batch as a table of `SCHEMA`, a row each."""
    columns: dict[str, pa.Array] = {name: _header_column(batch, name) for name in HEADER.names}
    columns["bodies"] = _body_column(batch)
    columns["records"] = pa.array(batch.lengths)
    for spec in ROWS:
        columns[spec.name] = _row_column(batch.channel(spec.name), batch.lengths - spec.is_per_action)
    for spec in POSES:
        columns[spec.name] = _pose_column(batch.poses(spec.name), batch.lengths)
        columns[spec.bodies] = _posed_body_column(batch, batch.poses(spec.name))
    columns["contacts"] = _contact_column(batch)
    columns["gripper_contact"] = _record_column(batch, pa.array(batch.gripper_contact), batch.gripper_present)
    columns["gripped_body"] = _gripped_column(batch)
    columns["extra"] = pa.array(
        [extra_fields.format_extra_fields(extra) if extra else None for extra in batch.extra], pa.string()
    )
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _header_column(batch: Batch, name: str) -> pa.Array:
    values = [getattr(header, name) for header in batch.headers]
    if name == "versions":
        values = [None if versions is None else list(versions.items()) for versions in values]
    return pa.array(values, HEADER.field(name).type)


def _body_column(batch: Batch) -> pa.Array:
    rows = [[{"name": n, "role": r} for n, r in batch.body_roles(e).items()] for e in range(len(batch))]
    return pa.array(rows, SCHEMA.field("bodies").type)


def _list_array(values: pa.Array, lengths: _Ints, present: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return values cut into lists of these lengths; null where not present. More than 2³¹ values raise."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=None if present is None else pa.array(~present))


def _row_column(channel: Channel, steps: _Ints) -> pa.Array:
    rows = np.where(channel.present, steps, 0)
    width = np.repeat(np.maximum(channel.width, 0), rows)
    return _list_array(_list_array(pa.array(channel.values), width), rows, channel.present)


def _pose_column(poses: Poses, steps: _Ints) -> pa.Array:
    rows = np.where(poses.present, steps, 0)
    bodies = np.repeat(np.diff(poses.body_starts), rows)
    vectors = _list_array(pa.array(poses.channel.values), np.full(int(bodies.sum()), poses.size))
    return _list_array(_list_array(vectors, bodies), rows, poses.present)


def _posed_body_column(batch: Batch, poses: Poses) -> pa.Array:
    counts = np.diff(poses.body_starts)
    places = poses.body - np.repeat(batch.body_starts[:-1], counts)
    return _list_array(pa.array(places, pa.int32()), counts, poses.present)


def _contact_column(batch: Batch) -> pa.Array:
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
    """Return values per record, [N], as a list for each episode that recorded them."""
    recorded = per_record.filter(pa.array(np.repeat(present, batch.lengths)))
    return _list_array(recorded, np.where(present, batch.lengths, 0), present)


def _gripped_column(batch: Batch) -> pa.Array:
    base = np.repeat(batch.body_starts[:-1], batch.lengths)
    places = pa.array(batch.gripped - base, pa.int32(), mask=batch.gripped < 0)
    return _record_column(batch, places, batch.gripped_present)
