"""From one episode of a `Batch` to a line of JSON that `decode` reads back to the same bits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from safevla_bench.trajectory import Batch, Channel


def encode(batch: Batch, index: int = 0) -> bytes:
    """One episode of a batch as a line of JSON, newline included; `decode` gives back the same bits."""
    header = msgspec.structs.asdict(batch.headers[index])
    given = {name: value for name, value in header.items() if value is not None or name == "target_object"}
    extra = batch.extra[index]
    top = _raw(extra.get("header", {}))
    line = {**given, "body_roles": batch.bodies(index), "steps": list(_steps(batch, index)), **top}
    return msgspec.json.encode(line) + b"\n"


def _raw(fields: object) -> dict[str, msgspec.Raw]:
    """Host-specific fields as JSON text: they may hold integers of any size."""
    assert isinstance(fields, Mapping)
    return {name: msgspec.Raw(json.dumps(value, allow_nan=False).encode()) for name, value in fields.items()}


def _steps(batch: Batch, index: int) -> Iterable[dict[str, object]]:
    """The steps of one episode as plain values, families in the order of the schema."""
    first, last = int(batch.starts[index]), int(batch.starts[index + 1])
    extra = batch.extra[index].get("steps", {})
    assert isinstance(extra, Mapping)
    families = list(_families(batch, index))
    for t in range(last - first):
        step: dict[str, object] = {"t": t}
        for name, rows in families:
            if rows[t] is not UNSET:
                step[name] = rows[t]
        yield {**step, **_raw(extra.get(str(t), {}))}


def _families(batch: Batch, index: int) -> Iterable[tuple[str, Sequence[object]]]:
    first, last = int(batch.starts[index]), int(batch.starts[index + 1])
    for name in ("eef_pos_m", "eef_quat_wxyz", "joint_torque_nm", "sim_state"):
        channel = getattr(batch, name)
        if channel.present[index]:
            yield name, _rows(channel, index, last - first)
    for name in ("body_pos_m", "body_quat_wxyz"):
        poses = getattr(batch, name)
        if poses.present[index]:
            bodies, rows = poses.episode(index)
            names = [batch.name(int(body)) for body in bodies]
            yield (
                name,
                [dict(zip(names, row, strict=True)) for row in rows.tolist()] if names else [{}] * (last - first),
            )
    if batch.contacts.present[index]:
        yield "contacts", _contact_lists(batch, index)
    if batch.gripper_present[index]:
        yield "gripper_contact", batch.gripper_contact[first:last].tolist()
    if batch.gripped_present[index]:
        yield "gripped_body", [batch.name(k) if k >= 0 else None for k in batch.gripped[first:last].tolist()]
    if batch.action.present[index]:
        yield "action", [UNSET, *_rows(batch.action, index, last - first - 1)]


def _rows(channel: Channel, index: int, rows: int) -> list[list[float]]:
    return channel.episode(index).tolist() if channel.width[index] else [[]] * rows


def _contact_lists(batch: Batch, index: int) -> list[list[dict[str, object]]]:
    contacts = batch.contacts
    extra = batch.extra[index].get("contacts", {})
    assert isinstance(extra, Mapping)
    begin = int(contacts.starts[batch.starts[index]])

    def one(k: int) -> dict[str, object]:
        pair = {
            "a": batch.name(int(contacts.a[k])),
            "b": batch.name(int(contacts.b[k])),
            "force_n": float(contacts.force_n[k]),
        }
        impulse = {} if np.isnan(contacts.impulse_ns[k]) else {"impulse_ns": float(contacts.impulse_ns[k])}
        return {**pair, **impulse, **_raw(extra.get(str(k - begin), {}))}

    records = range(int(batch.starts[index]), int(batch.starts[index + 1]))
    return [[one(k) for k in range(int(contacts.starts[r]), int(contacts.starts[r + 1]))] for r in records]
