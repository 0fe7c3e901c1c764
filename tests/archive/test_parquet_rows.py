"""Rows of a group are decoded at once; what that says of them is what it says of each row alone."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import BOWL, HAND, PLATE, contacts, episode, recordings, same_bits
from safevla_bench.archive import open_archive, parquet, write_archive
from safevla_bench.archive.parquet_rows import SCHEMA, decode_rows, to_table
from safevla_bench.archive.record_schema import EpisodeSelection
from safevla_bench.errors import RecordError
from safevla_bench.trajectory.batch import Batch, concatenate_batches
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import EpisodeArrays


def group(batches: list[Batch]) -> pa.RecordBatch:
    return to_table(concatenate_batches(batches), SCHEMA).combine_chunks().to_batches()[0]


def decode_or_refuse(rows: pa.RecordBatch) -> Batch | None:
    try:
        return decode_rows(rows)
    except RecordError:
        return None


def row_by_row(rows: pa.RecordBatch) -> Batch | None:
    batches = [batch for k in range(rows.num_rows) if (batch := decode_or_refuse(rows.slice(k, 1)))]
    return concatenate_batches(batches) if len(batches) == rows.num_rows else None


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.lists(recordings(), min_size=1, max_size=4))
def test_a_valid_group_is_its_rows_bit_for_bit(drawn: list[EpisodeArrays]):
    batch = concatenate_batches([from_recording(recording) for recording in drawn])
    assert same_bits(decode_rows(group([batch])), batch)
    assert same_bits(row_by_row(group([batch])), batch)


def test_columns_that_are_absent_are_families_not_recorded():
    required = ["episode_id", "benchmark", "task_id", "success", "dt", "target_object", "bodies", "records"]
    rows = group([episode(3), episode(4)]).select([*required, "eef_pos_m"])
    batch = decode_rows(rows)
    assert same_bits(batch, row_by_row(rows))
    assert (batch.eef_pos_m.present.all(), batch.body_pos_m.present.any()) == (True, False)


def alter(rng: random.Random, value: object) -> object:
    """A value of a column with something in it lost, doubled, swapped or out of its range."""
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value[:at] + [value[at]] + value[at:]
            case _:
                return [*value[:at], alter(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value:
        name = rng.choice(sorted(value))
        return {**value, name: alter(rng, value[name])}
    if isinstance(value, bool | str):
        return rng.choice([None, value])
    if isinstance(value, int):
        return rng.choice([None, -1, 0, value + 1, 2**31 - 1])
    if isinstance(value, float):
        return rng.choice([None, float("nan"), float("inf"), -1.0, 1e200])
    return None


@pytest.mark.parametrize("seed", range(2))
def test_a_group_with_an_altered_row_is_read_if_and_only_if_each_row_is(seed):
    rng = random.Random(seed)
    touching = contacts((0, HAND, BOWL, 1.0), (2, HAND, BOWL, 3.0))
    tracked = {"valid_bodies": (PLATE,), "pose_valid": np.array([[True], [False], [True]])}
    stamped = {"further": {"time_s": np.array([0.0, 0.05, 0.2])}}
    plain = group([episode(3, episode_id=f"e{k}", contacts=touching, **tracked, **stamped) for k in range(3)])
    names = [name for name in SCHEMA.names if name not in ("versions", "dropped_pairs")]
    refused = 0
    for _ in range(150):
        row, name = rng.randrange(3), rng.choice(names)
        values = plain.column(name).to_pylist()
        values[row] = alter(rng, values[row])
        column = pa.array(values, SCHEMA.field(name).type)
        rows = plain.set_column(SCHEMA.names.index(name), SCHEMA.field(name), column)
        whole, alone = decode_or_refuse(rows), row_by_row(rows)
        assert (whole is None) == (alone is None)
        refused += whole is None
        assert whole is None or same_bits(whole, alone)
    assert 20 < refused < 150


def test_named_texts_are_pairs_as_data_sets_read_no_maps_and_maps_of_older_files_are_read(tmp_path):
    batch = concatenate_batches(
        [episode(3, episode_id=f"e{k}", versions={"mujoco": "3", "numpy": str(k)}) for k in range(2)]
    )
    table = to_table(batch)
    assert not any(pa.types.is_map(field.type) for field in table.schema)
    assert table["versions"][1].as_py() == [{"key": "mujoco", "value": "3"}, {"key": "numpy", "value": "1"}]
    older = [[tuple(pair.values()) for pair in row] for row in table["versions"].to_pylist()]
    maps = pa.array(older, pa.map_(pa.string(), pa.string()))
    pq.write_table(table.set_column(table.schema.names.index("versions"), "versions", maps), tmp_path / "old.parquet")
    pq.write_table(table, tmp_path / "new.parquet")
    assert [open_archive(tmp_path / name).headers for name in ("old.parquet", "new.parquet")] == [batch.headers] * 2


def test_a_group_is_read_as_one_batch(tmp_path):
    path = tmp_path / "a.parquet"
    write_archive(path, concatenate_batches([episode(3, episode_id=f"e{k}") for k in range(40)]))
    assert [len(batch) for batch in parquet.read_parquet(path, EpisodeSelection())] == [32, 8]
