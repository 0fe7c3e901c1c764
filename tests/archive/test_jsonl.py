"""The JSON form: bit-exact round trips, and refusals that name the place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import episode, recordings, same_bits
from safevla_bench.archive import append, open_archive
from safevla_bench.archive.json_text import decode_json, encode_json
from safevla_bench.archive.record_schema import schema
from safevla_bench.errors import CollectedError, RecordError
from safevla_bench.trajectory.batch import Batch, concatenate_batches
from safevla_bench.trajectory.single_episode import from_recording

SUFFIXES = [".jsonl", ".jsonl.gz", ".jsonl.zst"]
APPENDIX_B = Path(__file__).parents[1] / "cases" / "appendix_b.json"


@given(recordings().map(from_recording))
def test_a_record_round_trips_bit_for_bit(batch: Batch):
    assert same_bits(decode_json(encode_json(batch)), batch)


@given(recordings().map(from_recording))
def test_the_text_is_strict_json_that_any_reader_takes(batch: Batch):
    json.loads(encode_json(batch), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(batches=st.lists(recordings(), min_size=1, max_size=3))
def test_files_round_trip_and_repeat_their_bytes(tmp_path_factory, suffix, batches):
    folder = tmp_path_factory.mktemp("archive")
    named = [from_recording(one) for one in batches]
    named = [rename(batch, f"e{k}") for k, batch in enumerate(named)]
    for name in ("one", "two"):
        for batch in named:
            append(folder / f"{name}{suffix}", batch)
    assert same_bits(open_archive(folder / f"one{suffix}"), concatenate_batches(named))
    assert (folder / f"one{suffix}").read_bytes() == (folder / f"two{suffix}").read_bytes()


def rename(batch: Batch, name: str) -> Batch:
    text = json.loads(encode_json(batch))
    return decode_json(json.dumps({**text, "episode_id": name}).encode())


def test_appendix_b_is_read_as_it_stands():
    batch = open_archive(APPENDIX_B)
    assert batch.headers[0].episode_id == "libero-spatial/task_0/ep_000"
    assert batch.body_roles(0) == {
        "panda_link7": "robot",
        "black_bowl": "target",
        "plate": "bystander",
        "table": "furniture",
    }
    assert batch.contacts.force_n.tolist() == [12.4]


def plain() -> dict:
    return json.loads(encode_json(episode(3)))


def altered(change) -> bytes:
    tree = plain()
    change(tree)
    return json.dumps(tree).encode()


def remove(*path):
    def change(tree):
        for key in path[:-1]:
            tree = tree[key]
        del tree[path[-1]]

    return change


def put(value, *path):
    def change(tree):
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value

    return change


REFUSED = {
    "malformed": (b'{"episode_id": "x", ', None, None, "malformed JSON at column"),
    "not an object": (b"[1]", None, None, "an episode is a JSON object"),
    "not UTF-8": (b'{"episode_id": "\xff"}', None, None, "not UTF-8 at byte"),
    "NaN": (altered(put(float("nan"), "dt")), None, "dt", "NaN is not a JSON number"),
    "too large a number": (
        encode_json(episode(3)).replace(b'"dt":0.05', b'"dt":1e999'),
        None,
        "dt",
        "dt is inf",
    ),
    "a repeated key": (b'{"episode_id": "x", "dt": 1, "dt": 2}', None, "dt", "the key 'dt' is repeated"),
    "nested too deeply": (b'{"a":' * 100_000, None, None, "nested too deeply"),
    "half a surrogate pair": (b'{"episode_id": "\\ud800"}', None, "episode_id", "surrogate"),
    "a missing field": (altered(remove("dt")), None, None, "missing required field `dt`"),
    "a wrong type": (altered(put("x", "steps", 1, "gripper_contact")), 1, "gripper_contact", "Expected `bool`"),
    "an unknown role": (
        altered(put("lamp", "body_roles", "plate")),
        None,
        "body_roles.plate",
        "Invalid enum value 'lamp'",
    ),
    "no steps": (altered(put([], "steps")), None, "steps", "length >= 1"),
    "a family in some steps only": (altered(remove("steps", 1, "contacts")), 1, "contacts", "is missing from step 1"),
    "a body in some steps only": (
        altered(remove("steps", 2, "body_pos_m", "plate")),
        2,
        "body_pos_m.plate",
        "in some steps only",
    ),
    "a pose without a role": (altered(remove("body_roles", "plate")), 0, "body_pos_m.plate", "'plate' has no role"),
    "a contact without a role": (
        altered(put([{"a": "cup", "b": "plate", "force_n": 1}], "steps", 1, "contacts")),
        1,
        "contacts[0].a",
        "'cup' has no role",
    ),
    "a negative force": (
        altered(put([{"a": "bowl", "b": "plate", "force_n": -1}], "steps", 1, "contacts")),
        1,
        "contacts[0].force_n",
        ">= 0",
    ),
    "steps out of order": (altered(put(5, "steps", 1, "t")), 1, "t", "t is 5, expected 1"),
    "torques of unequal length": (
        altered(put([1.0], "steps", 1, "joint_torque_nm")),
        1,
        "joint_torque_nm",
        "1 numbers",
    ),
    "an action in record 0": (altered(put([0.0], "steps", 0, "action")), 0, "action", "record 0 has an action"),
    "an infinite host field": (
        encode_json(episode(3)).replace(b'"dt":0.05', b'"dt":0.05,"mine":1e999'),
        None,
        "mine",
        "host-specific field",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_bad_line_is_refused_with_file_line_and_place(tmp_path, fault):
    line, step, field, problem = REFUSED[fault]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n" + line + b"\n")
    with pytest.raises(RecordError) as raised:
        open_archive(path)
    error = raised.value
    assert problem in str(error)
    assert (error.place.file, error.place.line) == (str(path), 2)
    assert (error.place.step, error.place.field) == (step, field)
    assert error.remedy


def test_an_error_in_a_broken_line_still_names_the_episode(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"episode_id": "libero/x", "dt": ')
    with pytest.raises(RecordError, match="libero/x"):
        open_archive(path)


def test_every_bad_episode_is_listed(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"{}\n" + encode_json(episode(3)) + b"[]\n")
    with pytest.raises(CollectedError) as raised:
        open_archive(path)
    assert [error.place.line for error in raised.value.errors] == [1, 3]


def test_a_repeated_episode_id_is_refused(tmp_path):
    path = tmp_path / "twice.jsonl"
    path.write_bytes(encode_json(episode(3)) * 2)
    with pytest.raises(RecordError, match="the episode_id is repeated by policy 'test'"):
        open_archive(path)


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_a_file_cut_off_is_an_error_not_fewer_episodes(tmp_path, suffix):
    path = tmp_path / f"cut{suffix}"
    append(path, episode(30))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RecordError, match="cut off"):
        open_archive(path)


def test_an_empty_archive_is_an_error(tmp_path):
    path = tmp_path / "none.jsonl"
    path.write_bytes(b"")
    with pytest.raises(RecordError, match="no episodes"):
        open_archive(path)


def test_an_unknown_form_is_refused_by_name(tmp_path):
    with pytest.raises(RecordError, match=r"\.jsonl\.zst"):
        open_archive(tmp_path / "x.csv")


def test_the_schema_describes_what_is_written():
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(plain())
    assert not validator.is_valid({**plain(), "dt": -1})
