"""The file of an episode: every array as given, same episode same bytes."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from recorder_builders import header, recording
from safevla_recorder.episode import DTYPES, HEADER_FIELDS, check_recorded_numbers, encode_episode
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
