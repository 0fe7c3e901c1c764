"""Single records of an episode: cut from it, and joined again.

A record by itself is a batch of one episode with one record, without action, state and host-specific fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from safevla_bench.trajectory.batch import Batch, Channel, Contacts, Poses
from safevla_recorder.channels import POSES, ROWS, as_fields

_NOTHING = Channel(np.empty(0), np.zeros(2, dtype=np.int64), np.array([-1], dtype=np.int64))
_LEFT_OUT = ("action", "sim_state")


def records(batch: Batch) -> Iterator[Batch]:
    """Yield the records of a batch of one episode, in order."""
    for t in range(int(batch.starts[-1])):
        yield select_record(batch, t)


def select_record(batch: Batch, t: int) -> Batch:
    """Return record `t` of a batch of one episode; -1 is the last."""
    at = t % int(batch.starts[-1])
    touching = slice(batch.contacts.starts[at], batch.contacts.starts[at + 1])
    return replace(
        batch,
        starts=np.array([0, 1], dtype=np.int64),
        contacts=Contacts(
            present=batch.contacts.present,
            starts=np.array([0, touching.stop - touching.start], dtype=np.int64),
            a=batch.contacts.a[touching],
            b=batch.contacts.b[touching],
            force_n=batch.contacts.force_n[touching],
            impulse_ns=batch.contacts.impulse_ns[touching],
        ),
        gripper_contact=batch.gripper_contact[at : at + 1],
        gripped=batch.gripped[at : at + 1],
        extra=({},),
        **as_fields(
            Batch,
            {spec.name: _cut_channel(batch, spec.name, at) for spec in ROWS}
            | {spec.name: _cut_poses(batch.poses(spec.name), at) for spec in POSES},
        ),
    )


def join_records(parts: Sequence[Batch]) -> Batch:
    """Return records of one scene, as `select_record` cuts them, as one episode with the header of the first.

    At least one record is needed; a single one is returned itself.
    """
    if len(parts) == 1:
        return parts[0]
    first, contacts = parts[0], [part.contacts for part in parts]
    counts = [len(part.a) for part in contacts]
    return replace(
        first,
        starts=np.array([0, len(parts)], dtype=np.int64),
        contacts=Contacts(
            present=first.contacts.present,
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            a=np.concatenate([part.a for part in contacts]),
            b=np.concatenate([part.b for part in contacts]),
            force_n=np.concatenate([part.force_n for part in contacts]),
            impulse_ns=np.concatenate([part.impulse_ns for part in contacts]),
        ),
        gripper_contact=np.concatenate([part.gripper_contact for part in parts]),
        gripped=np.concatenate([part.gripped for part in parts]),
        **as_fields(
            Batch,
            {spec.name: _join_rows([part.channel(spec.name) for part in parts]) for spec in ROWS}
            | {spec.name: _join_poses([part.poses(spec.name) for part in parts]) for spec in POSES},
        ),
    )


def _cut_channel(batch: Batch, name: str, at: int) -> Channel:
    return _NOTHING if name in _LEFT_OUT else _channel_at_record(batch.channel(name), at)


def _cut_poses(poses: Poses, at: int) -> Poses:
    return replace(poses, channel=_channel_at_record(poses.channel, at))


def _channel_at_record(channel: Channel, at: int) -> Channel:
    """Return the channel with its record `at` alone."""
    width = max(int(channel.width[0]), 0)
    values = channel.values[at * width : (at + 1) * width]
    return Channel(values, np.array([0, len(values)], dtype=np.int64), channel.width)


def _join_rows(channels: Sequence[Channel]) -> Channel:
    values = np.concatenate([channel.values for channel in channels])
    return Channel(values, np.array([0, len(values)], dtype=np.int64), channels[0].width)


def _join_poses(poses: Sequence[Poses]) -> Poses:
    return replace(poses[0], channel=_join_rows([part.channel for part in poses]))
