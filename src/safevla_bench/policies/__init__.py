"""Make policies by name, through the entry points of the group ``safevla_bench.policies``.

An entry point names a factory `make(arg, **arguments)` that returns a `Policy`. `arg` is the text after the colon of
``NAME:ARG``, or None if there is no colon. `arguments` are the factory's keyword arguments, whose values are text.
Arguments that the factory's signature lacks are refused before the call.
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
POLICIES = PluginGroup(GROUP, "policy", "Kinds", PolicyError, "A checkpoint runs behind a server: NAME=KIND:ADDRESS. ")

_NAME = re.compile(r"[\w+.-](?:[\w .+-]*[\w+.-])?")
_LONGEST_NAME = 60

# Built-in policies that run no user code: the text after the colon and the arguments are only data.
_CODE_FREE = frozenset({"maniskill", "metaworld", "noop", "random", "replay", "scripted"})


def split_name(text: str) -> tuple[str | None, str]:
    """Return the pair (NAME, SPEC) of a text `NAME=SPEC`. For a text without a name, return (None, text).

    >>> split_name("mine=python:my_model:Policy"), split_name("replay:runs/a=b")
    (('mine', 'python:my_model:Policy'), (None, 'replay:runs/a=b'))

    Raises `PolicyError` if no specification follows the equals sign, or if `check_name` refuses the name.
    """
    name, equals, spec = text.partition("=")
    if not equals or ":" in name:  # after a colon, an equals sign is part of the specification
        return None, text
    if not spec:
        problem = f"--policy {text!r} has no policy after the equals sign"
        raise PolicyError(problem, remedy=f"Write NAME=POLICY, such as {name or 'mine'}=python:my_module:Policy.")
    return check_name(name), spec  # an empty name, as in `=spec`, is refused here


def check_name(name: str) -> str:
    """Return `name` unchanged; raise `PolicyError` if tables, file names or options cannot contain it."""
    # The pattern `_NAME` allows the characters in the remedy below, without a space at the start or the end.
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        remedy = f"Use at most {_LONGEST_NAME} characters: letters, digits, spaces and . _ - +"
        raise PolicyError(f"{name!r} cannot be the name of a policy", remedy=remedy)
    return name


def runs_code(spec: str) -> bool:
    """Return whether making the policy `spec` may run foreign code: code of the user, a plug-in or a checkpoint.
    Published entries, clients of policy servers and the policies in `_CODE_FREE` run no foreign code.
    """
    name = spec.partition(":")[0]
    is_entry = entries.MARK in name  # the names of published entries contain this mark
    # A plug-in may define a policy with a built-in name; `is_own` is true only for this package's policy.
    is_code_free = name in _CODE_FREE.union(KINDS) and POLICIES.is_own(name)
    return not is_entry and not is_code_free


def describe_call(spec: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> str | None:
    """Describe the call that makes a policy. Return None if the call runs no code, reads no file and sends no key."""
    # `spec` is NAME or NAME:ARG; `arguments` are the policy's keyword arguments as text.
    if runs_code(spec) or spec.startswith("replay:"):  # a replay reads files
        return format_call(spec, arguments)
    # A key is a secret for a server's login. The key comes from an environment variable or a file.
    # Only clients of servers send a key. Here, every policy that is not in `_CODE_FREE` is a client.
    sends_key = spec.partition(":")[0] not in _CODE_FREE and (KEY in os.environ or "key_file" in arguments)
    return f"{format_call(spec, arguments)}, which would receive your key" if sends_key else None


def make_stand_in(spec: str, arguments: Mapping[str, str]) -> Policy:
    """Return `noop`, for a dry run of `spec`. Raise `PolicyError` if the policy is unknown, or a key is an argument."""
    POLICIES.find_entry(spec.partition(":")[0], arguments)  # raises the errors; its result is not needed
    return make_policy("noop")


def make_policy(spec: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> Policy:
    """Make the policy `spec`: NAME, NAME:ARG, or the name of a published entry. Raises `PolicyError` if no policy has
    that name, the policy refuses ARG or the arguments, or the factory's result is not a policy. Raises `PluginError`,
    which names the distribution, if the factory cannot be loaded or fails.
    """
    name, colon, arg = spec.partition(":")
    if entries.MARK in name:
        return entries.make_entry_policy(spec, arguments, make_policy)  # makes the client of each server
    # `NAME:` passes the empty text, and `NAME` passes None.
    policy: Policy = POLICIES.make(name, arguments, arg if colon else None)
    missing = [attribute for attribute in ("wants", "reset", "act", "close") if not hasattr(policy, attribute)]
    if missing:
        problem = f"the policy {name!r} of {POLICIES.owner(name)} is a {type(policy).__name__} without {missing[0]!r}"
        raise PolicyError(problem, remedy="A policy needs `wants`, reset(task, seed), act(observation) and close().")
    return policy


def ask_arguments(spec: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> dict[str, str]:
    """Ask a policy's server for client arguments, and return those that `arguments` does not contain. Return {} for a
    policy without a server. Raises `ServerLostError` if the server does not answer, and the errors of `make_policy`.
    """
    if spec.partition(":")[0] not in KINDS or runs_code(spec):  # `KINDS` are the kinds of policy servers
        return {}
    # Every policy of a kind in `KINDS` is a `ChunkedPolicy`, whose `model` is the client of the server.
    with closing(cast("ChunkedPolicy", make_policy(spec, arguments))) as client:
        requested = client.model.ask_arguments()
    return {name: value for name, value in requested.items() if name not in arguments}
