"""File formats of task registries: TOML tables, and the paper's task-tag rows (Appendix B)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from safevla_bench.specs.file_formats import built_in_tags, meanings_by_class, tags_from_tables
from safevla_bench.specs.spec import Tag, TagClass
from safevla_bench.specs.table_reader import RowOrigin, convert_row
from safevla_bench.tasks import entries
from safevla_bench.text import get_logger, suggest_names

_log = get_logger(__name__)
NO_REASON = "stated without a reason"  # reason of an object tag in the paper's JSON rows, which hold no reasons


Reason = Annotated[str, Meta(pattern=r"\S")]


class ComponentRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A component of a composite task, as in the file: its template, and the predicates that complete it."""

    template: str
    predicates: tuple[Reason, ...] = ()


class MechanismRow(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that `[[tasks]]` and `[[families]]` share."""

    benchmark: str
    template: str | None = None
    components: tuple[ComponentRow | str, ...] = ()
    tags: tuple[str, ...] = ()
    object_tags: dict[str, Reason] = {}


class TaskRow(MechanismRow, frozen=True, kw_only=True):
    """One row of `[[tasks]]`."""

    task_id: str
    instruction: str


class TaskFamilyRow(MechanismRow, frozen=True, kw_only=True):
    """One row of `[[families]]`: an entry for all tasks that match a pattern."""

    patterns: Annotated[tuple[str, ...], Meta(min_length=1)]


class PaperTaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the paper's task-tag schema (Table 13, Appendix B). `predicates` and the keys from `instruction` on are
    optional additions of this project. `task_tags` are combined with the tags of the template (paper Eq. 2). A row with
    `patterns` is the entry of a family of tasks. `tag_meanings` declares tags that are not built in. `predicates` has,
    for each component, the predicates that complete it.
    """

    benchmark: str
    template: str | None = None
    components: tuple[str, ...] = ()
    predicates: tuple[tuple[str, ...], ...] = ()
    task_id: str
    task_tags: tuple[str, ...] | None = None
    object_tags: tuple[str, ...] = ()
    benchmark_signal_tags: tuple[str, ...] | None = None
    instruction: str | None = None
    object_tag_reasons: dict[str, str] = {}
    patterns: tuple[str, ...] = ()
    tag_meanings: dict[TagClass, dict[str, str]] = {}


class RegistryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a TOML registry file."""

    tags: dict[TagClass, dict[str, str]] = {}
    capabilities: dict[str, dict[str, object]] = {}
    benchmarks: dict[str, dict[str, object]] = {}
    templates: dict[str, dict[str, object]] = {}
    tasks: tuple[dict[str, object], ...] = ()
    families: tuple[dict[str, object], ...] = ()
    goal_bodies: dict[str, dict[str, dict[str, object]]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class RegistrySource:
    """The content of a registry file: its TOML tables or JSON rows. `origin` makes errors that name the file."""

    origin: RowOrigin
    tables: RegistryFile = field(default_factory=RegistryFile)
    rows: tuple[tuple[RowOrigin, PaperTaskRow], ...] = ()

    @property
    def tags(self) -> Mapping[str, Tag]:
        """The tags that the file declares, by name."""
        # One item for each place that declares tags: class of tags -> name -> meaning.
        # `self.tables` is a TOML file's content. `self.rows` are a JSON file's rows, each with its origin for errors.
        declared = [self.tables.tags, *(row.tag_meanings for _, row in self.rows)]
        return {name: tag for tables in declared for name, tag in tags_from_tables(tables).items()}


def read_paper_rows(rows: Iterable[tuple[RowOrigin, object]]) -> tuple[tuple[RowOrigin, PaperTaskRow], ...]:
    """Return pairs (origin for errors, row as a struct) from a JSON file. Raises `RegistryError` for an invalid row."""
    # Errors name a row by its benchmark and task id or, if the row has neither, by `row_origin.subject`.
    named_rows = [
        (row_origin.with_subject(_row_subject(row, row_origin.subject or "a row")), row) for row_origin, row in rows
    ]
    return tuple((origin, convert_row(row, PaperTaskRow, origin)) for origin, row in named_rows)


Row = TypeVar("Row", TaskRow, TaskFamilyRow, PaperTaskRow)
Named = TypeVar("Named", entries.Benchmark, entries.CapabilitySet, entries.TaskTemplate)


_TABLE_KEYS = {
    entries.Benchmark: "benchmarks",
    entries.CapabilitySet: "capabilities",
    entries.TaskTemplate: "templates",
}


def read_tables(source: RegistrySource, kind: type[Named]) -> Iterator[tuple[str, Named]]:
    """Yield name and content of each table of one kind, unchecked. Raises `RegistryError` if a table is invalid."""
    # `kind` is a type, such as `Benchmark`. `_TABLE_KEYS` maps it to the key under which a file has such tables.
    key = _TABLE_KEYS[kind]
    for name, table in getattr(source.tables, key).items():
        row = convert_row(table, kind, source.origin.with_subject(f"{key}.{name}"))
        yield name, msgspec.structs.replace(row, name=name)  # the table's name is not among its keys


def read_goal_bodies(source: RegistrySource) -> Iterator[tuple[tuple[str, str], entries.GoalBodies]]:
    """Yield (benchmark, task id) with the bodies in the task's goal. Raises `RegistryError` for an invalid table."""
    for benchmark, rows in source.tables.goal_bodies.items():
        for task_id, table in rows.items():
            origin = source.origin.with_subject(f"goal_bodies.{benchmark}.{task_id}")
            yield (benchmark, task_id), convert_row(table, entries.GoalBodies, origin)


def check_known(name: str, choices: Iterable[str], key: str, noun: str, origin: RowOrigin) -> None:
    """Raise `RegistryError` unless `name`, the value of `key`, is one of the choices, which the error calls `noun`."""
    names = list(choices)
    if name not in names:
        remedy = suggest_names(name, names, noun)
        raise origin.make_error(f"{name!r} is not one of the {noun}", field=key, remedy=remedy)


@dataclass(frozen=True, slots=True)
class EntryReader:
    """A reader of tasks and families, with the names to which they may refer."""

    tags: Mapping[str, Tag]
    templates: Mapping[str, entries.TaskTemplate]
    benchmarks: Mapping[str, entries.Benchmark]
    capability_sets: Mapping[str, entries.CapabilitySet]

    def read_tags(
        self, names: Collection[str], key: str, origin: RowOrigin, *, capability: bool = False
    ) -> frozenset[str]:
        """Return the names of tags as a set. If `capability` is true, all tags must be capability tags; otherwise, none
        may be a capability tag. Raises `RegistryError`, which names `key`, for an unknown tag or a tag of wrong class.
        """
        # `key` is the key under which a file lists the tags. `self.tags` maps the names of all known tags to the tags.
        for name in names:
            if name not in self.tags:
                remedy = f"{suggest_names(name, self.tags, 'known tags')}; or declare the tag under [tags.<class>]"
                raise origin.make_error(f"unknown tag {name!r}", field=key, remedy=remedy)
            if (self.tags[name].kind == "capability") != capability:
                problem = f"{name!r} is of class {self.tags[name].kind}"
                remedy = "use capability tags for hosts, and all other tags for tasks"
                raise origin.make_error(problem, field=key, remedy=remedy)
        if {"spillable", "non_spillable"} <= {*names}:
            remedy = "if one object can spill, leave out non_spillable"
            _log.warning("%s: both spillable and non_spillable, so tilt is not judged; %s", origin.subject, remedy)
        return frozenset(names)

    def check_tables(self, source: RegistrySource) -> None:
        """Raise `RegistryError` if a capability set, template or benchmark refers to an unknown name or a wrong tag."""
        # Capability tags belong to hosts, and all other tags to tasks; a tag in the wrong place is an error.
        # `read_tags` is called only for its checks. Tables of tasks, families and goal bodies are not checked here.
        # The reader's mappings have all names that exist, including the names in the file.
        for name in source.tables.capabilities:
            origin, group = source.origin.with_subject(f"capabilities.{name}"), self.capability_sets[name]
            self.read_tags(group.tags, "tags", origin, capability=True)
            self.read_tags(group.absent, "absent", origin, capability=True)
        for name in source.tables.templates:
            self.read_tags(self.templates[name].tags, "tags", source.origin.with_subject(f"templates.{name}"))
        for name in source.tables.benchmarks:
            origin, suite = source.origin.with_subject(f"benchmarks.{name}"), self.benchmarks[name]
            check_known(suite.capabilities, self.capability_sets, "capabilities", "capability sets", origin)
            for key in ("same_tasks_as", "same_tags_as"):  # names of other suites; None = not given
                if (other := getattr(suite, key)) is not None:
                    check_known(other, self.benchmarks, key, "benchmarks", origin)

    def read_entries(self, source: RegistrySource) -> Iterator[entries.TaskEntry]:
        """Yield the entries of the tasks and the families in a file. Raises `RegistryError` for an invalid row, such as
        a row with an unknown benchmark, tag or template.
        """
        for number, table in enumerate(source.tables.tasks):
            origin = source.origin.with_subject(_row_subject(table, f"tasks[{number}]"))
            task = self._spell_benchmark(convert_row(table, TaskRow, origin))
            yield replace(self._make_entry(task, task.task_id, origin), instruction=task.instruction)
        for number, table in enumerate(source.tables.families):
            origin = source.origin.with_subject(_row_subject(table, f"families[{number}]"))
            family = self._spell_benchmark(convert_row(table, TaskFamilyRow, origin))
            # A family has no task id, so the joined patterns replace it.
            yield replace(self._make_entry(family, " | ".join(family.patterns), origin), patterns=family.patterns)
        for origin, paper in source.rows:
            yield self._make_paper_entry(self._spell_benchmark(paper), origin)

    def _spell_benchmark(self, row: Row) -> Row:
        # Return the row with the known benchmark of which the row's benchmark is a spelling, if there is one.
        if row.benchmark in self.benchmarks:
            return row
        return msgspec.structs.replace(row, benchmark=entries.match_spelling(row.benchmark, self.benchmarks))

    def _make_entry(self, row: MechanismRow, task_id: str, origin: RowOrigin) -> entries.TaskEntry:
        # Returns the entry of a TOML row. `task_id` is the id of a task, or the joined patterns of a family.
        check_known(row.benchmark, self.benchmarks, "benchmark", "benchmarks", origin)
        # `object_tags` maps tags to reasons, so this only checks the tags.
        self.read_tags(row.object_tags, "object_tags", origin)
        own_tags = self.read_tags(row.tags, "tags", origin)
        # A component without predicates may be written as the name of its template.
        component_rows = [
            ComponentRow(template=component) if isinstance(component, str) else component
            for component in row.components
        ]
        components, tags = self._read_components(row, component_rows, own_tags, origin)
        return entries.TaskEntry(row.benchmark, task_id, row.template, components, tags, row.object_tags)

    def _make_paper_entry(self, row: PaperTaskRow, origin: RowOrigin) -> entries.TaskEntry:
        # Returns the entry for a row in the paper's schema. Capability tags that the row states are added.
        capabilities = None
        if row.benchmark_signal_tags is None:
            check_known(row.benchmark, self.benchmarks, "benchmark", "benchmarks", origin)
        else:
            capabilities = self.read_tags(row.benchmark_signal_tags, "benchmark_signal_tags", origin, capability=True)
            suite = self.benchmarks.get(row.benchmark)
            if suite and capabilities == self.capability_sets[suite.capabilities].tags:
                capabilities = None  # same tags as the benchmark
        own_tags = self.read_tags(row.task_tags or (), "task_tags", origin)
        # If `predicates` is shorter than `components`, the last components have no predicates.
        paired = zip_longest(row.components, row.predicates[: len(row.components)], fillvalue=())
        component_rows = [ComponentRow(template=str(name), predicates=tuple(texts)) for name, texts in paired]
        components, tags = self._read_components(row, component_rows, own_tags, origin)
        object_tags = sorted(self.read_tags(row.object_tags, "object_tags", origin))
        return entries.TaskEntry(
            benchmark=row.benchmark,
            task_id=row.task_id,
            template=row.template,
            components=components,
            tags=tags,
            object_tags={tag: row.object_tag_reasons.get(tag, NO_REASON) for tag in object_tags},
            instruction=row.instruction,
            capabilities=capabilities,
            patterns=row.patterns,
        )

    def _read_components(
        self,
        row: MechanismRow | PaperTaskRow,
        component_rows: Sequence[ComponentRow],
        own_tags: frozenset[str],
        origin: RowOrigin,
    ) -> tuple[tuple[entries.TaskComponent, ...], frozenset[str]]:
        # Return the components, and all tags of the mechanism.
        # These are the tags of the template or of all components, and the task's `own_tags`.
        # If a row of the paper's schema states task tags, an unknown template is only logged and adds no tags.
        # Such a row may come from other software.
        if (row.template is None) == (not row.components):  # template and components are both missing or both given
            remedy = "write a template, or components if the task has several phases"
            raise origin.make_error("must have either template or components", field="template", remedy=remedy)
        key = "components" if row.components else "template"
        # The templates of all components, or the only template of a task without components.
        names = tuple(component.template for component in component_rows) or (row.template or "",)
        for name in names:
            if isinstance(row, PaperTaskRow) and row.task_tags is not None and name not in self.templates:
                _log.warning("%s: the template %r is not known; only the row's tags are used", origin.subject, name)
            else:
                check_known(name, self.templates, key, "templates", origin)
        for predicate in (text for component in component_rows for text in component.predicates):
            match = entries.OPENING.fullmatch(predicate)
            if predicate.startswith("opening of ") and not (match and float(match[2]) <= 1):
                remedy = "write `opening of BODY >= SHARE` with a share such as 0.5"
                raise origin.make_error(f"{predicate!r} cannot be read", field="predicates", remedy=remedy)
        # A template that is only logged above has no tags.
        template_tags = {name: self.templates[name].tags if name in self.templates else frozenset() for name in names}
        # In rows of the paper's schema, the task tags include the tags of all components.
        # Only the other task tags are common to all components.
        common_tags = own_tags
        if isinstance(row, PaperTaskRow):
            common_tags = own_tags.difference(*template_tags.values())
        components = tuple(
            entries.TaskComponent(
                component.template, template_tags[component.template] | common_tags, component.predicates
            )
            for component in component_rows
        )
        return components, own_tags.union(*template_tags.values())


def _row_subject(row: object, default: str) -> str:
    # Returns the name of a row for errors: benchmark and task id if present; `default` if both are missing.
    values = [row[key] for key in ("benchmark", "task_id") if key in row] if isinstance(row, Mapping) else []
    return " ".join(map(str, values)) or default


def paper_task_rows(registry: entries.Registry, benchmark: str | None = None) -> list[dict[str, object]]:
    """Return tasks, then families, as rows of the paper's task-tag schema. `--rules` accepts these rows.
    If `benchmark` is None, all benchmarks are included. Raises `RegistryError` if there is no such benchmark.
    """
    registry.check_benchmark(benchmark)
    suite = None if benchmark is None else registry.find_suite(benchmark)
    return [
        _paper_task_row(entry, registry.capability_tags(entry), registry.vocabulary)
        for entry in (*registry.tasks.values(), *registry.families)
        if suite in (None, entry.benchmark)  # None = all benchmarks
    ]


def _paper_task_row(
    entry: entries.TaskEntry, measured: frozenset[str], vocabulary: Mapping[str, Tag]
) -> dict[str, object]:
    # Return an entry as a row of the paper's schema.
    # `measured` has the entry's capability tags; `vocabulary` has all known tags.
    # A row must declare the tags that are not built in.
    declared_tags = sorted({*entry.tags, *entry.object_tags, *measured} - set(built_in_tags()))
    predicates = [list(component.predicates) for component in entry.components]
    templates = [component.template for component in entry.components]
    optional = {  # keys that are left out if their value is None
        "instruction": entry.instruction,
        "predicates": predicates if any(predicates) else None,
        "object_tag_reasons": dict(sorted(entry.object_tags.items())) or None,
        "patterns": list(entry.patterns) or None,
        "tag_meanings": meanings_by_class(vocabulary[name] for name in declared_tags) or None,
    }
    return {
        "benchmark": entry.benchmark,
        "task_id": entry.task_id,
        **({"template": entry.template} if entry.template else {"components": templates}),
        "task_tags": sorted(entry.tags),
        "object_tags": sorted(entry.object_tags),
        "benchmark_signal_tags": sorted(measured),
        **{key: value for key, value in optional.items() if value is not None},
    }
