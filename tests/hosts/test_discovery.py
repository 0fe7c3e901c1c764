"""Hosts are found by entry points; what fails says who is to blame."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from safevla_bench import hosts, plugins
from safevla_bench.errors import HostError, PluginError
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.hosts.mujoco.environment import MujocoHost
from safevla_bench.interface.environment import HostSupport
from safevla_bench.interface.task import EpisodeSeed, PhysicsChange, RecordedEpisode, Task


class Distribution:
    name = "broken-simulator"


@pytest.fixture
def install_point(monkeypatch):
    """Make one entry point the only one that is installed."""

    def install(value: str, name: str = "broken", group: str = hosts.GROUP) -> None:
        point = EntryPoint(name=name, value=value, group=group)
        vars(point).update(dist=Distribution())
        monkeypatch.setattr(plugins, "entry_points", lambda **selection: EntryPoints([point]).select(**selection))

    return install


def test_built_in_hosts_are_found_like_any_other():
    assert {"fake", "libero"} <= set(hosts.host_names())
    assert hosts.make_host("fake").suites() == ("fake",)


def test_an_unknown_host_is_an_error_that_lists_those_there_are():
    with pytest.raises(HostError, match="no host 'mujoco'") as caught:
        hosts.make_host("mujoco")
    assert "fake, libero" in str(caught.value)


@pytest.mark.parametrize("value", ["no_such_module:Host", "safevla_bench.errors:NoSuchHost", "builtins:int.missing"])
def test_a_host_that_fails_to_load_names_its_distribution(install_point, value):
    install_point(value)
    with pytest.raises(PluginError, match="'broken' of broken-simulator"):
        hosts.make_host("broken")


def test_a_host_whose_making_fails_names_its_distribution_and_the_cause(install_point):
    install_point("fractions:Fraction.from_float")
    with pytest.raises(PluginError, match="broken-simulator fails"):
        hosts.make_host("broken")


def test_the_tags_of_a_host_are_the_file_that_its_distribution_names(install_point, monkeypatch, tmp_path):
    (tmp_path / "mine_tags.py").write_text("from pathlib import Path\nTAGS = Path(__file__)\n")
    monkeypatch.syspath_prepend(tmp_path)
    install_point("mine_tags:TAGS", "mine", hosts.REGISTRIES)
    assert hosts.registry_files("mine") == (tmp_path / "mine_tags.py",)
    assert hosts.registry_files("other") == ()


@pytest.mark.parametrize("value", ["no_such_module:TAGS", "safevla_bench.hosts:GROUP", "safevla_bench.hosts:make_host"])
def test_tags_that_are_not_a_file_name_their_distribution(install_point, value):
    install_point(value, "mine", hosts.REGISTRIES)
    with pytest.raises(PluginError, match=r"of host 'mine'.*\n.*broken-simulator"):
        hosts.registry_files("mine")


RECORDED = RecordedEpisode("episode", "file", 3, state=(0.0,))


@pytest.mark.parametrize(
    ("states", "start"),
    [
        (5, EpisodeSeed(0, 0, 0)),
        (5, EpisodeSeed(4, 7, 0)),
        (5, EpisodeSeed(5, 7, 0, drawn=True)),
        (5, EpisodeSeed(9, 7, 0, recorded=RECORDED)),
        (None, EpisodeSeed(900, 7, 0)),
        (5, EpisodeSeed(0, 2**32 - 1, 0)),
    ],
)
def test_a_start_that_there_is_passes(states, start):
    hosts.check_start(Task("suite", "task_0", 0, "name", "do it", (), states), start, FakeHost.supports)


@pytest.mark.parametrize(
    ("states", "start", "problem", "remedy"),
    [
        (5, EpisodeSeed(5, 7, 0), "initial state 5", "has 5 initial states; give an index from"),
        (5, EpisodeSeed(-1, 7, 0), "initial state -1", "has 5 initial states; give an index from"),
        (5, EpisodeSeed(0, -7, 0), "seed -7", "seed of 0"),
        (5, EpisodeSeed(0, 2**32, 0), "seed 4294967296", r"below 2**32"),
        (5, EpisodeSeed(-1, 7, 0, drawn=True), "episode -1", "index of 0 or more"),
        (None, EpisodeSeed(-1, 7, 0), "episode -1", "index of 0 or more"),
        # Without a recorded state the episode begins at an initial state all the same.
        (5, EpisodeSeed(9, 7, 0, recorded=replace(RECORDED, state=None)), "initial state 9", "0 to 4"),
    ],
)
def test_a_start_that_cannot_be_names_its_number_and_those_there_are(states, start, problem, remedy):
    with pytest.raises(HostError, match=problem) as caught:
        hosts.check_start(Task("suite", "task_0", 0, "name", "do it", (), states), start, FakeHost.supports)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (EpisodeSeed(0, 7, 0, placed=(("cube.x", 0.1),)), "start with cube.x"),
        (EpisodeSeed(0, 7, 0, change=PhysicsChange(softness=2.0, friction=0.5)), "friction, softness"),
        (EpisodeSeed(0, 7, 0, drawn=True), "starts only from"),
        (EpisodeSeed(0, 7, 0, recorded=RECORDED), "cannot start from"),
    ],
)
def test_a_host_without_a_declaration_starts_no_episode_in_an_optional_way(start, problem):
    task = Task("suite", "task_0", 0, "name", "do it", (), 5)
    with pytest.raises(HostError, match=problem):
        hosts.check_start(task, start, HostSupport())
    hosts.check_start(task, start, FakeHost.supports if not start.change else MujocoHost.supports)


@pytest.mark.parametrize("wait_action", [(0.0, 0.0), (0.0, 0.0, float("nan"))])
def test_a_settling_action_that_the_task_cannot_take_is_refused(wait_action):
    task = Task("suite", "task_0", 0, "name", "do it", (0.0, 0.0, 0.0), 5)
    with pytest.raises(HostError, match="suite task_0 cannot") as caught:
        hosts.check_start(task, EpisodeSeed(0, 0, 2, wait_action=wait_action))
    assert "3 finite numbers" in caught.value.remedy


def test_making_hosts_imports_no_simulator():
    code = """import sys
from safevla_bench.hosts import host_names, make_host, mujoco
from safevla_bench.hosts.mujoco import environment, privileged
for name in host_names():
    make_host(name).suites()
sys.exit(bool({'mujoco', 'robosuite', 'libero', 'robocasa', 'metaworld', 'sapien', 'torch'} & {*sys.modules}))"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
