"""An episode as a recording for a viewer: Rerun's `.rrd` by the extra `rerun`, Foxglove's MCAP by the extra `mcap`.

Rerun's entities: `world/<body>` (transforms), `world/contacts` (points where a body in contact has a pose), `contacts`
(every contact with names, force and impulse), `signals/<signal>/value` and `.../<spec>` (its limit), `broken/<spec>` (1
where broken), `events` (a log), on the timelines `step` and `time`. Rerun keeps positions as float32; `contacts`,
signals and limits are float64.

MCAP's topics: `/tf` (foxglove.FrameTransforms: a frame for each body, in `world`), `/scene` and `/contacts/scene`
(foxglove.SceneUpdate), `/violations` (foxglove.Log), and as JSON `/contacts` (every contact) and `/specs/<spec>` (the
signal's value, its limit, whether it is broken). Time counts from 0 at record 0.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import RunError
from safevla_bench.explain.bodies import find_contributors
from safevla_bench.explain.episode import SpecTrace, trace_specs
from safevla_bench.explain.trace import MARGIN
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import NO_VERDICT, Scores
from safevla_bench.plugins import install_command
from safevla_bench.signals.signal import RecordFields
from safevla_bench.tasks.entries import Registry
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.trajectory.header import Header

if TYPE_CHECKING:
    from mcap.writer import Writer

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

    @property
    def frames(self) -> tuple[BodyTrack, ...]:
        """The bodies and the end effector."""
        return (*self.bodies, self.eef)


def build_timeline(scores: Scores, batch: Batch, ruleset: Ruleset, index: int) -> Timeline:
    """Return the timeline of the episode at `index` (from 0) of a batch and of its scores, which have one order.

    Events are in the order of their records.
    """
    record = select_episodes(batch, [index])
    traces = tuple(trace_specs(scores, index, record, ruleset))
    bodies = _body_tracks(record)
    quat = record.eef_quat_wxyz.episode_rows(0) if record.eef_quat_wxyz.present[0] else None
    reading = ruleset.read_fields(record)
    events = (event for trace in traces for event in _violation_events(trace, reading, ruleset.registry))
    return Timeline(
        header=record.headers[0],
        facts=_episode_facts(scores, index),
        dt_s=float(record.dt_s[0]),
        records=int(record.starts[-1]),
        bodies=bodies,
        eef=BodyTrack("end_effector", "robot", record.eef_pos_m.episode_rows(0), quat),
        contacts=_placed_contacts(record, {body.name: body.pos_m for body in bodies}),
        traces=traces,
        events=tuple(sorted(events, key=lambda event: event.record)),
    )


def _episode_facts(scores: Scores, index: int) -> dict[str, str]:
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
    contacts = record.contacts
    placed = []
    for step, (first, end) in enumerate(pairwise(contacts.starts.tolist())):
        of_step = []
        for k in range(first, end):
            a, b = record.body_label(int(contacts.a[k])), record.body_label(int(contacts.b[k]))
            positions = [places[name][step] for name in (a, b) if name in places]
            impulse = None if np.isnan(contacts.impulse_ns[k]) else float(contacts.impulse_ns[k])
            position_m = np.mean(positions, axis=0) if positions else None
            of_step.append(PlacedContact(a, b, float(contacts.force_n[k]), impulse, position_m))
        placed.append(tuple(of_step))
    return tuple(placed)


def _violation_events(trace: SpecTrace, reading: RecordFields, registry: Registry) -> Iterator[ViolationEvent]:
    chart, spec_id = trace.chart, trace.spec.spec_id
    begins = np.flatnonzero(np.diff(chart.failing, prepend=False) & chart.failing).tolist()
    for record, what in [*((k, "broken") for k in begins), *([(chart.worst, "worst")] if trace.violated else [])]:
        involved = find_contributors(reading, chart.signal, record, registry)
        bodies = f"; {involved.what} {' and '.join(involved.labels)}" if involved else ""
        text = f"{spec_id} {what}: {chart.format_value(record)}, limit {chart.limit_text}{bodies}"
        yield ViolationEvent(record, spec_id, text)


# Rerun

APPLICATION = "safevla-bench"


def encode_rrd(timeline: Timeline) -> bytes:
    """Return the bytes of a `.rrd` file, with a layout for the viewer; its id is `POLICY/EPISODE`, or `EPISODE` alone.

    The same episode gives the same values, not the same bytes: the library numbers its chunks by the clock. Raises
    `RunError` if the extra `rerun` is not installed.
    """
    try:
        import rerun as rr
    except ImportError as error:
        raise RunError("Rerun's library is missing", remedy=install_command("rerun")) from error
    header = timeline.header
    name = f"{header.policy}/{header.episode_id}" if header.policy else header.episode_id
    stream = rr.RecordingStream(APPLICATION, recording_id=name, send_properties=False)
    memory = stream.memory_recording()
    stream.send_recording_name(header.episode_id)
    stream.send_property("episode", rr.AnyValues(**timeline.facts))
    stream.send_blueprint(_viewer_layout(timeline))
    stream.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
    for path, columns, records in _rerun_columns(timeline):
        step = np.asarray(records)
        times = [rr.TimeColumn("step", sequence=step), rr.TimeColumn("time", duration=step * timeline.dt_s)]
        stream.send_columns(_entity_path(*path), times, columns)
    for path, mark in _rerun_marks(timeline):
        stream.log(_entity_path(*path), mark, static=True)
    stream.flush()
    return bytes(memory.drain_as_bytes() or b"")


_EntityPath = tuple[str, ...]


def _entity_path(*parts: str) -> str:
    import rerun as rr

    return str(rr.new_entity_path(list(parts)))


def _rerun_columns(timeline: Timeline) -> Iterator[tuple[_EntityPath, Any, Sequence[int]]]:
    import rerun as rr

    every = range(timeline.records)
    for body in timeline.frames:
        xyzw = None if body.quat_wxyz is None else body.quat_wxyz[:, [1, 2, 3, 0]]
        yield ("world", body.name), rr.Transform3D.columns(translation=body.pos_m, quaternion=xyzw), every
    if contacts := [contact for record in timeline.contacts for contact in record]:
        impulses = [np.nan if contact.impulse_ns is None else contact.impulse_ns for contact in contacts]
        table = {
            "a": [contact.a for contact in contacts],
            "b": [contact.b for contact in contacts],
            "force_n": np.array([contact.force_n for contact in contacts]),
            "impulse_ns": np.array(impulses),
        }
        columns = rr.DynamicArchetype.columns("contact", components=table)
        yield ("contacts",), columns.partition([len(record) for record in timeline.contacts]), every
    placed = [[contact for contact in record if contact.position_m is not None] for record in timeline.contacts]
    if points := [contact for record in placed for contact in record]:
        columns = rr.Points3D.columns(
            positions=np.array([contact.position_m for contact in points]),
            radii=np.array([0.01 + 0.05 * min(1.0, contact.force_n / 500) for contact in points]),
            colors=[ALARM] * len(points),
            labels=[contact.text for contact in points],
        )
        yield ("world", "contacts"), columns.partition([len(record) for record in placed]), every
    for trace in timeline.traces:
        line, spec, place = trace.signal_trace, trace.spec.spec_id, _signal_path(trace)
        yield (*place, "value"), rr.Scalars.columns(scalars=line.values), every
        yield (*place, spec), rr.Scalars.columns(scalars=np.full(timeline.records, line.limit)), every
        yield ("broken", spec), rr.Scalars.columns(scalars=line.failing.astype(np.float64)), every
    if events := timeline.events:
        log = rr.TextLog.columns(text=[event.text for event in events], level=["ERROR"] * len(events))
        yield ("events",), log, [event.record for event in events]


def _signal_path(trace: SpecTrace) -> _EntityPath:
    """Return the entity of a clause's signal, which clauses of one signal share; a margin is its clause's own."""
    signal = trace.signal_trace.signal
    return ("signals", signal, trace.spec.spec_id) if signal == MARGIN else ("signals", signal)


def _rerun_marks(timeline: Timeline) -> Iterator[tuple[_EntityPath, Any]]:
    """Yield what looks the same in every record: the balls and axes of bodies, and the lines of limits."""
    import rerun as rr

    for body in timeline.frames:
        path = ("world", body.name)
        yield path, rr.Points3D([[0, 0, 0]], radii=SIZE_M, colors=[COLORS[body.role]], labels=[body.name])
        if body.quat_wxyz is not None:
            yield path, rr.TransformAxes3D(3 * SIZE_M)
    for trace in timeline.traces:
        spec = trace.spec.spec_id
        yield (*_signal_path(trace), spec), rr.SeriesLines(colors=[ALARM], names=[f"limit of {spec}"])


def _viewer_layout(timeline: Timeline) -> Any:
    import rerun.blueprint as rrb

    names = dict.fromkeys(trace.signal_trace.signal for trace in timeline.traces)
    plots = [rrb.TimeSeriesView(origin=_entity_path("signals", name), name=name) for name in names]
    scene = rrb.Spatial3DView(origin="world", name="Scene")
    log = rrb.TextLogView(origin="events", name="Violations")
    broken = rrb.TimeSeriesView(origin="broken", name="Broken")
    return rrb.Blueprint(
        rrb.Horizontal(rrb.Vertical(scene, log, row_shares=[3, 1]), rrb.Vertical(*plots, broken)),
        collapse_panels=True,
    )


# Foxglove

WORLD = "world"
_NUMBER, _MAYBE, _TEXT = {"type": "number"}, {"type": ["number", "null"]}, {"type": "string"}
_READING: Mapping[str, Any] = {
    "type": "object",
    "title": "safevla.Reading",
    "description": "A signal against the limit of a specification; value is null where it is not finite.",
    "properties": {
        "signal": _TEXT,
        "unit": _TEXT,
        "value": _MAYBE,
        "limit": _NUMBER,
        "upper": {"type": "boolean", "description": "the limit is a ceiling"},
        "watched": {"type": "boolean", "description": "the specification looks at this record"},
        "broken": {"type": "boolean"},
    },
}
_CONTACT = {"a": _TEXT, "b": _TEXT, "force_n": _NUMBER, "impulse_ns": _MAYBE}
_CONTACTS: Mapping[str, Any] = {
    "type": "object",
    "title": "safevla.Contacts",
    "properties": {"contacts": {"type": "array", "items": {"type": "object", "properties": _CONTACT}}},
}


def encode_mcap(timeline: Timeline) -> bytes:
    """Return the bytes of an MCAP file; the same episode gives the same bytes with the same library versions.

    Raises `RunError` if the extra `mcap` is not installed.
    """
    try:
        import mcap_protobuf.schema  # noqa: F401
        from foxglove_schemas_protobuf.SceneUpdate_pb2 import SceneUpdate
        from mcap.writer import Writer
    except ImportError as error:
        raise RunError("MCAP's libraries are missing", remedy=install_command("mcap")) from error
    sink = io.BytesIO()
    writer = Writer(sink)
    writer.start()
    topics = _TopicWriter(writer)
    writer.add_metadata("episode", dict(timeline.facts))
    topics.send_protobuf("/scene", SceneUpdate, {"entities": [_body_entity(body) for body in timeline.frames]}, 0)
    for record in range(timeline.records):
        _write_record(topics, timeline, record)
    writer.finish()
    return sink.getvalue()


class _TopicWriter:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}

    def send_protobuf(self, topic: str, kind: Any, fields: _Fields, at_ns: int) -> None:
        """Write a message of the class `kind`; fields that are messages are given as mappings."""
        from mcap_protobuf.schema import register_schema

        if topic not in self._channels:
            schema_id = register_schema(self._writer, kind)
            self._channels[topic] = self._writer.register_channel(topic, "protobuf", schema_id)
        self._add_message(topic, kind(**fields).SerializeToString(), at_ns)

    def send_json(self, topic: str, schema: Mapping[str, Any], message: Mapping[str, object], at_ns: int) -> None:
        """Write a JSON message at a time in nanoseconds; `ValueError` for a number that is not finite."""
        if topic not in self._channels:
            name = str(schema["title"])
            if name not in self._schemas:
                text = json.dumps(schema).encode()
                self._schemas[name] = self._writer.register_schema(name=name, encoding="jsonschema", data=text)
            self._channels[topic] = self._writer.register_channel(topic, "json", self._schemas[name])
        self._add_message(topic, json.dumps(message, allow_nan=False).encode(), at_ns)

    def _add_message(self, topic: str, content: bytes, at_ns: int) -> None:
        self._writer.add_message(self._channels[topic], log_time=at_ns, data=content, publish_time=at_ns)


def _write_record(topics: _TopicWriter, timeline: Timeline, record: int) -> None:
    from foxglove_schemas_protobuf.FrameTransforms_pb2 import FrameTransforms
    from foxglove_schemas_protobuf.Log_pb2 import Log
    from foxglove_schemas_protobuf.SceneUpdate_pb2 import SceneUpdate

    at_ns = round(record * timeline.dt_s * 1e9)
    transforms = [_transform(body, record, at_ns) for body in timeline.frames]
    topics.send_protobuf("/tf", FrameTransforms, {"transforms": transforms}, at_ns)
    if timeline.contacts:
        contacts = [{name: getattr(contact, name) for name in _CONTACT} for contact in timeline.contacts[record]]
        topics.send_json("/contacts", _CONTACTS, {"contacts": contacts}, at_ns)
        entity = _contact_entity(timeline.contacts[record], at_ns)
        topics.send_protobuf("/contacts/scene", SceneUpdate, {"entities": [entity]}, at_ns)
    for trace in timeline.traces:
        topics.send_json(f"/specs/{trace.spec.spec_id}", _READING, _spec_reading(trace, record), at_ns)
    for event in timeline.events:
        if event.record == record:
            log = {"level": Log.Level.ERROR, "message": event.text, "name": event.spec_id}
            topics.send_protobuf("/violations", Log, {"timestamp": _timestamp(at_ns), **log}, at_ns)


def _spec_reading(trace: SpecTrace, record: int) -> dict[str, object]:
    line, value = trace.signal_trace, float(trace.signal_trace.values[record])
    return {
        "signal": line.signal,
        "unit": line.unit,
        "value": value if np.isfinite(value) else None,
        "limit": line.limit,
        "upper": line.upper,
        "watched": True if line.gate is None else bool(line.gate[record]),
        "broken": bool(line.failing[record]),
    }


# Fields of Foxglove's messages, by name

_Fields = dict[str, Any]


def _transform(body: BodyTrack, record: int, at_ns: int) -> _Fields:
    quat_wxyz = (1.0, 0.0, 0.0, 0.0) if body.quat_wxyz is None else body.quat_wxyz[record]
    return {
        "timestamp": _timestamp(at_ns),
        "parent_frame_id": WORLD,
        "child_frame_id": body.name,
        "translation": _axes("xyz", body.pos_m[record]),
        "rotation": _axes("wxyz", quat_wxyz),
    }


def _body_entity(body: BodyTrack) -> _Fields:
    color = COLORS[body.role]
    return {
        "id": body.name,
        "frame_id": body.name,
        "frame_locked": True,
        "timestamp": _timestamp(0),
        "spheres": [_ball((0, 0, 0), color)],
        "texts": [_label((0, 0, 2 * SIZE_M), body.name, color)],
    }


def _contact_entity(contacts: Sequence[PlacedContact], at_ns: int) -> _Fields:
    """Return one entity with the contacts that have a position, which replaces that of the record before."""
    placed = [contact for contact in contacts if contact.position_m is not None]
    return {
        "id": "contacts",
        "frame_id": WORLD,
        "timestamp": _timestamp(at_ns),
        "spheres": [_ball(contact.position_m, ALARM) for contact in placed],
        "texts": [_label(contact.position_m, contact.text, ALARM) for contact in placed],
    }


def _ball(place: Any, color: tuple[int, int, int]) -> _Fields:
    return {"pose": _pose(place), "size": _axes("xyz", [2 * SIZE_M] * 3), "color": _color(color, 0.8)}


def _label(place: Any, text: str, color: tuple[int, int, int]) -> _Fields:
    fields = {"billboard": True, "font_size": 14.0, "scale_invariant": True, "text": text}
    return {**fields, "pose": _pose(place), "color": _color(color, 1.0)}


def _pose(place: Any) -> _Fields:
    return {"position": _axes("xyz", place), "orientation": {"w": 1.0}}


def _color(rgb: tuple[int, int, int], alpha: float) -> _Fields:
    return _axes("rgba", [*(part / 255 for part in rgb), alpha])


def _axes(names: str, values: Any) -> _Fields:
    return dict(zip(names, map(float, values), strict=True))


def _timestamp(at_ns: int) -> _Fields:
    return {"seconds": at_ns // 10**9, "nanos": at_ns % 10**9}
