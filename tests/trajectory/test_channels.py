"""The table of channels: a new channel of numbers is one row there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from safevla_bench.archive.record_schema import record_schema
from safevla_recorder.channels import CHANNELS, NUMERIC, OF_CONTACTS, ROWS

ADD_A_ROW = """
import sys
import numpy as np
from safevla_recorder import channels

row = channels.ChannelSpec("joint_speed_rad_s", ("n", "J"), unit="rad/s", is_bounded=True)
for name in ("CHANNELS", "NUMERIC", "ROWS"):
    setattr(channels, name, (*getattr(channels, name), row))
"""
USE_THE_CHANNEL = """
from pathlib import Path
from safevla_recorder.episode import EpisodeArrays
from safevla_bench.archive import open_archive, write_archive
from safevla_bench.archive.record_schema import record_schema
from safevla_bench.errors import RecordError
from safevla_bench.trajectory.batch import batch_of_headers, concatenate_batches, select_episodes
from safevla_bench.trajectory.single_episode import from_recording, iterate_records, join_records

NAME = "joint_speed_rad_s"
assert NAME in record_schema()["$defs"]["Step"]["properties"]


def episode(name, peak):
    header = dict(episode_id=name, benchmark="b", task_id="t", success=True, dt=0.05, target_object=None)
    return from_recording(EpisodeArrays(header, {"hand": "robot"}, 3, further={} if peak is None else {NAME: peak}))


peak = np.arange(6.0).reshape(3, 2)
with_peak, without = episode("a", peak), episode("b", None)
both = concatenate_batches([without, with_peak])
assert both.channel(NAME).width.tolist() == [-1, 2]
assert select_episodes(both, [1]).channel(NAME).episode_rows(0).tolist() == peak.tolist()
assert join_records(list(iterate_records(with_peak))).channel(NAME).episode_rows(0).tolist() == peak.tolist()
assert batch_of_headers(both.headers, both.lengths).channel(NAME).width.tolist() == [-1, -1]
for suffix in (".jsonl", ".npz", ".parquet"):
    path = Path(sys.argv[1]) / f"x{suffix}"
    write_archive(path, with_peak)
    assert open_archive(path).channel(NAME).episode_rows(0).tolist() == peak.tolist(), suffix
    write_archive(path, without)
    assert open_archive(path).channel(NAME).width.tolist() == [-1], suffix
for bad in (np.nan, 1e101):
    try:
        episode("c", peak + bad)
    except RecordError as error:
        assert error.place.field == f"{NAME}[0]"
    else:
        raise AssertionError(bad)
"""


def test_a_new_channel_of_numbers_is_one_row_for_batches_archives_validation_and_schema(tmp_path):
    program = [sys.executable, "-c", ADD_A_ROW + USE_THE_CHANNEL, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_channel_is_a_field_of_a_step_in_the_order_of_the_table():
    of_steps = [spec.name for spec in CHANNELS if spec.name not in OF_CONTACTS]  # each contact has its own
    assert list(record_schema()["$defs"]["Step"]["properties"]) == ["t", *of_steps]
    assert {"force_n", *OF_CONTACTS} < set(record_schema()["$defs"]["Contact"]["properties"])


@pytest.mark.parametrize("spec", NUMERIC, ids=lambda spec: spec.name)
def test_a_channel_of_numbers_has_a_row_for_each_record_or_action(spec):
    assert spec.shape[0] == ("n-1" if spec.is_per_action else "n")
    axes = 1 if spec.is_scalar else 2 if spec in ROWS or not spec.row_size else 3
    assert len(spec.shape) == axes
