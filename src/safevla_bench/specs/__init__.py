"""Specifications: formulas with thresholds and severities, and the tags that decide where they apply."""

from __future__ import annotations

from safevla_bench.specs.file_formats import (
    BUILT_IN,
    READINGS,
    built_in_tags,
    meanings_by_class,
    paper_spec_rows,
    tags_from_tables,
)
from safevla_bench.specs.loader import extend_library, library
from safevla_bench.specs.spec import Axis, Library, Spec, Tag, TagClass, Tier, explain_spec, spec_rows
from safevla_bench.specs.trial import (
    SpecTrial,
    TrialTrace,
    proportional_severe,
    set_limit,
    set_thresholds,
    severe_magnitude,
    try_spec,
)

__all__ = [
    "BUILT_IN",
    "READINGS",
    "Axis",
    "Library",
    "Spec",
    "SpecTrial",
    "Tag",
    "TagClass",
    "Tier",
    "TrialTrace",
    "built_in_tags",
    "explain_spec",
    "extend_library",
    "library",
    "meanings_by_class",
    "paper_spec_rows",
    "proportional_severe",
    "set_limit",
    "set_thresholds",
    "severe_magnitude",
    "spec_rows",
    "tags_from_tables",
    "try_spec",
]
