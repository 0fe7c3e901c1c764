"""Examination of a machine, or of a policy server: checks of what a run needs, each with its remedy.

A check that could crash the process (a renderer, a simulator) runs in a process of its own, so that a crash is a
finding.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from safevla_bench import hosts, policies
from safevla_bench.errors import PluginError, RegistryError
from safevla_bench.jobs.doctor import machine, selftest
from safevla_bench.jobs.doctor.machine import Diagnosis, failed_check, passed_check, warn_unless, warned_check
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
    yield from machine.check_graphics(quick=quick or "mujoco" not in versions)
    if not quick:
        is_foreign = host is not None and host not in tested_versions().hosts and host != _TEST_HOST
        yield from map(selftest.check_episode, [host] if host is not None and is_foreign else simulated)


def _check_plugins() -> Iterator[Diagnosis]:
    """Yield an error for each host or policy that does not load, and the names of those that do."""
    policy_group = policies.POLICIES
    foreign = [name for name in policy_group.names() if policy_group.owner(name) != OWN_DISTRIBUTION]
    yield from _check_loading("hosts", hosts.host_names(), hosts.host_owner, _load_host)
    yield from _check_loading("policies", foreign, policy_group.owner, policy_group.load)


def _check_loading(
    kind: str, names: Iterable[str], find_owner: Callable[[str], str], load: Callable[[str], object]
) -> Iterator[Diagnosis]:
    loaded = []
    for name in names:
        owner = find_owner(name)
        try:
            load(name)
        except (PluginError, RegistryError) as problem:
            yield failed_check("plug-ins", f"{name}: {problem.problem}", problem.remedy or "Uninstall it.")
            continue
        loaded.append(name if owner == OWN_DISTRIBUTION else f"{name} (of {owner})")
    if loaded:
        yield passed_check("plug-ins", f"{kind}: {', '.join(loaded)}")


def _load_host(name: str) -> None:
    hosts.make_host(name)
    registry(hosts.registry_files(name))


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


@cache
def tested_versions() -> TestedVersions:
    """Return the shipped list of tested versions."""
    return msgspec.toml.decode(resources.files(__package__).joinpath("tested.toml").read_bytes(), type=TestedVersions)


def check_python() -> Diagnosis:
    """Return the diagnosis of Python's version: a warning if this project is not tested with it."""
    found = f"{platform.python_version()} ({sys.executable}); tested are {', '.join(tested_versions().python)}"
    is_tested = f"{sys.version_info.major}.{sys.version_info.minor}" in tested_versions().python
    return warn_unless(is_tested, "Python", found, "Make an environment with one of those.")


def installed_versions() -> dict[str, str]:
    """Return distribution -> version of the simulators' distributions that are installed."""
    names = {name for simulator in tested_versions().hosts.values() for name in simulator.versions}
    return _find_versions(sorted(names.union(_SHARED_FOLDER)))


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
    recordable = [f"{name} {version}" for name, version in _find_versions(OTHER_DISTRIBUTIONS).items()]
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
    if all(name in versions for name in _SHARED_FOLDER):
        conflicting = " and ".join(f"{name} {versions[name]}" for name in _SHARED_FOLDER)
        problem = f"{conflicting} install into one folder: the later overwrote files of the earlier"
        yield failed_check(
            "robosuite", problem, "Make an environment for each: python -m venv, then one of the extras."
        )
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


def _check_versions(host: str, versions: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Yield an error for a host's missing distributions, and a diagnosis for each of another version."""
    simulator = tested_versions().hosts[host]
    absent = [name for name in simulator.versions if name not in versions]
    if absent:
        yield failed_check(host, f"{' and '.join(absent)} not installed", install_command(host))
    wrong = {name: wanted for name, wanted in simulator.versions.items() if versions.get(name, wanted) != wanted}
    for name, wanted in wrong.items():
        yield _version_mismatch(host, name, versions[name], wanted)
    if not absent and not wrong:
        yield passed_check(host, ", ".join(f"{name} {versions[name]}" for name in simulator.versions) + ", as tested")


def _version_mismatch(host: str, name: str, installed: str, tested: str) -> Diagnosis:
    facts = [difference.describe(installed) for difference in find_differences(host, {name: installed})]
    effect = "\n    ".join(["", *facts]) if facts else " records may differ"
    problem = f"{name} {installed} is installed, tested is {tested}:{effect}"
    return warned_check(
        host,
        problem,
        f"To compare with others' numbers: {install_command(host)}, each simulator in an environment of its own",
    )
