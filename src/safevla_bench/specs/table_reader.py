"""A strict reader of hand-written tables in TOML or JSON. Every error names file, row, key and remedy."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal, NoReturn, TypeVar, get_args, get_origin

import msgspec

from safevla_bench.errors import Place, SafevlaError, truncate_text

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Origin of a row: its file, line and subject, and the type of errors about it."""

    error: type[SafevlaError]
    file: str
    subject: str | None = None
    line: int | None = None

    def make_error(self, problem: str, *, field: str | None = None, remedy: str | None = None) -> SafevlaError:
        """Return an error about this row, for the caller to raise."""
        text = f"{self.subject}: {problem}" if self.subject else problem
        return self.error(text, remedy=remedy, place=Place(file=self.file, line=self.line, field=field))

    def with_subject(self, subject: object) -> RowOrigin:
        """Return the same origin with a subject for its errors."""
        return RowOrigin(self.error, self.file, truncate_text(str(subject)), self.line)


class RuleFile(msgspec.Struct, frozen=True):
    """A file of specifications or tasks in memory: its name and its text."""

    name: str
    text: str

    @classmethod
    def read(cls, path: str | Path | RuleFile) -> RuleFile:
        """Return the file's base name and its text as UTF-8; `OSError` and `UnicodeDecodeError` are passed on."""
        if isinstance(path, RuleFile):
            return path
        return cls(Path(path).name, Path(path).read_text(encoding="utf-8"))

    def __str__(self) -> str:
        return Path(self.name).name

    @property
    def stem(self) -> str:
        """The base name without its suffix."""
        return Path(self.name).stem

    def read_text(self, encoding: str) -> str:
        """Return the text, as a path does."""
        return self.text


def read_text(path: Traversable | RuleFile, origin: RowOrigin) -> str:
    """Return the text of a UTF-8 file; raise the origin's error if the file cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise origin.make_error(f"cannot be read: {error.strerror}", remedy="check the path") from None
    except UnicodeDecodeError as error:
        raise origin.make_error(f"is not UTF-8 text (byte {error.start})", remedy="save it as UTF-8") from None


def read_toml(path: Traversable | RuleFile, kind: type[T], origin: RowOrigin) -> T:
    """Return a TOML file as a struct that names its tables.

    Raises the origin's error if the file cannot be read, is not TOML, or has an unknown key or a wrong value.
    """
    try:
        tables = tomllib.loads(read_text(path, origin))
    except ValueError as error:  # a TOMLDecodeError, or an integer of absurd length
        raise origin.make_error(f"is not TOML: {error}", remedy="mend the syntax there") from None
    except RecursionError:
        raise origin.make_error("nests too deeply", remedy="a row is flat") from None
    return convert_row(tables, kind, origin)


def read_json_rows(path: Traversable | RuleFile, origin: RowOrigin) -> list[tuple[RowOrigin, object]]:
    """Return the rows of a JSON file with their origins: one object, the items of a list, or one object per line.

    Raises the origin's error if the file cannot be read or is not JSON. Rows are not checked.
    """
    text = read_text(path, origin)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        numbered = [(RowOrigin(origin.error, origin.file, line=number), line) for number, line in lines]
        return [(place, _parse_json(line, place)) for place, line in numbered]
    document = _parse_json(text, origin)
    rows = document if isinstance(document, list) else [document]
    return [(origin.with_subject(f"row {number}"), row) for number, row in enumerate(rows)]


def convert_row(row: object, kind: type[T], origin: RowOrigin) -> T:
    """Return a row as a struct; raises the origin's error, with the key, for unknown or missing keys, wrong types."""
    if not isinstance(row, Mapping):
        raise origin.make_error(
            f"a table of keys is expected, not {_TYPE_WORDS.get(type(row).__name__, type(row).__name__)}",
            remedy=f"a row holds {_list_needed_keys(kind)}, and perhaps more",
        )
    known_keys = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in row:
        if key not in known_keys:
            raise origin.make_error(
                f"unknown key {truncate_text(str(key))!r}",
                field=str(key),
                remedy=suggest_names(str(key), known_keys, "known keys"),
            )
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        at = place.partition("`$")[2]  # of "`$.threshold`", or of "`key` in `$.tags`"
        missing = re.search(r"missing required field `(\w+)`", problem)
        field = missing[1] if missing else at.strip("`.") or None
        raise origin.make_error(problem, field=field, remedy=_suggest_value(kind, field, problem)) from None


_TYPE_WORDS: Mapping[str, str] = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "null": "null",
    "object": "a table of keys",
    "str": "text in quotes",
}


def _list_needed_keys(kind: type[msgspec.Struct]) -> str:
    return ", ".join(field.encode_name for field in msgspec.structs.fields(kind) if field.required)


def _suggest_value(kind: type[msgspec.Struct], field: str | None, problem: str) -> str:
    if "missing required field" in problem:
        return f"a row holds {_list_needed_keys(kind)}, and perhaps more"
    if problem.startswith("Invalid enum value"):
        kinds = {entry.encode_name: entry.type for entry in msgspec.structs.fields(kind)}
        choices = [name for name in _literal_choices(kinds.get((field or "").split("[")[0])) if name is not None]
        return f"write one of {', '.join(map(str, choices))}"
    wanted = re.match(r"Expected `([^`]*)`", problem)
    if wanted is None:
        return f"known keys: {', '.join(entry.encode_name for entry in msgspec.structs.fields(kind))}"
    words = " or ".join(_TYPE_WORDS.get(name, name) for name in wanted[1].split(" | "))
    in_toml = f"; in TOML, begin each with [[{field}]]" if problem == "Expected `array`, got `object`" else ""
    return f"write {words}{in_toml}"


def _literal_choices(annotation: object) -> list[object]:
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return list(parts)
    return [choice for part in parts for choice in _literal_choices(part)]


def suggest_names(name: str, choices: Iterable[str], label: str) -> str:
    """Return a remedy that lists the choices after `label`, led by the one closest to `name` if one is close."""
    names = list(choices)
    close = get_close_matches(name, names, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}{label}: {', '.join(names) or 'none'}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse_json(text: str, origin: RowOrigin) -> object:
    def reject_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise origin.make_error(f"key {key!r} is repeated", field=key, remedy="keep one of them")
        return dict(pairs)

    def reject_constant(constant: str) -> NoReturn:
        raise origin.make_error(
            f"{constant} is not a number", remedy="write a finite number, or null where a key may lack"
        )

    try:
        return json.loads(text, object_pairs_hook=reject_repeated_keys, parse_constant=reject_constant)
    except json.JSONDecodeError as error:
        place = RowOrigin(origin.error, origin.file, line=origin.line or error.lineno)
        raise place.make_error(
            f"is not JSON: {error.msg} (column {error.colno})", remedy="mend the syntax there"
        ) from None
    except (ValueError, RecursionError) as error:
        raise origin.make_error(f"is not JSON: {error}", remedy="mend the syntax") from None
