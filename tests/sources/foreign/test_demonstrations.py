"""Demonstrations of others, read as they are written: HDF5 files and LeRobot datasets."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from safevla_bench.errors import RecordError
from safevla_bench.interface.task import Task
from safevla_bench.memory import SETTING
from safevla_bench.sources.foreign import hdf5_child, read_recorded_actions
from safevla_bench.sources.foreign.demonstrations import RecordedActions, read_demonstrations
from sources.logs.log_files import replace_column

RNG = np.random.default_rng(0)
MODEL = """<mujoco><worldbody>
  <body name="flat_stove_1_main" pos="0.1 0.2 0.9" quat="0 0 0 1"><joint type="hinge"/></body>
  <body name="wooden_cabinet_1_main"/>
  <body name="bowl_1_main" pos="1 1 1"><joint type="free"/></body>
  <body name="plate_1_main"><freejoint/></body>
</worldbody></mujoco>"""


def demonstrations(path, count=2, steps=4, *, states=0, **attributes):
    """A file as LIBERO's create_dataset.py writes it, without images; `states` more states than actions."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(attributes)
        for number in reversed(range(count)):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["model_file"] = MODEL
            demo.attrs["init_state"] = np.full(5, -1.0)  # from before the cut: not where the actions start
            demo["actions"] = np.full((steps, 7), number / 100)
            demo["states"] = RNG.normal(size=(steps + states, 5))
            demo.create_group("obs")["agentview_rgb"] = np.zeros((steps, 2, 2, 3), dtype=np.uint8)
    return path


def test_demonstrations_come_in_the_order_of_their_numbers_with_the_first_recorded_state(tmp_path):
    takes = read_demonstrations(demonstrations(tmp_path / "x_demo.hdf5", count=11))
    assert [take.name for take in takes] == [f"demo_{k}" for k in range(11)]
    assert [take.actions[0, 0] for take in takes] == [k / 100 for k in range(11)]
    assert takes[0].states.shape == (4, 5)
    assert not (takes[0].states[0] == -1.0).all()
    assert takes[0].init_state_index is None


def test_a_libero_file_says_suite_task_and_instruction(tmp_path):
    file = demonstrations(
        tmp_path / "a.hdf5",
        bddl_file_name="chiliocosm/bddl_files/libero_goal/open_the_middle_drawer_of_the_cabinet.bddl",
        problem_info=json.dumps({"language_instruction": '"open the middle drawer of the cabinet"'}),
    )
    take = read_demonstrations(file)[0]
    assert (take.suite, take.task) == ("libero_goal", "open_the_middle_drawer_of_the_cabinet")
    assert take.instruction == "open the middle drawer of the cabinet"


def test_a_robomimic_file_says_its_task_in_env_args(tmp_path):
    arguments = {"env_name": "Lift", "env_kwargs": {"bddl_file_name": None}}
    path = demonstrations(tmp_path / "a.hdf5", env_args=json.dumps(arguments))
    assert read_demonstrations(path)[0].task_label == "Lift"


@pytest.mark.parametrize(
    "attributes",
    [{"env_info": '{"env_name": "Lift"}', "env": "Lift"}, {"env": "Lift"}, {"env_info": '{"env_name": "Lift"}'}],
)
def test_a_robosuite_file_says_its_task_in_env_or_env_info(tmp_path, attributes):
    path = demonstrations(tmp_path / "demo.hdf5", **attributes)
    assert read_demonstrations(path)[0].task_label == "Lift"


def test_a_model_file_that_is_a_name_and_no_xml_counts_as_missing(tmp_path):
    path = demonstrations(tmp_path / "demo.hdf5", env="Wipe")
    with h5py.File(path, "r+") as file:
        file["data/demo_1"].attrs["model_file"] = "model_1.xml"
    first, second = read_demonstrations(path)
    assert first.fixtures
    assert not second.fixtures


def test_poses_of_fixtures_come_from_the_model_and_free_bodies_are_left_out(tmp_path):
    take = read_demonstrations(demonstrations(tmp_path / "a.hdf5"))[0]
    assert dict(take.fixtures) == {
        "flat_stove_1_main": (0.1, 0.2, 0.9, 0.0, 0.0, 0.0, 1.0),
        "wooden_cabinet_1_main": (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    }


def test_a_folder_of_files_is_all_of_them_by_name(tmp_path):
    for name in ("b", "a"):
        demonstrations(tmp_path / f"{name}.hdf5", count=1)
    assert [take.source for take in read_demonstrations(tmp_path)] == ["a.hdf5", "b.hdf5"]


@pytest.mark.parametrize("states", [-1, 2])
def test_states_that_do_not_fit_the_actions_are_an_error_with_their_place(tmp_path, states):
    with pytest.raises(RecordError, match=r"demo_0.*field states: .*4"):
        read_demonstrations(demonstrations(tmp_path / "a.hdf5", states=states))


def test_a_state_after_the_last_action_is_taken(tmp_path):
    assert len(read_demonstrations(demonstrations(tmp_path / "a.hdf5", states=1))[0].states) == 5


def test_what_is_not_a_demonstration_is_an_error(tmp_path):
    (tmp_path / "a.hdf5").write_bytes(b"nothing")
    with pytest.raises(RecordError, match="cannot be read"):
        read_demonstrations(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file.create_group("data")
    with pytest.raises(RecordError, match="no demonstrations"):
        read_demonstrations(tmp_path / "b.hdf5")
    with pytest.raises(RecordError, match="no such file"):
        read_demonstrations(tmp_path / "c.hdf5")


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("actions", [["left", "right"]] * 4, "cannot be read as numbers"),
        ("actions", [[b"left", b"right"]] * 4, "cannot be read as numbers"),
        ("actions", None, "actions is not a dataset"),
        ("model_file", MODEL.replace("0.2 0.9", "high 0.9"), ".* could not convert string to float: 'high'"),
        ("model_file", MODEL[:60], "the model cannot be read"),
    ],
)
def test_a_damaged_part_of_a_demonstration_is_an_error_with_its_place(tmp_path, part, value, problem):
    path = demonstrations(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        demo = file["data/demo_1"]
        if part == "model_file":
            demo.attrs[part] = value
        else:
            del demo[part]
            demo.create_group(part) if value is None else demo.create_dataset(part, data=value)
    with pytest.raises(RecordError, match=rf"a\.hdf5.*demo_1.*field {part}: {problem}"):
        read_demonstrations(path)


@pytest.mark.parametrize("name", ["data", "data/demo_1"])
def test_an_array_in_the_place_of_a_group_is_an_error_that_names_it(tmp_path, name):
    path = demonstrations(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = np.zeros(3)
    with pytest.raises(RecordError, match=rf"a\.hdf5.*{name.rpartition('/')[2]}"):
        read_demonstrations(path)


def test_other_forms_are_left_to_others(tmp_path):
    assert read_demonstrations(tmp_path) is None
    assert read_demonstrations(tmp_path / "episodes.jsonl") is None


def dataset(folder, *, version="v3.0"):
    """A LeRobot dataset of three episodes in two files, frames out of order, and its tasks as pandas writes them."""
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps({"codebase_version": version, "fps": 10}))
    names = ["put the bowl on the plate", "turn on the stove"]
    if version == "v3.0":
        tasks = pa.table({"task_index": [0, 1], "__index_level_0__": names})
        pq.write_table(tasks, folder / "meta" / "tasks.parquet")
    else:
        lines = [json.dumps({"task_index": k, "task": name}) for k, name in enumerate(names)]
        (folder / "meta" / "tasks.jsonl").write_text("\n".join(lines))
    (folder / "data" / "chunk-000").mkdir(parents=True)
    rows = [(e, t, e % 2) for e in range(3) for t in (1, 0, 2)]
    for number, part in enumerate((rows[:4], rows[4:])):
        columns = {
            "action": pa.array([[e + t / 10] * 7 for e, t, _ in part], pa.list_(pa.float32(), 7)),
            "episode_index": [e for e, _, _ in part],
            "frame_index": [t for _, t, _ in part],
            "task_index": [k for _, _, k in part],
        }
        pq.write_table(pa.table(columns), folder / "data" / "chunk-000" / f"file-{number:03d}.parquet")
    return folder


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_a_lerobot_dataset_gives_actions_and_instructions_and_no_start(tmp_path, version):
    takes = read_demonstrations(dataset(tmp_path / "libero", version=version))
    assert [take.name for take in takes] == ["episode_000000", "episode_000001", "episode_000002"]
    np.testing.assert_allclose(takes[2].actions[:, 0], [2.0, 2.1, 2.2], rtol=1e-6)
    assert takes[1].instruction == "turn on the stove"
    assert (takes[0].states, takes[0].init_state_index) == (None, None)


def test_a_recording_of_lerobot_eval_says_by_its_place_which_task_it_is_of_and_where_it_starts(tmp_path):
    for number in range(2):
        dataset(tmp_path / "recordings" / "libero_10_3" / f"env_{number}")
    takes = read_demonstrations(tmp_path / "recordings")
    starts = [(take.benchmark, take.task_id, take.init_state_index, take.env_seed, take.wait_steps) for take in takes]
    indices = [0, 2, 4, 1, 3, 5]  # episode e of environment k of two
    assert starts == [("libero-10", "task_3", index, 1000 + index, 10) for index in indices]
    assert takes[3].name == "libero_10_3/env_1/episode_000000"
    (alone,) = {take.task_id for take in read_demonstrations(dataset(tmp_path / "recordings" / "libero_goal_7"))}
    assert alone == "task_7"
    assert read_demonstrations(dataset(tmp_path / "libero_goal_7"))[0].init_state_index is None


def test_a_recording_of_lerobot_eval_that_lacks_episodes_or_environments_has_no_wrong_starts(tmp_path, caplog):
    for number in range(3):
        dataset(tmp_path / "recordings" / "libero_10_3" / f"env_{number}")
    folder = tmp_path / "recordings" / "libero_10_3" / "env_2"
    data = folder / "data" / "chunk-000"
    (data / "file-000.parquet").unlink()  # the first episode, and the beginning of the second
    kept = pq.read_table(data / "file-001.parquet")
    pq.write_table(kept.filter(pc.equal(kept["episode_index"], 2)), data / "file-001.parquet")
    assert [(take.name, take.init_state_index) for take in read_demonstrations(folder)] == [
        ("libero_10_3/env_2/episode_000002", 8)
    ]
    shutil.rmtree(tmp_path / "recordings" / "libero_10_3" / "env_0")
    (take,) = read_demonstrations(folder)
    assert (take.init_state_index, take.task_id) == (None, None)
    assert "env_0, env_1" in caplog.text


def test_a_dataset_that_lacks_episodes_is_replayed_in_part_with_a_warning(tmp_path, caplog):
    folder = dataset(tmp_path / "libero")
    (folder / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v3.0", "total_episodes": 4}))
    assert len(read_demonstrations(folder)) == 3
    assert "1 of 4 episodes" in caplog.text


def test_a_dataset_without_frames_is_an_error(tmp_path):
    shutil.rmtree(dataset(tmp_path / "libero") / "data")
    with pytest.raises(RecordError, match="no episodes"):
        read_demonstrations(tmp_path / "libero")


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("action", pa.array([["left"] * 7] * 5), "as different types"),
        ("action", pa.array([[0.0] * 7] * 4 + [None], pa.list_(pa.float32(), 7)), "has no action"),
        ("action", pa.array([[0.0] * 6] * 5), "cannot be read"),
        ("episode_index", pa.array(["a"] * 5), "column 'episode_index' holds"),
        ("frame_index", pa.array([0, 1, 2, 3, None]), "column 'frame_index' holds"),
        ("task_index", pa.array([0.5] * 5), "column 'task_index' holds"),
    ],
)
def test_a_damaged_column_of_a_dataset_is_an_error(tmp_path, name, values, problem):
    folder = dataset(tmp_path / "libero")
    replace_column(folder, name, values, file=1)
    with pytest.raises(RecordError, match=problem):
        read_demonstrations(folder)


@pytest.mark.parametrize("row", ['{"task_index": 1}', '{"task": "turn on the stove"}', '["a"]', '{"task_index": null}'])
def test_a_damaged_row_of_tasks_is_an_error_that_names_it(tmp_path, row):
    folder = dataset(tmp_path / "libero", version="v2.1")
    with (folder / "meta" / "tasks.jsonl").open("a") as stream:
        stream.write(f"\n{row}")
    with pytest.raises(RecordError, match=r"tasks\.jsonl.*row 3 lacks"):
        read_demonstrations(folder)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_tasks_that_cannot_be_read_are_an_error_that_names_the_file(tmp_path, content):
    folder = dataset(tmp_path / "libero", version="v2.1")
    (folder / "meta" / "tasks.jsonl").write_bytes(content)
    with pytest.raises(RecordError, match=r"tasks\.jsonl.*cannot be read"):
        read_demonstrations(folder)


TASK = Task("libero-goal", "task_7", 7, "turn_on_the_stove", "turn on the stove", (0.0,) * 6 + (-1.0,), 50)


@pytest.mark.parametrize(
    ("facts", "fits"),
    [
        ({"benchmark": "libero-goal", "task_id": "task_7"}, True),
        ({"benchmark": "libero-goal", "task_id": "task_1", "instruction": "turn on the stove"}, False),
        ({"suite": "libero_goal", "task": "turn_on_the_stove"}, True),
        ({"suite": "libero_90", "task": "turn_on_the_stove"}, False),
        ({"task": "turn_on_the_stove"}, True),
        ({"task": "Lift", "instruction": "turn on the stove"}, False),
        ({"instruction": "Turn on the  stove."}, True),
        ({}, False),
    ],
)
def test_a_take_fits_a_task_by_the_most_exact_thing_it_says(facts, fits):
    assert RecordedActions(name="x", source="y", actions=np.zeros((1, 7)), **facts).is_of_task(TASK) is fits


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_what_lerobot_s_own_writer_writes_is_read(version):
    """`tests/cases/make_lerobot_datasets.py` made it with LeRobot 0.4.4 and 0.3.3."""
    first, second = read_demonstrations(Path(__file__).parents[2] / "cases" / f"lerobot_{version}")
    assert (first.name, first.instruction, first.states) == ("episode_000000", "turn on the stove", None)
    assert second.instruction == "open the middle drawer of the cabinet"
    np.testing.assert_array_equal(first.actions, np.float32([[0.0], [0.1], [0.2]]) * np.ones(7, np.float32))
    np.testing.assert_array_equal(second.actions[:, 6], np.float32([1.0, 1.1, 1.2, 1.3]))


def test_numbers_of_another_file_are_not_read(tmp_path):
    demonstrations(tmp_path / "other.hdf5")
    (tmp_path / "raw").write_bytes(bytes(4096))
    path = demonstrations(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_1"]
        file["data/demo_1"] = h5py.ExternalLink("other.hdf5", "data/demo_0")
    with pytest.raises(RecordError, match="soft or external"):
        read_demonstrations(path)
    path = demonstrations(tmp_path / "b.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_1/actions"]
        file["data/demo_1"].create_dataset("actions", (4, 7), "f8", external=[(str(tmp_path / "raw"), 0, 224)])
    with pytest.raises(RecordError, match="another file"):
        read_demonstrations(path)


# The child process


ONE_DEMO = {"name": "demo_0", "actions": [9, 7], "states": None, "suite": None, "task": None, "instruction": None}
ONE_DEMO["fixtures"] = []
CHILDREN = {
    "import os; os.abort()": r"crashed while reading the file \(SIGABRT\)",
    "while True: pass": "took more than 1 s",
    "raise SystemExit(3)": "exit code 3",
    "print('{\"error\": null}')": "needs more memory than",
    'print(\'{"demos": [{"actions": [-1, 7]}]}\')': "cannot be read",
    "pass": "cannot be read",
    f"print('{json.dumps({'demos': [ONE_DEMO]})}')": "returned unexpected data",
}


@pytest.mark.parametrize("code", CHILDREN)
def test_whatever_the_child_does_becomes_an_error_about_the_file(tmp_path, monkeypatch, code):
    (tmp_path / "child.py").write_text(
        f"import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\n{code}\n"
    )
    monkeypatch.setattr(hdf5_child, "__file__", str(tmp_path / "child.py"))
    monkeypatch.setattr("safevla_bench.sources.foreign.demonstrations._CHILD_SECONDS", 1)
    with pytest.raises(RecordError, match=rf"a\.hdf5: .*{CHILDREN[code]}"):
        read_demonstrations(demonstrations(tmp_path / "a.hdf5"))


def test_a_soft_link_is_not_followed_since_its_path_may_lead_into_another_file(tmp_path):
    demonstrations(tmp_path / "other.hdf5")
    path = demonstrations(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        file["other"] = h5py.ExternalLink("other.hdf5", "data")
        del file["data/demo_1/actions"]
        file["data/demo_1/actions"] = h5py.SoftLink("/other/demo_0/actions")
    with pytest.raises(RecordError, match="actions is"):
        read_demonstrations(path)


def test_a_large_model_is_read_without_a_tree_in_memory(tmp_path, monkeypatch):
    monkeypatch.setenv(SETTING, "0.25")
    path = demonstrations(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        xml = f"<m><worldbody>{'<geom/>' * 1_000_000}<body name='shelf' pos='1 2 3' quat='1 0 0 0'/></worldbody></m>"
        file["data/demo_1"].attrs.create("model_file", xml, dtype=h5py.string_dtype())
    (take,) = [take for take in read_demonstrations(path) if take.name == "demo_1"]
    assert take.fixtures == (("shelf", (1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0)),)


def test_demonstrations_beyond_the_limit_are_refused(tmp_path, monkeypatch):
    """Rows that are absent from the file take no byte in it; the child or this process runs out of memory."""
    monkeypatch.setenv(SETTING, "0.25")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for k in range(4):
            file.create_dataset(f"data/demo_{k}/actions", (2**21, 7), "f8", chunks=(1024, 7))
    with pytest.raises(RecordError, match="needs more memory"):
        read_recorded_actions(tmp_path / "a.hdf5")


def test_an_interrupted_reading_leaves_no_child_behind(tmp_path, monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def communicate(self, *_, **__):
            started.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_demonstrations(demonstrations(tmp_path / "a.hdf5"))
    assert started[0].returncode is not None
