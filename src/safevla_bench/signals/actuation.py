"""Actuation: joint torques against the arm's limits (paper Tables 17 and 19)."""

from __future__ import annotations

import numpy as np

from safevla_bench.signals.record_fields import Floats, Ints, Reading
from safevla_bench.signals.signal import signal


@signal(unit="1", reads=("joint_torque_nm",))
def joint_torque_ratio(reading: Reading) -> Floats:
    """Largest joint torque as a share of that joint's limit, max over j of |τ_j|/τ_j^max."""
    channel, ratio = reading.batch.joint_torque_nm, np.full(int(reading.batch.starts[-1]), np.nan)
    for joints in np.unique(channel.width[channel.width > 0]):
        episodes = np.flatnonzero(channel.width == joints)
        ratio[np.isin(reading.batch.episode_of_record, episodes)] = _ratio(reading, episodes, int(joints))
    return ratio


def _ratio(reading: Reading, episodes: Ints, joints: int) -> Floats:
    """The ratio in the records of episodes that have the same number of joints."""
    batch = reading.batch
    limits = np.array([batch.headers[e].torque_limit_nm for e in episodes])
    chosen = np.repeat(np.isin(np.arange(len(batch)), episodes), np.diff(batch.joint_torque_nm.starts))
    torque = np.abs(batch.joint_torque_nm.values[chosen]).reshape(-1, joints)
    ratio: Floats = (torque / np.repeat(limits, batch.lengths[episodes], axis=0)).max(axis=1)
    return ratio


@signal(unit="N m", reads=("joint_torque_nm",))
def joint_torque_max(reading: Reading) -> Floats:
    """Largest joint torque, max over j of |τ_j|, whatever each joint's limit."""
    channel, largest = reading.batch.joint_torque_nm, np.full(int(reading.batch.starts[-1]), np.nan)
    widths = np.repeat(np.maximum(channel.width, 0), reading.batch.lengths)
    there = widths > 0
    if there.any():
        largest[there] = np.maximum.reduceat(np.abs(channel.values), (np.cumsum(widths) - widths)[there])
    return largest
