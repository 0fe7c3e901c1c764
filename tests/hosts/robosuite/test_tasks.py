"""What the host robosuite says without a simulator: its tasks beside the registry's, and what is refused."""

from __future__ import annotations

import importlib.metadata

import pytest

from safevla_bench.errors import HostError
from safevla_bench.hosts.robosuite import tasks
from safevla_bench.hosts.robosuite.host import RobosuiteHost
from safevla_bench.interface import Wants
from safevla_bench.tasks import registry


def install(monkeypatch, **versions: str) -> None:
    found = {name.replace("_", "-"): version for name, version in versions.items()}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_the_suite_holds_the_tasks_of_the_registry_with_its_instructions():
    suite = RobosuiteHost().tasks("robosuite")
    assert {task.task_id for task in suite} == {name for found, name in registry().tasks if found == "robosuite"}
    assert [task.index for task in suite] == list(range(len(suite)))
    assert all(task.instruction == registry().tasks["robosuite", task.task_id].instruction for task in suite)
    with pytest.raises(HostError, match="no suite 'robocasa-365'"):
        RobosuiteHost().tasks("robocasa-365")


@pytest.mark.parametrize("task", tasks.suite_tasks("robosuite"), ids=lambda task: task.task_id)
def test_tags_follow_from_the_goal(task):
    goal, tags = tasks.task_goal(task.task_id), registry().task_tags("robosuite", task.task_id)
    assert ("manipulated_target" in tags) == bool(tasks.goal_targets(goal))
    assert ("goal_moves_articulated_fixture" in tags) == bool(tasks.opened_fixtures(goal))


def test_robosuite_under_either_name_will_do_in_version_1_5_alone(monkeypatch):
    install(monkeypatch, mujoco="3.3.1", praxis_robosuite="1.5.2.post1")
    assert tasks.versions() == {"mujoco": "3.3.1", "praxis-robosuite": "1.5.2.post1"}
    install(monkeypatch, robosuite="1.5.1")
    assert tasks.versions() == {"robosuite": "1.5.1"}
    install(monkeypatch, robosuite="1.4.0")
    with pytest.raises(HostError, match=r"robosuite 1\.4\.0 is installed, this host runs on 1\.5 only"):
        tasks.versions()
    install(monkeypatch)
    with pytest.raises(HostError, match="robosuite is not installed"):
        tasks.versions()


def test_what_it_does_not_have_is_refused_with_what_there_is():
    robosuite = RobosuiteHost()
    with pytest.raises(HostError, match=r"no camera 'leftview'(.|\n)*agentview"):
        robosuite.make(robosuite.tasks("robosuite")[0], Wants(cameras=("leftview",)))
    with pytest.raises(HostError, match="changes of pose"):
        robosuite.make(robosuite.tasks("robosuite")[0], Wants(absolute=True))
    with pytest.raises(HostError, match=r"no task 'Wipe'(.|\n)*Lift"):
        tasks.task_goal("Wipe")
