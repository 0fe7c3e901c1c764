"""Make policies by name, through the entry points of the group ``safevla_bench.policies``.

An entry point names a factory `make(arg, **arguments)` that returns a `Policy`. `arg` is the text after the colon of
``NAME:ARG``, or None if there is no colon. `arguments` are the factory's keyword parameters, all text. Arguments that
the factory's signature lacks are refused before the call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import closing
from typing import cast

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Policy
from safevla_bench.plugins import NO_ARGUMENTS, PluginGroup, format_call
from safevla_bench.policies.servers import KINDS, ChunkedPolicy, entries
from safevla_bench.policies.servers.endpoint import KEY

GROUP = "safevla_bench.policies"
POLICIES = PluginGroup(GROUP, "policy", "A checkpoint runs behind a server: NAME=KIND:ADDRESS. Kinds", PolicyError)

_NAME = re.compile(r"[\w+.-](?:[\w .+-]*[\w+.-])?")
_LONGEST_NAME = 60

_PLAYED = frozenset({"maniskill", "metaworld", "noop", "random", "replay", "scripted"})
"""Built-in policies that run no code of the user: the text after the colon and the arguments are only data."""


def split_name(text: str) -> tuple[str | None, str]:
    """Return the name and the spec of `NAME=SPEC`; without a name, None and the whole text.

    >>> split_name("mine=python:my_model:Policy"), split_name("replay:runs/a=b")
    (('mine', 'python:my_model:Policy'), (None, 'replay:runs/a=b'))

    Raises `PolicyError` if no spec follows the equals sign, or if `check_name` refuses the name.
    """
    name, equals, spec = text.partition("=")
    if not equals or ":" in name:
        return None, text
    if not spec:
        problem = f"--policy {text!r} names no policy"
        raise PolicyError(problem, remedy=f"Write NAME=POLICY, such as {name or 'mine'}=python:my_module:Policy.")
    return check_name(name), spec


def check_name(name: str) -> str:
    """Return `name` unchanged; raise `PolicyError` if tables, file names or options cannot contain it."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        remedy = f"Use letters, digits, spaces and . _ - +; at most {_LONGEST_NAME} of them."
        raise PolicyError(f"{name!r} cannot be the name of a policy", remedy=remedy)
    return name


def runs_code(spec: str) -> bool:
    """Return whether making the policy of `spec` may run code from outside this package: the user's, a plug-in's or a
    checkpoint's. Only published entries, clients of policy servers and `_PLAYED` are known not to run such code.
    """
    name = spec.partition(":")[0]
    return entries.MARK not in name and not (name in _PLAYED.union(KINDS) and POLICIES.is_own(name))


def describe_call(spec: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> str | None:
    """Return the call of a policy that only a trusted file may name: it runs code, reads a file or sends a key."""
    if runs_code(spec) or spec.startswith("replay:"):
        return format_call(spec, arguments)
    has_key = KEY in os.environ or "key_file" in arguments
    is_played = spec.partition(":")[0] in _PLAYED
    return None if is_played or not has_key else f"{format_call(spec, arguments)}, which would receive your key"


def make_stand_in(spec: str, arguments: Mapping[str, str]) -> Policy:
    """Return `noop` in place of a policy that must not be made; raise `PolicyError` for unknown names or secrets."""
    POLICIES.find_entry(spec.partition(":")[0], arguments)
    return make_policy("noop")


def make_policy(spec: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> Policy:
    """Make the policy of `spec`: NAME, NAME:ARG, or the name of a published entry. Raises `PolicyError` if no policy
    has that name, the policy refuses ARG or the arguments, or the factory's result is not a policy. Raises
    `PluginError`, which names the distribution, if the factory cannot be loaded or fails.
    """
    name, colon, arg = spec.partition(":")
    if entries.MARK in name:
        return entries.make_entry_policy(spec, arguments, make_policy)
    made = POLICIES.make(name, arguments, arg if colon else None)
    lacking = [part for part in ("wants", "reset", "act", "close") if not hasattr(made, part)]
    if lacking:
        problem = f"the policy {name!r} of {POLICIES.owner(name)} is a {type(made).__name__} without {lacking[0]!r}"
        raise PolicyError(problem, remedy="A policy has `wants`, reset(task, seed), act(observation) and close().")
    policy: Policy = made
    return policy


def ask_arguments(spec: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> dict[str, str]:
    """Return the client arguments that a policy's server requests, without those already in `arguments`; {} for a
    policy without a server. Raises `ServerLostError` if the server does not answer, and the errors of `make_policy`.
    """
    if spec.partition(":")[0] not in KINDS or runs_code(spec):
        return {}
    with closing(cast("ChunkedPolicy", make_policy(spec, arguments))) as client:
        asked = client.model.ask_arguments()
    return {name: value for name, value in asked.items() if name not in arguments}
