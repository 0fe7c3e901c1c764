"""A Parquet file that stands for more than it holds is refused within the memory limit."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import contacts, episode
from safevla_bench.archive import open_archive, read_episodes, write_archive
from safevla_bench.archive.parquet_rows import SCHEMA, to_table
from safevla_bench.errors import DamageError, RecordError
from safevla_bench.memory import SETTING

HAND, BOWL = 0, 1


def table():
    return to_table(episode(3, contacts=contacts((1, HAND, BOWL, 3.0))))


def with_empty_lists(path: Path, column: str, count: int) -> None:
    """An episode that says a column has so many empty lists; run lengths make a file of some kilobytes of them."""
    kind = SCHEMA.field(column).type
    inner = pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, np.int32)), pa.array([], kind.value_type.value_type), type=kind.value_type
    )
    lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), inner, type=kind)
    rows = table()
    rows = rows.set_column(rows.schema.get_field_index(column), SCHEMA.field(column), lists)
    pq.write_table(rows, path, compression="zstd", use_dictionary=False, store_schema=False, data_page_size=1 << 30)


@pytest.mark.parametrize("column", ["contacts", "sim_state", "body_pos_m"])
def test_a_file_of_empty_lists_is_refused_within_the_limit(tmp_path, monkeypatch, column):
    path = tmp_path / "x.parquet"
    with_empty_lists(path, column, 80_000_000)
    assert path.stat().st_size < 1 << 17
    monkeypatch.setenv(SETTING, "0.25")
    (problem,) = read_episodes([path])
    assert isinstance(problem, DamageError)
    assert "needs more memory" in str(problem) or "512 MiB" in str(problem)


@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0"}, {"compression": "none"}, {"data_page_size": 64}])
def test_files_of_other_writers_are_read(tmp_path, options):
    pq.write_table(table(), tmp_path / "x.parquet", **options)
    assert len(open_archive(tmp_path / "x.parquet")) == 1


def test_a_footer_of_any_bytes_is_read_or_refused(tmp_path):
    write_archive(tmp_path / "x.parquet", episode(3))
    good = (tmp_path / "x.parquet").read_bytes()
    size = int.from_bytes(good[-8:-4], "little")
    rng, refused = random.Random(7), 0
    for _ in range(300):
        footer = bytearray(good[-8 - size : -8])
        for _ in range(rng.choice([1, 1, 4])):
            footer[rng.randrange(size)] = rng.randrange(256)
        (tmp_path / "y.parquet").write_bytes(good[: -8 - size] + footer + good[-8:])
        refused += any(isinstance(outcome, RecordError) for outcome in read_episodes([tmp_path / "y.parquet"]))
    assert refused > 50
