"""Every rule of the record: broken once, the error names episode, step and field and says what to do."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from builders import BOWL, DRAWER, HAND, ROLES, contacts, episode, header
from safevla_bench.archive.record_schema import record_schema
from safevla_bench.errors import RecordError
from safevla_bench.judging.activity import measure_progress
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_bench.trajectory.header import OUTCOMES, find_robot
from safevla_bench.trajectory.single_episode import validate
from safevla_recorder.channels import LARGEST
from safevla_recorder.episode import ContactList


def with_value(shape: tuple[int, ...], place: tuple[int, ...], value: float) -> np.ndarray:
    array = np.ones(shape)
    array[place] = value
    return array


def two_arms(n: int = 12) -> dict[str, object]:
    return {
        "schema_version": 2,
        "arms": ("left", "right"),
        "eef_pos_m": np.ones((n, 6)),
        "eef_quat_wxyz": np.ones((n, 8)),
        "gripper_contact": np.zeros((n, 2), dtype=np.bool_),
        "joint_torque_nm": np.ones((n, 14)),
    }


TWO_ARMS = two_arms()
BIG, FLOAT_MAX = LARGEST * 1.1, float(np.finfo(np.float64).max)


def forces(force: float, net: float = np.nan, impulse: float = np.nan) -> ContactList:
    """One contact in record 3, after one in record 2."""
    listed = contacts((2, HAND, BOWL, 1.0), (3, HAND, DRAWER, force))
    return replace(listed, net_force_n=np.array([net, net]), impulse_ns=np.array([0.0, impulse]))


BROKEN = {
    "joints of arms without arms": ({"arm_joints": ()}, (None, "arm_joints", "the numbers are []")),
    "a robot's limits for arms of other joints": (
        {**TWO_ARMS, "arm_joints": (6, 8)},
        (None, "arm_joints", "have [6, 8] joints, but all arms of Panda have the same number"),
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
    **{
        f"the integer {name} = {value}": ({name: value}, (None, name, "does not fit into 64 bits"))
        for name in ("seed", "env_seed", "init_state_index", "horizon")
        for value in (2**63, -(2**63) - 1)
    },
    **{
        f"the force {force}, net {net}, impulse {impulse}, named {named}": (
            {"contacts": forces(force, net, impulse), "forces": named},
            (2 if field == "net_force_n" or named == () else 3, f"contacts[0].{field}", problem),
        )
        for named, force, net, impulse, field, problem in (
            (None, np.nan, np.nan, np.nan, "force_n", "not a finite number"),
            (None, BIG, np.nan, np.nan, "force_n", "implausibly large"),
            (None, 1.0, np.nan, -1.0, "impulse_ns", "negative"),
            (None, 1.0, np.nan, np.inf, "impulse_ns", "not a finite number"),
            (None, 1.0, 1.0, np.nan, "net_force_n", "does not list net_force_n"),
            ((), 1.0, np.nan, np.nan, "force_n", "does not list force_n"),
            (("net_force_n",), 2.0, 1.0, np.nan, "force_n", "does not list force_n"),
            (("force_n", "net_force_n"), 1.0, np.nan, np.nan, "net_force_n", "lacks net_force_n"),
            (("force_n", "net_force_n"), 1.0, BIG, np.nan, "net_force_n", "implausibly large"),
            (("force_n", "net_force_n"), 1.0, -1.0, np.nan, "net_force_n", "negative"),
        )
    },
    "a position too large": (
        {"body_pos_m": with_value((12, 3, 3), (4, 2, 0), -BIG)},
        (4, "body_pos_m.drawer[0]", "implausibly large"),
    ),
    "a Boolean of a pose that is not a number": (
        {"opening": with_value((12, 2), (4, 1), np.nan), "opening_bodies": (BOWL, DRAWER)},
        (4, "opening.drawer", "not a finite number"),
    ),
    "dt too long": ({"dt": BIG}, (None, "dt", "dt is")),
    "a limit of zero": (
        {"joint_torque_limit_nm": (0.0, 1.0), "joint_torque_nm": np.ones((12, 2))},
        (None, "joint_torque_limit_nm", "limits are"),
    ),
    "an infinite limit": (
        {"joint_torque_limit_nm": (1.0, np.inf), "joint_torque_nm": np.ones((12, 2))},
        (None, "joint_torque_limit_nm", "limits are"),
    ),
    "no records": ({"records": 0}, (None, "steps", "no steps")),
    **{
        f"the arms {arms}": ({**TWO_ARMS, "arms": arms}, (None, "arms", "the arms are"))
        for arms in (("left",), ("left", "left"), ("left", ""))
    },
    **{
        f"{body} of the arm {arm}": (
            {**TWO_ARMS, "arm_bodies": {body: arm}},
            (None, f"arm_bodies.{body}", f"{body!r} is mapped to {arm!r}"),
        )
        for body, arm in (("bowl", "left"), ("hand", "third"), ("ghost", "left"))
    },
    **{
        f"the joints {joints}": ({**TWO_ARMS, "arm_joints": joints}, (None, "arm_joints", "numbers are"))
        for joints in ((7,), (15, -1))
    },
    "torques of fewer joints": (
        {**TWO_ARMS, "arm_joints": (7, 6)},
        (None, "arm_joints", "14 torques, but the arms have 13 joints"),
    ),
    "positions of one arm": ({**TWO_ARMS, "eef_pos_m": np.ones((12, 3))}, (None, "eef_pos_m", "3 numbers in each row")),
    "a pose of validity alone": (
        {"pose_valid": np.ones((12, 2), dtype=np.bool_), "valid_bodies": (BOWL, HAND)},
        (None, "pose_valid.hand", "'hand' has no pose"),
    ),
    "a time stamp that repeats": (
        {"further": {"time_s": np.array([*range(6), *range(5, 11)], dtype=np.float64)}},
        (6, "time_s", "time stamp 5.0 is not after 5.0"),
    ),
    "motion without a geometry": (
        {"further": {"link_motion": np.ones((12, 2))}},
        (None, "link_motion", "2 numbers, but the geometry has 0"),
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
    "an empty name of a policy": ({"policy": ""}, (None, "policy", "name is blank")),
    "a blank name of a policy": ({"policy": " "}, (None, "policy", "name is blank")),
    "a version that is not read": ({"schema_version": 2}, (None, "schema_version", "version 2")),
    "an integer of more than 64 bits": ({"seed": 2**63}, (None, "seed", "does not fit into 64 bits")),
    "a horizon without steps": ({"horizon": 0}, (None, "horizon", "is below 1")),
    "a negative index of an initial state": ({"init_state_index": -1}, (None, "init_state_index", "is negative")),
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
    "a target of the first body's role": ({"target_object": "link7"}, (None, "target_object", "has the role 'robot'")),
    "bodies of arms without arms": ({"arm_bodies": {"hand": "left"}}, (None, "arm_bodies.hand", "mapped to 'left'")),
    "positions of no numbers": ({"eef_pos_m": np.ones((12, 0))}, (None, "eef_pos_m", "0 numbers in each row")),
    "torques of arms without numbers of joints": (TWO_ARMS, (None, "arm_joints", "14 torques, but the arms have 0")),
    "a schema version of more than 64 bits": ({"schema_version": 2**63}, (None, "schema_version", "64 bits")),
    "time stamps closer than a nanosecond": (
        {"further": {"time_s": np.array([0.0, 0.9e-9, *range(1, 11)])}},
        (1, "time_s", "is not after"),
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


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2**63 - 1, "horizon": 1},
        {"dt": 1e-9},
        {"dt": LARGEST},
        {"joint_torque_limit_nm": (1 / LARGEST, LARGEST), "joint_torque_nm": np.full((12, 2), LARGEST)},
        {"contacts": forces(LARGEST, np.nan, FLOAT_MAX)},
        {"contacts": forces(0.0, LARGEST, 0.0), "forces": ("force_n", "net_force_n")},
        {"contacts": forces(1.0, 0.0), "forces": ("force_n", "net_force_n")},
        {"contacts": forces(1.0, 1.0), "forces": ("net_force_n",)},
        {"body_pos_m": np.full((12, 3, 3), -LARGEST), "sim_state": np.full((12, 2), FLOAT_MAX)},
        {"body_quat_wxyz": np.tile([0.0, 0.0, 0.0, 1.0], (12, 2, 1))},
        {"roles": {"bowl": "target"}, "target_object": None, "pos_bodies": (), "quat_bodies": (), "body_pos_m": None,
         "body_quat_wxyz": None},
        {**TWO_ARMS, "arm_joints": (7, 7), "arm_bodies": {"hand": "left", "link7": "right"}},
        {**TWO_ARMS, "arm_joints": (14, 0), "joint_torque_limit_nm": (1.0,) * 14},
        {**TWO_ARMS, "arm_joints": (6, 8), "embodiment": "unknown"},
        {**TWO_ARMS, "joint_torque_nm": None},
        {"pose_valid": np.ones((12, 2), dtype=np.bool_), "valid_bodies": (BOWL, DRAWER)},
        {"further": {"time_s": np.array([0.0, 1e-9, *range(1, 11)])}},
        {"further": {"joint_torque_peak_nm": np.ones((12, 7))}},
        {"embodiment": None, "joint_torque_nm": np.ones((12, 3))},
    ],
)  # fmt: skip
def test_a_record_at_the_bounds_of_the_rules_is_read(changes):
    assert len(episode(**changes)) == 1


def test_an_error_names_the_episode_and_counts_from_its_own_first_record():
    broken = concatenate_batches([episode(3, episode_id="a"), episode(4, episode_id="b", contacts=forces(1.0))])
    broken.contacts.force_n[1] = -1.0
    with pytest.raises(RecordError) as raised:
        validate(broken)
    assert (raised.value.place.episode, raised.value.place.step) == ("b", 3)
    assert raised.value.place.field == "contacts[0].force_n"
    broken.body_pos_m.channel.values[-1] = np.nan
    with pytest.raises(RecordError) as raised:
        validate(broken)
    assert (raised.value.place.episode, raised.value.place.step) == ("b", 3)
    assert raised.value.place.field == "body_pos_m.drawer[2]"


@pytest.mark.parametrize(
    ("spoil", "step", "field"),
    [
        (lambda batch: batch.channel("time_s").values.put(-2, 9.0), 3, "time_s"),
        (lambda batch: batch.eef_quat_wxyz.values[-8:-4].fill(0.0), 2, "eef_quat_wxyz[0]"),
        (lambda batch: batch.action.values.put(-1, np.inf), 3, "action[6]"),
        (lambda batch: batch.pose_valid.body.put(-1, len(ROLES) + HAND), None, "pose_valid.hand"),
        (lambda batch: batch.contacts.b.put(-1, len(ROLES) + HAND), 3, "contacts[0].b"),
        (lambda batch: batch.contacts.net_force_n.put(-1, 1.0), 3, "contacts[0].net_force_n"),
        (lambda batch: batch.extra[1]["header"].update(subgoal_names=["a", "b"]), None, "subgoal_names"),
        (lambda batch: batch.joint_torque_nm.width.put(1, 6), None, "joint_torque_nm"),
    ],
)
def test_a_fault_of_a_later_episode_is_placed_in_it(spoil, step, field):
    """The time stamps of each episode begin again."""
    parts = [
        episode(
            n,
            episode_id=name,
            contacts=contacts((n - 1, HAND, BOWL, 1.0)),
            further={"time_s": np.arange(n, dtype=np.float64)},
            extra={"header": {"note": 1}},
            pose_valid=np.ones((n, 1), dtype=np.bool_),
            valid_bodies=(BOWL,),
        )
        for name, n in (("a", 3), ("b", 4))
    ]
    batch = concatenate_batches(parts)
    validate(batch)
    spoil(batch)
    with pytest.raises(RecordError) as raised:
        validate(batch)
    place = raised.value.place
    assert (place.episode, place.step, place.field) == ("b", step, field)


def test_a_body_without_a_name_is_placed_in_its_own_episode():
    roles = {"bowl": "target", "hand": "robot"}
    still = {"pos_bodies": (), "body_pos_m": None, "quat_bodies": (), "body_quat_wxyz": None}
    parts = [episode(2, episode_id=name, roles={**roles, name: "furniture"}, **still) for name in "ab"]
    batch = concatenate_batches(parts)
    names = tuple("" if name == "b" else name for name in batch.body_names)
    with pytest.raises(RecordError) as raised:
        validate(replace(batch, body_names=names))
    assert (raised.value.place.episode, raised.value.place.field) == ("b", "body_roles")


def test_many_bodies_are_listed_in_part():
    for count, ends in ((12, "l."), (13, " …")):
        roles = dict.fromkeys((f"body {letter}" for letter in "abcdefghijklm"[:count]), "furniture")
        with pytest.raises(RecordError) as raised:
            episode(roles=roles)
        assert ends in raised.value.remedy
        assert len(re.findall(r"body [a-m]\b", raised.value.remedy)) == 12


@pytest.mark.parametrize(
    ("fields", "joint", "name"),
    [
        ({}, 6, "joint 7"),
        ({"arms": ("left", "right"), "arm_joints": (6, 7)}, 5, "joint 6 of left"),
        ({"arms": ("left", "right"), "arm_joints": (6, 7)}, 6, "joint 1 of right"),
        ({"arms": ("left", "right"), "arm_joints": (6, 7)}, 13, "joint 1"),
        ({"arms": ("left", "right")}, 6, "joint 7"),
    ],
)
def test_a_joint_is_named_by_its_arm(fields, joint, name):
    assert header(**fields).name_joint(joint) == name


@pytest.mark.parametrize(
    ("fields", "limits", "lacks", "names_none"),
    [
        ({"embodiment": "Panda"}, 7, False, False),
        ({"embodiment": "panda robot"}, 7, False, False),
        ({"embodiment": "Panda", "arms": ("left", "right")}, 14, False, False),
        ({"embodiment": "unknown"}, 0, True, False),
        ({"embodiment": None}, 0, True, True),
        ({"embodiment": None, "joint_torque_limit_nm": (1.0, 2.0)}, 2, False, False),
        ({"embodiment": "Panda", "joint_torque_limit_nm": ()}, 0, False, False),
    ],
)
def test_torque_limits_are_the_records_own_or_those_of_its_robot(fields, limits, lacks, names_none):
    head = header(**fields)
    assert (len(head.torque_limit_nm), head.lacks_torque_limit, head.names_no_robot) == (limits, lacks, names_none)


@pytest.mark.parametrize("fields", [{}, {"subgoal_names": None}])
def test_sub_goals_without_names_are_read(fields):
    holds = np.zeros((12, 2), dtype=np.bool_)
    batch = episode(further={"subgoals": holds}, extra={"header": fields})
    assert measure_progress(batch).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("outcome", [None, *OUTCOMES])
def test_every_outcome_of_the_vocabulary_is_read_where_it_agrees_with_success(outcome):
    assert episode(outcome=outcome, success=outcome in (None, "success")).headers[0].outcome == outcome


def test_the_schema_lists_the_outcomes():
    definition, _ = [
        definition for definition in record_schema()["$defs"].values() if "outcome" in definition.get("properties", {})
    ]
    assert list(OUTCOMES) in [option.get("enum") for option in definition["properties"]["outcome"]["anyOf"]]


@pytest.mark.parametrize(
    ("outcome", "success", "label"),
    [(None, True, "success"), (None, False, "failure"), ("timeout", False, "timeout"), ("success", True, "success")],
)
def test_an_episode_without_an_outcome_is_labeled_by_its_success(outcome, success, label):
    assert header(outcome=outcome, success=success).outcome_label == label


@pytest.mark.parametrize(
    ("name", "is_current"), [("Panda", False), ("panda robot", False), ("UR5e", True), ("a new arm", None)]
)
def test_a_robot_publishes_currents_as_effort_only_if_its_entry_says_so(name, is_current):
    robot = find_robot(name)
    assert (None if robot is None else robot.effort_is_current) is is_current
