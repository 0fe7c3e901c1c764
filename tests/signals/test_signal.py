"""Rules of every derived signal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import BOWL, DRAWER, HAND, contacts, episode, recordings
from safevla_bench.signals import build_trace, derive_signals, describe_missing, missing_fields
from safevla_bench.signals import signal as signals
from safevla_bench.signals.signal import SIGNALS, RecordFields, signal
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_bench.trajectory.marks import SINGLE
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import add_header_field


@given(st.builds(from_recording, recordings()))
def test_no_signal_is_ever_a_negative_zero(batch):
    """Values reach outputs as they are, and -0.0 there reads like a violation."""
    for fields in RecordFields(batch).views(SIGNALS):
        for name, values in derive_signals(fields, SIGNALS).items():
            assert values.dtype == np.bool_ or not (np.signbit(values) & (values == 0)).any(), name


@given(st.builds(from_recording, recordings()))
def test_a_signal_that_returns_negative_zeros_is_given_without_them(batch):
    registered = dict(SIGNALS)
    try:

        @signal(unit="1", reads=())
        def negated_nothing(fields):
            """Minus zero."""
            return -np.zeros(int(fields.batch.starts[-1]))

        assert not np.signbit(derive_signals(batch, ["negated_nothing"])["negated_nothing"]).any()
    finally:
        signals._REGISTERED.pop("negated_nothing", None)
    assert dict(SIGNALS) == registered


def test_a_rate_is_as_exact_as_the_stamps_and_any_signal_as_the_fields_that_it_reads():
    stored = [[], ["time_s"], ["body_pos_m"], ["wrist_force_n"]]
    parts = [episode(12, extra=add_header_field({}, SINGLE, names)) for names in stored]
    names = ["eef_speed", "target_obj_speed", "target_height", "held_object_tilt"]
    trace = build_trace(RecordFields(concatenate_batches(parts)), names)
    assert {name: single.tolist() for name, single in trace.single.items()} == {
        "eef_speed": [False, True, False, False],
        "target_obj_speed": [False, True, True, False],
        "target_height": [False, False, True, False],
    }


@pytest.mark.parametrize(
    ("name", "is_signal"),
    [
        ("grip", True),
        ("tilt(held)", True),
        ("tilt", False),
        ("grip(held)", False),
        ("nothing", False),
        ("nearness(eef)", False),
        (3, False),
    ],
)
def test_a_name_is_a_signal_if_it_is_registered_or_a_call_of_a_form(name, is_signal):
    assert (name in SIGNALS) == is_signal


@pytest.mark.parametrize("name", ["tilt", "tilt(held", "nearness(eef)", "nothing"])
def test_a_name_of_no_signal_is_not_found(name):
    with pytest.raises(KeyError):
        SIGNALS[name]


def test_a_table_of_signals_counts_the_registered_ones_and_has_the_first_line_of_each_docstring():
    assert len(SIGNALS) == len(list(SIGNALS))
    assert SIGNALS["grip"].meaning == "True while the gripper holds a target."


def test_a_trace_has_stamps_if_an_episode_has_them_and_no_unknown_values_if_all_are_known():
    stamped = episode(3, further={"time_s": np.array([0.0, 0.1, 0.3])})
    plain, both = (build_trace(RecordFields(concatenate_batches(parts)), ["eef_speed", "target_height"])
                   for parts in ([episode(2)], [episode(2), stamped]))  # fmt: skip
    assert plain.time_s is None
    np.testing.assert_array_equal(both.time_s, [np.nan, np.nan, 0.0, 0.1, 0.3])
    assert (dict(plain.unknown), dict(both.unknown)) == ({}, {})


def test_a_pose_that_is_marked_as_unknown_makes_signals_of_poses_unknown_there_and_no_others():
    known = np.array([[True], [True], [False]])
    lost = episode(3, gripper_contact=np.ones(3, dtype=bool), valid_bodies=[BOWL], pose_valid=known)
    trace = build_trace(RecordFields(concatenate_batches([episode(2), lost])), ["target_height", "grip", "wrist_force"])
    assert {name: records.tolist() for name, records in trace.unknown.items()} == {
        "target_height": [False, False, False, False, True]
    }


def test_an_impulse_is_missing_if_a_contact_after_record_0_lacks_it():
    at_start, later = (episode(3, contacts=contacts((record, HAND, DRAWER, 2.0))) for record in (0, 1))
    batch = concatenate_batches([at_start, later, at_start])
    assert [where.tolist() for where in missing_fields(batch, ["largest_strike"]).values()] == [[False, True, False]]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("body_pos_m", "body_pos_m is missing"),
        (
            "body_pos_m of the held target",
            "the held target is unknown, or body_pos_m lacks it (see target_object, body_roles and gripped_body)",
        ),
        ("body_pos_m of stove*", "no pose of stove* is recorded"),
        ("body_quat_wxyz of mug", "no orientation of mug is recorded"),
        ("body_shapes of eef", "no shape of eef is recorded"),
        ("opening of door", "no opening of door is recorded"),
    ],
)
def test_a_missing_field_is_named_and_one_of_a_place_with_the_place(field, text):
    assert describe_missing(field) == text
