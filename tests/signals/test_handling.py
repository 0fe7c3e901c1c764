"""Signals of handling by hand-made cases and laws; the oracle agrees on random episodes (test_oracle.py)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import derive, episode, recording
from safevla_bench.signals import build_trace, missing_fields
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.trajectory.single_episode import from_recording

PLACES = {body: place for place, body in enumerate(recording().roles)}
TARGET = recording().header["target_object"]


def gripping(word: str, supported: str = ""):
    """An episode that grips its target where the word has a 1, and whose target is supported where that has one."""
    held = np.array([letter == "1" for letter in word])
    rests = np.array([[letter == "1"] for letter in supported or "1" * len(word)])
    return episode(
        len(word),
        gripper_contact=held,
        gripped_body=np.where(held, PLACES[TARGET], -1),
        supported_bodies=[PLACES[TARGET]],
        supported=rests,
    )


def events(name: str, batch) -> str:
    """The records of an event as 1, and those at which it is unknown as ?."""
    trace = build_trace(RecordFields(batch), [name])
    unknown = trace.unknown.get(name, np.zeros(len(trace.signals[name]), dtype=bool))
    return "".join("?" if lost else str(int(value)) for value, lost in zip(trace.signals[name], unknown, strict=True))


@pytest.mark.parametrize(
    ("grip", "grasped", "released"),
    [
        ("0001110000", "0001000000", "0000001000"),
        ("0010100111", "0000000100", "0000000000"),  # flicker
        ("1110011000", "0000000000", "0000000100"),  # held from the start; a gap of two records
        ("0001111100", "0001000000", "00000000?0"),  # the end is too short to decide
        ("0000000011", "00000000?0", "0000000000"),
        ("1111111111", "0000000000", "0000000000"),
        ("1", "0", "0"),
    ],
)
def test_a_change_counts_once_it_has_lasted_three_records_and_is_dated_to_the_first(grip, grasped, released):
    assert events("grasped", gripping(grip)) == grasped.ljust(len(grip), "0")
    assert events("released", gripping(grip)) == released


@given(st.text("01", min_size=1, max_size=30))
def test_grasps_and_releases_alternate_and_no_later_record_takes_one_back(word):
    whole = [events(name, gripping(word)) for name in ("grasped", "released")]
    order = sorted((t, name) for name, marks in zip("gr", whole, strict=True) for t, x in enumerate(marks) if x == "1")
    names = [name for _, name in order]
    assert all(a != b for a, b in itertools.pairwise(names))
    for end in range(1, len(word)):
        for name, marks in zip(("grasped", "released"), whole, strict=True):
            early = events(name, gripping(word[:end]))
            assert all(x in ("?", y) for x, y in zip(early, marks, strict=False)), (name, early, marks)


def test_what_is_held_is_lifted_and_put_down_as_its_support_goes_and_comes():
    batch = gripping("0001111111111111000", "1111100000001111111")
    assert events("lifted", batch) == "0000010000000000000"
    assert events("put_down", batch) == "0000000000001000000"
    assert events("released", batch) == "0000000000000000100"


def test_the_handled_target_is_the_one_that_was_held_last():
    roles = {"bowl": "target", "mug": "target", "hand": "robot"}
    gripped = np.array([-1, 1, 1, 1, -1, -1, 0, 0, 0, -1])
    batch = from_recording(
        recording(
            10,
            roles=roles,
            header={**recording().header, "target_object": "bowl"},
            pos_bodies=[0, 1],
            body_pos_m=np.tile([[[0.0, 0, 1], [0.0, 0, 2]]], (10, 1, 1)),
            quat_bodies=[],
            body_quat_wxyz=None,
            contacts=None,
            gripper_contact=gripped >= 0,
            gripped_body=gripped,
        )
    )
    assert derive(batch, "position_z(handled)").tolist() == [1, 2, 2, 2, 2, 2, 1, 1, 1, 1]
    assert derive(batch, "position_z(held)").tolist() == [1, 2, 2, 2, 1, 1, 1, 1, 1, 1]


def test_of_the_doors_that_the_end_effector_is_inside_the_least_open_counts():
    a, b = (PLACES[body] for body in list(PLACES)[:2])
    batch = episode(
        4,
        opening_bodies=[b, a],
        opening=np.array([[0.3, 0.9]] * 4),
        entered_bodies=[a, b],
        entered=np.array([[False, False], [True, False], [False, True], [True, True]]),
    )
    assert derive(batch, "entered").tolist() == [False, True, True, True]
    assert derive(batch, "entered_opening").tolist() == [1.0, 0.9, 0.3, 0.3]
    assert derive(batch, 'opening("*")').tolist() == [0.3] * 4
    assert derive(batch, f'opening("{next(iter(PLACES))}")').tolist() == [0.9] * 4


def test_an_opening_that_is_not_recorded_is_missing_and_not_taken_for_open():
    (first, a), (second, b), *_ = PLACES.items()
    inside = np.array([[False, False], [True, False]])
    listed = {"opening_bodies": [b], "opening": np.full((2, 1), 0.3), "entered_bodies": [a, b]}
    fields = RecordFields(episode(2, **listed, entered=inside))
    assert derive(fields.batch, "entered").tolist() == [False, True]
    for name, missing in {
        "entered": (),
        "entered_opening": ("opening of what is entered",),
        f"opening({first})": (f"opening of {first}",),
        f"opening({second})": (),
        'opening("*")': (),
        "opening(nothing)": (),
    }.items():
        assert tuple(missing_fields(fields, [name])) == missing, name
    other = RecordFields(episode(2, **listed, entered=inside[:, ::-1]))
    assert not missing_fields(other, ["entered_opening"])
    assert derive(other.batch, "entered_opening").tolist() == [1.0, 0.3]


@pytest.mark.parametrize("name", ["supported", "lifted", "put_down", "entered", "entered_opening", "opening(door)"])
def test_a_record_without_the_channels_lacks_them(name):
    fields = RecordFields(episode(5))
    assert any(fields.lacks_field(field).all() for field in SIGNALS[name].reads)
