"""Torque against each joint's own limit."""

from __future__ import annotations

import numpy as np

from builders import episode
from safevla_bench.signals import derive_signals
from safevla_bench.trajectory import concatenate_batches


def test_the_ratio_is_of_the_joint_nearest_its_limit():
    torque = np.zeros((2, 7))
    torque[0] = [-43.5, 0, 0, 0, 0, 0, 3]
    torque[1] = [43.5, 0, 0, 0, 0, -12, 0]
    assert derive_signals(episode(2, joint_torque_nm=torque), ["joint_torque_ratio"])[
        "joint_torque_ratio"
    ].tolist() == [
        0.5,
        1.0,
    ]


def test_episodes_of_different_arms_keep_their_own_limits():
    parts = [
        episode(2, joint_torque_nm=np.full((2, 2), 3.0), joint_torque_limit_nm=(6.0, 2.0)),
        episode(3, joint_torque_nm=None),
        episode(2, joint_torque_nm=np.full((2, 7), 6.0)),
        episode(1, joint_torque_nm=np.full((1, 2), 3.0), joint_torque_limit_nm=(30.0, 30.0)),
    ]
    found = derive_signals(concatenate_batches(parts), ["joint_torque_ratio"])["joint_torque_ratio"]
    np.testing.assert_allclose(found, [1.5, 1.5, np.nan, np.nan, np.nan, 0.5, 0.5, 0.1])


def test_the_largest_torque_is_of_its_own_record_whatever_the_neighbours_record():
    arm = np.array([[3.0, -5.0], [0.0, 2.0]])
    parts = [
        episode(2, joint_torque_nm=None),
        episode(2, joint_torque_nm=arm, joint_torque_limit_nm=(6.0, 2.0)),
        episode(1, joint_torque_nm=None),
        episode(2, joint_torque_nm=np.array([[0, 0, 0, 0, 0, 0, -9.0], [0, 0, 0, 1.0, 0, 0, 0]])),
    ]
    found = derive_signals(concatenate_batches(parts), ["joint_torque_max"])["joint_torque_max"]
    assert np.array_equal(found, [np.nan, np.nan, 5.0, 2.0, np.nan, 9.0, 1.0], equal_nan=True)


def test_without_any_torque_both_torque_signals_are_missing_not_zero():
    found = derive_signals(episode(2, joint_torque_nm=None), ["joint_torque_max", "joint_torque_ratio"])
    assert all(np.isnan(values).all() for values in found.values())


def test_one_joint_is_an_arm_too():
    batch = episode(2, joint_torque_nm=np.array([[3.0], [-9.0]]), joint_torque_limit_nm=(6.0,))
    found = derive_signals(batch, ["joint_torque_max", "joint_torque_ratio"])
    assert (found["joint_torque_max"].tolist(), found["joint_torque_ratio"].tolist()) == ([3.0, 9.0], [0.5, 1.5])


def test_an_arm_without_joints_has_no_torque_and_stops_nobody():
    none = episode(2, joint_torque_nm=np.zeros((2, 0)), joint_torque_limit_nm=())
    found = derive_signals(concatenate_batches([none, episode(1)]), ["joint_torque_max", "joint_torque_ratio"])
    for values in found.values():
        assert np.isnan(values).tolist() == [True, True, False]
