"""Contact, displacement, the held target and the arm against cases worked out by hand.

Polynomials have known derivatives, and short episodes have none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from builders import BOWL, DRAWER, HAND, LINK, PLATE, ROLES, contacts, derive, episode
from safevla_bench.signals import build_trace, derive_signals, missing_fields
from safevla_bench.signals.signal import RecordFields
from safevla_bench.trajectory.batch import concatenate_batches

TOUCHES = contacts(
    (1, HAND, DRAWER, 30.0),
    (1, DRAWER, LINK, 40.0),  # roles count in either order
    (2, BOWL, DRAWER, 7.0),
    (2, HAND, BOWL, 55.0),
    (3, LINK, HAND, 1.0),
    (3, PLATE, DRAWER, 90.0),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arm_furniture_force", [0, 40, 0, 0]),
        ("target_furniture_force", [0, 0, 7, 0]),
        ("max_contact_force", [0, 40, 55, 90]),
        ("self_collision", [0, 0, 0, 1]),
    ],
)
def test_forces_are_the_largest_single_contact_of_the_roles(name, expected):
    batch = [episode(4), episode(4, contacts=TOUCHES), episode(4)]
    assert derive(batch, name).tolist() == [0.0] * 4 + [float(x) for x in expected] + [0.0] * 4


@pytest.mark.parametrize("name", ["arm_furniture_force", "max_contact_force", "self_collision"])
def test_an_episode_without_instrumentation_has_no_force_not_zero(name):
    batch = [episode(2, contacts=None), episode(2)]
    assert np.isnan(derive(batch, name)[:2]).all()
    assert derive(batch, name)[2:].tolist() == [0.0, 0.0]


def moved(*moves: tuple[int, int, tuple[float, float, float]], n: int = 4) -> np.ndarray:
    """Positions [n, 3, 3] of bowl, plate and drawer; a move (record, column, offset) lasts until the end."""
    pos = np.tile([[0.5, 0.0, 0.8], [0.6, 0.1, 0.8], [0.9, 0.0, 0.7]], (n, 1, 1))
    for record, column, offset in moves:
        pos[record:, column] += offset
    return pos


def test_displacement_is_of_bystanders_and_tracked_fixtures_never_of_the_target():
    pos = moved((1, 0, (1.0, 0, 0)), (2, 1, (0.003, 0.004, 0.0)), (3, 2, (0, 0, -0.006)))
    largest = derive(episode(4, body_pos_m=pos), "non_target_disp_max")
    np.testing.assert_allclose(largest, [0, 0, 0.005, 0.006], atol=1e-15)


def test_a_body_whose_pose_is_unknown_is_left_out_of_the_displacement_and_makes_it_a_lower_bound():
    pos = moved((1, 1, (0.003, 0, 0)), (2, 1, (5.0, 0, 0)), (3, 1, (-5.0, 0, 0)), (2, 2, (0, 0, -0.002)))
    known = np.ones((4, 3), dtype=bool)
    known[2, 1] = known[3, 0] = False  # the target's pose does not matter
    lost = episode(4, body_pos_m=pos, valid_bodies=[BOWL, PLATE, DRAWER], pose_valid=known)
    trace = build_trace(RecordFields(concatenate_batches([episode(2), lost])), ["non_target_disp_max"])
    np.testing.assert_allclose(trace.signals["non_target_disp_max"], [0, 0, 0, 0.003, 0.002, 0.003], atol=1e-12)
    assert trace.unknown["non_target_disp_max"].tolist() == [False, False, False, False, True, False]


def test_episodes_of_different_arms_keep_their_own_limits():
    parts = [
        episode(2, joint_torque_nm=np.full((2, 2), 3.0), joint_torque_limit_nm=(6.0, 2.0)),
        episode(3, joint_torque_nm=None),
        episode(2, joint_torque_nm=np.full((2, 7), 6.0)),
        episode(1, joint_torque_nm=np.full((1, 2), 3.0), joint_torque_limit_nm=(30.0, 30.0)),
    ]
    signal = derive(parts, "joint_torque_ratio")
    np.testing.assert_allclose(signal, [1.5, 1.5, np.nan, np.nan, np.nan, 0.5, 0.5, 0.1])


def test_the_peak_ratio_is_of_the_largest_torques_between_control_steps_and_missing_where_these_are():
    """Joint 5 of a Panda: 12 N m; at the end of the step it is calm again (CONTRACT 1, `joint_torque_peak_nm`)."""
    peak = np.ones((2, 7))
    peak[1, 4] = 36.0
    batch = concatenate_batches([episode(2, further={"joint_torque_peak_nm": peak}), episode(1)])
    signals = derive_signals(batch, ["joint_torque_peak_ratio", "joint_torque_ratio"])
    np.testing.assert_allclose(signals["joint_torque_peak_ratio"], [1 / 12, 3.0, np.nan])
    np.testing.assert_allclose(signals["joint_torque_ratio"], [1 / 12] * 3)


def test_an_arm_without_joints_has_no_torque_and_stops_nobody():
    none = episode(2, joint_torque_nm=np.zeros((2, 0)), joint_torque_limit_nm=())
    signals = derive_signals(concatenate_batches([none, episode(1)]), ["joint_torque_max", "joint_torque_ratio"])
    for values in signals.values():
        assert np.isnan(values).tolist() == [True, True, False]


NAMES = ["eef_speed", "eef_acc", "eef_jerk"]


def along(power: int, n: int, dt: float = 0.05) -> np.ndarray:
    path = np.zeros((n, 3))
    path[:, 1] = (np.arange(n) * dt) ** power
    return path


@pytest.mark.parametrize(("name", "power", "value"), [("eef_speed", 1, 1.0), ("eef_acc", 2, 2.0), ("eef_jerk", 3, 6.0)])
def test_derivatives_of_a_polynomial_are_exact_and_flat_to_the_ends(name, power, value):
    signal = derive(episode(20, eef_pos_m=along(power, 20)), name)
    np.testing.assert_allclose(signal, value, rtol=1e-6)


@pytest.mark.parametrize(("name", "shortest"), [("eef_speed", 7), ("eef_acc", 7), ("eef_jerk", 9)])
def test_an_episode_without_interior_is_undefined_and_its_neighbors_are_not_read(name, shortest):
    rng = np.random.default_rng(0)
    lengths = [shortest - 1, shortest, 1, 15]
    parts = [episode(n, eef_pos_m=rng.normal(size=(n, 3))) for n in lengths]
    together = np.split(derive(parts, name), np.cumsum(lengths)[:-1])
    for part, signal in zip(parts, together, strict=True):
        np.testing.assert_array_equal(signal, derive(part, name))
    assert [bool(np.isnan(signal).all()) for signal in together] == [True, False, True, False]


def test_a_single_step_shows_the_whole_smoothing_and_difference_kernel():
    """Polynomials forgive a lopsided kernel; a step does not."""
    path = np.zeros((20, 3))
    path[10:, 1] = 5.0
    signals = derive_signals(episode(20, eef_pos_m=path, dt=1.0), NAMES)
    ends = [0.0] * 6  # the smoothed position rises by 1 from record 8 to record 12
    np.testing.assert_allclose(signals["eef_speed"], [*ends, 0, 0.5, 1, 1, 1, 1, 0.5, 0, *ends], atol=1e-12)
    np.testing.assert_allclose(signals["eef_acc"], [*ends, 0, 1, 0, 0, 0, 0, 1, 0, *ends], atol=1e-12)
    np.testing.assert_allclose(signals["eef_jerk"], [*ends, 0.5, 0, 0.5, 0, 0, 0.5, 0, 0.5, *ends], atol=1e-12)


def turned(axis: str, degrees: float, scale: float = 1.0, n: int = 3) -> np.ndarray:
    """Quaternions wxyz [n, 2, 4] of bowl and plate: the bowl turned about a world axis from record 1 on."""
    x, y, z, w = Rotation.from_euler(axis, degrees, degrees=True).as_quat()
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (n, 2, 1))
    quats[1:, 0] = scale * np.array([w, x, y, z])
    return quats


@pytest.mark.parametrize("scale", [1e-200, -3.0, 1e200])
def test_quaternions_are_normalized_and_both_signs_are_one_rotation(scale):
    signal = derive(episode(3, body_quat_wxyz=turned("x", 40.0, scale)), "held_object_tilt")
    np.testing.assert_allclose(signal, [0, 40, 40], atol=1e-5)


def orientations(turns: Rotation, n: int) -> np.ndarray:
    """Quaternions wxyz [n, 2, 4]: the bowl turned, the plate at rest."""
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (n, 2, 1))
    quats[:, 0] = turns.as_quat()[:, [3, 0, 1, 2]]
    return quats


def any_turns(n: int) -> Rotation:
    return Rotation.from_quat(np.random.default_rng(3).normal(size=(n, 4)))


def test_both_tilts_are_those_of_any_rotation():
    """Turns about one axis leave most of a quaternion zero; these leave none."""
    turns = any_turns(60)
    signals = derive_signals(
        episode(60, body_quat_wxyz=orientations(turns, 60)), ["held_object_tilt", "held_object_tilt_body"]
    )
    axes = turns.apply([0.0, 0.0, 1.0])
    np.testing.assert_allclose(
        signals["held_object_tilt"], np.degrees(np.arccos(np.clip(axes @ axes[0], -1, 1))), atol=1e-5
    )
    whole = np.degrees((turns[0].inv() * turns).magnitude())
    np.testing.assert_allclose(signals["held_object_tilt_body"], whole, atol=1e-5)


@pytest.mark.parametrize(("about_x", "tilt"), [(0.0, 0.0), (180.0, 180.0)])
def test_a_tilt_at_either_end_of_the_scale_is_a_number(about_x, tilt):
    """There the cosine of two rounded axes may lie beyond 1."""
    flip = Rotation.from_euler("x", [[0.0], [about_x]], degrees=True)
    parts = [episode(2, body_quat_wxyz=orientations(turn * flip, 2)) for turn in any_turns(200)]
    signals = derive_signals(concatenate_batches(parts), ["held_object_tilt", "held_object_tilt_body"])
    for values in signals.values():
        np.testing.assert_allclose(values.reshape(-1, 2), [[0.0, tilt]] * 200, atol=1e-5)


def lifted(heights, n: int) -> np.ndarray:
    pos = np.tile([[0.5, 0.0, 0.8], [0.6, 0.1, 0.8], [0.9, 0.0, 0.7]], (n, 1, 1))
    pos[:, 0, 2] += heights
    return pos


def test_transport_needs_a_grip_and_more_than_five_centimeters():
    heights = [0.0, 0.049, 0.06, 0.06, 0.01]
    grip = np.array([True, True, True, False, True])
    batch = episode(5, body_pos_m=lifted(heights, 5), gripper_contact=grip)
    signals = derive_signals(batch, ["transport", "in_transport", "target_height"])
    assert signals["transport"].tolist() == [False, False, True, False, False]
    assert signals["in_transport"].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    np.testing.assert_allclose(signals["target_height"], heights, atol=1e-15)


def slip_after_gap(gap: int, fall_m: float) -> float:
    """Slip at the first record behind a gap of grip in which the bowl fell, after 1 cm of slip before it."""
    n = gap + 3
    heights = np.array([0.0, -0.01] + [-0.01 - fall_m] * (gap + 1))
    grip = np.array([True, True] + [False] * gap + [True])
    batch = episode(n, body_pos_m=lifted(heights, n), gripper_contact=grip)
    return float(derive(batch, "held_object_slip")[-1])


@pytest.mark.parametrize(
    ("gap", "fall_m", "slip"),
    [
        (1, 0.005, -0.015),  # contact flickers: the same grip
        (2, 0.005, -0.015),
        (2, 0.0399, -0.0499),
        (3, 0.005, 0.0),  # too long: a new grip
        (1, 0.0401, 0.0),  # out of the fingers' reach: caught again
    ],
)
def test_a_grip_lasts_across_two_records_without_contact_while_the_body_stays_in_reach(gap, fall_m, slip):
    assert slip_after_gap(gap, fall_m) == pytest.approx(slip, abs=1e-12)


def test_a_body_just_within_reach_is_still_gripped():
    pos = np.zeros((4, 3, 3))
    pos[2:, 0, 2] = 0.04
    grip = np.array([True, True, False, True])
    batch = episode(4, body_pos_m=pos, eef_pos_m=np.zeros((4, 3)), gripper_contact=grip)
    assert derive(batch, "held_object_slip").tolist() == [0.0, 0.0, 0.0, 0.04]


def test_reach_is_measured_in_the_gripper_so_that_a_turning_hand_keeps_its_grip():
    half = np.tile([1.0, 0.0, 0.0, 0.0], (4, 1))
    half[2:] = [0.0, 1.0, 0.0, 0.0]  # upside down, with the bowl 0.2 m below the wrist and then above it
    eef = np.tile([0.5, 0.0, 1.0], (4, 1))
    batch = episode(
        4,
        body_pos_m=lifted([0.0, 0.0, 0.4, 0.395], 4),
        eef_pos_m=eef,
        eef_quat_wxyz=half,
        gripper_contact=np.array([True, True, False, True]),
    )
    slip = derive(batch, "held_object_slip")
    np.testing.assert_allclose(slip, [0, 0, 0, 0.005], atol=1e-12)


def test_slip_is_seen_in_the_hand_however_the_hand_is_turned():
    """The place in the hand, R(t)ᵀ(x - eef), brought back by the hand's orientation at the onset."""
    rng, n = np.random.default_rng(0), 40
    turns = any_turns(n)
    pos, eef = lifted(np.zeros(n), n), rng.normal(size=(n, 3))
    pos[:, 0] = rng.normal(size=(n, 3))
    batch = episode(
        n,
        body_pos_m=pos,
        eef_pos_m=eef,
        eef_quat_wxyz=orientations(turns, n)[:, 0],
        gripper_contact=np.arange(n) >= 1,
    )
    seen = turns[1].apply(turns.inv().apply(pos[:, 0] - eef))[:, 2]
    expected = np.where(np.arange(n) >= 1, seen - seen[1], 0.0)
    np.testing.assert_allclose(derive(batch, "held_object_slip"), expected, atol=1e-12)


@pytest.mark.parametrize("field", ["eef_pos_m", "gripper_contact", "body_pos_m"])
def test_one_lacking_field_of_several_makes_the_slip_missing_in_that_episode_only(field):
    lacking = {"body_pos_m": None, "pos_bodies": ()} if field == "body_pos_m" else {field: None}
    batch = [episode(3), episode(3, **lacking), episode(3)]
    slip = derive(batch, "held_object_slip")
    assert np.array_equal(slip, [0, 0, 0, np.nan, np.nan, np.nan, 0, 0, 0], equal_nan=True)


def test_a_scene_without_bodies_has_no_held_target():
    bare = episode(2, roles={}, target_object=None, pos_bodies=(), body_pos_m=np.zeros((2, 0, 3)),
                   quat_bodies=(), body_quat_wxyz=None)  # fmt: skip
    signals = derive_signals(bare, ["target_height", "held_object_tilt", "grip"])
    assert np.isnan(signals["target_height"]).all()
    assert np.isnan(signals["held_object_tilt"]).all()
    assert not signals["grip"].any()


TWO = {**ROLES, "plate": "target"}


def test_the_first_body_is_held_as_any_other_and_the_last_is_not_held_by_nobody():
    """Body 0 is a body, and -1, nothing known to be gripped, is not the last one."""
    robot = episode(2, gripper_contact=np.ones(2, dtype=bool), gripped_body=np.array([LINK, BOWL]))
    assert derive(robot, "grip").tolist() == [False, True]
    two = {"bowl": "target", "cup": "target"}
    heights = np.tile([[0.0, 0.0, 0.8], [0.0, 0.0, 0.5]], (2, 1, 1))
    heights[1] += [[0.0, 0.0, 0.1], [0.0, 0.0, 0.3]]
    batch = episode(2, roles=two, pos_bodies=(0, 1), body_pos_m=heights, gripper_contact=np.ones(2, dtype=bool),
                    gripped_body=np.array([-1, -1]), contacts=None)  # fmt: skip
    np.testing.assert_allclose(derive(batch, "target_height"), [0.0, 0.1], atol=1e-15)
    first = episode(2, roles=two, pos_bodies=(0, 1), body_pos_m=heights, gripper_contact=np.ones(2, dtype=bool),
                    gripped_body=np.array([0, 0]), contacts=None, target_object="cup")  # fmt: skip
    np.testing.assert_allclose(derive(first, "target_height"), [0.0, 0.1], atol=1e-15)


def test_one_record_whose_held_target_lacks_a_pose_makes_the_signal_missing():
    partly = episode(
        3, roles=TWO, pos_bodies=(BOWL,), body_pos_m=np.zeros((3, 1, 3)), gripped_body=np.array([-1, PLATE, -1])
    )
    batch = concatenate_batches([partly, episode(3), episode(3, target_object=None)])
    lacking = missing_fields(batch, ["target_height"])
    assert {field: where.tolist() for field, where in lacking.items()} == {
        "body_pos_m of the held target": [True, False, True]
    }
    height = derive(batch, "target_height")
    assert np.isnan(height).tolist() == [True] * 3 + [False] * 3 + [True] * 3


HELD_TARGET_NAMES = [
    "target_height",
    "held_object_tilt",
    "held_object_tilt_body",
    "held_object_slip",
    "target_obj_speed",
]


def test_a_target_that_is_the_first_body_of_the_batch_is_a_target():
    first = {"bowl": "target", "plate": "bystander"}
    batch = episode(
        3, roles=first, pos_bodies=(0,), body_pos_m=lifted([0, 0.1, 0.1], 3)[:, :1],
        quat_bodies=(0,), body_quat_wxyz=turned("x", 30.0)[:, :1], gripper_contact=np.ones(3, dtype=bool),
    )  # fmt: skip
    assert not missing_fields(batch, HELD_TARGET_NAMES)
    assert derive(batch, "transport").tolist() == [False, True, True]


def test_a_grip_of_what_is_no_target_is_foreign_and_one_of_nothing_known_is_none():
    held, contact = np.array([-1, BOWL, PLATE, PLATE, -1]), np.array([True, True, True, False, False])
    batch = [episode(5, gripper_contact=contact, gripped_body=held), episode(2, gripper_contact=np.ones(2, bool))]
    np.testing.assert_array_equal(derive(batch, "foreign_grip"), [0, 0, 1, 0, 0, np.nan, np.nan])


def struck(*rows: tuple[int, int, int, float], n: int = 40, scale: float = 1.0):
    """An episode of n records of 0.05 s with net impulses (record, a, b, N·s)."""
    listed = contacts(*rows)
    return episode(n, dt=0.05, contacts=replace(listed, net_impulse_ns=scale * listed.force_n))


PRESSED = [(k, HAND, DRAWER, 2.0) for k in range(1, 40)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(20, HAND, DRAWER, 3.0), (21, DRAWER, HAND, 1.0)], {20: 3.0, 21: 4.0, 22: 1.0}),
        (PRESSED, dict.fromkeys(range(30, 40), 0.0)),  # a steady load, once 0.5 s of it are known
        ([*PRESSED, (20, DRAWER, HAND, 3.0)], {19: 0.0, 20: 3.0, 21: 3.0, 22: 0.0}),
        ([row for row in PRESSED if row[0] >= 20], {20: 0.0, 25: 0.0, 35: 0.0}),  # what is pressed and stays so
        ([(0, HAND, DRAWER, 9.0)], {0: 0.0, 1: 0.0}),  # an instant
        ([(20, HAND, PLATE, 3.0), (20, BOWL, DRAWER, 2.0)], {20: 3.0}),  # by pair
    ],
    ids=["strike", "load", "strike on a load", "press", "record 0", "pairs"],
)
def test_a_strike_is_the_impulse_of_a_tenth_of_a_second_less_what_the_pair_bears_for_long(rows, expected):
    strike = derive(struck(*rows), "largest_strike")
    assert {t: strike[t] for t in expected} == pytest.approx(expected)
    np.testing.assert_allclose(derive(struck(*rows, scale=1000.0), "largest_strike"), 1000.0 * strike)


def test_strikes_of_the_robot_and_furniture_are_those_of_their_pairs():
    strike = derive(
        struck((20, HAND, PLATE, 3.0), (20, BOWL, DRAWER, 2.0), (20, LINK, DRAWER, 1.0)), "arm_furniture_strike"
    )
    assert strike[20] == 1.0


def test_a_strike_is_missing_in_older_records_and_says_what_they_have():
    older = episode(4, contacts=TOUCHES)
    assert np.isnan(derive(older, "largest_strike")).all()
    (field,) = missing_fields(older, ["largest_strike"])
    assert "over single contacts" in field
    assert not missing_fields(episode(4), ["largest_strike"])
