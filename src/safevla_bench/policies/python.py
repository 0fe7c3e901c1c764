"""`python:module:factory`: a policy of one's own in this process, without installing anything.

The factory is a class or a function that is given the `--policy-arg` values as text, or a finished object. What it
makes needs `act(observation)`; `wants`, `reset(task, seed)`, `close()` and `clip` are optional. Modules are looked for
in the current folder first.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Action, Observation, Policy, Task, Wants
from safevla_bench.policies.servers.metadata import Greeting

_FORM = "Write python:module:factory, where the factory makes an object with act(observation)."


class InProcess:
    """Somebody's object as a policy: what it lacks is filled in."""

    def __init__(self, owner: str, made: Any) -> None:
        self._made = made
        self.clip = bool(getattr(made, "clip", False))
        self.wants = getattr(made, "wants", Wants())
        if not isinstance(self.wants, Wants):
            problem = f"wants of the policy of {owner} is a {type(self.wants).__name__}"
            raise PolicyError(problem, remedy="Make it a safevla_bench.interface.Wants(cameras=..., image_size=...).")

    @property
    def calls_s(self) -> Sequence[float] | None:
        """The object's own account of its inferences, where it keeps one, as `Chunked` does."""
        own: Sequence[float] | None = getattr(self._made, "calls_s", None)
        return own

    @property
    def greeting(self) -> Greeting | None:
        """What the object says of itself, such as its checkpoint, where it keeps a mapping of that name."""
        said = getattr(self._made, "greeting", None)
        return said if isinstance(said, Mapping) else None

    def reset(self, task: Task, seed: int) -> None:
        """An episode begins, where the object wants to know."""
        if hasattr(self._made, "reset"):
            self._made.reset(task, seed)

    def act(self, observation: Observation) -> Action:
        """What the object gives; it is checked before it reaches a simulator."""
        action: Action = self._made.act(observation)
        return action

    def close(self) -> None:
        """Free what the object holds, where it can."""
        if hasattr(self._made, "close"):
            self._made.close()


def make(arg: str | None, **arguments: str) -> Policy:
    """The policy of `module:factory`.

    Raises:
        PolicyError: the module cannot be imported or has no such factory, or that fails or makes no policy; names the
            module, and the line where its code raised.
    """
    module_name, _, name = (arg or "").partition(":")
    if not module_name or not name:
        raise PolicyError(f"policy 'python' got {arg!r}, not module:factory", remedy=_FORM)
    owner = f"python:{arg}"
    made = _made(owner, _named(_imported(module_name), name), arguments)
    if not callable(getattr(made, "act", None)):
        raise PolicyError(f"{owner} gives a {type(made).__name__} without act(observation)", remedy=_FORM)
    return InProcess(owner, made)


def _imported(name: str) -> object:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _raised(f"the module {name!r} needs a module that is not here", error) from error
        remedy = f"Modules are looked for in {here} and where this Python looks: {sys.executable}."
        raise PolicyError(f"there is no module {error.name!r}", remedy=remedy) from None
    except Exception as error:  # a module may raise anything while it is imported
        raise _raised(f"the module {name!r} fails to import", error) from error


def _named(module: object, name: str) -> object:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            there = ", ".join(one for one, value in vars(module).items() if callable(value) and one[0] != "_")
            owner = getattr(module, "__name__", "?")
            raise PolicyError(f"the module {owner!r} has no {name!r}", remedy=f"It has {there or 'nothing to call'}.")
        found = getattr(found, part)
    return found


def _made(owner: str, factory: object, arguments: Mapping[str, str]) -> object:
    if hasattr(factory, "act") and not isinstance(factory, type):
        if arguments:
            problem = f"{owner} is a finished object and takes no arguments, but got {', '.join(arguments)}"
            raise PolicyError(problem, remedy="Name a function or a class to pass them to.")
        return factory
    if not callable(factory):
        raise PolicyError(f"{owner} is a {type(factory).__name__}, nothing that makes a policy", remedy=_FORM)
    _check(owner, factory, arguments)
    try:
        return factory(**arguments)
    except PolicyError:
        raise
    except Exception as error:  # a factory may raise anything
        raise _raised(f"{owner} fails", error) from error


def _check(owner: str, factory: Callable[..., object], arguments: Mapping[str, str]) -> None:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some built-in callables have none
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "no arguments"
        raise PolicyError(f"{owner}: {error}", remedy=f"It takes: {takes}. Pass them as --policy-arg.") from None


def _raised(what: str, error: Exception) -> PolicyError:
    """The error for somebody's code that raised: what, and on which line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return PolicyError(f"{what}: {type(error).__name__}: {error}{where}", remedy="Mend it there.")
