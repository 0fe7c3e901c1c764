"""An episode as a recording of Rerun, `.rrd`; needs the extra `rerun`.

Entities: `world/<body>` (transforms), `world/contacts` (points where a body in contact has a pose), `contacts` (every
contact with names, force and impulse), `signals/<signal>/value` and `.../<spec>` (its limit), `broken/<spec>` (1 where
broken), `events` (a log), on the timelines `step` and `time`. Rerun keeps positions as float32; `contacts`, signals and
limits are float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.viewers.timeline import ALARM, COLORS, SIZE_M, Body, Contact, Floats, Timeline

if TYPE_CHECKING:
    from rerun import RecordingStream

APPLICATION = "safevla-bench"


def rrd(shown: Timeline) -> bytes:
    """The bytes of a `.rrd` file, with a layout for the viewer.

    The library numbers its chunks by the clock, so that the same episode gives the same values, not the same bytes.

    Raises:
        RunError: the extra `rerun` is not installed.
    """
    try:
        import rerun as rr
    except ImportError as error:
        raise RunError("Rerun's library is missing", remedy="pip install 'safevla-bench[rerun]'") from error
    header = shown.header
    name = f"{header.policy}/{header.episode_id}" if header.policy else header.episode_id
    stream = rr.RecordingStream(APPLICATION, recording_id=name, send_properties=False)
    memory = stream.memory_recording()
    stream.send_recording_name(header.episode_id)
    stream.send_property("episode", rr.AnyValues(**shown.facts))
    stream.send_blueprint(_layout(shown))
    stream.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
    for body in (*shown.bodies, shown.eef):
        _body(stream, shown, body)
    _contacts(stream, shown)
    _signals(stream, shown)
    _events(stream, shown)
    stream.flush()
    return bytes(memory.drain_as_bytes() or b"")


def _path(*parts: str) -> str:
    import rerun as rr

    path: str = rr.new_entity_path(list(parts))
    return path


def _send(stream: RecordingStream, shown: Timeline, path: str, columns: Any, records: Any = None) -> None:
    """Columns of all records, or of the chosen ones [k]."""
    import rerun as rr

    step = np.arange(shown.records) if records is None else np.asarray(records)
    times = [rr.TimeColumn("step", sequence=step), rr.TimeColumn("time", duration=step * shown.dt_s)]
    stream.send_columns(path, times, columns)


def _body(stream: RecordingStream, shown: Timeline, body: Body) -> None:
    import rerun as rr

    path = _path("world", body.name)
    if body.quat_wxyz is None:
        _send(stream, shown, path, rr.Transform3D.columns(translation=body.pos_m))
    else:
        xyzw = body.quat_wxyz[:, [1, 2, 3, 0]]
        _send(stream, shown, path, rr.Transform3D.columns(translation=body.pos_m, quaternion=xyzw))
    mark = rr.Points3D([[0, 0, 0]], radii=SIZE_M, colors=[COLORS[body.role]], labels=[body.name])
    stream.log(path, mark, static=True)
    if body.quat_wxyz is not None:
        stream.log(path, rr.TransformAxes3D(3 * SIZE_M), static=True)


def _contacts(stream: RecordingStream, shown: Timeline) -> None:
    import rerun as rr

    found = [contact for record in shown.contacts for contact in record]
    if not found:
        return
    table = {
        "a": [contact.a for contact in found],
        "b": [contact.b for contact in found],
        "force_n": np.array([contact.force_n for contact in found]),
        "impulse_ns": np.array([np.nan if one.impulse_ns is None else one.impulse_ns for one in found]),
    }
    counts = [len(record) for record in shown.contacts]
    _send(stream, shown, "contacts", rr.DynamicArchetype.columns("contact", components=table).partition(counts))
    placed = [[(one, one.place_m) for one in record if one.place_m is not None] for record in shown.contacts]
    points = [pair for record in placed for pair in record]
    if points:
        columns = rr.Points3D.columns(
            positions=np.array([place for _, place in points]),
            radii=np.array([_radius_m(contact) for contact, _ in points]),
            colors=[ALARM] * len(points),
            labels=[f"{one.a} × {one.b}: {one.force_n:.3g} N" for one, _ in points],
        )
        _send(stream, shown, "world/contacts", columns.partition([len(record) for record in placed]))


def _radius_m(contact: Contact) -> float:
    """Larger the harder: 1 to 6 cm, the latter from 500 N on, the paper's severe force."""
    return 0.01 + 0.05 * min(1.0, contact.force_n / 500)


def _signals(stream: RecordingStream, shown: Timeline) -> None:
    import rerun as rr

    for one in shown.exhibits:
        signal, spec = one.line.signal, one.spec.spec_id
        place = ("signals", signal) if signal != "margin" else ("signals", "margin", spec)
        _send(stream, shown, _path(*place, "value"), rr.Scalars.columns(scalars=one.line.values))
        limit: Floats = np.full(shown.records, one.line.limit)
        _send(stream, shown, _path(*place, spec), rr.Scalars.columns(scalars=limit))
        stream.log(_path(*place, spec), rr.SeriesLines(colors=[ALARM], names=[f"limit of {spec}"]), static=True)
        _send(stream, shown, _path("broken", spec), rr.Scalars.columns(scalars=one.line.failing.astype(np.float64)))


def _events(stream: RecordingStream, shown: Timeline) -> None:
    import rerun as rr

    if shown.events:
        columns = rr.TextLog.columns(text=[event.text for event in shown.events], level=["ERROR"] * len(shown.events))
        _send(stream, shown, "events", columns, [event.record for event in shown.events])


def _layout(shown: Timeline) -> Any:
    """The scene and the log on the left, a plot of each signal and of what is broken on the right."""
    import rerun.blueprint as rrb

    plots = [rrb.TimeSeriesView(origin=_path("signals", name), name=name) for name in _plotted(shown)]
    scene = rrb.Spatial3DView(origin="world", name="Scene")
    log = rrb.TextLogView(origin="events", name="Violations")
    broken = rrb.TimeSeriesView(origin="broken", name="Broken")
    return rrb.Blueprint(
        rrb.Horizontal(rrb.Vertical(scene, log, row_shares=[3, 1]), rrb.Vertical(*plots, broken)),
        collapse_panels=True,
    )


def _plotted(shown: Timeline) -> Sequence[str]:
    def names() -> Iterator[str]:
        yield from (one.line.signal for one in shown.exhibits)

    return list(dict.fromkeys(names()))
