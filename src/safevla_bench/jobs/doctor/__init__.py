"""Examination of a machine, or of a policy server: checks of what a run needs, each with its remedy.

A check that could crash the process (a renderer, a simulator) runs in a process of its own, so that a crash is a
finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safevla_bench import hosts, policies
from safevla_bench.errors import PluginError, RegistryError
from safevla_bench.jobs.doctor import machine, selftest, simulators
from safevla_bench.jobs.doctor.machine import Diagnosis, failed_check, passed_check, warned_check
from safevla_bench.tasks.loader import registry

_TEST_HOST = "fake"
_OWN = "safevla-bench"


def examine_machine(host: str | None = None, out: Path | None = None, *, quick: bool = False) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each check: the machine, the judge, the simulators, graphics, an episode of each simulator.

    What `host` lacks is an error; None = all hosts that are installed. `out` is the folder of a future run. `quick`
    leaves out the rendered frame and the simulators' episodes. Raises what `hosts.make_host` raises for the host.
    """
    if host is not None:
        hosts.make_host(host)
    yield simulators.check_python()
    yield from machine.check_machine(out)
    yield selftest.check_judging(_TEST_HOST)
    yield from _check_plugins()
    versions = simulators.installed_versions()
    yield from simulators.check_simulators(versions, host)
    simulated = [name for name in simulators.installed_hosts(versions) if host in (None, name)]
    yield from machine.check_graphics(needed=bool(simulated), quick=quick or "mujoco" not in versions)
    if not quick:
        is_foreign = host is not None and host not in simulators.tested_versions().hosts and host != _TEST_HOST
        yield from map(selftest.check_episode, [host] if host is not None and is_foreign else simulated)


def _check_plugins() -> Iterator[Diagnosis]:
    """Yield an error for each host that does not load, the names of those that do, then the policies of plug-ins."""
    loaded = []
    for name in hosts.host_names():
        owner = hosts.host_owner(name)
        foreign = owner != _OWN
        try:
            hosts.make_host(name)
            files = hosts.registry_files(name)
            registry(files)
        except (PluginError, RegistryError) as problem:
            yield failed_check("plug-ins", f"{name}: {problem.problem}", problem.remedy or "Uninstall it.")
            continue
        loaded.append(f"{name} (of {owner})" if foreign else name)
        if foreign and not files:
            remedy = f"Name its file by an entry point {name!r} of {hosts.REGISTRIES}, or pass --registry FILE."
            yield warned_check("plug-ins", f"the host {name} brings no tags of its tasks", remedy)
    yield passed_check("plug-ins", f"hosts: {', '.join(loaded)}")
    yield from _check_policies()


def _check_policies() -> Iterator[Diagnosis]:
    loaded = []
    for name in policies.policy_names():
        owner = policies.policy_owner(name)
        if owner == _OWN:
            continue
        try:
            policies.check_policy_loads(name)
            loaded.append(f"{name} (of {owner})")
        except PluginError as problem:
            yield failed_check("plug-ins", problem.problem, problem.remedy or "Uninstall it.")
    if loaded:
        yield passed_check("plug-ins", f"policies: {', '.join(loaded)}")
