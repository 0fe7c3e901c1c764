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
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from safevla_bench.archive.record_schema import Contact, EpisodeOutline, Step, Trajectory, check_values
from safevla_bench.errors import Place, RecordError
from safevla_bench.text import escape_controls

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
        refuse(f"malformed JSON at line {error.lineno} of it, column {error.colno}: {error.msg}")
    except RecursionError:
        refuse("the JSON is nested too deeply")
    except ValueError as error:  # an integer of more digits than Python converts
        refuse(f"malformed JSON: {error}")
    if not isinstance(tree, dict):
        refuse(f"an episode is a JSON object, this is {type(tree).__name__}")
    return tree


def _guess_episode_id(line: bytes) -> str | None:
    match = re.search(rb'"episode_id"\s*:\s*"((?:[^"\\]|\\.){1,200})("?)', line)
    if not match:
        return None
    return escape_controls(match.group(1).decode("utf-8", "replace")) + ("" if match.group(2) else "…")


def find_episode_id(tree: Mapping[str, object]) -> str | None:
    """Return the episode id of a tree, control characters escaped; None if it is absent or no string."""
    name = tree.get("episode_id")
    return escape_controls(name) if isinstance(name, str) else None


# Types


def type_error(error: msgspec.ValidationError) -> RecordError:
    """Return, not raise, the `RecordError` of a wrong type, at its place.

    msgspec's message ends in a path such as `$.steps[3].body_pos_m[...][1]`, which does not name the body.
    """
    problem, _, text = str(error).partition(" - at `")
    path = re.findall(r"\w+", text.partition("[...]")[0])
    step = int(path[1]) if len(path) > 1 and path[0] == "steps" else None
    names = path if step is None else path[2:]
    field = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in names).removeprefix(".")
    return RecordError(problem, remedy=_REMEDY_TYPE, place=Place(step=step, field=field or None))


def parse_outline(tree: Mapping[str, object]) -> EpisodeOutline:
    """Return the outline from plain values.

    Raises `RecordError` naming the field that is missing, unknown or of wrong type.
    """
    try:
        return msgspec.convert(tree, EpisodeOutline)
    except msgspec.ValidationError as error:
        raise type_error(error) from None


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
    return _require_writable({level: fields for level, fields in levels.items() if fields})


def _unknown_fields(fields: Mapping[str, object], level: str) -> dict[str, object]:
    names = _SCHEMA[level]
    return {} if names.issuperset(fields) else {name: value for name, value in fields.items() if name not in names}


def _require_writable(extra: dict[str, object]) -> dict[str, object]:
    """Return the fields; raise `RecordError` if they cannot be written again: not finite, or nested too deeply."""
    layer: list[object] = [extra]
    for _ in range(MAX_DEPTH):
        layer = [child for value in layer for child in (value.values() if isinstance(value, dict) else value)]  # type: ignore[attr-defined]
        numbers = [child for child in layer if isinstance(child, float)]
        _check_rule(all(map(math.isfinite, numbers)), "one is not a finite number")
        layer = [child for child in layer if isinstance(child, dict | list)]
    _check_rule(not layer, f"they nest more than {MAX_DEPTH} deep")
    return extra


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
    return _require_writable({level: fields for level, fields in extra.items() if fields})


def _check_level(fields: object, level: str) -> None:
    _check_rule(isinstance(fields, dict), f"the fields of {level} are an object")
    for name in fields:  # type: ignore[attr-defined]
        _check_rule(name not in _SCHEMA[level], f"{name!r} is a field of the schema")


def _check_rule(holds: bool, rule: str) -> None:
    if not holds:
        remedy = 'Write {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}} with fields beyond the schema.'
        raise RecordError(f"host-specific fields: {rule}", remedy=remedy, place=Place(field="extra"))
