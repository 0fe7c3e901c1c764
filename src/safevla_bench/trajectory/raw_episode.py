"""One episode as the plain arrays that a host or a reader has, and the way from there to a `Batch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.trajectory.batch import Batch, Bools, Channel, Contacts, Floats, Ints, Poses, select
from safevla_bench.trajectory.header import ROLES, Header
from safevla_bench.trajectory.validation import validate

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class ContactList:
    """Contacts of one episode in record order, [C] each: a, b places in `roles`, impulse_ns NaN = not recorded."""

    record: Ints
    a: Ints
    b: Ints
    force_n: Floats
    impulse_ns: Floats


@dataclass(frozen=True, slots=True)
class Recording:
    """One episode of n records as plain arrays; None = the family was not recorded.

    Bodies are numbered by their place in `roles` (body -> role). eef_pos_m [n,3], eef_quat_wxyz [n,4],
    body_pos_m [n,P,3] of `pos_bodies`, body_quat_wxyz [n,Q,4] of `quat_bodies`, joint_torque_nm [n,J],
    gripper_contact [n], gripped [n] (-1 = nothing), action [n-1,A], sim_state [n,S].
    """

    header: Header
    roles: Mapping[str, str]
    records: int
    eef_pos_m: Floats | None = None
    eef_quat_wxyz: Floats | None = None
    pos_bodies: Sequence[int] = ()
    body_pos_m: Floats | None = None
    quat_bodies: Sequence[int] = ()
    body_quat_wxyz: Floats | None = None
    contacts: ContactList | None = None
    joint_torque_nm: Floats | None = None
    gripper_contact: Bools | None = None
    gripped: Ints | None = None
    action: Floats | None = None
    sim_state: Floats | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


def from_recording(recording: Recording) -> Batch:
    """The episode as a batch of one.

    Raises `RecordError` naming episode, step, field and remedy where the record is not valid.
    """
    batch = _assemble(recording)
    validate(batch)
    return batch


def empty() -> Batch:
    """A batch of no episodes."""
    header = Header(episode_id="-", benchmark="-", task_id="-", success=False, dt=1.0, target_object=None)
    return select(_assemble(Recording(header, {}, 1)), [])


def _assemble(recording: Recording) -> Batch:
    index = {name: k for k, name in enumerate(recording.roles)}
    records = recording.records
    nothing = np.full(records, -1, dtype=np.int64)
    return Batch(
        headers=(recording.header,),
        starts=np.array([0, records], dtype=np.int64),
        body_starts=np.array([0, len(index)], dtype=np.int64),
        body_names=tuple(index),
        body_name=np.arange(len(index), dtype=np.int64),
        body_role=np.array([ROLES.index(role) for role in recording.roles.values()], dtype=np.int8),
        target=np.array([_target(recording.header, index)], dtype=np.int64),
        eef_pos_m=_channel(recording.eef_pos_m),
        eef_quat_wxyz=_channel(recording.eef_quat_wxyz),
        body_pos_m=_poses(recording.body_pos_m, recording.pos_bodies, 3),
        body_quat_wxyz=_poses(recording.body_quat_wxyz, recording.quat_bodies, 4),
        contacts=_contacts(recording.contacts, records),
        joint_torque_nm=_channel(recording.joint_torque_nm),
        gripper_contact=_or(recording.gripper_contact, np.zeros(records, dtype=np.bool_)),
        gripper_present=np.array([recording.gripper_contact is not None]),
        gripped=_or(recording.gripped, nothing),
        gripped_present=np.array([recording.gripped is not None]),
        action=_channel(recording.action if records > 1 else None),
        sim_state=_channel(recording.sim_state),
        extra=(recording.extra,),
    )


def _or(given: NDArray[T] | None, default: NDArray[T]) -> NDArray[T]:
    return default if given is None else np.asarray(given, dtype=default.dtype)


def _contacts(listed: ContactList | None, records: int) -> Contacts:
    present = np.array([listed is not None])
    if listed is None:
        none, nothing = np.empty(0, dtype=np.int64), np.empty(0)
        return Contacts(present, np.zeros(records + 1, dtype=np.int64), none, none, nothing, nothing)
    counts = np.bincount(listed.record, minlength=records)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Contacts(present, starts, listed.a, listed.b, listed.force_n, listed.impulse_ns)


def _channel(rows: Floats | None) -> Channel:
    if rows is None:
        return Channel(np.empty(0), np.zeros(2, dtype=np.int64), np.array([-1], dtype=np.int64))
    values = np.ascontiguousarray(rows, dtype=np.float64)
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    return Channel(values.reshape(-1), np.array([0, values.size], dtype=np.int64), np.array([width], dtype=np.int64))


def _poses(rows: Floats | None, bodies: Sequence[int], size: int) -> Poses:
    body = np.array(bodies if rows is not None else (), dtype=np.int64)
    return Poses(_channel(rows), body, np.array([0, len(body)], dtype=np.int64), size)


def _target(header: Header, index: Mapping[str, int]) -> int:
    return -1 if header.target_object is None else index.get(header.target_object, -1)
