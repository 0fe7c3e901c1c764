"""A batch is its episodes: concatenating and selecting lose and change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import BOWL, ROLES, contacts, episode, header, recording, recordings, same_bits
from safevla_bench.errors import RecordError, SafevlaError
from safevla_bench.trajectory.batch import batch_of_headers, concatenate_batches, elapsed_seconds, select_episodes
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.marks import SINGLE
from safevla_bench.trajectory.single_episode import (
    add_rows,
    empty_batch,
    from_recording,
    iterate_records,
    join_records,
    select_record,
    to_recording,
)
from safevla_recorder.channels import NUMERIC, POSES, ROWS
from trajectory.test_validation import two_arms

BATCHES = st.lists(recordings().map(from_recording), min_size=1, max_size=4)


@given(BATCHES)
def test_selecting_an_episode_of_a_concatenation_gives_the_episode(batches):
    joined = concatenate_batches(batches)
    assert len(joined) == len(batches)
    for index, batch in enumerate(batches):
        assert same_bits(select_episodes(joined, [index]), batch)


@given(BATCHES, st.data())
def test_selecting_commutes_with_concatenating(batches, data):
    chosen = data.draw(st.lists(st.integers(0, len(batches) - 1), min_size=1, max_size=4))
    assert same_bits(
        select_episodes(concatenate_batches(batches), chosen), concatenate_batches([batches[k] for k in chosen])
    )


def test_every_second_episode_is_selected_without_those_between():
    batches = [episode(count, episode_id=f"e{count}") for count in (2, 3, 4, 5)]
    chosen = select_episodes(concatenate_batches(batches), [0, 2])
    assert same_bits(chosen, concatenate_batches([batches[0], batches[2]]))


@pytest.mark.parametrize("name", ["joint_tork_nm", "body_pos_m", "elapsed_s", "contacts"])
def test_a_name_that_is_no_channel_of_rows_is_refused_with_those_there_are(name):
    with pytest.raises(SafevlaError, match=f"{name}.*\n.*joint_torque_nm"):
        episode().channel(name)


def test_a_name_that_is_no_channel_of_poses_is_refused_with_those_there_are():
    with pytest.raises(SafevlaError, match=r"eef_pos_m.*\n.*body_quat_wxyz"):
        episode().poses("eef_pos_m")


def test_the_empty_batch_is_neutral():
    batch = episode()
    assert len(empty_batch()) == 0
    assert same_bits(concatenate_batches([empty_batch(), batch, empty_batch()]), batch)
    assert same_bits(select_episodes(batch, []), empty_batch())


@given(st.lists(recordings(), min_size=1, max_size=4), st.data())
def test_the_numbers_of_an_arm_are_its_columns_of_each_row(recorded, data):
    batch = concatenate_batches([from_recording(each) for each in recorded])
    arms = [data.draw(st.integers(0, header.arm_count - 1)) for header in batch.headers]
    for name, size, missing in (("eef_pos_m", 3, np.nan), ("gripper_contact", 1, 0.0), ("gripped_body", 1, -1.0)):
        expected = []
        for each, arm in zip(recorded, arms, strict=True):
            rows = each.channel(name)
            columns = np.full((each.records, size), missing) if rows is None else rows.reshape(each.records, -1)
            expected.append(columns[:, arm * size : (arm + 1) * size] if rows is not None else columns)
        assert np.array_equal(
            batch.rows_of_arm(name, np.array(arms), size, missing), np.concatenate(expected), equal_nan=True
        )
    contact, body = batch.grips_of(np.array(arms))
    own = np.concatenate(expected)[:, 0]
    assert np.array_equal(body, np.where(own < 0, -1, own + batch.body_starts[batch.episode_of_record]))
    assert contact.dtype == np.bool_


def test_the_held_body_of_one_arm_is_refused_for_several():
    one = episode(2, gripper_contact=np.array([False, True]), gripped_body=np.array([-1, BOWL]))
    batch = concatenate_batches([one, one])
    assert batch.gripping.tolist() == [False, True] * 2
    assert batch.gripped.tolist() == [-1, BOWL, -1, len(ROLES) + BOWL]
    with pytest.raises(SafevlaError, match="left, right") as caught:
        _ = episode(2, **{**two_arms(2), "joint_torque_nm": None}).gripping
    assert caught.value.place.field == "arms"


def test_seconds_are_counted_from_record_0_by_stamps_and_else_by_control_steps():
    stamps = np.array([5.0, 5.5, 7.0])
    batch = concatenate_batches(
        [episode(3, dt=0.1), episode(3, dt=0.1, further={"time_s": stamps}), episode(3, dt=2.0)]
    )
    assert {k: times.tolist() for k, times in batch.stamps_s.items()} == {1: [0.0, 0.5, 2.0]}
    seconds = [[batch.elapsed_s(e, step) for e in range(3)] for step in range(3)]
    assert seconds == [[0.0, 0.0, 0.0], [0.1, 0.5, 2.0], [0.2, 2.0, 4.0]]
    steps = np.repeat([[0], [1], [2]], 3, axis=1)
    assert elapsed_seconds(steps, batch.dt_s, batch.stamps_s).tolist() == seconds


def test_the_records_of_two_episodes_are_refused_at_once():
    two = concatenate_batches([episode(2), episode(2, episode_id="another")])
    with pytest.raises(RecordError, match="2 episodes"):
        iterate_records(two)
    assert [len([*iterate_records(select_episodes(two, [k]))]) for k in range(2)] == [2, 2]


@given(BATCHES)
def test_an_episode_is_its_records(batches):
    for batch in batches:
        joined = join_records([*iterate_records(batch)])
        assert len(joined) == 1
        assert joined.lengths.tolist() == batch.lengths.tolist()
        last = select_record(batch, -1)
        assert same_bits(last, select_record(batch, int(batch.lengths[0]) - 1))
        for spec in (*ROWS, *POSES):
            recorded, kept = batch.numbers(spec), joined.numbers(spec)
            if spec.name in ("sim_state", "action"):
                assert not kept.present.any()
            else:
                assert kept.values.tolist() == recorded.values.tolist()
                assert (kept.starts.tolist(), kept.width.tolist()) == (
                    recorded.starts.tolist(),
                    recorded.width.tolist(),
                )
        assert joined.contacts.starts.tolist() == batch.contacts.starts.tolist()
        assert joined.contacts.a.tolist() == batch.contacts.a.tolist()
        assert last.extra == ({},)


def test_a_record_keeps_the_names_of_channels_in_single_precision():
    batch = episode(2, extra={"header": {SINGLE: ["time_s", "action"], "note": 1}})
    assert select_record(batch, 0).extra == ({"header": {SINGLE: ["action", "time_s"]}},)


@given(recordings())
def test_a_recording_comes_back_from_among_others_as_it_was(recorded):
    back = to_recording(concatenate_batches([episode(2), from_recording(recorded), episode(2)]), 1)
    assert (Header(**back.header), back.roles, back.records) == (
        Header(**recorded.header), recorded.roles, recorded.records,
    )  # fmt: skip
    assert back.extra == recorded.extra
    for spec in NUMERIC:
        rows, given_rows = back.channel(spec.name), recorded.channel(spec.name)
        assert (rows is None) == (given_rows is None)
        if rows is not None:
            assert (rows.dtype, rows.tolist()) == (np.dtype(spec.dtype), given_rows.tolist())
            assert not spec.is_pose or getattr(back, spec.bodies) == [*getattr(recorded, spec.bodies)]
    assert (back.contacts is None) == (recorded.contacts is None)
    if back.contacts is not None:
        expected = recorded.contacts.columns()
        assert all(np.array_equal(back.contacts.columns()[name], expected[name], equal_nan=True) for name in expected)


def test_a_channel_is_present_if_it_was_recorded_even_without_any_number():
    batch = concatenate_batches([episode(3), episode(3, contacts=None), episode(3, contacts=contacts((1, 0, 2, 5.0)))])
    assert batch.contacts.present.tolist() == [True, False, True]
    batch = concatenate_batches(
        [episode(3, joint_torque_nm=None), episode(3, embodiment=None, joint_torque_nm=np.empty((3, 0))), episode(3)]
    )
    assert batch.joint_torque_nm.present.tolist() == [False, True, True]
    assert [batch.joint_torque_nm.episode_rows(e).shape for e in range(3)] == [(0, 0), (0, 0), (3, 7)]


def test_an_episode_without_poses_has_none_of_any_record():
    batch = concatenate_batches([episode(3, pos_bodies=(), body_pos_m=np.empty((3, 0, 3))), episode(3)])
    assert [batch.body_pos_m.episode_poses(e)[1].shape for e in range(2)] == [(0, 0, 3), (3, 3, 3)]


def test_headers_alone_make_episodes_of_their_lengths_that_recorded_nothing():
    headers = [header(episode_id="a"), header(episode_id="b")]
    batch = batch_of_headers(headers, np.array([2, 3]))
    assert (batch.headers, batch.lengths.tolist(), batch.target.tolist()) == (tuple(headers), [2, 3], [-1, -1])
    assert (batch.extra, batch.body_roles(0), batch.body_roles(1)) == (({}, {}), {}, {})
    assert (batch.contacts.present.tolist(), batch.contacts.starts.tolist()) == ([False, False], [0] * 6)
    for spec in (*ROWS, *POSES):
        assert batch.numbers(spec).width.tolist() == [-1, -1]
        assert batch.numbers(spec).starts.tolist() == [0, 0, 0]


def test_an_added_channel_stands_beside_those_that_the_episode_had():
    batch = add_rows(episode(3, further={"time_s": np.arange(3.0)}), "chunk_step", np.array([[0.0, 1.0], [1.0, 2.0]]))
    assert batch.channel("chunk_step").episode_rows(0).tolist() == [[0.0, 1.0], [1.0, 2.0]]
    assert batch.channel("time_s").episode_rows(0).tolist() == [[0.0], [1.0], [2.0]]


def test_a_record_of_a_single_one_is_the_same_when_it_is_joined_alone():
    record = select_record(from_recording(recording(3)), 1)
    assert join_records([record]) is record
