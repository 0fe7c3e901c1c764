"""From the JSON text of one episode to a `Batch`; every refusal names the place and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from safevla_bench.archive import extra_fields
from safevla_bench.archive.record_schema import Step, Trajectory
from safevla_bench.archive.strict_json import episode_of, mistyped, parse
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory import Batch, ContactList, Header, Recording, from_recording

_HEADER_FIELDS = Header.__struct_fields__
_FAMILIES = tuple(name for name in Step.__struct_fields__ if name not in ("t", "gripped_body", "action"))


def decode(line: bytes) -> Batch:
    """One episode from its JSON text.

    Raises `RecordError` naming episode, step, field and remedy; the caller adds file and line.
    """
    tree = parse(line)
    try:
        return _batch(_typed(tree), extra_fields.gather(tree))
    except RecordError as error:
        raise error.at(Place(episode=episode_of(tree))) from None


def _typed(tree: dict[str, object]) -> Trajectory:
    try:
        return msgspec.convert(tree, Trajectory)
    except msgspec.ValidationError as error:
        raise mistyped(error, tree) from None


def _batch(trajectory: Trajectory, host_fields: Mapping[str, object]) -> Batch:
    steps = trajectory.steps
    present = {name: _in_every_step(steps, name) for name in _FAMILIES}
    for t, step in enumerate(steps):
        if step.t != t:
            raise RecordError(f"t is {step.t}, expected {t}", remedy=_REMEDY_T, place=Place(step=t, field="t"))
    index = {name: k for k, name in enumerate(trajectory.body_roles)}
    pos_bodies, body_pos = _poses(steps, "body_pos_m", index, 3) if present["body_pos_m"] else ((), None)
    quat_bodies, body_quat = _poses(steps, "body_quat_wxyz", index, 4) if present["body_quat_wxyz"] else ((), None)
    held = any(step.gripped_body is not UNSET for step in steps)
    header = Header(**{name: getattr(trajectory, name) for name in _HEADER_FIELDS})
    recording = Recording(
        header=header,
        roles=trajectory.body_roles,
        records=len(steps),
        eef_pos_m=_rows(steps, "eef_pos_m") if present["eef_pos_m"] else None,
        eef_quat_wxyz=_rows(steps, "eef_quat_wxyz") if present["eef_quat_wxyz"] else None,
        pos_bodies=pos_bodies,
        body_pos_m=body_pos,
        quat_bodies=quat_bodies,
        body_quat_wxyz=body_quat,
        contacts=_contacts(steps, index) if present["contacts"] else None,
        joint_torque_nm=_rows(steps, "joint_torque_nm") if present["joint_torque_nm"] else None,
        gripper_contact=np.array([s.gripper_contact for s in steps], bool) if present["gripper_contact"] else None,
        gripped=_gripped(steps, index) if held else None,
        action=_actions(steps),
        sim_state=_rows(steps, "sim_state") if present["sim_state"] else None,
        extra=host_fields,
    )
    return from_recording(recording)


_REMEDY_T = "Number the steps 0, 1, 2, … in order; N actions give N + 1 steps."
_REMEDY_FAMILY = (
    "A family of fields is in every step or in none; leave it out everywhere if it was not always measured."
)
_REMEDY_ROLE = "Give every body that a contact or a pose names a role: robot, target, bystander or furniture."


def _in_every_step(steps: Sequence[Step], name: str) -> bool:
    there = [getattr(step, name) is not UNSET for step in steps]
    if any(there) and not all(there):
        t = there.index(not there[0])
        word = "appears at" if there[t] else "is missing from"
        raise RecordError(f"{name} {word} step {t}", remedy=_REMEDY_FAMILY, place=Place(step=t, field=name))
    return all(there)


def _rows(steps: Sequence[Step], name: str) -> NDArray[np.float64]:
    return _matrix([getattr(step, name) for step in steps], name, first=0)


def _matrix(rows: Sequence[Sequence[float]], name: str, first: int) -> NDArray[np.float64]:
    width = len(rows[0])
    for t, row in enumerate(rows):
        if len(row) != width:
            place = Place(step=t + first, field=name)
            raise RecordError(f"{len(row)} numbers, {width} in step {first}", remedy=_REMEDY_WIDTH, place=place)
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)


_REMEDY_WIDTH = "Write the same numbers, in the same order, in every step."


def _actions(steps: Sequence[Step]) -> NDArray[np.float64] | None:
    if steps[0].action is not UNSET:
        remedy = "Record 0 is the state before any action; an action belongs to the record that it led to."
        raise RecordError("record 0 has an action", remedy=remedy, place=Place(step=0, field="action"))
    rest = steps[1:]
    if not rest or not _in_every_step(rest, "action"):
        return None
    return _matrix([step.action for step in rest if step.action is not UNSET], "action", first=1)


def _body(name: str, index: Mapping[str, int], t: int, field: str) -> int:
    if name not in index:
        raise RecordError(f"{name!r} has no role", remedy=_REMEDY_ROLE, place=Place(step=t, field=field))
    return index[name]


def _poses(
    steps: Sequence[Step], name: str, index: Mapping[str, int], size: int
) -> tuple[list[int], NDArray[np.float64]]:
    names = list(getattr(steps[0], name))
    for t, step in enumerate(steps):
        difference = getattr(step, name).keys() ^ set(names)
        if difference:
            remedy = "The bodies of a pose family are the same in every step."
            place = Place(step=t, field=f"{name}.{min(difference)}")
            raise RecordError("the body is in some steps only", remedy=remedy, place=place)
    rows = [[getattr(step, name)[body] for body in names] for step in steps]
    bodies = [_body(body, index, 0, f"{name}.{body}") for body in names]
    return bodies, np.array(rows, dtype=np.float64).reshape(len(steps), len(names), size)


def _contacts(steps: Sequence[Step], index: Mapping[str, int]) -> ContactList:
    flat = [(t, number, contact) for t, step in enumerate(steps) for number, contact in enumerate(step.contacts or ())]
    impulse = [np.nan if c.impulse_ns is UNSET else c.impulse_ns for _, _, c in flat]
    return ContactList(
        record=np.array([t for t, _, _ in flat], dtype=np.int64),
        a=np.array([_body(c.a, index, t, f"contacts[{k}].a") for t, k, c in flat], dtype=np.int64),
        b=np.array([_body(c.b, index, t, f"contacts[{k}].b") for t, k, c in flat], dtype=np.int64),
        force_n=np.array([c.force_n for _, _, c in flat], dtype=np.float64),
        impulse_ns=np.array(impulse, dtype=np.float64),
    )


def _gripped(steps: Sequence[Step], index: Mapping[str, int]) -> NDArray[np.int64]:
    names = [step.gripped_body for step in steps]
    return np.array([_body(n, index, t, "gripped_body") if isinstance(n, str) else -1 for t, n in enumerate(names)])
