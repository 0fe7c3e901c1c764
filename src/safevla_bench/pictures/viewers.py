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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.explain.episode import SpecTrace
from safevla_bench.pictures.timeline import ALARM, COLORS, SIZE_M, BodyTrack, Timeline
from safevla_bench.plugins import install_command

if TYPE_CHECKING:
    from mcap.writer import Writer
    from rerun import RecordingStream

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
    for body in (*timeline.bodies, timeline.eef):
        _send_body(stream, timeline, body)
    _send_contacts(stream, timeline)
    _send_signals(stream, timeline)
    _send_events(stream, timeline)
    stream.flush()
    return bytes(memory.drain_as_bytes() or b"")


def _entity_path(*parts: str) -> str:
    import rerun as rr

    return str(rr.new_entity_path(list(parts)))


def _send_columns(stream: RecordingStream, timeline: Timeline, path: str, columns: Any, records: Any = None) -> None:
    import rerun as rr

    step = np.arange(timeline.records) if records is None else np.asarray(records)
    times = [rr.TimeColumn("step", sequence=step), rr.TimeColumn("time", duration=step * timeline.dt_s)]
    stream.send_columns(path, times, columns)


def _send_body(stream: RecordingStream, timeline: Timeline, body: BodyTrack) -> None:
    import rerun as rr

    path = _entity_path("world", body.name)
    xyzw = None if body.quat_wxyz is None else body.quat_wxyz[:, [1, 2, 3, 0]]
    _send_columns(stream, timeline, path, rr.Transform3D.columns(translation=body.pos_m, quaternion=xyzw))
    mark = rr.Points3D([[0, 0, 0]], radii=SIZE_M, colors=[COLORS[body.role]], labels=[body.name])
    stream.log(path, mark, static=True)
    if body.quat_wxyz is not None:
        stream.log(path, rr.TransformAxes3D(3 * SIZE_M), static=True)


def _send_contacts(stream: RecordingStream, timeline: Timeline) -> None:
    import rerun as rr

    contacts = [contact for record in timeline.contacts for contact in record]
    if not contacts:
        return
    table = {
        "a": [contact.a for contact in contacts],
        "b": [contact.b for contact in contacts],
        "force_n": np.array([contact.force_n for contact in contacts]),
        "impulse_ns": np.array([np.nan if contact.impulse_ns is None else contact.impulse_ns for contact in contacts]),
    }
    counts = [len(record) for record in timeline.contacts]
    _send_columns(
        stream, timeline, "contacts", rr.DynamicArchetype.columns("contact", components=table).partition(counts)
    )
    placed = [[contact for contact in record if contact.position_m is not None] for record in timeline.contacts]
    points = [contact for record in placed for contact in record]
    if points:
        columns = rr.Points3D.columns(
            positions=np.array([contact.position_m for contact in points]),
            radii=np.array([0.01 + 0.05 * min(1.0, contact.force_n / 500) for contact in points]),
            colors=[ALARM] * len(points),
            labels=[contact.text for contact in points],
        )
        _send_columns(stream, timeline, "world/contacts", columns.partition([len(record) for record in placed]))


def _send_signals(stream: RecordingStream, timeline: Timeline) -> None:
    """Send for each clause its signal, its limit and whether broken; clauses of a signal share its values."""
    import rerun as rr

    for trace in timeline.traces:
        line, spec = trace.signal_trace, trace.spec.spec_id
        place = ("signals", "margin", spec) if line.signal == "margin" else ("signals", line.signal)
        limit = _entity_path(*place, spec)
        for path, values in (
            (_entity_path(*place, "value"), line.values),
            (limit, np.full(timeline.records, line.limit)),
            (_entity_path("broken", spec), line.failing.astype(np.float64)),
        ):
            _send_columns(stream, timeline, path, rr.Scalars.columns(scalars=values))
        stream.log(limit, rr.SeriesLines(colors=[ALARM], names=[f"limit of {spec}"]), static=True)


def _send_events(stream: RecordingStream, timeline: Timeline) -> None:
    import rerun as rr

    if timeline.events:
        columns = rr.TextLog.columns(
            text=[event.text for event in timeline.events], level=["ERROR"] * len(timeline.events)
        )
        _send_columns(stream, timeline, "events", columns, [event.record for event in timeline.events])


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
        import foxglove_schemas_protobuf  # noqa: F401
        import mcap_protobuf.schema  # noqa: F401
        from mcap.writer import Writer
    except ImportError as error:
        raise RunError("MCAP's libraries are missing", remedy=install_command("mcap")) from error
    sink = io.BytesIO()
    writer = Writer(sink)
    writer.start()
    topics = _TopicWriter(writer)
    writer.add_metadata("episode", dict(timeline.facts))
    topics.send_protobuf("/scene", _body_scene(timeline), 0)
    for record in range(timeline.records):
        _write_record(topics, timeline, record)
    writer.finish()
    return sink.getvalue()


class _TopicWriter:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}

    def send_protobuf(self, topic: str, message: Any, at_ns: int) -> None:
        from mcap_protobuf.schema import register_schema

        if topic not in self._channels:
            schema_id = register_schema(self._writer, type(message))
            self._channels[topic] = self._writer.register_channel(topic, "protobuf", schema_id)
        self._add_message(topic, message.SerializeToString(), at_ns)

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
    from foxglove_schemas_protobuf.Log_pb2 import Log

    at_ns = round(record * timeline.dt_s * 1e9)
    topics.send_protobuf("/tf", _frame_transforms(timeline, record, at_ns), at_ns)
    if timeline.contacts:
        contacts = [{name: getattr(contact, name) for name in _CONTACT} for contact in timeline.contacts[record]]
        topics.send_json("/contacts", _CONTACTS, {"contacts": contacts}, at_ns)
        topics.send_protobuf("/contacts/scene", _contact_scene(timeline, record, at_ns), at_ns)
    for trace in timeline.traces:
        topics.send_json(f"/specs/{trace.spec.spec_id}", _READING, _spec_reading(trace, record), at_ns)
    for event in timeline.events:
        if event.record == record:
            log = Log(timestamp=_timestamp(at_ns), level=Log.Level.ERROR, message=event.text, name=event.spec_id)
            topics.send_protobuf("/violations", log, at_ns)


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


def _timestamp(at_ns: int) -> Any:
    from google.protobuf.timestamp_pb2 import Timestamp

    return Timestamp(seconds=at_ns // 10**9, nanos=at_ns % 10**9)


def _frame_transforms(timeline: Timeline, record: int, at_ns: int) -> Any:
    from foxglove_schemas_protobuf.FrameTransforms_pb2 import FrameTransforms

    message = FrameTransforms()
    for body in (*timeline.bodies, timeline.eef):
        transform = message.transforms.add(parent_frame_id=WORLD, child_frame_id=body.name)
        transform.timestamp.CopyFrom(_timestamp(at_ns))
        _set_position(transform.translation, body.pos_m[record])
        quat_wxyz = (1.0, 0.0, 0.0, 0.0) if body.quat_wxyz is None else body.quat_wxyz[record]
        rotation = transform.rotation
        rotation.w, rotation.x, rotation.y, rotation.z = (float(part) for part in quat_wxyz)
    return message


def _body_scene(timeline: Timeline) -> Any:
    from foxglove_schemas_protobuf.SceneUpdate_pb2 import SceneUpdate

    message = SceneUpdate()
    for body in (*timeline.bodies, timeline.eef):
        entity = message.entities.add(id=body.name, frame_id=body.name, frame_locked=True)
        entity.timestamp.CopyFrom(_timestamp(0))
        _add_ball(entity, np.zeros(3), SIZE_M, COLORS[body.role])
        _add_label(entity, np.array([0.0, 0.0, 2 * SIZE_M]), body.name, COLORS[body.role])
    return message


def _contact_scene(timeline: Timeline, record: int, at_ns: int) -> Any:
    """Return one entity with the contacts that have a position, which replaces that of the record before."""
    from foxglove_schemas_protobuf.SceneUpdate_pb2 import SceneUpdate

    message = SceneUpdate()
    entity = message.entities.add(id="contacts", frame_id=WORLD)
    entity.timestamp.CopyFrom(_timestamp(at_ns))
    for contact in timeline.contacts[record]:
        if contact.position_m is not None:
            _add_ball(entity, contact.position_m, SIZE_M, ALARM)
            _add_label(entity, contact.position_m, contact.text, ALARM)
    return message


def _add_ball(entity: Any, place: Any, radius_m: float, color: tuple[int, int, int]) -> None:
    ball = entity.spheres.add()
    _set_position(ball.pose.position, place)
    ball.pose.orientation.w = 1.0
    ball.size.x = ball.size.y = ball.size.z = 2 * radius_m
    _set_color(ball.color, color, 0.8)


def _add_label(entity: Any, place: Any, text: str, color: tuple[int, int, int]) -> None:
    label = entity.texts.add(billboard=True, font_size=14.0, scale_invariant=True, text=text)
    _set_position(label.pose.position, place)
    label.pose.orientation.w = 1.0
    _set_color(label.color, color, 1.0)


def _set_position(vector: Any, place: Any) -> None:
    vector.x, vector.y, vector.z = (float(part) for part in place)


def _set_color(color: Any, rgb: tuple[int, int, int], alpha: float) -> None:
    color.r, color.g, color.b = (part / 255 for part in rgb)
    color.a = alpha
