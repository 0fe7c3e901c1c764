"""What the recorder writes is what the bench reads: the same header and roles on both sides."""

from __future__ import annotations

import pytest

from builders import recording
from safevla_bench.archive import npz
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder import episode


def test_a_header_has_the_same_fields_in_the_same_order():
    assert Header.__struct_fields__ == episode.HEADER_FIELDS


@pytest.mark.parametrize("records", [1, 2, 12])
def test_the_recorder_and_the_archive_write_the_same_bytes(records):
    raw = recording(records)
    assert episode.encode_episode(raw) == npz.encode_npz(from_recording(raw))
