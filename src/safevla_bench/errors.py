"""Every error a user can cause, in one tree.

    SafevlaError               the root; the command line prints it and exits 2
    ├── RecordError            a trajectory record or archive that cannot be trusted
    │   └── DamageError        a file of which something is lost: cut off, changed or gone
    ├── FormulaError           an STL text that does not parse, or names an unknown signal
    ├── SpecError              a specification library that contradicts itself
    ├── RegistryError          a task registry that contradicts itself
    │   └── UnknownTaskError   a task with no entry and no wildcard
    ├── SignalError            an active specification whose fields the record lacks
    ├── RunError               a run folder that is missing, foreign or in the way
    ├── FileError              a file or folder that cannot be written
    ├── HostError              a simulator that cannot be used here
    ├── PolicyError            a policy that cannot be made or asked
    │   ├── InvalidActionError an action that must not reach the simulator
    │   ├── ServerRefusedError a policy server that cannot be used: another key, kind or convention
    │   └── ServerLostError    a policy server that went away while it was asked
    │       └── ServerUnreachableError   a policy server that cannot be reached to begin with
    └── PluginError            an installed plug-in that fails to load

    CollectedError             several of the above at once, none hidden behind another

A message names the place, what is wrong there and the remedy, in that order.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

_LONGEST = 2000
"""Characters of a line in a message; names may come from a stranger's file, and be of any length."""


def brief(text: str, most: int = 120) -> str:
    """A text of any length as part of a message."""
    return text if len(text) <= most else f"{text[:most]}…"


def _shortened(line: str) -> str:
    """A line without its middle where it is long: what was wrong often stands behind a name."""
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]}…{line[-half:]}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an error is: any of file, line (1-based), episode, step (0-based) and field."""

    file: str | None = None
    line: int | None = None
    episode: str | None = None
    step: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        parts = [
            ("", self.file),
            ("line ", self.line),
            ("episode ", None if self.episode is None else repr(brief(self.episode))),
            ("step ", self.step),
            ("field ", None if self.field is None else brief(self.field)),
        ]
        return ", ".join(f"{label}{value}" for label, value in parts if value is not None)

    def within(self, outer: Place) -> Place:
        """This place, with whatever it leaves open taken from `outer`."""
        filled = {f.name: getattr(outer, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **filled)


class SafevlaError(Exception):
    """A problem the user can mend: `problem` says what is wrong, `remedy` what to do."""

    def __init__(self, problem: str, *, remedy: str | None = None, place: Place | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.place = place or Place()

    def __str__(self) -> str:
        where = str(self.place)
        problem = "\n".join(_shortened(line) for line in self.problem.split("\n"))
        message = f"{where}: {problem}" if where else problem
        return f"{message}\n  {self.remedy}" if self.remedy else message

    def at(self, outer: Place) -> Self:
        """Fill what the error's place leaves open, and return the error for raising."""
        self.place = self.place.within(outer)
        return self


class RecordError(SafevlaError):
    """A trajectory record or archive that cannot be trusted."""


class DamageError(RecordError):
    """A file of which something is lost, or, where its place names an episode, an episode that was lost so.

    `episodes` were lost there and are named by no other error; None = nobody knows how many.
    """

    def __init__(
        self, problem: str, *, episodes: int | None = None, remedy: str | None = None, place: Place | None = None
    ) -> None:
        super().__init__(problem, remedy=remedy, place=place)
        self.episodes = episodes


class FormulaError(SafevlaError):
    """An STL text that does not parse, or names an unknown signal; `column` is 1-based."""

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


class RunError(SafevlaError):
    """A run folder that is missing, foreign or in the way."""


class FileError(SafevlaError):
    """A file or folder that cannot be written; what was there before is unchanged."""

    @classmethod
    def of(cls, error: OSError, place: Place) -> Self:
        """What the system refused, at the place that it was asked for."""
        full = error.errno in _FULL
        remedy = (
            "Make room there, or choose another place" if full else "Choose a place that is there and can be written to"
        )
        return cls(error.strerror or str(error), remedy=f"{remedy}; what was there before is unchanged.", place=place)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class HostError(SafevlaError):
    """A simulator that cannot be used here."""


class PolicyError(SafevlaError):
    """A policy that cannot be made or asked."""


class InvalidActionError(PolicyError):
    """An action that must not reach the simulator."""


class ServerRefusedError(PolicyError):
    """A policy server that answers and cannot be used: it wants another key, is of another kind, or asks for more."""


class ServerLostError(PolicyError):
    """A policy server that went away while it was asked: the episode may be begun again."""


class ServerUnreachableError(ServerLostError):
    """A policy server that cannot be reached to begin with."""


class PluginError(SafevlaError):
    """An installed plug-in that fails to load; names its distribution."""


class CollectedError(SafevlaError):
    """Several errors at once; `errors` holds each."""

    def __init__(self, errors: Sequence[SafevlaError], *, remedy: str | None = None) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors), remedy=remedy)
