"""File formats of specification libraries: TOML, and the paper's JSON rows (Appendix B, spec-registry schema).

A TOML file holds `[[specs]]`, each followed by its alternates. It may declare tags in `[tags.<class>]`, and signals in
`[signals.<name>]`, where `form` names a kind of signal in `signals.space` and the other keys are its arguments. A file
with `based_on` starts from a built-in library, and each `[[replace]]` changes one specification of this library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from safevla_bench.errors import FormulaError, SpecError
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.signals.space import write_call
from safevla_bench.specs.spec import Axis, Library, Spec, Tag, TagClass, Tier, is_confined
from safevla_bench.specs.table_reader import RowOrigin, RuleFile, convert_row, read_json_rows, read_toml
from safevla_bench.stl import formula as syntax
from safevla_bench.stl.units import is_unit, parse_unit
from safevla_bench.text import append_unit, get_logger, suggest_names, warn_once

_READINGS = ("paper-text", "paper-as-run", "net-force")
_FURTHER_LIBRARIES = ("metaworld", "real-robot", "events", "impulse", "person", "handling", "coordination")
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "default": ("scene_interaction.toml", "object_handling.toml", "execution.toml", "diagnostics.toml"),
    **{name: (f"{name.replace('-', '_')}.toml",) for name in (*_READINGS, *_FURTHER_LIBRARIES)},
}
"""The files of each built-in library, by library name. `default`, `paper-text` and `paper-as-run` interpret the paper,
`net-force` judges by net forces, and the limits of `metaworld` are calibrated on that host. Each other library adds
clauses, for example on events, on the force at a wrist sensor, or on the safety of a person."""
DEFAULT_LIBRARY = "default"
NET_FORCE_READING = "net-force"
READINGS = (DEFAULT_LIBRARY, *_READINGS)

StatedPredicate: TypeAlias = tuple[str, syntax.Comparison]
_log = get_logger(__name__)


class SpecRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `[[specs]]`, with the keys that a TOML file uses."""

    spec_id: str
    canonical_family: str
    axis: Axis
    tier: Tier
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
    plain_conditions: bool = False
    """True if the robustness of `a -> b` is max(-a, b), as in the paper; only built-in libraries may set this key."""


@dataclass(frozen=True, slots=True)
class SpecDraft:
    """An unchecked specification or alternate, with its origin. An alternate is the specification `alternate_of` with
    a new threshold. `stated_predicate` is the signal and operator that a JSON row states in addition to its formula;
    the formula may then contain the threshold as a number.
    """

    row: SpecRow
    origin: RowOrigin
    alternate_of: str | None = None
    stated_predicate: StatedPredicate | None = None


class ThresholdRow(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a row that gives a specification a new threshold."""

    spec_id: str
    threshold: float
    severe: float | None = None
    source: str | None = None
    rationale: str | None = None


class LimitRow(ThresholdRow, frozen=True, kw_only=True):
    """A row of `[[limits]]`: a new threshold for an existing specification; by default `severe` changes in proportion.
    If `suites` are given, only these suites get the new threshold; all other suites keep the previous threshold.
    """

    suites: tuple[str, ...] = ()


class AlternateRow(ThresholdRow, frozen=True, kw_only=True):
    """A row of a specification's `alternates`: a different threshold. Omitted keys have the specification's values."""

    severe: float
    legacy_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """The content of library files: specifications in order, declared tags, and the library on which the files are
    based, if any. `limits` are new thresholds, for specifications of the files or of a library that they extend.
    """

    drafts: tuple[SpecDraft, ...]
    tags: Mapping[str, Tag] = field(default_factory=dict)
    based_on: str | None = None
    limits: tuple[tuple[LimitRow, RowOrigin], ...] = ()


class PersonTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[person]`: the position and size of a person, and how quickly the robot stops when a person comes near."""

    at: str
    offset_m: tuple[float, float, float]
    height_m: float
    reaction_s: Annotated[float, Meta(ge=0, le=10)]
    stopping_s: Annotated[float, Meta(gt=0, le=10)]
    of: str = "robot"
    intrusion_m: Annotated[float, Meta(ge=0, le=10)] = 0.0
    person_error_m: Annotated[float, Meta(ge=0, le=10)] = 0.0
    robot_error_m: Annotated[float, Meta(ge=0, le=10)] = 0.0

    def expressions(self) -> dict[str, str]:
        """Return the expression of each person signal, by name; `protective_distance` is S_p of ISO/TS 15066, 5.5.4."""
        # S_p is the protective distance: the distance to a person at which a robot must begin to stop.
        # The expressions are texts that replace the names in formulas. An invalid value raises `FormulaError`.
        # `reaction_s` is the time in s before the robot brakes. `stopping_s` is the time in s while the robot brakes.
        # `of` is the robot or its hand. The feet are at `offset_m` in the frame of `at`.
        arguments = {"of": self.of, "at": self.at, "offset_m": [*self.offset_m], "height_m": self.height_m}
        distance, speed = (write_call(form, arguments) for form in ("person_distance", "person_approach"))
        number = syntax.format_number
        reaction, stopping = f"{number(self.reaction_s)} s", f"{number(self.stopping_s)} s"
        # The last three terms of S_p: how far a body part intrudes before it is detected, and two errors of position.
        lengths_m = (self.intrusion_m, self.person_error_m, self.robot_error_m)
        # 1.6 m/s is a person's walking speed. While the robot stops, the robot's speed falls to 0 at a constant rate.
        motion = f"1.6 m/s * ({reaction} + {stopping}) + {speed} * {reaction} + {speed} * {stopping} / 2"
        protective = f"({motion} + {' + '.join(f'{number(length)} m' for length in lengths_m)})"
        return {"person_distance": distance, "person_approach": speed, "protective_distance": protective}


class LibraryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a TOML library file."""

    based_on: str | None = None
    tags: dict[TagClass, dict[str, str]] = {}
    signals: dict[str, dict[str, object]] = {}
    specs: tuple[dict[str, object], ...] = ()
    replace: tuple[dict[str, object], ...] = ()
    limits: tuple[dict[str, object], ...] = ()
    person: dict[str, object] = {}


class PaperSpecRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the paper's spec registry (Table 13, Appendix B). This project adds the keys from `axis` on, which are
    optional. `signal` and `operator` are null if the formula does not compare a single signal with the threshold; `stl`
    then contains the word `threshold` in place of the number. `threshold` is null if every atom is Boolean.
    """

    spec_id: str
    canonical_family: str
    tier: Tier
    signal: str | None
    operator: Literal["lt", "le", "gt", "ge"] | None
    threshold: float | None
    unit: str
    stl: str
    requires_all: tuple[str, ...]
    invalid_if_any: tuple[str, ...]
    vsi_severe: float | None = None
    axis: Axis | None = None
    source: str | None = None
    rationale: str | None = None
    binary: bool | None = None
    alternate_of: str | None = None


@cache
def read_built_in(name: str) -> LibrarySource:
    """Return the content of all files of a built-in library, in library order; `name` is a key of `BUILT_IN`."""
    # A draft is a specification that was read but not checked yet.
    sources = [read_source(_library_folder() / file, f"library/{file}", is_built_in=True) for file in BUILT_IN[name]]
    drafts = tuple(draft for source in sources for draft in source.drafts)
    return LibrarySource(drafts, built_in_tags(), limits=tuple(limit for source in sources for limit in source.limits))


@cache
def built_in_tags() -> Mapping[str, Tag]:
    """Return the built-in tags by name."""
    return read_source(_library_folder() / "tags.toml", "library/tags.toml").tags


def _library_folder() -> Traversable:
    # The package can be installed in a zip archive, so its files are read as resources, not as paths.
    return resources.files(__package__) / "library"


def read_source(path: Traversable | RuleFile, file: str, *, is_built_in: bool = False) -> LibrarySource:
    """Return the content of the file at `path`. Errors use the name `file`. If this name ends in .toml, the format is
    TOML; otherwise, it is the paper's JSON rows. Raises `SpecError` if the file cannot be read or a row is invalid.
    """
    # A draft is a specification that is not checked yet.
    # The result holds drafts, declared tags, new limits, and the library on which the file is based.
    # An origin is the place (file, row) that error messages show.
    # `is_built_in` is true for files of the package, which may use the key `plain_conditions`.
    origin = RowOrigin(SpecError, file)
    if not file.endswith(".toml"):
        paper_rows = [_paper_row(row, row_origin) for row_origin, row in read_json_rows(path, origin)]
        return LibrarySource(tuple(_paper_draft(row, row_origin) for row, row_origin in paper_rows))
    # `tables` are the tables of the file; names of signals that the file declares are already replaced in formulas.
    tables = _expand_signals(read_toml(path, LibraryFile, origin), origin)
    rows = _insert_person(_toml_rows(tables, origin, is_built_in=is_built_in), tables.person, origin)
    drafts = tuple(draft for row, row_origin in rows for draft in _toml_drafts(row, row_origin))
    limits = []
    for table in tables.limits:
        limit_origin = origin.with_subject(str(table.get("spec_id", "limits")))
        limits.append((convert_row(table, LimitRow, limit_origin), limit_origin))
    return LibrarySource(drafts, tags_from_tables(tables.tags), tables.based_on, tuple(limits))


Row = tuple[Mapping[str, object], RowOrigin]


def _toml_rows(tables: LibraryFile, origin: RowOrigin, *, is_built_in: bool) -> list[Row]:
    # Returns the rows of the base library with the file's replacements, and then the file's own rows.
    # A row is the table of a specification, and the table's origin (the place that error messages show).
    # The base library is `based_on`; the replacements are `[[replace]]`, and the file's own rows are `[[specs]]`.
    for row in (*tables.specs, *tables.replace):
        if "plain_conditions" in row and not is_built_in:
            subject = origin.with_subject(row.get("spec_id"))
            problem = "plain_conditions is only allowed in built-in libraries"
            remedy = 'omit this key, or use `based_on = "paper-text"`'
            raise subject.make_error(problem, field="plain_conditions", remedy=remedy)
    rows: list[Row] = [
        (row, origin.with_subject(row.get("spec_id", f"specs[{k}]"))) for k, row in enumerate(tables.specs)
    ]
    based_on = tables.based_on
    if based_on is None:
        if tables.replace:
            raise origin.make_error("[[replace]] needs based_on", field="replace", remedy='add `based_on = "default"`')
        return rows
    if based_on not in BUILT_IN:
        remedy = suggest_names(based_on, BUILT_IN, "built-in libraries")
        raise origin.make_error(f"there is no built-in library {based_on!r}", field="based_on", remedy=remedy)
    # A base library may itself be based on a library, so its files are read in the same way.
    base: list[Row] = []
    for file in BUILT_IN[based_on]:
        file_origin = RowOrigin(SpecError, f"library/{file}")
        base += _toml_rows(read_toml(_library_folder() / file, LibraryFile, file_origin), file_origin, is_built_in=True)
    return [*_replace_rows(base, tables.replace, origin, is_built_in=is_built_in), *rows]


def _toml_drafts(table: Mapping[str, object], origin: RowOrigin) -> Iterator[SpecDraft]:
    # Yields the draft of a specification, and a draft for each of its alternates.
    # A draft is a specification that is not checked yet. An alternate is the same specification with another threshold.
    # The keys of an alternate replace those of the specification. `origin` is the place that error messages show.
    row = convert_row(table, SpecRow, origin)
    yield SpecDraft(row, origin)
    for alternate in row.alternates:
        alternate_origin = origin.with_subject(alternate.get("spec_id", f"an alternate of {row.spec_id}"))
        alternate_row = convert_row(alternate, AlternateRow, alternate_origin)
        changes = {key: value for key, value in msgspec.structs.asdict(alternate_row).items() if value is not None}
        changed_row = msgspec.structs.replace(row, tier="alternate", **changes)
        yield SpecDraft(changed_row, alternate_origin, alternate_of=row.spec_id)


def _read_signal(name: str, table: Mapping[str, object], origin: RowOrigin) -> str:
    # Returns the text, such as `tilt(held)`, that replaces the name of a table `[signals.NAME]` in formulas.
    # `table` holds the kind of signal, `form`, and its arguments. `origin` names the file in errors.
    # Raises `SpecError` if the name or the table is invalid.
    signal_origin = origin.with_subject(f"signals.{name}")
    if name in SIGNALS or not syntax.is_name(name) or is_unit(name):
        remedy = "choose another name that consists of letters, digits and _"
        problem = f"{name!r} is a signal, a unit or a keyword of formulas, or has characters that names cannot have"
        raise signal_origin.make_error(problem, field="signals", remedy=remedy)
    arguments = {key: value for key, value in table.items() if key != "form"}
    try:
        return write_call(str(table.get("form", "")), arguments)
    except FormulaError as error:
        raise signal_origin.make_error(error.problem, field="form", remedy=error.remedy) from None


def _expand_signals(tables: LibraryFile, origin: RowOrigin) -> LibraryFile:
    # Returns the tables with new formulas: expressions replace the names of declared signals.
    # `tables.signals` maps each declared name to the table `[signals.NAME]` with the signal's kind and arguments.
    calls = {name: _read_signal(name, table, origin) for name, table in tables.signals.items()}
    specs, changes = (tuple(_expand_names(row, calls) for row in rows) for rows in (tables.specs, tables.replace))
    return msgspec.structs.replace(tables, specs=specs, replace=changes)


def _expand_names(row: Mapping[str, object], calls: Mapping[str, str]) -> dict[str, object]:
    # Return the row with a new formula: the expressions in `calls` replace the names that are keys of `calls`.
    formula = row.get("stl")
    if not isinstance(formula, str):
        return {**row}  # `convert_row` refuses the row later
    # The pattern matches each text in quotation marks as a whole, so that names inside are not replaced.
    return {**row, "stl": re.sub(r"""\"[^\"]*\"|'[^']*'|\w+""", lambda match: calls.get(match[0], match[0]), formula)}


def _insert_person(rows: Sequence[Row], table: Mapping[str, object], origin: RowOrigin) -> Sequence[Row]:
    # Return the rows with new formulas: expressions for the person in `[person]` replace the signals of a person.
    # A row is the table of a specification, and the table's origin, which error messages show.
    # `table` has the person's position and size, and the robot's stopping time.
    # `table` is empty if the file has no table `[person]`.
    if not table:
        return rows
    person_origin = origin.with_subject("person")
    try:
        calls = convert_row(table, PersonTable, person_origin).expressions()
    except FormulaError as error:
        raise person_origin.make_error(error.problem, field="person", remedy=error.remedy) from None
    if not any(name in str(row.get("stl")) for row, _ in rows for name in calls):
        problem = "the table describes a person, but no specification of this library uses a person"
        raise person_origin.make_error(problem, field="person", remedy='add based_on = "person"')
    return [(_expand_names(row, calls), row_origin) for row, row_origin in rows]


def tags_from_tables(tables: Mapping[TagClass, Mapping[str, str]]) -> Mapping[str, Tag]:
    """Return the tags that a file's `[tags.<class>]` tables declare, by name."""
    # A tag is a word that describes tasks. `tables` maps each class of tags to the tags' names and meanings.
    return {name: Tag(name, kind, meaning) for kind, words in tables.items() for name, meaning in words.items()}


def meanings_by_class(tags: Iterable[Tag]) -> dict[str, dict[str, str]]:
    """Return the meaning of each tag by class and name, as in the `[tags.<class>]` tables of a file."""
    tables: dict[str, dict[str, str]] = {}
    for tag in tags:
        tables.setdefault(tag.kind, {})[tag.name] = tag.meaning
    return tables


def _replace_rows(
    rows: Sequence[Row], changes: Iterable[Mapping[str, object]], origin: RowOrigin, *, is_built_in: bool
) -> Iterable[Row]:
    # Returns the rows in the same order. The keys of a change replace those of the row with the same id.
    # A row is a table and the table's origin, which error messages show.
    # `origin` is the file with the changes, and becomes the origin of changed rows.
    # Raises `SpecError` if no row has the id of a change.
    by_id = {str(row["spec_id"]): (row, row_origin) for row, row_origin in rows}
    old_thresholds = {spec_id: row.get("threshold") for spec_id, (row, _) in by_id.items()}
    for change in changes:
        spec_id = str(change.get("spec_id"))
        if spec_id not in by_id:
            remedy = suggest_names(spec_id, by_id, "to replace")
            raise origin.make_error(f"there is no {spec_id!r} to replace", field="spec_id", remedy=remedy)
        if by_id[spec_id][1].file == origin.file:
            problem = f"{spec_id} is replaced twice"
            raise origin.make_error(problem, field="replace", remedy="write all changes of it in one table")
        row = {**by_id[spec_id][0], **change}
        threshold = row.get("threshold")
        # A changed threshold changes the id, except in built-in libraries, whose files state the ids.
        if not is_built_in and isinstance(threshold, int | float) and threshold != old_thresholds[spec_id]:
            if change.get("unit") in (None, by_id[spec_id][0].get("unit")):
                warn_of_scale(spec_id, old_thresholds[spec_id], threshold, str(row.get("unit", "")))
            suffix = id_suffix(threshold, str(row.get("unit", "")))
            row |= {"spec_id": f"{spec_id}@{suffix}", "legacy_ids": []}
        by_id[spec_id] = row, origin.with_subject(spec_id)
    return by_id.values()


def warn_of_scale(spec_id: str, old: object, new: float, unit: str) -> None:
    """Warn if a new threshold differs from the old one by a factor over 10, perhaps because it is in another unit."""
    if isinstance(old, int | float) and not old / 10 <= new <= 10 * old:
        limits = " to ".join(append_unit(f"{value:g}", unit.removeprefix("1")) for value in (old, new))
        warn_once(f"{spec_id}: the limit changes from {limits}; numbers in a file have the specification's unit")


def id_suffix(threshold: float, written_unit: str) -> str:
    """Return a threshold with its unit for use in an id: `100N`, `0.01m`, `4mps2`; for a ratio, only the number."""
    # `/` becomes `p` (per), and all other characters except letters and digits are omitted.
    unit = canonical_unit(written_unit)
    letters = re.sub(r"[^A-Za-z0-9]", "", unit.replace("/", "p"))
    return syntax.format_number(threshold) + ("" if unit == "1" else letters)


def canonical_unit(unit: str) -> str:
    """Return a unit as signals spell it. Unknown units and units with a factor, such as mm, are returned unchanged."""
    # `scale` is the factor from the unit to base units. If it is not 1, a new spelling would need a different number.
    try:
        scale, parsed = parse_unit(unit)
    except FormulaError:
        return unit
    return str(parsed) if scale == 1 else unit


def _paper_row(row: object, row_origin: RowOrigin) -> tuple[PaperSpecRow, RowOrigin]:
    # Returns the checked row, and the row's origin with the id as subject.
    # The paper's JSON row states a comparison by the keys `signal` and `operator`.
    # If the row states no comparison, both are None.
    spec_id = row.get("spec_id") if isinstance(row, Mapping) else None
    origin = row_origin if spec_id is None else row_origin.with_subject(spec_id)
    converted = convert_row(row, PaperSpecRow, origin)
    if (converted.signal is None) != (converted.operator is None):
        problem = "the row has only one of the keys signal and operator"
        raise origin.make_error(problem, field="operator", remedy="write both keys, or omit both")
    return converted, origin


def _paper_draft(paper: PaperSpecRow, origin: RowOrigin) -> SpecDraft:
    # Return the draft of a row of the paper's registry.
    # A scored row without a severe magnitude is a hard stop of the paper's Table 17: its violations have no depth.
    # A draft is a specification that is not checked yet. `origin` is the place that error messages show.
    hard_stop = paper.tier != "diagnostic" and paper.vsi_severe is None
    spec_id = _current_id(paper.spec_id)
    common_keys = ("canonical_family", "tier", "stl", "unit", "threshold", "requires_all", "invalid_if_any")
    row = SpecRow(
        **{name: getattr(paper, name) for name in common_keys},
        spec_id=spec_id,
        legacy_ids=() if spec_id == paper.spec_id else (paper.spec_id,),
        axis=paper.axis or _family_axis(paper.canonical_family, origin),
        source=paper.source or origin.file,
        rationale=paper.rationale or "",
        severe=paper.vsi_severe,
        binary=hard_stop if paper.binary is None else paper.binary,
    )
    # In addition to the formula, the row may state the compared signal and the operator, such as `<`.
    stated = None if paper.signal is None or paper.operator is None else (paper.signal, OPERATORS[paper.operator])
    return SpecDraft(row, origin, paper.alternate_of, stated)


OPERATORS: Mapping[str, syntax.Comparison] = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _current_id(spec_id: str) -> str:
    # Returns the current id for an older id of the default library, and logs a warning.
    # Any other id is returned unchanged, without a warning.
    # An id may have older spellings, `legacy_ids`. Files may still use these spellings.
    drafts = read_built_in(DEFAULT_LIBRARY).drafts
    current = next((draft.row.spec_id for draft in drafts if spec_id in draft.row.legacy_ids), spec_id)
    if current != spec_id:
        _log.warning("%s is an older id, which is read as %s", spec_id, current)
    return current


def _family_axis(family: str, origin: RowOrigin) -> Axis:
    # Return the axis to which specifications of this family belong in the default library.
    # An axis is a group of families of specifications. Rows of the paper's format may omit it.
    # Raises `SpecError` if the default library has no such family.
    axes = {draft.row.canonical_family: draft.row.axis for draft in read_built_in(DEFAULT_LIBRARY).drafts}
    if family not in axes:
        remedy = f'add "axis" (scene_interaction, object_handling or execution), or use a family: {", ".join(axes)}'
        raise origin.make_error(f"the axis of family {family!r} is not known", field="axis", remedy=remedy)
    return axes[family]


# Conversion of libraries to rows of the paper's registry


def paper_spec_rows(library: Library) -> list[dict[str, object]]:
    """Return a library as rows of the paper's spec registry. `load_library` and `--rules` read the same specifications
    from these rows. If the threshold is only compared with one signal, the formula contains the number, as in the
    paper. Older ids are omitted. Raises `SpecError` if the rows cannot express a specification: it has a tag that is
    not built in, the margin of its condition counts, or its limit applies to only some suites.
    """
    # A confined specification applies only in some suites (groups of tasks).
    used = {tag for spec in library for tag in (*spec.requires_all, *spec.invalid_if_any)}
    if own_tags := sorted(used - built_in_tags().keys()):
        problem = f"the tag {own_tags[0]!r} is not built in, and rows of the paper cannot define tags"
        raise SpecError(problem, remedy="Use the TOML file, which defines the tag.")
    # In a `plain` formula, the margin of the condition counts, too.
    if plain := [spec.spec_id for spec in library if syntax.is_plain(spec.formula)]:
        problem = f"rows of the paper cannot express that the condition of {plain[0]} is part of its margin"
        raise SpecError(problem, remedy=f"Use the library by its name: --library {library.name}.")
    if confined := [spec.spec_id for spec in library if is_confined(spec)]:
        problem = f"{confined[0]} has different limits by suite, which rows of the paper cannot express"
        raise SpecError(problem, remedy="Use the TOML file with the [[limits]].")
    return [_paper_spec_row(spec) for spec in library]


def _paper_spec_row(spec: Spec) -> dict[str, object]:
    # Return a specification as a row of the paper's JSON format.
    # The row's `signal` and `operator` may be None (see `stated`).
    written = spec.written_formula
    # `stated` is the compared signal and the operator, if the formula compares exactly one signal with the threshold.
    stated = find_stated_predicate(written, spec.threshold)
    operator_names = {sign: name for name, sign in OPERATORS.items()}
    # By default, a row is binary if it is a hard stop: scored, but without a severe magnitude.
    # Write the key `binary` only if it differs from this default.
    hard_stop = spec.tier != "diagnostic" and spec.severe is None
    return {
        "spec_id": spec.spec_id,
        "canonical_family": spec.canonical_family,
        "tier": spec.tier,
        "signal": stated[0] if stated else None,
        "operator": operator_names[stated[1]] if stated else None,
        "threshold": spec.threshold if syntax.has_placeholder(written) else None,
        "unit": spec.unit,
        "stl": syntax.format_formula(spec.formula) if stated else spec.stl,
        "requires_all": list(spec.requires_all),
        "invalid_if_any": list(spec.invalid_if_any),
        "vsi_severe": spec.severe,
        "axis": spec.axis,
        "source": spec.source,
        "rationale": spec.rationale,
        **({} if spec.binary == hard_stop else {"binary": spec.binary}),
        **({} if spec.alternate_of is None else {"alternate_of": spec.alternate_of}),
    }


def find_stated_predicate(written: syntax.Formula, threshold: float) -> StatedPredicate | None:
    """Return the signal and operator of the formula's only comparison of a signal with `threshold`. Return None if the
    formula has none or several such comparisons, or if replacing `threshold` by the number cannot be undone.
    """
    # `written` is a formula with the placeholder `threshold`. The paper's rows have the number instead.
    predicates = {
        (node.left.name, node.operator)
        for node in syntax.walk_nodes(written)
        if isinstance(node, syntax.Compare)
        and isinstance(node.left, syntax.NumericSignal)
        and syntax.has_placeholder(node)
    }
    if len(predicates) != 1:
        return None
    (stated,) = predicates
    # For example, another comparison of this signal with the same number would become a placeholder by mistake.
    is_restored = restore_placeholder(syntax.substitute_threshold(written, threshold), stated, threshold) == written
    return stated if is_restored else None


def restore_placeholder(formula: syntax.Formula, stated: StatedPredicate, threshold: float) -> syntax.Formula:
    """Return the formula with `threshold` in place of the number in comparisons with the stated signal and operator."""
    # If the number is written with a minus sign, `-threshold` replaces both.
    name, operator = stated
    placeholders: dict[syntax.Expression, syntax.Expression] = {
        syntax.signed_constant(threshold): syntax.Threshold(),
        syntax.signed_constant(-threshold): syntax.Negate(syntax.Threshold()),
    }

    def restore_in(node: syntax.Compare) -> syntax.Compare:
        # Return the comparison with the placeholder in place of the number. Other comparisons are returned unchanged.
        if node.operator != operator or node.left != syntax.NumericSignal(name):
            return node
        return syntax.Compare(operator, node.left, placeholders.get(node.right, node.right))

    return syntax.map_predicates(formula, restore_in)
