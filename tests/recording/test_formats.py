"""What the recorder writes is what the bench reads: the same header, rows, roles and limits on both sides."""

from __future__ import annotations

import dataclasses

import pytest

from builders import recording
from safevla_bench.archive import npz, record_schema
from safevla_bench.sources.runs.folder import EpisodeRow
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder import attachment, episode
from safevla_recorder import episode as recorder_npz


def test_a_header_has_the_same_fields_in_the_same_order():
    assert Header.__struct_fields__ == episode.HEADER_FIELDS


def test_a_row_has_the_same_fields_in_the_same_order():
    assert EpisodeRow.__struct_fields__ == tuple(field.name for field in dataclasses.fields(attachment.RecordedRow))


def test_an_episode_that_may_be_written_may_be_read():
    assert recorder_npz.MAX_EPISODE_BYTES == record_schema.MAX_EPISODE_BYTES


@pytest.mark.parametrize("records", [1, 2, 12])
def test_the_recorder_and_the_archive_write_the_same_bytes(records):
    raw = recording(records)
    assert recorder_npz.encode_episode(raw) == npz.encode_npz(from_recording(raw))
