"""Tasks: their tags, and which specifications apply to them (paper Section 3.2)."""

from __future__ import annotations

from safevla_bench.tasks.applicability import (
    APPLIES,
    Applicability,
    active_specs,
    check_applicability,
    exempt_tasks,
    signal_missing,
    task_listings,
)
from safevla_bench.tasks.entries import (
    Benchmark,
    CapabilitySet,
    GoalBodies,
    Registry,
    TaskEntry,
    TaskFamily,
    TaskTemplate,
)
from safevla_bench.tasks.file_formats import paper_task_rows
from safevla_bench.tasks.loader import registry

__all__ = [
    "APPLIES",
    "Applicability",
    "Benchmark",
    "CapabilitySet",
    "GoalBodies",
    "Registry",
    "TaskEntry",
    "TaskFamily",
    "TaskTemplate",
    "active_specs",
    "check_applicability",
    "exempt_tasks",
    "paper_task_rows",
    "registry",
    "signal_missing",
    "task_listings",
]
