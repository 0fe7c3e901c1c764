"""What makes a batch valid, checked once at the boundary; every error names episode, step, field and remedy.

A quaternion is normalised by the signals, not here, so that what was recorded stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory.batch import Batch, Bools, Channel, Ints, Poses
from safevla_bench.trajectory.header import ROLES, SCHEMA_VERSION, TARGET, Header

LARGEST = 1e100
"""Of any number that is judged. No simulator means more, and squares, ratios and sums of such numbers are finite."""
SHORTEST_DT_S = 1e-9


def validate(batch: Batch) -> None:
    """Raise the first `RecordError` of the batch; trust it afterwards."""
    for error in errors(batch):
        raise error


def errors(batch: Batch) -> Iterator[RecordError]:
    """Every rule of the record that the batch breaks, the first place of each."""
    yield from _headers(batch)
    for name in ("eef_pos_m", "eef_quat_wxyz", "joint_torque_nm", "action", "sim_state"):
        yield from _finite(batch, name, getattr(batch, name))
    yield from _zero_norm(batch, "eef_quat_wxyz", batch.eef_quat_wxyz, 4)
    for name in ("body_pos_m", "body_quat_wxyz"):
        poses: Poses = getattr(batch, name)
        yield from _finite(batch, name, poses.channel)
    yield from _zero_norm(batch, "body_quat_wxyz", batch.body_quat_wxyz.channel, 4)
    yield from _contacts(batch)
    yield from _torques(batch)
    for name in ("eef_pos_m", "joint_torque_nm"):
        yield from _bounded(batch, name, getattr(batch, name))
    yield from _bounded(batch, "body_pos_m", batch.body_pos_m.channel)


def _headers(batch: Batch) -> Iterator[RecordError]:
    for e, header in enumerate(batch.headers):
        yield from _integers(header)
        yield from _names(batch, e)
        place = Place(episode=header.episode_id, field="dt")
        if not SHORTEST_DT_S <= header.dt <= LARGEST:
            remedy = "Write the control step in seconds, above zero."
            yield RecordError(f"dt is {header.dt!r}", remedy=remedy, place=place)
        if batch.lengths[e] < 1:
            place = Place(episode=header.episode_id, field="steps")
            yield RecordError("there are no steps", remedy="Write at least record 0, the settled state.", place=place)
        yield from _target(batch, e)
        yield from _limits(batch, e)


_INTEGERS = ("schema_version", "seed", "env_seed", "init_state_index", "horizon")


def _integers(header: Header) -> Iterator[RecordError]:
    """The version is one that we read; integers fit 64 bits, so that every form of archive holds them."""
    for name in _INTEGERS:
        value: int | None = getattr(header, name)
        if value is not None and not -(2**63) <= value < 2**63:
            place = Place(episode=header.episode_id, field=name)
            yield RecordError("the integer does not fit 64 bits", remedy="Write a smaller one.", place=place)
    if header.schema_version != SCHEMA_VERSION:
        place = Place(episode=header.episode_id, field="schema_version")
        remedy = f"This program reads version {SCHEMA_VERSION}; a newer one may read others."
        yield RecordError(f"the record has version {header.schema_version}", remedy=remedy, place=place)


def _names(batch: Batch, e: int) -> Iterator[RecordError]:
    if "" in batch.bodies(e):
        place = Place(episode=batch.headers[e].episode_id, field="body_roles")
        yield RecordError("a body has no name", remedy="Name every body.", place=place)


def _target(batch: Batch, e: int) -> Iterator[RecordError]:
    header = batch.headers[e]
    if header.target_object is None:
        return
    place = Place(episode=header.episode_id, field="target_object")
    if batch.target[e] < 0:
        remedy = f"Name one of the bodies with the role 'target', or null. Bodies: {_listed(batch.bodies(e))}."
        yield RecordError(f"target_object {header.target_object!r} has no role", remedy=remedy, place=place)
    elif batch.body_role[batch.target[e]] != TARGET:
        role = ROLES[batch.body_role[batch.target[e]]]
        remedy = "Give it the role 'target' in body_roles."
        yield RecordError(f"target_object {header.target_object!r} has the role {role!r}", remedy=remedy, place=place)


def _limits(batch: Batch, e: int) -> Iterator[RecordError]:
    limits = batch.headers[e].joint_torque_limit_nm
    if limits is None or all(1 / LARGEST <= limit <= LARGEST for limit in limits):
        return
    place = Place(episode=batch.headers[e].episode_id, field="joint_torque_limit_nm")
    remedy = "Write each joint's limit in N·m, finite and above zero."
    yield RecordError(f"the limits are {list(limits)}", remedy=remedy, place=place)


def _listed(names: dict[str, str]) -> str:
    shown = sorted(names)[:12]
    return ", ".join(shown) + (" …" if len(names) > len(shown) else "")


def _place(batch: Batch, channel: Channel, item: int, name: str) -> Place:
    """The episode, step and field of a flat item of a channel."""
    e = int(np.searchsorted(channel.starts, item, side="right")) - 1
    row, column = divmod(item - int(channel.starts[e]), int(channel.width[e]))
    step = row + 1 if name == "action" else row
    return Place(episode=batch.headers[e].episode_id, step=step, field=f"{name}[{column}]")


def _finite(batch: Batch, name: str, channel: Channel) -> Iterator[RecordError]:
    bad = np.flatnonzero(~np.isfinite(channel.values))
    if len(bad):
        place = _named(batch, name, channel, int(bad[0]))
        remedy = "Write finite numbers; leave the whole family out of every step where it was not measured."
        yield RecordError(f"{channel.values[bad[0]]} is not a finite number", remedy=remedy, place=place)


def _bounded(batch: Batch, name: str, channel: Channel) -> Iterator[RecordError]:
    bad = np.flatnonzero(np.abs(channel.values) > LARGEST)
    if len(bad):
        place = _named(batch, name, channel, int(bad[0]))
        remedy = f"Write metres and N·m; a magnitude above {LARGEST:g} is a fault of the recording."
        yield RecordError(f"{channel.values[bad[0]]} is beyond any scene", remedy=remedy, place=place)


def _named(batch: Batch, name: str, channel: Channel, item: int) -> Place:
    """The place of a flat item; of a pose, with the body's name."""
    place = _place(batch, channel, item, name)
    if name not in ("body_pos_m", "body_quat_wxyz"):
        return place
    poses: Poses = getattr(batch, name)
    e = int(np.searchsorted(channel.starts, item, side="right")) - 1
    column = (item - int(channel.starts[e])) % int(channel.width[e])
    body = batch.name(int(poses.body[poses.body_starts[e] + column // poses.size]))
    return Place(episode=place.episode, step=place.step, field=f"{name}.{body}[{column % poses.size}]")


def _zero_norm(batch: Batch, name: str, channel: Channel, size: int) -> Iterator[RecordError]:
    quats = channel.values.reshape(-1, size)
    half_turns = np.flatnonzero(quats[:, 0] == 0)  # few as a rule
    bad = half_turns[~quats[half_turns].any(axis=1)]
    if len(bad):
        place = _named(batch, name, channel, int(bad[0]) * size)
        yield RecordError("the quaternion has norm zero", remedy="Write a rotation, w first.", place=place)


def _contacts(batch: Batch) -> Iterator[RecordError]:
    contacts = batch.contacts
    yield from _contact_rule(batch, ~np.isfinite(contacts.force_n), "force_n", "is not a finite number")
    yield from _contact_rule(batch, contacts.force_n < 0, "force_n", "is negative")
    yield from _contact_rule(batch, contacts.force_n > LARGEST, "force_n", "is beyond any scene")
    yield from _contact_rule(batch, np.isinf(contacts.impulse_ns), "impulse_ns", "is not a finite number")
    yield from _contact_rule(batch, contacts.impulse_ns < 0, "impulse_ns", "is negative")
    own = np.flatnonzero(contacts.a == contacts.b)
    if len(own):
        remedy = "A contact has two different bodies; merge or drop contacts inside one body."
        name = batch.name(int(contacts.a[own[0]]))
        yield RecordError(f"{name!r} touches itself", remedy=remedy, place=_contact_place(batch, int(own[0]), "b"))


def _contact_rule(batch: Batch, bad: Bools, field: str, what: str) -> Iterator[RecordError]:
    where = np.flatnonzero(bad)
    if len(where):
        value = getattr(batch.contacts, field)[where[0]]
        remedy = "Write the magnitude of the contact's force in N and its impulse in N·s."
        yield RecordError(f"{value} {what}", remedy=remedy, place=_contact_place(batch, int(where[0]), field))


def _contact_place(batch: Batch, item: int, field: str) -> Place:
    record = int(np.searchsorted(batch.contacts.starts, item, side="right")) - 1
    e = _owner(batch.starts, record)
    number = item - int(batch.contacts.starts[record])
    step = record - int(batch.starts[e])
    return Place(episode=batch.headers[e].episode_id, step=step, field=f"contacts[{number}].{field}")


def _owner(starts: Ints, item: int) -> int:
    return int(np.searchsorted(starts, item, side="right")) - 1


def _torques(batch: Batch) -> Iterator[RecordError]:
    for e in np.flatnonzero(batch.joint_torque_nm.present):
        header = batch.headers[e]
        limits, joints = header.torque_limit_nm, int(batch.joint_torque_nm.width[e])
        if len(limits) != joints:
            place = Place(episode=header.episode_id, field="joint_torque_nm")
            remedy = "Record the arm's joints only, and give joint_torque_limit_nm one limit for each."
            yield RecordError(f"{joints} torques, but {len(limits)} limits", remedy=remedy, place=place)
