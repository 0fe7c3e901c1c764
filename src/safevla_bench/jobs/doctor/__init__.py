"""Examination of a machine, or of a policy server: checks of what a run needs, each with its remedy.

A check that could crash the process (a renderer, a simulator) runs in a process of its own, so that a crash is a
finding.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from safevla_bench import hosts, policies
from safevla_bench.errors import PluginError, RegistryError
from safevla_bench.jobs.doctor import machine, selftest
from safevla_bench.jobs.doctor.machine import Diagnosis, failed_check, passed_check, warned_check
from safevla_bench.plugins import OWN_DISTRIBUTION, install_command
from safevla_bench.tasks.loader import registry
from safevla_recorder.libero import OTHER_DISTRIBUTIONS
from safevla_recorder.loop import list_attachments
from safevla_recorder.simulator_versions import find_differences

_TEST_HOST = "fake"


def examine_machine(host: str | None = None, out: Path | None = None, *, quick: bool = False) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each check: the machine, the judge, the simulators, graphics, an episode of each simulator.

    Args:
        host: check this host alone; what it lacks is an error. None = all that are installed.
        out: the folder of a future run, checked in addition to the current folder.
        quick: leave out the checks that take seconds, the rendered frame and the simulators' episodes.

    Raises:
        HostError: no host has that name.
        PluginError: the host of that name cannot be loaded.
    """
    if host is not None:
        hosts.make_host(host)
    yield check_python()
    yield from machine.check_machine(out)
    yield selftest.check_judging(_TEST_HOST)
    yield from _check_plugins()
    versions = installed_versions()
    yield from check_simulators(versions, host, _foreign_simulators())
    simulated = [name for name in installed_hosts(versions) if host in (None, name)]
    yield from machine.check_graphics(needed=bool(simulated), quick=quick or "mujoco" not in versions)
    if not quick:
        is_foreign = host is not None and host not in tested_versions().hosts and host != _TEST_HOST
        yield from map(selftest.check_episode, [host] if host is not None and is_foreign else simulated)


def _check_plugins() -> Iterator[Diagnosis]:
    """Yield an error for each host that does not load, the names of those that do, then the policies of plug-ins."""
    loaded = []
    for name in hosts.host_names():
        owner = hosts.host_owner(name)
        foreign = owner != OWN_DISTRIBUTION
        try:
            hosts.make_host(name)
            files = hosts.registry_files(name)
            registry(files)
        except (PluginError, RegistryError) as problem:
            yield failed_check("plug-ins", f"{name}: {problem.problem}", problem.remedy or "Uninstall it.")
            continue
        loaded.append(f"{name} (of {owner})" if foreign else name)
        if foreign and not files:
            remedy = f"Name its file by an entry point {name!r} of {hosts.REGISTRIES}, or pass --rules FILE."
            yield warned_check("plug-ins", f"the host {name} brings no tags of its tasks", remedy)
    yield passed_check("plug-ins", f"hosts: {', '.join(loaded)}")
    yield from _check_policies()


def _check_policies() -> Iterator[Diagnosis]:
    loaded = []
    for name in policies.POLICIES.names():
        owner = policies.POLICIES.owner(name)
        if owner == OWN_DISTRIBUTION:
            continue
        try:
            policies.POLICIES.load(name)
            loaded.append(f"{name} (of {owner})")
        except PluginError as problem:
            yield failed_check("plug-ins", problem.problem, problem.remedy or "Uninstall it.")
    if loaded:
        yield passed_check("plug-ins", f"policies: {', '.join(loaded)}")


# Python and the simulators: the tested versions, and what others and this project found under another


_SHARED_FOLDER = ("robosuite", "praxis-robosuite")
"""Distributions that both install the package folder `robosuite`."""


class TestedSimulator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tested simulator of a host: its main distribution, versions by distribution."""

    distribution: str
    versions: dict[str, str]


class TestedVersions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The versions that this project is tested with."""

    python: tuple[str, ...]
    hosts: dict[str, TestedSimulator]


STILL_MM = 1.0
"""An object that moves no farther in still steps counts as still [mm]."""


class MeasuredTask(msgspec.Struct, frozen=True, kw_only=True):
    """Motion of one task by itself under one version, over several initial states; see `simulator_versions.toml`."""

    suite: str
    task: str
    moved_mm: float
    body: str | None = None
    noop_breaks: tuple[str, ...] = ()
    picture_difference: float | None = None

    @property
    def name(self) -> str:
        """`suite/task`, as reports name it."""
        return f"{self.suite}/{self.task}"


class MeasuredVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of LIBERO under one version of MuJoCo."""

    mujoco: str
    robosuite: str
    tasks: tuple[MeasuredTask, ...] = ()

    @property
    def moving_tasks(self) -> list[str]:
        """The tasks in which an object moves by itself, in order."""
        return [task.name for task in self.tasks if task.moved_mm > STILL_MM]

    def describe(self) -> str:
        """Return what was measured under this version as one sentence without its full stop."""
        if not self.tasks:
            return f"measured with mujoco {self.mujoco}: nothing"
        farthest = max(self.tasks, key=lambda task: task.moved_mm)
        motion = (
            f"objects move by themselves, up to {farthest.moved_mm:.0f} mm, in {', '.join(self.moving_tasks)}"
            if self.moving_tasks
            else f"no object moves {STILL_MM:g} mm by itself"
        )
        differences = [task.picture_difference for task in self.tasks if task.picture_difference is not None]
        pictures = f"; pictures differ by up to {max(differences):.1f} of 255 grey levels" if differences else ""
        return f"measured here with mujoco {self.mujoco} on {len(self.tasks)} tasks: {motion}{pictures}"


class SimulatorMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of LIBERO's tasks by version; pictures are compared with those of the version `reference`."""

    reference: str
    states_per_task: int
    still_steps: int
    versions: tuple[MeasuredVersion, ...] = ()

    def find(self, mujoco: str) -> MeasuredVersion | None:
        """Return what was measured under a version of MuJoCo; None if nothing was."""
        return next((version for version in self.versions if version.mujoco == mujoco), None)


@cache
def simulator_measurements() -> SimulatorMeasurements:
    """Return the shipped measurements of how LIBERO's tasks behave under other versions, made by `make drift`."""
    content = resources.files(__package__).joinpath("simulator_versions.toml").read_bytes()
    return msgspec.toml.decode(content, type=SimulatorMeasurements)


@cache
def tested_versions() -> TestedVersions:
    """Return the shipped list of tested versions."""
    return msgspec.toml.decode(resources.files(__package__).joinpath("tested.toml").read_bytes(), type=TestedVersions)


def check_python() -> Diagnosis:
    """Return the diagnosis of Python's version: a warning if this project is not tested with it."""
    description = f"{platform.python_version()} ({sys.executable})"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version in tested_versions().python:
        return passed_check("Python", description)
    tested = ", ".join(tested_versions().python)
    return warned_check("Python", f"{description}; tested are {tested}", "Make an environment with one of those.")


def installed_versions() -> dict[str, str]:
    """Return distribution -> version of the simulators' distributions that are installed."""
    names = {name for simulator in tested_versions().hosts.values() for name in simulator.versions} | set(
        _SHARED_FOLDER
    )
    return _find_versions(sorted(names))


def _find_versions(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def installed_hosts(versions: Mapping[str, str]) -> list[str]:
    """Return the hosts whose main distribution is installed."""
    return [name for name, simulator in tested_versions().hosts.items() if simulator.distribution in versions]


def _foreign_simulators() -> list[str]:
    """Return what other distributions than ours can roll out or record, in words; nothing of it is imported."""
    owners = {name: hosts.host_owner(name) for name in hosts.host_names()}
    found = [f"the host {name} (of {owner})" for name, owner in owners.items() if owner != OWN_DISTRIBUTION]
    others = _find_versions(OTHER_DISTRIBUTIONS).items()
    recordable = [f"{name} {version}" for name, version in others]
    recordable += [f"{entry.name} (of {owner})" for owner, entry in list_attachments()]
    return found + [f"{name}, which record() can record" for name in recordable]


def check_simulators(
    versions: Mapping[str, str], host: str | None = None, foreign: Sequence[str] = ()
) -> Iterator[Diagnosis]:
    """Yield the diagnoses of installed simulators, their versions and conflicts between them.

    `versions` is distribution -> installed version; `foreign` says what there is of other distributions than ours. It
    is an error that `host` is not installed; without any, for None or a host that has no tested simulator, it is a
    warning that `safevla eval` has none.
    """
    present = installed_hosts(versions)
    yield from _check_conflicts(versions, present)
    for name in present:
        yield from _check_versions(name, versions)
    if host in tested_versions().hosts and host not in present:
        simulator = tested_versions().hosts[host]
        yield failed_check(host, f"{simulator.distribution} is not installed", install_command(host))
    elif foreign:
        yield passed_check("simulator", ", ".join(foreign))
    elif not present:
        remedies = " or, in another environment, ".join(map(install_command, tested_versions().hosts))
        found = "`safevla eval` has none here: recorded episodes can be judged, and loops of your own recorded"
        yield warned_check("simulator", found, remedies)


def _check_conflicts(versions: Mapping[str, str], present: list[str]) -> Iterator[Diagnosis]:
    """Yield an error if two distributions share a folder, or if installed simulators need different versions."""
    remedy = (
        "Make an environment for each: python -m venv, "
        "then one of the extras libero, robocasa (or robosuite), metaworld and maniskill."
    )
    wanted = {name: tested_versions().hosts[name].versions for name in present}
    apart = [
        name
        for name, own in wanted.items()
        if any(other.get(key, version) != version for other in wanted.values() for key, version in own.items())
    ]
    if all(name in versions for name in _SHARED_FOLDER):
        conflicting = " and ".join(f"{name} {versions[name]}" for name in _SHARED_FOLDER)
        yield failed_check(
            "robosuite", f"{conflicting} install into one folder: the later overwrote files of the earlier", remedy
        )
    elif apart:
        yield failed_check(
            "simulators", f"{' and '.join(apart)} need different versions of robosuite and NumPy", remedy
        )


def _check_versions(host: str, versions: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Yield an error for a host's missing distributions, and a diagnosis for each of another version."""
    simulator = tested_versions().hosts[host]
    absent = [name for name in simulator.versions if name not in versions]
    if absent:
        yield failed_check(host, f"{' and '.join(absent)} not installed", install_command(host))
    wrong = {name: wanted for name, wanted in simulator.versions.items() if versions.get(name, wanted) != wanted}
    for name, wanted in wrong.items():
        yield _version_mismatch(host, name, versions[name], wanted, simulator)
    if not absent and not wrong:
        yield passed_check(host, ", ".join(f"{name} {versions[name]}" for name in simulator.versions) + ", as tested")


def _version_mismatch(host: str, name: str, installed: str, tested: str, simulator: TestedSimulator) -> Diagnosis:
    if name.endswith("robosuite") and installed.split(".")[:2] != tested.split(".")[:2]:
        problem = f"{name} {installed} is installed, {host} runs on {'.'.join(tested.split('.')[:2])} only"
        return failed_check(host, problem, f"In an environment of its own: {install_command(host)}")
    facts = [difference.describe(installed) for difference in find_differences(host, {name: installed})]
    measured = simulator_measurements().find(installed) if (host, name) == ("libero", "mujoco") else None
    facts += [measured.describe()] if measured else []
    effect = "\n    ".join(["", *facts]) if facts else " trajectories and forces may differ a little"
    problem = f"{name} {installed} is installed, tested is {tested}:{effect}"
    return warned_check(host, problem, f"To compare with others' numbers: pip install {name}=={tested}")
