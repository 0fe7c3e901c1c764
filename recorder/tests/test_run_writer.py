"""The run folder of one's own loop: whole episodes under ids of their own, which a later loop adds to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from safevla_recorder import EpisodeRecorder, RunWriter, SceneMap
from safevla_recorder.errors import FileError, RecordError, RunError

SCENE = SceneMap({"box": "box", "top": "table"}, {"box": "target", "table": "furniture"}, substep_s=0.05)
COMMON = {"benchmark": "my-lab", "task_id": "push", "dt": 0.05, "target_object": "box"}


def recorder(steps=2):
    episode = EpisodeRecorder(SCENE)
    episode.begin([("box", "top", 1.0)], poses={"box": ((0, 0, 0), None)})
    for step in range(steps):
        episode.substep([("box", "top", 1.0)])
        episode.step([1.0], poses={"box": ((0.1 * step, 0, 0), None)})
    return episode


def writer(path, **changes):
    return RunWriter(path / "run", policy="mine", **{**COMMON, **changes})


def read_run(path):
    return json.loads((path / "run" / "run.json").read_text())


def rows(path):
    return [json.loads(file.read_text()) for file in sorted((path / "run" / "raw").glob("*.json"))]


def read_header(path, number):
    with np.load(str(path / "run" / "raw" / f"{number:06d}.npz")) as arrays:
        return json.loads(arrays["header"].tobytes())


def test_costs_of_the_simulators_own_are_kept_and_one_is_needed_for_each_step(tmp_path):
    with writer(tmp_path) as run:
        run.write(recorder(), success=True, costs=[0.0, 0.1])
        with pytest.raises(RecordError, match="1 costs"):
            run.write(recorder(), success=True, costs=[0.0])
    with np.load(str(tmp_path / "run" / "raw" / "000000.npz")) as arrays:
        assert arrays["label_cost"].tolist() == [[0.0], [0.1]]


def test_every_episode_is_a_record_and_a_row_and_a_crash_is_a_row_alone(tmp_path, capsys):
    with writer(tmp_path, packages=["nothing-of-that-name"]) as run:
        run.write(recorder(), success=np.bool_(True), env_seed=np.int64(7), horizon=9)
        run.write(recorder(), success=False, outcome="stopped", reason="the server went away")
        run.write_crash("Traceback: the simulator broke", steps=1, task_id="lift")
        run.write(recorder(3), success=False)
        assert read_run(tmp_path)["complete"] is False
    names = [file.name for file in sorted((tmp_path / "run" / "raw").iterdir())]
    kinds = ("0.json", "0.npz", "1.json", "1.npz", "2.json", "3.json", "3.npz")
    assert names == [f"00000{kind}" for kind in kinds]
    ends = [(row["episode_id"], row["outcome"], row["steps"], row["reason"]) for row in rows(tmp_path)]
    assert ends == [
        ("mine/my-lab/push/ep_000", "success", 2, None),
        ("mine/my-lab/push/ep_001", "stopped", 2, "the server went away"),
        ("mine/my-lab/lift/ep_000", "crashed", 1, "Traceback: the simulator broke"),
        ("mine/my-lab/push/ep_002", "failure", 3, None),
    ]
    header = read_header(tmp_path, 0)
    assert (header["env_seed"], header["success"], header["dropped_pairs"]) == (7, True, [["box", "table"]])
    assert header["versions"]["numpy"] == np.__version__
    run = read_run(tmp_path)
    assert (run["tasks"], run["host"], run["complete"]) == (["my-lab/push", "my-lab/lift"], None, True)
    assert run["protocol"] == {"name": "own loop", "wait_steps": [], "horizons": [9]}
    first = capsys.readouterr().err
    assert "--rules FILE" in first
    assert first.endswith("run\n")
    (tmp_path / "run" / "judged_with.json").write_text("{}")
    with writer(tmp_path) as again:
        again.write(recorder(), success=True)
    assert capsys.readouterr().err.endswith("run --rules as-judged\n"), "the rules that judged the folder before"


def test_a_second_writer_adds_to_the_folder_and_an_id_that_is_there_is_refused(tmp_path):
    with pytest.raises(ZeroDivisionError), writer(tmp_path) as run:  # noqa: PT012
        run.write(recorder(), success=True, episode_id="first")
        raise ZeroDivisionError
    assert read_run(tmp_path)["complete"] is False
    before = (tmp_path / "run" / "raw" / "000000.npz").read_bytes()
    with writer(tmp_path) as run:
        assert "first" in run
        assert "second" not in run
        with pytest.raises(RunError, match="episode 'first'") as caught:
            run.write(recorder(), success=True, episode_id="first")
        assert "episode_id in run:" in caught.value.remedy
        assert run.write(recorder(), success=True) == "mine/my-lab/push/ep_001"
    assert (tmp_path / "run" / "raw" / "000000.npz").read_bytes() == before
    assert [row["episode_id"] for row in rows(tmp_path)] == ["first", "mine/my-lab/push/ep_001"]
    assert read_run(tmp_path)["complete"] is True


def test_an_episode_that_a_kill_left_without_its_row_is_written_again(tmp_path):
    with writer(tmp_path) as run:
        run.write(recorder(), success=True)
        run.write(recorder(), success=True)
    (tmp_path / "run" / "raw" / "000001.json").unlink()
    with writer(tmp_path) as run:
        assert run.write(recorder(5), success=True) == "mine/my-lab/push/ep_001"
    assert [row["steps"] for row in rows(tmp_path)] == [2, 5]
    assert read_header(tmp_path, 1)["episode_id"] == "mine/my-lab/push/ep_001"


def test_a_folder_of_something_else_of_another_host_or_damaged_is_refused_and_stays(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        writer(tmp_path)
    assert os.listdir(str(tmp_path / "run")) == ["notes.txt"]
    (tmp_path / "run" / "notes.txt").unlink()
    with writer(tmp_path) as run:
        run.write(recorder(), success=True)
    with pytest.raises(RunError, match="loop on 'bullet'"):
        writer(tmp_path, host="bullet")
    (tmp_path / "run" / "raw" / "000000.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        writer(tmp_path)
    assert not (tmp_path / "run" / ".lock").exists()


def test_one_writer_at_a_time(tmp_path):
    with writer(tmp_path) as run:
        run.write(recorder(), success=True)
        with pytest.raises(RunError, match="run is writing"):
            writer(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sucess": True}, "field sucess:"),  # words: ok
        ({"success": 1}, "field success: the"),
        ({"task_id": 3}, "field task_id: the"),
        ({"env_seed": 0.5}, "field env_seed: the"),
        ({"dt": float("nan")}, "value is nan"),
        ({"dt": float("inf")}, "cannot be written"),
        ({"dt": None}, "value is missing"),
        ({"outcome": "timeout"}, "outcome 'timeout' contradicts"),
        ({"outcome": "crashed", "success": False}, "outcome 'crashed' contradicts"),
        ({"target_object": "table"}, "field target_object: 'table'"),
    ],
)
def test_a_header_that_no_record_may_have_is_refused_before_anything_is_written(tmp_path, changes, message):
    with writer(tmp_path) as run:
        run.write(recorder(), success=True)
        with pytest.raises(RecordError, match=message):
            run.write(recorder(), **{"success": True, **changes})
        assert run.write(recorder(), success=True) == "mine/my-lab/push/ep_001"


def test_an_episode_that_the_disk_refuses_leaves_nothing_and_can_be_written_again(tmp_path, monkeypatch):
    with writer(tmp_path) as run:
        with monkeypatch.context() as patched:

            def refuse(self, target):
                raise OSError(28, "No space left on device")

            patched.setattr(Path, "replace", refuse)
            with pytest.raises(FileError, match="No space left"):
                run.write(recorder(), success=True)
        assert os.listdir(str(tmp_path / "run" / "raw")) == []
        assert run.write(recorder(), success=True) == "mine/my-lab/push/ep_000"


def test_a_policy_that_sees_privileged_state_is_marked(tmp_path):
    with writer(tmp_path, privileged=True) as run:
        run.write(recorder(), success=True)
    with np.load(str(tmp_path / "run" / "raw" / "000000.npz")) as arrays:
        assert json.loads(arrays["extra"].tobytes()) == {"header": {"privileged": True}}
    assert read_run(tmp_path)["policies"] == [{"policy": "mine", "privileged": True}]
