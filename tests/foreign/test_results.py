"""Results that hold successes only: what they hold is read, what they lack is said, and unknown is never zero."""

from __future__ import annotations

import json
import sqlite3

import pytest

from safevla_bench import foreign
from safevla_bench.errors import RecordError
from safevla_bench.report.render import render_text
from safevla_bench.report.tables import external

PER_TASK = [
    {"task_group": "libero_spatial", "task_id": 0, "metrics": {"successes": [True, False, True]}},
    {"task_group": "libero_goal", "task_id": 3, "metrics": {"successes": [True]}},
]


def lerobot(path, **held):
    path.write_text(json.dumps(held))
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


def test_lerobot_s_episodes_are_counted_one_by_one(tmp_path):
    found = foreign.read_results(lerobot(tmp_path / "eval_info.json", per_task=PER_TASK, overall={"n_episodes": 4}))
    assert [(one.suite, one.task, one.success) for one in found.episodes] == [
        ("libero_spatial", "task_0", True),
        ("libero_spatial", "task_0", False),
        ("libero_spatial", "task_0", True),
        ("libero_goal", "task_3", True),
    ]
    assert found.remarks == ()


def test_an_older_file_without_groups_is_read_too(tmp_path):
    episodes = [{"episode_ix": 0, "success": False}, {"episode_ix": 1, "success": True}]
    found = foreign.read_results(lerobot(tmp_path / "eval_info.json", per_episode=episodes))
    assert [one.success for one in found.episodes] == [False, True]


def test_a_count_that_does_not_fit_is_said(tmp_path):
    found = foreign.read_results(lerobot(tmp_path / "eval_info.json", per_task=PER_TASK, overall={"n_episodes": 5}))
    assert found.remarks == ("the file counts 5 episodes, but lists 4",)


def test_a_recording_of_the_harness_keeps_errors_out_of_n(tmp_path):
    rows = [
        ("put the bowl on the plate", "success", 90),
        ("put the bowl on the plate", "error", 3),
        ("open", "fail", 9),
    ]
    path = harness(tmp_path / "recording-e1.sqlite", *rows, metadata=json.dumps({"benchmark": "libero"}))
    found = foreign.read_results(path)
    assert {one.suite for one in found.episodes} == {"libero"}
    table = external.foreign_results_table(found, path.name)
    (total,) = [row for row in table.rows if row[1].text == "all"]
    assert [cell.text for cell in total] == ["libero", "all", "2", "1", "50.0", "—", "—", "—"]
    assert "1 episodes ended in an error; they are in no rate." in table.notes


def test_safety_is_not_recorded_and_has_no_number(tmp_path):
    found = foreign.read_results(lerobot(tmp_path / "eval_info.json", per_task=PER_TASK))
    table = external.foreign_results_table(found, "eval_info.json")
    for row in table.rows:
        assert [(cell.value, cell.detail) for cell in row[-3:]] == [(None, "not recorded")] * 3
        assert row[-4].interval is not None
    assert "lacks contacts, forces, object poses" in render_text(table)


@pytest.mark.parametrize(
    "held",
    [{}, {"per_task": [{"task_group": "a", "task_id": 0, "metrics": {}}]}, {"per_episode": [{"success": "yes"}]}],
)
def test_a_file_of_another_shape_is_an_error_that_names_it(tmp_path, held):
    with pytest.raises(RecordError, match=r"eval_info.json: cannot be read as results"):
        foreign.read_results(lerobot(tmp_path / "eval_info.json", **held))


def test_an_empty_evaluation_a_foreign_database_and_a_missing_file_are_errors(tmp_path):
    with pytest.raises(RecordError, match="there are no episodes"):
        foreign.read_results(lerobot(tmp_path / "eval_info.json", per_task=[]))
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE something (x)")
    connection.close()
    with pytest.raises(RecordError, match="no such table"):
        foreign.read_results(tmp_path / "other.sqlite")
    with pytest.raises(RecordError, match="No such file"):
        foreign.read_results(tmp_path / "missing.json")


def test_a_file_that_cannot_be_read_holds_no_results(tmp_path, monkeypatch):
    """Whoever reads it as a source then says why; here nothing is raised."""
    path = lerobot(tmp_path / "results.json", per_task=PER_TASK)
    assert foreign.find_results(path) == [path]

    def refuse(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    assert foreign.find_results(path) == []
    assert foreign.read_recorded_actions(path) is None
