"""The bodies behind a signal's value (in contact, displaced, held, or the joint under load), and the kinds of bodies.

A kind says what a body of a violation is to the task, by its role, its name and the task's goal. The vocabulary is
closed. The role and the position are the record's. The goal's bodies are the registry's (`[goal_bodies]`); where it has
none for the task, bystanders are of unknown kind. Parts of the robot are told by the names that robosuite gives them. A
kind decides no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from safevla_bench.signals.signal import RecordFields
from safevla_bench.tasks.entries import GoalBodies, Registry
from safevla_bench.text import append_unit, display_unit, format_significant
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import BYSTANDER, FURNITURE, ROBOT, TARGET

BodyKind = Literal[
    "arm link",
    "gripper",
    "mount",
    "mobile base",
    "robot part",
    "target",
    "distractor",
    "goal receptacle",
    "bystander of unknown kind",
    "goal fixture",
    "fixture link",
    "furniture",
]
BODY_KINDS: tuple[BodyKind, ...] = get_args(BodyKind)
KIND_MEANINGS: Mapping[BodyKind, str] = {
    "arm link": "a link of the robot's arm",
    "gripper": "hand and fingers",
    "mount": "what a fixed arm stands on",
    "mobile base": "what drives the arm about",
    "robot part": "of the robot, and its name tells no more",
    "target": "an object that the goal puts somewhere",
    "distractor": "a free object that the goal does not name",
    "goal receptacle": "what the goal puts an object in or on: a plate, a basket, a drawer's cabinet, a stove",
    "bystander of unknown kind": "a free object of a task whose goal the registry does not know",
    "goal fixture": "a fixture of which the goal moves a joint",
    "fixture link": "a link of another articulated fixture, whose position is recorded",
    "furniture": "everything else: table, walls, floor, parts that do not move",
}
# robosuite prefixes the bodies of a robot by the part that they belong to (1.4: LIBERO; 1.5: RoboCasa).
_ROBOT_PARTS: tuple[tuple[BodyKind, re.Pattern[str]], ...] = (
    ("mobile base", re.compile(r"mobile_?base|wheel", re.IGNORECASE)),
    ("mount", re.compile(r"mount|pedestal", re.IGNORECASE)),
    ("gripper", re.compile(r"gripper|finger|hand", re.IGNORECASE)),
    ("arm link", re.compile(r"link|shoulder|elbow|forearm|wrist", re.IGNORECASE)),
)


def name_body_kind(batch: Batch, episode: int, body: int, registry: Registry) -> BodyKind:
    """Return the kind of a body of an episode; `body` is its index in the batch's body table, `episode` from 0."""
    header, poses = batch.headers[episode], batch.body_pos_m
    posed = poses.body[poses.body_starts[episode] : poses.body_starts[episode + 1]]
    goal = registry.find_goal_bodies(header.benchmark, header.task_id)
    return _body_kind(batch.body_label(body), int(batch.body_role[body]), body in posed, goal)


def _body_kind(name: str, role: int, is_posed: bool, goal: GoalBodies | None) -> BodyKind:
    """Return the kind of a body by its name, its role and whether its position is recorded."""
    if role == ROBOT:
        return next((kind for kind, pattern in _ROBOT_PARTS if pattern.search(name)), "robot part")
    if role == TARGET:
        return "target"
    if role == FURNITURE and goal is not None and _names_body(goal.fixtures, name):
        return "goal fixture"
    if goal is not None and _names_body(goal.receptacles, name):
        return "goal receptacle"
    if role == BYSTANDER:
        return "bystander of unknown kind" if goal is None else "distractor"
    return "fixture link" if is_posed else "furniture"


def _names_body(names: Sequence[str], body: str) -> bool:
    return any(body == name or body.startswith(f"{name}_") for name in names)


# The bodies behind a value


CONTACT_ROLES: Mapping[str, tuple[int, ...]] = {
    "arm_furniture_force": (ROBOT, FURNITURE),
    "target_furniture_force": (TARGET, FURNITURE),
    "max_contact_force": (),
    "self_collision": (ROBOT, ROBOT),
}
"""Signal of contacts -> the roles of the two bodies; empty = any pair."""
DISPLACEMENT = "non_target_disp_max"


@dataclass(frozen=True, slots=True)
class Contributors:
    """The bodies behind a signal's value in one record: their relation, their names, the amount and their kinds."""

    what: str
    names: tuple[str, ...]
    amount: str = ""
    kinds: tuple[BodyKind, ...] = ()
    """One a body; empty where `names` holds a joint."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Each name with its kind behind it, such as `plate_1 (goal receptacle)`; the names alone without kinds."""
        if not self.kinds:
            return self.names
        return tuple(f"{name} ({kind})" for name, kind in zip(self.names, self.kinds, strict=True))


def find_contributors(reading: RecordFields, signal: str, record: int, registry: Registry) -> Contributors | None:
    """Return the bodies behind a signal's value in one record of the only episode; None if no body can be named.

    For signals of torque that is `joint K`, the joint nearest to its limit, from 1, without kinds; None without joints.
    """
    if signal in _TORQUE_CHANNELS:
        return _most_loaded_joint(reading, _TORQUE_CHANNELS[signal], record)
    find = _FINDERS.get(signal)
    finding = find(reading, signal, record) if find else None
    if finding is None:
        return None
    what, bodies, amount = finding
    batch = reading.batch
    names = tuple(batch.body_label(body) for body in bodies)
    return Contributors(what, names, amount, tuple(name_body_kind(batch, 0, body, registry) for body in bodies))


def contacts_of_signal(batch: Batch, signal: str, record: int) -> NDArray[np.int64]:
    """Return the contacts of one record that a signal of contacts reads, as indices into those of the batch.

    Raises `KeyError` for a signal that is not in `CONTACT_ROLES`.
    """
    contacts = np.arange(batch.contacts.starts[record], batch.contacts.starts[record + 1])
    roles = CONTACT_ROLES[signal]
    if not roles:
        return contacts
    a, b = batch.contacts.a[contacts], batch.contacts.b[contacts]
    pair = np.sort(np.stack([batch.body_role[a], batch.body_role[b]]), axis=0)
    chosen: NDArray[np.int64] = contacts[(pair == np.sort(np.array(roles))[:, None]).all(axis=0)]
    return chosen


def displacements(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the watched bodies of the only episode, [W], and their distances from record 0 in metres, [n, W].

    A distance is NaN where the body's pose is unknown, or was in record 0.
    """
    body, xyz = batch.body_pos_m.episode_poses(0)
    role = batch.body_role[body]
    watched = np.flatnonzero((role == BYSTANDER) | (role == FURNITURE))
    moved = xyz[:, watched] - xyz[:1, watched]
    distance = np.sqrt(np.square(moved).sum(axis=2))
    record = np.arange(len(distance))
    fields = RecordFields(batch)
    for k, tracked in enumerate(body[watched] if fields.has_lost_poses else ()):
        lost = fields.is_lost(np.full(len(record), tracked), record)
        distance[lost | lost[:1], k] = np.nan
    return body[watched], distance


_Found = tuple[str, tuple[int, ...], str]
"""Relation, bodies as indices into the body table, amount."""


def _hardest_contact(reading: RecordFields, signal: str, record: int) -> _Found | None:
    batch = reading.batch
    chosen = contacts_of_signal(batch, signal, record)
    if not len(chosen):
        return None
    top = int(chosen[batch.contacts.force_n[chosen].argmax()])
    bodies = int(batch.contacts.a[top]), int(batch.contacts.b[top])
    return "hardest contact", bodies, format_amount(float(batch.contacts.force_n[top]), "N")


def _most_displaced_body(reading: RecordFields, signal: str, record: int) -> _Found | None:
    bodies, distance = displacements(reading.batch)
    if np.isnan(distance[record]).all():
        return None
    top = int(np.nanargmax(distance[record]))
    return "displaced most", (int(bodies[top]),), format_amount(float(distance[record, top]), "m")


def _held_object(reading: RecordFields, signal: str, record: int) -> _Found | None:
    body = int(reading.held_body[record])
    return ("held object", (body,), "") if body >= 0 else None


_TORQUE_CHANNELS = {"joint_torque_ratio": "joint_torque_nm", "joint_torque_peak_ratio": "joint_torque_peak_nm"}
"""Signal -> the channel of the torques that it compares with the limits."""


def _most_loaded_joint(reading: RecordFields, channel: str, record: int) -> Contributors | None:
    batch = reading.batch
    torque, limit = np.abs(batch.channel(channel).episode_rows(0)[record]), np.array(batch.headers[0].torque_limit_nm)
    if not len(torque):
        return None
    top = int((torque / limit).argmax())
    amount = f"{format_significant(float(torque[top]))} of {format_amount(float(limit[top]), 'N·m')}"
    return Contributors("most loaded", (f"joint {top + 1}",), amount)


def format_amount(value: float, unit: str) -> str:
    """Return an amount with its unit, in the unit in which it reads best, such as 8.2 mm for 0.0082 m."""
    shown_unit, scale = display_unit(unit, value)
    return append_unit(format_significant(value * scale), shown_unit)


_FINDERS: Mapping[str, Callable[[RecordFields, str, int], _Found | None]] = {
    **dict.fromkeys(CONTACT_ROLES, _hardest_contact),
    DISPLACEMENT: _most_displaced_body,
    **dict.fromkeys(
        ("held_object_tilt", "held_object_tilt_body", "held_object_slip", "target_height", "target_obj_speed",
         "release_speed"),
        _held_object,
    ),
}  # fmt: skip
