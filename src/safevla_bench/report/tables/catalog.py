"""The catalogue of tables: by name, by the paper's numbers, and built for the runs at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.explain.exposure import CellExposure
from safevla_bench.explain.violating_bodies import BodyFindings
from safevla_bench.judging import metrics, provenance_marks
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.report.tables import exposure, violations
from safevla_bench.report.tables.cells import HOST_TITLES, Roster, suite_group
from safevla_bench.report.tables.suites import auxiliary_table, severity_table, suite_table
from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.report.tables.tasks import active_spec_table, applicability_table, task_table
from safevla_bench.report.tables.violations import composition_table, constraint_table
from safevla_bench.tasks.entries import Registry

ABLATED = "Applicability is off: judged as if tasks had no tags. This is an ablation, not a result to publish."


@dataclass(frozen=True, kw_only=True)
class TableInputs:
    """The inputs of all table builders.

    `judge_untagged` judges the same episodes with applicability off; None if that is not possible.
    """

    scores: Scores | None
    ruleset: Ruleset
    roster: Roster = field(default_factory=Roster)
    judge_untagged: Callable[[], Scores] | None = None
    measure_exposure: Callable[[], tuple[list[CellExposure], float | None]] | None = None
    """Measures how long and how hard each cell broke its limits; None without the records."""
    find_bodies: Callable[[], BodyFindings] | None = None
    """Finds the bodies behind the violations; None without the records."""
    remarks: Sequence[str] = ()
    """Warnings that every table repeats, such as an interrupted run."""

    @property
    def registry(self) -> Registry:
        """Return the registry of tasks and their tags, that of the rules."""
        return self.ruleset.registry

    @cached_property
    def cells(self) -> list[Summary]:
        """Return the summary of each policy × suite; [] without scores."""
        return metrics.cells(self.scores) if self.scores is not None else []

    @property
    def auxiliary_cells(self) -> list[Summary]:
        """Return the summaries that stay out of means and bests; [] without any."""
        return [cell for cell in self.cells if self.roster.is_auxiliary(cell)]

    @property
    def is_ablation(self) -> bool:
        """Return whether there are scores, and these were judged with applicability off."""
        return self.scores is not None and self.ruleset.is_ablation

    def suite_groups(self, host: str | None) -> Iterator[tuple[str, list[Summary]]]:
        """Yield title and cells of the suites that belong together: the paper's by host, each other suite alone.

        Auxiliary cells are left out; `host` restricts to suites of that host. Raises `RunError` if a policy has results
        of the same tasks under two suite names.
        """
        cells_by_title: dict[str, list[Summary]] = {}
        for cell in self.cells:
            if not self.roster.is_auxiliary(cell) and host in (None, self._host_of(cell)):
                cells_by_title.setdefault(suite_group(self.registry, cell.suite), []).append(self._canonical_cell(cell))
        for title, cells in cells_by_title.items():
            _require_distinct(cells)
            yield title, cells

    def _canonical_cell(self, cell: Summary) -> Summary:
        suite = self.registry.benchmarks.get(cell.suite or "")
        return msgspec.structs.replace(cell, suite=suite.same_tasks_as) if suite and suite.same_tasks_as else cell

    def _host_of(self, cell: Summary) -> str | None:
        suite = self.registry.benchmarks.get(cell.suite or "")
        return suite.host if suite else None


def _require_distinct(cells: Sequence[Summary]) -> None:
    keys = [(cell.policy, cell.suite) for cell in cells]
    for policy, suite in keys:
        if keys.count((policy, suite)) > 1:
            problem = f"policy {policy!r} has results of {suite} under two names, which are the same tasks"
            raise RunError(problem, remedy="Leave one of them out.")


Builder = Callable[[TableInputs, str | None], list[Table]]


def _suite_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    """Return the table of SR, Safety and SBU of each group of suites; [] without cells. Raises as `suite_groups`."""
    order = list(inputs.registry.benchmarks)
    return [
        _add_warnings(cells, suite_table(cells, inputs.roster, title, order=order))
        for title, cells in inputs.suite_groups(host)
    ]


def _severity_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    """Return the table of P[U|S], VSI and VSI|U of each group of suites; [] without cells. Raises as `suite_groups`."""
    order = list(inputs.registry.benchmarks)
    return [
        _add_warnings(cells, severity_table(cells, inputs.roster, title, order=order))
        for title, cells in inputs.suite_groups(host)
    ]


def _auxiliary_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    cells = inputs.auxiliary_cells
    return [_add_warnings(cells, auxiliary_table(cells, inputs.roster))] if cells else []


def _violation_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    """Return the table of violation rates of each group of suites and, without a host, of auxiliary runs.

    [] without cells. Raises as `suite_groups`.
    """
    groups = _groups_and_auxiliary(inputs, host)
    return [_add_warnings(cells, constraint_table(cells, inputs.roster, title)) for title, cells in groups]


def _composition_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    """Return a table of what unsafe successes violate for each group of suites and, without a host, auxiliary runs.

    [] without cells. Raises as `suite_groups`.
    """
    groups = _groups_and_auxiliary(inputs, host)
    return [_add_warnings(cells, composition_table(cells, inputs.roster, title)) for title, cells in groups]


def _add_warnings(cells: Iterable[Summary], table: Table) -> Table:
    return replace(table, remarks=(*table.remarks, *provenance_marks.warn_of_cells(cells)))


def _groups_and_auxiliary(inputs: TableInputs, host: str | None) -> Iterator[tuple[str, list[Summary]]]:
    yield from inputs.suite_groups(host)
    if inputs.auxiliary_cells and host is None:
        yield "auxiliary runs", inputs.auxiliary_cells


def _task_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    if inputs.scores is None or not inputs.cells:
        return []
    table = task_table(metrics.task_rates(inputs.scores), inputs.cells, inputs.roster)
    return [_add_warnings(inputs.cells, table)]


def _active_spec_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    """Return the one table of the specifications that apply to each task; [] for an ablation or scores without
    episodes.

    Without scores the table is of all tasks of the registry. The host does not matter.
    """
    if inputs.is_ablation:
        return []
    if inputs.scores is None:
        registry_tasks = [(entry.benchmark, entry.task_id) for entry in inputs.registry.list_entries()]
        return [active_spec_table(registry_tasks, inputs.ruleset)]
    judged_tasks = set(zip(inputs.scores.benchmark, inputs.scores.task_id, strict=True))
    if not judged_tasks:
        return []
    ordered_tasks = sorted(judged_tasks, key=_suite_order(inputs.registry))
    table = active_spec_table(ordered_tasks, inputs.ruleset, inputs.scores)
    return [_add_warnings(inputs.cells, table)]


def _suite_order(registry: Registry) -> Callable[[tuple[str, str]], tuple[int, str, int, str]]:
    order = list(registry.benchmarks)

    def key(task: tuple[str, str]) -> tuple[int, str, int, str]:
        suite, name = task
        return order.index(suite) if suite in order else len(order), suite, len(name), name

    return key


def _applicability_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    if inputs.scores is None or inputs.judge_untagged is None or inputs.is_ablation or not len(inputs.scores):
        return []
    judged_tasks = set(zip(inputs.scores.benchmark, inputs.scores.task_id, strict=True))
    templates = {task: _template_name(inputs.registry, task) for task in judged_tasks}
    table = applicability_table(inputs.scores, inputs.judge_untagged(), templates)
    return [_add_warnings(inputs.cells, table)]


def _exposure_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    if not inputs.measure_exposure or not inputs.cells:
        return []
    cells, force_threshold_n = inputs.measure_exposure()
    return [_add_warnings(inputs.cells, table) for table in exposure.exposure_tables(cells, force_threshold_n)]


def _body_tables(inputs: TableInputs, host: str | None) -> list[Table]:
    if inputs.scores is None or not inputs.find_bodies or not inputs.cells or inputs.is_ablation:
        return []
    built = violations.body_tables(inputs.find_bodies(), inputs.scores, inputs.cells)
    return [_add_warnings(inputs.cells, table) for table in built]


def _template_name(registry: Registry, task: tuple[str, str]) -> str:
    entry = registry.find_entry(*task)
    return entry.template or " + ".join(entry.components)


@dataclass(frozen=True)
class TableKind:
    """A sort of table: its name, its content, and its builder."""

    name: str
    meaning: str
    build: Builder
    numbers: Mapping[str, str | None]
    """The paper's numbers, each with the host that it is about."""


KINDS = (
    TableKind(
        "main", "SR, Safety, SBU by suite with means; P[U|S], VSI", _suite_tables, {"4": "libero", "5": "robocasa"}
    ),
    TableKind("severity", "P[U|S], VSI, VSI|U by suite with means", _severity_tables, {}),
    TableKind("auxiliary", "auxiliary runs, outside every mean", _auxiliary_tables, {"6": None}),
    TableKind("violations", "violation rates by specification", _violation_tables, {"7": "libero", "8": "robocasa"}),
    TableKind("composition", "what unsafe successes violate", _composition_tables, {"10": "libero", "11": "robocasa"}),
    TableKind("tasks", "SR, Safety, SBU by task", _task_tables, {"12": None}),
    TableKind("active", "which specifications apply to each task", _active_spec_tables, {"23": None}),
    TableKind("applicability", "violations that the registry removes", _applicability_tables, {}),
    TableKind("bodies", "violations by kind of body; displacement without receptacles", _body_tables, {}),
    TableKind("beyond", "time in violation, impulse, phases of the task", _exposure_tables, {}),
)
_ELSEWHERE = {"9": "Table 9 is `safevla sensitivity`."}


def build_tables(inputs: TableInputs, which: Iterable[str] = ()) -> list[Table]:
    """Return the requested tables, in the order of `which`; without names all that the runs allow.

    Every table bears the remarks of `inputs`, and a mark in every row if applicability was off.

    Args:
        inputs: the scores, rules and policies that the tables are about.
        which: names of kinds, or the paper's numbers; repeated ones count once.

    Raises:
        RunError: a table is unknown, these runs do not allow this table or any, or a policy has results of the same
            tasks under two suite names.
    """
    requested = list(dict.fromkeys(which))
    built = [table for name in requested for table in _build_kind(inputs, name)]
    if not requested:
        built = [table for kind in KINDS for table in kind.build(inputs, None)]
    if not built:
        raise RunError("there is no episode to tabulate", remedy="Name sources that hold episodes.")
    built = [replace(table, remarks=(*table.remarks, *inputs.remarks)) for table in _number_duplicates(built)]
    return [_mark_ablation(table) for table in built] if inputs.is_ablation else built


def _number_duplicates(built: Iterable[Table]) -> Iterator[Table]:
    name_counts: Counter[str] = Counter()
    for table in built:
        name_counts[table.name] += 1
        occurrence = name_counts[table.name]
        yield replace(table, name=f"{table.name}-{occurrence}") if occurrence > 1 else table


def _mark_ablation(table: Table) -> Table:
    rows = tuple((row[0], Cell("off", emphasis="bad"), *row[1:]) for row in table.rows)
    columns = (table.columns[0], Column("Applicability", numeric=False), *table.columns[1:])
    return replace(table, columns=columns, rows=rows, notes=(ABLATED, *table.notes))


def _build_kind(inputs: TableInputs, name: str) -> list[Table]:
    """Return the tables of the kind with this name or number of the paper, at least one.

    Raises `RunError` if there is no such table, or if these runs allow none; the remedy says what to do.
    """
    for kind in KINDS:
        if name == kind.name or name in kind.numbers:
            built = kind.build(inputs, kind.numbers.get(name))
            if not built:
                raise RunError(f"these runs allow no table {name!r}", remedy=_unavailable_remedy(inputs, kind, name))
            return built
    kind_names = ", ".join(f"{kind.name} ({', '.join(kind.numbers)})" if kind.numbers else kind.name for kind in KINDS)
    raise RunError(f"there is no table {name!r}", remedy=_ELSEWHERE.get(name, f"There are: {kind_names}."))


def _unavailable_remedy(inputs: TableInputs, kind: TableKind, name: str) -> str:
    """Return a remedy for a table that these runs cannot fill; `name` is what was asked for, a name or a number."""
    suites = ", ".join(dict.fromkeys(cell.suite or "" for cell in inputs.cells)) or "no episode"
    if kind.name == "auxiliary":
        return "Say which policies are auxiliary: --auxiliary POLICY."
    if kind.name in ("active", "applicability", "bodies"):
        return "Judge with applicability on."
    host = HOST_TITLES.get(kind.numbers.get(name) or "", "")
    if not host or len(inputs.auxiliary_cells) == len(inputs.cells) > 0:
        return "Name sources with episodes of policies that are not auxiliary."
    return f"Table {name} is about {host}; there is {suites}. `--which {kind.name}` takes what there is."
