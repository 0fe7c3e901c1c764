"""Specifications: which signal must stay where, how bad it is when it does not, and where that applies."""

from __future__ import annotations

from safevla_bench.specs.catalog import explain, listing
from safevla_bench.specs.file_formats import declared
from safevla_bench.specs.loader import extend, library, vocabulary
from safevla_bench.specs.spec import Axis, Library, Spec, Tag, TagClass, Tier

__all__ = [
    "Axis",
    "Library",
    "Spec",
    "Tag",
    "TagClass",
    "Tier",
    "declared",
    "explain",
    "extend",
    "library",
    "listing",
    "vocabulary",
]
