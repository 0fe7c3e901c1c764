"""Messages whose poses are recognized by the names of their numbers are read as features of datasets are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from safevla_bench.trajectory.batch import Batch
from sources.logs.log_files import problem, read, save_mapping, write_mcap

TURN = Rotation.from_euler("xyz", [0.3, -0.2, 0.9])
X, Y, Z, W = TURN.as_quat().tolist()
TEXT = '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n'
STATED = 'position = [0, 1, 2]\nrotation = [3, 4, 5]\nrotation_form = "rpy"\n'
SIX = 'field = "tcp"\nposition = [0, 1, 2]\nrotation = [3, 4, 5, 6, 7, 8]\nrotation_form = '
FLAT = {"x": 0.1, "y": 0.2, "z": 0.3}


def write_log(tmp_path, message, more: str = "") -> None:
    write_mcap(tmp_path / "take.mcap", [("/eef", 5 + 0.1 * k, message) for k in range(9)])
    save_mapping(tmp_path, TEXT + more)


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ({**FLAT, "qx": X, "qy": Y, "qz": Z, "qw": W}, ""),
        ({"pos_x": 0.1, "pos_y": 0.2, "pos_z": 0.3, "quat_w": W, "quat_x": X, "quat_y": Y, "quat_z": Z}, ""),
        ({"position": [0.1, 0.2, 0.3], "orientation": [X, Y, Z, W]}, 'quaternion_order = "xyzw"\n'),
        ({"tcp": [0.1, 0.2, 0.3, W, X, Y, Z]}, 'field = "tcp"\nquaternion_order = "wxyz"\n'),
        ({**FLAT, "roll": 0.3, "pitch": -0.2, "yaw": 0.9}, 'rotation_form = "rpy"\n'),
        ({**FLAT, "rotvec": TURN.as_rotvec().tolist()}, ""),
        ({"position": FLAT, "orientation": [X, Y, Z, W]}, 'quaternion_order = "xyzw"\n'),
        ({"pose": {"position": FLAT, "rotation": {"roll": 0.3, "pitch": -0.2, "yaw": 0.9}}}, 'rotation_form = "rpy"\n'),
    ],
)
def test_a_pose_is_read_by_the_names_of_its_numbers(tmp_path, message, more):
    write_log(tmp_path, {"gripper": 0.5, **message}, more)
    (batch,) = read(tmp_path)
    assert isinstance(batch, Batch), f"{batch} {batch.remedy}"
    assert batch.eef_pos_m.episode_rows(0)[0].tolist() == [0.1, 0.2, 0.3]
    assert abs(batch.eef_quat_wxyz.episode_rows(0)[0] @ [W, X, Y, Z]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"position": [0.1, 0.2, 0.3], "orientation": [X, Y, Z, W]}, "quaternion is w"),
        ({"left": FLAT, "right": FLAT}, "names: 2"),
        ({**FLAT, "rx": 0.1, "ry": 0.2, "rz": 0.3}, "which form does"),
        ({"joint1": 0.1, "joint2": 0.2, "joint3": 0.3}, "message has a"),
        ({"position": FLAT, "orientation": [X, Y, Z, W]}, "quaternion is w"),
        ({"position": FLAT, "attitude": {"a": X, "b": Y, "c": Z, "d": W}}, "are the orientation"),
        ({**FLAT, "a": X, "b": Y, "c": Z, "d": W}, "are the orientation"),
    ],
)
def test_where_names_do_not_decide_a_message_is_asked_about(tmp_path, message, words):
    write_log(tmp_path, message)
    assert words in problem(tmp_path)


@pytest.mark.parametrize("more", [{}, {"orientation": None}, {"valid": True}, {"velocity": FLAT}])
def test_a_position_without_numbers_that_may_be_an_orientation_is_read_alone(tmp_path, more):
    write_log(tmp_path, {"header": {"seq": 3, "frame_id": 7}, "position": FLAT, **more})
    (batch,) = read(tmp_path)
    assert not batch.eef_quat_wxyz.present.any()


@pytest.mark.parametrize("other", [{"layout": {"data_offset": 0}}, {"header": {"seq": 3}}])
def test_indices_count_only_numbers_that_may_be_a_pose(tmp_path, other):
    write_log(tmp_path, {**other, "data": [0.1, 0.2, 0.3, 0.4]}, "position = [0, 1, 2]\n")
    (batch,) = read(tmp_path)
    assert batch.eef_pos_m.episode_rows(0)[0].tolist() == [0.1, 0.2, 0.3]


def test_a_number_that_a_message_lacks_is_a_lost_pose(tmp_path):
    rows = [("/eef", 5 + 0.1 * k, {**FLAT, "x": None if k == 4 else 0.1}) for k in range(9)]
    write_mcap(tmp_path / "take.mcap", rows)
    save_mapping(tmp_path, TEXT)
    (batch,) = read(tmp_path)
    assert batch.lengths.tolist() == [8]
    assert np.isfinite(batch.eef_pos_m.episode_rows(0)).all()


@pytest.mark.parametrize(
    ("message", "more", "words"),
    [
        ({"position": FLAT, "orientation": {"x": -2.2, "y": 0.1, "z": 1.8, "w": 0.8}}, "", "its norm is 2.95"),
        ({"tcp": [0.1, 0.2, 0.3, 0.1, -0.5, 0.0, -2.2, 0.1, 1.8]}, SIX + '"6d"\n', "unit vectors"),
        ({"tcp": [0.1, 0.2, 0.3, 2.0, 0.0, 0.0, 0.0, 2.0, 0.0]}, SIX + '"6d_rows"\n', "unit vectors"),
        ({"position": FLAT, "orientation": {"x": 0.0, "y": 0.0, "z": 0.9, "w": 0.0}}, "", ""),
        ({"position": FLAT, "orientation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 0.0}}, "", ""),
        ({"tcp": [0.1, 0.2, 0.3, 1.0, 0.0, 0.0, 0.0, 1.0, 0.01]}, SIX + '"6d"\n', ""),
    ],
)
def test_numbers_of_a_message_that_are_no_rotation_are_refused(tmp_path, message, more, words):
    # The rule: numbers that mostly are no rotation, such as joint angles, are refused wherever they come from.
    write_log(tmp_path, message, more)
    assert words in problem(tmp_path) if words else isinstance(read(tmp_path)[0], Batch)


def test_the_largest_force_between_two_records_is_kept_and_the_offset_subtracted(tmp_path):
    def pose(k: int) -> dict:
        return {"pose": {"position": {"x": 0.0, "y": 0.0, "z": 0.3}, "orientation": {"x": 0, "y": 0, "z": 0, "w": 1}}}

    def wrench(z: float) -> dict:
        return {"wrench": {"force": {"x": 5.0, "y": 0.0, "z": z}, "torque": {"x": 0.0, "y": 0.0, "z": 0.0}}}

    rows = [("/eef", 5 + 0.1 * k, pose(k)) for k in range(40)]
    rows += [("/ft", 5.001 + 0.01 * k, wrench(-200.0 if k == 305 else -1.0)) for k in range(390)]
    write_mcap(tmp_path / "take.mcap", sorted(rows, key=lambda row: row[1]))
    save_mapping(tmp_path, TEXT + '[wrench]\nfrom = "/ft"\n')
    (batch,) = read(tmp_path)
    assert isinstance(batch, Batch), f"{batch} {batch.remedy}"
    norms = np.linalg.norm(batch.channel("wrist_force_n").episode_rows(0), axis=1)
    assert norms.max() == pytest.approx(199.0)
    assert (norms > 1).sum() == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("position = [3, 4, 5]\n", "indices do not apply"),
        ('position = [0, 1, 2]\nrotation = [3, 4, 5]\nrotation_form = "rpy"\n', "indices do not apply"),
        ('rotation_form = "rotvec"\n', "indices do not apply"),
    ],
)
def test_indices_into_a_message_that_names_its_position_are_refused(tmp_path, more, words):
    turn = {"x": X, "y": Y, "z": Z, "w": W}
    write_log(tmp_path, {"position": FLAT, "orientation": turn, "tcp": {"x": 1.0, "y": 2.0, "z": 3.0}}, more)
    assert words in problem(tmp_path)


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ({"pose_mm": {"position": FLAT}}, ""),
        ({"pose_mm": {"position": FLAT}}, 'field = "pose_mm"\n'),
        ({"tcp_mm": FLAT}, ""),
        ({"tcp_mm": FLAT}, 'field = "tcp_mm"\n'),
        ({"tcp_mm": FLAT}, 'field = "tcp_mm"\nunit = "mm"\n'),
        ({"x_millimeters": 0.1, "y_millimeters": 0.2, "z_millimeters": 0.3}, ""),
        ({"tcp_mm": {**FLAT, "roll": 0.3, "pitch": -0.2, "yaw": 0.9}}, 'rotation_form = "rpy"\n'),
        ({"pose_mm_deg": {**FLAT, "roll": 9, "pitch": 0, "yaw": 0}}, 'field = "pose_mm_deg"\nrotation_form = "rpy"\n'),
        ({"pose": {"position": FLAT}}, 'unit = "mm"\n'),
        ({"pose_in": {"left_foot": FLAT}}, 'field = "pose_in.left_foot"\nunit = "mm"\n'),  # no unit without an axis
    ],
)
def test_a_unit_in_the_name_of_a_field_or_of_its_numbers_is_read(tmp_path, message, more):
    write_log(tmp_path, message, more)
    (batch,) = read(tmp_path)
    assert batch.eef_pos_m.episode_rows(0)[0] == pytest.approx([1e-4, 2e-4, 3e-4])


@pytest.mark.parametrize(
    ("message", "more", "words"),
    [
        ({"tcp_mm": FLAT}, 'field = "tcp_mm"\nunit = "m"\n', "the unit in the names is 'mm'"),
        ({"x_inch": 0.1, "y_inch": 0.2, "z_inch": 0.3}, "", "the unit 'inch'"),
        ({"x_in": 0.1, "y_in": 0.2, "z_in": 0.3}, "", "the unit of the numbers is 'in'"),
        ({"px_in": 0.1, "py_in": 0.2, "pz_in": 0.3}, "", "the unit of the numbers is 'in'"),
        ({"x_pos_in": 0.1, "y_pos_in": 0.2, "z_pos_in": 0.3}, "", "the unit of the numbers is 'in'"),
        ({"pos_in_x": 0.1, "pos_in_y": 0.2, "pos_in_z": 0.3}, "", "the unit of the numbers is 'in'"),
        ({"x_ft": 0.1, "y_ft": 0.2, "z_ft": 0.3}, "", "the unit of the numbers is 'ft'"),
        ({"pos_feet_x": 0.1, "pos_feet_y": 0.2, "pos_feet_z": 0.3}, "", "the unit of the numbers is 'ft'"),
        ({"x_μm": 0.1, "y_μm": 0.2, "z_μm": 0.3}, "", "the unit 'um'"),
        ({"x_mi": 0.1, "y_mi": 0.2, "z_mi": 0.3}, "", "the unit 'mi'"),
        ({"pos_dm": FLAT}, 'field = "pos_dm"\n', "the unit 'dm'"),
        *(
            ({f"{axis}_{unit}": 0.1 for axis in "xyz"}, "", words)
            for unit, words in [
                ("thou", "the unit 'thou'"),
                ("mil", "the unit 'thou'"),
                ("Å", "'angstrom'"),
                ("hm", "unit 'hm'"),
                ("µ", "the unit 'um'"),
                ("[m/s]", "unit 'm/s'"),
                ("m_s", "unit 'm/s'"),
                ("pixels", "the unit 'pixel'"),
                ("[%]", "numbers is '%'"),
                ("(foo)", "numbers is 'foo'"),
                ("mm_m", "several units"),
            ]
        ),
        ({**FLAT, "roll_rev": 1, "pitch_rev": 1, "yaw_rev": 1}, "", "the unit 'rev'"),
        ({**FLAT, "roll[deg/s]": 1, "pitch[deg/s]": 1, "yaw[deg/s]": 1}, STATED, "the unit 'deg/s'"),
        ({**FLAT, "roll[']": 1, "pitch[']": 1, "yaw[']": 1}, STATED, "unit of the numbers is"),
        ({**FLAT, "roll_gon": 1, "pitch_gon": 1, "yaw_gon": 1}, "", "the unit 'gon'"),
        ({"x_deg": 0.1, "y_deg": 0.2, "z_deg": 0.3}, "", "The names say 'deg'"),
        ({**FLAT, "roll_deg": 1, "pitch_deg": 1, "yaw_deg": 1}, 'angle_unit = "rad"\n', "in the names is 'deg'"),
        ({**FLAT, "roll_mrad": 1, "pitch_mrad": 1, "yaw_mrad": 1}, "", "the unit 'mrad'"),
    ],
)
def test_a_unit_that_contradicts_the_mapping_or_is_unknown_is_refused(tmp_path, message, more, words):
    # The rule: a unit in a name is converted if it is certain and convertible, else asked about or refused.
    write_log(tmp_path, message, more)
    assert words in problem(tmp_path)


@pytest.mark.parametrize(
    ("names", "more"),
    [
        (("x_in_base", "y_in_base", "z_in_base"), ""),
        (("left_foot_x", "left_foot_y", "left_foot_z"), ""),
        (("x_in", "y_in", "z_in"), 'unit = "m"\n'),
        (("x_foot", "y_foot", "z_foot"), 'unit = "m"\n'),
        (("x (base)", "y (base)", "z (base)"), 'unit = "m"\n'),
        (("pos[x]", "pos[y]", "pos[z]"), ""),
        (("x [m]", "y [m]", "z [m]"), ""),
    ],
)
def test_words_that_may_name_a_unit_are_no_unit_elsewhere_or_if_the_mapping_says_so(tmp_path, names, more):
    write_log(tmp_path, dict(zip(names, (0.1, 0.2, 0.3), strict=True)), more)
    (batch,) = read(tmp_path)
    assert batch.eef_pos_m.episode_rows(0)[0] == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("sign", ["(°)", "[deg]", "_º", " ˚"])
def test_a_sign_for_degrees_is_their_unit(tmp_path, sign):
    angles = {f"{name}{sign}": number for name, number in (("roll", 3.0), ("pitch", 0.0), ("yaw", 0.0))}
    write_log(tmp_path, {**FLAT, **angles})  # 3 is less than a full turn in radians
    (batch,) = read(tmp_path)
    expected = Rotation.from_euler("x", 3, degrees=True).as_quat()[[3, 0, 1, 2]]
    assert batch.eef_quat_wxyz.episode_rows(0)[0] == pytest.approx(expected)


@pytest.mark.parametrize(("topic", "key"), [("/tcp_mm", "unit"), ("/tcp_inch", "unit"), ("/tcp_deg", "angle_unit")])
def test_a_unit_that_only_the_source_names_is_asked_about(tmp_path, topic, key):
    message = {**FLAT, "roll": 0.3, "pitch": -0.2, "yaw": 0.9}
    write_mcap(tmp_path / "take.mcap", [(topic, 5 + 0.1 * k, message) for k in range(9)])
    text = TEXT.replace("/eef", topic) + 'rotation_form = "rpy"\n'
    save_mapping(tmp_path, text)
    assert f"write `{key}`" in problem(tmp_path)
    save_mapping(tmp_path, f'{text}{key} = "{"m" if key == "unit" else "rad"}"\n')
    (batch,) = read(tmp_path)
    assert isinstance(batch, Batch), batch


def test_the_name_of_a_marker_is_no_unit(tmp_path):
    write_log(tmp_path, {f"m1_{axis}_mm": 100.0 for axis in "xyz"})
    (batch,) = read(tmp_path)
    assert batch.eef_pos_m.episode_rows(0)[0] == pytest.approx([0.1, 0.1, 0.1])


def test_a_pose_in_millimeters_is_converted_before_transforms_in_meters(tmp_path):
    turn = {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}
    pose = {
        "header": {"frame_id": "base"},
        "pose": {"position": {"x": 100.0, "y": 0.0, "z": 300.0}, "orientation": turn},
    }
    edge = {
        "header": {"frame_id": "world"},
        "child_frame_id": "base",
        "transform": {"translation": {"x": 1.0, "y": 2.0, "z": 0.0}, "rotation": turn},
    }
    messages = [("/tf_static", 4.9, {"transforms": [edge]}), *(("/eef", 5 + 0.1 * k, pose) for k in range(9))]
    write_mcap(tmp_path / "take.mcap", messages)
    save_mapping(tmp_path, TEXT + 'unit = "mm"\nin = "world"\n')
    (batch,) = read(tmp_path)
    assert batch.eef_pos_m.episode_rows(0)[0] == pytest.approx([1.1, 2.0, 0.3])


@pytest.mark.parametrize(
    ("part", "data", "more", "words"),
    [
        ("wrench", 7.0, "", "1 number is mapped, not 3"),
        ("wrench", [1, 2, 3, 4, 5, 6], "", "6 numbers are mapped, not 3"),
        ("gripper", [0.0, 0.02], "holds_above = 0.01\n", "2 numbers are mapped, not 1"),
    ],
)
def test_a_gripper_is_one_number_and_a_wrench_are_three(tmp_path, part, data, more, words):
    messages = [
        (topic, 5 + 0.1 * k, message)
        for k in range(9)
        for topic, message in (("/eef", FLAT), ("/other", {"data": data}))
    ]
    write_mcap(tmp_path / "take.mcap", messages)
    tare = "tare = [0, 0, 0]\n" if part == "wrench" else ""
    save_mapping(tmp_path, f'{TEXT}[{part}]\nfrom = "/other"\n{tare}{more}')
    assert words in problem(tmp_path)


def test_an_angle_s_unit_in_the_name_of_a_field_is_read(tmp_path):
    message = {"pose_mm_deg": {**FLAT, "roll": 9.0, "pitch": 0.0, "yaw": 0.0}}
    write_log(tmp_path, message, 'field = "pose_mm_deg"\nrotation_form = "rpy"\n')
    (batch,) = read(tmp_path)
    expected = Rotation.from_euler("x", 9, degrees=True).as_quat()[[3, 0, 1, 2]]
    assert batch.eef_quat_wxyz.episode_rows(0)[0] == pytest.approx(expected)


def test_numbers_stored_as_float32_keep_their_tolerance_in_any_unit(tmp_path):
    single = {axis: float(np.float32(number)) for axis, number in FLAT.items()}
    marks = []
    for unit in ("m", "mm"):
        folder = tmp_path / unit
        folder.mkdir()
        write_log(folder, {"pose": {"position": single}}, f'unit = "{unit}"\n')
        (batch,) = read(folder)
        marks.append(batch.extra[0])
    assert marks[0] == marks[1]
    assert "eef_pos_m" in str(marks[0])


def test_indices_that_skip_a_header_are_a_warning(tmp_path, caplog):
    with caplog.at_level("WARNING"):
        write_log(tmp_path, {"header": {"seq": 3}, "data": [0.1, 0.2, 0.3, 0.4]}, "position = [0, 1, 2]\n")
        assert len(read(tmp_path)) == 1
    assert "indices skip numbers" in caplog.text


def test_a_rotation_that_is_null_in_the_first_message_is_a_lost_pose(tmp_path):
    angles = {"roll": 0.3, "pitch": -0.2, "yaw": 0.9}
    poses = [{"pose": {"position": FLAT, "rotation": dict.fromkeys(angles) if k == 0 else angles}} for k in range(9)]
    write_mcap(tmp_path / "take.mcap", [("/eef", 5 + 0.1 * k, pose) for k, pose in enumerate(poses)])
    save_mapping(tmp_path, TEXT + 'rotation_form = "rpy"\n')
    (batch,) = read(tmp_path)
    assert batch.lengths.tolist() == [8]


def test_the_names_of_a_wrench_choose_its_forces(tmp_path):
    wrench = {"name": [], "data": {"tx": 9.0, "ty": 9.0, "tz": 9.0, "fx": 1.0, "fy": 2.0, "fz": 3.0}}
    messages = [(topic, 5 + 0.1 * k, m) for k in range(9) for topic, m in (("/eef", FLAT), ("/ft", wrench))]
    write_mcap(tmp_path / "take.mcap", messages)
    save_mapping(tmp_path, f'{TEXT}[wrench]\nfrom = "/ft"\ntare = [0, 0, 0]\n')
    (batch,) = read(tmp_path)
    assert batch.channel("wrist_force_n").episode_rows(0)[0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "message", [{"force": {"z": 3.0, "y": 2.0, "x": 1.0}}, {"fx": 1.0, "fy": 2.0, "fz": 3.0, "tx": 9.0}]
)
def test_forces_are_ordered_by_the_axes_in_their_names(tmp_path, message):
    messages = [(topic, 5 + 0.1 * k, m) for k in range(9) for topic, m in (("/eef", FLAT), ("/ft", message))]
    write_mcap(tmp_path / "take.mcap", messages)
    save_mapping(tmp_path, f'{TEXT}[wrench]\nfrom = "/ft"\ntare = [0, 0, 0]\n')
    (batch,) = read(tmp_path)
    assert batch.channel("wrist_force_n").episode_rows(0)[0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("first", "more"),
    [
        ({"tcp": None}, 'field = "tcp"\nquaternion_order = "xyzw"\n'),
        ({"tcp": None}, 'field = "tcp"\nposition = [0, 1, 2]\nquaternion = [3, 4, 5, 6]\nquaternion_order = "xyzw"\n'),
        ({}, 'field = "tcp"\nquaternion_order = "xyzw"\n'),
    ],
)
def test_an_unknown_first_pose_is_a_lost_pose(tmp_path, first, more):
    poses = [first if k == 0 else {"tcp": [0.1, 0.2, 0.3, X, Y, Z, W]} for k in range(9)]
    write_mcap(tmp_path / "take.mcap", [("/eef", 5 + 0.1 * k, pose) for k, pose in enumerate(poses)])
    save_mapping(tmp_path, TEXT + more)
    (batch,) = read(tmp_path)
    assert batch.lengths.tolist() == [8]
    assert batch.eef_pos_m.episode_rows(0)[0].tolist() == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("other", ["time", "id", "seq"])
def test_a_position_of_several_fields_is_refused(tmp_path, other):
    write_log(tmp_path, {other: 7.0, "data": [0.1, 0.2, 0.3]}, "position = [0, 1, 2]\n")
    assert "several fields" in problem(tmp_path)
    write_log(tmp_path, {other: 7.0, "data": [0.1, 0.2, 0.3]}, 'field = "data"\nposition = [0, 1, 2]\n')
    (batch,) = read(tmp_path)
    assert batch.eef_pos_m.episode_rows(0)[0].tolist() == [0.1, 0.2, 0.3]


def test_a_trial_with_bad_matrices_leaves_the_others_readable(tmp_path):
    turns = [(1.0 if k < 4 else 3.0) * np.eye(3) for k in range(9)]
    messages = [("/eef", 5 + 0.1 * k, {**FLAT, "R": turn.ravel().tolist()}) for k, turn in enumerate(turns)]
    write_mcap(tmp_path / "take.mcap", messages)
    trials = "".join(f"[[episode]]\nsuccess = true\n{bound}\n" for bound in ("end_s = 0.35", "start_s = 0.35"))
    rotation = "position = [0, 1, 2]\nrotation = [3, 4, 5, 6, 7, 8, 9, 10, 11]\n"
    save_mapping(tmp_path, f'{trials}[eef]\nfrom = "/eef"\nrotation_form = "matrix"\n{rotation}')
    good, bad = read(tmp_path)
    assert good.lengths.tolist() == [4]
    assert "not a rotation matrix" in str(bad)


def test_many_unknown_poses_at_the_start_are_a_warning(tmp_path, caplog):
    poses = [{**FLAT, "x": None if 0 < k < 4 else 0.1} if k else {**FLAT, "x": None} for k in range(9)]
    write_mcap(tmp_path / "take.mcap", [("/eef", 5 + 0.1 * k, pose) for k, pose in enumerate(poses)])
    save_mapping(tmp_path, TEXT)
    with caplog.at_level("WARNING"):
        (batch,) = read(tmp_path)
    assert batch.lengths.tolist() == [5]
    assert "4 of 9 clock times at the start" in caplog.text


def test_the_warning_on_roll_pitch_and_yaw_names_their_unit(tmp_path, caplog):
    with caplog.at_level("WARNING"):
        write_log(tmp_path, {**FLAT, "roll_deg": 9.0, "pitch_deg": 0.0, "yaw_deg": 0.0})
        assert len(read(tmp_path)) == 1
    assert "in degrees" in caplog.text


def test_the_name_of_a_message_is_not_a_list_of_names(tmp_path):
    grip = {"name": "gripper", "position": 0.02}
    messages = [(topic, 5 + 0.1 * k, m) for k in range(9) for topic, m in (("/eef", FLAT), ("/g", grip))]
    write_mcap(tmp_path / "take.mcap", messages)
    save_mapping(tmp_path, f'{TEXT}[gripper]\nfrom = "/g"\nholds_above = 0.01\n')
    (batch,) = read(tmp_path)
    assert batch.gripper_contact.values.all()


def test_an_order_of_quaternions_that_contradicts_the_field_s_name_is_a_question(tmp_path):
    message = {"tcp_wxyz": [0.1, 0.2, 0.3, W, X, Y, Z]}
    write_log(tmp_path, message, 'field = "tcp_wxyz"\nquaternion_order = "xyzw"\n')
    assert "xyzw, as the mapping says, or wxyz" in problem(tmp_path)
    write_log(tmp_path, message, 'field = "tcp_wxyz"\nquaternion_order = "wxyz"\n')
    assert isinstance(read(tmp_path)[0], Batch)


def test_a_cube_is_not_quietly_the_hand(tmp_path, caplog):
    wrist = {f"wrist_{axis}": 0.1 for axis in "xyz"}
    cube = {f"cube_{axis}": 0.2 for axis in "xyz"}
    write_log(tmp_path, {**cube, **wrist})
    assert "x, y, z of [eef]? Those found are cube_x" in problem(tmp_path)
    assert "position = " in problem(tmp_path)
    write_log(tmp_path, {**cube, **wrist}, "position = [3, 4, 5]\n")
    (batch,) = read(tmp_path)
    assert batch.eef_pos_m.episode_rows(0)[0].tolist() == [0.1, 0.1, 0.1]
    write_log(tmp_path, cube)
    with caplog.at_level("WARNING"):
        assert len(read(tmp_path)) == 1
    assert "[eef] is read from cube_x" in caplog.text


@pytest.mark.parametrize(
    ("part", "content", "words"),
    [
        ("wrench", [1, 2, 3], "those of /m are list"),
        ("wrench", 7.5, "those of /m are float"),
        ("torque", None, "those of /m are NoneType"),
        ("torque", {"data": [10**400, 1, 2]}, "a message of /m has other values"),
        ("bodies.cup", {"transforms": 5}, "a message of /m has other values"),
        ("bodies.cup", {**FLAT, "header": {"stamp": {"sec": 1e300}}}, "a message of /m has other values"),
    ],
)
def test_a_message_of_another_form_is_the_user_s_error_and_no_damage(tmp_path, part, content, words):
    # The rule: what a message holds is an error with the topic, the part and a remedy, and no damaged file.
    write_mcap(tmp_path / "take.mcap", [("/m", 5 + 0.1 * k, content) for k in range(9)])
    more = {"wrench": "tare = [0, 0, 0]", "torque": "limits_nm = [9, 9, 9]"}.get(part, 'role = "target"')
    save_mapping(tmp_path, f'[episode]\nsuccess = true\n[{part}]\nfrom = "/m"\n{more}\n')
    text = problem(tmp_path)
    assert [word in text for word in (words, part, "damaged")] == [True, True, False]


def test_joints_whose_names_are_numbers_are_read(tmp_path):
    joints = {"name": [1, 2], "effort": [1.0, 2.0]}
    write_mcap(tmp_path / "take.mcap", [("/m", 5 + 0.1 * k, joints) for k in range(9)])
    save_mapping(tmp_path, '[episode]\nsuccess = true\n[torque]\nfrom = "/m"\nlimits_nm = [9, 9]\n')
    (batch,) = read(tmp_path)
    assert isinstance(batch, Batch), batch


@pytest.mark.parametrize("topic", ["/ee/velocity", "/tcp_acc", "/eef/force", "/twist/linear"])
def test_a_topic_that_says_another_quantity_is_no_pose_unless_the_mapping_says_so(tmp_path, topic):
    write_mcap(tmp_path / "take.mcap", [(topic, 5 + 0.1 * k, FLAT) for k in range(9)])
    save_mapping(tmp_path, TEXT.replace("/eef", topic))
    assert "does not name a pose" in problem(tmp_path)
    save_mapping(tmp_path, TEXT.replace("/eef", topic) + "position = [0, 1, 2]\n")
    assert isinstance(read(tmp_path)[0], Batch)


@pytest.mark.parametrize("word", ["velocities", "ee_commanded", "tcp_setpoint"])
def test_velocities_and_commands_are_no_position(tmp_path, word):
    write_log(tmp_path, {word: FLAT})
    assert "no message has a pose" in problem(tmp_path)


def test_a_hand_at_the_origin_throughout_is_a_warning(tmp_path, caplog):
    # As the bottom row of a homogeneous matrix, which is stored by columns but read by rows.
    write_log(tmp_path, {"x": 0.0, "y": 0.0, "z": 0.0})
    with caplog.at_level("WARNING"):
        assert isinstance(read(tmp_path)[0], Batch)
    assert "[eef] is at the origin throughout" in caplog.text
