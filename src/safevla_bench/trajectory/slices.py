"""Records of one episode one by one: cut from it, and put together again.

A record by itself is a batch of one episode with one record, without action, state and host-specific fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from safevla_bench.trajectory.batch import Batch, Channel, Contacts, Poses

_NOTHING = Channel(np.empty(0), np.zeros(2, dtype=np.int64), np.array([-1], dtype=np.int64))


def records(batch: Batch) -> Iterator[Batch]:
    """The records of a batch of one episode, in order."""
    for t in range(int(batch.starts[-1])):
        yield record(batch, t)


def record(batch: Batch, t: int) -> Batch:
    """Record `t` of a batch of one episode; -1 is the last."""
    at = t % int(batch.starts[-1])
    touching = slice(batch.contacts.starts[at], batch.contacts.starts[at + 1])
    return replace(
        batch,
        starts=np.array([0, 1], dtype=np.int64),
        eef_pos_m=_row(batch.eef_pos_m, at),
        eef_quat_wxyz=_row(batch.eef_quat_wxyz, at),
        body_pos_m=replace(batch.body_pos_m, channel=_row(batch.body_pos_m.channel, at)),
        body_quat_wxyz=replace(batch.body_quat_wxyz, channel=_row(batch.body_quat_wxyz.channel, at)),
        contacts=Contacts(
            present=batch.contacts.present,
            starts=np.array([0, touching.stop - touching.start], dtype=np.int64),
            a=batch.contacts.a[touching],
            b=batch.contacts.b[touching],
            force_n=batch.contacts.force_n[touching],
            impulse_ns=batch.contacts.impulse_ns[touching],
        ),
        joint_torque_nm=_row(batch.joint_torque_nm, at),
        gripper_contact=batch.gripper_contact[at : at + 1],
        gripped=batch.gripped[at : at + 1],
        action=_NOTHING,
        sim_state=_NOTHING,
        extra=({},),
    )


def successive(parts: Sequence[Batch]) -> Batch:
    """Records of one scene, as `record` cuts them, as one episode with the header of the first."""
    if len(parts) == 1:
        return parts[0]
    first, contacts = parts[0], [part.contacts for part in parts]
    counts = [len(one.a) for one in contacts]
    return replace(
        first,
        starts=np.array([0, len(parts)], dtype=np.int64),
        eef_pos_m=_rows([part.eef_pos_m for part in parts]),
        eef_quat_wxyz=_rows([part.eef_quat_wxyz for part in parts]),
        body_pos_m=_poses([part.body_pos_m for part in parts]),
        body_quat_wxyz=_poses([part.body_quat_wxyz for part in parts]),
        contacts=Contacts(
            present=first.contacts.present,
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            a=np.concatenate([one.a for one in contacts]),
            b=np.concatenate([one.b for one in contacts]),
            force_n=np.concatenate([one.force_n for one in contacts]),
            impulse_ns=np.concatenate([one.impulse_ns for one in contacts]),
        ),
        joint_torque_nm=_rows([part.joint_torque_nm for part in parts]),
        gripper_contact=np.concatenate([part.gripper_contact for part in parts]),
        gripped=np.concatenate([part.gripped for part in parts]),
    )


def _row(channel: Channel, at: int) -> Channel:
    width = max(int(channel.width[0]), 0)
    values = channel.values[at * width : (at + 1) * width]
    return Channel(values, np.array([0, len(values)], dtype=np.int64), channel.width)


def _rows(channels: Sequence[Channel]) -> Channel:
    values = np.concatenate([channel.values for channel in channels])
    return Channel(values, np.array([0, len(values)], dtype=np.int64), channels[0].width)


def _poses(poses: Sequence[Poses]) -> Poses:
    return replace(poses[0], channel=_rows([one.channel for one in poses]))
