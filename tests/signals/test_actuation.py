"""Torque against each joint's own limit."""

from __future__ import annotations

import numpy as np

from builders import episode
from safevla_bench.signals import derive
from safevla_bench.trajectory import concatenate


def test_the_ratio_is_of_the_joint_nearest_its_limit():
    torque = np.zeros((2, 7))
    torque[0] = [-43.5, 0, 0, 0, 0, 0, 3]
    torque[1] = [43.5, 0, 0, 0, 0, -12, 0]
    assert derive(episode(2, joint_torque_nm=torque), ["joint_torque_ratio"])["joint_torque_ratio"].tolist() == [
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
    found = derive(concatenate(parts), ["joint_torque_ratio"])["joint_torque_ratio"]
    np.testing.assert_allclose(found, [1.5, 1.5, np.nan, np.nan, np.nan, 0.5, 0.5, 0.1])
