"""The run folder: a record and a row for each episode, whole files only, and nothing of anybody else's."""

from __future__ import annotations

import json

import pytest

from recorder_builders import StillEnv
from safevla_recorder import folder as folders
from safevla_recorder.attachment import LoopRules, RecordedRow
from safevla_recorder.errors import RunError, learn_secret, redact_secrets

RULES = LoopRules(policy="mine", wait_steps=10)


def row(number=0, outcome="success"):
    names = {"policy": "mine", "benchmark": "b", "task_id": "t"}
    return RecordedRow(
        episode_id=f"mine/b/t/ep_{number:03d}", episode=number, init_state_index=None, env_seed=None, seed=None,
        policy_seed=None, horizon=None, outcome=outcome, steps=2, **names,
    )  # fmt: skip


def open_run(path):
    return folders.open_folder(path, StillEnv(), RULES, {"started": "now"})


def test_blocks_share_a_folder_and_another_process_s_is_refused(tmp_path, monkeypatch, capsys):
    for number in range(2):
        run = open_run(tmp_path / "run")
        assert run.take_number("mine", StillEnv().task) == number
        run.write_episode(row(number), None)
        assert json.loads((tmp_path / "run" / "run.json").read_text())["complete"] is False
        run.close_block(complete=True)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "2 success" in last
    assert "Next: safevla score" in last
    monkeypatch.setattr(folders, "_open_folders", {})
    with pytest.raises(RunError, match="not empty"):
        open_run(tmp_path / "run")


def test_a_folder_without_any_episode_is_removed_with_a_warning(tmp_path, caplog):
    open_run(tmp_path / "run").close_block(complete=True)
    assert not (tmp_path / "run").exists()
    assert "no episode was recorded" in caplog.text


def test_secrets_are_removed_from_the_command_line():
    learn_secret("hunter22")
    assert redact_secrets("run --key hunter22 ws://me:pw@host/x?token=1") == "run --key *** ws://***@host/x?***"
