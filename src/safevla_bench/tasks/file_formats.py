"""File formats of task registries: TOML tables, and the paper's task-tag rows (Appendix B)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from safevla_bench.specs import Tag, TagClass
from safevla_bench.specs.table_reader import RowOrigin, convert_row, suggest_names
from safevla_bench.tasks.entries import Benchmark, CapabilitySet, GoalBodies, TaskEntry, TaskFamily, TaskTemplate

NO_REASON = "stated without a reason"
"""Reason of an object tag in a JSON row, whose schema has none."""


class CapabilityRow(msgspec.Struct, frozen=True, kw_only=True):
    """`[capabilities.NAME]`."""

    host: str
    tags: tuple[str, ...]


class BenchmarkRow(msgspec.Struct, frozen=True, kw_only=True):
    """`[benchmarks.NAME]`. `same_tasks_as` gives it an entry for each task of another benchmark."""

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


class TaskFamilyRow(msgspec.Struct, frozen=True, kw_only=True):
    """`[[families]]`."""

    benchmark: str
    patterns: tuple[str, ...]
    template: str | None = None
    components: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    object_tags: dict[str, str] = {}


class PaperTaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the paper's task-tag schema. Its task tags already include the template's and are used unchanged."""

    benchmark: str
    task_id: str
    template: str | None = None
    components: tuple[str, ...] = ()
    task_tags: tuple[str, ...] | None = None
    object_tags: tuple[str, ...] = ()
    benchmark_signal_tags: tuple[str, ...] | None = None
    instruction: str | None = None


class GoalBodiesRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task of `[goal_bodies.BENCHMARK]`."""

    receptacles: tuple[str, ...] = ()
    fixtures: tuple[str, ...] = ()


class RegistryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a TOML file."""

    tags: dict[TagClass, dict[str, str]] = {}
    capabilities: dict[str, dict[str, object]] = {}
    benchmarks: dict[str, dict[str, object]] = {}
    templates: dict[str, dict[str, object]] = {}
    tasks: tuple[dict[str, object], ...] = ()
    families: tuple[dict[str, object], ...] = ()
    goal_bodies: dict[str, dict[str, dict[str, object]]] = {}


@dataclass(frozen=True, slots=True)
class RegistrySource:
    """Content of a registry file: its tables or its JSON rows, and its origin for errors."""

    origin: RowOrigin
    tables: RegistryFile = field(default_factory=RegistryFile)
    rows: tuple[tuple[RowOrigin, object], ...] = ()


def read_benchmarks(source: RegistrySource) -> Iterator[tuple[str, Benchmark]]:
    """Yield the benchmarks of a file. Their references are not yet checked."""
    for name, table in source.tables.benchmarks.items():
        row = convert_row(table, BenchmarkRow, source.origin.with_subject(f"benchmarks.{name}"))
        yield name, Benchmark(name, **msgspec.structs.asdict(row))


def read_goal_bodies(source: RegistrySource) -> Iterator[tuple[tuple[str, str], GoalBodies]]:
    """Yield the bodies that goals name, by benchmark and task id; raises the origin's error for a misspelt key."""
    for benchmark, rows in source.tables.goal_bodies.items():
        for task_id, table in rows.items():
            row = convert_row(table, GoalBodiesRow, source.origin.with_subject(f"goal_bodies.{benchmark}.{task_id}"))
            yield (benchmark, task_id), GoalBodies(row.receptacles, row.fixtures)


def check_known(name: str, known: Iterable[str], key: str, what: str, origin: RowOrigin) -> None:
    """Raise the origin's error unless a name is among the known ones. `key` holds the name."""
    names = list(known)
    if name not in names:
        raise origin.make_error(f"{name!r} is none of the {what}", field=key, remedy=suggest_names(name, names, what))


@dataclass(frozen=True, slots=True)
class TagReader:
    """Reader of tags, given the vocabulary."""

    tags: Mapping[str, Tag]

    def read_tags(
        self, names: Iterable[str], key: str, origin: RowOrigin, *, capability: bool = False
    ) -> frozenset[str]:
        """Return the names as a set after checking that each is a tag: a capability for hosts, another for tasks."""
        for name in names:
            if name not in self.tags:
                remedy = f"{suggest_names(name, self.tags, 'known tags')}; or declare it under [tags.<class>]"
                raise origin.make_error(f"unknown tag {name!r}", field=key, remedy=remedy)
            if (self.tags[name].kind == "capability") != capability:
                problem = f"{name!r} is of class {self.tags[name].kind}"
                remedy = "capability tags belong to hosts, all others to tasks"
                raise origin.make_error(problem, field=key, remedy=remedy)
        return frozenset(names)

    def read_capability_sets(self, source: RegistrySource) -> Iterator[tuple[str, CapabilitySet]]:
        """Yield the capability sets of a file."""
        for name, table in source.tables.capabilities.items():
            origin = source.origin.with_subject(f"capabilities.{name}")
            row = convert_row(table, CapabilityRow, origin)
            yield name, CapabilitySet(name, row.host, self.read_tags(row.tags, "tags", origin, capability=True))

    def read_templates(self, source: RegistrySource) -> Iterator[tuple[str, TaskTemplate]]:
        """Yield the templates of a file."""
        for name, table in source.tables.templates.items():
            origin = source.origin.with_subject(f"templates.{name}")
            row = convert_row(table, TemplateRow, origin)
            yield name, TaskTemplate(name, row.meaning, self.read_tags(row.tags, "tags", origin))


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Reader of tasks and families, given the names that they may refer to."""

    tag_reader: TagReader
    templates: Mapping[str, TaskTemplate]
    benchmarks: Mapping[str, Benchmark]

    def read_entries(self, source: RegistrySource) -> Iterator[tuple[tuple[str, str], TaskEntry]]:
        """Yield the tasks of a file, by benchmark and id."""
        for number, table in enumerate(source.tables.tasks):
            origin = source.origin.with_subject(_row_subject(table, f"tasks[{number}]"))
            row = convert_row(table, TaskRow, origin)
            yield (row.benchmark, row.task_id), self._make_entry(row, row.task_id, row.instruction, origin)
        for place, written in source.rows:
            origin = place.with_subject(_row_subject(written, place.subject or "a row"))
            paper = convert_row(written, PaperTaskRow, origin)
            yield (paper.benchmark, paper.task_id), self._make_paper_entry(paper, origin)

    def read_families(self, source: RegistrySource) -> Iterator[TaskFamily]:
        """Yield the families of a file, in order."""
        for number, table in enumerate(source.tables.families):
            origin = source.origin.with_subject(_row_subject(table, f"families[{number}]"))
            row = convert_row(table, TaskFamilyRow, origin)
            if not row.patterns:
                raise origin.make_error(
                    "a family without patterns", field="patterns", remedy='add patterns = ["NAME*"]'
                )
            yield TaskFamily(row.patterns, self._make_entry(row, " | ".join(row.patterns), None, origin))

    def _make_entry(
        self, row: TaskRow | TaskFamilyRow, task_id: str, instruction: str | None, origin: RowOrigin
    ) -> TaskEntry:
        check_known(row.benchmark, self.benchmarks, "benchmark", "benchmarks", origin)
        for tag, reason in row.object_tags.items():
            if not reason.strip():
                raise origin.make_error(
                    f"object tag {tag!r} has no reason", field="object_tags", remedy="say why it fits"
                )
        self.tag_reader.read_tags(row.object_tags, "object_tags", origin)
        tags = self._mechanism_tags(row, origin) | self.tag_reader.read_tags(row.tags, "tags", origin)
        return TaskEntry(row.benchmark, task_id, row.template, row.components, tags, row.object_tags, instruction)

    def _make_paper_entry(self, row: PaperTaskRow, origin: RowOrigin) -> TaskEntry:
        if row.benchmark_signal_tags is None:
            check_known(row.benchmark, self.benchmarks, "benchmark", "benchmarks", origin)
            measured = None
        else:
            measured = self.tag_reader.read_tags(
                row.benchmark_signal_tags, "benchmark_signal_tags", origin, capability=True
            )
        if row.task_tags is None:
            tags = self._mechanism_tags(row, origin)
        else:
            _check_one_mechanism(row, origin)
            tags = self.tag_reader.read_tags(row.task_tags, "task_tags", origin)
        objects = dict.fromkeys(sorted(self.tag_reader.read_tags(row.object_tags, "object_tags", origin)), NO_REASON)
        return TaskEntry(
            row.benchmark, row.task_id, row.template, row.components, tags, objects, row.instruction, measured
        )

    def _mechanism_tags(self, row: TaskRow | TaskFamilyRow | PaperTaskRow, origin: RowOrigin) -> frozenset[str]:
        """Return the tags of the template, or of all components together."""
        _check_one_mechanism(row, origin)
        key = "components" if row.components else "template"
        names = row.components or (row.template or "",)
        for name in names:
            check_known(name, self.templates, key, "templates", origin)
        return frozenset[str]().union(*(self.templates[name].tags for name in names))


def _check_one_mechanism(row: TaskRow | TaskFamilyRow | PaperTaskRow, origin: RowOrigin) -> None:
    if (row.template is None) == (not row.components):
        remedy = "give a template, or, where the task has several phases, components"
        raise origin.make_error("has both or neither of template and components", field="template", remedy=remedy)


def _row_subject(row: object, otherwise: str) -> str:
    """Return a task's name for errors: benchmark and id, as far as the row has them."""
    names = [row[key] for key in ("benchmark", "task_id") if key in row] if isinstance(row, Mapping) else []
    return " ".join(map(str, names)) or otherwise
