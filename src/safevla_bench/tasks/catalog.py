"""Tasks as plain rows, for whoever prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from safevla_bench.specs import Library
from safevla_bench.tasks.applicability import active, applicability
from safevla_bench.tasks.entries import Registry, TaskEntry


class TaskListing(TypedDict):
    """A task as a row; it has `template`, or `components` where it has several phases."""

    benchmark: str
    task_id: str
    template: NotRequired[str]
    components: NotRequired[list[str]]
    instruction: str | None
    tags: list[str]
    object_tags: dict[str, str]
    active_specs: list[str]
    inactive_specs: dict[str, str]


def listing(
    registry: Registry, library: Library, benchmark: str | None = None, capabilities: Sequence[str] = ()
) -> list[TaskListing]:
    """One row a task: what it is, its tags, which scored specifications apply, and why the others do not.

    Raises:
        RegistryError: there is no such benchmark or capability set.
    """
    return [_row(registry, library, entry, capabilities) for entry in registry.entries(benchmark)]


def exempt(
    registry: Registry, library: Library, spec_id: str, capabilities: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Where a specification does not apply: reason -> the tasks, as `benchmark task_id`.

    Raises:
        SpecError: the library has no such specification.
    """
    spec, found = library[spec_id], dict[str, list[str]]()
    for entry in registry.entries():
        verdict = applicability(spec, registry.tags(entry.benchmark, entry.task_id, capabilities))
        if not verdict.applies:
            found.setdefault(verdict.reason, []).append(f"{entry.benchmark} {entry.task_id}")
    return found


def _row(registry: Registry, library: Library, entry: TaskEntry, capabilities: Sequence[str]) -> TaskListing:
    tags = registry.tags(entry.benchmark, entry.task_id, capabilities)
    verdicts = {spec.spec_id: applicability(spec, tags) for spec in library.safe}
    row: TaskListing = {
        "benchmark": entry.benchmark,
        "task_id": entry.task_id,
        "instruction": entry.instruction,
        "tags": sorted(tags),
        "object_tags": dict(entry.object_tags),
        "active_specs": [spec.spec_id for spec in active(library, tags)],
        "inactive_specs": {spec: verdict.reason for spec, verdict in verdicts.items() if not verdict.applies},
    }
    if entry.template is not None:
        row["template"] = entry.template
    else:
        row["components"] = list(entry.components)
    return row
