"""Tasks: their tags, the specifications that apply, and why other specifications do not apply (paper Section 3.2)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from safevla_bench.errors import SpecError
from safevla_bench.specs.loader import load_library
from safevla_bench.specs.spec import Library, Spec, is_confined
from safevla_bench.tasks.entries import Registry, TaskEntry
from safevla_bench.tasks.reasons import INVALID_WITH, NEEDS, OTHER_LIMIT, OTHER_SUITES, write_reason
from safevla_bench.text import spell_suite, warn_once
from safevla_bench.trajectory.marks import LOG_BENCHMARK, base_suite


def inactive_reason(spec: Spec, tags: Collection[str], suite: str = "") -> str:
    """Return why a specification does not apply to a task with these tags in `suite`; "" if it applies. The reason has
    the form `needs:TAGS;invalid_with:TAGS`: required tags that the task lacks, and tags of the task that rule the
    specification out. If the limit does not apply in `suite`, return the result of `confined_reason`.
    """
    if suite_reason := confined_reason(spec, suite):
        return suite_reason
    lacking = [tag for tag in spec.requires_all if tag not in tags]
    excluding = [tag for tag in spec.invalid_if_any if tag in tags]
    tags_by_code = {NEEDS: lacking, INVALID_WITH: excluding}
    # A code without tags is left out, so the result is "" if the specification applies.
    return ";".join(write_reason(code, *listed) for code, listed in tags_by_code.items() if listed)


def confined_reason(spec: Spec, suite: str) -> str:
    """Return why the limit of a specification does not apply in `suite`; "" if the limit applies."""
    spelled = spell_suite(base_suite(suite))
    # In the suites `except_suites`, another limit replaces this limit.
    if spelled in spec.except_suites:
        return write_reason(OTHER_LIMIT, suite)
    # Empty `suites` means all suites.
    if spec.suites and spelled not in spec.suites:
        return write_reason(OTHER_SUITES, *spec.suites)
    return ""


def add_suite_names(library: Library, registry: Registry) -> Library:
    """Return the library in which limits for a suite also list the suite's other names: libero-long for libero-10."""
    # Raises `SpecError` for two limits of a specification for the same suite.

    def list_names(suites: tuple[str, ...]) -> tuple[str, ...]:
        chosen = set(map(registry.canonical_suite, suites))
        names = (name for name in registry.benchmarks if registry.canonical_suite(name) in chosen)
        return tuple(dict.fromkeys([*suites, *map(spell_suite, names)]))

    if not any(map(is_confined, library)):
        return library
    names = ((spec, list_names(spec.suites), list_names(spec.except_suites)) for spec in library)
    specs = tuple(replace(spec, suites=suites, except_suites=others) for spec, suites, others in names)
    limited = [(spec.spec_id.partition("@")[0], suite) for spec in specs for suite in spec.suites]
    if repeated := [f"{spec_id} in {suite}" for spec_id, suite in limited if limited.count((spec_id, suite)) > 1]:
        remedy = "write each limit once, with all its suites"
        raise SpecError(f"two limits for the same suite: {', '.join(dict.fromkeys(repeated))}", remedy=remedy)
    return replace(library, specs=specs)


def check_suites(library: Library, registry: Registry) -> None:
    """Warn once about each limit for a suite that the registry lacks. A limit for an unknown suite never applies."""
    confined = [(spec, name) for spec in library for name in spec.suites]  # specifications with limits for some suites
    if not confined:
        return
    # A family is a group of tasks with the same tags. `LOG_BENCHMARK` is the suite of robots' logs.
    family_suites = (family.benchmark for family in registry.families)
    suites = dict.fromkeys([*registry.check_benchmark(None), *family_suites, LOG_BENCHMARK])
    known_spellings = set(map(spell_suite, suites))
    for spec, name in confined:
        if name not in known_spellings:
            close = get_close_matches(name, suites, n=3) or sorted(suites)  # all suites if none is similar
            warn_once(f"{spec.spec_id}: unknown suite {name!r}; similar suites: {', '.join(close)}")


def active_specs(library: Library, tags: Collection[str]) -> tuple[Spec, ...]:
    """Return the scored specifications that apply to a task by its tags alone, in library order."""
    # `library.safe` has the scored specifications. Limits for only some suites do not apply without a suite's name.
    return tuple(spec for spec in library.safe if not inactive_reason(spec, tags))


TaskListing = dict[str, Any]  # a task as a plain row, with the key `template`, or `components` for several templates


def task_listings(
    registry: Registry, library: Library | None = None, benchmark: str | None = None
) -> list[TaskListing]:
    """Return one row per task: template, tags, the scored specifications that apply, and why other ones do not. The
    defaults are the default library and all benchmarks. Raises `RegistryError` for an unknown benchmark.
    """
    specs = library or load_library()
    return [_task_listing(registry, specs, entry) for entry in registry.list_entries(benchmark)]


def exempt_tasks(registry: Registry, library: Library, spec_id: str) -> dict[str, list[str]]:
    """Return the tasks to which a specification does not apply, as `benchmark task_id`, grouped by reason."""
    check_suites(library, registry)  # warns of limits for unknown suites
    spec = library[spec_id]
    tasks_by_reason: dict[str, list[str]] = {}
    for entry in registry.list_entries():
        tags = registry.task_tags(entry.benchmark, entry.task_id)
        if reason := inactive_reason(spec, tags, entry.benchmark):
            tasks_by_reason.setdefault(reason, []).append(f"{entry.benchmark} {entry.task_id}")
    return tasks_by_reason


def _task_listing(registry: Registry, library: Library, entry: TaskEntry) -> TaskListing:
    # Returns a task as a plain row, for tables and JSON.
    tags = registry.task_tags(entry.benchmark, entry.task_id)
    reasons = {spec.spec_id: inactive_reason(spec, tags, entry.benchmark) for spec in library.safe}
    templates = [component.template for component in entry.components]
    return {
        "benchmark": entry.benchmark,
        "task_id": entry.task_id,
        "instruction": entry.instruction,
        "tags": sorted(tags),
        "object_tags": dict(entry.object_tags),
        "active_specs": [spec for spec, reason in reasons.items() if not reason],
        "inactive_specs": {spec: reason for spec, reason in reasons.items() if reason},
        # A composite task has the templates of its components instead of one template.
        **({"template": entry.template} if entry.template else {"components": templates}),
    }
