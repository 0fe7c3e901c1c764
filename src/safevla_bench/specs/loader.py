"""Loads libraries by name or from a file, changes thresholds, and tries specifications on simple traces.

A contradiction in a library raises an error that names the file, the row, the key and a remedy.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import FormulaError, SignalError, SpecError
from safevla_bench.signals import parse_signal_formula, signal_unit
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.specs import file_formats
from safevla_bench.specs.spec import ROW_KEYS, Library, Spec, Tag, is_confined, scoring_content
from safevla_bench.specs.table_reader import RowOrigin, RuleFile
from safevla_bench.stl import formula as syntax
from safevla_bench.stl.evaluation import predicate_margin
from safevla_bench.stl.robustness import robustness
from safevla_bench.stl.trace import Trace
from safevla_bench.stl.units import Unit, check_units, equivalent_symbols, unit_ratio
from safevla_bench.text import spell_suite, suggest_names, warn_once

BINARY_THRESHOLD = 0.5
"""The threshold of a specification if all its atoms are Boolean: an event is 0 or 1 (paper Appendix C)."""


def load_library(name_or_path: str | Path | RuleFile = "default") -> Library:
    """Load a built-in library by its name, such as `default` or `paper-text`, or a library from a file.

    A library from a file has the file's name without the suffix. If the name could be mistaken for that of a different,
    built-in library, it is `file NAME.SUFFIX` instead. Files are TOML, or rows of the paper's JSON schema: one object
    or a list of objects, or one object per line of a .jsonl file.

    Raises `SpecError`, which names the file, specification and key, if the library does not exist or contradicts
    itself.
    """
    if is_built_in(name_or_path):
        return _built_in_library(str(name_or_path))
    path = name_or_path if isinstance(name_or_path, RuleFile) else Path(name_or_path)
    # A draft in `source` is a specification that is not checked yet.
    source = _read_library_file(path)
    if not source.drafts:
        problem = "the file has only [[limits]], and no specification"
        raise RowOrigin(SpecError, str(path)).make_error(problem, field="specs", remedy="pass this file with --rules")
    library = _assemble_library(path.stem, source, file_formats.built_in_tags())
    base_name = re.split(r"[+@]", path.stem)[0]  # `BASE+FILE` and `BASE+ID@VALUE` are names of changed libraries
    # The digest is a checksum of everything that decides verdicts.
    # If a file and the built-in library judge equally, the file may have the library's name.
    is_other = base_name in file_formats.BUILT_IN and (
        path.stem != base_name or library.digest != _built_in_library(base_name).digest
    )
    return replace(library, name=f"file {Path(path.name).name}") if is_other else library


def has_only_limits(path: Path) -> bool:
    """Return whether a file has only `[[limits]]`, and no specification. Raises `SpecError` for an unusable file."""
    # A draft is a specification that is not checked yet.
    return not _read_library_file(path).drafts


def is_built_in(library: str | Path | RuleFile) -> bool:
    """Return whether `library` is the name of a built-in library; otherwise it is a file."""
    # `RuleFile` is a library file whose text was read already.
    return not isinstance(library, RuleFile) and str(library) in file_formats.BUILT_IN


def extend_library(base: Library, path: Path | RuleFile) -> Library:
    """Add the specifications of a file to `base`, change limits by the file's `[[limits]]`, and return the result.

    A specification is not added if `base` has it and judges it in the same way. The name becomes `BASE+FILE`; if the
    file has nothing new, `base` is returned.

    Raises the same errors as `load_library`. Also raises `SpecError` if a limit is for a specification that `base`
    lacks, if the file has `based_on`, or if `base` has a different specification with the same id.
    """
    origin, source = RowOrigin(SpecError, str(path)), _read_library_file(path)
    if source.based_on is not None:
        problem = "the file is a complete library"
        raise origin.make_error(problem, field="based_on", remedy="pass this file with --library")
    name = f"{base.name}+{path.stem}"
    added = _assemble_library(path.stem, replace(source, limits=()), base.vocabulary)
    # `scoring_content` is everything that decides how a specification is judged.
    base_content = {spec.spec_id: scoring_content(spec) for spec in base}
    new_specs = tuple(spec for spec in added if base_content.get(spec.spec_id) != scoring_content(spec))
    # `legacy` maps older ids to current ids.
    new_legacy = {old: spec_id for old, spec_id in added.legacy.items() if base.legacy.get(old) != spec_id}
    for spec_id in (*(spec.spec_id for spec in new_specs), *new_legacy):
        if spec_id in base:
            remedy = "choose another id, or state the change as a [[replace]] in a library with based_on"
            problem = f"library {base.name!r} already has a specification with that id"
            raise origin.with_subject(spec_id).make_error(problem, field="spec_id", remedy=remedy)
    if new_specs:
        base = Library(name, (*base.specs, *new_specs), {**base.legacy, **new_legacy}, added.vocabulary)
    # Limits may also be for the file's own specifications, as in a complete library.
    return replace(_set_limits(base, source), name=name) if source.limits else base


@cache
def _built_in_library(name: str) -> Library:
    # Return a library of the package. The files of the package do not change, so each library is read once.
    return _assemble_library(name, file_formats.read_built_in(name), file_formats.built_in_tags())


def _read_library_file(path: Path | RuleFile) -> file_formats.LibrarySource:
    # Return the contents of a library file. Raises `SpecError` for another kind of file.
    # Also raises this error for a file that cannot be read, or that has neither specifications nor `[[limits]]`.
    if not str(path).endswith((".toml", ".json", ".jsonl")):
        built_in = suggest_names(str(path), file_formats.BUILT_IN, "built-in libraries")
        is_file = isinstance(path, RuleFile) or os.path.exists(path)
        problem = "rules are not read from this kind of file:" if is_file else "there is no specification library"
        raise SpecError(f"{problem} {str(path)!r}", remedy=f"name a `.toml`, `.json` or `.jsonl` file; {built_in}")
    source = file_formats.read_source(path, str(path))
    if not source.drafts and not source.limits:
        origin = RowOrigin(SpecError, str(path))
        raise origin.make_error("the file has no specification", field="specs", remedy="add [[specs]] tables")
    return source


def _assemble_library(name: str, source: file_formats.LibrarySource, vocabulary: Mapping[str, Tag]) -> Library:
    # Returns the checked library. `vocabulary` has the tags that the file may use in addition to its own tags.
    # `source` holds the unchecked contents of a file. `legacy` maps older ids to current ids. No id may occur twice.
    tags = {**vocabulary, **source.tags}
    specs: list[Spec] = []
    legacy: dict[str, str] = {}
    used_ids: set[str] = set()
    for draft in source.drafts:
        spec_id = draft.row.spec_id
        for new_id in (spec_id, *draft.row.legacy_ids):
            if new_id in used_ids:
                problem = f"the id {new_id!r} is repeated"
                raise draft.origin.make_error(problem, field="spec_id", remedy="choose another id")
            used_ids.add(new_id)
        specs.append(_make_spec(draft, tags))
        legacy |= dict.fromkeys(draft.row.legacy_ids, spec_id)
    return _set_limits(Library(name, tuple(specs), legacy, tags), source)


def _set_limits(base: Library, source: file_formats.LibrarySource) -> Library:
    # Returns the library with the thresholds of the source's `[[limits]]`.
    # Each limit gives a new threshold for a specification.
    # If a limit names suites (groups of tasks), only these suites get the new threshold.
    changed_ids = set[str]()  # specifications whose limit this file changed in all suites
    for limit, origin in source.limits:
        try:
            old = base[limit.spec_id]
            if old.spec_id in changed_ids and limit.threshold != old.threshold and not limit.suites:
                problem = f"the file gives two limits: {old.threshold:g} and {limit.threshold:g}"
                raise SpecError(problem, remedy="keep one of them, or write `suites`")
            file_formats.warn_of_scale(old.spec_id, old.threshold, limit.threshold, old.unit)
            changed = set_limit(base, limit.spec_id, limit.threshold, limit.severe, limit.source, limit.rationale)
            if limit.suites:
                suites = tuple(map(spell_suite, limit.suites))
                changed = _confine_limit(base, changed, old.spec_id, suites)
            else:
                changed_ids.add(changed.specs[base.specs.index(old)].spec_id)
            base = changed
        except SpecError as error:
            raise origin.make_error(error.problem, field="limits", remedy=error.remedy) from None
    return base


def _confine_limit(before: Library, after: Library, spec_id: str, suites: tuple[str, ...]) -> Library:
    # Return `before` with two versions of a specification.
    # The changed version is for `suites`, and the original version for all other suites.
    # `after` has the changed specification at the same position. `spec_id` is the id in `before`.
    index = before.specs.index(before[spec_id])
    # A specification applies only in its `suites` (empty: all), and does not apply in its `except_suites`.
    original, changed = before.specs[index], after.specs[index]
    if original.suites or changed.spec_id in before or {*suites} & {*original.except_suites}:
        problem = f"{spec_id} already has this limit, or another limit for the same suite"
        raise SpecError(problem, remedy="write each limit once, with all its suites")
    pair = (
        replace(original, except_suites=(*original.except_suites, *suites)),
        replace(changed, suites=suites, except_suites=(), alternate_of=original.alternate_of),
    )
    specs = (*before.specs[:index], *pair, *before.specs[index + 1 :])
    return Library(before.name, specs, before.legacy, before.vocabulary)


def _make_spec(draft: file_formats.SpecDraft, tags: Mapping[str, Tag]) -> Spec:
    # Return the checked specification, and warn of parts of the formula that are only judged in the first record.
    # The draft's origin gives the place in errors.
    # A draft is a row of a file, its origin and, for an alternate, the id of the specification that it varies.
    # `tags` maps the name of each known tag to the tag.
    row, origin = draft.row, draft.origin
    if not re.fullmatch(r"[A-Za-z0-9_.@-]+", row.spec_id):
        raise origin.make_error("an id may contain only letters, digits and _.-@", field="spec_id", remedy="rename it")
    for key in ("requires_all", "invalid_if_any"):
        for tag in getattr(row, key):
            if tag not in tags:
                remedy = f"{suggest_names(tag, tags, 'known tags')}; or declare the tag in a TOML file: [tags.<class>]"
                raise origin.make_error(f"unknown tag {tag!r}", field=key, remedy=remedy)
    written = _parse_formula(draft)
    # `judged_once` finds parts outside of temporal operators.
    for part in syntax.judged_once(written):
        problem = f"{row.spec_id}: `{syntax.format_formula(part)}` is only judged in the first record"
        warn_once(f"{problem}; put this part inside G[0,T](...) to judge every record")
    formula, threshold = _read_threshold(draft, written)
    _check_severity(row, formula, origin)
    checked_values: dict[str, Any] = {
        "threshold": threshold,
        "unit": file_formats.canonical_unit(row.unit),
        "stl": row.stl if formula == written else syntax.format_formula(formula),
        "formula": syntax.substitute_threshold(formula, threshold),
        "alternate_of": draft.alternate_of,
    }
    try:
        return Spec(**{key: getattr(row, key) for key in ROW_KEYS if key not in checked_values}, **checked_values)
    except FormulaError as error:  # the unit does not suit the placeholder that replaced the number of a JSON row
        raise origin.make_error(error.problem, field="unit", remedy=error.remedy) from None


def _parse_formula(draft: file_formats.SpecDraft) -> syntax.Formula:
    # Return the formula as written, perhaps with the placeholder `threshold`. Check its units and conditions.
    # A binary specification has no margin, so the margin's unit and the conditions need no check.
    try:
        formula, unit = parse_signal_formula(draft.row.stl), file_formats.canonical_unit(draft.row.unit)
        if not draft.row.binary:
            # First allow any unit of the threshold (None), because messages about other errors are then simpler.
            for threshold_unit in (None, unit):
                checked_formula, margin_unit = check_units(formula, signal_unit, threshold_unit)
                _check_conditions(draft.row, checked_formula, draft.origin)
                _check_unit(draft.row, margin_unit, draft.origin)
        formula = parse_signal_formula(draft.row.stl, unit)
    except FormulaError as error:
        raise draft.origin.make_error(error.problem, field="stl", remedy=error.remedy) from None
    return syntax.make_plain(formula) if draft.row.plain_conditions else formula


def _read_threshold(draft: file_formats.SpecDraft, formula: syntax.Formula) -> tuple[syntax.Formula, float]:
    # Returns formula and threshold. In the formula, the word `threshold` replaces the number that the row states.
    # Without a threshold, a formula of Boolean atoms or events gets BINARY_THRESHOLD, 0.5.
    # `stated_predicate` is the signal and operator that a row of the paper's format states.
    threshold, origin = draft.row.threshold, draft.origin
    if draft.stated_predicate is not None and threshold is not None and not syntax.has_placeholder(formula):
        formula = _restore_stated(draft.stated_predicate, threshold, formula, origin)
    if draft.row.binary and not threshold:
        # If the threshold is missing or 0, comparisons `event <= 0` become `event < threshold`.
        event_formula = syntax.map_predicates(formula, _rewrite_event)
        if event_formula != formula:
            return event_formula, BINARY_THRESHOLD
    has_placeholder = syntax.has_placeholder(formula)
    if threshold is None:
        if has_placeholder or not syntax.is_boolean_only(formula):
            raise origin.make_error("the threshold is missing", field="threshold", remedy="add threshold = NUMBER")
        return formula, BINARY_THRESHOLD
    _check_positive(threshold, "threshold", origin)
    if not has_placeholder:
        problem = f"the formula does not use the threshold {threshold:g}"
        raise origin.make_error(problem, field="stl", remedy="write `threshold` in place of the number")
    return formula, threshold


def _restore_stated(
    stated: file_formats.StatedPredicate, threshold: float, formula: syntax.Formula, origin: RowOrigin
) -> syntax.Formula:
    # Returns the formula with the word `threshold` in place of the number in the comparison that the row states.
    # `stated` is the signal and the operator of this comparison. `origin` is the place that error messages show.
    signal, operator = stated
    if signal not in SIGNALS:
        remedy = suggest_names(signal, SIGNALS, "known signals")
        raise origin.make_error(f"there is no signal {signal!r}", field="signal", remedy=remedy)
    restored = file_formats.restore_placeholder(formula, stated, threshold)
    if restored == formula:
        problem = f"the keys state `{signal} {operator} {threshold:g}`, but the formula does not contain it"
        remedy = f"change the keys signal, operator and threshold, or the formula `{syntax.format_formula(formula)}`"
        raise origin.make_error(problem, field="stl", remedy=remedy)
    return restored


def _rewrite_event(predicate: syntax.Compare) -> syntax.Compare:
    # Returns `event < threshold` for `event <= 0` or `event <= threshold`, and any other comparison unchanged.
    # An event is a numeric signal whose values are 0 and 1, so `event <= 0` and `event < 0.5` are equivalent.
    match predicate:
        case syntax.Compare("<=", syntax.NumericSignal(name), syntax.Number(0.0) | syntax.Threshold()):
            if name in SIGNALS and SIGNALS[name].event:
                return syntax.Compare("<", predicate.left, syntax.Threshold())
    return predicate


def _check_unit(row: file_formats.SpecRow, unit: Unit | None, origin: RowOrigin) -> None:
    # Raise an error if the unit in the row is not the unit of the formula.
    # `unit` is the unit of the formula's margin; None means any unit. `origin` is the place that error messages show.
    if unit is not None and file_formats.canonical_unit(row.unit) != str(unit):
        problem = f"the unit is {row.unit!r}, but the formula's margin is in {str(unit)!r}"
        remedy = f"convert threshold and severe to {str(unit)!r}, and write this unit"
        raise origin.make_error(problem, field="unit", remedy=remedy)


def _check_conditions(row: file_formats.SpecRow, formula: syntax.Formula, origin: RowOrigin) -> None:
    # Raise an error if the formula's condition, such as `a` in `a -> b`, contains the placeholder `threshold`.
    # A threshold there would have no effect on the margin. `origin` is the place that error messages show.
    if with_threshold := list(filter(syntax.has_placeholder, syntax.conditions(formula))):
        text = syntax.format_formula(with_threshold[0])
        problem = f"`threshold` is in a condition, `{text}`; a condition is only true or false and measures no depth"
        remedy = "write a number in the condition and `threshold` where the margin is measured, or add `binary = true`"
        raise origin.make_error(problem, field="stl", remedy=remedy)


def _check_positive(value: float, key: str, origin: RowOrigin) -> None:
    # Raise an error unless the value is positive and finite. The error names the field `key` of the row at `origin`.
    if not (math.isfinite(value) and value > 0):
        remedy = "give a positive magnitude; a lower bound is written `> -threshold`"
        raise origin.make_error(f"{key} is {value}, but it must be positive and finite", field=key, remedy=remedy)


def _check_severity(row: file_formats.SpecRow, formula: syntax.Formula, origin: RowOrigin) -> None:
    # Raise an error if the keys `binary` and `severe` contradict the formula, the tier or each other.
    # A violation that exceeds the limit by `severe` or more has depth 1.
    # A violation of a binary specification always has depth 1.
    # A diagnostic specification is not scored and needs no severe magnitude.
    # `origin` is the place that error messages show.
    if syntax.is_boolean_only(formula) and not row.binary:
        problem = "only the formula's conditions compare numbers, so violations have no depth and are binary"
        raise origin.make_error(problem, field="binary", remedy="add binary = true")
    if row.severe is not None:
        _check_positive(row.severe, "severe", origin)
        if row.binary:
            problem = "a binary specification cannot have a severe magnitude"
            raise origin.make_error(problem, field="severe", remedy="omit the key severe")
    elif not row.binary and row.tier != "diagnostic":
        remedy = "add severe = NUMBER (a violation this far beyond the limit has depth 1), or binary = true"
        raise origin.make_error("a scored specification needs a severe magnitude", field="severe", remedy=remedy)


# Changes of thresholds, and trials of specifications on simple traces


_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*")
_MULTIPLES = (0.0, 0.5, 0.9, 1.1, 1.5, 3.0)
_MAX_TRACES = 20_000
_DT_S = 0.05
_LARGEST = 1e300


def proportional_severe(spec: Spec, threshold: float) -> float | None:
    """Return the severe magnitude for a new threshold, at constant severe/threshold; None if `severe` is None."""
    # A violation that exceeds the limit by `severe` or more has depth 1. Fractions avoid rounding errors of the ratio.
    scale = Fraction(threshold) / Fraction(spec.threshold)
    return None if spec.severe is None else float(Fraction(spec.severe) * scale)


def severe_magnitude(library: Library, spec: Spec, threshold: float) -> float | None:
    """Return the severe magnitude of the alternate with this threshold, or else the result of `proportional_severe`.
    Both start from `spec.original`, if set, else from `spec`, so that equal ids have equal magnitudes.
    """
    # `original` is the specification before its threshold was changed.
    # An alternate has a different threshold, and names the original specification in `alternate_of`.
    original = spec.original or spec
    # A change back to the original threshold gives back the original magnitude.
    if threshold == original.threshold:
        return original.severe
    anchor = (original.spec_id, threshold)
    severes = (other.severe for other in library if (other.alternate_of, other.threshold) == anchor)
    return next(severes, proportional_severe(original, threshold))


def set_thresholds(library: Library, changes: Sequence[str]) -> Library:
    """Return the library with new thresholds; each change is a text `SPEC=VALUE`, in which VALUE may have a unit.
    `severe_magnitude` gives the new severe magnitude. The new id ends in the threshold, such as
    `max_contact_force_under_200N@100N`, and the library's name gets the suffix `+ID` with this id. Raises `SpecError`
    for a text that is not `SPEC=VALUE`, and for a specification that does not exist or has no threshold. Also raises it
    for a value that is not positive or has an unsuitable unit, and for two different values of one specification.
    """
    # Maps a specification's position to the text of the change and the new threshold.
    change_by_index: dict[int, tuple[str, float]] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            problem = f"--set {change!r} does not give a value"
            raise SpecError(problem, remedy="write `SPEC=VALUE`, such as `joint_torque=1.5`")
        spec = library[name.strip()]
        threshold = _read_quantity(spec, text)
        # `set_limit` keeps the order of the specifications, so an index stays valid.
        earlier, value = change_by_index.setdefault(library.specs.index(spec), (change, threshold))
        if value != threshold:
            problem = f"--set {earlier!r} and --set {change!r} give two thresholds for one specification"
            raise SpecError(problem, remedy="keep one of the two thresholds")
        if threshold == spec.threshold:
            continue
        library = set_limit(library, spec.spec_id, threshold)
        changed_id = library.canonical_id(_threshold_id(spec, threshold))
        library = replace(library, name=f"{library.name}+{changed_id}")
    return library


def set_limit(
    library: Library,
    spec_id: str,
    threshold: float,
    severe: float | None = None,
    source: str | None = None,
    rationale: str | None = None,
) -> Library:
    """Return the library with a new threshold for a specification. A changed threshold ends the new id,
    as in `ID@100N`. The order stays. If `severe` is None, `severe_magnitude` gives it. Raises `SpecError` if there is
    no such specification, if it has no threshold, or if a number is not positive and finite.
    """
    # A violation that exceeds the limit by `severe` or more has depth 1.
    # If the threshold does not change, the id stays. The severe magnitude also stays, unless `severe` is given.
    # `source` and `rationale` replace the specification's texts; None = unchanged.
    # `original` is the specification before its threshold was changed.
    spec = library[spec_id]
    for name, value in (("threshold", threshold), ("severe magnitude", severe)):
        if value is not None and not 0 < value < math.inf:
            problem = f"the {name} of {spec_id} is {value:g}, but it must be positive and finite"
            raise SpecError(problem, remedy=f"write a positive number in the unit {spec.unit}")
    changed = spec
    if threshold != spec.threshold:
        written = spec.written_formula
        # An event is 0 or 1, so a specification that reads only events has no threshold that a user could choose.
        if not syntax.has_placeholder(written) or all(SIGNALS[name].event for name in spec.signals):
            remedy = "choose a specification with a numeric threshold"
            raise SpecError(f"{spec_id} has no threshold to set", remedy=remedy)
        if _threshold_id(spec, threshold) in library:
            problem = f"library {library.name!r} already has {_threshold_id(spec, threshold)}"
            remedy = "leave out the change, or rename the other specification"
            if is_confined(library[_threshold_id(spec, threshold)]):
                remedy = "write each limit once, with all its suites"
            raise SpecError(problem, remedy=remedy)
        changed = replace(
            spec,
            spec_id=_threshold_id(spec, threshold),
            formula=syntax.substitute_threshold(written, threshold),
            threshold=threshold,
            severe=severe_magnitude(library, spec, threshold),
        )
    arguments: dict[str, Any] = {"severe": severe, "source": source or None, "rationale": rationale or None}
    given = {name: value for name, value in arguments.items() if value is not None}
    # If `severe` was given, later changes of the threshold keep the ratio of `severe` to the new threshold.
    changed = replace(changed, **given, original=None if severe is not None else spec.original or spec)
    # Older ids in `legacy` follow the specification to its new id.
    specs = tuple(changed if old.spec_id == spec.spec_id else old for old in library)
    legacy = {old: changed.spec_id if new == spec.spec_id else new for old, new in library.legacy.items()}
    return Library(library.name, specs, legacy, library.vocabulary)


def _threshold_id(spec: Spec, threshold: float) -> str:
    # Return the id with a new threshold, such as `ID@100N`; an earlier suffix `@...` is replaced.
    return f"{spec.spec_id.partition('@')[0]}@{file_formats.id_suffix(threshold, spec.unit)}"


def _read_quantity(spec: Spec, text: str) -> float:
    # Returns the threshold that a text such as `5 mm` gives, in the unit of the specification.
    # A threshold in the unit 1 is a ratio, which may be given in percent. Fractions avoid rounding errors.
    # Raises `SpecError` for an unsuitable text. `_LARGEST` (1e300) is a limit that no real threshold reaches.
    match = _QUANTITY.fullmatch(text)
    units = [spec.unit, *(["%"] if spec.unit == "1" else equivalent_symbols(spec.unit))]
    if match is None:
        remedy = f"write a number in {spec.unit!r} (such as {spec.spec_id}={spec.threshold:g})"
        raise SpecError(f"{text!r} is not a valid threshold of {spec.spec_id}", remedy=remedy)
    number, written_unit = match.groups()
    is_percent = spec.unit == "1" and written_unit == "%"
    # The factor converts the written unit to the specification's unit.
    # The factor is None if the written unit is unknown or measures a different quantity.
    factor = Fraction(1, 100) if is_percent else unit_ratio(written_unit or spec.unit, spec.unit)
    if factor is None:
        actual = "is a ratio" if spec.unit == "1" else f"is in {spec.unit!r}"
        problem = f"the threshold of {spec.spec_id} {actual}, not in {written_unit!r}"
        names = ("a number without a unit" if name == "1" else name for name in units)
        raise SpecError(problem, remedy=f"give the threshold as {' or '.join(names)}")
    exact = Fraction(number) * factor
    if not 0 < exact < _LARGEST:
        remedy = "give a positive magnitude; a lower bound is written `> -threshold` in the formula"
        problem = f"the threshold of {spec.spec_id} is {text.strip()}, but it must be positive and finite"
        raise SpecError(problem, remedy=remedy)
    # Require a unit if it is unclear: a length may be meant in mm, and a large number is probably in a smaller unit.
    if not written_unit and (spec.unit == "m" or exact > 10 * Fraction(spec.threshold)):
        limit = f"{spec.threshold:g}{'' if spec.unit == '1' else ' ' + spec.unit}"
        examples = [f"{100 * float(exact):g}%"] if spec.unit == "1" else [f"{number}{unit}" for unit in units]
        remedy = f"write the unit: {' or '.join(examples)}"
        raise SpecError(f"{number} has no unit, but the current limit of {spec.spec_id} is {limit}", remedy=remedy)
    return float(exact)


@dataclass(frozen=True, slots=True)
class TrialTrace:
    """A short trace: the values of each signal, by name, in its `N` records, and the robustness of a formula on it."""

    signals: Mapping[str, Sequence[float | bool]]
    rho: float

    def describe(self) -> str:
        """Return the signals with their values and units as one line."""
        # `signals` maps a signal's name to its values in the records of a short trace.
        # The unit 1 (a pure number) is not shown.
        return "; ".join(
            f"{name} {', '.join(map(_format_value, values))} {SIGNALS[name].unit.removeprefix('1')}".rstrip()
            for name, values in self.signals.items()
        )


def _format_value(value: float | bool) -> str:
    # Return a number or a Boolean as text; Booleans are `true` and `false`, as in TOML.
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


@dataclass(frozen=True, slots=True)
class SpecTrial:
    """A specification, a trace that satisfies it (`kept`; None if none was found), and traces that violate it
    (`broken`). A comparison decides a trace of `broken` if replacing the comparison by true or by false makes the trace
    satisfy the formula. `idle` lists the comparisons that decide no trace.
    """

    spec: Spec
    kept: TrialTrace | None
    broken: tuple[TrialTrace, ...]
    idle: tuple[str, ...]


def try_spec(spec: Spec) -> SpecTrial:
    """Find simple traces of four records: one that satisfies a specification, and some that violate it.

    In two or in all records, a numeric signal is a multiple of a value at which a comparison becomes true or false; in
    all other records it is 0. A Boolean signal is true in all, two or no records. Traces near the limit are preferred.
    """
    # `rho` has one robustness per trace; negative means violated.
    # `broken` has the indices of the chosen violating traces, and `idle` the comparisons that decide no trace.
    trace = _simple_traces(spec.formula)
    rho = robustness(spec.formula, trace)
    # The largest value belongs to the violation nearest to the limit. A trace without a violation gets minus infinity.
    # `_LARGEST` (1e300) replaces infinite violations, so that they differ from traces without a violation.
    violated_rho = np.where(rho < 0, np.maximum(rho, -_LARGEST), -np.inf)
    broken, idle = list[int](), list[str]()
    nodes = (node for node in syntax.walk_nodes(spec.formula) if isinstance(node, syntax.Compare))
    for predicate in dict.fromkeys(nodes):
        # The comparison decides a violated trace if the formula would be satisfied with `true` or `false` in its place.
        new_rhos = [robustness(_replace_predicate(spec.formula, predicate, truth), trace) for truth in (True, False)]
        is_decided = (rho < 0) & (np.maximum(*new_rhos) >= 0)
        if not is_decided.any():
            idle.append(syntax.format_formula(predicate))
        # If this comparison decides a trace that was chosen already, no further trace is needed.
        elif not is_decided[broken].any():
            broken.append(int(np.where(is_decided, violated_rho, -np.inf).argmax()))
    if not broken and (rho < 0).any():
        broken = [int(violated_rho.argmax())]
    # Among the traces that satisfy the formula, choose the one nearest to the limit.
    kept_rho = np.where(rho >= 0, rho, np.nan)
    kept_trace = None if np.isnan(kept_rho).all() else _cut_trace(trace, rho, int(np.nanargmin(kept_rho)))
    return SpecTrial(spec, kept_trace, tuple(_cut_trace(trace, rho, episode) for episode in broken), tuple(idle))


def _replace_predicate(formula: syntax.Formula, predicate: syntax.Compare, truth: bool) -> syntax.Formula:
    # Returns the formula with `truth` in place of each occurrence of the predicate.
    def visit(node: syntax.Node) -> syntax.Node:
        # Return the node with `truth` in place of each occurrence of the predicate.
        return syntax.Truth(truth) if node == predicate else syntax.map_children(node, visit)

    return cast(syntax.Formula, visit(formula))


def _cut_trace(trace: Trace, rho: NDArray[np.float64], episode: int) -> TrialTrace:
    # Returns one episode of `trace` as a `TrialTrace`.
    # `rho` has the robustness of each episode.
    # `starts` has the first row of each episode, and then the number of all rows.
    rows = slice(int(trace.starts[episode]), int(trace.starts[episode + 1]))
    return TrialTrace({name: values[rows].tolist() for name, values in trace.signals.items()}, float(rho[episode]))


def _simple_traces(formula: syntax.Formula) -> Trace:
    """Return the traces that `try_spec` tries. If the formula has windows, the time stamps span all windows."""
    # The result has many episodes of four records. At a turning value of a signal, a comparison becomes true or false.
    # Boolean signals come first. The first signal changes most slowly in `product`.
    names = sorted(syntax.signal_names(formula), key=lambda name: (not SIGNALS[name].boolean, name))
    turning_values = {name: _turning_values(formula, name) for name in names if not SIGNALS[name].boolean}
    patterns = [(True,) * 4, (False, True, True, False), (False,) * 4]
    # If there are more than `_MAX_TRACES` (20,000) combinations, fewer multiples than `_MULTIPLES` (0 to 3) are tried.
    for multiples in (_MULTIPLES, (0.0, 0.9, 1.1, 3.0), (0.9, 1.1)):
        # `choices` has a list for each signal in `names`: Boolean patterns, or multiples of a signal's turning values.
        choices: list[list[Any]] = []
        for name in names:
            scaled = [multiple * value for multiple, value in product(multiples, turning_values.get(name, ()))]
            choices.append([*dict.fromkeys(scaled)] if name in turning_values else patterns)
        if math.prod(map(len, choices)) <= _MAX_TRACES:
            break
    rows = list(islice(product(*choices), _MAX_TRACES))  # each row has a choice for each signal
    # The row of ones can satisfy lower bounds. The last row can satisfy conditions that must become true in time.
    shapes = np.array([(0.0, 1.0, 1.0, 0.0), (1.0,) * 4, (1.0, 0.0, 0.0, 1.0)])
    signals: dict[str, NDArray[np.float64] | NDArray[np.bool_]] = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        if name in turning_values:
            # Each value times each shape gives one episode of four records.
            # The episodes of one shape follow each other.
            signals[name] = (np.array(values)[None, :, None] * shapes[:, None]).ravel() + 0.0  # turns -0.0 into 0.0
        else:
            signals[name] = np.tile(np.array(values), (len(shapes), 1)).ravel()
    count, windows = len(shapes) * max(len(rows), 1), syntax.bounded_windows(formula)
    # The stamps of four records must span the sum of all windows.
    span_s = sum(window.start_s if window.end_s is None else window.end_s for window in windows)
    stamps_s = np.tile(np.arange(4) * max(_DT_S, span_s / 3), count) if windows else None
    return Trace(signals, np.arange(count + 1) * 4, np.full(count, _DT_S), time_s=stamps_s)


def _turning_values(formula: syntax.Formula, name: str) -> list[float]:
    """Return the values of a signal at which a comparison changes while all other signals are 0, or while all are 1. A
    value of 0 becomes 1. Without such values, return [1.0]. The values are exact for linear margins.
    """
    values = list[float]()
    comparisons = (node for node in syntax.walk_nodes(formula) if isinstance(node, syntax.Compare))
    predicates = [node for node in comparisons if name in syntax.signal_names(node)]
    for predicate, other_value in product(predicates, (0.0, 1.0)):
        # Compute the margin for the signal's values 0 and 1.
        # If the margin is linear, these two margins determine the value of the signal at which the margin is 0.
        names = syntax.signal_names(predicate)
        signals = {other: np.array([0.0, 1.0]) if other == name else np.full(2, other_value) for other in names}
        with suppress(SignalError):  # no margin for these values: skip the predicate
            first, second = predicate_margin(predicate, Trace(signals, np.array([0, 2]), np.array([_DT_S])))
            # The signal's value at which the line through (0, first) and (1, second) reaches 0.
            if first != second:
                values.append(float(first / (first - second)))
    return [*dict.fromkeys(value or 1.0 for value in values)] or [1.0]
