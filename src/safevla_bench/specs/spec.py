"""Specifications and their libraries (paper Section 3.1): as values that the loader has checked, and as plain rows."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from typing import Literal

from safevla_bench.errors import SpecError
from safevla_bench.signals import parse_signal_formula
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.stl import formula as syntax

Tier = Literal["safe", "alternate", "diagnostic"]
"""Only `safe` is scored. `alternate` is a new threshold of a scored specification; `diagnostic` is informative."""
Axis = Literal["scene_interaction", "object_handling", "execution"]
TagClass = Literal["capability", "mechanism", "object", "special_case"]


@dataclass(frozen=True, slots=True)
class Tag:
    """A word that describes tasks. Tags decide which specifications apply to a task (paper Table 14)."""

    name: str
    kind: TagClass
    meaning: str


@dataclass(frozen=True, slots=True)
class Spec:
    """One specification. `threshold` and `severe` are positive magnitudes in `unit`; severe / threshold is `K` of the
    paper's Eq. 1. `severe` is None if violations have no graded depth. `stl` is the formula's text, with the word
    `threshold` in place of the number; `formula`, which judges episodes, must be `stl` parsed with the number, or else
    `SpecError` is raised. A task must have every tag of `requires_all` and no tag of `invalid_if_any`.
    """

    spec_id: str
    canonical_family: str
    axis: Axis
    tier: Tier
    stl: str
    formula: syntax.Formula
    threshold: float
    severe: float | None
    unit: str
    binary: bool
    requires_all: tuple[str, ...]
    invalid_if_any: tuple[str, ...]
    source: str
    rationale: str
    alternate_of: str | None = None
    suites: tuple[str, ...] = ()
    """The suites in which the specification applies; () means all suites."""
    except_suites: tuple[str, ...] = ()
    """The suites in which a different limit replaces this specification."""
    original: Spec | None = field(default=None, compare=False)
    """The specification before its limit was changed; None without a change, or if the change also set `severe`."""

    def __post_init__(self) -> None:
        # Raise an error if a magnitude is not positive.
        # Also raise an error if `formula`, which judges episodes, is not `stl` with the number of the threshold.
        # `dataclasses.replace` could change the threshold without the formula, so the two are compared here.
        remedy = f"to change limits, call load_ruleset(thresholds=['{self.spec_id.partition('@')[0]}=VALUE'])"
        for name, value in (("threshold", self.threshold), ("severe", self.severe)):
            if value is not None and not 0 < value < math.inf:
                problem = f"{self.spec_id}: {name} is {value}, but it must be positive and finite"
                raise SpecError(problem, remedy=remedy)
        if self.formula != syntax.substitute_threshold(self.written_formula, self.threshold):
            problem = f"{self.spec_id}: the formula that judges, `{syntax.format_formula(self.formula)}`,"
            problem += f" is not `{self.stl}` with the threshold {self.threshold:g}"
            raise SpecError(problem, remedy=f"{remedy}; to change the formula, change both `formula` and `stl`")

    @property
    def written_formula(self) -> syntax.Formula:
        """The formula with the placeholder `threshold` instead of the number."""
        # `stl` is the formula's text.
        # In a `plain` formula, the margin of a condition counts, too; the text cannot express this.
        written = parse_signal_formula(self.stl, self.unit)
        return syntax.make_plain(written) if syntax.is_plain(self.formula) else written

    @property
    def has_numeric_condition(self) -> bool:
        """True if the clause has a margin, and a condition that compares numbers decides whether the margin counts."""
        # An example is `speed > 1 -> force < threshold`, whose condition is `speed > 1`.
        # A Boolean-only condition compares no numbers.
        return not self.binary and not all(map(syntax.is_boolean_only, syntax.conditions(self.formula)))

    @property
    def signals(self) -> frozenset[str]:
        """The names of the signals that the formula reads."""
        return syntax.signal_names(self.formula)


@dataclass(frozen=True)
class Library:
    """Specifications in order; the order also resolves ties. `legacy` maps older ids to current ids.

    Raises:
        SpecError: by `library[spec_id]`, if no specification has this id.
    """

    name: str
    specs: tuple[Spec, ...]
    legacy: Mapping[str, str]
    vocabulary: Mapping[str, Tag]

    def __getitem__(self, spec_id: str) -> Spec:
        # Return the specification with this id. Raises `SpecError` if the library has none.
        # Older ids (`legacy`) are accepted, too. `ID` is accepted for `ID@…` if the library has only one `ID@…`.
        return self._by_id[self.canonical_id(spec_id)]

    def __contains__(self, spec_id: object) -> bool:
        # Return whether a current or older id names a specification. `legacy` maps older ids to current ids.
        # Unlike `library[ID]`, this is false for an id that lacks its new threshold, such as `ID` for `ID@100N`.
        return spec_id in self._by_id or spec_id in self.legacy

    def __iter__(self) -> Iterator[Spec]:
        # Unlike a mapping, a library iterates over specifications, not over ids.
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    @cached_property
    def _by_id(self) -> Mapping[str, Spec]:
        # Maps each current id to the specification with this id.
        return {spec.spec_id: spec for spec in self.specs}

    @property
    def safe(self) -> tuple[Spec, ...]:
        """The scored specifications."""
        # The tier is `safe` (scored), `alternate` (a scored specification with a different threshold) or `diagnostic`.
        return tuple(spec for spec in self.specs if spec.tier == "safe")

    def canonical_id(self, spec_id: str) -> str:
        """Return the current id for a current or older id. If the library lacks `ID` but has exactly one `ID@…` (with
        a new threshold), return `ID@…`. If it has no `ID@…` or several, raise `SpecError` with similar ids.
        """
        # `legacy` maps older ids to current ids.
        current_id = self.legacy.get(spec_id, spec_id)
        if current_id in self._by_id:
            return current_id
        ids_with_threshold = [name for name in self._by_id if name.startswith(f"{current_id}@")]
        if len(ids_with_threshold) == 1:
            return ids_with_threshold[0]
        close = get_close_matches(spec_id, [*self._by_id, *self.legacy], n=3, cutoff=0.4)
        remedy = f"similar ids: {', '.join(close)}" if close else f"ids of the library: {', '.join(self._by_id)}"
        if of_axis := [spec.spec_id for spec in self.specs if spec.axis == spec_id.replace("-", "_")]:
            remedy = f"{spec_id} is an axis, a group of specifications: {', '.join(of_axis)}"
        raise SpecError(f"library {self.name!r} has no specification {spec_id!r}", remedy=remedy)

    def legacy_ids(self, spec_id: str) -> tuple[str, ...]:
        """Return the older ids of the specification with this current id; () if there are none."""
        # `legacy` maps older ids to current ids.
        return tuple(old for old, new in self.legacy.items() if new == spec_id)

    @cached_property
    def digest(self) -> str:
        """The hexadecimal sha256 of everything that can change verdicts, depths or ties. Other texts are left out."""
        # Two libraries with the same digest judge all episodes in the same way.
        content = json.dumps([scoring_content(spec) for spec in self.specs], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


def scoring_content(spec: Spec) -> list[object]:
    """Return everything that decides how a specification is judged, in a canonical form."""
    # A violation that exceeds the limit by `severe` or more has depth 1.
    # Tags decide to which tasks a specification applies.
    names, limits = [spec.spec_id, spec.canonical_family, spec.axis, spec.tier], [spec.threshold, spec.severe]
    tags = [sorted(spec.requires_all), sorted(spec.invalid_if_any)]
    content: list[object] = [*names, syntax.format_formula(spec.formula), *limits, spec.unit, spec.binary, *tags]
    # Add these parts only if needed, so that the digests of older libraries stay the same.
    if spec.has_numeric_condition:
        content.append("conditions are true or false")
    if is_confined(spec):
        content.append({"suites": sorted(spec.suites), "except": sorted(spec.except_suites)})
    return content


def is_confined(spec: Spec) -> bool:
    """Return whether a specification applies only in some suites."""
    # `suites` are groups of tasks.
    # A specification applies only in its `suites` (if any), and not in its `except_suites`.
    return bool(spec.suites or spec.except_suites)


_SUITE_KEYS = ("suites", "except_suites")
ROW_KEYS = tuple(key.name for key in fields(Spec) if key.name not in ("formula", "original", *_SUITE_KEYS))


def spec_rows(library: Library) -> list[dict[str, object]]:
    """Return one row of plain values per specification, in library order, with the keys of a library file."""
    return [_spec_row(library, spec) for spec in library]


def explain_spec(library: Library, spec_id: str) -> dict[str, object]:
    """Return all facts about one specification: its row, the meanings of its tags and signals, and its alternates."""
    # An alternate is a specification with another threshold for the same formula.
    spec = library[spec_id]
    meaning = {name: tag.meaning for name, tag in library.vocabulary.items()}
    return {
        **_spec_row(library, spec),
        "formula": syntax.format_formula(spec.formula),
        "signals": [f"{name} [{SIGNALS[name].unit}]: {SIGNALS[name].meaning}" for name in sorted(spec.signals)],
        "requires_all": [f"{tag}: {meaning[tag]}" for tag in spec.requires_all],
        "invalid_if_any": [f"{tag}: {meaning[tag]}" for tag in spec.invalid_if_any],
        "alternates": [other.spec_id for other in library if other.alternate_of == spec.spec_id],
    }


def _spec_row(library: Library, spec: Spec) -> dict[str, object]:
    # Returns the specification with the keys of a library file. Tuples become lists, as in JSON.
    # `_SUITE_KEYS` names the two fields for suites, which are omitted if they are empty.
    keys = (*ROW_KEYS, *(name for name in _SUITE_KEYS if getattr(spec, name)))
    row = {**{name: getattr(spec, name) for name in keys}, "legacy_ids": library.legacy_ids(spec.spec_id)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}
