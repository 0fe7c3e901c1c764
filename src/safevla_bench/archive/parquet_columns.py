"""Batches as Arrow tables, one row an episode: the columns of the Parquet form, written without a loop over steps.

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

REALS: Mapping[str, int] = {
    "eef_pos_m": 1,
    "eef_quat_wxyz": 1,
    "body_pos_m": 2,
    "body_quat_wxyz": 2,
    "joint_torque_nm": 1,
    "action": 1,
    "sim_state": 1,
}
"""Families of numbers, and how many lists lie inside a step's."""
BODIES: Mapping[str, str] = {"body_pos_m": "pos_bodies", "body_quat_wxyz": "quat_bodies"}
_CONTACT = pa.struct([("a", pa.int32()), ("b", pa.int32()), ("force_n", pa.float64()), ("impulse_ns", pa.float64())])


def _nested(kind: pa.DataType, depth: int) -> pa.DataType:
    return kind if depth == 0 else pa.list_(_nested(kind, depth - 1))


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
        ("dropped_pairs", _nested(pa.string(), 2)),
    ]
)
SCHEMA = pa.schema(
    [
        *HEADER,
        pa.field("bodies", pa.list_(pa.struct([("name", pa.string()), ("role", pa.string())]))),
        pa.field("records", pa.int64()),
        *(pa.field(name, _nested(pa.float64(), depth + 1)) for name, depth in REALS.items()),
        *(pa.field(name, pa.list_(pa.int32())) for name in BODIES.values()),
        pa.field("contacts", _nested(_CONTACT, 2)),
        pa.field("gripper_contact", pa.list_(pa.bool_())),
        pa.field("gripped_body", pa.list_(pa.int32())),
        pa.field("extra", pa.string()),
    ]
)
_Ints = NDArray[np.int64]


def table(batch: Batch) -> pa.Table:
    """All episodes of a batch, a row each, by `SCHEMA`."""
    columns: dict[str, pa.Array] = {name: _said(batch, name) for name in HEADER.names}
    columns["bodies"] = _bodies(batch)
    columns["records"] = pa.array(batch.lengths)
    for name in REALS:
        family = getattr(batch, name)
        columns[name] = _poses(family, batch.lengths) if name in BODIES else _rows(family, _steps(batch, name))
    for name, column in BODIES.items():
        columns[column] = _posed(batch, getattr(batch, name))
    columns["contacts"] = _contacts(batch)
    columns["gripper_contact"] = _spread(batch, pa.array(batch.gripper_contact), batch.gripper_present)
    columns["gripped_body"] = _gripped(batch)
    columns["extra"] = pa.array([extra_fields.to_text(one) if one else None for one in batch.extra], pa.string())
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _said(batch: Batch, name: str) -> pa.Array:
    values = [getattr(header, name) for header in batch.headers]
    if name == "versions":
        values = [None if versions is None else list(versions.items()) for versions in values]
    return pa.array(values, HEADER.field(name).type)


def _bodies(batch: Batch) -> pa.Array:
    rows = [[{"name": n, "role": r} for n, r in batch.bodies(e).items()] for e in range(len(batch))]
    return pa.array(rows, SCHEMA.field("bodies").type)


def _lists(values: pa.Array, lengths: _Ints, present: NDArray[np.bool_] | None = None) -> pa.Array:
    """Values cut into lists of these lengths; null where not present. More than 2³¹ values do not fit and raise."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=None if present is None else pa.array(~present))


def _steps(batch: Batch, name: str) -> _Ints:
    return batch.lengths - 1 if name == "action" else batch.lengths


def _rows(channel: Channel, steps: _Ints) -> pa.Array:
    rows = np.where(channel.present, steps, 0)
    width = np.repeat(np.maximum(channel.width, 0), rows)
    return _lists(_lists(pa.array(channel.values), width), rows, channel.present)


def _poses(poses: Poses, steps: _Ints) -> pa.Array:
    rows = np.where(poses.present, steps, 0)
    each = np.repeat(np.diff(poses.body_starts), rows)
    one = _lists(pa.array(poses.channel.values), np.full(int(each.sum()), poses.size))
    return _lists(_lists(one, each), rows, poses.present)


def _posed(batch: Batch, poses: Poses) -> pa.Array:
    counts = np.diff(poses.body_starts)
    places = poses.body - np.repeat(batch.body_starts[:-1], counts)
    return _lists(pa.array(places, pa.int32()), counts, poses.present)


def _contacts(batch: Batch) -> pa.Array:
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
    return _lists(_lists(touching, counts[recorded]), np.where(contacts.present, batch.lengths, 0), contacts.present)


def _spread(batch: Batch, per_record: pa.Array, present: NDArray[np.bool_]) -> pa.Array:
    """A value a record as lists of the episodes that recorded it."""
    recorded = per_record.filter(pa.array(np.repeat(present, batch.lengths)))
    return _lists(recorded, np.where(present, batch.lengths, 0), present)


def _gripped(batch: Batch) -> pa.Array:
    base = np.repeat(batch.body_starts[:-1], batch.lengths)
    places = pa.array(batch.gripped - base, pa.int32(), mask=batch.gripped < 0)
    return _spread(batch, places, batch.gripped_present)
