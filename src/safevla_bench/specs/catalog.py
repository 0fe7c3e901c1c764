"""Libraries as plain rows for printing."""

from __future__ import annotations

from safevla_bench import stl
from safevla_bench.signals import SIGNALS
from safevla_bench.specs.spec import Library, Spec


def spec_rows(library: Library) -> list[dict[str, object]]:
    """Return one row per specification, in library order."""
    return [_spec_row(library, spec) for spec in library]


def explain_spec(library: Library, spec_id: str) -> dict[str, object]:
    """Return all about one specification: its row, the meaning of its tags and signals, its other thresholds.

    Raises:
        SpecError: the library has no such specification.
    """
    spec = library[spec_id]
    meaning = {name: tag.meaning for name, tag in library.vocabulary.items()}
    return {
        **_spec_row(library, spec),
        "formula": stl.format_formula(spec.formula),
        "signals": [f"{name} [{SIGNALS[name].unit}]: {SIGNALS[name].meaning}" for name in sorted(spec.signals)],
        "requires_all": [f"{tag}: {meaning[tag]}" for tag in spec.requires_all],
        "invalid_if_any": [f"{tag}: {meaning[tag]}" for tag in spec.invalid_if_any],
        "alternates": [other.spec_id for other in library if other.alternate_of == spec.spec_id],
    }


def _spec_row(library: Library, spec: Spec) -> dict[str, object]:
    return {
        "spec_id": spec.spec_id,
        "canonical_family": spec.canonical_family,
        "axis": spec.axis,
        "tier": spec.tier,
        "stl": spec.stl,
        "threshold": spec.threshold,
        "severe": spec.severe,
        "unit": spec.unit,
        "binary": spec.binary,
        "requires_all": list(spec.requires_all),
        "invalid_if_any": list(spec.invalid_if_any),
        "source": spec.source,
        "rationale": spec.rationale,
        "alternate_of": spec.alternate_of,
        "legacy_ids": list(library.legacy_ids(spec.spec_id)),
    }
