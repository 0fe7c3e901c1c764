"""Every rule of the record: broken once, the error names episode, step and field and says what to do."""

from __future__ import annotations

import numpy as np
import pytest

from builders import BOWL, DRAWER, HAND, ROLES, contacts, episode
from safevla_bench.archive.record_schema import record_schema
from safevla_bench.errors import RecordError
from safevla_bench.judging.activity import measure_progress
from safevla_bench.trajectory.header import OUTCOMES


def with_value(shape: tuple[int, ...], place: tuple[int, ...], value: float) -> np.ndarray:
    array = np.ones(shape)
    array[place] = value
    return array


TWO_ARMS = {
    "schema_version": 2,
    "arms": ("left", "right"),
    "eef_pos_m": np.ones((12, 6)),
    "eef_quat_wxyz": np.ones((12, 8)),
    "gripper_contact": np.zeros((12, 2), dtype=np.bool_),
    "joint_torque_nm": np.ones((12, 14)),
}
BROKEN = {
    "joints of arms without arms": ({"arm_joints": ()}, (None, "arm_joints", "the numbers are []")),
    "a robot's limits for arms of other joints": (
        {**TWO_ARMS, "arm_joints": (6, 8)},
        (None, "arm_joints", "have [6, 8] joints, but Panda has one number"),
    ),
    "not a number in a position": (
        {"body_pos_m": with_value((12, 3, 3), (4, 1, 2), np.nan)},
        (4, "body_pos_m.plate[2]", "not a finite number"),
    ),
    "infinite torque": (
        {"joint_torque_nm": with_value((12, 7), (3, 6), np.inf)},
        (3, "joint_torque_nm[6]", "not a finite number"),
    ),
    "not a number in an action": (
        {"action": with_value((11, 7), (0, 1), np.nan)},
        (1, "action[1]", "not a finite number"),
    ),
    "zero quaternion": (
        {"body_quat_wxyz": np.concatenate([np.ones((5, 2, 4)), np.zeros((7, 2, 4))])},
        (5, "body_quat_wxyz.bowl[0]", "norm zero"),
    ),
    "zero end-effector quaternion": (
        {"eef_quat_wxyz": np.concatenate([np.ones((5, 4)), np.zeros((7, 4))])},
        (5, "eef_quat_wxyz[0]", "norm zero"),
    ),
    "negative force": (
        {"contacts": contacts((2, HAND, DRAWER, 1.0), (2, HAND, BOWL, -1.0))},
        (2, "contacts[1].force_n", "-1.0 is negative"),
    ),
    "a body touching itself": (
        {"contacts": contacts((2, HAND, HAND, 1.0))},
        (2, "contacts[0].b", "touches itself"),
    ),
    "dt of zero": ({"dt": 0.0}, (None, "dt", "dt is 0.0")),
    "torques of another length": (
        {"joint_torque_nm": np.ones((12, 6))},
        (None, "joint_torque_nm", "6 torques, but 7 limits"),
    ),
    "torque peaks of another length": (
        {"further": {"joint_torque_peak_nm": np.ones((12, 6))}},
        (None, "joint_torque_peak_nm", "6 torques, but 7 limits"),
    ),
    "a negative limit": (
        {"joint_torque_limit_nm": (87.0, -1.0), "joint_torque_nm": np.ones((12, 2))},
        (None, "joint_torque_limit_nm", "limits are"),
    ),
    "a version that is not read": ({"schema_version": 2}, (None, "schema_version", "version 2")),
    "an integer of more than 64 bits": ({"seed": 2**63}, (None, "seed", "does not fit into 64 bits")),
    "a body without a name": (
        {"roles": {**ROLES, "": "furniture"}, "target_object": None},
        (None, "body_roles", "a body has no name"),
    ),
    "a target of another role": ({"target_object": "plate"}, (None, "target_object", "has the role 'bystander'")),
    "a crash": (
        {"outcome": "crashed", "success": False},
        (None, "outcome", "unknown outcome 'crashed'"),
    ),
    "an unknown kind of outcome": (
        {"outcome": "gave_up", "success": False},
        (None, "outcome", "unknown outcome 'gave_up'"),
    ),
    "a success that failed": (
        {"outcome": "success", "success": False},
        (None, "outcome", "outcome 'success' contradicts success false"),
    ),
    **{
        f"a {outcome} that succeeded": (
            {"outcome": outcome, "success": True},
            (None, "outcome", f"outcome '{outcome}' contradicts success true"),
        )
        for outcome in ("failure", "timeout", "invalid_action", "stopped")
    },
    **{
        f"names of sub-goals: {names!r}": (
            {"further": {"subgoals": np.zeros((12, 2), dtype=np.bool_)}, "extra": {"header": {"subgoal_names": names}}},
            (None, "subgoal_names", problem),
        )
        for names, problem in (
            (["a"], "1 name, but 2 sub-goals in each step"),
            ("ab", "not a list of texts"),
            ([1, 2], "not a list of texts"),
            (["a", "a"], "the same name"),
        )
    },
    "names of sub-goals that no step has": (
        {"extra": {"header": {"subgoal_names": ["a", "b"]}}},
        (None, "subgoal_names", "2 names, but 0 sub-goals"),
    ),
    "a target without a role": ({"target_object": "cup"}, (None, "target_object", "has no role")),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_named_with_its_place_and_remedy(rule):
    changes, (step, field, problem) = BROKEN[rule]
    with pytest.raises(RecordError) as raised:
        episode(**changes)
    error = raised.value
    assert (error.place.step, error.place.field) == (step, field)
    assert error.place.episode == "libero-goal/task_8/ep_000"
    assert problem in str(error)
    assert error.remedy


@pytest.mark.parametrize("header", [{}, {"subgoal_names": None}])
def test_sub_goals_without_names_are_read(header):
    holds = np.zeros((12, 2), dtype=np.bool_)
    batch = episode(further={"subgoals": holds}, extra={"header": header})
    assert measure_progress(batch).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("outcome", [None, *OUTCOMES])
def test_every_outcome_of_the_vocabulary_is_read_where_it_agrees_with_success(outcome):
    (header,) = episode(outcome=outcome, success=outcome in (None, "success")).headers
    assert header.outcome == outcome


def test_the_schema_lists_the_outcomes():
    definition, _ = [
        definition for definition in record_schema()["$defs"].values() if "outcome" in definition.get("properties", {})
    ]
    assert list(OUTCOMES) in [option.get("enum") for option in definition["properties"]["outcome"]["anyOf"]]
