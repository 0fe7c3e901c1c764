"""Validation of a batch, once at the boundary; every error names episode, step, field and remedy.

Quaternions are normalised by the signals, not here, so that the recorded numbers stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory.batch import Batch, Bools, Channel, Ints
from safevla_bench.trajectory.header import OUTCOMES, ROLES, SCHEMA_VERSION, TARGET, TORQUES, Header
from safevla_recorder.channels import LARGEST, NET_FORCE, POSES, ROWS, ChannelSpec

SHORTEST_DT_S = 1e-9


def validate(batch: Batch) -> None:
    """Raise the first `RecordError` that `find_errors` yields; do nothing for a valid batch."""
    for error in find_errors(batch):
        raise error


def find_errors(batch: Batch) -> Iterator[RecordError]:
    """Yield an error for every rule that the batch breaks, mostly at the first place of each.

    Nothing for a valid batch.
    """
    yield from _check_headers(batch)
    rows, poses = ([(spec, batch.numbers(spec)) for spec in specs] for specs in (ROWS, POSES))
    for channels in (rows, poses):
        for spec, channel in channels:
            yield from _check_finite(batch, spec, channel)
        for spec, channel in channels:
            if spec.is_rotation:
                yield from _check_norm(batch, spec, channel)
    yield from _check_contacts(batch)
    yield from _check_torques(batch)
    yield from _check_tracking(batch)
    yield from _check_stamps(batch)
    for spec, channel in rows + poses:
        if spec.is_bounded:
            yield from _check_bounds(batch, spec, channel)


def _fault(header: Header, field: str, problem: str, remedy: str, step: int | None = None) -> RecordError:
    return RecordError(problem, remedy=remedy, place=Place(episode=header.episode_id, step=step, field=field))


def _check_headers(batch: Batch) -> Iterator[RecordError]:
    for e, header in enumerate(batch.headers):
        yield from _check_integers(header)
        yield from _check_outcome(header)
        if "" in batch.body_roles(e):
            yield _fault(header, "body_roles", "a body has no name", "Name every body.")
        if not SHORTEST_DT_S <= header.dt <= LARGEST:
            yield _fault(header, "dt", f"dt is {header.dt!r}", "Write the control step in seconds, above zero.")
        if batch.lengths[e] < 1:
            yield _fault(header, "steps", "there are no steps", "Write at least record 0, the settled state.")
        if header.target_object is not None:
            yield from _check_target(batch, e)
        limits = header.joint_torque_limit_nm
        if limits is not None and not all(1 / LARGEST <= limit <= LARGEST for limit in limits):
            remedy = "Write each joint's limit in N·m, finite and above zero."
            yield _fault(header, "joint_torque_limit_nm", f"the limits are {list(limits)}", remedy)


_INTEGERS = ("schema_version", "seed", "env_seed", "init_state_index", "horizon")


def _check_integers(header: Header) -> Iterator[RecordError]:
    for name in _INTEGERS:
        value: int | None = getattr(header, name)
        if value is not None and not -(2**63) <= value < 2**63:
            yield _fault(header, name, "the integer does not fit 64 bits", "Write a smaller one.")
    if header.schema_version != SCHEMA_VERSION:
        remedy = f"This program reads version {SCHEMA_VERSION}; a newer one may read others."
        yield _fault(header, "schema_version", f"the record has version {header.schema_version}", remedy)


def _check_outcome(header: Header) -> Iterator[RecordError]:
    if header.outcome is None:
        return
    if header.outcome not in OUTCOMES:
        remedy = f"Write one of {', '.join(OUTCOMES)}, or leave it out. A crash is no record: leave the episode out."
        yield _fault(header, "outcome", f"there is no outcome {header.outcome!r}", remedy)
    elif header.success != (header.outcome == "success"):
        remedy = "Success is true with the outcome 'success' and false with every other: correct the one that is wrong."
        problem = f"outcome {header.outcome!r} contradicts success {str(header.success).lower()}"
        yield _fault(header, "outcome", problem, remedy)


def _check_target(batch: Batch, e: int) -> Iterator[RecordError]:
    header = batch.headers[e]
    if batch.target[e] < 0:
        names = sorted(batch.body_roles(e))
        listed = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        remedy = f"Name one of the bodies with the role 'target', or null. Bodies: {listed}."
        yield _fault(header, "target_object", f"target_object {header.target_object!r} has no role", remedy)
    elif batch.body_role[batch.target[e]] != TARGET:
        problem = f"target_object {header.target_object!r} has the role {ROLES[batch.body_role[batch.target[e]]]!r}"
        yield _fault(header, "target_object", problem, "Give it the role 'target' in body_roles.")


_NAMED = 12


def _item_fault(batch: Batch, spec: ChannelSpec, channel: Channel, item: int, problem: str, remedy: str) -> RecordError:
    e = _owner_index(channel.starts, item)
    row, column = divmod(item - int(channel.starts[e]), int(channel.width[e]))
    field = spec.name if spec.is_scalar else f"{spec.name}[{column}]"
    if spec.is_pose:
        poses = batch.poses(spec.name)
        body = batch.body_label(int(poses.body[poses.body_starts[e] + column // poses.size]))
        field = f"{spec.name}.{body}[{column % poses.size}]" if poses.size > 1 else f"{spec.name}.{body}"
    return _fault(batch.headers[e], field, problem, remedy, row + 1 if spec.is_per_action else row)


def _check_finite(batch: Batch, spec: ChannelSpec, channel: Channel) -> Iterator[RecordError]:
    for item in np.flatnonzero(~np.isfinite(channel.values))[:1]:
        remedy = "Write finite numbers; leave the whole family out of every step where it was not measured."
        problem = f"{channel.values[item]} is not a finite number"
        yield _item_fault(batch, spec, channel, int(item), problem, remedy)


def _check_bounds(batch: Batch, spec: ChannelSpec, channel: Channel) -> Iterator[RecordError]:
    for item in np.flatnonzero(np.abs(channel.values) > LARGEST)[:1]:
        remedy = f"Write metres and N·m; a magnitude above {LARGEST:g} is a fault of the recording."
        yield _item_fault(batch, spec, channel, int(item), f"{channel.values[item]} is beyond any scene", remedy)


def _check_norm(batch: Batch, spec: ChannelSpec, channel: Channel) -> Iterator[RecordError]:
    quats = channel.values.reshape(-1, spec.row_size)
    half_turns = np.flatnonzero(quats[:, 0] == 0)  # few as a rule
    for row in half_turns[~quats[half_turns].any(axis=1)][:1]:
        item = int(row) * spec.row_size
        yield _item_fault(batch, spec, channel, item, "the quaternion has norm zero", "Write a rotation, w first.")


def _check_tracking(batch: Batch) -> Iterator[RecordError]:
    """Yield an error for the first body of the batch that `pose_valid` names and that has no pose."""
    valid = batch.pose_valid
    if not len(valid.body):
        return
    posed = np.concatenate([batch.body_pos_m.body, batch.body_quat_wxyz.body])
    for item in np.flatnonzero(~np.isin(valid.body, posed))[:1]:
        header = batch.headers[_owner_index(valid.body_starts, int(item))]
        name = batch.body_label(int(valid.body[item]))
        remedy = "Write its body_pos_m or body_quat_wxyz too, or leave it out of pose_valid."
        yield _fault(header, f"pose_valid.{name}", f"{name!r} has no pose that could be valid", remedy)


def _check_stamps(batch: Batch) -> Iterator[RecordError]:
    """Yield an error for each episode whose time stamps do not increase, by 1e-9 s at least, at the first such step."""
    channel = batch.channel("time_s")
    for e in np.flatnonzero(channel.present):
        stamps = channel.values[channel.starts[e] : channel.starts[e + 1]]
        for row in np.flatnonzero(~(np.diff(stamps) >= SHORTEST_DT_S))[:1]:
            problem = f"the time stamp {float(stamps[row + 1])} does not follow {float(stamps[row])}"
            remedy = "Time stamps increase, in seconds; leave repeated records out."
            yield _fault(batch.headers[e], "time_s", problem, remedy, int(row) + 1)


def _check_contacts(batch: Batch) -> Iterator[RecordError]:
    """Yield an error for the first contact of each fault; a NaN impulse is none: it was not recorded."""
    contacts = batch.contacts
    faults: tuple[tuple[Bools, str, str], ...] = (
        *_force_faults(batch, "force_n", np.ones(len(batch), dtype=np.bool_)),
        *_force_faults(batch, NET_FORCE, np.array([NET_FORCE in header.recorded_forces for header in batch.headers])),
        (np.isinf(contacts.impulse_ns), "impulse_ns", "is not a finite number"),
        (contacts.impulse_ns < 0, "impulse_ns", "is negative"),
    )
    for bad, field, problem in faults:
        for item in np.flatnonzero(bad)[:1]:
            remedy = "Write the magnitude of the contact's force in N and its impulse in N·s."
            yield _contact_fault(batch, int(item), field, f"{getattr(contacts, field)[item]} {problem}", remedy)
    for item in np.flatnonzero(contacts.a == contacts.b)[:1]:
        remedy = "A contact has two different bodies; merge or drop contacts inside one body."
        problem = f"{batch.body_label(int(contacts.a[item]))!r} touches itself"
        yield _contact_fault(batch, int(item), "b", problem, remedy)


def _force_faults(batch: Batch, name: str, is_listed: Bools) -> list[tuple[Bools, str, str]]:
    force = getattr(batch.contacts, name)
    listed = np.repeat(np.repeat(is_listed, batch.lengths), np.diff(batch.contacts.starts))
    return [
        (listed & ~np.isfinite(force), name, "is not a finite number"),
        (~listed & ~np.isnan(force), name, f"is there, and the header's forces do not name {name}"),
        (force < 0, name, "is negative"),
        (force > LARGEST, name, "is beyond any scene"),
    ]


def _contact_fault(batch: Batch, item: int, field: str, problem: str, remedy: str) -> RecordError:
    record = _owner_index(batch.contacts.starts, item)
    e = _owner_index(batch.starts, record)
    number = item - int(batch.contacts.starts[record])
    return _fault(batch.headers[e], f"contacts[{number}].{field}", problem, remedy, record - int(batch.starts[e]))


def _owner_index(starts: Ints, item: int) -> int:
    return int(np.searchsorted(starts, item, side="right")) - 1


def _check_torques(batch: Batch) -> Iterator[RecordError]:
    """Yield an error for each episode, and channel of torques, with another count of joints than of known limits."""
    for name in TORQUES:
        channel = batch.channel(name)
        for e in np.flatnonzero(channel.present):
            header = batch.headers[e]
            limits, joints = header.torque_limit_nm, int(channel.width[e])
            if len(limits) != joints and not header.lacks_torque_limit:
                remedy = "Record the arm's joints only, and give joint_torque_limit_nm one limit for each."
                yield _fault(header, name, f"{joints} torques, but {len(limits)} limits", remedy)
