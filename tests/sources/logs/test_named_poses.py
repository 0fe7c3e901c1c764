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


def test_a_number_that_a_message_lacks_is_a_lost_pose(tmp_path):
    rows = [("/eef", 5 + 0.1 * k, {**FLAT, "x": None if k == 4 else 0.1}) for k in range(9)]
    write_mcap(tmp_path / "take.mcap", rows)
    save_mapping(tmp_path, TEXT)
    (batch,) = read(tmp_path)
    assert batch.lengths.tolist() == [8]
    assert np.isfinite(batch.eef_pos_m.episode_rows(0)).all()


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
