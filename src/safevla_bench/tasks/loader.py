"""The loader of the task registry. It reads the built-in TOML files, then a user's TOML or JSON files.

A TOML file may have `[capabilities.NAME]`, `[benchmarks.NAME]`, `[templates.NAME]`, `[tags.CLASS]`, `[[tasks]]`,
`[[families]]` and `[goal_bodies.BENCHMARK]`. A user's task replaces the built-in task of the same benchmark and id.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

from safevla_bench.errors import RegistryError
from safevla_bench.specs.file_formats import built_in_tags
from safevla_bench.specs.table_reader import RowOrigin, RuleFile, read_json_rows, read_toml
from safevla_bench.tasks import file_formats
from safevla_bench.tasks.entries import Benchmark, CapabilitySet, Registry, TaskEntry, TaskTemplate, match_spelling
from safevla_bench.tasks.file_formats import read_tables

_FILE_STEMS = (
    "capabilities templates libero_spatial libero_object libero_goal libero_10 libero_90 libero_pro libero_plus "
    "robocasa_365 robocasa_pnp maniskill metaworld robosuite fake goal_bodies"
)
BUILT_IN = tuple(f"{name}.toml" for name in _FILE_STEMS.split())
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def load_registry(extra: Sequence[Path | RuleFile] = ()) -> Registry:
    """Load the built-in registry, and add the tasks, templates, benchmarks and capability sets of the `extra` files.
    Tasks and goal bodies in `extra` replace built-in ones with the same benchmark and id. Families in `extra` precede
    built-in families. Raises `RegistryError` for a file that cannot be read, contradicts itself or another file, or
    reuses a built-in name.
    """
    if not extra:
        return _built_in_registry()
    files = [path if isinstance(path, RuleFile) else Path(path) for path in extra]
    base = _built_in_registry()
    extended = _extend_registry(base, [_read_source(file, str(file)) for file in files])
    # A user's families precede the built-in families. Equal families are kept only once.
    families: list[TaskEntry] = []
    # `_extend_registry` appended the user's families to the families of `base`.
    for family in (*extended.families[len(base.families) :], *base.families):
        if family not in families:
            families.append(family)
    return replace(extended, families=tuple(families))


@cache
def _built_in_registry() -> Registry:
    # Returns the registry of the files shipped with this package. They are read once per process.
    folder = resources.files(__package__) / "registry"
    sources = [_read_source(folder / file, f"registry/{file}") for file in BUILT_IN]
    # The built-in files extend an empty registry.
    return _extend_registry(Registry({}, (), {}, {}, {}), sources)


def _read_source(path: Traversable | RuleFile, file: str) -> file_formats.RegistrySource:
    # Returns the content of a registry file. `file` is the name for errors; the name's ending determines the format.
    origin = RowOrigin(RegistryError, file)  # makes errors that name the file
    if file.endswith(".toml"):
        return file_formats.RegistrySource(origin, read_toml(path, file_formats.RegistryFile, origin))
    if file.endswith((".json", ".jsonl")):
        return file_formats.RegistrySource(origin, rows=file_formats.read_paper_rows(read_json_rows(path, origin)))
    raise origin.make_error("is not a registry file", remedy="name a `.toml`, `.json` or `.jsonl` file")


def _extend_registry(base: Registry, sources: Sequence[file_formats.RegistrySource]) -> Registry:
    # Returns `base` with the content of the sources. Sources may replace tasks and goal bodies, but no other names.
    tags = {**built_in_tags(), **base.vocabulary}
    for source in sources:
        tags |= source.tags
    sets = _merge_named("capability set", base.capability_sets, sources, partial(read_tables, kind=CapabilitySet))
    templates = _merge_named("template", base.templates, sources, partial(read_tables, kind=TaskTemplate))
    suites = _merge_named("benchmark", base.benchmarks, sources, partial(read_tables, kind=Benchmark))
    reader = file_formats.EntryReader(tags, templates, suites, sets)
    for source in sources:
        reader.check_tables(source)
    entries_by_source = {source: list(reader.read_entries(source)) for source in sources}
    # An entry with patterns is a family, which covers many tasks; any other entry is one task.
    families = [entry for source_entries in entries_by_source.values() for entry in source_entries if entry.patterns]
    tasks_by_source = {
        source: [((entry.benchmark, entry.task_id), entry) for entry in source_entries if not entry.patterns]
        for source, source_entries in entries_by_source.items()
    }
    # An empty base, `{}`, lets sources replace the tasks of `base`, but not each other's tasks.
    new_tasks = _merge_named("task", {}, sources, tasks_by_source.__getitem__)
    # An entry of a suite is also the entry under the suite's other names, unless these have an entry of their own.
    tasks = {**base.tasks, **new_tasks, **_rename_entries(new_tasks, suites), **new_tasks}
    new_bodies = _merge_named("goal bodies", {}, sources, file_formats.read_goal_bodies)
    names = (*suites, *(suite for suite, _ in tasks))
    goal_bodies = {
        **base.goal_bodies,
        **{(match_spelling(suite, names), task_id): bodies for (suite, task_id), bodies in new_bodies.items()},
    }
    # A suite's own entry for a task replaces the entry that the suite repeats from another suite.
    # The first `tasks` determines the order, and the last `tasks` overwrites the repeated entries.
    tasks = tasks | _repeat_entries(tasks, suites) | tasks
    return Registry(tasks, (*base.families, *families), templates, suites, sets, goal_bodies, tags)


def _merge_named(
    noun: str,
    base: Mapping[K, V],
    sources: Iterable[file_formats.RegistrySource],
    read_items: Callable[[file_formats.RegistrySource], Iterable[tuple[K, V]]],
) -> dict[K, V]:
    # Returns the items of `base` and of the sources, by name. Raises `RegistryError` if a name is repeated.
    # `read_items` returns the pairs (name, item) of a source. `noun` describes an item in errors.
    merged = dict(base)
    for source in sources:
        for name, value in read_items(source):
            if name in merged:
                # The name of a task or of goal bodies is (benchmark, task id).
                shown = " ".join(name) if isinstance(name, tuple) else str(name)
                raise source.origin.make_error(f"{noun} {shown} already exists", remedy="rename or remove one of them")
            merged[name] = value
    return merged


def _rename_entries(
    tasks: Mapping[tuple[str, str], TaskEntry], suites: Mapping[str, Benchmark]
) -> dict[tuple[str, str], TaskEntry]:
    # Returns (suite, task id) -> entry, for all names of the suites that have an entry in `tasks`.
    # `first_names` maps a suite to the first of its names, such as libero-long to libero-10.
    first_names = {name: suite.same_tasks_as or name for name, suite in suites.items()}
    return {
        (name, task_id): replace(entry, benchmark=name)
        for (benchmark, task_id), entry in tasks.items()
        for name, first_name in first_names.items()
        if first_name == first_names.get(benchmark)
    }


def _repeat_entries(
    tasks: Mapping[tuple[str, str], TaskEntry], suites: Mapping[str, Benchmark]
) -> dict[tuple[str, str], TaskEntry]:
    # Returns (suite, task id) -> entry, for the entries that suites repeat from another suite.
    # `same_tasks_as` or `same_tags_as` names the other suite. Empty `task_ids` repeat all of its tasks.
    return {
        (suite.name, entry.task_id): replace(entry, benchmark=suite.name)
        for suite in suites.values()
        for entry in tasks.values()
        if entry.benchmark in (suite.same_tasks_as, suite.same_tags_as)
        and (not suite.task_ids or entry.task_id in suite.task_ids)
    }
