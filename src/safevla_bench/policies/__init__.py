"""Policies, found by the entry points of the group ``safevla_bench.policies``.

An entry point names a factory `make(arg, **arguments)` that returns a `Policy`: `arg` is what follows the colon of
``NAME:ARG`` (None where there is none), `arguments` are the factory's keyword parameters, all text. What the factory's
signature does not take is refused before it is called.
"""

from __future__ import annotations

from collections.abc import Mapping

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Policy
from safevla_bench.plugins import NO_ARGUMENTS, PluginGroup
from safevla_bench.policies.servers import entries

GROUP = "safevla_bench.policies"
_POLICIES = PluginGroup(GROUP, "policy", "Policies", PolicyError)

__all__ = ["GROUP", "make_policy", "policy_names"]


def policy_names() -> tuple[str, ...]:
    """Return the names of the policies that are installed here, sorted."""
    return _POLICIES.names()


def make_policy(spec: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> Policy:
    """Make the policy that `spec` asks for: NAME, NAME:ARG, or the name of one of the paper's entries.

    Raises:
        PolicyError: no policy has that name, or it does not take that ARG or these arguments; lists those there are.
        PluginError: the policy is installed but cannot be loaded or made; names its distribution.
    """
    name, colon, arg = spec.partition(":")
    if entries.MARK in name:
        return entries.make_entry_policy(spec, arguments, make_policy)
    made: Policy = _POLICIES.make(name, arguments, arg if colon else None)
    return made
