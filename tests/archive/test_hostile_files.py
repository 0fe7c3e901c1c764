"""Damaged and hostile files of every form: a typed error with the place and a remedy, and never other episodes."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import BOWL, HAND, contacts, episode, same_bits
from safevla_bench.archive import open_archive, read_episodes, write_archive
from safevla_bench.errors import RecordError
from safevla_bench.trajectory.batch import Batch

ID = "libero-goal/task_8/ep_000"
HOST_FIELDS = {"header": {"note": 1}, "steps": {"1": {"rgb": [1, 2.5]}}, "contacts": {"0": {"geom": "g"}}}


def plain() -> Batch:
    return episode(
        3,
        contacts=contacts((1, HAND, BOWL, 3.0), (1, BOWL, HAND, 4.0)),
        gripped_body=np.array([-1, BOWL, BOWL]),
        extra=HOST_FIELDS,
    )


def damaged(rng: random.Random, good: bytes) -> bytes:
    """The bytes cut off, with a bit turned over, or with some replaced, added or lost."""
    at = rng.randrange(len(good))
    match rng.randrange(3):
        case 0:
            return good[:at]
        case 1:
            return good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :]
    return good[:at] + rng.randbytes(rng.randrange(20)) + good[at + rng.randrange(20) :]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".jsonl.gz", ".jsonl.zst"])
def test_a_damaged_file_is_a_typed_error_or_harmless_and_never_another_episode(tmp_path, suffix):
    path, rng = tmp_path / f"x{suffix}", random.Random(5)
    write_archive(path, plain())
    good, refused = path.read_bytes(), 0
    for _ in range(400):
        path.write_bytes(damaged(rng, good))
        for outcome in read_episodes([path]):
            if isinstance(outcome, RecordError):
                refused += 1
                assert outcome.place.file == str(path)
                assert outcome.remedy
            else:
                assert same_bits(outcome, plain())
    assert refused > 250


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".json", ".jsonl.gz"])
def test_a_folder_or_a_missing_file_under_the_name_is_a_typed_error(tmp_path, suffix):
    (tmp_path / f"x{suffix}").mkdir()
    for name in ("x", "y"):
        with pytest.raises(RecordError, match=r"No such|Is a"):
            open_archive(tmp_path / f"{name}{suffix}")


# NPZ


def members(path: Path) -> dict[str, np.ndarray]:
    write_archive(path, plain())
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays}


def saved(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Whatever the arrays are, with a header that names them."""
    if "header" in arrays and arrays["header"].tobytes().startswith(b"{"):
        header = {**json.loads(arrays["header"].tobytes()), "arrays": sorted(arrays.keys() - {"header"})}
        arrays = {**arrays, "header": text(header)}
    np.savez(path, **arrays)


def text(tree: object) -> np.ndarray:
    return np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)


def with_header(**changes: object):
    return lambda arrays: {"header": text({**json.loads(arrays["header"].tobytes()), **changes})}


def with_extra(extra: object):
    return lambda arrays: {"extra": text(extra)}


NPZ = {
    "a type too small": (lambda a: {"eef_pos_m": a["eef_pos_m"].astype("f4")}, "eef_pos_m", "the type is <f4"),
    "the other byte order": (lambda a: {"eef_pos_m": a["eef_pos_m"].astype(">f8")}, "eef_pos_m", "the type is >f8"),
    "integers for truths": (lambda a: {"gripper_contact": np.ones(3, "i8")}, "gripper_contact", "the type is <i8"),
    "a byte that is no truth": (
        lambda a: {"gripper_contact": np.array([0, 1, 2], "u1").view("?")},
        "gripper_contact",
        "other than 0 or 1",
    ),
    "objects": (
        lambda a: {"eef_pos_m": np.array([{}, None, "x"], dtype=object)},
        "eef_pos_m",
        "not a plain NumPy array",
    ),
    "texts": (lambda a: {"header": np.array("x" * 9)}, "header", "the type is <U9"),
    "another shape": (lambda a: {"eef_pos_m": np.ones((3, 2))}, "eef_pos_m", r"the shape is \[3, 2\]"),
    "bodies as a table": (lambda a: {"pos_bodies": np.ones((3, 1), "i8")}, "pos_bodies", "one index per body"),
    "a body beyond the table": (lambda a: {"pos_bodies": np.array([0, 1, 5])}, "pos_bodies", "5 is not between 0"),
    "a body twice": (lambda a: {"pos_bodies": np.array([0, 1, 0])}, "pos_bodies", "a body is repeated"),
    "something below nothing gripped": (
        lambda a: {"gripped_body": np.array([0, -2, 0])},
        "gripped_body",
        "-2 is not between -1",
    ),
    "a contact beyond the end": (lambda a: {"contacts.step": np.array([1, 3])}, "contacts.step", "3 is not between"),
    "contacts out of order": (lambda a: {"contacts.step": np.array([1, 0])}, "contacts.step", "not sorted by step"),
    "columns of two lengths": (lambda a: {"contacts.force_n": np.ones(3)}, "contacts", "differ in length"),
    "a column that is a number": (lambda a: {"contacts.force_n": np.array(1.0)}, "contacts", "not a list of numbers"),
    "not a number": (lambda a: {"contacts.force_n": np.array([1, np.nan])}, "contacts[1].force_n", "not a finite"),
    "an unknown array": (lambda a: {"rgb": np.ones(3)}, "rgb", "the format has no array"),
    "an empty header": (lambda a: {"header": np.empty(0, "u1")}, "header", "malformed JSON"),
    "a header that is a list": (lambda a: {"header": text([])}, "header", "a JSON object is required"),
    "no records": (with_header(records=0), "records", "a whole number >= 1 is expected"),
    "records without end": (with_header(records=10**9), "records", "<= 1000000"),
    "an unknown field": (with_header(mine=1), None, "unknown key 'mine'"),
    "host fields as a list": (with_extra([]), None, "a JSON object is required"),
    "host fields of another level": (with_extra({"top": {}}), "extra", "only header, steps and contacts"),
    "host fields over the schema's": (with_extra({"header": {"dt": 9}}), "extra", "'dt' is a field of the schema"),
    "host fields of no step": (with_extra({"steps": {"3": {"x": 1}}}), "extra", "steps has no '3'"),
    "host fields of step ²": (with_extra({"steps": {"²": {"x": 1}}}), "extra", "steps has no '²'"),
    "host fields of no contact": (with_extra({"contacts": {"2": {"x": 1}}}), "extra", "contacts has no '2'"),
    "host fields that are none": (with_extra({"steps": {"0": 3}}), "extra", "must be an object"),
    "steps that are none": (with_extra({"steps": 3}), "extra", "steps must be an object"),
    "an infinite host field": (
        lambda a: {"extra": np.frombuffer(b'{"header": {"x": [1e999]}}', "u1")},
        "extra",
        "not a finite number",
    ),
}


@pytest.mark.parametrize("fault", NPZ)
def test_a_faulty_npz_file_is_refused_at_its_place(tmp_path, fault):
    change, field, problem = NPZ[fault]
    path = tmp_path / "x.npz"
    arrays = members(path)
    saved(path, {**arrays, **change(arrays)})
    with pytest.raises(RecordError, match=problem) as raised:
        open_archive(path)
    assert (raised.value.place.file, raised.value.place.field) == (str(path), field)
    assert raised.value.remedy


@pytest.mark.parametrize("lost", ["pos_bodies", "body_pos_m", "contacts.a", "header"])
def test_an_array_that_another_needs_is_missed(tmp_path, lost):
    arrays = members(tmp_path / "x.npz")
    saved(tmp_path / "x.npz", {name: array for name, array in arrays.items() if name != lost})
    with pytest.raises(RecordError, match=r"go together|is missing"):
        open_archive(tmp_path / "x.npz")


def test_an_array_that_was_lost_does_not_look_as_if_never_recorded(tmp_path):
    arrays = members(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", **{name: array for name, array in arrays.items() if name != "gripper_contact"})
    with pytest.raises(RecordError, match="does not list the file's arrays"):
        open_archive(tmp_path / "x.npz")


def test_arrays_in_the_other_memory_order_and_compressed_by_numpy_are_read(tmp_path):
    arrays = members(tmp_path / "x.npz")
    np.savez_compressed(tmp_path / "x.npz", **{name: np.asfortranarray(array) for name, array in arrays.items()})
    assert same_bits(open_archive(tmp_path / "x.npz"), plain())


@contextmanager
def little_memory(limit: int) -> Iterator[None]:
    """What is done inside takes less than so many bytes at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def npy(shape: str, content: bytes = b"") -> bytes:
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content


@pytest.mark.parametrize(
    "shape", ["(10**15,)", "(1000000000000000,)", "(-1, 3)", "(3,", "'x'", "(2, 99999999)", "(1.5,)"]
)
def test_a_header_of_numpy_cannot_ask_for_memory_that_nothing_fills(tmp_path, shape):
    write_archive(tmp_path / "x.npz", plain())
    with zipfile.ZipFile(tmp_path / "x.npz") as good, zipfile.ZipFile(tmp_path / "y.npz", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, npy(shape, b"\0" * 16) if name == "eef_pos_m.npy" else good.read(name))
    with little_memory(1 << 20), pytest.raises(RecordError) as raised:
        open_archive(tmp_path / "y.npz")
    assert raised.value.place.field == "eef_pos_m"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_given_twice_is_refused(tmp_path):
    write_archive(tmp_path / "x.npz", plain())
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("action.npy", npy("(0,)"))
    with pytest.raises(RecordError, match="array 'action'"):
        open_archive(tmp_path / "x.npz")


# Parquet


def rows(path: Path) -> pa.Table:
    write_archive(path, plain())
    return pq.read_table(path)


def put(column: str, value: object):
    """The column with another value, of the same type."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(column)
        return table.set_column(at, column, pa.array([value], table.schema.field(column).type))

    return change


def net_impulses(*rows: list[float]):
    """The rows of the net impulses of an episode with one contact, in step 1."""

    def change(table: pa.Table) -> pa.Table:
        touching = put("contacts", [[], [contact()], []])(table)
        return touching.append_column("net_impulse_ns", pa.array([list(rows)], pa.list_(pa.list_(pa.float64()))))

    return change


def typed(column: str, value: object):
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.schema.get_field_index(column), column, pa.array([value]))

    return change


def contact(**changes: object) -> dict[str, object]:
    return {"a": 1, "b": 2, "force_n": 1.0, "impulse_ns": None, **changes}


def body(name: str | None, role: str | None = "robot") -> dict[str, object]:
    return {"name": name, "role": role}


PARQUET = {
    "a column lost": (lambda t: t.drop_columns(["dt"]), None, "dt", "the column 'dt' is missing"),
    "an unknown column": (lambda t: t.append_column("mine", [[1]]), None, "mine", "expected no such column"),
    "a column twice": (lambda t: t.append_column("dt", [[0.1]]), None, "dt", "the column is repeated"),
    "another type": (typed("dt", "0.05"), None, "dt", "the column has the type string"),
    "a family of another depth": (typed("eef_pos_m", [0.5]), None, "eef_pos_m", "expected list"),
    "no id": (put("episode_id", None), None, None, "the key 'episode_id' is missing"),
    "no records": (put("records", None), None, "records", "a whole number is expected, not null"),
    "records without end": (put("records", 2**62), None, "records", "<= 1000000"),
    "a body without a name": (put("bodies", [body(None)]), None, "bodies", "null or repeated"),
    "a body that is null": (put("bodies", [None]), None, "bodies", "null or repeated"),
    "a body without a role": (put("bodies", [body("x", None)]), None, "body_roles.x", "text is expected, not null"),
    "a body twice": (put("bodies", [body("x"), body("x")]), None, "bodies", "null or repeated"),
    "a version twice": (put("versions", [{"key": "a", "value": "1"}] * 2), None, "versions", "null or repeated"),
    "a pair of three": (put("dropped_pairs", [["a", "b", "c"]]), None, "dropped_pairs[0]", "length 2"),
    "a null in a family": (put("eef_pos_m", [[0.0, 0.0, None]] * 3), None, "eef_pos_m", "a value is null"),
    "a null for a step": (put("eef_pos_m", [None] * 3), None, "eef_pos_m", "a value is null"),
    "steps of two widths": (
        put("joint_torque_nm", [[0.0], [0.0], [0.0, 1.0]]),
        2,
        "joint_torque_nm",
        "2 values, but 1",
    ),
    "bodies of two widths": (
        put("body_pos_m", [[[0.0] * 3] * 3, [[0.0] * 3, [0.0] * 2, [0.0] * 3], [[0.0] * 3] * 3]),
        1,
        "body_pos_m",
        "2 values, but 3 in step 0",
    ),
    "another width": (put("eef_pos_m", [[0.0] * 2] * 3), None, "eef_pos_m", r"the shape is \[3, 2\]"),
    "not a number": (put("eef_pos_m", [[0.0] * 3, [0.0, float("nan"), 0.0], [0.0] * 3]), 1, "eef_pos_m[1]", "nan"),
    "poses of nobody": (put("pos_bodies", None), None, "body_pos_m", "go together"),
    "a foreign body": (put("pos_bodies", [0, 1, 7]), None, "pos_bodies", "7 is not between"),
    "a negative place": (put("gripped_body", [0, -1, None]), None, "gripped_body", "an index is negative"),
    "a place beyond": (put("gripped_body", [0, 9, None]), None, "gripped_body", "9 is not between"),
    "contacts of fewer steps": (put("contacts", [[]]), None, "contacts", "1 steps, expected 3"),
    "contacts that are null": (put("contacts", [[], None, []]), None, "contacts", "a value is null"),
    "a contact of nobody": (put("contacts", [[], [contact(a=None)], []]), None, "contacts.a", "a value is null"),
    "a contact of a foreigner": (put("contacts", [[], [contact(b=5)], []]), None, "contacts.b", "5 is not between"),
    "a force below zero": (put("contacts", [[], [contact(force_n=-1.0)], []]), 1, "contacts[0].force_n", "negative"),
    "an impulse that is no number": (
        put("contacts", [[], [contact(impulse_ns=float("nan"))], []]),
        None,
        "contacts.impulse_ns",
        "nan is not a finite number",
    ),
    "net impulses of fewer contacts": (net_impulses([], [], []), None, "net_impulse_ns", "number of values"),
    "a net impulse that is no number": (
        net_impulses([], [float("nan")], []),
        None,
        "net_impulse_ns",
        "nan is not a finite number",
    ),
    "host fields that are no JSON": (put("extra", "{"), None, None, "malformed JSON"),
    "host fields of no step": (put("extra", '{"steps": {"9": {"x": 1}}}'), None, "extra", "steps has no '9'"),
}


@pytest.mark.parametrize("fault", PARQUET)
def test_a_faulty_parquet_file_is_refused_at_its_place(tmp_path, fault):
    change, step, field, problem = PARQUET[fault]
    path = tmp_path / "x.parquet"
    pq.write_table(change(rows(path)), path)
    with pytest.raises(RecordError, match=problem) as raised:
        open_archive(path)
    place = raised.value.place
    assert (place.file, place.step, place.field) == (str(path), step, field)
    assert place.episode in (ID, None)
    assert raised.value.remedy


def test_a_text_that_is_not_utf_8_spares_the_other_rows(tmp_path):
    path = tmp_path / "x.parquet"
    table = rows(path)
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    good = put("episode_id", "other")(table)
    pq.write_table(pa.concat_tables([table.set_column(1, "episode_id", broken), good]), path)
    outcomes = list(read_episodes([path]))
    assert isinstance(outcomes[0], RecordError)
    assert "not UTF-8" in str(outcomes[0])
    assert isinstance(outcomes[1], Batch)


def test_a_column_of_a_family_may_be_absent(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(rows(path).drop_columns(["sim_state", "gripper_contact", "extra"]), path)
    assert not open_archive(path).gripper_contact.present[0]


# Limits of texts


def line(rest: str) -> bytes:
    head = '{"episode_id":"x","benchmark":"b","task_id":"t","success":true,"dt":0.05,"target_object":null,'
    return f'{head}"body_roles":{{}},"steps":[{{"t":0}}],"mine":{rest}}}\n'.encode()


def test_a_file_of_empty_lines_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("safevla_bench.archive.jsonl.MAX_BLANK_LINES", 1000)
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(line("0") + b"\n" * 100_000))
    good, bad = read_episodes([path])
    assert len(good) == 1
    assert "lines are empty" in str(bad)


def test_a_file_of_bad_lines_is_not_told_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("safevla_bench.archive.record_schema.MAX_BAD_LINES", 100)
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(line("0") + b"0\n" * 1_000_000))
    outcomes = list(read_episodes([path]))
    assert len(outcomes) == 102
    assert outcomes[-1].place.file == str(path)
    assert "rest is not" in str(outcomes[-1])
