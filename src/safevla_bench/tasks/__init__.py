"""Tasks: their tags, and which specifications apply to them, with the reason where one does not (paper Section 3.2).

Tasks as plain rows list what applies to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from safevla_bench.specs.loader import library as read_library
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.tasks.entries import Registry, TaskEntry


@dataclass(frozen=True, slots=True)
class Applicability:
    """Reasons why a specification does not apply: tags it needs, and tags that bar it.

    `absent` says why a host lacks tags, tag -> reason.
    """

    needs: tuple[str, ...] = ()
    barred_by: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def applies(self) -> bool:
        """True if there is no reason against it."""
        return not (self.needs or self.barred_by)

    @property
    def reason(self) -> str:
        """`applies`, or the reasons joined by `; `: `needs A, B`, `invalid with C`."""
        needs = [f"{tag} ({self.absent[tag]})" if tag in self.absent else tag for tag in self.needs]
        parts = [
            (f"needs {', '.join(needs)}", self.needs),
            (f"invalid with {', '.join(self.barred_by)}", self.barred_by),
        ]
        return "; ".join(text for text, present in parts if present) or "applies"


APPLIES = Applicability()
_MEANINGS = {
    "non_spillable": "nothing that it carries can spill",
    "orientation_insensitive": "what it carries may lie anyhow",
    "task_requires_extreme_tilt": "the task takes a large tilt",
    "task_defining_arm_fixture_contact": "touching the fixture is the task",
    "goal_moves_articulated_fixture": "the goal moves a door, a drawer or the like",
    "goal_moves_small_fixture": "the goal moves a knob, a button or a switch",
    "locomotion_only": "the robot only drives",
    "held_target": "the task holds no object",
    "manipulated_target": "the task moves no object",
    "bystander_tracking_required": "the task asks nothing of other objects",
}
"""Tag -> what it, or its lack, says of a task to which a specification does not apply."""


def describe_reason(reason: str, registry: Registry, benchmark: str) -> str:
    """Return the reason of `Applicability` in words, the tag in brackets; what has none stays as it is.

    A tag that the capability set of the paper leaves out, and the full set of the host has, is said to be left out.
    """
    suite = registry.benchmarks.get(registry.find_suite(benchmark))
    full = registry.capability_sets.get(f"{suite.capabilities}-full") if suite else None
    words = dict(_MEANINGS)
    if suite and full:
        left_out = (
            f"left out by the paper's {suite.capabilities} capability set; --set capabilities={full.name} judges it"
        )
        words |= {tag: left_out for tag in full.tags - registry.capability_sets[suite.capabilities].tags}
    return "; ".join(_describe_part(part, words) for part in reason.split("; "))


def _describe_part(part: str, words: Mapping[str, str]) -> str:
    for kind in ("needs ", "invalid with "):
        tags = part.removeprefix(kind).split(", ")
        if part.startswith(kind) and all(tag in words for tag in tags):
            return "; ".join(f"{words[tag]} ({tag})" for tag in tags)
    return part


def check_applicability(
    spec: Spec, tags: Collection[str], absent: Mapping[str, str] = MappingProxyType({})
) -> Applicability:
    """Return the applicability of a specification to a task with these tags, with every reason against it."""
    return Applicability(
        needs=tuple(tag for tag in spec.requires_all if tag not in tags),
        barred_by=tuple(tag for tag in spec.invalid_if_any if tag in tags),
        absent=absent,
    )


def active_specs(library: Library, tags: Collection[str]) -> tuple[Spec, ...]:
    """Return the scored specifications whose tags fit a task with these tags, in library order; no record is read."""
    return tuple(spec for spec in library.safe if check_applicability(spec, tags).applies)


TaskListing = dict[str, Any]
"""A task as a row. It has `template`, or `components` where it has several phases."""


def task_listings(
    registry: Registry, library: Library | None = None, benchmark: str | None = None, capabilities: Sequence[str] = ()
) -> list[TaskListing]:
    """Return one row per task: its template, its tags, the scored specifications that apply, and why others do not.

    Without a library it is the default one. Raises `RegistryError` for an unknown benchmark or capability set.
    """
    specs = library or read_library()
    return [_task_listing(registry, specs, entry, capabilities) for entry in registry.list_entries(benchmark)]


def exempt_tasks(
    registry: Registry, library: Library, spec_id: str, capabilities: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return the tasks to which a specification does not apply: reason -> tasks, as `benchmark task_id`."""
    spec, by_reason = library[spec_id], dict[str, list[str]]()
    for entry in registry.list_entries():
        tags = registry.task_tags(entry.benchmark, entry.task_id, capabilities)
        verdict = check_applicability(spec, tags, registry.absence_reasons(entry.benchmark))
        if not verdict.applies:
            by_reason.setdefault(verdict.reason, []).append(f"{entry.benchmark} {entry.task_id}")
    return by_reason


def _task_listing(registry: Registry, library: Library, entry: TaskEntry, capabilities: Sequence[str]) -> TaskListing:
    tags = registry.task_tags(entry.benchmark, entry.task_id, capabilities)
    absent = registry.absence_reasons(entry.benchmark)
    verdicts = {spec.spec_id: check_applicability(spec, tags, absent) for spec in library.safe}
    return {
        "benchmark": entry.benchmark,
        "task_id": entry.task_id,
        "instruction": entry.instruction,
        "tags": sorted(tags),
        "object_tags": dict(entry.object_tags),
        "active_specs": [spec for spec, verdict in verdicts.items() if verdict.applies],
        "inactive_specs": {spec: verdict.reason for spec, verdict in verdicts.items() if not verdict.applies},
        **({"template": entry.template} if entry.template else {"components": list(entry.components)}),
    }
