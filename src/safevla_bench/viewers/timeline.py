"""One episode as viewers show it, record by record: poses, contacts, signals against limits, where they are broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.contributors import involved
from safevla_bench.explain.trace import Exhibit, exhibits
from safevla_bench.scores import Scores
from safevla_bench.signals import Reading
from safevla_bench.specs import Library
from safevla_bench.text.numbers import apart, short, unit_text, with_unit
from safevla_bench.trajectory import Batch, Header, select

Floats = NDArray[np.float64]

COLORS: Mapping[str, tuple[int, int, int]] = {
    "robot": (120, 120, 130),
    "target": (46, 125, 50),
    "bystander": (21, 101, 192),
    "furniture": (141, 110, 99),
}
"""Role -> colour, RGB."""
ALARM = (200, 30, 30)
SIZE_M = 0.02
"""Radius of the ball that stands for a body; a record holds poses, no shapes."""


@dataclass(frozen=True, slots=True)
class Body:
    """A tracked body: position [n, 3] in metres, world frame, and quaternion [n, 4] wxyz where it was recorded."""

    name: str
    role: str
    pos_m: Floats
    quat_wxyz: Floats | None


@dataclass(frozen=True, slots=True)
class Contact:
    """One recorded contact; `place_m` [3] is the middle of its bodies' recorded positions, None where none has one.

    A record does not say where on the bodies the contact was.
    """

    a: str
    b: str
    force_n: float
    impulse_ns: float | None
    place_m: Floats | None


@dataclass(frozen=True, slots=True)
class Event:
    """A specification begins to be broken, or is broken worst, in a record."""

    record: int
    spec_id: str
    text: str


@dataclass(frozen=True)
class Timeline:
    """One episode of n records, `dt_s` apart."""

    header: Header
    facts: Mapping[str, str]
    """What the judge says of it, in words."""
    dt_s: float
    records: int
    bodies: tuple[Body, ...]
    eef: Body
    contacts: tuple[tuple[Contact, ...], ...]
    """Those of each record; empty where contacts were not recorded."""
    exhibits: tuple[Exhibit, ...]
    """The scored specifications that reached a verdict, the violated first."""
    events: tuple[Event, ...]


def timeline(scores: Scores, batch: Batch, library: Library, index: int) -> Timeline:
    """The timeline of one episode of a judged batch; `index` counts from 0."""
    record = select(batch, [index])
    found = tuple(exhibits(scores, index, record, library))
    bodies = _bodies(record)
    quat = record.eef_quat_wxyz.episode(0) if record.eef_quat_wxyz.present[0] else None
    reading = Reading(record)
    return Timeline(
        header=record.headers[0],
        facts=_facts(scores, index),
        dt_s=float(record.dt_s[0]),
        records=int(record.starts[-1]),
        bodies=bodies,
        eef=Body("end_effector", "robot", record.eef_pos_m.episode(0), quat),
        contacts=_contacts(record, {body.name: body.pos_m for body in bodies}),
        exhibits=found,
        events=tuple(sorted((e for one in found for e in _events(one, reading)), key=lambda e: e.record)),
    )


def _facts(scores: Scores, index: int) -> dict[str, str]:
    row = scores.episode(index)
    return {
        "episode_id": row.episode_id,
        "policy": row.policy or "",
        "benchmark": row.benchmark,
        "task_id": row.task_id,
        "outcome": row.outcome,
        "success": str(row.success).lower(),
        "safe": str(row.safe).lower(),
        "vsi": repr(row.vsi),
        "worst_spec": row.worst_spec or "",
        **({"standin_assets": "true"} if row.standin_assets else {}),
    }


def _bodies(record: Batch) -> tuple[Body, ...]:
    roles = record.bodies(0)
    turned, quats = record.body_quat_wxyz.episode(0)
    turning = {int(body): quats[:, place] for place, body in enumerate(turned)}
    placed, positions = record.body_pos_m.episode(0)
    return tuple(
        Body(record.name(int(body)), roles[record.name(int(body))], positions[:, place], turning.get(int(body)))
        for place, body in enumerate(placed)
    )


def _contacts(record: Batch, places: Mapping[str, Floats]) -> tuple[tuple[Contact, ...], ...]:
    listed = record.contacts
    if not listed.present[0]:
        return ()
    return tuple(
        tuple(_contact(record, step, k, places) for k in range(int(listed.starts[step]), int(listed.starts[step + 1])))
        for step in range(len(listed.starts) - 1)
    )


def _contact(record: Batch, step: int, k: int, places: Mapping[str, Floats]) -> Contact:
    listed = record.contacts
    a, b = record.name(int(listed.a[k])), record.name(int(listed.b[k]))
    known = [places[name][step] for name in (a, b) if name in places]
    impulse = float(listed.impulse_ns[k])
    return Contact(
        a=a,
        b=b,
        force_n=float(listed.force_n[k]),
        impulse_ns=None if np.isnan(impulse) else impulse,
        place_m=np.mean(known, axis=0) if known else None,
    )


def _events(one: Exhibit, reading: Reading) -> list[Event]:
    """Each record in which the specification begins to be broken, and the worst."""
    failing = one.line.failing
    begins = np.flatnonzero(failing & ~np.concatenate([[False], failing[:-1]]))
    events = [Event(int(k), one.spec.spec_id, _told(one, int(k), "broken", reading)) for k in begins]
    worst = [Event(one.line.worst, one.spec.spec_id, _told(one, one.line.worst, "worst", reading))]
    return events + (worst if one.violated else [])


def _told(one: Exhibit, record: int, what: str, reading: Reading) -> str:
    line = one.line
    unit, scale = unit_text(line.unit, line.limit)
    value = with_unit(apart(float(line.values[record]) * scale, line.limit * scale), unit)
    behind = involved(reading, line.signal, record)
    who = f"; {behind.what} {' and '.join(behind.names)}" if behind else ""
    return f"{one.spec.spec_id} {what}: {value}, limit {with_unit(short(line.limit * scale), unit)}{who}"
