"""Policies, found by the entry points of the group ``safevla_bench.policies``.

An entry point names a factory `make(arg, **arguments)` that returns a `Policy`: `arg` is what follows the colon of
``NAME:ARG`` (None where there is none), `arguments` are the factory's keyword parameters, all text. What the factory's
signature does not take is refused before it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from safevla_bench.errors import PluginError, PolicyError, SafevlaError
from safevla_bench.interface import Policy
from safevla_bench.policies.servers import entries
from safevla_bench.text.redaction import names_a_secret

GROUP = "safevla_bench.policies"
NO_ARGUMENTS: Mapping[str, str] = MappingProxyType({})

__all__ = ["GROUP", "policies", "policy"]


def policies() -> tuple[str, ...]:
    """Names of the policies that are installed here, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


def policy(spec: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> Policy:
    """The policy that `spec`, NAME or NAME:ARG or the name of one of the paper's entries, asks for.

    Raises:
        PolicyError: no policy has that name, or it does not take that ARG or these arguments; lists those there are.
        PluginError: the policy is installed but cannot be loaded or made; names its distribution.
    """
    name, colon, arg = spec.partition(":")
    if entries.MARK in name:
        return entries.make(spec, arguments, policy)
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        known = ", ".join(policies()) or "none: install the package itself with pip"
        raise PolicyError(f"there is no policy {name!r}", remedy=f"Policies installed here: {known}.")
    return _made(found[0], arg if colon else None, arguments)


def _made(entry: EntryPoint, arg: str | None, arguments: Mapping[str, str]) -> Policy:
    # A plug-in can fail in any way while it is imported or made; all but our own errors are its distribution's fault.
    try:
        make: Callable[..., Policy] = entry.load()
        _check(entry.name, make, arguments)
        return make(arg, **arguments)
    except SafevlaError:
        raise
    except Exception as error:
        owner = entry.dist.name if entry.dist else "an unnamed distribution"
        problem = f"policy {entry.name!r} of {owner} fails to load: {type(error).__name__}: {error}"
        raise PluginError(problem, remedy=f"Repair, upgrade or uninstall {owner}.") from error


def _check(name: str, make: Callable[..., Policy], arguments: Mapping[str, str]) -> None:
    secret = next((one for one in arguments if names_a_secret(one)), None)
    if secret:
        problem = f"policy {name!r} is given {secret!r} as an argument, and arguments are recorded"
        raise PolicyError(problem, remedy="Give a secret by an environment variable, or name a file that holds it.")
    parameters = list(inspect.signature(make).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    taken = [parameter.name for parameter in parameters]
    unknown = sorted(set(arguments) - set(taken))
    if unknown:
        problem = f"policy {name!r} has no argument {unknown[0]!r}"
        raise PolicyError(problem, remedy=f"It takes: {', '.join(taken) or 'no arguments'}.")
