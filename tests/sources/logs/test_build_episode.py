"""Episodes of a log as batches: units, times, unknown instants, torques, grips and warnings, without a file."""

from __future__ import annotations

import hashlib
import itertools
import logging
from typing import Any

import msgspec
import numpy as np
import pytest

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs import mappings, records
from safevla_bench.sources.logs.mappings import LogMapping, PoseColumns
from safevla_bench.sources.logs.names import PoseLayout
from safevla_bench.sources.logs.records import LoggedEpisode, Series, build_episode
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import SINGLE
from safevla_recorder.episode import Floats

N = 6
FILES = itertools.count()  # a warning is given once a file
HAND = {"eef": {"from": "e"}}


POSE, NUMBERS = mappings.PoseColumns(source="x"), mappings.Columns(source="x")


@pytest.mark.parametrize(
    ("columns", "row", "known"),
    [
        (POSE, [0, 0, 0, 1, 0, 0, 0], True),
        (POSE, [1, 1, 1, 0, 0, 0, 0], False),
        (POSE, [1, 1, 1, 0, 0, 0, 0.5], True),
        (POSE, [0, 0, 0], True),
        (POSE, [0, np.nan, 0], False),
        (NUMBERS, [1, 1, 1, 0, 0, 0, 0], True),
        (NUMBERS, [1, np.inf], False),
    ],
)
def test_a_row_is_known_if_all_its_numbers_are_and_its_quaternion_is_not_0(columns, row, known):
    assert records.are_known(np.array([row, np.ones(len(row))], dtype=np.float64), columns).tolist() == [known, True]


@pytest.mark.parametrize(
    ("columns", "rows", "expected"),
    [
        (POSE, [[1, 0, 0, 0, 0, 0, 0], [0] * 7], [[1, 0, 0], [np.nan] * 3]),
        (POSE, [[0, 2, 0, np.nan, 0, 0, 0], [np.nan] * 7], [[0, 2, 0], [np.nan] * 3]),
        (POSE, [[1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0]], None),
        (POSE, [[0] * 7, [np.nan, 0, 0, 0, 0, 0, 0]], None),
        (POSE, [[1, 2, 3]], None),
        (NUMBERS, [[1, 0, 0, 0, 0, 0, 0]], None),
    ],
)
def test_quaternions_that_are_all_0_are_left_out_with_a_warning(columns, rows, expected):
    values, problems = np.array(rows, dtype=np.float64), list[str]()
    dropped = records.drop_zero_turns(values, columns, problems.append)
    np.testing.assert_equal(dropped, np.array(rows if expected is None else expected, dtype=np.float64))
    assert len(problems) == (expected is not None)


def mapping(**tree: Any) -> LogMapping:
    return msgspec.convert({"episode": {"success": True}, **tree}, LogMapping)


def series(values: Any, known: Any = None, **fields: Any) -> Series:
    rows = np.array(values, dtype=np.float64)
    return Series(rows, np.ones(len(rows), np.bool_) if known is None else np.array(known, np.bool_), **fields)


def logged(count: int = N, time_s: Any = None, **fields: Any) -> LoggedEpisode:
    parts = {name.replace("__", "."): part for name, part in fields.pop("parts", {}).items()}
    times = np.arange(count) * 0.1 if time_s is None else np.array(time_s)
    return LoggedEpisode(name="take", file=f"FILE {next(FILES)}", time_s=times, dt_s=0.1, series=parts, **fields)


def moving(count: int = N, size: int = 7) -> Floats:
    poses = np.zeros((count, 7))
    poses[:, 0], poses[:, 3] = 0.01 * np.arange(count), 1.0
    return poses[:, :size]


def build(parts: dict[str, Series], tree: dict[str, Any], **fields: Any) -> Batch:
    return build_episode(logged(parts=parts, **fields), mapping(**tree))


@pytest.mark.parametrize(("unit", "scale"), [("m", 1.0), ("cm", 0.01), ("mm", 0.001)])
def test_a_position_is_scaled_by_its_unit_and_a_rotation_is_not(unit, scale):
    poses = moving()
    arranged = PoseColumns(source="e", unit=unit).arrange(poses, PoseLayout((0, 1, 2), (3, 4, 5, 6)), "eef")
    assert arranged[:, 0] == pytest.approx(scale * poses[:, 0])
    assert arranged[0, 3:].tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("late_s", "has_stamps", "is_stamped"), [(0.0, False, False), (0.0009, False, False), (0.0011, False, True),
                                             (-0.0011, False, True), (0.0, True, True)])  # fmt: skip
def test_times_are_kept_where_they_are_uneven_by_a_hundredth_of_a_step_or_the_log_has_stamps(
    late_s, has_stamps, is_stamped
):
    times = 7.0 + 0.1 * np.arange(N)
    times[3] += late_s
    batch = build({"eef": series(moving())}, HAND, time_s=times, has_stamps=has_stamps)
    assert batch.channel("time_s").present[0] == is_stamped
    if is_stamped:
        assert batch.channel("time_s").values == pytest.approx(times - 7.0)


def test_instants_at_which_the_robot_is_unknown_are_left_out_with_a_warning(caplog):
    known = [False, True, False, True, True, True]
    parts = {"eef": series(moving(), known), "action": series(np.arange(N)[:, None])}
    with caplog.at_level(logging.WARNING):
        batch = build(parts, {**HAND, "action": {"from": "a"}})
    assert batch.channel("time_s").values == pytest.approx([0.0, 0.2, 0.3, 0.4])
    assert batch.action.episode_rows(0)[:, 0].tolist() == [1.0, 3.0, 4.0]
    assert ["unknown then: 1;" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("parts", "tree", "word"),
    [
        ({"eef": series(moving(), [False] * N)}, HAND, "eef is not known at any time"),
        (
            {
                "eef": series(moving(), [True] * 3 + [False] * 3),
                "action": series(np.zeros((N, 1)), [False] * 3 + [True] * 3),
            },
            {**HAND, "action": {"from": "a"}},
            "never known at the same",
        ),
    ],
)
def test_parts_that_are_never_known_or_never_together_are_an_error(parts, tree, word):
    with pytest.raises(RecordError, match=word) as caught:
        build(parts, tree)
    assert (caught.value.place.file.split()[0], caught.value.place.episode) == ("FILE", "take")


def test_an_action_is_that_of_each_record_but_the_last_and_times_that_go_back_are_an_error():
    parts = {"eef": series(moving(2)), "action": series([[5.0], [6.0]])}
    batch = build(parts, {**HAND, "action": {"from": "a"}}, count=2)
    assert batch.action.episode_rows(0).tolist() == [[5.0]]
    with pytest.raises(RecordError) as caught:
        build({"eef": series(moving(3))}, HAND, time_s=[0.0, 0.1, 0.05])
    assert caught.value.place.episode == "take"


def bodies(**roles: str) -> dict[str, Any]:
    return {"bodies": {name: {"from": name, "role": role} for name, role in roles.items()}}


def test_a_body_is_unknown_where_it_was_not_seen_and_one_that_was_never_seen_is_a_warning(caplog):
    cup = moving()
    parts = {
        "eef": series(moving()),
        "bodies.cup": series(cup, [False, True, True, False, True, True]),
        "bodies.pen": series(moving() + 9, [False] * N),
    }
    with caplog.at_level(logging.WARNING):
        batch = build(parts, {**HAND, **bodies(cup="target", pen="bystander")})
    assert batch.lengths.tolist() == [5]
    valid = batch.pose_valid.channel.values.reshape(5, 2)
    assert valid.tolist() == [[1, 0], [1, 0], [0, 0], [1, 0], [1, 0]]
    assert batch.body_pos_m.channel.values.reshape(5, 2, 3)[:, :, 0].tolist() == [
        [cup[1, 0], 0], [cup[2, 0], 0], [cup[2, 0], 0], [cup[4, 0], 0], [cup[5, 0], 0],
    ]  # fmt: skip
    assert batch.body_quat_wxyz.channel.values.tolist() == [1.0, 0.0, 0.0, 0.0] * 10
    assert batch.headers[0].target_object == "cup"
    assert "without a known pose: bodies.pen" in caplog.text


@pytest.mark.parametrize(("late", "warns"), [(1, False), (2, True)])
def test_a_body_that_is_seen_late_is_a_warning_that_names_it(caplog, late, warns):
    parts = {"eef": series(moving()), "bodies.cup": series(moving(), np.arange(N) >= late)}
    with caplog.at_level(logging.WARNING):
        assert build(parts, {**HAND, **bodies(cup="target")}).lengths.tolist() == [N - late]
    assert (f"{late} of {N} clock times" in caplog.text and "[bodies.cup] is unknown" in caplog.text) == warns


def test_poses_that_are_in_no_record_are_counted_in_a_warning(caplog):
    parts = {"eef": series(moving(), poses=N), "bodies.cup": series(moving(), poses=N + 1)}
    with caplog.at_level(logging.WARNING):
        build(parts, {**HAND, **bodies(cup="target")})
    assert ["[bodies.cup]: 1 of 7 pose messages" in record.getMessage() for record in caplog.records] == [True]


def test_two_parts_on_one_path_are_refused_and_two_that_rest_at_one_place_are_not():
    tree = {"bodies": {name: {"from": "x", "frame": name, "role": "bystander"} for name in ("a", "b")}}
    parts = {"bodies.a": series(moving()), "bodies.b": series(moving())}
    with pytest.raises(RecordError, match="same numbers"):
        build(parts, tree)
    turned = moving()
    turned[:, 3], turned[:, 4] = np.cos(0.1 * np.arange(N)), np.sin(0.1 * np.arange(N))
    with pytest.raises(RecordError, match="same numbers"):
        build({"bodies.a": series(moving()), "bodies.b": series(turned)}, tree)
    still = turned * [0, 1, 1, 1, 1, 1, 1] + [1, 0, 0, 0, 0, 0, 0]
    assert len(build({"bodies.a": series(still), "bodies.b": series(still)}, tree)) == 1


def test_the_orientations_of_hands_are_left_out_if_one_has_none(caplog):
    parts = {"eef.left": series(moving()), "eef.right": series(moving(size=3) + 1)}
    with caplog.at_level(logging.WARNING):
        batch = build(parts, {"arms": {"left": {"eef": {"from": "l"}}, "right": {"eef": {"from": "r"}}}})
    assert "one hand has no orientation" in caplog.text
    assert not batch.eef_quat_wxyz.present[0]
    assert batch.eef_pos_m.episode_rows(0)[2].tolist() == [0.02, 0.0, 0.0, 1.02, 1.0, 1.0]


def test_the_precision_of_parts_that_are_stored_as_float32_is_marked():
    tree = {**HAND, **bodies(cup="target")}
    parts = {"eef": series(moving(), is_single=True), "bodies.cup": series(moving() + 1)}
    batch = build(parts, tree)
    assert batch.extra[0]["header"][SINGLE] == ["eef_pos_m", "eef_quat_wxyz"]
    parts = {"eef": series(moving()), "bodies.cup": series(moving() + 1)}
    assert SINGLE not in build(parts, tree).extra[0]["header"]


# Torques and grips


def between(rows: Any, instants: list[int]) -> tuple[Floats, Any]:
    return np.array(rows, dtype=np.float64), np.array(instants)


TORQUE = {**HAND, "torque": {"from": "t", "limits_nm": [99, 99]}}


def test_a_record_has_the_torque_of_largest_magnitude_since_the_record_before(caplog):
    rows = [[90, 0], [1, 2], [-8, 1], [3, np.nan], [5, -7], [60, 1]]
    samples = series(np.zeros((N, 2)), between=between(rows, [-1, 0, 1, 1, 4, N]))
    with caplog.at_level(logging.WARNING):
        batch = build({"eef": series(moving()), "torque": samples}, TORQUE)
    expected = [[1, 2], [-8, 1], [0, 0], [0, 0], [5, -7], [0, 0]]
    assert batch.joint_torque_nm.episode_rows(0).tolist() == expected
    assert batch.headers[0].joint_torque_limit_nm == (99, 99)
    assert "torque of 90 " in caplog.text
    caplog.clear()
    samples = series(np.full((N, 2), 50.0), between=between([[50, 50], [-50, 1]], [-1, N]))
    build({"eef": series(moving()), "torque": samples}, TORQUE)
    assert not caplog.records
    with pytest.raises(RecordError, match="infinite"):
        build({"eef": series(moving()), "torque": series([[np.inf, 1.0]] * N)}, TORQUE)


@pytest.mark.parametrize(
    ("bounds", "held"),
    [
        ({"holds_above": 1.0}, [False, False, False, True, True, True]),
        ({"holds_below": 2.0}, [True, True, True, False, False, False]),
        ({"holds_above": 0.0, "holds_below": 4.0}, [False, True, True, True, True, False]),
    ],
)
def test_a_grip_is_between_its_bounds_and_not_at_them(bounds, held):
    numbers = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 4.0])[:, None]
    batch = build({"eef": series(moving()), "gripper": series(numbers)}, {**HAND, "gripper": {"from": "g", **bounds}})
    assert batch.gripper_contact.episode_rows(0)[:, 0].tolist() == held


def test_without_bounds_a_grip_is_0_or_1_in_every_message():
    tree = {**HAND, "gripper": {"from": "g"}}
    values = np.array([0, 1, 0, 0, 0, 0])[:, None]
    between_records = between([[1.0], [np.nan], [1.0]], [3, 4, -1])
    samples = series(values, between=between_records)
    batch = build({"eef": series(moving()), "gripper": samples}, tree)
    assert batch.gripper_contact.episode_rows(0)[:, 0].tolist() == [False, True, False, True, False, False]
    for wrong in (2.0, -1.0, 0.5):
        with pytest.raises(RecordError, match="do not show"):
            build({"eef": series(moving()), "gripper": series(np.full((N, 1), wrong))}, tree)


@pytest.mark.parametrize(
    ("facts", "success", "expected"),
    [
        ({"success": False}, True, (False, "failure")),
        ({"success": "x"}, True, (True, "success")),
        ({}, False, (False, "failure")),
        ({"success": True, "outcomes": {"take": "timeout"}}, True, (False, "timeout")),
        ({"success": False, "outcomes": {"take": "success"}}, None, (True, "success")),
        ({"success": False, "outcomes": {"other": "success"}}, None, (False, "failure")),
    ],
)
def test_the_outcome_of_an_episode_goes_before_the_success_of_all(facts, success, expected):
    episode = logged(parts={"eef": series(moving())}, success=success)
    header = build_episode(episode, msgspec.convert({"episode": facts, **HAND}, LogMapping)).headers[0]
    assert (header.success, header.outcome) == expected
    with pytest.raises(RecordError, match="whether the episode succeeded"):
        build_episode(logged(parts={"eef": series(moving())}), msgspec.convert(HAND, LogMapping))


@pytest.mark.parametrize(
    ("facts", "fields", "expected"),
    [
        ({}, {}, ("real-robot", "take", "unknown")),
        ({"task": "T", "benchmark": "b"}, {"embodiment": "arm"}, ("b", "T", "arm")),
        ({"template": "pick", "embodiment": "mine"}, {"instruction": "Go up!", "embodiment": "arm"},
         ("real-robot", "pick/go-up", "mine")),
    ],
)  # fmt: skip
def test_facts_of_the_mapping_go_before_those_of_the_log(facts, fields, expected):
    episode = logged(parts={"eef": series(moving())}, **fields)
    header = build_episode(episode, mapping(episode={"success": True, **facts}, **HAND)).headers[0]
    assert (header.benchmark, header.task_id, header.embodiment) == expected
    assert header.instruction == fields.get("instruction")


def test_a_task_that_is_named_already_keeps_its_name_and_a_trial_has_its_own_facts():
    episode = logged(parts={"eef": series(moving())}, instruction="go")
    assert build_episode(episode, mapping(**HAND), {"go": "named"}).headers[0].task_id == "named"
    assert build_episode(episode, mapping(**HAND), {"other": "go"}).headers[0].task_id == "go"
    trial = logged(parts={"eef": series(moving())}, facts=mappings.Episode(success=False, policy="mine"))
    header = build_episode(trial, mapping(**HAND)).headers[0]
    assert (header.success, header.policy) == (False, "mine")


def test_of_two_texts_with_one_task_the_second_gets_eight_digits_of_its_digest():
    digest = hashlib.sha256(b"go").hexdigest()[:8]
    assert records.name_tasks(["Go!", "go", "Go!"]) == {"Go!": "go", "go": f"go-{digest}"}


@pytest.mark.parametrize(
    ("texts", "are_named_alike"),
    [
        (("pick -5", "pick 5"), False),
        (("-5", "5"), False),
        (("pick 🍎", "pick 🍌"), False),
        (("a < b", "a > b"), False),
        (("move along -x", "move along x"), False),
        (("turn by -.5", "turn by .5"), False),
        (("turn by .5", "turn by 5"), False),
        (("turn by \u2013 90", "turn by 90"), False),
        (("fill 1/2", "fill 1.2"), False),
        (("fill 50%", "fill 50"), False),
        (("take #2 (red)", "take 2 red"), False),
        (("fill to 5\uff05", "fill to 5"), False),
        (("fill to 5\ufe6a", "fill to 5"), False),
        (("take \uff03 2", "take 2"), False),
        (("pick \uff0d5", "pick 5"), False),
        (("mix 1:2", "mix 1 2"), False),
        (("mix 1 : 2", "mix 1 2"), False),
        (("mix 1\uff1a2", "mix 1 2"), False),
        (("lift by 1,5", "lift by 1 5"), False),
        (("take 1\u20133", "take 1 3"), False),
        (("move 3'", "move 3"), False),
        (('move 3"', "move 3\u2032"), False),
        (("step 2: pick", "Step 2 pick"), True),
        (("blocks 1, 2", "blocks 1 2"), True),
        (("run 2026-12-03", "run 2026 12 03"), True),
        (("take the red one (left)!", "Take the red one: left"), True),
        (("Pick the cup.", "pick the  cup"), True),
        (("Turn 90\u00b0", "turn  90\u00b0."), True),
        (("Fill 50% of \u00e9", "fill 50% of e\u0301!"), True),
        (("top-left, 5", "top left 5"), True),
    ],
)
def test_instructions_of_different_meaning_have_different_ids_in_logs_that_are_read_apart(texts, are_named_alike):
    first, second = (records.name_tasks([text])[text] for text in texts)
    assert (first == second) == are_named_alike


def torque_problem(limits: list[float] | None, count: int = 2, embodiment: str | None = None, **more: Any) -> str:
    names = more.pop("numbers", ())
    tree = {"from": "t", **({"limits_nm": limits} if limits else {}), **more}
    parts = {"eef": series(moving()), "torque": series(np.ones((N, count)), names=names)}
    try:
        build(parts, {**HAND, "torque": tree}, embodiment=embodiment)
    except RecordError as error:
        return f"{error.problem} {error.remedy}"
    return ""


UR = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"limits": [1, 1]}, ""),
        ({"limits": [1]}, "2 torques, but 1 limits"),
        ({"limits": None}, "known for the robot"),
        ({"limits": None, "embodiment": "so101"}, "limits_nm"),
        ({"limits": None, "count": 7, "embodiment": "panda"}, ""),
        ({"limits": None, "count": 6, "embodiment": "panda"}, "6 torques, but 7"),
        ({"limits": [1] * 6, "count": 6, "embodiment": "ur5e"}, "motor currents"),
        ({"limits": [1] * 6, "count": 6, "embodiment": "ur5e", "unit": "N m"}, ""),
        ({"limits": [1] * 6, "count": 6, "embodiment": "ur5e", "scale": 2.0}, ""),
        ({"limits": [1] * 6, "count": 6, "embodiment": "ur5e", "from": "/torques"}, ""),
        ({"limits": [1] * 6, "count": 6, "embodiment": "ur5e", "field": "tau"}, ""),
        ({"limits": [1] * 6, "count": 6, "numbers": UR}, "motor currents"),
        ({"limits": [1] * 6, "count": 6, "numbers": UR, "unit": "N m"}, ""),
        ({"limits": [1] * 5, "count": 5, "numbers": UR[:5]}, ""),
        ({"limits": None, "count": 6, "numbers": UR[::-1], "embodiment": "ur5e", "unit": "N m"}, "not in the order"),
        ({"limits": [1] * 6, "count": 6, "numbers": UR[::-1], "unit": "N m"}, ""),
        ({"limits": [1, 1], "count": 3, "numbers": ("j2", "j1", "finger")}, 'names = ["j1", "j2"]'),
        ({"limits": [1, 1], "count": 3, "numbers": ("a", "b", "c")}, 'names = "FILL IN"'),
        ({"limits": [1, 1], "count": 3, "numbers": ("j1", "j2", "j3")}, 'names = "FILL IN"'),
    ],
)
def test_torques_need_a_limit_for_each_joint_and_are_no_currents(arguments, word):
    found = torque_problem(**arguments)
    assert word in found
    assert bool(found) == bool(word)


# Warnings


def warnings_of(caplog: pytest.LogCaptureFixture, parts: dict[str, Series], tree: dict[str, Any]) -> str:
    count = len(next(iter(parts.values())).values)
    with caplog.at_level(logging.WARNING):
        build(parts, tree, count=count)
    return caplog.text


@pytest.mark.parametrize(("messages", "hints"), [(2 * N, False), (2 * N + 1, True)])
def test_a_topic_of_which_most_messages_are_not_in_records_is_a_reason_for_a_faster_clock(caplog, messages, hints):
    text = warnings_of(caplog, {"eef": series(moving(), poses=messages)}, HAND)
    assert ("a faster topic as `clock`" in text) == hints


@pytest.mark.parametrize(("distance_m", "warns"), [(10.0, False), (10.5, True)])
def test_a_part_far_from_the_origin_is_a_warning(caplog, distance_m, warns):
    poses = moving() * 0
    poses[:, 1], poses[:, 3] = -distance_m, 1.0
    assert ("from the origin" in warnings_of(caplog, {"eef": series(poses)}, HAND)) == warns


@pytest.mark.parametrize(
    ("zeros", "far_m", "warns"), [([2], 0.3, True), ([0, 1], 0.3, True), ([2], 0.03, False), ([], 1, False)]
)
def test_a_jump_to_the_origin_is_a_warning_since_zeros_may_mean_a_lost_pose(caplog, zeros, far_m, warns):
    poses = moving() * 0
    poses[:, 2], poses[:, 3] = far_m, 1.0
    poses[zeros, 2] = 0.0
    text = warnings_of(caplog, {"eef": series(poses)}, HAND)
    assert (f"the origin, where it is in {len(zeros)} record" in text) == warns


@pytest.mark.parametrize(("times", "moves", "warns"), [(1, 9, False), (2, 7, True), (2, 6, False), (3, 7, True)])
def test_a_pose_that_is_repeated_often_is_a_warning(caplog, times, moves, warns):
    poses = np.repeat(moving(moves + 1), times, axis=0)
    text = warnings_of(caplog, {"eef": series(poses)}, HAND)
    assert (f"each pose {times} times" in text) == warns


@pytest.mark.parametrize(("norm", "warns"), [(1.04, False), (1.06, True), (0.94, True)])
def test_a_quaternion_whose_norm_is_not_1_is_a_warning(caplog, norm, warns):
    poses = moving()
    poses[2, 3] = norm
    assert ("quaternions of norm" in warnings_of(caplog, {"eef": series(poses)}, HAND)) == warns


def test_torques_of_0_and_a_log_without_poses_are_warnings(caplog):
    text = warnings_of(caplog, {"torque": series(np.zeros((N, 2)))}, {"torque": TORQUE["torque"]})
    assert "[torque] is 0 throughout" in text
    assert "neither [eef] nor [bodies]" in text
    caplog.clear()
    text = warnings_of(caplog, {"bodies.cup": series(moving()), "torque": series(np.eye(N)[:, :2])},
                       {"torque": TORQUE["torque"], **bodies(cup="target")})  # fmt: skip
    assert text == ""
