"""File formats of specification libraries: TOML, and the paper's JSON rows (Appendix B, spec-registry schema).

A TOML file holds `[[specs]]`, each with its alternates below it, and may declare its own `[tags.<class>]`. With
`based_on` it starts from a built-in library, and each `[[replace]]` names a specification and the keys it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

import msgspec

from safevla_bench.errors import SpecError
from safevla_bench.specs.spec import Tag, TagClass
from safevla_bench.specs.table_reader import RowOrigin, convert_row, read_json_rows, read_toml, suggest_names

BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "default": ("scene_interaction.toml", "object_handling.toml", "execution.toml", "diagnostics.toml"),
    "paper-text": ("paper_text.toml",),
    "paper-as-run": ("paper_as_run.toml",),
}
"""Library name -> its files, in library order: the three readings of the paper."""
OLDER_NAMES: Mapping[str, str] = {"paper-literal": "paper-as-run"}
"""Older name of a built-in library -> its name."""
LIBRARY_NAMES = frozenset({*BUILT_IN, *OLDER_NAMES})
"""Every name of a built-in library; any other is a file."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpecDraft:
    """A specification's row, not yet checked, with its origin.

    `stated_predicate` is the predicate that a JSON row names beside its formula: signal and operator.
    """

    row: Mapping[str, object]
    origin: RowOrigin
    stated_predicate: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """Content of library files: drafts in order, the tags they declare, and the library they start from, if any."""

    drafts: tuple[SpecDraft, ...]
    tags: Mapping[str, Tag] = field(default_factory=dict)
    based_on: str | None = None


class LibraryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a TOML file."""

    based_on: str | None = None
    tags: dict[TagClass, dict[str, str]] = {}
    specs: tuple[dict[str, object], ...] = ()
    replace: tuple[dict[str, object], ...] = ()


class PaperSpecRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the paper's spec registry. The last four keys are ours and optional."""

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


def current_name(name: str) -> str:
    """Return the name of a library for its current or older name. The use of an older name is logged."""
    if name in OLDER_NAMES:
        _log.warning("library %s is an older name: read as %s", name, OLDER_NAMES[name])
    return OLDER_NAMES.get(name, name)


def read_built_in(name: str) -> LibrarySource:
    """Return the content of a built-in library's files."""
    sources = [read_source(_library_folder() / file, f"library/{file}") for file in BUILT_IN[name]]
    return LibrarySource(tuple(draft for source in sources for draft in source.drafts), built_in_tags())


@cache
def built_in_tags() -> Mapping[str, Tag]:
    """Return the built-in tags by name."""
    return read_source(_library_folder() / "tags.toml", "library/tags.toml").tags


def _library_folder() -> Traversable:
    return resources.files(__package__) / "library"


def read_source(path: Traversable, file: str) -> LibrarySource:
    """Return the content of one file. `file` is its name in errors."""
    origin = RowOrigin(SpecError, file)
    if file.endswith(".toml"):
        return _read_toml_source(path, origin)
    return LibrarySource(tuple(_paper_draft(row, place) for place, row in read_json_rows(path, origin)))


def is_library_file(path: Path) -> bool:
    """Return whether `read_source` takes a file of that name."""
    return path.suffix in (".toml", ".json", ".jsonl")


def _read_toml_source(path: Traversable, origin: RowOrigin) -> LibrarySource:
    tables = read_toml(path, LibraryFile, origin)
    drafts = tuple(
        SpecDraft(row, origin.with_subject(row.get("spec_id", f"specs[{k}]"))) for k, row in enumerate(tables.specs)
    )
    tags = tags_from_tables(tables.tags)
    if tables.based_on is None:
        if tables.replace:
            raise origin.make_error("[[replace]] without based_on", field="replace", remedy='add based_on = "default"')
        return LibrarySource(drafts, tags)
    based_on = current_name(tables.based_on)
    if based_on not in BUILT_IN:
        remedy = suggest_names(based_on, BUILT_IN, "built-in libraries")
        raise origin.make_error(f"no built-in library {based_on!r}", field="based_on", remedy=remedy)
    inherited = _replace_drafts(read_built_in(based_on).drafts, tables.replace, origin)
    return LibrarySource((*inherited, *drafts), tags, based_on)


def tags_from_tables(tables: Mapping[TagClass, Mapping[str, str]]) -> Mapping[str, Tag]:
    """Return the tags that a file's `[tags.<class>]` tables declare, by name."""
    return {name: Tag(name, kind, meaning) for kind, words in tables.items() for name, meaning in words.items()}


def _replace_drafts(
    drafts: Sequence[SpecDraft], changes: Iterable[Mapping[str, object]], origin: RowOrigin
) -> Iterable[SpecDraft]:
    """Return the drafts with the keys that each change names. A changed draft gets the change's origin."""
    by_id = {str(draft.row["spec_id"]): draft for draft in drafts}
    for change in changes:
        spec_id = str(change.get("spec_id"))
        if spec_id not in by_id:
            remedy = suggest_names(spec_id, by_id, "to replace")
            raise origin.make_error(f"there is no {spec_id!r} to replace", field="spec_id", remedy=remedy)
        by_id[spec_id] = SpecDraft({**by_id[spec_id].row, **change}, origin.with_subject(spec_id))
    return by_id.values()


def _paper_draft(row: object, place: RowOrigin) -> SpecDraft:
    spec_id_given = row.get("spec_id") if isinstance(row, Mapping) else None
    origin = place if spec_id_given is None else place.with_subject(spec_id_given)
    paper = convert_row(row, PaperSpecRow, origin)
    # A scored row without a severe magnitude is one of the paper's hard stops (its Table 17).
    hard_stop = paper.tier != "diagnostic" and paper.vsi_severe is None
    spec_id = _current_id(paper.spec_id)
    written: dict[str, object] = {
        "spec_id": spec_id,
        "legacy_ids": [] if spec_id == paper.spec_id else [paper.spec_id],
        "canonical_family": paper.canonical_family,
        "axis": paper.axis or _family_axis(paper.canonical_family, origin),
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
    return SpecDraft(written, origin, stated_predicate=(paper.signal, _OPERATORS[paper.operator]))


_OPERATORS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _current_id(spec_id: str) -> str:
    """Return the current id of a specification. The use of an older id is logged."""
    older = {
        str(old): str(row["spec_id"])
        for draft in read_built_in("default").drafts
        for row in _rows_with_alternates(draft.row)
        for old in _as_list(row.get("legacy_ids"))
    }
    if spec_id in older:
        _log.warning("%s is an older id: read as %s", spec_id, older[spec_id])
    return older.get(spec_id, spec_id)


def _rows_with_alternates(row: Mapping[str, object]) -> list[Mapping[str, object]]:
    return [row, *(alternate for alternate in _as_list(row.get("alternates")) if isinstance(alternate, dict))]


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _family_axis(family: str, origin: RowOrigin) -> str:
    """Return the axis of a family (paper Table 16). The paper's rows name none."""
    axes = {str(draft.row["canonical_family"]): str(draft.row["axis"]) for draft in read_built_in("default").drafts}
    if family not in axes:
        remedy = f'add "axis": scene_interaction, object_handling or execution; known families: {", ".join(axes)}'
        raise origin.make_error(f"the axis of family {family!r} is not known", field="axis", remedy=remedy)
    return axes[family]
