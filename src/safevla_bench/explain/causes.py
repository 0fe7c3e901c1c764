"""Causes of violations, inferred from contacts and poses: a chain such as arm → bowl → plate, with times and speed.

A chain begins with the body that caused the violation and ends with the affected body. Each body touches the next body.
A contact in record t took place between records t - 1 and t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from safevla_bench import signals
from safevla_bench.errors import UnknownTaskError
from safevla_bench.explain.bodies import displacements, pair_reader
from safevla_bench.signals.parts import scene_poses
from safevla_bench.signals.signal import SIGNALS, CauseKind, RecordFields, Signal
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import format_amount, format_fixed
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import FURNITURE, ROBOT

MOVED_M = 0.0005  # a body counts as moved if it is farther than this distance [m] from its initial position
RECENT_S = 0.5  # maximum time between a contact and the contact or violation that it caused [s]
_LONGEST_CHAIN = 4  # the search for a chain goes no further when it has visited this number of bodies


@dataclass(frozen=True, slots=True)
class CauseChain:
    """The cause of a violation. `bodies` form a chain; `steps` are the records in which each body touches the next
    body. `others` also touched the chain's last body, and may therefore also be the cause. `step` is the record in
    which the violation began; for a displacement, the record in which the body left its place.
    """

    bodies: tuple[str, ...]
    steps: tuple[int, ...]
    others: tuple[str, ...]
    step: int
    sentence: str


@dataclass(frozen=True, slots=True)
class _Contact:
    step: int
    a: int
    b: int
    strength: float  # force [N], net force [N] or impulse [N s]; largest for the hardest contact

    def other(self, body: int) -> int:
        # Return the body that touches `body` in this contact of the bodies `a` and `b`.
        # All three arguments are indices of bodies.
        return self.b if self.a == body else self.a


@dataclass(frozen=True, slots=True)
class _ContactChain:
    bodies: tuple[int, ...]
    contacts: tuple[_Contact, ...] = ()  # the contact of each body with the next body
    others: tuple[int, ...] = ()  # bodies outside the chain that touched the chain's last body

    def extend(self, contact: _Contact, body: int, others: tuple[int, ...] = ()) -> _ContactChain:
        # Return the chain with `body` (an index) appended. In `contact`, the chain's last body touches `body`.
        # `others` are bodies outside the chain that also touched `body`. They replace `self.others` in the result.
        return _ContactChain((*self.bodies, body), (*self.contacts, contact), others)


def find_cause(reading: RecordFields, signal: str, first: int, registry: Registry) -> CauseChain | None:
    """Return the cause of a violation in an episode. `signal` passed its limit in record `first`.

    Return None for a signal of motion, if there is no violation (`first` below 0), or if contacts are not recorded.
    Otherwise, a joint torque always has a cause, which may name no bodies. For other signals, return None if record
    `first` has no known displacement, contact or held object. `registry` names the tasks with a held object.
    """
    # `kind` selects the function that explains the signal, such as `contact`; None = the signal is not explained.
    kind = SIGNALS[signal].cause if signal in SIGNALS else None
    if kind is None or first < 0 or not reading.batch.contacts.present[0]:
        return None
    return _EXPLAINERS[kind](reading, SIGNALS[signal], first, registry)


def _explain_displacement(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> CauseChain | None:
    # Explain why a body moved too far in record `first`; None if no displacement is known in that record.
    # Return the chain of contacts to the body, the record in which the body left its place, and a sentence.
    # `distances_m` [n, W] are the distances of `W` bodies from their initial positions.
    # `path_m` has the chosen body's distances up to record `first`.
    batch = reading.batch
    bodies, distances_m = displacements(reading)
    if np.isnan(distances_m[first]).all():
        return None
    # Explain the body that is farthest from its initial position. Among equal distances, the last name is used.
    distance_m = np.nan_to_num(distances_m[first], nan=-1.0)
    column = max(range(len(bodies)), key=lambda k: (distance_m[k], batch.body_label(int(bodies[k]))))
    body, path_m = int(bodies[column]), distances_m[: first + 1, column]
    path_m[: reading.origin[first]] = 0.0  # records before the judged interval do not count
    begin = first  # the record in which the body left its place
    if path_m[first] > MOVED_M:
        # The body left its place in the first record after the last record near its initial position.
        last_still = int(np.flatnonzero(path_m <= MOVED_M).max(initial=-1))
        begin = last_still + 1 + int((path_m[last_still + 1 :] > MOVED_M).argmax())
    chain = _find_chain_to_moved(reading, body, begin)
    distance_text = format_amount(float(distances_m[first, column]), "m")
    departure = f"{batch.body_label(body)} left its place at {_format_time(reading, begin)}"
    departure += f" and was {distance_text} away at {_format_time(reading, first)}"
    if len(chain.bodies) == 1:
        sentence = f"{departure}. No recorded contact explains this; the body may have slid, rolled or been released."
        if neighbors := _find_resting_neighbors(reading, body):
            earlier_text = f"contacts with {' and '.join(neighbors)}, which began before the episode,"
            sentence += f" Its {earlier_text} are not recorded and may explain it."
    else:
        pusher = batch.body_label(chain.bodies[-2])
        touch_time = _format_time(reading, _first_record_of_contact(reading, chain.contacts[-1]))
        sentence = f"{_format_chain(batch, chain)}: {departure}; {pusher} touched it from {touch_time} on."
    return _make_cause(reading, chain, begin, registry, sentence)


def _explain_contact(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> CauseChain | None:
    # Explain why record `first` has a contact that is too hard or forbidden; None if this record has no known contact.
    # Return the chain of contacts from the robot to the hardest contact, and a sentence.
    # The sentence has the force only for a signal of contacts (`signal.cause`) in newtons.
    assert signal.bodies is not None  # every signal of contact or touch names its bodies
    batch, strength_of_pair = reading.batch, pair_reader(reading, signal.bodies)(first)
    contacts = [_Contact(first, a, b, strength) for (a, b), strength in strength_of_pair.items()]
    hardest = _find_hardest(batch, contacts)
    if hardest is None:
        return None
    near_body, far_body = _order_robot_first(batch, hardest)
    chain, last_body = _find_chain_from_robot(reading, near_body, first, {near_body, far_body}), far_body
    if batch.body_role[near_body] != ROBOT:
        # Neither body belongs to the robot. Take the longer of the two chains that lead to the contact.
        chain_to_far = _find_chain_from_robot(reading, far_body, first, {near_body, far_body})
        if len(chain_to_far.bodies) > len(chain.bodies):
            chain, last_body = chain_to_far, near_body
    chain = chain.extend(hardest, last_body)
    touch_text = f"in contact since {_format_time(reading, _first_record_of_contact(reading, hardest))}"
    is_force = signal.cause == "contact" and signal.unit == "N"
    strength_text = f", {format_amount(hardest.strength, 'N')} at {_format_time(reading, first)}" if is_force else ""
    sentence = f"{_format_chain(batch, chain)}: {touch_text}{strength_text}."
    if batch.body_role[chain.bodies[0]] != ROBOT and batch.body_role[last_body] != ROBOT:
        sentence += f" No recent contact of the robot with {batch.body_label(chain.bodies[0])} is recorded."
    return _make_cause(reading, chain, first, registry, sentence)


def _explain_held_motion(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> CauseChain | None:
    # Explain a violation in record `first` by the motion of the held body, `held` (an index); None if no body is held.
    # The cause may be the held body's latest contact in the last `RECENT_S` seconds with a body other than the robot.
    batch, held = reading.batch, int(reading.held_body[first])
    if held < 0:  # the robot holds no body in this record
        return None
    recent_contacts = _read_contacts_of(reading, held, _first_recent_record(reading, first), first)
    not_by_robot = [contact for contact in recent_contacts if batch.body_role[contact.other(held)] != ROBOT]
    name, recent_time = batch.body_label(held), f"{format_fixed(RECENT_S, 1)} s before {_format_time(reading, first)}"
    if not not_by_robot:
        sentence = (
            f"Only the robot touched {name} in the {recent_time}: the grip or the motion of the arm may be the cause."
        )
        return _make_cause(reading, _ContactChain((held,)), first, registry, sentence)
    latest = max(
        not_by_robot, key=lambda contact: (contact.step, contact.strength, batch.body_label(contact.other(held)))
    )
    toucher, others = latest.other(held), _find_other_touching(batch, not_by_robot, held, latest)
    chain = _ContactChain((toucher,)).extend(latest, held, others)
    touch_text = f"in contact with {name}, last at {_format_time(reading, latest.step)}"
    sentence = f"{batch.body_label(toucher)} was {touch_text}: this contact or the grip may have moved the object."
    return _make_cause(reading, chain, first, registry, sentence)


def _explain_joint_load(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> CauseChain | None:
    # Explain a joint's load in record `first` by the robot's hardest contact in that record.
    # If the robot has no contact in the record, the chain is empty, and the sentence mentions this.
    # The contacts of record k have the indices from `contact_starts[k]` to `contact_starts[k + 1]` (excluded).
    batch, contact_starts = reading.batch, reading.batch.contacts.starts
    contacts = _read_contacts(reading, range(contact_starts[first], contact_starts[first + 1]))
    robot_contacts = [contact for contact in contacts if ROBOT in batch.body_role[[contact.a, contact.b]]]
    hardest = _find_hardest(batch, robot_contacts)
    if hardest is None:
        moment = _format_time(reading, first)
        sentence = f"No contact of the robot is recorded at {moment}: the robot's motion or load may be the cause."
        return _make_cause(reading, _ContactChain(()), first, registry, sentence)
    robot_body, other_body = _order_robot_first(batch, hardest)
    touch_time, force = _format_time(reading, _first_record_of_contact(reading, hardest)), hardest.strength
    touch_text = f"in contact since {touch_time}, {format_amount(force, 'N')}"
    chain = _ContactChain((robot_body,)).extend(hardest, other_body)
    sentence = f"{_format_chain(batch, chain)}: {touch_text}; this contact or the motion may have loaded the joint."
    return _make_cause(reading, chain, first, registry, sentence)


_EXPLAINERS: Mapping[CauseKind, Callable[[RecordFields, Signal, int, Registry], CauseChain | None]] = {
    "push": _explain_displacement,
    "contact": _explain_contact,
    "touch": _explain_contact,
    "grip": _explain_held_motion,
    "load": _explain_joint_load,
}


# Chains of contacts


def _find_chain_to_moved(reading: RecordFields, body: int, begin: int) -> _ContactChain:
    # Return the chain of contacts, from the robot if possible, to a body that left its place in record `begin`.
    # Without a contact, the chain has only this body. `contact.other(body)` is the body that touches `body`.
    batch = reading.batch
    for step in (begin, begin - 1):  # the contact that moved the body may have ended just before `begin`
        contacts = _read_contacts_of(reading, body, step, step)
        pushing = [contact for contact in contacts if _may_push(reading, contact.other(body))]
        hardest = _find_hardest(batch, pushing)
        if hardest is not None:
            upstream = _find_chain_from_robot(reading, hardest.other(body), step, {body})
            return upstream.extend(hardest, body, _find_other_touching(batch, pushing, body, hardest))
    return _ContactChain((body,))


def _find_chain_from_robot(reading: RecordFields, body: int, step: int, visited: set[int]) -> _ContactChain:
    """Return the chain of contacts from the robot to a body up to a record; without a chain, only the body."""
    # `step` is the index of the record. Contacts in the last `RECENT_S` seconds up to this record count.
    # The chain must not contain the bodies in `visited` again. It ends when `visited` has `_LONGEST_CHAIN` bodies.
    # In a contact, `other(body)` touches `body`.
    batch = reading.batch
    if batch.body_role[body] == ROBOT or len(visited) >= _LONGEST_CHAIN:
        return _ContactChain((body,))

    def rank(contact: _Contact) -> tuple[bool, int, float, str]:
        # Sorts contacts with the robot before other contacts, then by time (latest first), then by strength.
        other = contact.other(body)
        return batch.body_role[other] != ROBOT, -contact.step, -contact.strength, batch.body_label(other)

    for contact in sorted(_read_contacts_of(reading, body, _first_recent_record(reading, step), step), key=rank):
        if contact.other(body) in visited or not _may_push(reading, contact.other(body)):
            continue
        # Find the chain from the robot to the touching body. If there is no such chain, try the next contact.
        upstream = _find_chain_from_robot(reading, contact.other(body), contact.step, visited | {body})
        if batch.body_role[upstream.bodies[0]] == ROBOT:
            return upstream.extend(contact, body)
    return _ContactChain((body,))


def _may_push(reading: RecordFields, body: int) -> bool:
    # Return whether a body (an index) may have pushed others. Furniture can push if its pose is tracked, or if a part
    # of it has a joint: the pose of a door or drawer that the goal moves is not tracked.
    if reading.batch.body_role[body] != FURNITURE or body in reading.batch.body_pos_m.body:
        return True
    scene = scene_poses(reading, 0)
    return scene is not None and not all(
        is_fixed for other, is_fixed in zip(scene.body, scene.geometry.is_fixed, strict=True) if other == body
    )


def _find_resting_neighbors(reading: RecordFields, body: int) -> list[str]:
    # Return the bodies that may have pushed `body` (an index), and whose contacts with it are left out of the record
    # until they first separate, because they touched in record 0. An example is a tray with the body on it.
    name, batch = reading.batch.body_label(body), reading.batch
    partners = {other for pair in batch.headers[0].dropped_pairs or () if name in pair for other in pair} - {name}
    bodies = [other for other in range(len(batch.body_role)) if _may_push(reading, other)]
    return sorted(partners.intersection(map(batch.body_label, bodies)))


def _read_contacts(reading: RecordFields, indices: Iterable[int]) -> list[_Contact]:
    # Return the contacts at these indices of the batch's contact table, each with its record.
    contacts, record_of_contact = reading.batch.contacts, reading.record_of_contact
    forces = contacts.force_n
    return [
        _Contact(int(record_of_contact[index]), int(contacts.a[index]), int(contacts.b[index]), float(forces[index]))
        for index in indices
    ]


def _read_contacts_of(reading: RecordFields, body: int, first_record: int, last_record: int) -> list[_Contact]:
    # Return the contacts of `body` (an index) from `first_record` (0 if negative) to `last_record`, both included.
    # The contacts of record k have the indices from `starts[k]` to `starts[k + 1]` (excluded).
    contacts = reading.batch.contacts
    indices = np.arange(contacts.starts[max(first_record, 0)], contacts.starts[last_record + 1])
    return _read_contacts(reading, indices[(contacts.a[indices] == body) | (contacts.b[indices] == body)])


def _order_robot_first(batch: Batch, contact: _Contact) -> list[int]:
    # Return the indices of a contact's two bodies, the robot's body first, otherwise by role and name.
    # `ROBOT` is the smallest role number.
    return sorted((contact.a, contact.b), key=lambda body: (batch.body_role[body], batch.body_label(body)))


def _find_hardest(batch: Batch, contacts: Iterable[_Contact]) -> _Contact | None:
    # Return the strongest contact, or None without contacts. If strengths are equal, the bodies' names decide.
    def rank(contact: _Contact) -> tuple[float, list[str]]:
        # Sort key: the strongest contact first; ties in the alphabetical order of the bodies' labels.
        return -contact.strength, sorted(map(batch.body_label, (contact.a, contact.b)))

    return min(contacts, key=rank, default=None)


def _find_other_touching(batch: Batch, contacts: Iterable[_Contact], body: int, chosen: _Contact) -> tuple[int, ...]:
    # Return the indices of the bodies that touch `body`, sorted by name, without the body that touches it in `chosen`.
    # All `contacts` are contacts of `body`; `other(body)` is the second body of a contact.
    others = {contact.other(body) for contact in contacts} - {chosen.other(body)}
    return tuple(sorted(others, key=batch.body_label))


def _first_record_of_contact(reading: RecordFields, contact: _Contact) -> int:
    # The bodies of `contact` may touch in several successive records up to the record `contact.step`.
    # Return the first record of this uninterrupted contact.
    contacts, bodies = reading.batch.contacts, (contact.a, contact.b)
    end = contacts.starts[contact.step + 1]
    a, b = contacts.a[:end], contacts.b[:end]
    is_same_pair = ((a == bodies[0]) & (b == bodies[1])) | ((a == bodies[1]) & (b == bodies[0]))
    records = np.unique(reading.record_of_contact[:end][is_same_pair])
    # Index in `records` of the first record after the last gap, or 0 without a gap.
    start = np.flatnonzero(np.diff(records) > 1).max(initial=-1) + 1
    return int(records[start])


def _first_recent_record(reading: RecordFields, step: int) -> int:
    # Return the index of the first record in the last `RECENT_S` seconds before the record `step`.
    # Without time stamps, the index is computed from the control step, and may be negative.
    times = reading.batch.stamps_s.get(0)
    if times is None:
        return step - round(RECENT_S / float(reading.batch.dt_s[0]))
    return int(np.searchsorted(times, times[step] - RECENT_S))


# In words


def _make_cause(
    reading: RecordFields, chain: _ContactChain, step: int, registry: Registry, sentence: str
) -> CauseChain:
    # Return the cause with the names of the bodies in `chain`. `step` is the record in which the violation began.
    # Adds other possible causes, the stage of the grasp and the hand's speed to `sentence`, which explains the cause.
    # `chain.others` are bodies outside the chain that also touched the chain's last body.
    batch = reading.batch
    names, others = tuple(map(batch.body_label, chain.bodies)), tuple(map(batch.body_label, chain.others))
    if others:
        sentence += f" {' and '.join(others)} also touched {names[-1]} and may have been the cause."
    # For robots with several arms, read the stage and the speed of the arm that is part of the chain.
    reading = _choose_acting_arm(reading, names)
    circumstances = []
    stage = _find_grasp_stage(reading, step, registry)
    if stage:
        circumstances.append(f"the stage of the grasp was {stage}")
    speed_m_s = _measure_hand_speed(reading, step)
    if speed_m_s is not None:
        of_arm = f" of {reading.name_arm()}" if reading.name_arm() else ""
        circumstances.append(f"the end effector{of_arm} moved at {format_amount(speed_m_s, 'm/s')}")
    if circumstances:
        sentence += f" At {_format_time(reading, step)} {', and '.join(circumstances)}."
    return CauseChain(names, tuple(contact.step for contact in chain.contacts), others, step, sentence)


def _choose_acting_arm(reading: RecordFields, names: Sequence[str]) -> RecordFields:
    # Return the fields of one arm: the arm of the first body in `names` that belongs to an arm.
    # Return `reading` unchanged if no arm has one of these bodies, or if an arm is already chosen.
    header = reading.batch.headers[0]
    arm_of_body = header.arm_bodies or {}
    arms = [arm_of_body[name] for name in names if name in arm_of_body]
    if header.arms is None or not arms or reading.chosen_arm is not None:
        return reading
    return reading.of_arm(np.array([header.arms.index(arms[0])]))


def _find_grasp_stage(reading: RecordFields, step: int, registry: Registry) -> str:
    """Return the stage of the grasp in a record: `before grasp` until the first record with a grip, and `after release`
    after the last such record. In between, `transport` = the object is more than 5 cm above its start; `handling` = it
    is lower. Return "" if the task holds no object, a channel is missing, or the acting arm is unknown.
    """
    # `grip` and `transport` are signals: whether the hand holds the object, and whether the held object is raised.
    header, names = reading.batch.headers[0], ("grip", "transport")
    if header.arms and not reading.name_arm():
        return ""
    try:
        # The tag `held_target` means that the robot must hold the task's object. Without tags, the stage is unknown.
        holds_object = "held_target" in registry.task_tags(header.benchmark, header.task_id)
    except UnknownTaskError:
        return ""
    if not holds_object or any(is_lacking.any() for is_lacking in signals.missing_fields(reading, names).values()):
        return ""
    values = signals.derive_signals(reading, names)
    grip_records = np.flatnonzero(values["grip"])
    if not len(grip_records) or step < grip_records[0]:
        return "before grasp"
    if step > grip_records[-1]:
        return "after release"
    return "transport" if values["transport"][step] else "handling"


def _measure_hand_speed(reading: RecordFields, step: int) -> float | None:
    # Return the hand's mean speed since the previous record [m/s]. `step` is the index of the record.
    # Return None in record 0, if it is not known which of several arms acted, or if a position is unknown.
    if step == 0 or (reading.batch.headers[0].arms and not reading.name_arm()):
        return None
    moved_m = float(np.linalg.norm(reading.eef_pos[step] - reading.eef_pos[step - 1]))
    # `time_s` has the records' time stamps; records without time stamps are one control step, `dt_s`, apart.
    stamp_difference_s = reading.time_s[step] - reading.time_s[step - 1]
    duration_s = float(stamp_difference_s if reading.is_stamped[step] else reading.batch.dt_s[0])
    return moved_m / duration_s if np.isfinite(moved_m) else None


def _format_chain(batch: Batch, chain: _ContactChain) -> str:
    # Return the names of the chain's bodies, such as `hand → bowl → plate`.
    return " → ".join(map(batch.body_label, chain.bodies))


def _format_time(reading: RecordFields, step: int) -> str:
    # Return the time of the record `step` since record 0, such as `1.25 s`.
    return f"{format_fixed(reading.batch.elapsed_s(0, step), 2)} s"
