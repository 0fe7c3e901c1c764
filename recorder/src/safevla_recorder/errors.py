"""The errors of recording, which are part of safevla-bench's tree of errors, and the secrets that no text may hold.

A message names the place, the problem and the remedy, in that order.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, fields, replace
from typing import TypeVar

_LONGEST_LINE = 2000
"""Characters of a line in a message; names may come from a stranger's file, and be of any length."""
_Error = TypeVar("_Error", bound="SafevlaError")
_WriteError = TypeVar("_WriteError", bound="FileError")


def truncate_text(text: str, most: int = 120) -> str:
    """Return the text, or its first `most` characters and an ellipsis where it is longer."""
    return text if len(text) <= most else f"{text[:most]}…"


@dataclass(frozen=True)
class Place:
    """Location of an error: any of file, line (1-based), episode, step (0-based) and field."""

    file: str | None = None
    line: int | None = None
    episode: str | None = None
    step: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        """Return the known parts joined by commas, such as `file, line 3, episode 'a'`; "" if none is known."""
        parts = [
            ("", self.file),
            ("line ", self.line),
            ("episode ", None if self.episode is None else repr(truncate_text(self.episode))),
            ("step ", self.step),
            ("field ", None if self.field is None else truncate_text(self.field)),
        ]
        return ", ".join(f"{label}{value}" for label, value in parts if value is not None)

    def fill_from(self, outer: Place) -> Place:
        """Return this place with its open fields taken from `outer`."""
        filled = {f.name: getattr(outer, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **filled)


class SafevlaError(Exception):
    """A problem that the user can solve: `problem` says what is wrong, `remedy` what to do."""

    def __init__(self, problem: str, *, remedy: str | None = None, place: Place | None = None) -> None:
        """Keep problem, remedy (None = none is known) and place; without a place, one with all fields open."""
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.place = place or Place()

    def __str__(self) -> str:
        """Return `place: problem`, then the remedy on an indented line; place and remedy only where known."""
        where, half = str(self.place), _LONGEST_LINE // 2
        lines = self.problem.split("\n")
        problem = "\n".join(line if len(line) <= 2 * half else f"{line[:half]}…{line[-half:]}" for line in lines)
        message = f"{where}: {problem}" if where else problem
        return f"{message}\n  {self.remedy}" if self.remedy else message

    def with_place(self: _Error, outer: Place) -> _Error:
        """Fill the open fields of the error's place, and return the error for raising."""
        self.place = self.place.fill_from(outer)
        return self


class RecordError(SafevlaError):
    """A trajectory record or archive that cannot be trusted."""


class RunError(SafevlaError):
    """A run folder that is missing, foreign or in the way."""


class FileError(SafevlaError):
    """A file or folder that cannot be written; what was there before is unchanged."""

    @classmethod
    def from_os_error(cls: type[_WriteError], error: OSError, place: Place) -> _WriteError:
        """Return the error for a write that the system refused at that place."""
        full = error.errno in _FULL_DISK
        remedy = (
            "Make room there, or choose another place" if full else "Choose a place that is there and can be written to"
        )
        return cls(error.strerror or str(error), remedy=f"{remedy}; what was there before is unchanged.", place=place)


_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class HostError(SafevlaError):
    """A simulator that cannot be used here."""


# Secrets


HIDDEN = "***"
_MIN_CHARACTERS = 4
"""Length of the shortest secret that is redacted; a shorter one would match inside ordinary words."""
_URL_USER = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_URL_QUERY = re.compile(r"(://[^\s'\"?#]*[?#])[^\s'\"]+")
_secrets: set[str] = set()


def learn_secret(secret: str) -> None:
    """Register a secret, so that `redact_secrets` hides it from now on; secrets under 4 characters are ignored."""
    if len(secret) >= _MIN_CHARACTERS:
        _secrets.add(secret)


def redact_secrets(text: str) -> str:
    """Return the text with learnt secrets, and users, queries and fragments of addresses, replaced by `HIDDEN`."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL_QUERY.sub(rf"\1{HIDDEN}", _URL_USER.sub(HIDDEN, text))
