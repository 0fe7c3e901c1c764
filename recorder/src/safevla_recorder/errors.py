"""Errors of recording, the base class of safevla-bench's errors, and functions that clean texts for display.

A message gives the place, the problem and the remedy, in this order. Texts that are shown or written contain no secrets
and no invisible characters.
"""

from __future__ import annotations

import errno
import logging
import re
import signal
import traceback
import unicodedata
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Iterator, TypeVar

_LONGEST_LINE = 2000  # maximum length of a line in a message; names from foreign files can be long
_Error = TypeVar("_Error", bound="SafevlaError")
_WriteError = TypeVar("_WriteError", bound="FileError")


def truncate_text(text: str, most: int = 120) -> str:
    """Return the text. If it has more than `most` characters, cut it there and add an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"


def indent_further(text: str, margin: str = "  ") -> str:
    """Indent all lines except the first, unless they begin with `margin` already. Return the text."""
    # Because of the indent, a name with a line break cannot imitate a line of a message.
    first, *others = text.split("\n")
    return "\n".join([first, *(line if line.startswith(margin) else margin + line for line in others)])


@dataclass(frozen=True)
class Place:
    """The location of an error: file, line (from 1), episode, step (from 0) and field; None = unknown."""

    file: str | None = None
    line: int | None = None
    episode: str | None = None
    step: int | None = None
    field: str | None = None
    policy: str | None = None  # the episode's policy, which the text leaves out

    def __str__(self) -> str:
        """Return the known parts joined by commas, such as `file, line 3, episode 'a'`; "" if all are unknown."""
        parts = [
            ("", self.file),
            ("line ", self.line),
            ("episode ", None if self.episode is None else repr(truncate_text(self.episode))),
            ("step ", self.step),
            ("field ", None if self.field is None else truncate_text(self.field)),
        ]
        return ", ".join(f"{label}{value}" for label, value in parts if value is not None)

    def fill_from(self, outer: Place) -> Place:
        """Return a copy of this place with missing fields taken from `outer`."""
        # `outer` is the place that the calling code knows, such as the file.
        filled = {f.name: getattr(outer, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **filled)


class SafevlaError(Exception):
    """A problem that the user can solve: `problem` says what is wrong, and `remedy` what to do."""

    _margin = "  "

    def __init__(self, problem: str, *, remedy: str | None = None, place: Place | None = None) -> None:
        # `remedy` is None if there is no advice. `place` says where the error is, such as a file and a line.
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.place = place or Place()

    def __str__(self) -> str:
        """Return `place: problem`, and the remedy on an indented line. A missing place or remedy is left out."""
        problem = "\n".join(map(_cut_long_line, self.problem.split("\n")))
        place = str(self.place)
        message = f"{place}: {problem}" if place else problem
        # `_margin` is the indent of all lines except the first.
        return indent_further(f"{message}\n  {self.remedy}" if self.remedy else message, self._margin)

    def with_place(self: _Error, outer: Place) -> _Error:
        """Fill in the missing fields of the error's place from `outer`; return the error."""
        self.place = self.place.fill_from(outer)
        return self


def _cut_long_line(line: str) -> str:
    # Return the line. If it is longer than `_LONGEST_LINE`, replace its middle by an ellipsis.
    half = _LONGEST_LINE // 2
    return line if len(line) <= 2 * half else f"{line[:half]}…{line[-half:]}"


class RecordError(SafevlaError):
    """A trajectory record or archive is invalid."""


class RunError(SafevlaError):
    """A run folder is missing, already exists, or contains files that do not belong to a run."""


class FileError(SafevlaError):
    """A file or folder cannot be written; existing files stay unchanged."""

    @classmethod
    def from_os_error(cls: type[_WriteError], error: OSError, place: Place) -> _WriteError:
        """Return an error that says why the operating system could not write to `place`."""
        problem, remedy = error.strerror or str(error), "Choose a path in a folder that can be written to"
        if error.errno in _FULL_DISK:  # the disk or the quota is full, or the file is too large
            remedy = "Free disk space, or choose another path"
        if error.errno == errno.EEXIST:
            problem, remedy = "a file with this name exists already", "Choose another path"
        return cls(problem, remedy=f"{remedy}; existing files are unchanged.", place=place)


_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Convert any `OSError` in the block to a `FileError` that names the path; other errors propagate."""
    try:
        yield
    except OSError as error:
        raise FileError.from_os_error(error, Place(file=str(path))) from None


class HostError(SafevlaError):
    """A simulator cannot be used on this machine or for this purpose."""


# Tracebacks


_HEADER, _IGNORED = "Traceback (most recent call last):", "Exception ignored"
_GROUP_MARGIN = re.compile(r"^ *[|+](?!\w) ?")  # the margin that Python prints left of the errors of an exception group
_OWN_ERROR = re.compile(r"safevla_(?:bench|recorder)\.errors\.\w+: ")
# Patterns of lines that may name the exception. The most reliable pattern is first.
_EXCEPTION_LINES = (
    re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit|Warning)(?:: |$)"),
    re.compile(r"[A-Za-z_][\w.]*: "),
    re.compile(r"\S"),
    re.compile(r"\s*\S"),
)


def find_exception(text: str) -> tuple[str, str]:
    r"""Return the line of a traceback that names the exception, and the exception's remedy ("" if it has none).

    Use the last traceback of an exception that Python did not ignore. If Python ignored all, use the last traceback.
    Without a traceback, return the last line that begins with an exception's name, or the last line without indent.

    >>> find_exception("RuntimeError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`.")
    ('RuntimeError: CUDA error: out of memory', '')
    """
    # The lines without the margin that Python prints for exception groups. A header is the first line of a traceback.
    lines = [_GROUP_MARGIN.sub("", line) for line in text.splitlines()]
    header_numbers = [number for number, line in enumerate(lines) if line.lstrip().startswith(_HEADER)]
    # Python writes the line "Exception ignored" before the traceback of an exception that it ignores.
    ignored_numbers = {number + 1 for number, line in enumerate(lines) if line.lstrip().startswith(_IGNORED)}
    raised_numbers = [number for number in header_numbers if number not in ignored_numbers]
    if header_numbers:
        header = (raised_numbers or header_numbers)[-1]
        margin = _count_leading_blanks(lines[header])
        lines_below = iter([line for line in lines[header + 1 :] if line.strip()])
        # The frames of a traceback are indented more than the header and the line with the exception's name.
        exception_line = next((line.strip() for line in lines_below if _count_leading_blanks(line) <= margin), "")
        own_error = _OWN_ERROR.match(exception_line)
        if own_error is not None:  # an error of this project, whose remedy is on the indented lines below
            remedy = takewhile(lambda line: _count_leading_blanks(line) > margin, lines_below)
            return exception_line[own_error.end() :], " ".join(map(str.strip, remedy))
        if exception_line:
            return exception_line, ""
    for pattern in _EXCEPTION_LINES:
        matching_lines = [line for line in lines if pattern.match(line)]
        if matching_lines:
            return matching_lines[-1].strip(), ""
    return "", ""


def is_from_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised the error. If so, the interrupted code is not the cause."""
    # If a handler raised the error, one of the functions in the traceback is a handler.
    # Functions are compared by their code objects.
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    # A handler is a function, or an object whose class defines `__call__`.
    handler_codes = {
        getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
        for handler in handlers
        if callable(handler)
    }
    return any(frame.f_code in handler_codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _count_leading_blanks(line: str) -> int:
    return len(line) - len(line.lstrip())


# Secrets


HIDDEN = "***"
_MIN_CHARACTERS = 4  # minimum length of a secret; shorter secrets would match inside ordinary words
_ADDRESS = re.compile(r"://[^\s'\"]*")
_AUTHORITY = re.compile(r"[^/?#]*")
_PASSWORD = re.compile(r"[^/?#\[:]+:\d*[^/?#\d]")  # if only digits follow a colon, they are a port, not a password
_secrets: set[str] = set()


def learn_secret(secret: str) -> None:
    """Register a secret, which `redact_secrets` then replaces. Ignore secrets of fewer than 4 characters."""
    if len(secret) >= _MIN_CHARACTERS:
        _secrets.add(secret)


def redact_secrets(text: str) -> str:
    """Replace registered secrets, and the user names, passwords, parameters and fragments of URLs, with `HIDDEN`."""
    # The longest secrets are replaced first, because a secret may contain a shorter secret.
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _ADDRESS.sub(_redact_address, text)


def _redact_address(match: re.Match[str]) -> str:
    # Return a matched part of a URL, from "://" to the next blank or quotation mark, without its secrets.
    address = re.sub(r"(?<=[?#;]).+", HIDDEN, match[0], count=1)  # hide everything after the first ?, # or ;
    # An address may contain other addresses, such as the target of a redirection.
    return "://".join(map(_redact_user, address.split("://")))


def _redact_user(after_scheme: str) -> str:
    # Hide the user name and password, which end with the last @ before the path.
    # `after_scheme` is the part of a URL after "://", such as `user:password@host/path`.
    # The index of the @; negative = no @ precedes the path, 0 = nothing precedes the @.
    at_sign = _AUTHORITY.match(after_scheme)[0].rfind("@")  # type: ignore[index]
    if at_sign <= 0 and _PASSWORD.match(after_scheme):
        at_sign = after_scheme.rfind("@")  # the password contains an unescaped slash
    return HIDDEN + after_scheme[at_sign:] if at_sign > 0 else after_scheme


# Invisible characters


# Invisible characters that Python calls printable: fillers, blank letters, and characters that renderers ignore.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00013441\U00013442\U00016fe4\U0001d159\U000e0000-\U000e0fff]"
)


def escape_controls(text: str) -> str:
    """Replace every character that is not visible with its escape sequence.

    Escapes controls, bidirectional overrides and other format characters, line separators, blank letters, characters
    that Unicode lets renderers ignore, lone surrogates and unassigned code points. Keeps spaces of any width.
    """
    if text.isprintable() and not _BLANK.search(text):  # fast path: nothing to escape
        return text
    return "".join(c if is_visible(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def is_visible(character: str) -> bool:
    """Return whether a character is visible or a space."""
    if character.isprintable():
        return _BLANK.match(character) is None  # Python calls some invisible characters printable
    return unicodedata.category(character) == "Zs"  # a space; Python calls only the ASCII space printable


def escape_surrogates(text: str) -> str:
    r"""Replace lone surrogates, which UTF-8 cannot encode, with escape sequences such as `\udce9`."""
    return text.encode("utf-8", "backslashreplace").decode()


def get_logger(name: str) -> logging.Logger:
    """Return a module's logger, which redacts secrets and escapes invisible characters in its messages."""
    logger = logging.getLogger(name)
    logger.addFilter(_clean_message)  # the filter changes each message before it is logged
    return logger


def _clean_message(record: logging.LogRecord) -> bool:
    # A filter for logging: redact secrets in the message, escape invisible characters,
    # and indent all lines except the first. The result True means that the record is logged.
    lines = indent_further(redact_secrets(record.getMessage())).split("\n")
    # The message already contains its arguments, so logging must not insert arguments again.
    record.msg, record.args = "\n".join(map(escape_controls, lines)), None
    return True
