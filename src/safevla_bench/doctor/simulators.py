"""The simulators installed here, against the versions that are tested."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.doctor.findings import Finding, error, ok, warning

_ONE_FOLDER = ("robosuite", "praxis-robosuite")
"""Distributions that both install the package folder `robosuite`."""


class Simulator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a host is tested with: its main distribution, how to install it, versions by distribution."""

    distribution: str
    install: str
    versions: dict[str, str]


class Tested(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The versions that this project is tested with."""

    python: tuple[str, ...]
    hosts: dict[str, Simulator]


@cache
def tested() -> Tested:
    """The shipped list of tested versions."""
    text = resources.files(__package__).joinpath("tested.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Tested)


def tested_hosts() -> tuple[str, ...]:
    """Hosts whose simulator this project is tested with."""
    return tuple(tested().hosts)


def installed() -> dict[str, str]:
    """Versions of the distributions that matter, by name; what is absent is absent."""
    names = {name for simulator in tested().hosts.values() for name in simulator.versions} | set(_ONE_FOLDER)
    found = {}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hosts_in(here: Mapping[str, str]) -> list[str]:
    """Hosts whose main distribution is installed."""
    return [name for name, simulator in tested().hosts.items() if simulator.distribution in here]


def findings(here: Mapping[str, str], host: str | None = None) -> Iterator[Finding]:
    """Which simulators there are, in which versions, and what cannot be together; `host` is one that must be there."""
    present = hosts_in(here)
    yield from _conflicts(here, present)
    for name in present:
        yield from _versions(name, here)
    if host in tested().hosts and host not in present:
        simulator = tested().hosts[host]
        yield error(host, f"{simulator.distribution} is not installed", simulator.install)
    elif not present:
        remedies = " or, in another environment, ".join(one.install for one in tested().hosts.values())
        yield warning("simulator", "none is installed: recorded episodes can be judged, none recorded", remedies)


def _conflicts(here: Mapping[str, str], present: list[str]) -> Iterator[Finding]:
    remedy = "Make an environment for each: python -m venv, then one of the extras libero and robocasa."
    if all(name in here for name in _ONE_FOLDER):
        which = " and ".join(f"{name} {here[name]}" for name in _ONE_FOLDER)
        yield error("robosuite", f"{which} install into one folder: the later overwrote files of the earlier", remedy)
    elif len(present) > 1:
        yield error("simulators", f"{' and '.join(present)} need different versions of robosuite and NumPy", remedy)


def _versions(host: str, here: Mapping[str, str]) -> Iterator[Finding]:
    simulator = tested().hosts[host]
    absent = [name for name in simulator.versions if name not in here]
    if absent:
        yield error(host, f"{' and '.join(absent)} not installed", simulator.install)
    wrong = {name: wanted for name, wanted in simulator.versions.items() if here.get(name, wanted) != wanted}
    for name, wanted in wrong.items():
        yield _other_version(host, name, here[name], wanted, simulator)
    if not absent and not wrong:
        yield ok(host, ", ".join(f"{name} {here[name]}" for name in simulator.versions) + ", as tested")


def _other_version(host: str, name: str, found: str, wanted: str, simulator: Simulator) -> Finding:
    """A robosuite of another minor version has another API; other differences move numbers."""
    if name.endswith("robosuite") and found.split(".")[:2] != wanted.split(".")[:2]:
        problem = f"{name} {found} is installed, {host} runs on {'.'.join(wanted.split('.')[:2])} only"
        return error(host, problem, f"In an environment of its own: {simulator.install}")
    problem = f"{name} {found} is installed, tested is {wanted}: trajectories and forces may differ a little"
    return warning(host, problem, f"To compare with others' numbers: pip install {name}=={wanted}")
