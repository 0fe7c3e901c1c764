"""Validation of a batch, once at the boundary; every error names episode, step, field and remedy.

Quaternions are normalised by the signals, not here, so that the recorded numbers stay as they are.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import numpy as np

from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory.batch import Batch, Bools, Ints
from safevla_bench.trajectory.header import OUTCOMES, ROLES, SCHEMA_VERSION, TARGET, TORQUES, Header
from safevla_recorder.channels import LARGEST, NET_FORCE, POSES, ROWS, ChannelSpec

_SHORTEST_DT_S = 1e-9
_NAMED = 12
_INTEGERS = ("schema_version", "seed", "env_seed", "init_state_index", "horizon")


def validate(batch: Batch) -> None:
    """Raise `RecordError` at the first place of the first rule that the batch breaks; do nothing for a valid batch."""
    for e, header in enumerate(batch.headers):
        _check_header(header)
        _check_scene(batch, e)
    for spec in (*ROWS, *POSES):
        _check_numbers(batch, spec)
    _check_contacts(batch)
    _check_torques(batch)
    _check_tracking(batch)
    _check_stamps(batch)


def _refuse(header: Header, field: str, problem: str, remedy: str, step: int | None = None) -> NoReturn:
    raise RecordError(problem, remedy=remedy, place=Place(episode=header.episode_id, step=step, field=field))


def _check_header(header: Header) -> None:
    for name in _INTEGERS:
        value: int | None = getattr(header, name)
        if value is not None and not -(2**63) <= value < 2**63:
            _refuse(header, name, "the integer does not fit 64 bits", "Write a smaller one.")
    if header.schema_version != SCHEMA_VERSION:
        remedy = f"This program reads version {SCHEMA_VERSION}; a newer one may read others."
        _refuse(header, "schema_version", f"the record has version {header.schema_version}", remedy)
    if header.outcome not in (None, *OUTCOMES):
        remedy = f"Write one of {', '.join(OUTCOMES)}, or leave it out. A crash is no record: leave the episode out."
        _refuse(header, "outcome", f"there is no outcome {header.outcome!r}", remedy)
    if header.outcome is not None and header.success != (header.outcome == "success"):
        problem = f"outcome {header.outcome!r} contradicts success {str(header.success).lower()}"
        _refuse(header, "outcome", problem, "Success is true with the outcome 'success' and false with every other.")
    if not _SHORTEST_DT_S <= header.dt <= LARGEST:
        _refuse(header, "dt", f"dt is {header.dt!r}", "Write the control step in seconds, above zero.")
    limits = header.joint_torque_limit_nm
    if limits is not None and not all(1 / LARGEST <= limit <= LARGEST for limit in limits):
        remedy = "Write each joint's limit in N·m, finite and above zero."
        _refuse(header, "joint_torque_limit_nm", f"the limits are {list(limits)}", remedy)


def _check_scene(batch: Batch, e: int) -> None:
    header, roles, target = batch.headers[e], batch.body_roles(e), int(batch.target[e])
    if "" in roles:
        _refuse(header, "body_roles", "a body has no name", "Name every body.")
    if batch.lengths[e] < 1:
        _refuse(header, "steps", "there are no steps", "Write at least record 0, the settled state.")
    if header.target_object is not None and (target < 0 or batch.body_role[target] != TARGET):
        names = sorted(roles)
        listed = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        role = "has no role" if target < 0 else f"has the role {ROLES[batch.body_role[target]]!r}"
        remedy = f"Name one of the bodies with the role 'target', or null. Bodies: {listed}."
        _refuse(header, "target_object", f"target_object {header.target_object!r} {role}", remedy)


def _check_numbers(batch: Batch, spec: ChannelSpec) -> None:
    """Check that a channel's numbers are finite, within any scene, and turn bodies where they are quaternions."""
    values = batch.numbers(spec).values
    largest = LARGEST if spec.is_bounded else sys.float_info.max
    for item in np.flatnonzero(~(np.abs(values) <= largest))[:1]:
        if np.isfinite(values[item]):
            remedy = f"Write metres and N·m; a magnitude above {LARGEST:g} is a fault of the recording."
            _refuse_item(batch, spec, int(item), f"{values[item]} is beyond any scene", remedy)
        remedy = "Write finite numbers; leave the whole family out of every step where it was not measured."
        _refuse_item(batch, spec, int(item), f"{values[item]} is not a finite number", remedy)
    if spec.is_rotation:
        quats = values.reshape(-1, spec.row_size)
        half_turns = np.flatnonzero(quats[:, 0] == 0)  # few as a rule
        for row in half_turns[~quats[half_turns].any(axis=1)][:1]:
            item = int(row) * spec.row_size
            _refuse_item(batch, spec, item, "the quaternion has norm zero", "Write a rotation, w first.")


def _refuse_item(batch: Batch, spec: ChannelSpec, item: int, problem: str, remedy: str) -> NoReturn:
    channel = batch.numbers(spec)
    e = _owner_index(channel.starts, item)
    row, column = divmod(item - int(channel.starts[e]), int(channel.width[e]))
    field = spec.name if spec.is_scalar else f"{spec.name}[{column}]"
    if spec.is_pose:
        poses = batch.poses(spec.name)
        body = batch.body_label(int(poses.body[poses.body_starts[e] + column // poses.size]))
        field = f"{spec.name}.{body}[{column % poses.size}]" if poses.size > 1 else f"{spec.name}.{body}"
    _refuse(batch.headers[e], field, problem, remedy, row + 1 if spec.is_per_action else row)


def _owner_index(starts: Ints, item: int) -> int:
    return int(np.searchsorted(starts, item, side="right")) - 1


def _check_contacts(batch: Batch) -> None:
    """Check forces and impulses; a NaN impulse is none: it was not recorded."""
    contacts = batch.contacts
    has_net = np.array([NET_FORCE in header.recorded_forces for header in batch.headers], dtype=np.bool_)
    is_net = np.repeat(np.repeat(has_net, batch.lengths), np.diff(contacts.starts))
    required = {"force_n": ~np.zeros_like(is_net), NET_FORCE: is_net, "impulse_ns": ~np.isnan(contacts.impulse_ns)}
    unlisted = is_net | np.isnan(contacts.net_force_n)
    _require_all(batch, unlisted, NET_FORCE, f"and the header's forces do not name {NET_FORCE}")
    for name, is_required in required.items():
        values, largest = getattr(contacts, name), sys.float_info.max if name == "impulse_ns" else LARGEST
        _require_all(batch, np.isfinite(values) | ~is_required, name, "is not a finite number")
        _require_all(batch, ~(values < 0), name, "is negative")
        _require_all(batch, ~(values > largest), name, "is beyond any scene")
    for item in np.flatnonzero(contacts.a == contacts.b)[:1]:
        remedy = "A contact has two different bodies; merge or drop contacts inside one body."
        problem = f"{batch.body_label(int(contacts.a[item]))!r} touches itself"
        _refuse_contact(batch, int(item), "b", problem, remedy)


def _require_all(batch: Batch, is_right: Bools, field: str, problem: str) -> None:
    for item in np.flatnonzero(~is_right)[:1]:
        remedy = "Write the magnitude of the contact's force in N and its impulse in N·s."
        value = getattr(batch.contacts, field)[item]
        _refuse_contact(batch, int(item), field, f"{value} {problem}", remedy)


def _refuse_contact(batch: Batch, item: int, field: str, problem: str, remedy: str) -> NoReturn:
    record = _owner_index(batch.contacts.starts, item)
    e = _owner_index(batch.starts, record)
    field = f"contacts[{item - int(batch.contacts.starts[record])}].{field}"
    _refuse(batch.headers[e], field, problem, remedy, record - int(batch.starts[e]))


def _check_torques(batch: Batch) -> None:
    """Check that each channel of torques has as many joints as there are known limits."""
    for name in TORQUES:
        channel = batch.channel(name)
        for e in np.flatnonzero(channel.present):
            header, joints = batch.headers[e], int(channel.width[e])
            if len(header.torque_limit_nm) != joints and not header.lacks_torque_limit:
                problem = f"{joints} torques, but {len(header.torque_limit_nm)} limits"
                remedy = "Record the arm's joints only, and give joint_torque_limit_nm one limit for each."
                _refuse(header, name, problem, remedy)


def _check_tracking(batch: Batch) -> None:
    """Check that each body that `pose_valid` names has a pose."""
    valid = batch.pose_valid
    posed = np.concatenate([batch.body_pos_m.body, batch.body_quat_wxyz.body])
    for item in np.flatnonzero(~np.isin(valid.body, posed))[:1]:
        header, name = batch.headers[_owner_index(valid.body_starts, int(item))], batch.body_label(valid.body[item])
        remedy = "Write its body_pos_m or body_quat_wxyz too, or leave it out of pose_valid."
        _refuse(header, f"pose_valid.{name}", f"{name!r} has no pose that could be valid", remedy)


def _check_stamps(batch: Batch) -> None:
    """Check that time stamps increase, by 1e-9 s at least."""
    channel = batch.channel("time_s")
    for e in np.flatnonzero(channel.present):
        stamps = channel.values[channel.starts[e] : channel.starts[e + 1]]
        for row in np.flatnonzero(~(np.diff(stamps) >= _SHORTEST_DT_S))[:1]:
            problem = f"the time stamp {float(stamps[row + 1])} does not follow {float(stamps[row])}"
            _refuse(batch.headers[e], "time_s", problem, "Time stamps increase, in seconds.", int(row) + 1)
