"""The rows of a registry file and how they become entries: TOML tables, and the paper's task-tag rows (Appendix B)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from safevla_bench.specs import Tag, TagClass
from safevla_bench.specs.table_reader import Origin, alternatives, typed
from safevla_bench.tasks.entries import Benchmark, CapabilitySet, Family, TaskEntry, Template

NO_REASON = "stated without a reason"
"""Reason of an object tag in a JSON row, whose schema has none."""


class CapabilityRow(msgspec.Struct, frozen=True, kw_only=True):
    """`[capabilities.NAME]`."""

    host: str
    tags: tuple[str, ...]


class BenchmarkRow(msgspec.Struct, frozen=True, kw_only=True):
    """`[benchmarks.NAME]`; `same_tasks_as` gives it an entry for each task of another benchmark."""

    host: str
    capabilities: str
    published: bool = False
    same_tasks_as: str | None = None
    task_names: tuple[str, ...] = ()


class TemplateRow(msgspec.Struct, frozen=True, kw_only=True):
    """`[templates.NAME]`."""

    meaning: str
    tags: tuple[str, ...]


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """`[[tasks]]`."""

    benchmark: str
    task_id: str
    instruction: str
    template: str | None = None
    components: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    object_tags: dict[str, str] = {}


class FamilyRow(msgspec.Struct, frozen=True, kw_only=True):
    """`[[families]]`."""

    benchmark: str
    patterns: tuple[str, ...]
    template: str | None = None
    components: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    object_tags: dict[str, str] = {}


class PaperRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the paper's task-tag schema. Its task tags are the template's resolved, and are taken as they stand."""

    benchmark: str
    task_id: str
    template: str | None = None
    components: tuple[str, ...] = ()
    task_tags: tuple[str, ...] | None = None
    object_tags: tuple[str, ...] = ()
    benchmark_signal_tags: tuple[str, ...] | None = None
    instruction: str | None = None


class RegistryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a TOML file."""

    tags: dict[TagClass, dict[str, str]] = {}
    capabilities: dict[str, dict[str, object]] = {}
    benchmarks: dict[str, dict[str, object]] = {}
    templates: dict[str, dict[str, object]] = {}
    tasks: tuple[dict[str, object], ...] = ()
    families: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A file read: its tables, or its JSON rows, and its name in errors."""

    origin: Origin
    tables: RegistryFile = field(default_factory=RegistryFile)
    rows: tuple[tuple[Origin, object], ...] = ()


def benchmarks(source: Source) -> Iterator[tuple[str, Benchmark]]:
    """The benchmarks of a file; what they refer to is not yet checked."""
    for name, table in source.tables.benchmarks.items():
        row = typed(table, BenchmarkRow, source.origin.about(f"benchmarks.{name}"))
        yield name, Benchmark(name, **msgspec.structs.asdict(row))


def check_known(name: str, known: Iterable[str], key: str, what: str, origin: Origin) -> None:
    """Raise the origin's error unless a name is among the known ones; `key` is where it stands."""
    names = list(known)
    if name not in names:
        raise origin.fail(f"{name!r} is none of the {what}", field=key, remedy=alternatives(name, names, what))


@dataclass(frozen=True, slots=True)
class Words:
    """The vocabulary, as a reader of tags."""

    tags: Mapping[str, Tag]

    def read(self, names: Iterable[str], key: str, origin: Origin, *, capability: bool = False) -> frozenset[str]:
        """The names as a set, once each is a tag of the right class: capabilities are the host's, others the task's."""
        for name in names:
            if name not in self.tags:
                remedy = f"{alternatives(name, self.tags, 'known tags')}; or declare it under [tags.<class>]"
                raise origin.fail(f"unknown tag {name!r}", field=key, remedy=remedy)
            if (self.tags[name].kind == "capability") != capability:
                problem = f"{name!r} is of class {self.tags[name].kind}"
                remedy = "capability tags belong to hosts, all others to tasks"
                raise origin.fail(problem, field=key, remedy=remedy)
        return frozenset(names)

    def capability_sets(self, source: Source) -> Iterator[tuple[str, CapabilitySet]]:
        """The capability sets of a file."""
        for name, table in source.tables.capabilities.items():
            origin = source.origin.about(f"capabilities.{name}")
            row = typed(table, CapabilityRow, origin)
            yield name, CapabilitySet(name, row.host, self.read(row.tags, "tags", origin, capability=True))

    def templates(self, source: Source) -> Iterator[tuple[str, Template]]:
        """The templates of a file."""
        for name, table in source.tables.templates.items():
            origin = source.origin.about(f"templates.{name}")
            row = typed(table, TemplateRow, origin)
            yield name, Template(name, row.meaning, self.read(row.tags, "tags", origin))


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Reads tasks and families, given what they may refer to."""

    words: Words
    templates: Mapping[str, Template]
    benchmarks: Mapping[str, Benchmark]

    def entries(self, source: Source) -> Iterator[tuple[tuple[str, str], TaskEntry]]:
        """The tasks of a file, by benchmark and id."""
        for number, table in enumerate(source.tables.tasks):
            origin = source.origin.about(_subject(table, f"tasks[{number}]"))
            row = typed(table, TaskRow, origin)
            yield (row.benchmark, row.task_id), self._entry(row, row.task_id, row.instruction, origin)
        for place, written in source.rows:
            origin = place.about(_subject(written, place.subject or "a row"))
            paper = typed(written, PaperRow, origin)
            yield (paper.benchmark, paper.task_id), self._paper_entry(paper, origin)

    def families(self, source: Source) -> Iterator[Family]:
        """The families of a file, in order."""
        for number, table in enumerate(source.tables.families):
            origin = source.origin.about(_subject(table, f"families[{number}]"))
            row = typed(table, FamilyRow, origin)
            if not row.patterns:
                raise origin.fail("a family without patterns", field="patterns", remedy='add patterns = ["NAME*"]')
            yield Family(row.patterns, self._entry(row, " | ".join(row.patterns), None, origin))

    def _entry(self, row: TaskRow | FamilyRow, task_id: str, instruction: str | None, origin: Origin) -> TaskEntry:
        check_known(row.benchmark, self.benchmarks, "benchmark", "benchmarks", origin)
        for tag, reason in row.object_tags.items():
            if not reason.strip():
                raise origin.fail(f"object tag {tag!r} has no reason", field="object_tags", remedy="say why it fits")
        self.words.read(row.object_tags, "object_tags", origin)
        tags = self._mechanism(row, origin) | self.words.read(row.tags, "tags", origin)
        return TaskEntry(row.benchmark, task_id, row.template, row.components, tags, row.object_tags, instruction)

    def _paper_entry(self, row: PaperRow, origin: Origin) -> TaskEntry:
        if row.benchmark_signal_tags is None:
            check_known(row.benchmark, self.benchmarks, "benchmark", "benchmarks", origin)
            measured = None
        else:
            measured = self.words.read(row.benchmark_signal_tags, "benchmark_signal_tags", origin, capability=True)
        if row.task_tags is None:
            tags = self._mechanism(row, origin)
        else:
            _check_one_mechanism(row, origin)
            tags = self.words.read(row.task_tags, "task_tags", origin)
        objects = dict.fromkeys(sorted(self.words.read(row.object_tags, "object_tags", origin)), NO_REASON)
        return TaskEntry(
            row.benchmark, row.task_id, row.template, row.components, tags, objects, row.instruction, measured
        )

    def _mechanism(self, row: TaskRow | FamilyRow | PaperRow, origin: Origin) -> frozenset[str]:
        """The tags of the template, or of all components together."""
        _check_one_mechanism(row, origin)
        key = "components" if row.components else "template"
        names = row.components or (row.template or "",)
        for name in names:
            check_known(name, self.templates, key, "templates", origin)
        return frozenset[str]().union(*(self.templates[name].tags for name in names))


def _check_one_mechanism(row: TaskRow | FamilyRow | PaperRow, origin: Origin) -> None:
    if (row.template is None) == (not row.components):
        remedy = "give a template, or, where the task has several phases, components"
        raise origin.fail("has both or neither of template and components", field="template", remedy=remedy)


def _subject(row: object, otherwise: str) -> str:
    """A task's name in errors: benchmark and id, as far as the row has them."""
    named = [row[key] for key in ("benchmark", "task_id") if key in row] if isinstance(row, Mapping) else []
    return " ".join(map(str, named)) or otherwise
