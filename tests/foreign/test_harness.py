"""Recordings of vla-evaluation-harness: a file that it made, what one can lack, and how an episode began there."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from safevla_bench import foreign
from safevla_bench.errors import RecordError

FOLDER = Path(__file__).parents[1] / "cases" / "vla_eval_recording"


def changed(tmp_path, *statements):
    """The harness's recording after some SQL."""
    path = tmp_path / "recording-changed.sqlite"
    shutil.copy(FOLDER / "recording-loopback.sqlite", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def test_an_output_folder_gives_actions_hand_and_how_each_episode_began():
    takes = foreign.read_recorded_actions(FOLDER)
    assert [
        (take.benchmark, take.task_id, take.init_state_index, len(take.actions), take.success) for take in takes
    ] == [
        ("libero-spatial", "task_5", 0, 92, True),
        ("libero-spatial", "task_5", 1, 92, True),
        ("libero-10", "task_9", 0, 40, False),
        ("libero-10", "task_9", 1, 40, False),
    ]
    assert {(take.env_seed, take.wait_steps, take.absolute) for take in takes} == {(7, 10, False)}
    assert [take.earlier_resets for take in takes] == [0, 1, 0, 1]  # the environment is made anew for another task
    assert takes[0].actions.shape == (92, 7)
    assert takes[0].proprioception.shape == (92, 8)
    assert set(takes[0].actions[:, 6]) <= {-1.0, 1.0}


def test_a_server_s_wishes_give_way_to_the_configuration(tmp_path):
    asked = '\'{"env_seed": 3, "absolute_action": true, "seed": 5}\''
    path = changed(
        tmp_path,
        f"UPDATE eval_metadata SET metadata = json_set(metadata, '$.server_info.observation_params', json({asked}))",
    )
    takes = foreign.read_recorded_actions(path)
    assert {(take.env_seed, take.absolute) for take in takes} == {(3, True)}
    path = changed(tmp_path, "UPDATE eval_metadata SET metadata = json_set(metadata, '$.config.params.env_seed', 11)")
    assert {take.env_seed for take in foreign.read_recorded_actions(path)} == {11}


def test_a_failed_episode_is_not_played_but_its_reset_counts(tmp_path):
    path = changed(tmp_path, "UPDATE episode_results SET status = 'error' WHERE episode_id = 0")
    takes = foreign.read_recorded_actions(path)
    assert [(take.init_state_index, take.earlier_resets) for take in takes] == [(1, 1), (1, 1)]


def test_another_process_has_an_environment_of_its_own(tmp_path):
    second = "eid IN (SELECT eid FROM episode_results WHERE episode_id = 1)"
    path = changed(
        tmp_path,
        f"UPDATE step_rows SET sid = 'b' WHERE {second}",
        "UPDATE episode_results SET sid = 'b' WHERE episode_id = 1",
    )
    assert {take.earlier_resets for take in foreign.read_recorded_actions(path)} == {0}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE step_rows SET fields = json_remove(fields, '$.action')", "no episode of its LIBERO benchmark"),
        ("DELETE FROM step_rows WHERE step_id = 3", "92 steps, but 91 rows"),
        ("UPDATE step_rows SET fields = json_set(fields, '$.action', json('[1]')) WHERE step_id = 0", "cannot be read"),
        ("UPDATE step_rows SET fields = '{' WHERE step_id = 0", "cannot be read"),
        ("UPDATE episode_results SET context = '{}'", "cannot be read"),
        ("DROP TABLE step_rows", "cannot be read"),
        ("UPDATE eval_metadata SET metadata = json_set(metadata, '$.config.benchmark', 'other:Calvin')", "no episode"),
    ],
)
def test_what_cannot_be_played_is_an_error_with_a_remedy(tmp_path, statement, problem):
    with pytest.raises(RecordError, match=problem) as caught:
        foreign.read_recorded_actions(changed(tmp_path, statement))
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


def test_import_takes_the_harness_s_folder(capsys):
    from safevla_bench import cli

    assert cli.run_command_line(["score", str(FOLDER)]) == 0
    said = capsys.readouterr().out
    assert "libero" in said.lower()
    assert "--policy replay:" in said
