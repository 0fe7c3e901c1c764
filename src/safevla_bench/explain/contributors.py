"""Who stands behind a signal's value: the bodies in contact, the body displaced, the joint, the held object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from safevla_bench.signals import Reading
from safevla_bench.text.numbers import significant, unit_text, with_unit
from safevla_bench.trajectory import BYSTANDER, FURNITURE, ROBOT, TARGET


@dataclass(frozen=True, slots=True)
class Involved:
    """Who stands behind a signal's value in one record: what it is, the names, how much."""

    what: str
    names: tuple[str, ...]
    amount: str = ""


def involved(reading: Reading, signal: str, record: int) -> Involved | None:
    """The bodies behind a signal's value in one record of the only episode; None where no body can be named."""
    find = _INVOLVED.get(signal)
    return find(reading, record) if find else None


def _contact(*roles: int) -> Callable[[Reading, int], Involved | None]:
    def find(reading: Reading, record: int) -> Involved | None:
        batch = reading.batch
        chosen = np.arange(batch.contacts.starts[record], batch.contacts.starts[record + 1])
        a, b = batch.contacts.a[chosen], batch.contacts.b[chosen]
        if roles:
            pair = np.sort(np.stack([batch.body_role[a], batch.body_role[b]]), axis=0)
            chosen = chosen[(pair == np.sort(np.array(roles))[:, None]).all(axis=0)]
        if not len(chosen):
            return None
        top = int(chosen[batch.contacts.force_n[chosen].argmax()])
        names = batch.name(int(batch.contacts.a[top])), batch.name(int(batch.contacts.b[top]))
        return Involved("hardest contact", names, _amount(float(batch.contacts.force_n[top]), "N"))

    return find


def _displaced(reading: Reading, record: int) -> Involved | None:
    body, xyz = reading.batch.body_pos_m.episode(0)
    role = reading.batch.body_role[body]
    watched = np.flatnonzero((role == BYSTANDER) | (role == FURNITURE))
    if not len(watched):
        return None
    distance = np.sqrt(np.square(xyz[record, watched] - xyz[0, watched]).sum(axis=1))
    top = int(distance.argmax())
    name = reading.batch.name(int(body[watched[top]]))
    return Involved("displaced most", (name,), _amount(float(distance[top]), "m"))


def _held(reading: Reading, record: int) -> Involved | None:
    body = int(reading.held[record])
    return Involved("held object", (reading.batch.name(body),)) if body >= 0 else None


def _joint(reading: Reading, record: int) -> Involved | None:
    batch = reading.batch
    torque, limit = np.abs(batch.joint_torque_nm.episode(0)[record]), np.array(batch.headers[0].torque_limit_nm)
    if not len(torque):
        return None
    top = int((torque / limit).argmax())
    amount = f"{significant(float(torque[top]))} of {_amount(float(limit[top]), 'N·m')}"
    return Involved("most loaded", (f"joint {top + 1}",), amount)


def _amount(value: float, unit: str) -> str:
    shown, scale = unit_text(unit, value)
    return with_unit(significant(value * scale), shown)


_INVOLVED: Mapping[str, Callable[[Reading, int], Involved | None]] = {
    "arm_furniture_force": _contact(ROBOT, FURNITURE),
    "target_furniture_force": _contact(TARGET, FURNITURE),
    "max_contact_force": _contact(),
    "self_collision": _contact(ROBOT, ROBOT),
    "non_target_disp_max": _displaced,
    "joint_torque_ratio": _joint,
    "held_object_tilt": _held,
    "held_object_tilt_body": _held,
    "held_object_slip": _held,
    "target_height": _held,
    "target_obj_speed": _held,
    "release_speed": _held,
}
