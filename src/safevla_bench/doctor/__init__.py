"""Is everything here that a run needs? Looked at one by one, each with its remedy.

What could crash the process (a renderer, a simulator) is tried in a process of its own, so that a crash is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safevla_bench import hosts
from safevla_bench.doctor import graphics, machine, selftest, simulators
from safevla_bench.doctor.findings import Finding, Level, error, ok
from safevla_bench.errors import PluginError

__all__ = ["Finding", "Level", "examine"]

_REHEARSAL = "fake"


def examine(host: str | None = None, out: Path | None = None, *, quick: bool = False) -> Iterator[Finding]:
    """Everything found, as it is found: the machine, the judge, the simulators, graphics, one episode of each.

    Args:
        host: look at this host alone; what is missing for it is an error. None = at whatever is installed.
        out: where a run would be written, looked at beside the current folder.
        quick: leave out what takes seconds, the rendered frame and the simulators' episodes.

    Raises:
        HostError: there is no host of that name.
    """
    if host is not None:
        hosts.host(host)
    yield from machine.findings(out)
    yield selftest.rehearsal(_REHEARSAL)
    yield from _plugins()
    here = simulators.installed()
    yield from simulators.findings(here, host)
    simulated = [name for name in simulators.hosts_in(here) if host in (None, name)]
    yield from graphics.findings(needed=bool(simulated), quick=quick or "mujoco" not in here)
    if not quick:
        yield from (selftest.episode(name) for name in _to_try(host, simulated))


def _to_try(host: str | None, simulated: list[str]) -> list[str]:
    """The hosts whose episode is tried; one of a plug-in only where it is asked for."""
    known = simulators.tested_hosts()
    return [host] if host is not None and host not in known and host != _REHEARSAL else simulated


def _plugins() -> Iterator[Finding]:
    """Hosts that load, and those that do not."""
    loaded = []
    for name in hosts.hosts():
        try:
            hosts.host(name)
            loaded.append(name)
        except PluginError as problem:
            yield error("plug-ins", problem.problem, problem.remedy or "Uninstall it.")
    yield ok("plug-ins", f"hosts: {', '.join(loaded)}")
