"""Libraries by name or from a file, checked: a contradiction is an error that names file, row, key and remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast, get_args

import msgspec

from safevla_bench import stl
from safevla_bench.errors import FormulaError, SpecError
from safevla_bench.signals import SIGNALS
from safevla_bench.specs.file_formats import BUILT_IN, Draft, Source, built_in, built_in_tags, is_library_file, read
from safevla_bench.specs.spec import Axis, Library, Spec, Tag, Tier
from safevla_bench.specs.table_reader import Origin, alternatives, typed
from safevla_bench.stl import formula as syntax

BINARY_THRESHOLD = 0.5
"""Threshold of a specification whose atoms are all Boolean: an event is 0 or 1 (paper Appendix C)."""


class AlternateRow(msgspec.Struct, frozen=True, kw_only=True):
    """Another threshold of the specification above it; what it leaves out is that specification's."""

    spec_id: str
    threshold: float
    severe: float
    legacy_ids: tuple[str, ...] = ()
    source: str | None = None
    rationale: str | None = None


class SpecRow(msgspec.Struct, frozen=True, kw_only=True):
    """One specification as written."""

    spec_id: str
    canonical_family: str
    axis: str
    tier: str
    stl: str
    unit: str
    source: str
    rationale: str
    threshold: float | None = None
    severe: float | None = None
    binary: bool = False
    requires_all: tuple[str, ...] = ()
    invalid_if_any: tuple[str, ...] = ()
    legacy_ids: tuple[str, ...] = ()
    alternates: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A row on its way to a specification; with `states`, as in `Draft`, its formula may hold the number itself."""

    row: SpecRow
    origin: Origin
    alternate_of: str | None = None
    states: tuple[str, str] | None = None


def library(name_or_path: str | Path = "default") -> Library:
    """A library by its name (`default`, `paper-literal`), or from a file.

    A file is TOML, or holds rows of the paper's JSON schema as they stand: one object, a list, or one a line.

    Raises:
        SpecError: no such library, or one that contradicts itself; names the file, the specification and the key.
    """
    if str(name_or_path) in BUILT_IN:
        return _built_in(str(name_or_path))
    path = Path(name_or_path)
    return _assemble(path.stem, _read(path), built_in_tags())


def extend(base: Library, path: Path) -> Library:
    """`base` with a file's specifications added behind its own.

    Raises:
        SpecError: as `library` does, and for an id that the library has already.
    """
    origin, source = Origin(SpecError, str(path)), _read(path)
    if source.based_on is not None:
        raise origin.fail("is a library by itself", field="based_on", remedy="pass it with --library")
    added = _assemble(path.stem, source, base.vocabulary)
    for spec_id in (*(spec.spec_id for spec in added), *added.legacy):
        if spec_id in base:
            remedy = "choose another id, or state the change as a [[replace]] in a library with based_on"
            problem = f"library {base.name!r} has a specification of that id already"
            raise origin.about(spec_id).fail(problem, field="spec_id", remedy=remedy)
    legacy = {**base.legacy, **added.legacy}
    return Library(f"{base.name}+{path.stem}", (*base.specs, *added.specs), legacy, added.vocabulary)


@cache
def vocabulary() -> Mapping[str, Tag]:
    """The built-in tags, by name."""
    return built_in_tags()


@cache
def _built_in(name: str) -> Library:
    return _assemble(name, built_in(name), built_in_tags())


def _read(path: Path) -> Source:
    if not is_library_file(path):
        known = f"built-in: {', '.join(BUILT_IN)}; or the path of a .toml, .json or .jsonl file"
        raise SpecError(f"there is no specification library {str(path)!r}", remedy=known)
    source = read(path, str(path))
    if not source.drafts:
        raise Origin(SpecError, str(path)).fail("holds no specification", field="specs", remedy="add [[specs]] tables")
    return source


def _assemble(name: str, source: Source, known: Mapping[str, Tag]) -> Library:
    tags = {**known, **source.tags}
    specs: list[Spec] = []
    legacy: dict[str, str] = {}
    taken: set[str] = set()
    for entry in (entry for draft in source.drafts for entry in _entries(draft)):
        spec_id = entry.row.spec_id
        for one in (spec_id, *entry.row.legacy_ids):
            if one in taken:
                raise entry.origin.fail(f"id {one!r} is repeated", field="spec_id", remedy="choose another id")
            taken.add(one)
        specs.append(_spec(entry, tags))
        legacy |= dict.fromkeys(entry.row.legacy_ids, spec_id)
    return Library(name, tuple(specs), legacy, tags)


def _entries(draft: Draft) -> Iterator[Entry]:
    """The specification of a draft, then its alternates."""
    row = typed(draft.row, SpecRow, draft.origin)
    yield Entry(row, draft.origin, states=draft.states)
    for written in row.alternates:
        origin = draft.origin.about(written.get("spec_id", f"an alternate of {row.spec_id}"))
        other = typed(written, AlternateRow, origin)
        yield Entry(_alternate(row, other), origin, alternate_of=row.spec_id)


def _alternate(row: SpecRow, other: AlternateRow) -> SpecRow:
    return msgspec.structs.replace(
        row,
        spec_id=other.spec_id,
        tier="alternate",
        threshold=other.threshold,
        severe=other.severe,
        legacy_ids=other.legacy_ids,
        source=other.source or row.source,
        rationale=other.rationale or row.rationale,
    )


def _spec(entry: Entry, tags: Mapping[str, Tag]) -> Spec:
    row, origin = entry.row, entry.origin
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", row.spec_id):
        raise origin.fail("an id is made of letters, digits and _ . -", field="spec_id", remedy="rename it")
    _check_word(row.axis, get_args(Axis), "axis", origin)
    _check_word(row.tier, get_args(Tier), "tier", origin)
    for key in ("requires_all", "invalid_if_any"):
        for tag in getattr(row, key):
            if tag not in tags:
                remedy = f"{alternatives(tag, tags, 'known tags')}; or declare it under [tags.<class>] in a TOML file"
                raise origin.fail(f"unknown tag {tag!r}", field=key, remedy=remedy)
    formula = _formula(entry)
    threshold = _threshold(entry, formula)
    _check_severity(row, formula, origin)
    return Spec(
        spec_id=row.spec_id,
        canonical_family=row.canonical_family,
        axis=cast(Axis, row.axis),
        tier=cast(Tier, row.tier),
        stl=row.stl,
        formula=stl.substitute(formula, threshold),
        threshold=threshold,
        severe=row.severe,
        unit=row.unit,
        binary=row.binary,
        requires_all=row.requires_all,
        invalid_if_any=row.invalid_if_any,
        source=row.source,
        rationale=row.rationale,
        alternate_of=entry.alternate_of,
    )


def _check_word(given: str, known: tuple[str, ...], key: str, origin: Origin) -> None:
    if given not in known:
        raise origin.fail(f"{given!r} is no {key}", field=key, remedy=alternatives(given, known, "there are"))


def _formula(entry: Entry) -> stl.Formula:
    try:
        return stl.parse(entry.row.stl, {name: signal.boolean for name, signal in SIGNALS.items()})
    except FormulaError as error:
        raise entry.origin.fail(error.problem, field="stl", remedy=error.remedy) from None


def _threshold(entry: Entry, formula: stl.Formula) -> float:
    """The threshold, once it is one that the formula uses."""
    given, holds, origin = entry.row.threshold, stl.holds_placeholder(formula), entry.origin
    if given is None:
        if holds or not stl.boolean_only(formula):
            raise origin.fail("has no threshold", field="threshold", remedy="add threshold = NUMBER, positive")
        return BINARY_THRESHOLD
    _check_positive(given, "threshold", origin)
    if entry.states is not None and not holds:
        _check_stated(entry.states, given, formula, origin)
    elif not holds:
        problem = f"the formula does not use the threshold {given:g}"
        raise origin.fail(problem, field="stl", remedy="write `threshold` in place of the number")
    return given


def _check_stated(states: tuple[str, str], threshold: float, formula: stl.Formula, origin: Origin) -> None:
    """A JSON row names signal, operator and threshold beside its formula: a predicate there must say the same."""
    signal, operator = states
    bounds = (syntax.constant(threshold), syntax.constant(-threshold))
    stated = [syntax.Compare(cast(syntax.Comparison, operator), syntax.Signal(signal), bound) for bound in bounds]
    if not any(node in stated for node in syntax.walk(formula)):
        problem = f"the formula says no `{signal} {operator} {threshold:g}`, as signal, operator and threshold do"
        raise origin.fail(problem, field="stl", remedy="let stl, signal, operator and threshold agree")


def _check_positive(value: float, key: str, origin: Origin) -> None:
    if not (math.isfinite(value) and value > 0):
        remedy = "give a positive magnitude; a lower bound is written `> -threshold`"
        raise origin.fail(f"{key} is {value}, not positive and finite", field=key, remedy=remedy)


def _check_severity(row: SpecRow, formula: stl.Formula, origin: Origin) -> None:
    """Binary or graded, not both: a graded specification that is scored needs a severe magnitude."""
    if stl.boolean_only(formula) and not row.binary:
        problem = "all atoms are Boolean, so that no violation has a depth, yet it is not binary"
        raise origin.fail(problem, field="binary", remedy="add binary = true")
    if row.severe is not None:
        _check_positive(row.severe, "severe", origin)
        if row.binary:
            raise origin.fail("a binary specification has no severe magnitude", field="severe", remedy="leave it out")
    elif not row.binary and row.tier != "diagnostic":
        remedy = "add severe = NUMBER (the magnitude of full depth), or binary = true"
        raise origin.fail("a scored specification has no severe magnitude", field="severe", remedy=remedy)
