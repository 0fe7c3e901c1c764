"""The mapping that a log without one gets: it fits what is there, and is refused until a person has filled it in."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from safevla_bench.cli import run_command_line
from safevla_bench.sources.logs.proposal import FoundSource, propose_mapping
from sources.logs.log_files import save_mapping, straight_line, write_dataset

FILLED = {
    "success": "true",
    "quaternion_order": '"wxyz"',
    "role": '"bystander"',
    "limits_nm": "[20, 20]",
    "holds_above": "0.5",
    "index": "[0, 1, 2]",
    "rotation_form": '"rpy"',
    "position": "[0, 1, 2]",
}


def fill_in(text: str) -> str:
    """What a person would write in each marked place."""
    return re.sub(r'^(\w+) = "FILL IN"', lambda found: f"{found[1]} = {FILLED[found[1]]}", text, flags=re.MULTILINE)


def write_log(tmp_path: Path) -> Path:
    columns = {
        "observation.ee_pose": np.concatenate([np.repeat(straight_line(1), 25, axis=0), straight_line(5)]),
        "observation.plate": straight_line() * [0, 0, 1, 1, 0, 0, 0],
        "observation.effort": np.full((30, 2), 9.0),
        "observation.gripper": np.zeros((30, 1)),
        "observation.wrench": np.zeros((30, 6)),
        "action": np.zeros((30, 4)),
    }
    return write_dataset(tmp_path / "d", [columns])


def test_a_log_without_a_mapping_prints_one_that_scores_once_it_is_filled_in(tmp_path, capsys):
    folder = write_log(tmp_path)
    assert run_command_line(["score", str(folder)]) == 2
    printed = capsys.readouterr()
    assert "mapping from standard" in printed.err
    save_mapping(folder, printed.out)
    assert run_command_line(["score", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert "FILL IN" in capsys.readouterr().err
    save_mapping(folder, fill_in(printed.out).replace("# template", "template"))
    assert run_command_line(["score", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "real-robot" in capsys.readouterr().out
    assert set(re.findall(r"^\[(\S+)\]", printed.out, re.MULTILINE)) == {
        *("episode", "eef", "torque", "gripper", "wrench", "action"),
        "bodies.observation_plate",
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (FoundSource("/ee_pose", "geometry_msgs/msg/PoseStamped, cdr", (), 0), "[eef]"),
        (FoundSource("/joint_states", "sensor_msgs/msg/JointState, cdr", (), 0), "[torque]"),
        (FoundSource("/ft_sensor", "geometry_msgs/msg/WrenchStamped, cdr", (), 0), "[wrench]"),
        (FoundSource("/tf", "tf2_msgs/msg/TFMessage, cdr", (), 0), 'frame = "FILL IN"'),
        (FoundSource("observation.state", "", ["x", "y", "z", "roll", "pitch", "yaw", "gripper"], 7), "[eef]"),
        (FoundSource("observation.eef_state", "", ["x", "y", "z", "rx", "ry", "rz"], 6), 'rotation_form = "FILL IN"'),
    ],
)
def test_sources_are_proposed_by_the_types_of_their_messages_and_by_their_names(source, expected):
    assert expected in propose_mapping([source], True, None)


def test_a_hand_that_only_the_form_of_a_pose_suggests_is_a_guess():
    pose = ["x", "y", "z", "qx", "qy", "qz", "qw"]
    named, form = (FoundSource(f"observation.{name}", "", pose, 7) for name in ("eef_pose", "mug"))
    assert '[eef]\nfrom = "observation.mug"  # CHECK' in propose_mapping([form], True, None)
    assert '[eef]\nfrom = "observation.eef_pose"\n' in propose_mapping([form, named], True, None)


def test_pictures_are_never_proposed_and_a_ur_s_effort_has_to_be_said_to_be_torque():
    camera = FoundSource("/hand/camera_pose_image", "sensor_msgs/msg/Image, cdr", (), 0)
    assert "from" not in propose_mapping([camera], True, None)
    effort = FoundSource("observation.effort", "", (), 6)
    assert 'unit = "FILL IN"' in propose_mapping([effort], True, "ur5e")
    assert "limits_nm" not in propose_mapping([effort], True, "franka")


def test_angles_of_joints_are_never_proposed_as_a_body_and_forces_as_a_wrench():
    joints = FoundSource("observation.state.joint_position", "", [f"joint_{k}" for k in range(7)], 7)
    assert "from" not in propose_mapping([joints], True, None)
    forces = FoundSource("observation.ft", "", ["fx", "fy", "fz", "tx", "ty", "tz"], 6)
    assert "[wrench]" in propose_mapping([forces], True, None)
