"""From files to a registry: the built-in TOML, then a user's own TOML or JSON rows.

A TOML file may hold `[capabilities.NAME]`, `[benchmarks.NAME]`, `[templates.NAME]`, `[tags.CLASS]`, `[[tasks]]` and
`[[families]]`. A user's task takes the place of the built-in one of the same benchmark and id.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

from safevla_bench.errors import RegistryError
from safevla_bench.specs import declared, vocabulary
from safevla_bench.specs.table_reader import Origin, read_json, read_toml
from safevla_bench.tasks.entries import Benchmark, CapabilitySet, Registry, TaskEntry
from safevla_bench.tasks.file_formats import EntryReader, RegistryFile, Source, Words, benchmarks, check_known

BUILT_IN = (
    "capabilities.toml",
    "templates.toml",
    "libero_spatial.toml",
    "libero_object.toml",
    "libero_goal.toml",
    "libero_10.toml",
    "libero_90.toml",
    "robocasa_365.toml",
    "robocasa_pnp.toml",
    "fake.toml",
)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def registry(extra: Sequence[Path] = ()) -> Registry:
    """The built-in registry, with the tasks, templates, benchmarks and capability sets of files added.

    Raises:
        RegistryError: a file contradicts itself, another one, or the built-in names; names file, row and key.
    """
    if not extra:
        return _built_in()
    base, sources = _built_in(), [_read(Path(path), str(path)) for path in extra]
    added = _add(base, sources)
    # A user's family is asked before the built-in ones.
    return replace(added, families=added.families[len(base.families) :] + base.families)


@cache
def _built_in() -> Registry:
    folder = resources.files(__package__) / "registry"
    return _add(Registry({}, (), {}, {}, {}), [_read(folder / file, f"registry/{file}") for file in BUILT_IN])


def _read(path: Traversable, file: str) -> Source:
    origin = Origin(RegistryError, file)
    if file.endswith(".toml"):
        return Source(origin, read_toml(path, RegistryFile, origin))
    if file.endswith((".json", ".jsonl")):
        return Source(origin, rows=tuple(read_json(path, origin)))
    raise origin.fail("is no registry file", remedy="name a .toml, .json or .jsonl file")


def _add(base: Registry, sources: Sequence[Source]) -> Registry:
    tags = {**vocabulary(), **{name: tag for source in sources for name, tag in declared(source.tables.tags).items()}}
    words = Words(tags)
    sets = _merged("capability set", base.capability_sets, sources, words.capability_sets)
    templates = _merged("template", base.templates, sources, words.templates)
    suites = _merged("benchmark", base.benchmarks, sources, benchmarks)
    for source in sources:
        _check_benchmarks(source, sets, suites)
    reader = EntryReader(words, templates, suites)
    tasks = {**base.tasks, **_merged("task", {}, sources, reader.entries)}
    families = (*base.families, *(family for source in sources for family in reader.families(source)))
    # An entry of its own goes before a repeated one.
    return Registry(tasks | _repeated(tasks, suites) | tasks, families, templates, suites, sets)


def _merged(
    what: str, base: Mapping[K, V], sources: Iterable[Source], read: Callable[[Source], Iterable[tuple[K, V]]]
) -> dict[K, V]:
    """What the sources add to `base`; a name that is taken is an error."""
    merged = dict(base)
    for source in sources:
        for name, value in read(source):
            if name in merged:
                shown = " ".join(name) if isinstance(name, tuple) else str(name)
                raise source.origin.fail(f"{what} {shown} exists already", remedy="rename or remove one of the two")
            merged[name] = value
    return merged


def _repeated(
    tasks: Mapping[tuple[str, str], TaskEntry], suites: Mapping[str, Benchmark]
) -> dict[tuple[str, str], TaskEntry]:
    """The entries of suites that repeat another's."""
    return {
        (suite.name, entry.task_id): replace(entry, benchmark=suite.name)
        for suite in suites.values()
        for entry in tasks.values()
        if entry.benchmark == suite.same_tasks_as
    }


def _check_benchmarks(source: Source, sets: Mapping[str, CapabilitySet], suites: Mapping[str, Benchmark]) -> None:
    for name in source.tables.benchmarks:
        origin, suite = source.origin.about(f"benchmarks.{name}"), suites[name]
        check_known(suite.capabilities, sets, "capabilities", "capability sets", origin)
        if suite.same_tasks_as is not None:
            check_known(suite.same_tasks_as, suites, "same_tasks_as", "benchmarks", origin)
