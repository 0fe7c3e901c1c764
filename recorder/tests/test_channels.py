"""The table of channels: what each name in a file stands for, and which rules its numbers obey."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from safevla_recorder.channels import CHANNELS, CONTACT_COLUMNS, NUMERIC, POSES, ROWS, as_fields, recorded_forces

OF_ARMS = {"eef_pos_m", "eef_quat_wxyz", "gripper_contact", "gripped_body", "wrist_force_n"}
UNBOUNDED = {"eef_quat_wxyz", "body_quat_wxyz", "action", "policy_action", "sim_state"}
IN_EVERY_TABLE = {
    "eef_pos_m", "eef_quat_wxyz", "body_pos_m", "body_quat_wxyz", "contacts", "joint_torque_nm",
    "joint_torque_peak_nm", "gripper_contact", "gripped_body", "action", "sim_state",
}  # fmt: skip


def names(rule):
    return {spec.name for spec in CHANNELS if rule(spec)}


def test_each_arm_has_its_own_hand_grip_and_wrist():
    assert names(lambda spec: spec.per_arm) == OF_ARMS


def test_real_numbers_are_bounded_unless_they_are_turns_actions_or_the_simulators_own():
    assert names(lambda spec: spec.is_numeric and spec.dtype == "<f8" and not spec.is_bounded) == UNBOUNDED
    assert names(lambda spec: spec.is_bounded and spec.dtype != "<f8") == set()
    assert names(lambda spec: spec.is_rotation) == {"eef_quat_wxyz", "body_quat_wxyz"}


def test_a_table_leaves_out_the_channels_that_few_episodes_have():
    assert names(lambda spec: not spec.is_rare) == IN_EVERY_TABLE


def test_numbers_are_rows_or_poses_and_contacts_have_columns():
    assert {spec.name for spec in CHANNELS} - {spec.name for spec in NUMERIC} == {"contacts", *CONTACT_COLUMNS} & names(
        lambda spec: True
    )
    assert {*ROWS} | {*POSES} == {*NUMERIC}
    assert {spec.name: spec.pose_size for spec in POSES} == {
        "body_pos_m": 3, "body_quat_wxyz": 4, "pose_valid": 1, "supported": 1, "opening": 1, "entered": 1,
    }  # fmt: skip
    assert {spec.name: spec.row_size for spec in ROWS if spec.row_size} == {
        "eef_pos_m": 3, "eef_quat_wxyz": 4, "chunk_step": 2, "wrist_force_n": 3,
    }  # fmt: skip
    assert names(lambda spec: spec.is_grip) == {"gripper_contact", "gripped_body"}
    assert names(lambda spec: spec.is_scalar and spec.is_numeric) == {"gripper_contact", "gripped_body", "time_s"}
    assert names(lambda spec: spec.is_per_action) == {"action", "policy_action", "chunk_step", "label_cost"}


@pytest.mark.parametrize(("forces", "recorded"), [(None, ("force_n",)), (["net_force_n"], ("net_force_n",)), ([], ())])
def test_a_header_without_forces_means_the_largest_at_one_point(forces, recorded):
    assert recorded_forces(forces) == recorded


@dataclass
class Owner:
    action: object = None
    further: dict = field(default_factory=dict)


def test_channels_without_a_field_of_their_own_are_gathered_if_they_were_recorded():
    assert as_fields(Owner, {"action": None, "time_s": 1, "opening": None}) == {
        "action": None,
        "further": {"time_s": 1},
    }
