"""Host-specific fields: all fields that the schema does not name. They are kept unchanged and ignored by scoring.

They are grouped by level: {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}}, contacts counted through the
episode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from safevla_bench.archive.record_schema import Contact, Step, Trajectory
from safevla_bench.archive.strict_json import Path, find_path, parse_json, place_of_path
from safevla_bench.errors import Place, RecordError

MAX_DEPTH = 64
"""Levels of nesting; a fixed number, so that what can be read can be written, however deep in the program."""
_SCHEMA = {
    "header": frozenset(Trajectory.__struct_fields__),
    "steps": frozenset(Step.__struct_fields__),
    "contacts": frozenset(Contact.__struct_fields__),
}


def collect_extra_fields(tree: Mapping[str, Any]) -> dict[str, object]:
    """Return the host-specific fields of an episode whose types were checked.

    Raises `RecordError` where a number is not finite, or where they nest too deeply.
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
    """Refuse fields that cannot be written again, at their place in the tree that they came from."""
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


def format_extra_fields(extra: Mapping[str, object]) -> str:
    """Return host-specific fields as JSON text; integers may have any size."""
    return json.dumps(extra, ensure_ascii=False, allow_nan=False)


def parse_extra_fields(text: bytes, records: int, contacts: int) -> dict[str, object]:
    """Return the host-specific fields of an episode with `records` records and `contacts` contacts.

    Raises `RecordError` where they are not of the shape above, name a field of the schema, or cannot be written again.
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
