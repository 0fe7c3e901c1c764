"""Strict JSON, and the host-specific fields in it.

Faults that Python's reader lets pass are refused. Host-specific fields are all those
that the schema does not name. They are kept unchanged, ignored by scoring, and grouped by level: {"header": {…},
"steps": {"3": {…}}, "contacts": {"17": {…}}}, contacts counted through the episode.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from safevla_bench.archive.record_schema import ROW_TYPES, Contact, EpisodeOutline, Role, Step, Trajectory, check_values
from safevla_bench.errors import Place, RecordError
from safevla_bench.text import escape_controls
from safevla_recorder.channels import POSES

Path = tuple[str | int, ...]
"""Keys and indices from the root of a tree to one of its values."""
_REMEDY_JSON = "Write one JSON object a line, in UTF-8, each key once in its object."
_REMEDY_TYPE = "See `safevla validate --schema` for the fields of a record, their types and units."


def parse_json(line: bytes) -> dict[str, object]:
    """Return the object of a JSON text in UTF-8; NaN and infinity are floats, which checks of values refuse.

    Raises `RecordError` if the text is not a JSON object: malformed, a key repeated, half a surrogate pair, nested too
    deeply, or too large. The error names the episode if its id is found.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            refuse(f"the key {next(name for name, count in counts.items() if count > 1)!r} is repeated")
        return table

    def refuse(problem: str) -> NoReturn:
        raise RecordError(problem, remedy=_REMEDY_JSON, place=Place(episode=_guess_episode_id(line)))

    check_values(line)
    try:
        tree = json.loads(line.decode("utf-8"), object_pairs_hook=unique)
        if re.search(rb"\\u[dD][89a-fA-F]", line):
            json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        refuse(f"not UTF-8 at byte {error.start}")
    except UnicodeEncodeError:
        refuse("a string holds half a surrogate pair")
    except json.JSONDecodeError as error:
        refuse(f"malformed JSON at {_describe_position(error)}: {error.msg}")
    except RecursionError:
        refuse("the JSON is nested too deeply")
    except ValueError as error:  # an integer of more digits than Python converts
        refuse(f"malformed JSON: {error}")
    if not isinstance(tree, dict):
        refuse(f"an episode is a JSON object, this is {type(tree).__name__}")
    return tree


def _describe_position(error: json.JSONDecodeError) -> str:
    text = error.doc.rstrip()
    position = min(error.pos, len(text))
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return f"line {line} of it, column {column}" if line > 1 else f"column {column}"


def _guess_episode_id(line: bytes) -> str | None:
    match = re.search(rb'"episode_id"\s*:\s*"((?:[^"\\]|\\.){1,200})("?)', line)
    if not match:
        return None
    return escape_controls(match.group(1).decode("utf-8", "replace")) + ("" if match.group(2) else "…")


def find_episode_id(tree: Mapping[str, object]) -> str | None:
    """Return the episode id of a tree, control characters escaped; None if it is absent or no string."""
    name = tree.get("episode_id")
    return escape_controls(name) if isinstance(name, str) else None


def find_path(tree: object, wanted: Callable[[Path, object], bool]) -> Path | None:
    """Return the path of the first value for which `wanted(path, value)` holds, in the order of the text, depth first.

    None if none does.
    """
    waiting: list[tuple[Path, object]] = [((), tree)]
    while waiting:
        path, value = waiting.pop()
        if wanted(path, value):
            return path
        waiting.extend(reversed([((*path, key), child) for key, child in _child_values(value)]))
    return None


def _child_values(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def place_of_path(path: Path) -> Place:
    """Return the step and field of a path, such as step 3, `contacts[0].force_n`; without a step outside `steps`."""
    if len(path) > 1 and path[0] == "steps" and isinstance(path[1], int):
        return Place(step=path[1], field=_format_path(path[2:]))
    return Place(field=_format_path(path))


def _format_path(path: Path) -> str | None:
    parts = (f"[{part}]" if isinstance(part, int) else f".{escape_controls(part)}" for part in path)
    return "".join(parts).removeprefix(".") or None


# Types


def type_error(error: msgspec.ValidationError, tree: Mapping[str, object]) -> RecordError:
    """Return, not raise, the `RecordError` for a tree with a wrong type, at its place.

    msgspec's message ends in a path such as `$.steps[3].body_pos_m[...][1]`, which does not name the body. The values
    there are tried one by one to find its name.
    """
    problem, _, text = str(error).partition(" - at `")
    path = [int(part) if part.isdecimal() else part for part in re.findall(r"\.\.\.|\w+", text.lstrip("$"))]
    if "..." in path:
        at = path.index("...")
        path[at : at + 1] = _find_bad_key(tree, path[:at])
    return RecordError(problem, remedy=_REMEDY_TYPE, place=place_of_path(tuple(path)))


def parse_outline(tree: Mapping[str, object]) -> EpisodeOutline:
    """Return the outline from plain values.

    Raises `RecordError` naming the field that is missing, unknown or of wrong type.
    """
    try:
        return msgspec.convert(tree, EpisodeOutline)
    except msgspec.ValidationError as error:
        raise type_error(error, tree) from None


_VALUES: Mapping[str | int, Any] = {
    "body_roles": Role,
    **{spec.name: ROW_TYPES[spec.row_size] for spec in POSES},
    "versions": str,
}


def _find_bad_key(tree: Any, path: list[str | int]) -> list[str | int]:
    for part in path:
        tree = tree[part]
    for key, value in tree.items():
        try:
            msgspec.convert(value, _VALUES[path[-1]])
        except msgspec.ValidationError:
            return [key]
    return []


# Host-specific fields


MAX_DEPTH = 64
"""Levels of nesting; a fixed number, so that what can be read can be written, however deep in the program."""
_SCHEMA = {
    "header": frozenset(Trajectory.__struct_fields__),
    "steps": frozenset(Step.__struct_fields__),
    "contacts": frozenset(Contact.__struct_fields__),
}


def collect_extra_fields(tree: Mapping[str, Any]) -> dict[str, object]:
    """Return the host-specific fields of an episode whose types were checked, grouped by level; {} without any.

    Raises `RecordError` if a number is not finite, or if they nest too deeply.
    """
    steps: dict[str, object] = {}
    contacts: dict[str, object] = {}
    count = 0
    for t, step in enumerate(tree["steps"]):
        if rest := _unknown_fields(step, "steps"):
            steps[str(t)] = rest
        for contact in step.get("contacts", ()):
            if rest := _unknown_fields(contact, "contacts"):
                contacts[str(count)] = rest
            count += 1
    levels = {"header": _unknown_fields(tree, "header"), "steps": steps, "contacts": contacts}
    extra: dict[str, object] = {level: fields for level, fields in levels.items() if fields}
    _check_writable(extra, tree, ())
    return extra


def _unknown_fields(fields: Mapping[str, object], level: str) -> dict[str, object]:
    schema_names = _SCHEMA[level]
    return (
        {}
        if schema_names.issuperset(fields)
        else {name: value for name, value in fields.items() if name not in schema_names}
    )


def _check_writable(extra: Mapping[str, object], tree: object, base: Path) -> None:
    """Raise `RecordError` for fields that cannot be written again: a number not finite, or nested too deeply.

    The error has the fault's place in `tree`, where the fields came from, behind the path `base`.
    """
    layer: list[object] = [extra]
    for _ in range(MAX_DEPTH):
        children = [child for value in layer for child in (value.values() if isinstance(value, dict) else value)]  # type: ignore[attr-defined]
        if any(isinstance(child, float) and not math.isfinite(child) for child in children):
            path = find_path(tree, lambda _, value: isinstance(value, float) and not math.isfinite(value))
            remedy = "Write finite numbers, in host-specific fields too."
            where = place_of_path((*base, *(path or ())))
            raise RecordError("a host-specific field is not a finite number", remedy=remedy, place=where)
        layer = [child for child in children if isinstance(child, dict | list)]
        if not layer:
            return
    path = find_path(tree, lambda path, _: len(path) >= MAX_DEPTH) or ()
    problem = f"host-specific fields nest more than {MAX_DEPTH} deep"
    raise RecordError(problem, remedy="Keep such values outside the record.", place=place_of_path((*base, *path[:3])))


def parse_extra_fields(text: bytes, records: int, contacts: int) -> dict[str, object]:
    """Return the host-specific fields of an episode with `records` records and `contacts` contacts.

    Empty levels are left out. Raises `RecordError` if the text is not strict JSON, or the fields are not grouped by
    level and number, name a field of the schema, or cannot be written again.
    """
    extra = parse_json(text)
    _check_rule(extra.keys() <= _SCHEMA.keys(), "holds header, steps and contacts only")
    _check_level(extra.get("header", {}), "header")
    for level, count in (("steps", records), ("contacts", contacts)):
        numbered = extra.get(level, {})
        _check_rule(isinstance(numbered, dict), f"{level} is an object, number -> fields")
        for number, fields in numbered.items():  # type: ignore[attr-defined]
            plain = number.isascii() and number.isdecimal() and number == str(int(number[:20]))
            _check_rule(plain and int(number) < count, f"{level} has no {number!r}")
            _check_level(fields, level)
    filled = {level: fields for level, fields in extra.items() if fields}
    _check_writable(filled, extra, ("extra",))
    return filled


def _check_level(fields: object, level: str) -> None:
    _check_rule(isinstance(fields, dict), f"the fields of {level} are an object")
    for name in fields:  # type: ignore[attr-defined]
        _check_rule(name not in _SCHEMA[level], f"{name!r} is a field of the schema")


def _check_rule(holds: bool, rule: str) -> None:
    if not holds:
        remedy = 'Write {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}} with fields beyond the schema.'
        raise RecordError(f"host-specific fields: {rule}", remedy=remedy, place=Place(field="extra"))
