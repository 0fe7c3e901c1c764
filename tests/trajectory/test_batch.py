"""A batch is its episodes: concatenating and selecting lose and change nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import episode, recordings, same_bits
from safevla_bench.errors import SafevlaError
from safevla_bench.trajectory.batch import concatenate_batches, select_episodes
from safevla_bench.trajectory.single_episode import empty_batch, from_recording

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
