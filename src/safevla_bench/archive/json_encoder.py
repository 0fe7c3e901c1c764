"""One episode of a `Batch` as a line of JSON, which `decode_json` reads back to the same bits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from safevla_bench.trajectory import Batch, Channel
from safevla_recorder.channels import POSES, ROWS


def encode_json(batch: Batch, index: int = 0) -> bytes:
    """Return one episode of a batch as a line of JSON, with its newline."""
    header = msgspec.structs.asdict(batch.headers[index])
    fields = {name: value for name, value in header.items() if value is not None or name == "target_object"}
    extra = batch.extra[index]
    top = _encode_raw(extra.get("header", {}))
    line = {**fields, "body_roles": batch.body_roles(index), "steps": list(_step_values(batch, index)), **top}
    return msgspec.json.encode(line) + b"\n"


def _encode_raw(fields: object) -> dict[str, msgspec.Raw]:
    """Return host-specific fields as JSON text, because they may hold integers of any size."""
    assert isinstance(fields, Mapping)
    return {name: msgspec.Raw(json.dumps(value, allow_nan=False).encode()) for name, value in fields.items()}


def _step_values(batch: Batch, index: int) -> Iterable[dict[str, object]]:
    """Yield the steps of one episode as plain values."""
    first, last = int(batch.starts[index]), int(batch.starts[index + 1])
    extra = batch.extra[index].get("steps", {})
    assert isinstance(extra, Mapping)
    families = list(_channel_values(batch, index))
    for t in range(last - first):
        step: dict[str, object] = {"t": t}
        for name, rows in families:
            if rows[t] is not UNSET:
                step[name] = rows[t]
        yield {**step, **_encode_raw(extra.get(str(t), {}))}


def _channel_values(batch: Batch, index: int) -> Iterable[tuple[str, Sequence[object]]]:
    first, last = int(batch.starts[index]), int(batch.starts[index + 1])
    for spec in ROWS:
        if not spec.is_per_action and batch.channel(spec.name).present[index]:
            yield spec.name, _channel_rows(batch.channel(spec.name), index, last - first)
    for spec in POSES:
        poses = batch.poses(spec.name)
        if poses.present[index]:
            bodies, rows = poses.episode_poses(index)
            names = [batch.body_label(int(body)) for body in bodies]
            yield (
                spec.name,
                [dict(zip(names, row, strict=True)) for row in rows.tolist()] if names else [{}] * (last - first),
            )
    if batch.contacts.present[index]:
        yield "contacts", _contact_lists(batch, index)
    if batch.gripper_present[index]:
        yield "gripper_contact", batch.gripper_contact[first:last].tolist()
    if batch.gripped_present[index]:
        yield "gripped_body", [batch.body_label(k) if k >= 0 else None for k in batch.gripped[first:last].tolist()]
    for spec in ROWS:
        if spec.is_per_action and batch.channel(spec.name).present[index]:
            yield spec.name, [UNSET, *_channel_rows(batch.channel(spec.name), index, last - first - 1)]


def _channel_rows(channel: Channel, index: int, rows: int) -> list[list[float]]:
    return channel.episode_rows(index).tolist() if channel.width[index] else [[]] * rows


def _contact_lists(batch: Batch, index: int) -> list[list[dict[str, object]]]:
    contacts = batch.contacts
    extra = batch.extra[index].get("contacts", {})
    assert isinstance(extra, Mapping)
    begin = int(contacts.starts[batch.starts[index]])

    def contact_values(k: int) -> dict[str, object]:
        pair = {
            "a": batch.body_label(int(contacts.a[k])),
            "b": batch.body_label(int(contacts.b[k])),
            "force_n": float(contacts.force_n[k]),
        }
        impulse = {} if np.isnan(contacts.impulse_ns[k]) else {"impulse_ns": float(contacts.impulse_ns[k])}
        return {**pair, **impulse, **_encode_raw(extra.get(str(k - begin), {}))}

    records = range(int(batch.starts[index]), int(batch.starts[index + 1]))
    return [[contact_values(k) for k in range(int(contacts.starts[r]), int(contacts.starts[r + 1]))] for r in records]
