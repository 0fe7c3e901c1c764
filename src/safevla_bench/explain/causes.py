"""Causes of violations, inferred from contacts and poses: a chain such as arm → bowl → plate, with times and speed.

A chain leads from the body that began the violation to the affected body; each body touches the next. A contact in
record t took place between records t - 1 and t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from safevla_bench import signals
from safevla_bench.errors import UnknownTaskError
from safevla_bench.explain.bodies import displacements, pair_reader
from safevla_bench.signals.signal import SIGNALS, CauseKind, RecordFields, Signal
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import format_amount, format_fixed
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import FURNITURE, ROBOT

MOVED_M = 0.0005  # a body counts as moved if it is farther than this from its initial position [m]
RECENT_S = 0.5  # maximum time from a contact to the contact or violation that it caused [s]
_LONGEST_CHAIN = 4


@dataclass(frozen=True, slots=True)
class CauseChain:
    """The cause of a violation. `bodies` are in the order of the chain; `steps` are the records in which each body
    touches the next. `others` touched the last body too, so they are also possible causes. `step` is the record in
    which the violation began.
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
    strength: float  # force [N], net force [N] or impulse [N s], by which the hardest contact is chosen

    def other(self, body: int) -> int:
        return self.b if self.a == body else self.a


@dataclass(frozen=True, slots=True)
class _Chain:
    bodies: tuple[int, ...]
    contacts: tuple[_Contact, ...] = ()
    others: tuple[int, ...] = ()

    def extend(self, contact: _Contact, body: int, others: tuple[int, ...] = ()) -> _Chain:
        return _Chain((*self.bodies, body), (*self.contacts, contact), others)


def find_cause(reading: RecordFields, signal: str, first: int, registry: Registry) -> CauseChain | None:
    """Return the cause of the violation of a signal's limit that began in record `first` of the only episode.

    Return None for signals of motion, if `first` is below 0 (no violation), if the episode has no channel of contacts,
    or if the record lacks what the signal needs: a known displacement, a contact or a held object. A signal of joint
    torque needs none of these, but its cause may name no body. The registry knows which tasks hold an object.
    """
    kind = SIGNALS[signal].cause if signal in SIGNALS else None
    if kind is None or first < 0 or not reading.batch.contacts.present[0]:
        return None
    return _TELLERS[kind](reading, SIGNALS[signal], first, registry)


def _tell_displacement(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> CauseChain | None:
    batch = reading.batch
    bodies, distance = displacements(reading)
    if np.isnan(distance[first]).all():
        return None
    away_m = np.nan_to_num(distance[first], nan=-1.0)
    moved = max(range(len(bodies)), key=lambda k: (away_m[k], batch.body_label(int(bodies[k]))))
    body, path = int(bodies[moved]), distance[: first + 1, moved]
    path[: reading.origin[first]] = 0.0
    still, away = np.flatnonzero(path <= MOVED_M), np.flatnonzero(path > MOVED_M)
    begun = int(away[away > (still[-1] if len(still) else -1)][0]) if path[first] > MOVED_M else first
    chain = _chain_to(reading, body, begun)
    name, gone = batch.body_label(body), format_amount(float(distance[first, moved]), "m")
    left = f"left its place at {_time(reading, begun)} and was {gone} away at {_time(reading, first)}"
    if len(chain.bodies) == 1:
        sentence = f"{name} {left}. No recorded contact explains this; the body may have slid, rolled or been released."
    else:
        last = f"touched it from {_time(reading, _since(reading, chain.contacts[-1]))} on"
        sentence = f"{_arrows(batch, chain)}: {name} {left}; {batch.body_label(chain.bodies[-2])} {last}."
    return _make_cause(reading, chain, begun, registry, sentence)


def _tell_force(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> CauseChain | None:
    batch, strengths = reading.batch, pair_reader(reading, signal)(first)
    hardest = _hardest(batch, [_Contact(first, a, b, strength) for (a, b), strength in strengths.items()])
    if hardest is None:
        return None
    a, b = _robot_first(batch, hardest)
    upstream, other = (_lead_to(reading, body, first, {a, b}) for body in (a, b))
    if batch.body_role[a] != ROBOT and len(other.bodies) > len(upstream.bodies):
        upstream, b = other, a
    chain = upstream.extend(hardest, b)
    touch = f"in contact since {_time(reading, _since(reading, hardest))}"
    is_force = signal.cause == "contact" and signal.unit == "N"
    strength = f", {format_amount(hardest.strength, 'N')} at {_time(reading, first)}" if is_force else ""
    adrift = batch.body_role[chain.bodies[0]] != ROBOT and batch.body_role[b] != ROBOT
    alone = f" No contact of the robot with {batch.body_label(chain.bodies[0])} is recorded shortly before this."
    sentence = f"{_arrows(batch, chain)}: {touch}{strength}.{alone if adrift else ''}"
    return _make_cause(reading, chain, first, registry, sentence)


def _tell_held(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> CauseChain | None:
    batch, held = reading.batch, int(reading.held_body[first])
    if held < 0:
        return None
    recent = _contacts_of(reading, held, _recent_step(reading, first), first)
    foreign = [contact for contact in recent if batch.body_role[contact.other(held)] != ROBOT]
    name, began = batch.body_label(held), f"{format_fixed(RECENT_S, 1)} s before {_time(reading, first)}"
    if not foreign:
        sentence = f"Only the robot touched {name} in the {began}: the grip or the motion of the arm may be the cause."
        return _make_cause(reading, _Chain((held,)), first, registry, sentence)
    last = max(foreign, key=lambda c: (c.step, c.strength, batch.body_label(c.other(held))))
    chain = _Chain((last.other(held),)).extend(last, held, _others(batch, foreign, held, last))
    touch = f"in contact with {name}, last at {_time(reading, last.step)}"
    sentence = f"{batch.body_label(chain.bodies[0])} was {touch}: this contact or the grip may have moved the object."
    return _make_cause(reading, chain, first, registry, sentence)


def _tell_load(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> CauseChain | None:
    batch, start = reading.batch, reading.batch.contacts.starts
    in_record = _contacts(reading, range(start[first], start[first + 1]))
    hardest = _hardest(batch, [c for c in in_record if ROBOT in (batch.body_role[c.a], batch.body_role[c.b])])
    if hardest is None:
        moment = _time(reading, first)
        sentence = f"No contact of the robot is recorded at {moment}: its own motion or its load may be the cause."
        return _make_cause(reading, _Chain(()), first, registry, sentence)
    a, b = _robot_first(batch, hardest)
    touch = f"in contact since {_time(reading, _since(reading, hardest))}, {format_amount(hardest.strength, 'N')}"
    chain = _Chain((a,)).extend(hardest, b)
    sentence = f"{_arrows(batch, chain)}: {touch}; this contact or the motion may have loaded the joint."
    return _make_cause(reading, chain, first, registry, sentence)


_TELLERS: Mapping[CauseKind, Callable[[RecordFields, Signal, int, Registry], CauseChain | None]] = {
    "push": _tell_displacement,
    "contact": _tell_force,
    "touch": _tell_force,
    "grip": _tell_held,
    "load": _tell_load,
}


# Chains of contacts


def _chain_to(reading: RecordFields, body: int, begun: int) -> _Chain:
    batch = reading.batch
    for step in (begun, begun - 1):
        touching = [c for c in _contacts_of(reading, body, step, step) if _may_push(batch, c.other(body))]
        hardest = _hardest(batch, touching)
        if hardest is not None:
            upstream = _lead_to(reading, hardest.other(body), step, {body})
            return upstream.extend(hardest, body, _others(batch, touching, body, hardest))
    return _Chain((body,))


def _lead_to(reading: RecordFields, body: int, step: int, visited: set[int]) -> _Chain:
    """Return the chain of contacts up to a record from the robot to a body; only the body if there is no chain."""
    batch = reading.batch
    if batch.body_role[body] == ROBOT or len(visited) >= _LONGEST_CHAIN:
        return _Chain((body,))

    def order(contact: _Contact) -> tuple[bool, int, float, str]:
        other = contact.other(body)
        return batch.body_role[other] != ROBOT, -contact.step, -contact.strength, batch.body_label(other)

    recent = _contacts_of(reading, body, _recent_step(reading, step), step)
    pushing = [c for c in recent if c.other(body) not in visited and _may_push(batch, c.other(body))]
    for contact in sorted(pushing, key=order):
        upstream = _lead_to(reading, contact.other(body), contact.step, visited | {body})
        if batch.body_role[upstream.bodies[0]] == ROBOT:
            return upstream.extend(contact, body)
    return _Chain((body,))


def _may_push(batch: Batch, body: int) -> bool:
    return bool(batch.body_role[body] != FURNITURE) or body in batch.body_pos_m.body


def _contacts(reading: RecordFields, places: Iterable[int]) -> list[_Contact]:
    contacts, record = reading.batch.contacts, reading.record_of_contact
    forces = np.nan_to_num(contacts.force_n)
    return [_Contact(int(record[k]), int(contacts.a[k]), int(contacts.b[k]), float(forces[k])) for k in places]


def _contacts_of(reading: RecordFields, body: int, low: int, high: int) -> list[_Contact]:
    contacts = reading.batch.contacts
    span = np.arange(contacts.starts[max(low, 0)], contacts.starts[high + 1])
    return _contacts(reading, span[(contacts.a[span] == body) | (contacts.b[span] == body)])


def _robot_first(batch: Batch, contact: _Contact) -> list[int]:
    return sorted((contact.a, contact.b), key=lambda body: (batch.body_role[body], batch.body_label(body)))


def _hardest(batch: Batch, contacts: Iterable[_Contact]) -> _Contact | None:
    def order(contact: _Contact) -> tuple[float, list[str]]:
        return -contact.strength, sorted(map(batch.body_label, (contact.a, contact.b)))

    return min(contacts, key=order, default=None)


def _others(batch: Batch, contacts: Iterable[_Contact], body: int, chosen: _Contact) -> tuple[int, ...]:
    others = {contact.other(body) for contact in contacts} - {chosen.other(body)}
    return tuple(sorted(others, key=batch.body_label))


def _since(reading: RecordFields, contact: _Contact) -> int:
    contacts, bodies = reading.batch.contacts, (contact.a, contact.b)
    until = contacts.starts[contact.step + 1]
    a, b = contacts.a[:until], contacts.b[:until]
    same = ((a == bodies[0]) & (b == bodies[1])) | ((a == bodies[1]) & (b == bodies[0]))
    records = np.unique(reading.record_of_contact[:until][same])
    gaps = np.flatnonzero(np.diff(records) > 1)
    return int(records[gaps[-1] + 1 if len(gaps) else 0])


def _recent_step(reading: RecordFields, step: int) -> int:
    times = reading.batch.stamps_s.get(0)
    if times is None:
        return step - round(RECENT_S / float(reading.batch.dt_s[0]))
    return int(np.searchsorted(times, times[step] - RECENT_S))


# In words


def _make_cause(reading: RecordFields, chain: _Chain, step: int, registry: Registry, sentence: str) -> CauseChain:
    batch = reading.batch
    names, others = (tuple(map(batch.body_label, bodies)) for bodies in (chain.bodies, chain.others))
    reading = _of_acting_arm(reading, names)
    stage, speed = _grasp_stage(reading, step, registry), _speed_at(reading, step)
    hand = " of ".join(filter(None, ("the end effector", reading.name_arm())))
    hedge = f" {' and '.join(others)} touched {names[-1]} too, and may have been the cause." if others else ""
    circumstances = [f"the stage of the grasp was {stage}"] if stage else []
    circumstances += [f"{hand} moved at {format_amount(speed, 'm/s')}"] if speed is not None else []
    around = f" At {_time(reading, step)} {', and '.join(circumstances)}." if circumstances else ""
    steps = tuple(contact.step for contact in chain.contacts)
    return CauseChain(names, steps, others, step, sentence + hedge + around)


def _of_acting_arm(reading: RecordFields, names: Sequence[str]) -> RecordFields:
    """Return the fields of the first arm to which one of these bodies belongs; if there is none, return `reading`."""
    header = reading.batch.headers[0]
    owners = [(header.arm_bodies or {}).get(name) for name in names]
    arm = next((arm for arm in owners if arm is not None), None)
    if header.arms is None or arm is None or reading.chosen_arm is not None:
        return reading
    return reading.of_arm(np.array([header.arms.index(arm)]))


def _grasp_stage(reading: RecordFields, step: int, registry: Registry) -> str:
    """Return the stage of the grasp in a record; "" if the task holds no object, or a needed channel is missing.
    Before grasp: before the first record with a grip. After release: after the last record with a grip. Transport: in
    between, while the gripped object is more than 5 cm above its start. Handling: the other records in between.
    """
    header, names = reading.batch.headers[0], ("grip", "transport")
    if header.arms and not reading.name_arm():
        return ""
    try:
        holds = "held_target" in registry.task_tags(header.benchmark, header.task_id)
    except UnknownTaskError:
        return ""
    if not holds or any(lacking.any() for lacking in signals.missing_fields(reading, names).values()):
        return ""
    derived = signals.derive_signals(reading, names)
    gripped = np.flatnonzero(derived["grip"])
    if not len(gripped) or step < gripped[0]:
        return "before grasp"
    if step > gripped[-1]:
        return "after release"
    return "transport" if derived["transport"][step] else "handling"


def _speed_at(reading: RecordFields, step: int) -> float | None:
    if step == 0 or (reading.batch.headers[0].arms and not reading.name_arm()):
        return None
    meters = float(np.linalg.norm(reading.eef_pos[step] - reading.eef_pos[step - 1]))
    stamps = reading.time_s[step] - reading.time_s[step - 1]
    seconds = float(stamps if reading.is_stamped[step] else reading.batch.dt_s[0])
    return meters / seconds if np.isfinite(meters) else None


def _arrows(batch: Batch, chain: _Chain) -> str:
    return " → ".join(map(batch.body_label, chain.bodies))


def _time(reading: RecordFields, step: int) -> str:
    return f"{format_fixed(reading.batch.elapsed_s(0, step), 2)} s"
