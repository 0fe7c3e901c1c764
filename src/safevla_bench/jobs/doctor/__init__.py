"""Diagnosis of a machine: checks whether a run is possible, with remedies.

Renderers and simulators may crash, so they run in separate processes.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from safevla_bench import errors, hosts, policies
from safevla_bench.jobs.doctor import machine
from safevla_bench.jobs.doctor.machine import Diagnosis, failed_check, passed_check, warned_check
from safevla_bench.plugins import OWN_DISTRIBUTION, install_command
from safevla_bench.tasks.loader import load_registry
from safevla_recorder.simulator_versions import find_differences

_TEST_HOST = "fake"


def examine_machine(host: str | None = None, out: Path | None = None, *, quick: bool = False) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each check: machine, judging, simulators, graphics, one episode per simulator.

    `host` limits the checks to one host; missing parts of this host are then errors. `out` is the folder of a future
    run. `quick` skips slow checks. Raises `HostError` if `host` does not exist, `PluginError` if it cannot be loaded.
    """
    if host is not None:
        hosts.make_host(host)  # raises an error if the host is unknown or broken
    yield check_python()
    yield from machine.check_machine(out)
    # The test host needs no simulator, so a failure here is a failure of this package's installation.
    yield machine.check_judging(_TEST_HOST)
    yield from _check_plugins()
    versions = installed_versions()
    yield from check_simulators(versions, host)
    present_hosts = [name for name in installed_hosts(versions) if host is None or name == host]
    if host is not None and host not in (_TEST_HOST, *tested_versions().hosts):
        present_hosts = [host]  # a plug-in's host; no tested version of its simulator is known
    if "mujoco" in versions:
        yield from machine.check_graphics(quick=quick)
    if quick:  # the checks below take seconds to minutes
        return
    if "libero" in present_hosts:
        yield machine.check_plus()
    if "sapien" in versions:
        yield from (machine.check_vulkan(), machine.check_downloads())  # for the host maniskill
    yield from map(machine.check_episode, present_hosts)


def _check_plugins() -> Iterator[Diagnosis]:
    # Yield an error for each plug-in that cannot be loaded, and then a list of the foreign plug-ins that were loaded.
    policy_group, loaded = policies.POLICIES, []
    # Tuples (kind, name, is_foreign). A plug-in is foreign if a distribution other than this package provides it.
    plugins = [("host", name, hosts.host_owner(name) != OWN_DISTRIBUTION) for name in hosts.host_names()]
    plugins += [("policy", name, True) for name in policy_group.names() if not policy_group.is_own(name)]
    for kind, name, is_foreign in plugins:
        try:
            if kind == "host":
                hosts.make_host(name)
                # Also check the host's files of task tags, which may be damaged.
                load_registry(hosts.registry_files(name))
            else:
                policy_group.load(name)  # imports the plug-in's code
            if is_foreign:
                loaded.append(f"{kind} {name}")
        except (errors.PluginError, errors.RegistryError) as error:
            yield failed_check("plug-ins", f"{kind} {name}: {error.problem}", error.remedy or "Uninstall it.")
    if loaded:
        yield passed_check("plug-ins", ", ".join(loaded))


# Versions of Python and the simulators: tested versions, and known differences of untested versions


# Two distributions that both install into the package folder `robosuite`, so that one overwrites the other.
_SHARED_FOLDER = ("robosuite", "praxis-robosuite")


class TestedSimulator(msgspec.Struct, frozen=True):
    """The tested simulator of a host: the main distribution, and the tested version of each distribution."""

    distribution: str
    versions: dict[str, str]


class TestedVersions(msgspec.Struct, frozen=True):
    """The versions that this project is tested with."""

    python: tuple[str, ...]
    hosts: dict[str, TestedSimulator]


@cache
def tested_versions() -> TestedVersions:
    """Return the tested versions that ship with the package."""
    # The data file is `tested.toml` in this package.
    return msgspec.toml.decode(resources.files(__package__).joinpath("tested.toml").read_bytes(), type=TestedVersions)


def check_python() -> Diagnosis:
    """Check Python's version. Return a warning if this project is not tested with this version."""
    detail = f"{platform.python_version()} ({sys.executable}); tested versions: {', '.join(tested_versions().python)}"
    if f"{sys.version_info.major}.{sys.version_info.minor}" in tested_versions().python:
        return passed_check("Python", detail)
    return warned_check("Python", detail, "Make an environment with a tested version.")


def installed_versions() -> dict[str, str]:
    """Return distribution -> version for the installed simulators."""
    versions = {}
    tested = (name for simulator in tested_versions().hosts.values() for name in simulator.versions)
    # `_SHARED_FOLDER` lists two distributions that overwrite each other's files.
    for name in {*_SHARED_FOLDER, *tested}:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def installed_hosts(versions: Mapping[str, str]) -> list[str]:
    """Return the hosts whose main distribution is installed."""
    # `versions` is the result of `installed_versions`: distribution -> version.
    return [name for name, simulator in tested_versions().hosts.items() if simulator.distribution in versions]


def check_simulators(versions: Mapping[str, str], host: str | None = None) -> Iterator[Diagnosis]:
    """Yield diagnoses of the installed simulators, and an error if the simulator of `host` is missing."""
    # `versions` is the result of `installed_versions`; `host` None means that no host is required.
    present_hosts = installed_hosts(versions)
    if all(name in versions for name in _SHARED_FOLDER):
        conflicting = " and ".join(f"{name} {versions[name]}" for name in _SHARED_FOLDER)
        problem = f"{conflicting} use the same folder: the package installed last overwrote the other package"
        remedy = "Make a separate environment for each package: python -m venv, then install one of the extras."
        yield failed_check("robosuite", problem, remedy)
    for name in present_hosts:
        yield from _check_versions(name, versions)
    if host in tested_versions().hosts and host not in present_hosts:
        simulator = tested_versions().hosts[host]
        yield failed_check(host, f"{simulator.distribution} is not installed", install_command(host))
    elif not present_hosts and all(hosts.host_owner(name) == OWN_DISTRIBUTION for name in hosts.host_names()):
        # Neither a simulator nor a plug-in that could provide a simulator is installed.
        remedies = "; or in another environment: ".join(map(install_command, tested_versions().hosts))
        note = "`safevla eval` has no simulator here; you can still judge episodes, and record them in your own scripts"
        yield warned_check("simulator", note, remedies)


def _check_versions(host: str, versions: Mapping[str, str]) -> Iterator[Diagnosis]:
    # Compare the installed `versions` (distribution -> version) with the host's tested versions, and yield the results.
    simulator = tested_versions().hosts[host]
    absent = [name for name in simulator.versions if name not in versions]
    if absent:
        yield failed_check(host, f"{' and '.join(absent)} not installed", install_command(host))
    # Omit absent distributions, which are reported above.
    untested = {name: tested for name, tested in simulator.versions.items() if versions.get(name, tested) != tested}
    for name, tested in untested.items():
        # Sentences on how this version is known to change records; [] if no change is known.
        effects = [difference.describe(versions[name]) for difference in find_differences(host, {name: versions[name]})]
        effect_lines = "".join(f"\n    {effect}" for effect in effects) or " records may differ"
        problem = f"{name} {versions[name]} is installed, but the tested version is {tested}:{effect_lines}"
        remedy = f"For comparable results, use a separate environment for each simulator: {install_command(host)}"
        yield warned_check(host, problem, remedy)
    if not absent and not untested:
        tested_text = ", ".join(f"{name} {versions[name]}" for name in simulator.versions)
        yield passed_check(host, f"{tested_text}, as tested")
