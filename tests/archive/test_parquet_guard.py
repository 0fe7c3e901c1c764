"""A Parquet file's statements of its sizes are checked before pyarrow allocates memory for it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import contacts, episode
from safevla_bench.archive import open_archive, parquet_guard, read_episodes, write_archive
from safevla_bench.archive.parquet_guard import MalformedError, RowGroup, read_struct, read_table
from safevla_bench.archive.parquet_rows import SCHEMA, to_table
from safevla_bench.errors import RecordError

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
def test_a_file_of_empty_lists_is_refused_before_room_is_made_for_them(tmp_path, column):
    path = tmp_path / "x.parquet"
    with_empty_lists(path, column, 40_000_000)
    assert path.stat().st_size < 1 << 17
    code = (
        "import sys; from pathlib import Path; from safevla_bench import archive;"
        "print(*archive.read_episodes([Path(sys.argv[1])]));"
        "print([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
    )
    process = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    message, _, most_kib = process.stdout.strip().rpartition("\n")
    assert "values are said to stand in" in message
    assert int(most_kib) < 200 * 1024


def test_a_text_that_stands_for_many_is_counted_as_often(tmp_path, monkeypatch):
    rows = table()
    long = pa.table(
        [pa.array(["x" * 1_000_000] * 50) if name == "instruction" else pa.concat_arrays([rows[name].chunk(0)] * 50)
         for name in rows.schema.names],
        schema=rows.schema,
    )  # fmt: skip
    pq.write_table(long, tmp_path / "x.parquet", store_schema=False)  # with a dictionary: the text stands there once
    monkeypatch.setattr("safevla_bench.archive.record_schema.MAX_EPISODE_BYTES", 10_000_000)
    outcomes = list(read_episodes([tmp_path / "x.parquet"]))
    assert all(isinstance(problem, RecordError) for problem in outcomes)
    assert "holds more than" in str(outcomes[0])


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_many_texts_of_a_dictionary_are_counted_by_the_longest_and_not_by_all_of_them(compression):
    """20,000 names of a megabyte in all: the whole of it for each would be 20 GB."""
    names = pa.table({"name": [f"scripted:hasty/libero-object/task_{k % 10}/ep_{k:05d}" for k in range(20_000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(names, sink, compression=compression)
    assert read_table(bytes(sink.getvalue())).equals(names)


def test_a_dictionary_of_millions_of_empty_texts_is_refused_before_all_are_looked_at(tmp_path):
    """Sixteen MiB of zeros are four million entries without a letter; two such pages are too large."""
    content = pa.compress(bytes(1 << 24), codec="zstd", asbytes=True)
    header, path = b"\x15\x04\x15" + _varint(2 << 24) + b"\x15" + _varint(2 * len(content)) + b"\x00", tmp_path / "x"
    path.write_bytes((header + content) * 2)
    column = {1: 6, 4: 6, 5: 1, 9: 0}
    with path.open("rb") as stream:
        group = RowGroup(stream, path.stat().st_size, 1, (column,))
        with pytest.raises(RecordError, match="holds more than"):
            group.check_pages()


def _varint(number: int) -> bytes:
    """A number as Thrift's compact protocol has it."""
    return bytes([number & 0x7F | 0x80, *_varint(number >> 7)]) if number >= 0x80 else bytes([number])


def test_texts_as_differences_are_refused(tmp_path):
    options = {"use_dictionary": False, "column_encoding": {"instruction": "DELTA_BYTE_ARRAY"}}
    pq.write_table(table(), tmp_path / "x.parquet", store_schema=False, **options)
    with pytest.raises(RecordError, match="written as differences"):
        open_archive(tmp_path / "x.parquet")


@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0"}, {"compression": "none"}, {"data_page_size": 64}])
def test_files_of_other_writers_are_read(tmp_path, options):
    pq.write_table(table(), tmp_path / "x.parquet", **options)
    assert len(open_archive(tmp_path / "x.parquet")) == 1


def test_what_is_written_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_guard, "FREE_VALUES", -1_000_000_000)
    with pytest.raises(RecordError, match="values are said to stand in"):
        write_archive(tmp_path / "x.parquet", episode(3000, contacts=contacts()))
    assert not (tmp_path / "x.parquet").exists()


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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x19",
        b"\x19\xfc\xff\xff\xff\xff\x0f",
        b"\x1c" * 100,
        b"\x15" + b"\xff" * 12,
        b"\x18\xff\xff\x7f",
        b"\x1d\x00",
        b"\x10\x00",
        b"\x19" * 100,
        b"\x15" + b"\xff" * 12 + b"\x00",
        b"\x19\x25\x02\x00"[:3],
    ],
)
def test_what_is_not_a_description_is_malformed(content):
    with pytest.raises(MalformedError):
        read_struct(content, {1: {}, 4: {}})
    with pytest.raises(MalformedError):
        read_struct(content, {})


def test_wanted_numbers_and_structs_are_read_and_the_rest_is_skipped():
    content = b"\x15\x54\x18\x02hi\x19\x35\x02\x04\x06\x11\x12\x1c\x15\x01\x00\x00"
    names = {1: {}, 2: {}, 3: {}, 4: {}, 5: {}, 6: {1: {}}}
    assert read_struct(content, names) == ({1: 42, 2: None, 3: None, 4: 1, 5: 0, 6: {1: -1}}, len(content))
    assert read_struct(content, {6: {}}) == ({6: {}}, len(content))
    assert read_struct(content, {}) == ({}, len(content))
