"""One episode as viewers show it, record by record: poses, contacts, signals against limits, violations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.bodies import find_contributors
from safevla_bench.explain.episode import SpecTrace, trace_specs
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import NO_VERDICT, Scores
from safevla_bench.signals.signal import RecordFields
from safevla_bench.tasks.entries import Registry
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.trajectory.header import Header

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
"""Radius of the ball that stands for a body [m]; a record holds poses and no shapes."""


@dataclass(frozen=True, slots=True)
class BodyTrack:
    """A tracked body: position [n, 3] in metres, world frame, and quaternion [n, 4] wxyz, None if not recorded."""

    name: str
    role: str
    pos_m: Floats
    quat_wxyz: Floats | None


@dataclass(frozen=True, slots=True)
class PlacedContact:
    """A contact; `position_m` [3] is the mean of its bodies' recorded positions, world frame, None if none has one.

    A record does not hold the point of contact.
    """

    a: str
    b: str
    force_n: float
    impulse_ns: float | None
    position_m: Floats | None

    @property
    def text(self) -> str:
        """Its bodies and its force."""
        return f"{self.a} × {self.b}: {self.force_n:.3g} N"


@dataclass(frozen=True, slots=True)
class ViolationEvent:
    """The record in which a specification begins to be broken, or is broken worst."""

    record: int
    spec_id: str
    text: str


@dataclass(frozen=True)
class Timeline:
    """One episode of n records, `dt_s` apart."""

    header: Header
    facts: Mapping[str, str]
    """Verdict and identity of the episode, as text."""
    dt_s: float
    records: int
    bodies: tuple[BodyTrack, ...]
    eef: BodyTrack
    contacts: tuple[tuple[PlacedContact, ...], ...]
    """The contacts of each record; empty if contacts were not recorded."""
    traces: tuple[SpecTrace, ...]
    """The scored specifications that reached a verdict, the violated first."""
    events: tuple[ViolationEvent, ...]


def build_timeline(scores: Scores, batch: Batch, ruleset: Ruleset, index: int) -> Timeline:
    """Return the timeline of the episode at `index` (from 0) of a batch and of its scores, which have one order.

    Events are in the order of their records.
    """
    record = select_episodes(batch, [index])
    traces = tuple(trace_specs(scores, index, record, ruleset))
    bodies = _body_tracks(record)
    quat = record.eef_quat_wxyz.episode_rows(0) if record.eef_quat_wxyz.present[0] else None
    reading = ruleset.read_fields(record)
    return Timeline(
        header=record.headers[0],
        facts=_episode_facts(scores, index),
        dt_s=float(record.dt_s[0]),
        records=int(record.starts[-1]),
        bodies=bodies,
        eef=BodyTrack("end_effector", "robot", record.eef_pos_m.episode_rows(0), quat),
        contacts=_placed_contacts(record, {body.name: body.pos_m for body in bodies}),
        traces=traces,
        events=tuple(
            sorted(
                (event for trace in traces for event in _violation_events(trace, reading, ruleset.registry)),
                key=lambda event: event.record,
            )
        ),
    )


def _episode_facts(scores: Scores, index: int) -> dict[str, str]:
    """Return verdict and identity of an episode as text, "" for what is not known."""
    row = scores.episode(index)
    return {
        "episode_id": row.episode_id,
        "policy": row.policy or "",
        "benchmark": row.benchmark,
        "task_id": row.task_id,
        "outcome": row.outcome,
        "success": str(row.success).lower(),
        "safe": NO_VERDICT if row.safe is None else str(row.safe).lower(),
        "vsi": "" if row.vsi is None else repr(row.vsi),
        **({"no_verdict": row.no_verdict} if row.no_verdict else {}),
        "worst_spec": row.worst_spec or "",
        **({"standin_assets": "true"} if row.standin_assets else {}),
    }


def _body_tracks(record: Batch) -> tuple[BodyTrack, ...]:
    roles = record.body_roles(0)
    rotated_bodies, quats = record.body_quat_wxyz.episode_poses(0)
    quat_by_body = {int(body): quats[:, place] for place, body in enumerate(rotated_bodies)}
    bodies, positions = record.body_pos_m.episode_poses(0)
    names = [record.body_label(int(body)) for body in bodies]
    return tuple(
        BodyTrack(name, roles[name], positions[:, place], quat_by_body.get(int(bodies[place])))
        for place, name in enumerate(names)
    )


def _placed_contacts(record: Batch, places: Mapping[str, Floats]) -> tuple[tuple[PlacedContact, ...], ...]:
    """Return the contacts of each record, () where not recorded; `places` is body -> positions [n, 3] in metres."""
    if not record.contacts.present[0]:
        return ()
    return tuple(
        tuple(_placed_contact(record, step, k, places) for k in range(first, end))
        for step, (first, end) in enumerate(pairwise(record.contacts.starts.tolist()))
    )


def _placed_contact(record: Batch, step: int, k: int, places: Mapping[str, Floats]) -> PlacedContact:
    contacts = record.contacts
    a, b = record.body_label(int(contacts.a[k])), record.body_label(int(contacts.b[k]))
    positions = [places[name][step] for name in (a, b) if name in places]
    impulse = float(contacts.impulse_ns[k])
    return PlacedContact(
        a=a,
        b=b,
        force_n=float(contacts.force_n[k]),
        impulse_ns=None if np.isnan(impulse) else impulse,
        position_m=np.mean(positions, axis=0) if positions else None,
    )


def _violation_events(trace: SpecTrace, reading: RecordFields, registry: Registry) -> list[ViolationEvent]:
    chart, spec_id = trace.chart, trace.spec.spec_id
    begins = np.flatnonzero(chart.failing & ~np.concatenate([[False], chart.failing[:-1]])).tolist()
    moments = [*((k, "broken") for k in begins), *([(chart.worst, "worst")] if trace.violated else [])]
    events = []
    for record, what in moments:
        involved = find_contributors(reading, chart.signal, record, registry)
        bodies = f"; {involved.what} {' and '.join(involved.labels)}" if involved else ""
        text = f"{spec_id} {what}: {chart.format_value(record)}, limit {chart.limit_text}{bodies}"
        events.append(ViolationEvent(record, spec_id, text))
    return events
