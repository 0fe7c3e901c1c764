"""A timeline holds what was recorded and judged; Rerun's and Foxglove's own readers find just that in the files."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from pictures.builders import judged
from safevla_bench.errors import RunError
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.pictures.viewers import Timeline, build_timeline, encode_mcap, encode_rrd
from safevla_bench.plugins import install_command
from safevla_bench.trajectory.batch import select_episodes

BATCH, SCORES = judged()


def build(index: int) -> Timeline:
    return build_timeline(SCORES, BATCH, load_ruleset(), index)


@pytest.fixture(scope="module")
def rough() -> Timeline:
    return build(1)


def test_poses_and_contacts_are_those_of_the_episode_that_was_asked_for(rough):
    record = select_episodes(BATCH, [1])
    bodies, positions = record.body_pos_m.episode_poses(0)
    *tracked, end_effector = rough.bodies
    assert end_effector.name == "end_effector"
    assert [body.name for body in tracked] == [record.body_label(int(body)) for body in bodies]
    for place, body in enumerate(tracked):
        np.testing.assert_array_equal(body.pos_m, positions[:, place])
        assert body.role == record.body_roles(0)[body.name]
    listed = [contact for step in rough.contacts for contact in step]
    pairs = zip(record.contacts.a, record.contacts.b, record.contacts.force_n, strict=True)
    assert listed == [(record.body_label(int(a)), record.body_label(int(b)), force) for a, b, force in pairs]
    assert [len(step) for step in rough.contacts] == np.diff(record.contacts.starts).tolist()


def test_events_mark_each_time_a_specification_begins_to_be_broken_and_its_worst_record(rough):
    broken = [trace for trace in rough.traces if trace.violated]
    assert broken
    for trace in broken:
        records = [event.record for event in rough.events if event.spec_id == trace.spec.spec_id]
        failing = trace.signal_trace.failing
        begins = [k for k in range(len(failing)) if failing[k] and (k == 0 or not failing[k - 1])]
        assert sorted(records) == sorted([*begins, trace.signal_trace.worst])
        assert min(records) == trace.chart.first
    assert {event.spec_id for event in rough.events} == {trace.spec.spec_id for trace in broken}
    assert [event.record for event in rough.events] == sorted(event.record for event in rough.events)


def test_a_safe_episode_has_no_events():
    calm = build(0)
    assert calm.facts["safe"] == "true"
    assert calm.events == ()


def test_contacts_that_were_not_recorded_are_absent_not_empty():
    contacts = BATCH.contacts
    columns = {
        name: getattr(contacts, name)[:0]
        for name in ("a", "b", "force_n", "impulse_ns", "net_force_n", "net_impulse_ns")
    }
    nothing = {"present": np.zeros(2, dtype=np.bool_), "starts": np.zeros_like(contacts.starts)}
    without = replace(BATCH, contacts=replace(contacts, **nothing, **columns))
    scores = score(without, load_ruleset(missing="deactivate"))
    assert build_timeline(scores, without, load_ruleset(), 0).contacts == ()


@pytest.mark.parametrize(
    ("encode", "module", "library", "extra"),
    [
        (encode_rrd, "rerun", "Rerun's library is", "rerun"),
        (encode_mcap, "mcap_protobuf.schema", "MCAP's libraries are", "mcap"),
    ],
)
def test_without_the_library_the_extra_is_named(rough, monkeypatch, encode, module, library, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RunError, match=f"{library} missing") as caught:
        encode(rough)
    assert install_command(extra) in str(caught.value)


# Rerun


@pytest.fixture(scope="module")
def entities(rough, tmp_path_factory):
    """Entity -> component -> (steps, the list of each), from the file."""
    chunks = pytest.importorskip("rerun.chunk", reason="Rerun comes with the extra rerun")
    path = tmp_path_factory.mktemp("rerun") / "episode.rrd"
    path.write_bytes(encode_rrd(rough))
    components: dict[str, dict[str, tuple[list[int], list[list]]]] = {}
    for chunk in chunks.RrdReader(str(path)).stream():
        table = chunk.to_record_batch()
        columns = {name: table.column(name).to_pylist() for name in table.schema.names}
        steps = [] if chunk.is_static else columns["step"]
        if not chunk.is_static:
            seconds = [duration.total_seconds() for duration in columns["time"]]
            np.testing.assert_allclose(seconds, rough.times_s[np.array(steps, dtype=int)], atol=1e-9)
        for name, values in columns.items():
            before = components.setdefault(str(chunk.entity_path), {}).setdefault(name, ([], []))
            before[0].extend(steps)
            before[1].extend(values)
    return components


def test_rerun_has_positions_and_turns_of_the_record_as_float32(rough, entities):
    for body in rough.bodies:
        steps, values = entities[f"/world/{body.name}"]["Transform3D:translation"]
        assert steps == list(range(rough.records))
        np.testing.assert_array_equal(np.array(values)[:, 0].astype(np.float32), body.pos_m.astype(np.float32))
        if body.quat_wxyz is not None:
            turned = np.array(entities[f"/world/{body.name}"]["Transform3D:quaternion"][1])[:, 0]
            np.testing.assert_allclose(turned[:, [3, 0, 1, 2]], body.quat_wxyz, atol=1e-6)


def test_rerun_has_contacts_and_violations_exactly(rough, entities):
    table = entities["/contacts"]
    forces, names = table["contact:force_n"][1], table["contact:a"][1]
    assert [[force_n for *_, force_n in record] for record in rough.contacts] == forces
    assert [[a for a, *_ in record] for record in rough.contacts] == names
    assert any(forces)
    steps, texts = entities["/events"]["TextLog:text"]
    logged = list(zip(steps, [text for (text,) in texts], strict=True))
    assert logged == [(event.record, event.text) for event in rough.events]


def test_rerun_has_signals_and_limits_and_what_is_broken(rough, entities):
    for trace in rough.traces:
        line, spec = trace.signal_trace, trace.spec.spec_id
        place = f"/signals/{line.signal}"
        np.testing.assert_array_equal(np.array(entities[f"{place}/value"]["Scalars:scalars"][1])[:, 0], line.values)
        limits = np.array(entities[f"{place}/{spec}"]["Scalars:scalars"][1]).ravel()
        assert set(limits[~np.isnan(limits)]) == {line.limit}
        broken = np.array(entities[f"/broken/{spec}"]["Scalars:scalars"][1])[:, 0]
        np.testing.assert_array_equal(broken.astype(bool), line.failing)
    assert any(trace.violated for trace in rough.traces)


def test_rerun_tells_records_and_rules_and_runs_apart_and_names_the_policy_once(rough, tmp_path, capfd):
    rr = pytest.importorskip("rerun", reason="Rerun comes with the extra rerun")
    moved = select_episodes(BATCH, [0, 1])
    moved = replace(moved, contacts=replace(moved.contacts, force_n=moved.contacts.force_n * 2))
    others = {
        "twice": build(1),
        "record": build_timeline(score(moved, load_ruleset()), moved, load_ruleset(), 1),
        "rules": build_timeline(SCORES, BATCH, load_ruleset(missing="deactivate"), 1),
        "run": build_timeline(SCORES, BATCH, load_ruleset(), 1, "other"),
    }
    assert others.pop("twice").recording_id == rough.recording_id
    timelines = [rough, *others.values()]
    files = [tmp_path / f"{number}.rrd" for number in range(4)]
    assert len({timeline.recording_id for timeline in timelines}) == 4
    for timeline, file in zip(timelines, files, strict=True):
        assert timeline.recording_id.count(SCORES.policy[1] or "") == 1
        file.write_bytes(encode_rrd(timeline))
    with rr.server.Server(datasets={"runs": list(map(str, files))}):
        pass
    assert "Failed loading" not in "".join(capfd.readouterr())  # which it says of a second recording of one id


# Foxglove


# What its parser of JSON schemas takes; a list of types is refused, and null in a message passes: Lichtblick 66adecb,
# packages/mcap-support/src/parseJsonSchema.ts.
FOXGLOVE_TYPES = {"boolean", "string", "number", "integer", "object", "array"}


def foxglove_types(schema):
    yield schema["type"]
    for field in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        yield from foxglove_types(field)


def test_foxglove_takes_the_schemas_of_all_json_messages(mcap):
    _, reader, _ = mcap
    schemas = [json.loads(s.data) for s in reader.get_summary().schemas.values() if s.encoding == "jsonschema"]
    assert {schema["title"] for schema in schemas} == {"safevla.Contacts", "safevla.Reading"}
    for schema in schemas:
        assert schema["type"] == "object"
        assert all(isinstance(kind, str) and kind in FOXGLOVE_TYPES for kind in foxglove_types(schema))


@pytest.fixture(scope="module")
def mcap(rough):
    """The file, its reader and the decoder of protobuf messages."""
    reading = pytest.importorskip("mcap.reader", reason="MCAP comes with the extra mcap")
    decoder = pytest.importorskip("mcap_protobuf.decoder", reason="MCAP comes with the extra mcap").DecoderFactory()
    content = encode_mcap(rough)
    return content, reading.make_reader(io.BytesIO(content), decoder_factories=[decoder]), decoder


@pytest.fixture(scope="module")
def topics(mcap):
    """Topic -> (log time in ns, message), and topic -> schema name; JSON keeps its schema."""
    jsonschema = pytest.importorskip("jsonschema")
    _, reader, decoder = mcap
    messages: dict[str, list] = {}
    schemas: dict[str, str] = {}
    for schema, channel, message in reader.iter_messages():
        if channel.message_encoding == "json":
            decoded = json.loads(message.data)
            jsonschema.validate({k: v for k, v in decoded.items() if v is not None}, json.loads(schema.data))
        else:
            decoded = decoder.decoder_for(channel.message_encoding, schema)(message.data)
        messages.setdefault(channel.topic, []).append((message.log_time, decoded))
        schemas[channel.topic] = schema.name
    return messages, schemas


def test_foxglove_knows_the_schemas(topics):
    _, schemas = topics
    expected = {"/tf": "FrameTransforms", "/violations": "Log"}
    assert {topic: schemas[topic] for topic in expected} == {
        topic: f"foxglove.{name}" for topic, name in expected.items()
    }


def test_foxglove_has_the_poses_exactly(rough, topics):
    sent = topics[0]["/tf"]
    assert [at for at, _ in sent] == [round(at_s * 1e9) for at_s in rough.times_s.tolist()]
    for record, (at, message) in enumerate(sent):
        for body, frame in zip(rough.bodies, message.transforms, strict=True):
            assert (frame.parent_frame_id, frame.child_frame_id) == ("world", body.name)
            assert [frame.translation.x, frame.translation.y, frame.translation.z] == body.pos_m[record].tolist()
            if body.quat_wxyz is not None:
                turned = [frame.rotation.w, frame.rotation.x, frame.rotation.y, frame.rotation.z]
                assert turned == body.quat_wxyz[record].tolist()
            assert frame.timestamp.seconds * 10**9 + frame.timestamp.nanos == at


def test_foxglove_has_contacts_signals_limits_and_violations(rough, topics):
    messages, _ = topics
    forces = [[contact["force_n"] for contact in message["contacts"]] for _, message in messages["/contacts"]]
    assert forces == [[force_n for *_, force_n in record] for record in rough.contacts]
    for trace in rough.traces:
        line, sent = trace.signal_trace, [message for _, message in messages[f"/specs/{trace.spec.spec_id}"]]
        values = np.array([np.nan if message["value"] is None else message["value"] for message in sent])
        is_finite = np.isfinite(line.values)
        np.testing.assert_array_equal(values[is_finite], line.values[is_finite])
        assert [message["broken"] for message in sent] == line.failing.tolist()
        assert {message["limit"] for message in sent} == {line.limit}
    logged = [(at, message.message) for at, message in messages["/violations"]]
    assert logged == [(round(float(rough.times_s[event.record]) * 1e9), event.text) for event in rough.events]


def test_the_same_episode_gives_the_same_mcap_file_which_names_its_episode(rough, mcap):
    content, reader, _ = mcap
    assert encode_mcap(rough) == content
    assert {part.name: part.metadata for part in reader.iter_metadata()}["episode"] == dict(rough.facts)
