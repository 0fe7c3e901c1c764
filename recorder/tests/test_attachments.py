"""Environments of other distributions: found by entry points, none hides another, and what is refused says why."""

from __future__ import annotations

import importlib.metadata
import json
import math
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from recorder_builders import StillRecorder
from safevla_recorder import record, record_until_closed
from safevla_recorder.attachment import RecordableEnv, TaskLabel, package_versions, subscribe_steps
from safevla_recorder.errors import HostError, RunError
from safevla_recorder.loop import ENVIRONMENTS, find_recordable
from safevla_recorder.mujoco.hook import undo_all
from safevla_recorder.version import __version__

PLUGIN = """
import numpy as np
from recorder_builders import StillRecorder, header
from safevla_recorder.attachment import RecordableEnv, TaskLabel, find_layer, subscribe_steps
from safevla_recorder.mujoco.hook import undo_all


class Lab:
    def step(self, action):
        return "observation", bool(action[0] > 1)

    def close(self):
        pass


class RecordableLab(RecordableEnv):
    host, embodiment, wait_steps, action_size = "lab", "arm", 0, 2

    def set_init_states(self, init_states): ...
    def fixture_roots(self): return []
    def is_still(self, action): return False
    def target_object(self): return "bowl"
    def start_recorder(self): return StillRecorder(), lambda: None

    def subscribe(self, cutter):
        hooks = subscribe_steps(self._env, cutter, lambda result: result[1])
        return lambda: undo_all(hooks)

    def build_header(self, recorder, success, env_seed, index):
        return header(benchmark="lab", task_id="lift", success=success)


def find(env):
    lab = find_layer(env, Lab)
    return None if lab is None else RecordableLab(lab, TaskLabel("lab", "lift", "lift it"), {})
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution on the path whose entry point of `ENVIRONMENTS` names `find` of a module with that text."""

    def install_module(name, module):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (tmp_path / f"{name}_module.py").write_text(module)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{ENVIRONMENTS}]\n{name} = {name}_module:find\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install_module
    for name in [name for name in sys.modules if name.endswith("_module")]:
        del sys.modules[name]


class Wrapper:
    def __init__(self, env, name="env"):
        setattr(self, name, env)


def test_an_environment_of_another_distribution_is_recorded_beside_one_that_fails_to_import(install, tmp_path):
    install("broken", "import nothing_of_that_name")
    install("lab", PLUGIN)
    from lab_module import Lab

    env = Wrapper(Lab())
    with record(env, policy="mine", out=tmp_path / "run", horizon=3) as given:
        assert given is env
        for action in ([0.0, 0.0], [2.0, 0.0]):
            env.env.step(action)
    assert (tmp_path / "run" / "raw" / "000000.npz").exists()
    assert '"lab/lift"' in (tmp_path / "run" / "run.json").read_text()


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("os.fork() or sys.exit(0); os.wait()", 0)])
def test_a_recording_that_nothing_closes_ends_with_its_process_which_stops_the_episode(install, tmp_path, end, code):
    install("lab", PLUGIN)
    script = f"""
import os, sys
sys.path[:0] = {[str(tmp_path), str(Path(__file__).parent)]}
from lab_module import Lab
from safevla_recorder import record, record_until_closed
env = record(Lab(), policy="mine", out="run").env
env.step([0.0, 0.0])
{end}
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, check=False)
    assert done.returncode == code
    assert done.stderr.count(b"(1 stopped)") == 1
    assert json.loads((tmp_path / "run/raw/000000.json").read_bytes())["reason"] == "the process ended"
    assert json.loads((tmp_path / "run/run.json").read_bytes())["complete"] is False


@pytest.mark.parametrize(
    ("end", "is_complete"),
    [
        ("", True),
        ("env = attach(); raise ValueError", False),
        ("env = attach(); sys.exit()", True),
        ("env = attach(); env.step([0.0, 0.0]); del env; gc.collect()", True),
    ],
)
def test_a_loop_that_drops_its_environments_unclosed_keeps_none_alive_and_its_run_is_complete_without_an_error(
    install, tmp_path, end, is_complete
):
    """As openpi's and OpenVLA's loops do, which make an environment for each task."""
    install("lab", PLUGIN)
    script = f"""
import gc, sys, weakref
sys.path[:0] = {[str(tmp_path), str(Path(__file__).parent)]}
from lab_module import Lab
from safevla_recorder import record_until_closed
def attach():
    return record_until_closed(Lab(), policy="mine", out="run", horizon=1)
dropped = []
for _ in range(3):
    env = attach()
    env.step([0.0, 0.0])
    dropped.append(weakref.ref(env))
    del env
    gc.collect()
print([reference() for reference in dropped])
{end}
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.stdout == b"[None, None, None]\n", done.stderr
    assert len([*(tmp_path / "run/raw").glob("*.npz")]) == 3 + ("env.step" in end)
    assert json.loads((tmp_path / "run/run.json").read_bytes())["complete"] is is_complete


@pytest.mark.parametrize(("closes", "lines"), [(False, 1), (True, 3)])
def test_where_the_records_are_is_said_once_for_environments_that_are_open_together(install, tmp_path, closes, lines):
    install("lab", PLUGIN)
    script = f"""
import sys
sys.path[:0] = {[str(tmp_path), str(Path(__file__).parent)]}
from lab_module import Lab
from safevla_recorder import record_until_closed
envs = []
for _ in range(3):
    envs.append(record_until_closed(Lab(), policy="mine", out="run", horizon=1))
    envs[-1].step([0.0, 0.0])
    {"envs[-1].close()" if closes else ""}
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, check=True)
    assert done.stderr.count(b"/run (") == lines


def record_in_worker(out, end, horizon=None):
    from lab_module import Lab

    env = record_until_closed(Lab(), policy="mine", out=out, horizon=horizon)
    env.step([0.0, 0.0])
    end(env)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_folder_of_a_killed_worker_goes_on_and_stays_incomplete(install, tmp_path):
    install("lab", PLUGIN)
    for end in (lambda env: os._exit(1), lambda env: env.close(), lambda env: env.close()):
        worker = multiprocessing.get_context("fork").Process(target=record_in_worker, args=(tmp_path / "run", end))
        worker.start()
        worker.join()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["worker_0"]
    assert len([*(tmp_path / "run/worker_0/raw").glob("*.npz")]) == 2
    assert json.loads((tmp_path / "run/worker_0/run.json").read_bytes())["complete"] is False


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("end", "is_complete"),
    [
        (lambda env: None, True),
        (lambda env: sys.exit(0), True),
        (lambda env: sys.exit(1), False),
        (lambda env: 1 / 0, False),
    ],
    ids=["returns", "exits with 0", "exits with 1", "raises"],
)
def test_the_run_of_a_worker_that_leaves_between_episodes_is_complete_if_its_exit_code_is_0(
    install, tmp_path, end, is_complete
):
    install("lab", PLUGIN)
    arguments = (tmp_path / "run", end, 1)
    worker = multiprocessing.get_context("fork").Process(target=record_in_worker, args=arguments)
    worker.start()
    worker.join()
    assert json.loads((tmp_path / "run/worker_0/run.json").read_bytes())["complete"] is is_complete


def test_what_nobody_knows_is_refused_with_the_group_the_page_and_the_attachments_that_failed(install):
    install("broken", "import nothing_of_that_name")
    install("odd", "def find(env):\n    return 3")
    with pytest.raises(HostError, match="cannot be recorded") as caught:
        find_recordable(object())
    assert ENVIRONMENTS in caught.value.remedy
    assert "docs/howto/another-engine.md" in caught.value.remedy
    assert "broken of broken" in str(caught.value)
    assert "nor None, but int" in str(caught.value)


@pytest.mark.parametrize("name", ["SyncVectorEnv", "SubprocVecEnv"])
def test_a_vector_of_environments_is_refused_with_the_line_that_records_its_workers(install, name):
    install("broken", "import nothing_of_that_name")
    vector = type(name, (), {})()
    with pytest.raises(HostError, match="vector of environments") as caught:
        find_recordable(vector)
    assert "record_until_closed" in caught.value.remedy
    assert "broken of broken failed" in str(caught.value)
    assert "processes" not in str(caught.value)  # those of a SyncVectorEnv are in this process


@pytest.mark.parametrize(
    "options", [{"policy": " "}, {"policy": 5}, {"horizon": 0}, {"wait_steps": -1}, {"horizon": 0.5}]
)
def test_an_option_that_cannot_be_is_refused_before_anything_is_written(install, tmp_path, options):
    install("lab", PLUGIN)
    from lab_module import Lab

    with pytest.raises(RunError, match=r"valid name|horizon=|wait_steps="):
        record(Lab(), **{"policy": "mine", "out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


class Fixed:
    """A wrapper without `close` whose attributes cannot be set."""

    __slots__ = ("env",)

    def __init__(self, env):
        self.env = env


@pytest.mark.parametrize("wrapper", [Wrapper, Fixed])
def test_a_wrapper_that_cannot_be_closed_is_recorded(install, tmp_path, wrapper):
    install("lab", PLUGIN)
    from lab_module import Lab

    env = record_until_closed(wrapper(Lab()), policy="mine", out=tmp_path / "run", horizon=1)
    env.env.step([0.0, 0.0])
    assert (tmp_path / "run/raw/000000.npz").exists()


class Moody:
    """A wrapper whose attributes raise anything."""

    def __init__(self, lab):
        self.lab, self.calls = lab, 0

    @property
    def unwrapped(self):
        raise ZeroDivisionError("not yet")

    def __getattr__(self, name):
        raise KeyError(name)


def test_a_wrapper_whose_attributes_raise_is_looked_through(install, tmp_path):
    install("lab", PLUGIN)
    from lab_module import Lab

    env = Moody(Lab())
    with record(env, policy="mine", out=tmp_path / "run", horizon=1):
        env.lab.step([0.0, 0.0])
    assert (tmp_path / "run/raw/000000.npz").exists()


def test_a_loop_that_changes_its_working_directory_is_recorded_where_it_began(install, tmp_path, monkeypatch):
    install("lab", PLUGIN)
    from lab_module import Lab

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with record(Lab(), policy="mine", out="run", horizon=1) as env:
        monkeypatch.chdir(tmp_path / "elsewhere")
        env.step([0.0, 0.0])
    assert (tmp_path / "run/raw/000000.npz").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


class Plain(RecordableEnv):
    host, embodiment, wait_steps, action_size = "plain", "arm", 0, 2

    def set_init_states(self, init_states): ...
    def subscribe(self, cutter): ...
    def start_recorder(self): ...
    def fixture_roots(self):
        return ["shelf"]

    def is_still(self, action): ...
    def target_object(self):
        return "bowl"


def plain(**attributes):
    return Plain(SimpleNamespace(**attributes), TaskLabel("b", "t", "do it"), {"x": "1"})


@pytest.mark.parametrize(
    ("attributes", "is_soft"), [({}, False), ({"hard_reset": True}, False), ({"hard_reset": False}, True)]
)
def test_only_an_environment_that_says_so_keeps_its_simulation_in_a_reset(attributes, is_soft):
    assert plain(**attributes).has_soft_resets is is_soft


def test_unstable_steps_are_counted_where_there_is_a_simulation():
    mujoco = pytest.importorskip("mujoco")
    data = mujoco.MjData(mujoco.MjModel.from_xml_string("<mujoco/>"))
    data.warning[mujoco.mjtWarning.mjWARN_BADQVEL].number = 2
    data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number = 1
    data.warning[mujoco.mjtWarning.mjWARN_CONTACTFULL].number = 5
    assert plain(sim=SimpleNamespace(data=SimpleNamespace(_data=data))).count_unstable_steps() == 3
    assert plain(sim=None).count_unstable_steps() == plain().count_unstable_steps() == 0


def test_facts_of_a_simulation_are_truths_and_a_name():
    facts = plain(has_offscreen_renderer=True, hard_reset=1).read_simulation()
    assert isinstance(facts.pop("openblas_kernel", ""), str)
    assert facts == {"offscreen_renderer": True}


@pytest.mark.parametrize(("index", "name"), [(7, "b/t/init_007"), (None, "b/t/init_unknown")])
def test_a_header_names_the_start_and_holds_what_the_environment_knows(index, name):
    header = plain(control_timestep=0.05).build_header(StillRecorder(), success=True, env_seed=3, index=index)
    assert (header["episode_id"], header["init_state_index"], header["env_seed"]) == (name, index, 3)
    assert (header["dt"], header["target_object"], header["embodiment"]) == (0.05, "bowl", "arm")
    assert (header["instruction"], header["versions"], header["success"]) == ("do it", {"x": "1"}, True)
    assert (header["dropped_pairs"], header["task_sha256"]) == ((), None)


@pytest.mark.parametrize(
    ("rate_hz", "steps_s", "dt_s"),
    [
        (20, (25 * 0.002, 25 * 0.002), 1 / 20),
        (10, (50 * 0.002, 50 * 0.002), 1 / 10),
        (30, (16 * 0.002, 16 * 0.002), 16 * 0.002),  # robosuite rounds the number of substeps down
        (20, (25 * 0.001, 25 * 0.001), 25 * 0.001),  # the script changed the simulation's timestep
        (20, (0.0, math.inf), 1 / 20),  # no step
        (30, (0.0, math.inf), 16 * 0.002),
        (600, (0.0, math.inf), 1 / 600),
    ],
)
def test_a_control_step_takes_the_time_of_its_recorded_substeps(monkeypatch, rate_hz, steps_s, dt_s):
    monkeypatch.setattr(StillRecorder, "step_range_s", lambda _: steps_s)
    env = plain(control_timestep=1 / rate_hz, model_timestep=0.002)
    assert env.build_header(StillRecorder(), success=True, env_seed=3, index=0)["dt"] == dt_s


def test_a_changed_timestep_counts_before_the_first_step(monkeypatch):
    """The wrapper for a gymnasium environment needs the control step at record 0."""
    monkeypatch.setattr(StillRecorder, "step_range_s", lambda _: (0.0, math.inf))
    simulation = SimpleNamespace(model=SimpleNamespace(opt=SimpleNamespace(timestep=0.001)))
    env = plain(control_timestep=1 / 20, model_timestep=0.002, sim=simulation)
    assert env.build_header(StillRecorder(), success=True, env_seed=3, index=0)["dt"] == 25 * 0.001


def test_an_episode_whose_control_steps_take_different_times_has_no_record(monkeypatch):
    monkeypatch.setattr(StillRecorder, "step_range_s", lambda _: (0.05, 0.07))
    with pytest.raises(HostError, match=r"0.05 s and 0.07 s"):
        plain(control_timestep=0.05).build_header(StillRecorder(), success=True, env_seed=3, index=0)


def test_an_environment_is_recorded_while_its_steps_are_hooked():
    class Lab:
        def step(self, action):
            return (True,)

        def close(self): ...

    lab = Lab()
    env = Plain(lab, TaskLabel("b", "t", ""), {})
    assert not env.is_recorded
    hooks = subscribe_steps(lab, None, bool)
    assert env.is_recorded
    undo_all(hooks)
    assert not env.is_recorded


def test_only_installed_packages_have_a_version_and_this_project_has_its_own():
    versions = package_versions(["numpy", "nothing-of-that-name"])
    assert {*versions} - {"safevla-bench", "safevla-recorder"} == {"numpy"}
    assert {*versions.values()} == {np.__version__, __version__}


@pytest.mark.parametrize("installed", ["safevla-bench", "safevla-recorder", None])
def test_this_project_is_named_as_it_is_installed(monkeypatch, installed):
    def find_version(name):
        if name != installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.0.1"

    monkeypatch.setattr(importlib.metadata, "version", find_version)
    assert package_versions(["numpy"]) == ({installed: __version__} if installed else {})
