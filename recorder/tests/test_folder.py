"""The run folder: a record and a row for each episode, whole files only, and nothing of anybody else's."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import threading
import time

import pytest

from recorder_builders import StillEnv
from safevla_recorder import folder as folders
from safevla_recorder.attachment import LoopRules
from safevla_recorder.episode import EpisodeRow
from safevla_recorder.errors import RunError, learn_secret, redact_secrets

RULES = LoopRules(policy="mine", wait_steps=10)


def row(number=0, outcome="success"):
    names = {"policy": "mine", "benchmark": "b", "task_id": "t"}
    return EpisodeRow(
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
    assert "episode was recorded" in caplog.text


def test_secrets_are_removed_from_the_command_line():
    learn_secret("hunter22")
    assert redact_secrets("run --key hunter22 ws://me:pw@host/x?token=1") == "run --key *** ws://***@host/x?***"
    assert redact_secrets("ws://host:8000/x;token=1; then stop") == "ws://host:8000/x;*** then stop"


def write_many(run, count):
    for _ in range(count):
        number = run.take_number("mine", StillEnv().task)
        run.write_episode(row(number), b"x")


def test_threads_that_share_a_folder_lose_no_episode(tmp_path, monkeypatch):
    write = folders._write_file

    def write_slowly(path, content):
        time.sleep(0.001)  # another thread's turn
        write(path, content)

    monkeypatch.setattr(folders, "_write_file", write_slowly)
    run = open_run(tmp_path / "run")
    threads = [threading.Thread(target=write_many, args=(run, 5)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [json.loads(path.read_text())["episode"] for path in (tmp_path / "run/raw").glob("*.json")]
    assert sorted(rows) == list(range(20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system starts no process by fork")
def test_a_forked_process_writes_nothing_into_the_folder_of_its_parent(tmp_path):
    run = open_run(tmp_path / "run")
    write_many(run, 1)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    child = os.fork()
    if not child:
        try:
            with pytest.raises(RunError, match="parent of this process"):
                run.write_episode(row(1), b"x")
            run.close_block(complete=False)
            with pytest.raises(RunError, match="not empty"):
                open_run(tmp_path / "run")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    write_many(run, 1)
    run.close_block(complete=True)
    assert len(list((tmp_path / "run/raw").glob("*.json"))) == 2


def test_a_closed_stderr_stops_no_loop(tmp_path, monkeypatch):
    run = open_run(tmp_path / "run")
    write_many(run, 1)
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    run.close_block(complete=True)
    open_run(tmp_path / "empty").close_block(complete=True)


def test_a_link_in_the_place_of_a_hidden_file_is_not_written_through(tmp_path):
    (tmp_path / "outside").write_text("mine")
    (tmp_path / f".run.json.{os.getpid()}.partial").symlink_to(tmp_path / "outside")
    folders._write_file(tmp_path / "run.json", b"{}")
    assert (tmp_path / "outside").read_text() == "mine"
    assert not (tmp_path / "run.json").is_symlink()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EWOULDBLOCK, errno.EACCES])
def test_only_a_lock_that_another_process_holds_is_an_error(tmp_path, monkeypatch, caplog, number):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise OSError(number, "refused")

    monkeypatch.setattr(fcntl, "flock", refuse)
    if number != errno.ENOLCK:
        with pytest.raises(RunError, match="another run"):
            folders.lock_folder(tmp_path)
        return
    os.close(folders.lock_folder(tmp_path))
    assert "no locks" in caplog.text
