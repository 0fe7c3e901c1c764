"""A batch of one episode: made of the recorder's plain arrays, cut into its records, and joined of them again.

A record by itself is a batch of one episode with one record, without action, state and host-specific fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

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
from safevla_recorder.channels import ChannelSpec
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
    gripper_contact, gripped = recording.gripper_contact, recording.gripped
    return Batch(
        headers=(header,),
        starts=np.array([0, records], dtype=np.int64),
        body_starts=np.array([0, len(names)], dtype=np.int64),
        body_names=tuple(names),
        body_name=np.arange(len(names), dtype=np.int64),
        body_role=np.array([ROLES.index(role) for role in recording.roles.values()], dtype=np.int8),
        target=np.array([names.index(header.target_object) if header.target_object in names else -1], dtype=np.int64),
        contacts=_build_contacts(recording.contacts, records),
        gripper_contact=np.asarray(np.zeros(records) if gripper_contact is None else gripper_contact, dtype=np.bool_),
        gripper_present=np.array([gripper_contact is not None]),
        gripped=np.asarray(np.full(records, -1) if gripped is None else gripped, dtype=np.int64),
        gripped_present=np.array([gripped is not None]),
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
    return replace(
        batch,
        starts=np.array([0, 1], dtype=np.int64),
        contacts=contacts.take(slice(first, end), np.array([0, end - first], dtype=np.int64), contacts.present),
        gripper_contact=batch.gripper_contact[at : at + 1],
        gripped=batch.gripped[at : at + 1],
        extra=({},),
        **batch_channels(
            lambda spec: _NOTHING if _is_left_out(spec) else _channel_at_record(batch.channel(spec.name), at),
            lambda spec: replace(
                batch.poses(spec.name), channel=_channel_at_record(batch.poses(spec.name).channel, at)
            ),
        ),
    )


def _is_left_out(spec: ChannelSpec) -> bool:
    return spec.is_per_action or spec.name == "sim_state"


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
        gripper_contact=np.concatenate([part.gripper_contact for part in parts]),
        gripped=np.concatenate([part.gripped for part in parts]),
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
