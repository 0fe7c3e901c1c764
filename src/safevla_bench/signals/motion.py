"""Motion of the arm: joint torques against its limits, and smoothness of the end effector (paper Tables 17 and 19).

Smoothness is the speed, acceleration and jerk of the end effector's smoothed position. The position is smoothed by a
centred mean of five records, never padded; Δₙ are central differences. The interior is records 3 … n-4 for speed and
acceleration and 4 … n-5 for jerk; records outside it take the nearest interior value.
"""

from __future__ import annotations

import numpy as np

from safevla_bench.signals.held_target import extend_interior
from safevla_bench.signals.record_fields import Floats, Ints, RecordFields
from safevla_bench.signals.signal import signal
from safevla_bench.trajectory import Channel


@signal(unit="1", reads=("joint_torque_nm",))
def joint_torque_ratio(fields: RecordFields) -> Floats:
    """Largest joint torque as a share of that joint's limit, max over j of |τ_j|/τ_j^max."""
    return _torque_ratio(fields, fields.batch.joint_torque_nm)


@signal(unit="1", reads=("joint_torque_peak_nm",))
def joint_torque_peak_ratio(fields: RecordFields) -> Floats:
    """The same of the largest torques over the physics substeps of the control step, not of those at its end."""
    return _torque_ratio(fields, fields.batch.channel("joint_torque_peak_nm"))


def _torque_ratio(fields: RecordFields, channel: Channel) -> Floats:
    """Return the largest share of a limit in each record, [N], NaN in episodes without the channel."""
    ratio = np.full(int(fields.batch.starts[-1]), np.nan)
    for joints in np.unique(channel.width[channel.width > 0]):
        episodes = np.flatnonzero(channel.width == joints)
        records = np.isin(fields.batch.episode_of_record, episodes)
        ratio[records] = _ratio_of_arms(fields, channel, episodes, int(joints))
    return ratio


def _ratio_of_arms(fields: RecordFields, channel: Channel, episodes: Ints, joints: int) -> Floats:
    """Return the ratio in the records of episodes that have the same number of joints."""
    batch = fields.batch
    limits = np.array([batch.headers[e].torque_limit_nm for e in episodes])
    chosen = np.repeat(np.isin(np.arange(len(batch)), episodes), np.diff(channel.starts))
    torque = np.abs(channel.values[chosen]).reshape(-1, joints)
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


@signal(unit="m/s", reads=("eef_pos_m",), ahead=True)
def eef_speed(fields: RecordFields) -> Floats:
    """‖Δ₁x̃‖/dt with Δ₁x = (x₊ - x₋)/2."""
    x = _smoothed_position(fields)
    return _derivative_norm(fields, (_shift_rows(x, 1) - _shift_rows(x, -1)) / 2.0, order=1, margin=3)


@signal(unit="m/s^2", reads=("eef_pos_m",), ahead=True)
def eef_acc(fields: RecordFields) -> Floats:
    """‖Δ₂x̃‖/dt² with Δ₂x = x₊ - 2x + x₋."""
    x = _smoothed_position(fields)
    return _derivative_norm(fields, _shift_rows(x, 1) - 2.0 * x + _shift_rows(x, -1), order=2, margin=3)


@signal(unit="m/s^3", reads=("eef_pos_m",), ahead=True)
def eef_jerk(fields: RecordFields) -> Floats:
    """‖Δ₃x̃‖/dt³ with Δ₃x = (x₊₂ - 2x₊₁ + 2x₋₁ - x₋₂)/2."""
    x = _smoothed_position(fields)
    third = (_shift_rows(x, 2) - 2.0 * _shift_rows(x, 1) + 2.0 * _shift_rows(x, -1) - _shift_rows(x, -2)) / 2.0
    return _derivative_norm(fields, third, order=3, margin=4)


def _shift_rows(x: Floats, by: int) -> Floats:
    """Return `x` with row t + by at row t. Rows that reach over an end mean nothing and are not read."""
    return np.roll(x, -by, axis=0)


def _smoothed_position(fields: RecordFields) -> Floats:
    """Return the centred mean of five records [m], [N, 3]. Means nothing within two records of an episode's end."""
    x = fields.eef_pos
    return (_shift_rows(x, -2) + _shift_rows(x, -1) + x + _shift_rows(x, 1) + _shift_rows(x, 2)) / 5.0


def _derivative_norm(fields: RecordFields, difference: Floats, order: int, margin: int) -> Floats:
    size = np.sqrt(np.square(difference).sum(axis=1)) / fields.dt_s**order
    return extend_interior(fields, size, margin)
