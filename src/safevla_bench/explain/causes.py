"""Causes of violations, as far as contacts and poses show them: arm → bowl → plate, when, how fast, in which phase.

A chain leads from the body that began it to the body that it ended at; neighbours touch in the record that is named. A
contact of record t lies between t - 1 and t.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.contributors import (
    BodyKind,
    contacts_of_roles,
    displacements,
    format_amount,
    name_body_kind,
)
from safevla_bench.explain.exposure import PHASES, holding, phases
from safevla_bench.signals.signal import SIGNALS, CauseKind, RecordFields, Signal
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import format_fixed
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import FURNITURE, ROBOT

MOVED_M = 0.0005
"""A body has left its place once it is further from it than this."""
RECENT_S = 0.5
"""How long before a contact, or a violation, another contact may have led to it."""
_LONGEST_CHAIN = 4


@dataclass(frozen=True, slots=True)
class ChainContact:
    """The contact of two neighbours of a chain.

    `step` is the record of it that counts, `since_step` the first record of the same contact without a gap.
    """

    bodies: tuple[str, str]
    since_step: int
    step: int
    force_n: float


@dataclass(frozen=True, slots=True)
class Cause:
    """The course of a violation; `bodies` from the first of the chain to the last, with a contact between neighbours.

    `others` touch the last body at the same time, and so may have done it too. `phase` is empty, and the speed of the
    end effector None, where the record does not tell.
    """

    bodies: tuple[str, ...]
    kinds: tuple[BodyKind, ...]
    contacts: tuple[ChainContact, ...]
    others: tuple[str, ...]
    step: int
    phase: str
    speed_m_s: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class _Chain:
    """Bodies of the table, the contacts between neighbours as indices into those of the batch, and other bodies."""

    bodies: tuple[int, ...]
    contacts: tuple[int, ...] = ()
    others: tuple[int, ...] = ()


def find_cause(reading: RecordFields, signal: str, first: int, registry: Registry) -> Cause | None:
    """Return how the violation of a signal's limit came about; None if nothing can tell.

    None for signals of motion alone, if `first` is below 0 (no violation), if the episode has no channel of contacts,
    or if record `first` has no known displacement, no contact, or no held object, as the signal needs.
    """
    kind = SIGNALS[signal].cause if signal in SIGNALS else None
    if kind is None or first < 0 or not reading.batch.contacts.present[0]:
        return None
    return _TELLERS[kind](reading, SIGNALS[signal], first, registry)


def _tell_displacement(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> Cause | None:
    """Return how the body displaced most at record `first` left its place, and the contacts that led to it."""
    batch = reading.batch
    bodies, distance = displacements(batch)
    if np.isnan(distance[first]).all():
        return None
    away_m = np.nan_to_num(distance[first], nan=-1.0)
    moved = max(range(len(bodies)), key=lambda k: (away_m[k], batch.body_label(int(bodies[k]))))
    body, path = int(bodies[moved]), distance[: first + 1, moved]
    still = np.flatnonzero(path <= MOVED_M)
    away = np.flatnonzero(path > MOVED_M)
    begun = int(away[away > (still[-1] if len(still) else -1)][0]) if path[first] > MOVED_M else first
    chain = _chain_to(reading, body, begun)
    name, gone = batch.body_label(body), format_amount(float(distance[first, moved]), "m")
    left = f"left its place at {_time(reading, begun)} and was {gone} away at {_time(reading, first)}"
    if len(chain.bodies) == 1:
        touched = _touched_later(reading, body, begun, first)
        sentence = f"{name} {left}. No recorded contact began it{touched}: it may have slid, rolled or been let go."
    else:
        last = f"touched it from {_time(reading, _since(reading, chain.contacts[-1]))} on"
        sentence = f"{_arrows(batch, chain)}: {name} {left}; {batch.body_label(chain.bodies[-2])} {last}."
    return _make_cause(reading, chain, begun, registry, sentence)


def _tell_force(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> Cause | None:
    """Return the chain of contacts that ends in the hardest contact of `signal` at record `first`; None without one."""
    roles = signal.bodies.roles if signal.bodies else ()
    batch, hardest = reading.batch, _hardest(reading.batch, contacts_of_roles(reading.batch, roles, first))
    if hardest is None:
        return None
    a, b = sorted(_pair(batch, hardest), key=lambda body: (batch.body_role[body], batch.body_label(body)))
    chains = [_lead_to(reading, body, first, {a, b}) for body in (a, b)]
    if batch.body_role[a] != ROBOT and len(chains[1].bodies) > len(chains[0].bodies):
        chains.reverse()
        a, b = b, a
    upstream = chains[0]
    chain = _Chain((*upstream.bodies, b), (*upstream.contacts, hardest))
    touch = f"in contact since {_time(reading, _since(reading, hardest))}"
    strength = f", {_force(batch, hardest)} at {_time(reading, first)}" if signal.cause == "contact" else ""
    adrift = batch.body_role[chain.bodies[0]] != ROBOT and batch.body_role[b] != ROBOT
    alone = f" No contact of the robot with {batch.body_label(chain.bodies[0])} is recorded shortly before."
    sentence = f"{_arrows(batch, chain)}: {touch}{strength}.{alone if adrift else ''}"
    return _make_cause(reading, chain, first, registry, sentence)


def _tell_held(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> Cause | None:
    """Return what the held object touched beside the robot in the 0.5 s up to record `first`; None if nothing is
    held.
    """
    batch, held_body = reading.batch, int(reading.held_body[first])
    if held_body < 0:
        return None
    recent = max(0, first - _recent_steps(reading))
    foreign = [
        c
        for c in _contacts_of(reading, held_body, recent, first)
        if batch.body_role[_other(batch, c, held_body)] != ROBOT
    ]
    name, began = batch.body_label(held_body), f"{format_fixed(RECENT_S, 1)} s before {_time(reading, first)}"
    if not foreign:
        sentence = f"No recorded contact of {name} but the robot's in the {began}: the grip or the motion of the arm."
        return _make_cause(reading, _Chain((held_body,)), first, registry, sentence)
    last = max(
        foreign, key=lambda c: (reading.record_of_contact[c], batch.contacts.force_n[c], _label_of(batch, c, held_body))
    )
    chain = _Chain((_other(batch, last, held_body), held_body), (last,), _others(batch, foreign, held_body, last))
    touch = f"in contact with {name}, last at {_time(reading, int(reading.record_of_contact[last]))}"
    sentence = f"{batch.body_label(chain.bodies[0])} was {touch}: it may have turned or pulled it, or the grip did."
    return _make_cause(reading, chain, first, registry, sentence)


def _tell_load(reading: RecordFields, signal: Signal, first: int, registry: Registry) -> Cause | None:
    """Return the hardest contact of the robot in record `first`, in which a joint bears too much; never None."""
    batch, start = reading.batch, reading.batch.contacts.starts
    in_record = np.arange(start[first], start[first + 1])
    robots = [int(c) for c in in_record if ROBOT in batch.body_role[[*_pair(batch, int(c))]]]
    hardest = _hardest(batch, np.array(robots, dtype=np.int64))
    if hardest is None:
        sentence = (
            f"No contact of the robot is recorded at {_time(reading, first)}: its own motion, or what it carries."
        )
        return _make_cause(reading, _Chain(()), first, registry, sentence)
    a, b = sorted(_pair(batch, hardest), key=lambda body: (batch.body_role[body], batch.body_label(body)))
    touch = f"in contact since {_time(reading, _since(reading, hardest))}, {_force(batch, hardest)}"
    sentence = (
        f"{batch.body_label(a)} → {batch.body_label(b)}: {touch}; it may have loaded the joint, or the motion did."
    )
    return _make_cause(reading, _Chain((a, b), (hardest,)), first, registry, sentence)


_TELLERS: Mapping[CauseKind, Callable[[RecordFields, Signal, int, Registry], Cause | None]] = {
    "push": _tell_displacement,
    "contact": _tell_force,
    "touch": _tell_force,
    "grip": _tell_held,
    "load": _tell_load,
}


# Chains of contacts


def _chain_to(reading: RecordFields, body: int, begun: int) -> _Chain:
    """Return the chain of contacts that ends at a body that left its place at record `begun`."""
    batch = reading.batch
    for step in (begun, begun - 1):
        touching = [
            c for c in _contacts_of(reading, body, max(step, 0), step) if _may_push(batch, _other(batch, c, body))
        ]
        hardest = _hardest(batch, np.array(touching, dtype=np.int64))
        if hardest is not None:
            upstream = _lead_to(reading, _other(batch, hardest, body), step, {body})
            others = _others(batch, touching, body, hardest)
            return _Chain((*upstream.bodies, body), (*upstream.contacts, hardest), others)
    return _Chain((body,))


def _lead_to(reading: RecordFields, body: int, step: int, visited: set[int]) -> _Chain:
    """Return the chain from the robot to a body up to a record; the body alone where no chain reaches the robot."""
    batch = reading.batch
    if batch.body_role[body] == ROBOT or len(visited) >= _LONGEST_CHAIN:
        return _Chain((body,))
    touching = [
        c
        for c in _contacts_of(reading, body, max(0, step - _recent_steps(reading)), step)
        if (other := _other(batch, c, body)) not in visited and _may_push(batch, other)
    ]
    touching.sort(key=lambda c: (batch.body_role[_other(batch, c, body)] != ROBOT, -reading.record_of_contact[c],
                                 -batch.contacts.force_n[c], _label_of(batch, c, body)))  # fmt: skip
    for c in touching:
        upstream = _lead_to(reading, _other(batch, c, body), int(reading.record_of_contact[c]), visited | {body})
        if batch.body_role[upstream.bodies[0]] == ROBOT:
            return _Chain((*upstream.bodies, body), (*upstream.contacts, c))
    return _Chain((body,))


def _may_push(batch: Batch, body: int) -> bool:
    return bool(batch.body_role[body] != FURNITURE) or body in batch.body_pos_m.body


def _touched_later(reading: RecordFields, body: int, begun: int, first: int) -> str:
    later = [
        c for c in _contacts_of(reading, body, begun, first) if _may_push(reading.batch, _other(reading.batch, c, body))
    ]
    if not later:
        return ""
    earliest = min(later, key=lambda c: (reading.record_of_contact[c], _label_of(reading.batch, c, body)))
    at = _time(reading, int(reading.record_of_contact[earliest]))
    return f" (the first, with {_label_of(reading.batch, earliest, body)}, is at {at})"


def _contacts_of(reading: RecordFields, body: int, low: int, high: int) -> list[int]:
    contacts = reading.batch.contacts
    span = np.arange(contacts.starts[low], contacts.starts[high + 1])
    chosen = span[(contacts.a[span] == body) | (contacts.b[span] == body)]
    return [int(contact) for contact in chosen]


def _hardest(batch: Batch, contacts: NDArray[np.int64]) -> int | None:
    if not len(contacts):
        return None
    force = batch.contacts.force_n[contacts]
    strongest = [int(contact) for contact in contacts[force == force.max()]]
    return min(strongest, key=lambda c: sorted(batch.body_label(body) for body in _pair(batch, c)))


def _others(batch: Batch, contacts: list[int], body: int, chosen: int) -> tuple[int, ...]:
    others = {_other(batch, c, body) for c in contacts} - {_other(batch, chosen, body)}
    return tuple(sorted(others, key=batch.body_label))


def _since(reading: RecordFields, contact: int) -> int:
    contacts, (body, other) = reading.batch.contacts, _pair(reading.batch, contact)
    until = contacts.starts[reading.record_of_contact[contact] + 1]
    a, b = contacts.a[:until], contacts.b[:until]
    same = ((a == body) & (b == other)) | ((a == other) & (b == body))
    records = np.unique(reading.record_of_contact[:until][same])
    gaps = np.flatnonzero(np.diff(records) > 1)
    return int(records[gaps[-1] + 1 if len(gaps) else 0])


def _pair(batch: Batch, contact: int) -> tuple[int, int]:
    return int(batch.contacts.a[contact]), int(batch.contacts.b[contact])


def _other(batch: Batch, contact: int, body: int) -> int:
    a, b = _pair(batch, contact)
    return b if a == body else a


def _label_of(batch: Batch, contact: int, body: int) -> str:
    return batch.body_label(_other(batch, contact, body))


def _recent_steps(reading: RecordFields) -> int:
    return round(RECENT_S / float(reading.batch.dt_s[0]))


# In words


def _make_cause(reading: RecordFields, chain: _Chain, step: int, registry: Registry, sentence: str) -> Cause:
    """Return the cause with its bodies by name and kind, and with phase and speed of the end effector at record
    `step`.
    """
    batch = reading.batch
    names = tuple(batch.body_label(body) for body in chain.bodies)
    others = tuple(batch.body_label(body) for body in chain.others)
    phase, speed = _phase_at(reading, step, registry), _speed_at(reading, step)
    hedge = f" {' and '.join(others)} touched {names[-1]} too, and may have done it." if others else ""
    circumstances = [f"the phase was {phase}"] if phase else []
    circumstances += [f"the end effector moved at {format_amount(speed, 'm/s')}"] if speed is not None else []
    around = f" At {_time(reading, step)} {', and '.join(circumstances)}." if circumstances else ""
    return Cause(
        bodies=names,
        kinds=tuple(name_body_kind(batch, 0, body, registry) for body in chain.bodies),
        contacts=tuple(
            ChainContact(
                bodies=(names[k], names[k + 1]),
                since_step=_since(reading, c),
                step=int(reading.record_of_contact[c]),
                force_n=float(batch.contacts.force_n[c]),
            )
            for k, c in enumerate(chain.contacts)
        ),
        others=others,
        step=step,
        phase=phase,
        speed_m_s=speed,
        sentence=sentence + hedge + around,
    )


def _phase_at(reading: RecordFields, step: int, registry: Registry) -> str:
    phase = reading.compute_once("phase", "phase", lambda fields: phases(fields, holding(fields.batch, registry)))
    return PHASES[int(phase[step])] if phase[step] >= 0 else ""


def _speed_at(reading: RecordFields, step: int) -> float | None:
    if step == 0:
        return None
    metres = float(np.linalg.norm(reading.eef_pos[step] - reading.eef_pos[step - 1]))
    stamps = reading.time_s[step] - reading.time_s[step - 1]
    seconds = float(stamps if reading.is_stamped[step] else reading.batch.dt_s[0])
    return metres / seconds if np.isfinite(metres) else None


def _arrows(batch: Batch, chain: _Chain) -> str:
    return " → ".join(batch.body_label(body) for body in chain.bodies)


def _time(reading: RecordFields, step: int) -> str:
    return f"{format_fixed(reading.batch.elapsed_s(0, step), 2)} s"


def _force(batch: Batch, contact: int) -> str:
    return format_amount(float(batch.contacts.force_n[contact]), "N")
