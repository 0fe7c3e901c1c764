"""Which body, joint and trial a message of ROS is of, and that nothing between two records is overlooked."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.trajectory.batch import Batch
from sources.logs.log_files import pose_message, problem, read, save_mapping, write_mcap
from sources.logs.ros_files import START_NS, STORE, T, bare_pose, header, joints, pose, transform, write_rosbag2

STEP_NS = 50_000_000
HEAD = '[episode]\ntask = "t"\nsuccess = true\n'
EEF = HEAD + '[eef]\nfrom = "/eef"\n'
TORQUE = '[torque]\nfrom = "/joints"\nnames = ["a", "b"]\nlimits_nm = [10, 10]\n'


def at(k: float) -> int:
    return START_NS + round(k * STEP_NS)


def hand(count: int = 20, frame: str = "world") -> list:
    return [("/eef", at(k), pose(0.01 * k, at(k), frame)) for k in range(count)]


def bag(tmp_path: Path, rows: list, text: str) -> Path:
    folder = write_rosbag2(tmp_path / "bag", sorted(rows, key=lambda row: row[1]))
    save_mapping(folder, text)
    return folder


def episode(tmp_path: Path, rows: list, text: str) -> Batch:
    (batch,) = read(bag(tmp_path, rows, text))
    assert isinstance(batch, Batch), f"{batch} {batch.remedy}"
    return batch


def torques(batch: Batch) -> list:
    return batch.joint_torque_nm.episode_rows(0).tolist()


# Joints


def test_joint_states_of_several_drivers_are_merged_by_name_and_empty_ones_change_nothing(tmp_path):
    rows = hand()
    for k in range(20):
        rows += [
            ("/joints", at(k - 0.3), joints({"a": 1.0 + k})),
            ("/joints", at(k - 0.2), joints({"b": -2.0, "c": 9.0})),
        ]
        rows.append(("/joints", at(k - 0.1), joints({})))
    batch = episode(tmp_path, rows, EEF + TORQUE)
    assert torques(batch) == [[1.0 + k, -2.0] for k in range(20)]


def test_a_name_that_no_message_has_is_an_error_with_the_names(tmp_path):
    rows = hand() + [("/joints", at(k), joints({"a": 1.0, "z": 2.0})) for k in range(20)]
    assert "has the name b" in problem(bag(tmp_path, rows, EEF + TORQUE))


def test_joints_in_another_order_are_found_by_name_and_refused_without_names(tmp_path):
    order = [{"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}]
    rows = hand() + [("/joints", at(k), joints(order[k % 2])) for k in range(20)]
    assert torques(episode(tmp_path, rows, EEF + TORQUE)) == [[1.0, 2.0]] * 20
    save_mapping(tmp_path / "bag", EEF + TORQUE.replace('names = ["a", "b"]\n', ""))
    assert "b; b, a" in problem(tmp_path / "bag")


def test_numbers_without_names_are_refused_where_joints_are_chosen_by_name(tmp_path):
    """Drivers leave names out to save bandwidth: which joint the numbers are of is not known then."""
    rows = hand() + [("/joints", at(k), joints({"a": 1.0, "b": 2.0})) for k in range(20)]
    nameless = joints({"a": 1.0, "b": 99.0})
    nameless.name = []
    assert "names and numbers" in problem(bag(tmp_path, [*rows, ("/joints", at(3.5), nameless)], EEF + TORQUE))


def test_a_record_holds_the_largest_torque_of_each_joint_since_the_record_before(tmp_path):
    rng = np.random.default_rng(0)
    rows, expected = hand(12), np.zeros((12, 2))
    for n in range(12 * 10):
        k = n / 10 - 0.95
        effort = rng.uniform(-9, 9, 2)
        rows.append(("/joints", at(k), joints({"a": effort[0], "b": effort[1]})))
        record = int(np.ceil(k))
        if record > 0 or n == 9:
            larger = np.abs(effort) > np.abs(expected[record])
            expected[record, larger] = effort[larger]
    batch = episode(tmp_path, rows, EEF + TORQUE)
    assert torques(batch) == expected.tolist()


def test_an_instant_that_is_no_record_passes_its_extremes_on(tmp_path):
    rows = [row for k, row in enumerate(hand()) if k != 7]
    rows += [("/joints", at(k), joints({"a": 60.0 if k == 7 else 1.0, "b": 0.0})) for k in range(20)]
    batch = episode(tmp_path, rows, EEF.replace("success", 'clock = "/joints"\nsuccess') + TORQUE)
    assert batch.lengths.tolist() == [19]
    assert torques(batch)[7] == [60.0, 0.0]
    assert score(batch, load_ruleset()).episode(0).safe is False


def test_a_grip_between_two_records_is_not_overlooked(tmp_path):
    text = EEF + '[gripper]\nfrom = "/joints"\nnames = ["a"]\nholds_above = 5\n'
    rows = hand() + [("/joints", at(n / 4), joints({"a": 9.0 if n == 29 else 1.0})) for n in range(80)]
    batch = episode(tmp_path, rows, text)
    assert np.flatnonzero(batch.gripper_contact.episode_rows(0)).tolist() == [8]


def test_torque_that_stops_is_held_for_two_periods_and_unknown_then(tmp_path):
    rows = hand() + [("/joints", at(2 * k), joints({"a": 1.0, "b": 0.0})) for k in range(4)]
    batch = episode(tmp_path, rows, EEF + TORQUE)
    assert batch.lengths.tolist() == [11]  # the last message is at record 6, and holds for 4 more


def test_joints_without_names_in_the_mapping_are_refused_unless_their_names_are_in_the_order_of_the_limits(tmp_path):
    text = EEF.replace("success", 'embodiment = "panda"\nsuccess') + '[torque]\nfrom = "/joints"\n'
    names = [f"panda_joint{k}" for k in range(1, 8)]
    rows = [("/joints", at(k), joints(dict.fromkeys(names[::-1], 6.0))) for k in range(20)]
    assert f"names = {json.dumps(names)}" in problem(bag(tmp_path, hand() + rows, text))
    save_mapping(tmp_path / "bag", f"{text}names = {json.dumps(names)}\n")
    (batch,) = read(tmp_path / "bag")
    assert score(batch, load_ruleset()).episode(0).extreme["joint_torque"] == 0.5


def test_a_message_of_more_names_than_numbers_is_read_by_places(tmp_path):
    message = joints({"a": 1.0, "b": 2.0})
    message.name = ["a", "b", "finger"]
    text = EEF + '[torque]\nfrom = "/joints"\nlimits_nm = [10]\n'
    rows = hand() + [("/joints", at(k), message) for k in range(20)]
    assert "numbers with `index`" in problem(bag(tmp_path, rows, text))
    save_mapping(tmp_path / "bag", text + "index = [1]\n")
    (batch,) = read(tmp_path / "bag")
    assert torques(batch) == [[2.0]] * 20


@pytest.mark.parametrize(("torque", "safe"), [(12.1, True), (12.11, False)])
def test_numbers_stored_as_float32_are_equal_to_a_limit_up_to_their_precision(tmp_path, torque, safe):
    layout = T["std_msgs/msg/MultiArrayLayout"]([], 0)
    message = T["std_msgs/msg/Float32MultiArray"](layout, np.array([torque, 1.0], np.float32))
    text = EEF + '[torque]\nfrom = "/joints"\nlimits_nm = [12.1, 12.1]\n'
    batch = episode(tmp_path, hand() + [("/joints", at(k), message) for k in range(20)], text)
    assert score(batch, load_ruleset()).episode(0).safe is safe


def test_a_gripper_s_positions_are_not_taken_for_efforts(tmp_path):
    message = joints({"finger": 1.0})
    message.position = np.array([0.03])
    text = EEF + '[gripper]\nfrom = "/joints"\nnames = ["finger"]\nholds_above = 0.01\nholds_below = 0.04\n'
    assert 'field = "position"' in problem(
        bag(tmp_path, hand() + [("/joints", at(k), message) for k in range(20)], text)
    )
    save_mapping(tmp_path / "bag", text + 'field = "position"\n')
    (batch,) = read(tmp_path / "bag")
    assert batch.gripper_contact.episode_rows(0).all()
    message.effort = np.zeros(0)
    rows = hand() + [("/joints", at(k), message) for k in range(20)]
    save_mapping(write_rosbag2(tmp_path / "positions", sorted(rows, key=lambda row: row[1])), text)
    (batch,) = read(tmp_path / "positions")
    assert batch.gripper_contact.episode_rows(0).all()


def test_joints_as_an_object_of_json_are_chosen_by_name_and_text_is_refused(tmp_path):
    rows = [("/eef", k / 20, pose_message(0.01 * k)) for k in range(20)]
    rows += [("/joints", k / 20, {"effort": {"b": 14.0, "a": 2.0}}) for k in range(20)]
    rows += [("/grip", k / 20, {"data": "open"}) for k in range(20)]
    write_mcap(tmp_path / "take.mcap", sorted(rows, key=lambda row: row[1]))
    save_mapping(tmp_path, EEF + TORQUE)
    (batch,) = read(tmp_path / "take.mcap")
    assert torques(batch) == [[2.0, 14.0]] * 20
    save_mapping(tmp_path, EEF + '[gripper]\nfrom = "/grip"\n')
    assert "/grip holds text" in problem(tmp_path / "take.mcap")


@pytest.mark.parametrize("field", ["", 'field = "wrench"\n', 'field = "wrench.force"\n'])
def test_a_wrench_is_read_from_its_own_message(tmp_path, field):
    def wrench(k: float) -> object:
        force = T["geometry_msgs/msg/Vector3"](0.0, 0.0, 30.0 if k == 7.5 else 1.0)
        whole = T["geometry_msgs/msg/Wrench"](force, T["geometry_msgs/msg/Vector3"](0.0, 0.0, 0.0))
        return T["geometry_msgs/msg/WrenchStamped"](header(at(k)), whole)

    rows = hand() + [("/ft", at(n / 2), wrench(n / 2)) for n in range(40)]
    batch = episode(tmp_path, rows, EEF + f'[wrench]\nfrom = "/ft"\ntare = [0, 0, 1]\n{field}')
    row = score(batch, load_ruleset(library="real-robot", missing="deactivate")).episode(0)
    assert max(each.extreme or 0 for each in row.diagnostics.values()) == pytest.approx(29)


# Frames


def moving(frames: dict[str, float]) -> list:
    return [
        ("/mocap", at(k), transform(child, "world", speed * k, at(k)).transforms[0])
        for k in range(20)
        for child, speed in frames.items()
    ]


@pytest.mark.parametrize("frame", ["plate", "/plate"])
def test_frame_chooses_among_single_transforms(tmp_path, frame):
    text = EEF + f'[bodies.plate]\nfrom = "/mocap"\nframe = "{frame}"\nrole = "bystander"\n'
    batch = episode(tmp_path, hand() + moving({"mug": 0.0, "plate": 0.01}), text)
    assert batch.body_pos_m.channel.values[0::3].tolist() == pytest.approx([0.01 * k for k in range(20)])


def test_a_frame_that_no_message_has_and_one_that_is_not_stated_are_errors(tmp_path):
    text = EEF + '[bodies.plate]\nfrom = "/mocap"\nframe = "cup"\nrole = "bystander"\n'
    folder = bag(tmp_path, hand() + moving({"mug": 0.0, "plate": 0.01}), text)
    assert "mug, plate" in problem(folder)
    save_mapping(folder, text.replace('frame = "cup"\n', ""))
    assert "poses of several" in problem(folder)
    save_mapping(folder, text.replace("/mocap", "/eef"))
    assert "no message on /eef has a child frame" in problem(folder)


def test_an_odometry_is_filtered_by_its_child_frame(tmp_path):
    cov = np.zeros(36)
    twist = T["geometry_msgs/msg/Twist"](
        T["geometry_msgs/msg/Vector3"](0, 0, 0), T["geometry_msgs/msg/Vector3"](0, 0, 0)
    )

    def odometry(child: str, x: float, k: int) -> object:
        place = T["geometry_msgs/msg/PoseWithCovariance"](bare_pose(x), cov)
        speed = T["geometry_msgs/msg/TwistWithCovariance"](twist, cov)
        return T["nav_msgs/msg/Odometry"](header(at(k)), child, place, speed)

    rows = [("/odom", at(k), odometry(child, x * k, k)) for k in range(9) for child, x in (("a", 1.0), ("b", 0.01))]
    batch = episode(tmp_path, rows, HEAD + '[eef]\nfrom = "/odom"\nframe = "b"\n')
    assert batch.eef_pos_m.episode_rows(0)[:, 0].tolist() == pytest.approx([0.01 * k for k in range(9)])


def test_poses_in_different_frames_are_an_error_unless_they_are_brought_into_one(tmp_path):
    """The plate rests in the world; the camera that sees it moves, and turns."""
    rows = hand(frame="/world")
    for k in range(20):
        rows.append(("/tf", at(k) + 1, transform("camera", "base", 0.1 * k, at(k))))
        rows.append(("/plate", at(k) + 2, pose(1.0 - 0.1 * k, at(k), "camera")))
    rows.append(("/tf_static", at(9), transform("base", "world", 0.0)))
    text = EEF + '[bodies.plate]\nfrom = "/plate"\nrole = "bystander"\n'
    folder = bag(tmp_path, rows, text)
    assert "world, camera" in problem(folder)
    save_mapping(folder, text.replace("role", 'in = "world"\nrole'))
    (batch,) = read(folder)
    assert isinstance(batch, Batch), batch
    assert batch.body_pos_m.channel.values[0::3].tolist() == pytest.approx([1.0] * 20)
    assert score(batch, load_ruleset(missing="deactivate")).episode(0).diagnostics is not None
    save_mapping(folder, text.replace("role", 'in = "map"\nrole'))
    assert "'camera' with 'map'" in problem(folder)


def test_a_body_without_a_frame_next_to_a_hand_with_one_is_a_warning(tmp_path, caplog):
    text = EEF + '[bodies.mug]\nfrom = "/mug"\nrole = "bystander"\n'
    for named in ("world", ""):
        caplog.clear()
        mug = [("/mug", at(k), pose(0.5, at(k), named)) for k in range(20)]
        write_rosbag2(tmp_path / f"bag{named}", hand() + mug)
        save_mapping(tmp_path / f"bag{named}", text)
        assert isinstance(read(tmp_path / f"bag{named}")[0], Batch)
        assert ("[bodies.mug] do not name their frame; they are read as poses in world" in caplog.text) == (not named)


def test_two_parents_of_a_frame_are_an_error(tmp_path):
    rows = hand(frame="tool")
    for k in range(20):
        rows += [("/tf", at(k), transform("tool", parent, 0.0, at(k))) for parent in ("world", "odom")]
    assert "several parents" in problem(bag(tmp_path, rows, EEF + 'in = "world"\n'))


def test_a_pose_at_whose_stamp_the_tree_is_not_known_is_unknown(tmp_path):
    rows = hand() + [("/plate", at(k), pose(0.0, at(k), "camera")) for k in range(20)]
    rows += [("/tf", at(k), transform("camera", "world", 0.5, at(k))) for k in range(5, 15)]
    batch = episode(tmp_path, rows, EEF + '[bodies.plate]\nfrom = "/plate"\nin = "world"\nrole = "bystander"\n')
    assert batch.lengths.tolist() == [15]  # from where the plate is first seen
    assert batch.pose_valid.channel.values.sum() == 10


@pytest.mark.parametrize("mapped", ["/tf_static", "/tf_static twice"])
def test_a_static_transform_that_is_logged_late_holds_from_the_start(tmp_path, mapped):
    rows = [*hand(), ("/tf_static", at(12), transform("table", "world", 0.7))]
    rows += [("/tf_static", at(15), transform("shelf", "world", 0.9))] if "twice" in mapped else []
    batch = episode(tmp_path, rows, EEF + '[bodies.table]\nfrom = "/tf_static"\nframe = "table"\nrole = "furniture"\n')
    assert batch.lengths.tolist() == [20]
    assert not batch.pose_valid.channel.present[0]


def test_a_pose_that_is_slower_than_the_clock_is_unknown_in_between_and_a_warning_counts_what_no_record_has(
    tmp_path, caplog
):
    rows = hand() + [("/plate", at(k / 2), pose(0.0, at(k / 2))) for k in range(40)]
    rows += [("/mug", at(4 * k), pose(0.0, at(4 * k))) for k in range(5)]
    text = (
        EEF + '[bodies.plate]\nfrom = "/plate"\nrole = "bystander"\n[bodies.mug]\nfrom = "/mug"\nrole = "bystander"\n'
    )
    batch = episode(tmp_path, rows, text)
    assert batch.lengths.tolist() == [20]
    assert "20 of 40" in caplog.text
    assert batch.pose_valid.channel.values.reshape(20, -1).sum(axis=0).tolist() == [5]


# Trials


def test_a_recording_is_cut_into_trials_by_times(tmp_path):
    trial = '[[episode]]\ntask = "t"\nsuccess = {}\nstart_s = {}\nend_s = {}\n'
    text = trial.format("true", 0, 0.4) + trial.format("false", 0.5, START_NS / 1e9 + 0.74) + '[eef]\nfrom = "/eef"\n'
    first, second = read(bag(tmp_path, hand(), text))
    assert [batch.headers[0].episode_id for batch in (first, second)] == ["bag_0", "bag_1"]
    assert [(batch.lengths[0], batch.headers[0].success) for batch in (first, second)] == [(8, True), (5, False)]
    assert second.eef_pos_m.episode_rows(0)[0, 0] == pytest.approx(0.1)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_trials_do_not_depend_on_the_order_of_topics_in_the_file(tmp_path, storage):
    kind, empty = T["std_msgs/msg/Bool"], T["std_msgs/msg/Empty"]
    marks = [("/trial", at(k) - 1, kind(on)) for k, on in ((12, True), (16, False), (2, True), (9, False))]
    rows = [*hand(), *marks, ("/camera", at(0) - 10**9, empty())]  # the camera begins 1 s before the hand
    write_rosbag2(tmp_path / "bag", rows, storage)
    hand_lines, trial = '[eef]\nfrom = "/eef"\n', "[[episode]]\nsuccess = true\n"
    for cut in ('marker = "/trial"\n', f"start_s = 1.099\nend_s = 1.449\n{trial}start_s = 1.599\nend_s = 1.799\n"):
        save_mapping(tmp_path / "bag", trial + cut + hand_lines)
        found = [(batch.headers[0].episode_id, int(batch.lengths[0])) for batch in read(tmp_path / "bag")]
        assert found == [("bag_0", 7), ("bag_1", 4)]


@pytest.mark.parametrize(
    ("bounds", "is_read"),
    [
        ([(0, 0.4), (0.4, 0.7)], True),
        ([(0.4, 0.7), (0, 0.4)], True),
        ([(0, 0.4), (0, 0.4)], False),
        ([(0, 0.4), (0.35, 0.7)], False),
        ([(0.3, 0.4), (0, 0.7)], False),
    ],
)
def test_trials_that_overlap_are_refused(tmp_path, bounds, is_read):
    trials = [f"[[episode]]\nsuccess = true\nstart_s = {start}\nend_s = {end}\n" for start, end in bounds]
    outcomes = read(bag(tmp_path, hand(), "".join(trials) + '[eef]\nfrom = "/eef"\n'))
    assert [isinstance(outcome, Batch) for outcome in outcomes] == ([True, True] if is_read else [False])
    assert is_read or "bag_0" in str(outcomes[0])


@pytest.mark.parametrize("kind", ["empty", "numbers", "bool"])
def test_a_marker_topic_cuts_a_recording(tmp_path, kind):
    if kind == "empty":
        marks = [("/trial", at(k) - 1, T["std_msgs/msg/Empty"]()) for k in (5, 12)]
    elif kind == "numbers":
        marks = [("/trial", at(k) - 1, T["std_msgs/msg/Int32"](number)) for number, k in enumerate((5, 9, 12))]
    else:
        marks = [("/trial", at(k) - 1, T["std_msgs/msg/Bool"](on)) for k, on in ((5, True), (9, False), (12, True))]
    text = '[[episode]]\ntask = "t"\nsuccess = true\nmarker = "/trial"\n[eef]\nfrom = "/eef"\n'
    batches = read(bag(tmp_path, hand() + marks, text))
    lengths = {"empty": [7, 8], "numbers": [4, 3, 8], "bool": [4, 8]}
    assert [int(batch.lengths[0]) for batch in batches] == lengths[kind]


def test_a_marker_topic_without_messages_is_refused_since_no_trial_would_be_counted(tmp_path):
    from rosbags.rosbag2 import Writer

    with Writer(tmp_path / "bag", version=9) as recording:
        recording.add_connection("/trial", "std_msgs/msg/Empty", typestore=STORE)
        connection = recording.add_connection("/eef", "geometry_msgs/msg/PoseStamped", typestore=STORE)
        for topic, log_ns, message in hand():
            assert topic == "/eef"
            recording.write(connection, log_ns, STORE.serialize_cdr(message, message.__msgtype__))
    save_mapping(tmp_path / "bag", '[[episode]]\nsuccess = true\nmarker = "/trial"\n[eef]\nfrom = "/eef"\n')
    assert "there is no message on /trial, so no trial begins" in problem(tmp_path / "bag")


# Other encodings


def test_protobuf_of_foxglove_is_read(tmp_path):
    from foxglove_schemas_protobuf.PoseInFrame_pb2 import PoseInFrame
    from mcap_protobuf.writer import Writer

    with (tmp_path / "take.mcap").open("wb") as stream, Writer(stream) as writer:
        for k in range(9):
            message = PoseInFrame(frame_id="world")
            message.timestamp.FromNanoseconds(at(k))
            message.pose.position.x, message.pose.orientation.w = 0.01 * k, 1.0
            writer.write_message("/eef", message, at(k), at(k))
    save_mapping(tmp_path, EEF)
    (batch,) = read(tmp_path)
    assert isinstance(batch, Batch), batch
    assert (batch.lengths.tolist(), batch.headers[0].dt) == ([9], 0.05)
    assert batch.eef_pos_m.episode_rows(0)[:, 0].tolist() == pytest.approx([0.01 * k for k in range(9)])


@pytest.mark.parametrize("nothing", ["null", "NaN", "-nan", "nan", '"NaN"', "Infinity"])
def test_what_json_writes_for_a_lost_pose_is_unknown(tmp_path, nothing):
    rows = [("/eef", 5 + 0.05 * k, pose_message(0.01 * k)) for k in range(20)]
    rows += [("/mug", 5 + 0.05 * k, pose_message(0.125)) for k in range(20)]
    path = write_mcap(tmp_path / "plain.mcap", sorted(rows, key=lambda row: row[1]))
    save_mapping(tmp_path, EEF + '[bodies.mug]\nfrom = "/mug"\nrole = "bystander"\n')
    (plain,) = read(path)
    for k in (4, 5):
        rows[20 + k] = ("/mug", 5 + 0.05 * k, pose_message(777.0))
    write_mcap(path, sorted(rows, key=lambda row: row[1]))
    _replace_in_messages(path, b"777.0", nothing.encode())
    (batch,) = read(path)
    assert isinstance(batch, Batch), f"{batch} {batch.remedy}"
    assert batch.pose_valid.channel.values.tolist() == [float(k not in (4, 5)) for k in range(20)]
    assert batch.eef_pos_m.values.tolist() == plain.eef_pos_m.values.tolist()


def _replace_in_messages(path: Path, old: bytes, new: bytes) -> None:
    from mcap.reader import make_reader
    from mcap.writer import Writer

    with path.open("rb") as stream:
        rows = [(channel, message) for _, channel, message in make_reader(stream).iter_messages()]
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        schema = writer.register_schema(name="any", encoding="jsonschema", data=b"{}")
        channels = {name: writer.register_channel(name, "json", schema) for name in {row[0].topic for row in rows}}
        for channel, message in rows:
            writer.add_message(
                channels[channel.topic], message.log_time, message.data.replace(old, new), message.log_time
            )
        writer.finish()


def test_messages_that_are_recorded_twice_change_nothing(tmp_path, caplog):
    rows = hand()
    for name in ("once", "twice"):
        (tmp_path / name).mkdir()
    once = episode(tmp_path / "once", rows, EEF)
    twice = episode(tmp_path / "twice", [row for row in rows for _ in range(2)], EEF)
    assert twice.eef_pos_m.values.tolist() == once.eef_pos_m.values.tolist()
    assert "repeat an earlier" in caplog.text


def test_what_a_recorder_on_simulated_time_logs_before_the_first_tick_is_left_out(tmp_path, caplog):
    """Logged at 0, as ros2/rosbag2 did before 0.22 (issue 1276)."""
    rows = [("/eef", 0, pose(9.0)) for _ in range(3)]
    rows += [("/eef", 10**11 + k * STEP_NS, pose(0.01 * k, 10**11 + k * STEP_NS)) for k in range(20)]
    batch = episode(tmp_path, rows, EEF)
    assert batch.lengths.tolist() == [20]
    assert "3 messages are left out" in caplog.text


def test_what_is_static_in_a_moving_frame_moves_with_it(tmp_path):
    rows = [("/tf", at(k), transform("flange", "world", 0.01 * k, at(k))) for k in range(20)]
    rows.append(("/tf_static", at(9.5), transform("tool0", "flange", 0.1)))
    text = HEAD + '[eef]\nfrom = "/tf_static"\nframe = "tool0"\nin = "world"\n'
    batch = episode(tmp_path, rows, text)
    assert batch.eef_pos_m.episode_rows(0)[:, 0] == pytest.approx(0.1 + 0.01 * np.arange(20))
    faster = [("/joints", at(n / 50), joints({"a": 60.0 if n == 777 else 1.0, "b": 0.0})) for n in range(-50, 1000)]
    (tmp_path / "faster").mkdir()
    with_torque = episode(tmp_path / "faster", rows + faster, text + TORQUE)
    assert with_torque.eef_pos_m.values.tolist() == batch.eef_pos_m.values.tolist()
    assert np.argmax(with_torque.joint_torque_nm.episode_rows(0)[:, 0]) == 16
    more = '[eef]\nfrom = "/tf"\nframe = "flange"\nin = "world"\n'
    save_mapping(
        tmp_path / "bag", HEAD + more + text[len(HEAD) :].replace("[eef]", '[bodies.tool]\nrole = "bystander"')
    )
    (batch,) = read(tmp_path / "bag")
    assert batch.body_pos_m.episode_poses(0)[1][:, 0, 0] == pytest.approx(0.1 + 0.01 * np.arange(20))


def test_a_pose_in_a_frame_that_moves_itself_is_a_warning(tmp_path, caplog):
    rows = [("/tf", at(k), transform("flange", "world", 0.01 * k, at(k))) for k in range(20)]
    rows += [("/tf", at(k), transform("tool0", "flange", 0.1, at(k))) for k in range(20)]
    text = HEAD + '[eef]\nfrom = "/tf"\nframe = "tool0"\n'
    with caplog.at_level(logging.WARNING):
        episode(tmp_path, rows, text)
    assert "the frame flange, which may move" in caplog.text
    caplog.clear()
    save_mapping(tmp_path / "bag", text + 'in = "world"\n')
    read(tmp_path / "bag")
    assert not caplog.records


# What would be wrong without a word


def test_torques_outside_of_the_records_are_a_warning_if_they_are_larger(tmp_path, caplog):
    rows = hand() + [
        ("/joints", at(k), joints({"a": 1.0, "b": 50.0 if k == 24 else 1.0}, at(k))) for k in range(-4, 30)
    ]
    episode(tmp_path, rows, EEF + TORQUE)
    assert "torque of 50" in caplog.text


def test_a_pose_that_is_published_faster_than_it_is_measured_is_a_warning(tmp_path, caplog):
    episode(tmp_path, [("/eef", at(k), pose(0.01 * (k // 3), at(k))) for k in range(60)], EEF)
    assert "pose 3 times" in caplog.text


def test_a_hand_that_rests_and_then_moves_repeats_nothing(tmp_path, caplog):
    episode(tmp_path, [("/eef", at(k), pose(0.01 * max(k - 30, 0), at(k))) for k in range(60)], EEF)
    assert "repeats each pose" not in caplog.text


def test_the_clock_is_the_hand_although_another_pose_is_faster(tmp_path):
    """At the instants of a body at 100 Hz a hand at 30 Hz, 0.5 m/s, has a jerk of 35 m/s³ (issue 32, 4)."""
    rows = [(topic, at(k * 20 / rate), pose(speed * k / rate, at(k * 20 / rate)))
            for topic, rate, speed in [("/eef", 30, 0.5), ("/mug", 100, 0.0)] for k in range(2 * rate)]  # fmt: skip
    batch = episode(tmp_path, rows, EEF + '[bodies.mug]\nfrom = "/mug"\nrole = "bystander"\n')
    (row,) = score(batch, load_ruleset(missing="deactivate"))
    assert row.diagnostics["eef_speed_under_1mps"].extreme == pytest.approx(0.5)
    assert row.diagnostics["eef_jerk_under_50mps3"].extreme == pytest.approx(0.0, abs=1e-3)


def test_static_poses_that_differ_are_a_warning(tmp_path, caplog):
    rows = hand() + [("/tf_static", at(k), transform("mug", "world", 0.1 * k)) for k in (0, 5)]
    text = EEF + '[bodies.mug]\nfrom = "/tf_static"\nframe = "mug"\nrole = "bystander"\n'
    assert len(episode(tmp_path, rows, text).lengths) == 1
    assert "has different static poses" in caplog.text


def test_an_array_of_poses_whose_count_changes_is_refused(tmp_path):
    kind = T["geometry_msgs/msg/PoseArray"]
    rows = [("/eef", at(k), kind(header(at(k)), [bare_pose(0.1)] * (1 + (k > 4)))) for k in range(9)]
    assert "7 and 14" in problem(bag(tmp_path, rows, EEF))
