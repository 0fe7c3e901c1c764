"""The bodies behind a signal's value: in contact, displaced, held, or the joint under load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from safevla_bench.signals import RecordFields
from safevla_bench.text.numbers import append_unit, display_unit, format_significant
from safevla_bench.trajectory import BYSTANDER, FURNITURE, ROBOT, TARGET


@dataclass(frozen=True, slots=True)
class Contributors:
    """The bodies behind a signal's value in one record: their relation, their names and the amount."""

    what: str
    names: tuple[str, ...]
    amount: str = ""


def find_contributors(reading: RecordFields, signal: str, record: int) -> Contributors | None:
    """Return the bodies behind a signal's value in one record of the only episode; None if no body can be named."""
    find = _FINDERS.get(signal)
    return find(reading, record) if find else None


def _hardest_contact_finder(*roles: int) -> Callable[[RecordFields, int], Contributors | None]:
    def find(reading: RecordFields, record: int) -> Contributors | None:
        batch = reading.batch
        chosen = np.arange(batch.contacts.starts[record], batch.contacts.starts[record + 1])
        a, b = batch.contacts.a[chosen], batch.contacts.b[chosen]
        if roles:
            pair = np.sort(np.stack([batch.body_role[a], batch.body_role[b]]), axis=0)
            chosen = chosen[(pair == np.sort(np.array(roles))[:, None]).all(axis=0)]
        if not len(chosen):
            return None
        top = int(chosen[batch.contacts.force_n[chosen].argmax()])
        names = batch.body_label(int(batch.contacts.a[top])), batch.body_label(int(batch.contacts.b[top]))
        return Contributors("hardest contact", names, _format_amount(float(batch.contacts.force_n[top]), "N"))

    return find


def _most_displaced_body(reading: RecordFields, record: int) -> Contributors | None:
    body, xyz = reading.batch.body_pos_m.episode_poses(0)
    role = reading.batch.body_role[body]
    watched = np.flatnonzero((role == BYSTANDER) | (role == FURNITURE))
    if not len(watched):
        return None
    distance = np.sqrt(np.square(xyz[record, watched] - xyz[0, watched]).sum(axis=1))
    top = int(distance.argmax())
    name = reading.batch.body_label(int(body[watched[top]]))
    return Contributors("displaced most", (name,), _format_amount(float(distance[top]), "m"))


def _held_object(reading: RecordFields, record: int) -> Contributors | None:
    body = int(reading.held_body[record])
    return Contributors("held object", (reading.batch.body_label(body),)) if body >= 0 else None


def _most_loaded_joint(reading: RecordFields, record: int) -> Contributors | None:
    batch = reading.batch
    torque, limit = np.abs(batch.joint_torque_nm.episode_rows(0)[record]), np.array(batch.headers[0].torque_limit_nm)
    if not len(torque):
        return None
    top = int((torque / limit).argmax())
    amount = f"{format_significant(float(torque[top]))} of {_format_amount(float(limit[top]), 'N·m')}"
    return Contributors("most loaded", (f"joint {top + 1}",), amount)


def _format_amount(value: float, unit: str) -> str:
    shown_unit, scale = display_unit(unit, value)
    return append_unit(format_significant(value * scale), shown_unit)


_FINDERS: Mapping[str, Callable[[RecordFields, int], Contributors | None]] = {
    "arm_furniture_force": _hardest_contact_finder(ROBOT, FURNITURE),
    "target_furniture_force": _hardest_contact_finder(TARGET, FURNITURE),
    "max_contact_force": _hardest_contact_finder(),
    "self_collision": _hardest_contact_finder(ROBOT, ROBOT),
    "non_target_disp_max": _most_displaced_body,
    "joint_torque_ratio": _most_loaded_joint,
    "held_object_tilt": _held_object,
    "held_object_tilt_body": _held_object,
    "held_object_slip": _held_object,
    "target_height": _held_object,
    "target_obj_speed": _held_object,
    "release_speed": _held_object,
}
