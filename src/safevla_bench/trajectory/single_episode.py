"""A batch of one episode: made of the recorder's plain arrays, cut into its records, and joined of them again.

A record by itself is a batch of one episode with one record, without action, state and host-specific fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.trajectory.batch import (
    Batch,
    Channel,
    Contacts,
    Poses,
    batch_channels,
    batch_of_headers,
    join_lengths,
)
from safevla_bench.trajectory.header import ROLES, Header
from safevla_bench.trajectory.validation import validate
from safevla_recorder.channels import POSES, ROWS, ChannelSpec, as_fields
from safevla_recorder.episode import ContactList, Recording

_NOTHING = Channel(np.empty(0), np.zeros(2, dtype=np.int64), np.array([-1], dtype=np.int64))


def from_recording(recording: Recording) -> Batch:
    """Return the episode as a batch of one.

    Raises `RecordError` naming episode, step, field and remedy if the record is not valid.
    """
    batch = _build_batch(recording)
    validate(batch)
    return batch


def empty_batch() -> Batch:
    """Return a batch of no episodes."""
    return batch_of_headers((), np.empty(0, dtype=np.int64))


def _build_batch(recording: Recording) -> Batch:
    """Return a recording as a batch of one, not validated.

    Families that were not recorded are marked as not present.
    """
    header = Header(**recording.header)  # type: ignore[arg-type]  # checked by `validate` and by readers
    names, records = list(recording.roles), recording.records
    return Batch(
        headers=(header,),
        starts=np.array([0, records], dtype=np.int64),
        body_starts=np.array([0, len(names)], dtype=np.int64),
        body_names=tuple(names),
        body_name=np.arange(len(names), dtype=np.int64),
        body_role=np.array([ROLES.index(role) for role in recording.roles.values()], dtype=np.int8),
        target=np.array([names.index(header.target_object) if header.target_object in names else -1], dtype=np.int64),
        contacts=_build_contacts(recording.contacts, records),
        extra=(recording.extra,),
        **batch_channels(
            lambda spec: _build_channel(None if spec.is_per_action and records == 1 else recording.channel(spec.name)),
            lambda spec: _build_poses(recording, spec),
        ),
    )


def _build_contacts(listed: ContactList | None, records: int) -> Contacts:
    present = np.array([listed is not None])
    if listed is None:
        return Contacts.empty(present, records)
    starts = join_lengths(np.bincount(listed.record, minlength=records))
    return Contacts(present, starts, listed.a, listed.b, listed.force_n, listed.impulse_ns, listed.net_force_n)


def _build_channel(rows: NDArray[Any] | None) -> Channel:
    if rows is None:
        return _NOTHING
    values = np.ascontiguousarray(rows, dtype=np.float64)
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    return Channel(values.reshape(-1), np.array([0, values.size], dtype=np.int64), np.array([width], dtype=np.int64))


def _build_poses(recording: Recording, spec: ChannelSpec) -> Poses:
    rows = recording.channel(spec.name)
    body = np.array(getattr(recording, spec.bodies) if rows is not None else (), dtype=np.int64)
    return Poses(_build_channel(rows), body, np.array([0, len(body)], dtype=np.int64), spec.pose_size)


def to_recording(batch: Batch, index: int) -> Recording:
    """Return one episode of a batch as plain arrays.

    Bodies are places in its own body table, and what was not recorded is None. `from_recording` turns the result into
    the same bits again.
    """
    records, base = int(batch.starts[index + 1] - batch.starts[index]), int(batch.body_starts[index])
    channels: dict[str, Any] = {spec.name: _channel_rows(batch, spec, index, records) for spec in ROWS}
    for spec in POSES:
        channels[spec.bodies], channels[spec.name] = _pose_rows(batch.poses(spec.name), spec, index, records, base)
    return Recording(
        header=msgspec.structs.asdict(batch.headers[index]),
        roles=batch.body_roles(index),
        records=records,
        contacts=_contact_list(batch, index) if batch.contacts.present[index] else None,
        extra=batch.extra[index],
        **as_fields(Recording, channels),
    )


def _channel_rows(batch: Batch, spec: ChannelSpec, index: int, records: int) -> NDArray[Any] | None:
    channel = batch.channel(spec.name)
    width = int(channel.width[index])
    if width < 0:
        return None
    rows = channel.episode_rows(index).reshape(records - spec.is_per_action, width)
    return rows[:, 0].astype(spec.dtype, copy=False) if spec.is_scalar else rows


def _pose_rows(
    poses: Poses, spec: ChannelSpec, index: int, records: int, base: int
) -> tuple[list[int], NDArray[Any] | None]:
    if not poses.present[index]:
        return [], None
    body, rows = poses.episode_poses(index)
    rows = rows.reshape(records, len(body), poses.size)
    return (body - base).tolist(), rows[..., 0].astype(np.bool_) if spec.is_truth else rows


def _contact_list(batch: Batch, index: int) -> ContactList:
    contacts, base = batch.contacts, int(batch.body_starts[index])
    starts = contacts.starts[batch.starts[index] : batch.starts[index + 1] + 1]
    own = slice(int(starts[0]), int(starts[-1]))
    return ContactList(
        record=np.repeat(np.arange(len(starts) - 1), np.diff(starts)),
        a=contacts.a[own] - base,
        b=contacts.b[own] - base,
        force_n=contacts.force_n[own],
        impulse_ns=contacts.impulse_ns[own],
        net_force_n=contacts.net_force_n[own],
    )


# Records


def records(batch: Batch) -> Iterator[Batch]:
    """Yield the records of a batch of one episode, in order, as `select_record` cuts them."""
    for t in range(int(batch.starts[-1])):
        yield select_record(batch, t)


def select_record(batch: Batch, t: int) -> Batch:
    """Return record `t` of a batch of one episode, -1 the last, as an episode of one record with the same header.

    Action, simulator state and host-specific fields are left out; bodies and their numbers stay.
    """
    at = t % int(batch.starts[-1])
    contacts = batch.contacts
    first, end = int(contacts.starts[at]), int(contacts.starts[at + 1])
    left_out = {"sim_state", *(spec.name for spec in ROWS if spec.is_per_action)}
    return replace(
        batch,
        starts=np.array([0, 1], dtype=np.int64),
        contacts=contacts.take(slice(first, end), np.array([0, end - first], dtype=np.int64), contacts.present),
        extra=({},),
        **batch_channels(
            lambda spec: _NOTHING if spec.name in left_out else _channel_at_record(batch.channel(spec.name), at),
            lambda spec: replace(
                batch.poses(spec.name), channel=_channel_at_record(batch.poses(spec.name).channel, at)
            ),
        ),
    )


def add_rows(batch: Batch, name: str, rows: NDArray[np.float64]) -> Batch:
    """Return a batch of one episode with the rows [n, width] of a channel that has no field of its own."""
    return replace(batch, further={**batch.further, name: _build_channel(rows)})


def join_records(parts: Sequence[Batch]) -> Batch:
    """Return records of one scene, as `select_record` cuts them, as one episode with the header of the first.

    At least one record is needed; a single one is returned itself.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return replace(
        first,
        starts=np.array([0, len(parts)], dtype=np.int64),
        contacts=Contacts.join([part.contacts for part in parts], first.contacts.present, [0] * len(parts)),
        **batch_channels(
            lambda spec: _join_rows([part.channel(spec.name) for part in parts]),
            lambda spec: replace(
                first.poses(spec.name), channel=_join_rows([part.poses(spec.name).channel for part in parts])
            ),
        ),
    )


def _channel_at_record(channel: Channel, at: int) -> Channel:
    width = max(int(channel.width[0]), 0)
    values = channel.values[at * width : (at + 1) * width]
    return Channel(values, np.array([0, len(values)], dtype=np.int64), channel.width)


def _join_rows(channels: Sequence[Channel]) -> Channel:
    values = np.concatenate([channel.values for channel in channels])
    return Channel(values, np.array([0, len(values)], dtype=np.int64), channels[0].width)
