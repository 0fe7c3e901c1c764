"""Recordings of other tools: results that hold successes only, and files of vla-evaluation-harness to replay.

What they hold is read, what they lack is said, and unknown is never zero.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from safevla_bench.errors import RecordError
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import episodes as episode_tables
from safevla_bench.sources import foreign

PER_TASK = [
    {"task_group": "libero_spatial", "task_id": 0, "metrics": {"successes": [True, False, True]}},
    {"task_group": "libero_goal", "task_id": 3, "metrics": {"successes": [True]}},
]


def lerobot(path, **fields):
    path.write_text(json.dumps(fields))
    return path


def harness(path, *rows, metadata="{}"):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE eval_metadata (eval_id TEXT, safe_name TEXT, metadata TEXT)")
        connection.execute(
            "CREATE TABLE episode_results (sid TEXT, eid TEXT, eval_id TEXT, task_name TEXT, episode_id INTEGER, "
            "status TEXT, metrics TEXT, steps INTEGER)"
        )
        connection.execute("INSERT INTO eval_metadata VALUES ('e1', 'libero', ?)", [metadata])
        for number, (task, status, steps) in enumerate(rows):
            values = ("s", str(number), "e1", task, number, status, "{}", steps)
            connection.execute("INSERT INTO episode_results VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.close()
    return path


@pytest.mark.parametrize(("count", "remarks"), [(4, ()), (5, ("the file lists 4 episodes, but states 5",))])
def test_lerobot_s_episodes_are_counted_one_by_one_and_another_count_is_a_remark(tmp_path, count, remarks):
    path = lerobot(tmp_path / "eval_info.json", per_task=PER_TASK, overall={"n_episodes": count})
    results = foreign.read_results(path)
    facts = [(episode.suite, episode.task, episode.success) for episode in results.episodes]
    assert facts[:3] == [("libero_spatial", "task_0", success) for success in (True, False, True)]
    assert facts[3:] == [("libero_goal", "task_3", True)]
    assert results.remarks == remarks
    both = lerobot(path, per_task=PER_TASK, per_episode=[])
    assert foreign.read_results(both).episodes == results.episodes


def test_a_recording_of_the_harness_keeps_errors_out_of_n(tmp_path):
    rows = [("put the bowl", "success", 90), ("put the bowl", "error", 3), ("open", "fail", 9)]
    path = harness(tmp_path / "recording-e1.sqlite", *rows, metadata=json.dumps({"benchmark": "libero"}))
    results = foreign.read_results(path)
    assert {episode.suite for episode in results.episodes} == {"libero"}
    table = episode_tables.foreign_results_table(results, path.name)
    (total,) = [row for row in table.rows if row[1].text == "all"]
    assert [cell.text for cell in total] == ["libero", "all", "2", "1", "50.0", "—", "—", "—"]
    assert "1 episodes" in str(table.notes)


def test_safety_is_not_recorded_and_has_no_number(tmp_path):
    results = foreign.read_results(lerobot(tmp_path / "eval_info.json", per_task=PER_TASK))
    table = episode_tables.foreign_results_table(results, "eval_info.json")
    for row in table.rows:
        assert [(cell.value, cell.detail) for cell in row[-3:]] == [(None, "not recorded")] * 3
        assert row[-4].interval is not None
    assert "contacts, forces, object" in render_text(table)


@pytest.mark.parametrize("tasks", [{}, {"per_task": [{"task_group": "a", "task_id": 0, "metrics": {}}]}])
def test_a_file_of_another_shape_is_an_error_that_names_it(tmp_path, tasks):
    with pytest.raises(RecordError, match=r"eval_info.json"):
        foreign.read_results(lerobot(tmp_path / "eval_info.json", **tasks))


def test_an_empty_evaluation_a_foreign_database_and_a_missing_file_are_errors(tmp_path):
    with pytest.raises(RecordError, match="are no episodes"):
        foreign.read_results(lerobot(tmp_path / "eval_info.json", per_task=[]))
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE something (x)")
    connection.close()
    with pytest.raises(RecordError, match="no such table"):
        foreign.read_results(tmp_path / "other.sqlite")
    with pytest.raises(RecordError, match="No such file"):
        foreign.read_results(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"success": 0.5}, r"per_episode\[1\].success is 0.5, not true or false"),
        ({"success": None}, r"per_episode\[1\].success is null, not true or false"),
        ({"seed": 0}, r"missing required field `success` - at `\$.per_episode\[1\]`"),
    ],
)
def test_a_success_that_is_neither_true_nor_false_is_refused_with_its_value(tmp_path, row, words):
    with pytest.raises(RecordError, match=words):
        foreign.read_results(lerobot(tmp_path / "eval_info.json", per_episode=[{"success": True}, row]))
    if "success" in row:
        tasks = [{"task_group": "libero_goal", "task_id": 3, "metrics": {"successes": [row["success"]]}}]
        with pytest.raises(RecordError, match=r"per_task\[0\].metrics.successes\[0\] is .*, not true or false"):
            foreign.read_results(lerobot(tmp_path / "eval_info.json", per_task=tasks))


@pytest.mark.parametrize(("status", "shown"), [("done", '"done"'), (None, "null"), ("x" * 10_000, "xxxx … xxxx")])
def test_a_status_of_the_harness_that_is_unknown_is_refused_with_its_value_and_the_known_ones(tmp_path, status, shown):
    with pytest.raises(RecordError, match='not "success" or "fail" or "error"') as refused:
        foreign.read_results(harness(tmp_path / "recording-1.sqlite", ("pick", "success", 9), ("pick", status, 9)))
    assert all(part in refused.value.problem for part in shown.split("…"))
    assert len(refused.value.problem) < 500


def test_a_file_that_cannot_be_read_holds_no_results(tmp_path, monkeypatch):
    """Whoever reads it as a source then says why; here nothing is raised."""
    path = tmp_path / "recording-1.sqlite"
    shutil.copy(FOLDER / "recording-loopback.sqlite", path)
    assert foreign.find_results(path) == [path]

    def refuse(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("safevla_bench.sources.foreign.open_input", refuse)
    assert foreign.find_results(path) == []
    assert foreign.read_recorded_actions(path) is None


FOLDER = Path(__file__).parents[2] / "cases" / "vla_eval_recording"


def change(tmp_path, *statements):
    """The harness's recording after some SQL."""
    path = tmp_path / "recording-changed.sqlite"
    shutil.copy(FOLDER / "recording-loopback.sqlite", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def test_an_output_folder_gives_actions_hand_and_how_each_episode_began():
    takes = foreign.read_recorded_actions(FOLDER)
    facts = [(take.benchmark, take.task_id, take.init_state_index, len(take.actions), take.success) for take in takes]
    assert facts[::2] == [("libero-spatial", "task_5", 0, 92, True), ("libero-10", "task_9", 0, 40, False)]
    assert facts[1::2] == [("libero-spatial", "task_5", 1, 92, True), ("libero-10", "task_9", 1, 40, False)]
    assert {(take.env_seed, take.wait_steps, take.absolute) for take in takes} == {(7, 10, False)}
    assert [take.earlier_resets for take in takes] == [0, 1, 0, 1]  # the environment is made anew for another task
    assert takes[0].actions.shape == (92, 7)
    assert takes[0].proprioception.shape == (92, 8)
    assert set(takes[0].actions[:, 6]) <= {-1.0, 1.0}


def test_a_server_s_wishes_give_way_to_the_configuration(tmp_path):
    wishes = '\'{"env_seed": 3, "absolute_action": true, "seed": 5}\''
    path = change(
        tmp_path,
        f"UPDATE eval_metadata SET metadata = json_set(metadata, '$.server_info.observation_params', json({wishes}))",
    )
    takes = foreign.read_recorded_actions(path)
    assert {(take.env_seed, take.absolute) for take in takes} == {(3, True)}
    path = change(tmp_path, "UPDATE eval_metadata SET metadata = json_set(metadata, '$.config.params.env_seed', 11)")
    assert {take.env_seed for take in foreign.read_recorded_actions(path)} == {11}


def test_what_the_configuration_leaves_out_is_the_harness_s_default(tmp_path):
    path = change(tmp_path, "UPDATE eval_metadata SET metadata = json_set(metadata, '$.config.params', json('{}'))")
    takes = foreign.read_recorded_actions(path)
    assert {take.benchmark for take in takes} == {"libero-spatial"}
    assert any("plays and judges" in remark for remark in foreign.read_results(path).remarks)
    assert {(take.env_seed, take.wait_steps, take.absolute) for take in takes} == {(7, 10, False)}


def test_actions_of_another_benchmark_are_not_announced_as_libero_s(tmp_path):
    path = change(
        tmp_path, "UPDATE eval_metadata SET metadata = json_set(metadata, '$.config.benchmark', 'robotwin:Benchmark')"
    )
    assert not any("plays and judges" in remark for remark in foreign.read_results(path).remarks)


def test_a_view_in_the_place_of_a_table_is_refused_however_its_name_is_written(tmp_path):
    endless = "WITH RECURSIVE k(x) AS (SELECT 1 UNION ALL SELECT x FROM k) SELECT * FROM rows, k"
    statements = ["ALTER TABLE step_rows RENAME TO rows", f"CREATE VIEW Step_Rows AS {endless}"]
    with pytest.raises(RecordError, match="plain table"):
        foreign.read_recorded_actions(change(tmp_path, *statements))


def test_a_failed_episode_is_not_played_but_its_reset_counts(tmp_path):
    path = change(tmp_path, "UPDATE episode_results SET status = 'error' WHERE episode_id = 0")
    takes = foreign.read_recorded_actions(path)
    assert [(take.init_state_index, take.earlier_resets) for take in takes] == [(1, 1), (1, 1)]


def test_another_process_has_an_environment_of_its_own(tmp_path):
    second = "eid IN (SELECT eid FROM episode_results WHERE episode_id = 1)"
    path = change(
        tmp_path,
        f"UPDATE step_rows SET sid = 'b' WHERE {second}",
        "UPDATE episode_results SET sid = 'b' WHERE episode_id = 1",
    )
    assert {take.earlier_resets for take in foreign.read_recorded_actions(path)} == {0}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE step_rows SET fields = json_remove(fields, '$.action')", "LIBERO benchmark"),
        ("DELETE FROM step_rows WHERE step_id = 3", "has 91 rows of steps"),
        ("UPDATE step_rows SET fields = json_set(fields, '$.action', json('[1]')) WHERE step_id = 0", "cannot be read"),
        ("UPDATE step_rows SET fields = '{' WHERE step_id = 0", "cannot be read"),
        ("UPDATE episode_results SET context = '{}'", "cannot be read"),
        ("DROP TABLE step_rows", "cannot be read"),
        ("UPDATE eval_metadata SET metadata = json_set(metadata, '$.x', hex(zeroblob(600000)))", "cannot be read"),
        ("UPDATE eval_metadata SET metadata = json_set(metadata, '$.config.benchmark', 'other:Calvin')", "no .*LIBERO"),
    ],
)
def test_what_cannot_be_played_is_an_error_with_a_remedy(tmp_path, statement, problem):
    with pytest.raises(RecordError, match=problem) as caught:
        foreign.read_recorded_actions(change(tmp_path, statement))
    assert caught.value.remedy


def test_import_gives_sr_and_says_that_it_can_be_played():
    results = foreign.read_results(FOLDER / "recording-loopback.sqlite")
    assert [episode.success for episode in results.episodes].count(True) == 2
    assert any("--policy replay:" in remark for remark in results.remarks)


def test_places_of_fixtures_differ_from_reset_to_reset():
    """What the resets are counted for: the harness's own environments, noted by make_vla_eval_recording.py."""
    places = json.loads((FOLDER / "fixtures.json").read_text())
    first, second = (places[f"libero_10/task_9/{index}"]["microwave_1_main"] for index in (0, 1))
    assert np.abs(np.subtract(first, second)).max() > 0.001


def test_import_takes_the_harness_s_folder(safevla):
    output = safevla.ok("score", FOLDER)
    assert "libero" in output.lower()
    assert "--policy replay:" in output


def test_the_form_of_lerobot_before_0_4_is_read_and_says_that_it_names_no_tasks(tmp_path):
    rows = [{"episode_ix": number, "success": number % 2 == 0} for number in range(10)]
    results = foreign.read_results(lerobot(tmp_path / "eval_info.json", per_episode=rows, aggregated={}))
    assert [episode.success for episode in results.episodes] == [True, False] * 5
    assert ["LeRobot before 0.4" in remark for remark in results.remarks] == [True]
    (total,) = [row for row in episode_tables.foreign_results_table(results, "x").rows if row[1].text == "all"]
    assert total[2].text == "10"
