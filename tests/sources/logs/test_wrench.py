"""Wrist sensors: what was measured without contact is subtracted, and the tool's weight as the hand turns."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.sources.logs.names import decide_forces, find_force_unit
from safevla_bench.trajectory.batch import Batch
from sources.logs.log_files import FPS, problem, read, save_mapping, write_dataset, write_mcap

TEXT = '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nquaternion_order = "wxyz"\n[wrench]\nfrom = "ft"\n'
BIAS, MASS = np.array([3.0, -2.0, 7.0]), 1.2
N = 80


def hand(turned_deg: float = 0.0, moves_after: int = 30) -> np.ndarray:
    """Poses of a hand that is still at first, and then moves and turns about a skew axis."""
    poses = np.zeros((N, 7))
    moved = np.clip(np.arange(N) - moves_after, 0, None)
    poses[:, 0] = 0.01 * moved
    turns = Rotation.from_rotvec(np.outer(turned_deg * moved / moved.max(), [2 / 3, 1 / 3, 2 / 3]), degrees=True)
    poses[:, 3:] = turns.as_quat()[:, [3, 0, 1, 2]]
    return poses


def weight(poses: np.ndarray) -> np.ndarray:
    return Rotation.from_quat(poses[:, [4, 5, 6, 3]]).inv().apply([0, 0, -MASS * 9.81])


def measured(tmp_path, poses: np.ndarray, forces: np.ndarray, text: str = TEXT) -> Batch:
    folder = write_dataset(tmp_path / "d", [{"eef": poses, "ft": forces}])
    save_mapping(folder, text)
    (batch,) = read(folder)
    assert isinstance(batch, Batch), batch
    return batch


def test_the_offset_is_that_of_the_first_still_second_and_the_force_is_judged(tmp_path):
    poses, forces = hand(), np.tile(BIAS, (N, 1))
    forces[60] += [0.0, 0.0, 150.0]
    batch = measured(tmp_path, poses, forces)
    rows = batch.channel("wrist_force_n").episode_rows(0)
    assert rows[60].tolist() == [0.0, 0.0, 150.0]
    assert np.abs(np.delete(rows, 60, axis=0)).max() == 0.0
    scores = score(batch, load_ruleset("real-robot"))
    assert scores.episode(0).diagnostics["wrist_force_under_140N"].extreme == 150.0
    assert scores.episode(0).diagnostics["wrist_force_under_140N"].violated
    assert "wrist_force_under_140N" not in scores.episode(0).active_specs


@pytest.mark.parametrize(("rows", "is_noticed"), [(slice(0, 6), True), (slice(15, 40), True), (slice(40, 60), False)])
def test_a_force_that_changes_within_the_tare_is_a_warning(tmp_path, caplog, rows, is_noticed):
    forces = np.tile(BIAS, (N, 1)) + np.random.default_rng(3).normal(0, 2, (N, 3))  # as noisy as sensors of a UR
    forces[rows] += [0.0, 20.0, 0.0]
    with caplog.at_level(logging.WARNING):
        measured(tmp_path, hand(), forces)
    assert ("within the tare" in caplog.text) == is_noticed


def test_a_hand_that_moves_at_first_is_tared_where_it_is_still(tmp_path):
    poses = hand()[::-1].copy()  # moves for 50 records, then rests
    forces = np.tile(BIAS, (N, 1))
    forces[:49] += [40.0, 0.0, 0.0]
    rows = measured(tmp_path, poses, forces).channel("wrist_force_n").episode_rows(0)
    assert rows[0].tolist() == [40.0, 0.0, 0.0]
    assert rows[-1].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("tare", ["", f"tare = {BIAS.tolist()}\n"])
def test_with_its_mass_the_weight_of_the_tool_is_subtracted_however_the_hand_turns(tmp_path, tare, caplog):
    poses = hand(turned_deg=170.0)
    with caplog.at_level(logging.WARNING):
        batch = measured(tmp_path, poses, BIAS + weight(poses), f"{TEXT}mass_kg = {MASS}\n{tare}")
    assert np.abs(batch.channel("wrist_force_n").values).max() < 1e-9
    assert not caplog.records


@pytest.mark.parametrize(
    ("turned_deg", "moves_after", "tare", "warns"),
    [
        (18.0, 30, "", False),
        (22.0, 30, "", True),
        (20.1, 0, f"tare = {BIAS.tolist()}\n", True),  # counted from the first record
    ],
)
def test_without_its_mass_a_hand_that_turns_far_is_a_warning(tmp_path, caplog, turned_deg, moves_after, tare, warns):
    poses = hand(turned_deg, moves_after)
    with caplog.at_level(logging.WARNING):
        measured(tmp_path, poses, BIAS + weight(poses), TEXT + tare)
    assert ("give the tool's mass_kg" in caplog.text) == warns


@pytest.mark.parametrize("kept", [1, 60])
def test_the_offset_is_the_mean_of_all_records_of_the_still_second(tmp_path, kept):
    poses, forces = hand(moves_after=kept), np.zeros((N, 3))
    poses[:, 1] = 0.3
    if kept == 1:
        poses[5:, 0] = poses[5, 0]  # still from record 5 on
    forces[:, 0] = np.arange(N)
    rows = measured(tmp_path, poses, forces).channel("wrist_force_n").episode_rows(0)
    assert rows[:, 0].tolist() == (np.arange(N) - (15.0 if kept == 1 else 10.0)).tolist()


@pytest.mark.parametrize(("drift_m", "turn_deg", "is_still"), [
    (0.002, 0.0, True), (0.0025, 0.0, False), (0.0, 0.9, True), (0.0, 1.2, False),
])  # fmt: skip
def test_a_still_hand_moves_by_2_mm_and_turns_by_1_degree_at_most(tmp_path, drift_m, turn_deg, is_still):
    poses, is_odd = hand(moves_after=N - 2), np.arange(N) % 2 == 1
    poses[:, 0] = drift_m * is_odd
    poses[:, 3:] = Rotation.from_rotvec(np.outer(turn_deg * is_odd, [0, 1, 0]), degrees=True).as_quat()[:, [3, 0, 1, 2]]
    folder = write_dataset(tmp_path / "d", [{"eef": poses, "ft": np.zeros((N, 3))}])
    save_mapping(folder, TEXT)
    assert isinstance(read(folder)[0], Batch) == is_still


def test_without_the_orientation_of_the_hand_the_weight_is_a_warning_and_a_mass_is_refused(tmp_path, caplog):
    folder = write_dataset(tmp_path / "d", [{"eef": hand()[:, :3], "ft": np.tile(BIAS, (N, 1))}])
    text = TEXT.replace('quaternion_order = "wxyz"\n', "")
    save_mapping(folder, text)
    with caplog.at_level(logging.WARNING):
        (batch,) = read(folder)
    assert np.abs(batch.channel("wrist_force_n").values).max() == 0.0
    assert "rotation is unknown" in caplog.text
    save_mapping(folder, f"{text}mass_kg = {MASS}\n")
    assert "mass_kg" in problem(folder)


def test_what_cannot_be_tared_is_asked_for(tmp_path):
    poses = hand(moves_after=0)
    folder = write_dataset(tmp_path / "d", [{"eef": poses, "ft": np.zeros((N, 3))}])
    save_mapping(folder, TEXT)
    assert "never still" in problem(folder)
    save_mapping(folder, TEXT + "tare_s = 0.04\n")
    assert "never still" in problem(folder)
    save_mapping(folder, TEXT + "tare = [0, 0, 0]\n")
    assert len(read(folder)[0]) == 1
    save_mapping(folder, '[episode]\nsuccess = true\n[wrench]\nfrom = "ft"\n')
    assert "hand's pose" in problem(folder)
    assert FPS == 20


@pytest.mark.parametrize(
    ("names", "places"),
    [
        ("fx fy fz tx ty tz", [0, 1, 2]),
        ("torque_x torque_y torque_z force_x force_y force_z", [3, 4, 5]),
        ("wrench.force.x wrench.force.y wrench.force.z wrench.torque.x wrench.torque.y wrench.torque.z", [0, 1, 2]),
        ("Fx Fy Fz", [0, 1, 2]),
        ("tx_Nm ty_Nm tz_Nm fx_N fy_N fz_N", [3, 4, 5]),
        ("x y z", [0, 1, 2]),
    ],
)
def test_names_decide_which_numbers_are_forces(names, places):
    assert decide_forces(names.split(), len(names.split())) == places


# The rule: names that say another quantity are never read as forces.
@pytest.mark.parametrize(
    "names",
    ["", "a b c d e f", "torque_x torque_y torque_z", "tx_mNm ty_mNm tz_mNm", "vx vy vz", "pos_x pos_y pos_z",
     "x_mm y_mm z_mm"],
)  # fmt: skip
def test_numbers_whose_names_say_no_force_are_asked_for(names):
    with pytest.raises(ValueError, match="which three numbers"):
        decide_forces(names.split(), len(names.split()) or 6)


# The rule: a number whose name says another unit or quantity is converted as the mapping says, or refused.
@pytest.mark.parametrize(
    ("names", "answer", "factor"),
    [
        ("fx_kN fy_kN fz_kN", "scale = 1000", 1000.0),
        ("force_x[lbf] force_y[lbf] force_z[lbf]", "scale = 4.44822", 4.44822),
        ("Fx(mN) Fy(mN) Fz(mN)", "scale = 0.001", 0.001),
        ("fx_mV fy_mV fz_mV", "scale = 20", 20.0),
        ("fx_kg fy_kg fz_kg", "scale = -9.80665", -9.80665),
        ("fx_lb fy_lb fz_lb", 'unit = "N"', 1.0),
        ("target_fx target_fy target_fz", 'unit = "N"', 1.0),
    ],
)
def test_a_unit_of_forces_in_names_is_refused_without_a_scale_that_fits(tmp_path, names, answer, factor):
    features = {
        "eef": {"dtype": "float64", "shape": [7], "names": None},
        "ft": {"dtype": "float64", "shape": [3], "names": names.split()},
    }
    folder = write_dataset(tmp_path / "d", [{"eef": hand(), "ft": np.ones((N, 3))}], features=features)
    tared = f"{TEXT}tare = [0, 0, 0]\n"
    for scale in ("", "scale = 1.0\n", "scale = 0.5\n" if factor == 1000 else "scale = -1\n"):
        save_mapping(folder, tared + scale)
        assert "the names say" in problem(folder)
    save_mapping(folder, f"{tared}{answer}\n")
    assert read(folder)[0].channel("wrist_force_n").episode_rows(0)[0] == pytest.approx([factor] * 3)


@pytest.mark.parametrize(
    ("name", "unit", "factor"),
    [
        ("tau_mNm", "mnm", "0.001"), ("torque [lbf·in]", "lbfin", "0.112985"), ("torque N·mm", "nmm", "0.001"),
        ("j1 [A]", "[a]", ""), ("joint1_mA", "ma", ""), ("torque [%]", "%", ""), ("j1_current", "current", ""),
        ("observation.torque.kgf-cm", "kgfcm", "0.0980665"), ("shoulder.pos", "pos", ""), ("ft_lb_x", "ftlb", ""),
        ("Fx [daN]", "dan", "10"), ("fx_grams", "grams", "0.00980665"), ("/dan/ft", "", ""), ("Fx [кг]", "кг", ""),
        ("Fx [0.1 kN]", "0.1 kn", ""), ("tau (Nm/100)", "nm/100", ""), ("Fx (Newton)", "", ""), ("force [x]", "", ""),
        ("shoulder_pan.load", "load", ""), ("Present_Load_1", "load", ""), ("joint1_temperature", "temperature", ""),
        ("fx_cmd", "cmd", ""), ("targetFx", "target", ""), ("fx_std", "std", ""), ("fx_adc", "adc", ""),
        ("tau_cmd_1", "cmd", ""), ("q0", "q", ""), ("joint1_dq", "dq", ""), ("-fx", "-", ""), ("tau_q1", "", ""),
        ("/current_joint_states", "", ""), ("A1", "", ""), ("LB_hip", "", ""), ("tau1_Nm", "", ""), ("N·m", "", ""),
    ],
)  # fmt: skip
def test_units_of_forces_and_torques_are_found_in_names(name, unit, factor):
    assert find_force_unit([name]) == (unit, factor)


def test_words_in_brackets_that_differ_between_joints_are_no_unit():
    assert find_force_unit(["effort [hip]", "effort [knee 2]"]) == ("", "")


def test_forces_of_several_units_are_refused():
    with pytest.raises(ValueError, match="several units"):
        find_force_unit(["fx_N", "fy_kN"])


@pytest.mark.parametrize(
    ("message", "more", "words"),
    [
        ({"name": ["j1", "j2"], "effort": [1.0, 2.0]}, "", ""),
        ({"name": ["q1", "left_q2"], "effort": [1.0, 2.0]}, "", ""),
        ({"data": {"torque": {"q1": 1.0, "q2": 2.0}}}, 'field = "data.torque"\n', ""),
        ({"data": {"q1": 1.0, "q2": 2.0}}, "", "say 'q'"),
        ({"name": ["dq1", "dq2"], "effort": [1.0, 2.0]}, "", "say 'dq'"),
        ({"name": ["j1_mNm", "j2_mNm"], "effort": [1.0, 2.0]}, "", "scale = 0.001"),
        ({"current": [1.0, 2.0]}, 'field = "current"\n', "say 'current'"),
        ({"name": ["j1", "j2"], "position": [1.0, 2.0]}, 'field = "position"\n', "say 'position'"),
        ({"data": {"j1_mA": 1.0, "j2_mA": 2.0}}, "", "say 'ma'"),
        ({"data": {"j1_mA": 1.0, "j2_mA": 2.0}}, "scale = 0.1\n", ""),
    ],
)
def test_a_unit_of_torques_in_messages_is_refused_without_a_scale(tmp_path, message, more, words):
    write_mcap(tmp_path / "take.mcap", [("/j", 5 + 0.1 * k, message) for k in range(9)])
    save_mapping(tmp_path, f'[episode]\nsuccess = true\n[torque]\nfrom = "/j"\nlimits_nm = [9, 9]\n{more}')
    assert words in problem(tmp_path) if words else isinstance(read(tmp_path)[0], Batch)


@pytest.mark.parametrize(
    "names", [("tx", "ty", "tz"), ("pos_x", "pos_y", "pos_z"), ("tau_x", "tau_y", "tau_z"), ("τx", "τy", "τz")]
)
def test_torques_and_positions_in_a_message_are_no_forces(tmp_path, names):
    message = {"data": dict.fromkeys(names, 1.0)}
    write_mcap(tmp_path / "take.mcap", [("/j", 5 + 0.1 * k, message) for k in range(9)])
    save_mapping(tmp_path, '[episode]\nsuccess = true\n[wrench]\nfrom = "/j"\ntare = [0, 0, 0]\n')
    assert "which three numbers" in problem(tmp_path)


@pytest.mark.parametrize(
    ("message", "more", "words"),
    [
        ({"wrench": {"torque": dict.fromkeys("xyz", 1.0)}}, 'field = "wrench.torque"\n', "say 'torque'"),
        ({"data": dict.fromkeys(["tx", "ty", "tz"], 1.0)}, 'names = ["tx", "ty", "tz"]\n', "say 'torque'"),
        ({"wrench": {"force": dict.fromkeys("xyz", 1.0), "torque": {"x": 0.0}}}, "", ""),
        ({"wrist_moment": [1.0] * 3}, 'field = "wrist_moment"\n', "say 'torque'"),
        ({"force_torque": [1.0] * 6}, 'field = "force_torque"\nindex = [0, 1, 2]\n', ""),
    ],
)
def test_a_field_or_names_of_torques_are_no_forces(tmp_path, message, more, words):
    pose = ("/eef", dict.fromkeys("xyz", 0.1))
    rows = [(topic, 5 + 0.1 * k, each) for k in range(9) for topic, each in (pose, ("/ft", message))]
    write_mcap(tmp_path / "take.mcap", rows)
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n[wrench]\nfrom = "/ft"\ntare = [0, 0, 0]\n'
    save_mapping(tmp_path, text + more)
    assert words in problem(tmp_path) if words else isinstance(read(tmp_path)[0], Batch)


def test_joints_named_like_a_doubtful_unit_are_answered_by_the_unit(tmp_path):
    joints = {"name": ["lf", "lb"], "effort": [1.0, 2.0]}
    write_mcap(tmp_path / "take.mcap", [("/j", 5 + 0.1 * k, joints) for k in range(9)])
    text = '[episode]\nsuccess = true\n[torque]\nfrom = "/j"\nlimits_nm = [9, 9]\n'
    save_mapping(tmp_path, text)
    assert 'or `unit = "N m"`' in problem(tmp_path)
    save_mapping(tmp_path, f'{text}unit = "N m"\n')
    assert isinstance(read(tmp_path)[0], Batch)


@pytest.mark.parametrize("topic", ["/force_torque_sensor_broadcaster/wrench", "/torque_sensor", "/ft/force_torque"])
def test_usual_topics_of_force_torque_sensors_are_read(tmp_path, topic):
    wrench = {"wrench": {"force": dict.fromkeys("xyz", 1.0), "torque": dict.fromkeys("xyz", 1.0)}}
    both = (("/e", dict.fromkeys("xyz", 0.1)), (topic, wrench))
    rows = [(name, 5 + 0.1 * k, each) for k in range(9) for name, each in both]
    write_mcap(tmp_path / "take.mcap", rows)
    text = f'[episode]\nsuccess = true\n[eef]\nfrom = "/e"\n[wrench]\nfrom = "{topic}"\ntare = [0, 0, 0]\n'
    save_mapping(tmp_path, text)
    assert isinstance(read(tmp_path)[0], Batch)


@pytest.mark.parametrize("frame", ["base", "/base", "tool"])
def test_forces_in_the_frame_of_the_poses_do_not_turn_with_the_hand(tmp_path, caplog, frame):
    poses = hand(180.0)
    forces = BIAS + (weight(poses) if frame == "tool" else np.tile([0, 0, -MASS * 9.81], (N, 1)))
    rows = []
    for k, (pose, force) in enumerate(zip(poses.tolist(), forces.tolist(), strict=True)):
        place = dict(zip("xyz", pose, strict=False)), dict(zip("wxyz", pose[3:], strict=True))
        entry = {"frame_id": "base", "position": place[0], "orientation": place[1]}
        rows += [("/eef", 5 + 0.05 * k, entry), ("/ft", 5 + 0.05 * k, {"frame_id": frame, "data": force})]
    write_mcap(tmp_path / "take.mcap", rows)
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n[wrench]\nfrom = "/ft"\n'
    save_mapping(tmp_path, text + f"mass_kg = {MASS}\n" * (frame == "tool"))
    (batch,) = read(tmp_path)
    assert np.abs(batch.channel("wrist_force_n").values).max() < 1e-9
    assert "mass_kg" not in caplog.text
    save_mapping(tmp_path, text + f"mass_kg = {MASS}\n" * (frame != "tool"))
    assert (
        ("Leave mass_kg out" in problem(tmp_path))
        if frame != "tool"
        else (read(tmp_path) and "give the" in caplog.text)
    )


@pytest.mark.parametrize(("hit_at", "warns"), [(78.5, True), (-0.5, True), (60.5, False), (None, False)])
def test_a_force_outside_the_records_is_a_warning(tmp_path, caplog, hit_at, warns):
    poses = [
        ("/eef", 5 + 0.05 * k, dict(zip("xyz", pose[:3], strict=True))) for k, pose in enumerate(hand()[:78].tolist())
    ]
    rows = []
    for k in range(-4, 2 * N):
        force = BIAS + [0.0, 0.0, 90.0 * (hit_at == k / 2)] + np.random.default_rng(k + 4).normal(0, 0.3, 3)
        rows.append(("/ft", 5 + 0.025 * k, {"data": force.tolist()}))
    write_mcap(tmp_path / "take.mcap", sorted(poses + rows, key=lambda row: row[1]))
    save_mapping(tmp_path, '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n[wrench]\nfrom = "/ft"\n')
    with caplog.at_level(logging.WARNING):
        (batch,) = read(tmp_path)
    assert isinstance(batch, Batch)
    assert ("is not judged" in caplog.text) == warns


def test_forces_and_torques_of_frames_without_a_hand_are_a_warning(tmp_path, caplog):
    poses, forces = hand(), np.tile(BIAS, (N, 1))
    poses[-3:] = np.nan
    forces[-1] += [0.0, 0.0, 200.0]
    text = f'{TEXT}[torque]\nfrom = "ft"\nlimits_nm = [9, 9, 9]\n'
    with caplog.at_level(logging.WARNING):
        assert measured(tmp_path, poses, forces, text).lengths.tolist() == [N - 3]
    assert "a force of about 200 N before" in caplog.text
    assert "a torque of 207 before" in caplog.text
