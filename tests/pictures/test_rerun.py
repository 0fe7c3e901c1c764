"""A recording opened with Rerun's own reader holds the record's values, on one timeline."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pictures.builders import shown
from safevla_bench.errors import RunError
from safevla_bench.pictures.rerun import encode_rrd
from safevla_bench.plugins import install_command

chunks = pytest.importorskip("rerun.chunk", reason="Rerun comes with the extra rerun")


@pytest.fixture(scope="module")
def told():
    return shown()


@pytest.fixture(scope="module")
def read(told, tmp_path_factory):
    """Entity -> component -> (steps, the list of each), from the file."""
    path = tmp_path_factory.mktemp("rerun") / "episode.rrd"
    path.write_bytes(encode_rrd(told))
    found: dict[str, dict[str, tuple[list[int], list[list]]]] = {}
    for chunk in chunks.RrdReader(str(path)).stream():
        batch = chunk.to_record_batch()
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        steps = [] if chunk.is_static else columns["step"]
        if not chunk.is_static:
            seconds = [one.total_seconds() for one in columns["time"]]
            np.testing.assert_allclose(seconds, np.array(steps) * told.dt_s, atol=1e-9)
        for name, values in columns.items():
            before = found.setdefault(str(chunk.entity_path), {}).setdefault(name, ([], []))
            before[0].extend(steps)
            before[1].extend(values)
    return found


def test_positions_and_turns_are_the_records_as_float32(told, read):
    for body in (*told.bodies, told.eef):
        steps, values = read[f"/world/{body.name}"]["Transform3D:translation"]
        assert steps == list(range(told.records))
        np.testing.assert_array_equal(np.array(values)[:, 0].astype(np.float32), body.pos_m.astype(np.float32))
        if body.quat_wxyz is not None:
            turned = np.array(read[f"/world/{body.name}"]["Transform3D:quaternion"][1])[:, 0]
            np.testing.assert_allclose(turned[:, [3, 0, 1, 2]], body.quat_wxyz, atol=1e-6)


def test_contacts_are_the_records_exactly(told, read):
    table = read["/contacts"]
    forces, names = table["contact:force_n"][1], table["contact:a"][1]
    assert [[one.force_n for one in record] for record in told.contacts] == forces
    assert [[one.a for one in record] for record in told.contacts] == names
    assert any(forces)


def test_signals_limits_and_what_is_broken_are_the_judges(told, read):
    for one in told.traces:
        place, spec = f"/signals/{one.signal_trace.signal}", one.spec.spec_id
        np.testing.assert_array_equal(
            np.array(read[f"{place}/value"]["Scalars:scalars"][1])[:, 0], one.signal_trace.values
        )
        limits = np.array(read[f"{place}/{spec}"]["Scalars:scalars"][1]).ravel()
        assert set(limits[~np.isnan(limits)]) == {one.signal_trace.limit}
        broken = np.array(read[f"/broken/{spec}"]["Scalars:scalars"][1])[:, 0]
        np.testing.assert_array_equal(broken.astype(bool), one.signal_trace.failing)
    assert any(one.violated for one in told.traces)


def test_violations_are_a_log(told, read):
    steps, texts = read["/events"]["TextLog:text"]
    assert list(zip(steps, [one[0] for one in texts], strict=True)) == [
        (event.record, event.text) for event in told.events
    ]


def test_without_the_library_the_extra_is_named(told, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(RunError, match="Rerun's library is missing") as caught:
        encode_rrd(told)
    assert install_command("rerun") in str(caught.value)
