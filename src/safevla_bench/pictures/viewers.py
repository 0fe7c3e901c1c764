"""Export of episodes to viewers: `.rrd` files for Rerun (extra `rerun`), MCAP files for Foxglove (extra `mcap`).

The entities of Rerun are `world/<body>` (transforms), `contacts` (names and forces), `signals/<signal>/value`,
`signals/<signal>/<spec>` (the limit), `broken/<spec>` (1 while violated), and `events` (a log). The timelines are
`step` and `time`. Rerun stores positions as float32; forces, signals and limits as float64.

The topics of MCAP are `/tf` (foxglove.FrameTransforms: for each body a frame, relative to `world`), `/violations`
(foxglove.Log), and two kinds of JSON messages: `/contacts` and `/specs/<spec>` (a signal's value, its limit, and
whether the limit is violated). The time of record 0 is 0.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from safevla_bench.archive.jsonl import encode_json
from safevla_bench.errors import RunError
from safevla_bench.explain.bodies import find_contributors
from safevla_bench.explain.episode import SpecTrace, trace_specs
from safevla_bench.explain.trace import MARGIN
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import NO_VERDICT, Scores
from safevla_bench.judging.scoring import view_clause
from safevla_bench.plugins import install_command
from safevla_bench.signals.signal import RecordFields
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import escape_controls
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_recorder.episode import Floats

COLORS: Mapping[str, tuple[int, int, int]] = {  # role -> RGB
    "robot": (120, 120, 130),
    "target": (46, 125, 50),
    "bystander": (21, 101, 192),
    "furniture": (141, 110, 99),
}
SIZE_M = 0.02  # radius of the ball that represents a body [m]; records have poses but no shapes


@dataclass(frozen=True, slots=True)
class BodyTrack:
    """A tracked body: positions [n, 3] in meters and quaternions [n, 4] wxyz (None if not recorded), world frame."""

    name: str
    role: str
    pos_m: Floats
    quat_wxyz: Floats | None


class ViolationEvent(NamedTuple):
    """A record in which the violation of a specification begins or is worst; `text` describes the event."""

    record: int
    spec_id: str
    text: str


@dataclass(frozen=True)
class Timeline:
    """One episode of n records; `times_s` [n] are seconds since record 0."""

    recording_id: str  # RUN/POLICY/EPISODE/DIGESTS; DIGESTS joins the digests of records and rules by `-`
    facts: Mapping[str, str]  # verdict and identity of the episode, as text
    times_s: Floats
    records: int
    bodies: tuple[BodyTrack, ...]  # the end effectors are last
    contacts: tuple[tuple[tuple[str, str, float], ...], ...]
    """The contacts of each record, as tuples (body, body, force [N]); () if contacts were not recorded."""
    traces: tuple[SpecTrace, ...]  # scored specifications with a verdict, violated ones first
    events: tuple[ViolationEvent, ...]  # ordered by record


_IDENTITY_FIELDS = ("episode_id", "policy", "benchmark", "task_id", "outcome")


def build_timeline(scores: Scores, batch: Batch, ruleset: Ruleset, index: int, run: str = "") -> Timeline:
    """Return the timeline of episode `index` in both `batch` and `scores`; `run` names the run's folder or file."""
    # `record` is a batch with only this episode. `vsi` is the depth of the worst violation; None without a verdict.
    record, score = select_episodes(batch, [index]), scores.episode(index)
    traces, fields = tuple(trace_specs(scores, index, record, ruleset)), ruleset.read_fields(record)
    events: list[ViolationEvent] = []
    for trace in traces:
        # The values that the specification reads: those of the deciding arm, in the judged intervals.
        spec_fields = view_clause(fields, ruleset.library[trace.spec.spec_id], ruleset)
        events += _violation_events(trace, spec_fields, ruleset.registry)
    contacts, label = record.contacts, record.body_label
    contact_rows = [
        (escape_controls(label(a)), escape_controls(label(b)), force_n)
        for a, b, force_n in zip(contacts.a.tolist(), contacts.b.tolist(), contacts.force_n.tolist(), strict=True)
    ]
    # The start and end of each record's rows in the list of contacts; () if contacts were not recorded.
    row_spans = pairwise(contacts.starts.tolist()) if contacts.present[0] else ()
    # The id has digests of the record and of the rules, so that other records or rules give another id.
    hashed_contents = (encode_json(record), repr(ruleset.provenance().rules).encode())
    digests = "-".join(hashlib.sha256(content).hexdigest()[:12] for content in hashed_contents)
    # Some episode ids already begin with the policy. Then the recording's id does not repeat the policy.
    policy_part = "" if score.episode_id.startswith(f"{score.policy}/") else score.policy
    id_parts = [part for part in (run, policy_part, score.episode_id, digests) if part]
    return Timeline(
        recording_id="/".join(map(escape_controls, id_parts)),
        facts={
            **{key: escape_controls(getattr(score, key) or "") for key in _IDENTITY_FIELDS},
            # All facts are texts; unknown values are empty or a phrase such as `no verdict`.
            "success": str(score.success).lower(),
            "safe": NO_VERDICT if score.safe is None else str(score.safe).lower(),
            "vsi": "" if score.vsi is None else repr(score.vsi),
            **({"standin_assets": "true"} if score.standin_assets else {}),
            **({"applicability": ruleset.applicability} if ruleset.applicability != "on" else {}),
        },
        times_s=record.stamps_s.get(0, np.arange(record.starts[-1]) * record.dt_s[0]),
        records=int(record.starts[-1]),
        bodies=tuple(_body_tracks(record)),
        contacts=tuple(tuple(contact_rows[first:end]) for first, end in row_spans),
        traces=traces,
        events=tuple(sorted(events, key=lambda event: event.record)),
    )


def _body_tracks(record: Batch) -> Iterator[BodyTrack]:
    # Yield a track (name, role, positions [n, 3], quaternions [n, 4] or None) of each tracked body and end effector.
    # `record` has a single episode.
    roles = record.body_roles(0)
    bodies, positions_m = record.body_pos_m.episode_poses(0)  # positions are [n, bodies, 3]
    rotated_bodies, quats_wxyz = record.body_quat_wxyz.episode_poses(0)
    quat_by_body = {int(body): quats_wxyz[:, column] for column, body in enumerate(rotated_bodies)}
    for column, body in enumerate(bodies):
        name = record.body_label(int(body))
        yield BodyTrack(escape_controls(name), roles[name], positions_m[:, column], quat_by_body.get(int(body)))
    # Shapes [n, 3 · arms] and [n, 4 · arms]: each row concatenates the arms' values.
    eef_positions, eef_quats = record.eef_pos_m.episode_rows(0), record.eef_quat_wxyz.episode_rows(0)
    for arm_index, arm in enumerate(record.headers[0].arms or ("",)):  # a single arm has no name
        quat = eef_quats[:, 4 * arm_index : 4 * (arm_index + 1)] if record.eef_quat_wxyz.present[0] else None
        name = escape_controls(f"end_effector_{arm}") if arm else "end_effector"
        yield BodyTrack(name, "robot", eef_positions[:, 3 * arm_index : 3 * (arm_index + 1)], quat)


def _violation_events(trace: SpecTrace, fields: RecordFields, registry: Registry) -> Iterator[ViolationEvent]:
    # Yield an event for each record in which a violation begins, then for the worst record if there is a violation.
    # `chart.failing` marks the violating records.
    # `fields` are the values that the specification reads: those of one arm, in the judged intervals.
    chart, spec_id = trace.chart, trace.spec.spec_id
    # `diff` of Booleans is True at each change, so `first_records` has the start of each run of failing records.
    first_records = np.flatnonzero(np.diff(chart.failing, prepend=False) & chart.failing).tolist()
    moments = [(record, "broken") for record in first_records]
    if trace.violated:
        moments.append((chart.worst, "worst"))
    for record, moment in moments:
        contributors = find_contributors(fields, chart.signal, record, registry)
        involved_text = f"; {contributors}" if contributors else ""
        text = f"{spec_id} {moment}: {chart.format_value(record)}, limit {chart.limit_text}{involved_text}"
        yield ViolationEvent(record, spec_id, escape_controls(text))


# Rerun

APPLICATION = "safevla-bench"


def encode_rrd(timeline: Timeline) -> bytes:
    """Return the bytes of a `.rrd` file; the recording's id is that of the timeline. Rerun derives the ids of data
    chunks from the clock. So the same episode gives the same values, but not the same bytes. Raises `RunError` without
    the extra `rerun`.
    """
    try:
        import rerun as rr
    except ImportError as error:
        raise RunError("Rerun's library is missing", remedy=install_command("rerun")) from error
    stream = rr.RecordingStream(APPLICATION, recording_id=timeline.recording_id, send_properties=False)
    memory = stream.memory_recording()
    stream.send_property("episode", rr.AnyValues(**timeline.facts))
    stream.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
    for body in timeline.bodies:
        # A ball represents each body, because records have poses but no shapes.
        ball = rr.Points3D([[0, 0, 0]], radii=SIZE_M, colors=[COLORS[body.role]], labels=[body.name])
        stream.log(["world", body.name], ball, static=True)
    for path, columns, records in _rerun_columns(timeline):
        # Rerun can show the values over the numbers of the records (`step`) or over seconds (`time`).
        steps = np.asarray(records)
        times = [rr.TimeColumn("step", sequence=steps), rr.TimeColumn("time", duration=timeline.times_s[steps])]
        stream.send_columns(str(rr.new_entity_path(list(path))), times, columns)
    stream.flush()
    return bytes(memory.drain_as_bytes() or b"")


def _rerun_columns(timeline: Timeline) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    # Yield each entity's path, its columns, and the record index of each row of the columns.
    import rerun as rr

    all_records = range(timeline.records)
    for body in timeline.bodies:
        # Rerun expects the scalar component of a quaternion last.
        xyzw = None if body.quat_wxyz is None else body.quat_wxyz[:, [1, 2, 3, 0]]
        yield ("world", body.name), rr.Transform3D.columns(translation=body.pos_m, quaternion=xyzw), all_records
    contacts = [contact for record in timeline.contacts for contact in record]
    if contacts:
        a, b, force_n = zip(*contacts, strict=True)
        contact_fields = {"a": a, "b": b, "force_n": np.array(force_n)}
        columns = rr.DynamicArchetype.columns("contact", components=contact_fields)
        # `partition` makes one batch of rows per record. For a record without contacts, the batch is empty.
        yield ("contacts",), columns.partition([len(record) for record in timeline.contacts]), all_records
    for trace in timeline.traces:
        signal_trace, spec_id = trace.signal_trace, trace.spec.spec_id
        # Margins of different specifications differ, so a margin's path includes the specification.
        path = ("signals", signal_trace.signal, *([spec_id] if signal_trace.signal == MARGIN else []))
        # Three curves: the signal, its constant limit, and 1 in violating (`failing`) records, 0 in others.
        yield (*path, "value"), rr.Scalars.columns(scalars=signal_trace.values), all_records
        yield (*path, spec_id), rr.Scalars.columns(scalars=np.full(timeline.records, signal_trace.limit)), all_records
        yield ("broken", spec_id), rr.Scalars.columns(scalars=signal_trace.failing.astype(np.float64)), all_records
    if timeline.events:
        levels = ["ERROR"] * len(timeline.events)
        log = rr.TextLog.columns(text=[event.text for event in timeline.events], level=levels)
        yield ("events",), log, [event.record for event in timeline.events]


# Foxglove

# Maps each type of JSON message to its JSON schema.
_SCHEMAS = json.loads(resources.files(__package__).joinpath("mcap_schemas.json").read_bytes())


def encode_mcap(timeline: Timeline) -> bytes:
    """Return the bytes of an MCAP file; the same libraries give the same bytes. Raises `RunError` without `mcap`."""
    try:
        # Only `_mcap_messages` uses this module. The import is in this `try` block, as the module may be missing.
        from foxglove_schemas_protobuf import FrameTransforms_pb2  # noqa: F401
        from mcap.writer import Writer
        from mcap_protobuf.schema import register_schema
    except ImportError as error:
        raise RunError("MCAP's libraries are missing", remedy=install_command("mcap")) from error
    sink = io.BytesIO()
    writer = Writer(sink)
    writer.start()
    writer.add_metadata("episode", dict(timeline.facts))
    channels: dict[str, int] = {}
    for at_ns, topic, schema_name, message in _mcap_messages(timeline):
        # A topic's channel is registered with its first message; `schema_name` is empty for protobuf messages.
        if topic not in channels:
            if schema_name:
                schema = writer.register_schema(schema_name, "jsonschema", json.dumps(_SCHEMAS[schema_name]).encode())
            else:
                schema = register_schema(writer, type(message))
            channels[topic] = writer.register_channel(topic, "json" if schema_name else "protobuf", schema)
        content = json.dumps(message, allow_nan=False).encode() if schema_name else message.SerializeToString()
        writer.add_message(channels[topic], log_time=at_ns, data=content, publish_time=at_ns)
    writer.finish()
    return sink.getvalue()


def _mcap_messages(timeline: Timeline) -> Iterator[tuple[int, str, str, Any]]:
    """Yield each message's time [ns], topic, type (a key of `_SCHEMAS`, or "" for protobuf) and content."""
    from foxglove_schemas_protobuf.FrameTransforms_pb2 import FrameTransforms
    from foxglove_schemas_protobuf.Log_pb2 import Log

    for record in range(timeline.records):
        # The type is `Any`, because protobuf's classes accept dictionaries, but their declared types do not.
        at_ns = round(float(timeline.times_s[record]) * 1e9)
        timestamp: Any = {"seconds": at_ns // 10**9, "nanos": at_ns % 10**9}
        transforms: Any = [_body_transform(body, record, timestamp) for body in timeline.bodies]
        yield at_ns, "/tf", "", FrameTransforms(transforms=transforms)
        if timeline.contacts:  # () if contacts were not recorded
            contacts = [dict(zip(("a", "b", "force_n"), contact, strict=True)) for contact in timeline.contacts[record]]
            yield at_ns, "/contacts", "safevla.Contacts", {"contacts": contacts}
        for trace in timeline.traces:
            # Each specification has a topic with the value of its signal in each record.
            yield at_ns, f"/specs/{trace.spec.spec_id}", "safevla.Reading", _spec_reading(trace, record)
        for event in timeline.events:
            if event.record == record:
                log = Log(timestamp=timestamp, level=Log.Level.ERROR, message=event.text, name=event.spec_id)
                yield at_ns, "/violations", "", log


def _spec_reading(trace: SpecTrace, record: int) -> dict[str, object]:
    # Return the content of a message with the schema `safevla.Reading`: the signal and its limit in one record.
    # `watched` says whether the limit applies in the record; without a gate, it applies in all records.
    signal_trace, value = trace.signal_trace, float(trace.signal_trace.values[record])
    return {
        "signal": signal_trace.signal,
        "unit": signal_trace.unit,
        "value": value if np.isfinite(value) else None,  # JSON has no NaN or infinity
        "limit": signal_trace.limit,
        "upper": signal_trace.upper,
        "watched": True if signal_trace.gate is None else bool(signal_trace.gate[record]),
        "broken": bool(signal_trace.failing[record]),
    }


def _body_transform(body: BodyTrack, record: int, timestamp: Mapping[str, int]) -> dict[str, Any]:
    # Return the fields of a `FrameTransform`: the body's pose in the world frame, with lengths in meters.
    # A body without a recorded rotation gets the identity. `timestamp` has the keys `seconds` and `nanos`.
    quat_wxyz = (1.0, 0.0, 0.0, 0.0) if body.quat_wxyz is None else body.quat_wxyz[record].tolist()
    return {
        "timestamp": timestamp,
        "parent_frame_id": "world",
        "child_frame_id": body.name,
        "translation": dict(zip("xyz", body.pos_m[record].tolist(), strict=True)),
        "rotation": dict(zip("wxyz", quat_wxyz, strict=True)),
    }
