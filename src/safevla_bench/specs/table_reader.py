"""Reading tables that people write, TOML or JSON, strictly: every error names file, row, key and remedy."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from typing import NoReturn, TypeVar

import msgspec

from safevla_bench.errors import Place, SafevlaError, brief

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row stands, and the type of the errors about it."""

    error: type[SafevlaError]
    file: str
    subject: str | None = None
    line: int | None = None

    def fail(self, problem: str, *, field: str | None = None, remedy: str | None = None) -> SafevlaError:
        """An error about this row, ready to be raised."""
        text = f"{self.subject}: {problem}" if self.subject else problem
        return self.error(text, remedy=remedy, place=Place(file=self.file, line=self.line, field=field))

    def about(self, subject: object) -> Origin:
        """The same place, with a subject for its errors."""
        return Origin(self.error, self.file, brief(str(subject)), self.line)


def read_text(path: Traversable, origin: Origin) -> str:
    """The text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise origin.fail(f"cannot be read: {error.strerror}", remedy="check the path") from None
    except UnicodeDecodeError as error:
        raise origin.fail(f"is not UTF-8 text (byte {error.start})", remedy="save it as UTF-8") from None


def read_toml(path: Traversable, kind: type[T], origin: Origin) -> T:
    """A TOML file as a struct that names its tables."""
    try:
        tables = tomllib.loads(read_text(path, origin))
    except ValueError as error:  # a TOMLDecodeError, or an integer of absurd length
        raise origin.fail(f"is not TOML: {error}", remedy="mend the syntax there") from None
    except RecursionError:
        raise origin.fail("nests too deeply", remedy="a row is flat") from None
    return typed(tables, kind, origin)


def read_json(path: Traversable, origin: Origin) -> list[tuple[Origin, object]]:
    """The rows of a JSON file: one object, a list, or one object a line; each with its place."""
    text = read_text(path, origin)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        numbered = [(Origin(origin.error, origin.file, line=number), line) for number, line in lines]
        return [(place, _json(line, place)) for place, line in numbered]
    whole = _json(text, origin)
    rows = whole if isinstance(whole, list) else [whole]
    return [(origin.about(f"row {number}"), row) for number, row in enumerate(rows)]


def typed(row: object, kind: type[T], origin: Origin) -> T:
    """A row as a struct; unknown keys, missing keys and wrong types are errors that name the key."""
    if not isinstance(row, Mapping):
        raise origin.fail(f"a table of keys is due, not {type(row).__name__}", remedy="see the built-in files")
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in row:
        if key not in known:
            raise origin.fail(
                f"unknown key {brief(str(key))!r}", field=str(key), remedy=alternatives(str(key), known, "known keys")
            )
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        missing = re.search(r"missing required field `(\w+)`", problem)
        field = missing[1] if missing else at.strip("`.") or None
        raise origin.fail(problem, field=field, remedy=f"known keys: {', '.join(known)}") from None


def alternatives(given: str, known: Iterable[str], label: str) -> str:
    """A remedy: what was perhaps meant, and what there is."""
    names = list(known)
    close = get_close_matches(given, names, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}{label}: {', '.join(names) or 'none'}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json(text: str, origin: Origin) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise origin.fail(f"key {key!r} is repeated", field=key, remedy="keep one of them")
        return dict(pairs)

    def reject(constant: str) -> NoReturn:
        raise origin.fail(f"{constant} is no number", remedy="write a finite number, or null where a key may lack")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=reject)
    except json.JSONDecodeError as error:
        place = Origin(origin.error, origin.file, line=origin.line or error.lineno)
        raise place.fail(f"is not JSON: {error.msg} (column {error.colno})", remedy="mend the syntax there") from None
    except (ValueError, RecursionError) as error:
        raise origin.fail(f"is not JSON: {error}", remedy="mend the syntax") from None
