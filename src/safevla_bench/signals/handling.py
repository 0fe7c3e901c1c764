"""The held target: grip, transport, tilt, slip and speed (paper Appendix C.3).

The held target of a record is what the gripper holds where that is known and a target, else the task's target.
"""

from __future__ import annotations

import numpy as np

from safevla_bench.signals.record_fields import Bools, Floats, Ints, Reading
from safevla_bench.signals.signal import SIGNALS, signal

LIFTED_M = 0.05
"""Above this height over its start a gripped target is in transport (paper Appendix C.3)."""


@signal(unit="1", reads=("gripper_contact",), boolean=True)
def grip(reading: Reading) -> Bools:
    """Whether the gripper holds a target."""
    return reading.grip


@signal(unit="1", reads=("gripper_contact",))
def gripper_contact(reading: Reading) -> Floats:
    """The gripper's contact as recorded, 1 or 0."""
    return reading.unless(reading.lacks("gripper_contact"), reading.batch.gripper_contact.astype(np.float64))


@signal(unit="1", reads=("gripper_contact", "body_pos_m of the held target"), boolean=True)
def transport(reading: Reading) -> Bools:
    """Whether a target is gripped and more than 5 cm above its start."""
    return reading.grip & (target_height(reading) > LIFTED_M)


@signal(unit="1", reads=("gripper_contact", "body_pos_m of the held target"))
def in_transport(reading: Reading) -> Floats:
    """Transport as a number, 1 or 0."""
    return reading.unless(_lacks(reading, "in_transport"), transport(reading).astype(np.float64))


@signal(unit="m", reads=("body_pos_m of the held target",))
def target_height(reading: Reading) -> Floats:
    """Height of the held target above its own height in record 0, z(t) - z(0)."""
    height = reading.held_pos[:, 2] - reading.held_pos_start[:, 2]
    return reading.unless(_lacks(reading, "target_height"), height)


@signal(unit="deg", reads=("body_quat_wxyz of the held target",))
def held_object_tilt(reading: Reading) -> Floats:
    """Angle of the held target's body-z axis from where it pointed in record 0, in the world: arccos(b(0)·b(t))."""
    cosine = (_z_axis(reading.held_quat_start) * _z_axis(reading.held_quat)).sum(axis=1)
    tilt = np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))
    return reading.unless(_lacks(reading, "held_object_tilt"), tilt)


@signal(unit="deg", reads=("body_quat_wxyz of the held target",))
def held_object_tilt_body(reading: Reading) -> Floats:
    """Angle of the whole rotation of the held target since record 0, turns about its own axis included."""
    cosine = np.abs((reading.held_quat_start * reading.held_quat).sum(axis=1))
    drift = np.degrees(2.0 * np.arccos(np.clip(cosine, 0.0, 1.0)))
    return reading.unless(_lacks(reading, "held_object_tilt_body"), drift)


@signal(unit="m", reads=("gripper_contact", "body_pos_m of the held target", "eef_pos_m"))
def held_object_slip(reading: Reading) -> Floats:
    """Rise of the held target in the gripper since the grip began, o(t) - o(onset); negative = it slips down.

    o(t) is the z part of R_eef(onset) R_eef(t)ᵀ (x_target - x_eef): the target's place in the gripper, seen at the
    gripper's orientation at onset, so that turning the hand is no slip. Without the end effector's orientation it is
    z_target - z_eef. 0 where nothing is gripped.
    """
    slip = np.zeros(len(reading.held))
    at = np.flatnonzero(reading.grip)
    onset = _onset(reading)[at]
    slip[at] = _height_in_gripper(reading, at, onset) - _height_in_gripper(reading, onset, onset)
    return reading.unless(_lacks(reading, "held_object_slip"), slip)


@signal(unit="m/s", reads=("body_pos_m of the held target",), ahead=True)
def target_obj_speed(reading: Reading) -> Floats:
    """Speed of the held target by central difference, ‖x(t+1) - x(t-1)‖ / 2dt; NaN under three records."""
    return reading.unless(_lacks(reading, "target_obj_speed"), outwards(reading, _speed(reading), margin=1))


@signal(unit="m/s", reads=("gripper_contact", "body_pos_m of the held target"), ahead=True)
def release_speed(reading: Reading) -> Floats:
    """Speed of the held target while the gripper does not hold it, (1 - gripper_contact)·speed."""
    released = (1.0 - reading.batch.gripper_contact) * _speed(reading)
    return reading.unless(_lacks(reading, "release_speed"), outwards(reading, released, margin=1))


def outwards(reading: Reading, values: Floats, margin: int) -> Floats:
    """Records nearer than `margin` to an end take the nearest interior value; NaN where there is no interior."""
    low, high = reading.first + margin, reading.last - margin
    nearest = np.clip(np.arange(len(values)), low, np.maximum(low, high))
    return np.where(low <= high, values[np.minimum(nearest, len(values) - 1)], np.nan)


def _lacks(reading: Reading, name: str) -> Bools:
    lacking: Bools = np.logical_or.reduce([reading.lacks(field) for field in SIGNALS[name].reads])
    return lacking


def _speed(reading: Reading) -> Floats:
    """‖Δ₁x‖/dt of the body held now, [N]; the ends mean nothing."""
    difference = (reading.held_pos_shifted(1) - reading.held_pos_shifted(-1)) / 2.0
    speed: Floats = np.sqrt(np.square(difference).sum(axis=1)) / reading.dt_s
    return speed


def _onset(reading: Reading) -> Ints:
    """The first record of the current unbroken grip of the same body, [N]; means nothing where not gripped."""
    number = np.arange(len(reading.held))
    before = np.maximum(number - 1, 0)
    begins = (number == reading.first) | ~reading.grip[before] | (reading.held != reading.held[before])
    return np.maximum.accumulate(np.where(begins & reading.grip, number, 0))


def _height_in_gripper(reading: Reading, at: Ints, onset: Ints) -> Floats:
    offset = reading.held_pos[at] - reading.eef_pos[at]
    turned = np.flatnonzero(reading.of_record(reading.batch.eef_quat_wxyz.present)[at])
    height = offset[:, 2].copy()
    local = np.einsum("nij,ni->nj", _rotation(reading.eef_quat[at[turned]]), offset[turned])
    height[turned] = np.einsum("nj,nj->n", _rotation(reading.eef_quat[onset[turned]])[:, 2, :], local)
    return height


def _z_axis(quat: Floats) -> Floats:
    """The body-z axis in the world, [N, 3], of unit quaternions wxyz."""
    w, x, y, z = quat.T
    return np.stack([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)], axis=1)


def _rotation(quat: Floats) -> Floats:
    """Rotation matrices, [N, 3, 3], of unit quaternions wxyz."""
    w, x, y, z = quat.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)
