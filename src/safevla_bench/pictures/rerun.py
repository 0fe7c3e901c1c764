"""An episode as a recording for Rerun (`.rrd`); needs the extra `rerun`.

Entities: `world/<body>` (transforms), `world/contacts` (points where a body in contact has a pose), `contacts` (every
contact with names, force and impulse), `signals/<signal>/value` and `.../<spec>` (its limit), `broken/<spec>` (1 where
broken), `events` (a log), on the timelines `step` and `time`. Rerun keeps positions as float32; `contacts`, signals and
limits are float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.pictures.timeline import ALARM, COLORS, SIZE_M, BodyTrack, Timeline
from safevla_bench.plugins import install_command

if TYPE_CHECKING:
    from rerun import RecordingStream

APPLICATION = "safevla-bench"


def encode_rrd(timeline: Timeline) -> bytes:
    """Return the bytes of a `.rrd` file, with a layout for the viewer; its id is `POLICY/EPISODE`, or `EPISODE`.

    The library numbers its chunks by the clock, so bytes differ. Raises `RunError` without the extra `rerun`.
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
