"""The bodies behind a signal's value (in contact, displaced, held, or the joint under load), and the kinds of bodies.

A kind says what a body of a violation is to the task, by its role, its name and the task's goal. The vocabulary is
closed. The role and the position are the record's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from safevla_bench.signals.signal import SIGNALS, Bodies, RecordFields
from safevla_bench.signals.space import measure_places
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
    behind = bodies_of(signal)
    if behind is None:
        return None
    if behind.kind == "joint":
        return _most_loaded_joint(reading, behind, record)
    batch, (bodies, amount) = reading.batch, _FINDERS[behind.kind](reading, behind, record)
    if not bodies:
        return None
    names = tuple(batch.body_label(body) for body in bodies)
    kinds = tuple(name_body_kind(batch, 0, body, registry) for body in bodies)
    return Contributors(behind.relation, names, amount, kinds)


def bodies_of(signal: str) -> Bodies | None:
    """Return which bodies are behind a signal; None for the margin of a formula, and if no body is."""
    return SIGNALS[signal].bodies if signal in SIGNALS else None


def contacts_of_roles(batch: Batch, roles: Sequence[int], record: int) -> NDArray[np.int64]:
    """Return the contacts of one record between two roles (empty = any), as indices into those of the batch."""
    contacts = np.arange(batch.contacts.starts[record], batch.contacts.starts[record + 1])
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


_Found = tuple[tuple[int, ...], str]
"""Bodies as indices into the body table, () = none; and the amount."""


def _hardest_contact(reading: RecordFields, behind: Bodies, record: int) -> _Found:
    contacts = reading.batch.contacts
    chosen = contacts_of_roles(reading.batch, behind.roles, record)
    if not len(chosen):
        return (), ""
    top = int(chosen[contacts.force_n[chosen].argmax()])
    return (int(contacts.a[top]), int(contacts.b[top])), format_amount(float(contacts.force_n[top]), "N")


def _most_displaced_body(reading: RecordFields, behind: Bodies, record: int) -> _Found:
    bodies, distance = displacements(reading.batch)
    if np.isnan(distance[record]).all():
        return (), ""
    top = int(np.nanargmax(distance[record]))
    return (int(bodies[top]),), format_amount(float(distance[record, top]), "m")


def _held_object(reading: RecordFields, behind: Bodies, record: int) -> _Found:
    body = int(reading.held_body[record])
    return ((body,) if body >= 0 else ()), ""


def _measured_bodies(reading: RecordFields, behind: Bodies, record: int) -> _Found:
    return measure_places(reading, behind.call, record), ""


_FINDERS: Mapping[str, Callable[[RecordFields, Bodies, int], _Found]] = {
    "contact": _hardest_contact,
    "displacement": _most_displaced_body,
    "held": _held_object,
    "place": _measured_bodies,
}


def _most_loaded_joint(reading: RecordFields, behind: Bodies, record: int) -> Contributors | None:
    batch = reading.batch
    torque = np.abs(batch.channel(behind.channel).episode_rows(0)[record])
    limit = np.array(batch.headers[0].torque_limit_nm)
    if not len(torque):
        return None
    top = int((torque / limit).argmax())
    amount = f"{format_significant(float(torque[top]))} of {format_amount(float(limit[top]), 'N·m')}"
    return Contributors(behind.relation, (f"joint {top + 1}",), amount)


def format_amount(value: float, unit: str) -> str:
    """Return an amount with its unit, in the unit in which it reads best, such as 8.2 mm for 0.0082 m."""
    shown_unit, scale = display_unit(unit, value)
    return append_unit(format_significant(value * scale), shown_unit)
