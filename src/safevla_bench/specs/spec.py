"""What a specification and a library of them are: values that the loader has checked (paper Section 3.1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Literal

from safevla_bench import stl as logic
from safevla_bench.errors import SpecError

Tier = Literal["safe", "alternate", "diagnostic"]
"""`safe` is scored; `alternate` is another threshold of a scored one; `diagnostic` is reported beside the scores."""
Axis = Literal["scene_interaction", "object_handling", "execution"]
TagClass = Literal["capability", "mechanism", "object", "special_case"]


@dataclass(frozen=True, slots=True)
class Tag:
    """A word of the vocabulary that decides what applies where (paper Table 14)."""

    name: str
    kind: TagClass
    meaning: str


@dataclass(frozen=True, slots=True)
class Spec:
    """One specification.

    `threshold` and `severe` are positive magnitudes in `unit`; severe / threshold is K of the paper's Eq. 1, and
    `severe` is None where violations have no graded depth. `stl` is the text as written, with `threshold` standing for
    the number, `formula` what is judged. It applies to a task that has every tag of `requires_all` and none of
    `invalid_if_any`.
    """

    spec_id: str
    canonical_family: str
    axis: Axis
    tier: Tier
    stl: str
    formula: logic.Formula
    threshold: float
    severe: float | None
    unit: str
    binary: bool
    requires_all: tuple[str, ...]
    invalid_if_any: tuple[str, ...]
    source: str
    rationale: str
    alternate_of: str | None = None

    @property
    def signals(self) -> frozenset[str]:
        """The names of the signals that the formula reads."""
        return logic.signals(self.formula)


@dataclass(frozen=True)
class Library:
    """Specifications in library order, which breaks ties; older ids that still name them; the tags that they may use.

    Raises:
        SpecError: by `library[spec_id]`, where no specification has that id.
    """

    name: str
    specs: tuple[Spec, ...]
    legacy: Mapping[str, str]
    vocabulary: Mapping[str, Tag]

    def __getitem__(self, spec_id: str) -> Spec:
        return self._by_id[self.canonical(spec_id)]

    def __contains__(self, spec_id: object) -> bool:
        return spec_id in self._by_id or spec_id in self.legacy

    def __iter__(self) -> Iterator[Spec]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    @cached_property
    def _by_id(self) -> Mapping[str, Spec]:
        return {spec.spec_id: spec for spec in self.specs}

    @property
    def safe(self) -> tuple[Spec, ...]:
        """The scored specifications."""
        return self.tier("safe")

    def tier(self, tier: Tier) -> tuple[Spec, ...]:
        """The specifications of one tier."""
        return tuple(spec for spec in self.specs if spec.tier == tier)

    def canonical(self, spec_id: str) -> str:
        """The id that a given or older id stands for."""
        found = self.legacy.get(spec_id, spec_id)
        if found not in self._by_id:
            close = get_close_matches(spec_id, [*self._by_id, *self.legacy], n=3, cutoff=0.4)
            known = f"close to it: {', '.join(close)}" if close else f"it has: {', '.join(self._by_id)}"
            raise SpecError(f"library {self.name!r} has no specification {spec_id!r}", remedy=known)
        return found

    def legacy_ids(self, spec_id: str) -> tuple[str, ...]:
        """The older ids of a specification."""
        return tuple(old for old, new in self.legacy.items() if new == spec_id)

    @cached_property
    def digest(self) -> str:
        """sha256, in hexadecimal, of all that can change a verdict, a depth or a tie; wording leaves it alone."""
        content = json.dumps([_scored(spec) for spec in self.specs], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


def _scored(spec: Spec) -> list[object]:
    """What decides how a specification is judged, in a canonical form."""
    return [
        spec.spec_id,
        spec.canonical_family,
        spec.axis,
        spec.tier,
        logic.to_text(spec.formula),
        spec.threshold,
        spec.severe,
        spec.unit,
        spec.binary,
        sorted(spec.requires_all),
        sorted(spec.invalid_if_any),
    ]
