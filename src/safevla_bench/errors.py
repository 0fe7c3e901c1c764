"""The tree of errors that a user can cause.

    SafevlaError               the root; the command line prints it and exits 2
    ├── RecordError            an invalid trajectory record or archive
    │   └── DamageError        a file that lost content: it is cut off, changed or missing
    ├── FormulaError           an STL text that does not parse, or names an unknown signal
    ├── SpecError              a specification library that contradicts itself
    ├── RegistryError          a task registry that contradicts itself
    │   └── UnknownTaskError   a task without an entry in the task registry and without a matching family
    ├── SignalError            a record without the fields that an active specification reads
    ├── RunError               a run folder that is missing, contains no run or already exists
    ├── FileError              a file or folder that cannot be written
    ├── HostError              a simulator that cannot be used
    ├── PolicyError            a policy that cannot be created or queried
    │   ├── InvalidActionError an invalid action, which does not reach the simulator
    │   ├── ReplyError         a policy server's reply that cannot be read
    │   ├── ServerRefusedError a policy server that answers but cannot be used, for example with this key
    │   └── ServerLostError    a policy server that stopped answering during the queries
    │       ├── ServerSlowError          a policy server that answers too late
    │       └── ServerUnreachableError   a policy server that cannot be reached at all
    ├── TimeUpError            a run that reached its time limit
    └── PluginError            an installed plug-in that fails

    CollectedError             several errors at once

The package safevla-recorder defines the root, `RecordError`, `RunError`, `FileError` and `HostError`. A message gives
the place, the problem and the remedy, in that order.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import SupportsIndex, TypeGuard

from safevla_recorder.errors import FileError as FileError
from safevla_recorder.errors import HostError as HostError
from safevla_recorder.errors import Place as Place
from safevla_recorder.errors import RecordError as RecordError
from safevla_recorder.errors import RunError as RunError
from safevla_recorder.errors import SafevlaError as SafevlaError
from safevla_recorder.errors import find_exception as find_exception
from safevla_recorder.errors import truncate_text as truncate_text


class DamageError(RecordError):
    """A file that lost content. If the place of the error names an episode, only this episode was lost. `episodes`
    counts the lost episodes, except for episodes that other errors name; None if the number is unknown.
    """

    def __init__(
        self, problem: str, *, episodes: int | None = None, remedy: str | None = None, place: Place | None = None
    ) -> None:
        # `episodes` is the number of lost episodes; None = unknown.
        super().__init__(problem, remedy=remedy, place=place)
        self.episodes = episodes


class UndescribedRulesError(RunError):
    """Rules made in Python judged a run, so no file of the run describes them."""


class FormulaError(SafevlaError):
    """An STL text that does not parse, or names an unknown signal. `column` is the error's position from 1, or None."""

    def __init__(
        self, problem: str, *, column: int | None = None, remedy: str | None = None, place: Place | None = None
    ) -> None:
        # `column` is the position of the error in the text, from 1; None = unknown.
        super().__init__(problem, remedy=remedy, place=place)
        self.column = column


class SpecError(SafevlaError):
    """A specification library that contradicts itself."""


class RegistryError(SafevlaError):
    """A task registry that contradicts itself."""


class UnknownTaskError(RegistryError):
    """A task without an entry in the task registry and without a family of tasks that matches it."""


class SignalError(SafevlaError):
    """A record without the fields that an active specification reads, or an active specification without a verdict."""


class PolicyError(SafevlaError):
    """A policy that cannot be created or queried."""


class InvalidActionError(PolicyError):
    """An invalid action, such as an action with NaN; it does not reach the simulator."""


class ReplyError(PolicyError):
    """A policy server's reply that cannot be read. If it is the first reply, `ServerRefusedError` is raised instead."""


class ServerRefusedError(PolicyError):
    """A policy server that answers but cannot be used: it requires another key or dialect, or is of another kind."""


class ServerLostError(PolicyError):
    """A policy server that stopped answering during the queries; the episode may be restarted."""


class ServerSlowError(ServerLostError):
    """A policy server that answers too late, although its connection works."""


class ServerUnreachableError(ServerLostError):
    """A policy server that cannot be reached at all."""


class PluginError(SafevlaError):
    """An installed plug-in that fails while it is loaded or called. The message names the plug-in's distribution."""


class TimeUpError(SafevlaError):
    """A run that reached its time limit. Its finished episodes are kept, and the run can be continued."""


class CollectedError(SafevlaError):
    """Several errors at once, listed in `errors`."""

    _margin = ""  # no indentation, because the texts of `errors` are indented already

    def __init__(self, errors: Sequence[SafevlaError], *, remedy: str | None = None) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors), remedy=remedy)


def describe_cause(error: BaseException) -> str:
    """Return an error's text; for an `OSError`, only the system's reason, without its number and file."""
    # An error without a text gets the name of its class.
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def is_integer(value: object) -> TypeGuard[SupportsIndex]:
    """Return whether the value is an integer, such as Python's or NumPy's. A Boolean does not count as an integer."""
    try:
        # `operator.index` converts integers of any type to Python's, and raises `TypeError` for all other values.
        return not isinstance(value, bool) and type(operator.index(value)) is int  # type: ignore[arg-type]
    except TypeError:
        return False


def require_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise `RunError`, which lists the choices, if the value of the argument `name` is not one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise RunError(f"{name} is {value!r}", remedy=f"Choose one of: {', '.join(choices)}.")
