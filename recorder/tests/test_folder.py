"""The run folder: a record and a row for each episode, whole files only, and nothing of anybody else's."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
import threading
import time

import pytest

from recorder_builders import StillEnv
from safevla_recorder import folder as folders
from safevla_recorder.attachment import LoopRules
from safevla_recorder.episode import EpisodeRow
from safevla_recorder.errors import RunError, learn_secret, redact_secrets
from safevla_recorder.version import __version__

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
    assert redact_secrets("ws://@host/user:pw@x") == "ws://@host/user:pw@x", "the user's name is empty"
    assert redact_secrets("ws://@me:p/w@host") == "ws://***@host"


def write_many(run, count):
    for _ in range(count):
        number = run.take_number("mine", StillEnv().task)
        run.write_episode(row(number), b"x")


def test_threads_that_share_a_folder_lose_no_episode(tmp_path, monkeypatch):
    """They open it at the same time, write, and close it."""
    write, barrier, failures = folders._write_file, threading.Barrier(4), []

    def write_slowly(path, content):
        time.sleep(0.001)  # another thread's turn
        write(path, content)

    def work():
        try:
            barrier.wait(60)
            run = open_run(tmp_path / "run")
            write_many(run, 5)
            barrier.wait(60)
            run.close_block(complete=True)
        except Exception as error:
            failures.append(error)
            barrier.abort()

    monkeypatch.setattr(folders, "_write_file", write_slowly)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    rows = [json.loads(path.read_text())["episode"] for path in (tmp_path / "run/raw").glob("*.json")]
    assert sorted(rows) == list(range(20))
    assert json.loads((tmp_path / "run/run.json").read_text())["complete"] is True


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_run_whose_folder_was_removed_writes_nothing_into_the_next_one(tmp_path, caplog, capsys, is_made_again):
    """In a notebook, the environment of a removed run may end its last episode later."""
    removed = folders.open_folder(tmp_path / "run", StillEnv(), RULES, folders.describe_process())
    write_many(removed, 1)
    shutil.rmtree(tmp_path / "run")
    if is_made_again:
        write_many(folders.open_folder(tmp_path / "run", StillEnv(), RULES, folders.describe_process()), 1)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="was removed"):
        write_many(removed, 1)
    removed.close_block(complete=True)
    assert "was removed" in caplog.text
    assert "Records:" not in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


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
    assert "not support locks" in caplog.text


def test_of_blocks_that_are_open_together_only_the_last_to_close_says_where_the_records_are(tmp_path, capsys):
    blocks = [open_run(tmp_path / "run") for _ in range(2)]
    write_many(blocks[0], 1)
    blocks[0].close_block(complete=False)
    assert capsys.readouterr().err == ""
    blocks[1].close_block(complete=True)
    assert capsys.readouterr().err.count("Records:") == 1
    assert json.loads((tmp_path / "run" / "run.json").read_text())["complete"] is False


def test_a_block_after_which_another_follows_says_nothing(tmp_path, capsys):
    run = open_run(tmp_path / "run")
    write_many(run, 1)
    run.close_block(complete=True, is_last=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("own", ["safevla-bench", "safevla-recorder"])
def test_the_run_has_this_projects_version_once_under_the_name_of_the_environment(tmp_path, own):
    env = StillEnv()
    env.versions = {"numpy": "1", own: __version__}
    folders.open_folder(tmp_path / "run", env, RULES, {})
    assert json.loads((tmp_path / "run" / "run.json").read_text())["versions"] == {own: __version__, "numpy": "1"}


def test_settling_steps_and_horizons_of_all_environments_are_listed_in_order(tmp_path):
    for rules in (RULES, LoopRules("mine", 0, horizon=7), LoopRules("mine", 10, horizon=3)):
        folders.open_folder(tmp_path / "run", StillEnv(), rules, {})
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["policies"] == [{"policy": "mine", "privileged": False}]
    assert run["protocol"] == {"name": "own loop", "wait_steps": [0, 10], "horizons": [3, 7]}


def test_a_file_in_the_place_of_the_folder_is_refused_and_a_removed_folder_is_made_again(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        open_run(tmp_path / "file")
    write_many(open_run(tmp_path / "run"), 1)
    shutil.rmtree(tmp_path / "run")
    write_many(open_run(tmp_path / "run"), 1)
    assert [path.name for path in (tmp_path / "run" / "raw").glob("*.json")] == ["000000.json"]


@pytest.fixture
def claims(monkeypatch):
    """No folder is open or claimed by this process, before and after."""
    monkeypatch.setattr(folders, "_open_folders", {})
    monkeypatch.setattr(folders, "call_at_exit", lambda function: None)
    yield folders.claim_folder
    folders.release_claims()


def test_a_process_of_a_name_has_a_folder_of_its_own_and_one_without_uses_the_run_s(tmp_path, claims):
    assert claims(tmp_path / "run", None) == (tmp_path / "run", None)
    assert not (tmp_path / "run").exists()
    names = [claims(tmp_path / "run", "a")[1] for _ in range(3)]
    assert names == ["a", "a-2", "a-3"]
    folder = tmp_path / "run" / "worker_a"
    folders.open_folder(folder, StillEnv(), RULES, {})
    assert claims(tmp_path / "run", "a") == (folder, "a")


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_worker_continues_the_folder_that_an_ended_worker_of_its_run_left(tmp_path, claims, is_complete):
    facts = folders.describe_process()
    folder, _ = claims(tmp_path, "a")
    run = folders.open_folder(folder, StillEnv(), RULES, facts)
    write_many(run, 2)
    run.close_block(complete=is_complete)
    folders.release_claims()
    assert not (folder / ".lock").exists()
    folders._open_folders.clear()
    assert claims(tmp_path, "a") == (folder, "a")
    run = folders.open_folder(folder, StillEnv(), RULES, facts)
    write_many(run, 1)
    run.close_block(complete=True)
    assert len(list((folder / "raw").glob("*.json"))) == 3
    assert json.loads((folder / "run.json").read_text())["complete"] is is_complete


def test_the_folder_of_another_run_is_no_worker_s(tmp_path, claims):
    folder, _ = claims(tmp_path, "a")
    run = folders.open_folder(folder, StillEnv(), RULES, {"session": "another"})
    write_many(run, 1)
    folders.release_claims()
    folders._open_folders.clear()
    with pytest.raises(RunError, match="not empty"):
        claims(tmp_path, "a")


def test_a_session_is_the_same_throughout_a_process():
    before = folders.describe_process()["session"]
    block = bytes(10**8)  # what a process uses of memory and time is no name of it
    assert folders.describe_process()["session"] == before
    assert before.partition("-")[0] == str(os.getpid())
    del block
