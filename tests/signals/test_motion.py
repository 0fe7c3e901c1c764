"""Torque against each joint's own limit; polynomials have known derivatives, and short episodes have none."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_the_peak_ratio_is_of_the_largest_torques_between_control_steps_and_missing_where_these_are():
    """Joint 5 of a Panda: 12 N m; at the end of the step it is calm again (CONTRACT 1, `joint_torque_peak_nm`)."""
    peak = np.ones((2, 7))
    peak[1, 4] = 36.0
    batch = concatenate_batches([episode(2, further={"joint_torque_peak_nm": peak}), episode(1)])
    found = derive_signals(batch, ["joint_torque_peak_ratio", "joint_torque_ratio"])
    np.testing.assert_allclose(found["joint_torque_peak_ratio"], [1 / 12, 3.0, np.nan])
    np.testing.assert_allclose(found["joint_torque_ratio"], [1 / 12] * 3)


def test_an_arm_without_joints_has_no_torque_and_stops_nobody():
    none = episode(2, joint_torque_nm=np.zeros((2, 0)), joint_torque_limit_nm=())
    found = derive_signals(concatenate_batches([none, episode(1)]), ["joint_torque_max", "joint_torque_ratio"])
    for values in found.values():
        assert np.isnan(values).tolist() == [True, True, False]


NAMES = ["eef_speed", "eef_acc", "eef_jerk"]


def along(power: int, n: int, dt: float = 0.05) -> np.ndarray:
    path = np.zeros((n, 3))
    path[:, 1] = (np.arange(n) * dt) ** power
    return path


@pytest.mark.parametrize(("name", "power", "value"), [("eef_speed", 1, 1.0), ("eef_acc", 2, 2.0), ("eef_jerk", 3, 6.0)])
def test_derivatives_of_a_polynomial_are_exact_and_flat_to_the_ends(name, power, value):
    found = derive_signals(episode(20, eef_pos_m=along(power, 20)), [name])[name]
    np.testing.assert_allclose(found, value, rtol=1e-6)


def test_the_ends_repeat_the_nearest_interior_value():
    speed = derive_signals(episode(12, eef_pos_m=along(2, 12)), ["eef_speed"])["eef_speed"]
    assert speed[:4].tolist() == [speed[3]] * 4
    assert speed[8:].tolist() == [speed[8]] * 4
    assert speed[4] > speed[3]


@pytest.mark.parametrize(("name", "shortest"), [("eef_speed", 7), ("eef_acc", 7), ("eef_jerk", 9)])
def test_an_episode_without_interior_is_undefined_and_its_neighbours_are_not_read(name, shortest):
    rng = np.random.default_rng(0)
    lengths = [shortest - 1, shortest, 1, 15]
    parts = [episode(n, eef_pos_m=rng.normal(size=(n, 3))) for n in lengths]
    together = np.split(derive_signals(concatenate_batches(parts), [name])[name], np.cumsum(lengths)[:-1])
    for part, found in zip(parts, together, strict=True):
        np.testing.assert_array_equal(found, derive_signals(part, [name])[name])
    assert [bool(np.isnan(found).all()) for found in together] == [True, False, True, False]


def test_every_episode_has_its_own_control_step():
    parts = [episode(12, eef_pos_m=along(1, 12, dt), dt=dt) for dt in (0.05, 0.1)]
    np.testing.assert_allclose(derive_signals(concatenate_batches(parts), ["eef_speed"])["eef_speed"], 1.0, rtol=1e-6)


def test_a_single_step_shows_the_whole_smoothing_and_difference_kernel():
    """Polynomials forgive a lopsided kernel; a step does not."""
    path = np.zeros((20, 3))
    path[10:, 1] = 5.0
    found = derive_signals(episode(20, eef_pos_m=path, dt=1.0), NAMES)
    ends = [0.0] * 6  # the smoothed position rises by 1 from record 8 to record 12
    np.testing.assert_allclose(found["eef_speed"], [*ends, 0, 0.5, 1, 1, 1, 1, 0.5, 0, *ends], atol=1e-12)
    np.testing.assert_allclose(found["eef_acc"], [*ends, 0, 1, 0, 0, 0, 0, 1, 0, *ends], atol=1e-12)
    np.testing.assert_allclose(found["eef_jerk"], [*ends, 0.5, 0, 0.5, 0, 0, 0.5, 0, 0.5, *ends], atol=1e-12)


def test_an_episode_without_the_end_effector_has_no_speed_and_its_neighbours_keep_theirs():
    parts = [episode(12, eef_pos_m=along(1, 12)), episode(9, eef_pos_m=None), episode(12, eef_pos_m=along(1, 12))]
    speed = derive_signals(concatenate_batches(parts), ["eef_speed"])["eef_speed"]
    np.testing.assert_allclose(speed, [1.0] * 12 + [np.nan] * 9 + [1.0] * 12, rtol=1e-6)
