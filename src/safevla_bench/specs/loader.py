"""The loader of libraries, by name or from a file, other thresholds for their specifications, and trials of these.

A contradiction is an error that names file, row, key and remedy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import FormulaError, SpecError
from safevla_bench.signals import parse_formula
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.specs import file_formats
from safevla_bench.specs.spec import ROW_KEYS, Library, Spec, Tag, scoring_content
from safevla_bench.specs.table_reader import RowOrigin, RuleFile
from safevla_bench.stl import formula as syntax
from safevla_bench.stl.formula import Formula, format_formula, has_placeholder, is_boolean_only, substitute_threshold
from safevla_bench.stl.robustness import robustness
from safevla_bench.stl.trace import Trace
from safevla_bench.text import suggest_names

BINARY_THRESHOLD = 0.5
"""Threshold of a specification whose atoms are all Boolean: an event is 0 or 1 (paper Appendix C)."""


def library(name_or_path: str | Path | RuleFile = "default") -> Library:
    """Return a library by its name (`default`, `paper-text`, `paper-as-run`), or from a file, with the file's name.

    A file that is called as a built-in library and judges otherwise is `file NAME.SUFFIX`. A file is TOML, or holds
    unchanged rows of the paper's JSON schema: one object or a list; in a .jsonl file one object per line.

    Raises `SpecError`, naming file, specification and key, if it does not exist or contradicts itself.
    """
    if is_built_in(name_or_path):
        return _built_in_library(str(name_or_path))
    path = name_or_path if isinstance(name_or_path, RuleFile) else Path(name_or_path)
    source = _read_library_file(path)
    if not source.drafts:
        problem = "holds [[limits]] alone, and no specification"
        raise RowOrigin(SpecError, str(path)).make_error(problem, field="specs", remedy="pass it with --rules")
    read = _assemble_library(path.stem, source, file_formats.built_in_tags())
    namesake = re.split(r"[+@]", path.stem)[0]
    is_other = namesake in file_formats.BUILT_IN and (
        path.stem != namesake or read.digest != _built_in_library(namesake).digest
    )
    return replace(read, name=f"file {Path(path.name).name}") if is_other else read


def is_built_in(library: str | Path | RuleFile) -> bool:
    """Return whether this is the name of a built-in library; any other is a file."""
    return not isinstance(library, RuleFile) and str(library) in file_formats.BUILT_IN


def extend_library(base: Library, path: Path | RuleFile) -> Library:
    """Return `base` with the specifications of a file after its own, and the file's `[[limits]]` in place of its own.

    A specification that `base` has already, judged in the same way, is not added again. The name becomes `BASE+FILE`;
    `base` itself is returned if nothing is new.

    Raises `SpecError` as `library` does, for a limit of a specification that `base` lacks, for a file with `based_on`,
    and for an id that the library has for something else.
    """
    origin, source = RowOrigin(SpecError, str(path)), _read_library_file(path)
    if source.based_on is not None:
        raise origin.make_error("is a library by itself", field="based_on", remedy="pass it with --library")
    base = replace(_set_limits(base, source), name=f"{base.name}+{path.stem}") if source.limits else base
    added = _assemble_library(path.stem, replace(source, limits=()), base.vocabulary)
    known = {spec.spec_id: scoring_content(spec) for spec in base}
    new = tuple(spec for spec in added if known.get(spec.spec_id) != scoring_content(spec))
    if not new:
        return base
    new_legacy = {old: spec_id for old, spec_id in added.legacy.items() if base.legacy.get(old) != spec_id}
    for spec_id in (*(spec.spec_id for spec in new), *new_legacy):
        if spec_id in base:
            remedy = "choose another id, or state the change as a [[replace]] in a library with based_on"
            problem = f"library {base.name!r} has a specification of that id already"
            raise origin.with_subject(spec_id).make_error(problem, field="spec_id", remedy=remedy)
    name = base.name if source.limits else f"{base.name}+{path.stem}"
    return Library(name, (*base.specs, *new), {**base.legacy, **new_legacy}, added.vocabulary)


@cache
def _built_in_library(name: str) -> Library:
    return _assemble_library(name, file_formats.read_built_in(name), file_formats.built_in_tags())


def _read_library_file(path: Path | RuleFile) -> file_formats.LibrarySource:
    if not str(path).endswith((".toml", ".json", ".jsonl")):
        remedy = f"built-in: {', '.join(file_formats.BUILT_IN)}; or the path of a .toml, .json or .jsonl file"
        raise SpecError(f"there is no specification library {str(path)!r}", remedy=remedy)
    source = file_formats.read_source(path, str(path))
    if not source.drafts and not source.limits:
        raise RowOrigin(SpecError, str(path)).make_error(
            "holds no specification", field="specs", remedy="add [[specs]] tables"
        )
    return source


def _assemble_library(name: str, source: file_formats.LibrarySource, vocabulary: Mapping[str, Tag]) -> Library:
    tags = {**vocabulary, **source.tags}
    specs: list[Spec] = []
    legacy: dict[str, str] = {}
    taken: set[str] = set()
    for entry in source.drafts:
        spec_id = entry.row.spec_id
        for claimed in (spec_id, *entry.row.legacy_ids):
            if claimed in taken:
                problem = f"id {claimed!r} is repeated"
                raise entry.origin.make_error(problem, field="spec_id", remedy="choose another id")
            taken.add(claimed)
        specs.append(_make_spec(entry, tags))
        legacy |= dict.fromkeys(entry.row.legacy_ids, spec_id)
    return _set_limits(Library(name, tuple(specs), legacy, tags), source)


def _set_limits(base: Library, source: file_formats.LibrarySource) -> Library:
    for limit, origin in source.limits:
        try:
            base = set_limit(base, limit.spec_id, limit.threshold, limit.severe, limit.source, limit.rationale)
        except SpecError as error:
            raise origin.make_error(error.problem, field="limits", remedy=error.remedy) from None
    return base


def _make_spec(entry: file_formats.SpecDraft, tags: Mapping[str, Tag]) -> Spec:
    row, origin = entry.row, entry.origin
    if not re.fullmatch(r"[A-Za-z0-9_.@-]+", row.spec_id):
        raise origin.make_error("an id is made of letters, digits and _ . - @", field="spec_id", remedy="rename it")
    for key in ("requires_all", "invalid_if_any"):
        for tag in getattr(row, key):
            if tag not in tags:
                remedy = f"{suggest_names(tag, tags, 'known tags')}; or declare it under [tags.<class>] in a TOML file"
                raise origin.make_error(f"unknown tag {tag!r}", field=key, remedy=remedy)
    formula = _parse_formula(entry)
    parsed, (formula, threshold) = formula, _read_threshold(entry, formula)
    _check_unit(row, formula, origin)
    _check_severity(row, formula, origin)
    checked: dict[str, Any] = {
        "threshold": threshold,
        "unit": file_formats.canonical_unit(row.unit),
        "stl": row.stl if formula == parsed else format_formula(formula),
        "formula": substitute_threshold(formula, threshold),
        "alternate_of": entry.alternate_of,
    }
    return Spec(**{key: getattr(row, key) for key in ROW_KEYS if key not in checked}, **checked)


def _parse_formula(entry: file_formats.SpecDraft) -> Formula:
    try:
        return parse_formula(entry.row.stl)
    except FormulaError as error:
        raise entry.origin.make_error(error.problem, field="stl", remedy=error.remedy) from None


def _read_threshold(entry: file_formats.SpecDraft, formula: Formula) -> tuple[Formula, float]:
    """Return the formula, with the placeholder `threshold` for the number, and the threshold."""
    threshold, origin = entry.row.threshold, entry.origin
    if entry.stated_predicate is not None and threshold is not None and not has_placeholder(formula):
        formula = _restore_stated(entry.stated_predicate, threshold, formula, origin)
    if entry.row.binary and not threshold:
        event_formula = syntax.map_predicates(formula, _event_predicate)
        if event_formula != formula:
            return event_formula, BINARY_THRESHOLD
    holds = has_placeholder(formula)
    if threshold is None:
        if holds or not is_boolean_only(formula):
            raise origin.make_error("has no threshold", field="threshold", remedy="add threshold = NUMBER, positive")
        return formula, BINARY_THRESHOLD
    _check_positive(threshold, "threshold", origin)
    if not holds:
        problem = f"the formula does not use the threshold {threshold:g}"
        raise origin.make_error(problem, field="stl", remedy="write `threshold` in place of the number")
    return formula, threshold


def _restore_stated(
    stated: file_formats.StatedPredicate, threshold: float, formula: Formula, origin: RowOrigin
) -> Formula:
    """Return the formula with `threshold` in the predicate that a JSON row names by signal, operator and threshold."""
    signal, operator = stated
    if signal not in SIGNALS:
        remedy = suggest_names(signal, SIGNALS, "known signals")
        raise origin.make_error(f"there is no signal {signal!r}", field="signal", remedy=remedy)
    restored = file_formats.restore_placeholder(formula, stated, threshold)
    if restored == formula:
        problem = f"the formula nowhere says `{signal} {operator} {threshold:g}`, as signal, operator and threshold do"
        remedy = f"the formula is `{format_formula(formula)}`: correct it, or signal, operator or threshold"
        raise origin.make_error(problem, field="stl", remedy=remedy)
    return restored


def _event_predicate(predicate: syntax.Compare) -> syntax.Compare:
    match predicate:
        case syntax.Compare("<=", syntax.NumericSignal(name), syntax.Number(0.0) | syntax.Threshold()):
            if name in SIGNALS and SIGNALS[name].event:
                return syntax.Compare("<", predicate.left, syntax.Threshold())
    return predicate


def _check_unit(row: file_formats.SpecRow, formula: Formula, origin: RowOrigin) -> None:
    for predicate in (node for node in syntax.walk_nodes(formula) if isinstance(node, syntax.Compare)):
        nodes = list(syntax.walk_nodes(predicate))
        if not has_placeholder(predicate) or any(
            isinstance(node, syntax.Arithmetic) and node.operator in "*/" for node in nodes
        ):
            continue
        for name in (node.name for node in nodes if isinstance(node, syntax.NumericSignal)):
            if SIGNALS[name].unit != file_formats.canonical_unit(row.unit):
                problem = f"its unit is {row.unit!r}, but the signal {name} is in {SIGNALS[name].unit!r}"
                remedy = f"state threshold and severe in {SIGNALS[name].unit!r}, and that as the unit"
                raise origin.make_error(problem, field="unit", remedy=remedy)


def _check_positive(value: float, key: str, origin: RowOrigin) -> None:
    if not (math.isfinite(value) and value > 0):
        remedy = "give a positive magnitude; a lower bound is written `> -threshold`"
        raise origin.make_error(f"{key} is {value}, not positive and finite", field=key, remedy=remedy)


def _check_severity(row: file_formats.SpecRow, formula: Formula, origin: RowOrigin) -> None:
    if is_boolean_only(formula) and not row.binary:
        problem = "all atoms are Boolean, so that no violation has a depth, yet it is not binary"
        raise origin.make_error(problem, field="binary", remedy="add binary = true")
    if row.severe is not None:
        _check_positive(row.severe, "severe", origin)
        if row.binary:
            raise origin.make_error(
                "a binary specification has no severe magnitude", field="severe", remedy="leave it out"
            )
    elif not row.binary and row.tier != "diagnostic":
        remedy = "add severe = NUMBER (the magnitude of full depth), or binary = true"
        raise origin.make_error("a scored specification has no severe magnitude", field="severe", remedy=remedy)


# Other thresholds, and two simple traces of each specification


_SMALLER_UNITS = {"m": {"mm": Fraction(1, 1000), "cm": Fraction(1, 100)}, "1": {"%": Fraction(1, 100)}}
"""Unit of signals -> other units that a threshold may be given in, and their size."""
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(\S*)\s*")
_SHARES = (0.0, 0.5, 0.9, 1.1, 1.5, 3.0)
_DT_S = 0.05
_LARGEST = 10**300


def proportional_severe(spec: Spec, threshold: float) -> float | None:
    """Return the severe magnitude that keeps K = severe/threshold.

    None if the specification has no severe magnitude.
    """
    scale = Fraction(threshold) / Fraction(spec.threshold)
    return None if spec.severe is None else float(Fraction(spec.severe) * scale)


def severe_magnitude(library: Library, spec: Spec, threshold: float) -> float | None:
    """Return the severe magnitude of the alternate with this threshold, else the proportional one.

    None if the specification has none.
    """
    anchors = (other.severe for other in library if (other.alternate_of, other.threshold) == (spec.spec_id, threshold))
    return next(anchors, proportional_severe(spec, threshold))


def set_thresholds(library: Library, changes: Sequence[str]) -> Library:
    """Return the library with other thresholds, each change as `SPEC=VALUE`, where a unit may follow the value.

    The severe magnitude follows as in `severe_magnitude`, and the id names the threshold, as after a `[[replace]]`:
    `max_contact_force_under_200N@100N`. The library's name gets `+ID` for each change. Raises `SpecError` for another
    form, a specification that does not exist or has no threshold, and a value that is not positive in its unit.
    """
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise SpecError(f"--set {change!r} sets nothing", remedy="write SPEC=VALUE, such as joint_torque=1.5")
        spec = library[name.strip()]
        threshold = _read_quantity(spec, text)
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
    """Return the library with another threshold of a specification, whose id then ends in it: `ID@100N`.

    The order stays. Without `severe` it follows as in `severe_magnitude`. Raises `SpecError` as `set_thresholds` does.
    """
    spec = library[spec_id]
    for name, value in (("threshold", threshold), ("severe magnitude", severe)):
        if value is not None and not 0 < value < math.inf:
            problem = f"the {name} of {spec_id} is {value:g}, not positive and finite"
            raise SpecError(problem, remedy=f"write a positive number of {spec.unit}")
    changed = spec
    if threshold != spec.threshold:
        written = parse_formula(spec.stl)
        if not has_placeholder(written) or all(SIGNALS[name].event for name in spec.signals):
            raise SpecError(f"{spec_id} has no threshold to set", remedy="it judges whether something happens at all")
        changed = replace(
            spec,
            spec_id=_threshold_id(spec, threshold),
            formula=substitute_threshold(written, threshold),
            threshold=threshold,
            severe=severe_magnitude(library, spec, threshold),
        )
    given: dict[str, Any] = {"severe": severe, "source": source or None, "rationale": rationale or None}
    changed = replace(changed, **{name: value for name, value in given.items() if value is not None})
    specs = tuple(changed if old.spec_id == spec.spec_id else old for old in library)
    legacy = {old: changed.spec_id if new == spec.spec_id else new for old, new in library.legacy.items()}
    return Library(library.name, specs, legacy, library.vocabulary)


def _threshold_id(spec: Spec, threshold: float) -> str:
    return f"{spec.spec_id.partition('@')[0]}@{file_formats.id_suffix(threshold, spec.unit)}"


def _read_quantity(spec: Spec, text: str) -> float:
    match = _QUANTITY.fullmatch(text)
    units = {spec.unit: Fraction(1), **_SMALLER_UNITS.get(spec.unit, {})}
    if match is None:
        remedy = f"write a number in {spec.unit!r}, such as {spec.spec_id}={spec.threshold:g}"
        raise SpecError(f"{text!r} is no threshold of {spec.spec_id}", remedy=remedy)
    number, written_unit = match.groups()
    unit = file_formats.canonical_unit(written_unit) if written_unit else spec.unit
    if unit not in units:
        problem = f"the threshold of {spec.spec_id} is in {spec.unit!r}, not in {written_unit!r}"
        raise SpecError(problem, remedy=f"give it in one of: {', '.join(units)}")
    exact = Fraction(number) * units[unit]
    if not 0 < exact < _LARGEST:
        remedy = "give a positive magnitude; a lower bound is written `> -threshold` in the formula"
        raise SpecError(f"the threshold of {spec.spec_id} is {text.strip()}, not positive and finite", remedy=remedy)
    if not written_unit and (spec.unit == "m" or exact > 10 * Fraction(spec.threshold)):
        limit = f"{spec.threshold:g}{'' if spec.unit == '1' else ' ' + spec.unit}"
        named = [f"{100 * float(exact):g}%"] if spec.unit == "1" else [f"{number}{unit}" for unit in units]
        remedy = f"write the unit: {' or '.join(named)}"
        raise SpecError(f"{number} has no unit, and the limit of {spec.spec_id} is {limit}", remedy=remedy)
    return float(exact)


@dataclass(frozen=True, slots=True)
class TrialTrace:
    """Signals of a few records, name -> [N], and the robustness of a formula on them."""

    signals: Mapping[str, Sequence[float | bool]]
    rho: float

    def describe(self) -> str:
        """Return the signals and their values as one line."""
        return "; ".join(
            f"{name} {', '.join(str(value).lower() if isinstance(value, bool) else f'{value:g}' for value in values)}"
            for name, values in self.signals.items()
        )


@dataclass(frozen=True, slots=True)
class SpecTrial:
    """A specification on two traces: one that it finds safe, and one that breaks it; None where none was found."""

    spec: Spec
    kept: TrialTrace | None
    broken: TrialTrace | None


def try_spec(spec: Spec) -> SpecTrial:
    """Find two simple traces of four records, one that satisfies a specification and one that violates it.

    A numeric signal rises for two records to a share of the number that it is compared with; a Boolean one is true
    there, throughout, or never. Of the traces tried these are the two nearest to the limit.
    """
    traces = list(_simple_traces(spec))
    safe = [trace for trace in traces if trace.rho >= 0]
    broken = [trace for trace in traces if trace.rho < 0]
    return SpecTrial(
        spec,
        min(safe, key=lambda trace: trace.rho, default=None),
        max(broken, key=lambda trace: trace.rho, default=None),
    )


def _simple_traces(spec: Spec) -> Iterator[TrialTrace]:
    limits = dict(_limits(spec.formula))
    booleans = sorted(name for name in spec.signals if SIGNALS[name].boolean)
    shapes = ((0.0, 1.0, 1.0, 0.0), (1.0,) * 4)  # the second for what must stay above a limit
    for shape, pattern in product(shapes, ((True,) * 4, (False, True, True, False), (False,) * 4)):
        for share in _SHARES:
            signals: dict[str, NDArray[np.float64] | NDArray[np.bool_]] = {
                name: np.array(pattern, dtype=np.bool_) for name in booleans
            }
            for name in sorted(spec.signals - set(booleans)):
                signals[name] = np.array(shape) * share * limits.get(name, spec.threshold)
            trace = Trace(signals, np.array([0, 4], dtype=np.int64), np.array([_DT_S]))
            rho = float(robustness(spec.formula, trace)[0])
            yield TrialTrace({name: values.tolist() for name, values in signals.items()}, rho)


def _limits(formula: Formula) -> Iterator[tuple[str, float]]:
    for predicate in (node for node in syntax.walk_nodes(formula) if isinstance(node, syntax.Compare)):
        nodes = list(syntax.walk_nodes(predicate))
        numbers = [node.value for node in nodes if isinstance(node, syntax.Number)]
        names = [node.name for node in nodes if isinstance(node, syntax.NumericSignal)]
        is_negated = any(isinstance(node, syntax.Negate) for node in nodes)
        if len(numbers) == 1 and len(names) == 1:
            yield names[0], (-numbers[0] if is_negated else numbers[0]) or 1.0
