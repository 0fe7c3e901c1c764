"""An episode as MCAP for Foxglove; needs the extra `mcap`.

Topics: `/tf` (foxglove.FrameTransforms: a frame for each body, in `world`), `/scene` and `/contacts/scene`
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
from safevla_bench.explain.trace import Exhibit
from safevla_bench.viewers.timeline import ALARM, COLORS, SIZE_M, Body, Timeline

if TYPE_CHECKING:
    from mcap_protobuf.writer import Writer

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


def mcap(shown: Timeline) -> bytes:
    """The bytes of an MCAP file; the same episode gives the same bytes with the same versions.

    Raises:
        RunError: the extra `mcap` is not installed.
    """
    try:
        import foxglove_schemas_protobuf  # noqa: F401
        from mcap_protobuf.writer import Writer
    except ImportError as error:
        raise RunError("MCAP's libraries are missing", remedy="pip install 'safevla-bench[mcap]'") from error
    sink = io.BytesIO()
    with Writer(sink) as writer:
        # The writer for protobuf wraps a plain one, which takes the JSON channels.
        channels = _Json(writer)
        writer.add_metadata("episode", dict(shown.facts))
        _send(writer, "/scene", _bodies(shown), 0)
        for record in range(shown.records):
            _record(writer, channels, shown, record)
    return sink.getvalue()


def _record(writer: Writer, channels: _Json, shown: Timeline, record: int) -> None:
    at = _ns(shown, record)
    _send(writer, "/tf", _transforms(shown, record), at)
    if shown.contacts:
        listed = [
            {"a": one.a, "b": one.b, "force_n": one.force_n, "impulse_ns": one.impulse_ns}
            for one in shown.contacts[record]
        ]
        channels.send("/contacts", _CONTACTS, {"contacts": listed}, at)
        _send(writer, "/contacts/scene", _contacts(shown, record), at)
    for one in shown.exhibits:
        channels.send(f"/specs/{one.spec.spec_id}", _READING, _reading(one, record), at)
    for event in shown.events:
        if event.record == record:
            _send(writer, "/violations", _log(event.spec_id, event.text, at), at)


def _reading(one: Exhibit, record: int) -> dict[str, object]:
    line, value = one.line, float(one.line.values[record])
    return {
        "signal": line.signal,
        "unit": line.unit,
        "value": value if np.isfinite(value) else None,
        "limit": line.limit,
        "upper": line.upper,
        "watched": True if line.gate is None else bool(line.gate[record]),
        "broken": bool(line.failing[record]),
    }


class _Json:
    """JSON channels beside the protobuf ones, one for each topic."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer._writer
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}

    def send(self, topic: str, schema: Mapping[str, Any], message: Mapping[str, object], at_ns: int) -> None:
        if topic not in self._channels:
            name = str(schema["title"])
            if name not in self._schemas:
                text = json.dumps(schema).encode()
                self._schemas[name] = self._writer.register_schema(name=name, encoding="jsonschema", data=text)
            self._channels[topic] = self._writer.register_channel(
                topic=topic, message_encoding="json", schema_id=self._schemas[name]
            )
        data = json.dumps(message, allow_nan=False).encode()
        self._writer.add_message(channel_id=self._channels[topic], log_time=at_ns, publish_time=at_ns, data=data)


def _send(writer: Writer, topic: str, message: Any, at_ns: int) -> None:
    writer.write_message(topic, message, log_time=at_ns, publish_time=at_ns)


def _ns(shown: Timeline, record: int) -> int:
    return round(record * shown.dt_s * 1e9)


def _stamp(at_ns: int) -> Any:
    from google.protobuf.timestamp_pb2 import Timestamp

    return Timestamp(seconds=at_ns // 10**9, nanos=at_ns % 10**9)


def _transforms(shown: Timeline, record: int) -> Any:
    from foxglove_schemas_protobuf.FrameTransforms_pb2 import FrameTransforms

    message = FrameTransforms()
    for body in (*shown.bodies, shown.eef):
        transform = message.transforms.add(parent_frame_id=WORLD, child_frame_id=body.name)
        transform.timestamp.CopyFrom(_stamp(_ns(shown, record)))
        _xyz(transform.translation, body.pos_m[record])
        _wxyz(transform.rotation, body, record)
    return message


def _bodies(shown: Timeline) -> Any:
    """A ball and a name for each body, fixed to its frame."""
    from foxglove_schemas_protobuf.SceneUpdate_pb2 import SceneUpdate

    message = SceneUpdate()
    for body in (*shown.bodies, shown.eef):
        entity = message.entities.add(id=body.name, frame_id=body.name, frame_locked=True)
        entity.timestamp.CopyFrom(_stamp(0))
        _ball(entity, np.zeros(3), SIZE_M, COLORS[body.role])
        _label(entity, np.array([0.0, 0.0, 2 * SIZE_M]), body.name, COLORS[body.role])
    return message


def _contacts(shown: Timeline, record: int) -> Any:
    """The present contacts in one entity, which takes the place of the one before."""
    from foxglove_schemas_protobuf.SceneUpdate_pb2 import SceneUpdate

    message = SceneUpdate()
    entity = message.entities.add(id="contacts", frame_id=WORLD)
    entity.timestamp.CopyFrom(_stamp(_ns(shown, record)))
    for contact in shown.contacts[record]:
        if contact.place_m is not None:
            _ball(entity, contact.place_m, SIZE_M, ALARM)
            _label(entity, contact.place_m, f"{contact.a} × {contact.b}: {contact.force_n:.3g} N", ALARM)
    return message


def _log(spec_id: str, text: str, at_ns: int) -> Any:
    from foxglove_schemas_protobuf.Log_pb2 import Log

    return Log(timestamp=_stamp(at_ns), level=Log.Level.ERROR, message=text, name=spec_id)


def _ball(entity: Any, place: Any, radius_m: float, color: tuple[int, int, int]) -> None:
    ball = entity.spheres.add()
    _xyz(ball.pose.position, place)
    ball.pose.orientation.w = 1.0
    ball.size.x = ball.size.y = ball.size.z = 2 * radius_m
    _paint(ball.color, color, 0.8)


def _label(entity: Any, place: Any, text: str, color: tuple[int, int, int]) -> None:
    label = entity.texts.add(billboard=True, font_size=14.0, scale_invariant=True, text=text)
    _xyz(label.pose.position, place)
    label.pose.orientation.w = 1.0
    _paint(label.color, color, 1.0)


def _xyz(vector: Any, place: Any) -> None:
    vector.x, vector.y, vector.z = (float(part) for part in place)


def _wxyz(quaternion: Any, body: Body, record: int) -> None:
    found = (1.0, 0.0, 0.0, 0.0) if body.quat_wxyz is None else body.quat_wxyz[record]
    quaternion.w, quaternion.x, quaternion.y, quaternion.z = (float(part) for part in found)


def _paint(color: Any, rgb: tuple[int, int, int], alpha: float) -> None:
    color.r, color.g, color.b = (part / 255 for part in rgb)
    color.a = alpha
