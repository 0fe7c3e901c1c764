"""The tree of errors that a user can cause.

    SafevlaError               the root; the command line prints it and exits 2
    ├── RecordError            an invalid trajectory record or archive
    │   └── DamageError        a file that lost content: cut off, changed or gone
    ├── FormulaError           an STL text that does not parse, or names an unknown signal
    ├── SpecError              a specification library that contradicts itself
    ├── RegistryError          a task registry that contradicts itself
    │   └── UnknownTaskError   a task with no entry and no wildcard
    ├── SignalError            an active specification whose fields the record lacks
    ├── RunError               a run folder that is missing, foreign or already exists
    ├── FileError              a file or folder that cannot be written
    ├── HostError              a simulator that cannot be used
    ├── PolicyError            a policy that cannot be made or queried
    │   ├── InvalidActionError an action that must not reach the simulator
    │   ├── ReplyError         a policy server's reply that its dialect cannot read
    │   ├── ServerRefusedError a policy server that cannot be used: another key, kind or convention
    │   └── ServerLostError    a policy server that was lost while it was queried
    │       ├── ServerSlowError          a policy server that answers too late
    │       └── ServerUnreachableError   a policy server that cannot be reached at all
    ├── TimeUpError            the end of the time that a run was given
    └── PluginError            an installed plug-in that fails to load

    CollectedError             several of the above at once, each listed

The root, `RecordError`, `RunError`, `FileError` and `HostError` come from safevla-recorder, whose errors are part of
this tree. A message gives the place, the problem and the remedy, in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

from safevla_recorder.errors import FileError as FileError
from safevla_recorder.errors import HostError as HostError
from safevla_recorder.errors import Place as Place
from safevla_recorder.errors import RecordError as RecordError
from safevla_recorder.errors import RunError as RunError
from safevla_recorder.errors import SafevlaError as SafevlaError
from safevla_recorder.errors import find_exception as find_exception
from safevla_recorder.errors import truncate_text as truncate_text


class DamageError(RecordError):
    """A file that lost content or, if its place names an episode, an episode that was lost this way. `episodes` counts
    the lost episodes that no other error names; None = unknown.
    """

    def __init__(
        self, problem: str, *, episodes: int | None = None, remedy: str | None = None, place: Place | None = None
    ) -> None:
        super().__init__(problem, remedy=remedy, place=place)
        self.episodes = episodes


class FormulaError(SafevlaError):
    """An STL text that does not parse, or names an unknown signal; `column` counts from 1, None = no column."""

    def __init__(
        self, problem: str, *, column: int | None = None, remedy: str | None = None, place: Place | None = None
    ) -> None:
        super().__init__(problem, remedy=remedy, place=place)
        self.column = column


class SpecError(SafevlaError):
    """A specification library that contradicts itself."""


class RegistryError(SafevlaError):
    """A task registry that contradicts itself."""


class UnknownTaskError(RegistryError):
    """A task with no entry and no wildcard."""


class SignalError(SafevlaError):
    """An active specification whose fields the record lacks, or that reaches no verdict."""


class PolicyError(SafevlaError):
    """A policy that cannot be made or queried."""


class InvalidActionError(PolicyError):
    """An action that must not reach the simulator."""


class ReplyError(PolicyError):
    """A policy server's reply that its dialect cannot read; after the first such reply the server is not used."""


class ServerRefusedError(PolicyError):
    """A policy server that answers but cannot be used: it needs another key, is of another kind, or requests more."""


class ServerLostError(PolicyError):
    """A policy server that was lost while it was queried; the episode may be restarted."""


class ServerSlowError(ServerLostError):
    """A policy server whose answer did not come in time, over a connection that stands."""


class ServerUnreachableError(ServerLostError):
    """A policy server that cannot be reached at all."""


class PluginError(SafevlaError):
    """An installed plug-in that fails to load; names its distribution."""


class TimeUpError(SafevlaError):
    """The end of the time that a run was given; its finished episodes are kept, and it can be continued."""


class CollectedError(SafevlaError):
    """Several errors at once, listed in `errors`."""

    _margin = ""

    def __init__(self, errors: Sequence[SafevlaError], *, remedy: str | None = None) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors), remedy=remedy)
