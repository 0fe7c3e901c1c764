"""From a file to drafts of specifications: TOML, or the paper's JSON rows (Appendix B, spec-registry schema).

A TOML file holds `[[specs]]`, each with its alternates below it, and may declare `[tags.<class>]` of its own. With
`based_on` it starts from a built-in library, and each `[[replace]]` names a specification and the keys it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

import msgspec

from safevla_bench.errors import SpecError
from safevla_bench.specs.spec import Tag, TagClass
from safevla_bench.specs.table_reader import Origin, alternatives, read_json, read_toml, typed

BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "default": ("scene_interaction.toml", "object_handling.toml", "execution.toml", "diagnostics.toml"),
    "paper-literal": ("paper_literal.toml",),
}
"""Library name -> its files, in library order."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """A specification's row, not yet checked, and where it stands.

    `states` is the predicate that a JSON row names beside its formula: signal and operator.
    """

    row: Mapping[str, object]
    origin: Origin
    states: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The content of files: drafts in order, the tags they declare, and the library they start from, if any."""

    drafts: tuple[Draft, ...]
    tags: Mapping[str, Tag] = field(default_factory=dict)
    based_on: str | None = None


class LibraryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a TOML file."""

    based_on: str | None = None
    tags: dict[TagClass, dict[str, str]] = {}
    specs: tuple[dict[str, object], ...] = ()
    replace: tuple[dict[str, object], ...] = ()


class PaperRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the paper's spec registry; the last four keys are ours, and may be left out."""

    spec_id: str
    canonical_family: str
    tier: str
    signal: str
    operator: Literal["lt", "le", "gt", "ge"]
    threshold: float
    unit: str
    stl: str
    requires_all: tuple[str, ...]
    invalid_if_any: tuple[str, ...]
    vsi_severe: float | None = None
    axis: str | None = None
    source: str | None = None
    rationale: str | None = None
    binary: bool | None = None


def built_in(name: str) -> Source:
    """The files of a built-in library."""
    sources = [read(_folder() / file, f"library/{file}") for file in BUILT_IN[name]]
    return Source(tuple(draft for source in sources for draft in source.drafts), built_in_tags())


def built_in_tags() -> Mapping[str, Tag]:
    """The vocabulary that comes with the package."""
    return read(_folder() / "tags.toml", "library/tags.toml").tags


def _folder() -> Traversable:
    return resources.files(__package__) / "library"


def read(path: Traversable, file: str) -> Source:
    """The content of one file; `file` is its name in errors."""
    origin = Origin(SpecError, file)
    if file.endswith(".toml"):
        return _read_toml(path, origin)
    return Source(tuple(_paper_draft(row, place) for place, row in read_json(path, origin)))


def is_library_file(path: Path) -> bool:
    """Whether the name is one that `read` can take."""
    return path.suffix in (".toml", ".json", ".jsonl")


def _read_toml(path: Traversable, origin: Origin) -> Source:
    tables = read_toml(path, LibraryFile, origin)
    drafts = tuple(Draft(row, origin.about(row.get("spec_id", f"specs[{k}]"))) for k, row in enumerate(tables.specs))
    tags = declared(tables.tags)
    if tables.based_on is None:
        if tables.replace:
            raise origin.fail("[[replace]] without based_on", field="replace", remedy='add based_on = "default"')
        return Source(drafts, tags)
    if tables.based_on not in BUILT_IN:
        remedy = alternatives(tables.based_on, BUILT_IN, "built-in libraries")
        raise origin.fail(f"no built-in library {tables.based_on!r}", field="based_on", remedy=remedy)
    inherited = _replaced(built_in(tables.based_on).drafts, tables.replace, origin)
    return Source((*inherited, *drafts), tags, tables.based_on)


def declared(tables: Mapping[TagClass, Mapping[str, str]]) -> Mapping[str, Tag]:
    """The tags that a file's `[tags.<class>]` tables declare."""
    return {name: Tag(name, kind, meaning) for kind, words in tables.items() for name, meaning in words.items()}


def _replaced(drafts: Sequence[Draft], changes: Iterable[Mapping[str, object]], origin: Origin) -> Iterable[Draft]:
    """The drafts with the keys that each change names; their place becomes the change's."""
    found = {str(draft.row["spec_id"]): draft for draft in drafts}
    for change in changes:
        spec_id = str(change.get("spec_id"))
        if spec_id not in found:
            remedy = alternatives(spec_id, found, "to replace")
            raise origin.fail(f"there is no {spec_id!r} to replace", field="spec_id", remedy=remedy)
        found[spec_id] = Draft({**found[spec_id].row, **change}, origin.about(spec_id))
    return found.values()


def _paper_draft(row: object, place: Origin) -> Draft:
    given = row.get("spec_id") if isinstance(row, Mapping) else None
    origin = place if given is None else place.about(given)
    paper = typed(row, PaperRow, origin)
    # A scored row without a severe magnitude is one of the paper's hard stops (its Table 17).
    hard_stop = paper.tier != "diagnostic" and paper.vsi_severe is None
    spec_id = _current_id(paper.spec_id)
    written: dict[str, object] = {
        "spec_id": spec_id,
        "legacy_ids": [] if spec_id == paper.spec_id else [paper.spec_id],
        "canonical_family": paper.canonical_family,
        "axis": paper.axis or _axis_of(paper.canonical_family, origin),
        "tier": paper.tier,
        "stl": paper.stl,
        "unit": paper.unit,
        "source": paper.source or origin.file,
        "rationale": paper.rationale or "",
        "threshold": paper.threshold,
        "severe": paper.vsi_severe,
        "binary": hard_stop if paper.binary is None else paper.binary,
        "requires_all": paper.requires_all,
        "invalid_if_any": paper.invalid_if_any,
    }
    return Draft(written, origin, states=(paper.signal, _OPERATORS[paper.operator]))


_OPERATORS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _current_id(spec_id: str) -> str:
    """An id of the authors' older archives as its present one; that it was read so is logged."""
    older = {
        str(old): str(row["spec_id"])
        for draft in built_in("default").drafts
        for row in _with_alternates(draft.row)
        for old in _listed(row.get("legacy_ids"))
    }
    if spec_id in older:
        _log.warning("%s is an older id: read as %s", spec_id, older[spec_id])
    return older.get(spec_id, spec_id)


def _with_alternates(row: Mapping[str, object]) -> list[Mapping[str, object]]:
    return [row, *(one for one in _listed(row.get("alternates")) if isinstance(one, dict))]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _axis_of(family: str, origin: Origin) -> str:
    """The paper's rows name no axis: it is the one of the family (paper Table 16)."""
    axes = {str(draft.row["canonical_family"]): str(draft.row["axis"]) for draft in built_in("default").drafts}
    if family not in axes:
        remedy = f'add "axis": scene_interaction, object_handling or execution; known families: {", ".join(axes)}'
        raise origin.fail(f"the axis of family {family!r} is not known", field="axis", remedy=remedy)
    return axes[family]
