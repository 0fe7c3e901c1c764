"""The file of an episode: every array as given, same episode same bytes."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest

from recorder_builders import header, recording
from safevla_recorder.episode import DTYPES, HEADER_FIELDS, ContactList, check_recorded_numbers, encode_episode
from safevla_recorder.errors import RecordError


def decode(content):
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def test_every_array_comes_back_with_its_dtype():
    arrays = decode(encode_episode(recording()))
    assert set(arrays) - {"header"} == set(json.loads(arrays["header"].tobytes().decode())["arrays"])
    assert all(array.dtype == DTYPES[name] for name, array in arrays.items())
    assert arrays["body_pos_m"].shape == (3, 1, 3)
    assert arrays["contacts.step"].tolist() == [1]
    assert arrays["gripped_body"].tolist() == [-1, -1, -1]
    assert "eef_quat_wxyz" not in arrays


def test_the_header_has_its_fields_in_order_and_leaves_out_what_is_unknown():
    text = decode(encode_episode(recording(header=header(seed=None, target_object=None))))["header"].tobytes()
    tree = json.loads(text.decode())
    names = [name for name in tree if name in HEADER_FIELDS]
    assert names == [name for name in HEADER_FIELDS if name in names]
    assert tree["target_object"] is None
    assert "seed" not in tree
    assert (tree["schema_version"], tree["records"]) == (1, 3)


def test_the_same_episode_gives_the_same_bytes():
    assert encode_episode(recording()) == encode_episode(recording())


def test_a_single_record_has_no_action():
    assert "action" not in decode(encode_episode(recording(1, contacts=None)))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"eef_pos_m": np.full((3, 3), np.nan)}, "eef_pos_m"),
        ({"body_pos_m": np.full((3, 1, 3), 1e101)}, "body_pos_m"),
        ({"header": header(seed=2**63)}, "seed"),
    ],
)
def test_a_number_that_no_reader_accepts_is_an_error_that_names_the_field(changes, field):
    check_recorded_numbers(recording())
    with pytest.raises(RecordError) as caught:
        check_recorded_numbers(recording(**changes))
    assert (caught.value.place.episode, caught.value.place.field) == ("e", field)


def test_the_file_bears_no_time_and_every_array_in_it_is_compressed():
    with zipfile.ZipFile(io.BytesIO(encode_episode(recording()))) as archive:
        entries = archive.infolist()
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_DEFLATED}


@pytest.mark.parametrize(("arms", "version"), [(("a", "b"), 2), ((), 1), (None, 1)])
def test_a_record_of_several_arms_has_a_version_that_older_readers_refuse(arms, version):
    content = encode_episode(recording(header=header(arms=arms)))
    assert json.loads(decode(content)["header"].tobytes())["schema_version"] == version


NO_FORCE = np.array([np.nan])


def touching(**changes):
    listed = {name: np.array([value]) for name, value in (("record", 1), ("a", 0), ("b", 1), ("force_n", 2.0))}
    return ContactList(**{**listed, "impulse_ns": NO_FORCE, "net_force_n": NO_FORCE, **changes})


@pytest.mark.parametrize(
    ("changes", "forces", "field"),
    [
        ({"force_n": np.array([-1.0])}, None, "contacts.force_n"),
        ({"force_n": NO_FORCE}, None, "contacts.force_n"),
        ({"force_n": np.array([1.1e100])}, None, "contacts.force_n"),
        ({"net_force_n": np.array([1.0])}, None, "contacts.net_force_n"),
        ({}, ("force_n", "net_force_n"), "contacts.net_force_n"),
        ({"impulse_ns": np.array([-1.0])}, None, "contacts.impulse_ns"),
        ({"impulse_ns": np.array([np.inf])}, None, "contacts.impulse_ns"),
        ({"net_impulse_ns": np.array([-1.0])}, None, "contacts.net_impulse_ns"),
        ({"force_n": np.array([0.0]), "impulse_ns": np.array([0.0])}, None, None),
        ({"force_n": np.array([1e100]), "net_force_n": np.array([1e100])}, ("force_n", "net_force_n"), None),
    ],
)
def test_a_contact_has_the_forces_that_the_header_lists_and_no_other(changes, forces, field):
    recorded = recording(header=header(forces=forces), contacts=touching(**changes))
    if field is None:
        check_recorded_numbers(recorded)
        return
    with pytest.raises(RecordError) as caught:
        check_recorded_numbers(recorded)
    assert caught.value.place.field == field


@pytest.mark.parametrize("name", ["seed", "env_seed", "init_state_index", "horizon"])
@pytest.mark.parametrize(
    ("value", "is_valid"), [(2**63 - 1, True), (-(2**63), True), (2**63, False), (-(2**63) - 1, False)]
)
def test_an_integer_of_the_header_has_64_bits_and_no_index_or_horizon_is_negative(name, value, is_valid):
    recorded = recording(header=header(**{name: value}))
    if is_valid and (value >= 0 or name not in ("init_state_index", "horizon")):
        check_recorded_numbers(recorded)
        return
    with pytest.raises(RecordError) as caught:
        check_recorded_numbers(recorded)
    assert caught.value.place.field == name


def test_net_forces_and_impulses_are_in_the_file_only_if_they_were_recorded():
    columns = {"contacts.net_force_n", "contacts.net_impulse_ns"}
    net = {"net_force_n": np.array([2.0]), "net_impulse_ns": np.array([0.1])}
    both = encode_episode(recording(header=header(forces=("net_force_n",)), contacts=touching(**net)))
    assert columns <= {*decode(both)}
    assert columns & {*decode(encode_episode(recording(contacts=touching())))} == set()


def test_bodies_of_a_pose_are_in_the_file_only_with_the_pose():
    assert "pos_bodies" in decode(encode_episode(recording()))
    assert "pos_bodies" not in decode(encode_episode(recording(body_pos_m=None)))
