"""Simulators against the tested versions: absent, as tested, another version, two that cannot share an environment."""

from __future__ import annotations

import re
import tomllib

import pytest

from safevla_bench.jobs import doctor
from safevla_bench.plugins import install_command
from safevla_recorder.simulator_versions import find_differences

TESTED = doctor.tested_versions()
LIBERO, ROBOCASA, ROBOSUITE = (TESTED.hosts[host].versions for host in ("libero", "robocasa", "robosuite"))


def check(versions, host=None) -> list[tuple[str, str]]:
    return [(finding.level, finding.found) for finding in doctor.check_simulators(versions, host)]


@pytest.mark.parametrize("host", TESTED.hosts)
def test_the_shipped_versions_are_those_of_the_constraints(request, host):
    folder = request.config.rootpath / "constraints"
    files = [folder / "core.txt", folder / f"{host}.txt"]
    if not files[1].exists():
        assert host != "libero", f"there is no {files[1]} that {host} is tested with"
        return
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", "\n".join(file.read_text() for file in files), re.MULTILINE))
    assert TESTED.hosts[host].versions.items() <= pinned.items()


def test_the_tested_pythons_are_those_of_the_package(request):
    classifiers = (request.config.rootpath / "pyproject.toml").read_text()
    assert TESTED.python == tuple(re.findall(r'Python :: (3\.\d+)"', classifiers))


@pytest.mark.parametrize("versions", [LIBERO, ROBOSUITE])
def test_the_tested_versions_are_fine(versions):
    ((level, found),) = check(versions)
    assert level == "ok"
    assert found.endswith(", as tested")


def test_robocasa_s_environment_serves_robosuite_s_own_tasks_too():
    findings = list(doctor.check_simulators(ROBOCASA, "robosuite"))
    assert [(finding.level, finding.check) for finding in findings] == [("ok", "robocasa"), ("ok", "robosuite")]


def test_no_simulator_is_a_warning_and_one_that_is_asked_for_an_error_with_how_to_install_it():
    (finding,) = doctor.check_simulators({})
    assert finding.level == "warning"
    assert "`safevla eval` has no simulator" in finding.found
    assert install_command("libero") in finding.remedy
    assert install_command("robocasa") in finding.remedy
    (finding,) = doctor.check_simulators({}, "libero")
    assert (finding.level, finding.check, finding.remedy) == ("error", "libero", install_command("libero"))


TWO = LIBERO | ROBOCASA


@pytest.mark.parametrize(
    ("versions", "level", "found"),
    [
        (
            LIBERO | {"mujoco": "3.1.0"},
            "warning",
            f"mujoco 3.1.0 is installed, but the tested version is {LIBERO['mujoco']}: records may differ",
        ),
        (
            {name: version for name, version in LIBERO.items() if name != "mujoco"},
            "error",
            "mujoco not installed",
        ),
        (
            TWO | {"numpy": LIBERO["numpy"], "mujoco": LIBERO["mujoco"]},
            "error",
            "robosuite 1.4.0 and praxis-robosuite 1.5.2.post1 use the same folder: "
            "the package installed last overwrote the other package",
        ),
    ],
    ids=["another mujoco", "a part is missing", "both robosuites"],
)
def test_what_does_not_fit_is_an_error_and_another_mujoco_a_warning(versions, level, found):
    assert check(versions)[0] == (level, found)


# What is known of another version


def test_a_version_with_known_differences_is_named_with_the_tasks_and_who_reported_them():
    (finding,) = doctor.check_simulators(LIBERO | {"mujoco": "3.8.1"})
    assert finding.level == "warning"
    assert "libero-spatial/task_5" in finding.found
    assert "huggingface/lerobot issue 4390" in finding.found
    assert "rendered darker" in finding.found
    assert install_command("libero") in finding.remedy


def test_what_was_measured_and_what_is_warned_of_name_the_same_tasks(request):
    """Both data files speak of the same thing; the drift command writes one, people the other."""
    measured = tomllib.loads((request.config.rootpath / "docs/tools/simulator_versions.toml").read_text())
    for version in measured["versions"]:
        differences = find_differences("libero", {"mujoco": version["mujoco"]}, "physics")
        warned = {task for known in differences for task in known.tasks}
        moved_mm = {f"{row['suite']}/{row['task']}": row["moved_mm"] for row in version.get("tasks", ())}
        assert {task for task, mm in moved_mm.items() if mm > 1} == warned & {*moved_mm}, version["mujoco"]
