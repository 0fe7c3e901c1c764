"""Validation of a batch, once at the boundary; every error names episode, step, field and remedy.

Quaternions are normalised by the signals, not here, so that the recorded numbers stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory.batch import Batch, Bools, Channel, Ints
from safevla_bench.trajectory.header import OUTCOMES, ROLES, SCHEMA_VERSION, TARGET, TORQUES, Header
from safevla_recorder.channels import LARGEST, POSES, ROWS, ChannelSpec

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
    rows = [(spec, batch.channel(spec.name)) for spec in ROWS]
    poses = [(spec, batch.poses(spec.name).channel) for spec in POSES]
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


def _check_headers(batch: Batch) -> Iterator[RecordError]:
    """Yield an error for each fault of each episode's header, and for each episode without records."""
    for e, header in enumerate(batch.headers):
        yield from _check_integers(header)
        yield from _check_outcome(header)
        yield from _check_body_names(batch, e)
        place = Place(episode=header.episode_id, field="dt")
        if not SHORTEST_DT_S <= header.dt <= LARGEST:
            remedy = "Write the control step in seconds, above zero."
            yield RecordError(f"dt is {header.dt!r}", remedy=remedy, place=place)
        if batch.lengths[e] < 1:
            place = Place(episode=header.episode_id, field="steps")
            yield RecordError("there are no steps", remedy="Write at least record 0, the settled state.", place=place)
        yield from _check_target(batch, e)
        yield from _check_torque_limits(batch, e)


_INTEGERS = ("schema_version", "seed", "env_seed", "init_state_index", "horizon")


def _check_integers(header: Header) -> Iterator[RecordError]:
    for name in _INTEGERS:
        value: int | None = getattr(header, name)
        if value is not None and not -(2**63) <= value < 2**63:
            place = Place(episode=header.episode_id, field=name)
            yield RecordError("the integer does not fit 64 bits", remedy="Write a smaller one.", place=place)
    if header.schema_version != SCHEMA_VERSION:
        place = Place(episode=header.episode_id, field="schema_version")
        remedy = f"This program reads version {SCHEMA_VERSION}; a newer one may read others."
        yield RecordError(f"the record has version {header.schema_version}", remedy=remedy, place=place)


def _check_outcome(header: Header) -> Iterator[RecordError]:
    if header.outcome is None:
        return
    place = Place(episode=header.episode_id, field="outcome")
    if header.outcome not in OUTCOMES:
        remedy = f"Write one of {', '.join(OUTCOMES)}, or leave it out. A crash is no record: leave the episode out."
        yield RecordError(f"there is no outcome {header.outcome!r}", remedy=remedy, place=place)
    elif header.success != (header.outcome == "success"):
        remedy = "Success is true with the outcome 'success' and false with every other: correct the one that is wrong."
        problem = f"outcome {header.outcome!r} contradicts success {str(header.success).lower()}"
        yield RecordError(problem, remedy=remedy, place=place)


def _check_body_names(batch: Batch, e: int) -> Iterator[RecordError]:
    if "" in batch.body_roles(e):
        place = Place(episode=batch.headers[e].episode_id, field="body_roles")
        yield RecordError("a body has no name", remedy="Name every body.", place=place)


def _check_target(batch: Batch, e: int) -> Iterator[RecordError]:
    header = batch.headers[e]
    if header.target_object is None:
        return
    place = Place(episode=header.episode_id, field="target_object")
    if batch.target[e] < 0:
        remedy = f"Name one of the bodies with the role 'target', or null. Bodies: {_list_names(batch.body_roles(e))}."
        yield RecordError(f"target_object {header.target_object!r} has no role", remedy=remedy, place=place)
    elif batch.body_role[batch.target[e]] != TARGET:
        role = ROLES[batch.body_role[batch.target[e]]]
        remedy = "Give it the role 'target' in body_roles."
        yield RecordError(f"target_object {header.target_object!r} has the role {role!r}", remedy=remedy, place=place)


def _check_torque_limits(batch: Batch, e: int) -> Iterator[RecordError]:
    limits = batch.headers[e].joint_torque_limit_nm
    if limits is None or all(1 / LARGEST <= limit <= LARGEST for limit in limits):
        return
    place = Place(episode=batch.headers[e].episode_id, field="joint_torque_limit_nm")
    remedy = "Write each joint's limit in N·m, finite and above zero."
    yield RecordError(f"the limits are {list(limits)}", remedy=remedy, place=place)


def _list_names(names: dict[str, str]) -> str:
    shown = sorted(names)[:12]
    return ", ".join(shown) + (" …" if len(names) > len(shown) else "")


def _item_place(batch: Batch, spec: ChannelSpec, channel: Channel, item: int) -> Place:
    e = _owner_index(channel.starts, item)
    row, column = divmod(item - int(channel.starts[e]), int(channel.width[e]))
    field = spec.name if spec.is_scalar else f"{spec.name}[{column}]"
    if spec.is_pose:
        poses = batch.poses(spec.name)
        body = batch.body_label(int(poses.body[poses.body_starts[e] + column // poses.size]))
        field = f"{spec.name}.{body}[{column % poses.size}]" if poses.size > 1 else f"{spec.name}.{body}"
    return Place(episode=batch.headers[e].episode_id, step=row + 1 if spec.is_per_action else row, field=field)


def _check_finite(batch: Batch, spec: ChannelSpec, channel: Channel) -> Iterator[RecordError]:
    bad = np.flatnonzero(~np.isfinite(channel.values))
    if len(bad):
        place = _item_place(batch, spec, channel, int(bad[0]))
        remedy = "Write finite numbers; leave the whole family out of every step where it was not measured."
        yield RecordError(f"{channel.values[bad[0]]} is not a finite number", remedy=remedy, place=place)


def _check_bounds(batch: Batch, spec: ChannelSpec, channel: Channel) -> Iterator[RecordError]:
    bad = np.flatnonzero(np.abs(channel.values) > LARGEST)
    if len(bad):
        place = _item_place(batch, spec, channel, int(bad[0]))
        remedy = f"Write metres and N·m; a magnitude above {LARGEST:g} is a fault of the recording."
        yield RecordError(f"{channel.values[bad[0]]} is beyond any scene", remedy=remedy, place=place)


def _check_norm(batch: Batch, spec: ChannelSpec, channel: Channel) -> Iterator[RecordError]:
    quats = channel.values.reshape(-1, spec.row_size)
    half_turns = np.flatnonzero(quats[:, 0] == 0)  # few as a rule
    bad = half_turns[~quats[half_turns].any(axis=1)]
    if len(bad):
        place = _item_place(batch, spec, channel, int(bad[0]) * spec.row_size)
        yield RecordError("the quaternion has norm zero", remedy="Write a rotation, w first.", place=place)


def _check_tracking(batch: Batch) -> Iterator[RecordError]:
    valid = batch.pose_valid
    if not len(valid.body):
        return
    posed = np.concatenate([batch.body_pos_m.body, batch.body_quat_wxyz.body])
    poseless = np.flatnonzero(~np.isin(valid.body, posed))
    if len(poseless):
        e, name = _owner_index(valid.body_starts, int(poseless[0])), batch.body_label(int(valid.body[poseless[0]]))
        place = Place(episode=batch.headers[e].episode_id, field=f"pose_valid.{name}")
        remedy = "Write its body_pos_m or body_quat_wxyz too, or leave it out of pose_valid."
        yield RecordError(f"{name!r} has no pose that could be valid", remedy=remedy, place=place)


def _check_stamps(batch: Batch) -> Iterator[RecordError]:
    channel = batch.channel("time_s")
    for e in np.flatnonzero(channel.present):
        stamps = channel.values[channel.starts[e] : channel.starts[e + 1]]
        back = np.flatnonzero(~(np.diff(stamps) >= SHORTEST_DT_S))
        if len(back):
            step = int(back[0]) + 1
            place = Place(episode=batch.headers[e].episode_id, step=step, field="time_s")
            problem = f"the time stamp {float(stamps[step])} does not follow {float(stamps[step - 1])}"
            yield RecordError(
                problem, remedy="Time stamps increase, in seconds; leave repeated records out.", place=place
            )


def _check_contacts(batch: Batch) -> Iterator[RecordError]:
    contacts = batch.contacts
    yield from _first_contact_error(batch, ~np.isfinite(contacts.force_n), "force_n", "is not a finite number")
    yield from _first_contact_error(batch, contacts.force_n < 0, "force_n", "is negative")
    yield from _first_contact_error(batch, contacts.force_n > LARGEST, "force_n", "is beyond any scene")
    yield from _first_contact_error(batch, np.isinf(contacts.impulse_ns), "impulse_ns", "is not a finite number")
    yield from _first_contact_error(batch, contacts.impulse_ns < 0, "impulse_ns", "is negative")
    own = np.flatnonzero(contacts.a == contacts.b)
    if len(own):
        remedy = "A contact has two different bodies; merge or drop contacts inside one body."
        name = batch.body_label(int(contacts.a[own[0]]))
        yield RecordError(f"{name!r} touches itself", remedy=remedy, place=_contact_place(batch, int(own[0]), "b"))


def _first_contact_error(batch: Batch, bad: Bools, field: str, problem: str) -> Iterator[RecordError]:
    where = np.flatnonzero(bad)
    if len(where):
        value = getattr(batch.contacts, field)[where[0]]
        remedy = "Write the magnitude of the contact's force in N and its impulse in N·s."
        yield RecordError(f"{value} {problem}", remedy=remedy, place=_contact_place(batch, int(where[0]), field))


def _contact_place(batch: Batch, item: int, field: str) -> Place:
    record = int(np.searchsorted(batch.contacts.starts, item, side="right")) - 1
    e = _owner_index(batch.starts, record)
    number = item - int(batch.contacts.starts[record])
    step = record - int(batch.starts[e])
    return Place(episode=batch.headers[e].episode_id, step=step, field=f"contacts[{number}].{field}")


def _owner_index(starts: Ints, item: int) -> int:
    return int(np.searchsorted(starts, item, side="right")) - 1


def _check_torques(batch: Batch) -> Iterator[RecordError]:
    for name in TORQUES:
        channel = batch.channel(name)
        for e in np.flatnonzero(channel.present):
            header = batch.headers[e]
            limits, joints = header.torque_limit_nm, int(channel.width[e])
            if len(limits) != joints and not header.lacks_torque_limit:
                place = Place(episode=header.episode_id, field=name)
                remedy = "Record the arm's joints only, and give joint_torque_limit_nm one limit for each."
                yield RecordError(f"{joints} torques, but {len(limits)} limits", remedy=remedy, place=place)
