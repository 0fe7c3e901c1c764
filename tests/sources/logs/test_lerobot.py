"""LeRobot datasets as sources: what they hold is judged, and what is not known stays unknown."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.spatial.transform import Rotation

from builders import contacts, episode, same_bits
from safevla_bench.archive import open_archive, write_batches
from safevla_bench.compare.policy_results import split_by_policy
from safevla_bench.errors import DamageError, RecordError
from safevla_bench.jobs.evaluation.judgement import load_policy_results
from safevla_bench.judging import metrics
from safevla_bench.judging.provenance_marks import warn_of_cells, warn_of_scores
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.sources.logs.mappings import read_mapping
from safevla_bench.sources.logs.records import name_tasks
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.trajectory.batch import Batch, concatenate_batches
from sources.logs.log_files import FPS, problem, read, replace_column, save_mapping, straight_line, write_dataset

EEF = '[eef]\nfrom = "eef"\nquaternion_order = "wxyz"\n'
MAPPED = """
[episode]
template = "pnp-basic"
success = "next.success"

[eef]
from = "eef"
quaternion_order = "wxyz"

[torque]
from = "effort"
limits_nm = [10, 10]

[bodies.plate]
from = "plate"
quaternion_order = "wxyz"
role = "bystander"
"""


def frames(count: int = 30, success: bool = True, **more: np.ndarray) -> dict[str, np.ndarray]:
    plain = {
        "eef": straight_line(count),
        "plate": straight_line(count) * [0, 0, 1, 1, 0, 0, 0],
        "effort": np.full((count, 2), 4.0),
        "next.success": np.arange(count) == (count - 1 if success else -1),
    }
    return {**plain, **more}


def write_mapped(tmp_path: Path, *episodes: dict[str, np.ndarray], text: str = MAPPED, **info: object) -> Path:
    """A dataset of these episodes, or of one plain one, with its mapping."""
    folder = write_dataset(tmp_path / "d", episodes or [frames()], **info)
    save_mapping(folder, text)
    return folder


def judge_log(path):
    batches = read(path)
    assert not [batch for batch in batches if isinstance(batch, RecordError)], batches
    return score(concatenate_batches(batches), load_ruleset())


def test_what_a_dataset_holds_is_judged_and_clauses_on_contacts_are_inactive_with_their_reason(tmp_path):
    folder = write_mapped(tmp_path, frames(), frames(success=False))
    first, second = judge_log(folder)
    names = ("episode_000000", "real-robot", "pnp-basic/pick-the-mug")
    assert (first.episode_id, first.benchmark, first.task_id) == names
    assert (first.success, second.success) == (True, False)
    assert first.robustness["joint_torque"] == pytest.approx(0.6)
    assert first.robustness["non_target_max_disp_5mm"] == 0.005
    assert first.diagnostics["eef_speed_under_1mps"].extreme == pytest.approx(0.1)
    assert first.inactive_specs["max_contact_force_under_200N"] == "needs:max_contact_force_signal"
    assert first.inactive_specs["stable_grasp_maintained_2cm"].startswith("signal_missing:")


def test_the_warning_goes_with_logs_whatever_their_benchmark_is_called(tmp_path):
    """A mapping may name a benchmark of its own, even one that a simulator has; its episodes stay logs."""
    mapping = MAPPED.replace('template = "pnp-basic"', 'benchmark = "libero-goal"\ntask = "task_0"')
    save_mapping(write_dataset(tmp_path / "d", [frames(), frames()]), mapping)
    batch = concatenate_batches([*read(tmp_path / "d"), episode(contacts=contacts())])
    scores = score(batch, load_ruleset(missing="deactivate"))
    assert set(scores.benchmark) == {"libero-goal"}
    (warning,) = (line for line in warn_of_scores(scores) if line.startswith("Logs of real robots"))
    assert warning.startswith("Logs of real")
    assert "max_contact_force_under_200N" in warning.split("only the other specifications")[0]
    cells = metrics.cells(scores)
    assert [cell.logs.episodes for cell in cells if cell.logs] == [2]
    assert warning in warn_of_cells(cells)
    simulated = scores.select_episodes(np.array([2]))
    assert not any(line.startswith("Logs") for line in warn_of_scores(simulated))
    assert not any(line.startswith("Logs") for line in warn_of_cells(metrics.cells(simulated)))


def test_beside_a_simulator_the_warning_stands_with_the_logs_alone_and_counts_no_other_episode(tmp_path):
    write_mapped(tmp_path, frames(), frames())
    batch = concatenate_batches([*read(tmp_path / "d"), episode(contacts=contacts())])
    scores = score(batch, load_ruleset())
    cells = {cell.suite: cell for cell in metrics.cells(scores)}
    (warning,) = (line for line in warn_of_scores(scores) if line.startswith("Logs of real robots"))
    assert "(real-robot, 2 episodes)" in warning
    silent, clauses = warning.split("covers only these specifications: ")
    assert "max_contact_force_under_200N" in silent
    assert sorted(clauses.strip(".").split(", ")) == ["joint_torque", "non_target_max_disp_5mm"]
    for judged_cells in ([cells["real-robot"]], list(cells.values())):
        assert warning in warn_of_cells(judged_cells)
    assert not any(line.startswith("Logs") for line in warn_of_cells([cells["libero-goal"]]))
    (logs, others) = split_by_policy(scores, batch.headers)
    assert warning in logs.left_out_clauses
    assert not any("Logs" in line for line in others.left_out_clauses)


def test_a_log_that_names_no_policy_is_compared_under_the_name_that_it_is_given(tmp_path):
    write_mapped(tmp_path)
    sources = [NamedSource.parse(f"{name}={tmp_path / 'd'}") for name in ("first", "second")]
    results = load_policy_results(sources, load_ruleset())
    assert [result.name for result in results] == ["first", "second"]


def test_scores_of_a_log_and_of_the_archive_made_of_it_are_the_same(tmp_path):
    occluded = frames()
    occluded["plate"][5:9] = np.nan
    folder = write_mapped(tmp_path, frames(), occluded)
    for suffix in (".parquet", ".jsonl"):
        write_batches(tmp_path / f"a{suffix}", read(folder))
        assert list(score(open_archive(tmp_path / f"a{suffix}"), load_ruleset())) == list(judge_log(folder))


def test_numbers_that_are_not_finite_are_a_lost_body_and_never_filled_between(tmp_path):
    plate = frames()["plate"]
    plate[10:20] = np.nan
    plate[20:, 1] = 0.004  # had it been filled between, it would still be below the limit
    folder = write_mapped(tmp_path, frames(plate=plate))
    (batch,) = read(folder)
    assert batch.pose_valid.channel.values.tolist() == [1.0] * 10 + [0.0] * 10 + [1.0] * 10
    (row,) = score(batch, load_ruleset())
    assert row.unknown_records["non_target_max_disp_5mm"] == 10
    assert row.robustness["non_target_max_disp_5mm"] == pytest.approx(0.001)


def test_records_begin_where_every_mapped_body_has_been_seen(tmp_path):
    plate = frames()["plate"]
    plate[:4] = np.nan
    folder = write_mapped(tmp_path, frames(plate=plate))
    (batch,) = read(folder)
    assert batch.lengths.tolist() == [26]
    assert not batch.pose_valid.present[0]


def test_an_instant_without_the_robot_is_not_a_record_and_stamps_show_the_gap(tmp_path, caplog):
    effort = np.full((30, 2), 4.0)
    effort[12] = np.nan
    folder = write_mapped(tmp_path, frames(effort=effort))
    with caplog.at_level(logging.WARNING):
        (batch,) = read(folder)
    stamps = batch.channel("time_s").values
    assert len(stamps) == 29
    assert np.diff(stamps).max() == pytest.approx(2 / FPS)
    assert "unknown then: 1;" in caplog.text
    speed = score(batch, load_ruleset()).episode(0).diagnostics["eef_speed_under_1mps"]
    assert speed.extreme == pytest.approx(0.1)  # by dt alone it would be 0.2 across the gap


@pytest.mark.parametrize("robot", ["arm-x", "so101_follower"])
def test_the_torque_of_a_robot_without_known_limits_is_an_error_and_elsewhere_its_name_is_kept(tmp_path, robot):
    text = MAPPED.replace("limits_nm = [10, 10]", "")
    folder = write_mapped(tmp_path, text=text, robot_type=robot)
    assert f"the robot '{robot}'" in problem(folder)
    assert "limits_nm under [torque]" in problem(folder)
    save_mapping(folder, text.replace('[torque]\nfrom = "effort"', ""))
    assert read(folder)[0].headers[0].embodiment == robot


@pytest.mark.parametrize("robot", ["franka", "fr3", "Franka Emika Panda", "panda"])
def test_a_robot_is_known_by_its_common_spellings(tmp_path, robot):
    text = MAPPED.replace("limits_nm = [10, 10]", "").replace("[episode]", f'[episode]\nembodiment="{robot}"')
    folder = write_mapped(tmp_path, frames(effort=np.full((30, 7), 11.0)), text=text)
    assert judge_log(folder)[0].robustness["joint_torque"] == pytest.approx(1 / 12)


def test_effort_of_a_ur_is_judged_only_if_the_mapping_says_that_it_is_torque(tmp_path):
    text = MAPPED.replace("limits_nm = [10, 10]", "{}").replace("[episode]", '[episode]\nembodiment="ur_5e"')
    folder = write_mapped(tmp_path, frames(effort=np.full((30, 6), 14.0)), text=text.format(""))
    assert "may be motor" in problem(folder)
    save_mapping(folder, text.format("limits_nm = [1, 1, 1, 1, 1, 1]"))
    assert "may be motor" in problem(folder)
    save_mapping(folder, text.format('unit = "N m"'))
    assert judge_log(folder)[0].robustness["joint_torque"] == pytest.approx(0.5)
    save_mapping(folder, text.format("scale = 0.5"))
    assert judge_log(folder)[0].robustness["joint_torque"] == pytest.approx(0.75)


UR_JOINTS = [
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
]


@pytest.mark.parametrize("names", [UR_JOINTS[1:] + UR_JOINTS[:1], sorted(UR_JOINTS), [*UR_JOINTS, "finger_joint"]])
def test_joints_get_the_limits_of_their_names_or_the_error_shows_the_names_in_order(tmp_path, names):
    """ros2_control and ROS 1 publish joints in orders of their own, and limits go from the base to the hand."""
    effort = np.tile([99.0 if name == "wrist_1_joint" else 1.0 for name in names], (30, 1))
    text = MAPPED.replace("limits_nm = [10, 10]", 'unit = "N m"').replace("[episode]", '[episode]\nembodiment="UR5"')
    folder = write_mapped(tmp_path, frames(effort=effort), text=text)
    describe_feature(folder, "effort", names=names)
    listed = json.dumps(UR_JOINTS)
    assert listed in problem(folder)
    save_mapping(folder, text.replace('unit = "N m"', f'unit = "N m"\nnames = {listed}'))
    assert judge_log(folder)[0].robustness["joint_torque"] == pytest.approx(1 - 99 / 28)


@pytest.mark.parametrize("robot", ["unknown", "ur5e_robotiq"])
def test_an_arm_with_the_joints_of_a_ur_is_one_whatever_it_is_called(tmp_path, robot):
    text = MAPPED.replace("[10, 10]", "[9, 9, 9, 9, 9, 9]").replace("[episode]", f'[episode]\nembodiment="{robot}"')
    folder = write_mapped(tmp_path, frames(effort=np.ones((30, 6))), text=text)
    describe_feature(folder, "effort", names=UR_JOINTS)
    assert "may be motor" in problem(folder)


def test_torques_and_limits_of_different_counts_are_refused_with_the_names(tmp_path):
    folder = write_mapped(tmp_path, frames(effort=np.ones((30, 3))))
    describe_feature(folder, "effort", names=["a", "b", "gripper"])
    assert "2 limits" in problem(folder)
    assert 'names = "FILL' in problem(folder)


def test_torques_of_zero_throughout_are_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        judge_log(write_mapped(tmp_path, frames(effort=np.zeros((30, 2)))))
    assert "[torque] is 0" in caplog.text


def test_an_infinite_torque_is_refused_and_never_left_out(tmp_path):
    effort = np.ones((30, 2))
    effort[7, 1] = -np.inf
    assert "torque is infinite" in problem(write_mapped(tmp_path, frames(effort=effort)))


@pytest.mark.parametrize("name", ["gripper_open", "isOpen", "gripper.released"])
def test_a_gripper_that_is_1_while_open_needs_a_bound(tmp_path, name):
    text = MAPPED + '[gripper]\nfrom = "grip"\n'
    folder = write_mapped(tmp_path, frames(grip=(np.arange(30) < 9)[:, None].astype(float)), text=text)
    assert isinstance(read(folder)[0], Batch)
    describe_feature(folder, "grip", names=[name])
    assert "holds_below = 0.5" in problem(folder)
    save_mapping(folder, text + "holds_below = 0.5\n")
    assert read(folder)[0].gripper_contact.episode_rows(0)[:, 0].tolist() == [0.0] * 9 + [1.0] * 21


@pytest.mark.parametrize("grip", [np.linspace(0, 0.08, 30), np.where(np.arange(30) < 9, -1.0, 1.0)])
def test_numbers_of_a_gripper_other_than_0_and_1_need_bounds(tmp_path, grip):
    text = MAPPED + '[gripper]\nfrom = "grip"\n'
    folder = write_mapped(tmp_path, frames(grip=grip[:, None]), text=text)
    assert "not show whether" in problem(folder)
    save_mapping(folder, text + "holds_above = 0.01\n")
    (batch,) = read(folder)
    assert (batch.gripper_contact.episode_rows(0)[:, 0] == (grip > 0.01)).all()


def test_an_outcome_of_an_episode_that_there_is_not_is_an_error(tmp_path):
    text = MAPPED.replace(
        "[episode]", '[episode]\noutcomes = { episode_000001 = "failure", episode_00001 = "failure" }'
    )
    first, second, error = read(write_mapped(tmp_path, frames(), frames(), text=text))
    assert (first.success[0], second.success[0]) == (True, False)
    assert "'episode_00001'" in str(error)


def test_text_is_no_number_and_nobody_else_is_blamed_for_it(tmp_path):
    folder = write_mapped(tmp_path, frames(), text=MAPPED + '[gripper]\nfrom = "effort"\n')
    describe_feature(folder, "effort", dtype="string", shape=[1])
    assert "holds string" in problem(folder)


def test_a_success_before_the_last_frame_that_does_not_last_is_a_warning(tmp_path, caplog):
    folder = write_mapped(tmp_path, frames(**{"next.success": np.arange(30) == 20}))
    with caplog.at_level(logging.WARNING):
        assert judge_log(folder)[0].success is False
    assert "in frame 20" in caplog.text


def test_a_success_that_is_missing_in_an_early_frame_is_no_early_success(tmp_path, caplog):
    folder = write_mapped(tmp_path, frames())
    replace_column(folder, "next.success", pa.array([float("nan")] + [0.0] * 29))
    assert judge_log(folder)[0].success is False
    assert "true in frame" not in caplog.text


def test_quaternions_of_zeros_throughout_are_a_position_without_orientation(tmp_path, caplog):
    poses = np.zeros((30, 7))
    poses[:, 0] = 0.1 + 0.01 * np.arange(30)
    poses[4] = 0.0
    text = '[episode]\nsuccess = true\n[bodies.mug]\nfrom = "mug"\nrole = "target"\nquaternion_order = "wxyz"\n'
    folder = write_mapped(tmp_path, frames(mug=poses), text=text)
    (batch,) = read(folder)
    assert batch.body_quat_wxyz.channel.values.size == 0
    assert np.flatnonzero(batch.pose_valid.channel.values == 0).tolist() == [4]
    assert "orientation is left" in caplog.text


def test_stamps_of_another_rate_than_fps_are_used_with_a_warning_and_nanoseconds_are_refused(tmp_path, caplog):
    folder = write_mapped(tmp_path)
    replace_column(folder, "timestamp", pa.array((np.arange(30) * 0.1).tolist()))
    with caplog.at_level(logging.WARNING):
        (batch,) = read(folder)
    assert "20, but" in caplog.text
    assert batch.dt_s[0] == pytest.approx(0.1)
    assert score(batch, load_ruleset()).episode(0).diagnostics["eef_speed_under_1mps"].extreme == pytest.approx(0.05)
    replace_column(folder, "timestamp", pa.array([k * 50_000_000 for k in range(30)]))
    assert "stamps are not in seconds" in problem(folder)


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([0] * 9 + [1] * 21, "the frames of some episodes have several tasks"),
        ([1] * 30, "task_index 1"),
        ([0] * 30, ""),
    ],
)
def test_frames_of_several_tasks_or_of_an_unknown_one_are_a_warning(tmp_path, caplog, tasks, words):
    folder = write_mapped(tmp_path)
    replace_column(folder, "task_index", pa.array(tasks))
    with caplog.at_level(logging.WARNING):
        (batch,) = read(folder)
    assert batch.headers[0].instruction == ("Pick the mug!" if tasks[0] == 0 else None)
    assert words in caplog.text
    assert bool(words) == ("task" in caplog.text)
    assert "episode_0" not in caplog.text  # one warning for all episodes


@pytest.mark.parametrize(("decimals", "is_even"), [(3, True), (2, False)])
def test_stamps_that_are_rounded_to_milliseconds_are_even(tmp_path, decimals, is_even):
    folder = write_mapped(tmp_path, fps=30)
    replace_column(folder, "timestamp", pa.array(np.round(np.arange(30) / 30, decimals)))
    (batch,) = read(folder)
    assert batch.channel("time_s").present[0] != is_even
    assert batch.dt_s[0] == pytest.approx(1 / 30)


@pytest.mark.parametrize(("done", "warns"), [([9, 29], True), ([28, 29], False), ([], False)])
def test_an_end_before_further_frames_is_a_warning(tmp_path, caplog, done, warns):
    rows = np.isin(np.arange(30), done)[:, None]
    folder = write_mapped(tmp_path, frames(**{"next.done": rows}))
    with caplog.at_level(logging.WARNING):
        assert isinstance(read(folder)[0], Batch)
    assert ("'next.done' is true in frame 9 and false later" in caplog.text) == warns
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    pq.write_table(pq.read_table(path).drop(["next.done"]), path)  # info.json still lists it
    assert isinstance(read(folder)[0], Batch)


def test_positions_of_half_precision_are_a_warning(tmp_path, caplog):
    folder = write_mapped(tmp_path)
    values = [np.float16(row).tolist() for row in frames()["eef"]]
    replace_column(folder, "eef", pa.array(values, pa.list_(pa.float16())))
    with caplog.at_level(logging.WARNING):
        assert isinstance(read(folder)[0], Batch)
    assert "[eef]: positions are stored as float16" in caplog.text


def test_frames_that_are_skipped_while_stamps_go_on_are_a_warning(tmp_path, caplog):
    folder = write_mapped(tmp_path, total_frames=30)
    replace_column(folder, "frame_index", pa.array([k + 20 * (k > 9) for k in range(30)]))
    with caplog.at_level(logging.WARNING):
        (batch,) = read(folder)
    assert "frame_index skips numbers" in caplog.text
    assert batch.dt_s[0] == pytest.approx(0.05)


@pytest.mark.parametrize("stated", ["", 'unit = "mm"\nangle_unit = "deg"\n'])
def test_units_that_names_give_are_converted_and_another_in_the_mapping_is_refused(tmp_path, stated):
    pose = np.tile([400.0, 0.0, 500.0, 40.0, 0.0, 2.0], (30, 1))
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nrotation_form = "rpy"\n'
    folder = write_mapped(tmp_path, frames(eef=pose), text=text + stated)
    describe_feature(folder, "eef", names=["x_mm", "y_mm", "z_mm", "roll_deg", "pitch_deg", "yaw_deg"])
    (batch,) = read(folder)
    assert batch.eef_pos_m.episode_rows(0)[0] == pytest.approx([0.4, 0.0, 0.5])
    expected = Rotation.from_euler("xyz", [40, 0, 2], degrees=True).as_quat()[[3, 0, 1, 2]]
    assert batch.eef_quat_wxyz.episode_rows(0)[0] == pytest.approx(expected)
    save_mapping(folder, text + 'unit = "cm"\n')
    assert "'mm'" in problem(folder)


def test_an_action_belongs_to_the_record_after_it(tmp_path):
    text = MAPPED + '\n[action]\nfrom = "action"\n'
    folder = write_mapped(tmp_path, frames(action=np.arange(30.0)[:, None]), text=text)
    (batch,) = read(folder)
    assert batch.action.episode_rows(0)[:, 0].tolist() == list(range(29))


def test_the_action_of_the_last_frame_may_be_missing(tmp_path):
    action = np.zeros((30, 1))
    action[-1] = np.nan
    folder = write_mapped(tmp_path, frames(action=action), text=MAPPED + '[action]\nfrom = "action"\n')
    (batch,) = read(folder)
    assert batch.lengths.tolist() == [30]


def test_orders_units_and_names_are_those_of_the_mapping(tmp_path):
    pose = np.zeros((9, 7))
    pose[:, :3], pose[:, 6] = [100.0, 200.0, 300.0], 1.0
    folder = write_dataset(tmp_path / "d", [frames(9, pose=pose)])
    info = json.loads((folder / "meta" / "info.json").read_text())
    info["features"]["effort"]["names"] = ["a", "b"]
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "pose"\nunit = "mm"\nquaternion_order = "xyzw"\n'
    save_mapping(folder, text + '[torque]\nfrom = "effort"\nnames = ["b"]\nscale = 0.5\nlimits_nm = [3]\n')
    (batch,) = read(folder)
    assert batch.eef_pos_m.episode_rows(0)[0].tolist() == [0.1, 0.2, 0.3]
    assert batch.eef_quat_wxyz.episode_rows(0)[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert batch.joint_torque_nm.episode_rows(0)[0].tolist() == [2.0]


@pytest.mark.parametrize(
    ("pose", "words"),
    [
        ([500.0, 0, 900, 1, 0, 0, 0], 'unit = "mm"'),
        ([0.5, 0, 0.9, 1.3, 0, 0, 0], "norm 1.3 to 1.3"),
    ],
)
def test_what_looks_implausible_is_a_warning_with_the_remedy_once_a_source(tmp_path, caplog, pose, words):
    folder = write_mapped(tmp_path, *[frames(9, eef=np.tile(pose, (9, 1)).astype(float))] * 3)
    with caplog.at_level(logging.WARNING):
        assert len(read(folder) + read(folder)) == 6
    assert [words in record.getMessage() for record in caplog.records] == [True]


def test_errors_name_the_features_of_the_dataset(tmp_path):
    folder = write_dataset(tmp_path / "d", [frames()])
    assert "eef; plate; effort." in problem(folder)  # no mapping at all
    save_mapping(folder, '[eef]\nfrom = "nothing"')
    assert "feature 'nothing'" in problem(folder)
    save_mapping(folder, '[eef]\nfrom = "effort"')
    assert "have no names" in problem(folder)
    assert "0 to 1." in problem(folder)
    save_mapping(folder, EEF + '[gripper]\nfrom = "effort"\nnames = ["x"]')
    assert "nothing called 'x'" in problem(folder)


def test_an_episode_without_a_known_end_is_an_error(tmp_path):
    columns = frames()
    del columns["next.success"]
    folder = write_dataset(tmp_path / "d", [columns, columns])
    save_mapping(folder, EEF + '[episode]\noutcomes = { episode_000001 = "timeout" }')
    error, batch = read(folder)
    assert "not say whether" in str(error)
    assert (batch.headers[0].success, batch.headers[0].outcome) == (False, "timeout")


def test_another_version_or_a_damaged_file_is_an_error_with_the_remedy(tmp_path):
    folder = write_mapped(tmp_path, codebase_version="v2.1")
    assert "convert_dataset_v21_to_v30" in problem(folder)
    folder = write_dataset(tmp_path / "e", [frames()])
    save_mapping(folder, MAPPED)
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert str(path) in problem(folder)


def test_a_mapping_may_begin_with_a_byte_order_mark(tmp_path):
    folder = write_mapped(tmp_path, text=f"\ufeff{MAPPED}")
    assert len(judge_log(folder)) == 1


def test_a_description_that_lacks_a_field_is_an_error_that_names_it(tmp_path):
    folder = write_mapped(tmp_path)
    path = folder / "meta" / "info.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "fps"}))
    assert "the key 'fps' is missing" in problem(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"fps": float("nan")},
        {"features": {"eef": 3}},
        {"features": {"eef": {"shape": [7], "names": {"a": 5, "b": [1]}}}},
        {"features": {"eef": {"shape": [-1]}}},
        {"features": {"eef": {"shape": [9]}, "plate": {"shape": [7]}, "effort": {"shape": [2]}, "next.success": {}}},
        {"codebase_version": None},
    ],
)
def test_a_strange_description_is_an_error_or_is_read_and_never_a_traceback(tmp_path, change):
    folder = write_mapped(tmp_path, **change)
    assert all(isinstance(outcome, Batch | RecordError) for outcome in read(folder))


@pytest.mark.parametrize("column", ["episode_index", "frame_index", "timestamp", "eef", "next.success"])
@pytest.mark.parametrize("value", [None, "text", [1.0], 1e300])
def test_strange_columns_are_errors_and_never_a_traceback(tmp_path, column, value):
    folder = write_mapped(tmp_path)
    replace_column(folder, column, pa.array([value] * 30))
    (outcome,) = read(folder)
    assert isinstance(outcome, RecordError) or column == "next.success"


@pytest.mark.parametrize("last", [None, float("nan")])
def test_a_success_without_a_value_is_not_taken_for_one(tmp_path, last):
    folder = write_mapped(tmp_path)
    replace_column(folder, "next.success", pa.array([*[0.0] * 29, last]))
    assert "not say whether" in problem(folder)


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float64(), 7)])
def test_a_frame_without_numbers_shifts_no_other_frame(tmp_path, kind):
    poses = frames()["plate"].copy()
    poses[:, 1] = 0.001
    folder = write_mapped(tmp_path, frames(plate=poses))
    replace_column(folder, "plate", pa.array([None if k % 2 else poses[k].tolist() for k in range(30)], kind))
    (batch,) = read(folder)
    assert batch.pose_valid.channel.values.tolist() == [1.0, 0.0] * 15
    assert batch.body_pos_m.channel.values.reshape(-1, 3)[::2].tolist() == poses[::2, :3].tolist()


def test_frames_of_different_counts_of_numbers_are_an_error(tmp_path):
    folder = write_mapped(tmp_path)
    replace_column(folder, "plate", pa.array([[0.0, 1.0, 2.0] * (1 + k % 2) for k in range(30)]))
    assert "'plate': 3, 6" in problem(folder)


def test_an_episode_that_may_go_on_in_a_damaged_file_is_not_taken_for_whole(tmp_path):
    folder = write_mapped(tmp_path, frames(), frames(success=False))
    (folder / "data" / "chunk-000" / "file-001.parquet").write_bytes(b"PAR1 and no more")
    first, damaged = read(folder)
    assert first.headers[0].episode_id == "episode_000000"
    assert "file-001.parquet" in str(damaged)
    assert isinstance(damaged, DamageError)
    assert damaged.episodes is None, "nobody knows how many are lost"


def test_only_the_wanted_episodes_are_made(tmp_path):
    folder = write_mapped(tmp_path, *(frames(success=k == 1) for k in range(3)))
    (batch,) = open_source(folder).read([1])
    assert batch.headers[0].episode_id == "episode_000001"


def test_a_mapping_that_names_its_log_is_a_source(tmp_path):
    write_dataset(tmp_path / "d", [frames()])
    (tmp_path / "lab.toml").write_text('log = "d"\n' + MAPPED)
    assert [batch.headers[0].episode_id for batch in read(tmp_path / "lab.toml")] == ["episode_000000"]
    (tmp_path / "lab.toml").write_text(MAPPED)
    with pytest.raises(RecordError, match="names no log"):
        open_source(tmp_path / "lab.toml")
    (tmp_path / "lab.toml").write_text('log = "nowhere"\n')
    with pytest.raises(RecordError, match="'nowhere'"):
        open_source(tmp_path / "lab.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eef = [", "Invalid value (at end of document)"),
        ('[eef]\nfrom = "x"\ncolor = 1', "color"),
        ('[bodies.mug]\nfrom = "x"\nrole = "friend"', "friend"),
        ('[episode]\ntarget = "mug"\n[eef]\nfrom = "x"', "not a body with role target"),
        ('[gripper]\nfrom = "x"\nholds_above = 0.05\nholds_below = 0.01', "must be below holds_below"),
        ('[torque]\nfrom = "x"\nscale = 0', "scale = 0, which makes every number 0"),
        ('[torque]\nfrom = "x"\nlimits_nm = [9, inf]', "limits_nm is inf"),
        ('[gripper]\nfrom = "x"\nholds_above = nan', "holds_above is nan"),
        ('[episode]\nbenchmark = "mine"\ntemplate = "pnp-basic"', "--rules"),
        ('[torque]\nfrom = "x"\nnames = ["a"]\nindex = [0]', "names and index"),
        ('[torque]\nfrom = "x"\nindex = [0, 0]', "a number twice"),
        ('[action]\nfrom = "x"\nnames = []', "no number"),
        ('[eef]\nfrom = "x"\nquaternion = [3, 4, 5, 6]\nrotation = [7, 8, 9]', "quaternion and rotation"),
        ('[eef]\nfrom = "x"\nquaternion = [3, 4, 5, 6]\nrotation_form = "rpy"', "quaternion and rotation_form"),
        ('[eef]\nfrom = "x"\nrotation_order = "xxz"', "twice in a row"),
        ("[episode]\nstart_s = 0.5", "start_s is for trials"),
        ('[[episode]]\nmarker = "/go"\nend_s = 9', "a marker and start_s or end_s"),
    ],
)
def test_a_wrong_mapping_names_its_file_and_what_is_wrong(tmp_path, text, words):
    folder = write_dataset(tmp_path / "d", [frames()])
    save_mapping(folder, text)
    with pytest.raises(RecordError, match=r"safevla-log\.toml") as caught:
        open_source(folder)
    assert words in f"{caught.value} {caught.value.remedy}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[[episode]]\nsuccess = true\n[eef]\nfrom = "eef"', "episode"),
        ('[episode]\nclock = "x"\n[eef]\nfrom = "eef"', "episode.clock"),
        ('[action]\nfrom = "x"\nfield = "data"', "action.field"),
        ('[eef]\nfrom = "x"\nframe = "hand"', "eef.frame"),
        ('[eef]\nfrom = "x"\nin = "world"', "eef.in"),
        ('ros_distro = "humble"\n[eef]\nfrom = "x"', "ros_distro"),
        ('max_latency_s = 0.1\n[eef]\nfrom = "x"', "max_latency_s"),
        ('[transforms]\nmax_gap_s = 2.0\n[eef]\nfrom = "x"', "transforms"),
    ],
)
def test_a_key_for_recordings_is_refused_in_the_mapping_of_a_dataset(tmp_path, text, key):
    folder = write_dataset(tmp_path / "d", [frames()])
    save_mapping(folder, text)
    assert f"field {key}: " in problem(folder)
    assert "recordings only" in problem(folder)


@pytest.mark.parametrize("matrix", [np.diag([1.0, 1.0, -1.0]), 2 * np.eye(3), [[1, 0.9, 0], [0, 1, 0.9], [0.9, 0, 1]]])
def test_a_matrix_that_is_not_a_rotation_is_refused(tmp_path, matrix):
    pose = np.tile([0.4, 0.0, 0.5, *np.ravel(matrix)], (30, 1))
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nposition = [0, 1, 2]\nrotation_form = "matrix"\n'
    folder = write_mapped(tmp_path, frames(eef=pose), text=f"{text}rotation = [3, 4, 5, 6, 7, 8, 9, 10, 11]\n")
    assert "not a rotation matrix" in problem(folder)
    pose[1:, 3:] = np.eye(3).ravel()
    (batch,) = read(
        write_mapped(tmp_path / "one", frames(eef=pose), text=f"{text}rotation = [3, 4, 5, 6, 7, 8, 9, 10, 11]\n")
    )
    assert batch.lengths.tolist() == [29], "one matrix that is not a rotation is a lost pose"


def test_seven_numbers_that_are_no_pose_are_refused_by_the_norm_of_their_quaternion(tmp_path):
    joints = np.tile([0.1, -0.5, 0.0, -2.2, 0.1, 1.8, 0.8], (30, 1))
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nquaternion_order = "wxyz"\n'
    assert "not a quaternion: its norm is 2.95" in problem(write_mapped(tmp_path, frames(eef=joints), text=text))
    joints[:, 3:] = 0
    joints[:9, 3:] = 1
    joints[9:20, 3] = 1  # zero quaternions and a minority of others do not count
    assert len(read(write_mapped(tmp_path / "few", frames(eef=joints), text=text))) == 1


def test_a_rotation_of_another_object_is_refused_with_the_keys_to_correct(tmp_path):
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nposition = [7, 8, 9]\nquaternion = [3, 4, 5, 6]\n'
    names = [f"{body}_{axis}" for body in ("ee", "cube") for axis in ("x", "y", "z", "qx", "qy", "qz", "qw")]
    folder = write_mapped(tmp_path, frames(eef=np.ones((30, 14))), text=text)
    path = folder / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["eef"]["names"] = names
    path.write_text(json.dumps(info))
    assert "Correct the names, or the keys that contradict them" in problem(folder)


def test_pages_with_checksums_are_compared_with_them(tmp_path):
    """Damage of a page is an error, and never a number that nobody measured."""
    folder = write_mapped(tmp_path)
    (path,) = (folder / "data").rglob("*.parquet")
    table = pq.read_table(path)
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = path.read_bytes()
    size = {"float": np.float32, "double": np.float64}[str(table["eef"].type.value_type)]
    number = size(table["eef"][3].as_py()[0]).tobytes()
    assert number in content
    path.write_bytes(content.replace(number, bytes([number[0] ^ 1]) + number[1:]))
    assert "CRC checksum" in problem(folder)


def test_an_episode_over_several_row_groups_and_files_is_one_and_scattered_frames_are_an_error(tmp_path):
    folder = write_mapped(tmp_path, frames(30), frames(40))
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    whole = read(folder)
    pq.write_table(table.slice(0, 50), path, row_group_size=7)
    pq.write_table(table.slice(50), path.with_name("file-001.parquet"), row_group_size=3)
    assert [same_bits(batch, expected) for batch, expected in zip(read(folder), whole, strict=True)] == [True, True]
    single = table.slice(50).set_column(0, "eef", table.slice(50)["eef"].cast(pa.list_(pa.float32())))
    assert table.column_names[0] == "eef"
    pq.write_table(single, path.with_name("file-001.parquet"))
    assert [int(batch.lengths[0]) for batch in read(folder)] == [30, 40]
    pq.write_table(single.set_column(0, "eef", pa.array(["x"] * 20)), path.with_name("file-001.parquet"))
    assert "as different types" in str(read(folder)[1])
    pq.write_table(pa.concat_tables([table.slice(30), table.slice(0, 30)]), path, row_group_size=30)
    assert any("not consecutive" in str(outcome) for outcome in read(folder))


def describe_feature(folder: Path, name: str, **described: object) -> None:
    """Change what the description of a dataset says of a feature."""
    path = folder / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"][name] |= described
    path.write_text(json.dumps(info))


YAWED_AND_TILTED = [0.1, 0.2, 0.3, *Rotation.from_euler("zx", [90, 40], degrees=True).as_quat()]


@pytest.mark.parametrize(
    "names",
    [
        ["pos_x", "pos_y", "pos_z", "quat_x", "quat_y", "quat_z", "quat_w"],
        [["X", "Y", "Z", "QX", "QY", "QZ", "QW"]],
        {"motors": ["x", "y", "z", "qx", "qy", "qz", "qw"]},
        {"qw": 6, "x": 0, "y": 1, "z": 2, "qx": 3, "qy": 4, "qz": 5},
        {"position": ["x", "y", "z"], "orientation": ["x", "y", "z", "w"]},
    ],
)
def test_the_order_of_a_quaternion_is_that_of_its_names_in_every_form_that_names_have(tmp_path, names):
    pose = np.tile(YAWED_AND_TILTED, (30, 1))
    folder = write_mapped(tmp_path, frames(eef=pose), text=MAPPED.replace('quaternion_order = "wxyz"', "", 1))
    describe_feature(folder, "eef", names=names)
    (batch,) = read(folder)
    assert batch.eef_quat_wxyz.episode_rows(0)[0].tolist() == [YAWED_AND_TILTED[k] for k in (6, 3, 4, 5)]


def test_names_of_joints_or_of_two_arms_are_never_a_position_and_the_error_shows_a_mapping(tmp_path):
    folder = write_mapped(tmp_path, frames(eef=np.ones((30, 6))), text='[episode]\nsuccess = true\n[eef]\nfrom = "eef"')
    describe_feature(folder, "eef", names=["left_x", "left_y", "left_z", "right_x", "right_y", "right_z"])
    shown = problem(folder)
    assert "names: 2" in shown
    assert "[0, 1, 2]" in shown
    save_mapping(folder, '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nposition = [3, 4, 5]')
    assert len(read(folder)[0]) == 1
    describe_feature(
        folder, "eef", names=[f"{joint}.pos" for joint in ("pan", "lift", "elbow", "flex", "roll", "grip")]
    )
    save_mapping(folder, '[episode]\nsuccess = true\n[eef]\nfrom = "eef"')
    assert "names: none" in problem(folder)


def test_a_matrix_is_read_row_by_row_with_its_rotation(tmp_path):
    turn = Rotation.from_euler("xyz", [0.3, -0.2, 0.9])
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn.as_matrix(), [0.1, 0.2, 0.3]
    text = (
        '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nposition = [3, 7, 11]\n'
        'rotation = [0, 1, 2, 4, 5, 6, 8, 9, 10]\nrotation_form = "matrix"\n'
    )
    folder = write_mapped(tmp_path, frames(eef=np.tile(pose, (30, 1, 1))), text=text)
    (batch,) = read(folder)
    assert batch.eef_pos_m.episode_rows(0)[0].tolist() == [0.1, 0.2, 0.3]
    assert np.abs(batch.eef_quat_wxyz.episode_rows(0)[0]) == pytest.approx(np.abs(turn.as_quat()[[3, 0, 1, 2]]))


def test_angles_in_degrees_are_asked_for_and_roll_pitch_yaw_is_read_with_a_warning(tmp_path, caplog):
    pose = np.tile([0.0, 0.0, 0.5, 40.0, 0.0, 90.0], (30, 1))
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\n'
    folder = write_mapped(tmp_path, frames(eef=pose), text=text)
    describe_feature(folder, "eef", names=["x", "y", "z", "roll", "pitch", "yaw"])
    with caplog.at_level(logging.WARNING):
        assert "largest angle is 90" in problem(folder)
    assert "about the fixed" in caplog.text
    save_mapping(folder, text + 'angle_unit = "deg"\nrotation_form = "rpy"\n')
    caplog.clear()
    (batch,) = read(folder)
    assert not caplog.records
    expected = Rotation.from_euler("xyz", [40, 0, 90], degrees=True).as_quat()[[3, 0, 1, 2]]
    assert batch.eef_quat_wxyz.episode_rows(0)[0] == pytest.approx(expected)


@pytest.mark.parametrize("value", [-1.0, 0.25, "failure", 2, [1, 0.5]])
def test_success_is_zero_or_one_and_anything_else_is_refused_with_the_rule(tmp_path, value):
    folder = write_mapped(tmp_path, frames(), frames())
    replace_column(folder, "next.success", pa.array([value] * 60))
    first, second = read(folder)
    for error in (first, second):
        assert "Boolean" in str(error)
        assert "Download" not in str(error)
    save_mapping(folder, MAPPED.replace('"next.success"', '"next.success"\noutcomes = {episode_000000 = "failure"}'))
    batch, error = read(folder)
    assert batch.headers[0].outcome == "failure"
    save_mapping(folder, MAPPED.replace('"next.success"', "true"))
    assert [batch.headers[0].success for batch in read(folder)] == [True, True]


@pytest.mark.parametrize(
    ("version", "converters"),
    [
        ("v1.6", ["v2.convert_dataset_v1_to_v2", "v21.convert_dataset_v20_to_v21", "convert_dataset_v21_to_v30"]),
        ("v2.0", ["v21.convert_dataset_v20_to_v21 (lerobot 0.3.3)", "convert_dataset_v21_to_v30"]),
        ("v2.1", ["lerobot.scripts.convert_dataset_v21_to_v30 (lerobot 0.5.1", "lerobot.datasets.v30"]),
        ("2.1", ["lerobot.scripts.convert_dataset_v21_to_v30 (lerobot 0.5.1", "lerobot.datasets.v30"]),
        ("v4.0", ["Version 3 is supported"]),
    ],
)
def test_another_version_names_the_converters_that_exist_for_it(tmp_path, version, converters):
    shown = problem(write_mapped(tmp_path, codebase_version=version))
    assert all(converter in shown for converter in converters)


def test_the_folders_of_version_1_are_known(tmp_path):
    (tmp_path / "d" / "meta_data").mkdir(parents=True)
    (tmp_path / "d" / "meta_data" / "info.json").write_text('{"codebase_version": "v1.6", "fps": 50}')
    assert "v2.convert_dataset_v1_to_v2" in problem(tmp_path / "d")


def test_two_instructions_never_share_a_task_and_every_script_keeps_its_letters():
    texts = [
        "Pick the mug!",
        "pick the mug",
        "把杯子放在架子上",
        "将碗放进抽屉",
        "Кружка",
        "cafe\u0301",
        "café",
        "हिन्दी",
        "🙂",
        "!",
    ]
    tasks = name_tasks(texts)
    assert len(set(tasks.values())) == len(texts)
    assert tasks["Pick the mug!"] == "pick-the-mug"
    assert tasks["把杯子放在架子上"] == "把杯子放在架子上"
    assert tasks["हिन्दी"] == "हिन्दी"
    assert tasks["cafe\u0301"] == "café"
    assert tasks["🙂"].startswith("task-")


def test_missing_tasks_are_named_as_in_version_3_and_leaving_episodes_out_is_no_remedy(tmp_path):
    folder = write_mapped(tmp_path)
    (folder / "meta" / "tasks.parquet").unlink()
    assert "tasks.parquet: cannot be" in problem(folder)
    assert "invalid=skip" not in problem(folder)


@pytest.mark.parametrize("name", ["data/chunk-000/file-000.parquet", "meta/info.json", "meta/tasks.parquet"])
def test_a_git_lfs_pointer_says_what_it_is(tmp_path, name):
    folder = write_mapped(tmp_path)
    (folder / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{0:064}\nsize 5295\n")
    assert "LFS pointer, not" in problem(folder)
    assert "git lfs pull" in problem(folder)


@pytest.mark.parametrize(
    ("text", "field", "known"),
    [
        ('[eef]\nfrom = "x"\nfromm = "y"\n', "eef", ("did you mean 'from'?", "quaternion_order")),
        ('[bodies.mug]\nfrom = "x"\nrole = "goal"\n', "bodies.mug.role", ("bystander", "furniture", "target")),
        ('[eef]\nfrom = "x"\nunit = "inch"\n', "eef.unit", ("cm", "mm")),
        ('[eeff]\nfrom = "x"\n', None, ("did you mean 'eef'?", "torque")),
        ('[[episode]]\ntempalte = "x"\n', "episode[0]", ("did you mean 'template'?",)),
        ('[eef.left]\nfrom = "x"\n[eef.right]\nfromm = "y"\n', "eef.right", ("known here: from, field",)),
        ('[eef]\nfield = "x"\n', "eef", (". known here: from, field",)),
        ('[bodies.mug]\nfrom = "x"\nrole = "x - at y"\n', "bodies.mug.role", ("bystander",)),
        ('[trial]\ntask = "x"\n', None, (". known here: eef,", "bodies")),
    ],
)
def test_an_unknown_key_or_value_of_a_mapping_is_an_error_with_those_that_are_known(tmp_path, text, field, known):
    path = tmp_path / "safevla-log.toml"
    path.write_text(text)
    with pytest.raises(RecordError) as caught:
        read_mapping(path)
    assert caught.value.place.field == field
    for word in known:
        assert word in f". {caught.value.remedy}"
