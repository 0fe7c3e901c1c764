"""Hosts: simulators with a recorder attached, found by the entry points of the group ``safevla_bench.hosts``.

An entry point names a factory that returns a `Host`: `arguments` are its keyword parameters, all text and none
required. What its signature does not take is refused before it is called. Making a host imports no simulator.
"""

from __future__ import annotations

from collections.abc import Mapping

from safevla_bench.errors import HostError
from safevla_bench.interface import Host
from safevla_bench.plugins import NO_ARGUMENTS, PluginGroup

GROUP = "safevla_bench.hosts"
_HOSTS = PluginGroup(GROUP, "host", "Hosts", HostError)

__all__ = ["GROUP", "host_names", "make_host"]


def host_names() -> tuple[str, ...]:
    """Return the names of the hosts that are installed here, sorted."""
    return _HOSTS.names()


def make_host(name: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> Host:
    """Make the host of that name.

    Raises:
        HostError: no installed distribution has a host of that name, or it does not take these arguments; lists those
            there are.
        PluginError: the host is installed but cannot be loaded; names its distribution.
    """
    made: Host = _HOSTS.make(name, arguments)
    return made
