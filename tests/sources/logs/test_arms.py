"""Logs of several arms: each has its own tables, and what is known of one alone is refused instead of guessed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.sources.logs.names import decide_pose
from safevla_bench.sources.logs.proposal import FoundSource, propose_mapping
from sources.logs.log_files import problem, read, save_mapping, straight_line, write_dataset, write_mcap

EPISODE = '[episode]\nsuccess = true\ntemplate = "pnp-basic"\n'
POSES = (
    EPISODE
    + """
[eef.left]
from = "observation.state"
[eef.right]
from = "observation.state"
"""
)
NAMES = [f"{arm}_{axis}" for arm in ("left", "right") for axis in ("x", "y", "z", "qw", "qx", "qy", "qz")]
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
ALOHA = [f"{arm}_{joint}" for arm in ("left", "right") for joint in JOINTS]
MUG = '\n[bodies.mug]\nfrom = "mug"\nrole = "target"\nquaternion_order = "wxyz"\n'


def write(tmp_path: Path, text: str, names: list[str] = NAMES, **features: np.ndarray) -> Path:
    """A dataset whose right hand moves at 0.1 m/s and whose left hand rests."""
    still = straight_line() * [0, 1, 1, 1, 1, 1, 1]
    frames = {"observation.state": np.hstack([still, straight_line()]), "mug": straight_line(), **features}
    folder = write_dataset(tmp_path / "d", [frames])
    path = folder / "meta" / "info.json"
    described = json.loads(path.read_text())
    described["features"]["observation.state"]["names"] = names
    path.write_text(json.dumps(described))
    save_mapping(folder, text)
    return folder


def test_a_dataset_with_a_pose_of_each_arm_is_judged_by_the_faster_hand(tmp_path):
    (batch,) = read(write(tmp_path, POSES))
    header = batch.headers[0]
    assert (header.schema_version, header.arms) == (2, ("left", "right"))
    assert batch.eef_pos_m.episode_rows(0)[-1] == pytest.approx([0, 0, 0.2, 0.145, 0, 0.2])
    assert batch.eef_quat_wxyz.episode_rows(0)[0].tolist() == [1, 0, 0, 0] * 2
    (episode,) = score(batch, load_ruleset()).episodes()
    assert episode.diagnostics["eef_speed_under_1mps"].extreme == pytest.approx(0.1)


def test_grips_torques_and_limits_are_those_of_each_arm(tmp_path):
    text = (
        POSES
        + MUG
        + '[gripper.left]\nfrom = "grip"\nindex = [0]\n[gripper.right]\nfrom = "grip"\nindex = [1]\n'
        + '[torque.left]\nfrom = "effort"\nindex = [0, 1]\nunit = "N m"\nlimits_nm = [4, 4]\n'
        + '[torque.right]\nfrom = "effort"\nindex = [2]\nunit = "N m"\nlimits_nm = [8]\n'
    )
    grip = np.stack([np.zeros(30), np.arange(30) > 3], axis=1)
    effort = np.tile([1.0, -2.0, 6.0], (30, 1))
    (batch,) = read(write(tmp_path, text, grip=grip, effort=effort))
    assert (batch.headers[0].arm_joints, batch.headers[0].joint_torque_limit_nm) == ((2, 1), (4, 4, 8))
    assert batch.gripper_contact.episode_rows(0)[4].tolist() == [0, 1]
    (episode,) = score(batch, load_ruleset()).episodes()
    assert episode.robustness["joint_torque"] == pytest.approx(0.25)
    assert episode.robustness["stable_grasp_maintained_2cm"] == pytest.approx(0.02)  # the mug moves with the right hand


def test_topics_of_a_recording_are_those_of_each_arm(tmp_path):
    rows = [
        (topic, 0.05 * t, {"pose": {"position": {"x": speed * 0.05 * t, "y": 0.0, "z": 0.3}}})
        for t in range(30)
        for topic, speed in (("/left/tcp", 0.0), ("/right/tcp", 0.2))
    ]
    folder = tmp_path / "d"
    folder.mkdir()
    write_mcap(folder / "a.mcap", rows)
    save_mapping(folder, EPISODE + '[eef.left]\nfrom = "/left/tcp"\n[eef.right]\nfrom = "/right/tcp"\n')
    (batch,) = read(folder)
    assert batch.headers[0].arms == ("left", "right")
    (episode,) = score(batch, load_ruleset()).episodes()
    assert episode.diagnostics["eef_speed_under_1mps"].extreme == pytest.approx(0.2)


def test_two_arms_that_read_one_topic_are_refused(tmp_path):
    rows = [("/tcp", 0.05 * t, {"pose": {"position": {"x": 0.1 * t, "y": 0.0, "z": 0.3}}}) for t in range(30)]
    rows += [("/joints", 0.05 * t, {"position": [0.0, 0.04]}) for t in range(30)]
    folder = tmp_path / "d"
    folder.mkdir()
    write_mcap(folder / "a.mcap", rows)
    for part, source in (("eef", "/tcp"), ("gripper", "/joints")):
        tables = [f'[{part}.{arm}]\nfrom = "{source}"\n' for arm in ("left", "right")]
        save_mapping(folder, EPISODE + "".join(tables))
        assert f"[{part}.left] and [{part}.right]" in problem(folder)


def test_two_arms_that_read_one_number_of_a_topic_are_refused(tmp_path):
    rows = [("/state", 0.05 * t, {"data": [0.01 * t * k for k in range(6)]}) for t in range(30)]
    folder = tmp_path / "d"
    folder.mkdir()
    write_mcap(folder / "a.mcap", rows)
    tables = [
        f'[eef.{arm}]\nfrom = "/state"\nfield = "data"\nposition = {places}\n'
        for arm, places in (("left", [0, 1, 2]), ("right", [2, 3, 4]))
    ]
    save_mapping(folder, EPISODE + "".join(tables))
    assert "[eef.left] and [eef.right] read the same numbers of '/state'" in problem(folder)


def test_of_fourteen_joint_angles_alone_nothing_is_judged_and_the_error_asks_for_positions(tmp_path):
    folder = write(tmp_path, POSES, ALOHA)
    assert "field eef.left" in problem(folder)
    assert "which numbers are" in problem(folder)
    save_mapping(folder, EPISODE + '[action]\nfrom = "observation.state"\n')
    (batch,) = read(folder)
    (episode,) = score(batch, load_ruleset()).episodes()
    assert (episode.robustness["joint_torque"], episode.safe) == (None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            POSES.replace("eef.right", "torque.right"),
            "[eef.right] is missing: map eef for all arms or for none (left, right)",
        ),
        (
            POSES.replace("[eef.right]", "[torque]"),
            "[torque] names no arm; write a table [torque.ARM] for each of the arms: left",
        ),
        (POSES.partition("[eef.right]")[0], "left is the only arm"),
        ("[arms.left.eef]\nfrom = 'x'", "unknown key arms"),
        (POSES.replace("right", "other"), "field eef.other: 'observation.state': which numbers are x, y, z?"),
        (POSES.replace('"observation.state"', '"mug"\nquaternion_order = "wxyz"'), "read the same numbers of 'mug'"),
        (
            POSES.replace("[eef.right]", "position = [0, 1, 2]\n[eef.right]") + "position = [2, 8, 9]",
            "[eef.left] and [eef.right] read the same numbers",
        ),
        (
            POSES + "position = [0, 1, 2]\nquaternion = [3, 4, 5, 6]",  # the left arm's, whose names say so
            "[eef.left] and [eef.right] read the same numbers",
        ),
        (
            POSES.replace("[eef.right]", "position = [0, 1, 2]\nrotation = [3, 4, 5, 6]\n[eef.right]")
            + "position = [7, 8, 9]\nquaternion = [3, 4, 5, 6]",
            "[eef.left] and [eef.right] read the same numbers",
        ),
        (
            POSES + MUG + MUG.replace("mug]", "cup]"),
            "[bodies.mug] and [bodies.cup] read the same numbers",
        ),
        (
            POSES
            + '[torque.left]\nfrom = "effort"\nindex = [0, 1]\nlimits_nm = [9, 9]\n'
            + '[torque.right]\nfrom = "effort"\nindex = [1]\nlimits_nm = [9]',
            "[torque.left] and [torque.right] read the same numbers",
        ),
        (
            POSES + '[torque.left]\nfrom = "effort"\nlimits_nm = [9]\n[torque.right]\nfrom = "effort"\nlimits_nm = [9]',
            "[torque.left] and [torque.right] read the same numbers",
        ),
        (
            POSES
            + '[torque.left]\nfrom = "effort"\nindex = [0]\nlimits_nm = [9]\n'
            + '[torque.right]\nfrom = "effort"\nindex = [1]\nlimits_nm = [9]',
            "may be motor currents",
        ),
    ],
)
def test_what_is_known_of_one_arm_alone_or_of_both_by_the_same_numbers_is_refused(tmp_path, text, words):
    shown = problem(write(tmp_path, text, effort=np.ones((30, 2))))
    assert words in shown


@pytest.mark.parametrize("moves", [True, False])
def test_two_bodies_of_the_same_numbers_are_refused_whether_they_move_or_rest(tmp_path, moves):
    mug = straight_line() if moves else straight_line() * [0, 1, 1, 1, 1, 1, 1]
    shown = problem(write(tmp_path, POSES + MUG + MUG.replace("mug]", "cup]"), mug=mug))
    assert "[bodies.mug] and [bodies.cup] read the same numbers of 'mug'" in shown
    assert "Give each body its own source" in shown


def test_a_position_at_numbers_whose_names_say_orientation_is_a_question(tmp_path):
    names = [f"cup_{name}" for name in ("x", "y", "z", "qx", "qy", "qz", "qw")]
    assert decide_pose(names, 7, position=[0, 1, 2]).position == (0, 1, 2)
    with pytest.raises(ValueError, match="say orientation"):
        decide_pose(names, 7, position=[3, 4, 5])


def test_a_position_at_numbers_x_y_z_w_needs_no_rotation():
    layout = decide_pose(["x", "y", "z", "w"], 4, position=[0, 1, 2])
    assert (layout.position, layout.rotation) == ((0, 1, 2), ())
    with pytest.raises(ValueError, match="which numbers are the orientation"):
        decide_pose(["x", "y", "z", "w"], 4, position=[0, 1, 2], order="xyzw")
    assert decide_pose(["x_mm", "y_mm", "z_mm", "w"], 4, position=[0, 1, 2]).unit == "mm"
    for turn, form in (("qx qy qz qw", "quaternion"), ("roll pitch yaw", "rpy")):
        layout = decide_pose(["x", "y", "z", "w", *turn.split()], 4 + len(turn.split()), position=[0, 1, 2])
        assert (layout.form, {*layout.rotation}) == (form, {*range(4, 4 + len(turn.split()))})


def test_units_in_the_names_hold_for_a_stated_rotation_which_has_no_number_of_the_position():
    names = ["x_mm", "y_mm", "z_mm", "qx", "qy", "qz", "qw"]
    assert decide_pose(names, 7, rotation=[3, 4, 5, 6]).unit == "mm"
    layout = decide_pose(["x", "y", "z", "rx_deg", "ry_deg", "rz_deg"], 6, rotation=[3, 4, 5], form="rotvec")
    assert layout.angle_unit == "deg"
    with pytest.raises(ValueError, match="names say x, y or z"):
        decide_pose(["x", "y", "z", "qx", "qy", "qz", "qw"], 7, rotation=[2, 3, 4, 5], order="xyzw")


def test_the_rotation_vectors_of_lerobots_bimanual_robots_are_read():
    names = [f"{arm}_ee.{word}" for arm in ("left", "right") for word in ("x", "y", "z", "wx", "wy", "wz")]
    for more in ({"arm": "right"}, {"position": (6, 7, 8)}):
        layout = decide_pose(names, 12, **more)
        assert (layout.position, layout.rotation, layout.form) == ((6, 7, 8), (9, 10, 11), "rotvec")


def test_an_arm_may_have_the_name_of_a_rotation():
    names = [f"{arm}_{word}" for arm in "lr" for word in ("x", "y", "z", "qx", "qy", "qz", "qw")]
    layout = decide_pose(names, 14, arm="r")
    assert (layout.position, layout.rotation) == ((7, 8, 9), (13, 10, 11, 12))


def test_the_proposed_mapping_of_two_arms_has_a_table_for_each_and_is_read_as_it_is():
    effort = FoundSource("observation.effort", "", [f"{arm}_j{k}" for arm in ("left", "right") for k in range(2)], 4)
    text = propose_mapping([FoundSource("observation.state", "", NAMES, 14), effort], True, None)
    tree = tomllib.loads(text)
    assert [*tree["eef"]] == [*tree["torque"]] == ["left", "right"]
    assert tree["torque"]["right"]["names"] == ["right_j0", "right_j1"]
    assert "FILL IN" not in str(tree["eef"])
    assert "[eef]" in propose_mapping([FoundSource("tcp", "", ["x", "y", "z"], 3)], True, None)


def test_a_hand_that_is_never_known_is_refused_and_a_body_that_is_never_seen_is_not(tmp_path):
    unseen = np.full_like(straight_line(), np.nan)
    (batch,) = read(write(tmp_path / "body", POSES + MUG, mug=unseen))
    assert not batch.pose_valid.episode_poses(0)[1].any()
    shown = problem(write(tmp_path / "hand", POSES, **{"observation.state": np.hstack([straight_line(), unseen])}))
    assert "eef.right is not known at any time" in shown


@pytest.mark.parametrize("part", ["eef", "bodies.mug"])
def test_of_two_poses_a_hand_may_have_both_as_arms_but_a_body_only_one(tmp_path, part):
    text = EPISODE + f'[{part}]\nfrom = "observation.state"\n' + 'role = "target"\n' * (part != "eef")
    assert ("for several arms" in problem(write(tmp_path, text))) == (part == "eef")
