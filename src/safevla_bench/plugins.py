"""Plug-ins: hosts and policies that installed distributions provide by entry points.

An entry point names a factory. Arguments that the factory's signature does not accept raise an error before the call.
"""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from safevla_bench.errors import Place, PluginError, RunError, SafevlaError
from safevla_bench.text import HIDDEN, is_secret_name, redact_secrets, suggest_names

NO_ARGUMENTS: Mapping[str, str] = MappingProxyType({})
OWN_DISTRIBUTION = "safevla-bench"


def format_call(name: str, arguments: Mapping[str, str]) -> str:
    """Format a call, such as `python:os:system(command='ls')`, without the values of secrets."""
    shown = (f"{key}={HIDDEN if is_secret_name(key) else repr(value)}" for key, value in arguments.items())
    return f"{name}({', '.join(shown)})"


# The trusted files, and the name of the running `safevla` command.
_trust: ContextVar[tuple[frozenset[Path], str]] = ContextVar("trust", default=(frozenset(), ""))


@contextmanager
def trusting(files: Iterable[Path], command: str = "") -> Iterator[None]:
    """In the `with` block, trust code and files that are named in `files`. Messages suggest `--trust` for `command`."""
    # `_trust` is a context variable, so that other threads are not affected. `token` restores the former value.
    token = _trust.set((frozenset(file.resolve() for file in files), command))
    try:
        yield
    finally:
        _trust.reset(token)


def is_trusted(named_by: Path | None) -> bool:
    """Return whether the file `named_by` may name code and files; True for None, which means the user's arguments."""
    trusted_files, _ = _trust.get()
    return named_by is None or named_by.resolve() in trusted_files


def require_trust(named_by: Path | None, uses: Sequence[str]) -> None:
    """Raise `RunError` if the file `named_by` names `uses` (calls or files) but is not trusted (see `is_trusted`)."""
    # `command` is the name of the running `safevla` command; "" = the call comes from Python code.
    if uses and not is_trusted(named_by):
        file, (_, command) = shlex.quote(str(named_by)), _trust.get()
        problem = f"the file is not trusted, so the code and files that it names were not used: {'; '.join(uses)}"
        step = f"repeat `safevla {command}` with --trust {file}" if command else "make the call within plugins.trusting"
        raise RunError(problem, remedy=f"If you trust the code and files, {step}.", place=Place(file=str(named_by)))


def refuse_secrets(owner: str, arguments: Mapping[str, str], error: type[SafevlaError]) -> None:
    """Raise `error` if an argument has a secret's name, or if its value is a secret or a URL with a user or a query."""
    for name, value in arguments.items():
        # `redact_secrets` changes a text that contains a known secret, or a URL with a user name or parameters.
        if is_secret_name(name) or redact_secrets(value) != value:
            detail = "" if is_secret_name(name) else " with a secret, or a URL with a user name or a query"
            problem = f"all arguments are written into the run, but {owner} has the argument {name!r}{detail}"
            raise error(problem, remedy="Pass the secret in an environment variable, or pass a file that contains it.")


def install_command(extra: str) -> str:
    """Return the pip command that adds an extra to this installation: from the folder, file or git address from which
    the package was installed, else from the package index. An editable installation stays editable.
    """
    try:
        # pip writes this file only if the package was not installed from an index (PEP 610).
        origin = json.loads(distribution(OWN_DISTRIBUTION).read_text("direct_url.json") or "{}")
        url = origin["url"]
    except (PackageNotFoundError, ValueError, TypeError, KeyError):
        origin, url = {}, ""
    vcs_info = origin.get("vcs_info")
    if vcs_info:  # installed from a git address
        revision = f"@{vcs_info['requested_revision']}" if "requested_revision" in vcs_info else ""
        return f"pip install 'safevla-bench[{extra}] @ git+{url}{revision}'"
    if not url.startswith("file://"):
        return f"pip install 'safevla-bench[{extra}]'"
    path = shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
    option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {option}{path}"


@dataclass(frozen=True, slots=True)
class PluginGroup:
    """A group of entry points. Messages call its plug-ins `singular` or `plural`. Errors have the class `error`."""

    group: str
    singular: str
    plural: str
    error: type[SafevlaError]
    hint: str = ""  # how to name a plug-in; precedes the list of names in messages

    def names(self) -> tuple[str, ...]:
        """Return the names of the installed plug-ins, sorted."""
        return tuple(sorted(entry_points(group=self.group).names))

    def owner(self, name: str) -> str:
        """Return the name of the distribution that provides a plug-in; "" if there is no plug-in with this name."""
        entries = tuple(entry_points(group=self.group, name=name))
        # If several distributions provide the name, return the first distribution.
        return _distribution_name(entries[0]) if entries else ""

    def is_own(self, name: str) -> bool:
        """Return whether this package provides the plug-in with that name."""
        return self.owner(name) == OWN_DISTRIBUTION

    def load(self, name: str) -> tuple[Any, ...]:
        """Return the objects of the entry points with this name; () if there are none. Raises `PluginError`."""
        # Several distributions may declare an entry point of the same name. Loading an entry point imports its module.
        entries = entry_points(group=self.group, name=name)
        return tuple(self._guard_plugin(entry, entry.load) for entry in entries)

    def find_entry(self, name: str, arguments: Mapping[str, str]) -> EntryPoint:
        """Return an entry point without loading it. Raises `error` for an unknown name or a secret argument."""
        # `arguments` are checked only for secrets; `make` checks their names.
        # Messages call the group's plug-ins `singular` and `plural`, and `hint` says how to name a plug-in.
        entries = tuple(entry_points(group=self.group, name=name))
        if not entries:
            names = self.names() or ("none (install safevla-bench itself with pip)",)
            remedy = f"{suggest_names(name, names, f'{self.hint}{self.plural} installed here')}."
            raise self.error(f"there is no {self.singular} {name!r}", remedy=remedy)
        refuse_secrets(f"{self.singular} {name!r}", arguments, self.error)
        return entries[0]

    def make(self, name: str, arguments: Mapping[str, str], *positional: object) -> Any:
        """Call the plug-in's factory with the positional arguments and with `arguments` as keywords, and return the
        result. Raises the errors of `find_entry`, and the group's `error` if the factory does not accept the arguments.
        A `SafevlaError` of the factory propagates; any other failure raises `PluginError`.
        """
        entry = self.find_entry(name, arguments)

        def load_and_call() -> Any:
            # This function includes the import, so that `_guard_plugin` reports a failing import like a failing call.
            factory: Callable[..., object] = entry.load()
            self._check_arguments(name, factory, arguments, len(positional))
            return factory(*positional, **arguments)

        return self._guard_plugin(entry, load_and_call)

    def _guard_plugin(self, entry: EntryPoint, action: Callable[[], Any]) -> Any:
        # Returns the result of `action`, which runs code of the plug-in `entry`.
        # Raises `PluginError` if this code fails. A `SafevlaError`, which has a clear message, and Ctrl-C propagate.
        try:
            return action()
        except (KeyboardInterrupt, SafevlaError):
            raise
        except BaseException as error:
            # A plug-in can raise any exception. All except `SafevlaError` are faults of the distribution.
            owner = _distribution_name(entry)
            problem = f"{self.singular} {entry.name!r} of {owner} fails: {type(error).__name__}: {error}"
            raise PluginError(problem, remedy=f"Repair, upgrade or uninstall {owner}.") from error

    def _check_arguments(
        self, name: str, factory: Callable[..., object], arguments: Mapping[str, str], positional_count: int
    ) -> None:
        # Raises the group's `error` if the factory of the plug-in `name` does not accept the keyword arguments.
        # `positional_count` is the number of arguments that are passed by position.
        if not arguments:
            return
        # Leave out the first parameters: this package passes them by position, so the user cannot pass them.
        parameters = list(inspect.signature(factory).parameters.values())[positional_count:]
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):  # `**kwargs` accepts any argument
            return
        accepted = [parameter.name for parameter in parameters]
        unknown = sorted(set(arguments) - set(accepted))
        if unknown:
            problem = f"{self.singular} {name!r} has no argument {unknown[0]!r}"
            raise self.error(problem, remedy=f"Accepted arguments: {', '.join(accepted) or 'none'}.")


def _distribution_name(entry: EntryPoint) -> str:
    # Returns the name of the installed distribution that provides the entry point.
    # If the entry point does not know the distribution, returns a phrase for messages instead.
    return entry.dist.name if entry.dist else "an unnamed distribution"
