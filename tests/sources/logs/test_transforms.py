"""The tree of frames: as tf2 does it, and nothing beyond what was recorded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation, Slerp

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.transforms import Edge, FrameTree, interpolate_poses

GAP_NS = 10**9


def poses(rng: np.random.Generator, count: int) -> np.ndarray:
    turns = rng.normal(size=(count, 4))
    return np.hstack([rng.uniform(-2, 2, (count, 3)), turns / np.linalg.norm(turns, axis=1, keepdims=True)])


def static(parent: str, pose: np.ndarray) -> Edge:
    return Edge((parent,), np.zeros(1, dtype=np.int64), pose[None], True)


def matrix(pose: np.ndarray) -> np.ndarray:
    out = np.eye(4)
    out[:3, :3] = Rotation.from_quat(pose[3:], scalar_first=True).as_matrix()
    out[:3, 3] = pose[:3]
    return out


@given(st.integers(0, 2**32))
def test_a_pose_is_brought_up_and_down_the_tree_as_by_matrices(seed):
    """world -> a -> b and world -> c: of b into c, of c into b, of world into b and back."""
    rng = np.random.default_rng(seed)
    a, b, c, pose = poses(rng, 4)
    tree = FrameTree({"a": static("world", a), "b": static("a", b), "c": static("world", c)}, GAP_NS)
    places = {"world": np.eye(4), "a": matrix(a), "b": matrix(a) @ matrix(b), "c": matrix(c)}
    now = np.zeros(1, dtype=np.int64)
    for source in places:
        for target in places:
            expected = np.linalg.inv(places[target]) @ places[source] @ matrix(pose)
            (brought,) = tree.bring(pose[None], source, target, now)
            np.testing.assert_allclose(matrix(brought), expected, atol=1e-12)


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_between_two_stamps_place_is_linear_and_rotation_goes_the_shorter_arc(seed, part):
    rng = np.random.default_rng(seed)
    ends = poses(rng, 2)
    edge = Edge(("world",), np.array([0, 10**8]), ends, False)
    at = np.array([round(part * 10**8)])
    (brought,) = FrameTree({"a": edge}, GAP_NS).bring(np.array([[0, 0, 0, 1.0, 0, 0, 0]]), "a", "world", at)
    share = at[0] / 10**8
    turn = Slerp([0, 1], Rotation.from_quat(ends[:, 3:], scalar_first=True))(share)
    np.testing.assert_allclose(brought[:3], (1 - share) * ends[0, :3] + share * ends[1, :3], atol=1e-12)
    assert (Rotation.from_quat(brought[3:], scalar_first=True) * turn.inv()).magnitude() < 1e-6


def test_nothing_is_known_before_the_first_stamp_after_the_last_or_across_a_long_gap():
    times = np.array([0, 10**8, 3 * 10**9, 3 * 10**9 + 10**8])
    edge = Edge(("world",), times, np.tile([0.0, 0, 0, 1, 0, 0, 0], (4, 1)), False)
    at = np.array([-1, 0, 5 * 10**7, 10**8, 10**9, 3 * 10**9, 3 * 10**9 + 10**8, 3 * 10**9 + 10**8 + 1])
    brought = FrameTree({"a": edge}, GAP_NS).bring(np.zeros((8, 3)), "a", "world", at)
    known = np.isfinite(brought).all(axis=1)
    assert known.tolist() == [False, True, True, True, False, True, True, False]


def test_two_parents_no_path_and_a_circle_are_errors():
    here = np.array([0.0, 0, 0, 1, 0, 0, 0])
    two = Edge(("map", "odom"), np.zeros(1, dtype=np.int64), here[None], True)
    tree = FrameTree({"a": two, "c": static("other", here), "x": static("y", here), "y": static("x", here)}, GAP_NS)
    now = np.zeros(1, dtype=np.int64)
    for source, says in [("a", "several parents: map, odom"), ("c", "no transforms connect"), ("x", "form a cycle")]:
        with pytest.raises(RecordError, match=says):
            tree.bring(here[None], source, "map", now)


def test_poses_are_interpolated_after_a_clock_jumps_from_booting_to_1970():
    """The clock of a computer without a battery: 12 s since booting, then the time of day."""
    known = np.array([0, 10**8, 17 * 10**17, 17 * 10**17 + 10**8])
    rows = poses(np.random.default_rng(0), 4)
    at = np.array([5 * 10**7, 10**9, 17 * 10**17 + 25 * 10**6, known[-1]])
    position, rotation = interpolate_poses(known, rows, at, 2 * 10**8)
    assert np.isnan(position[1]).all()
    assert position[[0, 2, 3]] == pytest.approx(
        np.stack([rows[:2, :3].mean(axis=0), rows[2, :3] * 0.75 + rows[3, :3] * 0.25, rows[3, :3]])
    )
    turns = Slerp([0, 1], Rotation.from_quat(rows[2:, 3:], scalar_first=True))([0.25, 1.0])
    assert (turns.inv() * rotation[2:]).magnitude().max() < 1e-7
