"""LeRobot datasets as sources: what they hold is judged, and what is not known stays unknown."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import contacts, episode, same_bits
from safevla_bench.archive import open_archive, write_batches
from safevla_bench.compare.policy_results import split_by_policy
from safevla_bench.errors import DamageError, RecordError
from safevla_bench.jobs.evaluation.judgement import load_policy_results
from safevla_bench.judging import metrics
from safevla_bench.judging.provenance_marks import warn_of_cells, warn_of_scores
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.trajectory.batch import Batch, concatenate_batches
from sources.logs.log_files import FPS, problem, read, replace_column, save_mapping, straight_line, write_dataset

MAPPED = """
[episode]
template = "pnp-basic"
success = "next.success"

[eef]
from = "eef"

[torque]
from = "effort"
limits_nm = [10, 10]

[bodies.plate]
from = "plate"
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
    assert first.inactive_specs["max_contact_force_under_200N"] == "needs max_contact_force_signal"
    assert first.inactive_specs["stable_grasp_maintained_2cm"].startswith("signal missing: ")


def test_the_warning_goes_with_logs_whatever_their_benchmark_is_called(tmp_path):
    """A mapping may name a benchmark of its own, even one that a simulator has; its episodes stay logs."""
    mapping = MAPPED.replace('template = "pnp-basic"', 'benchmark = "libero-goal"\ntask = "task_0"')
    save_mapping(write_dataset(tmp_path / "d", [frames(), frames()]), mapping)
    batch = concatenate_batches([*read(tmp_path / "d"), episode(contacts=contacts())])
    scores = score(batch, load_ruleset(missing="deactivate"))
    assert set(scores.benchmark) == {"libero-goal"}
    (warning,) = (line for line in warn_of_scores(scores) if line.startswith("Logs of real robots"))
    assert warning.startswith("Logs of real robots (libero-goal, 2 episodes): ")
    assert "max_contact_force_under_200N" in warning.split("speaks of the others alone: ")[0]
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
    silent, clauses = warning.split("speaks of the others alone: ")
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
    assert "1 instants" in caplog.text
    speed = score(batch, load_ruleset()).episode(0).diagnostics["eef_speed_under_1mps"]
    assert speed.extreme == pytest.approx(0.1)  # by dt alone it would be 0.2 across the gap


def test_the_torque_of_an_unknown_robot_without_limits_is_not_judged(tmp_path):
    folder = write_dataset(tmp_path / "d", [frames(effort=np.full((30, 7), 400.0))])
    save_mapping(folder, MAPPED.replace("limits_nm = [10, 10]", ""))
    (row,) = judge_log(folder)
    assert row.inactive_specs["joint_torque"] == "signal missing: joint_torque_limit_nm"
    text = MAPPED.replace("limits_nm = [10, 10]", "").replace("[episode]", '[episode]\nembodiment="Panda"')
    save_mapping(folder, text)
    assert "joint_torque" in judge_log(folder)[0].violated_specs


def test_an_action_belongs_to_the_record_after_it(tmp_path):
    text = MAPPED + '\n[action]\nfrom = "action"\n'
    folder = write_mapped(tmp_path, frames(action=np.arange(30.0)[:, None]), text=text)
    (batch,) = read(folder)
    assert batch.action.episode_rows(0)[:, 0].tolist() == list(range(29))


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
        ([0.5, 0, 0.9, 0, 0, 0, 1], 'quaternion_order = "xyzw"'),
        ([0.5, 0, 0.9, 3, 0, 0, 0], "norm 3 to 3"),
    ],
)
def test_what_looks_implausible_is_a_warning_with_the_remedy_once_a_source(tmp_path, caplog, pose, words):
    folder = write_mapped(tmp_path, *[frames(9, eef=np.tile(pose, (9, 1)).astype(float))] * 3)
    with caplog.at_level(logging.WARNING):
        assert len(read(folder) + read(folder)) == 6
    assert [words in record.getMessage() for record in caplog.records] == [True]


def test_errors_name_the_features_of_the_dataset(tmp_path):
    folder = write_dataset(tmp_path / "d", [frames()])
    assert "eef [7]; plate [7]; effort [2]" in problem(folder)  # no mapping at all
    save_mapping(folder, '[eef]\nfrom = "nothing"')
    assert "safevla-log.toml, field eef: there is no feature 'nothing'" in problem(folder)
    save_mapping(folder, '[eef]\nfrom = "effort"')
    assert "'effort' has 2 numbers" in problem(folder)
    save_mapping(folder, '[eef]\nfrom = "eef"\n[gripper]\nfrom = "effort"\nnames = ["x"]')
    assert "nothing called 'x'" in problem(folder)


def test_an_episode_without_a_known_end_is_an_error(tmp_path):
    columns = frames()
    del columns["next.success"]
    folder = write_dataset(tmp_path / "d", [columns, columns])
    save_mapping(folder, '[eef]\nfrom = "eef"\n[episode]\noutcomes = { episode_000001 = "timeout" }')
    error, batch = read(folder)
    assert "does not say whether the episode succeeded" in str(error)
    assert (batch.headers[0].success, batch.headers[0].outcome) == (False, "timeout")


def test_another_version_or_a_damaged_file_is_an_error_with_the_remedy(tmp_path):
    folder = write_mapped(tmp_path, codebase_version="v2.1")
    assert "another version than 3" in problem(folder)
    folder = write_dataset(tmp_path / "e", [frames()])
    save_mapping(folder, MAPPED)
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert str(path) in problem(folder)


def test_a_description_that_lacks_a_field_is_an_error_that_names_it(tmp_path):
    folder = write_mapped(tmp_path)
    path = folder / "meta" / "info.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "fps"}))
    assert "missing required field `fps`" in problem(folder)


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
    assert "does not say whether the episode succeeded" in problem(folder)


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
    assert "'plate' has 3 numbers in some frames and 6 in others" in problem(folder)


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
    with pytest.raises(RecordError, match="'nowhere' is none"):
        open_source(tmp_path / "lab.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eef = [", "Invalid value (at end of document)"),
        ('[eef]\nfrom = "x"\ncolour = 1', "colour"),
        ('[bodies.mug]\nfrom = "x"\nrole = "friend"', "friend"),
        ('[episode]\ntarget = "mug"\n[eef]\nfrom = "x"', "no body of role target"),
        ('[episode]\nbenchmark = "mine"\ntemplate = "pnp-basic"', "--rules"),
    ],
)
def test_a_wrong_mapping_names_its_file_and_what_is_wrong(tmp_path, text, words):
    folder = write_dataset(tmp_path / "d", [frames()])
    save_mapping(folder, text)
    with pytest.raises(RecordError, match=r"safevla-log\.toml") as caught:
        open_source(folder)
    assert words in f"{caught.value} {caught.value.remedy}"


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
    assert "CRC checksum verification failed" in problem(folder)


def test_an_episode_over_several_row_groups_and_files_is_one_and_scattered_frames_are_an_error(tmp_path):
    folder = write_mapped(tmp_path, frames(30), frames(40))
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    whole = read(folder)
    pq.write_table(table.slice(0, 50), path, row_group_size=7)
    pq.write_table(table.slice(50), path.with_name("file-001.parquet"), row_group_size=3)
    assert [same_bits(batch, expected) for batch, expected in zip(read(folder), whole, strict=True)] == [True, True]
    pq.write_table(pa.concat_tables([table.slice(30), table.slice(0, 30)]), path, row_group_size=30)
    assert any("not one after the other" in str(outcome) for outcome in read(folder))
