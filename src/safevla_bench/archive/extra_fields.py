"""Host-specific fields: whatever the schema does not name, kept as it came and ignored by scoring.

They stand apart by level: {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}}, contacts counted through the
episode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from safevla_bench.archive.record_schema import Contact, Step, Trajectory
from safevla_bench.archive.strict_json import Path, find, parse, place
from safevla_bench.errors import Place, RecordError

MAX_DEPTH = 64
"""Levels of nesting; a fixed number, so that what can be read can be written, however deep in the program."""
_SCHEMA = {
    "header": frozenset(Trajectory.__struct_fields__),
    "steps": frozenset(Step.__struct_fields__),
    "contacts": frozenset(Contact.__struct_fields__),
}


def gather(tree: Mapping[str, Any]) -> dict[str, object]:
    """The host-specific fields of an episode whose types are right.

    Raises `RecordError` where a number is not finite, or where they nest too deeply.
    """
    steps: dict[str, object] = {}
    contacts: dict[str, object] = {}
    count = 0
    for t, step in enumerate(tree["steps"]):
        if rest := _rest(step, "steps"):
            steps[str(t)] = rest
        for contact in step.get("contacts", ()):
            if rest := _rest(contact, "contacts"):
                contacts[str(count)] = rest
            count += 1
    found = {"header": _rest(tree, "header"), "steps": steps, "contacts": contacts}
    kept: dict[str, object] = {level: fields for level, fields in found.items() if fields}
    _check(kept, tree, ())
    return kept


def _rest(given: Mapping[str, object], level: str) -> dict[str, object]:
    known = _SCHEMA[level]
    return {} if known.issuperset(given) else {name: value for name, value in given.items() if name not in known}


def _check(extra: Mapping[str, object], tree: object, base: Path) -> None:
    """Refuse what cannot be written again, at its place in the tree that it came from."""
    layer: list[object] = [extra]
    for _ in range(MAX_DEPTH):
        children = [child for value in layer for child in (value.values() if isinstance(value, dict) else value)]  # type: ignore[attr-defined]
        if any(isinstance(child, float) and not math.isfinite(child) for child in children):
            path = find(tree, lambda _, value: isinstance(value, float) and not math.isfinite(value))
            remedy = "Write finite numbers, in host-specific fields too."
            where = place((*base, *(path or ())))
            raise RecordError("a host-specific field is not a finite number", remedy=remedy, place=where)
        layer = [child for child in children if isinstance(child, dict | list)]
        if not layer:
            return
    path = find(tree, lambda path, _: len(path) >= MAX_DEPTH) or ()
    problem = f"host-specific fields nest more than {MAX_DEPTH} deep"
    raise RecordError(problem, remedy="Keep such values outside the record.", place=place((*base, *path[:3])))


def to_text(extra: Mapping[str, object]) -> str:
    """Host-specific fields as JSON text, integers of any size."""
    return json.dumps(extra, ensure_ascii=False, allow_nan=False)


def from_text(text: bytes, records: int, contacts: int) -> dict[str, object]:
    """Host-specific fields of an episode of so many records and contacts.

    Raises `RecordError` where they are not of the shape above, name a field of the schema, or cannot be written again.
    """
    extra = parse(text)
    _require(extra.keys() <= _SCHEMA.keys(), "holds header, steps and contacts only")
    _level(extra.get("header", {}), "header")
    for level, count in (("steps", records), ("contacts", contacts)):
        numbered = extra.get(level, {})
        _require(isinstance(numbered, dict), f"{level} is an object, number -> fields")
        for number, fields in numbered.items():  # type: ignore[attr-defined]
            plain = number.isascii() and number.isdecimal() and number == str(int(number[:20]))
            _require(plain and int(number) < count, f"{level} has no {number!r}")
            _level(fields, level)
    kept = {level: fields for level, fields in extra.items() if fields}
    _check(kept, extra, ("extra",))
    return kept


def _level(fields: object, level: str) -> None:
    _require(isinstance(fields, dict), f"the fields of {level} are an object")
    for name in fields:  # type: ignore[attr-defined]
        _require(name not in _SCHEMA[level], f"{name!r} is a field of the schema")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        remedy = 'Write {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}} with fields beyond the schema.'
        raise RecordError(f"host-specific fields: {rule}", remedy=remedy, place=Place(field="extra"))
