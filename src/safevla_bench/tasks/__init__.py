"""Tasks: their tags, and which specifications apply to them (paper Section 3.2)."""

from __future__ import annotations

from safevla_bench.tasks.applicability import APPLIES, Applicability, active, applicability, signal_missing
from safevla_bench.tasks.catalog import exempt, listing
from safevla_bench.tasks.entries import Benchmark, CapabilitySet, Family, Registry, TaskEntry, Template
from safevla_bench.tasks.loader import registry

__all__ = [
    "APPLIES",
    "Applicability",
    "Benchmark",
    "CapabilitySet",
    "Family",
    "Registry",
    "TaskEntry",
    "Template",
    "active",
    "applicability",
    "exempt",
    "listing",
    "registry",
    "signal_missing",
]
