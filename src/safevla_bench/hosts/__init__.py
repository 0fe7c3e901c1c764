"""Hosts: simulators with a recorder attached, found by the entry points of the group ``safevla_bench.hosts``.

An entry point names a factory that returns a `Host`: `arguments` are its keyword parameters, all text and none
required. What its signature does not take is refused before it is called. Making a host imports no simulator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from safevla_bench.errors import HostError, PluginError, SafevlaError
from safevla_bench.interface import Host
from safevla_bench.text.redaction import names_a_secret

GROUP = "safevla_bench.hosts"
NO_ARGUMENTS: Mapping[str, str] = MappingProxyType({})

__all__ = ["GROUP", "host", "hosts"]


def hosts() -> tuple[str, ...]:
    """Names of the hosts that are installed here, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


def host(name: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> Host:
    """The host of that name.

    Raises:
        HostError: no installed distribution has a host of that name, or it does not take these arguments; lists those
            there are.
        PluginError: the host is installed but cannot be loaded; names its distribution.
    """
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        known = ", ".join(hosts()) or "none: install the package itself with pip"
        raise HostError(f"there is no host {name!r}", remedy=f"Hosts installed here: {known}.")
    return _load(found[0], arguments)


def _load(entry: EntryPoint, arguments: Mapping[str, str]) -> Host:
    # A plug-in's module may fail in any way while it is imported; all but our own errors are its distribution's fault.
    try:
        make: Callable[..., Host] = entry.load()
        _check(entry.name, make, arguments)
        return make(**arguments)
    except SafevlaError:
        raise
    except Exception as error:
        owner = entry.dist.name if entry.dist else "an unnamed distribution"
        problem = f"host {entry.name!r} of {owner} fails to load: {type(error).__name__}: {error}"
        raise PluginError(problem, remedy=f"Repair, upgrade or uninstall {owner}.") from error


def _check(name: str, make: Callable[..., Host], arguments: Mapping[str, str]) -> None:
    secret = next((one for one in arguments if names_a_secret(one)), None)
    if secret:
        problem = f"host {name!r} is given {secret!r} as an argument, and arguments are recorded"
        raise HostError(problem, remedy="Give a secret by an environment variable, or name a file that holds it.")
    taken = [] if not arguments else list(inspect.signature(make).parameters)
    unknown = sorted(set(arguments) - set(taken))
    if unknown:
        problem = f"host {name!r} has no argument {unknown[0]!r}"
        raise HostError(problem, remedy=f"It takes: {', '.join(taken) or 'no arguments'}.")
