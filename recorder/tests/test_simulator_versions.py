"""Versions of the simulator: which decide the physics, what is known of them, and the one warning about it."""

from __future__ import annotations

import json
import logging

import pytest

from recorder_builders import StillEnv
from safevla_recorder import loop, simulator_versions
from safevla_recorder.libero import SUITES
from safevla_recorder.simulator_versions import (
    KnownDifference,
    find_differences,
    known_differences,
    physics_versions,
    results_version,
    version_number,
    warn_once,
)

BAD = {"mujoco": "3.17.0", "robosuite": "1.4.0", "numpy": "2.0.0"}


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch):
    monkeypatch.setattr(simulator_versions, "_warned", set())


def difference(since, before):
    return KnownDifference("libero", "mujoco", since, before, "physics", "it moves", ("a/b",), ("somebody",))


@pytest.mark.parametrize(
    ("since", "before", "inside", "outside"),
    [
        ("3.4.0", None, ["3.4.0", "3.4", "3.17.0", "4.0.0rc1"], ["3.3.7", "3.3.99", "2.3.7", "unknown", ""]),
        (None, "3.2.3", ["3.2.2", "2.3.7"], ["3.2.3", "3.10.0", "stand-in"]),
        ("3.3.3", "3.4.0", ["3.3.3", "3.3.7"], ["3.3.2", "3.4", "3.4.0"]),
    ],
)
def test_a_range_holds_its_first_version_and_not_its_last_and_counts_numbers(since, before, inside, outside):
    assert all(difference(since, before).covers(version) for version in inside)
    assert not any(difference(since, before).covers(version) for version in outside)


def test_a_difference_concerns_its_tasks_all_tasks_of_its_benchmarks_or_everything():
    assert difference("3.4", None).concerns("a/b")
    assert not difference("3.4", None).concerns("a/c")
    assert not difference("3.4", None).concerns("a")
    whole = KnownDifference("libero", "mujoco", "3", None, "pictures", "it is dark", ("a",), ("somebody",))
    assert (whole.concerns("a/c"), whole.concerns("b/c")) == (True, False)
    assert KnownDifference("libero", "mujoco", "3", None, "physics", "it moves", (), ("me",)).concerns("b/c")


def test_numpy_python_and_this_project_decide_no_physics():
    others = {"numpy": "1", "safevla-bench": "1", "safevla-recorder": "1", "python": "3.8"}
    assert physics_versions({"mujoco": "3.2.3", **others, "x": "9"}) == {"mujoco": "3.2.3", "x": "9"}
    assert physics_versions(None) == {}


def test_the_results_version_counts_the_versions_that_moved_numbers_up_to_that_of_the_record(monkeypatch):
    monkeypatch.setattr(simulator_versions, "_read_data", lambda: {"results_since": ["0.1.0", "0.3"]})
    results = [results_version({"safevla-bench": own, "mujoco": "3"}) for own in ("0.1.0", "0.2.9", "0.3.0", "1.0rc1")]
    assert results == [1, 1, 2, 2]
    assert results_version({"safevla-recorder": "0.3.1"}) == 2
    assert (results_version({"mujoco": "3"}), results_version(None)) == (None, None)


def test_every_known_difference_has_a_range_a_source_and_known_words():
    assert known_differences()
    for known in known_differences():
        assert known.changes in ("physics", "pictures")
        assert known.since or known.before
        assert known.sources
        assert all(task.partition("/")[0] in {*SUITES, "simpler-widowx"} for task in known.tasks)
        assert all(version_number(end) for end in (known.since, known.before) if end)


def test_the_pinned_version_of_libero_has_no_known_difference_and_3_17_names_the_tasks():
    assert find_differences("libero", {"mujoco": "3.2.3"}) == []
    assert find_differences("libero", {"mujoco": "3.3.2"}) == []
    tasks = {task for known in find_differences("libero", BAD, "physics") for task in known.tasks}
    assert tasks == {"libero-spatial/task_5", "libero-10/task_0", "libero-10/task_1", "libero-10/task_7"}
    assert [known.changes for known in find_differences("libero", {"mujoco": "3.3.7"})] == ["pictures"]
    assert find_differences("robocasa", BAD) == []


def test_one_warning_names_the_bad_tasks_and_a_second_environment_gives_none(caplog):
    with caplog.at_level(logging.WARNING):
        warn_once("libero", BAD)
        warn_once("libero", BAD)
        warn_once("libero", {"mujoco": "3.2.3"})
    (message,) = (entry.getMessage() for entry in caplog.records)
    assert "since 3.4.0" in message
    assert "libero-10/task_7" in message
    assert "huggingface/lerobot issue 4390" in message


def test_a_loop_records_under_such_a_version_and_warns(tmp_path, monkeypatch, caplog):
    env = StillEnv()
    env.host, env.versions = "libero", BAD
    monkeypatch.setattr(loop, "find_recordable", lambda *_: env)
    with caplog.at_level(logging.WARNING), loop.record(env, policy="mine", out=tmp_path / "run"):
        assert json.loads((tmp_path / "run" / "run.json").read_text())["versions"]["mujoco"] == "3.17.0"
    assert "libero-spatial/task_5" in caplog.text
