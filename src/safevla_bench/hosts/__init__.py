"""Hosts: simulators with a recorder attached, found by the entry points of the group ``safevla_bench.hosts``.

An entry point names a factory without arguments that returns a `Host`; making one imports no simulator.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from safevla_bench.errors import HostError, PluginError
from safevla_bench.interface import Host

GROUP = "safevla_bench.hosts"

__all__ = ["GROUP", "host", "hosts"]


def hosts() -> tuple[str, ...]:
    """Names of the hosts that are installed here, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


def host(name: str) -> Host:
    """The host of that name.

    Raises:
        HostError: no installed distribution has a host of that name; lists those there are.
        PluginError: the host is installed but cannot be loaded; names its distribution.
    """
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        known = ", ".join(hosts()) or "none: install the package itself with pip"
        raise HostError(f"there is no host {name!r}", remedy=f"Hosts installed here: {known}.")
    return _load(found[0])


def _load(entry: EntryPoint) -> Host:
    # A plug-in's module may fail in any way while it is imported; all of them are its distribution's fault.
    try:
        made: Host = entry.load()()
    except Exception as error:
        owner = entry.dist.name if entry.dist else "an unnamed distribution"
        problem = f"host {entry.name!r} of {owner} fails to load: {type(error).__name__}: {error}"
        raise PluginError(problem, remedy=f"Repair, upgrade or uninstall {owner}.") from error
    return made
