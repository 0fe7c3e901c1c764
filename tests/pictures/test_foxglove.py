"""An MCAP file opened with the format's own reader, in the schemas that Foxglove knows, holds the record's values."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

from pictures.builders import shown
from safevla_bench.errors import RunError
from safevla_bench.pictures.foxglove import encode_mcap
from safevla_bench.plugins import install_command

reading = pytest.importorskip("mcap.reader", reason="MCAP comes with the extra mcap")
DECODER = pytest.importorskip("mcap_protobuf.decoder", reason="MCAP comes with the extra mcap").DecoderFactory


@pytest.fixture(scope="module")
def told():
    return shown()


@pytest.fixture(scope="module")
def content(told) -> bytes:
    return encode_mcap(told)


@pytest.fixture(scope="module")
def read(content):
    """Topic -> (log time in ns, message), and topic -> schema name."""
    reader = reading.make_reader(io.BytesIO(content), decoder_factories=[DECODER()])
    messages: dict[str, list] = {}
    schemas: dict[str, str] = {}
    for schema, channel, message in reader.iter_messages():
        decoded = (
            json.loads(message.data)
            if channel.message_encoding == "json"
            else DECODER().decoder_for(channel.message_encoding, schema)(message.data)
        )
        messages.setdefault(channel.topic, []).append((message.log_time, decoded))
        schemas[channel.topic] = schema.name
    return messages, schemas


def test_schemas_are_those_that_foxglove_knows(read):
    schemas = read[1]
    known = {"/tf": "FrameTransforms", "/scene": "SceneUpdate", "/contacts/scene": "SceneUpdate", "/violations": "Log"}
    assert {topic: schemas[topic] for topic in known} == {topic: f"foxglove.{name}" for topic, name in known.items()}


def test_poses_are_the_records_exactly(told, read):
    sent = read[0]["/tf"]
    assert [at for at, _ in sent] == [round(k * told.dt_s * 1e9) for k in range(told.records)]
    for record, (at, message) in enumerate(sent):
        for body, one in zip((*told.bodies, told.eef), message.transforms, strict=True):
            assert (one.parent_frame_id, one.child_frame_id) == ("world", body.name)
            assert [one.translation.x, one.translation.y, one.translation.z] == body.pos_m[record].tolist()
            if body.quat_wxyz is not None:
                turned = [one.rotation.w, one.rotation.x, one.rotation.y, one.rotation.z]
                assert turned == body.quat_wxyz[record].tolist()
            assert one.timestamp.seconds * 10**9 + one.timestamp.nanos == at


def test_contacts_signals_limits_and_violations_are_the_records_and_the_judges(told, read):
    messages = read[0]
    assert [len(message["contacts"]) for _, message in messages["/contacts"]] == [len(r) for r in told.contacts]
    forces = [one["force_n"] for _, message in messages["/contacts"] for one in message["contacts"]]
    assert forces == [one.force_n for record in told.contacts for one in record]
    for one in told.traces:
        sent = [message for _, message in messages[f"/specs/{one.spec.spec_id}"]]
        values = np.array([np.nan if message["value"] is None else message["value"] for message in sent])
        np.testing.assert_array_equal(
            values[np.isfinite(one.signal_trace.values)], one.signal_trace.values[np.isfinite(one.signal_trace.values)]
        )
        assert [message["broken"] for message in sent] == one.signal_trace.failing.tolist()
        assert {message["limit"] for message in sent} == {one.signal_trace.limit}
    logged = [(at, message.message) for at, message in messages["/violations"]]
    assert logged == [(round(event.record * told.dt_s * 1e9), event.text) for event in told.events]


def test_json_messages_keep_the_schema_that_goes_with_them(content):
    jsonschema = pytest.importorskip("jsonschema")
    checked = 0
    for schema, channel, message in reading.make_reader(io.BytesIO(content)).iter_messages():
        if channel.message_encoding == "json":
            jsonschema.validate(json.loads(message.data), json.loads(schema.data))
            checked += 1
    assert checked


def test_the_same_episode_gives_the_same_bytes_and_says_whose_it_is(told, content):
    assert encode_mcap(told) == content
    found = {one.name: one.metadata for one in reading.make_reader(io.BytesIO(content)).iter_metadata()}
    assert found["episode"] == dict(told.facts)


def test_without_the_library_the_extra_is_named(told, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcap_protobuf.schema", None)
    with pytest.raises(RunError, match="MCAP's libraries are missing") as caught:
        encode_mcap(told)
    assert install_command("mcap") in str(caught.value)
