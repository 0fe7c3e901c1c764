"""A strict reader of hand-written tables in TOML or JSON. Every error names the file, the row, the key and a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

import msgspec

from safevla_bench import files
from safevla_bench.errors import Place, SafevlaError, truncate_text
from safevla_bench.files import decode_json
from safevla_bench.memory import limit_memory
from safevla_bench.text import explain_mismatch, load_json, require_unique_keys, suggest_names

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """The origin of a row: its file, line and subject (such as an id), and the type of errors about this row."""

    error: type[SafevlaError]
    file: str
    subject: str | None = None
    line: int | None = None

    def make_error(self, problem: str, *, field: str | None = None, remedy: str | None = None) -> SafevlaError:
        """Return an error about this row, for the caller to raise."""
        # `error` is the class of the error. `subject` is what the error is about, such as an id.
        # `field` is the key in the row.
        text = f"{self.subject}: {problem}" if self.subject else problem
        return self.error(text, remedy=remedy, place=Place(file=self.file, line=self.line, field=field))

    def with_subject(self, subject: object) -> RowOrigin:
        """Return the same origin with a subject for its errors."""
        # An origin is the place (file, line) that error messages show; a subject is, for example, an id.
        return RowOrigin(self.error, self.file, truncate_text(str(subject)), self.line)


class RuleFile(msgspec.Struct, frozen=True):
    """A file of specifications or tasks that is held in memory: its name and its text."""

    name: str
    text: str

    @classmethod
    def read(cls, path: str | Path | RuleFile) -> RuleFile:
        """Read a UTF-8 file. The result's `name` is the base name. `OSError` and `UnicodeDecodeError` propagate."""
        # A `RuleFile` holds a file's name and text, so that the file is read only once.
        # If `path` is a `RuleFile` already, return it.
        if isinstance(path, RuleFile):
            return path
        return cls(Path(path).name, files.read_text(Path(path)))

    def __str__(self) -> str:
        # Messages show the file's name without its folder.
        return Path(self.name).name

    @property
    def stem(self) -> str:
        """The file's base name without the suffix."""
        return Path(self.name).stem

    def read_text(self, encoding: str) -> str:
        """Return the text. The method has the signature of `Path.read_text`."""
        # So functions that read a `Path` accept a `RuleFile`, too.
        # `encoding` has no effect, because the text is decoded already.
        return self.text


def read_text(path: Traversable | RuleFile, origin: RowOrigin) -> str:
    """Return the text of a UTF-8 file. Raises `origin.error` if the file cannot be read or is not UTF-8."""
    # `origin` is the place that error messages show, and `origin.error` is the class of the errors.
    try:
        return files.read_text(path) if isinstance(path, Path) else path.read_text(encoding="utf-8")
    except OSError as error:
        raise origin.make_error(f"the file cannot be read: {error.strerror}", remedy="check the path") from None
    except UnicodeDecodeError as error:
        raise origin.make_error(f"the file is not UTF-8 (byte {error.start})", remedy="save as UTF-8") from None


def read_toml(path: Traversable | RuleFile, kind: type[T], origin: RowOrigin) -> T:
    """Return the tables of a TOML file as a struct of type `kind`. Raises `origin.error` if the file cannot be
    read, is not TOML, or has an unknown key or an invalid value.
    """
    # `origin` is the place that error messages show, and `origin.error` is the class of the errors.
    # `limit_memory` turns exhausted memory into an error.
    try:
        with limit_memory(origin.file):
            return convert_row(files.parse_toml(read_text(path, origin)), kind, origin)
    except ValueError as error:  # a TOMLDecodeError, or an extremely long integer
        raise origin.make_error(f"the text is not TOML: {error}", remedy="correct the syntax at this place") from None
    except RecursionError:
        raise origin.make_error("the tables nest too deeply", remedy="write flat rows only") from None


def read_json_rows(path: Traversable | RuleFile, origin: RowOrigin) -> list[tuple[RowOrigin, object]]:
    """Return the rows of a JSON file, each with its origin. The file holds one row or a list of rows; a .jsonl file
    holds one row per line. Raises `origin.error` if the file cannot be read or is not JSON.
    """
    # An origin is the place (file, line or row) that error messages show. `origin.error` is the class of the errors.
    with limit_memory(origin.file):
        text = read_text(path, origin)
        if origin.file.endswith(".jsonl"):
            lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
            line_origins = [(RowOrigin(origin.error, origin.file, line=number), line) for number, line in lines]
            return [(line_origin, _parse_json(line, line_origin)) for line_origin, line in line_origins]
        document = _parse_json(text, origin)
        rows = document if isinstance(document, list) else [document]
        return [(origin.with_subject(f"row {number}"), row) for number, row in enumerate(rows)]


def _parse_json(text: str, origin: RowOrigin) -> object:
    # Return the value of a JSON text, and raise `origin.error` if it is not JSON or an object repeats a key.
    try:
        load_json(text, object_pairs_hook=require_unique_keys)  # msgspec keeps the last value of a repeated key
        return decode_json(text, object)
    except (ValueError, RecursionError) as error:
        raise origin.make_error(f"the text is not JSON: {error}", remedy="correct the syntax at this place") from None


_SYNONYMS = {"formula": "stl", "id": "spec_id", "name": "spec_id", "limit": "threshold"}


@cache
def _types_of_keys(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    # Maps each key to the text of its type. Cached because `fields` is slow.
    # `kind` is the class of a row. The fields of this class are the keys of a table.
    return {field.encode_name: str(field.type) for field in msgspec.structs.fields(kind)}


def convert_row(row: object, kind: type[T], origin: RowOrigin) -> T:
    """Return a row as a struct of type `kind`. Raises `origin.error`, which names the key, if a key is unknown or
    missing, or a value has the wrong type.
    """
    # `origin` is the place that error messages show, and `origin.error` is the class of the errors.
    # `_SYNONYMS` maps likely mistakes to the correct keys.
    types = _types_of_keys(kind)
    key_list = f"known keys: {', '.join(types)}"
    if not isinstance(row, Mapping):
        problem = f"a table of keys is expected, not {type(row).__name__}"
        raise origin.make_error(problem, remedy=key_list)
    if unknown := next((str(key) for key in row if key not in types), None):
        key = _SYNONYMS.get(unknown)
        remedy = f"did you mean {key!r}? {key_list}" if key in types else suggest_names(unknown, types, "known keys")
        raise origin.make_error(f"unknown key {truncate_text(unknown)!r}", field=unknown, remedy=remedy)
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        # `path` is the place of the wrong value, such as `$.threshold`.
        problem, path = explain_mismatch(error)
        field_match = re.fullmatch(r"the key '(\w+)' is missing", problem) or re.match(r"\$\.(\w+)", path)
        field = field_match[1] if field_match else None
        # If the field's type is `Literal['a', 'b']`, the choices are a and b.
        choices = re.findall(r"'(\w+)'", types.get(field or "", "").partition("Literal")[2])
        remedy = f"write one of {', '.join(choices)}" if choices else key_list
        if field and problem.startswith("a list is expected"):
            is_list_of_tables = kind.__name__.endswith("File") and isinstance(row[field], Mapping)
            remedy = f"write `[[{field}]]` instead of `[{field}]`" if is_list_of_tables else f"write {field} = […]"
        elif "number" in problem and problem.endswith("not text"):
            remedy = "write a number, without quotation marks or unit"
        raise origin.make_error(problem, field=field, remedy=remedy) from None
