"""Names decide which number of a pose is which; where they do not decide, nothing is guessed."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from safevla_bench.sources.logs.names import PoseLayout, decide_pose, find_owner_doubt, rotations_to_wxyz, suggest_pose

QUATERNIONS = [
    "x y z qx qy qz qw",
    "X Y Z QX QY QZ QW",
    "pos_x pos_y pos_z quat_x quat_y quat_z quat_w",
    "ee_pos_x ee_pos_y ee_pos_z ee_quat_x ee_quat_y ee_quat_z ee_quat_w",
    "position.x position.y position.z orientation.x orientation.y orientation.z orientation.w",
    "pose.position.x pose.position.y pose.position.z pose.orientation.x pose.orientation.y pose.orientation.z "
    "pose.orientation.w",
    "x y z rx ry rz rw",
    "px py pz q_x q_y q_z q_w",
    "posX posY posZ quatX quatY quatZ quatW",
    "robot0_eef_pos_x robot0_eef_pos_y robot0_eef_pos_z robot0_eef_quat_x robot0_eef_quat_y robot0_eef_quat_z "
    "robot0_eef_quat_w",
    "left_x left_y left_z left_qx left_qy left_qz left_qw",
    "translation.x translation.y translation.z rotation.x rotation.y rotation.z rotation.w",
]
OTHERS = {
    "rpy": [
        "x y z roll pitch yaw",
        "ee.x ee.y ee.z ee.roll ee.pitch ee.yaw",
        "tcp_x tcp_y tcp_z tcp_roll tcp_pitch tcp_yaw",
    ],
    "rotvec": [
        "ee.x ee.y ee.z ee.wx ee.wy ee.wz",
        "x y z rotvec_x rotvec_y rotvec_z",
        "x y z axis_angle_x axis_angle_y axis_angle_z",
    ],
    "6d": [
        "x y z rot6d_0 rot6d_1 rot6d_2 rot6d_3 rot6d_4 rot6d_5",
        "pos_x pos_y pos_z r_6d_1 r_6d_2 r_6d_3 r_6d_4 r_6d_5 r_6d_6",
    ],
}


def written(turn: Rotation, form: str) -> np.ndarray:
    """The numbers of a rotation, a quaternion as x, y, z, w."""
    if form == "rpy":
        return turn.as_euler("xyz")
    if form == "rotvec":
        return turn.as_rotvec()
    return turn.as_matrix()[:, :2].T.ravel() if form == "6d" else turn.as_quat()


SPELLINGS = [("quaternion", text) for text in QUATERNIONS] + [(form, text) for form in OTHERS for text in OTHERS[form]]


@pytest.mark.parametrize(("form", "text"), SPELLINGS)
@given(angles=st.tuples(*[st.floats(-1.5, 1.5)] * 3), shuffle=st.randoms(use_true_random=False))
def test_every_spelling_in_every_order_gives_the_pose(form, text, angles, shuffle):
    turn = Rotation.from_euler("xyz", angles)
    named = list(zip(text.split(), [1.0, 2.0, 3.0, *written(turn, form)], strict=True))
    named += [("gripper", 0.5), ("shoulder_pan.pos", 9.0), ("vx", 7.0)]
    shuffle.shuffle(named)
    names, numbers = zip(*named, strict=True)
    layout = decide_pose(names, len(names))
    row = np.array([numbers])
    assert row[0, list(layout.position)].tolist() == [1.0, 2.0, 3.0]
    wxyz = rotations_to_wxyz(row[:, layout.rotation], layout.form)[0]
    assert abs(wxyz @ turn.as_quat()[[3, 0, 1, 2]]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("shoulder_pan.pos shoulder_lift.pos elbow_flex.pos wrist_flex.pos wrist_roll.pos gripper.pos", "names: none"),
        ("left_x left_y left_z right_x right_y right_z", "names: 2"),
        (
            "robot0_eef_pos_x robot0_eef_pos_y robot0_eef_pos_z robot1_eef_pos_x robot1_eef_pos_y robot1_eef_pos_z",
            "names: 2",
        ),
        ("right_hip_x right_hip_y right_hip_z", "names: none"),
        ("kLeftShoulderPitch kLeftShoulderRoll kLeftShoulderYaw", "names: none"),
        ("joint_0 joint_1 joint_2", "names: none"),
        ("vel_x vel_y vel_z", "names: none"),
        ("x y theta", "names: none"),
        ("x y z rx ry rz gripper", "which form does"),
        ("x y z euler_x euler_y euler_z", "which form does"),
        ("x y z quat_0 quat_1 quat_2 quat_3", "quaternion is w"),
        ("x y z orientation_0 orientation_1 orientation_2 orientation_3", "quaternion is w"),
        ("fx fy fz tx ty tz", "names: none"),
        ("x_dot y_dot z_dot", "names: none"),
        ("x_err y_err z_err mag_x mag_y mag_z", "names: none"),
        ("force.x force.y force.z torque.x torque.y torque.z", "names: none"),
        ("x y z euler_0 euler_1 euler_2", "which form does"),
        ("x y z rot_0 rot_1 rot_2", "which form does"),
        ("x y z qx qy qz", "which form does"),
        ("left_x left_y left_z right_qx right_qy right_qz right_qw", "which rotation"),
        ("x y z mug_qx mug_qy mug_qz mug_qw", "which rotation"),
        ("left_x left_y left_z left_qx left_qy left_qz left_qw qx qy qz qw", "which rotation"),
        ("x y z a b c d", "which numbers are the orientation"),
        ("x y z rxz ryz rzz", "which numbers are the orientation"),
        ("x y z a1 a2 a3 a4 gripper", "which numbers are the orientation"),
        ("x y z yaw", "which numbers are the orientation"),
        ("gripper_to_cube_pos_x gripper_to_cube_pos_y gripper_to_cube_pos_z", "in the names: none"),
        ("ee_moment_x ee_moment_y ee_moment_z", "in the names: none"),
        ("ee_diff_x ee_diff_y ee_diff_z", "in the names: none"),
        ("-x -y z", "in the names: none"),
        ("pose.-x pose.y pose.z", "in the names: none"),
        ("neg_x neg_y z", "in the names: none"),
        ("x y z qx qy", "which numbers are the orientation"),
        ("", "no names"),
    ],
)
def test_names_that_do_not_decide_are_a_question(text, question):
    names = text.split()
    with pytest.raises(ValueError, match=question):
        decide_pose(names, len(names) or 7)
    assert suggest_pose(names, len(names) or 7)


@pytest.mark.parametrize(
    ("numbers", "settings"),
    [
        ("mug_qx mug_qy mug_qz mug_qw", {"order": "xyzw"}),
        ("mug_quat_0 mug_quat_1 mug_quat_2 mug_quat_3", {"order": "wxyz"}),
        ("mug_roll mug_pitch mug_yaw", {"form": "rpy"}),
        ("mug_euler_x mug_euler_y mug_euler_z", {"form": "rpy"}),
        ("mug_rotvec_x mug_rotvec_y mug_rotvec_z", {"form": "rotvec"}),
        ("mug_rot6d_0 mug_rot6d_1 mug_rot6d_2 mug_rot6d_3 mug_rot6d_4 mug_rot6d_5", {"form": "6d"}),
    ],
)
def test_lines_for_rotations_of_another_object_resolve_the_question_with_and_without_an_orientation(numbers, settings):
    names = f"x y z {numbers}".split()
    lines = tomllib.loads("\n".join(suggest_pose(names, len(names))))
    assert lines == {"position": [0, 1, 2], "rotation": "FILL IN"}
    rotation = tuple(range(3, len(names)))
    assert set(decide_pose(names, len(names), (0, 1, 2), rotation, **settings).rotation) == {*rotation}
    assert not decide_pose(names, len(names), (0, 1, 2)).rotation


def test_of_several_rotations_the_one_whose_names_have_the_words_of_a_stated_position_is_its_own():
    names = ["left_x", "left_y", "left_z", "left_qx", "left_qy", "left_qz", "left_qw", "qx", "qy", "qz", "qw"]
    with pytest.raises(ValueError, match="give several"):
        decide_pose(names, 11)
    assert "delete this line" not in "".join(suggest_pose(names, 11))
    assert decide_pose(names, 11, (0, 1, 2)).rotation == (6, 3, 4, 5)
    with pytest.raises(ValueError, match="the names another"):
        decide_pose(names, 11, (0, 1, 2), (7, 8, 9, 10))


@pytest.mark.parametrize(
    ("numbers", "place", "rotation", "has_doubt"),
    [
        ("x y z qx qy qz qw cube_x cube_y cube_z", 7, (), False),  # the hand's quaternion once turned the cube
        ("ee_x ee_y ee_z ee_qx ee_qy ee_qz ee_qw cube_x cube_y cube_z", 7, (), False),
        ("tcp_x tcp_y tcp_z tcp_roll tcp_pitch tcp_yaw cube_x cube_y cube_z", 6, (), False),
        ("x y z hand_qx hand_qy hand_qz hand_qw", 0, (), True),
        ("hand_qx hand_qy hand_qz hand_qw cube_p0 cube_p1 cube_p2 cube_qx cube_qy cube_qz cube_qw", 4, (), True),
        ("p0 p1 p2 cube_qx cube_qy cube_qz cube_qw", 0, (), False),
        ("cube_x cube_y cube_z cube_qx cube_qy cube_qz cube_qw qx qy qz qw", 0, (6, 3, 4, 5), False),
        ("ee.pos.x ee.pos.y ee.pos.z ee.quat.w ee.quat.x ee.quat.y ee.quat.z", 0, (3, 4, 5, 6), False),
        ("x_mm y_mm z_mm qx qy qz qw", 0, (6, 3, 4, 5), False),
        ("wrist_x wrist_y wrist_z wrist_qx wrist_qy wrist_qz wrist_qw", 0, (), True),
        ("target_x target_y target_z target_vx target_vy target_vz ee_roll wrist_roll", 0, (), False),
    ],
)
def test_a_stated_position_has_only_the_orientation_whose_names_have_its_words(numbers, place, rotation, has_doubt):
    names = numbers.split()
    layout = decide_pose(names, len(names), range(place, place + 3))
    assert (layout.rotation, "without an orientation" in layout.doubt) == (rotation, has_doubt)


def test_four_numbers_are_a_quaternion_only_if_names_or_the_mapping_say_so():
    assert decide_pose([], 7, order="xyzw").rotation == (6, 3, 4, 5)
    assert decide_pose([], 3) == PoseLayout((0, 1, 2))
    names = ["x", "y", "z", "a", "b", "c", "d"]
    assert decide_pose(names, 7, position=(0, 1, 2)).rotation == ()


@pytest.mark.parametrize("names", [["x", "y", "z", "a", "b", "c", "d"], []])
@pytest.mark.parametrize("stated", [{"order": "xyzw"}, {"form": "rpy"}])
def test_an_orientation_that_the_mapping_mentions_without_its_places_is_a_question(names, stated):
    with pytest.raises(ValueError, match="which numbers are the orientation"):
        decide_pose(names, 7, position=(0, 1, 2), **stated)
    assert decide_pose([], 16, position=(3, 7, 11)).rotation == ()
    assert decide_pose([], 9, position=(1, 2, 3), rotation=(5, 6, 7, 8), order="wxyz").rotation == (5, 6, 7, 8)


@pytest.mark.parametrize(
    "more",
    [
        "gripper gripper_width pad",
        "joint_0 joint_1 joint_2 joint_3",
        "vx vy vz",
        "header.stamp.sec header.stamp.nanosec header.seq valid",
        "goal_x goal_y goal_z",
        "mug_x mug_y",
    ],
)
def test_numbers_that_are_no_orientation_leave_a_position_without_a_question(more):
    names = ["x", "y", "z", *more.split()]
    assert decide_pose(names, len(names)).rotation == ()


def test_the_lines_that_an_unknown_orientation_shows_answer_it():
    names = ["x", "y", "z", "a", "b", "c", "d"]
    lines = "\n".join(suggest_pose(names, 7))
    alone = tomllib.loads(lines.replace('rotation = "FILL IN"', "# rotation"))
    assert decide_pose(names, 7, alone["position"]).rotation == ()
    whole = tomllib.loads(lines.replace('"FILL IN"', "[3, 4, 5, 6]"))
    assert decide_pose(names, 7, whole["position"], whole["rotation"], order="xyzw").rotation == (6, 3, 4, 5)


def test_a_mapping_that_contradicts_the_names_is_a_question():
    names = ["x", "y", "z", "qx", "qy", "qz", "qw"]
    assert decide_pose(names, 7, rotation=(3, 4, 5, 6)).rotation == (6, 3, 4, 5)
    for stated in ({}, {"rotation": (3, 4, 5, 6)}):
        with pytest.raises(ValueError, match=r"wxyz, as .*xyzw"):
            decide_pose(names, 7, order="wxyz", **stated)


def test_what_is_no_rotation_is_unknown_and_never_a_rotation():
    matrices = np.array([np.eye(3).ravel(), np.zeros(9), np.diag([1, 1, -1.0]).ravel(), np.full(9, np.nan)])
    assert np.isnan(rotations_to_wxyz(matrices, "matrix")).any(axis=1).tolist() == [False, True, True, True]
    assert np.isnan(rotations_to_wxyz(np.zeros((1, 6)), "6d")).all()
    turn = Rotation.from_euler("xyz", [0.1, 0.2, 0.3])
    rows = turn.as_matrix()[:2].ravel()[None]
    assert rotations_to_wxyz(rows, "6d_rows")[0] == pytest.approx(turn.as_quat()[[3, 0, 1, 2]])


@pytest.mark.parametrize("order", ["ZYX", "xyz", "yzx"])
@pytest.mark.parametrize("text", ["x y z roll pitch yaw", "yaw x pitch y roll z"])
@pytest.mark.parametrize("stated", [False, True])
def test_the_angle_of_an_axis_is_that_of_its_name_in_every_order_of_turns(order, text, stated):
    turn = Rotation.from_rotvec([0.3, -0.5, 0.2])
    angles = dict(zip(order.lower(), turn.as_euler(order), strict=True))
    named = {"roll": angles["x"], "pitch": angles["y"], "yaw": angles["z"], "x": 1.0, "y": 2.0, "z": 3.0}
    names = text.split()
    rotation = [k for k, name in enumerate(names) if len(name) > 1] if stated else None
    layout = decide_pose(names, 6, None, rotation, "rpy", None, order)
    row = np.array([[named[name] for name in names]])
    wxyz = rotations_to_wxyz(row[:, layout.rotation], "rpy", order)[0]
    assert abs(wxyz @ turn.as_quat()[[3, 0, 1, 2]]) == pytest.approx(1.0)


def test_units_in_names_are_those_of_the_numbers():
    layout = decide_pose(["x_mm", "y_mm", "z_mm", "roll_deg", "pitch_deg", "yaw_deg"], 6)
    assert (layout.position, layout.rotation) == ((0, 1, 2), (3, 4, 5))
    assert (layout.unit, layout.angle_unit) == ("mm", "deg")
    assert decide_pose(["x", "y", "z"], 3).unit == ""


@pytest.mark.parametrize(
    ("ending", "unit"),
    [
        ("_㎜", "mm"), ("[㎝]", "cm"), ("MilliMeters", "mm"), ("_centi-meters", "cm"), ("_毫米", "mm"), (", см", "cm"),
        (" [0.1 mm]", "0.1 mm"), (" [1e-3 m]", "1e-3 m"), (" (mm/100)", "mm/100"), (" [m s^-1]", "m/s"),
    ],
)  # fmt: skip
def test_units_in_other_spellings_and_factors_in_brackets_are_those_of_the_numbers(ending, unit):
    assert decide_pose([axis + ending for axis in "xyz"], 3).unit == unit


@pytest.mark.parametrize("stated", [{"position": (0, 1, 7)}, {"position": (0, 0, 2)}, {"rotation": (2, 4, 5, 6)}])
@pytest.mark.parametrize("names", [[], ["x", "y", "z", "qx", "qy", "qz", "qw"]])
def test_places_that_there_are_not_or_that_are_stated_twice_are_a_question(names, stated):
    stated = {"position": (0, 1, 2), **stated}
    with pytest.raises(ValueError, match="of 7 numbers; count from 0"):
        decide_pose(names, 7, order="xyzw", **stated)


def test_a_stated_rotation_that_has_a_number_of_the_position_or_too_few_numbers_is_a_question():
    names = ["x", "y", "z", "qx", "qy", "qz", "qw"]
    with pytest.raises(ValueError, match="which numbers are the orientation"):
        decide_pose(names, 7, rotation=(2, 3, 4, 5), order="xyzw")
    with pytest.raises(ValueError, match="which form"):
        decide_pose(names, 7, rotation=(3, 4, 5), order="xyzw")
    layout = decide_pose([], 7, position=(4, 5, 6), rotation=(0, 1, 2, 3), order="wxyz")
    assert layout == PoseLayout((4, 5, 6), (0, 1, 2, 3))


def test_a_stated_position_of_numbers_that_are_named_an_orientation_is_a_question():
    with pytest.raises(ValueError, match="which numbers are x, y, z"):
        decide_pose(["x", "y", "z", "qx", "qy", "qz", "qw"], 7, position=(3, 4, 5))
    assert decide_pose(["x", "y", "z", "w"], 4, position=(0, 1, 2)) == PoseLayout((0, 1, 2))


def test_several_units_of_one_position_are_a_question():
    with pytest.raises(ValueError, match="unit do the numbers"):
        decide_pose(["x_cm", "y_m", "z_m"], 3)


@pytest.mark.parametrize(
    ("names", "stated", "words"),
    [
        ("x y z roll pitch yaw", {"rotation": (3, 4, 5), "form": "rpy", "euler": "zyz"}, "one angle for each"),
        ("x y z roll pitch yaw", {"form": "rpy", "euler": "zyz"}, "one angle for each"),
        ("x y z qx qy qz qw", {"form": "rpy"}, "The names give a quaternion"),
        ("x y z rotvec_x rotvec_y rotvec_z", {"form": "rpy"}, "The names give a rotation vector"),
    ],
)
def test_a_stated_form_or_order_that_contradicts_the_names_is_a_question_without_lines(names, stated, words):
    with pytest.raises(ValueError, match=words):
        decide_pose(names.split(), len(names.split()), **stated)


def test_the_numbers_of_the_stated_form_are_read_although_the_names_also_give_others():
    names = ["x", "y", "z", "qx", "qy", "qz", "qw", "roll", "pitch", "yaw"]
    assert decide_pose(names, len(names), form="rpy").rotation == (7, 8, 9)
    assert decide_pose(names, len(names)).form == "quaternion"


def test_angles_that_names_only_number_may_have_an_order_with_a_repeated_axis():
    names = ["x", "y", "z", "euler_0", "euler_1", "euler_2"]
    assert decide_pose(names, 6, form="rpy", euler="ZYZ").rotation == (3, 4, 5)


def test_lines_for_a_matrix_answer_its_question():
    names = ["x", "y", "z", *(f"r{row}{column}" for column in (1, 2, 3) for row in (1, 2, 3))]
    stated = tomllib.loads("\n".join(suggest_pose(names, 12)))
    layout = decide_pose(names, 12, form=stated["rotation_form"])
    assert [names[index] for index in layout.rotation[:3]] == ["r11", "r12", "r13"]


def test_ax_ay_and_az_may_be_a_rotation_or_accelerations():
    names = ["ee_x", "ee_y", "ee_z", "ee_ax", "ee_ay", "ee_az"]
    with pytest.raises(ValueError, match="rotation vector"):
        decide_pose(names, 6)
    stated = tomllib.loads("\n".join(suggest_pose(names, 6)))
    assert decide_pose(names, 6, None, stated["rotation"], stated["rotation_form"]).rotation == (3, 4, 5)
    assert decide_pose(names, 6, (0, 1, 2)).rotation == ()
    for further in (
        ["gx", "gy", "gz"],
        ["vel_x", "vel_y", "vel_z"],
        ["ee_vx", "ee_vy", "ee_vz"],
        ["ee_qw", "ee_qx", "ee_qy", "ee_qz"],
    ):
        assert not {3, 4, 5} & {*decide_pose([*names, *further], len(names) + len(further)).rotation}


@pytest.mark.parametrize(
    "text", ["X Y Z A B C", "c tcp.x tcp.y tcp.z a b gripper", "tcp.X tcp.Y tcp.Z tcp.A tcp.B tcp.C"]
)
def test_angles_of_a_kuka_are_a_question_and_the_lines_that_it_shows_answer_it(text):
    names = text.split()
    with pytest.raises(ValueError, match="KUKA"):
        decide_pose(names, len(names))
    stated = tomllib.loads("\n".join(suggest_pose(names, len(names))))
    layout = decide_pose(names, len(names), None, stated["rotation"], stated["rotation_form"])
    assert [names[place].lower()[-1] for place in layout.rotation] == ["a", "b", "c"]
    turned = rotations_to_wxyz(np.array([[30.0, 20.0, 10.0]]), layout.form, stated["rotation_order"], True)
    turns = (Rotation.from_euler(axis, deg, degrees=True) for axis, deg in zip("zyx", [30, 20, 10], strict=True))
    assert turned[0] == pytest.approx(math.prod(turns, start=Rotation.identity()).as_quat()[[3, 0, 1, 2]])
    assert decide_pose(names, len(names), [names.index(name) for name in names if name[-1] in "xyzXYZ"]).rotation == ()


@pytest.mark.parametrize(
    ("text", "size", "keys", "has_remark"),
    [
        ("", 3, [], False),
        ("", 4, ["position"], True),
        ("", 6, ["rotation_form", "rotation_order"], False),
        ("", 7, ["quaternion_order"], False),
        ("", 9, ["position"], True),
        ("i j k", 3, ["position"], False),
        ("a b d e f g", 6, ["position"], True),
        ("a b c d e f g", 7, ["position"], True),
        ("x y z euler_x euler_y euler_z", 6, ["rotation_form", "rotation_order"], False),
        ("x y z rx ry rz gripper", 7, ["rotation_form", "rotation_order"], False),
        ("x y z euler_x euler_y", 5, ["position", "rotation"], True),
        ("x y z quat_0 quat_1 quat_2 quat_3", 7, ["quaternion_order"], False),
        ("left_x left_y left_z right_x right_y right_z quat_0 quat_1 quat_2 quat_3", 10, ["position"], True),
    ],
)
def test_the_lines_that_are_shown_ask_for_what_is_open_and_for_nothing_else(text, size, keys, has_remark):
    lines = suggest_pose(text.split(), size)
    assert [*tomllib.loads("\n".join(lines))] == keys
    assert any(line.startswith("#") for line in lines) == has_remark


HAND = "x y z qx qy qz qw"


@pytest.mark.parametrize(
    ("names", "stated", "rotation"),
    [
        ("obj_0_x obj_0_y obj_0_z obj_0_qx obj_0_qy obj_0_qz obj_0_qw obj_1_x obj_1_y obj_1_z", {}, ()),
        ("x0 y0 z0 q0x q0y q0z q0w x1 y1 z1", {}, ()),
        (f"{HAND} target_x target_y target_z", {}, ()),
        (f"{HAND} target_x target_y target_z target_qx target_qy target_qz target_qw", {}, ()),
        (f"{HAND} cube_x cube_y cube_z", {"order": "xyzw"}, None),
        (f"{HAND} obj_1_x obj_1_y obj_1_z obj_1_qx obj_1_qy obj_1_qz obj_1_qw", {"order": "xyzw"}, (13, 10, 11, 12)),
    ],
)
def test_the_orientation_of_the_hand_or_of_another_numbered_object_is_never_a_bodys(names, stated, rotation):
    listed = names.split()
    if rotation is None:
        with pytest.raises(ValueError, match="which numbers are the orientation"):
            decide_pose(listed, len(listed), position=[7, 8, 9], **stated)
    else:
        assert decide_pose(listed, len(listed), position=[7, 8, 9], **stated).rotation == rotation


def test_a_stated_rotation_wins_over_another_representation_in_the_names():
    # The rule: what the mapping states counts, unless the names of the same numbers or of the same form contradict it.
    names = ["x", "y", "z", "a", "b", "c", "d", "roll", "pitch", "yaw"]
    assert decide_pose(names, 10, (0, 1, 2), (3, 4, 5, 6), order="xyzw").rotation == (6, 3, 4, 5)
    assert decide_pose(names, 10, None, (3, 4, 5, 6), order="wxyz").rotation == (3, 4, 5, 6)
    for text in ("x y z roll pitch yaw cup_qx cup_qy cup_qz cup_qw", "x y z qw qx qy qz a b c d"):
        listed = text.split()
        first = len(listed) - 4
        with pytest.raises(ValueError, match="the names another"):
            decide_pose(listed, len(listed), (0, 1, 2), range(first, first + 4), order="xyzw")


CUBE = "cube_x cube_y cube_z"


@pytest.mark.parametrize(
    ("part", "text", "found"),
    [
        ("eef", f"wrist_x wrist_y wrist_z {CUBE}", "asked"),
        ("eef", f"wrist.pos.x wrist.pos.y wrist.pos.z {CUBE} gripper", "asked"),
        ("eef", f"{CUBE} wrist_roll wrist_force_x wrist_force_y wrist_force_z", "doubted"),
        ("eef", CUBE, "doubted"),
        ("eef", "panda_hand_x panda_hand_y panda_hand_z", "clear"),
        ("eef", f"{HAND} wrist_x wrist_y wrist_z", "clear"),
        ("eef", "x_in_base y_in_base z_in_base", "clear"),
        ("eef", "x0 y0 z0", "clear"),
        ("eef", "pose.x pose.y pose.z", "clear"),
        ("eef.left", "left_x left_y left_z", "clear"),
        ("bodies.cube", CUBE, "clear"),
        ("bodies.cup", CUBE, "clear"),
        ("bodies.cup", HAND, "clear"),
        ("bodies.cup", "tcp_x tcp_y tcp_z", "asked"),
        ("bodies.target", f"{HAND} target_x target_y target_z", "asked"),
        ("bodies.target", f"{HAND} target_vel_x target_vel_y target_vel_z", "clear"),
    ],
)
def test_a_position_whose_names_say_another_object_is_asked_about_or_doubted(part, text, found):
    # The rule: a part never gets quietly the pose of what other names say.
    names = text.split()
    position = decide_pose(names, len(names)).position
    if found == "asked":
        with pytest.raises(ValueError, match="Those found are"):
            find_owner_doubt(part, names, position)
    else:
        assert bool(find_owner_doubt(part, names, position)) == (found == "doubted")


def test_the_name_of_a_feature_says_whose_numbers_have_the_hands_name():
    names = ["ee_pos_x", "ee_pos_y", "ee_pos_z"]
    assert find_owner_doubt("bodies.mug_1", names, (0, 1, 2), "observation.mug_1") == ""
    with pytest.raises(ValueError, match="Those found are"):
        find_owner_doubt("bodies.mug_1", names, (0, 1, 2), "/arm_1/pose")
    with pytest.raises(ValueError, match="Those found are"):
        find_owner_doubt("bodies.mug", [*names, "mug_x", "mug_y", "mug_z"], (0, 1, 2), "observation.mug")
