"""Actuation: joint torques against the arm's limits (paper Tables 17 and 19)."""

from __future__ import annotations

import numpy as np

from safevla_bench.signals.record_fields import Floats, Ints, RecordFields
from safevla_bench.signals.signal import signal


@signal(unit="1", reads=("joint_torque_nm",))
def joint_torque_ratio(fields: RecordFields) -> Floats:
    """Largest joint torque as a share of that joint's limit, max over j of |τ_j|/τ_j^max."""
    channel, ratio = fields.batch.joint_torque_nm, np.full(int(fields.batch.starts[-1]), np.nan)
    for joints in np.unique(channel.width[channel.width > 0]):
        episodes = np.flatnonzero(channel.width == joints)
        ratio[np.isin(fields.batch.episode_of_record, episodes)] = _torque_ratio(fields, episodes, int(joints))
    return ratio


def _torque_ratio(fields: RecordFields, episodes: Ints, joints: int) -> Floats:
    """Return the ratio in the records of episodes that have the same number of joints."""
    batch = fields.batch
    limits = np.array([batch.headers[e].torque_limit_nm for e in episodes])
    chosen = np.repeat(np.isin(np.arange(len(batch)), episodes), np.diff(batch.joint_torque_nm.starts))
    torque = np.abs(batch.joint_torque_nm.values[chosen]).reshape(-1, joints)
    ratio: Floats = (torque / np.repeat(limits, batch.lengths[episodes], axis=0)).max(axis=1)
    return ratio


@signal(unit="N m", reads=("joint_torque_nm",))
def joint_torque_max(fields: RecordFields) -> Floats:
    """Largest joint torque, max over j of |τ_j|, whatever each joint's limit."""
    channel, largest = fields.batch.joint_torque_nm, np.full(int(fields.batch.starts[-1]), np.nan)
    widths = np.repeat(np.maximum(channel.width, 0), fields.batch.lengths)
    has_torque = widths > 0
    if has_torque.any():
        largest[has_torque] = np.maximum.reduceat(np.abs(channel.values), (np.cumsum(widths) - widths)[has_torque])
    return largest
