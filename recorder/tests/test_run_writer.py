"""The run folder of one's own loop: whole episodes under ids of their own, which a later loop adds to."""

from __future__ import annotations

import copy
import json
import os
import shutil
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from safevla_recorder import EpisodeRecorder, RunWriter, SceneMap
from safevla_recorder.batch_recorder import BatchRecorder
from safevla_recorder.errors import FileError, HostError, RecordError, RunError

SCENE = SceneMap({"box": "box", "top": "table"}, {"box": "target", "table": "furniture"}, substep_s=0.05)
COMMON = {"benchmark": "my-lab", "task_id": "push", "dt": 0.1, "target_object": "box"}


def recorder(steps=2, substep_s=SCENE.substep_s):
    episode = EpisodeRecorder(replace(SCENE, substep_s=substep_s))
    episode.begin([("box", "top", 1.0)], poses={"box": ((0, 0, 0), None)}, torques_nm=[1.0])
    for step in range(steps):
        for _ in range(1 if step else 2):  # the first control step is twice as long
            episode.substep([("box", "top", 1.0)], torques_nm=[1.0])
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
        run.write(recorder(), success=True, costs=np.array([0.0, 0.1]))
        with pytest.raises(RecordError, match="1 costs"):
            run.write(recorder(), success=True, costs=[0.0])
        run.write(recorder(), success=True, costs=None)
        run.write(recorder(), success=True, costs=())
    for number in (2, 3):
        with np.load(str(tmp_path / "run" / "raw" / f"{number:06d}.npz")) as arrays:
            assert "label_cost" not in arrays
    for number in (0, 1):
        with np.load(str(tmp_path / "run" / "raw" / f"{number:06d}.npz")) as arrays:
            assert arrays["label_cost"].tolist() == [[0.0], [0.1]]


def test_costs_are_numbers_of_any_type_and_others_are_warned_of_once(tmp_path, caplog):
    with writer(tmp_path) as run:
        run.write(recorder(), success=True, costs=[Decimal("0.5"), [1.0]])
        run.write(recorder(), success=True, costs=[None, np.float32(0.5)])
        run.write(recorder(), success=True, costs=[{"a": b"", "b": 1}, {"a": b""}])
    with np.load(str(tmp_path / "run" / "raw" / "000000.npz")) as arrays:
        assert arrays["label_cost"].tolist() == [[0.5], [1.0]]
    with np.load(str(tmp_path / "run" / "raw" / "000001.npz")) as arrays:
        assert arrays["label_cost"].tolist() == [[-1.0], [0.5]]
    with np.load(str(tmp_path / "run" / "raw" / "000002.npz")) as arrays:
        assert arrays["label_cost"].tolist() == [[1.0], [-1.0]]
    assert [record.message.split(" are ")[0] for record in caplog.records] == ["costs of type bytes"]


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


def test_episodes_that_threads_write_at_once_have_ids_of_their_own(tmp_path):
    with writer(tmp_path) as run:

        def write():
            for _ in range(4):
                run.write(recorder(), success=True)
                run.write_crash("lost")

        threads = [Thread(target=write) for _ in range(4)]
        for act in (Thread.start, Thread.join):
            for thread in threads:
                act(thread)
    assert sorted(row["episode"] for row in rows(tmp_path)) == [*range(32)]
    assert len({row["episode_id"] for row in rows(tmp_path)}) == 32


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
    with pytest.raises(RunError, match="not empty") as caught:
        writer(tmp_path)
    assert "another out=" in caught.value.remedy
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_second_close_leaves_the_lock_of_a_later_writer(tmp_path):
    first = writer(tmp_path)
    first.close()
    second = writer(tmp_path)
    first.close()
    with pytest.raises(RunError, match="run is writing"):
        writer(tmp_path)
    second.close()


def test_a_forked_child_that_closes_its_parents_writer_leaves_the_lock(tmp_path):
    with writer(tmp_path) as run:
        child = os.fork()
        if not child:
            try:
                run.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(RunError, match="run is writing"):
            writer(tmp_path)


def test_one_writer_at_a_time(tmp_path):
    with writer(tmp_path) as run:
        run.write(recorder(), success=True)
        with pytest.raises(RunError, match="run is writing") as caught:
            writer(tmp_path)
        assert "another out=" in caught.value.remedy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sucess": True}, "field sucess:"),  # words: ok
        ({"success": 1}, "field success: the"),
        ({"task_id": 3}, "field task_id: the"),
        ({"env_seed": 0.5}, "field env_seed: the"),
        ({"dt": float("nan")}, "value is nan"),
        ({"dt": float("inf")}, "dt is inf s"),
        ({"dt": None}, "value is missing"),
        ({"dt": 0.0}, "value is 0.0"),
        ({"dt": -1}, "value is -1"),
        ({"dt": True}, "value is True"),
        ({"dt": 0.002}, "field dt: dt is 0.002 s, but .* 0.05 to 0.1 s"),
        ({"dt": 0.11}, "field dt: dt is 0.11 s, but"),
        ({"task_id": ""}, "field task_id: the"),
        ({"outcome": "timeout"}, "outcome 'timeout' contradicts"),
        ({"outcome": "crashed", "success": False}, "outcome 'crashed' contradicts"),
        ({"target_object": "table"}, "field target_object: 'table'"),
        ({"joint_torque_limit_nm": [87.0, 0.0]}, "limit_nm: the value"),
        ({"joint_torque_limit_nm": [87.0, 12.0]}, "limit_nm: 2 limits were given for 1"),
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


def test_there_may_be_no_target_and_a_control_step_of_whole_seconds_and_limits_of_joints(tmp_path):
    with writer(tmp_path) as run:
        changes = {"target_object": None, "dt": 1, "joint_torque_limit_nm": np.array([2.0])}
        run.write(recorder(substep_s=0.5), success=True, **changes)
        run.write(recorder(), success=True, joint_torque_limit_nm=[np.float32(2.0)])
        for wrong in (np.bool_(True), np.float32(np.inf)):
            with pytest.raises(RecordError, match="limit_nm: the value"):
                run.write(recorder(), success=True, joint_torque_limit_nm=[wrong])
    assert read_header(tmp_path, 1)["joint_torque_limit_nm"] == [2.0]
    header = read_header(tmp_path, 0)
    assert (header["target_object"], repr(header["dt"]), header["joint_torque_limit_nm"]) == (None, "1.0", [2.0])
    assert rows(tmp_path)[0]["outcome"] == "success"


def test_a_crash_needs_the_names_of_its_task_alone_and_a_record_five_fields(tmp_path):
    with RunWriter(tmp_path / "run", policy="mine") as run:
        assert run.write_crash("it broke", benchmark="b", task_id="t") == "mine/b/t/ep_000"
        with pytest.raises(RecordError) as caught:
            run.write_crash("it broke", benchmark="b")
        assert caught.value.place.field == "task_id"
        with pytest.raises(RecordError) as caught:
            run.write(recorder(), benchmark="b", task_id="t", success=True, dt=0.1)
        assert caught.value.place.field == "target_object"
    assert [(row["outcome"], row["steps"], row["policy_seed"]) for row in rows(tmp_path)] == [("crashed", 0, None)]


@pytest.mark.parametrize("existed", [True, False])
def test_a_folder_without_any_episode_goes_again_unless_it_was_there_before(tmp_path, existed):
    if existed:
        (tmp_path / "run").mkdir()
    with writer(tmp_path):
        assert (tmp_path / "run" / "run.json").exists()
    assert [path.name for path in tmp_path.rglob("*")] == (["run"] if existed else [])


@pytest.mark.parametrize(
    ("name", "is_free"),
    [(".lock", True), (".run.json.77.partial", True), (".notes", False), ("x.partial", False), ("lock", False)],
)
def test_only_what_a_killed_writer_leaves_may_be_in_a_new_folder(tmp_path, name, is_free):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("")
    if is_free:
        writer(tmp_path).close()
        return
    with pytest.raises(RunError, match="not empty"):
        writer(tmp_path)


def test_a_reason_keeps_its_letters_and_hides_no_character_in_the_file(tmp_path):
    with writer(tmp_path) as run:
        run.write_crash("é \u202e \udce9\nnext")
    text = (tmp_path / "run" / "raw" / "000000.json").read_bytes().decode()
    assert "é" in text
    assert "\u202e" not in text
    assert json.loads(text)["reason"] == "é \u202e \\udce9\nnext"


@pytest.mark.parametrize("host", [None, "libero"])
def test_the_last_line_counts_outcomes_and_asks_for_rules_only_where_neither_host_nor_judge_has_them(
    tmp_path, capsys, host
):
    with writer(tmp_path, host=host) as run:
        for success in (True, False, False):
            run.write(recorder(), success=success)
    line = capsys.readouterr().err
    assert "(2 failure, 1 success)" in line
    assert ("--rules FILE" in line) == (host is None)
    (tmp_path / "run" / "judged_with.json").write_text("{}")
    writer(tmp_path, host=host).close()
    line = capsys.readouterr().err
    assert "--rules as-judged" in line
    assert "--rules FILE" not in line


@pytest.mark.parametrize(("folder", "is_short"), [(".", True), ("..", False)])
def test_the_folder_is_named_as_it_is_seen_from_the_working_directory_of_the_shell(
    tmp_path, monkeypatch, capsys, folder, is_short
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str((tmp_path / folder).resolve()))
    with writer(tmp_path) as run:
        run.write(recorder(), success=True)
    assert ("Records: run (" in capsys.readouterr().err) == is_short


def test_the_run_lists_each_of_its_policies_tasks_and_horizons_once(tmp_path):
    for policy in ("mine", "other", "mine"):
        with RunWriter(tmp_path / "run", policy=policy, privileged=policy == "other", **COMMON) as run:
            for horizon in (9, 5, None):
                run.write(recorder(), success=True, horizon=horizon)
    run = read_run(tmp_path)
    names = [("mine", False), ("other", True)]
    assert run["policies"] == [{"policy": name, "privileged": privileged} for name, privileged in names]
    assert (run["suites"], run["tasks"], run["protocol"]["horizons"]) == (["my-lab"], ["my-lab/push"], [5, 9])
    assert len(run["code"]) == 1
    assert [row["episode"] for row in rows(tmp_path)] == [0, 1, 2, 0, 1, 2, 3, 4, 5]


def test_a_run_is_continued_after_its_last_file(tmp_path):
    with writer(tmp_path) as run:
        for _ in range(3):
            run.write(recorder(), success=True)
    for name in ("000000.npz", "000000.json"):
        (tmp_path / "run" / "raw" / name).unlink()
    with writer(tmp_path) as run:
        assert run.write(recorder(), success=True) == "mine/my-lab/push/ep_003"
    assert read_header(tmp_path, 3)["episode_id"] == "mine/my-lab/push/ep_003"


def test_a_folder_of_another_protocol_is_not_continued(tmp_path):
    with writer(tmp_path) as run:
        run.write(recorder(), success=True)
    old = read_run(tmp_path)
    old["protocol"]["name"] = "ours"
    (tmp_path / "run" / "run.json").write_text(json.dumps(old))
    with pytest.raises(RunError, match="protocol 'ours'"):
        writer(tmp_path)


def test_an_episode_is_written_once_and_nothing_after_the_folder_is_closed(tmp_path):
    """A forgotten `begin` once made two episodes of one, or one of two."""
    same = recorder()
    with writer(tmp_path) as run:
        with pytest.raises(RecordError):
            run.write(same, success=True, unknown=1)
        run.write(same, success=True)
        with pytest.raises(HostError, match="already written"):
            run.write(same, success=True)
        same.begin([("box", "top", 1.0)], poses={"box": ((0, 0, 0), None)}, torques_nm=[1.0])
        run.write(same, success=True)
    assert len(rows(tmp_path)) == 2
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "link"):
        with writer(path) as again, pytest.raises(HostError, match="already written"):
            again.write(same, success=True)
    with writer(tmp_path / "elsewhere") as other:
        other.write(same, success=True)
    shutil.rmtree(tmp_path / "elsewhere")
    with writer(tmp_path / "elsewhere") as other:
        other.write(same, success=True)
    (tmp_path / "run").rename(tmp_path / "moved")
    with RunWriter(tmp_path / "moved", policy="mine", **COMMON) as again:
        for episode in (same, copy.deepcopy(same)):
            with pytest.raises(HostError, match="already written"):
                again.write(episode, success=True)
    (tmp_path / "moved").rename(tmp_path / "run")
    for write in (lambda: run.write(recorder(), success=True), lambda: run.write_crash("lost")):
        with pytest.raises(RunError, match="is closed"):
            write()
    assert len(rows(tmp_path)) == 2


def test_an_ended_episode_of_many_worlds_is_written_once(tmp_path):
    scene = replace(SCENE, shapes={"box": "box"}, roles={"box": "target"}, forces=("net_force_n",))
    many = BatchRecorder(scene, (), num_envs=2)
    many.begin(None, poses={"box": (np.zeros((2, 3)), None)})
    many.substep()
    many.step(np.zeros((2, 1)), poses={"box": (np.zeros((2, 3)), None)}, done=[False, False])
    first, second = many.end()
    with writer(tmp_path, dt=SCENE.substep_s) as run:
        run.write(first, success=True)
        run.write(second, success=True)
        with pytest.raises(HostError, match="already written"):
            run.write(first, success=True)
    assert len(rows(tmp_path)) == 2


def test_an_episode_of_ones_own_class_needs_no_hash(tmp_path):
    @dataclass
    class OwnEpisode:
        recorder: EpisodeRecorder

        def __getattr__(self, name):
            return getattr(self.recorder, name)

    with writer(tmp_path) as run:
        run.write(OwnEpisode(recorder()), success=True)
    assert len(rows(tmp_path)) == 1


@pytest.mark.parametrize(("field", "value"), [("init_state_index", -1), ("seed", 2**63), ("horizon", 0)])
def test_an_integer_that_no_record_can_hold_is_refused_with_its_field(tmp_path, field, value):
    with writer(tmp_path) as run, pytest.raises(RecordError, match=field) as caught:
        run.write(recorder(), success=True, **{field: value})
    assert "overlapping" not in caught.value.remedy
